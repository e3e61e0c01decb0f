"""What a `Ledger` promises about deliveries that it keeps, and requests to resubmit them: threaded and inline, on real files."""

from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX
from shadowrelay.model.ownership import DiscardEvent, DiscardStatus, Role
from shadowrelay.model.queue import Delivery, Origin, StoredMessage
from shadowrelay.model.replies import ContentCorrupt, LedgerUnavailable
from shadowrelay.model.resubmission import Criteria, Progress, RequestState, ResubmitRequest, Resubmitted
from shadowrelay.model.values import replace
from shadowrelay.store import promises, reading, resubmit_requests
from shadowrelay.store.ledger import Ledger
from tests.kit.clock import Hands
from tests.kit.ledger import (
    DAY,
    HOP,
    NOW,
    THEIR_DATABASE,
    THERE,
    a_content,
    a_ledger,
    a_new_message,
    a_spooled_content,
    accept,
    all_done,
    an_attempt,
    counts_in,
    discarded,
    hold,
    nothing,
    some_done,
)

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
CRITERIA = Criteria(NOW - DAY, NOW, HOP, "a@x.example", "b@y.example", "<1@x>", THERE)
PENDING, RUNNING, DONE, DISABLED = RequestState


async def deliver(ledger: Ledger, wall: Hands, *ordinals: int, recipients_count: int = 1, at: object = NOW) -> StoredMessage:
    """A message, delivered to these recipients at that time."""
    stored = await accept(ledger, recipients_count=recipients_count)
    wall.at = at
    done = frozenset(ordinals)
    decide = all_done if len(done) == recipients_count else some_done(*ordinals)
    await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, done, sent=done, is_inside=True), decide)
    found = await ledger.read(reading.load, stored.envelope.message_id)
    assert found is not None
    return found


async def request(ledger: Ledger) -> int:
    made = await ledger.commit(resubmit_requests.add, CRITERIA)
    assert made is not None
    return made.number


async def only(ledger: Ledger) -> ResubmitRequest:
    (found,) = await ledger.read(resubmit_requests.requests)
    return found


# deliveries
async def test_each_delivery_is_kept_with_its_time_next_hop_and_side(ledger: Ledger, wall: Hands) -> None:
    stored = await accept(ledger, recipients_count=4)
    message_id = stored.envelope.message_id
    assert (None, ()) == (stored.delivered_at, stored.deliveries)

    steps = (("one:25", {1}, True), ("a b c", {2, 3}, False))
    for number, (next_hop, ordinals, is_inside) in enumerate(steps):
        wall.at = NOW + number * SECOND
        record = an_attempt(message_id, frozenset(ordinals), next_hop=next_hop, sent=frozenset(ordinals), is_inside=is_inside)
        await ledger.commit(promises.attempt, record, some_done(*ordinals))
    wall.at = NOW + DAY
    await ledger.commit(promises.attempt, an_attempt(message_id, frozenset({4})), all_done)  # failed, not delivered

    found = await ledger.read(reading.load, message_id)
    assert found is not None
    assert (Role.DELIVERED, NOW + SECOND) == (found.claim.role, found.delivered_at)
    assert (
        Delivery(NOW, "one:25", frozenset({1}), True),
        Delivery(NOW + SECOND, "a b c", frozenset({2, 3}), False),
    ) == found.deliveries


async def test_a_delivery_that_another_node_knew_already_is_kept(ledger: Ledger, wall: Hands) -> None:
    stored = await accept(ledger)
    message_id = stored.envelope.message_id
    await ledger.commit(promises.transition, [message_id], all_done)

    await ledger.commit(promises.attempt, an_attempt(message_id, sent=frozenset({1})), nothing)

    found = await ledger.read(reading.load, message_id)
    assert found is not None
    assert [NOW] == [delivery.at for delivery in found.deliveries]


async def test_messages_are_found_by_their_last_delivery_page_by_page(ledger: Ledger, wall: Hands) -> None:
    late = await deliver(ledger, wall, 1, at=NOW + 2 * SECOND)
    early = await deliver(ledger, wall, 1, at=NOW)
    partly = await deliver(ledger, wall, 1, recipients_count=2, at=NOW + SECOND)
    same = await deliver(ledger, wall, 1, at=NOW + SECOND)
    await accept(ledger)
    shadow = await hold(ledger)
    events = [DiscardEvent(1, shadow.envelope.message_id, DiscardStatus.DELIVERED)]
    await ledger.commit(promises.discards, THERE, THEIR_DATABASE, 1, events, discarded, NOW + DAY)

    found, after = [], (NOW - DAY, 0)
    while page := await ledger.read(resubmit_requests.delivered, after, 2):
        assert page[-1].delivered_at is not None
        found += [message.internal_id for message in page]
        after = (page[-1].delivered_at, page[-1].internal_id)

    assert [message.internal_id for message in (early, partly, same, late)] == found
    assert [shadow.internal_id] == [
        message.internal_id for message in await ledger.read(resubmit_requests.delivered, (NOW - DAY, 0), 9, by_others=True)
    ]
    discarded_one = await ledger.read(reading.load, shadow.envelope.message_id)
    assert discarded_one is not None
    assert wall.at == discarded_one.delivered_at


# requests
async def test_a_request_is_kept_as_it_was_made(ledger: Ledger) -> None:
    made = await ledger.commit(resubmit_requests.add, CRITERIA)

    assert made == await only(ledger)
    assert made == ResubmitRequest(1, CRITERIA, PENDING, NOW, False, NOW - DAY, 0)


async def test_the_states_of_a_request(ledger: Ledger) -> None:
    number = await request(ledger)

    assert [None, None] == [await ledger.commit(resubmit_requests.change_state, number, state) for state in (PENDING, DONE)]
    assert not await ledger.commit(resubmit_requests.remove, number)
    for state in (DISABLED, PENDING):
        changed = await ledger.commit(resubmit_requests.change_state, number, state)
        assert changed is not None
        assert (state, changed) == (changed.state, await only(ledger))
    await ledger.commit(resubmit_requests.progressed, number, Progress(NOW, 7))
    assert (RUNNING, None) == ((await only(ledger)).state, await ledger.commit(resubmit_requests.change_state, number, DONE))
    await ledger.commit(resubmit_requests.progressed, number, Progress(NOW, 7, is_examined=True))
    assert (await ledger.commit(resubmit_requests.change_state, number, DONE)) is not None
    assert [None, None] == [await ledger.commit(resubmit_requests.change_state, number, state) for state in (DISABLED, PENDING)]
    assert await ledger.commit(resubmit_requests.remove, number)
    assert ((), False, None) == (
        await ledger.read(resubmit_requests.requests),
        await ledger.commit(resubmit_requests.remove, number),
        await ledger.commit(resubmit_requests.change_state, number, DISABLED),
    )
    assert 2 == await request(ledger), "numbers are in ids of messages"


async def test_there_is_a_limit_of_requests(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resubmit_requests, "REQUESTS_MAX", 2)

    assert [True, True, False] == [await ledger.commit(resubmit_requests.add, CRITERIA) is not None for _ in range(3)]


async def test_progress_and_its_message_are_one(ledger: Ledger) -> None:
    number = await request(ledger)
    message = replace(a_new_message(copies=()), origin=Origin.SAFETY_NET)
    message_id = message.envelope.message_id
    step = Progress(NOW, 7, examined_count=3, outside_count=2, missing_count=1, elsewhere_count=4)

    made = await ledger.commit(resubmit_requests.progressed, number, step, message, a_content())

    assert made is not None
    assert made == await ledger.read(reading.load, message_id)
    assert [message_id] == [found.envelope.message_id for found in await ledger.read(reading.unplaced, 9)]
    found = await only(ledger)
    assert (RUNNING, NOW, 7, 3, 1, 0, 2, 1, 4) == (
        found.state, found.examined_at, found.examined_id,
        found.examined_count, found.resubmitted_count, found.redundant_count, found.outside_count, found.missing_count,
        found.elsewhere_count,
    )  # fmt: skip
    assert (Resubmitted(message_id),) == await ledger.read(resubmit_requests.unfinished, number)
    kept, expected = await counts_in(ledger)  # type: ignore[arg-type]
    assert expected == kept


async def test_a_repeated_step_makes_no_second_message(ledger: Ledger) -> None:
    number = await request(ledger)
    message = a_new_message(copies=())
    await ledger.commit(resubmit_requests.progressed, number, Progress(NOW, 7), message, a_content())

    assert await ledger.commit(resubmit_requests.progressed, number, Progress(NOW, 7), message, a_content()) is None
    assert (
        await ledger.commit(resubmit_requests.progressed, number, Progress(NOW, 6, examined_count=1), a_new_message(), a_content()) is None
    )
    found = await only(ledger)
    assert (7, 1, 0) == (found.examined_id, found.resubmitted_count, found.examined_count)


async def test_a_disabled_request_makes_no_progress(ledger: Ledger, tmp_path: Path) -> None:
    number = await request(ledger)
    before = await ledger.commit(resubmit_requests.change_state, number, DISABLED)
    message = a_new_message()
    content = a_spooled_content(tmp_path, b"x" * 3_000_000)

    assert await ledger.commit(resubmit_requests.progressed, number, Progress(NOW, 7), message, content) is None
    assert (before, None) == (await only(ledger), await ledger.read(reading.load, message.envelope.message_id))
    assert content.path is not None
    assert not content.path.exists()
    assert [] == list((tmp_path / "content" / "large").iterdir())


async def test_messages_of_a_request_become_redundant_and_finished(ledger: Ledger) -> None:
    number, other = await request(ledger), await request(ledger)
    ids = []
    for place in range(3):
        message = a_new_message(copies=())
        ids.append(message.envelope.message_id)
        await ledger.commit(resubmit_requests.progressed, number, Progress(NOW, place), message, a_content())
    await ledger.commit(resubmit_requests.progressed, number, Progress(NOW, 9, is_examined=True))

    await ledger.commit(resubmit_requests.settled, number, ids[:1], ids[1:2])
    await ledger.commit(resubmit_requests.settled, number, ids[:1], ids[1:2])
    await ledger.commit(resubmit_requests.settled, other, ids, [])

    assert {Resubmitted(ids[0], True), Resubmitted(ids[2])} == set(await ledger.read(resubmit_requests.unfinished, number))
    assert [2, 0] == [found.redundant_count for found in await ledger.read(resubmit_requests.requests)]
    assert await ledger.commit(resubmit_requests.change_state, number, DONE) is None, "one has no copy"
    await ledger.commit(resubmit_requests.settled, number, ids[2:], [])
    assert await ledger.commit(resubmit_requests.change_state, number, DONE) is not None
    assert () == await ledger.read(resubmit_requests.unfinished, number)


async def test_requests_and_deliveries_survive_the_process(tmp_path: Path) -> None:
    wall = Hands(NOW)
    async with a_ledger(tmp_path, wall) as ledger:
        number = await request(ledger)
        await ledger.commit(resubmit_requests.progressed, number, Progress(NOW, 7), a_new_message(copies=()), a_content())
        delivered = await deliver(ledger, wall, 1)
        before = (
            await only(ledger),
            await ledger.read(resubmit_requests.unfinished, number),
            await ledger.read(reading.load, delivered.envelope.message_id),
        )
    async with a_ledger(tmp_path, wall) as ledger:
        after = (
            await only(ledger),
            await ledger.read(resubmit_requests.unfinished, number),
            await ledger.read(reading.load, delivered.envelope.message_id),
        )

    assert before == after


# content
@pytest.mark.parametrize("size", [10, CONTENT_IN_MEMORY_BYTES_MAX - 1, CONTENT_IN_MEMORY_BYTES_MAX + 1])
async def test_content_is_wrapped(ledger: Ledger, tmp_path: Path, size: int) -> None:
    data = b"x" * size
    original = a_content(data) if size <= CONTENT_IN_MEMORY_BYTES_MAX else a_spooled_content(tmp_path, data)

    made = await ledger.wrapped(original, b"A: b\r\n", b"--end\r\n")

    expected = a_content(b"A: b\r\n" + data + b"--end\r\n")
    is_large = expected.size > CONTENT_IN_MEMORY_BYTES_MAX
    assert (expected.size, expected.sha256, is_large) == (made.size, made.sha256, made.path is not None)
    assert expected.data == (made.data if made.path is None else made.path.read_bytes())


async def test_a_file_that_is_gone_cannot_be_wrapped(ledger: Ledger, tmp_path: Path) -> None:
    original = a_spooled_content(tmp_path, b"x")
    assert original.path is not None
    original.path.unlink()

    with pytest.raises(ContentCorrupt):
        await ledger.wrapped(original, b"A: b\r\n")


async def test_a_file_that_cannot_be_written_is_a_matter_of_the_store(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "spool").rmdir()

    with pytest.raises(LedgerUnavailable):
        await ledger.wrapped(a_content(b"x" * CONTENT_IN_MEMORY_BYTES_MAX), b"A: b\r\n")


async def test_what_was_delivered_in_an_interval_is_counted(ledger: Ledger, wall: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    for minutes in range(5):
        await deliver(ledger, wall, 1, at=NOW + minutes * MINUTE)

    def counted(begin: int, end: int | None, *, by_others: bool = False) -> Awaitable[int]:
        until = None if end is None else NOW + end * MINUTE
        return ledger.read(resubmit_requests.delivered_count, NOW + begin * MINUTE, until, by_others=by_others)

    assert [3, 4, 0, 0] == [await counted(1, 3), await counted(1, None), await counted(5, 9), await counted(0, None, by_others=True)]
    monkeypatch.setattr(resubmit_requests, "COUNTED_MAX", 2)
    assert 2 == await counted(0, None)
