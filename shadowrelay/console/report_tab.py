"""The redundancy report as a page of the console, where `[admin] report` names its directory. docs/operations.md "Console".

`sla report` and `sla watch` make it: one file, with its own style and script. It is shown in a frame that has no origin, so that nothing in
it can act in the session, and only to people who may see messages.
"""

from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import Response

from shadowrelay.bounded import FILES
from shadowrelay.console.pages import REPORT, Desk, page_route
from shadowrelay.console.rendering import HEADERS, page
from shadowrelay.console.sessions import ConsoleSession

FILE = "report.html"
OCTETS_MAX = 64_000_000  # a report of a year has 2 MB
POLICY = "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'self'"
FRAMING = "; frame-src 'self'"


def add_report(application: FastAPI, desk: Desk) -> None:
    """`/report`, and `/report/page` in its frame."""
    if desk.settings.admin.report is None:
        return
    directory = desk.settings.admin.report
    router = APIRouter(include_in_schema=False, route_class=page_route(desk))

    @router.get(REPORT)
    async def report(request: Request) -> Response:
        """The tab."""
        session = request.state.session
        _require_sight(session)
        values = desk.values(request, session, "Report", directory=str(directory), made_at=await _made_at(directory))
        response = page("report", values)
        response.headers["Content-Security-Policy"] += FRAMING
        return response

    @router.get(f"{REPORT}/page")
    async def content(request: Request) -> Response:
        """The report itself."""
        _require_sight(request.state.session)
        try:
            body = await FILES.read((directory / FILE,), partial(_read, directory))
        except TimeoutError as exc:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{directory / FILE}: {exc}") from exc
        except OSError as exc:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"{directory / FILE} cannot be read: {exc.strerror}") from exc
        headers = HEADERS | {"Content-Security-Policy": POLICY, "X-Frame-Options": "SAMEORIGIN"}
        return Response(body, headers=headers, media_type="text/html; charset=utf-8")

    application.include_router(router)


def _require_sight(session: ConsoleSession) -> None:
    if not session.person.sees_messages:
        raise HTTPException(HTTPStatus.FORBIDDEN, f"{session.person.name} may not see messages, and the report names some")


async def _made_at(directory: Path) -> datetime | None:
    try:
        found = await FILES.read((directory / FILE,), (directory / FILE).stat)
        return datetime.fromtimestamp(found.st_mtime, UTC)
    except OSError:
        return None


def _read(directory: Path) -> bytes:
    with (directory / FILE).open("rb") as file:
        body = file.read(OCTETS_MAX + 1)
    if len(body) > OCTETS_MAX:
        raise OSError(27, f"it has more than {OCTETS_MAX:,} octets")
    return body
