"""The values of `custom-data` (`S:Key=Value;S:Key=Value`) that figures are made of, as columns. docs/sla.md, section 1.

Most rows have no custom-data, and are not looked at. Exchange writes many other things there: what is not ours to read is left alone.
"""

import re
from collections.abc import Callable

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from shadowrelay.sla.values import UTC_INSTANT, Read, read_instants, read_spans

_ESCAPE = re.compile(r"\\u(?!d[89a-f])([0-9a-f]{4})")  # lone surrogates stay as they are written: no UTF-8 has them
_PAIR = "^S:[^=]*="


def unescaped(array: pa.Array) -> pa.Array:
    """Undo what `wire.tracking` escapes."""
    if not pc.any(pc.match_substring(array, "\\u")).as_py():
        return array
    return pa.array([_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) for text in array.to_pylist()], pa.string())


def _texts(array: pa.Array) -> Read:
    return Read(unescaped(array), [])


def _instants(array: pa.Array) -> Read:
    return read_instants(array, may_be_empty=True)


KEYS: dict[str, tuple[str, pa.DataType, Callable[[pa.Array], Read]]] = {
    "Replication": ("replication", pa.string(), _texts),
    "AckElapsed": ("ack_us", pa.int64(), read_spans),
    "ShadowElapsed": ("shadow_us", pa.int64(), read_spans),
    "AttemptElapsed": ("attempt_us", pa.int64(), read_spans),
    "Reason": ("reason", pa.string(), _texts),
    "SilentSince": ("silent_since", UTC_INSTANT, _instants),
    "DetectedAt": ("detected_at", UTC_INSTANT, _instants),
    "OriginalNetworkMessageId": ("original_message", pa.string(), _texts),
}
"""Key -> column, its type, and what reads its values."""


def custom_columns(texts: pa.Array, is_own: bool) -> tuple[dict[str, pa.Array], set[int]]:
    """Columns by name, as long as `texts`, and the positions of rows whose custom-data is wrong (of our own rows only).

    Shapes: of a key that stands twice in a row, the first counts.
    """
    used = pc.indices_nonzero(pc.not_equal(texts, ""))
    split = pc.split_pattern(texts.take(used), ";")
    items, rows = split.flatten(), used.take(pc.list_parent_indices(split))
    everyone = pa.array(range(len(texts)), pa.uint64())
    columns: dict[str, pa.Array] = {}
    wrong: list[int] = []
    if is_own:
        wrong += rows.filter(pc.invert(pc.match_substring_regex(items, _PAIR))).to_pylist()
    for key, (column, kind, read) in KEYS.items():
        prefix = f"S:{key}="
        is_key = pc.starts_with(items, prefix)
        missing = pa.scalar("" if kind == pa.string() else None, kind)
        if not pc.any(is_key).as_py():
            columns[column] = pa.repeat(missing, len(texts))
            continue
        given_by = rows.filter(is_key)
        values, unread = read(pc.utf8_slice_codeunits(items.filter(is_key), start=len(prefix)))
        found = values.take(pc.index_in(everyone, value_set=given_by.cast(pa.uint64())))
        columns[column] = found.fill_null("") if kind == pa.string() else found
        wrong += given_by.take(pa.array(unread, pa.int64())).to_pylist() if is_own else []
    return columns, set(wrong)
