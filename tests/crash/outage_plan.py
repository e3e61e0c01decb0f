"""Derives an episode of the outage ring from its seed: what happens to which machines, in order. Pure, so that a seed replays.

At most `copies` disks are destroyed in an episode, at the same instant: so many the design survives, and any other fault only interrupts.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from shadowrelay.lab.account import RECORD_SECONDS, FaultTimes
from tests.crash.layout import FOUR as NODES
from tests.crash.layout import TWO_SITES, Layout

TIMES = FaultTimes(span=4.0, heartbeat=1.0, poll=0.5)
COPIES = (1, 2)
SMALL, LARGE = 2_048, 60_000  # octets; much more keeps a busy next hop from answering within a third of the span
MESSAGES_BEFORE = 25  # acknowledged before something happens
MESSAGES_REPEATED = 12  # that shall be delivered, and delivered again


class Outline(Enum):
    """What an episode is about."""

    POWER = "a machine loses power"
    OUTAGE = "a site or everything loses power"
    PARTITION = "a partition"
    POWER_IN_PARTITION = "power lost in a partition"
    BURNT = "(b): disks burn right after deliveries"
    FAILED_TOGETHER = "(d): two fail together"


class Moment(Enum):
    """The instant of an act, once everything before it was done."""

    NOW = "at once"
    AFTER_ACK = "right after one of them said 250 to a client"
    DELIVERY = "between the next hop's taking of a message from one of them and its answer"


@dataclass(frozen=True, slots=True)
class Through:
    """From now on clients use these servers only."""

    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"clients use {names(self.nodes)}"


@dataclass(frozen=True, slots=True)
class NextHops:
    """The receiving servers defer everything, or take it again."""

    is_deferring: bool

    def __str__(self) -> str:
        return "nothing is delivered" if self.is_deferring else "mail is delivered"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Wait until so many more messages are acknowledged."""

    count: int

    def __str__(self) -> str:
        return f"until {self.count} more are acknowledged"


@dataclass(frozen=True, slots=True)
class Delivered:
    """Wait until so many more messages have arrived from this node."""

    node: str
    count: int

    def __str__(self) -> str:
        return f"until {self.node} has delivered {self.count} more"


@dataclass(frozen=True, slots=True)
class Pass:
    """Units: seconds."""

    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s pass"


@dataclass(frozen=True, slots=True)
class Off:
    """These machines lose power at the same instant, and some of them their disks, too."""

    nodes: tuple[str, ...]
    moment: Moment = Moment.NOW
    burnt: tuple[str, ...] = ()

    def __str__(self) -> str:
        burnt = f"; the disks of {names(self.burnt)} burn" if self.burnt else ""
        return f"{names(self.nodes)} without power, {self.moment.value}{burnt}"


@dataclass(frozen=True, slots=True)
class On:
    """They have power again, and their nodes are started. `flickers`: after so many seconds of that (0: not), power fails once more."""

    nodes: tuple[str, ...]
    flickers: float = 0.0

    def __str__(self) -> str:
        return f"{names(self.nodes)} with power again" + (f", which fails once more {self.flickers:.1f} s later" if self.flickers else "")


@dataclass(frozen=True, slots=True)
class Part:
    """No packet passes from the first group to the second, and none from the second to the first unless it `is_one_way`."""

    one: tuple[str, ...]
    other: tuple[str, ...]
    is_one_way: bool = False

    def __str__(self) -> str:
        return f"{names(self.one)} {'can send nothing to' if self.is_one_way else 'cut off from'} {names(self.other)}"


@dataclass(frozen=True, slots=True)
class Heal:
    """All packets pass again."""

    def __str__(self) -> str:
        return "all packets pass again"


Act = Through | NextHops | Acknowledged | Delivered | Pass | Off | On | Part | Heal


@dataclass(frozen=True, slots=True)
class OutagePlan:
    """One episode. Units: `rate` in messages per second, `size` in octets; `share_deferred` of all deliveries, at random."""

    seed: int
    copies: int
    outline: Enum
    acts: tuple[Any, ...]
    rate: float
    size: int
    share_deferred: float
    layout: Layout

    def __str__(self) -> str:
        load = f"{self.rate:.0f} messages/s of {self.size:,} octets, {self.share_deferred:.0%} deferred"
        lines = [f"seed {self.seed}: {self.outline.value}; {self.layout}, {load}"]
        return "\n    ".join([*lines, *map(str, self.acts)])


def copies_of(seed: int) -> int:
    """Each outline has as many episodes with each number of copies."""
    return COPIES[seed // len(Outline) % len(COPIES)]


def plan(seed: int) -> OutagePlan:
    """Derive the episode of a seed."""
    chance = random.Random(seed)
    copies, outline = copies_of(seed), list(Outline)[seed % len(Outline)]
    acts = tuple(_ACTS[outline](chance, copies))
    is_provoked = outline in (Outline.BURNT, Outline.FAILED_TOGETHER)
    share = 0.0 if is_provoked else chance.choice((0.0, 0.0, 0.3))
    size, rate = SMALL, chance.uniform(15, 25)
    if outline in (Outline.POWER, Outline.OUTAGE) and chance.random() < 0.4:  # an attempt with much content may outlast a partition
        size, rate = LARGE, 15.0
    return OutagePlan(seed, copies, outline, acts, rate, size, share, TWO_SITES[copies])


def _power(chance: random.Random, copies: int) -> Iterator[Act]:
    node = chance.choice(NODES)
    yield from _struck(chance, (node,))


def _outage(chance: random.Random, copies: int) -> Iterator[Act]:
    yield from _struck(chance, chance.choice((NODES[:2], NODES[2:], NODES, NODES)))


def _struck(chance: random.Random, nodes: tuple[str, ...]) -> Iterator[Act]:
    moment = chance.choice(list(Moment))
    is_deferring = moment is not Moment.DELIVERY and chance.random() < 0.7
    yield NextHops(is_deferring)
    yield Acknowledged(MESSAGES_BEFORE)
    yield Off(nodes, moment)
    if chance.random() < 0.5:
        yield NextHops(is_deferring=False)
    yield Pass(_short(chance) if nodes == NODES or chance.random() < 0.5 else _long(chance))
    yield On(nodes, chance.uniform(0.1, 3.0) if chance.random() < 0.4 else 0.0)


def _partition(chance: random.Random, copies: int) -> Iterator[Act]:
    yield NextHops(chance.random() < 0.6)
    yield Acknowledged(MESSAGES_BEFORE)
    yield _division(chance)
    amid, seconds = _short(chance), _long(chance) if chance.random() < 0.7 else chance.uniform(0.3, 0.6) * TIMES.span
    yield Pass(amid)
    yield NextHops(is_deferring=False)
    yield Pass(seconds - amid)
    yield Heal()


def _power_in_partition(chance: random.Random, copies: int) -> Iterator[Act]:
    yield NextHops(chance.random() < 0.6)
    yield Acknowledged(MESSAGES_BEFORE)
    division = _division(chance)
    yield division
    yield Pass(_short(chance))
    side = chance.choice((division.one, division.other))
    nodes = side if chance.random() < 0.4 else (chance.choice(side),)
    yield Off(nodes, chance.choice((Moment.NOW, Moment.DELIVERY)))
    yield NextHops(is_deferring=False)
    yield Pass(_short(chance) if chance.random() < 0.5 else _long(chance))
    ends: list[Act] = [On(nodes), Heal()]
    chance.shuffle(ends)
    yield ends[0]
    yield Pass(_short(chance))
    yield ends[1]


def _burnt(chance: random.Random, copies: int) -> Iterator[Act]:
    """A disk with records of deliveries that no shadow server has asked for yet."""
    node = chance.choice(NODES)
    burnt = (node, *chance.sample([other for other in NODES if other != node], copies - 1))
    yield from _queued_at(node)
    yield NextHops(is_deferring=False)
    yield Delivered(node, MESSAGES_REPEATED)
    yield Off(burnt, burnt=burnt)
    yield Pass(_short(chance) if chance.random() < 0.7 else _long(chance))
    yield On(burnt)


def _failed_together(chance: random.Random, copies: int) -> Iterator[Act]:
    """While nobody can ask it, a server delivers, and then it fails, too."""
    node = chance.choice(NODES)
    others = tuple(other for other in NODES if other != node)
    is_dark = chance.random() < 0.5
    is_burnt = not is_dark or chance.random() < 0.5  # one that was cut off, and then is down, is simply away: (c)
    yield from _queued_at(node)
    yield Off(others) if is_dark else Part((node,), others)
    yield NextHops(is_deferring=False)
    yield Delivered(node, MESSAGES_REPEATED)
    yield Pass(TIMES.until_heard + RECORD_SECONDS / 2)  # whoever could have asked would have asked
    yield Off((node,), burnt=(node,) if is_burnt else ())
    yield On(others) if is_dark else Heal()
    yield Pass(_short(chance) if is_burnt else _long(chance))
    yield On((node,))


def _queued_at(node: str) -> Iterator[Act]:
    yield Through((node,))
    yield NextHops(is_deferring=True)
    yield Acknowledged(MESSAGES_BEFORE)
    yield Through(NODES)


def _division(chance: random.Random) -> Part:
    is_between_sites = chance.random() < 0.5
    one = NODES[:2] if is_between_sites else tuple(chance.sample(NODES, chance.choice((1, 2))))
    other = tuple(node for node in NODES if node not in one)
    groups = [one, other]
    chance.shuffle(groups)
    return Part(groups[0], groups[1], is_one_way=chance.random() < 0.3)


def _short(chance: random.Random) -> float:
    return chance.uniform(0.0, 1.0)


def _long(chance: random.Random) -> float:
    return TIMES.span + TIMES.heartbeat + chance.uniform(0.5, 1.5)


def names(nodes: tuple[str, ...]) -> str:
    """Without the domain that all have."""
    return ", ".join(node.removesuffix(".example") for node in nodes)


_ACTS = {
    Outline.POWER: _power,
    Outline.OUTAGE: _outage,
    Outline.PARTITION: _partition,
    Outline.POWER_IN_PARTITION: _power_in_partition,
    Outline.BURNT: _burnt,
    Outline.FAILED_TOGETHER: _failed_together,
}
