"""Bounds of the receiving side, each with its arithmetic; the count of sessions; and which descriptors they may have.

What an operator may change stands in `model.settings.ReceiveConnector`; what is fixed stands here.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from shadowrelay.model.replies import Reply
from shadowrelay.smtp.answers import TOO_MANY_SESSIONS, TOO_MANY_SESSIONS_OF_ADDRESS
from shadowrelay.wire.ordinals import ORDINAL_MAX

READ_AHEAD_OCTETS = 16 * 1024  # the stream's limit: of a line (the longest command has 8,211), and what a block of content has at least
UNCOUNTED_OCTETS = 20 * 1024  # any session may have read so much: more than the limit, so that no read waits for what may not come
CONTENT_AHEAD_OCTETS = 64 * 1024  # a session in content may; what exceeds UNCOUNTED_OCTETS is counted in the budget
REPLIES_OCTETS_MAX = 16 * 1024  # collected before they are written although more commands are there
LINE_OCTETS_MAX = 2_048  # of content, with CRLF. Postfix's line_length_limit; RFC 5321 4.5.3.1.6 asks for 1,000
HEADER_OCTETS_MAX = 256 * 1024  # of a header that is looked into
MESSAGE_ID_CHARACTERS_MAX = 998  # RFC 5322 2.1.1
SUBJECT_CHARACTERS_MAX = 500  # the tracking log's; XSHADOW ENVELOPE carries 1,500 octets of it
HELLO_NAME_OCTETS_MAX = 255  # RFC 5321 4.5.3.1.2
HOLD_SIZE_MAX = 4_000_000_000  # of a copy: twice the largest max_message_size that the settings allow
HOLD_RECIPIENTS_MAX = ORDINAL_MAX  # of a copy: the largest max_recipients_per_message that the settings allow
CLOSE_SECONDS = 5.0  # for the last reply to leave; then the connection is cut
RESERVED_DESCRIPTORS_MAX = 1_024  # of a limit of 4,096 or more; else a quarter of it
HANDSHAKE_SECONDS = 30.0  # TLS
ROOM_SECONDS = 30.0  # a session waits so long for memory, then it is answered 452; RFC 5321 4.5.3.2.5 gives a block 3 minutes
ROOM_FOR_COPY_SECONDS = 2.0  # a copy: its primary can try another server

COMMAND_OCTETS_MAX = 512  # RFC 5321 4.5.3.1.4, with CRLF
COMMAND_OCTETS_MAX_BY_VERB: Mapping[str, int] = MappingProxyType(
    {
        "MAIL": 512 + 26 + 17 + 10 + 123 + 72,  # SIZE, BODY, SMTPUTF8, RET and ENVID (RFC 3461), XSHADOW=HOLD
        "RCPT": 512 + 500,  # NOTIFY and ORCPT. RFC 3461 section 5.2
        "XSHADOW": 17 + 8_192 + 2,  # `XSHADOW ENVELOPE ` and its argument
        "XQDISCARD": 1_024,  # `XQDISCARD STATUS` and 10 x 96 and CRLF = 978
    }
)


class Descriptors:
    """Keeps descriptors in reserve for what must go on when many sessions are open: the store, the logs, peers, next hops and
    the administration. Opening a session or a spool file is refused while only the reserve is left.

    Nothing is counted: the kernel gives the lowest free number, so the number of a new descriptor says how many are in use at
    least, whoever uses them.
    """

    def __init__(self, limit: int) -> None:
        self.refused_count = 0
        self.adopt(limit)

    def adopt(self, limit: int) -> None:
        """The limit of the process is this now."""
        self.limit = limit
        self.reserve = min(RESERVED_DESCRIPTORS_MAX, limit // 4)

    def refuses_session(self, number: int) -> bool:
        """Whether a connection that got this number is one too many. It still gets its 421."""
        return self._refuses(number, self.limit - self.reserve)

    def cuts_off_session(self, number: int) -> bool:
        """Whether even the 421 takes too long: so many came at once that half of the reserve is used."""
        return self._refuses(number, self.limit - self.reserve // 2)

    def refuses_file(self, number: int) -> bool:
        """Whether a spool file that got this number is one too many. Sessions that are open may finish what they began."""
        return self._refuses(number, self.limit - self.reserve // 2)

    def refuses_next_hop(self, number: int) -> bool:
        """Whether a connection to a next hop that got this number is one too many. What is left is for peers, store and logs."""
        return self._refuses(number, self.limit - self.reserve // 4)

    def _refuses(self, number: int, maximum: int) -> bool:
        self.refused_count += number >= maximum
        return number >= maximum


class SessionCount:
    """How many sessions are open, in all and by client address."""

    def __init__(self) -> None:
        self._by_address: Counter[str] = Counter()
        self._count = 0

    def enter(self, address: str, sessions_max: int, sessions_per_address_max: int) -> Reply | None:
        """Count one more, and say why it cannot be served, if so. `leave` is due in either case."""
        self._count += 1
        self._by_address[address] += 1
        if self._count > sessions_max:
            return TOO_MANY_SESSIONS
        if self._by_address[address] > sessions_per_address_max:
            return TOO_MANY_SESSIONS_OF_ADDRESS
        return None

    def leave(self, address: str) -> None:
        """The session has ended."""
        self._count -= 1
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]
