"""What to do first about an incident, and on which server. docs/sla.md, 4, "Incidents".

Before anybody writes to a sender, somebody looks where the message may still be: in the queues of the server that had it last. The commands
are those of that server's own system: Exchange's, or ours.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from shadowrelay.sla.objectives import COPIES_GONE, NOT_TAKEN_OVER, WEAK

Line = Mapping[str, Any]
STILL_QUEUED, SET_ASIDE = "still queued", "set aside"
COLLECT = "Collect the rest of the logs before you write to anybody"


def is_exchange(summary: Line, server: str) -> bool:
    """Whether the server's log is of Exchange; of one without a log: whether all logs are."""
    formats = {one["name"]: one["format"] for one in summary["input"]["servers"]}
    known = [formats[server]] if formats.get(server) else [each for each in formats.values() if each]
    return bool(known) and all(each.startswith("exchange") for each in known)


def of_loss(summary: Line, cause: str, message: str, server: str, holders: Sequence[str], acknowledged_at: str) -> str:
    """Shapes: `holders` are servers on which a copy may still be."""
    if cause in WEAK:
        return COLLECT
    if holders and cause in (COPIES_GONE, NOT_TAKEN_OVER):
        found = f"Look for its copy on {_and(holders)} ({_search(summary, message, holders[0])}): what is there can still be delivered"
        return found + _but(summary, holders, acknowledged_at)
    also = f"; a copy may be on {_and(holders)}, too{_but(summary, holders, acknowledged_at)}" if holders else ""
    emptied = "" if cause == COPIES_GONE else _but(summary, (server,), acknowledged_at)
    return _at_its_server(summary, cause, message, server) + emptied + also


def _at_its_server(summary: Line, cause: str, message: str, server: str) -> str:
    if cause == COPIES_GONE:
        return f"If the disk of {server} can be read, look there for the message"
    if is_exchange(summary, server):
        poison = f"{server}\\Poison"
        if cause == SET_ASIDE:
            return f"Decide in {poison} (Get-Message -Queue {poison}): Resume-Message delivers it, Remove-Message returns it to the sender"
        if cause == STILL_QUEUED:
            return f"See whether {server} still has it (Get-Message -Server {server}), and why it waits; Retry-Queue tries again at once"
        return f"Look for it in the queues of {server}, {poison} among them (Get-Message -Server {server})"
    if cause == SET_ASIDE:
        return (
            f"Decide on {server} (shadowrelay messages list --queue Poison has the reason): "
            "messages release delivers it, messages remove tells the sender"
        )
    if cause == STILL_QUEUED:
        return f"See whether {server} still has it (shadowrelay queue list), and why it waits; shadowrelay queue retry tries again at once"
    return f"Look for it on all servers, {server} first ({_search(summary, message, server)})"


def _but(summary: Line, servers: Sequence[str], since: str) -> str:
    """Which of them have lost their database since: what they had went with it, unless the old disk is there."""
    begin = datetime.fromisoformat(since)
    emptied = {
        one["old_primary"]
        for one in summary["takeovers"]
        if one["reason"].startswith("Database") and datetime.fromisoformat(one["first_resubmit_at"]) > begin
    }
    lost = [name for name in servers if name in emptied]
    if len(lost) > 1:
        return f" (but {_and(lost)} lost their databases later: only their old disks may have it)"
    return f" (but {lost[0]} lost its database later: only its old disk may have it)" if lost else ""


def of_open_exposure(summary: Line, servers: Sequence[str], since: str) -> str:
    """Mail that one more lost server would lose. `since`: when the first of it began to depend on one."""
    named = _and(servers[:3])
    others = f" and {len(servers) - 3:,} more" if len(servers) > 3 else ""
    how = f"Get-Message -Server {servers[0]}" if is_exchange(summary, servers[0]) else "shadowrelay status; shadowrelay queue list"
    return f"Neither stop nor rebuild {named}{others} until that is delivered, and see why it waits ({how}){_but(summary, servers, since)}"


def _search(summary: Line, message: str, server: str) -> str:
    return f"Get-Message -Server {server}" if is_exchange(summary, server) else f"shadowrelay messages find --id {message}"


def _and(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]
