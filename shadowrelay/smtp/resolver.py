"""Find the mail servers of a domain and the order in which to try them. MX, implicit MX, null MX: RFC 5321 5.1, RFC 7505.

`Lookups` queries and caches; this module turns answers into hosts or delivery errors. A negative answer is a permanent error, no answer
is a transient one.

The hosts of a route are tried in order; the exchanges of a domain by preference, shuffled among equals. A host that failed recently
is tried last. A host that cost a whole connect timeout is skipped for a while if another host was tried in the same attempt, so that a
dead server does not slow every attempt; if it is the only host, the queue's retry ladder decides (docs/design.md 6.10).
"""

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import Protocol

import dns.exception
import dns.name

from shadowrelay.model.replies import PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.model.values import dataclass
from shadowrelay.smtp.host_names import LIFETIME_SECONDS, Found, Lookups, both_families

EXCHANGES_MAX = 20  # of one domain; a hostile zone may list hundreds
ADDRESSES_MAX = 8  # of one exchange

NO_SUCH_DOMAIN = Reply(550, "5.1.2", "The domain does not exist")  # RFC 3463 X.1.2
NO_ADDRESS = Reply(550, "5.1.2", "The domain has no mail server and no address")
NULL_MX = Reply(556, "5.1.10", "The domain does not accept mail (null MX)")  # RFC 7505 4.2
MAIL_LOOP = Reply(554, "5.4.6", "Mail for the domain would come back to this server")  # RFC 5321 5.1
LOOKUP_FAILED = Reply(451, "4.4.3", "The domain name could not be looked up")  # the reason is appended. RFC 3463 X.4.3
NO_USABLE_EXCHANGE = Reply(451, "4.4.3", "No mail server of the domain has an address")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A mail server of a domain; a lower preference is tried first."""

    preference: int
    host: str


class MailResolver(Protocol):
    """DNS look-ups for delivery."""

    async def exchanges(self, domain: str) -> tuple[Exchange, ...]:
        """Ascending preference, never empty, without this node or exchanges of no better preference. Raises DeliveryError."""
        ...

    async def addresses(self, host: str, port: int = 25) -> tuple[HostPort, ...]:
        """The addresses of one exchange; empty if it has none. Raises TransientDeliveryError."""
        ...


class DnsResolver:
    """See `MailResolver`. `own_names`: names under which this node accepts mail. `nameservers`: see `Lookups`."""

    def __init__(
        self,
        own_names: Collection[str],
        nameservers: Sequence[HostPort] = (),
        *,
        lifetime_seconds: float = LIFETIME_SECONDS,
        lookups: Lookups | None = None,
    ) -> None:
        self._own = {_normal(name) for name in own_names}
        self._lookups = lookups or Lookups(nameservers, lifetime_seconds=lifetime_seconds)

    async def exchanges(self, domain: str) -> tuple[Exchange, ...]:
        """See `MailResolver`. Source: RFC 5321 5.1, RFC 7505."""
        literal = _literal(domain)
        if literal:
            return (Exchange(0, literal),)
        answer = await self._lookups.ask(_absolute(domain), "MX")
        if answer.found is Found.NO_SUCH_NAME:
            raise PermanentDeliveryError(NO_SUCH_DOMAIN, domain)
        if answer.found is Found.NO_RECORDS:
            return await self._implicit(domain)
        if answer.found is Found.NOTHING:
            raise _unanswered(domain, answer.reason)
        found = [(int(preference), host.rstrip(".")) for preference, _, host in (text.partition(" ") for text in answer.records)]
        exchanges = sorted((Exchange(preference, host) for preference, host in found if host), key=_by_preference)
        if not exchanges:
            raise PermanentDeliveryError(NULL_MX, domain)
        own = [exchange.preference for exchange in exchanges if _normal(exchange.host) in self._own]
        if own:
            exchanges = [exchange for exchange in exchanges if exchange.preference < min(own)]
        if not exchanges:
            raise PermanentDeliveryError(MAIL_LOOP, domain)
        return tuple(exchanges[:EXCHANGES_MAX])

    async def _implicit(self, domain: str) -> tuple[Exchange, ...]:
        if not await self.addresses(domain):
            raise PermanentDeliveryError(NO_ADDRESS, domain)
        if _normal(domain) in self._own:
            raise PermanentDeliveryError(MAIL_LOOP, domain)
        return (Exchange(0, domain),)

    async def addresses(self, host: str, port: int = 25) -> tuple[HostPort, ...]:
        """See `MailResolver`. IPv4 first: more mail servers are reachable by it."""
        literal = _literal(host)
        if literal:
            return (HostPort(literal, port),)
        found, failure = await both_families(self._lookups, _absolute(host))
        if failure:
            raise _unanswered(host, failure)
        return tuple(HostPort(address, port) for address in found[:ADDRESSES_MAX])

    async def close(self) -> None:
        """Cancel running look-ups."""
        await self._lookups.close()


def _unanswered(name: str, reason: str) -> TransientDeliveryError:
    reply = LOOKUP_FAILED._replace(text=f"{LOOKUP_FAILED.text}: {reason}")
    return TransientDeliveryError(reply, name, is_unreachable=True)


def _absolute(domain: str) -> dns.name.Name:
    """Raises PermanentDeliveryError if the text is not a legal name."""
    try:
        return dns.name.from_text(domain, idna_codec=dns.name.IDNA_2003)
    except (dns.exception.DNSException, ValueError) as error:
        raise PermanentDeliveryError(NO_SUCH_DOMAIN, domain[:255]) from error


def _literal(host: str) -> str:
    """The address of `[192.0.2.1]` or `192.0.2.1`; empty for a name. RFC 5321 4.1.3."""
    text = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if text.lower().startswith("ipv6:"):
        text = text[5:]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def _normal(name: str) -> str:
    return name.rstrip(".").lower()


def _by_preference(exchange: Exchange) -> int:
    return exchange.preference


FAILED_HOSTS_MAX = 1000
FAILED_LATELY_SECONDS = 60.0  # tried after the others for so long
SKIPPED_SECONDS = 30.0  # skipped for so long if another host was tried: it cost a whole connect timeout


@dataclass(frozen=True, slots=True)
class Target:
    """A server to try; `name` is its name in MX or route."""

    host: HostPort
    name: str

    def __str__(self) -> str:
        return f"{self.name} [{self.host.host}]:{self.host.port}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure to open a session. Units: the loop's seconds."""

    failed_at: float
    was_slow: bool


class Hosts:
    """Orders hosts, and remembers failures. Units: the loop's seconds."""

    def __init__(self, resolver: MailResolver, mx_port: int, shuffle: Callable[[list[Exchange]], None]) -> None:
        self._resolver = resolver
        self._mx_port = mx_port
        self._shuffle = shuffle
        self._failures: dict[HostPort, Failure] = {}

    def of_route(self, destination: Destination) -> list[Target]:
        """The hosts of a route in the order of trying, recently failed ones last. No look-up."""
        targets = [Target(host, host.host) for host in destination.hosts]
        if len(targets) > 1:
            targets.sort(key=lambda target: (self._failed_lately(target.host), self.is_skipped(target.host)))
        return targets

    async def of_domain(self, destination: Destination) -> AsyncGenerator[Target, None]:
        """The exchanges of a domain in the order of trying, recently failed ones last. Raises DeliveryError, a transient
        one if no address is known because look-ups failed."""
        late: list[Target] = []
        unanswered: Reply | None = None
        is_found = False
        for exchange in self._shuffled(await self._resolver.exchanges(destination.domain)):
            try:
                hosts = await self._resolver.addresses(exchange.host, self._mx_port)
            except PermanentDeliveryError:
                continue  # not a legal name; the next exchange may have one
            except TransientDeliveryError as error:
                unanswered = error.reply
                continue
            for host in hosts:
                is_found = True
                target = Target(host, exchange.host)
                if self._failed_lately(host):
                    late.append(target)
                else:
                    yield target
        if unanswered is not None and not is_found:
            raise TransientDeliveryError(unanswered, destination.key, is_unreachable=True)
        for target in sorted(late, key=lambda target: self.is_skipped(target.host)):
            yield target

    def _shuffled(self, exchanges: tuple[Exchange, ...]) -> list[Exchange]:
        mixed = list(exchanges)
        if len(mixed) > 1:
            self._shuffle(mixed)
            mixed.sort(key=lambda exchange: exchange.preference)  # stable: equals stay shuffled
        return mixed

    def _failed_lately(self, host: HostPort) -> bool:
        failure = self._failures.get(host) if self._failures else None
        return failure is not None and asyncio.get_running_loop().time() - failure.failed_at < FAILED_LATELY_SECONDS

    def is_skipped(self, host: HostPort) -> bool:
        """Whether it cost a whole connect timeout recently."""
        failure = self._failures.get(host)
        return failure is not None and failure.was_slow and asyncio.get_running_loop().time() - failure.failed_at < SKIPPED_SECONDS

    def failed(self, host: HostPort, now: float, *, was_slow: bool) -> None:
        """Record that no session could be opened."""
        if len(self._failures) >= FAILED_HOSTS_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures[host] = Failure(now, was_slow)

    def reached(self, host: HostPort) -> None:
        """Record that a session was opened."""
        self._failures.pop(host, None)
