"""Runs episodes with loss of power and partitions, one per seed, with real processes on machines of their own. Seeds up to 1000: four
nodes in two sites, `shadow_copies` 1 and 2; from 1001 on: `sick_plan`; from 2001 on: `fate_plan`; from 3001 on: `unobserved_plan`; from
4001 on: `unread_plan`. docs/reliability.md.
`python -m tests.crash.outages SEED…` replays, `--seeds 1-200 --jobs 2` runs many.

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
from collections.abc import Callable, Sequence
from pathlib import Path

from shadowrelay.lab.account import Account, Fault, FaultKind, account, unknown
from shadowrelay.lab.cluster import SERVE
from shadowrelay.lab.traffic import Arrival, Load, SubmissionResult
from shadowrelay.model.message import Envelope
from shadowrelay.model.replies import Reply
from shadowrelay.tracking import operator_log
from tests.crash import evidence, fate_plan, promises, sick_plan, unobserved_plan, unread_plan
from tests.crash.faults import and_then
from tests.crash.layout import TWO_SITES, Layout
from tests.crash.outage_plan import (
    TIMES,
    Acknowledged,
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
from tests.crash.ring import Episode, about_account, arrivals_of, deferring, recipients_of, run_under, settled, summary
from tests.crash.sick_plan import FIRST_SEED, Join, Notices, OlderDisk, Sick, SickAct, TakeSnapshot, Well
from tests.crash.site import Site, a_site
from tests.crash.unobserved_plan import TrackingAnswers, TrackingHangs, UnobservedAct
from tests.crash.unread_plan import Ends, ReadAgain, Takes, Unread, UnreadAct
from tests.kit.bad_disk import DiskState
from tests.kit.machines import disk_obstacle, obstacle

MESSAGES_MAX, SICK_MESSAGES_MAX, ACKNOWLEDGED_MIN = 120, 300, 60  # in each episode
EPISODES_MAX = 10  # on one cluster
WAIT_SECONDS_MAX = 6.0  # for acknowledgements and deliveries, of which there may be none
RING = "tests.crash.outages"
TAKES_SECONDS_MAX, ENDS_SECONDS_MAX = 30.0, 90.0  # on a busy machine; the second: docs/setup.md says 80
RULES = ("sync", "content", "fate", "observers", "log thread")


def plan_of(seed: int) -> OutagePlan:
    """Of any range."""
    if seed >= unread_plan.FIRST_SEED:
        return unread_plan.plan(seed)
    if seed >= unobserved_plan.FIRST_SEED:
        return unobserved_plan.plan(seed)
    if seed >= fate_plan.FIRST_SEED:
        return fate_plan.plan(seed)
    return sick_plan.plan(seed) if seed >= FIRST_SEED else plan(seed)


def layout_of(seed: int) -> Layout:
    """Of any range."""
    if seed >= unread_plan.FIRST_SEED:
        return unread_plan.layout_of(seed)
    if seed >= unobserved_plan.FIRST_SEED:
        return unobserved_plan.layout_of(seed)
    if seed >= fate_plan.FIRST_SEED:
        return fate_plan.layout_of(seed)
    return sick_plan.layout_of(seed) if seed >= FIRST_SEED else TWO_SITES[copies_of(seed)]


def is_with_sick(seed: int) -> bool:
    """Whether disks may take no writes, or come back older."""
    return FIRST_SEED <= seed < fate_plan.FIRST_SEED


def can_be_sick(seed: int) -> bool:
    """Whether disks, tracking logs, or who reads standard error, may fail while the node runs."""
    return is_with_sick(seed) or seed >= unobserved_plan.FIRST_SEED


# ---- an episode


class Story:
    """Carries out the acts of one plan, and records their faults."""

    def __init__(self, the_plan: OutagePlan, site: Site, load: Load, share_deferring: Callable[[Envelope], Reply | None]) -> None:
        self.faults: list[Fault] = []
        self._plan, self._site, self._load = the_plan, site, load
        self._decide = share_deferring
        self._dark: dict[str, tuple[FaultKind, float]] = {}  # since when
        self._parted: list[tuple[Part, float]] = []
        self._sick: dict[str, float] = {}  # since when
        self._snapshots: dict[str, Path] = {}
        self._older: set[str] = set()
        self.unlogged: dict[str, float] = {}  # nodes that burnt with what their tracking logs did not take, and since when
        self._hanging: dict[str, float] = {}  # since when their tracking logs hang
        self._unread: set[str] = set()
        self.complaints: list[str] = []
        self._addresses = dict(load.nodes)

    @property
    def acknowledged_count(self) -> int:
        return sum(bool(one.acknowledged_ids) for one in self._load.sent)

    async def run(self) -> None:
        """All acts, one after another; in the end nothing is out of order any more."""
        for act in self._plan.acts:
            await self._act(act)
        assert not self._dark
        assert not self._parted
        assert not self._sick
        assert not self._hanging
        assert not self._unread

    async def _act(self, act: SickAct | UnobservedAct | UnreadAct) -> None:
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
                self._parted.append((act, began_at))
            case Heal():
                await self._join([part for part, _ in self._parted])
            case Join(one, other):
                await self._join([part for part, _ in self._parted if {part.one, part.other} == {one, other}])
            case Notices(is_deferring):
                self._site.senders.is_deferring = is_deferring
            case Sick(node, state):
                self._sick[node] = time.time()
                self._site.sick[node].become(state)
            case Well(node):
                self._site.sick[node].become(DiskState.WELL)
                self.faults.append(Fault(FaultKind.DEAD_DISK, node, self._sick.pop(node), time.time()))
            case TrackingHangs(node):
                self._hanging[node] = time.time()
                self._site.sick[node].tracking_hangs(True)
            case TrackingAnswers(node):
                since = self._hanging.pop(node)
                if node in self._dark:
                    self.unlogged[node] = since
                self._site.sick[node].tracking_hangs(False)
            case Unread(node):
                self._unread.add(node)
                self._site.sick[node].standard_error_hangs(True)
            case ReadAgain(node):
                self._unread.discard(node)
                self._site.sick[node].standard_error_hangs(False)
            case Takes(node, count):
                await self._takes(node, count)
            case Ends(node):
                await self._ends(node)
            case TakeSnapshot(node):
                await self._site.wait_until_stopped(node)
                self._snapshots[node] = await asyncio.to_thread(self._site.disks[node].snapshot)
            case OlderDisk(node):
                await self._site.wait_until_stopped(node)
                self._site.disks[node].put_back(self._snapshots.pop(node))
                self._older.add(node)

    async def _takes(self, node: str, count: int) -> None:
        def taken_count() -> int:
            return sum(made.node == node and made.answer is SubmissionResult.ACKNOWLEDGED for one in self._load.sent for made in one.tries)

        self._load.nodes = {node: self._addresses[node]}
        wanted = taken_count() + count
        await _until(lambda: taken_count() >= wanted, TAKES_SECONDS_MAX)
        if taken_count() < wanted:
            self.complaints.append(f"{node} has taken no {count} messages in {TAKES_SECONDS_MAX:g} s")

    async def _ends(self, node: str) -> None:
        process = self._site.cluster.nodes[node].process
        assert process is not None
        self._site.cluster.nodes[node].signal(signal.SIGTERM)
        told_at = time.time()
        try:
            await asyncio.wait_for(process.wait(), ENDS_SECONDS_MAX)
        except TimeoutError:
            self.complaints.append(f"{node} has not ended {ENDS_SECONDS_MAX:g} s after SIGTERM")
        self._site.lose_power((node,))
        self._dark[node] = FaultKind.KILL, told_at

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
            if name in self._older:  # what it knew since the snapshot is destroyed
                self._older.remove(name)
                kind = FaultKind.WIPE
                self.faults.append(Fault(kind, name, began_at, at))
            if kind is FaultKind.WIPE:
                self._site.wiped_at[name] = self._site.dark_at[name]

    async def _join(self, parts: Sequence[Part]) -> None:
        pairs = [pair for part in parts for one in part.one for other in part.other for pair in ((one, other), (other, one))]
        await asyncio.to_thread(self._site.hub.heal, pairs)
        for part, began_at in [parted for parted in self._parted if parted[0] in parts]:
            self._parted.remove((part, began_at))
            self.faults += [Fault(FaultKind.CUT, one, began_at, time.time(), other) for one in part.one for other in part.other]


async def _until(claim: Callable[[], bool], seconds: float = WAIT_SECONDS_MAX) -> None:
    """Or too long: in the midst of faults nobody may be able to."""
    deadline = time.monotonic() + seconds
    while not claim() and time.monotonic() < deadline:
        await asyncio.sleep(0.005)


async def run(seed: int, site: Site) -> Episode:
    """One episode. Afterwards all machines are as they were before it."""
    began, began_at = time.monotonic(), time.time()
    the_plan, chance = plan_of(seed), random.Random(seed)
    before_count, returned_before_count = len(arrivals_of(site.sinks)), len(site.senders.returned)
    share_deferring = deferring(chance, the_plan.share_deferred)
    for sink in site.sinks:
        sink.is_deferring, sink.decide = False, share_deferring
    site.senders.is_deferring = False
    is_sick = is_with_sick(seed)
    addresses = {name: site.cluster.nodes[name].address for name in site.layout.clients_use}
    recipients = promises.recipients_of if is_sick else recipients_of
    load = Load(addresses, chance, size=the_plan.size, sessions=20, recipients=recipients, patience=4.0, keeps_sessions=not is_sick)
    story = Story(the_plan, site, load, share_deferring)
    ownerless: list[str] = []

    def arrivals() -> list[Arrival]:
        return arrivals_of(site.sinks)[before_count:]

    def returned() -> list[tuple[int, str]]:
        return site.senders.returned[returned_before_count:]

    def is_quiet() -> bool:
        return site.is_quiet() and not promises.unreturned(load.sent, returned())

    try:
        await run_under(
            load,
            story.run(),
            lambda: story.acknowledged_count >= ACKNOWLEDGED_MIN,
            rate=the_plan.rate,
            count_max=SICK_MESSAGES_MAX if can_be_sick(seed) else MESSAGES_MAX,
        )
        lines = [line for line in evidence.lines_of(site.cluster) if line.at >= began_at]
        unpromised = promises.unpromised(lines, load.sent) if site.layout.is_chain else set()
        sent = promises.deliverable(load.sent, unpromised)
        if is_sick:
            ownerless = await promises.without_one_owner(site, sent, arrivals)
        for sink in site.sinks:
            sink.is_deferring, sink.decide = False, lambda envelope: None
        site.senders.is_deferring = False
        still_queued = await settled(site.cluster, sent, arrivals, TIMES, is_quiet)
    finally:
        await load.close()
    lines = [line for line in evidence.lines_of(site.cluster) if line.at >= began_at]
    unlogged = evidence.unlogged(load.sent, arrivals(), story.unlogged)
    record_of = unknown if site.layout.is_chain else evidence.records(lines, arrivals())  # hubs have ids of their own
    result = account(sent, arrivals(), story.faults, TIMES, record_of)
    promises.with_causes_of_edges(result, site.layout, sent, arrivals(), story.faults, lines)
    kills = {name: node.kills for name, node in site.cluster.nodes.items()}
    complaints = story.complaints + about_account(result, load, arrivals(), story.faults) + still_queued + ownerless
    complaints += promises.unreturned(load.sent, returned()) + promises.returned_falsely(returned())
    complaints += evidence.complaints(lines, load.sent, kills, site.wiped_at, unpromised | unlogged)
    logged = [arrival for arrival in arrivals() if arrival.network_id not in unlogged]
    complaints += [] if site.layout.is_chain else evidence.strangers(lines, logged, kills)
    return Episode(seed, str(the_plan), result, story.faults, time.monotonic() - began, load.sent, complaints, RING)


# ---- many


def series(seeds: Sequence[int], directory: Path, program: Sequence[str] = SERVE) -> list[Episode]:
    """All of them with the same machines, on as few clusters as can be: who has seen a complaint is asked nothing more."""
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
        async with a_site(layout_of(seed), directory, program, can_be_sick=can_be_sick(seed)) as site:
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
    return Episode(seed, str(plan_of(seed)), Account(), [], 0.0, [], [why], RING)


def portions(seeds: Sequence[int]) -> list[list[int]]:
    """Of at most `EPISODES_MAX` seeds, with the same machines each, in the order of their first ones."""
    found: list[list[int]] = []
    for layout, is_sick in sorted({(layout_of(seed), can_be_sick(seed)) for seed in seeds}, key=str):
        mine = [seed for seed in seeds if (layout_of(seed), can_be_sick(seed)) == (layout, is_sick)]
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
    """What all of it was, by outline and layout."""
    by_kind = Counter((plan_of(one.seed).outline.value, str(layout_of(one.seed))) for one in episodes)
    lines = [f"{outline:<70}{layout:<56}{count:>4}" for (outline, layout), count in sorted(by_kind.items())]
    provoked = {Outline.BURNT: "b", Outline.FAILED_TOGETHER: "d"}
    for outline, letter in provoked.items():
        mine = [one for one in episodes if plan_of(one.seed).outline is outline]
        found = [sum(one.causes[cause] for cause in one.causes if cause.value == letter) for one in mine]
        if mine:
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
    parser.add_argument("--without", choices=RULES, metavar="RULE", help=f"run nodes without a rule: {', '.join(RULES)}")
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
