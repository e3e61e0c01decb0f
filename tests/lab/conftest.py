"""A lab of its own for a test in containers: down before, down after."""

from collections.abc import Iterator

import pytest

from shadowrelay.lab.compose import Lab
from tests.lab.docker import lab_or_skip


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = lab_or_skip()
    made.down()
    try:
        yield made
    finally:
        made.down()
