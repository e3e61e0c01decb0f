"""The commands of a session that carry no mail: hello, STARTTLS, taking leave."""

import re
import ssl

from shadowrelay.model.replies import Reply
from shadowrelay.smtp.answers import (
    ARGUMENT_NEEDED,
    BAD_HELLO_NAME,
    BYE,
    CANNOT_VERIFY,
    HELP,
    NO_ARGUMENT_ALLOWED,
    NOT_IMPLEMENTED,
    OK,
    START_TLS,
    TLS_IS_ACTIVE,
)
from shadowrelay.smtp.connection import Connection
from shadowrelay.smtp.lifetime import BoundedReading, report_every_unwritten_octet
from shadowrelay.smtp.limits import HANDSHAKE_SECONDS, HELLO_NAME_OCTETS_MAX

_HELLO_NAME = re.compile(rf"[A-Za-z0-9._:\[\]-]{{1,{HELLO_NAME_OCTETS_MAX}}}")  # what may stand in a trace header


class SessionCommands(Connection):
    """A client's session, without mail."""

    is_extended = False

    def reset(self) -> None:
        """Forget the transaction. For subclasses."""

    # hello

    async def smtp_HELO(self, argument: str) -> None:
        if self._hello_from(argument):
            self.is_extended = False
            self.say(Reply(250, "", self.reception.name))

    async def smtp_EHLO(self, argument: str) -> None:
        if self._hello_from(argument):
            self.is_extended = True
            self.say_lines(250, "", [self.reception.name, *self.extensions()])

    def _hello_from(self, argument: str) -> bool:
        name = argument.strip()
        if _HELLO_NAME.fullmatch(name) is None:
            self.refuse(BAD_HELLO_NAME)
            return False
        self.reset()
        self.account.client_name = name
        return True

    def extensions(self) -> list[str]:
        """The lines of the reply to EHLO."""
        lines = [
            f"SIZE {self.reception.connector.max_message_size}",
            "PIPELINING",
            "8BITMIME",
            "SMTPUTF8",
            "ENHANCEDSTATUSCODES",
            "DSN",
        ]
        if self.reception.tls_context is not None and not self.account.tls:
            lines.append("STARTTLS")
        return lines

    async def smtp_NOOP(self, argument: str) -> None:
        self.say(OK)

    async def smtp_QUIT(self, argument: str) -> None:
        if argument.strip():
            self.refuse(NO_ARGUMENT_ALLOWED)
            return
        self.hang_up(BYE, "quit")

    async def smtp_VRFY(self, argument: str) -> None:
        if argument.strip():
            self.say(CANNOT_VERIFY)
        else:
            self.refuse(ARGUMENT_NEEDED)

    async def smtp_HELP(self, argument: str) -> None:
        self.say(HELP)

    async def smtp_STARTTLS(self, arg: str) -> None:
        context = self.reception.tls_context
        if context is None:
            self.refuse(NOT_IMPLEMENTED)
        elif arg.strip():
            self.refuse(NO_ARGUMENT_ALLOWED)
        elif self.account.tls:
            self.refuse(TLS_IS_ACTIVE)
        else:
            self.say(START_TLS)
            await self.flush()
            await self._protect(context)

    async def _protect(self, context: ssl.SSLContext) -> None:
        """TLS from here on; whatever was said before is forgotten, and what came too early is not obeyed. RFC 3207 4.2."""
        assert self.transport is not None  # uvloop's transports are no asyncio.Transport
        self._reader.discard()
        try:
            transport = await self.loop.start_tls(
                self.transport, BoundedReading(self), context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:  # ssl.SSLError and TimeoutError are OSErrors
            self.account.reason = "TLS failed"
            # A connection lost in the handshake is told to the TLS layer alone.
            self.loop.call_soon(self.connection_lost, error)
            self._is_ending = True
            return
        assert transport is not None
        self.transport = transport
        self._reader.move_to(transport)
        self._writer._transport = transport  # type: ignore[attr-defined]
        self._replace_writer(self._writer)  # type: ignore[attr-defined]
        report_every_unwritten_octet(transport)  # now: what the handshake has left to write may pause this one's reading, not the other's
        session = transport.get_extra_info("ssl_object")
        self.account.tls = session.version() or "TLS"
        self.account.client_name = ""
        self.protected(session)

    def protected(self, session: ssl.SSLObject) -> None:
        """TLS is active and everything before it forgotten. For subclasses."""
        self.reset()
