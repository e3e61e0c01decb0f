"""Opening: identity, incarnation, migrations, what was found damaged, and what the last process was working on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import ConfigurationError, LedgerUnavailable
from shadowrelay.store import peer_promises, promises, queues, reading, writing
from shadowrelay.store.commit import Promise
from shadowrelay.store.content import read_boot_id
from shadowrelay.store.ledger import Inline
from tests.kit.clock import PATIENCE_SECONDS, Hands
from tests.kit.ledger import (
    NOW,
    THERE,
    a_content,
    a_ledger,
    a_message_id,
    a_new_message,
    a_spooled_content,
    accept,
    all_done,
    an_attempt,
    an_identity,
    choose,
    keep_copy,
    nothing,
)


async def test_each_opening_is_a_new_incarnation_of_the_same_database_that_begins_above_the_last_one(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await accept(ledger)
        first, ended = ledger.identity, ledger.position
    async with a_ledger(tmp_path) as ledger:
        second = ledger.identity

        assert (1, 2) == (first.incarnation, second.incarnation)
        assert (first.database, ended) == (second.database, second.openings[2].found)
        assert second.began == ledger.position > ended
        assert (False, False) == (ledger.is_new, ledger.was_damaged)


async def test_two_new_databases_have_different_ids(tmp_path: Path) -> None:
    async with a_ledger(tmp_path / "a") as one, a_ledger(tmp_path / "b") as other:
        assert one.is_new
        assert one.identity.database != other.identity.database


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    message, copy = a_new_message(), a_new_message(Role.SHADOW)
    async with a_ledger(tmp_path) as ledger:
        stored = await ledger.commit(promises.accepted, message, a_content(b"kept\r\n"), decided=True)
        await ledger.commit(promises.hold, copy, a_content(), keep_copy)
        held = await ledger.read(reading.load, copy.envelope.message_id)
        await ledger.commit(peer_promises.peer_heard, an_identity(), NOW)
        peers, listed = ledger.peers.listed(), await ledger.read(queues.queues)
    async with a_ledger(tmp_path) as ledger:
        assert (stored, held) == (
            await ledger.read(reading.load, message.envelope.message_id),
            await ledger.read(reading.load, copy.envelope.message_id),
        )
        assert stored.place is not None
        assert b"kept\r\n" == (await ledger.read_content(stored.place)).data
        assert (peers, listed) == (ledger.peers.listed(), await ledger.read(queues.queues))
        assert THERE == ledger.peers.server_of(an_identity().database)


async def test_ids_and_sequences_are_not_given_twice(tmp_path: Path) -> None:
    sequences, ids = [], []
    for _ in range(2):
        async with a_ledger(tmp_path) as ledger:
            stored = await accept(ledger)
            ids.append(stored.internal_id)
            await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)
            reply = await ledger.discards_for(THERE, an_identity().database, 9)
            sequences.append(reply.events[0].sequence)
            await ledger.commit(promises.forget_acknowledged, THERE, an_identity().database, sequences[-1], nothing)

    assert sequences[0] < sequences[1]
    assert ids[0] < ids[1]


async def test_a_message_without_verdict_counts_as_accepted_after_a_restart(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await ledger.commit(promises.accepted, a_new_message(due_at=None), a_content(), decided=False)
        assert () == await ledger.read(reading.submission, 9)
    async with a_ledger(tmp_path) as ledger:
        (found,) = await ledger.read(reading.submission, 9)
        assert found.is_decided


async def test_the_pragmas_of_the_writer_are_what_they_should_be(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:

        def look(work) -> dict[str, object]:  # type: ignore[no-untyped-def]
            names = ("journal_mode", "synchronous", "busy_timeout", "mmap_size")
            return {name: work.connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names}

        found = await ledger.commit(Promise(look, is_heavy=True))

    assert {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 5000, "mmap_size": 0} == found


async def test_a_pragma_that_does_not_hold_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PRAGMAS", (("journal_mode", "DELETE", "wal"),))

    with pytest.raises(ConfigurationError, match="journal_mode should be wal and is delete"):
        async with a_ledger(tmp_path):
            pass


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    async with a_ledger(tmp_path):
        with pytest.raises(ConfigurationError, match="in use by another process"):
            async with a_ledger(tmp_path):
                pass


async def test_a_directory_that_can_never_be_used_names_the_key_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for directory in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/below")):
        with pytest.raises(ConfigurationError, match=rf"server.data_directory: {directory} cannot be used .*; name a directory that user"):
            async with a_ledger(directory):
                pass


async def test_what_is_kept_of_mail_is_for_its_owner_alone(tmp_path: Path) -> None:
    async with a_ledger(tmp_path / "data") as ledger:
        await accept(ledger)
        files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]

        assert 0o700 == (tmp_path / "data").stat().st_mode & 0o777
        assert {0o600} == {path.stat().st_mode & 0o777 for path in files}


async def test_readers_cannot_write(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        with pytest.raises(LedgerUnavailable, match="readonly"):
            await ledger._readers.ask(lambda connection: connection.exec_driver_sql("DELETE FROM message"))


# damage
async def test_a_file_that_is_no_database_is_put_aside_and_a_new_one_begins(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        first = ledger.identity.database
    (tmp_path / "queue.db").write_bytes(b"this was a database once" * 1000)

    async with a_ledger(tmp_path) as ledger:
        assert first != ledger.identity.database
        assert (True, True, 1) == (ledger.is_new, ledger.was_damaged, ledger.identity.incarnation)
        assert "moved to queue.db.corrupt-20260301T120000Z" in ledger.notes[0]
        assert await ledger.read(reading.load, stored.envelope.message_id) is None
    aside = {path.name for path in tmp_path.glob("*.corrupt-*")}
    assert {"queue.db.corrupt-20260301T120000Z", "content.corrupt-20260301T120000Z"} == aside


async def test_a_schema_that_is_damaged_is_put_aside(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await accept(ledger)
    data = bytearray((tmp_path / "queue.db").read_bytes())
    data[100:4096] = b"\xff" * 3996
    (tmp_path / "queue.db").write_bytes(data)

    async with a_ledger(tmp_path) as ledger:
        assert ledger.was_damaged


# poison
def die_while_handling(directory: Path, message_id: str, before: str = "pass") -> None:
    """Another process opens the ledger and is killed while it handles the content of this message."""
    script = f"""
import asyncio, os, signal, sys
from pathlib import Path
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import HERE, NOW
from shadowrelay.store import Ledger

async def main():
    ledger = await Ledger.open(Path({str(directory)!r}), server=HERE, now=lambda: NOW)
    {before}
    with ledger.handling({message_id!r}):
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    finished = subprocess.run([sys.executable, "-c", script], check=False, timeout=PATIENCE_SECONDS)
    assert -9 == finished.returncode


async def deaths_of(directory: Path, *message_ids: MessageId) -> tuple[list[int], tuple[str, ...]]:
    """Of each message, at one more opening; and the notes of that."""
    async with a_ledger(directory) as ledger:
        return [message.deaths_count for message in await ledger.read(reading.load_many, message_ids)], ledger.notes


async def two_messages(directory: Path) -> tuple[MessageId, MessageId]:
    async with a_ledger(directory) as ledger:
        one = await accept(ledger)
        other = await accept(ledger)
    return one.envelope.message_id, other.envelope.message_id


@pytest.mark.slow
async def test_only_the_message_that_was_handled_when_the_process_died_counts_its_deaths(tmp_path: Path) -> None:
    poison, innocent = await two_messages(tmp_path)
    counts = []
    for _ in range(2):
        die_while_handling(tmp_path, poison, f"ledger.handling({innocent!r}).__enter__(); ledger.handling({innocent!r}).__exit__()")
        count, notes = await deaths_of(tmp_path, poison, innocent)
        counts.append(count)

    assert [[1, 0], [2, 0]] == counts
    assert ("the last process died while it handled the content of 1 message: suspected, and counted as a death of each",) == notes
    assert ([2, 0], ()) == await deaths_of(tmp_path, poison, innocent)


@pytest.mark.slow
async def test_a_death_of_a_process_that_was_asked_to_stop_counts_for_nothing(tmp_path: Path) -> None:
    one, other = await two_messages(tmp_path)

    die_while_handling(tmp_path, one, "ledger.stopping()")

    count, notes = await deaths_of(tmp_path, one, other)
    assert [0, 0] == count
    assert ["not suspected, because it had been asked to stop"] == [note.partition(": ")[2] for note in notes]
    die_while_handling(tmp_path, one)
    assert [1, 0] == (await deaths_of(tmp_path, one, other))[0], "the next process was not asked to stop"


@pytest.mark.slow
async def test_a_death_of_the_machine_counts_for_nothing(tmp_path: Path) -> None:
    one, other = await two_messages(tmp_path)
    die_while_handling(tmp_path, one)
    left = (tmp_path / "working").read_bytes()
    assert one.encode() in left

    (tmp_path / "working").write_bytes(left.replace(read_boot_id().encode(), b"00000000-0000-4000-8000-000000000000"))

    count, notes = await deaths_of(tmp_path, one, other)
    assert [0, 0] == count
    assert "the machine was started since" in notes[0]


async def test_marks_of_an_older_version_which_marked_what_only_waited_count_for_nothing(tmp_path: Path) -> None:
    one, other = await two_messages(tmp_path)

    (tmp_path / "working").write_bytes(b"".join(message_id.encode().ljust(40, b"\0") for message_id in (a_message_id(), one, other)))

    assert [0, 0] == (await deaths_of(tmp_path, one, other))[0]


async def test_only_an_attempt_that_handled_the_content_clears_a_suspect(tmp_path: Path) -> None:
    one, _ = await two_messages(tmp_path)
    counts = []
    async with a_ledger(tmp_path, inline=Inline()) as ledger:
        ledger.handling(one).__enter__()
        ledger.abandon()
    async with a_ledger(tmp_path, inline=Inline()) as ledger:
        await ledger.commit(promises.attempt, an_attempt(one, frozenset()), nothing)  # the next hop could not be reached
        counts += [message.deaths_count for message in await ledger.read(reading.load_many, [one])]
        with pytest.raises(ValueError, match="a bug"), ledger.handling(one):
            raise ValueError("a bug")
        await ledger.commit(promises.attempt, an_attempt(one, frozenset()), nothing)
        counts += [message.deaths_count for message in await ledger.read(reading.load_many, [one])]
        ledger.abandon()
    assert [1, 0] == counts
    assert [0] == (await deaths_of(tmp_path, one))[0]


async def test_handling_a_message_that_is_not_there_harms_nothing(tmp_path: Path) -> None:
    async with a_ledger(tmp_path, inline=Inline()) as ledger:
        for _ in range(100):  # more than there are slots
            ledger.handling(a_message_id()).__enter__()
        ledger.abandon()
    async with a_ledger(tmp_path) as ledger:
        assert 1 == len(ledger.notes)


# what was left behind
async def test_content_that_no_message_refers_to_is_removed_at_opening(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        stored = await accept(ledger)
        large = await ledger.commit(promises.accepted, a_new_message(), a_spooled_content(tmp_path, b"x" * 2_000_000), decided=True)
    (tmp_path / "content" / "900.segment").write_bytes(b"orphan")
    (tmp_path / "content" / "large" / "900").write_bytes(b"orphan")
    (tmp_path / "spool" / "half").write_bytes(b"half a message")

    async with a_ledger(tmp_path) as ledger:
        assert ("2 content files that no message refers to were removed",) == ledger.notes
        assert [] == list((tmp_path / "spool").iterdir())
        for message in (stored, large):
            assert message.place is not None
            assert message.place.size == (await ledger.read_content(message.place)).size


async def test_abandoned_in_the_middle_everything_committed_is_there(tmp_path: Path) -> None:
    wall = Hands(NOW)
    async with a_ledger(tmp_path, wall, inline=Inline()) as ledger:
        stored = await accept(ledger)
        await ledger.commit(promises.verdict, stored.envelope.message_id, choose)
        ledger.abandon()
    async with a_ledger(tmp_path, wall, inline=Inline()) as ledger:
        (found,) = await ledger.read(reading.submission, 9)
        assert stored.envelope == found.envelope


async def test_the_directories_of_contents_have_names_that_survive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name was on the disk when the database was open: what was synced, and what was there then."""
    synced: dict[str, set[str]] = {}
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            synced[path.name] = {entry.name for entry in path.iterdir()}

    monkeypatch.setattr(os, "fsync", noted)
    async with a_ledger(tmp_path / "data"):
        assert (True, True) == ("content" in synced["data"], "large" in synced["content"])
