"""How much is in each queue: rows of `counter`, changed in the very transaction that changes the queue.

A listing reads these few rows and no message. Each row of `message` counts under at most one key, each row of `retry`,
`listing` and `discard` under one; `RECOUNT` says the same from the tables themselves, for a migration and for tests.

A message in Safety Net counts under the minute in which its `keep_until` falls, until that minute is over. So nothing
has to be counted down when it leaves: the sum simply begins later. The key stays until the last of its rows is gone.
"""

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role

Key = tuple[str, str, int]
"""Kind, name, number."""

SUBMISSION = "submission"  # primary messages without a row in `retry`
DELIVERY = "delivery"  # rows of `retry`; name: the next hop
SHADOW = "shadow"  # name: primary server and its database; number: 1 = handed over
SAFETY_NET = "safety-net"  # name: 1 = was a shadow message; number: minute of `keep_until`
POISON = "poison"
LISTED = "listed"  # unfinished primary messages; name: a server that may hold a copy
DISCARD = "discard"  # notifications; name: asker and its database

MICROSECONDS_PER_MINUTE = 60_000_000
IN_SUBMISSION: Key = (SUBMISSION, "", 0)
IN_POISON: Key = (POISON, "", 0)

SELECT_KIND = "SELECT name, number, count, octets FROM counter WHERE kind = ?"
SELECT_SAFETY_NET = "SELECT sum(count), sum(octets) FROM counter WHERE kind = 'safety-net' AND name = ? AND number >= ?"
SELECT_ONE = "SELECT count FROM counter WHERE kind = ? AND name = ? AND number = 0"
RECOUNT = (  # the same as `queue_of` and `flush`, over all rows
    "SELECT 'submission', '', 0, count(*), sum(coalesce(size, 0)) FROM message WHERE role = 'primary' AND retries_count = 0 HAVING count(*)"
    " UNION ALL SELECT 'shadow', primary_server || ' ' || primary_database, handed, count(*), sum(coalesce(size, 0)) FROM message"
    " WHERE role = 'shadow' GROUP BY 2, 3"
    f" UNION ALL SELECT 'safety-net', CAST(is_shadow_side AS TEXT), keep_until / {MICROSECONDS_PER_MINUTE}, count(*),"
    " sum(coalesce(size, 0)) FROM message WHERE role = 'delivered' GROUP BY 2, 3"
    " UNION ALL SELECT 'poison', '', 0, count(*), sum(coalesce(size, 0)) FROM message WHERE role = 'set-aside' HAVING count(*)"
    " UNION ALL SELECT 'delivery', next_hop, 0, count(*), sum(coalesce(m.size, 0)) FROM retry LEFT JOIN message AS m"
    " ON m.internal_id = retry.message GROUP BY 2"
    " UNION ALL SELECT 'listed', server, 0, count(*), 0 FROM listing GROUP BY 2"
    " UNION ALL SELECT 'discard', asker || ' ' || asker_database, 0, count(*), 0 FROM discard GROUP BY 2"
)


def queue_of(
    role: object, retries_count: object, primary_server: object, primary_database: object, handed: object, side: object, keep_until: int
) -> Key | None:
    """Under which key a row of `message` counts, by its columns as they are in the file."""
    if role == Role.PRIMARY:
        return None if retries_count else IN_SUBMISSION
    if role == Role.SHADOW:
        return (SHADOW, f"{primary_server} {primary_database}", 1 if handed else 0)
    if role == Role.DELIVERED:
        return (SAFETY_NET, "1" if side else "0", keep_until // MICROSECONDS_PER_MINUTE)
    return IN_POISON if role == Role.SET_ASIDE else None


def recount(connection: Connection) -> None:
    """Begin anew from the tables, within a transaction."""
    connection.exec_driver_sql("DELETE FROM counter")
    connection.exec_driver_sql(f"INSERT INTO counter {RECOUNT}")


def of_kind(connection: Connection, kind: str) -> list[tuple[str, int, int, int]]:
    """Name, number, messages, octets."""
    return [(str(name), number, max(count, 0), max(octets, 0)) for name, number, count, octets in _rows(connection, kind)]


def safety_net(connection: Connection, side: int, now: int) -> tuple[int, int]:
    """Messages and octets of one side; `now` in microseconds."""
    count, octets = connection.exec_driver_sql(SELECT_SAFETY_NET, (str(side), now // MICROSECONDS_PER_MINUTE)).one()
    return max(count or 0, 0), max(octets or 0, 0)


def discards(connection: Connection, asker: str, databases: Iterable[str]) -> int:
    """Notifications for this asker, in any of these databases."""
    counts = (connection.exec_driver_sql(SELECT_ONE, (DISCARD, f"{asker} {database}")).scalar() for database in databases)
    return sum(int(count or 0) for count in counts)


def listed(connection: Connection) -> Mapping[ServerName, int]:
    """Unfinished primary messages by the server that may hold a copy."""
    return {ServerName(name): count for name, _, count, _ in of_kind(connection, LISTED)}


def _rows(connection: Connection, kind: str) -> Iterable[tuple[str, int, int, int]]:
    return [tuple(row) for row in connection.exec_driver_sql(SELECT_KIND, (kind,)).fetchall()]
