"""The last judgement: after the faults stopped, everything acknowledged arrived, every duplicate has a cause, every row is there."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shadowrelay.lab.account import Cause, Fault, FaultKind, FaultTimes, cause_of
from shadowrelay.lab.traffic import Arrival as LabArrival
from shadowrelay.lab.traffic import SubmissionResult
from shadowrelay.model.ids import MessageId
from tests.simulation.checks import ENDS
from tests.simulation.sink import Arrival

if TYPE_CHECKING:
    from tests.simulation.world import World

RECORD_SECONDS = 2.0


# docs/design.md 6.14, in heartbeats: after a commit, until a node whose disk is dead is silent; and from the next one until it speaks again
UNTIL_SILENT, UNTIL_HEARD_AGAIN = 2.25, 1.25


def complaints(world: "World") -> list[str]:
    """Everything that is not as it must be."""
    world.counts["sent"] = len(world.clients.sent)
    world.counts["promoted"] += world.checker.promotions_count
    world.counts["virtual seconds"] = round(world.now())
    world.counts.update(world.checker.counts)
    world.counts["sent again and recognised"] += world.checker.recognised_count
    if journal := world.checker.journal:
        world.counts["journaled"] += sum(arrival.recipient == journal for arrival in world.sink.arrivals)
    found = [f"still queued: {line}" for line in world.still_open()]
    return found + _lost(world) + _changed(world) + _duplicates(world) + _unexplained_rows(world)


def _lost(world: "World") -> list[str]:
    found = []
    checker = world.checker
    for one in world.clients.sent:
        if not one.acknowledged:
            continue
        message_id = MessageId(one.acknowledged)
        world.counts["acknowledged"] += 1
        world.counts["redundant"] += message_id in checker.redundant
        if message_id not in checker.envelopes:
            found.append(f"message {one.number} was acknowledged as {message_id}, which nobody knows")
        elif not checker.is_over(message_id):
            if message_id in checker.burnt and message_id not in checker.redundant:
                world.counts["lost with its only disk"] += 1
            else:
                found.append(f"message {one.number} is lost: {message_id}")
    return found


def _changed(world: "World") -> list[str]:
    digests = {one.number: one.own_sha256 for one in world.clients.sent}
    return [
        f"message {arrival.number} ({arrival.message_id}) arrived with other bytes"
        for arrival in world.sink.arrivals
        if arrival.number is not None and digests[arrival.number] != arrival.own_sha256
    ]


def _duplicates(world: "World") -> list[str]:
    found = []
    for (message_id, ordinal), arrivals in sorted(world.checker.arrived.items()):
        for index, later in enumerate(arrivals):
            for first in arrivals[:index]:
                if _was_repeated(first, arrivals, later):
                    cause = Cause.DIED_BEFORE_RECORD  # and what came after the repetition is judged with that
                else:
                    cause = _cause(world, message_id, ordinal, first, later)
                world.counts[f"duplicate ({cause.value})"] += 1
                if cause is Cause.NONE:
                    recorded = world.checker.recorded[message_id, ordinal]
                    found.append(
                        f"{message_id} for {later.recipient}: at {first.at:.3f} from {first.client_name} (reply read at "
                        f"{first.reply_read_at}, recorded {recorded}), and again at {later.at:.3f} from {later.client_name} without a cause"
                    )
    return found + _sent_again(world)


def _was_repeated(first: Arrival, arrivals: Sequence[Arrival], later: Arrival) -> bool:
    """The node never had the reply, and delivered again itself before the later one came."""
    return first.reply_read_at is None and any(
        between.client_host == first.client_host and first.at < between.at < later.at for between in arrivals
    )


def _sent_again(world: "World") -> list[str]:
    """Cause (e): the client heard nothing, or a 451 while trouble kept a server that had stored the copy from hearing `released`."""
    found = []
    for one in world.clients.sent:
        acknowledged = {each.network_id for each in one.tries if each.answer is SubmissionResult.ACKNOWLEDGED}
        strange = {
            arrival.message_id: arrival.at
            for arrival in reversed(world.sink.arrivals)
            if arrival.number == one.number and arrival.message_id not in acknowledged
        }
        last = max(strange.values(), default=0.0)
        excuses = sum(each.answer is SubmissionResult.NOTHING for each in one.tries)
        refused = [each for each in one.tries if each.answer is SubmissionResult.REFUSED and each.network_id.startswith("451")]
        troubles = [(fault.began_at, fault.ended_at) for fault in world.faults]
        excuses += sum(any(began <= last and ended >= each.at - 5.0 for began, ended in troubles) for each in refused)
        if len(strange) > excuses:
            found.append(f"message {one.number} arrived also as {sorted(strange)}, which nobody acknowledged")
    return found


def as_seen(faults: Sequence[Fault], heartbeat: float) -> list[Fault]:
    """What a dead disk is for the others. As long as it lasts, nothing is recorded, like on a full one. If it lasts for so long that its
    node falls silent, that node is cut off from all others; it runs, and delivers nothing."""
    found = []
    for fault in faults:
        if fault.kind is not FaultKind.DEAD_DISK:
            found.append(fault)
            continue
        found.append(replace(fault, kind=FaultKind.FULL))
        if fault.seconds > 2 * heartbeat - RECORD_SECONDS:
            found.append(replace(fault, kind=FaultKind.CUT, ended_at=fault.ended_at + UNTIL_HEARD_AGAIN * heartbeat))
    return found


def _could_not_record(world: "World", message_id: MessageId, first: Arrival, fault: Fault) -> bool:
    """(a) The disk died, or was full, before the record. A final dot is sent only until the node falls silent."""
    if fault.kind not in (FaultKind.DEAD_DISK, FaultKind.FULL) or fault.node != first.client_name:
        return False
    dot_at = max((at for at in world.checker.ended[message_id, first.client_host] if at <= first.at), default=first.at)
    lasts = min(fault.ended_at, fault.began_at + UNTIL_SILENT * world.times.heartbeat)
    return fault.began_at - RECORD_SECONDS <= first.at and dot_at <= lasts + RECORD_SECONDS


def _cause(world: "World", message_id: MessageId, ordinal: int, first: Arrival, later: Arrival) -> Cause:
    """(a) is judged from what the node knew: it never had the reply, or had not recorded it when it stopped."""
    if _was_on_its_way(world, message_id, first, later):
        return Cause.DIED_BEFORE_RECORD
    recorded = min(
        (at for at, host in world.checker.recorded[message_id, ordinal] if host == first.client_host and at >= first.at), default=None
    )
    if recorded is None or recorded + world.times.until_heard > later.at:  # whoever sent the later one had not heard of it
        if first.reply_read_at is None or first.reply_read_at > later.at:
            return Cause.DIED_BEFORE_RECORD
        until = later.at if recorded is None else recorded
        for fault in world.faults:
            if _could_not_record(world, message_id, first, fault):
                return Cause.DIED_BEFORE_RECORD
            is_stopped = fault.stops_node and fault.kind is not FaultKind.DEAD_DISK and fault.node == first.client_name
            if is_stopped and fault.began_at <= until and fault.ended_at >= first.at:
                return Cause.DIED_BEFORE_RECORD
    cause = cause_of([_lab(first), _lab(later)], as_seen(world.faults, world.times.heartbeat), world.times)
    if cause is Cause.NONE and _put_back_alone(world, first, later):
        return Cause.TWO_FAILED
    if cause in (Cause.NONE, Cause.CUT_OFF):
        return Cause.CUT_OFF if _was_cut_off(world, first, later) else _two_failed(world, first, later)
    return cause


def _was_on_its_way(world: "World", message_id: MessageId, first: Arrival, later: Arrival) -> bool:
    """The final dot of the later one was sent before the first one arrived, and whoever sent it never had the reply: a slow network
    still carried the octets when it had died, or had waited in vain and tried again."""
    ended = world.checker.ended[message_id, later.client_host]
    return later.reply_read_at is None and not any(first.at <= at <= later.at for at in ended)


def _was_cut_off(world: "World", first: Arrival, later: Arrival) -> bool:
    """(c) The later one heard nothing of the first for the span, and both were in the right as far as they knew: that the first
    one had its lease, where `delivery_without_lease` is `defer`, was checked when it ended the data."""
    times = world.times
    if first.client_host == later.client_host:
        return False
    answered = replace(first, at=first.reply_read_at or first.at)  # before the reply, the first one has nothing to tell
    faults = as_seen(world.faults, times.heartbeat)
    heard_at = times.heard_at(_lab(answered), faults, later.client_name) + RECORD_SECONDS
    for began, ended in apart(faults, times, first.client_name, later.client_name):
        if began > heard_at or first.at > ended + times.heartbeat + RECORD_SECONDS:
            continue
        if later.at < began + times.span - times.until_heard - RECORD_SECONDS:
            continue
        return True
    return False


def apart(faults: Sequence[Fault], times: FaultTimes, one: str, other: str) -> list[tuple[float, float]]:
    """When these two could not talk, or one of them did not run; a short moment between two faults is no peace."""
    pair = {one, other}
    found: list[tuple[float, float]] = []
    for fault in sorted(faults, key=lambda fault: fault.began_at):
        is_cut = fault.kind in (FaultKind.CUT, FaultKind.HALF_CUT, FaultKind.SLOW)
        is_of_pair = is_cut and (pair == {fault.node, fault.other} or (not fault.other and fault.node in pair))
        if not is_of_pair and not (fault.stops_node and fault.node in pair):
            continue
        peace = 2 * times.heartbeat + times.until_heard + RECORD_SECONDS
        if found and fault.began_at <= found[-1][1] + peace:
            found[-1] = (found[-1][0], max(found[-1][1], fault.ended_at))
        else:
            found.append((fault.began_at, fault.ended_at))
    return found


def _put_back_alone(world: "World", first: Arrival, later: Arrival) -> bool:
    """(d) The later one had an older copy of its database, and somebody whom it had to ask could not be reached for a heartbeat."""
    for name, at in world.put_back_at:
        if name != later.client_name or not at <= later.at:
            continue
        others = [machine.name for machine in world.machines if machine.name != name]
        faults = as_seen(world.faults, world.times.heartbeat)
        spans = [span for other in others for span in apart(faults, world.times, name, other)]
        if any(began <= later.at and ended >= at for began, ended in spans):
            return True
    return False


def _two_failed(world: "World", first: Arrival, later: Arrival) -> Cause:
    """(d) where a cut of one direction, or slowness, is a cut for who needs answers. With a new disk the same node is another server."""
    cuts = (FaultKind.HALF_CUT, FaultKind.SLOW)
    faults = as_seen(world.faults, world.times.heartbeat)
    wider = [Fault(FaultKind.CUT, f.node, f.began_at, f.ended_at, f.other) if f.kind in cuts else f for f in faults]
    cause = cause_of([_lab(first), _lab(later)], wider, world.times)
    return Cause.NONE if cause is Cause.CUT_OFF else cause


def _lab(arrival: Arrival) -> LabArrival:
    return LabArrival(arrival.at, arrival.recipient, arrival.message_id, "", arrival.client_name, False, arrival.own_sha256)


def _unexplained_rows(world: "World") -> list[str]:
    """I8: for every recipient that something was received for, a row that says how it ended."""
    found = []
    for one in world.clients.sent:
        message_id = MessageId(one.acknowledged)
        if not message_id or not world.checker.is_over(message_id) or message_id in world.checker.unrecorded | world.checker.burnt:
            continue
        rows = world.checker.rows[message_id]
        ended = {recipient for _, event in rows if event.event in ENDS for recipient in event.recipients}
        if missing := set(one.recipients) - ended:
            found.append(f"no row says what became of {message_id} for {sorted(missing)}: {[event.event.value for _, event in rows]}")
    return found
