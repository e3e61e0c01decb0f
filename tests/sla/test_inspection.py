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
from shadowrelay.sla.inspection import complete_parts, inspect, keep, last_readings, leave_out, read_again, readings
from shadowrelay.sla.land import land_files, land_here
from shadowrelay.sla.logs import NoLogs, list_logs, source_of
from shadowrelay.sla.report import write_report
from shadowrelay.sla.sites import DamagedFile, read_shipping
from shadowrelay.sla.warehouse import WarehouseUnusable, begin, compact, next_number, prune, read_events, read_readings
from tests.kit.log_files import STARTED, a_log, an_event
from tests.sla.warehouses import fill, torn, warehouse_of


def parts_of(warehouse, server):
    return sorted((warehouse / "events").glob(f"date=*/server={server}/batch=*/*.parquet"))


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
@pytest.mark.usefixtures("can_run_spark")
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
    assert re.fullmatch(r"shadowrelay: .*: damaged: events/.*/server=mx1/.* cannot be read; .*--again 'mx1/\*'`; if .*`", lines[0])
    assert [] == list((tmp_path / "report").iterdir())


def test_a_batch_that_is_not_complete_is_not_read(spark, tmp_path):
    warehouse = warehouse_of(tmp_path)
    list(land_files(list_logs(str(tmp_path / "logs")), str(warehouse), "run-000001"))

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


@pytest.mark.parametrize("batch", ["run-000001", "again-20261121T120000000000"])
def test_the_newest_table_of_files_that_is_lost_is_missed_too(tmp_path, batch):
    warehouse = warehouse_of(tmp_path)
    logs = tmp_path / "logs"
    (logs / "mx3").mkdir()
    (logs / "mx3" / "MSGTRK2026112112-1.LOG").write_bytes(a_log([an_event("only here")]))
    land_here([each for each in list_logs(str(logs)) if each.server == "mx3"], str(warehouse), batch)
    inspect(str(warehouse))
    shutil.rmtree(warehouse / "files" / f"batch={batch}")

    with pytest.raises(WarehouseUnusable, match=rf"files/batch={batch} is missing; .*--again 'mx3/MSGTRK2026112112-1.LOG'`"):
        inspect(str(warehouse))
    told = []
    ingest(lambda: None, str(logs), str(warehouse), is_compacting=False, tell=told.append)  # no way around it, and no harm
    with pytest.raises(WarehouseUnusable, match=f"files/batch={batch} is missing"):
        inspect(str(warehouse))

    read_again(str(logs), str(warehouse), ["mx3/*"])

    inspect(str(warehouse))
    assert 13 == sum(each.rows for each in readings(str(warehouse)))


def test_a_batch_gets_no_number_that_one_had_whose_table_is_lost(tmp_path):
    warehouse = warehouse_of(tmp_path)
    shutil.rmtree(warehouse / "files" / "batch=run-000000")

    assert 1 == next_number(str(warehouse), "run")


def test_a_damaged_list_of_the_last_batches_is_told_and_the_next_batch_writes_it_anew(tmp_path):
    warehouse = warehouse_of(tmp_path)
    (warehouse / "landed.json").write_text("[")

    with pytest.raises(DamagedFile, match=r"landed\.json: damaged: delete it"):
        inspect(str(warehouse))
    warehouse_of(tmp_path, batch="run-000001")

    inspect(str(warehouse))
    assert {"run": "run-000001"} == json.loads((warehouse / "landed.json").read_text())


def test_a_damaged_log_that_no_longer_exists_is_forgotten_and_from_then_on_missing(tmp_path):
    warehouse = warehouse_of(tmp_path)
    path = tmp_path / "logs" / "mx1" / "MSGTRK2026112112-1.LOG"
    part = next(each for each in complete_parts(str(warehouse)) if each.key == source_of(str(path)).key)
    (warehouse / "events" / part.place).unlink()
    log = path.read_bytes()
    path.unlink()

    with pytest.raises(
        WarehouseUnusable, match=r"if the log no longer exists, forget it: `shadowrelay sla prune --warehouse .* --log SERVER/FILE`"
    ):
        inspect(str(warehouse))
    with pytest.raises(
        NoLogs, match=r"no such log; to do without it: `shadowrelay sla prune --warehouse .* --log 'mx1/MSGTRK2026112112-1\.LOG'`"
    ):
        read_again(str(tmp_path / "logs"), str(warehouse), ["mx1/MSGTRK2026112112-1.LOG"])
    assert 1 == leave_out(str(warehouse), ["mx1/MSGTRK2026112112-1.LOG"])

    inspect(str(warehouse))
    assert 9 == sum(each.rows for each in readings(str(warehouse)))
    assert (("mx1", "MSGTRK2026112112-1.LOG"),) == read_shipping(str(warehouse)).missing
    with pytest.raises(NoLogs, match=r"nothing was read of mx9/\*"):
        leave_out(str(warehouse), ["mx9/*"])
    ingest(lambda: None, str(tmp_path / "logs"), str(warehouse), is_compacting=False)
    assert (("mx1", "MSGTRK2026112112-1.LOG"),) == read_shipping(str(warehouse)).missing
    path.write_bytes(log)
    ingest(lambda: None, str(tmp_path / "logs"), str(warehouse), is_compacting=False)
    assert () == read_shipping(str(warehouse)).missing
    assert 12 == sum(each.rows for each in readings(str(warehouse)))


def test_of_a_lost_table_what_exists_is_read_again_and_the_rest_forgotten(tmp_path):
    warehouse = warehouse_of(tmp_path, servers=("mx1",))
    shutil.rmtree(warehouse / "files" / "batch=run-000000")
    (tmp_path / "logs" / "mx1" / "MSGTRK2026112112-1.LOG").unlink()

    read_again(str(tmp_path / "logs"), str(warehouse), ["mx1/*"])
    with pytest.raises(WarehouseUnusable, match=r"files/batch=run-000000 is missing; .*--again 'mx1/MSGTRK2026112112-1\.LOG'`"):
        inspect(str(warehouse))
    leave_out(str(warehouse), ["mx1/*12-1.LOG"])

    inspect(str(warehouse))
    assert [3] == [each.rows for each in readings(str(warehouse))]


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


def test_what_was_compacted_is_whole_again_when_each_of_its_logs_was_read_again_or_left_out(spark, tmp_path):
    warehouse = fill(tmp_path, servers=("mx1",), days=1)
    compact(spark, str(warehouse), before=date(2026, 12, 1))
    parts_of(warehouse, "mx1")[0].unlink()
    gone, *others = sorted((tmp_path / "logs" / "mx1").glob("*-1.LOG"))
    gone.unlink()
    gone.with_name(gone.name.replace("-1.", "-2.")).unlink()

    leave_out(str(warehouse), [f"mx1/{gone.name.replace('-1.', '-*.')}"])
    for path in others:
        with pytest.raises(WarehouseUnusable, match="of 9 rows of 2026-11-21 that were merged"):
            inspect(str(warehouse))
        read_again(str(tmp_path / "logs"), str(warehouse), [f"mx1/{path.name.replace('-1.', '-*.')}"])

    inspect(str(warehouse))
    assert 8 == read_events(spark, str(warehouse)).select("row_id").distinct().count()


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
    assert [] == last_readings(str(warehouse))
    summary = write_report(spark, str(warehouse), str(tmp_path / "report"))
    assert (0, 0, []) == (summary["input"]["rows"], summary["input"]["files"], summary["input"]["servers"])
    # of nothing every figure is there: tests/sla/figures/test_report.py has more
    assert {"summary.json", "report.html", "tables", "csv"} == {path.name for path in (tmp_path / "report").iterdir()}
    assert (0, None) == (summary["overall"]["messages_acknowledged"], summary["overall"]["redundancy_ratio"])
    assert {"no data"} == {objective["verdict"] for objective in summary["objectives"]}


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

    with pytest.raises(WarehouseUnusable, match=r"is torn \(and 1 more\); .*--again 'mx1/MSGTRK.*' --again 'mx2/MSGTRK.*'`;"):
        inspect(str(warehouse))
    for server in servers:
        for path in parts_of(warehouse, server):
            path.unlink()
    with pytest.raises(WarehouseUnusable, match=r"\(and 7 more\); .*--again '\*'`;"):
        inspect(str(warehouse))
    assert 6 == read_again(str(tmp_path / "logs"), str(warehouse), ["mx1/*", "mx2/*", "mx3/*"])
    with pytest.raises(
        WarehouseUnusable, match=r"\(and 1 more\); .*--again 'mx4/MSGTRK2026112112-1\.LOG' --again 'mx4/MSGTRK2026112113-1\.LOG'`;"
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
