"""Nodes that move like the pods of a StatefulSet: peers find them by name. docs/setup.md "In Kubernetes"."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shadowrelay.lab.account import FaultTimes, account
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.lab.traffic import DEFERRED, Load, Sink, SubmissionResult
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from tests.kit.processes import said, settled, typed, wait_until_peers_know_each_other
from tests.kit.smtp_servers import name_server

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(1200)]

NAMES = tuple(f"mail-{number}.mail-nodes.example" for number in range(3))
TIMES = FaultTimes(span=600.0, heartbeat=1.0, poll=0.25)  # nothing is taken over for silence
TRANSPORT = {"shadow_resubmit_time_span": f"{TIMES.span:g}s", "reject_message_on_shadow_failure": True}
MESSAGES, RATE = 12, 6.0


class Pods:
    """Three nodes with mutual TLS and strict redundancy, each at an address of its own, which the others get from DNS by its name."""

    def __init__(self, cluster: Cluster, zone: dict[tuple[str, str], list[str]]) -> None:
        self.nodes = cluster.nodes
        self._cluster = cluster
        self._zone = zone
        self._moves_count = 0

    async def know_each_other(self) -> None:
        await asyncio.to_thread(wait_until_peers_know_each_other, list(self.nodes.values()))

    async def comes_back(self, node: NodeProcess, *, is_empty: bool = False) -> None:
        """Elsewhere, with its volume or with an empty one. Nobody answers where it was."""
        if is_empty:
            node.wipe()
        self._moves_count += 1
        before, now = node.address.host, f"127.0.2.{self._moves_count}"
        file = node.directory / "node.toml"
        file.write_text(file.read_text().replace(f"{before}:", f"{now}:"))
        node.address, node.admin = HostPort(now, node.address.port), HostPort(now, node.admin.port)
        self._zone[node.name, "A"] = [now]
        await node.start()

    async def settled(self, load: Load, sink: Sink) -> None:
        await settled(self._cluster, load, sink)


@asynccontextmanager
async def pods(directory: Path, next_hop: HostPort) -> AsyncIterator[Pods]:
    places = [Place(name, "cluster", f"127.0.1.{number}") for number, name in enumerate(NAMES, 1)]
    zone = {(place.name, "A"): [place.host] for place in places}
    async with name_server(zone) as (_, port):
        cluster = Cluster(
            places, next_hop, directory=directory, transport=TRANSPORT, is_secured=True, peer_host="{name}",
            tables={"dns": {"nameservers": [f"127.0.0.1:{port}"]}},
        )  # fmt: skip
        async with cluster:
            found = Pods(cluster, zone)
            await found.know_each_other()
            yield found


def defer(_: object) -> Reply | None:
    return DEFERRED


@pytest.mark.parametrize("is_empty", [False, True], ids=["with its volume", "with an empty volume"])
async def test_a_pod_comes_back_elsewhere_and_its_mail_is_delivered_once(tmp_path: Path, sink: Sink, is_empty: bool) -> None:
    next_hop = await sink.start()
    sink.decide = defer
    async with pods(tmp_path, next_hop) as found:
        node = found.nodes[NAMES[0]]
        load = Load({node.name: node.address}, random.Random(1), size=2048)
        await load.run(MESSAGES, rate=100.0)
        await load.close()

        await node.kill()
        await found.comes_back(node, is_empty=is_empty)
        await found.know_each_other()
        sink.decide = lambda envelope: None
        await found.settled(load, sink)

    result = account(load.sent, sink.arrivals, [], TIMES)
    assert (MESSAGES, [], [], []) == (result.accepted, result.lost, result.changed, result.duplicates)
    assert (MESSAGES if is_empty else 0) == result.taken_over


async def test_a_rolling_update_of_pods_that_move_loses_doubles_and_refuses_nothing(tmp_path: Path, sink: Sink) -> None:
    """As preStop and postStart of configs/kubernetes/shadowrelay.yaml do it, while half of all mail waits."""
    chance = random.Random(2)
    next_hop = await sink.start()
    sink.decide = lambda envelope: DEFERRED if chance.random() < 0.5 else None
    async with pods(tmp_path, next_hop) as found:
        load = Load({name: node.address for name, node in found.nodes.items()}, chance, size=2048)
        sending = asyncio.create_task(load.run(10_000, rate=RATE))
        try:
            for node in found.nodes.values():
                await asyncio.sleep(2)
                await typed(node, "drain", "--patience", "60", code=None)
                await node.stop()
                await found.comes_back(node)
                load.nodes[node.name] = node.address
                assert "active" == (await said(node, "undrain"))["state"]
                await found.know_each_other()
        finally:
            load.stop()
            await sending
            await load.close()
        sink.decide = lambda envelope: None
        await found.settled(load, sink)

    result = account(load.sent, sink.arrivals, [], TIMES)
    assert ([], [], []) == (result.lost, result.changed, result.duplicates)
    assert result.accepted > MESSAGES
    tries = Counter(len(sent.tries) for sent in load.sent if sent.acknowledged_ids)
    assert max(tries) <= len(NAMES), f"tries until a node took it: {tries}"
    assert all(one.answer is not SubmissionResult.NOTHING for sent in load.sent for one in sent.tries)
