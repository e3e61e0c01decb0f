"""Parses and formats MAIL and RCPT: paths of RFC 5321 4.1.2 and RFC 6531 3.3, and ESMTP parameters of the extensions that we offer.

Parsing is strict: no space after the colon, angle brackets required, no trailing dot and no underscore in a domain. Only spaces at
the end of the line are accepted (RFC 5321 4.1.1). Control characters are always refused.

A lenient connector also accepts what some devices write: spaces after the colon, and dots anywhere in a local part
(`john.@docomo.ne.jp`). Such a local part becomes the equivalent quoted string (`"john."@docomo.ne.jp`), so that everything
after the parser, here and on every other server, sees a valid address.
"""

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache

import idna

from shadowrelay.model.message import BodyType, Envelope, Recipient
from shadowrelay.model.replies import Reply, WireError
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.fields import BAD_PARAMETER, BAD_RECIPIENT, BAD_SENDER, ENVID, SMTPUTF8_NEEDED, UNKNOWN_PARAMETER, bad_argument

LOCAL_PART_OCTETS_MAX = 64  # RFC 5321 4.5.3.1.1
PATH_OCTETS_MAX = 256  # 4.5.3.1.3, with the brackets and a source route; so a domain never reaches the 255 octets of 4.5.3.1.2
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
_DOTTED_PATH = re.compile(
    rf'<(?:{_ROUTE})?(?P<local>[^{_NO_TEXT}"(),:;<>@\[\\\]]+)@(?P<domain>{_DOMAIN})>'
)  # dots anywhere; not with an address literal, which such devices do not write
_POSTMASTER = re.compile(r"<(postmaster)>", re.IGNORECASE | re.ASCII)
_PARAMETER = re.compile(rf"([A-Za-z0-9][A-Za-z0-9-]*)(?:=([^{_NO_TEXT}=]+))?")
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_IPV4 = re.compile(r"[0-9.]{7,15}")


@dataclass(frozen=True, slots=True)
class MailCommand:
    """`address` is empty for the null sender. Keys are upper case; a parameter without a value has the value ""."""

    address: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RcptCommand:
    """`address` has no domain only when it is `Postmaster`. Parameters as in `MailCommand`."""

    address: str
    parameters: Mapping[str, str]


def parse_mail(argument: str, *, lenient: bool = False) -> MailCommand:
    """Parse what follows `MAIL `. UTF-8 is accepted if SMTPUTF8 is among the parameters. `lenient`: see the module docstring.

    Raises: WireError 501 5.1.7 for the path, 553 5.6.7 for UTF-8 without SMTPUTF8, 501 5.5.4 for the rest.
    """
    rest = _after(argument, "FROM:", "Syntax: MAIL FROM:<address> [parameters]", lenient)
    if rest.startswith("<>"):
        address, end = "", 2
    else:
        address, end = _path_of(rest, BAD_SENDER, lenient)
    parameters = _parameters_of(rest, end, BAD_SENDER) if end < len(rest) else {}
    if not rest.isascii() and "SMTPUTF8" not in parameters:
        raise WireError(SMTPUTF8_NEEDED)
    return MailCommand(address, parameters)


def parse_rcpt(argument: str, *, smtputf8: bool = False, lenient: bool = False) -> RcptCommand:
    """Parse what follows `RCPT `; `smtputf8`: the transaction's MAIL had that parameter. `lenient`: see the module docstring.

    Raises: WireError 501 5.1.3 for the path, 553 5.6.7 for UTF-8 without SMTPUTF8, 501 5.5.4 for the rest.
    """
    rest = _after(argument, "TO:", "Syntax: RCPT TO:<address> [parameters]", lenient)
    if postmaster := _POSTMASTER.match(rest):
        address, end = postmaster[1], postmaster.end()
    else:
        address, end = _path_of(rest, BAD_RECIPIENT, lenient)
    parameters = _parameters_of(rest, end, BAD_RECIPIENT) if end < len(rest) else {}
    if not smtputf8 and not rest.isascii():
        raise WireError(SMTPUTF8_NEEDED)
    return RcptCommand(address, parameters)


def _after(argument: str, word: str, syntax: str, lenient: bool) -> str:
    rest = argument[len(word) :].lstrip(" ") if lenient else argument[len(word) :]
    if len(argument) > ARGUMENT_OCTETS_MAX or argument[: len(word)].upper() != word or rest[:1] in ("", " "):
        raise bad_argument(syntax)
    return rest


def _path_of(rest: str, bad: Reply, lenient: bool) -> tuple[str, int]:
    """The mailbox, and the index at which the path ends."""
    found = _PATH.match(rest)
    if found is None and lenient and (dotted := _DOTTED_PATH.match(rest)) is not None and _is_utf8(dotted[0]):
        mailbox = f'"{dotted["local"]}"@{dotted["domain"]}'
        _path_of(f"<{mailbox}>", bad, lenient=False)  # the limits apply to the address that is passed on
        return mailbox, dotted.end()
    if found is None or not (found[0].isascii() or _is_utf8(found[0])):
        raise WireError(bad)
    mailbox, local, literal = found.groups()
    if len(found[0].encode()) > PATH_OCTETS_MAX or len(local.encode()) > LOCAL_PART_OCTETS_MAX:
        raise WireError(bad)
    if literal is not None and not _is_literal(literal):
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


def _parameters_of(rest: str, end: int, bad: Reply) -> dict[str, str]:
    text = rest[end:].rstrip(" ")
    if not text:
        return {}
    if text[0] != " ":
        raise WireError(bad)
    parameters: dict[str, str] = {}
    for word in text[1:].split(" ", PARAMETERS_COUNT_MAX):
        found = _PARAMETER.fullmatch(word)
        if found is None or not _is_utf8(word) or (key := found[1].upper()) in parameters:
            raise bad_argument("Bad or repeated parameter")
        parameters[key] = found[2] or ""
    if len(parameters) > PARAMETERS_COUNT_MAX:
        raise bad_argument("Too many parameters")
    return parameters


_SIZE = re.compile(r"[0-9]{1,20}")  # RFC 1870
_NOTIFY = re.compile(r"NEVER|(?:SUCCESS|FAILURE|DELAY)(?:,(?:SUCCESS|FAILURE|DELAY)){0,2}", re.IGNORECASE)  # RFC 3461 4.1
_ORCPT = re.compile(r"[A-Za-z0-9-]{1,64};[!-<>-~]{1,500}")  # RFC 3461 4.2
_UTF8_ORCPT = re.compile(r"utf-8;", re.IGNORECASE)  # RFC 6533 3
_UTF8_ADDRESS = re.compile(r"(?:[!-*,-<>-\[\]-~]|\\x\{(?:[0-9A-F]{2,5}|10[0-9A-F]{4})\})*", re.IGNORECASE)
_ORCPT_OCTETS_MAX = 500
_BODIES = {body.value: body for body in BodyType}
MAIL_PARAMETERS = frozenset({"SIZE", "BODY", "SMTPUTF8", "RET", "ENVID"})
_RCPT_PARAMETERS = frozenset({"NOTIFY", "ORCPT"})


@dataclass(frozen=True, slots=True)
class MailValues:
    """The values of MAIL's parameters, RET and ENVID as received. `size` is the declared one, or 0."""

    size: int = 0
    body: BodyType = BodyType.SEVEN_BIT
    smtputf8: bool = False
    ret: str | None = None
    envid: str | None = None


def mail_values_of(parameters: Mapping[str, str], known: frozenset[str]) -> MailValues:
    """The values of the parameters in MAIL_PARAMETERS; the caller parses other `known` ones.

    Raises: WireError 555 for a parameter that is not `known`, 501 for a bad value.
    """
    if parameters.keys() - known:
        raise WireError(UNKNOWN_PARAMETER)
    size, body = parameters.get("SIZE", "0"), parameters.get("BODY", BodyType.SEVEN_BIT.value).upper()
    ret, envid = parameters.get("RET"), parameters.get("ENVID")
    if (
        _SIZE.fullmatch(size) is None
        or body not in _BODIES
        or parameters.get("SMTPUTF8")  # it has no value
        or (ret is not None and ret.upper() not in ("FULL", "HDRS"))
        or (envid is not None and ENVID.fullmatch(envid) is None)
    ):
        raise WireError(BAD_PARAMETER)
    return MailValues(int(size), _BODIES[body], "SMTPUTF8" in parameters, ret, envid)


def recipient_of(address: str, parameters: Mapping[str, str]) -> Recipient:
    """A recipient with its parameters. Raises: WireError 555 for an unknown parameter, 501 for a bad value."""
    if parameters.keys() - _RCPT_PARAMETERS:
        raise WireError(UNKNOWN_PARAMETER)
    notify, orcpt = parameters.get("NOTIFY"), parameters.get("ORCPT")
    if notify is not None and _NOTIFY.fullmatch(notify) is None:
        raise WireError(BAD_PARAMETER)
    return Recipient(address, notify, None if orcpt is None else original_recipient(orcpt))


def original_recipient(orcpt: str) -> str:
    """ORCPT as passed on: unchanged, except that a UTF-8 address in UTF-8 (RFC 6533, utf-8-addr-unitext) is converted to its
    ASCII form (utf-8-addr-xtext), which means the same and passes every server. Raises: WireError 501."""
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
        text += f" ENVID={envelope.envid}" if envelope.envid else ""
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
        text += f" ORCPT={recipient.orcpt}" if recipient.orcpt else ""
    if not text.isprintable() and _CONTROL.search(text):
        raise ValueError("a control character in a command")
    return text


@lru_cache(maxsize=4_096)
def domain_of(address: str) -> str:
    """The domain in a form for comparison: lower case, A-labels where IDNA has them, a literal with its brackets; "" without one."""
    domain = address.rpartition("@")[2] if "@" in address else ""
    if domain.isascii():
        return domain.lower()
    try:
        return idna.encode(domain, uts46=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError, ValueError, IndexError):
        return domain.lower()
