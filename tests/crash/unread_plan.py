"""Derives an episode in which nobody reads a node's standard error from its seed: 4001 and up. Pure. docs/operations.md "The operator log".

What only observes must not stop what it observes: a collector of logs that hangs. The node takes mail and delivers it, its peers hear
it, so nothing is taken over from it, and SIGTERM ends it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tests.crash.layout import THREE_SITES, TWO_SITES, Layout
from tests.crash.outage_plan import MESSAGES_BEFORE, SMALL, TIMES, Acknowledged, Act, NextHops, Off, On, OutagePlan, Pass, Through
from tests.crash.outage_plan import names as _names

FIRST_SEED = 4001
LAYOUTS = (TWO_SITES[1], TWO_SITES[2], THREE_SITES[1])
MESSAGES_MEANWHILE = 5


class UnreadOutline(Enum):
    """What an episode is about."""

    BURNT = "nobody reads the standard error of a node, and the disk of another one burns"
    ENDED = "nobody reads the standard error of a node, and it is told to end"


@dataclass(frozen=True, slots=True)
class Unread:
    """From now on no write to its standard error returns."""

    node: str

    def __str__(self) -> str:
        return f"nobody reads the standard error of {_names((self.node,))}"


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """They return again."""

    node: str

    def __str__(self) -> str:
        return f"the standard error of {_names((self.node,))} is read again"


@dataclass(frozen=True, slots=True)
class Takes:
    """Clients use this server only, and it must acknowledge so many messages."""

    node: str
    count: int

    def __str__(self) -> str:
        return f"{_names((self.node,))} must take {self.count} messages"


@dataclass(frozen=True, slots=True)
class Ends:
    """It gets SIGTERM, and must end. Then its machine loses power."""

    node: str

    def __str__(self) -> str:
        return f"{_names((self.node,))} must end when it is told to"


UnreadAct = Act | Unread | ReadAgain | Takes | Ends


def plan(seed: int) -> OutagePlan:
    """Derive the episode of a seed."""
    chance = random.Random(seed)
    layout = layout_of(seed)
    outline = list(UnreadOutline)[seed // len(LAYOUTS) % len(UnreadOutline)]
    acts = tuple(_acts(chance, layout, outline))
    return OutagePlan(seed, layout.copies, outline, acts, chance.uniform(12, 20), SMALL, 0.0, layout)


def layout_of(seed: int) -> Layout:
    """In turn."""
    return LAYOUTS[seed % len(LAYOUTS)]


def _acts(chance: random.Random, layout: Layout, outline: UnreadOutline) -> Iterator[UnreadAct]:
    node, other = chance.sample(layout.nodes, 2)
    yield NextHops(is_deferring=False)
    yield Acknowledged(MESSAGES_BEFORE)
    yield Unread(node)
    yield Takes(node, MESSAGES_MEANWHILE)
    yield Through(layout.clients_use)
    if chance.random() < 0.5:
        yield NextHops(is_deferring=True)  # what waits there would be taken over
    yield Acknowledged(MESSAGES_BEFORE)
    yield Pass(chance.uniform(1.2, 1.6) * TIMES.span)
    if outline is UnreadOutline.BURNT:
        yield Off((other,), burnt=(other,))
        yield Pass(chance.uniform(0.0, 1.5) * TIMES.span)
        yield Takes(node, MESSAGES_MEANWHILE)
        yield Through(layout.clients_use)
        yield ReadAgain(node)
        yield On((other,))
    else:
        yield Ends(node)
        yield ReadAgain(node)
        yield Pass(chance.uniform(0.0, 1.5) * TIMES.span)
        yield On((node,))
    yield NextHops(is_deferring=False)
