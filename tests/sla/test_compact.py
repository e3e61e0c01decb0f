"""Small files of days that are over become few, without a row more or less."""

from datetime import date, timedelta

import pytest
from py4j.protocol import Py4JJavaError

from shadowrelay.sla import report
from shadowrelay.sla import warehouse as module
from shadowrelay.sla.inspection import inspect
from shadowrelay.sla.land import land_here
from shadowrelay.sla.logs import source_of
from shadowrelay.sla.warehouse import begin, compact, read_events
from tests.kit.log_files import STARTED, a_log, an_event

NOW = STARTED + timedelta(days=3)


def fill(directory, servers=("mx1", "007"), hours=9, days=2):
    """A log for each hour, each repeated once under another name; gives the warehouse."""
    paths = []
    for server in servers:
        for hour in range(hours):
            events = [an_event(f"{server}-{day}-{hour}", at=STARTED + timedelta(days=day, hours=hour)) for day in range(days)]
            for instance in (1, 2):
                path = directory / "logs" / server / f"MSGTRK20261121{hour:02}-{instance}.LOG"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(a_log(events))
                paths.append(source_of(str(path)))
    begin(str(directory / "w"))
    land_here(paths, str(directory / "w"), "b")
    return directory / "w"


def rows_of(spark, warehouse):
    return sorted(tuple(row) for row in read_events(spark, str(warehouse)).drop("file", "line").distinct().collect())


def test_a_day_that_is_over_becomes_one_file_a_server_and_its_repeats_go(spark, tmp_path):
    warehouse = fill(tmp_path)
    before = rows_of(spark, warehouse)

    count = compact(spark, str(warehouse), before=date(2026, 11, 22))

    files = sorted(path.parts[-4:-2] for path in (warehouse / "events").rglob("*.parquet"))
    assert 36 == count
    assert [("date=2026-11-21", "server=007"), ("date=2026-11-21", "server=mx1")] == [place for place in files if "21" in place[0][-2:]]
    assert 36 == sum(place[0] == "date=2026-11-22" for place in files)
    assert before == rows_of(spark, warehouse)
    assert 18 + 36 == read_events(spark, str(warehouse)).count()
    assert 0 == compact(spark, str(warehouse), before=date(2026, 11, 22))


def test_a_compaction_that_dies_before_it_deletes_leaves_repeats_that_the_next_takes_out(spark, tmp_path, monkeypatch):
    warehouse = fill(tmp_path, servers=("mx1",), days=1)
    before = rows_of(spark, warehouse)
    located = module.located

    class NothingIsDeleted:
        def __init__(self, files):
            self._files = files

        def __getattr__(self, name):
            return getattr(self._files, name)

        def rm(self, paths):
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "located", lambda path: (NothingIsDeleted(located(path)[0]), located(path)[1]))
    try:
        compact(spark, str(warehouse), before=date(2026, 12, 1))
    except KeyboardInterrupt:
        monkeypatch.undo()

    assert 18 + 9 == read_events(spark, str(warehouse)).count()
    assert before == rows_of(spark, warehouse)
    inspect(str(warehouse))
    assert 0 == compact(spark, str(warehouse), before=date(2026, 12, 1))
    inspect(str(warehouse))
    assert (9, before) == (read_events(spark, str(warehouse)).count(), rows_of(spark, warehouse))


def test_few_files_or_large_ones_are_left_alone(spark, tmp_path, monkeypatch):
    warehouse = fill(tmp_path, servers=("mx1",), hours=3, days=1)

    assert 0 == compact(spark, str(warehouse), before=date(2026, 12, 1))
    monkeypatch.setattr(module, "FILES_MIN", 2)
    monkeypatch.setattr(module, "SMALL_BYTES", 10)
    assert 0 == compact(spark, str(warehouse), before=date(2026, 12, 1))
    assert 0 == compact(spark, str(tmp_path / "nowhere"))


def test_one_job_takes_a_bounded_number_of_files(spark, tmp_path, monkeypatch):
    warehouse = fill(tmp_path, servers=("mx1", "mx2", "mx3"), hours=4, days=1)
    monkeypatch.setattr(module, "FILES_AT_ONCE", 8)
    sizes = []
    merge = module._merge
    monkeypatch.setattr(module, "_merge", lambda *given: sizes.append(len(given[2])) or merge(*given))

    assert 24 == compact(spark, str(warehouse), before=date(2026, 12, 1))
    assert [8, 8, 8] == sizes
    assert 12 == read_events(spark, str(warehouse)).count()


@pytest.mark.heavy
@pytest.mark.timeout(600, func_only=True)
@pytest.mark.parametrize("times", [1, report.TRIES])
def test_a_report_whose_files_a_compaction_takes_away_is_made_again(spark, tmp_path, monkeypatch, times):
    warehouse = str(fill(tmp_path, servers=("mx1",)))
    before = report.write_report(spark, warehouse, str(tmp_path / "before"), now=NOW)
    first_pass, tries = report.first_pass, []

    def first_pass_of_what_is_gone(events, names):
        """By now the events are listed."""
        tries.append(1)
        if len(tries) <= times:
            monkeypatch.setattr(module, "FILES_MIN", 1)
            assert compact(spark, warehouse, before=date(2030, 1, 1)) > 0
        return first_pass(events, names)

    monkeypatch.setattr(report, "first_pass", first_pass_of_what_is_gone)
    if times == report.TRIES:
        with pytest.raises(Py4JJavaError, match=report.FILE_VANISHED):
            report.write_report(spark, warehouse, str(tmp_path / "report"), now=NOW)
        assert [] == list(tmp_path.glob("report/*"))
        return

    after = report.write_report(spark, warehouse, str(tmp_path / "report"), now=NOW)

    assert 2 == len(tries)
    assert before["overall"] == after["overall"]
    assert before["overall"]["messages_acknowledged"] > 0
