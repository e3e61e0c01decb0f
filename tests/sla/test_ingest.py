"""From logs to a warehouse: each file once, whatever happens between two runs."""

import json
import os
import queue
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from pyspark.sql import functions as F

from shadowrelay.sla import ingest as module
from shadowrelay.sla.ingest import (
    IngestFailed,
    InUse,
    NoLogs,
    describe_servers,
    ingest,
    ingest_once,
    list_logs,
    temporary_warehouse,
    the_only_one,
)
from shadowrelay.sla.land import land
from shadowrelay.sla.sites import Site, read_servers, read_shipping
from shadowrelay.sla.warehouse import EVENTS, read_events, read_files, read_quarantine, read_readings
from shadowrelay.sla.watch import run_watch
from tests.kit.log_files import a_log, an_event
from tests.sla import landed


def put(logs, server, messages, name="MSGTRK2026112112-1.LOG", torn=b""):
    path = logs / server / name
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{name}")  # a stream that looks at this moment must not find half of it
    hidden.write_bytes(a_log(an_event(each) for each in messages) + torn)
    hidden.rename(path)
    return path


def put_what_is_no_servers_log(logs, server):
    put(logs.parent, logs.name, ["beside"])
    put(logs / server, "archive=2025", ["deeper"])
    put(logs / server, "MSGTRK1.LOG", ["a directory"])


def messages_of(spark, warehouse):
    return sorted((row.server, row.message) for row in read_events(spark, str(warehouse)).select("server", "message").collect())


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

    with temporary_warehouse(spark, str(tmp_path / "logs"), {"mx=2 x%": Site("west", "b")}) as warehouse:
        events = read_events(spark, warehouse)
        assert EVENTS == events.schema
        assert [("007", "m1"), ("007", "m2"), ("mx=2 x%", "m2")] == messages_of(spark, warehouse)
        assert ["2026-11-21 12:00:00"] == [row.at for row in events.select(F.col("at").cast("string").alias("at")).distinct().collect()]
        assert [("007", 8, "torn", "half a li")] == [
            (row.server, row.line, row.reason, row.text) for row in read_quarantine(spark, warehouse).collect()
        ]
        assert {"007": (2, 1), "mx=2 x%": (1, 0)} == {
            row.server: (row.rows, row.quarantined) for row in read_files(spark, warehouse).collect()
        }
        assert {"007": Site("east", "b"), "mx=2 x%": Site("west", "b")} == read_servers(warehouse)
        assert (("007", "MSGTRKgone.LOG"),) == read_shipping(warehouse).missing


def test_what_is_missing_and_what_was_dropped_stays_known_whatever_becomes_of_the_manifest(spark, tmp_path):
    logs, warehouse = str(tmp_path / "logs"), str(tmp_path / "w")
    manifest = tmp_path / "logs" / "mx1" / "manifest.json"
    landed.land(tmp_path, "a", ago=[landed.HOUR])
    drops = [{"name": f"MSGTRK-{name}.LOG", "reason": "size", "at": "2026-11-21T08:00:00Z"} for name in "de"]

    def missing_and_dropped(text):
        manifest.write_text(text)
        describe_servers(spark, logs, warehouse, {})
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
        ingest(spark, str(tmp_path / "logs"), str(tmp_path / "w"))
    put(tmp_path / "logs", "mx:1", ["m1"])
    with pytest.raises(NoLogs, match="mx:1: the name of a server's directory may not have a colon"):
        ingest_once(spark, str(tmp_path / "logs"), str(tmp_path / "w"))

    assert not (tmp_path / "w").exists()


def test_little_is_read_without_sparks_workers_and_much_with_them_to_the_same_end(spark, tmp_path, monkeypatch):
    logs = tmp_path / "logs"
    put(logs, "mx=1", ["m1", "m2"], torn=b"half a li")
    put(logs, "mx2", ["m2"])
    put(logs, ".hidden", ["m3"])
    put_what_is_no_servers_log(logs, "mx2")
    (logs / "mx2" / "MSGTRK2.LOG").symlink_to(tmp_path / "nowhere")
    ways = {}

    for name, little in (("here", module.LITTLE_BYTES), ("workers", -1)):
        monkeypatch.setattr(module, "LITTLE_BYTES", little)
        ingest_once(spark, str(logs), str(tmp_path / name))
        tables = [read(spark, str(tmp_path / name)) for read in (read_events, read_quarantine, read_readings)]
        ways[name] = [sorted(map(str, table.collect())) for table in tables]

    assert ways["here"] == ways["workers"]
    assert [4, 1, 3] == [len(rows) for rows in ways["here"]]


def test_one_process_at_a_time_works_on_a_warehouse(tmp_path):
    put(tmp_path / "logs", "mx1", ["m1"])
    before_spark = None

    with the_only_one(str(tmp_path / "w")):
        with pytest.raises(InUse, match=r"/w: another `sla ingest` or `sla watch` works on this warehouse"):
            ingest(before_spark, str(tmp_path / "logs"), str(tmp_path / "w"))
        with pytest.raises(InUse):
            run_watch(before_spark, str(tmp_path / "logs"), str(tmp_path / "w"), str(tmp_path / "o"))

    assert [] == list((tmp_path / "w").iterdir())
    with the_only_one(str(tmp_path / "w")):
        pass


def test_a_stream_that_fails_is_told_in_a_line(spark, tmp_path, monkeypatch):
    def land_badly(*values):
        raise OSError("disk full")

    put(tmp_path / "logs", "mx1", ["m1"])
    monkeypatch.setattr(module, "land", land_badly)

    with pytest.raises(IngestFailed, match=r"^the stream failed: .*disk full$"):
        ingest(spark, str(tmp_path / "logs"), str(tmp_path / "w"))


def test_a_stream_reads_each_file_once_over_several_runs(spark, tmp_path):
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    told = []
    put(logs, "mx1", ["m1"])
    put(logs, "mx2", ["m1", "m2"])
    growing = put(logs, "mx[3]", ["m3"], torn=b"half")
    gone = put(logs, "mx{4}*", ["m4"], name="MSGTRK?[2].LOG")
    put_what_is_no_servers_log(logs, "mx1")

    first = ingest(spark, str(logs), str(warehouse), files_per_batch=2, tell=told.append)

    assert (4, 5, 1) == (first.files, first.rows, first.quarantined)
    assert 4 == read_readings(spark, str(warehouse)).count()
    assert 2 <= sum(line.startswith("batch ") for line in told)

    gone.unlink()
    put(logs, "mx[3]", ["m3", "m4", "m5"])
    put(logs, "mx5", ["m6"], name="MSGTRK2026112113-1.LOG")
    assert growing.exists()
    told.clear()
    second = ingest(spark, str(logs), str(warehouse), tell=told.append)

    assert (5, 8, 0) == (second.files, second.rows, second.quarantined)
    assert "1 files read again" in told
    assert [] == read_quarantine(spark, str(warehouse)).collect()
    assert [
        ("mx1", "m1"),
        ("mx2", "m1"),
        ("mx2", "m2"),
        ("mx5", "m6"),
        ("mx[3]", "m3"),
        ("mx[3]", "m3"),
        ("mx[3]", "m4"),
        ("mx[3]", "m5"),
        ("mx{4}*", "m4"),
    ] == (messages_of(spark, warehouse))
    assert 8 == read_events(spark, str(warehouse)).select("row_id").distinct().count()

    before = read_readings(spark, str(warehouse)).count()
    assert second == ingest(spark, str(logs), str(warehouse))
    assert before == read_readings(spark, str(warehouse)).count()


def test_a_new_checkpoint_takes_nothing_away_from_what_was_read_before(spark, tmp_path):
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    old = put(logs, "mx1", ["m1"])
    ingest(spark, str(logs), str(warehouse))
    shutil.rmtree(warehouse / "ingest")
    old.unlink()
    put(logs, "mx1", ["m2"], name="MSGTRK2026112113-1.LOG")

    ingest(spark, str(logs), str(warehouse))

    assert [("mx1", "m1"), ("mx1", "m2")] == messages_of(spark, warehouse)


def test_a_file_that_vanishes_before_it_is_read_is_none_and_the_others_are_read(spark, tmp_path):
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    put(logs, "mx1", ["m1"])
    gone = put(logs, "mx2", ["m2"])
    listing = list_logs(spark, str(logs))
    gone.unlink()

    land(listing, str(warehouse), "b")

    assert [("mx1", "m1")] == messages_of(spark, warehouse)
    assert [] == read_quarantine(spark, str(warehouse)).collect()


def test_a_continuous_ingest_takes_what_comes_and_what_grows_until_it_is_stopped(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("shadowrelay.sla.ingest.REVIEW_EVERY", timedelta(seconds=1))
    logs, warehouse = tmp_path / "logs", tmp_path / "w"
    logs.mkdir()
    told = queue.Queue()

    def run():
        return ingest(spark, str(logs), str(warehouse), is_continuous=True, interval=timedelta(seconds=1), tell=told.put)

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        put(logs, "mx1", ["m1"], torn=b"half")
        assert told.get(timeout=120).startswith("batch 0: 1 files")
        strange = put(logs, "mx1", ["m0"], name=os.fsdecode(b"MSGTRK\xff.LOG"))
        assert told.get(timeout=120) == f"{str(strange)!r}: not read, because its name is not UTF-8; rename it"
        strange.unlink()
        put(logs, "mx1", ["m1", "m2"])
        assert "1 files read again" == next(line for line in iter(lambda: told.get(timeout=120), "") if "not UTF-8" not in line)
        for query in spark.streams.active:
            query.stop()
        assert (1, 2, 0) == (running.result().files, running.result().rows, running.result().quarantined)
