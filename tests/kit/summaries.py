"""Summaries as the job makes them (docs/sla.md, section 6), in several sizes, from a seed: for tests of what reads them.

The figures are invented but agree with each other: counts of windows add up to those of all time, lists to their totals.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from shadowrelay.sla.incident_list import incidents
from shadowrelay.sla.objectives import KINDS, has_too_few, not_computable, times_of, verdicts
from shadowrelay.sla.objectives import ServiceLevel as Given

Summary = dict[str, Any]

NOW = datetime(2026, 11, 21, 16, tzinfo=UTC)
SERVERS = {"mx1.east.example": "east", "mx2.east.example": "east", "mx1.west.example": "west", "mx2.west.example": "west"}
SUMS = (
    *("messages_acknowledged", "messages_reconstructed", "messages_redundant", "messages_dsn", "messages_sent_again", "messages_done"),
    *(
        "exposure_count",
        "messages_exposed",
        "messages_exposure_unknown",
        "exposure_seconds",
        "discards_late",
        "promotions",
        "messages_promoted",
        "takeovers_late",
        "recipients_lost",
    ),
    *("messages_exposed", "recipients_duplicated", "recipients_duplicated_unexplained", "shadows_orphaned", "clock_skews"),
    *("shadows_kept", "shadows_taken_back", "shadows_rerouted"),
)
WAYS = ("shadow_server", "previous_hop", "next_hop")
PERCENTILES = ("shadow_latency_ms", "discard_lag_ms", "delivery_latency_ms", "takeover_detection_ms", "takeover_silence_ms")
OBJECTIVES = (
    *(("redundancy_ratio", 0.9999, None), ("shadow_latency", 0.99, 0.25), ("exposure", 0.9999, 600.0), ("discard_lag", 0.99, 120.0)),
    *(("delivery_latency", 0.99, 60.0), ("takeover", 0.99, None)),
    *(("recipients_lost", 0, None), ("recipients_duplicated_unexplained", 0, None), ("shadows_orphaned", 0, None)),
)
REASONS = ("Silence", "DatabaseChanged", "Handover", "DatabaseRolledBack")
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'&amp;\u202egpj.exe\x00\r\n\udc80" + "}</style>" + "ü" * 700


KEPT = ("window", "scope", "start", "verdict", "kind", "objective", "tell", "now", "until", "silent_since")  # not from logs


def iso(at: datetime) -> str:
    """As in the summary."""
    return at.isoformat().replace("+00:00", "Z")


def no_figures() -> dict[str, Any]:
    """Those of a window without any event."""
    ranks = {"count": 0, "p50": None, "p95": None, "p99": None, "max": None}
    figures: dict[str, Any] = dict.fromkeys(SUMS, 0)
    return (
        figures
        | {name: dict(ranks) for name in PERCENTILES}
        | {"messages_by_copies": dict.fromkeys("0123", 0), "messages_redundant_by_way": dict.fromkeys(WAYS, 0)}
        | {"redundancy_ratio": None, "shadow_share": None, "exposure_max_seconds": 0.0}
    )


def empty() -> Summary:
    """No logs at all."""
    objectives = [
        {
            **{"name": name, "objective": objective, "within_seconds": within, "actual": None, "good": 0, "bad": 0, "verdict": "no data"},
            **{"budget_left": None, "burn_rates": dict.fromkeys(("1h", "6h", "1d", "30d"))},
            **{"kind": KINDS[name], "default": objective, "default_within_seconds": within},
        }
        for name, objective, within in OBJECTIVES
    ]
    return {
        **{
            "schema_version": 1,
            "generated_at": iso(NOW),
            "now": None,
            "since": None,
            "until": None,
            "is_final": False,
            "verdict": verdicts(objectives),
            "times": times_of(Given()),
            "objectives": objectives,
        },
        "input": {
            **{"servers": [], "files": 0, "files_missing": 0, "lines": 0, "rows": 0, "rows_repeated": 0, "first_at": None, "last_at": None},
            **{"quarantine": [], "dropped_before_shipping": []},
        },
        "overall": no_figures() | {"lines_quarantined": 0},
        **{name: [] for name in ("not_computable", "figures", "takeovers", "duplicates", "losses", "orphans", "exposures", "slow")},
        **{"before": None, "cuts": [], "incidents": [], "slow_causes": {}},
        "causes": {name: {} for name in ("duplicates", "losses", "orphans", "exposures")},
        "traces": {},
    }


def with_verdicts(summary: Summary, **verdict_of: str) -> Summary:
    """The same with other verdicts on these objectives."""
    for objective in summary["objectives"]:
        objective["verdict"] = verdict_of.get(objective["name"], objective["verdict"])
    summary["verdict"] = verdicts(summary["objectives"])
    return summary


def one_message() -> Summary:
    """One server pair, one message, all well."""
    maker = _Maker(Random(1), list(SERVERS)[:2], NOW - timedelta(minutes=20), hours=1)
    maker.add_windows(per_hour=1, breaches=0)
    return maker.summary()


def demo(seed: int = 2) -> Summary:
    """600 messages on three nodes within ninety minutes, two takeovers, duplicates with a cause."""
    maker = _Maker(Random(seed), list(SERVERS)[:3], NOW - timedelta(hours=1, minutes=20), hours=2)
    maker.add_windows(per_hour=300, breaches=0)
    maker.add_incidents(takeovers=2, duplicates=4, losses=0, orphans=0, exposures=31)
    return maker.summary()


def healthy(seed: int = 5) -> Summary:
    """Six days of three nodes without a fault."""
    maker = _Maker(Random(seed), list(SERVERS)[:3], NOW - timedelta(days=6), hours=144)
    maker.add_windows(per_hour=900, breaches=0)
    maker.add_incidents(takeovers=0, duplicates=0, losses=0, orphans=0, exposures=0)
    return maker.summary()


def month(seed: int = 3, breaches: int = 9) -> Summary:
    """Thirty days of four nodes, with bad hours, losses and more than fits in the lists."""
    maker = _Maker(Random(seed), list(SERVERS), NOW - timedelta(days=30), hours=720)
    maker.add_windows(per_hour=1_700, breaches=breaches)
    maker.add_incidents(takeovers=14, duplicates=3_411, losses=7, orphans=212, exposures=1_904)
    return _with_trouble(maker)


def _with_trouble(maker: "_Maker") -> Summary:
    """Files that are missing, lines that cannot be read, figures that cannot be computed."""
    summary = maker.summary()
    summary["input"] |= {"files_missing": 3, "rows_repeated": 48_211}
    summary["input"]["quarantine"] = [
        {"reason": reason, "count": number, "examples": [_place(maker.random) for _ in range(min(3, number))]}
        for reason, number in (("torn", 12), ("fields", 3), ("date-time", 1))
    ]
    summary["input"]["dropped_before_shipping"] = [
        {"server": "mx2.west.example", "name": "MSGTRK2026110307-2.LOG", "reason": "retention", "at": iso(NOW - timedelta(days=11))}
    ]
    summary["overall"] |= {"lines_quarantined": 16, "clock_skews": 5}
    why = "Exchange writes no S:ShadowElapsed"
    summary["not_computable"] = [{"figure": "shadow_latency", "format": "exchange2016", "why": why}]
    return summary


def exchange(seed: int = 6) -> Summary:
    """Logs of Exchange: short names, neither sites nor times of copies and takeovers."""
    told = json.dumps(demo(seed))
    for number, name in enumerate(SERVERS, start=1):
        told = told.replace(name, f"EX{number}")
    summary: Summary = json.loads(told)
    none = dict.fromkeys(("p50", "p95", "p99", "max")) | {"count": 0}
    for figures in (summary["overall"], *summary["figures"]):
        figures |= dict.fromkeys(("shadow_latency_ms", "takeover_detection_ms", "takeover_silence_ms"), none)
        figures |= {"shadow_share": None, "takeovers_late": 0}
    summary["figures"] = [one for one in summary["figures"] if one["scope"] != "site"]
    for server in summary["input"]["servers"]:
        server |= {"site": "", "boundary": "", "format": "exchange2016"}
    for takeover in summary["takeovers"]:
        takeover |= {"reason": "", "silent_since": None, "detected_at": None, "in_time": None}
    for objective in summary["objectives"]:
        if objective["name"] in ("shadow_latency", "takeover"):
            objective |= {"actual": None, "verdict": "not computable"}
            objective |= {"budget_left": None, "burn_rates": dict.fromkeys(objective["burn_rates"])}
    summary["slow"] = [one for one in summary["slow"] if one["objective"] not in ("shadow_latency", "takeover")]
    summary["slow_causes"] = {name: causes for name, causes in summary["slow_causes"].items() if name not in ("shadow_latency", "takeover")}
    summary |= {"not_computable": not_computable({"exchange2016"}), "verdict": verdicts(summary["objectives"])}
    summary["incidents"] = incidents(summary)
    return summary


def hostile(seed: int = 4) -> Summary:
    """Five hours whose every text from logs tries to be markup."""

    def poisoned(value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            return {name: poisoned(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [poisoned(one, key) for one in value]
        is_kept = not isinstance(value, str) or key.endswith("at") or key in KEPT
        return value if is_kept else value + HOSTILE

    maker = _Maker(Random(seed), list(SERVERS), NOW - timedelta(hours=5), hours=5)
    maker.add_windows(per_hour=900, breaches=1)
    maker.add_incidents(takeovers=3, duplicates=5, losses=5, orphans=5, exposures=5)
    summary: Summary = poisoned(_with_trouble(maker))
    summary["traces"] = {message + HOSTILE: rows for message, rows in summary["traces"].items()}
    summary["causes"] = {kind: {cause + HOSTILE: number for cause, number in causes.items()} for kind, causes in summary["causes"].items()}
    return summary


def _place(random: Random) -> dict[str, Any]:
    name = f"MSGTRK202611{random.randint(1, 21):02}{random.randint(0, 23):02}-1.LOG"
    return {"server": random.choice(list(SERVERS)), "file": name, "line": random.randint(6, 40_000)}


class _Maker:
    """One summary in the making."""

    def __init__(self, random: Random, servers: Sequence[str], first: datetime, hours: int) -> None:
        self.random, self.servers, self.first = random, servers, first
        start = first.replace(minute=0, second=0, microsecond=0)
        self.hours = [start + timedelta(hours=hour) for hour in range(hours)]
        self.hourly: list[dict[str, Any]] = []
        self.result = empty()

    def add_windows(self, per_hour: int, breaches: int) -> None:
        """Figures of every hour; some of them bad."""
        bad = {hour: self.random.choice((0.002, 0.04, 0.6)) for hour in self.random.sample(self.hours, breaches)}
        for hour in self.hours:
            share = 1 + 0.6 * ((hour.hour - 4) % 24 / 12 - 1 if (hour.hour - 4) % 24 < 12 else 1 - (hour.hour - 4) % 24 / 12)
            number = per_hour if per_hour == 1 else max(0, round(per_hour * share * self.random.uniform(0.85, 1.15)))
            self.hourly.append(self._figures(number, bad.get(hour, 0.0)))

    def _figures(self, number: int, bad: float) -> dict[str, Any]:
        if not number:
            return no_figures()
        missing = round(number * bad)
        figures = no_figures() | {"messages_acknowledged": number, "messages_redundant": number - missing, "messages_done": number}
        figures |= {"messages_by_copies": {"0": missing, "1": number - missing, "2": 0, "3": 0}}
        figures |= {"messages_redundant_by_way": dict.fromkeys(WAYS, 0) | {"shadow_server": number - missing}}
        figures |= {
            "redundancy_ratio": (number - missing) / number,
            "shadow_share": 0.41,
            "exposure_count": missing,
            "messages_exposed": missing,
        }
        figures |= {"exposure_seconds": missing * 70.0, "exposure_max_seconds": 900.0 if missing else 0.0}
        slow = 1 + 40 * bad
        for name, median in (("shadow_latency_ms", 9), ("delivery_latency_ms", 60), ("discard_lag_ms", 1_100)):
            p50 = median * self.random.uniform(0.8, 1.3) * slow
            ranks = {"p50": p50, "p95": p50 * 3, "p99": p50 * self.random.uniform(5, 9), "max": p50 * self.random.uniform(15, 60)}
            figures[name] = {"count": number, **{rank: int(value if number > 1 else p50) for rank, value in ranks.items()}}
        return figures

    def _sum(self, parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        parts = [part for part in parts if part["messages_acknowledged"]]
        total = no_figures()
        if not parts:
            return total
        total |= {name: sum(part[name] for part in parts) for name in SUMS}
        total["redundancy_ratio"] = total["messages_redundant"] / total["messages_acknowledged"]
        total["messages_by_copies"] = {copies: sum(part["messages_by_copies"][copies] for part in parts) for copies in "0123"}
        total["messages_redundant_by_way"] = {way: sum(part["messages_redundant_by_way"][way] for part in parts) for way in WAYS}
        total |= {"shadow_share": 0.41, "exposure_max_seconds": max(part["exposure_max_seconds"] for part in parts)}
        total |= {name: parts[-1][name] for name in PERCENTILES[3:]}
        for name in PERCENTILES[:3]:
            ranks = {rank: sorted(part[name][rank] for part in parts)[len(parts) // 2] for rank in ("p50", "p95", "p99")}
            total[name] = {"count": sum(part[name]["count"] for part in parts), **ranks, "max": max(part[name]["max"] for part in parts)}
        return total

    def add_incidents(self, *, takeovers: int, duplicates: int, losses: int, orphans: int, exposures: int) -> None:
        """What goes wrong, and the traces of the first hundred."""
        causes = {"duplicates": "abcd", "losses": ["set aside", "no trace"], "orphans": ["expired", "never told"]}
        causes["exposures"] = ["no copy at acknowledgement", "holder lost"]
        self.result["takeovers"] = [self._takeover() for _ in range(takeovers)]
        for kind, number in (("losses", losses), ("duplicates", duplicates), ("orphans", orphans), ("exposures", exposures)):
            found = [self.random.choices(causes[kind], weights=range(len(causes[kind]), 0, -1))[0] for _ in range(number)]
            self.result["causes"][kind] = {cause: found.count(cause) for cause in sorted(set(found))}
            self.result[kind] = [self._incident(kind, cause) for cause in found[:200]]
        self.result["exposures"].sort(key=lambda one: -one["seconds"])
        named = [one["message"] for kind in ("losses", "duplicates", "orphans", "exposures") for one in self.result[kind][:30]]
        self.result["traces"] = {message: self._trace() for message in named[:100]}
        promoted = [one["messages"] for one in self.result["takeovers"]]
        for name, value in (("promotions", takeovers), ("messages_promoted", sum(promoted)), ("recipients_lost", losses)):
            self.hourly[-1][name] = value
        late = sum(one["messages"] - one["in_time"] for one in self.result["takeovers"])
        ranks = {"count": sum(promoted), "p50": 400, "p95": 38_000, "p99": 39_000, "max": 40_000}
        self.hourly[-1] |= {"takeover_detection_ms": ranks, "takeover_silence_ms": {**ranks, "p95": 10_840_000}}
        self.hourly[-1] |= {"recipients_duplicated": duplicates, "shadows_orphaned": orphans, "takeovers_late": late}
        missing = exposures - sum(hour["exposure_count"] for hour in self.hourly)
        self.hourly[-1]["exposure_count"] += max(0, missing)
        self.hourly[-1]["messages_exposed"] += max(0, missing)
        self.hourly[-1]["exposure_seconds"] += max(0, missing) * 12.5

    def _at(self) -> datetime:
        return self.first + (NOW - self.first) * self.random.random() * 0.8

    def _message(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def _takeover(self) -> dict[str, Any]:
        old, new = self.random.sample(self.servers, 2)
        reason, at, messages = self.random.choice(REASONS), self._at(), self.random.randint(1, 900)
        is_short = NOW - self.first < timedelta(hours=3)
        detected = at + (
            timedelta(seconds=12) if is_short or reason != "Silence" else timedelta(hours=3, seconds=self.random.randint(1, 90))
        )
        promoted = detected + timedelta(seconds=self.random.uniform(0.1, 40) if not is_short else 0.4)
        delivered = promoted + timedelta(seconds=messages / 40 + 0.2)
        returned = delivered + timedelta(seconds=self.random.uniform(5, 60 if is_short else 200_000))
        return {
            **{"old_primary": old, "new_primary": new, "reason": reason, "silent_since": iso(at), "detected_at": iso(detected)},
            **{"first_resubmit_at": iso(detected + (promoted - detected) / 3), "last_resubmit_at": iso(promoted), "messages": messages},
            **{"delivered_at": iso(delivered), "returned_at": iso(returned) if self.random.random() < 0.8 and returned < NOW else None},
            **{"seen_at": None, "in_touch_at": None, "is_cut": False},
            "in_time": messages - (self.random.randint(0, 3) if self.random.random() < 0.2 else 0),
        }

    def _incident(self, kind: str, cause: str) -> dict[str, Any]:
        at, (one, other) = self._at(), self.random.sample(self.servers, 2)
        recipient = f"reader{self.random.randint(1, 900)}@sink.example"
        base = {"message": self._message(), "cause": cause}
        if kind in ("duplicates", "losses"):
            base |= {"sender": "writer@src.example", "subject": f"To {recipient}"}
        seconds = round(self.random.paretovariate(0.9) * 4, 3)
        match kind:
            case "duplicates":
                later = iso(at + timedelta(seconds=seconds))
                return base | {
                    "recipient": recipient,
                    "count": 2,
                    "first_server": one,
                    "first_at": iso(at),
                    "later_server": other,
                    "later_at": later,
                }
            case "losses":
                return base | {"recipient": recipient, "acknowledged_at": iso(at), "server": one}
            case "orphans":
                return base | {"server": one, "primary": other, "at": iso(at)}
            case _:
                open_, ended = self.random.random() < 0.05, at + timedelta(seconds=seconds)
                return base | {"server": one, "began_at": iso(at), "ended_at": iso(ended), "seconds": seconds, "is_open": open_}

    def _trace(self) -> list[dict[str, Any]]:
        at, (one, other) = self._at(), self.random.sample(self.servers, 2)
        steps = [
            ("HAREDIRECT", "SMTP", one, one, other, "", 0.0),
            ("HARECEIVE", "SMTP", other, one, other, "", 0.006),
            ("RECEIVE", "SMTP", one, "client.example", one, "Replication=Success AckElapsed=0.021", 0.011),
            ("DEFER", "SMTP", one, one, "sink.example", "451 4.3.0 try again later", 0.4),
            ("RESUBMIT", "REDUNDANCY", other, "", other, "Reason=Silence", 10_812.0),
            ("SEND", "SMTP", other, other, "sink.example", "250 2.0.0 Ok", 10_812.31),
        ]
        named = ["reader1@sink.example", "reader2@sink.example"]
        return [
            {
                **{
                    "at": iso(at + timedelta(seconds=after)),
                    "server": server,
                    "event": event,
                    "source": source,
                    "client": client,
                    "to": to,
                },
                **{"recipients": named, "text": text},
            }
            for event, source, server, client, to, text, after in steps
        ]

    def summary(self) -> Summary:
        """The finished one."""
        result, overall = self.result, self._sum(self.hourly)
        result |= {"now": iso(NOW), "overall": overall | {"lines_quarantined": 0}}
        result["figures"] += [
            {"window": "all", "start": "", "scope": "server", "name": name, "other": ""} | self._share(overall, len(self.servers))
            for name in self.servers
        ]
        pairs = [(one, other) for one in self.servers for other in self.servers if one != other and self.random.random() < 0.9]
        result["figures"] += [
            {"window": "all", "start": "", "scope": "pair", "name": one, "other": other} | self._share(overall, len(pairs))
            for one, other in pairs
        ]
        result["figures"] += [
            {"window": "all", "start": "", "scope": "site", "name": site, "other": ""} | self._share(overall, 2)
            for site in sorted({SERVERS[name] for name in self.servers})
        ]
        days = sorted({hour.date() for hour in self.hours})
        by_day = [
            (day, self._sum(figures for hour, figures in zip(self.hours, self.hourly, strict=True) if hour.date() == day)) for day in days
        ]
        everything = {"scope": "all", "name": "", "other": ""}
        result["figures"] += [{"window": "day", "start": f"{day}T00:00:00Z"} | everything | figures for day, figures in by_day]
        recent = list(zip(self.hours, self.hourly, strict=True))[-168:]
        result["figures"] += [{"window": "hour", "start": iso(hour)} | everything | figures for hour, figures in recent]
        self._judge()
        self._add_slow()
        if len(self.hours) in (2, 3):  # a short run has figures by minute
            minutes = int((NOW - self.first) / timedelta(minutes=1))
            result["figures"] += [
                {"window": "minute", "start": iso(self.first + timedelta(minutes=minute)), **everything, **self._figures(4, 0.0)}
                for minute in range(minutes)
            ]
        result["incidents"] = incidents(result)
        rows = overall["messages_acknowledged"] * 6
        result["input"] |= {
            "files": max(1, rows // 20_000),
            "lines": rows + 5,
            "rows": rows,
            "first_at": iso(self.first),
            "last_at": iso(NOW),
        }
        result["input"]["servers"] = [
            {
                **{"name": name, "site": SERVERS[name], "boundary": "example", "format": "shadowrelay", "first_at": iso(self.first)},
                **{"last_at": iso(NOW), "rows": rows // len(self.servers)},
            }
            for name in self.servers
        ]
        return result

    def _share(self, overall: Mapping[str, Any], parts: int) -> dict[str, Any]:
        """The part of one server or pair; pairs differ in latency."""
        number, factor = overall["messages_acknowledged"] // parts, self.random.choice((0.6, 1, 1, 2, 5, 12))
        figures = {**overall, "messages_acknowledged": number, "messages_redundant": number, "redundancy_ratio": 1.0 if number else None}
        figures |= {name: overall[name] // parts for name in SUMS if name not in ("messages_acknowledged", "messages_redundant")}
        ranks = overall["shadow_latency_ms"]
        figures["shadow_latency_ms"] = {
            rank: value if value is None or rank == "count" else int(value * factor) for rank, value in ranks.items()
        }
        return figures

    def _add_slow(self) -> None:
        """What missed the speed targets."""
        causes = ("next hop was down", "server lost or cut off", "our own delay")
        for objective in self.result["objectives"]:
            if objective["kind"] != "speed" or not objective["bad"]:
                continue
            found = [self.random.choice(causes) for _ in range(objective["bad"])]
            self.result["slow_causes"][objective["name"]] = {cause: found.count(cause) for cause in sorted(set(found))}
            for cause in found[:200]:
                one, other = self.random.sample(self.servers, 2)
                line = {"objective": objective["name"], "message": self._message(), "server": one, "other": other, "at": iso(self._at())}
                self.result["slow"].append(line | {"seconds": self.random.randint(1, 9_000) / 10, "cause": cause})

    def _judge(self) -> None:
        overall = self.result["overall"]
        number, missing = overall["messages_acknowledged"], overall["messages_acknowledged"] - overall["messages_redundant"]
        bad_of = {
            "redundancy_ratio": missing,
            "exposure": missing // 3,
            "shadow_latency": number // 300,
            "takeover": overall["takeovers_late"],
        }
        for objective in self.result["objectives"]:
            name, wanted = objective["name"], objective["objective"]
            if name in overall and isinstance(wanted, int):
                actual: float = overall[name]
                is_met, left = actual <= wanted, float(actual <= wanted)
                burns: dict[str, float | None] = dict.fromkeys(("1h", "6h", "1d", "30d"))
            else:
                total, bad = (overall["messages_promoted"] if name == "takeover" else number), bad_of.get(name, 0)
                if not total:
                    continue
                actual, allowed = (total - bad) / total, total * (1 - wanted)
                is_few = has_too_few(total, wanted)
                is_met, left = actual >= wanted, None if is_few else 1 - bad / allowed
                burns = {"1h": 0.0, "6h": 0.0, "1d": 2.4 if bad else 0.0, "30d": bad / allowed}
                burns = dict.fromkeys(burns) if is_few else burns
                objective |= {"good": total - bad, "bad": bad}
            objective |= {"actual": actual, "verdict": "met" if is_met else "missed", "budget_left": left, "burn_rates": burns}
        self.result["verdict"] = verdicts(self.result["objectives"])
