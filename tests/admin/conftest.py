"""A node to look at: of each service, what the API asks of it, from values."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import httpx
import pytest

from shadowrelay.admin.api import make_application
from shadowrelay.admin.metrics import PrometheusMetrics
from shadowrelay.admin.people import People
from shadowrelay.model.back_pressure_settings import BackPressure
from shadowrelay.model.client_minute import ClientView, Minute
from shadowrelay.model.counts import Counts
from shadowrelay.model.drain_progress import DrainState, DrainStep, DrainView, Obstacle, Waiting
from shadowrelay.model.ids import NO_DATABASE, BoundaryName, DatabaseId, MessageId, ServerName, SiteName
from shadowrelay.model.message import Content, ContentPlace, Envelope, Recipient
from shadowrelay.model.ownership import Choice, Claim, Copy, CopyNumber, Role
from shadowrelay.model.queue import (
    FailureKind,
    ForkRetry,
    InForce,
    LoneMessages,
    MessagePage,
    NodeView,
    Origin,
    PeerView,
    QueueKind,
    QueueRow,
    StoredMessage,
    Untold,
)
from shadowrelay.model.readiness import NewMail, NextMessage
from shadowrelay.model.replies import STORE_UNAVAILABLE, LedgerUnavailable, RequestRefused
from shadowrelay.model.resubmission import RequestState, ResubmitRequest
from shadowrelay.model.survival import Survival, TakenOver, WhatIf
from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.rules.back_pressure import NO_PRESSURE, Pressure
from shadowrelay.rules.flight import NO_FLIGHT, Flight
from shadowrelay.store import queues as queue_pages
from shadowrelay.store import reading

NOW = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
TOKEN = "a-token-for-tests-only"
READ_ONLY_TOKEN = "another-token-for-tests"
DATABASE = DatabaseId("6b2f7c1e-58f8-4a9e-9e5c-0f5c6a9b7d10")
MX2 = ServerName("mx2.west.example")
ENVELOPE = Envelope(
    MessageId("0c8aa5f0-3f9d-4a0b-9d69-0d9f3a1d2b11"),
    "a@corp.example",
    (Recipient("b@x.example", notify="FAILURE"), Recipient("c@x.example")),
    NOW - timedelta(minutes=2),
    client_address="192.0.2.7",
    client_name="client.example",
    connector="inbound",
    internet_message_id="<1@corp.example>",
    subject="Hello",
)
RETRY = ForkRetry("x.example", frozenset({2}), 3, FailureKind.MESSAGE, NOW - timedelta(minutes=1), NOW, "451 4.3.0 Try again later")
CLAIM = Claim(Role.PRIMARY, CopyNumber(1, 2, DATABASE), 2, frozenset({1}), copies=(Copy(MX2, DATABASE, Choice.CHOSEN),))
STORED = StoredMessage(7, ENVELOPE, CLAIM, Origin.CLIENT, ContentPlace(1, 0, 4096, bytes(32)), NOW, (RETRY,))


ROW = TrackingEvent(
    NOW, EventId.SEND, EventSource.SMTP, 7, "", client_hostname="mx1", server_ip="192.0.2.5", server_hostname="store.x.example",
    recipients=("b@x.example",), recipient_statuses=("250 2.0.0 OK",), connector_id="x.example", custom_data=(("AttemptElapsed", "0.1"),),
)  # fmt: skip


DRAINING = DrainView(
    DrainState.DRAINING, NOW, DrainStep.PEERS, 0, 1, 2, 3, 0, {MX2: 40}, (Waiting(Obstacle.TAKEOVER_AWAY, MX2, 3),)
)  # fmt: skip
LONE = LoneMessages(3, 3, 1, 1)
CONTENT = Content(9, b"", b"X: y\r\n\r\nz")


def numbered(number: int) -> StoredMessage:
    """One of many messages."""
    envelope = replace(ENVELOPE, message_id=MessageId(f"00000000-0000-4000-8000-{number:012d}"))
    return replace(STORED, internal_id=number, envelope=envelope, retries=())


@dataclass
class FakeNode:
    """The services of a node, and what they know."""

    stored: list[StoredMessage] = field(default_factory=lambda: [STORED])
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    pressed: Pressure = NO_PRESSURE
    forgotten: list[str] = field(default_factory=list)
    is_broken: bool = False
    refusal: str = ""
    commands: list[tuple[str, str]] = field(default_factory=list)
    content_of_it: Content = CONTENT
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    requests: list[ResubmitRequest] = field(default_factory=list)
    more_queues: tuple[QueueRow, ...] = ()
    waits_for: tuple[MessageId, ...] = ()
    flights: dict[MessageId, Flight] = field(default_factory=lambda: defaultdict(lambda: NO_FLIGHT))
    untold_ones: Untold | None = None
    row: TrackingEvent = ROW
    rows: Sequence[TrackingEvent] = ()
    knows_events: bool = True
    drained: DrainView = DRAINING
    lone: LoneMessages = LONE

    def __post_init__(self):
        self.queues = SimpleNamespace(
            rows=self.list_queues, history=self.history, retry=self.retry_queue, suspend=self.suspend_queue, resume=self.resume_queue
        )
        self.messages = SimpleNamespace(
            suspend=self.suspend, resume=self.resume, resubmit=self.resubmit, release=self.release, remove=self.remove,
            content=self.content, events=self.events, queued_as=self.queued_as,
        )  # fmt: skip
        self.peers = SimpleNamespace(views=lambda: self.list_peers(), forget=self.forget)
        self.node = SimpleNamespace(view=self.tell, untold=self.untold, lone_messages=self.lone_messages, clients=self.clients)
        self.drain = SimpleNamespace(begin=self.begin, end=self.end, redirect=self.redirect, view=self.drain_view)
        self.safety_net = SimpleNamespace(
            request=self.request_resubmission,
            delivered_count=self.count_delivered,
            requests=self.resubmit_requests,
            change=self.change_request,
            remove=self.remove_request,
        )
        self.readiness = SimpleNamespace(is_ready=self.is_ready)
        self.what_if = SimpleNamespace(ask=self.if_lost)

    @property
    def context(self):
        transport = SimpleNamespace(message_expiration_timeout=timedelta(days=2))
        settings = SimpleNamespace(transport=transport, back_pressure=BackPressure())
        return SimpleNamespace(ledger=self, flights=self.flights, settings=settings, pressure=self.pressed)

    async def read(self, question, *arguments, **choices):
        """As the ledger is asked."""
        answers = {
            queue_pages.messages: self.list_messages,
            queue_pages.filtered: self.filtered_messages,
            queue_pages.searched: self.searched_messages,
            reading.load: self.message,
            reading.awaited: self.awaited,
        }
        return await answers[question](*arguments, **choices)

    def _check(self) -> None:
        if self.is_broken:
            raise LedgerUnavailable(STORE_UNAVAILABLE, "disk I/O error: /secret/path")

    async def list_queues(self):
        self._check()
        return (
            QueueRow("mx1\\Submission", QueueKind.SUBMISSION, "", 0, None),
            QueueRow("mx1\\x.example", QueueKind.DELIVERY, "x.example", 3, NOW - timedelta(seconds=90), "451 4.3.0 later", NOW),
            QueueRow("mx1\\y.example", QueueKind.DELIVERY, "y.example", 2, NOW - timedelta(seconds=30)),
            *self.more_queues,
        )

    def history(self, row):
        return (1, 2, row.count) if row.count else ()

    async def retry_queue(self, queue):
        self._check()
        if queue == "Poison":
            raise RequestRefused("nothing is tried in mx1\\Poison")
        return next((row for row in await self.list_queues() if queue == row.identity), None)

    async def list_messages(self, queue, limit, after=0, *, newest=False):
        self._check()
        self.asked.append((queue, limit, after))
        found = [stored for stored in self.stored if stored.internal_id > after][:limit]
        return tuple(reversed(found) if newest else found)

    async def filtered_messages(self, queue, expression, lifetime, limit, after=0, *, newest=False):
        self._check()
        self.asked.append((queue, expression, limit, after))
        return MessagePage(tuple(self.stored[:1]), 77)

    async def searched_messages(self, expression, lifetime, limit, after=0):
        self._check()
        self.asked.append(("search", expression, limit, after))
        return MessagePage(tuple(self.stored[:1]), 77 if after == 0 else None)

    async def message(self, message_id):
        self._check()
        return next((stored for stored in self.stored if stored.envelope.message_id == message_id), None)

    async def awaited(self, message_id):
        return self.waits_for

    async def untold(self):
        return self.untold_ones

    async def events(self, message_id):
        if self.refusal:
            raise RequestRefused(self.refusal)
        return [replace(row, network_message_id=message_id) for row in self.rows or [self.row]] if self.knows_events else []

    async def queued_as(self, queue_id):
        if self.refusal:
            raise RequestRefused(self.refusal)
        return [self.row.network_message_id] if queue_id == "4bXyz12" else []

    async def content(self, message_id, *, with_envelope=False):
        if self.refusal:
            raise RequestRefused(self.refusal)
        envelope = b"X-Sender: <>\r\n" if with_envelope else b""
        return (envelope + b"X-First: 1\r\n", self.content_of_it) if await self.message(message_id) else None

    async def suspend_queue(self, queue, by, *, is_hold=False):
        self.commands.append(("hold queue" if is_hold else "suspend queue", f"{queue} by {by}"))
        return await self.retry_queue(queue)

    async def resume_queue(self, queue, by):
        self.commands.append(("resume queue", f"{queue} by {by}"))
        return await self.retry_queue(queue)

    async def suspend(self, message_id, by):
        return await self._command(f"suspend by {by}", message_id)

    async def resume(self, message_id, by):
        return await self._command(f"resume by {by}", message_id)

    async def resubmit(self, message_id, by):
        return await self._command(f"resubmit by {by}", message_id)

    async def release(self, message_id):
        return await self._command("release", message_id)

    async def remove(self, message_id, *, with_dsn):
        return await self._command("remove with notice" if with_dsn else "remove", message_id)

    async def _command(self, verb, message_id):
        if self.refusal:
            raise RequestRefused(self.refusal)
        self.commands.append((verb, message_id))
        return await self.message(message_id) is not None

    async def request_resubmission(self, criteria):
        if self.refusal:
            raise RequestRefused(self.refusal)
        made = ResubmitRequest(len(self.requests) + 1, criteria, RequestState.PENDING, NOW, False, criteria.from_at, 0)
        self.requests.append(made)
        return made

    async def count_delivered(self, criteria):
        if self.refusal:
            raise RequestRefused(self.refusal)
        return 12

    async def resubmit_requests(self):
        return tuple(self.requests)

    async def change_request(self, number, *, is_enabled):
        if self.refusal:
            raise RequestRefused(self.refusal)
        self.commands.append(("enable" if is_enabled else "disable", number))
        return next((request for request in self.requests if request.number == number), None)

    async def remove_request(self, number):
        self.commands.append(("remove", number))
        return any(request.number == number for request in self.requests)

    async def list_peers(self):
        return (
            PeerView(
                MX2, SiteName("west"), BoundaryName("example"), f"{MX2}:2525", DATABASE, NOW - timedelta(seconds=5), True,
                timedelta(hours=1), "closed", 4, 2,
            ),
            PeerView(
                ServerName("mx3"), SiteName("west"), BoundaryName("example"), "mx3:2525", DatabaseId(""), None, False,
                None, "open", 0, 0,
            ),
        )  # fmt: skip

    async def if_lost(self, servers, ids_max):
        own = ServerName("mx1") in servers
        ids = (ENVELOPE.message_id,)[: ids_max * own]
        survival = Survival(3, 1, 1) if own else None
        after = None if own else NextMessage(NewMail.FEWER, 0, 1, "new mail is accepted without a copy: mx2: it would be lost")
        taken = () if own else (TakenOver(MX2, 4, 90.0),)
        return WhatIf(tuple(sorted(servers)), NOW, survival, {MX2: 2} if own else {}, taken, after, NOW, ids)

    async def clients(self, limit):
        minute = Minute(0.0, connections=3, messages=2, recipients=2, refused_recipients=7, octets=900, limited_count=4)
        rows = [ClientView("in", "192.0.2.7", 1, minute, 41.5), ClientView("in", "2001:db8::/64", 2, None, 0.0)]
        return rows[:limit]

    async def forget(self, server, *, is_forced=False):
        self.forgotten.append(server)
        return server == MX2

    async def tell(self):
        return NodeView(
            ServerName("mx1"), SiteName("east"), BoundaryName("example"), "1.2.3", NOW - timedelta(hours=1), "running",
            DATABASE, 4, 1000, 1234, NO_DATABASE,
            InForce({"transport": {"shadow_timeout": "5s"}}, "/etc/shadowrelay/node.toml", "abcd", NOW, ("peers",)),
            NextMessage(NewMail.FEWER, 0, 1, "new mail is accepted without a copy: mx2: no answer"), untold=self.untold_ones,
        )  # fmt: skip

    async def begin(self):
        if self.refusal:
            raise RequestRefused(self.refusal)
        self.commands.append(("drain", ""))
        self.drained = DRAINING

    async def redirect(self, targets):
        if self.refusal:
            raise RequestRefused(self.refusal)
        self.commands.append(("redirect", ",".join(targets)))
        self.drained = replace(DRAINING, state=DrainState.REDIRECTING, targets=tuple(targets), moved_count=5, left_count=1)

    async def end(self):
        if self.refusal:
            raise RequestRefused(self.refusal)
        self.drained = replace(DRAINING, state=DrainState.ACTIVE, step=DrainStep.NONE, waiting=())
        return True

    async def drain_view(self):
        self._check()
        return self.drained

    async def lone_messages(self):
        self._check()
        return self.lone

    def is_ready(self):
        return not self.reasons, (*self.reasons, *self.warnings)


@pytest.fixture
def node():
    """The node behind the API."""
    return FakeNode()


@pytest.fixture
def counts():
    """What the services of the node count."""
    return Counts()


@pytest.fixture
def metrics(counts):
    """Of a node whose clock stands still."""
    return PrometheusMetrics("1.2.3", ServerName("mx1"), counts, now=lambda: NOW)


class Present:
    """Whatever the present test has."""

    def __getattr__(self, name):
        return getattr(self.its, name)


@pytest.fixture(scope="session")
def _shared():
    """One API for all tests, because its making takes longer than most of them; the node and the counters that it shows."""
    node, metrics = Present(), Present()
    api = make_application(node, metrics, People(TOKEN, READ_ONLY_TOKEN), "1.2.3", names=("node",), now=lambda: NOW)
    return api, node, metrics


@pytest.fixture
def application(_shared, node, metrics):
    """The API. What a test adds to it goes with the test."""
    api, shown, counted = _shared
    shown.its, counted.its = node, metrics
    routes = list(api.router.routes)
    yield api
    api.router.routes[:] = routes


class InProcess(httpx.BaseTransport):
    """Asks an ASGI application from synchronous code."""

    def __init__(self, application):
        self._transport = httpx.ASGITransport(application)

    def handle_request(self, request):
        async def ask():
            asked = httpx.Request(request.method, request.url, headers=request.headers)
            response = await self._transport.handle_async_request(asked)
            return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())

        return asyncio.run(ask())
