"""A copy as a peer sends it to a receive connector (`tests/kit/receiving.py`), and what that says when it holds it."""

import hashlib
from datetime import UTC, datetime

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import BodyType, Envelope, Recipient
from shadowrelay.model.ownership import CopyNumber
from shadowrelay.protocol.fields import format_mail, format_rcpt
from shadowrelay.protocol.xshadow import format_commit, format_envelope, format_hold
from tests.kit.clients import Client
from tests.kit.receiving import HELLO, PEER_DATABASE, Station

NUMBER = CopyNumber(3, 2, PEER_DATABASE)
ENVELOPE = Envelope(
    message_id=MessageId("00000000-0000-4000-8000-000000000009"),
    sender='"q q"@x.example',
    recipients=(Recipient("ä@elsewhere.example", "NEVER", "rfc822;A@x"), Recipient("b@elsewhere.example")),
    arrived_at=datetime(2026, 11, 21, 11, 59, 59, 123456, tzinfo=UTC),
    body=BodyType.EIGHT_BIT_MIME,
    smtputf8=True,
    ret="FULL",
    envid="abc",
    client_address="192.0.2.1",
    client_name="client.example",
    connector="inbound",
    internet_message_id="<1@x>",
    subject="hällo",
)
HELD = "250 2.0.0 Held position=7"


def a_copy(content: bytes, chunk: int | None = None, **changes: str) -> bytes:
    """A whole pipelined copy; `changes` replace its lines."""
    lines = {
        "mail": f"MAIL {format_mail(ENVELOPE, len(content), extra='XSHADOW=' + format_hold(ENVELOPE.message_id, NUMBER), dsn=True)}",
        "envelope": f"XSHADOW ENVELOPE {format_envelope(ENVELOPE, frozenset({2}))}",
        "commit": f"XSHADOW COMMIT {format_commit(len(content), hashlib.sha256(content).digest())}",
    } | changes
    step = chunk or max(1, len(content))
    chunks = [content[at : at + step] for at in range(0, len(content), step)] or [b""]
    octets = [lines["mail"].encode(), *(f"RCPT {format_rcpt(recipient, dsn=True)}".encode() for recipient in ENVELOPE.recipients)]
    octets.append(lines["envelope"].encode())
    return (
        b"\r\n".join(octets) + b"\r\n" + b"".join(b"BDAT %d\r\n" % len(part) + part for part in chunks) + lines["commit"].encode() + b"\r\n"
    )


async def peer_of(station: Station) -> Client:
    client = await station.client_in("EHLO b.example", HELLO)
    station.peer_requests.told.clear()
    return client
