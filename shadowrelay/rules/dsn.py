"""Builds delivery status notifications (DSNs), and the trace headers of promoted and resubmitted messages. RFC 3461, 3464, 6522.

RFC 3461 (who is notified of what), 6522 (multipart/report), 3464 (its machine-readable part), 6533 (UTF-8), 3834; the header: viktgin.
A notification is 7-bit ASCII, so that no next hop has a reason to refuse it, unless its own recipient's address needs
SMTPUTF8. The whole original is returned only if the same is true of it.

The texts come from untrusted sources: control characters are removed, and no line exceeds the limit of mail. The names in the
header come from other servers: only characters of host names are kept.
"""

import re
import textwrap
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, BodyType, Envelope, Ordinals, Recipient
from shadowrelay.model.printable import printable
from shadowrelay.model.replies import Reply
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.fields import decode_xtext, format_ordinals

NAME_OCTETS_MAX = 255  # RFC 5321 4.5.3.1.2

_NOT_NAME = re.compile(r"[^A-Za-z0-9._:\[\]-]")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def format_date(at: datetime) -> str:
    """RFC 5322 3.3, always UTC, whatever the locale. `at` must be aware."""
    at = at.astimezone(UTC)
    return f"{_DAYS[at.weekday()]}, {at.day} {_MONTHS[at.month - 1]} {at.year:04} {at.hour:02}:{at.minute:02}:{at.second:02} +0000"


def promotion_header(old_primary: ServerName, new_primary: ServerName, message_id: MessageId, now: datetime) -> bytes:
    """One folded `Received:` field with its CRLF, ASCII, no line over 600 octets. It says on whose word rests which client the lines below
    it name: this server never saw that one. docs/security.md"""
    lines = (
        f"Received: from {_named(old_primary)} by {_named(new_primary)}",
        f"\twith ShadowRedundancy id {_named(message_id)}",
        f"\t(client said by {_named(old_primary)});",
        f"\t{format_date(now)}",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def resubmission_header(node: ServerName, message_id: MessageId, original: MessageId, request: int, now: datetime) -> bytes:
    """The same for a message that was made from one in Safety Net."""
    lines = (
        f"Received: from {_named(node)} by {_named(node)}",
        f"\twith SafetyNet id {_named(message_id)}",
        f"\t(resubmitted {_named(original)} request {request});",
        f"\t{format_date(now)}",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def _named(name: str) -> str:
    return _NOT_NAME.sub("?", name[:NAME_OCTETS_MAX]) or "unknown"


RETURNED_OCTETS_MAX = 64 * 1024  # of the original: a notification must not be a way to send content to third parties
LINE_OCTETS_MAX = 998  # RFC 5322 2.1.1
FOLD_COLUMN = 76
WORD_CHARACTERS_MAX = 200  # a longer word is broken; 4 octets each in UTF-8 stay under the line's limit
ADDRESS_CHARACTERS_MAX = 600  # RFC 3461 4.2: ORCPT is at most 500 octets

_LONG_WORD = re.compile(rf"(\S{{{WORD_CHARACTERS_MAX}}})(?=\S)")
_NOT_ASCII = re.compile(r"[^ -~\r\n]")
_NOT_ASCII_OCTET = re.compile(rb"[\x80-\xff]")
_NOT_PLAIN = re.compile(r"[^ -~]|[\\+=]")
_NOT_PLAIN_UNITEXT = re.compile(r"[\\+=]")
_EMBEDDED = re.compile(r"\\x\{([0-9A-Fa-f]{2,6})\}")  # RFC 6533 3, EmbeddedUnicodeChar
_LONG_LINE = re.compile(rb"^([^\r\n]{%d})[^\r\n]+" % LINE_OCTETS_MAX, re.MULTILINE)  # anchored: linear


def clean(text: str) -> str:
    """As a header field takes it."""
    return printable(text).strip()


def field(name: str, value: str) -> str:
    """One header field, folded, without its last line end. RFC 5322 2.2.3"""
    return wrapped(f"{name}: {clean(value)}", "", " ")


def wrapped(text: str, first: str, later: str) -> str:
    """Lines of about 76 characters, each with its indent. Only words over `WORD_CHARACTERS_MAX` are broken."""
    lines = textwrap.wrap(
        _LONG_WORD.sub(r"\1 ", text),
        FOLD_COLUMN,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\r\n".join(lines)


def encoded(text: str, *, is_international: bool) -> bytes:
    """UTF-8, or ASCII with a question mark for every other character."""
    return text.encode("utf-8") if is_international else _NOT_ASCII.sub("?", text).encode("ascii")


def plain_address(address: str, *, is_international: bool) -> str:
    """utf-8-addr-unitext, or utf-8-addr-xtext where only ASCII is allowed: 大 is \\x{5927}. RFC 6533 3"""
    address = clean(address)[:ADDRESS_CHARACTERS_MAX]
    if is_international or address.isascii():
        return address
    return _NOT_PLAIN.sub(_embedded, address)


def typed_address(address: str, *, is_international: bool) -> str:
    """The value of Final-Recipient. RFC 3464 2.1.2, RFC 6533 3"""
    kind = "rfc822" if address.isascii() else "utf-8"
    return f"{kind}; {plain_address(address, is_international=is_international)}"


def original_address(orcpt: str, *, is_international: bool) -> str:
    """The value of Original-Recipient, from ORCPT as received; empty if it is invalid. RFC 3461 4.2, RFC 6533 3"""
    kind, separator, address = orcpt.partition(";")
    if not separator:
        return ""
    if kind.lower() != "utf-8":
        return f"{clean(kind)[:40]}; {from_xtext(address)}"
    decoded = clean(_EMBEDDED.sub(_character, address))[:ADDRESS_CHARACTERS_MAX]
    pattern = _NOT_PLAIN_UNITEXT if is_international else _NOT_PLAIN
    return "utf-8; " + pattern.sub(_embedded, decoded)


def _embedded(found: re.Match[str]) -> str:
    return f"\\x{{{ord(found[0]):X}}}"


def _character(found: re.Match[str]) -> str:
    number = int(found[1], 16)
    return chr(number) if number < 0xD800 or 0xDFFF < number <= 0x10FFFF else found[0]  # a surrogate is no character


def from_xtext(text: str) -> str:
    """Decode xtext; lenient, because the result is only displayed."""
    octets = decode_xtext(text.encode("utf-8", "replace"))
    return clean(octets.decode("utf-8", "replace"))[:ADDRESS_CHARACTERS_MAX]


def header_block(content: bytes) -> bytes:
    """Everything before the first empty line, with the CRLF of its last line.

    Shapes: empty when the content begins with an empty line; at most 64 KiB, cut after a line.
    """
    if content.startswith(b"\r\n"):
        return b""
    end = content.find(b"\r\n\r\n", 0, RETURNED_OCTETS_MAX)
    if end < 0:
        end = content.rfind(b"\r\n", 0, RETURNED_OCTETS_MAX)
    return content[: end + 2] if end >= 0 else b""


def returned_header(head: bytes, *, is_international: bool) -> bytes:
    """The original's header; longer lines are cut. `head` is the beginning of the original, or all of it."""
    block = _LONG_LINE.sub(rb"\1", header_block(head))
    if is_international:
        return block.decode("utf-8", "replace").encode("utf-8")
    return _NOT_ASCII_OCTET.sub(b"?", block)


def may_return_whole(content: bytes, *, is_international: bool) -> bool:
    """Small, with lines that any server accepts, and 7-bit unless the notification is not."""
    if len(content) > RETURNED_OCTETS_MAX or _LONG_LINE.search(content):
        return False
    return is_international or content.isascii()


EXPLAINED_RECIPIENTS_MAX = 100  # in the human-readable part; the machine-readable one has all
DIAGNOSTIC_CHARACTERS_MAX = 1000
DIAGNOSTIC_CHARACTERS_MANY = 100  # beyond 100 recipients; 5,000 of them make about 2 MB

_NAMESPACE = uuid.UUID("5f1c3c1e-7f0b-5d53-9a0e-6b1f6b2d7a90")  # ours; must never change, because two servers must generate the same ids
_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_STATUS = re.compile(r"[245]\.\d{1,3}\.\d{1,3}", re.ASCII)


class DsnKind(StrEnum):
    """The keywords of NOTIFY. RFC 3461 4.1"""

    FAILURE = "FAILURE"
    DELAY = "DELAY"
    SUCCESS = "SUCCESS"


class Action(StrEnum):
    """RFC 3464 2.3.3; without `expanded`, which is for mailing lists."""

    FAILED = "failed"
    DELAYED = "delayed"
    DELIVERED = "delivered"
    RELAYED = "relayed"  # to a server that does not support DSN


_DEFAULT_NOTIFY = frozenset({DsnKind.FAILURE, DsnKind.DELAY})  # RFC 3461 4.1: at least FAILURE
_STATUS_CLASS = {Action.FAILED: "5", Action.DELAYED: "4"}  # all others: 2
_SUBJECTS = {
    DsnKind.FAILURE: "Undelivered mail returned to sender",
    DsnKind.DELAY: "Delayed mail (still being tried)",
    DsnKind.SUCCESS: "Successful mail delivery report",
}
_INTRODUCTIONS = {
    DsnKind.FAILURE: "Your message could not be delivered to the recipients below. It will not be tried again.",
    DsnKind.DELAY: "Your message could not be delivered yet to the recipients below. It is still being tried: do not send it again.",
    DsnKind.SUCCESS: "Your message was delivered to the recipients below, or passed on to a server that makes no further reports.",
}
_MEANINGS = {  # RFC 3463: the last two numbers of a status
    "1.1": "There is no such mailbox.",
    "1.2": "The domain does not exist, or takes no mail.",
    "1.10": "The domain does not accept mail.",
    "2.1": "The mailbox is disabled.",
    "2.2": "The mailbox is full.",
    "3.4": "The message is too large.",
    "4.1": "The server could not be reached.",
    "4.2": "The connection to the server was lost.",
    "4.6": "The message went in circles.",
    "4.7": "The time for trying is over.",
    "7.1": "The server refused the message by its policy.",
}


@dataclass(frozen=True, slots=True)
class RecipientReport:
    """The outcome for one recipient. `remote_mta` is the server that gave `reply`, as in a `DeliveryReport`; empty: this node."""

    ordinal: int
    recipient: Recipient
    action: Action
    reply: Reply
    remote_mta: str = ""
    last_attempt_at: datetime | None = None
    will_retry_until: datetime | None = None

    @property
    def status(self) -> str:
        """RFC 3463; its class follows the action: a failed recipient that expired with 4.4.7 gets 5.4.7."""
        detail = self.reply.enhanced[1:] if _STATUS.fullmatch(self.reply.enhanced) else ".0.0"
        return _STATUS_CLASS.get(self.action, "2") + detail


def should_notify(recipient: Recipient, kind: DsnKind) -> bool:
    """As NOTIFY requests; without it, for failures and delays. RFC 3461 4.1"""
    if recipient.notify is None:
        return kind in _DEFAULT_NOTIFY
    return kind.value in {word.strip() for word in recipient.notify.upper().split(",")}


def without_delay(recipient: Recipient) -> Recipient:
    """The same, of whose delay the sender is told no more."""
    words = [kind.value for kind in DsnKind if kind is not DsnKind.DELAY and should_notify(recipient, kind)]
    return replace(recipient, notify=",".join(words) or "NEVER") if should_notify(recipient, DsnKind.DELAY) else recipient


def notifiable(original: Envelope, ordinals: Iterable[int], kind: DsnKind) -> Ordinals:
    """Those of `ordinals` that the sender is notified of; none for the null sender: no DSN for a DSN (RFC 5321 6.1), and none
    for a bare `Postmaster`, which earlier versions accepted from any client with any sender."""
    if not original.sender:
        return NO_ORDINALS
    recipients = original.recipients
    return frozenset(
        ordinal for ordinal in ordinals if "@" in recipients[ordinal - 1].address and should_notify(recipients[ordinal - 1], kind)
    )


def dsn_message_id(original: MessageId, ordinals: Ordinals, kind: DsnKind) -> MessageId:
    """The same id on whichever server builds the notification."""
    return MessageId(str(uuid.uuid5(_NAMESPACE, f"{original} {kind.value} {format_ordinals(ordinals)}")))


def envelope_for(
    original: Envelope,
    dsn_id: MessageId,
    now: datetime,
    node: ServerName,
    kind: DsnKind = DsnKind.FAILURE,
    *,
    is_for_stranger: bool = False,
) -> Envelope:
    """From the null sender to the original's sender, which must not be null itself. `is_for_stranger`: it names the client that it is for,
    because such a notification does not go everywhere (`strangers.reach`)."""
    is_international = not original.sender.isascii()
    return Envelope(
        dsn_id,
        "",
        (Recipient(original.sender, notify="NEVER"),),  # RFC 3461 6.2: nothing else is allowed here
        now,
        body=BodyType.EIGHT_BIT_MIME if is_international else BodyType.SEVEN_BIT,
        smtputf8=is_international,
        client_name=node,
        client_address=original.client_address if is_for_stranger else "",
        connector=original.connector if is_for_stranger else "",
        internet_message_id=f"<{dsn_id}@{node}>",
        subject=_SUBJECTS[kind],
    )


def build(
    kind: DsnKind,
    original: Envelope,
    reports: Sequence[RecipientReport],
    head: bytes,
    dsn_id: MessageId,
    *,
    node: ServerName,
    now: datetime,
    is_whole: bool,
) -> bytes:
    """The notification's content, CRLF throughout.

    Shapes: `reports` not empty; `head` is the beginning of the original with its header, all of the original if `is_whole`.
    """
    is_international = not original.sender.isascii()
    encoding = "8bit" if is_international else "7bit"
    status_type = "global-delivery-status" if is_international else "delivery-status"
    header = [
        f"From: Mail Delivery System <MAILER-DAEMON@{node}>",
        f"To: <{clean(original.sender)}>",
        f"Subject: {_SUBJECTS[kind]}",
        f"Date: {format_date(now)}",
        f"Message-ID: <{dsn_id}@{node}>",
        "Auto-Submitted: auto-replied",  # RFC 3834 5
    ]
    if _ID.fullmatch(original.internet_message_id):
        header += [f"In-Reply-To: {original.internet_message_id}", f"References: {original.internet_message_id}"]
    header += [
        "MIME-Version: 1.0",
        f'Content-Type: multipart/report; report-type={status_type};\r\n boundary="=_{dsn_id}"',
        f"Content-Transfer-Encoding: {encoding}",
        "",
        "This is a delivery status notification.",
    ]
    explanation = "\r\n".join(_explanation(kind, original, reports, node, is_international))
    parts = (
        (
            f"text/plain; charset={'utf-8' if is_international else 'us-ascii'}",
            encoded(explanation, is_international=is_international),
        ),
        (f"message/{status_type}", _status_part(original, reports, node, is_international)),
        _returned(kind, original, head, is_whole, is_international),
    )
    pieces = [encoded("\r\n".join(header), is_international=is_international)]
    for content_type, body in parts:
        pieces += (
            f"\r\n--=_{dsn_id}\r\nContent-Type: {content_type}\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n".encode("ascii"),
            body,
        )
    pieces.append(f"\r\n--=_{dsn_id}--\r\n".encode("ascii"))
    return b"".join(pieces)


def _explanation(
    kind: DsnKind, original: Envelope, reports: Sequence[RecipientReport], node: ServerName, is_international: bool
) -> list[str]:
    """The human-readable part."""
    lines = [wrapped(f"This is the mail server {node}.", "", ""), "", wrapped(_INTRODUCTIONS[kind], "", ""), ""]
    for report in reports[:EXPLAINED_RECIPIENTS_MAX]:
        lines.append(f"<{plain_address(report.recipient.address, is_international=is_international)}>")
        if report.action in _STATUS_CLASS and (meaning := _MEANINGS.get(report.status[2:])):
            lines.append(f"    {meaning}")
        who = f"The server {_host(report.remote_mta)} answered" if report.remote_mta else "This server says"
        lines.append(wrapped(f"{who}: {_diagnostic(report.reply, DIAGNOSTIC_CHARACTERS_MAX)}", "    ", "    "))
        if report.will_retry_until is not None:
            lines.append(f"    It will be tried until {format_date(report.will_retry_until)}.")
        lines.append("")
    if len(reports) > EXPLAINED_RECIPIENTS_MAX:
        lines += [f"... and {len(reports) - EXPLAINED_RECIPIENTS_MAX} more recipients, listed in the next part.", ""]
    lines.append(wrapped(f"Subject: {clean(original.subject)}", "", "    "))
    lines.append(f"Received: {format_date(original.arrived_at)}, as {original.message_id}")
    return lines


def _status_part(original: Envelope, reports: Sequence[RecipientReport], node: ServerName, is_international: bool) -> bytes:
    """The machine-readable part. RFC 3464 2.2, 2.3: groups of fields with an empty line between them."""
    first = [f"Reporting-MTA: dns; {node}"]
    if original.envid:
        first.append(field("Original-Envelope-Id", from_xtext(original.envid)))
    first.append(f"Arrival-Date: {format_date(original.arrived_at)}")
    limit = DIAGNOSTIC_CHARACTERS_MAX if len(reports) <= EXPLAINED_RECIPIENTS_MAX else DIAGNOSTIC_CHARACTERS_MANY
    groups = [first, *(_recipient_fields(report, limit, is_international) for report in reports)]
    whole = "\r\n\r\n".join("\r\n".join(group) for group in groups)
    return encoded(whole + "\r\n", is_international=is_international)


def _recipient_fields(report: RecipientReport, diagnostic_characters_max: int, is_international: bool) -> list[str]:
    fields = []
    if report.recipient.orcpt and (address := original_address(report.recipient.orcpt, is_international=is_international)):
        fields.append(f"Original-Recipient: {address}")
    fields += [
        f"Final-Recipient: {typed_address(report.recipient.address, is_international=is_international)}",
        f"Action: {report.action.value}",
        f"Status: {report.status}",
    ]
    if report.remote_mta:
        fields.append(field("Remote-MTA", f"dns; {_host(report.remote_mta)}"))
    kind = "smtp" if report.remote_mta else "x-shadowrelay"  # RFC 3464 2.3.6: smtp is for replies of SMTP servers
    fields.append(field("Diagnostic-Code", f"{kind}; {_diagnostic(report.reply, diagnostic_characters_max)}"))
    if report.last_attempt_at is not None:
        fields.append(f"Last-Attempt-Date: {format_date(report.last_attempt_at)}")
    if report.will_retry_until is not None:
        fields.append(f"Will-Retry-Until: {format_date(report.will_retry_until)}")
    return fields


def _returned(kind: DsnKind, original: Envelope, head: bytes, is_whole: bool, is_international: bool) -> tuple[str, bytes]:
    """Type and body of the third part. The whole original only for a failure: until then the sender has it. RFC 3461 6.2"""
    is_wanted = kind is DsnKind.FAILURE and (original.ret or "").upper() == "FULL"
    if is_wanted and is_whole and original.body is not BodyType.BINARY_MIME and may_return_whole(head, is_international=is_international):
        return "message/global" if is_international else "message/rfc822", head
    header = returned_header(head, is_international=is_international)
    return "message/global-headers" if is_international else "text/rfc822-headers", header


def _diagnostic(reply: Reply, characters_max: int) -> str:
    return clean(str(reply))[:characters_max]


def _host(server: str) -> str:
    """The name in "name [address]:port"."""
    return clean(server).partition(" ")[0][:255]
