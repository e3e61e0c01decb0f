"""The oracle against the truth of the generator: two ways to the same figures, one from rows, one from what happened."""

from collections import Counter
from typing import Any

from tests.sla.oracle import PERCENTILES, Oracle

UNCOUNTED = ("messages_reconstructed", "messages_redundant", "messages_done", "messages_sent_again", "messages_dsn", "promotions",
             "messages_acknowledged", "messages_promoted", "takeovers_late", "discards_late", "clock_skews")  # fmt: skip
ENTRIES = {
    "exposures": ("message", "server", "microseconds", "cause"),
    "duplicates": ("message", "recipient", "count", "cause"),
    "losses": ("message", "recipient", "server", "cause"),
    "orphans": ("message", "server", "primary", "cause"),
}


def differences(oracle: Oracle, truth: dict[str, Any]) -> list[str]:
    """Every figure and entry in which the two differ, boundary by boundary; none is what should be."""
    found = []
    boundary_of = {server: boundary for server, (_, boundary) in oracle.logs.places.items()}
    entries: dict[tuple[str, str], Counter[tuple[Any, ...]]] = {}
    for name, keys in ENTRIES.items():
        for row in oracle.tables[name]:
            told = row | {"microseconds": round(row["seconds"] * 1e6)} if name == "exposures" else row
            place = boundary_of[row["server"] if "server" in row else row["first_server"]]
            entries.setdefault((place, name), Counter())[tuple(told[key] for key in keys)] += 1
    for boundary, true in truth["boundaries"].items():
        figure = oracle.figures.get(("all", None, "boundary", boundary, ""), {})
        counts = {name: sum(figure.get(name, ())) for name in (*UNCOUNTED, "shadow_us", "ack_us") if name != "messages_promoted"}
        counts["messages_promoted"] = len(set(figure.get("messages_promoted", ())))
        for name, count in counts.items():
            if count != true["counts"].get(name, 0):
                found.append(f"{boundary}: {name}: {count}, in truth {true['counts'].get(name, 0)}")
        for name in PERCENTILES:
            told = Counter(figure.get(name, ()))
            if told != Counter(dict(true["milliseconds"].get(name, ()))):
                found.append(f"{boundary}: {name}: {told - Counter(dict(true['milliseconds'].get(name, ())))}")
        for name, keys in ENTRIES.items():
            here, there = entries.get((boundary, name), Counter()), Counter(tuple(entry[key] for key in keys) for entry in true[name])
            found += [f"{boundary}: {name}: only the oracle {entry}" for entry in here - there]
            found += [f"{boundary}: {name}: only in truth {entry}" for entry in there - here]
        reasons = Counter(reason for server, _, _, reason in oracle.logs.quarantine if boundary_of[server] == boundary)
        if reasons != Counter(true["quarantine"]):
            found.append(f"{boundary}: quarantine: {reasons}, in truth {true['quarantine']}")
    whole = {"rows": len(oracle.logs.rows), "rows_repeated": oracle.logs.repeated, "files": oracle.logs.files}
    found += [f"{name}: {count}, in truth {truth['input'][name]}" for name, count in whole.items() if count != truth["input"][name]]
    return found
