"""The parameters of MAIL and RCPT: which are known and which values they may have. Kept as they came.

The grammar of a line is `wire.addresses`; what stands here is what the extensions in our reply to EHLO promise.
"""

import re
from collections.abc import Mapping

from shadowrelay.model.errors import WireError
from shadowrelay.model.message import BodyType, Recipient
from shadowrelay.smtp.answers import BAD_PARAMETER, UNKNOWN_PARAMETER
from shadowrelay.smtp.session import Transaction

_SIZE = re.compile(r"[0-9]{1,20}")  # RFC 1870
_ENVID = re.compile(r"[!-<>-~]{1,100}")  # RFC 3461 4.4
_NOTIFY = re.compile(r"NEVER|(?:SUCCESS|FAILURE|DELAY)(?:,(?:SUCCESS|FAILURE|DELAY)){0,2}", re.IGNORECASE)  # RFC 3461 4.1
_ORCPT = re.compile(r"[A-Za-z0-9-]{1,64};[!-<>-~]{1,500}")  # RFC 3461 4.2
_UTF8_ORCPT = re.compile(r"utf-8;", re.IGNORECASE)  # RFC 6533 3
_UTF8_ADDRESS = re.compile(r"(?:[!-*,-<>-\[\]-~]|\\x\{(?:[0-9A-F]{2,5}|10[0-9A-F]{4})\})*", re.IGNORECASE)
_ORCPT_OCTETS_MAX = 500
_BODIES = {body.value: body for body in BodyType}
MAIL_PARAMETERS = frozenset({"SIZE", "BODY", "SMTPUTF8", "RET", "ENVID"})
_RCPT_PARAMETERS = frozenset({"NOTIFY", "ORCPT"})


def take_mail_parameters(transaction: Transaction, parameters: Mapping[str, str], known: frozenset[str]) -> int:
    """Note them in the transaction. The result is the size that was said, or 0.

    Raises: WireError 555 for one that is not `known`, 501 for a bad value.
    """
    if not parameters:
        return 0
    if parameters.keys() - known:
        raise WireError(UNKNOWN_PARAMETER)
    for key, value in parameters.items():
        if not _take(transaction, key, value):
            raise WireError(BAD_PARAMETER)
    return int(parameters.get("SIZE", 0))


def _take(transaction: Transaction, key: str, value: str) -> bool:
    if key == "SIZE":
        return _SIZE.fullmatch(value) is not None
    if key == "BODY":
        body = _BODIES.get(value.upper())
        transaction.body = body or BodyType.SEVEN_BIT
        return body is not None
    if key == "SMTPUTF8":
        transaction.smtputf8 = True
        return not value
    if key == "RET":
        transaction.ret = value
        return value.upper() in ("FULL", "HDRS")
    if key == "ENVID":
        transaction.envid = value
        return _ENVID.fullmatch(value) is not None
    return True  # a subclass's own: it reads the value itself


def recipient_of(address: str, parameters: Mapping[str, str]) -> Recipient:
    """A recipient with its parameters. Raises: WireError 555 for an unknown one, 501 for a bad value."""
    if not parameters:
        return Recipient(address)
    if parameters.keys() - _RCPT_PARAMETERS:
        raise WireError(UNKNOWN_PARAMETER)
    notify, orcpt = parameters.get("NOTIFY"), parameters.get("ORCPT")
    if notify is not None and _NOTIFY.fullmatch(notify) is None:
        raise WireError(BAD_PARAMETER)
    return Recipient(address, notify, None if orcpt is None else original_recipient(orcpt))


def original_recipient(orcpt: str) -> str:
    """ORCPT as it is passed on: as it came, but for a UTF-8 address in UTF-8 itself (RFC 6533, utf-8-addr-unitext), which is
    written in ASCII (utf-8-addr-xtext): that means the same, and passes every server. Raises: WireError 501."""
    if _UTF8_ORCPT.match(orcpt):
        orcpt = "".join(character if character.isascii() else f"\\x{{{ord(character):X}}}" for character in orcpt)
        if len(orcpt) > _ORCPT_OCTETS_MAX or _UTF8_ADDRESS.fullmatch(orcpt, len("utf-8;")) is None:
            raise WireError(BAD_PARAMETER)
    if _ORCPT.fullmatch(orcpt) is None:
        raise WireError(BAD_PARAMETER)
    return orcpt
