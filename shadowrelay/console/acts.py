"""What a person can do on the pages: each act first says what will happen, and to how much. docs/reference.md "Console".

An act is done on its node, by that node's API and in the person's own name; many at once may be done on all nodes. `GET /act` asks for
what is missing, then for confirmation, `POST /act` acts; what takes it back, where there is such a thing, is offered on the next page.
"""

import asyncio
import time
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
from shadowrelay.cluster.lookup import recipients
from shadowrelay.cluster.words import counted
from shadowrelay.console.pages import Desk, checked_form, page_route, require
from shadowrelay.console.rendering import local_path, page
from shadowrelay.console.sessions import ConsoleSession, Note
from shadowrelay.model.values import dataclass

BULK_MAX = 1_000  # messages or queues of one act on a node; the next act takes the next ones
BULK_SECONDS = 40.0  # then the rest is left to the next act: a browser waits for a minute
ALL_NODES = "*"
THOSE = "those"  # the field that names what was kept in the session, see `ConsoleSession.keep`
JUST_NOW = "to which it was just done"
WAITING_ROLES = ("primary", "set-aside")
TO_BE_CHANGED = (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT)  # what was asked; the page of the act says why
NO_RETURN = "This cannot be taken back."

Json = dict[str, Any]
Fields = dict[str, str]
Verb = Callable[[NodeClient, str, str], Json]
"""The node, what it is done on, and who does it."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What an act concerns on one node: `messages`, in so many `queues` if it is about queues. `is_more`: there may be more messages.
    `words` say what a number alone does not; `facts` are name and value."""

    messages: int
    queues: int | None = None
    is_more: bool = False
    words: str = ""
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """What an act has done, in words; to `those` of many, which is what may be taken back."""

    text: str
    those: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Act:
    """Shapes: `will` says what happens, with {on} and {node}; `look` says how much it concerns, `do` does it. `inputs` are fields of a form
    that comes first: name, label, example; those with "empty" in their label may be. `undo` is the act that takes it back; `many` is what
    a filter chooses, if one does; `is_everywhere`: it may be done on all nodes at once."""

    title: str
    will: str
    do: Callable[[NodeClient, str, Fields, str], Done | str]
    look: Callable[[NodeClient, str, Fields], Extent]
    undo: str = ""
    inputs: tuple[tuple[str, str, str], ...] = ()
    is_danger: bool = False
    right: Right = ACT
    many: str = ""
    is_everywhere: bool = False

    def lacks(self, fields: Fields) -> bool:
        """Whether a field is to be filled in before it can be said what happens."""
        return any("empty" not in label and not fields.get(name, "").strip() for name, label, _ in self.inputs)


# ---- queues and messages: one, or those that a filter chooses


def _in_queue(client: NodeClient, queue: str, _fields: Fields) -> Extent:
    """By its identity, or by the next hop; nothing may be in it now."""
    return Extent(sum(int(row["count"]) for row in client.queues() if queue in (row["identity"], row["identity"].partition("\\")[2])))


def _one(client: NodeClient, message_id: str, _fields: Fields) -> Extent:
    """Raises: NodeError 404 where the node does not know it."""
    found = client.message(message_id)
    whom = recipients(found)
    return Extent(1, facts=(("Subject", found["subject"] or "(no subject)"), ("From", found["sender"] or "<>"), ("To", whom)))


def _queues_chosen(client: NodeClient, filter_text: str) -> dict[str, int]:
    rows = [row for row in client.queues(filter_text) if row["kind"] == "Delivery"]
    return {str(row["identity"]): int(row["count"]) for row in rows[:BULK_MAX]}


def _messages_chosen(client: NodeClient, filter_text: str) -> dict[str, int]:
    rows = client.messages("Undelivered", BULK_MAX, 0, filter_text)
    return {str(row["message_id"]): 1 for row in rows if row["role"] in WAITING_ROLES}


CHOSEN = {"queue": _queues_chosen, "message": _messages_chosen}  # and how many messages each is


def _many(client: NodeClient, what: str, filter_text: str, fields: Fields) -> dict[str, int]:
    """Those that were named, as by who takes an act on many back; else those that the filter chooses."""
    if not (those := fields.get(THOSE, "")):
        return CHOSEN[what](client, filter_text)
    counts = {str(row["identity"]): int(row["count"]) for row in client.queues()} if what == "queue" else {}
    return {one: counts.get(one, what == "message") for one in those.split("\n")}


def _each(verb: Verb, what: str, done: str) -> Callable[[NodeClient, str, Fields, str], Done]:
    """For all that are chosen; what the node refuses is counted."""

    def do(client: NodeClient, filter_text: str, fields: Fields, by: str) -> Done:
        refused: list[str] = []
        those: list[str] = []
        chosen = list(_many(client, what, filter_text, fields))
        ends_at = time.monotonic() + BULK_SECONDS
        for one in chosen:
            if time.monotonic() > ends_at:
                break
            try:
                verb(client, one, by)
                those.append(one)
            except NodeError as exc:
                if exc.status not in (404, 409):
                    raise
                refused.append(str(exc))
        left = len(chosen) - len(those) - len(refused)
        parts = [f"{counted(len(those), what)} {done}"]
        parts += [f"; refused: {len(refused)}, the first because {refused[0]}"] if refused else []
        parts += [f". {counted(left, what)} not tried, because it took too long: do it again"] if left else []
        parts += [f". There may be more: only {BULK_MAX:,} are taken at once"] if len(chosen) == BULK_MAX else []
        return Done("".join(parts), tuple(those))

    return do


def _one_and_many(
    what: str, name: str, will: str, verb: Verb, done: str, *, undo: str = "", is_danger: bool = False, title: str = ""
) -> Iterator[tuple[str, Act]]:
    """The same act on one queue or message, and on those that a filter chooses."""
    title, many = title or f"{name.capitalize()} {{}}", f"{what}s"

    def do_one(client: NodeClient, on: str, _fields: Fields, by: str) -> str:
        verb(client, on, by)
        return f"{on} is {done}"

    def look(client: NodeClient, filter_text: str, fields: Fields) -> Extent:
        chosen = _many(client, what, filter_text, fields)
        is_more = len(chosen) == BULK_MAX and THOSE not in fields
        return Extent(sum(chosen.values()), len(chosen) if what == "queue" else None, is_more=is_more)

    this = {"queue": "{on}", "message": "this message"}[what]
    those = {"queue": "each delivery queue {on}", "message": "each undelivered message {on}"}[what]
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
            title.format(many), will.format(those), _each(verb, what, done), look,
            undo=f"{many}-{undo}" if undo else "", is_danger=is_danger, many=many, is_everywhere=True,
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


def _to_deliver(client: NodeClient, _on: str, _fields: Fields) -> Extent:
    return Extent(sum(int(row["count"]) for row in client.queues() if row["kind"] in ("Submission", "Delivery")))


def _listed_on(client: NodeClient, peer: str, _fields: Fields) -> Extent:
    found = next((row for row in client.peers() if row["name"] == peer), None)
    if found is None:
        raise NodeError(f"this node knows no peer {peer}", HTTPStatus.NOT_FOUND)
    held = counted(int(found["held_for_count"]), "message")
    words = f"So many of this node's messages may have a copy there; it holds {held} for that server"
    return Extent(int(found["held_by_count"]), words=f"{words}. Nobody knows how much only that server has.")


def _drained(client: NodeClient, _on: str, _fields: Fields, _by: str) -> str:
    return f"{client.drain()['state']}: the overview shows how far it is"


def _delivered(client: NodeClient, _on: str, fields: Fields) -> Extent:
    found = client.delivered(fields.get("from", ""), fields.get("to", ""), fields.get("primary_server", ""))
    words = "So many were delivered in that time, or since then by a lost node; those of them that fit are delivered again."
    return Extent(found["count"], is_more=found["is_more"], words=words)


def _so_far(client: NodeClient, on: str, _fields: Fields) -> Extent:
    found = client.resubmit_request(_number(on))
    facts = [(name, found[key]) for name, key in SELECTION if found[key]]
    return Extent(found["resubmitted_count"], words="So many it has resubmitted so far; these stay.", facts=tuple(facts))


SELECTION = (
    ("Delivered from", "from_at"), ("To", "to_at"), ("Next hop", "next_hop"), ("Sender", "sender"), ("Recipient", "recipient"),
    ("Message", "message_id"), ("Lost node", "primary_server"),
)  # fmt: skip


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
        _so_far,
        undo={"disable": "request-enable", "enable": "request-disable"}.get(verb, ""),
    )


ACTS = ON_MANY | {
    "queue-hold": Act(
        "Hold a next hop",
        "{node} attempts nothing for this next hop or domain, also if no mail waits for it now, until somebody resumes it.",
        lambda client, on, _, by: f"{client.suspend_queue(on, by, is_hold=True)['queue']['identity']} is suspended",
        _in_queue,
        undo="queue-resume",
        inputs=(("on", "Next hop or domain", "x.example"),),
        is_everywhere=True,
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
        _to_deliver,
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
        _delivered,
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
        is_everywhere=True,
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
        """By each node, all at the same time, or why not. Raises: NodeError if the only one cannot be looked at."""

        async def one(node: str) -> Any:
            try:
                return await desk.ask_in_person(session, node, question, is_act=not is_look)
            except NodeError as exc:
                if is_look and len(nodes) == 1 and exc.status not in TO_BE_CHANGED:
                    raise
                return exc

        return list(zip(nodes, await asyncio.gather(*map(one, nodes)), strict=True))

    @router.get("/act")
    async def confirm(request: Request) -> Response:
        """What is still to be filled in; then what will happen, and to how many messages."""
        session, fields = request.state.session, dict(request.query_params)
        key = fields.get(THOSE, "")
        act, nodes, on = _chosen_act(session, fields, desk)
        values: Json = {
            "act": act, "name": fields["act"], "on": on, "node_field": _node_field(fields, nodes), "given": fields, "those": key,
            "back": local_path(fields.get("back", "/")),
        }  # fmt: skip
        if act.lacks(fields):
            return page("act_fields", desk.values(request, session, act.title, **values))
        looked: list[tuple[str, Any]] = []
        is_told = bool(on or key or not act.many)
        if is_told:
            looked = await asked(session, nodes, lambda client: act.look(client, on, fields), is_look=True)
        refused = [(node, exc) for node, exc in looked if isinstance(exc, NodeError)]
        known = [(node, extent) for node, extent in looked if isinstance(extent, Extent)]
        problem = "" if is_told else "give a filter"
        problem = next((str(exc) for _, exc in refused if exc.status in TO_BE_CHANGED), problem)
        of_node = " and ".join(nodes) if len(nodes) < 3 else f"Each of {len(nodes)} nodes"
        what = on if not act.many else JUST_NOW if key else f"with {on}"
        goes = on if fields["act"].startswith("forget") else nodes[0] if fields["act"] in ("drain", "redirect") else ""
        answers = await desk.nodes.ask(partial(look, lost=[goes], ids_max=0)) if goes else []
        warned = warnings(goes, answers) if goes else []
        warned += [f"what only {goes} has is not known: {each.error}" for each in answers if each.name == goes == nodes[0] and each.error]
        values |= {
            "of_node": of_node, "extent": _together([extent for _, extent in known]), "extents": known if len(nodes) > 1 else [],
            "without_nodes": [] if problem else [{"node": node, "error": str(exc)} for node, exc in refused],
            "problem": problem, "warnings": warned, "will": act.will.format(node=of_node, on=what), "nodes": nodes,
            "is_empty": bool(act.many) and not any(extent.messages or extent.queues for _, extent in known),
        }  # fmt: skip
        return page("act", desk.values(request, session, act.title, **values), HTTPStatus.BAD_REQUEST if problem else HTTPStatus.OK)

    @router.post("/act")
    async def acted(request: Request) -> Response:
        """Do it."""
        session = request.state.session
        fields = await checked_form(request, session)
        act, nodes, on = _chosen_act(session, fields, desk)
        back = local_path(fields.get("back", "/"))
        if act.many and not (on or THOSE in fields):
            raise HTTPException(HTTPStatus.BAD_REQUEST, "without a filter this would be for everything: give one")
        answers = await asked(session, nodes, lambda client: act.do(client, on, fields, session.person.name))
        desk.watch.forget()
        for node, done in answers:
            if isinstance(done, NodeError):
                session.note(Note(f"{act.title}: {_refusal(node, done)}", is_failure=True))
                continue
            text, those = (done, ()) if isinstance(done, str) else (done.text, done.those)
            undo = {"act": act.undo, "node": node, "back": back} if act.undo and (those or not act.many) else {}
            if undo:
                undo |= {THOSE: session.keep(those)} if act.many else {"on": on}
            session.note(Note(f"{node}: {text}.", undo=f"/act?{urlencode(undo)}" if undo else ""))
        return RedirectResponse(back, HTTPStatus.SEE_OTHER)

    application.include_router(router)


def _refusal(node: str, error: NodeError) -> str:
    """Without an answer nobody knows what was done, unless it was not asked at all."""
    if error.status:
        return f"{node} refuses: {error}"
    return (
        f"{node}: {error}; it may have done it, so look before you do it again" if error.is_asked else f"{node}: nothing is done: {error}"
    )


def _together(extents: Sequence[Extent]) -> Extent | None:
    """Of several nodes; None where none has answered."""
    if not extents:
        return None
    queues = [extent.queues for extent in extents if extent.queues is not None]
    return Extent(
        sum(extent.messages for extent in extents),
        sum(queues) if queues else None,
        is_more=any(extent.is_more for extent in extents),
        words=extents[0].words,
        facts=extents[0].facts,
    )


def _chosen_act(session: ConsoleSession, fields: Fields, desk: Desk) -> tuple[Act, list[str], str]:
    """The act, on which nodes, on what."""
    act = ACTS.get(fields.get("act", ""))
    if act is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such act")
    require(session, act.right)
    if key := fields.get(THOSE, ""):
        those = session.kept(key) if act.many else ()
        if not those:
            raise HTTPException(HTTPStatus.NOT_FOUND, "which ones these were is not known any more: choose them by a filter")
        fields[THOSE] = "\n".join(those)
    node = fields.get("node", "").strip()
    nodes = desk.nodes.names if node == ALL_NODES and act.is_everywhere else [node or desk.nodes.name]
    return act, nodes, fields.get("on", "").strip()


def _node_field(fields: Fields, nodes: Sequence[str]) -> str:
    return ALL_NODES if fields.get("node", "").strip() == ALL_NODES and len(nodes) > 1 else nodes[0]
