"""Reads and writes single Parquet files, of a warehouse or a report, without Spark. docs/sla.md, section 1.

No thread of Arrow ever holds an object of Python: one that is released while the interpreter ends aborts the process, after its work
(https://github.com/apache/arrow/issues/34314). So files on a disk are opened by Arrow itself, and those of a store are read in this thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet

from shadowrelay.sla.storage import is_local, written_whole

ROWS_AT_ONCE = 200_000  # in memory before they are written: about 100 MB
COMPRESSION = "zstd"


def read_parquet(files: Any, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """These columns of a file, or all. Shapes: `files` and `path` as `located` gives them. Raises: OSError, pa.ArrowException."""
    with _opened(files, path) as file:
        return file.read(None if columns is None else list(columns), use_threads=False)


def parquet_batches(files: Any, path: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The same, some rows at a time; an empty batch for a file without rows."""
    with _opened(files, path) as file:
        wanted = None if columns is None else list(columns)
        if file.metadata.num_rows == 0:
            schema = file.schema_arrow
            yield pa.RecordBatch.from_pylist([], schema if wanted is None else pa.schema([schema.field(name) for name in wanted]))
            return  # earlier versions of Arrow cannot iterate over no row groups
        yield from file.iter_batches(ROWS_AT_ONCE, columns=wanted, use_threads=False)


def parquet_rows(files: Any, path: str) -> int:
    """The number of rows. Raises: as `read_parquet`."""
    with _opened(files, path) as file:
        return int(file.metadata.num_rows)


def write_parquet(table: pa.Table, path: str) -> None:
    """Write one whole file."""
    with written_whole(path) as file:
        parquet.write_table(table, file, compression=COMPRESSION, row_group_size=ROWS_AT_ONCE)


@contextmanager
def _opened(files: Any, path: str) -> Iterator[parquet.ParquetFile]:
    with pa.OSFile(path, "rb") if is_local(files) else files.open(path, "rb") as file, parquet.ParquetFile(file) as opened:
        yield opened
