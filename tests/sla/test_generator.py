"""Generated logs say what their truth says: the oracle, which reads only the logs, finds all that was planted and nothing else."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sla_generate import generate
from tests.sla.oracle import Oracle
from tests.sla.oracle_logs import microseconds, read_logs
from tests.sla.truth import differences


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
        *(f"duplicates {cause}" for cause in ("a", "b", "c", "d", "unexplained")),
        *(f"losses {cause}" for cause in ("set aside", "discarded without delivery", "both copies gone", "still queued", "no trace")),
        *(f"orphans {cause}" for cause in ("expired", "log missing", "never told")),
        *(f"exposures {cause}" for cause in ("no copy at acknowledgement", "holder lost")),
        *(f"quarantine {cause}" for cause in ("torn", "fields", "no header", "date-time", "encoding", "csv", "number", "custom-data")),
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
