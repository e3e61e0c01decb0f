"""The state of the cluster for all who look at it: asked once a second, and never while nobody looks. docs/reference.md "Console".

Two looks that are not too far apart also tell how fast missing copies are made, and so when mail will be redundant again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from shadowrelay.cluster.answers import NodeAnswer, combined
from shadowrelay.cluster.glance import glance
from shadowrelay.cluster.words import duration
from shadowrelay.console.asking import ClusterNodes
from shadowrelay.model.drain_progress import DrainState

FRESH_SECONDS = 1.0
HISTORY_SECONDS = 5.0  # as long after somebody looked at the queues, their last hour is asked, too
SPAN_SECONDS = 120.0  # of what is remembered of the number of missing copies

Json = dict[str, Any]


class ClusterWatch:
    """The last look. `clock`: seconds that only grow."""

    def __init__(self, nodes: ClusterNodes, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes, self._clock = nodes, clock
        self._looking = asyncio.Lock()
        self._at = self._wanted_at = self._acted_at = float("-inf")
        self._has_history = False
        self._answers: list[NodeAnswer] = []
        self._fewer: deque[tuple[float, int]] = deque()
        self._drains: dict[tuple[str, str], int] = {}

    async def answers(self, *, with_history: bool = False) -> list[NodeAnswer]:
        """Of all nodes to `look_closely`: a look that began at most `FRESH_SECONDS` before this was asked."""
        now = self._clock()
        if with_history:
            self._wanted_at = now
        async with self._looking:
            if now - self._at >= FRESH_SECONDS or self._at < self._acted_at or (with_history and not self._has_history):
                self._has_history = now - self._wanted_at < HISTORY_SECONDS
                began = self._clock()
                self._answers = await self._nodes.look(with_history=self._has_history)
                self._at = began
            return self._answers

    def forget(self) -> None:
        """Something was done: the next look is a new one, also while one is under way."""
        self._acted_at = self._clock()
        self._nodes.forget_looks()

    async def state(self) -> Json:
        """`glance`, and `heals`: when all have their copies again, in words."""
        found = combined(await self.answers(), glance)
        self._note(max(found["fewer_count"] - found["lost_held_count"], 0))
        self._note_drains([node for site in found["sites"] for machine in site["machines"] for node in machine["nodes"]])
        return found | {"heals": self._heals(found)}

    def _note(self, count: int) -> None:
        now = self._clock()
        self._fewer.append((now, count))
        while self._fewer[0][0] < now - SPAN_SECONDS:
            self._fewer.popleft()

    def _note_drains(self, nodes: list[Json]) -> None:
        """Adds to each drain how much there was at first, as far as somebody looked, how much of that is done, and `to`: the targets of a
        redirect. What a node says of the last redirect is nothing about its drain."""
        before, self._drains = self._drains, {}
        for node in nodes:
            if (drain := node["drain"]) is None:
                continue
            is_redirect = drain["state"] == DrainState.REDIRECTING
            left = drain["undelivered_count"] + drain["handed_over_count"]
            taken_over = max(drain["moved_count"] - drain["handed_over_count"], 0) if is_redirect else 0
            key = (str(node["name"]), f"{drain['state'] if is_redirect else drain['since']}")
            most = self._drains[key] = max(before.get(key, 0), left + taken_over)
            node["drain"] = drain | {"most": most, "done": most - left, "to": drain["targets"] if is_redirect else []}

    def _heals(self, found: Json) -> str:
        left = max(found["fewer_count"] - found["lost_held_count"], 0)
        if not left:
            return "when the servers that do not answer are back, or taken over" if found["lost_held_count"] else ""
        first_at, first = self._fewer[0]
        seconds = self._clock() - first_at
        made = first - left
        if made > 0 and seconds > 0:
            return f"in about {duration(max(left / (made / seconds), 1.0))}, at the present rate"
        if found["new_mail"]["tone"] == "bad":
            return "not before a peer takes copies"
        if seconds < SPAN_SECONDS / 4:
            return "not known yet, copies are being made"
        return f"not known, no copy was made in the last {duration(seconds)}"
