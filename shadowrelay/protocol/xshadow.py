"""Parses and formats the verb XSHADOW, its EHLO keyword and its MAIL parameter. docs/protocol.md 4 to 7.

The parts: a node's identity (`hello`), a copy's number (`hold`), the envelope data that MAIL and RCPT do not carry
(`envelope`), the end of a copy (`commit`), and the database position in every reply.
"""

import binascii
import json
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from operator import attrgetter, gt

import msgspec

from shadowrelay.model.ids import NO_DATABASE, NO_MESSAGE, DatabaseId, MessageId
from shadowrelay.model.message import NO_ORDINALS, BodyType, Envelope, Ordinals, Recipient
from shadowrelay.model.numbers import decimal
from shadowrelay.model.ownership import CopyNumber
from shadowrelay.model.peers import PeerIdentity, Seen
from shadowrelay.model.printable import printable
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.fields import (
    COUNTER_MAX,
    ENVID,
    bad_argument,
    format_done,
    format_instant,
    format_span,
    format_xtext,
    parse_boundary,
    parse_counter,
    parse_database_id,
    parse_done,
    parse_instant,
    parse_message_id,
    parse_rank,
    parse_server,
    parse_span,
)
from shadowrelay.protocol.original_client import TEXT_OCTETS_MAX, checked_original_client

KEYWORD = "XSHADOW"
HOLD, TRACK = "HOLD", "TRACK"  # the offers; and who keeps the shadow of what MAIL brings: the server, or the client
FORKS = "FORKS"  # the offer: this server understands the status `forks` in XQDISCARD
EARLY = "EARLY"  # the offer: in a later session this server takes the hello in one write with EHLO

# The known keys: 262+201+45+31+25+28+18+64 and 7 spaces, ` state=draining`, ` seen-of=` and ` former=` 45+44, ` settings=` 268,
# ` machine=` 41, ` domains=` 9 + 8 x 65, ` version=` 41: 1,664.
HELLO_OCTETS_MAX = 2_000  # the rest allows unknown keys and settings
HOLD_OCTETS_MAX = 5 + 1 + 36 + 1 + 10 + 1 + 10  # 64; as a parameter of MAIL with ` XSHADOW=`: 73
ENVELOPE_OCTETS_MAX = 8_192  # base64url of at most 6,144 octets of JSON; the line is 17 + 8,192 + 2 = 8,211
COMMIT_OCTETS_MAX = 5 + 19 + 1 + 7 + 64  # 96

_PAIR = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,31})=([!-~]*)")
_POSITION = re.compile(r"(?<![^\s])position=(0|[1-9][0-9]{0,18})(?![^\s])")
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_+/=", b"+/!!!")
_SETTINGS = re.compile(r"[a-z0-9_]{1,64}:[A-Za-z0-9.+-]{1,64}(,[a-z0-9_]{1,64}:[A-Za-z0-9.+-]{1,64}){0,31}", re.ASCII)
_COMMIT = re.compile(r"size=([0-9]{1,19}) sha256=([0-9A-Fa-f]{64})", re.IGNORECASE | re.ASCII)
_MACHINE = re.compile(r"[0-9a-f]{32}", re.ASCII)
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+]{0,31}", re.ASCII)
_DOMAIN = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
DOMAINS_MAX = 8
DRAINING = "draining"  # the only `state`; others are ignored like unknown keys
_HELLO_KEYS = ("server", "boundary", "database", "incarnation", "began", "position", "span")


class XshadowForm(StrEnum):
    """The three forms of the verb. The value is the word after the verb; a hello has none."""

    HELLO = ""
    ENVELOPE = "ENVELOPE"
    COMMIT = "COMMIT"


_FORMS = {str(form): form for form in (XshadowForm.ENVELOPE, XshadowForm.COMMIT)}


def parse_form(argument: str) -> tuple[XshadowForm, str]:
    """The form of an XSHADOW line, and the argument for the parser of that form. Never raises."""
    word, _, rest = argument.partition(" ")
    form = _FORMS.get(word.upper())
    return (XshadowForm.HELLO, argument) if form is None else (form, rest)


# EHLO keyword


def format_keyword(*, hold: bool, track: bool) -> str:
    """The line of the EHLO reply: `XSHADOW HOLD TRACK FORKS EARLY`; without HOLD while no copies are accepted."""
    return f"{KEYWORD}{' HOLD' if hold else ''}{' TRACK' if track else ''} {FORKS} {EARLY}"


# identity


def format_hello(identity: PeerIdentity) -> str:
    """`server=… boundary=… database=… incarnation=… began=… position=… span=…`, and what is known of `seen=… seen-of=… former=… settings=…
    machine=… domains=… version=… state=draining`."""
    text = (
        f"server={identity.server} boundary={format_xtext(identity.boundary)} database={identity.database}"
        f" incarnation={identity.incarnation} began={identity.began} position={identity.position}"
        f" span={format_span(identity.span)}"
    )
    if (seen := identity.seen) is not None:
        text += f" seen={seen.incarnation}:{seen.began}:{seen.position}"
        if identity.seen_of:
            text += f" seen-of={identity.seen_of}"
    if identity.former:
        text += f" former={identity.former}"
    if identity.track is not None:
        text += f" track={format_span(identity.track)}"
    if identity.common:
        text += f" settings={','.join([f'{name}:{value}' for name, value in identity.common])}"
    if identity.machine:
        text += f" machine={identity.machine}"
    if identity.domains:
        text += f" domains={','.join(identity.domains)}"
    if identity.version:
        text += f" version={identity.version}"
    return f"{text} state={DRAINING}" if identity.is_draining else text


def parse_hello(text: str) -> PeerIdentity:
    """Inverse of `format_hello`; keys in any order and case, unknown keys ignored.

    Raises: WireError 501 5.5.4 for a missing, repeated or invalid key.
    """
    values = _pairs_of(text)
    for key in _HELLO_KEYS:
        if key not in values:
            raise bad_argument(f"XSHADOW without {key}=")
    return PeerIdentity(
        server=parse_server(values["server"]),
        boundary=parse_boundary(values["boundary"]),
        database=parse_database_id(values["database"]),
        incarnation=parse_counter(values["incarnation"], "incarnation"),
        began=parse_counter(values["began"], "began"),
        position=parse_counter(values["position"], "position"),
        span=parse_span(values["span"]),
        seen=_parse_seen(values["seen"]) if "seen" in values else None,
        seen_of=parse_database_id(values["seen-of"]) if "seen-of" in values else NO_DATABASE,
        former=parse_database_id(values["former"]) if "former" in values else NO_DATABASE,
        is_draining=values.get("state", "").lower() == DRAINING,
        common=_parse_settings(values.get("settings", "")),
        track=parse_span(values["track"]) if "track" in values else None,
        machine=values["machine"] if _MACHINE.fullmatch(values.get("machine", "")) else "",
        version=values["version"] if _VERSION.fullmatch(values.get("version", "")) else "",
        domains=tuple([label for label in values.get("domains", "").split(",")[:DOMAINS_MAX] if _DOMAIN.fullmatch(label)]),
    )


def _pairs_of(text: str) -> dict[str, str]:
    if len(text) > HELLO_OCTETS_MAX:
        raise bad_argument("XSHADOW line too long")
    values: dict[str, str] = {}
    for token in text.strip(" ").split(" "):
        found = _PAIR.fullmatch(token)
        if found is None:
            raise bad_argument("XSHADOW wants key=value")
        key = found[1].lower()
        if key in values and (
            key in _HELLO_KEYS or key in ("seen", "seen-of", "former", "state", "settings", "track", "machine", "domains", "version")
        ):
            raise bad_argument(f"XSHADOW with {key}= twice")
        values[key] = found[2]
    return values


def _parse_settings(text: str) -> tuple[tuple[str, str], ...]:
    """For people only, so what is not understood is no reason to refuse a peer."""
    if _SETTINGS.fullmatch(text) is None:
        return ()
    return tuple((name, value) for name, _, value in (pair.partition(":") for pair in text.split(",")))


def _parse_seen(text: str) -> Seen:
    parts = text.split(":")
    if len(parts) != 3:
        raise bad_argument("Bad seen")
    return Seen(*(parse_counter(part, "seen") for part in parts))


def format_position(position: int) -> str:
    """`position=<p>`: in every reply to an XSHADOW or XQDISCARD line after the hello."""
    return f"position={position}"


def parse_position(reply_text: str) -> int | None:
    """The last position in the text of a reply of one or more lines; `None` if absent. Never raises."""
    found = _POSITION.findall(reply_text)
    return decimal(found[-1], COUNTER_MAX) if found else None


# a copy


def format_hold(message_id: MessageId, number: CopyNumber, *, is_tracked: bool = False) -> str:
    """The value of MAIL's parameter XSHADOW. The number's database is the speaker's own, from its hello; with TRACK the listener's."""
    return f"{TRACK if is_tracked else HOLD}:{message_id}:{number.ownership}.{number.placement}"


def is_track(value: str) -> bool:
    """Whether this value of MAIL's parameter XSHADOW, in whatever state the rest of it is, asks for TRACK."""
    return value.partition(":")[0].upper() == TRACK


def parse_hold(value: str, database: DatabaseId) -> tuple[MessageId, CopyNumber]:
    """Inverse of `format_hold`; `database` is that of the peer's hello. Case-insensitive. Raises: WireError 501 5.5.4."""
    parts = value.split(":", 3)
    if parts[0].upper() not in (HOLD, TRACK) or len(parts) != 3:
        raise bad_argument("Bad XSHADOW parameter")
    ownership, dot, placement = parts[2].partition(".")
    if not dot:
        raise bad_argument("Bad copy number")
    rank = parse_rank(ownership, placement)
    return parse_message_id(parts[1]), CopyNumber(rank[0], rank[1], database)


def format_commit(size: int, sha256: bytes) -> str:
    """`size=<n> sha256=<hex>` of the whole content, all chunks together."""
    return f"size={size} sha256={sha256.hex()}"


def parse_commit(text: str) -> tuple[int, bytes]:
    """Inverse of `format_commit`: size in octets and 32 octets of hash. Raises: WireError 501 5.5.4."""
    found = _COMMIT.fullmatch(text)
    if found is None:
        raise bad_argument("XSHADOW COMMIT wants size= and sha256=")
    return parse_counter(found[1], "size"), bytes.fromhex(found[2])


@dataclass(frozen=True, slots=True)
class EnvelopeExtras:
    """The content of XSHADOW ENVELOPE: envelope fields that MAIL and RCPT do not carry, and the ordinals done.

    RET and ENVID are included, so that a copy has them whatever its MAIL line contained.
    """

    arrived_at: datetime
    client_address: str = ""
    client_name: str = ""
    connector: str = ""
    internet_message_id: str = ""
    subject: str = ""
    date: str = ""
    fingerprint: str = ""
    original_client: str = ""
    resubmitted_from: MessageId = NO_MESSAGE
    relayed_from: MessageId = NO_MESSAGE
    ret: str | None = None
    envid: str | None = None
    done: Ordinals = NO_ORDINALS

    def envelope(
        self, message_id: MessageId, sender: str, recipients: tuple[Recipient, ...], body: BodyType, *, smtputf8: bool
    ) -> Envelope:
        """The whole envelope, with the fields that MAIL and RCPT carry."""
        return Envelope(
            message_id,
            sender,
            recipients,
            self.arrived_at,
            body,
            smtputf8,
            client_address=self.client_address,
            client_name=self.client_name,
            connector=self.connector,
            internet_message_id=self.internet_message_id,
            subject=self.subject,
            date=self.date,
            fingerprint=self.fingerprint,
            original_client=self.original_client,
            resubmitted_from=self.resubmitted_from,
            relayed_from=self.relayed_from,
            ret=self.ret,
            envid=self.envid,
        )


_TEXT_OCTETS_MAX: Mapping[str, int] = {
    # sizes as JSON escapes; 4,904 and 14 names with quotes (247), time (29), done (837), envid (102), ret (6): 6,125 < 6,144
    "client_address": 100,
    "client_name": 600,
    "connector": 400,
    "internet_message_id": 1_100,  # a header line has 998 octets, RFC 5322 2.1.1
    "subject": 1_500,
    "date": 600,
    "fingerprint": 32,
    "original_client": TEXT_OCTETS_MAX,  # never cut: nothing in it is escaped
    "resubmitted_from": 36,
    "relayed_from": 36,
}
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_RET = re.compile(r"FULL|HDRS", re.IGNORECASE | re.ASCII)

_COMPACT = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))


class _Said(msgspec.Struct, omit_defaults=True):
    """The JSON of XSHADOW ENVELOPE. Every value is a text; unknown names are ignored, and empty texts are not written."""

    arrived: str
    client_address: str = ""
    client_name: str = ""
    connector: str = ""
    internet_message_id: str = ""
    subject: str = ""
    date: str = ""
    fingerprint: str = ""
    original_client: str = ""
    resubmitted_from: str = ""
    relayed_from: str = ""
    ret: str | msgspec.UnsetType = msgspec.UNSET
    envid: str | msgspec.UnsetType = msgspec.UNSET
    done: str = ""


_said_in = msgspec.json.Decoder(_Said).decode
_octets_of = msgspec.json.Encoder().encode
_texts_of = attrgetter(*_TEXT_OCTETS_MAX)  # of an envelope, in the order in which `_Said` has them


def format_envelope(envelope: Envelope, done: Ordinals) -> str:
    """The argument of XSHADOW ENVELOPE: base64url, without padding, of compact JSON; long texts are truncated."""
    texts = _texts_of(envelope)
    said = _Said(format_instant(envelope.arrived_at), *texts)
    if envelope.ret is not None:
        said.ret = envelope.ret
    if envelope.envid is not None:
        said.envid = envelope.envid
    if done:
        said.done = format_done(done)
    try:
        octets = _octets_of(said)
    except UnicodeEncodeError:  # a lone surrogate
        octets = b"\xff"
    # Where nothing is escaped, each text takes as many octets as it has characters.
    if not octets.isascii() or b"\\" in octets or any(map(gt, map(len, texts), _TEXT_OCTETS_MAX.values())):
        for name, octets_max in _TEXT_OCTETS_MAX.items():
            setattr(said, name, _cut(getattr(said, name), octets_max))
        octets = _COMPACT.encode(msgspec.to_builtins(said)).encode("ascii")
    return binascii.b2a_base64(octets, newline=False).rstrip(b"=").translate(_TO_URL).decode("ascii")


def _cut(text: str, octets_max: int) -> str:
    """Truncate by eighths until the JSON fits, quotes not counted. Lone surrogates survive as escapes."""
    if len(text) * 12 <= octets_max:  # a character takes at most \uXXXX, or two of these
        return text
    text = text[:octets_max]
    while len(json.dumps(text, ensure_ascii=True)) > octets_max + 2:
        text = text[: len(text) - max(1, len(text) // 8)]
    return text


def parse_envelope(text: str) -> EnvelopeExtras:
    """Inverse of `format_envelope`. Unknown names are ignored. Raises: WireError 501 5.5.4."""
    if not 0 < len(text) <= ENVELOPE_OCTETS_MAX:
        raise bad_argument("Bad XSHADOW ENVELOPE")
    try:
        octets = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL) + b"=" * (-len(text) % 4), strict_mode=True)
        said = octets.decode("utf-8")
        # `json` takes lone surrogates, too, and what is no JSON but was taken before
        loaded = msgspec.convert(json.loads(said), _Said) if "\\" in said else _said_in(octets)
    except (ValueError, RecursionError):  # a length that base64 cannot have; deeply nested brackets; a value that is no text
        raise bad_argument("Bad XSHADOW ENVELOPE") from None
    ret = None if loaded.ret is msgspec.UNSET else loaded.ret
    envid = None if loaded.envid is msgspec.UNSET else loaded.envid
    if (ret is not None and _RET.fullmatch(ret) is None) or (envid is not None and ENVID.fullmatch(envid) is None):
        raise bad_argument("Bad XSHADOW ENVELOPE")
    if loaded.fingerprint and _FINGERPRINT.fullmatch(loaded.fingerprint) is None:
        raise bad_argument("Bad fingerprint")
    if "\\" in said or not said.isprintable():
        for name in _TEXT_OCTETS_MAX:
            setattr(loaded, name, printable(getattr(loaded, name)))
    return EnvelopeExtras(
        arrived_at=parse_instant(loaded.arrived),
        client_address=loaded.client_address,
        client_name=loaded.client_name,
        connector=loaded.connector,
        internet_message_id=loaded.internet_message_id,
        subject=loaded.subject,
        date=loaded.date,
        fingerprint=loaded.fingerprint,
        original_client=checked_original_client(loaded.original_client) if loaded.original_client else "",
        resubmitted_from=parse_message_id(loaded.resubmitted_from) if loaded.resubmitted_from else NO_MESSAGE,
        relayed_from=parse_message_id(loaded.relayed_from) if loaded.relayed_from else NO_MESSAGE,
        ret=ret,
        envid=envid,
        done=parse_done(loaded.done),
    )
