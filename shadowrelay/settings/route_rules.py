"""What the TLS and login of a route cannot be, and files that cannot be used. docs/operations.md "TLS to next hops".

Each problem begins with its key, and names the remedy. Files are read as the sessions read them.
"""

from collections.abc import Iterator

from shadowrelay import credentials
from shadowrelay.model.protection import SMTPS, TlsMode
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.settings.values import Route, Settings


def problems(settings: Settings) -> Iterator[str]:
    """Why the routes cannot be used."""
    for number, route in enumerate(settings.routes):
        if route.protection is not None:
            for problem in _of_route(route, settings):
                yield f"routes[{number}].{problem}"


def _of_route(route: Route, settings: Settings) -> Iterator[str]:
    protection = route.protection
    assert protection is not None
    if not route.next_hop:
        yield "tls: has no effect without next_hop; name the next hop, or remove what begins with tls"
        return
    if settings.leads_to_peer(route):
        yield "tls: a next_hop is a peer, whose sessions are protected as its [[peers]] require_tls says; remove what begins with tls"
        return
    if any(hop.scheme == SMTPS for hop in route.next_hop) and protection.tls is TlsMode.NONE:
        yield 'tls: "none" contradicts smtps:// in next_hop; remove one of them'
    if protection.tls is not TlsMode.VERIFIED:
        for key, value in (("tls_names", protection.names), ("tls_authority", protection.authority)):
            if value:
                yield f'{key}: nobody compares it with tls = "{protection.tls}"; write tls = "verified", or remove it'
    if (protection.certificate is None) != (protection.key is None):
        missing = "tls_key" if protection.key is None else "tls_certificate"
        yield f"{missing}: is missing; give the certificate and its key, or neither"
        return
    try:
        credentials.client_context(protection)
    except ConfigurationError as error:
        yield str(error)
