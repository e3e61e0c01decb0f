"""A directory of somebody else, for tests that root may run."""

import errno
import tempfile
from pathlib import Path
from typing import Any

import pytest


def a_sealed_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made here; this user can make nothing in it. (Root can everywhere.)"""
    directory.mkdir()
    real = tempfile.TemporaryFile

    def refused(dir: Path) -> Any:
        if dir == directory:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    return directory
