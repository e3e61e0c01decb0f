"""Commands on Safety Net: resubmit what was delivered, and look after such requests. docs/reference.md "Commands"."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from shadowrelay.cli.output import (
    AsJson,
    Config,
    Node,
    TokenFile,
    asked_node,
    print_json,
    print_table,
    say,
)
from shadowrelay.cluster.words import age

safety_net = typer.Typer(help="Delivered messages, which can be delivered again.", no_args_is_help=True)

_COUNTED = ("examined", "resubmitted", "redundant", "outside", "missing", "elsewhere")
_CRITERIA = ("primary_server", "next_hop", "sender", "recipient", "message_id")
Number = Annotated[int, typer.Argument(min=1, help="Number of a request from `safety-net list`.")]


def _instant(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text} is no time: write 2026-11-22T14:30Z") from None
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).isoformat()


@safety_net.command("resubmit")
def resubmit(
    begin: Annotated[str, typer.Option("--from", parser=_instant, metavar="TIME", help="Delivered then or later. UTC without an offset.")],
    end: Annotated[str, typer.Option("--to", parser=_instant, metavar="TIME", help="Delivered then or earlier; in the past.")],
    next_hop: Annotated[str, typer.Option("--next-hop", help="Delivered to this next hop, as `queue list` and TRANSFER name it.")] = "",
    sender: Annotated[str, typer.Option("--sender", help="From this address; <> for mail without a sender.")] = "",
    recipient: Annotated[str, typer.Option("--recipient", help="Only to this recipient.")] = "",
    message: Annotated[str, typer.Option("--message", help="Only this message: network message id, or Message-ID with its <>.")] = "",
    primary_server: Annotated[str, typer.Option("--primary", help="What this lost node delivered; its shadow servers have it.")] = "",
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Deliver again what was delivered between two times. Only what this node delivered inside the boundary. Recipients get it a second
    time, no sender a DSN."""
    criteria = {"next_hop": next_hop, "sender": sender, "recipient": recipient, "message_id": message, "primary_server": primary_server}
    with asked_node(node, token_file, config) as client:
        request = client.resubmit(begin, end, **criteria)
    if as_json:
        print_json(request)
    else:
        say(f"request {request['number']} is {request['state']}: `shadowrelay safety-net show {request['number']}`")


@safety_net.command("list")
def list_requests(node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """List the resubmit requests."""
    with asked_node(node, token_file, config) as client:
        rows = client.resubmit_requests()
    if as_json:
        print_json(rows)
        return
    columns = ("#No", "State", "#Age", "From", "To", "Only", *[f"#{name.capitalize()}" for name in _COUNTED])
    table = [
        (
            *(row["number"], row["state"], age(row["created_at"]), row["from_at"], row["to_at"], _only(row)),
            *[row[f"{name}_count"] for name in _COUNTED],
        )
        for row in rows
    ]
    print_table(columns, table, "no requests")


@safety_net.command("show")
def show_request(number: Number, node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show one request."""
    with asked_node(node, token_file, config) as client:
        request = client.resubmit_request(number)
    if as_json:
        print_json(request)
    else:
        print_table(("Field", "Value"), [(name.replace("_", " "), value) for name, value in request.items()], "")


@safety_net.command("disable")
def disable_request(
    number: Number, node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False
) -> None:
    """Stop a request. What it has resubmitted is delivered."""
    with asked_node(node, token_file, config) as client:
        _print_changed(client.change_request(number, "disable"), "disabled", as_json)


@safety_net.command("enable")
def enable_request(number: Number, node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """Go on with a disabled request, where it had come to."""
    with asked_node(node, token_file, config) as client:
        _print_changed(client.change_request(number, "enable"), "enabled", as_json)


@safety_net.command("remove")
def remove_request(number: Number, node: Node = None, token_file: TokenFile = None, config: Config = None, as_json: AsJson = False) -> None:
    """Forget a request that is done or disabled. What it has resubmitted stays."""
    with asked_node(node, token_file, config) as client:
        _print_changed(client.change_request(number, "remove"), "removed", as_json)


def _print_changed(answer: dict[str, Any], done: str, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        say(f"request {answer['number']} is {done}")


def _only(row: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in _CRITERIA if row[name])
