"""Events for programs and open pages: what of the operator log others act upon, each with a position. docs/operations.md "Events".

A processor of the operator log, so that whatever is logged is also said here, and nothing else knows of it. The last `KEPT_MAX` are kept;
positions only grow, also over a restart, so that whoever was away can go on where it was.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from structlog.typing import EventDict, WrappedLogger

from shadowrelay.model.event_names import CATALOGUE

KEPT_MAX = 2_000  # some 500 octets each

Event = dict[str, Any]


class EventTap:
    """Shapes: an event is {position, at, event, …}, with the fields of the operator log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=KEPT_MAX)
        self._position = time.time_ns() // 1_000
        self._forgotten = self._position
        self._listeners: set[Callable[[], object]] = set()

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """As a processor: it changes nothing."""
        if event.get("event") in CATALOGUE:
            self.note(event)
        return event

    def note(self, event: Mapping[str, Any]) -> None:
        """Keep it, and wake who listens."""
        fields = {name: value for name, value in event.items() if name not in ("event", "level", "timestamp")}
        with self._lock:
            self._position = max(self._position + 1, time.time_ns() // 1_000)
            if len(self._events) == KEPT_MAX:
                self._forgotten = self._events[0]["position"]
            said = {"position": self._position, "at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event["event"]}
            self._events.append(said | fields)
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    @property
    def position(self) -> int:
        """Of the last event, or of the start."""
        return self._position

    @property
    def forgotten(self) -> int:
        """Position of the last event that is not kept any more, or of the start: what was before that is not known."""
        return self._forgotten

    def since(self, position: int) -> list[Event]:
        """What is kept of what came after that position, oldest first."""
        with self._lock:
            return [event for event in self._events if event["position"] > position]

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` after each event, from whatever thread; returns how to end that."""
        with self._lock:
            self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)


TAP = EventTap()  # of this process, as the operator log is
