"""The invariants of docs/design.md 3 as far as a cluster can be seen from outside: each names what breaks it. Pure.

I6 (everything is bounded) needs floods, not faults: its place is tests/smtp and tests/process. I2 and I3 compare rows of
different nodes; their clocks are one here, all being containers of one machine.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from shadowrelay.lab.scenarios.figures import Evidence, Told
from shadowrelay.model.tracking import EventId, Replication

ENDS = (EventId.SEND, EventId.SENDEXTERNAL, EventId.FAIL, EventId.EXPIRE, EventId.DUPLICATEDELIVER)
BEGINNINGS = (EventId.RECEIVE, EventId.HARECEIVE, EventId.RESUBMIT)


@dataclass(frozen=True, slots=True)
class Finding:
    """One invariant. Shapes: `broken_by` is empty when it holds."""

    invariant: str
    claim: str
    broken_by: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.broken_by


def findings(evidence: Evidence) -> list[Finding]:
    """All that can be seen, in their order."""
    return [Finding(name, claim, tuple(check(evidence))) for name, (claim, check) in INVARIANTS.items()]


def _lost(evidence: Evidence) -> list[str]:
    seen = evidence.verification
    unaccounted = [f"no node took it, and it does not wait at Postfix: {one}" for one in seen.unaccounted]
    return [f"lost: {one}" for one in seen.lost] + [f"still queued: {one}" for one in seen.still_queued] + unaccounted


def said_too_early(evidence: Evidence) -> list[str]:
    """I2: RECEIVE with a copy, and no server had told of that copy by then. Servers that were stopped may have lost their last rows."""
    stored: dict[str, list[Told]] = defaultdict(list)
    for told in evidence.rows(EventId.HARECEIVE):
        stored[told.event.network_message_id].append(told)
    placed: dict[tuple[str, str], set[str]] = defaultdict(set)
    for told in evidence.rows(EventId.HAREDIRECT):
        placed[told.server, told.event.network_message_id].add(told.event.server_hostname)
    broken = []
    for told in evidence.rows(EventId.RECEIVE):
        network_id = told.event.network_message_id
        if told.custom("Replication") != Replication.SUCCESS.value or placed[told.server, network_id] & evidence.stopped:
            continue
        if not any(copy.server != told.server and copy.event.at <= told.event.at for copy in stored[network_id]):
            broken.append(f"acknowledged before a copy was stored: {network_id}")
    return broken


def discarded_too_early(evidence: Evidence) -> list[str]:
    """I3: a shadow message discarded as delivered while its primary still delivered to somebody."""
    ended: dict[tuple[str, str], list[Told]] = defaultdict(list)
    for told in evidence.rows(*ENDS):
        ended[told.server, told.event.network_message_id].append(told)
    broken = []
    for told in evidence.rows(EventId.HADISCARD):
        event = told.event
        ends = ended[event.client_hostname, event.network_message_id]
        if event.source_context == "delivered" and not event.recipients and any(end.event.at > event.at for end in ends):
            broken.append(f"discarded before its primary was done: {event.network_message_id}")
    return broken


def unexplained_mail(evidence: Evidence) -> list[str]:
    """I8: acknowledged mail of which no tracking log tells the beginning, or the end for each recipient."""
    began = {told.event.network_message_id for told in evidence.rows(*BEGINNINGS)}
    ended: dict[str, set[str]] = defaultdict(set)
    for told in evidence.rows(*ENDS):
        ended[told.event.network_message_id] |= set(told.event.recipients)
    broken = []
    for message in evidence.sent:
        for network_id in message.acknowledged_ids:
            if network_id not in began:
                broken.append(f"no row tells that it was received: {network_id}")
            elif set(message.recipients) - ended[network_id]:
                broken.append(f"no row tells its end: {network_id}")
    return broken


def _unexplained_duplicates(evidence: Evidence) -> list[str]:
    return [f"twice without a cause: message {one.number} {one.network_id}" for one in evidence.verification.unexplained]


def _not_taken_up(evidence: Evidence) -> list[str]:
    return [f"still queued: {one}" for one in evidence.verification.still_queued]


INVARIANTS: dict[str, tuple[str, Callable[[Evidence], list[str]]]] = {
    "I1": ("no loss: everything acknowledged has arrived", _lost),
    "I2": ("durable before said: no 250 before the second copy was stored", said_too_early),
    "I3": ("discard last: no copy discarded before its primary was done", discarded_too_early),
    "I4": ("one owner: every duplicate has a cause", _unexplained_duplicates),
    "I5": ("same bytes: what arrived is what was sent", lambda seen: [f"changed: {one}" for one in seen.verification.changed]),
    "I7": ("restart is nothing special: what was in the queues was taken up again", _not_taken_up),
    "I8": ("explainable: tracking logs tell every message from beginning to end", unexplained_mail),
}
