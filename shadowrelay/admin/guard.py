"""Before every route of the API: who asks, what they may do and see, the audit of writes. docs/reference.md "People and roles".

All of it is here, so that no route can forget it. Named people act in their own name, whatever they say in `by`. Who may not see messages
gets answers without subjects and addresses, and cannot ask for messages by them.
"""

import json
import re
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as StarletteHTTPException

from shadowrelay.admin.audit import AuditTrail
from shadowrelay.admin.people import ACT, AUDIT, CONTENT, FORCE, READ, READER, People, Person, Right, TooManyFailures
from shadowrelay.model.replies import LedgerUnavailable, RequestRefused

PREFIX = "/api/v1/"
CONTENT_PATH = "/content"
AUDIT_PATH = "/audit"
UNSEEN = "[not shown]"
PRIVATE = frozenset({"subject", "sender", "to", "recipients", "recipient", "orcpt", "internet_message_id"})  # keys of answers
PRIVATE_PROPERTIES = ("fromaddress", "recipients", "subject", "internetmessageid", "lasterror", "messagesourcename")  # of filters
_ADDRESS = re.compile(r"""(?:"[^"]*"|[^\s<>"',;:()\[\]=]+)@[^\s<>"',;()\[\]]+""")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


async def person_asking(people: People, request: Request) -> Person:
    """Raises: HTTPException 401 for strangers, 429 after too many failures."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    found = None
    if scheme.lower() == "bearer" and (token := token.strip()):
        try:
            found = await people.recognise(token, client_of(request))
        except TooManyFailures as failures:
            if not getattr(request.state, "peers", None):
                headers = {"Retry-After": str(failures.seconds)}
                raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, str(failures), headers) from failures
    if found is None and getattr(request.state, "peers", None):
        found = READER
    if found is None:
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "the bearer token of this node is needed", {"WWW-Authenticate": "Bearer"})
    return found


def client_of(request: Request) -> str:
    """The address of the connection."""
    return request.client.host if request.client else ""


def right_for(request: Request) -> Right:
    """What this request needs."""
    if request.method not in ("GET", "HEAD"):
        return FORCE if request.query_params.get("force", "false").lower() in ("true", "1", "on", "yes", "t", "y") else ACT
    path = request.url.path
    return CONTENT if path.endswith(CONTENT_PATH) else AUDIT if path.endswith(AUDIT_PATH) else READ


def refusal_of(person: Person, right: Right) -> str:
    """Why this person may not."""
    if not person.is_named:
        return "this token or certificate may only read, and no content: use the one in admin.token_file"
    return f"{person.name} has the role {person.role.value}, and only {' or '.join(sorted(role.value for role in right))} may do this"


def guarded(people: People, trail: AuditTrail) -> type[APIRoute]:
    """Routes behind the guard."""

    class GuardedRoute(APIRoute):
        """A route of the API."""

        def get_route_handler(self) -> Handler:
            """The route's own one, behind the guard."""
            inner = super().get_route_handler()

            async def handler(request: Request) -> Response:
                person = request.state.person = await person_asking(people, request)
                right = right_for(request)
                if request.method in ("GET", "HEAD"):
                    _require(person, right)
                    _require_filter(person, request)
                    return _shown(await inner(request), person)
                if person.is_named:
                    request = _in_the_name_of(person, request)
                outcome = "failed"
                try:
                    _require(person, right)
                    response = _shown(await inner(request), person)
                    outcome = "done"
                    return response
                except (StarletteHTTPException, RequestRefused, LedgerUnavailable) as refused:
                    outcome = str(getattr(refused, "detail", "") or refused)
                    raise
                finally:
                    by, act, on = _written(request)
                    trail.note(person, by, client_of(request), act, on, outcome)

            return handler

    return GuardedRoute


def _require(person: Person, right: Right) -> None:
    if not person.may(right):
        raise HTTPException(HTTPStatus.FORBIDDEN, refusal_of(person, right))


def _require_filter(person: Person, request: Request) -> None:
    if person.sees_messages or not request.url.path.startswith((f"{PREFIX}messages", f"{PREFIX}search")):
        return
    if names := asks_for_private(request.query_params.get("filter", "")):
        raise HTTPException(HTTPStatus.FORBIDDEN, f"{person.name} may not see messages, nor look for them by {', '.join(names)}")


def asks_for_private(filter_text: str) -> list[str]:
    """The properties in a filter that tell subjects or addresses."""
    return [name for name in PRIVATE_PROPERTIES if name in filter_text.lower()]


def _in_the_name_of(person: Person, request: Request) -> Request:
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = [*(pair for pair in pairs if pair[0] != "by"), ("by", person.name)]
    return Request({**request.scope, "query_string": urlencode(query).encode()}, request.receive)


def _written(request: Request) -> tuple[str, str, str]:
    """Who says to be it, what is done, and to what."""
    parameters = request.query_params
    on = " ".join(f"{name}={value}" for name, value in parameters.multi_items() if name != "by")
    return parameters.get("by", ""), f"{request.method.lower()} {request.url.path.removeprefix(PREFIX)}".removeprefix("post "), on


def _shown(response: Response, person: Person) -> Response:
    if person.sees_messages or not response.headers.get("content-type", "").startswith("application/json"):
        return response
    return JSONResponse(without_private(json.loads(bytes(response.body))), response.status_code)


def without_private(value: Any) -> Any:
    """An answer without subjects and addresses, also where a reply quotes one."""
    if isinstance(value, dict):
        return {key: _unseen(each) if key in PRIVATE else without_private(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_private(each) for each in value]
    return _ADDRESS.sub(UNSEEN, value) if isinstance(value, str) else value


def _unseen(value: Any) -> Any:
    if isinstance(value, list):
        return [{**each, "address": UNSEEN, "orcpt": None} if isinstance(each, dict) else UNSEEN for each in value]
    return UNSEEN if value else value
