"""A client's connection: start, timer, replies, end, and the command loop. Knows nothing about mail. RFC 5321 4.2, 4.5.3.2.

Built on aiosmtpd's protocol class. Its life cycle is kept; its command loop, replies, timer and STARTTLS are replaced, for these
reasons (a test pins each): its constructor inspects its own class for every connection; its loop accepts a bare LF as the end of a
command and logs every line; its timer restarts only for valid commands, and interrupts a slow decision; it cancels the handler when
the client disconnects; its size limits are shared by all connections; it sends an exception's text as a permanent reply.

The rules here: a line ends with CRLF, and a bare CR or LF ends the session (another server might see two commands);
each verb has its own limit; an exception becomes a transient reply without details. Replies are collected and written together
when no further command is buffered: one system call for a pipelined group.
"""

import asyncio
import logging
import re
import ssl
import uuid
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, ClassVar

import structlog
from aiosmtpd.smtp import SMTP
from aiosmtpd.smtp import log as aiosmtpd_log

from shadowrelay.model.client_address import client_ip
from shadowrelay.model.client_minute import Counted
from shadowrelay.model.ids import ServerName
from shadowrelay.model.peers import Incarnation
from shadowrelay.model.replies import LOCAL_ERROR, LedgerUnavailable, Reply, WireError
from shadowrelay.model.values import replace
from shadowrelay.protocol.original_client import OriginalClient
from shadowrelay.smtp.client_session import reason_of
from shadowrelay.smtp.data import CommandReader
from shadowrelay.smtp.fruitless_commands import DELAY_SECONDS, PEER_FACTOR, TRUSTED_FACTOR, Pace
from shadowrelay.smtp.limits import (
    BARE_CR_OR_LF,
    CLOSE_SECONDS,
    COMMAND_OCTETS_MAX,
    COMMAND_OCTETS_MAX_BY_VERB,
    COMMAND_TOO_LONG,
    EVICTED_IDLE_SECONDS,
    EVICTED_SLOW_OCTETS,
    EVICTED_SLOW_SECONDS,
    EVICTION_LOOKS,
    EXCHANGE_STARTS,
    FAILED_IN_CONTENT,
    HANDSHAKE_SECONDS,
    NO_PROXY_HEADER,
    NO_SMTP_CLIENT,
    NOT_IMPLEMENTED,
    NOT_UTF8,
    OUT_OF_STEP,
    PROXY_DENIED,
    READ_AHEAD_OCTETS,
    REPLIES_OCTETS_MAX,
    SHUTTING_DOWN,
    TIMED_OUT,
    TLS_FIRST,
    TOO_MANY_COMMANDS,
    TOO_MANY_ERRORS,
    TOO_MANY_SESSIONS,
    UNKNOWN_COMMAND,
)
from shadowrelay.smtp.peer_part import PeerPart
from shadowrelay.smtp.proxy_header import HEADER_SECONDS, BadProxyHeader, read_proxy_header
from shadowrelay.smtp.reception import Reception, SessionState
from shadowrelay.trust import PeerTrust

aiosmtpd_log.setLevel(logging.WARNING)  # it logs each connection, in a format other than ours

VERBS_NOT_IMPLEMENTED = frozenset({"AUTH", "ATRN", "BURL", "ETRN", "EXPN", "SAML", "SEND", "SOML", "TURN"})
FRUITLESS = frozenset({"EHLO", "HELO", "HELP", "MAIL", "NOOP", "RSET", "STARTTLS", "VRFY", "XCLIENT", "XFORWARD"})
HELD_BACK_LOOK_SECONDS = 1.0  # how often a client that is kept waiting is checked for having given up
ROOM_LOOK_SECONDS = 0.1  # how often a stranger looks for memory beside what is kept for others
HTTP_VERBS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"})  # from a browser made to connect to us
PROTOCOL_ERROR_CODES = frozenset({500, 501, 502, 503, 504, 530, 555})

Command = Callable[[Any, str], Awaitable[None]]

BEFORE_TLS = frozenset({"EHLO", "HELO", "NOOP", "QUIT", "STARTTLS"})  # where a connector requires it. RFC 3207 4
_BLANKS = re.compile(rb"[ \t]*([^ \t]+)[ \t]*(.*)", re.DOTALL)  # around a verb, where a connector is lenient: a tab, or some before it
ORDINARY_ENDS = ("quit", "lost", "drain", "TLS failed")  # the last one leaves a warning of its own

# A peer's session lasts so many times connection_timeout, an hour by default. A node ends its own after half an hour.
LIVES_OF_A_PEER = 6

_log = structlog.get_logger()


class Connection(SMTP):
    """The connection of one client. Subclasses add `smtp_…` methods, which receive the argument ("" without one)."""

    commands: ClassVar[dict[str, Command]] = {}
    _reader: CommandReader
    transport: asyncio.Transport | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.commands = {name[5:]: getattr(cls, name) for name in dir(cls) if name.startswith("smtp_")}
        for name in VERBS_NOT_IMPLEMENTED:
            cls.commands.pop(name, None)

    def __init__(self, reception: Reception, loop: asyncio.AbstractEventLoop, sessions: dict["Connection", None]) -> None:
        # Not SMTP.__init__: see the module docstring. The attributes below are those that aiosmtpd's life cycle uses.
        self.own_reader = CommandReader(reception.budget.portion(), READ_AHEAD_OCTETS, loop, reception.read_buffer)
        asyncio.StreamReaderProtocol.__init__(self, self.own_reader, client_connected_cb=self._cb_client_connected, loop=loop)
        self.loop = loop
        self.transport = None
        self.session = None
        self.envelope = None
        self._original_transport = None
        self._tls_protocol = None
        self._timeout_handle = None
        self._handler_coroutine = None

        self.reception = reception
        self._sessions = sessions
        self.gone: asyncio.Future[None] = loop.create_future()  # done when the connection is closed
        self._replies: list[bytes] = []
        self._replies_octets = 0
        self._is_ending = False
        self._is_draining = False
        self._is_deciding = False  # between the end of content and its reply
        self._is_our_time = False  # the client waits for us: its timeouts are suspended
        self._is_timer_due = False
        self._is_handled = False
        self._is_counted_only = False  # refused with many others: a log line for each would add to the flood
        self._refused_at_once: Reply | None = None
        self._refused_later: Reply | None = None  # where the client may still prove to be a peer: at its first MAIL
        self._began_at = 0.0
        self._fruitless_since, self._octets_before = 0.0, 0  # the last accepted message, or the beginning; what had been said until then
        self._is_ours = False  # of a peer, or of a client that may relay
        self._awaits_header = self._has_header = False  # of the PROXY protocol, with a client
        self._counted_as = ""  # the client's address in `reception.count`
        self._is_old = False  # the session of a peer ends after the transaction in progress

    # life cycle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the session."""
        peername = transport.get_extra_info("peername")
        self.own_reader.progress_at = self._began_at = self._fruitless_since = self.loop.time()
        self.state = SessionState(client_ip(peername), peername[1] if isinstance(peername, tuple) else 0, self._began_at)
        self.peer = PeerPart(self.reception, self.state)
        if (session := transport.get_extra_info("ssl_object")) is not None:  # from the first octet
            self.state.tls = session.version() or "TLS"
        self._awaits_header = self.reception.rights.is_proxy(self.state.address)
        self._refused_at_once = self._enter()
        if self.reception.descriptors.refuses_session(_number_of(transport), is_ours=self._is_ours):
            self._refused_at_once, self._is_counted_only = TOO_MANY_SESSIONS, True
        self._sessions[self] = None
        report_every_unwritten_octet(transport)
        super().connection_made(transport)
        assert self._handler_coroutine is not None
        self.reception.running.add(self._handler_coroutine)
        self._handler_coroutine.add_done_callback(self.reception.running.discard)
        if self.reception.is_closed:
            self.cut()

    def _enter(self) -> Reply | None:
        """Count the session among those of its client; the refusal if it is one too many."""
        reception, connector, address = self.reception, self.reception.connector, self.state.address
        is_of_peer = not self.state.is_spoken_for and reception.is_of_peer(address)  # several nodes may share one address
        has_many = is_of_peer or self._awaits_header
        self._is_ours = not self._awaits_header and (is_of_peer or reception.may_relay(self.state))
        self._counted_as = address
        if not self._is_ours:
            reception.strangers[self] = None
        of_client_max = 2 * connector.max_sessions if has_many else connector.max_sessions_per_address
        refusal = reception.count.enter(address, connector.max_sessions, of_client_max, is_ours=self._is_ours)
        return None if refusal is TOO_MANY_SESSIONS and self._evict() else refusal

    def client_named(self, client: OriginalClient) -> Reply | None:
        """Whoever is connected speaks for this client, whose session it is from now on; the refusal if it is one too many. This is the
        one place where the client of a session changes."""
        self._leave()
        self.state.spoken_for(replace(client, by=self.state.connection_address))
        return self._enter()

    def _leave(self) -> None:
        self.reception.strangers.pop(self, None)
        self.reception.count.leave(self._counted_as, is_ours=self._is_ours)

    async def _takes_header(self) -> bool:
        """Take the header of the PROXY protocol; whether the session goes on."""
        try:
            async with asyncio.timeout(HEADER_SECONDS):
                header = await read_proxy_header(self.own_reader)
        except TimeoutError:
            self.hang_up(NO_PROXY_HEADER, "no PROXY header")
            return False
        except BadProxyHeader as error:
            self.hang_up(NO_PROXY_HEADER, f"bad PROXY header: {error}")
            return False
        self._awaits_header = False
        if header.is_local:
            self._leave()
            refusal = self._enter()
        else:
            self._has_header = True
            refusal = self.client_named(OriginalClient(header.address, header.port))
        if refusal is not None:
            self._refused_at_once = refusal
        return True

    def _evict(self) -> bool:
        """All sessions are taken: end one in which nothing was proved, sent or said lately, so that silence keeps nobody out, nor does an
        octet now and then."""
        now = self.loop.time()
        strangers = self.reception.strangers
        for _ in range(min(EVICTION_LOOKS, len(strangers))):
            session = next(iter(strangers))
            strangers.move_to_end(session)  # the next look begins behind those that have a reason to stay
            if session.gives_way(now):
                session.hang_up(TOO_MANY_SESSIONS, "gave way")
                return True
        return False

    def gives_way(self, now: float) -> bool:
        """Whether it can be ended for another client's sake."""
        if self._is_ours or self._is_ending or self._is_our_time:
            return False
        if self.own_reader.progress_at <= now - EVICTED_IDLE_SECONDS and not self.is_busy:
            return True
        seconds = now - self._fruitless_since  # also within a transaction: it would be an easy way to stay
        said = self.own_reader.received_octets - self._octets_before
        return seconds >= EVICTED_SLOW_SECONDS and said < seconds * EVICTED_SLOW_OCTETS

    def led_to_mail(self) -> None:
        """A message was accepted, and what came before counts no more."""
        self.state.fruitless.count = 0
        self._fruitless_since, self._octets_before = self.own_reader.progress_at, self.own_reader.received_octets

    @property
    def is_trusted(self) -> bool:
        """Whether the client may relay, or has proved to be a peer: its mail is mail of our own."""
        return bool(self.state.peer) or self.reception.may_relay(self.state)

    def proved_peer(self) -> None:
        """The client has proved to be a peer, whose other sessions are recognised by its address from now on."""
        if self.state.is_spoken_for:
            return  # its address is the word of a load balancer
        self.reception.peer_addresses.add(self.state.address)
        if not self._is_ours:
            self._is_ours = True
            self.reception.strangers.pop(self, None)
            self.reception.count.proved(self.state.address)

    def pause_writing(self) -> None:
        """The client does not read its replies: stop reading from it."""
        super().pause_writing()
        self.own_reader.pause()

    def resume_writing(self) -> None:
        """The client has read all replies."""
        super().resume_writing()
        self.own_reader.resume()

    def has_room_now(self) -> bool:
        """Whether content can arrive."""
        budget = self.reception.budget
        return not (budget.is_full if self._is_ours else budget.is_for_ours)

    async def has_room(self, seconds: float) -> bool:
        """Wait up to `seconds` for memory for content. This time does not count against the client's timeouts."""
        budget = self.reception.budget
        if self.has_room_now():
            return True
        waits_since = self.loop.time()
        self._is_our_time = True
        try:
            async with asyncio.timeout(seconds):
                await budget.room()
                while not self.has_room_now() and not self.gone.done():
                    await asyncio.wait({self.gone}, timeout=ROOM_LOOK_SECONDS)
        except TimeoutError:
            budget.refused_count += 1
            return False
        finally:
            self._began_at += self.loop.time() - waits_since
            self._end_our_time()
        return True

    def eof_received(self) -> bool | None:
        """The client closed its side; it may still read. Commands already received are executed."""
        return asyncio.StreamReaderProtocol.eof_received(self)

    async def hold_back(self, seconds: float) -> None:
        """Keep the client waiting. This time does not count against its timeouts. One that has closed its side and sent nothing more has
        given up: its session must not stay open. Raises: ConnectionError if the session ends."""
        await self.flush()
        waits_since = self.loop.time()
        self._is_our_time = True
        try:
            while (left := waits_since + seconds - self.loop.time()) > 0 and not (self.gone.done() or self.own_reader.at_eof()):
                await asyncio.wait({self.gone}, timeout=min(left, HELD_BACK_LOOK_SECONDS))
        finally:
            self._began_at += self.loop.time() - waits_since
            self._end_our_time()
        if self.reception.closed_with is not None:
            self.hang_up(self.reception.closed_with, "drain")
        if self.gone.done() or self._is_ending:
            raise ConnectionResetError("the session ended while its client was kept waiting")

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed. Nothing is cancelled: reads and writes fail by themselves, and a pending decision
        completes, because the promise behind it must (aiosmtpd cancels it)."""
        if self.gone.done():  # called twice: see `_protect`
            return
        if self._timeout_handle is not None:
            self._timeout_handle.cancel()
        asyncio.StreamReaderProtocol.connection_lost(self, error)
        self.transport = None
        self._sessions.pop(self, None)
        self._leave()
        self.gone.set_result(None)
        if self._is_handled:
            self.ended()

    def ended(self) -> None:
        """The connection is closed and its last command is done: break reference cycles, so that the session's memory is
        freed at once and not by the garbage collector."""
        if not self._is_counted_only:
            self._log_end()
        self.own_reader.let_go()
        self._client_connected_cb = self._timeout_handle = self._handler_coroutine = None
        self._writer = self._reader = None  # type: ignore[assignment]

    def _log_end(self) -> None:
        state = self.state
        counts = (state.messages_count, state.copies_count, state.refused_count, state.errors_count)
        is_probe = not any(counts) and state.reason in ORDINARY_ENDS  # of a load balancer or a peer, every few seconds
        (_log.debug if is_probe else _log.info)(
            "session.closed",
            connector=self.reception.connector.name,
            client=state.address,
            port=state.port,
            via=state.connection_address if state.is_spoken_for else "",
            client_name=state.client_name,
            peer=state.peer,
            tls=state.tls,
            messages=state.messages_count,
            copies=state.copies_count,
            refused=state.refused_count,
            errors=state.errors_count,
            seconds=round(self.loop.time() - state.began_at, 6),
            reason=state.reason,
        )

    def hang_up(self, reply: Reply | None, reason: str) -> None:
        """Send this reply, and close. A client that does not read the reply is disconnected."""
        if self._is_ending or self.transport is None:
            return
        self._is_ending = True
        self.state.reason = reason
        if reply is not None:
            self.say(reply)
        self._write()
        assert self._timeout_handle is not None
        self._timeout_handle.cancel()
        self._timeout_handle = self.loop.call_later(CLOSE_SECONDS, self.transport.abort)
        self.transport.close()

    def cut(self, reason: str = "cut") -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.state.reason = reason
            self.transport.abort()

    # the timer: one, rescheduled only when it fires

    def _reset_timeout(self, duration: float | None = None) -> None:
        self._timeout_handle = self.loop.call_at(self._ends_at(), self._timeout_cb)

    def _inactive_at(self) -> float:
        return self.own_reader.progress_at + self.reception.connector.connection_inactivity_timeout.total_seconds()

    def _ends_at(self) -> float:
        life = self.reception.connector.connection_timeout.total_seconds()
        return min(self._inactive_at(), self._began_at + (life * LIVES_OF_A_PEER if self.state.peer else life))

    def _copy_ends_at(self) -> float:
        """In progress when the session was old. As long again, and no key that counts no more has its session for ever."""
        return self._began_at + 2 * LIVES_OF_A_PEER * self.reception.connector.connection_timeout.total_seconds()

    def _timeout_cb(self) -> None:
        now = self.loop.time()
        if self._is_our_time:
            self._is_timer_due = True  # `_end_our_time` reschedules it
        elif self._ends_at() > now:
            self._reset_timeout()
        elif self.state.peer and self.is_busy and (ends_at := min(self._inactive_at(), self._copy_ends_at())) > now:
            self._is_old = True  # a copy is not cut off: its primary server would have to place another one
            self._timeout_handle = self.loop.call_at(ends_at, self._timeout_cb)
        else:
            self.hang_up(TIMED_OUT, "timeout")

    def _end_our_time(self) -> None:
        """The client waited for us: no timeout ended its session, and its inactivity restarts from zero."""
        self._is_deciding = self._is_our_time = False
        self.own_reader.progress_at = self.loop.time()
        if self._is_timer_due and self.transport is not None and not self._is_ending:
            self._reset_timeout()
        self._is_timer_due = False

    # replies

    def say(self, reply: Reply) -> None:
        """Collect a reply; it is written when no further command is buffered."""
        line = reply_line(reply)
        self._replies.append(line)
        self._replies_octets += len(line)

    def say_lines(self, code: int, enhanced: str, lines: list[str]) -> None:
        """Collect a reply of several lines."""
        head = f"{code}-{enhanced} " if enhanced else f"{code}-"
        text = "\r\n".join([head + line for line in lines])
        last = text.rfind("\r\n") + 2 if len(lines) > 1 else 0
        self._collect(f"{text[:last]}{code} {text[last + 4 :]}\r\n".encode())

    def _collect(self, octets: bytes) -> None:
        self._replies.append(octets)
        self._replies_octets += len(octets)

    def _write(self) -> bool:
        """Write the collected replies. True: the client does not read them, or has disconnected; wait for `_drained` before going on."""
        transport = self.transport
        if transport is None:
            return True
        if self._replies:
            if self.state.peer:
                self.peer.answering()
            transport.write(self._replies[0] if len(self._replies) == 1 else b"".join(self._replies))
            self._replies.clear()
            self._replies_octets = 0
        return self._paused or transport.is_closing()  # type: ignore[attr-defined]

    async def flush(self) -> None:
        """Write the collected replies, and wait while the client does not read. Raises: ConnectionError."""
        if self._write():
            await self._drained()

    async def _drained(self) -> None:
        """Wait until the client reads. Disconnect one that has sent content with much input behind it, which takes memory from others."""
        if self.own_reader.is_counted:
            self.cut("replies not taken")
        await self._writer.drain()

    # TLS

    async def _protect(self, context: ssl.SSLContext) -> bool:
        """Start TLS; False if it failed. Forget who the client is, and drop octets received before the handshake. RFC 3207 4.2."""
        try:
            return await self._handshake(context)
        except Exception:
            self.cut("TLS failed")  # neither plain nor encrypted: the client would take a reply for the one to another command
            raise

    async def _handshake(self, context: ssl.SSLContext) -> bool:
        if self.transport is None:
            raise ConnectionResetError("the connection was lost before the handshake")
        self._reader.discard()
        transport: asyncio.Transport | None = None
        failure: OSError | None = None
        try:
            transport = await self.loop.start_tls(
                self.transport, BoundedReading(self), context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError as error:  # ssl.SSLError and TimeoutError are subclasses
            self.state.reason, failure = "TLS failed", error
            name, address = self.reception.connector.name, self.state.address
            _log.warning("session.tls_failed", connector=name, client=address, client_name=self.state.client_name, reason=reason_of(error))
            if isinstance(error, ssl.SSLCertVerificationError):
                self.reception.note_strange_certificate(self.state)
        session = None if transport is None else transport.get_extra_info("ssl_object")
        if transport is None or session is None:  # without an error: we cut the connection
            # A connection lost in the handshake is reported to the TLS layer only. asyncio returns no transport then, uvloop a dead one.
            self.loop.call_soon(self.connection_lost, failure)
            self._is_ending = True
            return False
        self.transport = transport
        self._reader.move_to(transport)
        # As `StreamWriter.start_tls` does, whose private help for it has another name in each Python. With `_over_ssl` an EOF closes.
        self._writer._transport = self._transport = transport  # type: ignore[attr-defined]
        self._over_ssl = True
        report_every_unwritten_octet(transport)  # now: unwritten handshake data may pause reading on this transport, not on the old one
        self.state.tls = session.version() or "TLS"
        self.state.client_name = ""
        if reason := self.peer.protected(session):
            self._refuse_certificate(reason)
        return True

    def is_with_other(self, server: ServerName, incarnation: Incarnation) -> bool:
        """See `PeerPart`."""
        return self.peer.is_with_other(server, incarnation)

    def reread(self, trust: PeerTrust, before: PeerTrust) -> None:
        """The files of [tls] were read again: the session ends if its client's certificate counts no more."""
        if reason := self.peer.reread(trust, before):
            self._refuse_certificate(reason)

    def _refuse_certificate(self, reason: str) -> None:
        name, address = self.reception.connector.name, self.state.address
        _log.warning(
            "session.certificate_refused",
            connector=name,
            client=address,
            client_name=self.state.client_name,
            peer=self.state.peer,
            reason=reason,
        )
        self.cut("certificate refused")

    # shutdown of the node

    def is_idle(self) -> bool:
        """Between transactions. For subclasses."""
        raise NotImplementedError

    @property
    def is_busy(self) -> bool:
        """It has acknowledged something, or is about to."""
        return self._is_deciding or not self.is_idle()

    @property
    def is_deciding(self) -> bool:
        """Its content is complete, and the reply is on its way: to cut it now would make the client send the message again."""
        return self._is_deciding

    @property
    def greeting(self) -> Reply:
        """No software, no version."""
        return Reply(220, "", f"{self.reception.name} ESMTP")

    def _refusal_at_greeting(self) -> Reply | None:
        """Why this connection is refused at once. While no mail is accepted, peers are greeted nevertheless."""
        self._refused_later = None
        if self._refused_at_once is None and self.reception.limits is not None and self._is_counted_connection():
            refusal = self.over_limit(Counted.CONNECTIONS)
            if refusal is not None and self.peer.may_prove():
                self._refused_later = refusal
            elif refusal is not None:
                self._refused_at_once, self._is_counted_only = refusal, True
        return self._refused_at_once or (None if self.peer.may_prove() else self.reception.closed_with)

    def _is_counted_connection(self) -> bool:
        """Not that of a peer, nor of a server that may yet say for whom it speaks."""
        state, reception = self.state, self.reception
        may_name_another = not state.is_spoken_for and reception.rights.may_speak_for_others(state.connection_address)
        return not (may_name_another or reception.is_of_peer(state.own_address))

    async def _is_early(self) -> bool:
        """Whether the client talks before the greeting, which is delayed to see that. Raises: ConnectionError if the session ends."""
        limits, address = self.reception.limits, self.state.address
        if limits is None or not limits.greeting_seconds or limits.is_exempt(address) or self.reception.is_of_peer(self.state.own_address):
            return False
        await self.hold_back(limits.greeting_seconds)
        if not self.own_reader.has_octets():
            return False
        limits.early_count += 1
        return True

    # limits for each client: docs/reference.md "Limits for each client"

    def over_limit(self, what: Counted, amount: int = 1) -> Reply | None:
        """Count this for the client, or return the refusal if it has had its share of this minute. Peers have no limits."""
        if (limits := self.reception.limits) is None or self.state.peer:
            return None
        return limits.take(self.state.address, what, amount, self.loop.time())

    def end_when_idle(self) -> None:
        """The node takes no mail: the session ends now, or after its transaction. A peer's session stays, to fetch notifications."""
        self._is_draining = True
        if not self.is_busy and not self.state.peer:
            self._hang_up_drained()

    def _hang_up_drained(self) -> None:
        self.hang_up(self.reception.closed_with or SHUTTING_DOWN, "drain")

    def is_waited_for(self) -> bool:
        """The node is stopping and waits for this session."""
        return self.is_busy if self.state.peer else self._is_draining

    # commands

    def refuse(self, reply: Reply, *, is_error: bool = True) -> None:
        """A negative reply. Protocol errors are counted; one too many ends the session.

        A peer's errors do not: it is trusted, and would repeat them in a new session."""
        self.state.refused_count += 1
        self.peer.refused()
        if is_error and reply.code in PROTOCOL_ERROR_CODES and not self.state.peer:
            self.state.errors_count += 1
            if self.state.errors_count > self.reception.connector.max_protocol_errors:
                self.hang_up(TOO_MANY_ERRORS, "too many errors")
                return
        self.say(reply)

    async def _handle_client(self) -> None:
        """The session's command loop. The name is aiosmtpd's."""
        try:
            if self._awaits_header and self._refused_at_once is None and not await self._takes_header():
                return
            if (refusal := self._refusal_at_greeting()) is not None:
                self.hang_up(refusal, "drain" if self._refused_at_once is None else "too many sessions")
                return
            if self.reception.limits is not None and await self._is_early():
                self.hang_up(OUT_OF_STEP, "early talker")
                return
            self.say(self.greeting)
            reader, state = self.own_reader, self.state
            while not self._is_ending and self.transport is not None:
                is_flood = self._replies_octets > REPLIES_OCTETS_MAX
                line = reader.take_line() if reader.buffered and not is_flood else None
                if line is not None:
                    name, command, argument = self._parsed(line)
                    if command is not None:
                        try:
                            if state.peer and (self.peer.heard_at != reader.progress_at or name in EXCHANGE_STARTS):
                                self.peer.heard(name, reader.progress_at)
                            if name in FRUITLESS and not (state.peer and name == "MAIL"):  # it leads to no mail by itself
                                await self.led_nowhere()
                            await command(self, argument)
                        except Exception as error:
                            if not self._is_answered(name, error):
                                raise
                elif self._replies and self._write():
                    await self._drained()
                elif is_flood:
                    await asyncio.sleep(0)  # let other sessions run: neither reading nor writing blocked
                else:
                    try:
                        await reader.more()
                    except asyncio.LimitOverrunError as overrun:
                        await self._skip_line(overrun.consumed)
                        self.refuse(COMMAND_TOO_LONG)
                if self._is_draining and self.is_idle() and not state.peer:
                    self._hang_up_drained()
                if self._is_old and not self.is_busy:
                    self.hang_up(TIMED_OUT, "timeout")
        except (OSError, asyncio.IncompleteReadError):
            self.hang_up(None, "lost")
        except Exception:
            _log.exception("session.failed", client=self.state.address)
            self.hang_up(FAILED_IN_CONTENT, "failed")
        finally:
            self._is_handled = True
            if self.transport is None:
                self.ended()

    # commands that lead to no mail: `fruitless_commands`

    def patience(self) -> int:
        """How many times what a stranger may do without mail this client may."""
        if self.state.peer:
            return PEER_FACTOR
        return TRUSTED_FACTOR if self.is_trusted else 1

    async def was_misplaced(self) -> None:
        """A command found no transaction, or no recipient. Raises: ConnectionError if the session ends."""
        if self.state.fruitless.is_misplaced_one_too_many():
            await self.led_nowhere()

    async def led_nowhere(self) -> None:
        """A command leads to no mail. Raises: ConnectionError if the session ends."""
        if self.state.fruitless.led_nowhere():
            await self.keep_pace(self.state.fruitless.pace(self.patience()))

    async def keep_pace(self, pace: Pace) -> None:
        """The client goes on, waits, or goes. Raises: ConnectionError if the session ends."""
        if pace is Pace.NOT_AT_ALL:
            self.hang_up(TOO_MANY_COMMANDS, "too many commands")
            raise ConnectionResetError("the session ended: too many commands")
        if pace is Pace.SLOWLY:
            await self.hold_back(DELAY_SECONDS)

    async def _skip_line(self, consumed: int) -> None:
        while True:
            await self._reader.readexactly(consumed)
            try:
                await self._reader.readuntil(b"\n")
                return
            except asyncio.LimitOverrunError as overrun:
                consumed = overrun.consumed

    def _parsed(self, line: bytes) -> tuple[str, Command | None, str]:
        """The verb, the command and its argument; no command if the line was refused."""
        end = line.find(b"\r")  # the line ends with its only LF; an expression takes 4 µs for the envelope of a copy
        if end < 0 or end != len(line) - 2:
            self.hang_up(BARE_CR_OR_LF, "bare CR or LF")
            return "", None, ""
        verb, _, octets = line[:end].partition(b" ")
        name = _name_of(verb)
        command = self.commands.get(name)
        if command is None and self.reception.connector.lenient_addresses and (found := _BLANKS.fullmatch(line, 0, end)):
            name, octets = _name_of(found[1]), found[2]
            command = self.commands.get(name)
        if command is None:
            self._unknown(name)  # however long: AUTH may have 12,288 octets. RFC 4954 4
            return name, None, ""
        if len(line) > COMMAND_OCTETS_MAX and len(line) > COMMAND_OCTETS_MAX_BY_VERB.get(name, COMMAND_OCTETS_MAX):
            self.refuse(COMMAND_TOO_LONG)
            return name, None, ""
        if self.reception.connector.require_tls and not self.state.tls and name not in BEFORE_TLS:
            self.refuse(TLS_FIRST)
            return name, None, ""
        try:
            return name, command, octets.decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(NOT_UTF8)
            return name, None, ""

    def _is_answered(self, name: str, error: Exception) -> bool:
        """Reply to a command that failed; False if the connection is lost. The caller raises the error then: raised from here, it would
        form a cycle with this frame, which keeps the session's memory."""
        if isinstance(error, WireError):
            self.refuse(error.reply)
        elif isinstance(error, LedgerUnavailable):
            self._failed(name, error, error.reply)
        elif isinstance(error, ConnectionError | asyncio.IncompleteReadError) or (isinstance(error, OSError) and self.transport is None):
            return False
        else:
            self._failed(name, error, LOCAL_ERROR)
        return True

    def _failed(self, name: str, error: Exception, reply: Reply) -> None:
        """A failure on this side: a transient reply without details, except an id to look up in the log."""
        log_id = uuid.uuid4().hex[:12]
        trace = None if isinstance(error, LedgerUnavailable) else error  # a full disk is not a bug: no traceback
        _log.error("session.failed", log_id=log_id, command=name, client=self.state.address, error=repr(error), exc_info=trace)
        self.state.refused_count += 1
        self.peer.refused()
        self.after_failure(Reply(reply.code, reply.enhanced, f"{reply.text} (log id {log_id})"))

    def _unknown(self, name: str) -> None:
        if name in HTTP_VERBS:
            self.hang_up(NO_SMTP_CLIENT, "HTTP")
        elif name == "PROXY":  # what follows would seem to come from the load balancer
            self.hang_up(PROXY_DENIED, "PROXY header from elsewhere")
        else:
            self.refuse(NOT_IMPLEMENTED if name in VERBS_NOT_IMPLEMENTED else UNKNOWN_COMMAND)

    def after_failure(self, reply: Reply) -> None:
        """Reply to a command that failed on this side, and prepare for the next transaction. For subclasses."""
        self.say(reply)


class BoundedReading(asyncio.BufferedProtocol):
    """A session's interface to the transport: its reader limits how much is read. A `Connection` cannot do that itself, because aiosmtpd's
    class is an `asyncio.Protocol`, which receives whatever is there: up to 256 KiB at a time."""

    __slots__ = ("_session", "buffer_updated", "get_buffer")

    def __init__(self, session: Connection) -> None:
        self._session = session
        self.get_buffer, self.buffer_updated = session.own_reader.get_buffer, session.own_reader.buffer_updated  # type: ignore[assignment, method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._session.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        self._session.connection_lost(error)

    def eof_received(self) -> bool | None:
        """The client closed its side."""
        return self._session.eof_received()

    def pause_writing(self) -> None:
        """The client does not read its replies."""
        self._session.pause_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._session.resume_writing()


def report_every_unwritten_octet(transport: asyncio.BaseTransport) -> None:
    """Have `pause_writing` called as soon as the kernel does not accept a whole reply."""
    assert hasattr(transport, "set_write_buffer_limits")  # uvloop's transports are not asyncio.Transport instances
    transport.set_write_buffer_limits(high=1)  # not 0: TLS pauses at the limit, and would stay paused for ever


@lru_cache(64)
def _name_of(verb: bytes) -> str:
    return verb.decode("ascii", "replace").upper()


@lru_cache(64)
def reply_line(reply: Reply) -> bytes:
    """A reply as sent. Most replies are constants, so this is cached."""
    return f"{reply}\r\n".encode()


def _number_of(transport: asyncio.BaseTransport) -> int:
    """The connection's descriptor; -1 if it has none: connections within one process, in tests."""
    socket = transport.get_extra_info("socket")
    number: object = getattr(socket, "fileno", int)()
    return number if isinstance(number, int) else -1
