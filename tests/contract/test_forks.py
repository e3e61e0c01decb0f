"""The port `Ledger`: the forks of a primary message that its shadow servers are told, and those that a shadow server is told."""

from pathlib import Path

import pytest

from shadowrelay.model.message import Ordinals
from shadowrelay.model.ownership import Choice, Claim, Copy, DiscardEvent, DiscardStatus, Role, Transition
from shadowrelay.model.queue import NewMessage, Origin, QueueKind, ReportedFork, ShadowGroup
from shadowrelay.model.values import replace
from shadowrelay.store import promises, queues, reading
from shadowrelay.store.ledger import Ledger
from tests.kit.ledger import (
    HELLO,
    NEW_DATABASE,
    NOW,
    OTHER,
    THEIR_DATABASE,
    THERE,
    a_content,
    a_ledger,
    a_new_message,
    a_retry,
    accept,
    all_done,
    an_attempt,
    forks_heard,
    hold,
    known,
    promote,
    release,
    some_done,
    yield_to,
)

TWO_FORKS = (a_retry("a:25", frozenset({1})), a_retry("b:25", frozenset({2, 3})))
DELIVERED, FORKS = DiscardStatus.DELIVERED, DiscardStatus.FORKS


async def told(ledger: Ledger, asker=THERE, database=THEIR_DATABASE) -> list[tuple[str, str, Ordinals]]:
    reply = await ledger.discards_for(asker, database, 99)
    return [(event.status, event.next_hop, event.ordinals) for event in reply.events]


# the primary server


async def test_a_message_that_is_delivered_at_once_has_no_forks_to_tell(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(THERE, True)
    stored = await accept(ledger, recipients_count=2)

    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, next_hop="a:25"), some_done(1))
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, frozenset({2}), next_hop="b:25"), all_done)

    assert [DELIVERED, DELIVERED] == [status for status, _, _ in await told(ledger)]


async def test_the_forks_of_a_message_that_waits_are_told_with_its_queues(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(THERE, True)
    stored = await accept(ledger, recipients_count=3)

    await ledger.commit(promises.queued, stored.envelope.message_id, TWO_FORKS)

    assert [(FORKS, "a:25", frozenset({1})), (FORKS, "b:25", frozenset({2, 3}))] == await told(ledger)


async def test_a_server_that_does_not_offer_it_is_told_no_forks(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(OTHER, True)
    stored = await accept(ledger, recipients_count=3)

    await ledger.commit(promises.queued, stored.envelope.message_id, TWO_FORKS)

    assert [] == await told(ledger)


async def test_forks_queued_for_a_server_that_offers_it_no_longer_are_not_told_and_nobody_waits_for_them(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(THERE, True)
    stored = await accept(ledger, recipients_count=3)
    await ledger.commit(promises.queued, stored.envelope.message_id, TWO_FORKS)
    is_untold = await ledger.read(reading.has_unacknowledged, THERE, THEIR_DATABASE)

    ledger.peers.note_forks_offered(THERE, False)
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, next_hop="a:25"), some_done(1))

    assert ([(DELIVERED, "", frozenset({1}))], False) == (await told(ledger), is_untold)


async def test_what_is_deferred_again_is_not_told_again(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(THERE, True)
    stored = await accept(ledger, recipients_count=3)
    message_id = stored.envelope.message_id
    await ledger.commit(promises.queued, message_id, TWO_FORKS)
    before = await ledger.discards_for(THERE, THEIR_DATABASE, 99)

    later = replace(TWO_FORKS[1], failures_count=2, ordinals=frozenset({3}))
    await ledger.commit(promises.attempt, an_attempt(message_id, frozenset({2}), next_hop="b:25", retry=later), some_done(2))

    after = await ledger.discards_for(THERE, THEIR_DATABASE, 99)
    assert before.events == after.events[:-1]
    assert DELIVERED is after.events[-1].status


async def test_unheard_forks_go_with_the_message(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(THERE, True)
    stored = await accept(ledger, recipients_count=3)
    await ledger.commit(promises.queued, stored.envelope.message_id, TWO_FORKS)

    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, frozenset({1, 2, 3}), next_hop="a:25"), all_done)

    reply = await ledger.discards_for(THERE, THEIR_DATABASE, 1)  # a full page: how many remain is counted
    assert ([DELIVERED], 0) == ([event.status for event in reply.events], reply.remaining)


async def test_a_changed_route_is_told_in_place_of_what_was_not_heard(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(THERE, True)
    stored = await accept(ledger, recipients_count=3)
    await ledger.commit(promises.queued, stored.envelope.message_id, TWO_FORKS)

    await ledger.commit(promises.queued, stored.envelope.message_id, (a_retry("c:25", frozenset({2, 3})),), ("b:25",))

    assert {("a:25", frozenset({1})), ("c:25", frozenset({2, 3}))} == {(hop, ordinals) for _, hop, ordinals in await told(ledger)}


async def test_a_server_that_is_chosen_later_is_told_the_forks_then(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(OTHER, True)
    stored = await accept(ledger, recipients_count=3, copies=())
    message_id = stored.envelope.message_id
    await ledger.commit(promises.queued, message_id, TWO_FORKS)

    def placed(_, before: Claim | None) -> Transition:
        assert before is not None
        return Transition(before, replace(before, copies=(Copy(OTHER, NEW_DATABASE, Choice.CHOSEN),)))

    await ledger.commit(promises.transition, [message_id], placed)

    assert [("a:25", frozenset({1})), ("b:25", frozenset({2, 3}))] == [event[1:] for event in await told(ledger, OTHER, NEW_DATABASE)]


async def test_a_server_whose_copy_was_released_is_told_no_forks(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(THERE, True)
    stored = await accept(ledger, recipients_count=3, copies=(Copy(THERE, THEIR_DATABASE, Choice.DISMISSED),))

    await ledger.commit(promises.queued, stored.envelope.message_id, TWO_FORKS)

    assert [] == await told(ledger)


async def test_the_verdict_of_the_same_commit_says_who_is_told(ledger: Ledger) -> None:
    ledger.peers.note_forks_offered(THERE, True)
    stored = await accept(ledger, recipients_count=3, decided=False)

    await ledger.commit(promises.queued, stored.envelope.message_id, TWO_FORKS, (), release)

    assert FORKS not in [status for status, _, _ in await told(ledger)]


# the shadow server


async def hear(ledger: Ledger, message_id, *forks: tuple[str, set[int]], decide=forks_heard) -> None:
    events = [DiscardEvent(place, message_id, FORKS, frozenset(ordinals), hop) for place, (hop, ordinals) in enumerate(forks, 1)]
    await ledger.commit(promises.discards, THERE, THEIR_DATABASE, 1, events, decide, NOW)


async def shadow_queues(ledger: Ledger) -> dict[str, int]:
    return {row.identity.partition("\\")[2]: row.count for row in await ledger.read(queues.queues) if row.kind is QueueKind.SHADOW}


async def held_with_two_forks(ledger: Ledger):
    message = a_new_message(Role.SHADOW, 3)
    message_id = message.envelope.message_id
    await ledger.commit(promises.hold, message, a_content(), lambda _, before: Transition(before, message.claim))
    await hear(ledger, message_id, ("a:25", {1}), ("b:25", {2, 3}))
    return message_id


async def test_a_shadow_message_is_in_a_queue_for_each_fork_that_its_primary_server_reported(ledger: Ledger) -> None:
    without = await hold(ledger)
    before = await shadow_queues(ledger)

    message_id = await held_with_two_forks(ledger)

    by_forks = {f"Shadow\\{THERE}\\a:25": 1, f"Shadow\\{THERE}\\b:25": 1}
    assert ({"Shadow\\1": 1}, {"Shadow\\1": 1, **by_forks}) == (before, await shadow_queues(ledger))
    assert (ReportedFork("a:25", frozenset({1})), ReportedFork("b:25", frozenset({2, 3}))) == (await known(ledger, message_id)).forks
    assert (ShadowGroup(THERE, THEIR_DATABASE, 2, 0),) == await ledger.read(reading.shadow_groups)
    rows = {row.next_hop: row for row in await ledger.read(queues.queues) if row.kind is QueueKind.SHADOW}
    assert [(THERE, NOW, len(HELLO))] * 2 == [(rows[hop].primary, rows[hop].oldest_at, rows[hop].octets) for hop in ("a:25", "b:25")]
    assert [False, True] == [rows[hop].is_of_forks for hop in (THERE, "a:25")]
    pages = {
        name: await ledger.read(queues.messages, name, 9) for name in (f"mx1.x\\Shadow\\{THERE}\\b:25", "Shadow\\1\\a:25", "Shadow\\1", "")
    }
    ids = [[message.envelope.message_id for message in page] for page in pages.values()]
    assert [[message_id], [message_id], [without.envelope.message_id], [without.envelope.message_id, message_id]] == ids
    assert () == await ledger.read(queues.messages, f"Shadow\\{THERE}\\nowhere:25", 9)
    assert {(QueueKind.SHADOW, THERE): 1, (QueueKind.SHADOW, f"{THERE} a:25"): 1} == {
        key: count for key, count in (await ledger.read(queues.depths)).items() if key[0] is QueueKind.SHADOW and "b:25" not in key[1]
    }


async def test_recipients_that_are_done_leave_their_queue(ledger: Ledger) -> None:
    message_id = await held_with_two_forks(ledger)

    await ledger.commit(promises.transition, [message_id], some_done(1))
    after_one = await shadow_queues(ledger)
    await ledger.commit(promises.transition, [message_id], some_done(2))

    assert {f"Shadow\\{THERE}\\b:25": 1} == after_one == await shadow_queues(ledger)
    assert (ReportedFork("b:25", frozenset({3})),) == (await known(ledger, message_id)).forks
    await ledger.commit(promises.transition, [message_id], all_done)
    assert {} == await shadow_queues(ledger)


async def test_a_recipient_is_in_one_fork_only_and_a_repetition_changes_nothing(ledger: Ledger) -> None:
    message_id = await held_with_two_forks(ledger)
    before = await known(ledger, message_id)

    await hear(ledger, message_id, ("a:25", {1}), ("b:25", {2, 3}))
    assert before == await known(ledger, message_id)
    await hear(ledger, message_id, ("c:25", {1, 3}))

    assert {f"Shadow\\{THERE}\\b:25": 1, f"Shadow\\{THERE}\\c:25": 1} == await shadow_queues(ledger)
    assert (ReportedFork("b:25", frozenset({2})), ReportedFork("c:25", frozenset({1, 3}))) == (await known(ledger, message_id)).forks


@pytest.mark.parametrize("fork", [("a:25", {7, 4_000}), ("a:25", set())])
async def test_recipients_that_the_message_does_not_have_are_ignored(ledger: Ledger, fork: tuple[str, set[int]]) -> None:
    stored = await hold(ledger)

    await hear(ledger, stored.envelope.message_id, fork)

    assert ({"Shadow\\1": 1}, stored) == (await shadow_queues(ledger), await known(ledger, stored.envelope.message_id))


async def test_forks_that_are_not_to_be_noted_change_nothing_and_are_acknowledged(ledger: Ledger) -> None:
    stored = await hold(ledger)

    await hear(ledger, stored.envelope.message_id, ("a:25", {1}), decide=lambda _, before: Transition(before, before))

    assert ({"Shadow\\1": 1}, 1) == (await shadow_queues(ledger), await ledger.read(reading.acknowledged, THERE, THEIR_DATABASE, 1))


@pytest.mark.parametrize("decide", [promote, release, yield_to(OTHER, NEW_DATABASE)])
async def test_a_message_with_another_role_or_primary_server_has_no_forks(ledger: Ledger, decide) -> None:
    message_id = await held_with_two_forks(ledger)

    await ledger.commit(promises.transition, [message_id], decide)

    found = await known(ledger, message_id)
    assert () == found.forks
    assert {} == {name: count for name, count in (await shadow_queues(ledger)).items() if "25" in name}
    if found.claim.role is Role.PRIMARY:
        assert [message_id] == [message.envelope.message_id for message in await ledger.read(reading.submission, 9)]


async def test_a_copy_placed_anew_has_no_forks_until_it_is_told_them(ledger: Ledger) -> None:
    message_id = await held_with_two_forks(ledger)
    kept = await known(ledger, message_id)

    def again(_, before: Claim | None) -> Transition:
        assert before is not None
        return Transition(before, replace(before, number=replace(before.number, placement=2)))

    await ledger.commit(promises.hold, NewMessage(kept.envelope, kept.claim, Origin.SHADOW, None, NOW), a_content(), again)

    assert ({"Shadow\\1": 1}, ()) == (await shadow_queues(ledger), (await known(ledger, message_id)).forks)


async def test_what_was_noted_survives_a_restart(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        message_id = await held_with_two_forks(ledger)
        before = await known(ledger, message_id)
    async with a_ledger(tmp_path) as ledger:
        assert before == await known(ledger, message_id)
        await ledger.commit(promises.transition, [message_id], some_done(1))

        assert {f"Shadow\\{THERE}\\b:25": 1} == await shadow_queues(ledger)
