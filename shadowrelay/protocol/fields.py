"""Parses and formats the arguments of commands: MAIL and RCPT, and the fields that the extension shares. docs/protocol.md 3.

**MAIL and RCPT**: paths of RFC 5321 4.1.2 and RFC 6531 3.3, and ESMTP parameters of the extensions that we offer. Parsing is
strict: no space after the colon, angle brackets required, no trailing dot and no underscore in a domain. Only spaces at the end
of the line are accepted (RFC 5321 4.1.1). Control characters are always refused. A lenient connector also accepts what other
software writes: local parts over 64 octets (the sizes of RFC 5321 4.5.3.1 are minima), no brackets or two pairs, one too many at the
end, a comma or semicolon there, spaces and tabs before `FROM:` and around path, address and parameters, a dot at the end of the domain,
which is dropped, underscores in it, and dots, colons and at signs anywhere in a local part (`john.@docomo.ne.jp`, `a@b@c`). Such a local
part becomes the equivalent quoted string (`"john."@docomo.ne.jp`), so that everything after the parser, here and on every other server,
sees a valid address. Blanks between two brackets are the null sender, and an address in UTF-8 says itself that it needs SMTPUTF8. ENVID
and ORCPT are xtext, and many do not know that: what they write is made xtext (`as_xtext`), because the next server may return the message
for it; they are only labels. So is AUTH (RFC 4954 5): ignored. Where the domain may be left out (`takes_bare`), the caller adds it.

**Fields**: names, xtext, numbers, ordinals, instants, spans. Identifiers are case-insensitive on the wire and lower case
inside. xtext is any text as printable ASCII without `=`, `+` and space (RFC 3461, section 4). Sets of ordinals are ranges
(`1-40,57`) or, where these get long, a bit map. They are checked against their limits before they are expanded: `1-999999999`
costs a comparison, not a gigabyte. Instants are `YYYY-MM-DDTHH:MM:SS.ffffffZ`, always UTC; spans are seconds with up to six
decimals.

The replies that parsers give are here too, so that `docs/protocol.md` and the tests can name them. A reply never echoes input,
which could carry control characters and secrets into logs and bounces.
"""

import base64
import ipaddress
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise

import idna

from shadowrelay.model.ids import BoundaryName, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import EARLIEST, LATEST, NO_ORDINALS, BodyType, Envelope, Ordinals, Recipient
from shadowrelay.model.numbers import decimal
from shadowrelay.model.ownership import RANK_MAX, CopyNumber
from shadowrelay.model.replies import Reply, WireError
from shadowrelay.model.values import dataclass

UNKNOWN_PARAMETER = Reply(555, "5.5.4", "Parameter not recognized or not implemented")
BAD_PARAMETER = Reply(501, "5.5.4", "Bad parameter value")
TRACK_NOT_OFFERED = Reply(504, "5.5.4", "XSHADOW=TRACK is not offered here")
BAD_SENDER = Reply(501, "5.1.7", "Bad sender address syntax")  # RFC 3463 X.1.7
BAD_RECIPIENT = Reply(501, "5.1.3", "Bad recipient address syntax")  # RFC 3463 X.1.3
SMTPUTF8_NEEDED = Reply(553, "5.6.7", "Non-ASCII addresses need the SMTPUTF8 parameter")  # RFC 6531 3.5, RFC 6532
GARBLED_REPLY = Reply(451, "4.5.0", "The peer's reply is out of grammar")  # never sent; for logs and callers


def bad_argument(what: str) -> WireError:
    """501 5.5.4; `what` is a fixed text, never input."""
    return WireError(Reply(501, "5.5.4", what))


def garbled_reply() -> WireError:
    """A peer's *reply* cannot be parsed: send nothing, drop the session and try again."""
    return WireError(GARBLED_REPLY)


# ---- MAIL and RCPT

LOCAL_PART_OCTETS_MAX = 64  # RFC 5321 4.5.3.1.1
PATH_OCTETS_MAX = 256  # 4.5.3.1.3, with the brackets and a source route; so a domain never reaches the 255 octets of 4.5.3.1.2
LENIENT_MAILBOX_OCTETS_MAX = 490
"""So that MAIL to a peer stays in its limit (docs/protocol.md 14): 512, less `MAIL FROM:<>` and CRLF. Longest seen: 300, of Exchange."""
BARE_OCTETS_MAX = LENIENT_MAILBOX_OCTETS_MAX - 256  # `@` and a domain come behind it
PARAMETERS_COUNT_MAX = 20  # RFC 1870, 6152, 6531, 3461 (4), 4954, 2852, 6710, 8689 and XSHADOW make 11
ARGUMENT_OCTETS_MAX = 2_000
"""5+256, SIZE 26, BODY 14, SMTPUTF8 9, RET 9, ENVID 107, AUTH 506, ORCPT 507, NOTIFY 29, XSHADOW 72: 1,540, rounded up."""

# Classes name what they exclude of ASCII and of the C1 controls: with all of UTF-8 in them, these patterns take 0.14 s to compile.
# Lone surrogates, which stand for octets that are not UTF-8, are excluded by `_is_utf8`.
_NO_TEXT = r"\x00-\x20\x7f-\x9f"
_ATOM = rf'[^{_NO_TEXT}"(),.:;<>@\[\\\]]+'
_QUOTED = r'"(?:[^\x00-\x1f"\\\x7f-\x9f]|\\[ -~])*"'
_LETTER = rf"[^{_NO_TEXT}!-/:-@\[-`{{-~]"  # or digit
_LETTER_OR_HYPHEN = rf"[^{_NO_TEXT}!-,./:-@\[-`{{-~]"
_LABEL = rf"{_LETTER}(?:{_LETTER_OR_HYPHEN}{{0,61}}{_LETTER})?"
_DOMAIN = rf"{_LABEL}(?:\.{_LABEL})*"
_ROUTE = rf"@{_DOMAIN}(?:,@{_DOMAIN})*:"  # accepted and dropped: RFC 5321 appendix C
_PATH = re.compile(
    rf"<(?:{_ROUTE})?(?P<mailbox>(?P<local>{_ATOM}(?:\.{_ATOM})*|{_QUOTED})"
    rf"@(?:{_DOMAIN}|\[(?P<literal>[0-9A-Fa-f:.IPVipv]{{1,64}})\]))>"
)
_LENIENT_LABEL = rf"(?!-)[^{_NO_TEXT}!-,./:-@\[-\^`{{-~]{{1,63}}(?<!-)"
_LENIENT_PATH = re.compile(
    rf'(?P<open>(?:<{{1,2}}[ \t]*)?)(?:{_ROUTE})?(?P<local>[^{_NO_TEXT}"(),;<>\[\\\]]+|{_QUOTED})'
    rf"@(?:(?P<domain>{_LENIENT_LABEL}(?:\.{_LENIENT_LABEL})*)\.?|(?P<literal>\[[0-9A-Fa-f:.IPVipv]{{1,64}}\]))"
    r"(?P<close>(?:[ \t]*>{1,3})?)[,;]?(?=[ \t]|\Z)"
)
_BARE = re.compile(
    rf'(?P<open>(?:<{{1,2}}[ \t]*)?)(?P<local>[^{_NO_TEXT}"(),:;<>@\[\\\]]{{1,{BARE_OCTETS_MAX}}})'
    r"(?P<close>(?:[ \t]*>{1,3})?)[,;]?(?=[ \t]|\Z)"
)
_BLANK = re.compile(r"<<>>|<[ \t]*>")
_ATOMS = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_POSTMASTER = re.compile(r"<(postmaster)>", re.IGNORECASE | re.ASCII)
_BARE_POSTMASTER = re.compile(r"(postmaster)(?=[ \t]|\Z)", re.IGNORECASE | re.ASCII)
_PARAMETER = re.compile(rf"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([^{_NO_TEXT}=]+))?")
_LENIENT_PARAMETER = re.compile(  # with `=` in it, as in SRS0=x=y=z=user@b
    rf"(ENVID|ORCPT)=([^{_NO_TEXT}]+)|(AUTH)=[^{_NO_TEXT}]*", re.IGNORECASE | re.ASCII
)
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_IPV4 = re.compile(r"[0-9.]{7,15}")


@dataclass(frozen=True, slots=True)
class MailCommand:
    """`address` is empty for the null sender, and has no domain only where that may be left out. Keys are upper case; a parameter without a
    value has the value ""."""

    address: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RcptCommand:
    """`address` has no domain only when it is `Postmaster`, or where that may be left out. Parameters as in `MailCommand`.
    `has_source_route`: one stood before it."""

    address: str
    parameters: Mapping[str, str]
    has_source_route: bool = False


def parse_mail(argument: str, *, lenient: bool = False, takes_bare: bool = False) -> MailCommand:
    """Parse what follows `MAIL `. UTF-8 is accepted if SMTPUTF8 is among the parameters. For `lenient`, `takes_bare` see the module's head.

    Raises: WireError 501 5.1.7 for the path, 553 5.6.7 for UTF-8 without SMTPUTF8, 501 5.5.4 for the rest.
    """
    rest = _after(argument, "FROM", "Syntax: MAIL FROM:<address> [parameters]", lenient)
    if rest.startswith("<>") and not (lenient and rest.startswith("<>>")):
        address, end = "", 2
    elif lenient and (blank := _BLANK.match(rest)):
        address, end = "", blank.end()
    else:
        address, end = _path_of(rest, BAD_SENDER, lenient, takes_bare)
    parameters = _parameters_of(rest, end, BAD_SENDER, lenient) if end < len(rest) else {}
    if not rest.isascii() and "SMTPUTF8" not in parameters:
        if not lenient:
            raise WireError(SMTPUTF8_NEEDED)
        parameters |= {} if address.isascii() else {"SMTPUTF8": ""}
    return MailCommand(address, parameters)


def parse_rcpt(argument: str, *, smtputf8: bool = False, lenient: bool = False, takes_bare: bool = False) -> RcptCommand:
    """Parse what follows `RCPT `; `smtputf8`: MAIL had that parameter. `lenient`, `takes_bare`: see the head of the module.

    Raises: WireError 501 5.1.3 for the path, 553 5.6.7 for UTF-8 without SMTPUTF8, 501 5.5.4 for the rest.
    """
    rest = _after(argument, "TO", "Syntax: RCPT TO:<address> [parameters]", lenient)
    if postmaster := _POSTMASTER.match(rest) or (lenient and _BARE_POSTMASTER.match(rest)):
        address, end = postmaster[1], postmaster.end()
    else:
        address, end = _path_of(rest, BAD_RECIPIENT, lenient, takes_bare)
    parameters = _parameters_of(rest, end, BAD_RECIPIENT, lenient) if end < len(rest) else {}
    if not (smtputf8 or lenient or rest.isascii()):
        raise WireError(SMTPUTF8_NEEDED)
    return RcptCommand(address, parameters, rest.lstrip("< \t").startswith("@"))


def _after(argument: str, word: str, syntax: str, lenient: bool) -> str:
    said, _, rest = argument.partition(":")
    if lenient:
        said, rest = said.lstrip(" \t"), rest.lstrip(" \t")
    if len(argument) > ARGUMENT_OCTETS_MAX or (said != word and said.upper() != word) or rest[:1] in ("", " "):
        raise bad_argument(syntax)
    return rest


def _path_of(rest: str, bad: Reply, lenient: bool, takes_bare: bool) -> tuple[str, int]:
    """The mailbox, and the index at which the path ends."""
    found = _PATH.match(rest)
    if found is not None and found.end() <= LOCAL_PART_OCTETS_MAX and found[3] is None and rest.isascii():  # nearly every one
        mailbox, end = found[1], found.end()
        if not lenient or rest[end : end + 1] in ("", " "):
            return mailbox, end
    if lenient and (found is None or len(found["local"]) > LOCAL_PART_OCTETS_MAX or rest[(end := found.end()) : end + 1] not in ("", " ")):
        return _lenient_path_of(rest, bad, takes_bare)
    if found is None or not (found[0].isascii() or _is_utf8(found[0])):
        raise WireError(bad)
    mailbox, local, literal = found.groups()
    if len(found[0].encode()) > PATH_OCTETS_MAX or len(local.encode()) > LOCAL_PART_OCTETS_MAX:
        raise WireError(bad)
    if literal is not None and not _is_literal(literal):
        raise WireError(bad)
    return mailbox, found.end()


def _lenient_path_of(rest: str, bad: Reply, takes_bare: bool) -> tuple[str, int]:
    found = _LENIENT_PATH.match(rest) or (_BARE.match(rest) if takes_bare else None)
    if found is None or found["open"].count("<") > found["close"].count(">") or not _is_utf8(found[0]):
        raise WireError(bad)
    if found.re is _BARE:
        return (found["local"] if _ATOMS.fullmatch(found["local"]) else f'"{found["local"]}"'), found.end()
    local, domain, literal = found.group("local", "domain", "literal")
    if literal is not None and not _is_literal(literal[1:-1]):
        raise WireError(bad)
    if not local.startswith('"') and _ATOMS.fullmatch(local) is None:
        local = f'"{local}"'
    mailbox = f"{local}@{literal or domain}"
    if len(mailbox.encode()) > LENIENT_MAILBOX_OCTETS_MAX:
        raise WireError(bad)
    return mailbox, found.end()


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_literal(text: str) -> bool:
    try:
        if text[:5].upper() == "IPV6:":
            ipaddress.IPv6Address(text[5:])
        elif _IPV4.fullmatch(text):
            ipaddress.IPv4Address(text)
        else:
            return False
    except ValueError:
        return False
    return True


def _parameters_of(rest: str, end: int, bad: Reply, lenient: bool) -> dict[str, str]:
    text = rest[end:].rstrip(" ")
    if lenient and (words := text.split()):
        text = text[:1].replace("\t", " ") + " ".join(words)
    if not text.strip():
        return {}
    if text[0] != " ":
        raise WireError(bad)
    parameters: dict[str, str] = {}
    for word in text[1:].split(" ", PARAMETERS_COUNT_MAX):
        found = _PARAMETER.fullmatch(word) or (_LENIENT_PARAMETER.fullmatch(word) if lenient else None)
        if found is None or not _is_utf8(word):
            raise bad_argument("Bad or repeated parameter")
        key, value = (found[1] or found[3]).upper(), found[2] or ""
        if key in parameters and not (lenient and parameters[key] == value):
            raise bad_argument("Bad or repeated parameter")
        parameters[key] = value
    if len(parameters) > PARAMETERS_COUNT_MAX:
        raise bad_argument("Too many parameters")
    return parameters


_NOTIFY = re.compile(r"NEVER|(?:SUCCESS|FAILURE|DELAY)(?:,(?:SUCCESS|FAILURE|DELAY)){0,2}", re.IGNORECASE)  # RFC 3461 4.1
_ORCPT = re.compile(r"[A-Za-z0-9-]{1,64};[!-<>-~]{1,500}")  # RFC 3461 4.2
_UTF8_ORCPT = re.compile(r"utf-8;", re.IGNORECASE)  # RFC 6533 3
_UTF8_ADDRESS = re.compile(r"(?:[!-*,-<>-\[\]-~]|\\x\{(?:[0-9A-F]{2,5}|10[0-9A-F]{4})\})*", re.IGNORECASE)
_ORCPT_OCTETS_MAX = 500
_NO_CODE = re.compile(r"\+(?![0-9A-Fa-f]{2})|=")
_CODE = re.compile(r"\+[0-9A-Fa-f]{2}")
_ENVID_OCTETS_MAX = 100  # RFC 3461 4.4
_BODIES = {body.value: body for body in BodyType}
MAIL_PARAMETERS = frozenset({"SIZE", "BODY", "SMTPUTF8", "RET", "ENVID"})
_IGNORED = frozenset({"AUTH"})  # who a client was where it came in: RFC 4954 5 lets a server know nobody
_RCPT_PARAMETERS = frozenset({"NOTIFY", "ORCPT"})


@dataclass(frozen=True, slots=True)
class MailValues:
    """The values of MAIL's parameters, RET and ENVID as received. `size` is the declared one, or 0."""

    size: int = 0
    body: BodyType = BodyType.SEVEN_BIT
    smtputf8: bool = False
    ret: str | None = None
    envid: str | None = None


def mail_values_of(parameters: Mapping[str, str], known: frozenset[str], *, lenient: bool = False) -> MailValues:
    """The values of the parameters in MAIL_PARAMETERS; the caller parses other `known` ones. `lenient`: a label that is too long is
    left out.

    Raises: WireError 555 for a parameter that is not `known`, 501 for a bad value.
    """
    if parameters.keys() - (known | _IGNORED if lenient else known):
        raise WireError(UNKNOWN_PARAMETER)
    size, body = decimal(parameters.get("SIZE", "0")), parameters.get("BODY", BodyType.SEVEN_BIT.value).upper()
    ret, envid = parameters.get("RET"), parameters.get("ENVID")
    if envid is not None and envid.isascii():
        envid = as_xtext(envid)
        if lenient and len(envid) > _ENVID_OCTETS_MAX:
            envid = None
    if (
        size is None
        or body not in _BODIES
        or parameters.get("SMTPUTF8")  # it has no value
        or (ret is not None and ret.upper() not in ("FULL", "HDRS"))
        or (envid is not None and ENVID.fullmatch(envid) is None)
    ):
        raise WireError(BAD_PARAMETER)
    return MailValues(size, _BODIES[body], "SMTPUTF8" in parameters, ret, envid)


def recipient_of(address: str, parameters: Mapping[str, str], *, lenient: bool = False) -> Recipient:
    """A recipient with its parameters. `lenient`: words of NOTIFY may be repeated, and a label that is too long or empty is left out.
    Raises: WireError 555 for an unknown parameter, 501 for a bad value."""
    if parameters.keys() - _RCPT_PARAMETERS:
        raise WireError(UNKNOWN_PARAMETER)
    notify, orcpt = parameters.get("NOTIFY"), parameters.get("ORCPT")
    if notify is not None and lenient:
        notify = ",".join(dict.fromkeys(word for word in notify.split(",") if word))
    if notify is not None and _NOTIFY.fullmatch(notify) is None:
        raise WireError(BAD_PARAMETER)
    if orcpt is not None and lenient and _is_no_label(orcpt):
        orcpt = None
    return Recipient(address, notify, None if orcpt is None else original_recipient(orcpt))


def _is_no_label(orcpt: str) -> bool:
    kind, mark, address = orcpt.partition(";")
    if not orcpt.isascii():
        return kind.lower() != "utf-8"
    return bool(kind and mark) and not 0 < len(as_xtext(address)) <= _ORCPT_OCTETS_MAX


def as_xtext(text: str) -> str:
    """The same, where each `+` and `=` that is none of xtext is one: `a+b` becomes `a+2Bb`. What is xtext stays. RFC 3461 4"""
    if "+" not in text and "=" not in text:
        return text
    return _CODE.sub(lambda code: code[0].upper(), _NO_CODE.sub(lambda found: f"+{ord(found[0]):02X}", text))


def original_recipient(orcpt: str) -> str:
    """ORCPT as passed on: as xtext, and a UTF-8 address in UTF-8 (RFC 6533, utf-8-addr-unitext) is converted to its
    ASCII form (utf-8-addr-xtext), which means the same and passes every server. Raises: WireError 501."""
    if orcpt.isascii() and not _UTF8_ORCPT.match(orcpt):
        orcpt = as_xtext(orcpt)
    if _UTF8_ORCPT.match(orcpt):
        orcpt = "".join(character if character.isascii() else f"\\x{{{ord(character):X}}}" for character in orcpt)
        if len(orcpt) > _ORCPT_OCTETS_MAX or _UTF8_ADDRESS.fullmatch(orcpt, len("utf-8;")) is None:
            raise WireError(BAD_PARAMETER)
    if _ORCPT.fullmatch(orcpt) is None:
        raise WireError(BAD_PARAMETER)
    return orcpt


def format_mail(envelope: Envelope, size: int | None, *, extra: str = "", dsn: bool = False, body: bool = True) -> str:
    """What follows `MAIL `: the path, and the parameters that the next hop offers: SIZE (`size` not None), BODY (`body`), DSN (`dsn`).

    Shapes: `extra` is whole parameters, such as `XSHADOW=HOLD:…`. SMTPUTF8 is written if the envelope has it.
    Raises: ValueError on a control character, which no parser accepts.
    """
    text = f"FROM:<{envelope.sender}>"
    if size is not None:
        text += f" SIZE={size}"
    if body and envelope.body is not BodyType.SEVEN_BIT:
        text += f" BODY={envelope.body}"
    if envelope.smtputf8:
        text += " SMTPUTF8"
    if dsn:
        text += f" RET={envelope.ret}" if envelope.ret else ""
        text += f" ENVID={as_xtext(envelope.envid)}" if envelope.envid else ""
    if extra:
        text += f" {extra}"
    if not text.isprintable() and _CONTROL.search(text):
        raise ValueError("a control character in a command")
    return text


def format_rcpt(recipient: Recipient, *, dsn: bool) -> str:
    """What follows `RCPT `, with NOTIFY and ORCPT if the next hop offers DSN.

    Raises: ValueError on a control character, which no parser accepts.
    """
    text = f"TO:<{recipient.address}>"
    if dsn:
        text += f" NOTIFY={recipient.notify}" if recipient.notify else ""
        text += f" ORCPT={as_xtext(recipient.orcpt)}" if recipient.orcpt else ""
    if not text.isprintable() and _CONTROL.search(text):
        raise ValueError("a control character in a command")
    return text


@lru_cache(maxsize=4_096)
def domain_of(address: str) -> str:
    """The domain in a form for comparison: lower case, A-labels where IDNA has them, no dot at the end, a literal with its brackets; ""
    without one."""
    domain = address.rpartition("@")[2].removesuffix(".") if "@" in address else ""
    if domain.isascii():
        return _literal_of(domain.lower()) if domain.startswith("[") else domain.lower()
    try:
        return idna.encode(domain, uts46=True).decode("ascii").lower().removesuffix(".")  # which other scripts have, too
    except (idna.IDNAError, UnicodeError, ValueError, IndexError):
        return domain.lower()


def _literal_of(domain: str) -> str:
    """An IPv6 literal in the shortest form of its address; others as they are."""
    if not domain.startswith("[ipv6:"):
        return domain
    try:
        return f"[ipv6:{ipaddress.IPv6Address(domain[6:-1])}]"
    except ValueError:
        return domain


# ---- fields of the extension

SERVER_OCTETS_MAX = 255  # RFC 5321 4.5.3.1.2
BOUNDARY_OCTETS_MAX = 64  # UTF-8; 192 as xtext
NEXT_HOP_OCTETS_MAX = 300  # as xtext: a name of 255, `:65535`, `#9`, and room for octets that xtext encodes

_SERVER = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*")

_XTEXT = re.compile(r"(?:[!-*,-<>-~]|\+[0-9A-F]{2})*")
_ENCODED = re.compile(rb"\+([0-9A-F]{2})")
ENVID = re.compile(r"[!-<>-~]{1,100}")  # RFC 3461 4.4: at most 100 octets, xtext
_NOT_PLAIN = re.compile(rb"[^!-*,-<>-~]")


def parse_server(text: str) -> ServerName:
    """A server's name, in lower case. Raises: WireError 501 5.5.4."""
    name = text.lower()
    if len(name) > SERVER_OCTETS_MAX or _SERVER.fullmatch(name) is None:
        raise bad_argument("Bad server name")
    return ServerName(name)


def parse_boundary(text: str) -> BoundaryName:
    """A boundary's name from xtext. Raises: WireError 501 5.5.4."""
    name = parse_xtext(text, "boundary")
    if not 0 < len(name.encode("utf-8")) <= BOUNDARY_OCTETS_MAX:
        raise bad_argument("Bad boundary")
    return BoundaryName(name)


def format_xtext(text: str) -> str:
    """UTF-8, with `+XX` for octets that xtext must encode. Raises UnicodeEncodeError for lone surrogates."""
    return _NOT_PLAIN.sub(lambda found: b"+%02X" % found[0][0], text.encode("utf-8")).decode("ascii")


def parse_xtext(text: str, what: str) -> str:
    """Inverse of `format_xtext`. Raises: WireError 501 5.5.4."""
    if _XTEXT.fullmatch(text) is None:
        raise bad_argument(f"Bad {what}")
    try:
        return decode_xtext(text.encode("ascii")).decode("utf-8")
    except UnicodeDecodeError:
        raise bad_argument(f"Bad {what}") from None


def decode_xtext(octets: bytes) -> bytes:
    """Replace each `+XX` by its octet; anything else stays as it is."""
    return _ENCODED.sub(lambda found: bytes((int(found[1], 16),)), octets)


def format_next_hop(next_hop: str) -> str:
    """As xtext. What the grammar does not allow becomes `?`; one that is too long is cut."""
    text = "".join([letter if _is_plain(letter) else "?" for letter in next_hop]) or "?"
    while len(written := format_xtext(text)) > NEXT_HOP_OCTETS_MAX:
        text = text[:-1]
    return written


def parse_next_hop(text: str) -> str:
    """Inverse of `format_next_hop`, for whatever it need not change. Raises: WireError 501 5.5.4."""
    next_hop = parse_xtext(text, "next hop")
    if not 0 < len(text) <= NEXT_HOP_OCTETS_MAX or not all(map(_is_plain, next_hop)):
        raise bad_argument("Bad next hop")
    return next_hop


def _is_plain(letter: str) -> bool:
    """Not a space, which separates words of a line, nor a backslash, which separates the parts of a queue's identity."""
    return letter.isprintable() and letter not in " \\"


COUNTER_MAX = 2**63 - 1  # SQLite's largest integer: 19 digits. Sequences, positions, incarnations, sizes
UUID_OCTETS = 36
NUMBER_OCTETS_MAX = 10 + 1 + 10 + 1 + UUID_OCTETS  # 58

_COUNTER = re.compile(r"0|[1-9][0-9]{0,18}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}")


def parse_counter(text: str, what: str, highest: int = COUNTER_MAX) -> int:
    """A decimal number without sign or leading zeros. `what` names it in the reply.

    Raises: WireError 501 5.5.4.
    """
    if _COUNTER.fullmatch(text) is None or (value := int(text)) > highest:  # at most 19 digits
        raise bad_argument(f"Bad {what}")
    return value


def parse_uuid(text: str, what: str) -> str:
    """A UUID with dashes, in lower case. Raises: WireError 501 5.5.4."""
    if _UUID.fullmatch(text) is None:
        raise bad_argument(f"Bad {what}")
    return text.lower()


def parse_message_id(text: str) -> MessageId:
    """A network message id. Raises: WireError 501 5.5.4."""
    return MessageId(parse_uuid(text, "message id"))


def parse_database_id(text: str) -> DatabaseId:
    """A database id. Raises: WireError 501 5.5.4."""
    return DatabaseId(parse_uuid(text, "database id"))


def format_number(number: CopyNumber) -> str:
    """`<ownership>.<placement>.<database id>`."""
    return f"{number.ownership}.{number.placement}.{number.database}"


def parse_number(text: str) -> CopyNumber:
    """Inverse of `format_number`. Raises: WireError 501 5.5.4."""
    parts = text.split(".", 3)
    if len(parts) != 3:
        raise bad_argument("Bad copy number")
    rank = parse_rank(parts[0], parts[1])
    return CopyNumber(rank[0], rank[1], parse_database_id(parts[2]))


def parse_rank(ownership: str, placement: str) -> tuple[int, int]:
    """The two counters of a copy number. Placement 0 is a question that chooses no server (docs/protocol.md 7.3).

    Raises: WireError 501 5.5.4.
    """
    return parse_counter(ownership, "copy number", RANK_MAX), parse_counter(placement, "copy number", RANK_MAX)


ORDINAL_MAX = 5_000
"""Most recipients of one message. Worst case, every second one of 5,000: 5x2 + 45x3 + 450x4 + 2,000x5 = 11,945 octets of ranges (with
a comma each), 24 lines of an XQDISCARD reply (24 x 79 octets around them): 13.9 kB, so that one event always fits its 24 KiB."""

RANGES_OCTETS_MAX = 12_000  # 11,945, rounded up
DONE_RANGES_OCTETS_MAX = 512  # longer ones are sent as a bit map
DONE_OCTETS_MAX = 1 + 834  # "~" and base64url of 5,000 bits = 625 octets, without padding

_RANGES = re.compile(r"[1-9][0-9]{0,5}(?:-[1-9][0-9]{0,5})?(?:,[1-9][0-9]{0,5}(?:-[1-9][0-9]{0,5})?)*")
_BITS = re.compile(r"~[A-Za-z0-9_-]{2,834}")


def format_ordinals(ordinals: Ordinals) -> str:
    """Ascending, in the fewest ranges. Empty for the empty set."""
    return ",".join(format_ranges(ordinals))


def format_ranges(ordinals: Ordinals) -> list[str]:
    """The ranges of `format_ordinals` as a list, for text that must be split into lines."""
    if not ordinals:
        return []
    inside = sorted(ordinals)
    breaks = [(left, right) for left, right in pairwise(inside) if right != left + 1]
    firsts = [inside[0], *(right for _, right in breaks)]
    lasts = [*(left for left, _ in breaks), inside[-1]]
    return [str(first) if first == last else f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True)]


def parse_ordinals(text: str, highest: int = ORDINAL_MAX) -> Ordinals:
    """Inverse of `format_ordinals`. Ranges must ascend and not overlap; nothing above `highest`.

    Raises: WireError 501 5.5.4.
    """
    if not text:
        return NO_ORDINALS
    if len(text) > RANGES_OCTETS_MAX or _RANGES.fullmatch(text) is None:
        raise bad_argument("Bad recipient ordinals")
    found: list[int] = []
    before = 0
    for item in text.split(","):
        first_text, _, last_text = item.partition("-")
        first = int(first_text)
        last = int(last_text) if last_text else first
        if first <= before or last > highest or (last_text and last <= first):
            raise bad_argument("Bad recipient ordinals")
        found.extend(range(first, last + 1))
        before = last
    return frozenset(found)


def format_done(ordinals: Ordinals) -> str:
    """Ranges up to 512 octets, else `~` and a bit map in base64url: exact, and at most 835 octets.

    Shapes: bit 0 (the lowest of the first octet) is ordinal 1; trailing zero octets are left out.
    """
    text = format_ordinals(ordinals)
    if len(text) <= DONE_RANGES_OCTETS_MAX:
        return text
    bits = 0
    for ordinal in ordinals:
        bits |= 1 << (ordinal - 1)
    octets = bits.to_bytes((max(ordinals) + 7) // 8, "little")
    return "~" + base64.urlsafe_b64encode(octets).rstrip(b"=").decode("ascii")


def parse_done(text: str, highest: int = ORDINAL_MAX) -> Ordinals:
    """Inverse of `format_done`. Raises: WireError 501 5.5.4."""
    if not text.startswith("~"):
        return parse_ordinals(text, highest)
    if _BITS.fullmatch(text) is None or len(text) % 4 == 2:
        raise bad_argument("Bad recipient ordinals")
    octets = base64.urlsafe_b64decode(text[1:] + "=" * (-(len(text) - 1) % 4))
    bits = int.from_bytes(octets, "little")
    if bits.bit_length() > highest:
        raise bad_argument("Bad recipient ordinals")
    return frozenset(place for place, bit in enumerate(reversed(f"{bits:b}"), 1) if bit == "1")


SPAN_MAX = timedelta(days=1)
"""ShadowResubmitTimeSpan: at most one day. Source: exchange-facts 3. The timeout of TRACK may be 15 times a day, and is then sent as one: a
lease lasts for the shortest of both spans and the timeout, and no span is longer."""

_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?!24)[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")  # from 3.14 on, Python takes 24:00
_SPAN = re.compile(r"(0|[1-9][0-9]{0,5})(?:\.([0-9]{1,6}))?")


@lru_cache(256)  # the rows and the copy of a message have the same ones
def format_instant(at: datetime) -> str:
    """`at` must be timezone-aware."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat("T", "microseconds")[:26] + "Z"


def parse_instant(text: str) -> datetime:
    """Inverse of `format_instant`; from 1970 up to 9000. Raises: WireError 501 5.5.4."""
    if _INSTANT.fullmatch(text) is None:
        raise bad_argument("Bad time")
    try:
        at = datetime.fromisoformat(text[:26]).replace(tzinfo=UTC)
    except ValueError:  # a date that does not exist
        raise bad_argument("Bad time") from None
    if not EARLIEST <= at < LATEST:
        raise bad_argument("Bad time")
    return at


def format_span(span: timedelta) -> str:
    """Seconds, with as few decimals as needed."""
    seconds, rest = divmod(span, timedelta(seconds=1))
    return f"{seconds}.{rest.microseconds:06}".rstrip("0") if rest else str(seconds)


def parse_span(text: str) -> timedelta:
    """Inverse of `format_span`; above zero, at most a day. Raises: WireError 501 5.5.4."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise bad_argument("Bad span")
    span = timedelta(seconds=int(found[1]), microseconds=int((found[2] or "").ljust(6, "0")))
    if not timedelta() < span <= SPAN_MAX:
        raise bad_argument("Bad span")
    return span
