"""`status --if-lost` as a document: what becomes of mail if certain servers are lost, as all nodes know it. docs/reference.md "What if".

Each node says what it knows of its own queue. `named` finds the servers of a word: a name, a site, or a label of failure_domains.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shadowrelay.cluster.answers import NodeAnswer, combined, missing
from shadowrelay.cluster.overview import WAITING
from shadowrelay.cluster.words import duration
from shadowrelay.model.readiness import NewMail

if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient

Json = dict[str, Any]
LABELS = "server.failure_domains"
IDS_MAX = 1000
OUTCOMES = {
    NewMail.COPIED: "redundantly",
    NewMail.UNKNOWN: "perhaps redundantly",
    NewMail.FEWER: "without all copies",
    NewMail.NOT_COPIED: "without copies, as configured",
}


def acquainted(client: "NodeClient") -> Json:
    """What is needed to find servers by words."""
    return {"node": client.node(), "peers": client.peers()}


def named(words: Sequence[str], answers: Sequence[NodeAnswer]) -> tuple[list[str], list[str]]:
    """The servers that these words name, and the words that name none."""
    places = _places(answers)
    found: set[str] = set()
    unknown = []
    for word in words:
        servers = {server for server, its in places.items() if word in its or word.lower() == server}
        found |= servers
        unknown += [] if servers else [word]
    return sorted(found), unknown


def known_words(answers: Sequence[NodeAnswer]) -> list[str]:
    """All words that name a server."""
    return sorted({word for words in _places(answers).values() for word in words if word})


def _places(answers: Sequence[NodeAnswer]) -> dict[str, set[str]]:
    """By server: its name, its site, its labels."""
    places: dict[str, set[str]] = {}
    for row in [answer.said for answer in answers if answer.said]:
        node = row["node"]
        labels = [str(label) for label in node["settings"].get(LABELS) or ()]
        places.setdefault(node["name"], set()).update({node["name"], node["site"], *labels})
        for peer in row["peers"]:
            places.setdefault(peer["name"], set()).update({peer["name"], peer["site"], *peer.get("domains", ())})
    return places


def look(client: "NodeClient", lost: Sequence[str], ids_max: int) -> Json:
    """What one node is asked. Units: `asked_at` in seconds of the monotonic clock."""
    said = client.if_lost(lost, ids_max)
    queues = {} if said["is_lost"] else {queue["kind"]: queue["count"] for queue in client.queues() if queue["kind"] in WAITING}
    return {"said": said, "waiting_count": sum(queues.values()), "peers": client.peers(), "asked_at": time.monotonic()}


def document(lost: Sequence[str], answers: Sequence[NodeAnswer]) -> Json:
    """One document: `lost_count` and `uncertain_count` of messages, their `message_ids`, who takes over what `within_seconds`, what happens
    to `new_mail` on each survivor, since when Safety Net has what was delivered, how old each answer is, and whose part is `missing`."""
    now = time.monotonic()
    said = {answer.name: answer.said for answer in answers if answer.said}
    gone = {name: row["said"] for name, row in said.items() if row["said"]["is_lost"]}
    left = {name: row["said"] for name, row in said.items() if not row["said"]["is_lost"]}
    silent = [name for name in lost if name not in gone]
    taken_over = [{"server": name, **one} for name, row in left.items() for one in row["taken_over"]]
    found: Json = {
        "lost": list(lost),
        "lost_count": sum(row["lost_count"] for row in gone.values()),
        "uncertain_count": sum(row["uncertain_count"] for row in gone.values()),
        "not_told": silent,  # their own messages without copies elsewhere are not counted
        "taken_over_count": sum(row["count"] - row["lost_count"] for row in gone.values())
        + sum(max([one["count"] for one in taken_over if one["primary"] == name], default=0) for name in silent),
        "taken_over": taken_over,
        "new_mail": [
            {"node": name, "outcome": row["new_mail"]["outcome"], "sentence": row["new_mail"]["sentence"]} for name, row in left.items()
        ],
        "safety_net": [{"node": name, "since": row["resubmittable_since"]} for name, row in left.items()],
        "message_ids": [one for row in gone.values() for one in row["message_ids"]],
        "are_all_ids": all(row["are_all_ids"] for row in gone.values()),
        "answers": [{"node": name, "age_seconds": round(now - row["asked_at"], 3)} for name, row in said.items()],
        "missing": missing(answers),
        "heard": [
            {"node": name, "peer": peer["name"], "seconds_ago": peer["heartbeat_age_seconds"]}
            for name, row in said.items()
            for peer in row["peers"]
            if peer["name"] not in said
        ],
    }
    return found | {"sentence": sentence(found)}


def warnings(server: str, answers: Sequence[NodeAnswer]) -> list[str]:
    """What it means that this server goes, as far as that is not all well. A node without an answer that can be understood says nothing."""
    found = combined(answers, lambda those: document([server], [answer for answer in those if answer.said]))
    bad = [f"without {server}, at {one['node']}: {one['sentence']}" for one in found["new_mail"] if one["sentence"]]
    lost = [f"{found['lost_count']} messages are on {server} only, and would be lost with its disk now"] if found["lost_count"] else []
    return bad + lost


def sentence(found: Json) -> str:
    """The most important part in words."""
    servers = " and ".join(found["lost"])
    parts = [f"If {servers} {'is lost with its disk' if len(found['lost']) == 1 else 'are lost with their disks'}:"]
    count, uncertain = found["lost_count"], found["uncertain_count"]
    parts.append(f"{count} acknowledged messages are lost" + (f", and of {uncertain} it is not certain" if uncertain else "") + ";")
    if found["not_told"]:
        parts.append(f"what {' and '.join(found['not_told'])} alone has is not known, because it did not answer;")
    within = max((one["within_seconds"] for one in found["taken_over"] if one["count"]), default=None)
    parts.append(f"{found['taken_over_count']} are taken over{'' if within is None else f' within {duration(within)}'};")
    refused = [one["node"] for one in found["new_mail"] if one["outcome"] == NewMail.REFUSED]
    taken = [f"{OUTCOMES[NewMail(one['outcome'])]} on {one['node']}" for one in found["new_mail"] if one["node"] not in refused]
    mail = [f"refused on {' and '.join(refused)}"] * bool(refused) + [f"accepted {', '.join(taken)}"] * bool(taken)
    return " ".join([*parts, f"new mail is {'; '.join(mail)}" if mail else "no other server has answered"])
