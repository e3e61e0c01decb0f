"""Builds journal reports: a message to the journal recipient of a route, with the envelope of a message in its text and that message
attached, unaltered. docs/design.md 6.13. Source: msd-jr

A report is 7-bit ASCII apart from what is attached, so that no next hop has a reason to refuse it that it has not for the original. It
is never held in memory as a whole: `header_of` and `trailer_of` go around the original, which may be a file.

A report has the null sender, and is not journaled itself. One of this boundary is recognised by its Message-ID, which has its network
message id: no client can know that beforehand. One from elsewhere is recognised by its header.
"""

import base64
import re
import textwrap
import uuid
from datetime import datetime

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import BodyType, Envelope, Recipient
from shadowrelay.rules.dsn import ADDRESS_CHARACTERS_MAX, clean, encoded, field, format_date, header_block

SUBJECT_CHARACTERS_MAX = 900  # a line has at most 998 octets, RFC 5322 2.1.1

_NAMESPACE = uuid.UUID("b0a9a5a0-2f44-5e0e-9b0b-3c1c0e0f7d61")  # ours; must never change, because two servers must generate the same ids
_MARK = "X-MS-Journal-Report"  # Exchange's, which archives look for
_ENCODINGS = {BodyType.SEVEN_BIT: "7bit", BodyType.EIGHT_BIT_MIME: "8bit", BodyType.BINARY_MIME: "binary"}
_MARKED = re.compile(rb"^x-ms-journal-report[ \t]*:", re.IGNORECASE | re.MULTILINE)


def report_id(original: MessageId, journal_recipient: str) -> MessageId:
    """The same id on whichever server makes the report."""
    return MessageId(str(uuid.uuid5(_NAMESPACE, f"{original} {journal_recipient.lower()}")))


def is_journaled(envelope: Envelope) -> bool:
    """Whether reports are due, as far as the envelope shows it; see `is_report_from_elsewhere`. What is resubmitted from Safety Net was
    journaled when it was first delivered."""
    is_own_report = not envelope.sender and envelope.internet_message_id.startswith(_id_prefix(envelope.message_id))
    return not is_own_report and not envelope.resubmitted_from


def is_report_from_elsewhere(envelope: Envelope, head: bytes) -> bool:
    """`head` is the beginning of the content. The null sender alone is no proof, and the header alone could be anybody's."""
    return not envelope.sender and _MARKED.search(header_block(head)) is not None


def envelope_for(original: Envelope, journal_recipient: str, now: datetime, node: ServerName) -> Envelope:
    """From the null sender to the journal recipient, with no notices."""
    message_id = report_id(original.message_id, journal_recipient)
    is_7bit = original.body is BodyType.SEVEN_BIT and not original.smtputf8
    return Envelope(
        message_id,
        "",
        (Recipient(journal_recipient, notify="NEVER"),),
        now,
        body=original.body if original.body is BodyType.BINARY_MIME or is_7bit else BodyType.EIGHT_BIT_MIME,
        client_name=node,
        internet_message_id=f"{_id_prefix(message_id)}{node}>",
        subject=clean(original.subject)[:SUBJECT_CHARACTERS_MAX],
    )


def header_of(report: Envelope, original: Envelope, node: ServerName) -> bytes:
    """Everything before the attached original."""
    header = (
        f"From: Mail Delivery System <MAILER-DAEMON@{node}>",
        f"To: <{report.recipients[0].address}>",
        field("Subject", report.subject),
        f"Date: {format_date(report.arrived_at)}",
        f"Message-ID: {report.internet_message_id}",
        "Auto-Submitted: auto-generated",  # RFC 3834 5
        f"{_MARK}:",
        "MIME-Version: 1.0",
        f'Content-Type: multipart/mixed;\r\n boundary="{_boundary(report)}"',
        f"Content-Transfer-Encoding: {_transfer_encoding(report)}",
        "",
        "This is a journal report.",
    )
    kind = "message/global" if original.smtputf8 else "message/rfc822"  # RFC 6532 3.7
    text, charset, encoding = _text(original)
    parts = (
        f"\r\n--{_boundary(report)}\r\nContent-Type: text/plain; charset={charset}\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n",
        text,
        f"\r\n--{_boundary(report)}\r\nContent-Type: {kind}\r\nContent-Disposition: attachment\r\n"
        f"Content-Transfer-Encoding: {_transfer_encoding(report)}\r\n\r\n",
    )
    return encoded("\r\n".join(header) + "".join(parts), is_international=False)


def trailer_of(report: Envelope) -> bytes:
    """Everything after the attached original."""
    return f"\r\n--{_boundary(report)}--\r\n".encode("ascii")


def _text(original: Envelope) -> tuple[str, str, str]:
    """The first part: its text, charset and transfer encoding. A line each, so that a program can read it."""
    lines = [
        f"Sender: {_address(original.sender) or '<>'}",
        f"Subject: {clean(original.subject)[:SUBJECT_CHARACTERS_MAX]}",
        f"Message-ID: {clean(original.internet_message_id)[:SUBJECT_CHARACTERS_MAX]}",
        *[f"Recipient: {_address(recipient.address)}" for recipient in original.recipients],
    ]
    text = "\r\n".join(lines) + "\r\n"
    if text.isascii():
        return text, "us-ascii", "7bit"
    octets = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    return "\r\n".join(textwrap.wrap(octets, 76)) + "\r\n", "utf-8", "base64"


def _address(address: str) -> str:
    return clean(address)[:ADDRESS_CHARACTERS_MAX]


def _id_prefix(message_id: MessageId) -> str:
    return f"<journal.{message_id}@"


def _boundary(report: Envelope) -> str:
    return f"=_{report.message_id}"  # no client can know it beforehand and write it into the original


def _transfer_encoding(report: Envelope) -> str:
    return _ENCODINGS[report.body]
