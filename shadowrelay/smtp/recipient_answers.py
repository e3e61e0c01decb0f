"""Answers to whether a recipient exists, and the replies that clients get for them. RFC 5321 4.2.3, RFC 3463 X.1.1, X.2.0."""

from enum import StrEnum

from shadowrelay.model.replies import Reply
from shadowrelay.model.values import dataclass

NO_SUCH_RECIPIENT = Reply(550, "5.1.1", "No such recipient here")
NOT_KNOWN_NOW = Reply(450, "4.2.0", "The recipient cannot be verified now, try again later")


class Existence(StrEnum):
    """The answer of a source; the values are those of the metric."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Answer:
    """`reply` of an undecided one: what a client is told. `reason`: for the operator log."""

    existence: Existence
    reason: str = ""
    reply: Reply = NOT_KNOWN_NOW


IS_KNOWN = Answer(Existence.KNOWN)
IS_UNKNOWN = Answer(Existence.UNKNOWN)
