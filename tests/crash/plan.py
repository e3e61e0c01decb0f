"""What a seed means: the faults of an episode, in their order, each with its instant. Pure, so that a seed replays.

At most one disk is destroyed in an episode: the promise is one destroyed node, whatever else is only interrupted.
"""

import random
from dataclasses import dataclass
from enum import Enum

from shadowrelay.lab.account import Times

NODES = ("mx1.east.example", "mx2.east.example", "mx1.west.example")
TIMES = Times(span=5.0, heartbeat=1.0, poll=0.25)


class Deed(Enum):
    """What is done to a node or a wire."""

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


class Moment(Enum):
    """When exactly, after the step was armed."""

    NOW = "at once"
    AFTER_ACK = "right after a 250 to a client"
    BEFORE_ACK = "with the confirmation of a copy on its way to it"
    COPY_HELD = "right after a copy was confirmed to it"
    COPY_COMING = "with the commit of a copy on its way to it"
    COPY_CAME = "right after the commit of a copy reached it"
    DELIVERY = "between the next hop's taking of a message and its answer"


LONG = {Deed.AWAY, Deed.PAUSE, Deed.CUT, Deed.ISOLATE, Deed.HALF_CUT}
KILLS = {Deed.KILL, Deed.WIPE, Deed.AWAY}
STOPS = KILLS | {Deed.PAUSE, Deed.NAP}


@dataclass(frozen=True, slots=True)
class Step:
    """One fault. `after` more acknowledgements it is armed; it lasts `seconds`; `is_frozen`: the receiving servers defer
    everything from then until `thaw_after` seconds after the fault began. `is_overlapped`: the next step begins meanwhile."""

    deed: Deed
    moment: Moment
    node: str
    other: str
    after: int
    seconds: float
    is_frozen: bool
    thaw_after: float
    is_overlapped: bool = False

    def __str__(self) -> str:
        frozen = f", nothing delivered until {self.thaw_after:.1f} s later" if self.is_frozen else ""
        return f"{self.node} {self.deed.value} ({self.seconds:.1f} s; {self.moment.value}{frozen})"


@dataclass(frozen=True, slots=True)
class Plan:
    """One episode. Units: `rate` messages a second; `share_deferred` of all deliveries, by chance."""

    seed: int
    steps: tuple[Step, ...]
    rate: float
    share_deferred: float

    def __str__(self) -> str:
        steps = "\n".join(f"    {'and meanwhile ' if index and self.steps[index - 1].is_overlapped else ''}{step}"
                          for index, step in enumerate(self.steps))  # fmt: skip
        return f"seed {self.seed}: {self.rate:.0f} messages/s, {self.share_deferred:.0%} deferred\n{steps}"


def plan(seed: int) -> Plan:
    """The episode of a seed."""
    chance = random.Random(seed)
    shape = seed % 6  # every sixth of the seeds has the same outline, so that few of them cover all
    if shape == 0:
        deeds = [Deed.WIPE, chance.choice((Deed.KILL, Deed.BREAK, Deed.SLOW))]
    elif shape == 1:
        deeds = [Deed.AWAY]
    elif shape == 2:
        deeds = [chance.choice((Deed.CUT, Deed.ISOLATE)), chance.choice((Deed.KILL, Deed.NAP, Deed.BREAK))]
    elif shape == 3:
        deeds = [Deed.PAUSE, chance.choice((Deed.KILL, Deed.WIPE))]
    elif shape == 4:
        deeds = [Deed.KILL, Deed.KILL, chance.choice((Deed.WIPE, Deed.HALF_CUT, Deed.SLOW))]
    else:
        deeds = [Deed.WIPE, chance.choice((Deed.AWAY, Deed.PAUSE, Deed.ISOLATE))]
    if shape in (0, 3, 5):
        chance.shuffle(deeds)
    is_double = shape in (3, 5) or chance.random() < 0.3  # two faults in a row on different nodes
    steps: list[Step] = []
    for index, deed in enumerate(deeds):
        overlaps = bool(steps) and steps[-1].is_overlapped
        others = [node for node in NODES if not (overlaps and node == steps[-1].node)]
        node = chance.choice(others)
        steps.append(_step(chance, deed, node, is_overlapped=is_double and index == 0 and len(deeds) > 1))
    return Plan(seed, tuple(steps), rate=chance.uniform(30, 45), share_deferred=chance.choice((0.0, 0.2, 0.4)))


def _step(chance: random.Random, deed: Deed, node: str, *, is_overlapped: bool) -> Step:
    moments = [Moment.NOW, Moment.AFTER_ACK]
    if deed in STOPS:
        moments += [Moment.BEFORE_ACK, Moment.COPY_HELD, Moment.COPY_COMING, Moment.COPY_CAME, Moment.DELIVERY]
    moment = chance.choice(moments)
    if deed in LONG:
        seconds = TIMES.span + TIMES.heartbeat + chance.uniform(0.5, 2.0)
    elif deed is Deed.NAP:
        seconds = chance.uniform(0.3, 0.6) * TIMES.span
    else:
        seconds = chance.uniform(0.0, 1.0) if deed in KILLS else chance.uniform(1.0, 2.5)
    is_frozen = moment is not Moment.DELIVERY and chance.random() < 0.85
    thaw_after = chance.uniform(0.3, 1.3) * (seconds + 1.0)
    other = chance.choice([name for name in NODES if name != node])
    return Step(deed, moment, node, other, chance.randint(25, 50), seconds, is_frozen, thaw_after, is_overlapped)
