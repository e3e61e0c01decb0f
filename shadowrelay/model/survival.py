"""What one node knows about the loss of servers: which of its mail would be lost, what it would take over. docs/reference.md "What if"."""

from collections.abc import Mapping
from datetime import datetime

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.readiness import NextMessage
from shadowrelay.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Survival:
    """Unfinished messages of this node: all; those that none of the given servers may have a copy of; of the others, those that lack a
    confirmed copy, and so may be lost as well."""

    count: int
    lost_count: int
    uncertain_count: int


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What this node holds for a server that is lost. Units: `within` seconds of silence from now until it takes that over."""

    primary: ServerName
    count: int
    within: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer of one node. `survival` is None and `new_mail` is set where it would not be lost itself, and the reverse where it would.
    `held_by`: of its unfinished messages, how many each survivor may have a copy of. `resubmittable_since`: what was delivered later can
    be resubmitted from this node's Safety Net. `ids` are those of messages that would be lost, `are_all` of them if nothing was cut off."""

    lost: tuple[ServerName, ...]
    at: datetime
    survival: Survival | None
    held_by: Mapping[ServerName, int]
    taken_over: tuple[TakenOver, ...]
    new_mail: NextMessage | None
    resubmittable_since: datetime | None
    ids: tuple[MessageId, ...] = ()
    are_all: bool = True
