"""Rows that no relay would write: events of messages in any order, on any server, at any time. For the job against the oracle only.

Whatever nobody thought of is in here sometime: HADISCARD before HARECEIVE, a second RECEIVE elsewhere, a takeover by a server that held
nothing, ends before the acknowledgement. Instants differ by microseconds, and by days; no two rows of a message share one, but for
HAREDIRECT and RECEIVE.
"""

import csv
import io
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shadowrelay.model.tracking import EventId, EventSource, ResubmitReason, TrackingEvent
from shadowrelay.protocol.fields import format_instant
from shadowrelay.protocol.tracking import FIELDS, format_header, format_line

BEGIN = datetime(2026, 2, 18, tzinfo=UTC)  # a week and a day later all is over, before the generated logs begin
SERVERS = {name: {"site": name.split(".")[1], "boundary": "soup"} for name in ("a.s1", "b.s1", "c.s2", "d.s2")}
UNKNOWN = "e.s3"  # named in rows, without a log
OWN = (
    ("RECEIVE", "SMTP"), ("RECEIVE", "SMTP"), ("HAREDIRECT", "SMTP"), ("HAREDIRECT", "SMTP"), ("HAREDIRECTFAIL", "SMTP"),
    ("HARECEIVE", "SMTP"), ("HARECEIVE", "SMTP"), ("HADISCARD", "SMTP"), ("HADISCARD", "SMTP"), ("TRANSFER", "ROUTING"), ("SEND", "SMTP"),
    ("SENDEXTERNAL", "SMTP"), ("SEND", "SMTP"), ("DEFER", "SMTP"), ("FAIL", "SMTP"), ("DUPLICATEDELIVER", "SMTP"), ("DSN", "DSN"),
    ("RESUBMIT", "REDUNDANCY"), ("RESUBMIT", "REDUNDANCY"), ("RESUBMIT", "SAFETYNET"), ("LOAD", "BOOTLOADER"),
    ("POISONMESSAGE", "POISONMESSAGE"), ("EXPIRE", "QUEUE"),
)  # fmt: skip
EXCHANGE = (
    ("RECEIVE", "SMTP"), ("RECEIVE", "SMTP"), ("RECEIVE", "STOREDRIVER"), ("HAREDIRECT", "SMTP"), ("HARECEIVE", "SMTP"),
    ("HADISCARD", "SMTP"), ("SEND", "SMTP"), ("SENDEXTERNAL", "SMTP"), ("DELIVER", "STOREDRIVER"), ("FAIL", "ROUTING"), ("DSN", "DSN"),
    ("RESUBMIT", "REDUNDANCY"), ("SUBMIT", "STOREDRIVER"), ("EXPAND", "ROUTING"), ("RESOLVE", "RESOLVER"), ("REDIRECT", "ROUTING"),
    ("AGENTINFO", "AGENT"),
)  # fmt: skip
VERSIONS = {
    "exchange2010": tuple(name for name in FIELDS[:27] if name != "network-message-id"),
    "exchange2013": FIELDS[:27],
    "exchange2016": FIELDS,
}


class Soup:
    """Random rows, by the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.spellings = random.Random(seed)
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

    def _own(self, name: str, internet: str, people: tuple[str, ...], at: datetime, event: str, source: str) -> None:
        choose = self.random
        here, other = choose.choice(list(SERVERS)), choose.choice([*SERVERS, UNKNOWN])
        custom: tuple[tuple[str, str], ...] = ()
        if event == "RECEIVE":
            custom = (
                ("Replication", choose.choice(("Success", "Success", "Failed", "Disabled"))),
                ("AckElapsed", f"{choose.random():.6f}"),
            )
            custom += (("ShadowElapsed", f"{choose.random():.6f}"),) if choose.random() < 0.7 else ()
            custom = custom[1:] if choose.random() < 0.1 else custom
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
        begin = BEGIN + timedelta(seconds=choose.randrange(7 * 86_400))
        servers = [f"{version}-{letter}" for letter in "xyz"]
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
                choose.choice(("", "S:Replication=Failed", "S:Anything=with=equals;S:Replication=Success", "no key"))
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
            if event == "DSN":  # about this message, under an id of its own
                cell |= {"message-id": f"<dsn-{name[1:]}", "network-message-id": f"dsn-{network}"}
            if event in ("EXPAND", "RESOLVE", "REDIRECT"):
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
        sites = dict(SERVERS)
        for server, rows in self.rows.items():
            version, _, letter = server.rpartition("-")
            name = f"{server}.Corp.example" if version in VERSIONS and letter == "z" else server
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
    """`messages` of ours, and a fifth as many of each version of Exchange, beside what was generated there."""
    soup = Soup(seed)
    for index in range(messages):
        soup.message(index)
    for version in VERSIONS:
        for index in range(messages // 5):
            soup.exchange(index, version)
    soup.write(output)
