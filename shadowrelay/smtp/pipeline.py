"""The client's side of an SMTP session after it was opened: bytes out as they are, replies in, several at a time.

aiosmtplib awaits each reply before the next command and rewrites line ends; its transport is taken over instead
(`client.py`). The rule kept here: replies are counted. Each write says how many it will be answered with; data that
nobody owes, a malformed reply, an oversized one or a 421 ends the session, because after it nothing can be matched.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from shadowrelay.model.replies import Reply
from shadowrelay.smtp.errors import BROKEN_REPLY, CONNECTION_LOST, TIMED_OUT, Breakage, reply_from

REPLY_LINE = re.compile(rb"([2-5][0-9][0-9])(?:([ -])([^\r\n]*))?\r?\n")
LINE_OCTETS_MAX = 4096  # RFC 5321 4.5.3.1.5 says 512; real servers write longer ones
REPLY_OCTETS_MAX = 32 * 1024  # a page of XQDISCARD has 24 KiB. docs/protocol.md 14
REPLIES_OCTETS_MAX = 1024 * 1024  # of one pipelined batch
SERVICE_CLOSING = 421
QUIT_SECONDS_MAX = 2.0


class Answer(NamedTuple):
    """A complete reply as it came; `lines` without their codes, at least one."""

    code: int
    lines: tuple[str, ...]

    @property
    def reply(self) -> Reply:
        """As the program keeps it."""
        return reply_from(self.code, self.lines)


class Pipeline(asyncio.Protocol):
    """One open session. Not for two tasks at once."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._lines: list[str] = []
        self._code = 0
        self._reply_octets = 0
        self._batch_octets = 0
        self._owed = 0
        self._answers: deque[Answer] = deque()
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None
        self._progress_at = 0.0
        self._patience: float | None = None  # from `_progress_at`, while an answer is awaited
        self._timer: asyncio.TimerHandle | None = None  # one for all answers: set again when it goes off, not for each
        self._timer_at = 0.0
        self._write_waiter: asyncio.Future[None] | None = None
        self._is_write_paused = False
        self._is_quitting = False
        self._closed = self._loop.create_future()
        self.reply_octets_max = REPLY_OCTETS_MAX
        self.broken: Breakage | None = None
        self.answers_count = 0
        self.on_progress: Callable[[], None] | None = None  # called when answers came, or the other side took octets
        if transport.is_closing():
            self._break(Breakage(CONNECTION_LOST))
            self._closed.set_result(None)  # its old protocol was told, not this one

    @property
    def is_usable(self) -> bool:
        """Nothing has come that ends it, and nothing is owed."""
        return self.broken is None and self._owed == 0 and not self._transport.is_closing()

    def write(self, data: bytes, replies: int) -> None:
        """Write bytes that will be answered by so many replies. Raises SessionBroken."""
        if self.broken is not None:
            raise self.broken.error()
        self._owed += replies
        self._transport.write(data)

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken.error()

    async def drain(self, seconds: float | None) -> None:
        """Wait until the transport takes more; `seconds` bounds the standstill. Raises SessionBroken."""
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

    async def answers(self, count: int, seconds: float | None) -> list[Answer]:
        """The next replies, in order. `seconds` is the time for each one; `None` where the caller bounds the whole.

        Raises: SessionBroken, also when only some of them came (`taken` gives those).
        """
        if len(self._answers) < count:
            self._check()
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

    async def answer(self, seconds: float | None) -> Answer:
        """The next reply. Raises SessionBroken."""
        if self._answers:
            self._batch_octets = 0
            return self._answers.popleft()
        return (await self.answers(1, seconds))[0]

    def has_refusal(self) -> bool:
        """Whether a negative reply is among those that nobody has read yet."""
        return any(answer.code >= 400 for answer in self._answers)

    def taken(self) -> list[Answer]:
        """Replies that came before the session broke and nobody has read."""
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
        """Split what came into replies."""
        if self.broken is not None:
            if self._is_quitting:
                self._transport.close()
            return
        self._buffer = self._split(self._buffer + data if self._buffer else data)

    def _split(self, buffer: bytes) -> bytes:
        """Take the complete lines; what is left of an incomplete one comes back."""
        position, answers_before = 0, self.answers_count
        while position < len(buffer):
            if self._owed == 0 and not self._lines and buffer[position : position + 3] != b"421"[: len(buffer) - position]:
                self._break_off(buffer[position:], "unexpected data")
                return b""
            line = REPLY_LINE.match(buffer, position)
            if line is None:
                if buffer.find(b"\n", position) >= 0 or len(buffer) - position > LINE_OCTETS_MAX:
                    self._break_off(buffer[position:], "not a reply")
                    return b""
                break
            length, position = line.end() - position, line.end()
            digits, mark, text = line.groups()
            code = int(digits)
            self._reply_octets += length
            self._batch_octets += length
            if length > LINE_OCTETS_MAX or self._reply_octets > self.reply_octets_max or self._batch_octets > REPLIES_OCTETS_MAX:
                self._break_off(line[0], "reply too long")
                return b""
            if self._lines and code != self._code:
                self._break_off(line[0], "codes differ within a reply")
                return b""
            words = "" if text is None else text.decode("utf-8", "backslashreplace")
            if mark == b"-":
                self._code = code
                self._lines.append(words)
                continue
            self._reply_octets = 0
            answer = Answer(code, (*self._lines, words) if self._lines else (words,))
            self._lines.clear()
            if self._owed:
                self._owed -= 1
                self.answers_count += 1
                self._answers.append(answer)
            if code == SERVICE_CLOSING:
                self._break(Breakage(answer.reply, is_refusal=True))
                return b""
        if self.answers_count != answers_before:
            self._progress_at = self._loop.time()
            if self.on_progress is not None:
                self.on_progress()
            if self._waiter is not None and len(self._answers) >= self._wanted and not self._waiter.done():
                self._waiter.set_result(None)
        return buffer[position:]

    def _break_off(self, seen: bytes, why: str) -> None:
        text = seen[:80].decode("ascii", "backslashreplace")
        self._break(Breakage(reply_from(BROKEN_REPLY.code, [f"{BROKEN_REPLY.enhanced} {BROKEN_REPLY.text}: {why}: {text!r}"])))

    def _break(self, why: Breakage) -> None:
        """The session is over: whoever waits is told, the connection goes at once."""
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
        """The server will say no more: the transport closes."""
        self._break(Breakage(CONNECTION_LOST))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if not self._closed.done():
            self._closed.set_result(None)
        self._break(Breakage(CONNECTION_LOST))

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._is_write_paused = True

    def resume_writing(self) -> None:
        """The transport takes more."""
        self._is_write_paused = False
        if self.on_progress is not None:
            self.on_progress()
        if self._write_waiter is not None and not self._write_waiter.done():
            self._write_waiter.set_result(None)

    # ending

    def abort(self) -> None:
        """End it at once, in the middle of whatever it is."""
        self._break(Breakage(CONNECTION_LOST))

    def give_up(self) -> None:
        """Whoever waits for an answer is told that it took too long."""
        self._break(Breakage(TIMED_OUT))

    def quit(self) -> None:
        """Take leave without making anybody wait; the connection is gone after `QUIT_SECONDS_MAX` at the latest."""
        if not self.is_usable:
            self.abort()
            return
        self._is_quitting = True
        self.broken = Breakage(CONNECTION_LOST)
        self._transport.write(b"QUIT\r\n")
        timer = self._loop.call_later(QUIT_SECONDS_MAX, self._transport.abort)
        self._closed.add_done_callback(lambda _: timer.cancel())

    def when_closed(self, call: Callable[[], object]) -> None:
        """Call it once the connection is gone."""
        self._closed.add_done_callback(lambda _: call())

    async def closed(self) -> None:
        """Wait until the connection is gone."""
        await asyncio.shield(self._closed)
