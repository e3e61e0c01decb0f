"""Shared fixtures only; builders and fakes live in tests/kit."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own SHADOWRELAY_… variables must not change what a test sees."""
    for variable in [name for name in os.environ if name.startswith("SHADOWRELAY_")]:
        monkeypatch.delenv(variable)
