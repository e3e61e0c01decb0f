"""From replies to what happens next."""

from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.model.message import NO_ORDINALS
from shadowrelay.model.queue import FailureKind, ForkRetry
from shadowrelay.model.replies import PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.settings import Send
from shadowrelay.model.values import replace
from shadowrelay.rules.delivery import NO_REPLY, AttemptOutcome, expired_reply, settle_attempt

NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)
OK, LATER, NEVER, ODD = Reply(250, "2.1.5", "OK"), Reply(450, "4.2.1", "Later"), Reply(550, "5.1.1", "Nobody"), Reply(354, "", "Go on")
FAR = TransientDeliveryError(LATER, "mx [192.0.2.1]:25", is_connection=True)
GONE = TransientDeliveryError(LATER, "mx [192.0.2.1]:25", is_unreachable=True)
SILENT = TransientDeliveryError(LATER, "mx [192.0.2.1]:25", is_connection=True, dot_sent_unanswered=True)
BUSY = TransientDeliveryError(NEVER, "mx [192.0.2.1]:25")
NULL_MX = PermanentDeliveryError(NEVER, "")
BOTH = frozenset({1, 2})
HOUR = timedelta(hours=1)
EARLY = NOW - 5 * HOUR


def retry(ordinals, kind=FailureKind.MESSAGE, last=LATER, count=1, wait=1, first=NOW, notified=False):
    return ForkRetry("x.example", frozenset(ordinals), count, kind, first, NOW + timedelta(minutes=wait), str(last), notified)


def settle(result, before=None, age=timedelta(0), ordinals=BOTH, unanswered=False):
    found = settle_attempt(
        "x.example", ordinals, result, before,
        arrived_at=NOW - age, now=NOW, send=Send(), message_expiration_timeout=48 * HOUR, jitter=0.0, dot_sent_unanswered=unanswered,
    )  # fmt: skip
    if found.retry is None:
        return found
    notice_at = NOW - age + (48 * HOUR if found.retry.delay_notified else 4 * HOUR)
    assert notice_at == found.retry.notice_at
    return replace(found, retry=replace(found.retry, notice_at=None))


def outcome(delivered=(), failed=None, left=None, delayed=(), expired=()):
    return AttemptOutcome(frozenset(delivered), failed or {}, left, frozenset(delayed), frozenset(expired))


C, M, U = FailureKind.CONNECTION, FailureKind.MESSAGE, FailureKind.UNANSWERED

CASES = [
    ("all taken", {1: OK, 2: OK}, {}, outcome({1, 2})),
    ("all refused", {1: NEVER, 2: NEVER}, {}, outcome((), {1: NEVER, 2: NEVER})),
    ("one taken, one refused", {1: OK, 2: NEVER}, {}, outcome({1}, {2: NEVER})),
    ("one taken, one later", {1: OK, 2: LATER}, {}, outcome({1}, None, retry({2}))),
    ("one refused, one later", {1: NEVER, 2: LATER}, {}, outcome((), {1: NEVER}, retry({2}))),
    ("a reply that is none of these is tried again", {1: OK, 2: ODD}, {}, outcome({1}, None, retry({2}, last=ODD))),
    ("no reply is tried again", {1: OK}, {}, outcome({1}, None, retry({2}, last=NO_REPLY))),
    ("a reply for a stranger is ignored", {1: OK, 2: OK, 9: NEVER}, {}, outcome({1, 2})),
    ("the session broke", FAR, {}, outcome((), None, retry(BOTH, C))),
    ("a transient error is transient whatever its digits", BUSY, {}, outcome((), None, retry(BOTH, last=NEVER))),
    ("a permanent error is for all", NULL_MX, {}, outcome((), {1: NEVER, 2: NEVER})),
    (
        "failures are counted from the first",
        FAR,
        {"before": retry(BOTH, C, count=4, first=EARLY, notified=True)},
        outcome((), None, retry(BOTH, C, count=5, wait=5, first=EARLY, notified=True)),
    ),
    ("the sender is told that it is late", FAR, {"age": 4 * HOUR}, outcome((), None, retry(BOTH, C, notified=True), BOTH)),
    (
        "the sender is told once",
        {1: LATER, 2: OK},
        {"age": 9 * HOUR, "before": retry(BOTH, count=3, first=EARLY, notified=True)},
        outcome({2}, None, retry({1}, count=4, wait=15, first=EARLY, notified=True)),
    ),
    (
        "expired: whoever would be tried again has failed",
        {1: OK, 2: LATER},
        {"age": 48 * HOUR},
        outcome({1}, {2: expired_reply(LATER)}, expired={2}),
    ),
    ("expired without a reply", {1: OK}, {"age": 48 * HOUR}, outcome({1}, {2: expired_reply(NO_REPLY)}, expired={2})),
    ("expired and unreachable", FAR, {"age": 48 * HOUR}, outcome((), dict.fromkeys((1, 2), expired_reply(LATER)), expired=BOTH)),
    ("expired, but delivered", {1: OK, 2: OK}, {"age": 99 * HOUR}, outcome({1, 2})),
    (
        "the last attempt is when the time is up",
        {1: OK, 2: LATER},
        {"age": 48 * HOUR - timedelta(minutes=3), "before": retry(BOTH, count=9, notified=True)},
        outcome({1}, None, retry({2}, count=10, wait=3, notified=True)),
    ),
    ("a next hop that cannot be reached is the queue's failure", GONE, {}, outcome((), None, retry(BOTH, C, count=0, wait=0))),
    (
        "what waits in its queue keeps its own count",
        GONE,
        {"before": retry(BOTH, count=3, first=EARLY)},
        outcome((), None, retry(BOTH, C, count=3, wait=0, first=EARLY)),
    ),
    (
        "what waits in its queue expires all the same",
        GONE,
        {"age": 48 * HOUR},
        outcome((), dict.fromkeys((1, 2), expired_reply(LATER)), expired=BOTH),
    ),
    ("no reply to the dot", SILENT, {}, outcome((), None, retry(BOTH, U))),
    (
        "no reply to the dot again",
        SILENT,
        {"before": retry(BOTH, U, count=4)},
        outcome((), None, retry(BOTH, U, count=5, wait=16)),
    ),
    (
        "no reply to the dot, but refusals before it",
        {1: NEVER, 2: LATER},
        {"unanswered": True},
        outcome((), {1: NEVER}, retry({2}, U)),
    ),
]


@pytest.mark.parametrize(("result", "given", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_attempt_is_settled(result, given, expected):
    assert expected == settle(result, **given)


def test_delivered_and_failed_are_done():
    assert BOTH == settle({1: OK, 2: NEVER}).done


def test_nothing_is_done_while_all_wait():
    assert NO_ORDINALS == settle(FAR).done


def test_an_expired_recipient_fails_as_exchange_says_it():
    assert "550 4.4.7 QUEUE.Expired; last reply: 450 4.2.1 Later" == str(expired_reply(LATER))
