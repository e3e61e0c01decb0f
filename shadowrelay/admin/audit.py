"""Who changed what: a line of the operator log for each write, the last ones in memory. docs/reference.md "People and roles"."""

from collections import deque
from collections.abc import Callable
from datetime import datetime

import structlog

from shadowrelay.admin.people import Person
from shadowrelay.model.values import dataclass

KEPT_MAX = 1_000  # entries since the start of the process; the operator log has all

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Shapes: `act` is the route without its prefix, such as "queues/suspend"; `on` its parameters; `outcome` is "done", or why not."""

    at: datetime
    by: str
    role: str
    client: str
    act: str
    on: str
    outcome: str


class AuditTrail:
    """The last entries, and `listeners` that hear of each new one."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.entries: deque[AuditEntry] = deque(maxlen=KEPT_MAX)
        self.listeners: list[Callable[[AuditEntry], None]] = []

    def note(self, person: Person, by: str, client: str, act: str, on: str, outcome: str) -> None:
        """Somebody wrote, or was refused. `by`: what an administrator without a name says of himself."""
        name = person.name if person.is_named or not by else by
        entry = AuditEntry(self._now(), name, person.role.value, client, act, on, outcome)
        self.entries.append(entry)
        _log.warning("admin.acted", by=name, role=entry.role, client=client, act=act, on=on, outcome=outcome)
        for listener in self.listeners:
            listener(entry)
