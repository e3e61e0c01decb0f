"""SMTP replies, named for the situation. Code, enhanced code (RFC 3463), text; each says where it comes from.

Unknown trouble is 4xx, never 5xx: a 5xx makes the other side give up.
"""

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
