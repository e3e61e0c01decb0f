"""A file of recipients beside a node: read in the background, followed when it changes, and never given up for a broken one."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import structlog

from shadowrelay.smtp import recipient_file
from shadowrelay.smtp.recipient_file import RecipientFile


def a_file(path: Path, text: str | bytes = "john@corp.example\n") -> RecipientFile:
    write(path, text)
    return RecipientFile("corp", path, is_case_sensitive=False)


def write(path: Path, text: str | bytes) -> None:
    """A whole new file in the place of the old one."""
    new = path.with_suffix(".new")
    new.write_bytes(text if isinstance(text, bytes) else text.encode())
    new.rename(path)


def knows(file: RecipientFile, address: str) -> bool:
    return file.known is not None and file.known.has(address, "+")


async def test_a_changed_file_is_read_when_it_has_settled(tmp_path: Path) -> None:
    file = a_file(path := tmp_path / "list")
    await file.look(is_asked=True)
    write(path, "jane@corp.example\n")

    await file.look()
    after_one = knows(file, "jane@corp.example")
    await file.look()

    assert (False, True, False, "") == (after_one, knows(file, "jane@corp.example"), knows(file, "john@corp.example"), file.problem)


async def test_a_file_that_does_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(tmp_path / "list")
    await file.look(is_asked=True)
    monkeypatch.setattr(recipient_file, "read", lambda *_, **__: pytest.fail("read again"))

    for _ in range(3):
        await file.look()

    assert knows(file, "john@corp.example")


BROKEN: list[tuple[str, str | bytes | None]] = [
    ("it has no address", ""),
    ("it has no address", "# only this\n"),
    ("line 2 is neither an address", "john@corp.example\nrubbish\n"),
    ("it is not UTF-8 text", b"j\xfcrgen@corp.example\n"),
    ("line 1 is neither an address", b"\x00" * 100),
    ("line 1 is longer than 65536 characters", "#" * 100_000),
    ("No such file or directory", None),
]


@pytest.mark.parametrize(("reason", "text"), BROKEN)
async def test_a_broken_file_keeps_the_list_from_before_and_says_so_once(tmp_path: Path, reason: str, text: str | bytes | None) -> None:
    file = a_file(path := tmp_path / "list")
    await file.look(is_asked=True)
    path.unlink()
    if text is not None:
        write(path, text)

    with structlog.testing.capture_logs() as logs:
        for _ in range(4):
            await file.look()
    kept = knows(file, "john@corp.example")
    problem = file.problem
    write(path, "jane@corp.example\n")
    await file.look()
    await file.look()

    assert (True, "") == (kept, file.problem)
    assert reason in problem
    assert "the list of 1 addresses from before holds" in problem
    assert [problem] == [line["reason"] for line in logs if line["event"] == "recipients.kept"]
    assert knows(file, "jane@corp.example")


async def test_a_file_that_cannot_be_read_at_the_start_leaves_recipients_undecided(tmp_path: Path) -> None:
    file = RecipientFile("corp", tmp_path, is_case_sensitive=False)  # a directory

    await file.look(is_asked=True)

    assert file.known is None
    assert "it cannot be read" in file.problem
    assert "every recipient is undecided" in file.problem


async def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(path := tmp_path / "list", "".join(f"u{number}@corp.example\n" for number in range(2_000)))
    real = time.sleep

    def changed(seconds: float) -> None:
        with path.open("a") as grown:
            grown.write("late@corp.example\n")
        monkeypatch.setattr(recipient_file.time, "sleep", real)

    monkeypatch.setattr(recipient_file.time, "sleep", changed)
    await file.look(is_asked=True)
    problem = file.problem
    await file.look()
    await file.look()

    assert "it changed while it was read" in problem
    assert ("", True) == (file.problem, knows(file, "late@corp.example"))


async def test_a_file_system_that_hangs_keeps_the_list_and_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(tmp_path / "list")
    await file.look(is_asked=True)
    let_go = threading.Event()
    monkeypatch.setattr(recipient_file, "STAT_SECONDS", 0.05)
    monkeypatch.setattr(recipient_file, "signature_of", lambda path: let_go.wait(30) and None)

    await file.look()
    let_go.set()

    assert "no answer" in file.problem
    assert knows(file, "john@corp.example")


async def test_the_loop_goes_on_while_a_large_file_is_read(tmp_path: Path) -> None:
    file = a_file(tmp_path / "list", "".join(f"user{number}@corp.example\n" for number in range(50_000)))
    turns = 0
    reading = asyncio.ensure_future(file.look(is_asked=True))

    while not reading.done():
        await asyncio.sleep(0.001)
        turns += 1

    assert 50_000 == (0 if file.known is None else file.known.count)
    assert turns > 20


MILLION = """
import asyncio, sys
from pathlib import Path
from shadowrelay.smtp.recipient_file import RecipientFile

def rss(key):
    return int(Path("/proc/self/status").read_text().partition(key)[2].split()[0])

async def main():
    before = rss("VmRSS:")
    file = RecipientFile("corp", Path(sys.argv[1]), is_case_sensitive=False)
    for _ in range(3):
        await file.look(is_asked=True)
    assert file.known.count == 1_000_000, file.problem
    assert file.known.has("some.person.999999@department.corp.example", "+")
    print(rss("VmHWM:") - before)

asyncio.run(main())
"""


@pytest.mark.heavy
def test_a_million_addresses_take_less_than_150_megabytes_also_while_they_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "list"
    with path.open("w") as file:
        file.writelines(f"some.person.{number}@department.corp.example\n" for number in range(1_000_000))

    done = subprocess.run([sys.executable, "-c", MILLION, path], capture_output=True, text=True, check=False, env=os.environ, timeout=170)

    assert "" == done.stderr
    assert int(done.stdout.splitlines()[-1]) < 50_000, "kilobytes"
