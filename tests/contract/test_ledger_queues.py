"""The port `Ledger`: forks in their queues, attempts, waiting messages, notices, messages set aside."""

import asyncio

from shadowrelay.model.ids import NO_SERVER
from shadowrelay.model.ownership import Choice, DiscardStatus, Notification, Role, Transition
from shadowrelay.model.queue import WAITS_FOR_COPY, FailureKind
from shadowrelay.ownership.claims import handed_over_by_drain, taken_back
from shadowrelay.rules.delivery import LadderStep
from shadowrelay.store import promises, queues, reading
from shadowrelay.store.ledger import Ledger
from tests.kit.clock import Hands
from tests.kit.ledger import (
    DAY,
    HOP,
    NOW,
    OTHER,
    SECOND,
    THEIR_DATABASE,
    THERE,
    a_content,
    a_retry,
    accept,
    all_done,
    an_attempt,
    choose,
    hold,
    nothing,
    queue,
    release,
    some_done,
)


async def test_a_delivered_message_leaves_the_queue_and_keeps_its_content_for_safety_net(ledger: Ledger) -> None:
    stored = await accept(ledger)

    transition = await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)

    found = await ledger.read(reading.load, stored.envelope.message_id)
    assert found is not None
    assert transition.after == found.claim
    assert (Role.DELIVERED, None, NOW + 2 * DAY) == (found.claim.role, found.due_at, found.keep_until)
    assert found.place == stored.place
    assert () == await ledger.read(reading.submission, 9)


async def test_an_attempt_without_success_puts_all_forks_into_their_queues(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=3)
    failed, other = a_retry("a:25", frozenset({1})), a_retry("b:25", frozenset({2, 3}), failures_count=0, kind=FailureKind.QUEUED)

    await ledger.commit(
        promises.attempt, an_attempt(stored.envelope.message_id, frozenset(), next_hop="a:25", retry=failed, others=(other,)), nothing
    )

    assert {failed, other} == set((await ledger.read(reading.load, stored.envelope.message_id)).retries)  # type: ignore[union-attr]
    assert () == await ledger.read(reading.submission, 9)


async def test_an_attempt_changes_its_own_fork_and_leaves_the_others_as_they_are(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=3)
    message_id = stored.envelope.message_id
    first = (a_retry("a:25", frozenset({1})), a_retry("b:25", frozenset({2, 3})))
    await ledger.commit(promises.queued, message_id, first)
    again = a_retry("b:25", frozenset({3}), failures_count=2, delay_notified=True, waits_for=THERE, notice_at=NOW + DAY)
    stale = a_retry("a:25", frozenset({1}), failures_count=9)

    await ledger.commit(
        promises.attempt, an_attempt(message_id, frozenset({2}), next_hop="b:25", retry=again, others=(stale,)), some_done(2)
    )

    found = await ledger.read(reading.load, message_id)
    assert found is not None
    assert ({first[0], again}, frozenset({2})) == (set(found.retries), found.claim.done)


async def test_a_fork_that_is_done_leaves_its_queue(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)
    message_id = stored.envelope.message_id
    rest = a_retry("b:25", frozenset({2}))
    await ledger.commit(promises.queued, message_id, (a_retry("a:25", frozenset({1})), rest))

    await ledger.commit(promises.attempt, an_attempt(message_id, next_hop="a:25"), some_done(1))

    assert (rest,) == (await ledger.read(reading.load, message_id)).retries  # type: ignore[union-attr]
    assert () == await ledger.read(reading.due, "a:25", NOW + DAY, 9)


async def test_a_fork_of_a_message_in_no_queue_that_is_done_leaves_the_rest_in_submission(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)

    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, next_hop="a:25"), some_done(1))

    assert [stored.envelope.message_id] == [message.envelope.message_id for message in await ledger.read(reading.submission, 9)]


async def test_forks_may_be_recorded_in_one_commit(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)
    message_id = stored.envelope.message_id
    one, two = a_retry("a:25", frozenset({1})), a_retry("b:25", frozenset({2}))

    await asyncio.gather(
        ledger.commit(promises.attempt, an_attempt(message_id, frozenset(), next_hop="a:25", retry=one, others=(two,)), nothing),
        ledger.commit(promises.attempt, an_attempt(message_id, frozenset({2}), next_hop="b:25", others=()), some_done(2)),
    )

    assert (one,) == (await ledger.read(reading.load, message_id)).retries  # type: ignore[union-attr]


async def test_a_message_that_was_released_leaves_its_queues(ledger: Ledger) -> None:
    stored = await queue(ledger)

    await ledger.commit(promises.transition, [stored.envelope.message_id], release)

    assert () == (await ledger.read(reading.load, stored.envelope.message_id)).retries  # type: ignore[union-attr]
    assert {} == await ledger.read(reading.delivery_queues)


async def test_due_gives_the_forks_of_one_queue_oldest_first(ledger: Ledger) -> None:
    stored = [await queue(ledger, at=NOW + offset * SECOND) for offset in (3, 1, 2, 60)]
    await queue(ledger, next_hop="elsewhere:25")
    ids = [message.envelope.message_id for message in stored]

    found = await ledger.read(reading.due, HOP, NOW + 10 * SECOND, 9)

    assert [ids[1], ids[2], ids[0]] == [message.envelope.message_id for message in found]
    assert ids[1:2] == [message.envelope.message_id for message in await ledger.read(reading.due, HOP, NOW + 10 * SECOND, 1)]
    assert NOW + 60 * SECOND == await ledger.read(reading.next_due_at, HOP, NOW + 10 * SECOND)
    assert await ledger.read(reading.next_due_at, HOP, NOW + 60 * SECOND) is None
    assert {HOP: NOW + SECOND, "elsewhere:25": NOW} == await ledger.read(reading.delivery_queues)


async def test_submission_gives_what_is_in_no_queue_in_pages(ledger: Ledger) -> None:
    stored = [await accept(ledger) for _ in range(3)]
    await queue(ledger)
    await hold(ledger)

    first = await ledger.read(reading.submission, 2)
    rest = await ledger.read(reading.submission, 2, after=first[-1].internal_id)

    assert [message.envelope.message_id for message in stored] == [message.envelope.message_id for message in (*first, *rest)]


async def test_a_verdict_that_was_not_recorded_is_recorded_with_the_queue(ledger: Ledger) -> None:
    stored = await accept(ledger, decided=False)

    await ledger.commit(promises.queued, stored.envelope.message_id, (a_retry(HOP),), (), choose)

    (found,) = await ledger.read(reading.due, HOP, NOW + DAY, 9)
    assert (True, Choice.CHOSEN) == (found.is_decided, found.claim.copies[0].choice)


async def test_a_fork_moves_to_another_queue(ledger: Ledger) -> None:
    stored = await queue(ledger)
    there = a_retry("new:25")

    await ledger.commit(promises.queued, stored.envelope.message_id, (there,), (HOP,))

    assert (there,) == (await ledger.read(reading.load, stored.envelope.message_id)).retries  # type: ignore[union-attr]


async def test_what_is_no_primary_message_enters_no_queue(ledger: Ledger) -> None:
    stored = await hold(ledger)

    await ledger.commit(promises.queued, stored.envelope.message_id, (a_retry(HOP),))

    assert {} == await ledger.read(reading.delivery_queues)


async def test_a_server_wakes_what_waits_for_it_and_nothing_else(ledger: Ledger, wall: Hands) -> None:
    waiting = [await queue(ledger, at=NOW + DAY, waits_for=THERE) for _ in range(3)]
    await queue(ledger, at=NOW + DAY, waits_for=OTHER)
    await queue(ledger, at=NOW + DAY)
    assert {THERE, OTHER} == set(await ledger.read(reading.waited_for))
    wall.at = NOW + SECOND

    counts = [await ledger.commit(promises.wake, THERE, 2) for _ in range(3)]

    assert [{HOP: 2}, {HOP: 1}, {}] == counts
    due = await ledger.read(reading.due, HOP, NOW + SECOND, 9)
    assert {message.envelope.message_id for message in waiting} == {message.envelope.message_id for message in due}
    assert {NO_SERVER} == {retry.waits_for for message in due for retry in message.retries}
    assert (OTHER,) == await ledger.read(reading.waited_for)


async def test_what_enters_a_queue_in_the_same_commit_is_woken_too(ledger: Ledger) -> None:
    stored = await accept(ledger)

    _, counts = await asyncio.gather(
        ledger.commit(promises.queued, stored.envelope.message_id, (a_retry(HOP, attempts_next_at=NOW + DAY, waits_for=THERE),)),
        ledger.commit(promises.wake, THERE, 9),
    )

    assert {HOP: 1} == counts


async def test_a_queue_keeps_what_entered_it_before_and_after_a_server_woke_others_in_the_same_commit(ledger: Ledger) -> None:
    stored = [await accept(ledger) for _ in range(2)]

    await asyncio.gather(
        ledger.commit(promises.queued, stored[0].envelope.message_id, (a_retry(HOP),)),
        ledger.commit(promises.wake, THERE, 9),
        ledger.commit(promises.queued, stored[1].envelope.message_id, (a_retry(HOP),)),
    )

    assert 2 == len(await ledger.read(reading.due, HOP, NOW + DAY, 9))


async def test_nobody_waits_for_no_server(ledger: Ledger) -> None:
    await queue(ledger, at=NOW + DAY)

    assert {} == await ledger.commit(promises.wake, NO_SERVER, 9)


async def test_a_copy_makes_due_what_waited_for_it(ledger: Ledger) -> None:
    stored = await queue(ledger, at=NOW + DAY, waits_for=WAITS_FOR_COPY)

    await ledger.commit(promises.transition, [stored.envelope.message_id], choose)

    assert [stored.envelope.message_id] == [message.envelope.message_id for message in await ledger.read(reading.due, HOP, NOW, 9)]


async def test_a_wait_beyond_its_step_of_the_ladder_is_cut_short(ledger: Ledger) -> None:
    step = LadderStep(FailureKind.MESSAGE, 0, 1, 10 * SECOND)
    at_that_step = {"kind": FailureKind.MESSAGE, "failures_count": 1}
    await queue(ledger, at=NOW + DAY, **at_that_step)
    await queue(ledger, at=NOW + SECOND, **at_that_step)
    await queue(ledger, at=NOW + DAY, kind=FailureKind.MESSAGE, failures_count=2)
    await queue(ledger, at=NOW + DAY, kind=FailureKind.CONNECTION, failures_count=1)
    await queue(ledger, at=NOW + DAY, waits_for=THERE, **at_that_step)

    assert 1 == await ledger.commit(promises.hasten, HOP, step, NOW + 10 * SECOND, 9)

    assert NOW + 10 * SECOND == await ledger.read(reading.next_due_at, HOP, NOW + SECOND)
    assert 0 == await ledger.commit(promises.hasten, HOP, step, NOW + 10 * SECOND, 9)


async def test_notices_are_given_by_their_time(ledger: Ledger) -> None:
    late, later = await queue(ledger, notice_at=NOW + SECOND), await queue(ledger, notice_at=NOW)
    await queue(ledger, notice_at=NOW + DAY)
    await queue(ledger, notice_at=None)

    found = await ledger.read(reading.notices_due, NOW + SECOND, 9)

    assert [later.envelope.message_id, late.envelope.message_id] == [message.envelope.message_id for message in found]


async def test_nothing_is_due_in_an_empty_database(ledger: Ledger) -> None:
    assert await ledger.read(reading.next_due_at, HOP, NOW) is None
    assert () == await ledger.read(reading.due, HOP, NOW, 9) + await ledger.read(reading.submission, 9) + await ledger.read(
        reading.waited_for
    )
    assert {} == await ledger.read(reading.delivery_queues)


async def test_a_message_set_aside_is_in_no_delivery_queue_and_is_listed_with_its_reason(ledger: Ledger) -> None:
    stored = await accept(ledger)

    await ledger.commit(promises.set_aside, stored.envelope.message_id, "died three times")

    (found,) = await ledger.read(queues.messages, "Server\\Poison", 9)
    assert (found,) == await ledger.read(queues.messages, "Poison", 9)
    assert (Role.SET_ASIDE, "died three times") == (found.claim.role, found.set_aside_reason)
    assert () == await ledger.read(reading.submission, 9) + await ledger.read(reading.due, HOP, NOW + DAY, 9)


async def test_what_is_set_aside_can_be_handed_over_in_the_same_commit(ledger: Ledger) -> None:
    stored = await accept(ledger)
    message_id = stored.envelope.message_id
    tell = (Notification(THERE, THEIR_DATABASE, DiscardStatus.YOURS),)
    position = ledger.position

    await ledger.commit(promises.set_aside, message_id, "died three times", lambda _, claim: Transition(claim, claim, tell))

    assert position + 1 == ledger.position
    reply = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    assert [(message_id, DiscardStatus.YOURS)] == [(event.message_id, event.status) for event in reply.events]
    (found,) = await ledger.read(queues.messages, "Server\\Poison", 9)
    assert (found,) == await ledger.read(queues.messages, "Poison", 9)
    assert "died three times" == found.set_aside_reason


async def test_what_is_taken_back_is_due_at_once_and_suspected_no_more(ledger: Ledger) -> None:
    stored = await accept(ledger)
    message_id = stored.envelope.message_id
    await ledger.commit(promises.set_aside, message_id, "died three times")

    unchanged = await ledger.commit(promises.taken_back, message_id, lambda _, claim: Transition(claim, claim))
    assert not unchanged.changed
    assert () == await ledger.read(reading.submission, 9)
    await ledger.commit(promises.taken_back, message_id, lambda _, claim: taken_back(claim))

    (found,) = await ledger.read(reading.submission, 9)
    assert (Role.PRIMARY, "", 0) == (found.claim.role, found.set_aside_reason, found.deaths_count)
    assert () == await ledger.read(queues.messages, "Server\\Poison", 9)


async def test_what_a_draining_node_handed_over_is_in_a_queue_of_its_own_with_its_content(ledger: Ledger) -> None:
    stored = await accept(ledger)
    message_id = stored.envelope.message_id
    await ledger.commit(promises.queued, message_id, [a_retry(HOP)])
    await ledger.commit(promises.verdict, message_id, choose)

    await ledger.commit(promises.transition, [message_id], lambda _, claim: handed_over_by_drain(claim))

    (found,) = await ledger.read(queues.messages, "Server\\HandedOver", 9)
    assert (found,) == await ledger.read(queues.messages, "HandedOver", 9) == await ledger.read(queues.messages, "", 9)
    assert (Role.HANDED_OVER, ()) == (found.claim.role, found.retries)
    assert found.place is not None
    assert a_content().data == (await ledger.read_content(found.place)).data
    reply = await ledger.discards_for(THERE, THEIR_DATABASE, 9)
    assert [(message_id, DiscardStatus.YOURS)] == [(event.message_id, event.status) for event in reply.events]
    assert [("HandedOver", 1)] == [(row.kind, row.count) for row in await ledger.read(queues.queues) if row.count]
    assert () == await ledger.read(reading.submission, 9) + await ledger.read(reading.due, HOP, NOW, 9) + await ledger.read(
        queues.undelivered, 9
    )


async def test_undelivered_messages_are_found_wherever_they_wait_page_by_page(ledger: Ledger) -> None:
    stored = [await accept(ledger) for _ in range(5)]
    ids = [message.envelope.message_id for message in stored]
    await ledger.commit(promises.queued, ids[1], [a_retry(HOP), a_retry("other.example:25")])
    await ledger.commit(promises.set_aside, ids[2], "no")

    first = await ledger.read(queues.undelivered, 3)
    second = await ledger.read(queues.undelivered, 3, first[-1].internal_id)

    assert [ids[0], ids[1], ids[3]] == [message.envelope.message_id for message in first]
    assert [ids[4]] == [message.envelope.message_id for message in second]
    assert () == await ledger.read(queues.undelivered, 3, second[-1].internal_id)


async def test_since_when_a_node_drains_is_kept_until_it_does_no_longer(ledger: Ledger) -> None:
    assert ledger.draining_since is None
    position = ledger.position

    await ledger.commit(promises.draining, NOW)
    assert (NOW, position + 1) == (ledger.draining_since, ledger.position)
    await ledger.commit(promises.draining, None)

    assert ledger.draining_since is None


async def test_submission_is_counted_without_what_waits_in_a_delivery_queue(ledger: Ledger) -> None:
    assert 0 == await ledger.read(reading.submission_count)
    stored = [await accept(ledger) for _ in range(3)]
    assert 3 == await ledger.read(reading.submission_count)

    await ledger.commit(promises.queued, stored[0].envelope.message_id, [a_retry()])
    await ledger.commit(promises.attempt, an_attempt(stored[1].envelope.message_id), all_done)

    assert (1, 0) == (await ledger.read(reading.submission_count), ledger.waiting_count)
    assert ledger.log_bytes >= 0
