"""Questions to DNS, asked once for everybody who wants the answer, and remembered.

One look-up at a time for each name and type: whoever asks meanwhile waits for the same answer, and a waiter that leaves ends
nothing. A bounded number of them runs at one time, those apart that failed the last time. A look-up without an answer gives up its
slot soon and goes on among the late ones; when there are too many of these, the oldest ends. So names that nobody answers for
hold up no others for long, new names included. What was answered is kept for its time to live, a "no" for that of its SOA record
(RFC 2308), and no answer for some seconds, longer each time.

dnspython asks; its own cache is not used: it keeps exceptions, knows no bounds of time and goes by the wall clock.
"""

import asyncio
import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum
from pathlib import Path

import dns.asyncresolver
import dns.exception
import dns.name
import dns.nameserver
import dns.rcode
import dns.resolver
import structlog

from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass

RESOLV_CONF = Path("/etc/resolv.conf")
LIFETIME_SECONDS = 20.0  # one look-up, all name servers and repetitions
SERVER_SECONDS = 5.0  # one name server, once
REMEMBERED_MAX = 10_000
AT_ONCE = 50  # look-ups of names that were answered for the last time, or are new
AT_ONCE_FAILED = 10  # of those that were not
PROMPT_SECONDS = 2.0  # then a look-up is late, and its slot free: one name server was asked once. 50 slots: 25 dead names a second
LATE_MAX = 100  # 160 sockets in all: the smallest usual limit of descriptors, 1,024, has a reserve of 256 (limits.Descriptors)
TTL_SECONDS_MIN, TTL_SECONDS_MAX = 1.0, 86_400.0
NEGATIVE_SECONDS_MIN, NEGATIVE_SECONDS_MAX = 1.0, 900.0  # RFC 2308 5 allows hours; a domain that was just set up shall not wait so long
FAILED_SECONDS_FIRST, FAILED_SECONDS_MAX = 5.0, 300.0  # RFC 2308 7.1: at most five minutes
REASON_CHARACTERS_MAX = 300
CONFIGURATION_SECONDS = 1.0  # between looks at whether /etc/resolv.conf has changed

log = structlog.stdlib.get_logger()


class Found(Enum):
    """What came of a question."""

    RECORDS = "records"
    NO_SUCH_NAME = "no such name"
    NO_RECORDS = "no records"
    NOTHING = "nothing"  # no answer, or none that can be used: nobody knows


@dataclass(frozen=True, slots=True)
class Answer:
    """`records` as texts: "10 mx.example." for MX, an address for A and AAAA. `since`, `until`: of the monotonic clock. `failures_count`:
    in a row."""

    found: Found
    records: tuple[str, ...] = ()
    since: float = 0.0
    until: float = 0.0
    reason: str = ""
    failures_count: int = 0


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old an answer may be for who asks, whatever its time to live says. Units: seconds."""

    records: float
    others: float

    def of(self, answer: Answer) -> float:
        """For this kind of answer."""
        return self.records if answer.found is Found.RECORDS else self.others


ANY_AGE = Freshness(TTL_SECONDS_MAX, TTL_SECONDS_MAX)


class Lookups:
    """`nameservers` empty: those of the system, read again when its file has changed. Units: seconds."""

    def __init__(
        self,
        nameservers: Sequence[HostPort] = (),
        *,
        lifetime_seconds: float = LIFETIME_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        resolv_conf: Path = RESOLV_CONF,
    ) -> None:
        self._nameservers = tuple(nameservers)
        self._lifetime = lifetime_seconds
        self._clock = clock
        self._resolv_conf = resolv_conf
        self._resolver: dns.asyncresolver.Resolver | None = None
        self._read: tuple[int, int, int] | None = None  # which version of the file
        self._look_again_at = 0.0
        self._answers: OrderedDict[tuple[str, str], Answer] = OrderedDict()
        self._running: dict[tuple[str, str, str], asyncio.Task[Answer]] = {}
        self._slots = {"": asyncio.Semaphore(AT_ONCE), "failed": asyncio.Semaphore(AT_ONCE_FAILED)}
        self._late: dict[asyncio.Timeout, None] = {}  # the oldest first

    @property
    def running_count(self) -> int:
        """Look-ups that run or wait for their turn."""
        return len(self._running)

    def known(self, name: dns.name.Name, kind: str, freshness: Freshness) -> Answer | None:
        """What is remembered and still holds."""
        key = (_text(name), kind)
        answer = self._answers.get(key)
        now = self._clock()
        if answer is None or answer.until <= now or now - answer.since > freshness.of(answer):
            return None
        self._answers.move_to_end(key)
        return answer

    async def ask(self, name: dns.name.Name, kind: str, *, lane: str = "", freshness: Freshness = ANY_AGE) -> Answer:
        """The answer for an absolute name. Never raises. A `lane` of its own waits for no slot behind others."""
        answer = self.known(name, kind, freshness)
        if answer is not None:
            return answer
        key = (lane, _text(name), kind)
        task = self._running.get(key)
        if task is None:
            work = self._look_up(name, kind, lane, freshness)
            task = self._running[key] = asyncio.get_running_loop().create_task(work, name=f"look-up {name}")
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return await asyncio.shield(task)

    def let_go(self) -> None:
        """The node ends: whoever waits now is cancelled, but in lanes of their own. Nothing is known of these names that was not before."""
        for (lane, _, _), task in tuple(self._running.items()):
            if not lane:
                task.cancel()

    async def close(self) -> None:
        """End what runs; whoever waits is cancelled."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def search(self) -> tuple[tuple[dns.name.Name, ...], int]:
        """The system's search list and `ndots`, for names of hosts that are not complete. Empty where name servers are configured."""
        if self._nameservers:
            return (), 1
        with contextlib.suppress(dns.exception.DNSException, OSError, ValueError):
            resolver = self._system()
            names = tuple(resolver.search) or ((resolver.domain,) if resolver.domain not in (None, dns.name.root) else ())
            return names, 1 if resolver.ndots is None else resolver.ndots
        return (), 1

    async def _look_up(self, name: dns.name.Name, kind: str, lane: str, freshness: Freshness) -> Answer:
        key = (_text(name), kind)
        before = self._answers.get(key)
        failures_count = before.failures_count if before is not None else 0
        if lane:
            answer = await self._question(name, kind, failures_count)
        else:
            try:
                async with self._turn("failed" if failures_count else ""):
                    answer = self.known(name, kind, freshness) or await self._question(name, kind, failures_count)
            except TimeoutError:
                answer = self._failed(f"{key[0]}: no answer, and too many names have none", failures_count)
        self._answers[key] = answer
        self._answers.move_to_end(key)
        while len(self._answers) > REMEMBERED_MAX:
            self._answers.popitem(last=False)
        return answer

    @contextlib.asynccontextmanager
    async def _turn(self, lane: str) -> AsyncIterator[None]:
        """A slot for as long as answers usually take, then a place among the late ones. Raises TimeoutError when that is taken away."""
        slot = self._slots[lane]
        await slot.acquire()
        has_slot = True
        try:
            async with asyncio.timeout(None) as patience:

                def is_late() -> None:
                    nonlocal has_slot
                    has_slot = False
                    slot.release()
                    self._late[patience] = None
                    if len(self._late) > LATE_MAX:
                        oldest = next(iter(self._late))
                        del self._late[oldest]
                        oldest.reschedule(0.0)

                timer = asyncio.get_running_loop().call_later(PROMPT_SECONDS, is_late)
                try:
                    yield
                finally:
                    timer.cancel()
                    self._late.pop(patience, None)
        finally:
            if has_slot:
                slot.release()

    async def _question(self, name: dns.name.Name, kind: str, failures_count: int) -> Answer:
        """Of one answer nothing is kept but texts: not the exception, nor the frames that it has seen."""
        try:
            response = (await self._ready().resolve(name, kind, raise_on_no_answer=False, search=False)).response
        except dns.resolver.NXDOMAIN as error:
            response = error.responses()[name]  # type: ignore[no-untyped-call]
        except (dns.exception.DNSException, OSError, ValueError) as error:
            return self._failed(f"{_text(name)}: {_reason(error)}", failures_count)
        now = self._clock()
        chain = response.resolve_chaining()
        if chain.answer is not None:
            texts = tuple(record.to_text() for record in chain.answer)
            return Answer(Found.RECORDS, texts, now, now + min(max(chain.minimum_ttl, TTL_SECONDS_MIN), TTL_SECONDS_MAX))
        found = Found.NO_SUCH_NAME if response.rcode() == dns.rcode.NXDOMAIN else Found.NO_RECORDS
        return Answer(found, (), now, now + min(max(chain.minimum_ttl, NEGATIVE_SECONDS_MIN), NEGATIVE_SECONDS_MAX))

    def _failed(self, reason: str, failures_count: int) -> Answer:
        pause = min(FAILED_SECONDS_FIRST * 2.0 ** min(failures_count, 10), FAILED_SECONDS_MAX)
        now = self._clock()
        return Answer(Found.NOTHING, (), now, now + pause, reason[:REASON_CHARACTERS_MAX], failures_count + 1)

    # whom to ask

    def _ready(self) -> dns.asyncresolver.Resolver:
        """Raises: dns.resolver.NoResolverConfiguration, OSError."""
        if not self._nameservers:
            return self._system()
        if self._resolver is None:
            resolver = dns.asyncresolver.Resolver(configure=False)
            resolver.nameservers = [dns.nameserver.Do53Nameserver(server.host, server.port) for server in self._nameservers]
            self._resolver = self._bounded(resolver)
        return self._resolver

    def _system(self) -> dns.asyncresolver.Resolver:
        """As in /etc/resolv.conf now: a container's may change when it joins a network, a laptop's at any time."""
        now = self._clock()
        if self._resolver is None or now >= self._look_again_at:
            self._look_again_at = now + CONFIGURATION_SECONDS
            stat = os.stat(self._resolv_conf)
            version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._resolver is None or version != self._read:
                self._resolver = self._bounded(dns.asyncresolver.Resolver(str(self._resolv_conf)))
                self._read = version
        return self._resolver

    def _bounded(self, resolver: dns.asyncresolver.Resolver) -> dns.asyncresolver.Resolver:
        resolver.timeout = min(resolver.timeout, SERVER_SECONDS, self._lifetime)
        resolver.lifetime = self._lifetime
        resolver.cache = None
        return resolver


def _text(name: dns.name.Name) -> str:
    return name.to_text(omit_final_dot=True).lower()


def _reason(error: Exception) -> str:
    """What each name server said, once: dnspython's own text has it for every time that it was asked."""
    if not isinstance(error, dns.resolver.LifetimeTimeout | dns.resolver.NoNameservers):
        return str(error) or type(error).__name__
    said: dict[str, None] = {}
    for server, _, _, what, _ in error.kwargs["errors"]:
        text = "no answer" if isinstance(what, dns.exception.Timeout) else str(what) or type(what).__name__
        said[f"{server.removeprefix('Do53:')}: {text}"] = None
    return "; ".join(said) or "no answer"
