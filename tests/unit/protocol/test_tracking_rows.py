"""Who is who in a row: docs/operations.md "The message tracking log"."""

from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import ContentPlace, Envelope, Recipient
from shadowrelay.model.ownership import Claim, CopyNumber, Role
from shadowrelay.model.queue import Origin, StoredMessage
from shadowrelay.model.replies import Reply
from shadowrelay.model.tracking import EventId, EventSource, Replication, ResubmitReason
from shadowrelay.model.values import replace
from shadowrelay.protocol import tracking as rows
from shadowrelay.protocol.tracking import format_line, parse_line

AT = datetime(2026, 11, 21, 10, 0, 0, 123456, tzinfo=UTC)
NODE, OTHER = ServerName("mx1.east.example"), ServerName("mx1.west.example")
ID = MessageId("0c8aa5f0-3f9d-4a0b-9d69-0d9f3a1d2b11")
OK = Reply(250, "2.1.5", "Recipient OK")
LATER = Reply(451, "4.3.0", "Try again later")
ENVELOPE = Envelope(
    ID,
    "a@corp.example",
    (Recipient("b@x.example"), Recipient("c@x.example"), Recipient("d@y.example")),
    datetime(2026, 11, 21, 9, 59, 59, 5, tzinfo=UTC),
    client_address="192.0.2.7",
    client_name="client.example",
    connector="inbound",
    internet_message_id="<1@corp.example>",
    subject="Hello",
)
CLAIM = Claim(Role.PRIMARY, CopyNumber(1, 1, DatabaseId("d1")), 3)
STORED = StoredMessage(7, ENVELOPE, CLAIM, Origin.CLIENT, ContentPlace(1, 0, 4096, bytes(32)), None)
SHADOW = replace(STORED, claim=replace(CLAIM, role=Role.SHADOW, primary=OTHER))
ALL = ("b@x.example", "c@x.example", "d@y.example")

EVENTS = [
    rows.haredirect(NODE, STORED, at=AT, server=OTHER, elapsed=timedelta(milliseconds=2)),
    rows.haredirectfail(NODE, STORED, at=AT),
    rows.receive(NODE, STORED, at=AT, replication=Replication.FAILED, ack_elapsed=timedelta(seconds=5)),
    rows.hareceive(NODE, ENVELOPE, at=AT, primary=OTHER, size=4096),
    rows.hadiscard(NODE, ID, at=AT, primary=OTHER),
    rows.transfer(NODE, STORED, at=AT, next_hop="x.example", ordinals=frozenset({1, 2})),
    rows.send(NODE, STORED, at=AT, server="mx [192.0.2.9]:25", replies={1: OK}, external=True, elapsed=timedelta(0)),
    rows.defer(NODE, STORED, at=AT, server="mx [192.0.2.9]:25", replies={1: LATER}),
    rows.fail(NODE, STORED, at=AT, server="", replies={1: rows.EXPIRED}, source=EventSource.DNS),
    rows.duplicate(NODE, STORED, at=AT, ordinals=frozenset({3}), first=MessageId("the-first")),
    rows.dsn(NODE, replace(ENVELOPE, sender=""), at=AT, original=ENVELOPE, action="failed", size=900),
    rows.resubmit(NODE, STORED, at=AT, primary=OTHER, reason=ResubmitReason.SILENCE, silent_since=AT, detected_at=AT),
    rows.load(NODE, STORED, at=AT),
    rows.poison(NODE, STORED, at=AT, reason="died 3 times"),
    rows.expire(NODE, SHADOW, at=AT),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event.value)
def test_a_row_of_each_event_survives_its_text(event):
    assert event == parse_line(format_line(event))


def test_at_haredirect_the_client_is_the_primary_and_the_server_the_shadow_server():
    event = rows.haredirect(NODE, STORED, at=AT, server=OTHER, elapsed=timedelta(milliseconds=2))

    assert (NODE, OTHER, EventSource.SMTP) == (event.client_hostname, event.server_hostname, event.source)
    assert (("ShadowElapsed", "0.002000"),) == event.custom_data
    assert (7, ID, "<1@corp.example>", 4096) == (event.internal_message_id, event.network_message_id, event.message_id, event.total_bytes)
    assert (ALL, "a@corp.example", "Hello") == (event.recipients, event.sender, event.subject)


def test_haredirectfail_says_why_in_the_source_context():
    event = rows.haredirectfail(NODE, STORED, at=AT, reason="mx1.west.example: timed out")

    assert ("", NODE, "mx1.west.example: timed out") == (event.client_hostname, event.server_hostname, event.source_context)


def test_haredirectfail_uses_the_words_of_exchange_when_there_is_no_candidate():
    assert "No suitable shadow servers" == rows.haredirectfail(NODE, STORED, at=AT).source_context


def test_at_receive_the_client_is_the_client_and_the_server_is_this_server():
    event = rows.receive(
        NODE,
        STORED,
        at=AT,
        replication=Replication.SUCCESS,
        ack_elapsed=timedelta(microseconds=2500),
        shadow_elapsed=timedelta(microseconds=2001),
    )

    assert ("192.0.2.7", "client.example", NODE) == (event.client_ip, event.client_hostname, event.server_hostname)
    assert "mx1.east.example\\inbound" == event.connector_id
    assert (("Replication", "Success"), ("AckElapsed", "0.002500"), ("ShadowElapsed", "0.002001")) == event.custom_data


@pytest.mark.parametrize(("copies", "said"), [((1, 1), None), ((0, 1), None), ((1, 2), "1/2"), ((3, 3), "3/3")])
def test_receive_says_how_many_copies_of_how_many_where_more_than_one_is_wanted(copies, said):
    event = rows.receive(NODE, STORED, at=AT, replication=Replication.FAILED, ack_elapsed=timedelta(0), copies=copies)

    assert said == dict(event.custom_data).get("Copies")


def test_receive_without_a_copy_has_no_shadow_latency_and_without_a_connector_no_connector():
    bare = replace(STORED, envelope=replace(ENVELOPE, connector=""))
    event = rows.receive(NODE, bare, at=AT, replication=Replication.DISABLED, ack_elapsed=timedelta(0))

    assert (("Replication", "Disabled"), ("AckElapsed", "0.000000")) == event.custom_data
    assert "" == event.connector_id


def test_on_the_shadow_server_the_client_is_the_primary_and_the_server_is_this_server():
    received = rows.hareceive(NODE, ENVELOPE, at=AT, primary=OTHER, size=10, internal_id=3)
    discarded = rows.hadiscard(NODE, ID, at=AT, primary=OTHER)

    assert [(OTHER, NODE)] * 2 == [(event.client_hostname, event.server_hostname) for event in (received, discarded)]
    assert (10, 3, ALL) == (received.total_bytes, received.internal_message_id, received.recipients)


def test_a_discard_of_all_recipients_needs_no_envelope_and_names_nobody():
    assert () == rows.hadiscard(NODE, ID, at=AT, primary=OTHER).recipients


def test_a_discard_of_some_recipients_names_them_and_its_status():
    event = rows.hadiscard(NODE, ID, at=AT, primary=OTHER, envelope=ENVELOPE, ordinals=frozenset({3, 1}), status="released")

    assert (("b@x.example", "d@y.example"), "released") == (event.recipients, event.source_context)


def test_a_discard_of_some_recipients_without_their_names_is_our_bug():
    with pytest.raises(AssertionError, match="has to name them"):
        rows.hadiscard(NODE, ID, at=AT, primary=OTHER, ordinals=frozenset({1}))


def test_transfer_has_the_recipients_of_one_fork_and_its_next_hop():
    event = rows.transfer(NODE, STORED, at=AT, next_hop="x.example", ordinals=frozenset({2, 1}))

    assert (ALL[:2], "x.example") == (event.recipients, event.source_context)
    assert (EventSource.ROUTING, NODE) == (event.source, event.server_hostname)


@pytest.mark.parametrize(("external", "expected"), [(True, EventId.SENDEXTERNAL), (False, EventId.SEND)])
def test_at_send_the_client_is_this_server_and_the_server_the_next_hop(external, expected):
    event = rows.send(
        NODE,
        STORED,
        at=AT,
        server="sink.x.example [192.0.2.9]:2525",
        replies={3: OK, 1: LATER},
        external=external,
        elapsed=timedelta(seconds=1.5),
        next_hop="x.example",
    )

    assert expected == event.event
    assert (NODE, "sink.x.example", "192.0.2.9") == (event.client_hostname, event.server_hostname, event.server_ip)
    assert (("b@x.example", "d@y.example"), (str(LATER), str(OK))) == (event.recipients, event.recipient_statuses)
    assert ("x.example", (("AttemptElapsed", "1.500000"),)) == (event.connector_id, event.custom_data)
    assert "2026-11-21T09:59:59.000005Z" == event.message_info


@pytest.mark.parametrize("make", [rows.defer, rows.fail])
def test_a_row_of_an_attempt_says_what_protected_its_session(make):
    session = rows.session_data("TLSv1.3,verified", "PLAIN relay")

    event = make(NODE, STORED, at=AT, server="x [192.0.2.9]:25", replies={2: LATER}, session=session)

    assert (("Tls", "TLSv1.3,verified"), ("Auth", "PLAIN relay")) == event.custom_data[1:]
    assert ((), (("Tls", "TLSv1.2"),)) == (rows.session_data("", ""), rows.session_data("TLSv1.2", ""))


def test_defer_and_fail_say_who_failed():
    deferred = rows.defer(NODE, STORED, at=AT, server="", replies={2: LATER}, source=EventSource.ROUTING, context="no lease")
    failed = rows.fail(NODE, STORED, at=AT, server="", replies={2: rows.EXPIRED}, source=EventSource.DNS)

    assert (EventId.DEFER, EventSource.ROUTING, "no lease") == (deferred.event, deferred.source, deferred.source_context)
    assert (EventId.FAIL, EventSource.DNS, (str(rows.EXPIRED),)) == (failed.event, failed.source, failed.recipient_statuses)


def test_a_duplicate_names_the_message_that_was_delivered():
    event = rows.duplicate(NODE, STORED, at=AT, ordinals=frozenset({2}), first=MessageId("the-first"))

    assert (EventId.DUPLICATEDELIVER, ("c@x.example",), "delivered as the-first", "the-first") == (
        event.event,
        event.recipients,
        event.source_context,
        event.reference,
    )


@pytest.mark.parametrize(("internet_message_id", "expected"), [("<1@corp.example>", "<1@corp.example>"), ("", ID)])
def test_a_dsn_is_a_message_of_its_own_that_refers_to_the_original(internet_message_id, expected):
    own = Envelope(MessageId("dsn-id"), "", (Recipient("a@corp.example"),), AT, internet_message_id="<dsn@mx1>")
    event = rows.dsn(
        NODE, own, at=AT, original=replace(ENVELOPE, internet_message_id=internet_message_id), action="failed", size=900, internal_id=9
    )

    assert ("dsn-id", expected, "failed", 900, 9) == (
        event.network_message_id,
        event.reference,
        event.source_context,
        event.total_bytes,
        event.internal_message_id,
    )
    assert (("a@corp.example",), (("OriginalNetworkMessageId", ID),)) == (event.recipients, event.custom_data)


@pytest.mark.parametrize("reason", ResubmitReason)
def test_at_resubmit_the_server_is_the_new_primary_and_the_reference_the_old_one(reason):
    event = rows.resubmit(
        NODE,
        STORED,
        at=AT,
        primary=OTHER,
        reason=reason,
        silent_since=AT - timedelta(seconds=20),
        detected_at=AT,
        ordinals=frozenset({2}),
    )

    assert (NODE, OTHER, EventSource.REDUNDANCY, ("c@x.example",)) == (
        event.server_hostname,
        event.reference,
        event.source,
        event.recipients,
    )
    assert (
        ("Reason", reason.value),
        ("SilentSince", "2026-11-21T09:59:40.123456Z"),
        ("DetectedAt", "2026-11-21T10:00:00.123456Z"),
        ("ClientSaidBy", OTHER),
    ) == event.custom_data


def test_load_and_poison_name_the_recipients_that_are_still_open():
    half_done = replace(STORED, claim=replace(CLAIM, done=frozenset({1})))

    assert ALL[1:] == rows.load(NODE, half_done, at=AT).recipients
    assert (ALL[1:], "died 3 times") == (
        rows.poison(NODE, half_done, at=AT, reason="died 3 times").recipients,
        rows.poison(NODE, half_done, at=AT, reason="died 3 times").source_context,
    )


def test_what_expires_on_a_primary_has_a_status_for_each_open_recipient():
    event = rows.expire(NODE, replace(STORED, claim=replace(CLAIM, done=frozenset({1}))), at=AT)

    assert ("", ALL[1:], (str(rows.EXPIRED),) * 2) == (event.client_hostname, event.recipients, event.recipient_statuses)


def test_what_expires_on_a_shadow_server_names_its_primary():
    event = rows.expire(NODE, SHADOW, at=AT)

    assert (OTHER, NODE, ALL) == (event.client_hostname, event.server_hostname, event.recipients)


def test_a_size_that_is_given_goes_before_the_stored_one_and_without_both_it_is_zero():
    without = replace(STORED, place=None)

    assert [5, 4096, 0] == [
        rows.load(NODE, STORED, at=AT, size=5).total_bytes,
        rows.load(NODE, STORED, at=AT).total_bytes,
        rows.load(NODE, without, at=AT).total_bytes,
    ]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("mx.example [192.0.2.1]:25", ("mx.example", "192.0.2.1")),
        ("mx.example [2001:db8::1]:25", ("mx.example", "2001:db8::1")),
        ("[192.0.2.1]:25", ("", "192.0.2.1")),
        ("mx.example:25", ("mx.example", "")),
        ("", ("", "")),
    ],
)
def test_the_name_and_the_address_of_a_server_are_told_apart(server, expected):
    assert expected == rows.split_server(server)
