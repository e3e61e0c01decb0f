"""Each hot statement uses its index; a plan with a full scan of a growing table is an error."""

from pathlib import Path
from typing import Any

import pytest

from shadowrelay.store import expiry, flush, peers, queues, reading, work
from shadowrelay.store.rows import CHANGING, LISTED
from tests.kit.ledger import a_ledger

ID = "json_each(?)"
PLANS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "rows of a batch": (work.SELECT_ROWS, ("[]",), "USING INDEX sqlite_autoindex_message_1"),
    "load": (reading.SELECT_MANY, ("[]",), "USING INDEX sqlite_autoindex_message_1"),
    "due": (reading.SELECT_DUE, (0, "[]", 1), "USING INDEX message_due (role=? AND due_at<?)"),
    "next due": (reading.SELECT_NEXT_DUE, (), "USING COVERING INDEX message_due"),
    "unplaced": (reading.SELECT_UNPLACED, ("[]", 1), "USING INDEX message_unplaced"),
    "listed on": (reading.SELECT_LISTED, ("s", 0, 1), "USING PRIMARY KEY (server=? AND message>?)"),
    "shadows of": (
        reading.SELECT_SHADOWS,
        ("s", "d", 0, 1),
        "message_shadow (role=? AND primary_server=? AND primary_database=? AND rowid>?)",
    ),
    "handed": (reading.SELECT_HANDED, ("s", "d", 0, 1), "message_handed"),
    "groups": (reading.SELECT_GROUPS, (), "USING COVERING INDEX message_shadow"),
    "groups handed": (reading.SELECT_GROUPS_HANDED, (), "USING COVERING INDEX message_handed"),
    "retries": (reading.SELECT_RETRIES, ("[]",), "SEARCH retry USING PRIMARY KEY (message=?)"),
    "discards": (reading.SELECT_DISCARDS, ("s", "d", "", 1), "USING INDEX discard_asker (asker=?)"),
    "count of discards": (reading.COUNT_DISCARDS, ("s", "d", ""), "USING INDEX discard_asker (asker=?)"),
    "acknowledged": (reading.SELECT_ACKNOWLEDGED, ("s", "d", 1), "USING PRIMARY KEY"),
    "waiting": (flush.SELECT_WAITING, ("id",), "USING INDEX waiting_side (side=?)"),
    "expired": (expiry.SELECT_EXPIRED, (0, 1), "USING INDEX message_expires (expires_at<?)"),
    "pinned": (expiry.SELECT_PINNED, (0, 1, 1, 0), "USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    "update": (flush.UPDATE_MESSAGE.text, (0,) * (len(CHANGING) + 1), "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "update of a list": (flush.UPDATE_LIST.text, (0,) * (len(LISTED) + 1), "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "delete": (flush.DELETE_MESSAGE.text, (0,), "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "delete listing": (flush.DELETE_LISTING.text, ("s", 0), "SEARCH listing USING PRIMARY KEY (server=? AND message=?)"),
    "delete retry": (flush.DELETE_RETRY.text, (0,), "SEARCH retry USING PRIMARY KEY (message=?)"),
    "listed on a forgotten peer": (peers.SELECT_LISTED, ("s",), "USING PRIMARY KEY (server=?)"),
    "count of Safety Net": (queues.COUNT_SAFETY_NET, (0, 0), "USING COVERING INDEX message_safety_net"),
    "oldest of Safety Net": (queues.OLDEST_SAFETY_NET, (0, 0), "USING INDEX message_safety_net"),
    "count of poison": (queues.COUNT_POISON, (), "USING INDEX message_set_aside"),
    "count of submission": (queues.COUNT_SUBMISSION, (), "USING INDEX message_due"),
    "messages of a shadow queue": (queues.MESSAGES_SHADOW, ("s", 0, 1), "USING INDEX message_shadow"),
}
GROWING = ("message", "m", "retry", "listing", "discard")


@pytest.mark.parametrize(("statement", "parameters", "expected"), PLANS.values(), ids=PLANS.keys())
async def test_the_plan_of(tmp_path: Path, statement: str, parameters: tuple[Any, ...], expected: str) -> None:
    async with a_ledger(tmp_path, inline=True) as ledger:
        plan = await ledger._readers.ask(
            lambda connection: [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()]
        )

    assert any(expected in step for step in plan), plan
    scans = [step for step in plan if step.startswith("SCAN") and step.split()[1] in GROWING and "INDEX" not in step]
    assert [] == scans


async def test_due_and_expired_are_read_in_the_order_of_their_index(tmp_path: Path) -> None:
    async with a_ledger(tmp_path, inline=True) as ledger:
        for statement, parameters in ((reading.SELECT_DUE, (0, "[]", 1)), (expiry.SELECT_EXPIRED, (0, 1))):
            plan = await ledger._readers.ask(
                lambda connection, statement=statement, parameters=parameters: str(
                    connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
                )
            )
            assert "TEMP B-TREE" not in plan
