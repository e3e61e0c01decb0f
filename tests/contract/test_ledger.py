"""What every implementation of the port `Ledger` does. Run against the threaded one and the inline one, on real files.

Long because the port is: a section for each of its promises, on fixtures that all of them share.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId, ServerName
from shadowrelay.model.ownership import Choice, Copy, CopyNumber, DiscardEvent, DiscardStatus, Notification, Role, Transition
from shadowrelay.model.peers import Seen
from shadowrelay.model.queue import WAITS_FOR_COPY, FailureKind, HeldCopy, Origin, QueueKind, ShadowGroup, StoredMessage
from shadowrelay.model.replies import ContentCorrupt, LedgerUnavailable
from shadowrelay.ownership.primary import handing_over, released_acknowledged, taken_back
from shadowrelay.ownership.rules import Party
from shadowrelay.pipeline.delivery_rules import Step
from shadowrelay.ports import Ledger
from tests.kit.ledger import (
    DAY,
    HERE,
    NEW_DATABASE,
    NOW,
    OTHER,
    THEIR_DATABASE,
    THERE,
    Refused,
    Wall,
    a_claim,
    a_content,
    a_ledger,
    a_message_id,
    a_new_message,
    a_retry,
    a_side,
    a_spooled_content,
    all_done,
    an_attempt,
    an_envelope,
    an_identity,
    choose,
    discarded,
    keep_copy,
    nothing,
    promote,
    refuse,
    release,
    released_heard,
    remove,
    some_done,
    yield_to,
)

SECOND = timedelta(seconds=1)


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture(params=["threaded", "inline"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path, wall: Wall) -> AsyncIterator[Ledger]:
    async with a_ledger(tmp_path, wall.now, inline=request.param == "inline") as opened:
        yield opened


async def accept(ledger: Ledger, *, decided: bool = True, **changes: object):
    message = a_new_message(**changes)  # type: ignore[arg-type]
    return await ledger.record_accepted(message, a_content(), decided=decided)


HOP = "store.corp.example:25"


async def queue(ledger: Ledger, next_hop: str = HOP, at: datetime = NOW, **changes: Any) -> StoredMessage:
    """A message in one delivery queue."""
    stored = await accept(ledger)
    await ledger.record_queued(stored.envelope.message_id, (a_retry(next_hop, attempts_next_at=at, **changes),))
    found = await ledger.load(stored.envelope.message_id)
    assert found is not None
    return found


async def hold(ledger: Ledger, recipients_count: int = 1):
    message = a_new_message(Role.SHADOW, recipients_count)
    await ledger.record_hold(message, a_content(), keep_copy)
    stored = await ledger.load(message.envelope.message_id)
    assert stored is not None
    return stored


# accepting and holding
async def test_an_accepted_message_is_loaded_as_it_was_stored(ledger: Ledger) -> None:
    message = replace(a_new_message(recipients_count=3), envelope=an_envelope(3, ret="HDRS", envid="x", smtputf8=True))

    stored = await ledger.record_accepted(message, a_content(), decided=True)

    assert message.envelope == stored.envelope
    assert message.claim == stored.claim
    assert (Origin.CLIENT, NOW, True) == (stored.origin, stored.due_at, stored.is_decided)
    assert stored == await ledger.load(message.envelope.message_id)


async def test_an_unknown_message_is_none(ledger: Ledger) -> None:
    assert await ledger.load(a_message_id()) is None
    assert await ledger.load_many([a_message_id()]) == ()


async def test_a_second_message_with_the_same_id_is_refused_with_451(ledger: Ledger) -> None:
    stored = await accept(ledger)

    with pytest.raises(LedgerUnavailable, match=r"451 4\.3\.0"):
        await ledger.record_accepted(a_new_message(message_id=stored.envelope.message_id), a_content(), decided=True)
    assert stored == await ledger.load(stored.envelope.message_id)


async def test_content_comes_back_byte_for_byte(ledger: Ledger) -> None:
    content = a_content(bytes(range(256)) * 40)
    stored = await ledger.record_accepted(a_new_message(), content, decided=True)
    assert stored.place is not None

    assert content == await ledger.read_content(stored.place)


async def test_a_large_content_comes_back_as_a_file_and_the_spooled_one_is_gone(ledger: Ledger, tmp_path: Path) -> None:
    data = b"large" * 300_000
    content = a_spooled_content(tmp_path, data)
    stored = await ledger.record_accepted(a_new_message(), content, decided=True)
    assert stored.place is not None

    found = await ledger.read_content(stored.place)

    assert found.path is not None
    assert data == found.path.read_bytes()
    assert content.path is not None
    assert not content.path.exists()


async def test_a_large_content_whose_message_was_refused_is_left_to_the_caller(ledger: Ledger, tmp_path: Path) -> None:
    stored = await accept(ledger)
    content = a_spooled_content(tmp_path, b"large" * 300_000)

    with pytest.raises(LedgerUnavailable):
        await ledger.record_accepted(a_new_message(message_id=stored.envelope.message_id), content, decided=True)
    assert content.path is not None
    assert content.path.exists()
    assert [] == list((tmp_path / "content" / "large").iterdir())


async def test_a_copy_is_held_with_its_envelope_and_content(ledger: Ledger) -> None:
    message = a_new_message(Role.SHADOW)

    transition = await ledger.record_hold(message, a_content(b"copy\r\n"), keep_copy)

    stored = await ledger.load(message.envelope.message_id)
    assert stored is not None
    assert stored.place is not None
    assert transition.before is None
    assert (message.envelope, a_claim(Role.SHADOW), None) == (stored.envelope, stored.claim, stored.due_at)
    assert b"copy\r\n" == (await ledger.read_content(stored.place)).data


async def test_a_copy_placed_anew_replaces_claim_envelope_and_content(ledger: Ledger) -> None:
    first = await hold(ledger)
    anew = replace(a_new_message(Role.SHADOW), envelope=replace(first.envelope, subject="anew"))
    number = CopyNumber(1, 2, THEIR_DATABASE)

    await ledger.record_hold(anew, a_content(b"anew\r\n"), lambda _, before: Transition(before, replace(first.claim, number=number)))

    stored = await ledger.load(first.envelope.message_id)
    assert stored is not None
    assert stored.place is not None
    assert ("anew", number) == (stored.envelope.subject, stored.claim.number)
    assert b"anew\r\n" == (await ledger.read_content(stored.place)).data


async def test_a_superseded_copy_changes_nothing(ledger: Ledger) -> None:
    first = await accept(ledger)

    transition = await ledger.record_hold(a_new_message(Role.SHADOW, message_id=first.envelope.message_id), a_content(b"other"), nothing)

    assert not transition.changed
    assert first == await ledger.load(first.envelope.message_id)


# ownership
async def test_a_transition_writes_what_after_says(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=60)
    after = replace(
        stored.claim,
        number=CopyNumber(2, 7, NEW_DATABASE),
        done=frozenset({1, 2, 3, 40}),
        asked=frozenset({THERE, OTHER}),
        copies=(Copy(THERE, NO_DATABASE), Copy(OTHER, NEW_DATABASE, Choice.HANDED_OVER)),
    )

    (transition,) = await ledger.transition([stored.envelope.message_id], lambda _, before: Transition(before, after))

    assert stored.claim == transition.before
    assert after == (await ledger.load(stored.envelope.message_id)).claim  # type: ignore[union-attr]


async def test_a_transition_of_several_sees_the_effect_of_its_own_earlier_steps(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)
    message_id = stored.envelope.message_id
    steps = iter((some_done(1), some_done(2)))

    await ledger.transition([message_id, message_id], lambda message_id, before: next(steps)(message_id, before))

    assert frozenset({1, 2}) == (await ledger.load(message_id)).claim.done  # type: ignore[union-attr]


async def test_what_decide_raises_reaches_the_caller_and_nothing_happened(ledger: Ledger) -> None:
    stored = await accept(ledger)
    position = ledger.position

    with pytest.raises(Refused):
        await ledger.transition([stored.envelope.message_id], refuse)
    assert stored == await ledger.load(stored.envelope.message_id)
    assert position == ledger.position


async def test_after_none_deletes_the_message(ledger: Ledger) -> None:
    stored = await accept(ledger)

    await ledger.transition([stored.envelope.message_id], remove)

    assert await ledger.load(stored.envelope.message_id) is None
    assert () == await ledger.primaries_listed_on(THERE, 10)


async def test_a_promoted_message_is_in_submission_and_says_where_it_came_from(ledger: Ledger, wall: Wall) -> None:
    stored = await hold(ledger)
    wall.at = NOW + SECOND

    await ledger.transition([stored.envelope.message_id], promote)

    (found,) = await ledger.submission(10)
    assert (True, THERE, NOW + SECOND, Origin.SHADOW) == (found.is_promoted, found.promoted_from, found.due_at, found.origin)


async def test_a_verdict_makes_the_message_decided_and_puts_it_in_submission(ledger: Ledger) -> None:
    stored = await accept(ledger, decided=False)
    assert () == await ledger.submission(10)

    await ledger.record_verdict(stored.envelope.message_id, choose)

    (found,) = await ledger.submission(10)
    assert found.is_decided
    assert Choice.CHOSEN is found.claim.copies[0].choice


async def test_a_released_message_loses_its_content_and_stays_known(ledger: Ledger) -> None:
    stored = await accept(ledger)

    await ledger.transition([stored.envelope.message_id], release)

    found = await ledger.load(stored.envelope.message_id)
    assert found is not None
    assert (Role.RELEASED, None, None) == (found.claim.role, found.place, found.due_at)


async def test_a_message_never_seen_may_become_known_as_delivered(ledger: Ledger) -> None:
    message_id = a_message_id()

    await ledger.transition([message_id], lambda _, before: Transition(before, a_claim(Role.DELIVERED, done=frozenset({1}))))

    assert Role.DELIVERED is (await ledger.load(message_id)).claim.role  # type: ignore[union-attr]


async def test_a_primary_that_yields_is_a_shadow_message_that_is_in_no_queue(ledger: Ledger) -> None:
    stored, queued = await accept(ledger), await queue(ledger)

    await ledger.transition([stored.envelope.message_id, queued.envelope.message_id], yield_to(OTHER, NEW_DATABASE))

    assert () == await ledger.submission(10) + await ledger.due(HOP, NOW + DAY, 10)
    assert () == await ledger.primaries_listed_on(THERE, 10)
    assert (ShadowGroup(OTHER, NEW_DATABASE, 2, 0),) == await ledger.shadow_groups()


# discard notifications
async def test_discards_come_in_order_and_stay_until_acknowledged(ledger: Ledger) -> None:
    ids = [(await accept(ledger)).envelope.message_id for _ in range(3)]
    for message_id in ids:
        await ledger.record_attempt(an_attempt(message_id), all_done)

    first = await ledger.discards_for(THERE, THEIR_DATABASE, 2)
    again = await ledger.discards_for(THERE, THEIR_DATABASE, 2)
    await ledger.forget_acknowledged(THERE, THEIR_DATABASE, first.events[-1].sequence, nothing)
    rest = await ledger.discards_for(THERE, THEIR_DATABASE, 2)

    assert first == again
    assert (ids, [1, 0]) == ([event.message_id for event in first.events + rest.events], [first.remaining, rest.remaining])
    assert first.events[0].sequence < first.events[1].sequence < rest.events[0].sequence
    assert {DiscardStatus.DELIVERED} == {event.status for event in first.events}


async def test_what_is_untold_is_what_its_asker_has_not_acknowledged(ledger: Ledger) -> None:
    before = await ledger.has_untold(THERE, THEIR_DATABASE)
    stored = await accept(ledger)
    await ledger.record_attempt(an_attempt(stored.envelope.message_id), all_done)

    assert (False, True) == (before, await ledger.has_untold(THERE, THEIR_DATABASE))
    assert not await ledger.has_untold(THERE, NEW_DATABASE)
    assert not await ledger.has_untold(OTHER, THEIR_DATABASE)
    reply = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    assert await ledger.has_untold(THERE, THEIR_DATABASE)
    await ledger.forget_acknowledged(THERE, THEIR_DATABASE, reply.events[-1].sequence, nothing)
    assert not await ledger.has_untold(THERE, THEIR_DATABASE)


async def test_discards_are_for_one_asker_in_one_database(ledger: Ledger) -> None:
    stored = await accept(ledger)
    await ledger.record_attempt(an_attempt(stored.envelope.message_id), all_done)

    assert () == (await ledger.discards_for(OTHER, THEIR_DATABASE, 9)).events
    assert () == (await ledger.discards_for(THERE, NEW_DATABASE, 9)).events
    assert 1 == len((await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events)


async def test_a_notification_for_a_server_whose_database_was_unknown_reaches_any_database_of_it(ledger: Ledger) -> None:
    stored = await accept(ledger, copies=(Copy(THERE, NO_DATABASE),))
    await ledger.record_attempt(an_attempt(stored.envelope.message_id), all_done)

    reply = await ledger.discards_for(THERE, NEW_DATABASE, 9)
    await ledger.forget_acknowledged(THERE, NEW_DATABASE, reply.events[0].sequence, nothing)

    assert () == (await ledger.discards_for(THERE, NEW_DATABASE, 9)).events


DISMISSED = (Copy(THERE, THEIR_DATABASE, Choice.DISMISSED), Copy(OTHER, NEW_DATABASE, Choice.CHOSEN))


async def dismiss(ledger: Ledger):
    """A message whose copy on THERE was released; and up to where THERE has heard."""
    stored = await accept(ledger, copies=DISMISSED)
    tell = (Notification(THERE, THEIR_DATABASE, DiscardStatus.RELEASED),)
    await ledger.transition([stored.envelope.message_id], lambda _, before: Transition(before, before, tell))
    reply = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    return stored.envelope.message_id, reply.events[0].sequence


async def test_a_released_that_was_heard_is_decided_on_and_forgotten(ledger: Ledger) -> None:
    message_id, sequence = await dismiss(ledger)

    def decide(_, before):
        return released_acknowledged(before, Party(THERE, THEIR_DATABASE), lease_runs=True)

    (transition,) = await ledger.forget_acknowledged(THERE, THEIR_DATABASE, sequence, decide)

    assert DISMISSED == transition.before.copies
    assert DISMISSED[1:] == (await ledger.load(message_id)).claim.copies  # type: ignore[union-attr]
    assert () == await ledger.primaries_listed_on(THERE, 9)
    assert () == (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events


async def test_a_released_heard_without_a_lease_leaves_the_server_on_the_list(ledger: Ledger) -> None:
    message_id, sequence = await dismiss(ledger)

    await ledger.forget_acknowledged(THERE, THEIR_DATABASE, sequence, released_heard)

    found = await ledger.load(message_id)
    assert found is not None
    assert Copy(THERE, THEIR_DATABASE) == found.claim.copy_on(THERE)


async def test_a_released_heard_for_a_message_that_is_gone_is_forgotten(ledger: Ledger) -> None:
    message_id, sequence = await dismiss(ledger)
    await ledger.transition([message_id], remove)

    assert () == await ledger.forget_acknowledged(THERE, THEIR_DATABASE, sequence, released_heard)
    assert () == (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events


async def test_only_a_chosen_copy_places_a_message(ledger: Ledger) -> None:
    stored = await accept(ledger, copies=DISMISSED[:1])

    assert (stored,) == await ledger.unplaced(9)


async def test_what_a_primary_told_is_recorded_with_the_sequence_that_was_reached(ledger: Ledger) -> None:
    stored = await hold(ledger)
    events = [
        DiscardEvent(7, stored.envelope.message_id, DiscardStatus.DELIVERED),
        DiscardEvent(8, a_message_id(), DiscardStatus.DELIVERED),
    ]

    first, second = await ledger.record_discards(THERE, THEIR_DATABASE, 3, events, discarded, NOW + 2 * DAY)

    assert (Role.DELIVERED, None) == (first.after.role, second.after)  # type: ignore[union-attr]
    assert 8 == await ledger.acknowledged(THERE, THEIR_DATABASE, 3)
    assert 0 == await ledger.acknowledged(THERE, THEIR_DATABASE, 4)
    found = await ledger.load(stored.envelope.message_id)
    assert found is not None
    assert found.place is not None


async def test_a_repeated_discard_reply_does_not_lower_the_sequence(ledger: Ledger) -> None:
    for sequence in (8, 5):
        event = DiscardEvent(sequence, a_message_id(), DiscardStatus.DELIVERED)
        await ledger.record_discards(THERE, THEIR_DATABASE, 3, [event], discarded, NOW)

    assert 8 == await ledger.acknowledged(THERE, THEIR_DATABASE, 3)


async def test_a_notification_waits_until_its_dsn_has_a_chosen_copy_and_then_comes_last(ledger: Ledger) -> None:
    waiting, later = await accept(ledger), await accept(ledger)
    side = a_side()
    dsn_id = side.message.envelope.message_id
    await ledger.record_attempt(an_attempt(waiting.envelope.message_id, sides=(side,)), all_done)
    await ledger.record_attempt(an_attempt(later.envelope.message_id), all_done)

    before = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    copies = (Copy(OTHER, NEW_DATABASE, Choice.CHOSEN),)
    await ledger.transition([dsn_id], lambda _, claim: Transition(claim, replace(claim, copies=copies)))  # type: ignore[type-var]
    after = await ledger.discards_for(THERE, THEIR_DATABASE, 9)

    assert [later.envelope.message_id] == [event.message_id for event in before.events]
    assert [later.envelope.message_id, waiting.envelope.message_id] == [event.message_id for event in after.events]


async def test_what_failed_while_nobody_had_a_copy_is_not_said_before_its_dsn_is_placed(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=3, copies=())
    message_id, side = stored.envelope.message_id, a_side()
    await ledger.record_attempt(an_attempt(message_id, sides=(side,)), some_done(1))

    before = await ledger.unsaid(message_id)
    assert {message_id: frozenset({1})} == await ledger.unsaid_of([message_id, side.message.envelope.message_id])
    copies = (Copy(THERE, THEIR_DATABASE, Choice.CHOSEN),)
    await ledger.transition([message_id], lambda _, claim: Transition(claim, replace(claim, copies=copies)))  # type: ignore[type-var]
    await ledger.record_attempt(an_attempt(message_id, frozenset({2})), some_done(2))
    while_waiting = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    await ledger.transition([side.message.envelope.message_id], lambda _, claim: Transition(claim, replace(claim, copies=copies)))  # type: ignore[type-var]

    assert (frozenset({1}), (), frozenset()) == (before, while_waiting.events, await ledger.unsaid(message_id))
    assert {} == await ledger.unsaid_of([message_id])
    assert [frozenset({2})] == [event.ordinals for event in (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events]
    assert () == (await ledger.discards_for(NO_SERVER, NO_DATABASE, 9)).events


@pytest.mark.parametrize("event", ["new database", "forgotten"])
async def test_what_waits_for_its_dsn_waits_on_when_its_asker_is_lost(ledger: Ledger, event: str) -> None:
    await ledger.record_peer(an_identity(), NOW)
    stored = await accept(ledger, recipients_count=2)
    message_id, side = stored.envelope.message_id, a_side()
    await ledger.record_attempt(an_attempt(message_id, sides=(side,)), some_done(1))

    if event == "forgotten":
        await ledger.record_forgotten(THERE)
    else:
        await ledger.record_peer(an_identity(database=NEW_DATABASE), NOW)

    assert frozenset({1}) == await ledger.unsaid(message_id)
    copies = (Copy(OTHER, NEW_DATABASE, Choice.CHOSEN),)
    await ledger.transition([side.message.envelope.message_id], lambda _, claim: Transition(claim, replace(claim, copies=copies)))  # type: ignore[type-var]
    assert frozenset() == await ledger.unsaid(message_id)
    assert () == (await ledger.discards_for(THERE, NEW_DATABASE, 9)).events


@pytest.mark.parametrize("end", ["delivered", "removed"])
async def test_a_notification_waits_no_longer_when_its_dsn_is_over(ledger: Ledger, end: str) -> None:
    stored = await accept(ledger)
    side = a_side()
    dsn_id = side.message.envelope.message_id
    await ledger.record_attempt(an_attempt(stored.envelope.message_id, sides=(side,)), all_done)

    if end == "delivered":
        await ledger.record_attempt(an_attempt(dsn_id), all_done)
    else:
        await ledger.transition([dsn_id], remove)

    events = (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events
    assert stored.envelope.message_id in [event.message_id for event in events]


async def test_a_dsn_is_listed_where_its_original_may_be_and_has_its_ownership(ledger: Ledger) -> None:
    stored = await accept(ledger)
    side = a_side()
    claim = replace(stored.claim, number=replace(stored.claim.number, ownership=3))
    await ledger.transition([stored.envelope.message_id], lambda _, before: Transition(before, claim))

    await ledger.record_attempt(an_attempt(stored.envelope.message_id, sides=(side,)), all_done)

    made = await ledger.load(side.message.envelope.message_id)
    assert made is not None
    assert (Role.PRIMARY, 3) == (made.claim.role, made.claim.number.ownership)
    assert [(copy.server, copy.database, Choice.LISTED) for copy in stored.claim.copies] == [
        (copy.server, copy.database, copy.choice) for copy in made.claim.copies
    ]


async def test_a_notification_waits_for_all_its_dsns(ledger: Ledger) -> None:
    stored = await accept(ledger)
    sides = (a_side(), a_side())
    await ledger.record_attempt(an_attempt(stored.envelope.message_id, sides=sides), all_done)

    counts = []
    for side in sides:
        await ledger.transition([side.message.envelope.message_id], choose)
        counts.append(len((await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events))

    assert [0, 1] == counts


async def test_a_dsn_that_is_there_already_is_not_made_again(ledger: Ledger) -> None:
    dsn = await accept(ledger, copies=(Copy(OTHER, NEW_DATABASE, Choice.CHOSEN),))
    stored = await accept(ledger)
    side = a_side(dsn.envelope.message_id)

    await ledger.record_attempt(an_attempt(stored.envelope.message_id, sides=(side,)), all_done)

    assert dsn == await ledger.load(dsn.envelope.message_id)
    assert 1 == len((await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events)


async def test_notifications_for_the_old_database_of_a_peer_are_void_once_it_shows_a_new_one(ledger: Ledger) -> None:
    await ledger.record_peer(an_identity(), NOW)
    stored = await accept(ledger)
    await ledger.record_attempt(an_attempt(stored.envelope.message_id), all_done)

    await ledger.record_peer(an_identity(database=NEW_DATABASE), NOW)

    assert () == (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events


async def test_notifications_for_a_database_that_could_not_be_recorded_yet_are_kept(ledger: Ledger) -> None:
    """The disk was full when the peer showed its new database (simulation seed 21414)."""
    await ledger.record_peer(an_identity(), NOW)
    stored = await accept(ledger, copies=(Copy(THERE, NEW_DATABASE),))
    await ledger.record_attempt(an_attempt(stored.envelope.message_id), all_done)

    assert 0 == await ledger.forget_unasked(NOW - DAY)
    assert 1 == len((await ledger.discards_for(THERE, NEW_DATABASE, 9)).events)
    await ledger.record_peer(an_identity(database=NEW_DATABASE), NOW)
    assert 1 == len((await ledger.discards_for(THERE, NEW_DATABASE, 9)).events)


async def test_what_is_too_much_to_remove_at_once_is_removed_later_also_for_a_database_that_was_never_recorded(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowrelay.store.promises.AT_ONCE_MAX", 0)
    await ledger.record_peer(an_identity(), NOW)
    stored = await accept(ledger, copies=(Copy(THERE, DatabaseId("33333333-3333-4333-8333-333333333333")),))
    await ledger.record_attempt(an_attempt(stored.envelope.message_id), all_done)

    await ledger.record_peer(an_identity(database=NEW_DATABASE), NOW)

    assert 1 == await ledger.forget_unasked(NOW - DAY)


async def test_old_notifications_are_forgotten_only_for_an_asker_that_has_not_asked(ledger: Ledger, wall: Wall) -> None:
    copies = (Copy(THERE, THEIR_DATABASE), Copy(OTHER, NEW_DATABASE))
    stored = await accept(ledger, copies=copies)
    await ledger.record_attempt(an_attempt(stored.envelope.message_id), all_done)
    wall.at = NOW + 2 * DAY
    await ledger.discards_for(THERE, THEIR_DATABASE, 9)

    count = await ledger.forget_unasked(NOW + DAY)

    assert 1 == count
    assert 1 == len((await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events)
    assert () == (await ledger.discards_for(OTHER, NEW_DATABASE, 9)).events


# delivery
async def test_a_delivered_message_leaves_the_queue_and_keeps_its_content_for_safety_net(ledger: Ledger) -> None:
    stored = await accept(ledger)

    transition = await ledger.record_attempt(an_attempt(stored.envelope.message_id), all_done)

    found = await ledger.load(stored.envelope.message_id)
    assert found is not None
    assert transition.after == found.claim
    assert (Role.DELIVERED, None, NOW + 2 * DAY) == (found.claim.role, found.due_at, found.keep_until)
    assert found.place == stored.place
    assert () == await ledger.submission(9)


async def test_an_attempt_without_success_puts_all_forks_into_their_queues(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=3)
    failed, other = a_retry("a:25", frozenset({1})), a_retry("b:25", frozenset({2, 3}), failures_count=0, kind=FailureKind.QUEUED)

    await ledger.record_attempt(
        an_attempt(stored.envelope.message_id, frozenset(), next_hop="a:25", retry=failed, others=(other,)), nothing
    )

    assert {failed, other} == set((await ledger.load(stored.envelope.message_id)).retries)  # type: ignore[union-attr]
    assert () == await ledger.submission(9)


async def test_an_attempt_changes_its_own_fork_and_leaves_the_others_as_they_are(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=3)
    message_id = stored.envelope.message_id
    first = (a_retry("a:25", frozenset({1})), a_retry("b:25", frozenset({2, 3})))
    await ledger.record_queued(message_id, first)
    again = a_retry("b:25", frozenset({3}), failures_count=2, delay_notified=True, waits_for=THERE, notice_at=NOW + DAY)
    stale = a_retry("a:25", frozenset({1}), failures_count=9)

    await ledger.record_attempt(an_attempt(message_id, frozenset({2}), next_hop="b:25", retry=again, others=(stale,)), some_done(2))

    found = await ledger.load(message_id)
    assert found is not None
    assert ({first[0], again}, frozenset({2})) == (set(found.retries), found.claim.done)


async def test_a_fork_that_is_done_leaves_its_queue(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)
    message_id = stored.envelope.message_id
    rest = a_retry("b:25", frozenset({2}))
    await ledger.record_queued(message_id, (a_retry("a:25", frozenset({1})), rest))

    await ledger.record_attempt(an_attempt(message_id, next_hop="a:25"), some_done(1))

    assert (rest,) == (await ledger.load(message_id)).retries  # type: ignore[union-attr]
    assert () == await ledger.due("a:25", NOW + DAY, 9)


async def test_a_fork_of_a_message_in_no_queue_that_is_done_leaves_the_rest_in_submission(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)

    await ledger.record_attempt(an_attempt(stored.envelope.message_id, next_hop="a:25"), some_done(1))

    assert [stored.envelope.message_id] == [message.envelope.message_id for message in await ledger.submission(9)]


async def test_forks_may_be_recorded_in_one_commit(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)
    message_id = stored.envelope.message_id
    one, two = a_retry("a:25", frozenset({1})), a_retry("b:25", frozenset({2}))

    await asyncio.gather(
        ledger.record_attempt(an_attempt(message_id, frozenset(), next_hop="a:25", retry=one, others=(two,)), nothing),
        ledger.record_attempt(an_attempt(message_id, frozenset({2}), next_hop="b:25", others=()), some_done(2)),
    )

    assert (one,) == (await ledger.load(message_id)).retries  # type: ignore[union-attr]


async def test_a_message_that_was_released_leaves_its_queues(ledger: Ledger) -> None:
    stored = await queue(ledger)

    await ledger.transition([stored.envelope.message_id], release)

    assert () == (await ledger.load(stored.envelope.message_id)).retries  # type: ignore[union-attr]
    assert {} == await ledger.delivery_queues()


async def test_due_gives_the_forks_of_one_queue_oldest_first(ledger: Ledger) -> None:
    stored = [await queue(ledger, at=NOW + offset * SECOND) for offset in (3, 1, 2, 60)]
    await queue(ledger, next_hop="elsewhere:25")
    ids = [message.envelope.message_id for message in stored]

    found = await ledger.due(HOP, NOW + 10 * SECOND, 9)

    assert [ids[1], ids[2], ids[0]] == [message.envelope.message_id for message in found]
    assert ids[1:2] == [message.envelope.message_id for message in await ledger.due(HOP, NOW + 10 * SECOND, 1)]
    assert NOW + 60 * SECOND == await ledger.next_due_at(HOP, NOW + 10 * SECOND)
    assert await ledger.next_due_at(HOP, NOW + 60 * SECOND) is None
    assert {HOP: NOW + SECOND, "elsewhere:25": NOW} == await ledger.delivery_queues()


async def test_submission_gives_what_is_in_no_queue_in_pages(ledger: Ledger) -> None:
    stored = [await accept(ledger) for _ in range(3)]
    await queue(ledger)
    await hold(ledger)

    first = await ledger.submission(2)
    rest = await ledger.submission(2, after=first[-1].internal_id)

    assert [message.envelope.message_id for message in stored] == [message.envelope.message_id for message in (*first, *rest)]


async def test_a_verdict_that_was_not_recorded_is_recorded_with_the_queue(ledger: Ledger) -> None:
    stored = await accept(ledger, decided=False)

    await ledger.record_queued(stored.envelope.message_id, (a_retry(HOP),), (), choose)

    (found,) = await ledger.due(HOP, NOW + DAY, 9)
    assert (True, Choice.CHOSEN) == (found.is_decided, found.claim.copies[0].choice)


async def test_a_fork_moves_to_another_queue(ledger: Ledger) -> None:
    stored = await queue(ledger)
    there = a_retry("new:25")

    await ledger.record_queued(stored.envelope.message_id, (there,), (HOP,))

    assert (there,) == (await ledger.load(stored.envelope.message_id)).retries  # type: ignore[union-attr]


async def test_what_is_no_primary_message_enters_no_queue(ledger: Ledger) -> None:
    stored = await hold(ledger)

    await ledger.record_queued(stored.envelope.message_id, (a_retry(HOP),))

    assert {} == await ledger.delivery_queues()


async def test_a_server_wakes_what_waits_for_it_and_nothing_else(ledger: Ledger, wall: Wall) -> None:
    waiting = [await queue(ledger, at=NOW + DAY, waits_for=THERE) for _ in range(3)]
    await queue(ledger, at=NOW + DAY, waits_for=OTHER)
    await queue(ledger, at=NOW + DAY)
    assert {THERE, OTHER} == set(await ledger.waited_for())
    wall.at = NOW + SECOND

    counts = [await ledger.wake_waiting(THERE, 2) for _ in range(3)]

    assert [{HOP: 2}, {HOP: 1}, {}] == counts
    due = await ledger.due(HOP, NOW + SECOND, 9)
    assert {message.envelope.message_id for message in waiting} == {message.envelope.message_id for message in due}
    assert {NO_SERVER} == {retry.waits_for for message in due for retry in message.retries}
    assert (OTHER,) == await ledger.waited_for()


async def test_what_enters_a_queue_in_the_same_commit_is_woken_too(ledger: Ledger) -> None:
    stored = await accept(ledger)

    _, counts = await asyncio.gather(
        ledger.record_queued(stored.envelope.message_id, (a_retry(HOP, attempts_next_at=NOW + DAY, waits_for=THERE),)),
        ledger.wake_waiting(THERE, 9),
    )

    assert {HOP: 1} == counts


async def test_a_queue_keeps_what_entered_it_before_and_after_a_server_woke_others_in_the_same_commit(ledger: Ledger) -> None:
    stored = [await accept(ledger) for _ in range(2)]

    await asyncio.gather(
        ledger.record_queued(stored[0].envelope.message_id, (a_retry(HOP),)),
        ledger.wake_waiting(THERE, 9),
        ledger.record_queued(stored[1].envelope.message_id, (a_retry(HOP),)),
    )

    assert 2 == len(await ledger.due(HOP, NOW + DAY, 9))


async def test_nobody_waits_for_no_server(ledger: Ledger) -> None:
    await queue(ledger, at=NOW + DAY)

    assert {} == await ledger.wake_waiting(NO_SERVER, 9)


async def test_a_copy_makes_due_what_waited_for_it(ledger: Ledger) -> None:
    stored = await queue(ledger, at=NOW + DAY, waits_for=WAITS_FOR_COPY)

    await ledger.transition([stored.envelope.message_id], choose)

    assert [stored.envelope.message_id] == [message.envelope.message_id for message in await ledger.due(HOP, NOW, 9)]


async def test_a_wait_beyond_its_step_of_the_ladder_is_cut_short(ledger: Ledger) -> None:
    step = Step(FailureKind.MESSAGE, 0, 1, 10 * SECOND)
    at_that_step = {"kind": FailureKind.MESSAGE, "failures_count": 1}
    await queue(ledger, at=NOW + DAY, **at_that_step)
    await queue(ledger, at=NOW + SECOND, **at_that_step)
    await queue(ledger, at=NOW + DAY, kind=FailureKind.MESSAGE, failures_count=2)
    await queue(ledger, at=NOW + DAY, kind=FailureKind.CONNECTION, failures_count=1)
    await queue(ledger, at=NOW + DAY, waits_for=THERE, **at_that_step)

    assert 1 == await ledger.hasten(HOP, step, NOW + 10 * SECOND, 9)

    assert NOW + 10 * SECOND == await ledger.next_due_at(HOP, NOW + SECOND)
    assert 0 == await ledger.hasten(HOP, step, NOW + 10 * SECOND, 9)


async def test_notices_are_given_by_their_time(ledger: Ledger) -> None:
    late, later = await queue(ledger, notice_at=NOW + SECOND), await queue(ledger, notice_at=NOW)
    await queue(ledger, notice_at=NOW + DAY)
    await queue(ledger, notice_at=None)

    found = await ledger.notices_due(NOW + SECOND, 9)

    assert [later.envelope.message_id, late.envelope.message_id] == [message.envelope.message_id for message in found]


async def test_nothing_is_due_in_an_empty_database(ledger: Ledger) -> None:
    assert await ledger.next_due_at(HOP, NOW) is None
    assert () == await ledger.due(HOP, NOW, 9) + await ledger.submission(9) + await ledger.waited_for()
    assert {} == await ledger.delivery_queues()


async def test_a_message_set_aside_is_in_no_delivery_queue_and_is_listed_with_its_reason(ledger: Ledger) -> None:
    stored = await accept(ledger)

    await ledger.record_set_aside(stored.envelope.message_id, "died three times")

    (found,) = await ledger.messages("Server\\Poison", 9)
    assert (found,) == await ledger.messages("Poison", 9)
    assert (Role.SET_ASIDE, "died three times") == (found.claim.role, found.set_aside_reason)
    assert () == await ledger.submission(9) + await ledger.due(HOP, NOW + DAY, 9)


async def test_what_is_set_aside_can_be_handed_over_in_the_same_commit(ledger: Ledger) -> None:
    stored = await accept(ledger)
    message_id = stored.envelope.message_id
    tell = (Notification(THERE, THEIR_DATABASE, DiscardStatus.YOURS),)
    position = ledger.position

    await ledger.record_set_aside(message_id, "died three times", lambda _, claim: Transition(claim, claim, tell))

    assert position + 1 == ledger.position
    reply = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    assert [(message_id, DiscardStatus.YOURS)] == [(event.message_id, event.status) for event in reply.events]
    (found,) = await ledger.messages("Server\\Poison", 9)
    assert (found,) == await ledger.messages("Poison", 9)
    assert "died three times" == found.set_aside_reason


async def test_what_is_taken_back_is_due_at_once_and_suspected_no_more(ledger: Ledger) -> None:
    stored = await accept(ledger)
    message_id = stored.envelope.message_id
    await ledger.record_set_aside(message_id, "died three times")

    unchanged = await ledger.record_taken_back(message_id, lambda _, claim: Transition(claim, claim))
    assert not unchanged.changed
    assert () == await ledger.submission(9)
    await ledger.record_taken_back(message_id, lambda _, claim: taken_back(claim))

    (found,) = await ledger.submission(9)
    assert (Role.PRIMARY, "", 0) == (found.claim.role, found.set_aside_reason, found.deaths_count)
    assert () == await ledger.messages("Server\\Poison", 9)


# reading
async def test_unplaced_gives_decided_primaries_without_a_chosen_copy(ledger: Ledger) -> None:
    chosen, first, _undecided, second, third = [await accept(ledger, decided=number != 2) for number in range(5)]
    await ledger.transition([chosen.envelope.message_id], choose)

    pages = [
        await ledger.unplaced(2),
        await ledger.unplaced(2, after=second.internal_id),
        await ledger.unplaced(2, after=third.internal_id),
    ]

    assert [(first, second), (third,), ()] == pages


async def test_primaries_listed_on_a_server_come_in_pages(ledger: Ledger) -> None:
    stored = [await accept(ledger) for _ in range(3)]
    await accept(ledger, copies=(Copy(OTHER, NEW_DATABASE),))

    first = await ledger.primaries_listed_on(THERE, 2)
    rest = await ledger.primaries_listed_on(THERE, 2, after=first[-1].internal_id)

    assert [message.internal_id for message in stored] == [message.internal_id for message in first + rest]


async def test_shadows_are_counted_and_paged_by_primary_and_database(ledger: Ledger) -> None:
    stored = [await hold(ledger) for _ in range(3)]
    handed = stored[1].envelope.message_id
    await ledger.transition([handed], lambda _, before: Transition(before, replace(before, handed=True)))  # type: ignore[type-var]

    page = await ledger.shadows_of(THERE, THEIR_DATABASE, 2)

    assert (ShadowGroup(THERE, THEIR_DATABASE, 3, 1),) == await ledger.shadow_groups()
    assert [stored[0], replace(stored[1], claim=page[1].claim)] == list(page)
    assert 1 == len(await ledger.shadows_of(THERE, THEIR_DATABASE, 9, after=page[-1].internal_id))
    assert [handed] == [found.envelope.message_id for found in await ledger.shadows_of(THERE, THEIR_DATABASE, 9, handed_only=True)]
    assert () == await ledger.shadows_of(THERE, NEW_DATABASE, 9)
    assert () == await ledger.copies_of(THERE, NEW_DATABASE, 9)
    held = tuple(HeldCopy(found.internal_id, found.envelope.message_id, found.claim.number) for found in page)
    assert held == await ledger.copies_of(THERE, THEIR_DATABASE, 2)


# peers
async def test_a_peer_is_remembered_with_the_highest_position_seen(ledger: Ledger) -> None:
    assert ledger.seen(THERE) is None
    await ledger.record_peer(an_identity(position=10), NOW)
    await ledger.record_peer(an_identity(position=7), NOW + SECOND)

    (row,) = await ledger.peers()
    assert Seen(1, 1, 10) == ledger.seen(THERE)
    assert (THERE, THEIR_DATABASE, NOW + SECOND, False) == (row.server, row.database, row.heard_at, row.is_forgotten)


async def test_every_database_of_a_server_is_recognised_this_nodes_own_too(ledger: Ledger) -> None:
    await ledger.record_peer(an_identity(), NOW)
    await ledger.record_peer(an_identity(database=NEW_DATABASE, position=2), NOW)

    assert Seen(1, 1, 2) == ledger.seen(THERE)
    assert [THERE, THERE, HERE] == [ledger.server_of(each) for each in (THEIR_DATABASE, NEW_DATABASE, ledger.identity.database)]
    assert NO_SERVER == ledger.server_of(DatabaseId("unknown"))


async def test_a_forgotten_peer_is_off_every_list_until_it_is_heard_again(ledger: Ledger) -> None:
    await ledger.record_peer(an_identity(), NOW)
    stored, done = await accept(ledger), await accept(ledger)
    await ledger.record_attempt(an_attempt(done.envelope.message_id), all_done)

    await ledger.record_forgotten(THERE)

    assert () == await ledger.primaries_listed_on(THERE, 9)
    assert () == (await ledger.load(stored.envelope.message_id)).claim.copies  # type: ignore[union-attr]
    assert () == (await ledger.discards_for(THERE, THEIR_DATABASE, 9)).events
    assert (await ledger.peers())[0].is_forgotten
    await ledger.record_peer(an_identity(), NOW)
    assert not (await ledger.peers())[0].is_forgotten


async def test_a_message_handed_over_to_a_peer_that_is_forgotten_is_claimed_again(ledger: Ledger) -> None:
    stored = await accept(ledger, role=Role.PRIMARY, copies=(Copy(THERE, THEIR_DATABASE, Choice.CHOSEN),))
    await ledger.transition([stored.envelope.message_id], lambda _, before: handing_over(before))
    assert () == await ledger.submission(9)

    await ledger.record_forgotten(THERE)

    assert [Role.PRIMARY] == [found.claim.role for found in await ledger.submission(9)]


# housekeeping
async def test_expired_shadow_messages_are_given_back_and_gone(ledger: Ledger) -> None:
    stored = await hold(ledger)

    assert () == await ledger.expire(NOW + 4 * DAY - SECOND, 9)
    assert (stored,) == await ledger.expire(NOW + 4 * DAY, 9)
    assert await ledger.load(stored.envelope.message_id) is None


async def test_a_delivered_message_stays_known_until_its_time_and_no_longer(ledger: Ledger) -> None:
    stored = await accept(ledger)
    await ledger.record_attempt(an_attempt(stored.envelope.message_id), all_done)

    assert () == await ledger.expire(NOW + 4 * DAY - SECOND, 9)
    assert await ledger.load(stored.envelope.message_id) is not None
    assert () == await ledger.expire(NOW + 4 * DAY, 9)
    assert await ledger.load(stored.envelope.message_id) is None


async def test_a_delivered_message_is_remembered_as_long_as_the_attempt_says(ledger: Ledger) -> None:
    stored = await accept(ledger)
    await ledger.record_attempt(an_attempt(stored.envelope.message_id, remember_until=NOW + 9 * DAY), all_done)

    await ledger.expire(NOW + 9 * DAY - SECOND, 9)
    assert await ledger.load(stored.envelope.message_id) is not None
    await ledger.expire(NOW + 9 * DAY, 9)
    assert await ledger.load(stored.envelope.message_id) is None


async def test_an_unfinished_message_does_not_expire(ledger: Ledger) -> None:
    stored = await accept(ledger)

    await ledger.expire(NOW + 1000 * DAY, 9)

    assert stored == await ledger.load(stored.envelope.message_id)


async def test_expire_is_not_held_up_by_what_it_need_not_give_back(ledger: Ledger) -> None:
    done = [await accept(ledger) for _ in range(5)]
    for message in done:
        await ledger.record_attempt(an_attempt(message.envelope.message_id), all_done)
    stored = await hold(ledger)

    assert (stored,) == await ledger.expire(NOW + 5 * DAY, 2)
    assert () == await ledger.load_many([message.envelope.message_id for message in done])


async def test_expire_takes_at_most_its_limit(ledger: Ledger) -> None:
    for _ in range(5):
        await hold(ledger)

    assert [2, 2, 1] == [len(await ledger.expire(NOW + 5 * DAY, 2)) for _ in range(3)]


async def test_the_queues_are_listed_with_depth_and_oldest_age(ledger: Ledger) -> None:
    await accept(ledger)
    await queue(ledger, at=NOW + timedelta(minutes=1))
    done = await accept(ledger)
    await ledger.record_attempt(an_attempt(done.envelope.message_id), all_done)
    held = [await hold(ledger) for _ in range(2)]
    event = DiscardEvent(1, held[0].envelope.message_id, DiscardStatus.DELIVERED)
    await ledger.record_discards(THERE, THEIR_DATABASE, 1, [event], discarded, NOW + 2 * DAY)

    found = {row.identity.partition("\\")[2]: row for row in await ledger.queues()}

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
    await ledger.record_set_aside(aside.envelope.message_id, "no")
    done = await accept(ledger)
    await ledger.record_attempt(an_attempt(done.envelope.message_id), all_done)

    for row in await ledger.queues():
        assert row.count == len(await ledger.messages(row.identity, 9)), row.identity
        assert () == await ledger.messages(row.identity, 9, after=1000)
    unfinished = [row for row in await ledger.queues() if row.kind not in (QueueKind.SAFETY_NET_PRIMARY, QueueKind.SAFETY_NET_SHADOW)]
    assert sum(row.count for row in unfinished) == len(await ledger.messages("", 99))


async def test_messages_of_an_unknown_queue_are_none(ledger: Ledger) -> None:
    assert () == await ledger.messages("Server\\nowhere:25", 9)
    assert () == await ledger.messages("Server\\Shadow\\7", 9) == await ledger.messages("Shadow\\7", 9)


async def test_content_that_is_gone_is_corrupt(ledger: Ledger) -> None:
    stored = await accept(ledger)
    assert stored.place is not None

    with pytest.raises(ContentCorrupt):
        await ledger.read_content(replace(stored.place, segment=99))


# the position
async def test_every_commit_raises_the_position(ledger: Ledger) -> None:
    first = ledger.position
    stored = await accept(ledger)
    second = ledger.position
    await ledger.record_verdict(stored.envelope.message_id, choose)

    assert first < second < ledger.position


async def test_promises_made_at_once_are_applied_in_the_order_of_the_calls(ledger: Ledger) -> None:
    message = a_new_message(recipients_count=2)
    message_id = message.envelope.message_id

    _, _, attempt, transitions = await asyncio.gather(
        ledger.record_accepted(message, a_content(), decided=False),
        ledger.record_verdict(message_id, choose),
        ledger.record_attempt(an_attempt(message_id), some_done(1)),
        ledger.transition([message_id], some_done(2)),
    )

    assert frozenset({1}) == attempt.after.done  # type: ignore[union-attr]
    assert frozenset({1, 2}) == transitions[0].after.done  # type: ignore[union-attr]
    found = await ledger.load(message_id)
    assert found is not None
    assert (frozenset({1, 2}), True, Choice.CHOSEN) == (found.claim.done, found.is_decided, found.claim.copies[0].choice)
    assert ServerName(THERE) == found.claim.copies[0].server


async def test_forks_that_were_recorded_before_a_wake_stay_when_others_are_recorded_after_it(ledger: Ledger) -> None:
    first, second = await accept(ledger), await accept(ledger)

    await asyncio.gather(
        ledger.record_queued(first.envelope.message_id, (a_retry("a:25"),)),
        ledger.wake_waiting(THERE, 9),
        ledger.record_queued(second.envelope.message_id, (a_retry("b:25"),)),
    )

    for message_id, next_hop in ((first.envelope.message_id, "a:25"), (second.envelope.message_id, "b:25")):
        assert [message_id] == [message.envelope.message_id for message in await ledger.due(next_hop, NOW + DAY, 9)]
