"""How far the drain of a node is, or a redirect of its queues, for its operator. docs/design.md 6.11."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from shadowrelay.model.ids import ServerName
from shadowrelay.model.values import dataclass


class DrainState(StrEnum):
    """What the node does."""

    ACTIVE = "active"  # takes and delivers mail
    DRAINING = "draining"
    INACTIVE = "inactive"  # drained: nothing is left to do
    REDIRECTING = "redirecting"  # hands its active messages over to certain peers, and takes mail again after that

    @property
    def number(self) -> int:
        """For metrics."""
        return list(DrainState).index(self)


NOT_DRAINING = ("running", "starting")
"""States of a node in which there is no drain to tell of."""


class DrainStep(StrEnum):
    """Where the drain is."""

    NONE = ""
    SESSIONS = "letting sessions end"
    ATTEMPTS = "letting attempts end"
    HANDING_OVER = "handing over"
    PEERS = "waiting for peers"
    INACTIVE = "inactive"


class Obstacle(StrEnum):
    """What is in the way. The value is for logs and programs; `Waiting.text` for people."""

    SESSION = "open transactions"
    ATTEMPT = "attempts run"
    NO_COPY = "no copy yet"
    NOTICE = "a notice has no copy yet"
    OLDER_COPY = "of an older copy, being asked about"
    TAKEOVER = "not taken over yet"
    UNTOLD = "notifications not collected yet"
    DRAINING = "shadow server drains"
    AWAY = "shadow server does not answer"
    TAKEOVER_AWAY = "handed over, and that server does not answer"
    UNTOLD_AWAY = "peer does not answer, and has notifications to collect"
    SHARED_FATE = "copies only where this server's fate is shared"
    NO_PEER_TAKES_COPIES = "no copy, and no peer takes one"
    NO_PEER = "no copy, and no peers"
    NO_REDUNDANCY = "no copy, and redundancy is off"
    NOT_ON_TARGET = "no copy on a target yet"
    NO_TARGET = "no target answers and takes copies"

    @property
    def is_lasting(self) -> bool:
        """It does not end by itself: an operator or another server must act."""
        return self in _LASTING


_LASTING = frozenset(
    {
        Obstacle.DRAINING,
        Obstacle.AWAY,
        Obstacle.TAKEOVER_AWAY,
        Obstacle.UNTOLD_AWAY,
        Obstacle.SHARED_FATE,
        Obstacle.NO_PEER_TAKES_COPIES,
        Obstacle.NO_PEER,
        Obstacle.NO_REDUNDANCY,
        Obstacle.NO_TARGET,
    }
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One thing that the drain waits for. `server` is empty where none is concerned; `count` of messages, sessions or attempts."""

    obstacle: Obstacle
    server: ServerName
    count: int

    @property
    def text(self) -> str:
        """One line for an operator, with what to do where something is to be done."""
        messages = "1 message" if self.count == 1 else f"{self.count} messages"
        return _TEXTS[self.obstacle].format(messages=messages, count=self.count, server=self.server)


_LEFT = "left here, undelivered"
_TEXTS = {
    Obstacle.SESSION: "sessions with an open transaction: {count}",
    Obstacle.ATTEMPT: "delivery attempts or acceptances that must end: {count}",
    Obstacle.NO_COPY: "{messages} without a copy on another server: being copied",
    Obstacle.NOTICE: "{messages} whose notice to the sender needs a copy first",
    Obstacle.OLDER_COPY: "{messages} of an older copy of the queue: all nodes are asked about each first",
    Obstacle.TAKEOVER: "{messages} handed over to {server}, which takes over now",
    Obstacle.UNTOLD: "{server} has notifications to collect",
    Obstacle.DRAINING: "{messages} whose shadow server {server} drains too: undrain one of the two, or start a third server",
    Obstacle.AWAY: "{messages} whose shadow server {server} does not answer: copied elsewhere after two heartbeats, if a peer is there",
    Obstacle.TAKEOVER_AWAY: (
        "{messages} handed over to {server}, which does not answer: wait for it, or `peers forget {server}` if its queue is destroyed"
    ),
    Obstacle.UNTOLD_AWAY: "{server} does not answer: it has not heard yet what this node has delivered, and may deliver that again",
    Obstacle.SHARED_FATE: f"{{messages}} {_LEFT}: no peer of another machine and other failure_domains takes a copy now",
    Obstacle.NO_PEER_TAKES_COPIES: f"{{messages}} {_LEFT}: no copy, and no peer takes one now",
    Obstacle.NO_PEER: f"{{messages}} {_LEFT}: no copy, and no peers are configured",
    Obstacle.NO_REDUNDANCY: f"{{messages}} {_LEFT}: no copy, because shadow_redundancy_enabled is false",
    Obstacle.NOT_ON_TARGET: "{messages} whose copy is not on a target: being copied to one",
    Obstacle.NO_TARGET: f"{{messages}} {_LEFT}: no target answers, takes copies now, and does not drain",
}


@dataclass(frozen=True, slots=True)
class DrainView:
    """The drain as it is now.

    Shapes: `undelivered_count` counts a message once for each delivery queue that it is in. `held` are the shadow messages by primary
    server: they stay. `waiting` is empty for an active or inactive node. `targets`, and how many messages they took over and how many
    were left here, are those of the redirect that runs, or of the last one since the start.
    """

    state: DrainState
    since: datetime | None
    step: DrainStep
    sessions_count: int
    attempts_count: int
    undelivered_count: int
    handed_over_count: int
    set_aside_count: int
    held: Mapping[str, int]
    waiting: tuple[Waiting, ...]
    targets: tuple[ServerName, ...] = ()
    moved_count: int = 0
    left_count: int = 0

    @property
    def is_stuck(self) -> bool:
        """Nothing that it waits for passes by itself."""
        return bool(self.waiting) and all(one.obstacle.is_lasting for one in self.waiting)
