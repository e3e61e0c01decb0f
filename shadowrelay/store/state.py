"""What the writer keeps in memory beside the file. It is the only writer, so what it wrote is what is there."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.queue import DatabaseIdentity
from shadowrelay.store.content import ContentStore
from shadowrelay.store.known import KnownPeers
from shadowrelay.store.rows import Row

ROWS_KEPT_MAX = 8_192  # about 1 KiB each; a message is accepted, copied and delivered within a second or two


class LatestRows:
    """The latest rows as they are committed, so that a verdict or an attempt need not read what was just written."""

    def __init__(self, rows_max: int = ROWS_KEPT_MAX) -> None:
        self._rows_max = rows_max
        self._rows: OrderedDict[MessageId, Row] = OrderedDict()

    def get(self, message_id: MessageId) -> Row | None:
        return self._rows.get(message_id)

    def put(self, row: Row) -> None:
        self._rows[row.message_id] = row
        self._rows.move_to_end(row.message_id)
        if len(self._rows) > self._rows_max:
            self._rows.popitem(last=False)

    def drop(self, message_id: MessageId) -> None:
        self._rows.pop(message_id, None)

    def clear(self) -> None:
        self._rows.clear()


@dataclass(slots=True)
class WriterState:
    """Owned by whichever thread has the transaction; others read `position` only. Counters are the last ones given."""

    now: Callable[[], datetime]
    contents: ContentStore
    peers: KnownPeers
    identity: DatabaseIdentity
    position: int
    internal_id: int
    sequence: int
    safety_net_hold_microseconds: int
    shadow_keep_microseconds: int
    rows: LatestRows = field(default_factory=LatestRows)
    shadow_queues: dict[ServerName, int] = field(default_factory=dict)  # N of Server\Shadow\N
    corrupt_rows_count: int = 0
    log_bytes: int = 0  # of the write-ahead log, after the last commit
