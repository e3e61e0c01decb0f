"""`messages find`: searches all nodes for messages that match the options, newest first. docs/reference.md "Find a message"."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from shadowrelay.cli.nodes import asked_nodes, name_missing
from shadowrelay.cli.output import AsJson, Config, ExitCode, Node, TokenFile, print_json, print_table, say, stop, visible
from shadowrelay.cluster import lookup
from shadowrelay.cluster.answers import NodeAnswer, missing
from shadowrelay.cluster.lookup import STATUSES, SearchError, detail, merged, recipients, standing
from shadowrelay.cluster.words import age

Json = dict[str, Any]


def find(
    to: Annotated[str, typer.Option("--to", help="Text of a recipient; * stands for any characters.")] = "",
    sender: Annotated[str, typer.Option("--from", help="Text of the sender; <> for mail without one.")] = "",
    subject: Annotated[str, typer.Option("--subject", help="Text of the subject.")] = "",
    since: Annotated[str, typer.Option("--since", help="Accepted since then: 2h, or 2026-11-22T10:00 (UTC).")] = "",
    message_id: Annotated[str, typer.Option("--id", help="Network message id or its first characters, or the Message-ID.")] = "",
    status: Annotated[str, typer.Option("--status", help=f"One of {', '.join(STATUSES)}.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=250_000, help="Maximum number of messages.")] = 100,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Find messages on all nodes, newest first, delivered ones included."""
    filter_text = filter_of(to=to, sender=sender, subject=subject, since=since, message_id=message_id, status=status)
    with asked_nodes(node, token_file, config) as nodes:
        answers = nodes.ask(lambda client: client.search(filter_text, limit))
    found = merged(answers)
    if as_json:
        print_json({"messages": found[:limit], "missing": missing(answers)})
    else:
        print_messages(found[:limit], "no messages", where=True)
        if len(found) >= limit:
            say(f"only the newest {limit}; give more options, or --limit")
        name_missing(answers)
    if not found:
        raise typer.Exit(ExitCode.FAILED)


def filter_of(*, to: str = "", sender: str = "", subject: str = "", since: str = "", message_id: str = "", status: str = "") -> str:
    """As `lookup.filter_of`. Raises: typer.BadParameter instead."""
    try:
        return lookup.filter_of(to=to, sender=sender, subject=subject, since=since, message_id=message_id, status=status)
    except SearchError as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from error


def resolved(answers: Sequence[NodeAnswer], text: str) -> str:
    """The one network message id that nodes found for this text, the first of a message that was relayed by TRACK. Ends the command if
    there is none, or several."""
    found = merged(answers)
    ids = {row["message_id"] for row in found}
    found = [row for row in found if row.get("relayed_from", "") not in ids]
    if not found:
        name_missing(answers)
        stop(f"no node knows a message {text}", ExitCode.FAILED)
    if len(found) > 1:
        several = "\n".join(visible(f"{row['message_id']}  {row['subject']}") for row in found[:10])
        stop(f"{text} fits {len(found)} messages:\n{several}", ExitCode.FAILED)
    return str(found[0]["message_id"])


# ---- how a message is shown


def print_messages(rows: Sequence[Json], empty: str, *, where: bool = False, now: datetime | None = None) -> None:
    """`where`: which nodes know them."""
    now = now or datetime.now(UTC)
    columns = ("Message id", "#Age", "Status", "From", "To", "Subject", *(["Known to"] if where else []), "Remark")
    cells = [
        (
            row["message_id"],
            age(row["arrived_at"], now),
            standing(row),
            row["sender"] or "<>",
            recipients(row),
            row["subject"],
            *([", ".join(f"{one['node']} ({one['role']})" for one in row["nodes"])] if where else []),
            detail(row),
        )
        for row in rows
    ]
    print_table(columns, cells, empty)
