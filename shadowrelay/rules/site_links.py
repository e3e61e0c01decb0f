"""Routes mail between sites: links with costs, hub sites where mail stops, and where the recipients of a message part. docs/design.md 6.7.

Mail takes the path of least cost, then of fewest hops, then of the lowest name, compared from the destination backwards. Whether a server
answers plays no part. A part of such a path is such a path itself, so all nodes with the same links agree, and no mail loops. Mail goes
straight to the servers of the last site, unless a hub site lies between. Source: seed-003, msd-lcr
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

from shadowrelay.model.ids import SiteName
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Settings
from shadowrelay.model.values import dataclass

Path = tuple[SiteName, ...]
"""From the site of this node to another one, both included."""
Links = Mapping[SiteName, Mapping[SiteName, int]]
"""The costs to the neighbours of each site; the same in both directions."""


@dataclass(frozen=True, slots=True)
class Sites:
    """Shapes: `paths` has all sites that can be reached from here, this one included; `servers` the peers of each site, in order."""

    here: SiteName
    paths: Mapping[SiteName, Path]
    hubs: frozenset[SiteName]
    servers: Mapping[SiteName, tuple[HostPort, ...]]

    def stop_towards(self, site: SiteName) -> SiteName | None:
        """The site whose servers mail for `site` goes to; `None` if no link leads there."""
        path = self.paths.get(site)
        return None if path is None else next_stop(path, self.hubs)


def sites_of(settings: Settings) -> Sites:
    """The sites as this configuration has them."""
    servers: dict[SiteName, tuple[HostPort, ...]] = {}
    for peer in settings.peers:
        servers[peer.site] = (*servers.get(peer.site, ()), peer.address)
    hubs = frozenset([site.name for site in settings.sites if site.hub_site_enabled])
    links = links_of([(link.sites, link.cost) for link in settings.site_links if len(link.sites) == 2])
    return Sites(settings.server.site, paths(links, settings.server.site), hubs, servers)


def links_of(costs: Iterable[tuple[Sequence[SiteName], int]]) -> Links:
    """Pairs of sites and their cost, as a graph."""
    links: dict[SiteName, dict[SiteName, int]] = {}
    for (one, other), cost in costs:
        links.setdefault(one, {})[other] = cost
        links.setdefault(other, {})[one] = cost
    return links


def paths(links: Links, start: SiteName) -> dict[SiteName, Path]:
    """The best path to each site that can be reached from `start`, itself included."""
    found: dict[SiteName, Path] = {}
    waiting: list[tuple[int, int, Path]] = [(0, 0, (start,))]  # cost, hops, and the path backwards: the order of preference
    while waiting:
        cost, hops, backwards = heapq.heappop(waiting)
        site = backwards[0]
        if site in found:
            continue
        found[site] = backwards[::-1]
        for neighbour, further in links.get(site, {}).items():
            if neighbour not in found:
                heapq.heappush(waiting, (cost + further, hops + 1, (neighbour, *backwards)))
    return found


def next_stop(path: Path, hubs: frozenset[SiteName]) -> SiteName:
    """Where mail on this path stops first: at a hub site on it, else at its end."""
    return next((site for site in path[1:] if site in hubs), path[-1])


def last_common_stop(ways: Sequence[Path], hubs: frozenset[SiteName], servers: Mapping[SiteName, object]) -> SiteName | None:
    """The farthest site that has servers and lies on all these paths, but not behind a hub site; `None` if they part here.

    Delayed fan-out: one copy of a message goes as far as its recipients' ways are the same.
    """
    common: SiteName | None = None
    for places in zip(*(path[1:] for path in ways), strict=False):
        if len(set(places)) > 1:
            break
        if places[0] in servers:
            common = places[0]
        if places[0] in hubs:
            break
    return common


def in_words(path: Path, hubs: frozenset[SiteName]) -> str:
    """For an operator: "site dublin by way of new-york and london, with a stop at london"."""
    between = path[1:-1]
    if not between:
        return f"site {path[-1]}"
    stops = [site for site in between if site in hubs]
    then = f", with a stop at {' and '.join(stops)}" if stops else ", without a stop"
    return f"site {path[-1]} by way of {' and '.join(between)}{then}"


def problems(settings: Settings) -> list[str]:
    """Why these sites and links cannot be used, each with the key and the remedy. Shapes: may be empty."""
    links = list(_wrong_links(settings))
    return links or [*_wrong_sites(settings), *_wrong_routes(settings, sites_of(settings))]


def _wrong_links(settings: Settings) -> Iterator[str]:
    seen: dict[frozenset[SiteName], int] = {}
    for number, link in enumerate(settings.site_links):
        key = f"site_links[{number}]"
        if len(link.sites) != 2:
            yield f'{key}.sites: a link has two ends, this one has {len(link.sites)}; write sites = ["first", "second"]'
        elif link.sites[0] == link.sites[1]:
            yield f"{key}.sites: this links {link.sites[0]} to itself; name two sites"
        elif (earlier := seen.setdefault(frozenset(link.sites), number)) != number:
            yield f"{key}.sites: {' and '.join(link.sites)} are linked by site_links[{earlier}] already; remove one of the two"


def _known_sites(settings: Settings) -> set[SiteName]:
    return {settings.server.site, *(site for link in settings.site_links for site in link.sites)}


def _unknown(site: SiteName, settings: Settings) -> str:
    known = ", ".join(sorted(_known_sites(settings)))
    return f"there is no site {site}; add a [[site_links]] to it, or write one of these: {known}"


def _wrong_sites(settings: Settings) -> Iterator[str]:
    names = [site.name for site in settings.sites]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield f"sites[{number}].name: {name} is there more than once; keep one of each name"
        elif name not in _known_sites(settings):
            yield f"sites[{number}].name: {_unknown(name, settings)}"


def _wrong_routes(settings: Settings, sites: Sites) -> Iterator[str]:
    for number, route in enumerate(settings.routes):
        key = f"routes[{number}]"
        if not route.site:
            if not route.next_hop:
                yield f"{key}.next_hop: is missing; add it, or site"
        elif route.site not in _known_sites(settings):
            yield f"{key}.site: {_unknown(route.site, settings)}"
        elif (stop := sites.stop_towards(route.site)) is None:
            yield f"{key}.site: no link leads from {sites.here} to {route.site}; add the [[site_links]] that join them"
        elif stop != sites.here and stop not in sites.servers:
            yield f'{key}.site: mail for {route.site} goes to {stop} next, where there is no peer; add [[peers]] with site = "{stop}"'
