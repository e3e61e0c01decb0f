"""What the node knows of one message in memory, besides its claim: the flight. docs/design.md 6.2 "again", "meet".

A claim may end only between two attempts. Attempts begin on the event loop and claims end in the transaction, perhaps on another thread;
the flight decides which came first. Between that decision and the end of its commit, and in a read that began earlier, the message still
appears to be ours: no attempt begins until a read begins after the commit. The same holds for a fork whose attempt has just ended: an older
read still shows it as due.

A flight is `free`, or it is `reserved` (its message is being accepted, or changed as a whole), or at least one of its forks is `running`,
or its claim is `ending`. Each event is a function `(flight, …) -> (flight, whether it may)`:

| event           | free       | reserved   | running    | ending     |
|-----------------|------------|------------|------------|------------|
| `reserve`       | `reserved` | no         | no         | no         |
| `release`       | same       | `free`     | same       | same       |
| `load`          | same       | same       | same       | no         |
| `start`         | `running`  | no         | same       | no         |
| `end`           | same       | same       | or `free`  | same       |
| `change`        | same       | same       | same       | same       |
| `call_off`      | same       | same       | same       | same       |
| `end_claim`     | `ending`   | no         | no         | same       |
| `settle_claim`  | same       | same       | same       | same       |
| `begin_read`    | same       | same       | same       | or `free`  |
| `begin_copy`    | same       | same       | same       | same       |
| `end_copy`      | same       | same       | same       | same       |

`no` answers False and changes nothing, and so do: `reserve`, while a read that began before the last `release` may be under way; `load`, if
the fork is loaded already, or its attempt ended or the message changed since the last read began (a change during acceptance is ignored,
because the accepting task knows the claim); `start`, if the message changed, or its claim ended, since the fork was loaded: read it again.
`end` ends an attempt, or gives up a fork that was loaded; the last one that ran leaves it free. `settle_claim` says that the transaction of
`end_claim` is over, committed or not: then the next `begin_read` leaves it free.

To `start` or to `end` a fork that is not loaded is a mistake, and raises `IllegalTransition`.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Concatenate, ParamSpec

from shadowrelay.model.ids import NO_SERVER, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import SUSPENDED, WAITS_FOR_COPY, StoredMessage
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.model.values import dataclass, replace

P = ParamSpec("P")
NO_NEXT_HOPS: frozenset[str] = frozenset()


class Stage(Enum):
    """Of a fork that is loaded."""

    WAITING = "waits for a session"
    STALE = "waits for a session, and must be read again"
    RUNNING = "is being delivered"


class ClaimEnd(Enum):
    """Whether the claim ends here."""

    NO = "no"
    COMMITTING = "in a transaction"
    SETTLED = "perhaps: the transaction is over"


class Phase(Enum):
    """What decides about most events."""

    FREE = "free"
    RESERVED = "reserved"
    RUNNING = "running"
    ENDING = "ending"


NO_FORKS: Mapping[str, Stage] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Flight:
    """Shapes: `forks` by next hop; `ended`: the next hops whose attempts ended since the last read began, `is_released` and `is_changed`
    likewise; `is_changed_meanwhile`: while it is reserved; `called_off`: recipients that other nodes have done, while an attempt runs;
    `is_copying`: a copy is in progress, or its outcome is not recorded yet."""

    is_reserved: bool = False
    forks: Mapping[str, Stage] = NO_FORKS
    running_count: int = 0
    ended: frozenset[str] = NO_NEXT_HOPS
    is_released: bool = False
    is_changed: bool = False
    is_changed_meanwhile: bool = False
    called_off: Ordinals | None = None
    claim_end: ClaimEnd = ClaimEnd.NO
    is_copying: bool = False

    @property
    def phase(self) -> Phase:
        """They exclude each other: an attempt never begins on a claim that ends, and a claim never ends under an attempt."""
        if self.claim_end is not ClaimEnd.NO:
            return Phase.ENDING
        return Phase.RESERVED if self.is_reserved else Phase.RUNNING if self.running_count else Phase.FREE

    @property
    def is_busy(self) -> bool:
        """Whether the message is being accepted or delivered, or waits for a session."""
        return self.is_reserved or bool(self.forks)

    def is_called_off(self, ordinals: Ordinals) -> bool:
        """Whether the attempt on these recipients was called off."""
        return self.called_off is not None and ordinals <= self.called_off

    @property
    def text(self) -> str:
        """What the message waits for, as a sentence for people; empty: nothing in memory."""
        if self.claim_end is not ClaimEnd.NO:
            return "another node has it, or finished it"
        stages = [f"{next_hop} {stage.value}" for next_hop, stage in sorted(self.forks.items())]
        if self.is_reserved:
            stages.insert(0, "it is being accepted, or changed")
        if self.is_copying:
            stages.append("a copy is being made")
        return "; ".join(stages)


NO_FLIGHT = Flight()
ONLY_CHANGED = Flight(is_changed=True)
Answer = tuple[Flight, bool]
Event = Callable[Concatenate[Flight, P], Answer]


def reserve(flight: Flight, *, is_copying: bool = False) -> Answer:
    """Until `release` nothing else may be attempted on it, and its claim may not end. `is_copying`: see `begin_copy`."""
    if flight.is_reserved or flight.running_count or flight.is_released or flight.claim_end is not ClaimEnd.NO:
        return flight, False
    forks = _stale(flight.forks) if flight.forks else flight.forks
    return replace(flight, is_reserved=True, forks=forks, is_copying=is_copying or flight.is_copying), True


def release(flight: Flight) -> Answer:
    """The message is accepted, or was changed as a whole. A read that began earlier still shows it as it was."""
    if not flight.is_reserved:
        return replace(flight, is_released=True), True
    called_off = flight.called_off if flight.running_count else None
    return replace(flight, is_reserved=False, is_released=True, is_changed_meanwhile=False, called_off=called_off), True


def load(flight: Flight, next_hop: str) -> Answer:
    """This fork, as just read, waits for a session, which hinders nothing."""
    if flight.claim_end is not ClaimEnd.NO or (flight.is_changed and not flight.is_reserved):
        return flight, False
    if next_hop in flight.forks or next_hop in flight.ended:
        return flight, False
    return replace(flight, forks={**flight.forks, next_hop: Stage.WAITING}), True


def start(flight: Flight, next_hop: str) -> Answer:
    """A session is free for this fork: its attempt begins."""
    stage = flight.forks.get(next_hop)
    if stage is None or stage is Stage.RUNNING:
        raise IllegalTransition(f"{next_hop} does not wait for a session")
    if stage is Stage.STALE or flight.is_reserved:
        return flight, False
    return replace(flight, forks={**flight.forks, next_hop: Stage.RUNNING}, running_count=flight.running_count + 1), True


def end(flight: Flight, next_hop: str) -> Answer:
    """The attempt is over and recorded, or the fork was given up."""
    stage = flight.forks.get(next_hop)
    if stage is None:
        raise IllegalTransition(f"{next_hop} is not loaded")
    forks = {name: other for name, other in flight.forks.items() if name != next_hop} if len(flight.forks) > 1 else NO_FORKS
    running_count = flight.running_count - (stage is Stage.RUNNING)
    called_off = flight.called_off if running_count or flight.is_reserved else None
    return replace(flight, forks=forks, running_count=running_count, ended=flight.ended | {next_hop}, called_off=called_off), True


def change(flight: Flight) -> Answer:
    """The claim changed: forks that wait with the old one, or are being read now, must be read again. Say it after the commit, and before
    it, too, if the change must take effect sooner."""
    if flight is NO_FLIGHT or flight is ONLY_CHANGED:  # nearly every report, twice: of a copy that this node holds and does not deliver
        return ONLY_CHANGED, True
    meanwhile = flight.is_changed_meanwhile or flight.is_reserved
    return replace(flight, forks=_stale(flight.forks), is_changed=True, is_changed_meanwhile=meanwhile), True


def call_off(flight: Flight, done: Ordinals) -> Answer:
    """Another node reports these recipients done: a running attempt on no others must not end its data. Say it before the commit, because
    an attempt could end its data right after it."""
    changed, _ = change(flight)
    if not flight.is_reserved and not flight.running_count:
        return changed, True
    return replace(changed, called_off=done | (flight.called_off or NO_ORDINALS)), True


def end_claim(flight: Flight) -> Answer:
    """In the transaction that would end the claim."""
    if flight.is_reserved or flight.running_count:
        return flight, False
    return replace(flight, forks=_stale(flight.forks), claim_end=ClaimEnd.COMMITTING), True


def settle_claim(flight: Flight) -> Answer:
    """That transaction is over: reads that begin now are valid."""
    if flight.claim_end is ClaimEnd.NO:
        return flight, True
    return replace(flight, claim_end=ClaimEnd.SETTLED), True


def begin_read(flight: Flight) -> Answer:
    """Claims are read for new attempts: the read includes all that was settled so far."""
    claim_end = ClaimEnd.NO if flight.claim_end is ClaimEnd.SETTLED else flight.claim_end
    return replace(flight, ended=NO_NEXT_HOPS, is_released=False, is_changed=False, claim_end=claim_end), True


def begin_copy(flight: Flight) -> Answer:
    """A copy is being made. False: one is already."""
    return replace(flight, is_copying=True), not flight.is_copying


def end_copy(flight: Flight) -> Answer:
    """Its outcome is recorded, or nothing came of it."""
    return replace(flight, is_copying=False), True


def waits_for(stored: StoredMessage, flight: Flight) -> str:
    """What an undelivered message of this node waits for, in a line for people; empty for any other."""
    if stored.claim.role is not Role.PRIMARY:
        return ""
    if stored.suspended is not None:
        return f"it is suspended by {stored.suspended.by}"
    if flight.text:
        return flight.text
    if not stored.retries:
        return "its turn in Submission comes"
    first = min(stored.retries, key=lambda retry: retry.attempts_next_at)
    if awaited := not_before(first.waits_for):
        return f"it is {awaited}"
    return f"{first.next_hop} is tried at {first.attempts_next_at:%Y-%m-%d %H:%M:%S} UTC"


def not_before(server: ServerName) -> str:
    """What a retry that waits for this server waits for, for people; empty if it waits for nobody, or is suspended."""
    if server in (NO_SERVER, SUSPENDED):
        return ""
    if server == WAITS_FOR_COPY:
        return "not attempted before another server has a copy"
    return f"not attempted before {server} answers, which may deliver it"


def _stale(forks: Mapping[str, Stage]) -> Mapping[str, Stage]:
    return forks and {next_hop: Stage.STALE if stage is Stage.WAITING else stage for next_hop, stage in forks.items()}
