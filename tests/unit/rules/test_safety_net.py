from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import ContentPlace, Envelope, Recipient
from shadowrelay.model.ownership import Claim, CopyNumber, Role
from shadowrelay.model.queue import Delivery, Origin, StoredMessage
from shadowrelay.model.resubmission import Criteria
from shadowrelay.model.routing import Destination
from shadowrelay.model.values import replace
from shadowrelay.rules.dsn import DsnKind, notifiable
from shadowrelay.rules.safety_net_rules import (
    Selection,
    envelope_for,
    refusal,
    resubmission_id,
    selection,
    shadow_selection,
    shared_resubmission_id,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DATABASE = DatabaseId("6b2f7c1e-58f8-4a9e-9e5c-0f5c6a9b7d10")
ID = MessageId("0c8aa5f0-3f9d-4a0b-9d69-0d9f3a1d2b11")
INSIDE, OUTSIDE = Destination("store:25", domain="x", inside_boundary=True), Destination("mx:25", domain="y")
ENVELOPE = Envelope(
    ID,
    "Ann@x.example",
    (
        Recipient("one@in.example", notify="SUCCESS,FAILURE", orcpt="rfc822;1@x"),
        Recipient("two@in.example"),
        Recipient("three@out.example", notify="NEVER"),
    ),
    NOW - 3 * HOUR,
    ret="FULL",
    envid="abc",
    internet_message_id="<1@x.example>",
    subject="Hello",
)
STORED = StoredMessage(
    7,
    ENVELOPE,
    Claim(Role.DELIVERED, CopyNumber(1, 1, DATABASE), 3, frozenset({1, 2, 3})),
    Origin.CLIENT,
    ContentPlace(1, 0, 9, bytes(32)),
    None,
    keep_until=NOW + HOUR,
    delivered_at=NOW - HOUR,
    deliveries=(
        Delivery(NOW - 2 * HOUR, "store:25", frozenset({1, 2}), True),
        Delivery(NOW - HOUR, "mx:25", frozenset({3}), False),
    ),
)
ALL = Criteria(NOW - 9 * HOUR, NOW)
NOBODY: frozenset[int] = frozenset()


def route(address: str) -> Destination:
    return INSIDE if address.endswith("@in.example") else OUTSIDE


def selected(stored: StoredMessage = STORED, to: Callable[[str], Destination] = route, **criteria: object) -> Selection:
    return selection(stored, replace(ALL, **criteria), to, NOW)


def test_recipients_inside_are_resubmitted_and_those_outside_are_counted() -> None:
    assert Selection(frozenset({1, 2}), frozenset({3})) == selected()


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ({"to_at": NOW - 2 * HOUR}, {1, 2}),  # both ends belong to it
        ({"from_at": NOW - 2 * HOUR}, {1, 2}),
        ({"to_at": NOW - 2 * HOUR - timedelta(microseconds=1)}, set()),
        ({"from_at": NOW - 2 * HOUR + timedelta(microseconds=1)}, set()),
        ({"next_hop": "STORE:25"}, {1, 2}),
        ({"next_hop": "store"}, set()),
        ({"sender": "ann@X.example"}, {1, 2}),
        ({"sender": "<>"}, set()),
        ({"recipient": "TWO@in.example"}, {2}),
        ({"recipient": "nobody@in.example"}, set()),
        ({"message_id": str(ID)}, {1, 2}),
        ({"message_id": "<1@x.example>"}, {1, 2}),
        ({"message_id": "1@x.example"}, set()),
    ],
)
def test_each_criterion(criteria: dict[str, object], expected: set[int]) -> None:
    assert expected == selected(**criteria).ordinals


def test_recipients_outside_are_counted_only_where_they_match() -> None:
    assert [{3}, NOBODY, NOBODY, {3}] == [
        selected(**criteria).outside
        for criteria in ({"next_hop": "mx:25"}, {"next_hop": "store:25"}, {"to_at": NOW - 2 * HOUR}, {"recipient": "three@out.example"})
    ]


def test_the_null_sender_is_a_criterion() -> None:
    assert {1, 2} == selected(replace(STORED, envelope=replace(ENVELOPE, sender="")), sender="<>").ordinals


def test_a_recipient_whose_route_is_outside_now_counts_as_outside() -> None:
    assert Selection(NOBODY, frozenset({1, 2, 3})) == selected(to=lambda _: OUTSIDE)


def test_mail_that_left_the_boundary_is_not_resubmitted_where_its_route_is_inside_now() -> None:
    assert Selection(frozenset({1, 2}), frozenset({3})) == selected(to=lambda _: INSIDE)
    twice = replace(STORED, deliveries=(*STORED.deliveries, Delivery(NOW - HOUR, "store:25", frozenset({3}), True)))
    assert {3} == selected(twice, to=lambda _: INSIDE).outside


@pytest.mark.parametrize(
    "stored",
    [
        replace(STORED, deliveries=()),  # before schema version 3; or failed; or done elsewhere
        replace(STORED, envelope=replace(ENVELOPE, resubmitted_from=MessageId("another"))),
    ],
)
def test_what_matches_nothing(stored: StoredMessage) -> None:
    assert Selection(NOBODY, NOBODY) == selected(stored)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"place": None}, True),
        ({"keep_until": NOW}, True),
        ({"claim": replace(STORED.claim, role=Role.SET_ASIDE)}, True),
        ({"claim": replace(STORED.claim, role=Role.PRIMARY), "keep_until": NOW}, False),  # another recipient still waits
    ],
)
def test_what_has_nothing_to_send_is_missing(changes: dict[str, object], expected: bool) -> None:
    found = selected(replace(STORED, **changes))

    assert ({1, 2}, expected) == (found.ordinals, found.is_missing)


def test_a_message_that_matches_nothing_is_not_missing() -> None:
    assert not selected(replace(STORED, place=None), recipient="three@out.example").is_missing


def test_a_row_that_cannot_be_read_has_only_the_number_of_its_recipients() -> None:
    unreadable = replace(ENVELOPE, sender="", recipients=(Recipient(""),), subject="")

    assert Selection(NOBODY, frozenset({1, 2, 3})) == selected(replace(STORED, envelope=unreadable))


def test_the_new_envelope_has_these_recipients_in_their_order_and_asks_for_no_notice() -> None:
    made = envelope_for(ENVELOPE, frozenset({2, 1}), MessageId("new"), NOW)

    assert ("new", "Ann@x.example", NOW, None, None, ID) == (
        made.message_id, made.sender, made.arrived_at, made.ret, made.envid, made.resubmitted_from,
    )  # fmt: skip
    assert (Recipient("one@in.example", "NEVER", "rfc822;1@x"), Recipient("two@in.example", "NEVER")) == made.recipients
    assert [NOBODY] * 3 == [notifiable(made, (1, 2), kind) for kind in DsnKind]


def test_an_id_is_the_same_for_the_same_request_and_for_no_other() -> None:
    other = DatabaseId("11111111-1111-4111-8111-111111111111")

    assert resubmission_id(ID, DATABASE, 1) == resubmission_id(ID, DATABASE, 1)
    assert 4 == len(
        {
            ID,
            resubmission_id(ID, DATABASE, 1),
            resubmission_id(ID, DATABASE, 2),
            resubmission_id(ID, other, 1),
        }
    )
    # of an earlier version, whose request may go on after an upgrade
    assert "811184ee-8fc2-5d7e-b0d5-c619e9d92d39" == resubmission_id(ID, DATABASE, 1)


LOST = ServerName("mx2.west.example")
SHADOW = replace(STORED, deliveries=(), claim=replace(STORED.claim, primary=LOST, database=DATABASE))  # discarded an hour ago


def of_lost(stored: StoredMessage = SHADOW, **criteria: object) -> Selection:
    return shadow_selection(stored, replace(ALL, primary_server=LOST, **criteria), route, NOW)


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ({}, {1, 2}),
        ({"from_at": NOW - HOUR}, {1, 2}),  # delivered before it was discarded
        ({"from_at": NOW - HOUR + timedelta(microseconds=1)}, set()),
        ({"to_at": NOW - 3 * HOUR}, {1, 2}),  # and after it arrived
        ({"to_at": NOW - 3 * HOUR - timedelta(microseconds=1)}, set()),
        ({"next_hop": "Store:25"}, {1, 2}),
        ({"next_hop": "mx:25"}, set()),
        ({"sender": "ann@X.example"}, {1, 2}),
        ({"sender": "ben@x.example"}, set()),
        ({"recipient": "TWO@in.example"}, {2}),
        ({"message_id": "<1@x.example>"}, {1, 2}),
        ({"primary_server": "mx9"}, set()),
    ],
)
def test_each_criterion_for_a_lost_server(criteria: dict[str, object], expected: set[int]) -> None:
    found = shadow_selection(SHADOW, replace(ALL, **({"primary_server": LOST} | criteria)), route, NOW)

    assert expected == found.ordinals


def test_of_a_lost_server_recipients_outside_are_counted() -> None:
    assert Selection(frozenset({1, 2}), frozenset({3})) == of_lost()
    assert Selection(NOBODY, frozenset({3})) == of_lost(next_hop="mx:25")


@pytest.mark.parametrize(
    "stored",
    [
        replace(SHADOW, envelope=replace(ENVELOPE, resubmitted_from=MessageId("another"))),
        replace(SHADOW, claim=replace(SHADOW.claim, role=Role.SET_ASIDE)),
        replace(SHADOW, delivered_at=None),
    ],
)
def test_what_of_a_lost_server_matches_nothing(stored: StoredMessage) -> None:
    assert Selection(NOBODY, NOBODY) == of_lost(stored)


def test_a_shadow_message_without_content_is_missing() -> None:
    assert [True, True, False] == [
        of_lost(found).is_missing for found in (replace(SHADOW, place=None), replace(SHADOW, keep_until=NOW), SHADOW)
    ]


def test_the_id_that_shadow_servers_share_depends_on_the_recipients_only() -> None:
    assert "a623bc49-7387-58ab-a841-c9ac11612c69" == shared_resubmission_id(ID, frozenset({2, 1}))
    assert shared_resubmission_id(ID, frozenset({1, 2})) != shared_resubmission_id(ID, frozenset({1}))


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (-2, -1, ""),
        (-2, 0, ""),
        (-2, 1, "the interval must be over"),
        (-1, -2, "the interval ends before it begins"),
        (-1, -1, "ends before"),
    ],
)
def test_an_interval_is_over_and_not_empty(begin: int, end: int, expected: str) -> None:
    said = refusal(Criteria(NOW + begin * HOUR, NOW + end * HOUR), NOW)

    assert bool(expected) == bool(said)
    assert expected in said
