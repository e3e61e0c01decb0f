r"""The rows of the message tracking log: one function for each event builds a row; then the text of a line. docs/operations.md "The message
tracking log".

On the primary server client-hostname is the client at RECEIVE and this server afterwards; server-hostname is this server,
the shadow server, or the next hop. On the shadow server client-hostname is the primary and server-hostname this server.
Everything here is on the hot path (about six rows per message): nothing is formatted unless needed.
Durations inside custom-data are seconds with six digits; instants have microseconds.
`size` overrides the size of the stored message.

Lines are CSV of RFC 4180 in UTF-8, ended by CRLF. Characters that would confuse a line-based reader are escaped before quoting:
control characters, U+2028, U+2029 and lone surrogates become `\uXXXX`, and so does a backslash before a `u`, which makes the
escape reversible. A line is therefore always a row, whatever the subject contains. `log-id` is a hash of everything before it,
so that a partial line is never taken for a whole one.
Several values in a field are joined by `;`; a `;` inside a value is written `\u003b`.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from itertools import pairwise
from operator import itemgetter

from shadowrelay.model.ids import NO_MESSAGE, NO_SERVER, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Envelope, Ordinals
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import GeneratedMessage, Origin, StoredMessage
from shadowrelay.model.replies import Reply
from shadowrelay.model.tracking import Acknowledged, EventId, EventSource, Replication, ResubmitReason, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.protocol.fields import bad_argument, format_instant, parse_instant

CustomData = tuple[tuple[str, str], ...]

NO_SUITABLE_SHADOW_SERVERS = "No suitable shadow servers"  # Exchange's wording: docs/sources.md "elastic"
JOURNAL_REPORT = "JournalReport"
ORIGINAL_CLIENT = "OriginalClient"  # key of custom-data
KEPT_AS = "shadow kept as "  # source-context of SEND: relayed by TRACK, and the id of the kept shadow
DELAYED = "delayed: "  # source-context of RECEIVE: the 250 waited, and what ended the wait
EXPIRED = Reply(550, "4.4.7", "QUEUE.Expired; message expired")  # docs/sources.md "msd-mt"


def haredirect(
    node: ServerName,
    stored: StoredMessage,
    *,
    at: datetime,
    server: ServerName,
    elapsed: timedelta,
    size: int | None = None,
    shared_fate: str = "",
) -> TrackingEvent:
    """Primary: the shadow copy is on `server`. Written before RECEIVE, and again for each later placement. `shared_fate`: what keeps it
    from being redundant."""
    custom_data: CustomData = (("ShadowElapsed", f"{elapsed.total_seconds():.6f}"),)
    if shared_fate:
        custom_data += (("SharedFate", shared_fate),)
    return _row(
        at, EventId.HAREDIRECT, EventSource.SMTP, stored.envelope, stored.internal_id, _size(stored) if size is None else size,
        client=node, server=server, custom_data=custom_data,
    )  # fmt: skip


def haredirectfail(
    node: ServerName, stored: StoredMessage, *, at: datetime, reason: str = NO_SUITABLE_SHADOW_SERVERS, size: int | None = None
) -> TrackingEvent:
    """Primary: no shadow copy could be made, and why. Written before RECEIVE, or before the client is refused."""
    # server-hostname is this server and client-hostname empty, as in Exchange's own rows: docs/sources.md "elastic"
    return _row(
        at, EventId.HAREDIRECTFAIL, EventSource.SMTP, stored.envelope, stored.internal_id, _size(stored) if size is None else size,
        server=node, context=reason,
    )  # fmt: skip


def receive(
    node: ServerName,
    stored: StoredMessage,
    *,
    at: datetime,
    replication: Replication,
    ack_elapsed: timedelta,
    shadow_elapsed: timedelta | None = None,
    size: int | None = None,
    copies: tuple[int, int] = (0, 1),
    previous_hop: ServerName = NO_SERVER,
    shared_fate: Sequence[ServerName] = (),
) -> TrackingEvent:
    """Primary: acknowledged to the client. Both times count from the end of the content; `None` where there is no copy. `copies`: made
    and wanted, told where more than one is wanted. `previous_hop`: it relayed the message, and keeps the shadow (`TRACK`). `shared_fate`:
    servers whose copies are not redundant."""
    custom_data: CustomData = (("Replication", replication), ("AckElapsed", f"{ack_elapsed.total_seconds():.6f}"))
    if shadow_elapsed is not None:
        custom_data += (("ShadowElapsed", f"{shadow_elapsed.total_seconds():.6f}"),)
    if copies[1] > 1:
        custom_data += (("Copies", f"{copies[0]}/{copies[1]}"),)
    if previous_hop:
        custom_data += (("ShadowAt", previous_hop),)
    if shared_fate:
        custom_data += (("SharedFate", "|".join(shared_fate)),)
    envelope = stored.envelope
    if envelope.original_client:
        custom_data += ((ORIGINAL_CLIENT, envelope.original_client),)
    if envelope.filtered:
        custom_data += (("Filter", envelope.filtered),)
    return _row(
        at, EventId.RECEIVE, EventSource.SMTP, envelope, stored.internal_id, _size(stored) if size is None else size,
        client=envelope.client_name, client_ip=envelope.client_address, server=node,
        connector=f"{node}\\{envelope.connector}" if envelope.connector else "", custom_data=custom_data,
        reference=envelope.relayed_from if previous_hop else "",
    )  # fmt: skip


def acknowledged_late(received: TrackingEvent, *, at: datetime, how: Acknowledged, ack_elapsed: timedelta) -> TrackingEvent:
    """The row RECEIVE of a delayed acknowledgement: as `receive` made it when the message was committed, but of the instant of the 250, and
    with what it had waited for."""
    said = dict(received.custom_data)
    said |= {
        "Replication": Replication.SUCCESS if how.is_safe else Replication.FAILED,
        "AckElapsed": f"{ack_elapsed.total_seconds():.6f}",
    }
    return replace(received, at=at, source_context=f"{DELAYED}{how}", custom_data=tuple(said.items()))


def hareceive(node: ServerName, envelope: Envelope, *, at: datetime, primary: ServerName, size: int, internal_id: int = 0) -> TrackingEvent:
    """Shadow: the copy of `primary` is stored."""
    return _row(at, EventId.HARECEIVE, EventSource.SMTP, envelope, internal_id, size, client=primary, server=node)


def hadiscard(
    node: ServerName,
    message_id: MessageId,
    *,
    at: datetime,
    primary: ServerName,
    envelope: Envelope | None = None,
    ordinals: Ordinals = NO_ORDINALS,
    status: str = "delivered",
    internal_id: int = 0,
    is_kept: bool = False,
) -> TrackingEvent:
    """Shadow: discarded, because the primary was done with all recipients, or with `ordinals`.

    Shapes: without `envelope` the row has no recipients, which means all; `ordinals` need an envelope. `status` is that of
    the discard notification, for source-context. `is_kept`: this node had relayed the message to `primary` (`TRACK`).
    """
    if envelope is None:
        assert not ordinals, "a row about some recipients has to name them"
        return TrackingEvent(
            at, EventId.HADISCARD, EventSource.SMTP, internal_id, message_id,
            client_hostname=primary, server_hostname=node, source_context=status,
        )  # fmt: skip
    return _row(
        at, EventId.HADISCARD, EventSource.SMTP, envelope, internal_id, 0,
        ordinals=ordinals, client=primary, server=node, context=status, reference=envelope.relayed_from if is_kept else "",
    )  # fmt: skip


def transfer(
    node: ServerName, stored: StoredMessage, *, at: datetime, next_hop: str, ordinals: Ordinals, size: int | None = None
) -> TrackingEvent:
    """Primary: a fork was made: these recipients share `next_hop`. One row per fork."""
    return _row(
        at, EventId.TRANSFER, EventSource.ROUTING, stored.envelope, stored.internal_id, _size(stored) if size is None else size,
        ordinals=ordinals, server=node, context=next_hop,
    )  # fmt: skip


def send(
    node: ServerName,
    stored: StoredMessage,
    *,
    at: datetime,
    server: str,
    replies: Mapping[int, Reply],
    external: bool,
    elapsed: timedelta,
    next_hop: str = "",
    size: int | None = None,
    kept: MessageId = NO_MESSAGE,
    session: CustomData = (),
) -> TrackingEvent:
    """Primary: `server` ("name [address]:port") accepted the recipients in `replies` (all of them positive). `kept`: this node relayed them
    as this message, and keeps it as the shadow of `server` (`TRACK`)."""
    event = EventId.SENDEXTERNAL if external else EventId.SEND
    context = f"{KEPT_AS}{kept}" if kept else ""
    return _attempt(
        event,
        EventSource.SMTP,
        node,
        stored,
        at,
        server,
        replies,
        _size(stored) if size is None else size,
        elapsed,
        next_hop,
        context,
        session,
    )


def defer(
    node: ServerName,
    stored: StoredMessage,
    *,
    at: datetime,
    server: str,
    replies: Mapping[int, Reply],
    elapsed: timedelta = timedelta(0),
    source: EventSource = EventSource.SMTP,
    next_hop: str = "",
    context: str = "",
    size: int | None = None,
    session: CustomData = (),
) -> TrackingEvent:
    """Primary: the attempt failed for now for the recipients in `replies`; `source` is what failed (SMTP, DNS, ROUTING)."""
    return _attempt(
        EventId.DEFER,
        source,
        node,
        stored,
        at,
        server,
        replies,
        _size(stored) if size is None else size,
        elapsed,
        next_hop,
        context,
        session,
    )


def fail(
    node: ServerName,
    stored: StoredMessage,
    *,
    at: datetime,
    server: str,
    replies: Mapping[int, Reply],
    elapsed: timedelta = timedelta(0),
    source: EventSource = EventSource.SMTP,
    next_hop: str = "",
    context: str = "",
    size: int | None = None,
    session: CustomData = (),
) -> TrackingEvent:
    """Primary: the recipients in `replies` failed for good."""
    return _attempt(
        EventId.FAIL,
        source,
        node,
        stored,
        at,
        server,
        replies,
        _size(stored) if size is None else size,
        elapsed,
        next_hop,
        context,
        session,
    )


def duplicate(
    node: ServerName, stored: StoredMessage, *, at: datetime, ordinals: Ordinals, first: MessageId, size: int | None = None
) -> TrackingEvent:
    """Primary: not delivered to these recipients, to whom the same message was delivered as `first`."""
    return _row(
        at, EventId.DUPLICATEDELIVER, EventSource.SMTP, stored.envelope, stored.internal_id, _size(stored) if size is None else size,
        ordinals=ordinals, client=node, server=node, context=f"delivered as {first}", reference=first,
    )  # fmt: skip


def dsn(
    node: ServerName, envelope: Envelope, *, at: datetime, original: Envelope, action: str, size: int, internal_id: int = 0
) -> TrackingEvent:
    """Primary: a delivery status notification about `original` was made; `envelope` is the notification's own.

    `action` is RFC 3464's: failed, delayed, delivered, relayed.
    """
    return _row(
        at, EventId.DSN, EventSource.DSN, envelope, internal_id, size,
        server=node, context=action, reference=original.internet_message_id or original.message_id,
        custom_data=(("OriginalNetworkMessageId", original.message_id),),
    )  # fmt: skip


def notice_suppressed(node: ServerName, stored: StoredMessage, *, at: datetime, ordinals: Ordinals, reason: str) -> TrackingEvent:
    """Primary: the sender, whom a stranger named, is not notified about these recipients. It ends nothing: a row beside it says what
    became of them."""
    return _row(
        at, EventId.SUPPRESSED, EventSource.DSN, stored.envelope, stored.internal_id, _size(stored),
        ordinals=ordinals, server=node, context=reason,
    )  # fmt: skip


def journal_report(node: ServerName, envelope: Envelope, *, at: datetime, original: Envelope, size: int) -> TrackingEvent:
    """Primary: a journal report about `original` was made; `envelope` is the report's own. A message of its own: no client waited."""
    return _row(
        at, EventId.RECEIVE, EventSource.AGENT, envelope, 0, size,
        server=node, context=JOURNAL_REPORT, reference=original.internet_message_id or original.message_id,
        custom_data=(("OriginalNetworkMessageId", original.message_id),),
    )  # fmt: skip


def generated(node: ServerName, message: GeneratedMessage, *, at: datetime, original: Envelope) -> TrackingEvent:
    """Primary: this message about `original` was generated."""
    envelope, size = message.message.envelope, message.content.size
    if message.message.origin is Origin.JOURNAL:
        return journal_report(node, envelope, at=at, original=original, size=size)
    return dsn(node, envelope, at=at, original=original, action=message.action, size=size)


def resubmit(
    node: ServerName,
    stored: StoredMessage,
    *,
    at: datetime,
    primary: ServerName,
    reason: ResubmitReason,
    silent_since: datetime,
    detected_at: datetime,
    ordinals: Ordinals = NO_ORDINALS,
    size: int | None = None,
) -> TrackingEvent:
    """New primary: promoted; `primary` is the old one.

    Shapes: `ordinals` are the recipients taken over; empty = all that are not done.
    Units: `silent_since` is the last proof of life of the old primary, `detected_at` when its loss was detected here.
    """
    custom_data: CustomData = (
        ("Reason", reason),
        ("SilentSince", format_instant(silent_since)),
        ("DetectedAt", format_instant(detected_at)),
        ("ClientSaidBy", primary),  # the client's name and address are this peer's word
    )
    if stored.envelope.original_client:
        custom_data += ((ORIGINAL_CLIENT, stored.envelope.original_client),)
    return _row(
        at, EventId.RESUBMIT, EventSource.REDUNDANCY, stored.envelope, stored.internal_id, _size(stored) if size is None else size,
        ordinals=ordinals or _open(stored), server=node, reference=primary, custom_data=custom_data,
    )  # fmt: skip


def resubmit_from_safety_net(
    node: ServerName, stored: StoredMessage, *, at: datetime, request: int, size: int | None = None
) -> TrackingEvent:
    """Primary: made from a message in Safety Net, which `reference` names, by this request. A message of its own without RECEIVE."""
    return _row(
        at, EventId.RESUBMIT, EventSource.SAFETYNET, stored.envelope, stored.internal_id, _size(stored) if size is None else size,
        server=node, context=f"request {request}", reference=stored.envelope.resubmitted_from,
    )  # fmt: skip


def load(node: ServerName, stored: StoredMessage, *, at: datetime, size: int | None = None) -> TrackingEvent:
    """Primary: found in the queue database at start."""
    return _row(
        at, EventId.LOAD, EventSource.BOOTLOADER, stored.envelope, stored.internal_id, _size(stored) if size is None else size,
        ordinals=_open(stored), server=node,
    )  # fmt: skip


def poison(node: ServerName, stored: StoredMessage, *, at: datetime, reason: str, size: int | None = None) -> TrackingEvent:
    """Set aside (or taken back), and why."""
    return _row(
        at, EventId.POISONMESSAGE, EventSource.POISONMESSAGE, stored.envelope, stored.internal_id, _size(stored) if size is None else size,
        ordinals=_open(stored), server=node, context=reason,
    )  # fmt: skip


def expire(
    node: ServerName,
    stored: StoredMessage,
    *,
    at: datetime,
    ordinals: Ordinals = NO_ORDINALS,
    reply: Reply = EXPIRED,
    size: int | None = None,
) -> TrackingEvent:
    """Primary: these recipients (empty = all open ones) expired. Shadow: expired, because its primary never reported it done."""
    client = stored.claim.primary if stored.claim.role is Role.SHADOW else NO_SERVER
    gone = ordinals or _open(stored)
    return _row(
        at, EventId.EXPIRE, EventSource.QUEUE, stored.envelope, stored.internal_id, _size(stored) if size is None else size,
        ordinals=gone, statuses=(str(reply),) * (len(gone) or len(stored.envelope.recipients)), client=client, server=node,
    )  # fmt: skip


def session_data(tls: str, login: str) -> CustomData:
    """What protected the session with a next hop, and who this node was in it. Empty texts: nothing."""
    if not login:
        return (("Tls", tls),) if tls else ()
    return ("Tls", tls), ("Auth", login)


def split_server(server: str) -> tuple[str, str]:
    """The name and the address in "name [address]:port" or "name:port"; missing parts are empty."""
    name, bracket, rest = server.partition(" [")
    if bracket:
        return name, rest.partition("]")[0]
    if server.startswith("["):
        return "", server[1:].partition("]")[0]
    return server.partition(":")[0], ""  # no server answered: the key of the next hop


def _attempt(
    event: EventId,
    source: EventSource,
    node: ServerName,
    stored: StoredMessage,
    at: datetime,
    server: str,
    replies: Mapping[int, Reply],
    size: int,
    elapsed: timedelta,
    next_hop: str,
    context: str,
    session: CustomData,
) -> TrackingEvent:
    recipients = stored.envelope.recipients
    if len(replies) == 1:
        ((ordinal, reply),) = replies.items()
        addresses: tuple[str, ...] = (recipients[ordinal - 1].address,)
        statuses: tuple[str, ...] = (str(reply),)
    else:
        order = sorted(replies)
        addresses = tuple([recipients[ordinal - 1].address for ordinal in order])
        statuses = tuple([str(replies[ordinal]) for ordinal in order])
    name, address = split_server(server)
    return TrackingEvent(
        at, event, source, stored.internal_id, stored.envelope.message_id, stored.envelope.internet_message_id,
        client_hostname=node, server_ip=address, server_hostname=name, source_context=context, connector_id=next_hop,
        recipients=addresses, recipient_statuses=statuses,
        total_bytes=size, subject=stored.envelope.subject, sender=stored.envelope.sender,
        message_info=format_instant(stored.envelope.arrived_at),  # origination time: docs/sources.md "elastic"
        original_client_ip=stored.envelope.client_address, custom_data=(("AttemptElapsed", f"{elapsed.total_seconds():.6f}"), *session),
    )  # fmt: skip


def _row(
    at: datetime,
    event: EventId,
    source: EventSource,
    envelope: Envelope,
    internal_id: int,
    size: int,
    *,
    ordinals: Ordinals = NO_ORDINALS,
    statuses: tuple[str, ...] = (),
    client: str = "",
    client_ip: str = "",
    server: str = "",
    context: str = "",
    connector: str = "",
    reference: str = "",
    custom_data: CustomData = (),
) -> TrackingEvent:
    recipients = envelope.recipients
    if ordinals and len(ordinals) < len(recipients):
        recipients = tuple([recipients[ordinal - 1] for ordinal in sorted(ordinals)])
    return TrackingEvent(
        at, event, source, internal_id, envelope.message_id, envelope.internet_message_id,
        client_ip, client, "", server, context, connector,
        (recipients[0].address,) if len(recipients) == 1 else tuple([recipient.address for recipient in recipients]), statuses,
        size, reference, envelope.subject, envelope.sender, "", envelope.client_address, custom_data,
    )  # fmt: skip


def _open(stored: StoredMessage) -> Ordinals:
    return stored.envelope.ordinals - stored.claim.done if stored.claim.done else NO_ORDINALS


def _size(stored: StoredMessage) -> int:
    return stored.place.size if stored.place is not None else 0


FIELDS = (
    "date-time", "client-ip", "client-hostname", "server-ip", "server-hostname", "source-context", "connector-id", "source",
    "event-id", "internal-message-id", "message-id", "network-message-id", "recipient-address", "recipient-status",
    "total-bytes", "recipient-count", "related-recipient-address", "reference", "message-subject", "sender-address",
    "return-path", "message-info", "directionality", "tenant-id", "original-client-ip", "original-server-ip", "custom-data",
    "transport-traffic-type", "log-id", "schema-version",
)  # fmt: skip
"""Exchange 2016/2019, in their order. Source: exchange-facts 2.1 [LOGDOC]."""

SCHEMA_VERSION = "1.0"  # of these rows; changes when the meaning of a field changes
LOG_ID_OCTETS = 16
NULL_PATH = "<>"  # return-path is never empty. Source: exchange-facts 2.1 [MSD-MT]

_TO_ESCAPE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|\\\\(?=u)")
_IN_LIST = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff;]|\\\\(?=u)")
_IN_KEY = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff;=]|\\\\(?=u)")
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})")
_LOG_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_parts_of_log_id = itemgetter(*(slice(*ends) for ends in pairwise((0, 8, 12, 16, 20, 32))))  # of the digits of a hash: those of a UUID
_NONE = ("",)  # an empty list is written like one with an empty text
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
    recipients, statuses, sender, pairs = event.recipients, event.recipient_statuses, event.sender, event.custom_data
    custom = ";".join([f"S:{key}={value}" for key, value in pairs]) if pairs else ""
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
        ";".join(recipients),
        ";".join(statuses),
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
    # Any other semicolon may stand in a recipient, a status or a value.
    semicolons = len(recipients or _NONE) + len(statuses or _NONE) + len(pairs or _NONE) - 3
    if not line.isprintable() or "\\u" in line or line.count(";") != semicolons or custom.count("=") != len(pairs):
        row = _escaped_row(row, event)
        line = ",".join(row)
    if line.count(",") != len(row) - 1 or '"' in line:
        line = ",".join([_quoted(text) for text in row])
    octets = f"{line},".encode()
    digest = blake2b(octets, digest_size=LOG_ID_OCTETS).hexdigest()
    return octets + f"{'-'.join(_parts_of_log_id(digest))},{SCHEMA_VERSION}\r\n".encode()


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
    digest = blake2b(line[: line.rindex(tail.encode("utf-8"))], digest_size=LOG_ID_OCTETS).hexdigest()
    if _LOG_ID.fullmatch(row[-2]) is None or row[-2].replace("-", "") != digest:
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
