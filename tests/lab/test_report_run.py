"""What comes out of the container takes the place of an earlier report, and an interrupted one leaves no container."""

import io
import tarfile
from pathlib import Path
from typing import cast

import pytest

from shadowrelay.lab import sla_report
from shadowrelay.lab.engine import Engine
from shadowrelay.lab.state import State
from shadowrelay.lab.topology import LabError


class ReportEngine:
    """Makes `packed`, or is interrupted."""

    def __init__(self, packed: bytes = b"", interrupt: BaseException | None = None) -> None:
        self.packed, self.interrupt = packed, interrupt
        self.told: list[tuple[str, ...]] = []

    def project(self) -> str:
        return "lab"

    def compose(self, *arguments: str) -> bytes:
        self.told.append(arguments)
        if arguments[0] == "run" and self.interrupt is not None:
            raise self.interrupt
        return self.packed

    def docker(self, *arguments: str) -> bytes:
        self.told.append(arguments)
        return b""


def packed(**files: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"./{name.replace('__', '/').replace('_', '.')}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return stream.getvalue()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr(sla_report, "SHIPPED_SECONDS", 0.0)
    return State(tmp_path / ".lab")


def report(engine: ReportEngine, state: State) -> Path:
    return sla_report.report_in_container(cast("Engine", engine), state, lambda text: None)


def test_nothing_of_an_earlier_report_stays(state: State) -> None:
    report(ReportEngine(packed(report_html="one", tables__messages__old="1")), state)
    page = report(ReportEngine(packed(report_html="two", tables__messages__new="2")), state)

    assert "two" == page.read_text()
    assert {"report.html", "tables/messages/new"} == {
        str(path.relative_to(state.report)) for path in state.report.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), LabError("took too long")])
def test_a_report_that_is_broken_off_leaves_no_container_and_keeps_the_one_before(state: State, interrupt: BaseException) -> None:
    report(ReportEngine(packed(report_html="one")), state)
    engine = ReportEngine(interrupt=interrupt)
    with pytest.raises(type(interrupt)):
        report(engine, state)
    run = next(command for command in engine.told if command[0] == "run")

    assert ("rm", "--force", run[run.index("--name") + 1]) == engine.told[-1]
    assert "one" == (state.report / "report.html").read_text()
