"""A damaged warehouse is noticed, named with its remedy, and whole again after it. docs/sla.md, 1."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest

from shadowrelay.sla.ingest import ingest
from shadowrelay.sla.inspection import complete_parts, inspect, keep, read_again
from shadowrelay.sla.land import land_here
from shadowrelay.sla.logs import NoLogs, list_logs
from shadowrelay.sla.report import write_report
from shadowrelay.sla.warehouse import WarehouseUnusable, begin, compact, prune, read_events, read_files, read_readings
from tests.kit.log_files import STARTED, a_log, an_event
from tests.sla.test_compact import fill


def warehouse_of(directory, servers=("mx1", "mx=2"), batch="run-000000"):
    for server in servers:
        for hour in (12, 13):
            path = directory / "logs" / server / f"MSGTRK20261121{hour}-1.LOG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(a_log(an_event(f"{server}-{hour}-{number}", at=STARTED) for number in range(3)))
    begin(str(directory / "w"))
    land_here(list_logs(str(directory / "logs")), str(directory / "w"), batch)
    return directory / "w"


def parts_of(warehouse, server):
    return sorted((warehouse / "events").glob(f"date=*/server={server}/batch=*/*.parquet"))


def torn(path):
    path.write_bytes(path.read_bytes()[:-10])


def test_a_file_of_events_that_is_missing_or_torn_is_told_by_its_log_and_is_read_from_it_again(tmp_path):
    warehouse = warehouse_of(tmp_path)
    inspect(str(warehouse))
    for damage in (lambda path: path.unlink(), torn):
        damage(parts_of(warehouse, "mx1")[0])

        with pytest.raises(
            WarehouseUnusable, match=r"damaged: .*sla ingest --logs DIR .*--again 'mx1/MSGTRK20261121(12|13)-1\.LOG'`"
        ) as found:
            inspect(str(warehouse))
        name = str(found.value).split("--again '")[1].split("'")[0]
        assert 1 == read_again(str(tmp_path / "logs"), str(warehouse), [name])
        inspect(str(warehouse))

    assert 2 == len(parts_of(warehouse, "mx1"))


def test_what_was_read_again_counts_once(spark, tmp_path):
    warehouse = warehouse_of(tmp_path)

    assert 2 == read_again(str(tmp_path / "logs"), str(warehouse), ["mx=2/*"])

    inspect(str(warehouse))
    assert 12 == read_events(spark, str(warehouse)).count()
    assert 4 == read_readings(spark, str(warehouse)).count()
    with pytest.raises(NoLogs, match=r"mx3/MSGTRK1\.LOG: no such log"):
        read_again(str(tmp_path / "logs"), str(warehouse), ["mx1/*", "mx3/MSGTRK1.LOG"])


def test_a_report_of_a_damaged_warehouse_ends_and_leaves_the_one_before(spark, tmp_path):
    warehouse = warehouse_of(tmp_path)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "summary.json").write_text("before")
    parts_of(warehouse, "mx1")[1].unlink()

    with pytest.raises(WarehouseUnusable, match=r"of 3 rows of mx1/MSGTRK20261121(12|13)-1\.LOG .* 0 are left"):
        write_report(spark, str(warehouse), str(tmp_path / "report"))

    assert ["summary.json"] == [path.name for path in (tmp_path / "report").iterdir()]
    assert "before" == (tmp_path / "report" / "summary.json").read_text()


@pytest.mark.timeout(600)
def test_a_file_whose_footer_is_whole_and_whose_rows_are_not_ends_the_command_with_one_line(tmp_path):
    warehouse = warehouse_of(tmp_path)
    path = parts_of(warehouse, "mx1")[0]
    octets = path.read_bytes()
    path.write_bytes(octets[:4] + bytes(100) + octets[104:])
    inspect(str(warehouse))
    words = ["sla", "report", "--warehouse", str(warehouse), "--output", str(tmp_path / "report")]

    done = subprocess.run([sys.executable, "-m", "shadowrelay", *words], capture_output=True, text=True, check=False)

    lines = [line for line in done.stderr.splitlines() if not line.startswith(("WARNING: ", "starting Spark", "computing the figures"))]
    assert (1, 1, "") == (done.returncode, len(lines), done.stdout), done.stderr
    assert re.fullmatch(r"shadowrelay: .*: damaged: events/.*/server=mx1/.* cannot be read; .*--again 'mx1/\*'`", lines[0])
    assert [] == list((tmp_path / "report").iterdir())


def test_a_batch_that_is_not_complete_is_not_read(spark, tmp_path):
    warehouse = warehouse_of(tmp_path)
    warehouse_of(tmp_path, batch="run-000001")
    (warehouse / "files" / "batch=run-000001" / "_SUCCESS").unlink()

    inspect(str(warehouse))
    assert (12, 4) == (read_events(spark, str(warehouse)).count(), read_readings(spark, str(warehouse)).count())


def test_a_batch_of_which_files_knows_nothing_though_later_ones_are_complete_is_damage(tmp_path):
    warehouse = warehouse_of(tmp_path)
    warehouse_of(tmp_path, servers=("mx1",), batch="run-000001")
    (warehouse / "files" / "batch=run-000000" / "_SUCCESS").unlink()

    with pytest.raises(WarehouseUnusable, match=r"files/batch=run-000000 is missing; .*--again 'mx1/\*' --again 'mx=2/\*'"):
        inspect(str(warehouse))
    read_again(str(tmp_path / "logs"), str(warehouse), ["*"])
    inspect(str(warehouse))


def test_a_torn_table_of_files_is_damage(tmp_path):
    warehouse = warehouse_of(tmp_path)
    torn(warehouse / "files" / "batch=run-000000" / "part-0.parquet")

    with pytest.raises(WarehouseUnusable, match=r"files/batch=run-000000/part-0.parquet is torn"):
        inspect(str(warehouse))


def test_what_was_compacted_is_held_against_its_record(spark, tmp_path):
    warehouse = fill(tmp_path, servers=("mx1",), days=1)
    compact(spark, str(warehouse), before=date(2026, 12, 1))
    inspect(str(warehouse))
    parts_of(warehouse, "mx1")[0].unlink()

    with pytest.raises(WarehouseUnusable, match=r"of 9 rows of 2026-11-21 that were merged .*--again 'mx1/\*'`"):
        inspect(str(warehouse))
    read_again(str(tmp_path / "logs"), str(warehouse), ["mx1/*"])
    inspect(str(warehouse))

    assert 9 == read_events(spark, str(warehouse)).select("row_id").distinct().count()


@pytest.mark.parametrize(("version", "which"), [(1, "an earlier"), (99, "a later")])
def test_a_warehouse_of_another_version_is_refused_with_the_remedy(tmp_path, version, which):
    warehouse = warehouse_of(tmp_path)
    (warehouse / "warehouse.json").write_text(json.dumps({"schema_version": version}))
    if version == 1:
        (warehouse / "warehouse.json").unlink()

    for use in (inspect, begin, lambda place: read_again(str(tmp_path / "logs"), place, ["*"])):
        with pytest.raises(WarehouseUnusable, match=f"was written by {which} version .*sla ingest --warehouse NEW"):
            use(str(warehouse))


def test_what_was_pruned_is_no_damage_and_is_not_read_again(spark, tmp_path):
    warehouse = fill(tmp_path, servers=("mx1",), days=2)
    compact(spark, str(warehouse), before=date(2026, 12, 1))

    assert 1 == prune(str(warehouse), date(2026, 11, 22))
    inspect(str(warehouse))
    assert [date(2026, 11, 22)] == [row.date for row in read_events(spark, str(warehouse)).select("date").distinct().collect()]
    batches = sorted((warehouse / "files").iterdir())
    ingest(lambda: spark, str(tmp_path / "logs"), str(warehouse), is_compacting=False)
    assert batches == sorted((warehouse / "files").iterdir())

    assert 1 == prune(str(warehouse), date(2026, 11, 23))
    inspect(str(warehouse))
    assert 0 == read_files(spark, str(warehouse)).count()
    summary = write_report(spark, str(warehouse), str(tmp_path / "report"))
    assert (0, 0, []) == (summary["input"]["rows"], summary["input"]["files"], summary["input"]["servers"])


def test_to_keep_less_than_was_logged_forgets_whole_days(tmp_path):
    warehouse = warehouse_of(tmp_path)
    one_day = timedelta(days=(datetime.now(UTC) - STARTED).days - 1)

    assert 0 == keep(str(warehouse), timedelta(days=100_000))
    assert 1 == keep(str(warehouse), one_day)
    assert [] == list((warehouse / "events").iterdir())
    inspect(str(warehouse))


def test_all_damage_is_told_at_once_however_much_there_is(tmp_path):
    servers = ("mx1", "mx2", "mx3", "mx4")
    warehouse = warehouse_of(tmp_path, servers=servers)
    parts_of(warehouse, "mx1")[0].unlink()
    torn(parts_of(warehouse, "mx2")[0])

    with pytest.raises(WarehouseUnusable, match=r"is torn \(and 1 more\); .*--again 'mx1/MSGTRK.*' --again 'mx2/MSGTRK.*'`$"):
        inspect(str(warehouse))
    for server in servers:
        for path in parts_of(warehouse, server):
            path.unlink()
    with pytest.raises(WarehouseUnusable, match=r"\(and 7 more\); .*--again '\*'`$"):
        inspect(str(warehouse))
    assert 6 == read_again(str(tmp_path / "logs"), str(warehouse), ["mx1/*", "mx2/*", "mx3/*"])
    with pytest.raises(
        WarehouseUnusable, match=r"\(and 1 more\); .*--again 'mx4/MSGTRK2026112112-1\.LOG' --again 'mx4/MSGTRK2026112113-1\.LOG'`$"
    ):
        inspect(str(warehouse))


def test_the_remedy_finds_logs_of_servers_whose_names_have_brackets_and_quotes(tmp_path):
    warehouse = warehouse_of(tmp_path, servers=("mx[1]?'",))
    for path in (warehouse / "events").rglob("*.parquet"):
        path.unlink()

    with pytest.raises(WarehouseUnusable) as found:
        inspect(str(warehouse))

    words = shlex.split(str(found.value).split("`")[1])
    assert 2 == read_again(str(tmp_path / "logs"), str(warehouse), [words[at + 1] for at, word in enumerate(words) if word == "--again"])
    inspect(str(warehouse))


def test_whichever_file_of_a_warehouse_is_lost_its_remedy_makes_it_whole(tmp_path):
    warehouse = warehouse_of(tmp_path)
    for server in ("mx1", "mx2"):
        (tmp_path / "logs" / server).mkdir(exist_ok=True)
        (tmp_path / "logs" / server / "MSGTRK2026112114-1.LOG").write_bytes(a_log([an_event(f"{server}-14")]) + b"torn")
    ingest(lambda: None, str(tmp_path / "logs"), str(warehouse), is_compacting=False)

    def content(place):
        return Counter((part.server, part.key, (place / "events" / part.place).read_bytes()) for part in complete_parts(str(place)))

    lost = sorted(path.relative_to(warehouse) for path in warehouse.rglob("*.parquet"))
    assert {"events", "files", "quarantine"} == {path.parts[0] for path in lost}
    for number, path in enumerate(lost):
        damaged = tmp_path / f"w{number}"
        shutil.copytree(warehouse, damaged)
        (damaged / path).unlink()
        with pytest.raises(WarehouseUnusable, match="damaged: ") as found:
            inspect(str(damaged))

        read_again(str(tmp_path / "logs"), str(damaged), re.findall("--again '([^']+)'", str(found.value)))

        inspect(str(damaged))
        assert content(warehouse) == content(damaged)
