"""Where the job's report and the oracle's differ: figure by figure in every window and scope, entry by entry in every table."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from tests.sla.oracle_logs import microseconds

WINDOWS = ("all", "day", "hour", "minute")
COLUMNS = {
    "duplicates": ("message", "recipient", "count", "cause", "first_server", "first_at", "later_server", "later_at", "sender", "subject"),
    "losses": ("message", "recipient", "acknowledged_at", "server", "cause", "sender", "subject"),
    "orphans": ("message", "server", "primary", "at", "cause"),
    "exposures": ("message", "server", "began_at", "ended_at", "is_open", "cause"),
    "takeovers": ("old_primary", "new_primary", "reason", "silent_since", "detected_at", "first_resubmit_at", "last_resubmit_at",
                  "messages", "delivered_at", "returned_at", "in_time", "seen_at", "in_touch_at"),
    "slow": ("objective", "message", "server", "other", "at", "slow_us", "cause"),
}  # fmt: skip
INPUT = ("files", "lines", "rows", "rows_repeated")
OBJECTIVE = ("name", "objective", "actual", "bad", "unknown", "verdict", "budget_left", "burn_rates")
Line = Mapping[str, Any]


def instants(name: str, value: Any) -> Any:
    """Instants as microseconds, however they are written."""
    if isinstance(value, datetime):
        return microseconds(value.isoformat())
    is_instant = name == "at" or name.endswith("_at") or name in ("silent_since", "start")
    return microseconds(value) if is_instant and isinstance(value, str) else value


def disagreements(summary: Line, figures: Iterable[Line], tables: Mapping[str, Iterable[Line]], expected: Line) -> list[str]:
    """`figures` as in the summary, but all of them; `tables` as they stand beside it; `expected` is the oracle's report."""
    found = [
        f"overall {name}: {told}, the oracle says {expected['overall'][name]}"
        for name, told in summary["overall"].items()
        if name not in expected["overall"] or not _same(told, expected["overall"][name])
    ]
    found += [f"overall {name} is missing" for name in expected["overall"].keys() - summary["overall"].keys()]
    found += _in_figures(figures, expected["figures"])
    for name, columns in COLUMNS.items():
        told, true = (Counter(tuple(instants(key, row[key]) for key in columns) for row in rows) for rows in (tables[name], expected[name]))
        found += [f"{name}: only the job: {entry}" for entry in told - true] + [
            f"{name}: only the oracle: {entry}" for entry in true - told
        ]
    found += _in_objectives(summary["objectives"], expected["objectives"])
    if {name: dict(causes) for name, causes in summary["causes"].items()} != expected["causes"]:
        found.append(f"causes: {summary['causes']}, the oracle says {expected['causes']}")
    if {name: dict(causes) for name, causes in summary["slow_causes"].items()} != expected["slow_causes"]:
        found.append(f"slow: {summary['slow_causes']}, the oracle says {expected['slow_causes']}")
    quarantine = {entry["reason"]: entry["count"] for entry in summary["input"]["quarantine"]}
    if quarantine != expected["quarantine"]:
        found.append(f"quarantine: {quarantine}, the oracle says {expected['quarantine']}")
    for name in INPUT:
        if summary["input"][name] != expected["input"][name]:
            found.append(f"input {name}: {summary['input'][name]}, the oracle says {expected['input'][name]}")
    return found


def _in_figures(figures: Iterable[Line], expected: Mapping[tuple[Any, ...], Line]) -> list[str]:
    place = ("window", "start", "scope", "name", "other")
    told = {tuple(instants(key, line[key]) for key in place): {k: v for k, v in line.items() if k not in place} for line in figures}
    told = {(key[0], key[1] if key[0] != "all" else None, *key[2:]): line for key, line in told.items()}
    true = {(key[0], instants("start", key[1]), *key[2:]): line for key, line in expected.items()}
    found = []
    for key in sorted(told.keys() | true.keys(), key=str):
        here, there = told.get(key, {}), true.get(key, {})
        wrong = {
            name: (here.get(name), there.get(name)) for name in here.keys() | there.keys() if not _same(here.get(name), there.get(name))
        }
        if wrong:
            found.append(f"figures {key}: (job, oracle) {wrong}")
    return found


def _same(told: Any, true: Any) -> bool:
    """What nobody counted is nothing: absent, null and 0 are the same in a line of figures, so that empty lines may be left out."""
    if isinstance(told, Mapping) or isinstance(true, Mapping):
        told, true = told or {}, true or {}
        return all(_same(told.get(name), true.get(name)) for name in told.keys() | true.keys())
    return (told or 0) == (true or 0) and (told is None or true is None or type(told) is type(true))


def _in_objectives(objectives: Iterable[Line], expected: Iterable[Line]) -> list[str]:
    true = {line["name"]: line for line in expected}
    found = []
    for line in objectives:
        wanted = true.pop(line["name"])
        found += [
            f"objective {line['name']} {key}: {line[key]}, the oracle says {wanted[key]}"
            for key in OBJECTIVE
            if not _close(line[key], wanted.get(key, 0))
        ]
    return found + [f"objective {name} is missing" for name in true]


def _close(told: Any, true: Any) -> bool:
    if isinstance(told, Mapping) and isinstance(true, Mapping):
        return told.keys() == true.keys() and all(_close(told[name], true[name]) for name in told)
    if isinstance(told, float) and isinstance(true, int | float):
        return abs(told - true) <= 1e-9 * max(1.0, abs(true))
    return bool(told == true)
