"""Whom to tell, and the notification as a mail program reads it."""

import uuid
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, BodyType, Envelope, Recipient
from shadowrelay.model.replies import Reply
from shadowrelay.model.values import replace
from shadowrelay.rules import dsn
from shadowrelay.rules.dsn import Action, DsnKind, RecipientReport

NOW = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)
NODE = ServerName("mx1.east.example")
ID = MessageId("0c8aa5f0-3f9d-4a0b-9d69-0d9f3a1d2b11")
FAILURE, DELAY, SUCCESS = DsnKind.FAILURE, DsnKind.DELAY, DsnKind.SUCCESS
NOBODY = Reply(550, "5.1.1", "User unknown")
ORIGINAL = Envelope(
    ID,
    "sender@corp.example",
    (Recipient("b@x.example"), Recipient("c@y.example", "NEVER", "rfc822;C+2Bc@y.example"), Recipient("d@z.example", "SUCCESS,delay")),
    NOW - timedelta(hours=1),
    envid="QQ+2B314",
    internet_message_id="<1@corp.example>",
    subject="Hello",
)
HEAD = b"Subject: Hello\r\nFrom: sender@corp.example\r\n\r\nThe body\r\n"
REPORT = RecipientReport(1, ORIGINAL.recipients[0], Action.FAILED, NOBODY, "mx.x.example [192.0.2.1]:25", NOW)
DSN_ID = dsn.dsn_message_id(ID, frozenset({1}), FAILURE)

WANTED = [
    (None, {FAILURE, DELAY}),
    ("NEVER", set()),
    ("FAILURE", {FAILURE}),
    ("success,DELAY", {SUCCESS, DELAY}),
    ("SUCCESS,FAILURE,DELAY", {SUCCESS, FAILURE, DELAY}),
]


@pytest.mark.parametrize(("notify", "expected"), WANTED)
def test_a_sender_is_told_what_it_asked_for(notify, expected):
    assert expected == {kind for kind in DsnKind if dsn.should_notify(Recipient("a@b.example", notify), kind)}


def test_only_recipients_whose_sender_wants_it_are_reported():
    found = [dsn.notifiable(ORIGINAL, (1, 2, 3), kind) for kind in (FAILURE, DELAY, SUCCESS)]
    assert [frozenset({1}), frozenset({1, 3}), frozenset({3})] == found


def test_the_null_sender_is_told_nothing():
    assert NO_ORDINALS == dsn.notifiable(replace(ORIGINAL, sender=""), (1, 3), FAILURE)


def test_the_id_is_a_uuid_that_another_server_makes_too():
    assert DSN_ID == str(uuid.UUID(DSN_ID))
    assert "61c46d8b-7240-5e67-937f-3f4f5ee19e26" == DSN_ID


def test_ids_differ_by_message_recipients_and_kind():
    others = [(MessageId("x"), {1}, FAILURE), (ID, {1, 2}, FAILURE), (ID, {1}, DELAY), (ID, {1}, FAILURE)]
    assert 4 == len({dsn.dsn_message_id(original, frozenset(ordinals), kind) for original, ordinals, kind in others})


def test_its_envelope_goes_from_nobody_to_the_sender():
    expected = Envelope(
        DSN_ID,
        "",
        (Recipient("sender@corp.example", "NEVER"),),
        NOW,
        client_name=NODE,
        internet_message_id=f"<{DSN_ID}@mx1.east.example>",
        subject="Undelivered mail returned to sender",
    )
    assert expected == dsn.envelope_for(ORIGINAL, DSN_ID, NOW, NODE)


def test_its_envelope_needs_smtputf8_where_the_sender_does():
    envelope = dsn.envelope_for(replace(ORIGINAL, sender="å@corp.example"), DSN_ID, NOW, NODE, DELAY)
    assert (True, BodyType.EIGHT_BIT_MIME) == (envelope.smtputf8, envelope.body)


STATUSES = [
    (Action.FAILED, NOBODY, "5.1.1"),
    (Action.FAILED, Reply(550, "4.4.7", "QUEUE.Expired"), "5.4.7"),
    (Action.FAILED, Reply(554, "", "No"), "5.0.0"),
    (Action.FAILED, Reply(554, "5.1.1\r\n", "No"), "5.0.0"),
    (Action.DELAYED, Reply(451, "4.4.1", "Later"), "4.4.1"),
    (Action.DELAYED, Reply(550, "5.4.1", "Later"), "4.4.1"),
    (Action.RELAYED, Reply(250, "2.1.5", "OK"), "2.1.5"),
    (Action.DELIVERED, Reply(250, "", "OK"), "2.0.0"),
]


@pytest.mark.parametrize(("action", "reply", "expected"), STATUSES)
def test_the_status_says_the_same_as_the_action(action, reply, expected):
    assert expected == replace(REPORT, action=action, reply=reply).status


def built(kind=FAILURE, original=ORIGINAL, reports=(REPORT,), head=HEAD, is_whole=True):
    return dsn.build(kind, original, reports, head, DSN_ID, node=NODE, now=NOW, is_whole=is_whole)


def parsed(content):
    message = message_from_bytes(content, policy=policy.default)
    assert [] == message.defects
    return message, list(message.iter_parts())


def fields(part):
    """The groups of message/delivery-status."""
    return [dict(group.items()) for group in part.get_payload()]


def test_its_header_is_that_of_an_automatic_answer():
    message, _ = parsed(built())
    expected = {
        "From": "Mail Delivery System <MAILER-DAEMON@mx1.east.example>",
        "To": "sender@corp.example",
        "Subject": "Undelivered mail returned to sender",
        "Date": "Sat, 21 Nov 2026 10:00:00 +0000",
        "Message-ID": f"<{DSN_ID}@mx1.east.example>",
        "Auto-Submitted": "auto-replied",
        "In-Reply-To": "<1@corp.example>",
        "References": "<1@corp.example>",
        "MIME-Version": "1.0",
        "Content-Type": f'multipart/report; report-type="delivery-status"; boundary="=_{DSN_ID}"',
        "Content-Transfer-Encoding": "7bit",
    }
    assert expected == {key: str(value).replace("<sender@corp.example>", "sender@corp.example") for key, value in message.items()}


def test_a_strange_message_id_is_not_answered_to():
    message, _ = parsed(built(original=replace(ORIGINAL, internet_message_id="<1@corp.example>\r\nBcc: x@y.example")))
    assert [None, None] == [message["In-Reply-To"], message["References"]]


def test_people_read_who_said_what():
    text = parsed(built())[1][0].get_content().replace("\r\n", "\n")
    expected = (
        "This is the mail server mx1.east.example.\n\n"
        "Your message could not be delivered to the recipients below. It will not be\ntried again.\n\n"
        "<b@x.example>\n    There is no such mailbox.\n    The server mx.x.example answered: 550 5.1.1 User unknown\n\n"
        f"Subject: Hello\nReceived: Sat, 21 Nov 2026 09:00:00 +0000, as {ID}"
    )
    assert expected == text.strip()


def test_programs_read_the_status():
    _, parts = parsed(built())
    expected = [
        {"Reporting-MTA": "dns; mx1.east.example", "Original-Envelope-Id": "QQ+314", "Arrival-Date": "Sat, 21 Nov 2026 09:00:00 +0000"},
        {
            "Final-Recipient": "rfc822; b@x.example",
            "Action": "failed",
            "Status": "5.1.1",
            "Remote-MTA": "dns; mx.x.example",
            "Diagnostic-Code": "smtp; 550 5.1.1 User unknown",
            "Last-Attempt-Date": "Sat, 21 Nov 2026 10:00:00 +0000",
        },
    ]
    assert ("message/delivery-status", expected) == (parts[1].get_content_type(), fields(parts[1]))


def test_a_delay_says_until_when_it_is_tried_and_that_this_server_says_so():
    later = Reply(451, "4.4.1", "Could not connect")
    report = RecipientReport(2, ORIGINAL.recipients[1], Action.DELAYED, later, will_retry_until=NOW + timedelta(days=2))
    _, parts = parsed(built(DELAY, replace(ORIGINAL, envid=None), (report,)))
    expected = {
        "Original-Recipient": "rfc822; C+c@y.example",
        "Final-Recipient": "rfc822; c@y.example",
        "Action": "delayed",
        "Status": "4.4.1",
        "Diagnostic-Code": "x-shadowrelay; 451 4.4.1 Could not connect",
        "Will-Retry-Until": "Mon, 23 Nov 2026 10:00:00 +0000",
    }
    assert [{"Reporting-MTA": "dns; mx1.east.example", "Arrival-Date": "Sat, 21 Nov 2026 09:00:00 +0000"}, expected] == fields(parts[1])
    text = parts[0].get_content()
    assert "This server says: 451 4.4.1 Could not connect" in text
    assert "It will be tried until Mon, 23 Nov 2026 10:00:00 +0000." in text


def test_an_original_recipient_without_a_type_is_left_out():
    report = replace(REPORT, recipient=Recipient("b@x.example", orcpt="nonsense"))
    assert "Original-Recipient" not in fields(parsed(built(reports=(report,)))[1][1])[1]


def test_a_status_without_a_meaning_of_ours_is_not_explained():
    report = replace(REPORT, reply=Reply(554, "5.9.9", "Strange"))
    assert "<b@x.example>\r\n    The server" in built(reports=(report,)).decode()


def test_good_news_has_no_explanation_of_troubles():
    report = replace(REPORT, action=Action.RELAYED, reply=Reply(250, "2.1.1", "OK"))
    assert "<b@x.example>\r\n    The server" in built(SUCCESS, reports=(report,)).decode()


RETURNED = [
    ("only the header unless all is asked for", {}, {}, "text/rfc822-headers"),
    ("only the header when only that is asked for", {"ret": "HDRS"}, {}, "text/rfc822-headers"),
    ("all when all is asked for", {"ret": "full"}, {}, "message/rfc822"),
    ("not what is not there", {"ret": "FULL"}, {"is_whole": False}, "text/rfc822-headers"),
    ("not all with a mere delay", {"ret": "FULL"}, {"kind": DELAY}, "text/rfc822-headers"),
    ("not all of 8-bit mail", {"ret": "FULL"}, {"head": HEAD + b"\xff\r\n"}, "text/rfc822-headers"),
    ("not all of large mail", {"ret": "FULL"}, {"head": HEAD + b"a\r\n" * 30_000}, "text/rfc822-headers"),
    ("mail in UTF-8", {"ret": "FULL", "sender": "å@corp.example"}, {"head": HEAD + b"\xc3\xa5\r\n"}, "message/global"),
    ("a header in UTF-8", {"sender": "å@corp.example"}, {}, "message/global-headers"),
]


@pytest.mark.parametrize(("envelope", "given", "expected"), [case[1:] for case in RETURNED], ids=[case[0] for case in RETURNED])
def test_what_of_the_original_returns(envelope, given, expected):
    content = built(original=replace(ORIGINAL, **envelope), **given)
    assert expected == message_from_bytes(content).get_payload()[2].get_content_type()


def test_the_original_returns_bit_for_bit():
    content = built(original=replace(ORIGINAL, ret="FULL"))
    start = content.index(b"Content-Type: message/rfc822\r\nContent-Transfer-Encoding: 7bit\r\n\r\n")
    assert HEAD == content[start:].split(b"\r\n\r\n", 1)[1].rsplit(f"\r\n--=_{DSN_ID}--\r\n".encode(), 1)[0]


def test_the_header_returns_without_the_body():
    content = built()
    assert content.endswith(b"\r\n\r\nSubject: Hello\r\nFrom: sender@corp.example\r\n\r\n--=_%b--\r\n" % DSN_ID.encode())


def test_a_recipient_in_utf8_is_reported_in_ascii_to_a_sender_in_ascii():
    report = replace(REPORT, recipient=Recipient("å@x.example"), reply=Reply(550, "5.1.1", "Okänd"))
    content = built(reports=(report,), head="Subject: å\r\n\r\n".encode())
    assert True is content.isascii()
    assert b"Final-Recipient: utf-8; \\x{E5}@x.example\r\n" in content


def test_a_sender_in_utf8_is_told_in_utf8():
    report = replace(REPORT, recipient=Recipient("å@x.example"), reply=Reply(550, "5.1.1", "Okänd"))
    content = built(original=replace(ORIGINAL, sender="å@corp.example"), reports=(report,))
    expected = ("To: <å@corp.example>", "report-type=global-delivery-status", "Final-Recipient: utf-8; å@x.example", "550 5.1.1 Okänd")
    assert expected == tuple(text for text in expected if text in content.decode())


def test_hostile_text_adds_no_field_and_no_line_that_is_too_long():
    evil = "x\r\nBcc: victim@y.example\r\n\r\n" + "a" * 3000
    report = RecipientReport(1, Recipient("b@x.example", None, f"rfc822;{evil}"), Action.FAILED, Reply(550, "5.1.1", evil), evil)
    content = built(original=replace(ORIGINAL, sender="a\r\nBcc: v@y.example", subject=evil, envid=evil), reports=(report,))
    lines = content.split(b"\r\n")
    assert [] == [line for line in lines if line.startswith(b"Bcc") or len(line) > 998 or b"\n" in line or b"\r" in line]


def test_thousands_of_recipients_are_all_in_the_status_and_few_in_the_text():
    reports = tuple(
        RecipientReport(n, Recipient(f"u{n}@x.example"), Action.FAILED, NOBODY._replace(text="long " * 300), "mx") for n in range(1, 5001)
    )
    content = built(reports=reports)
    assert (5000, 100) == (content.count(b"Final-Recipient: "), content.count(b"There is no such mailbox."))
    assert b"... and 4900 more recipients, listed in the next part." in content
    assert len(content) < 2_000_000


def test_the_same_inputs_make_the_same_notification():
    assert built() == built()
