"""The commands `queue`, `messages`, `peers` and `pressure`: ask a running node. docs/reference.md "Commands"."""

import getpass
import os
import re
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowrelay.cli.find import filter_of, print_messages, resolved
from shadowrelay.cli.nodes import asked_nodes, name_missing, on_machine
from shadowrelay.cli.output import (
    AsJson,
    Config,
    ExitCode,
    Node,
    TokenFile,
    asked_node,
    print_json,
    print_sentences,
    print_table,
    private,
    say,
    stop,
    visible,
)
from shadowrelay.cli.what_if import warn
from shadowrelay.cluster.answers import NodeAnswer
from shadowrelay.cluster.lookup import MessageId, merged
from shadowrelay.cluster.overview import MACHINE_DIGITS, untold
from shadowrelay.cluster.words import age, clock, counted, duration
from shadowrelay.model.setting_texts import rounded_size

if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient

Json = dict[str, Any]
HELD_FOR_OTHERS = "Shadow"
SET_ASIDE = "Poison"
HANDED_OVER = "HandedOver"
UNDELIVERED, SHADOWS = "Undelivered", "Shadows"  # what all queues but Safety Net hold, in two parts
ALL_MAX = 1_000_000
REFUSED = (400, 404, 409)  # HTTP statuses that concern one message; any other concerns the node
DELIVERY = "Delivery"
WAITING = ("Submission", DELIVERY)
DELIVERED_HERE = ("primary", "set-aside")  # roles

By = Annotated[str, typer.Option("--by", help="Who it is, for listings and the operator log. [user@host]")]
Identities = Annotated[list[str] | None, typer.Argument(help="Identities from `queue list`, with or without the server.")]
MessageIds = Annotated[list[str] | None, typer.Argument(help="Network message ids.")]
QueueFilter = Annotated[
    str, typer.Option("--filter", help="As in Exchange: \"MessageCount -gt 10 -and NextHopDomain -like '*.example'\".", show_default=False)
]
MessageFilter = Annotated[
    str, typer.Option("--filter", help="As in Exchange: \"FromAddress -like '*@x.example' -and Size -gt 1MB\".", show_default=False)
]
MachineWide = Annotated[bool, typer.Option("--machine", help="Of all nodes that run on the machine of this one.")]

queue = typer.Typer(no_args_is_help=True, help="Queues of a node.")
messages = typer.Typer(no_args_is_help=True, help="Messages of a node.")
peers = typer.Typer(no_args_is_help=True, help="Peers of a node.")


@queue.command("list")
def list_queues(
    filter_text: QueueFilter = "",
    is_machine_wide: MachineWide = False,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List queues with depth and oldest age. Shadow queues hold copies for other nodes and are not a backlog. Velocity: messages a second
    that left less those that came, over the last minute."""

    def look(client: "NodeClient") -> Json:
        return {"node": client.node(), "rows": client.queues(filter_text)}

    if is_machine_wide:
        where, looks = _on_machine(node, token_file, config, look)
    else:
        with asked_node(node, token_file, config) as client:
            where, looks = "", [look(client)]
    rows = [row for one in looks for row in one["rows"]]
    if as_json:
        print_json(rows)
        return
    columns = ("Identity", "Delivery type", "Status", "#Count", "#Velocity", "#Size", "#Oldest", "#Next retry", "Next hop", "Last error")
    table = [
        (
            row["identity"],
            row.get("delivery_type") or row["kind"],  # missing in the API of older nodes, as the next
            row.get("status"),
            row["count"],
            f"{round(row.get('velocity', 0.0), 1) + 0.0:g}",  # -0.0 becomes 0
            rounded_size(row["octets"]),
            age(row["oldest_at"]),
            age(row["next_retry_at"]),
            row["next_hop"],
            row["last_error"],
        )
        for row in rows
    ]
    print_table(columns, table, "no queues")
    waiting = sum(row["count"] for row in rows if row["kind"] in WAITING)
    held = sum(row["count"] for row in rows if row["kind"] == HELD_FOR_OTHERS)
    say(f"{waiting} to deliver, {held} held for others{where}")
    print_sentences([f"{sentence}." for sentence in untold(looks)])


def _on_machine(
    node: str | None, token_file: Path | None, config: Path | None, look: Callable[["NodeClient"], Json]
) -> tuple[str, list[Json]]:
    """What each node of the machine of this one says, in the order of the configuration, and the words that name them. Who does not answer
    is named on standard error: it may be one of them."""
    with asked_nodes(node, token_file, config) as nodes:
        answers = nodes.ask(look)
        name_missing(answers)
        machine, found = on_machine(answers, nodes.own)
    names = " and ".join(answer.name for answer in found)
    return f", on machine {machine[:MACHINE_DIGITS]} by {names}", [answer.said for answer in found]


@queue.command("show")
def show_queue(
    identity: Annotated[str, typer.Argument(help="Identity from `queue list`, with or without the server.")],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show one queue. In Retry: since when, why, and until when. Of a next hop: its servers, their sessions, and why one is not used."""
    with asked_node(node, token_file, config) as client:
        rows = client.queues()
    found = _named(rows, identity)
    if as_json:
        print_json(found)
        return
    servers = found.pop("servers", [])  # missing in the API of older nodes
    print_table(("Field", "Value"), [(name.replace("_", " "), value) for name, value in found.items()], "")
    columns = ("Server", "State", "#Sessions", "#At most", "#Refused since", "#Probe in", "Reply")
    ages = ("refused_seconds_ago", "probe_seconds")
    rows = [one | {name: duration(one[name]) for name in ages} for one in servers]
    _print_part(columns, ("server", "state", "sessions_count", "sessions_max", *ages, "reply"), rows)


@queue.command("retry")
def retry_queues(
    identities: Identities = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every queue with messages that wait for an attempt.")] = False,
    filter_text: QueueFilter = "",
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Retry now. Probes the next hop and delivers deferred messages; for a Shadow queue, polls its primary server for discard
    notifications."""
    _only_one("IDENTITIES", identities, is_all, filter_text)
    with asked_node(node, token_file, config) as client:
        names = identities or [row["identity"] for row in client.queues(filter_text) if _is_tried(row)]
        _one_by_one(names, client.retry_queue, "retried", as_json, "identity")


@queue.command("suspend")
def suspend_queues(
    identities: Identities = None,
    filter_text: QueueFilter = "",
    is_hold: Annotated[bool, typer.Option("--hold", help="Also if no mail waits for this next hop or domain now.")] = False,
    by: By = "",
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Suspend delivery queues. Nothing is attempted until `queue resume`, also after a restart. Attempts that run end normally."""
    _only_one("IDENTITIES", identities, filter_text)
    with asked_node(node, token_file, config) as client:
        names = identities or [row["identity"] for row in client.queues(filter_text) if row["kind"] == DELIVERY]
        _one_by_one(names, lambda name: client.suspend_queue(name, by or _caller(), is_hold=is_hold), "suspended", as_json, "identity")


@queue.command("resume")
def resume_queues(
    identities: Identities = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every suspended queue.")] = False,
    filter_text: QueueFilter = "",
    by: By = "",
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Deliver from suspended queues again, at once."""
    _only_one("IDENTITIES", identities, is_all, filter_text)
    with asked_node(node, token_file, config) as client:
        names = identities or [row["identity"] for row in client.queues(filter_text) if row.get("suspended_since") is not None]
        _one_by_one(names, lambda name: client.resume_queue(name, by or _caller()), "resumed", as_json, "identity")


@messages.command("list")
def list_messages(
    in_queue: Annotated[str, typer.Option("--queue", help="Queue identity from `queue list`. Default: all queues except Safety Net.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=250_000, help="Maximum number of messages.")] = 100,
    after: Annotated[int, typer.Option("--after", min=0, help="With --queue: the next page, after the message with this number.")] = 0,
    filter_text: MessageFilter = "",
    is_machine_wide: MachineWide = False,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List messages, newest first. Without --queue: what is to be delivered, then copies held for other nodes."""
    if after and not in_queue:
        raise typer.BadParameter("pages belong to one queue: name it by --queue, or raise --limit", param_hint="--after")
    if is_machine_wide and in_queue:
        raise typer.BadParameter("a queue belongs to one node: leave out one of --queue and --machine", param_hint="--machine")

    def look(client: "NodeClient") -> list[Json]:
        found = client.messages(UNDELIVERED, limit, 0, filter_text, newest=True)
        return found if len(found) == limit else found + client.messages(SHADOWS, limit - len(found), 0, filter_text, newest=True)

    if is_machine_wide:
        _, looks = _on_machine(node, token_file, config, lambda client: {"node": client.node(), "rows": look(client)})
        rows = merged([NodeAnswer(one["node"]["name"], one["rows"]) for one in looks])
        rows = sorted(rows, key=lambda row: row["role"] not in DELIVERED_HERE)[:limit]  # what is to be delivered first
    else:
        with asked_node(node, token_file, config) as client:
            rows = client.messages(in_queue, limit, after, filter_text, newest=True) if in_queue else look(client)
            if in_queue and not rows:
                _require_queue(client, in_queue)
    if as_json:
        print_json(rows)
        return
    print_messages(rows, "no messages", where=is_machine_wide)
    if len(rows) == limit:
        say(f"there may be more: --after {rows[-1]['internal_id']}" if in_queue else "there may be more: raise --limit")


@messages.command("show")
def show_message(
    message_id: Annotated[str, typer.Argument(help="Network message id, as in `250 2.0.0 Queued as …`, its beginning, or the Message-ID.")],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show everything about one message. Who delivers it, copies, retries, replies."""
    with asked_node(node, token_file, config) as client:
        if not MessageId.fullmatch(message_id):
            message_id = resolved([NodeAnswer("", client.search(filter_of(message_id=message_id), 10))], message_id)
        message = client.message(message_id)
    if as_json:
        print_json(message)
        return
    print_sentences(sentences_about(message))
    lists = ("to", "recipients", "copies", "retries", "deliveries", "forks")
    rest = {name: value for name, value in message.items() if name not in lists and value}
    if "size" in rest:
        rest["size"] = rounded_size(message["size"])
    for group, names in FACTS.items():
        facts = [(LABELS.get(name, name.replace("_", " ")), _shown(rest.pop(name))) for name in names if name in rest]
        _print_facts(group, facts)
    _print_facts("Other", [(name.replace("_", " "), _shown(value)) for name, value in rest.items()])
    columns: tuple[str, ...] = ("#No", "Recipient", "Done", "Notify", "Orcpt")
    keys: tuple[str, ...] = ("ordinal", "address", "is_done", "notify", "orcpt")
    _print_part(columns, keys, message["recipients"])
    _print_part(("Copy on", "Database", "Choice"), ("server", "database", "choice"), message["copies"])
    columns = ("Waits for", "Recipients", "#Failures", "Next attempt", "Last reply")
    _print_part(columns, ("next_hop", "ordinals", "failures_count", "attempts_next_at", "last_reply"), message["retries"])
    columns, keys = ("Delivered to", "Recipients", "At", "Inside the boundary"), ("next_hop", "ordinals", "at", "is_inside")
    _print_part(columns, keys, message.get("deliveries", []))  # missing in the API of older nodes, as the next
    _print_part(("At its primary server waits for", "Recipients"), ("next_hop", "ordinals"), message.get("forks", []))


@messages.command("suspend")
def suspend_messages(
    message_ids: MessageIds = None,
    filter_text: MessageFilter = "",
    by: By = "",
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Suspend messages. Nothing is attempted until `messages resume`, also after a restart. They keep their copies, and expire as usual."""
    with _chosen(message_ids, filter_text, node, token_file, config) as (client, ids):
        _one_by_one(ids, lambda message_id: client.suspend_message(message_id, by or _caller()), "suspended", as_json)


@messages.command("resume")
def resume_messages(
    message_ids: MessageIds = None,
    filter_text: MessageFilter = "",
    by: By = "",
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Attempt suspended messages again, at once. A message that was set aside is released."""
    with _chosen(message_ids, filter_text, node, token_file, config) as (client, ids):
        _one_by_one(ids, lambda message_id: client.resume_message(message_id, by or _caller()), "resumed", as_json)


@messages.command("release")
def release_messages(
    message_ids: MessageIds = None,
    is_all: Annotated[bool, typer.Option("--all", help="All messages that are set aside.")] = False,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Put messages that were set aside back into delivery. A poison message will kill the node again: inspect it first."""
    if bool(message_ids) is is_all:
        raise typer.BadParameter("give message ids, or --all", param_hint="MESSAGE_IDS")
    with asked_node(node, token_file, config) as client:
        ids = message_ids or [row["message_id"] for row in client.messages(SET_ASIDE, ALL_MAX, 0)]
        _one_by_one(ids, client.release_message, "released", as_json)


@messages.command("resubmit")
def resubmit_messages(
    message_ids: MessageIds = None,
    filter_text: MessageFilter = "",
    by: By = "",
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Route messages anew and attempt them now. A message that was set aside is released; a suspended one is refused."""
    with _chosen(message_ids, filter_text, node, token_file, config) as (client, ids):
        _one_by_one(ids, lambda message_id: client.resubmit_message(message_id, by or _caller()), "resubmitted", as_json)


@messages.command("remove")
def remove_messages(
    message_ids: MessageIds = None,
    filter_text: MessageFilter = "",
    with_dsn: Annotated[
        bool, typer.Option("--dsn/--no-dsn", "--with-ndr/--without-ndr", help="Whether to send the sender a DSN (Exchange: NDR).")
    ] = True,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Remove messages that wait or were set aside. They are not delivered, and the sender gets a DSN unless --no-dsn is given."""
    with _chosen(message_ids, filter_text, node, token_file, config) as (client, ids):
        _one_by_one(ids, lambda message_id: client.remove_message(message_id, with_dsn=with_dsn), "removed", as_json)


@messages.command("export")
def export_message(
    message_id: Annotated[str, typer.Argument(help="Network message id.")],
    output: Annotated[Path | None, typer.Option("--output", help="New file; - for standard output. [ID.eml]")] = None,
    with_envelope: Annotated[
        bool, typer.Option("--envelope", help="Begin with X-Sender and X-Receiver lines, for Exchange's Replay directory.")
    ] = False,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Write a message to a new file. Header and body, as it would be delivered."""
    if output == Path("-"):
        with asked_node(node, token_file, config) as client:
            if not sys.stdout.isatty():
                client.export_message(message_id, sys.stdout.buffer, with_envelope=with_envelope)
                return
            with tempfile.TemporaryFile() as file:  # a terminal obeys what it is shown, and this was written by a stranger
                client.export_message(message_id, file, with_envelope=with_envelope)
                file.seek(0)
                say(*(line.rstrip(b"\r\n").decode("utf-8", "surrogateescape") for line in file))
        return
    path = output or Path(f"{re.sub('[^0-9A-Za-z-]', '_', message_id)}.eml")
    if path.exists():
        raise typer.BadParameter(f"{path} exists; choose a new file", param_hint="--output")
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")  # a name that no other process uses
    with asked_node(node, token_file, config) as client:
        try:
            with open(part, "xb", opener=private) as file:
                size = client.export_message(message_id, file, with_envelope=with_envelope)
            part.rename(path)
        except OSError as exc:
            stop(f"{path} cannot be written: {exc.strerror or exc}", ExitCode.USAGE)
        finally:
            part.unlink(missing_ok=True)
    if as_json:
        print_json({"message_id": message_id, "file": str(path), "size": size})
    else:
        say(f"{message_id}: {size} octets in {path}")


@peers.command("list")
def list_peers(node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """List peers. Reachability and last error, copies held in each direction, remaining lease."""
    with asked_node(node, token_file, config) as client:
        rows = client.peers()
    if as_json:
        print_json(rows)
        return
    columns = (
        "Name",
        "Site",
        "Boundary",
        "Address",
        "Version",
        "Offers",
        "Reachable",
        "#Heard",
        "#Lease",
        "Breaker",
        "#Held for it",
        "#Held by it",
        "#Taken over",
        "Forgotten",
        "Last error, and what differs",
    )
    table = [
        (
            *(row[name] for name in ("name", "site", "boundary", "address")),
            row.get("version") or "older, or not met",
            " ".join(row.get("features", ())) or "-",
            row["is_reachable"],
            duration(row["heartbeat_age_seconds"]),
            duration(row["lease_seconds"]),
            *(row[name] for name in ("breaker", "held_for_count", "held_by_count")),
            "-" if (left := row.get("takes_over_in_seconds")) is None else f"in {duration(left)}",
            row["is_forgotten"],
            "; ".join(
                filter(None, (_error(row), row.get("differs", ""), _shared_fate(row)))
            ),  # missing in the API of older nodes, like others
        )
        for row in rows
    ]
    print_table(columns, table, "no peers")


def _shared_fate(peer: dict[str, Any]) -> str:
    what: str = peer.get("shared_fate", "")
    return f"shares its fate: {what}" if what else ""


def _error(peer: dict[str, Any]) -> str:
    if peer.get("is_leaving"):
        return "leaving: it is in the configuration no more"
    said: str = peer.get("conflict") or ("it drains" if peer.get("is_draining") else peer.get("refusal", "")) or peer.get("last_error", "")
    return said


@peers.command("forget")
def forget_peer(
    name: Annotated[str, typer.Argument(help="The peer's name from `peers list`.")],
    is_forced: Annotated[bool, typer.Option("--force", help="Also if it answers: what it holds may be delivered twice.")] = False,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Mark a peer as gone for good. Only if its disk is destroyed: see docs/operations.md. It stays in `peers list`."""
    with asked_node(node, token_file, config) as client:
        found = next((row for row in client.peers() if row["name"] == name.lower()), None)
        if found is not None and found["is_reachable"] and not is_forced:
            heard = (
                f"{name} answers (heard {duration(found['heartbeat_age_seconds'])} ago) and holds {found['held_by_count']} of our messages"
            )
            if not sys.stdin.isatty():
                stop(f"{heard}: they might be delivered twice. Stop it first, or give --force", ExitCode.FAILED)
            is_forced = typer.confirm(visible(f"{heard}: they might be delivered twice. Forget it all the same?"), abort=True)
        with asked_nodes(node, token_file, config) as nodes:
            warn(nodes, name.lower())
        answer = client.forget_peer(name, is_forced=is_forced)
    if as_json:
        print_json(answer)
    else:
        say(f"{answer['name']} is marked as gone for good")


def show_pressure(node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show back pressure. What is refused or delayed now, and the use of each resource with its thresholds."""
    with asked_node(node, token_file, config) as client:
        found = client.pressure()
    if as_json:
        print_json(found)
        return
    columns = ("Resource", "#Use", "Unit", "Level", "#Samples", "#Medium above", "#High above", "#Medium again", "#Normal again", "Detail")
    names = ("low_to_medium", "medium_to_high", "high_to_medium", "medium_to_low", "detail")
    table = [
        (
            *(row[name] for name in ("resource", "use", "unit", "level")),
            f"{row['samples_count']}/{row['history_depth']}",
            *(row[name] for name in names),
        )
        for row in found["resources"]
    ]
    print_table(columns, table, "nothing is measured: enable_resource_monitoring is off")
    say(f"{found['level']}: {found['effect']}")
    for reason in found["reasons"]:
        say(reason)


def _named(queues: list[dict[str, Any]], identity: str) -> dict[str, Any]:
    """The queue with this name. Ends the command if there is none."""
    for row in queues:
        if identity in _names_of(row):
            return row
    stop(f"no such queue: {identity}; there are {', '.join(row['identity'] for row in queues)}", ExitCode.FAILED)


def _require_queue(client: "NodeClient", identity: str) -> None:
    """Shadow queues of a peer, and what was handed over, are listed only while something is in them."""
    parts = identity.split("\\")
    is_of_peer = HELD_FOR_OTHERS in parts[:2] and any(peer["name"] in parts for peer in client.peers())
    if not is_of_peer and parts[-1] != HANDED_OVER:
        _named(client.queues(), identity)


def _is_tried(row: dict[str, Any]) -> bool:
    return row["kind"] in (*WAITING, HELD_FOR_OTHERS) and row.get("suspended_since") is None


def _only_one(what: str, *given: object) -> None:
    """Require exactly one selection, so that no command applies to everything by mistake."""
    if sum(map(bool, given)) != 1:
        raise typer.BadParameter("say in one way which: by name, or by an option", param_hint=what)


@contextmanager
def _chosen(
    message_ids: list[str] | None, filter_text: str, node: str | None, token_file: Path | None, config: Path | None
) -> Iterator[tuple["NodeClient", list[str]]]:
    """A client, and the messages that are named; or those of all queues but Safety Net that satisfy the filter, and for which this node
    is responsible."""
    _only_one("MESSAGE_IDS", message_ids, filter_text)
    with asked_node(node, token_file, config) as client:
        found = [] if message_ids else client.messages("", ALL_MAX, 0, filter_text)
        yield client, message_ids or [row["message_id"] for row in found if row["role"] in DELIVERED_HERE]


def _caller() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:128]


def _names_of(queue: dict[str, Any]) -> tuple[str, ...]:
    """The queue's identity, with and without the server; of `Shadow\\N` also with the name of its primary server."""
    identity: str = queue["identity"]
    server, _, name = identity.partition("\\")
    by_primary = f"{HELD_FOR_OTHERS}\\{queue['next_hop']}"
    is_of_forks = identity.endswith(f"\\{queue.get('primary')}\\{queue['next_hop']}")  # missing in the API of older nodes
    others = (by_primary, f"{server}\\{by_primary}") if queue["kind"] == HELD_FOR_OTHERS and not is_of_forks else ()
    return identity, name, *others


def _one_by_one(names: list[str], do: Callable[[str], dict[str, Any]], done: str, as_json: bool, key: str = "message_id") -> None:
    """Process each name separately, in order: a refusal does not stop the others, but makes the exit code 1."""
    from shadowrelay.admin.api_client import NodeError

    answers = []
    refused_count = 0
    for name in names:
        try:
            answers.append(do(name))
        except NodeError as exc:
            if exc.status not in REFUSED:
                raise
            refused_count += 1
            answers.append({key: name, "error": str(exc)})
        if not as_json:
            say(f"{name}: {answers[-1].get('error', done)}")
    if as_json:
        print_json(answers)
    else:
        say(f"{len(answers) - refused_count} {done}" + (f", {refused_count} refused" if refused_count else ""))
    if refused_count:
        raise typer.Exit(ExitCode.FAILED)


def _print_part(columns: tuple[str, ...], keys: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    if rows:
        say("")
        print_table(columns, [tuple(_shown(row[key]) for key in keys) for row in rows], "")


def sentences_about(message: dict[str, Any]) -> list[str]:
    """What an operator asks first: who delivers it, how far that is, and whether another server has a copy."""
    done, count = message["done_count"], message["recipients_count"]
    left = f"{count - done} of {counted(count, 'recipient')} left"
    said = {
        "primary": f"This server delivers it: {left}.",
        "shadow": f"A copy for {message['primary']}, which delivers it: {left}.",
        "delivered": _delivered(message, f"{done} of {counted(count, 'recipient')} done"),
        "released": "It was refused, or another server is responsible for it; nothing is kept here.",
        "set-aside": f"It was set aside and is not delivered: {message['set_aside_reason']}.",
        "handed-over": "It was handed over to its shadow server, which takes it over.",
    }
    found = [said.get(message["role"], f"Its role here is {message['role']}.")]
    if message.get("missing_copies_count"):  # missing in the API of older nodes
        holds = f"only {message['shadow']} has" if message["shadow"] else "no other server has"
        lost = "" if message["shadow"] else ", and it is lost with this server's disk"
        found.append(f"{holds.capitalize()} a copy{lost}: {message['missing_copies_count']} more to be made as soon as a peer takes it.")
    if message.get("told_after"):
        waits = " and ".join(message["told_after"])
        found.append(f"No other server hears what is done before {waits}, which was made of it, has its copies or is done.")
    if message["role"] == "shadow":
        found.append(f"Why it is still here, {message['primary']} knows: shadowrelay messages trace {message['message_id']}")
    if message.get("waits_for") and not message.get("suspended_since"):
        found.append(f"Now: {message['waits_for']}.")
    if message.get("suspended_since"):
        found.append(f"Suspended by {message['suspended_by']}: nothing is attempted until `messages resume`.")
    return found


def _delivered(message: dict[str, Any], done: str) -> str:
    """By which server, and when; for another server, the time at which this node learned of it."""
    at = f" at {clock(message['delivered_at'])} UTC" if message.get("delivered_at") else ""
    if message["primary"] and message["origin"] == "shadow":
        return f"Delivered by {message['primary']}, for which this server held a copy; it said so{at}."
    if message["primary"]:
        return f"Delivered by {message['primary']} after it took the message over from this server, which learned that{at}."
    taken_over = f" after takeover from {message['promoted_from']}" if message.get("promoted_from") else ""
    return f"Delivered by this server{taken_over}{at}: {done}." if at else f"Ended by this server{taken_over}, without a delivery: {done}."


LABELS = {"deaths_count": "deaths of the node", "is_decided": "is accepted", "number": "number of this copy"}
FACTS = {
    "Message": (
        "message_id", "internal_id", "internet_message_id", "subject", "sender", "size", "arrived_at", "client_address",
        "client_name", "original_client", "connector",
        "origin", "resubmitted_from", "sha256",
    ),
    "Delivery": (
        "role", "status", "recipients_count", "done_count", "due_at", "last_reply", "delivered_at", "keep_until", "set_aside_reason",
        "deaths_count", "suspended_since", "suspended_by", "is_decided",
    ),
    "Copies": (
        "primary", "primary_database", "shadow", "missing_copies_count", "number", "is_promoted", "promoted_from",
        "is_handed_over", "asked",
    ),
}  # fmt: skip


def _print_facts(group: str, facts: list[tuple[str, object]]) -> None:
    if facts:
        say("")
        print_table((group, ""), facts, "")


def _shown(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value)
    if isinstance(value, dict):
        return " ".join(f"{name}={entry}" for name, entry in value.items())
    return value
