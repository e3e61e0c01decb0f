"""XQDISCARD STATUS: questions about messages, and the answers. docs/protocol.md 10.

Answers are read in two places: in the reply to STATUS, and after `554 5.5.0 XSHADOW superseded`.
"""

import re
from collections.abc import Sequence

from shadowrelay.model.errors import WireError
from shadowrelay.model.ids import NO_DATABASE, NO_SERVER
from shadowrelay.model.ownership import CopyNumber, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.replies import SUPERSEDED
from shadowrelay.model.values import dataclass
from shadowrelay.wire.names import SERVER_OCTETS_MAX, parse_server
from shadowrelay.wire.numbers import NUMBER_OCTETS_MAX, format_number, parse_counter, parse_database_id, parse_message_id, parse_number
from shadowrelay.wire.ordinals import DONE_OCTETS_MAX, format_done, parse_done
from shadowrelay.wire.refusals import bad_argument, garbled_reply
from shadowrelay.wire.xshadow import format_position

QUESTION_OCTETS_MAX = 36 + 1 + NUMBER_OCTETS_MAX  # 95
QUESTIONS_PER_LINE_MAX = 10  # `XQDISCARD STATUS` and 10 x 96 and CRLF = 978
QUESTIONS_PER_BLOCK_MAX = 400
BLOCK_OCTETS_MAX = QUESTIONS_PER_BLOCK_MAX * (QUESTION_OCTETS_MAX + 2)  # 38,800

ANSWER_OCTETS_MAX = 6 + 1 + NUMBER_OCTETS_MAX + 8 + SERVER_OCTETS_MAX + 1 + 36 + 10 + 6 + DONE_OCTETS_MAX
"""1,216: `active`, number, ` shadow `, server, database id, ` promoting`, ` done=` and ordinals."""

ANSWERS_OCTETS_MAX = (QUESTIONS_PER_BLOCK_MAX + 1) * (10 + ANSWER_OCTETS_MAX + 2)
"""492,428 for 401 lines with `250-2.0.0 ` and CRLF; 400 ordinary answers have about 130 octets each: 52 kB.
A client library that stops at 32 KiB must ask fewer at a time."""

_UNKNOWN_NAME = "-"
_ENHANCED = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3} ")
_LAST = re.compile(r"answers=([0-9]{1,3})(?: .*)?")


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """Either questions, or the octets of the block that follows."""

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
    """Inverse of both. Raises: WireError 501 5.5.4."""
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
    """A line for each of 1 to 400 questions, each ended by CRLF."""
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
    """One line of a reply to STATUS. `-` stands for a primary or database that is not known."""
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
    """Inverse of `format_answer`. An enhanced code before it is skipped.

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
    """The whole reply to STATUS: a line an answer in the order of the questions, then `answers=<n> position=<p>`."""
    return [*map(format_answer, answers), f"answers={len(answers)} {format_position(position)}"]


def parse_answer_lines(lines: Sequence[str]) -> tuple[StatusAnswer, ...]:
    """Inverse of `format_answer_lines`; `parse_position` reads the position. Raises: WireError with GARBLED_REPLY."""
    if not 0 < len(lines) <= QUESTIONS_PER_BLOCK_MAX + 1:
        raise garbled_reply()
    last = lines[-1]
    if found := _ENHANCED.match(last):
        last = last[found.end() :]
    count = _LAST.fullmatch(last)
    if count is None or int(count[1]) != len(lines) - 1:
        raise garbled_reply()
    return tuple(map(parse_answer, lines[:-1]))


def format_superseded(answer: StatusAnswer) -> str:
    """The text after `554 5.5.0 `: a copy came, and a higher number is here, or the message is delivered."""
    return f"{SUPERSEDED} {format_answer(answer)}"


def parse_superseded(text: str) -> StatusAnswer:
    """Inverse of `format_superseded`. An enhanced code before it is skipped. Raises: WireError with GARBLED_REPLY."""
    if found := _ENHANCED.match(text):
        text = text[found.end() :]
    if not text.startswith(f"{SUPERSEDED} "):
        raise garbled_reply()
    return parse_answer(text[len(SUPERSEDED) + 1 :])
