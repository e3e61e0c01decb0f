"""The values of `custom-data` (`S:Key=Value;S:Key=Value`) that figures are made of, as columns. docs/sla.md, section 1.

Most rows have no custom-data, and are not looked at. Exchange writes many other things there: what is not ours to read is left alone.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

PREFIX = "S:"
INSTANT = re.compile(r"((?:19|20|21)[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z")
"""Of a date-time: years that a clock can have. Exchange writes three digits of a second, others up to seven or nine."""

_SPAN = re.compile(r"(-?)([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_ESCAPE = re.compile(r"\\u(?!d[89a-f])([0-9a-f]{4})")  # lone surrogates stay as they are written: no UTF-8 has them

UTC_INSTANT = pa.timestamp("us", tz="UTC")


def unescaped(text: str) -> str:
    """Undo what `wire.tracking` escapes."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) if "\\u" in text else text


def instant(text: str) -> datetime | None:
    """An aware instant in microseconds, cut off; None for what is none."""
    found = INSTANT.fullmatch(text)
    if found is None:
        return None
    try:
        whole = datetime.fromisoformat(found[1])
    except ValueError:  # the thirtieth of February
        return None
    return whole.replace(microsecond=int((found[2] or "").ljust(6, "0")[:6]), tzinfo=UTC)


def microseconds(text: str) -> int | None:
    """Of seconds with decimals; None for what is none."""
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    span = int(found[2]) * 1_000_000 + int((found[3] or "").ljust(6, "0")[:6])
    return -span if found[1] else span


# key -> column, its type, and what reads its value (None: not readable)
KEYS: dict[str, tuple[str, Any, Callable[[str], Any]]] = {
    "Replication": ("replication", pa.string(), unescaped),
    "AckElapsed": ("ack_us", pa.int64(), microseconds),
    "ShadowElapsed": ("shadow_us", pa.int64(), microseconds),
    "AttemptElapsed": ("attempt_us", pa.int64(), microseconds),
    "Reason": ("reason", pa.string(), unescaped),
    "SilentSince": ("silent_since", UTC_INSTANT, instant),
    "DetectedAt": ("detected_at", UTC_INSTANT, instant),
    "OriginalNetworkMessageId": ("original_message", pa.string(), unescaped),
}


def custom_columns(texts: pa.Array, is_own: bool) -> tuple[dict[str, pa.Array], list[int]]:
    """Columns by name, as long as `texts`, and the positions of rows whose custom-data is wrong (of our own rows only)."""
    used = pc.indices_nonzero(pc.not_equal(texts, "")).to_pylist()
    values: dict[str, list[Any]] = {column: [None if kind != pa.string() else ""] * len(texts) for column, kind, _ in KEYS.values()}
    wrong = []
    for position, text in zip(used, texts.take(pa.array(used, pa.int64())).to_pylist(), strict=True):
        is_right = True
        for item in text.split(";"):
            key, equals, value = item.partition("=")
            is_pair = bool(equals) and key.startswith(PREFIX)
            known = KEYS.get(key[len(PREFIX) :]) if is_pair else None
            if known is None:
                is_right = is_right and is_pair
                continue
            column, _, read = known
            given = read(value) if value else None
            if given is not None:
                values[column][position] = given
            is_right = is_right and (given is not None or not value)
        if is_own and not is_right:
            wrong.append(position)
    return {column: pa.array(values[column], kind) for column, kind, _ in KEYS.values()}, wrong
