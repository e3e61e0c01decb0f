"""The line that says who took a message over."""

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.rules.dsn import format_date, promotion_header, resubmission_header

NOW = datetime(2026, 3, 5, 7, 8, 9, 123456, tzinfo=UTC)
ID = MessageId("0c8aa5f0-3f9d-4a0b-9d69-0d9f3a1d2b11")


def test_it_names_both_servers_the_message_and_the_time():
    expected = (
        b"Received: from mx1.east.example by mx1.west.example\r\n"
        b"\twith ShadowRedundancy id 0c8aa5f0-3f9d-4a0b-9d69-0d9f3a1d2b11\r\n"
        b"\t(client said by mx1.east.example);\r\n"
        b"\tThu, 5 Mar 2026 07:08:09 +0000\r\n"
    )
    assert expected == promotion_header(ServerName("mx1.east.example"), ServerName("mx1.west.example"), ID, NOW)


@pytest.mark.parametrize("days", range(0, 400, 37))
def test_the_date_is_that_of_the_standard_library_but_for_the_leading_zero(days):
    at = NOW + timedelta(days=days, hours=days)
    assert format_datetime(at).replace(", 0", ", ") == format_date(at)


def test_another_time_zone_is_written_in_utc():
    assert format_date(NOW) == format_date(NOW.astimezone(timezone(timedelta(hours=-9))))


def test_a_hostile_name_adds_no_line():
    header = promotion_header(ServerName("a\r\nBcc: x@y.example ü"), ServerName(""), ID, NOW)
    assert b"Received: from a??Bcc:?x?y.example?? by unknown" == header.split(b"\r\n")[0]


def test_monstrous_names_are_cut():
    header = promotion_header(ServerName("a" * 5000), ServerName("b" * 5000), MessageId("c" * 5000), NOW)
    assert all(len(line) <= 998 for line in header.split(b"\r\n"))


def test_the_header_of_a_resubmitted_message_names_it_its_original_and_the_request() -> None:
    header = resubmission_header(ServerName("mx1.east.example"), ID, MessageId("original"), 12, NOW)

    lines = header.decode("ascii").split("\r\n")
    assert [
        "Received: from mx1.east.example by mx1.east.example",
        f"\twith SafetyNet id {ID}",
        "\t(resubmitted original request 12);",
        f"\t{format_date(NOW)}",
        "",
    ] == lines
