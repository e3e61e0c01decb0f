"""The operator log: one JSON object a line on stderr, for people and their collectors. STYLE 1.6.

Events are dotted nouns and participle ("shadow.stored"); ids bound to the context of a session come along. Arguments of AUTH,
tokens and the content of messages never come here: bytes are replaced by their count, and what is named like a secret is left out.
Logging of libraries (asyncio, uvicorn, aiosmtpd) goes the same way, so that there is one stream with one shape.
"""

import io
import json as jsonlib
import logging
import re
import sys
from collections.abc import Iterable, MutableMapping
from datetime import timedelta
from typing import Any, BinaryIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

SECRET_KEYS = frozenset({"authorization", "auth", "password", "token", "secret", "body", "content", "credentials"})
LEFT_OUT = "[left out]"

_AUTH = re.compile(r"(?i)\b(AUTH\s+[\w-]+|Bearer)\s+\S.*")


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Leave out secrets and content, and write values that JSON does not know as text."""
    for key, value in event.items():
        kind = type(value)
        if key in SECRET_KEYS:
            event[key] = LEFT_OUT
        elif kind is str:
            if "AUTH" in value or "uth " in value or "earer" in value:  # cheaper than the expression, and it has to be
                event[key] = _AUTH.sub(rf"\1 {LEFT_OUT}", value)
        elif kind in (bytes, bytearray, memoryview):
            event[key] = f"<{len(value)} bytes>"
        elif kind is timedelta:
            event[key] = value.total_seconds()
    return event


class LineLogger:
    """Writes each event as one line, in one call. A broken stderr is no reason to stop relaying."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def line(self, message: bytes) -> None:
        """Raises nothing: there is nowhere left to say it."""
        try:
            self._stream.write(message + b"\n")
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: closed at exit
            return

    msg = debug = info = warning = warn = error = critical = fatal = exception = log = line


class LineHandler(logging.Handler):
    """The libraries' logging into the same stream."""

    def __init__(self, lines: LineLogger, formatter: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Raises nothing; a record that cannot be formatted is logging's to report."""
        try:
            self._lines.line(self.format(record).encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)


def configure(level: str = "info", *, json: bool = True, stream: BinaryIO | None = None) -> None:
    """Set the operator log up, once, before the first event. `json` False is for people at a terminal.

    Raises: ValueError for an unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown level {level!r}; use debug, info, warning, error or critical")
    lines = LineLogger(stream if stream is not None else _stderr())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _structured_tracebacks() if json else structlog.processors.format_exc_info,
        redact,
    ]
    renderers: tuple[Any, ...] = (_render_bytes,) if json else (structlog.dev.ConsoleRenderer(colors=False), _encode)
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    _route_libraries(lines, shared, number, json=json)


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
    # unbuffered: one write a line, also from several threads
    return io.FileIO(sys.stderr.fileno(), "w", closefd=False)


def _structured_tracebacks() -> Processor:
    # without locals: they hold content and arguments
    transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)
    return structlog.processors.ExceptionRenderer(transformer)


def _render_text(_logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]) -> str:
    return jsonlib.dumps(event, default=str, ensure_ascii=False, separators=(",", ":"))


def _render_bytes(logger: WrappedLogger, method: str, event: MutableMapping[str, Any]) -> bytes:
    return _render_text(logger, method, event).encode("utf-8", "backslashreplace")


def _encode(_logger: WrappedLogger, _method: str, text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
