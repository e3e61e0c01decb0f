"""What a client that may not relay can make this node send to others: notifications, few, small, and not into our own networks.
docs/security.md "Strangers".

A stranger chooses the sender of its message, and so who is notified of what becomes of it. The rules:

- RET and NOTIFY are limited when the message is accepted, so that copies and next hops have the limited ones, too.
- Nobody is notified of a delay, and a domain gets `DSNS_AT_ONCE` notifications, and then one in `DSN_SECONDS`; all that are below the same
  one ten times as much together, because one server may have the mail of as many names as somebody likes to invent. What `co.uk` and its
  like are below has many owners, who share nothing.
- No notification goes to an address of this machine, nor (by setting) to a private network, unless a route says so.

Who is a stranger is known by the connector and the client's address in the envelope. Mail of a peer keeps, or gets, a NOTIFY that no
stranger's has: the peer answers for its clients.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterable

from shadowrelay.model.message import Envelope
from shadowrelay.model.receive_settings import RelayRights
from shadowrelay.model.replies import WireError
from shadowrelay.model.routing import Destination, Reach
from shadowrelay.model.setting_texts import is_in_networks
from shadowrelay.model.settings import Settings
from shadowrelay.protocol.addresses import has_routing
from shadowrelay.protocol.fields import domain_of
from shadowrelay.protocol.original_client import parse_original_client

RET = "HDRS"
NOTIFY_OF_OURS = "FAILURE,DELAY"  # what a recipient without NOTIFY means here
NEVER = "NEVER"
FAILURE = "FAILURE"
WORDS_OF_OURS = frozenset({"SUCCESS", "DELAY"})
DSNS_AT_ONCE = 20
DSN_SECONDS = 3.0
TOGETHER = 10  # times what a domain gets, for all with one owner, as far as a name tells
DOMAINS_MAX = 10_000


def notify(asked: str) -> str:
    """What remains of a stranger's NOTIFY: of failures, or of nothing."""
    return FAILURE if FAILURE in _words(asked) else NEVER


def _words(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.upper().split(","))


def is_stranger(envelope: Envelope, settings: Settings) -> bool:
    """Whether this message came from a client that may not relay. In doubt not: it came by a connector that this node does not have, or has
    with other rights, because no stranger could have given it all these recipients. The node that took it may have been another one."""
    connector = next((each for each in settings.receive_connectors if each.name == envelope.connector), None)
    if connector is None or not envelope.client_address or envelope.relayed_from:
        return False
    if any(WORDS_OF_OURS & _words(recipient.notify) for recipient in envelope.recipients if recipient.notify):
        return False
    if not all(is_accepted(recipient.address, connector.accepted_domains) for recipient in envelope.recipients):
        return False
    if envelope.original_client:
        is_by_client = connector.relay_rights is RelayRights.CLIENT
        return not is_in_networks(envelope.client_address if is_by_client else _speaker(envelope), connector.relay_from)
    return not is_in_networks(envelope.client_address, connector.relay_from + connector.externally_secured)


def _speaker(envelope: Envelope) -> str:
    """Who named the original client of this message."""
    try:
        return parse_original_client(envelope.original_client).by
    except WireError:
        return ""


def is_laundered(envelope: Envelope, settings: Settings, destination_of: Callable[[str], Destination]) -> bool:
    """Whether a notification to the stranger who sent this would be passed on to somewhere else by a server that trusts this node: one of
    our own domains, or of a route. Any other server gets it as from anybody, and `bounce-user%example.com@esp.example` is a name there."""
    if not has_routing(envelope.sender):
        return False
    connector = next((each for each in settings.receive_connectors if each.name == envelope.connector), None)
    if connector is None or connector.allow_untrusted_routing:
        return False
    return is_ours(envelope.sender, settings) or bool(destination_of(envelope.sender).hosts)


def reach(envelope: Envelope, settings: Settings) -> Reach:
    """Where this message may be sent by DNS or an address literal. Only a notification of ours names a client and has no sender."""
    is_for_stranger = not envelope.sender and bool(envelope.connector) and envelope.message_id[14:15] == "5"
    if not is_for_stranger or is_ours(envelope.recipients[0].address, settings):
        return Reach.ANYWHERE
    return Reach.BEYOND_THIS_MACHINE if settings.send.dsn_to_private_networks else Reach.PUBLIC


def is_ours(address: str, settings: Settings) -> bool:
    """Whether anybody may send to this domain here."""
    return any(is_accepted(address, each.accepted_domains) for each in settings.receive_connectors)


def is_accepted(address: str, domains: Iterable[str]) -> bool:
    """Whether these accepted domains have that of the address; `*.` stands for all that are below."""
    domain = domain_of(address)
    for each in domains:
        if domain.endswith(f".{domain_of(f'@{each[2:]}')}") if each.startswith("*.") else domain == domain_of(f"@{each}"):
            return True
    return False


def _owner(domain: str) -> str:
    """The last two labels; three where the second level of a country is as short as in `co.uk` and `com.au`. Of an address literal its
    network: 24 bits of IPv4, 64 of IPv6."""
    if domain.startswith("["):
        try:
            address = ipaddress.ip_address(domain[1:-1].removeprefix("ipv6:"))
        except ValueError:
            return domain
        address = getattr(address, "ipv4_mapped", None) or address
        return str(ipaddress.ip_network((address, 24 if address.version == 4 else 64), strict=False))
    labels = domain.split(".")
    is_of_country = len(labels) > 2 and len(labels[-1]) == 2 and len(labels[-2]) <= 3
    return ".".join(labels[-3 if is_of_country else -2 :])


class DsnRate:
    """How many more notifications a domain may get for strangers' mail. Units: `now` in seconds of `Clock.awake`."""

    def __init__(self) -> None:
        self._free_at: OrderedDict[str, float] = OrderedDict()  # by domain, or `*.` and that of its owner: when all are there again

    def takes(self, domain: str, now: float) -> bool:
        """Whether one more may go; then it counts."""
        shares = {domain: DSN_SECONDS, f"*.{_owner(domain)}": DSN_SECONDS / TOGETHER}
        free_at = {name: max(self._free_at.pop(name, now), now) for name in shares}
        left = {name: DSNS_AT_ONCE * DSN_SECONDS - (free_at[name] - now) for name in shares}
        is_taken = all(left[name] > seconds * 0.999 for name, seconds in shares.items())  # many tenths do not add up to whole numbers
        for name, seconds in shares.items():
            self._free_at[name] = free_at[name] + seconds if is_taken else free_at[name]
        while len(self._free_at) > DOMAINS_MAX:
            self._free_at.popitem(last=False)
        return is_taken
