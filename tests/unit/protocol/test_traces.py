"""Received fields: what has passed this node, and what goes in circles. docs/design.md 6.5"""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Recipient
from shadowrelay.protocol.traces import RETURNS_MAX, RETURNS_UNKNOWN_MAX, goes_in_circles
from shadowrelay.rules.dsn import promotion_header, resubmission_header
from shadowrelay.smtp.data import trace_header

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HERE, THERE, STORE = "a.example", "b.example", "store.example"
CLIENT, FROM_THERE = ("client.example", "192.0.2.1"), (THERE, "192.0.2.2")
JOHN, MARY = ["john@corp.example"], ["mary@corp.example"]


def received(by: str, client: tuple[str, str], number: int, recipients: Sequence[str] = JOHN) -> bytes:
    return trace_header(by, "ESMTPS", f"{by}-{number}", client, [Recipient(name) for name in recipients], NOON)


def after(returns: int, *, recipients: Sequence[str] = JOHN, ways: Sequence[Sequence[str]] = ((THERE,),)) -> list[bytes]:
    """The fields of a message that has come here once, and so often again, each time by one of the ways in turn; the latest first."""
    fields = [received(HERE, CLIENT, 0, recipients)]
    for number in range(1, returns + 1):
        fields += [received(by, (HERE, "192.0.2.3"), number) for by in ways[number % len(ways)]]
        fields.append(received(HERE, FROM_THERE, number, recipients))
    return fields[::-1]


def is_seen(fields: Sequence[bytes]) -> bool:
    return goes_in_circles(b"".join([*fields, b"Subject: x\r\n"]).lower(), HERE.upper())


@pytest.mark.parametrize(("returns", "expected"), [(0, False), (1, False), (RETURNS_MAX, False), (RETURNS_MAX + 1, True), (50, True)])
def test_what_comes_for_the_third_time_again_in_the_same_way_goes_in_circles(returns: int, expected: bool) -> None:
    assert expected == is_seen(after(returns))


@pytest.mark.parametrize("recipients", [[*JOHN, *MARY], []])
def test_where_nobody_knows_for_whom_it_takes_longer(recipients: list[str]) -> None:
    assert not is_seen(after(RETURNS_UNKNOWN_MAX, recipients=recipients))
    assert is_seen(after(RETURNS_UNKNOWN_MAX + 1, recipients=recipients))


def test_another_way_client_or_recipient_is_no_circle() -> None:
    by_turns = after(20, ways=[[THERE], [STORE, THERE]])
    assert not is_seen(by_turns)
    other_client, other_recipient = after(RETURNS_MAX + 1), after(RETURNS_MAX + 1)
    other_client[2] = received(HERE, (THERE, "192.0.2.9"), 9)
    other_recipient[2] = received(HERE, FROM_THERE, 9, MARY)
    assert not is_seen(other_client)
    assert not is_seen(other_recipient)


def test_what_this_node_took_over_or_resubmitted_has_not_arrived() -> None:
    here = ServerName(HERE)
    taken_over = [promotion_header(ServerName(THERE), here, MessageId(str(number)), NOON) for number in range(20)]
    resubmitted = [resubmission_header(here, MessageId(str(number)), MessageId("x"), 1, NOON) for number in range(20)]

    assert not is_seen([*taken_over, *after(RETURNS_MAX)])
    assert not is_seen([*resubmitted, *after(RETURNS_MAX)])


def test_a_field_that_somebody_copied_or_made_up_ends_nothing() -> None:
    assert not is_seen([received(HERE, FROM_THERE, 1), received(THERE, CLIENT, 1)] * 20)
    assert not is_seen([b"Received: by a.example\r\n"] * 20)
    assert not is_seen([b"X-Received: by a.example with esmtp id 1;\r\n"] * 20)
    assert not is_seen([])
    assert not goes_in_circles(b"", HERE)
