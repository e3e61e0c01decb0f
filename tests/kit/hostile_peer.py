"""What a peer says whose values are at their bounds, or just beyond. Each copy goes through the parsers that the receiver asks."""

import base64
import hashlib
import json
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import RANK_MAX
from shadowrelay.model.peers import CopyOffer, PeerIdentity
from shadowrelay.model.replies import Reply, WireError
from shadowrelay.protocol.fields import COUNTER_MAX, format_instant, mail_values_of, parse_mail, parse_rcpt, recipient_of
from shadowrelay.protocol.xshadow import parse_commit, parse_envelope, parse_hello, parse_hold
from shadowrelay.rules import delivery
from tests.kit.ledger import a_content
from tests.kit.nodes import BASE, SPAN, WEST
from tests.kit.played import DATABASES

CONTENT = b"Subject: hello\r\nMessage-ID: <1@x.example>\r\n\r\nhello\r\n"
DAY = timedelta(days=1)
ODD_TEXTS = ("\x00\x01", "a\r\nb", "\ud800", "💥" * 40, " " * 300, "=?utf-8?q?=", "\u2028", "'\"\\")
TEXTS = ("client_address", "client_name", "connector", "internet_message_id", "subject", "date")
BOUNDS: dict[str, Sequence[str]] = {
    "arrived": (
        "0001-01-01T00:00:00.000000Z",
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00.000000Z",
        format_instant(BASE - 3 * DAY),
        format_instant(BASE + delivery.AHEAD_MAX),
        format_instant(BASE + 2 * DAY),
        "8999-12-31T23:59:59.999999Z",
        "9000-01-01T00:00:00.000000Z",
        "9999-12-31T23:59:59.999999Z",
    ),
    "ownership": ("0", "1", str(RANK_MAX - 1), str(RANK_MAX), str(RANK_MAX + 1), "-1"),
    "placement": ("0", "1", str(RANK_MAX - 1), str(RANK_MAX), str(RANK_MAX + 1)),
    "done": ("", "1", "2", "1-3", "3-5000", "5001", "~" + "_" * 834, "0"),
    "size": ("0", str(COUNTER_MAX), str(COUNTER_MAX + 1), "9" * 20),
    "ret": ("FULL", "hdrs", "SOME"),
    "envid": ("x" * 100, "x" * 101, ""),
    "resubmitted_from": ("", DATABASES[WEST], "x"),
    "relayed_from": ("", DATABASES[WEST], "x"),
    "sender": ("", "a@x.example", "a" * 64 + "@x.example", "a" * 65 + "@x.example"),
    "recipients_count": ("1", "3", "5000"),
    **dict.fromkeys(TEXTS, ODD_TEXTS),
}
PLAIN = {
    "arrived": format_instant(BASE),
    "ownership": "1",
    "placement": "1",
    "done": "",
    "sender": "a@x.example",
    "recipients_count": "3",
}
HELLOS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("incarnation", "began", "position"), ("0", "1", str(COUNTER_MAX), str(COUNTER_MAX + 1), "-1")),
    "span": ("0", "0.000001", "0.999999", "1", "86400", "86400.000001", "999999"),
    "track": ("0", "1", "86400", "86400.000001"),
    "boundary": ("x" * 64, "x" * 65, ""),
    "settings": ("a:" + "1" * 64, "a:" + "1" * 65, ""),
    "former": (DATABASES[WEST], "x"),
}


class Holder(Protocol):
    """Who is asked to hold a copy: the requests of peers at a node."""

    async def hold(self, peer: PeerIdentity, offer: CopyOffer) -> Reply: ...


def a_hello(**odd: str) -> str:
    values = {
        "server": WEST,
        "boundary": "example",
        "database": DATABASES[WEST],
        "incarnation": "1",
        "began": "1",
        "position": "1",
        "span": str(SPAN),
        **odd,
    }
    return " ".join(f"{key}={value}" for key, value in values.items())


async def offer(holder: Holder, wanted: MessageId, hello: str, odd: dict[str, str], content: bytes = CONTENT) -> Reply:
    """A copy, line by line as the receiver reads it; the first refusal, or the reply to COMMIT."""
    values = {**PLAIN, "size": str(len(content)), **odd}
    try:
        peer = parse_hello(hello)
        held, number = parse_hold(f"HOLD:{wanted}:{values['ownership']}.{values['placement']}", peer.database)
        mail = parse_mail(f"FROM:<{values['sender']}> SIZE=1")
        recipients = []
        for ordinal in range(1, int(values["recipients_count"]) + 1):
            rcpt = parse_rcpt(f"TO:<u{ordinal}.{wanted}@corp.example> NOTIFY=NEVER")
            recipients.append(recipient_of(rcpt.address, rcpt.parameters))
        names = ("arrived", "done", "ret", "envid", "resubmitted_from", "relayed_from", *TEXTS)
        octets = json.dumps({name: values[name] for name in names if name in values}).encode()
        extras = parse_envelope(base64.urlsafe_b64encode(octets).decode().rstrip("="))
        size, _ = parse_commit(f"size={values['size']} sha256={hashlib.sha256(content).hexdigest()}")
    except WireError as error:
        return error.reply
    if size != len(content):
        return Reply(451, "4.5.0", "another size")
    mail_values = mail_values_of({"SIZE": "1"}, frozenset({"SIZE"}))
    envelope = extras.envelope(held, mail.address, tuple(recipients), mail_values.body, smtputf8=False)
    return await holder.hold(peer, CopyOffer(number, envelope, extras.done, a_content(content)))


def odd_copies() -> list[dict[str, str]]:
    """Each bound of each value alone, and together with others."""
    one = [{name: value} for name, values in BOUNDS.items() for value in values]
    chance = random.Random(31)
    inside = {name: [value for value in values if value not in ("5000",)] for name, values in BOUNDS.items()}
    return one + [{name: chance.choice(values) for name, values in inside.items() if chance.random() < 0.3} for _ in range(60)]
