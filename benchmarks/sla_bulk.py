"""Millions of events straight into Parquet, in the schema of docs/sla.md section 1, with their exact truth. Whole arrays, no rows.

One fork a message, so that about six events are a message's. Faults are few (a thousandth to a hundredth). The truth is counted from
the arrays that the events are made of: how many of each kind, and the latencies as histograms of milliseconds.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shadowrelay.sla.land import ARROW_FILES
from shadowrelay.sla.logs import Source
from shadowrelay.sla.warehouse import SCHEMA_VERSION

SECOND = 1_000_000
HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
HEARTBEAT, SPAN, EXPIRATION, HOLD = 120 * SECOND, 3 * HOUR, 2 * DAY, 4 * DAY
BEGIN = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * SECOND
CHUNK_MESSAGES = 150_000
EVENTS_PER_MESSAGE = 5.9  # a little less than there are
KINDS = ("clean", "unprotected", "never placed", "lost", "twice", "unexplained", "burnt", "promoted", "orphaned", "failed", "again")
PERCENTILE_NAMES = ("shadow_latency_ms", "discard_lag_ms", "delivery_latency_ms", "takeover_detection_ms", "takeover_silence_ms")
ADDRESSES = [f"user{number}@{'abcde'[number % 5]}.dest.example" for number in range(5000)]
HASHES = np.array([int.from_bytes(hashlib.blake2b(address.encode()).digest()[:8], "big") for address in ADDRESSES], dtype=np.uint64)
SUBJECTS = ["Hello", 'Re: "quoted", with a comma', "Grüße", "a;b;c", "Invoice 4711", "line\r\nline", ""]
EMPTY = (
    "client_ip", "server_ip", "return_path", "related_recipient", "tenant_id", "original_client_ip", "original_server_ip",
)  # fmt: skip

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass
class Totals:
    """The truth so far."""

    counts: Counter[str] = field(default_factory=Counter)
    milliseconds: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in PERCENTILE_NAMES})

    def elapsed(self, name: str, microseconds: Ints) -> Ints:
        """Whole milliseconds; what is negative counts as 0, and as a skew."""
        self.counts["clock_skews"] += int((microseconds < 0).sum())
        microseconds = np.maximum(microseconds, 0)
        values, counts = np.unique(microseconds // 1000, return_counts=True)
        self.milliseconds[name].update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        return microseconds

    def exposed(self, microseconds: Ints) -> None:
        """Intervals, all of some length."""
        self.counts["exposure_count"] += len(microseconds)
        self.counts["exposure_us"] += int(microseconds.sum())
        self.counts["exposure_max_us"] = max(self.counts["exposure_max_us"], int(microseconds.max(initial=0)))


@dataclass
class Rows:
    """Rows of one event: which message each is about, when, on which server, and the fields that differ."""

    event: str
    source: str
    message: Ints
    at: Ints
    server: Ints
    client_hostname: Ints | str = ""
    server_hostname: Ints | str = ""
    context: str = ""
    reference: Ints | None = None
    custom: pa.Array | None = None
    replication: str | None = None
    reason: str | None = None
    micros: dict[str, Ints] = field(default_factory=dict)


def generate_parquet(
    warehouse: Path, *, seed: int, events: int, servers: int = 6, days: int = 8, faulty: float = 0.005, chunk: int = CHUNK_MESSAGES
) -> dict[str, Any]:
    """At least `events` events below `<warehouse>/events`, `servers.json`, and `truth.json` beside it. Returns the truth.

    Memory is bounded by `chunk` messages; each chunk lies within one day, so that there are few and large files.
    """
    names = [f"mx{number}.{'east' if number % 2 == 0 else 'west'}.bulk.example" for number in range(servers)]
    places = {name: {"site": name.split(".")[1], "boundary": "bulk"} for name in names}
    warehouse.mkdir(parents=True, exist_ok=True)
    (warehouse / "servers.json").write_text(json.dumps(places))
    (warehouse / "warehouse.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION}))
    totals, now = Totals(), BEGIN + days * DAY
    chunks = max(-(-events // round(chunk * EVENTS_PER_MESSAGE)), 1)
    size = round(events / EVENTS_PER_MESSAGE / chunks) + 1
    for number in range(chunks):
        random = np.random.default_rng([seed, number])
        table = _chunk(random, totals, size, names, number, BEGIN + number * days // chunks * DAY, now, faulty)
        totals.counts["events"] += table.num_rows
        _write(warehouse, table, names, number)
    every = np.arange(
        len(names)
    )  # all servers live until the end: each starts once more, and loads a message of which nothing else is known
    table = _table(random, [Rows("LOAD", "BOOTLOADER", every, np.full(len(names), now - SECOND), every)], names, np.ones_like(every), every)
    totals.counts["events"] += table.num_rows
    _write(warehouse, table, names, chunks)
    truth = {
        "now": datetime.fromtimestamp(now // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z"), "counts": dict(totals.counts),
        "milliseconds": {name: [list(pair) for pair in sorted(counts.items())] for name, counts in totals.milliseconds.items()},
    }  # fmt: skip
    (warehouse / "truth.json").write_text(json.dumps(truth))
    return truth


def _chunk(
    random: np.random.Generator, totals: Totals, size: int, names: list[str], number: int, begin: int, now: int, faulty: float
) -> pa.Table:
    shares = [1 - faulty, *[faulty / (len(KINDS) - 1)] * (len(KINDS) - 1)]
    kind = random.choice(len(KINDS), size, p=shares)
    kind[0] = 0
    of = {name: kind == number for number, name in enumerate(KINDS)}
    of["again"][1:] &= ~of["again"][:-1] & ~of["burnt"][:-1]  # what it repeats is acknowledged, and no repeat itself
    skew = random.integers(-100_000, 100_000, len(names))
    at = np.sort(random.integers(begin, min(begin + DAY - 6 * HOUR, now - 7 * HOUR), size)) + np.arange(size)
    first = random.integers(0, len(names), size)
    second = (first + random.integers(1, len(names) - 1, size)) % len(names)
    third = np.full(size, -1)
    for candidate in range(len(names)):
        third = np.where((third < 0) & (candidate != first) & (candidate != second), candidate, third)
    ack = np.minimum(random.lognormal(10.3, 0.8, size), 4 * SECOND).astype(np.int64) + 2000
    shadow = ack * 9 // 10
    delivered = at + np.minimum(random.lognormal(12.5, 1.2, size), 3 * HOUR / 2).astype(np.int64) + 5000
    late = random.random(size) < 0.03
    delivered = np.where(late, delivered + random.integers(60 * SECOND, 900 * SECOND, size), delivered)
    discarded = delivered + random.integers(50_000, 1_200_000, size) + (random.random(size) < 0.002) * 300 * SECOND
    people = random.choice([1, 1, 1, 1, 1, 1, 1, 1, 2, 5], size)
    people[of["again"]] = people[np.flatnonzero(of["again"]) - 1]

    everything = np.arange(size)
    where = lambda mask: everything[mask]  # noqa: E731
    clock = lambda when, server: when + skew[server]  # noqa: E731
    unprotected = of["unprotected"] | of["never placed"]
    sets: list[Rows] = []

    # a server is lost at one time in this chunk, and its messages are taken over
    taken = where(of["promoted"])
    lost_at = begin + 3 * HOUR + number * 7 * SECOND
    at[taken] = lost_at - HOUR + np.arange(len(taken)) * (30 * 60 * SECOND // max(len(taken), 1))
    first[taken], second[taken], third[taken] = 0, 1, 2
    is_burnt = of["burnt"]
    redundant = ~unprotected & ~is_burnt
    totals.counts["messages_acknowledged"] += size
    totals.counts["messages_reconstructed"] += int(is_burnt.sum())
    totals.counts["messages_redundant"] += int((~unprotected).sum())
    totals.counts["messages_sent_again"] += int(of["again"].sum())

    copied = where(~unprotected)
    sets.append(Rows("HARECEIVE", "SMTP", copied, clock(at - 1500, second)[copied], second[copied], first[copied], second[copied]))
    hold = where(redundant)
    sets.append(
        Rows("HAREDIRECT", "SMTP", hold, clock(at, first)[hold], first[hold], first[hold], second[hold],
             custom=_text("S:ShadowElapsed=", shadow[hold]))
    )  # fmt: skip
    bare = where(unprotected)
    sets.append(Rows("HAREDIRECTFAIL", "SMTP", bare, clock(at, first)[bare], first[bare], "", first[bare], "No suitable shadow servers"))
    both = pc.binary_join_element_wise(
        _text("S:Replication=Success;S:AckElapsed=", ack[hold]), _text("S:ShadowElapsed=", shadow[hold]), ";"
    )
    sets.append(
        Rows("RECEIVE", "SMTP", hold, clock(at, first)[hold], first[hold], "client.src.example", first[hold], custom=both,
             replication="Success", micros={"ack_us": ack[hold], "shadow_us": shadow[hold]})
    )  # fmt: skip
    sets.append(
        Rows("RECEIVE", "SMTP", bare, clock(at, first)[bare], first[bare], "client.src.example", first[bare],
             custom=_text("S:Replication=Failed;S:AckElapsed=", ack[bare]), replication="Failed", micros={"ack_us": ack[bare]})
    )  # fmt: skip
    totals.elapsed("shadow_latency_ms", shadow[hold])
    totals.counts["shadow_us"] += int(shadow[hold].sum())
    totals.counts["ack_us"] += int(ack[hold].sum())
    by_first = where(~is_burnt & ~of["promoted"])
    sets.append(Rows("TRANSFER", "ROUTING", by_first, clock(at + 900, first)[by_first], first[by_first], "", first[by_first], "mail.dest"))
    slow = where(late & ~is_burnt & ~of["promoted"])
    sets.append(Rows("DEFER", "SMTP", slow, clock(at + 40_000, first)[slow], first[slow], first[slow], "mail.dest.example"))

    # ends
    no_end = of["lost"]
    sent = where(~is_burnt & ~of["promoted"] & ~no_end & ~of["failed"])
    sets.append(Rows("SENDEXTERNAL", "SMTP", sent, clock(delivered, first)[sent], first[sent], first[sent], "mail.dest.example"))
    failed = where(of["failed"])
    sets.append(Rows("FAIL", "SMTP", failed, clock(delivered, first)[failed], first[failed], first[failed], "mail.dest.example"))
    last = delivered.copy()
    for name, server, cause in (("twice", first, "a"), ("unexplained", third, "unexplained")):
        again = where(of[name])
        last[again] += 600 * SECOND
        if name == "twice":
            sets.append(Rows("LOAD", "BOOTLOADER", again, clock(last - SECOND, first)[again], first[again], "", first[again]))
        sets.append(Rows("SENDEXTERNAL", "SMTP", again, clock(last, server)[again], server[again], server[again], "mail.dest.example"))
        totals.counts["recipients_duplicated"] += int(people[again].sum())
        totals.counts[f"duplicates {cause}"] += int(people[again].sum())
    is_delivered = ~of["lost"] & ~of["failed"] & ~is_burnt
    had = where(of["again"])[is_delivered[np.maximum(where(of["again"]) - 1, 0)]]
    totals.counts["recipients_duplicated"] += int(people[had].sum())
    totals.counts["duplicates e"] += int(people[had].sum())
    last_server = np.where(of["unexplained"], third, first)
    totals.elapsed("delivery_latency_ms", (clock(last, last_server) - clock(at, first))[sent])

    # the end of the copy
    heard = where(~unprotected & ~no_end & ~of["orphaned"] & ~of["promoted"])
    sets.append(Rows("HADISCARD", "SMTP", heard, clock(discarded, second)[heard], second[heard], first[heard], second[heard], "delivered"))
    judged = heard[~is_burnt[heard]]  # of a burnt one the discard is the end
    lag = totals.elapsed("discard_lag_ms", (clock(discarded, second) - clock(delivered, first))[judged])
    totals.counts["discards_late"] += int((lag > HEARTBEAT).sum())
    held = where(of["orphaned"] | no_end)
    orphans = held[clock(at - 1500, second)[held] + HOLD <= now]
    totals.counts["shadows_orphaned"] += len(orphans)
    lost = where(no_end)
    totals.counts["recipients_lost"] += int(people[lost[clock(at, first)[lost] + EXPIRATION <= now]].sum())

    # exposure
    placed = where(of["unprotected"])
    placed_at = at + np.minimum(delivered - at, 30 * SECOND) // 2 + 1000
    sets.append(Rows("HARECEIVE", "SMTP", placed, clock(placed_at - 1500, second)[placed], second[placed], first[placed], second[placed]))
    sets.append(
        Rows("HAREDIRECT", "SMTP", placed, clock(placed_at, first)[placed], first[placed], first[placed], second[placed],
             custom=_text("S:ShadowElapsed=", shadow[placed]))
    )  # fmt: skip
    sets.append(
        Rows("HADISCARD", "SMTP", placed, clock(discarded, second)[placed], second[placed], first[placed], second[placed], "delivered")
    )
    lag = totals.elapsed("discard_lag_ms", (clock(discarded, second) - clock(delivered, first))[placed])
    totals.counts["discards_late"] += int((lag > HEARTBEAT).sum())
    totals.exposed((placed_at - at)[placed])
    never = where(of["never placed"])
    totals.exposed((delivered - at)[never])
    sets += _taken_over(totals, taken, people, (first, second, third), lost_at, skew, at)
    totals.counts["messages_done"] += size - len(lost)
    internet = np.where(of["again"], everything - 1, everything)
    return _table(random, sets, names, people, internet)


def _taken_over(
    totals: Totals, taken: Ints, people: Ints, servers: tuple[Ints, Ints, Ints], lost_at: int, skew: Ints, at: Ints
) -> list[Rows]:
    """Messages of the first server promoted by the second for its silence, placed on the third, delivered. Appears in one takeover."""
    if not len(taken):
        return []
    _, second, third = (each[taken] for each in servers)
    new = int(second[0])
    since, detected = lost_at + int(skew[new]), lost_at + SPAN + 20 * SECOND + int(skew[new])
    resubmitted = detected + np.arange(len(taken)) * 1000 + 100_000
    text = f"S:Reason=Silence;S:SilentSince={_instant(since)};S:DetectedAt={_instant(detected)}"
    placed, sent = resubmitted + 3 * SECOND, resubmitted + 60 * SECOND
    discarded = resubmitted + 61 * SECOND - int(skew[new]) + skew[third]
    totals.counts["promotions"] += 1
    totals.counts["messages_promoted"] += len(taken)
    totals.counts["takeovers_late"] += int((resubmitted > since + SPAN + HEARTBEAT).sum())
    totals.elapsed("takeover_detection_ms", resubmitted - detected)
    totals.elapsed("takeover_silence_ms", resubmitted - since)
    totals.exposed(placed - since)
    totals.elapsed("delivery_latency_ms", sent - at[taken] - skew[servers[0][taken]])
    lag = totals.elapsed("discard_lag_ms", discarded - sent)
    totals.counts["discards_late"] += int((lag > HEARTBEAT).sum())
    stored = placed - 1500 - int(skew[new]) + skew[third]
    return [
        Rows("RESUBMIT", "REDUNDANCY", taken, resubmitted, second, "", second, reference=servers[0][taken],
             custom=pa.array([text] * len(taken)), reason="Silence",
             micros={"silent_since": np.full(len(taken), since), "detected_at": np.full(len(taken), detected)}),
        Rows("HARECEIVE", "SMTP", taken, stored, third, second, third),
        Rows("HAREDIRECT", "SMTP", taken, placed, second, second, third, custom=pa.array(["S:ShadowElapsed=0.020000"] * len(taken))),
        Rows("SENDEXTERNAL", "SMTP", taken, sent, second, second, "mail.dest.example"),
        Rows("HADISCARD", "SMTP", taken, discarded, third, second, third, "delivered"),
    ]  # fmt: skip


def _table(random: np.random.Generator, sets: list[Rows], names: list[str], people: Ints, internet: Ints) -> pa.Table:
    """All columns of all rows, sorted by date and server."""
    message = np.concatenate([rows.message for rows in sets])
    at, server = np.concatenate([rows.at for rows in sets]), np.concatenate([rows.server for rows in sets])
    order = np.lexsort((at, server, at // DAY))
    ids = _hex(random, len(people), dashed=True)
    internet_ids = pc.binary_join_element_wise("<", pc.utf8_slice_codeunits(ids, 0, 23), "@src.example>", "")
    offsets = np.concatenate(([0], np.cumsum(people)))
    begin = random.integers(0, len(ADDRESSES), len(people))[internet]
    chosen = (np.repeat(begin - offsets[:-1], people) + np.arange(offsets[-1])) % len(ADDRESSES)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ADDRESSES).take(pa.array(chosen)))
    hashes = np.add.reduceat(HASHES[chosen], offsets[:-1]).astype(np.int64)
    hosts = [*names, "", "client.src.example", "mail.dest.example"]
    subject, sender = random.integers(0, len(SUBJECTS), len(people)), random.integers(0, 500, len(people))
    size = random.integers(500, 60_000, len(people))
    by_message = pa.array(message[order])

    def each(value: str) -> pa.Array:
        """A field that is the same for all rows of an event."""
        texts = [getattr(rows, value) for rows in sets]
        known = sorted({text for text in texts if text is not None})
        codes = [known.index(text) if text is not None else -1 for text in texts]
        flat = np.repeat(codes, [len(rows.message) for rows in sets])[order]
        return pa.DictionaryArray.from_arrays(pa.array(flat, pa.int32(), mask=flat < 0), pa.array(known or [""])).cast(pa.string())

    def host(value: str) -> pa.Array:
        fields = [(getattr(rows, value), len(rows.message)) for rows in sets]
        codes = [np.full(count, hosts.index(found or "")) if found is None or isinstance(found, str) else found for found, count in fields]
        return pa.array(hosts).take(pa.array(np.concatenate(codes)[order]))

    def number(key: str) -> pa.Array:
        parts = [rows.micros.get(key, np.full(len(rows.message), -1)) for rows in sets]
        flat = np.concatenate(parts)[order]
        return pa.array(flat, pa.int64(), mask=flat < 0)

    custom = pa.concat_arrays(
        [rows.custom.cast(pa.string()) if rows.custom is not None else pa.array([""] * len(rows.message)) for rows in sets]
    )
    count = len(order)
    empty = pa.array([""]).take(pa.array(np.zeros(count, np.int64)))
    stamp = pa.timestamp("us", tz="UTC")
    columns: dict[str, pa.Array] = {
        "row_id": _hex(random, count, dashed=False), "at": pa.array(at[order]).cast(stamp),
        "event": each("event"), "source": each("source"),
        "message": ids.take(by_message), "internet_message_id": internet_ids.take(pa.array(internet[message[order]])),
        "internal_message_id": by_message.cast(pa.string()),
        "client_hostname": host("client_hostname"), "server_hostname": host("server_hostname"), "source_context": each("context"),
        "connector_id": empty, "reference": host("reference"), "subject": pa.array(SUBJECTS).take(pa.array(subject[message[order]])),
        "sender": pa.array([f"s{each}@src.example" for each in range(500)]).take(pa.array(sender[message[order]])),
        "message_info": empty, "directionality": pa.array(["Incoming"]).take(pa.array(np.zeros(count, np.int64))),
        "custom_data": custom.take(pa.array(order)), "traffic_type": pa.array(["Email"]).take(pa.array(np.zeros(count, np.int64))),
        "recipients": lists.take(by_message), "recipient_statuses": pa.ListArray.from_arrays(
            pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string())),
        "recipients_hash": pa.array(hashes[message[order]]), "total_bytes": pa.array(size[message[order]]),
        "recipient_count": pa.array(people[message[order]], pa.int32()), "replication": each("replication"),
        "copies": pa.nulls(count, pa.int64()), "ack_us": number("ack_us"),
        "shadow_us": number("shadow_us"), "attempt_us": pa.nulls(count, pa.int64()), "reason": each("reason"),
        "silent_since": number("silent_since").cast(stamp), "detected_at": number("detected_at").cast(stamp),
        "original_message": pa.nulls(count, pa.string()),
        "format": pa.array(["shadowrelay"]).take(pa.array(np.zeros(count, np.int64))),
        "file": pa.array(["MSGTRK2026030100-1.LOG"]).take(pa.array(np.zeros(count, np.int64))), "line": pa.array(np.arange(count)),
        "server_code": pa.array(server[order]),
    }  # fmt: skip
    return pa.table(columns | dict.fromkeys(EMPTY, empty))


def _write(warehouse: Path, table: pa.Table, names: list[str], number: int) -> None:
    day, server = np.asarray(table["at"].cast(pa.int64())) // DAY, np.asarray(table["server_code"])
    changes = np.flatnonzero(np.diff(day * len(names) + server)) + 1
    table = table.drop_columns(["server_code"])
    file = f"MSGTRK-{number}.LOG"
    for start, end in zip([0, *changes.tolist()], [*changes.tolist(), len(day)], strict=True):
        of_day, name = date(1970, 1, 1) + timedelta(days=int(day[start])), names[server[start]]
        folder = warehouse / "events" / f"date={of_day}" / f"server={name}" / f"batch={number}"
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{Source('', name, file).key}-0.parquet"
        pq.write_table(table.slice(start, end - start), part, compression="zstd", store_schema=False)
    folder = warehouse / "files" / f"batch={number}"
    folder.mkdir(parents=True)
    read = [
        (names[code], pc.min_max(table.filter(pa.array(server == code))["at"]), int((server == code).sum())) for code in np.unique(server)
    ]
    rows = [
        {"server": name, "file": file, "bytes": 0, "lines": count, "rows": count, "quarantined": 0, "format": "shadowrelay", "version": "1",
         "first_at": span["min"].as_py(), "last_at": span["max"].as_py()}
        for name, span, count in read
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows, ARROW_FILES), folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()


def _hex(random: np.random.Generator, count: int, *, dashed: bool) -> pa.Array:
    """Random identifiers: 32 hex digits, or a UUID's 36 characters."""
    digits = np.frombuffer(random.bytes(count * 16), np.uint8)
    nibbles = np.stack((digits >> 4, digits & 15), axis=1).reshape(count, 32)
    letters = np.frombuffer(b"0123456789abcdef", np.uint8)[nibbles]
    if dashed:
        dash = np.full((count, 1), ord("-"), np.uint8)
        letters = np.hstack(
            [letters[:, :8], dash, letters[:, 8:12], dash, letters[:, 12:16], dash, letters[:, 16:20], dash, letters[:, 20:]]
        )
    width = letters.shape[1]
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(letters)))


def _text(prefix: str, microseconds: Ints) -> pa.Array:
    """`<prefix>0.012345`."""
    whole = pa.array(microseconds // SECOND).cast(pa.string())
    part = pc.utf8_lpad(pa.array(microseconds % SECOND).cast(pa.string()), 6, "0")
    return pc.binary_join_element_wise(prefix, pc.binary_join_element_wise(whole, part, "."), "")


def _instant(at: int) -> str:
    return datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at % SECOND:06d}Z"
