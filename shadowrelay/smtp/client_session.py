"""The client side of open SMTP sessions: pipelined writes, counted replies, errors. RFC 5321 4.2, RFC 2920.

aiosmtplib awaits each reply before the next command and rewrites line ends, so its transport is taken over (`client.py`). The rule
here: replies are counted. Each write states how many replies it will get; unsolicited data, a malformed or oversized reply, or a
421 ends the session, because later replies could no longer be matched to commands. Of a reply whose lines have different codes the last one
counts, as for other clients; but nothing is returned by a reply of which a line says otherwise, nor does it count as delivered; nor by the
last reply that was owed, where one that came with it says otherwise (`surplus`). What a next hop says at length is cut, as other clients do
it, and not refused: its mail would wait until it expires. So do empty lines not count, nor lines that are no reply where it does not offer
PIPELINING, and a greeting may have any code of success. A peer's reply has a meaning in each line, and is not cut.

No other package uses a class of aiosmtplib, ssl, socket or dns. `LIBRARY_ERRORS` is the only table that maps their exceptions; a test walks
the libraries' class trees, so that a new class fails the test. An unknown exception counts as transient (CONTRIBUTING.md "Errors").
"""

import asyncio
import os
import re
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import aiosmtplib
from aiosmtplib.protocol import SMTPProtocol

from shadowrelay.model.printable import printable
from shadowrelay.model.replies import DeliveryError, PermanentDeliveryError, Reply, ShadowrelayError, TransientDeliveryError

TEXT_CHARACTERS_MAX = 1000  # of a server's reply, for logs, rows and DSNs
ENHANCED = re.compile(r"([245]\.[0-9]{1,3}\.[0-9]{1,3})(?:[ \t]+|$)")  # RFC 2034

CONNECTION_FAILED = Reply(451, "4.4.1", "Could not connect to the server")  # RFC 3463 X.4.1
CONNECTION_LOST = Reply(451, "4.4.2", "Connection lost")  # RFC 3463 X.4.2
TIMED_OUT = Reply(451, "4.4.2", "Timed out waiting for the server")
TLS_FAILED = Reply(451, "4.7.5", "TLS could not be negotiated")  # RFC 3463 X.7.5
BROKEN_REPLY = Reply(451, "4.5.0", "The server's reply broke the protocol")  # RFC 3463 X.5.0
UNSUPPORTED = Reply(451, "4.5.1", "The server does not know the command")

# The first class that matches is used, so specific classes come before their bases.
LIBRARY_ERRORS: Final[tuple[tuple[type[Exception], Reply], ...]] = (
    (aiosmtplib.SMTPConnectTimeoutError, CONNECTION_FAILED),
    (aiosmtplib.SMTPReadTimeoutError, TIMED_OUT),
    (aiosmtplib.SMTPTimeoutError, TIMED_OUT),
    (aiosmtplib.SMTPConnectResponseError, BROKEN_REPLY),
    (aiosmtplib.SMTPConnectError, CONNECTION_FAILED),
    (aiosmtplib.SMTPServerDisconnected, CONNECTION_LOST),
    (aiosmtplib.SMTPHeloError, BROKEN_REPLY),
    (aiosmtplib.SMTPDataError, BROKEN_REPLY),
    (aiosmtplib.SMTPAuthenticationError, BROKEN_REPLY),
    (aiosmtplib.SMTPSenderRefused, BROKEN_REPLY),
    (aiosmtplib.SMTPRecipientRefused, BROKEN_REPLY),
    (aiosmtplib.SMTPRecipientsRefused, BROKEN_REPLY),
    (aiosmtplib.SMTPResponseException, BROKEN_REPLY),
    (aiosmtplib.SMTPNotSupported, UNSUPPORTED),
    (aiosmtplib.SMTPException, BROKEN_REPLY),
    (ssl.SSLError, TLS_FAILED),
    (TimeoutError, TIMED_OUT),
    (ConnectionRefusedError, CONNECTION_FAILED),
    (ConnectionError, CONNECTION_LOST),
    (OSError, CONNECTION_FAILED),
    (ValueError, BROKEN_REPLY),  # an argument that the library refuses to send, or an invalid name
)


class SessionBroken(ShadowrelayError):
    """The session cannot continue; never leaves this package.

    `reply` is the server's (a 421), or one made on its behalf. `is_refusal`: the server sent it.
    """

    def __init__(self, reply: Reply, *, is_refusal: bool = False) -> None:
        super().__init__(str(reply))
        self.reply = reply
        self.is_refusal = is_refusal


class Breakage(NamedTuple):
    """Why a session broke. Stored instead of an exception; each waiter gets a new exception made from it.

    A stored exception that is raised repeatedly collects tracebacks, which keep every frame that handled it alive, with the
    content in these frames.
    """

    reply: Reply
    is_refusal: bool = False

    def error(self) -> SessionBroken:
        """A new exception each time."""
        return SessionBroken(self.reply, is_refusal=self.is_refusal)


_tuple = tuple.__new__  # same as the NamedTuple's constructor, without a Python call


def reply_from(code: int, lines: Sequence[str]) -> Reply:
    """Convert a reply to `Reply`: one line of text, the enhanced code separate, printable, bounded.

    Shapes: `lines` without their codes, at least one.
    """
    first = ENHANCED.match(lines[0])
    if len(lines) == 1 and first is not None:  # the common case
        text = lines[0][first.end() :]
        return _tuple(Reply, (code, first[1], (text if text.isprintable() else printable(text))[:TEXT_CHARACTERS_MAX]))
    texts = [ENHANCED.sub("", line, count=1) if ENHANCED.match(line) else line for line in lines]
    text = printable(" ".join(texts)).strip()
    return Reply(code, first[1] if first is not None else "", text[:TEXT_CHARACTERS_MAX])


def on_behalf(error: Exception) -> SessionBroken:
    """What `error`, raised by a library or the system, means for the session in which it happened."""
    if isinstance(error, SessionBroken):
        return error
    if isinstance(error, aiosmtplib.SMTPResponseException) and 400 <= error.code < 600:
        return SessionBroken(reply_from(error.code, error.message.split("\n")), is_refusal=True)
    generic = next((reply for kind, reply in LIBRARY_ERRORS if isinstance(error, kind)), CONNECTION_LOST)
    detail = reason_of(error).strip()[:200]
    return SessionBroken(Reply(generic.code, generic.enhanced, f"{generic.text}: {detail}"))


def was_cut(error: Exception) -> bool:
    """Whether a connection was refused, or ended without a word, by the other side or on the way."""
    while type(error) is SessionBroken and isinstance(error.__cause__, Exception):  # not its subclasses: TLS has answers of its own
        error = error.__cause__
    return isinstance(error, ConnectionError) and not isinstance(error, TimeoutError | aiosmtplib.SMTPResponseException)


def reason_of(error: Exception) -> str:
    """What went wrong, in the words of OpenSSL, the system or a server, without Python's; printable."""
    return printable(_reason_of(error))


def _reason_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        said = getattr(error, "verify_message", "") or (getattr(error, "reason", "") or str(error)).replace("_", " ").lower()
        return f"certificate verify failed: {said}" if isinstance(error, ssl.SSLCertVerificationError) else str(said)
    if isinstance(error, OSError) and error.errno and error.strerror:  # asyncio's text is "Connect call failed" for every reason
        return os.strerror(error.errno).lower() if error.strerror.startswith("Connect call failed") else error.strerror.lower()
    if isinstance(error, aiosmtplib.SMTPResponseException):  # its text is a tuple
        return error.message
    return str(error) or type(error).__name__


def failure(reply: Reply, server: str, *, is_connection: bool = False, dot_sent_unanswered: bool = False) -> DeliveryError:
    """The delivery error for a negative reply: only 5xx is permanent."""
    kind = PermanentDeliveryError if reply.is_permanent else TransientDeliveryError
    return kind(reply, server, is_connection=is_connection, dot_sent_unanswered=dot_sent_unanswered)


_part_of_line = re.compile(rb"[^\n]*\n|[^\n]+")
_empty_line = re.compile(rb"\r*\n").match
_code = re.compile(rb"[2-5][0-9][0-9][ \r-]").match
_reply_line = re.compile(rb"([2-5][0-9][0-9])(?:([ -])([^\n]*)|\r*)\n").match  # some servers and filters end a line with two CRs
_surplus_codes = re.compile(rb"^(?![24]21)[2-5][0-9][0-9](?=[ \r-])", re.MULTILINE).findall  # a goodbye takes nothing back
# What nearly always arrives: whole replies in ASCII, of one line each, or one of several lines, and none that ends the session.
_are_short = re.compile(rb"(?:(?!421)[2-5][0-9][0-9] [ -~]{0,500}\r\n)+").fullmatch
_is_long = re.compile(rb"(?!421)([2-5][0-9][0-9])-[ -~]{0,999}\r\n(?:\1-[ -~]{0,999}\r\n)*\1 [ -~]{0,999}\r\n").fullmatch
_short_replies = re.compile(r"([2-5][0-9][0-9]) ([ -~]*)\r\n").findall
SAYS_BOTH = f"{BROKEN_REPLY.enhanced} The lines of the reply differ"
NONSENSE_SECONDS = 10.0  # for a reply after a line that is none
LINE_OCTETS_MAX = 4096  # RFC 5321 4.5.3.1.5 allows 512; real servers send longer lines, the rest of which is dropped
REPLY_OCTETS_MAX = 32 * 1024  # a page of XQDISCARD has 24 KiB. docs/protocol.md 14
ZERO = ord("0")
CODE_OCTETS = 4  # of a line: `250-`
REPLIES_OCTETS_MAX = 1024 * 1024  # of one pipelined batch
SERVICE_CLOSING = 421
QUIT_SECONDS_MAX = 2.0


class RawReply(NamedTuple):
    """A complete reply as received; `lines` without their codes, at least one."""

    code: int
    lines: tuple[str, ...]

    @property
    def reply(self) -> Reply:
        """Converted to `Reply`."""
        return reply_from(self.code, self.lines)


def _whole_replies(octets: bytes, octets_max: int) -> Sequence[RawReply]:
    """The replies, if nothing is unusual about them (see `_are_short`), else none. `octets_max`: of a reply of several lines."""
    if _are_short(octets):
        return [_tuple(RawReply, (int(digits), (words,))) for digits, words in _short_replies(octets.decode("ascii"))]
    if len(octets) <= octets_max and (long := _is_long(octets)):
        return (_tuple(RawReply, (int(long[1]), tuple([line[4:] for line in octets.decode("ascii").splitlines()]))),)
    return ()


class OpeningProtocol(SMTPProtocol):
    """Until the transport is taken over: cuts what is said at length. aiosmtplib fails at 8 KiB of a line or 32 KiB of a reply, and at an
    empty line."""

    _line_octets = _reply_octets = 0

    def data_received(self, data: bytes) -> None:
        """Pass on no more of each line than the limit, and of those after too many only the code."""
        if not self._buffer:
            self._line_octets = self._reply_octets = 0
        kept = b""
        for part in _part_of_line.findall(data):
            if not self._line_octets and not part.strip(b"\r\n"):
                continue
            octets_max = LINE_OCTETS_MAX if self._reply_octets < REPLY_OCTETS_MAX // 2 else CODE_OCTETS
            cut = part[: max(0, octets_max - self._line_octets)]
            self._line_octets += len(part)
            if part.endswith(b"\n"):
                cut, self._line_octets = cut.rstrip(b"\r\n") + b"\n", 0
            self._reply_octets += len(cut)
            kept += cut
        super().data_received(kept)


class OpeningClient(aiosmtplib.SMTP):
    """Opens a session over a socket. aiosmtplib has no way to be given a protocol but by this method, and fails at a greeting that is not
    220; tests that need either fail if it is called by another name."""

    async def _create_connection(self, timeout: float | None) -> aiosmtplib.SMTPResponse:  # noqa: ASYNC109 - the library's
        """Called by `connect`. Raises: OSError, SMTPException."""
        assert self.loop is not None
        protocol = OpeningProtocol(self.loop, self._on_connection_lost)
        context, name = (self.tls_context, self.hostname) if self.use_tls else (None, None)
        self.transport, _ = await self.loop.create_connection(lambda: protocol, sock=self.sock, ssl=context, server_hostname=name)
        self.protocol = protocol
        greeting = await protocol.read_response(timeout)
        if not 200 <= greeting.code < 300:
            raise aiosmtplib.SMTPConnectResponseError(greeting.code, greeting.message)
        return greeting


class Pipeline(asyncio.Protocol):
    """One open session. For one task at a time."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._is_line_cut = False  # the rest of the line in `_buffer` is dropped
        self._lines: list[str] = []
        self._codes: set[int] = set()  # the first digits of `_lines`
        self._reply_octets = 0
        self._batch_octets = 0
        self._owed = 0
        self._answers: deque[RawReply] = deque()
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None
        self._progress_at = 0.0
        self._patience: float | None = None  # seconds from `_progress_at`, while an answer is awaited
        self._timer: asyncio.TimerHandle | None = None  # one for all answers: rescheduled when it fires, not for each answer
        self._timer_at = 0.0
        self._write_waiter: asyncio.Future[None] | None = None
        self._is_write_paused = False
        self._is_quitting = False
        self._closed = self._loop.create_future()
        self.reply_octets_max = REPLY_OCTETS_MAX
        self.is_lenient = True  # cuts what is longer, and skips empty lines; else they end the session
        self.skips_nonsense = False  # lines that are no replies; without PIPELINING they cannot be taken for the reply to another command
        self.was_denied = False  # the last reply of several lines was a success, and a line of it a refusal
        self.surplus: frozenset[int] = frozenset()  # first digits of the replies that came behind the last one that was owed
        self.broken: Breakage | None = None
        self.answers_count = 0
        self.on_progress: Callable[[], None] | None = None  # called when replies arrived, or the other side took octets
        if transport.is_closing():
            self._break(Breakage(CONNECTION_LOST))
            self._closed.set_result(None)  # connection_lost was called on the old protocol, not on this one

    @property
    def is_usable(self) -> bool:
        """The session is not broken, and no reply is outstanding."""
        return self.broken is None and self._owed == 0 and not self._transport.is_closing()

    @property
    def outstanding(self) -> int:
        """Replies that were not read yet, here or there."""
        return self._owed + len(self._answers)

    def write(self, data: bytes, replies: int) -> None:
        """Write bytes that will get `replies` replies. Raises SessionBroken."""
        if self.broken is not None:
            raise self.broken.error()
        self._owed += replies
        self._transport.write(data)

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken.error()

    async def drain(self, seconds: float | None) -> None:
        """Wait until the transport accepts more; `seconds` limits the time without progress. Raises SessionBroken."""
        self._check()
        if not self._is_write_paused:
            return
        self._write_waiter = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, self._break, Breakage(TIMED_OUT))
        try:
            await self._write_waiter
        finally:
            self._write_waiter = None
            if timer is not None:
                timer.cancel()
        self._check()

    async def answers(self, count: int, seconds: float | None) -> list[RawReply]:
        """The next replies, in order. `seconds` is the limit for each one; `None` if the caller limits the whole.

        Raises: SessionBroken, also if only some of them arrived (`taken` returns those).
        """
        if len(self._answers) < count:
            if self.broken is not None:
                raise self.broken.error()
            self._wanted = count
            self._waiter = waiter = self._loop.create_future()
            if seconds is not None:
                self._patience = seconds
                self._progress_at = self._loop.time()
                if self._timer is None or self._timer_at > self._progress_at + seconds:
                    self._set_timer(self._progress_at + seconds)
            try:
                await waiter
            finally:
                self._waiter = self._patience = None
            if len(self._answers) < count:
                self._check()
        self._batch_octets = 0
        if count == len(self._answers):
            came = list(self._answers)
            self._answers.clear()
            return came
        return [self._answers.popleft() for _ in range(count)]

    async def answer(self, seconds: float | None) -> RawReply:
        """The next reply. Raises SessionBroken."""
        if self._answers:
            self._batch_octets = 0
            return self._answers.popleft()
        return (await self.answers(1, seconds))[0]

    def has_refusal(self) -> bool:
        """Whether a negative reply is among the unread ones."""
        return any(answer.code >= 400 for answer in self._answers)

    def taken(self) -> list[RawReply]:
        """Unread replies that arrived before the session broke."""
        rest = list(self._answers)
        self._answers.clear()
        return rest

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._look_at_clock), at

    def _look_at_clock(self) -> None:
        self._timer = None
        if self._patience is None:
            return
        due_at = self._progress_at + self._patience
        if due_at > self._loop.time():
            self._set_timer(due_at)
        else:
            self._break(Breakage(TIMED_OUT))

    # called by the transport

    def data_received(self, data: bytes) -> None:
        """Split the data into replies; an incomplete line is kept until the rest arrives."""
        if self.broken is not None:
            if self._is_quitting:
                self._transport.close()
            return
        self._batch_octets += len(data)
        if self._batch_octets > REPLIES_OCTETS_MAX:
            self._break_off(data, "reply too long")
            return
        if self._is_line_cut:
            if (line_end := data.find(b"\n")) < 0:
                return
            data, self._is_line_cut = data[line_end:], False
        buffer = self._buffer + data if self._buffer else data
        answers_before = self.answers_count
        is_whole = not self._lines and buffer.endswith(b"\n")
        if is_whole and (came := _whole_replies(buffer, self.reply_octets_max)) and len(came) <= self._owed:
            self._buffer = b""
            self._owed -= len(came)
            self.answers_count += len(came)
            self._answers += came
        elif not self._take_lines(buffer):
            return
        if self.answers_count != answers_before:
            self._progress_at = self._loop.time()
            if self.on_progress is not None:
                self.on_progress()
            if self._waiter is not None and len(self._answers) >= self._wanted and not self._waiter.done():
                self._waiter.set_result(None)

    def _take_lines(self, buffer: bytes) -> bool:
        """Any replies, line by line. False: the session is broken, and `_break` was called."""
        position, end, lines = 0, len(buffer), self._lines
        while position < end:
            is_nonsense = self.skips_nonsense and _code(buffer, position) is None and _reply_line(buffer, position) is None
            if self._owed == 0 and not (lines or is_nonsense) and buffer[position : position + 3] != b"421"[: end - position]:
                if self.is_lenient and not buffer[position:].strip(b"\r\n"):
                    position = end
                    break
                self.surplus = frozenset(code[0] - ZERO for code in _surplus_codes(buffer, position))
                self._break_off(buffer[position:], "unexpected data")
                return False
            line = _reply_line(buffer, position)
            if line is None:
                if self.is_lenient and (empty := _empty_line(buffer, position)) is not None:
                    position = empty.end()
                    continue
                is_too_long, line_end = end - position > LINE_OCTETS_MAX, buffer.find(b"\n", position)
                if is_nonsense and line_end >= 0:
                    position = line_end + 1
                    self._wait_no_longer()
                    continue
                is_reply = self.is_lenient and _code(buffer, position) is not None
                if line_end >= 0 or (is_too_long and not (is_reply or is_nonsense)):
                    self._break_off(buffer[position:], "not a reply")
                    return False
                if is_too_long:
                    buffer, self._is_line_cut = buffer[: position + LINE_OCTETS_MAX], True
                break
            length, position = line.end() - position, line.end()
            digits, mark, text = line.groups()
            code = int(digits)
            if length > LINE_OCTETS_MAX and self.is_lenient:
                text, length = text and text[: LINE_OCTETS_MAX - CODE_OCTETS], LINE_OCTETS_MAX
            words = text.rstrip(b"\r").decode("utf-8", "backslashreplace") if text else ""
            if not words.isprintable():
                words = printable(words)
            if mark == b"-" or lines or length > LINE_OCTETS_MAX:
                self._reply_octets += length
                is_over = self._reply_octets > self.reply_octets_max
                if length > LINE_OCTETS_MAX or (is_over and not self.is_lenient):
                    self._break_off(line[0], "reply too long")
                    return False
                if not is_over:
                    lines.append(words)
                self._codes.add(code // 100)
                if len(self._codes) > 1 and not self.is_lenient:
                    self._break_off(line[0], "codes differ within a reply")
                    return False
                if mark == b"-":
                    continue
                if len(self._codes) > 1:
                    self.was_denied = code < 300 and max(self._codes) >= 4
                    if code >= 500:
                        code = BROKEN_REPLY.code
                        lines.insert(0, SAYS_BOTH)
                answer = _tuple(RawReply, (code, tuple(lines)))
                lines.clear()
                self._codes.clear()
                self._reply_octets = 0
            else:
                answer = _tuple(RawReply, (code, (words,)))
            if self._owed:
                self._owed -= 1
                self.answers_count += 1
                self._answers.append(answer)
            if code == SERVICE_CLOSING:
                self._break(Breakage(answer.reply, is_refusal=True))
                return False
        self._buffer = buffer[position:]
        return True

    def _wait_no_longer(self) -> None:
        """A line was no reply: the server may have no other word for us."""
        if self._patience is not None and self._owed:
            self._progress_at, self._patience = self._loop.time(), min(self._patience, NONSENSE_SECONDS)
            self._set_timer(self._progress_at + self._patience)

    def _break_off(self, seen: bytes, why: str) -> None:
        text = seen[:80].decode("ascii", "backslashreplace")
        self._break(Breakage(reply_from(BROKEN_REPLY.code, [f"{BROKEN_REPLY.enhanced} {BROKEN_REPLY.text}: {why}: {text!r}"])))

    def _break(self, why: Breakage) -> None:
        """End the session: fail all waiters, close the connection at once."""
        if self.broken is None:
            self.broken = why
            self._buffer = b""
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in (self._waiter, self._write_waiter):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def eof_received(self) -> bool:
        """The server closed its side: the transport closes."""
        self._break(Breakage(CONNECTION_LOST))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        if not self._closed.done():
            self._closed.set_result(None)
        self._break(Breakage(CONNECTION_LOST))

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """The transport accepts more."""
        self._is_write_paused = False
        if self.on_progress is not None:
            self.on_progress()
        if self._write_waiter is not None and not self._write_waiter.done():
            self._write_waiter.set_result(None)

    # ending

    def abort(self) -> None:
        """Close the connection at once, whatever is in progress."""
        self._break(Breakage(CONNECTION_LOST))

    def give_up(self) -> None:
        """Fail the waiter: the answer took too long."""
        self._break(Breakage(TIMED_OUT))

    def quit(self) -> None:
        """Send QUIT without blocking; the connection closes within `QUIT_SECONDS_MAX`."""
        if not self.is_usable:
            self.abort()
            return
        self._is_quitting = True
        self.broken = Breakage(CONNECTION_LOST)
        self._transport.write(b"QUIT\r\n")
        timer = self._loop.call_later(QUIT_SECONDS_MAX, self._transport.abort)
        self._closed.add_done_callback(lambda _: timer.cancel())

    def when_closed(self, call: Callable[[], object]) -> None:
        """Call it once the connection is closed."""
        self._closed.add_done_callback(lambda _: call())

    async def closed(self) -> None:
        """Wait until the connection is closed."""
        await asyncio.shield(self._closed)
