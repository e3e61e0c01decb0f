"""The ledger: notifications to other servers, in their order, acknowledged, kept back and forgotten."""

import pytest

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId
from shadowrelay.model.ownership import Choice, Claim, Copy, DiscardEvent, DiscardStatus, Notification, Role, Transition
from shadowrelay.model.values import replace
from shadowrelay.ownership.claims import released_acknowledged
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.store import peer_promises, promises, reading, steps
from shadowrelay.store.ledger import Ledger
from tests.kit.clock import Hands
from tests.kit.ledger import (
    DAY,
    NEW_DATABASE,
    NOW,
    OTHER,
    THEIR_DATABASE,
    THERE,
    a_generated_message,
    a_message_id,
    accept,
    all_done,
    an_attempt,
    an_identity,
    choose,
    discarded,
    hold,
    nothing,
    released_heard,
    remove,
    some_done,
)


async def test_discards_come_in_order_and_stay_until_acknowledged(ledger: Ledger) -> None:
    ids = [(await accept(ledger)).envelope.message_id for _ in range(3)]
    for message_id in ids:
        await ledger.commit(promises.attempt, an_attempt(message_id), all_done)

    first = await ledger.discards_for(THERE, THEIR_DATABASE, 2)
    again = await ledger.discards_for(THERE, THEIR_DATABASE, 2)
    await ledger.commit(promises.forget_acknowledged, THERE, THEIR_DATABASE, first.events[-1].sequence, nothing)
    rest = await ledger.discards_for(THERE, THEIR_DATABASE, 2)

    assert first == again
    assert (ids, [1, 0]) == ([event.message_id for event in first.events + rest.events], [first.remaining, rest.remaining])
    assert first.events[0].sequence < first.events[1].sequence < rest.events[0].sequence
    assert {DiscardStatus.DELIVERED} == {event.status for event in first.events}


async def test_what_is_untold_is_what_its_asker_has_not_acknowledged(ledger: Ledger) -> None:
    before = await ledger.read(reading.has_unacknowledged, THERE, THEIR_DATABASE)
    stored = await accept(ledger)
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)

    assert (False, True) == (before, await ledger.read(reading.has_unacknowledged, THERE, THEIR_DATABASE))
    assert not await ledger.read(reading.has_unacknowledged, THERE, NEW_DATABASE)
    assert not await ledger.read(reading.has_unacknowledged, OTHER, THEIR_DATABASE)
    reply = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    assert await ledger.read(reading.has_unacknowledged, THERE, THEIR_DATABASE)
    await ledger.commit(promises.forget_acknowledged, THERE, THEIR_DATABASE, reply.events[-1].sequence, nothing)
    assert not await ledger.read(reading.has_unacknowledged, THERE, THEIR_DATABASE)


async def test_what_waits_for_the_copy_of_a_dsn_is_untold_too(ledger: Ledger) -> None:
    """A node that stopped before would have its original delivered again."""
    stored = await accept(ledger)
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, generated=(a_generated_message(),)), all_done)

    assert () == (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events
    assert await ledger.read(reading.has_unacknowledged, THERE, THEIR_DATABASE)
    assert not await ledger.read(reading.has_unacknowledged, OTHER, THEIR_DATABASE)


async def test_discards_are_for_one_asker_in_one_database(ledger: Ledger) -> None:
    stored = await accept(ledger)
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)

    assert () == (await ledger.discards_for(OTHER, THEIR_DATABASE, 9)).events
    assert () == (await ledger.discards_for(THERE, NEW_DATABASE, 9)).events
    assert 1 == len((await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events)


async def test_a_notification_for_a_server_whose_database_was_unknown_reaches_any_database_of_it(ledger: Ledger) -> None:
    stored = await accept(ledger, copies=(Copy(THERE, NO_DATABASE),))
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)

    reply = await ledger.discards_for(THERE, NEW_DATABASE, 9)
    await ledger.commit(promises.forget_acknowledged, THERE, NEW_DATABASE, reply.events[0].sequence, nothing)

    assert () == (await ledger.discards_for(THERE, NEW_DATABASE, 9)).events


DISMISSED = (Copy(THERE, THEIR_DATABASE, Choice.DISMISSED), Copy(OTHER, NEW_DATABASE, Choice.CHOSEN))


async def dismiss(ledger: Ledger):
    """A message whose copy on THERE was released; and up to where THERE has heard."""
    stored = await accept(ledger, copies=DISMISSED)
    tell = (Notification(THERE, THEIR_DATABASE, DiscardStatus.RELEASED),)
    await ledger.commit(promises.transition, [stored.envelope.message_id], lambda _, before: Transition(before, before, tell))
    reply = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    return stored.envelope.message_id, reply.events[0].sequence


async def test_a_released_that_was_heard_is_decided_on_and_forgotten(ledger: Ledger) -> None:
    message_id, sequence = await dismiss(ledger)

    def decide(_, before):
        return released_acknowledged(before, PeerDatabase(THERE, THEIR_DATABASE), lease_runs=True)

    (transition,) = await ledger.commit(promises.forget_acknowledged, THERE, THEIR_DATABASE, sequence, decide)

    assert DISMISSED == transition.before.copies
    assert DISMISSED[1:] == (await ledger.read(reading.load, message_id)).claim.copies  # type: ignore[union-attr]
    assert () == await ledger.read(reading.primaries_listed_on, THERE, 9)
    assert () == (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events


async def test_a_released_heard_without_a_lease_leaves_the_server_on_the_list(ledger: Ledger) -> None:
    message_id, sequence = await dismiss(ledger)

    await ledger.commit(promises.forget_acknowledged, THERE, THEIR_DATABASE, sequence, released_heard)

    found = await ledger.read(reading.load, message_id)
    assert found is not None
    assert Copy(THERE, THEIR_DATABASE) == found.claim.copy_on(THERE)


async def test_a_released_heard_for_a_message_that_is_gone_is_forgotten(ledger: Ledger) -> None:
    message_id, sequence = await dismiss(ledger)
    await ledger.commit(promises.transition, [message_id], remove)

    assert () == await ledger.commit(promises.forget_acknowledged, THERE, THEIR_DATABASE, sequence, released_heard)
    assert () == (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events


async def test_only_a_chosen_copy_places_a_message(ledger: Ledger) -> None:
    stored = await accept(ledger, copies=DISMISSED[:1])

    assert (stored,) == await ledger.read(reading.unplaced, 9)


async def test_what_a_primary_told_is_recorded_with_the_sequence_that_was_reached(ledger: Ledger) -> None:
    stored = await hold(ledger)
    events = [
        DiscardEvent(7, stored.envelope.message_id, DiscardStatus.DELIVERED),
        DiscardEvent(8, a_message_id(), DiscardStatus.DELIVERED),
    ]

    first, second = await ledger.commit(promises.discards, THERE, THEIR_DATABASE, 3, events, discarded, NOW + 2 * DAY)

    assert (Role.DELIVERED, None) == (first.after.role, second.after)  # type: ignore[union-attr]
    assert 8 == await ledger.read(reading.acknowledged, THERE, THEIR_DATABASE, 3)
    assert 0 == await ledger.read(reading.acknowledged, THERE, THEIR_DATABASE, 4)
    found = await ledger.read(reading.load, stored.envelope.message_id)
    assert found is not None
    assert found.place is not None


async def test_a_repeated_discard_reply_does_not_lower_the_sequence(ledger: Ledger) -> None:
    for sequence in (8, 5):
        event = DiscardEvent(sequence, a_message_id(), DiscardStatus.DELIVERED)
        await ledger.commit(promises.discards, THERE, THEIR_DATABASE, 3, [event], discarded, NOW)

    assert 8 == await ledger.read(reading.acknowledged, THERE, THEIR_DATABASE, 3)


async def test_a_notification_waits_until_its_dsn_has_a_chosen_copy_and_then_comes_last(ledger: Ledger) -> None:
    waiting, later = await accept(ledger), await accept(ledger)
    generated = a_generated_message()
    dsn_id = generated.message.envelope.message_id
    await ledger.commit(promises.attempt, an_attempt(waiting.envelope.message_id, generated=(generated,)), all_done)
    await ledger.commit(promises.attempt, an_attempt(later.envelope.message_id), all_done)

    before = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    copies = (Copy(OTHER, NEW_DATABASE, Choice.CHOSEN),)
    await ledger.commit(promises.transition, [dsn_id], lambda _, claim: Transition(claim, replace(claim, copies=copies)))  # type: ignore[type-var]
    after = await ledger.discards_for(THERE, THEIR_DATABASE, 9)

    assert [later.envelope.message_id] == [event.message_id for event in before.events]
    assert [later.envelope.message_id, waiting.envelope.message_id] == [event.message_id for event in after.events]


async def test_what_failed_while_nobody_had_a_copy_is_not_said_before_its_dsn_is_placed(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=3, copies=())
    message_id, generated = stored.envelope.message_id, a_generated_message()
    await ledger.commit(promises.attempt, an_attempt(message_id, generated=(generated,)), some_done(1))

    before = await ledger.read(reading.unreported, message_id)
    assert {message_id: frozenset({1})} == await ledger.read(reading.unreported_of, [message_id, generated.message.envelope.message_id])
    copies = (Copy(THERE, THEIR_DATABASE, Choice.CHOSEN),)
    await ledger.commit(promises.transition, [message_id], lambda _, claim: Transition(claim, replace(claim, copies=copies)))  # type: ignore[type-var]
    await ledger.commit(promises.attempt, an_attempt(message_id, frozenset({2})), some_done(2))
    while_waiting = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    await ledger.commit(
        promises.transition, [generated.message.envelope.message_id], lambda _, claim: Transition(claim, replace(claim, copies=copies))
    )  # type: ignore[type-var]

    assert (frozenset({1}), (), frozenset()) == (before, while_waiting.events, await ledger.read(reading.unreported, message_id))
    assert {} == await ledger.read(reading.unreported_of, [message_id])
    assert [frozenset({2})] == [event.ordinals for event in (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events]
    assert () == (await ledger.discards_for(NO_SERVER, NO_DATABASE, 9)).events


@pytest.mark.parametrize("tell", [(), (Notification(OTHER, NEW_DATABASE, DiscardStatus.RELEASED),)])
@pytest.mark.parametrize("role", [Role.DELIVERED, Role.SHADOW])
async def test_a_message_that_is_done_while_nobody_had_a_copy_is_not_said_before_its_dsn_is_placed(
    ledger: Ledger, role: Role, tell: tuple[Notification, ...]
) -> None:
    """A server of which its claim knows nothing may ask. It may have yielded, too, before the outcome was recorded."""
    stored = await accept(ledger, copies=())
    message_id, generated = stored.envelope.message_id, a_generated_message()

    def done(_: object, claim: Claim | None) -> Transition:
        assert claim is not None
        return Transition(claim, replace(claim, role=role, done=frozenset({1}), primary=THERE, database=THEIR_DATABASE), tell)

    await ledger.commit(promises.attempt, an_attempt(message_id, generated=(generated,)), done)
    before = await ledger.read(reading.unreported_of, [message_id])
    await ledger.commit(promises.attempt, an_attempt(generated.message.envelope.message_id), all_done)

    assert ({message_id: frozenset({1})}, {}) == (before, await ledger.read(reading.unreported_of, [message_id]))
    released = (await ledger.discards_for(OTHER, NEW_DATABASE, 9)).events
    assert [notification.status for notification in tell] == [event.status for event in released]


@pytest.mark.parametrize("event", ["new database", "forgotten"])
async def test_what_waits_for_its_dsn_waits_on_when_its_asker_is_lost(ledger: Ledger, event: str) -> None:
    await ledger.commit(peer_promises.peer_heard, an_identity(), NOW)
    stored = await accept(ledger, recipients_count=2)
    message_id, generated = stored.envelope.message_id, a_generated_message()
    await ledger.commit(promises.attempt, an_attempt(message_id, generated=(generated,)), some_done(1))

    if event == "forgotten":
        await steps.forget_peer(ledger, THERE)
    else:
        await ledger.commit(peer_promises.peer_heard, an_identity(database=NEW_DATABASE), NOW)

    assert frozenset({1}) == await ledger.read(reading.unreported, message_id)
    copies = (Copy(OTHER, NEW_DATABASE, Choice.CHOSEN),)
    await ledger.commit(
        promises.transition, [generated.message.envelope.message_id], lambda _, claim: Transition(claim, replace(claim, copies=copies))
    )  # type: ignore[type-var]
    assert frozenset() == await ledger.read(reading.unreported, message_id)
    assert () == (await ledger.discards_for(THERE, NEW_DATABASE, 9)).events


@pytest.mark.parametrize("end", ["delivered", "removed"])
async def test_a_notification_waits_no_longer_when_its_dsn_is_over(ledger: Ledger, end: str) -> None:
    stored = await accept(ledger)
    generated = a_generated_message()
    dsn_id = generated.message.envelope.message_id
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, generated=(generated,)), all_done)

    if end == "delivered":
        await ledger.commit(promises.attempt, an_attempt(dsn_id), all_done)
    else:
        await ledger.commit(promises.transition, [dsn_id], remove)

    events = (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events
    assert stored.envelope.message_id in [event.message_id for event in events]


async def test_a_dsn_is_listed_where_its_original_may_be_and_has_its_ownership(ledger: Ledger) -> None:
    stored = await accept(ledger)
    generated = a_generated_message()
    claim = replace(stored.claim, number=replace(stored.claim.number, ownership=3))
    await ledger.commit(promises.transition, [stored.envelope.message_id], lambda _, before: Transition(before, claim))

    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, generated=(generated,)), all_done)

    made = await ledger.read(reading.load, generated.message.envelope.message_id)
    assert made is not None
    assert (Role.PRIMARY, 3) == (made.claim.role, made.claim.number.ownership)
    assert [(copy.server, copy.database, Choice.LISTED) for copy in stored.claim.copies] == [
        (copy.server, copy.database, copy.choice) for copy in made.claim.copies
    ]


async def test_a_notification_waits_for_all_its_dsns(ledger: Ledger) -> None:
    stored = await accept(ledger)
    notices = (a_generated_message(), a_generated_message())
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, generated=notices), all_done)

    counts = []
    for notice in notices:
        await ledger.commit(promises.transition, [notice.message.envelope.message_id], choose)
        counts.append(len((await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events))

    assert [0, 1] == counts


async def test_a_dsn_that_is_there_already_is_not_made_again(ledger: Ledger) -> None:
    dsn = await accept(ledger, copies=(Copy(OTHER, NEW_DATABASE, Choice.CHOSEN),))
    stored = await accept(ledger)
    generated = a_generated_message(dsn.envelope.message_id)

    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, generated=(generated,)), all_done)

    assert dsn == await ledger.read(reading.load, dsn.envelope.message_id)
    assert 1 == len((await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events)


async def test_notifications_for_the_old_database_of_a_peer_are_void_once_it_shows_a_new_one(ledger: Ledger) -> None:
    await ledger.commit(peer_promises.peer_heard, an_identity(), NOW)
    stored = await accept(ledger)
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)

    await ledger.commit(peer_promises.peer_heard, an_identity(database=NEW_DATABASE), NOW)

    assert () == (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events


async def test_notifications_for_a_database_that_could_not_be_recorded_yet_are_kept(ledger: Ledger) -> None:
    """The disk was full when the peer showed its new database (simulation seed 21414)."""
    await ledger.commit(peer_promises.peer_heard, an_identity(), NOW)
    stored = await accept(ledger, copies=(Copy(THERE, NEW_DATABASE),))
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)

    assert 0 == await steps.forget_unasked(ledger, NOW - DAY)
    assert 1 == len((await ledger.discards_for(THERE, NEW_DATABASE, 9)).events)
    await ledger.commit(peer_promises.peer_heard, an_identity(database=NEW_DATABASE), NOW)
    assert 1 == len((await ledger.discards_for(THERE, NEW_DATABASE, 9)).events)


async def test_what_is_too_much_to_remove_at_once_is_removed_later_also_for_a_database_that_was_never_recorded(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowrelay.store.peer_promises.AT_ONCE_MAX", 0)
    await ledger.commit(peer_promises.peer_heard, an_identity(), NOW)
    stored = await accept(ledger, copies=(Copy(THERE, DatabaseId("33333333-3333-4333-8333-333333333333")),))
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)

    await ledger.commit(peer_promises.peer_heard, an_identity(database=NEW_DATABASE), NOW)

    assert 1 == await steps.forget_unasked(ledger, NOW - DAY)


async def test_old_notifications_are_forgotten_only_for_an_asker_that_has_not_asked(ledger: Ledger, wall: Hands) -> None:
    copies = (Copy(THERE, THEIR_DATABASE), Copy(OTHER, NEW_DATABASE))
    stored = await accept(ledger, copies=copies)
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)
    wall.at = NOW + 2 * DAY
    await ledger.discards_for(THERE, THEIR_DATABASE, 9)

    count = await steps.forget_unasked(ledger, NOW + DAY)

    assert 1 == count
    assert 1 == len((await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events)
    assert () == (await ledger.discards_for(OTHER, NEW_DATABASE, 9)).events
