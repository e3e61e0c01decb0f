"""Shared fixtures only; builders and fakes live in tests/kit."""

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from shadowrelay.tracking import operator_log
from tests.kit.machines import Hub, machines, obstacle
from tests.kit.quick import share_texts
from tests.kit.secrets_shown import below, heard, listen, noted, shown
from tests.kit.warm import Warm

# How long an example takes says something about the machine only. A profile of Hypothesis that is in force stays the base of ours.
# `make test` tries fewer of them than `make test-all`, which deselects nothing.
ANY_MACHINE, BRIEF = "any machine", "brief"
BRIEF_EXAMPLES = 40
if not os.access(".", os.W_OK):  # Hypothesis keeps its examples in the checkout, and warns also where no profile has a place for them
    set_hypothesis_home_dir(Path(tempfile.gettempdir(), f"hypothesis-{os.getuid()}"))
settings.register_profile(ANY_MACHINE, settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(ANY_MACHINE)
settings.register_profile(BRIEF, settings.get_profile(ANY_MACHINE), max_examples=BRIEF_EXAMPLES)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr and settings.default is not None and settings.default.max_examples > BRIEF_EXAMPLES:
        settings.load_profile(BRIEF)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests stay to the end. Looked through with each collection of garbage, they took two fifths of the processor time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# One worker has the report's session of Spark, and begins with it; one the simulation, whose worlds inherit from one process. What waits
# for seconds comes next, one by one. Another worker begins at the end, with short tests, which only compute: else processors have little
# to do at first, and too much later. They meet among tests of loops, which are given one by one, so that the run ends evenly.
SPARK = "tests/sla/"
WITHOUT_JVM = tuple(f"{SPARK}test_{name}.py" for name in ("s3", "parse", "pieces", "page", "page_browser", "page_takeovers"))
LONG = ("tests/process/", "tests/crash/", "tests/console/test_every_request.py", "tests/pipeline/")
TURNS = (SPARK, "tests/simulation/", *WITHOUT_JVM, *LONG)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which `make test` begins them: `-n 5 --dist loadscope --no-loadscope-reorder`."""
    turns = {place: turn for turn, place in enumerate(TURNS)}
    items.sort(key=lambda item: max((turns[place] for place in TURNS if item.nodeid.startswith(place)), default=len(TURNS)))


class Scheduling(LoadScopeScheduling):
    """What a worker is given at once. (Groups by mark have no effect in pytest-xdist 3.8 with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPARK) and not nodeid.startswith(WITHOUT_JVM):
            return SPARK
        return nodeid if nodeid.startswith(LONG) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0] and node is self.nodes[-1]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


HERE = Path(__file__).parent


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Workers begin together: in a fresh checkout each would compile all tests anew, seven seconds of a processor. Two do it before."""
    if sys.dont_write_bytecode or (HERE / "unit" / "__pycache__").exists() or not os.access(HERE, os.W_OK):
        return
    rest = sorted({str(path.parent) for path in HERE.glob("*/test_*.py")} - {str(HERE / "unit")})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    compiling = [
        subprocess.Popen([*command, *part], cwd=HERE.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for part in ([str(HERE / "unit"), *rest[::2]], rest[1::2])
    ]
    for each in compiling:
        each.wait()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadscope" else None


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


# With `rich` installed, structlog's own one shows all local variables of each frame: seconds of a processor for one exception.
PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)


@pytest.fixture(autouse=True)
def _an_operator_log_that_tests_can_capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A logger that one test's configuration has cached would be deaf to the next test's `capture_logs`."""
    configure = structlog.configure

    def without_cache(**settings: Any) -> None:
        configure(**{**settings, "cache_logger_on_first_use": False})

    monkeypatch.setattr(structlog, "configure", without_cache)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], PLAIN])
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


@pytest.fixture(autouse=True)
def _begin_warm(request: pytest.FixtureRequest) -> None:
    """Where nearly every test starts nodes."""
    if request.node.nodeid.startswith(("tests/process/", "tests/crash/", "tests/interop/", "tests/isolation/")):
        request.getfixturevalue("warm_starts")


WITH_SECRETS = ("tests/admin/", "tests/console/", "tests/interop/", "tests/isolation/", "tests/process/", "tests/smtp/", "tests/tracking/")


@pytest.fixture(autouse=True)
def _no_secret_is_shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test is about, nothing that it has made say something may have said a secret: tests/kit/secrets_shown.py."""
    if not request.node.nodeid.startswith(WITH_SECRETS):
        yield
        return
    listen(monkeypatch)
    yield
    directory = request.node.funcargs.get("tmp_path") or request.node.funcargs.get("workplace")
    secrets, said = below(directory) if directory is not None else (set(), [])
    captured = [text for _, _, text in request.node._report_sections]
    assert [] == shown(secrets | noted, [*said, *heard, *captured])


@pytest.fixture
def quiet() -> None:
    """Nodes of this process say nothing. Several of them, or many messages, would say more than anybody reads."""
    structlog.reset_defaults()
    operator_log.configure("critical")


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Two machines that can be cut apart, where Linux lets us make them."""
    if reason := obstacle():
        pytest.skip(reason)
    with machines(["mx1.east.example", "mx1.west.example"]) as made:
        yield made
