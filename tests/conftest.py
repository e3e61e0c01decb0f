"""Shared fixtures only; builders and fakes live in tests/kit."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine only. A profile of Hypothesis that is in force stays the base of ours.
ANY_MACHINE = "any machine"
settings.register_profile(ANY_MACHINE, settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(ANY_MACHINE)


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own SHADOWRELAY_… variables must not change what a test sees."""
    for variable in [name for name in os.environ if name.startswith("SHADOWRELAY_")]:
        monkeypatch.delenv(variable)


@pytest.fixture(autouse=True)
def _an_operator_log_that_tests_can_capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A logger that one test's configuration has cached would be deaf to the next test's `capture_logs`."""
    configure = structlog.configure

    def without_cache(**settings: Any) -> None:
        configure(**{**settings, "cache_logger_on_first_use": False})

    monkeypatch.setattr(structlog, "configure", without_cache)
    yield
    structlog.reset_defaults()
