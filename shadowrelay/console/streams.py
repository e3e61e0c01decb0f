"""Streams: the moving part of an open page, and the events of this node for programs. docs/operations.md "Events".

A page in the background closes its stream, so it costs nothing. What moves is made once for all who look at the same page with the same
rights. A stream that its reader does not take within `SLOW_SECONDS` is dropped, and `admin.gate` lets only so many be open.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from shadowrelay.admin.gate import EVENTS, LIVE_STREAM
from shadowrelay.admin.guard import without_private
from shadowrelay.console.pages import LIVE, Desk, live_part
from shadowrelay.console.rendering import HEADERS
from shadowrelay.tracking.event_tap import EventTap

EVERY_SECONDS = 1.5  # with what it takes to ask and to draw, all that happens is shown within two
FRESH_SECONDS = 1.2  # of a part that was made for another viewer
SLOW_SECONDS = 5.0
IDLE_SECONDS = 15.0  # then a comment shows that the stream lives
PARTS_MAX = 100
SSE = "text/event-stream"
LINES = "application/x-ndjson"
MISSED = "events.missed"  # some after the position that was asked for are not kept any more


class EventStream(StreamingResponse):
    """Ends when its reader is too slow: the response stays unfinished, and then it is no stream any more for `admin.server`, which throws
    away what is still kept for that reader."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            scope["state"]["is_stream"] = False

    async def stream_response(self, send: Send) -> None:
        """Its chunks, as far as they are taken."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self.body_iterator:
            body = chunk if isinstance(chunk, bytes | memoryview) else chunk.encode()
            try:
                async with asyncio.timeout(SLOW_SECONDS):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            except TimeoutError:
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class LiveParts:
    """Of pages, made once for all viewers, as the octets that each is sent. `clock`: seconds that only grow."""

    def __init__(self, desk: Desk, clock: Callable[[], float] = time.monotonic) -> None:
        self._desk, self._clock = desk, clock
        self._parts: dict[tuple[object, ...], tuple[float, bytes]] = {}
        self._making = {path: asyncio.Lock() for path in LIVE}  # a page that waits for a node that hangs holds up no other

    async def part(self, request: Request, path: str, query: Mapping[str, str]) -> bytes:
        """As it is now, for this person: a server-sent event. Raises: HTTPException."""
        session = request.state.session
        person = session.person
        key = (path, tuple(sorted(query.items())), person.sees_messages, person.role)
        now = self._clock()
        async with self._making[path]:
            made_at, part = self._parts.get(key, (float("-inf"), b""))  # from when on: what takes long is no younger for that
            if now - made_at >= FRESH_SECONDS:
                began = self._clock()
                part = _as_sse("part", await live_part(self._desk, request, session, path, query)).encode()
                self._parts = {one: each for one, each in self._parts.items() if began - each[0] < EVERY_SECONDS}
                if len(self._parts) < PARTS_MAX:
                    self._parts[key] = began, part
        return part


def add_streams(application: FastAPI, desk: Desk, tap: EventTap, guard: type[APIRoute]) -> None:
    """`/live` for pages, `/api/v1/events` for programs."""
    parts = LiveParts(desk)
    router = APIRouter(include_in_schema=False)

    @router.get(LIVE_STREAM)
    async def live(request: Request, path: str) -> Response:
        """The moving part of that page, again and again while somebody looks."""
        session = desk.session_of(request)
        if session is None or path not in LIVE:
            return Response(status_code=204, headers=HEADERS)  # which ends an EventSource
        request.state.is_stream = True
        request.state.session = session
        query = {name: value for name, value in request.query_params.items() if name != "path"}

        async def told() -> AsyncIterator[str | bytes]:
            yield "retry: 2000\n\n"
            while desk.session_of(request) is not None:
                yield await parts.part(request, path, query)
                await asyncio.sleep(EVERY_SECONDS - time.monotonic() % EVERY_SECONDS)  # all at once, so that one look serves all pages
            yield _as_sse("gone", "")

        return EventStream(told(), media_type=SSE, headers=HEADERS)

    application.include_router(router)
    api = APIRouter(route_class=guard)

    @api.get(EVENTS, response_class=Response, responses={200: {"content": {LINES: {}, SSE: {}}}}, tags=["events"])
    async def events(
        request: Request,
        after: int = Query(-1, ge=-1, le=2**63 - 1, description="position of the last event that is known; without it: from now on"),
        follow: bool = Query(True, description="go on with what comes; false: end after what there is"),
    ) -> Response:
        """What happens on this node, one JSON object a line, or server-sent events if `Accept` asks for these."""
        person = request.state.person
        given = request.headers.get("last-event-id", "")
        known = int(given) if given.isascii() and given.isdigit() and len(given) < 19 else after
        begin = known if known >= 0 else tap.position if follow else 0
        is_sse = SSE in request.headers.get("accept", "")
        request.state.is_stream = True

        def line(event: Mapping[str, Any]) -> str:
            text = json.dumps(event if person.sees_messages else without_private(dict(event)), default=str, separators=(",", ":"))
            return f"id: {event['position']}\nevent: {event['event']}\ndata: {text}\n\n" if is_sse else f"{text}\n"

        async def told() -> AsyncIterator[str]:
            position = begin if known >= 0 or follow else tap.forgotten
            loop, news = asyncio.get_running_loop(), asyncio.Event()
            end = tap.listen(lambda: loop.call_soon_threadsafe(news.set))
            try:
                while desk.people.counts(person):
                    news.clear()
                    if position < tap.forgotten:
                        position = tap.forgotten
                        yield line({"position": position, "at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": MISSED})
                    for event in tap.since(position):
                        position = event["position"]
                        yield line(event)
                    if not follow:
                        return
                    try:
                        async with asyncio.timeout(IDLE_SECONDS):
                            await news.wait()
                    except TimeoutError:
                        yield ": still here\n\n" if is_sse else "\n"
            finally:
                end()

        return EventStream(told(), media_type=SSE if is_sse else LINES, headers={"Cache-Control": "no-store"})

    application.include_router(api)


def _as_sse(event: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.split("\n"))
    return f"event: {event}\n{lines}\n"
