"""Counts the messages and octets of each queue in rows of `counter`, in the transactions that change it. docs/architecture.md "On disk".

A listing reads these few rows and no message. Each row of `message` counts under at most one key; each row of `retry`, `shadow_fork`,
`listing` and `discard` under exactly one. `RECOUNT` computes the same from the tables themselves, for tests and benchmarks.

A message in Safety Net counts under the minute of its `keep_until`, until that minute is over. No counter is decreased when it leaves: the
sum begins at a later minute. The key stays until the last of its rows is deleted.
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, Select, Text, bindparam, cast, func, select, union_all

from shadowrelay.model.ownership import Role
from shadowrelay.store import tables
from shadowrelay.store.dialect import compiled, constant

Key = tuple[str, str, int]
"""Kind, name, number."""

SUBMISSION = "submission"  # primary messages without a row in `retry`
DELIVERY = "delivery"  # rows of `retry`; name: the next hop
SHADOW = "shadow"  # name: primary server and its database; number: 1 = handed over, 2 more with forks, 4 more if relayed by TRACK
SHADOW_FORK = "shadow-fork"  # rows of `shadow_fork`; name: primary server and next hop
SAFETY_NET = "safety-net"  # name: 1 = was a shadow message; number: minute of `keep_until`
POISON = "poison"
HANDED_OVER = "handed-over"  # by a node that drains
LISTED = "listed"  # unfinished primary messages; name: a server that may hold a copy
DISCARD = "discard"  # notifications; name: asker and its database

MICROSECONDS_PER_MINUTE = 60_000_000
IN_SUBMISSION: Key = (SUBMISSION, "", 0)
IN_POISON: Key = (POISON, "", 0)
IN_HANDED_OVER: Key = (HANDED_OVER, "", 0)

_C, _M, _R, _D, _F = tables.COUNTER.c, tables.MESSAGE.c, tables.RETRY.c, tables.DISCARD.c, tables.SHADOW_FORK.c
SELECT_KIND = select(_C.name, _C.number, _C["count"], _C.octets).where(_C.kind == bindparam("kind"))
WHOLE = (SUBMISSION, POISON, HANDED_OVER)  # kinds with one key
SELECT_WHOLE_AND_SHADOW = select(_C.kind, _C.name, _C.number, _C["count"], _C.octets).where(_C.kind.in_([*map(constant, (*WHOLE, SHADOW))]))
SELECT_SAFETY_NET = select(func.sum(_C["count"]), func.sum(_C.octets)).where(
    _C.kind == SAFETY_NET, _C.name == bindparam("side"), _C.number >= bindparam("minute")
)
SELECT_ONE = select(_C["count"]).where(_C.kind == bindparam("kind"), _C.name == bindparam("name"), _C.number == 0)


_NO_NAME, _ZERO = constant(""), constant(0)


def _counted(
    kind: str, name: ColumnElement[Any] = _NO_NAME, number: ColumnElement[Any] = _ZERO, octets: ColumnElement[Any] = _ZERO
) -> Select[Any]:
    sums = (func.count(), func.sum(func.coalesce(octets, _ZERO)))
    return select(constant(kind), name, number, *sums).group_by(constant(2), constant(3))  # the second and third column


_IN_SAFETY_NET = (cast(_M.is_shadow_side, Text), _M.keep_until // constant(MICROSECONDS_PER_MINUTE))
_FORKS = tables.RETRY.outerjoin(tables.MESSAGE, _M.internal_id == _R.message)
_SHADOW_FORKS = tables.SHADOW_FORK.outerjoin(tables.MESSAGE, _M.internal_id == _F.message)
_WITH_FORKS = constant(2) * cast(_M.forks_count > _ZERO, Integer)
_KEPT = constant(4) * _M.is_kept
RECOUNT = compiled(  # the same as `rows.queue_of` and `flush`, over all rows
    union_all(
        _counted(SUBMISSION, octets=_M.size).where(_M.role == constant(Role.PRIMARY), _M.retries_count == _ZERO),
        _counted(SHADOW, _M.primary_server + constant(" ") + _M.primary_database, _M.handed + _WITH_FORKS + _KEPT, _M.size).where(
            _M.role == constant(Role.SHADOW)
        ),
        _counted(SAFETY_NET, *_IN_SAFETY_NET, _M.size).where(_M.role == constant(Role.DELIVERED)),
        _counted(POISON, octets=_M.size).where(_M.role == constant(Role.SET_ASIDE)),
        _counted(HANDED_OVER, octets=_M.size).where(_M.role == constant(Role.HANDED_OVER)),
        _counted(DELIVERY, _R.next_hop, octets=_M.size).select_from(_FORKS),
        _counted(SHADOW_FORK, _F.queue, octets=_M.size).select_from(_SHADOW_FORKS),
        _counted(LISTED, tables.LISTING.c.server),
        _counted(DISCARD, _D.asker + constant(" ") + _D.asker_database),
    )
)


Counted = tuple[str, int, int, int]
"""Name, number, messages, octets."""


def of_kind(connection: Connection, kind: str) -> list[Counted]:
    """All of this kind."""
    return [_checked(*row) for row in connection.execute(SELECT_KIND, {"kind": kind}).fetchall()]


def whole_and_shadow(connection: Connection) -> tuple[dict[str, tuple[int, int]], list[Counted]]:
    """Messages and octets of each kind of `WHOLE`, and the counters of shadow messages: in one look, for what asks often."""
    totals, shadows = dict.fromkeys(WHOLE, (0, 0)), []
    for kind, *row in connection.execute(SELECT_WHOLE_AND_SHADOW).fetchall():
        counted = _checked(*row)
        if kind == SHADOW:
            shadows.append(counted)
        else:
            totals[kind] = counted[2:]
    return totals, shadows


def _checked(name: str, number: int, count: int, octets: int) -> Counted:
    return str(name), number, max(count, 0), max(octets, 0)


def safety_net(connection: Connection, side: int, now: int) -> tuple[int, int]:
    """Messages and octets of one side; `now` in microseconds."""
    count, octets = connection.execute(SELECT_SAFETY_NET, {"side": str(side), "minute": now // MICROSECONDS_PER_MINUTE}).one()
    return max(count or 0, 0), max(octets or 0, 0)


def discards(connection: Connection, asker: str, databases: Iterable[str]) -> int:
    """Notifications for this asker, in any of these databases."""
    counts = (connection.scalar(SELECT_ONE, {"kind": DISCARD, "name": f"{asker} {database}"}) for database in databases)
    return sum(int(count or 0) for count in counts)
