"""Opens client sessions: connection, greeting, EHLO, STARTTLS. RFC 5321 4.5.3.2, RFC 7435.

aiosmtplib does the connection, greeting, EHLO and STARTTLS; then its transport is taken over. It is given a connected socket and no
timeout, because its wait_for leaks sockets when cancelled. Instead `asyncio.timeout` bounds everything, and an opening that fails or
is cancelled leaves no open connection.
"""

import asyncio
import contextlib
import errno
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import cast

import aiosmtplib
from aiosmtplib.esmtp import parse_esmtp_extensions

from shadowrelay.model.client_address import client_ip
from shadowrelay.model.counts import TlsFailure
from shadowrelay.model.protection import SMTPS
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass
from shadowrelay.smtp.client_session import (
    CONNECTION_FAILED,
    CONNECTION_LOST,
    SERVICE_CLOSING,
    TIMED_OUT,
    TLS_FAILED,
    OpeningClient,
    Pipeline,
    SessionBroken,
    on_behalf,
    reason_of,
    reply_from,
)
from shadowrelay.trust import Chain, PeerTrust, chain_of, not_verified

CONNECT_SECONDS = 30.0  # our choice: a dead address must not delay an attempt by the usual five minutes
GREETING_SECONDS = 300.0  # RFC 5321 4.5.3.2.1
COMMAND_SECONDS = 300.0  # RFC 5321 4.5.3.2.2, for EHLO and STARTTLS too
KEEPALIVE = (  # firewalls forget connections that are silent, and dead servers never say so
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)
IP_BIND_ADDRESS_NO_PORT = 24  # of Linux; Python has no name for it
NOT_IN_A_HOST_NAME = re.compile(r"[^!-~]")

Dial = Callable[..., Awaitable[socket.socket]]
"""Takes a `HostPort`, and the addresses to connect from if there are any. Returns a connected, non-blocking socket, or raises OSError."""


class TlsUse(Enum):
    """How a session is protected."""

    NEVER = "never"
    OPPORTUNISTIC = "opportunistic"  # if offered, with any certificate; after a failure, retry without TLS. RFC 7435
    REQUIRED = "required"  # as the context demands, and `refusal_of_server`


async def dial(
    host: HostPort,
    source: Sequence[str] = (),
    refuses: Callable[[int], bool] = lambda number: False,
    is_own: Callable[[HostPort], bool] = lambda host: False,
) -> socket.socket:
    """Connect to an address. Names need `host_names.HostNames`: this function never waits for the system's resolver.

    `source`: addresses to connect from, of which that of the family counts.
    `refuses` tells whether a descriptor's number is too high (`limits.Descriptors`), `is_own` whether the address is this node's.
    Raises OSError.
    """
    if is_own(host):
        raise OSError(errno.ELOOP, "this is an address of this server: mail would come back")
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host.host).version == 6 else socket.AF_INET
    except ValueError:
        raise OSError(f"{host.host} is a name") from None
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        if refuses(connection.fileno()):
            raise OSError(errno.EMFILE, "this server has as many connections open as it may")
        connection.setblocking(False)
        for address in source:
            if (":" in address) == (family == socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)  # the port is chosen for this connection only
                connection.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(connection, (host.host, host.port))
        # The final dot and the next command must not wait for each other's acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for level, option, value in KEEPALIVE:
            connection.setsockopt(level, option, value)
    except BaseException:
        connection.close()
        raise
    return connection


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """How to open sessions. Units: seconds."""

    own_name: str
    tls: TlsUse = TlsUse.NEVER
    context: ssl.SSLContext | None = None
    dial: Dial = dial
    connect_seconds: float = CONNECT_SECONDS
    greeting_seconds: float = GREETING_SECONDS
    command_seconds: float = COMMAND_SECONDS
    not_opened: Callable[[HostPort], None] = lambda host: None  # called where a connected server gave no session
    trust: PeerTrust | None = None  # for peers: what else the server's certificate must satisfy
    refusal: Callable[[ssl.SSLObject, str], str] | None = None  # for next hops: likewise, why it does not; "" if it does
    helo_after_4xx: bool = True  # to EHLO; else it counts as a refusal
    login: Callable[[aiosmtplib.SMTP], Awaitable[str]] | None = None  # after TLS: logs in, and says how and who


@dataclass(slots=True, eq=False)
class Opened:
    """An open session: `extensions` by lower-case keyword; `server` is "name [address]:port"."""

    pipeline: Pipeline
    extensions: Mapping[str, str]
    server: str
    is_tls: bool
    messages_count: int = 0  # messages sent in this session, and questions
    refused_count: int = 0  # questions answered 5xx
    address: str = ""  # the server's, as a client of ours would have it
    called: str = ""  # the server's name for itself, in its reply to EHLO
    is_of_client: bool = False  # it was given to one client by XCLIENT
    shown: Chain = ()  # the server's certificate, where it was verified
    tls_failure: "TlsFailed | None" = None  # why there is no TLS, although the server offers it
    tls: str = ""  # what protects it, like "TLSv1.3,verified"
    login: str = ""  # mechanism and user of AUTH
    put_off: Reply | None = None  # to EHLO, before HELO was taken: another session may have extensions


async def open_session(host: HostPort, name: str, options: ConnectOptions, early: bytes = b"") -> Opened:
    """Return a session after its last EHLO. `name` is the server's expected name: for TLS and in logs. `early`: a line that goes out in one
    write with that EHLO, to a server that is known to take it; its reply is not read here.

    Raises: SessionBroken; its reply is the server's own if the server refused.
    """
    if NOT_IN_A_HOST_NAME.search(name) or not name:
        raise SessionBroken(Reply(CONNECTION_FAILED.code, CONNECTION_FAILED.enhanced, f"{name!r} is no host name"))
    try:
        return await _open(host, name, options, options.tls, early)
    except TlsFailed as failed:
        if options.tls is TlsUse.REQUIRED or host.scheme == SMTPS:
            raise
        tls_failure = TlsFailed(failed.reply, failed.why)  # without its traceback
    session = await _open(host, name, options, TlsUse.NEVER)
    session.tls_failure = tls_failure
    return session


class TlsFailed(SessionBroken):
    """The connection worked, and TLS did not."""

    def __init__(self, reply: Reply, why: TlsFailure) -> None:
        super().__init__(reply)
        self.why = why


def tls_failed(error: Exception) -> TlsFailed:
    """What an error in the handshake, or right after it, means."""
    is_certificate = isinstance(error, ssl.SSLCertVerificationError)
    reply = TLS_FAILED._replace(text=f"{TLS_FAILED.text}: {reason_of(error)}"[:300])
    return TlsFailed(reply, TlsFailure.CERTIFICATE if is_certificate else TlsFailure.HANDSHAKE)


async def _open(host: HostPort, name: str, options: ConnectOptions, tls: TlsUse, early: bytes = b"") -> Opened:
    connection = await _connected(host, options)
    is_tls_first = host.scheme == SMTPS
    client = OpeningClient(sock=connection, local_hostname=options.own_name, timeout=None, start_tls=False)
    if is_tls_first:
        client.use_tls, client.tls_context, client.hostname = True, options.context, name.rstrip(".")
    try:
        async with _bounded(options.greeting_seconds, TIMED_OUT):
            await _await_greeting(client)
        if is_tls_first:
            _check_certificate(client, name, options)
        put_off: Reply | None = None
        if tls is not TlsUse.NEVER or not early:
            async with _bounded(options.command_seconds, TIMED_OUT):
                put_off = await _greet(client, options)
        if tls is not TlsUse.NEVER and not is_tls_first and client.supports_extension("starttls"):
            put_off = await _protect(client, name, options, is_greeted=not early)
        elif tls is TlsUse.REQUIRED and not is_tls_first:
            raise TlsFailed(TLS_FAILED._replace(text="The server does not offer STARTTLS"), TlsFailure.NOT_OFFERED)
        login = ""
        if options.login is not None:
            async with _bounded(options.command_seconds, TIMED_OUT):
                login = await options.login(client)
        session = None if client.transport is None else client.transport.get_extra_info("ssl_object")
        opened = _adopt_transport(client, host, name)
        opened.login, opened.put_off = login, put_off
        if session is not None:
            is_verified = options.trust is not None or options.refusal is not None
            opened.tls = f"{session.version() or 'TLS'}{',verified' if is_verified else ''}"
            if options.trust is not None:
                opened.shown = chain_of(session)
        if early:
            await _greet_early(opened, options, early)
        return opened
    except BaseException as error:
        options.not_opened(host)
        transport = client.transport
        client.close()
        if transport is not None:
            cast(asyncio.Transport, transport).abort()
        if isinstance(error, Exception) and not isinstance(error, SessionBroken):
            raise on_behalf(error) from error
        raise


async def _connected(host: HostPort, options: ConnectOptions) -> socket.socket:
    try:
        async with asyncio.timeout(options.connect_seconds):
            return await options.dial(host)
    except TimeoutError as error:
        raise SessionBroken(Reply(CONNECTION_FAILED.code, CONNECTION_FAILED.enhanced, f"{CONNECTION_FAILED.text}: timed out")) from error
    except (OSError, ValueError) as error:  # ValueError: UnicodeError of a name that IDNA does not allow
        text = f"{CONNECTION_FAILED.text}: {reason_of(error)}"
        raise SessionBroken(Reply(CONNECTION_FAILED.code, CONNECTION_FAILED.enhanced, text)) from error


async def _await_greeting(client: aiosmtplib.SMTP) -> None:
    try:
        await client.connect()
    except aiosmtplib.SMTPConnectResponseError:  # the greeting was a refusal
        raise
    except (OSError, aiosmtplib.SMTPServerDisconnected) as error:  # ssl.SSLError is an OSError
        if client.use_tls and isinstance(error, OSError):
            raise tls_failed(error) from error
        text = f"{CONNECTION_LOST.text} before the greeting"
        raise SessionBroken(Reply(CONNECTION_LOST.code, CONNECTION_LOST.enhanced, text)) from error


@contextlib.asynccontextmanager
async def _bounded(seconds: float, late: Reply) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise SessionBroken(late) from error


async def _greet(client: aiosmtplib.SMTP, options: ConnectOptions) -> Reply | None:
    """EHLO, else HELO. Returns why there are no extensions, if that may be otherwise another time."""
    try:
        await client.ehlo()
    except aiosmtplib.SMTPHeloError as error:
        is_put_off = 400 <= error.code < 500
        if error.code in (SERVICE_CLOSING, -1) or not client.is_connected or (is_put_off and not options.helo_after_4xx):
            raise
        # RFC 5321 4.1.4 after 5xx; and as other clients do after 4xx, and after a success that is none: 251, 354
        await client.helo()
        return reply_from(error.code, error.message.split("\n")) if is_put_off else None
    return None


async def _greet_early(opened: Opened, options: ConnectOptions, early: bytes) -> None:
    """The last EHLO, with another line behind it: aiosmtplib waits for each reply."""
    pipeline = opened.pipeline
    try:
        pipeline.write(b"EHLO %s\r\n%s" % (options.own_name.encode("ascii"), early), 2)
        answer = await pipeline.answer(options.command_seconds)
        if answer.code != 250:
            raise SessionBroken(answer.reply, is_refusal=400 <= answer.code)
    except BaseException:
        pipeline.abort()
        raise
    opened.called = answer.lines[0].partition(" ")[0].rstrip(".").lower()
    opened.extensions = parse_esmtp_extensions("\n".join(answer.lines))[0]


async def _protect(client: aiosmtplib.SMTP, name: str, options: ConnectOptions, *, is_greeted: bool) -> Reply | None:
    """STARTTLS, and then EHLO if it `is_greeted` here: see `_greet`."""
    try:
        async with asyncio.timeout(options.command_seconds):
            await client.starttls(server_hostname=name.rstrip("."), tls_context=options.context)
            _check_certificate(client, name, options)
            return await _greet(client, options) if is_greeted else None
    except (aiosmtplib.SMTPException, OSError, ValueError) as error:  # OSError: ssl.SSLError and TimeoutError are ones
        raise tls_failed(error) from error


def _check_certificate(client: aiosmtplib.SMTP, name: str, options: ConnectOptions) -> None:
    """Before anything is said that the server might not be meant to hear. Raises: TlsFailed."""
    refusal = options.refusal if options.trust is None else options.trust.refusal_of_server
    if refusal is None or client.transport is None:
        return
    if reason := refusal(client.transport.get_extra_info("ssl_object"), name):
        raise tls_failed(not_verified(reason))


def _adopt_transport(client: aiosmtplib.SMTP, host: HostPort, name: str) -> Opened:
    protocol = client.protocol
    if client.transport is None or protocol is None:
        raise SessionBroken(CONNECTION_LOST)
    transport = cast(asyncio.Transport, client.transport)
    peer = transport.get_extra_info("peername")
    address = str(peer[0]) if isinstance(peer, tuple) else host.host
    is_tls = transport.get_extra_info("sslcontext") is not None
    extensions = dict(client.esmtp_extensions)
    called, *_ = (client.last_ehlo_response.message if client.last_ehlo_response is not None else "").split(maxsplit=1) or [""]
    pipeline = Pipeline(transport)
    pipeline.skips_nonsense = "pipelining" not in extensions
    transport.set_protocol(pipeline)
    if protocol._buffer:  # what was said behind the last reply
        pipeline.data_received(bytes(protocol._buffer))
    if pipeline.broken is not None:
        raise pipeline.broken.error()
    client.protocol = client.transport = None  # the client must not close the transport that was taken over
    server = f"{name} [{address}]:{host.port}"
    return Opened(pipeline, extensions, server, is_tls, address=client_ip(peer), called=called.rstrip(".").lower())
