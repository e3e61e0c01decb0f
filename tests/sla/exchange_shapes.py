"""What real Exchange servers write, in small: a boundary for each shape, with what the report must say of it. Names are invented.

Instants are seconds after ten o'clock. Servers have short names (`a1`), and each shape has its own, so that all are judged
at once.
"""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shadowrelay.protocol.tracking import FIELDS

BEGIN = datetime(2023, 3, 28, 10, tzinfo=UTC)
DAY = 86_400
FIELDS_OF = {
    "2010 RTM": tuple(name for name in FIELDS[:22] if name != "network-message-id"),
    "2010": tuple(name for name in FIELDS[:27] if name != "network-message-id"),
    "2013": FIELDS[:27],
    "2016": FIELDS,
    "later": (*FIELDS, "something-new"),
}
WHOM = ("otto@nordhof.example",)
MODERATED = ("allstaff@nordhof.example",)


@dataclass
class ExchangeShape:
    """Rows of one boundary, and the figures that are expected of it."""

    name: str
    version: str = "2016"
    expected: dict[str, Any] = field(default_factory=dict)
    causes: dict[str, set[str]] = field(default_factory=dict)
    logs: dict[str, list[tuple[float, dict[str, Any]]]] = field(default_factory=dict)
    copied_to: dict[str, str] = field(default_factory=dict)  # directory -> that of the same log
    twice: list[str] = field(default_factory=list)  # servers of whose log there are copies made by Explorer
    together: tuple[str, ...] = ()  # servers whose logs are in the directory of the first
    versions: dict[str, str] = field(default_factory=dict)  # of servers of another version
    cut_at: dict[str, float] = field(default_factory=dict)  # servers whose log is in two files, the second from that second on
    prefixes: dict[str, str] = field(default_factory=dict)  # of the names of a server's files
    place: str = ""  # what the names of its servers end with, if it shares them with other shapes
    called: dict[str, str] = field(default_factory=dict)  # servers that are others there
    is_cut: bool = False  # short names are those of NetBIOS
    has_full_directories: bool = False

    def host(self, short: str, *, is_full: bool = True) -> str:
        name = f"{self.called.get(short, short)}{self.place or self.name}"
        if is_full:
            return f"{name}.nordhof.example"
        return name[:15].upper() if self.is_cut else name

    def fields(self, server: str) -> tuple[str, ...]:
        return FIELDS_OF[self.versions.get(server, self.version)]

    def row(self, event: str, source: str, seconds: float, server: str, message: str = "m", to: Sequence[str] = WHOM, **cells: str) -> None:
        """A row as the server writes it: what the row is about has its own cells, with hyphens written as underscores."""
        given: dict[str, Any] = {
            "server-hostname": self.host(server, is_full=False), "source": source, "event-id": event, "internal-message-id": "7",
            "message-id": f"<{message}.{self.name}@nordhof.example>", "network-message-id": f"{message}-{self.name}",
            "recipient-address": ";".join(to), "total-bytes": "900", "recipient-count": str(len(to)), "message-subject": "Hello",
            "sender-address": "ella@nordhof.example", "return-path": "ella@nordhof.example", "log-id": f"{event}-{seconds}-{server}",
        }  # fmt: skip
        given |= {name.replace("_", "-"): value for name, value in cells.items()}
        self.logs.setdefault(self.called.get(server, server), []).append((seconds, given))

    def receive(self, seconds: float, server: str = "a1", client: str = "gw.kunde.example", said: str = "", **more: Any) -> None:
        custom = f"S:MessageValue=MediumHigh;S:Replication={said};S:DeliveryPriority=Normal" if said else "S:DeliveryPriority=Normal"
        self.row("RECEIVE", "SMTP", seconds, server, client_hostname=client, custom_data=custom, **more)

    def redirect(self, seconds: float, server: str = "a1", shadow: str = "a2", **more: Any) -> None:
        said = f"{self.host(shadow)}=250 2.6.0 <m> [InternalId=4, Hostname={self.host(shadow)}] Queued mail for redundancy"
        self.row("HAREDIRECT", "SMTP", seconds, server, source_context=said, **more)

    def hold(self, seconds: float, shadow: str = "a2", primary: str = "a1", **more: Any) -> None:
        self.row("HARECEIVE", "SMTP", seconds, shadow, client_hostname=self.host(primary), **more)

    def discard(self, seconds: float, shadow: str = "a2", primary: str = "a1", **more: Any) -> None:
        self.row("HADISCARD", "SMTP", seconds, shadow, client_hostname=self.host(primary), source_context="ExplicitlyDiscarded;7", **more)

    def copied(self, seconds: float = 0, server: str = "a1", shadow: str = "a2", **more: Any) -> None:
        """Acknowledged with a copy, as 2016 and later write it."""
        self.hold(seconds - 0.01, shadow, server, **more)
        self.redirect(seconds, server, shadow, **more)
        said = self.host(shadow, is_full=False) if self.version == "2016" else ""
        self.receive(seconds + 0.003, server, said=said, **more)

    def deliver(self, seconds: float, server: str = "a1", to: Sequence[str] = WHOM, **more: Any) -> None:
        self.row(
            "DELIVER", "STOREDRIVER", seconds, server, client_hostname=self.host(server, is_full=False), to=to, **more
        )  # fmt: skip

    def send(self, seconds: float, server: str, peer: str, event: str = "SEND", **more: Any) -> None:
        self.row(event, "SMTP", seconds, server, client_hostname=self.host(server, is_full=False), server_hostname=peer, **more)

    def goes_on(self, *servers: str) -> None:
        """Their logs go on for a week, with rows that are in no figure."""
        for server in servers:
            self.row("AGENTINFO", "AGENT", 7 * DAY, server, f"later-{server}", ())

    def write(self, logs: Path) -> None:
        for server, rows in self.logs.items():
            fields = f"#Fields: {','.join(self.fields(server))}"
            header = ("#Software: Microsoft Exchange Server", "#Log-type: Message Tracking Log", fields)
            lines = sorted((seconds, self._line(server, seconds, cells)) for seconds, cells in rows)
            cut = self.cut_at.get(server)
            parts = [lines] if cut is None else [[one for one in lines if (one[0] >= cut) == is_later] for is_later in (False, True)]
            for name in (server, *(name for name, same in self.copied_to.items() if same == server)):
                is_full = name != server or self.has_full_directories
                folder = logs / self.host(self.together[0] if server in self.together else server, is_full=is_full)
                folder.mkdir(parents=True, exist_ok=True)
                for hour, part in enumerate(parts, start=10):
                    octets = "".join(f"{line}\r\n" for line in header).encode() + b"".join(line for _, line in part)
                    number = 1 + [*self.logs].index(server) if server in self.together else 1
                    stem = f"{self.prefixes.get(server, 'MSGTRK')}20230328{hour}-{number}"
                    (folder / f"{stem}.LOG").write_bytes(b"\xef\xbb\xbf" + octets)
                    if server in self.twice:
                        for copy in (f"{stem} - Copy.LOG", f"Copy of {stem}.LOG"):
                            (folder / copy).write_bytes(octets)

    def _line(self, server: str, seconds: float, cells: dict[str, Any]) -> bytes:
        at = BEGIN + timedelta(seconds=seconds)
        told = cells | {"date-time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"}
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\r\n").writerow([told.get(name, "") for name in self.fields(server)])
        return text.getvalue().encode()


SHAPES: list[Callable[..., ExchangeShape]] = []
Player = Callable[[ExchangeShape], None]


def shape(version: str = "2016", causes: dict[str, set[str]] | None = None, **expected: Any) -> Callable[[Player], Player]:
    """Of a function that plays it, named after it."""

    def add(play: Player) -> Player:
        def make(name: str = play.__name__.replace("_", ""), **where: Any) -> ExchangeShape:
            made = ExchangeShape(name, version, expected, causes or {}, **where)
            play(made)
            return made

        SHAPES.append(make)
        return play

    return add


# ---- redundancy, by version


@shape(messages_acknowledged=1, messages_redundant=1, messages_exposed=0, shadows_orphaned=0, recipients_lost=0, discards_late=0)
def healthy(case: ExchangeShape) -> None:
    case.copied()
    case.deliver(1)
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(messages_redundant=1, messages_exposed=0)
def only_replication(case: ExchangeShape) -> None:
    """HAREDIRECT is not in the logs that were collected."""
    case.receive(0, said=case.host("a2"))
    case.deliver(1)


@shape(messages_redundant=0, messages_exposed=2, exposure_max_seconds=2.0)
def no_copy(case: ExchangeShape) -> None:
    case.receive(0, said="Failed")
    case.row("HAREDIRECTFAIL", "SMTP", 0, "a1", source_context="No suitable shadow servers")
    case.deliver(1)
    case.receive(10, said=case.host("a1"), message="itself")
    case.deliver(12, message="itself")


@shape("2013", messages_acknowledged=2, messages_redundant=1, messages_exposed=1)
def version13(case: ExchangeShape) -> None:
    case.copied()
    case.deliver(1)
    case.receive(10, message="bare")
    case.deliver(11, message="bare")


@shape("2010", messages_acknowledged=1, messages_redundant=0, messages_exposed=0, recipients_lost=0, recipients_duplicated=0)
def version10(case: ExchangeShape) -> None:
    case.receive(0)
    case.send(1, "a1", case.host("a2"))
    case.receive(1.2, "a2", case.host("a1"))
    case.deliver(2, "a2")


@shape(messages_acknowledged=2, messages_done=2, exposure_max_seconds=1.0)
def probe(case: ExchangeShape) -> None:
    case.receive(0, said="Failed", to=(), message="probe")
    case.receive(8 * 3600, message="real")
    case.deliver(8 * 3600 + 1, message="real")


# ---- recipients


@shape(shadows_orphaned=0, recipients_lost=0, messages_done=1)
def bcc(case: ExchangeShape) -> None:
    """A rule adds a recipient after the copy was made."""
    both = (*WHOM, "archive@nordhof.example")
    case.copied()
    case.row("AGENTINFO", "AGENT", 0.1, "a1")
    case.row("TRANSFER", "ROUTING", 0.2, "a1", to=both[1:])
    case.deliver(1, to=both)
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(recipients_lost=1)
def bcc_lost(case: ExchangeShape) -> None:
    case.copied()
    case.row("TRANSFER", "ROUTING", 0.2, "a1", to=("archive@nordhof.example",))
    case.deliver(1)
    case.goes_on("a1", "a2")


@shape(recipients_lost=1, recipients_duplicated=0)
def forwarded_lost(case: ExchangeShape) -> None:
    """The mailbox keeps and forwards, and only the forwarded message arrives."""
    case.receive(0, to=("sales@nordhof.example",))
    for recipient in ("sales@nordhof.example", "lacey@nordhof.example"):
        case.row("REDIRECT", "ROUTING", 0.1, "a1", to=(recipient,), related_recipient_address="Sales@nordhof.example")
    case.deliver(1, to=("lacey@nordhof.example",))
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def forwarded_only(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("REDIRECT", "ROUTING", 0.1, "a1", to=("lacey@nordhof.example",), related_recipient_address=WHOM[0])
    case.deliver(1, to=("lacey@nordhof.example",))
    case.goes_on("a1")


@shape(recipients_lost=1)
def resolved_to_itself(case: ExchangeShape) -> None:
    """A group that is resolved to its own address, and expanded: one member of three does not get it."""
    case.receive(0, to=("team@nordhof.example",))
    case.row("RESOLVE", "RESOLVER", 0.1, "a1", to=("TEAM@nordhof.example",), related_recipient_address="team@nordhof.example")
    for members in (("a@nordhof.example", "b@nordhof.example"), ("c@nordhof.example", "team@nordhof.example")):
        case.row("EXPAND", "ROUTING", 0.2, "a1", to=members, related_recipient_address="team@nordhof.example")
    case.row("DUPLICATEEXPAND", "ROUTING", 0.2, "a1", to=("a@nordhof.example",), related_recipient_address="team@nordhof.example")
    case.deliver(1, to=("a@nordhof.example", "b@nordhof.example"))
    case.goes_on("a1")


@shape(recipients_lost=1, messages_done=0)
def large_group(case: ExchangeShape) -> None:
    members = [f"member{number}@nordhof.example" for number in range(5000)]
    case.receive(0, to=("all@nordhof.example",))
    for begin in range(0, 5000, 1000):
        case.row(
            "EXPAND", "ROUTING", 0.1, "a1", to=members[begin : begin + 1000], related_recipient_address="all@nordhof.example",
            recipient_status="250 2.1.5 RESOLVER.GRP.Expanded; distribution list expanded",
        )  # fmt: skip
    case.deliver(1, to=members[:-1])
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=3, recipients_duplicated=0)
def processed(case: ExchangeShape) -> None:
    for event in ("PROCESS", "PROCESSMEETINGMESSAGE", "SUPPRESSED"):
        case.receive(0, message=event)
        case.row(event, "STOREDRIVER", 1, "a1", event)
    case.deliver(1, message="PROCESSMEETINGMESSAGE")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=5)
def ended(case: ExchangeShape) -> None:
    for event, source in (
        ("FAIL", "ADMIN"),
        ("DROP", "AGENT"),
        ("BADMAIL", "PICKUP"),
        ("DUPLICATEDELIVER", "STOREDRIVER"),
        ("FAIL", "DNS"),
    ):
        case.receive(0, message=f"{event}{source}")
        case.row(event, source, 1, "a1", f"{event}{source}", to=() if event == "BADMAIL" else WHOM)
    case.goes_on("a1")


@shape(recipients_lost=7)
def ends_nothing(case: ExchangeShape) -> None:
    events = ("DEFER", "THROTTLE", "RESUBMITFAIL", "RESUBMITDEFER", "LOAD", "DELIVERFAIL", "POISONMESSAGE")
    for event in events:
        case.receive(0, message=event)
        case.row(event, "QUEUE", 1, "a1", event)
    case.goes_on("a1")


# ---- moderated mail


def _moderated(case: ExchangeShape, *, is_approved: bool) -> None:
    case.receive(0, to=MODERATED, said="Failed")
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=MODERATED, reference="<init@nordhof.example>")
    if is_approved:
        case.row("MODERATORAPPROVE", "APPROVAL", 3600, "a1", to=MODERATED, reference="<init@nordhof.example>")
        again = {"network_message_id": f"again-{case.name}"}
        case.row("RECEIVE", "APPROVAL", 3600.1, "a1", to=MODERATED, **again)
        case.row(
            "EXPAND", "ROUTING", 3600.2, "a1", to=("otto@nordhof.example", "pia@nordhof.example"),
            related_recipient_address=MODERATED[0], **again,
        )  # fmt: skip
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1, exposure_max_seconds=0.5)
def approved(case: ExchangeShape) -> None:
    _moderated(case, is_approved=True)
    again = {"network_message_id": f"again-{case.name}"}
    case.deliver(3601, to=("otto@nordhof.example", "pia@nordhof.example"), **again)


@shape(recipients_lost=2)
def approved_and_lost(case: ExchangeShape) -> None:
    _moderated(case, is_approved=True)


@shape(recipients_lost=0, messages_done=1)
def held(case: ExchangeShape) -> None:
    _moderated(case, is_approved=False)


@shape(recipients_lost=0, messages_done=3)
def refused(case: ExchangeShape) -> None:
    for event in ("MODERATORREJECT", "MODERATIONEXPIRE", "MODERATORSALLNDR"):
        case.receive(0, message=event)
        case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", event)
        case.row(event, "APPROVAL", 3600, "a1", event)
    case.goes_on("a1")


# ---- DSNs


def _reported(case: ExchangeShape, subject: str, seconds: float, **more: Any) -> None:
    about = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("DSN", "DSN", seconds, "a1", f"dsn{seconds}", message_subject=subject, **about | more)


@shape(recipients_lost=1, messages_dsn=3)
def notices(case: ExchangeShape) -> None:
    case.receive(0)
    for number, subject in enumerate(("Delivery delayed: Hello", "Relayed: Hello", "Zustellung verzögert: Hello")):
        _reported(case, subject, 10 + number)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def undeliverable(case: ExchangeShape) -> None:
    case.receive(0)
    _reported(case, "Undeliverable: Hello", 10)
    case.goes_on("a1")


@shape(recipients_lost=1)
def of_another(case: ExchangeShape) -> None:
    """Two messages with one Message-ID; the report is about the first, whose FAIL names it."""
    case.receive(0)
    case.row("FAIL", "ROUTING", 2, "a1", reference=f"<dsn2.1.{case.name}@nordhof.example>")
    _reported(case, "Undeliverable: Hello", 2.1)
    case.receive(3600, network_message_id=f"second-{case.name}")
    case.goes_on("a1")


@shape(recipients_lost=1)
def before_it(case: ExchangeShape) -> None:
    """The same, and no row names the report: it came before the second."""
    case.receive(0)
    _reported(case, "Undeliverable: Hello", 2.1)
    case.receive(3600, network_message_id=f"second-{case.name}")
    case.goes_on("a1")


@shape(recipients_lost=1)
def of_one_recipient(case: ExchangeShape) -> None:
    case.receive(0, to=(*WHOM, "pia@nordhof.example"))
    case.row("FAIL", "ROUTING", 2, "a1")
    _reported(case, "Undeliverable: Hello", 2.1)
    case.goes_on("a1")


@shape(recipients_lost=1)
def to_somebody_else(case: ExchangeShape) -> None:
    case.receive(0)
    _reported(case, "Undeliverable: Hello", 2.1, to=("kai@nordhof.example",))
    case.goes_on("a1")


# ---- hops


@shape(clock_skews=0, discards_late=0, recipients_lost=0, shadows_orphaned=0, messages_exposed=0)
def two_dags(case: ExchangeShape) -> None:
    case.copied()
    case.send(1, "a1", case.host("b1"))
    case.hold(0.97, "b2", "b1")
    case.redirect(0.98, "b1", "b2")
    case.receive(0.99, "b1", case.host("a1"), said=case.host("b2"))
    case.discard(90)
    case.row("DEFER", "STOREDRIVER", 2, "b1", recipient_status="432 4.2.0 STOREDRV.Deliver; mailbox database is offline")
    case.deliver(3600, "b1")
    case.discard(3690, "b2", "b1")
    case.goes_on("a1", "a2", "b1", "b2")


@shape(shadows_orphaned=1, recipients_lost=0)
def one_of_two_copies(case: ExchangeShape) -> None:
    """One shadow server had it for two hops, and discarded the first copy only."""
    case.copied()
    case.send(1, "a1", case.host("a3"))
    case.copied(1.1, "a3", "a2")
    case.deliver(2, "a3")
    case.discard(90)
    case.goes_on("a1", "a2", "a3")


@shape(messages_redundant=1, messages_exposed=1, exposure_max_seconds=60.0)
def second_hop_alone(case: ExchangeShape) -> None:
    case.copied()
    case.send(1, "a1", case.host("b1"))
    case.receive(1, "b1", case.host("a1"), said="Failed")
    case.deliver(61, "b1")
    case.discard(90)
    case.goes_on("a1", "a2", "b1")


@shape(recipients_lost=1, recipients_duplicated=0)
def edge_lost(case: ExchangeShape) -> None:
    case.copied()
    case.send(1, "a1", case.host("edge"), "SENDEXTERNAL")
    case.receive(1, "edge", case.host("a1"), said="Failed")
    case.goes_on("a1", "a2", "edge")


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1)
def edge_by_another_name(case: ExchangeShape) -> None:
    case.copied()
    case.send(1, "a1", "smarthost.nordhof.example", "SENDEXTERNAL")
    case.receive(1, "edge", case.host("a1"), said="Failed")
    case.send(2, "edge", "mx.ziel.example", "SENDEXTERNAL")
    case.goes_on("a1", "a2", "edge")


# ---- Exchange's own redeliveries

TWICE: dict[str, Any] = {"recipients_duplicated": 1, "recipients_duplicated_unexplained": 0, "recipients_lost": 0}


@shape(causes={"duplicates": {"taken over"}}, promotions=1, **TWICE)
def returned(case: ExchangeShape) -> None:
    case.copied()
    case.row("RESUBMIT", "REDUNDANCY", 7200, "a2", reference=case.host("a1"))
    case.deliver(7201, "a3")
    case.deliver(9000, "a3")


@shape(causes={"duplicates": {"Safety Net"}}, **TWICE)
def safety_net(case: ExchangeShape) -> None:
    case.copied()
    case.deliver(1)
    case.row("RESUBMIT", "SAFETYNET", 7200, "a1")
    case.deliver(7201, "a3")


@shape(causes={"duplicates": {"received again"}}, **TWICE)
def looped(case: ExchangeShape) -> None:
    case.receive(0)
    case.deliver(1)
    case.receive(60)
    case.deliver(61)


@shape(causes={"duplicates": {"not told by Exchange"}}, **TWICE)
def twice(case: ExchangeShape) -> None:
    case.receive(0)
    case.deliver(1)
    case.deliver(61)


# ---- one log under several names


@shape(messages_acknowledged=1, recipients_duplicated=0, recipients_lost=0, shadows_orphaned=0)
def two_names(case: ExchangeShape) -> None:
    case.copied()
    case.send(1, "a1", "mx.ziel.example", "SENDEXTERNAL")
    case.discard(60)
    case.goes_on("a1", "a2")
    case.copied_to["full"] = "a1"
    case.twice.append("a2")


# ---- what is not known


@shape(causes={"losses": {"no end in the logs"}, "orphans": {"left when the log ends"}}, recipients_lost=1, shadows_orphaned=1)
def log_over(case: ExchangeShape) -> None:
    case.copied()
