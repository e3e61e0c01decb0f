"""Tests that the redundancy report on killed, wiped and paused nodes agrees with clients and receiving servers. docs/sla.md."""

import shutil
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import rows
from shadowrelay.lab.sla_report import contradictions, make_report
from tests.crash import ring
from tests.crash.plan import NODES, TIMES

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.crash, pytest.mark.heavy, pytest.mark.timeout(600)]

SEEDS = (3, 6, 7, 11, 13)


def collected(directory: Path) -> Path:
    """Copy the tracking logs to `<logs>/<server>/MSGTRK*.LOG`."""
    for name in NODES:
        shutil.copytree(directory / name / "tracking", directory / "logs" / name, ignore=lambda _, names: set(names) - set(tracking(names)))
    return directory / "logs"


def tracking(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith("MSGTRK")]


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_report_agrees_with_clients_and_receiving_servers(seed: int, tmp_path: Path) -> None:
    episode = await ring.run(seed, tmp_path)
    redundant = sum(
        row["event-id"] == "RECEIVE" and "S:Replication=Success" in row["custom-data"]
        for name in NODES
        for row in rows(tmp_path / name / "tracking")
    )

    report = await make_report(collected(tmp_path), tmp_path / "report", TIMES)

    assert "" == report.trouble
    assert [] == contradictions(report.overall, episode.result, episode.sent, redundant), episode.explain()
