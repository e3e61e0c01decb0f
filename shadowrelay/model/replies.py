"""SMTP replies, named for the situation, and the errors that carry them.

Code, enhanced code (RFC 3463), text; each says where it comes from. Unknown trouble is 4xx, never 5xx: a 5xx makes the other side give
up. Errors are named by what to do next, not by where they happened. CONTRIBUTING.md "Errors".
"""

from enum import Enum
from typing import NamedTuple


class Reply(NamedTuple):
    """A complete reply. `enhanced` may be empty (greeting, EHLO, replies of servers without RFC 2034)."""

    code: int
    enhanced: str
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.enhanced} {self.text}" if self.enhanced else f"{self.code} {self.text}"

    @property
    def is_positive(self) -> bool:
        """2xx."""
        return 200 <= self.code < 300

    @property
    def is_permanent(self) -> bool:
        """5xx."""
        return 500 <= self.code < 600


NOT_MADE_REDUNDANT = Reply(451, "4.4.0", "Message failed to be made redundant")  # Source: seed-000
STORE_UNAVAILABLE = Reply(451, "4.3.0", "Local storage error, try again later")  # RFC 3463 X.3.0
INSUFFICIENT_RESOURCES = Reply(452, "4.3.1", "Insufficient system resources")  # Source: exchange-facts 8
LOCAL_ERROR = Reply(451, "4.3.0", "Local error in processing, try again later")  # RFC 5321 4.2.2
SUPERSEDED = "XSHADOW superseded"  # text of 554 5.5.0; followed by what STATUS would say. docs/protocol.md 6


def queued_as(message_id: str) -> Reply:
    """The 250 of an accepted message; operators grep the id."""
    return Reply(250, "2.0.0", f"Queued as {message_id}")


class ShadowrelayError(Exception):
    """Base of all errors that this program raises on purpose."""


class ConfigurationError(ShadowrelayError):
    """The configuration is wrong; raised before any socket opens; names file, key and remedy. Exit code 2."""


class WireError(ShadowrelayError):
    """The other side broke the grammar; `reply` is what to answer it."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class IllegalTransition(ShadowrelayError):
    """An event that is impossible in this state: our bug. The message is parked, the client gets 451."""


class DeliveryError(ShadowrelayError):
    """An attempt failed for all its recipients with `reply` from (or on behalf of) `server`."""

    def __init__(
        self, reply: Reply, server: str, *, is_connection: bool = False, is_unreachable: bool = False, dot_sent_unanswered: bool = False
    ) -> None:
        super().__init__(f"{server}: {reply}")
        self.reply = reply
        self.server = server
        self.is_connection = is_connection or is_unreachable  # no server could be reached, or the session broke
        self.is_unreachable = is_unreachable  # no session could be had with any host of the next hop: its queue's failure
        self.dot_sent_unanswered = dot_sent_unanswered  # cause (a) of I4


class TransientDeliveryError(DeliveryError):
    """Try again later."""


class PermanentDeliveryError(DeliveryError):
    """Stop, and tell the sender."""


class LeaseTooShort(ShadowrelayError):
    """The final dot was not sent: the lease would not have outlasted its reply. Nothing was delivered."""


class PeerSaid(Enum):
    """What a peer that is unavailable has said itself."""

    NOTHING = "nothing"  # no session, or no answer in time
    NO_SESSION = "no session"  # 421, no HOLD in its EHLO, no to our XSHADOW: later, and in another session
    NO_COPY = "no copy"  # 452 to a copy: later
    NOT_THIS = "not this"  # it takes others, but not this one


class PeerUnavailable(ShadowrelayError):
    """No session, or no answer, or a refusal, from this peer now; try the next.

    `sent` says whether a copy may have been stored there all the same; `was_refused`, that nobody listens there; `said`, whether
    it is the peer's own word."""

    def __init__(
        self, server: str, reason: str, *, sent: bool = False, was_refused: bool = False, said: PeerSaid = PeerSaid.NOTHING
    ) -> None:
        super().__init__(f"{server}: {reason}")
        self.server = server
        self.reason = reason
        self.sent = sent
        self.was_refused = was_refused
        self.said = said


class LedgerUnavailable(ShadowrelayError):
    """The queue database cannot take the promise now (disk full, locked, read-only): answer `reply`, never 250."""

    def __init__(self, reply: Reply, reason: str) -> None:
        super().__init__(f"{reply}: {reason}")
        self.reply = reply
        self.reason = reason


class RequestRefused(ShadowrelayError):
    """What an administrator asked for is not possible now; the text says why, and what is."""


class ContentCorrupt(ShadowrelayError):
    """Stored content is missing, too short, or does not have its SHA-256: set the message aside and hand it over.

    Never raised for what may be different later: a file that cannot be read now is LedgerUnavailable."""
