"""Text from strangers, made fit for a header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.rules import dsn as text


@pytest.mark.parametrize(
    ("given", "expected"),
    [(" a ", "a"), ("a\r\nBcc: b", "a Bcc: b"), ("a\x00\x1b\x7f\x85\u2028b", "a b"), ("a\udcffb", "a\\xffb"), ("grüße", "grüße")],
)
def test_control_characters_become_a_space(given, expected):
    assert expected == text.clean(given)


def test_a_long_field_is_folded_at_spaces():
    folded = text.field("Diagnostic-Code", "smtp; " + "word " * 50)
    assert folded.replace("\r\n", "") == "Diagnostic-Code: smtp; " + ("word " * 50).strip()
    assert all(len(line) <= 78 for line in folded.split("\r\n"))


def test_a_monstrous_word_is_broken():
    assert all(len(line) <= 998 for line in text.field("X", "a" * 5000).split("\r\n"))


def test_nothing_is_lost_where_a_monstrous_word_is_broken():
    assert "X:" + "a" * 1000 == "".join(text.field("X", "a" * 1000).split())


@pytest.mark.parametrize(("is_international", "expected"), [(False, b"gr?n\r\n"), (True, "grün\r\n".encode())])
def test_text_is_ascii_unless_it_may_be_more(is_international, expected):
    assert expected == text.encoded("grün\r\n", is_international=is_international)


ADDRESSES = [
    ("a@b.example", False, "rfc822; a@b.example"),
    ("a+b=c@b.example", False, "rfc822; a+b=c@b.example"),
    ("大+@b.example", False, "utf-8; \\x{5927}\\x{2B}@b.example"),
    ("大@b.example", True, "utf-8; 大@b.example"),
]


@pytest.mark.parametrize(("address", "is_international", "expected"), ADDRESSES)
def test_an_address_carries_its_type(address, is_international, expected):
    assert expected == text.typed_address(address, is_international=is_international)


@pytest.mark.parametrize(
    ("orcpt", "expected"),
    [
        ("rfc822;a+2Bb@c.example", "rfc822; a+b@c.example"),
        ("rfc822;a+0D+0ABcc", "rfc822; a Bcc"),
        ("utf-8;\\x{5927}@c.example", "utf-8; \\x{5927}@c.example"),
        ("UTF-8;大@c.example", "utf-8; \\x{5927}@c.example"),
        ("utf-8;a\\x{2B}\\x{5C}b@c.example", "utf-8; a\\x{2B}\\x{5C}b@c.example"),
        ("utf-8;\\x{0D}\\x{0A}Bcc:", "utf-8; Bcc:"),
        ("utf-8;\\x{D800}\\x{FFFFFF}", "utf-8; \\x{5C}x{D800}\\x{5C}x{FFFFFF}"),
        ("rfc822;a+FF", "rfc822; a\ufffd"),
        ("nonsense", ""),
    ],
)
def test_an_original_recipient_is_what_its_xtext_stands_for(orcpt, expected):
    assert expected == text.original_address(orcpt, is_international=False)


def test_an_original_recipient_is_utf8_where_that_may_be() -> None:
    orcpt = "utf-8;\\x{5927}\\x{2B}@c.example"

    assert "utf-8; 大\\x{2B}@c.example" == text.original_address(orcpt, is_international=True)


def test_of_a_message_its_header_returns_in_ascii():
    assert b"Subject: gr??n\r\n" == text.returned_header("Subject: grün\r\n\r\nbody".encode(), is_international=False)


def test_of_a_message_its_header_returns_as_utf8_where_that_may_be():
    assert "Subject: grün\ufffd\r\n".encode() == text.returned_header("Subject: grün".encode() + b"\xff\r\n\r\n", is_international=True)


def test_a_large_header_is_cut_after_a_line():
    line = b"X-Line: " + b"a" * 90 + b"\r\n"
    expected = line * (text.RETURNED_OCTETS_MAX // len(line))
    assert expected == text.returned_header(line * 1000 + b"\r\nbody", is_international=False)


def test_a_line_longer_than_a_line_may_be_is_cut():
    assert b"X: " + b"a" * 995 + b"\r\nY: b\r\n" == text.returned_header(b"X: " + b"a" * 1500 + b"\r\nY: b\r\n\r\n", is_international=False)


@pytest.mark.parametrize(
    ("content", "is_international", "expected"),
    [
        (b"A: b\r\n\r\nc\r\n", False, True),
        (b"A: b\r\n\r\n\xff\r\n", False, False),
        (b"A: b\r\n\r\n\xff\r\n", True, True),
        (b"a" * 998 + b"\r\n", False, True),
        (b"a" * 999 + b"\r\n", False, False),
        (b"a\r\n" * 30_000, False, False),
    ],
)
def test_a_message_returns_whole_only_if_it_is_small_and_plain(content, is_international, expected):
    assert expected is text.may_return_whole(content, is_international=is_international)


BLOCK = b"Received: from a by b\r\nreceived: from c\r\n\tby d\r\nSubject: Hello,\r\n  World \r\nX-Subject: no\r\nMessage-ID:<a@b>\r\n"


def test_the_header_block_ends_before_the_first_empty_line():
    assert text.header_block(BLOCK + b"\r\nSubject: of the body\r\n\r\n") == BLOCK


@pytest.mark.parametrize(
    ("content", "block"),
    [(b"", b""), (b"\r\nbody\r\n", b""), (b"A: b\r\n", b"A: b\r\n"), (b"A: b\r\nC: cut", b"A: b\r\n"), (b"no line end", b"")],
)
def test_a_message_without_an_empty_line_is_header_as_far_as_its_lines_are_whole(content, block):
    assert text.header_block(content) == block


def test_the_header_block_is_bounded_and_whole_lines_only():
    block = text.header_block(b"X: " + b"y" * 70 + b"\r\n" + b"Z: z\r\n" * 100_000)

    assert text.RETURNED_OCTETS_MAX - 6 <= len(block) <= text.RETURNED_OCTETS_MAX
    assert block.endswith(b"Z: z\r\n")


@given(st.binary(max_size=300) | st.lists(st.sampled_from([b"\r\n", b"Subject:", b" ", b"\r", b"\n", b"x"])).map(b"".join))
def test_any_bytes_begin_with_their_header_block(content):
    block = text.header_block(content)

    assert content.startswith(block)
    assert not block or block.endswith(b"\r\n")
    assert b"\r\n\r\n" not in block
