"""Filters: what they mean, and where a wrong one is wrong."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shadowrelay.protocol.filters import (
    COMPARISONS_MAX,
    DEPTH_MAX,
    LENGTH_MAX,
    MESSAGE_PROPERTIES,
    QUEUE_PROPERTIES,
    Comparison,
    FilterError,
    Joined,
    Negated,
    Operator,
    matches,
    parse_filter,
)

AT = datetime(2026, 11, 22, 15, 4, 5, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "Identity": "mx1\\\\shop.example".replace("\\\\", "\\"),
    "DeliveryType": "DnsConnectorDelivery",
    "Status": "Retry",
    "MessageCount": 11,
    "NextHopDomain": "shop.example",
    "LastError": "",
    "NextRetryTime": AT,
    "RetryCount": 3,
    "Velocity": -0.5,
    "OldestAge": timedelta(hours=5),
    "Octets": 2_000_000,
}


def is_so(text: str) -> bool:
    return matches(parse_filter(text, QUEUE_PROPERTIES), VALUES)


@pytest.mark.parametrize(
    "text",
    [
        "MessageCount -gt 10 -and NextHopDomain -like '*.example'",
        "messagecount -GE 11 -AND status -eq retry",
        'NextHopDomain -eq "SHOP.example"',
        "NextHopDomain -notlike 'mail*' -and NextHopDomain -ne x.example",
        "NextHopDomain -like 'sh*p.ex*le' -and NextHopDomain -like *",
        "-not (MessageCount -lt 11 -or Status -eq 'Ready')",
        "-not -not MessageCount -eq 11",
        "(MessageCount -eq 1 -or MessageCount -eq 11) -and (Velocity -lt 0)",
        "Velocity -eq -0.5",
        "NextRetryTime -eq '2026-11-22T15:04:05Z' -and NextRetryTime -le '2026-11-22 16:04:05+01:00'",
        "NextRetryTime -gt '11/22/2026' -and NextRetryTime -ge '11/22/2026 3:04 PM' -and NextRetryTime -lt '11/22/2026 15:04:06'",
        "OldestAge -gt 4h -and OldestAge -lt 5h1m -and OldestAge -eq 05:00:00 -and OldestAge -lt 1.00:00:00 -and OldestAge -gt '90 m'",
        "Octets -eq 2MB -and Octets -gt 1999KB -and Octets -lt 2.1mb -and Octets -ge 2000000",
        "NextRetryTime -ne $null -and FirstRetryTime -eq $null -and LastError -eq $null -and LastError -eq ''",
        "FirstRetryTime -ne '2026-01-01' -and LastError -notlike '*timeout*'",
        "Identity -like 'mx1\\\\*'".replace("\\\\", "\\"),
    ],
)
def test_it_is_so(text: str) -> None:
    assert is_so(text)
    assert not is_so(f"-not ({text})")


@pytest.mark.parametrize(
    "text",
    [
        "MessageCount -gt 11",
        "NextHopDomain -like 'shop'",
        "NextHopDomain -like '*shop.example.*'",
        "NextHopDomain -like 'shop.example*example'",  # the two ends may not overlap
        "LastError -like '?*'",
        "FirstRetryTime -gt '2020-01-01'",
        "FirstRetryTime -eq '2026-01-01'",
        "LastError -eq 'x'",
        "MessageCount -eq 11 -and Status -eq 'Ready'",
    ],
)
def test_it_is_not_so(text: str) -> None:
    assert not is_so(text)


def test_a_quotation_mark_within_quotation_marks_is_doubled() -> None:
    expression = parse_filter('Subject -eq \'it\'\'s\' -or Subject -eq "say ""so"""', MESSAGE_PROPERTIES)

    assert Joined(False, (Comparison("Subject", Operator.EQ, "it's"), Comparison("Subject", Operator.EQ, 'say "so"'))) == expression


def test_not_binds_to_what_follows_it() -> None:
    assert Joined(True, (Negated(Comparison("RetryCount", Operator.EQ, 1.0)), Comparison("RetryCount", Operator.LT, 9.0))) == parse_filter(
        "-not RetryCount -eq 1 -and RetryCount -lt 9", QUEUE_PROPERTIES
    )


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "it is empty"),
        ("   ", 0, "it is empty"),
        ("MessageCnt -gt 10", 0, "no property of that name; there are Identity, DeliveryType"),
        ("Status -eq 'Retry' -and 'Status' -eq 'Retry'", 24, "no property of that name"),
        ("MessageCount 10", 13, "an operator is expected here: -eq, -ne, -gt"),
        ("MessageCount -like '1*'", 13, "MessageCount is a number: -eq, -ne, -gt"),
        ("NextHopDomain -gt 'a'", 14, "NextHopDomain is a text: -eq, -ne, -like, -notlike"),
        ("MessageCount -gt ten", 17, "a number is expected here"),
        ("MessageCount -gt 1e400", 17, "a number is expected here"),
        ("MessageCount -gt nan", 17, "a number is expected here"),
        ("NextRetryTime -gt tomorrow", 18, "a date and time"),
        ("NextRetryTime -gt '0001-01-01T00:00:00+23:59'", 18, "a date and time"),
        ("OldestAge -gt 5", 14, "a duration"),
        ("OldestAge -gt 99999999w", 14, "a duration"),
        ("OldestAge -gt 999999999w", 14, "a duration"),
        ("Octets -gt 5XB", 11, "a size"),
        ("Status -eq 'Retrying'", 11, "there is no such value; there are Active, Ready, Retry, Suspended"),
        ("MessageCount -gt", 16, "a value is expected here"),
        ("MessageCount -gt -and Status -eq Retry", 17, "a value is expected here"),
        ("MessageCount -gt $null", 17, "$null can only be compared by -eq and -ne"),
        ("MessageCount -gt 1 Status -eq Retry", 19, "-and, -or or the end is expected here"),
        ("MessageCount -gt 1)", 18, "-and, -or or the end is expected here"),
        ("(MessageCount -gt 1", 19, "a closing parenthesis is expected here"),
        ("(MessageCount -gt 1 2)", 20, "a closing parenthesis is expected here"),
        ("()", 1, "no property of that name"),
        ("MessageCount -gt 1 -and", 23, "a comparison is expected here"),
        ("NextHopDomain -like 'x", 20, "this quotation mark is not closed"),
        ("MessageCount -eq 1 -or MessageCount -eq 2 -and Status -eq Retry", 42, "which belongs together?"),
        ("(" * (DEPTH_MAX + 1) + "MessageCount -eq 1" + ")" * (DEPTH_MAX + 1), DEPTH_MAX, "within each other"),
        (" -and ".join(["RetryCount -eq 1"] * (COMPARISONS_MAX + 1)), COMPARISONS_MAX * 22, "comparisons"),
        ("x" * (LENGTH_MAX + 1), LENGTH_MAX, "longer than"),
    ],
)
def test_a_wrong_filter_is_answered_with_the_place_of_the_mistake(text: str, position: int, problem: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text, QUEUE_PROPERTIES)

    assert position == caught.value.position
    assert problem in caught.value.problem
    _, shown, caret = str(caught.value).splitlines()
    assert (text[:LENGTH_MAX], " " * position + "^") == (shown, caret)


def test_control_characters_are_not_repeated() -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter("Status\x1b[31m -eq\n'x'", QUEUE_PROPERTIES)

    assert "\x1b" not in str(caught.value)
    assert 3 == len(str(caught.value).splitlines())


@given(st.text(max_size=200))
@example("-not" * 100)
@example("Status -eq '" + "'" * 101)
def test_any_text_is_a_filter_or_a_mistake_with_a_place(text: str) -> None:
    position = 0
    try:
        matches(parse_filter(text, QUEUE_PROPERTIES), VALUES)
    except FilterError as error:
        position = error.position

    assert 0 <= position <= len(text)


def test_no_pattern_takes_long() -> None:
    pattern = "*a" * 900
    assert not matches(Comparison("Subject", Operator.LIKE, f"{pattern}b*"), {"Subject": "a" * 100_000})
