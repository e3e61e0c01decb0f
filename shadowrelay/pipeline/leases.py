"""Leases on the servers that may hold copies. docs/design.md 6.2, 6.4.

They are kept in memory and do not survive the process. Their arithmetic is in `ownership.rules`.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta

from shadowrelay.model.ids import NO_DATABASE, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Ordinals
from shadowrelay.model.ownership import Choice, Claim, Copy
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.settings import Transport, WithoutLease
from shadowrelay.ownership import rules
from shadowrelay.pipeline.flights import Flights
from shadowrelay.ports import Clock

LONGEST_REPLY_SECONDS = rules.REPLY_ALLOWANCE_MAX.total_seconds()  # nobody waits longer for the reply to a final dot


class Leases:
    """Per server the unbroken run of proofs; per message and server the end of the copy's own lease.

    `suffices` decides whether an attempt may start, `may_end_data` whether it may send its final dot. Both also require a
    recent proof if `delivery_without_lease` is `defer`. No lease is needed on a server that was unheard when all nodes were asked, while
    it `is_away`; from its return on it is in the way until it was asked.
    """

    def __init__(self, clock: Clock, transport: Transport, is_away: Callable[[ServerName], bool]) -> None:
        self._clock = clock
        self._is_away = is_away
        self._span = span = transport.shadow_resubmit_time_span
        self._spans: dict[ServerName, timedelta] = {}
        self._lengths: dict[ServerName, float] = {}  # of servers whose span is known
        self._length = rules.lease_length(span, span)
        self.track_span = transport.shadow_heartbeat_timeout_interval * transport.shadow_heartbeat_retry_count  # fixed until the next start
        self._servers: dict[ServerName, rules.ServerLease] = {}
        self._copies: dict[MessageId, dict[ServerName, float]] = {}
        self._confirmed: dict[MessageId, dict[ServerName, float]] = {}  # confirmation times; kept for `defer` only
        self.are_suspended = False  # no attempt may end its data: this node cannot record its outcome, or it is an older copy
        self.reply_allowance = rules.reply_allowance(span)
        self.configure(transport)

    def configure(self, transport: Transport) -> None:
        """Apply a changed policy or poll interval; the span is fixed until the next start."""
        is_deferring = transport.delivery_without_lease is WithoutLease.DEFER
        self._proof_age_max = rules.proof_age_max(transport.discard_poll_interval) if is_deferring else None

    def learn_span(self, server: ServerName, span: timedelta, track: timedelta | None = None) -> None:
        """The peer's own span, from its XSHADOW. One that differs is safe, but probably not meant: leases use the shorter one, and a
        takeover waits for the longer one. `track`: when it takes back what it relayed to this node; the lease ends before that, too."""
        self._spans[server] = span
        self._lengths[server] = rules.lease_length(self._span, span if track is None else min(span, track))
        if track is not None:
            self.reply_allowance = min(self.reply_allowance, rules.reply_allowance(track))  # no lease on a previous hop lasts longer

    def length(self, server: ServerName) -> float:
        """Seconds that a lease on this server lasts."""
        return self._lengths.get(server, self._length)

    def silence_limit(self, server: ServerName) -> float:
        """Seconds of silence of this server after which its shadow messages are promoted."""
        return rules.silence_limit(self._span, self._spans.get(server, self._span))

    def silence_limit_of_kept(self) -> float:
        """Seconds of silence of a next hop after which what was relayed to it by TRACK is taken back."""
        return self.track_span.total_seconds()

    def proved(self, server: ServerName, database: DatabaseId, spoke_at: float) -> None:
        """The server has received what we sent at `spoke_at`."""
        lease = self._servers.get(server)
        self._servers[server] = rules.renewed(lease, database, spoke_at, self._clock.awake(), self._lengths.get(server, self._length))

    def began(self, message_id: MessageId, server: ServerName, spoke_at: float, *, is_confirmed: bool) -> None:
        """A copy was sent, or chosen again, beginning at `spoke_at`. Unconfirmed, it counts only if there was no lease before:
        the server may have received nothing, and an older copy there would not wait longer."""
        copies = self._copies.setdefault(message_id, {})
        if is_confirmed or server not in copies:
            copies[server] = spoke_at + self._lengths.get(server, self._length)
        if is_confirmed and self._proof_age_max is not None:
            self._confirmed.setdefault(message_id, {})[server] = self._clock.awake()

    def inherit(self, message_id: MessageId, original_id: MessageId) -> None:
        """A DSN has its original's servers on its list (`claims.generated_claim`), and inherits the leases on them."""
        self._copies[message_id] = dict(self._copies.get(original_id, ()))
        if original_id in self._confirmed:
            self._confirmed[message_id] = dict(self._confirmed[original_id])

    def begin_without_lease(self, message_id: MessageId, server: ServerName) -> None:
        """The server may hold a copy that this process did not send, and how long it will wait is unknown: no lease."""
        # A new dict: a decision may call this on the writer's thread, while the event loop goes through the old one.
        self._copies[message_id] = {**self._copies.get(message_id, {}), server: 0.0}

    def left(self, message_id: MessageId, copy: Copy) -> float:
        """Seconds left of the lease on one copy; zero or less: it has ended."""
        if copy.choice is Choice.UNHEARD:
            return math.inf if self._is_away(copy.server) else 0.0
        until = self._copies.get(message_id, {}).get(copy.server)
        return rules.lease_left(until, copy.database, self._servers.get(copy.server), self._clock.awake())

    def suffices(self, message_id: MessageId, copy: Copy) -> bool:
        """Whether the lease runs long enough for a final dot, because an attempt that could not end would only be repeated; and,
        if `delivery_without_lease` is `defer`, whether the server has proved receipt recently."""
        if not rules.may_end_data(self.left(message_id, copy), self.reply_allowance):
            return False
        return self._proof_age_max is None or copy.choice is Choice.UNHEARD or self._is_recent(message_id, copy.server, self._proof_age_max)

    def _is_recent(self, message_id: MessageId, server: ServerName, age_max: float) -> bool:
        """Whether the last proof is recent enough."""
        lease = self._servers.get(server)
        confirmed_at = self._confirmed.get(message_id, {}).get(server, -math.inf)
        proved_at = confirmed_at if lease is None else max(confirmed_at, lease.proved_at)
        return self._clock.awake() - proved_at <= age_max

    def may_end_data(self, message_id: MessageId, claim: Claim, excused: Collection[ServerName], known: Mapping[ServerName, float]) -> bool:
        """Rule *dot*, checked right before the final dot of an attempt that began with this claim; the leases of `excused` are
        waived. `known` are the `ends` when the attempt began: copies placed since then count too, in whatever database. Such a
        copy may be on a server that had an earlier one, lost with its disk, so a name in `known` need not be in the claim."""
        if self.are_suspended:
            return False
        for copy in self._bound_by(message_id, claim, excused, known):  # noqa: SIM110 - called for every message
            if not self.suffices(message_id, copy):
                return False
        return True

    def dot_left(self, message_id: MessageId, claim: Claim, excused: Collection[ServerName], known: Mapping[ServerName, float]) -> float:
        """Seconds until the first lease of that attempt ends: a reply to its dot after that is worthless. Infinite if no server
        has a copy."""
        left = math.inf
        for copy in self._bound_by(message_id, claim, excused, known):
            left = min(left, self.left(message_id, copy))
        return left

    def _bound_by(
        self, message_id: MessageId, claim: Claim, excused: Collection[ServerName], known: Mapping[ServerName, float]
    ) -> Sequence[Copy]:
        copies: Sequence[Copy] = claim.copies
        if excused:
            copies = [copy for copy in copies if copy.server not in excused]
        ends = self._copies.get(message_id)
        if ends is None or ends == known:
            return copies
        return [*copies, *(Copy(server, NO_DATABASE) for server, until in ends.items() if known.get(server) != until)]

    def server_left(self, server: ServerName) -> float | None:
        """Seconds that the run of proofs of a server still lasts, for listings; `None` if it never began."""
        lease = self._servers.get(server)
        return None if lease is None else lease.until - self._clock.awake()

    def ends(self, message_id: MessageId) -> Mapping[ServerName, float]:
        """When the own leases end of copies that this process sent or chose. Each copy sent or chosen later has a different end."""
        return dict(self._copies.get(message_id, ()))

    def listed_anew(self, message_id: MessageId, server: ServerName) -> None:
        """The server was off the list, so its earlier copy is gone, and the lease on that does not cover the next one."""
        self._copies.get(message_id, {}).pop(server, None)
        self._confirmed.get(message_id, {}).pop(server, None)

    def forget(self, message_id: MessageId) -> None:
        """The message is finished here."""
        self._copies.pop(message_id, None)
        self._confirmed.pop(message_id, None)


class AttemptLease:
    """Rule *dot* for one attempt: will the lease outlast the reply? Copies listed since the message was loaded count too,
    because it may have waited long for a session."""

    __slots__ = ("_claim", "_flights", "_known", "_leases", "_message_id", "excused")

    def __init__(self, leases: Leases, flights: Flights, stored: StoredMessage, excused: frozenset[ServerName]) -> None:
        self._leases, self._flights, self.excused = leases, flights, excused
        self._message_id, self._claim = stored.envelope.message_id, stored.claim
        self._known = leases.ends(self._message_id)

    def may_end_data(self, ordinals: Ordinals) -> bool:
        """Checked right before the final dot of a transaction with these recipients."""
        called_off = self._flights[self._message_id].called_off  # `Flight.is_called_off`, without the call: for every message
        if called_off is not None and ordinals <= called_off:
            return False
        return self._leases.may_end_data(self._message_id, self._claim, self.excused, self._known)

    def reply_seconds(self) -> float:
        """Seconds that the leases still last; infinite if that covers any time allowed for a reply."""
        if self._leases.reply_allowance >= LONGEST_REPLY_SECONDS:  # `may_end_data` has found that they last so long
            return math.inf
        return self._leases.dot_left(self._message_id, self._claim, self.excused, self._known)
