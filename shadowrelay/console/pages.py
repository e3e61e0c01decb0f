"""The pages: login, front page, queues, messages, peers, audit. docs/reference.md "Console".

A stranger is led to the login from every page and is shown nothing else. Every page works without script. Errors are pages that say what
to do. What a page shows of other nodes is asked from them while it is made.
"""

import asyncio
import io
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import partial
from http import HTTPStatus
from inspect import isawaitable
from itertools import groupby
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import structlog
from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as StarletteHTTPException

from shadowrelay.admin.api_client import NodeError
from shadowrelay.admin.guard import asks_for_private, client_of, without_private
from shadowrelay.admin.people import ACT, AUDIT, CONTENT, FORCE, People, Right, TooManyFailures
from shadowrelay.cluster.answers import NodeAnswer, combined, missing
from shadowrelay.cluster.if_lost import acquainted, document, known_words, look, named
from shadowrelay.cluster.lookup import STATUSES, MessageId, SearchError, filter_of, merged
from shadowrelay.cluster.story import gathered, sentence_of_hops, what
from shadowrelay.console.asking import ClusterNodes
from shadowrelay.console.rendering import ASSETS, asset, fragment, harden, is_from_here, local_path, page
from shadowrelay.console.sessions import SESSION_LASTS, ConsoleSession, ConsoleSessions
from shadowrelay.console.timeline import drawn
from shadowrelay.console.watching import ClusterWatch
from shadowrelay.model.settings import Settings

Json = dict[str, Any]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]

COOKIE = "shadowrelay"
LOGIN = "/login"
QUEUES_SHOWN = 200  # of one page
MESSAGES_SHOWN = 100
BACKLOG = ("Submission", "Delivery", "Poison", "HandedOver")  # kinds of queues; what is in the others waits for nothing here
ALIKE_MIN = 4  # rows of a message's life that say the same: the first and the last are shown
IDS_SHOWN = 50  # of messages that would be lost
WORDS_MAX = 4096
TABS = (("/", "Overview"), ("/queues", "Queues"), ("/messages", "Messages"), ("/peers", "Peers"), ("/audit", "Audit"))
REPORT = "/report"
LIVE = {"/": "overview_live", "/queues": "queues_live", "/peers": "peers_live"}  # pages with a part that moves, and its template

_log = structlog.get_logger()


class Desk:
    """What all pages share."""

    def __init__(self, settings: Settings, people: People, application: FastAPI, token: str, now: Callable[[], datetime]) -> None:
        self.settings, self.people, self.now = settings, people, now
        self.nodes = ClusterNodes(settings, application, token)
        self.sessions = ConsoleSessions(now)
        self.watch = ClusterWatch(self.nodes)
        # nodes on one machine share a host name, and so their cookies
        self.cookie = f"{COOKIE}_{settings.admin.listen.port}"

    def adopt(self, settings: Settings) -> None:
        """As reloaded: the peers may be others."""
        self.settings = settings
        self.nodes.adopt(settings)

    async def close(self) -> None:
        """The connections to other nodes."""
        self.nodes.forget()

    def session_of(self, request: Request) -> ConsoleSession | None:
        """Of the person who asks, while that one has rights."""
        session = self.sessions.find(request.cookies.get(self.cookie, ""))
        return session if session is not None and self.people.counts(session.person) else None

    async def ask_in_person(self, session: ConsoleSession, node: str, question: Callable[[Any], Any], *, is_act: bool = False) -> Any:
        """On this node or another one, with the person's own rights. Raises: NodeError."""
        return await self.nodes.ask_one(node, session.token, question, is_everywhere=session.person.is_named, is_act=is_act)

    def seen(self, session: ConsoleSession, value: Any) -> Any:
        """As far as this person may see it."""
        return value if session.person.sees_messages else without_private(value)

    def values(self, request: Request, session: ConsoleSession, title: str, **more: object) -> dict[str, object]:
        """For the frame of every page, which shows what was just done: it is told once."""
        return self.part_values(request, session, title) | {"notes": session.told()} | more

    def part_values(self, request: Request, session: ConsoleSession, title: str = "") -> dict[str, object]:
        """For a part of a page."""
        person = session.person
        tabs = [(path, name) for path, name in TABS if path != "/audit" or person.may(AUDIT)]
        tabs += [(REPORT, "Report")] if self.settings.admin.report is not None and person.sees_messages else []
        return {
            "title": title, "node": self.nodes.name, "person": person, "csrf": session.csrf, "tabs": tabs, "now": self.now(),
            "path": request.url.path, "query": request.url.query, "may_act": person.may(ACT), "may_force": person.may(FORCE),
            "notes": [], "live": "", "node_names": self.nodes.names,
        }  # fmt: skip


def page_route(desk: Desk) -> type[APIRoute]:
    """Routes of pages: for those who logged in, with errors as pages."""

    class PageRoute(APIRoute):
        """A page."""

        def get_route_handler(self) -> Handler:
            """The route's own one, for who logged in."""
            inner = super().get_route_handler()

            async def handler(request: Request) -> Response:
                session = desk.session_of(request)
                if session is None:
                    return _to_login(request)
                request.state.session = session
                try:
                    return harden(await inner(request))
                except HTTPException as exc:
                    return error_page(desk, request, session, exc.status_code, str(exc.detail))
                except RequestValidationError as exc:
                    wrong = ", ".join(str(error["loc"][-1]) for error in exc.errors())
                    return error_page(desk, request, session, HTTPStatus.BAD_REQUEST, f"this address is not complete: {wrong}")
                except NodeError as exc:
                    return error_page(desk, request, session, exc.status or HTTPStatus.SERVICE_UNAVAILABLE, str(exc))
                except Exception as exc:
                    _log.error("admin.request_failed", path=request.url.path, exc_info=exc)
                    detail = "an error that nobody expected; the operator log has it"
                    return error_page(desk, request, session, HTTPStatus.INTERNAL_SERVER_ERROR, detail)

            return handler

    return PageRoute


def _to_login(request: Request) -> Response:
    """Only what is looked at is a place to come back to."""
    is_read = request.method in ("GET", "HEAD")
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    target = f"{LOGIN}?next={quote(path, safe='')}" if is_read and path != "/" else LOGIN
    return harden(RedirectResponse(target, HTTPStatus.SEE_OTHER))


REMEDIES = {
    HTTPStatus.FORBIDDEN: "Ask an administrator for another role, or for somebody who has it.",
    HTTPStatus.NOT_FOUND: "It may have ended in the meantime, or have another name. The search finds delivered messages, too.",
    HTTPStatus.BAD_REQUEST: "Change what you asked for, and try again.",
    HTTPStatus.CONFLICT: "The node says why it refuses; what it waits for is on the overview.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Try again in a moment. If it lasts, look at the operator log of that node.",
}


def error_page(desk: Desk, request: Request, session: ConsoleSession, status: int, detail: str) -> Response:
    """Says what is wrong, and what to do."""
    title = HTTPStatus(status).phrase
    remedy = REMEDIES.get(HTTPStatus(status), "The operator log of this node has the details.")
    return page("error", desk.values(request, session, title, detail=detail, remedy=remedy), status)


def require(session: ConsoleSession, right: Right) -> None:
    """Raises: HTTPException 403."""
    if not session.person.may(right):
        roles = " or ".join(sorted(role.value for role in right))
        raise HTTPException(HTTPStatus.FORBIDDEN, f"{session.person.name} has the role {session.person.role.value}; this is for {roles}")


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, each once. Its size is limited by `admin.gate`."""
    body = (await request.body()).decode("utf-8", "replace")
    return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=100))


async def checked_form(request: Request, session: ConsoleSession) -> dict[str, str]:
    """Raises: HTTPException 403 unless it comes from a page of this session."""
    fields = await form_of(request)
    if not is_from_here(request) or not session.is_own(fields.get("csrf", "")):
        raise HTTPException(HTTPStatus.FORBIDDEN, "this form is not from a page of your session: open the page again")
    return fields


def add_errors(application: FastAPI, desk: Desk) -> None:
    """A browser that asks for what is not there gets a page; programs keep their problems."""
    problem_of = application.exception_handlers[StarletteHTTPException]

    async def shown(request: Request, exc: Exception) -> Response:
        is_page = request.method == "GET" and "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
        if not is_page or getattr(exc, "status_code", 0) != HTTPStatus.NOT_FOUND:
            answer = problem_of(request, exc)
            return await answer if isawaitable(answer) else answer
        session = desk.session_of(request)
        return _to_login(request) if session is None else error_page(desk, request, session, HTTPStatus.NOT_FOUND, "there is no such page")

    application.add_exception_handler(StarletteHTTPException, shown)


def add_login(application: FastAPI, desk: Desk) -> None:
    """`/login`, `/logout`, and the files of the package: all that strangers get."""
    router = APIRouter(include_in_schema=False)

    def login_page(following: str, error: str = "", status: int = 200) -> Response:
        return page("login", {"error": error, "next": local_path(following)}, status)

    @router.get(LOGIN)
    async def login(request: Request) -> Response:
        """The form."""
        if desk.session_of(request) is not None:
            return harden(RedirectResponse(local_path(request.query_params.get("next", "/")), HTTPStatus.SEE_OTHER))
        return login_page(request.query_params.get("next", "/"))

    @router.post(LOGIN)
    async def logged_in(request: Request) -> Response:
        """The token makes a session."""
        fields = await form_of(request)
        following = fields.get("next", "/")
        if not is_from_here(request):
            return login_page("/", "This form came from another site.", HTTPStatus.FORBIDDEN)
        token = fields.get("token", "").strip()
        try:
            person = await desk.people.recognise(token, client_of(request), is_at_the_door=True)
        except TooManyFailures as failures:
            response = login_page(following, f"Too many wrong tokens: try again in {failures.seconds} s.", HTTPStatus.TOO_MANY_REQUESTS)
            response.headers["Retry-After"] = str(failures.seconds)
            return response
        if person is None:
            return login_page(following, "No one here has this token.", HTTPStatus.UNAUTHORIZED)
        desk.sessions.end(request.cookies.get(desk.cookie, ""))
        cookie = desk.sessions.begin(person, token)
        _log.info("admin.logged_in", by=person.name, role=person.role.value, client=client_of(request))
        response = harden(RedirectResponse(local_path(following), HTTPStatus.SEE_OTHER))
        response.set_cookie(
            desk.cookie, cookie, max_age=int(SESSION_LASTS.total_seconds()), path="/", httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return response

    @router.post("/logout")
    async def logout(request: Request) -> Response:
        """Ends the session."""
        session = desk.session_of(request)
        if session is not None:
            if not is_from_here(request) or not session.is_own((await form_of(request)).get("csrf", "")):
                return error_page(desk, request, session, HTTPStatus.FORBIDDEN, "this form is not from a page of your session")
            desk.sessions.end(request.cookies.get(desk.cookie, ""))
        response = harden(RedirectResponse(LOGIN, HTTPStatus.SEE_OTHER))
        response.delete_cookie(desk.cookie, path="/")
        return response

    @router.get("/assets/{name}")
    async def assets(name: str) -> Response:
        """Style, script and icon."""
        if name not in ASSETS:
            raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such file")
        response = harden(Response(asset(name), media_type=ASSETS[name]))
        response.headers["Cache-Control"] = "max-age=300"
        return response

    application.include_router(router)


def add_pages(application: FastAPI, desk: Desk) -> None:
    """The pages of who logged in."""
    router = APIRouter(include_in_schema=False, route_class=page_route(desk))

    async def shown(request: Request, title: str, template: str, more: Mapping[str, object]) -> Response:
        live = LIVE.get(request.url.path, "")
        return page(template, desk.values(request, request.state.session, title, live=live, **more))

    @router.get("/")
    async def overview(request: Request) -> Response:
        """The front page."""
        return await shown(request, "Overview", "overview", await overview_values(desk, request.state.session))

    @router.get("/queues")
    async def queues(request: Request) -> Response:
        """All queues of all nodes."""
        return await shown(request, "Queues", "queues", await queue_values(desk, request.state.session, request.query_params))

    @router.get("/peers")
    async def peers(request: Request) -> Response:
        """What each node knows of each other one."""
        return await shown(request, "Peers", "peers", await overview_values(desk, request.state.session))

    @router.get("/messages")
    async def messages(request: Request) -> Response:
        """Search, or what waits."""
        return await shown(request, "Messages", "messages", await message_values(desk, request.state.session, request.query_params))

    @router.get("/messages/{message_id}")
    async def message(request: Request, message_id: str) -> Response:
        """What became of one message."""
        session = request.state.session
        if not MessageId.fullmatch(message_id):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"{message_id[:100]} is no network message id")
        is_whole = "all" in request.query_params
        return await shown(request, "Message", "message", await story_values(desk, session, message_id.lower(), is_whole=is_whole))

    @router.get("/messages/{message_id}/export")
    async def export(request: Request, message_id: str, node: str) -> Response:
        """The message as a file."""
        session = request.state.session
        require(session, CONTENT)
        if not MessageId.fullmatch(message_id):
            raise HTTPException(HTTPStatus.NOT_FOUND, f"{message_id[:100]} is no network message id")
        content = await desk.ask_in_person(session, node, lambda client: _content(client, message_id.lower()))
        headers = {"Content-Disposition": f'attachment; filename="{message_id.lower()}.eml"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    @router.get("/if-lost")
    async def if_lost(request: Request, servers: str = "") -> Response:
        """What becomes of mail if some servers are lost."""
        return await shown(request, "If it is lost", "if_lost", await if_lost_values(desk, servers[:WORDS_MAX]))

    @router.get("/safety-net")
    async def safety_net(request: Request) -> Response:
        """Requests to deliver again."""
        session = request.state.session
        answers = await desk.nodes.ask(lambda client: client.resubmit_requests())
        rows = [{"node": answer.name, **row} for answer in answers for row in answer.said or ()]
        return await shown(request, "Safety Net", "safety_net", {"rows": desk.seen(session, rows), "missing": missing(answers)})

    @router.get("/audit")
    async def audit(request: Request) -> Response:
        """Who changed what."""
        session = request.state.session
        require(session, AUDIT)
        return await shown(request, "Audit", "audit", await audit_values(desk, session))

    application.include_router(router)


async def live_part(desk: Desk, request: Request, session: ConsoleSession, path: str, query: Mapping[str, str]) -> str:
    """The moving part of that page, as it is now."""
    more = await (queue_values(desk, session, query) if path == "/queues" else overview_values(desk, session))
    frame = desk.part_values(request, session) | {"path": path, "query": urlencode(query)}
    return fragment(LIVE[path], frame | more)


async def overview_values(desk: Desk, session: ConsoleSession) -> Json:
    """For the front page and the peers."""
    return {"state": desk.seen(session, await desk.watch.state())}


async def queue_values(desk: Desk, session: ConsoleSession, query: Mapping[str, str]) -> Json:
    """Shapes: `rows` are those of one page, first what waits on its node, the fullest first; `problem` is what is wrong with the filter."""
    text, problem = query.get("filter", "").strip(), ""
    if text and not session.person.sees_messages and asks_for_private(text):
        text, problem = "", "you may not see messages, nor look for them by that property"
    if text:
        answers = await desk.nodes.ask(lambda client: client.queues(text, with_history=True))
        rows = [{"node": answer.name, **row} for answer in answers for row in answer.said or ()]
    else:  # the same question as for the other pages
        answers = await desk.watch.answers(with_history=True)
        rows = [{"node": answer.name, **row} for answer in answers if answer.said for row in answer.said["queues"]]
    wrong = next((answer.error for answer in answers if answer.status == HTTPStatus.BAD_REQUEST), "")
    rows.sort(key=lambda row: (row["kind"] not in BACKLOG, -row["count"], row["node"], row["identity"]))
    begin = _page_of(query) * QUEUES_SHOWN
    return {
        "rows": [desk.seen(session, row) for row in rows[begin : begin + QUEUES_SHOWN]],
        "total": len(rows), "begin": begin, "shown_max": QUEUES_SHOWN, "filter": query.get("filter", ""), "problem": problem or wrong,
        "missing": [] if wrong else missing(answers),
        "is_one_node": len(answers) == 1,
    }  # fmt: skip


def _page_of(query: Mapping[str, str]) -> int:
    text = query.get("page", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


FIELDS = ("to", "sender", "subject", "since", "id", "status")


async def if_lost_values(desk: Desk, text: str) -> Json:
    """As `status --if-lost`. Shapes: `found` is None where nothing was asked, or a word names nothing; then `problem` says so."""
    wanted = [word.strip() for word in text.split(",") if word.strip()]
    acquaintances = await desk.nodes.ask(acquainted)
    servers, unknown = combined(acquaintances, partial(named, wanted))
    values: Json = {"words": text, "names": combined(acquaintances, known_words), "missing": missing(acquaintances)}
    values |= {"found": None, "problem": ""}
    if unknown:
        return values | {"problem": f"{', '.join(unknown)}: no server, site or label of failure_domains that a node knows"}
    if not servers:
        return values
    answers = await desk.nodes.ask(partial(look, lost=servers, ids_max=IDS_SHOWN))
    return values | {"found": combined(answers, partial(document, servers)), "missing": missing(answers)}


async def message_values(desk: Desk, session: ConsoleSession, query: Mapping[str, str]) -> Json:
    """What was found; without anything to look for, what waits on all nodes, newest first."""
    given = {name: query.get(name, "").strip() for name in FIELDS}
    problem, wanted = "", ""
    queue, node = query.get("queue", ""), query.get("node", "")
    is_oldest_first = query.get("order") == "oldest" and not any(given.values())
    try:
        if any(given.values()):
            wanted = filter_of(
                to=given["to"], sender=given["sender"], subject=given["subject"], since=given["since"], message_id=given["id"],
                status=given["status"],
            )  # fmt: skip
    except SearchError as error:
        problem = str(error)
    if wanted and not session.person.sees_messages and asks_for_private(wanted):
        wanted, problem = "", "you may see neither subjects nor addresses, and so not search by them"
    answers: list[NodeAnswer] = []
    if not problem:
        answers = await desk.nodes.ask(
            (lambda client: client.search(wanted, MESSAGES_SHOWN + 1))
            if wanted
            else (lambda client: client.messages(queue or "Undelivered", MESSAGES_SHOWN + 1, newest=not is_oldest_first))
        )
        problem = next((answer.error for answer in answers if answer.status == HTTPStatus.BAD_REQUEST), "")
        if node and not wanted:
            answers = [answer for answer in answers if answer.name == node]
    found = combined(answers, merged)
    if is_oldest_first:
        found.reverse()
    return {
        "rows": desk.seen(session, found[:MESSAGES_SHOWN]), "is_cut": len(found) > MESSAGES_SHOWN, "given": given, "problem": problem,
        "statuses": list(STATUSES), "is_search": bool(wanted), "queue": queue, "of_node": node, "is_oldest_first": is_oldest_first,
        "missing": [] if problem else missing(answers),
    }  # fmt: skip


async def story_values(desk: Desk, session: ConsoleSession, message_id: str, *, is_whole: bool) -> Json:
    """A message's life over all nodes; `is_whole`: also each of many attempts that ended alike. Raises: HTTPException 404."""
    story = await desk.nodes.asking(lambda ask: gathered(message_id, ask))
    messages = story.known[message_id]
    if not story.events and not messages:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"no node that answers knows a message {message_id}")
    now = desk.now()
    sentence = sentence_of_hops(message_id, story.events, story.known, now)
    events = [row | {"number": number, "words": what(row), "more": 0} for number, row in enumerate(story.events, start=1)]
    values: Json = {
        "message_id": message_id, "sentence": sentence, "events": events, "messages": messages, "recipients": _recipients(messages, events),
    }  # fmt: skip
    values = desk.seen(session, values)
    shown = values["events"] if is_whole else _folded(values["events"])
    return values | {
        "events": shown,
        "facts": _facts(values["messages"], values["events"]),
        "timeline": drawn(shown),
        "missing": missing(story.answers),
        "may_read": session.person.may(CONTENT),
        "holders": [name for name, one in messages.items() if one["size"] is not None],
    }


def _folded(events: list[Json]) -> list[Json]:
    """Of rows that say the same of the same node, one after the other, the first and the last, with `more`: how many are left out before
    it."""
    shown: list[Json] = []
    for _, group in groupby(events, key=lambda row: (row["node"], row["event"], row["words"])):
        alike = list(group)
        shown += alike if len(alike) < ALIKE_MIN else [alike[0], alike[-1] | {"more": len(alike) - 2}]
    return shown


def _facts(messages: Mapping[str, Json], events: list[Json]) -> list[tuple[str, str]]:
    """Subject, sender and so on, of whoever knows them."""
    known = next(iter(messages.values()), None)
    if known is None:
        row = next((row for row in events if row["event"] == "RECEIVE"), events[0])
        return [("Subject", row["subject"]), ("From", row["sender"] or "<>")]
    return [
        ("Subject", known["subject"]),
        ("From", known["sender"] or "<>"),
        ("Client", " ".join(part for part in (known["client_name"], known["client_address"]) if part)),
        ("Connector", known["connector"]),
        ("Message-ID", known["internet_message_id"]),
        ("Accepted", known["arrived_at"]),
    ]


def _recipients(messages: Mapping[str, Json], events: list[Json]) -> list[Json]:
    """Each once, with what was last said about it."""
    addresses = dict.fromkeys(each["address"] for one in messages.values() for each in one["recipients"])
    addresses |= dict.fromkeys(each for row in events for each in row["recipients"])
    found = []
    for address in addresses:
        last = next((row for row in reversed(events) if address in row["recipients"] and row["event"] in OUTCOMES), None)
        is_done = any(each["address"] == address and each["is_done"] for one in messages.values() for each in one["recipients"])
        reply = ""
        if last is not None:
            replies = dict(zip(last["recipients"], last["replies"], strict=False))
            reply = replies.get(address) or last["context"]
        state = OUTCOMES[last["event"]] if last is not None else "done" if is_done else "waits"
        found.append({"address": address, "state": state, "reply": reply, "at": None if last is None else last["at"]})
    return found


OUTCOMES = {
    "SEND": "delivered", "SENDEXTERNAL": "delivered", "DEFER": "not taken yet", "FAIL": "failed", "EXPIRE": "expired",
    "DUPLICATEDELIVER": "delivered before",
}  # fmt: skip


async def audit_values(desk: Desk, session: ConsoleSession) -> Json:
    """Of this node, and of all others that know the person's token."""
    names = desk.nodes.names
    asked = (desk.ask_in_person(session, name, lambda client: client.audit()) for name in names)
    answers = dict(zip(names, await asyncio.gather(*asked, return_exceptions=True), strict=True))
    entries: list[Json] = []
    without: list[Json] = []
    for name, found in answers.items():
        if isinstance(found, NodeError):
            without.append({"node": name, "error": str(found)})
        elif isinstance(found, BaseException):
            raise found
        else:
            entries += [{"node": name, **entry} for entry in found]
    entries.sort(key=lambda entry: str(entry["at"]), reverse=True)
    return {"entries": entries, "missing": without}


def _content(client: Any, message_id: str) -> bytes:
    file = io.BytesIO()
    client.export_message(message_id, file)
    return file.getvalue()
