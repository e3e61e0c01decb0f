"""The page's tables of servers: which server keeps copies for which, and which took over from which. docs/sla.md, 8.

The heat map has the pairs of servers; tables have the figures of each server, site and boundary. Each takeover is a time line, and all
are on one logarithmic scale, because a takeover lasts seconds or hours: server lost, promoted, delivered, returned.
"""

import math
from dataclasses import dataclass

from shadowrelay.sla.page.labels import REASONS
from shadowrelay.sla.page.summary_types import Figure, Summary, Takeover
from shadowrelay.sla.page.wording import NONE, count, counted, duration, milliseconds, seconds_between, shown

_WITHIN_SECONDS = 0.25  # what heat is measured by where nothing was promised
_HEATS = ((0.125, "h1"), (0.25, "h2"), (0.5, "h3"), (1.0, "h4"))


@dataclass(frozen=True, slots=True)
class Heat:
    """A pair of servers. Shapes: `kind` is the colour; `details` may be empty."""

    kind: str
    messages: str
    details: list[str]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Shapes: `rows` are (primary server, [(shadow server, the pair or None)]); `legend` is (colour, meaning)."""

    shadows: list[str]
    rows: list[tuple[str, list[tuple[str, Heat | None]]]]
    legend: list[tuple[str, str]]


def heat_map(summary: Summary) -> HeatMap | None:
    """None if no server keeps copies for another."""
    by_pair = {(one["name"], one["other"]): one for one in _of_all_time(summary, "pair")}
    if not by_pair:
        return None
    objective = next((one for one in summary["objectives"] if one["name"] == "shadow_latency"), None)
    within = (objective["within_seconds"] if objective else None) or _WITHIN_SECONDS
    primaries = sorted({primary for primary, _ in by_pair})
    shadows = sorted({shadow for _, shadow in by_pair})
    legend = [(name, f"up to {duration(share * within)}") for share, name in _HEATS]
    legend.append(("h5", f"over {'the promised ' if objective else ''}{duration(within)}"))
    if any(one["shadow_latency_ms"].get("p95") is None for one in by_pair.values()):
        legend.insert(0, ("h0", "no latency logged"))
    rows = [(primary, [(shadow, _heat(by_pair.get((primary, shadow)), within)) for shadow in shadows]) for primary in primaries]
    return HeatMap(shadows, rows, legend)


def _of_all_time(summary: Summary, scope: str) -> list[Figure]:
    return [one for one in summary["figures"] if one["window"] == "all" and one["scope"] == scope]


def _heat(figure: Figure | None, within: float) -> Heat | None:
    if figure is None:
        return None
    p95 = figure["shadow_latency_ms"].get("p95")
    kind = "h0" if p95 is None else next((name for share, name in _HEATS if p95 <= share * within * 1000), "h5")
    details = [
        f"p95 {milliseconds(p95)}" if p95 is not None else "",
        f"{count(figure['messages_promoted'])} taken over" if figure["messages_promoted"] else "",
        counted(figure["shadows_orphaned"], "left-over copy", "left-over copies") if figure["shadows_orphaned"] else "",
    ]
    return Heat(kind, count(figure["messages_acknowledged"]), [one for one in details if one])


def clusters(summary: Summary) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """(boundary, [(site, servers)]) of the servers whose logs were read; the name is empty where the logs do not tell it."""
    found: dict[str, dict[str, list[str]]] = {}
    for server in sorted(summary["input"]["servers"], key=lambda one: (one["boundary"], one["site"], one["name"])):
        found.setdefault(server["boundary"], {}).setdefault(server["site"], []).append(server["name"])
    return [(boundary, list(sites.items())) for boundary, sites in found.items()]


def scopes(summary: Summary) -> list[tuple[str, str, list[Figure]]]:
    """(scope, title, figures by name); a single site or boundary is left out, as its figures are those of all."""
    found = []
    for scope, title in (("server", "Servers"), ("site", "Sites"), ("boundary", "Boundaries")):
        figures = sorted(_of_all_time(summary, scope), key=lambda one: one["name"])
        if figures and (scope == "server" or len(figures) > 1):
            found.append((scope, title, figures))
    return found


def without_figures(summary: Summary) -> list[str]:
    """Servers whose logs were read, and that acknowledged nothing to a client: an Edge behind others, say."""
    return sorted({one["name"] for one in summary["input"]["servers"]} - {one["name"] for one in _of_all_time(summary, "server")})


# ---- takeovers

_WIDTH, _MARGIN = 600, 12
_SPARE = {10, 600, 10_800}  # not named where there is little room
_TICKS = (1, 10, 60, 600, 3_600, 10_800, 86_400, 604_800, 2_592_000)  # seconds
_SEGMENTS = (("lost", "promoted"), ("cut off", "promoted"), ("promoted", "delivered"))
_BEFORE = {
    "lost": "before the loss",
    "cut off": "before the cut",
    "detected": "before the detection",
    "promoted": "before the promotion",
}  # by the first station


@dataclass(frozen=True, slots=True)
class Station:
    """Shapes: `since` is the time since the first station, empty at that one. Units: `x` is in pixels, None before the first station."""

    name: str
    at: str
    since: str
    x: float | None


@dataclass(frozen=True, slots=True)
class Track:
    """One takeover. Shapes: `late` is None where the log does not say when the server was lost; `missing` are stations not yet reached;
    `segments` are (the station that they lead to, from x, to x)."""

    primary: str
    said: str
    promoted_by: str
    reason: str
    messages: str
    late: int | None
    stations: list[Station]
    missing: list[str]
    segments: list[tuple[str, float, float]]
    description: str


@dataclass(frozen=True, slots=True)
class Takeovers:
    """Shapes: `ticks` are (x, label, whether it is left out where there is little room)."""

    keys: list[tuple[str, str]]
    ticks: list[tuple[float, str, bool]]
    tracks: list[Track]
    note: str


def takeovers(summary: Summary) -> Takeovers | None:
    """None if no server was taken over."""
    overall, listed = summary["overall"], summary["takeovers"]
    if not overall["promotions"] and not listed:
        return None
    detection, silence = overall["takeover_detection_ms"], overall["takeover_silence_ms"]
    has_times = bool(detection.get("count") or silence.get("count"))  # nothing is late where nobody logged when a server was lost
    keys = [
        ("Takeovers", count(overall["promotions"])),
        ("Messages", count(overall["messages_promoted"])),
        ("Resubmissions late", count(overall["takeovers_late"]) if has_times else NONE),
        ("Detected to promoted, p95", milliseconds(detection.get("p95"))),
        ("Silent to promoted, p95", milliseconds(silence.get("p95"))),
    ]
    longest = max([seconds for one in listed for _, _, seconds in _reached(one)], default=0.0)
    ticks = [(_x(seconds, longest), duration(seconds), seconds in _SPARE) for seconds in _TICKS if seconds <= longest]
    unseen = " (where nobody logged it: since the first that was logged)" if any(not one["silent_since"] for one in listed) else ""
    total = max(overall["promotions"], len(listed))
    note = f"Time since the loss{unseen}, logarithmic. {shown(len(listed), total, 'tables/takeovers')}."
    return Takeovers(keys, ticks, [_track(one, longest) for one in listed], note)


def _reached(one: Takeover) -> list[tuple[str, str, float]]:
    """(station, instant, seconds since the first of them) of those that the logs tell of. Exchange does not log the loss.

    Units: below zero it was before the first, as a delivery may be of which the primary's log or its peers knew too late.
    """
    known = [("cut off" if one["is_cut"] else "lost", one["silent_since"]), ("detected", one["detected_at"])]
    if any(at for _, at in known):
        known += [("promoted", one["last_resubmit_at"])]
    else:
        known += [("promoted", one["first_resubmit_at"])]
        if one["last_resubmit_at"] != one["first_resubmit_at"]:
            known += [("last promoted", one["last_resubmit_at"])]
    known += [("delivered", one["delivered_at"]), _end(one)]
    logged = [(name, at) for name, at in known if at]
    return [(name, at, after) for name, at in logged if (after := seconds_between(logged[0][1], at)) is not None]


def _end(one: Takeover) -> tuple[str, str | None]:
    """A server that was only cut off had not gone, and so cannot return."""
    return ("in touch", one["in_touch_at"]) if one["is_cut"] else ("returned", one["returned_at"])


def _x(seconds: float, longest: float) -> float:
    return _MARGIN + (_WIDTH - 2 * _MARGIN) * (math.log1p(seconds) / math.log1p(longest) if longest else 0.0)


def _track(one: Takeover, longest: float) -> Track:
    reached = _reached(one)
    first = reached[0][0]
    at = {name: _x(seconds, longest) for name, _, seconds in reached if seconds >= 0}
    said = [f"{name} {f'after {duration(seconds)}' if seconds >= 0 else _BEFORE[first]}" for name, _, seconds in reached[1:]]
    return Track(
        primary=one["old_primary"],
        said="cut off; its mail taken over by" if one["is_cut"] else "taken over by",
        promoted_by=one["new_primary"],
        reason=REASONS.get(one["reason"], one["reason"]),
        messages=counted(one["messages"], "message"),
        late=None if one["in_time"] is None else one["messages"] - one["in_time"],
        stations=[Station(name, when, _since(name, seconds, first), at.get(name)) for name, when, seconds in reached],
        missing=[name for name in ("delivered", _end(one)[0]) if name not in {name for name, _, _ in reached}],
        segments=[(end, at[begin], max(at[begin], at[end])) for begin, end in _SEGMENTS if begin in at and end in at],
        description=", ".join(said) or "no later instant is known",
    )


def _since(station: str, seconds: float, first: str) -> str:
    if station == first:
        return ""
    return f"+{duration(seconds)}" if seconds >= 0 else _BEFORE[first]
