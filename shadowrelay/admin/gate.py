"""Checks every API request before routing: Host, size, and number of concurrent requests. RFC 9112, RFC 9457.

A web page can make its reader's browser send requests to a server on the reader's network, under a name that the page's owner points
there (DNS rebinding). The browser sends that name in `Host`, so only the server's own names are accepted. Addresses are accepted too,
because they cannot be redirected.

Health pages are exempt from the limit on concurrent requests, because an orchestrator kills a node whose health page does not respond.

Errors are RFC 9457 problems without exception texts.
"""

import asyncio
import ipaddress
import re
from collections.abc import Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shadowrelay.admin import resources
from shadowrelay.model.numbers import decimal


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An RFC 9457 response; `detail` says what is wrong."""
    body = resources.Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(body.model_dump(), status, headers, media_type="application/problem+json")


HEADER_OCTETS_MAX = 16 * 1024  # request line and header fields
BODY_OCTETS_MAX = 64 * 1024  # requests of the API have at most a few hundred
BODY_SECONDS = 10.0
REQUESTS_MAX = 32  # concurrent; their responses are computed
STREAMS_MAX = 50  # open pages, and programs that follow the events
SCRAPES_MAX = 8  # concurrent; a scraper sends one every few seconds
HEALTH = "/health/"
METRICS = "/metrics"
LIVE_STREAM = "/live"
EVENTS = "/api/v1/events"

_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]+)(?::\d*)?", re.ASCII)  # RFC 9112 3.2: a name or an address, and optionally a port


def is_own_host(host: str, names: frozenset[str]) -> bool:
    """Whether a `Host` field names this server: any address, localhost, or one of `names` (lower case, no final dot), with any
    port. An HTTP/1.0 request may have no such field; no browser sends one."""
    text = host.strip().lower()
    match = _HOST.fullmatch(text)
    if match is None:
        return not text
    name = match[1]
    if name.startswith("["):
        return _is_address(name[1:-1])
    complete = name.removesuffix(".")
    return complete == "localhost" or complete in names or _is_address(name)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class Gate:
    """ASGI middleware. `names`: the names of this server."""

    def __init__(self, application: ASGIApp, names: Iterable[str]) -> None:
        self._application = application
        self._names = frozenset(name.lower().removesuffix(".") for name in names)
        self._running: MutableMapping[str, int] = dict.fromkeys((HEALTH, METRICS, LIVE_STREAM, ""), 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and pass on one request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = Headers(scope=scope)
        kind = _kind(scope["path"])
        refusal = self._refusal(scope, headers, kind)
        if refusal is not None:
            await problem(*refusal)(scope, receive, send)
            return
        self._running[kind] += 1
        try:
            await self._application(scope, _bounded(receive), send)
        finally:
            self._running[kind] -= 1

    def _refusal(self, scope: Scope, headers: Headers, kind: str) -> tuple[int, str, dict[str, str]] | None:
        if _header_octets(scope) > HEADER_OCTETS_MAX:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {HEADER_OCTETS_MAX} octets", {"Connection": "close"}
        if not is_own_host(headers.get("host", ""), self._names):
            detail = "this server has another name; add this one to admin.allowed_hosts if it is right"
            return HTTPStatus.MISDIRECTED_REQUEST, detail, {"Connection": "close"}
        size = headers.get("content-length", "0")
        if decimal(size, BODY_OCTETS_MAX) is None:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {BODY_OCTETS_MAX} octets", {"Connection": "close"}
        if kind != HEALTH and self._running[kind] >= _most(kind):
            return HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at one time", {"Retry-After": "1"}
        return None


def _most(kind: str) -> int:
    return SCRAPES_MAX if kind == METRICS else STREAMS_MAX if kind == LIVE_STREAM else REQUESTS_MAX


def _kind(path: str) -> str:
    if path in (LIVE_STREAM, EVENTS):
        return LIVE_STREAM
    return HEALTH if path.startswith(HEALTH) else METRICS if path == METRICS else ""


def _header_octets(scope: Scope) -> int:
    """An estimate: the server limits a header while it is being received."""
    fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])  # ": " and CRLF
    return fields + len(scope["raw_path"]) + len(scope["query_string"])


def _bounded(receive: Receive) -> Receive:
    """A request body with limits on time and size; after them the client appears disconnected."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + BODY_SECONDS
    size = 0
    is_whole = False

    async def bounded() -> Message:
        nonlocal size, is_whole
        if is_whole:  # the application waits for the client to disconnect
            return await receive()
        try:
            async with asyncio.timeout_at(ends_at):
                message: Any = await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        size += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        return {"type": "http.disconnect"} if size > BODY_OCTETS_MAX else message

    return bounded
