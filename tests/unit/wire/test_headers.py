import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.wire.headers import FIELD_OCTETS_MAX, HEADER_BLOCK_OCTETS_MAX, field_of, header_block, received_count

BLOCK = b"Received: from a by b\r\nreceived: from c\r\n\tby d\r\nSubject: Hello,\r\n  World \r\nX-Subject: no\r\nMessage-ID:<a@b>\r\n"


def test_the_header_block_ends_before_the_first_empty_line():
    assert header_block(BLOCK + b"\r\nSubject: of the body\r\n\r\n") == BLOCK


@pytest.mark.parametrize(
    ("content", "block"),
    [(b"", b""), (b"\r\nbody\r\n", b""), (b"A: b\r\n", b"A: b\r\n"), (b"A: b\r\nC: cut", b"A: b\r\n"), (b"no line end", b"")],
)
def test_a_message_without_an_empty_line_is_header_as_far_as_its_lines_are_whole(content, block):
    assert header_block(content) == block


def test_the_header_block_is_bounded_and_whole_lines_only():
    block = header_block(b"X: " + b"y" * 70 + b"\r\n" + b"Z: z\r\n" * 100_000)

    assert HEADER_BLOCK_OCTETS_MAX - 6 <= len(block) <= HEADER_BLOCK_OCTETS_MAX
    assert block.endswith(b"Z: z\r\n")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Subject", "Hello,  World"),
        ("SUBJECT", "Hello,  World"),
        ("message-id", "<a@b>"),
        ("Received", "from a by b"),
        ("Date", ""),
        ("Rec", ""),
    ],
)
def test_a_field_is_the_first_of_its_name_unfolded(name, value):
    assert field_of(BLOCK, name) == value


def test_a_fold_begins_with_a_space_or_a_tab():
    assert field_of(b"Subject: a\r\n\tb\r\n c\r\nd: e\r\n", "subject") == "a b c"


def test_a_field_that_is_not_text_comes_out_harmless():
    assert field_of(b"Subject: a\x00b\xffc\x1b[31m\xe2\x80\xa8\r\n", "subject") == "a b\ufffdc [31m"


def test_encoded_words_are_not_decoded():
    assert field_of(b"Subject: =?utf-8?q?a?=\r\n", "subject") == "=?utf-8?q?a?="


def test_a_field_is_cut_at_its_limit():
    assert len(field_of(b"Subject:" + b"x" * 3 * FIELD_OCTETS_MAX, "subject")) == FIELD_OCTETS_MAX


def test_trace_headers_are_counted_at_the_beginning_of_lines_only():
    assert received_count(BLOCK) == 2
    assert received_count(b"X: Received: no\r\nReceived-SPF: pass\r\nRECEIVED: yes\r\n") == 1


@given(st.binary(max_size=300) | st.lists(st.sampled_from([b"\r\n", b"Subject:", b" ", b"Received:", b"\r", b"x"])).map(b"".join))
def test_any_bytes_give_harmless_text(content):
    block = header_block(content)
    text = field_of(block, "Subject")

    assert content.startswith(block)
    assert received_count(block) >= 0
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text)
