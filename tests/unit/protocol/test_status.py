import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.ownership import CopyNumber, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.protocol.fields import ORDINAL_MAX
from shadowrelay.protocol.xqdiscard import (
    ANSWER_OCTETS_MAX,
    ANSWERS_OCTETS_MAX,
    BLOCK_OCTETS_MAX,
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
from shadowrelay.protocol.xshadow import parse_position
from tests.unit.protocol.strategies import ID, A, B, answers, counters, questions, refusal

GARBLED = "451 4.5.0 The peer's reply is out of grammar"
NUMBER = CopyNumber(1, 2, A)
QUESTION = StatusQuestion(ID, NUMBER)
ANSWERS = [
    (f"active 1.2.{A} primary", StatusAnswer(StatusState.PRIMARY, NUMBER)),
    (f"active 1.2.{A} primary done=1-3,7", StatusAnswer(StatusState.PRIMARY, NUMBER, done=frozenset({1, 2, 3, 7}))),
    (f"active 1.2.{A} shadow mx1.example {A}", StatusAnswer(StatusState.SHADOW, NUMBER, "mx1.example", A)),
    (
        f"active 1.2.{A} shadow mx1.example {A} promoting done=2",
        StatusAnswer(StatusState.SHADOW, NUMBER, "mx1.example", A, True, frozenset({2})),
    ),
    (f"active 1.2.{A} shadow - -", StatusAnswer(StatusState.SHADOW, NUMBER)),
    ("delivered", StatusAnswer(StatusState.DELIVERED)),
    ("delivered done=1-2", StatusAnswer(StatusState.DELIVERED, done=frozenset({1, 2}))),
    (f"released 1.2.{A}", StatusAnswer(StatusState.RELEASED, NUMBER)),
    ("unknown", StatusAnswer(StatusState.UNKNOWN)),
]


@pytest.mark.parametrize(("text", "answer"), ANSWERS)
def test_an_answer_is_the_same_in_both_directions(text, answer):
    assert text == format_answer(answer)
    assert answer == parse_answer(text)
    assert answer == parse_answer(f"2.0.0 {text}")
    assert answer == parse_superseded(format_superseded(answer))
    assert answer == parse_superseded(f"5.5.0 XSHADOW superseded {text}")


@pytest.mark.parametrize(("text", "answer"), ANSWERS)
def test_an_answer_with_something_after_it_is_garbled(text, answer):
    for rest in (" ", " x", "\r\n", " done=", " done=1 done=2"):
        assert refusal(parse_answer, text + rest) == GARBLED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "done=1",
        "active",
        f"active 1.2.{A}",
        f"active 1.2.{A} Primary",
        "active 1.2 primary",
        f"active 1.2.{A} shadow mx1.example",
        f"active 1.2.{A} shadow a..b {A}",
        f"active 1.2.{A} shadow mx1.example 1",
        f"active 1.2.{A} shadow mx1.example {A} promoted",
        "released",
        "delivered 1",
        "unknown done=0",
        f"2.0.0  {ANSWERS[0][0]}",
        "x" * 2_000,
    ],
)
def test_anything_else_is_no_answer(text):
    assert refusal(parse_answer, text) == GARBLED


@pytest.mark.parametrize("text", ["", "XSHADOW superseded", "XSHADOW superseded ", "superseded unknown", "XSHADOW superseded unknown x"])
def test_anything_else_is_not_superseded(text):
    assert refusal(parse_superseded, text) == GARBLED


def test_the_longest_answer_has_the_length_that_the_arithmetic_says():
    number = CopyNumber(2**31 - 1, 2**31 - 1, A)
    server = "a" * 63 + ("." + "a" * 63) * 2 + "." + "a" * 63
    answer = StatusAnswer(StatusState.SHADOW, number, server, A, True, frozenset(range(1, ORDINAL_MAX + 1, 2)))
    text = format_answer(answer)

    assert len(server) == 255
    assert len(text) == ANSWER_OCTETS_MAX
    assert parse_answer(text) == answer
    assert 400 * (12 + len(text)) + 12 + len(format_answer_lines([], 2**63 - 1)[0]) <= ANSWERS_OCTETS_MAX


def test_questions_stand_in_a_line():
    text = f"STATUS {ID}:1.2.{A} {ID}:3.0.{B}"
    asked = (QUESTION, StatusQuestion(ID, CopyNumber(3, 0, B)))

    assert text == format_status(asked)
    assert StatusQuery(asked) == parse_status(text)
    assert StatusQuery(asked) == parse_status(text.upper())


def test_ten_questions_make_a_line_of_less_than_a_thousand_octets_and_eleven_are_refused():
    longest = StatusQuestion(ID, CopyNumber(2**31 - 1, 2**31 - 1, A))
    text = format_status([longest] * 10)

    assert len(f"XQDISCARD {text}\r\n") == 978
    assert len(parse_status(text).questions) == 10
    assert refusal(parse_status, f"{text} {ID}:1.2.{A}") == "501 5.5.4 Too many questions"


def test_a_block_of_questions_is_announced_by_its_size():
    block = format_question_block([QUESTION, QUESTION])

    assert block == f"{ID}:1.2.{A}\r\n{ID}:1.2.{A}\r\n".encode()
    assert parse_status(format_status_block(len(block))) == StatusQuery(block_size=len(block))
    assert parse_question_block(block) == (QUESTION, QUESTION)


def test_the_longest_block_has_the_length_that_the_arithmetic_says():
    block = format_question_block([StatusQuestion(ID, CopyNumber(2**31 - 1, 2**31 - 1, A))] * 400)

    assert len(block) == BLOCK_OCTETS_MAX
    assert len(parse_question_block(block)) == 400
    assert refusal(parse_question_block, f"{ID}:1.2.{A}\r\n".encode() * 401) == "501 5.5.4 Too many questions"


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "STATUS",
        "STATUS ",
        "STATUS x",
        "STATUS BDAT",
        "STATUS BDAT 0",
        "STATUS BDAT -1",
        "STATUS BDAT 38801",
        "STATUS BDAT 1 LAST",
        f"STATUS {ID}",
        f"STATUS {ID}:1.2.{A} ",
        f"STATUS  {ID}:1.2.{A}",
        "STATU x",
    ],
)
def test_anything_else_is_no_question(argument):
    assert (refusal(parse_status, argument) or "")[:9] == "501 5.5.4"


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\r\n",
        b"x",
        f"{ID}:1.2.{A}".encode(),
        f"{ID}:1.2.{A}\n".encode(),
        f"{ID}:1.2.{A}\r\n\r\n".encode(),
        b"\xff\r\n",
        b"x" * 40_000,
    ],
)
def test_anything_else_is_no_block_of_questions(block):
    assert (refusal(parse_question_block, block) or "")[:9] == "501 5.5.4"


def test_a_reply_counts_its_answers_and_says_the_position():
    lines = format_answer_lines([ANSWERS[0][1], ANSWERS[5][1]], 4711)

    assert lines == [ANSWERS[0][0], "delivered", "answers=2 position=4711"]
    assert parse_answer_lines(lines) == (ANSWERS[0][1], ANSWERS[5][1])
    assert parse_answer_lines([f"2.0.0 {line}" for line in lines]) == (ANSWERS[0][1], ANSWERS[5][1])
    assert parse_position("\n".join(lines)) == 4711


@pytest.mark.parametrize(
    "lines",
    [[], ["delivered"], ["delivered", "answers=2"], ["answers=1 position=1"], ["x", "answers=1"], ["delivered"] * 401 + ["answers=401"]],
)
def test_a_reply_that_does_not_add_up_is_garbled(lines):
    assert refusal(parse_answer_lines, lines) == GARBLED


@given(st.lists(questions, min_size=1, max_size=10))
def test_any_questions_survive(asked):
    assert tuple(asked) == parse_status(format_status(asked)).questions
    assert tuple(asked) == parse_question_block(format_question_block(asked))


@given(st.lists(answers, max_size=4), counters)
def test_any_answers_survive(given_answers, position):
    assert tuple(given_answers) == parse_answer_lines(format_answer_lines(given_answers, position))


@given(
    st.text(max_size=80)
    | st.lists(
        st.sampled_from(["active", f"1.2.{A}", "primary", "shadow", "a.b", A, "done=1", "unknown", "STATUS", "BDAT", f"{ID}:1.2.{A}"])
    ).map(" ".join)
)
def test_any_text_is_read_or_refused(text):
    assert refusal(parse_answer, text) in (None, GARBLED)
    assert refusal(parse_superseded, text) in (None, GARBLED)
    assert refusal(parse_answer_lines, [text, "answers=1"]) in (None, GARBLED)
    assert refusal(parse_answer_lines, [text]) in (None, GARBLED)
    assert (refusal(parse_status, text) or "501 5.5.4").startswith("501 5.5.4")


@given(st.binary(max_size=300))
def test_any_block_is_read_or_refused(block):
    assert (refusal(parse_question_block, block) or "501 5.5.4").startswith("501 5.5.4")
    assert (refusal(parse_question_block, block + b"\r\n") or "501 5.5.4").startswith("501 5.5.4")
