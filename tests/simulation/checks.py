"""The invariants of docs/design.md 3, checked at every commit, every final dot and every step. Knows the whole truth of the world."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Envelope
from shadowrelay.model.ownership import Choice, Claim, Role
from shadowrelay.model.queue import AttemptRecord, NewMessage
from shadowrelay.model.settings import WithoutLease
from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.ownership import rules
from shadowrelay.rules.journal import report_id
from shadowrelay.store.rows import Row
from tests.simulation.machine import Machine
from tests.simulation.power import Power
from tests.simulation.sink import Arrival

JOURNALED = "@branch.example"
HOLDING = (Role.PRIMARY, Role.SHADOW, Role.SET_ASIDE)
RETURNED, AGAIN = "returned although delivered", "delivered again long after the expiry"
ENDS = (EventId.SEND, EventId.SENDEXTERNAL, EventId.FAIL, EventId.EXPIRE, EventId.DUPLICATEDELIVER)


def _as_sent(envelope: Envelope) -> tuple[str, ...]:
    """What is the same in a message that is sent again. docs/design.md 6.5."""
    return (
        envelope.internet_message_id,
        envelope.date,
        envelope.sender,
        envelope.fingerprint,
        envelope.client_address,
        envelope.connector,
    )


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold."""

    at: float
    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.at:10.3f}  {self.invariant}  {self.text}"


class Checker:
    """Port `machine.Observer`. `claims` are as committed on each disk, by host. `copies`: as many disks may be destroyed at once."""

    def __init__(self, now: Callable[[], float], note: Callable[[str], None], copies: int = 1) -> None:
        self._now, self._note, self._copies = now, note, copies
        self.machines: Mapping[str, Machine] = {}
        self.could_meet: Callable[[str, str], bool] = lambda one, other: True  # by name; just now
        self.could_ask: Callable[[str, str], bool] = lambda one, other: True  # by name; at any time of the last span
        self.lost_together: Sequence[frozenset[str]] = ()  # hosts that one machine or label takes at once; others are lost alone
        self.expires_after: float | None = None  # seconds; None: no message expires in this world
        self.power: Power | None = None
        self.journal = ""  # the recipient of reports about mail for `JOURNALED`
        self.strange: set[MessageId] = set()  # copies of a hostile peer: their times and what is done may be anything
        self.violations: list[Violation] = []
        self.claims: dict[str, dict[MessageId, Claim]] = defaultdict(dict)
        self.envelopes: dict[MessageId, Envelope] = {}
        self._sent: dict[tuple[str, ...], list[Envelope]] = defaultdict(list)  # by `_as_sent`
        self._known_at: dict[MessageId, float] = {}
        self.arrived: dict[tuple[MessageId, int], list[Arrival]] = defaultdict(list)
        self.refused: set[tuple[str, str]] = set()
        self.bounced: dict[MessageId, dict[int, list[tuple[MessageId, ...]]]] = defaultdict(dict)  # the notices of each node that did so
        self._tells_of: dict[MessageId, set[tuple[MessageId, int]]] = defaultdict(set)  # a notice's recipients of other messages
        self._made_of: dict[MessageId, set[MessageId]] = defaultdict(set)  # of which messages a notice or a report was made
        self.recorded: dict[tuple[MessageId, int], list[tuple[float, str]]] = defaultdict(list)  # done here, by its primary
        self.told: dict[tuple[MessageId, int], set[str]] = defaultdict(set)  # hosts that held a copy, and heard that it was done
        self.ended: dict[tuple[MessageId, str], list[float]] = defaultdict(list)  # when that host sent a final dot
        self.redundant: set[MessageId] = set()
        self.exposed: set[MessageId] = set()  # a disk that held it was destroyed, and it is not whole again
        self.burnt: set[MessageId] = set()  # the only copy was destroyed: never said to be redundant
        self.unrecorded: set[MessageId] = set()  # likewise, after it had arrived and before a row could say so
        self.rows: dict[MessageId, list[tuple[str, TrackingEvent]]] = defaultdict(list)
        self._lost: dict[tuple[str, MessageId], str] = {}  # from whom that host took it over
        self._numbered_at: dict[tuple[str, MessageId], float] = {}
        self.notices: dict[MessageId, set[str]] = {}  # and which nodes made it
        self._contents: dict[MessageId, bytes] = {}
        self._committed_on: dict[MessageId, set[str]] = defaultdict(set)  # names of servers that ever committed it
        self._put_back: set[str] = set()  # hosts that had an older copy of their disk
        self._disk_since: dict[str, float] = {}
        self.promotions_count = 0
        self.counts: Counter[str] = Counter()
        self.recognised_count = 0  # recipients to whom a message that a client sent again was not delivered again

    def violation(self, invariant: str, text: str) -> None:
        found = Violation(self._now(), invariant, text)
        self.violations.append(found)
        self._note(f"*** {invariant}: {text}")

    # what the nodes do

    def known(self, message: NewMessage) -> None:
        envelope = message.envelope
        if envelope.message_id not in self.envelopes:
            self.envelopes[envelope.message_id] = envelope
            self._known_at[envelope.message_id] = self._now()
            if envelope.internet_message_id and envelope.date:
                self._sent[_as_sent(envelope)].append(envelope)

    def attempted(self, machine: Machine, attempt: AttemptRecord) -> None:
        """About to be committed: what is done without having arrived has failed; its notices are `generated`."""
        envelope = self.envelopes[attempt.message_id]
        for generated in attempt.generated:  # also about a recipient that the message reached, by another node
            self.notices.setdefault(generated.message.envelope.message_id, set()).add(machine.host)
            self._made_of[generated.message.envelope.message_id].add(attempt.message_id)
        for ordinal in attempt.done:
            address = envelope.recipients[ordinal - 1].address
            if attempt.message_id in self.strange:
                self._returned(attempt.message_id, ordinal, ())
                continue
            if self.arrived[attempt.message_id, ordinal]:
                has_failed = ordinal not in attempt.sent and any(generated.action == "failed" for generated in attempt.generated)
                if has_failed and not self._is_refused(attempt.message_id, address):
                    if self._is_expired(envelope) and self._is_excused(RETURNED, machine, attempt.message_id, ordinal):
                        continue
                    text = f"{machine.name} tells the sender that {attempt.message_id} failed for {address}, to whom it was delivered"
                    self.violation("false DSN", text)
                continue
            if self._is_sent_again(machine, envelope, address):
                self._returned(attempt.message_id, ordinal, ())
                self.recognised_count += 1
                continue
            if not self._is_refused(attempt.message_id, address) and not self._is_expired(envelope):
                self.violation("I1", f"{machine.name} gives up {attempt.message_id} for {address}, which nobody refused")
            notices = tuple(generated.message.envelope.message_id for generated in attempt.generated if generated.action == "failed")
            if not notices and envelope.sender:
                self.violation("I1", f"{machine.name} tells nobody that {attempt.message_id} failed for {address}")
            self._returned(attempt.message_id, ordinal, notices)

    def _returned(self, message_id: MessageId, ordinal: int, notices: tuple[MessageId, ...]) -> None:
        self.bounced[message_id].setdefault(ordinal, []).append(notices)
        for notice in notices:
            self._tells_of[notice].add((message_id, ordinal))

    def _is_refused(self, message_id: MessageId, address: str) -> bool:
        return address.startswith("bad") or (message_id, address) in self.refused

    def _is_expired(self, envelope: Envelope) -> bool:
        if self.expires_after is None:
            return False
        return self._now() >= self._known_at[envelope.message_id] + self.expires_after * 0.98 - 1.0

    def _is_sent_again(self, machine: Machine, envelope: Envelope, address: str) -> bool:
        """This host has recorded that the same message reached that recipient, or was told so of a copy. Its window is longer than the
        simulation."""
        for other in self._same_under_other_ids(envelope):
            for ordinal, recipient in enumerate(other.recipients, 1):
                recorders = {host for _, host in self.recorded[other.message_id, ordinal]} | self.told[other.message_id, ordinal]
                if recipient.address == address and self.arrived[other.message_id, ordinal] and machine.host in recorders:
                    return True
        return False

    def _same_under_other_ids(self, envelope: Envelope) -> list[Envelope]:
        """What the sender has sent as the same message."""
        same = self._sent.get(_as_sent(envelope), ())
        return [other for other in same if other.message_id != envelope.message_id]

    def _delivered_before(self, envelope: Envelope, again: Arrival) -> MessageId | None:
        """The same message under another id, as whose delivery to this recipient its database had recorded before the final dot."""
        dot_at = max(self.ended.get((envelope.message_id, again.client_host), ()), default=0.0)
        disk_since = self._disk_since.get(again.client_host, 0.0)
        for other in self._same_under_other_ids(envelope):
            for ordinal, recipient in enumerate(other.recipients, 1):
                if recipient.address != again.recipient:
                    continue
                heard = [one.reply_read_at for one in self.arrived[other.message_id, ordinal] if one.client_host == again.client_host]
                recorded = [at for at, host in self.recorded[other.message_id, ordinal] if host == again.client_host]
                if any(at is not None and disk_since < at <= done < dot_at for at in heard for done in recorded):
                    return other.message_id
        return None

    def tracked(self, machine: Machine, event: TrackingEvent) -> None:
        message_id = MessageId(event.network_message_id)
        self.rows[message_id].append((machine.name, event))
        if event.event in (EventId.RECEIVE, EventId.HARECEIVE, EventId.HAREDIRECT):
            self._check_committed(machine, event, message_id)
        if event.event is EventId.RESUBMIT and event.source is EventSource.REDUNDANCY:
            self.promotions_count += 1
        if event.event is EventId.RECEIVE and ("Replication", "Success") in event.custom_data:
            self.redundant.add(message_id)
            self.check_copies(message_id)
        if event.event in (EventId.RESUBMIT, EventId.POISONMESSAGE):
            self._note(f"{machine.name}: {event.event} {message_id} {dict(event.custom_data)} {event.source_context}")

    def _check_committed(self, machine: Machine, event: TrackingEvent, message_id: MessageId) -> None:
        """I2. Such a row is written when the promise is made or was heard: it must be in a commit by now."""
        server = event.server_hostname if event.event is EventId.HAREDIRECT else machine.name
        if server not in self._committed_on[message_id]:
            self.violation("I2", f"{machine.name}: {event.event} {message_id}, which {server} has not committed")

    def acknowledged(self, host: str, message_id: MessageId) -> None:
        """I2. A client has its 250."""
        machine = self.machines[host]
        if machine.name not in self._committed_on[message_id]:
            self.violation("I2", f"{machine.name} says 250 to {message_id}, which it has not committed")

    def opened(self, machine: Machine, rows: Sequence[Row], damaged: Sequence[MessageId]) -> None:
        """I2: a process, or a loss of power, ends, and all that was committed is still there. I7: and is what the next one begins with."""
        if self.power is None:
            return
        before, found = self.claims[machine.host], {row.message_id: row.claim for row in rows}
        for message_id in before.keys() - found.keys():
            self.violation("I2", f"{machine.name} is started and has lost {message_id}, {_text(before[message_id])}")
        for message_id, claim in found.items():
            held = before.get(message_id)
            if claim != held and not (held is not None and held.handed and claim == replace(held, handed=False)):  # rule *said again*
                self.violation("I7", f"{machine.name} is started, and {_text(held)} of {message_id} is {_text(claim)}")
        for message_id in damaged:
            self.violation("I2", f"{machine.name} is started and has lost the content of {message_id}")

    def committed(self, machine: Machine, rows: Sequence[tuple[MessageId, Row | None]]) -> None:
        if self.power is not None and (paths := self.power.unsynced(machine.directory)):
            self.violation("I2", f"{machine.name} has committed, and not synced {paths}")
        claims = self.claims[machine.host]
        for message_id, row in rows:
            self._committed_on[message_id].add(machine.name)
            before = claims.get(message_id)
            if row is None:
                claims.pop(message_id, None)
            else:
                claims[message_id] = row.claim
                self._changed(machine, message_id, before, row.claim)
                if row.place is not None:
                    self._content(machine, message_id, row.place.sha256)
        for message_id, _ in rows:
            if message_id in self.burnt and self.survives(message_id, ()):  # the copy burnt while its primary was still writing
                self.burnt.discard(message_id)
                self.exposed.add(message_id)
            if message_id in self.exposed and self.is_whole(message_id):
                self.exposed.discard(message_id)
            if message_id in self.redundant:
                self.check_copies(message_id)

    def _changed(self, machine: Machine, message_id: MessageId, before: Claim | None, after: Claim) -> None:
        if before == after:
            return
        self._note(f"{machine.name}: {message_id[:18]} {_text(before)} -> {_text(after)}")
        if before is None or before.number != after.number:
            self._numbered_at[machine.host, message_id] = self._now()
        done_before = before.done if before is not None else frozenset()
        if not done_before <= after.done:
            self.violation("done grows", f"{machine.name} forgets of {message_id} that {sorted(done_before - after.done)} are done")
        for ordinal in after.done - done_before:
            if not self.arrived[message_id, ordinal] and ordinal not in self.bounced[message_id] and message_id not in self.strange:
                self.violation("I3", f"{machine.name} calls {message_id} done for {ordinal}, which it is not")
            if before is not None and before.is_primary:
                self.recorded[message_id, ordinal].append((self._now(), machine.host))
            elif before is not None and before.role is Role.SHADOW:
                self.told[message_id, ordinal].add(machine.host)
        if after.role is Role.SHADOW and not self._put_back:
            for host, claims in self.claims.items():
                other = claims.get(message_id)
                if host != machine.host and other is not None and other.role is Role.SHADOW and other.number == after.number:
                    self.violation("I4", f"two copies of {message_id} have one number: {machine.name} and {host}, {_text(after)}")
        if (
            before is not None
            and before.role is Role.SHADOW
            and after.role is Role.RELEASED
            and self._is_expired(self.envelopes[message_id])
        ):
            primary = next((one for one in self.machines.values() if one.name == before.primary), None)
            if primary is not None and primary.process is None:  # with `defer` it may wait for longer than a copy is kept (seed 600302)
                self.exposed.add(message_id)
        if before is not None and before.role is Role.SHADOW and rules.is_unreadable_copy(after):
            self.exposed.add(message_id)  # its disk took it, as if it were destroyed
        if after.is_primary and (before is None or not before.is_primary):
            self._lost[machine.host, message_id] = self._lost_original(machine.host, message_id) if before is None else before.primary
            self.check_owner(message_id)

    def _lost_original(self, host: str, notice: MessageId) -> str:
        """From whom it took over what this notice or report was made of: both heirs of a server make the same one."""
        return next((name for message_id in self._made_of[notice] if (name := self._lost.get((host, message_id)))), "")

    def _content(self, machine: Machine, message_id: MessageId, sha256: bytes) -> None:
        if message_id in self.notices:
            return  # two nodes may both make it: the same id, and the words of each
        if self._contents.setdefault(message_id, sha256) != sha256:
            self.violation("I5", f"{machine.name} holds other bytes of {message_id}")

    def ends_data(self, machine: Machine, message_id: MessageId) -> None:
        """It sends the final dot now."""
        self.ended[message_id, machine.host].append(self._now())
        claim = self.claims[machine.host].get(message_id)
        if claim is None or not claim.is_primary:
            self.violation("I4", f"{machine.name} ends the data of {message_id} without a claim: {_text(claim)}")
        if self.is_entitled(machine, message_id):
            self.check_owner(message_id)
        elif machine.settings.transport.delivery_without_lease is WithoutLease.DEFER and self._could_promote(machine, message_id):
            self.violation("I4", f"{machine.name} ends the data of {message_id} without its leases: {_text(claim)}")

    def _could_promote(self, machine: Machine, message_id: MessageId) -> bool:
        """Another holds a copy for so long that its patience may end. What is listed may never have been sent, and the lease
        on what is being sent counts when its answer is there: only the process knows that."""
        patience = machine.settings.transport.shadow_resubmit_time_span.total_seconds() / 2
        mine = self.claims[machine.host].get(message_id)
        holders = {host: self.claims[host][message_id] for host in self.holders(message_id)}
        for host, claim in holders.items():  # one that has promoted holds no copy any more
            is_heir = claim.is_primary and self._lost.get((host, message_id)) == machine.name
            if is_heir and mine is not None and rules.outranks(claim.number, mine.number) and machine.host not in self._put_back:
                return True
        others = [host for host, claim in holders.items() if claim.primary == machine.name]
        old = [host for host in others if self._now() - self._numbered_at[host, message_id] > patience]
        return not all(self._lease_runs(machine, message_id, self.machines[host].name) for host in old)

    def _lease_runs(self, machine: Machine, message_id: MessageId, server: str) -> bool:
        entry = self.claims[machine.host][message_id].copy_on(ServerName(server))
        return machine.node is not None and entry is not None and machine.node._context.leases.left(message_id, entry) > 0

    # what the next hop sees

    def dot(self, message_id: str, host: str) -> None:
        if MessageId(message_id) not in self.envelopes:
            self.violation("I8", f"a message without a name comes from {host}: {message_id!r}")

    def arrival(self, arrival: Arrival) -> None:
        message_id = MessageId(arrival.message_id)
        envelope = self.envelopes.get(message_id)
        if envelope is None:
            return
        ordinal = next((n for n, r in enumerate(envelope.recipients, 1) if r.address == arrival.recipient), 0)
        if not ordinal:
            self.violation("I5", f"{message_id} arrives for {arrival.recipient}, who is no recipient of it")
        was_taken_over = any(  # then only its own claim says who has it
            event.event is EventId.RESUBMIT and event.source is EventSource.REDUNDANCY and name == arrival.client_name
            for name, event in self.rows[message_id]
        )
        if not was_taken_over and (first := self._delivered_before(envelope, arrival)):
            self.violation(
                "again", f"{arrival.client_name} had recorded {first}, and delivers it again as {message_id}, {arrival.recipient}"
            )
        if any(self.bounced[message_id].get(ordinal, ())) and not self._is_refused(message_id, arrival.recipient):
            self.violation("false DSN", f"{arrival.client_name} delivers {message_id} to {arrival.recipient}, after it was returned")
        over_at = math.inf if self.expires_after is None else self._known_at[message_id] + self.expires_after * 1.02 + 20.0
        is_late = arrival.at > over_at and bool(self.arrived[message_id, ordinal])  # the judge says why it is a duplicate
        if is_late and not self._is_excused(AGAIN, self.machines[arrival.client_host], message_id, ordinal):
            text = f"{arrival.client_name} delivers {message_id} to {arrival.recipient} again, long after it expired"
            self.violation("expired", text)
        self.arrived[message_id, ordinal].append(arrival)
        self._note(f"arrival: {message_id} for {arrival.recipient} from {arrival.client_name}")

    def _is_excused(self, what: str, machine: Machine, message_id: MessageId, ordinal: int) -> bool:
        """This node could not know that the recipient is done: no node has recorded it, because the reply to its final dot was lost; or
        this one has run for a span, and could ask none of those that have. That they have forgotten it since is no excuse."""
        knowing = {at for _, at in self.recorded[message_id, ordinal]}
        knowing |= {at for at, claims in self.claims.items() if message_id in claims and ordinal in claims[message_id].done}
        names = {at: one.name for at, one in self.machines.items()}
        if machine.host in knowing or any(self.could_ask(machine.name, names[at]) for at in knowing):
            return False
        why = f"excused: {what}, {'who knew it was away for the span' if knowing else 'no reply to the dot had come'}"
        self.counts[why] += 1
        self._note(f"{why}: {machine.name} {message_id} {ordinal}; {sorted(knowing)} know; {self.state(message_id)}")
        return True

    def refusal(self, message_id: str, recipient: str) -> None:
        self.refused.add((message_id, recipient))

    # what faults do

    def wiped(self, *hosts: str) -> None:
        """What is left now must be made redundant again; that takes time."""
        self._disk_since |= dict.fromkeys(hosts, self._now())
        for message_id, claim in [held for host in hosts for held in self.claims.pop(host, {}).items()]:
            if self.is_over(message_id):
                if claim.role in HOLDING and not self.holders(message_id):
                    self.unrecorded.add(message_id)
            elif not self.survives(message_id, ()) and message_id not in self.redundant:
                self.burnt.add(message_id)
            elif claim.role in HOLDING:
                self.exposed.add(message_id)  # said to be redundant or not yet: its primary may still be told of this copy
        for message_id in self.redundant - self.exposed:
            if not self.survives(message_id, ()):
                self.violation("I1", f"{message_id} was only on {' and '.join(hosts)}")
            elif not self.is_over(message_id) and not self.is_whole(message_id):
                self.exposed.add(message_id)
        self.exposed |= {message_id for message_id in self.notices if 1 <= len(self.holders(message_id)) <= self._copies}

    def put_back(self, host: str, claims: Mapping[MessageId, Claim]) -> None:
        """Its disk is as it was earlier, with these claims."""
        self.wiped(host)
        self.claims[host] = dict(claims)
        self._put_back.add(host)

    def may_wipe(self, host: str) -> bool:
        """All that was promised survives it, as far as earlier destroyed disks are concerned: what they held is whole again."""
        return all(self.is_over(message_id) for message_id in self.exposed)

    # what must be true

    def holders(self, message_id: MessageId) -> list[str]:
        return [host for host, claims in self.claims.items() if (claim := claims.get(message_id)) and _is_held(claim)]

    def is_committed(self, message_id: MessageId) -> bool:
        """Ever, by anybody."""
        return bool(self._committed_on.get(message_id))

    def state(self, message_id: MessageId) -> dict[str, str]:
        """The claims to it, for people."""
        return {name: _text(claims.get(message_id)) for name, claims in self.claims.items()}

    def is_whole(self, message_id: MessageId, without: str = "") -> bool:
        """The highest claim is that of a primary which has chosen as many servers as are wanted that do hold it. What has a lower number
        may be released at any time: also a primary server and its copy, for the sake of a copy whose primary server has just burnt."""
        hosts = {machine.name: machine.host for machine in self.machines.values()}
        holders = [host for host in self.holders(message_id) if host != without]
        owner = max(
            holders, key=lambda host: (self.claims[host][message_id].number, self.claims[host][message_id].is_primary), default=None
        )
        if owner is None:
            return False
        claim = self.claims[owner][message_id]
        kept = {owner, *(hosts[copy.server] for copy in claim.copies if claim.is_chosen(copy.server) and hosts[copy.server] in holders)}
        return all(kept - lost for lost in self._losses(kept))

    def could_be_whole(self, without: str) -> bool:
        """The other nodes are not all lost together: with several nodes on each machine there may be no other place for a copy."""
        kept = {machine.host for machine in self.machines.values()} - {without}
        return all(kept - lost for lost in self._losses(kept))

    def is_resolved(self, message_id: MessageId, ordinal: int, without: Sequence[str] | None) -> bool:
        """It arrived, or the sender is going to be told, even if those disks are destroyed. `None`: no disk survives. What arrived and is
        journaled is not over before its report is."""
        if self.arrived[message_id, ordinal]:
            return self._is_reported(message_id, without)
        return any(self._is_told(notices, without) for notices in self.bounced[message_id].get(ordinal, ()))

    def _is_reported(self, message_id: MessageId, without: Sequence[str] | None) -> bool:
        if not self.journal or not self.is_journaled(message_id):
            return True
        report = report_id(message_id, self.journal)
        return report in self.envelopes and self._is_told((report,), without)

    def is_journaled(self, message_id: MessageId) -> bool:
        """By the route of its recipients."""
        envelope = self.envelopes[message_id]
        return envelope.sender != "" and any(recipient.address.endswith(JOURNALED) for recipient in envelope.recipients)

    def _is_told(self, notices: Sequence[MessageId], without: Sequence[str] | None) -> bool:
        return all((without is not None and notice in self.exposed) or self.survives(notice, without) for notice in notices)

    def is_superfluous(self, notice: MessageId) -> bool:
        """A notice of failures: each of those recipients was reached after all, another node tells of it, or will try it again. Or the
        message was never redundant, and the disk that made the notice is gone with both (seed 600178)."""
        return all(
            self.arrived[message_id, ordinal]
            or (message_id not in self.redundant and not any(message_id in self.claims[host] for host in self.notices[notice]))
            or any(ordinal not in self.claims[host][message_id].done for host in self.holders(message_id))
            or any(notice not in others and self._is_told(others, ()) for others in self.bounced[message_id][ordinal])
            for message_id, ordinal in self._tells_of[notice]
        )

    def survives(self, message_id: MessageId, without: Sequence[str] | None) -> bool:
        """Each recipient has it, or will have it, even if those disks are destroyed."""
        envelope = self.envelopes[message_id]
        for ordinal in envelope.ordinals:
            if self.is_resolved(message_id, ordinal, without):
                continue
            if without is None:
                return False
            holders = [host for host in self.holders(message_id) if host not in without]
            if all(ordinal in self.claims[host][message_id].done for host in holders):
                return False
        return True

    def is_over(self, message_id: MessageId) -> bool:
        return self.survives(message_id, None)

    def is_delivered_or_noticed(self, message_id: MessageId) -> bool:
        """Nothing is left of it but notices, which somebody has."""
        envelope = self.envelopes[message_id]
        return all(self.is_resolved(message_id, ordinal, ()) for ordinal in envelope.ordinals)

    def check_copies(self, message_id: MessageId) -> None:
        """I1: what was acknowledged as redundant survives the loss of any one disk, or of as many as there are copies."""
        if message_id in self.exposed:
            return
        for hosts in self._losses(self.holders(message_id)):
            if not self.survives(message_id, tuple(hosts)):
                state = self.state(message_id)
                self.violation("I1", f"{message_id} would not survive the loss of {' and '.join(hosts) or 'nothing'}: {state}")
                self.exposed.add(message_id)  # said once
                return

    def _losses(self, holders: Collection[str]) -> Iterator[frozenset[str]]:
        """What may be destroyed at once: as many disks as there are copies, each with all that are lost together with it."""
        alone = [frozenset({host}) for host in holders]
        events = dict.fromkeys([*(hosts for hosts in self.lost_together if not hosts.isdisjoint(holders)), *alone])
        for together in combinations(events, min(self._copies, len(events))):
            yield frozenset().union(*together)

    def check_all_copies(self) -> None:
        for message_id in self.redundant:
            self.check_copies(message_id)

    def is_entitled(self, machine: Machine, message_id: MessageId) -> bool:
        """All its leases run, so that it may begin an attempt."""
        claim = self.claims[machine.host].get(message_id)
        if claim is None or claim.role is not Role.PRIMARY or machine.node is None or not hasattr(machine.node, "_context"):
            return False
        if rules.is_of_older_copy(claim, machine.node._context.me):
            return False
        if any(copy.choice is Choice.HANDED_OVER for copy in claim.copies):
            return False
        leases = machine.node._context.leases
        return not rules.without_lease(claim, lambda copy: leases.left(message_id, copy) > 0)

    def check_owner(self, message_id: MessageId) -> None:
        """I4: never two that are entitled, but for two heirs of a third server that could not ask each other: cause (d)."""
        entitled = [machine.host for machine in self.machines.values() if self.is_entitled(machine, message_id)]
        if len(entitled) > 1 and not self.is_over(message_id) and not self._are_heirs(entitled, message_id):
            state = self.state(message_id)
            self.violation("I4", f"entitled to {message_id}: {entitled}; {state}")

    def _are_heirs(self, hosts: Sequence[str], message_id: MessageId) -> bool:
        """Each took it over from a server that is not among them, and none could meet another: two servers failed, or a server and
        the network."""
        names = {host: self.machines[host].name for host in hosts}
        lost = [self._lost.get((host, message_id), "") for host in hosts]
        if not all(lost) or set(lost) & set(names.values()):
            return False
        return not any(self.could_meet(one, other) for one in names.values() for other in names.values() if one < other)


def _is_held(claim: Claim) -> bool:
    return claim.role in HOLDING and not rules.is_unreadable_copy(claim)


def _text(claim: Claim | None) -> str:
    if claim is None:
        return "-"
    number = f"{claim.number.ownership}.{claim.number.placement}.{claim.number.database[:4]}"
    copies = ",".join(f"{copy.server.split('.')[0]}:{copy.choice.name.lower()}" for copy in claim.copies)
    primary = f" of {claim.primary.split('.')[0]}/{claim.database[:4]}" if claim.primary else ""
    done = f" done {sorted(claim.done)}" if claim.done else ""
    return f"{claim.role.value} {number}{primary}{' handed' if claim.handed else ''} [{copies}]{done}"
