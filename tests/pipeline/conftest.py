"""Whole nodes in virtual time; their disks are in memory where the machine has room for that, as in the simulation."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Each commit here is a real one with its sync, some forty thousand in all, and nothing here loses power."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as directory:
        yield Path(directory)
