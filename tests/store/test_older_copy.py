"""A queue database that is an older copy of itself gets a new id, and its claims are found page by page."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.ids import NO_DATABASE
from shadowrelay.model.ownership import Role
from shadowrelay.model.peers import Seen
from shadowrelay.model.queue import Beginning
from shadowrelay.ownership import rules
from shadowrelay.store import peer_promises, promises, reading
from tests.kit.clock import Hands
from tests.kit.ledger import (
    HERE,
    NOW,
    THEIR_DATABASE,
    THERE,
    a_claim,
    a_content,
    a_ledger,
    a_new_message,
    all_done,
    an_attempt,
    an_identity,
    keep_copy,
)


async def test_each_opening_is_remembered_with_its_beginning(tmp_path: Path) -> None:
    openings, ended = {}, 0
    for incarnation in (1, 2, 3):
        async with a_ledger(tmp_path) as ledger:
            openings[incarnation] = Beginning(ledger.identity.began, ended)
            await ledger.commit(promises.accepted, a_new_message(), a_content(), decided=True)
            ended = ledger.position

            assert openings == ledger.identity.openings


async def test_a_copy_from_before_is_recognised_by_what_was_seen_since(tmp_path: Path) -> None:
    async with a_ledger(tmp_path / "live") as ledger:
        await ledger.commit(promises.accepted, a_new_message(), a_content(), decided=True)
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    async with a_ledger(tmp_path / "live") as ledger:
        await ledger.commit(promises.accepted, a_new_message(), a_content(), decided=True)
        seen = Seen(ledger.identity.incarnation, ledger.identity.began, ledger.position)
        assert not rules.is_older_copy(ledger.identity.openings, ledger.position, seen)
    for _ in range(2):
        async with a_ledger(tmp_path / "copy") as ledger:
            assert rules.is_older_copy(ledger.identity.openings, ledger.position, seen)


async def test_a_copy_that_is_opened_again_begins_elsewhere(tmp_path: Path) -> None:
    """Otherwise it could not be told from what it is a copy of, once it has committed as much."""
    async with a_ledger(tmp_path / "live") as ledger:
        await ledger.commit(promises.accepted, a_new_message(), a_content(), decided=True)
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    began = []
    for directory, microseconds in (("live", 17), ("copy", 400_000)):
        wall = Hands(NOW + timedelta(microseconds=microseconds))
        async with a_ledger(tmp_path / directory, now=wall) as ledger:
            began.append(ledger.identity.began)

    assert began[0] != began[1]


async def test_a_renamed_database_has_another_id_and_the_claims_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "OLDER_CLAIMS_READ", 2)
    async with a_ledger(tmp_path) as ledger:
        former = ledger.identity.database
        stored = [await ledger.commit(promises.accepted, a_new_message(), a_content(), decided=True) for _ in range(3)]
        await ledger.commit(promises.attempt, an_attempt(stored[1].envelope.message_id), all_done)
        await ledger.commit(promises.set_aside, stored[2].envelope.message_id, "poison")
        await ledger.commit(promises.hold, a_new_message(a_claim(Role.SHADOW)), a_content(), keep_copy)
        await ledger.commit(peer_promises.database_renamed)

    async with a_ledger(tmp_path) as ledger:
        identity = ledger.identity
        assert former == identity.former
        assert identity.database not in (former, NO_DATABASE)
        assert [HERE, HERE] == [ledger.peers.server_of(former), ledger.peers.server_of(identity.database)]
        assert ((stored[0].envelope.message_id,), 2) == await ledger.read(reading.older_claims, 0)
        assert ((stored[2].envelope.message_id,), 4) == await ledger.read(reading.older_claims, 2)
        assert ((), 4) == await ledger.read(reading.older_claims, 4)
        assert 4 == identity.older_until
        new = await ledger.commit(promises.accepted, a_new_message(), a_content(), decided=True)
        assert new.internal_id > identity.older_until
        await ledger.commit(peer_promises.older_claims_over)

    async with a_ledger(tmp_path) as ledger:
        assert (identity.database, former, 0) == (ledger.identity.database, ledger.identity.former, ledger.identity.older_until)


async def test_a_database_that_was_renamed_twice_knows_its_last_id(tmp_path: Path) -> None:
    ids = []
    for _ in range(3):
        async with a_ledger(tmp_path) as ledger:
            ids.append((ledger.identity.former, ledger.identity.database))
            await ledger.commit(peer_promises.database_renamed)

    assert [NO_DATABASE, ids[0][1], ids[1][1]] == [former for former, _ in ids]


async def test_a_position_that_a_reply_told_is_written_with_the_next_commit_and_remembered(tmp_path: Path) -> None:
    """Without a transaction of its own: a peer that is restarted still knows it."""
    wall = Hands(NOW)
    async with a_ledger(tmp_path, now=wall) as ledger:
        await ledger.commit(peer_promises.peer_heard, an_identity(position=10), NOW)
        for position in (20, 30, 40):
            ledger.peers.note_told(THERE, an_identity().whole_incarnation, position)
            assert THERE in ledger.peers.told_unsaved
            before = ledger.position
            await ledger.commit(promises.accepted, a_new_message(), a_content(), decided=True)
            assert before + 1 == ledger.position
            wall.at += timedelta(seconds=0.4)
        assert THERE in ledger.peers.told_unsaved, "30 and 40 came within a second"
        wall.at += timedelta(seconds=1)
        await ledger.commit(promises.accepted, a_new_message(), a_content(), decided=True)
        assert THERE not in ledger.peers.told_unsaved

    async with a_ledger(tmp_path, now=wall) as ledger:
        assert Seen(1, 1, 40) == ledger.peers.seen(THERE, THEIR_DATABASE)
