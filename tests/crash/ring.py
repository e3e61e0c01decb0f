"""Runs crash episodes, one per seed, with real processes under load. docs/design.md 3. `python -m tests.crash.ring SEED…` replays,
`--all` runs them all and prints a summary table, `--keep DIRECTORY` leaves the nodes' files there.

After the faults stop, everything acknowledged must arrive, every duplicate must have a cause of I4, all queues must be
empty, and the tracking logs must account for every recipient and every copy.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shadowrelay.admin.api_client import NodeError
from shadowrelay.lab.account import Account, Cause, Fault, FaultKind, FaultTimes, account, has_all_arrived
from shadowrelay.lab.cluster import Cluster, Place
from shadowrelay.lab.traffic import DEFERRED, Arrival, Load, Sent, Sink
from shadowrelay.model.message import Envelope
from shadowrelay.model.replies import Reply
from shadowrelay.tracking import operator_log
from tests.crash import evidence
from tests.crash.faults import Trouble
from tests.crash.plan import DISK_SEEDS, DISKS, NODES, TIMES, plan
from tests.kit.bad_disk import BadDisk
from tests.kit.processes import held_by

SEEDS = (*range(1, 31), *DISK_SEEDS)
MESSAGES_MAX, ACKNOWLEDGED_MIN = 10_000, 100  # in each episode
LOAD_SECONDS_MAX = 60.0  # after the faults, until enough is acknowledged
SETTLE_SECONDS_MAX = 120.0
CONTENDED_SHARE_MIN = 0.9  # is told: nodes that wait for a processor answer no question in time (docs/reliability.md "The crash ring")

PLACES = tuple(Place(name, name.split(".")[1]) for name in NODES)


def transport(times: FaultTimes) -> dict[str, str]:
    """The settings of each node."""
    return {
        "shadow_resubmit_time_span": f"{times.span:g}s",
        "shadow_heartbeat_frequency": f"{times.heartbeat:g}s",
        "discard_poll_interval": f"{times.poll * 1000:.0f}ms",
        "shadow_timeout": "3s",
    }


def recipients_of(number: int) -> tuple[str, ...]:
    """Every third message has two forks, and one of them may be done long before the other."""
    first = f"user{number % 50}@corp.example"
    return (first,) if number % 3 else (first, f"user{number % 50}@branch.example")


@dataclass(slots=True)
class Episode:
    """The result of one seed. `complaints` is empty if all is well."""

    seed: int
    story: str
    result: Account
    faults: list[Fault]
    seconds: float
    sent: list[Sent]
    complaints: list[str] = field(default_factory=list)
    ring: str = "tests.crash.ring"
    contended: float = 0.0  # share of the time in which something waited for a processor of this machine

    @property
    def causes(self) -> Counter[Cause]:
        return Counter(duplicate.cause for duplicate in self.result.duplicates)

    def __str__(self) -> str:
        result = self.result
        causes = ", ".join(f"{count} ({cause.value})" for cause, count in sorted(self.causes.items())) or "0"
        return (
            f"seed {self.seed:>3}: {result.accepted} acknowledged, {len(result.lost)} lost, {len(result.changed)} changed, "
            f"{causes} duplicated, {result.taken_over} taken over, {len(self.complaints)} complaints, {self.seconds:.0f} s"
            + f", processors contended {self.contended:.0%} of the time"
            * (self.contended >= CONTENDED_SHARE_MIN)
        )

    def explain(self) -> str:
        """Details for an investigation."""
        began = min((fault.began_at for fault in self.faults), default=0.0)
        faults = [
            f"    {fault.kind.value} {fault.node} {fault.other} {fault.began_at:.2f} ({fault.began_at - began:+.2f}) "
            f"to {fault.ended_at - began:+.2f}"
            for fault in self.faults
        ]
        lines = [f"replay with: python -m {self.ring} {self.seed}", self.story, *faults, str(self), *self.complaints[:40]]
        return "\n".join(lines)


async def run(seed: int, directory: Path, make: Callable[..., Cluster] = Cluster) -> Episode:
    """Run one episode, in a cluster that `make` makes; everything it started has ended when it returns."""
    began, waited_before = time.monotonic(), waited_seconds()
    the_plan = plan(seed)
    chance = random.Random(seed)
    sinks = (Sink(), Sink())
    corp, branch = [await sink.start() for sink in sinks]
    for sink in sinks:
        sink.decide = deferring(chance, the_plan.share_deferred)
    are_disks_bad = any(step.disruption in DISKS for step in the_plan.steps)
    disks = {place.name: BadDisk(place, directory) for place in PLACES} if are_disks_bad else {}
    places = [disk.place for disk in disks.values()] or PLACES
    try:
        async with make(
            places, corp, directory=directory, transport=transport(TIMES), routes={"*@branch.example": branch}, is_wired=True
        ) as cluster:
            load = Load({name: node.address for name, node in cluster.nodes.items()}, chance, size=2048, recipients=recipients_of)
            trouble = Trouble(the_plan, cluster, sinks, load, disks)
            try:
                await run_under(
                    load, trouble.run(), lambda: trouble.acknowledged_count >= ACKNOWLEDGED_MIN, rate=the_plan.rate, count_max=MESSAGES_MAX
                )
                for sink in sinks:
                    sink.is_deferring, sink.decide = False, lambda envelope: None
                still_queued = await settled(cluster, load.sent, lambda: arrivals_of(sinks), TIMES)
            finally:
                await load.close()
    finally:
        for sink in sinks:
            await sink.close()
    arrivals = arrivals_of(sinks)
    lines = evidence.lines_of(cluster)
    result = account(load.sent, arrivals, trouble.faults, TIMES, evidence.unanswered(lines, arrivals))
    seconds = time.monotonic() - began
    contended = (waited_seconds() - waited_before) / seconds
    episode = Episode(seed, str(the_plan), result, trouble.faults, seconds, load.sent, contended=contended)
    kills = {name: node.kills for name, node in cluster.nodes.items()}
    episode.complaints += about_account(result, load, arrivals, trouble.faults) + still_queued
    episode.complaints += waited_in_vain(load.sent, arrivals, trouble.faults)
    episode.complaints += evidence.complaints(lines, load.sent, kills, trouble.wiped_at)
    return episode


def waited_seconds() -> float:
    """For how long something has waited for a processor of this machine, since it booted. 0 if the kernel does not count that."""
    try:
        total = Path("/proc/pressure/cpu").read_text().partition("total=")[2].split()[0]
    except (OSError, IndexError):
        return 0.0
    return int(total) / 1e6


def deferring(chance: random.Random, share: float) -> Callable[[Envelope], Reply | None]:
    """A next hop that defers a share of all mail, at random."""
    return lambda envelope: DEFERRED if chance.random() < share else None


def arrivals_of(sinks: tuple[Sink, ...]) -> list[Arrival]:
    """At all receiving servers, in order."""
    return sorted((arrival for sink in sinks for arrival in sink.arrivals), key=lambda arrival: arrival.at)


async def run_under(load: Load, trouble: Awaitable[None], is_enough: Callable[[], bool], *, rate: float, count_max: int) -> None:
    """So many messages at most, until the trouble is over and enough of them are acknowledged."""
    sending = asyncio.create_task(load.run(count_max, rate=rate))
    try:
        await trouble
        deadline = time.monotonic() + LOAD_SECONDS_MAX
        while not is_enough() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
    finally:
        load.stop()
        await sending


async def settled(
    cluster: Cluster,
    sent: Sequence[Sent],
    arrivals: Callable[[], list[Arrival]],
    times: FaultTimes,
    is_quiet: Callable[[], bool] = lambda: True,
) -> list[str]:
    """Wait until everything has arrived and nothing is queued or held any more: then nothing can arrive twice either. What is left.

    `is_quiet`: nothing is on its way between the nodes.
    """
    deadline = time.monotonic() + SETTLE_SECONDS_MAX

    def held() -> list[str]:
        try:
            return [f"still queued: {line}" for node in cluster.nodes.values() for line in held_by(node)]
        except NodeError as error:  # a node that has recognised its older copy starts again
            return [f"cannot be asked: {error}"]

    while True:
        is_all_here = has_all_arrived(sent, arrivals())
        is_over = time.monotonic() > deadline
        queued = await asyncio.to_thread(held) if is_over or (is_all_here and is_quiet()) else ["waiting for mail"]
        if not queued and not is_over:
            await asyncio.sleep(2 * times.poll)  # what was committed last gets its row, and what had just come is seen
            queued = await asyncio.to_thread(held)
        if not queued or is_over:
            return queued
        await asyncio.sleep(0.2)


def about_account(result: Account, load: Load, arrivals: list[Arrival], faults: list[Fault]) -> list[str]:
    """What is wrong with it, with the details that an investigation needs."""
    began = min((fault.began_at for fault in faults), default=0.0)

    def tries(number: int) -> str:
        made = load.sent[number - 1].tries
        return ", ".join(f"{one.answer.value} by {one.node} at {one.at - began:+.2f} {one.network_id}" for one in made)

    found = [f"lost: {network_id}" for network_id in result.lost] + [f"changed: {network_id}" for network_id in result.changed]
    for duplicate in result.unexplained:
        message_id = load.sent[duplicate.number - 1].internet_message_id
        got = [arrival for arrival in arrivals if arrival.internet_message_id == message_id]
        when = "; ".join(f"{one.network_id} {one.recipient} by {one.client_name} at {one.at - began:+.2f}" for one in got)
        found.append(f"duplicate without a cause: message {duplicate.number}: {when}; tries: {tries(duplicate.number)}")
    return found


def waited_in_vain(sent: list[Sent], arrivals: list[Arrival], faults: list[Fault]) -> list[str]:
    """Dead disks from whose nodes nobody took anything over, although mail waited there for longer than the span."""
    first_at: dict[str, float] = {}
    for arrival in arrivals:
        first_at.setdefault(arrival.network_id, arrival.at)
    found = []
    for fault in faults:
        if fault.kind is not FaultKind.DEAD_DISK:
            continue
        tries = [one for each in sent for one in each.tries if one.network_id in first_at and one.node == fault.node]
        waited = [
            first_at[one.network_id] for one in tries if one.at < fault.began_at and first_at[one.network_id] > fault.began_at + TIMES.span
        ]
        if waited and min(waited) > fault.ended_at:
            found.append(f"{len(waited)} messages waited until the disk of {fault.node} was well again")
    return found


def summary(episodes: list[Episode]) -> str:
    """The summary table of all episodes."""
    causes: Counter[Cause] = Counter()
    for episode in episodes:
        causes.update(episode.causes)
    lines = [str(episode) for episode in episodes]
    lines += [
        "",
        f"{'episodes':<28}{len(episodes):>7}",
        f"{'acknowledged':<28}{sum(episode.result.accepted for episode in episodes):>7}",
        f"{'lost':<28}{sum(len(episode.result.lost) for episode in episodes):>7}",
        f"{'changed':<28}{sum(len(episode.result.changed) for episode in episodes):>7}",
        f"{'taken over':<28}{sum(episode.result.taken_over for episode in episodes):>7}",
        f"{'duplicated':<28}{causes.total():>7}",
        *(f"  {'cause (' + cause.value + ')':<26}{count:>7}" for cause, count in sorted(causes.items())),
        f"{'complaints':<28}{sum(len(episode.complaints) for episode in episodes):>7}",
    ]
    return "\n".join(lines)


def main() -> int:
    """Exit status 0: every episode was clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--all", action="store_true", help="seeds 1 to 36")
    parser.add_argument("--keep", type=Path, help="leave the nodes' files in DIRECTORY/<seed>")
    arguments = parser.parse_args()
    operator_log.configure("critical")
    for number in (signal.SIGINT, signal.SIGTERM):  # also in the background: the nodes must end with this process
        signal.signal(number, signal.default_int_handler)
    episodes = []
    for seed in (*arguments.seeds, *(SEEDS if arguments.all else ())):
        with tempfile.TemporaryDirectory(prefix="shadowrelay-ring-") as temporary:
            directory = arguments.keep / str(seed) if arguments.keep else Path(temporary)
            directory.mkdir(parents=True, exist_ok=True)
            episode = asyncio.run(run(seed, directory))
        episodes.append(episode)
        print(episode.explain() if episode.complaints or not arguments.all else episode, flush=True)
    if len(episodes) > 1:
        print(summary(episodes))
    return 1 if any(episode.complaints for episode in episodes) else 0


if __name__ == "__main__":
    sys.exit(main())
