"""Contents: segments are generations, dropped as a whole; what is read is checked."""

import errno
import os
import resource
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX, NO_ORDINALS, ContentPlace, Ordinals
from shadowrelay.model.ownership import DiscardEvent, DiscardStatus, Role
from shadowrelay.model.queue import QueueKind, StoredMessage
from shadowrelay.model.replies import ContentCorrupt, ContentUnreadable, LedgerUnavailable
from shadowrelay.model.values import replace
from shadowrelay.store import content, promises, queues, reading, shedding, steps
from shadowrelay.store.commit import Promise
from shadowrelay.store.content import ContentStore, RecentContents
from shadowrelay.store.errors import NOT_OF_THE_DISK
from shadowrelay.store.ledger import Inline
from tests.kit.clock import Hands
from tests.kit.ledger import (
    DAY,
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
    discarded,
    forget_recent,
    keep_copy,
    release,
    remove,
    some_done,
)

HOUR = timedelta(hours=1)


def segments(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in (directory / "content").glob("*.segment"))


def large_files(directory: Path) -> int:
    return len(list((directory / "content" / "large").iterdir()))


async def test_contents_of_one_segment_do_not_overlap(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = [await accept(ledger, bytes([65 + number]) * (number * 100)) for number in range(5)]
        forget_recent(ledger)

        for number, message in enumerate(stored):
            assert bytes([65 + number]) * (number * 100) == (await ledger.read_content(message.place)).data
    assert [1] == segments(tmp_path)


async def test_an_empty_content_is_a_content(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger, b"")
        forget_recent(ledger)

        assert b"" == (await ledger.read_content(stored.place)).data


async def test_a_segment_ends_at_its_size_after_its_time_and_with_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "SEGMENT_BYTES_MAX", 10)
    wall = Hands(NOW)
    async with a_ledger(tmp_path, wall) as ledger:
        numbers = [(await accept(ledger, data)).place.segment for data in (b"12345", b"12345", b"1", b"1")]
        wall.at += HOUR
        numbers.append((await accept(ledger)).place.segment)
    async with a_ledger(tmp_path, wall) as ledger:
        numbers.append((await accept(ledger)).place.segment)

    assert [1, 1, 2, 2, 3, 4] == numbers


async def test_content_that_was_just_written_does_not_come_from_the_disk(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger, b"hello\r\n")
        (tmp_path / "content" / "1.segment").unlink()

        assert b"hello\r\n" == (await ledger.read_content(stored.place)).data


@pytest.mark.parametrize("damage", [b"hellO\r\n", b"hel", b""], ids=["changed", "cut short", "empty"])
async def test_damaged_content_is_never_given_out(tmp_path: Path, damage: bytes) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger, b"hello\r\n")
        forget_recent(ledger)
        (tmp_path / "content" / "1.segment").write_bytes(damage)

        with pytest.raises(ContentCorrupt, match="SHA-256 differs"):
            await ledger.read_content(stored.place)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ETIMEDOUT, errno.EACCES, errno.ESTALE])
async def test_content_that_cannot_be_read_now_is_not_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger, b"hello\r\n")
        forget_recent(ledger)

        def fail(*_: object) -> bytes:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", fail)
            with pytest.raises(LedgerUnavailable, match=r"^45[12] ") as raised:
                await ledger.read_content(stored.place)
        assert (number not in NOT_OF_THE_DISK) is isinstance(raised.value, ContentUnreadable)
        assert b"hello\r\n" == (await ledger.read_content(stored.place)).data


async def test_content_is_not_corrupt_while_its_whole_directory_is_missing(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger, b"hello\r\n")
        forget_recent(ledger)
        (tmp_path / "content").rename(tmp_path / "elsewhere")

        with pytest.raises(LedgerUnavailable):
            await ledger.read_content(stored.place)
        (tmp_path / "elsewhere").rename(tmp_path / "content")
        assert b"hello\r\n" == (await ledger.read_content(stored.place)).data


async def test_no_descriptor_left_is_not_corrupt(tmp_path: Path) -> None:
    async with a_ledger(tmp_path, inline=Inline()) as ledger:
        stored = await accept(ledger)
        forget_recent(ledger)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with open(os.devnull, "rb") as last:
            resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno(), hard))
            try:
                with pytest.raises(LedgerUnavailable, match="Too many open files"):
                    await ledger.read_content(stored.place)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_damaged_large_content_is_never_given_out(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await ledger.commit(promises.accepted, a_new_message(), a_spooled_content(tmp_path, b"x" * 2_000_000), decided=True)
        (path,) = (tmp_path / "content" / "large").iterdir()
        path.chmod(0o600)
        path.write_bytes(b"x" * 1_999_999 + b"y")

        with pytest.raises(ContentCorrupt):
            await ledger.read_content(stored.place)  # type: ignore[arg-type]


async def test_a_small_content_that_came_as_a_file_is_read_into_memory(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await ledger.commit(promises.accepted, a_new_message(), a_spooled_content(tmp_path, b"small"), decided=True)
        assert stored.place is not None
        assert stored.place.size <= CONTENT_IN_MEMORY_BYTES_MAX

        assert b"small" == (await ledger.read_content(stored.place)).data


async def test_a_segment_goes_when_safety_net_needs_nothing_in_it_any_more(tmp_path: Path) -> None:
    wall = Hands(NOW)
    async with a_ledger(tmp_path, wall) as ledger:
        first, second = await accept(ledger), await accept(ledger)
        for message in (first, second):
            await ledger.commit(promises.attempt, an_attempt(message.envelope.message_id, keep_until=NOW + 2 * DAY), all_done)
        wall.at += HOUR
        await accept(ledger)  # another segment is the one being written

        await steps.expire(ledger, NOW + 2 * DAY - HOUR, 9)
        assert [1, 2] == segments(tmp_path)
        await steps.expire(ledger, NOW + 2 * DAY, 9)
        assert [2] == segments(tmp_path)

        found = await ledger.read(reading.load, first.envelope.message_id)
        assert found is not None
        assert (Role.DELIVERED, None) == (found.claim.role, found.place)


async def test_one_unfinished_message_keeps_its_segment(tmp_path: Path) -> None:
    wall = Hands(NOW)
    async with a_ledger(tmp_path, wall) as ledger:
        unfinished, done = await accept(ledger, b"unfinished\r\n"), await accept(ledger)
        await ledger.commit(promises.attempt, an_attempt(done.envelope.message_id), all_done)
        wall.at += HOUR
        await accept(ledger)

        await steps.expire(ledger, NOW + 100 * DAY, 9)

        assert [1, 2] == segments(tmp_path)
        forget_recent(ledger)
        assert b"unfinished\r\n" == (await ledger.read_content(unfinished.place)).data


async def test_the_segment_being_written_stays_though_nothing_in_it_is_needed(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        await ledger.commit(promises.transition, [stored.envelope.message_id], remove)
        await steps.expire(ledger, NOW + DAY, 9)
        assert [1] == segments(tmp_path)

        later = await accept(ledger, b"later\r\n")
        forget_recent(ledger)
        assert b"later\r\n" == (await ledger.read_content(later.place)).data


def forget_pins(work) -> None:  # type: ignore[no-untyped-def]
    work.connection.exec_driver_sql("UPDATE segment SET pinned_count = 0")
    work.changes_count += 1


async def test_counts_that_are_too_low_do_not_lose_content(tmp_path: Path) -> None:
    """The rows are asked before anything is unlinked."""
    wall = Hands(NOW)
    async with a_ledger(tmp_path, wall) as ledger:
        stored = await accept(ledger)
        wall.at += HOUR
        await accept(ledger)
        await ledger.commit(Promise(forget_pins))

        await steps.expire(ledger, NOW + 100 * DAY, 9)

        assert [1, 2] == segments(tmp_path)
        assert (await ledger.read(reading.load, stored.envelope.message_id)).place is not None  # type: ignore[union-attr]


async def test_discarded_shadow_messages_stay_in_safety_net_and_then_go_with_their_segment(tmp_path: Path) -> None:
    wall = Hands(NOW)
    async with a_ledger(tmp_path, wall) as ledger:
        message = a_new_message(Role.SHADOW)
        await ledger.commit(promises.hold, message, a_content(), keep_copy)
        event = DiscardEvent(1, message.envelope.message_id, DiscardStatus.DELIVERED)
        await ledger.commit(promises.discards, THERE, THEIR_DATABASE, 1, [event], discarded, NOW + 2 * DAY)
        wall.at += HOUR
        await accept(ledger)

        found = await ledger.read(reading.load, message.envelope.message_id)
        assert found is not None
        assert found.place is not None
        await steps.expire(ledger, NOW + 2 * DAY, 9)
        assert [2] == segments(tmp_path)


@pytest.mark.parametrize("end", ["released", "removed", "delivered and past its time"])
async def test_a_large_content_goes_by_itself(tmp_path: Path, end: str) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await ledger.commit(promises.accepted, a_new_message(), a_spooled_content(tmp_path, b"x" * 2_000_000), decided=True)
        message_id = stored.envelope.message_id
        assert 1 == large_files(tmp_path)

        if end == "released":
            await ledger.commit(promises.transition, [message_id], release)
        elif end == "removed":
            await ledger.commit(promises.transition, [message_id], remove)
        else:
            await ledger.commit(promises.attempt, an_attempt(message_id, keep_until=NOW + 2 * DAY), all_done)
            await steps.expire(ledger, NOW + 2 * DAY - HOUR, 9)
            assert 1 == large_files(tmp_path)
            await steps.expire(ledger, NOW + 2 * DAY, 9)
            assert Role.DELIVERED is (await ledger.read(reading.load, message_id)).claim.role  # type: ignore[union-attr]

        assert 0 == large_files(tmp_path)


async def test_line_ends_of_a_large_content_count_as_checked_where_this_process_checked_them_as_it_came(tmp_path: Path) -> None:
    data = b"line\r\n" * 300_000
    async with a_ledger(tmp_path) as ledger:
        checked = replace(a_spooled_content(tmp_path, data), is_checked=True)
        own = await ledger.commit(promises.accepted, a_new_message(), checked, decided=True)
        others = await ledger.commit(promises.accepted, a_new_message(), a_spooled_content(tmp_path, data), decided=True)
        assert own.place is not None
        assert others.place is not None

        assert (await ledger.read_content(own.place)).is_checked
        assert not (await ledger.read_content(others.place)).is_checked
    async with a_ledger(tmp_path) as ledger:
        assert not (await ledger.read_content(own.place)).is_checked


async def test_a_superseded_large_copy_leaves_no_file_in_the_store(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        copy = replace(a_new_message(Role.SHADOW), envelope=stored.envelope)

        await ledger.commit(promises.hold, copy, a_spooled_content(tmp_path, b"x" * 2_000_000), release)

        assert 0 == large_files(tmp_path)


def test_recent_contents_are_bounded_and_the_oldest_go_first() -> None:
    recent = RecentContents(bytes_max=10)
    places = [ContentPlace(1, offset, 4, b"") for offset in range(3)]
    for place in places:
        recent.put(place, b"1234")

    assert [None, b"1234", b"1234"] == [recent.get(place) for place in places]
    recent.drop(places[1])
    recent.drop(places[1])
    assert (None, 4) == (recent.get(places[1]), recent.size)


def test_a_segment_that_was_only_thought_of_is_not_there_after_a_rollback(tmp_path: Path) -> None:
    store = ContentStore(tmp_path)
    store.open((), ())

    forgotten = store.append(a_content(b"forgotten"), NOW)
    store.forget_waiting()
    kept = store.append(a_content(b"kept"), NOW)
    store.sync()

    assert not store.has(forgotten)
    assert b"kept" == store.read(kept).data
    assert [f"{kept.segment}.segment"] == [path.name for path in store.directory.glob("*.segment")]
    store.end_segment()


def test_contents_of_one_commit_may_be_in_two_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowrelay.store.content.SEGMENT_BYTES_MAX", 8)
    store = ContentStore(tmp_path)
    store.open((), ())

    places = [store.append(a_content(data), NOW) for data in (b"first", b"second", b"third")]
    store.sync()
    again = store.append(a_content(b"4"), NOW)
    store.forget_waiting()
    last = store.append(a_content(b"fourth"), NOW)
    store.sync()

    assert places[0].segment == places[1].segment < places[2].segment == again.segment
    assert again.offset == last.offset
    assert [b"first", b"second", b"third", b"fourth"] == [store.read(place).data for place in (*places, last)]
    store.end_segment()


async def test_reading_is_proved_by_what_was_written_last(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await ledger.prove_read()
        await accept(ledger)
        await ledger.prove_read()
        (segment,) = (tmp_path / "content").glob("*.segment")
        segment.unlink()
        await ledger.prove_read()  # one that is missing is no disk that cannot be read


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_lack_of_descriptors_or_memory_is_no_disk_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    async with a_ledger(tmp_path) as ledger:
        monkeypatch.setattr(ledger._contents, "prove_read", fails)
        await ledger.prove_read()


async def test_a_disk_that_returns_errors_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with a_ledger(tmp_path) as ledger:
        await accept(ledger)
        monkeypatch.setattr(os, "pread", fails)
        with pytest.raises(LedgerUnavailable, match="Input/output error"):
            await ledger.prove_read()


async def test_content_that_left_the_boundary_is_not_kept_and_only_its_row_is(tmp_path: Path) -> None:
    """It can never be resubmitted. What went inside, or partly so, stays whole; and so does what nobody has taken."""
    async with a_ledger(tmp_path) as ledger:
        one, both, inside, failed = [await accept(ledger, b"x" * 100, recipients_count=2) for _ in range(4)]

        async def end(stored: StoredMessage, ordinal: int, done: Ordinals, *, is_inside: bool, is_sent: bool = True) -> None:
            sent = frozenset({ordinal}) if is_sent else NO_ORDINALS
            decide = all_done if len(done) == 2 else some_done(ordinal)
            await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, done=done, sent=sent, is_inside=is_inside), decide)

        first, everyone = frozenset({1}), frozenset({1, 2})
        for stored, sides in ((one, (False, False)), (both, (True, False)), (inside, (True, True))):
            await end(stored, 1, first, is_inside=sides[0])
            await end(stored, 2, everyone, is_inside=sides[1])
        await end(failed, 1, everyone, is_inside=False, is_sent=False)

        found = [await ledger.read(reading.load, stored.envelope.message_id) for stored in (one, both, inside, failed)]
        assert {Role.DELIVERED} == {stored.claim.role for stored in found if stored is not None}
        assert [False, True, True, True] == [stored is not None and stored.place is not None for stored in found]
        assert 300 == await ledger.read(shedding.safety_net_octets)
        assert 4 == sum(row.count for row in await ledger.read(queues.queues) if row.kind is QueueKind.SAFETY_NET_PRIMARY)
