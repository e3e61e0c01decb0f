"""The sections on servers: which keeps copies for which, and which took over from which.

The first is a heat map of server pairs with the figures of each server, site and boundary. The second draws each takeover as a line of
time, one below the other on one logarithmic scale: server lost, promoted, delivered, returned.
"""

import math
from collections.abc import Mapping, Sequence

from shadowrelay.sla.page.labels import REASONS
from shadowrelay.sla.page.markup import (
    NONE,
    Child,
    Column,
    Html,
    Row,
    count,
    counted,
    duration,
    instant,
    key_figures,
    milliseconds,
    none,
    parsed,
    percent,
    section,
    shown,
    table,
    tag,
)
from shadowrelay.sla.page.plots import pixels
from shadowrelay.sla.page.summary_types import Figure, Summary, Takeover

_WITHIN_SECONDS = 0.25  # what heat is measured by where nothing was promised
_HEATS = ((0.125, "h1"), (0.25, "h2"), (0.5, "h3"), (1.0, "h4"))


def pairs(summary: Summary) -> Html:
    """The section."""
    by_pair = {(one["name"], one["other"]): one for one in summary["figures"] if one["window"] == "all" and one["scope"] == "pair"}
    content = [_map(summary, by_pair) if by_pair else none("No copies between servers in this input."), _scopes(summary)]
    return section("servers", "Servers and pairs", content, notes=["redundancy", "shadow-latency"])


def _map(summary: Summary, by_pair: Mapping[tuple[str, str], Figure]) -> Html:
    objective = next((one for one in summary["objectives"] if one["name"] == "shadow_latency"), None)
    within = (objective["within_seconds"] if objective else None) or _WITHIN_SECONDS
    primaries = sorted({primary for primary, _ in by_pair})
    shadows = sorted({shadow for _, shadow in by_pair})
    columns = [Column("Primary server"), *[Column(shadow) for shadow in shadows]]
    rows = [
        Row([primary, *[_heat(by_pair.get((primary, shadow)), primary == shadow, within) for shadow in shadows]]) for primary in primaries
    ]
    caption = "Messages by the server that acknowledged them (row) and the server that had their copy (column)"
    aside = "The colour is p95 of their shadow latency. Taken over: messages that the column's server promoted when the row's was lost."
    steps = [
        *[(name, f"up to {duration(share * within)}") for share, name in _HEATS],
        ("h5", f"over {'the promised ' if objective else ''}{duration(within)}"),
    ]
    if any(one["shadow_latency_ms"].get("p95") is None for one in by_pair.values()):
        steps.insert(0, ("h0", "no latency logged"))
    legend = tag(
        "p", [tag("span", tag("span", class_=f"swatch {name}", aria_hidden="true"), said) for name, said in steps], class_="legend"
    )
    return tag("div", table("pairs-table", caption, columns, rows), legend, tag("p", aside, class_="aside"), class_="heat")


def _heat(figure: Figure | None, is_itself: bool, within: float) -> Html:
    if figure is None:
        said = tag("span", "the server itself" if is_itself else "no copies", class_="unseen")
        return said if is_itself else tag("span", NONE, said, class_="cell empty")
    p95 = figure["shadow_latency_ms"].get("p95")
    heat = "h0" if p95 is None else next((name for share, name in _HEATS if p95 <= share * within * 1000), "h5")
    details = [
        f"p95 {milliseconds(p95)}" if p95 is not None else None,
        f"{count(figure['messages_promoted'])} taken over" if figure["messages_promoted"] else None,
        counted(figure["shadows_orphaned"], "orphan") if figure["shadows_orphaned"] else None,
    ]
    return tag(
        "span", tag("b", count(figure["messages_acknowledged"])), [tag("small", one) for one in details if one], class_=f"cell {heat}"
    )


def _scopes(summary: Summary) -> list[Html]:
    found = []
    for scope, title in (("server", "Servers"), ("site", "Sites"), ("boundary", "Boundaries")):
        figures = [one for one in summary["figures"] if one["window"] == "all" and one["scope"] == scope]
        if figures and (scope == "server" or len(figures) > 1):
            rows = [_scope(one) for one in sorted(figures, key=lambda one: one["name"])]
            found.append(table(f"{scope}-figures", title, _columns(scope), rows, is_sortable=True))
    return found


def _columns(scope: str) -> list[Column]:
    heads = ("Acknowledged", "Ratio", "Shadow p95", "Delivery p95", "Exposure", "Taken over", "Duplicates", "Lost", "Orphans")
    return [Column(scope.capitalize()), *[Column(head, "number") for head in heads]]


def _scope(figure: Figure) -> Row:
    shadow, delivery = figure["shadow_latency_ms"].get("p95"), figure["delivery_latency_ms"].get("p95")
    counts = [figure["messages_promoted"], figure["recipients_duplicated"], figure["recipients_lost"], figure["shadows_orphaned"]]
    exposed, ratio, acknowledged = figure["exposure_seconds"], figure["redundancy_ratio"], figure["messages_acknowledged"]
    cells: list[Child] = [
        figure["name"] or "(unknown)",
        count(acknowledged),
        percent(ratio),
        milliseconds(shadow),
        milliseconds(delivery),
        duration(exposed),
        *[count(number) for number in counts],
    ]
    return Row(cells, [None, acknowledged, ratio, shadow, delivery, exposed, *counts])


# ---- takeovers

_WIDTH, _HEIGHT, _MARGIN = 600, 32, 12
_SPARE = {10, 600, 10_800}  # not named where there is little room
_TICKS = [
    (1, "1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3_600, "1 h"),
    (10_800, "3 h"),
    (86_400, "1 d"),
    (604_800, "7 d"),
    (2_592_000, "30 d"),
]
_BEFORE = {"lost": "before the loss", "detected": "before the detection", "promoted": "before the promotion"}  # by the first station


def takeovers(summary: Summary) -> Html:
    """The section; the scale is logarithmic, as a takeover lasts seconds or hours."""
    overall, listed = summary["overall"], summary["takeovers"]
    if not overall["promotions"] and not listed:
        return section("takeovers", "Takeovers", none("No server was taken over."), notes=["takeover"])
    detection, silence = overall["takeover_detection_ms"], overall["takeover_silence_ms"]
    has_times = bool(detection.get("count") or silence.get("count"))  # nothing is late where nobody logged when a server was lost
    keys: list[tuple[str, Child]] = [
        ("Takeovers", count(overall["promotions"])),
        ("Messages", count(overall["messages_promoted"])),
        ("Resubmissions late", count(overall["takeovers_late"]) if has_times else NONE),
        ("Detected to promoted, p95", milliseconds(detection.get("p95"))),
        ("Silent to promoted, p95", milliseconds(silence.get("p95"))),
    ]
    longest = max([seconds for one in listed for _, _, seconds in _stations(one)], default=0.0)
    items = tag("ol", [_takeover(number, one, longest) for number, one in enumerate(listed)], class_="takeovers", role="list")
    legend = tag(
        "p",
        [_legend(*one) for one in (("lost", "lost"), ("promoted", "promoted"), ("delivered", "delivered"), ("returned", "returned"))],
        class_="legend",
    )
    total = max(overall["promotions"], len(listed))
    unseen = " (where nobody logged it: since the first that was logged)" if any(not one["silent_since"] for one in listed) else ""
    note = tag("p", f"Time since the loss{unseen}, logarithmic. {shown(len(listed), total, 'takeovers')}.", class_="aside")
    return section("takeovers", "Takeovers", key_figures(keys), legend, _scale(longest), items, note, notes=["takeover"])


def _stations(one: Takeover) -> list[tuple[str, str, float]]:
    """(station, instant, seconds since the first of them) of those that the logs tell of. Exchange does not log the loss."""
    known = [("lost", one["silent_since"]), ("detected", one["detected_at"])]
    if any(at for _, at in known):
        known += [("promoted", one["last_resubmit_at"])]
    else:
        known += [("promoted", one["first_resubmit_at"])]
        if one["last_resubmit_at"] != one["first_resubmit_at"]:
            known += [("last promoted", one["last_resubmit_at"])]
    known += [("delivered", one["delivered_at"]), ("returned", one["returned_at"])]
    logged = [(name, at) for name, at in known if at]
    return [(name, at, after) for name, at in logged if (after := _after(logged[0][1], at)) is not None]


def _after(first: str, at: str) -> float | None:
    """Seconds from the first station. Below zero: it was before, as a delivery may be of which the primary's log or its peers knew too
    late."""
    earlier, later = parsed(first), parsed(at)
    return (later - earlier).total_seconds() if earlier and later else None


def _x(seconds: float, longest: float) -> float:
    return _MARGIN + (_WIDTH - 2 * _MARGIN) * (math.log1p(seconds) / math.log1p(longest) if longest else 0.0)


def _scale(longest: float) -> Html:
    marks = [(seconds, label) for seconds, label in _TICKS if seconds <= longest]
    texts = [
        tag("text", label, class_="tick mid spare" if seconds in _SPARE else "tick mid", x=pixels(_x(seconds, longest)), y=13)
        for seconds, label in marks
    ]
    ticks = [tag("line", class_="axis", x1=x, x2=x, y1=19, y2=24) for seconds, _ in marks for x in [pixels(_x(seconds, longest))]]
    return tag("svg", texts, ticks, class_="scale", viewBox=f"0 0 {_WIDTH} 24", aria_hidden="true")


def _legend(station: str, word: str) -> Html:
    return tag(
        "span",
        tag("svg", _shape(station, 8, 18 if station == "promoted" else 8), class_="track", viewBox="0 0 16 16", aria_hidden="true"),
        word,
    )


def _shape(station: str, x: float, y: float) -> Html | None:
    """Each station has a shape of its own: cross, pointer (above the line, as delivery may follow at once), disc, ring."""
    match station:
        case "lost":
            return tag("path", class_="lost", d=f"M{pixels(x - 5)} {y - 5} l10 10 m0 -10 l-10 10")
        case "promoted":
            return tag("path", class_="promoted", d=f"M{pixels(x - 5)} {pixels(y - 15)} h10 l-5 10 z")
        case "delivered":
            return tag("circle", class_="delivered", cx=pixels(x), cy=y, r=5)
        case "returned":
            return tag("circle", class_="returned", cx=pixels(x), cy=y, r=5)
        case _:
            return None


def _track(name: str, one: Takeover, stations: Sequence[tuple[str, str, float]], longest: float) -> Html:
    middle = _HEIGHT - 9
    at = {station: _x(seconds, longest) for station, _, seconds in stations if seconds >= 0}
    parts = [tag("line", class_="bed", x1=_MARGIN, x2=_WIDTH - _MARGIN, y1=middle, y2=middle)]
    for begin, end in (("lost", "promoted"), ("promoted", "delivered")):
        if begin in at and end in at:
            parts.append(tag("line", class_=f"until-{end}", x1=pixels(at[begin]), x2=pixels(max(at[begin], at[end])), y1=middle, y2=middle))
    said = ", ".join(
        f"{station} {f'after {duration(seconds)}' if seconds >= 0 else _BEFORE[stations[0][0]]}" for station, _, seconds in stations[1:]
    )
    return tag(
        "svg",
        tag("title", f"{one['old_primary']} taken over by {one['new_primary']}", id=f"{name}-title"),
        tag("desc", said or "no later instant is known", id=f"{name}-desc"),
        parts,
        [_shape(station, x, middle) for station, x in at.items()],
        class_="track",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def _takeover(number: int, one: Takeover, longest: float) -> Html:
    stations = _stations(one)
    reason = REASONS.get(one["reason"], one["reason"])
    facts: list[Child] = [
        f"{reason} · " if reason else None,
        counted(one["messages"], "message"),
        _lateness(one["messages"], one["in_time"]),
    ]
    steps = [_step(*station, first=stations[0][0]) for station in stations]
    reached = {station for station, _, _ in stations}
    missing = [(station, f"not yet {station}") for station in ("delivered", "returned") if station not in reached]
    steps += [tag("div", tag("dt", word), tag("dd", NONE)) for _, word in missing]
    return tag(
        "li",
        tag("h3", one["old_primary"], tag("span", " taken over by ", class_="quiet"), one["new_primary"]),
        tag("p", facts, class_="facts"),
        _track(f"takeover-{number}", one, stations, longest),
        tag("dl", steps, class_="steps"),
    )


def _lateness(messages: int, in_time: int | None) -> Child:
    """Shapes: `in_time` is None where the log does not say when the server was lost."""
    if in_time is None:
        return ", times not logged"
    late = messages - in_time
    return tag("b", f", {count(late)} late", class_="fast") if late else ", all in time"


def _step(station: str, at: str, seconds: float, *, first: str) -> Html:
    since = "" if station == first else (f" +{duration(seconds)}" if seconds >= 0 else f" {_BEFORE[first]}")
    return tag("div", tag("dt", station, tag("span", since, class_="since") if since else None), tag("dd", instant(at)))
