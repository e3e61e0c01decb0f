"""Another route for a recipient, without a server that failed. docs/design.md 6.7."""

import pytest

from shadowrelay.model.message import Recipient
from shadowrelay.model.routing import Destination, Fork, HostPort
from shadowrelay.model.settings import Route
from shadowrelay.rules.router import Router, is_smart_host

LOST = HostPort("hub1.example", 2525)
AVOIDED = frozenset({LOST})
HUB1, HUB2, STORE = "hub1.example:2525", "hub2.example:2525", "store.example:25"
USER = "user@corp.example"


def route(pattern: str, *hops: str, redundancy: str = "previous-hop") -> Route:
    return Route.model_validate({"recipients": [pattern], "next_hop": list(hops), "redundancy": redundancy})


def to(key: str, *hosts: str, tracks: bool = True) -> Destination:
    servers = [host.rpartition(":") for host in hosts]
    return Destination(key, tuple(HostPort(name, int(port)) for name, _, port in servers), tracks=tracks)


def by_dns(avoided: str = "~hub1.example:2525") -> Destination:
    return Destination(f"corp.example{avoided}", domain="corp.example", avoided=AVOIDED if avoided else frozenset())


FURTHER_HOST = to(f"{HUB1}~{HUB1}", HUB2)
CASES = [
    ("a further host of its route", [route("*", HUB1, HUB2), route("*", STORE)], FURTHER_HOST),
    ("in whatever order", [route("*", HUB2, HUB1)], to(f"{HUB2}~{HUB1}", HUB2)),
    ("a later route that matches", [route("*@corp.example", HUB1), route("*", STORE)], to(STORE, STORE)),
    ("what is left of a later route", [route(USER, HUB1), route("*", HUB1, STORE)], to(f"{HUB1}#2~{HUB1}", STORE)),
    ("a later route that does not match", [route("*", HUB1), route("*@other.example", STORE)], None),
    ("another exchange where only the address is routed", [route(USER, HUB1)], by_dns()),
    ("not DNS where the domain is routed", [route("*@corp.example", HUB1)], None),
    ("not DNS where everything is routed", [route(USER, HUB1), route("*", HUB1)], None),
    ("another exchange where there is no route", [], by_dns()),
    ("the route itself if it does not lead there", [route("*", STORE, HUB2)], to(STORE, STORE, HUB2)),
]


@pytest.mark.parametrize(("routes", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_another_route_is(routes: list[Route], expected: Destination | None) -> None:
    router = Router(routes)
    recipients = (Recipient(USER),)

    (fork,) = router.forks(recipients, frozenset({1}), AVOIDED)

    assert (expected or router.destination(USER)) == fork.destination
    assert (expected is not None) is router.has_other_route(recipients, frozenset({1}), AVOIDED)
    if expected is not None:
        assert expected == Router(routes).next_hop_of(expected.key), "found again after a restart"


def test_names_are_compared_without_case_and_without_the_last_dot() -> None:
    (fork,) = Router([route("*", HUB1, HUB2)]).forks((Recipient(USER),), frozenset({1}), frozenset({HostPort("HUB1.Example.", 2525)}))

    assert FURTHER_HOST == fork.destination


def test_another_port_is_another_server() -> None:
    (fork,) = Router([route("*", "hub1.example:25")]).forks((Recipient(USER),), frozenset({1}), AVOIDED)

    assert to("hub1.example:25", "hub1.example:25") == fork.destination


def test_one_recipient_with_another_route_is_enough_and_the_others_stay_where_they_were() -> None:
    router = Router([route("*@corp.example", HUB1), route("*@other.example", HUB1, HUB2)])
    recipients = tuple(Recipient(address) for address in (USER, "a@other.example", "b@other.example"))

    forks = router.forks(recipients, frozenset({1, 2, 3}), AVOIDED)

    assert (Fork(to(HUB1, HUB1), frozenset({1})), Fork(to(f"{HUB1}#2~{HUB1}", HUB2), frozenset({2, 3}))) == forks
    assert router.has_other_route(recipients, frozenset({1, 3}), AVOIDED)
    assert not router.has_other_route(recipients, frozenset({1}), AVOIDED)
    assert not router.has_other_route(recipients, frozenset(), AVOIDED)


def test_keys_of_routes_without_a_server_do_not_collide() -> None:
    routes = [
        route(f"*@{number}.example", *hops) for number, hops in enumerate([(HUB1, HUB2), (HUB2,), (HUB1, HUB2, STORE), (HUB2, STORE)])
    ]
    router = Router(routes)
    recipients = tuple(Recipient(f"a@{number}.example") for number in range(4))

    forks = [*router.forks(recipients, frozenset({1, 2, 3, 4})), *router.forks(recipients, frozenset({1, 2, 3, 4}), AVOIDED)]

    found = {fork.destination.key: fork.destination for fork in forks}
    assert len(found) == len({fork.destination for fork in forks}) == 6
    assert found == {key: router.next_hop_of(key) for key in found}


@pytest.mark.parametrize(
    "key",
    ["~", "corp.example~", f"{HUB1}~nobody", f"{HUB1}~other.example:25", f"unknown.example:25~{HUB1}", f"{HUB2}~{HUB2}", f"a b~{HUB1}"],
)
def test_a_name_that_is_no_key_names_no_next_hop(key: str) -> None:
    assert Router([route("*@corp.example", HUB1, HUB2), route("*@x.example", HUB2)]).next_hop_of(key) is None


def test_an_address_of_ipv6_is_found_again() -> None:
    router = Router([route("*", "[2001:db8::1]:2525", HUB2)])
    (fork,) = router.forks((Recipient(USER),), frozenset({1}), frozenset({HostPort("2001:db8::1", 2525)}))

    assert to("[2001:db8::1]:2525~[2001:db8::1]:2525", HUB2) == fork.destination == router.next_hop_of(fork.destination.key)


def test_a_key_says_whether_hosts_or_mx_records_are_meant() -> None:
    assert [True, False] == [is_smart_host(key) for key in (FURTHER_HOST.key, by_dns().key)]


def test_nothing_to_avoid_changes_nothing() -> None:
    router = Router([route("*@corp.example", HUB1, HUB2)])
    recipients = (Recipient(USER), Recipient("a@x.example"))

    (routed, looked_up) = router.forks(recipients, frozenset({1, 2}))

    assert (routed.destination, looked_up.destination) == tuple(router.destination(recipient.address) for recipient in recipients)
    assert frozenset() == looked_up.destination.avoided
