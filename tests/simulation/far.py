"""Sites that are far apart: whole nodes, and real TLS, over a network on which nothing but a round trip between two sites takes time.

So a wait is a number of round trips, exactly. `python -m tests.simulation.far` prints the table of docs/operations.md.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shadowrelay.lab.traffic import SubmissionResult
from shadowrelay.model.settings import Settings
from shadowrelay.model.tracking import EventId, TrackingEvent
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.scripts import Scripted
from tests.simulation.sink import CALM

NEAR_SECONDS = 1e-5
HERE, THERE, NEIGHBOUR = range(3)  # machines: two of one site, the second alone in the other
WARM_SECONDS = 20.0  # after the start, both nodes know each other


@dataclass(frozen=True, slots=True)
class FarMessage:
    """What became of one message. `seconds` is until its 250, `site` where its copy is: "far", "near" or "none"."""

    site: str
    seconds: float
    rtt: float

    def __str__(self) -> str:
        return f"{self.site} {self.seconds:.2f} s ({self.round_trips:g})"

    @property
    def round_trips(self) -> float:
        return round(self.seconds / self.rtt, 1)


class FarSites(Scripted):
    """Machine 1 takes the mail; machine 2 stands in another site, machine 3 in its own. `play` is the script."""

    count = 3
    heartbeat = 30.0
    span = 600.0

    def __init__(self, rtt: float, *, has_tls: bool, play: "Callable[[FarSites], Awaitable[None]]", is_traced: bool = False) -> None:
        super().__init__(is_traced=is_traced)
        self.rtt, self._play = rtt, play
        self.shape.sites, self.shape.has_tls = 2, has_tls
        self.shape.transport |= {"shadow_timeout": "5s"}
        self.told: list[FarMessage] = []
        self.events: list[dict[str, Any]] = []  # of the operator log
        self._copied_to: dict[str, str] = {}  # by message id
        self._tasks: set[asyncio.Task[None]] = set()

    def settings_of(self, machine: Machine, **changes: Any) -> Settings:
        """The machine's settings with others in [transport]."""
        said = machine.settings
        return said.model_copy(update={"transport": said.transport.model_copy(update=changes)})

    def _build(self, directory: Any) -> None:
        super()._build(directory)
        _take_time(self.network, self._between)
        for machine in self.machines:
            machine.disk.slowness = 0.0
        tracked = self.checker.tracked

        def watched(machine: Machine, event: TrackingEvent) -> None:
            if event.event is EventId.HAREDIRECT and machine is self.machines[HERE]:
                self._copied_to.setdefault(str(event.network_message_id), event.server_hostname)
            tracked(machine, event)

        self.checker.tracked = watched  # type: ignore[method-assign]

    def _between(self, source: str, target: str) -> float:
        sites = {machine.host: machine.site for machine in self.machines}
        here = self.machines[HERE].site
        return self.rtt / 2 if sites.get(source, here) != sites.get(target, here) else NEAR_SECONDS

    async def message(self) -> FarMessage:
        """One message of a client beside machine 1, until its answer."""
        began = self.now()
        self.clients.hosts = [self.machines[HERE].host]
        self.clients.refused_share = 0.0
        self.clients.send()
        sent = self.clients.sent[-1]
        (task,) = self.clients.tasks - self._tasks
        self._tasks.add(task)
        await asyncio.wait([task])
        seconds = self.now() - began
        assert SubmissionResult.ACKNOWLEDGED is sent.tries[-1].answer
        to = self._copied_to.get(sent.acknowledged, "")
        names = {machine.name: "far" if machine.site != self.machines[HERE].site else "near" for machine in self.machines}
        told = FarMessage(names.get(to, "none"), seconds, self.rtt)
        self.told.append(told)
        return told

    async def start_all(self) -> None:
        for machine in self.machines:
            await self.processes.start(machine)

    async def _live(self) -> None:
        self.sink.behaviour = CALM
        await self._play(self)
        for machine in self.machines:
            if machine.is_up:
                await self.processes.kill(machine)
        await asyncio.sleep(self.rtt)  # the connections end


def _take_time(network: Network, between: Callable[[str, str], float]) -> None:
    """Each way takes this long, and nothing else: also the packet that opens a connection, after which a server greets."""
    accepted = network._accepted
    network.delay = between  # type: ignore[method-assign]

    def later(server_socket: Any, factory: Any, peer: tuple[str, int]) -> None:
        own = server_socket.getsockname()[0]
        asyncio.get_running_loop().call_later(between(own, peer[0]), accepted, server_socket, factory, peer)

    network._accepted = later  # type: ignore[method-assign]


def played(rtt: float, *, has_tls: bool, play: Callable[[FarSites], Awaitable[None]], is_traced: bool = False) -> FarSites:
    """A world after its script."""
    world = FarSites(rtt, has_tls=has_tls, play=play, is_traced=is_traced)
    result = world.run()
    assert not result.complaints, result.complaints
    return world


async def at_once(world: FarSites) -> None:
    """Machine 1 has just been started, and knows nobody yet: four messages, one after the other, and one a while later."""
    for machine in (*world.machines[HERE + 1 :], world.machines[HERE]):
        await world.processes.start(machine)
    for _ in range(4):
        await world.message()
    await asyncio.sleep(WARM_SECONDS)
    await world.message()


async def warm(world: FarSites) -> None:
    """A while after the start: two messages, one some time later, and one after a long time without any."""
    await world.start_all()
    await asyncio.sleep(WARM_SECONDS)
    for pause in (0.0, 0.0, 10.0, 200.0):
        await asyncio.sleep(pause)
        await world.message()


async def burst(world: FarSites) -> None:
    """A while after the start: five messages at once, and five again when they are there."""
    await world.start_all()
    await asyncio.sleep(WARM_SECONDS)
    for _ in range(2):
        await asyncio.gather(*(world.message() for _ in range(5)))


def table() -> Iterator[str]:
    """As Markdown, a line each."""
    yield "| round trip | TLS | right after the start | later | five at once, twice |"
    yield "|---|---|---|---|---|"
    for rtt in (0.05, 0.1, 0.25, 0.4, 0.6):
        for has_tls in (False, True):
            cells = [", ".join(map(str, played(rtt, has_tls=has_tls, play=play).told)) for play in (at_once, warm, burst)]
            yield f"| {rtt} s | {'mutual' if has_tls else 'no'} | {' | '.join(cells)} |"


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
    if len(sys.argv) > 1:
        world = played(float(sys.argv[1]), has_tls=True, play=warm, is_traced=True)
        print("\n".join(world.trace))
