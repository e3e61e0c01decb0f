"""The servers of a next hop, address by address, in the order of trying. RFC 5321 5.1; docs/design.md 6.10.

The hosts of a route are tried in order, and each address of a host that is a name; the exchanges of a domain by preference, shuffled among
equals. An address in trouble comes last (`next_hop_rules`).
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncGenerator, Callable
from math import inf

from shadowrelay.model.protection import Protection
from shadowrelay.model.replies import DeliveryError, PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort, Reach
from shadowrelay.model.values import dataclass
from shadowrelay.smtp import next_hop_rules as rules
from shadowrelay.smtp.host_names import ADDRESSES_TRIED_MAX, NAMES_MAX, HostNames, interleaved
from shadowrelay.smtp.mta_sts import NOT_IN_POLICY, MtaSts
from shadowrelay.smtp.next_hop_sessions import AddressSessions, Sessions
from shadowrelay.smtp.own_addresses import is_out_of_reach
from shadowrelay.smtp.resolver import MAIL_LOOP, Exchange, MailResolver

OUT_OF_REACH = Reply(550, "5.4.4", "No notification of a stranger's mail is sent to a server of that network")  # RFC 3463 X.4.4
RESOLVED_SECONDS = 1.0  # a name is not looked up for every message


@dataclass(frozen=True, slots=True)
class NextHopHost:
    """A server to try; `name` is its name in MX or route. `is_one_of_several` addresses of that name; another one `is_next`.
    `protection` of sessions with it."""

    host: HostPort
    name: str
    is_one_of_several: bool = False
    protection: Protection | None = None
    is_next: bool = False

    def __str__(self) -> str:
        return f"{self.name} [{self.host.host}]:{self.host.port}"


class NextHops:
    """Orders the servers. Without `names`, names in routes are left to who connects."""

    def __init__(
        self,
        resolver: MailResolver,
        sessions: Sessions,
        mx_port: int,
        shuffle: Callable[[list[Exchange]], None],
        names: HostNames | None,
        is_own: Callable[[HostPort], bool],
        policies: MtaSts | None = None,
    ) -> None:
        self._policies = policies
        self._is_own = is_own
        self._resolver = resolver
        self._sessions = sessions
        self._mx_port = mx_port
        self._shuffle = shuffle
        self._names = names
        self._resolved: dict[tuple[HostPort, Protection | None], tuple[float, tuple[NextHopHost, ...]]] = {}  # until when it counts

    def at_hand(self, destination: Destination, now: float) -> tuple[NextHopHost, AddressSessions] | None:
        """The first server of a route, if it needs no look-up and is in no trouble: nearly always, and without a generator."""
        if not destination.hosts or destination.is_literal:
            return None
        known = self._resolved.get((destination.hosts[0], destination.protection))
        if known is None or known[0] < now:
            return None
        first = known[1][0]
        sessions = self._sessions.known(first)
        return None if sessions is None or sessions.trouble is not None else (first, sessions)

    async def targets(self, destination: Destination, reach: Reach = Reach.ANYWHERE) -> AsyncGenerator[NextHopHost, None]:
        """The addresses in the order of trying. Raises DeliveryError, a transient one if no address is known because look-ups failed, or
        only servers that are avoided are left. `reach` holds where no route names the servers."""
        if destination.is_literal and all(is_out_of_reach(host, reach) for host in destination.hosts):
            raise PermanentDeliveryError(OUT_OF_REACH, destination.key)
        now = asyncio.get_running_loop().time()
        late: list[NextHopHost] = []
        async with contextlib.aclosing(self._of_route(destination) if destination.hosts else self._of_domain(destination, reach)) as found:
            async for target in found:
                sessions = self._sessions.known(target)
                if sessions is not None and sessions.trouble is not None:
                    if rules.is_tried_late(sessions.trouble, now):
                        late.append(target)
                        continue
                    sessions.trouble = rules.probing(sessions.trouble, now)
                yield target
        for target in sorted(late, key=self.is_skipped):
            yield target

    def is_skipped(self, target: NextHopHost) -> bool:
        """Whether it is left out where another address was tried."""
        sessions = self._sessions.known(target)
        return sessions is not None and rules.is_skipped(sessions.trouble, asyncio.get_running_loop().time())

    async def _of_route(self, destination: Destination) -> AsyncGenerator[NextHopHost, None]:
        for host in destination.hosts:
            known = self._resolved.get((host, destination.protection))
            if known is None or known[0] < asyncio.get_running_loop().time():
                known = await self._resolve(host, destination.protection)
            for target in known[1]:
                yield target

    async def _resolve(self, host: HostPort, protection: Protection | None) -> tuple[float, tuple[NextHopHost, ...]]:
        """The addresses of a host; the host itself if it is an address, or has none: to connect to it says why."""
        until = inf
        addresses: tuple[HostPort, ...] = (host,)
        if self._names is not None and not _is_address(host.host):
            until = asyncio.get_running_loop().time() + RESOLVED_SECONDS
            with contextlib.suppress(OSError):
                found = interleaved(await self._names.addresses(host.host))
                addresses = tuple(HostPort(address, host.port, host.scheme) for address in found[:ADDRESSES_TRIED_MAX])
        if len(self._resolved) >= NAMES_MAX:
            self._resolved.clear()
        is_one_of_several = len(addresses) > 1
        last = addresses[-1]
        targets = tuple(NextHopHost(each, host.host, is_one_of_several, protection, each is not last) for each in addresses)
        known = self._resolved[host, protection] = until, targets
        return known

    async def _of_domain(self, destination: Destination, reach: Reach) -> AsyncGenerator[NextHopHost, None]:
        unanswered: Reply | None = None
        is_found = is_left_out = is_loop = is_forbidden = is_unlisted = False
        kept = None if self._policies is None else await self._policies.of(destination.domain)
        protection = None if kept is None else kept.protection
        avoided = await self._with_addresses(destination.avoided) if destination.avoided else destination.avoided
        try:
            exchanges = await self._resolver.exchanges(destination.domain)
        except PermanentDeliveryError as error:
            if not avoided:
                raise
            # The message came this way because a server is lost: that one may return, and then it has a route again
            raise TransientDeliveryError(_no_route_without(avoided, str(error.reply)), destination.key, is_unreachable=True) from error
        for exchange in self._shuffled(exchanges):
            demanded = protection
            if protection is not None and kept is not None and not kept.policy.covers(exchange.host):
                if not protection.is_trial:
                    is_unlisted = True
                    continue
                assert self._policies is not None
                self._policies.would_fail(exchange.host, protection.policy, NOT_IN_POLICY)
                demanded = None
            try:
                hosts = await self._resolver.addresses(exchange.host, self._mx_port)
            except PermanentDeliveryError:
                continue  # not a legal name; the next exchange may have one
            except TransientDeliveryError as error:
                unanswered = error.reply
                continue
            if any(map(self._is_own, hosts)):  # only better ones may be tried. RFC 5321 5.1
                is_loop = True
                break
            name = HostPort(exchange.host.rstrip(".").lower(), self._mx_port)
            for host in hosts:
                if avoided and (host in avoided or name in avoided):
                    is_left_out = True
                    continue
                if is_out_of_reach(host, reach):
                    is_forbidden = True
                    continue
                is_found = True
                yield NextHopHost(host, exchange.host, len(hosts) > 1 or len(exchanges) > 1, demanded, host is not hosts[-1])
        if is_forbidden and not is_found:
            raise PermanentDeliveryError(OUT_OF_REACH, destination.domain)
        if unanswered is not None and not is_found:
            raise TransientDeliveryError(unanswered, destination.key, is_unreachable=True)
        if is_left_out and not is_found:
            why = "its MX records name no other server"
            raise TransientDeliveryError(_no_route_without(avoided, why), destination.key, is_unreachable=True)
        if is_unlisted and not is_found and not is_loop:
            raise TransientDeliveryError(NOT_IN_POLICY, destination.key, is_unreachable=True)
        if is_loop and not is_found:
            raise PermanentDeliveryError(MAIL_LOOP, destination.domain)

    async def _with_addresses(self, avoided: frozenset[HostPort]) -> frozenset[HostPort]:
        """These servers under every address that they have: an exchange may be one of them under another name."""
        found = set(avoided)
        for server in avoided:
            with contextlib.suppress(DeliveryError):
                found.update(await self._resolver.addresses(server.host, server.port))
        return frozenset(found)

    def _shuffled(self, exchanges: tuple[Exchange, ...]) -> list[Exchange]:
        mixed = list(exchanges)
        if len(mixed) > 1:
            self._shuffle(mixed)
            mixed.sort(key=lambda exchange: exchange.preference)  # stable: equals stay shuffled
        return mixed

    def reached(self, target: NextHopHost) -> None:
        """It is connected."""
        if self._names is not None and target.name != target.host.host:
            self._names.was_reached(target.name)

    def not_reached(self, target: NextHopHost) -> None:
        """It could not be connected: its name may have another address by now."""
        if self._names is not None and target.name != target.host.host:
            self._names.was_not_reached(target.name)
            self._resolved.pop((HostPort(target.name, target.host.port, target.host.scheme), target.protection), None)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _no_route_without(avoided: frozenset[HostPort], reason: str) -> Reply:
    return Reply(451, "4.4.4", f"There is no other route than by {', '.join(sorted(map(str, avoided)))}: {reason}")  # RFC 3463 X.4.4
