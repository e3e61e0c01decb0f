"""Each hot statement uses its index; a plan with a full scan of a growing table is an error."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection
from sqlalchemy.sql.elements import ClauseElement

from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.protocol.filters import MESSAGE_PROPERTIES, parse_filter
from shadowrelay.store import (
    counters,
    expiry,
    filter_sql,
    lone_messages,
    opening,
    peer_promises,
    promises,
    queues,
    reading,
    resubmit_requests,
    tables,
    work,
)
from shadowrelay.store.ledger import Inline
from tests.kit.ledger import a_ledger

Statement = str | ClauseElement
SERVER, OTHER, DATABASE = ServerName("s"), ServerName("o"), DatabaseId("d")
SHADOWS = reading.held_for(SERVER, DATABASE)
WITHOUT_FORKS = queues.without_forks(SERVER, DATABASE)
EVERY_PROPERTY = " -and ".join(f"{name} -ne $null" for name in MESSAGE_PROPERTIES)
FILTERED = queues.by_internal_id([]).where(
    filter_sql.condition(parse_filter(EVERY_PROPERTY, MESSAGE_PROPERTIES), datetime.now(UTC), timedelta(days=2), SERVER)
)
MESSAGE = tables.MESSAGE.c
SEARCHED = filter_sql.condition(
    parse_filter("Subject -like '*x*' -and Recipients -eq 'y' -and Role -eq primary", MESSAGE_PROPERTIES),
    datetime.now(UTC),
    timedelta(days=2),
    SERVER,
)
PLANS: dict[str, tuple[Statement, str]] = {
    "rows of a batch": (work.SELECT_ROWS, "USING INDEX sqlite_autoindex_message_1"),
    "load": (reading.SELECT_MANY, "USING INDEX sqlite_autoindex_message_1"),
    "submission": (reading.SELECT_SUBMISSION, "USING INDEX message_submission (role=? AND internal_id>?)"),
    "due": (reading.SELECT_DUE, "USING COVERING INDEX retry_due (next_hop=? AND attempts_next_at<?)"),
    "next due": (reading.SELECT_NEXT_DUE, "USING COVERING INDEX retry_due (next_hop=? AND attempts_next_at>?)"),
    "notices": (reading.SELECT_NOTICES, "USING COVERING INDEX retry_notice (notice_at<?)"),
    "first server that is waited for": (reading.SELECT_WAITED_FOR, "SEARCH retry USING COVERING INDEX retry_waits_for"),
    "next server that is waited for": (reading.SELECT_WAITED_FOR, "SEARCH retry USING COVERING INDEX retry_waits_for (waits_for>?)"),
    "wake": (promises.WAKE, "USING COVERING INDEX retry_waits_for (waits_for=?)"),
    "hasten": (promises.HASTEN, "USING INDEX retry_due (next_hop=? AND attempts_next_at>?)"),
    "hasten what waits": (promises.HASTEN_WAITING, "USING INDEX retry_due (next_hop=? AND attempts_next_at>?)"),
    "unplaced": (reading.SELECT_UNPLACED, "USING INDEX message_unplaced (role=? AND is_placed=? AND rowid>?)"),
    "delivered between": (
        resubmit_requests.counted_between(0, 1, 2),
        "USING COVERING INDEX message_delivered (is_shadow_side=? AND delivered_at>? AND delivered_at<?)",
    ),
    "placed nowhere": (lone_messages.unplaced_alone([SERVER]), "INDEX message_unplaced (role=? AND is_placed=?)"),
    "listed on lost servers": (lone_messages.listed_alone(SERVER, [OTHER]), "SEARCH listing USING PRIMARY KEY (server=?)"),
    "listed on": (reading.listed_on(SERVER, 0, 1), "USING PRIMARY KEY (server=? AND message>?)"),
    "shadows of": (
        reading.page(SHADOWS, 0, 1),
        "message_shadow (role=? AND primary_server=? AND primary_database=? AND internal_id>?)",
    ),
    "copies of": (
        reading.page(SHADOWS, 0, 1).with_only_columns(*reading.OF_A_COPY),
        "message_shadow (role=? AND primary_server=? AND primary_database=? AND internal_id>?)",
    ),
    "handed": (reading.page(reading.held_for(SERVER, DATABASE, handed_only=True), 0, 1), "message_handed"),
    "first server with a group": (reading.SELECT_GROUP_SERVERS, "COVERING INDEX message_shadow (role=?)"),
    "next server with a group": (reading.SELECT_GROUP_SERVERS, "COVERING INDEX message_shadow (role=? AND primary_server>?)"),
    "first group of a server": (reading.SELECT_GROUP_DATABASES, "COVERING INDEX message_shadow (role=? AND primary_server=?)"),
    "next group of a server": (
        reading.SELECT_GROUP_DATABASES,
        "COVERING INDEX message_shadow (role=? AND primary_server=? AND primary_database>?)",
    ),
    "handed in a group": (reading.SELECT_ANY_HANDED, "COVERING INDEX message_handed (handed=? AND role=? AND primary_server=?"),
    "delivery queues": (reading.SELECT_QUEUES, "SEARCH retry USING COVERING INDEX retry_due (next_hop=?)"),
    "next delivery queue": (reading.SELECT_QUEUES, "SEARCH retry USING COVERING INDEX retry_next_hop (next_hop>?)"),
    "counters of a kind": (counters.SELECT_KIND, "counter USING PRIMARY KEY (kind=?)"),
    "counters of Safety Net": (counters.SELECT_SAFETY_NET, "counter USING PRIMARY KEY (kind=? AND name=? AND number>?)"),
    "one counter": (counters.SELECT_ONE, "counter USING PRIMARY KEY (kind=? AND name=? AND number=?)"),
    "unplaced and listed": (reading.SELECT_UNPLACED_ON_ANY, "SEARCH listing USING PRIMARY KEY (server=? AND message=?)"),
    "retries": (reading.SELECT_RETRIES, "SEARCH retry USING PRIMARY KEY (message=?)"),
    "discards": (reading.SELECT_DISCARDS, "USING INDEX discard_asker (asker=?)"),
    "untold": (reading.SELECT_UNTOLD, "USING INDEX discard_asker (asker=?)"),
    "discards of an asker": (expiry.SELECT_FIRST_DISCARDS, "USING INDEX discard_asker (asker=? AND sequence>?)"),
    "reached by an acknowledgement": (promises.SELECT_REACHED, "USING INDEX discard_asker (asker=? AND sequence<?)"),
    "delete what is acknowledged": (promises.DELETE_REACHED, "USING INDEX discard_asker (asker=? AND sequence<?)"),
    "delivered before": (reading.delivered([b"key"], 0, 1), "SEARCH delivered_to USING PRIMARY KEY (key=?)"),
    "newest deliveries": (opening.SELECT_NEWEST_DELIVERED, "SCAN delivered_to USING COVERING INDEX delivered_to_at"),
    "old deliveries": (
        expiry.old_deliveries(tables.DELIVERED_TO.c.delivered_at <= 0),
        "USING COVERING INDEX delivered_to_at (delivered_at<?)",
    ),
    "waiting": (work.SELECT_WAITING, "USING INDEX waiting_side (side=?)"),
    "an end that is unheard": (expiry.SELECT_END_UNHEARD, "USING INDEX discard_ends (message_id=?)"),
    "expired": (expiry.SELECT_EXPIRED, "USING INDEX message_expires (expires_at<?)"),
    "pinned": (expiry.pinned(1), "USING INDEX message_content (segment=?)"),
    "decided at an opening": (opening.DECIDE, "message_undecided (role=?)"),
    "large files": (opening.SELECT_LARGE, "USING COVERING INDEX message_large (segment=?)"),
    "update": (work.UPDATE_MESSAGE, "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "update of often changed columns": (work.UPDATE_OFTEN_CHANGED, "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "delete": (work.DELETE_MESSAGE, "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "delete listing": (work.DELETE_LISTING, "SEARCH listing USING PRIMARY KEY (server=? AND message=?)"),
    "delete retry": (work.DELETE_RETRY, "SEARCH retry USING PRIMARY KEY (message=?)"),
    "queues of retries": (work.SELECT_RETRIES_GONE, "SEARCH retry USING PRIMARY KEY (message=?)"),
    "listed on a forgotten peer": (peer_promises.listed_on(SERVER, 0), "USING PRIMARY KEY (server=? AND message>?)"),
    "oldest of submission": (queues.oldest(queues.DECIDED), "USING INDEX message_submission (role=?)"),
    "oldest without a verdict": (queues.oldest(queues.UNDECIDED), "USING INDEX message_undecided (role=?)"),
    "oldest of a shadow queue": (queues.oldest(SHADOWS), "message_shadow (role=? AND primary_server=? AND primary_database=?)"),
    "oldest of Safety Net": (
        queues.oldest_in_safety_net(0, 0),
        "message_safety_net (role=? AND is_shadow_side=? AND keep_until>?)",
    ),
    "oldest without forks": (queues.oldest(WITHOUT_FORKS), "message_without_forks (role=? AND primary_server=? AND primary_database=?)"),
    "page without forks": (
        reading.page(WITHOUT_FORKS, 0, 1),
        "message_without_forks (role=? AND primary_server=? AND primary_database=? AND internal_id>?)",
    ),
    "oldest in a shadow queue of forks": (queues.SHADOW_FORKS, "SEARCH shadow_fork USING COVERING INDEX shadow_fork_queue (queue=?)"),
    "page of a shadow queue of forks": (queues.shadow_fork_page("q", 0, 1), "shadow_fork_queue (queue=? AND message>?)"),
    "reported forks": (reading.SELECT_SHADOW_FORKS, "SEARCH shadow_fork USING PRIMARY KEY (message=?)"),
    "reported forks that go": (work.SELECT_SHADOW_FORKS_GONE, "SEARCH shadow_fork USING PRIMARY KEY (message=?)"),
    "reported forks of one": (work.SELECT_SHADOW_FORKS, "SEARCH shadow_fork USING PRIMARY KEY (message=?)"),
    "forks not heard": (work.DELETE_FORKS, "INDEX discard_forks (message_id=?)"),
    "discards but forks": (reading.SELECT_DISCARDS_BUT_FORKS, "USING INDEX discard_asker (asker=?)"),
    "forks of a filtered shadow page": (FILTERED, "SEARCH shadow_fork USING PRIMARY KEY (message=?)"),
    "oldest of poison": (queues.oldest(queues.SET_ASIDE), "USING INDEX message_set_aside (role=?)"),
    "oldest of a delivery queue": (queues.DELIVERY, "SEARCH retry USING COVERING INDEX retry_next_hop (next_hop=?)"),
    "next retry of a delivery queue": (queues.DELIVERY, "SEARCH retry USING COVERING INDEX retry_due (next_hop=?)"),
    "last reply of a delivery queue": (queues.DELIVERY, "SEARCH retry USING INDEX retry_due (next_hop=?)"),
    "page of submission": (reading.page(queues.DECIDED, 0, 1), "message_submission (role=? AND internal_id>?)"),
    "page without a verdict": (reading.page(queues.UNDECIDED, 0, 1), "message_undecided (role=? AND rowid>?)"),
    "page of a delivery queue": (queues.delivery_page("h", 0, 1), "retry_next_hop (next_hop=? AND message>?)"),
    "page of all delivery queues": (queues.queued_page(0, 1), "SEARCH retry USING PRIMARY KEY (message>?)"),
    "page of Safety Net": (queues.safety_net(0, 0).limit(1), "message_safety_net (role=? AND is_shadow_side=? AND keep_until>?)"),
    "second page of Safety Net": (
        queues.safety_net_after(0, 0, 0).limit(1),
        "message_safety_net (role=? AND is_shadow_side=? AND keep_until>?)",
    ),
    "ids of a merged page": (
        reading.page(SHADOWS, 0, 1).with_only_columns(tables.MESSAGE.c.internal_id),
        "COVERING INDEX message_shadow (role=? AND primary_server=? AND primary_database=? AND internal_id>?)",
    ),
    "rows of a merged page": (queues.by_internal_id([]), "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "page of what was handed over": (reading.page(queues.GIVEN_AWAY, 0, 1), "message_handed_over (role=? AND rowid>?)"),
    "oldest of what was handed over": (queues.oldest(queues.GIVEN_AWAY), "USING INDEX message_handed_over (role=?)"),
    "rows of a filtered page": (FILTERED, "SEARCH message USING INTEGER PRIMARY KEY (rowid=?)"),
    "step of a search": (queues.step_of_search(SEARCHED, 1, 9, 1), "SEARCH message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    "search by the beginning of an id": (
        queues.by_message_id("0193", SEARCHED, 0),
        "SEARCH message USING INDEX sqlite_autoindex_message_1 (message_id>? AND message_id<?)",
    ),
    "newest of a delivery queue": (queues.delivery_page("h", 9, 1, newest=True), "retry_next_hop (next_hop=? AND message<?)"),
    "newest of all delivery queues": (queues.queued_page(9, 1, newest=True), "SEARCH retry USING PRIMARY KEY (message<?)"),
    "newest of submission": (
        reading.in_order(queues.DECIDED, MESSAGE.internal_id, 0, 1, newest=True),
        "USING INDEX message_submission (role=?)",
    ),
    "newest of Safety Net": (
        queues.safety_net(0, 0).order_by(None).order_by(MESSAGE.keep_until.desc(), MESSAGE.internal_id.desc()).limit(1),
        "message_safety_net (role=? AND is_shadow_side=? AND keep_until>?)",
    ),
    "forks of a filtered page": (FILTERED, "SEARCH retry USING PRIMARY KEY (message=?)"),
    "delivered": (
        resubmit_requests.delivered_page(0, 0, 0, 1),
        "USING INDEX message_delivered (is_shadow_side=? AND delivered_at>? AND delivered_at<?)",
    ),
    "page of poison": (reading.page(queues.SET_ASIDE, 0, 1), "message_set_aside (role=? AND rowid>?)"),
}
SORTS_FEW = (reading.SELECT_RETRIES, work.SELECT_RETRIES_GONE, FILTERED)  # the forks of the messages of one page
GROWING = ("message", "retry", "shadow_fork", "listing", "discard", "delivered_to")


def plan_of(connection: Connection, statement: Statement) -> list[str]:
    text = (
        statement
        if isinstance(statement, str)
        else str(statement.compile(dialect=connection.dialect, compile_kwargs={"render_postcompile": True}))
    )
    return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", (None,) * text.count("?")).fetchall()]


@pytest.mark.parametrize(("statement", "expected"), PLANS.values(), ids=PLANS.keys())
async def test_the_plan_of(tmp_path: Path, statement: Statement, expected: str) -> None:
    async with a_ledger(tmp_path, inline=Inline()) as ledger:
        plan = await ledger._readers.ask(lambda connection: plan_of(connection, statement))

    assert any(expected in step for step in plan), plan
    scans = [step for step in plan if step.startswith("SCAN") and step.split()[1] in GROWING and "INDEX" not in step]
    assert [] == scans
    sorts = [step for step in plan if "TEMP B-TREE" in step and not any(statement is few for few in SORTS_FEW)]
    assert [] == sorts
