"""Two nodes on machines of their own, cut off from each other for twice the span while both reach the next hop: what each
`delivery_without_lease` repeats. The same in virtual time: tests/pipeline/test_cut_off.py, scripts of tests/simulation.

The next hop is slow for the primary, so that it has copied mail to deliver all through the cut, and quick for the shadow server, so
that all that it takes over arrives before the heal.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.lab.account import RECORD_SECONDS, Cause, Fault, FaultKind, FaultTimes, account
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, Table
from shadowrelay.lab.traffic import Arrival, Load, Sent, Sink
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.replies import Reply
from shadowrelay.ownership.rules import proof_age_max
from tests.kit.clock import until
from tests.kit.machines import Hub, obstacle
from tests.kit.processes import held_by, wait_until_peers_know_each_other

pytestmark = pytest.mark.usefixtures("quiet")

EAST, WEST = "mx1.east.example", "mx1.west.example"
SPAN, HEARTBEAT, POLL = 8.0, 1.0, 0.2
TIMES = FaultTimes(SPAN, HEARTBEAT, POLL)
CUT_SECONDS = 2 * SPAN
SLOW_SECONDS, SESSIONS = 0.4, 2  # the primary delivers five messages a second
BEFORE_COUNT, BEFORE_RATE = 150, 20.0
COPIED_COUNT = 140  # acknowledged when the cut begins, with a copy each
AMID_COUNT, AMID_RATE = 50, 3.0
SETTLE_SECONDS_MAX = 240.0
TRANSPORT: Table = {
    "shadow_resubmit_time_span": f"{SPAN:g}s",
    "shadow_heartbeat_frequency": f"{HEARTBEAT:g}s",
    "discard_poll_interval": f"{POLL * 1000:g}ms",
    "reject_message_on_shadow_failure": False,  # mail is accepted during the cut too
}


class SlowSink(Sink):
    """Takes its time for the mail of `slow_for`."""

    slow_for = EAST

    async def accept(self, envelope: Envelope, content: Content) -> Reply:
        """See `smtp.reception.Acceptor`."""
        if envelope.client_name == self.slow_for:
            await asyncio.sleep(SLOW_SECONDS)
        return await super().accept(envelope, content)


@pytest.mark.parametrize(
    ("user", "program", "reason"),
    [
        (1, "exit 0", "need root"),
        (0, "", "need ip: apt-get install iproute2"),
        (0, "echo Not permitted >&2; exit 1", "here: Not permitted"),
    ],
)
def test_where_no_namespaces_can_be_made_the_reason_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, program: str, reason: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if program:
        (tmp_path / "ip").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "ip").chmod(0o755)
        if not os.access(tmp_path / "ip", os.X_OK):
            pytest.skip("nothing can be executed on the file system of temporary files (noexec)")

    assert obstacle().endswith(reason)


@pytest.mark.heavy
@pytest.mark.parametrize("policy", ["defer", "deliver"])
async def test_a_cut_of_two_spans_repeats_what_the_policy_says(tmp_path: Path, hub: Hub, policy: str) -> None:
    places = [Place(name, name.split(".")[1], one.host, one.inside) for name, one in hub.machines.items()]
    sink = SlowSink(hub.host, hub.network)
    try:
        async with Cluster(
            places,
            await sink.start(),
            directory=tmp_path,
            transport={**TRANSPORT, "delivery_without_lease": policy},
            send={"concurrency_per_destination": SESSIONS},
            network=hub.network,
        ) as cluster:
            nodes = list(cluster.nodes.values())
            await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
            load = Load({EAST: nodes[0].address}, random.Random(1), size=1024, recipients=lambda number: (f"user{number}@corp.example",))
            try:
                cut = await _cut_amid(load, hub)
                sink.slow_for = ""
                still_queued = await _queued_in_the_end(load, sink, nodes)
            finally:
                await load.close()
    finally:
        await sink.close()
    result = account(load.sent, sink.arrivals, [cut], TIMES)
    found = Found(load.sent, sink.arrivals, cut)
    print(f"\n{policy}: {found}; causes {dict(Counter(duplicate.cause.value for duplicate in result.duplicates))}")

    assert (BEFORE_COUNT + AMID_COUNT, [], [], []) == (result.accepted, result.lost, result.changed, still_queued)
    assert set() == {duplicate.cause for duplicate in result.duplicates} - {Cause.CUT_OFF}
    assert found.taken_over >= COPIED_COUNT // 4
    assert found.new_in_cut
    if policy == "defer":
        proof_ends_at = cut.began_at + proof_age_max(timedelta(seconds=POLL)) + SLOW_SECONDS + RECORD_SECONDS
        assert [] == [arrival for arrival in found.primary_in_cut if arrival.at > proof_ends_at]
        assert [] == [arrival for arrival in found.repeated if not cut.began_at - TIMES.until_heard <= arrival.at <= proof_ends_at]
    else:
        assert set() == {arrival.recipient for arrival in found.primary_in_cut} - {arrival.recipient for arrival in found.repeated}
        assert found.primary_in_cut[-1].at > cut.began_at + SPAN


class Found:
    """What arrived, in the order of arrival. Every message has one recipient of its own.

    Shapes: `repeated` has the first arrival of what arrived twice, `primary_in_cut` copied mail that the primary delivered during
    the cut, `new_in_cut` what it delivered of the mail that was accepted meanwhile; `taken_over` is a number of messages.
    """

    def __init__(self, sent: Sequence[Sent], arrivals: Sequence[Arrival], cut: Fault) -> None:
        copied = {one.recipients[0] for one in sent if one.tries[-1].at < cut.began_at}
        in_cut = [arrival for arrival in arrivals if arrival.client_name == EAST and cut.began_at <= arrival.at <= cut.ended_at]
        counts = Counter(arrival.recipient for arrival in arrivals)
        firsts = {arrival.recipient: arrival for arrival in reversed(arrivals)}
        self.repeated = [first for recipient, first in firsts.items() if counts[recipient] > 1]
        self.primary_in_cut = [arrival for arrival in in_cut if arrival.recipient in copied]
        self.new_in_cut = [arrival for arrival in in_cut if arrival.recipient not in copied]
        self.taken_over = sum(arrival.client_name == WEST for arrival in arrivals)
        self._copied_count = len(copied)
        self._began_at = cut.began_at

    def __str__(self) -> str:
        return (
            f"{len(self.repeated)} messages arrived twice, first {self._when(self.repeated)}; of {self._copied_count} acknowledged before "
            f"the cut the primary delivered {len(self.primary_in_cut)} during it, {self._when(self.primary_in_cut)}, "
            f"of those accepted since {len(self.new_in_cut)}; the shadow server delivered {self.taken_over}"
        )

    def _when(self, arrivals: Sequence[Arrival]) -> str:
        seconds = sorted(arrival.at - self._began_at for arrival in arrivals) or [0.0]
        return f"{seconds[0]:+.2f} s to {seconds[-1]:+.2f} s after it began"


async def _cut_amid(load: Load, hub: Hub) -> Fault:
    """Send without a pause; the cut comes in the middle of it."""
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(BEFORE_COUNT, rate=BEFORE_RATE))
        await _until(lambda: sum(bool(one.acknowledged_ids) for one in load.sent) >= COPIED_COUNT)
        began_at = time.time()
        hub.cut()
        group.create_task(load.run(AMID_COUNT, rate=AMID_RATE))
        await asyncio.sleep(CUT_SECONDS)
        hub.heal()
        ended_at = time.time()
    return Fault(FaultKind.CUT, EAST, began_at, ended_at, WEST)


async def _queued_in_the_end(load: Load, sink: Sink, nodes: Sequence[NodeProcess]) -> list[str]:
    """Wait until everything has arrived and nothing is queued or held any more: then nothing can arrive twice either. What is left."""
    await _until(lambda: len({arrival.recipient for arrival in sink.arrivals}) == len(load.sent))

    def left() -> list[str]:
        return [line for node in nodes for line in held_by(node)]

    await _until(lambda: not left())
    return left()


async def _until(claim: Callable[[], bool]) -> None:
    """Or too long: the asserts say what is missing."""
    with suppress(AssertionError):
        await until(claim, SETTLE_SECONDS_MAX)
