"""The leases of this process on the servers that may hold its copies. In memory: a lease does not survive the process."""

from collections.abc import Collection, Iterable
from datetime import timedelta

from shadowrelay.core import fencing
from shadowrelay.model.ids import NO_DATABASE, DatabaseId, MessageId, ServerName
from shadowrelay.model.ownership import Claim, Copy
from shadowrelay.ports import Clock


class Leases:
    """Per server the unbroken run of proofs, per message and server the end of the copy's own lease."""

    def __init__(self, clock: Clock, span: timedelta) -> None:
        self._clock = clock
        self._span = span
        self._spans: dict[ServerName, timedelta] = {}
        self._servers: dict[ServerName, fencing.ServerLease] = {}
        self._copies: dict[MessageId, dict[ServerName, float]] = {}
        self.reply_allowance = fencing.reply_allowance(span)

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

    def without(self, message_id: MessageId, server: ServerName) -> None:
        """It may hold a copy that this process did not send, and nothing is known of its patience."""
        self._copies.setdefault(message_id, {})[server] = 0.0

    def left(self, message_id: MessageId, copy: Copy) -> float:
        """Seconds that the lease on one copy still runs; zero or less: it does not."""
        until = self._copies.get(message_id, {}).get(copy.server)
        return fencing.lease_left(until, copy.database, self._servers.get(copy.server), self._clock.awake())

    def suffices(self, message_id: MessageId, copy: Copy) -> bool:
        """It runs, and long enough for a final dot: an attempt that could not end would only be made again."""
        return fencing.may_end_data(self.left(message_id, copy), self.reply_allowance)

    def shortest(self, message_id: MessageId, claim: Claim, excused: Collection[ServerName] = ()) -> float:
        """The shortest of the leases on a message's copies, but for `excused`; infinite where there is none to wait for."""
        return min((self.left(message_id, copy) for copy in claim.copies if copy.server not in excused), default=float("inf"))

    def shortest_of(self, message_id: MessageId, servers: Iterable[ServerName]) -> float:
        """Of the leases on these servers, whatever their databases."""
        return min((self.left(message_id, Copy(server, NO_DATABASE)) for server in servers), default=float("inf"))

    def server_left(self, server: ServerName) -> float | None:
        """Seconds that the run of proofs of a server still lasts, for listings; `None` if it never began."""
        lease = self._servers.get(server)
        return None if lease is None else lease.until - self._clock.awake()

    def servers(self, message_id: MessageId) -> frozenset[ServerName]:
        """Where copies of it were sent or chosen by this process."""
        return frozenset(self._copies.get(message_id, ()))

    def forget(self, message_id: MessageId) -> None:
        """The message is finished here."""
        self._copies.pop(message_id, None)
