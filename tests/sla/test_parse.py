"""Whatever is in a file, every line is a row, a comment, or in quarantine."""

import io
import re
from datetime import UTC, datetime
from hashlib import blake2b

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from shadowrelay.model.tracking import EventId
from shadowrelay.model.values import replace
from shadowrelay.protocol.tracking import FIELDS, NULL_PATH, format_header, format_line, parse_line
from shadowrelay.sla import lines, parse
from shadowrelay.sla.lines import Layout
from shadowrelay.sla.unpacked import GZIP, unpacked
from tests.kit.events import recipients_hash
from tests.kit.log_files import STARTED, a_log, an_event, read_log
from tests.unit.protocol.strategies import tracking_events as any_event

SURROGATE = re.compile("[\ud800-\udfff]")
tracking_events = any_event.map(lambda event: replace(event, at=event.at.replace(year=2000 + event.at.year % 28 * 4)))
HEADER = format_header("1.2.3", STARTED)
EXCHANGE = b"#Software: Microsoft Exchange Server\r\n#Version: 15.01.2375.007\r\n#Fields: " + ",".join(FIELDS).encode() + b"\r\n"


def as_read(text):
    """Lone surrogates stay escaped: they have no UTF-8."""
    return SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def reasons(bad):
    return [(number, reason) for number, reason, _ in bad]


@settings(max_examples=75)
@given(st.lists(tracking_events, max_size=6), st.integers(1, 5000))
def test_what_the_relay_writes_is_read_as_it_was_meant(events, block_bytes):
    log, rows, bad = read_log(a_log(events), block_bytes=block_bytes)

    assert [] == bad
    assert (len(events) + 5, len(events), "shadowrelay", "1.2.3") == (log.lines, log.rows, log.format, log.version)
    for number, (event, row) in enumerate(zip((parse_line(format_line(each)) for each in events), rows, strict=True), start=6):
        recipients = [as_read(each) for each in event.recipients]
        expected = {
            "at": event.at, "event": event.event, "source": event.source, "message": as_read(event.network_message_id),
            "internet_message_id": as_read(event.message_id), "internal_message_id": str(event.internal_message_id),
            "client_ip": as_read(event.client_ip), "client_hostname": as_read(event.client_hostname),
            "server_ip": as_read(event.server_ip), "server_hostname": as_read(event.server_hostname),
            "source_context": as_read(event.source_context), "connector_id": as_read(event.connector_id),
            "reference": as_read(event.reference), "subject": as_read(event.subject), "sender": as_read(event.sender),
            "return_path": as_read(event.sender or NULL_PATH), "message_info": as_read(event.message_info),
            "original_client_ip": as_read(event.original_client_ip), "recipients": recipients,
            "recipient_statuses": [as_read(each) for each in event.recipient_statuses], "recipient_count": len(recipients),
            "recipients_hash": recipients_hash(recipients), "total_bytes": event.total_bytes, "line": number,
            "format": "shadowrelay", "traffic_type": "Email", "file": "MSGTRK2026112112-1.LOG",
        }  # fmt: skip
        assert expected == {name: row[name] for name in expected}


CUSTOM = (
    ("Replication", "Success"), ("AckElapsed", "0.023400"), ("ShadowElapsed", "12"), ("AttemptElapsed", "-0.5"),
    ("Reasons", "no"), ("Reason", "Silence"),
    ("SilentSince", "2026-11-21T09:00:00.000001Z"), ("DetectedAt", "2026-11-21T12:00:00Z"), ("OriginalNetworkMessageId", "m;0"), ("X", ""),
)  # fmt: skip


def test_what_custom_data_says_stands_in_columns():
    _, rows, bad = read_log(a_log([an_event(custom_data=CUSTOM), an_event()]))

    names = ("replication", "ack_us", "shadow_us", "attempt_us", "reason", "silent_since", "detected_at", "original_message")
    since = datetime(2026, 11, 21, 9, 0, 0, 1, tzinfo=UTC)
    assert [] == bad
    assert ("Success", 23_400, 12_000_000, -500_000, "Silence", since, STARTED, "m;0") == tuple(rows[0][name] for name in names)
    assert ("", None, None, None, "", None, None, "") == tuple(rows[1][name] for name in names)
    assert "S:OriginalNetworkMessageId=m\\u003b0;S:X=" in rows[0]["custom_data"]


@pytest.mark.parametrize("pair", [("AckElapsed", "soon"), ("SilentSince", "2026-02-30T00:00:00.000000Z"), ("DetectedAt", "noon")])
def test_custom_data_that_cannot_be_read_is_quarantined(pair):
    _, rows, bad = read_log(a_log([an_event(custom_data=(pair,)), an_event("m2")]))

    assert ["m2"] == [row["message"] for row in rows]
    assert [(6, "custom-data")] == reasons(bad)


def test_two_servers_and_two_lines_have_different_row_ids_and_repeats_the_same():
    data = a_log([an_event("m1"), an_event("m2"), an_event("m1")])

    first, second, third = (row["row_id"] for row in read_log(data)[1])
    others = {row["row_id"] for row in read_log(data, server="x" * 300)[1]}

    assert first == third != second
    assert 4 == len(others | {first, second})
    assert re.fullmatch("[0-9a-f]{32}", first)
    line = format_line(an_event("m1")).rstrip()
    assert blake2b(line, digest_size=16, key=b"mx1").hexdigest() == first


def test_filling_line_ends_and_the_byte_order_mark_change_nothing():
    events = [an_event("m1", subject='a, "b"'), an_event("m2", subject="c ")]
    plain = a_log(events)
    filled = parse.BOM + plain.replace(b",1.0\r\n", b",1.0    \r\n\r\n   \r\n# note\r\n")
    bare = plain.replace(b"\r\n", b"\n")

    keys = [[(row["row_id"], row["subject"]) for row in read_log(data)[1]] for data in (plain, filled, bare)]

    assert 2 == len(keys[0])
    assert keys[0] == keys[1] == keys[2]


def test_each_kind_of_bad_line_is_quarantined_with_its_reason_and_the_good_ones_are_read():
    whole = format_line(an_event("m1")).rstrip()
    other = b"2026-11-21T12:00:00.000Z" + b"," * 29
    data = [
        b"before any header", HEADER.rstrip(), whole, whole[:60], whole[:80] + b"x" + whole[80:], b"\xff\xfe", b'a,"b', b'a,"b"c,',
        b"", b"x" * 3000, EXCHANGE.rstrip(), other, other + b",", b"\xff" + other, b"2026-02-30T12:00:00.000Z" + b"," * 29,
        b"yesterday" + b"," * 29, b"2026-11-21T12:00:00.000Z" + b"," * 14 + b"many" + b"," * 15,
        b"2026-11-21T12:00:00.000Z" + b"," * 15 + b"3000000000" + b"," * 14, b'2026-11-21T12:00:00.000Z,"' + b"," * 28, other, other[:-9],
    ]  # fmt: skip

    log, rows, bad = read_log(b"\r\n".join(data))

    assert [
        (1, "no header"), (8, "fields"), (9, "torn"), (10, "encoding"), (11, "csv"), (12, "csv"), (14, "fields"), (19, "fields"),
        (20, "encoding"), (21, "date-time"), (22, "date-time"), (23, "number"), (24, "number"), (25, "csv"), (27, "torn"),
    ] == reasons(bad)  # fmt: skip
    assert [7, 18, 26] == [row["line"] for row in rows]
    assert (27, 3, 15) == (log.lines, log.rows, log.quarantined)
    assert ["x" * 500] == [text for number, _, text in bad if number == 14]


def test_a_file_that_ends_within_a_line_has_a_torn_one_and_only_that():
    data = a_log([an_event("m1"), an_event("m2")])

    for length in range(len(HEADER) + 1, len(data)):
        log, rows, bad = read_log(data[:length])
        end = data[:length].rpartition(b"\n")[2]
        assert len(rows) == data[:length].count(b"\n") - 5
        assert [(log.lines, "torn")] * bool(end.strip()) == reasons(bad)


def test_the_header_says_which_field_is_where():
    fields = b"event-id,#unknown,Message-Subject,date-time"
    data = b"#Software: Other\n#Fields: " + fields + b"\nSEND,?,Hello,2026-11-21T12:00:00.1234567Z\n#Fields: date-time,event-id\n"
    data += b"2026-11-21T12:00:00Z,RECEIVE\n#Fields: nonsense\na\n"

    log, rows, bad = read_log(data)

    assert [("SEND", "Hello", 123456), ("RECEIVE", "", 0)] == [(row["event"], row["subject"], row["at"].microsecond) for row in rows]
    assert [(7, "no header")] == reasons(bad)
    assert "exchange2010" == log.format


def test_our_own_lines_in_another_order_are_still_checked_by_their_log_id():
    row = [b"2026-11-21T12:00:00.000000Z", b"SEND", b"m1"]
    prefix = b",".join(row) + b","
    digest = blake2b(prefix, digest_size=16).hexdigest().encode()
    data = b"#Software: shadowrelay\n#Fields: date-time,event-id,network-message-id,log-id,schema-version\n"
    data += prefix + digest + b",1.0  \n" + prefix.replace(b"m1", b"m2") + digest + b",1.0\n"

    _, rows, bad = read_log(data)

    assert ["m1"] == [each["message"] for each in rows]
    assert [(4, "torn")] == reasons(bad)


def test_a_line_longer_than_the_limit_is_skipped_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(parse, "LINE_BYTES_MAX", 10_000)
    line = format_line(an_event("m2"))

    log, rows, bad = read_log(a_log([an_event("m1")]) + b"x" * 50_000 + b"\r\n" + line, block_bytes=4_000)

    assert ["m1", "m2"] == [row["message"] for row in rows]
    assert [(7, "csv")] == reasons(bad)
    assert (8, 8) == (log.lines, rows[1]["line"])


def test_a_quoted_field_may_go_on_over_lines_and_blocks():
    row = b'2026-11-21T12:00:00.000Z,,,,,,,SMTP,SEND,,<1@x>,m1,,,,,,,"one, two\r\n#three\r\n\r\n""four""",s@x,,,,,,,,,,\r\n'
    data = EXCHANGE + row * 3 + row.replace(b"m1", b"m2")

    for block_bytes in (1, 7, 100, 10_000):
        log, rows, bad = read_log(data, block_bytes=block_bytes)
        assert [] == bad
        assert ['one, two\r\n#three\r\n\r\n"four"'] * 4 == [each["subject"] for each in rows]
        assert [4, 8, 12, 16] == [each["line"] for each in rows]
        assert (19, 4) == (log.lines, log.rows)


def test_a_quote_that_nobody_closes_costs_its_own_line_only():
    good = b"2026-11-21T12:00:00.000Z" + b"," * 29 + b"\n"
    stray = b'2026-11-21T12:00:00.000Z,"' + b"," * 28 + b"\n"

    _, rows, bad = read_log(EXCHANGE + good + stray + good * 300 + stray + good + stray + good * 2 + stray + b"x")

    assert 304 == len(rows)
    assert [(5, "csv"), (306, "csv"), (308, "csv"), (311, "torn"), (312, "torn")] == reasons(bad)


def test_nul_octets_and_strange_line_ends_lose_no_other_line():
    good = b"2026-11-21T12:00:00.000Z" + b"," * 29
    _, rows, bad = read_log(
        EXCHANGE + good + b"\r\n" + b"\0" * 50 + b"\r\n" + good[:-1] + b"\0,\r\n" + good + b"\rx\r\n" + good + b"\r\n" + b"\0" * 9
    )

    assert [4, 6, 8] == [row["line"] for row in rows]
    assert [(5, "fields"), (7, "csv"), (9, "torn")] == reasons(bad)


@pytest.mark.parametrize("end", [b"\r", b"\r\n"])
def test_a_log_whose_lines_end_with_cr_only_is_said_to_be_one(end):
    log, rows, bad = read_log(parse.BOM + a_log([an_event()]).replace(b"\r\n", b"\r").rstrip(b"\r") + end)

    assert ([], [(1, "line end")], 1) == (rows, reasons(bad), log.lines)


def mutations(data):
    """Pieces of a file cut, repeated, and mixed with octets that break things."""
    breakers = st.sampled_from(
        [b"\xff", b"\0", b'"', b"\r", b"\n", b",", b"\\u0041", b"#Fields: date-time,event-id\n", b"#Software: X\n", parse.BOM]
    )
    spans = st.tuples(st.integers(0, len(data)), st.integers(0, 700)).map(lambda span: data[span[0] : sum(span)])
    return st.lists(breakers | spans | st.just(data), max_size=6).map(b"".join)


SAMPLE = a_log(
    [an_event("m1", subject='a, "b"', recipients=("a@b", "c@d")), an_event("ü", EventId.SEND), an_event("m3", custom_data=CUSTOM)]
)
SAMPLE += (
    EXCHANGE
    + b'2026-11-21T12:00:00.000Z,,,,,,,SMTP,SEND,,<1@x>,m1,a@b;c@d,,,,,,"x,\n""y""",s@x,,,,,,,,,,\r\n'
    + b"2026-11-21T12:00:00.000Z"
    + b"," * 29
)
SAMPLE += b"\r\n"


@settings(max_examples=120)
@given(mutations(SAMPLE) | st.binary(max_size=300), st.integers(1, 3000))
@example(b"\0" + SAMPLE, 1)
def test_the_fast_way_and_the_slow_way_and_every_size_of_block_agree(data, block_bytes):
    assume(not data.startswith(GZIP) and unpacked(io.BytesIO(data).read)(4) == data[:4])  # no archive, not UTF-16
    log, rows, bad = read_log(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Layout, "has_own_order", False)
        patch.setattr(parse, "_split_together", lambda lines, layout: None)
        slow, slow_rows, slow_bad = read_log(data, block_bytes=block_bytes)

    def by_line(each):
        return (each["line"], each["row_id"])

    assert sorted(slow_rows, key=by_line) == sorted(rows, key=by_line)
    assert slow_bad == sorted(bad)
    assert (slow.lines, slow.rows, slow.quarantined, slow.first_at) == (log.lines, log.rows, log.quarantined, log.first_at)
    assert log.lines == data.count(b"\n") + bool(data.rpartition(b"\n")[2])


def test_no_line_is_lost_without_being_said():
    data = SAMPLE * 3
    physical = data.count(b"\n")
    header = 3 * (5 + 3)

    _, rows, bad = read_log(data[: len(data) // 2] + b"\n" + data[len(data) // 2 :])

    continued = sum(row["subject"].count("\n") for row in rows)
    assert physical + 1 == header + len(rows) + continued + len(bad)


def test_what_a_reader_is_given_is_bounded_by_the_block():
    data = a_log(an_event(f"m{number}") for number in range(2000))

    sizes = [each.rows.num_rows for each in parse.LogFile(io.BytesIO(data), "mx1", "x", block_bytes=10_000)]

    assert 2000 == sum(sizes)
    assert max(sizes) < 100


def test_the_limit_of_a_field_is_that_of_a_line():
    recipients = tuple(f"{number}@{'x' * 200}.example" for number in range(2000))

    _, rows, bad = read_log(a_log([an_event(recipients=recipients, subject='"')]))

    assert [] == bad
    assert list(recipients) == rows[0]["recipients"]
    assert lines.LINE_BYTES_MAX > 400_000
