"""Whole service stacks of several nodes in one process and in virtual time, without sockets.

Real services over real queue databases (inline, so without threads); a `FakeLink` drives the real `PeerDesk` of the other
node, over a `Net` in which servers can be killed, wiped, paused and cut off; a `FakeDeliverer` is the next hop. Nothing
sleeps on real time: `in_virtual_time` runs a test on a loop whose clock jumps.
"""

import asyncio
import functools
import hashlib
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import async_solipsism

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Content, Envelope, Recipient
from shadowrelay.model.ownership import Role, StatusAnswer, StatusQuestion
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.queue import StoredMessage
from shadowrelay.model.replies import STORE_UNAVAILABLE, LeaseTooShort, LedgerUnavailable, PeerSaid, PeerUnavailable, Reply
from shadowrelay.model.tracking import EventId, TrackingEvent
from shadowrelay.pipeline.assembly import Outside, Services
from shadowrelay.pipeline.context import Tasks
from shadowrelay.ports import DeliveryJob
from shadowrelay.protocol.xqdiscard import parse_superseded
from shadowrelay.settings.values import Settings
from shadowrelay.store import SqliteLedger

BASE = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
EAST, WEST, NORTH = ServerName("mx1.east.example"), ServerName("mx1.west.example"), ServerName("mx1.north.example")
SITES = {EAST: "east", WEST: "west", NORTH: "north"}
LATENCY_SECONDS = 0.002
CONTROL_SECONDS = 2.0
SPAN, HEARTBEAT = 60.0, 5.0
OK = Reply(250, "2.0.0", "OK")


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on a loop in which waiting takes no time. A deadlock raises instead of hanging."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        loop = async_solipsism.EventLoop()
        try:
            loop.run_until_complete(test(*arguments, **named))
        finally:
            loop.close()

    return run


async def until(claim: Callable[[], bool | Awaitable[bool]], seconds: float = 600.0) -> None:
    """Wait until it is so; fail when it is not in so many virtual seconds."""
    for _ in range(int(seconds / 0.05)):
        found = claim()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not so after {seconds} s")


class VirtualClock:
    """Of one process: `wall_shift` is what somebody did to the wall clock, `stopped` how long the process did not run."""

    def __init__(self) -> None:
        self.wall_shift = timedelta(0)
        self.stopped = 0.0
        self._started = asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return BASE + timedelta(seconds=asyncio.get_running_loop().time()) + self.wall_shift

    def awake(self) -> float:
        return 1000.0 + asyncio.get_running_loop().time()

    def ran(self) -> float:
        return asyncio.get_running_loop().time() - self._started - self.stopped


class Recorder:
    """Tracking log and metrics that only remember."""

    def __init__(self) -> None:
        self.events: list[TrackingEvent] = []
        self.counts: Counter[str] = Counter()

    def write(self, event: TrackingEvent) -> None:
        self.events.append(event)

    async def sync(self) -> None:
        self.counts["synced"] = len(self.events)

    def rows(self, event_id: EventId) -> list[TrackingEvent]:
        return [event for event in self.events if event.event is event_id]

    def acknowledged(self, replication: Any) -> None:
        self.counts[f"acknowledged {replication}"] += 1

    def refused(self, reason: str) -> None:
        self.counts[f"refused {reason}"] += 1

    def shadow_latency(self, seconds: float) -> None:
        self.counts["shadow latency"] += 1

    def discarded(self, count: int) -> None:
        self.counts["discarded"] += count

    def promoted(self, count: int, reason: str) -> None:
        self.counts[f"promoted {reason}"] += count

    def attempt(self, result: str) -> None:
        self.counts[f"attempt {result}"] += 1

    def heartbeat(self, server: ServerName) -> None:
        self.counts[f"heartbeat {server}"] += 1


class LedgerTap:
    """A ledger some of whose promises fail, or wait: `fail("record_verdict", 3)` makes the next three raise LedgerUnavailable,
    and `gates["due"]` is waited for before each `due`, `gates["due, read"]` after it."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self.real = ledger
        self._failures: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()  # calls
        self.errors: dict[str, Exception] = {}
        self.gates: dict[str, asyncio.Event] = {}

    def fail(self, name: str, times: int, error: Exception | None = None) -> None:
        self._failures[name] = times
        self.errors[name] = error or LedgerUnavailable(STORE_UNAVAILABLE, f"{name} fails in this test")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if not callable(found):
            return found
        self.counts[name] += 1
        if name not in self._failures and name not in self.gates and f"{name}, read" not in self.gates:
            return found

        @functools.wraps(found)
        async def tapped(*arguments: Any, **named: Any) -> Any:
            if name in self.gates:
                await self.gates[name].wait()
            if self._failures[name] > 0:
                self._failures[name] -= 1
                raise self.errors[name]
            result = await found(*arguments, **named)
            if (gate := self.gates.get(f"{name}, read")) is not None:
                self.counts[f"{name}, read"] += 1
                await gate.wait()
            return result

        return tapped


@dataclass(frozen=True)
class Report:
    replies: Mapping[int, Reply]
    server: str = "sink.example [192.0.2.9]:25"
    dot_sent_unanswered: bool = False
    passes_dsn: bool = True


@dataclass
class Sink:
    """All next hops of all nodes. `answer(address)` is a Reply, or an error to raise for the whole attempt."""

    arrived: list[tuple[ServerName, str, bytes]] = field(default_factory=list)
    answer: Callable[[str], Reply | Exception] = lambda address: OK
    before_dot: Callable[[ServerName], Awaitable[None]] | None = None
    after_dot: Callable[[ServerName], Awaitable[None]] | None = None
    hang: Callable[[str], asyncio.Event | None] = lambda address: None  # an event that the next hop waits for before it takes it
    attempts_count: int = 0

    def addresses(self) -> list[str]:
        return sorted(address for _, address, _ in self.arrived)

    def by(self, server: ServerName) -> list[str]:
        return sorted(address for who, address, _ in self.arrived if who == server)


class FakeDeliverer:
    """Port `Deliverer` of one node."""

    def __init__(self, server: ServerName, sink: Sink) -> None:
        self._server, self._sink = server, sink

    async def deliver(self, job: DeliveryJob) -> Report:
        sink = self._sink
        sink.attempts_count += 1
        await asyncio.sleep(LATENCY_SECONDS)
        envelope = job.envelope
        replies: dict[int, Reply] = {}
        content = await job.content()
        for ordinal in sorted(job.ordinals):
            answer = sink.answer(envelope.recipients[ordinal - 1].address)
            if isinstance(answer, Exception):
                raise answer
            replies[ordinal] = answer
        for ordinal in sorted(job.ordinals):
            if (until := sink.hang(envelope.recipients[ordinal - 1].address)) is not None:
                await until.wait()
        with job.handling():
            if sink.before_dot is not None:  # what is awaited here stands for handling the content
                await sink.before_dot(self._server)
        if not job.may_end_data():
            raise LeaseTooShort("the lease is too short")
        data = job.prefix + (content.data if content.data is not None else content.path.read_bytes() if content.path else b"")
        sink.arrived += [
            (self._server, envelope.recipients[ordinal - 1].address, data) for ordinal, reply in replies.items() if reply == OK
        ]
        if sink.after_dot is not None:
            await sink.after_dot(self._server)
        return Report(replies)

    async def close(self) -> None:
        return None


@dataclass(frozen=True)
class Held:
    superseded: StatusAnswer | None
    began_awake: float
    server_database: DatabaseId


class FakeLink:
    """Port `PeerLink`: one session to the desk of the other node, as long as both processes live and can reach each other."""

    def __init__(self, net: "Net", node: "VirtualNode", server: ServerName) -> None:
        self._net, self._node, self._server = net, node, server
        self._other: VirtualNode | None = None
        self._answered: float | None = None
        self._identity: PeerIdentity | None = None

    @property
    def server(self) -> ServerName:
        return self._server

    @property
    def identity(self) -> PeerIdentity | None:
        return self._identity

    async def _reach(self) -> "VirtualNode":
        await asyncio.sleep(LATENCY_SECONDS)
        other = self._net.reach(self._node.name, self._server)
        if other is None:
            self._other = None
            raise PeerUnavailable(self._server, "cannot be reached")
        return other

    async def _session(self) -> "VirtualNode":
        other = await self._reach()
        if other is self._other:
            return other
        node = self._node
        for here, there in ((other, node), (node, other)):
            refusal = here.services.desk.refusal(there.services.desk.own_identity(here.name))
            if refusal is not None:
                raise PeerUnavailable(self._server, str(refusal))
        await other.services.desk.greeted(node.services.desk.own_identity(self._server))
        self._other, self._answered = other, None
        self._identity = other.services.desk.own_identity(node.name)
        await node.services.desk.greeted(self._identity)
        node.context.peers.offered(self._server, other.services.desk.offers_hold())
        await node.services.heartbeat.opened(self)
        return other

    async def _ask(self, ask: Callable[["VirtualNode", PeerIdentity], Awaitable[Any]]) -> Any:
        other = await self._session()
        node = self._node
        me = node.services.desk.own_identity(self._server)
        other.services.desk.heard(me.server, me.database)
        if self._answered is not None:
            other.services.desk.proved(me.server, me.database, self._answered)
        try:
            answer = await ask(other, me)
        except LedgerUnavailable as error:
            raise PeerUnavailable(self._server, str(error.reply)) from error
        self._answered = other.clock.awake()
        await self._reach()  # the reply may be lost
        assert self._identity is not None
        node.context.peers.heard(self._server, self._identity.database)
        return answer

    async def hold(self, offer: CopyOffer, deadline: float, still: float | None = None) -> Held:
        began = self._node.clock.awake()
        sent = False
        try:
            async with asyncio.timeout(deadline - began if still is None else still):
                fault = self._net.hold_fault(self._node.name, self._server)
                if fault == "slow":
                    await asyncio.sleep(1000)
                other = await self._session()
                began = self._node.clock.awake()
                if not other.services.desk.offers_hold():
                    raise PeerUnavailable(self._server, "does not offer HOLD now", said=PeerSaid.NO_SESSION)
                sent = True
                if fault == "not stored":
                    await asyncio.sleep(1000)
                received = other.received(offer)
                reply: Reply = await self._ask(lambda other, me: other.services.desk.hold(me, received))
                if fault == "reply late":
                    await asyncio.sleep(1000)
        except TimeoutError as error:
            raise PeerUnavailable(self._server, "no answer in time", sent=sent) from error
        except PeerUnavailable as error:
            raise PeerUnavailable(self._server, error.reason, sent=sent, said=error.said) from error
        assert self._identity is not None
        if reply.is_positive:
            return Held(None, began, self._identity.database)
        if reply.code == 554:
            return Held(parse_superseded(reply.text), began, self._identity.database)
        raise PeerUnavailable(self._server, str(reply), said=PeerSaid.NO_COPY)

    async def greet(self) -> PeerIdentity:
        async def ask(other: "VirtualNode", me: PeerIdentity) -> None:
            return None

        await self._ask(ask)
        assert self._identity is not None
        return self._identity

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply:
        reply: DiscardReply = await self._ask(lambda other, me: other.services.desk.discards(me, maximum, acknowledged))
        return reply

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        answers: tuple[StatusAnswer, ...] = await self._ask(lambda other, me: other.services.desk.status(me, questions))
        return answers

    async def close(self) -> None:
        self._other = None


class Net:
    """Who runs, and who can reach whom."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.settings = settings
        self.sink = Sink()
        self.nodes: dict[ServerName, VirtualNode] = {}
        self.cut: set[frozenset[ServerName]] = set()
        self.hold_fault: Callable[[ServerName, ServerName], str] = lambda primary, shadow: ""

    def reach(self, source: ServerName, target: ServerName) -> "VirtualNode | None":
        node = self.nodes.get(target)
        return node if node is not None and frozenset((source, target)) not in self.cut else None

    def isolate(self, server: ServerName) -> None:
        self.cut |= {frozenset((server, other)) for other in SITES if other != server}

    def heal(self) -> None:
        self.cut.clear()

    async def start(self, name: ServerName, peers: Iterable[ServerName] | None = None, **changes: Any) -> "VirtualNode":
        """Open its database where it was, and run."""
        names = [other for other in self.settings.get("names", (EAST, WEST)) if other != name] if peers is None else list(peers)
        node = VirtualNode(self, name, make_settings(name, names, self.directory, **{**self.settings.get("transport", {}), **changes}))
        await node.open()
        self.nodes[name] = node
        return node

    async def kill(self, name: ServerName) -> None:
        """SIGKILL: what is not committed is gone."""
        node = self.nodes.pop(name)
        node.ledger.real.abandon()
        await node.tasks.close()

    async def wipe(self, name: ServerName) -> None:
        """Its disk is destroyed."""
        await self.kill(name)
        shutil.rmtree(self.directory / name)

    async def close(self) -> None:
        for name in tuple(self.nodes):
            await self.kill(name)


@asynccontextmanager
async def nodes(directory: Path, *names: ServerName, **transport: Any) -> Any:
    """A net with these nodes running."""
    net = Net(directory, names=names, transport=transport)
    try:
        for name in names:
            await net.start(name)
        yield net
    finally:
        await net.close()


def make_settings(name: ServerName, peers: Iterable[ServerName], directory: Path, **transport: Any) -> Settings:
    """Short times; `send` and `routes` may be among the keywords."""
    send = transport.pop("send", {})
    routes = transport.pop("routes", [{"recipients": ["*"], "next_hop": "sink.example:25"}])
    peer = transport.pop("peer", {})
    times = {
        "shadow_resubmit_time_span": timedelta(seconds=SPAN),
        "shadow_heartbeat_frequency": timedelta(seconds=HEARTBEAT),
        "shadow_timeout": timedelta(seconds=2),
        "discard_poll_interval": timedelta(seconds=0.5),
    }
    return Settings.model_validate(
        {
            "server": {"name": name, "site": SITES[name], "boundary": "example", "data_directory": directory / name},
            "transport": {**times, **transport},
            "peers": [
                {"name": other, "site": SITES[other], "boundary": "example", "address": f"{other}:2525", **peer.get(other, {})}
                for other in peers
            ],
            "routes": routes,
            "send": {"queue_glitch_retry_interval": timedelta(seconds=5), "message_retry_interval": timedelta(seconds=5), **send},
        }
    )


class VirtualNode:
    """One process."""

    def __init__(self, net: Net, name: ServerName, settings: Settings) -> None:
        self.net, self.name, self.settings = net, name, settings
        self.clock = VirtualClock()
        self.tasks = Tasks()
        self.log = Recorder()

    async def open(self) -> None:
        settings = self.settings
        ledger = await SqliteLedger.open(
            settings.server.data_directory,
            server=self.name,
            now=self.clock.now,
            safety_net_hold_time=settings.transport.safety_net_hold_time,
            message_expiration_timeout=settings.transport.message_expiration_timeout,
            free_bytes_min=0,
            inline=True,
        )
        self.ledger = LedgerTap(ledger)
        outside = Outside(
            clock=self.clock,
            ledger=self.ledger,
            link_to=lambda peer, _: FakeLink(self.net, self, peer.name),
            deliverer=FakeDeliverer(self.name, self.net.sink),
            tracking=self.log,
            metrics=self.log,
            chance=random.Random(7),
            tasks=self.tasks,
        )
        self.services = Services(settings, outside)
        self.context = self.services.context
        self.context.peers.remember(await ledger.peers())
        self.services.start()

    def received(self, offer: CopyOffer) -> CopyOffer:
        """As the receiver has it: large content in a file of its own."""
        content = offer.content
        if content.path is None:
            return offer
        path = self.ledger.real.spool_directory / f"{offer.envelope.message_id}.copy"
        shutil.copy(content.path, path)
        return replace(offer, content=replace(content, path=path))

    # what tests do and ask
    async def accept(self, *recipients: str, data: bytes = b"Subject: hello\r\n\r\nhello\r\n", sender: str = "a@x.example") -> Reply:
        """A client's message; its reply. `last` is its id."""
        self.last = message_id(f"{self.name} {next(_NUMBERS)}")
        addresses = recipients or ("user1@corp.example",)
        envelope = Envelope(self.last, sender, tuple(Recipient(address) for address in addresses), self.clock.now())
        return await self.services.accept.accept(envelope, Content(len(data), hashlib.sha256(data).digest(), data))

    async def message(self, wanted: MessageId) -> StoredMessage | None:
        return await self.ledger.real.load(wanted)

    async def role(self, wanted: MessageId) -> Role | None:
        stored = await self.message(wanted)
        return None if stored is None else stored.claim.role

    def in_role(self, wanted: MessageId, role: Role | None) -> Callable[[], Awaitable[bool]]:
        """For `until`."""

        async def is_so() -> bool:
            return role is await self.role(wanted)

        return is_so

    def corrupt(self) -> None:
        """Turn every byte of its contents over, and forget what is in memory."""
        contents = self.ledger.real._contents
        contents.recent = type(contents.recent)()
        for path in contents.directory.glob("*.segment"):
            path.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


_NUMBERS = _numbers()


def message_id(seed: str) -> MessageId:
    """The same for the same seed."""
    return MessageId(str(UUID(bytes=hashlib.sha256(seed.encode()).digest()[:16], version=4)))
