"""The queue of one next hop, as values: whether it may be worked on, how much of it at once, and when it is probed.

A queue is Active, or in Retry while no host of its next hop can be reached. In Retry one attempt probes the next hop at the
steps of the ladder (`core.retry`), however many messages wait. When the next hop is back, its mail goes at once, but slowly
at first: two attempts after the probe, then four, until the limit. Retry belongs to the queue (docs/design.md 6.10): a message that
was refused by itself has its own ladder, and a next hop that answers is Active whatever it answers.

Each queue may load twice its concurrency, so that the next attempts are ready when a session is free; and no more than a
fair share of what the node loads at all, so that many slow next hops cannot take the places of a healthy one.
"""

from dataclasses import replace
from datetime import datetime

from shadowrelay.core import retry as ladder
from shadowrelay.model.queue import FailureKind
from shadowrelay.model.settings import Send
from shadowrelay.model.values import dataclass

LOADED_MAX = 1_000  # attempts of the whole node; Exchange's MaxOutboundConnections. Source: msp-ts
LOADED_PER_SESSION = 2


@dataclass(frozen=True, slots=True)
class Retry:
    """A next hop that cannot be reached. `failures_count` counts probes; `noted_at` is `Clock.awake` of the last failure."""

    failures_count: int
    since: datetime
    probe_at: datetime
    noted_at: float
    last_reply: str


@dataclass(frozen=True, slots=True)
class QueueState:
    """`window`: how many attempts may be loaded. `retry` None: Active."""

    window: int
    retry: Retry | None = None


def active(concurrency: int) -> QueueState:
    """Nothing is held against the next hop."""
    return QueueState(concurrency * LOADED_PER_SESSION)


def after_unreachable(
    state: QueueState, reply: str, began_at: float, noted_at: float, now: datetime, send: Send, jitter: float
) -> QueueState:
    """An attempt that began at `began_at` reached no host. Those that began before the last failure say nothing new.

    Units: `began_at`, `noted_at` of `Clock.awake`; `jitter` in [0, 1).
    """
    before = state.retry
    if before is not None and began_at <= before.noted_at:
        return state
    failures_count = 1 if before is None else before.failures_count + 1
    probe_at = ladder.attempts_next_at(failures_count, FailureKind.CONNECTION, now, send, jitter)
    return QueueState(1, Retry(failures_count, now if before is None else before.since, probe_at, noted_at, reply))


def after_reached(state: QueueState, concurrency: int) -> QueueState:
    """A host of the next hop was spoken to."""
    whole = concurrency * LOADED_PER_SESSION
    if state.retry is None and state.window >= whole:
        return state
    return QueueState(min(state.window * 2, whole))


def hastened(state: QueueState, now: datetime, send: Send) -> QueueState:
    """The wall clock was set back: no probe waits longer than its step of the ladder."""
    if state.retry is None:
        return state
    latest_at = ladder.attempts_next_at(state.retry.failures_count, FailureKind.CONNECTION, now, send, 1.0)
    return replace(state, retry=replace(state.retry, probe_at=min(state.retry.probe_at, latest_at)))


def share(queues_count: int, loaded_count: int, running_count: int) -> int:
    """How many attempts one of so many busy queues may load, of which `loaded_count` are its own and `running_count` those of all.

    A queue that has none may load one in any case; only thus does the whole exceed LOADED_MAX.
    """
    fair = LOADED_MAX // max(1, queues_count)
    return max(1, min(fair, loaded_count + LOADED_MAX - running_count))


def room(state: QueueState, loaded_count: int, share: int, now: datetime) -> int:
    """How many more attempts the queue may load now."""
    if state.retry is not None:
        return 1 if not loaded_count and now >= state.retry.probe_at else 0
    return max(0, min(state.window, share) - loaded_count)
