"""The file with what Spark, Java and Python say at length, while the command says one line. docs/spark.md.

It begins when a JVM starts or something fails, and is deleted when the process ends, unless it was named to somebody.
"""

import atexit
import logging
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import IO

from shadowrelay.model.printable import escaped

TAIL_BYTES = 20_000
LOGGERS = ("py4j", "pyspark", "SQLQueryContextLogger", "DataFrameQueryContextLogger")  # they would print pages on standard error


class Details:
    """Of this process. `is_verbose`: all goes to standard error, and there is no file."""

    def __init__(self) -> None:
        self.is_verbose = False
        self._path: Path | None = None
        self._is_named = False

    def output(self) -> IO[bytes] | None:
        """Where a JVM shall print, on both streams: it uses either for what keeps it from starting. None: where this process does."""
        return None if self.is_verbose else self._opened()

    def said(self) -> str:
        """The end of what stands there."""
        if self._path is None:
            return ""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
        return ""

    def add(self, exc: BaseException) -> None:
        """The traceback."""
        text = "".join(traceback.format_exception(exc))
        if self.is_verbose:
            sys.stderr.write("".join(f"{escaped(line)}\n" for line in text.rstrip("\n").split("\n")))  # it quotes lines of logs
            return
        with suppress(OSError), self._opened() as file:
            file.write(text.encode("utf-8", "replace"))

    def place(self) -> str:
        """Ends a sentence with the name of the file, which is kept from now on; empty if there is none."""
        if self._path is None or self.is_verbose:
            return ""
        self._is_named = True
        return f" (more in {self._path})"

    def _opened(self) -> IO[bytes]:
        if self._path is None:
            descriptor, name = tempfile.mkstemp(prefix="shadowrelay-spark-", suffix=".log")
            os.close(descriptor)
            self._path = Path(name)
            handler = logging.FileHandler(name)
            for each in LOGGERS:
                logging.getLogger(each).addHandler(handler)
                logging.getLogger(each).propagate = False
            if not logging.root.handlers:  # Py4J logs a connection that breaks, as when a JVM ends first, on the root itself
                logging.root.addHandler(handler)
            atexit.register(self._delete)
        return self._path.open("ab")

    def _delete(self) -> None:
        if self._path is not None and not self._is_named:
            self._path.unlink(missing_ok=True)


DETAILS = Details()
