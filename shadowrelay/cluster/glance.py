"""The cluster at a glance, for the console: two numbers, what happens to new mail, and the map. docs/reference.md "Console".

`look_closely` asks a node, `glance` puts the answers together. A node that does not answer is described by what the others know of it.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shadowrelay.cluster.answers import NodeAnswer
from shadowrelay.cluster.overview import MACHINE_DIGITS, look, summary
from shadowrelay.cluster.words import counted, duration
from shadowrelay.model.drain_progress import NOT_DRAINING
from shadowrelay.model.readiness import NewMail

if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient

Json = dict[str, Any]

GOOD, CARE, BAD, UNKNOWN = "good", "care", "bad", "unknown"  # tones; each is shown with a shape and a word, too
LEASE_SHORT_SECONDS = 10.0


def look_closely(client: "NodeClient", *, with_history: bool = False) -> Json:
    """What one node is asked: in one question, unless it is of an older version. `with_history`: of its queues, too."""
    from shadowrelay.admin.api_client import NodeError

    try:
        return client.glance(with_history=with_history)
    except NodeError as exc:
        if exc.status != 404:
            raise
    found = look(client)
    found["redundancy"] = _unless_older(client)
    found["pressure"] = client.pressure()
    found["drain"] = None if found["node"]["state"] in NOT_DRAINING else client.drain_status()
    return found


def _unless_older(client: "NodeClient") -> Json | None:
    from shadowrelay.admin.api_client import NodeError

    try:
        return client.redundancy()
    except NodeError as exc:
        if exc.status != 404:
            raise
        return None


def glance(answers: Sequence[NodeAnswer]) -> Json:
    """One document.

    Shapes: all of `summary`, and: `fewer_count` and `alone_count`, which are at most `fewer_max` and `alone_max`, or None where a node does
    not say it; of both at most `lost_held_count` are held for servers that do not answer; `new_mail` {tone, word, why}; `oldest`
    {at, node} or None; `sites` of `machines` of nodes, by name.
    """
    said = [answer.said for answer in answers if answer.said]
    found = summary(answers)
    present = {row["node"]["name"] for row in said}
    counts = [row["redundancy"] for row in said if row["redundancy"] is not None]
    lost_held, lost_held_max = _held_for_the_lost(said, present)
    waiting = [(node["oldest_at"], node["name"]) for node in found["nodes"] if node["oldest_at"]]
    nodes = [_node(row, found) for row in said]
    nodes += [_absent(answer, said) for answer in answers if not answer.said]
    nodes += [_unconfigured(name, said) for name in _strangers(said, {node["name"] for node in nodes})]
    is_whole = len(counts) == len(answers)
    return found | {
        "fewer_count": sum(one["fewer_count"] for one in counts) + lost_held,
        "fewer_max": sum(one["fewer_max"] for one in counts) + lost_held_max if is_whole else None,
        "alone_count": sum(one["alone_count"] for one in counts) + lost_held,
        "alone_max": sum(one["alone_max"] for one in counts) + lost_held_max if is_whole else None,
        "lost_held_count": lost_held_max,
        "shares_fates": _shares_fates(said),
        "new_mail": _new_mail(said),
        "oldest": dict(zip(("at", "node"), min(waiting), strict=True)) if waiting else None,
        "to_deliver_count": sum(node["to_deliver_count"] for node in found["nodes"]),
        "sites": _by_site(nodes),
    }


def _is_lost(peer: Json, present: set[str]) -> bool:
    return not peer["is_reachable"] and peer["name"] not in present


def _held_for_the_lost(said: Sequence[Json], present: set[str]) -> tuple[int, int]:
    """How many messages for servers that do not answer only one of these nodes holds: at least, and at most. Where more than one copy is
    wanted, what two nodes hold may be the same messages."""
    held: dict[str, list[int]] = {}
    for row in said:
        for peer in row["peers"]:
            if _is_lost(peer, present):
                held.setdefault(peer["name"], []).append(peer["held_for_count"])
    is_one_each = all(row["node"]["settings"].get("transport.shadow_copies", 1) == 1 for row in said)
    most = sum(sum(counts) for counts in held.values())
    return most if is_one_each else sum(max(2 * max(counts) - sum(counts), 0) for counts in held.values()), most


def _new_mail(said: Sequence[Json]) -> Json:
    outcomes = [(row["node"]["name"], row["node"].get("new_mail") or {"outcome": NewMail.UNKNOWN, "sentence": ""}) for row in said]
    by = {outcome: [name for name, one in outcomes if one["outcome"] == outcome] for outcome in NewMail}
    why = "; ".join(dict.fromkeys(f"{name}: {one['sentence']}" for name, one in outcomes if one["sentence"]))
    alone = [name for name, one in outcomes if one["outcome"] == NewMail.FEWER and not one.get("takers_count")]
    if not said:
        return {"tone": UNKNOWN, "word": "not known", "why": "no node answers"}
    for tone, names, word in (
        (BAD, by[NewMail.REFUSED], "refused"),
        (BAD, alone, "accepted without a copy"),
        (CARE, by[NewMail.UNKNOWN], "perhaps not redundant"),
        (CARE, by[NewMail.FEWER], "accepted with fewer copies than wanted"),
        (CARE, by[NewMail.NOT_COPIED], "accepted, and no copies are wanted"),
    ):
        if names:
            where = "" if len(names) == len(said) else f" on {' and '.join(names)}"
            return {"tone": tone, "word": f"{word}{where}", "why": why}
    if _shares_fates(said):
        return {"tone": CARE, "word": "copied, but not safe from the loss of a machine", "why": ""}  # a remark says more
    return {"tone": GOOD, "word": "redundant", "why": ""}


def _shares_fates(said: Sequence[Json]) -> bool:
    """Copies count that are lost together with the server, and there are such."""
    return any(
        row["node"]["settings"].get("transport.shared_fate_is_redundant") and (row["node"].get("new_mail") or {}).get("shared_fate")
        for row in said
    )


def _node(row: Json, found: Json) -> Json:
    """A node that answered."""
    node, drain = row["node"], row["drain"]
    part = next(one for one in found["nodes"] if one["name"] == node["name"])
    reasons = part["reasons"]
    is_out = not row["ready"]["is_ready"]
    tone = GOOD if node["state"] == "running" and not reasons and not part["errors"] else BAD if is_out and drain is None else CARE
    return {
        "name": node["name"],
        "site": node["site"],
        "machine": node.get("machine", "")[:MACHINE_DIGITS],
        "domains": list(node.get("domains", ())),
        "is_witness": bool(node.get("is_witness")),
        "tone": tone,
        "word": node["state"],
        "is_here": True,
        "version": node["version"],
        "database": node["database"],
        "incarnation": node["incarnation"],
        "started_at": node["started_at"],
        "to_deliver_count": part["to_deliver_count"],
        "oldest_at": part["oldest_at"],
        "held_count": part["held_count"],
        "reasons": list(dict.fromkeys([*reasons, *_waits(row), *_news(part["errors"], reasons)])),
        "pressure": _pressure(row["pressure"]),
        "takes_over_in_seconds": None,
        "drain": drain,
        "links": [_link(peer) for peer in row["peers"]],
        "error": "",
    }


def _waits(row: Json) -> Iterable[str]:
    return row["drain"]["waits_for"] if row["drain"] is not None else ()


def _news(errors: Sequence[str], reasons: Sequence[str]) -> Iterable[str]:
    """What is wrong with peers, as far as no reason says it."""
    return [error for error in errors if not any(error in reason for reason in reasons)]


def _pressure(pressure: Json) -> Json:
    """Back pressure. Shapes: `why` is empty while nothing presses."""
    level = pressure["level"]
    tone = {"normal": GOOD, "medium": CARE}.get(level, BAD)
    why = "; ".join([pressure["effect"], *pressure["reasons"]]) if level != "normal" else "; ".join(pressure["reasons"])
    return {"tone": tone, "word": level, "why": why}


def _link(peer: Json) -> Json:
    """What a node says of one of its peers. Shapes: `word` is the state; `tone` goes with it."""
    if peer["is_forgotten"]:
        tone, word = UNKNOWN, "forgotten"
    elif peer.get("is_leaving"):
        tone, word = CARE, "leaving"
    elif not peer.get("is_configured", True):
        tone, word = BAD, "no peer any more"
    elif not peer["is_reachable"]:
        tone, word = BAD, "silent"
    elif peer["is_draining"]:
        tone, word = CARE, "drains"
    elif peer["conflict"] or peer["refusal"] or peer.get("takes_copies") == "no":
        tone, word = CARE, "takes no copies"
    elif peer["differs"]:
        tone, word = CARE, "other settings"
    else:
        tone, word = GOOD, "takes copies" if peer.get("takes_copies") == "yes" else "answers"
    return {
        "name": peer["name"],
        "tone": tone,
        "word": word,
        "heard_seconds": peer["heartbeat_age_seconds"],
        "lease_seconds": peer["lease_seconds"],
        "held_for_count": peer["held_for_count"],
        "held_by_count": peer["held_by_count"],
        "takes_over_in_seconds": peer.get("takes_over_in_seconds"),
        "discards_count": peer.get("discards_count", 0),
        "database": peer["database"],
        "shared_fate": peer.get("shared_fate", ""),
        "is_heard": peer["is_reachable"],
        "is_forgotten": peer["is_forgotten"],
        "why": peer["conflict"] or peer["refusal"] or peer.get("last_error", "") or peer["differs"],
    }


def _views_of(name: str, said: Sequence[Json]) -> list[tuple[str, Json]]:
    return [(row["node"]["name"], peer) for row in said for peer in row["peers"] if peer["name"] == name]


def _absent(answer: NodeAnswer, said: Sequence[Json]) -> Json:
    """A node that did not answer, as the others know it."""
    views = _views_of(answer.name, said)
    heard = [(by, peer) for by, peer in views if peer["is_reachable"]]
    ages = [peer["heartbeat_age_seconds"] for _, peer in views if peer["heartbeat_age_seconds"] is not None]
    takeovers = [(peer["takes_over_in_seconds"], by) for by, peer in views if peer.get("takes_over_in_seconds") is not None]
    held = [(by, peer["held_for_count"]) for by, peer in views if peer["held_for_count"]]
    reasons = [f"{by} holds {counted(count, 'copy').replace('copys', 'copies')} for it" for by, count in held]
    if takeovers and not heard:
        seconds, by = min(takeovers)
        reasons.insert(0, f"{by} takes over in {duration(seconds)}" if seconds > 0 else f"{by} takes over now")
    if ages:
        reasons.insert(0, f"heard {duration(min(ages))} ago")
    return _empty(answer.name, views) | {
        "tone": CARE if heard else BAD,
        "word": "its API does not answer" if heard else "lost",
        "reasons": reasons,
        "error": answer.error,
        "takes_over_in_seconds": min(takeovers)[0] if takeovers and not heard else None,
    }


def _strangers(said: Sequence[Json], known: set[str]) -> list[str]:
    return sorted({peer["name"] for row in said for peer in row["peers"]} - known)


def _unconfigured(name: str, said: Sequence[Json]) -> Json:
    views = _views_of(name, said)
    reasons = [f"{by} holds {peer['held_for_count']} for it" for by, peer in views if peer["held_for_count"]]
    return _empty(name, views) | {"tone": CARE, "word": "not asked", "reasons": reasons}


def _empty(name: str, views: Sequence[tuple[str, Json]]) -> Json:
    return {
        "name": name,
        "site": next((peer["site"] for _, peer in views), ""),
        "machine": next((machine for _, peer in views if (machine := peer.get("machine", "")[:MACHINE_DIGITS])), ""),
        "domains": next((list(domains) for _, peer in views if (domains := peer.get("domains"))), []),
        "pressure": None,
        "is_witness": False,
        "takes_over_in_seconds": None,
        "is_here": False,
        "version": "",
        "database": "",
        "incarnation": 0,
        "started_at": None,
        "to_deliver_count": 0,
        "oldest_at": None,
        "held_count": 0,
        "drain": None,
        "links": [],
        "error": "",
    }


def _by_site(nodes: Sequence[Json]) -> list[Json]:
    """Shapes: `machines` of a site, each with its `nodes`; nodes whose machine is not known are each by themselves."""
    found = []
    for name in sorted({node["site"] for node in nodes}):
        machines: dict[str, list[Json]] = {}
        for node in sorted((one for one in nodes if one["site"] == name), key=lambda one: str(one["name"])):
            machines.setdefault(node["machine"] or node["name"], []).append(node)
        for its in machines.values():
            for node in its:
                others = [one for one in nodes if one["machine"] == node["machine"] and one["site"] != name]
                node["same_machine"] = [one["name"] for one in others if node["machine"]]  # in other sites
        found.append({"name": name, "machines": [{"name": key, "nodes": its} for key, its in machines.items()]})
    return found
