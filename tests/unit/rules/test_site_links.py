"""Paths between sites against brute force, hub sites, delayed fan-out, and the five sites of the documents."""

import random
from collections.abc import Iterator
from itertools import pairwise, permutations

import pytest

from shadowrelay.model.ids import SiteName
from shadowrelay.model.message import Recipient
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Settings
from shadowrelay.rules.router import Router
from shadowrelay.rules.site_links import Links, Path, Sites, in_words, last_common_stop, links_of, next_stop, paths, problems, sites_of

CHICAGO, NEW_YORK, LONDON, DUBLIN, ATLANTA = FIVE = tuple(map(SiteName, ("chicago", "new-york", "london", "dublin", "atlanta")))
LINKED = [((CHICAGO, NEW_YORK), 10), ((ATLANTA, NEW_YORK), 10), ((NEW_YORK, LONDON), 50), ((LONDON, DUBLIN), 10)]
HUBS = frozenset({NEW_YORK, LONDON})


def all_paths(links: Links, sites: list[SiteName], start: SiteName, end: SiteName) -> Iterator[Path]:
    others = [site for site in sites if site not in (start, end)]
    for count in range(len(others) + 1):
        for between in permutations(others, count):
            path = (start, *between, end)
            if all(after in links.get(before, {}) for before, after in pairwise(path)):
                yield path


def by_brute_force(links: Links, sites: list[SiteName], start: SiteName, end: SiteName) -> Path | None:
    def preference(path: Path) -> tuple[int, int, Path]:
        return sum(links[before][after] for before, after in pairwise(path)), len(path), path[::-1]

    return min(all_paths(links, sites, start, end), key=preference, default=None)


def some_links(chance: random.Random, sites: list[SiteName]) -> Links:
    pairs = [(one, other) for number, one in enumerate(sites) for other in sites[:number]]
    return links_of([(pair, chance.randint(1, 3)) for pair in chance.sample(pairs, chance.randint(0, len(pairs)))])


@pytest.mark.parametrize("seed", range(60))
def test_a_path_is_the_best_of_all_and_its_rest_is_the_best_from_there(seed: int) -> None:
    chance = random.Random(seed)
    sites = [SiteName(name) for name in "abcdef"[: chance.randint(2, 6)]]
    links = some_links(chance, sites)
    found = {start: paths(links, start) for start in sites}

    for start in sites:
        assert found[start][start] == (start,)
        for end in sites:
            if end != start:
                path = found[start].get(end)
                assert by_brute_force(links, sites, start, end) == path
                assert path is None or found[path[1]][end] == path[1:], "no two nodes differ, and no mail goes round"


@pytest.mark.parametrize("seed", range(60))
def test_mail_arrives_whatever_the_hub_sites_are(seed: int) -> None:
    chance = random.Random(seed)
    sites = [SiteName(name) for name in "abcdef"]
    links = some_links(chance, sites)
    hubs = frozenset(chance.sample(sites, chance.randint(0, 6)))
    for start in sites:
        for end, path in paths(links, start).items():
            seen, here = [start], start
            while here != end:
                here = next_stop(paths(links, here)[end], hubs)
                seen.append(here)
            assert [start, *(site for site in path[1:-1] if site in hubs), *([end] if end != start else [])] == seen


TIES = [
    ("least cost before fewest hops", [("ab", 5), ("ac", 2), ("cb", 2)], "acb"),
    ("fewest hops at the same cost", [("ab", 4), ("ac", 2), ("cb", 2)], "ab"),
    ("the lowest name", [("ax", 1), ("ac", 1), ("xb", 1), ("cb", 1)], "acb"),
    ("the name nearest to the destination first", [("ac", 1), ("cy", 1), ("yb", 1), ("ad", 1), ("dx", 1), ("xb", 1)], "adxb"),
]


@pytest.mark.parametrize(("given", "expected"), [case[1:] for case in TIES], ids=[case[0] for case in TIES])
def test_of_two_paths_counts(given: list[tuple[str, int]], expected: str) -> None:
    links = links_of([((SiteName(pair[0]), SiteName(pair[1])), cost) for pair, cost in given])

    assert tuple(expected) == paths(links, SiteName("a"))[SiteName("b")]


@pytest.mark.parametrize("start", [CHICAGO, ATLANTA])
def test_from_chicago_and_atlanta_mail_reaches_dublin_by_new_york_and_london(start: SiteName) -> None:
    links = links_of(LINKED)
    path = paths(links, start)[DUBLIN]

    assert (start, NEW_YORK, LONDON, DUBLIN) == path
    stops = [next_stop(paths(links, here)[DUBLIN], HUBS) for here in (start, NEW_YORK, LONDON)]
    assert [NEW_YORK, LONDON, DUBLIN] == stops
    assert "site dublin by way of new-york and london, with a stop at new-york and london" == in_words(path, HUBS)
    assert "site dublin by way of new-york and london, without a stop" == in_words(path, frozenset())
    assert "site new-york" == in_words((start, NEW_YORK), HUBS)


EVERYWHERE = dict.fromkeys(FIVE)
TO_DUBLIN, TO_LONDON, TO_ATLANTA = (CHICAGO, NEW_YORK, LONDON, DUBLIN), (CHICAGO, NEW_YORK, LONDON), (CHICAGO, NEW_YORK, ATLANTA)
STOPS = [
    ("where the ways part", [TO_DUBLIN, TO_ATLANTA], HUBS & {LONDON}, EVERYWHERE, NEW_YORK),
    ("the end of one that lies on the other", [TO_DUBLIN, TO_LONDON], frozenset(), EVERYWHERE, LONDON),
    ("a hub site before that", [TO_DUBLIN, TO_LONDON], HUBS, EVERYWHERE, NEW_YORK),
    ("the last that has servers", [TO_DUBLIN, TO_LONDON], frozenset(), {NEW_YORK: None, DUBLIN: None}, NEW_YORK),
    ("none without servers", [TO_DUBLIN, TO_ATLANTA], frozenset(), {DUBLIN: None, ATLANTA: None}, None),
    ("none where they part at once", [TO_DUBLIN, (CHICAGO, ATLANTA)], HUBS, EVERYWHERE, None),
]


@pytest.mark.parametrize(("ways", "hubs", "servers", "expected"), [case[1:] for case in STOPS], ids=[case[0] for case in STOPS])
def test_the_last_common_stop_is(ways, hubs, servers, expected) -> None:
    assert expected == last_common_stop(ways, hubs, servers) == last_common_stop(ways[::-1], hubs, servers)


# routes to sites


def settings(
    here: str, hubs: tuple[str, ...] = (), links: list | None = None, peers: tuple[str, ...] = FIVE, **changes: object
) -> Settings:
    given = {
        "server": {"name": f"hub1.{here}.example", "site": here},
        "peers": [
            {"name": f"hub{number}.{site}.example", "site": site, "address": f"hub{number}.{site}.example:2525"}
            for site in peers
            for number in (1, 2)
            if (number, site) != (1, here)
        ],
        "site_links": [{"sites": sites, "cost": cost} for sites, cost in LINKED] if links is None else links,
        "sites": [{"name": site, "hub_site_enabled": True} for site in hubs],
        "routes": [
            {"recipients": [f"*@{site}.example"], "next_hop": f"store.{site}.example", "site": site, "redundancy": "previous-hop"}
            for site in FIVE[:-1]
        ]
        + [{"recipients": ["*@atlanta.example"], "site": "atlanta", "redundancy": "previous-hop"}],
    }
    return Settings.model_validate({**given, **changes})


def router(given: Settings) -> Router:
    return Router(given.routes, given.server.name, sites_of(given))


def forks(given: Settings, *sites: str) -> list[tuple[str, list[int]]]:
    recipients = tuple(Recipient(f"user@{site}.example") for site in sites)
    made = router(given).forks(recipients, frozenset(range(1, len(sites) + 1)))
    again = router(given)
    assert [fork.destination for fork in made] == [again.next_hop_of(fork.destination.key) for fork in made], "found again after a restart"
    return [(fork.destination.key, sorted(fork.ordinals)) for fork in made]


def test_a_route_to_a_site_goes_to_the_servers_of_the_next_stop_and_is_delivered_there() -> None:
    both = (NEW_YORK, LONDON)
    ways = [router(settings(here, both)).destination("user@dublin.example") for here in ("chicago", "new-york", "london", "dublin")]

    stops = [["hub1.new-york.example", "hub2.new-york.example"], ["hub1.london.example", "hub2.london.example"]]
    stops += [["hub1.dublin.example", "hub2.dublin.example"], ["store.dublin.example"]]
    assert stops == [[host.host for host in way.hosts] for way in ways]
    assert all(way.tracks for way in ways)


def test_a_route_to_this_site_without_a_next_hop_is_delivered_by_dns() -> None:
    found = router(settings("atlanta")).destination("user@atlanta.example")

    assert ("atlanta.example", "atlanta.example", ()) == (found.key, found.domain, found.hosts)


def test_without_hub_sites_mail_goes_straight_to_the_site_that_delivers() -> None:
    assert [("hub1.dublin.example:2525", [1])] == forks(settings("chicago"), "dublin")


def test_recipients_whose_ways_begin_alike_go_as_one_fork_to_where_they_part() -> None:
    assert [("hub1.new-york.example:2525", [1, 2])] == forks(settings("chicago"), "dublin", "atlanta")
    assert [("hub1.london.example:2525", [1, 2])] == forks(settings("chicago"), "dublin", "london")
    assert [("hub1.new-york.example:2525", [1, 2, 4]), ("store.chicago.example:25", [3])] == forks(
        settings("chicago"), "dublin", "atlanta", "chicago", "london"
    )
    assert [("hub1.dublin.example:2525", [1]), ("atlanta.example", [2])] == forks(settings("atlanta"), "dublin", "atlanta")


def test_recipients_of_a_site_part_only_where_their_routes_want_different_things() -> None:
    routes = [
        {"recipients": ["*@dublin.example"], "next_hop": "a", "site": "dublin", "redundancy": "previous-hop"},
        {"recipients": ["*@atlanta.example"], "next_hop": "b", "site": "atlanta"},
    ]

    assert ["hub1.dublin.example:2525", "hub1.atlanta.example:2525"] == [
        key for key, _ in forks(settings("chicago", routes=routes), "dublin", "atlanta")
    ]


def test_another_server_of_the_stop_is_another_route() -> None:
    way = router(settings("chicago", ("new-york",)))
    recipients, lost = (Recipient("user@dublin.example"),), frozenset({HostPort("hub1.new-york.example", 2525)})

    (fork,) = way.forks(recipients, frozenset({1}), lost)

    assert (HostPort("hub2.new-york.example", 2525),) == fork.destination.hosts
    assert fork.destination == way.next_hop_of(fork.destination.key)


def test_while_the_peers_of_a_new_site_wait_for_the_restart_its_mail_waits_too() -> None:
    given = settings("chicago", peers=(CHICAGO,))

    assert [("no-peer.invalid:25", [1, 2])] == forks(given, "dublin", "atlanta")


def test_sites_are_those_of_the_settings() -> None:
    found = sites_of(settings("london", ("new-york",)))

    assert Sites(LONDON, found.paths, frozenset({NEW_YORK}), found.servers) == found
    assert (set(FIVE), (HostPort("hub2.london.example", 2525),)) == (set(found.paths), found.servers[LONDON])
    assert (NEW_YORK, None) == (found.stop_towards(CHICAGO), found.stop_towards(SiteName("paris")))


def link(*sites: str) -> dict[str, object]:
    return {"sites": sites}


def route(**changes: object) -> dict[str, object]:
    return {"routes": [{"recipients": ["*"], **changes}]}


KNOWN = "add a [[site_links]] to it, or write one of these"
PROBLEMS = [
    (settings("chicago", HUBS), []),
    (
        settings("chicago", links=[link("chicago")]),
        ['site_links[0].sites: a link has two ends, this one has 1; write sites = ["first", "second"]'],
    ),
    (settings("chicago", links=[link("london", "london")]), ["site_links[0].sites: this links london to itself; name two sites"]),
    (
        settings("chicago", links=[link("chicago", "london"), link("london", "chicago")]),
        ["site_links[1].sites: london and chicago are linked by site_links[0] already; remove one of the two"],
    ),
    (
        settings("chicago", ("paris",), **route(next_hop="a")),
        [f"sites[0].name: there is no site paris; {KNOWN}: {', '.join(sorted(FIVE))}"],
    ),
    (
        settings("chicago", ("london", "london"), **route(next_hop="a")),
        ["sites[1].name: london is there more than once; keep one of each name"],
    ),
    (settings("chicago", **route(site="paris")), [f"routes[0].site: there is no site paris; {KNOWN}: {', '.join(sorted(FIVE))}"]),
    (settings("chicago", **route()), ["routes[0].next_hop: is missing; add it, or site"]),
    (settings("chicago", links=[], **route(site="chicago")), []),
    (
        settings("chicago", links=[link("london", "dublin")], **route(site="dublin")),
        ["routes[0].site: no link leads from chicago to dublin; add the [[site_links]] that join them"],
    ),
    (
        settings("chicago", ("new-york",), peers=(DUBLIN,), **route(site="dublin")),
        ['routes[0].site: mail for dublin goes to new-york next, where there is no peer; add [[peers]] with site = "new-york"'],
    ),
]


@pytest.mark.parametrize(("given", "expected"), PROBLEMS)
def test_what_cannot_be_used_is_said_with_key_and_remedy(given: Settings, expected: list[str]) -> None:
    assert expected == problems(given)
