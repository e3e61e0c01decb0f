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

pytestmark = pytest.mark.slow

PORTS = ("2525", "2526", "2600", "8025", "8026")  # of the text; others may be in use here
PROGRAM = f'#!/bin/sh\nexec "{sys.executable}" -m shadowrelay "$@"\n'  # found first, so that this checkout is tried
SECONDS_MAX = 100
# What a person does by looking again a little later
WAIT_FOR_PEER = (
    "until shadowrelay peers list --json --config try/mx1.east.example/node.toml | grep -q '\"is_reachable\": true'; do sleep 0.5; done"
)
WAIT_FOR_TAKEOVER = (
    "until shadowrelay queue list --json --config try/mx1.west.example/node.toml | grep -q '127.0.0.1:{hop}'; do sleep 0.5; done"
)


def blocks() -> list[str]:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.partition("## Two nodes in ten minutes\n")[2].partition("\n### ")[0]
    return re.findall(r"(?s)```\n(.*?)```", section)[1:]  # without the first, which sets a checkout up


def test_the_blocks_work_as_they_are_written(tmp_path: Path) -> None:
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    make, start, send, destroy = blocks()
    renumber = f"sed -i 's/:8025/:{ports['8025']}/; s/:8026/:{ports['8026']}/' try/*/node.toml\n"
    script = "".join(
        (
            make.replace("shadowrelay check", f"{renumber}shadowrelay check"),
            start.replace("sleep 5", WAIT_FOR_PEER),
            "echo AFTER SENDING\n",
            send,
            "echo AFTER DESTROYING\n",
            destroy.replace("sleep 10", WAIT_FOR_TAKEOVER.format(hop=ports["2600"])),
        )
    )
    for number in PORTS[:3]:
        script = script.replace(number, ports[number])
    (tmp_path / "shadowrelay").write_text(PROGRAM)
    (tmp_path / "shadowrelay").chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said_path = tmp_path / "said.txt"
    with said_path.open("w") as output:
        shell = subprocess.Popen(["bash", "-eu", "-c", script], cwd=tmp_path, env=environment, stdout=output, start_new_session=True)
        try:
            code = shell.wait(SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    said, _, rest = said_path.read_text().partition("AFTER SENDING\n")
    sent, _, destroyed = rest.partition("AFTER DESTROYING\n")

    assert 0 == code, said_path.read_text()
    assert "is valid, 0 warnings" in said
    assert re.search(r"Shadow\\\S+ .* 1 ", sent)
    assert "you@example.org" in destroyed
