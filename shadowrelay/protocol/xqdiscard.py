"""Parses and formats XQDISCARD (fetches discard notifications) and XQDISCARD STATUS (asks about messages). docs/protocol.md 9, 10.

A reply to XQDISCARD has a line `<sequence> <message-id> <status> [<ordinals> [<next hop>]]` for each event, then
`remaining=<n> [position=<p>]`. Events that exceed the limits of a reply are counted in `remaining` and fetched next.

Answers to STATUS are parsed in two places: its reply, and the text after `554 5.5.0 XSHADOW superseded`.
"""

import re
from collections.abc import Sequence

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER
from shadowrelay.model.message import NO_ORDINALS
from shadowrelay.model.numbers import decimal
from shadowrelay.model.ownership import CopyNumber, DiscardEvent, DiscardStatus, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import DiscardReply
from shadowrelay.model.replies import SUPERSEDED, Reply, WireError
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.fields import (
    COUNTER_MAX,
    DONE_OCTETS_MAX,
    NEXT_HOP_OCTETS_MAX,
    NUMBER_OCTETS_MAX,
    SERVER_OCTETS_MAX,
    bad_argument,
    format_done,
    format_next_hop,
    format_number,
    format_ordinals,
    format_ranges,
    garbled_reply,
    parse_counter,
    parse_database_id,
    parse_done,
    parse_message_id,
    parse_next_hop,
    parse_number,
    parse_ordinals,
    parse_server,
)
from shadowrelay.protocol.xshadow import format_position

QUESTION_OCTETS_MAX = 36 + 1 + NUMBER_OCTETS_MAX  # 95
QUESTIONS_PER_LINE_MAX = 10  # `XQDISCARD STATUS` and 10 x 96 and CRLF = 978
QUESTIONS_PER_BLOCK_MAX = 400
BLOCK_OCTETS_MAX = QUESTIONS_PER_BLOCK_MAX * (QUESTION_OCTETS_MAX + 2)  # 38,800

ANSWER_OCTETS_MAX = 6 + 1 + NUMBER_OCTETS_MAX + 8 + SERVER_OCTETS_MAX + 1 + 36 + 10 + 6 + DONE_OCTETS_MAX
"""1,216: `active`, number, ` shadow `, server, database id, ` promoting`, ` done=` and ordinals."""

ANSWERS_OCTETS_MAX = (QUESTIONS_PER_BLOCK_MAX + 1) * (10 + ANSWER_OCTETS_MAX + 2)
"""492,428 for 401 lines with `250-2.0.0 ` and CRLF; 400 ordinary answers have about 130 octets each: 52 kB.
A client library with a limit of 32 KiB must ask fewer questions at a time."""

BAD_FORKS = Reply(451, "4.5.0", "The peer's reply has a `forks` without recipients and a next hop")  # never sent, like GARBLED_REPLY
_UNKNOWN_NAME = "-"
_ENHANCED = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3} ")
_ANSWERS = re.compile(r"answers=([0-9]{1,3})(?: .*)?")


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """Either the questions, or the size of the block that follows."""

    questions: tuple[StatusQuestion, ...] = ()
    block_size: int | None = None


def _format_question(question: StatusQuestion) -> str:
    return f"{question.message_id}:{format_number(question.number)}"


def _parse_question(text: str) -> StatusQuestion:
    message_id, colon, number = text.partition(":")
    if not colon:
        raise bad_argument("Bad question")
    return StatusQuestion(parse_message_id(message_id), parse_number(number))


def format_status(questions: Sequence[StatusQuestion]) -> str:
    """The argument of XQDISCARD for 1 to 10 questions: `STATUS <id>:<number> …`."""
    assert 0 < len(questions) <= QUESTIONS_PER_LINE_MAX
    return " ".join(("STATUS", *map(_format_question, questions)))


def format_status_block(block_size: int) -> str:
    """The argument of XQDISCARD before a counted block: `STATUS BDAT <n>`."""
    return f"STATUS BDAT {block_size}"


def parse_status(argument: str) -> StatusQuery:
    """Inverse of `format_status` and `format_status_block`. Raises: WireError 501 5.5.4."""
    words = argument.split(" ", QUESTIONS_PER_LINE_MAX + 1)
    if words[0].upper() != "STATUS" or len(words) < 2:
        raise bad_argument("XQDISCARD STATUS wants questions")
    if words[1].upper() == "BDAT":
        if len(words) != 3:
            raise bad_argument("XQDISCARD STATUS BDAT wants a size")
        size = parse_counter(words[2], "block size", BLOCK_OCTETS_MAX)
        if size == 0:
            raise bad_argument("Bad block size")
        return StatusQuery(block_size=size)
    if len(words) > QUESTIONS_PER_LINE_MAX + 1:
        raise bad_argument("Too many questions")
    return StatusQuery(tuple(map(_parse_question, words[1:])))


def format_question_block(questions: Sequence[StatusQuestion]) -> bytes:
    """One line for each of 1 to 400 questions, each ended by CRLF."""
    assert 0 < len(questions) <= QUESTIONS_PER_BLOCK_MAX
    return "".join(f"{_format_question(question)}\r\n" for question in questions).encode("ascii")


def parse_question_block(block: bytes) -> tuple[StatusQuestion, ...]:
    """Inverse of `format_question_block`. Raises: WireError 501 5.5.4."""
    if len(block) > BLOCK_OCTETS_MAX or not block.isascii() or not block.endswith(b"\r\n"):
        raise bad_argument("Bad question block")
    lines = block.decode("ascii").split("\r\n", QUESTIONS_PER_BLOCK_MAX + 1)[:-1]
    if len(lines) > QUESTIONS_PER_BLOCK_MAX:
        raise bad_argument("Too many questions")
    return tuple(map(_parse_question, lines))


def format_answer(answer: StatusAnswer) -> str:
    """One line of a reply to STATUS. `-` stands for an unknown primary or database."""
    if answer.state is StatusState.PRIMARY:
        text = f"active {_number_of(answer)} primary"
    elif answer.state is StatusState.SHADOW:
        text = f"active {_number_of(answer)} shadow {answer.primary or _UNKNOWN_NAME} {answer.database or _UNKNOWN_NAME}"
        text += " promoting" if answer.promoting else ""
    elif answer.state is StatusState.RELEASED:
        text = f"released {_number_of(answer)}"
    else:
        text = str(answer.state)
    return f"{text} done={format_done(answer.done)}" if answer.done else text


def _number_of(answer: StatusAnswer) -> str:
    assert answer.number is not None
    return format_number(answer.number)


def parse_answer(text: str) -> StatusAnswer:
    """Inverse of `format_answer`. A leading enhanced code is skipped.

    Raises: WireError with GARBLED_REPLY.
    """
    if len(text) > ANSWER_OCTETS_MAX + 10:
        raise garbled_reply()
    if found := _ENHANCED.match(text):
        text = text[found.end() :]
    words = text.split(" ")
    try:
        done = parse_done(words.pop().removeprefix("done=")) if words[-1].startswith("done=") else frozenset()
        if text.endswith(" done="):
            raise garbled_reply()
        match words:
            case ["unknown"]:
                return StatusAnswer(StatusState.UNKNOWN, done=done)
            case ["delivered"]:
                return StatusAnswer(StatusState.DELIVERED, done=done)
            case ["released", number]:
                return StatusAnswer(StatusState.RELEASED, parse_number(number), done=done)
            case ["active", number, "primary"]:
                return StatusAnswer(StatusState.PRIMARY, parse_number(number), done=done)
            case ["active", number, "shadow", primary, database]:
                return _shadow_answer(parse_number(number), primary, database, done, promoting=False)
            case ["active", number, "shadow", primary, database, "promoting"]:
                return _shadow_answer(parse_number(number), primary, database, done, promoting=True)
    except WireError:
        raise garbled_reply() from None
    raise garbled_reply()


def _shadow_answer(number: CopyNumber, primary: str, database: str, done: frozenset[int], *, promoting: bool) -> StatusAnswer:
    return StatusAnswer(
        StatusState.SHADOW,
        number,
        NO_SERVER if primary == _UNKNOWN_NAME else parse_server(primary),
        NO_DATABASE if database == _UNKNOWN_NAME else parse_database_id(database),
        promoting,
        done,
    )


def format_answer_lines(answers: Sequence[StatusAnswer], position: int) -> list[str]:
    """The whole reply to STATUS: a line per answer in the order of the questions, then `answers=<n> position=<p>`."""
    return [*map(format_answer, answers), f"answers={len(answers)} {format_position(position)}"]


def parse_answer_lines(lines: Sequence[str]) -> tuple[StatusAnswer, ...]:
    """Inverse of `format_answer_lines`; `parse_position` reads the position. Raises: WireError with GARBLED_REPLY."""
    if not 0 < len(lines) <= QUESTIONS_PER_BLOCK_MAX + 1:
        raise garbled_reply()
    last = lines[-1]
    if found := _ENHANCED.match(last):
        last = last[found.end() :]
    count = _ANSWERS.fullmatch(last)
    if count is None or decimal(count[1]) != len(lines) - 1:
        raise garbled_reply()
    return tuple(map(parse_answer, lines[:-1]))


def format_superseded(answer: StatusAnswer) -> str:
    """The text after `554 5.5.0 ` that refuses a copy: this node has a higher number, or knows the message as delivered."""
    return f"{SUPERSEDED} {format_answer(answer)}"


def parse_superseded(text: str) -> StatusAnswer:
    """Inverse of `format_superseded`. A leading enhanced code is skipped. Raises: WireError with GARBLED_REPLY."""
    if found := _ENHANCED.match(text):
        text = text[found.end() :]
    if not text.startswith(f"{SUPERSEDED} "):
        raise garbled_reply()
    return parse_answer(text[len(SUPERSEDED) + 1 :])


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

MAXIMUM_MAX = 1_000_000  # the most that may be requested; a reply has at most 400 lines
REPLY_LINES_MAX = 400  # the last one included
REPLY_OCTETS_MAX = 24 * 1024  # with `250-2.0.0 ` and CRLF; aiosmtplib's limit is 32 KiB
ORDINALS_PER_LINE_OCTETS_MAX = 512
EVENT_LINE_OCTETS_MAX = 19 + 1 + 36 + 1 + 9 + 1 + ORDINALS_PER_LINE_OCTETS_MAX  # 579
FORK_LINE_OCTETS_MAX = EVENT_LINE_OCTETS_MAX + 1 + NEXT_HOP_OCTETS_MAX  # 880
LINE_OVERHEAD_OCTETS = 10 + 2  # `250-2.0.0 ` and CRLF
LAST_LINE_OCTETS_MAX = LINE_OVERHEAD_OCTETS + 10 + 19 + 1 + 9 + 19  # 70: `remaining=<n> position=<p>`
REACHED_OCTETS = 9  # ` reached=`
REACHED_RANGE_OCTETS_MAX = 8  # `,100-355`
# An ordinary event has 10+1+36+1+9 = 57 octets, 69 with code and CRLF: about 355 of them fit 24 KiB.

_SUCCESS = re.compile(r"2\.[0-9]{1,3}\.[0-9]{1,3} ")
_REMAINING = re.compile(r"remaining=(0|[1-9][0-9]{0,18})(?: [!-~ ]*)?")
_REACHED = re.compile(r" reached=([0-9,-]+)(?: |\Z)")
_STATUSES = {status.value: status for status in DiscardStatus}


@dataclass(frozen=True, slots=True)
class DiscardQuery:
    """Request at most `maximum` events; the asker has committed all up to `acknowledged`."""

    maximum: int
    acknowledged: int | None = None


def format_query(query: DiscardQuery) -> str:
    """The argument of XQDISCARD: `<max> [<acknowledged sequence>]`."""
    return str(query.maximum) if query.acknowledged is None else f"{query.maximum} {query.acknowledged}"


def parse_query(argument: str) -> DiscardQuery:
    """Inverse of `format_query`. A maximum of 0 only acknowledges. Raises: WireError 501 5.5.4."""
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
    """The texts of the reply's lines, without codes: as many whole events as the limits allow.

    Shapes: at least one line, at most 400 and 24 KiB. Events that do not fit are added to `remaining`.
    """
    lines: list[str] = []
    octets = LAST_LINE_OCTETS_MAX
    written = 0
    reached: list[int] = []
    was_reached = has_reached = False
    for event in reply.events:
        more = _event_lines(event)
        if event.is_reached and not was_reached:
            octets += REACHED_RANGE_OCTETS_MAX + (0 if has_reached else REACHED_OCTETS)
        was_reached, has_reached = event.is_reached, has_reached or event.is_reached
        for line in more:
            octets += len(line) + LINE_OVERHEAD_OCTETS
        if len(lines) + len(more) >= REPLY_LINES_MAX or octets > REPLY_OCTETS_MAX:
            break
        lines += more
        written += 1
        if event.is_reached:
            reached.append(written)
    remaining = min(COUNTER_MAX, reply.remaining + len(reply.events) - written)
    last = f"remaining={remaining}"
    if position is not None:
        last += f" {format_position(position)}"
    return [*lines, f"{last} reached={format_ordinals(frozenset(reached))}" if reached else last]


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
    end = f" {format_next_hop(event.next_hop)}" if event.status is DiscardStatus.FORKS else ""
    return [f"{start} {text}{end}" for text in (*texts, text)]


def parse_reply_lines(lines: Sequence[str]) -> DiscardReply:
    """Inverse of `format_reply_lines`; `parse_position` reads the position. A leading enhanced code on a line is skipped.

    Raises: WireError with GARBLED_REPLY, or one that names what is wrong with a `forks`.
    """
    if not 0 < len(lines) <= REPLY_LINES_MAX or sum(map(len, lines)) > REPLY_OCTETS_MAX:
        raise garbled_reply()
    texts = [line[found.end() :] if (found := _SUCCESS.match(line)) else line for line in lines]
    last_text = texts.pop()
    last = _REMAINING.fullmatch(last_text)
    if last is None or (remaining := decimal(last[1], COUNTER_MAX)) is None:
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
        if reached := _REACHED.search(last_text):
            for place in parse_ordinals(reached[1], len(events)):
                if events[place - 1].status is not DiscardStatus.DELIVERED:
                    raise garbled_reply()
                events[place - 1] = replace(events[place - 1], is_reached=True)
    except WireError as error:
        raise (error if error.reply is BAD_FORKS else garbled_reply()) from None
    return DiscardReply(tuple(events), remaining)


def _parse_event(text: str) -> DiscardEvent:
    if len(text) > FORK_LINE_OCTETS_MAX:
        raise garbled_reply()
    words = text.split(" ")
    if len(words) > 2 and words[2] == DiscardStatus.FORKS:
        return _parse_fork(words)
    if len(text) > EVENT_LINE_OCTETS_MAX or len(words) not in (3, 4) or (status := _STATUSES.get(words[2])) is None or words[-1] == "":
        raise garbled_reply()
    ordinals = parse_ordinals(words[3]) if len(words) == 4 else NO_ORDINALS
    return DiscardEvent(parse_counter(words[0], "sequence"), parse_message_id(words[1]), status, ordinals)


def _parse_fork(words: Sequence[str]) -> DiscardEvent:
    if len(words) != 5 or not words[3] or len(words[3]) > ORDINALS_PER_LINE_OCTETS_MAX:
        raise WireError(BAD_FORKS)
    sequence, message_id = parse_counter(words[0], "sequence"), parse_message_id(words[1])
    try:
        return DiscardEvent(sequence, message_id, DiscardStatus.FORKS, parse_ordinals(words[3]), parse_next_hop(words[4]))
    except WireError:
        raise WireError(BAD_FORKS) from None


def _joined(first: DiscardEvent, further: DiscardEvent) -> DiscardEvent:
    is_same = (first.message_id, first.status, first.next_hop) == (further.message_id, further.status, further.next_hop)
    if not is_same or not first.ordinals or not further.ordinals or max(first.ordinals) >= min(further.ordinals):
        raise garbled_reply()
    return replace(first, ordinals=first.ordinals | further.ordinals)
