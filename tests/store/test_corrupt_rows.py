"""A row that cannot be read is set aside with a reason, counted, and stops nothing else."""

import sqlite3
from pathlib import Path

import pytest

from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Claim, Role, Transition
from shadowrelay.store import Ledger, promises, queues, reading
from tests.kit.ledger import THERE, a_ledger, accept, all_done, an_attempt, choose, nothing

DAMAGES = {
    "envelope is no JSON": "envelope = '[1,'",
    "envelope is of another shape": "envelope = '{}'",
    "envelope is a blob": "envelope = x'ff00'",
    "done is nonsense": "done = 'a-b'",
    "copies are nonsense": "copies = 'x'",
    "the number is text": "ownership = 'first'",
    "no such origin": "origin = 'elsewhere'",
    "no count of recipients": "recipients_count = 'many'",
}


async def a_damaged_and_a_healthy_message(directory: Path, damage: str) -> tuple[MessageId, MessageId]:
    async with a_ledger(directory) as ledger:
        ids = [(await accept(ledger)).envelope.message_id for _ in range(2)]
    with sqlite3.connect(directory / "queue.db") as connection:
        connection.execute(f"UPDATE message SET {damage} WHERE message_id = ?", (ids[0],))
    connection.close()
    return ids[0], ids[1]


async def poison(ledger: Ledger) -> list[MessageId]:
    """Asks twice: what a reader has found is set aside by the writer, for which nobody waits."""
    await ledger.commit(promises.transition, [MessageId("unknown")], nothing)
    return [message.envelope.message_id for message in await ledger.read(queues.messages, "Server\\Poison", 9)]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
async def test_a_damaged_message_is_not_due_and_is_listed_as_poison(tmp_path: Path, damage: str) -> None:
    damaged, healthy = await a_damaged_and_a_healthy_message(tmp_path, damage)

    async with a_ledger(tmp_path) as ledger:
        found = await ledger.read(reading.submission, 9)
        listed = await poison(ledger)
        (aside,) = await ledger.read(reading.load_many, [damaged])

        assert [healthy] == [message.envelope.message_id for message in found if message.claim.role is Role.PRIMARY]
        assert [damaged] == listed
        assert Role.SET_ASIDE is aside.claim.role
        assert aside.set_aside_reason.startswith("corrupt row: ")
        assert aside.due_at is None


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
async def test_no_listing_stumbles_over_a_damaged_message(tmp_path: Path, damage: str) -> None:
    damaged, healthy = await a_damaged_and_a_healthy_message(tmp_path, damage)

    async with a_ledger(tmp_path) as ledger:
        assert {damaged, healthy} == {message.envelope.message_id for message in await ledger.read(reading.primaries_listed_on, THERE, 9)}
        assert [healthy] == [message.envelope.message_id for message in await ledger.read(reading.unplaced, 9)]
        assert await ledger.read(queues.queues)


@pytest.mark.parametrize("digest", ["'no bytes'", "1000000000000"])
async def test_a_digest_of_another_type_is_a_message_without_content(tmp_path: Path, digest: str) -> None:
    """SQLAlchemy's type of the column must not convert it: `bytes(10**12)` would be the end of the process."""
    damaged, healthy = await a_damaged_and_a_healthy_message(tmp_path, f"sha256 = {digest}")

    async with a_ledger(tmp_path) as ledger:
        found = {message.envelope.message_id: message.place for message in await ledger.read(queues.messages, "", 9)}

    assert found.pop(damaged) is None
    assert found.pop(healthy) is not None


async def test_a_decision_on_a_damaged_message_sees_a_claim_set_aside_that_can_still_be_handed_over(tmp_path: Path) -> None:
    damaged, healthy = await a_damaged_and_a_healthy_message(tmp_path, "done = 'nonsense'")
    seen: dict[MessageId, Claim | None] = {}

    def look(message_id: MessageId, before: Claim | None) -> Transition:
        seen[message_id] = before
        return Transition(before, before)

    async with a_ledger(tmp_path) as ledger:
        await ledger.commit(promises.transition, [damaged, healthy], look)
        listed = await poison(ledger)

        claim = seen[damaged]
        assert claim is not None
        assert (Role.SET_ASIDE, THERE) == (claim.role, claim.copies[0].server)
        assert Role.PRIMARY is seen[healthy].role  # type: ignore[union-attr]
        assert ([damaged], 1) == (listed, ledger.corrupt_rows_count)


async def test_others_in_the_same_commit_are_not_held_up_by_a_damaged_message(tmp_path: Path) -> None:
    damaged, healthy = await a_damaged_and_a_healthy_message(tmp_path, "copies = 'x'")

    async with a_ledger(tmp_path) as ledger:
        await ledger.commit(promises.transition, [damaged, healthy], lambda message_id, before: choose(message_id, before))
        await ledger.commit(promises.attempt, an_attempt(healthy), all_done)

        assert Role.DELIVERED is (await ledger.read(reading.load, healthy)).claim.role  # type: ignore[union-attr]
