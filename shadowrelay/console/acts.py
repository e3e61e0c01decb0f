"""What a person can do on the pages: each act first says what will happen, and to how much. docs/operations.md "Console".

An act is done on its node, by that node's API and in the person's own name. `GET /act` asks for confirmation, `POST /act` acts; what takes
it back, where there is such a thing, is offered on the next page.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from shadowrelay.admin.api_client import NodeClient, NodeError
from shadowrelay.admin.people import ACT, FORCE, Right
from shadowrelay.cluster.words import counted
from shadowrelay.console.pages import Desk, checked_form, page_route, require
from shadowrelay.console.rendering import local_path, page
from shadowrelay.console.sessions import ConsoleSession, Note
from shadowrelay.model.values import dataclass

BULK_MAX = 1_000  # messages of one act; the next act takes the next ones
WAITING_ROLES = ("primary", "set-aside")

Json = dict[str, Any]
Fields = dict[str, str]


@dataclass(frozen=True, slots=True)
class Act:
    """Shapes: `will` says what happens, with {on} and {node}; `count` how many messages it concerns (None: not known before); `inputs` are
    further fields of the form: name, label, example. `undo` is the act that takes it back."""

    title: str
    will: str
    do: Callable[[NodeClient, str, Fields, str], str]
    count: Callable[[NodeClient, str], int | None] = lambda _client, _on: None
    undo: str = ""
    inputs: tuple[tuple[str, str, str], ...] = ()
    is_danger: bool = False
    right: Right = ACT


def _in_queue(client: NodeClient, identity: str) -> int | None:
    return next((int(row["count"]) for row in client.queues() if row["identity"] == identity), None)


def _to_deliver(client: NodeClient, _on: str) -> int | None:
    return sum(int(row["count"]) for row in client.queues() if row["kind"] in ("Submission", "Delivery"))


def _one(_client: NodeClient, _on: str) -> int | None:
    return 1


def _listed_on(client: NodeClient, peer: str) -> int | None:
    return next((int(row["held_by_count"]) for row in client.peers() if row["name"] == peer), None)


def _chosen(client: NodeClient, filter_text: str) -> list[str]:
    rows = client.messages("Undelivered", BULK_MAX, 0, filter_text)
    return list(dict.fromkeys(str(row["message_id"]) for row in rows if row["role"] in WAITING_ROLES))


def _count_chosen(client: NodeClient, filter_text: str) -> int | None:
    return len(_chosen(client, filter_text))


def _each(verb: Callable[[NodeClient, str, str], object], done: str) -> Callable[[NodeClient, str, Fields, str], str]:
    """For all messages that a filter chooses; what the node refuses is counted."""

    def do(client: NodeClient, filter_text: str, _fields: Fields, by: str) -> str:
        refused: list[str] = []
        ids = _chosen(client, filter_text)
        for message_id in ids:
            try:
                verb(client, message_id, by)
            except NodeError as exc:
                if exc.status not in (404, 409):
                    raise
                refused.append(str(exc))
        left = f"; refused: {len(refused)}, the first because {refused[0]}" if refused else ""
        more = f". There may be more: only {BULK_MAX:,} are taken at once" if len(ids) == BULK_MAX else ""
        return f"{counted(len(ids) - len(refused), 'message')} {done}{left}{more}"

    return do


def _resubmitted(client: NodeClient, _on: str, fields: Fields, _by: str) -> str:
    names = ("next_hop", "sender", "recipient", "message_id", "primary_server")
    made = client.resubmit(fields.get("from", ""), fields.get("to", ""), **{name: fields.get(name, "") for name in names})
    return f"request {made['number']} is {made['state']}"


def _drained(client: NodeClient, _on: str, _fields: Fields, _by: str) -> str:
    return f"{client.drain()['state']}: the overview shows how far it is"


NO_RETURN = "This cannot be taken back."
ACTS = {
    "queue-retry": Act(
        "Try this queue now",
        "{node} tries what is in {on} at once. For a shadow queue that is a heartbeat: its primary server is asked for discard "
        "notifications.",
        lambda client, on, _, by: f"{client.retry_queue(on)['queue']['identity']} is tried now",
        _in_queue,
    ),
    "queue-suspend": Act(
        "Suspend this queue",
        "{node} attempts nothing from {on} until somebody resumes it, also after a restart. Attempts that run end normally; messages "
        "expire as usual.",
        lambda client, on, _, by: f"{client.suspend_queue(on, by)['queue']['identity']} is suspended",
        _in_queue,
        undo="queue-resume",
    ),
    "queue-hold": Act(
        "Hold a next hop",
        "{node} attempts nothing for this next hop or domain, also if no mail waits for it now, until somebody resumes it.",
        lambda client, on, _, by: f"{client.suspend_queue(on, by, is_hold=True)['queue']['identity']} is suspended",
        undo="queue-resume",
        inputs=(("on", "Next hop or domain", "x.example"),),
    ),
    "queue-resume": Act(
        "Resume this queue",
        "{node} delivers from {on} again, at once.",
        lambda client, on, _, by: f"{client.resume_queue(on, by)['queue']['identity']} is resumed",
        _in_queue,
        undo="queue-suspend",
    ),
    "message-suspend": Act(
        "Suspend this message",
        "{node} attempts nothing on it until somebody resumes it, also after a restart. It keeps its copies, and expires as usual.",
        lambda client, on, _, by: f"{client.suspend_message(on, by)['message_id']} is suspended",
        _one,
        undo="message-resume",
    ),
    "message-resume": Act(
        "Resume this message",
        "{node} attempts it again, at once.",
        lambda client, on, _, by: f"{client.resume_message(on, by)['message_id']} is resumed",
        _one,
        undo="message-suspend",
    ),
    "message-resubmit": Act(
        "Resubmit this message",
        "{node} routes it anew and attempts it now.",
        lambda client, on, _, by: f"{client.resubmit_message(on, by)['message_id']} is resubmitted",
        _one,
    ),
    "message-release": Act(
        "Release this message",
        "{node} puts it back into delivery. A poison message will kill the node again: look at its content first.",
        lambda client, on, _, by: f"{client.release_message(on)['message_id']} is released",
        _one,
        is_danger=True,
    ),
    "message-remove": Act(
        "Remove this message",
        f"{{node}} ends it for all remaining recipients, its copies are discarded, and its sender is told. {NO_RETURN}",
        lambda client, on, _, by: f"{client.remove_message(on, with_dsn=True)['message_id']} is removed, and its sender is told",
        _one,
        is_danger=True,
    ),
    "message-remove-quietly": Act(
        "Remove this message without a notice",
        f"{{node}} ends it for all remaining recipients, its copies are discarded, and nobody is told. {NO_RETURN}",
        lambda client, on, _, by: f"{client.remove_message(on, with_dsn=False)['message_id']} is removed",
        _one,
        is_danger=True,
    ),
    "messages-suspend": Act(
        "Suspend messages",
        "{node} attempts nothing on all undelivered messages with {on}, until somebody resumes them.",
        _each(lambda client, message_id, by: client.suspend_message(message_id, by), "suspended"),
        _count_chosen,
        undo="messages-resume",
    ),
    "messages-resume": Act(
        "Resume messages",
        "{node} attempts all undelivered messages with {on} again, at once. Those that were set aside are released.",
        _each(lambda client, message_id, by: client.resume_message(message_id, by), "resumed"),
        _count_chosen,
    ),
    "messages-resubmit": Act(
        "Resubmit messages",
        "{node} routes all undelivered messages with {on} anew, and attempts them now.",
        _each(lambda client, message_id, by: client.resubmit_message(message_id, by), "resubmitted"),
        _count_chosen,
    ),
    "messages-remove": Act(
        "Remove messages",
        f"{{node}} ends all undelivered messages with {{on}}, and tells their senders. {NO_RETURN}",
        _each(lambda client, message_id, by: client.remove_message(message_id, with_dsn=True), "removed"),
        _count_chosen,
        is_danger=True,
    ),
    "messages-remove-quietly": Act(
        "Remove messages without notices",
        f"{{node}} ends all undelivered messages with {{on}}, and tells nobody. {NO_RETURN}",
        _each(lambda client, message_id, by: client.remove_message(message_id, with_dsn=False), "removed"),
        _count_chosen,
        is_danger=True,
    ),
    "drain": Act(
        "Drain this node",
        "{node} takes no mail and no copies any more, lets running work end, and hands what it has to deliver over to its peers. Clients "
        "must reach another node.",
        _drained,
        _to_deliver,
        undo="undrain",
    ),
    "undrain": Act(
        "Undrain this node",
        "{node} takes and delivers mail again. A redirect that runs ends.",
        lambda client, on, _, by: f"{client.undrain()['state']}: it takes mail again",
        undo="drain",
    ),
    "redirect": Act(
        "Redirect the queues of this node",
        "{node} refuses mail, hands all active messages over to these nodes, and then takes mail again.",
        lambda client, _, fields, by: f"{client.redirect(fields.get('to', ''))['state']}: the overview shows how far it is",
        _to_deliver,
        undo="undrain",
        inputs=(("to", "To these nodes, with commas between", "mx2.east.example"),),
    ),
    "forget": Act(
        "Forget this peer",
        "{node} stops waiting for {on}: what only that server has is given up, and its copies of this node's messages count no more. Only "
        f"for a server whose queue is destroyed for good. {NO_RETURN}",
        lambda client, on, _, by: f"{client.forget_peer(on)['name']} is forgotten",
        _listed_on,
        is_danger=True,
    ),
    "forget-force": Act(
        "Forget this peer although it answers",
        f"{{node}} stops waiting for {{on}}, which answers: what it holds may be delivered again. {NO_RETURN}",
        lambda client, on, _, by: f"{client.forget_peer(on, is_forced=True)['name']} is forgotten",
        _listed_on,
        is_danger=True,
        right=FORCE,
    ),
    "safety-net": Act(
        "Resubmit from Safety Net",
        "{node} delivers again what was delivered between two times and fits what is given. Recipients may get it twice.",
        _resubmitted,
        inputs=(
            ("from", "From (UTC)", "2026-11-22T10:00"),
            ("to", "To (UTC)", "2026-11-22T11:00"),
            ("next_hop", "Next hop (or empty)", "x.example"),
            ("sender", "Sender (or empty)", "a@corp.example"),
            ("recipient", "Recipient (or empty)", "b@x.example"),
            ("message_id", "Message id (or empty)", ""),
            ("primary_server", "What this lost node delivered (or empty)", "mx1.west.example"),
        ),
        is_danger=True,
    ),
    **{
        f"request-{verb}": Act(
            f"{verb.capitalize()} this request",
            f"{{node}} will {verb} resubmit request {{on}}.",
            lambda client, on, _, by, verb=verb: f"request {client.change_request(int(on), verb)['number']}: {verb}d",  # type: ignore[misc]
            undo={"disable": "request-enable", "enable": "request-disable"}.get(verb, ""),
        )
        for verb in ("disable", "enable", "remove")
    },
}


def add_acts(application: FastAPI, desk: Desk) -> None:
    """`/act`."""
    router = APIRouter(include_in_schema=False, route_class=page_route(desk))

    @router.get("/act")
    async def confirm(request: Request) -> Response:
        """What will happen, and to how many messages."""
        session, fields = request.state.session, dict(request.query_params)
        act, node, on = _chosen_act(session, fields, desk)
        count, problem, is_bulk = None, "", fields["act"].startswith("messages-")
        if on or not any(name == "on" for name, _, _ in act.inputs):
            try:
                count = await desk.ask_in_person(session, node, lambda client: act.count(client, on))
            except NodeError as exc:
                if exc.status != HTTPStatus.BAD_REQUEST:
                    raise
                problem = str(exc)
        values = desk.values(
            request, session, act.title, act=act, name=fields["act"], on=on, of_node=node, count=count, problem=problem,
            will=act.will.format(node=node, on=on), back=local_path(fields.get("back", "/")), given=fields,
            is_cut=is_bulk and count == BULK_MAX, is_empty=is_bulk and count == 0,
        )  # fmt: skip
        return page("act", values, HTTPStatus.BAD_REQUEST if problem else HTTPStatus.OK)

    @router.post("/act")
    async def acted(request: Request) -> Response:
        """Do it."""
        session = request.state.session
        fields = await checked_form(request, session)
        act, node, on = _chosen_act(session, fields, desk)
        back = local_path(fields.get("back", "/"))
        try:
            done = await desk.ask_in_person(session, node, lambda client: act.do(client, on, fields, session.person.name))
        except NodeError as exc:
            session.note(Note(f"{act.title}: {node} refuses: {exc}", is_failure=True))
        else:
            undo = urlencode({"act": act.undo, "node": node, "on": on, "back": back}) if act.undo else ""
            session.note(Note(f"{node}: {done}.", undo=f"/act?{undo}" if undo else ""))
        return RedirectResponse(back, HTTPStatus.SEE_OTHER)

    application.include_router(router)


def _chosen_act(session: ConsoleSession, fields: Fields, desk: Desk) -> tuple[Act, str, str]:
    act = ACTS.get(fields.get("act", ""))
    if act is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such act")
    require(session, act.right)
    return act, fields.get("node", "").strip() or desk.nodes.name, fields.get("on", "").strip()
