"""The HTTP API of a node: JSON with OpenAPI for the commands, health pages and metrics. RFC 9457; docs/operations.md "Commands".

All requests need the token, except the two health pages, and metrics from a scraper on the same machine. Errors are RFC 9457
problems without exception texts. No file from another host is loaded, so there is no documentation page, only `/openapi.json`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from http import HTTPStatus
from ipaddress import ip_address
from typing import Annotated, Any, BinaryIO
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException

from shadowrelay.admin import resources
from shadowrelay.admin.gate import Gate, problem
from shadowrelay.admin.metrics import CONTENT_TYPE, Metrics
from shadowrelay.admin.token import is_token
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.replies import LedgerUnavailable, RequestRefused
from shadowrelay.ports import AdminView

LISTED_MAX = 1000  # messages in one response: about 500 KB
LISTED_DEFAULT = 100
CONTENT_OF_A_MESSAGE = "message/rfc822"
BLOCK_OCTETS = 256 * 1024
INTERNAL_ID_MAX = 2**63 - 1  # SQLite's largest integer

_log = structlog.get_logger()

_PROBLEM_CONTENT = {"application/problem+json": {"schema": resources.Problem.model_json_schema()}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"description": HTTPStatus(code).phrase, "content": _PROBLEM_CONTENT} for code in (400, 401, 404, 409, 503)
}


def make_application(
    view: AdminView,
    metrics: Metrics,
    token: str,
    version: str,
    *,
    names: Iterable[str] = (),
    now: Callable[[], datetime] = resources.utc_now,
) -> FastAPI:
    """The ASGI application of one node. `token` comes from `admin.token`; `names` are those of this server (see `gate`)."""
    application = FastAPI(
        title="shadowrelay", version=version, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )  # a redirect would contain the client's Host
    application.add_middleware(Gate, names=names)
    authorised = Depends(HTTPBearer(auto_error=False, description="The token in admin.token_file"))

    async def require_token(request: Request) -> None:
        if not is_token(token, request.headers.get("authorization", "")):
            raise HTTPException(HTTPStatus.UNAUTHORIZED, "the bearer token of this node is needed", {"WWW-Authenticate": "Bearer"})

    api = _api(view, now)
    application.include_router(api, prefix="/api/v1", dependencies=[Depends(require_token), authorised], responses=PROBLEMS)
    application.include_router(_health(view))
    application.include_router(_metrics(view, metrics, require_token))

    @application.get("/openapi.json", include_in_schema=False, dependencies=[Depends(require_token)])
    async def openapi() -> JSONResponse:
        return JSONResponse(application.openapi())

    application.add_exception_handler(StarletteHTTPException, _http_problem)
    application.add_exception_handler(RequestValidationError, _validation_problem)
    application.add_exception_handler(LedgerUnavailable, _ledger_problem)
    application.add_exception_handler(RequestRefused, _refused_problem)
    application.add_exception_handler(Exception, _unexpected_problem)
    return application


def _api(view: AdminView, now: Callable[[], datetime]) -> APIRouter:
    api = APIRouter()

    @api.get("/node")
    async def node() -> resources.Node:
        """Identity, version, uptime, queue database, effective settings."""
        return resources.node_of(await view.node(), now())

    @api.get("/queues")
    async def queues() -> resources.Queues:
        """All queues with depth and oldest message."""
        return resources.Queues(queues=[resources.queue_of(row) for row in await view.queues()])

    @api.post("/queues/retry")
    async def retry_queue(
        queue: Annotated[str, Query(min_length=1, max_length=512, description="identity of a queue, with or without the server")],
    ) -> resources.QueueRetried:
        """Try what is in this queue at once. 409 for a queue in which nothing is tried, with the reason."""
        found = await view.retry_queue(queue)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node has no queue {queue}")
        return resources.QueueRetried(queue=resources.queue_of(found), is_retried=True)

    @api.get("/messages")
    async def messages(
        queue: Annotated[str, Query(max_length=512, description="identity of a queue; empty = all but Safety Net")] = "",
        limit: Annotated[int, Query(ge=1, le=LISTED_MAX)] = LISTED_DEFAULT,
        after: Annotated[int, Query(ge=0, le=INTERNAL_ID_MAX, description="next_after of the page before")] = 0,
    ) -> resources.Messages:
        """Messages of one queue, or of all but Safety Net, by pages: by internal id, in Safety Net by the time they leave it."""
        page = await view.messages(queue, limit, after)
        next_after = page[-1].internal_id if len(page) == limit else None
        return resources.Messages(messages=[resources.summary_of(stored) for stored in page], next_after=next_after)

    @api.get("/messages/{message_id}")
    async def message(message_id: UUID) -> resources.Message:
        """One message: role, number, copies, retries, last replies, due time, reason."""
        stored = await view.message(MessageId(str(message_id)))
        if stored is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        return resources.message_of(stored)

    @api.get("/messages/{message_id}/content", response_class=Response, responses={200: {"content": {CONTENT_OF_A_MESSAGE: {}}}})
    async def content(message_id: UUID) -> Response:
        """The message as it would be delivered: header and body, byte for byte."""
        found = await view.content(MessageId(str(message_id)))
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        prefix, content = found
        headers = {"content-length": str(len(prefix) + content.size), "x-content-type-options": "nosniff"}
        if content.path is None:
            return Response(prefix + (content.data or b""), headers=headers, media_type=CONTENT_OF_A_MESSAGE)
        file = await asyncio.to_thread(content.path.open, "rb")  # before the response starts, because opening may fail
        return StreamingResponse(_blocks(prefix, file), headers=headers, media_type=CONTENT_OF_A_MESSAGE)

    @api.post("/messages/{message_id}/release")
    async def release(message_id: UUID) -> resources.Released:
        """Deliver a message that was set aside. 409 with the reason if that is not possible."""
        if not await view.release(MessageId(str(message_id))):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        return resources.Released(message_id=str(message_id), is_released=True)

    @api.post("/messages/{message_id}/remove")
    async def remove(
        message_id: UUID, dsn: Annotated[bool, Query(description="tell the sender that it was not delivered")] = True
    ) -> resources.Removed:
        """End a message that was set aside, for all remaining recipients. 409 with the reason if that is not possible."""
        if not await view.remove(MessageId(str(message_id)), with_dsn=dsn):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        return resources.Removed(message_id=str(message_id), is_removed=True, is_sender_told=dsn)

    @api.get("/peers")
    async def peers() -> resources.Peers:
        """Every peer: last heard, lease, breaker, copies held for it and by it."""
        return resources.Peers(peers=[resources.peer_of(row, now()) for row in await view.peers()])

    @api.post("/peers/{name}/forget")
    async def forget(name: str) -> resources.Forgotten:
        """This peer will not come back: stop waiting for it. 409 if it answers."""
        if not await view.forget(ServerName(name.lower())):
            raise HTTPException(HTTPStatus.NOT_FOUND, "this node knows no such peer")
        _log.warning("peer.forgotten", server=name.lower())
        return resources.Forgotten(name=name.lower(), is_forgotten=True)

    return api


def _blocks(prefix: bytes, file: BinaryIO) -> Iterator[bytes]:
    """Blocks of a file, read in a thread, so that the loop does not wait for the disk."""
    with file:
        yield prefix
        while block := file.read(BLOCK_OCTETS):
            yield block


def _health(view: AdminView) -> APIRouter:
    health = APIRouter(prefix="/health")

    @health.get("/live")
    async def live() -> dict[str, str]:
        """The process runs and responds."""
        return {"status": "live"}

    @health.get("/ready", responses={503: {"model": resources.Readiness}})
    async def ready(response: Response) -> resources.Readiness:
        """Mail is accepted now. 503 while starting, draining, or when the queue database cannot be written."""
        is_ready, reasons = view.is_ready()
        response.status_code = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return resources.Readiness(is_ready=is_ready, reasons=list(reasons))

    return health


def _metrics(view: AdminView, metrics: Metrics, require_token: Callable[[Request], Any]) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def scrape(request: Request) -> Response:
        """Prometheus metrics. From loopback, no token is needed."""
        if not _is_loopback(request):
            await require_token(request)
        try:
            metrics.observe_queues(await view.queues())
        except LedgerUnavailable:  # the scrape that reports this must not fail: keep the last listing
            _log.warning("metrics.queues_unavailable")
        return Response(metrics.render(), headers={"content-type": CONTENT_TYPE})

    return router


def _is_loopback(request: Request) -> bool:
    # the address of the connection, not a forwarded one: a proxy must send the token
    if request.client is None or "x-forwarded-for" in request.headers or "forwarded" in request.headers:
        return False
    try:
        return ip_address(request.client.host).is_loopback
    except ValueError:
        return False


async def _http_problem(_request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, StarletteHTTPException)
    return problem(exc.status_code, exc.detail, dict(exc.headers) if exc.headers else None)


async def _validation_problem(_request: Request, exc: Exception) -> JSONResponse:
    assert isinstance(exc, RequestValidationError)
    wrong = [f"{'.'.join(map(str, error['loc'][1:]))}: {error['msg']}" for error in exc.errors()]
    return problem(HTTPStatus.BAD_REQUEST, "; ".join(wrong))


async def _ledger_problem(_request: Request, _exc: Exception) -> JSONResponse:
    detail = "the queue database cannot be used now; the operator log says why"
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": "5"})


async def _refused_problem(_request: Request, exc: Exception) -> JSONResponse:
    return problem(HTTPStatus.CONFLICT, str(exc))


async def _unexpected_problem(request: Request, exc: Exception) -> JSONResponse:
    _log.error("admin.request_failed", path=request.url.path, exc_info=exc)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "an error that nobody expected; the operator log has it")
