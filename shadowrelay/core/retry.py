"""When to try again: Exchange's ladder, for a fork and for the queue of a next hop. Source: msd-int

| failure                    | wait                                                                          |
|----------------------------|-------------------------------------------------------------------------------|
| the first, of either kind  | queue_glitch_retry_interval                                                   |
| message (4xx)              | message_retry_interval                                                        |
| connection                 | queue_glitch_retry_interval, queue_glitch_retry_count times; then             |
|                            | transient_failure_retry_interval, transient_failure_retry_count times; then   |
|                            | outbound_connection_failure_retry_interval                                    |
| unanswered dot             | as connection, but at least twice as long each time: the next hop may have it |

A next hop that cannot be reached is its queue's failure: one attempt probes it at the steps of "connection".
"""

from datetime import datetime, timedelta

from shadowrelay.model.queue import FailureKind
from shadowrelay.model.settings import Send
from shadowrelay.model.values import dataclass

JITTER_MAX = 0.1  # of the wait: messages that failed together do not come back together
FAILURES_MAX = 2**31
DOUBLINGS_MAX = 6  # of the wait after an unanswered dot: 64 minutes by default


def attempts_next_at(failures_count: int, kind: FailureKind, now: datetime, send: Send, jitter: float) -> datetime:
    """See the module's table. `failures_count` counts the failure of now; `jitter` is in [0, 1)."""
    return now + _wait(failures_count, kind, send) * (1 + JITTER_MAX * jitter)


@dataclass(frozen=True, slots=True)
class Step:
    """Between `failures_min` and `failures_max` failures of this kind, no wait is longer than `wait`."""

    kind: FailureKind
    failures_min: int
    failures_max: int
    wait: timedelta


def steps(send: Send) -> tuple[Step, ...]:
    """The whole ladder. A fork that is due later than its step allows was put off by a clock that has been set back since."""
    last = max(send.queue_glitch_retry_count + send.transient_failure_retry_count, DOUBLINGS_MAX) + 2
    found = [Step(FailureKind.QUEUED, 0, FAILURES_MAX, timedelta(0))]
    for kind in (FailureKind.MESSAGE, FailureKind.CONNECTION, FailureKind.UNANSWERED):
        first = 0
        for count in range(1, last + 1):
            if count == last or _wait(count + 1, kind, send) != _wait(count, kind, send):
                is_last = count == last
                found.append(Step(kind, first, FAILURES_MAX if is_last else count, _wait(count, kind, send) * (1 + JITTER_MAX)))
                first = count + 1
    return tuple(found)


def _wait(failures_count: int, kind: FailureKind, send: Send) -> timedelta:
    if failures_count <= 1:
        return send.queue_glitch_retry_interval
    if kind is FailureKind.MESSAGE:
        return send.message_retry_interval
    if failures_count <= send.queue_glitch_retry_count:
        step = send.queue_glitch_retry_interval
    elif failures_count <= send.queue_glitch_retry_count + send.transient_failure_retry_count:
        step = send.transient_failure_retry_interval
    else:
        step = send.outbound_connection_failure_retry_interval
    if kind is FailureKind.UNANSWERED:
        return max(step, send.queue_glitch_retry_interval * (1 << min(failures_count - 1, DOUBLINGS_MAX)))
    return step


def notice_at(arrived_at: datetime, send: Send, message_expiration_timeout: timedelta, *, is_notified: bool) -> datetime:
    """When the sender of a message that waits is to be told something next: that it is late, or that it has expired."""
    expires_at = arrived_at + message_expiration_timeout
    return expires_at if is_notified else min(arrived_at + send.delay_notification_timeout, expires_at)


def delay_notification_due(arrived_at: datetime, now: datetime, send: Send, *, is_notified: bool) -> bool:
    """Whether the sender is to be told that the message is late; once only."""
    return not is_notified and now - arrived_at >= send.delay_notification_timeout


def is_expired(arrived_at: datetime, now: datetime, message_expiration_timeout: timedelta) -> bool:
    """Whether trying has an end. Source: msp-ts"""
    return now - arrived_at >= message_expiration_timeout
