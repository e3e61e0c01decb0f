"""The command `clients`: who talks to a node, and whom its limits refuse. docs/reference.md "Limits for each client"."""

from typing import Annotated

import typer

from shadowrelay.cli.output import AsJson, Config, Node, TokenFile, asked_node, print_json, print_table, say
from shadowrelay.cluster.words import duration
from shadowrelay.model.setting_texts import rounded_size

clients = typer.Typer(no_args_is_help=True, help="Clients of a node.")


@clients.command("list")
def list_clients(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of clients.")] = 100,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List clients: those who were refused most for their limits first. Without [receive_connectors.limits] only their open sessions are
    known."""
    with asked_node(node, token_file, config) as client:
        rows = client.clients(limit)
    if as_json:
        print_json(rows)
        return
    columns = (
        "Client", "Connector", "#Sessions", "#Connections", "#Messages", "#Recipients", "#Wrong recipients", "#Content", "#Refused",
        "#Minute ends in",
    )  # fmt: skip
    table = [
        (
            *(row[key] for key in ("client", "connector", "sessions_count", "connections", "messages", "recipients", "refused_recipients")),
            rounded_size(row["octets"]),
            row["limited_count"],
            duration(row["seconds_left"]),
        )
        for row in rows
    ]
    print_table(columns, table, "no clients now")
    if len(rows) == limit:
        say("there may be more: raise --limit")
