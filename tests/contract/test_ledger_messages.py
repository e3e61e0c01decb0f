"""The ledger: messages are stored, change their claims, are read, and each commit raises the position."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from shadowrelay.model.ids import NO_DATABASE, ServerName
from shadowrelay.model.ownership import Choice, Copy, CopyNumber, Role, Transition
from shadowrelay.model.queue import HeldCopy, LoneMessages, Origin, ShadowGroup
from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.model.values import replace
from shadowrelay.store import lone_messages, promises, reading
from shadowrelay.store.ledger import Ledger
from tests.kit.clock import Hands
from tests.kit.ledger import (
    DAY,
    HOP,
    NEW_DATABASE,
    NOW,
    OTHER,
    SECOND,
    THEIR_DATABASE,
    THERE,
    Refused,
    a_claim,
    a_content,
    a_message_id,
    a_new_message,
    a_retry,
    a_spooled_content,
    accept,
    an_attempt,
    an_envelope,
    choose,
    hold,
    keep_copy,
    nothing,
    promote,
    queue,
    refuse,
    release,
    remove,
    some_done,
    yield_to,
)

ON_THERE = Copy(THERE, THEIR_DATABASE, Choice.CHOSEN)
ON_OTHER = Copy(OTHER, NEW_DATABASE, Choice.CHOSEN)


# accepting and holding
async def test_an_accepted_message_is_loaded_as_it_was_stored(ledger: Ledger) -> None:
    message = replace(a_new_message(recipients_count=3), envelope=an_envelope(3, ret="HDRS", envid="x", smtputf8=True))

    stored = await ledger.commit(promises.accepted, message, a_content(), decided=True)

    assert message.envelope == stored.envelope
    assert message.claim == stored.claim
    assert (Origin.CLIENT, NOW, True) == (stored.origin, stored.due_at, stored.is_decided)
    assert stored == await ledger.read(reading.load, message.envelope.message_id)


async def test_an_unknown_message_is_none(ledger: Ledger) -> None:
    assert await ledger.read(reading.load, a_message_id()) is None
    assert await ledger.read(reading.load_many, [a_message_id()]) == ()


async def test_a_second_message_with_the_same_id_is_refused_with_451(ledger: Ledger) -> None:
    stored = await accept(ledger)

    with pytest.raises(LedgerUnavailable, match=r"451 4\.3\.0"):
        await accept(ledger, message_id=stored.envelope.message_id)
    assert stored == await ledger.read(reading.load, stored.envelope.message_id)


async def test_content_comes_back_byte_for_byte(ledger: Ledger) -> None:
    content = a_content(bytes(range(256)) * 40)
    stored = await ledger.commit(promises.accepted, a_new_message(), content, decided=True)
    assert stored.place is not None

    assert content == await ledger.read_content(stored.place)


async def test_a_large_content_comes_back_as_a_file_and_the_spooled_one_is_gone(ledger: Ledger, tmp_path: Path) -> None:
    data = b"large" * 300_000
    content = a_spooled_content(tmp_path, data)
    stored = await ledger.commit(promises.accepted, a_new_message(), content, decided=True)
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
        await ledger.commit(promises.accepted, a_new_message(message_id=stored.envelope.message_id), content, decided=True)
    assert content.path is not None
    assert content.path.exists()
    assert [] == list((tmp_path / "content" / "large").iterdir())


async def test_a_copy_is_held_with_its_envelope_and_content(ledger: Ledger) -> None:
    message = a_new_message(Role.SHADOW)

    transition = await ledger.commit(promises.hold, message, a_content(b"copy\r\n"), keep_copy)

    stored = await ledger.read(reading.load, message.envelope.message_id)
    assert stored is not None
    assert stored.place is not None
    assert transition.before is None
    assert (message.envelope, a_claim(Role.SHADOW), None) == (stored.envelope, stored.claim, stored.due_at)
    assert b"copy\r\n" == (await ledger.read_content(stored.place)).data


async def test_a_copy_placed_anew_replaces_claim_envelope_and_content(ledger: Ledger) -> None:
    first = await hold(ledger)
    anew = replace(a_new_message(Role.SHADOW), envelope=replace(first.envelope, subject="anew"))
    number = CopyNumber(1, 2, THEIR_DATABASE)

    await ledger.commit(
        promises.hold, anew, a_content(b"anew\r\n"), lambda _, before: Transition(before, replace(first.claim, number=number))
    )

    stored = await ledger.read(reading.load, first.envelope.message_id)
    assert stored is not None
    assert stored.place is not None
    assert ("anew", number) == (stored.envelope.subject, stored.claim.number)
    assert b"anew\r\n" == (await ledger.read_content(stored.place)).data


async def test_a_superseded_copy_changes_nothing(ledger: Ledger) -> None:
    first = await accept(ledger)

    transition = await ledger.commit(
        promises.hold, a_new_message(Role.SHADOW, message_id=first.envelope.message_id), a_content(b"other"), nothing
    )

    assert not transition.changed
    assert first == await ledger.read(reading.load, first.envelope.message_id)


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

    (transition,) = await ledger.commit(promises.transition, [stored.envelope.message_id], lambda _, before: Transition(before, after))

    assert stored.claim == transition.before
    assert after == (await ledger.read(reading.load, stored.envelope.message_id)).claim  # type: ignore[union-attr]


async def test_a_transition_of_several_sees_the_effect_of_its_own_earlier_steps(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)
    message_id = stored.envelope.message_id
    steps = iter((some_done(1), some_done(2)))

    await ledger.commit(promises.transition, [message_id, message_id], lambda message_id, before: next(steps)(message_id, before))

    assert frozenset({1, 2}) == (await ledger.read(reading.load, message_id)).claim.done  # type: ignore[union-attr]


async def test_what_decide_raises_reaches_the_caller_and_nothing_happened(ledger: Ledger) -> None:
    stored = await accept(ledger)
    position = ledger.position

    with pytest.raises(Refused):
        await ledger.commit(promises.transition, [stored.envelope.message_id], refuse)
    assert stored == await ledger.read(reading.load, stored.envelope.message_id)
    assert position == ledger.position


async def test_after_none_deletes_the_message(ledger: Ledger) -> None:
    stored = await accept(ledger)

    await ledger.commit(promises.transition, [stored.envelope.message_id], remove)

    assert await ledger.read(reading.load, stored.envelope.message_id) is None
    assert () == await ledger.read(reading.primaries_listed_on, THERE, 10)


async def test_a_promoted_message_is_in_submission_and_says_where_it_came_from(ledger: Ledger, wall: Hands) -> None:
    stored = await hold(ledger)
    wall.at = NOW + SECOND

    await ledger.commit(promises.transition, [stored.envelope.message_id], promote)

    (found,) = await ledger.read(reading.submission, 10)
    assert (True, THERE, NOW + SECOND, Origin.SHADOW) == (found.is_promoted, found.promoted_from, found.due_at, found.origin)


async def test_a_verdict_makes_the_message_decided_and_puts_it_in_submission(ledger: Ledger) -> None:
    stored = await accept(ledger, decided=False)
    assert () == await ledger.read(reading.submission, 10)

    await ledger.commit(promises.verdict, stored.envelope.message_id, choose)

    (found,) = await ledger.read(reading.submission, 10)
    assert found.is_decided
    assert Choice.CHOSEN is found.claim.copies[0].choice


async def test_a_released_message_loses_its_content_and_stays_known(ledger: Ledger) -> None:
    stored = await accept(ledger)

    await ledger.commit(promises.transition, [stored.envelope.message_id], release)

    found = await ledger.read(reading.load, stored.envelope.message_id)
    assert found is not None
    assert (Role.RELEASED, None, None) == (found.claim.role, found.place, found.due_at)


async def test_a_message_never_seen_may_become_known_as_delivered(ledger: Ledger) -> None:
    message_id = a_message_id()

    await ledger.commit(
        promises.transition, [message_id], lambda _, before: Transition(before, a_claim(Role.DELIVERED, done=frozenset({1})))
    )

    assert Role.DELIVERED is (await ledger.read(reading.load, message_id)).claim.role  # type: ignore[union-attr]


async def test_a_primary_that_yields_is_a_shadow_message_that_is_in_no_queue(ledger: Ledger) -> None:
    stored, queued = await accept(ledger), await queue(ledger)

    await ledger.commit(promises.transition, [stored.envelope.message_id, queued.envelope.message_id], yield_to(OTHER, NEW_DATABASE))

    assert () == await ledger.read(reading.submission, 10) + await ledger.read(reading.due, HOP, NOW + DAY, 10)
    assert () == await ledger.read(reading.primaries_listed_on, THERE, 10)
    assert (ShadowGroup(OTHER, NEW_DATABASE, 2, 0),) == await ledger.read(reading.shadow_groups)


# reading
async def test_unplaced_gives_decided_primaries_without_a_chosen_copy(ledger: Ledger) -> None:
    chosen, first, _undecided, second, third = [await accept(ledger, decided=number != 2) for number in range(5)]
    await ledger.commit(promises.transition, [chosen.envelope.message_id], choose)

    pages = [
        await ledger.read(reading.unplaced, 2),
        await ledger.read(reading.unplaced, 2, after=second.internal_id),
        await ledger.read(reading.unplaced, 2, after=third.internal_id),
    ]

    assert [(first, second), (third,), ()] == pages


async def test_primaries_listed_on_a_server_come_in_pages(ledger: Ledger) -> None:
    stored = [await accept(ledger) for _ in range(3)]
    await accept(ledger, copies=(Copy(OTHER, NEW_DATABASE),))

    first = await ledger.read(reading.primaries_listed_on, THERE, 2)
    rest = await ledger.read(reading.primaries_listed_on, THERE, 2, after=first[-1].internal_id)

    assert [message.internal_id for message in stored] == [message.internal_id for message in first + rest]


async def test_shadows_are_counted_and_paged_by_primary_and_database(ledger: Ledger) -> None:
    stored = [await hold(ledger) for _ in range(3)]
    handed = stored[1].envelope.message_id
    await ledger.commit(promises.transition, [handed], lambda _, before: Transition(before, replace(before, handed=True)))  # type: ignore[type-var]

    page = await ledger.read(reading.shadows_of, THERE, THEIR_DATABASE, 2)

    assert (ShadowGroup(THERE, THEIR_DATABASE, 3, 1),) == await ledger.read(reading.shadow_groups)
    assert [stored[0], replace(stored[1], claim=page[1].claim)] == list(page)
    assert 1 == len(await ledger.read(reading.shadows_of, THERE, THEIR_DATABASE, 9, after=page[-1].internal_id))
    assert [handed] == [
        found.envelope.message_id for found in await ledger.read(reading.shadows_of, THERE, THEIR_DATABASE, 9, handed_only=True)
    ]
    assert () == await ledger.read(reading.shadows_of, THERE, NEW_DATABASE, 9)
    assert () == await ledger.read(reading.copies_of, THERE, NEW_DATABASE, 9)
    held = tuple(HeldCopy(found.internal_id, found.envelope.message_id, found.claim.number, found.keep_until) for found in page)
    assert held == await ledger.read(reading.copies_of, THERE, THEIR_DATABASE, 2)


async def test_shadows_that_are_handed_over_are_counted_by_their_kind(ledger: Ledger) -> None:
    """A takeover of what was relayed by TRACK is one of its own."""
    kinds = [(False, False), (True, False), (True, False), (False, True), (True, True)]
    for is_handed, is_kept in kinds:
        stored = await hold(ledger)
        changed = partial(replace, handed=is_handed, is_kept=is_kept)
        await ledger.commit(
            promises.transition, [stored.envelope.message_id], lambda _, before, changed=changed: Transition(before, changed(before))
        )

    (group,) = await ledger.read(reading.shadow_groups)

    assert {(False, False): 3, (True, False): 2, (False, True): 2, (True, True): 1} == {
        (handed, kept): group.count_of(kept=kept, handed=handed) for handed in (False, True) for kept in (False, True)
    }


# the position
async def test_every_commit_raises_the_position(ledger: Ledger) -> None:
    first = ledger.position
    stored = await accept(ledger)
    second = ledger.position
    await ledger.commit(promises.verdict, stored.envelope.message_id, choose)

    assert first < second < ledger.position


async def test_promises_made_at_once_are_applied_in_the_order_of_the_calls(ledger: Ledger) -> None:
    message = a_new_message(recipients_count=2)
    message_id = message.envelope.message_id

    _, _, attempt, transitions = await asyncio.gather(
        ledger.commit(promises.accepted, message, a_content(), decided=False),
        ledger.commit(promises.verdict, message_id, choose),
        ledger.commit(promises.attempt, an_attempt(message_id), some_done(1)),
        ledger.commit(promises.transition, [message_id], some_done(2)),
    )

    assert frozenset({1}) == attempt.after.done  # type: ignore[union-attr]
    assert frozenset({1, 2}) == transitions[0].after.done  # type: ignore[union-attr]
    found = await ledger.read(reading.load, message_id)
    assert found is not None
    assert (frozenset({1, 2}), True, Choice.CHOSEN) == (found.claim.done, found.is_decided, found.claim.copies[0].choice)
    assert ServerName(THERE) == found.claim.copies[0].server


async def test_forks_that_were_recorded_before_a_wake_stay_when_others_are_recorded_after_it(ledger: Ledger) -> None:
    first, second = await accept(ledger), await accept(ledger)

    await asyncio.gather(
        ledger.commit(promises.queued, first.envelope.message_id, (a_retry("a:25"),)),
        ledger.commit(promises.wake, THERE, 9),
        ledger.commit(promises.queued, second.envelope.message_id, (a_retry("b:25"),)),
    )

    for message_id, next_hop in ((first.envelope.message_id, "a:25"), (second.envelope.message_id, "b:25")):
        assert [message_id] == [message.envelope.message_id for message in await ledger.read(reading.due, next_hop, NOW + DAY, 9)]


async def test_messages_are_counted_that_lack_copies_or_have_none_on_a_living_server(ledger: Ledger) -> None:
    await accept(ledger, copies=(ON_THERE,))
    await accept(ledger, copies=(ON_THERE,))
    await accept(ledger, copies=(ON_OTHER,))
    await accept(ledger, copies=())
    await hold(ledger)

    assert LoneMessages(1, 1, 1, 1) == await ledger.read(lone_messages.lone_messages, [THERE, OTHER])
    assert LoneMessages(3, 3, 3, 3) == await ledger.read(lone_messages.lone_messages, [OTHER])
    assert LoneMessages(4, 4, 4, 4) == await ledger.read(lone_messages.lone_messages, [])


@pytest.mark.parametrize("living", [[], [OTHER], [THERE], [OTHER, THERE]])
async def test_of_very_many_messages_it_is_said_how_many_at_least_and_at_most_there_are(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, living: list[ServerName]
) -> None:
    """Those that are looked at first have a copy, and most of the others have none."""
    for copies in [(ON_OTHER,)] * 2 + [()] * 5:
        await accept(ledger, copies=copies, wanted=2)
    for copies in [(ON_THERE,)] * 3 + [(ON_OTHER, ON_THERE)] * 2:
        await accept(ledger, copies=copies)
    exact = await ledger.read(lone_messages.lone_messages, living)
    monkeypatch.setattr(lone_messages, "ALONE_MAX", 2)
    bounded = await ledger.read(lone_messages.lone_messages, living)
    monkeypatch.setattr(lone_messages, "COUNTED_MAX", 4)
    cut = await ledger.read(lone_messages.lone_messages, living)

    assert (exact.fewer_count, exact.alone_count) == (exact.fewer_max, exact.alone_max)
    for each in (bounded, cut):
        assert each.fewer_count <= exact.fewer_count <= each.fewer_max <= 12
        assert each.alone_count <= exact.alone_count <= each.alone_max <= 12
        assert each.alone_count <= each.fewer_count
        assert each.alone_count < each.alone_max, "it is not known"
    assert cut.fewer_count < cut.fewer_max


async def test_where_nobody_lives_no_small_number_is_said_of_very_many_messages(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lone_messages, "ALONE_MAX", 2)
    for _ in range(6):
        await accept(ledger, copies=(ON_THERE,))

    assert LoneMessages(6, 6, 6, 6) == await ledger.read(lone_messages.lone_messages, [])
