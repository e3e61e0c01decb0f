"""What each client did in its minute, as plain values: exact for as many clients as come, in bounded memory."""

import sys
import tracemalloc

import pytest

from shadowrelay.model.client_minute import Counted
from shadowrelay.model.receive_settings import LimitsPerClient
from shadowrelay.smtp.client_limits import REPLIES, ClientLimits, ClientMinutes, clients_of, fits


def limits(**settings: object) -> ClientLimits:
    return ClientLimits("in", LimitsPerClient.model_validate(settings))


@pytest.mark.parametrize("what", [Counted.CONNECTIONS, Counted.MESSAGES, Counted.RECIPIENTS])
def test_as_many_are_taken_in_a_minute_as_the_setting_says_and_then_again(what: Counted) -> None:
    client = limits(**{f"{what}_per_minute": 3})

    assert [None] * 3 + [REPLIES[what]] * 2 == [client.take("192.0.2.1", what, 1, now) for now in (0, 10, 20, 30, 59.9)]
    assert [None] * 3 + [REPLIES[what]] == [client.take("192.0.2.1", what, 1, now) for now in (60, 60, 119, 119.9)]


def test_a_limit_of_one_thing_does_not_count_another() -> None:
    client = limits(messages_per_minute=1)

    assert [None] * 5 == [client.take("192.0.2.1", Counted.RECIPIENTS, 1, 0) for _ in range(5)]
    assert client.take("192.0.2.1", Counted.MESSAGES, 1, 0) is None


def test_addresses_of_one_ipv6_network_have_one_minute() -> None:
    client = limits(messages_per_minute=1)

    assert client.take("2001:db8:0:1::1", Counted.MESSAGES, 1, 0) is None
    assert REPLIES[Counted.MESSAGES] == client.take("2001:db8:0:1:ffff::2", Counted.MESSAGES, 1, 0)
    assert client.take("2001:db8:0:2::1", Counted.MESSAGES, 1, 0) is None


def test_exempt_networks_are_not_counted() -> None:
    client = limits(messages_per_minute=1, refused_recipients_per_minute=1, exempt=["10.0.0.0/8"])

    assert [None] * 3 == [client.take("10.1.2.3", Counted.MESSAGES, 1, 0) for _ in range(3)]
    client.note("10.1.2.3", Counted.REFUSED_RECIPIENTS, 0)
    assert client.exceeded("10.1.2.3", Counted.REFUSED_RECIPIENTS, 1, 0) is None
    assert 0 == len(client.minutes)


def test_what_was_refused_is_not_counted_but_shown() -> None:
    client = limits(recipients_per_minute=1)
    for _ in range(3):
        client.take("192.0.2.1", Counted.RECIPIENTS, 1, 0)

    minute = client.minutes.known("192.0.2.1", 0)

    assert minute is not None
    assert (1, 2, 2) == (minute.recipients, minute.limited_count, client.refused[Counted.RECIPIENTS])


@pytest.mark.parametrize(
    ("used", "amount", "expected"), [(0, 10, True), (4, 6, True), (4, 7, False), (0, 11, True), (1, 10, False), (11, 1, False)]
)
def test_only_the_first_message_of_a_minute_may_be_larger_than_its_octets(used: int, amount: int, expected: bool) -> None:
    assert expected is fits(Counted.OCTETS, used, amount, 10)


def test_a_changed_limit_counts_what_was_done_before() -> None:
    client = limits(messages_per_minute=5)
    for _ in range(3):
        client.take("192.0.2.1", Counted.MESSAGES, 1, 0)

    client.adopt(LimitsPerClient(messages_per_minute=3))

    assert REPLIES[Counted.MESSAGES] == client.take("192.0.2.1", Counted.MESSAGES, 1, 0)


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.heavy)])
def test_of_many_addresses_each_has_exactly_its_share(count: int) -> None:
    client = limits(connections_per_minute=2)
    addresses = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(count)]

    taken = [sum(client.take(address, Counted.CONNECTIONS, 1, turn * 10) is None for address in addresses) for turn in range(4)]

    assert [count, count, 0, 0] == taken
    assert (count, 0) == (len(client.minutes), client.minutes.forgotten_count)
    assert client.take("192.0.2.1", Counted.CONNECTIONS, 1, 60) is None
    assert 1 == len(client.minutes)


def test_a_flood_of_addresses_takes_bounded_memory() -> None:
    minutes = ClientMinutes(clients_max=1_000)
    tracemalloc.start()
    try:
        for number in range(20_000):
            minutes.of(f"client {number}", number / 1_000).messages += 1
        octets, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (1_000, 19_000) == (len(minutes), minutes.forgotten_count)
    assert octets < 1_000 * 500
    assert sys.getsizeof(minutes.of("client 19999", 20)) < 100


def test_who_was_refused_most_is_listed_first_then_who_did_most_then_open_sessions() -> None:
    client = limits(messages_per_minute=2)
    for address, count in (("192.0.2.1", 2), ("192.0.2.2", 4), ("192.0.2.3", 1)):
        for _ in range(count):
            client.take(address, Counted.MESSAGES, 1, 10)

    rows = clients_of("in", client.minutes.all(20), {"192.0.2.3": 1, "192.0.2.4": 9}, 10, 20)

    assert ["192.0.2.2", "192.0.2.1", "192.0.2.3", "192.0.2.4"] == [row.client for row in rows]
    assert [(0, 50), (0, 50), (1, 50), (9, 0)] == [(row.sessions_count, row.seconds_left) for row in rows]
    assert ["192.0.2.2"] == [row.client for row in clients_of("in", client.minutes.all(20), {}, 1, 20)]
