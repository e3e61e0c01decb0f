"""Journal reports and DSNs: made once, with the first outcome; safe before the original's copy is let go; and delivered once, whichever
node dies between which commits. docs/design.md 6.13 and I3."""

import asyncio
import hashlib
import itertools
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX
from shadowrelay.model.ownership import CopyNumber, Role, StatusQuestion, StatusState
from shadowrelay.model.queue import Origin
from shadowrelay.model.replies import Reply
from shadowrelay.model.resubmission import Criteria
from shadowrelay.model.tracking import EventId, EventSource
from shadowrelay.rules.journal import report_id
from shadowrelay.store import promises, queues
from shadowrelay.store.commit import Promise
from tests.kit.clock import until
from tests.kit.nodes import EAST, HEARTBEAT, NORTH, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes

JOURNAL, BOARD, SENDER = "journal@archive.example", "board@archive.example", "a@x.example"
NO_USER, BUSY = Reply(550, "5.1.1", "no such user"), Reply(451, "4.7.1", "busy")
EVERYTHING = [{"recipients": ["*"], "next_hop": "sink.example:25", "journal_recipient": JOURNAL}]
BY_ROUTE = [
    {"recipients": ["*@corp.example"], "next_hop": "a.example:25", "inside_boundary": True, "journal_recipient": JOURNAL},
    {"recipients": ["*@partner.example"], "next_hop": "b.example:25", "journal_recipient": JOURNAL},
    {"recipients": ["*@board.example"], "next_hop": "c.example:25", "journal_recipient": BOARD},
    {"recipients": ["*"], "next_hop": "sink.example:25"},
]

QUICK = {"shadow_resubmit_time_span": timedelta(seconds=8), "shadow_heartbeat_frequency": timedelta(seconds=2)}


def reports(net: Net, to: str = JOURNAL) -> list[bytes]:
    return [data for _, address, data in net.sink.arrived if address == to]


def journaled(node: VirtualNode) -> list[Any]:
    return [row for row in node.log.rows(EventId.RECEIVE) if row.source is EventSource.AGENT]


async def is_over(net: Net) -> bool:
    """No node that runs has anything left to do."""
    return not sum([sum((await node.ledger.real.read(queues.depths)).values()) for node in net.nodes.values()])


@in_virtual_time
async def test_a_delivered_message_is_reported_once_and_the_report_is_not(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=EVERYTHING) as net:
        east = net.nodes[EAST]
        data = b"Subject: hello\r\n\r\nhello\r\n"
        await east.accept("one@corp.example", "two@corp.example", data=data, subject="hello", internet_message_id="<1@x.example>")
        await until(lambda: is_over(net))

        assert [JOURNAL, "one@corp.example", "two@corp.example"] == net.sink.addresses()
        (report,) = reports(net)
        assert data in report
        assert b"Sender: a@x.example\r\nSubject: hello\r\nMessage-ID: <1@x.example>\r\nRecipient: one@corp.example\r\n" in report
        (row,) = journaled(east)
        expected = (report_id(east.last, JOURNAL), "JournalReport", "<1@x.example>", (JOURNAL,), "")
        assert expected == (row.network_message_id, row.source_context, row.reference, row.recipients, row.sender)
        made = await east.message(MessageId(row.network_message_id))
        assert made is not None
        assert Origin.JOURNAL is made.origin


@in_virtual_time
async def test_there_is_one_report_for_each_journal_recipient_of_a_message(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE) as net:
        east = net.nodes[EAST]
        await east.accept("u@corp.example", "v@partner.example", "w@board.example", "x@elsewhere.example")
        await until(lambda: is_over(net))
        await east.accept("x@elsewhere.example")
        await until(lambda: is_over(net))

        assert (1, 1) == (len(reports(net)), len(reports(net, BOARD)))
        assert all(b"Recipient: x@elsewhere.example" in report for report in (*reports(net), *reports(net, BOARD)))
        assert 2 == len(journaled(east))


@in_virtual_time
async def test_recipients_that_end_one_after_the_other_make_one_report(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE) as net:
        east = net.nodes[EAST]
        addresses = [f"u{number}@corp.example" for number in range(250)]
        net.sink.answer = lambda address: BUSY if address in ("u249@corp.example", "late@partner.example") else OK
        await east.accept(*addresses, "late@partner.example")
        await until(lambda: len(net.sink.arrived) >= 250)
        await net.kill(EAST)
        east = await net.start(EAST)
        net.sink.answer = lambda address: OK
        await until(lambda: is_over(net))

        assert sorted([*addresses, "late@partner.example", JOURNAL]) == net.sink.addresses()


@pytest.mark.parametrize("fate", ["refused", "expired"])
@in_virtual_time
async def test_what_is_not_delivered_is_reported_too(tmp_path: Path, fate: str) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE, message_expiration_timeout=timedelta(minutes=1)) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: OK if address in (JOURNAL, SENDER) else NO_USER if fate == "refused" else BUSY
        await east.accept("u@corp.example")
        await until(east.in_role(east.last, Role.DELIVERED))
        await until(lambda: is_over(net))

        assert [SENDER, JOURNAL] == net.sink.addresses()


@pytest.mark.parametrize(
    ("sender", "header", "is_reported"),
    [("", b"X-MS-Journal-Report:\r\n", False), (SENDER, b"X-MS-Journal-Report:\r\n", True), ("", b"", True)],
)
@in_virtual_time
async def test_a_report_from_elsewhere_is_delivered_without_a_report(tmp_path: Path, sender: str, header: bytes, is_reported: bool) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=EVERYTHING) as net:
        await net.nodes[EAST].accept("u@corp.example", data=header + b"Subject: x\r\n\r\nx\r\n", sender=sender)
        await until(lambda: is_over(net))

        assert is_reported is bool(reports(net))
        assert "u@corp.example" in net.sink.addresses()


@in_virtual_time
async def test_what_is_resubmitted_from_safety_net_is_not_reported_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE) as net:
        east = net.nodes[EAST]
        await east.accept("u@corp.example")
        await until(lambda: is_over(net))
        now = east.clock.now()
        await asyncio.sleep(1)
        await east.services.safety_net.request(Criteria(now - timedelta(hours=1), now))
        await until(lambda: net.sink.addresses().count("u@corp.example") == 2)
        await until(lambda: is_over(net))

        assert 1 == len(reports(net))


@pytest.mark.parametrize("size", [CONTENT_IN_MEMORY_BYTES_MAX, 3 * CONTENT_IN_MEMORY_BYTES_MAX])
@in_virtual_time
async def test_a_large_message_is_attached_whole_and_leaves_no_file_behind(tmp_path: Path, size: int) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE) as net:
        east = net.nodes[EAST]
        data = b"Subject: x\r\n\r\n" + b"x" * size + b"\r\n"
        east.ledger.fail("attempt", 2)
        await east.accept("u@corp.example", "w@board.example", data=data)
        await until(lambda: is_over(net))

        for to in (JOURNAL, BOARD):
            (report,) = reports(net, to)
            assert hashlib.sha256(data).digest() == hashlib.sha256(report[report.index(b"Subject: x\r\n\r\n") :][: len(data)]).digest()
        assert [] == list(east.ledger.real.spool_directory.iterdir())
        assert 1 == net.sink.addresses().count("u@corp.example")


@in_virtual_time
async def test_a_delivery_whose_report_cannot_be_written_now_waits_for_it_and_is_not_repeated(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE) as net:
        east = net.nodes[EAST]
        east.ledger.fail("wrapped", 5)
        await east.accept("u@corp.example")
        await asyncio.sleep(3)
        role, count = await east.role(east.last), len(net.sink.arrived)
        await until(lambda: is_over(net))

        assert (Role.PRIMARY, 1) == (role, count)
        assert [JOURNAL, "u@corp.example"] == net.sink.addresses()


@in_virtual_time
async def test_a_refusal_whose_report_cannot_be_written_now_is_not_recorded(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: NO_USER if address == "u@corp.example" else OK
        east.ledger.fail("wrapped", 1)
        await east.accept("u@corp.example")
        await asyncio.sleep(1)
        role = await east.role(east.last)
        await until(lambda: is_over(net))

        assert Role.PRIMARY is role
        assert [SENDER, JOURNAL] == net.sink.addresses()


@in_virtual_time
async def test_a_reload_begins_and_ends_journaling(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        plain = east.settings.routes
        for routes in (plain, tuple(route.model_copy(update={"journal_recipient": JOURNAL}) for route in plain), plain):
            east.context.settings = east.settings.model_copy(update={"routes": routes})
            east.services.deliver.reload()
            await east.accept("u@corp.example")
            await until(lambda: is_over(net))

        assert [JOURNAL, *["u@corp.example"] * 3] == net.sink.addresses()


# I3


def no_copies_of_generated(net: Net, original: Callable[[], MessageId]) -> None:
    """Peers take the original, and nothing else that east offers."""
    for node in net.nodes.values():
        real = node.services.peer_requests.hold

        async def hold(peer: Any, offer: Any, real: Any = real) -> Reply:
            return await real(peer, offer) if offer.envelope.message_id == original() else BUSY

        node.services.peer_requests.hold = hold  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["report", "dsn"])
@in_virtual_time
async def test_the_originals_copy_is_kept_until_what_it_caused_has_one(tmp_path: Path, kind: str) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        answer = OK if kind == "report" else NO_USER
        recipient = "u@corp.example" if kind == "report" else "u@elsewhere.example"
        net.sink.answer = lambda address: answer if address == recipient else BUSY
        no_copies_of_generated(net, lambda: east.last)
        await east.accept(recipient)
        await until(east.in_role(east.last, Role.DELIVERED), 5)
        await asyncio.sleep(2 * HEARTBEAT)
        number = CopyNumber(1, 1, east.ledger.identity.database)
        (told,) = await east.services.peer_requests.status(
            west.services.peer_requests.own_identity(EAST), [StatusQuestion(east.last, number)]
        )
        held = await west.role(east.last)

        await net.wipe(EAST)
        net.sink.answer = lambda address: answer if address == recipient else OK
        await until(west.in_role(east.last, Role.DELIVERED), 4 * SPAN)
        await until(lambda: is_over(net))

        assert (Role.SHADOW, StatusState.PRIMARY, frozenset()) == (held, told.state, told.done)
        assert 1 == len(reports(net)) + net.sink.addresses().count(SENDER)


@pytest.mark.parametrize("kind", ["report", "dsn"])
@in_virtual_time
async def test_status_keeps_to_itself_what_failed_while_nobody_had_a_copy(tmp_path: Path, kind: str) -> None:
    """No server is to be told, but one may ask: it has a copy of which this node does not know any more."""
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY if address in (JOURNAL, SENDER) else OK if kind == "report" else NO_USER
        for node in (east, west):
            node.services.peer_requests.offers_hold = lambda: False  # type: ignore[method-assign]
        await east.accept("u@corp.example" if kind == "report" else "u@elsewhere.example")
        await until(east.in_role(east.last, Role.DELIVERED), 5)
        number = CopyNumber(1, 0, west.ledger.identity.database)
        me = west.services.peer_requests.own_identity(EAST)

        (waiting,) = await east.services.peer_requests.status(me, [StatusQuestion(east.last, number)])
        net.sink.answer = lambda address: OK
        await until(lambda: is_over(net))
        (told,) = await east.services.peer_requests.status(me, [StatusQuestion(east.last, number)])

        assert (StatusState.PRIMARY, frozenset()) == (waiting.state, waiting.done)
        assert (StatusState.DELIVERED, frozenset({1})) == (told.state, told.done)


# takeovers


@in_virtual_time
async def test_whoever_takes_over_the_rest_of_a_message_knows_that_it_was_reported(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=BY_ROUTE) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY if address == "late@corp.example" else OK
        await east.accept("u@corp.example", "late@corp.example")

        await until(west.has_done(east.last, 1))
        await net.wipe(EAST)
        net.sink.answer = lambda address: OK
        await until(west.in_role(east.last, Role.DELIVERED), 4 * SPAN)
        await until(lambda: is_over(net))

        assert [JOURNAL, "late@corp.example", "u@corp.example"] == net.sink.addresses()


@in_virtual_time
async def test_a_report_made_by_two_nodes_is_delivered_by_one(tmp_path: Path) -> None:
    """East has made it, and is cut off before anybody heard; west takes the message over and makes it again."""
    async with nodes(tmp_path, EAST, WEST, NORTH, routes=BY_ROUTE, **QUICK) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY if address == JOURNAL else OK

        async def cut_off(server: ServerName) -> None:
            net.isolate(EAST)
            net.sink.after_dot = None

        net.sink.after_dot = cut_off
        await east.accept("u@corp.example")
        other = net.nodes[WEST] if await net.nodes[WEST].role(east.last) is Role.SHADOW else net.nodes[NORTH]
        await until(other.in_role(east.last, Role.DELIVERED), 4 * SPAN)
        made = [await node.role(report_id(east.last, JOURNAL)) for node in (east, other)]
        net.heal()
        await asyncio.sleep(1)
        net.sink.answer = lambda address: OK
        await until(lambda: is_over(net))
        await asyncio.sleep(20)

        assert [Role.PRIMARY, Role.PRIMARY] == made
        assert 1 == len(reports(net))


@in_virtual_time
async def test_whoever_took_a_message_over_asks_everybody_before_a_report_that_the_lost_primary_may_have_made(tmp_path: Path) -> None:
    """The lost primary's report has its copy on a server that has nothing to do with the message itself."""
    async with nodes(tmp_path, EAST, WEST, NORTH, routes=BY_ROUTE, **QUICK) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept("u@corp.example")
        original = east.last
        holder, third = (WEST, NORTH) if Role.SHADOW is await net.nodes[WEST].role(original) else (NORTH, WEST)

        async def cut_off(server: ServerName) -> None:
            net.isolate(holder)
            net.sink.after_dot = None

        net.sink.after_dot = cut_off
        net.sink.answer = lambda address: BUSY if address == JOURNAL else OK
        report = report_id(original, JOURNAL)
        await until(net.nodes[third].in_role(report, Role.SHADOW), 60)
        await net.wipe(EAST)
        net.sink.answer = lambda address: OK if address == JOURNAL else BUSY

        net.cut = {frozenset((EAST, holder))}
        await net.start(EAST)
        await until(lambda: bool(reports(net)), 60)
        net.nodes[third].services.peer_requests.offers_hold = lambda: False  # the message's new copy goes to the other
        net.heal()
        await until(net.nodes[holder].in_role(original, Role.PRIMARY), 60)
        await asyncio.sleep(2)  # it has a new copy, and a lease on that
        net.sink.answer = lambda address: OK
        await until(net.nodes[holder].in_role(original, Role.DELIVERED), 60)
        await asyncio.sleep(20)

        assert [third] == [server for server, address, _ in net.sink.arrived if address == JOURNAL]


WATCHED = (promises.accepted, promises.verdict, promises.transition, promises.attempt, promises.queued, promises.forget_acknowledged)


class Struck:
    """Kills a node right after its `at`-th commit: nothing follows in it. `after` says what the commit was."""

    def __init__(self, node: VirtualNode, at: int) -> None:
        self.reached = asyncio.Event()
        self.after = ""
        self._left = at
        for promise in WATCHED:
            self._watch(node, promise)

    def _watch(self, node: VirtualNode, promise: Promise[..., Any]) -> None:
        real = partial(node.ledger.real.commit, promise)

        async def watched(*arguments: Any, **named: Any) -> Any:
            done = await real(*arguments, **named)
            self._left -= 1
            if self._left <= 0:
                if not self.reached.is_set():
                    self.after = promise.name
                self.reached.set()
                await asyncio.Event().wait()
            return done

        node.ledger.instead[promise.name] = watched


@pytest.mark.parametrize("fate", ["starts again", "starts again after the takeover", "is wiped"])
@pytest.mark.parametrize("kind", ["report", "dsn"])
@in_virtual_time
async def test_a_primary_that_dies_after_any_commit_leaves_one_to_be_delivered(tmp_path: Path, kind: str, fate: str) -> None:
    recipient, to = ("u@corp.example", JOURNAL) if kind == "report" else ("u@elsewhere.example", SENDER)
    seen = set()
    is_last = False
    for at in itertools.count(1):
        async with nodes(tmp_path / str(at), EAST, WEST, routes=BY_ROUTE, **QUICK) as net:
            net.sink.answer = lambda address: NO_USER if kind == "dsn" and address == recipient else OK
            east, west = net.nodes[EAST], net.nodes[WEST]
            await asyncio.sleep(1)
            struck = Struck(east, at)
            accepted = asyncio.ensure_future(east.accept(recipient))
            await struck.reached.wait()
            original, by_east = east.last, net.sink.addresses().count(to)
            copy = await west.role(original)
            is_last = await is_over(net)
            await net.kill(EAST)
            accepted.cancel()
            if fate == "is wiped":
                await net.wipe(EAST)
            if fate != "starts again":
                await asyncio.sleep(12)
            await net.start(EAST)
            await asyncio.sleep(12)
            await until(lambda: is_over(net))

            count = net.sink.addresses().count(to)
            where = f"commit {at} ({struck.after}), copy: {copy}, {by_east} by the old primary"
            seen.add(struck.after)
            if fate == "is wiped" and copy is None:
                assert count == by_east, f"{where}: nobody was told 250"
            elif fate != "starts again" and by_east and copy is not Role.DELIVERED:
                assert 1 <= count <= 2, f"{where}: causes (b) and (c), before the next poll"
            else:
                assert 1 == count, where
        if is_last:
            break
    assert {"accepted", "attempt"} <= seen
