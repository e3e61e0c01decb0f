"""Journal reports: whose, about what, and that any mail program reads them. docs/design.md 6.13."""

import base64
import email
import email.policy
from datetime import UTC, datetime
from email.message import EmailMessage

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import BodyType, Envelope, Recipient
from shadowrelay.model.settings import Route
from shadowrelay.model.values import replace
from shadowrelay.rules import journal
from shadowrelay.rules.dsn import DsnKind, dsn_message_id

NODE, NOW = ServerName("mx1.east.example"), datetime(2026, 3, 1, 12, tzinfo=UTC)
ORIGINAL = Envelope(
    MessageId("11111111-1111-4111-8111-111111111111"),
    "a@x.example",
    (Recipient("to@corp.example"), Recipient("bcc@corp.example")),
    NOW,
    internet_message_id="<1@x.example>",
    subject="Lunch",
)
CONTENT = b"From: a@x.example\r\nSubject: Lunch\r\n\r\nat noon\r\n"
JOURNAL = "journal@archive.example"


def report(original: Envelope = ORIGINAL, content: bytes = CONTENT) -> tuple[Envelope, bytes]:
    envelope = journal.envelope_for(original, JOURNAL, NOW, NODE)
    return envelope, journal.header_of(envelope, original, NODE) + content + journal.trailer_of(envelope)


def parsed(data: bytes) -> EmailMessage:
    message = email.message_from_bytes(data, policy=email.policy.SMTP)
    assert isinstance(message, EmailMessage)
    assert [] == message.defects
    return message


def test_a_report_names_the_whole_envelope_and_has_the_message_attached() -> None:
    envelope, data = report()
    message = parsed(data)
    text, attached = message.iter_parts()

    assert ("", (Recipient(JOURNAL, notify="NEVER"),), BodyType.SEVEN_BIT) == (envelope.sender, envelope.recipients, envelope.body)
    assert (JOURNAL, "Lunch", "auto-generated", "") == (
        message["To"], message["Subject"], message["Auto-Submitted"], message["X-MS-Journal-Report"],
    )  # fmt: skip
    lines = [
        "Sender: a@x.example",
        "Subject: Lunch",
        "Message-ID: <1@x.example>",
        "Recipient: to@corp.example",
        "Recipient: bcc@corp.example",
    ]
    assert lines == text.get_content().splitlines()
    assert "message/rfc822" == attached.get_content_type()
    assert CONTENT in data


def test_the_report_of_a_message_has_one_id_for_each_journal_recipient_on_every_node() -> None:
    mine = journal.report_id(ORIGINAL.message_id, JOURNAL)

    assert mine == journal.report_id(ORIGINAL.message_id, JOURNAL.upper())
    assert mine != journal.report_id(ORIGINAL.message_id, "other@archive.example")
    assert mine != journal.report_id(MessageId("22222222-2222-4222-8222-222222222222"), JOURNAL)
    assert mine != dsn_message_id(ORIGINAL.message_id, frozenset({1}), DsnKind.FAILURE)


@pytest.mark.parametrize(
    ("original", "body", "kind", "encoding"),
    [
        (ORIGINAL, BodyType.SEVEN_BIT, "message/rfc822", "7bit"),
        (replace(ORIGINAL, body=BodyType.EIGHT_BIT_MIME), BodyType.EIGHT_BIT_MIME, "message/rfc822", "8bit"),
        (replace(ORIGINAL, body=BodyType.EIGHT_BIT_MIME, smtputf8=True), BodyType.EIGHT_BIT_MIME, "message/global", "8bit"),
    ],
)
def test_a_report_asks_no_more_of_a_next_hop_than_its_original(original: Envelope, body: BodyType, kind: str, encoding: str) -> None:
    envelope, data = report(original)

    assert (body, False) == (envelope.body, envelope.smtputf8)
    assert f"Content-Type: {kind}\r\nContent-Disposition: attachment\r\nContent-Transfer-Encoding: {encoding}\r\n".encode() in data


def test_an_address_of_any_script_is_in_the_text_and_leaves_the_report_ascii() -> None:
    original = replace(ORIGINAL, recipients=(Recipient("\u5927@corp.example"),), subject="caf\u00e9")
    data = report(original)[1]
    text = parsed(data).get_payload(0)
    assert isinstance(text, EmailMessage)

    assert data.isascii()
    assert ["Subject: caf\u00e9", "Recipient: \u5927@corp.example"] == text.get_content().splitlines()[1::2]
    assert "Recipient: \u5927" in base64.b64decode(text.get_payload()).decode()


def test_what_a_client_wrote_makes_no_line_of_its_own() -> None:
    hostile = replace(
        ORIGINAL, subject="a\r\nRecipient: nobody@x.example\r\n\r\nb" + "c" * 2000, internet_message_id="<1@x>\r\nBcc: me@x.example"
    )
    _, data = report(hostile)
    message = parsed(data)

    assert message["Bcc"] is None
    text = next(message.iter_parts()).get_content()
    assert 2 == sum(line.startswith("Recipient:") for line in text.splitlines())
    assert 998 >= max(map(len, data.split(b"\r\n")))


def test_a_report_is_not_journaled_whoever_delivers_it() -> None:
    envelope, data = report()
    elsewhere = replace(envelope, message_id=MessageId("33333333-3333-4333-8333-333333333333"))

    assert not journal.is_journaled(envelope)
    assert journal.is_journaled(elsewhere)
    assert journal.is_report_from_elsewhere(elsewhere, data)


@pytest.mark.parametrize(
    ("sender", "head", "expected"),
    [
        ("", b"x-ms-journal-report:\r\n\r\nhello\r\n", True),
        ("", b"Subject: x\r\nX-MS-Journal-Report: yes\r\n\r\n", True),
        ("a@x.example", b"X-MS-Journal-Report:\r\n\r\n", False),
        ("", b"Subject: x\r\n\r\nX-MS-Journal-Report:\r\n", False),
        ("", b"Subject: a\r\n X-MS-Journal-Report:\r\n\r\n", False),
    ],
)
def test_a_report_from_elsewhere_has_the_null_sender_and_the_header(sender: str, head: bytes, expected: bool) -> None:
    assert expected is journal.is_report_from_elsewhere(replace(ORIGINAL, sender=sender), head)


def test_what_is_resubmitted_from_safety_net_was_journaled_before() -> None:
    assert journal.is_journaled(ORIGINAL)
    assert not journal.is_journaled(replace(ORIGINAL, resubmitted_from=MessageId("another")))


@pytest.mark.parametrize("text", ["", "journal@archive.example", "a.b+c@x.example"])
def test_a_journal_recipient_is_an_address_or_nothing(text: str) -> None:
    assert text == Route(recipients=("*",), next_hop="a", journal_recipient=text).journal_recipient


def test_the_domain_of_a_journal_recipient_is_made_lower_case() -> None:
    assert (
        "Journal@archive.example" == Route(recipients=("*",), next_hop="a", journal_recipient="Journal@Archive.Example").journal_recipient
    )


@pytest.mark.parametrize(
    "text", ["journal", "a b@x.example", "a@", "@x.example", ".a@x.example", "a@x.example\r\nX: y", "<a@x.example>", "\u5927@x.example", 1]
)
def test_anything_else_is_refused_with_the_remedy(text: object) -> None:
    with pytest.raises(ValueError, match="write one like"):
        Route.model_validate({"recipients": ["*"], "next_hop": "a", "journal_recipient": text})
