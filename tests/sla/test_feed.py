"""What live figures are fed with: each landed batch once, late rows told from those in time, whatever is killed in between."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyarrow import parquet

from shadowrelay.sla import live
from tests.sla.landed import HOUR, MINUTE, NOW, land


def fed(directory: Path, batch: str) -> list[tuple]:
    rows = parquet.read_table(directory / "w" / "live" / "feed" / f"{batch}.parquet").to_pylist()
    return [(row["standing"], row["moment"]) for row in rows]


@pytest.fixture
def warehouse(tmp_path):
    live.begin(str(tmp_path / "w"))
    return str(tmp_path / "w")


def test_a_row_is_late_that_is_older_than_the_mark_of_earlier_batches(tmp_path, warehouse):
    land(tmp_path, "r-000000", ago=[0 * HOUR, 5 * HOUR])  # nothing is late before there is a mark
    land(tmp_path, "r-000001", server="a=b", ago=[2 * HOUR, 2 * HOUR + timedelta(microseconds=1), MINUTE])

    mark = live.feed(warehouse, live.begin(warehouse), now=NOW)

    assert [("in time", NOW), ("in time", NOW - 5 * HOUR)] == fed(tmp_path, "r-000000")
    assert [("in time", NOW - 2 * HOUR), ("late", NOW - 2 * HOUR), ("in time", NOW - MINUTE)] == fed(tmp_path, "r-000001")
    assert (2, 5, 1, 0, 0) == mark[2:]
    assert mark == live.read_mark(warehouse) == live.begin(warehouse) == live.feed(warehouse, mark, now=NOW)


def test_a_clock_that_is_ahead_does_not_make_all_others_late(tmp_path, warehouse):
    land(tmp_path, "r-000000", ago=[-1 * HOUR, -1 * HOUR - MINUTE, -9 * HOUR])
    land(tmp_path, "r-000001", ago=[MINUTE])

    mark = live.feed(warehouse, live.begin(warehouse), now=NOW)

    assert [("in time", NOW + HOUR), ("ahead", NOW), ("ahead", NOW)] == fed(tmp_path, "r-000000")
    assert [("in time", NOW - MINUTE)] == fed(tmp_path, "r-000001")
    assert 2 == mark.ahead_rows


def test_a_batch_is_fed_when_it_has_landed_and_not_again(tmp_path, warehouse):
    land(tmp_path, "r-000009", ago=[MINUTE])
    land(tmp_path, "r-000010", ago=[MINUTE], is_whole=False)
    mark = live.feed(warehouse, live.begin(warehouse), now=NOW)
    (tmp_path / "w" / "live" / "feed" / "r-000009.parquet").unlink()  # Spark's cleaner
    land(tmp_path, "r-000010", ago=[MINUTE])
    land(tmp_path, "again-20261121T120000000000", ago=[MINUTE])

    mark = live.feed(warehouse, mark, now=NOW)

    assert ["again-20261121T120000000000.parquet", "r-000010.parquet"] == sorted(
        path.name for path in Path(warehouse, "live", "feed").iterdir()
    )
    assert (3, 3) == (mark.batches, mark.rows)
    assert mark.is_fed("r-000010")
    assert not mark.is_fed("r-000011")
    assert not mark.is_fed("other-000001")


def test_killed_between_the_file_and_the_mark_the_same_is_done_again(tmp_path, warehouse):
    land(tmp_path, "r-000000", ago=[0 * HOUR])
    before = live.feed(warehouse, live.begin(warehouse), now=NOW)
    land(tmp_path, "r-000001", ago=[-30 * MINUTE, 3 * HOUR])
    first = live.feed(warehouse, before, now=NOW)
    octets = (tmp_path / "w" / "live" / "feed" / "r-000001.parquet").read_bytes()

    (tmp_path / "w" / "live" / "mark.json").write_text(json.dumps(before._asdict()))
    second = live.feed(warehouse, live.begin(warehouse), now=NOW)

    assert first == second
    assert octets == (tmp_path / "w" / "live" / "feed" / "r-000001.parquet").read_bytes()


def test_the_first_watch_begins_with_what_comes(tmp_path):
    land(tmp_path, "r-000007", ago=[MINUTE])

    mark = live.begin(str(tmp_path / "w"))

    assert mark.is_fed("r-000007")
    assert mark == live.feed(str(tmp_path / "w"), mark, now=NOW)


def test_rows_that_another_ingest_has_merged_meanwhile_are_counted_as_missed(tmp_path, warehouse):
    land(tmp_path, "r-000000", ago=[MINUTE, MINUTE])
    for path in Path(warehouse, "events").rglob("*.parquet"):
        path.unlink()

    mark = live.feed(warehouse, live.begin(warehouse), now=NOW)

    assert (0, 2) == (mark.rows, mark.missed_rows)


def test_a_log_without_a_row_feeds_nothing(tmp_path, warehouse):
    land(tmp_path, "r-000000", ago=[])

    mark = live.feed(warehouse, live.begin(warehouse), now=NOW)

    assert (1, 0, None) == (mark.batches, mark.rows, mark.instant())
    assert [] == list(Path(warehouse, "live", "feed").iterdir())
