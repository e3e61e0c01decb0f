"""A connection that obeys command lines. Says nothing about mail.

The rules kept here: a line ends with CRLF, and a bare CR or LF ends the session (another server might see two commands);
each verb has its own limit; an exception is a transient reply that gives nothing away.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import structlog

from shadowrelay.model.errors import LedgerUnavailable, WireError
from shadowrelay.model.replies import LOCAL_ERROR, Reply
from shadowrelay.smtp.answers import (
    BARE_CR_OR_LF,
    COMMAND_TOO_LONG,
    FAILED_IN_CONTENT,
    NO_SMTP_CLIENT,
    NOT_IMPLEMENTED,
    NOT_UTF8,
    SHUTTING_DOWN,
    TOO_MANY_ERRORS,
    UNKNOWN_COMMAND,
)
from shadowrelay.smtp.lifetime import Lifetime
from shadowrelay.smtp.limits import COMMAND_OCTETS_MAX, COMMAND_OCTETS_MAX_BY_VERB, REPLIES_OCTETS_MAX

KNOWN_ELSEWHERE = frozenset({"AUTH", "ATRN", "BURL", "ETRN", "EXPN", "SAML", "SEND", "SOML", "TURN"})
HTTP_VERBS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"})  # a browser made to speak to us
PROTOCOL_ERROR_CODES = frozenset({500, 501, 502, 503, 504, 530, 555})

log: structlog.stdlib.BoundLogger = structlog.get_logger()

Command = Callable[[Any, str], Awaitable[None]]


class Connection(Lifetime):
    """Subclasses add `smtp_…` methods, called with the argument ("" without one)."""

    commands: ClassVar[dict[str, Command]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.commands = {name[5:]: getattr(cls, name) for name in dir(cls) if name.startswith("smtp_")}
        for name in KNOWN_ELSEWHERE:
            cls.commands.pop(name, None)

    def refuse(self, reply: Reply, *, is_error: bool = True) -> None:
        """A negative reply. Errors of the protocol are counted, and the one too many ends the session."""
        self.account.refused_count += 1
        if is_error and reply.code in PROTOCOL_ERROR_CODES:
            self.account.errors_count += 1
            if self.account.errors_count > self.reception.connector.max_protocol_errors:
                self.hang_up(TOO_MANY_ERRORS, "too many errors")
                return
        self.say(reply)

    async def _handle_client(self) -> None:
        try:
            await self._converse()
        except (OSError, asyncio.IncompleteReadError):
            self.hang_up(None, "lost")
        except Exception:
            log.exception("session.failed", client=self.account.address)
            self.hang_up(FAILED_IN_CONTENT, "failed")
        finally:
            self._is_handled = True
            if self.transport is None:
                self.ended()

    async def _converse(self) -> None:
        if self._refused_at_once is not None:
            self.hang_up(self._refused_at_once, "too many sessions")
            return
        self._collect(f"220 {self.reception.name} ESMTP\r\n".encode())  # no software, no version
        while not self._is_ending and self.transport is not None:
            is_flood = self._replies_octets > REPLIES_OCTETS_MAX
            line = None if is_flood else self._reader.take_line()
            if line is None:
                if self._replies:
                    await self.flush()
                    if is_flood:
                        await asyncio.sleep(0)  # others have their turn: neither reading nor writing waits here
                try:
                    line = await self._reader.line()
                except asyncio.LimitOverrunError as overrun:
                    await self._skip_line(overrun.consumed)
                    self.refuse(COMMAND_TOO_LONG)
            if line is not None:
                await self._obey(line)
            if self._is_draining and self.is_idle() and not self.account.peer:
                self.hang_up(SHUTTING_DOWN, "shutdown")

    async def _skip_line(self, consumed: int) -> None:
        while True:
            await self._reader.readexactly(consumed)
            try:
                await self._reader.readuntil(b"\n")
                return
            except asyncio.LimitOverrunError as overrun:
                consumed = overrun.consumed

    async def _obey(self, line: bytes) -> None:
        if not line.endswith(b"\r\n") or line.find(b"\r") != len(line) - 2:
            self.hang_up(BARE_CR_OR_LF, "bare CR or LF")
            return
        verb, _, octets = line[:-2].partition(b" ")
        name = verb.decode("ascii", "replace").upper()
        command = self.commands.get(name)
        if len(line) > COMMAND_OCTETS_MAX_BY_VERB.get(name, COMMAND_OCTETS_MAX):
            self.refuse(COMMAND_TOO_LONG)
            return
        if command is None:
            self._unknown(name)
            return
        try:
            argument = octets.decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(NOT_UTF8)
            return
        try:
            if self.account.peer:
                self.heard(name)
            await command(self, argument)
        except WireError as error:
            self.refuse(error.reply)
        except LedgerUnavailable as error:
            self._failed(name, error, error.reply)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and self.transport is None:
                raise
            self._failed(name, error, LOCAL_ERROR)

    def _failed(self, name: str, error: Exception, reply: Reply) -> None:
        """Trouble of ours: transient, and nothing of it leaves the house but a number to look for in the log."""
        log_id = uuid.uuid4().hex[:12]
        trace = None if isinstance(error, LedgerUnavailable) else error  # a full disk is no bug to be traced
        log.error("session.failed", log_id=log_id, command=name, client=self.account.address, error=repr(error), exc_info=trace)
        self.account.refused_count += 1
        self.after_failure(Reply(reply.code, reply.enhanced, f"{reply.text} (log id {log_id})"))

    def _unknown(self, name: str) -> None:
        if name in HTTP_VERBS:
            self.hang_up(NO_SMTP_CLIENT, "HTTP")
        else:
            self.refuse(NOT_IMPLEMENTED if name in KNOWN_ELSEWHERE else UNKNOWN_COMMAND)

    def heard(self, name: str) -> None:
        """A command of a peer has come. For subclasses."""

    def after_failure(self, reply: Reply) -> None:
        """Answer what failed on our side, and be ready for the next transaction. For subclasses."""
        self.say(reply)
