"""Binary content in lines: every part keeps its octets, and what has no such form is not converted. RFC 3030 3, RFC 2045 6."""

import email
import email.policy
import re
from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.protocol.conversion import NotConvertible, converted, is_in_lines

BINARY = bytes(range(256)) * 3 + b"\r\n.\r\n--b\r\r\n"
HEAD = b"From: a@x.example\r\nMIME-Version: 1.0\r\n"


def in_lines(content: bytes) -> bytes:
    conversion = converted(content)
    octets = b"".join(conversion.blocks(content))
    assert conversion.size == len(octets)
    assert is_in_lines(octets, 0, len(octets))
    return octets


def leaves(octets: bytes) -> list[tuple[str, bytes]]:
    """Type and decoded octets of each part that has no parts."""

    def walk(part: Message) -> list[tuple[str, bytes]]:
        if part.is_multipart():
            return [leaf for inner in part.get_payload() for leaf in walk(inner)]  # type: ignore[union-attr, arg-type]
        return [(part.get_content_type(), part.get_payload(decode=True))]  # type: ignore[list-item]

    return walk(email.message_from_bytes(octets, policy=email.policy.compat32))


def a_part(kind: bytes, body: bytes, *more: bytes) -> bytes:
    return b"\r\n".join((b"Content-Type: " + kind, *more, b"", body))


def a_multipart(*parts: bytes, boundary: bytes = b"b1", kind: bytes = b"mixed", head: bytes = HEAD) -> bytes:
    body = b"".join(b"--%s\r\n%s\r\n" % (boundary, part) for part in parts)
    return b'%sContent-Type: multipart/%s; boundary="%s"\r\nContent-Transfer-Encoding: binary\r\n\r\n%s--%s--\r\n' % (
        head,
        kind,
        boundary,
        body,
        boundary,
    )


def test_a_binary_message_keeps_its_octets_and_its_header_but_for_the_name_of_the_encoding() -> None:
    head = HEAD + b"Content-Type: image/png\r\nContent-Transfer-Encoding:\r\n binary (as it is)\r\nSubject: x\r\n\r\n"

    octets = in_lines(head + BINARY)

    assert [("image/png", BINARY)] == leaves(octets)
    expected = HEAD + b"Content-Type: image/png\r\nSubject: x\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    assert expected == octets[: len(expected)]


def test_only_the_binary_parts_of_a_multipart_change() -> None:
    text = a_part(b"text/plain", b"J\xc3\xbcrgen", b"Content-Transfer-Encoding: 8bit")
    binary = a_part(b"application/zip", BINARY, b"Content-Transfer-Encoding: binary", b"Content-Disposition: attachment")
    inner = a_multipart(binary, boundary=b"b2", head=b"")

    octets = in_lines(a_multipart(text, inner, binary))

    assert [("text/plain", b"J\xc3\xbcrgen"), ("application/zip", BINARY), ("application/zip", BINARY)] == leaves(octets)
    assert text in octets
    assert b"binary" not in octets
    assert octets.count(b"Content-Disposition: attachment\r\nContent-Transfer-Encoding: base64\r\n\r\n") == 2


def test_a_binary_message_within_a_message_is_converted_inside() -> None:
    forwarded = a_part(b"message/rfc822", a_multipart(a_part(b"image/png", BINARY)), b"Content-Transfer-Encoding: binary")

    octets = in_lines(a_multipart(forwarded, boundary=b"outer"))

    assert [("image/png", BINARY)] == leaves(octets)
    assert b"Content-Type: message/rfc822\r\nContent-Transfer-Encoding: 8bit\r\n\r\n" in octets


@pytest.mark.parametrize("content", [HEAD + b"\r\nhello\r\n.\r\n", b"\r\n", b"", HEAD + b"\r\nno end", HEAD])
def test_what_is_text_in_lines_stays_as_it_is(content: bytes) -> None:
    assert content == in_lines(content)


def test_what_says_binary_and_is_text_stays_as_it_is() -> None:
    content = a_multipart(a_part(b"text/plain", b"hello", b"Content-Transfer-Encoding: binary"))

    assert content == in_lines(content)


def test_a_line_that_servers_may_break_is_encoded() -> None:
    content = HEAD + b"Content-Type: text/plain\r\n\r\n" + b"x" * 999 + b"\r\n"

    assert [("text/plain", b"x" * 999 + b"\r\n")] == leaves(in_lines(content))


def test_a_message_that_is_not_of_mime_becomes_one() -> None:
    octets = in_lines(b"From: a@x.example\r\n\r\na\nb")

    assert b"From: a@x.example\r\nMIME-Version: 1.0\r\nContent-Transfer-Encoding: base64\r\n\r\nYQpi" == octets


def test_an_empty_part_and_a_multipart_without_its_last_delimiter_are_no_obstacle() -> None:
    content = a_multipart(b"", a_part(b"image/png", BINARY)).rpartition(b"\r\n--b1--")[0]

    assert [("text/plain", b""), ("image/png", BINARY)] == leaves(in_lines(content))


@pytest.mark.parametrize(
    ("content", "why", "is_prohibited"),
    [
        (a_multipart(a_part(b"image/png", BINARY), kind=b"signed"), "a part that is signed is binary", True),
        (
            a_multipart(a_multipart(a_part(b"x/y", BINARY), boundary=b"b2", kind=b"signed", head=b"")),
            "a part that is signed is binary",
            True,
        ),
        (HEAD + b"Content-Transfer-Encoding: base64\r\n\r\nYQ==\nYQ==", "a part is not in the encoding that it says: base64", False),
        (HEAD + b"Content-Transfer-Encoding: x-y\r\n\r\n\n", "a part is not in the encoding that it says: x-y", False),
        (HEAD + b"Content-Type: message/partial\r\n\r\n\n", "a part is binary that must not be encoded: message/partial", False),
        (HEAD + b"Content-Type: multipart/mixed\r\n\r\n\n", "a part is binary that must not be encoded: multipart/mixed", False),
        (HEAD + b"Content-Type: multipart/mixed; boundary=q\r\n\r\n\n", "a multipart has no parts", False),
        (HEAD + b"no field\r\n\r\n\n", "a header has a line that is no field", False),
        (HEAD + b"X: a\nb\r\n\r\n", "a header is binary", False),
        (HEAD + b"X: a\nb", "a header has no end", False),
        (a_multipart(b"\r\nx").replace(b"--b1\r\n", b"\n\r\n--b1\r\n", 1), "what stands around the parts of a multipart is binary", False),
        (a_multipart(b"\r\nx") + b"\0", "what stands around the parts of a multipart is binary", False),
    ],
)
def test_what_has_no_form_in_lines_is_not_converted(content: bytes, why: str, is_prohibited: bool) -> None:
    with pytest.raises(NotConvertible, match=re.escape(why)) as caught:
        converted(content)

    assert is_prohibited == caught.value.is_prohibited


def test_depth_and_number_of_parts_are_bounded() -> None:
    deep = a_part(b"image/png", BINARY)
    for number in range(40):
        deep = a_multipart(deep, boundary=b"b%d" % number, head=b"" if number < 39 else HEAD)
    alike = a_multipart(a_part(b"image/png", b"\n\r\n--b1x" * 21_000))
    for content in (deep, a_multipart(*([a_part(b"image/png", b"\n")] * 2_100)), alike):
        with pytest.raises(NotConvertible, match="too many parts"):
            converted(content)


parts = st.recursive(
    st.tuples(st.sampled_from([b"image/png", b"text/plain", b"application/x"]), st.binary(max_size=200)),
    lambda inner: st.lists(inner, min_size=1, max_size=4),
    max_leaves=6,
)


@given(parts)
def test_any_tree_of_parts_keeps_the_octets_of_each_leaf(tree: object) -> None:
    expected: list[bytes] = []
    count = 0

    def written(part: object) -> bytes:
        nonlocal count
        if isinstance(part, tuple):
            expected.append(part[1])
            return a_part(part[0], part[1], b"Content-Transfer-Encoding: binary")
        assert isinstance(part, list)
        count += 1
        return a_multipart(*map(written, part), boundary=b"=_no_octets_of_a_part_%d" % count, head=b"")

    content = HEAD + written(tree)

    assert expected == [octets for _, octets in leaves(in_lines(content))]


@given(st.binary(max_size=600))
def test_whatever_it_is_it_is_converted_or_refused(content: bytes) -> None:
    try:
        octets = in_lines(HEAD + content)
    except NotConvertible:
        return
    assert is_in_lines(octets, 0, len(octets))
