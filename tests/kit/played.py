"""One node whose peers are played, and a strike at any await.

Every await on the ledger, a peer or the next hop is two steps: before the call and after it. At the step that is wanted the
client's wait is cancelled, or the process is gone: whatever still runs then hangs for ever, and nothing more is committed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from shadowrelay.model.ids import BoundaryName, DatabaseId, MessageId, ServerName
from shadowrelay.model.ownership import CopyNumber, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import Alive, CopyOffer, DiscardReply, Incarnation, PeerIdentity
from shadowrelay.model.replies import PeerUnavailable
from shadowrelay.ports import HoldAnswer
from tests.kit.nodes import EAST, NORTH, SPAN, WEST, Net, Sink, VirtualNode

DATABASES = {
    WEST: DatabaseId("11111111-1111-4111-8111-111111111111"),
    NORTH: DatabaseId("33333333-3333-4333-8333-333333333333"),
}


class StepsToStrike:
    """Counts; at `target` it strikes. A process that is gone makes no step any more."""

    def __init__(self, target: int = 0) -> None:
        self.target = target
        self.count = 0
        self.strike: Callable[[], object] = lambda: None
        self.is_dead = False
        self.died = asyncio.Event()

    def die(self) -> None:
        """The process is gone."""
        self.is_dead = True
        self.died.set()

    @property
    def was_struck(self) -> bool:
        return self.count >= self.target

    async def step(self) -> None:
        await self._hang_if_dead()
        self.count += 1
        if self.count == self.target:
            self.strike()
        await self._hang_if_dead()
        await asyncio.sleep(0)
        await self._hang_if_dead()

    async def _hang_if_dead(self) -> None:
        while self.is_dead:
            await asyncio.Event().wait()


@dataclass(slots=True)
class PlayedWorld:
    """What outlives the node: its peers and the next hop. `script` is what peers do with one copy after another: `store`,
    `refuse` (nothing was sent), `lose` (sent, not stored), `break` (stored, but the answer is lost)."""

    script: list[str] = field(default_factory=list)
    held: dict[ServerName, dict[MessageId, CopyNumber]] = field(default_factory=lambda: {name: {} for name in DATABASES})
    sink: Sink = field(default_factory=Sink)

    def holders(self, message_id: MessageId) -> set[ServerName]:
        """The servers that have stored a copy."""
        return {server for server, copies in self.held.items() if message_id in copies}


class PlayedPeer:
    """Port `PeerLink`. Stores what it is sent, and answers STATUS truthfully."""

    def __init__(self, server: ServerName, world: PlayedWorld, steps: StepsToStrike, node: VirtualNode) -> None:
        self.server = server
        self._world, self._steps, self._node = world, steps, node
        self.identity: PeerIdentity | None = identity_of(server)

    async def hold(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
        await self._steps.step()
        what = self._world.script.pop(0) if self._world.script else "store"
        if what == "refuse":
            raise PeerUnavailable(self.server, "planted", was_refused=True)
        if what in ("store", "break"):
            self._world.held[self.server][offer.envelope.message_id] = offer.number
        await self._steps.step()
        if what in ("lose", "break"):
            raise PeerUnavailable(self.server, "planted", sent=True)
        return HoldAnswer(None, self._node.clock.awake(), DATABASES[self.server])

    async def greet(self) -> PeerIdentity:
        return identity_of(self.server)

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply:
        return DiscardReply((), 0)

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        return tuple(self._answer(question) for question in questions)

    def _answer(self, question: StatusQuestion) -> StatusAnswer:
        copies, me = self._world.held[self.server], self._node.context.me
        number = copies.get(question.message_id)
        if number is None:
            return StatusAnswer(StatusState.UNKNOWN)
        if question.number.placement and question.number > number:
            number = copies[question.message_id] = question.number
        return StatusAnswer(StatusState.SHADOW, number, me.server, me.database)

    async def alive(self, incarnation: Incarnation, *, is_dialed: bool) -> Alive:
        return Alive.ENDED

    def end_others(self, incarnation: Incarnation) -> None:
        return

    def hold_ready(self, *, is_wanted: bool) -> None:
        return

    def give_up(self, quiet_seconds: float) -> int:
        return 0

    async def close(self) -> None:
        pass


def identity_of(server: ServerName) -> PeerIdentity:
    """Of a played peer, always in the same database."""
    return PeerIdentity(server, BoundaryName("example"), DATABASES[server], 1, 1, 1, timedelta(seconds=SPAN))


@asynccontextmanager
async def one_node(
    directory: Path,
    world: PlayedWorld | None = None,
    steps: StepsToStrike | None = None,
    *,
    failures: Mapping[str, int] | None = None,
    **transport: Any,
) -> AsyncIterator[VirtualNode]:
    """A process without its loops, until it is stopped or gone; again in the same directory, the next one. `failures` are how often
    each promise of the ledger fails first."""
    world, steps = world or PlayedWorld(), steps or StepsToStrike()
    net = Net(directory, names=(EAST, *DATABASES), transport=transport)
    net.sink, net.step = world.sink, steps.step
    net.link_to = lambda node, server: PlayedPeer(server, world, steps, node)
    node = await net.start(EAST, is_idle=True)
    for server in DATABASES:
        node.context.peers.identified(identity_of(server))  # known already, so that nobody reconciles
    for name, times in (failures or {}).items():
        node.ledger.fail(name, times)
    try:
        yield node
    finally:
        await (net.kill if steps.is_dead else net.stop)(EAST)
