"""Derives an episode in which a node's tracking log hangs from its seed: 3001 and up. Pure. docs/operations.md "The message tracking log".

What only observes must not stop what it observes: mail goes on, and its discard notifications leave. So when the node burns meanwhile,
nothing is delivered again that its peers have heard of. What it wanted to write since then is gone with it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tests.crash.layout import THREE_SITES, TWO_SITES, Layout
from tests.crash.outage_plan import MESSAGES_BEFORE, SMALL, Acknowledged, Act, Moment, NextHops, Off, On, OutagePlan, Pass
from tests.crash.outage_plan import names as _names

FIRST_SEED = 3001
LAYOUTS = (TWO_SITES[1], TWO_SITES[2], THREE_SITES[1])


class UnobservedOutline(Enum):
    """What an episode is about."""

    BURNT = "the tracking log of a node hangs, and then its disk burns"
    OTHER_BURNT = "the tracking log of a node hangs, and the disk of another one burns"


@dataclass(frozen=True, slots=True)
class TrackingHangs:
    """From now on no call for a file of its tracking log returns."""

    node: str

    def __str__(self) -> str:
        return f"the tracking log of {_names((self.node,))} hangs"


@dataclass(frozen=True, slots=True)
class TrackingAnswers:
    """They return again."""

    node: str

    def __str__(self) -> str:
        return f"the tracking log of {_names((self.node,))} answers"


UnobservedAct = Act | TrackingHangs | TrackingAnswers


def plan(seed: int) -> OutagePlan:
    """Derive the episode of a seed."""
    chance = random.Random(seed)
    layout = layout_of(seed)
    outline = list(UnobservedOutline)[seed // len(LAYOUTS) % len(UnobservedOutline)]
    acts = tuple(_acts(chance, layout, outline))
    return OutagePlan(seed, layout.copies, outline, acts, chance.uniform(12, 20), SMALL, 0.0, layout)


def layout_of(seed: int) -> Layout:
    """In turn."""
    return LAYOUTS[seed % len(LAYOUTS)]


def _acts(chance: random.Random, layout: Layout, outline: UnobservedOutline) -> Iterator[UnobservedAct]:
    node, other = chance.sample(layout.nodes, 2)
    burnt = node if outline is UnobservedOutline.BURNT else other
    yield NextHops(is_deferring=False)
    yield Acknowledged(MESSAGES_BEFORE)
    yield TrackingHangs(node)
    yield Acknowledged(MESSAGES_BEFORE)
    yield Pass(chance.uniform(5.0, 8.0))  # longer than anything waits for the log
    if chance.random() < 0.5:
        yield NextHops(is_deferring=True)
        yield Acknowledged(MESSAGES_BEFORE)
    yield Off((burnt,), chance.choice([Moment.NOW, Moment.AFTER_ACK]), burnt=(burnt,))
    if node != burnt:
        yield Pass(chance.uniform(0.0, 3.0))
    yield TrackingAnswers(node)
    yield Pass(chance.uniform(0.0, 2.0))
    yield NextHops(is_deferring=False)
    yield On((burnt,))
