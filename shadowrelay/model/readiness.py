"""What a node says about the next message of a client, the same in `status`, readiness, metrics and API. docs/design.md 5.1."""

from enum import StrEnum

from shadowrelay.model.ids import ServerName
from shadowrelay.model.values import dataclass


class Takes(StrEnum):
    """Whether a peer stores our copies now."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"  # nothing was tried since one of the two started, or since a copy failed some time ago


REFUSED_BECAUSE = "new mail is refused: "  # how the sentence begins where that is not for want of copies


class NewMail(StrEnum):
    """What happens to the next message of a client."""

    COPIED = "copied"
    UNKNOWN = "unknown"  # it is tried, and only that will show it
    FEWER = "fewer"  # accepted with fewer copies than wanted, or with none
    REFUSED = "refused"
    NOT_COPIED = "not copied"  # none is wanted, or redundancy is disabled


@dataclass(frozen=True, slots=True)
class NextMessage:
    """`takers_count` peers take copies that count, `copies_wanted` are to be made. `sentence` is empty if it gets them, or is to have none.
    `shared_fate`: peers that may be lost together with this node, whether their copies count or not."""

    outcome: NewMail
    takers_count: int
    copies_wanted: int
    sentence: str
    shared_fate: tuple[ServerName, ...] = ()
