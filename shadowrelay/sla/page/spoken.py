"""Numbers as people read them. None is always a dash: there is no figure, which is not the same as nothing."""

import math
from datetime import datetime

from shadowrelay.sla.page.markup import Html, tag

NONE = "\N{EN DASH}"
_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
NB = "\N{NO-BREAK SPACE}"


def count(number: int | float | None) -> str:
    """1,204"""
    return NONE if number is None else f"{number:,.0f}"


def counted(number: int, singular: str, plural: str = "") -> str:
    """1 message, 2 messages"""
    return f"{count(number)} {singular if number == 1 else plural or singular + 's'}"


def percent(ratio: float | None) -> str:
    """With as many digits as it takes to tell it from 0 and from 100 %, and rounded down: 99.996 % is not 100 %."""
    if ratio is None:
        return NONE
    if ratio < 0 or ratio > 1:
        return f"{ratio * 100:,.0f}{NB}%".replace("-", "\N{MINUS SIGN}")
    rest = min(ratio, 1 - ratio)
    decimals = 0 if rest == 0 else min(8, max(1, math.ceil(-math.log10(rest)) - 1))
    floor = math.floor(round(ratio * 100 * 10**decimals, 6)) / 10**decimals
    text = f"{floor:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + NB + "%"


def duration(seconds: float | None) -> str:
    """250 ms, 1.2 s, 3 min 20 s, 3 h 2 min, 2 d 4 h"""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{math.floor(seconds * 1000)}{NB}ms"
    if seconds < 10:
        return f"{math.floor(seconds * 10) / 10:g}{NB}s"
    if seconds < 60:
        return f"{math.floor(seconds)}{NB}s"
    for size, unit, part, name in _UNITS:
        if seconds >= size:
            whole, rest = divmod(math.floor(seconds), size)
            tail = f" {rest // part}{NB}{name}" if rest // part and whole < 100 else ""
            return f"{whole:,}{NB}{unit}{tail}"
    raise AssertionError("unreachable: every length has its unit")


def milliseconds(value: int | float | None) -> str:
    """A duration given in milliseconds."""
    return NONE if value is None else duration(value / 1000)


def burn(rate: float | None) -> str:
    """0, 0.03, 1.4, 14"""
    if rate is None:
        return NONE
    if 0 < rate < 0.01:
        return "<0.01"
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.2g}"


def parsed(text: str | None) -> datetime | None:
    """An instant of the summary; None where there is none."""
    return datetime.fromisoformat(text) if text else None


def instant(text: str | None, *, precise: bool = False) -> Html | str:
    """<time>2026-11-21 16:00:00</time>, UTC; precise: with milliseconds."""
    at = parsed(text)
    if at is None:
        return NONE
    shown = f"{at:%Y-%m-%d %H:%M:%S}" + (f".{at.microsecond // 1000:03}" if precise else "")
    return tag("time", shown, datetime=text)


def minute(text: str | None) -> Html | str:
    """<time>2026-11-21 16:00 UTC</time>"""
    at = parsed(text)
    return NONE if at is None else tag("time", f"{at:%Y-%m-%d %H:%M} UTC", datetime=text)


def seconds_between(earlier: str | None, later: str | None) -> float | None:
    """None where one of them is missing; clocks of different servers may make it negative, which counts as none."""
    one, other = parsed(earlier), parsed(later)
    return None if one is None or other is None else max(0.0, (other - one).total_seconds())
