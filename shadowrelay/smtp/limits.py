"""Limits, rights and replies of a receive connector. RFC 5321 4.5.3; docs/protocol.md 13, 14.

`relay_from` allows relaying to any recipient, `accepted_domains` allows any client to send to its recipients; nothing else allows
anything. Limits that an operator may change are in `ReceiveConnector`, fixed ones are here, each with its arithmetic.

Replies are named for the situation, and never echo client input. 5xx is used only if the client is at fault and would be again;
failures on this side are 4xx.
"""

import contextlib
import resource
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from shadowrelay.model.client_address import client_network
from shadowrelay.model.receive_settings import ReceiveConnector
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import is_in_networks
from shadowrelay.model.settings import Route
from shadowrelay.protocol.fields import ORDINAL_MAX, domain_of
from shadowrelay.rules.router import Router

# for any session
UNKNOWN_COMMAND = Reply(500, "5.5.1", "Command not recognized")
NOT_IMPLEMENTED = Reply(502, "5.5.1", "Command not implemented")
NOT_UTF8 = Reply(501, "5.5.2", "Argument is not UTF-8")
NO_SMTP_CLIENT = Reply(421, "4.7.0", "This is not an HTTP server")
TOO_MANY_SESSIONS = Reply(421, "4.3.2", "Too many sessions, try again later")
TOO_MANY_SESSIONS_OF_ADDRESS = Reply(421, "4.7.0", "Too many sessions from your address, try again later")
TOO_MANY_ERRORS = Reply(421, "4.7.0", "Too many protocol errors")
TOO_MANY_RECIPIENTS = Reply(452, "4.5.3", "Too many recipients")  # RFC 5321 4.5.3.1.10
TIMED_OUT = Reply(421, "4.4.2", "Timeout, closing connection")
SHUTTING_DOWN = Reply(421, "4.3.2", "Service shutting down, closing connection")
NOT_ACTIVE = Reply(421, "4.3.2", "Service not active, closing connection")  # this node drains
OTHER_PROCESS = Reply(421, "4.7.1", "Another process has your name, closing connection")
COMMAND_TOO_LONG = Reply(500, "5.5.2", "Command line too long")
LINE_TOO_LONG = Reply(554, "5.6.0", "Line too long")
MESSAGE_TOO_BIG = Reply(552, "5.3.4", "Message size exceeds the limit")
BARE_IN_CHUNKS = Reply(554, "5.6.0", "A CR or LF that is no line end needs BODY=BINARYMIME")
BINARY_HEADER = Reply(554, "5.6.0", "The header is no text in lines")
BARE_CR_OR_LF = Reply(521, "5.5.2", "Bare CR or LF is not allowed")  # and the session is closed

# for mail
OK = Reply(250, "2.0.0", "OK")
SENDER_OK = Reply(250, "2.1.0", "Sender OK")
RECIPIENT_OK = Reply(250, "2.1.5", "Recipient OK")
START_DATA = Reply(354, "", "End data with <CR><LF>.<CR><LF>")
START_TLS = Reply(220, "2.0.0", "Ready to start TLS")
BYE = Reply(221, "2.0.0", "Bye")
HELP = Reply(214, "2.0.0", "See RFC 5321")
CANNOT_VERIFY = Reply(252, "2.5.0", "Cannot VRFY user, but will accept message and attempt delivery")
BAD_HELLO_NAME = Reply(501, "5.5.4", "Syntax: EHLO or HELO, and your host name")
NO_ARGUMENT_ALLOWED = Reply(501, "5.5.4", "No argument allowed")
ARGUMENT_NEEDED = Reply(501, "5.5.4", "Argument needed")
HELLO_FIRST = Reply(503, "5.5.1", "Send EHLO or HELO first")
NESTED_MAIL = Reply(503, "5.5.1", "Nested MAIL command")
MAIL_FIRST = Reply(503, "5.5.1", "Need MAIL command first")
CHUNKS_HAVE_BEGUN = Reply(503, "5.5.1", "The content has begun by BDAT")  # RFC 3030 2
BINARY_NEEDS_BDAT = Reply(501, "5.5.4", "BODY=BINARYMIME needs BDAT")  # RFC 3030 3
RCPT_FIRST = Reply(503, "5.5.1", "Need RCPT command first")
NO_VALID_RECIPIENTS = Reply(554, "5.5.1", "No valid recipients")  # RFC 2920 3.1
TLS_IS_ACTIVE = Reply(503, "5.5.1", "TLS is already active")
RELAYING_DENIED = Reply(550, "5.7.1", "Relaying denied")
ROUTING_DENIED = Reply(550, "5.7.1", "Routing by the local part is not allowed")
NO_RETURN_PATH = Reply(550, "5.1.8", "Mail could not be returned to that sender address")  # RFC 3463 X.1.8
TOO_MANY_COMMANDS = Reply(421, "4.7.0", "Too many commands that lead to no mail")
TLS_FIRST = Reply(530, "5.7.0", "Must issue a STARTTLS command first")  # RFC 3207 4
TLS_BUSY = Reply(454, "4.7.0", "TLS is not available now")  # RFC 3207 4
NO_POSTMASTER = Reply(550, "5.1.1", "No postmaster without a domain here")
LOOP = Reply(554, "5.4.6", "Too many hops, message loops")  # RFC 3463 X.4.6
CIRCLE = Reply(554, "5.4.6", "Message loops: it came here from the same server, by the same way and for the same recipient, before")
OUT_OF_STEP = Reply(421, "4.7.0", "Protocol synchronization error")  # octets where RFC 2920 allows none
FAILED_IN_CONTENT = Reply(421, "4.3.0", "Local error in processing, closing connection")
NO_PROXY_HEADER = Reply(421, "4.7.0", "A header of the PROXY protocol is needed from your address")
SESSION_IS_OF_OTHERS = Reply(503, "5.5.1", "Not in a transaction")  # XCLIENT, XFORWARD
PROXY_DENIED = Reply(421, "4.7.0", "The PROXY protocol is not taken from your address")

# for peers
EXCHANGE_STARTS = frozenset({"EHLO", "MAIL", "NOOP", "QUIT", "RSET", "XQDISCARD"})  # sent only after all earlier replies were read
AUTHENTICATION_NEEDED = Reply(530, "5.7.0", "Authentication required")
NOT_YOUR_NAME = Reply(550, "5.7.1", "You have not proved that name, or it is no peer's")
OTHER_BOUNDARY = Reply(550, "5.7.1", "Another transport high availability boundary")
XSHADOW_FIRST = Reply(503, "5.5.1", "Send XSHADOW server=... first")
IN_TRANSACTION = Reply(503, "5.5.1", "Not in a transaction")
NO_HOLD = Reply(503, "5.5.1", "No shadow copy is on its way")
HOLD_HAS_FAILED = Reply(503, "5.5.1", "The shadow copy has failed already")
BDAT_WANTED = Reply(503, "5.5.1", "The content of a shadow copy comes by BDAT")
HOLD_IS_INCOMPLETE = Reply(503, "5.5.1", "A shadow copy needs recipients and XSHADOW ENVELOPE")
BAD_CHUNK = Reply(501, "5.5.4", "Syntax: BDAT <size> [LAST]; closing connection")
CONTENT_MISMATCH = Reply(451, "4.5.0", "Size or SHA-256 differs from what was received")
HOLD_NOT_OFFERED = Reply(452, "4.3.1", "No shadow copies are taken now")
ENVELOPE_OK = Reply(250, "2.0.0", "Envelope OK")


CACHED_MAX = 4_096  # cached answers for addresses and domains


SOMEWHERE = HostPort("somewhere.invalid")  # RFC 6761 6.4


class Rights:
    """What one receive connector allows an address, or a recipient's domain."""

    def __init__(self, connector: ReceiveConnector) -> None:
        self._relay_from: Final = connector.relay_from
        self._externally_secured: Final = connector.externally_secured
        names = connector.accepted_domains
        self._domains: Final = frozenset(domain_of(f"@{name}") for name in names if not name.startswith("*."))
        self._parents: Final = tuple(f".{domain_of(f'@{name[2:]}')}" for name in names if name.startswith("*."))
        self._proxy_from: Final = connector.proxy_from
        self._xclient_from: Final = connector.xclient_from
        self.may_relay = lru_cache(CACHED_MAX)(self._may_relay)
        self.is_externally_secured = lru_cache(CACHED_MAX)(self._is_externally_secured)

    def _may_relay(self, address: str) -> bool:
        return is_in_networks(address, self._relay_from)

    def _is_externally_secured(self, address: str) -> bool:
        return is_in_networks(address, self._externally_secured)

    def is_proxy(self, address: str) -> bool:
        """Whether a connection from there begins with a header of the PROXY protocol."""
        return bool(self._proxy_from) and is_in_networks(address, self._proxy_from)

    def may_speak_for_others(self, address: str) -> bool:
        """Whether a connection from there may use XCLIENT and XFORWARD."""
        return bool(self._xclient_from) and is_in_networks(address, self._xclient_from)

    def accepts(self, recipient: str) -> bool:
        """Whether any client may send to this recipient, which must have a domain."""
        domain = domain_of(recipient)
        return domain in self._domains or domain.endswith(self._parents)


def postmaster_homes(rights: Rights, connector: ReceiveConnector, server: str, routes: Sequence[Route]) -> tuple[str, str]:
    """The domain for a bare `Postmaster`, for other clients and for clients that may relay; empty: refused. RFC 5321 4.5.1.

    `default_domain` if there is one; of others' mail only where it can be delivered. Else this server's name if it accepts mail for it
    or has a route for it, else the first accepted domain. A catch-all route also serves, but only for clients that may relay: if its
    next hop refuses the mail, the bounce goes back to them.
    """
    own_routes = tuple(route for route in routes if not all(set(pattern) <= {"*", "@"} for pattern in route.recipients))

    def is_home(name: str) -> bool:
        address = f"postmaster@{name}"
        return rights.accepts(address) or _has_route(own_routes, address)

    if default := connector.default_domain:
        return default if is_home(default) else "", default
    if is_home(server):
        return server, server
    domain = next((name for name in connector.accepted_domains if not name.startswith("*.")), "")
    return domain, domain or (server if _has_route(routes, f"postmaster@{server}") else "")


def _has_route(routes: Sequence[Route], address: str) -> bool:
    # One that has only a `site` has no hosts here, or leaves them to DNS: it is a route all the same.
    with_hosts = [route if route.next_hop else route.model_copy(update={"next_hop": (SOMEWHERE,)}) for route in routes]
    return bool(Router(with_hosts).destination(address).hosts)


READ_AHEAD_OCTETS = 16 * 1024  # the stream's limit: for a line (the longest command has 8,211), and the minimum block of content
UNCOUNTED_OCTETS = 20 * 1024  # any session may buffer so much: more than the limit, so that no read waits for data that may not come
CONTENT_AHEAD_OCTETS = 64 * 1024  # the same for a session in content; the part above UNCOUNTED_OCTETS counts in the budget
REPLIES_OCTETS_MAX = 16 * 1024  # collected replies are written at this size, although more commands are buffered
LINE_OCTETS_MAX = 2_048  # of content, with CRLF. Postfix's line_length_limit; RFC 5321 4.5.3.1.6 asks for 1,000
HEADER_OCTETS_MAX = 256 * 1024  # part of a header that is parsed
MESSAGE_ID_CHARACTERS_MAX = 998  # RFC 5322 2.1.1
DATE_CHARACTERS_MAX = 100  # RFC 5322 3.3 needs about 40
SUBJECT_CHARACTERS_MAX = 500  # the tracking log's; XSHADOW ENVELOPE carries 1,500 octets of it
HELLO_NAME_OCTETS_MAX = 255  # RFC 5321 4.5.3.1.2
HOLD_SIZE_MAX = 4_000_000_000  # of a copy: twice the largest max_message_size that the settings allow
HOLD_RECIPIENTS_MAX = ORDINAL_MAX  # of a copy: the largest max_recipients_per_message that the settings allow
CLOSE_SECONDS = 5.0  # to deliver the last reply; then the connection is closed
RESERVED_DESCRIPTORS_MAX = 1_024  # of a limit of 4,096 or more; else a quarter of it
HANDSHAKE_SECONDS = 30.0  # TLS
ROOM_SECONDS = 30.0  # a session waits so long for memory, then gets 452; RFC 5321 4.5.3.2.5 allows 3 minutes for a block
ROOM_FOR_COPY_SECONDS = 2.0  # for a copy: its primary can try another server

COMMAND_OCTETS_MAX = 512  # RFC 5321 4.5.3.1.4, with CRLF
COMMAND_OCTETS_MAX_BY_VERB: Mapping[str, int] = MappingProxyType(
    {
        "MAIL": 512 + 26 + 17 + 10 + 123 + 73,  # SIZE, BODY, SMTPUTF8, RET and ENVID (RFC 3461), XSHADOW=TRACK
        "RCPT": 512 + 500,  # NOTIFY and ORCPT. RFC 3461 section 5.2
        "XSHADOW": 17 + 8_192 + 2,  # `XSHADOW ENVELOPE ` and its argument
        "XQDISCARD": 1_024,  # `XQDISCARD STATUS` and 10 x 96 and CRLF = 978
    }
)


EVICTED_IDLE_SECONDS = 10.0  # where all sessions are taken, one that was silent for so long gives way. Postfix's stress time-out
EVICTED_SLOW_SECONDS, EVICTED_SLOW_OCTETS = 60.0, 100  # so does one that for so long led to no message and said less a second
EVICTION_LOOKS = 100  # at sessions of strangers, in turn: a flood of connections must not cost more
HANDSHAKES_MAX = 64  # of clients that have proved nothing, at a time; as many again of those that give a peer's name
DESCRIPTORS_MAX = 1_048_576  # of this process; a larger table only wastes memory


def descriptor_limit() -> int:
    """How many files and connections this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit as far as allowed: it is 1,024 on most systems, for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems report more than they grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Descriptors:
    """Reserves descriptors for what must continue when many sessions are open: the store, the logs, peers, next hops and
    the administration. A new session or spool file is refused if only the reserve is left.

    Nothing is counted: the kernel assigns the lowest free number, so the number of a new descriptor is a lower bound for the
    number in use, whichever part of the process uses them.
    """

    def __init__(self, limit: int) -> None:
        self.refused_count = 0
        self.adopt(limit)

    def adopt(self, limit: int) -> None:
        """Change the limit of the process."""
        self.limit = limit
        self.reserve = min(RESERVED_DESCRIPTORS_MAX, limit // 4)

    def refuses_session(self, number: int, *, is_ours: bool = False) -> bool:
        """Whether a connection with this descriptor is one too many. It still gets its 421. `is_ours`: see `SessionCount`."""
        return self._refuses(number, self.limit - (self.reserve * 5 // 8 if is_ours else self.reserve))

    def cuts_off_session(self, number: int) -> bool:
        """Whether there is no time even for the 421: so many connections came at once that half of the reserve is used."""
        return self._refuses(number, self.limit - self.reserve // 2)

    def refuses_file(self, number: int) -> bool:
        """Whether a spool file with this descriptor is one too many. Open sessions may finish their transactions."""
        return self._refuses(number, self.limit - self.reserve // 2)

    def refuses_next_hop(self, number: int) -> bool:
        """Whether a connection to a next hop with this descriptor is one too many. The rest is for peers, store and logs."""
        return self._refuses(number, self.limit - self.reserve // 4)

    def _refuses(self, number: int, maximum: int) -> bool:
        self.refused_count += number >= maximum
        return number >= maximum


def _counted(address: str, *, is_ours: bool) -> str:
    """A network of ours has many clients."""
    return address if is_ours else client_network(address)


class SessionCount:
    """Open sessions: of strangers, of ours (peers, clients that may relay), and by client. Neither kind takes the place of the other."""

    def __init__(self) -> None:
        self._by_client: Counter[str] = Counter()
        self._counts = [0, 0]

    def enter(self, address: str, sessions_max: int, of_client_max: int, *, is_ours: bool) -> Reply | None:
        """Count one more session; returns the refusal if it exceeds a limit. Call `leave` in either case."""
        client = _counted(address, is_ours=is_ours)
        self._counts[is_ours] += 1
        self._by_client[client] += 1
        if self._counts[is_ours] > sessions_max:
            return TOO_MANY_SESSIONS
        if self._by_client[client] > of_client_max:
            return TOO_MANY_SESSIONS_OF_ADDRESS
        return None

    def proved(self, address: str) -> None:
        """A stranger has turned out to be a peer."""
        self.leave(address, is_ours=False)
        self._counts[True] += 1
        self._by_client[_counted(address, is_ours=True)] += 1

    @property
    def by_client(self) -> dict[str, int]:
        """How many sessions each client has open; a snapshot."""
        return dict(self._by_client)

    def leave(self, address: str, *, is_ours: bool) -> None:
        """The session has ended."""
        client = _counted(address, is_ours=is_ours)
        self._counts[is_ours] -= 1
        self._by_client[client] -= 1
        if self._by_client[client] <= 0:
            del self._by_client[client]
