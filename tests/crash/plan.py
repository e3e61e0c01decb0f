"""Derives an episode from its seed: the faults in order, each with its instant. Pure, so that a seed replays. docs/design.md 3.

At most one disk is destroyed in an episode: the design survives one destroyed node, and any other fault only interrupts.
"""

import random
from dataclasses import dataclass
from enum import Enum

from shadowrelay.lab.account import FaultTimes

NODES = ("mx1.east.example", "mx2.east.example", "mx1.west.example")
TIMES = FaultTimes(span=5.0, heartbeat=1.0, poll=0.25)
DISK_SEEDS = range(31, 37)  # outlines of their own


class Disruption(Enum):
    """What is injected into a node or its wires."""

    KILL = "killed, and started at once"
    WIPE = "killed and wiped, and started empty"
    AWAY = "killed, and away for longer than the span"
    PAUSE = "stopped for longer than the span"
    NAP = "stopped for less than the span"
    CUT = "cut off from one peer for longer than the span"
    ISOLATE = "cut off from all peers for longer than the span"
    HALF_CUT = "cannot call one peer"
    SLOW = "has slow wires in one direction"
    BREAK = "has copies broken off in the middle"
    READ_ONLY = "has a disk that is read-only for longer than the span"
    IO_ERROR = "has a disk that returns errors for longer than the span"
    HANG = "has a disk that hangs for longer than the span"


class When(Enum):
    """The instant of a fault, after its step was armed."""

    NOW = "at once"
    AFTER_ACK = "right after a 250 to a client"
    BEFORE_ACK = "with the confirmation of a copy on its way to it"
    COPY_HELD = "right after a copy was confirmed to it"
    COPY_COMING = "with the commit of a copy on its way to it"
    COPY_CAME = "right after the commit of a copy reached it"
    DELIVERY = "between the next hop's taking of a message and its answer"


DISKS = {Disruption.READ_ONLY, Disruption.IO_ERROR, Disruption.HANG}
LONG = {Disruption.AWAY, Disruption.PAUSE, Disruption.CUT, Disruption.ISOLATE, Disruption.HALF_CUT}
KILLS = {Disruption.KILL, Disruption.WIPE, Disruption.AWAY}
STOPS = KILLS | {Disruption.PAUSE, Disruption.NAP}


@dataclass(frozen=True, slots=True)
class Step:
    """One fault. It is armed after `after` more acknowledgements and lasts `seconds`. `is_frozen`: the receiving servers defer
    everything until `thaw_after` seconds after the fault began. `is_overlapped`: the next step begins meanwhile."""

    disruption: Disruption
    moment: When
    node: str
    other: str
    after: int
    seconds: float
    is_frozen: bool
    thaw_after: float
    is_overlapped: bool = False

    def __str__(self) -> str:
        frozen = f", nothing delivered until {self.thaw_after:.1f} s later" if self.is_frozen else ""
        return f"{self.node} {self.disruption.value} ({self.seconds:.1f} s; {self.moment.value}{frozen})"


@dataclass(frozen=True, slots=True)
class Plan:
    """One episode. Units: `rate` in messages per second; `share_deferred` of all deliveries, at random."""

    seed: int
    steps: tuple[Step, ...]
    rate: float
    share_deferred: float

    def __str__(self) -> str:
        steps = "\n".join(f"    {'and meanwhile ' if index and self.steps[index - 1].is_overlapped else ''}{step}"
                          for index, step in enumerate(self.steps))  # fmt: skip
        return f"seed {self.seed}: {self.rate:.0f} messages/s, {self.share_deferred:.0%} deferred\n{steps}"


def plan(seed: int) -> Plan:
    """Derive the episode of a seed."""
    chance = random.Random(seed)
    shape = seed % 6  # six outlines in turn, so that a few seeds cover all of them
    if seed in DISK_SEEDS:
        disruptions = [(Disruption.READ_ONLY, Disruption.HANG, Disruption.IO_ERROR)[seed % 3]]
        if seed % 2:
            disruptions.append(chance.choice((Disruption.KILL, Disruption.NAP, Disruption.CUT)))
    elif shape == 0:
        disruptions = [Disruption.WIPE, chance.choice((Disruption.KILL, Disruption.BREAK, Disruption.SLOW))]
    elif shape == 1:
        disruptions = [Disruption.AWAY]
    elif shape == 2:
        disruptions = [
            chance.choice((Disruption.CUT, Disruption.ISOLATE)),
            chance.choice((Disruption.KILL, Disruption.NAP, Disruption.BREAK)),
        ]
    elif shape == 3:
        disruptions = [Disruption.PAUSE, chance.choice((Disruption.KILL, Disruption.WIPE))]
    elif shape == 4:
        disruptions = [Disruption.KILL, Disruption.KILL, chance.choice((Disruption.WIPE, Disruption.HALF_CUT, Disruption.SLOW))]
    else:
        disruptions = [Disruption.WIPE, chance.choice((Disruption.AWAY, Disruption.PAUSE, Disruption.ISOLATE))]
    if shape in (0, 3, 5):
        chance.shuffle(disruptions)
    is_double = shape in (3, 5) or chance.random() < 0.3  # two faults in a row on different nodes
    steps: list[Step] = []
    for index, disruption in enumerate(disruptions):
        overlaps = bool(steps) and steps[-1].is_overlapped
        others = [node for node in NODES if not (overlaps and node == steps[-1].node)]
        node = chance.choice(others)
        steps.append(_step(chance, disruption, node, is_overlapped=is_double and index == 0 and len(disruptions) > 1))
    return Plan(seed, tuple(steps), rate=chance.uniform(30, 45), share_deferred=chance.choice((0.0, 0.2, 0.4)))


def _step(chance: random.Random, disruption: Disruption, node: str, *, is_overlapped: bool) -> Step:
    moments = [When.NOW, When.AFTER_ACK]
    if disruption in STOPS:
        moments += [When.BEFORE_ACK, When.COPY_HELD, When.COPY_COMING, When.COPY_CAME, When.DELIVERY]
    moment = chance.choice(moments)
    if disruption in DISKS:
        seconds = TIMES.span + 6 * TIMES.heartbeat + chance.uniform(0.5, 3.0)
    elif disruption in LONG:
        seconds = TIMES.span + TIMES.heartbeat + chance.uniform(0.5, 2.0)
    elif disruption is Disruption.NAP:
        seconds = chance.uniform(0.3, 0.6) * TIMES.span
    else:
        seconds = chance.uniform(0.0, 1.0) if disruption in KILLS else chance.uniform(1.0, 2.5)
    is_frozen = moment is not When.DELIVERY and chance.random() < 0.85
    thaw_after = chance.uniform(0.3, 1.3) * (seconds + 1.0)
    if disruption in DISKS:  # mail waits when the disk dies, and may be delivered before it is well again
        is_frozen, thaw_after = True, chance.uniform(0.2, 0.4) * seconds
    other = chance.choice([name for name in NODES if name != node])
    return Step(disruption, moment, node, other, chance.randint(25, 50), seconds, is_frozen, thaw_after, is_overlapped)
