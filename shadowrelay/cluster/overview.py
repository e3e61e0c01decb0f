"""`status` as a document: is mail redundant now, and what does every node hold? docs/operations.md "Status".

`summary` combines the nodes' answers to `look`. Each node reports about itself, also what would happen to its next message (`new_mail`);
the messages that an unreachable node holds are reported by the others.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shadowrelay.cluster.answers import NodeAnswer, missing
from shadowrelay.model.readiness import REFUSED_BECAUSE, NewMail

if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient

Json = dict[str, Any]

MACHINE_DIGITS = 8  # of its name that are shown: enough to tell the machines of a cluster apart
WAITING = ("Submission", "Delivery", "HandedOver", "Poison")  # kinds of queues with mail that is not delivered
OLDER_API: Json = {"outcome": NewMail.UNKNOWN, "takers_count": 0, "copies_wanted": 1}  # of nodes that do not say it yet


def look(client: "NodeClient") -> Json:
    """What one node is asked."""
    return {"node": client.node(), "ready": client.ready(), "queues": client.queues(), "peers": client.peers()}


def summary(answers: Sequence[NodeAnswer]) -> Json:
    """One document: `is_redundant`, a `sentence` for it, of which `remarks` are part, the `nodes` by machine, the `machines` that run
    several of them, who `holds` copies for whom, who is `unreached` by whom, and whose part is `missing`. `older`: the nodes for whose
    silence alone it is not redundant, because their version never says it."""
    said = [answer.said for answer in answers if answer.said]
    new_mail = {row["node"]["name"]: row["node"].get("new_mail") or OLDER_API for row in said}

    def nodes_with(outcome: NewMail) -> list[str]:
        return [name for name, one in new_mail.items() if one["outcome"] == outcome]

    older = [row["node"]["name"] for row in said if not row["node"].get("new_mail")]
    refusing, unknown = nodes_with(NewMail.REFUSED), [name for name in nodes_with(NewMail.UNKNOWN) if name not in older]
    alone = [name for name in nodes_with(NewMail.FEWER) if not new_mail[name]["takers_count"]]
    fewer = [
        f"{new_mail[name]['takers_count']} of {new_mail[name]['copies_wanted']} on {name}"
        for name in nodes_with(NewMail.FEWER)
        if name not in alone
    ]
    disabled = [row["node"]["name"] for row in said if not row["node"]["settings"]["transport.shadow_redundancy_enabled"]]
    uncopied = [name for name in nodes_with(NewMail.NOT_COPIED) if name not in disabled]
    unreached = _unreached(said)
    said_why = {name: new_mail[name]["sentence"] for name in refusing}
    uncopyable = [name for name in refusing if not said_why[name].startswith(REFUSED_BECAUSE)]
    if refusing:
        reasons = [f"on {name}: {said_why[name].removeprefix(REFUSED_BECAUSE)}" for name in refusing if name not in uncopyable]
        if uncopyable:
            reasons.insert(0, f"with 451 on {' and '.join(uncopyable)}: fewer peers take copies now than shadow_copies asks for")
        sentence = f"NEW MAIL IS REFUSED {'; '.join(reasons)}"
    elif alone or disabled:
        sharing = [name for name in alone if new_mail[name].get("shared_fate")]
        lone = [name for name in alone if name not in sharing]
        causes = (
            (lone, "no peer takes copies now"),
            (sharing, "no peer on another machine, with other failure_domains, takes copies now"),
            (disabled, "shadow_redundancy_enabled is false"),
        )
        sentence = "NEW MAIL IS NOT REDUNDANT " + "; ".join(f"on {' and '.join(names)}: {reason}" for names, reason in causes if names)
    elif unknown:
        sentence = f"NEW MAIL MAY NOT BE REDUNDANT on {' and '.join(unknown)}: it is not known whether enough peers take copies"
    elif older:
        sentence = f"NEW MAIL MAY NOT BE REDUNDANT on {' and '.join(older)}: an older version, which does not say whether peers take copies"
    elif fewer:
        sentence = f"New mail has fewer copies than shadow_copies asks for: {', '.join(fewer)}"
    else:
        sentence = f"New mail is redundant{' on the nodes that answered' if any(answer.error for answer in answers) else ''}"
    is_well = not (refusing or alone or disabled or unknown)
    is_redundant = is_well and not older
    if uncopied and is_redundant:
        sentence += f"; no copies are made on {' and '.join(uncopied)}, as redundancy of the receive connectors says"
    remarks = [*_mixed(said), *_shared_fates(said), *_held_for_no_peer(said), *untold(said), *_shed(said)]
    sentence = "; ".join([sentence, *map(in_words, unreached), *remarks])
    return {
        "is_redundant": is_redundant,
        "sentence": sentence,
        "remarks": remarks,
        "older": older if is_well else [],
        "nodes": (nodes := _by_machine([_node_of(row) for row in said])),
        "machines": _machines(nodes),
        "holds": [_holding(row, peer) for row in said for peer in row["peers"] if peer["held_for_count"] or not peer["is_reachable"]],
        "unreached": unreached,
        "missing": missing(answers),
    }


def _by_machine(nodes: Sequence[Json]) -> list[Json]:
    """Nodes of one machine together, machines in the order of their first nodes. Of older nodes none is known."""
    order = {(one["machine"] or one["name"]): number for number, one in reversed(list(enumerate(nodes)))}
    return sorted(nodes, key=lambda one: order[one["machine"] or one["name"]])


def _machines(nodes: Sequence[Json]) -> list[Json]:
    """Those with several nodes, and what these hold together."""
    found: dict[str, list[Json]] = {}
    for one in nodes:
        found.setdefault(one["machine"], []).append(one)
    return [
        {
            "machine": machine,
            "nodes": [one["name"] for one in its],
            "to_deliver_count": sum(one["to_deliver_count"] for one in its),
            "oldest_at": min((one["oldest_at"] for one in its if one["oldest_at"]), default=None),
            "held_count": sum(one["held_count"] for one in its),
        }
        for machine, its in found.items()
        if machine and len(its) > 1
    ]


def _unreached(said: Sequence[Json]) -> list[Json]:
    """Which node cannot reach which peer. `is_new`: it never has, as while the peer starts."""
    return [
        {"node": row["node"]["name"], "peer": peer["name"], "is_new": peer["heartbeat_age_seconds"] is None}
        for row in said
        for peer in row["peers"]
        if not peer["is_reachable"] and peer.get("is_configured", True)
    ]


def _held_for_no_peer(said: Sequence[Json]) -> list[str]:
    """What may be the only copy of messages of a server that is in no configuration any more."""
    return [
        f"{row['node']['name']} holds {peer['held_for_count']} messages for {peer['name']}, which is no peer any more"
        for row in said
        for peer in row["peers"]
        if peer["held_for_count"] and not peer.get("is_configured", True)
    ]


def untold(said: Sequence[Json]) -> list[str]:
    """Why copies, and shadows of previous hops, of messages that are done are still held."""
    nodes = {row["node"]["name"]: found for row in said if (found := row["node"].get("untold"))}
    return [
        f"{name} has {found['count']} messages that are done, and tells nobody while the DSN or journal report that was made of each is on "
        f"its disk only, since {found['since'][:19]}Z: {found['message_id']} waits for {found['generated']}"
        for name, found in nodes.items()
    ]


def _mixed(said: Sequence[Json]) -> list[str]:
    """Which versions there are, if several: neighbours work together, while a cluster is upgraded."""
    versions: dict[str, set[str]] = {}
    for row in said:
        versions.setdefault(row["node"].get("version", ""), set()).add(row["node"]["name"])
        for peer in row["peers"]:
            if peer.get("database") and "version" in peer and not peer["version"]:
                versions.setdefault("an older one", set()).add(peer["name"])
    named = [f"{version or 'an older one'} on {' and '.join(sorted(names))}" for version, names in sorted(versions.items())]
    return [f"mixed versions: {', '.join(named)}"] * (len(named) > 1)


def _shared_fates(said: Sequence[Json]) -> list[str]:
    """What it means that copies on the same machine count, where that is set and there are such peers."""
    trying = [
        row["node"]
        for row in said
        if row["node"]["settings"].get("transport.shared_fate_is_redundant") and (row["node"].get("new_mail") or {}).get("shared_fate")
    ]
    return [
        f"shared_fate_is_redundant on {' and '.join(node['name'] for node in trying)}: copies count that are lost together with the "
        "server, as those on its machine are; for trying only"
    ] * bool(trying)


def _shed(said: Sequence[Json]) -> list[str]:
    """Where what was delivered can no longer be resubmitted, although its time is not over."""
    nodes = {row["node"]["name"]: row["node"].get("safety_net_complete_since") for row in said}
    return [f"{name} can resubmit only what was delivered after {since[:19]}Z" for name, since in nodes.items() if since]


def in_words(one: Json) -> str:
    """Who cannot reach whom."""
    return f"{one['node']} has not reached {one['peer']} yet" if one["is_new"] else f"{one['node']} cannot reach {one['peer']}"


def _node_of(row: Json) -> Json:
    waiting = [queue for queue in row["queues"] if queue["kind"] in WAITING]
    errors = [*_of_configuration(row["node"]), *(f"{peer['name']}: {error}" for peer in row["peers"] if (error := _error_of(peer)))]
    return {
        "name": row["node"]["name"],
        "site": row["node"]["site"],
        "state": row["node"]["state"],
        "version": row["node"]["version"],
        "configuration": row["node"].get("configuration") or {},  # missing in the API of older nodes
        "machine": row["node"].get("machine", "")[:MACHINE_DIGITS],
        "is_witness": row["node"].get("is_witness", False),
        "to_deliver_count": sum(queue["count"] for queue in waiting),
        "oldest_at": min((queue["oldest_at"] for queue in waiting if queue["oldest_at"]), default=None),
        "held_count": sum(peer["held_for_count"] for peer in row["peers"]),
        "reasons": row["ready"]["reasons"],
        "errors": errors,
    }


def _of_configuration(node: Json) -> list[str]:
    """What it refused of its configuration file, and what of it waits."""
    known = node.get("configuration") or {}
    refusal, waiting = known.get("refusal"), known.get("needs_restart")
    refused = [f"its configuration was refused at {known['refused_at'][:19]}Z: {refusal.splitlines()[0]}"] if refusal else []
    return refused + ([f"changes wait for a restart: {', '.join(waiting)}"] if waiting else [])


def _error_of(peer: Json) -> str:
    """The last error of a peer, as this node knows it."""
    known = peer["conflict"] or peer["refusal"] or peer.get("last_error", "") or peer["differs"]
    return known or ("" if peer["is_reachable"] else "does not answer")


def _holding(row: Json, peer: Json) -> Json:
    """The messages that a node holds for a peer, and when it takes them over, as it counts itself: `None` while the peer answers."""
    oldest = [
        queue["oldest_at"]
        for queue in row["queues"]
        if queue["kind"] == "Shadow" and queue["primary"] == peer["name"] and queue["oldest_at"]
    ]
    return {
        "node": row["node"]["name"],
        "primary": peer["name"],
        "count": peer["held_for_count"],
        "oldest_at": min(oldest, default=None),
        "is_reachable": peer["is_reachable"],
        "heard_seconds_ago": peer["heartbeat_age_seconds"],
        "takes_over_in_seconds": peer.get("takes_over_in_seconds"),  # missing in the API of older nodes
    }
