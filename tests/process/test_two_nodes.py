"""docs/operations.md "Two nodes in ten minutes" does what it says when its blocks are pasted into a shell."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import free_ports
from tests.tidy.house import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PORTS = ("2525", "2526", "2600", "8025", "8026")  # of the text; others may be in use here
PROGRAM = f'#!/bin/sh\nexec "{sys.executable}" -m shadowrelay "$@"\n'  # found first, so that this checkout is tried
SECONDS_MAX = 200


def blocks() -> list[str]:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.partition("## Two nodes in ten minutes\n")[2].partition("\n### ")[0]
    return re.findall(r"(?s)```\n(.*?)```", section)[1:]  # without the first, which sets a checkout up


def test_the_blocks_work_as_they_are_written(tmp_path: Path) -> None:
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    make, start, send, destroy, trace = blocks()
    renumber = f"sed -i 's/:8025/:{ports['8025']}/; s/:8026/:{ports['8026']}/' try/*/node.toml\n"
    script = "".join(
        (
            make.replace("shadowrelay check", f"{renumber}shadowrelay check"),
            start,
            "echo AFTER SENDING\n",
            send,
            "echo AFTER DESTROYING\n",
            destroy,
            "echo AFTER TAKEOVER\n",
            trace,
        )
    )
    for number in PORTS[:3]:
        script = script.replace(number, ports[number])
    (tmp_path / "shadowrelay").write_text(PROGRAM)
    (tmp_path / "shadowrelay").chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said_path = tmp_path / "said.txt"
    with said_path.open("w") as output:
        shell = subprocess.Popen(["bash", "-eu", "-c", script], cwd=tmp_path, env=environment, stdout=output, start_new_session=True)
        try:
            code = shell.wait(SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    said, _, rest = said_path.read_text().partition("AFTER SENDING\n")
    sent, _, rest = rest.partition("AFTER DESTROYING\n")
    destroyed, _, told = rest.partition("AFTER TAKEOVER\n")

    assert 0 == code, said_path.read_text()
    assert "is valid, 0 warnings" in said
    assert re.search(r"Shadow\\\S+ .* 1 ", sent)
    assert "you@example.org" in destroyed
    assert re.search(r"Delivered by mx1\.west\.example after takeover from mx1\.east\.example, \d\d:\d\d:\d\d\n", told)
    assert "took over from mx1.east.example, which came back with another queue database" in told
