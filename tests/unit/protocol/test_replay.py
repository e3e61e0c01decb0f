"""The envelope of an exported message as header lines."""

from shadowrelay.model.message import BodyType, Recipient
from shadowrelay.model.values import replace
from shadowrelay.protocol.replay import format_envelope_lines
from tests.kit.ledger import an_envelope

ENVELOPE = replace(
    an_envelope(),
    recipients=(Recipient("a@x.example"), Recipient("b@x.example", notify="FAILURE,DELAY", orcpt="rfc822;b@x.example")),
    body=BodyType.EIGHT_BIT_MIME,
    ret="HDRS",
    envid="12345",
)


def test_the_envelope_stands_in_lines_with_its_parameters_before_the_line_that_ends_them() -> None:
    assert [
        "X-CreatedBy: shadowrelay",
        "X-Source:" + " SMTP",  # in one piece it would look like a citation
        "X-HeloDomain: client.example",
        "X-SourceIPAddress: 192.0.2.1",
        "X-Sender: <sender@elsewhere.example> BODY=8BITMIME RET=HDRS ENVID=12345",
        "X-Receiver: <a@x.example>",
        "X-Receiver: <b@x.example> NOTIFY=FAILURE,DELAY ORCPT=rfc822;b@x.example",
        "X-EndOfInjectedXHeaders: ",
        "",
    ] == format_envelope_lines(ENVELOPE, frozenset()).decode().split("\r\n")


def test_recipients_that_have_the_message_are_left_out_and_the_null_sender_is_empty() -> None:
    lines = format_envelope_lines(replace(ENVELOPE, sender=""), frozenset({1})).decode().split("\r\n")

    assert "X-Sender: <> BODY=8BITMIME RET=HDRS ENVID=12345" in lines
    assert 1 == sum(line.startswith("X-Receiver") for line in lines)


def test_a_line_break_in_a_damaged_envelope_begins_no_line() -> None:
    lines = format_envelope_lines(replace(ENVELOPE, sender="a\r\nX-Receiver: <evil@x.example>"), frozenset()).decode().split("\r\n")

    assert 2 == sum(line.startswith("X-Receiver") for line in lines)


def test_addresses_beyond_ascii_are_utf_8() -> None:
    assert "X-Sender: <jörg@x.example>".encode() in format_envelope_lines(replace(ENVELOPE, sender="jörg@x.example"), frozenset())
