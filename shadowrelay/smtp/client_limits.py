"""Limits for each client of a receive connector: what it may do in a minute. docs/reference.md "Limits for each client".

`ClientMinutes` counts, and knows no clock: the time is passed in. A client's minute begins with the first thing that counts, and when it is
over the client is forgotten. So all clients of the last minute are known exactly, and no others: the table is in the order in which the
minutes end, and what has ended is taken from its front. Only where more than `CLIENTS_MAX` came within a minute is the one forgotten whose
minute ends first, which would have been forgotten soonest anyway.

`ClientLimits` compares with the settings of a connector. It never sees peers: their sessions do not ask (`Connection.over_limit`).
"""

import heapq
from collections import Counter, OrderedDict
from functools import lru_cache
from typing import Final

import structlog

from shadowrelay.model.client_address import client_network
from shadowrelay.model.client_minute import ClientView, Counted, Minute
from shadowrelay.model.receive_settings import LimitsPerClient
from shadowrelay.model.replies import Reply
from shadowrelay.model.setting_texts import is_in_networks
from shadowrelay.smtp.limits import CACHED_MAX

MINUTE_SECONDS = 60.0
CLIENTS_MAX = 150_000  # x 350 octets = 53 MB for each connector with limits, and only under an attack of so many networks

REPLIES: Final = {
    Counted.CONNECTIONS: Reply(421, "4.7.0", "Too many connections from your address in a minute, try again later"),
    Counted.MESSAGES: Reply(450, "4.7.1", "Too many messages from your address in a minute, try again later"),
    Counted.RECIPIENTS: Reply(452, "4.7.1", "Too many recipients from your address in a minute, try again later"),
    Counted.REFUSED_RECIPIENTS: Reply(421, "4.7.1", "Too many wrong recipients from your address in a minute, try again later"),
    Counted.OCTETS: Reply(452, "4.7.1", "Too much content from your address in a minute, try again later"),
}

_log = structlog.get_logger()


class ClientMinutes:
    """The present minute of each client. `now` must not go back."""

    def __init__(self, clients_max: int = CLIENTS_MAX) -> None:
        self._clients_max = clients_max
        self._minutes: OrderedDict[str, Minute] = OrderedDict()
        self.forgotten_count = 0  # minutes that were forgotten before their end

    def __len__(self) -> int:
        return len(self._minutes)

    def of(self, client: str, now: float) -> Minute:
        """The minute of this client, which begins now if there is none."""
        found = self._minutes.get(client)
        if found is not None and now < found.ends_at:
            return found
        self._forget_ended(now)
        if len(self._minutes) >= self._clients_max:
            self._minutes.popitem(last=False)
            self.forgotten_count += 1
        found = self._minutes[client] = Minute(now + MINUTE_SECONDS)  # last: of all it ends last
        return found

    def known(self, client: str, now: float) -> Minute | None:
        """The same, without a beginning."""
        found = self._minutes.get(client)
        return found if found is not None and now < found.ends_at else None

    def _forget_ended(self, now: float) -> None:
        minutes = self._minutes
        while minutes and minutes[next(iter(minutes))].ends_at <= now:
            minutes.popitem(last=False)

    def all(self, now: float) -> list[tuple[str, Minute]]:
        """Every client whose minute is not over."""
        self._forget_ended(now)
        return list(self._minutes.items())


def fits(what: Counted, used: int, amount: int, limit: int) -> bool:
    """Whether so much more is allowed. The first message of a minute is, whatever its size: else it could never be sent."""
    if not limit or used + amount <= limit:
        return True
    return what is Counted.OCTETS and not used


class ClientLimits:
    """The limits of one receive connector. Counters are since the start of the process."""

    def __init__(self, connector: str, settings: LimitsPerClient) -> None:
        self._connector = connector
        self.minutes = ClientMinutes()
        self.refused: Counter[Counted] = Counter(dict.fromkeys(Counted, 0))
        self.early_count = 0  # clients that talked before the greeting
        self.adopt(settings)

    def adopt(self, settings: LimitsPerClient) -> None:
        """Apply changed settings; what was counted stays."""
        self.greeting_seconds = settings.greeting_delay.total_seconds()
        self._limits: dict[Counted, int] = {what: getattr(settings, f"{what}_per_minute") for what in Counted}
        self.is_active = any(self._limits.values()) or bool(self.greeting_seconds)
        self.is_exempt = lru_cache(CACHED_MAX)(lambda address: is_in_networks(address, settings.exempt))

    def take(self, address: str, what: Counted, amount: int, now: float) -> Reply | None:
        """Count so much for the client with this address; or, if that is too much, the refusal, and nothing is counted."""
        if self.is_exempt(address):
            return None
        client = client_network(address)
        minute = self.minutes.of(client, now)
        used: int = getattr(minute, what)
        if not fits(what, used, amount, self._limits[what]):
            return self._refused(client, what, minute)
        setattr(minute, what, used + amount)
        return None

    def note(self, address: str, what: Counted, now: float) -> None:
        """Count one, whatever the limit is: it has happened."""
        if not self.is_exempt(address):
            minute = self.minutes.of(client_network(address), now)
            setattr(minute, what, getattr(minute, what) + 1)

    def exceeded(self, address: str, what: Counted, amount: int, now: float) -> Reply | None:
        """The refusal if so much more would be too much. Nothing is counted."""
        if not self._limits[what] or self.is_exempt(address):
            return None
        client = client_network(address)
        minute = self.minutes.known(client, now)
        if minute is None or fits(what, getattr(minute, what), amount, self._limits[what]):
            return None
        return self._refused(client, what, minute)

    def _refused(self, client: str, what: Counted, minute: Minute) -> Reply:
        self.refused[what] += 1
        if not minute.limited_count:  # once in a minute of a client
            _log.info("client.limited", connector=self._connector, client=client, limit=what.value, per_minute=self._limits[what])
        minute.limited_count += 1
        return REPLIES[what]


def clients_of(connector: str, minutes: list[tuple[str, Minute]], sessions: dict[str, int], limit: int, now: float) -> list[ClientView]:
    """The heaviest clients of a connector. Called in a thread: to look through all takes its time."""
    counted = dict(minutes)
    views = (
        ClientView(connector, client, sessions.get(client, 0), minute, 0.0 if minute is None else max(minute.ends_at - now, 0.0))
        for client, minute in ((client, counted.get(client)) for client in counted.keys() | sessions.keys())
    )
    return heapq.nlargest(limit, views, key=_weight)


def heaviest(views: list[ClientView], limit: int) -> list[ClientView]:
    """Those who were refused most first, then those who did most, then those who have most sessions."""
    return heapq.nlargest(limit, views, key=_weight)


def _weight(view: ClientView) -> tuple[int, int, int, str]:
    minute = view.minute
    if minute is None:
        return 0, 0, view.sessions_count, view.client
    done = minute.connections + minute.messages + minute.recipients + minute.refused_recipients
    return minute.limited_count, done, view.sessions_count, view.client
