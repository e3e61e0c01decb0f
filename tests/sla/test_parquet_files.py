"""Single Parquet files are read as they were written, and in one place, which keeps Arrow's threads away from Python's objects."""

import re

import fsspec
import pyarrow as pa
import pytest

from shadowrelay.sla.parquet_files import parquet_batches, parquet_rows, read_parquet, write_parquet
from shadowrelay.sla.storage import located
from tests.tidy.house import ROOT

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", "y", None]})


@pytest.mark.parametrize("store", ["", "memory://"])
def test_columns_rows_and_batches_are_those_that_were_written(tmp_path, store):
    place = f"{store}{tmp_path}/date=2026-01-01/ü.parquet"
    write_parquet(TABLE, place)
    files, path = located(place)

    assert TABLE == read_parquet(files, path)
    assert ["b"] == read_parquet(files, path, ("b",)).column_names
    assert 3 == parquet_rows(files, path)
    assert TABLE == pa.Table.from_batches(parquet_batches(files, path))


def test_a_file_without_rows_has_one_empty_batch_with_its_columns(tmp_path):
    write_parquet(TABLE.slice(0, 0), f"{tmp_path}/none.parquet")

    (batch,) = parquet_batches(*located(f"{tmp_path}/none.parquet"), ("b",))
    assert (0, ["b"]) == (batch.num_rows, batch.schema.names)


def test_what_is_missing_or_torn_is_an_error_that_its_readers_know(tmp_path):
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")

    with pytest.raises(FileNotFoundError):
        read_parquet(fsspec.filesystem("file"), f"{tmp_path}/none.parquet")
    with pytest.raises(pa.ArrowException):
        read_parquet(fsspec.filesystem("file"), f"{tmp_path}/torn.parquet")


def test_nothing_else_gives_a_file_of_python_to_arrows_threads():
    readers = re.compile(r"ParquetFile\(|read_table\(|read_metadata\(|dataset\.dataset\(|BufferReader\((?!_owned)")
    found = [path.name for path in (ROOT / "shadowrelay").rglob("*.py") if readers.search(path.read_text(encoding="utf-8"))]

    assert ["parquet_files.py"] == found
