"""Finds the mail servers of a domain. MX, implicit MX, null MX: RFC 5321 5.1, RFC 7505.

`Lookups` queries and caches; this module turns answers into hosts or delivery errors. A negative answer is a permanent error, no answer
is a transient one.
"""

import ipaddress
from collections.abc import Collection, Sequence
from typing import Protocol

import dns.exception
import dns.name

from shadowrelay.model.numbers import decimal
from shadowrelay.model.replies import PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import dataclass
from shadowrelay.smtp.host_names import LIFETIME_SECONDS, AnswerKind, Lookups, both_families

EXCHANGES_MAX = 20  # of one domain; a hostile zone may list hundreds
ADDRESSES_MAX = 8  # of one exchange

NO_SUCH_DOMAIN = Reply(550, "5.1.2", "The domain does not exist")  # RFC 3463 X.1.2
NO_ADDRESS = Reply(550, "5.1.2", "The domain has no mail server and no address")
NULL_MX = Reply(556, "5.1.10", "The domain does not accept mail (null MX)")  # RFC 7505 4.2
LEADS_HERE = Reply(451, "4.4.6", "This next hop leads back to this server: mail would come back")  # RFC 3463 X.4.6
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
        if answer.found is AnswerKind.NO_SUCH_NAME:
            raise PermanentDeliveryError(NO_SUCH_DOMAIN, domain)
        if answer.found is AnswerKind.NO_RECORDS:
            return await self._implicit(domain)
        if answer.found is AnswerKind.NOTHING:
            raise _unanswered(domain, answer.reason)
        found = [(decimal(preference) or 0, host.rstrip(".")) for preference, _, host in (text.partition(" ") for text in answer.records)]
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

    async def texts(self, name: str) -> tuple[str, ...]:
        """The TXT records of this name as they are printed; empty if there are none, or nothing answers."""
        try:
            answer = await self._lookups.ask(_absolute(name), "TXT")
        except PermanentDeliveryError:
            return ()
        return answer.records if answer.found is AnswerKind.RECORDS else ()

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
