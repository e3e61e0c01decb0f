"""The job says what the oracle says, about generated logs with faults of every kind, and about rows that make no sense:
every figure in every window and scope, every entry of every table."""

import csv
import io
import itertools
import random
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest

from benchmarks.sla_generate import generate
from shadowrelay.model.tracking import EventId, EventSource, ResubmitReason, TrackingEvent
from shadowrelay.protocol.fields import format_instant
from shadowrelay.protocol.tracking import FIELDS, format_header, format_line
from shadowrelay.sla.ingest import ingest_once
from shadowrelay.sla.inspection import inspect, read_again
from shadowrelay.sla.report import write_report
from shadowrelay.sla.sites import read_sites_file
from shadowrelay.sla.summary import placed_figures
from shadowrelay.sla.warehouse import WarehouseUnusable
from tests.sla.agreement import COLUMNS, WINDOWS, disagreements
from tests.sla.oracle import judge
from tests.sla.oracle_logs import microseconds

# Rows that no relay would write: events of messages in any order, on any server, at any time. For the job against the oracle only.
#
# Whatever nobody thought of is in here sometime: HADISCARD before HARECEIVE, a second RECEIVE elsewhere, a takeover by a server that held
# nothing, ends before the acknowledgement. Instants differ by microseconds, and by days; no two rows of a message share one, but for
# HAREDIRECT and RECEIVE.

BEGIN = datetime(2026, 2, 18, tzinfo=UTC)  # a week and a day later all is over, before the generated logs begin
NAMES = ("a.s1", "b.s1", "c.s2", "d.s2")
UNKNOWN = "e.s3"  # named in rows, without a log
NEXT_CENTURY = datetime(2190, 5, 6, tzinfo=UTC)  # a wrong clock
CUT_SHORT = NAMES[-1]  # its log ends early, and nobody may notice
ENDS_AT = BEGIN + timedelta(days=2, hours=5)
OWN = (
    ("RECEIVE", "SMTP"), ("RECEIVE", "SMTP"), ("RECEIVE", "AGENT"),
    ("HAREDIRECT", "SMTP"), ("HAREDIRECT", "SMTP"), ("HAREDIRECTFAIL", "SMTP"),
    ("HARECEIVE", "SMTP"), ("HARECEIVE", "SMTP"), ("HADISCARD", "SMTP"), ("HADISCARD", "SMTP"), ("TRANSFER", "ROUTING"), ("SEND", "SMTP"),
    ("SENDEXTERNAL", "SMTP"), ("SEND", "SMTP"), ("DEFER", "SMTP"), ("FAIL", "SMTP"), ("DUPLICATEDELIVER", "SMTP"), ("DSN", "DSN"),
    ("RESUBMIT", "REDUNDANCY"), ("RESUBMIT", "REDUNDANCY"), ("RESUBMIT", "SAFETYNET"), ("LOAD", "BOOTLOADER"),
    ("POISONMESSAGE", "POISONMESSAGE"), ("EXPIRE", "QUEUE"),
)  # fmt: skip
EXCHANGE = (
    ("RECEIVE", "SMTP"), ("RECEIVE", "SMTP"), ("RECEIVE", "STOREDRIVER"), ("HAREDIRECT", "SMTP"), ("HARECEIVE", "SMTP"),
    ("HADISCARD", "SMTP"), ("SEND", "SMTP"), ("SENDEXTERNAL", "SMTP"), ("DELIVER", "STOREDRIVER"), ("FAIL", "ROUTING"), ("DSN", "DSN"),
    ("RESUBMIT", "REDUNDANCY"), ("SUBMIT", "STOREDRIVER"), ("EXPAND", "ROUTING"), ("RESOLVE", "RESOLVER"), ("REDIRECT", "ROUTING"),
    ("AGENTINFO", "AGENT"), ("DROP", "AGENT"), ("DUPLICATEREDIRECT", "ROUTING"), ("DUPLICATEEXPAND", "ROUTING"),
    ("MODERATORREJECT", "APPROVAL"), ("MODERATIONEXPIRE", "APPROVAL"), ("MODERATORSALLNDR", "APPROVAL"), ("BADMAIL", "PICKUP"),
    ("REDIRECT", "ROUTING"), ("INITMESSAGECREATED", "APPROVAL"), ("MODERATORAPPROVE", "APPROVAL"), ("RECEIVE", "APPROVAL"),
    ("PROCESS", "STOREDRIVER"), ("SUPPRESSED", "STOREDRIVER"), ("THROTTLE", "ROUTING"), ("TRANSFER", "ROUTING"), ("DEFER", "STOREDRIVER"),
    ("RESUBMIT", "SAFETYNET"), ("LOAD", "BOOTLOADER"), ("RECEIVE", "MAILBOXRULE"),
)  # fmt: skip
VERSIONS = {
    "exchange2010": tuple(name for name in FIELDS[:27] if name != "network-message-id"),
    "exchange2013": FIELDS[:27],
    "exchange2016": FIELDS,
}


class Soup:
    """Random rows of one boundary, by the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.servers = [f"{name}-{seed}" for name in NAMES]
        self.random = random.Random(seed)
        self.spellings = random.Random(seed)
        self.chains = random.Random(seed)
        self.clients = random.Random(seed)
        self.rows: dict[str, list[tuple[datetime, bytes]]] = {}

    def message(self, index: int) -> None:
        """Rows of one message."""
        choose, name = self.random, f"{self.random.getrandbits(64):016x}-{index}"
        people = tuple(f"r{number}@x.example" for number in range(choose.choice((1, 1, 2, 3))))
        internet = choose.choice((f"<{name}@src>", f"<{name}@src>", f"<{name}@src>", f"<shared{choose.randrange(40)}@src>", ""))
        begin = BEGIN + timedelta(seconds=choose.randrange(7 * 86_400))
        kinds = [("RECEIVE", "SMTP")] if choose.random() < 0.6 else []
        kinds += [choose.choice(OWN) for _ in range(choose.randint(1, 12))]
        at = begin
        for event, source in kinds:
            at = begin + timedelta(microseconds=choose.randrange(1, 10 ** choose.randint(4, 11)))
            self._own(name, internet, people, at, event, source)
            if event == "RECEIVE" and choose.random() < 0.5:
                self._own(name, internet, people, at, "HAREDIRECT", "SMTP")

    def doubled(self, index: int) -> None:
        """Like a plain message, with one copy or several, but rows may name a recipient or a server twice, and who is delivered to, or
        discards what, is left to chance."""
        choose, name = self.spellings, f"{self.spellings.getrandbits(64):016x}-doubled-{index}"
        people = [f"r{number}@x.example" for number in range(choose.choice((1, 1, 2, 3)))]
        primary, *shadows = choose.sample(self.servers, choose.choice((2, 2, 3, 4)))
        shadows += choose.choice(([], [], [], shadows[:1], shadows))
        at = BEGIN + timedelta(seconds=choose.randrange(7 * 86_400))

        def written(event: str, server: str, seconds: float, whom: list[str], **values: Any) -> None:
            row = TrackingEvent(
                at + timedelta(seconds=seconds), EventId(event), EventSource.SMTP, index, name, f"<{name}@src>", recipients=tuple(whom),
                sender="s@src.example", **values,
            )  # fmt: skip
            self.rows.setdefault(server, []).append((row.at, format_line(row)))

        received = people if choose.random() < 0.8 else [*people, choose.choice(people)]
        for number, shadow in enumerate(shadows):
            before = -number / 10 if choose.random() < 0.2 else 0
            shared = (("SharedFate", "machine"),) if choose.random() < 0.1 else ()
            written("HAREDIRECT", primary, before, received, client_hostname=primary, server_hostname=shadow, custom_data=shared)
            by = shadow if choose.random() < 0.1 else primary
            written("HARECEIVE", shadow, before, received, client_hostname=by, server_hostname=shadow)
        custom = (("Copies", f"{len(shadows)}/{len(shadows)}"),) if len(shadows) > 1 else ()
        written("RECEIVE", primary, 0, received, client_hostname="client", custom_data=(("Replication", "Success"), *custom))
        for number in range(choose.choice((1, 1, 2, 3))):
            whom = list(people) if choose.random() < 0.5 else choose.choices(people, k=choose.randint(1, 3))
            written(choose.choice(("SEND", "SENDEXTERNAL", "TRANSFER")), primary, 1 + number, whom, client_hostname=primary)
        for number, shadow in enumerate(shadows):
            told = choose.choice(([], received, received, people, people[:1], people[1:], [*received, received[0]]))
            by = choose.choice(self.servers) if choose.random() < 0.1 else shadow
            written("HADISCARD", by, 9 + number, told, client_hostname=primary, source_context="delivered")

    def chained(self, index: int) -> None:
        """A message that was relayed by TRACK, perhaps twice, and perhaps taken back. Any row may be missing, or early."""
        choose, name = self.chains, f"{self.chains.getrandbits(64):016x}-chained-{index}"
        people = tuple(f"r{number}@x.example" for number in range(choose.choice((1, 1, 2, 3))))
        at = BEGIN + timedelta(seconds=choose.randrange(7 * 86_400))
        *before, last = choose.sample(self.servers, choose.choice((2, 2, 3)))

        def written(event: str, server: str, message: str, source: str = "SMTP", **values: Any) -> None:
            nonlocal at
            if choose.random() < 0.15:
                return
            at += timedelta(microseconds=choose.randrange(-(10**6), 10 ** choose.randint(4, 10)))
            whom = people if choose.random() < 0.8 else people[:1]
            row = TrackingEvent(
                at, EventId(event), EventSource(source), index, message, f"<{name}@src>", recipients=whom, sender="s@src.example", **values
            )
            self.rows.setdefault(server, []).append((row.at, format_line(row)))

        def resubmitted(server: str, message: str, primary: str) -> None:
            reason = choose.choice(tuple(ResubmitReason))
            custom = (("Reason", reason), ("SilentSince", format_instant(at - timedelta(hours=1))), ("DetectedAt", format_instant(at)))
            written("RESUBMIT", server, message, "REDUNDANCY", reference=primary, custom_data=custom)

        why = choose.choice(("", "", "delayed: done", "delayed: copied", "delayed: best effort"))
        custom: tuple[tuple[str, str], ...] = (
            ("Replication", "Success" if why.endswith(("done", "copied")) else "Disabled"),
            ("AckElapsed", "1.5"),
        )
        message = f"{name}-0"
        if choose.random() < 0.3:
            written("HAREDIRECT", before[0], message, server_hostname=last)
        written("RECEIVE", before[0], message, source_context=why, custom_data=custom)
        hops = [*before, last]
        for number, (here, there) in enumerate(itertools.pairwise(hops), 1):
            kept = f"{name}-{number}"
            written("SEND", here, message, client_hostname=here, server_hostname=there, source_context=f"shadow kept as {kept}")
            custom = (("Replication", "Success"), ("AckElapsed", "0.001"), ("ShadowAt", here))
            written("RECEIVE", there, kept, reference=message, custom_data=custom)
            if choose.random() < 0.3:
                resubmitted(here, kept, there)
                written("SENDEXTERNAL", here, kept, server_hostname=choose.choice(("mx.example", there)))
            message = kept
        written("SEND", last, message, server_hostname="mx.example")
        for number, (here, there) in enumerate(itertools.pairwise(hops), 1):
            told = choose.choice(("delivered", "delivered", "released"))
            written("HADISCARD", here, f"{name}-{number}", client_hostname=there, server_hostname=here, source_context=told)

    def repeated(self, index: int) -> None:
        """Mail of a few clients that they may have sent before, also at the same instant. Any row may be missing, or be there twice."""
        choose, name = self.clients, f"{self.clients.getrandbits(64):016x}-repeated-{index}"
        people = [f"r{number}@x.example" for number in range(choose.choice((1, 1, 2)))]
        at = BEGIN + timedelta(seconds=choose.choice((10, 10, choose.randrange(7 * 86_400))))
        primary, shadow = choose.sample(self.servers, 2)
        internet, client = f"<repeated{choose.randrange(6)}@src>", choose.choice(("client", "client", "other", "", self.servers[0]))
        is_plain = choose.random() < 0.5

        def written(event: str, server: str, seconds: float, whom: list[str], **values: Any) -> None:
            for _ in range(1 if is_plain else choose.choice((0, 1, 1, 1, 1, 1, 2))):
                row = TrackingEvent(
                    at + timedelta(seconds=seconds), EventId(event), EventSource.SMTP, index, name, internet, recipients=tuple(whom),
                    sender=choose.choice(("s@src.example", "t@src.example")), subject=choose.choice(("", "one", "other")), **values,
                )  # fmt: skip
                self.rows.setdefault(server, []).append((row.at, format_line(row)))

        written("HAREDIRECT", primary, 0, people, client_hostname=primary, server_hostname=shadow)
        written("HARECEIVE", shadow, 0, people, client_hostname=primary, server_hostname=shadow)
        written("RECEIVE", primary, 0, people, client_hostname=client, custom_data=(("Replication", "Success"),))
        for person in people:
            written("SEND", primary, choose.choice((1, 1, 4, 100_000)), [person], client_hostname=primary)
        written("HADISCARD", shadow, 200_000, people, client_hostname=primary, source_context="delivered")

    def ahead(self) -> None:
        """One server wrote a row by a clock that was wrong by more than a century."""
        at, name = NEXT_CENTURY + timedelta(days=self.seed), f"ahead-{self.seed}"
        row = TrackingEvent(at, EventId.RECEIVE, EventSource.SMTP, 1, name, f"<{name}@src>", recipients=("r@x.example",))
        self.rows.setdefault(self.servers[0], []).append((row.at, format_line(row)))

    def _own(self, name: str, internet: str, people: tuple[str, ...], at: datetime, event: str, source: str) -> None:
        choose = self.random
        here, other = choose.choice(self.servers), choose.choice([*self.servers, UNKNOWN])
        custom: tuple[tuple[str, str], ...] = ()
        if event == "RECEIVE":
            custom = (
                ("Replication", choose.choice(("Success", "Success", "Failed", "Disabled"))),
                ("AckElapsed", f"{choose.random():.6f}"),
            )
            custom += (("ShadowElapsed", f"{choose.random():.6f}"),) if choose.random() < 0.7 else ()
            custom = custom[1:] if choose.random() < 0.1 else custom
            if self.spellings.random() < 0.4:
                custom += (("Copies", self.spellings.choice(("0/2", "1/2", "2/2", "1/3", "3/3", "5/5", "2"))),)
            if self.spellings.random() < 0.2:
                custom += (("SharedFate", "b.s1"),)
        elif event == "HAREDIRECT" and self.spellings.random() < 0.3:
            custom = (("ShadowElapsed", "0.004000"), ("SharedFate", "machine|rack7"))
        elif source == "REDUNDANCY":
            detected = at + timedelta(seconds=choose.uniform(-300, 10))
            since = detected - timedelta(seconds=choose.choice((60, 10_000, 10_800, 10_915, 10_921)))
            custom = (
                ("Reason", choose.choice(tuple(ResubmitReason))), ("SilentSince", format_instant(since)),
                ("DetectedAt", format_instant(detected)),
            )  # fmt: skip
        elif event == "DSN":
            custom = (("OriginalNetworkMessageId", "somebody else"),)
        is_some = event not in ("RECEIVE", "HARECEIVE") and choose.random() < 0.5
        whom = tuple(choose.sample(people, choose.randint(1, len(people)))) if is_some else people
        is_shadow = event in ("HARECEIVE", "HADISCARD") or (event == "EXPIRE" and choose.random() < 0.5)
        context = {
            "HADISCARD": choose.choice(("delivered", "delivered", "released", "promoted")),
            "DSN": choose.choice(("failed", "delayed")),
        }
        row = TrackingEvent(
            at, EventId(event), EventSource(source), choose.randrange(99), name, internet,
            client_hostname=other if is_shadow else "" if event in ("EXPIRE", "RESUBMIT") else here,
            server_hostname=here if is_shadow or event not in ("HAREDIRECT", "SEND") else other,
            source_context=context.get(event, ""), recipients=() if event == "HADISCARD" and choose.random() < 0.3 else whom,
            reference=other if source == "REDUNDANCY" else "", custom_data=custom, sender="s@src.example",
        )  # fmt: skip
        self.rows.setdefault(here, []).append((at, format_line(row)))

    def exchange(self, index: int, version: str) -> None:
        """Rows of one message in an Exchange log of this version."""
        choose, name = self.random, f"<{self.random.getrandbits(64):016x}-{index}@exchange>"
        people = tuple(f"r{number}@x.example" for number in range(choose.choice((1, 1, 2, 3))))
        network = f"n{name[1:17]}-{index}"
        client = ""
        if version != "exchange2010" and self.clients.random() < 0.2:  # where it is no key
            name, client = f"<repeated{self.clients.randrange(6)}@exchange-{self.seed}>", self.clients.choice(("client", "other"))
        begin = BEGIN + timedelta(seconds=choose.randrange(7 * 86_400))
        servers = [f"{version}-{self.seed}{letter}" for letter in "xyz"]
        kinds = EXCHANGE if version != "exchange2010" else tuple(kind for kind in EXCHANGE if not kind[0].startswith("HA"))
        taken = set()
        for _ in range(choose.randint(1, 9)):
            event, source = choose.choice(kinds)
            at = begin + timedelta(milliseconds=choose.randrange(1, 10 ** choose.randint(2, 8)))
            if at in taken:
                continue
            taken.add(at)
            server, another = choose.choice(servers), choose.choice([*servers, "elsewhere"])
            here, other = self._spelled(server), self._spelled(another)
            is_shadow = event in ("HARECEIVE", "HADISCARD")
            whom = tuple(choose.sample(people, choose.randint(1, len(people)))) if choose.random() < 0.3 else people
            custom = (
                choose.choice(
                    (
                        "",
                        "S:Replication=Failed",
                        "S:Anything=with=equals;S:Replication=Success",
                        "no key",
                        f"S:Replication={other}",
                        "S:Replication=Skipped: no",
                    )
                )
                if event == "RECEIVE"
                else ""
            )
            cell: dict[str, Any] = {
                "date-time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z", "client-hostname": other if is_shadow else here,
                "server-hostname": here if is_shadow or event not in ("SEND", "HAREDIRECT") else other, "source": source, "event-id": event,
                "internal-message-id": choose.randrange(99), "message-id": name, "network-message-id": network,
                "recipient-address": ";".join(whom), "total-bytes": 1000, "recipient-count": len(whom), "custom-data": custom,
                "message-subject": choose.choice(("plain", 'with "quotes", and\r\na line end', "a;b")),
                "reference": choose.choice((name, "<nobody@x>")) if event == "DSN" else other if source == "REDUNDANCY" else "",
            }  # fmt: skip
            if event == "HAREDIRECT" and self.spellings.random() < 0.7:  # as Exchange writes it
                queued = f"250 2.6.0 {name} [InternalId=7, Hostname={other}] Queued mail for redundancy"
                told = self.spellings.choice((f"{other} = {queued}", f"{other}={queued}", f"{other} = 451 4.4.0 no", "No suitable", here))
                cell |= {"server-hostname": here, "client-hostname": "", "source-context": told}
            if event == "DSN":  # about this message, under an id of its own
                cell |= {"message-id": f"<dsn-{name[1:]}", "network-message-id": f"dsn-{network}"}
                cell["message-subject"] = self.spellings.choice(("Undeliverable: a", "unzustellbar: b", "Delivery delayed: c", ""))
                cell["recipient-address"] = self.spellings.choice(("s@src.example", "s@src.example", "s@src.example;t@x", "t@x"))
            else:
                cell |= {"sender-address": "S@src.example", "return-path": self.spellings.choice(("S@src.example", "<>"))}
            if client and event == "RECEIVE":
                cell["client-hostname"] = client
            if event == "FAIL" and self.spellings.random() < 0.3:
                cell["reference"] = f"<dsn-{name[1:]}"
            if (event, source) == ("RECEIVE", "APPROVAL"):
                cell["network-message-id"] = self.spellings.choice((network, f"again-{network}"))
            if event in ("BADMAIL", "DROP") and self.spellings.random() < 0.3:
                cell["recipient-address"] = ""
            is_again = event.startswith("DUPLICATE") and self.spellings.random() < 0.5
            if is_again or event in ("EXPAND", "RESOLVE", "REDIRECT"):
                instead = self.spellings.choice((f"member{self.spellings.randrange(3)}@x.example", people[0]))
                cell |= {"recipient-address": instead, "recipient-count": 1, "related-recipient-address": ";".join(whom)}
            if self.spellings.random() < 0.2:
                cell["recipient-address"] = cell["recipient-address"].title()
            text = io.StringIO(newline="")
            csv.writer(text, lineterminator="\r\n").writerow([cell.get(field, "") for field in VERSIONS[version]])
            self.rows.setdefault(server, []).append((at, text.getvalue().encode()))

    def _spelled(self, server: str) -> str:
        """A server as Exchange may call it."""
        name = self.spellings.choice((server, server.upper(), server.title()))
        return name + self.spellings.choice(("", ".corp.example", ".Other.example"))

    def write(self, output: Path) -> None:
        """Into `<output>/logs`, one file a server, and to the end of `<output>/sites.toml`."""
        sites = {name: {"site": name.split(".")[1], "boundary": f"soup{self.seed}"} for name in self.servers}
        cut_short, ends_at = f"{CUT_SHORT}-{self.seed}", ENDS_AT + timedelta(hours=self.seed % 100)
        self.rows[cut_short] = [row for row in self.rows.get(cut_short, ()) if row[0] < ends_at]
        for server, rows in self.rows.items():
            version, _, letter = server.rpartition("-")
            name = f"{server}.Corp.example" if version in VERSIONS and letter.endswith("z") else server
            folder = output / "logs" / name
            folder.mkdir(parents=True)
            header = format_header("0.4.0", BEGIN)
            if version in VERSIONS:
                sites[name] = {"site": version, "boundary": "exchange"}
                fields = f"#Fields: {','.join(VERSIONS[version])}"
                lines = ("#Software: Microsoft Exchange Server", "#Log-type: Message Tracking Log", fields, "")
                header = "\r\n".join(lines).encode()
            (folder / "MSGTRK2026021800-1.LOG").write_bytes(header + b"".join(line for _, line in sorted(rows)))
        with (output / "sites.toml").open("a") as file:
            file.writelines(f'["{name}"]\nsite = "{place["site"]}"\nboundary = "{place["boundary"]}"\n' for name, place in sites.items())


def add_soup(output: Path, seed: int, messages: int) -> None:
    """A boundary with `messages` of ours, and a fifth as many of each version of Exchange, beside what was generated there. In each are
    recipients named twice, a log that ends early, and a wrong clock."""
    soup = Soup(seed)
    for index in range(messages):
        soup.message(index)
        if index % 5 == 0:
            soup.doubled(index)
            soup.chained(index)
            soup.repeated(index)
    soup.ahead()
    for version in VERSIONS:
        for index in range(messages // 5):
            soup.exchange(index, version)
    soup.write(output)


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECTIVES = """
[times]
shadow_heartbeat_frequency = "5s"
shadow_resubmit_time_span = "2h"
safety_net_hold_time = "1d"
message_expiration_timeout = "1d"
[objectives]
redundancy_ratio = 0.5
shadow_latency = { within = "30ms", ratio = 0.9 }
exposure = { within = "1h", ratio = 0.75 }
discard_lag = { ratio = 0.5 }
delivery_latency = { within = "100ms", ratio = 0.3 }
takeover = { ratio = 1.0 }
recipients_lost = 10000
recipients_duplicated_unexplained = 3
shadows_orphaned = 0
"""


def damage_and_read_again(logs: Path, warehouse: Path, seed: int) -> None:
    """Delete and tear files of three servers, also of the quarantine, and follow the remedy that a report would end with."""
    choose = random.Random(seed)
    quarantine = choose.choice(sorted(warehouse.glob("quarantine/*/*.parquet")))
    server = pyarrow.parquet.read_table(quarantine)["server"][0].as_py()
    others = choose.sample(sorted({path.parts[-3] for path in warehouse.glob("events/*/*/*/*.parquet")} - {f"server={server}"}), 2)
    lost = [path for name in others for path in sorted(warehouse.glob(f"events/*/{name}/*/*.parquet"))[::2]]
    for number, path in enumerate([quarantine, *lost]):
        if number % 2:
            path.write_bytes(path.read_bytes()[: -choose.randint(1, 100)])
        else:
            path.unlink()
    with pytest.raises(WarehouseUnusable, match=r"damaged: .*; read it again: .*--again") as found:
        inspect(str(warehouse))

    assert read_again(str(logs), str(warehouse), re.findall("--again '([^']+)'", str(found.value))) >= 3

    inspect(str(warehouse))


def differences(
    spark: "SparkSession",
    directory: Path,
    seeds: Iterable[int],
    *,
    soup: int = 0,
    soups: int = 1,
    damaged: int = 0,
    objectives: str = "",
    has_now: bool = True,
    **options: Any,
) -> list[str]:
    """Generate, let both judge, compare. `soup`: so many messages of it too, in each of `soups` boundaries; `damaged`: the seed by which
    files of the warehouse are deleted or torn, and read again; `options` go to the generator, or to the job."""
    told = {name: options.pop(name) for name in ("is_final", "is_exact") if name in options}
    truth = generate(directory, list(seeds), **options)
    if soup:
        for seed in range(soups):
            add_soup(directory, seed=soup + seed, messages=soup)
    sites, output = directory / "sites.toml", directory / "report"
    objectives_file = directory / "objectives.toml" if objectives else None
    if objectives_file is not None:
        objectives_file.write_text(objectives)
    ingest_once(spark, str(directory / "logs"), str(directory / "warehouse"), read_sites_file(sites))
    if damaged:
        damage_and_read_again(directory / "logs", directory / "warehouse", damaged)
    summary = write_report(
        spark, str(directory / "warehouse"), str(output), now=datetime.fromisoformat(truth["now"]) if has_now else None,
        objectives_file=str(objectives_file) if objectives_file else None, **told,
    )  # fmt: skip
    expected = judge(
        directory / "logs", sites=sites, now=microseconds(truth["now"]) if has_now else None, objectives=objectives_file,
        is_final=told.get("is_final", False), clock=microseconds(summary["generated_at"]),
    )  # fmt: skip

    def table(name: str) -> list[dict[str, Any]]:
        return pyarrow.parquet.read_table(output / "tables" / name).to_pylist()

    figures = [placed_figures(line) for line in table("figures") if line["window"] in WINDOWS]
    return disagreements(summary, figures, {name: table(name) for name in COLUMNS}, expected)


@pytest.mark.slow
@pytest.mark.timeout(300, func_only=True)  # twenty to thirty seconds of a machine that does nothing else
def test_the_job_says_what_the_oracle_says(spark: "SparkSession", tmp_path: Path) -> None:
    assert [] == differences(spark, tmp_path, range(1), messages=20, nodes=3, soup=40)


@pytest.mark.heavy
@pytest.mark.timeout(1800, func_only=True)
def test_the_job_says_what_the_oracle_says_of_more(spark: "SparkSession", tmp_path: Path) -> None:
    assert [] == differences(spark, tmp_path, range(1, 13), messages=40, nodes=3, soup=300)


@pytest.mark.heavy
@pytest.mark.timeout(1800, func_only=True)
@pytest.mark.parametrize("is_exact", [False, True])
def test_the_job_says_what_the_oracle_says_of_three_hundred_boundaries(
    compiling_spark: "SparkSession", tmp_path: Path, is_exact: bool
) -> None:
    options: dict[str, Any] = {"messages": 30, "soup": 100, "soups": 30, "damaged": 2000}
    assert [] == differences(compiling_spark, tmp_path, range(2000, 2300), is_exact=is_exact, **options)


@pytest.mark.heavy
@pytest.mark.timeout(1800, func_only=True)
def test_they_agree_when_no_more_events_will_come(compiling_spark: "SparkSession", tmp_path: Path) -> None:
    assert [] == differences(compiling_spark, tmp_path, range(3000, 3040), soup=1000, is_final=True, has_now=False)


@pytest.mark.heavy
@pytest.mark.timeout(1800, func_only=True)
def test_they_agree_about_other_times_and_objectives(compiling_spark: "SparkSession", tmp_path: Path) -> None:
    assert [] == differences(compiling_spark, tmp_path, range(4000, 4040), soup=1000, objectives=OBJECTIVES, has_now=False)
