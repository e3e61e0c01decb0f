"""What the tables of the warehouse promise to those who read them."""

from datetime import UTC, date, datetime

from pyspark.sql import functions as F
from pyspark.testing import assertSchemaEqual

from shadowrelay.sla.inspection import last_readings
from shadowrelay.sla.warehouse import EVENTS, read_events
from tests.kit.events import events


def test_a_row_of_the_kit_has_every_column_with_its_type(spark):
    frame = events(spark, [{"event": "RECEIVE", "at": datetime(2026, 11, 21, 23, 59, tzinfo=UTC), "recipients": ["a@b.example"]}])

    row = frame.select("event", "server", "date", "recipient_count", "ack_us", F.date_format("at", "HH:mm").alias("at")).first()

    assertSchemaEqual(frame.schema, EVENTS)
    assert ("RECEIVE", "mx1.east.example", date(2026, 11, 21), 1, None, "23:59") == tuple(row)


def test_what_was_never_ingested_has_no_rows_but_all_columns(spark, tmp_path):
    assertSchemaEqual(read_events(spark, str(tmp_path)).schema, EVENTS)
    assert (0, []) == (read_events(spark, str(tmp_path)).count(), last_readings(str(tmp_path)))


def test_a_server_whose_name_looks_like_a_number_stays_a_text(spark, tmp_path):
    rows = events(spark, [{"event": "RECEIVE", "server": "007"}, {"event": "SEND", "server": "1e3"}])
    rows.withColumn("batch", F.lit("1")).write.partitionBy("date", "server", "batch").parquet(f"{tmp_path}/events")
    (tmp_path / "files" / "batch=1").mkdir(parents=True)
    (tmp_path / "files" / "batch=1" / "_SUCCESS").touch()

    frame = read_events(spark, str(tmp_path))

    assertSchemaEqual(frame.schema, EVENTS)
    assert ["007", "1e3"] == sorted(row.server for row in frame.select("server").collect())
