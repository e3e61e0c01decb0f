"""Leases and silence: the arithmetic by which a primary knows that a shadow server will not promote yet. docs/design.md 6.4.

A lease on a server begins when this primary sent something that the server has since proved to have received (for a copy: when
sending began). It lasts for the shorter of the two nodes' spans, less a margin for clock rates. The shadow server waits for the
longer of the two spans from the time it received it. All instants are seconds of `Clock.awake` on the primary and of `Clock.ran`
on the shadow server; the two are never compared.

A lease guarantees that the shadow server will not promote yet. It does not guarantee that the server will learn of deliveries
made meanwhile: in a cut longer than the span it does not, and delivers again. `delivery_without_lease = "defer"` therefore
also requires a recent proof, see `proof_age_max`.
"""

from datetime import timedelta

from shadowrelay.model.ids import DatabaseId
from shadowrelay.model.values import dataclass

CLOCK_MARGIN = 0.03  # I4: clock rates agree within 1 %, so 2 % between two of them; 1 % for timer resolution
REPLY_ALLOWANCE_MAX = timedelta(minutes=10)  # RFC 5321 4.5.3.2.6: DATA termination
PROOF_POLLS = 5  # a poll proves receipt of the previous reply: two polls normally, and three may be late
PROOF_SECONDS_MIN = 1.0  # with a poll interval of 100 ms, a busy machine answers later than 5 polls
REPLY_ALLOWANCE_SHARE = 3  # docs/design.md 6.2 "dot": at most a third of the span, for labs with short spans


def lease_length(mine: timedelta, theirs: timedelta) -> float:
    """Seconds that a lease lasts; `mine` and `theirs` are the two nodes' shadow_resubmit_time_span."""
    return min(mine, theirs).total_seconds() * (1 - CLOCK_MARGIN)


def silence_limit(mine: timedelta, theirs: timedelta) -> float:
    """Seconds of silence after which a shadow server asks the other nodes and promotes."""
    return max(mine, theirs).total_seconds()


def reply_allowance(span: timedelta) -> float:
    """Seconds allowed for the reply to the final dot."""
    return min(REPLY_ALLOWANCE_MAX, span / REPLY_ALLOWANCE_SHARE).total_seconds()


def proof_age_max(poll: timedelta) -> float:
    """`delivery_without_lease = "defer"`: seconds after the last proof from a shadow server during which an attempt may start or
    end its data. Deliveries between a cut and the end of this time are repeated if the cut outlasts the span."""
    return max(PROOF_POLLS * poll.total_seconds(), PROOF_SECONDS_MIN)


def may_end_data(lease_left: float, allowance: float) -> bool:
    """Rule *dot*: the final dot is sent only if the lease outlasts the time allowed for its reply."""
    return lease_left > allowance


@dataclass(frozen=True, slots=True)
class ServerLease:
    """An unbroken run of proofs from one server in one database: `since` is the time of the first proof, `proved_at` of the
    latest, `until` is when the lease ends."""

    database: DatabaseId
    since: float
    until: float
    proved_at: float


def renewed(lease: ServerLease | None, database: DatabaseId, spoke_at: float, proved_at: float, length: float) -> ServerLease:
    """A proof arrived at `proved_at` that the server, in `database`, received what this node sent at `spoke_at`.

    If the lease had ended by then, or the database differs, a new run begins: the server may have received it too late,
    and its actions in between are unknown.
    """
    until = spoke_at + length
    if lease is None or lease.database != database or proved_at > lease.until:
        return ServerLease(database, proved_at, until, proved_at)
    return ServerLease(database, lease.since, max(lease.until, until), proved_at)


def lease_left(copy_until: float | None, copy_database: DatabaseId, server: ServerLease | None, now: float) -> float:
    """Seconds left of the lease on one copy; zero or less if it has ended or never began.

    Shapes: `copy_until` is the end of the copy's own first lease; `None` if this process neither sent nor reviewed the copy,
    because leases do not survive the process. The server's run extends it if the two overlap.
    """
    if copy_until is None:
        return 0.0
    if server is not None and server.since <= copy_until and copy_database in ("", server.database):
        return max(copy_until, server.until) - now
    return copy_until - now
