"""Shapes of real Exchange logs, mixed at random on the same servers: the job says what the oracle says of each. docs/sla.md, appendix.

Rows are missing, servers take other servers' parts, are of several versions, have wrong clocks, logs that end early or are not there, and
stand in directories with each other's logs. What is right of such a mixture nobody knows; two programs that were written apart agree."""

import random
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from shadowrelay.sla.ingest import ingest_once
from shadowrelay.sla.report import write_report
from shadowrelay.sla.sites import read_sites_file
from shadowrelay.sla.summary import placed_figures
from tests.sla import (  # noqa: F401 - they add their shapes
    exchange_audited,
    exchange_documented,
    exchange_further,
    exchange_hops,
    exchange_rare,
    exchange_unaccepted,
    exchange_variants,
)
from tests.sla.agreement import COLUMNS, WINDOWS, disagreements
from tests.sla.exchange_shapes import DAY, SHAPES, ExchangeShape
from tests.sla.oracle import judge
from tests.sla.oracle_logs import microseconds

SERVERS = ("a1", "a2", "a3", "b1", "b2", "c1", "edge", "mbx")
SHIFTS = (0, 0, 0, 3, -3, 0.25, 3600)  # of a server's clock


def mixture(seed: int) -> ExchangeShape:
    """Up to twelve shapes on the same servers, by the seed."""
    choose = random.Random(seed)
    named = random.Random(f"names {seed}").random() < 0.2  # long names, which Windows cuts
    where = {"place": f"mix{seed}{'-of-long-names' if named else ''}", "is_cut": named}
    mixed = ExchangeShape(f"mix{seed}", choose.choice(("2016", "2016", "2016", "2013", "2010", "later")), **where)
    if choose.random() < 0.3:
        mixed.versions = {server: choose.choice(("2010", "2013", "2016")) for server in SERVERS}
    missing = choose.choice((0, 0, 0.03, 0.15))
    for index, make in enumerate(choose.sample(SHAPES, choose.randint(1, 12))):
        others = dict(zip(SERVERS, choose.sample(SERVERS, len(SERVERS)), strict=True)) if choose.random() < 0.4 else {}
        case = make(f"mix{seed}x{index}", called=others, **where)
        begin = choose.choice((0, choose.randrange(3600), choose.randrange(2 * DAY)))
        for server, rows in case.logs.items():
            kept = [(begin + seconds, cells) for seconds, cells in rows if choose.random() >= missing]
            mixed.logs.setdefault(server, []).extend(kept)
    for server, rows in mixed.logs.items():
        shift = choose.choice(SHIFTS) if choose.random() < 0.2 else 0
        ends = choose.uniform(0, 2 * DAY) if choose.random() < 0.1 else 8 * DAY
        mixed.logs[server] = [(shift + seconds, cells) for seconds, cells in rows if seconds < ends]
    if choose.random() < 0.2:
        del mixed.logs[choose.choice([*mixed.logs])]
    servers = sorted(mixed.logs)
    if servers and choose.random() < 0.2:
        mixed.copied_to["full"] = choose.choice(servers)
    if servers and choose.random() < 0.2:
        mixed.twice.append(choose.choice(servers))
    parted = random.Random(f"files {seed}")
    mixed.cut_at = {server: parted.uniform(0, 2 * DAY) for server in servers if parted.random() < 0.2}
    if choose.random() < 0.1:
        mixed.together = tuple(servers[: choose.randint(2, 3)])
    return mixed


def differences(spark: SparkSession, directory: Path, seeds: range, *, is_final: bool) -> list[str]:
    """Let both judge a report on these mixtures, and compare."""
    with (directory / "sites.toml").open("w") as file:
        for case in map(mixture, seeds):
            case.write(directory / "logs")
            for server in SERVERS:
                for is_full in (False, True):
                    name = case.host(server, is_full=is_full)
                    file.write(f'["{name}"]\nsite = "{case.name}-{server[0]}"\nboundary = "{case.name}"\n')
    warehouse, output, sites = str(directory / "warehouse"), directory / "report", directory / "sites.toml"
    ingest_once(spark, str(directory / "logs"), warehouse, read_sites_file(sites))
    summary = write_report(spark, warehouse, str(output), is_final=is_final)
    expected = judge(directory / "logs", sites=sites, is_final=is_final, clock=microseconds(summary["generated_at"]))
    tables = {name: pyarrow.parquet.read_table(output / "tables" / name).to_pylist() for name in (*COLUMNS, "figures")}
    figures = [placed_figures(line) for line in tables.pop("figures") if line["window"] in WINDOWS]
    return disagreements(summary, figures, tables, expected)


@pytest.mark.heavy
@pytest.mark.timeout(1800, func_only=True)
@pytest.mark.parametrize("begin", range(0, 300, 150))
def test_the_job_says_what_the_oracle_says_of_random_mixtures(spark: SparkSession, tmp_path: Path, begin: int) -> None:
    """A report of 150 of them takes little longer than one of 50: most of it is planning."""
    assert [] == differences(spark, tmp_path, range(begin, begin + 150), is_final=begin == 0)
