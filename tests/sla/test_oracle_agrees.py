"""The job says what the oracle says, about generated logs with faults of every kind, and about rows that make no sense:
every figure in every window and scope, every entry of every table."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest

from benchmarks.sla_generate import generate
from shadowrelay.sla.ingest import ingest_once
from shadowrelay.sla.report import write_report
from shadowrelay.sla.sites import read_sites_file
from shadowrelay.sla.summary import placed_figures
from tests.sla.agreement import COLUMNS, WINDOWS, disagreements
from tests.sla.oracle import judge
from tests.sla.oracle_logs import microseconds
from tests.sla.soup import add_soup

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


def differences(
    spark: "SparkSession",
    directory: Path,
    seeds: Iterable[int],
    *,
    soup: int = 0,
    objectives: str = "",
    has_now: bool = True,
    **options: Any,
) -> list[str]:
    """Generate, let both judge, compare. `soup`: so many messages of it too; `options` go to the generator, or to the job."""
    told = {name: options.pop(name) for name in ("is_final", "is_exact") if name in options}
    truth = generate(directory, list(seeds), **options)
    if soup:
        add_soup(directory, seed=soup, messages=soup)
    sites, output = directory / "sites.toml", directory / "report"
    objectives_file = directory / "objectives.toml" if objectives else None
    if objectives_file is not None:
        objectives_file.write_text(objectives)
    ingest_once(spark, str(directory / "logs"), str(directory / "warehouse"), read_sites_file(sites))
    summary = write_report(
        spark, str(directory / "warehouse"), str(output), now=datetime.fromisoformat(truth["now"]) if has_now else None,
        objectives_file=str(objectives_file) if objectives_file else None, **told,
    )  # fmt: skip
    expected = judge(
        directory / "logs", sites=sites, now=microseconds(truth["now"]) if has_now else None, objectives=objectives_file,
        is_final=told.get("is_final", False),
    )  # fmt: skip

    def table(name: str) -> list[dict[str, Any]]:
        return pyarrow.parquet.read_table(output / "tables" / name).to_pylist()

    figures = [placed_figures(line) for line in table("figures") if line["window"] in WINDOWS]
    return disagreements(summary, figures, {name: table(name) for name in COLUMNS}, expected)


@pytest.mark.slow
@pytest.mark.timeout(300, func_only=True)  # twenty to thirty seconds of a machine that does nothing else
def test_the_job_says_what_the_oracle_says(spark: "SparkSession", tmp_path: Path) -> None:
    assert [] == differences(spark, tmp_path, range(12), messages=40, nodes=3, soup=300)


@pytest.mark.heavy
@pytest.mark.timeout(1800, func_only=True)
@pytest.mark.parametrize("is_exact", [False, True])
def test_the_job_says_what_the_oracle_says_of_two_hundred_boundaries(
    compiling_spark: "SparkSession", tmp_path: Path, is_exact: bool
) -> None:
    assert [] == differences(compiling_spark, tmp_path, range(2000, 2200), messages=30, soup=3000, is_exact=is_exact)


@pytest.mark.heavy
@pytest.mark.timeout(1800, func_only=True)
def test_they_agree_when_no_more_events_will_come(compiling_spark: "SparkSession", tmp_path: Path) -> None:
    assert [] == differences(compiling_spark, tmp_path, range(3000, 3040), soup=1000, is_final=True, has_now=False)


@pytest.mark.heavy
@pytest.mark.timeout(1800, func_only=True)
def test_they_agree_about_other_times_and_objectives(compiling_spark: "SparkSession", tmp_path: Path) -> None:
    assert [] == differences(compiling_spark, tmp_path, range(4000, 4040), soup=1000, objectives=OBJECTIVES, has_now=False)
