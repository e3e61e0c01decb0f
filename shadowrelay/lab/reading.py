"""What a node of the lab says of itself, asked inside its container without starting another Python."""

import json
from dataclasses import dataclass
from typing import Any

from shadowrelay.lab.engine import Engine
from shadowrelay.lab.places import LabError

TO_DELIVER = ("Submission", "Delivery")
HELD = "Shadow"
FINISHED = ("delivered", "released")
PAGE = 1000


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """`state` as `Engine.states` gives it. Counts of messages; None if the node does not answer."""

    node: str
    state: str
    to_deliver: int | None = None
    held: int | None = None
    peers_reachable: int | None = None


def node_status(engine: Engine, node: str, state: str) -> NodeStatus:
    """Never raises for a node that does not answer."""
    if state not in ("healthy", "unhealthy", "starting"):
        return NodeStatus(node, state)
    try:
        queues, peers = ask(engine, node, "/api/v1/queues")["queues"], ask(engine, node, "/api/v1/peers")["peers"]
    except LabError:
        return NodeStatus(node, state)
    to_deliver = sum(row["count"] for row in queues if row["kind"] in TO_DELIVER)
    held = sum(row["count"] for row in queues if row["kind"] == HELD)
    return NodeStatus(node, state, to_deliver, held, sum(peer["is_reachable"] for peer in peers))


def unfinished(engine: Engine, node: str) -> set[str]:
    """Network ids of the messages that this node has and has not finished, as primary or as shadow server."""
    found: set[str] = set()
    after: int | None = 0
    while after is not None:
        page = ask(engine, node, f"/api/v1/messages?limit={PAGE}&after={after}")
        found |= {row["message_id"] for row in page["messages"] if row["role"] not in FINISHED}
        after = page["next_after"]
    return found


def ask(engine: Engine, node: str, path: str) -> dict[str, Any]:
    """One resource. Raises: LabError if the node does not answer."""
    answer: dict[str, Any] = json.loads(engine.execute(node, "timeout", "10", "ask", path))
    return answer
