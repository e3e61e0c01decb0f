"""What the TLS and login of a route cannot be, and files that cannot be used. docs/operations.md "TLS to next hops".

Each problem begins with its key, and names the remedy. Files are read as the sessions read them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from shadowrelay import credentials
from shadowrelay.bounded import FILES
from shadowrelay.model.protection import SMTPS, Grant, Login, Mechanism, TlsMode, Token
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.settings import Route, Settings


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
    if route.auth is not None:
        yield from _of_login(route.auth, protection.tls)
    if protection.tls is not TlsMode.VERIFIED:
        for key, value in (("tls_names", protection.names), ("tls_authority", protection.authority)):
            if value:
                yield f'{key}: nobody compares it with tls = "{protection.tls}"; write tls = "verified", or remove it'
    if (protection.certificate is None) != (protection.key is None):
        missing = "tls_key" if protection.key is None else "tls_certificate"
        yield f"{missing}: is missing; give the certificate and its key, or neither"
        return
    yield from _of_files(lambda: credentials.certificates_of(protection), lambda: credentials.client_context(protection))


def _of_login(login: Login, tls: TlsMode) -> Iterator[str]:
    if not tls.is_demanded:
        yield f'auth: tls = "{tls}" would send the secret to whoever listens; write tls = "verified" or "required", or leave tls out'
    if not login.user:
        yield "auth.user: is empty; name the user"
    given = [login.secret_file is not None, bool(login.credential), login.token is not None]
    if sum(given) != 1:
        yield "auth: needs one of secret_file, credential and token; give the file with the password, or where tokens come from"
        return
    if login.mechanism is not Mechanism.AUTO and login.mechanism.takes_token != (login.token is not None):
        needs = "token" if login.mechanism.takes_token else "secret_file or credential"
        yield f"auth.mechanism: {login.mechanism} needs {needs}; give that, or another mechanism"
    if login.token is not None:
        yield from _of_token(login.token)
    for place in credentials.places_of(login):
        yield from _of_files(place.files, place.read)


def _of_files(files: Callable[[], tuple[Path, ...]], read: Callable[[], object]) -> Iterator[str]:
    """What hangs is no problem of the settings: a node must start without it, and follow other settings. Its sessions say that it hangs."""
    try:
        FILES.look(files(), read)
    except ConfigurationError as error:
        yield str(error)
    except TimeoutError:
        return


def _of_token(token: Token) -> Iterator[str]:
    secrets = [token.client_secret_file is not None, bool(token.client_credential)]
    refresh = [token.refresh_token_file is not None, bool(token.refresh_credential)]
    if token.command:
        if token.endpoint or any(secrets) or any(refresh):
            yield "auth.token.command: is there beside an endpoint and its secrets; keep one of them"
        if not token.command[0].startswith("/"):
            yield "auth.token.command: does not begin with an absolute path; write the path of the program"
        return
    url = urlsplit(token.endpoint)
    is_here = url.hostname in ("localhost", "127.0.0.1", "::1")
    if url.scheme not in ("https", "http") or not url.hostname or url.username or (url.scheme == "http" and not is_here):
        yield "auth.token.endpoint: is not an https URL without a user; write that of the token endpoint, or use command"
    if not token.client_id:
        yield "auth.token.client_id: is missing; give the id of the application"
    if sum(secrets) > 1 or sum(refresh) > 1:
        yield "auth.token: has a secret both as a file and as a credential; keep one of them"
    if token.grant is Grant.CLIENT_CREDENTIALS and not any(secrets):
        yield "auth.token.client_secret_file: is missing; give the file with the secret of the application, or client_credential"
    if token.grant is Grant.REFRESH_TOKEN and not any(refresh):
        yield "auth.token.refresh_token_file: is missing; give the file with the refresh token, or refresh_credential"
