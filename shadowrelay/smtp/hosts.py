"""Whom to try in which order for a destination.

A route's hosts are tried in order, a domain's exchanges by preference and shuffled among equals. A host that failed lately
comes last. One that cost a whole connect timeout is left alone for a while where another host has been tried in the same
attempt, so that a dead server does not slow every attempt; where it is the only one, the queue's ladder decides (docs/design.md 6.10).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable

from shadowrelay.model.errors import PermanentDeliveryError, TransientDeliveryError
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.model.values import dataclass
from shadowrelay.smtp.resolver import Exchange, MailResolver

FAILED_HOSTS_MAX = 1000
FAILED_LATELY_SECONDS = 60.0  # tried after the others
LEFT_ALONE_SECONDS = 30.0  # not tried at all behind another: it cost a whole connect timeout


@dataclass(frozen=True, slots=True)
class Target:
    """A server to try; `name` is what it is called in MX or route."""

    host: HostPort
    name: str

    def __str__(self) -> str:
        return f"{self.name} [{self.host.host}]:{self.host.port}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Of the last opening. Units: the loop's seconds."""

    failed_at: float
    was_slow: bool


class Hosts:
    """Remembers who failed. Units: the loop's seconds."""

    def __init__(self, resolver: MailResolver, mx_port: int, shuffle: Callable[[list[Exchange]], None]) -> None:
        self._resolver = resolver
        self._mx_port = mx_port
        self._shuffle = shuffle
        self._failures: dict[HostPort, Failure] = {}

    def of_route(self, destination: Destination) -> list[Target]:
        """The hosts of a route in the order of trying; those that failed lately at the end. Asks nobody."""
        targets = [Target(host, host.host) for host in destination.hosts]
        if len(targets) > 1:
            targets.sort(key=lambda target: (self._failed_lately(target.host), self.is_left_alone(target.host)))
        return targets

    async def of_domain(self, destination: Destination) -> AsyncGenerator[Target, None]:
        """The exchangers of a domain in the order of trying; those that failed lately at the end. Raises DeliveryError, a transient
        one where no address is known because the look-ups failed."""
        late: list[Target] = []
        unanswered: Reply | None = None
        is_found = False
        for exchange in self._shuffled(await self._resolver.exchanges(destination.domain)):
            try:
                hosts = await self._resolver.addresses(exchange.host, self._mx_port)
            except PermanentDeliveryError:
                continue  # it can be no name; the next exchange may have one
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
        for target in sorted(late, key=lambda target: self.is_left_alone(target.host)):
            yield target

    def _shuffled(self, exchanges: tuple[Exchange, ...]) -> list[Exchange]:
        mixed = list(exchanges)
        if len(mixed) > 1:
            self._shuffle(mixed)
            mixed.sort(key=lambda exchange: exchange.preference)  # stable: equals stay as they were shuffled
        return mixed

    def _failed_lately(self, host: HostPort) -> bool:
        failure = self._failures.get(host) if self._failures else None
        return failure is not None and asyncio.get_running_loop().time() - failure.failed_at < FAILED_LATELY_SECONDS

    def is_left_alone(self, host: HostPort) -> bool:
        """It cost us a whole timeout a moment ago."""
        failure = self._failures.get(host)
        return failure is not None and failure.was_slow and asyncio.get_running_loop().time() - failure.failed_at < LEFT_ALONE_SECONDS

    def failed(self, host: HostPort, now: float, *, was_slow: bool) -> None:
        """No session could be opened."""
        if len(self._failures) >= FAILED_HOSTS_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures[host] = Failure(now, was_slow)

    def reached(self, host: HostPort) -> None:
        """A session was opened."""
        self._failures.pop(host, None)
