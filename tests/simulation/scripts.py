"""Worlds with a script: one scenario each, that no schedule of a seed has to hit. `python -m tests.simulation.run --script NAME`."""

import asyncio
import math
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from uuid import UUID

from shadowrelay.lab.account import Fault, FaultKind
from shadowrelay.lab.traffic import SubmissionResult
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Role, StatusAnswer, StatusQuestion
from shadowrelay.model.peers import PeerIdentity
from tests.kit.hostile_peer import BOUNDS, a_hello
from tests.simulation.clones import Unwatched, clone_of
from tests.simulation.kinds import HOSTILE, MEMORY, MEMORY_SETTINGS
from tests.simulation.machine import Machine
from tests.simulation.sink import CALM
from tests.simulation.world import Shape, World

HEARTBEAT, POLL = 1.0, 0.5
SLOW = 0.9  # there and back is less than a heartbeat: nobody is cut off


class Scripted(World):
    """A world with `count` machines in one site and a next hop that takes everything. Subclasses say what happens."""

    count = 2
    span = 10.0
    policy = "deliver"
    copies = 1
    heartbeat = HEARTBEAT

    def __init__(self, *, is_traced: bool = False) -> None:
        super().__init__(1, steps=0, is_traced=is_traced, copies=self.copies)
        transport = {
            "shadow_heartbeat_frequency": f"{self.heartbeat}s",
            "shadow_resubmit_time_span": f"{self.span}s",
            "discard_poll_interval": f"{POLL}s",
            "shadow_timeout": "3s",
            "delivery_without_lease": self.policy,
            "shadow_copies": self.copies,
        }
        self.shape = Shape(self.count, 1, self.span, self.heartbeat, POLL, transport)

    async def script(self) -> None:
        raise NotImplementedError

    async def _live(self) -> None:
        self.sink.behaviour = CALM
        for machine in self.machines:
            await self.processes.start(machine)
        await asyncio.sleep(2.0)
        await self.script()
        if not self.checker.violations:
            await self._calm()
        self.counts["arrived twice"] = sum(len(arrivals) > 1 for arrivals in self.checker.arrived.values())
        for machine in self.machines:
            if machine.is_up:
                await self.processes.kill(machine)

    # what scripts do

    async def accepted(self, machine: Machine, count: int) -> None:
        """So many messages were sent to this node, and every client has its answer."""
        self.clients.hosts = [machine.host]
        for _ in range(count):
            self.clients.send()
        await self.settled()

    async def queued(self, machine: Machine, count: int) -> None:
        """The same, while their next hop is away."""
        self.next_hop(is_there=False)
        await self.accepted(machine, count)

    async def settled(self) -> None:
        """Every client has its answer."""
        while self.clients.tasks:
            await asyncio.sleep(0.05)

    async def burn(self, machine: Machine) -> None:
        """It dies, and its disk is destroyed."""
        self.faults.append(Fault(FaultKind.WIPE, machine.name, self.now(), self.now() + 0.01))
        await self.processes.kill(machine)
        self.processes.wipe(machine)
        self.checker.wiped(machine.host)

    def cut(self, one: Machine, other: Machine, seconds: float) -> Awaitable[None]:
        """From now on. It is for the caller to heal it."""
        self.network.cut(one.host, other.host, both=True)
        return self.during(FaultKind.CUT, one, seconds, other)

    async def during(self, kind: FaultKind, node: Machine, seconds: float, other: Machine | None = None) -> None:
        """Note a fault that the caller has begun, and wait until it is over."""
        place, fault = len(self.faults), Fault(kind, node.name, self.now(), math.inf, "" if other is None else other.name)
        self.faults.append(fault)
        await asyncio.sleep(seconds)
        self.faults[place] = replace(fault, ended_at=self.now())


class Stopped(Scripted):
    """SIGTERM right after 200 deliveries, and away for longer than the span."""

    async def script(self) -> None:
        first, _ = self.machines
        await self.accepted(first, 200)
        while len(self.sink.arrivals) < 200:
            await asyncio.sleep(0.01)
        await self.processes.stop(first)
        await asyncio.sleep(2.5 * self.span)
        await self.processes.start(first)


class Cut(Scripted):
    """100 messages wait for their next hop, which is back in the middle of a cut of two spans. More are delivered all the time."""

    span = 20.0

    async def script(self) -> None:
        first, second = self.machines
        await self.queued(first, 100)
        cut = asyncio.ensure_future(self.cut(first, second, 2 * self.span))
        await asyncio.sleep(8.0)
        self.next_hop(is_there=True)
        await cut
        self.network.heal(first.host, second.host)


class CutDeferring(Cut):
    """The same, where the policy is not to deliver without lease."""

    policy = "defer"


class BackToTheSameServer(Scripted):
    """What a burnt disk had delivered unheard is taken over, its new holder's disk burns too, and the first one takes it over again."""

    async def script(self) -> None:
        first, second = self.machines
        await self.queued(first, 4)
        cut = asyncio.ensure_future(self.cut(first, second, 6.0))
        self.next_hop(is_there=True)
        await asyncio.sleep(5.0)
        self.next_hop(is_there=False)
        await self.burn(first)
        await cut
        self.network.heal_all()
        await self.processes.start(first)
        await asyncio.sleep(3.0)  # taken over, and placed anew
        await self.burn(second)
        await self.processes.start(second)
        self.next_hop(is_there=True)


class FullThenBurnt(Scripted):
    """Delivered while the disk was full, recorded when there was room, and burnt a moment later."""

    async def script(self) -> None:
        first, _ = self.machines
        await self.queued(first, 4)
        first.disk.is_full, first.disk.slowness = True, 100.0  # more than one arrives before the first cannot be recorded
        full = asyncio.ensure_future(self.during(FaultKind.FULL, first, 6.0))
        self.next_hop(is_there=True)
        await full
        first.disk.is_full, first.disk.slowness = False, 1.0
        while not self.checker.recorded:
            await asyncio.sleep(0.001)
        await self.burn(first)
        await self.processes.start(first)


class FullThenCut(Scripted):
    """The shadow server's disk is full, so that it cannot record what it hears; then it is cut off for longer than the span."""

    policy = "defer"

    async def script(self) -> None:
        first, second = self.machines
        second_full = self.during(FaultKind.FULL, second, 5.0)
        await self.queued(first, 4)
        second.disk.is_full = True
        full = asyncio.ensure_future(second_full)
        self.next_hop(is_there=True)
        await full
        second.disk.is_full = False
        await self.cut(first, second, 2 * self.span)
        self.network.heal(first.host, second.host)


class TwoHeirs(Scripted):
    """Two servers hold copies for a third that dies, and cannot ask each other: both take them over."""

    count = 3

    async def script(self) -> None:
        first, second, third = self.machines
        await self.queued(first, 10)
        await self.cut(first, second, 7.0)  # no answer for two heartbeats: the copies are placed on the third
        cut = asyncio.ensure_future(self.cut(second, third, 3 * self.span))
        killed = asyncio.ensure_future(self.during(FaultKind.KILL, first, 3 * self.span))
        await self.processes.kill(first)
        await asyncio.sleep(2 * self.span)
        self.next_hop(is_there=True)
        await cut
        await killed
        self.network.heal_all()
        await self.processes.start(first)


class CutWaiting(Scripted):
    """What waits for its next hop is taken over in a cut; then the two meet."""

    async def script(self) -> None:
        first, second = self.machines
        await self.queued(first, 4)
        await self.cut(first, second, 2 * self.span)
        self.network.heal(first.host, second.host)
        await asyncio.sleep(5.0)
        self.next_hop(is_there=True)


class TwoHolders(Scripted):
    """Two copies of each message, and their primary server burns: both servers ask at the same time, over a slow line."""

    count = 3
    copies = 2
    heartbeat = 4.0
    span = 20.0
    calm_seconds_max = 100.0  # in case nobody takes it over

    async def script(self) -> None:
        first, second, third = self.machines
        await self.queued(first, 4)
        for pair in ((second.host, third.host), (third.host, second.host)):
            self.network.slow[pair] = SLOW
        await self.burn(first)
        self.next_hop(is_there=True)
        await asyncio.sleep(2 * self.span)
        self.network.slow.clear()
        await self.processes.start(first)


class AnswerUnderWay(Scripted):
    """Two copies of each message, and their primary server is cut off, from one server a little before the other. The one asks the other,
    whose answer is slow: meanwhile the other takes the messages over, and sends the one its copies."""

    count = 3
    copies = 2
    heartbeat = 4.0
    span = 20.0
    policy = "defer"

    async def script(self) -> None:
        first, second, third = self.machines
        await self.queued(first, 4)
        apart = [asyncio.ensure_future(self.cut(first, second, 3 * self.span))]
        await asyncio.sleep(1.0)
        apart.append(asyncio.ensure_future(self.cut(first, third, 3 * self.span)))
        assert third.node is not None
        requests = third.node._services.peer_requests
        status = requests.status

        async def slowly(identity: PeerIdentity, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
            if identity.server == second.name:
                self.network.slow[third.host, second.host] = 3.0  # what is sent now, and nothing that is sent later
                self.loop.call_later(0.1, self.network.slow.clear)
            return await status(identity, questions)

        requests.status = slowly
        await asyncio.sleep(2 * self.span)
        self.next_hop(is_there=True)
        await asyncio.sleep(self.span)
        for cut in apart:
            await cut
        self.network.heal_all()


class PlacedElsewhere(Scripted):
    """A server was away while its copies were placed elsewhere. The server that has them now is cut off from both others."""

    count = 3
    policy = "defer"

    async def script(self) -> None:
        first, second, third = self.machines
        await self.queued(first, 4)
        await self.cut(first, second, 5.0)
        self.network.cut(first.host, third.host, both=True)
        self.network.cut(second.host, third.host, both=True)
        self.network.heal(first.host, second.host)
        apart = asyncio.ensure_future(self.during(FaultKind.CUT, first, 2 * self.span, third))
        await self.during(FaultKind.CUT, second, 2 * self.span, third)
        await apart
        self.network.heal_all()
        self.next_hop(is_there=True)


class SentAgain(Scripted):
    """The same messages come again when they were delivered, and their deliveries recorded."""

    async def script(self) -> None:
        first, _ = self.machines
        await self.accepted(first, 4)
        while self._open():
            await asyncio.sleep(0.1)
        for one in tuple(self.clients.sent):
            self.clients.send_again(one)
        await self.settled()


class SentAgainElsewhere(Scripted):
    """The same messages are sent to the other node, which held their copies: when they were delivered, and while their next hop is away."""

    async def script(self) -> None:
        first, second = self.machines
        self.clients.refused_share = 0.0
        await self.accepted(first, 4)
        while self._open():
            await asyncio.sleep(0.1)
        await asyncio.sleep(4 * POLL)
        await self.queued(first, 4)
        for one in tuple(self.clients.sent):
            await self.clients.send_to(one, second.host)
        await asyncio.sleep(5.0)
        self.next_hop(is_there=True)
        while self._open():
            await asyncio.sleep(0.1)
        for one in self.clients.sent:
            arrived = [arrival.recipient for arrival in self.sink.arrivals if arrival.number == one.number]
            if len(arrived) > len(set(arrived)):
                self.checker.violation("again", f"message {one.number} was sent to both nodes, and each delivers it again")


class FullElsewhere(Scripted):
    """A server was away, and the disk of the other one that was to have its copies gets full as they are sent there, before anybody knows
    it: what the server returns with, under the number before, is still needed."""

    count = 3

    async def script(self) -> None:
        first, second, third = self.machines
        await self.queued(first, 16)
        held = {message_id for message_id, claim in self.checker.claims[first.host].items() if claim.is_chosen(ServerName(second.name))}
        away = asyncio.ensure_future(self.cut(first, second, 6.0))
        while not any(self.checker.claims[first.host][message_id].copy_on(ServerName(third.name)) for message_id in held):
            await asyncio.sleep(0.001)
        third.disk.is_full = True
        full = asyncio.ensure_future(self.during(FaultKind.FULL, third, 6.0))
        await away
        self.network.heal_all()
        await full
        third.disk.is_full = False
        self.next_hop(is_there=True)


class PutBack(Scripted):
    """An older copy of the disk is put back. What is delivered from then on must be heard, until the disk burns."""

    span = 60.0

    async def script(self) -> None:
        first, _ = self.machines
        await self.processes.kill(first)
        self.processes.back_up(first)
        kept = dict(self.checker.claims[first.host])
        await self.processes.start(first)
        await self.accepted(first, 20)
        await asyncio.sleep(3.0)
        await self.processes.kill(first)
        self.processes.put_back(first)
        self.checker.put_back(first.host, kept)
        await self.processes.start(first)
        await asyncio.sleep(3.0)
        await self.accepted(first, 4)
        await asyncio.sleep(8.0)
        await self.burn(first)
        await self.processes.start(first)


class RestoredInTraffic(Scripted):
    """Copies come on many sessions; then an older copy of their server's disk is put back within a heartbeat, while it runs."""

    async def script(self) -> None:
        first, second = self.machines
        self.next_hop(is_there=False)
        self.clients.hosts = [first.host]
        for _ in range(8):  # at once, on sessions of their own
            self.clients.send()
        await self.settled()
        snapshot = self.kinds.keep(second)
        for _ in range(12):
            await self.accepted(first, 1)
        await self.kinds.replace(second, snapshot, 0.05)
        await self.passes(6 * self.span, 0.05, lambda: None)
        self.kinds.check_owners()
        self.next_hop(is_there=True)


class RestoredPrimary(Scripted):
    """The same for a primary server, whose messages were given other copies since: the peer heard of that on the control session only."""

    count = 3

    async def script(self) -> None:
        first, second, third = self.machines
        await self.queued(first, 8)
        for machine in (second, third):  # mail goes both ways
            self.clients.hosts = [machine.host]
            for _ in range(8):
                self.clients.send()
        await self.settled()
        snapshot = self.kinds.keep(first)
        await self.cut(first, second, 7.0)  # the copies are placed on the third
        self.network.heal_all()
        await asyncio.sleep(5.0)
        await self.kinds.replace(first, snapshot, 0.05)
        await self.passes(6 * self.span, 0.05, lambda: None)
        self.kinds.check_owners()
        self.next_hop(is_there=True)


class ClosesSlowly(Scripted):
    """An older copy is put back, and recognised late: its node met nobody at its start. It refuses its peers' sessions from then on, and
    closes for longer than the span, because something hangs. What it held for others was delivered long ago."""

    async def script(self) -> None:
        first, second = self.machines
        await self.queued(first, 4)
        snapshot = self.kinds.keep(second)
        self.next_hop(is_there=True)
        while self._open():
            await asyncio.sleep(0.1)
        await asyncio.sleep(4 * POLL)
        self.processes.closing_seconds = 3 * self.span
        apart = asyncio.ensure_future(self.cut(first, second, 5.0))  # longer than a node waits for its peers when it starts
        await self.kinds.replace(second, snapshot, 0.05)
        await self.passes(4.9, 0.05, lambda: None)
        await apart
        self.network.heal_all()
        await self.passes(2 * self.span, 0.05, lambda: None)
        if second.node is not None and second.node._services.rolled_back.found.is_set():  # nothing counts that it is told now
            for message_id, claim in self.checker.claims[second.host].items():
                if claim != snapshot.claims.get(message_id):
                    self.checker.violation("rolled back", f"{second.name} has yet to start again, and changes {message_id}")
        await self.passes(2 * self.span, 0.05, lambda: None)


class CopyExpires(Scripted):
    """A message waits, with `defer`, for a server that is away and may deliver it, for longer than its other copy is kept."""

    count = 3
    policy = "defer"
    hold, expiration = MEMORY

    def __init__(self, *, is_traced: bool = False) -> None:
        super().__init__(is_traced=is_traced)
        self.shape.transport |= MEMORY_SETTINGS
        self.expires_after = self.expiration

    async def script(self) -> None:
        first, second, third = self.machines
        await self.queued(first, 4)
        holder = next(machine for machine in (second, third) if self.checker.claims[machine.host])
        away = asyncio.ensure_future(self.during(FaultKind.KILL, holder, 2.0 * (self.hold + self.expiration)))
        await self.processes.kill(holder)
        await asyncio.sleep(1.8 * (self.hold + self.expiration))
        self.kinds.check_owners()
        await away
        await self.processes.start(holder)
        self.next_hop(is_there=True)


class HolderAway(Scripted):
    """A shadow server is away for longer than its copies are kept, and for longer than anybody remembers what became of them. The primary
    server has delivered them meanwhile."""

    hold, expiration = MEMORY

    def __init__(self, *, is_traced: bool = False) -> None:
        super().__init__(is_traced=is_traced)
        self.shape.transport |= MEMORY_SETTINGS
        self.expires_after = self.expiration

    async def script(self) -> None:
        first, second = self.machines
        await self.queued(first, 4)
        away = asyncio.ensure_future(self.during(FaultKind.KILL, second, 2.0 * (self.hold + self.expiration)))
        await self.processes.kill(second)
        self.next_hop(is_there=True)
        await away
        await self.processes.start(second)
        await asyncio.sleep(4 * self.span)


class HostileTimes(Scripted):
    """A peer that no machine has sends copies whose messages arrived at any time there is, and is silent. They are taken over while the
    next hop is away, and the node has mail of its own."""

    def __init__(self, *, is_traced: bool = False) -> None:
        super().__init__(is_traced=is_traced)
        self.kinds.names = ("hostile",)

    async def script(self) -> None:
        first, _ = self.machines
        self.next_hop(is_there=False)
        hello = a_hello(server=HOSTILE, boundary="sim", span=str(self.span))
        for number, arrived in enumerate(BOUNDS["arrived"], 1):
            await self.kinds.says(first, MessageId(str(UUID(int=number, version=4))), hello, {"arrived": arrived})
        await asyncio.sleep(2 * self.span)
        await self.accepted(first, 4)
        self.next_hop(is_there=True)


class ThreeParts(Scripted):
    """Two servers have a copy, and all three are cut from each other for longer than the span. Then the former primary server meets one of
    the two, and later the other."""

    count = 3
    is_third_first = False

    async def script(self) -> None:
        first, second, third = self.machines
        await self.queued(first, 6)
        await self.cut(first, second, 7.0)  # no answer for two heartbeats: the copies are placed on the third, too
        self.network.cut(first.host, third.host, both=True)
        self.network.cut(second.host, third.host, both=True)
        apart = [asyncio.ensure_future(self.during(FaultKind.CUT, one, 3 * self.span, third)) for one in (first, second)]
        await self.during(FaultKind.CUT, first, 2.5 * self.span, second)
        self.network.heal(first.host, (third if self.is_third_first else second).host)
        for cut in apart:
            await cut
        self.network.heal_all()
        await asyncio.sleep(6 * self.span)
        self.kinds.check_owners()
        self.next_hop(is_there=True)


class ThreePartsOtherOrder(ThreeParts):
    """The same, joined in the other order."""

    is_third_first = True


class ForgottenHeirs(Scripted):
    """Two servers have a copy, and are cut from each other and from the primary server for longer than the span, each with another server,
    which gets their next copy. Administrators on each side say that the other will not return, so that neither is on the other's list.
    Joined again, they have what they need: only the former primary server hears of both."""

    count = 5

    async def script(self) -> None:
        first, second, third, fourth, fifth = self.machines
        for other in (third, fourth, fifth):  # the copies come to the second
            self.network.cut(first.host, other.host, both=True)
        apart = [asyncio.ensure_future(self.during(FaultKind.CUT, first, 4.0, other)) for other in (third, fourth, fifth)]
        await self.queued(first, 6)
        for cut in apart:
            await cut
        self.network.heal(first.host, third.host)
        await self.cut(first, second, 7.0)  # no answer for two heartbeats: they are placed on the third, too
        parts = ((first,), (second, fourth), (third, fifth))
        for one, other in combinations(parts, 2):
            for a, b in product(one, other):
                self.network.cut(a.host, b.host, both=True)
        pairs = [pair for one, other in combinations(parts, 2) for pair in product(one, other)]
        apart = [asyncio.ensure_future(self.during(FaultKind.CUT, a, 3 * self.span, b)) for a, b in pairs]
        await asyncio.sleep(0.5 * self.span)
        for machine, strangers in ((second, (third, fifth)), (third, (second, fourth))):
            for stranger in strangers:
                assert machine.node is not None
                assert machine.process is not None
                await machine.process.spawn(machine.node._services.peers.forget(ServerName(stranger.name), is_forced=True), "forget")
        for cut in apart:
            await cut
        self.network.heal_all()
        await asyncio.sleep(6 * self.span)
        self.kinds.check_owners()
        self.next_hop(is_there=True)


class Cloned(Scripted):
    """A node hangs for less than the span, and a second machine with its name comes, on a copy of its disk or an empty one. What the clone
    stores is no copy: it is not watched. It runs on beside the node, and delivers what others may not."""

    span = 20.0
    is_copied = False

    async def script(self) -> None:
        first, second = self.machines
        await self.queued(first, 4)
        clone = clone_of(first)
        self._names[clone.host] = "clone"
        if self.is_copied:
            shutil.copytree(self.kinds.keep(first).directory, clone.directory)
        hung = asyncio.ensure_future(self.during(FaultKind.PAUSE, first, 11.0))
        process = first.process
        assert process is not None
        process.is_paused = True
        await asyncio.sleep(3.0)
        clones = self.other_machines(Unwatched())
        started = asyncio.ensure_future(clones.start(clone))
        await asyncio.sleep(4.0)
        await self.accepted(second, 4)
        await hung
        self.network.goes_on(process)
        await started
        await asyncio.sleep(5.0)
        await self.accepted(second, 4)
        await self.passes(4 * self.span, 0.5, lambda: None)
        self.kinds.check_owners()
        self.next_hop(is_there=True)
        await self.passes(self.span, 0.5, lambda: None)
        await clones.kill(clone)


class MachineBurnt(Scripted):
    """Two machines of two nodes each, with mail that waits on both nodes of one; it burns, and both disks with it, at the same instant."""

    count = 4

    def _machines(self, directory: Path) -> list[Machine]:
        machines = super()._machines(directory)
        for number, machine in enumerate(machines):
            machine.boot = f"machine{number % 2}"
        return machines

    async def script(self) -> None:
        first, _, third, _ = self.machines
        for machine in (first, third):
            await self.queued(machine, 6)
        for machine in (first, third):
            self.faults.append(Fault(FaultKind.WIPE, machine.name, self.now(), self.now() + 0.01))
        await asyncio.gather(*(self.processes.kill(machine, is_silent=True) for machine in (first, third)))
        for machine in (first, third):
            self.processes.wipe(machine)
        self.checker.wiped(first.host, third.host)
        await asyncio.sleep(2 * self.span)
        for machine in (first, third):
            await self.processes.start(machine)
        self.next_hop(is_there=True)


class Telling(Scripted):
    """Operators are told the truth. Complaints are violations of `told`."""

    def is_false(self, text: str) -> None:
        self.checker.violation("told", text)


class TakeoverTold(Telling):
    """A primary server is away; its shadow server was away for longer, and has started again: until it takes the messages over, it says
    when that will be."""

    async def script(self) -> None:
        first, second = self.machines
        await self.queued(first, 4)
        away = asyncio.ensure_future(self.during(FaultKind.KILL, first, 8 * self.span))
        await self.processes.kill(first)
        down = asyncio.ensure_future(self.during(FaultKind.KILL, second, 2 * self.span))
        await self.processes.kill(second)
        await down
        await self.processes.start(second)
        said: list[tuple[float, float]] = []  # when, and for when
        while self._holds(second):
            await asyncio.sleep(POLL)
            assert second.node is not None
            for view in await second.node._services.peers.views():
                if view.held_for_count and view.takes_over_in is not None:
                    said.append((self.now(), self.now() + view.takes_over_in.total_seconds()))
        began = self.now()
        for at, until in said:
            if abs(until - began) > 2 * HEARTBEAT + 2 * POLL:
                self.is_false(f"said at {at:.1f} that it takes over at {until:.1f}, and did at {began:.1f}")
        if not said:
            self.is_false("never said when it takes over")
        self.next_hop(is_there=True)
        await away
        await self.processes.start(first)

    def _holds(self, machine: Machine) -> bool:
        return any(claim.role is Role.SHADOW for claim in self.checker.claims[machine.host].values())


class HeldForNobody(Telling):
    """The primary server is away for good, and its shadow server starts with a configuration that does not name it any more."""

    count = 3

    async def script(self) -> None:
        first, second, third = self.machines
        await self.queued(first, 4)
        holder = next(machine for machine in (second, third) if self.checker.claims[machine.host])
        away = asyncio.ensure_future(self.during(FaultKind.KILL, first, 6 * self.span))
        await self.processes.kill(first)
        await self.processes.kill(holder)
        left = tuple(peer for peer in holder.settings.peers if peer.name != first.name)
        whole, holder.settings = holder.settings, holder.settings.model_copy(update={"peers": left})
        for name in vars(holder.settings).keys() - type(whole).model_fields.keys():
            del vars(holder.settings)[name]  # what was derived from the other peers
        await self.processes.start(holder)
        await asyncio.sleep(0.2 * self.span)
        assert holder.node is not None
        held = sum(claim.role is Role.SHADOW for claim in self.checker.claims[holder.host].values())
        shown = {view.name: view.held_for_count for view in await holder.node._services.peers.views()}
        if not held or shown.get(ServerName(first.name), 0) != held:
            self.is_false(f"{held} copies are held for {first.name}, and shown are {shown}")
        await asyncio.sleep(3 * self.span)
        await self.processes.kill(holder)
        holder.settings = whole
        await self.processes.start(holder)
        self.next_hop(is_there=True)
        await away
        await self.processes.start(first)


class RefusedTold(Telling):
    """Two copies are wanted in reject mode, and one of three nodes is away: the others are not ready when they refuse every message."""

    count = 3
    copies = 2

    def __init__(self, *, is_traced: bool = False) -> None:
        super().__init__(is_traced=is_traced)
        self.shape.transport["reject_message_on_shadow_failure"] = True

    async def script(self) -> None:
        first, _, third = self.machines
        await self.accepted(first, 2)
        away = asyncio.ensure_future(self.during(FaultKind.KILL, third, 3 * self.span))
        await self.processes.kill(third)
        self.clients.hosts = [first.host]
        self.clients.send()
        await asyncio.sleep(1.5 * self.span)
        assert first.node is not None
        tries = self.clients.sent[-1].tries
        is_ready, reasons = first.node._services.readiness.is_ready()
        if not tries or any(one.answer is not SubmissionResult.REFUSED for one in tries):
            self.is_false(f"a message was not refused: {tries}")
        elif is_ready:
            self.is_false(f"ready, and refuses every message: {reasons}")
        await away
        await self.processes.start(third)


class RefusedThenAway(Scripted):
    """Two copies are wanted in reject mode, and one server's disk is full when they come: the messages are refused, although the other one
    has stored its copies. Then their primary server is away for longer than the span."""

    count = 3
    copies = 2

    def __init__(self, *, is_traced: bool = False) -> None:
        super().__init__(is_traced=is_traced)
        self.shape.transport["reject_message_on_shadow_failure"] = True

    async def script(self) -> None:
        first, _, third = self.machines
        await self.accepted(first, 2)
        third.disk.is_full = True
        full = asyncio.ensure_future(self.during(FaultKind.FULL, third, 1.0))
        self.clients.is_giving_up = True  # they do not come again
        await self.accepted(first, 4)
        refused = {one.number for one in self.clients.sent[2:] if not one.acknowledged}
        await full
        third.disk.is_full, self.clients.is_giving_up = False, False
        await asyncio.sleep(4 * POLL)
        away = asyncio.ensure_future(self.during(FaultKind.KILL, first, 3 * self.span))
        await self.processes.kill(first)
        await away
        await self.processes.start(first)
        if not refused:
            self.checker.violation("refused", "no message was refused")
        for arrival in self.sink.arrivals:
            if arrival.number in refused:
                self.checker.violation("refused", f"message {arrival.number} was refused, and {arrival.client_name} delivers it")


class ClonedWithItsDisk(Cloned):
    """The same, on a copy of the disk."""

    is_copied = True


class ClonedWhileAPeerBegins(Scripted):
    """A clone on a copy of its node's disk has been refused; then the peer is started again while the node hangs, so that the clone speaks
    first, and begins anew. The node crashes, and nobody listens at its address, so the clone is accepted. The node hears of its clone's
    incarnation when it is back, and begins anew, too. Then it takes mail, which waits."""

    span = 20.0

    async def script(self) -> None:
        first, second = self.machines
        await self.queued(first, 4)
        clone = clone_of(first)
        self._names[clone.host] = "clone"
        shutil.copytree(self.kinds.keep(first).directory, clone.directory)
        await self.accepted(first, 4)
        clones = self.other_machines(Unwatched())
        started = asyncio.ensure_future(clones.start(clone))
        await asyncio.sleep(5.0)
        process = first.process
        assert process is not None
        process.is_paused = True
        hung = asyncio.ensure_future(self.during(FaultKind.PAUSE, first, 4.0))
        await self.crashed(second, 1.0)
        await hung
        self.network.goes_on(process)
        await self.crashed(first, 4.0)
        await started
        for _ in range(12):
            await self.accepted(first, 2)
            await asyncio.sleep(0.25)
        await self.passes(self.span / 2, 0.5, lambda: None)
        self.next_hop(is_there=True)
        await self.passes(4 * self.span, 0.5, lambda: None)
        await clones.kill(clone)

    async def crashed(self, machine: Machine, seconds: float) -> None:
        """Killed, and started again after that."""
        await self.processes.kill(machine)
        await self.during(FaultKind.KILL, machine, seconds)
        await self.processes.start(machine)


SCRIPTS: dict[str, Callable[..., Scripted]] = {
    "stop": Stopped,
    "cut-deliver": Cut,
    "cut-defer": CutDeferring,
    "back-to-the-same-server": BackToTheSameServer,
    "full-then-burnt": FullThenBurnt,
    "full-then-cut": FullThenCut,
    "two-heirs": TwoHeirs,
    "cut-waiting": CutWaiting,
    "two-holders": TwoHolders,
    "answer-under-way": AnswerUnderWay,
    "placed-elsewhere": PlacedElsewhere,
    "sent-again": SentAgain,
    "sent-again-elsewhere": SentAgainElsewhere,
    "full-elsewhere": FullElsewhere,
    "put-back": PutBack,
    "restored-in-traffic": RestoredInTraffic,
    "restored-primary": RestoredPrimary,
    "closes-slowly": ClosesSlowly,
    "copy-expires": CopyExpires,
    "holder-away": HolderAway,
    "hostile-times": HostileTimes,
    "three-parts": ThreeParts,
    "three-parts-other-order": ThreePartsOtherOrder,
    "forgotten-heirs": ForgottenHeirs,
    "cloned": Cloned,
    "cloned-with-its-disk": ClonedWithItsDisk,
    "cloned-while-a-peer-begins": ClonedWhileAPeerBegins,
    "machine-burnt": MachineBurnt,
    "takeover-told": TakeoverTold,
    "held-for-nobody": HeldForNobody,
    "refused-told": RefusedTold,
    "refused-then-away": RefusedThenAway,
}
