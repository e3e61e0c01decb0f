"""Generated logs say what their truth says: the oracle, which reads only the logs, finds all that was planted and nothing else."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from benchmarks.sla_bulk import generate_parquet
from benchmarks.sla_generate import generate
from tests.sla.oracle import Oracle
from tests.sla.oracle_logs import Logs, Row, microseconds, read_logs
from tests.sla.oracle_report import PERCENTILES

# The oracle against the truth of the generator: two ways to the same figures, one from rows, one from what happened.

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
        copies = Counter(f"copies {number}" for number in figure.get("copies", ()))
        if copies != Counter({name: count for name, count in true["counts"].items() if name.startswith("copies ") and count}):
            found.append(f"{boundary}: {copies}, in truth {true['counts']}")
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
    whole = {"rows": len(oracle.logs.rows), "rows_repeated": len(oracle.logs.repeats), "files": oracle.logs.files}
    found += [f"{name}: {count}, in truth {truth['input'][name]}" for name, count in whole.items() if count != truth["input"][name]]
    return found


def judged(output: Path, truth: dict[str, Any]) -> list[str]:
    logs = read_logs(output / "logs", output / "sites.toml")
    return differences(Oracle(logs, now=microseconds(truth["now"])), truth)


def planted(truth: dict[str, Any]) -> Counter[str]:
    found = Counter[str]()
    for boundary in truth["boundaries"].values():
        found.update({name: count for name, count in boundary["counts"].items() if count})
        found.update({f"quarantine {reason}": count for reason, count in boundary["quarantine"].items()})
        for table in ("duplicates", "losses", "orphans", "exposures"):
            found.update(f"{table} {entry['cause']}" for entry in boundary[table])
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Enough boundaries to have a fault of every kind."""
    output = tmp_path_factory.mktemp("small")
    return output, generate(output, range(40), messages=25)


def test_the_oracle_finds_what_was_planted_and_nothing_else(small: tuple[Path, dict[str, Any]]) -> None:
    assert [] == judged(*small)


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1000, 1600, 100))
def test_the_oracle_finds_what_was_planted_in_hundreds_of_seeds(tmp_path: Path, first: int) -> None:
    assert [] == judged(tmp_path, generate(tmp_path, range(first, first + 100), messages=40))


def test_what_is_planted_is_of_every_kind(small: tuple[Path, dict[str, Any]]) -> None:
    _, truth = small
    causes = {
        *(f"duplicates {cause}" for cause in ("a", "b", "c", "d", "e", "unexplained")),
        *(f"losses {cause}" for cause in ("set aside", "discarded without delivery", "both copies gone", "still queued", "no trace")),
        "losses copy not taken over",
        *(f"orphans {cause}" for cause in ("expired", "log missing", "never told")),
        "losses unknown: log ends", "orphans unknown: log ends",
        *(f"exposures {cause}" for cause in ("no copy at acknowledgement", "holder lost")),
        *(f"quarantine {cause}" for cause in ("torn", "fields", "no header", "date-time", "encoding", "csv", "number", "custom-data")),
        "copies 0", "copies 1", "copies 2", "copies 3",
        "messages_reconstructed", "messages_dsn", "messages_sent_again", "takeovers_late", "discards_late", "clock_skews",
    }  # fmt: skip

    assert set() == causes - planted(truth).keys()
    assert truth["input"]["rows_repeated"] > 0


def test_a_seed_makes_the_same_logs_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        generate(tmp_path / name, [7], messages=20)
    one, two = (
        {path.relative_to(top): path.read_bytes() for path in top.rglob("*.*") if path.is_file()}
        for top in (tmp_path / "one", tmp_path / "two")
    )

    assert one == two


def test_late_files_stand_apart_and_are_named(tmp_path: Path) -> None:
    truth = generate(tmp_path, range(10), messages=20, has_late=True)
    late = sorted(str(path.relative_to(tmp_path / "late")) for path in (tmp_path / "late").rglob("*.LOG"))

    assert late
    assert sorted(truth["input"]["files_late"]) == late
    assert [] != judged(tmp_path, truth)
    for name in late:
        (tmp_path / "late" / name).rename(tmp_path / "logs" / name)
    assert [] == judged(tmp_path, truth)


def test_a_lost_row_is_a_difference(tmp_path: Path) -> None:
    truth = generate(tmp_path, [3], messages=20, spoilt=0)
    path = next(path for path in sorted((tmp_path / "logs").rglob("MSGTRK*.LOG")) if b",SEND" in path.read_bytes())
    lines = path.read_bytes().splitlines(keepends=True)
    lines.pop(next(number for number, line in enumerate(lines) if b",SMTP,SEND" in line))
    path.write_bytes(b"".join(lines))

    assert [] != judged(tmp_path, truth)
    assert truth == json.loads((tmp_path / "truth.json").read_text())


def logs_of(warehouse: Path) -> Logs:
    """Parquet as the oracle's rows."""
    logs = Logs()
    for path in sorted((warehouse / "events").rglob("*.parquet")):
        server = next(part.removeprefix("server=") for part in path.parts if part.startswith("server="))
        table = pyarrow.parquet.ParquetFile(path).read()
        at = table["at"].cast("int64").to_pylist()
        for instant, row in zip(at, table.drop_columns(["at", "silent_since", "detected_at"]).to_pylist(), strict=True):
            custom = dict(item.removeprefix("S:").split("=") for item in row["custom_data"].split(";") if item)
            logs.rows.append(
                Row(instant, server, row["event"], row["source"], row["message"], row["internet_message_id"], row["client_hostname"],
                    row["server_hostname"], row["source_context"], row["reference"], tuple(row["recipients"]), (), row["sender"],
                    row["subject"], row["return_path"], custom, row["format"], row["file"], row["line"])
            )  # fmt: skip
    return logs


def test_events_made_in_bulk_say_what_their_truth_says(tmp_path: Path) -> None:
    truth = generate_parquet(tmp_path, seed=5, events=12_000, days=8, faulty=0.3, chunk=500)
    oracle = Oracle(logs_of(tmp_path), now=microseconds(truth["now"]))
    figure, overall = oracle.figures["all", None, "all", "", ""], oracle.report()["overall"]
    causes = Counter(f"duplicates {row['cause']}" for row in oracle.tables["duplicates"])
    counts = truth["counts"]

    assert counts["events"] == len(oracle.logs.rows) >= 12_000
    assert {name: Counter(dict(pairs)) for name, pairs in truth["milliseconds"].items()} == {
        name: Counter(figure[name]) for name in truth["milliseconds"]
    }
    assert {name: count for name, count in counts.items() if name in overall} == {name: overall[name] for name in counts if name in overall}
    assert {name: count for name, count in counts.items() if name.startswith("duplicates")} == dict(causes)
    assert (counts["exposure_us"] / 1e6, counts["exposure_max_us"] / 1e6) == (overall["exposure_seconds"], overall["exposure_max_seconds"])
    assert {"recipients_lost", "shadows_orphaned", "promotions", "messages_sent_again", "clock_skews"} <= {
        name for name in counts if counts[name]
    }
