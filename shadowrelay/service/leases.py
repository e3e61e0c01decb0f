"""The leases of this process on the servers that may hold its copies. In memory: a lease does not survive the process."""

import math
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from shadowrelay.core import fencing
from shadowrelay.model.ids import NO_DATABASE, DatabaseId, MessageId, ServerName
from shadowrelay.model.ownership import Claim, Copy
from shadowrelay.model.settings import Transport, WithoutLease
from shadowrelay.ports import Clock


class Leases:
    """Per server the unbroken run of proofs, per message and server the end of the copy's own lease.

    `suffices` says whether an attempt may start, `may_end_data` whether it may send its final dot. Both also want a recent
    proof where `delivery_without_lease` is `defer`.
    """

    def __init__(self, clock: Clock, transport: Transport) -> None:
        self._clock = clock
        self._span = span = transport.shadow_resubmit_time_span
        self._spans: dict[ServerName, timedelta] = {}
        self._servers: dict[ServerName, fencing.ServerLease] = {}
        self._copies: dict[MessageId, dict[ServerName, float]] = {}
        self._confirmed: dict[MessageId, dict[ServerName, float]] = {}  # when; kept for `defer` only
        self.reply_allowance = fencing.reply_allowance(span)
        self.configure(transport)

    def configure(self, transport: Transport) -> None:
        """Follow a changed policy or poll interval; the span stays until the next start."""
        is_deferring = transport.delivery_without_lease is WithoutLease.DEFER
        self._proof_age_max = fencing.proof_age_max(transport.discard_poll_interval) if is_deferring else None

    def learn_span(self, server: ServerName, span: timedelta) -> None:
        """The peer's own span, from its XSHADOW."""
        self._spans[server] = span

    def length(self, server: ServerName) -> float:
        """Seconds that a lease on this server lasts."""
        return fencing.lease_length(self._span, self._spans.get(server, self._span))

    def silence_limit(self, server: ServerName) -> float:
        """Seconds of silence of this server after which its shadow messages are promoted."""
        return fencing.silence_limit(self._span, self._spans.get(server, self._span))

    def proved(self, server: ServerName, database: DatabaseId, spoke_at: float) -> None:
        """The server has received what we said at `spoke_at`."""
        lease = self._servers.get(server)
        self._servers[server] = fencing.renewed(lease, database, spoke_at, self._clock.awake(), self.length(server))

    def began(self, message_id: MessageId, server: ServerName, spoke_at: float, *, is_confirmed: bool) -> None:
        """A copy was sent, or chosen again, from `spoke_at` on. Unconfirmed: only counts where no lease was before,
        since an older copy on that server would not have heard of it."""
        copies = self._copies.setdefault(message_id, {})
        if is_confirmed or server not in copies:
            copies[server] = spoke_at + self.length(server)
        if is_confirmed and self._proof_age_max is not None:
            self._confirmed.setdefault(message_id, {})[server] = self._clock.awake()

    def inherit(self, message_id: MessageId, original_id: MessageId) -> None:
        """A DSN has its original's servers on its list (`primary.side_claim`), and its leases on them."""
        self._copies[message_id] = dict(self._copies.get(original_id, ()))
        if original_id in self._confirmed:
            self._confirmed[message_id] = dict(self._confirmed[original_id])

    def without(self, message_id: MessageId, server: ServerName) -> None:
        """It may hold a copy that this process did not send, and nothing is known of its patience."""
        self._copies.setdefault(message_id, {})[server] = 0.0

    def left(self, message_id: MessageId, copy: Copy) -> float:
        """Seconds that the lease on one copy still runs; zero or less: it does not."""
        until = self._copies.get(message_id, {}).get(copy.server)
        return fencing.lease_left(until, copy.database, self._servers.get(copy.server), self._clock.awake())

    def suffices(self, message_id: MessageId, copy: Copy) -> bool:
        """It runs long enough for a final dot, because an attempt that could not end would only be made again; and where
        `delivery_without_lease` is `defer`, the server was heard a moment ago."""
        if not fencing.may_end_data(self.left(message_id, copy), self.reply_allowance):
            return False
        return self._proof_age_max is None or self._is_recent(message_id, copy.server, self._proof_age_max)

    def _is_recent(self, message_id: MessageId, server: ServerName, age_max: float) -> bool:
        """Its last proof is recent enough."""
        lease = self._servers.get(server)
        confirmed_at = self._confirmed.get(message_id, {}).get(server, -math.inf)
        proved_at = confirmed_at if lease is None else max(confirmed_at, lease.proved_at)
        return self._clock.awake() - proved_at <= age_max

    def may_end_data(self, message_id: MessageId, claim: Claim, excused: Collection[ServerName], known: Mapping[ServerName, float]) -> bool:
        """Rule *dot*, asked right before the final dot of an attempt that began with this claim, without the leases of
        `excused`. `known` are the `ends` as they were when it began: a copy placed since counts too, in whatever database. It may
        be on a server that had one before, whose disk was destroyed: a name in `known` does not say that the claim has it."""
        return not [copy for copy in self._bound_by(message_id, claim, excused, known) if not self.suffices(message_id, copy)]

    def dot_left(self, message_id: MessageId, claim: Claim, excused: Collection[ServerName], known: Mapping[ServerName, float]) -> float:
        """Seconds until the first lease of that attempt ends: the reply to its dot is worth nothing after that. Infinite
        where nobody has a copy."""
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
        """When the own leases of the copies end that this process sent or chose. Each copy sent or chosen later has another end."""
        return dict(self._copies.get(message_id, ()))

    def listed_anew(self, message_id: MessageId, server: ServerName) -> None:
        """The server was off the list, so that the copy that it had there is gone, and the lease on that says nothing of the next."""
        self._copies.get(message_id, {}).pop(server, None)
        self._confirmed.get(message_id, {}).pop(server, None)

    def forget(self, message_id: MessageId) -> None:
        """The message is finished here."""
        self._copies.pop(message_id, None)
        self._confirmed.pop(message_id, None)
