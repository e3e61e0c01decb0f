"""Converts fields of many lines to columns of events, in bulk with Arrow instead of Python objects per row. docs/sla.md, section 1.

Texts become instants, spans and integers one column at a time. An empty text is null; for an invalid text the position is reported.
Arrow converts a column whose values all have the usual form; otherwise each value is parsed separately, with the same result.

Keys of `custom-data` (`S:Key=Value;S:Key=Value`) that figures use become columns. Most rows have no custom-data and are skipped. Exchange
writes many other keys there, which are ignored.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from shadowrelay.sla.lines import Layout, Reason

# ---- values

UTC_INSTANT = pa.timestamp("us", tz="UTC")

_INSTANT = re.compile(r"((?:19|20|21)[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z")
"""Years that a clock can have. Exchange writes three digits of a second, other programs up to seven or nine."""
_SPAN = re.compile(r"(-?)([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_COPIES = re.compile(r"([0-9]{1,9})/[0-9]{1,9}")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_PLAIN_INSTANT = "^(19|20|21)[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.]([0-9]{3}|[0-9]{6})Z$"
_PLAIN_SPAN = "^-?[0-9]{1,9}[.][0-9]{6}$"
_PLAIN_INTEGER = "^-?[0-9]{1,19}$"


class Read(NamedTuple):
    """A column with one value per text, and the positions of invalid texts."""

    values: pa.Array
    wrong: list[int]


def read_instants(texts: pa.Array, *, may_be_empty: bool = False) -> Read:
    """UTC, microseconds; further digits are truncated."""
    return _read(texts, UTC_INSTANT, _PLAIN_INSTANT, lambda plain: plain, _instant, may_be_empty)


def read_spans(texts: pa.Array) -> Read:
    """Seconds with decimals to microseconds."""
    return _read(texts, pa.int64(), _PLAIN_SPAN, lambda plain: pc.replace_substring(plain, ".", ""), _microseconds, True)


def read_integers(texts: pa.Array, kind: Any) -> Read:
    """Decimal digits with an optional minus sign; a number that does not fit the type is invalid."""
    limit = 2 ** (kind.bit_width - 1)

    def integer(text: str) -> int | None:
        return int(text) if _INTEGER.fullmatch(text) and -limit <= int(text) < limit else None

    return _read(texts, kind, _PLAIN_INTEGER, lambda plain: plain, integer, True)


def read_copies(texts: pa.Array) -> Read:
    """The first number of `1/2`: copies made, of those wanted."""
    found = [_COPIES.fullmatch(text) for text in texts.to_pylist()]
    values = pa.array([None if each is None else int(each[1]) for each in found], pa.int64())
    return Read(values, [position for position, each in enumerate(found) if each is None])


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
        except pa.ArrowInvalid:  # a date that does not exist, or a number that does not fit
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
    except ValueError:  # a date that does not exist
        return None
    return whole.replace(microsecond=int((found[2] or "").ljust(6, "0")[:6]), tzinfo=UTC)


def _microseconds(text: str) -> int | None:
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    span = int(found[2]) * 1_000_000 + int((found[3] or "").ljust(6, "0")[:6])
    return -span if found[1] else span


# ---- custom-data

_ESCAPE = re.compile(r"\\u(?!d[89a-f])([0-9a-f]{4})")  # lone surrogates stay escaped, because UTF-8 cannot encode them
_PAIR = "^S:[^=]*="


def unescaped(array: pa.Array) -> pa.Array:
    """Undo the escapes of `protocol.tracking`."""
    if not pc.any(pc.match_substring(array, "\\u")).as_py():
        return array
    return pa.array([_ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) for text in array.to_pylist()], pa.string())


def _texts(array: pa.Array) -> Read:
    return Read(unescaped(array), [])


def _instants(array: pa.Array) -> Read:
    return read_instants(array, may_be_empty=True)


KEYS: dict[str, tuple[str, pa.DataType, Callable[[pa.Array], Read]]] = {
    "Replication": ("replication", pa.string(), _texts),
    "Copies": ("copies", pa.int64(), read_copies),
    "AckElapsed": ("ack_us", pa.int64(), read_spans),
    "ShadowElapsed": ("shadow_us", pa.int64(), read_spans),
    "AttemptElapsed": ("attempt_us", pa.int64(), read_spans),
    "Reason": ("reason", pa.string(), _texts),
    "SilentSince": ("silent_since", UTC_INSTANT, _instants),
    "DetectedAt": ("detected_at", UTC_INSTANT, _instants),
    "OriginalNetworkMessageId": ("original_message", pa.string(), _texts),
}
"""Key -> column, its type, and the function that parses its values."""


def custom_columns(texts: pa.Array, is_own: bool) -> tuple[dict[str, pa.Array], set[int]]:
    """Columns by name, as long as `texts`, and the positions of rows with invalid custom-data (of our own rows only).

    Shapes: if a key occurs twice in a row, the first one counts.
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


# ---- events

TEXTS = {
    "event": "event-id", "source": "source", "message": "network-message-id", "internet_message_id": "message-id",
    "internal_message_id": "internal-message-id", "client_ip": "client-ip", "client_hostname": "client-hostname",
    "server_ip": "server-ip", "server_hostname": "server-hostname", "source_context": "source-context",
    "connector_id": "connector-id", "reference": "reference", "subject": "message-subject", "sender": "sender-address",
    "return_path": "return-path", "related_recipient": "related-recipient-address", "message_info": "message-info",
    "directionality": "directionality", "tenant_id": "tenant-id", "original_client_ip": "original-client-ip",
    "original_server_ip": "original-server-ip", "traffic_type": "transport-traffic-type",
}  # fmt: skip
"""Column of an event -> field of a line, for values that are not converted."""

_LIST = pa.list_(pa.field("element", pa.string(), nullable=False))

ARROW_EVENTS = pa.schema(
    [("row_id", pa.string()), ("at", UTC_INSTANT)]
    + [(name, pa.string()) for name in TEXTS if name != "traffic_type"]
    + [("custom_data", pa.string()), ("traffic_type", pa.string()), ("recipients", _LIST), ("recipient_statuses", _LIST)]
    + [("recipients_hash", pa.int64()), ("total_bytes", pa.int64()), ("recipient_count", pa.int32()), ("replication", pa.string())]
    + [("copies", pa.int64()), ("ack_us", pa.int64()), ("shadow_us", pa.int64()), ("attempt_us", pa.int64()), ("reason", pa.string())]
    + [("silent_since", UTC_INSTANT), ("detected_at", UTC_INSTANT), ("original_message", pa.string())]
    + [("format", pa.string()), ("file", pa.string()), ("line", pa.int64())]
)
"""The columns of `events.EVENTS` without the partitions, as in Parquet files."""


class Raw(NamedTuple):
    """Split lines. `columns` by position of the field, all of one length; `has_escapes`: a backslash before a u occurs somewhere."""

    columns: Sequence[pa.Array]
    numbers: pa.Array
    row_ids: pa.Array
    has_escapes: bool


def events_of(raw: Raw, layout: Layout, file: str) -> tuple[pa.RecordBatch, dict[int, Reason]]:
    """Rows with the columns ARROW_EVENTS, in the order of `raw`, and the reasons of invalid ones, which the caller must remove."""
    count = len(raw.numbers)
    empty = pa.array([""] * count, pa.string())
    undo: Callable[[pa.Array], pa.Array] = unescaped if layout.is_own and raw.has_escapes else lambda array: array

    def field(name: str) -> pa.Array:
        position = layout.positions.get(name)
        return empty if position is None else raw.columns[position]

    bad: dict[int, Reason] = {}

    def values_of(read: Read, reason: Reason) -> pa.Array:
        bad.update(dict.fromkeys(read.wrong, reason))
        return read.values

    custom, wrong = custom_columns(field("custom-data"), layout.is_own)
    bad |= dict.fromkeys(wrong, Reason.CUSTOM_DATA)  # reasons that take precedence are added later, and replace this one
    recipients = _listed(field("recipient-address"), undo)
    columns: dict[str, pa.Array] = {column: undo(field(name)) for column, name in TEXTS.items()}
    columns |= custom
    columns["row_id"] = raw.row_ids
    columns["custom_data"] = field("custom-data")
    columns["total_bytes"] = values_of(read_integers(field("total-bytes"), pa.int64()), Reason.NUMBER)
    columns["recipient_count"] = values_of(read_integers(field("recipient-count"), pa.int32()), Reason.NUMBER)
    columns["at"] = values_of(read_instants(field("date-time")), Reason.DATE_TIME)
    columns["recipients"] = recipients
    columns["recipient_statuses"] = _statuses(field("recipient-status"), recipients, undo, layout.is_own)
    columns["recipients_hash"] = _hashed(recipients)
    columns["format"] = pa.array([layout.format] * count, pa.string())
    columns["file"] = pa.array([file] * count, pa.string())
    columns["line"] = raw.numbers
    if "network-message-id" not in layout.positions:
        columns["message"] = columns["internet_message_id"]
    elif not layout.is_own:  # several messages without an id would be one
        is_without = pc.match_substring_regex(columns["message"], _NO_NETWORK_ID)
        columns["message"] = pc.if_else(is_without, columns["internet_message_id"], columns["message"])
    return pa.RecordBatch.from_arrays([columns[name] for name in ARROW_EVENTS.names], schema=ARROW_EVENTS), bad


_NO_NETWORK_ID = "^[0-]*$"  # empty, or 00000000-0000-0000-0000-000000000000


def _listed(texts: pa.Array, undo: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Split at `;`; an empty field is an empty list."""
    split = pc.split_pattern(pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts), ";")
    # nulls have no length in the offsets: without its validity bitmap the array has empty lists there
    offsets = split.offsets if len(split) else pa.array([0], pa.int32())
    return pa.ListArray.from_arrays(offsets, undo(split.values), type=_LIST)


def _statuses(texts: pa.Array, recipients: pa.Array, undo: Callable[[pa.Array], pa.Array], is_own: bool) -> pa.Array:
    """One for each recipient. Exchange writes `;` within statuses, too."""
    if is_own or not pc.any(pc.match_substring(texts, ";")).as_py():
        return _listed(texts, undo)
    counts = pc.list_value_length(recipients).to_pylist()
    split = [split_statuses(text, count or 0) if text else [] for text, count in zip(texts.to_pylist(), counts, strict=True)]
    return pa.array(split, _LIST)


_STATUS_BEGINS = re.compile(r"\s*(?:[245][0-9]{2}\b|\[|To$|Cc$|Bcc$|$)")


def split_statuses(text: str, recipients: int) -> list[str]:
    """The statuses of so many recipients: `[{LED=550 5.1.1 a; b};{FQDN=}]` is one, and so is `550 4.4.7 QUEUE.Expired; expired`."""
    if recipients == 1:
        return [text]
    parts, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth = max(depth - 1, 0)
        elif character == ";" and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    parts.append(text[begin:])
    if depth:  # a bracket that is never closed hides no status
        parts = text.split(";")
    if len(parts) == recipients:
        return parts
    whole: list[str] = []
    for part in parts:
        if whole and _STATUS_BEGINS.match(part) is None:
            whole[-1] += f";{part}"
        else:
            whole.append(part)
    return whole


def _hashed(recipients: pa.Array) -> pa.Array:
    """`recipients_hash` of docs/sla.md. Each distinct recipient of a block is hashed once."""
    different = recipients.values.dictionary_encode()
    hashes = pa.array([first_octets(text) for text in different.dictionary.to_pylist()], pa.uint64())
    # Prefix sums modulo 2^64 (Arrow's unchecked arithmetic): a row's sum is the difference between its two ends.
    sums = pa.concat_arrays([pa.array([0], pa.uint64()), pc.cumulative_sum(hashes.take(different.indices))])
    offsets = recipients.offsets
    summed = pc.subtract(sums.take(offsets.slice(1)), sums.take(offsets.slice(0, len(offsets) - 1))).view(pa.int64())
    twice = _named_twice(recipients, different)
    return pc.if_else(pa.array([row in twice for row in range(len(summed))]), pa.scalar(None, pa.int64()), summed) if twice else summed


def _named_twice(recipients: pa.Array, different: pa.Array) -> set[int]:
    """Rows that name a recipient twice, which are rare. Shapes: `different` has the recipients as a dictionary array;
    `recipients` is not a slice."""
    rows = pc.cast(pc.list_parent_indices(recipients), pa.int64())
    each = pc.add(pc.multiply(rows, len(different.dictionary)), different.indices.cast(pa.int64()))
    counts = pc.value_counts(each)
    several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    return {place // len(different.dictionary) for place in several.to_pylist()}


def first_octets(text: str) -> int:
    """The first 8 octets of blake2b as a big-endian integer."""
    return int.from_bytes(blake2b(text.encode()).digest()[:8], "big")


def without(batch: pa.RecordBatch, bad: Mapping[int, Reason]) -> pa.RecordBatch:
    """The batch without the invalid rows."""
    if not bad:
        return batch
    return batch.filter(pa.array([position not in bad for position in range(batch.num_rows)]))
