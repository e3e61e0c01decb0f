"""What reports leave behind that were killed."""

import os
import time
from datetime import timedelta

from shadowrelay.sla.store import MAKING, sweep_reports


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
