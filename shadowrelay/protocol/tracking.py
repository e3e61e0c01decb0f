r"""Format and parse the message tracking log: header lines, and one line per event. docs/operations.md "The message tracking log".

CSV of RFC 4180 in UTF-8, lines ended by CRLF. Characters that would confuse a line-based reader are escaped before quoting:
control characters, U+2028, U+2029 and lone surrogates become `\uXXXX`, and so does a backslash before a `u`, which makes the
escape reversible. A line is therefore always a row, whatever the subject contains. `log-id` is a hash of everything before it,
so that a partial line is never taken for a whole one.
Several values in a field are joined by `;`; a `;` inside a value is written `\u003b`.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from hashlib import blake2b

from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.protocol.fields import bad_argument, format_instant, parse_instant

FIELDS = (
    "date-time", "client-ip", "client-hostname", "server-ip", "server-hostname", "source-context", "connector-id", "source",
    "event-id", "internal-message-id", "message-id", "network-message-id", "recipient-address", "recipient-status",
    "total-bytes", "recipient-count", "related-recipient-address", "reference", "message-subject", "sender-address",
    "return-path", "message-info", "directionality", "tenant-id", "original-client-ip", "original-server-ip", "custom-data",
    "transport-traffic-type", "log-id", "schema-version",
)  # fmt: skip
"""Exchange 2016/2019, in their order. Source: exchange-facts 2.1 [LOGDOC]."""

SCHEMA_VERSION = "1.0"  # of these rows; changes when the meaning of a field changes
NULL_PATH = "<>"  # return-path is never empty. Source: exchange-facts 2.1 [MSD-MT]

_TO_ESCAPE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|\\\\(?=u)")
_IN_LIST = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff;]|\\\\(?=u)")
_IN_KEY = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff;=]|\\\\(?=u)")
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})")
_COUNTER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(?=,|\Z)')
_RECIPIENTS, _STATUSES, _CUSTOM = (FIELDS.index(name) for name in ("recipient-address", "recipient-status", "custom-data"))


def format_header(version: str, at: datetime) -> bytes:
    """The five lines at the top of each file. `version` is that of this program."""
    lines = (
        "#Software: shadowrelay",
        f"#Version: {version}",
        "#Log-type: Message Tracking Log",  # lower-case t, as in real files
        f"#Date: {format_instant(at)}",
        f"#Fields: {','.join(FIELDS)}",
        "",
    )
    return "\r\n".join(lines).encode("utf-8")


def format_line(event: TrackingEvent) -> bytes:
    """One whole line with its CRLF.

    Shapes: a single empty recipient or status is parsed as none. Fast, because it runs six times per message:
    a usual row is checked as a whole, and only one that needs escaping is processed field by field.
    """
    recipients, statuses = event.recipients, event.recipient_statuses
    recipient_text = recipients[0] if len(recipients) == 1 else ";".join(recipients)
    status_text = statuses[0] if len(statuses) == 1 else ";".join(statuses)
    sender = event.sender
    custom = ""
    for key, value in event.custom_data:
        custom += f";S:{key}={value}" if custom else f"S:{key}={value}"
    row = [
        format_instant(event.at),
        event.client_ip,
        event.client_hostname,
        event.server_ip,
        event.server_hostname,
        event.source_context,
        event.connector_id,
        event.source,
        event.event,
        str(event.internal_message_id),
        event.message_id,
        event.network_message_id,
        recipient_text,
        status_text,
        str(event.total_bytes),
        str(len(recipients)),
        "",
        event.reference,
        event.subject,
        sender,
        sender or NULL_PATH,
        event.message_info,
        "Originating" if event.source is EventSource.DSN else "Incoming",
        "",
        event.original_client_ip,
        "",
        custom,
        "Email",
    ]
    line = ",".join(row)
    if (
        not line.isprintable()
        or "\\u" in line
        or recipient_text.count(";") >= (len(recipients) or 1)
        or status_text.count(";") >= (len(statuses) or 1)
        or custom.count(";") >= (len(event.custom_data) or 1)
        or custom.count("=") > len(event.custom_data)
    ):
        row = _escaped_row(row, event)
        line = ",".join(row)
    if line.count(",") != len(row) - 1 or '"' in line:
        line = ",".join([_quoted(text) for text in row])
    octets = f"{line},".encode()
    return octets + f"{_log_id(octets)},{SCHEMA_VERSION}\r\n".encode()


def _log_id(octets: bytes) -> str:
    digest = blake2b(octets, digest_size=16).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def _quoted(text: str) -> str:
    if '"' in text:
        return '"' + text.replace('"', '""') + '"'
    return f'"{text}"' if "," in text else text


def _escape(text: str, pattern: re.Pattern[str] = _TO_ESCAPE) -> str:
    return pattern.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _escaped_row(row: Sequence[str], event: TrackingEvent) -> list[str]:
    escaped = [_escape(text) for text in row]
    escaped[_RECIPIENTS] = ";".join([_escape(text, _IN_LIST) for text in event.recipients])
    escaped[_STATUSES] = ";".join([_escape(text, _IN_LIST) for text in event.recipient_statuses])
    escaped[_CUSTOM] = ";".join([f"S:{_escape(key, _IN_KEY)}={_escape(value, _IN_LIST)}" for key, value in event.custom_data])
    return escaped


def parse_line(line: bytes) -> TrackingEvent:
    """Inverse of `format_line`, for one whole line; padding spaces before the CRLF are ignored.

    Raises: WireError 501 5.5.4, also for a torn line, whose log-id does not match.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise bad_argument("Bad tracking line") from None
    row = _split(text[:-2].rstrip(" ")) if text.endswith("\r\n") else []
    if len(row) != len(FIELDS) or row[-1] != SCHEMA_VERSION:
        raise bad_argument("Bad tracking line")
    tail = f"{row[-2]},{row[-1]}"
    if _log_id(line[: line.rindex(tail.encode("utf-8"))]) != row[-2]:
        raise bad_argument("Bad log-id")
    recipients = _items(row[_RECIPIENTS])
    if str(len(recipients)) != row[15] or row[20] != (row[19] or NULL_PATH):
        raise bad_argument("Bad tracking line")
    try:
        return TrackingEvent(
            at=parse_instant(row[0]),
            event=EventId(row[8]),
            source=EventSource(row[7]),
            internal_message_id=_number(row[9]),
            network_message_id=_unescape(row[11]),
            message_id=_unescape(row[10]),
            client_ip=_unescape(row[1]),
            client_hostname=_unescape(row[2]),
            server_ip=_unescape(row[3]),
            server_hostname=_unescape(row[4]),
            source_context=_unescape(row[5]),
            connector_id=_unescape(row[6]),
            recipients=recipients,
            recipient_statuses=_items(row[_STATUSES]),
            total_bytes=_number(row[14]),
            reference=_unescape(row[17]),
            subject=_unescape(row[18]),
            sender=_unescape(row[19]),
            message_info=_unescape(row[21]),
            original_client_ip=_unescape(row[24]),
            custom_data=_pairs(row[_CUSTOM]),
        )
    except ValueError:  # an unknown event or source
        raise bad_argument("Bad tracking line") from None


def _split(text: str) -> list[str]:
    """The fields of one line; empty if it is not CSV."""
    fields: list[str] = []
    end = 0
    while True:
        found = _FIELD.match(text, end)
        if found is None:
            return []
        fields.append(found[2] if found[1] is None else found[1].replace('""', '"'))
        end = found.end() + 1
        if end > len(text):
            return fields


def _items(text: str) -> tuple[str, ...]:
    return tuple(map(_unescape, text.split(";"))) if text else ()


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in text.split(";") if text else ():
        key, equals, value = item.removeprefix("S:").partition("=")
        if not equals or not item.startswith("S:"):
            raise bad_argument("Bad custom-data")
        pairs.append((_unescape(key), _unescape(value)))
    return tuple(pairs)


def _number(text: str) -> int:
    if _COUNTER.fullmatch(text) is None:
        raise bad_argument("Bad tracking line")
    return int(text)
