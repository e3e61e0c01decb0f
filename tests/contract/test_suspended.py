"""What the ledger promises about suspended messages and queues."""

from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.ids import NO_SERVER, ServerName
from shadowrelay.model.ownership import Role, Transition
from shadowrelay.model.queue import NEVER, SUSPENDED, FailureKind, Origin, QueueKind, Suspension
from shadowrelay.model.replies import RequestRefused
from shadowrelay.model.values import replace
from shadowrelay.store import promises, queues, reading
from shadowrelay.store.ledger import Ledger
from tests.kit.ledger import NOW, a_content, a_ledger, a_message_id, a_new_message, a_retry, accept, an_attempt, counts_in, some_done

HOP = "store.corp.example:25"
ANN = Suspension(NOW, "ann@host")
LATER = NOW + timedelta(hours=1)


async def test_a_suspended_message_is_due_never_and_a_resumed_one_now(ledger: Ledger) -> None:
    stored = await accept(ledger)
    message_id = stored.envelope.message_id
    notice_at = NOW + timedelta(hours=4)
    await ledger.commit(promises.queued, message_id, [a_retry(HOP, attempts_next_at=NOW, notice_at=notice_at)])

    assert (HOP,) == await ledger.commit(promises.suspended, message_id, ANN)

    found = await ledger.read(reading.load, message_id)
    assert found is not None
    assert ANN == found.suspended
    (retry,) = found.retries
    assert (NEVER, SUSPENDED, notice_at) == (retry.attempts_next_at, retry.waits_for, retry.notice_at)
    assert () == await ledger.read(reading.due, HOP, NOW + timedelta(days=400), 9)
    assert await ledger.read(reading.next_due_at, HOP, NOW) is None
    assert {} == await ledger.read(reading.delivery_queues)
    assert [message_id] == [each.envelope.message_id for each in await ledger.read(reading.notices_due, notice_at, 9)]
    (row,) = [row for row in await ledger.read(queues.queues) if row.kind is QueueKind.DELIVERY]
    assert (1, None, None) == (row.count, row.next_retry_at, row.suspended)

    assert () == await ledger.commit(promises.suspended, message_id, replace(ANN, by="bob")), "who was first is kept"
    assert (HOP,) == await ledger.commit(promises.suspended, message_id, None)

    (found,) = await ledger.read(reading.due, HOP, NOW, 9)
    assert found.suspended is None
    assert NO_SERVER == found.retries[0].waits_for
    assert () == await ledger.commit(promises.suspended, message_id, None)


async def test_a_message_in_submission_goes_into_the_queues_of_its_forks(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)
    forks = [a_retry(HOP, frozenset({1})), a_retry("other.example", frozenset({2}))]

    assert {HOP, "other.example"} == set(await ledger.commit(promises.suspended, stored.envelope.message_id, ANN, forks))

    assert () == await ledger.read(reading.submission, 9)
    assert [stored.internal_id] == [each.internal_id for each in await ledger.read(queues.messages, f"mx1\\{HOP}", 9)]


async def test_neither_a_clock_set_back_nor_a_request_nor_a_server_wakes_it(ledger: Ledger) -> None:
    stored = await accept(ledger)
    await ledger.commit(promises.queued, stored.envelope.message_id, [a_retry(HOP, kind=FailureKind.QUEUED, failures_count=0)])
    await ledger.commit(promises.suspended, stored.envelope.message_id, ANN)

    assert 0 == await ledger.commit(promises.hasten, HOP, None, NOW, 9)
    assert {} == await ledger.commit(promises.wake, ServerName("mx1.west.example"), 9)
    assert () == await ledger.read(reading.due, HOP, LATER, 9)


async def test_whoever_read_the_message_before_neither_resumes_nor_suspends_its_forks(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)
    message_id = stored.envelope.message_id
    fork = a_retry(HOP, frozenset({1, 2}), attempts_next_at=NOW)
    await ledger.commit(promises.queued, message_id, [fork])
    await ledger.commit(promises.suspended, message_id, ANN)

    # an attempt that ran meanwhile leaves something
    await ledger.commit(
        promises.attempt, an_attempt(message_id, frozenset({1}), next_hop=HOP, retry=replace(fork, ordinals=frozenset({2}))), some_done(1)
    )
    assert () == await ledger.read(reading.due, HOP, LATER, 9)

    suspended = await ledger.read(reading.load, message_id)
    assert suspended is not None
    await ledger.commit(promises.suspended, message_id, None)
    # its delay was noted with the row as it was read while it was suspended
    await ledger.commit(
        promises.attempt,
        an_attempt(message_id, frozenset(), next_hop=HOP, retry=suspended.retries[0]),
        lambda _, claim: Transition(claim, claim),
    )
    assert 1 == len(await ledger.read(reading.due, HOP, NOW, 9))


@pytest.mark.parametrize("role", [Role.SHADOW, None])
async def test_what_is_not_to_be_delivered_here_is_refused(ledger: Ledger, role: Role | None) -> None:
    message_id = a_message_id()
    if role is Role.SHADOW:
        await ledger.commit(
            promises.hold,
            a_new_message(role, message_id=message_id),
            a_content(),
            lambda _, claim: Transition(claim, a_new_message(role).claim),
        )

    with pytest.raises(RequestRefused):
        await ledger.commit(promises.suspended, message_id, ANN)


async def test_a_message_without_a_verdict_is_refused(ledger: Ledger) -> None:
    stored = await accept(ledger, decided=False)

    with pytest.raises(RequestRefused):
        await ledger.commit(promises.suspended, stored.envelope.message_id, ANN)


async def test_the_next_process_knows_what_is_suspended(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        await ledger.commit(promises.suspended, stored.envelope.message_id, ANN, [a_retry(HOP)])
        assert await ledger.commit(promises.queue_suspended, "held.example", ANN)
        assert await ledger.commit(promises.queue_suspended, "resumed.example", ANN)
        assert not await ledger.commit(promises.queue_suspended, "held.example", replace(ANN, by="bob"))
        assert await ledger.commit(promises.queue_suspended, "resumed.example", None)
        assert not await ledger.commit(promises.queue_suspended, "resumed.example", None)

    async with a_ledger(tmp_path) as ledger:
        found = await ledger.read(reading.load, stored.envelope.message_id)
        counted, expected = await counts_in(ledger)
        rows = {row.next_hop: row for row in await ledger.read(queues.queues) if row.kind is QueueKind.DELIVERY}

    assert found is not None
    assert (ANN, Origin.CLIENT) == (found.suspended, found.origin)
    assert {"held.example": ANN} == dict(ledger.suspended_queues)
    assert (0, ANN) == (rows["held.example"].count, rows["held.example"].suspended)
    assert expected == counted


async def test_what_is_resubmitted_is_due_now_unless_it_waits_for_more_than_its_time(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=3)
    message_id, server = stored.envelope.message_id, ServerName("mx1.west.example")
    forks = {
        HOP: a_retry(HOP, frozenset({1}), attempts_next_at=LATER),
        "due.example": a_retry("due.example", frozenset({2}), attempts_next_at=NOW - timedelta(hours=1)),
        "waits.example": a_retry("waits.example", frozenset({3}), attempts_next_at=LATER, waits_for=server),
    }
    await ledger.commit(promises.queued, message_id, list(forks.values()))

    assert set(forks) == set(await ledger.commit(promises.resubmitted, message_id))

    found = await ledger.read(reading.load, message_id)
    assert found is not None
    assert {**forks, HOP: replace(forks[HOP], attempts_next_at=NOW)} == {retry.next_hop: retry for retry in found.retries}
    assert () == await ledger.commit(promises.resubmitted, a_message_id())


async def test_a_fork_that_was_read_while_it_was_suspended_does_not_hasten_the_others(ledger: Ledger) -> None:
    stored = await accept(ledger, recipients_count=2)
    message_id = stored.envelope.message_id
    others = a_retry("other.example", frozenset({2}), attempts_next_at=LATER)
    await ledger.commit(promises.queued, message_id, [a_retry(HOP, frozenset({1})), others])
    stale = replace(a_retry(HOP, frozenset({1})), waits_for=SUSPENDED, attempts_next_at=NEVER)

    await ledger.commit(
        promises.attempt, an_attempt(message_id, frozenset(), next_hop=HOP, retry=stale), lambda _, claim: Transition(claim, claim)
    )

    found = await ledger.read(reading.load, message_id)
    assert found is not None
    assert {HOP: NOW, "other.example": LATER} == {retry.next_hop: retry.attempts_next_at for retry in found.retries}
