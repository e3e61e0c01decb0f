"""What happened to one message, row by row. docs/sla.md, 6, `traces`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.events import read_events
from shadowrelay.sla.summary import instant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_MAX = 500  # of one message: one that was deferred for days has more, and the first say why
RECIPIENTS_MAX, CHARACTERS_MAX = 20, 1000  # of a row in summary.json
COLUMNS = ("at", "server", "event", "source", "client", "to", "recipients", "recipients_count", "text")


def trace(spark: "SparkSession", warehouse: str, message_id: str) -> list[dict[str, Any]]:
    """Every row in order, by network message id or internet message id (with or without its angle brackets); with the notifications about
    it.

    Shapes: as in `traces`, and `message`, because an internet message id may be that of several.
    """
    bare = message_id.strip().removeprefix("<").removesuffix(">")
    is_it = F.col("message").isin(message_id, bare, f"<{bare}>") | F.col("internet_message_id").isin(message_id, bare, f"<{bare}>")
    is_about_it = (F.col("event") == "DSN") & (F.col("original_message").isin(message_id) | F.col("reference").isin(bare, f"<{bare}>"))
    rows = told(read_events(spark, warehouse).where(is_it | is_about_it), F.col("message"))
    return [
        {"message": row["message"], **traced_row(row.asDict(recursive=True))} for row in rows.orderBy("at_us", "server", "line").collect()
    ]


def traces(events: DataFrame, messages: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """`traces` of summary.json. Shapes: `messages` are few."""
    if not messages:
        return {}
    wanted = list(messages)
    is_about_it = (F.col("event") == "DSN") & F.col("original_message").isin(wanted)
    of = F.when(F.col("message").isin(wanted), F.col("message")).otherwise(F.col("original_message"))
    rows = told(events.where(F.col("message").isin(wanted) | is_about_it), of)
    result: dict[str, list[dict[str, Any]]] = {message: [] for message in messages}
    cut = rows.withColumns({"recipients": F.slice("recipients", 1, RECIPIENTS_MAX), "text": F.left("text", F.lit(CHARACTERS_MAX))})
    for row in cut.orderBy("message", "at_us", "server", "line").collect():
        result[row["message"]].append(traced_row(row.asDict(recursive=True)))
    return result


def told(events: DataFrame, message: Column) -> DataFrame:
    """Rows with the columns of a trace, each once, at most ROWS_MAX of a message."""
    said = events.select(
        message.alias("message"), "row_id", F.unix_micros("at").alias("at_us"), "server", "line", "event", "source",
        F.coalesce(F.nullif(F.col("client_hostname"), F.lit("")), "client_ip").alias("client"),
        F.coalesce(F.nullif(F.col("server_hostname"), F.lit("")), "server_ip").alias("to"),
        "recipients", F.size("recipients").alias("recipients_count"), _text().alias("text"),
    )  # fmt: skip
    in_order = Window.partitionBy("message").orderBy("at_us", "server", "line")
    numbered = said.dropDuplicates(["message", "row_id"]).withColumn(
        "number", F.row_number().over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    )
    return numbered.where(F.col("number") <= ROWS_MAX).drop("number", "row_id")


def _text() -> Column:
    """What a row says besides who and when: its context, what it refers to, what the recipients' servers said, and our own data."""
    parts = ("source_context", "reference")
    statuses = F.array_join(F.array_distinct("recipient_statuses"), "; ")
    return F.concat_ws(
        " · ", *[F.nullif(F.col(part), F.lit("")) for part in parts], F.nullif(statuses, F.lit("")), F.nullif("custom_data", F.lit(""))
    )


def traced_row(row: dict[str, Any]) -> dict[str, Any]:
    """A line of a trace."""
    return {"at": instant(row["at_us"])} | {name: row[name] for name in COLUMNS[1:]}
