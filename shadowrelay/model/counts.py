"""What the services of a node count: plain numbers, which `admin.metrics` reads at each scrape. docs/operations.md "Watching".

Counting a message costs an addition; the library's locks and checks would cost more than the message's routing does.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from shadowrelay.model.ids import ServerName
from shadowrelay.model.tracking import Acknowledged, Replication, ResubmitReason

# from a copy on the same switch to the default shadow_timeout of 5 s, and beyond
LATENCY_BUCKETS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Refusal(StrEnum):
    """Why responsibility for a message was refused."""

    BACK_PRESSURE = "back pressure"
    ERROR = "error"  # an unexpected one
    LEDGER = "ledger"  # it could not be stored
    NOT_REDUNDANT = "not redundant"  # no shadow server took a copy


class AttemptResult(StrEnum):
    """What became of one delivery attempt on one fork."""

    DEFERRED = "deferred"
    DELIVERED = "delivered"
    DUPLICATE = "duplicate"  # delivered earlier as another message
    FAILED = "failed"
    PARTLY = "partly"


class TlsFailure(StrEnum):
    """Why a session with a next hop has no TLS, or is none because of that."""

    CERTIFICATE = "certificate"  # of nobody who counts, of another server, or at its end
    HANDSHAKE = "handshake"
    NOT_OFFERED = "not offered"  # where it is demanded
    SETTINGS = "settings"  # a file of the route cannot be used


class LoginResult(StrEnum):
    """What became of a login at a next hop."""

    ACCEPTED = "accepted"
    REFUSED = "refused"  # the secret, or the user
    DEFERRED = "deferred"  # 4xx: throttled, or for the server's own reasons
    NOT_OFFERED = "not offered"  # no mechanism that may be used
    NO_SECRET = "no secret"  # its file cannot be read
    NO_TOKEN = "no token"  # none could be got


@dataclass(slots=True)
class SessionCounts:
    """Of sessions with next hops, since the start of the process."""

    opened: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("none", "TLSv1.2", "TLSv1.3"), 0))  # by what protects them
    tls_failures: dict[TlsFailure, int] = field(default_factory=lambda: dict.fromkeys(TlsFailure, 0))
    logins: dict[LoginResult, int] = field(default_factory=lambda: dict.fromkeys(LoginResult, 0))
    tokens: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})  # asked for: whether one was got


@dataclass(slots=True)
class Counts:
    """Since the start of the process; every reason and result begins at zero, so that its first increase shows."""

    acknowledged: dict[Replication, int] = field(default_factory=lambda: dict.fromkeys(Replication, 0))  # messages answered 250
    refused: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))
    promoted: dict[ResubmitReason, int] = field(default_factory=lambda: dict.fromkeys(ResubmitReason, 0))
    handed_by_running: dict[ServerName, int] = field(default_factory=dict)  # of those, by `yours` of a server that does not drain
    copies_over_limit: dict[ServerName, int] = field(default_factory=dict)  # of peers for which too much is held
    attempts: dict[AttemptResult, int] = field(default_factory=lambda: dict.fromkeys(AttemptResult, 0))
    delayed: dict[Acknowledged, int] = field(default_factory=lambda: dict.fromkeys(Acknowledged, 0))  # 250s that waited for a delivery
    delay_seconds: float = 0.0  # of those, in all
    resubmitted: int = 0  # messages made from those in Safety Net
    shared_fate: int = 0  # messages of clients with a copy on a server of the same fate, which does not count
    notices_suppressed: int = 0  # DSNs for strangers' mail that were not made
    discarded: int = 0  # shadow messages whose primary was done
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_SECONDS) + 1))  # copies by bucket; the last: longer
    latencies_seconds: float = 0.0  # in all
