"""Small files become few, without a row more or less: events of days that are over, the tables of files of many batches, and quarantine."""

from collections import Counter
from datetime import date, timedelta

import pytest

from shadowrelay.sla import inspection, live, report
from shadowrelay.sla import warehouse as module
from shadowrelay.sla.ingest import Known, counted, ingest
from shadowrelay.sla.inspection import inspect, last_readings, read_again, readings
from shadowrelay.sla.land import land_files
from shadowrelay.sla.logs import list_logs
from shadowrelay.sla.summary import quarantined_once
from shadowrelay.sla.warehouse import (
    WarehouseUnusable,
    clean,
    compact,
    compact_files,
    compact_quarantine,
    landed_batches,
    next_number,
    read_events,
    read_quarantine,
    read_readings,
)
from tests.kit.log_files import STARTED, a_log, an_event
from tests.sla import landed
from tests.sla.warehouses import fill

NOW = STARTED + timedelta(days=3)


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

    def first_pass_of_what_is_gone(*given):
        """By now the events are listed."""
        tries.append(1)
        if len(tries) <= times:
            monkeypatch.setattr(module, "FILES_MIN", 1)
            assert compact(spark, warehouse, before=date(2030, 1, 1)) > 0
        return first_pass(*given)

    monkeypatch.setattr(report, "first_pass", first_pass_of_what_is_gone)
    if times == report.TRIES:
        with pytest.raises(WarehouseUnusable, match="merged files in it during each of 3 tries; make the report again"):
            report.write_report(spark, warehouse, str(tmp_path / "report"), now=NOW)
        assert [] == list(tmp_path.glob("report/*"))
        return

    after = report.write_report(spark, warehouse, str(tmp_path / "report"), now=NOW)

    assert 2 == len(tries)
    assert before["overall"] == after["overall"]
    assert before["overall"]["messages_acknowledged"] > 0


# ---- the tables of files


@pytest.fixture
def batches(tmp_path, monkeypatch):
    """A warehouse of eight batches, and those of logs that were read again; four are worth compacting."""
    monkeypatch.setattr(module, "BATCHES_MIN", 4)
    for number in range(8):
        landed.land(tmp_path, f"ingest-{number:06}", server=f"mx{number % 2}", ago=[landed.HOUR] * (number % 3 + 1))
    for hour in (1, 2):
        landed.land(tmp_path, f"again-2026112112000{hour}", server=f"mx{hour}", ago=[landed.HOUR], log_name=f"again-{hour}")
    return tmp_path / "w"


def tables_of(warehouse):
    return {path.name.removeprefix("batch=") for path in (warehouse / "files").iterdir()}


def of_batches(warehouse):
    return Counter((each.batch, each.server, each.file, each.rows) for each in readings(str(warehouse)))


def test_the_tables_of_all_batches_but_the_last_of_each_series_become_one(spark, batches):
    before, complete, content = of_batches(batches), landed_batches(str(batches)), counted(str(batches))
    files = sorted(last_readings(str(batches)))

    assert 8 == compact_files(str(batches))

    assert {"ingest-000007", "again-20261121120002"} == {name for name in tables_of(batches) if not name.startswith("several-")}
    assert 3 == len(tables_of(batches))
    assert (before, complete, content) == (of_batches(batches), landed_batches(str(batches)), counted(str(batches)))
    assert (files, 10) == (
        sorted(last_readings(str(batches))),
        read_readings(spark, str(batches)).select("batch").distinct().count(),
    )
    assert 8 == next_number(str(batches), "ingest")
    assert 0 == compact_files(str(batches))
    inspect(str(batches))
    clean(str(batches))
    assert before == of_batches(batches)
    assert ingest(lambda: None, str(batches.parent / "logs"), str(batches), is_compacting=False) == content
    assert before == of_batches(batches)


def test_tables_put_together_are_put_together_again_until_they_are_large(batches, monkeypatch):
    before = of_batches(batches)
    compact_files(str(batches))
    monkeypatch.setattr(module, "BATCHES_MIN", 1)

    assert 1 == compact_files(str(batches))
    assert (3, before) == (len(tables_of(batches)), of_batches(batches))
    monkeypatch.setattr(module, "SMALL_BYTES", 10)
    assert 0 == compact_files(str(batches))


def test_a_compaction_of_tables_that_dies_anywhere_changes_nothing_and_the_next_ends_it(batches, monkeypatch):
    before, complete = set(of_batches(batches)), landed_batches(str(batches))
    written_whole = module.written_whole
    for dies_at in ("_SUCCESS", "rm"):
        with monkeypatch.context() as patch:
            if dies_at == "rm":
                patch.setattr(type(module.located(str(batches))[0]), "rm", lambda *_, **__: 1 / 0)
            else:
                patch.setattr(module, "written_whole", lambda path: 1 / 0 if path.endswith("_SUCCESS") else written_whole(path))
            with pytest.raises(ZeroDivisionError):
                compact_files(str(batches))

        assert (before, complete) == (set(of_batches(batches)), landed_batches(str(batches)))
        inspect(str(batches))
    clean(str(batches))
    assert 11 == len(tables_of(batches))  # with those that are in the one table too

    compact_files(str(batches))

    assert 3 == len(tables_of(batches))
    assert (Counter(before), complete) == (of_batches(batches), landed_batches(str(batches)))


def test_who_reads_while_tables_are_put_together_reads_all_of_them(batches, monkeypatch):
    before, list_tables, compacted = of_batches(batches), inspection.landed_tables, []

    def compacted_after(warehouse):
        found = list_tables(warehouse)
        if not compacted:
            compacted.append(compact_files(warehouse))
        return found

    monkeypatch.setattr(inspection, "landed_tables", compacted_after)

    assert before == of_batches(batches)
    assert [8] == compacted


@pytest.fixture
def quarantine(tmp_path, monkeypatch):
    """A warehouse of ten batches with a bad line in each of eight logs, and one that was killed; four files are worth compacting."""
    monkeypatch.setattr(module, "BATCHES_MIN", 4)
    monkeypatch.setattr(module, "SMALL_BYTES", 10_000)
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    for number in range(10):
        path = logs / f"mx{number % 2}" / f"MSGTRK202611211{number}-1.LOG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(a_log([an_event(f"m{number}")]) + b"torn" * (number < 8))
        ingest(lambda: None, str(logs), str(warehouse), is_compacting=False)
    list(land_files(list_logs(str(logs))[:1], str(warehouse), "ingest-000010"))
    return warehouse


def bad_lines(spark, warehouse):
    return Counter(tuple(row) for row in quarantined_once(read_quarantine(spark, str(warehouse))).collect())


def files_of(warehouse):
    return sorted(str(path.relative_to(warehouse)) for path in warehouse.glob("quarantine/*/*.parquet"))


def test_the_files_of_quarantine_become_one_and_say_the_same(spark, quarantine):
    before, content = bad_lines(spark, quarantine), counted(str(quarantine))

    assert 8 == compact_quarantine(str(quarantine))

    killed, one = files_of(quarantine)
    assert (True, True) == ("batch=ingest-000010/" in killed, "batch=several-" in one)
    assert (8, before, content) == (len(before), bad_lines(spark, quarantine), counted(str(quarantine)))
    inspect(str(quarantine))
    assert 0 == compact_quarantine(str(quarantine))
    clean(str(quarantine))
    assert [one] == files_of(quarantine)
    assert before == bad_lines(spark, quarantine)


def test_a_compaction_of_quarantine_that_dies_anywhere_changes_nothing_and_the_next_ends_it(spark, quarantine, monkeypatch):
    before = bad_lines(spark, quarantine)
    files = type(module.located(str(quarantine))[0])
    for survived in range(3):
        left, rm = iter(range(survived, -1, -1)), files.rm
        with monkeypatch.context() as patch:
            patch.setattr(files, "rm", lambda *values, left=left, rm=rm, **options: rm(*values, **options) if next(left) else 1 / 0)
            with pytest.raises(ZeroDivisionError):
                compact_quarantine(str(quarantine))
        assert before == bad_lines(spark, quarantine)
        inspect(str(quarantine))

    compact_quarantine(str(quarantine))

    assert 2 == len(files_of(quarantine))
    assert before == bad_lines(spark, quarantine)


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_a_damaged_file_of_several_batches_of_quarantine_is_missed_and_its_logs_are_read_again(spark, quarantine, damage):
    before = bad_lines(spark, quarantine)
    compact_quarantine(str(quarantine))
    (path,) = quarantine.glob("quarantine/batch=several-*/*.parquet")
    path.write_bytes(path.read_bytes()[:-10])
    if damage == "gone":
        path.unlink()

    with pytest.raises(
        WarehouseUnusable, match=r"of 1 quarantined lines of mx./.* 0 are left \(and 7 more\); .*--again 'mx0/\*' --again 'mx1/\*'`"
    ):
        inspect(str(quarantine))
    read_again(str(quarantine.parent / "logs"), str(quarantine), ["mx0/*"])
    with pytest.raises(WarehouseUnusable, match=r"of 1 quarantined lines of mx1/.* 0 are left \(and 3 more\)"):
        inspect(str(quarantine))
    read_again(str(quarantine.parent / "logs"), str(quarantine), ["mx1/*"])

    inspect(str(quarantine))
    assert before == bad_lines(spark, quarantine)


def test_a_log_that_is_read_again_leaves_the_others_of_its_file_of_quarantine(spark, quarantine):
    before = bad_lines(spark, quarantine)
    compact_quarantine(str(quarantine))

    read_again(str(quarantine.parent / "logs"), str(quarantine), ["mx0/*"])

    inspect(str(quarantine))
    assert before == bad_lines(spark, quarantine)


@pytest.mark.parametrize("damage", ["torn", "gone", "without its directory"])
def test_a_damaged_table_of_several_batches_is_told_with_its_remedy(batches, damage):
    compact_files(str(batches))
    content, logs = counted(str(batches)), str(batches.parent / "logs")
    (table,) = (batches / "files").glob("batch=several-*/*.parquet")
    table.write_bytes(table.read_bytes()[:-10])
    if damage == "gone":
        table.unlink()
    if damage != "without its directory":
        for use in (inspect, Known):
            with pytest.raises(WarehouseUnusable, match=r"files/batch=several-.*; delete the directory .*--again '\*'`"):
                use(str(batches))
    for path in table.parent.iterdir():
        path.unlink()
    table.parent.rmdir()

    with pytest.raises(WarehouseUnusable, match=r"files/batch=.* is missing \(and 7 more\); .*--again .mx0/\*. --again .mx1/\*.`;"):
        inspect(str(batches))
    read_again(logs, str(batches), ["*"])

    inspect(str(batches))
    assert content == counted(str(batches))


def test_rows_of_batches_that_another_ingest_put_together_are_missed_by_live_figures(batches):
    live.begin(str(batches))
    mark = live.begin(str(batches))
    assert 0 == mark.missed_rows
    for number in range(8, 14):
        landed.land(batches.parent, f"ingest-{number:06}", ago=[landed.HOUR] * 2)
    compact_files(str(batches))

    mark = live.feed(str(batches), live.begin(str(batches)), now=landed.NOW)

    assert (6, 2, 10) == (mark.batches, mark.rows, mark.missed_rows)
    assert mark == live.begin(str(batches))
