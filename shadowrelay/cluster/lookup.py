"""Searches of all nodes: what is looked for as a filter, and what they found as one list. docs/reference.md "Find a message"."""

import re
from collections.abc import Sequence
from typing import Any

from shadowrelay.cluster.answers import NodeAnswer

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
BEGINNING = re.compile(r"[0-9a-f-]{4,36}", re.IGNORECASE)
QueueId = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{4,127}")  # of another server: Postfix, Exim, Exchange
_DURATION = re.compile(r"(\d+(\.\d+)?(ms|[smhdw]))+")


class SearchError(ValueError):
    """What is looked for cannot be understood; `option` is that of `messages find`."""

    def __init__(self, text: str, option: str) -> None:
        super().__init__(text)
        self.option = option


def filter_of(*, to: str = "", sender: str = "", subject: str = "", since: str = "", message_id: str = "", status: str = "") -> str:
    """The options as one filter. Raises: SearchError if there is none, or one that cannot be understood."""
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
            raise SearchError(f"{status!r} is none of {', '.join(STATUSES)}", "--status")
        parts.append(STATUSES[status])
    if not parts:
        raise SearchError("say what to look for; `messages list` shows what waits", "--to, --from, --subject, --id …")
    return " -and ".join(parts)


def _filter_of_id(text: str) -> str:
    """Of a network message id, or what it begins with; else of a Message-ID, with or without its <>."""
    if BEGINNING.fullmatch(text):
        return f"NetworkMessageId -like {_quoted(f'{text.lower()}*')}"
    if "@" not in text and not text.startswith("<"):
        raise SearchError(f"{text!r} is neither a Message-ID, with its @, nor at least 4 characters of a network message id", "ID")
    return f"InternetMessageId -like {_pattern(text)}"


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
