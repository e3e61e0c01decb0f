"""The HTTP API of a node: JSON with OpenAPI for the commands, health pages and metrics. RFC 9457; docs/reference.md "Commands".

All requests need the token, except the two health pages, and metrics from a scraper on the same machine. Errors are RFC 9457
problems without exception texts. No file from another host is loaded, so there is no documentation page, only `/openapi.json`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from ipaddress import ip_address
from typing import Annotated, Any, BinaryIO
from uuid import UUID

import structlog
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as StarletteHTTPException

from shadowrelay.admin import resources
from shadowrelay.admin.audit import AuditTrail
from shadowrelay.admin.gate import Gate, problem
from shadowrelay.admin.guard import AUDIT_PATH, CONTENT_PATH, guarded, person_asking
from shadowrelay.admin.mail_resources import (
    Events,
    Message,
    Messages,
    MessageSuspended,
    QueuedAs,
    QueueRetried,
    Queues,
    QueueSuspended,
    Released,
    Removed,
    ResubmittedResource,
    event_of,
    message_of,
    page_of,
    queue_of,
    values_of,
)
from shadowrelay.admin.metrics import CONTENT_TYPE, PrometheusMetrics
from shadowrelay.admin.node_resources import (
    BackPressureResource,
    Clients,
    Copies,
    Drain,
    Forgotten,
    Glance,
    NodeResource,
    Peers,
    Readiness,
    WhatIfResource,
    client_of,
    drain_of,
    node_of,
    peer_of,
    pressure_of,
)
from shadowrelay.admin.people import People
from shadowrelay.model.drain_progress import NOT_DRAINING
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.invalid import explanation_of
from shadowrelay.model.queue import MessagePage
from shadowrelay.model.replies import LedgerUnavailable, RequestRefused
from shadowrelay.model.resubmission import Criteria
from shadowrelay.pipeline.assembly import Services
from shadowrelay.pipeline.ready import ReadinessService
from shadowrelay.protocol.filters import (
    LENGTH_MAX,
    MESSAGE_PROPERTIES,
    QUEUE_PROPERTIES,
    Expression,
    FilterError,
    Property,
    matches,
    parse_filter,
)
from shadowrelay.store import queues as queue_pages
from shadowrelay.store import reading
from shadowrelay.store.resubmit_requests import COUNTED_MAX

LISTED_MAX = 1000  # messages in one response: about 500 KB
LISTED_DEFAULT = 100
CONTENT_OF_A_MESSAGE = "message/rfc822"
BLOCK_OCTETS = 256 * 1024
INTERNAL_ID_MAX = 2**63 - 1  # SQLite's largest integer
ADMINISTRATOR = "administrator"

QUEUE_ID_MIN, QUEUE_ID_MAX = 5, 128  # of other servers: Postfix has 10 to 16 characters, Exchange 40 and more
QUEUE_NAME_MAX = 1_024  # two servers of 255, a next hop of 300, and what stands between them
QueueName = Annotated[str, Query(min_length=1, max_length=QUEUE_NAME_MAX, description="identity of a queue, with or without the server")]
Filter = Annotated[str, Query(max_length=LENGTH_MAX, description="as in Exchange, such as MessageCount -gt 10 -and Status -eq 'Retry'")]
History = Annotated[bool, Query(description="also how many messages each had in each minute of the last hour")]
By = Annotated[str, Query(min_length=1, max_length=128, description="who requests it, for listings and the operator log")]
Limit = Annotated[int, Query(ge=1, le=LISTED_MAX)]
After = Annotated[int, Query(ge=0, le=INTERNAL_ID_MAX, description="next_after of the page before")]

CRITERION_MAX = 1_000  # an address has 254 octets, a header line 998
Criterion = Annotated[str, Query(max_length=CRITERION_MAX)]
RequestNumber = Annotated[int, PathParameter(ge=1, le=INTERNAL_ID_MAX)]

_log = structlog.get_logger()

_PROBLEM_CONTENT = {"application/problem+json": {"schema": resources.Problem.model_json_schema()}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"description": HTTPStatus(code).phrase, "content": _PROBLEM_CONTENT} for code in (400, 401, 403, 404, 409, 429, 503)
}


def make_application(
    services: Services,
    metrics: PrometheusMetrics,
    people: People,
    version: str,
    *,
    trail: AuditTrail | None = None,
    names: Iterable[str] = (),
    now: Callable[[], datetime] = resources.utc_now,
) -> FastAPI:
    """The ASGI application of one node, for these people; `trail` gets what they change; `names` are those of this server (see `gate`)."""
    trail = trail or AuditTrail(now)
    application = FastAPI(
        title="shadowrelay", version=version, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )  # a redirect would contain the client's Host
    application.add_middleware(Gate, names=names)
    authorised = Depends(HTTPBearer(auto_error=False, description="The token in admin.token_file"))

    async def require_token(request: Request) -> None:
        await person_asking(people, request)

    api = APIRouter(route_class=guarded(people, trail))
    application.state.glance = _add_routes(api, services, trail, now)  # for the console of this process, which needs no HTTP for it
    application.include_router(api, prefix="/api/v1", dependencies=[authorised], responses=PROBLEMS)
    application.include_router(_health(services, require_token))
    application.include_router(_metrics(services, metrics, require_token))

    @application.get("/openapi.json", include_in_schema=False, dependencies=[Depends(require_token)])
    async def openapi() -> JSONResponse:
        return JSONResponse(application.openapi())

    application.add_exception_handler(StarletteHTTPException, _http_problem)
    application.add_exception_handler(RequestValidationError, _validation_problem)
    application.add_exception_handler(LedgerUnavailable, _ledger_problem)
    application.add_exception_handler(RequestRefused, _refused_problem)
    application.add_exception_handler(Exception, _unexpected_problem)
    return application


def _add_routes(api: APIRouter, services: Services, trail: AuditTrail, now: Callable[[], datetime]) -> Callable[..., Awaitable[Glance]]:
    """Returns what answers `/glance`."""

    def lifetime() -> timedelta:
        return services.context.settings.transport.message_expiration_timeout

    @api.get("/node")
    async def node() -> NodeResource:
        """Identity, version, uptime, queue database, effective settings."""
        return node_of(await services.node.view(), now())

    @api.get("/drain")
    async def drain_status() -> Drain:
        """Whether this node drains, how far it is, and what it waits for."""
        return drain_of(await services.drain.view())

    @api.post("/drain")
    async def drain() -> Drain:
        """Begin to drain: mail is refused when this answers, the rest goes on. Repeated, it changes nothing. 409 while stopping."""
        await services.drain.begin()
        return drain_of(await services.drain.view())

    @api.post("/undrain")
    async def undrain() -> Drain:
        """Take and deliver mail again. 409 if the node does not drain."""
        if not await services.drain.end():
            raise RequestRefused("this node does not drain")
        return drain_of(await services.drain.view())

    @api.get("/queues")
    async def queues(
        filter: Filter = "",
        history: History = False,
    ) -> Queues:
        """All queues with depth and oldest message, or those that satisfy a filter."""
        expression = _parsed(filter, QUEUE_PROPERTIES)
        rows = await services.queues.rows()
        if expression is not None:
            at = now()
            rows = tuple([row for row in rows if matches(expression, values_of(row, at))])
        return Queues(queues=[queue_of(row, services.queues.history(row) if history else ()) for row in rows])

    @api.post("/queues/retry")
    async def retry_queue(queue: QueueName) -> QueueRetried:
        """Try what is in this queue at once. 409 for a queue in which nothing is tried, with the reason."""
        found = await services.queues.retry(queue)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node has no queue {queue}")
        return QueueRetried(queue=queue_of(found), is_retried=True)

    @api.post("/queues/suspend")
    async def suspend_queue(
        queue: QueueName,
        by: By = ADMINISTRATOR,
        hold: Annotated[bool, Query(description="also if no mail waits for this next hop now")] = False,
    ) -> QueueSuspended:
        """Attempt nothing from this delivery queue until it is resumed. 409 for another kind of queue, with the reason."""
        found = await services.queues.suspend(queue, by, is_hold=hold)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node has no queue {queue}")
        return QueueSuspended(queue=queue_of(found), is_suspended=True)

    @api.post("/queues/resume")
    async def resume_queue(queue: QueueName, by: By = ADMINISTRATOR) -> QueueSuspended:
        """Deliver from a suspended queue again, at once. 409 if it is not suspended."""
        found = await services.queues.resume(queue, by)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node has no queue {queue}")
        return QueueSuspended(queue=queue_of(found), is_suspended=False)

    @api.post("/queues/redirect")
    async def redirect(
        to: Annotated[str, Query(max_length=4096, description="names of peers, with commas between")],
    ) -> Drain:
        """Refuse mail, hand all active messages over to these peers, then take mail again: `/drain` says how far it is. 409 with the
        reason if it cannot begin."""
        targets = [ServerName(name.strip().lower()) for name in to.split(",") if name.strip()]
        if not targets:
            raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "to: name at least one peer")
        await services.drain.redirect(targets)
        return drain_of(await services.drain.view())

    @api.get("/messages")
    async def messages(
        queue: Annotated[
            str,
            Query(max_length=QUEUE_NAME_MAX, description="a queue; empty = all but Safety Net; Undelivered, Shadows = parts of that"),
        ] = "",
        limit: Limit = LISTED_DEFAULT,
        after: After = 0,
        filter: Filter = "",
        newest: Annotated[bool, Query(description="newest first; oldest first otherwise")] = False,
    ) -> Messages:
        """Messages of one queue, or of all but Safety Net, by pages: by internal id, in Safety Net by the time they leave it. With a
        filter a page may have few messages, or none, and not be the last: `next_after` says so."""
        if (expression := _parsed(filter, MESSAGE_PROPERTIES)) is not None:
            return page_of(
                await services.context.ledger.read(
                    queue_pages.filtered,
                    queue,
                    expression,
                    services.context.settings.transport.message_expiration_timeout,
                    limit,
                    after,
                    newest=newest,
                )
            )
        page = await services.context.ledger.read(queue_pages.messages, queue, limit, after, newest=newest)
        return page_of(MessagePage(page, page[-1].internal_id if len(page) == limit else None))

    @api.get("/search")
    async def search(
        filter: Annotated[str, Query(min_length=1, max_length=LENGTH_MAX, description="such as Recipients -like '*@x.example'")],
        limit: Limit = LISTED_DEFAULT,
        after: After = 0,
    ) -> Messages:
        """Of all messages that this node knows, delivered ones included, those that satisfy the filter, newest first. A page may have few
        messages, or none, and not be the last: `next_after` says so."""
        expression = _parsed(filter, MESSAGE_PROPERTIES)
        assert expression is not None
        return page_of(await services.context.ledger.read(queue_pages.searched, expression, lifetime(), limit, after))

    @api.get("/messages/{message_id}")
    async def message(message_id: UUID) -> Message:
        """One message: role, number, copies, retries, last replies, due time, reason."""
        stored = await services.context.ledger.read(reading.load, MessageId(str(message_id)))
        if stored is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        awaited = await services.context.ledger.read(reading.awaited, stored.envelope.message_id) if stored.claim.done else ()
        return message_of(stored, awaited, services.context.flights[stored.envelope.message_id])

    @api.get("/messages/{message_id}/events")
    async def events(message_id: UUID) -> Events:
        """The rows of this node's message tracking log about a message, oldest first; none where it knows nothing of it."""
        return Events(events=[event_of(row) for row in await services.messages.events(MessageId(str(message_id)))])

    @api.get("/queue-ids/{queue_id}")
    async def queued_as(queue_id: Annotated[str, PathParameter(min_length=QUEUE_ID_MIN, max_length=QUEUE_ID_MAX)]) -> QueuedAs:
        """The messages that a next hop took as this one, by the replies in this node's message tracking log."""
        return QueuedAs(message_ids=[str(each) for each in await services.messages.queued_as(queue_id)])

    @api.get("/messages/{message_id}" + CONTENT_PATH, response_class=Response, responses={200: {"content": {CONTENT_OF_A_MESSAGE: {}}}})
    async def content(
        message_id: UUID,
        envelope: Annotated[
            bool, Query(description="begin with X-Sender and X-Receiver lines, as Exchange's Replay directory reads them")
        ] = False,
    ) -> Response:
        """The message as it would be delivered: header and body, byte for byte."""
        found = await services.messages.content(MessageId(str(message_id)), with_envelope=envelope)
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        prefix, content = found
        headers = {"content-length": str(len(prefix) + content.size), "x-content-type-options": "nosniff"}
        if content.path is None:
            return Response(prefix + (content.data or b""), headers=headers, media_type=CONTENT_OF_A_MESSAGE)
        file = await asyncio.to_thread(content.path.open, "rb")  # before the response starts, because opening may fail
        return StreamingResponse(_blocks(prefix, file), headers=headers, media_type=CONTENT_OF_A_MESSAGE)

    @api.post("/messages/{message_id}/suspend")
    async def suspend(message_id: UUID, by: By = ADMINISTRATOR) -> MessageSuspended:
        """Attempt nothing on this message until it is resumed. 409 with the reason if that is not possible."""
        if not await services.messages.suspend(MessageId(str(message_id)), by):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        return MessageSuspended(message_id=str(message_id), is_suspended=True)

    @api.post("/messages/{message_id}/resume")
    async def resume(message_id: UUID, by: By = ADMINISTRATOR) -> MessageSuspended:
        """Attempt a suspended message again, at once; release one that was set aside. 409 with the reason if that is not possible."""
        if not await services.messages.resume(MessageId(str(message_id)), by):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        return MessageSuspended(message_id=str(message_id), is_suspended=False)

    @api.post("/messages/{message_id}/resubmit")
    async def resubmit(message_id: UUID, by: By = ADMINISTRATOR) -> ResubmittedResource:
        """Route a message anew and attempt it now; release one that was set aside. 409 with the reason if that is not possible."""
        if not await services.messages.resubmit(MessageId(str(message_id)), by):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        return ResubmittedResource(message_id=str(message_id), is_resubmitted=True)

    @api.post("/messages/{message_id}/release")
    async def release(message_id: UUID) -> Released:
        """Deliver a message that was set aside. 409 with the reason if that is not possible."""
        if not await services.messages.release(MessageId(str(message_id))):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        return Released(message_id=str(message_id), is_released=True)

    @api.post("/messages/{message_id}/remove")
    async def remove(
        message_id: UUID, dsn: Annotated[bool, Query(description="tell the sender that it was not delivered")] = True
    ) -> Removed:
        """End a message for all remaining recipients. 409 with the reason if that is not possible."""
        if not await services.messages.remove(MessageId(str(message_id)), with_dsn=dsn):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"this node knows no message {message_id}")
        return Removed(message_id=str(message_id), is_removed=True, is_sender_told=dsn)

    @api.get("/safety-net/delivered")
    async def delivered(
        from_at: Annotated[datetime, Query(alias="from", description="delivered then or later; UTC unless it has an offset")],
        to_at: Annotated[datetime, Query(alias="to", description="delivered then or earlier; in the past")],
        primary_server: Annotated[str, Query(max_length=CRITERION_MAX, description="a lost node; empty = this one")] = "",
    ) -> resources.Delivered:
        """How many messages a request to resubmit would look through, each where it was delivered last. 409 as for the request."""
        criteria = Criteria(_utc(from_at), _utc(to_at), primary_server=ServerName(primary_server.lower()))
        count = await services.safety_net.delivered_count(criteria)
        return resources.Delivered(count=count, is_more=count >= COUNTED_MAX)

    @api.get("/safety-net/requests")
    async def resubmit_requests() -> resources.ResubmitRequests:
        """All requests to resubmit from Safety Net, by number."""
        return resources.ResubmitRequests(requests=[request_of(found) for found in await services.safety_net.requests()])

    @api.post("/safety-net/requests")
    async def request_resubmission(
        from_at: Annotated[datetime, Query(alias="from", description="delivered then or later; UTC unless it has an offset")],
        to_at: Annotated[datetime, Query(alias="to", description="delivered then or earlier; in the past")],
        next_hop: Criterion = "",
        sender: Annotated[str, Query(max_length=CRITERION_MAX, description="an address; <> for mail without a sender")] = "",
        recipient: Criterion = "",
        message_id: Annotated[str, Query(max_length=CRITERION_MAX, description="network message id, or Message-ID with its <>")] = "",
        primary_server: Annotated[str, Query(max_length=CRITERION_MAX, description="a lost node; empty = this one")] = "",
    ) -> resources.ResubmitRequestResource:
        """Deliver again what was delivered in an interval. 409 with the reason if the request is not possible."""
        criteria = Criteria(_utc(from_at), _utc(to_at), next_hop, sender, recipient, message_id, ServerName(primary_server.lower()))
        return request_of(await services.safety_net.request(criteria))

    @api.get("/safety-net/requests/{number}")
    async def resubmit_request(number: RequestNumber) -> resources.ResubmitRequestResource:
        """One request."""
        for found in await services.safety_net.requests():
            if found.number == number:
                return request_of(found)
        raise _no_request(number)

    @api.post("/safety-net/requests/{number}/disable")
    async def disable_request(number: RequestNumber) -> resources.ResubmitRequestResource:
        """Stop a request. 409 if it is done, or disabled."""
        return await change_request(number, is_enabled=False)

    @api.post("/safety-net/requests/{number}/enable")
    async def enable_request(number: RequestNumber) -> resources.ResubmitRequestResource:
        """Go on with a disabled request. 409 for any other."""
        return await change_request(number, is_enabled=True)

    async def change_request(number: int, *, is_enabled: bool) -> resources.ResubmitRequestResource:
        changed = await services.safety_net.change(number, is_enabled=is_enabled)
        if changed is None:
            raise _no_request(number)
        return request_of(changed)

    @api.post("/safety-net/requests/{number}/remove")
    async def remove_request(number: RequestNumber) -> resources.RequestRemoved:
        """Forget a request that is done or disabled; what it resubmitted stays. 409 for any other."""
        if not await services.safety_net.remove(number):
            raise _no_request(number)
        return resources.RequestRemoved(number=number, is_removed=True)

    @api.get("/glance")
    async def glance(history: History = False) -> Glance:
        """All that the front page of a console shows of one node, at once. `drain` is null while it does not drain."""
        its, rows, peers, lone = await asyncio.gather(
            services.node.view(), services.queues.rows(), services.peers.views(), services.node.lone_messages()
        )
        at = now()
        return Glance(
            node=node_of(its, at),
            ready=_readiness(services.readiness),
            queues=[queue_of(row, services.queues.history(row) if history else ()) for row in rows],
            peers=[peer_of(row, at) for row in peers],
            redundancy=Copies.model_validate(lone),
            pressure=pressure_of(services.context.pressure, services.context.settings.back_pressure),
            drain=None if its.state in NOT_DRAINING else drain_of(await services.drain.view()),
        )

    @api.get("/redundancy")
    async def redundancy() -> Copies:
        """How many of this node's undelivered messages have fewer copies than wanted, and how many no other living server has."""
        return Copies.model_validate(await services.node.lone_messages())

    @api.get("/clients")
    async def clients(limit: Limit = LISTED_DEFAULT) -> Clients:
        """Clients with open sessions, and what each did in its minute where limits are configured; those who were refused most first."""
        return Clients(clients=[client_of(view_of_it) for view_of_it in await services.node.clients(limit)])

    @api.get("/pressure")
    async def pressure() -> BackPressureResource:
        """Back pressure: what is refused or delayed, and the use, level and thresholds of every resource."""
        return pressure_of(services.context.pressure, services.context.settings.back_pressure)

    @api.get("/if-lost")
    async def if_lost(
        servers: Annotated[str, Query(min_length=1, max_length=4096, description="names, with commas between")],
        ids: Annotated[int, Query(ge=0, le=10_000, description="how many ids of messages that would be lost")] = 0,
    ) -> WhatIfResource:
        """What this node knows about the loss of these servers, disks included: from indexes and counters, nothing is asked of others."""
        names = [ServerName(name.strip().lower()) for name in servers.split(",") if name.strip()]
        return WhatIfResource.model_validate(await services.what_if.ask(names, ids))

    @api.get("/peers")
    async def peers() -> Peers:
        """Every peer: last heard, lease, breaker, copies held for it and by it."""
        return Peers(peers=[peer_of(row, now()) for row in await services.peers.views()])

    @api.post("/peers/{name}/forget")
    async def forget(
        name: str, force: Annotated[bool, Query(description="also a peer that answers: what it holds may be delivered again")] = False
    ) -> Forgotten:
        """This peer will not come back: stop waiting for it. 409 if it answers, unless `force` is true."""
        if not await services.peers.forget(ServerName(name.lower()), is_forced=force):
            raise HTTPException(HTTPStatus.NOT_FOUND, "this node knows no such peer")
        return Forgotten(name=name.lower(), is_forgotten=True)

    @api.get(AUDIT_PATH)
    async def audit() -> resources.Audit:
        """Who changed what since this node started, newest first: the last 1,000 entries. For auditors, operators and administrators."""
        return resources.Audit(entries=[resources.AuditEntryResource.model_validate(entry) for entry in reversed(trail.entries)])

    return glance


def _parsed(text: str, properties: Mapping[str, Property]) -> Expression | None:
    """`None` without a filter; 400 with the place of the mistake."""
    if not text:
        return None
    try:
        return parse_filter(text, properties)
    except FilterError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error


def _utc(at: datetime) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{at.isoformat()} is not in the calendar") from None


request_of = resources.ResubmitRequestResource.model_validate


def _no_request(number: int) -> HTTPException:
    return HTTPException(HTTPStatus.NOT_FOUND, f"this node has no resubmit request {number}")


def _blocks(prefix: bytes, file: BinaryIO) -> Iterator[bytes]:
    """Blocks of a file, read in a thread, so that the loop does not wait for the disk."""
    with file:
        yield prefix
        while block := file.read(BLOCK_OCTETS):
            yield block


def _health(services: Services, require_token: Callable[[Request], Any]) -> APIRouter:
    health = APIRouter(prefix="/health")

    @health.get("/live")
    async def live() -> dict[str, str]:
        """The process runs and responds."""
        return {"status": "live"}

    @health.get("/ready", response_model=Readiness, responses={503: {"model": Readiness}})
    async def ready(request: Request) -> Response:
        """Mail is accepted now. 503 while starting, draining, under high back pressure, or while each message would be refused for lack of
        copies. 200 and degraded, with the reasons, while some mail is refused or has no copy, or that is not known: a load balancer keeps
        the node, because the other nodes lack the same peer. Without a token, whoever is not on this machine is told only whether it is
        ready: when mail is not redundant is nobody else's business."""
        is_ready, _ = services.readiness.is_ready()
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        if not _is_loopback(request):
            try:
                await require_token(request)
            except HTTPException:
                return JSONResponse({"is_ready": is_ready}, status)
        return JSONResponse(_readiness(services.readiness).model_dump(), status)

    return health


def _readiness(readiness: ReadinessService) -> Readiness:
    is_ready, reasons = readiness.is_ready()
    return Readiness(is_ready=is_ready, is_degraded=bool(reasons), reasons=list(reasons))


def _metrics(services: Services, metrics: PrometheusMetrics, require_token: Callable[[Request], Any]) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def scrape(request: Request) -> Response:
        """Prometheus metrics. From loopback, no token is needed."""
        if not _is_loopback(request):
            await require_token(request)
        try:
            metrics.observe_queues(await services.queues.rows(), await services.node.untold())
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
    return problem(HTTPStatus.BAD_REQUEST, "; ".join(_explained(error) for error in exc.errors()))


def _explained(error: Mapping[str, Any]) -> str:
    """What is wrong with a request, in words for an administrator."""
    if error["type"].startswith("uuid"):
        return (
            f"{error['input']!r:.100} is no network message id, like 0193a6a2-6f1e-7c3a-9c57-0d1f2e3a4b5c; `messages list` shows them, "
            "with --filter \"InternetMessageId -eq '<…>'\" that of a message whose Message-ID you know"
        )
    given = f"{error['input']!r:.100} " if isinstance(error["input"], str | int | float) else ""
    return f"{'.'.join(map(str, error['loc'][1:]))}: {given}{explanation_of(error)}"


async def _ledger_problem(_request: Request, _exc: Exception) -> JSONResponse:
    detail = "the queue database cannot be used now; the operator log says why"
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"Retry-After": "5"})


async def _refused_problem(_request: Request, exc: Exception) -> JSONResponse:
    return problem(HTTPStatus.CONFLICT, str(exc))


async def _unexpected_problem(request: Request, exc: Exception) -> JSONResponse:
    _log.error("admin.request_failed", path=request.url.path, exc_info=exc)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "an error that nobody expected; the operator log has it")
