"""The operator log: one JSON object per line on stderr, for people and log collectors. docs/operations.md "The operator log".

Events are dotted nouns and a participle ("shadow.stored"); ids bound to a session's context are added. Arguments of AUTH, tokens and
message content are never logged: bytes are replaced by their count, and fields with names of secrets are left out.
Libraries (asyncio, uvicorn, aiosmtpd) log through the same stream, so that all lines have one format.

A thread writes the lines: whoever reads stderr may stop reading (a hung collector, Ctrl-S), and the relay does not wait for it.
Below warning level, lines are collected for `COLLECTED_SECONDS`, so that not each attempt and session costs a system call. A warning
is written at once, and the exit waits until all are written, or `FLUSH_SECONDS`.
"""

import asyncio
import contextlib
import io
import json as jsonlib
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from shadowrelay.model.printable import escaped, printable
from shadowrelay.tracking.event_tap import TAP

SECRET_KEYS = frozenset({"authorization", "auth", "password", "token", "secret", "body", "content", "credentials"})
LEFT_OUT = "[left out]"
OF_MANY_LINES = frozenset({"exception", "stack"})  # tracebacks
COLLECTED_SECONDS = 0.05  # SIGKILL may lose so much of this log; the tracking log is the evidence, and loses nothing
COLLECTED_OCTETS_MAX = 64 * 1024
BUFFERED_OCTETS_MAX = 1024 * 1024  # some 3,000 lines, while nobody reads stderr
FLUSH_SECONDS = 2.0  # at exit, for a reader that hangs

# Suffixes of events that repeat with every message, or every second, while a condition lasts.
REPEATED = (
    ".waits", ".put_off", ".unrecorded", ".untracked", ".unreadable", ".holdings_unknown", "message.refused",
    "message.accepted_without_copy", ".tls_failed", "client.limited", "filter.failed",
    "recipient.refused", "recipient.unverified",
)  # fmt: skip
REPEATED_SECONDS = 10.0
REPEATED_MAX = 5

_log = structlog.get_logger()

_json: Callable[[object], str] = jsonlib.JSONEncoder(default=str, ensure_ascii=False, separators=(",", ":")).encode

_LEVELS = {"exception": "error", "warn": "warning"}  # methods whose name is not that of their level

_AUTH = re.compile(r"(?i)\b(AUTH\s+[\w-]+|Bearer)\s+\S.*")


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Remove secrets and content, and convert values that JSON or a terminal does not support to text."""
    for key, value in event.items():
        kind = type(value)
        if key in SECRET_KEYS:
            event[key] = LEFT_OUT
        elif kind is int or kind is float:
            continue
        elif kind is str:
            if not value.isprintable() and key not in OF_MANY_LINES:
                event[key] = value = printable(value)
            if "AUTH" in value or "uth " in value or "earer" in value:  # necessary for a match, and cheaper than the expression
                event[key] = _AUTH.sub(rf"\1 {LEFT_OUT}", value)
        elif kind in (bytes, bytearray, memoryview):
            event[key] = f"<{len(value)} bytes>"
        elif kind is timedelta:
            event[key] = value.total_seconds()
    return event


class Limited:
    """Rate limit for events that repeat with every message while a condition lasts, such as a full disk.

    Shapes: at most `REPEATED_MAX` lines of such an event in `REPEATED_SECONDS`, and one `lines.left_out` after them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, list[float]] = {}  # start of the window, lines passed, lines left out

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Raises: structlog.DropEvent for lines above the limit."""
        name = event.get("event")
        if not isinstance(name, str) or not name.endswith(REPEATED):
            return event
        now = self._clock()
        window = self._windows.get(name)
        if window is None or now - window[0] >= REPEATED_SECONDS:
            self._windows[name] = [now, 1, 0]
            if window is not None and window[2]:
                event["left_out"] = int(window[2])
            return event
        if window[1] < REPEATED_MAX:
            window[1] += 1
            return event
        window[2] += 1
        if window[2] == 1:
            with contextlib.suppress(RuntimeError):  # no loop in this thread: the next line reports them
                asyncio.get_running_loop().call_later(max(window[0] + REPEATED_SECONDS - now, 0.0), self._say, name, window)
        raise structlog.DropEvent

    def _say(self, name: str, window: list[float]) -> None:
        if window[2]:
            _log.warning("lines.left_out", of=name, count=int(window[2]))
            window[2] = 0


class LineLogger:
    """Hands lines to a thread, which writes several of them in one call: whoever stops reading stderr stops that thread, not the relay.

    Shapes: at most `BUFFERED_OCTETS_MAX` wait; lines beyond that are dropped and counted, and `lines.dropped` says how many as soon as
    stderr is read again. `dropped_count` counts all of them.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.dropped_count = 0
        self._stream: Any = stream  # `BinaryIO` does not know that `write` may return None
        self._changed = threading.Condition()  # reentrant: the garbage collector may log while a line is added
        self._lines: list[bytes] = []
        self._octets = 0  # with those that are being written
        self._is_urgent = False
        self._reported_count = 0
        self._writing_since: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def blocked_seconds(self) -> float:
        """For how long stderr has not been read; 0 while lines flow."""
        since = self._writing_since
        return 0.0 if since is None else max(time.monotonic() - since, 0.0)

    def line(self, message: bytes) -> None:
        """Write now, after the collected lines. Raises nothing: an error could not be reported anywhere."""
        self._add(message, is_urgent=True)

    def later(self, message: bytes) -> None:
        """Write within `COLLECTED_SECONDS`. Raises nothing."""
        self._add(message, is_urgent=False)

    def flush(self, seconds: float | None = None) -> None:
        """Wait until all lines are written, for at most so many seconds (`FLUSH_SECONDS`). Raises nothing."""
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._octets, FLUSH_SECONDS if seconds is None else seconds)

    def _add(self, message: bytes, *, is_urgent: bool) -> None:
        with self._changed:
            if self._octets + len(message) > BUFFERED_OCTETS_MAX:
                self.dropped_count += 1
                return
            self._lines.append(message)
            self._octets += len(message)
            if is_urgent or len(self._lines) == 1 or self._octets > COLLECTED_OCTETS_MAX:
                self._is_urgent = self._is_urgent or is_urgent or self._octets > COLLECTED_OCTETS_MAX
                self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="operator log", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                self._changed.wait_for(lambda: self._is_urgent, COLLECTED_SECONDS)
                lines, self._lines, self._is_urgent = self._lines, [], False
            self._writing_since = time.monotonic()
            self._write(b"\n".join([*lines, b""]))
            self._writing_since = None
            with self._changed:
                self._octets -= sum(map(len, lines))
                self._report_dropped()
                self._changed.notify_all()

    def _write(self, octets: bytes) -> None:
        rest = memoryview(octets)
        try:
            while rest:
                written = self._stream.write(rest)
                if written is None:  # a pipe that another process made non-blocking, and that is full
                    time.sleep(COLLECTED_SECONDS)
                else:
                    rest = rest[written:]
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: closed at exit
            return

    def _report_dropped(self) -> None:
        if not self._octets and (count := self.dropped_count - self._reported_count):  # now there is room for the report itself
            self._reported_count = self.dropped_count
            _log.warning("lines.dropped", count=count)

    msg = debug = info = later
    warning = warn = error = critical = fatal = exception = log = line


class LineHandler(logging.Handler):
    """Routes the libraries' logging into the same stream."""

    def __init__(self, lines: LineLogger, formatter: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Raises nothing. A record that cannot be formatted is reported here: `logging` itself would write to stderr, and wait."""
        try:
            self._lines.line(self.format(record).encode("utf-8", "backslashreplace"))
        except Exception as error:
            _log.error("lines.unformatted", logger=record.name, reason=repr(error))

    def flush(self) -> None:
        """Wait until all lines are written, for a limited time. `logging` calls it at exit."""
        self._lines.flush()


def configure(level: str = "info", *, json: bool = True, stream: BinaryIO | None = None) -> LineLogger:
    """Set up the operator log, once, before the first event. `json` False is for people at a terminal. Returns who writes it.

    Raises: ValueError for an unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown level {level!r}; use debug, info, warning, error or critical")
    lines = LineLogger(stream if stream is not None else _stderr())
    shared: list[Processor] = [
        Limited(),
        structlog.contextvars.merge_contextvars,
        _stamp,
        _tracebacks(_structured_tracebacks() if json else structlog.processors.format_exc_info),
        redact,
        TAP,
    ]
    renderers: tuple[Any, ...] = (_render_bytes,) if json else (structlog.dev.ConsoleRenderer(colors=False), _encode)
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    _route_libraries(lines, shared, number, json=json)
    return lines


def _route_libraries(lines: LineLogger, shared: Iterable[Processor], number: int, *, json: bool) -> None:
    renderer: Processor = _render_text if json else structlog.dev.ConsoleRenderer(colors=False)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    root = logging.getLogger()
    root.handlers[:] = [LineHandler(lines, formatter)]
    root.setLevel(max(number, logging.WARNING))
    # aiosmtpd logs every command line, arguments of AUTH included, below WARNING
    logging.getLogger("mail").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def _stderr() -> BinaryIO:
    # unbuffered: one write per line, also from several threads
    return io.FileIO(sys.stderr.fileno(), "w", closefd=False)


def _stamp(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Level and time, as structlog's own two processors write them."""
    event["level"] = _LEVELS.get(method, method)
    event["timestamp"] = f"{datetime.now(UTC).isoformat()[:-6]}Z"
    return event


def _tracebacks(rendered: Processor) -> Processor:
    """Run a processor only for events with an exception."""
    stacks = structlog.processors.StackInfoRenderer()

    def render(logger: WrappedLogger, method: str, event: EventDict) -> Any:
        if "stack_info" in event:
            event = stacks(logger, method, event)
        return rendered(logger, method, event) if "exc_info" in event else event

    return render


def _structured_tracebacks() -> Processor:
    # without locals: they hold content and arguments
    transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)
    return structlog.processors.ExceptionRenderer(transformer)


def _render_text(_logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]) -> str:
    return escaped(_json(event))  # also what stands in lists and tracebacks


def _render_bytes(_logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]) -> bytes:
    return escaped(_json(event)).encode("utf-8", "backslashreplace")


def _encode(_logger: WrappedLogger, _method: str, text: str) -> bytes:
    return "\n".join(map(escaped, text.split("\n"))).encode("utf-8", "backslashreplace")
