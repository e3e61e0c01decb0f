"""Attributes of XCLIENT and XFORWARD, and the text of an envelope."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.replies import WireError
from shadowrelay.protocol.original_client import (
    NOBODY,
    TEXT_OCTETS_MAX,
    XCLIENT,
    XFORWARD,
    OriginalClient,
    format_commands,
    format_original_client,
    parse_attributes,
    parse_original_client,
)

CLIENT = OriginalClient("203.0.113.5", 40_000, "client.example", "helo.example", "ESMTP", "ann", "10.0.0.1")

GOOD = [
    ("ADDR=203.0.113.5", {"address": "203.0.113.5"}),
    ("addr=203.0.113.5 port=25", {"address": "203.0.113.5", "port": 25}),
    ("ADDR=IPV6:2001:DB8::5", {"address": "2001:db8::5"}),
    ("ADDR=ipv6:::1", {"address": "::1"}),
    ("ADDR=2001:db8::5", {"address": "2001:db8::5"}),
    ("ADDR=IPV6:::ffff:203.0.113.5", {"address": "203.0.113.5"}),
    ("NAME=client.example HELO=helo.example PROTO=esmtp", {"name": "client.example", "helo": "helo.example", "protocol": "ESMTP"}),
    ("NAME=[UNAVAILABLE] ADDR=[UNAVAILABLE]", {}),
    ("NAME=[tempunavail] LOGIN=[unavailable] PORT=[UNAVAILABLE]", {}),
    ("NAME=+5BUNAVAILABLE+5D", {}),
    ("LOGIN=ann+40corp.example", {"login": "ann@corp.example"}),
    ("HELO=a+20b+3Dc", {"helo": "a b=c"}),
    ("HELO=+FF", {"helo": "\\xff"}),
    ("HELO=+1B[2J", {"helo": " [2J"}),
    ("LOGIN=", {}),
    ("DESTADDR=192.0.2.1 DESTPORT=25 ADDR=203.0.113.5", {"address": "203.0.113.5"}),
]

BAD = [
    "",
    " ",
    "ADDR",
    "=203.0.113.5",
    "ADDR = 203.0.113.5",
    "ADDR:203.0.113.5",
    "COLOUR=blue",
    "IDENT=x",
    "BY=127.0.0.1",
    "ADDR=203.0.113.5 ADDR=203.0.113.6",
    "ADDR=203.0.113.5 addr=203.0.113.6",
    "ADDR=203.0.113",
    "ADDR=203.0.113.5/32",
    "ADDR=203.0.113.256",
    "ADDR=203.0.113.05",
    "ADDR=IPV6:",
    "ADDR=IPV6:203.0.113.5::1::2",
    "ADDR=fe80::1%eth0",
    "ADDR=localhost",
    "ADDR=[203.0.113.5]",
    "PORT=65536",
    "PORT=-1",
    "PORT=4_0",
    "PORT=0x19",
    "PORT=" + "9" * 400,
    "NAME=a b",
    "NAME=a+20b",
    "NAME=<script>",
    "NAME=a+0D+0AMAIL",
    "NAME=" + "a" * 256,
    "NAME=bücher.example",
    "PROTO=E SMTP",
    "PROTO=ESMTP;x",
    "PROTO=" + "A" * 17,
    "HELO=a=b",
    "HELO=a+",
    "HELO=a+4",
    "HELO=a+4g",
    "HELO=\x00",
    "LOGIN=" + "a" * 256,
    "LOGIN=" + "+41" * 256,
]


@pytest.mark.parametrize(("argument", "expected"), GOOD, ids=[case[0] for case in GOOD])
def test_attributes_mean(argument: str, expected: dict[str, object]) -> None:
    assert OriginalClient(**expected) == parse_attributes(argument, XCLIENT, NOBODY)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", BAD, ids=[case[:40] for case in BAD])
def test_attributes_that_mean_nothing_are_refused(argument: str) -> None:
    with pytest.raises(WireError, match="501") as refused:
        parse_attributes(argument, XCLIENT, NOBODY)
    assert "5.5.4" == refused.value.reply.enhanced


def test_a_later_command_adds_and_takes_back() -> None:
    first = parse_attributes("NAME=a.example ADDR=203.0.113.5", XFORWARD, NOBODY)

    assert OriginalClient("203.0.113.5", 25, "") == parse_attributes("PORT=25 NAME=[UNAVAILABLE] SOURCE=REMOTE", XFORWARD, first)


def test_the_text_is() -> None:
    text = "ADDR=203.0.113.5 PORT=40000 BY=10.0.0.1 PROTO=ESMTP HELO=helo.example LOGIN=ann NAME=client.example"

    assert (text, CLIENT) == (format_original_client(CLIENT), parse_original_client(text))
    assert ("", NOBODY) == (format_original_client(NOBODY), parse_original_client(""))
    assert CLIENT == parse_original_client(f"{text} COLOUR=blue")


def test_what_does_not_fit_is_left_out_and_the_rest_is_whole() -> None:
    client = OriginalClient("203.0.113.5", 25, "n" * 255, "h" * 255, "SMTP", '"' * 255, "10.0.0.1")

    text = format_original_client(client)

    assert len(text) <= TEXT_OCTETS_MAX
    assert OriginalClient("203.0.113.5", 25, "", "h" * 255, "SMTP", "", "10.0.0.1") == parse_original_client(text)


@pytest.mark.parametrize("text", ["x\ny", "ADDR=1 ", "a" * 501, "ADDR=203.0.113.5  PORT=1", "ADDR=nonsense", "é=1", "\x1b[2J"])
def test_a_text_that_nobody_writes_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        parse_original_client(text)


@given(st.text(), st.text(max_size=300), st.integers(0, 65_535))
def test_whatever_is_said_is_one_line_of_plain_text(login: str, helo: str, port: int) -> None:
    text = format_original_client(OriginalClient("203.0.113.5", port, "", helo, "", login))

    assert text.isascii()
    assert text.isprintable()
    assert not set(';"\\') & set(text)
    parse_original_client(text)


@given(st.text())
def test_any_argument_is_parsed_or_refused(argument: str) -> None:
    try:
        parse_attributes(argument, XCLIENT, NOBODY)
    except WireError:
        return


def test_what_does_not_fit_a_line_is_said_to_be_unavailable() -> None:
    client = OriginalClient("192.0.2.1", helo="+" * 250, login="u")

    assert ["XCLIENT ADDR=192.0.2.1 HELO=[UNAVAILABLE] LOGIN=u"] == list(
        format_commands(client, "XCLIENT", frozenset({"ADDR", "HELO", "LOGIN"}))
    )
