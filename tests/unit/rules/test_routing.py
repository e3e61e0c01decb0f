"""Recipients, patterns, next hops, forks."""

import pytest

from shadowrelay.model.message import Recipient
from shadowrelay.model.routing import Destination, Fork, HostPort
from shadowrelay.model.settings import Route, Settings
from shadowrelay.rules.router import Router, routes_of


def route(*patterns, hop="hop.example:25", inside=False):
    return Route(recipients=patterns, next_hop=hop, inside_boundary=inside)


HOP = Destination("hop.example:25", hosts=(HostPort("hop.example"),))


def by_dns(domain):
    return Destination(domain, domain=domain)


MATCHES = [
    ("*@corp.example", "a@corp.example", True),
    ("*@corp.example", "a@CORP.Example", True),
    ("*@Corp.Example", "a@corp.example", True),
    ("*@corp.example", "a@sub.corp.example", False),
    ("*@corp.example", "a@xcorp.example", False),
    ("*@*.example", "a@x.y.example", True),
    ("*@*.example", "a@example", False),
    ("user@x.example", "user@x.example", True),
    ("user@x.example", "USER@x.example", True),
    ("USER@x.example", "user@x.example", True),
    ("user@x.example", "user2@x.example", False),
    ("sales-*@x.example", "sales-eu@x.example", True),
    ("sales-*@x.example", "eu@x.example", False),
    ("*", "anybody@anywhere.example", True),
    ("**", "anybody@anywhere.example", True),
    ("*", "Postmaster", True),
    ("postmaster", "Postmaster", True),
    ("postmaster", "postmaster@x.example", False),
    ("*.example", "a@b.example", True),
    ("*@bücher.example", "a@xn--bcher-kva.example", True),
    ("*@xn--bcher-kva.example", "a@BÜCHER.example", True),
    ("*@*.bücher.example", "a@x.bücher.example", True),
    ("*@[192.0.2.1]", "a@[192.0.2.1]", True),
    ("a.b@x.example", "axb@x.example", False),
    ('"a b"@x.example', '"a b"@x.example', True),
    ("*@x.example", '"a@b"@x.example', True),
]


@pytest.mark.parametrize(("pattern", "address", "expected"), MATCHES)
def test_a_pattern_matches_or_does_not(pattern, address, expected):
    assert expected is (Router((route(pattern),)).destination(address) == HOP)


def test_the_first_match_wins():
    routes = (route("boss@corp.example", hop="a:25"), route("*@corp.example", hop="b:25"), route("*@*", hop="c:25"))
    router = Router(routes)
    keys = [router.destination(address).key for address in ("boss@corp.example", "x@corp.example", "y@z.example")]
    assert ["a:25", "b:25", "c:25"] == keys


def test_without_a_match_the_domain_is_looked_up():
    assert by_dns("elsewhere.example") == Router((route("x@elsewhere.example"),)).destination("a@Elsewhere.example")


def test_a_domain_of_other_letters_is_looked_up_by_its_ascii_name():
    assert by_dns("xn--bcher-kva.example") == Router().destination("a@bücher.example")


LITERALS = [
    ("a@[192.0.2.1]", Destination("192.0.2.1:25", hosts=(HostPort("192.0.2.1"),), is_literal=True)),
    ("a@[IPv6:2001:DB8:0::1]", Destination("[2001:db8::1]:25", hosts=(HostPort("2001:db8::1"),), is_literal=True)),
]


@pytest.mark.parametrize(("address", "expected"), LITERALS)
def test_an_address_literal_is_its_own_next_hop(address, expected):
    assert expected == Router().destination(address)


@pytest.mark.parametrize(("home", "domain"), [("mx1.example", "mx1.example"), ("", "postmaster.invalid")])
def test_a_bare_postmaster_lives_at_home(home, domain):
    assert by_dns(domain) == Router((), home).destination("Postmaster")


def test_a_route_with_alternates_keeps_their_order_and_where_it_leads():
    router = Router((route("*", hop=["b:26", "a:25"], inside=True),))
    assert Destination("b:26", (HostPort("b", 26), HostPort("a")), "", True) == router.destination("x@y.example")


def test_two_routes_to_different_lists_that_begin_alike_have_different_names():
    hops = ["a:25", ["a:25", "b:25"], "a:25", ["a:25", "c:25"]]
    router = Router(tuple(route(f"*@{place}.example", hop=hop) for place, hop in enumerate(hops)))
    assert ["a:25", "a:25#2", "a:25", "a:25#3"] == [router.destination(f"x@{place}.example").key for place in range(4)]


RECIPIENTS = tuple(Recipient(address) for address in ("a@x.example", "b@y.example", "c@x.example", "d@z.example"))


def test_recipients_that_share_a_next_hop_share_a_fork():
    expected = (
        Fork(by_dns("x.example"), frozenset({1, 3})),
        Fork(by_dns("y.example"), frozenset({2})),
        Fork(by_dns("z.example"), frozenset({4})),
    )
    assert expected == Router().forks(RECIPIENTS, frozenset({1, 2, 3, 4}))


def test_who_is_done_is_in_no_fork():
    expected = (Fork(by_dns("y.example"), frozenset({2})), Fork(by_dns("x.example"), frozenset({3})))
    assert expected == Router().forks(RECIPIENTS, frozenset({3, 2}))


def test_a_single_recipient_is_a_single_fork():
    assert (Fork(by_dns("z.example"), frozenset({4})),) == Router().forks(RECIPIENTS, frozenset({4}))


def test_nobody_left_means_no_fork():
    assert () == Router().forks(RECIPIENTS, frozenset())


def test_more_domains_than_are_remembered_still_find_their_way(monkeypatch):
    monkeypatch.setattr("shadowrelay.rules.router.DOMAINS_REMEMBERED_MAX", 2)
    router = Router()
    expected = [f"d{number}.example" for number in (1, 2, 3, 1)]
    assert expected == [router.destination(f"a@{domain}").key for domain in expected]


def test_each_journal_recipient_of_the_routes_of_a_message_is_named_once() -> None:
    routes = [
        Route(recipients=("boss@corp.example",), next_hop="a:25", journal_recipient="Board@archive.example"),
        Route(recipients=("*@corp.example",), next_hop="a:25", journal_recipient="journal@archive.example"),
        Route(recipients=("*@partner.example",), next_hop="b:25", journal_recipient="JOURNAL@archive.example"),
        Route(recipients=("*@plain.example",), next_hop="a:25"),
    ]
    router = Router(routes)

    def named(*addresses: str) -> tuple[str, ...]:
        return router.journal_recipients([Recipient(address) for address in addresses])

    assert router.is_journaling
    assert () == named("u@plain.example", "u@elsewhere.example")
    assert ("journal@archive.example",) == named("u@plain.example", "u@corp.example", "v@partner.example")
    assert ("Board@archive.example", "journal@archive.example") == named("boss@corp.example", "u@corp.example")
    assert router.destination("boss@corp.example") is router.destination("u@corp.example"), "journaling makes no queue of its own"
    assert not Router(routes[3:]).is_journaling


# inside the boundary
DECIDED = [  # accepted domains of two connectors, patterns of a route, what it says, and whether it is inside
    (["corp.example"], [], ["*@corp.example"], None, True),
    (["corp.example"], [], ["ann@CORP.example", "b*@corp.example"], None, True),
    (["corp.example"], ["other.example"], ["*@corp.example", "*@other.example"], None, True),
    (["corp.example"], [], ["*@corp.example", "*@other.example"], None, False),
    (["corp.example"], [], ["*@sub.corp.example"], None, False),
    (["*.corp.example"], [], ["*@*.corp.example"], None, True),
    (["*.corp.example"], [], ["*@a.corp.example"], None, True),
    (["bücher.example"], [], ["*@xn--bcher-kva.example"], None, True),
    (["corp.example"], [], ["*"], None, False),
    ([], [], ["*@corp.example"], None, False),
    (["corp.example"], [], ["*@corp.example"], False, False),
    ([], [], ["*@elsewhere.example"], True, True),
]


def _inside_of(route):
    address = route.recipients[0].replace("*", "a") if "@" in route.recipients[0] else "a@b.example"
    return Router((route,)).destination(address).inside_boundary


@pytest.mark.parametrize(("one", "other", "patterns", "given", "expected"), DECIDED)
def test_a_route_is_inside_if_all_its_recipients_are_of_accepted_domains_unless_it_says_otherwise(one, other, patterns, given, expected):
    connectors = [
        {"name": f"c{number}", "listen": f"127.0.0.1:{number}", "accepted_domains": names} for number, names in enumerate((one, other), 1)
    ]
    routes = [{"recipients": patterns, "next_hop": "hop.example:25", **({} if given is None else {"inside_boundary": given})}]
    settings = Settings.model_validate({"server": {"name": "a.example", "site": "x"}, "receive_connectors": connectors, "routes": routes})

    (decided,) = routes_of(settings)

    assert (expected, expected) == (decided.inside_boundary, _inside_of(decided))
