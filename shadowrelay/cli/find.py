"""`messages find`: searches all nodes for messages that match the options, newest first. docs/operations.md "Find a message"."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from shadowrelay.cli.nodes import NodeAnswer, asked_nodes, missing, name_missing
from shadowrelay.cli.output import AsJson, Config, ExitCode, Node, TokenFile, age, print_json, print_table, say, stop, visible

Json = dict[str, Any]

STATUSES = {  # what `--status` takes, as a filter
    "waiting": "Role -eq primary",
    "retry": "Role -eq primary -and Status -eq Retry",
    "suspended": "Role -eq primary -and Status -eq Suspended",
    "set-aside": "Role -eq set-aside",
    "handed-over": "Role -eq handed-over",
    "copy": "Role -eq shadow",
    "delivered": "Role -eq delivered",
    "released": "Role -eq released",
}
RANKS = ("primary", "set-aside", "handed-over", "delivered", "shadow", "released")  # whose row tells most
NAMED_MAX = 3  # recipients

MessageId = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_BEGINNING = re.compile(r"[0-9a-f-]{4,36}", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(\.\d+)?(ms|[smhdw]))+")


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
    """The options as one filter. Raises: typer.BadParameter if there is none, or one that cannot be understood."""
    parts = []
    if message_id:
        parts.append(_filter_of_id(message_id))
    if sender:
        parts.append("FromAddress -eq $null" if sender == "<>" else f"FromAddress -like {_pattern(sender)}")
    if to:
        parts.append(f"Recipients -like {_pattern(to)}")
    if subject:
        parts.append(f"Subject -like {_pattern(subject)}")
    if since:
        name = "MessageLatency -le" if _DURATION.fullmatch(since.lower()) else "DateReceived -ge"
        parts.append(f"{name} {_quoted(since)}")
    if status:
        if status not in STATUSES:
            raise typer.BadParameter(f"{status!r} is none of {', '.join(STATUSES)}", param_hint="--status")
        parts.append(STATUSES[status])
    if not parts:
        raise typer.BadParameter("say what to look for; `messages list` shows what waits", param_hint="--to, --from, --subject, --id …")
    return " -and ".join(parts)


def _filter_of_id(text: str) -> str:
    """Of a network message id, or what it begins with; else of a Message-ID, with or without its <>."""
    if _BEGINNING.fullmatch(text):
        return f"NetworkMessageId -like {_quoted(f'{text.lower()}*')}"
    if "@" not in text and not text.startswith("<"):
        raise typer.BadParameter(
            f"{text!r} is neither a Message-ID, with its @, nor at least 4 characters of a network message id", param_hint="ID"
        )
    return f"InternetMessageId -like {_pattern(text)}"


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


def _pattern(text: str) -> str:
    return _quoted(text if "*" in text else f"*{text}*")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def merged(answers: Sequence[NodeAnswer]) -> list[Json]:
    """Each message once, newest first: the row that tells most, and `nodes`: which node is what to it."""
    by_id: dict[str, list[tuple[str, Json]]] = {}
    for answer in answers:
        for row in answer.said or ():
            by_id.setdefault(row["message_id"], []).append((answer.name, row))
    found = []
    for known in by_id.values():
        known.sort(key=lambda entry: (RANKS.index(entry[1]["role"]), not entry[1].get("delivered_at"), entry[1]["primary"], entry[0]))
        found.append(known[0][1] | {"nodes": [{"node": name, "role": row["role"]} for name, row in known]})
    return sorted(found, key=lambda row: (row["arrived_at"], row["message_id"]), reverse=True)


# ---- how a message is shown


def standing(row: Json) -> str:
    """What it is on this node, in a word or two."""
    if row["role"] == "primary":
        return {"Retry": "retry", "Suspended": "suspended"}.get(row.get("status", ""), "waits")
    if row["role"] == "delivered":
        return "delivered" if row.get("delivered_at") or row["primary"] else "done"
    return {"shadow": "copy", "set-aside": "set aside", "handed-over": "handed over"}.get(row["role"], str(row["role"]))


def detail(row: Json) -> str:
    """Why it is there, or who had it."""
    parts = [row["set_aside_reason"] or row["last_reply"]]
    if row["primary"]:
        taken_over = " after takeover" if row.get("origin", "shadow") != "shadow" else ""  # of a message that was accepted here
        parts.append(f"delivered by {row['primary']}{taken_over}" if row["role"] == "delivered" else f"of {row['primary']}")
    if row["role"] == "released":
        parts.append("not kept: it was refused, or another server has it")
    if row.get("promoted_from"):
        parts.append(f"taken over from {row['promoted_from']}")
    if row.get("relayed_from"):
        parts.append(f"relayed, was {row['relayed_from']}")
    if standing(row) == "done":
        parts.append("not delivered by this node: `messages trace` tells what became of it")
    return "; ".join(part for part in parts if part)


def recipients(row: Json) -> str:
    """The first few, how many more, and how many of them are done."""
    named = row.get("to", [])[:NAMED_MAX]
    more = row["recipients_count"] - len(named)
    text = ", ".join(named) + (f", +{more}" if named and more else f"{more} recipients" if more else "")
    return f"{text} ({row['done_count']}/{row['recipients_count']} done)" if 0 < row["done_count"] < row["recipients_count"] else text


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
