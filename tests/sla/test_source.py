"""`spark.read.format("msgtrk")` has the rows that the ingest has, for any Spark program."""

import os
import re
import time

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException

from shadowrelay.model.tracking import EventId
from shadowrelay.sla.logs import Source
from shadowrelay.sla.source import PARTITION_BYTES_MAX, _StreamReader, grouped, packed, register, unpacked_offset
from tests.kit.log_files import a_log, an_event, read_log
from tests.tidy.house import ROOT

pytestmark = pytest.mark.slow

OLD = time.time() - 60


@pytest.fixture
def reading(spark):
    register(spark)
    return spark.read.format("msgtrk")


def a_file(directory, server, data, name="MSGTRK2026112112-1.LOG"):
    path = directory / server / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (OLD, OLD))
    return path


def as_plain(row):
    """A row of Spark as a dict. Its instants are local and naive, ours aware: compared as numbers."""
    return {name: value.timestamp() if hasattr(value, "timestamp") else value for name, value in row.items()}


def test_every_row_of_every_server_with_all_columns(tmp_path, reading):
    logs = {
        server: a_log([an_event(f"{server}-1", recipients=("a@b", "c@d")), an_event(f"{server}-1", EventId.SEND)])
        for server in ("mx1", "mx2")
    }
    for server, data in logs.items():
        a_file(tmp_path, server, data)
    a_file(tmp_path, "mx1", b"something else", name="notes.txt")

    found = [as_plain(row.asDict()) for row in reading.load(str(tmp_path)).collect()]

    expected = [as_plain(row | {"server": server}) for server, data in logs.items() for row in read_log(data, server)[1]]
    order = ("server", "line")
    assert sorted(expected, key=lambda row: [row[name] for name in order]) == sorted(found, key=lambda row: [row[name] for name in order])
    assert 4 == len(found)


def test_lines_that_are_no_rows_are_left_out_and_shown_on_request(tmp_path, reading):
    a_file(tmp_path, "mx1", a_log([an_event()]) + b"torn")

    assert 1 == reading.load(str(tmp_path)).count()
    shown = reading.option("quarantine", "true").load(str(tmp_path)).collect()
    assert [("mx1", "torn", "torn")] == [(row.server, row.reason, row.text) for row in shown]


def test_one_file_and_a_server_that_its_directory_does_not_name(tmp_path, reading):
    path = a_file(tmp_path, "downloads", a_log([an_event()]), name="MSGTRKMS2024010100-1.LOG")

    assert ["exch01"] == [row.server for row in reading.option("server", "exch01").load(str(path)).collect()]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"names": "*.csv"}, "no file"),
        ({"quarantine": "yes"}, "write true or false"),
        ({"Server": "mx1", "pathGlobFilter": "*.csv"}, "no option pathglobfilter; there are names, path, quarantine, server"),
    ],
    ids=["nothing", "value", "option"],
)
def test_a_mistake_is_named(tmp_path, reading, options, text):
    a_file(tmp_path, "mx1", a_log([an_event()]))

    with pytest.raises(Exception, match=text):
        reading.options(**options).load(str(tmp_path)).count()


def test_a_directory_that_is_not_there_is_named(tmp_path, reading):
    with pytest.raises(Exception, match=r"msgtrk: .*/nowhere: no such file or directory"):
        reading.load(str(tmp_path / "nowhere")).count()


def test_a_stream_has_each_file_once_also_after_a_restart(tmp_path, spark):
    register(spark)
    logs, checkpoint, seen = tmp_path / "logs", tmp_path / "checkpoint", []
    a_file(logs, "mx1", a_log([an_event("m1")]))

    def follow():
        stream = spark.readStream.format("msgtrk").load(str(logs)).select("message").writeStream
        keep = lambda rows, batch: seen.extend(row.message for row in rows.collect())  # noqa: E731
        while True:
            query = stream.foreachBatch(keep).option("checkpointLocation", str(checkpoint)).start()
            try:
                query.processAllAvailable()
                return
            except StreamingQueryException as error:
                # on a busy machine: Spark waits ten seconds for each new Python, which no setting changes
                if "failed to connect back" not in str(error):
                    raise
            finally:
                query.stop()

    follow()
    later = a_file(logs, "mx2", a_log([an_event("m2"), an_event("m3")]))
    os.utime(later, (OLD + 1, OLD + 1))
    unsettled = a_file(logs, "mx1", a_log([an_event("being written")]), name="MSGTRK2026112112-2.LOG")
    os.utime(unsettled, (time.time() + 3600,) * 2)  # changed just now, for as long as this test takes
    follow()

    assert ["m1", "m2", "m3"] == seen


def test_the_examples_of_the_documentation_run(tmp_path, spark, capfd):
    columns = {"recipients": ("a@b",), "custom_data": (("Replication", "Failed"),)}
    a_file(tmp_path, "mx1", a_log([an_event("m1", **columns), an_event("m1", EventId.HAREDIRECT, server_hostname="mx2")]))
    names = {"spark": spark}
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    for block in re.findall(r"(?s)```python\n(.*?)```", text):
        exec(block.replace("/srv/tracking", str(tmp_path)), names)

    assert ["mx1", "1", "1"] in [line.split("|")[1:-1] for line in capfd.readouterr().out.replace(" ", "").splitlines()]


def messages(partitions):
    return sorted(source.path.rpartition("/")[2] for each in partitions for source in each.sources)


def test_a_log_that_comes_with_an_older_time_is_read_and_one_that_is_read_is_not_again(tmp_path):
    a_file(tmp_path, "mx1", a_log([an_event("m1")]), name="MSGTRK1.LOG")
    reader = _StreamReader({"path": str(tmp_path)})
    first = reader.latestOffset(reader.initialOffset(), None)
    assert ["MSGTRK1.LOG"] == messages(reader.partitions(reader.initialOffset(), first))

    older = a_file(tmp_path, "mx1", a_log([an_event("m2")]), name="MSGTRK2.LOG")
    os.utime(older, (OLD - 5000,) * 2)
    again = _StreamReader({"path": str(tmp_path)})
    second = again.latestOffset(first, None)

    assert ["MSGTRK2.LOG"] == messages(again.partitions(first, second))
    assert second == again.latestOffset(second, None)


def test_a_share_that_is_empty_for_a_while_repeats_nothing_and_loses_nothing(tmp_path):
    path = a_file(tmp_path / "logs", "mx1", a_log([an_event("m1")]), name="MSGTRK1.LOG")
    options = {"path": str(tmp_path / "logs")}
    reader = _StreamReader(options)
    first = reader.latestOffset(reader.initialOffset(), None)
    away = path.parent.rename(tmp_path / "away")

    for asked in (reader, _StreamReader(options)):
        assert first == asked.latestOffset(first, None)
        assert [] == asked.partitions(first, first)
    with pytest.raises(FileNotFoundError, match="was there a moment ago; is "):
        reader.partitions(reader.initialOffset(), first)
    with pytest.raises(FileNotFoundError, match="is it mounted"):
        _StreamReader(options).latestOffset()  # as Spark asks before 4.2

    away.rename(path.parent)
    assert first == _StreamReader(options).latestOffset(first, None)
    path.unlink()
    a_file(tmp_path / "logs", "mx1", a_log([an_event("m2")]), name="MSGTRK2.LOG")
    assert [] == reader.partitions(reader.initialOffset(), first)  # retention deleted it


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path):
    a_file(tmp_path, "mx1", a_log([an_event("m1")]), name="MSGTRK1.LOG")
    reader = _StreamReader({"path": str(tmp_path)})
    later = a_file(tmp_path, "mx1", a_log([an_event("m2")]), name="MSGTRK2.LOG")
    os.utime(later, (OLD + 5,) * 2)

    assert ["MSGTRK2.LOG"] == messages(reader.partitions({"until": OLD + 1}, reader.latestOffset({"until": OLD + 1}, None)))


def test_an_offset_of_a_month_is_small():
    sizes = {f"file:///srv/tracking/mx{server}/MSGTRK202611{day:02}{hour:02}-1.LOG": 9_000_000 + day * hour
             for server in range(4) for day in range(1, 31) for hour in range(24)}  # fmt: skip

    assert sizes == unpacked_offset(packed(sizes))
    assert len(packed(sizes)["files"]) < 8 * len(sizes)


def test_small_logs_share_partitions_and_large_ones_have_their_own():
    small = [Source(f"/logs/mx1/MSGTRK{number:04}.LOG", "mx1", f"MSGTRK{number:04}.LOG", 12_000) for number in range(220)]
    large = [source._replace(size=PARTITION_BYTES_MAX) for source in small[:5]]

    assert len(grouped(small, 2)) <= 20
    assert small == [source for group in grouped(small, 2) for source in group]
    assert [[source] for source in large] == grouped(large, 2)
    assert [] == grouped([], 2)
