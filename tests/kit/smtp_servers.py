"""The next hop and the peer of tests: an SMTP server that does as it is told, mostly wrong; and a small DNS server.

A scripted server answers each verb from its script: a text, a list of texts (one a time, the last one for ever), or one
of the failures below. It reads strictly: a line that does not end in CRLF, or a bare CR or LF in content, is a failure
that `stop` raises.
"""

import asyncio
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

_last_lines = re.compile("^[2-5][0-9]{2}(?: .*|)$", re.MULTILINE).findall  # of replies: what comes of them
CLOSE = "(close)"  # close the connection instead of answering
HANG = "(hang)"  # never answer

EXTENSIONS = ("PIPELINING", "8BITMIME", "SMTPUTF8", "SIZE 10000000", "DSN")
Answer = str | Callable[[str], str | Awaitable[str]]
NO_TLS = b"this is no TLS record\r\n"


@dataclass
class Session:
    """What one connection said. `recipients` are those that were accepted since the last MAIL."""

    writer: asyncio.StreamWriter
    lines: list[str] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)  # of BDAT
    blocks_before: int = 0  # the last MAIL
    recipients: list[str] = field(default_factory=list)
    content: bytes = b""
    client: str = ""
    is_tls: bool = False

    @property
    def address(self) -> str:
        """In the last MAIL or RCPT."""
        return self.lines[-1].partition("<")[2].partition(">")[0]

    @property
    def host(self) -> str:
        """The client's address."""
        return str(self.writer.get_extra_info("peername")[0])


@dataclass
class ScriptedServer:
    """`script`: by verb (`GREETING`, `EHLO`, `MAIL`, …, `DOT` for the end of content, `XSHADOW COMMIT`). A subclass may override
    `answer`, and a network without sockets may serve `factory`.

    STARTTLS among `extensions` without a `tls` context is a broken promise: the handshake is answered with something else.
    Units: `seconds_per_octet` passes before each octet of a reply.
    """

    script: Mapping[str, Answer | Sequence[Answer]] = field(default_factory=dict)
    extensions: tuple[str, ...] = EXTENSIONS
    tls: ssl.SSLContext | None = None
    is_tls_first: bool = False  # as on port 465
    seconds_per_octet: float = 0.0
    sessions: list[Session] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    open_count: int = 0
    open_count_max: int = 0
    port: int = 0
    on_hang: Callable[[], None] = lambda: None  # called when it begins never to answer
    _used: Counter[str] = field(default_factory=Counter)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    failures: list[BaseException] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        first = self.tls if self.is_tls_first else None
        self._server = await asyncio.get_running_loop().create_server(self.factory, "127.0.0.1", self.port, ssl=first)
        self.port = self._server.sockets[0].getsockname()[1]

    def factory(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=64 * 1024 * 1024), self._accept)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(3):  # a connection may be just accepted, and an ended one closes in the next turn of the loop
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)
        await self._server.wait_closed()
        if self.failures:
            raise self.failures[0]

    @property
    def lines(self) -> list[str]:
        """Of all sessions, in order."""
        return [line for session in self.sessions for line in session.lines]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open_count += 1
        self.open_count_max = max(self.open_count_max, self.open_count)
        session = Session(writer, is_tls=self.is_tls_first)
        self.sessions.append(session)
        try:
            await self._converse(session, reader)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            self.open_count -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _converse(self, session: Session, reader: asyncio.StreamReader) -> None:
        if not await self._reply("GREETING", session, "220 test ESMTP", reader):
            return
        while line := await _line(reader):
            session.lines.append(line)
            words = line.upper().split(" ", 2)
            verb = " ".join(words[:2]) if words[:2] in (["XSHADOW", "ENVELOPE"], ["XSHADOW", "COMMIT"]) else words[0]
            if verb == "BDAT":
                session.blocks.append(await reader.readexactly(int(words[1].split()[0])))
            elif line.upper().startswith("XQDISCARD STATUS BDAT "):
                session.blocks.append(await reader.readexactly(int(line.rsplit(" ", 1)[1])))
            elif verb == "EHLO":
                session.client = line[5:].strip()
            elif verb == "MAIL":
                session.recipients = []
            said = await self._reply(verb, session, self._default(verb), reader)
            if not said or verb == "QUIT":
                return
            if verb != "STARTTLS":
                said = (_last_lines(said) or [said])[-1]
            if verb == "BDAT" and line.upper().endswith(" LAST") and said.startswith("2"):
                session.content = b"".join(session.blocks[session.blocks_before :])
                self.messages.append(session.content)
            if verb == "MAIL":
                session.blocks_before = len(session.blocks)
            if verb == "RCPT" and said.startswith("2"):
                session.recipients.append(session.address)
            if verb == "DATA" and said.startswith("3"):
                session.content = await _content(reader)
                self.messages.append(session.content)
                if not await self._reply("DOT", session, "250 2.0.0 taken", reader):
                    return
            if verb == "STARTTLS" and said.startswith("220"):
                if self.tls is None:
                    await reader.read(1)
                    session.writer.write(NO_TLS)
                    await session.writer.drain()
                    return
                await session.writer.start_tls(self.tls)
                session.is_tls = True

    def _default(self, verb: str) -> str:
        if verb == "EHLO":
            extensions = (*self.extensions, "STARTTLS") if self.tls is not None and not self.is_tls_first else self.extensions
            *more, last = ("test", *extensions)
            return "\r\n".join([*(f"250-{text}" for text in more), f"250 {last}"])
        known = {"DATA": "354 go on", "QUIT": "221 2.0.0 bye", "STARTTLS": "220 go", "XSHADOW COMMIT": "250 2.0.0 held position=1"}
        return known.get(verb, "250 2.0.0 ok")

    async def answer(self, verb: str, session: Session, default: str) -> str:
        """What the script says."""
        answer = self.script.get(verb, default)
        if not isinstance(answer, str) and not callable(answer):
            used = self._used[verb]
            self._used[verb] += 1
            answer = answer[min(used, len(answer) - 1)]
        text = answer("" if verb in ("GREETING", "DOT") else session.lines[-1]) if callable(answer) else answer
        return text if isinstance(text, str) else await text

    async def _reply(self, verb: str, session: Session, default: str, reader: asyncio.StreamReader) -> str:
        """What was said; empty if the connection is to end."""
        writer = session.writer
        text = await self.answer(verb, session, default)
        if text == CLOSE:
            return ""
        if text == HANG:
            self.on_hang()
            await reader.read()  # until the client goes
            return ""
        octets = text.encode("utf-8", "surrogateescape") + b"\r\n"
        if self.seconds_per_octet:
            for octet in octets:
                await asyncio.sleep(self.seconds_per_octet)
                writer.write(bytes((octet,)))
        else:
            writer.write(octets)
        await writer.drain()
        return "" if text.rpartition("\n")[2].startswith("421") else text  # alone, or after the reply that was due


async def _line(reader: asyncio.StreamReader) -> str:
    """A command without CRLF; empty at the end."""
    line = await reader.readline()
    if line and not line.endswith(b"\r\n"):
        raise AssertionError(f"a line without CRLF: {line[-80:]!r}") if line.endswith(b"\n") else ConnectionError
    return line[:-2].decode("utf-8")


async def _content(reader: asyncio.StreamReader) -> bytes:
    """Content up to the final dot, unstuffed line by line."""
    lines: list[bytes] = []
    while (line := await reader.readuntil(b"\r\n")) != b".\r\n":
        assert line.count(b"\n") == 1, f"a bare LF: {line!r}"
        assert line.count(b"\r") == 1, f"a bare CR: {line!r}"
        lines.append(line[1:] if line.startswith(b".") else line)
    return b"".join(lines)


@asynccontextmanager
async def serving(*servers: ScriptedServer) -> AsyncIterator[None]:
    """Start and stop them."""
    for server in servers:
        await server.start()
    try:
        yield
    finally:
        for server in servers:
            await server.stop()


class DnsServer(asyncio.DatagramProtocol):
    """Answers from `zone`: (name, type) to texts of records; a `dns.rcode.Rcode`; or None for silence. `negative_seconds`: what the
    SOA record says for names and records that do not exist; without it there is none. `late_names` wait for `answer`."""

    def __init__(self, zone: Mapping[tuple[str, str], Sequence[str] | dns.rcode.Rcode | None]) -> None:
        self.zone = zone
        self.asked: list[tuple[str, str]] = []
        self.negative_seconds: int | None = None
        self.late_names: set[str] = set()
        self._kept: list[tuple[bytes, tuple[str | Any, int]]] = []
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        key = (question.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(question.rdtype))
        self.asked.append(key)
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        found = self.zone.get(key, ())
        if found is None:
            return
        if isinstance(found, dns.rcode.Rcode):
            response.set_rcode(found)
        elif found:
            response.answer.append(dns.rrset.from_text(question.name, 60, "IN", key[1], *found))
        if not response.answer and self.negative_seconds is not None:
            soa = f"ns.example. root.example. 1 1 1 1 {self.negative_seconds}"
            response.authority.append(dns.rrset.from_text("example.", 3600, "IN", "SOA", soa))
        if key[0] in self.late_names:
            self._kept.append((response.to_wire(), addr))
            return
        assert self._transport is not None
        self._transport.sendto(response.to_wire(), addr)

    def answer(self) -> None:
        """What was kept for later."""
        assert self._transport is not None
        for response, addr in self._kept:
            self._transport.sendto(response, addr)
        self._kept.clear()


@asynccontextmanager
async def name_server(zone: Mapping[tuple[str, str], Sequence[str] | dns.rcode.Rcode | None]) -> AsyncIterator[tuple[DnsServer, int]]:
    """A DNS server and its port."""
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(lambda: DnsServer(zone), ("127.0.0.1", 0))
    try:
        yield server, transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


class CancelledAt:
    """Awaits a coroutine and cancels its task at the n-th suspension; `was_reached` tells whether there was one."""

    def __init__(self, work: Coroutine[Any, Any, Any], suspension: int) -> None:
        self._work = work
        self._suspension = suspension
        self.was_reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        step: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        for count in range(1, 1_000_000):
            try:
                future = step()
            except StopIteration as end:
                return end.value
            if count == self._suspension:
                self.was_reached = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield future
            except BaseException as error:
                caught = error
                step = lambda: steps.throw(caught)  # noqa: E731, B023
            else:
                step = lambda: next(steps)  # noqa: E731
        raise AssertionError("it never ends")


async def cancelled_at(work: Awaitable[Any]) -> None:
    """Await it in a task of its own and swallow the cancellation."""

    async def run() -> None:
        await work

    await asyncio.gather(asyncio.ensure_future(run()), return_exceptions=True)
