"""Derives an episode with machines of two nodes each from its seed: 2001 and up. Pure. docs/design.md 6.15.

The nodes of a machine have its boot id, and stand in different sites: a copy in the other site would be on the same machine. Power is lost
by both at the same instant, and where a machine burns, both disks are gone: more than one disk at once, but one fate.
"""

import random
from collections.abc import Iterator
from enum import Enum

from tests.crash.layout import FOUR, MACHINES, Layout
from tests.crash.outage_plan import (
    MESSAGES_BEFORE,
    MESSAGES_REPEATED,
    SMALL,
    TIMES,
    Acknowledged,
    Act,
    Delivered,
    Moment,
    NextHops,
    Off,
    On,
    OutagePlan,
    Pass,
    Through,
)

FIRST_SEED = 2001


class FateOutline(Enum):
    """What an episode is about."""

    MACHINE_OFF = "a machine of two nodes loses power"
    MACHINE_BURNT = "a machine of two nodes burns, while its mail waits"
    BURNT_AFTER_DELIVERIES = "a machine of two nodes burns right after deliveries"
    ONE_BURNT = "one disk of a machine of two nodes burns"
    IN_TURN = "one machine burns, and later the other one loses power"


def plan(seed: int) -> OutagePlan:
    """Derive the episode of a seed."""
    chance = random.Random(seed)
    outline = list(FateOutline)[seed % len(FateOutline)]
    layout = layout_of(seed)
    machine, other = chance.sample(layout.machines, 2)
    acts = tuple(_ACTS[outline](chance, machine, other))
    return OutagePlan(seed, layout.copies, outline, acts, chance.uniform(15, 25), SMALL, 0.0, layout)


def layout_of(seed: int) -> Layout:
    """Of any seed of this range."""
    return MACHINES


def _machine_off(chance: random.Random, machine: tuple[str, ...], other: tuple[str, ...]) -> Iterator[Act]:
    moment = chance.choice(list(Moment))
    yield NextHops(moment is not Moment.DELIVERY and chance.random() < 0.7)
    yield Acknowledged(MESSAGES_BEFORE)
    yield Off(machine, moment)
    yield NextHops(is_deferring=False)
    yield Pass(_away(chance))
    yield On(machine, chance.uniform(0.1, 3.0) if chance.random() < 0.4 else 0.0)


def _machine_burnt(chance: random.Random, machine: tuple[str, ...], other: tuple[str, ...]) -> Iterator[Act]:
    yield from _queued_at(machine)
    yield Off(machine, chance.choice((Moment.NOW, Moment.AFTER_ACK)), burnt=machine)
    yield NextHops(is_deferring=False)
    yield Pass(_away(chance))
    yield On(machine)


def _burnt_after_deliveries(chance: random.Random, machine: tuple[str, ...], other: tuple[str, ...]) -> Iterator[Act]:
    yield from _queued_at(machine)
    yield NextHops(is_deferring=False)
    yield Delivered(machine[0], MESSAGES_REPEATED)
    yield Off(machine, burnt=machine)
    yield Pass(_away(chance))
    yield On(machine)


def _one_burnt(chance: random.Random, machine: tuple[str, ...], other: tuple[str, ...]) -> Iterator[Act]:
    one = (chance.choice(machine),)
    yield from _queued_at(machine)
    yield Off(one, burnt=one)
    yield NextHops(chance.random() < 0.5)
    yield Pass(_away(chance))
    yield On(one)
    yield NextHops(is_deferring=False)


def _in_turn(chance: random.Random, machine: tuple[str, ...], other: tuple[str, ...]) -> Iterator[Act]:
    yield from _machine_burnt(chance, machine, other)
    yield Pass(TIMES.span + 6 * TIMES.heartbeat)  # what it had has another copy by then
    yield from _machine_off(chance, other, machine)


def _queued_at(machine: tuple[str, ...]) -> Iterator[Act]:
    yield Through(machine)
    yield NextHops(is_deferring=True)
    yield Acknowledged(MESSAGES_BEFORE)
    yield Through(FOUR)


def _away(chance: random.Random) -> float:
    return chance.uniform(0.0, 1.0) if chance.random() < 0.4 else TIMES.span + TIMES.heartbeat + chance.uniform(0.5, 1.5)


_ACTS = {
    FateOutline.MACHINE_OFF: _machine_off,
    FateOutline.MACHINE_BURNT: _machine_burnt,
    FateOutline.BURNT_AFTER_DELIVERIES: _burnt_after_deliveries,
    FateOutline.ONE_BURNT: _one_burnt,
    FateOutline.IN_TURN: _in_turn,
}
