"""Leases and silence: the arithmetic by which a primary knows that a shadow server will not promote yet.

A lease on a server runs from a moment at which this primary spoke to it, as the server has proved to have heard (or from
the beginning of the sending of a copy), for the shorter of the two spans, less a margin for the clocks. The shadow
server waits for the longer of the two spans from when it heard. docs/design.md 6.4. All instants are seconds of `Clock.awake`
on the primary, of `Clock.ran` on the shadow server; they are never compared with each other.

A lease says that the shadow server will not promote yet. It does not say that the shadow server will hear of what is
delivered now: in a cut that outlasts the span it will not, and delivers again. `delivery_without_lease = "defer"`
therefore also wants a recent proof, see `proof_age_max`.
"""

from datetime import timedelta

from shadowrelay.model.ids import DatabaseId
from shadowrelay.model.values import dataclass

CLOCK_MARGIN = 0.03  # I4: the clocks' rates agree within 1 %, so 2 % between two of them; 1 % for the timers' grain
REPLY_ALLOWANCE_MAX = timedelta(minutes=10)  # RFC 5321 4.5.3.2.6: DATA termination
PROOF_POLLS = 5  # a poll proves what was said in the one before: two when all is well, and three may be late
PROOF_SECONDS_MIN = 1.0  # a busy machine answers a poll of 100 ms later than that
REPLY_ALLOWANCE_SHARE = 3  # docs/design.md 6.2 "dot": at most a third of the span, for labs with short spans


def lease_length(mine: timedelta, theirs: timedelta) -> float:
    """Seconds that a lease lasts; `mine` and `theirs` are the two nodes' shadow_resubmit_time_span."""
    return min(mine, theirs).total_seconds() * (1 - CLOCK_MARGIN)


def silence_limit(mine: timedelta, theirs: timedelta) -> float:
    """Seconds of silence after which a shadow server asks and promotes."""
    return max(mine, theirs).total_seconds()


def reply_allowance(span: timedelta) -> float:
    """Seconds that the reply to the final dot may take."""
    return min(REPLY_ALLOWANCE_MAX, span / REPLY_ALLOWANCE_SHARE).total_seconds()


def proof_age_max(poll: timedelta) -> float:
    """`delivery_without_lease = "defer"`: seconds after the last proof from a shadow server in which an attempt may start or
    end its data. What is delivered between a cut and the end of this time is delivered again if the cut outlasts the span."""
    return max(PROOF_POLLS * poll.total_seconds(), PROOF_SECONDS_MIN)


def may_end_data(lease_left: float, allowance: float) -> bool:
    """Rule *dot*: the final dot is not sent unless the lease outlasts the time allowed for its reply."""
    return lease_left > allowance


@dataclass(frozen=True, slots=True)
class ServerLease:
    """The unbroken run of proofs from one server in one database: `since` when its first came, `until` when it ends,
    `proved_at` when its last came."""

    database: DatabaseId
    since: float
    until: float
    proved_at: float


def renewed(lease: ServerLease | None, database: DatabaseId, spoke_at: float, proved_at: float, length: float) -> ServerLease:
    """The server in `database` has proved, as came to our ears at `proved_at`, that it heard what we said at `spoke_at`.

    A lease that had ended by then, or another database, begins a new run: what was said in time may have been heard too
    late, and what the server did in between is not known.
    """
    until = spoke_at + length
    if lease is None or lease.database != database or proved_at > lease.until:
        return ServerLease(database, proved_at, until, proved_at)
    return ServerLease(database, lease.since, max(lease.until, until), proved_at)


def lease_left(copy_until: float | None, copy_database: DatabaseId, server: ServerLease | None, now: float) -> float:
    """Seconds that the lease on one copy still runs; zero or less if it has ended or never began.

    Shapes: `copy_until` is the end of the copy's own first lease, `None` in a process that did not send or review
    it: a lease does not survive the process. The server's run carries it on if the two touch.
    """
    if copy_until is None:
        return 0.0
    if server is not None and server.since <= copy_until and copy_database in ("", server.database):
        return max(copy_until, server.until) - now
    return copy_until - now
