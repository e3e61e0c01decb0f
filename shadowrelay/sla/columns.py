"""Fields of many lines to columns of events, in bulk: no Python object a row where Arrow can do without."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from shadowrelay.sla.custom_data import custom_columns, unescaped
from shadowrelay.sla.layout import Layout
from shadowrelay.sla.lines import Reason
from shadowrelay.sla.values import UTC_INSTANT, Read, read_instants, read_integers

TEXTS = {
    "event": "event-id", "source": "source", "message": "network-message-id", "internet_message_id": "message-id",
    "internal_message_id": "internal-message-id", "client_ip": "client-ip", "client_hostname": "client-hostname",
    "server_ip": "server-ip", "server_hostname": "server-hostname", "source_context": "source-context",
    "connector_id": "connector-id", "reference": "reference", "subject": "message-subject", "sender": "sender-address",
    "return_path": "return-path", "related_recipient": "related-recipient-address", "message_info": "message-info",
    "directionality": "directionality", "tenant_id": "tenant-id", "original_client_ip": "original-client-ip",
    "original_server_ip": "original-server-ip", "traffic_type": "transport-traffic-type",
}  # fmt: skip
"""Column of an event -> field of a line, for all that is taken as it is."""

_LIST = pa.list_(pa.field("element", pa.string(), nullable=False))

ARROW_EVENTS = pa.schema(
    [("row_id", pa.string()), ("at", UTC_INSTANT)]
    + [(name, pa.string()) for name in TEXTS if name != "traffic_type"]
    + [("custom_data", pa.string()), ("traffic_type", pa.string()), ("recipients", _LIST), ("recipient_statuses", _LIST)]
    + [("recipients_hash", pa.int64()), ("total_bytes", pa.int64()), ("recipient_count", pa.int32()), ("replication", pa.string())]
    + [("ack_us", pa.int64()), ("shadow_us", pa.int64()), ("attempt_us", pa.int64()), ("reason", pa.string())]
    + [("silent_since", UTC_INSTANT), ("detected_at", UTC_INSTANT), ("original_message", pa.string())]
    + [("format", pa.string()), ("file", pa.string()), ("line", pa.int64())]
)
"""The columns of `events.EVENTS` but for the partitions, as Parquet files have them."""


class Raw(NamedTuple):
    """Lines that were split. `columns` by position of the field, all of one length; `has_escapes`: a backslash before a u somewhere."""

    columns: Sequence[pa.Array]
    numbers: pa.Array
    row_ids: pa.Array
    has_escapes: bool


def events_of(raw: Raw, layout: Layout, file: str) -> tuple[pa.RecordBatch, dict[int, Reason]]:
    """Rows with the columns ARROW_EVENTS, in the order of `raw`, and why some of them are none: those are to be taken out."""
    count = len(raw.numbers)
    empty = pa.array([""] * count, pa.string())
    undo: Callable[[pa.Array], pa.Array] = unescaped if layout.is_own and raw.has_escapes else lambda array: array

    def field(name: str) -> pa.Array:
        position = layout.positions.get(name)
        return empty if position is None else raw.columns[position]

    bad: dict[int, Reason] = {}

    def told(read: Read, reason: Reason) -> pa.Array:
        bad.update(dict.fromkeys(read.wrong, reason))
        return read.values

    custom, wrong = custom_columns(field("custom-data"), layout.is_own)
    bad |= dict.fromkeys(wrong, Reason.CUSTOM_DATA)  # the reasons that are looked for earlier come later, and stay
    recipients = _listed(field("recipient-address"), undo)
    columns: dict[str, pa.Array] = {column: undo(field(name)) for column, name in TEXTS.items()}
    columns |= custom
    columns["row_id"] = raw.row_ids
    columns["custom_data"] = field("custom-data")
    columns["total_bytes"] = told(read_integers(field("total-bytes"), pa.int64()), Reason.NUMBER)
    columns["recipient_count"] = told(read_integers(field("recipient-count"), pa.int32()), Reason.NUMBER)
    columns["at"] = told(read_instants(field("date-time")), Reason.DATE_TIME)
    columns["recipients"] = recipients
    columns["recipient_statuses"] = _listed(field("recipient-status"), undo)
    columns["recipients_hash"] = _hashed(recipients)
    columns["format"] = pa.array([layout.format] * count, pa.string())
    columns["file"] = pa.array([file] * count, pa.string())
    columns["line"] = raw.numbers
    if "network-message-id" not in layout.positions:
        columns["message"] = columns["internet_message_id"]
    return pa.RecordBatch.from_arrays([columns[name] for name in ARROW_EVENTS.names], schema=ARROW_EVENTS), bad


def _listed(texts: pa.Array, undo: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """What is joined by `;`; an empty field is an empty list."""
    split = pc.split_pattern(pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts), ";")
    # nulls take no room between the offsets: without its validity the array has empty lists there
    offsets = split.offsets if len(split) else pa.array([0], pa.int32())
    return pa.ListArray.from_arrays(offsets, undo(split.values), type=_LIST)


def _hashed(recipients: pa.Array) -> pa.Array:
    """docs/sla.md, `recipients_hash`. Each different recipient of a block is hashed once."""
    different = recipients.values.dictionary_encode()
    hashes = pa.array([first_octets(text) for text in different.dictionary.to_pylist()], pa.uint64())
    # sums from the beginning, modulo 2^64 as Arrow's unchecked arithmetic is: a row's is the difference between its ends
    sums = pa.concat_arrays([pa.array([0], pa.uint64()), pc.cumulative_sum(hashes.take(different.indices))])
    offsets = recipients.offsets
    summed = pc.subtract(sums.take(offsets.slice(1)), sums.take(offsets.slice(0, len(offsets) - 1))).view(pa.int64())
    twice = _named_twice(recipients, different)
    return pc.if_else(pa.array([row in twice for row in range(len(summed))]), pa.scalar(None, pa.int64()), summed) if twice else summed


def _named_twice(recipients: pa.Array, different: pa.Array) -> set[int]:
    """Rows that name a recipient twice, of which there are hardly any. Shapes: `different` has the recipients as a
    dictionary; `recipients` is no slice."""
    rows = pc.cast(pc.list_parent_indices(recipients), pa.int64())
    each = pc.add(pc.multiply(rows, len(different.dictionary)), different.indices.cast(pa.int64()))
    counts = pc.value_counts(each)
    several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    return {place // len(different.dictionary) for place in several.to_pylist()}


def first_octets(text: str) -> int:
    """The first 8 octets of blake2b, big-endian."""
    return int.from_bytes(blake2b(text.encode()).digest()[:8], "big")


def without(batch: pa.RecordBatch, bad: Mapping[int, Reason]) -> pa.RecordBatch:
    """The rows that are none taken out."""
    if not bad:
        return batch
    return batch.filter(pa.array([position not in bad for position in range(batch.num_rows)]))
