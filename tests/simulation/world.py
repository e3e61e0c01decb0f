"""A world from one seed: machines, network, clocks, a next hop, clients, and faults. The same seed is the same world.

`run` does so many steps; then the faults stop, everything is put in order, and all that was promised must have happened.
"""

import asyncio
import random
import tempfile
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import structlog

from shadowrelay.lab.account import Fault, FaultKind, Times
from shadowrelay.model.ownership import Role
from shadowrelay.settings.values import Settings
from tests.simulation import judge
from tests.simulation.checks import Checker
from tests.simulation.client import Clients
from tests.simulation.disk import Disk
from tests.simulation.loop import PROCESS, WorldLoop
from tests.simulation.machine import Machine, Machines
from tests.simulation.network import Network
from tests.simulation.sink import CALM, Behaviour, Sink

SINK_HOST = "10.0.9.1"
STEPS = 60
CALM_SECONDS_MAX = 1500.0
OPEN_ROLES = (Role.PRIMARY, Role.SHADOW, Role.SET_ASIDE)


@dataclass(slots=True)
class Result:
    """What came of a seed. `complaints` is empty when all is well."""

    seed: int
    complaints: list[str]
    counts: Counter[str]
    trace: list[str] = field(default_factory=list)

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


def shape_of(chance: random.Random) -> Shape:
    count = chance.choice((2, 3, 3, 3, 4))
    heartbeat = chance.choice((1.0, 2.0, 2.0, 4.0))
    span = heartbeat * chance.choice((5, 10))
    poll = chance.choice((0.5, 1.0))
    transport = {
        "shadow_heartbeat_frequency": f"{heartbeat}s",
        "shadow_resubmit_time_span": f"{span}s",
        "discard_poll_interval": f"{poll}s",
        "shadow_timeout": "3s",
        "delivery_without_lease": chance.choice(("deliver", "deliver", "defer")),
        "reject_message_on_shadow_failure": chance.random() < 0.4,
    }
    return Shape(count, chance.choice((1, 2)), span, heartbeat, poll, transport)


class World:
    """Owns everything; `chance` decides everything."""

    def __init__(self, seed: int, *, steps: int = STEPS, is_traced: bool = False) -> None:
        self.seed, self._steps, self._is_traced = seed, steps, is_traced
        self.chance = random.Random(seed)
        self.shape = shape_of(self.chance)
        self.trace: list[str] = []
        self.faults: list[Fault] = []
        self._undo: list[tuple[float, Callable[[], Awaitable[None]]]] = []  # due, what ends a fault

    @property
    def times(self) -> Times:
        return Times(self.shape.span, self.shape.heartbeat, self.shape.poll)

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
        shared = Path("/dev/shm")
        with (
            tempfile.TemporaryDirectory(prefix="simulation-", dir=shared if shared.is_dir() else None) as directory,
            mock.patch("os.urandom", ids.randbytes),
            mock.patch("uuid.uuid4", new_id),
            mock.patch("shadowrelay.store.opening.uuid4", new_id),
            mock.patch("shadowrelay.smtp.session.time_ns", self._nanoseconds),
        ):
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
            import sys

            if event.get("exc_info") is True:
                event["exc_info"] = sys.exc_info()[1]
            return event

        self._failures: list[str] = []
        self._names: dict[str, str] = {}
        structlog.configure(processors=[with_error, capture], cache_logger_on_first_use=False)

    def _build(self, directory: Path) -> None:
        chance = self.chance
        self.network = Network(self.loop, random.Random(chance.getrandbits(64)))
        self.checker = Checker(self.now, self.note)
        self.sink = Sink(
            random.Random(chance.getrandbits(64)), self.now, self.checker.dot, self.checker.arrival, self.checker.refusal, Behaviour()
        )
        self.network.serve(SINK_HOST, None, self.sink.factory)
        self.machines = self._machines(directory)
        self._names.update({machine.host: machine.name.split(".")[0] for machine in self.machines})
        self.checker.could_meet = self.could_meet
        self.checker.machines = {machine.host: machine for machine in self.machines}
        self.processes = Machines(self.loop, self.network, self.checker, random.Random(chance.getrandbits(64)))
        hosts = [machine.host for machine in self.machines]
        self.clients = Clients(self.network, hosts, random.Random(chance.getrandbits(64)), self.note)
        self._complaints: list[str] = []
        self.counts: Counter[str] = Counter()

    def _machines(self, directory: Path) -> list[Machine]:
        shape, chance = self.shape, self.chance
        names = [(f"mx{n}.site{n % shape.sites}.example", f"10.0.0.{n}", f"site{n % shape.sites}") for n in range(1, shape.count + 1)]
        machines = []
        for name, host, site in names:
            peers = [{"name": n, "site": s, "address": f"{h}:25", "boundary": "sim"} for n, h, s in names if n != name]
            settings = Settings.model_validate(
                {
                    "server": {"name": name, "site": site, "boundary": "sim", "data_directory": str(directory / host)},
                    "transport": shape.transport,
                    "receive_connectors": [
                        {"name": "in", "listen": f"{host}:25", "relay_from": ["10.0.8.0/24"], "externally_secured": ["10.0.0.0/24"]}
                    ],
                    "peers": peers,
                    "routes": [
                        {"recipients": ["*@branch.example"], "next_hop": f"{SINK_HOST}:2525"},
                        {"recipients": ["*"], "next_hop": f"{SINK_HOST}:25"},
                    ],
                    "send": {
                        "queue_glitch_retry_interval": "1s", "transient_failure_retry_interval": "3s",
                        "outbound_connection_failure_retry_interval": "5s", "message_retry_interval": "4s",
                    },
                    "tracking": {"directory": str(directory / f"{host}-tracking")},
                }
            )  # fmt: skip
            disk = Disk(random.Random(chance.getrandbits(64)))
            rate = 1.0 + chance.uniform(-0.005, 0.005)  # any two agree within 1 %
            machines.append(Machine(name, host, site, directory / host, rate, chance.uniform(10, 10_000), disk, settings))
        return machines

    async def _live(self) -> None:
        for machine in self.machines:
            await self.processes.start(machine)
        await asyncio.sleep(2.0)
        for _ in range(self._steps):
            await self._step()
            self.checker.check_all_copies()
            if self.checker.violations:
                break
        if not self.checker.violations:
            await self._calm()
        for machine in self.machines:
            if machine.is_up:
                await self.processes.kill(machine)

    async def _step(self) -> None:
        chance = self.chance
        await asyncio.sleep(chance.choice((0.0, 0.01, 0.1, 0.5, 1.0, 3.0)) * chance.random() * 2)
        due = [entry for entry in self._undo if entry[0] <= self.now()]
        for entry in due:
            self._undo.remove(entry)
            await entry[1]()
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            self.clients.send()
        if chance.random() < 0.45:
            fault = chance.choices(
                (self._kill, self._wipe, self._pause, self._cut, self._slow, self._break, self._jump, self._fill_disk, self._sink_away),
                (5, 3, 3, 5, 2, 3, 1, 1, 2),
            )[0]
            await fault()

    def could_meet(self, one: str, other: str) -> bool:
        """Nothing has kept these two apart for the time of a round of questions."""
        since = self.now() - 2 * self.shape.heartbeat - 2.0
        pair = {one, other}
        kinds = (FaultKind.CUT, FaultKind.HALF_CUT, FaultKind.SLOW)
        apart = [f for f in self.faults if (f.kind in kinds and {f.node, f.other} == pair) or (f.stops_node and f.node in pair)]
        return all(fault.ended_at < since for fault in apart)

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
        self._ends(FaultKind.KILL, machine.name, "", self._lasts(), lambda: self.processes.start(machine), "kill")
        await self.processes.kill(machine, is_silent=self.chance.random() < 0.3)

    async def _wipe(self) -> None:
        machine = self._a_machine()
        if machine is None or not self.checker.may_wipe(machine.host):
            return
        self._ends(FaultKind.WIPE, machine.name, "", self._lasts(), lambda: self.processes.start(machine), "wipe")
        await self.processes.kill(machine, is_silent=self.chance.random() < 0.3)
        self.processes.wipe(machine)
        self.checker.wiped(machine.host)

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

    async def _calm(self) -> None:
        self.note("calm")
        for _, end in self._undo:
            await end()
        self._undo.clear()
        self.network.heal_all()
        self.network.serve(SINK_HOST, None, self.sink.factory)
        self.sink.behaviour = CALM
        self.clients.is_giving_up = True
        until = self.now() + CALM_SECONDS_MAX
        while self.now() < until and not self.checker.violations and (self.clients.tasks or self._open()):
            await asyncio.sleep(1.0)
        self.counts["seconds to drain"] = round(self.now() - until + CALM_SECONDS_MAX)
        self.checker.check_all_copies()
        self._complaints += judge.complaints(self)
        self._complaints += self._failures

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
