"""Whole nodes in virtual time; their disks are in memory where the machine has room for that, as in the simulation."""

import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.memory_disk import place_in_memory


@pytest.fixture
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """What nodes say in their operator logs: `event`, `log_level`, and what they tell."""
    with capture_logs() as lines:
        yield lines


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Each commit here is a real one with its sync, some forty thousand in all, and nothing here loses power."""
    with tempfile.TemporaryDirectory(dir=place_in_memory()) as directory:
        yield Path(directory)
