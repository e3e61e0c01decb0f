"""Small files that hang: each costs what needs it, and no other one."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from shadowrelay import bounded
from shadowrelay.bounded import FilesRead
from tests.kit.clock import PATIENCE_SECONDS, until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "READ_SECONDS", 0.2)
    monkeypatch.setattr(bounded, "LOOK_SECONDS", 0.2)


@pytest.fixture
def files() -> FilesRead:
    return FilesRead()


def a_fifo(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)  # opening it does not return
    return path


def let_go(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def threads() -> set[threading.Thread]:
    """That read files now; those of an earlier test may be about to end."""
    return {thread for thread in threading.enumerate() if thread.name == "file"}


async def test_a_file_is_read_while_another_one_hangs_and_nobody_waits_for_that(files: FilesRead, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bounded, "READ_SECONDS", PATIENCE_SECONDS)
    hung, well = a_fifo(tmp_path / "hung"), tmp_path / "well"
    well.write_text("here")
    hangs = asyncio.create_task(files.read((hung,), hung.read_text))
    await asyncio.sleep(0)

    found = [await files.read((well,), well.read_text) for _ in range(3)]

    assert (["here"] * 3, False) == (found, hangs.done())
    hangs.cancel()
    let_go(hung)


async def test_what_hangs_has_one_thread_however_many_ask_until_it_has_returned(files: FilesRead, tmp_path: Path) -> None:
    hung = a_fifo(tmp_path / "hung")
    before = threads()

    found = await asyncio.gather(*(files.read((hung,), hung.read_text) for _ in range(20)), return_exceptions=True)
    with pytest.raises(TimeoutError, match=f"{hung} hangs"):
        files.look((hung,), hung.read_text)

    assert {TimeoutError} == {type(each) for each in found}
    assert (1, [(hung,)]) == (len(threads() - before), list(files.hung()))
    let_go(hung)
    await until(lambda: not files.hung())
    hung.unlink()
    hung.write_text("again")
    assert "again" == await files.read((hung,), hung.read_text)


async def test_each_who_asks_reads_for_himself_and_gets_his_own_error(files: FilesRead, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("here")

    def fail() -> str:
        raise ValueError("broken")

    found = await asyncio.gather(*(files.read((path,), each) for each in (path.read_text, fail, path.stat)), return_exceptions=True)

    assert "here" == found[0]
    assert "broken" == str(found[1])
    assert os.stat(path) == found[2]


async def test_of_one_directory_a_few_hang_and_other_directories_are_read(files: FilesRead, tmp_path: Path) -> None:
    hung = [a_fifo(tmp_path / "mount" / str(number)) for number in range(bounded.HUNG_MAX + 3)]
    well = tmp_path / "well"
    well.write_text("here")
    before = threads()
    for path in hung[: bounded.HUNG_MAX]:
        with pytest.raises(TimeoutError, match="hangs: no answer in"):
            await files.read((path,), path.read_text)

    for path in hung[bounded.HUNG_MAX :]:
        with pytest.raises(TimeoutError, match=f"{path} is not read: {hung[0]} and others hang"):
            await files.read((path,), path.read_text)

    assert "here" == await files.read((well,), well.read_text)
    assert bounded.HUNG_MAX == len(threads() - before)
    for path in hung[: bounded.HUNG_MAX]:
        let_go(path)
    await until(lambda: not files.hung())


async def test_in_all_no_more_than_so_many_hang(files: FilesRead, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bounded, "HUNG_FILES_MAX", 2)
    hung = [a_fifo(tmp_path / str(number) / "file") for number in range(3)]
    for path in hung[:2]:
        with pytest.raises(TimeoutError, match="hangs: no answer in"):
            await files.read((path,), path.read_text)

    with pytest.raises(TimeoutError, match="is not read"):
        await files.read((hung[2],), hung[2].read_text)

    for path in hung[:2]:
        let_go(path)
    await until(lambda: not files.hung())
