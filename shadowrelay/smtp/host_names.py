"""Looks up names in DNS, and connects to the hosts of the configuration: peers and next hops of routes. RFC 2308, 6761, 8767.

Each question is asked once and its answer cached. Look-ups of the same name and type are shared: later callers wait for the same
answer, and cancelling a caller does not cancel the look-up. The number of concurrent look-ups is limited, with a separate limit for
names that failed the last time. A look-up without a prompt answer gives up its slot and continues among the late ones; if there are
too many of these, the oldest is ended. So names that get no answer do not block others for long, not even new names. Answers are
cached for their time to live, negative ones for the time of the SOA record (RFC 2308), and failures for some seconds, longer each
time.

dnspython sends the queries. Its cache is not used, because it keeps exceptions, has no time limits and uses the wall clock.

The system's resolver is not used: its calls share a few threads, and a name without an answer would block them all. The order of
sources is that of `getaddrinfo` on most systems: an address, `localhost` (RFC 6761), the hosts file, then DNS with the search list
of /etc/resolv.conf, so that names of a container network are found.

If DNS gives no answer, the last known addresses are used (RFC 8767). An answer is used for `FRESH` at most, and for less if none of
its addresses could be reached: a restarted container has another address, while the old one may have many seconds left to live.
"""

import asyncio
import contextlib
import io
import ipaddress
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain, zip_longest
from pathlib import Path

import dns.asyncresolver
import dns.exception
import dns.name
import dns.nameserver
import dns.rcode
import dns.resolver
import structlog

from shadowrelay.model.numbers import decimal
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass, replace
from shadowrelay.smtp.client import Dial, dial
from shadowrelay.smtp.turns import turn

RESOLV_CONF = Path("/etc/resolv.conf")
LIFETIME_SECONDS = 20.0  # one look-up, all name servers and repetitions
SERVER_SECONDS = 5.0  # one name server, once
REMEMBERED_MAX = 10_000
AT_ONCE = 50  # look-ups of names that were answered the last time, or are new
AT_ONCE_FAILED = 10  # look-ups of names that failed the last time
PROMPT_SECONDS = 2.0  # then a look-up is late and its slot free: one name server was asked once. 50 slots: 25 dead names a second
LATE_MAX = 100  # 160 sockets in all: the smallest usual limit of descriptors, 1,024, has a reserve of 256 (limits.Descriptors)
TTL_SECONDS_MIN, TTL_SECONDS_MAX = 1.0, 86_400.0
NEGATIVE_SECONDS_MIN, NEGATIVE_SECONDS_MAX = 1.0, 900.0  # RFC 2308 5 allows hours; a domain that was just set up must not wait so long
FAILED_SECONDS_FIRST, FAILED_SECONDS_MAX = 5.0, 300.0  # RFC 2308 7.1: at most five minutes
REASON_CHARACTERS_MAX = 300
CONFIGURATION_SECONDS = 1.0  # between checks whether /etc/resolv.conf has changed

_log = structlog.get_logger()


class AnswerKind(Enum):
    """The kind of an answer."""

    RECORDS = "records"
    NO_SUCH_NAME = "no such name"
    NO_RECORDS = "no records"
    NOTHING = "nothing"  # no answer, or no usable one: unknown


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """`records` as texts: "10 mx.example." for MX, an address for A and AAAA. `since`, `until`: monotonic clock. `failures_count`:
    consecutive failures."""

    found: AnswerKind
    records: tuple[str, ...] = ()
    since: float = 0.0
    until: float = 0.0
    reason: str = ""
    failures_count: int = 0


@dataclass(frozen=True, slots=True)
class Freshness:
    """The maximum age of a cached answer for a caller, whatever its time to live. Units: seconds."""

    records: float
    others: float

    def of(self, answer: DnsAnswer) -> float:
        """The maximum age for this kind of answer."""
        return self.records if answer.found is AnswerKind.RECORDS else self.others


ANY_AGE = Freshness(TTL_SECONDS_MAX, TTL_SECONDS_MAX)


class Lookups:
    """Cached DNS look-ups. `nameservers` empty: the system's, read again when the file changes. Units: seconds."""

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
        self._read: tuple[int, int, int] | None = None  # identifies the version of the file that was read
        self._look_again_at = 0.0
        self._is_kept = False  # the file is worse than what it said before
        self._answers: OrderedDict[tuple[str, str], DnsAnswer] = OrderedDict()
        self._running: dict[tuple[str, str, str], asyncio.Task[DnsAnswer]] = {}
        self._slots = {"": asyncio.Semaphore(AT_ONCE), "failed": asyncio.Semaphore(AT_ONCE_FAILED)}
        self._late: dict[asyncio.Timeout, None] = {}  # oldest first

    def adopt(self, nameservers: Sequence[HostPort]) -> None:
        """Ask these from the next look-up on. What was answered stays for its time."""
        if tuple(nameservers) != self._nameservers:
            self._nameservers, self._resolver = tuple(nameservers), None

    @property
    def running_count(self) -> int:
        """Look-ups that run or wait for a slot."""
        return len(self._running)

    def known(self, name: dns.name.Name, kind: str, freshness: Freshness) -> DnsAnswer | None:
        """The cached answer, if it is still valid."""
        key = (_text(name), kind)
        answer = self._answers.get(key)
        now = self._clock()
        if answer is None or answer.until <= now or now - answer.since > freshness.of(answer):
            return None
        self._answers.move_to_end(key)
        return answer

    async def ask(self, name: dns.name.Name, kind: str, *, lane: str = "", freshness: Freshness = ANY_AGE) -> DnsAnswer:
        """The answer for an absolute name. Never raises. A look-up with a `lane` needs no slot."""
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
        """The node stops: cancel look-ups and their callers, except those with a lane. The cache does not change."""
        for (lane, _, _), task in tuple(self._running.items()):
            if not lane:
                task.cancel()

    async def close(self) -> None:
        """Cancel all look-ups and their callers."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def search(self) -> tuple[tuple[dns.name.Name, ...], int]:
        """The system's search list and `ndots`, for incomplete host names. Empty if name servers are configured."""
        if self._nameservers:
            return (), 1
        with contextlib.suppress(dns.exception.DNSException, OSError, ValueError):
            resolver = self._system()
            names = tuple(resolver.search) or ((resolver.domain,) if resolver.domain not in (None, dns.name.root) else ())
            return names, 1 if resolver.ndots is None else resolver.ndots
        return (), 1

    async def _look_up(self, name: dns.name.Name, kind: str, lane: str, freshness: Freshness) -> DnsAnswer:
        key = (_text(name), kind)
        before = self._answers.get(key)
        failures_count = before.failures_count if before is not None else 0
        if lane:
            answer = await self._question(name, kind, failures_count)
        else:
            try:
                async with turn(self._slots["failed" if failures_count else ""], self._late, PROMPT_SECONDS, LATE_MAX):
                    answer = self.known(name, kind, freshness) or await self._question(name, kind, failures_count)
            except TimeoutError:
                answer = self._failed(f"{key[0]}: no answer, and too many names have none", failures_count)
        self._answers[key] = answer
        self._answers.move_to_end(key)
        while len(self._answers) > REMEMBERED_MAX:
            self._answers.popitem(last=False)
        return answer

    async def _question(self, name: dns.name.Name, kind: str, failures_count: int) -> DnsAnswer:
        """Send one query. The answer keeps only texts: no exception, and no frames that a traceback refers to."""
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
            return DnsAnswer(AnswerKind.RECORDS, texts, now, now + min(max(chain.minimum_ttl, TTL_SECONDS_MIN), TTL_SECONDS_MAX))
        found = AnswerKind.NO_SUCH_NAME if response.rcode() == dns.rcode.NXDOMAIN else AnswerKind.NO_RECORDS
        return DnsAnswer(found, (), now, now + min(max(chain.minimum_ttl, NEGATIVE_SECONDS_MIN), NEGATIVE_SECONDS_MAX))

    def _failed(self, reason: str, failures_count: int) -> DnsAnswer:
        pause = min(FAILED_SECONDS_FIRST * 2.0 ** min(failures_count, 10), FAILED_SECONDS_MAX)
        now = self._clock()
        return DnsAnswer(AnswerKind.NOTHING, (), now, now + pause, reason[:REASON_CHARACTERS_MAX], failures_count + 1)

    # name servers

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
        """As in /etc/resolv.conf now: it may change when a container joins a network, or on a laptop at any time. While it cannot be read
        or names no server, what it said before holds."""
        now = self._clock()
        if self._resolver is None or now >= self._look_again_at:
            self._look_again_at = now + CONFIGURATION_SECONDS
            try:
                stat = os.stat(self._resolv_conf)
                version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if self._resolver is None or version != self._read:
                    self._read = version
                    self._resolver = self._bounded(resolver_of(self._resolv_conf))
            except (dns.exception.DNSException, OSError, ValueError) as error:
                if self._resolver is None:
                    raise
                if not self._is_kept:
                    _log.warning("resolver.file_kept", path=str(self._resolv_conf), reason=str(error) or type(error).__name__)
                self._is_kept = True
            else:
                self._is_kept = False
        return self._resolver

    def _bounded(self, resolver: dns.asyncresolver.Resolver) -> dns.asyncresolver.Resolver:
        resolver.timeout = min(resolver.timeout, SERVER_SECONDS, self._lifetime)
        resolver.lifetime = self._lifetime
        resolver.cache = None
        return resolver


def resolver_of(path: Path) -> dns.asyncresolver.Resolver:
    """As resolv.conf(5) says. A line that is none is skipped with a warning, as libc does without one.

    Raises: dns.resolver.NoResolverConfiguration if it names no server, OSError.
    """
    resolver = dns.asyncresolver.Resolver(configure=False)
    kept: list[str] = []
    for number, line in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), 1):
        try:
            words = line.split()
            if words[:1] == ["nameserver"]:
                ipaddress.ip_address(words[1])  # with `%scope` or without
            with contextlib.suppress(dns.resolver.NoResolverConfiguration):
                dns.asyncresolver.Resolver(configure=False).read_resolv_conf(io.StringIO(line))
        except (dns.exception.DNSException, ValueError, IndexError) as error:
            reason = str(error) or type(error).__name__
            _log.warning("resolver.line_skipped", path=str(path), line=number, text=line[:100], reason=reason)
        else:
            kept.append(line)
    resolver.read_resolv_conf(io.StringIO("\n".join(kept)))
    return resolver


async def name_server_failure(server: HostPort, name: str, seconds: float) -> str:
    """Why this name server does not answer a query for `name`; "" if it does, even if it does not know the name."""
    lookups = Lookups((server,), lifetime_seconds=seconds)
    answer = await lookups.ask(dns.name.from_text(name), "A")
    return answer.reason if answer.found is AnswerKind.NOTHING else ""


def _text(name: dns.name.Name) -> str:
    return name.to_text(omit_final_dot=True).lower()


def _reason(error: Exception) -> str:
    """What each name server answered, once each: dnspython's own text repeats it for every query."""
    if not isinstance(error, dns.resolver.LifetimeTimeout | dns.resolver.NoNameservers):
        return str(error) or type(error).__name__
    said: dict[str, None] = {}
    for server, _, _, what, _ in error.kwargs["errors"]:
        text = "no answer" if isinstance(what, dns.exception.Timeout) else str(what) or type(what).__name__
        address, _, port = server.removeprefix("Do53:").rpartition("@")
        said[f"{HostPort(address, decimal(port) or 0)}: {text}"] = None
    return "; ".join(said) or "no answer"


HOSTS_FILE = Path("/etc/hosts")
HOSTS_OCTETS_MAX = 1_000_000
FILE_SECONDS = 1.0  # between checks whether the file has changed
FRESH = Freshness(records=30.0, others=5.0)
ASK_AGAIN_SECONDS = 1.0  # minimum between queries while no address of a name can be reached
STALE_AFTER_SECONDS = 1.8  # then an old address is used while the query continues. RFC 8767 5
STALE_SECONDS_MAX = 259_200.0  # three days. RFC 8767 5: one to three
OTHER_FAMILY_SECONDS = 0.05  # wait for the other address family once one has answered. RFC 8305 3
ADDRESSES_TRIED_MAX = 4
ADDRESS_SECONDS = 5.0  # to connect to an address that is not the last one
NAMES_MAX = 1000
PEERS = "peers"  # a separate lane, so that peers never wait behind next hops


class NoAddress(OSError):
    """The name has no address now."""


@dataclass(frozen=True, slots=True)
class LastAddresses:
    """The last known addresses of a name. `since` in seconds of the monotonic clock."""

    addresses: tuple[str, ...]
    since: float
    is_stale: bool = False


class HostNames:
    """Connects by name. One instance for all peers and next hops."""

    def __init__(
        self,
        lookups: Lookups,
        *,
        hosts_file: Path = HOSTS_FILE,
        clock: Callable[[], float] = time.monotonic,
        connect: Dial = dial,
        stale_after_seconds: float = STALE_AFTER_SECONDS,
    ) -> None:
        self._lookups = lookups
        self._path = hosts_file
        self._clock = clock
        self._connect = connect
        self._stale_after = stale_after_seconds
        self._file: Mapping[str, tuple[str, ...]] = {}
        self._file_read: tuple[int, int, int] | None = None
        self._file_at = -FILE_SECONDS
        self._last: dict[str, LastAddresses] = {}
        self._unreached_at: dict[str, float] = {}

    async def dial(self, host: HostPort, *source: Sequence[str]) -> socket.socket:
        """A connection to a next hop. Raises ConnectionRefusedError where every address refuses, ConnectionResetError where every one cuts
        it or refuses, else OSError."""
        return await self._dial(host, "", *source)

    async def dial_peer(self, host: HostPort) -> socket.socket:
        """A connection to a peer. Raises as `dial`."""
        return await self._dial(host, PEERS)

    async def _dial(self, host: HostPort, lane: str, *source: Sequence[str]) -> socket.socket:
        addresses = interleaved(await self.addresses(host.host, lane))[:ADDRESSES_TRIED_MAX]
        reasons: list[str] = []
        refused_count = cut_count = 0
        for index, address in enumerate(addresses):
            try:
                async with asyncio.timeout(ADDRESS_SECONDS if index + 1 < len(addresses) else None):
                    connection = await self._connect(HostPort(address, host.port), *source)
            except ConnectionRefusedError:
                if len(addresses) == 1:
                    self.was_not_reached(host.host)
                    raise
                reasons.append(f"{address}: connection refused")
                refused_count += 1
            except OSError as error:
                reasons.append(f"{address}: {error or type(error).__name__}")
                cut_count += isinstance(error, ConnectionResetError)
            else:
                self.was_reached(host.host, address)
                return connection
        self.was_not_reached(host.host)
        if refused_count == len(addresses):  # every address refused the connection
            raise ConnectionRefusedError("; ".join(reasons))
        kind = ConnectionResetError if refused_count + cut_count == len(addresses) else OSError
        raise kind("; ".join(reasons))

    def was_reached(self, name: str, address: str = "") -> None:
        """The name leads somewhere. Try this address first the next time."""
        self._unreached_at.pop(name, None)
        last = self._last.get(name)
        if last is not None and last.addresses[0] != address and address in last.addresses:
            rest = tuple(other for other in last.addresses if other != address)
            self._last[name] = replace(last, addresses=(address, *rest))

    def was_not_reached(self, name: str) -> None:
        """Its addresses may be old ones: ask again before their time."""
        if name in self._last:
            self._unreached_at[name] = self._clock()

    def gave_no_session(self, host: HostPort) -> None:
        """The address that was reached refused, or did not greet: try another one the next time."""
        last = self._last.get(host.host)
        if last is not None:
            self._last[host.host] = replace(last, addresses=(*last.addresses[1:], last.addresses[0]))

    async def addresses(self, host: str, lane: str = "") -> tuple[str, ...]:
        """Addresses as text, at least one. Raises NoAddress."""
        fixed = _literal(host) or _localhost(host) or self._hosts().get(host.rstrip(".").lower(), ())
        last = self._last.get(host)
        if len(fixed) == 1:
            return fixed
        if fixed:
            self._learn(host, fixed, last)
            return self._last[host].addresses
        if last is not None and self._clock() - last.since > STALE_SECONDS_MAX:
            last = self._last.pop(host)
            last = None
        asking = asyncio.ensure_future(self._ask(host, lane))
        try:
            await asyncio.wait((asking,), timeout=None if last is None else self._stale_after)
        except BaseException:
            asking.cancel()
            raise
        if not asking.done():
            assert last is not None
            asking.cancel()  # the look-ups themselves continue
            return self._stale(host, last, "no answer yet")
        found, reason, is_sure = asking.result()
        if found:
            self._learn(host, found, last)
            return self._last[host].addresses
        if last is not None and not is_sure:
            return self._stale(host, last, reason)
        raise NoAddress(reason)

    def _learn(self, host: str, found: tuple[str, ...], last: LastAddresses | None) -> None:
        if last is not None and last.is_stale:
            _log.info("host.resolved_again", host=host)
        if last is not None and last.addresses[0] in found:  # the address that was reached stays first
            found = (last.addresses[0], *(address for address in found if address != last.addresses[0]))
        if host not in self._last and len(self._last) >= NAMES_MAX:
            self._last.pop(next(iter(self._last)))
        self._last[host] = LastAddresses(found, self._clock())

    def _stale(self, host: str, last: LastAddresses, reason: str) -> tuple[str, ...]:
        if not last.is_stale:
            _log.warning("host.address_stale", host=host, addresses=last.addresses, reason=reason)
            self._last[host] = replace(last, is_stale=True)
        return last.addresses

    async def _ask(self, host: str, lane: str) -> tuple[tuple[str, ...], str, bool]:
        """The addresses; or why there are none, and whether that answer is definite."""
        search, ndots = self._lookups.search()
        try:
            names = names_to_try(host, search, ndots)
        except (dns.exception.DNSException, ValueError) as error:
            return (), f"{host}: {error}", True
        reason, is_sure = f"{host} has no address", True
        for name in names:
            found, failure = await both_families(self._lookups, name, lane, self._freshness(host))
            if found:
                return found, "", True
            if failure:
                reason, is_sure = failure, False
        return (), reason, is_sure

    def _freshness(self, host: str) -> Freshness:
        unreached_at = self._unreached_at.get(host)
        if unreached_at is None:
            return FRESH
        return replace(FRESH, records=min(FRESH.records, max(self._clock() - unreached_at, ASK_AGAIN_SECONDS)))

    def _hosts(self) -> Mapping[str, tuple[str, ...]]:
        """The current hosts file; empty if it cannot be read."""
        now = self._clock()
        if now - self._file_at >= FILE_SECONDS:
            self._file_at = now
            try:
                stat = os.stat(self._path)
                version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if version != self._file_read:
                    with self._path.open("rb") as file:
                        self._file = parse_hosts(file.read(HOSTS_OCTETS_MAX))
                    self._file_read = version
            except OSError:
                self._file, self._file_read = {}, None
        return self._file


async def both_families(
    lookups: Lookups, name: dns.name.Name, lane: str = "", freshness: Freshness | None = None
) -> tuple[tuple[str, ...], str]:
    """IPv4 and IPv6 addresses of a name, queried at the same time; and why there are none, empty if that is definite."""
    asked = [asyncio.ensure_future(_ask(lookups, name, kind, lane, freshness)) for kind in ("A", "AAAA")]
    try:
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        has_some = any(answer.done() and answer.result().records for answer in asked)
        await asyncio.wait(asked, timeout=OTHER_FAMILY_SECONDS if has_some else None)
    finally:
        for question in asked:
            question.cancel()  # no effect on a finished one, and ends no look-up
    answers = [question.result() for question in asked if question.done() and not question.cancelled()]
    found = tuple(chain.from_iterable(answer.records for answer in answers))
    return found, "" if found else next((answer.reason for answer in answers if answer.found is AnswerKind.NOTHING), "")


async def _ask(lookups: Lookups, name: dns.name.Name, kind: str, lane: str, freshness: Freshness | None) -> DnsAnswer:
    return await (lookups.ask(name, kind, lane=lane) if freshness is None else lookups.ask(name, kind, lane=lane, freshness=freshness))


# rules


def names_to_try(host: str, search: Sequence[dns.name.Name], ndots: int) -> tuple[dns.name.Name, ...]:
    """The complete names that a host name may stand for, by resolv.conf(5). Raises: dns.exception.DNSException, ValueError."""
    name = dns.name.from_text(host, origin=None, idna_codec=dns.name.IDNA_2003)
    if name.is_absolute():
        return (name,)
    complete = name.concatenate(dns.name.root)
    longer = tuple(name.concatenate(suffix) for suffix in search)
    return (complete, *longer) if len(name) > ndots else (*longer, complete)


def interleaved(addresses: Iterable[str]) -> tuple[str, ...]:
    """The first address's family first, then alternating, so that a broken family does not use up all attempts. RFC 8305 4."""
    first: list[str] = []
    other: list[str] = []
    for address in addresses:
        (first if not first or (":" in address) == (":" in first[0]) else other).append(address)
    return tuple(address for pair in zip_longest(first, other) for address in pair if address is not None)


def parse_hosts(data: bytes) -> dict[str, tuple[str, ...]]:
    """hosts(5): an address and its names per line, `#` begins a comment; invalid lines are skipped."""
    found: dict[str, list[str]] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        words = line.partition("#")[0].split()
        if words and (address := _literal(words[0])):
            for name in words[1:]:
                known = found.setdefault(name.rstrip(".").lower(), [])
                known.extend(each for each in address if each not in known)
    return {name: tuple(sorted(known, key=lambda address: ":" in address)) for name, known in found.items()}


def _literal(host: str) -> tuple[str, ...]:
    try:
        return (str(ipaddress.ip_address(host)),)
    except ValueError:
        return ()


def _localhost(host: str) -> tuple[str, ...]:
    """RFC 6761 6.3: DNS is never asked for these names."""
    name = host.rstrip(".").lower()
    return ("127.0.0.1", "::1") if name == "localhost" or name.endswith(".localhost") else ()
