import csv
import io
from datetime import UTC, datetime
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.protocol.tracking import FIELDS, format_header, format_line, parse_line
from tests.unit.protocol.strategies import ARRIVED, ID, NASTY, refusal, tracking_events

EVENT = TrackingEvent(
    ARRIVED,
    EventId.SEND,
    EventSource.SMTP,
    42,
    ID,
    message_id="<1@x>",
    client_ip="192.0.2.1",
    client_hostname="mx1.example",
    server_ip="192.0.2.2",
    server_hostname="next.example",
    source_context="abc;1",
    connector_id="mx1\\inbound",
    recipients=("a@b", "c@d"),
    recipient_statuses=("250 2.1.5 Ok", "250 2.1.5 Ok"),
    total_bytes=4096,
    reference="<0@x>",
    subject="Hello",
    sender="s@x",
    message_info="2026",
    original_client_ip="192.0.2.3",
    custom_data=(("Replication", "Success"), ("AckElapsed", "0.004")),
)


def row_of(event):
    return dict(zip(FIELDS, next(csv.reader(io.StringIO(format_line(event).decode("utf-8"), newline=""), strict=True)), strict=True))


def test_the_fields_are_the_thirty_of_exchange_2016_in_their_order():
    # Source: docs/sources.md, a real file of 15.01.2375.007
    line = (
        "date-time,client-ip,client-hostname,server-ip,server-hostname,source-context,connector-id,source,event-id,internal-message-id,message-id,"
        "network-message-id,recipient-address,recipient-status,total-bytes,recipient-count,related-recipient-address,reference,message-subject,"
        "sender-address,return-path,message-info,directionality,tenant-id,original-client-ip,original-server-ip,custom-data,transport-traffic-type,"
        "log-id,schema-version"
    )

    assert ",".join(FIELDS) == line
    assert len(FIELDS) == 30


def test_the_header_has_five_lines():
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    lines = format_header("1.2.3", at).decode("ascii").split("\r\n")

    assert lines == [
        "#Software: shadowrelay",
        "#Version: 1.2.3",
        "#Log-type: Message Tracking Log",
        "#Date: 2026-11-21T12:00:00.000000Z",
        "#Fields: " + ",".join(FIELDS),
        "",
    ]


def test_a_row_says_what_the_event_says():
    row = row_of(EVENT)

    log_id = row.pop("log-id")
    assert [len(part) for part in log_id.split("-")] == [8, 4, 4, 4, 12]
    assert row == {
        "date-time": "2026-11-21T12:00:00.250000Z",
        "client-ip": "192.0.2.1",
        "client-hostname": "mx1.example",
        "server-ip": "192.0.2.2",
        "server-hostname": "next.example",
        "source-context": "abc;1",
        "connector-id": "mx1\\inbound",
        "source": "SMTP",
        "event-id": "SEND",
        "internal-message-id": "42",
        "message-id": "<1@x>",
        "network-message-id": ID,
        "recipient-address": "a@b;c@d",
        "recipient-status": "250 2.1.5 Ok;250 2.1.5 Ok",
        "total-bytes": "4096",
        "recipient-count": "2",
        "related-recipient-address": "",
        "reference": "<0@x>",
        "message-subject": "Hello",
        "sender-address": "s@x",
        "return-path": "s@x",
        "message-info": "2026",
        "directionality": "Incoming",
        "tenant-id": "",
        "original-client-ip": "192.0.2.3",
        "original-server-ip": "",
        "custom-data": "S:Replication=Success;S:AckElapsed=0.004",
        "transport-traffic-type": "Email",
        "schema-version": "1.0",
    }


def test_the_return_path_is_never_empty():
    row = row_of(replace(EVENT, sender=""))

    assert (row["sender-address"], row["return-path"]) == ("", "<>")


def test_a_dsn_originates_here():
    assert row_of(replace(EVENT, event=EventId.DSN, source=EventSource.DSN))["directionality"] == "Originating"


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("field", ["subject", "sender", "message_id", "client_hostname", "source_context", "network_message_id"])
def test_a_text_field_survives_anything(field, text):
    event = replace(EVENT, **{field: text})
    line = format_line(event)

    assert parse_line(line) == event
    assert len(row_of(event)) == 30
    assert line.decode("utf-8").splitlines(keepends=True) == [line.decode("utf-8")]
    assert line.endswith(b",1.0\r\n")


@pytest.mark.parametrize("text", NASTY)
def test_values_in_a_list_survive_anything(text):
    event = replace(EVENT, recipients=(text, "a@b"), recipient_statuses=("x", text, text), custom_data=((text, text), ("k", text)))

    assert parse_line(format_line(event)) == event
    assert row_of(event)["recipient-address"].count(";") == 1


def test_what_is_escaped_can_be_read_by_people():
    row = row_of(replace(EVENT, subject="a\r\nb\\c\\u0041", recipients=("x;y@z",)))

    assert row["message-subject"] == "a\\u000d\\u000ab\\c\\u005cu0041"
    assert row["recipient-address"] == "x\\u003by@z"


@pytest.mark.parametrize("field", ["recipients", "recipient_statuses"])
def test_a_semicolon_in_an_only_value_is_not_a_second_value(field):
    event = replace(EVENT, **{field: ("a;b",)})

    assert parse_line(format_line(event)) == event


def test_only_what_needs_quotes_is_quoted():
    assert b',"Hello, ""World""",s@x,' in format_line(replace(EVENT, subject='Hello, "World"'))
    assert b'"' not in format_line(EVENT)


@given(tracking_events)
def test_any_event_survives(event):
    line = format_line(event)

    assert parse_line(line) == event
    assert line.decode("utf-8").splitlines(keepends=True) == [line.decode("utf-8")]


def test_spaces_that_a_writer_fills_in_at_the_end_are_ignored():
    line = format_line(EVENT)

    assert parse_line(line[:-2] + b" " * 100 + b"\r\n") == EVENT


def test_a_torn_line_is_never_taken_for_a_row():
    line = format_line(replace(EVENT, subject='a,"b'))

    for cut in range(1, len(line)):
        assert (refusal(parse_line, line[:cut]) or "").startswith("501 5.5.4")
        assert (refusal(parse_line, line[cut:]) or "").startswith("501 5.5.4")
        assert (refusal(parse_line, line[: cut - 1] + b"~" + line[cut:]) or "").startswith("501 5.5.4")


@pytest.mark.parametrize(
    "line", [b"", b"\r\n", format_header("1", ARRIVED), b"\xff\r\n", b",".join([b""] * 30) + b"\r\n", b'"' * 9 + b"\r\n"]
)
def test_anything_else_is_no_row(line):
    assert (refusal(parse_line, line) or "").startswith("501 5.5.4")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(line):
    assert (refusal(parse_line, line) or "").startswith("501 5.5.4")
    assert (refusal(parse_line, line + b"\r\n") or "").startswith("501 5.5.4")


def sealed(old, new):
    """The line of EVENT with something changed, and a log-id that is right."""
    start = format_line(EVENT).decode().rsplit(",", 2)[0].replace(old, new) + ","
    digest = blake2b(start.encode(), digest_size=16).hexdigest()
    return f"{start}{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]},1.0\r\n".encode()


def test_a_sealed_line_is_read():
    assert parse_line(sealed("Hello", "Bye")) == replace(EVENT, subject="Bye")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (",SEND,", ",LEND,"),
        (",SMTP,", ",SMS,"),
        (",42,", ",x,"),
        (",4096,", ",,"),
        ("4096,2,", "4096,3,"),
        ("s@x,s@x", "s@x,<>"),
        ("S:Replication=", "S:Replication"),
        ("S:Replication=", "Replication="),
        ("2026-11-21T", "2026-13-21T"),
    ],
)
def test_a_sealed_line_that_says_nonsense_is_refused(old, new):
    assert (refusal(parse_line, sealed(old, new)) or "").startswith("501 5.5.4")
