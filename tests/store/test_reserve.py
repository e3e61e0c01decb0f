"""The reserve that a start on a full disk takes, and that is made again when there is room."""

from pathlib import Path

import pytest

from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.store import content, opening, promises, writing
from tests.kit.ledger import a_ledger, accept, all_done, an_attempt


def size_of(directory: Path) -> int | None:
    path = directory / content.RESERVE_NAME
    return path.stat().st_size if path.exists() else None


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "RESERVE_BYTES", 100_000)


async def test_a_reserve_is_made_where_there_is_room(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await ledger.keep_reserve(0)
        await ledger.keep_reserve(0)

        assert 100_000 == size_of(tmp_path)


async def test_no_reserve_is_made_of_what_mail_needs(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await ledger.keep_reserve(10**18)

    assert size_of(tmp_path) is None


async def test_a_start_without_room_takes_the_reserve_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_ledger(tmp_path) as ledger:
        await ledger.keep_reserve(0)
        stored = await accept(ledger)
    with monkeypatch.context() as patched:
        patched.setattr(content, "free_bytes", lambda _: 0)
        async with a_ledger(tmp_path) as ledger:
            notes = ledger.notes
            await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)
            await ledger.keep_reserve(0)
            taken = size_of(tmp_path)

    assert (opening.RESERVE_TAKEN,) == notes
    assert taken is None


async def test_a_start_that_a_quota_ends_takes_the_reserve_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_ledger(tmp_path) as ledger:
        await ledger.keep_reserve(0)
    real = opening._read_or_make

    def without_room(*arguments):  # type: ignore[no-untyped-def]
        if size_of(tmp_path) is not None:
            raise OSError(122, "Disk quota exceeded")
        return real(*arguments)

    monkeypatch.setattr(opening, "_read_or_make", without_room)
    monkeypatch.setattr(content, "free_bytes", lambda _: 10_000_000)
    monkeypatch.setattr(content, "RESERVE_BYTES", 16_000_000)
    async with a_ledger(tmp_path) as ledger:
        assert (opening.RESERVE_TAKEN,) == ledger.notes


async def test_a_start_that_is_not_possible_names_directory_and_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(opening, "_read_or_make", fail)
    monkeypatch.setattr(content, "free_bytes", lambda _: 512)

    with pytest.raises(LedgerUnavailable) as caught:
        async with a_ledger(tmp_path):
            pass
    assert f"data_directory {tmp_path} is full: 512 bytes are free, to open queue.db needs 4 MB" in caught.value.reason


async def test_an_opening_that_failed_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(writing, "PRAGMAS", (("no_such_pragma", "1", 1),))
        with pytest.raises(Exception, match="no_such_pragma"):
            async with a_ledger(tmp_path):
                pass

    async with a_ledger(tmp_path) as ledger:
        assert ledger.is_new
