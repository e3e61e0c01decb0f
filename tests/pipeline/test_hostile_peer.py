"""A peer whose values are at their bounds, or just beyond. What is outside is refused; what is accepted is promoted, and ends.

Each copy goes through the parsers that the receiver asks, and one value of it, or each of them, is not an ordinary one.
"""

import itertools
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import RANK_MAX, CopyNumber, DiscardEvent, DiscardStatus, Role, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import Alive, CopyOffer, DiscardReply, Incarnation, PeerIdentity
from shadowrelay.model.replies import PeerUnavailable, Reply, WireError
from shadowrelay.ports import HoldAnswer
from shadowrelay.protocol.fields import COUNTER_MAX
from shadowrelay.protocol.xshadow import parse_hello
from shadowrelay.rules import delivery
from shadowrelay.store import queues, reading
from tests.kit.clock import until
from tests.kit.hostile_peer import HELLOS, a_hello, odd_copies, offer
from tests.kit.nodes import BUSY, EAST, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, message_id
from tests.kit.played import DATABASES


@dataclass(slots=True)
class Hostile:
    """Port `PeerLink`: a peer that answers nothing, or what it is told to."""

    server: ServerName
    identity: PeerIdentity | None = None
    said: list[StatusAnswer] = field(default_factory=list)
    events: tuple[DiscardEvent, ...] = ()
    asked: list[tuple[int, int]] = field(default_factory=list)

    def hold_ready(self, *, is_wanted: bool) -> None:
        return

    async def greet(self) -> PeerIdentity:
        if self.identity is None:
            raise PeerUnavailable(self.server, "silent")
        return self.identity

    async def hold(self, offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
        raise PeerUnavailable(self.server, "silent")

    async def discards(self, maximum: int, acknowledged: int) -> DiscardReply:
        self.asked.append((maximum, acknowledged))
        if self.identity is None:
            raise PeerUnavailable(self.server, "silent")
        events, self.events = self.events, ()
        return DiscardReply(events, COUNTER_MAX)

    async def status(self, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        if self.identity is None:
            raise PeerUnavailable(self.server, "silent")
        found = itertools.cycle(self.said or [StatusAnswer(StatusState.UNKNOWN)])
        return tuple(next(found) for _ in questions)

    async def alive(self, incarnation: Incarnation, *, is_dialed: bool) -> Alive:
        return Alive.ENDED

    def end_others(self, incarnation: Incarnation) -> None:
        return

    def give_up(self, quiet_seconds: float) -> int:
        return 0

    async def close(self) -> None:
        pass


async def a_node_with_a_hostile_peer(net: Net) -> tuple[VirtualNode, Hostile]:
    link = Hostile(WEST)
    net.link_to = lambda node, server: link
    node = await net.start(EAST)
    await node.services.peer_requests.greeted(parse_hello(a_hello()))
    return node, link


async def nothing_waits(node: VirtualNode) -> bool:
    """No message is in Submission, held, or in a queue."""
    return (
        not await node.ledger.real.read(reading.submission, 1)
        and not await node.ledger.real.read(reading.shadow_groups)
        and not await node.ledger.read(reading.delivery_queues)
    )


@pytest.mark.parametrize("is_delivered", [True, pytest.param(False, marks=pytest.mark.heavy)])
@in_virtual_time
async def test_what_is_outside_its_range_is_refused_and_all_else_is_promoted_and_ends(tmp_path: Path, is_delivered: bool) -> None:
    """The next hop defers everything first; then it takes what is left, or nothing until all has expired."""
    net = Net(tmp_path, names=(EAST, WEST), transport={"message_expiration_timeout": timedelta(minutes=5)})
    net.sink.answer = lambda address: OK if address.startswith("later") else BUSY
    node, _ = await a_node_with_a_hostile_peer(net)
    replies: dict[MessageId, Reply] = {}
    with structlog.testing.capture_logs() as logs:
        for count, odd in enumerate(odd_copies()):
            wanted = message_id(f"hostile {count}")
            replies[wanted] = await offer(node.services.peer_requests, wanted, a_hello(), odd)
            assert replies[wanted].code in (250, 451, 501, 554), odd
        held = [wanted for wanted, reply in replies.items() if reply.code == 250]
        assert len(held) > 50
        for wanted in held:
            assert await node.role(wanted) is Role.SHADOW
        await until(lambda: net.sink.attempts_count > 2 * len(held), 3 * SPAN)  # each of them, and most of them again
        if is_delivered:
            net.sink.answer = lambda address: OK

        await until(lambda: nothing_waits(node), 1000)

        for wanted in held:
            assert await node.role(wanted) is Role.DELIVERED
        assert 250 == (await node.accept("later@corp.example")).code
        await until(lambda: "later@corp.example" in net.sink.addresses())
    assert not [line for line in logs if line["event"] in ("task.begins_anew", "delivery.failed", "takeover.failed", "placement.failed")]
    await net.close()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in HELLOS.items() for value in values])
@in_virtual_time
async def test_a_hello_at_its_bounds_is_refused_or_leaves_a_node_that_works(tmp_path: Path, name: str, value: str) -> None:
    net = Net(tmp_path, names=(EAST, WEST))
    node, link = await a_node_with_a_hostile_peer(net)
    try:
        identity = parse_hello(a_hello(**{name: value}))
    except WireError as error:
        refusal = error.reply
    else:
        refusal = None
        link.identity = identity
        await node.services.peer_requests.greeted(identity)
        assert 250 == (await offer(node.services.peer_requests, message_id("a"), a_hello(**{name: value}), {})).code
        assert refusal is None or (501, "5.5.4") == (refusal.code, refusal.enhanced)
    link.identity = None
    assert 250 == (await node.accept("later@corp.example")).code
    await until(lambda: "later@corp.example" in net.sink.addresses(), 3 * SPAN)
    await net.close()


@in_virtual_time
async def test_answers_and_notifications_at_their_bounds_end_what_they_are_about_or_leave_it_to_the_node(tmp_path: Path) -> None:
    """The numbers of the answers are the highest there are, as are sequence and count of what remains."""
    net = Net(tmp_path, names=(EAST, WEST))
    node, link = await a_node_with_a_hostile_peer(net)
    wanted = [message_id(f"hostile {count}") for count in range(8)]
    for each in wanted:
        assert 250 == (await offer(node.services.peer_requests, each, a_hello(), {})).code
    highest = CopyNumber(RANK_MAX, RANK_MAX, DATABASES[WEST])
    link.said = [
        StatusAnswer(StatusState.SHADOW, highest, ServerName("mx9.example"), DATABASES[WEST], done=frozenset(range(1, 5001))),
        StatusAnswer(StatusState.RELEASED, highest),
        StatusAnswer(StatusState.UNKNOWN, done=frozenset((5000,))),
        StatusAnswer(StatusState.DELIVERED),
    ]
    statuses = (DiscardStatus.YOURS, DiscardStatus.DELIVERED, DiscardStatus.PROMOTED, DiscardStatus.RELEASED)
    link.events = tuple(
        DiscardEvent(COUNTER_MAX, each, status, frozenset((5000,)) if status is DiscardStatus.DELIVERED else frozenset())
        for each, status in zip(wanted, itertools.cycle(statuses), strict=False)
    )
    link.identity = parse_hello(a_hello(position=str(COUNTER_MAX)))
    await node.services.heartbeat.opened(link)
    assert link.asked
    for each in wanted:  # asked under the highest number, each copy keeps one that leaves room for a promotion
        await node.services.peer_requests.status(link.identity, [StatusQuestion(each, highest)])
    link.identity = None
    await until(lambda: nothing_waits(node), 5 * SPAN)
    assert 250 == (await node.accept("later@corp.example")).code
    await until(lambda: "later@corp.example" in net.sink.addresses())
    await net.close()


@pytest.mark.parametrize("column", ["arrived_at", "due_at", "keep_until", "remember_until", "envelope"])
@pytest.mark.parametrize("value", [-1, 253_370_764_800_000_001, 2**63 - 1])
@in_virtual_time
async def test_a_row_of_the_database_outside_its_range_is_set_aside_and_the_others_are_delivered(
    tmp_path: Path, column: str, value: int
) -> None:
    net = Net(tmp_path, names=(EAST,))
    node = await net.start(EAST)
    net.sink.answer = lambda address: BUSY
    await node.accept("odd@corp.example")
    odd = node.last
    await node.accept("plain@corp.example")
    await until(lambda: net.sink.attempts_count >= 2)
    await net.kill(EAST)
    with sqlite3.connect(tmp_path / EAST / "queue.db") as connection:
        if column == "envelope":
            ((text,),) = connection.execute("SELECT envelope FROM message WHERE message_id = ?", (odd,))
            parts = json.loads(text)
            parts[2] = value
            connection.execute("UPDATE message SET envelope = ? WHERE message_id = ?", (json.dumps(parts), odd))
        else:
            connection.execute(f"UPDATE message SET {column} = ? WHERE message_id = ?", (value, odd))
    connection.close()

    net.sink.answer = lambda address: OK
    node = await net.start(EAST)
    await until(lambda: "plain@corp.example" in net.sink.addresses())
    await until(node.in_role(odd, Role.SET_ASIDE))

    stored = await node.message(odd)
    assert stored is not None
    assert "corrupt row" in stored.set_aside_reason
    assert node.ledger.corrupt_rows_count >= 1
    assert await node.ledger.read(queues.messages, "Poison", 10)
    await net.close()


@pytest.mark.parametrize("error", [OverflowError, ValueError, KeyError, TypeError])
@in_virtual_time
async def test_a_message_whose_values_fail_a_scan_is_set_aside_and_the_scan_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    net = Net(tmp_path, names=(EAST, WEST))
    node, _ = await a_node_with_a_hostile_peer(net)
    odd, plain = message_id("odd"), message_id("plain")
    for wanted in (odd, plain):
        assert 250 == (await offer(node.services.peer_requests, wanted, a_hello(), {"sender": f"{wanted}@x.example"})).code
    forks = node.services.deliver.forks
    of = forks.of

    def failing(stored: Any) -> Any:
        if stored.envelope.message_id == odd:
            raise error("a value that no rule knows")
        return of(stored)

    monkeypatch.setattr(forks, "of", failing)

    await until(node.in_role(plain, Role.DELIVERED), 3 * SPAN)
    await until(node.in_role(odd, Role.SET_ASIDE))

    stored = await node.message(odd)
    assert stored is not None
    assert delivery.NOT_PROCESSED in stored.set_aside_reason
    await net.close()
