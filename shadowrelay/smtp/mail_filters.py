"""Filters that see a message before its copy is made, in the order of the receive connector. docs/reference.md "Filters before the copy".

The rules here:

- What a filter changes is changed before anything is hashed, copied or acknowledged. Peers' sessions, copies and what this node makes
  itself come past it: what is promoted or resubmitted was filtered once.
- All filters of a message share `CHAIN_SECONDS`, so that the client still waits when the copy is made. A filter that fails, or has no time
  left, is answered for by its `on_failure`; after `FAILURES_MAX` failures in a row it is not asked for a while (circuit breaker), then one
  message tries it.
- A filter sees at most `concurrency` messages at once; waiting for a place counts as its time.

`MailFilter` is the seam: another kind of filter is another implementation of it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import BinaryIO, Protocol

import structlog

from shadowrelay.model.filtering import FilterAction, FilterVerdict, HeaderChanges
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.receive_settings import Filter, OnFailure
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, Reply
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.header_edit import edited, header_end
from shadowrelay.smtp.data import ContentSink, beginning_of, header_facts
from shadowrelay.smtp.limits import HEADER_OCTETS_MAX

CHAIN_SECONDS = 180.0  # clients wait for ten minutes (RFC 5321 4.5.3.2.6), many for five; a copy takes one more at most
FAILURES_MAX = 3  # in a row
REST_SECONDS, REST_SECONDS_MAX = 5.0, 300.0
BLOCK_OCTETS = 256 * 1024
UNAVAILABLE = Reply(451, "4.7.1", "The mail filter is not available, try again later")

_log = structlog.get_logger()


class FilterFailed(Exception):
    """The filter gave no verdict. The text says why; it has nothing of the filter's own words."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A message on its way through the filters: as the client gave it, without our trace header, which has `trace_size` octets.

    `client` is its name in DNS, where it is known, `login` who it has proved to be, as far as somebody said so.
    """

    envelope: Envelope
    content: Content
    trace_size: int
    client: str = ""
    login: str = ""

    @property
    def size(self) -> int:
        return self.content.size - self.trace_size

    async def blocks(self) -> AsyncIterator[bytes]:
        """The octets. Large content is read in blocks. Raises: OSError."""
        async for block in blocks_of(self.content, self.trace_size):
            yield block


class MailFilter(Protocol):
    """One kind of filter."""

    async def judge(self, passage: Passage) -> FilterVerdict:
        """Called within its time. Raises: FilterFailed; OSError."""
        ...

    async def close(self) -> None: ...


class Guarded:
    """A filter with its limits: places, time, circuit breaker."""

    def __init__(self, settings: Filter, mail_filter: MailFilter, time: Callable[[], float]) -> None:
        self.name = settings.name
        self._settings = settings
        self._filter = mail_filter
        self._time = time
        self._places = asyncio.Semaphore(settings.concurrency)
        self._failures_count = 0
        self._rests_count = 0
        self._rests_until = 0.0
        self._is_tried = False
        self.failures_count = 0  # messages without a verdict, since the start

    @property
    def is_resting(self) -> bool:
        """Whether it is not asked now."""
        return self._failures_count >= FAILURES_MAX and (self._is_tried or self._time() < self._rests_until)

    async def judge(self, passage: Passage, seconds: float) -> FilterVerdict:
        """Its verdict, or what stands for one."""
        if self.is_resting:
            return self._without("resting")
        if seconds <= 0:
            return self._without("no-time-left")
        is_trial = self._failures_count >= FAILURES_MAX
        self._is_tried = is_trial
        try:
            async with asyncio.timeout(min(seconds, self._settings.timeout.total_seconds())), self._places:
                verdict = await self._filter.judge(passage)
        except TimeoutError:
            return self._failed(f"no verdict in {self._settings.timeout.total_seconds():g} s")
        except (FilterFailed, OSError) as error:
            return self._failed(str(error) or type(error).__name__)
        except Exception as error:  # unknown means transient, and is not the message's fault
            _log.exception("filter.failed", filter=self.name)
            return self._failed(type(error).__name__)
        finally:
            if is_trial:  # messages that it saw before end without a say in that
                self._is_tried = False
        if self._failures_count >= FAILURES_MAX:
            _log.info("filter.answers_again", filter=self.name)
        self._failures_count = self._rests_count = 0
        return verdict

    def _failed(self, reason: str) -> FilterVerdict:
        self._failures_count += 1
        if self._failures_count >= FAILURES_MAX and self._time() >= self._rests_until:  # not by those that it had seen before
            rest = min(REST_SECONDS * 2.0**self._rests_count, REST_SECONDS_MAX)
            self._rests_count = min(self._rests_count + 1, 10)
            self._rests_until = self._time() + rest
            _log.warning("filter.rests", filter=self.name, reason=reason, seconds=rest, on_failure=self._settings.on_failure.value)
        else:
            _log.warning("filter.failed", filter=self.name, reason=reason, on_failure=self._settings.on_failure.value)
        return self._without("failed")

    def _without(self, why: str) -> FilterVerdict:
        self.failures_count += 1
        label = f"{self.name}:{why}"
        if self._settings.on_failure is OnFailure.DEFER:
            return FilterVerdict(FilterAction.REFUSE, label, UNAVAILABLE)
        return FilterVerdict(FilterAction.ACCEPT, label)

    async def close(self) -> None:
        """End its connections."""
        await self._filter.close()


class FilterRefusal(Exception):
    """The message is not taken; `reply` says why."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class Chain:
    """The filters of one receive connector."""

    def __init__(self, filters: Sequence[Guarded], time: Callable[[], float]) -> None:
        self._filters = filters
        self._time = time

    async def pass_through(
        self, passage: Passage, sink: ContentSink, another: Callable[[], ContentSink]
    ) -> tuple[Envelope, Content, ContentSink]:
        """The message as its filters leave it, and what has its content now. `sink` has it as it came. Raises: FilterRefusal."""
        sinks = [sink]

        def further() -> ContentSink:
            sinks.append(another())
            return sinks[-1]

        try:
            content, label = await self.judge(passage, further)
            subject = header_facts(beginning_of(content, passage.trace_size)).subject if len(sinks) > 1 else passage.envelope.subject
        except BaseException as error:
            for each in sinks[1:]:
                each.discard()
            if isinstance(error, OSError):
                raise FilterRefusal(INSUFFICIENT_RESOURCES) from error
            raise
        for each in sinks[:-1]:
            each.discard()
        return replace(passage.envelope, filtered=label, subject=subject), content, sinks[-1]

    async def judge(self, passage: Passage, sink: Callable[[], ContentSink]) -> tuple[Content, str]:
        """Ask each filter, the next one about what the one before has changed. Returns the content, the same object if nothing was, and the
        verdicts. `sink` collects changed content. Raises: FilterRefusal, OSError."""
        ends_at = self._time() + CHAIN_SECONDS
        labels: list[str] = []
        for each in self._filters:
            verdict = await each.judge(passage, ends_at - self._time())
            labels.append(verdict.label)
            if verdict.action is FilterAction.REFUSE:
                assert verdict.reply is not None
                label = ",".join(labels)
                message_id, client = passage.envelope.message_id, passage.envelope.client_address
                _log.info("message.filtered", message_id=message_id, client=client, verdict=label, reply=str(verdict.reply))
                raise FilterRefusal(verdict.reply)
            if not verdict.changes.is_empty:
                content = await _changed(passage, verdict.changes, sink())
                passage = Passage(passage.envelope, content, passage.trace_size, passage.client, passage.login)
        return passage.content, ",".join(labels)


async def _changed(passage: Passage, changes: HeaderChanges, sink: ContentSink) -> Content:
    """The same content with another header, behind the same trace header. Raises: OSError."""
    try:
        content, start = passage.content, passage.trace_size
        beginning = beginning_of(content, start)
        end = header_end(beginning)
        if end < 0:  # no empty line: all of it is header, or so much that only something above it is changed
            end = len(beginning) if passage.size <= HEADER_OCTETS_MAX else 0
        async for block in blocks_of(content, 0, start):
            sink.write(block)
        sink.write(edited(beginning[:end], changes))
        async for block in blocks_of(content, start + end):
            sink.write(block)
        return sink.content()
    except BaseException:
        sink.discard()
        raise


async def blocks_of(content: Content, start: int, end: int | None = None) -> AsyncIterator[bytes]:
    """The octets from `start` to `end`, in blocks, between which other sessions run. Raises: OSError."""
    left = (content.size if end is None else end) - start
    if content.data is not None:
        if left > 0:
            yield content.data[start : start + left]
        return
    assert content.path is not None
    file: BinaryIO
    with content.path.open("rb", buffering=0) as file:
        file.seek(start)
        while left > 0 and (block := file.read(min(left, BLOCK_OCTETS))):
            left -= len(block)
            yield block
            await asyncio.sleep(0)


def make_bank(filters: Sequence[Filter], time: Callable[[], float]) -> "FilterBank":
    """Of these settings."""
    if not filters:
        return FilterBank({}, time)
    from shadowrelay.smtp.rspamd import Rspamd  # httpx takes a third of a second to import

    return FilterBank({each.name: Guarded(each, Rspamd(each), time) for each in filters}, time)


class FilterBank:
    """All filters of a node, by name; connectors share them, with their places and breakers."""

    def __init__(self, filters: Mapping[str, Guarded], time: Callable[[], float]) -> None:
        self._filters = filters
        self._time = time

    def chain(self, names: Sequence[str]) -> Chain | None:
        """Of a connector; None if it has no filters, which costs nothing."""
        return Chain([self._filters[name] for name in names], self._time) if names else None

    def failures(self) -> dict[str, float]:
        """Messages without a verdict, of each filter."""
        return {name: float(each.failures_count) for name, each in self._filters.items()}

    def resting(self) -> dict[str, float]:
        """1 for each that is not asked now."""
        return {name: float(each.is_resting) for name, each in self._filters.items()}

    async def close(self) -> None:
        """End everything."""
        for each in self._filters.values():
            await each.close()
