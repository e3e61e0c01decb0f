"""Three nodes are drained, restarted and undrained one after the other, by the commands, while clients send. docs/design.md 6.11."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.account import Fault, FaultKind, FaultTimes, account
from shadowrelay.lab.cluster import Cluster, Place, rows
from shadowrelay.lab.traffic import DEFERRED, Load, Sink, SubmissionResult
from shadowrelay.model.ids import ServerName
from shadowrelay.model.replies import Reply
from shadowrelay.pipeline.context import SystemClock
from shadowrelay.smtp.limits import NOT_ACTIVE
from shadowrelay.smtp.listener import ReceiverServer
from shadowrelay.store import Ledger, promises
from tests.kit.clock import until
from tests.kit.processes import api_of, said, settled, wait_until_peers_know_each_other
from tests.process.conftest import a_node

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow]

NAMES = ("mx1.east.example", "mx1.west.example", "mx2.west.example")
PLACES = tuple(Place(name, name.split(".")[1]) for name in NAMES)
TIMES = FaultTimes(span=20.0, heartbeat=1.0, poll=0.25)
TRANSPORT = {"shadow_resubmit_time_span": f"{TIMES.span:g}s", "shadow_heartbeat_frequency": "1s", "discard_poll_interval": "250ms"}
RETRIES = {"message_retry_interval": "4s"}  # long enough that something waits on every node when it is drained
RATE, SHARE_DEFERRED = 6.0, 0.3


async def test_a_drained_node_that_starts_takes_no_mail_from_the_first_connection_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    ledger = await Ledger.open(tmp_path / "data", server=ServerName("mx1.east.example"), now=SystemClock.now)
    await ledger.commit(promises.draining, SystemClock.now())
    await ledger.close()
    answers: list[object] = []
    listen = ReceiverServer.start

    async def note_and_listen(server: ReceiverServer) -> None:
        answers.append(server.reception.closed_with)
        await listen(server)

    monkeypatch.setattr(ReceiverServer, "start", note_and_listen)
    node = a_node(tmp_path)
    await node.start()
    await node.stop()

    assert [NOT_ACTIVE] == answers


@pytest.mark.parametrize("is_killed", [pytest.param(False, marks=pytest.mark.heavy), True], ids=["restarted", "killed in the middle too"])
async def test_a_rolling_restart_under_load_loses_doubles_and_refuses_nothing(tmp_path: Path, is_killed: bool) -> None:
    sink, chance, faults = Sink(), random.Random(12), list[Fault]()

    deferred: list[object] = []

    def some_deferred(_: object) -> Reply | None:
        return DEFERRED if chance.random() < SHARE_DEFERRED else None

    def all_deferred(envelope: object) -> Reply | None:
        deferred.append(envelope)
        return DEFERRED

    sink.decide = some_deferred
    next_hop = await sink.start()
    try:
        async with Cluster(PLACES, next_hop, directory=tmp_path, transport=TRANSPORT, send=RETRIES) as cluster:
            await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
            load = Load({name: node.address for name, node in cluster.nodes.items()}, chance, size=2048)
            sending = asyncio.create_task(load.run(10_000, rate=RATE))
            try:
                for node in cluster.nodes.values():
                    await asyncio.sleep(1.5)
                    deferred.clear()
                    sink.decide = all_deferred  # so that something waits when it drains, however fast the machine is
                    await until(lambda: len(deferred) > len(NAMES))
                    if is_killed:
                        await said(node, "drain", "--no-wait")
                        began_at = time.time()
                        await asyncio.sleep(chance.uniform(0.0, 0.6))
                        await node.kill()
                        await node.start()
                        faults.append(Fault(FaultKind.KILL, node.name, began_at, time.time()))
                    status = await said(node, "drain")
                    assert ("inactive", 0, 0, []) == tuple(
                        status[key] for key in ("state", "undelivered_count", "handed_over_count", "waits_for")
                    )
                    sink.decide = some_deferred
                    await node.stop()
                    await node.start()
                    with api_of(node) as client:
                        assert client.drain_status()["state"] in ("draining", "inactive"), "a restart does not end it"
                        assert not client.ready()["is_ready"]
                    assert "active" == (await said(node, "undrain"))["state"]
            finally:
                load.stop()
                await sending
                await load.close()
            sink.decide = lambda envelope: None
            await settled(cluster, load, sink)
    finally:
        await sink.close()

    result = account(load.sent, sink.arrivals, faults, TIMES)
    assert ([], []) == (result.lost, result.changed)
    assert [] == (result.unexplained if is_killed else result.duplicates)
    assert result.accepted > 20
    tries = Counter(len(sent.tries) for sent in load.sent if sent.acknowledged_ids)
    assert max(tries) <= len(NAMES), f"tries until a node took it: {tries}"
    assert all(one.answer is not SubmissionResult.NOTHING for sent in load.sent for one in sent.tries) or is_killed
    handed_over = sum(row["event-id"] == "RESUBMIT" for node in cluster.nodes.values() for row in rows(node.tracking))
    assert handed_over, "all is deferred meanwhile, so something must have waited"
