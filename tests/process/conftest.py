"""Processes that have imported everything when they begin."""

import pytest


@pytest.fixture(autouse=True)
def _begin_warm(warm_starts: None) -> None:
    pass
