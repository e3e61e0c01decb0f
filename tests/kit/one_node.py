"""One node's services over a real ledger, with peers and a next hop that are played, and a strike at any await.

Every await on the ledger, a peer or the next hop is two steps: before the deed and after it. At the step that is wanted the
client's wait is cancelled, or the process is gone: whatever still runs then hangs for ever, and nothing more is committed.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shadowrelay.model.ids import BoundaryName, DatabaseId, MessageId, ServerName
from shadowrelay.model.ownership import Claim, CopyNumber, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, LedgerUnavailable, PeerUnavailable, Reply
from shadowrelay.ownership.rules import Party
from shadowrelay.pipeline.assembly import Outside, Services
from shadowrelay.pipeline.context import SystemClock
from shadowrelay.ports import DeliveryJob
from shadowrelay.settings.values import Settings
from shadowrelay.store import SqliteLedger
from tests.kit.ledger import HERE, OTHER, THERE

PROMISES = {"record_accepted", "record_verdict", "transition", "record_attempt", "record_queued"}
DATABASES = {
    THERE: DatabaseId("11111111-1111-4111-8111-111111111111"),
    OTHER: DatabaseId("33333333-3333-4333-8333-333333333333"),
}


def settings_of(directory: Path, *, reject: bool) -> Settings:
    """Short times, two peers in another site, one next hop."""
    return Settings.model_validate(
        {
            "server": {"name": HERE, "site": "east", "boundary": "example", "data_directory": directory},
            "transport": {
                "reject_message_on_shadow_failure": reject,
                "shadow_heartbeat_frequency": "1s",
                "shadow_resubmit_time_span": "3m",
                "shadow_timeout": "60s",  # of the real clock: no pause of the machine is an answer that does not come
                "discard_poll_interval": "10ms",
            },
            "receive_connectors": [{"name": "inbound", "listen": "127.0.0.1:0"}],
            "peers": [
                {"name": name, "site": "west", "boundary": "example", "address": f"127.0.0.1:{port}"}
                for port, name in enumerate(DATABASES, start=2)
            ],
            "routes": [{"recipients": ["*"], "next_hop": "127.0.0.1:9"}],
        }
    )


class Steps:
    """Counts; at `target` it strikes. A process that is gone makes no step any more."""

    def __init__(self, target: int) -> None:
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


class SteppedLedger:
    """A real ledger; `failures` are how often each promise fails first."""

    def __init__(self, real: SqliteLedger, steps: Steps, failures: dict[str, int]) -> None:
        self._real, self._steps, self._failures = real, steps, failures

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in PROMISES:
            return found

        async def promise(*arguments: Any, **named: Any) -> Any:
            await self._steps.step()
            if self._failures.get(name, 0):
                self._failures[name] -= 1
                raise LedgerUnavailable(INSUFFICIENT_RESOURCES, "planted")
            result = await found(*arguments, **named)
            await self._steps.step()
            return result

        return promise


@dataclass(slots=True)
class World:
    """What outlives the node: its peers and the next hop. `script` is what peers do with one copy after another: `store`,
    `refuse` (nothing was sent), `lose` (sent, not stored), `break` (stored, but the answer is lost)."""

    script: list[str]
    held: dict[ServerName, dict[MessageId, CopyNumber]] = field(default_factory=lambda: {name: {} for name in DATABASES})
    arrived: list[MessageId] = field(default_factory=list)

    def holders(self, message_id: MessageId) -> set[ServerName]:
        """The servers that have stored a copy."""
        return {server for server, copies in self.held.items() if message_id in copies}


class PlayedPeer:
    """Port `PeerLink`. Stores what it is sent, and answers STATUS truthfully."""

    def __init__(self, server: ServerName, world: World, steps: Steps, primary: Party) -> None:
        self.server = server
        self._world, self._steps, self._primary = world, steps, primary
        self.identity: PeerIdentity | None = identity_of(server)

    async def hold(self, offer: CopyOffer, deadline: float, still: float | None = None) -> Any:
        await self._steps.step()
        what = self._world.script.pop(0) if self._world.script else "store"
        if what == "refuse":
            raise PeerUnavailable(self.server, "planted", was_refused=True)
        if what in ("store", "break"):
            self._world.held[self.server][offer.envelope.message_id] = offer.number
        await self._steps.step()
        if what in ("lose", "break"):
            raise PeerUnavailable(self.server, "planted", sent=True)
        return SimpleNamespace(superseded=None, began_awake=SystemClock().awake(), server_database=DATABASES[self.server])

    async def greet(self) -> PeerIdentity:
        return identity_of(self.server)

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply:
        return DiscardReply((), 0)

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        return tuple(self._answer(question) for question in questions)

    def _answer(self, question: StatusQuestion) -> StatusAnswer:
        copies = self._world.held[self.server]
        number = copies.get(question.message_id)
        if number is None:
            return StatusAnswer(StatusState.UNKNOWN)
        if question.number.placement and question.number > number:
            number = copies[question.message_id] = question.number
        return StatusAnswer(StatusState.SHADOW, number, self._primary.server, self._primary.database)

    async def close(self) -> None:
        pass


def identity_of(server: ServerName) -> PeerIdentity:
    """Of a played peer, always in the same database."""
    span = settings_of(Path("/"), reject=True).transport.shadow_resubmit_time_span
    return PeerIdentity(server, BoundaryName("example"), DATABASES[server], 1, 1, 1, span)


class PlayedNextHop:
    """Port `Deliverer`: takes everything."""

    def __init__(self, world: World, steps: Steps) -> None:
        self._world, self._steps = world, steps

    async def deliver(self, job: DeliveryJob) -> Any:
        await self._steps.step()
        await job.content()
        assert job.may_end_data()
        self._world.arrived.append(job.envelope.message_id)
        await self._steps.step()
        replies = {ordinal: Reply(250, "2.0.0", "taken") for ordinal in job.ordinals}
        return SimpleNamespace(server="next hop", replies=replies, dot_sent_unanswered=False, passes_dsn=True)

    async def close(self) -> None:
        pass


class Nothing:
    """Metrics and tracking log that nobody reads."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **named: None


class OneNode:
    """A process, from an opened ledger until it is stopped or gone. Open it again in the same directory for the next one."""

    def __init__(self, ledger: SqliteLedger, world: World, steps: Steps, failures: dict[str, int], settings: Settings) -> None:
        self.ledger = ledger
        self.steps = steps
        me = Party(HERE, ledger.identity.database)
        outside = Outside(
            clock=SystemClock(),
            ledger=SteppedLedger(ledger, steps, failures),  # type: ignore[arg-type]
            link_to=lambda peer, _: PlayedPeer(peer.name, world, steps, me),
            deliverer=PlayedNextHop(world, steps),
            tracking=Nothing(),  # type: ignore[arg-type]
            metrics=Nothing(),  # type: ignore[arg-type]
            chance=random.Random(1),
        )
        self.services = Services(settings, outside)
        self.context = self.services.context
        for server in DATABASES:
            self.context.peers.identified(identity_of(server))  # known already, so that nobody reconciles

    @classmethod
    async def open(cls, directory: Path, world: World, steps: Steps, *, reject: bool, failures: dict[str, int] | None = None) -> "OneNode":
        """Every promise is kept at the call itself, without threads."""
        ledger = await SqliteLedger.open(directory, server=HERE, now=SystemClock().now, free_bytes_min=0, inline=True)
        return cls(ledger, world, steps, failures or {}, settings_of(directory, reject=reject))

    async def idle(self) -> None:
        """Until no task of the node runs. Only without `services.start`."""
        while len(self.context.tasks):
            await asyncio.sleep(0)

    async def told(self, server: ServerName) -> dict[MessageId, str]:
        """The last that a peer will hear of each message."""
        reply = await self.ledger.discards_for(server, DATABASES[server], 400)
        return {event.message_id: event.status.value for event in reply.events}

    async def end(self) -> None:
        """Its tasks are over. The ledger is closed, or lost with the process."""
        if self.steps.is_dead:
            self.ledger.abandon()
        await self.context.tasks.close()
        if not self.steps.is_dead:
            await self.ledger.close()


def listed(claim: Claim) -> set[ServerName]:
    """The servers on a primary's list."""
    return {copy.server for copy in claim.copies}
