"""What became of one attempt on one fork: who is done, who failed for good, when to try the others again.

| reply of a recipient            | becomes                                                            |
|---------------------------------|--------------------------------------------------------------------|
| 2xx                             | delivered                                                          |
| 5xx, or a permanent error       | failed                                                             |
| 4xx, any other, none            | retry; failed with 550 4.4.7 when the message is expired           |
| transient error                 | retry, whatever the digits of its reply; likewise                  |
| next hop unreachable            | waits in its queue, whose own ladder probes it; expires likewise   |

A fork without a lease is not settled at all: a server that has no lease may not declare a message expired.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from shadowrelay.core import retry as ladder
from shadowrelay.model.errors import DeliveryError, PermanentDeliveryError
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.queue import FailureKind, ForkRetry
from shadowrelay.model.replies import Reply
from shadowrelay.model.settings import Send
from shadowrelay.model.values import dataclass

NO_REPLY = Reply(451, "4.5.0", "The next hop did not answer for this recipient")  # RFC 3463 X.5.0
EXPIRED_CODE, EXPIRED_STATUS = 550, "4.4.7"  # as Exchange writes it: `550 4.4.7 QUEUE.Expired;<text>`. Source: msd-mt


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """Shapes: `delivered`, the keys of `failed`, and `retry.ordinals` are disjoint and together the attempt's ordinals.

    `retry` None: nothing is left of the fork. `expired` is a part of `failed`; `delayed_dsn` a part of `retry.ordinals`:
    their sender is to be told now, and `retry.delay_notified` says so already.
    """

    delivered: Ordinals
    failed: Mapping[int, Reply]
    retry: ForkRetry | None
    delayed_dsn: Ordinals = NO_ORDINALS
    expired: Ordinals = NO_ORDINALS

    @property
    def done(self) -> Ordinals:
        """Delivered or failed."""
        return self.delivered | frozenset(self.failed)


def settle_attempt(
    next_hop: str,
    ordinals: Ordinals,
    result: Mapping[int, Reply] | DeliveryError,
    before: ForkRetry | None,
    *,
    arrived_at: datetime,
    now: datetime,
    send: Send,
    message_expiration_timeout: timedelta,
    jitter: float,
    dot_sent_unanswered: bool = False,
) -> AttemptOutcome:
    """See the module's table.

    Shapes: `ordinals` were attempted; `result` has a reply for each, or one error for all. `before`: the fork's retry
    before this attempt. `jitter` in [0, 1).
    """
    if isinstance(result, PermanentDeliveryError):
        return AttemptOutcome(NO_ORDINALS, dict.fromkeys(sorted(ordinals), result.reply), None)
    is_unreachable = False
    if isinstance(result, DeliveryError):
        kind = FailureKind.CONNECTION if result.is_connection else FailureKind.MESSAGE
        dot_sent_unanswered = result.dot_sent_unanswered
        is_unreachable = result.is_unreachable
        replies: Mapping[int, Reply] = dict.fromkeys(ordinals, result.reply)
        left = ordinals
        delivered, failed = NO_ORDINALS, dict[int, Reply]()
    else:
        kind, replies = FailureKind.MESSAGE, result
        delivered = frozenset(ordinal for ordinal in ordinals if ordinal in result and result[ordinal].is_positive)
        if len(delivered) == len(ordinals):
            return AttemptOutcome(delivered, {}, None)
        failed = {ordinal: result[ordinal] for ordinal in sorted(ordinals) if ordinal in result and result[ordinal].is_permanent}
        left = ordinals - delivered - failed.keys()
    if not left:
        return AttemptOutcome(delivered, failed, None)
    if ladder.is_expired(arrived_at, now, message_expiration_timeout):
        failed |= {ordinal: expired_reply(replies.get(ordinal, NO_REPLY)) for ordinal in sorted(left)}
        return AttemptOutcome(delivered, failed, None, expired=left)
    failures_count = (before.failures_count if before else 0) + (not is_unreachable)
    is_notified = before.delay_notified if before else False
    is_late = ladder.delay_notification_due(arrived_at, now, send, is_notified=is_notified)
    kind = FailureKind.UNANSWERED if dot_sent_unanswered else kind
    next_at = now if is_unreachable else ladder.attempts_next_at(failures_count, kind, now, send, jitter)
    retry = ForkRetry(
        next_hop,
        left,
        failures_count,
        kind,
        before.first_failed_at if before else now,
        min(next_at, arrived_at + message_expiration_timeout),  # one last attempt when the time is up, not a step later
        str(replies.get(min(left), NO_REPLY)),
        is_notified or is_late,
        notice_at=ladder.notice_at(arrived_at, send, message_expiration_timeout, is_notified=is_notified or is_late),
    )
    return AttemptOutcome(delivered, failed, retry, delayed_dsn=left if is_late else NO_ORDINALS)


def expired_reply(last: Reply) -> Reply:
    """How an expired recipient failed, with the last that was heard of it."""
    return Reply(EXPIRED_CODE, EXPIRED_STATUS, f"QUEUE.Expired; last reply: {last}")
