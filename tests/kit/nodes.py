"""Whole service stacks of several nodes in one process and in virtual time, without sockets.

Real services over real queue databases (inline, so without threads); a `FakeLink` drives the real `PeerRequestService` of the other
node, over a `Net` in which servers can be killed, wiped, paused and cut off; a `FakeDeliverer` is the next hop. Nothing
sleeps on real time: `in_virtual_time` runs a test on a loop whose clock jumps.
"""

import asyncio
import functools
import hashlib
import itertools
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from uuid import UUID

import async_solipsism

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Content, Envelope, Recipient
from shadowrelay.model.ownership import Claim, Role, StatusAnswer, StatusQuestion
from shadowrelay.model.peers import Alive, CopyOffer, DiscardReply, Incarnation, PeerIdentity
from shadowrelay.model.queue import NextHopServer, StoredMessage
from shadowrelay.model.replies import STORE_UNAVAILABLE, LeaseTooShort, LedgerUnavailable, PeerSaid, PeerUnavailable, Reply, WireError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Settings
from shadowrelay.model.tracking import EventId, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.pipeline.assembly import Outside, Services
from shadowrelay.pipeline.context import Tasks
from shadowrelay.ports import DeliveryJob, DeliveryReport, HoldAnswer, PeerLink
from shadowrelay.protocol.xqdiscard import parse_superseded
from shadowrelay.protocol.xshadow import format_hello, parse_hello
from shadowrelay.store import Ledger, peer_promises, reading
from shadowrelay.store.commit import Promise
from tests.kit.clock import until
from tests.kit.fake_machine import FakeMachine
from tests.kit.ledger import a_content, forget_recent
from tests.kit.quick import Quick

BASE = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
EAST, WEST, NORTH, SOUTH = (ServerName(f"mx1.{site}.example") for site in ("east", "west", "north", "south"))
SITES = {EAST: "east", WEST: "west", NORTH: "north", SOUTH: "south"}
FIVE_SITES = tuple(ServerName(f"hub.{site}.example") for site in ("chicago", "new-york", "london", "dublin", "atlanta", "second.new-york"))
SITES |= {server: server.split(".")[-2] for server in FIVE_SITES}  # of seed-003, and a second server in New York
LATENCY_SECONDS = 0.002
HANGS_SECONDS = 10_000.0
CONTROL_SECONDS = 2.0
SPAN, HEARTBEAT, POLL = 60.0, 5.0, 1.0
OK, BUSY, NO_SUCH_USER = Reply(250, "2.0.0", "OK"), Reply(451, "4.3.2", "not now"), Reply(550, "5.1.1", "no such user")


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
    """A tracking log that only remembers."""

    def __init__(self) -> None:
        self.events: list[TrackingEvent] = []
        self.synced_count = 0

    def write(self, event: TrackingEvent) -> None:
        self.events.append(event)

    async def sync(self) -> None:
        self.synced_count = len(self.events)

    def rows(self, event_id: EventId) -> list[TrackingEvent]:
        return [event for event in self.events if event.event is event_id]


PROMISES = {"accepted", "verdict", "transition", "attempt", "queued"}
Step = Callable[[], Awaitable[None]]


async def no_step() -> None:
    return


class LedgerTap:
    """A ledger some of whose promises fail, or wait: `fail("verdict", 3)` makes the next three raise LedgerUnavailable, and `gates["due"]`
    is waited for before each `due`, `gates["due, read"]` after it; `step` before and after each of PROMISES. `instead["hold"]` is called
    for it. All by the names of promises, questions and methods."""

    def __init__(self, ledger: Ledger, step: Step = no_step) -> None:
        self.real, self._step = ledger, step
        self._failures: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()  # calls
        self.errors: dict[str, Exception] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.instead: dict[str, Callable[..., Awaitable[Any]]] = {}
        self.disk_hangs: asyncio.Event | None = None  # all writes wait for it
        self.disk_fails = False  # all writes fail

    def fail(self, name: str, times: int, error: Exception | None = None) -> None:
        self._failures[name] = times
        self.errors[name] = error or LedgerUnavailable(STORE_UNAVAILABLE, f"{name} fails in this test")

    def commit(self, promise: Promise[..., Any], *arguments: Any, **named: Any) -> Any:
        call = self.instead.get(promise.name, partial(self.real.commit, promise))
        if self.disk_fails or self.disk_hangs is not None:
            self.counts[promise.name] += 1
            return asyncio.ensure_future(self._on_a_bad_disk(partial(call, *arguments, **named)))
        tapped = self._tapped(promise.name, call)(*arguments, **named)
        # an acceptance begins with the call, and is waited for later
        return asyncio.ensure_future(tapped) if promise.name == "accepted" else tapped

    def read(self, question: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        name = question.__name__
        return self._tapped(name, self.instead.get(name, partial(self.real.read, question)))(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        return self._tapped(name, self.instead.get(name, found)) if callable(found) else found

    def _tapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        self.counts[name] += 1
        is_stepped = self._step is not no_step and name in PROMISES
        if name not in self._failures and name not in self.gates and f"{name}, read" not in self.gates and not is_stepped:
            return call

        async def tapped(*arguments: Any, **named: Any) -> Any:
            if is_stepped:
                await self._step()
            if name in self.gates:
                await self.gates[name].wait()
            if self._failures[name] > 0:
                self._failures[name] -= 1
                raise self.errors[name]
            result = await call(*arguments, **named)
            if (gate := self.gates.get(f"{name}, read")) is not None:
                self.counts[f"{name}, read"] += 1
                await gate.wait()
            if is_stepped:
                await self._step()
            return result

        return tapped

    async def _on_a_bad_disk(self, write: Callable[[], Awaitable[Any]]) -> Any:
        if self.disk_fails:
            raise LedgerUnavailable(STORE_UNAVAILABLE, "the disk is read-only in this test")
        assert self.disk_hangs is not None
        await self.disk_hangs.wait()
        return await write()

    def heal_disk(self) -> None:
        """Writes are done again, also those that waited."""
        self.disk_fails = False
        if self.disk_hangs is not None:
            self.disk_hangs.set()
        self.disk_hangs = None


@dataclass
class Sink:
    """All next hops of all nodes. `answer(address)` is a Reply, or an error to raise for the whole attempt."""

    arrived: list[tuple[ServerName, str, bytes]] = field(default_factory=list)
    message_ids: list[MessageId] = field(default_factory=list)  # of each transaction that was taken
    answer: Callable[[str], Reply | Exception] = lambda address: OK
    before_dot: Callable[[ServerName], Awaitable[None]] | None = None
    after_dot: Callable[[ServerName], Awaitable[None]] | None = None
    hang: Callable[[str], asyncio.Event | None] = lambda address: None  # an event that the next hop waits for before it takes it
    attempts_count: int = 0
    hosts: list[tuple[HostPort, ...]] = field(default_factory=list)  # of each attempt

    def addresses(self) -> list[str]:
        return sorted(address for _, address, _ in self.arrived)

    def by(self, server: ServerName) -> list[str]:
        return sorted(address for who, address, _ in self.arrived if who == server)


class FakeDeliverer:
    """Port `Deliverer` of one node."""

    def __init__(self, server: ServerName, sink: Sink, step: Step = no_step) -> None:
        self._server, self._sink, self._step = server, sink, step

    def servers(self, key: str) -> tuple[NextHopServer, ...]:
        return ()

    async def deliver(self, job: DeliveryJob) -> DeliveryReport:
        sink = self._sink
        await self._step()
        sink.attempts_count += 1
        sink.hosts.append(job.destination.hosts)
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
        sink.message_ids.append(envelope.message_id)
        if sink.after_dot is not None:
            await sink.after_dot(self._server)
        await self._step()
        return DeliveryReport("sink.example [192.0.2.9]:25", replies)

    async def close(self) -> None:
        return None


class FakeLink:
    """Port `PeerLink`: one session to the other node, as long as both processes live and can reach each other."""

    def __init__(self, net: "Net", node: "VirtualNode", server: ServerName) -> None:
        self._net, self._node, self._server = net, node, server
        self._other: VirtualNode | None = None
        self._answered: float | None = None
        self._identity: PeerIdentity | None = None
        self._relays: set[asyncio.Timeout] = set()
        net.links.append(self)

    @property
    def server(self) -> ServerName:
        return self._server

    def hold_ready(self, *, is_wanted: bool) -> None:
        return

    def give_up(self, quiet_seconds: float) -> int:
        """Relays only."""
        for bound in self._relays:
            bound.reschedule(0.0)
        return len(self._relays)

    @property
    def identity(self) -> PeerIdentity | None:
        return self._identity

    async def _reach(self) -> "VirtualNode":
        await asyncio.sleep(LATENCY_SECONDS)
        if reason := self._node.context.why_silent():
            self._other = None
            raise PeerUnavailable(self._server, reason)
        other = self._net.reach(self._node.name, self._server)
        if self._node in self._net.hung or other in self._net.hung:
            await asyncio.sleep(HANGS_SECONDS)
        if other is None:
            self._other = None
            raise PeerUnavailable(self._server, "cannot be reached")
        return other

    async def _session(self) -> "VirtualNode":
        other = await self._reach()
        if other is self._other and not other.context.why_silent():  # a node that falls silent ends its sessions
            return other
        node = self._node
        for hello in (node.services.peer_requests.own_identity(self._server), other.services.peer_requests.own_identity(node.name)):
            try:
                parse_hello(format_hello(hello))  # whatever the settings are, the other side can read it
            except WireError as error:
                raise PeerUnavailable(self._server, str(error.reply)) from error
        if refusal := other.services.peer_requests.refusal(node.services.peer_requests.own_identity(self._server)):
            raise PeerUnavailable(self._server, str(refusal))
        if conflict := node.context.peers.conflict(node.context.me, other.services.peer_requests.own_identity(node.name)):
            raise PeerUnavailable(self._server, conflict)
        began_at = asyncio.get_running_loop().time()
        for here, there in ((other, node), (node, other)):
            identity, is_dialed = there.services.peer_requests.own_identity(here.name), here is node
            second = await here.services.peer_requests.second_server(identity, there.address, began_at, is_dialed=is_dialed)
            if second:
                raise PeerUnavailable(self._server, second if is_dialed else f"550 5.7.1 Refused: {second}")
        self._identity = await other.services.peer_requests.greeted(node.services.peer_requests.own_identity(self._server))
        if reason := node.services.rolled_back.check(self._identity):
            raise PeerUnavailable(self._server, reason)
        self._other, self._answered = other, None
        await node.services.peer_requests.greeted(self._identity)
        node.context.peers.offered(self._server, other.services.peer_requests.offers_hold())
        node.ledger.real.peers.note_forks_offered(self._server, self._server not in self._net.without_forks)
        await node.services.heartbeat.opened(self)
        return other

    async def _ask(self, ask: Callable[["VirtualNode", PeerIdentity], Awaitable[Any]]) -> Any:
        other = await self._session()
        node = self._node
        me = node.services.peer_requests.own_identity(self._server)
        other.services.peer_requests.heard(me.server, me.database)
        if self._answered is not None:
            other.services.peer_requests.proved(me.server, me.database, self._answered)
        try:
            answer = await ask(other, me)
        except LedgerUnavailable as error:
            raise PeerUnavailable(self._server, str(error.reply)) from error
        self._answered = other.clock.awake()
        position = other.services.peer_requests.position
        await self._reach()  # the reply may be lost
        if frozenset((node.name, self._server)) in self._net.deaf:
            self._other = None
            raise PeerUnavailable(self._server, "no reply")
        assert self._identity is not None
        node.context.peers.heard(self._server, self._identity.database)
        node.ledger.peers.note_told(self._server, self._identity.whole_incarnation, position)
        return answer

    async def _control(self, ask: Callable[["VirtualNode", PeerIdentity], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                return await self._ask(ask)
        except TimeoutError as error:
            self._other = None
            raise PeerUnavailable(self._server, f"no answer in {CONTROL_SECONDS:g} s") from error

    async def track(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
        """The receiver of the other node adds its own Received line."""

        async def take(other: "VirtualNode", me: PeerIdentity) -> Reply:
            sent = offer.content.path.read_bytes() if offer.content.path is not None else offer.content.data or b""
            data = f"Received: by {other.name}\r\n".encode() + sent
            content = a_content(data)
            if offer.content.path is not None:  # large: a file there, too
                path = other.ledger.real.spool_directory / f"{offer.envelope.message_id}.copy"
                path.write_bytes(data)
                content = Content(len(data), content.sha256, path=path)
            received = replace(offer, envelope=replace(offer.envelope, client_name=me.server, connector="default"), content=content)
            return await other.services.peer_requests.track(me, received, other.clock.awake())

        began, is_sent = self._node.clock.awake(), False
        bound = asyncio.timeout(deadline - began)
        try:
            other = await self._session()
            if not other.services.peer_requests.offers_track() or not other.settings.tracks:
                raise PeerUnavailable(self._server, "does not offer TRACK now", said=PeerSaid.NO_SESSION)
            is_sent = True
            async with bound:
                self._relays.add(bound)
                reply: Reply = await self._ask(take)
        except TimeoutError as error:
            raise PeerUnavailable(self._server, "it is lost", sent=is_sent) from error
        except PeerUnavailable as error:
            raise PeerUnavailable(self._server, error.reason, sent=is_sent, said=error.said) from error
        finally:
            self._relays.discard(bound)
        assert self._identity is not None
        if reply.is_positive:
            return HoldAnswer(None, began, self._identity.database)
        if reply.code == 554 and reply.enhanced == "5.5.0":
            return HoldAnswer(parse_superseded(reply.text), began, self._identity.database)
        raise PeerUnavailable(self._server, str(reply), said=PeerSaid.NO_COPY, reply=reply)

    async def hold(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
        began = self._node.clock.awake()
        sent = False
        try:
            async with asyncio.timeout(deadline - began if stall_seconds is None else stall_seconds):
                fault = self._net.hold_fault(self._node.name, self._server)
                if fault == "slow":
                    await asyncio.sleep(1000)
                other = await self._session()
                began = self._node.clock.awake()
                if not other.services.peer_requests.offers_hold():
                    raise PeerUnavailable(self._server, "does not offer HOLD now", said=PeerSaid.NO_SESSION)
                sent = True
                if fault == "not stored":
                    await asyncio.sleep(1000)
                received = other.received(offer)
                reply: Reply = await self._ask(lambda other, me: other.services.peer_requests.hold(me, received))
                if fault == "reply late":
                    await asyncio.sleep(1000)
        except TimeoutError as error:
            raise PeerUnavailable(self._server, "no answer in time", sent=sent) from error
        except PeerUnavailable as error:
            raise PeerUnavailable(self._server, error.reason, sent=sent, said=error.said) from error
        assert self._identity is not None
        if reply.is_positive:
            return HoldAnswer(None, began, self._identity.database)
        if reply.code == 554:
            return HoldAnswer(parse_superseded(reply.text), began, self._identity.database)
        raise PeerUnavailable(self._server, str(reply), said=PeerSaid.NO_COPY)

    async def greet(self) -> PeerIdentity:
        async def ask(other: "VirtualNode", me: PeerIdentity) -> None:
            return None

        await self._control(ask)
        assert self._identity is not None
        return self._identity

    async def alive(self, incarnation: Incarnation, *, is_dialed: bool) -> Alive:
        if is_dialed:
            return Alive.ENDED
        try:
            async with asyncio.timeout(CONTROL_SECONDS / 2):
                there = await self.greet()
        except TimeoutError:
            return Alive.SILENT
        except PeerUnavailable:
            return Alive.SILENT if self._server in self._net.nodes else Alive.ENDED
        return Alive.ANSWERS if there.whole_incarnation == incarnation else Alive.ENDED

    def end_others(self, incarnation: Incarnation) -> None:
        """Also the sessions that these have with this node."""
        if self._identity is not None and self._identity.whole_incarnation != incarnation:
            self._other = None
        for link in self._net.links:
            if (link._node.name, link._server) == (self._server, self._node.name) and link._own_incarnation != incarnation:
                link._other = None

    @property
    def _own_incarnation(self) -> Incarnation:
        return self._node.services.peer_requests.own_identity(self._server).whole_incarnation

    async def announce(self) -> None:
        self._other = None
        await self.greet()

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply:
        reply: DiscardReply = await self._control(lambda other, me: other.services.peer_requests.discards(me, maximum, acknowledged))
        return reply

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        answers: tuple[StatusAnswer, ...] = await self._control(lambda other, me: other.services.peer_requests.status(me, questions))
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
        self.machines: defaultdict[ServerName, FakeMachine] = defaultdict(FakeMachine)
        self.cut: set[frozenset[ServerName]] = set()
        self.hung: set[VirtualNode | None] = set()  # these processes answer nothing, and ask nothing
        self.links: list[FakeLink] = []
        self.again: dict[ServerName, Callable[[], Awaitable[VirtualNode]]] = {}  # how to start a node as it was
        self.deaf: set[frozenset[ServerName]] = set()  # between these, commands arrive, and replies do not
        self.hold_fault: Callable[[ServerName, ServerName], str] = lambda primary, shadow: ""
        self.link_to: Callable[[VirtualNode, ServerName], PeerLink] = lambda node, server: FakeLink(self, node, server)
        self.without_forks: set[ServerName] = set()  # nodes of an older version
        self.step: Step = no_step  # before and after each promise, and each delivery

    def reach(self, source: ServerName, target: ServerName) -> "VirtualNode | None":
        node = self.nodes.get(target)
        return node if node is not None and frozenset((source, target)) not in self.cut else None

    def isolate(self, server: ServerName) -> None:
        self.cut |= {frozenset((server, other)) for other in SITES if other != server}

    def part(self, *parts: Iterable[ServerName]) -> None:
        """Only the servers of one part reach each other."""
        groups = [frozenset(part) for part in parts]
        servers = frozenset().union(*groups)
        self.cut = {frozenset(pair) for pair in combinations(servers, 2) if not any(group.issuperset(pair) for group in groups)}

    def heal(self) -> None:
        self.cut.clear()

    async def start(
        self,
        name: ServerName,
        peers: Iterable[ServerName] | None = None,
        *,
        is_idle: bool = False,
        introduced: bool = False,
        **changes: Any,
    ) -> "VirtualNode":
        """Open its database where it was, and run, unless it `is_idle`."""
        names = [other for other in self.settings.get("names", (EAST, WEST)) if other != name] if peers is None else list(peers)
        node = VirtualNode(self, name, make_settings(name, names, self.directory, **{**self.settings.get("transport", {}), **changes}))
        if introduced:
            self.nodes[name] = node  # peers may dial it meanwhile
        await node.open(introduced=introduced)
        if not is_idle:
            node.services.start()
        self.nodes[name] = node
        return node

    async def kill(self, name: ServerName) -> None:
        """SIGKILL: what is not committed is gone."""
        node = self.nodes.pop(name)
        node.ledger.real.abandon()
        await node.tasks.close()
        await node.ledger.real._readers.close()  # left open: of a process that ends, the system closes all

    async def stop(self, name: ServerName) -> None:
        """Its tasks are over, and its ledger is closed."""
        node = self.nodes.pop(name)
        await node.tasks.close()
        await node.ledger.real.close()

    async def wipe(self, name: ServerName) -> None:
        """Its disk is destroyed, whether it runs or not."""
        if name in self.nodes:
            await self.kill(name)
        shutil.rmtree(self.directory / name)

    def back_up(self, name: ServerName) -> None:
        """A copy of a stopped node's directory."""
        shutil.copytree(self.directory / name, self.directory / f"{name}.backup")

    def put_back(self, name: ServerName) -> None:
        """The copy in place of what is there."""
        shutil.rmtree(self.directory / name)
        shutil.copytree(self.directory / f"{name}.backup", self.directory / name)

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
    """Short times; `send`, `routes`, `connector`, `more_connectors` and `boundary` (of the node itself) may be among the keywords."""
    boundary = transport.pop("boundary", "example")
    send = transport.pop("send", {})
    routes = transport.pop("routes", [{"recipients": ["*"], "next_hop": "sink.example:25"}])
    peer = transport.pop("peer", {})
    redundancy = transport.pop("redundancy", "before-acknowledgement")
    connector, more_connectors = transport.pop("connector", {}), transport.pop("more_connectors", ())
    links, sites = transport.pop("site_links", ()), transport.pop("sites", ())
    times = {
        "shadow_resubmit_time_span": timedelta(seconds=SPAN),
        "shadow_heartbeat_frequency": timedelta(seconds=HEARTBEAT),
        "shadow_timeout": timedelta(seconds=2),
        "discard_poll_interval": timedelta(seconds=POLL),
        "shadow_heartbeat_timeout_interval": timedelta(seconds=HEARTBEAT),
        "shadow_heartbeat_retry_count": 3,
    }
    return Settings.model_validate(
        {
            "server": {"name": name, "site": SITES[name], "boundary": boundary, "data_directory": directory / name},
            "transport": {**times, **transport},
            "receive_connectors": [
                {"name": "default", "listen": "127.0.0.1:2525", "redundancy": redundancy, **connector},
                *more_connectors,
            ],
            "peers": [
                {"name": other, "site": SITES[other], "boundary": "example", "address": f"{other}:2525", **peer.get(other, {})}
                for other in peers
            ],
            "routes": routes,
            "site_links": links,
            "sites": sites,
            "send": {"queue_glitch_retry_interval": timedelta(seconds=5), "message_retry_interval": timedelta(seconds=5), **send},
        }
    )


class VirtualNode:
    """One process."""

    def __init__(self, net: Net, name: ServerName, settings: Settings) -> None:
        self.net, self.name, self.settings = net, name, settings
        self.address = f"{name}:2525"  # where it speaks from
        self.clock = VirtualClock()
        self.tasks = Tasks()
        self.log = Recorder()

    async def open(self, *, introduced: bool = False) -> None:
        """`introduced`: it greets its peers first, as a `Node` does, and starts again if its database is an older copy."""
        settings = self.settings
        ledger = await Ledger.open(
            settings.server.data_directory,
            server=self.name,
            now=self.clock.now,
            safety_net_hold_time=settings.transport.safety_net_hold_time,
            message_expiration_timeout=settings.transport.message_expiration_timeout,
            inline=Quick(),
        )
        self.ledger = LedgerTap(ledger, self.net.step)
        outside = Outside(
            clock=self.clock,
            ledger=self.ledger,
            link_to=lambda peer, _: self.net.link_to(self, peer.name),
            deliverer=FakeDeliverer(self.name, self.net.sink, self.net.step),
            tracking=self.log,
            chance=random.Random(7),
            tasks=self.tasks,
            machine=self.net.machines[self.name],
        )
        self.services = Services(settings, outside)
        self.context = self.services.context
        self.context.peers.load(ledger.peers.listed())
        self.context.peers.on_other_process.append(lambda server, process: self.context.links[server].end_others(process))
        await self.services.pressure.look()
        if introduced:
            await self.services.rolled_back.introduce()
            if self.services.rolled_back.found.is_set():
                await self.tasks.close()
                await ledger.commit(peer_promises.database_renamed)
                await ledger.close()
                self.tasks = Tasks()
                await self.open()

    def received(self, offer: CopyOffer) -> CopyOffer:
        """As the receiver has it: large content in a file of its own."""
        content = offer.content
        if content.path is None:
            return offer
        path = self.ledger.real.spool_directory / f"{offer.envelope.message_id}.copy"
        shutil.copy(content.path, path)
        return replace(offer, content=replace(content, path=path))

    # what tests do and ask
    async def accept(
        self, *recipients: str, data: bytes = b"Subject: hello\r\n\r\nhello\r\n", sender: str = "a@x.example", **fields: Any
    ) -> Reply:
        """A client's message, with these fields of its envelope; its reply. `last` is its id."""
        self.last = message_id(f"{self.name} {next(_NUMBERS)}")
        addresses = recipients or ("user1@corp.example",)
        envelope = Envelope(self.last, sender, tuple(Recipient(address) for address in addresses), self.clock.now(), **fields)
        return await self.services.accept.accept(envelope, a_content(data))

    async def message(self, wanted: MessageId) -> StoredMessage | None:
        return await self.ledger.real.read(reading.load, wanted)

    async def claim(self, wanted: MessageId) -> Claim | None:
        stored = await self.message(wanted)
        return None if stored is None else stored.claim

    async def role(self, wanted: MessageId) -> Role | None:
        claim = await self.claim(wanted)
        return None if claim is None else claim.role

    async def idle(self) -> None:
        """No task of it runs. Only where its loops do not run either."""
        await until(lambda: not len(self.tasks))

    def in_role(self, wanted: MessageId, *roles: Role | None) -> Callable[[], Awaitable[bool]]:
        """For `until`: it has one of these roles for the message."""

        async def is_so() -> bool:
            return await self.role(wanted) in roles

        return is_so

    def has_done(self, wanted: MessageId, *ordinals: int) -> Callable[[], Awaitable[bool]]:
        """For `until`: it knows of these recipients of the message, and of no others, that they are done."""

        async def is_so() -> bool:
            claim = await self.claim(wanted)
            return claim is not None and claim.done == set(ordinals)

        return is_so

    def corrupt(self) -> None:
        """Turn every byte of its contents over, and forget what is in memory."""
        forget_recent(self.ledger.real)
        for path in (self.settings.server.data_directory / "content").glob("*.segment"):
            path.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))


_NUMBERS = itertools.count(1)


def message_id(seed: str) -> MessageId:
    """The same for the same seed."""
    return MessageId(str(UUID(bytes=hashlib.sha256(seed.encode()).digest()[:16], version=4)))
