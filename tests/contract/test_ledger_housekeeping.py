"""The ledger: peers, expiry, and the queues as they are listed."""

import asyncio
from datetime import timedelta

import pytest

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId, MessageId
from shadowrelay.model.ownership import Choice, Claim, Copy, DiscardEvent, DiscardStatus, Role, Transition
from shadowrelay.model.peers import Incarnation, PeerIdentity, Seen
from shadowrelay.model.queue import QueueKind, StoredMessage
from shadowrelay.model.replies import ContentCorrupt
from shadowrelay.model.values import replace
from shadowrelay.ownership.claims import handing_over, nobody_left_to_ask
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.store import expiry, peer_promises, promises, queues, reading, steps
from shadowrelay.store.ledger import Ledger
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import (
    DAY,
    HERE,
    NEW_DATABASE,
    NOW,
    OUR_DATABASE,
    SECOND,
    THEIR_DATABASE,
    THERE,
    a_generated_message,
    accept,
    all_done,
    an_attempt,
    an_identity,
    discarded,
    hold,
    queue,
)


# peers
async def test_a_peer_is_remembered_with_the_highest_position_seen(ledger: Ledger) -> None:
    assert ledger.peers.seen(THERE, THEIR_DATABASE) is None
    await ledger.commit(peer_promises.peer_heard, an_identity(position=10), NOW)
    await ledger.commit(peer_promises.peer_heard, an_identity(position=7), NOW + SECOND)

    (row,) = ledger.peers.listed()
    assert Seen(1, 1, 10) == ledger.peers.seen(THERE, THEIR_DATABASE)
    assert (THERE, THEIR_DATABASE, NOW + SECOND, False) == (row.server, row.database, row.heard_at, row.is_forgotten)


async def test_the_highest_position_that_any_reply_told_counts(ledger: Ledger) -> None:
    await ledger.commit(peer_promises.peer_heard, an_identity(position=10), NOW)
    present = an_identity().whole_incarnation

    ledger.peers.note_told(THERE, present, 30)
    ledger.peers.note_told(THERE, present, 20)  # of another session, whose reply is read later
    ledger.peers.note_told(THERE, Incarnation(THEIR_DATABASE, 1, 999), 40)  # begun elsewhere
    assert Seen(1, 1, 30) == ledger.peers.seen(THERE, THEIR_DATABASE)

    await ledger.commit(peer_promises.peer_heard, an_identity(position=15), NOW)  # a new session's hello crossed with that reply
    assert Seen(1, 1, 30) == ledger.peers.seen(THERE, THEIR_DATABASE)

    await ledger.commit(peer_promises.peer_heard, an_identity(database=NEW_DATABASE), NOW)
    assert Seen(1, 1, 30) == ledger.peers.seen(THERE, THEIR_DATABASE), "also of its former database"


@pytest.mark.parametrize(
    "older",
    [
        pytest.param(an_identity(incarnation=4, began=30, position=99), id="an earlier incarnation"),
        pytest.param(an_identity(incarnation=5, began=41, position=99), id="the same incarnation, begun elsewhere"),
        pytest.param(an_identity(incarnation=6, began=50, position=99), id="a later one that began in the past"),
    ],
)
async def test_an_older_copy_of_a_peers_database_does_not_replace_what_was_seen(ledger: Ledger, older: PeerIdentity) -> None:
    """Otherwise the peer would never learn that it runs on an older copy."""
    await ledger.commit(peer_promises.peer_heard, an_identity(incarnation=5, began=40, position=50), NOW)
    await ledger.commit(peer_promises.peer_heard, older, NOW + SECOND)
    assert Seen(5, 40, 50) == ledger.peers.seen(THERE, THEIR_DATABASE)

    await ledger.commit(peer_promises.peer_heard, an_identity(database=NEW_DATABASE), NOW)
    await ledger.commit(peer_promises.peer_heard, older, NOW + SECOND)
    assert Seen(5, 40, 50) == ledger.peers.seen(THERE, THEIR_DATABASE), "also if the peer had another database meanwhile"


async def test_every_database_of_a_server_is_recognised_this_nodes_own_too(ledger: Ledger) -> None:
    await ledger.commit(peer_promises.peer_heard, an_identity(), NOW)
    await ledger.commit(peer_promises.peer_heard, an_identity(database=NEW_DATABASE, position=2), NOW)

    assert ledger.peers.seen(THERE, NO_DATABASE) is None
    assert Seen(1, 1, 2) == ledger.peers.seen(THERE, NEW_DATABASE)
    assert Seen(1, 1, 10) == ledger.peers.seen(THERE, THEIR_DATABASE), "of a former database, too: it may be put back"
    assert [THERE, THERE, HERE] == [ledger.peers.server_of(each) for each in (THEIR_DATABASE, NEW_DATABASE, ledger.identity.database)]
    assert NO_SERVER == ledger.peers.server_of(DatabaseId("unknown"))


async def test_a_forgotten_peer_is_off_every_list_until_it_is_heard_again(ledger: Ledger) -> None:
    await ledger.commit(peer_promises.peer_heard, an_identity(), NOW)
    stored, done = await accept(ledger), await accept(ledger)
    await ledger.commit(promises.attempt, an_attempt(done.envelope.message_id), all_done)

    await steps.forget_peer(ledger, THERE)

    assert () == await ledger.read(reading.primaries_listed_on, THERE, 9)
    assert () == (await ledger.read(reading.load, stored.envelope.message_id)).claim.copies  # type: ignore[union-attr]
    assert () == (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events
    assert (ledger.peers.listed())[0].is_forgotten
    await ledger.commit(peer_promises.peer_heard, an_identity(), NOW)
    assert not (ledger.peers.listed())[0].is_forgotten


@pytest.mark.parametrize("event", ["new database", "forgotten"])
async def test_a_peer_lost_while_a_delivery_with_a_dsn_is_recorded_is_told_nothing_of_it(ledger: Ledger, event: str) -> None:
    await ledger.commit(peer_promises.peer_heard, an_identity(), NOW)
    stored, generated = await accept(ledger), a_generated_message()
    attempt = an_attempt(stored.envelope.message_id, generated=(generated,))

    await asyncio.sleep(0.01)  # until the writer is idle

    async def lose() -> None:
        if event == "forgotten":
            await steps.forget_peer(ledger, THERE)
        else:
            await ledger.commit(peer_promises.peer_heard, an_identity(database=NEW_DATABASE), NOW)

    lost = asyncio.ensure_future(lose())  # begins with the next await: after the attempt, in its commit
    await ledger.commit(promises.attempt, attempt, all_done)
    await lost
    await ledger.commit(promises.attempt, an_attempt(generated.message.envelope.message_id), all_done)

    events = (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events
    assert stored.envelope.message_id not in [each.message_id for each in events]


async def test_a_message_handed_over_to_a_peer_that_is_forgotten_is_claimed_again(ledger: Ledger) -> None:
    stored = await accept(ledger, role=Role.PRIMARY, copies=(Copy(THERE, THEIR_DATABASE, Choice.CHOSEN),))
    await ledger.commit(promises.transition, [stored.envelope.message_id], lambda _, before: handing_over(before))
    assert () == await ledger.read(reading.submission, 9)

    await steps.forget_peer(ledger, THERE)

    assert [Role.PRIMARY] == [found.claim.role for found in await ledger.read(reading.submission, 9)]


# housekeeping
async def test_expired_shadow_messages_are_given_back_and_released(ledger: Ledger) -> None:
    stored = await hold(ledger)

    assert () == await steps.expire(ledger, NOW + 4 * DAY - SECOND, 9)
    assert (stored,) == await steps.expire(ledger, NOW + 4 * DAY, 9)
    assert Role.RELEASED is await role_of(ledger, stored)
    assert [DiscardStatus.RELEASED] == [event.status for event in (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events]


async def role_of(ledger: Ledger, stored: StoredMessage) -> Role | None:
    (transition,) = await ledger.commit(promises.transition, [stored.envelope.message_id], lambda _, claim: Transition(claim, claim))
    return None if transition.after is None else transition.after.role


def promote(_: MessageId, claim: Claim | None) -> Transition:
    return nobody_left_to_ask(claim, PeerDatabase(HERE, OUR_DATABASE), ())


@pytest.mark.parametrize("is_delivered", [True, False])
async def test_an_end_is_remembered_until_the_former_primary_server_has_heard_of_it(ledger: Ledger, is_delivered: bool) -> None:
    """However long it is away. Otherwise it would return what was delivered, or take an expired copy for one that has ended."""
    stored = await hold(ledger)
    message_id = stored.envelope.message_id
    if is_delivered:
        await ledger.commit(promises.transition, [message_id], promote)
        await ledger.commit(promises.attempt, an_attempt(message_id), all_done)
    role = Role.DELIVERED if is_delivered else Role.RELEASED
    for days in (4, 40, 400):
        await steps.expire(ledger, NOW + days * DAY, 9)
        await steps.forget_unasked(ledger, NOW + days * DAY)
        assert role is await role_of(ledger, stored)

    last = (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events[-1]
    await ledger.commit(promises.forget_acknowledged, THERE, THEIR_DATABASE, last.sequence, lambda _, claim: Transition(claim, claim))
    await steps.expire(ledger, NOW + 402 * DAY, 9)

    assert await role_of(ledger, stored) is None


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_what_must_be_heard_does_not_keep_what_grows_old(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """However many whole steps of it come first."""
    monkeypatch.setattr(expiry, "DISCARDS_PER_STEP", 2)
    for _ in range(count):
        await ledger.commit(promises.transition, [(await hold(ledger)).envelope.message_id], promote)
    delivered = await accept(ledger, copies=(Copy(THERE, THEIR_DATABASE, Choice.CHOSEN),))
    await ledger.commit(promises.attempt, an_attempt(delivered.envelope.message_id), all_done)

    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (1, 0) == (await steps.forget_unasked(ledger, NOW + 9 * DAY), await steps.forget_unasked(ledger, NOW + 9 * DAY))

    assert [DiscardStatus.PROMOTED] * count == [event.status for event in (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events]


async def test_a_delivered_message_stays_known_until_its_time_and_no_longer(ledger: Ledger) -> None:
    stored = await accept(ledger)
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)

    assert () == await steps.expire(ledger, NOW + 4 * DAY - SECOND, 9)
    assert await ledger.read(reading.load, stored.envelope.message_id) is not None
    assert () == await steps.expire(ledger, NOW + 4 * DAY, 9)
    assert await ledger.read(reading.load, stored.envelope.message_id) is None


async def test_a_delivered_message_is_remembered_as_long_as_the_attempt_says(ledger: Ledger) -> None:
    stored = await accept(ledger)
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, remember_until=NOW + 9 * DAY), all_done)

    await steps.expire(ledger, NOW + 9 * DAY - SECOND, 9)
    assert await ledger.read(reading.load, stored.envelope.message_id) is not None
    await steps.expire(ledger, NOW + 9 * DAY, 9)
    assert await ledger.read(reading.load, stored.envelope.message_id) is None


async def test_an_unfinished_message_does_not_expire(ledger: Ledger) -> None:
    stored = await accept(ledger)

    await steps.expire(ledger, NOW + 1000 * DAY, 9)

    assert stored == await ledger.read(reading.load, stored.envelope.message_id)


async def test_expire_is_not_held_up_by_what_it_need_not_give_back(ledger: Ledger) -> None:
    done = [await accept(ledger) for _ in range(5)]
    for message in done:
        await ledger.commit(promises.attempt, an_attempt(message.envelope.message_id), all_done)
    stored = await hold(ledger)

    assert (stored,) == await steps.expire(ledger, NOW + 5 * DAY, 2)
    assert () == await ledger.read(reading.load_many, [message.envelope.message_id for message in done])


async def test_expire_takes_at_most_its_limit(ledger: Ledger) -> None:
    for _ in range(5):
        await hold(ledger)

    assert [2, 2, 1] == [len(await steps.expire(ledger, NOW + 5 * DAY, 2)) for _ in range(3)]


async def test_the_queues_are_listed_with_depth_and_oldest_age(ledger: Ledger) -> None:
    await accept(ledger)
    await queue(ledger, at=NOW + timedelta(minutes=1))
    done = await accept(ledger)
    await ledger.commit(promises.attempt, an_attempt(done.envelope.message_id), all_done)
    held = [await hold(ledger) for _ in range(2)]
    event = DiscardEvent(1, held[0].envelope.message_id, DiscardStatus.DELIVERED)
    await ledger.commit(promises.discards, THERE, THEIR_DATABASE, 1, [event], discarded, NOW + 2 * DAY)

    found = {row.identity.partition("\\")[2]: row for row in await ledger.read(queues.queues)}

    counts = {name: row.count for name, row in found.items()}
    names = {"Submission": 1, "store.corp.example:25": 1, "Shadow\\1": 1, "SafetyNet\\Primary": 1, "SafetyNet\\Shadow": 1, "Poison": 0}
    assert names == counts
    delivery, shadow = found["store.corp.example:25"], found["Shadow\\1"]
    assert (QueueKind.DELIVERY, "421 4.4.1 no", NOW + timedelta(minutes=1)) == (delivery.kind, delivery.last_error, delivery.next_retry_at)
    assert (QueueKind.SHADOW, THERE, NOW) == (shadow.kind, shadow.next_hop, shadow.oldest_at)
    assert found["Poison"].oldest_at is None


async def test_every_listed_queue_gives_its_messages(ledger: Ledger) -> None:
    await accept(ledger)
    await queue(ledger)
    await hold(ledger)
    aside = await accept(ledger)
    await ledger.commit(promises.set_aside, aside.envelope.message_id, "no")
    done = await accept(ledger)
    await ledger.commit(promises.attempt, an_attempt(done.envelope.message_id), all_done)

    for row in await ledger.read(queues.queues):
        assert row.count == len(await ledger.read(queues.messages, row.identity, 9)), row.identity
        assert () == await ledger.read(queues.messages, row.identity, 9, after=1000)
    unfinished = [
        row for row in await ledger.read(queues.queues) if row.kind not in (QueueKind.SAFETY_NET_PRIMARY, QueueKind.SAFETY_NET_SHADOW)
    ]
    assert sum(row.count for row in unfinished) == len(await ledger.read(queues.messages, "", 99))


async def test_messages_of_an_unknown_queue_are_none(ledger: Ledger) -> None:
    assert () == await ledger.read(queues.messages, "Server\\nowhere:25", 9)
    assert () == await ledger.read(queues.messages, "Server\\Shadow\\7", 9) == await ledger.read(queues.messages, "Shadow\\7", 9)


async def test_content_that_is_gone_is_corrupt(ledger: Ledger) -> None:
    stored = await accept(ledger)
    assert stored.place is not None

    with pytest.raises(ContentCorrupt):
        await ledger.read_content(replace(stored.place, segment=99))
