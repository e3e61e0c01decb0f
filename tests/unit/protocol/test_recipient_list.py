"""A file of recipients, line by line: what it lists, what breaks it, and how much memory a large one takes."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.protocol.recipient_list import BUCKETS_COUNT, LINE_CHARACTERS_MAX, Addresses, BrokenList, ListReader


def listed(*lines: str, is_case_sensitive: bool = False) -> Addresses:
    reader = ListReader(is_case_sensitive=is_case_sensitive)
    for line in lines:
        reader.take(line)
    for index in range(BUCKETS_COUNT):
        reader.sort(index)
    return reader.addresses()


FILE = (
    "# the staff\n",
    "\n",
    "john@corp.example\n",
    "  Jane.Doe@CORP.example   # the boss\r\n",
    '"a b"@corp.example',
    '"plain"@corp.example',
    "@all.example",
    "*@whole.example\n",
    "user@bücher.example",
    "jürgen@corp.example",
    "root@[192.0.2.1]",
    "o'hara+x@corp.example",
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("john@corp.example", True),
        ("JOHN@Corp.Example", True),
        ("john@corp.example.", True),
        ("johnny@corp.example", False),
        ("jane.doe@corp.example", True),
        ('"a b"@corp.example', True),
        ('"a\\ b"@corp.example', True),
        ('"john"@corp.example', True),
        ("plain@corp.example", True),
        ("anybody@all.example", True),
        ("anybody@whole.example", True),
        ("anybody@sub.all.example", False),
        ("user@xn--bcher-kva.example", True),
        ("JÜRGEN@corp.example", True),
        ("root@[192.0.2.1]", True),
        ("root@[192.0.2.2]", False),
        ("john+lists@corp.example", True),
        ("john+a+b@corp.example", True),
        ("+lists@corp.example", False),
        ("o'hara+x@corp.example", True),
        ("o'hara+y@corp.example", False),
        ("john-lists@corp.example", False),
        ("john", False),
        ("@corp.example", False),
        ("", False),
    ],
)
def test_an_address_is_listed_in_any_form_that_means_it(address: str, expected: bool) -> None:
    assert expected is listed(*FILE).has(address, "+")


def test_what_separates_a_subaddress_is_a_setting() -> None:
    found = listed("john@corp.example")

    assert [False, True, True, False] == [
        found.has(address, delimiters)
        for address, delimiters in (
            ("john+x@corp.example", ""), ("john-x@corp.example", "+-"), ("john+x-y@corp.example", "-+"), ('"john+x y"@corp.example', "+"),
        )
    ]  # fmt: skip


def test_case_counts_where_the_setting_says_so_and_never_in_the_domain() -> None:
    found = listed("John@corp.example", is_case_sensitive=True)

    assert [True, True, False] == [found.has(address, "+") for address in ("John@corp.example", "John+x@CORP.example", "john@corp.example")]


@pytest.mark.parametrize(
    "line",
    [
        "john", "@", "*@", "john@", "a@b@c.example", "john@corp example", "john @corp.example", "<john@corp.example>", "john@corp.example,",
        "john@corp.example jane@corp.example", "mailto:john@corp.example", 'john"@corp.example', '"john@corp.example', "john@corp.example;",
        "john\x00@corp.example", "john@corp\x1b.example", "SMTP:john@corp.example", "john\\@corp.example", "(john)@corp.example",
        "john@[192.0.2.1", "john@corp.exam[ple", "\ufeff", "john@corp.example#comment", "a" * LINE_CHARACTERS_MAX + "@corp.example",
        "**@corp.example extra", '"a\nb"@corp.example', "*@*", "@*", "*@*.corp.example", "john@*.example",
    ],
)  # fmt: skip
def test_a_line_that_is_no_address_breaks_the_file_and_is_named(line: str) -> None:
    with pytest.raises(BrokenList, match="line 2 is neither an address nor a domain") as broken:
        listed("john@corp.example", line)

    assert not any(ord(character) < 32 for character in str(broken.value))


def test_a_file_of_comments_has_no_address() -> None:
    with pytest.raises(BrokenList, match="it has no address"):
        listed("# nothing", "", "   ")


@given(st.lists(st.text(max_size=60), max_size=20))
def test_any_text_is_a_list_or_a_broken_one(lines: list[str]) -> None:
    try:
        found = listed(*lines)
    except BrokenList:
        return
    assert found.count >= 1


@given(st.text(max_size=200))
def test_any_address_can_be_asked_for(address: str) -> None:
    assert isinstance(listed(*FILE).has(address, "+-"), bool)


def test_an_address_takes_some_eight_octets() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        found = listed(*(f"user{number}@corp.example" for number in range(100_000)))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 100_000 == found.count
    assert after - before < 100_000 * 12 + 200_000
    assert [True, True, False] == [found.has(f"user{number}@corp.example", "+") for number in (0, 99_999, 100_000)]
