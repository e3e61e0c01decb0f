"""Rules of delivery: outcomes of attempts, retry times, room in queues, poison, retention. docs/design.md 6.3, 6.5, 6.9, 6.10.

**The ladder** sets the time of the next retry, for a fork and for the queue of a next hop. Source: msd-int

| failure                    | wait                                                                          |
|----------------------------|-------------------------------------------------------------------------------|
| the first, of either kind  | queue_glitch_retry_interval                                                   |
| message (4xx)              | message_retry_interval                                                        |
| connection                 | queue_glitch_retry_interval, queue_glitch_retry_count times; then             |
|                            | transient_failure_retry_interval, transient_failure_retry_count times; then   |
|                            | outbound_connection_failure_retry_interval                                    |
| unanswered dot             | as connection, but at least twice as long each time: the next hop may have it |

An unreachable next hop is a failure of the queue: a single attempt probes it at the steps of "connection".

**An attempt** on one fork leaves each recipient delivered, failed, or to be retried.

| reply of a recipient            | becomes                                                            |
|---------------------------------|--------------------------------------------------------------------|
| 2xx                             | delivered                                                          |
| 5xx, or a permanent error       | failed                                                             |
| 4xx, any other, none            | retry; failed with 550 4.4.7 when the message is expired           |
| transient error                 | as 4xx, whatever the code of its reply                             |
| next hop unreachable            | waits in its queue, whose own ladder probes it; expires as 4xx     |

A fork without a lease is not settled: a server without a lease may not declare a message expired.

**The queue** of a next hop is Active, or in Retry while no host of the next hop can be reached (docs/design.md 6.10).

In Retry a single attempt probes the next hop at the steps of the ladder (`ladder_steps`), however many messages wait. When the next
hop answers, its mail goes at once with a slow start: two attempts after the probe, then four, up to the limit. Retry belongs to
the queue: a message refused individually has its own ladder, and a next hop that answers is Active, whatever the reply.

A lost session may be the fault of the message, so each message has its own ladder. When a next hop loses the sessions of more different
messages in a row than it may have sessions (`LOST_MIN` at least), its queue makes only one attempt each `PACE` until one is answered,
because each attempt costs a connection and perhaps a duplicate. The pace does not get slower: the messages may be at fault after all, and
others wait behind them.

Each queue may load twice its concurrency, so that the next attempts are ready when a session is free, but no more than a
fair share of the node's total, so that many slow next hops cannot crowd out a healthy one.

**Poison** is a message whose content was being handled when a process of this node died. docs/design.md 6.9.

`deaths_count` counts only such deaths: not of a process that had been asked to stop, not of the machine, and not while the
message waited for a lease, a session, or the reply to its final dot. One death may be chance. After two the message is a
suspect, and suspects are attempted one at a time. After the third it is set aside.

**A message that a client sends again** is recognised by the key of a delivery to one recipient. docs/design.md 6.5. Source: seed-004
Two messages are the same for a recipient if Message-ID, Date, sender and recipient are. The key is a hash of the four, because they may
be long. A lost message is worse than a duplicate. In doubt there is therefore no key: neither for a message without one of the two header
fields, nor for one whose fields may have been cut, here or on the wire, or are not printable ASCII.

**Retention** is how long the content and the row of a message stay. Source: seed-000, msd-sn; docs/protocol.md 10; docs/design.md 6.3.
After the wall clock jumps forward (an administrator or a time server sets the wrong year), nothing expires by the jump until
the new time has stood for a day. Otherwise shadow messages would expire while their primaries still have to deliver them.
Within one process CLOCK_BOOTTIME distinguishes a jump from elapsed time (including suspend); a new process has to trust the
wall clock.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from zlib import crc32

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import NO_ORDINALS, Envelope, Ordinals
from shadowrelay.model.numbers import decimal
from shadowrelay.model.ownership import Choice, Claim, Role
from shadowrelay.model.queue import FailureKind, ForkRetry, StoredMessage
from shadowrelay.model.replies import DeliveryError, PermanentDeliveryError, Reply
from shadowrelay.model.routing import Destination
from shadowrelay.model.settings import Send, Transport
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.addresses import canonical

JITTER_MAX = 0.1  # of the wait: spreads the retries of messages that failed together
FAILURES_MAX = 2**31
DOUBLINGS_MAX = 6  # of the wait after an unanswered dot: 64 minutes by default


def attempts_next_at(failures_count: int, kind: FailureKind, now: datetime, send: Send, jitter: float) -> datetime:
    """See the ladder in the module docstring. `failures_count` includes the current failure; `jitter` is in [0, 1)."""
    return now + _wait(failures_count, kind, send) * (1 + JITTER_MAX * jitter)


@dataclass(frozen=True, slots=True)
class LadderStep:
    """After `failures_min` to `failures_max` failures of this kind, no wait is longer than `wait`."""

    kind: FailureKind
    failures_min: int
    failures_max: int
    wait: timedelta


def ladder_steps(send: Send) -> tuple[LadderStep, ...]:
    """The whole ladder. A fork due later than its step allows was scheduled by a clock that has since been set back."""
    last = max(send.queue_glitch_retry_count + send.transient_failure_retry_count, DOUBLINGS_MAX) + 2
    found = [LadderStep(FailureKind.QUEUED, 0, FAILURES_MAX, timedelta(0))]
    for kind in (FailureKind.MESSAGE, FailureKind.CONNECTION, FailureKind.UNANSWERED):
        first = 0
        for count in range(1, last + 1):
            if count == last or _wait(count + 1, kind, send) != _wait(count, kind, send):
                is_last = count == last
                found.append(LadderStep(kind, first, FAILURES_MAX if is_last else count, _wait(count, kind, send) * (1 + JITTER_MAX)))
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
    """When the sender of a waiting message must be notified next: of its delay, or of its expiry."""
    expires_at = arrived_at + message_expiration_timeout
    return expires_at if is_notified else min(arrived_at + send.delay_notification_timeout, expires_at)


def delay_notification_due(arrived_at: datetime, now: datetime, send: Send, *, is_notified: bool) -> bool:
    """Whether the sender must be notified of the delay now; only once."""
    return not is_notified and now - arrived_at >= send.delay_notification_timeout


TOLD_WITHIN = timedelta(seconds=10)  # of the time at which it is due, a server that runs has told the sender of the delay


def told_of_delay(stored: StoredMessage, former_heard_at: datetime | None, send: Send) -> Ordinals:
    """The recipients of whose delay the sender has been told: by this node, or by the server that had the message before.
    `former_heard_at`: when that server was last heard; None: not by this process. In doubt it is told twice."""
    late_at = stored.envelope.arrived_at + send.delay_notification_timeout + TOLD_WITHIN
    if stored.is_promoted and former_heard_at is not None and former_heard_at >= late_at:
        return frozenset(range(1, len(stored.envelope.recipients) + 1))
    return frozenset().union(*(retry.ordinals for retry in stored.retries if retry.delay_notified))


def is_expired(arrived_at: datetime, now: datetime, message_expiration_timeout: timedelta) -> bool:
    """Whether the message has expired. Source: msp-ts"""
    return now - arrived_at >= message_expiration_timeout


NO_REPLY = Reply(451, "4.5.0", "The next hop did not answer for this recipient")  # RFC 3463 X.5.0
EXPIRED_CODE, EXPIRED_STATUS = 550, "4.4.7"  # as Exchange writes it: `550 4.4.7 QUEUE.Expired;<text>`. Source: msd-mt


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """Shapes: `delivered`, the keys of `failed`, and `retry.ordinals` are disjoint and together the attempt's ordinals.

    `retry` None: nothing is left of the fork. `expired` is a subset of `failed`; `delayed_dsn` a subset of `retry.ordinals`:
    their sender must be notified now, and `retry.delay_notified` is already set.
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


def delivered_of(ordinals: Ordinals, result: Mapping[int, Reply] | DeliveryError) -> Ordinals:
    """The recipients of this attempt that were delivered."""
    if isinstance(result, DeliveryError):
        return NO_ORDINALS
    return frozenset([ordinal for ordinal in ordinals if ordinal in result and 200 <= result[ordinal].code < 300])


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
    """See the table in the module docstring.

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
        delivered = delivered_of(ordinals, result)
        if len(delivered) == len(ordinals):
            return AttemptOutcome(delivered, {}, None)
        failed = {ordinal: result[ordinal] for ordinal in sorted(ordinals) if ordinal in result and result[ordinal].is_permanent}
        left = ordinals - delivered - failed.keys()
    if not left:
        return AttemptOutcome(delivered, failed, None)
    if is_expired(arrived_at, now, message_expiration_timeout):
        failed |= {ordinal: expired_reply(replies.get(ordinal, NO_REPLY)) for ordinal in sorted(left)}
        return AttemptOutcome(delivered, failed, None, expired=left)
    failures_count = (before.failures_count if before else 0) + (not is_unreachable)
    is_notified = before.delay_notified if before else False
    is_late = delay_notification_due(arrived_at, now, send, is_notified=is_notified)
    kind = FailureKind.UNANSWERED if dot_sent_unanswered else kind
    next_at = now if is_unreachable else attempts_next_at(failures_count, kind, now, send, jitter)
    retry = ForkRetry(
        next_hop,
        left,
        failures_count,
        kind,
        before.first_failed_at if before else now,
        # The last attempt is made when the message expires, even if the ladder's next step is later.
        min(next_at, arrived_at + message_expiration_timeout),
        str(replies.get(min(left), NO_REPLY)),
        is_notified or is_late,
        notice_at=notice_at(arrived_at, send, message_expiration_timeout, is_notified=is_notified or is_late),
    )
    return AttemptOutcome(delivered, failed, retry, delayed_dsn=left if is_late else NO_ORDINALS)


def expired_reply(last: Reply) -> Reply:
    """The reply recorded for an expired recipient, quoting the last one received."""
    return Reply(EXPIRED_CODE, EXPIRED_STATUS, f"QUEUE.Expired; last reply: {last}")


def reply_of(text: str) -> Reply:
    """Parse the last reply of a retry, which is kept as text: `451 4.4.1 …`."""
    code, _, rest = text.partition(" ")
    enhanced, _, words = rest.partition(" ")
    if (number := decimal(code)) is None:
        return NO_REPLY
    return Reply(number, enhanced, words) if enhanced[:2] in ("2.", "4.", "5.") else Reply(number, "", rest)


LOADED_MAX = 1_000  # attempts of the whole node; Exchange's MaxOutboundConnections. Source: msp-ts
LOADED_PER_SESSION = 2
ARRIVING_PER_SESSION = 10  # messages that wait briefly for room
LOST_MIN = 5  # lost sessions in a row
PACE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Retry:
    """An unreachable next hop. `failures_count` counts probes; `noted_at` is `Clock.awake` of the last failure."""

    failures_count: int
    since: datetime
    probe_at: datetime
    noted_at: float
    last_reply: str


@dataclass(frozen=True, slots=True)
class QueueState:
    """`window`: how many attempts may be loaded. `retry` None: Active.

    `lost`: messages whose sessions were lost since the last answer. `paused_until`: when the next attempt may be loaded; None unless
    the next hop loses its sessions.
    """

    window: int
    retry: Retry | None = None
    lost: frozenset[MessageId] = frozenset()
    paused_until: datetime | None = None


def active(concurrency: int) -> QueueState:
    """The state of a queue without failures."""
    return QueueState(concurrency * LOADED_PER_SESSION)


def after_unreachable(
    state: QueueState, reply: str, began_at: float, noted_at: float, now: datetime, send: Send, jitter: float, *, is_limited: bool = False
) -> QueueState:
    """An attempt that began at `began_at` reached no host. Attempts that began before the last failure add no information. `is_limited`: a
    host took messages just before, and refuses further sessions: it is probed after a second, then after twice as long each time.

    Units: `began_at`, `noted_at` of `Clock.awake`; `jitter` in [0, 1).
    """
    before = state.retry
    if before is not None and began_at <= before.noted_at:
        return state
    failures_count = 1 if before is None else before.failures_count + (not is_limited)  # these probes do not use up the ladder
    probe_at = attempts_next_at(failures_count, FailureKind.CONNECTION, now, send, jitter)
    if is_limited:
        probe_at = min(probe_at, now + PACE + (timedelta() if before is None else max(now - before.since, timedelta())))
    return QueueState(1, Retry(failures_count, now if before is None else before.since, probe_at, noted_at, reply))


def after_lost_session(state: QueueState, message_id: MessageId, concurrency: int, now: datetime) -> QueueState:
    """The session of this message's attempt ended before there was a result: a lost connection, a timeout, a broken reply, or 421 before
    the final dot. The next hop could be reached, so its queue is Active."""
    lost_max = max(LOST_MIN, concurrency + 1)
    lost = state.lost if len(state.lost) >= lost_max else state.lost | {message_id}
    if len(lost) < lost_max:
        return replace(after_answer(state, concurrency), lost=lost)
    return QueueState(1, None, lost, now + PACE)


def after_answer(state: QueueState, concurrency: int) -> QueueState:
    """The next hop answered, whatever the reply."""
    whole = concurrency * LOADED_PER_SESSION
    if state.retry is None and state.window >= whole and not state.lost:
        return state
    return QueueState(min(state.window * 2, whole))


def probed_now(state: QueueState, now: datetime) -> QueueState:
    """At an administrator's request, probe a queue in Retry at once."""
    return state if state.retry is None else replace(state, retry=replace(state.retry, probe_at=min(state.retry.probe_at, now)))


def hastened(state: QueueState, now: datetime, send: Send) -> QueueState:
    """The wall clock was set back: no probe waits longer than its step of the ladder, and no attempt longer than the pace."""
    if state.paused_until is not None:
        return replace(state, paused_until=min(state.paused_until, now + PACE))
    if state.retry is None:
        return state
    latest_at = attempts_next_at(state.retry.failures_count, FailureKind.CONNECTION, now, send, 1.0)
    return replace(state, retry=replace(state.retry, probe_at=min(state.retry.probe_at, latest_at)))


def share(queues_count: int, loaded_count: int, running_count: int) -> int:
    """How many attempts one of `queues_count` busy queues may load; it has `loaded_count`, all queues have `running_count`.

    A queue that has none may always load one; only this can raise the total above LOADED_MAX.
    """
    fair = LOADED_MAX // max(1, queues_count)
    return max(1, min(fair, loaded_count + LOADED_MAX - running_count))


def room(state: QueueState, loaded_count: int, share: int, now: datetime) -> int:
    """How many more attempts the queue may load now."""
    if state.retry is not None:
        return 1 if not loaded_count and now >= state.retry.probe_at else 0
    if state.paused_until is not None and now < state.paused_until:
        return 0
    return max(0, min(state.window, share) - loaded_count)


def takes_new(state: QueueState, room: int, *, others_wait: bool, is_behind: bool, has_free_session: bool) -> bool:
    """Whether a message that was just accepted may be loaded.

    Shapes: `others_wait`: in memory, and it must not overtake them; `is_behind`: due mail waits in the ledger. In that case a new
    message may only take a free session, because the other half of the places is for that mail.
    """
    if others_wait or (is_behind and not has_free_session):
        return False
    return state.retry is None and room > 0


def may_arrive(state: QueueState, arriving_count: int, concurrency: int, *, is_behind: bool) -> bool:
    """Whether a new message without room may wait briefly for it: a fast next hop makes room before a round trip through the
    ledger is complete."""
    return not is_behind and state.retry is None and state.paused_until is None and arriving_count < ARRIVING_PER_SESSION * concurrency


SUSPECT_DEATHS = 2
POISON_DEATHS = 3
CORRUPT = "corrupt"  # part of the reason of every unreadable row and content
CORRUPT_ROW = "corrupt row"
KILLED = "died"  # part of the reason of every poison message, and of no other
NOT_PROCESSED = "its values cannot be processed"


class DueAction(StrEnum):
    """What to do with a message that is due."""

    GO = "go"
    ALONE = "alone"  # while no other suspect is tried
    SET_ASIDE = "set aside"


def due_action(deaths_count: int) -> DueAction:
    """The poison rule of the module docstring."""
    if deaths_count >= POISON_DEATHS:
        return DueAction.SET_ASIDE
    return DueAction.ALONE if deaths_count >= SUSPECT_DEATHS else DueAction.GO


def poison_reason(deaths_count: int) -> str:
    """Why a poison message is set aside."""
    return f"the node {KILLED} {deaths_count} times while it handled this content"


def is_handed_over(reason: str, *, is_promoted: bool, is_relayed: bool = False) -> bool:
    """Whether a message set aside for `reason` is to be taken over by its shadow server.

    A corrupt one always: the shadow server has a good copy. A poison one only from the server that had it first: if the message kills the
    second server too, it stays there, set aside. Otherwise it would circulate and kill every server in turn. The same holds for values
    that this node cannot process: the copy has the same ones, but another version may know what to do with them. `is_relayed`: it came
    by TRACK, and the server that took it over would relay it to this server again, or to another one.
    """
    is_only_once = KILLED in reason or NOT_PROCESSED in reason
    return CORRUPT in reason or (is_only_once and not (is_promoted or is_relayed))


def handed_to(claim: Claim) -> str:
    """The server that was asked to take the message over; empty if none was."""
    chosen = claim.chosen()
    return chosen.server if chosen is not None and chosen.choice is Choice.HANDED_OVER else ""


def reason_against_release(stored: StoredMessage) -> str:
    """Why an administrator cannot put this message back into delivery; empty if it is possible."""
    if stored.claim.role is not Role.SET_ASIDE:
        return f"it is not set aside: its role is {stored.claim.role}"
    if refusal := reason_against_removal(stored):
        return refusal
    if not stored.claim.is_primary:
        return f"it is a copy held for {stored.claim.primary}, which delivers the message itself"
    return "its row in the queue database cannot be read" if CORRUPT_ROW in stored.set_aside_reason else ""


def reason_against_removal(stored: StoredMessage) -> str:
    """Why an administrator cannot remove this message; empty if it is possible."""
    if stored.claim.role is not Role.SET_ASIDE:
        return reason_against_suspension(stored)
    if server := handed_to(stored.claim):
        return f"it was handed over to {server}: ask that node, or `peers forget {server}` if its queue is destroyed for good"
    return ""


def reason_against_suspension(stored: StoredMessage) -> str:
    """Why an administrator cannot suspend this message; empty if it is possible."""
    role = stored.claim.role
    if role is Role.SHADOW:
        return f"it is a copy held for {stored.claim.primary}, which delivers the message itself: ask that node"
    if role is Role.SET_ASIDE:
        return "it is set aside: nothing is attempted"
    if role is not Role.PRIMARY:
        return f"nothing is to be delivered: its role is {role}"
    return "" if stored.is_decided else "it is being accepted at this moment: try again"


HASH_OCTETS = 16  # of a key, behind its place
# Longer ones may have been cut: XSHADOW ENVELOPE leaves at least 1,100 / 2 x 7/8 characters of a Message-ID, docs/protocol.md 6.
MESSAGE_ID_CHARACTERS_MAX = 450
DATE_CHARACTERS_MAX = 99  # the receiver records 100
_is_usual_id = re.compile(rf"[ -~]{{1,{MESSAGE_ID_CHARACTERS_MAX}}}").fullmatch
_is_usual_date = re.compile(rf"[ -~]{{1,{DATE_CHARACTERS_MAX}}}").fullmatch


def duplicate_keys(envelope: Envelope, ordinals: Ordinals) -> dict[int, bytes]:
    """The key of each of these recipients; empty if the message cannot be recognised. It has the content, the client and the connector as
    well: devices repeat their Message-IDs, a forger may be first with them, and a filter may hand the message back. It does not have the
    sender's domain: to a sender without one each node gives its own name.

    Domains, and the address `Postmaster` without a domain, are compared without regard to case; local parts are compared exactly.
    RFC 5321 2.4, 4.5.1.

    Shapes: four octets that stand for the Date, and a hash: the keys of mail of one second are neighbours in the database, and what is
    recorded within a few seconds changes few of its pages, however long the window is.
    """
    message_id, date = envelope.internet_message_id, envelope.date
    if envelope.resubmitted_from or not envelope.fingerprint:
        return {}  # it is delivered again on request; or a version took it that did not know its content
    if not _is_usual_id(message_id) or not _is_usual_date(date):
        return {}
    # No part has a line end, so two parts cannot run into each other.
    client, sender = f"{envelope.client_address}\n{envelope.connector}", _local_part(envelope.sender)
    text = f"{message_id}\n{date}\n{envelope.fingerprint}\n{client}\n{sender}\n"
    place = crc32(date.encode()).to_bytes(4)
    if len(ordinals) == 1:
        (ordinal,) = ordinals
        text += canonical(envelope.recipients[ordinal - 1].address)
        return {ordinal: place + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_OCTETS).digest()}
    begun = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_OCTETS)
    keys = {}
    for ordinal in ordinals:
        whole = begun.copy()
        whole.update(canonical(envelope.recipients[ordinal - 1].address).encode("utf-8", "surrogatepass"))
        keys[ordinal] = place + whole.digest()
    return keys


def _local_part(sender: str) -> str:
    local, at, rest = canonical(sender).rpartition("@")
    return local if at else rest


_ADDRESS = attrgetter("address")


@lru_cache(1024)
def _whereabouts(hop: Destination) -> str:
    return repr(sorted(map(str, hop.hosts)) or hop.domain)


def routed(envelope: Envelope, destination_of: Callable[[str], Destination]) -> Envelope:
    """As a client gave it, with where this node sends it in its fingerprint. Another node that has the copy recognises what is sent again
    only if it would send it there, too: a filter behind the one node may hand the message to the other, from the address of the client."""
    if not envelope.fingerprint:
        return envelope
    where = set(map(_whereabouts, map(destination_of, map(_ADDRESS, envelope.recipients))))
    text = "\n".join((envelope.fingerprint, *sorted(where)))
    return replace(
        envelope, fingerprint=blake2b(text.encode("utf-8", "surrogatepass"), digest_size=len(envelope.fingerprint) // 2).hexdigest()
    )


AHEAD_MAX = timedelta(minutes=5)  # clocks that are set by a time server differ by less


def by_this_clock(envelope: Envelope, now: datetime) -> Envelope:
    """The envelope that a peer sent. Its message cannot have arrived at a time to come: more than `AHEAD_MAX` ahead, a clock is wrong there
    or here, and would keep the message from expiry by as much. It then counts as having arrived now."""
    return replace(envelope, arrived_at=now) if envelope.arrived_at > now + AHEAD_MAX else envelope


def shadow_keep_until(held_at: datetime, transport: Transport) -> datetime:
    """When a shadow message that was never acknowledged expires. Source: seed-000"""
    return held_at + transport.safety_net_hold_time + transport.message_expiration_timeout


def safety_net_until(left_at: datetime, transport: Transport) -> datetime:
    """When Safety Net may drop what was delivered or discarded at `left_at`."""
    return left_at + transport.safety_net_hold_time


def remember_until(last_copy_sent_at: datetime, transport: Transport) -> datetime:
    """Until when a primary's row answers STATUS: no shadow message of it is older than that."""
    return last_copy_sent_at + transport.safety_net_hold_time + transport.message_expiration_timeout


TOLERANCE = timedelta(seconds=5)  # between two readings: slewing, and delays on a busy machine
BELIEVED_AFTER_SECONDS = 86_400.0  # a jump that was not reverted for a day is trusted


@dataclass(frozen=True, slots=True)
class WallClock:
    """The latest reading. `jump` was detected by this reading. Units: `awake` and `jumped_at` are seconds of CLOCK_BOOTTIME;
    `ahead` is the part of the wall clock's time that is not trusted."""

    now: datetime
    awake: float
    ahead: timedelta = timedelta(0)
    jumped_at: float = 0.0
    jump: timedelta = timedelta(0)


def next_reading(before: WallClock | None, now: datetime, awake: float) -> WallClock:
    """The next reading. A jump back cancels an earlier jump forward. A jump back alone makes messages look younger, so nothing
    expires early; but retries scheduled for a wall-clock time would wait longer, and must be corrected (`deliver`)."""
    if before is None:
        return WallClock(now, awake)
    jump = now - before.now - timedelta(seconds=awake - before.awake)
    if abs(jump) > TOLERANCE:
        return WallClock(now, awake, max(before.ahead + jump, timedelta(0)), awake, jump)
    if before.ahead and awake - before.jumped_at >= BELIEVED_AFTER_SECONDS:
        return WallClock(now, awake)
    return WallClock(now, awake, before.ahead, before.jumped_at)
