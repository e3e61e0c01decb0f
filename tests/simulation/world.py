"""A world from one seed: machines, network, clocks, a next hop, clients, and faults. The same seed is the same world.

`run` does so many steps; then the faults stop, everything is put in order, and all that was promised must have happened. A `plain`
world knows no power, no partitions, no half-open connections and no TLS: the first seeds that found something are of this kind.
"""

import asyncio
import gc
import random
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import structlog

from shadowrelay.lab.account import Fault, FaultKind, FaultTimes
from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Claim, Role
from shadowrelay.model.settings import Settings
from tests.kit.memory_disk import place_in_memory
from tests.simulation import bounds, judge
from tests.simulation.checks import Checker
from tests.simulation.client import Clients
from tests.simulation.disk import SlowDisk
from tests.simulation.kinds import HOSTILE, HOSTILE_HOST, Kinds
from tests.simulation.loop import PROCESS, WorldLoop
from tests.simulation.machine import Machine, Machines, Observer
from tests.simulation.network import Network
from tests.simulation.power import Power
from tests.simulation.sink import CALM, RecordingSink
from tests.simulation.tls import tls_of

SINK_HOST = "10.0.9.1"
STEPS = 60
RESERVE_OCTETS = 16_000  # it is copied with each disk
MESSAGES_OF_A_STEP = (0, 1, 1, 2, 4)  # one of these
CALM_SECONDS_MAX = 1500.0
FOUND_AGAIN_SECONDS = 0.1  # after a fault, until a question could be answered
OPEN_ROLES = (Role.PRIMARY, Role.SHADOW, Role.SET_ASIDE)


@dataclass(slots=True)
class Result:
    """What came of a seed. `complaints` is empty when all is well."""

    seed: int
    complaints: list[str]
    counts: Counter[str]
    trace: list[str] = field(default_factory=list)
    seconds: float = 0.0  # of a processor

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return f"seed {self.seed:>5}: {'ok' if not self.complaints else 'FAILED'}  {counts}"


@dataclass(slots=True)
class Shape:
    """What this world is like."""

    count: int
    sites: int
    span: float
    heartbeat: float
    poll: float
    transport: dict[str, Any]
    has_tls: bool = False
    sessions: int = 20  # at once, to one next hop


def shape_of(chance: random.Random, *, is_plain: bool) -> Shape:
    count = chance.choice((2, 3, 3, 3, 4))
    heartbeat = chance.choice((1.0, 2.0, 2.0, 4.0))
    span = heartbeat * chance.choice((5, 10))
    poll = chance.choice((0.5, 1.0, 2.0))
    transport = {
        "shadow_heartbeat_frequency": f"{heartbeat}s",
        "shadow_resubmit_time_span": f"{span}s",
        "discard_poll_interval": f"{poll}s",
        "shadow_timeout": "3s",
        "delivery_without_lease": chance.choice(("deliver", "deliver", "defer")),
        "reject_message_on_shadow_failure": chance.random() < 0.4,
    }
    shape = Shape(count, chance.choice((1, 2)), span, heartbeat, poll, transport)
    if not is_plain:
        shape.has_tls, shape.sessions = chance.random() < 0.15, chance.choice((1, 3, 20))
    return shape


class World:
    """Owns everything; `chance` decides everything. `copies`: of each message, and how many disks may be destroyed at once."""

    calm_seconds_max = CALM_SECONDS_MAX

    def __init__(
        self,
        seed: int,
        *,
        steps: int = STEPS,
        is_traced: bool = False,
        is_plain: bool = False,
        copies: int = 1,
        nodes: Sequence[int] = (),
        messages: int | None = None,
        kinds: Sequence[str] = (),
    ) -> None:
        """`nodes`: the seed chooses among these counts. `messages`: exactly so many, in all steps. `kinds`: the seed chooses."""
        self.seed, self._steps, self._is_traced, self.is_plain = seed, steps, is_traced, is_plain
        self._copies, self._messages, self._messages_due = copies, messages, 0.0
        self.chance = random.Random(seed)
        self.shape = shape_of(self.chance, is_plain=is_plain)
        if nodes:
            self.shape.count = random.Random(seed ^ 0xC0DE).choice(nodes)
        if copies > 1:
            self.shape.count = max(self.shape.count, copies + 2)
            self.shape.transport["shadow_copies"] = copies
        self.expires_after: float | None = None  # seconds, where messages may expire
        self.kinds = Kinds(self, kinds, seed)
        self.kinds.shape()
        self.trace: list[str] = []
        self.faults: list[Fault] = []
        self.put_back_at: list[tuple[str, float]] = []
        self._backups: dict[str, dict[MessageId, Claim]] = {}  # by host: the claims in the last copy of its disk
        self._undo: list[tuple[float, Callable[[], Awaitable[None]]]] = []  # due, what ends a fault

    @property
    def times(self) -> FaultTimes:
        return FaultTimes(self.shape.span, self.shape.heartbeat, self.shape.poll)

    def now(self) -> float:
        return self.loop.world_time()

    def _nanoseconds(self) -> int:
        return int(self.now() * 1e9)

    def note(self, text: str) -> None:
        if self._is_traced:
            self.trace.append(f"{self.now():10.3f}  {text}")

    def run(self) -> Result:
        """All of it."""
        self.loop = WorldLoop()
        self.loop.set_exception_handler(self._unhandled)
        self._structlog()
        ids = random.Random(self.seed ^ 0x5EED)

        def new_id() -> uuid.UUID:
            return uuid.UUID(int=ids.getrandbits(128), version=4)

        class Seeded(random.Random):
            def __init__(self, seed: Any = None) -> None:
                super().__init__(ids.getrandbits(64) if seed is None else seed)

        random.seed(self.seed)
        with (
            tempfile.TemporaryDirectory(prefix="simulation-", dir=place_in_memory()) as directory,
            mock.patch("os.urandom", ids.randbytes),
            mock.patch("uuid.uuid4", new_id),
            mock.patch("shadowrelay.store.content.RESERVE_BYTES", RESERVE_OCTETS),
            mock.patch("shadowrelay.store.opening.uuid4", new_id),
            mock.patch("shadowrelay.smtp.message_ids.time_ns", self._nanoseconds),
            ExitStack() as stack,
        ):
            self.power = None if self.is_plain else Power(Path(directory), random.Random(self.seed ^ 0xF0F0))
            if self.power is not None:
                stack.enter_context(self.power.installed())
            self._build(Path(directory))
            with mock.patch("random.Random", Seeded):
                asyncio.set_event_loop(self.loop)
                try:
                    self.loop.run_until_complete(self._live())
                finally:
                    asyncio.set_event_loop(None)
                    self.loop.close()
        complaints = [str(violation) for violation in self.checker.violations] + self._complaints
        return Result(self.seed, complaints, self.counts, self.trace)

    def _unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        self.note(f"unhandled: {context.get('message')} {context.get('exception')!r}")

    def _structlog(self) -> None:
        def capture(_: Any, method: str, event: dict[str, Any]) -> Any:
            process = PROCESS.get()
            name = self._names.get(process.host, process.host) if process is not None else "world"
            if event.get("exc_info") and method in ("exception", "error"):
                error = event["exc_info"]
                self._failures.append(f"{self.now():.3f} {name}: {event.get('event')} {error!r}")
            if self._is_traced:
                self.note(f"{name} log: {event.pop('event', '')} " + " ".join(f"{key}={value}" for key, value in event.items()))
            raise structlog.DropEvent

        def with_error(_: Any, method: str, event: dict[str, Any]) -> dict[str, Any]:
            if event.get("exc_info") is True:
                event["exc_info"] = sys.exc_info()[1]
            return event

        self._failures: list[str] = []
        self._names: dict[str, str] = {}
        structlog.configure(processors=[with_error, capture], cache_logger_on_first_use=False)

    def _build(self, directory: Path) -> None:
        chance = self.chance
        self.network = Network(self.loop, random.Random(chance.getrandbits(64)))
        self.checker = Checker(self.now, self.note, self._copies)
        self.sink = RecordingSink(random.Random(chance.getrandbits(64)), self.now)
        self.sink.on_dot, self.sink.on_arrival, self.sink.on_refusal = self.checker.dot, self.checker.arrival, self.checker.refusal
        self.network.serve(SINK_HOST, None, self.sink.factory)
        self.machines = self._machines(directory)
        self._names.update({machine.host: machine.name.split(".")[0] for machine in self.machines})
        self.checker.could_meet = self.could_meet
        self.checker.could_ask = self.could_ask
        self.checker.expires_after = self.expires_after
        self.checker.journal = self.kinds.journal_recipient
        self.checker.power = self.power
        self.checker.machines = {machine.host: machine for machine in self.machines}
        self.processes = Machines(self.loop, self.network, self.checker, random.Random(chance.getrandbits(64)), self.power)
        self.processes.before_change = self.kinds.clones.end
        hosts = [machine.host for machine in self.machines]
        self.clients = Clients(self.network, hosts, random.Random(chance.getrandbits(64)), self.note)
        if not self.is_plain:
            self.clients.elsewhere = random.Random(self.seed ^ 0xE15E)
        self.clients.on_acknowledged = self.checker.acknowledged
        self._complaints: list[str] = []
        self.counts: Counter[str] = Counter()

    def other_machines(self, observer: Observer) -> Machines:
        """That are none of the world's."""
        return Machines(self.loop, self.network, observer, random.Random(1), None)

    def _machines(self, directory: Path) -> list[Machine]:
        shape, chance = self.shape, self.chance
        names = [(f"mx{n}.site{n % shape.sites}.example", f"10.0.0.{n}", f"site{n % shape.sites}") for n in range(1, shape.count + 1)]
        machines = []
        tls = tls_of(directory, [name for name, _, _ in names]) if shape.has_tls else {}
        secured = {} if shape.has_tls else {"externally_secured": ["10.0.0.0/24"]}
        for name, host, site in names:
            peers = [{"name": n, "site": s, "address": f"{h}:25", "boundary": "sim"} for n, h, s in names if n != name]
            if self.kinds.has_hostile_peer:
                peers.append({"name": HOSTILE, "site": "site0", "address": f"{HOSTILE_HOST}:25", "boundary": "sim"})
            journal = {"journal_recipient": address} if (address := self.kinds.journal_recipient) else {}
            settings = Settings.model_validate(
                {
                    "server": {"name": name, "site": site, "boundary": "sim", "data_directory": str(directory / host)},
                    "transport": shape.transport,
                    "receive_connectors": [
                        {"name": "in", "listen": f"{host}:25", "relay_from": ["10.0.8.0/24"], **secured}
                    ],
                    "peers": peers,
                    "routes": [
                        {"recipients": ["*@branch.example"], "next_hop": f"{SINK_HOST}:2525", **journal},
                        {"recipients": ["*"], "next_hop": f"{SINK_HOST}:25"},
                    ],
                    "send": {
                        "queue_glitch_retry_interval": "1s", "transient_failure_retry_interval": "3s",
                        "outbound_connection_failure_retry_interval": "5s", "message_retry_interval": "4s",
                        "concurrency_per_destination": shape.sessions,
                    },
                    "tracking": {"directory": str(directory / f"{host}-tracking")},
                    **tls.get(name, {}),
                }
            )  # fmt: skip
            disk = SlowDisk(random.Random(chance.getrandbits(64)))
            rate = 1.0 + chance.uniform(-0.005, 0.005)  # any two agree within 1 %
            machines.append(Machine(name, host, site, directory / host, rate, chance.uniform(10, 10_000), disk, settings))
        return machines

    async def _live(self) -> None:
        for machine in self.machines:
            await self.processes.start(machine)
        await asyncio.sleep(2.0)
        for step in range(self._steps):
            await self._step(is_last=step == self._steps - 1)
            await self.kinds.step()
            if step in (self._steps // 2, self._steps - 1):
                await self.kinds.siege()
            self.checker.check_all_copies()
            self._check_bounds()
            if self.checker.violations:
                break
        if not self.checker.violations:
            await self._calm()
        for machine in self.machines:
            if machine.is_up:
                await self.processes.kill(machine)

    async def _step(self, *, is_last: bool) -> None:
        chance = self.chance
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.1, 0.5, 1.0, 3.0)) * chance.random() * 2)
        await self._end_due()
        for _ in range(self._messages_now(chance.choice(MESSAGES_OF_A_STEP), is_last=is_last)):
            self.clients.send()
        if chance.random() < 0.45:
            faults = {
                self._kill: 5,
                self._wipe: 3,
                self._put_back: 2,
                self._pause: 3,
                self._cut: 5,
                self._slow: 2,
                self._break: 3,
                self._jump: 1,
                self._fill_disk: 1,
                self._sink_away: 2,
            }
            if not self.is_plain:
                faults |= {self._outage: 2, self._partition: 3, self._half_open: 2}
            faults = self.kinds.usual(faults)
            await chance.choices(list(faults), list(faults.values()))[0]()

    async def _end_due(self) -> None:
        for entry in [entry for entry in self._undo if entry[0] <= self.now()]:
            if entry in self._undo:
                self._undo.remove(entry)
                await entry[1]()

    async def passes(self, seconds: float, tick: float, do: Callable[[], None]) -> None:
        """Faults end and begin when they are due; `do` is done at each tick."""
        until = self.now() + seconds
        while (left := until - self.now()) > 0 and not self.checker.violations:
            await asyncio.sleep(min(tick, left))
            await self._end_due()
            do()

    def later(self, seconds: float, begin: Callable[[], Awaitable[None]]) -> None:
        """A fault begins then."""
        self._undo.append((self.now() + seconds, begin))

    @property
    def has_faults(self) -> bool:
        return bool(self._undo) and not self.checker.violations

    def _messages_now(self, drawn: int, *, is_last: bool) -> int:
        if self._messages is None:
            return drawn
        left = self._messages - len(self.clients.sent)
        self._messages_due += drawn * self._messages * len(MESSAGES_OF_A_STEP) / (sum(MESSAGES_OF_A_STEP) * self._steps)
        now = left if is_last else min(left, int(self._messages_due))
        self._messages_due -= now
        return now

    def could_meet(self, one: str, other: str) -> bool:
        """Nothing has kept these two apart for the time of a round of questions."""
        since = self.now() - 2 * self.shape.heartbeat - 2.0
        pair = {one, other}
        kinds = (FaultKind.CUT, FaultKind.HALF_CUT, FaultKind.SLOW)
        apart = [f for f in self.faults if (f.kind in kinds and {f.node, f.other} == pair) or (f.stops_node and f.node in pair)]
        return all(fault.ended_at < since for fault in apart)

    def could_ask(self, one: str, other: str) -> bool:
        """Within the last span `one` ran, and nothing kept it from asking the other. What kept it began a span ago, and lasts."""
        machine = next(machine for machine in self.machines if machine.name == one)
        faults = [fault for fault in self.faults if not (fault.stops_node and fault.node == one)]
        since = self.now() - 0.98 * self.shape.span  # of a clock that may be fast
        just_now = self.now() - FOUND_AGAIN_SECONDS
        apart = judge.apart(faults, self.times, one, other)
        return not any(max(began, machine.started_at) <= since and ended >= just_now for began, ended in apart)

    # faults

    def _lasts(self) -> float:
        span = self.shape.span
        return self.chance.choice((self.chance.uniform(0, 2), self.chance.uniform(0, span), self.chance.uniform(span, span * 2.5)))

    def _ends(self, kind: FaultKind | None, node: str, other: str, seconds: float, end: Callable[[], Awaitable[None]], what: str) -> None:
        began = self.now()
        self.counts[what] += 1
        self.note(f"fault: {what} {node} {other} for {seconds:.3f}")
        place = len(self.faults)
        if kind is not None:
            self.faults.append(Fault(kind, node, began, float("inf"), other))

        async def ended() -> None:
            self.note(f"fault over: {what} {node} {other}")
            await end()
            if kind is not None:
                self.faults[place] = Fault(kind, node, began, self.now(), other)

        self._undo.append((began + seconds, ended))

    def _a_machine(self) -> Machine | None:
        up = [machine for machine in self.machines if machine.process is not None and not machine.process.is_paused]
        return self.chance.choice(up) if up else None

    async def _kill(self) -> None:
        if (machine := self._a_machine()) is None:
            return
        seconds, is_silent = self._lasts(), self.chance.random() < 0.3
        what = "power loss" if is_silent and self.power is not None else "kill"
        self._ends(FaultKind.KILL, machine.name, "", seconds, lambda: self.processes.start(machine), what)
        await self.processes.kill(machine, is_silent=is_silent)
        if self.chance.random() < 0.3:
            self.note(f"back up {machine.name}")
            self.processes.back_up(machine)
            self._backups[machine.host] = dict(self.checker.claims[machine.host])

    async def _outage(self) -> None:
        """A whole site, or everything, is without power at the same moment."""
        site = self.chance.choice([*{machine.site: None for machine in self.machines}, ""])
        seconds = self._lasts()
        self.counts["outage"] += 1
        for machine in self.machines:
            if machine.is_up and site in ("", machine.site):
                back = seconds + self.chance.uniform(0, 2)
                self._ends(FaultKind.KILL, machine.name, "", back, partial(self.processes.start, machine), "power loss")
                await self.processes.kill(machine, is_silent=True)

    async def _partition(self) -> None:
        """Nothing passes between two groups, or nothing in one direction. The next hop is on one side, or on both."""
        names = {machine.host: machine.name for machine in self.machines}
        hosts = list(names)
        sites = [[machine.host for machine in self.machines if machine.site == site] for site in {m.site: None for m in self.machines}]
        ones = self.chance.choice(sites) if len(sites) > 1 and self.chance.random() < 0.5 else self.chance.sample(hosts, len(hosts) // 2)
        others = [host for host in hosts if host not in ones]
        both = self.chance.random() < 0.7
        kind = FaultKind.CUT if both else FaultKind.HALF_CUT
        if self.chance.random() < 0.3:
            others.append(SINK_HOST)
        if self.chance.random() < 0.5:
            ones, others = others, ones
        seconds = self._lasts()
        self.counts["partition"] += 1
        for one, other in product(ones, others):
            self._ends(
                kind, names.get(one, "sink"), names.get(other, "sink"), seconds, partial(self._heal, one, other), f"partition, {kind.value}"
            )
            self.network.cut(one, other, both=both)

    async def _heal(self, one: str, other: str) -> None:
        self.network.heal(one, other)

    async def _half_open(self) -> None:
        """Of some connections one direction passes nothing any more, and nobody says so."""
        names = {machine.host: machine.name for machine in self.machines}
        living = [connection for connection in self.network.living() if {end.host for end in connection.ends} & names.keys()]
        for connection in self.chance.sample(living, min(len(living), self.chance.choice((1, 2, 8)))):
            stream = self.chance.choice(connection.streams)
            stream.is_lost = True
            one, other = (names.get(end.host, "") for end in connection.ends)
            if one and other:  # until who waits for it gives up and opens another
                self._ends(FaultKind.HALF_CUT, one, other, 2 * self.shape.heartbeat + 2.0, _nothing, "half open to a peer")
        self.counts["half open"] += 1
        self.note("fault: half-open connections")

    async def _put_back(self) -> None:
        """Somebody starts it with an older copy of its disk."""
        machine = self._a_machine()
        if machine is None or machine.host not in self._backups or not self.checker.may_wipe(machine.host):
            return
        self.put_back_at.append((machine.name, self.now()))
        self._ends(FaultKind.WIPE, machine.name, "", self._lasts(), lambda: self.processes.start(machine), "put back")
        await self.processes.kill(machine, is_silent=self.chance.random() < 0.3)
        self.processes.put_back(machine)
        self.checker.put_back(machine.host, self._backups[machine.host])

    async def _wipe(self) -> None:
        machine = self._a_machine()
        if machine is None or not self.checker.may_wipe(machine.host):
            return
        burning = [machine]
        for _ in range(1, self._copies):
            if (another := self._a_machine()) is not None and another not in burning:
                burning.append(another)
        for machine in burning:
            self._ends(FaultKind.WIPE, machine.name, "", self._lasts(), partial(self.processes.start, machine), "wipe")
            await self.processes.kill(machine, is_silent=self.chance.random() < 0.3)
            self.processes.wipe(machine)
        self.checker.wiped(*(machine.host for machine in burning))

    async def _pause(self) -> None:
        machine = self._a_machine()
        if machine is None or machine.process is None:
            return
        process = machine.process

        async def go_on() -> None:
            if machine.process is process:
                self.network.goes_on(process)

        self._ends(FaultKind.PAUSE, machine.name, "", self._lasts(), go_on, "pause")
        process.is_paused = True

    async def _cut(self) -> None:
        hosts = {machine.host: machine.name for machine in self.machines} | {SINK_HOST: "sink"}
        one = self.chance.choice(self.machines).host
        other = self.chance.choice([host for host in hosts if host != one])
        both = self.chance.random() < 0.7

        async def heal() -> None:
            self.network.heal(one, other)

        kind = FaultKind.CUT if both else FaultKind.HALF_CUT
        self._ends(kind, hosts[one], hosts[other], self._lasts(), heal, kind.value)
        if self.chance.random() < 0.5:
            one, other = other, one
        self.network.cut(one, other, both=both)

    async def _slow(self) -> None:
        names = {machine.host: machine.name for machine in self.machines} | {SINK_HOST: "sink"}
        one, other = self.chance.sample(list(names), 2)
        delay = self.network.slow[one, other] = self.chance.uniform(0.1, 4.0)

        async def end() -> None:
            self.network.slow.pop((one, other), None)

        # a question to a peer is given up after a heartbeat, and this is there and back
        kind = FaultKind.SLOW if delay >= self.shape.heartbeat / 4 else None
        self._ends(kind, names[one], names[other], self._lasts(), end, "slow")

    async def _break(self) -> None:
        living = list(self.network.living())
        for connection in self.chance.sample(living, min(len(living), self.chance.choice((1, 2, 8)))):
            connection.break_now(self.network)
        self.counts["break"] += 1
        self.note("fault: break connections")

    async def _jump(self) -> None:
        machine = self.chance.choice(self.machines)
        machine.wall_offset += self.chance.uniform(-30, 30)
        self.counts["clock jump"] += 1
        self.note(f"fault: wall clock of {machine.name} is {machine.wall_offset:.1f} off")

    async def _fill_disk(self) -> None:
        disk, machine = self.chance.choice([(machine.disk, machine) for machine in self.machines])
        disk.is_full = True

        async def end() -> None:
            disk.is_full = False

        self._ends(FaultKind.FULL, machine.name, "", self.chance.uniform(0.5, 8), end, "full disk")

    async def _sink_away(self) -> None:
        self.network.stop_serving(SINK_HOST)

        async def end() -> None:
            self.network.serve(SINK_HOST, None, self.sink.factory)

        self._ends(None, "sink", "", self.chance.uniform(0.5, 15), end, "sink away")

    # afterwards

    def next_hop(self, *, is_there: bool) -> None:
        """Listening, or refusing connections."""
        if is_there:
            self.network.serve(SINK_HOST, None, self.sink.factory)
        else:
            self.network.stop_serving(SINK_HOST)

    async def end_faults(self, *, is_sink_back: bool = True) -> None:
        """All of them, those that were to begin included."""
        while self._undo:
            await self._undo.pop(0)[1]()
        self.network.heal_all()
        for connection in list(self.network.living()):
            if any(stream.is_lost for stream in connection.streams):
                connection.break_now(self.network)
        if is_sink_back:
            self.next_hop(is_there=True)

    async def _calm(self) -> None:
        self.note("calm")
        await self.kinds.clones.end()
        await self.end_faults()
        self.sink.behaviour = CALM
        self.clients.is_giving_up = True
        until = self.now() + self.calm_seconds_max
        while self.now() < until and not self.checker.violations and (self.clients.tasks or self._open()):
            await asyncio.sleep(1.0)
        self.counts["seconds to drain"] = round(self.now() - until + self.calm_seconds_max)
        self.checker.check_all_copies()
        if not self.is_plain and not self.checker.violations:
            await self._start_again()
        self._complaints += judge.complaints(self)
        self._complaints += self._failures + [f"the next hop: {error!r}" for error in self.sink.failures]

    def _check_bounds(self) -> None:
        """I6."""
        ends = [connection.ends for connection in self.network.living()]
        sessions = Counter((source.host, target.host) for source, target in ends if not source.is_gone and not source.is_reset)
        for machine in self.machines:
            for text in bounds.exceeded(machine, sessions, SINK_HOST):
                self.checker.violation("I6", f"{machine.name}: {text}")

    async def _start_again(self) -> None:
        """I7: where everything is done, a start has nothing to do, and does nothing. I6: nothing is left in memory."""
        await asyncio.sleep(2 * self.shape.heartbeat)
        if any(map(bounds.left_over, self.machines)):
            gc.collect()  # what an exception still held
        for machine in self.machines:
            for text in bounds.left_over(machine):
                self.checker.violation("I6", f"{machine.name}, which has nothing to do: {text}")
        arrivals_count = len(self.sink.arrivals)
        for machine in self.machines:
            if machine.is_up:
                await self.processes.kill(machine, is_silent=True)
        for machine in self.machines:
            await self.processes.start(machine)
        # Silence is a reason to act, too, and nobody is silent: that takes a span, and is looked at in one world of three.
        await asyncio.sleep(3 * self.shape.heartbeat + (self.shape.span if self.seed % 3 == 0 else 0.0))
        self._check_bounds()
        for arrival in self.sink.arrivals[arrivals_count:]:
            self.checker.violation("I7", f"{arrival.client_name} was only started, and delivers {arrival.message_id}")
        for line in self._open():
            self.checker.violation("I7", f"only started, and now to be done: {line}")

    def _open(self) -> list[str]:
        return [
            f"{host} {message_id} {claim.role.value}"
            for host, claims in self.checker.claims.items()
            for message_id, claim in claims.items()
            if claim.role in OPEN_ROLES
        ]

    def still_open(self) -> list[str]:
        """Queued messages, for the judge."""
        return self._open()


async def _nothing() -> None:
    return
