"""The commands `queue`, `messages` and `peers`: ask a running node. docs/operations.md "Commands"."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from shadowrelay.cli.output import AsJson, Config, ExitCode, Node, TokenFile, age, asked_node, duration, print_json, print_table, stop

HELD_FOR_OTHERS = "Shadow"
SET_ASIDE = "Poison"
ALL_MAX = 1_000_000
REFUSED = (400, 404, 409)  # HTTP statuses that concern one message; any other concerns the node
WAITING = ("Submission", "Delivery")

queue = typer.Typer(no_args_is_help=True, help="Queues of a node.")
messages = typer.Typer(no_args_is_help=True, help="Messages of a node.")
peers = typer.Typer(no_args_is_help=True, help="Peers of a node.")


@queue.command("list")
def list_queues(node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """List all queues with depth and oldest age. Shadow queues hold copies for other nodes and are not a backlog."""
    with asked_node(node, token_file, config) as client:
        rows = client.queues()
    if as_json:
        print_json(rows)
        return
    columns = ("Identity", "Kind", "Next hop", "#Count", "#Octets", "#Oldest", "#Next retry", "Last error")
    names = ("identity", "kind", "next_hop", "count", "octets")
    table = [(*(row[name] for name in names), age(row["oldest_at"]), age(row["next_retry_at"]), row["last_error"]) for row in rows]
    print_table(columns, table, "no queues")
    waiting = sum(row["count"] for row in rows if row["kind"] in WAITING)
    held = sum(row["count"] for row in rows if row["kind"] == HELD_FOR_OTHERS)
    typer.echo(f"{waiting} to deliver, {held} held for others")


@queue.command("show")
def show_queue(
    identity: Annotated[str, typer.Argument(help="Identity from `queue list`, with or without the server.")],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show one queue. In Retry: since when, why, and until when."""
    with asked_node(node, token_file, config) as client:
        rows = client.queues()
    found = [row for row in rows if identity in _names_of(row)]
    if not found:
        stop(f"no such queue: {identity}; there are {', '.join(row['identity'] for row in rows)}", ExitCode.FAILED)
    if as_json:
        print_json(found[0])
        return
    print_table(("Field", "Value"), [(name.replace("_", " "), value) for name, value in found[0].items()], "")


@queue.command("retry")
def retry_queues(
    identities: Annotated[list[str] | None, typer.Argument(help="Identities from `queue list`, with or without the server.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every queue with messages that wait for an attempt.")] = False,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Retry now: probe the next hop and deliver deferred messages; for a Shadow queue, poll its primary server for discard
    notifications."""
    if bool(identities) is is_all:
        raise typer.BadParameter("give queue identities, or --all", param_hint="IDENTITIES")
    with asked_node(node, token_file, config) as client:
        names = identities or [row["identity"] for row in client.queues() if row["kind"] in (*WAITING, HELD_FOR_OTHERS)]
        _one_by_one(names, client.retry_queue, "retried", as_json, "identity")


@messages.command("list")
def list_messages(
    in_queue: Annotated[str, typer.Option("--queue", help="Queue identity from `queue list`. Default: all queues except Safety Net.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=250_000, help="Maximum number of messages.")] = 100,
    after: Annotated[
        int, typer.Option("--after", min=0, help="Start after this internal id (first column), the last one of the previous page.")
    ] = 0,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List messages, oldest first."""
    with asked_node(node, token_file, config) as client:
        rows = client.messages(in_queue, limit, after)
        queues = client.queues() if in_queue and not rows and not as_json else []
    if as_json:
        print_json(rows)
        return
    columns = ("#No", "Message id", "Role", "Sender", "#Done", "#Size", "#Age", "Primary", "Shadow", "Last reply, or why it is set aside")
    table = [
        (
            row["internal_id"],
            row["message_id"],
            row["role"],
            row["sender"] or "<>",
            f"{row['done_count']}/{row['recipients_count']}",
            row["size"],
            age(row["arrived_at"]),
            row["primary"],
            row["shadow"],
            row["set_aside_reason"] or row["last_reply"],
        )
        for row in rows
    ]
    none = "no messages"
    if queues and not any(in_queue in _names_of(row) for row in queues):
        none += f": of the queues {', '.join(row['identity'] for row in queues)} none is {in_queue}"
    print_table(columns, table, none)
    if len(rows) == limit:
        typer.echo(f"there may be more: --after {rows[-1]['internal_id']}")


@messages.command("show")
def show_message(
    message_id: Annotated[str, typer.Argument(help="Network message id: the one in `250 2.0.0 Queued as …`.")],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show everything about one message: role, copies, retries, replies."""
    with asked_node(node, token_file, config) as client:
        message = client.message(message_id)
    if as_json:
        print_json(message)
        return
    lists = ("recipients", "copies", "retries")
    plain = [(name.replace("_", " "), _shown(value)) for name, value in message.items() if name not in lists]
    print_table(("Field", "Value"), plain, "")
    columns = ("#No", "Recipient", "Done", "Notify", "Orcpt")
    keys = ("ordinal", "address", "is_done", "notify", "orcpt")
    _print_part(columns, keys, message["recipients"])
    _print_part(("Copy on", "Database", "Choice"), ("server", "database", "choice"), message["copies"])
    columns = ("Waits for", "Recipients", "#Failures", "Next attempt", "Last reply")
    _print_part(columns, ("next_hop", "ordinals", "failures_count", "attempts_next_at", "last_reply"), message["retries"])


@messages.command("release")
def release_messages(
    message_ids: Annotated[list[str] | None, typer.Argument(help="Network message ids.")] = None,
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


@messages.command("remove")
def remove_messages(
    message_ids: Annotated[list[str], typer.Argument(help="Network message ids.")],
    with_dsn: Annotated[bool, typer.Option("--dsn/--no-dsn", help="Whether to send the sender a DSN.")] = True,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Remove messages that were set aside: they are not delivered, and the sender gets a DSN unless --no-dsn is given."""
    with asked_node(node, token_file, config) as client:
        _one_by_one(message_ids, lambda message_id: client.remove_message(message_id, with_dsn=with_dsn), "removed", as_json)


@messages.command("export")
def export_message(
    message_id: Annotated[str, typer.Argument(help="Network message id.")],
    output: Annotated[Path, typer.Option("--output", help="New file (.eml).")],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Write a message as it would be delivered, header and body, to a new file."""
    if output.exists():
        raise typer.BadParameter(f"{output} exists; choose a new file", param_hint="--output")
    part = output.with_name(f"{output.name}.{secrets.token_hex(8)}.part")  # a name that no other process uses
    with asked_node(node, token_file, config) as client:
        try:
            with part.open("xb") as file:
                size = client.export_message(message_id, file)
            part.rename(output)
        except OSError as exc:
            stop(f"{output} cannot be written: {exc.strerror or exc}", ExitCode.USAGE)
        finally:
            part.unlink(missing_ok=True)
    if as_json:
        print_json({"message_id": message_id, "file": str(output), "size": size})
    else:
        typer.echo(f"{message_id}: {size} octets in {output}")


@peers.command("list")
def list_peers(node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """List peers: reachability, copies held in each direction, remaining lease."""
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
        "Reachable",
        "#Heard",
        "#Lease",
        "Breaker",
        "#Held for it",
        "#Held by it",
        "Forgotten",
        "Why refused, or refusing",
    )
    table = [
        (
            *(row[name] for name in ("name", "site", "boundary", "address", "is_reachable")),
            duration(row["heartbeat_age_seconds"]),
            duration(row["lease_seconds"]),
            *(row[name] for name in ("breaker", "held_for_count", "held_by_count", "is_forgotten")),
            row.get("conflict") or row.get("refusal", ""),  # missing in the API of older nodes
        )
        for row in rows
    ]
    print_table(columns, table, "no peers")


@peers.command("forget")
def forget_peer(
    name: Annotated[str, typer.Argument(help="The peer's name from `peers list`.")],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Mark a peer as gone for good. Only if its disk is destroyed: see docs/operations.md."""
    with asked_node(node, token_file, config) as client:
        answer = client.forget_peer(name)
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"{answer['name']} is marked as gone for good")


def _names_of(queue: dict[str, Any]) -> tuple[str, str]:
    """The queue's identity, with and without the server."""
    identity: str = queue["identity"]
    return identity, identity.partition("\\")[2]


def _one_by_one(names: list[str], do: Callable[[str], dict[str, Any]], done: str, as_json: bool, key: str = "message_id") -> None:
    """Process each name separately, in order: a refusal does not stop the others, but makes the exit code 1."""
    from shadowrelay.admin.client import NodeError

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
            typer.echo(f"{name}: {answers[-1].get('error', done)}")
    if as_json:
        print_json(answers)
    else:
        typer.echo(f"{len(answers) - refused_count} {done}" + (f", {refused_count} refused" if refused_count else ""))
    if refused_count:
        raise typer.Exit(ExitCode.FAILED)


def _print_part(columns: tuple[str, ...], keys: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    if rows:
        typer.echo()
        print_table(columns, [tuple(_shown(row[key]) for key in keys) for row in rows], "")


def _shown(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value)
    if isinstance(value, dict):
        return " ".join(f"{name}={entry}" for name, entry in value.items())
    return value
