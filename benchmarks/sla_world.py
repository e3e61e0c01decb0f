"""A small world for the redundancy report: servers with clocks and logs, and what really happened to messages there.

Things happen at the world's time; each server writes them down by its own clock, and some of what it wrote is lost. The truth
is kept by what happens (`Life.finish`, and what the stories of `sla_stories` declare), never by reading rows.
"""

import random
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Envelope, Recipient
from shadowrelay.model.ownership import Claim, CopyNumber, Role
from shadowrelay.model.queue import Origin, StoredMessage
from shadowrelay.model.replies import Reply
from shadowrelay.model.tracking import EventId, EventSource, Replication, ResubmitReason, TrackingEvent
from shadowrelay.protocol import tracking as rows

MICROSECOND = timedelta(microseconds=1)
HEARTBEAT, SPAN = timedelta(minutes=2), timedelta(hours=3)
EXPIRATION, HOLD = timedelta(days=2), timedelta(days=4)  # HOLD: safety_net_hold_time + message_expiration_timeout
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
LENGTH = timedelta(days=8)
NOW = BEGIN + LENGTH
LOG_ENDS = "unknown: log ends"
FIRST = CopyNumber(1, 1, DatabaseId(""))
DELIVERED_BEFORE = MessageId("00000000-0000-4000-8000-000000000001")  # what a DUPLICATEDELIVER row refers to
OK, GONE, BUSY = Reply(250, "2.1.5", "OK"), Reply(550, "5.1.1", "No such user; really, none"), Reply(451, "4.7.1", "Try again later")
SUBJECTS = (
    "Hello", "Invoice, urgent", 'He said "yes"', "line one\r\nline two", "a;b;c", "Grüße aus Köln", "日本語の件名",
    "tab\tand \x00 nul", "",
    "\\u0041 is no A", "half \ud83d a pair", "\u2028 separated", '"', '",', "#Fields: not,a,header", "=1+1", "🎉" * 30, " padded ",
    "x" * 900,
)  # fmt: skip


def microseconds(span: timedelta) -> int:
    """Whole ones, exactly."""
    return span // MICROSECOND


@dataclass(eq=False)
class Node:
    """A server, its clock, its log. `steps`: the clock jumps by so much at that time. A node without `ends_at` lives on."""

    name: ServerName
    site: str
    skew: timedelta = timedelta(0)
    step: tuple[datetime, timedelta] | None = None
    ends_at: datetime | None = None
    is_burnt: bool = False
    known_until: datetime | None = None  # by the logs of all
    lines: list[tuple[datetime, TrackingEvent, bool]] = field(default_factory=list)  # world's time, row, is it lost?

    def clock(self, at: datetime) -> datetime:
        """What its clock shows."""
        jumped = self.step[1] if self.step is not None and at >= self.step[0] else timedelta(0)
        return at + self.skew + jumped


@dataclass
class Truth:
    """What happened in a boundary, as far as the logs that are left can know it."""

    counts: Counter[str] = field(default_factory=Counter)
    milliseconds: dict[str, Counter[int]] = field(default_factory=dict)
    exposures: list[dict[str, Any]] = field(default_factory=list)
    duplicates: list[dict[str, Any]] = field(default_factory=list)
    losses: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[dict[str, Any]] = field(default_factory=list)
    quarantine: Counter[str] = field(default_factory=Counter)
    stories: Counter[str] = field(default_factory=Counter)

    def elapsed(self, name: str, span: timedelta) -> timedelta:
        """Note a time between two clocks: whole milliseconds, never negative."""
        if span < timedelta(0):
            self.counts["clock_skews"] += 1
            span = timedelta(0)
        self.milliseconds.setdefault(name, Counter())[microseconds(span) // 1000] += 1
        return span

    def as_json(self) -> dict[str, Any]:
        """Histograms as pairs of milliseconds and count."""
        histograms = {name: [list(pair) for pair in sorted(counts.items())] for name, counts in self.milliseconds.items()}
        return {
            "counts": dict(sorted(self.counts.items())), "milliseconds": histograms, "quarantine": dict(self.quarantine),
            "stories": dict(self.stories), "exposures": self.exposures, "duplicates": self.duplicates, "losses": self.losses,
            "orphans": self.orphans,
        }  # fmt: skip


class World:
    """One boundary. `live` nodes run until the end, and so does `unsteady`, whose clock jumps; `dead` ends early; `burnt` has no log."""

    def __init__(self, seed: int, *, nodes: int, boundary: str, faults: float = 0.5) -> None:
        self.random = random.Random(seed)
        self.boundary, self.faults = boundary, faults
        self.truth = Truth()
        self._internal_id = 0
        self._lives: list[Life] = []
        sites = [f"{boundary}-{site}" for site in ("east", "west", "north")[: 2 + (nodes > 5)]]
        self.live = [self._node(index, sites[index % len(sites)]) for index in range(nodes)]
        self.dead = self._node(nodes, sites[0])
        self.dead.ends_at = BEGIN + timedelta(days=2, hours=7)
        self.burnt = self._node(nodes + 1, sites[1])
        self.burnt.is_burnt = True
        self.unsteady = self._node(nodes + 2, sites[0])
        jump = timedelta(microseconds=self.random.randint(-120_000_000, 120_000_000))
        self.unsteady.step = (BEGIN + timedelta(hours=self.random.uniform(20, 150)), jump)
        self.nodes = [*self.live, self.dead, self.burnt, self.unsteady]

    def _node(self, index: int, site: str) -> Node:
        worst = self.random.choice((0, 0, 20_000, 1_500_000, 45_000_000))
        skew = timedelta(microseconds=self.random.randint(-worst, worst))
        return Node(ServerName(f"mx{index}.{site}.example"), site, skew)

    def pick(self, count: int) -> list[Node]:
        """Different live nodes."""
        return self.random.sample(self.live, count)

    def seconds(self, low: float, high: float) -> timedelta:
        """A random span, in whole microseconds."""
        return timedelta(microseconds=self.random.randint(round(low * 1e6), round(high * 1e6)))

    def minutes(self, low: float, high: float) -> timedelta:
        """A random span."""
        return self.seconds(low * 60, high * 60)

    def latency(self) -> timedelta:
        """Mostly tens of milliseconds, sometimes seconds."""
        return timedelta(microseconds=min(round(self.random.lognormvariate(10.3, 1.1)), 20_000_000))

    def uuid(self) -> str:
        """Random, by the seed."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def envelope(
        self, at: datetime, *, recipients: int | None = None, internet_id: str | None = None, sender: str | None = None
    ) -> Envelope:
        """Mail as it comes: mostly one recipient, sometimes many; subjects of every kind."""
        count = recipients or self.random.choice((1, 1, 1, 1, 2, 3, 5, 12))
        strange = self.random.random() < 0.15
        names = [f"r{index}@{self.random.choice('abc')}.dest.example" for index in range(count)]
        if strange:
            names[0] = self.random.choice(
                ('"a;b"@a.dest.example', '"q\\"q, r"@b.dest.example', "ünï@c.dest.example", "\\u0061@a.dest.example")
            )
        message = self.uuid()
        subject = self.random.choice(SUBJECTS) if strange or self.random.random() < 0.3 else f"Report {self.random.randrange(10**6)}"
        return Envelope(
            MessageId(message), f"s{self.random.randrange(500)}@src.example" if sender is None else sender,
            tuple(map(Recipient, names)), at, client_address="192.0.2.7", client_name="client.src.example", connector="inbound",
            internet_message_id=internet_id if internet_id is not None else f"<{message[:18]}@src.example>", subject=subject,
        )  # fmt: skip

    def finished(self, life: "Life") -> None:
        """What the logs tell of it is known when all logs have ended."""
        self._lives.append(life)

    def close(self) -> None:
        """Nothing more happens: enter into the truth what depends on the ends of the logs."""
        kept = {node: [row for _, row, is_lost in node.lines if not is_lost and not node.is_burnt] for node in self.nodes}
        ends = {node: max((row.at for row in rows), default=None) for node, rows in kept.items()}
        taken = [(row.reference, row.at) for rows in kept.values() for row in rows if row.source is EventSource.REDUNDANCY]
        for node, end in ends.items():  # a server that others took over has nothing more to tell
            is_lost = any(old == node.name and (end is None or at >= end) for old, at in taken)
            node.known_until = NOW if is_lost else end
        for life in self._lives:
            life.settle()

    def next_id(self) -> int:
        """internal-message-id."""
        self._internal_id += 1
        return self._internal_id


@dataclass(frozen=True)
class Takeover:
    """A server found another one lost. Instants by the clock of the new primary."""

    old: Node
    new: Node
    reason: ResubmitReason
    silent_since: datetime
    detected_at: datetime

    def limit(self) -> datetime:
        """Until when a RESUBMIT is in time."""
        return self.silent_since + SPAN + HEARTBEAT if self.reason is ResubmitReason.SILENCE else self.detected_at + HEARTBEAT


class Life:
    """What happens to one message. Every step writes its row, and notes what the logs that are left can know of it.

    `hidden`: nodes whose rows about this message are lost (a file that never came, a disk that burnt). Times given are the world's.
    """

    def __init__(self, world: World, primary: Node, envelope: Envelope, *, hidden: Iterable[Node] = ()) -> None:
        self.world, self.primary, self.envelope = world, primary, envelope
        self.hidden = {*hidden, *(node for node in world.nodes if node.is_burnt)}
        claim = Claim(Role.PRIMARY, FIRST, len(envelope.recipients))
        self.stored = StoredMessage(world.next_id(), envelope, claim, Origin.CLIENT, None, None)
        self.size = world.random.randint(400, 40_000)
        self.copies_count = 1  # as far as anybody knows
        self.is_dsn = self.is_refused = self.is_redundant = self.is_again = self.is_from_safety_net = False
        self.known: list[tuple[datetime, Node]] = []  # HARECEIVE, RESUBMIT: when, and who was named as primary
        self.received_at: datetime | None = None
        self.elapsed: tuple[timedelta, timedelta | None] = (timedelta(0), None)
        self.ends: dict[int, list[datetime]] = {}
        self.told: dict[int, list[datetime]] = {}  # ends that only HADISCARD knows
        self.deliveries: dict[int, list[datetime]] = {}
        self.had: set[int] = set()  # who got it before, when the client sent it first
        self.copies: dict[Node, datetime] = {}
        self.holders: dict[Node, Node] = {}
        self.discarded: dict[Node, set[int]] = {}
        self.discards: dict[Node, list[datetime]] = {}
        self.promoted: set[Node] = set()
        self.acknowledged: tuple[datetime, Node, datetime | None, bool] | None = None  # and done at, and whether it is reconstructed
        self.exposed: list[tuple[datetime | None, datetime | None, str]] = []
        self.causes: dict[str, dict[Any, str]] = {"duplicates": {}, "losses": {}, "orphans": {}}

    @property
    def everybody(self) -> list[int]:
        """All ordinals."""
        return list(range(1, len(self.envelope.recipients) + 1))

    def _write(self, node: Node, at: datetime, row: TrackingEvent) -> bool:
        assert node.ends_at is None or at < node.ends_at, "the dead do not write"
        assert row.at < NOW, "nothing happens after the end"
        node.lines.append((at, row, node in self.hidden))
        return node not in self.hidden

    # how it comes

    def copy(self, shadow: Node, at: datetime, primary: Node | None = None) -> None:
        """HARECEIVE."""
        by = primary or self.primary
        row = rows.hareceive(
            shadow.name, self.envelope, at=shadow.clock(at), primary=by.name, size=self.size, internal_id=self.world.next_id()
        )
        if self._write(shadow, at, row):
            self.known.append((row.at, by))
            if shadow not in self.copies or row.at < self.copies[shadow]:
                self.copies[shadow], self.holders[shadow] = row.at, by

    def accept(self, at: datetime, *shadows: Node, wanted: int = 1, replication: Replication = Replication.FAILED) -> None:
        """HARECEIVE and HAREDIRECT of each copy, RECEIVE. With fewer copies than wanted HAREDIRECTFAIL, or nothing, before RECEIVE."""
        me, clock = self.primary.name, self.primary.clock(at)
        ack = self.world.latency() + timedelta(milliseconds=2)
        elapsed = ack * self.world.random.choice((0.5, 0.9, 1.0))
        for shadow in shadows:
            self.copy(shadow, at - timedelta(milliseconds=1))
            row = rows.haredirect(me, self.stored, at=clock, server=shadow.name, elapsed=elapsed, size=self.size)
            self._write(self.primary, at, row)
        is_redundant = len(shadows) == wanted
        shadow_elapsed = elapsed if is_redundant else None
        if not is_redundant and replication is Replication.FAILED:
            self._write(self.primary, at, rows.haredirectfail(me, self.stored, at=clock, size=self.size))
        row = rows.receive(
            me, self.stored, at=clock, replication=Replication.SUCCESS if is_redundant else replication, ack_elapsed=ack,
            shadow_elapsed=shadow_elapsed, size=self.size, copies=(len(shadows), wanted),
        )  # fmt: skip
        if self._write(self.primary, at, row):
            self.received_at, self.is_redundant, self.elapsed = clock, is_redundant, (ack, shadow_elapsed)
            self.copies_count = len(shadows)

    def refuse(self, at: datetime) -> None:
        """HAREDIRECTFAIL, and 451 to the client."""
        self.is_refused = True
        reason = "mx9: timed out; mx8: circuit open"
        self._write(self.primary, at, rows.haredirectfail(self.primary.name, self.stored, at=self.primary.clock(at), reason=reason))

    def place(self, by: Node, shadow: Node, at: datetime) -> datetime:
        """A later placement. Returns what the clock of `by` showed."""
        self.copy(shadow, at - timedelta(milliseconds=2), primary=by)
        return self.choose(by, shadow, at)

    def choose(self, by: Node, shadow: Node, at: datetime) -> datetime:
        """HAREDIRECT: a copy is there. Nothing is sent if it was there before. Returns what the clock of `by` showed."""
        clock = by.clock(at)
        self._write(
            by, at, rows.haredirect(by.name, self.stored, at=clock, server=shadow.name, elapsed=self.world.latency(), size=self.size)
        )
        return clock

    # how it goes

    def transfer(self, node: Node, at: datetime, ordinals: Sequence[int]) -> None:
        """TRANSFER."""
        row = rows.transfer(
            node.name, self.stored, at=node.clock(at), next_hop=self._hop(ordinals), ordinals=frozenset(ordinals), size=self.size
        )
        self._write(node, at, row)

    def send(self, node: Node, at: datetime, ordinals: Sequence[int]) -> None:
        """SEND or SENDEXTERNAL: delivered."""
        row = rows.send(
            node.name, self.stored, at=node.clock(at), server=f"{self._hop(ordinals)} [198.51.100.4]:25",
            replies=dict.fromkeys(ordinals, OK),
            external=self.world.random.random() < 0.5, elapsed=self.world.latency(), next_hop=self._hop(ordinals), size=self.size,
        )  # fmt: skip
        if self._write(node, at, row):
            self._ended(ordinals, row.at)
            for ordinal in ordinals:
                self.deliveries.setdefault(ordinal, []).append(row.at)

    def defer(self, node: Node, at: datetime, ordinals: Sequence[int]) -> None:
        """DEFER: no end."""
        row = rows.defer(
            node.name, self.stored, at=node.clock(at), server=f"{self._hop(ordinals)} [198.51.100.4]:25",
            replies=dict.fromkeys(ordinals, BUSY),
            elapsed=self.world.latency(), source=self.world.random.choice((EventSource.SMTP, EventSource.DNS)), size=self.size,
        )  # fmt: skip
        self._write(node, at, row)

    def fail(self, node: Node, at: datetime, ordinals: Sequence[int]) -> None:
        """FAIL."""
        replies = dict.fromkeys(ordinals, GONE)
        row = rows.fail(node.name, self.stored, at=node.clock(at), server=self._hop(ordinals), replies=replies, size=self.size)
        if self._write(node, at, row):
            self._ended(ordinals, row.at)

    def end_otherwise(self, node: Node, at: datetime, ordinals: Sequence[int]) -> None:
        """DUPLICATEDELIVER; or EXPIRE by the primary, and FAIL from its queue."""
        clock, some = node.clock(at), frozenset(ordinals)
        if self.world.random.random() < 0.5:
            ends = [rows.duplicate(node.name, self.stored, at=clock, ordinals=some, first=DELIVERED_BEFORE, size=self.size)]
        else:
            ends = [
                rows.expire(node.name, self.stored, at=clock, ordinals=some, size=self.size),
                rows.fail(
                    node.name, self.stored, at=clock, server=self._hop(ordinals), replies=dict.fromkeys(ordinals, rows.EXPIRED),
                    source=EventSource.QUEUE, size=self.size,
                ),
            ]  # fmt: skip
        for row in ends:
            if self._write(node, at, row):
                self._ended(ordinals, row.at)

    def notify(self, node: Node, at: datetime, original: "Life", action: str) -> None:
        """DSN: this message is a notification about another one."""
        self.is_dsn = True
        row = rows.dsn(node.name, self.envelope, at=node.clock(at), original=original.envelope, action=action, size=self.size)
        if self._write(node, at, row):
            self.received_at = row.at

    def discard(
        self, shadow: Node, at: datetime, *, status: str = "delivered", ordinals: Sequence[int] = (), primary: Node | None = None
    ) -> None:
        """HADISCARD; about everybody without `ordinals`, with names or without."""
        envelope = self.envelope if ordinals or self.world.random.random() < 0.8 else None
        by, clock, some = primary or self.primary, shadow.clock(at), frozenset(ordinals)
        row = rows.hadiscard(
            shadow.name, self.envelope.message_id, at=clock, primary=by.name, envelope=envelope, ordinals=some, status=status
        )  # fmt: skip
        if self._write(shadow, at, row):
            self.discarded.setdefault(shadow, set()).update(ordinals or self.everybody)
            if status == "delivered":
                self.discards.setdefault(shadow, []).append(row.at)
                for ordinal in ordinals or self.everybody:
                    self.told.setdefault(ordinal, []).append(row.at)

    def resubmit(self, takeover: Takeover, at: datetime, ordinals: Sequence[int] = ()) -> None:
        """RESUBMIT of source REDUNDANCY: promoted."""
        new, old = takeover.new, takeover.old
        row = rows.resubmit(
            new.name, self.stored, at=new.clock(at), primary=old.name, reason=takeover.reason, silent_since=takeover.silent_since,
            detected_at=takeover.detected_at, ordinals=frozenset(ordinals), size=self.size,
        )  # fmt: skip
        if self._write(new, at, row):
            truth = self.world.truth
            self.promoted.add(new)
            self.known.append((row.at, old))
            truth.elapsed("takeover_detection_ms", row.at - takeover.detected_at)
            truth.elapsed("takeover_silence_ms", row.at - takeover.silent_since)
            truth.counts["takeovers_late"] += row.at > takeover.limit()

    def load(self, node: Node, at: datetime) -> None:
        """LOAD: found at start."""
        self._write(node, at, rows.load(node.name, self.stored, at=node.clock(at), size=self.size))

    def set_aside(self, node: Node, at: datetime) -> None:
        """POISONMESSAGE."""
        self._write(node, at, rows.poison(node.name, self.stored, at=node.clock(at), reason="the node died 3 times", size=self.size))

    def expire_copy(self, shadow: Node, at: datetime) -> None:
        """EXPIRE by the shadow server."""
        claim = Claim(Role.SHADOW, FIRST, len(self.envelope.recipients), primary=self.primary.name)
        stored = StoredMessage(self.stored.internal_id, self.envelope, claim, Origin.SHADOW, None, None)
        self._write(shadow, at, rows.expire(shadow.name, stored, at=shadow.clock(at)))

    def resubmit_from_safety_net(self, node: Node, at: datetime) -> None:
        """RESUBMIT of source SAFETYNET: no promotion, no end."""
        whom = tuple(recipient.address for recipient in self.envelope.recipients)
        row = TrackingEvent(
            node.clock(at), EventId.RESUBMIT, EventSource.SAFETYNET, self.stored.internal_id, self.envelope.message_id,
            self.envelope.internet_message_id, server_hostname=node.name, recipients=whom, sender=self.envelope.sender,
        )  # fmt: skip
        self.is_from_safety_net |= self._write(node, at, row)

    def _hop(self, ordinals: Sequence[int]) -> str:
        return "mail." + self.envelope.recipients[ordinals[0] - 1].address.rpartition("@")[2]

    def _ended(self, ordinals: Sequence[int], at: datetime) -> None:
        for ordinal in ordinals:
            self.ends.setdefault(ordinal, []).append(at)

    # what is true in the end

    def finish(self) -> None:
        """Enter into the truth what the logs that are left can know of this message."""
        truth = self.world.truth
        is_made_here = self.is_refused or self.is_from_safety_net
        is_reconstructed = self.received_at is None and bool(self.known) and not is_made_here
        if is_reconstructed:
            for ordinal, instants in self.told.items():
                self.ends.setdefault(ordinal, []).extend(instants)
        firsts = {ordinal: min(instants) for ordinal, instants in self.ends.items()}
        done_at = max(firsts.values()) if len(firsts) == len(self.envelope.recipients) else None
        if self.is_dsn and self.received_at is not None:
            truth.counts["messages_dsn"] += 1
        elif is_reconstructed or (self.received_at is not None):
            acknowledged_at, server = (self.received_at, self.primary) if self.received_at else min(self.known, key=lambda known: known[0])
            self._finish_acknowledged(acknowledged_at, server, done_at, is_reconstructed)
        self._finish_copies(None if is_reconstructed else done_at)
        truth.counts["messages_promoted"] += bool(self.promoted)
        self.world.finished(self)

    def _finish_acknowledged(self, at: datetime, server: Node, done_at: datetime | None, is_reconstructed: bool) -> None:
        truth, ack, shadow = self.world.truth, *self.elapsed
        truth.counts["messages_acknowledged"] += 1
        truth.counts["messages_reconstructed"] += is_reconstructed
        truth.counts["messages_redundant"] += is_reconstructed or self.is_redundant
        truth.counts[f"copies {1 if is_reconstructed else self.copies_count}"] += 1
        truth.counts["messages_sent_again"] += self.is_again
        truth.counts["messages_done"] += done_at is not None
        if shadow is not None and not is_reconstructed:
            truth.elapsed("shadow_latency_ms", shadow)
            truth.counts["shadow_us"] += microseconds(shadow)
            truth.counts["ack_us"] += microseconds(ack)
        if self.deliveries and not is_reconstructed:
            truth.elapsed("delivery_latency_ms", max(max(each) for each in self.deliveries.values()) - at)
        self.acknowledged = at, server, done_at, is_reconstructed
        for ordinal in self.everybody:
            address = self.envelope.recipients[ordinal - 1].address
            count = len(self.deliveries.get(ordinal, ()))
            assert (count > 1) == (ordinal in self.causes["duplicates"]), "a story declares its duplicates"
            if count == 1 and ordinal in self.had:
                truth.duplicates.append(self._entry(recipient=address, count=2, cause="e"))
            if count > 1:
                truth.duplicates.append(self._entry(recipient=address, count=count, cause=self.causes["duplicates"][ordinal]))

    def settle(self) -> None:
        """Enter what depends on the ends of the logs."""
        if self.acknowledged is not None:
            self._settle_acknowledged(*self.acknowledged)
        for shadow, at in self.copies.items():
            is_discarded = self.discarded.get(shadow, set()) >= set(self.everybody)
            if not is_discarded and shadow not in self.promoted and at + HOLD <= NOW:
                cause = self.causes["orphans"].get(shadow, "never told")
                is_known = cause == "expired" or (shadow.known_until is not None and at + HOLD <= shadow.known_until)
                entry = self._entry(server=shadow.name, primary=self.holders[shadow].name, cause=cause if is_known else LOG_ENDS)
                self.world.truth.orphans.append(entry)

    def _settle_acknowledged(self, at: datetime, server: Node, done_at: datetime | None, is_reconstructed: bool) -> None:
        truth = self.world.truth
        known_until = max((node.known_until for node in (server, *self.promoted) if node.known_until is not None), default=None)
        for began, ended, cause in self.exposed:
            begin = max(began or at, at)
            end = min((instant for instant in (ended, done_at) if instant is not None), default=known_until or NOW)
            assert begin < end or is_reconstructed or end == known_until, "a story declares exposures that are some"
            if begin >= end:  # by the clock of the only server that could say that it was done
                continue
            truth.exposures.append(self._entry(server=server.name, microseconds=microseconds(end - begin), cause=cause))
        for ordinal in self.everybody:
            if ordinal not in self.ends and at + EXPIRATION <= NOW:
                is_known = known_until is not None and at + EXPIRATION <= known_until
                cause = self.causes["losses"][ordinal] if is_known else LOG_ENDS
                address = self.envelope.recipients[ordinal - 1].address
                truth.losses.append(self._entry(recipient=address, server=server.name, cause=cause))

    def _finish_copies(self, done_at: datetime | None) -> None:
        """Shapes: `done_at` is None for a reconstructed message, too: there its discard is the end."""
        truth = self.world.truth
        for shadow in self.copies:
            if self.discards.get(shadow) and done_at is not None:
                lag = truth.elapsed("discard_lag_ms", max(self.discards[shadow]) - done_at)
                truth.counts["discards_late"] += lag > HEARTBEAT

    def _entry(self, **values: Any) -> dict[str, Any]:
        return {"message": self.envelope.message_id, **values}
