"""A directory that Postfix's user may enter, and the reason where there is no Postfix."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import postfix


@pytest.fixture(autouse=True)
def _needs_postfix() -> None:
    if not postfix.is_available():
        pytest.skip("needs root and Debian's Postfix: apt-get install postfix")


@pytest.fixture
def workplace() -> Iterator[Path]:
    """Not tmp_path: pytest closes its own directories to others again, also while another run uses them. What is made in it others
    may read, whatever our umask is."""
    before = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="shadowrelay-interop-", dir="/var/tmp") as name:
            Path(name).chmod(0o755)
            yield Path(name)
    finally:
        os.umask(before)
