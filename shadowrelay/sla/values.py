"""Texts to instants, spans and integers, a column at a time. Empty texts are null; what cannot be read is null and told.

Where a whole column is plain, Arrow converts it; where one value is not, that column is read value by value. Both give the same.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

UTC_INSTANT = pa.timestamp("us", tz="UTC")

_INSTANT = re.compile(r"((?:19|20|21)[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z")
"""Years that a clock can have. Exchange writes three digits of a second, others up to seven or nine."""
_SPAN = re.compile(r"(-?)([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_PLAIN_INSTANT = "^(19|20|21)[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.]([0-9]{3}|[0-9]{6})Z$"
_PLAIN_SPAN = "^-?[0-9]{1,9}[.][0-9]{6}$"
_PLAIN_INTEGER = "^-?[0-9]{1,19}$"


class Read(NamedTuple):
    """A column as long as its texts, and the positions of texts that could not be read."""

    values: pa.Array
    wrong: list[int]


def read_instants(texts: pa.Array, *, may_be_empty: bool = False) -> Read:
    """UTC, microseconds; further digits are cut off."""
    return _read(texts, UTC_INSTANT, _PLAIN_INSTANT, lambda plain: plain, _instant, may_be_empty)


def read_spans(texts: pa.Array) -> Read:
    """Seconds with decimals to microseconds."""
    return _read(texts, pa.int64(), _PLAIN_SPAN, lambda plain: pc.replace_substring(plain, ".", ""), _microseconds, True)


def read_integers(texts: pa.Array, kind: Any) -> Read:
    """Decimal digits, perhaps with a minus sign; what the type has no room for cannot be read."""
    limit = 2 ** (kind.bit_width - 1)

    def integer(text: str) -> int | None:
        return int(text) if _INTEGER.fullmatch(text) and -limit <= int(text) < limit else None

    return _read(texts, kind, _PLAIN_INTEGER, lambda plain: plain, integer, True)


def _read(
    texts: pa.Array,
    kind: Any,
    plain: str,
    prepared: Callable[[pa.Array], pa.Array],
    read: Callable[[str], Any],
    may_be_empty: bool,
) -> Read:
    if may_be_empty:
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    if pc.all(pc.match_substring_regex(texts, plain)).as_py() is not False:  # None: all are null
        try:
            return Read(pc.cast(prepared(texts), kind), [])
        except pa.ArrowInvalid:  # the thirtieth of February, or a number without room
            pass
    read_values = [None if text is None else read(text) for text in texts.to_pylist()]
    given = texts.is_valid().to_pylist()
    wrong = [position for position, value in enumerate(read_values) if value is None and given[position]]
    return Read(pa.array(read_values, kind), wrong)


def _instant(text: str) -> datetime | None:
    found = _INSTANT.fullmatch(text)
    if found is None:
        return None
    try:
        whole = datetime.fromisoformat(found[1])
    except ValueError:  # the thirtieth of February
        return None
    return whole.replace(microsecond=int((found[2] or "").ljust(6, "0")[:6]), tzinfo=UTC)


def _microseconds(text: str) -> int | None:
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    span = int(found[2]) * 1_000_000 + int((found[3] or "").ljust(6, "0")[:6])
    return -span if found[1] else span
