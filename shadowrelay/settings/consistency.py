"""What the values of a configuration cannot be together. docs/mistakes.md "Configuration".

Names that are there twice, addresses that are taken, mail in a circle. Each problem begins with its key, and names the remedy.
`rules.site_links` has those of sites and routes.
"""

from collections.abc import Iterator
from ipaddress import ip_address

from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import is_ip_address, is_one_address
from shadowrelay.model.settings import Settings


def problems(settings: Settings) -> Iterator[str]:
    """Why these settings cannot be used together, each with the key and the remedy."""
    yield from _wrong_names(settings)
    yield from _unknown_sources(settings)
    yield from _without_certificate(settings)
    yield from _taken_addresses(settings)
    yield from _shared_ports(settings)
    yield from _rights_of_spokesmen(settings)
    yield from _filters(settings)
    yield from _circles(settings)


def _wrong_names(settings: Settings) -> Iterator[str]:
    for table in ("peers", "receive_connectors", "recipient_sources", "filters"):
        entries = getattr(settings, table)
        names = [entry.name for entry in entries]
        for number, name in enumerate(names):
            if table == "peers" and name == settings.server.name:
                yield f"peers[{number}].name: {name} is this node itself; remove it from [[peers]]"
            elif name in names[:number]:
                yield f"{table}[{number}].name: {name} is there more than once; keep one of each name"


def _unknown_sources(settings: Settings) -> Iterator[str]:
    known = [source.name for source in settings.recipient_sources]
    for number, connector in enumerate(settings.receive_connectors):
        for name in connector.recipients:
            if name not in known:
                there = f"there are {', '.join(known)}" if known else "there is none"
                yield f"receive_connectors[{number}].recipients: no [[recipient_sources]] has the name {name}, {there}; add it"


def _without_certificate(settings: Settings) -> Iterator[str]:
    if settings.tls is None or settings.tls.peer_authority is None:
        for number, peer in enumerate(settings.peers):
            if peer.require_tls:
                yield f"peers[{number}].require_tls: needs [tls] with certificate, key and peer_authority; add them or remove it"
    for number, connector in enumerate(settings.receive_connectors):
        for name in ("implicit_tls", "require_tls"):
            if getattr(connector, name) and settings.tls is None:
                yield f"receive_connectors[{number}].{name}: needs [tls] with certificate and key; add them or remove it"
            if getattr(connector, name) and connector.externally_secured:
                yield f"receive_connectors[{number}].{name}: contradicts externally_secured, for peers without TLS; remove one of them"
        if connector.implicit_tls and connector.proxy_from:
            yield (
                f"receive_connectors[{number}].implicit_tls: contradicts proxy_from, whose header comes before TLS; let the load balancer "
                "end TLS, or clients use STARTTLS"
            )
    if settings.admin.tls_listen is not None and settings.tls is None:
        yield "admin.tls_listen: needs [tls] with certificate and key; add them or remove it"


def _taken_addresses(settings: Settings) -> Iterator[str]:
    every = [
        (f"receive_connectors[{number}].listen", f"receive connector {each.name}", each.listen)
        for number, each in enumerate(settings.receive_connectors)
    ]
    every.append(("admin.listen", "admin.listen", settings.admin.listen))
    if settings.admin.tls_listen is not None:
        every.append(("admin.tls_listen", "admin.tls_listen", settings.admin.tls_listen))
    for number, (key, _, address) in enumerate(every):
        for _, other, taken in every[:number]:
            if address.port and address.port == taken.port and is_one_address(address.host, taken.host):
                yield f"{key}: {address} is taken by {other}, which listens on {taken}; give each its own port"
                break


def _shared_ports(settings: Settings) -> Iterator[str]:
    for number, connector in enumerate(settings.receive_connectors):
        key = f"receive_connectors[{number}].reuse_port"
        if connector.reuse_port and connector.accept_xshadow:
            yield f"{key}: a peer would reach any of the nodes; set accept_xshadow = false, and give peers a connector of their own"
        if connector.reuse_port and not connector.listen.port:
            yield f"{key}: nodes do not share port 0, which takes any free one; name the port"


def _rights_of_spokesmen(settings: Settings) -> Iterator[str]:
    """Who names another client, and may relay: whether that client may has to be said."""
    for number, connector in enumerate(settings.receive_connectors):
        if "relay_rights" in connector.model_fields_set:
            continue
        named_by = [(network, key) for key in ("proxy_from", "xclient_from") for network in getattr(connector, key)]
        for spokesman, key in named_by:
            if found := next(
                (each for each in connector.relay_from if each.version == spokesman.version and each.overlaps(spokesman)), None
            ):
                yield (
                    f"receive_connectors[{number}].relay_from: {found} has addresses of {spokesman} in {key}: everybody whom it "
                    'names could relay to anywhere; add relay_rights = "client" if relay_from means the clients behind it, or '
                    '"connection" if all of them may'
                )


def _filters(settings: Settings) -> Iterator[str]:
    names = [each.name for each in settings.filters]
    for number, connector in enumerate(settings.receive_connectors):
        for place, name in enumerate(connector.filters):
            if name not in names:
                known = f"write one of these: {', '.join(names)}" if names else "add [[filters]] with that name"
                yield f"receive_connectors[{number}].filters[{place}]: there is no filter {name}; {known}"
            elif name in connector.filters[:place]:
                yield f"receive_connectors[{number}].filters[{place}]: {name} is there more than once; keep one"


def _circles(settings: Settings) -> Iterator[str]:
    called = [(f"peers[{number}].address", peer.address) for number, peer in enumerate(settings.peers)]
    called += [(f"routes[{number}].next_hop", hop) for number, route in enumerate(settings.routes) for hop in route.next_hop]
    for key, address in called:
        if found := next((each.name for each in settings.receive_connectors if _reaches(settings, address, each.listen)), None):
            yield (
                f"{key}: {address} is receive connector {found} of this node itself; mail would go round in a circle: name another server"
            )


def _reaches(settings: Settings, address: HostPort, listen: HostPort) -> bool:
    """Whether `address` certainly is this listener. Names are not looked up: `check --online` does that."""
    host = "127.0.0.1" if address.host.lower() == "localhost" else address.host
    is_here = host.lower().rstrip(".") == settings.server.name or (_is_loopback(host) and is_one_address(host, listen.host))
    return bool(address.port) and address.port == listen.port and (is_here or host.lower() == listen.host.lower())


def _is_loopback(host: str) -> bool:
    return is_ip_address(host) and ip_address(host).is_loopback
