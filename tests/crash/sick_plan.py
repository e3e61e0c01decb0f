"""Derives an episode with machines that come back older, half live, or are cut in three, from its seed: 1001 and up. Pure.

What is destroyed in an episode is what one disk knows at a time: a disk that burns, or everything since a snapshot of it. The next one
comes when all copies have been replaced. Seven layouts and eight outlines in turn: 56 seeds have every pair.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.crash.layout import LAYOUTS, Layout
from tests.crash.outage_plan import MESSAGES_BEFORE, SMALL, TIMES, Acknowledged, Act, Moment, NextHops, Off, On, OutagePlan, Part, Pass
from tests.crash.outage_plan import names as _names
from tests.kit.bad_disk import DiskState

FIRST_SEED = 1001
UNTIL_COPIED = TIMES.span + 6 * TIMES.heartbeat  # from the return of a node until what it lost has another copy
AGES = ((0.1, 1.0), (1.0, 4.0), (5.0, 10.0), (15.0, 25.0))  # of snapshots. Units: seconds
STATES = (DiskState.READ_ONLY, DiskState.IO_ERROR, DiskState.HANGS, DiskState.FULL)


class SickOutline(Enum):
    """What an episode is about."""

    RESTORED = "a snapshot of a running machine is put back"
    RESTORED_STOPPED = "a copy of a stopped node's disk is put back"
    RESTORED_THEN_BURNT = "a snapshot is put back, and another disk burns later"
    DEAD_DISK = "a disk is dead for a while"
    DEAD_DISK_BURNT = "a disk is dead for good"
    THREE_PARTS = "cut in three, and joined in some order"
    IN_TURN = "sites lose power in turn"
    GENERATED = "a disk burns while DSNs wait"


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """The disk of this node is copied as it is now."""

    node: str

    def __str__(self) -> str:
        return f"a snapshot of {_names((self.node,))}"


@dataclass(frozen=True, slots=True)
class OlderDisk:
    """Before this node has power again, its disk is the copy."""

    node: str

    def __str__(self) -> str:
        return f"the snapshot of {_names((self.node,))} is put back"


@dataclass(frozen=True, slots=True)
class Sick:
    """From now on the disk of this node takes no writes."""

    node: str
    state: DiskState

    def __str__(self) -> str:
        return f"the disk of {_names((self.node,))}: {self.state.name.lower().replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class Well:
    """It takes them again."""

    node: str

    def __str__(self) -> str:
        return f"the disk of {_names((self.node,))} is well"


@dataclass(frozen=True, slots=True)
class Join:
    """Packets pass again between these groups."""

    one: tuple[str, ...]
    other: tuple[str, ...]

    def __str__(self) -> str:
        return f"{_names(self.one)} joined with {_names(self.other)}"


@dataclass(frozen=True, slots=True)
class Notices:
    """The server of the senders takes DSNs, or defers them."""

    is_deferring: bool

    def __str__(self) -> str:
        return "DSNs wait" if self.is_deferring else "DSNs are delivered"


SickAct = Act | TakeSnapshot | OlderDisk | Sick | Well | Join | Notices


def outline_of(seed: int) -> SickOutline:
    """In turn."""
    return list(SickOutline)[seed % len(SickOutline)]


def layout_of(seed: int) -> Layout:
    """In turn."""
    return LAYOUTS[seed % len(LAYOUTS)]


def plan(seed: int) -> OutagePlan:
    """Derive the episode of a seed. In six of ten, mail that can wait still waits at the end of the faults."""
    chance = random.Random(seed)
    layout, outline = layout_of(seed), outline_of(seed)
    acts = list(_ACTS[outline](chance, layout))
    if outline is not SickOutline.GENERATED and chance.random() < 0.5:
        acts = [Notices(is_deferring=True), *acts]
    return OutagePlan(seed, layout.copies, outline, tuple(acts), chance.uniform(12, 20), SMALL, chance.choice((0.0, 0.0, 0.3)), layout)


def _restored(chance: random.Random, layout: Layout) -> Iterator[SickAct]:
    node = chance.choice(layout.nodes)
    yield NextHops(chance.random() < 0.6)
    yield Acknowledged(chance.randint(5, MESSAGES_BEFORE))
    yield TakeSnapshot(node)
    yield from _traffic(chance, chance.uniform(*chance.choice(AGES)))
    yield from _put_back(chance, layout, node)
    if chance.random() < 0.5:
        yield Pass(chance.uniform(0.0, 3.0))
        yield NextHops(is_deferring=False)


def _restored_stopped(chance: random.Random, layout: Layout) -> Iterator[SickAct]:
    node = chance.choice(layout.nodes)
    yield NextHops(chance.random() < 0.6)
    yield Acknowledged(chance.randint(5, MESSAGES_BEFORE))
    yield Off((node,))
    yield TakeSnapshot(node)
    yield On((node,))
    yield Acknowledged(5)
    yield from _traffic(chance, chance.uniform(*chance.choice(AGES)))
    yield from _put_back(chance, layout, node)
    if chance.random() < 0.5:
        yield NextHops(is_deferring=False)


def _restored_then_burnt(chance: random.Random, layout: Layout) -> Iterator[SickAct]:
    """The other one counts on copies that the older disk lacks."""
    node = chance.choice(layout.burnable)
    others = [one for one in layout.burnable if one != node]
    yield NextHops(is_deferring=True)
    yield Acknowledged(MESSAGES_BEFORE)
    yield TakeSnapshot(node)
    yield Acknowledged(MESSAGES_BEFORE)
    yield from _put_back(chance, layout, node, is_short=chance.random() < 0.7)
    yield Pass(UNTIL_COPIED)
    burnt = chance.choice(others)
    yield Off((burnt,), burnt=(burnt,))
    yield Pass(_short(chance) if chance.random() < 0.5 else _long(chance))
    yield On((burnt,))
    if chance.random() < 0.5:
        yield NextHops(is_deferring=False)


def _dead_disk(chance: random.Random, layout: Layout) -> Iterator[SickAct]:
    node = chance.choice(layout.nodes)
    yield NextHops(is_deferring=True)
    yield Acknowledged(MESSAGES_BEFORE)
    yield Sick(node, chance.choice(STATES))
    seconds = _until_taken_over(chance) if chance.random() < 0.8 else chance.uniform(0.5, 3.0)
    amid = chance.uniform(0.1, 0.9) * seconds
    yield Pass(amid)
    if chance.random() < 0.6:
        yield NextHops(is_deferring=False)
    if chance.random() < 0.3:
        other = chance.choice([one for one in layout.nodes if one != node])
        yield Off((other,))
        yield Pass(_short(chance))
        yield On((other,))
    yield Pass(seconds - amid)
    yield Well(node)


def _dead_disk_burnt(chance: random.Random, layout: Layout) -> Iterator[SickAct]:
    """As docs/operations.md says: not waited for, but replaced by an empty one."""
    node = chance.choice(layout.burnable)
    yield NextHops(is_deferring=True)
    yield Acknowledged(MESSAGES_BEFORE)
    yield Sick(node, chance.choice(STATES))
    if chance.random() < 0.5:
        yield NextHops(is_deferring=False)
    yield Pass(_until_taken_over(chance) if chance.random() < 0.5 else _short(chance))
    yield Off((node,), burnt=(node,))
    yield Well(node)
    yield Pass(_short(chance))
    yield On((node,))


def _three_parts(chance: random.Random, layout: Layout) -> Iterator[SickAct]:
    parts = list(layout.sites) if len(layout.sites) == 3 else _thirds(chance, layout.nodes)
    chance.shuffle(parts)
    pairs = [(parts[0], parts[1]), (parts[0], parts[2]), (parts[1], parts[2])]
    yield NextHops(is_deferring=True)
    yield Acknowledged(MESSAGES_BEFORE)
    is_staged = chance.random() < 0.5
    for index, (one, other) in enumerate(pairs):
        if is_staged and index == 2:
            yield Pass(chance.uniform(0.5, 2.0) * TIMES.span)
        yield Part(one, other)
    yield Pass(_long(chance) + chance.uniform(0.0, 1.0) * TIMES.span)
    if chance.random() < 0.3:
        yield NextHops(is_deferring=False)
        yield Pass(_short(chance))
        yield NextHops(is_deferring=True)
    chance.shuffle(pairs)
    for index, (one, other) in enumerate(pairs):
        if index:
            yield Pass(chance.choice((0.0, chance.uniform(0.0, 2.0), chance.uniform(0.0, 2.0) * TIMES.span)))
        yield Join(one, other)
    if chance.random() < 0.2:
        yield NextHops(is_deferring=False)


def _in_turn(chance: random.Random, layout: Layout) -> Iterator[SickAct]:
    """Each is away for longer than the span, and the next one fails before or after it is back."""
    sites = chance.sample(layout.sites, len(layout.sites))
    yield NextHops(is_deferring=True)
    yield Acknowledged(MESSAGES_BEFORE)
    is_overlapping = chance.random() < 0.5
    for index, site in enumerate(sites):
        yield Off(site)
        if is_overlapping and index:
            yield Pass(_short(chance))
            yield On(sites[index - 1])
        yield Pass(_long(chance))
        if not is_overlapping:
            yield On(site)
            yield Pass(chance.choice((0.0, chance.uniform(0.0, 4.0))))
    if is_overlapping:
        yield On(sites[-1])
    if chance.random() < 0.3:
        yield NextHops(is_deferring=False)


def _generated(chance: random.Random, layout: Layout) -> Iterator[SickAct]:
    """Between a DSN and its delivery."""
    node = chance.choice(layout.behind)
    yield Notices(is_deferring=True)
    yield NextHops(chance.random() < 0.3)
    yield Acknowledged(2 * MESSAGES_BEFORE)
    yield Pass(chance.uniform(0.0, 3.0))
    burnt = (node,) if chance.random() < 0.7 else ()
    yield Off((node,), chance.choice(list(Moment)), burnt=burnt)
    yield Pass(_short(chance) if chance.random() < 0.5 else _long(chance))
    yield On((node,))
    yield Pass(_short(chance))
    if chance.random() < 0.5:
        yield NextHops(is_deferring=False)


def _put_back(chance: random.Random, layout: Layout, node: str, *, is_short: bool | None = None) -> Iterator[SickAct]:
    moments = [Moment.NOW, Moment.DELIVERY]
    if node in layout.clients_use:
        moments.append(Moment.AFTER_ACK)
    yield Off((node,), chance.choice(moments))
    yield OlderDisk(node)
    is_short = chance.random() < 0.6 if is_short is None else is_short
    yield Pass(_short(chance) if is_short else _long(chance))
    yield On((node,))


def _traffic(chance: random.Random, seconds: float) -> Iterator[SickAct]:
    """Mail comes all the time; now and then it is delivered, too."""
    while seconds > 0:
        part = min(seconds, chance.uniform(0.5, 5.0))
        yield NextHops(chance.random() < 0.5)
        yield Pass(part)
        seconds -= part


def _thirds(chance: random.Random, nodes: Sequence[str]) -> list[tuple[str, ...]]:
    shuffled = chance.sample(nodes, len(nodes))
    ends = sorted(chance.sample(range(1, len(nodes)), 2))
    return [tuple(shuffled[: ends[0]]), tuple(shuffled[ends[0] : ends[1]]), tuple(shuffled[ends[1] :])]


def _short(chance: random.Random) -> float:
    return chance.uniform(0.0, 1.0)


def _long(chance: random.Random) -> float:
    return TIMES.span + TIMES.heartbeat + chance.uniform(0.5, 1.5)


def _until_taken_over(chance: random.Random) -> float:
    return TIMES.span + 6 * TIMES.heartbeat + chance.uniform(0.5, 4.0)


_ACTS = {
    SickOutline.RESTORED: _restored,
    SickOutline.RESTORED_STOPPED: _restored_stopped,
    SickOutline.RESTORED_THEN_BURNT: _restored_then_burnt,
    SickOutline.DEAD_DISK: _dead_disk,
    SickOutline.DEAD_DISK_BURNT: _dead_disk_burnt,
    SickOutline.THREE_PARTS: _three_parts,
    SickOutline.IN_TURN: _in_turn,
    SickOutline.GENERATED: _generated,
}
