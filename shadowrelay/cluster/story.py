"""The story of one message, from the tracking logs of all nodes. docs/reference.md "Trace a message".

`sentence_of_hops` and `what` are functions of the nodes' answers: rows of their logs, each with the node that wrote it, and the state of
the message there.
"""

import json
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from shadowrelay.cluster.answers import NodeAnswer
from shadowrelay.cluster.words import clock, duration
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.tracking import KEPT_AS

if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient

Json = dict[str, Any]

SENT = ("SEND", "SENDEXTERNAL")
IDS_MAX = 50  # of one message at several hops
TAKEN_OVER = ("RESUBMIT", "REDUNDANCY")
TAKEN_OVER_BECAUSE = {
    "Silence": ", which was silent for the span",
    "DatabaseChanged": ", which came back with another queue database",
    "Handover": ", which handed it over",
}
OPEN_ROLES = ("primary", "set-aside", "handed-over")


@dataclass(frozen=True, slots=True)
class Story:
    """Shapes: `events` of all nodes in order, each with its `node`; `known`: what they know of the message, by its id at each
    hop, then by node; `answers`: the last ones, for who is missing."""

    events: list[Json]
    known: dict[str, dict[str, Json]]
    answers: Sequence[NodeAnswer]


def gathered(message_id: str, ask: Callable[[Callable[["NodeClient"], Any]], Sequence[NodeAnswer]]) -> Story:
    """What all nodes know about a message, and about what it is at its next hops. `ask` asks all of them a question."""
    known: dict[str, dict[str, Json]] = {}
    lines: dict[str, Json] = {}
    ids = [message_id]
    answers: Sequence[NodeAnswer] = ()
    while ids and len(known) < IDS_MAX:
        answers = ask(partial(_asked, ids[0]))
        found, known[ids[0]] = _of(answers)
        del ids[0]
        lines |= {json.dumps(row, sort_keys=True): row for row in found}
        ids += [other for other in _ids_at_other_hops(found) if other not in known and other not in ids]
    return Story(sorted(lines.values(), key=lambda row: datetime.fromisoformat(row["at"])), known, answers)


def _asked(message_id: str, client: "NodeClient") -> Json:
    return {"events": client.events(message_id), "message": _known(client, message_id)}


def _known(client: "NodeClient", message_id: str) -> Json | None:
    from shadowrelay.admin.api_client import NodeError

    try:
        return client.message(message_id)
    except NodeError as exc:
        if exc.status != 404:
            raise
        return None


def _of(answers: Sequence[NodeAnswer]) -> tuple[list[Json], dict[str, Json]]:
    """The rows of all logs in order, each with its node; and by node what it knows of the message."""
    events = [{"node": answer.name, **row} for answer in answers if answer.said for row in answer.said["events"]]
    messages = {answer.name: answer.said["message"] for answer in answers if answer.said and answer.said["message"]}
    return sorted(events, key=lambda row: datetime.fromisoformat(row["at"])), messages


def _ids_at_other_hops(events: Sequence[Json]) -> list[str]:
    """Under which the next hops know what was relayed to them by TRACK, and under which the previous hops did."""
    kept = [row["context"].removeprefix(KEPT_AS) for row in events if row["event"] in SENT and row["context"].startswith(KEPT_AS)]
    taken = [row for row in events if row["event"] == "RECEIVE" and "ShadowAt" in row["custom_data"]]
    kept += [row["network_message_id"] for row in taken]  # the only row about it if its reply was lost
    before = [row["reference"] for row in taken]
    before += [row["reference"] for row in events if row["event"] == "HADISCARD" and row["reference"]]
    return [each for each in dict.fromkeys([*kept, *before]) if each]


def sentence_of_hops(message_id: str, events: Sequence[Json], known: dict[str, dict[str, Json]], now: datetime) -> str:
    """Of the message, and then of it at each next hop to which it was relayed by TRACK."""
    parts = [sentence(message_id, events, known[message_id], now)]
    told, wanted = {message_id}, [message_id]
    while wanted:
        before = wanted.pop(0)
        own = [row for row in events if row["network_message_id"] == before and row["event"] in SENT]
        hops = [(row["server"], row["context"].removeprefix(KEPT_AS)) for row in own if row["context"].startswith(KEPT_AS)]
        taken = [row for row in events if row["event"] == "RECEIVE" and "ShadowAt" in row["custom_data"] and row["reference"] == before]
        for server, kept in [*hops, *((row["node"], row["network_message_id"]) for row in taken)]:
            if kept in known and kept not in told:
                told.add(kept)
                wanted.append(kept)
                parts.append(f"At {server} as {kept}: {sentence(kept, events, known[kept], now)}")
    return ". ".join(parts)


def sentence(message_id: str, events: Sequence[Json], messages: dict[str, Json], now: datetime) -> str:
    """What became of it, and what was special on the way."""
    own = [row for row in events if row["network_message_id"] == message_id]
    sent = [row for row in own if row["event"] in SENT]
    received = next((row for row in own if row["event"] == "RECEIVE"), None)
    to = _recipients(own, messages)
    deliveries = {one: [row for row in sent if one in row["recipients"]] for one in to}
    delivered = [one for one in to if deliveries[one]]
    refused = next((row for row in own if row["event"] == "HAREDIRECTFAIL"), None)
    # While a delayed acknowledgement waits, there is no RECEIVE row yet, but a node has the message.
    is_kept = any(message["role"] != "released" for message in messages.values())
    if received is None and refused is not None and not is_kept and not any(row["event"] in (*SENT, "FAIL", "RESUBMIT") for row in own):
        return f"Refused by {refused['node']} with 451, {clock(refused['at'], now)}, so its client keeps it: {refused['context']}"
    parts = [_outcome(own, messages, to, delivered, now)]
    twice = [one for one in to if len(deliveries[one]) > 1]
    if twice:
        parts.append(f"delivered more than once to {', '.join(twice)}")
    if received is not None and received["custom_data"].get("Replication", "Success") != "Success":
        parts.append(_without_copy(received, own, len(delivered) == len(to)))
    parts += [
        f"{name} tells no other server what is done before {' and '.join(message['told_after'])} has its copies or is done"
        for name, message in messages.items()
        if message.get("told_after")  # missing in the API of older nodes
    ]
    if received is None and events:
        parts.append("its acceptance is in none of these logs")
    return "; ".join(parts)


def _recipients(own: Sequence[Json], messages: dict[str, Json]) -> list[str]:
    """All of them, in their order as far as it is known."""
    lists = [[each["address"] for each in message["recipients"]] for message in messages.values()] + [row["recipients"] for row in own]
    longest: list[str] = max(lists, key=len, default=[])
    return list(dict.fromkeys([*longest, *(one for each in lists for one in each)]))


def _outcome(own: Sequence[Json], messages: dict[str, Json], to: Sequence[str], delivered: Sequence[str], now: datetime) -> str:
    sent = [row for row in own if row["event"] in SENT]
    failed = [row for row in own if row["event"] == "FAIL"]
    twin = next((row for row in own if row["event"] == "DUPLICATEDELIVER"), None)
    done = set(delivered) | {one for row in failed for one in row["recipients"]} | set(twin["recipients"] if twin else ())
    parts = []
    if sent:
        servers = dict.fromkeys(row["node"] for row in sent)
        by = " and ".join(servers)
        count = "" if len(delivered) == len(to) == 1 else f" to {_of_all(len(delivered), len(to))}"
        verb = "relayed" if all(row["context"].startswith(KEPT_AS) for row in sent) else "delivered"
        parts.append(f"{verb}{count} by {by}{_after_takeover(own, servers)}, {clock(sent[-1]['at'], now)}")
    if failed:
        names = list(dict.fromkeys(one for row in failed for one in row["recipients"]))
        reply = next((reply for row in reversed(failed) for reply in row["replies"] if reply), failed[-1]["context"])
        parts.append(f"failed{_for(names, to)} on {failed[-1]['node']}, {clock(failed[-1]['at'], now)}: {reply}")
    if twin is not None:
        parts.append(f"not delivered again{_for(twin['recipients'], to)}: {twin['context']}")
    left = [one for one in to if one not in done]
    if left or not parts:
        parts.append(_open(own, messages, left, to))
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def _of_all(count: int, of: int) -> str:
    return f"all {of} recipients" if count == of else f"{count} of {of} recipients"


def _for(names: Sequence[str], to: Sequence[str]) -> str:
    """Nothing where it is all of them."""
    return "" if len(set(names)) >= len(to) else f" for {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _after_takeover(own: Sequence[Json], servers: Collection[str]) -> str:
    lost = dict.fromkeys(row["reference"] for row in own if (row["event"], row["source"]) == TAKEN_OVER and row["node"] in servers)
    return f" after takeover from {' and '.join(lost)}" if lost else ""


def _open(own: Sequence[Json], messages: dict[str, Json], left: Sequence[str], to: Sequence[str]) -> str:
    """Who has it, and why it is still there."""
    here = next(((name, message) for name, message in messages.items() if message["role"] in OPEN_ROLES), None)
    copies = [name for name, message in messages.items() if message["role"] == "shadow"]
    deferred = next((row for row in reversed(own) if row["event"] == "DEFER"), None)
    why = next((reply for reply in (deferred or {"replies": ()})["replies"] if reply), "")
    if here is not None:
        name, message = here
        verb = {"set-aside": "is set aside", "handed-over": "was handed over"}.get(message["role"], "waits")
        if message.get("suspended_since"):
            verb = f"is suspended by {message['suspended_by']}"
        why = message["set_aside_reason"] or message["last_reply"] or why
        return f"{verb}{_for(left, to)} on {name}{_after_takeover(own, {name})}" + (f": {why}" if why else "")
    ended = next(((name, message) for name, message in messages.items() if message["role"] == "delivered"), None)
    if ended is not None:
        name, message = ended
        return f"done, says {name}, and was delivered by {message['primary']}" if message["primary"] else f"done on {name}"
    if copies:
        return f"not delivered as far as is known; {' and '.join(copies)} has a copy" + (f": {why}" if why else "")
    return "not delivered as far as is known" + (f": {why}" if why else "")


def _without_copy(received: Json, own: Sequence[Json], is_delivered: bool) -> str:
    begins = datetime.fromisoformat(received["at"])
    ends = [row for row in own if row["event"] == "HAREDIRECT" and datetime.fromisoformat(row["at"]) >= begins]
    if ends:
        return f"accepted without a copy for {duration_of(begins, ends[0]['at'])}"
    last = next((row for row in reversed(own) if row["event"] in SENT), None)
    if is_delivered and last is not None:
        return f"without a copy until it was delivered, {duration_of(begins, last['at'])} after it was accepted"
    return "accepted without a copy, and no copy was made since"


def duration_of(begins: datetime, ends: str) -> str:
    """Seconds with a space, as people write them; longer ones as everywhere."""
    seconds = (datetime.fromisoformat(ends) - begins).total_seconds()
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def _session(custom: dict[str, str]) -> str:
    """What protected it, and who this node was in it."""
    tls, login = custom.get("Tls", ""), custom.get("Auth", "")
    parts = [f"over {tls.replace(',', ', ')}" if tls else "", f"logged in by {login.replace(' ', ' as ', 1)}" if login else ""]
    return f" ({', '.join(part for part in parts if part)})" if tls or login else ""


def what(row: Json) -> str:
    """One row in words."""
    custom, reply = row["custom_data"], ", ".join(dict.fromkeys(each for each in row["replies"] if each))
    to = ", ".join(row["recipients"][:3]) + (f" and {len(row['recipients']) - 3} more" if len(row["recipients"]) > 3 else "")
    match row["event"]:
        case "RECEIVE" if row["source"] == "AGENT":
            return f"made a journal report for {to}"
        case "RECEIVE":
            replication = {"Success": "with a copy", "Failed": "WITHOUT a copy", "Disabled": "without a copy: shadow redundancy is off"}
            how = f"; its shadow is on {custom['ShadowAt']}" if "ShadowAt" in custom else f"; {row['context']}" if row["context"] else ""
            return f"accepted from {row['client']} {replication.get(custom.get('Replication', ''), '')}".rstrip() + how
        case "HAREDIRECT":
            return f"copy stored on {row['server']}"
        case "HAREDIRECTFAIL":
            return f"no copy could be made: {row['context']}"
        case "HARECEIVE":
            return f"holds a copy for {row['client']}"
        case "HADISCARD":
            return f"discarded its copy: {row['client']} told it {row['context'] or 'delivered'}"
        case "TRANSFER":
            return f"queued for {row['context']}: {to}"
        case "SEND" | "SENDEXTERNAL" if row["context"].startswith(KEPT_AS):
            return f"relayed to {row['server']} for {to}, {row['context']}"
        case "SEND" | "SENDEXTERNAL":
            return f"delivered to {row['server']} for {to}{_session(custom)}: {reply}"
        case "DEFER":
            return f"not taken by {row['server'] or row['next_hop']} for {to}: {reply or row['context']}"
        case "FAIL":
            return f"failed for {to}{_session(custom)}: {reply or row['context']}"
        case "DUPLICATEDELIVER":
            return f"not delivered again to {to}: {row['context']}"
        case "DSN":
            return f"made a notice to the sender: {row['context']}"
        case "RESUBMIT" if row["source"] == "REDUNDANCY":
            return f"took over from {row['reference']}{TAKEN_OVER_BECAUSE.get(custom.get('Reason', ''), '')}"
        case "RESUBMIT":
            return f"resubmitted from Safety Net, {row['context']}"
        case "LOAD":
            return "found it in its queue at its start"
        case "EXPIRE":
            return f"expired for {to}" if not row["client"] else f"its copy for {row['client']} expired"
        case _:
            return row["context"] or reply
