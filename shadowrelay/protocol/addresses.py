"""What an address means: one form for each mailbox, and whether its local part asks for a route of its own. RFC 5321 4.1.2

**One form.** A quoted string that needs no quotes is the same mailbox as without (RFC 5321 4.1.2: the sender SHOULD avoid it), a backslash
before any character means that character, and domains are compared without case, as A-labels, without a dot at the end. Rules, routes
and the detection of duplicates compare `canonical`; on the wire an address stays as received.

**Routing.** `user%elsewhere`, `elsewhere!user` and `"user@elsewhere"` before the @ of a domain of ours are old forms of source routes. A
server behind this one that trusts it may obey them, and so relay for whoever wrote them. RFC 5321 appendix C, F.2. So may Exchange obey
an address of SMTP within another one (`IMCEASMTP-user+40elsewhere`); those of mailboxes (`IMCEAEX-`), to which old mail is answered, do not
lead elsewhere.
"""

import re
import unicodedata
from functools import lru_cache

from shadowrelay.protocol.fields import domain_of

ROUTING_CHARACTERS = frozenset("@%!")
_ENCAPSULATED = re.compile(r"IMCEA[A-Z0-9]*SMTP-", re.IGNORECASE | re.ASCII)  # `IMCEASMTP-user+40elsewhere@`; IMCEAEX- is a mailbox
_PLAIN = re.compile(r"[^\x00-\x20\x7f-\x9f\"(),.:;<>@\[\\\]]+(?:\.[^\x00-\x20\x7f-\x9f\"(),.:;<>@\[\\\]]+)*")
_PAIR = re.compile(r"\\(.)", re.DOTALL)
_TO_BE_QUOTED = re.compile(r'(["\\])')


def unquoted(local: str) -> str:
    """What a local part says, without its quotes and backslashes."""
    if len(local) >= 2 and local.startswith('"') and local.endswith('"'):
        return _PAIR.sub(r"\1", local[1:-1])
    return local


def canonical_local(local: str) -> str:
    """A dot-string if that says the same, else a quoted string with as few backslashes as possible. Case stays. RFC 5321 4.1.2"""
    if local.isascii() and not local.startswith('"'):
        return local
    text = unicodedata.normalize("NFC", unquoted(local))
    return text if _PLAIN.fullmatch(text) else '"' + _TO_BE_QUOTED.sub(r"\\\1", text) + '"'


@lru_cache(maxsize=4_096)
def canonical(address: str) -> str:
    """The address in the form for comparison. Case of the local part stays, but not that of a bare `Postmaster`. RFC 5321 2.4, 4.5.1"""
    local, at, _ = address.rpartition("@")
    return f"{canonical_local(local)}@{domain_of(address)}" if at else address.lower()


@lru_cache(maxsize=4_096)
def mailbox(address: str) -> str:
    """As `canonical`, and without the case of the local part: for rules and routes, which cannot distinguish `A@x` from `a@x`."""
    return canonical(address).lower()


def has_routing(address: str) -> bool:
    """Whether the local part asks to be passed on, in a form that some server obeys."""
    local = address.rpartition("@")[0].replace("\\", "").lstrip('"')
    text = local if local.isascii() else unicodedata.normalize("NFKC", local)
    return not ROUTING_CHARACTERS.isdisjoint(text) or _ENCAPSULATED.match(text) is not None
