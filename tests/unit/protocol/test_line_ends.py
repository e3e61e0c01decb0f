"""Whether content is text in lines that end in CRLF, in blocks that may be split anywhere. RFC 5321 2.3.8."""

from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.protocol.line_ends import LineEnds

BLOCKS = st.lists(st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"\0", b"\xff"]), max_size=4).map(b"".join), max_size=6)


@given(blocks=BLOCKS)
def test_line_ends_are_right_if_nothing_but_crlf_is_left_out_of_the_whole(blocks: list[bytes]) -> None:
    line_ends = LineEnds()

    for block in blocks:
        line_ends.take(block)

    rest = b"".join(blocks).replace(b"\r\n", b"")
    assert (b"\r" not in rest and b"\n" not in rest) == line_ends.are_right


@given(blocks=BLOCKS)
def test_a_bare_one_is_known_as_soon_as_it_is_certain(blocks: list[bytes]) -> None:
    line_ends, taken = LineEnds(), b""

    for block in blocks:
        line_ends.take(block)
        taken += block
        rest = taken.replace(b"\r\n", b"").removesuffix(b"\r" if taken.endswith(b"\r") else b"")
        assert (b"\r" in rest or b"\n" in rest) == line_ends.has_bare
        assert taken.endswith(b"\r") == line_ends.ends_with_cr
