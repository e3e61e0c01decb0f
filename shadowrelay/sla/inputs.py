"""What the report is made from: servers, files, and what could not be read. docs/sla.md, 6, `input`."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from shadowrelay.sla.events import read_files, read_quarantine
from shadowrelay.sla.sites import Shipping, Site, read_servers, read_shipping
from shadowrelay.sla.store import rows_of
from shadowrelay.sla.summary import LIST_MAX, instant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class Inputs:
    """Shapes: `logs`: of each server that has a log: server, format (of its newest file), formats, first_at, last_at (microseconds), rows,
    lines, files. `quarantined`: reason, count, examples."""

    logs: list[dict[str, Any]]
    quarantined: list[dict[str, Any]]
    sites: dict[str, Site] = field(default_factory=dict)
    shipping: Shipping = field(default_factory=Shipping)

    @property
    def servers(self) -> list[str]:
        """Those with a log, and those that are known without."""
        return sorted({*self.sites, *self.logged})

    @property
    def logged(self) -> list[str]:
        """Those whose own log is in the input."""
        return [each["server"] for each in self.logs]

    @property
    def formats(self) -> set[str]:
        """Of all files."""
        return {format_ for each in self.logs for format_ in each["formats"]}

    @property
    def lines_quarantined(self) -> int:
        """Each line once."""
        return sum(each["count"] for each in self.quarantined)

    def newest_at(self) -> int | None:
        """The newest row. Units: microseconds."""
        return max((each["last_at"] for each in self.logs if each["last_at"] is not None), default=None)


def read_inputs(spark: "SparkSession", warehouse: str) -> Inputs:
    """All that is known of the warehouse without its events."""
    with ThreadPoolExecutor() as readers:
        servers = readers.submit(lambda: rows_of(logs(read_files(spark, warehouse)).orderBy("server")))
        quarantined = readers.submit(lambda: rows_of(reasons(quarantined_once(read_quarantine(spark, warehouse)))))
        return Inputs(servers.result(), quarantined.result(), read_servers(warehouse), read_shipping(warehouse))


def logs(files: DataFrame) -> DataFrame:
    """One line a server. A file that was read again counts as it was read last, that is with most lines."""
    once = files.groupBy("server", "file").agg(
        F.max("lines").alias("lines"),
        F.max("rows").alias("rows"),
        F.collect_set("format").alias("formats"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )
    known = F.array_remove(F.array_distinct(F.flatten(F.collect_list("formats"))), "")
    return once.groupBy("server").agg(
        F.count(F.lit(1)).alias("files"),
        F.sum("lines").alias("lines"),
        F.sum("rows").alias("rows"),
        F.max_by(F.array_max("formats"), "last_at").alias("format"),
        known.alias("formats"),
        F.unix_micros(F.min("first_at")).alias("first_at"),
        F.unix_micros(F.max("last_at")).alias("last_at"),
    )


def quarantined_once(quarantine: DataFrame) -> DataFrame:
    """A line of a file that was read twice is one."""
    return quarantine.dropDuplicates(["server", "file", "line", "reason"])


def reasons(quarantined: DataFrame) -> DataFrame:
    """How many of each, and the first few."""
    in_order = Window.partitionBy("reason").orderBy("server", "file", "line")
    number = F.row_number().over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    example = F.when(F.col("number") <= EXAMPLES_MAX, F.struct("server", "file", "line"))
    return (
        quarantined.withColumn("number", number)
        .groupBy("reason")
        .agg(F.count(F.lit(1)).alias("count"), F.sort_array(F.collect_list(example)).alias("examples"))
        .orderBy("reason")
    )


def input_of(inputs: Inputs, *, rows: int, rows_repeated: int) -> dict[str, Any]:
    """`input` of summary.json. Shapes: `rows` with repeats."""
    servers = [
        {"name": each["server"], **inputs.sites.get(each["server"], Site())._asdict(), "format": each["format"] or ""}
        | {"first_at": instant(each["first_at"]), "last_at": instant(each["last_at"]), "rows": each["rows"]}
        for each in inputs.logs
    ]
    first = min((each["first_at"] for each in inputs.logs if each["first_at"] is not None), default=None)
    return {
        "servers": servers,
        "files": sum(each["files"] for each in inputs.logs),
        "files_missing": len(inputs.shipping.missing),
        "lines": sum(each["lines"] for each in inputs.logs),
        "rows": rows,
        "rows_repeated": rows_repeated,
        "first_at": instant(first),
        "last_at": instant(inputs.newest_at()),
        "quarantine": inputs.quarantined,
        "dropped_before_shipping": [each._asdict() for each in inputs.shipping.dropped[:LIST_MAX]],
        "dropped_count": len(inputs.shipping.dropped),
    }
