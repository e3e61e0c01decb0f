"""Mixed clusters: nodes of the last release and of this checkout, as real processes under load. docs/operations.md "Upgrade".

An episode has the plan of the same seed of the crash ring; a roll takes all nodes from one version to the other, one after the other.
`python -m tests.crash.mixed SEED…` replays episodes, `--all` runs them all and both rolls.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shadowrelay.lab.account import Fault, FaultKind, account
from shadowrelay.lab.cluster import SERVE, Cluster, NodeProcess
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.tracking import operator_log
from tests.crash import ring
from tests.crash.plan import NODES, TIMES
from tests.kit.clock import until
from tests.kit.processes import api_of
from tests.kit.releases import SERVE_RELEASE, release_python, without_new_keys

SEEDS = range(1, 61)
SEEDS_OF_A_TEST = SEEDS[:20]
ROLL_RATE = 40.0
ROLL_MESSAGES_MAX = 4_000
STEP_SECONDS_MAX = 90.0


class OfTwoVersions(Cluster):
    """`old`: the nodes that run the last release."""

    def __init__(self, *arguments: Any, old: frozenset[str], **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.old = old
        for node in self.nodes.values():
            self._choose(node)

    def _choose(self, node: NodeProcess) -> None:
        is_old = node.name in self.old
        node.python, node.program = (release_python(), SERVE_RELEASE) if is_old else (sys.executable, SERVE)

    def _configuration(self, node: NodeProcess) -> str:
        text = super()._configuration(node)
        return without_new_keys(text) if node.name in self.old else text

    async def change(self, node: NodeProcess) -> None:
        """Start a stopped node as the other version. The older one gets an empty directory: a database moves forward only."""
        self.old = self.old ^ {node.name}
        self._choose(node)
        if node.name in self.old:
            node.wipe()
        (node.directory / "node.toml").write_text(self._configuration(node))
        await node.start()


def old_nodes(seed: int) -> frozenset[str]:
    """One or two of the three, each in turn."""
    one = seed % len(NODES)
    return frozenset({NODES[one]} if seed % 2 else {NODES[one], NODES[one - 1]})


def made_of(old: frozenset[str]) -> Callable[..., Cluster]:
    """For `ring.run`."""

    def make(*arguments: Any, **keywords: Any) -> Cluster:
        return OfTwoVersions(*arguments, old=old, **keywords)

    return make


async def run(seed: int, directory: Path) -> ring.Episode:
    """One episode of the crash ring with a mixed cluster."""
    old = old_nodes(seed)
    episode = await ring.run(seed, directory, made_of(old))
    # the last release does not fall silent when its disk is dead (docs/design.md 6.14), so that nobody takes over what it holds
    episode.complaints = [one for one in episode.complaints if not any(one.endswith(f"the disk of {name} was well again") for name in old)]
    episode.ring, episode.story = "tests.crash.mixed", f"{', '.join(sorted(old))} of the last release; {episode.story}"
    return episode


async def roll(directory: Path, *, forward: bool) -> ring.Episode:
    """All nodes from the last release to this checkout, or back, each drained. No client is refused by all nodes."""
    began = time.monotonic()
    sink = Sink()
    hop = await sink.start()
    faults: list[Fault] = []
    old = frozenset(NODES) if forward else frozenset()
    try:
        async with OfTwoVersions(ring.PLACES, hop, directory=directory, transport=ring.transport(TIMES), old=old) as cluster:
            load = Load({name: node.address for name, node in cluster.nodes.items()}, random.Random(7), size=2048)
            try:
                await ring.run_under(load, _roll(cluster, faults), lambda: True, rate=ROLL_RATE, count_max=ROLL_MESSAGES_MAX)
                still_queued = await ring.settled(cluster, load.sent, lambda: list(sink.arrivals), TIMES)
            finally:
                await load.close()
    finally:
        await sink.close()
    result = account(load.sent, sink.arrivals, faults, TIMES)
    way = "forward" if forward else "back"
    episode = ring.Episode(0, f"rolled {way}", result, faults, time.monotonic() - began, load.sent, ring="tests.crash.mixed")
    episode.complaints += ring.about_account(result, load, list(sink.arrivals), faults) + still_queued
    refused = [sent.number for sent in load.sent if len({one.node for one in sent.tries}) == len(NODES) and len(sent.tries) > len(NODES)]
    episode.complaints += [f"message {number} was refused by every node" for number in refused]
    return episode


async def _roll(cluster: OfTwoVersions, faults: list[Fault]) -> None:
    for node in cluster.nodes.values():
        await asyncio.sleep(1)
        began_at = time.time()
        await asyncio.to_thread(lambda node=node: _told(node, "drain"))
        await until(lambda node=node: _drain_state(node) == "inactive", STEP_SECONDS_MAX, what=f"{node.name} is drained")
        await node.stop()
        await cluster.change(node)
        if node.name not in cluster.old or _drain_state(node) != "active":
            await asyncio.to_thread(lambda node=node: _told(node, "undrain"))
        await until(lambda node=node: _is_redundant(cluster), STEP_SECONDS_MAX, what=f"all hear {node.name}")
        faults.append(Fault(FaultKind.KILL, node.name, began_at, time.time()))


def _told(node: NodeProcess, deed: str) -> None:
    with api_of(node) as client:
        getattr(client, deed)()


def _drain_state(node: NodeProcess) -> str:
    with api_of(node) as client:
        return str(client.drain_status()["state"])


def _is_redundant(cluster: Cluster) -> bool:
    for node in cluster.nodes.values():
        with api_of(node) as client:
            if not client.ready()["is_ready"] or not all(peer["is_reachable"] and not peer["is_draining"] for peer in client.peers()):
                return False
    return True


def main() -> int:
    """Exit status 0: every episode was clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--all", action="store_true", help="seeds 1 to 60, and both rolls")
    arguments = parser.parse_args()
    operator_log.configure("critical")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    works = [lambda directory, seed=seed: run(seed, directory) for seed in (*arguments.seeds, *(SEEDS if arguments.all else ()))]
    works += [lambda directory, way=way: roll(directory, forward=way) for way in (True, False) if arguments.all]
    episodes = []
    for work in works:
        with tempfile.TemporaryDirectory(prefix="shadowrelay-mixed-") as directory:
            episodes.append(asyncio.run(work(Path(directory))))
        print(episodes[-1].explain() if episodes[-1].complaints else episodes[-1], flush=True)
    print(ring.summary(episodes))
    return 1 if any(episode.complaints for episode in episodes) else 0


if __name__ == "__main__":
    sys.exit(main())
