"""Runs episodes with loss of power and partitions, one per seed, with real processes on machines of their own: four nodes in two sites,
`shadow_copies` 1 and 2. docs/reliability.md. `python -m tests.crash.outages SEED…` replays, `--seeds 1-200 --jobs 2` runs many.

A node keeps its queue on a disk that forgets what was not synced when the power fails (tests/kit/machines.py). Nobody is told that a
machine is dead, and its next kernel knows no connection. The tracking logs are evidence, and survive.

After an episode everything acknowledged must arrive, every duplicate must have a cause of I4, all queues must be empty, and the tracking
logs must account for every recipient, copy and takeover. The nodes stay up for the next episode, unless somebody complains.
"""

import argparse
import asyncio
import multiprocessing
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shadowrelay.lab import traffic
from shadowrelay.lab.account import Account, Fault, FaultKind, account
from shadowrelay.lab.cluster import SERVE, Cluster, Place
from shadowrelay.lab.traffic import Arrival, Load
from shadowrelay.model.message import Envelope
from shadowrelay.model.replies import Reply
from shadowrelay.tracking import operator_log
from tests.crash import evidence
from tests.crash.faults import and_then
from tests.crash.outage_plan import (
    COPIES,
    NODES,
    TIMES,
    Acknowledged,
    Act,
    Delivered,
    Heal,
    Moment,
    NextHops,
    Off,
    On,
    OutagePlan,
    Outline,
    Part,
    Pass,
    Through,
    copies_of,
    plan,
)
from tests.crash.ring import Episode, about_account, arrivals_of, deferring, recipients_of, run_under, settled, summary, transport
from tests.kit.machines import Disk, Hub, disk_obstacle, in_flight, machines, obstacle
from tests.kit.processes import wait_until_peers_know_each_other

MESSAGES_MAX, ACKNOWLEDGED_MIN = 120, 60  # in each episode
EPISODES_MAX = 10  # on one cluster
WAIT_SECONDS_MAX = 6.0  # for acknowledgements and deliveries, of which there may be none
MEMORY = Path("/dev/shm")
RING = "tests.crash.outages"


# ---- the machines


@dataclass(slots=True)
class Site:
    """Four machines and what runs on them. `dark_at`: when a node had certainly lost power, which takes a while on a busy machine;
    `wiped_at`: when its disk burnt last (time.time)."""

    cluster: Cluster
    hub: Hub
    disks: dict[str, Disk]
    sinks: tuple[traffic.Sink, ...]
    dark_at: dict[str, float] = field(default_factory=dict)
    wiped_at: dict[str, float] = field(default_factory=dict)

    def is_quiet(self) -> bool:
        """No kernel has octets for another machine that have not arrived: after a partition TCP takes its time."""
        running = [node.process for node in self.cluster.nodes.values() if node.process is not None]
        return not any(in_flight(process.pid) for process in running)

    def lose_power(self, names: Sequence[str]) -> float:
        """Of all at the same instant. Returns it."""
        nodes = [self.cluster.nodes[name] for name in names]
        at = time.time()
        for name in names:
            self.hub.machines[name].unplug()
        for node in nodes:
            node.kill_now()
        for name in names:
            self.disks[name].lose_power()
        self.dark_at |= dict.fromkeys(names, time.time())
        return at

    async def have_power(self, names: Sequence[str], burnt: Sequence[str] = ()) -> None:
        """Start them all, and wait until they answer."""
        await asyncio.gather(*(self._start(name, is_burnt=name in burnt) for name in names))

    async def flicker(self, names: Sequence[str], seconds: float) -> float:
        """They have power for so long, and then none again, whether they were started or not. Returns when they lost it."""
        starts = [asyncio.create_task(self._start(name, is_burnt=False)) for name in names]
        await asyncio.sleep(seconds)
        await asyncio.gather(*(self._wait_for_disk(name) for name in names))
        lost_at = self.lose_power(names)
        await asyncio.gather(*starts, return_exceptions=True)
        return lost_at

    async def _start(self, name: str, *, is_burnt: bool) -> None:
        await self.cluster.nodes[name].kill()
        await asyncio.to_thread(self.disks[name].wait_until_free)
        if is_burnt:
            await asyncio.to_thread(self.disks[name].make)
        await asyncio.to_thread(self.hub.machines[name].plug_in)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.cluster.nodes[name].start())
            group.create_task(self._wait_for_disk(name))

    async def _wait_for_disk(self, name: str) -> None:
        """It is mounted by the process that will be the node; from then on its power can fail."""
        node, disk = self.cluster.nodes[name], self.disks[name]
        while not disk.is_watched and not (node.process is not None and node.is_running and disk.watch(node.process.pid)):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def a_site(copies: int, directory: Path, program: Sequence[str] = SERVE) -> AsyncIterator[Site]:
    """All nodes run and know each other. Everything ends with it."""
    with (
        tempfile.TemporaryDirectory(prefix="shadowrelay-disks-", dir=MEMORY if MEMORY.is_dir() else None) as images,
        machines(NODES) as hub,
    ):
        disks = {name: Disk(directory / name / "data", Path(images)) for name in NODES}
        places = [
            Place(name, name.split(".")[1], hub.machines[name].host, (*hub.machines[name].inside, *disks[name].inside)) for name in NODES
        ]
        sinks = (traffic.Sink(hub.host, hub.network), traffic.Sink(hub.host, hub.network))
        corp, branch = [await sink.start() for sink in sinks]
        try:
            async with Cluster(
                places,
                corp,
                directory=directory,
                transport={**transport(TIMES), "shadow_copies": copies},
                routes={"*@branch.example": branch},
                network=hub.network,
                program=program,
            ) as cluster:
                for name, node in cluster.nodes.items():
                    assert node.process is not None
                    assert disks[name].watch(node.process.pid)
                await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
                yield Site(cluster, hub, disks, sinks)
        finally:
            for sink in sinks:
                await sink.close()
            for disk in disks.values():
                disk.wait_until_free()


# ---- an episode


class Story:
    """Carries out the acts of one plan, and records their faults."""

    def __init__(self, the_plan: OutagePlan, site: Site, load: Load, share_deferring: Callable[[Envelope], Reply | None]) -> None:
        self.faults: list[Fault] = []
        self._plan, self._site, self._load = the_plan, site, load
        self._decide = share_deferring
        self._dark: dict[str, tuple[FaultKind, float]] = {}  # since when
        self._parted: tuple[Part, float] | None = None
        self._addresses = dict(load.nodes)

    @property
    def acknowledged_count(self) -> int:
        return sum(bool(one.acknowledged_ids) for one in self._load.sent)

    async def run(self) -> None:
        """All acts, one after another; in the end nothing is out of order any more."""
        for act in self._plan.acts:
            await self._act(act)
        assert not self._dark
        assert self._parted is None

    async def _act(self, act: Act) -> None:
        match act:
            case Through(nodes):
                self._load.nodes = {name: self._addresses[name] for name in nodes}
            case NextHops(is_deferring):
                for sink in self._site.sinks:
                    sink.is_deferring = is_deferring
            case Acknowledged(count):
                wanted = self.acknowledged_count + count
                await _until(lambda: self.acknowledged_count >= wanted)
            case Delivered(node, count):
                before = self._delivered_by(node)
                await _until(lambda: self._delivered_by(node) >= before + count)
            case Pass(seconds):
                await asyncio.sleep(seconds)
            case Off():
                await self._off(act)
            case On(nodes, flickers):
                await self._on(nodes, flickers)
            case Part():
                pairs = [(one, other) for one in act.one for other in act.other]
                both = pairs if act.is_one_way else [*pairs, *((other, one) for one, other in pairs)]
                began_at = time.time()
                await asyncio.to_thread(self._site.hub.cut, both)
                self._parted = act, began_at
            case Heal():
                await self._heal()

    def _delivered_by(self, node: str) -> int:
        return sum(arrival.client_name == node for sink in self._site.sinks for arrival in sink.arrivals)

    async def _off(self, act: Off) -> None:
        struck = asyncio.Event()

        def strike(of: str) -> None:
            if of in act.nodes and not struck.is_set():
                at = self._site.lose_power(act.nodes)
                for name in act.nodes:
                    self._dark[name] = FaultKind.WIPE if name in act.burnt else FaultKind.KILL, at
                struck.set()

        if act.moment is Moment.NOW:
            strike(act.nodes[0])
            return
        if act.moment is Moment.AFTER_ACK:
            self._load.on_acknowledged = strike
        else:
            for sink in self._site.sinks:
                sink.decide = and_then(self._decide, strike)
        try:
            await asyncio.wait_for(struck.wait(), WAIT_SECONDS_MAX / 2)
        except TimeoutError:
            strike(act.nodes[0])
        finally:
            self._load.on_acknowledged = lambda node: None
            for sink in self._site.sinks:
                sink.decide = self._decide

    async def _on(self, nodes: Sequence[str], flickers: float) -> None:
        if flickers:
            lost_at = await self._site.flicker(nodes, flickers)
            self._lit(nodes, lost_at)
            self._dark |= dict.fromkeys(nodes, (FaultKind.KILL, lost_at))
        await self._site.have_power(nodes, [name for name in nodes if self._dark[name][0] is FaultKind.WIPE])
        self._lit(nodes, time.time())

    def _lit(self, nodes: Sequence[str], at: float) -> None:
        for name in nodes:
            kind, began_at = self._dark.pop(name)
            self.faults.append(Fault(kind, name, began_at, at))
            if kind is FaultKind.WIPE:
                self._site.wiped_at[name] = self._site.dark_at[name]

    async def _heal(self) -> None:
        assert self._parted is not None
        await asyncio.to_thread(self._site.hub.heal)
        (part, began_at), self._parted = self._parted, None
        self.faults += [Fault(FaultKind.CUT, one, began_at, time.time(), other) for one in part.one for other in part.other]


async def _until(claim: Callable[[], bool]) -> None:
    """Or too long: in the midst of faults nobody may be able to."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not claim() and time.monotonic() < deadline:
        await asyncio.sleep(0.005)


async def run(seed: int, site: Site) -> Episode:
    """One episode. Afterwards all machines are as they were before it."""
    began, began_at = time.monotonic(), time.time()
    the_plan, chance = plan(seed), random.Random(seed)
    before_count = len(arrivals_of(site.sinks))
    share_deferring = deferring(chance, the_plan.share_deferred)
    for sink in site.sinks:
        sink.is_deferring, sink.decide = False, share_deferring
    addresses = {name: node.address for name, node in site.cluster.nodes.items()}
    load = Load(addresses, chance, size=the_plan.size, sessions=20, recipients=recipients_of, patience=4.0)
    story = Story(the_plan, site, load, share_deferring)

    def arrivals() -> list[Arrival]:
        return arrivals_of(site.sinks)[before_count:]

    try:
        await run_under(load, story.run(), lambda: story.acknowledged_count >= ACKNOWLEDGED_MIN, rate=the_plan.rate, count_max=MESSAGES_MAX)
        for sink in site.sinks:
            sink.is_deferring, sink.decide = False, lambda envelope: None
        still_queued = await settled(site.cluster, load, arrivals, TIMES, site.is_quiet)
    finally:
        await load.close()
    lines = [line for line in evidence.lines_of(site.cluster) if line.at >= began_at]
    result = account(load.sent, arrivals(), story.faults, TIMES, evidence.records(lines, arrivals()))
    kills = {name: node.kills for name, node in site.cluster.nodes.items()}
    complaints = about_account(result, load, arrivals(), story.faults) + still_queued
    complaints += evidence.complaints(lines, load.sent, kills, site.wiped_at) + evidence.strangers(lines, arrivals())
    return Episode(seed, str(the_plan), result, story.faults, time.monotonic() - began, load.sent, complaints, RING)


# ---- many


def series(seeds: Sequence[int], directory: Path, program: Sequence[str] = SERVE) -> list[Episode]:
    """All of them with the same `shadow_copies`, on as few clusters as can be: who has seen a complaint is asked nothing more."""
    episodes: list[Episode] = []
    while len(episodes) < len(seeds):
        left = seeds[len(episodes) :]
        place = directory / f"from-{left[0]}"
        place.mkdir(parents=True)
        asyncio.run(_on_one_cluster(left, place, program, episodes))  # the threads of a loop stay in the hub in which they began
    return episodes


async def _on_one_cluster(seeds: Sequence[int], directory: Path, program: Sequence[str], episodes: list[Episode]) -> None:
    seed = seeds[0]
    try:
        async with a_site(copies_of(seed), directory, program) as site:
            for seed in seeds:
                episode = await run(seed, site)
                episodes.append(episode)
                print(episode.explain() if episode.complaints else episode, flush=True)
                if episode.complaints:
                    return
    except Exception:
        episodes.append(_failed(seed, traceback.format_exc()))
        print(episodes[-1].explain(), flush=True)


def _failed(seed: int, why: str) -> Episode:
    return Episode(seed, str(plan(seed)), Account(), [], 0.0, [], [why], RING)


def portions(seeds: Sequence[int]) -> list[list[int]]:
    """Of at most `EPISODES_MAX` seeds, with the same number of copies each, in the order of their first ones."""
    found: list[list[int]] = []
    for copies in COPIES:
        mine = [seed for seed in seeds if copies_of(seed) == copies]
        found += [mine[index : index + EPISODES_MAX] for index in range(0, len(mine), EPISODES_MAX)]
    return sorted(found)


def _portion(work: tuple[list[int], Path | None, Sequence[str]]) -> list[Episode]:
    seeds, kept, program = work
    with tempfile.TemporaryDirectory(prefix="shadowrelay-ring-") as temporary:
        return series(seeds, kept or Path(temporary), program)


def careless(rule: str) -> tuple[str, str]:
    """A node of which a rule of tests/simulation/rules_off.py is switched off, as `Cluster` takes it."""
    return "-c", (
        "import sys; from shadowrelay.cli.main import app; from tests.simulation.rules_off import without\n"
        f"with without({rule!r}): app(['serve', *sys.argv[1:]])"
    )


def totals(episodes: Sequence[Episode]) -> str:
    """What all of it was, by outline and number of copies."""
    lines = [f"{'':<44}" + "".join(f"{f'{copies} cop' + ('y' if copies == 1 else 'ies'):>10}" for copies in COPIES)]
    by_kind = Counter((plan(one.seed).outline, copies_of(one.seed)) for one in episodes)
    lines += [f"{outline.value:<44}" + "".join(f"{by_kind[outline, copies]:>10}" for copies in COPIES) for outline in Outline]
    provoked = {Outline.BURNT: "b", Outline.FAILED_TOGETHER: "d"}
    for outline, letter in provoked.items():
        mine = [one for one in episodes if plan(one.seed).outline is outline]
        found = [sum(one.causes[cause] for cause in one.causes if cause.value == letter) for one in mine]
        lines.append(f"cause ({letter}) provoked in {sum(map(bool, found))} of {len(found)} episodes, {sum(found)} duplicates")
    faults = Counter(fault.kind for one in episodes for fault in one.faults)
    lines.append("faults: " + ", ".join(f"{count} x {kind.value}" for kind, count in sorted(faults.items())))
    return "\n".join([summary(list(episodes)), "", *lines])


def main() -> int:
    """Exit status 0: every episode was clean."""
    parser = argparse.ArgumentParser(prog=f"python -m {RING}", description=__doc__)
    parser.add_argument("seed", nargs="*", type=int)
    parser.add_argument("--seeds", help="from-to")
    parser.add_argument("--jobs", type=int, default=1, help="clusters at once")
    parser.add_argument("--without", choices=("sync", "content"), metavar="RULE", help="run nodes that do not sync: sync, content")
    parser.add_argument("--keep", type=Path, help="leave the nodes' logs in DIRECTORY")
    arguments = parser.parse_args()
    first, _, last = (arguments.seeds or "1-0").partition("-")
    seeds = [*arguments.seed, *range(int(first), int(last or first) + 1)]
    with tempfile.TemporaryDirectory() as probe:
        if reason := obstacle() or disk_obstacle(Path(probe)):
            print(reason, file=sys.stderr)
            return 2
    operator_log.configure("critical")
    _end_in_order()
    began = time.monotonic()
    episodes: list[Episode] = []
    program = careless(arguments.without) if arguments.without else SERVE
    works = [(portion, arguments.keep, program) for portion in portions(seeds)]
    with multiprocessing.get_context("fork").Pool(min(arguments.jobs, len(works)), _end_in_order) as pool:
        for found in pool.imap_unordered(_portion, works):
            episodes += found
            minutes = (time.monotonic() - began) / 60
            left = minutes / len(episodes) * (len(seeds) - len(episodes))
            print(f"--- {len(episodes)} of {len(seeds)} episodes after {minutes:.1f} min; {left:.0f} min left", flush=True)
        pool.close()
        pool.join()
    episodes.sort(key=lambda one: one.seed)
    print(totals(episodes))
    return 1 if any(episode.complaints for episode in episodes) else 0


def _end_in_order() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # also in the background: the nodes must end with this process
        signal.signal(number, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
