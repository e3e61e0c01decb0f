"""Formats numbers, instants and texts from logs for the page. The templates call these functions by their names. docs/sla.md, 8.

Numbers are rounded down, so 99.996 % never reads as 100 %. None is always a dash: there is no figure, which is not the same as zero.
"""

import math
import unicodedata
from datetime import datetime

TEXT_CHARACTERS_MAX = 320  # what is longer must not make the page; an address has at most 320
NONE = "\N{EN DASH}"
NB = "\N{NO-BREAK SPACE}"

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # control, direction, surrogates …: they could disguise text
_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))


def readable(value: object) -> object:
    """What a template prints, before it is escaped: bounded, with invisible characters written out (`\\u202e`). None is nothing.

    Markup, which is the output of other templates and macros, stays as it is.
    """
    if value is None:
        return ""
    if hasattr(value, "__html__"):
        return value
    text = str(value)
    bounded = text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[:TEXT_CHARACTERS_MAX]}… ({len(text):,} characters)"
    if bounded.isprintable():
        return bounded
    return "".join(f"\\u{ord(one):04x}" if unicodedata.category(one) in _INVISIBLE else one for one in bounded)


# ---- numbers


def count(number: int | float | None) -> str:
    """1,204"""
    return NONE if number is None else f"{number:,.0f}"


def counted(number: int, singular: str, plural: str = "") -> str:
    """1 message, 2 messages"""
    return f"{count(number)} {singular if number == 1 else plural or singular + 's'}"


def shown(number: int, total: int, where: str) -> str:
    """The note under a shortened list: `200 of 3,411 shown; all in tables/losses`."""
    if number >= total:
        return f"{count(total)} in all"
    return f"{count(number)} of {count(total)} shown; all in {where}"


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


def untold(messages: int) -> str:
    """What follows "of": 3 messages that were taken over Exchange's logs do not tell."""
    return f"{counted(messages, 'message')} that {'were' if messages != 1 else 'was'} taken over Exchange's logs do not tell"


def burn(rate: float | None) -> str:
    """0, 0.03, 1.4, 14"""
    if rate is None:
        return NONE
    if 0 < rate < 0.01:
        return "<0.01"
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.2g}"


def pixels(number: float) -> str:
    """Coordinates need no more than tenths."""
    return f"{number:.1f}".removesuffix(".0")


# ---- durations and instants


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


def parsed(text: str | None) -> datetime | None:
    """An instant of the summary; None where there is none."""
    return datetime.fromisoformat(text) if text else None


def utc(text: str | None, precision: str = "seconds") -> str:
    """2026-11-21 16:00:00, in UTC. Shapes: `precision` is "minutes", "seconds" or "milliseconds"."""
    at = parsed(text)
    return NONE if at is None else at.replace(tzinfo=None).isoformat(" ", precision)


def seconds_between(earlier: str | None, later: str | None) -> float | None:
    """None where one of them is missing. Clocks of different servers may make it negative."""
    one, other = parsed(earlier), parsed(later)
    return None if one is None or other is None else (other - one).total_seconds()
