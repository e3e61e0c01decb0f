from datetime import timedelta
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import (
    format_duration,
    format_size,
    parse_domain,
    parse_duration,
    parse_host_port,
    parse_name,
    parse_name_server,
    parse_network,
    parse_next_hops,
    parse_size,
)

DURATIONS = [
    ("250ms", timedelta(milliseconds=250)),
    ("90s", timedelta(seconds=90)),
    ("2m", timedelta(minutes=2)),
    ("1.5h", timedelta(minutes=90)),
    ("0.25s", timedelta(milliseconds=250)),
    ("2 d", timedelta(days=2)),
    (" 3h ", timedelta(hours=3)),
    ("0s", timedelta(0)),
]
SIZES = [
    ("36MB", 36_000_000),
    ("64KiB", 65_536),
    ("10kB", 10_000),
    ("1.5MB", 1_500_000),
    ("1000MB", 10**9),
    ("12", 12),
    (12, 12),
    ("7B", 7),
]
ADDRESSES = [
    ("mx1.example:25", HostPort("mx1.example", 25)),
    ("127.0.0.1:0", HostPort("127.0.0.1", 0)),
    ("[::1]:2525", HostPort("::1", 2525)),
    ("_sink:65535", HostPort("_sink", 65535)),
]


@pytest.mark.parametrize(("text", "value"), DURATIONS)
def test_a_duration_is_a_number_and_its_unit(text: str, value: timedelta) -> None:
    assert value == parse_duration(text)


@pytest.mark.parametrize(
    "wrong", [5, 5.0, True, None, "", "5", "s", "-5s", "5 minutes", "1m30s", "5S", "٣s", "1e3s", "5s\n6s", "9" * 400 + "d"]
)
def test_anything_else_is_no_duration(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"is (not|a longer) "):
        parse_duration(wrong)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=100_000)))
def test_a_formatted_duration_is_read_back_unchanged(value: timedelta) -> None:
    assert value == parse_duration(format_duration(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [(timedelta(minutes=90), "90m"), (timedelta(days=2), "2d"), (timedelta(0), "0s"), (timedelta(microseconds=1), "0.000001s")],
)
def test_a_duration_is_written_with_the_largest_unit_that_fits(value: timedelta, text: str) -> None:
    assert text == format_duration(value)


@pytest.mark.parametrize(("text", "value"), SIZES)
def test_a_size_is_a_number_of_bytes_in_decimal_units_unless_binary_ones_are_written(text: object, value: int) -> None:
    assert value == parse_size(text)


@pytest.mark.parametrize("wrong", [True, 1.5, None, "", "MB", "-1MB", "1mb", "1 M", "1e6"])
def test_anything_else_is_no_size(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(wrong)


@given(st.integers(min_value=0, max_value=10**13))
def test_a_formatted_size_is_read_back_unchanged(value: int) -> None:
    assert value == parse_size(format_size(value))


@pytest.mark.parametrize(("text", "value"), ADDRESSES)
def test_an_address_is_a_host_and_a_port(text: str, value: HostPort) -> None:
    assert value == parse_host_port(text)
    assert value == parse_host_port(str(value))
    assert value == parse_host_port(value)


@pytest.mark.parametrize(
    "wrong",
    [
        "[a:b]:25",
        "[IPv6:mx]:25",
        "[IPv6:]:25",
        5,
        "",
        "mx",
        ":25",
        "mx:",
        "mx:x",
        "mx:65536",
        "mx:-1",
        "::1:25",
        "[::1]",
        "[::1]25",
        "[mx]:25",
        "a b:25",
        "mx:25:26",
        "-:1",
    ],
)
def test_anything_else_is_no_address(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        parse_host_port(wrong)


@pytest.mark.parametrize("text", ["[IPv6:2001:db8::1]:25", "[ipv6:2001:db8::1]:25"])
def test_an_ipv6_address_may_be_written_as_in_an_address_of_mail(text: str) -> None:
    assert HostPort("2001:db8::1", 25) == parse_host_port(text)


def test_the_port_of_a_name_server_or_next_hop_may_be_left_out() -> None:
    assert HostPort("192.0.2.1", 53) == parse_name_server("192.0.2.1")
    assert (HostPort("mailstore.example", 25), HostPort("::1", 25)) == parse_next_hops(["mailstore.example", "[::1]"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("192.0.2.53:5353", HostPort("192.0.2.53", 5353)),
        ("2001:db8::53", HostPort("2001:db8::53", 53)),
        ("[2001:db8::53]:5353", HostPort("2001:db8::53", 5353)),
        ("fe80::1%eth0", HostPort("fe80::1%eth0", 53)),
    ],
)
def test_a_name_server_is_an_ip_address(text: str, value: HostPort) -> None:
    assert value == parse_name_server(text)
    assert value == parse_name_server(str(value))
    assert value == parse_name_server(value)


@pytest.mark.parametrize(
    "wrong", ["ns.example", "ns.example:53", "localhost", "192.0.2.1:0", "192.0.2", "192.0.2.1:x", "", 53, HostPort("ns.example", 53)]
)
def test_a_name_server_by_name_would_never_be_asked(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"IP address|port"):
        parse_name_server(wrong)


def test_one_next_hop_needs_no_list_and_an_empty_list_is_an_error() -> None:
    assert (HostPort("mailstore.example", 2600),) == parse_next_hops("mailstore.example:2600")
    with pytest.raises(ValueError, match="is empty"):
        parse_next_hops([])


@pytest.mark.parametrize("text", ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"])
def test_a_network_is_a_prefix_or_a_single_address(text: str) -> None:
    assert ip_network(text) == parse_network(text)
    assert ip_network(text) == parse_network(ip_network(text))


@pytest.mark.parametrize("wrong", ["10.0.0.1/8", "mx1.example", "", 5, None])
def test_a_network_with_host_bits_or_none_at_all_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"(is|,) not a network"):
        parse_network(wrong)


def test_names_become_lower_case_without_final_dot() -> None:
    assert "mx1.east.example" == parse_name(" MX1.East.Example. ")


@pytest.mark.parametrize("wrong", ["", "a b", "a/b", 5, "-", "ü.example"])
def test_what_cannot_be_a_host_name_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        parse_name(wrong)


@pytest.mark.parametrize(
    ("text", "value"), [("Corp.Example.", "corp.example"), ("*.corp.example", "*.corp.example"), ("Bücher.example", "bücher.example")]
)
def test_a_mail_domain_may_be_of_any_script_or_stand_for_all_below_it(text: str, value: str) -> None:
    assert value == parse_domain(text)


@pytest.mark.parametrize("wrong", ["", "*", "*corp.example", "a@b", "a b", "[192.0.2.1]", 5])
def test_what_cannot_be_a_mail_domain_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a domain"):
        parse_domain(wrong)
