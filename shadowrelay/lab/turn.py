"""One at a time: a command that changes the lab locks a file, and another one is refused meanwhile. Who only looks needs no lock."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shadowrelay.lab.places import LabError

BUSY = "another command is at work in this lab: {who}; wait until it has ended, or end it"


class Turn:
    """The lock of one file. It goes with the process that holds it, however that ends. Not for several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._depth = 0

    @contextlib.contextmanager
    def taken(self, what: str, *, is_shared: bool = False) -> Iterator[None]:
        """While the block runs. A command that is made of others takes it again. Raises: LabError, naming who has it."""
        with contextlib.nullcontext() if self._depth else self._locked(what, is_shared):
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    @contextlib.contextmanager
    def _locked(self, what: str, is_shared: bool) -> Iterator[None]:
        try:
            self._path.parent.mkdir(exist_ok=True)
            file = self._path.open("a+", encoding="utf-8")
        except OSError as error:
            raise LabError(f"{self._path} cannot be written ({error.strerror}): make {self._path.parent} yours, or remove it") from error
        with file:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise LabError(BUSY.format(who=file.read().strip() or "one that has just begun")) from error
            file.truncate(0)
            file.write(f"shadowrelay lab {what} (process {os.getpid()})\n")
            file.flush()
            yield
