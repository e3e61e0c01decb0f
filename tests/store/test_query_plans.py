"""Each hot statement uses its index; a plan with a full scan of a growing table is an error."""

from pathlib import Path
from typing import Any

import pytest

from shadowrelay.store import counters, opening, promises, reading, work
from shadowrelay.store.rows import CHANGING, LISTED
from tests.kit.ledger import a_ledger

ID = "json_each(?)"
PLANS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "rows of a batch": (work.SELECT_ROWS, ("[]",), "USING INDEX sqlite_autoindex_message_1"),
    "load": (reading.SELECT_MANY, ("[]",), "USING INDEX sqlite_autoindex_message_1"),
    "submission": (reading.SELECT_SUBMISSION, (0, 1), "USING INDEX message_submission (role=? AND internal_id>?)"),
    "due": (reading.SELECT_DUE, ("h", 0, 1), "USING COVERING INDEX retry_due (next_hop=? AND attempts_next_at<?)"),
    "next due": (reading.SELECT_NEXT_DUE, ("h", 0), "USING COVERING INDEX retry_due (next_hop=? AND attempts_next_at>?)"),
    "notices": (reading.SELECT_NOTICES, (0, 1), "USING COVERING INDEX retry_notice (notice_at<?)"),
    "wake": (promises.WAKE, (0, "s", 1), "USING COVERING INDEX retry_waits_for (waits_for=?)"),
    "hasten": (promises.HASTEN, (0, "h", 0, "message", 0, 1, 1), "USING INDEX retry_due (next_hop=? AND attempts_next_at>?)"),
    "unplaced": (reading.SELECT_UNPLACED, (0, 1), "USING INDEX message_unplaced (role=? AND is_placed=? AND rowid>?)"),
    "listed on": (reading.SELECT_LISTED, ("s", 0, 1), "USING PRIMARY KEY (server=? AND message>?)"),
    "shadows of": (
        reading.SELECT_SHADOWS,
        ("s", "d", 0, 1),
        "message_shadow (role=? AND primary_server=? AND primary_database=? AND rowid>?)",
    ),
    "copies of": (
        reading.SELECT_COPIES,
        ("s", "d", 0, 1),
        "message_shadow (role=? AND primary_server=? AND primary_database=? AND rowid>?)",
    ),
    "handed": (reading.SELECT_HANDED, ("s", "d", 0, 1), "message_handed"),
    "first server with a group": (reading.SELECT_GROUPS, (), "COVERING INDEX message_shadow (role=?)"),
    "next server with a group": (reading.SELECT_GROUPS, (), "COVERING INDEX message_shadow (role=? AND primary_server>?)"),
    "next group": (
        reading.SELECT_GROUPS,
        (),
        "COVERING INDEX message_shadow (role=? AND primary_server=? AND primary_database>?)",
    ),
    "handed in a group": (reading.SELECT_ANY_HANDED, ("s", "d"), "COVERING INDEX message_handed (handed=? AND role=? AND primary_server=?"),
    "delivery queues": (reading.SELECT_QUEUES, (), "SEARCH retry USING COVERING INDEX retry_due (next_hop=?)"),
    "next delivery queue": (reading.SELECT_QUEUES, (), "SEARCH retry USING COVERING INDEX retry_next_hop (next_hop>?)"),
    "counters of a kind": (counters.SELECT_KIND, ("shadow",), "counter USING PRIMARY KEY (kind=?)"),
    "counters of Safety Net": (counters.SELECT_SAFETY_NET, ("0", 1), "counter USING PRIMARY KEY (kind=? AND name=? AND number>?)"),
    "one counter": (counters.SELECT_ONE, ("discard", "s d"), "counter USING PRIMARY KEY (kind=? AND name=? AND number=?)"),
    "retries": (reading.SELECT_RETRIES, ("[]",), "SEARCH retry USING PRIMARY KEY (message=?)"),
    "discards": (reading.SELECT_DISCARDS, ("s", "d", "", 1), "USING INDEX discard_asker (asker=?)"),
    "discards of an asker": (promises.SELECT_DISCARDS, ("s", 1), "USING INDEX discard_asker (asker=?)"),
    "acknowledged": (reading.SELECT_ACKNOWLEDGED, ("s", "d", 1), "USING PRIMARY KEY"),
    "waiting": (work.SELECT_WAITING, ("id",), "USING INDEX waiting_side (side=?)"),
    "expired": (promises.SELECT_EXPIRED, (0, 1), "USING INDEX message_expires (expires_at<?)"),
    "pinned": (promises.SELECT_PINNED, (1,), "USING INDEX message_content (segment=?)"),
    "decided at an opening": (opening.DECIDE, (0,), "message_undecided (role=?)"),
    "large files": (opening.SELECT_LARGE, (), "USING COVERING INDEX message_large (segment=?)"),
    "update": (work.UPDATE_MESSAGE.text, (0,) * (len(CHANGING) + 1), "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "update of a list": (work.UPDATE_LIST.text, (0,) * (len(LISTED) + 1), "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "delete": (work.DELETE_MESSAGE.text, (0,), "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "delete listing": (work.DELETE_LISTING.text, ("s", 0), "SEARCH listing USING PRIMARY KEY (server=? AND message=?)"),
    "delete retry": (work.DELETE_RETRY.text, (0,), "SEARCH retry USING PRIMARY KEY (message=?)"),
    "queues of retries": (work.SELECT_RETRIES_GONE, ("[]",), "SEARCH retry USING PRIMARY KEY (message=?)"),
    "listed on a forgotten peer": (promises.SELECT_LISTED, ("s", 0, 1), "USING PRIMARY KEY (server=? AND message>?)"),
    "oldest of submission": (reading.OLDEST_DECIDED, (), "USING INDEX message_submission (role=?)"),
    "oldest without a verdict": (reading.OLDEST_UNDECIDED, (), "USING INDEX message_undecided (role=?)"),
    "oldest of a shadow queue": (reading.OLDEST_SHADOW, ("s", "d"), "message_shadow (role=? AND primary_server=? AND primary_database=?)"),
    "oldest of Safety Net": (reading.OLDEST_SAFETY_NET, (0, 0), "message_safety_net (role=? AND is_shadow_side=? AND keep_until>?)"),
    "oldest of poison": (reading.OLDEST_POISON, (), "USING INDEX message_set_aside (role=?)"),
    "oldest of a delivery queue": (reading.DELIVERY, (), "SEARCH first USING COVERING INDEX retry_next_hop (next_hop=?)"),
    "next retry of a delivery queue": (reading.DELIVERY, (), "SEARCH next USING COVERING INDEX retry_due (next_hop=?)"),
    "last reply of a delivery queue": (reading.DELIVERY, (), "SEARCH latest USING INDEX retry_due (next_hop=?)"),
    "page of submission": (reading.MESSAGES_DECIDED, (0, 1), "message_submission (role=? AND internal_id>?)"),
    "page without a verdict": (reading.MESSAGES_UNDECIDED, (0, 1), "message_undecided (role=? AND rowid>?)"),
    "page of a delivery queue": (reading.MESSAGES_DELIVERY, ("h", 0, 1), "retry_next_hop (next_hop=? AND message>?)"),
    "page of all delivery queues": (reading.MESSAGES_QUEUED, (0, 1), "SEARCH retry USING PRIMARY KEY (message>?)"),
    "page of a shadow queue": (
        reading.MESSAGES_SHADOW,
        ("s", "d", 0, 1),
        "message_shadow (role=? AND primary_server=? AND primary_database=? AND rowid>?)",
    ),
    "page of Safety Net": (
        reading.MESSAGES_SAFETY_NET,
        (0, 0, 0, 1),
        "message_safety_net (role=? AND is_shadow_side=? AND keep_until>?)",
    ),
    "second page of Safety Net": (
        reading.MESSAGES_SAFETY_NET_AFTER,
        (0, 0, 0, 1),
        "message_safety_net (role=? AND is_shadow_side=? AND keep_until>?)",
    ),
    "rows of a merged page": (reading.MESSAGES_BY_ID, ("[]",), "SEARCH m USING INTEGER PRIMARY KEY (rowid=?)"),
    "page of poison": (reading.MESSAGES_POISON, (0, 1), "message_set_aside (role=? AND rowid>?)"),
}
SORTS_FEW = (reading.SELECT_RETRIES, work.SELECT_RETRIES_GONE)  # the forks of the messages of one page
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
    sorts = [step for step in plan if "TEMP B-TREE" in step and statement not in SORTS_FEW]
    assert [] == sorts
