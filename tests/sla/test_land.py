"""From files to Parquet: each batch exactly itself, whatever breaks."""

from datetime import timedelta

import pytest
from pyarrow import parquet

from shadowrelay.sla import land
from shadowrelay.sla.columns import ARROW_EVENTS
from shadowrelay.sla.land import ARROW_FILES, ARROW_QUARANTINE, dealt, escaped, land_files
from shadowrelay.sla.logs import Source, source_of
from shadowrelay.sla.warehouse import EVENTS, FILES, QUARANTINE
from tests.kit.log_files import STARTED, a_log, an_event


def landed(warehouse, *paths, batch="b"):
    return list(land_files([source_of(str(path)) for path in paths], str(warehouse), batch))


def written(warehouse):
    return {str(path.relative_to(warehouse)): path.read_bytes() for path in sorted(warehouse.rglob("*")) if path.is_file()}


def log_file(directory, server, data, name="MSGTRK2026112112-1.LOG"):
    path = directory / server / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_the_columns_that_are_written_are_those_that_are_read():
    assert [*ARROW_EVENTS.names, "server", "date"] == EVENTS.fieldNames()
    assert QUARANTINE.fieldNames() == ARROW_QUARANTINE.names
    assert FILES.fieldNames() == ARROW_FILES.names


def test_rows_stand_under_their_date_and_server_and_the_file_is_counted(tmp_path):
    days = [an_event(f"m{day}", at=STARTED + timedelta(days=day)) for day in (0, 1, 0)]
    path = log_file(tmp_path, "mx/1".replace("/", ":"), a_log(days) + b"torn")

    (row,) = landed(tmp_path / "w", path)

    tables = sorted((tmp_path / "w" / "events").rglob("*.parquet"))
    assert ["date=2026-11-21/server=mx%3A1/batch=b", "date=2026-11-22/server=mx%3A1/batch=b"] == [
        str(each.parent.relative_to(tmp_path / "w" / "events")) for each in tables
    ]
    assert [["m0", "m0"], ["m1"]] == [parquet.ParquetFile(each).read().column("message").to_pylist() for each in tables]
    assert {
        "server": "mx:1", "file": path.name, "bytes": path.stat().st_size, "lines": 9, "rows": 3, "quarantined": 1, "format": "shadowrelay",
        "version": "1.2.3", "first_at": STARTED, "last_at": STARTED + timedelta(days=1),
    } == row  # fmt: skip


def test_a_batch_that_is_done_again_writes_exactly_the_same(tmp_path):
    paths = [log_file(tmp_path, f"mx{number}", a_log([an_event(f"m{number}")]) + b"torn") for number in range(3)]

    first = landed(tmp_path / "w", *paths)
    before = written(tmp_path / "w")
    again = landed(tmp_path / "w", *reversed(paths))

    assert first == again[::-1]
    assert 6 == len(before)
    assert before == written(tmp_path / "w")


def test_a_batch_that_is_done_again_with_a_file_that_grew_holds_it_as_it_is_now(tmp_path):
    whole = a_log([an_event("m1"), an_event("m2")])
    path = log_file(tmp_path, "mx1", whole[:-9])
    landed(tmp_path / "w", path)
    path.write_bytes(whole)

    (row,) = landed(tmp_path / "w", path)

    (table,) = (tmp_path / "w" / "events").rglob("*.parquet")
    assert (2, 0) == (row["rows"], row["quarantined"])
    assert ["m1", "m2"] == parquet.ParquetFile(table).read().column("message").to_pylist()
    assert [] == list((tmp_path / "w" / "quarantine").rglob("*.parquet"))


def test_many_rows_and_many_bad_lines_are_written_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(land, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(land.LogFile.__init__, "__kwdefaults__", {"block_bytes": 1000})
    data = a_log(an_event(f"m{number}") for number in range(100)) + b"?\n" * 1500

    (row,) = landed(tmp_path / "w", log_file(tmp_path, "mx1", data))

    events = [parquet.ParquetFile(path).read() for path in (tmp_path / "w" / "events").rglob("*.parquet")]
    bad = [parquet.ParquetFile(path).read() for path in (tmp_path / "w" / "quarantine").rglob("*.parquet")]
    assert (100, 1500) == (row["rows"], row["quarantined"])
    assert (100, 1500) == (sum(table.num_rows for table in events), sum(table.num_rows for table in bad))
    assert 5 < len(events) <= 10 < max(table.num_rows for table in bad) < 1500


def test_a_file_that_cannot_be_read_is_a_line_of_quarantine_and_the_others_go_on(tmp_path):
    good = log_file(tmp_path, "mx1", a_log([an_event("m1")]))
    directory = tmp_path / "mx2" / "MSGTRK2026112112-1.LOG"
    directory.mkdir(parents=True)

    rows = landed(tmp_path / "w", directory, good)

    tables = [parquet.ParquetFile(path).read().to_pylist()[0] for path in sorted((tmp_path / "w" / "quarantine").rglob("*.parquet"))]
    assert [(0, 0, 1), (good.stat().st_size, 1, 0)] == [(row["bytes"], row["rows"], row["quarantined"]) for row in rows]
    assert {("mx2", 0, "unreadable file")} == {(row["server"], row["line"], row["reason"]) for row in tables}
    assert {"IsADirectoryError"} == {row["text"].partition(":")[0] for row in tables}


def test_a_disk_that_takes_nothing_ends_the_job_instead_of_losing_rows(tmp_path):
    path = log_file(tmp_path, "mx1", a_log([an_event("m1")]))
    (tmp_path / "w").write_bytes(b"no directory")

    with pytest.raises(OSError, match="w"):
        landed(tmp_path / "w", path)


def test_a_path_says_whose_log_it_is():
    assert ("mx1.east.example", "MSGTRK1.LOG") == source_of("file:/logs/mx1.east.example/MSGTRK1.LOG")[1:3]
    assert source_of("s3://b/logs/a/M.LOG").key == source_of("/logs/a/M.LOG").key != source_of("/logs/b/M.LOG").key
    assert "a%3Ab%25%2Fc d-ü.example" == escaped("a:b%/c d-ü.example")


def test_a_log_that_was_deleted_since_it_was_listed_is_none(tmp_path):
    gone, good = tmp_path / "mx1" / "MSGTRKgone.LOG", log_file(tmp_path, "mx2", a_log([an_event("m1")]))

    assert ["mx2"] == [row["server"] for row in landed(tmp_path / "w", gone, good)]
    assert not (tmp_path / "w" / "quarantine").exists()


def test_workers_are_dealt_nearly_the_same_amount_each():
    logs = [Source(f"/l/mx1/{number}", "mx1", str(number), number) for number in range(1, 101)]

    hands = dealt(logs, 8)

    sizes = [sum(source.size for source in hand) for hand in hands]
    assert (8, sorted(logs)) == (len(hands), sorted(source for hand in hands for source in hand))
    assert max(sizes) - min(sizes) < 100
    assert [[logs[1]], [logs[0]]] == dealt(logs[:2], 8)
