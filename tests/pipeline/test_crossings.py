"""What crosses on the way: a read of the queue with the end of an attempt, an answer to STATUS with a placement. Both were
found by the crash ring: a message delivered twice without any fault, and a copy that nobody would ever discard."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from shadowrelay.model.ids import DatabaseId, MessageId
from shadowrelay.model.message import Content
from shadowrelay.model.ownership import Choice, CopyNumber, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import CopyOffer
from shadowrelay.model.queue import NewMessage, Origin, StoredMessage
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline.copy_repair import RepairOutcome
from shadowrelay.pipeline.leases import Attempts
from shadowrelay.ports import HoldAnswer
from shadowrelay.store import promises, reading
from tests.kit.clock import until
from tests.kit.ledger import NOW, a_content, a_message_id, an_envelope
from tests.kit.nodes import WEST, VirtualNode, in_virtual_time
from tests.kit.played import DATABASES, PlayedWorld, identity_of, one_node

ONE = MessageId("1")


def test_after_an_attempt_only_a_later_read_begins_another() -> None:
    attempts = Attempts()
    attempts.begin(ONE)
    attempts.end(ONE)
    begun = [attempts.begin(ONE)]
    attempts.reading()
    begun.append(attempts.begin(ONE))

    assert [False, True] == begun


def test_what_ended_during_a_read_waits_for_the_next() -> None:
    attempts = Attempts()
    attempts.begin(ONE)
    attempts.reading()
    attempts.end(ONE)

    assert not attempts.begin(ONE)


async def _stored(node: VirtualNode, content: Content, *, decided: bool, server: PeerDatabase | None) -> StoredMessage:
    claim = claims.first_claim(node.context.me, 1, () if server is None else (server,))
    message = NewMessage(an_envelope(message_id=a_message_id()), claim, Origin.CLIENT, NOW, NOW)
    return await node.ledger.commit(promises.accepted, message, content, decided=decided)


@in_virtual_time
async def test_a_message_is_not_delivered_again_because_an_old_read_says_that_it_is_due(tmp_path: Path) -> None:
    world = PlayedWorld()
    async with one_node(tmp_path, world, reject_message_on_shadow_failure=False) as node:
        may_be_heard = node.ledger.gates["submission, read"] = asyncio.Event()
        content = a_content()
        stored = await _stored(node, content, decided=True, server=None)
        message_id = stored.envelope.message_id
        scanning = asyncio.ensure_future(node.services.deliver.run())
        await until(lambda: node.ledger.counts["submission, read"])

        node.context.attempts.begin(message_id)
        node.services.deliver.deliver_accepted(stored, content)
        await node.idle()
        reads_count = node.ledger.counts["submission, read"]
        may_be_heard.set()
        node.services.deliver.wake()
        await until(lambda: node.ledger.counts["submission, read"] > reads_count)
        await node.idle()

        assert [message_id] == world.sink.message_ids
        scanning.cancel()
        await asyncio.gather(scanning, return_exceptions=True)


@pytest.mark.parametrize("is_placed_meanwhile", [True, False], ids=["placed while it was asked", "under way when it was asked"])
@in_virtual_time
async def test_an_answer_from_before_a_placement_takes_no_server_off_the_list(tmp_path: Path, is_placed_meanwhile: bool) -> None:
    async with one_node(tmp_path, reject_message_on_shadow_failure=False) as node:
        there = PeerDatabase(WEST, DATABASES[WEST])
        stored = await _stored(node, a_content(), decided=True, server=there)
        message_id = stored.envelope.message_id
        me, ledger = node.context.me, node.ledger

        async def place() -> None:
            """As `Copier` does: the list first, then the copy is sent and stored."""
            (transition,) = await ledger.commit(promises.transition, [message_id], lambda _, claim: claims.placing(claim, me, there))
            assert transition.after is not None
            number = transition.after.number
            await ledger.commit(promises.transition, [message_id], lambda _, claim: claims.placed(claim, number, there))

        async def status(questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
            """Answered before the copy came, heard afterwards."""
            if is_placed_meanwhile:
                await place()
            return tuple(StatusAnswer(StatusState.UNKNOWN) for _ in questions)

        node.context.links[WEST].status = status  # type: ignore[method-assign]
        if not is_placed_meanwhile:
            node.context.placements.add(message_id)
        node.services.review.request(message_id)
        await node.services.review.review_wanted()

        after = await ledger.read(reading.load, message_id)
        assert after is not None
        entry = after.claim.copy_on(WEST)
        assert entry is not None
        assert (Choice.CHOSEN if is_placed_meanwhile else Choice.LISTED) == entry.choice


@pytest.mark.parametrize("reject", [True, False], ids=["refused", "delivered"])
@in_virtual_time
async def test_a_copy_that_may_be_in_a_new_database_of_its_server_is_discarded_there_too(tmp_path: Path, reject: bool) -> None:
    new = DatabaseId("44444444-4444-4444-8444-444444444444")
    world = PlayedWorld(["break"] * 9)
    async with one_node(tmp_path, world, reject_message_on_shadow_failure=reject) as node:
        for link in node.context.links.values():  # the session that the copy is sent in shows a database that was not known before
            link.identity = replace(identity_of(link.server), database=new)  # type: ignore[misc]
        reply = await node.services.accept.accept(an_envelope(), a_content())
        await node.idle()

        told = [(await node.ledger.discards_for(server, new, 400)).events for server in DATABASES]
        assert (451 if reject else 250) == reply.code
        assert [["released" if reject else "delivered"]] * len(DATABASES) == [[event.status.value for event in events] for events in told]


@in_virtual_time
async def test_a_server_that_holds_nothing_goes_off_the_list_when_nothing_is_on_its_way_to_it(tmp_path: Path) -> None:
    async with one_node(tmp_path, reject_message_on_shadow_failure=False) as node:
        stored = await _stored(node, a_content(), decided=True, server=PeerDatabase(WEST, DATABASES[WEST]))
        node.services.review.request(stored.envelope.message_id)
        await node.services.review.review_wanted()

        after = await node.ledger.read(reading.load, stored.envelope.message_id)
        assert after is not None
        assert () == after.claim.copies


@in_virtual_time
async def test_a_server_that_supersedes_a_copy_stays_on_the_list_because_it_may_yield(tmp_path: Path) -> None:
    async with one_node(tmp_path, reject_message_on_shadow_failure=False) as node:
        stored = await _stored(node, a_content(), decided=True, server=None)
        lower = StatusAnswer(StatusState.PRIMARY, CopyNumber(0, 1, DATABASES[WEST]))

        async def hold(offer: CopyOffer, deadline: float, stall_seconds: float | None = None) -> HoldAnswer:
            return HoldAnswer(lower, node.clock.awake(), DATABASES[WEST])

        for link in node.context.links.values():
            link.hold = hold  # type: ignore[method-assign]
        outcome = await node.services.copy_repair.place(stored)

        after = await node.ledger.read(reading.load, stored.envelope.message_id)
        assert after is not None
        assert (RepairOutcome.AGAIN, [Choice.LISTED]) == (outcome, [copy.choice for copy in after.claim.copies])
