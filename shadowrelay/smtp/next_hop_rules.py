"""Rules of company with next hops: which address is tried when, how many sessions it gets, what a refusal means. docs/design.md 6.10.

**An address** that refused is in trouble: others are tried before it, until a single attempt, the probe, tries it in its place again. Each
probe that fails doubles the time until the next one.

| what happens at an address                            | the attempt                       | trouble                         |
|-------------------------------------------------------|-----------------------------------|---------------------------------|
| no connection, no greeting, 4xx or 5xx before MAIL    | goes on to the next address       | yes, unless sessions stand there |
| 4xx to MAIL, DATA, the dot, or to every recipient     | goes on to the next address       | if it is about the server       |
| the session is lost before the dot                    | goes on to the next address       | no                              |
| 5xx, or any recipient was accepted                    | ends                              | no                              |
| it lacks an extension, or room for the message        | goes on; final if nobody is left  | no                              |
| it is this node, behind another address               | ends; final if nobody was better  | no                              |
| the session is lost after the dot                     | ends: the server may have it      | no                              |

A 4xx is about the server unless its enhanced code names an address, a mailbox, the content or a policy (RFC 3463 X.1, X.2, X.6, X.7). A
session with such a 4xx is not used again: tests of a session (postscreen) end with it.

**A refusal that is none** (`is_out_of_step`): a 5xx by which a server says that it lost step with the session. The whole table is in
docs/operations.md "What a refusal of a next hop means".

**A limit** is no outage: if a server refuses a session while others stand, it gets as many as stand. Later one more is tried; each
time that fails, the time until the next trial doubles. Units: seconds of the event loop.

**A connection that is refused or cut without a word** says little of an address behind which a load balancer may have several servers, some
of them dead: where there is no other address, it is opened again, up to three times in all.
"""

import re
from collections.abc import Iterable
from enum import Enum
from math import inf
from types import MappingProxyType

from shadowrelay.model.queue import NextHopServer, ServerState
from shadowrelay.model.replies import Reply
from shadowrelay.model.values import dataclass

PROBE_SECONDS = 60.0
PROBE_SECONDS_MAX = 960.0
SKIPPED_SECONDS = 30.0  # not tried at all for so long if another address was tried: it cost a whole connect timeout
GROW_SECONDS = 10.0
GROW_SECONDS_MAX = 640.0
MUTE_SECONDS = 10.0  # connected for so long without a greeting: another connection is opened beside it
MUTE_MAX = 3  # of one address
AGAIN_SECONDS = (0.1, 0.4)  # after a connection that was cut, where there is no other server: behind the address may be several
LIMITED_SECONDS = 60.0  # a server that took a message so lately and refuses a session has a limit
SERVERS_MAX = 5  # of one attempt that are given the message, or a part of it
NOT_ABOUT_THE_SERVER = ("1", "2", "6", "7")  # subjects of RFC 3463
COMMAND_OCTETS_MAX = 512  # which any server must take. RFC 5321 4.5.3.1.4


class ReplyTo(Enum):
    """What a reply answers."""

    MAIL = "MAIL"
    RCPT = "RCPT"
    DATA = "DATA"
    CONTENT = "content"  # BDAT, or the final dot


# RFC 5321 4.2.2, 4.3.2. 501 and 504 are about the arguments, which only MAIL and RCPT have
OUT_OF_STEP = MappingProxyType(
    {
        ReplyTo.MAIL: frozenset({500, 502, 503}),
        ReplyTo.RCPT: frozenset({500, 502, 503}),
        ReplyTo.DATA: frozenset({500, 501, 502, 503, 504}),
        ReplyTo.CONTENT: frozenset({500, 501, 502, 503, 504}),
    }
)
OUT_OF_PLACE = frozenset({220, 221, *range(300, 400)})  # to all but DATA: a greeting, a goodbye, "go on"
SAYS_WHAT_IS_REFUSED = ("1", "2", "6")  # an address, a mailbox, the content: subjects of RFC 3463
REFUSES_ALL = "5.3.0"  # the server as a whole; 5.3.3 is Exchange's word for an unknown command
NO_VALID_RECIPIENTS = (554, "5.5.1")  # RFC 2920 3.1: to DATA, where one was accepted
TRANSIENT = re.compile(r"^5\.")
TOO_MANY_RECIPIENTS = 552  # in the words of old servers. RFC 5321 4.5.3.1.10


@dataclass(frozen=True, slots=True)
class Trouble:
    """An address that refused. `was_slow`: it cost a whole connect timeout. `failures_count` counts the first failure and probes."""

    reply: Reply
    since: float
    failed_at: float
    probe_at: float
    failures_count: int = 1
    was_slow: bool = False


def after_failure(before: Trouble | None, reply: Reply, now: float, *, was_slow: bool = False) -> Trouble:
    """The address failed. Attempts that began before the last failure ended only change the reason."""
    if before is None:
        return Trouble(reply, now, now, now + PROBE_SECONDS, was_slow=was_slow)
    if now < before.failed_at + PROBE_SECONDS:
        return Trouble(reply, before.since, now, before.probe_at, before.failures_count, was_slow)
    wait = min(PROBE_SECONDS * 2**before.failures_count, PROBE_SECONDS_MAX)
    return Trouble(reply, before.since, now, now + wait, min(before.failures_count + 1, 10), was_slow)


def probing(trouble: Trouble, now: float) -> Trouble:
    """This attempt is the probe: others leave the address to it."""
    return Trouble(trouble.reply, trouble.since, trouble.failed_at, now + PROBE_SECONDS, trouble.failures_count, trouble.was_slow)


def is_tried_late(trouble: Trouble | None, now: float) -> bool:
    """Whether other addresses come first."""
    return trouble is not None and now < trouble.probe_at


def is_skipped(trouble: Trouble | None, now: float) -> bool:
    """Whether it is not tried at all where another address was."""
    return trouble is not None and trouble.was_slow and now < trouble.failed_at + SKIPPED_SECONDS


def is_about_server(reply: Reply) -> bool:
    """Whether this 4xx would have met any message."""
    if not 400 <= reply.code < 500:
        return False
    if reply.enhanced:
        return reply.enhanced.split(".")[1] not in NOT_ABOUT_THE_SERVER
    return reply.code != 450  # RFC 5321 4.2.3: 450 is a mailbox, 421, 451 and 452 are the server


def is_out_of_step(reply: Reply, step: ReplyTo, line_octets: int = 0) -> bool:
    """Whether this 5xx, which answers a command of `line_octets`, refuses nothing.

    Source: docs/operations.md "What a refusal of a next hop means".
    """
    if reply.code not in OUT_OF_STEP[step] and not (step is ReplyTo.DATA and reply[:2] == NO_VALID_RECIPIENTS):
        return False
    enhanced = reply.enhanced
    if enhanced == REFUSES_ALL or (enhanced.startswith("5.") and enhanced.split(".")[1] in SAYS_WHAT_IS_REFUSED):
        return False
    return reply.code != 500 or line_octets <= COMMAND_OCTETS_MAX  # RFC 5321 4.5.3.1.9: 500 is a line too long, too


def meant(reply: Reply, step: ReplyTo, line_octets: int = 0) -> Reply:
    """The same, unless it is a 5xx by which nothing is refused for good."""
    if step is ReplyTo.RCPT and reply.code == TOO_MANY_RECIPIENTS:
        return Reply(452, TRANSIENT.sub("4.", reply.enhanced), reply.text)
    if is_out_of_step(reply, step, line_octets):
        return Reply(451, "4.5.1", f"The next hop is out of step: {reply}")
    return reply


def may_be_about_session(reply: Reply) -> bool:
    """Whether this 4xx to MAIL or DATA may be a limit of the session: another one may be treated better."""
    return is_about_server(reply) or (400 <= reply.code < 500 and reply.enhanced.startswith("4.7."))


def may_move_on(replies: Iterable[Reply]) -> bool:
    """Whether another server may get recipients with these replies: it took none of them, and may later take some."""
    may_later = False
    for reply in replies:
        if 200 <= reply.code < 300:
            return False
        may_later = may_later or not 500 <= reply.code < 600
    return may_later


@dataclass(frozen=True, slots=True)
class Window:
    """How many sessions a server takes: `size`, once it has refused one (`reply`). `grows_at`: when one more is tried next; infinite
    while it is tried."""

    size: float = inf
    reply: Reply | None = None
    grows_at: float = inf
    wait: float = GROW_SECONDS


OPEN_WINDOW = Window()


def after_refused_session(window: Window, open_count: int, reply: Reply, now: float) -> Window:
    """It refused a session while `open_count` stand, at least one."""
    if window.reply is None:
        return Window(open_count, reply, now + GROW_SECONDS)
    wait, grows_at, size = window.wait, window.grows_at, min(window.size, open_count)
    if grows_at == inf:  # the trial
        wait = min(wait * 2, GROW_SECONDS_MAX)
    return Window(size, reply, grows_at if now < grows_at < inf else now + wait, wait)


def after_opened_session(window: Window, open_count: int, now: float) -> Window:
    """`open_count` stand now."""
    if window.reply is None or open_count <= window.size:
        return window
    return Window(open_count, window.reply, now + GROW_SECONDS)


def openings(
    window: Window, concurrency: int, standing_count: int, opening_count: int, waiting_count: int, now: float
) -> tuple[int, Window]:
    """How many connections to open now for `waiting_count` transactions, and the window after that."""
    limit = min(window.size, concurrency)
    taken = standing_count + opening_count
    wanted = waiting_count - opening_count
    if wanted > 0 and window.size <= taken < concurrency and now >= window.grows_at:
        return 1, Window(window.size, window.reply, inf, window.wait)
    if not taken:
        limit = max(limit, 1)
    return int(max(0, min(wanted, limit - taken))), window


def shown(server: str, trouble: Trouble | None, window: Window, standing_count: int, now: float) -> NextHopServer:
    """For listings."""
    if trouble is not None:
        ago, probe = round(now - trouble.since, 3), round(max(trouble.probe_at - now, 0.0), 3)
        return NextHopServer(server, ServerState.REFUSED, str(trouble.reply), standing_count, None, ago, probe)
    if window.reply is not None:
        return NextHopServer(server, ServerState.LIMITED, str(window.reply), standing_count, int(window.size), None, None)
    return NextHopServer(server, ServerState.READY, "", standing_count, None, None, None)
