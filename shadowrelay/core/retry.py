"""When to try again: Exchange's ladder. Source: msd-int

| failure                    | wait                                                                          |
|----------------------------|-------------------------------------------------------------------------------|
| the first, of either kind  | queue_glitch_retry_interval                                                   |
| message (4xx)              | message_retry_interval                                                        |
| connection                 | queue_glitch_retry_interval, queue_glitch_retry_count times; then             |
|                            | transient_failure_retry_interval, transient_failure_retry_count times; then   |
|                            | outbound_connection_failure_retry_interval                                    |
| lease                      | queue_glitch_retry_interval; no attempt was made, so none is counted          |
"""

from datetime import datetime, timedelta

from shadowrelay.model.queue import FailureKind
from shadowrelay.model.settings import Send

JITTER_MAX = 0.1  # of the wait: messages that failed together do not come back together


def attempts_next_at(failures_count: int, kind: FailureKind, now: datetime, send: Send, jitter: float) -> datetime:
    """See the module's table. `failures_count` counts the failure of now; `jitter` is in [0, 1)."""
    return now + _wait(failures_count, kind, send) * (1 + JITTER_MAX * jitter)


def _wait(failures_count: int, kind: FailureKind, send: Send) -> timedelta:
    if failures_count <= 1 or kind is FailureKind.LEASE:
        return send.queue_glitch_retry_interval
    if kind is FailureKind.MESSAGE:
        return send.message_retry_interval
    if failures_count <= send.queue_glitch_retry_count:
        return send.queue_glitch_retry_interval
    if failures_count <= send.queue_glitch_retry_count + send.transient_failure_retry_count:
        return send.transient_failure_retry_interval
    return send.outbound_connection_failure_retry_interval


def delay_notification_due(arrived_at: datetime, now: datetime, send: Send, *, is_notified: bool) -> bool:
    """Whether the sender is to be told that the message is late; once only."""
    return not is_notified and now - arrived_at >= send.delay_notification_timeout


def is_expired(arrived_at: datetime, now: datetime, message_expiration_timeout: timedelta) -> bool:
    """Whether trying has an end. Source: msp-ts"""
    return now - arrived_at >= message_expiration_timeout
