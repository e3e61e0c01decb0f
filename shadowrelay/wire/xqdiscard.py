"""The verb XQDISCARD: what must you tell me? docs/protocol.md 9. Its STATUS form is in `status.py` and named here too.

A reply is `<sequence> <message-id> <status> [<ordinals>]` a line and `remaining=<n> [position=<p>]` last.
It is cut where its limits end, between events: what does not fit is counted in `remaining` and asked for next.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from shadowrelay.model.errors import WireError
from shadowrelay.model.message import NO_ORDINALS
from shadowrelay.model.ownership import DiscardEvent, DiscardStatus
from shadowrelay.model.peers import DiscardReply
from shadowrelay.model.values import dataclass
from shadowrelay.wire.numbers import COUNTER_MAX, parse_counter, parse_message_id
from shadowrelay.wire.ordinals import format_ranges, parse_ordinals
from shadowrelay.wire.refusals import bad_argument, garbled_reply
from shadowrelay.wire.status import (
    ANSWER_OCTETS_MAX,
    ANSWERS_OCTETS_MAX,
    BLOCK_OCTETS_MAX,
    QUESTIONS_PER_BLOCK_MAX,
    QUESTIONS_PER_LINE_MAX,
    StatusQuery,
    format_answer,
    format_answer_lines,
    format_question_block,
    format_status,
    format_status_block,
    format_superseded,
    parse_answer,
    parse_answer_lines,
    parse_question_block,
    parse_status,
    parse_superseded,
)
from shadowrelay.wire.xshadow import format_position

__all__ = [
    "ANSWERS_OCTETS_MAX",
    "ANSWER_OCTETS_MAX",
    "BLOCK_OCTETS_MAX",
    "ORDINALS_PER_LINE_OCTETS_MAX",
    "QUESTIONS_PER_BLOCK_MAX",
    "QUESTIONS_PER_LINE_MAX",
    "REPLY_LINES_MAX",
    "REPLY_OCTETS_MAX",
    "DiscardQuery",
    "StatusQuery",
    "format_answer",
    "format_answer_lines",
    "format_query",
    "format_question_block",
    "format_reply_lines",
    "format_status",
    "format_status_block",
    "format_superseded",
    "parse_answer",
    "parse_answer_lines",
    "parse_command",
    "parse_query",
    "parse_question_block",
    "parse_reply_lines",
    "parse_status",
    "parse_superseded",
]

MAXIMUM_MAX = 1_000_000  # what may be asked for; no more than 400 lines come
REPLY_LINES_MAX = 400  # the last one included
REPLY_OCTETS_MAX = 24 * 1024  # with `250-2.0.0 ` and CRLF; a common client library stops at 32 KiB
ORDINALS_PER_LINE_OCTETS_MAX = 512
EVENT_LINE_OCTETS_MAX = 19 + 1 + 36 + 1 + 9 + 1 + ORDINALS_PER_LINE_OCTETS_MAX  # 579
AROUND_LINE_OCTETS = 10 + 2  # `250-2.0.0 ` and CRLF
LAST_LINE_OCTETS_MAX = AROUND_LINE_OCTETS + 10 + 19 + 1 + 9 + 19  # 70: `remaining=<n> position=<p>`
# An ordinary event has 10+1+36+1+9 = 57 octets, with 12 around it 69: about 355 of them fit 24 KiB.

_ENHANCED = re.compile(r"2\.[0-9]{1,3}\.[0-9]{1,3} ")
_LAST = re.compile(r"remaining=(0|[1-9][0-9]{0,18})(?: [!-~ ]*)?")
_STATUSES = {status.value: status for status in DiscardStatus}


@dataclass(frozen=True, slots=True)
class DiscardQuery:
    """At most `maximum` events, please; all up to `acknowledged` are committed here."""

    maximum: int
    acknowledged: int | None = None


def format_query(query: DiscardQuery) -> str:
    """The argument of XQDISCARD: `<max> [<acknowledged sequence>]`."""
    return str(query.maximum) if query.acknowledged is None else f"{query.maximum} {query.acknowledged}"


def parse_query(argument: str) -> DiscardQuery:
    """Inverse of `format_query`. 0 asks for nothing and only acknowledges. Raises: WireError 501 5.5.4."""
    words = argument.split(" ", 2)
    if len(words) > 2:
        raise bad_argument("XQDISCARD wants a maximum and a sequence")
    maximum = parse_counter(words[0], "maximum", MAXIMUM_MAX)
    return DiscardQuery(maximum, parse_counter(words[1], "sequence") if len(words) == 2 else None)


def parse_command(argument: str) -> DiscardQuery | StatusQuery:
    """Either form of the verb. Raises: WireError 501 5.5.4."""
    if argument[:6].upper() == "STATUS":
        return parse_status(argument)
    return parse_query(argument)


def format_reply_lines(reply: DiscardReply, position: int | None = None) -> list[str]:
    """The texts of the reply's lines, without codes: as many whole events as its limits allow.

    Shapes: at least one line, at most 400 and 24 KiB. Events that do not fit are added to `remaining`.
    """
    lines: list[str] = []
    octets = LAST_LINE_OCTETS_MAX
    written = 0
    for event in reply.events:
        more = _event_lines(event)
        octets += sum(len(line) + AROUND_LINE_OCTETS for line in more)
        if len(lines) + len(more) >= REPLY_LINES_MAX or octets > REPLY_OCTETS_MAX:
            break
        lines += more
        written += 1
    remaining = min(COUNTER_MAX, reply.remaining + len(reply.events) - written)
    last = f"remaining={remaining}"
    return [*lines, last if position is None else f"{last} {format_position(position)}"]


def _event_lines(event: DiscardEvent) -> list[str]:
    start = f"{event.sequence} {event.message_id} {event.status}"
    if not event.ordinals:
        return [start]
    texts: list[str] = []
    text = ""
    for item in format_ranges(event.ordinals):
        if len(text) + 1 + len(item) > ORDINALS_PER_LINE_OCTETS_MAX:
            texts.append(text)
            text = item
        else:
            text = f"{text},{item}" if text else item
    return [f"{start} {text}" for text in (*texts, text)]


def parse_reply_lines(lines: Sequence[str]) -> DiscardReply:
    """Inverse of `format_reply_lines`; `parse_position` reads the position. An enhanced code before a line is skipped.

    Raises: WireError with GARBLED_REPLY.
    """
    if not 0 < len(lines) <= REPLY_LINES_MAX or sum(map(len, lines)) > REPLY_OCTETS_MAX:
        raise garbled_reply()
    texts = [line[found.end() :] if (found := _ENHANCED.match(line)) else line for line in lines]
    last = _LAST.fullmatch(texts.pop())
    if last is None or (remaining := int(last[1])) > COUNTER_MAX:
        raise garbled_reply()
    events: list[DiscardEvent] = []
    try:
        for text in texts:
            event = _parse_event(text)
            if events and event.sequence == events[-1].sequence:
                events[-1] = _joined(events[-1], event)
            elif events and event.sequence < events[-1].sequence:
                raise garbled_reply()
            else:
                events.append(event)
    except WireError:
        raise garbled_reply() from None
    return DiscardReply(tuple(events), remaining)


def _parse_event(text: str) -> DiscardEvent:
    if len(text) > EVENT_LINE_OCTETS_MAX:
        raise garbled_reply()
    words = text.split(" ")
    if len(words) not in (3, 4) or (status := _STATUSES.get(words[2])) is None or words[-1] == "":
        raise garbled_reply()
    ordinals = parse_ordinals(words[3]) if len(words) == 4 else NO_ORDINALS
    return DiscardEvent(parse_counter(words[0], "sequence"), parse_message_id(words[1]), status, ordinals)


def _joined(first: DiscardEvent, further: DiscardEvent) -> DiscardEvent:
    is_same = (first.message_id, first.status) == (further.message_id, further.status)
    if not is_same or not first.ordinals or not further.ordinals or max(first.ordinals) >= min(further.ordinals):
        raise garbled_reply()
    return replace(first, ordinals=first.ordinals | further.ordinals)
