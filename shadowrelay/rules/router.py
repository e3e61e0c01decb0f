"""Chooses the next hop of each recipient: the configured routes, else MX of the recipient's domain. RFC 5321 5.1.

Runs for every message: patterns are compiled once, and the choices for a domain are cached.
Whole addresses are matched case-insensitively; routes cannot distinguish `A@x` from `a@x`, as few systems do.
"""

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from shadowrelay.model.ids import SiteName
from shadowrelay.model.message import Ordinals, Recipient
from shadowrelay.model.protection import Protection
from shadowrelay.model.routing import Destination, Fork, HostPort
from shadowrelay.model.settings import Route, Settings
from shadowrelay.model.values import replace
from shadowrelay.protocol.addresses import canonical_local, mailbox
from shadowrelay.protocol.fields import domain_of
from shadowrelay.rules.site_links import Path, Sites, last_common_stop

DOMAINS_REMEMBERED_MAX = 10_000
RECIPIENTS_PER_TRANSACTION_MAX = 100  # RFC 5321 4.5.3.1.8: every server accepts this many
WITHOUT = "~"  # in keys: in no domain, host name or number
NOWHERE = "postmaster.invalid"  # RFC 6761 6.4: never in DNS, so that `Postmaster` without a home is returned with a DSN

NO_PEER = HostPort("no-peer.invalid")  # RFC 6761 6.4. A route to a site came with a reload, its peers come at the restart: mail waits

_Choice = tuple[re.Pattern[str] | None, Destination, str, Path]
"""A pattern for the whole normalized address (`None` if the domain alone decides), the destination, the journal recipient, and the path to
the site that delivers (empty: this one)."""
_Stop = tuple[SiteName, bool, bool]
"""A site where mail stops, and `inside_boundary` and `tracks` of the way there."""


_DOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_HOST_AND_PORT = re.compile(r".*:\d+(#\d+)?", re.DOTALL)


def is_smart_host(key: str) -> bool:
    """Whether the queue with this key delivers to hosts of a route, or to an address, rather than by MX."""
    return _HOST_AND_PORT.fullmatch(key.partition(WITHOUT)[0]) is not None


def routes_of(settings: Settings) -> tuple[Route, ...]:
    """The routes in their order, each with `inside_boundary` decided: where it is not set, a route is inside if all its recipients are of
    `accepted_domains`. Whoever takes mail for a domain from anybody is the organisation that it belongs to."""
    own = [_normal_labels(domain) for connector in settings.receive_connectors for domain in connector.accepted_domains]
    return tuple(
        route if route.inside_boundary is not None else route.model_copy(update={"inside_boundary": _is_of(route, own)})
        for route in settings.routes
    )


def _is_of(route: Route, own: Sequence[str]) -> bool:
    domains = [_normal_labels(pattern.strip().rpartition("@")[2]) for pattern in route.recipients]
    return all(any(covers(mine, domain) for mine in own) for domain in domains)


def covers(pattern: str, other: str) -> bool:
    """Whether every text that matches `other` matches `pattern`, too; in both * stands for any text. Compared without case."""
    return _glob(pattern.lower()).fullmatch(other.lower()) is not None


class Router:
    """The routes of one configuration. `home`: the domain of a bare `Postmaster` (RFC 5321 4.5.1). Without `sites` every route is for this
    site."""

    def __init__(self, routes: Sequence[Route] = (), home: str = "", sites: Sites | None = None) -> None:
        self._home = home or NOWHERE
        self.is_journaling = any(route.journal_recipient for route in routes)
        self._known: dict[str, Destination] = {}
        self._rules = _compiled(routes, sites, self._known)
        self._sites = sites
        self._stops = _stops(routes, sites, self._known)
        self._choices: dict[str, tuple[_Choice, ...]] = {}

    def next_hop_of(self, name: str) -> Destination | None:
        """The destination with this key, or that of mail for this domain, by the routes for whole domains; `None` if it is neither."""
        if WITHOUT in name:
            return self._next_hop_without(name)
        if (known := self._known.get(name)) is not None:
            return known
        domain = domain_of(f"@{name.removesuffix('.')}")
        return self.destination(f"postmaster@{domain}") if "@" not in name and _DOMAIN.fullmatch(domain) else None

    def _next_hop_without(self, name: str) -> Destination | None:
        try:
            whole, avoided = _parted(name)
        except ValueError:
            return None
        found = self.next_hop_of(whole)
        left = None if found is None else _reduced(found, avoided)
        return left if left is not None and left.key == name else None

    def destination(self, address: str) -> Destination:
        """The next hop of one recipient. Shapes: equal destinations are the same object while cached."""
        choices = self._choices.get(domain_of(address), ())
        return choices[0][1] if len(choices) == 1 else self._choice(address)[1]

    def journal_recipients(self, recipients: Sequence[Recipient]) -> tuple[str, ...]:
        """Who gets a journal report of a message with these recipients. Shapes: each once, compared without case."""
        found: dict[str, str] = {}
        for recipient in recipients:
            if journal_recipient := self._choice(recipient.address)[2]:
                found.setdefault(mailbox(journal_recipient), journal_recipient)
        return tuple(found.values())

    def _choice(self, address: str) -> _Choice:
        domain = domain_of(address)
        choices = self._choices.get(domain)
        if choices is None:
            if len(self._choices) >= DOMAINS_REMEMBERED_MAX:
                self._choices.clear()
            choices = self._choices[domain] = self._choices_of(domain)
        for choice in choices[:-1]:
            if choice[0] is not None and choice[0].fullmatch(_normal(address, domain)):
                return choice
        return choices[-1]

    def _choices_of(self, domain: str) -> tuple[_Choice, ...]:
        """The choices for this domain, in order; the last one always matches."""
        choices: list[_Choice] = []
        for domain_pattern, pattern, destination, journal_recipient, path in self._rules:
            if domain_pattern is None or domain_pattern.fullmatch(domain):
                choices.append((pattern, destination or self._by_dns(domain), journal_recipient, path))
                if pattern is None:
                    return tuple(choices)
        return (*choices, (None, self._by_dns(domain), "", ()))

    def _by_dns(self, domain: str) -> Destination:
        if not domain.startswith("["):
            return Destination(domain or self._home, domain=domain or self._home)
        server = HostPort(str(ip_address(domain[1:-1].removeprefix("ipv6:"))))  # RFC 5321 4.1.3
        return Destination(str(server), hosts=(server,), is_literal=True)

    def has_other_route(self, recipients: Sequence[Recipient], undone: Ordinals, avoided: frozenset[HostPort]) -> bool:
        """Whether any of these recipients can be reached without these servers. No look-up: DNS may always know another exchange."""
        return any(self._without(recipients[ordinal - 1].address, avoided) is not None for ordinal in undone)

    def forks(self, recipients: Sequence[Recipient], undone: Ordinals, avoided: frozenset[HostPort] = frozenset()) -> tuple[Fork, ...]:
        """Bifurcate the recipients that are not done, in the order of their first ordinals. Without the servers that are `avoided` where
        there is another route; where there is none, as ever."""
        shared: dict[Destination, list[int]] = {}
        if avoided:
            for ordinal in sorted(undone):
                address = recipients[ordinal - 1].address
                shared.setdefault(self._without(address, avoided) or self.destination(address), []).append(ordinal)
            return tuple(Fork(destination, frozenset(ordinals)) for destination, ordinals in shared.items())
        if len(undone) == 1:
            (ordinal,) = undone
            return (Fork(self.destination(recipients[ordinal - 1].address), undone),)
        for ordinal in sorted(undone):
            shared.setdefault(self.destination(recipients[ordinal - 1].address), []).append(ordinal)
        if self._stops and len(shared) > 1:
            shared = self._gathered(recipients, shared)
        return tuple(Fork(destination, frozenset(ordinals)) for destination, ordinals in shared.items())

    def _gathered(self, recipients: Sequence[Recipient], shared: Mapping[Destination, Sequence[int]]) -> dict[Destination, list[int]]:
        """Delayed fan-out: the destinations of several sites become one, the last common stop on the ways to them."""
        assert self._sites is not None
        ways: dict[_Stop, dict[Path, None]] = {}
        for destination, ordinals in shared.items():
            for ordinal in ordinals:
                if path := self._choice(recipients[ordinal - 1].address)[3]:
                    ways.setdefault((path[1], destination.inside_boundary, destination.tracks), {})[path] = None
        stops = {
            way: last_common_stop(tuple(paths), self._sites.hubs, self._sites.servers) for way, paths in ways.items() if len(paths) > 1
        }
        gathered: dict[Destination, list[int]] = {}
        for destination, ordinals in shared.items():
            for ordinal in ordinals:
                path = self._choice(recipients[ordinal - 1].address)[3]
                stop = stops.get((path[1], destination.inside_boundary, destination.tracks)) if path else None
                where = destination if stop is None else self._stops[stop, destination.inside_boundary, destination.tracks]
                gathered.setdefault(where, []).append(ordinal)
        return dict(sorted(((where, sorted(ordinals)) for where, ordinals in gathered.items()), key=lambda item: item[1][0]))

    def _without(self, address: str, avoided: frozenset[HostPort]) -> Destination | None:
        """The first choice that these servers leave something of: a further host of the route, a later route that matches, DNS."""
        domain = domain_of(address)
        normal = _normal(address, domain)
        is_whole_domain_routed = False
        for domain_pattern, pattern, destination, _, _ in self._rules:
            if (domain_pattern is None or domain_pattern.fullmatch(domain)) and (pattern is None or pattern.fullmatch(normal)):
                if (left := _reduced(destination or self._by_dns(domain), avoided)) is not None:
                    return left
                is_whole_domain_routed = is_whole_domain_routed or pattern is None
        # A route for the whole domain stands in place of its MX records, which may name this very cluster
        return None if is_whole_domain_routed else _reduced(self._by_dns(domain), avoided)


def _reduced(destination: Destination, avoided: frozenset[HostPort]) -> Destination | None:
    """The destination without these servers; itself if none of them is in it; `None` if nothing is left."""
    names = frozenset([_as_named(server) for server in avoided])
    if not destination.hosts:
        return replace(destination, key=_key_without(destination.key, names), avoided=names)
    hosts = tuple([host for host in destination.hosts if _as_named(host) not in names])
    if hosts == destination.hosts:
        return destination
    within = names & {_as_named(host) for host in destination.hosts}
    return replace(destination, key=_key_without(destination.key, within), hosts=hosts) if hosts else None


def _as_named(server: HostPort) -> HostPort:
    return HostPort(server.host.lower().rstrip("."), server.port)


def _key_without(key: str, avoided: frozenset[HostPort]) -> str:
    """Of a queue of its own, from which `_parted` finds both again: retries are kept by key."""
    return WITHOUT.join([key, *sorted(map(str, avoided))])


def _parted(key: str) -> tuple[str, frozenset[HostPort]]:
    """The key of the whole destination, and the servers that are avoided. Raises ValueError if this is no key."""
    whole, *servers = key.split(WITHOUT)
    parts = [server.rpartition(":") for server in servers]
    return whole, frozenset([HostPort(host.removeprefix("[").removesuffix("]"), int(port)) for host, _, port in parts])


_Rule = tuple[re.Pattern[str] | None, re.Pattern[str] | None, Destination | None, str, Path]
"""Patterns for the domain and for the whole address (`None`: any), the destination (`None`: DNS), the journal recipient, and the path."""


def _compiled(routes: Sequence[Route], sites: Sites | None, known: dict[str, Destination]) -> tuple[_Rule, ...]:
    rules: list[_Rule] = []
    for route in routes:
        path = _path(route, sites)
        hosts = _hosts_towards(route.site, sites) if path and sites is not None else route.next_hop
        destination = _destination(hosts, route, known, None if path else route.protection) if hosts else None
        rules += (_rule(pattern, destination, route.journal_recipient, path) for pattern in route.recipients)
    return tuple(rules)


def _path(route: Route, sites: Sites | None) -> Path:
    """The way to the site that delivers; empty if this one does."""
    if sites is None or route.site in ("", sites.here):
        return ()
    return sites.paths.get(route.site, (sites.here, route.site))


def _hosts_towards(site: SiteName, sites: Sites) -> tuple[HostPort, ...]:
    return sites.servers.get(sites.stop_towards(site) or site, (NO_PEER,))


def _stops(routes: Sequence[Route], sites: Sites | None, known: dict[str, Destination]) -> dict[_Stop, Destination]:
    """Every site on the way to one that delivers; made with the routes, so that a key means the same after a restart."""
    stops: dict[_Stop, Destination] = {}
    for route in routes:
        for site in _path(route, sites)[1:]:
            if sites is not None and (hosts := sites.servers.get(site)):
                stops[site, bool(route.inside_boundary), route.redundancy.tracks] = _destination(hosts, route, known)
    return stops


def _destination(
    hosts: tuple[HostPort, ...], route: Route, known: dict[str, Destination], protection: Protection | None = None
) -> Destination:
    """A destination named after its first host. Another list with the same first host, or another `protection`, gets a number: retries are
    kept by key."""
    name = key = str(hosts[0])
    number = 1
    while True:
        destination = Destination(
            key,
            hosts=hosts,
            inside_boundary=bool(route.inside_boundary),
            tracks=route.redundancy.tracks,
            concurrency=route.concurrency_per_destination,
            protection=protection,
            xclient=route.xclient,
            xforward=route.xforward,
        )
        if known.setdefault(key, destination) == destination:
            return known[key]
        number += 1
        key = f"{name}#{number}"


def _rule(pattern: str, destination: Destination | None, journal_recipient: str, path: Path) -> _Rule:
    local, at, domain = pattern.strip().rpartition("@")
    if not at:  # "*", or a pattern for the whole address
        whole = None if set(domain) == {"*"} else _glob(domain.lower())
        return None, whole, destination, journal_recipient, path
    normal = _normal_labels(domain)
    address = None if set(local) == {"*"} else _glob(f"{canonical_local(local).lower()}@{normal}")
    return _glob(normal), address, destination, journal_recipient, path


def _normal_labels(domain: str) -> str:
    """Label by label: IDNA cannot encode a star."""
    return ".".join(label.lower() if "*" in label else domain_of(f"@{label}") for label in domain.split("."))


def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", pattern))), re.DOTALL)


def _normal(address: str, domain: str) -> str:
    local, at, _ = address.rpartition("@")
    return f"{canonical_local(local).lower()}@{domain}" if at else address.lower()
