"""Kinds of faults that a world may have besides the usual ones. They are drawn from a stream of their own, so that a world without them is
as it was.

| kind | what happens |
|---|---|
| restores | the disk of a node, which runs or not, is replaced by a copy of any age |
| cuts | the network falls into three parts and more, at once or in stages; they are joined in any order. Sites lose power in turn |
| absences | a node is away for longer than anybody remembers its messages |
| disks | a disk takes no commit, returns errors, or hangs, for many spans, while its process runs |
| readings | a disk takes commits, and cannot be read, or hangs when it is read; or it has bad sectors under some of its contents |
| clones | a second machine with the name of a node that runs, on an empty disk or a copy of the node's; for less than the span |
| hostile | a peer that no machine has says who it is, and sends copies, with values at and beyond each bound; then it is silent |
| journals | no fault: mail of one route is journaled, and the reports must not be lost |

They come at any step, and in *sieges*: everything is in order, messages wait for a next hop that is away, and then come faults of these
kinds. When they are over, and the nodes have had four spans, each message must have exactly one primary server, and as many copies as are
wanted; or, of a node whose disk does not come back, it must have been delivered by who holds the copy.
"""

import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from shadowrelay.lab.account import FaultKind
from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Claim, Role
from shadowrelay.model.replies import WireError
from shadowrelay.protocol.xshadow import parse_hello
from tests.kit.hostile_peer import CONTENT, HELLOS, a_hello, odd_copies, offer
from tests.simulation.clones import Clones
from tests.simulation.disk import DEAD, HALF_DEAD, Sickness

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

KINDS = ("restores", "cuts", "absences", "disks")
ALL_KINDS = (*KINDS, "clones", "hostile", "journals")
EVERY_KIND = (*ALL_KINDS, "readings")
SNAPSHOTS_MAX = 8  # of each node
SETTLING_SPANS = 4.0
CLIENT_SECONDS = 80.0
MEMORY = (10, 60)  # seconds: safety_net_hold_time, message_expiration_timeout; in a world with absences
MEMORY_SETTINGS = {
    "safety_net_hold_time": f"{MEMORY[0]}s",
    "message_expiration_timeout": f"{MEMORY[1]}s",
    "shadow_message_auto_discard_interval": f"{MEMORY[1] // 2}s",  # by default it is shorter than the memory, too
}
TICK_SECONDS = 0.25
JOURNAL = "journal@archive.example"
HOSTILE, HOSTILE_HOST = "mx9.hostile.example", "10.0.0.9"
RECEIVED = b"Received: from x by x id %s; Sun, 1 Mar 2026 12:00:00 +0000\r\n"
OWNERS = (Role.PRIMARY, Role.SET_ASIDE)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of a disk, and the claims on it."""

    at: float
    directory: Path
    claims: dict[MessageId, Claim]


class Kinds:
    """Which of them this world has, and all that they do. A world with absences has no other kind: they need minutes."""

    def __init__(self, world: "World", names: Sequence[str], seed: int) -> None:
        self._world = world
        self.chance = chance = random.Random(seed ^ 0xFA17)
        self.names: tuple[str, ...] = ()
        if names:
            first = chance.choice(names)
            others = [name for name in names if name != first and "absences" not in (name, first) and chance.random() < 0.4]
            self.names = (first, *others)
        self._snapshots: dict[str, list[Snapshot]] = {}
        self._number = 0
        self.clones = Clones(world, self.keep, chance)

    @property
    def has_hostile_peer(self) -> bool:
        return "hostile" in self.names

    @property
    def journal_recipient(self) -> str:
        """Of one route."""
        return JOURNAL if "journals" in self.names else ""

    def shape(self) -> None:
        """Short spans, three sites where the network is cut, and a memory of a minute where nodes are away for longer."""
        if not self.names:
            return
        chance, shape = self.chance, self._world.shape
        shape.heartbeat, shape.span = 1.0, chance.choice((5.0, 8.0))
        shape.transport |= {"shadow_heartbeat_frequency": "1s", "shadow_resubmit_time_span": f"{shape.span}s"}
        shape.count = max(shape.count, 3)
        if "cuts" in self.names:
            shape.sites, shape.count = 3, chance.choice((3, 4, 4, 6))
        if "hostile" in self.names:  # with `defer`, a notice waits for each configured peer until that is forgotten
            shape.transport["delivery_without_lease"] = "deliver"
        if "absences" in self.names:
            shape.transport |= MEMORY_SETTINGS
            self._world.expires_after = MEMORY[1]

    def usual(self, faults: dict[Any, int]) -> dict[Any, int]:
        """Of the usual faults those that go together with these kinds: mail that waits for a cut or a clock may expire rightly."""
        if "absences" not in self.names:
            return faults
        world = self._world
        return {fault: weight for fault, weight in faults.items() if fault in (world._kill, world._break, world._sink_away)}

    async def step(self) -> None:
        """Perhaps one of them."""
        if not self.names:
            return
        self._photograph(0.15)
        if self.chance.random() < 0.08 and "absences" not in self.names:
            await self._one()

    async def siege(self) -> None:
        """See the head of this module."""
        if not self.names:
            return
        world, chance = self._world, self.chance
        await world.end_faults()
        world.next_hop(is_there=True)
        await self._wait(3 * world.shape.span)
        await self._wait_until_redundant()
        world.note("siege")
        world.counts["siege"] += 1
        if "absences" in self.names:
            await self._absence()
            return
        world.next_hop(is_there=False)
        await self._send()
        if self.names[0] == "restores" and chance.random() < 0.7:
            await self._restore_in_traffic()
        elif "disks" in self.names and (len(self.names) == 1 or chance.random() < 0.4):
            await self._dead_disk()
        elif "readings" in self.names and (len(self.names) == 1 or chance.random() < 0.4):
            await chance.choice((self._half_dead_disk, self._bad_sectors_in_a_siege))()
        else:
            for _ in range(chance.choice((1, 1, 2))):
                await self._one()
                await self._wait(chance.choice((0.1, 1.0, world.shape.span)) * chance.random())
            await self._settle()
        world.next_hop(is_there=True)

    # what sieges do

    async def _wait(self, seconds: float) -> None:
        """Faults that are due end, and disks are copied."""
        await self._world.passes(seconds, TICK_SECONDS, lambda: self._photograph(0.05))

    async def _wait_until_redundant(self) -> None:
        for _ in range(20):
            if not any(map(self._is_waiting, self._world.checker.exposed)):
                return
            await self._wait(1.0)

    def _is_waiting(self, message_id: MessageId) -> bool:
        return not self._world.checker.is_over(message_id)

    async def _send(self) -> None:
        world = self._world
        hosts = world.clients.hosts
        for machine in world.machines:
            world.clients.hosts = [machine.host]
            for _ in range(self.chance.choice((2, 3))):
                world.clients.send(to=machine.host)
            await self._wait(self.chance.random())
        world.clients.hosts = hosts
        for _ in range(int(CLIENT_SECONDS)):
            if not world.clients.tasks:
                return
            await self._wait(1.0)

    async def _settle(self) -> None:
        world = self._world
        while world.has_faults:
            await self._wait(1.0)
        await world.end_faults(is_sink_back=False)
        await self._wait(SETTLING_SPANS * world.shape.span + 5.0)
        self.check_owners()

    def check_owners(self) -> None:
        """Each message has one primary server, and its copies: nothing has failed for four spans, and the next hop is away."""
        checker = self._world.checker
        for message_id in sorted(checker.redundant | {notice for notice in checker.notices if checker.is_committed(notice)}):
            holders = checker.holders(message_id)
            if checker.is_over(message_id) or (not holders and checker.survives(message_id, ())):  # what it became is another message
                continue
            if not holders and message_id in checker.notices and checker.is_superfluous(message_id):  # lost with the disk that made it
                continue
            owners = [host for host, claims in checker.claims.items() if message_id in claims and claims[message_id].role in OWNERS]
            state = checker.state(message_id)
            if len(owners) > 1:
                checker.violation("owner", f"{message_id} has {len(owners)} primary servers, and will keep them: {state}")
            elif not owners:
                checker.violation("owner", f"{message_id} has no primary server, and will get none: {state}")
            elif not checker.is_whole(message_id):
                checker.violation("I1", f"{message_id} has too few copies, and will get none: {state}")

    # faults

    async def _one(self) -> None:
        does: dict[str, Sequence[Callable[[], Awaitable[None]]]] = {
            "restores": (self._restore,),
            "cuts": (self._parts, self._parts, self._in_turn),
            "disks": (self._sick,),
            "readings": (self._half_sick, self._bad_sectors),
            "clones": (self.clones.begin,),
            "hostile": (self._hostile,),
            "journals": (self._world._kill, self._world._wipe),
        }
        await self.chance.choice(does[self.chance.choice(self.names)])()

    def _photograph(self, probability: float) -> None:
        """Keep a copy of a disk as it is, whatever is going on."""
        if "restores" not in self.names:
            return
        world = self._world
        for machine in world.machines:
            if self.chance.random() >= probability or not machine.directory.exists():
                continue
            kept = self._snapshots.setdefault(machine.host, [])
            kept.append(self.keep(machine))
            if len(kept) > SNAPSHOTS_MAX:
                shutil.rmtree(kept.pop(self.chance.randrange(SNAPSHOTS_MAX)).directory)

    def keep(self, machine: "Machine") -> Snapshot:
        """A copy of its disk as it is, for who asks; it may run."""
        self._number += 1
        to = machine.directory.with_name(f"{machine.directory.name}-snapshot-{self._number}")
        shutil.copytree(machine.directory, to, ignore=shutil.ignore_patterns("*-shm"))
        return Snapshot(self._world.now(), to, dict(self._world.checker.claims[machine.host]))

    async def _restore(self) -> None:
        """A copy of any age is put back, also of a node that is down; most often it runs again at once."""
        world, chance = self._world, self.chance
        machines = [machine for machine in world.machines if self._snapshots.get(machine.host)]
        machine = chance.choice(machines) if machines else None
        if machine is None or not world.checker.may_wipe(machine.host):
            return
        if machine.process is not None and machine.process.is_paused:
            return
        snapshots = self._snapshots[machine.host]
        snapshot = chance.choice(snapshots if chance.random() < 0.5 else snapshots[-2:])
        seconds = chance.choice((0.05, 0.5, 0.5, 3.0, 2 * world.shape.span)) * chance.uniform(0.5, 1.0)
        await self.replace(machine, snapshot, seconds)

    async def replace(self, machine: "Machine", snapshot: Snapshot, seconds: float) -> None:
        """It ends, and runs on this copy so many seconds later."""
        world = self._world
        world.note(f"a copy that is {world.now() - snapshot.at:.3f} s old")
        if machine.is_up:
            world.put_back_at.append((machine.name, world.now()))
            world._ends(FaultKind.WIPE, machine.name, "", seconds, partial(world.processes.start, machine), "restore")
            await world.processes.kill(machine, is_silent=self.chance.random() < 0.3)
        else:  # it is started again when it would be
            world.put_back_at.append((machine.name, world.now()))
            world._ends(FaultKind.WIPE, machine.name, "", 0.0, _nothing, "restore, of a node that was down")
        world.processes.put_back(machine, snapshot.directory)
        world.checker.put_back(machine.host, snapshot.claims)

    async def _restore_in_traffic(self) -> None:
        """Mail goes both ways on several sessions, in bursts and singly; a copy of the last seconds is put back, and runs again at once."""
        world, chance = self._world, self.chance
        for _ in range(chance.choice((1, 2, 3))):
            for _ in range(chance.choice((0, 4, 8))):
                world.clients.send()
            machine = chance.choice(world.machines)
            await self._wait(chance.uniform(0.1, 4.0))
            if not machine.is_up:
                continue
            snapshot = self.keep(machine)
            for _ in range(chance.choice((1, 2, 4))):
                world.clients.send(to=chance.choice(world.machines).host)
                await self._wait(chance.choice((0.1, 1.0, 3.0)) * chance.random())
            if machine.is_up and world.checker.may_wipe(machine.host):
                await self.replace(machine, snapshot, chance.choice((0.05, 0.3)))
            await self._wait(chance.choice((1.0, world.shape.span)) * chance.random())
        await self._settle()

    async def _parts(self) -> None:
        """Each site alone, each node alone, or any three parts; the span is longer or shorter, and they are joined one after the other."""
        world, chance = self._world, self.chance
        span = world.shape.span
        machines = list(world.machines)
        by_site = {site: [m for m in machines if m.site == site] for site in {m.site: None for m in machines}}
        shuffled = chance.sample(machines, len(machines))
        parts = chance.choice((list(by_site.values()), [[machine] for machine in machines], [shuffled[start::3] for start in range(3)]))
        world.counts["cut in three and more"] += 1
        is_staged = chance.random() < 0.4
        begins = [chance.uniform(0.0, 1.5) * span if is_staged else 0.0 for _ in parts]
        lasts = max(begins) + chance.choice((0.5, 1.3, 2.0, 3.0)) * span
        waits = [n * chance.uniform(0.0, 1.5) * span for n in range(len(parts))]
        joins = [lasts + at for at in chance.sample(waits, len(parts))]
        for one, other in combinations(range(len(parts)), 2):
            begin, end = min(begins[one], begins[other]), max(joins[one], joins[other])
            for a in parts[one]:
                for b in parts[other]:
                    world.later(begin, partial(self._cut, a, b, end - begin))

    async def _cut(self, one: "Machine", other: "Machine", seconds: float) -> None:
        world = self._world
        world._ends(FaultKind.CUT, one.name, other.name, seconds, partial(world._heal, one.host, other.host), "cut of a part")
        world.network.cut(one.host, other.host, both=True)

    async def _in_turn(self) -> None:
        """One site after another is without power, and back before the next, or after."""
        world, chance = self._world, self.chance
        at = 0.0
        world.counts["power lost in turn"] += 1
        for site in chance.sample(sites := list({machine.site: None for machine in world.machines}), len(sites)):
            seconds = chance.uniform(0.3, 2.5) * world.shape.span
            world.later(at, partial(self._site_off, site, seconds))
            at += chance.uniform(0.3, 2.0) * world.shape.span

    async def _site_off(self, site: str, seconds: float) -> None:
        world = self._world
        for machine in world.machines:
            if machine.is_up and machine.site == site:
                back = partial(world.processes.start, machine)
                world._ends(FaultKind.KILL, machine.name, "", seconds, back, "power lost in turn, of a node")
                await world.processes.kill(machine, is_silent=True)

    async def _sick(self, among: Sequence[Sickness] = DEAD) -> None:
        """For a moment or for many spans."""
        span = self._world.shape.span
        seconds = self.chance.choice((1.0, span, 4 * span)) * self.chance.uniform(0.3, 1.0)
        self._falls_sick(self.chance.choice(self._world.machines), seconds, among)

    async def _half_sick(self) -> None:
        await self._sick(HALF_DEAD)

    async def _bad_sectors(self) -> None:
        await self._sick((Sickness.BAD_SECTORS,))

    def _falls_sick(self, machine: "Machine", seconds: float, among: Sequence[Sickness] = DEAD) -> None:
        world, disk = self._world, machine.disk
        disk.falls_sick(self.chance.choice(among))
        kind = None if disk.sickness is Sickness.BAD_SECTORS else FaultKind.DEAD_DISK  # they explain no duplicate

        async def end() -> None:
            disk.sickness = Sickness.NONE

        world._ends(kind, machine.name, "", seconds, end, f"disk {disk.sickness.value}")

    async def _half_dead_disk(self) -> None:
        await self._dead_disk(HALF_DEAD)

    async def _bad_sectors_in_a_siege(self) -> None:
        await self._dead_disk((Sickness.BAD_SECTORS,))

    async def _dead_disk(self, among: Sequence[Sickness] = DEAD) -> None:
        """The disk of one node is dead while all else is well: what it held for delivery is delivered by who has the copy; and of what it
        held for others, they place a copy elsewhere. That a copy cannot be read shows when it is needed."""
        world, chance = self._world, self.chance
        checker, machine = world.checker, chance.choice(world.machines)
        settling = SETTLING_SPANS * world.shape.span + 15.0
        own = [mid for mid, claim in checker.claims[machine.host].items() if claim.role is Role.PRIMARY and mid in checker.redundant]
        held = [mid for mid, claim in checker.claims[machine.host].items() if claim.role is Role.SHADOW and mid in checker.redundant]
        own = [mid for mid in own if not checker.is_over(mid)]
        self._falls_sick(machine, 2 * settling, among)
        sickness = machine.disk.sickness
        is_of_copies = chance.random() < 0.4 and sickness is not Sickness.BAD_SECTORS
        if not is_of_copies:
            world.next_hop(is_there=True)
        await self._wait(settling)
        if is_of_copies:
            for message_id in held if checker.could_be_whole(machine.host) else ():
                if not checker.is_over(message_id) and not checker.is_whole(message_id, without=machine.host):
                    text = f"the only copy of {message_id} is on {machine.name}, whose disk {sickness}: {checker.state(message_id)}"
                    checker.violation("sick", text)
        else:
            # with `defer`, a notice is not sent until all nodes have said that they know nothing of it
            is_ended = checker.is_delivered_or_noticed if world.shape.transport["delivery_without_lease"] == "defer" else checker.is_over
            for message_id in own:
                if not is_ended(message_id):
                    text = f"{message_id} waits for {machine.name}, whose disk {sickness}: {checker.state(message_id)}"
                    checker.violation("sick", text)
        while world.has_faults:
            await self._wait(1.0)

    async def _hostile(self) -> None:
        """A peer that does not listen says who it is, and sends some copies. What is held is promoted when it was silent for the span."""
        world, chance = self._world, self.chance
        up = [one for one in world.machines if one.process is not None and not one.process.is_paused and hasattr(one.node, "_services")]
        if not up:
            return
        machine = chance.choice(up)
        hello = {"server": HOSTILE, "boundary": "sim", "span": str(world.shape.span)}
        names = [name for name in HELLOS if name not in ("span", "track", "boundary")]
        world.counts["hostile peer"] += 1
        assert machine.process is not None
        for odd in chance.sample(odd_copies(), 4):
            if chance.random() < 0.3 and (name := chance.choice(names)):
                hello |= {name: chance.choice(HELLOS[name])}
            wanted = MessageId(str(UUID(int=chance.getrandbits(128), version=4)))
            if odd.get("recipients_count") != "5000":  # that takes longer than the world
                machine.process.spawn(self.says(machine, wanted, a_hello(**hello), odd), f"hostile {wanted}")
        world.note(f"fault: hostile peer at {machine.name}")

    async def says(self, machine: "Machine", wanted: MessageId, hello: str, odd: dict[str, str]) -> None:
        """The hostile peer says who it is, and sends one copy."""
        world, node = self._world, machine.node
        assert node is not None
        requests = node._services.peer_requests
        world.checker.strange.add(wanted)
        try:
            identity = parse_hello(hello)
        except WireError:
            return
        if requests.refusal(identity) is None:
            await requests.greeted(identity)
            reply = await offer(requests, wanted, hello, odd, RECEIVED % wanted.encode() + CONTENT)
            world.counts["copies of a hostile peer"] += reply.code == 250
            world.note(f"hostile: {wanted} with {odd} to {machine.name}: {reply}")
            if reply.code not in (250, 451, 452, 501, 550, 554):
                world.checker.violation("I6", f"{machine.name} answers {reply} to a copy with {odd}")

    async def _absence(self) -> None:
        """A node goes with mail that waits, and with copies, and is back when everybody has forgotten what became of them."""
        world, chance = self._world, self.chance
        world.next_hop(is_there=False)
        await self._send()
        machine = chance.choice(world.machines)
        if not machine.is_up:
            return
        away = sum(MEMORY) + world.shape.span + chance.uniform(5.0, 60.0)
        back_at = world.now() + away
        world._ends(FaultKind.KILL, machine.name, "", away, partial(world.processes.start, machine), "absence")
        await world.processes.kill(machine, is_silent=chance.random() < 0.5)
        world.next_hop(is_there=True)
        others = [other for other in world.machines if other is not machine]
        if chance.random() < 0.5:  # the others are other processes by then
            await self._wait(away / 2)
            for other in others:
                if other.is_up:
                    world._ends(FaultKind.KILL, other.name, "", 0.5, partial(world.processes.start, other), "kill")
                    await world.processes.kill(other)
                    await self._wait(2.0)
        if chance.random() < 0.5:  # and are away themselves when it returns: shorter than the span, or longer
            back = chance.choice((0.7, 0.7, 3.0)) * world.shape.span
            while world.has_faults and world.now() < back_at - 2.0:
                await self._wait(1.0)
            for other in others:
                if other.is_up:
                    world._ends(FaultKind.KILL, other.name, "", back, partial(world.processes.start, other), "kill")
                    await world.processes.kill(other)
        while world.has_faults:
            await self._wait(1.0)
        await self._wait(2 * world.shape.span)


async def _nothing() -> None:
    return
