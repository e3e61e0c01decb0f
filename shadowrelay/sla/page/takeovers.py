"""Takeovers as lines of time, one below the other on one scale: server lost, promoted, delivered, returned."""

import math
from collections.abc import Sequence

from shadowrelay.sla.page.markup import Child, Html, tag
from shadowrelay.sla.page.parts import key_figures, none, section, shown
from shadowrelay.sla.page.plots import pixels
from shadowrelay.sla.page.shape import Summary, Takeover
from shadowrelay.sla.page.spoken import NONE, count, counted, duration, instant, milliseconds, parsed
from shadowrelay.sla.page.words import REASONS

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
