import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.wire.headers import HEADER_BLOCK_OCTETS_MAX, header_block

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


@given(st.binary(max_size=300) | st.lists(st.sampled_from([b"\r\n", b"Subject:", b" ", b"\r", b"\n", b"x"])).map(b"".join))
def test_any_bytes_begin_with_their_header_block(content):
    block = header_block(content)

    assert content.startswith(block)
    assert not block or block.endswith(b"\r\n")
    assert b"\r\n\r\n" not in block
