"""Connecting to the hosts that the configuration names: peers, and the next hops of routes.

Not by the system's resolver: its calls share a few threads, and a name that nobody answers for would keep them all. The order
is that of `getaddrinfo` on most systems: an address, `localhost` (RFC 6761), the hosts file, then DNS with the search list of
/etc/resolv.conf, so that the names of a container network are found.

The addresses that were found last are used on when DNS gives no answer (RFC 8767). What DNS says is believed for `FRESH` at most, and no
longer where nobody could be reached there: a container that is started again has another address, and its old one many seconds to live.
"""

import asyncio
import ipaddress
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

import dns.exception
import dns.name
import structlog

from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass
from shadowrelay.smtp.client import dial
from shadowrelay.smtp.lookups import Answer, Found, Freshness, Lookups

HOSTS_FILE = Path("/etc/hosts")
HOSTS_OCTETS_MAX = 1_000_000
FILE_SECONDS = 1.0  # between looks at whether the file has changed
FRESH = Freshness(records=30.0, others=5.0)
ASK_AGAIN_SECONDS = 1.0  # at most so often, while nobody can be reached at a name
STALE_AFTER_SECONDS = 1.8  # then an old address is used, while DNS is still asked. RFC 8767 5
STALE_SECONDS_MAX = 259_200.0  # three days. RFC 8767 5: one to three
OTHER_FAMILY_SECONDS = 0.05  # for the addresses of the other family, once one has come. RFC 8305 3
ADDRESSES_TRIED_MAX = 4
ADDRESS_SECONDS = 5.0  # to connect to one address while there is another
NAMES_MAX = 1000
PEERS = "peers"  # a lane of their own: peers wait behind no next hop

log = structlog.stdlib.get_logger()


class NoAddress(OSError):
    """The name has none now."""


@dataclass(frozen=True, slots=True)
class Good:
    """What was found last for a name. `since` in seconds of the monotonic clock."""

    addresses: tuple[str, ...]
    since: float
    is_stale: bool = False


class HostNames:
    """Shared by everything that connects by name."""

    def __init__(
        self,
        lookups: Lookups,
        *,
        hosts_file: Path = HOSTS_FILE,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[HostPort], Awaitable[socket.socket]] = dial,
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
        self._good: dict[str, Good] = {}
        self._unreached_at: dict[str, float] = {}

    async def dial(self, host: HostPort) -> socket.socket:
        """A connection to a next hop. Raises ConnectionRefusedError where every address refuses, else OSError."""
        return await self._dial(host, "")

    async def dial_peer(self, host: HostPort) -> socket.socket:
        """A connection to a peer. Raises as `dial`."""
        return await self._dial(host, PEERS)

    async def _dial(self, host: HostPort, lane: str) -> socket.socket:
        addresses = interleaved(await self.addresses(host.host, lane))[:ADDRESSES_TRIED_MAX]
        reasons: list[str] = []
        refused_count = 0
        for index, address in enumerate(addresses):
            try:
                async with asyncio.timeout(ADDRESS_SECONDS if index + 1 < len(addresses) else None):
                    connection = await self._connect(HostPort(address, host.port))
            except ConnectionRefusedError:
                if len(addresses) == 1:
                    self._was_not_reached(host.host)
                    raise
                reasons.append(f"{address}: connection refused")
                refused_count += 1
            except OSError as error:
                reasons.append(f"{address}: {error or type(error).__name__}")
            else:
                self._was_reached(host.host, address)
                return connection
        self._was_not_reached(host.host)
        kind = ConnectionRefusedError if refused_count == len(addresses) else OSError  # refused: nobody listens at any of them
        raise kind("; ".join(reasons))

    def _was_reached(self, name: str, address: str) -> None:
        """That one first the next time."""
        self._unreached_at.pop(name, None)
        good = self._good.get(name)
        if good is not None and good.addresses[0] != address and address in good.addresses:
            rest = tuple(other for other in good.addresses if other != address)
            self._good[name] = replace(good, addresses=(address, *rest))

    def _was_not_reached(self, name: str) -> None:
        if name in self._good:
            self._unreached_at[name] = self._clock()

    async def addresses(self, host: str, lane: str = "") -> tuple[str, ...]:
        """Texts of addresses, at least one. Raises NoAddress."""
        fixed = _literal(host) or _localhost(host) or self._hosts().get(host.rstrip(".").lower(), ())
        if fixed:
            return fixed
        good = self._good.get(host)
        if good is not None and self._clock() - good.since > STALE_SECONDS_MAX:
            good = self._good.pop(host)
            good = None
        asking = asyncio.ensure_future(self._ask(host, lane))
        try:
            await asyncio.wait((asking,), timeout=None if good is None else self._stale_after)
        except BaseException:
            asking.cancel()
            raise
        if not asking.done():
            assert good is not None
            asking.cancel()  # the look-ups themselves go on
            return self._stale(host, good, "no answer yet")
        found, reason, is_sure = asking.result()
        if found:
            self._learn(host, found, good)
            return self._good[host].addresses
        if good is not None and not is_sure:
            return self._stale(host, good, reason)
        raise NoAddress(reason)

    def _learn(self, host: str, found: tuple[str, ...], good: Good | None) -> None:
        if good is not None and good.is_stale:
            log.info("host.resolved_again", host=host)
        if good is not None and good.addresses[0] in found:  # the one that was reached stays the first
            found = (good.addresses[0], *(address for address in found if address != good.addresses[0]))
        if host not in self._good and len(self._good) >= NAMES_MAX:
            self._good.pop(next(iter(self._good)))
        self._good[host] = Good(found, self._clock())

    def _stale(self, host: str, good: Good, reason: str) -> tuple[str, ...]:
        if not good.is_stale:
            log.warning("host.address_stale", host=host, addresses=good.addresses, reason=reason)
            self._good[host] = replace(good, is_stale=True)
        return good.addresses

    async def _ask(self, host: str, lane: str) -> tuple[tuple[str, ...], str, bool]:
        """Addresses, or why there are none, and whether that is certain."""
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
        """The hosts file as it is now; what cannot be read has no names."""
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
    """IPv4 and IPv6 addresses of a name, asked for at the same time; and why there are none, empty where that is certain."""
    asked = [asyncio.ensure_future(_ask(lookups, name, kind, lane, freshness)) for kind in ("A", "AAAA")]
    try:
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        has_some = any(answer.done() and answer.result().records for answer in asked)
        await asyncio.wait(asked, timeout=OTHER_FAMILY_SECONDS if has_some else None)
    finally:
        for question in asked:
            question.cancel()  # does nothing to one that is done, and ends no look-up
    answers = [question.result() for question in asked if question.done() and not question.cancelled()]
    found = tuple(chain.from_iterable(answer.records for answer in answers))
    return found, "" if found else next((answer.reason for answer in answers if answer.found is Found.NOTHING), "")


async def _ask(lookups: Lookups, name: dns.name.Name, kind: str, lane: str, freshness: Freshness | None) -> Answer:
    return await (lookups.ask(name, kind, lane=lane) if freshness is None else lookups.ask(name, kind, lane=lane, freshness=freshness))


# rules


def names_to_try(host: str, search: Sequence[dns.name.Name], ndots: int) -> tuple[dns.name.Name, ...]:
    """The complete names that a host's name may stand for, as resolv.conf(5) says. Raises: dns.exception.DNSException, ValueError."""
    name = dns.name.from_text(host, origin=None, idna_codec=dns.name.IDNA_2003)
    if name.is_absolute():
        return (name,)
    complete = name.concatenate(dns.name.root)
    longer = tuple(name.concatenate(suffix) for suffix in search)
    return (complete, *longer) if len(name) > ndots else (*longer, complete)


def interleaved(addresses: Iterable[str]) -> tuple[str, ...]:
    """The first one's family first, then in turn: a few attempts shall not all be of a family that does not work here. RFC 8305 4."""
    first: list[str] = []
    other: list[str] = []
    for address in addresses:
        (first if not first or (":" in address) == (":" in first[0]) else other).append(address)
    return tuple(address for pair in zip_longest(first, other) for address in pair if address is not None)


def parse_hosts(data: bytes) -> dict[str, tuple[str, ...]]:
    """hosts(5): an address and its names on a line, `#` begins a comment; lines that are none are left out."""
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
    """RFC 6761 6.3: these are never asked for."""
    name = host.rstrip(".").lower()
    return ("127.0.0.1", "::1") if name == "localhost" or name.endswith(".localhost") else ()
