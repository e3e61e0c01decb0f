"""SMTP replies, named for the situation, and the exceptions that carry them. RFC 5321 4.2, RFC 3463.

A reply has a code, an enhanced code and a text; each constant cites its source. An unexpected error is answered 4xx, never 5xx,
because after a 5xx the other side gives up. Exceptions are named for what the caller should do next. CONTRIBUTING.md "Errors".
"""

import errno
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
SUPERSEDED = "XSHADOW superseded"  # text of 554 5.5.0; followed by the answer to STATUS. docs/protocol.md 6


def queued_as(message_id: str) -> Reply:
    """The 250 of an accepted message. Operators search logs for the id."""
    return Reply(250, "2.0.0", f"Queued as {message_id}")


class ShadowrelayError(Exception):
    """Base of all errors that this program raises on purpose."""


# of a path: this user can never use it, so the configuration or the rights have to change
UNUSABLE = frozenset((errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOENT, errno.EROFS))


class ConfigurationError(ShadowrelayError):
    """The configuration is wrong; raised before any socket opens; names file, key and remedy. Exit code 2."""


class WireError(ShadowrelayError):
    """The other side broke the grammar; `reply` is the reply to send."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


class IllegalTransition(ShadowrelayError):
    """An event that is impossible in this state: the claim ended while a copy was made, which the caller expects; anything else is a
    bug."""


class DeliveryError(ShadowrelayError):
    """An attempt failed for all its recipients with `reply` from (or on behalf of) `server`."""

    def __init__(
        self,
        reply: Reply,
        server: str,
        *,
        is_connection: bool = False,
        is_unreachable: bool = False,
        is_limited: bool = False,
        dot_sent_unanswered: bool = False,
    ) -> None:
        super().__init__(f"{server}: {reply}")
        self.reply = reply
        self.server = server
        self.is_connection = is_connection or is_unreachable  # no server could be reached, or the session broke
        self.is_unreachable = is_unreachable  # no host of the next hop gave a session: counts as a failure of its queue
        self.is_limited = is_limited  # it took messages just before, and refuses further sessions
        self.dot_sent_unanswered = dot_sent_unanswered  # cause (a) of I4


class TransientDeliveryError(DeliveryError):
    """Try again later."""


class PermanentDeliveryError(DeliveryError):
    """Stop, and send the sender a DSN."""


class LeaseTooShort(ShadowrelayError):
    """The final dot was not sent, because the lease would have ended before its reply. Nothing was delivered."""


class PeerSaid(Enum):
    """What an unavailable peer itself replied."""

    NOTHING = "nothing"  # no session, or no answer in time
    NO_SESSION = "no session"  # 421, no HOLD in EHLO, or XSHADOW refused: try later in a new session
    NO_COPY = "no copy"  # 452 to a copy: try later
    NOT_THIS = "not this"  # it refused only this copy


class PeerUnavailable(ShadowrelayError):
    """This peer gave no session, no answer, or a refusal; try the next peer.

    `sent`: a copy may have been stored there nevertheless; `was_refused`: the connection was refused; `said`: what the peer
    itself replied, `reply`: in its words, to a copy or a message; `in_session`: it had given a session for that; `was_kept`: a session that
    was open before had ended, which says nothing about the peer now."""

    def __init__(
        self,
        server: str,
        reason: str,
        *,
        sent: bool = False,
        was_refused: bool = False,
        said: PeerSaid = PeerSaid.NOTHING,
        reply: Reply | None = None,
        was_kept: bool = False,
    ) -> None:
        super().__init__(f"{server}: {reason}")
        self.server = server
        self.reason = reason
        self.sent = sent
        self.was_refused = was_refused
        self.in_session = False
        self.said = said
        self.reply = reply
        self.was_kept = was_kept


class LedgerUnavailable(ShadowrelayError):
    """The queue database cannot commit now (disk full, locked, read-only): answer `reply`, never 250."""

    def __init__(self, reply: Reply, reason: str) -> None:
        super().__init__(f"{reply}: {reason}")
        self.reply = reply
        self.reason = reason


class ContentUnreadable(LedgerUnavailable):
    """The disk cannot read this content now. `is_lasting`: nor could it some time ago, while it reads other content: a bad sector."""

    def __init__(self, reply: Reply, reason: str, *, is_lasting: bool = False) -> None:
        super().__init__(reply, reason)
        self.is_lasting = is_lasting


class RequestRefused(ShadowrelayError):
    """An administrator's request is not possible now; the text says why, and what is possible instead."""


class ContentCorrupt(ShadowrelayError):
    """Stored content is missing, too short, or does not match its SHA-256: set the message aside and hand it over.

    Not raised for temporary conditions: a file that cannot be read now raises LedgerUnavailable."""
