"""The directory of a report: one takes the place of another whole, and what killed ones left behind goes."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from shadowrelay.sla.report import MAKING, Store, sweep_reports


def test_what_a_killed_report_left_goes_and_one_that_may_be_under_way_stays(tmp_path):
    for name, age in (("old", 2 * 86400), ("young", 60)):
        (tmp_path / f"{MAKING}{name}" / "tables").mkdir(parents=True)
        os.utime(tmp_path / f"{MAKING}{name}", (time.time() - age,) * 2)
    (tmp_path / "tables").mkdir()

    sweep_reports(str(tmp_path), older_than=timedelta(days=1))
    assert {f"{MAKING}young", "tables"} == {path.name for path in tmp_path.iterdir()}

    sweep_reports(str(tmp_path))
    assert ["tables"] == [path.name for path in tmp_path.iterdir()]
    sweep_reports(str(tmp_path / "nowhere"))


def test_reports_that_end_together_take_their_place_one_after_the_other(tmp_path):
    names = [f"table{number}" for number in range(20)]

    def publish(said):
        store = Store(None, str(tmp_path))
        for name in names:  # as Spark leaves them
            (tmp_path / store.making / "tables" / name).mkdir(parents=True)
            (tmp_path / store.making / "tables" / name / "part").write_text(said)
        (tmp_path / store.making / "csv").mkdir()
        (tmp_path / store.making / "csv" / "table.csv").write_text(said)
        store.publish({page: said.encode() for page in ("summary.json", "report.html")})
        store.clear()

    for each in range(10):
        with ThreadPoolExecutor(4) as reporters:
            list(reporters.map(publish, (f"{each}-{number}" for number in range(4))))

        said = {path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
        assert 1 == len(said)
        assert {"tables", "csv", "summary.json", "report.html"} == {path.name for path in tmp_path.iterdir()}
        assert sorted(names) == sorted(path.name for path in (tmp_path / "tables").iterdir())
