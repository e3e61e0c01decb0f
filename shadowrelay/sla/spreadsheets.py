"""Each table of a report as CSV, for spreadsheets. docs/sla.md, 6.

Whole tables come from the Parquet files that Spark has written, without Spark, one batch of rows at a time; the others from the summary.
`messages` and `copies` have a line for each message, which no spreadsheet takes: they are Parquet only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute, csv

from shadowrelay.sla.parquet_files import parquet_batches
from shadowrelay.sla.storage import located, written_whole

CSV = "csv"
WHOLE = ("takeovers", "duplicates", "losses", "orphans", "exposures", "slow", "figures", "quarantine")
FORMULA = "^[=+@\\t\\r-]"


def write_csv(tables: str, output: str, summary: Mapping[str, Any]) -> None:
    """Shapes: `tables` is the directory of the Parquet tables; `summary` as summary.json."""
    files, place = located(tables)
    for name in WHOLE:
        parts = sorted(path for path in files.ls(f"{place}/{name}", detail=False) if path.endswith(".parquet"))
        batches = (batch for path in parts for batch in parquet_batches(files, path))
        with written_whole(f"{output}/{name}.csv") as file:
            for number, batch in enumerate(batches):
                csv.write_csv(without_formulas(batch), file, csv.WriteOptions(include_header=number == 0))
    for name, lines in (
        ("incidents", summary["incidents"]),
        ("objectives", summary["objectives"]),
        ("servers", summary["input"]["servers"]),
    ):
        with written_whole(f"{output}/{name}.csv") as file:
            csv.write_csv(without_formulas(flat(lines)), file)


def flat(lines: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Lines of the summary as columns, without what has parts of its own."""
    names = [name for name, value in (lines[0] if lines else {}).items() if not isinstance(value, Mapping)]
    return pa.RecordBatch.from_pydict({name: [line[name] for line in lines] for name in names})


def without_formulas(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A text that a spreadsheet would take for a formula begins with an apostrophe: senders choose subjects."""
    columns = [_harmless(column) if pa.types.is_string(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _harmless(texts: pa.Array) -> pa.Array:
    is_formula = compute.fill_null(compute.match_substring_regex(texts, FORMULA), False)
    return compute.if_else(is_formula, compute.binary_join_element_wise("'", texts, ""), texts)
