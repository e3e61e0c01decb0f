"""Compiles filters of messages to SQL: the trees of `protocol.filters`, over messages and their forks. docs/reference.md "Filters".

No index helps a filter, so it is applied to a bounded part of a queue, in the queue's own order: see `queues.filtered`. Every comparison
is true or false, never NULL, so that `-not` inverts it. SQLite ignores case in ASCII only.

A search over all messages (`queues.searched`) first tests the `needed` texts, which must be somewhere in the envelope: that is faster
than parsing every envelope.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, and_, case, exists, false, func, literal, not_, or_, select, true

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.protocol.filters import MESSAGE_PROPERTIES as PROPERTIES
from shadowrelay.protocol.filters import NEGATIVE, Comparison, Expression, Joined, Kind, Negated, Operator, like_parts
from shadowrelay.store import rows, tables
from shadowrelay.store.dialect import constant

_M, _R, _F = tables.MESSAGE.c, tables.RETRY.c, tables.SHADOW_FORK.c
Test = Callable[[ColumnElement[Any]], ColumnElement[bool]]
"""Whether a value satisfies the comparison, `-ne` and `-notlike` turned into `-eq` and `-like`."""


def condition(expression: Expression, now: datetime, expiry: timedelta, server: ServerName) -> ColumnElement[bool]:
    """Which rows of `message` satisfy it. `expiry`: message_expiration_timeout."""
    if isinstance(expression, Negated):
        return not_(condition(expression.part, now, expiry, server))
    if isinstance(expression, Joined):
        parts = [condition(part, now, expiry, server) for part in expression.parts]
        return and_(*parts) if expression.is_and else or_(*parts)
    test = partial(_test, expression)
    if expression.name == "Recipients":
        found = _any_recipient(test)
    elif expression.name == "Queue":
        found = _any_queue(test, server)
    else:
        found = test(_columns(now, expiry)[expression.name])
    found = func.coalesce(found, false())
    return not_(found) if expression.operator in NEGATIVE else found


IN_ENVELOPE = ("FromAddress", "InternetMessageId", "Recipients", "Subject")
POSITIVE = (Operator.EQ, Operator.LIKE)


def needed(expression: Expression) -> ColumnElement[bool]:
    """True of every row that satisfies it, and of few others: without a text that it looks for, an envelope need not be taken apart."""
    if isinstance(expression, Joined) and expression.is_and:
        return and_(true(), *map(needed, expression.parts))
    if not isinstance(expression, Comparison) or expression.name not in IN_ENVELOPE or expression.operator not in POSITIVE:
        return true()
    text = str(expression.value or "")
    longest = max(like_parts(text) if expression.operator is Operator.LIKE else [text], key=len)
    return _M.envelope.like(f"%{_escaped(json.dumps(longest)[1:-1])}%", escape="\\") if longest else true()


def id_prefix(expression: Expression) -> str:
    """The prefix that the id of every matching message has; empty if the filter implies none."""
    if isinstance(expression, Joined) and expression.is_and:
        return max(map(id_prefix, expression.parts), key=len)
    if not isinstance(expression, Comparison) or expression.name != "NetworkMessageId" or expression.operator not in POSITIVE:
        return ""
    text = str(expression.value or "").lower()
    return like_parts(text)[0] if expression.operator is Operator.LIKE else text


def _envelope(place: int) -> ColumnElement[Any]:
    """One text of the envelope, as `rows.encode_envelope` orders them. An envelope that cannot be read has none."""
    return case((func.json_valid(_M.envelope), func.json_extract(_M.envelope, f"$[{place}]")), else_="")


def _of_forks(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return select(column).where(_R.message == _M.internal_id).correlate(tables.MESSAGE).scalar_subquery()


def _columns(now: datetime, expiry: timedelta) -> Mapping[str, ColumnElement[Any]]:
    """The properties with one value."""
    last_reply = select(_R.last_reply).where(_R.message == _M.internal_id).order_by(_R.attempts_next_at.desc()).limit(1)
    failures_count = func.coalesce(_of_forks(func.max(_R.failures_count)), 0)
    is_suspended = or_(_M.suspended_at.is_not(None), _M.role == Role.SET_ASIDE.value)
    return {
        "DateReceived": _M.arrived_at,
        "ExpirationTime": _M.arrived_at + expiry // timedelta(microseconds=1),
        "FromAddress": _envelope(0),
        "InternetMessageId": _envelope(10),
        "LastError": func.coalesce(func.nullif(_M.set_aside_reason, ""), last_reply.correlate(tables.MESSAGE).scalar_subquery()),
        "MessageLatency": literal(rows.encode_instant(now)) - _M.arrived_at,
        "MessageSourceName": literal("SMTP:") + _envelope(9),
        "NetworkMessageId": _M.message_id,
        "RetryCount": failures_count,
        "Role": _M.role,
        "Size": _M.size,
        "SourceIP": _envelope(7),
        "Status": case((is_suspended, "Suspended"), (failures_count > 0, "Retry"), else_="Ready"),
        "Subject": _envelope(11),
    }


def _any_recipient(test: Test) -> ColumnElement[bool]:
    """Any of them, done or not. One with DSN parameters is an array in the envelope."""
    recipients = func.json_each(case((func.json_valid(_M.envelope), _M.envelope), else_="[0,[]]"), "$[1]")
    each = recipients.table_valued("value", "type", name="recipient")
    address = case((each.c.type == "array", func.json_extract(each.c.value, "$[0]")), else_=each.c.value)
    return exists(select(constant(1)).select_from(each).where(test(address)).correlate(tables.MESSAGE))


def _any_queue(test: Test, server: ServerName) -> ColumnElement[bool]:
    """Any queue in which it is, with and without the server in the identity. A shadow queue has its primary server's name, and that of
    the next hop if it is known."""
    name = case(
        (and_(_M.role == Role.SHADOW.value, _M.forks_count == 0), literal("Shadow\\") + _M.primary_server),
        (_M.role == Role.SHADOW.value, ""),
        (_M.role == Role.SET_ASIDE.value, "Poison"),
        (and_(_M.role == Role.DELIVERED.value, _M.is_shadow_side == 0), "SafetyNet\\Primary"),
        (_M.role == Role.DELIVERED.value, "SafetyNet\\Shadow"),
        (_M.retries_count == 0, "Submission"),
        else_="",
    )
    queued = select(constant(1)).where(_R.message == _M.internal_id, or_(test(_R.next_hop), test(literal(f"{server}\\") + _R.next_hop)))
    shadow = literal("Shadow\\") + func.replace(_F.queue, " ", "\\")
    held = select(constant(1)).where(_F.message == _M.internal_id, or_(test(shadow), test(literal(f"{server}\\") + shadow)))
    forks = [exists(found.correlate(tables.MESSAGE)) for found in (queued, held)]
    return or_(test(name), test(literal(f"{server}\\") + name), *forks)


def _test(comparison: Comparison, value: ColumnElement[Any]) -> ColumnElement[bool]:
    wanted, operator = comparison.value, comparison.operator
    if PROPERTIES[comparison.name].kind is Kind.TEXT:
        if not isinstance(wanted, str) or not wanted:
            return func.coalesce(value, "") == ""
        if operator in (Operator.LIKE, Operator.NOT_LIKE):
            return func.coalesce(value, "").like("%".join(map(_escaped, like_parts(wanted))), escape="\\")
        return value.collate("NOCASE") == wanted
    if wanted is None:
        return value.is_(None)
    if isinstance(wanted, datetime):
        wanted = rows.encode_instant(wanted)
    elif isinstance(wanted, timedelta):
        wanted = wanted // timedelta(microseconds=1)
    compared: dict[Operator, ColumnElement[bool]] = {
        Operator.EQ: value == wanted,
        Operator.NE: value == wanted,
        Operator.GT: value > wanted,
        Operator.GE: value >= wanted,
        Operator.LT: value < wanted,
        Operator.LE: value <= wanted,
    }
    return compared[operator]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
