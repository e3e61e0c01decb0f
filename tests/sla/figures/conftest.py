"""All literal cases, judged once."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from shadowrelay.sla.report import write_report
from tests.sla.figures import judged_cases
from tests.sla.figures.cases import DAY, Case, at, write_warehouse

NOW = at(10 * DAY)


@dataclass(frozen=True)
class Judged:
    """A report: `summary` as it was returned, and what stands in its directory."""

    warehouse: Path
    output: Path
    summary: dict[str, Any]
    jobs: int

    def figures(self, case: str, window: str = "all", start: datetime | None = None) -> dict[str, Any]:
        """Of the case's boundary, flat as in tables/figures; nothing where nothing happened."""
        for line in self._figures:
            if (line["scope"], line["name"], line["window"], line["start"]) == ("boundary", case, window, start):
                return line
        return {}

    @cached_property
    def _figures(self) -> list[dict[str, Any]]:
        return self._table("figures")

    def _table(self, name: str) -> list[dict[str, Any]]:
        return parquet.read_table(self.output / "tables" / name).to_pylist()

    def lines(self, table: str, case: str) -> list[dict[str, Any]]:
        """Of a table, those of a case, by message; without the case's name in messages and servers."""
        found = [line for line in self._table(table) if any(_is_of(value, case) for value in line.values())]
        short = [{name: _short(value, case) for name, value in line.items()} for line in found]
        return sorted(
            short, key=lambda line: str(sorted(line.items(), key=lambda item: (item[0] != "message", item[0] != "recipient", item[0])))
        )


def _is_of(value: Any, case: str) -> bool:
    return isinstance(value, str) and (value.startswith(f"{case}/") or value.endswith(f".{case}"))


def _short(value: Any, case: str) -> Any:
    return value.removeprefix(f"{case}/").removesuffix(f".{case}") if isinstance(value, str) else value


@pytest.fixture(scope="session")
def judged(spark, tmp_path_factory) -> Judged:
    """The report on all of `judged_cases`, at NOW."""
    directory = tmp_path_factory.mktemp("figures")
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    write_warehouse(spark, judged_cases.all_cases(), directory / "warehouse")
    before = scheduler.numTotalJobs()
    summary = write_report(spark, str(directory / "warehouse"), str(directory / "report"), now=NOW, textfile=str(directory / "sla.prom"))
    jobs = scheduler.numTotalJobs() - before
    return Judged(directory / "warehouse", directory / "report", summary, jobs)


def case_named(name: str) -> Case:
    return next(case for case in judged_cases.all_cases() if case.name == name)
