"""Live figures: each row once, whatever comes twice and whatever is done twice; late ones apart."""

from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.tracking import EventId, EventSource
from shadowrelay.sla import live
from shadowrelay.sla.sites import ServerSite
from tests.sla.landed import HOUR, MINUTE, NOW, land

NAMES = ("rows", "messages_acknowledged", "messages_redundant", "copies_received", "deliveries", "recipients_delivered", "late_rows")


def run(spark, directory: Path) -> None:
    """A process of its own, as far as the checkpoint can tell."""
    warehouse = str(directory / "w")
    live.feed(warehouse, live.begin(warehouse), now=NOW)
    query = live.start(spark, warehouse, interval=timedelta(milliseconds=100))
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert 0 == sum(operator.numRowsDroppedByWatermark for progress in query.recentProgress for operator in progress.stateOperators)


def totals(spark, directory: Path) -> tuple[int, ...]:
    rows = live.minutes(spark, str(directory / "w")).collect()
    return tuple(sum(row[name] for row in rows) for name in NAMES)


@pytest.mark.timeout(300, func_only=True)
def test_each_row_is_counted_once_over_restarts_repeats_and_batches_done_again(spark, tmp_path):
    live.begin(str(tmp_path / "w"))
    land(tmp_path, "r-000000", ago=[0 * HOUR, MINUTE, 9 * HOUR], custom_data=(("Replication", "Success"), ("ShadowElapsed", "0.004")))
    land(tmp_path, "r-000001", ago=[MINUTE, 3 * HOUR], event=EventId.SENDEXTERNAL)
    run(spark, tmp_path)

    assert (4, 3, 3, 0, 1, 2, 1) == totals(spark, tmp_path)

    land(tmp_path, "r-000002", server="mx2", ago=[-20 * MINUTE], event=EventId.HARECEIVE)
    land(tmp_path, "r-000003", ago=[0 * HOUR, MINUTE, 9 * HOUR], log_name="r-000000",
         custom_data=(("Replication", "Success"), ("ShadowElapsed", "0.004")))  # fmt: skip
    run(spark, tmp_path)

    # of the repeats, none is counted again; the one that is older than the state remembers is late, and nothing else
    whole = (5, 3, 3, 1, 1, 2, 2)
    assert whole == totals(spark, tmp_path)

    newest = live.batches(str(tmp_path / "w")).newest
    for path in (tmp_path / "w" / "live" / "checkpoint" / "commits").glob(f"*{newest}*"):
        path.unlink()  # as if it had been killed before it could say that the batch is done
    run(spark, tmp_path)

    assert whole == totals(spark, tmp_path)

    assert live.fold(spark, str(tmp_path / "w"), at=1)
    assert [f"upto={newest - 1}", f"batch={newest}"] == live.batches(str(tmp_path / "w")).paths()
    assert whole == totals(spark, tmp_path)

    shown = live.recent(spark, str(tmp_path / "w"), {"mx1": ServerSite("east", "b"), "mx2": ServerSite("west", "b")})
    hours = {(line["start"], line["scope"], line["name"]): line for line in shown["hours"]}
    assert {"count": 1, "p50": 5, "p95": 5, "p99": 5} == hours["2026-11-21T12:00:00Z", "site", "east"]["shadow_latency_ms"]
    assert 2 == hours["2026-11-21T12:00:00Z", "boundary", "b"]["rows"]
    assert 1 == hours["2026-11-21T12:00:00Z", "server", "mx2"]["copies_received"]
    assert {"all", "site"} == {line["scope"] for line in shown["minutes"]}
    assert sorted(NAMES) == sorted(set(NAMES) & shown["minutes"][0].keys())


def test_promotions_are_those_of_redundancy(spark):
    columns = "row_id string, moment timestamp, standing string, server string, event string, source string, replication string, "
    rows = [
        (str(number), NOW, standing, "mx1", event, source, "", None, None, 1)
        for number, (standing, event, source) in enumerate([
            ("in time", EventId.RESUBMIT, EventSource.REDUNDANCY), ("in time", EventId.RESUBMIT, EventSource.SAFETYNET),
            ("late", EventId.RESUBMIT, EventSource.REDUNDANCY), ("ahead", EventId.RESUBMIT, EventSource.REDUNDANCY),
        ])
    ]  # fmt: skip
    frame = spark.createDataFrame([tuple(map(_plain, row)) for row in rows], columns + "copies long, shadow_us long, recipients_count long")

    (line,) = live.counted(frame).collect()

    assert (2, 1, 1, 1) == (line.rows, line.promotions, line.late_rows, line.ahead_rows)


def test_messages_are_counted_by_their_copies(spark):
    # of Exchange the name of the shadow server is a copy, and its own name is none
    said = [("MX2", None), ("Success", 2), ("Success", 5), ("Failed", None), ("Failed", 1), ("mx1.x.example", 0), ("", None)]
    columns = "row_id string, moment timestamp, standing string, server string, event string, source string, replication string, "
    rows = [
        (str(number), NOW, "in time", "mx1", "RECEIVE", "SMTP", replication, copies, None, 1)
        for number, (replication, copies) in enumerate(said)
    ]
    frame = spark.createDataFrame(rows, columns + "copies long, shadow_us long, recipients_count long")

    (line,) = live.placed([{"start": 0, **row.asDict()} for row in live.counted(frame).collect()], {}, ["all"])

    assert ({"0": 2, "1": 2, "2": 1, "3": 1}, 7) == (line["messages_by_copies"], line["messages_acknowledged"])


def _plain(value):
    return str(value) if isinstance(value, EventId | EventSource) else value


def test_percentiles_are_upper_bounds_of_buckets():
    buckets = [0] * 14
    buckets[2], buckets[5], buckets[13] = 50, 45, 5

    assert {"count": 100, "p50": 5, "p95": 50, "p99": None} == live.latency(buckets)
    assert {"count": 0, "p50": None, "p95": None, "p99": None} == live.latency([0] * 14)
