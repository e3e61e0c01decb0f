import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.ownership import DiscardEvent, DiscardStatus
from shadowrelay.model.peers import DiscardReply
from shadowrelay.protocol.fields import NEXT_HOP_OCTETS_MAX, ORDINAL_MAX
from shadowrelay.protocol.xqdiscard import (
    BAD_FORKS,
    LINE_OVERHEAD_OCTETS,
    REPLY_LINES_MAX,
    REPLY_OCTETS_MAX,
    DiscardQuery,
    StatusQuery,
    format_query,
    format_reply_lines,
    parse_command,
    parse_query,
    parse_reply_lines,
)
from shadowrelay.protocol.xshadow import parse_position
from tests.unit.protocol.strategies import ID, A, B, counters, event_lists, refusal

GARBLED = "451 4.5.0 The peer's reply is out of grammar"
OTHER = B
QUERIES = [("400", DiscardQuery(400)), ("400 0", DiscardQuery(400, 0)), ("0 17", DiscardQuery(0, 17))]
EVERY_SECOND = frozenset(range(1, ORDINAL_MAX + 1, 2))
REPLIES = [
    (["remaining=0"], DiscardReply((), 0)),
    ([f"7 {ID} delivered", "remaining=12"], DiscardReply((DiscardEvent(7, ID, DiscardStatus.DELIVERED),), 12)),
    (
        [f"7 {ID} delivered 1-40,57", f"8 {OTHER} yours", f"10 {ID} promoted", f"11 {ID} released", "remaining=0"],
        DiscardReply(
            (
                DiscardEvent(7, ID, DiscardStatus.DELIVERED, frozenset({*range(1, 41), 57})),
                DiscardEvent(8, OTHER, DiscardStatus.YOURS),
                DiscardEvent(10, ID, DiscardStatus.PROMOTED),
                DiscardEvent(11, ID, DiscardStatus.RELEASED),
            ),
            0,
        ),
    ),
]


FORKS = DiscardStatus.FORKS
REPLIES.append(
    (
        [
            f"7 {ID} forks 1-2,4 store.corp.example:25",
            f"8 {ID} forks 3 [2001:db8::1]:25",
            f"9 {ID} forks 5 b+C3+BCcher.example#2",
            "remaining=0",
        ],
        DiscardReply(
            (
                DiscardEvent(7, ID, FORKS, frozenset({1, 2, 4}), "store.corp.example:25"),
                DiscardEvent(8, ID, FORKS, frozenset({3}), "[2001:db8::1]:25"),
                DiscardEvent(9, ID, FORKS, frozenset({5}), "b\u00fccher.example#2"),
            ),
            0,
        ),
    )
)


def octets_of(lines):
    return sum(len(line) + LINE_OVERHEAD_OCTETS for line in lines)


@pytest.mark.parametrize(("argument", "query"), QUERIES)
def test_a_query_is_the_same_in_both_directions(argument, query):
    assert argument == format_query(query)
    assert query == parse_query(argument)
    assert query == parse_command(argument)


def test_the_verb_has_two_forms():
    assert parse_command("status BDAT 97") == StatusQuery(block_size=97)


@pytest.mark.parametrize(
    "argument", ["", "x", "-1", "1 ", " 1", "1 x", "1 2 3", "1  2", "1000001", "400 9223372036854775808", "4e2", "\u0661"]
)
def test_anything_else_is_no_query(argument):
    assert (refusal(parse_query, argument) or "")[:9] == "501 5.5.4"


@pytest.mark.parametrize(("lines", "reply"), REPLIES)
def test_a_reply_is_the_same_in_both_directions(lines, reply):
    assert lines == format_reply_lines(reply)
    assert reply == parse_reply_lines(lines)
    assert reply == parse_reply_lines([f"2.0.0 {line}" for line in lines])


def test_the_last_line_says_the_position_too():
    lines = format_reply_lines(DiscardReply((), 3), position=4711)

    assert lines == ["remaining=3 position=4711"]
    assert parse_reply_lines(lines) == DiscardReply((), 3)
    assert parse_position("\n".join(lines)) == 4711


def test_the_last_line_names_the_events_whose_recipients_were_reached():
    reached = tuple(DiscardEvent(number, ID, DiscardStatus.DELIVERED, is_reached=number != 2) for number in (1, 2, 3))

    lines = format_reply_lines(DiscardReply(reached, 5), 7)

    assert "remaining=5 position=7 reached=1,3" == lines[-1]
    assert reached == parse_reply_lines(lines).events


@pytest.mark.parametrize("places", ["0", "3", "1-3", "2"])
def test_only_a_delivered_of_this_reply_was_reached(places):
    assert refusal(parse_reply_lines, [f"1 {ID} delivered", f"2 {ID} released", f"remaining=0 reached={places}"]) == GARBLED


def test_the_places_of_the_reached_count_towards_the_24_kib():
    events = tuple(DiscardEvent(number, ID, DiscardStatus.DELIVERED, is_reached=number % 2 == 1) for number in range(10**9, 10**9 + 500))

    lines = format_reply_lines(DiscardReply(events, 0), 10**18)

    assert 800 < REPLY_OCTETS_MAX - octets_of(lines[:-1])
    assert REPLY_OCTETS_MAX >= octets_of(lines)
    reply = parse_reply_lines(lines)
    assert events[: len(reply.events)] == reply.events


def test_ordinals_past_512_octets_go_on_in_a_further_line_of_the_same_sequence():
    reply = DiscardReply(
        (DiscardEvent(7, ID, DiscardStatus.DELIVERED, frozenset(range(1, 401, 2))), DiscardEvent(8, ID, DiscardStatus.YOURS)), 0
    )
    lines = format_reply_lines(reply)

    assert [line.split(" ")[0] for line in lines[:-1]] == ["7", "7", "8"]
    assert 500 < len(lines[0].split(" ")[3]) <= 512
    assert parse_reply_lines(lines) == reply


def test_an_event_of_the_greatest_number_of_recipients_always_fits():
    reply = DiscardReply((DiscardEvent(2**63 - 1, ID, DiscardStatus.DELIVERED, EVERY_SECOND),), 0)
    lines = format_reply_lines(reply, position=2**63 - 1)

    assert len(lines) == 25
    assert octets_of(lines) <= REPLY_OCTETS_MAX
    assert parse_reply_lines(lines) == reply


def test_the_largest_fork_always_fits():
    reply = DiscardReply((DiscardEvent(2**63 - 1, ID, FORKS, EVERY_SECOND, "n" * NEXT_HOP_OCTETS_MAX),), 0)
    lines = format_reply_lines(reply, position=2**63 - 1)

    assert (25, reply) == (len(lines), parse_reply_lines(lines))
    assert octets_of(lines) <= REPLY_OCTETS_MAX


@pytest.mark.parametrize(
    ("next_hop", "written"),
    [
        ("", "?"),
        ("two words", "two?words"),
        ("a\\b", "a?b"),
        ("line\r\nend", "line??end"),
        ("n" * 400, "n" * 300),
        ("\u00fc" * 99, "+C3+BC" * 50),
    ],
)
def test_a_next_hop_that_the_grammar_does_not_allow_is_written_as_well_as_it_can_be(next_hop, written):
    (line, _) = format_reply_lines(DiscardReply((DiscardEvent(7, ID, FORKS, frozenset({1}), next_hop),), 0))

    assert f"7 {ID} forks 1 {written}" == line
    assert parse_reply_lines([line, "remaining=0"]).events


@pytest.mark.parametrize(
    "rest",
    [
        *("", " 1", " 1 ", "  a:25", " x a:25", " 2-1 a:25", " 5001 a:25", " 1 a:25 b:25"),
        *(" 1 a+20b", " 1 a+5Cb", " 1 a+0Ab", " 1 +zz", " 1 +FF", f" 1 {'n' * 301}", f" {'1,' * 300}1 a:25"),
    ],
)
def test_a_fork_that_cannot_be_read_is_refused_and_says_so(rest):
    assert refusal(parse_reply_lines, [f"7 {ID} delivered", f"8 {ID} forks{rest}", "remaining=0"]) == str(BAD_FORKS)


@pytest.mark.parametrize("line", [f"x {ID} forks 1 a:25", "8 y forks 1 a:25", f"8 {ID} delivered 1 a:25", f"8 {ID} fork 1 a:25"])
def test_other_lines_are_refused_like_any(line):
    assert refusal(parse_reply_lines, [line, "remaining=0"]) == GARBLED


def test_further_lines_of_a_fork_repeat_its_next_hop():
    lines = [f"8 {ID} forks 1 a:25", f"8 {ID} forks 2 b:25", "remaining=0"]

    assert refusal(parse_reply_lines, lines) == GARBLED


def test_events_that_do_not_fit_remain():
    events = tuple(DiscardEvent(sequence, ID, DiscardStatus.DELIVERED) for sequence in range(10**9, 10**9 + 500))
    lines = format_reply_lines(DiscardReply(events, 7), position=1)
    reply = parse_reply_lines(lines)

    assert octets_of(lines) <= REPLY_OCTETS_MAX
    assert 350 <= len(reply.events) <= 356
    assert reply.events == events[: len(reply.events)]
    assert reply.remaining == 7 + 500 - len(reply.events)


def test_a_reply_fills_its_24_kib_to_the_last_event_that_fits():
    sizes = []
    for count in range(1, 60):
        first = DiscardEvent(10**18, ID, DiscardStatus.DELIVERED, frozenset(range(1, 2 * count, 2)))
        events = (first, *(DiscardEvent(10**18 + place, ID, DiscardStatus.DELIVERED) for place in range(1, 400)))
        sizes.append(octets_of(format_reply_lines(DiscardReply(events, 2**63 - 1), position=2**63 - 1)))

    assert REPLY_OCTETS_MAX - 2 <= max(sizes) <= REPLY_OCTETS_MAX


def test_a_reply_has_never_more_than_400_lines():
    events = tuple(DiscardEvent(sequence, ID, DiscardStatus.YOURS) for sequence in range(1, 500))
    lines = format_reply_lines(DiscardReply(events, 0))

    assert len(lines) == REPLY_LINES_MAX
    assert parse_reply_lines(lines) == DiscardReply(events[:399], 100)
    assert refusal(parse_reply_lines, [lines[0], *lines]) == GARBLED


def test_a_great_event_is_not_cut_but_comes_first_in_the_next_reply():
    small, great = DiscardEvent(1, ID, DiscardStatus.DELIVERED, EVERY_SECOND), DiscardEvent(2, OTHER, DiscardStatus.DELIVERED, EVERY_SECOND)
    reply = parse_reply_lines(format_reply_lines(DiscardReply((small, great), 0)))

    assert reply == DiscardReply((small,), 1)
    assert parse_reply_lines(format_reply_lines(DiscardReply((great,), 0))) == DiscardReply((great,), 0)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [""],
        [f"7 {ID} delivered"],
        ["remaining=-1"],
        ["remaining=x"],
        ["remaining=9223372036854775808"],
        ["remaining=0x"],
        ["remaining=0\r"],
        ["x", "remaining=0"],
        [f"7 {ID} Delivered", "remaining=0"],
        [f"7 {ID} lost", "remaining=0"],
        [f"7 {ID}", "remaining=0"],
        [f"7 {ID} delivered 1 2", "remaining=0"],
        [f"7 {ID} delivered 3-1", "remaining=0"],
        [f"7 {ID} delivered ", "remaining=0"],
        [f"7 {ID} delivered", f"6 {ID} delivered", "remaining=0"],
        [f"7 {ID} delivered", f"7 {ID} delivered", "remaining=0"],
        [f"7 {ID} delivered 1", f"7 {OTHER} delivered 2", "remaining=0"],
        [f"7 {ID} delivered 1", f"7 {ID} promoted 2", "remaining=0"],
        [f"7 {ID} delivered 2", f"7 {ID} delivered 1", "remaining=0"],
        [f"7 {ID} delivered 1", f"7 {ID} delivered", "remaining=0"],
        ["remaining=0", "remaining=0"],
        [f"7 {ID} delivered " + "1," * 300, "remaining=0"],
        ["x" * REPLY_OCTETS_MAX, "remaining=0"],
    ],
)
def test_anything_else_is_no_reply(lines):
    assert refusal(parse_reply_lines, lines) == GARBLED


@given(event_lists, counters, st.none() | counters)
def test_any_reply_survives(events, remaining, position):
    assert DiscardReply(events, remaining) == parse_reply_lines(format_reply_lines(DiscardReply(events, remaining), position))


@given(st.integers(0, 1_000_000), st.none() | counters)
def test_any_query_survives(maximum, acknowledged):
    assert DiscardQuery(maximum, acknowledged) == parse_command(format_query(DiscardQuery(maximum, acknowledged)))


@given(
    st.lists(
        st.text(max_size=60)
        | st.lists(st.sampled_from(["7", "8", ID, A, "delivered", "yours", "1-3", "9", "2.0.0", "remaining=1", "position=2"])).map(
            " ".join
        ),
        max_size=5,
    )
)
def test_any_lines_are_read_or_refused(lines):
    assert refusal(parse_reply_lines, lines) in (None, GARBLED)
    assert refusal(parse_reply_lines, [*lines, "remaining=0"]) in (None, GARBLED)
    for line in lines:
        assert (refusal(parse_command, line) or "501 5.5.4").startswith("501 5.5.4")
