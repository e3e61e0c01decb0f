"""Shared fixtures only; builders and fakes live in tests/kit."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.kit.quick import share_texts
from tests.kit.warm import Warm

# How long an example takes says something about the machine only. A profile of Hypothesis that is in force stays the base of ours.
ANY_MACHINE = "any machine"
settings.register_profile(ANY_MACHINE, settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(ANY_MACHINE)


# One worker has the report's session of Spark. What takes seconds a test comes next, one by one; files of short tests end the run evenly.
LONG = ("tests/process/", "tests/crash/", "tests/simulation/", "tests/pipeline/")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `make test`: `--dist loadgroup --no-loadscope-reorder`."""
    for item in items:
        path, uses_spark = item.nodeid.partition("::")[0], "spark" in getattr(item, "fixturenames", ())
        if uses_spark or not path.startswith(LONG):
            item.add_marker(pytest.mark.xdist_group("spark" if uses_spark else path))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    if "spark" in getattr(item, "fixturenames", ()):
        return -1
    return next((turn for turn, place in enumerate(LONG) if item.nodeid.startswith(place)), len(LONG))


share_texts()


@pytest.fixture(autouse=True)
def _no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own SHADOWRELAY_… variables must not change what a test sees, nor a proxy stand between a node and its test."""
    for variable in [name for name in os.environ if name.startswith("SHADOWRELAY_")]:
        monkeypatch.delenv(variable)
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, ",".join(filter(None, [os.environ.get(variable), "127.0.0.1", "localhost"])))


@pytest.fixture(autouse=True)
def _no_terminal_but_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI services force colours upon programs, which then stand between the words of what they say; a narrow window breaks its lines."""
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    for constant in ("FORCE_TERMINAL", "MAX_WIDTH"):  # read when it is imported
        monkeypatch.setattr(f"typer.rich_utils.{constant}", None)


@pytest.fixture(autouse=True)
def _an_operator_log_that_tests_can_capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A logger that one test's configuration has cached would be deaf to the next test's `capture_logs`."""
    configure = structlog.configure

    def without_cache(**settings: Any) -> None:
        configure(**{**settings, "cache_logger_on_first_use": False})

    monkeypatch.setattr(structlog, "configure", without_cache)
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def _warm() -> Iterator[Warm]:
    warm = Warm()
    yield warm
    warm.close()


@pytest.fixture
def warm_starts(_warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m shadowrelay` costs a tenth: tests/kit/warm.py."""
    monkeypatch.setattr("subprocess._fork_exec", _warm)
