"""`queue list`, `messages list|show`, `peers list|forget`: what a running node says of itself."""

from typing import Annotated, Any

import typer

from shadowrelay.cli.node_options import AsJson, Config, Node, TokenFile, asked_node
from shadowrelay.cli.output import age, duration, print_json, print_table

HELD_FOR_OTHERS = "Shadow"
WAITING = ("Submission", "Delivery")

queue = typer.Typer(no_args_is_help=True, help="Queues of a node.")
messages = typer.Typer(no_args_is_help=True, help="Messages of a node.")
peers = typer.Typer(no_args_is_help=True, help="Peers of a node.")


@queue.command("list")
def list_queues(node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """All queues, with depth and oldest age. Shadow queues are copies held for others, no backlog."""
    with asked_node(node, token_file, config) as client:
        rows = client.queues()
    if as_json:
        print_json(rows)
        return
    columns = ("Identity", "Kind", "Next hop", "#Count", "#Oldest", "#Next retry", "Last error")
    names = ("identity", "kind", "next_hop", "count")
    table = [(*(row[name] for name in names), age(row["oldest_at"]), age(row["next_retry_at"]), row["last_error"]) for row in rows]
    print_table(columns, table, "no queues")
    waiting = sum(row["count"] for row in rows if row["kind"] in WAITING)
    held = sum(row["count"] for row in rows if row["kind"] == HELD_FOR_OTHERS)
    typer.echo(f"{waiting} to deliver, {held} held for others")


@messages.command("list")
def list_messages(
    in_queue: Annotated[str, typer.Option("--queue", help="Identity of a queue, as `queue list` shows it.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=250_000, help="At most so many.")] = 100,
    after: Annotated[int, typer.Option("--after", min=0, help="Only those with a higher number (first column).")] = 0,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Messages, oldest first."""
    with asked_node(node, token_file, config) as client:
        rows = client.messages(in_queue, limit, after)
    if as_json:
        print_json(rows)
        return
    columns = ("#No", "Message id", "Role", "Sender", "#Done", "#Size", "#Age", "Primary", "Shadow", "Last reply")
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
            row["last_reply"],
        )
        for row in rows
    ]
    print_table(columns, table, "no messages")
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
    """Everything that explains why a message is where it is."""
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


@peers.command("list")
def list_peers(node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """Peers: who answers, who holds copies for whom, how long the lease still runs."""
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
    )
    table = [
        (
            *(row[name] for name in ("name", "site", "boundary", "address", "is_reachable")),
            duration(row["heartbeat_age_seconds"]),
            duration(row["lease_seconds"]),
            *(row[name] for name in ("breaker", "held_for_count", "held_by_count", "is_forgotten")),
        )
        for row in rows
    ]
    print_table(columns, table, "no peers")


@peers.command("forget")
def forget_peer(
    name: Annotated[str, typer.Argument(help="Its [server] name.")],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Tell a node that a peer will not come back. Only when its disk is gone for good: see docs/operations.md."""
    with asked_node(node, token_file, config) as client:
        answer = client.forget_peer(name)
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"{answer['name']} is no longer waited for")


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
