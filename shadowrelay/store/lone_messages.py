"""How many messages have fewer copies than wanted now, and how many no other living server has. docs/reference.md "Console".

Only indexes are read: what is not placed, and what is listed on servers that do not answer. An open console asks it every second or two,
so that both counts end: that of messages with fewer copies at `COUNTED_MAX`, and `ALONE_MAX` are looked at for each reason to be alone. Of
what was not looked at, counters say how many there can be, and how many of these can have a copy on a living server.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, exists, func, or_, select

from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import LoneMessages
from shadowrelay.store import counters, tables
from shadowrelay.store.dialect import CrossJoin, constant, through
from shadowrelay.store.readers import Reader, one_moment
from shadowrelay.store.reading import listed_counts

COUNTED_MAX = 100_000  # some milliseconds: an index alone
ALONE_MAX = 10_000  # ten milliseconds: a row and its copies each

_M, _L = tables.MESSAGE.c, tables.LISTING.c
UNPLACED = through(tables.UNPLACED, _M.internal_id)


def _is_on(servers: Collection[ServerName]) -> Any:
    """One of these may have a copy."""
    return exists(select(constant(1)).where(_L.message == _M.internal_id, _L.server.in_(sorted(servers))).correlate(tables.MESSAGE))


def unplaced_alone(living: Collection[ServerName]) -> Select[Any]:
    """A copy is missing, and there is none on a living server."""
    unplaced = UNPLACED.limit(ALONE_MAX).subquery()
    found = select(_M.internal_id).select_from(CrossJoin(unplaced, tables.MESSAGE, _M.internal_id == unplaced.c.internal_id))
    return found.where(or_(_M.copies_wanted == constant(1), ~_is_on(living)))


def listed_alone(lost: ServerName, others: Collection[ServerName]) -> Select[Any]:
    """All copies were made, one on a server that does not answer now, and none on these others."""
    listed = select(_L.message).where(_L.server == lost).limit(ALONE_MAX).subquery()
    found = select(_M.internal_id).select_from(CrossJoin(listed, tables.MESSAGE, _M.internal_id == listed.c.message))
    return found.where(_M.role == "primary", _M.is_placed == 1, ~_is_on(others))


def lone_messages(reader: Reader, living: Collection[ServerName]) -> LoneMessages:
    """How many unfinished primary messages lack copies; `living`: the peers that are heard now."""

    def count(statement: Select[Any]) -> int:
        return int(reader.connection.scalar(select(func.count()).select_from(statement.limit(COUNTED_MAX).subquery())) or 0)

    with one_moment(reader.connection):
        listed = listed_counts(reader)
        lost = sorted(listed.keys() - set(living))
        on_lost = sum(  # what is on several of them counts at the first
            count(listed_alone(server, [*living, *lost[:number]])) for number, server in enumerate(lost)
        )
        alone = on_lost + count(unplaced_alone(living))
        unplaced = count(UNPLACED)
        totals, _ = counters.whole_and_shadow(reader.connection)
        forks = sum(messages for _, _, messages, _ in counters.of_kind(reader.connection, counters.DELIVERY))
        waiting = totals[counters.SUBMISSION][0] + forks  # no fewer than there are messages
    unplaced_max = unplaced if unplaced < COUNTED_MAX else max(unplaced, waiting)
    on_lost_not_looked_at = sum(max(listed[server] - ALONE_MAX, 0) for server in lost)
    not_looked_at = max(unplaced_max - ALONE_MAX, 0) + on_lost_not_looked_at
    if not_looked_at:
        elsewhere = sum(listed.get(server, 0) for server in living)  # at most so many have a copy on a living server
        not_primary = totals[counters.POISON][0] + totals[counters.HANDED_OVER][0]  # these are listed, too
        of_lost = max((listed[server] for server in lost), default=0) - not_primary
        surely = max(alone, max(unplaced, of_lost) - elsewhere)
    else:
        surely = alone
    fewer = max(unplaced + on_lost, surely)
    return LoneMessages(
        fewer_count=fewer,
        fewer_max=max(fewer, min(unplaced_max + on_lost + on_lost_not_looked_at, max(waiting, unplaced + on_lost))),
        alone_count=surely,
        alone_max=max(surely, min(alone + not_looked_at, max(waiting, alone))),
    )
