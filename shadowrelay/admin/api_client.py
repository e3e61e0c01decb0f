"""Synchronous client of a node's API, for the commands. Returns plain dicts; errors include the remedy. docs/reference.md "Commands"."""

import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

import httpx

from shadowrelay.admin.token import read_token
from shadowrelay.model.printable import escaped
from shadowrelay.model.replies import ConfigurationError, ShadowrelayError
from shadowrelay.model.settings import Peer, Settings, Tls
from shadowrelay.trust import CheckedContext, PeerTrust

TOKEN_VARIABLE = "SHADOWRELAY_ADMIN_TOKEN"
TIMEOUT_SECONDS = 10.0
PAGE = 1000  # the API's maximum

Json = dict[str, Any]


class NodeError(ShadowrelayError):
    """The node did not answer, or refused; the text is for the operator. `status` is the HTTP status, 0 without an answer. `is_asked`: it
    may have got what it was asked, and done it."""

    def __init__(self, text: str, status: int = 0, *, is_asked: bool = False) -> None:
        # A server that is none of ours may have said it. Only what is wrong with a filter has lines: the third is a caret below the second
        super().__init__("\n".join(map(escaped, text.split("\n")[:3])) if status == 400 else escaped(text))
        self.status, self.is_asked = status, is_asked or bool(status)


def find_token(token_file: Path | None = None, environment: Mapping[str, str] = os.environ) -> str:
    """From the environment, else from the file. Raises: ConfigurationError with the remedy."""
    token = environment.get(TOKEN_VARIABLE, "").strip()
    if token:
        return token
    if token_file is None:
        raise ConfigurationError(f"no token: set {TOKEN_VARIABLE}, or name the node's token file")
    return read_token(token_file)


def checked_url(text: str) -> str:
    """The address of a node's API. Raises: ConfigurationError with the remedy."""
    example = f"http://{text}" if "://" not in text and text.strip("/:") else "http://127.0.0.1:8025"
    wrong = ConfigurationError(f"{text} is not the URL of a node; write --node {example}")
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:  # the port is none, or a bracket is missing
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise wrong
    return text


def _context_for(authority: Path, name: str, tls: Tls | None) -> ssl.SSLContext:
    """Raises: OSError, ConfigurationError."""
    context = CheckedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    context.trust = PeerTrust.read(authority, None if tls is None else tls.peer_revoked)
    context.is_named = bool(name)
    if tls is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key)
        except OSError as exc:
            reason = exc.strerror or "it is damaged"
            raise ConfigurationError(f"tls.key: {tls.key} cannot be used ({reason}); run this as a user who may read it") from exc
    return context


def client_of_peer(settings: Settings, peer: Peer, token: Callable[[], str], timeout: float = TIMEOUT_SECONDS) -> "NodeClient":
    """For what one node asks another: with rights to read only, which our certificate gives, else the read-only token that all nodes share.

    Where there is neither, as `init` wrote it in its first version, `token` is asked for the one that may do everything; it is sent to this
    machine, or to a server with a certificate of that name. Raises: NodeError, ConfigurationError.
    """
    is_encrypted = peer.admin.startswith("https:")
    if not is_encrypted and not _is_here(peer.admin):
        raise NodeError(f"{peer.admin} is not asked: a token would travel unencrypted; write https and its tls_listen in [[peers]]")
    authority = settings.tls.peer_authority if settings.tls else None
    if is_encrypted and authority is not None:
        return NodeClient(peer.admin, "", authority=authority, name=peer.name, tls=settings.tls, timeout=timeout)
    file = settings.admin.read_only_token_file
    said = token() if file is None else read_token(file, "admin.read_only_token_file")
    return NodeClient(peer.admin, said, name=peer.name if is_encrypted else "", timeout=timeout)


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class NodeClient:
    """One node's API. `url` is like "http://127.0.0.1:8025". All methods raise NodeError. Use it as a context manager."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        transport: httpx.BaseTransport | None = None,
        authority: Path | None = None,
        name: str = "",
        tls: Tls | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        """`authority`: a file with certificates; one of them must have signed that of an https URL. `None`: a public one. `name`: what that
        certificate must be for, where it is not the host of the URL. `tls`: our own certificate for it, and what was revoked. Nothing is
        said, and no token sent, to a server whose certificate is not that of `name`. An empty token is not sent.

        Raises: NodeError if that file cannot be used.
        """
        self.url, self._timeout = url.rstrip("/"), timeout
        self.has_failed = False  # since it was made: it may have a connection that is of no use any more
        self._extensions = {"sni_hostname": name} if name else {}
        try:
            trusted: ssl.SSLContext | bool = True
            if authority:
                trusted = _context_for(authority, name, tls)
            elif self.url.startswith("http:"):
                trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody: to load public certificates takes 50 ms
        except ConfigurationError as exc:
            raise NodeError(str(exc)) from exc
        except OSError as exc:  # an ssl.SSLError is one
            raise NodeError(f"{authority} has no usable certificates: {exc.strerror or exc}") from exc
        # trust_env off: a proxy from the environment must not see the token, and cannot reach a node on loopback
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=timeout,
            trust_env=False,
            follow_redirects=False,
            transport=transport,
            verify=trusted,
        )

    def __enter__(self) -> "NodeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def node(self) -> Json:
        """Identity, version, uptime, queue database, settings."""
        return self._ask("GET", "/api/v1/node")

    def glance(self, *, with_history: bool = False) -> Json:
        """All that a console's front page shows of the node. NodeError.status is 404 at a node of an older version. `with_history`: as in
        `queues`."""
        return self._ask("GET", "/api/v1/glance", {"history": "true"} if with_history else None)

    def queues(self, filter_text: str = "", *, with_history: bool = False) -> list[Json]:
        """All queues, or those that satisfy the filter. NodeError.status is 400 if that is wrong, and the text shows where. `with_history`:
        also how many messages each had in each minute of the last hour."""
        asked = ({"filter": filter_text} if filter_text else {}) | ({"history": "true"} if with_history else {})
        queues: list[Json] = self._ask("GET", "/api/v1/queues", asked)["queues"]
        return queues

    def retry_queue(self, identity: str) -> Json:
        """Try what is in this queue at once. NodeError.status is 404 where there is none, 409 where nothing is tried in it."""
        return self._ask("POST", "/api/v1/queues/retry", {"queue": identity})

    def suspend_queue(self, identity: str, by: str, *, is_hold: bool = False) -> Json:
        """Attempt nothing from it. NodeError.status as for `retry_queue`."""
        return self._ask("POST", "/api/v1/queues/suspend", {"queue": identity, "by": by, "hold": str(is_hold).lower()})

    def resume_queue(self, identity: str, by: str) -> Json:
        """Deliver from it again. NodeError.status as for `retry_queue`."""
        return self._ask("POST", "/api/v1/queues/resume", {"queue": identity, "by": by})

    def messages(self, queue: str = "", limit: int = 100, after: int = 0, filter_text: str = "", *, newest: bool = False) -> list[Json]:
        """Up to `limit` messages of a queue (empty = all), in as many pages as needed. A wrong filter as in `queues`."""
        parameters = {"queue": queue} | ({"filter": filter_text} if filter_text else {}) | ({"newest": "true"} if newest else {})
        return self._pages("/api/v1/messages", parameters, limit, after)

    def search(self, filter_text: str, limit: int = 100) -> list[Json]:
        """The newest messages that satisfy the filter, of all that the node knows. A wrong filter as in `queues`."""
        return self._pages("/api/v1/search", {"filter": filter_text}, limit, 0)

    def _pages(self, path: str, parameters: Mapping[str, str], limit: int, after: int) -> list[Json]:
        found: list[Json] = []
        while len(found) < limit:
            page = self._ask("GET", path, {**parameters, "limit": str(min(limit - len(found), PAGE)), "after": str(after)})
            found += page["messages"]
            if page["next_after"] is None:
                break
            after = page["next_after"]
        return found

    def message(self, message_id: str) -> Json:
        """Everything about one message. NodeError.status is 404 if the node does not know it."""
        return self._ask("GET", f"/api/v1/messages/{quote(message_id, safe='')}")

    def events(self, message_id: str) -> list[Json]:
        """The rows of the node's message tracking log about a message, oldest first."""
        events: list[Json] = self._ask("GET", f"/api/v1/messages/{quote(message_id, safe='')}/events")["events"]
        return events

    def queued_as(self, queue_id: str) -> list[str]:
        """Network message ids of what a next hop took as this. NodeError.status is 404 at a node of an older version."""
        found: list[str] = self._ask("GET", f"/api/v1/queue-ids/{quote(queue_id, safe='')}")["message_ids"]
        return found

    def suspend_message(self, message_id: str, by: str) -> Json:
        """Attempt nothing on it. NodeError.status is 409 if the node refuses, with the reason."""
        return self._ask("POST", f"/api/v1/messages/{quote(message_id, safe='')}/suspend", {"by": by})

    def resume_message(self, message_id: str, by: str) -> Json:
        """Attempt it again. NodeError.status is 409 if the node refuses, with the reason."""
        return self._ask("POST", f"/api/v1/messages/{quote(message_id, safe='')}/resume", {"by": by})

    def release_message(self, message_id: str) -> Json:
        """Deliver a message that was set aside. NodeError.status is 409 if the node refuses, with the reason."""
        return self._ask("POST", f"/api/v1/messages/{quote(message_id, safe='')}/release")

    def remove_message(self, message_id: str, *, with_dsn: bool) -> Json:
        """End a message. NodeError.status is 409 if the node refuses, with the reason."""
        return self._ask("POST", f"/api/v1/messages/{quote(message_id, safe='')}/remove", {"dsn": str(with_dsn).lower()})

    def resubmit_message(self, message_id: str, by: str) -> Json:
        """Route it anew and attempt it now. NodeError.status is 409 if the node refuses, with the reason."""
        return self._ask("POST", f"/api/v1/messages/{quote(message_id, safe='')}/resubmit", {"by": by})

    def export_message(self, message_id: str, file: BinaryIO, *, with_envelope: bool = False) -> int:
        """Write the message as it would be delivered, block by block. Returns the number of octets."""
        path = f"/api/v1/messages/{quote(message_id, safe='')}/content"
        count = 0
        with (
            self._errors(),
            self._http.stream("GET", path, params={"envelope": str(with_envelope).lower()}, extensions=self._extensions) as response,
        ):
            if response.status_code != 200:
                response.read()
                self._checked(response, (200,))
            for block in response.iter_bytes():
                count += file.write(block)
        return count

    def resubmit(self, begin: str, end: str, **criteria: str) -> Json:
        """Deliver again what was delivered in this interval. NodeError.status is 409 if the node refuses, with the reason."""
        given = {name: value for name, value in criteria.items() if value}
        return self._ask("POST", "/api/v1/safety-net/requests", {"from": begin, "to": end, **given})

    def delivered(self, begin: str, end: str, primary_server: str = "") -> Json:
        """How many messages such a request would look through. NodeError.status as for `resubmit`."""
        given = {"primary_server": primary_server} if primary_server else {}
        return self._ask("GET", "/api/v1/safety-net/delivered", {"from": begin, "to": end, **given})

    def resubmit_requests(self) -> list[Json]:
        """All resubmit requests."""
        requests: list[Json] = self._ask("GET", "/api/v1/safety-net/requests")["requests"]
        return requests

    def resubmit_request(self, number: int) -> Json:
        """One resubmit request. NodeError.status is 404 where there is none."""
        return self._ask("GET", f"/api/v1/safety-net/requests/{number}")

    def change_request(self, number: int, change: str) -> Json:
        """`disable`, `enable` or `remove` a request. NodeError.status is 404 where there is none, 409 with the reason if refused."""
        return self._ask("POST", f"/api/v1/safety-net/requests/{number}/{change}")

    def if_lost(self, servers: Sequence[str], ids_max: int = 0) -> Json:
        """What the node knows about the loss of these servers. NodeError.status is 404 at a node of an older version."""
        return self._ask("GET", "/api/v1/if-lost", {"servers": ",".join(servers), "ids": str(ids_max)})

    def peers(self) -> list[Json]:
        """All peers."""
        peers: list[Json] = self._ask("GET", "/api/v1/peers")["peers"]
        return peers

    def clients(self, limit: int = 100) -> list[Json]:
        """Clients of the receive connectors, those who were refused most first."""
        clients: list[Json] = self._ask("GET", "/api/v1/clients", {"limit": str(limit)})["clients"]
        return clients

    def forget_peer(self, name: str, *, is_forced: bool = False) -> Json:
        """Mark a peer as gone for good. NodeError.status is 409 if it answers, unless `is_forced`."""
        return self._ask("POST", f"/api/v1/peers/{quote(name, safe='')}/forget", {"force": "true"} if is_forced else None)

    def drain(self) -> Json:
        """Begin to drain. NodeError.status is 409 while the node stops."""
        return self._ask("POST", "/api/v1/drain")

    def undrain(self) -> Json:
        """Take mail again. NodeError.status is 409 if the node does not drain."""
        return self._ask("POST", "/api/v1/undrain")

    def redirect(self, targets: str) -> Json:
        """Hand all active messages over to these peers. NodeError.status is 409 if the node refuses, with the reason."""
        return self._ask("POST", "/api/v1/queues/redirect", {"to": targets})

    def drain_status(self) -> Json:
        """How far the drain is."""
        return self._ask("GET", "/api/v1/drain")

    def redundancy(self) -> Json:
        """How many messages lack copies. NodeError.status is 404 for a node of an older version."""
        return self._ask("GET", "/api/v1/redundancy")

    def audit(self) -> list[Json]:
        """Who changed what since the node started, newest first."""
        entries: list[Json] = self._ask("GET", "/api/v1/audit")["entries"]
        return entries

    def pressure(self) -> Json:
        """Back pressure: level, effect, and every resource."""
        return self._ask("GET", "/api/v1/pressure")

    def ready(self) -> Json:
        """Whether mail is accepted now, and if not, why; a 503 is a valid answer."""
        return self._ask("GET", "/health/ready", accepted=(200, 503))

    def _ask(self, method: str, path: str, parameters: Mapping[str, str] | None = None, accepted: tuple[int, ...] = (200,)) -> Json:
        with self._errors():
            response = self._http.request(method, path, params=parameters, extensions=self._extensions)
        return self._checked(response, accepted)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        before, self.has_failed = self.has_failed, True
        try:
            yield
            self.has_failed = before
        except httpx.TimeoutException as exc:
            is_asked = not isinstance(exc, httpx.ConnectTimeout | httpx.PoolTimeout)
            raise NodeError(f"{self.url} did not answer within {self._timeout:g} s", is_asked=is_asked) from exc
        except httpx.ConnectError as exc:
            where = f"{self.url} cannot be reached ({_reason_of(exc)})"
            key = "tls_listen" if self.url.startswith("https:") else "listen"
            raise NodeError(f"{where}; is the node running, and is this its [admin] {key}?") from exc
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            may_want = "; it may want the certificate of a node: --config names one's" if self.url.startswith("https:") else ""
            raise NodeError(f"{self.url} cannot be asked: {_reason_of(exc)}{may_want}", is_asked=True) from exc

    def _checked(self, response: httpx.Response, accepted: tuple[int, ...]) -> Json:
        if response.status_code == 401:
            self.has_failed = True
            if "Authorization" in self._http.headers:
                raise NodeError(f"{self.url} does not know this token; use the one in the node's admin.token_file", 401)
            raise NodeError(f"{self.url} takes the certificate of this node for none of its peers'; look at its [[peers]] and version", 401)
        try:
            body = response.json()
        except ValueError as exc:
            raise NodeError(
                f"{self.url} answered {response.status_code} without JSON; is it a shadowrelay node?", response.status_code
            ) from exc
        if response.status_code not in accepted or not isinstance(body, dict):
            raise NodeError(_reason(body, response), response.status_code)
        return body


def _reason_of(error: BaseException) -> str:
    """The words of the operating system or of OpenSSL, where one of them was the reason."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return str(getattr(cause, "verify_message", "") or cause.reason or "TLS failed").replace("_", " ")
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return str(error) or "no reason is given"


def _reason(body: object, response: httpx.Response) -> str:
    detail = body.get("detail") if isinstance(body, dict) else None
    return str(detail) if detail else f"{response.url} answered {response.status_code} {response.reason_phrase}"
