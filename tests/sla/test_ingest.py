"""From logs to a warehouse: each file once, whatever happens between two runs."""

import json
import os
import queue
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import functions as F

from shadowrelay.sla import ingest as module
from shadowrelay.sla import land as landing
from shadowrelay.sla import parquet_files, storage, stream
from shadowrelay.sla.ingest import Ingested, Known, describe_servers, ingest, ingest_once, temporary_warehouse
from shadowrelay.sla.inspection import complete_parts, inspect, last_readings
from shadowrelay.sla.land import land, land_here
from shadowrelay.sla.logs import NoLogs, list_logs
from shadowrelay.sla.session import failure_of
from shadowrelay.sla.sites import ServerSite, read_servers, read_shipping
from shadowrelay.sla.warehouse import (
    EVENTS,
    InUse,
    begin,
    complete_batches,
    read_events,
    read_quarantine,
    read_readings,
    the_only_one,
    unknown_batches,
)
from shadowrelay.sla.watch import run_watch
from tests.kit.clock import wait_until
from tests.kit.log_files import a_log, an_event
from tests.sla import landed


def no_spark():
    """For what is read without it."""
    raise AssertionError("Spark was started")


def put(logs, server, messages, name="MSGTRK2026112112-1.LOG", torn=b""):
    path = logs / server / name
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{name}")  # a listing at this moment must not find half of it
    hidden.write_bytes(a_log(an_event(each) for each in messages) + torn)
    hidden.rename(path)
    return path


def put_what_is_no_servers_log(logs, server):
    put(logs.parent, logs.name, ["beside"])
    put(logs / server, "archive=2025", ["deeper"])
    put(logs / server, "MSGTRK1.LOG", ["a directory"])


def messages_of(spark, warehouse):
    return sorted((row.server, row.message) for row in read_events(spark, str(warehouse)).select("server", "message").collect())


def rows_seen(warehouse) -> Counter:
    """(server, message) -> rows, as readers see them, without Spark."""
    seen: Counter = Counter()
    for part in complete_parts(str(warehouse)):
        table = parquet.ParquetFile(Path(warehouse, "events", part.place)).read(["message"])
        seen.update((part.server, message) for message in table.column("message").to_pylist())
    return seen


def parts_of(warehouse) -> dict[str, bytes]:
    return {str(path.relative_to(warehouse)): path.read_bytes() for path in sorted(Path(warehouse).rglob("*")) if path.is_file()}


def test_logs_become_a_warehouse_with_all_that_a_report_needs(spark, tmp_path):
    put(tmp_path / "logs", "007", ["m1", "m2"], torn=b"half a li")
    put(tmp_path / "logs", "mx=2 x%", ["m2"])
    (tmp_path / "logs" / "mx=2 x%" / "notes.txt").write_text("no log")
    put_what_is_no_servers_log(tmp_path / "logs", "007")
    (tmp_path / "logs" / "007" / "manifest.json").write_text(
        json.dumps(
            {"site": "east", "boundary": "b", "files": [{"name": "MSGTRK2026112112-1.LOG"}, {"name": "MSGTRKgone.LOG"}], "dropped": []}
        )
    )

    with temporary_warehouse(spark, str(tmp_path / "logs"), {"mx=2 x%": ServerSite("west", "b")}) as warehouse:
        events = read_events(spark, warehouse)
        assert EVENTS == events.schema
        assert [("007", "m1"), ("007", "m2"), ("mx=2 x%", "m2")] == messages_of(spark, warehouse)
        assert ["2026-11-21 12:00:00"] == [row.at for row in events.select(F.col("at").cast("string").alias("at")).distinct().collect()]
        assert [("007", 8, "torn", "half a li")] == [
            (row.server, row.line, row.reason, row.text) for row in read_quarantine(spark, warehouse).collect()
        ]
        assert {"007": (2, 1), "mx=2 x%": (1, 0)} == {each.server: (each.rows, each.quarantined) for each in last_readings(str(warehouse))}
        assert {"007": ServerSite("east", "b"), "mx=2 x%": ServerSite("west", "b")} == read_servers(warehouse)
        assert (("007", "MSGTRKgone.LOG"),) == read_shipping(warehouse).missing


def test_what_is_missing_and_what_was_dropped_stays_known_whatever_becomes_of_the_manifest(tmp_path):
    logs, warehouse = str(tmp_path / "logs"), str(tmp_path / "w")
    manifest = tmp_path / "logs" / "mx1" / "manifest.json"
    landed.land(tmp_path, "a", ago=[landed.HOUR])
    drops = [{"name": f"MSGTRK-{name}.LOG", "reason": "size", "at": "2026-11-21T08:00:00Z"} for name in "de"]

    def missing_and_dropped(text):
        manifest.write_text(text)
        describe_servers(logs, warehouse, {}, Known(warehouse))
        told = read_shipping(warehouse)
        return [name for _, name in told.missing], [each.name for each in told.dropped]

    named = [{"name": f"MSGTRK-{name}.LOG"} for name in "abc"]
    first = missing_and_dropped(json.dumps({"files": named, "dropped": drops[:1]}))
    torn = missing_and_dropped('{"files": [')
    landed.land(tmp_path, "b", ago=[landed.HOUR])  # missing, and there at last
    landed.land(tmp_path, "d", ago=[landed.HOUR])  # not dropped after all
    later = missing_and_dropped(json.dumps({"files": [], "dropped": drops[1:]}))

    assert (["MSGTRK-b.LOG", "MSGTRK-c.LOG"], ["MSGTRK-d.LOG"]) == first == torn
    assert (["MSGTRK-c.LOG"], ["MSGTRK-e.LOG"]) == later


def test_a_directory_without_logs_is_said_before_anything_is_written(spark, tmp_path):
    with pytest.raises(NoLogs, match="no such directory"):
        ingest_once(spark, str(tmp_path / "nowhere"), str(tmp_path / "w"))
    (tmp_path / "logs").mkdir()
    with pytest.raises(NoLogs, match="no logs: they are looked for as <server>/MSGTRK"):
        ingest(no_spark, str(tmp_path / "logs"), str(tmp_path / "w"))

    assert not (tmp_path / "w").exists()


def test_little_is_read_without_sparks_workers_and_much_with_them_to_the_same_end(spark, tmp_path, monkeypatch):
    logs = tmp_path / "logs"
    put(logs, "mx:1::[a]", ["m1", "m2"], torn=b"half a li")
    put(logs, "mx2", ["m2"])
    put(logs, ".hidden", ["m3"])
    put_what_is_no_servers_log(logs, "mx2")
    (logs / "mx2" / "MSGTRK2.LOG").symlink_to(tmp_path / "nowhere")
    ways = {}

    for name, is_so in (("here", True), ("workers", False)):
        monkeypatch.setattr(module, "is_little", lambda _, is_so=is_so: is_so)
        ingest_once(spark, str(logs), str(tmp_path / name))
        tables = [read(spark, str(tmp_path / name)) for read in (read_events, read_quarantine, read_readings)]
        ways[name] = [sorted(map(str, table.collect())) for table in tables]

    assert ways["here"] == ways["workers"]
    assert [4, 1, 3] == [len(rows) for rows in ways["here"]]


def test_one_process_at_a_time_works_on_a_warehouse(tmp_path):
    put(tmp_path / "logs", "mx1", ["m1"])

    with the_only_one(str(tmp_path / "w")):
        with pytest.raises(InUse, match=r"/w: another `sla ingest` or `sla watch` works on this warehouse"):
            ingest(no_spark, str(tmp_path / "logs"), str(tmp_path / "w"))
        with pytest.raises(InUse):
            run_watch(None, str(tmp_path / "logs"), str(tmp_path / "w"), str(tmp_path / "o"))

    assert [] == list((tmp_path / "w").iterdir())
    with the_only_one(str(tmp_path / "w")):
        pass


def test_a_worker_that_fails_is_told_in_a_line(spark, tmp_path, monkeypatch):
    put(tmp_path / "logs", "mx1", ["m1"])
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "events").write_text("no directory")
    monkeypatch.setattr(module, "is_little", lambda _: False)

    with pytest.raises(Exception, match="Traceback") as failed:
        ingest(lambda: spark, str(tmp_path / "logs"), str(tmp_path / "w"))

    told = failure_of(failed.value)
    assert told is not None
    assert "\n" not in told
    assert "Error: [Errno " in told


def test_each_file_is_read_once_over_several_runs(spark, tmp_path):
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    told = []
    put(logs, "mx1", ["m1"])
    put(logs, "mx:2", ["m1", "m2"])
    growing = put(logs, "mx[3]", ["m3"], torn=b"half")
    gone = put(logs, "mx{4}*", ["m4"], name="MSGTRK?[2].LOG")
    put_what_is_no_servers_log(logs, "mx1")

    first = ingest(no_spark, str(logs), str(warehouse), files_per_batch=2, tell=told.append)

    assert (4, 5, 1) == (first.files, first.rows, first.quarantined)
    assert 4 == read_readings(spark, str(warehouse)).count()
    assert ["batch 0: 2 files, 3 rows", "batch 1: 2 files, 2 rows"] == [line.partition(", 0.0 MB")[0] for line in told]

    gone.unlink()
    put(logs, "mx[3]", ["m3", "m4", "m5"])
    put(logs, "mx5", ["m6"], name="MSGTRK2026112113-1.LOG")
    assert growing.exists()
    told.clear()
    second = ingest(no_spark, str(logs), str(warehouse), tell=told.append)

    assert (5, 8, 0) == (second.files, second.rows, second.quarantined)
    assert "1 files read again" in told
    assert [] == read_quarantine(spark, str(warehouse)).collect()
    once = {("mx1", "m1"), ("mx:2", "m1"), ("mx:2", "m2"), ("mx5", "m6"), ("mx[3]", "m4"), ("mx[3]", "m5"), ("mx{4}*", "m4")}
    assert Counter(once) + Counter({("mx[3]", "m3"): 2}) == Counter(messages_of(spark, warehouse))
    assert 8 == read_events(spark, str(warehouse)).select("row_id").distinct().count()
    logs_read = last_readings(str(warehouse))
    assert second == (len(logs_read), *(sum(getattr(each, name) for each in logs_read) for name in Ingested._fields[1:]))

    before = parts_of(warehouse)
    assert second == ingest(no_spark, str(logs), str(warehouse))
    assert before == parts_of(warehouse)


def test_much_is_read_by_workers_and_again_no_file_twice(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "is_little", lambda _: False)
    for server in range(5):
        put(tmp_path / "logs", f"mx:{server}", [f"m{server}"], torn=b"?")

    first = ingest(lambda: spark, str(tmp_path / "logs"), str(tmp_path / "w"), files_per_batch=3)
    put(tmp_path / "logs", "mx:5", ["m5"])
    second = ingest(lambda: spark, str(tmp_path / "logs"), str(tmp_path / "w"), files_per_batch=3)

    assert [(5, 5, 5), (6, 6, 5)] == [(done.files, done.rows, done.quarantined) for done in (first, second)]
    assert Counter((f"mx:{number}", f"m{number}") for number in range(6)) == rows_seen(tmp_path / "w")
    assert ["ingest-000000", "ingest-000001", "ingest-000002"] == sorted(complete_batches(str(tmp_path / "w")))


class Killed(BaseException):
    """As by SIGKILL: nothing that is told of an `Exception` hears of it."""


@pytest.mark.parametrize("is_written", [False, True])
def test_killed_before_or_after_any_of_its_writes_the_next_run_lands_exactly_what_is_missing(tmp_path, monkeypatch, is_written):
    logs, written = tmp_path / "logs", landing.written_whole
    for server in ("mx1", "mx:2", "mx3"):
        for hour in (12, 13):
            put(logs, server, [f"{server}-{hour}"], name=f"MSGTRK20261121{hour}-1.LOG", torn=b"torn")
    all_of_it = Counter((source.server, f"{source.server}-{source.name[14:16]}") for source in list_logs(str(logs)))
    point = 0
    while True:
        point += 1
        warehouse, left = tmp_path / f"w{point}", iter(range(point - 1, -1, -1))

        @contextmanager
        def dying(path, left=left):
            is_last = next(left, -1) == 0
            if is_last and not is_written:
                raise Killed
            with written(path) as file:
                yield file
            if is_last:
                raise Killed

        for each in (landing, parquet_files):
            monkeypatch.setattr(each, "written_whole", dying)
        try:
            ingest(no_spark, str(logs), str(warehouse), files_per_batch=2)
        except Killed:
            pass
        else:
            break  # it has fewer writes
        seen = rows_seen(warehouse)
        assert all_of_it == seen + (all_of_it - seen)
        told = []
        for each in (landing, parquet_files):
            monkeypatch.setattr(each, "written_whole", written)
        done = ingest(no_spark, str(logs), str(warehouse), files_per_batch=2, tell=told.append)

        assert (6, 6, 6) == (done.files, done.rows, done.quarantined)
        assert all_of_it == rows_seen(warehouse)
        assert 6 - len(seen) == sum(int(line.split()[2]) for line in told)
        assert [] == unknown_batches(str(warehouse), complete_batches(str(warehouse)))
        assert 6 == len(list(warehouse.glob("quarantine/*/*.parquet")))
        inspect(str(warehouse))
    assert 3 * (2 + 2 + 2 + 1) == point - 1  # each batch: events, quarantine, its table and its mark, and that it is the last


def test_what_a_killed_batch_has_left_goes_also_if_its_log_was_deleted_meanwhile(tmp_path):
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    put(logs, "mx1", ["m1"])
    ingest(no_spark, str(logs), str(warehouse))
    gone = put(logs, "mx2", ["m2"], torn=b"torn")
    list(landing.land_files([each for each in list_logs(str(logs)) if each.server == "mx2"], str(warehouse), "ingest-000001"))
    gone.unlink()
    put(logs, "mx3", ["m3"])

    done = ingest(no_spark, str(logs), str(warehouse))

    assert (2, 2, 0) == (done.files, done.rows, done.quarantined)
    assert Counter([("mx1", "m1"), ("mx3", "m3")]) == rows_seen(warehouse)
    assert [] == list((warehouse / "quarantine").iterdir())


def test_what_was_complete_and_has_lost_its_table_is_left_for_the_inspection(tmp_path):
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    for number in range(2):
        put(logs, f"mx{number}", [f"m{number}"])
        ingest(no_spark, str(logs), str(warehouse))
    (warehouse / "files" / "batch=ingest-000000" / "_SUCCESS").unlink()

    ingest(no_spark, str(logs), str(warehouse))

    assert 2 == sum("batch=ingest-000000" in name for name in parts_of(warehouse))


def test_ingest_and_the_stream_of_watch_take_turns_and_neither_reads_what_the_other_has_read(spark, tmp_path):
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    begin(str(warehouse))

    def stream_until(line) -> None:
        told: list[str] = []
        query = stream.start(spark, str(logs), str(warehouse), timedelta(seconds=1), Known(str(warehouse)), told.append)
        try:
            wait_until(lambda: query.exception() is not None or any(line in each for each in told), 200, lambda: str(told))
        finally:
            query.stop()
        assert [line] == [each.partition(", 0.0 MB")[0] for each in told]

    put(logs, "mx1", ["m1"])
    put(logs, "mx2", ["m2"])
    stream_until("batch 0: 2 files, 2 rows")
    put(logs, "mx3", ["m3"])
    run = (warehouse / "ingest" / "id").read_text()
    half = [each for each in list_logs(str(logs)) if each.server == "mx3"]
    list(landing.land_files(half, str(warehouse), f"{run}-000001"))  # the stream was killed in its second batch

    done = ingest(no_spark, str(logs), str(warehouse))
    assert (3, 3) == (done.files, done.rows)
    put(logs, "mx4", ["m4"])
    stream_until("batch 1: 1 files, 1 rows")
    last = ingest(no_spark, str(logs), str(warehouse))
    assert (4, 4) == (last.files, last.rows)

    assert Counter((f"mx{number}", f"m{number}") for number in range(1, 5)) == rows_seen(warehouse)
    assert 4 == read_readings(spark, str(warehouse)).count()


def test_a_file_that_vanishes_before_it_is_read_is_none_and_the_others_are_read(spark, tmp_path):
    logs = tmp_path / "logs"
    put(logs, "mx1", ["m1"])
    gone = put(logs, "mx2", ["m2"])
    listing = list_logs(str(logs))
    gone.unlink()

    for name, read in (("workers", lambda *values: land(spark, *values)), ("here", land_here)):
        begin(str(tmp_path / name))
        assert ["mx1"] == [row["server"] for row in read(listing, str(tmp_path / name), "b")]
        assert Counter([("mx1", "m1")]) == rows_seen(tmp_path / name)
        assert not (tmp_path / name / "quarantine").exists()


def test_a_continuous_ingest_takes_what_comes_and_what_grows_until_it_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("shadowrelay.sla.ingest.REVIEW_EVERY", timedelta(seconds=1))
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    logs.mkdir()
    told, stop = queue.Queue(), threading.Event()

    def run():
        return ingest(no_spark, str(logs), str(warehouse), is_continuous=True, interval=timedelta(seconds=0.05), tell=told.put, stop=stop)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        try:
            put(logs, "mx1", ["m1"], torn=b"half")
            assert told.get(timeout=60).startswith("batch 0: 1 files")
            strange = put(logs, "mx1", ["m0"], name=os.fsdecode(b"MSGTRK\xff.LOG"))
            assert told.get(timeout=60) == f"{str(strange)!r}: not read, because its name is not UTF-8; rename it"
            strange.unlink()
            put(logs, "mx1", ["m1", "m2"])
            assert "1 files read again" == next(line for line in iter(lambda: told.get(timeout=60), "") if line[0] == "1")
        finally:
            stop.set()
        assert (1, 2, 0) == (running.result().files, running.result().rows, running.result().quarantined)


def test_logs_in_a_store_are_read_by_its_own_library(spark, tmp_path):
    url = f"memory://{tmp_path.name}/logs"
    files, top = storage.located(url)
    for server in ("mx:1", "mx2"):
        files.pipe_file(f"{top}/{server}/MSGTRK1.LOG", a_log([an_event(f"{server}-1")]))
    files.pipe_file(f"{top}/mx2/manifest.json", json.dumps({"site": "west", "boundary": "b", "files": [], "dropped": []}).encode())

    done = ingest(no_spark, url, str(tmp_path / "w"))
    again = ingest(no_spark, url, str(tmp_path / "w"))

    assert (2, 2) == (done.files, done.rows)
    assert done == again
    assert [("mx2", "mx2-1"), ("mx:1", "mx:1-1")] == messages_of(spark, tmp_path / "w")
    assert ServerSite("west", "b") == read_servers(str(tmp_path / "w"))["mx2"]


def test_a_store_that_fails_is_told_with_its_url(tmp_path, monkeypatch):
    class NoCredentials(Exception):
        pass

    def refuse(*_, **__):
        raise NoCredentials("none found")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.ls", refuse)
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.isdir", lambda *_: True)

    with pytest.raises(storage.StoreFailed, match=r"^memory://bucket: NoCredentials: none found$"):
        ingest(no_spark, "memory://bucket", str(tmp_path / "w"))


def test_small_files_of_past_days_are_merged_and_only_then_spark_is_started(spark, tmp_path):
    started = []
    for hour in range(8):
        put(tmp_path / "logs", "mx1", [f"m{hour}"], name=f"MSGTRK20261121{hour:02}-1.LOG")
        assert started == []
        ingest(lambda: started.append(spark) or spark, str(tmp_path / "logs"), str(tmp_path / "w"))

    assert [spark] == started
    assert 1 == sum(name.startswith("merged/") for name in parts_of(tmp_path / "w"))
    assert Counter(("mx1", f"m{hour}") for hour in range(8)) == rows_seen(tmp_path / "w")


def test_columns_of_files_are_those_of_a_reading(tmp_path):
    put(tmp_path / "logs", "mx1", ["m1"])
    (row,) = land_here(list_logs(str(tmp_path / "logs")), str(tmp_path / "w"), "b")

    assert landing.ARROW_FILES.names == list(row)
    assert row == pa.Table.from_pylist([row], landing.ARROW_FILES).to_pylist()[0]
