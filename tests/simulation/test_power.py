"""What is there after a loss of power: by SQLite's pragmas, and by what was synced."""

import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowrelay.store.content import sync_directory
from tests.simulation.power import Power


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture(params=range(8))
def power(directory: Path, request: pytest.FixtureRequest) -> Iterator[Power]:
    """Eight chances for what is not synced."""
    power = Power(directory, random.Random(request.param))
    with power.installed():
        yield power


def _rows_after(power: Power, directory: Path, synchronous: str) -> int:
    connection = sqlite3.connect(directory / "queue.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("CREATE TABLE message (content TEXT)")
    for number in range(50):
        connection.execute("INSERT INTO message VALUES (?)", (f"{number} " * 500,))
    remains = power.fail(directory)
    connection.close()
    power.put_back(directory, remains)
    after = sqlite3.connect(directory / "queue.db")
    try:
        return int(after.execute("SELECT count(*) FROM message").fetchone()[0])
    except sqlite3.DatabaseError:
        return 0
    finally:
        after.close()


def test_what_was_committed_with_full_synchronization_is_there(power: Power, directory: Path) -> None:
    assert 50 == _rows_after(power, directory, "FULL")


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_what_was_committed_without_it_is_lost(power: Power, directory: Path, synchronous: str) -> None:
    assert _rows_after(power, directory, synchronous) < 50


@pytest.mark.parametrize("flag", [os.O_DSYNC, 0], ids=["O_DSYNC", "cached"])
@pytest.mark.parametrize("is_name_synced", [True, False])
def test_content_is_there_if_it_and_its_name_were_synced(power: Power, directory: Path, flag: int, is_name_synced: bool) -> None:
    descriptor = os.open(directory / "1.segment", os.O_WRONLY | os.O_CREAT | os.O_APPEND | flag)
    if is_name_synced:
        sync_directory(directory)
    os.write(descriptor, b"one, ")
    os.write(descriptor, b"two")
    os.close(descriptor)

    found = {bytes(power.fail(directory).get("1.segment") or b"") for _ in range(30)}

    assert found == ({b"one, two"} if flag and is_name_synced else {b"one, two", b""})


def test_a_removed_file_may_be_back_until_its_directory_is_synced(power: Power, directory: Path) -> None:
    (directory / "old").write_bytes(b"old")
    power.settle(directory)
    (directory / "old").unlink()

    assert {True, False} == {"old" in power.fail(directory) for _ in range(30)}
    sync_directory(directory)
    assert {} == power.fail(directory)
