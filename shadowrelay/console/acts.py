"""What a person can do on the pages: each act first says what will happen, and to how much. docs/reference.md "Console".

An act is done on its node, by that node's API and in the person's own name; many at once may be done on all nodes. `GET /act` asks for
confirmation, `POST /act` acts; what takes it back, where there is such a thing, is offered on the next page.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from shadowrelay.admin.api_client import NodeClient, NodeError
from shadowrelay.admin.people import ACT, FORCE, Right
from shadowrelay.cluster.if_lost import look, warnings
from shadowrelay.cluster.words import counted
from shadowrelay.console.pages import Desk, checked_form, page_route, require
from shadowrelay.console.rendering import local_path, page
from shadowrelay.console.sessions import ConsoleSession, Note
from shadowrelay.model.values import dataclass

BULK_MAX = 1_000  # messages or queues of one act on a node; the next act takes the next ones
ALL_NODES = "*"
WAITING_ROLES = ("primary", "set-aside")
NO_RETURN = "This cannot be taken back."

Json = dict[str, Any]
Fields = dict[str, str]
Verb = Callable[[NodeClient, str, str], Json]
"""The node, what it is done on, and who does it."""


@dataclass(frozen=True, slots=True)
class Act:
    """Shapes: `will` says what happens, with {on} and {node}; `count` how many messages it concerns (None: not known before); `inputs` are
    further fields of the form: name, label, example. `undo` is the act that takes it back; `many` is what a filter chooses, if one does."""

    title: str
    will: str
    do: Callable[[NodeClient, str, Fields, str], str]
    count: Callable[[NodeClient, str], int | None] = lambda _client, _on: None
    undo: str = ""
    inputs: tuple[tuple[str, str, str], ...] = ()
    is_danger: bool = False
    right: Right = ACT
    many: str = ""


# ---- queues and messages: one, or those that a filter chooses


def _in_queue(client: NodeClient, identity: str) -> int | None:
    return next((int(row["count"]) for row in client.queues() if row["identity"] == identity), None)


def _one(_client: NodeClient, _on: str) -> int | None:
    return 1


def _queues_chosen(client: NodeClient, filter_text: str) -> list[str]:
    return [str(row["identity"]) for row in client.queues(filter_text) if row["kind"] == "Delivery"][:BULK_MAX]


def _messages_chosen(client: NodeClient, filter_text: str) -> list[str]:
    rows = client.messages("Undelivered", BULK_MAX, 0, filter_text)
    return list(dict.fromkeys(str(row["message_id"]) for row in rows if row["role"] in WAITING_ROLES))


CHOSEN = {"queue": _queues_chosen, "message": _messages_chosen}


def _each(verb: Verb, what: str, done: str) -> Callable[[NodeClient, str, Fields, str], str]:
    """For all that a filter chooses; what the node refuses is counted."""

    def do(client: NodeClient, filter_text: str, _fields: Fields, by: str) -> str:
        refused: list[str] = []
        chosen = CHOSEN[what](client, filter_text)
        for one in chosen:
            try:
                verb(client, one, by)
            except NodeError as exc:
                if exc.status not in (404, 409):
                    raise
                refused.append(str(exc))
        left = f"; refused: {len(refused)}, the first because {refused[0]}" if refused else ""
        more = f". There may be more: only {BULK_MAX:,} are taken at once" if len(chosen) == BULK_MAX else ""
        return f"{counted(len(chosen) - len(refused), what)} {done}{left}{more}"

    return do


def _one_and_many(
    what: str, name: str, will: str, verb: Verb, done: str, *, undo: str = "", is_danger: bool = False, title: str = ""
) -> Iterator[tuple[str, Act]]:
    """The same act on one queue or message, and on those that a filter chooses."""
    title, many = title or f"{name.capitalize()} {{}}", f"{what}s"

    def do_one(client: NodeClient, on: str, _fields: Fields, by: str) -> str:
        verb(client, on, by)
        return f"{on} is {done}"

    def count(client: NodeClient, filter_text: str) -> int | None:
        return len(CHOSEN[what](client, filter_text))

    this = {"queue": "{on}", "message": "this message"}[what]
    those = {"queue": "each delivery queue with {on}", "message": "each undelivered message with {on}"}[what]
    yield (
        f"{what}-{name}",
        Act(
            title.format(f"this {what}"), will.format(this), do_one, _in_queue if what == "queue" else _one,
            undo=f"{what}-{undo}" if undo else "", is_danger=is_danger,
        ),
    )  # fmt: skip
    yield (
        f"{many}-{name}",
        Act(
            title.format(many), will.format(those), _each(verb, what, done), count,
            undo=f"{many}-{undo}" if undo else "", is_danger=is_danger, many=many,
        ),
    )  # fmt: skip


ON_MANY: dict[str, Act] = dict(
    [
        *_one_and_many(
            "queue", "retry",
            "{{node}} tries what is in {} at once. For a shadow queue that is a heartbeat: its primary server is asked for discard "
            "notifications.",
            lambda client, on, _: client.retry_queue(on), "tried now",
        ),
        *_one_and_many(
            "queue", "suspend",
            "{{node}} attempts nothing from {} until somebody resumes it, also after a restart. Attempts that run end normally; messages "
            "expire as usual.",
            lambda client, on, by: client.suspend_queue(on, by), "suspended", undo="resume",
        ),
        *_one_and_many(
            "queue", "resume", "{{node}} delivers from {} again, at once.",
            lambda client, on, by: client.resume_queue(on, by), "resumed", undo="suspend",
        ),
        *_one_and_many(
            "message", "suspend",
            "{{node}} attempts nothing on {} until somebody resumes it, also after a restart. It keeps its copies, and expires as usual.",
            lambda client, on, by: client.suspend_message(on, by), "suspended", undo="resume",
        ),
        *_one_and_many(
            "message", "resume", "{{node}} attempts {} again, at once. What was set aside is released.",
            lambda client, on, by: client.resume_message(on, by), "resumed", undo="suspend",
        ),
        *_one_and_many(
            "message", "resubmit", "{{node}} routes {} anew, and attempts it now.",
            lambda client, on, by: client.resubmit_message(on, by), "resubmitted",
        ),
        *_one_and_many(
            "message", "remove",
            f"{{{{node}}}} ends {{}} for all remaining recipients, its copies are discarded, and its sender is told. {NO_RETURN}",
            lambda client, on, _: client.remove_message(on, with_dsn=True), "removed, and the sender is told", is_danger=True,
        ),
        *_one_and_many(
            "message", "remove-quietly",
            f"{{{{node}}}} ends {{}} for all remaining recipients, its copies are discarded, and nobody is told. {NO_RETURN}",
            lambda client, on, _: client.remove_message(on, with_dsn=False), "removed, and nobody is told", is_danger=True,
            title="Remove {} without a notice",
        ),
    ]
)  # fmt: skip


# ---- nodes, peers, Safety Net


def _to_deliver(client: NodeClient, _on: str) -> int | None:
    return sum(int(row["count"]) for row in client.queues() if row["kind"] in ("Submission", "Delivery"))


def _listed_on(client: NodeClient, peer: str) -> int | None:
    return next((int(row["held_by_count"]) for row in client.peers() if row["name"] == peer), None)


def _drained(client: NodeClient, _on: str, _fields: Fields, _by: str) -> str:
    return f"{client.drain()['state']}: the overview shows how far it is"


def _resubmitted(client: NodeClient, _on: str, fields: Fields, _by: str) -> str:
    names = ("next_hop", "sender", "recipient", "message_id", "primary_server")
    made = client.resubmit(fields.get("from", ""), fields.get("to", ""), **{name: fields.get(name, "") for name in names})
    return f"request {made['number']} is {made['state']}"


def _number(on: str) -> int:
    if not (on.isascii() and on.isdigit() and len(on) < 19):
        raise NodeError(f"{on[:100]!r} is no number of a request", HTTPStatus.BAD_REQUEST)
    return int(on)


def _changed(verb: str) -> Act:
    """Of a request to resubmit."""
    return Act(
        f"{verb.capitalize()} this request",
        f"{{node}} will {verb} resubmit request {{on}}.",
        lambda client, on, _, by: f"request {client.change_request(_number(on), verb)['number']}: {verb}d",
        undo={"disable": "request-enable", "enable": "request-disable"}.get(verb, ""),
    )


ACTS = ON_MANY | {
    "queue-hold": Act(
        "Hold a next hop",
        "{node} attempts nothing for this next hop or domain, also if no mail waits for it now, until somebody resumes it.",
        lambda client, on, _, by: f"{client.suspend_queue(on, by, is_hold=True)['queue']['identity']} is suspended",
        undo="queue-resume",
        inputs=(("on", "Next hop or domain", "x.example"),),
    ),
    "message-release": Act(
        "Release this message",
        "{node} puts it back into delivery. A poison message will kill the node again: look at its content first.",
        lambda client, on, _, by: f"{client.release_message(on)['message_id']} is released",
        _one,
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
    **{f"request-{verb}": _changed(verb) for verb in ("disable", "enable", "remove")},
}


# ---- the page


def add_acts(application: FastAPI, desk: Desk) -> None:
    """`/act`."""
    router = APIRouter(include_in_schema=False, route_class=page_route(desk))

    async def asked(
        session: ConsoleSession, nodes: Sequence[str], question: Callable[[NodeClient], Any], *, is_look: bool = False
    ) -> list[tuple[str, Any]]:
        """By each node, or why not. Raises: NodeError if the only one cannot be looked at."""
        answers: list[tuple[str, Any]] = []
        for node in nodes:
            try:
                answers.append((node, await desk.ask_in_person(session, node, question)))
            except NodeError as exc:
                if is_look and len(nodes) == 1 and exc.status != HTTPStatus.BAD_REQUEST:
                    raise
                answers.append((node, exc))
        return answers

    @router.get("/act")
    async def confirm(request: Request) -> Response:
        """What will happen, and to how many messages."""
        session, fields = request.state.session, dict(request.query_params)
        act, nodes, on = _chosen_act(session, fields, desk)
        counts: list[tuple[str, Any]] = []
        if on or not (act.many or any(name == "on" for name, _, _ in act.inputs)):
            counts = await asked(session, nodes, lambda client: act.count(client, on), is_look=True)
        refused = [exc for _, exc in counts if isinstance(exc, NodeError)]
        known = [(node, count) for node, count in counts if isinstance(count, int)]
        problem = "" if on or not act.many else "give a filter"
        problem = next((str(exc) for exc in refused if exc.status == HTTPStatus.BAD_REQUEST), problem)
        of_node = " and ".join(nodes) if len(nodes) < 3 else f"Each of {len(nodes)} nodes"
        goes = on if fields["act"].startswith("forget") else nodes[0] if fields["act"] in ("drain", "redirect") else ""
        warned = warnings(goes, await desk.nodes.ask(partial(look, lost=[goes], ids_max=0))) if goes else []
        values = desk.values(
            request, session, act.title, act=act, name=fields["act"], on=on, of_node=of_node, node_field=_node_field(fields, nodes),
            count=sum(count for _, count in known) if known else None, counts=known if len(nodes) > 1 else [],
            without_nodes=[] if problem else [{"node": node, "error": str(exc)} for node, exc in counts if isinstance(exc, NodeError)],
            problem=problem, warnings=warned, will=act.will.format(node=of_node, on=on), given=fields,
            back=local_path(fields.get("back", "/")),
            is_cut=bool(act.many) and any(count == BULK_MAX for _, count in known),
            is_empty=bool(act.many) and not any(count for _, count in known),
        )  # fmt: skip
        return page("act", values, HTTPStatus.BAD_REQUEST if problem else HTTPStatus.OK)

    @router.post("/act")
    async def acted(request: Request) -> Response:
        """Do it."""
        session = request.state.session
        fields = await checked_form(request, session)
        act, nodes, on = _chosen_act(session, fields, desk)
        back = local_path(fields.get("back", "/"))
        if act.many and not on:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "without a filter this would be for everything: give one")
        answers = await asked(session, nodes, lambda client: act.do(client, on, fields, session.person.name))
        desk.watch.forget()
        for node, done in answers:
            if isinstance(done, NodeError):
                session.note(Note(f"{act.title}: {node} refuses: {done}", is_failure=True))
            else:
                undo = urlencode({"act": act.undo, "node": node, "on": on, "back": back}) if act.undo else ""
                session.note(Note(f"{node}: {done}.", undo=f"/act?{undo}" if undo else ""))
        return RedirectResponse(back, HTTPStatus.SEE_OTHER)

    application.include_router(router)


def _chosen_act(session: ConsoleSession, fields: Fields, desk: Desk) -> tuple[Act, list[str], str]:
    """The act, on which nodes, on what."""
    act = ACTS.get(fields.get("act", ""))
    if act is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such act")
    require(session, act.right)
    node = fields.get("node", "").strip()
    nodes = desk.nodes.names if node == ALL_NODES and act.many else [node or desk.nodes.name]
    return act, nodes, fields.get("on", "").strip()


def _node_field(fields: Fields, nodes: Sequence[str]) -> str:
    return ALL_NODES if fields.get("node", "").strip() == ALL_NODES and len(nodes) > 1 else nodes[0]
