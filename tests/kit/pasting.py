"""Blocks of a document, pasted into a shell as a reader would."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from shadowrelay.lab.cluster import free_ports
from shadowrelay.settings.cluster_files import _port_for_peers
from tests.kit.pages import OPERATORS
from tests.tidy.house import ROOT

PORTS = ("2525", "2526", "2600", "8025", "8026")  # of the text; others may be in use here
PROGRAM = f'#!/bin/sh\nexec "{sys.executable}" -m shadowrelay "$@"\n'  # found first, so that this checkout is tried
SECONDS_MAX = 500  # below the bound of pytest
PART = "PART\n"


def blocks(heading: str) -> list[str]:
    """Of a section of a page for operators."""
    section = OPERATORS.partition(f"\n{heading}\n")[2].partition("\n### ")[0]
    return re.findall(r"(?s)```\n(.*?)```", section)


def renumbered(script: str) -> str:
    """The ports are others, and so are those that `init` has written before the first `check`."""
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    renumber = f"sed -i 's/:8025/:{ports['8025']}/; s/:8026/:{ports['8026']}/' */*/node.toml\n"
    at = re.search(r"(?m)^(for file|shadowrelay check)", script)
    assert at is not None
    script = script[: at.start()] + renumber + script[at.start() :]
    for number in PORTS[:2]:  # of the peers' connectors, which `init` derives
        script = script.replace(f"1{number}", str(_port_for_peers(int(ports[number]), is_on_one_machine=True)))
    script = script.replace("status --wait 1m", "status --wait 4m")  # two starts on a busy machine
    for number in PORTS[:3]:
        script = script.replace(number, ports[number])
    return script


def pasted(directory: Path, parts: Sequence[str], *, prefix: Sequence[str] = (), more: Mapping[str, str] | None = None) -> list[str]:
    """What the shell says to each part. `prefix`: of the command, for a place of its own; `more` of the environment. In such a place the
    ports of the text are free."""
    script = f"echo {PART}".join(parts)
    script = script if prefix else renumbered(script)
    (directory / "shadowrelay").write_text(PROGRAM)
    (directory / "shadowrelay").chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said_path = directory / "said.txt"
    with said_path.open("w") as output:
        command = [*prefix, "bash", "-eu", "-c", script]
        shell = subprocess.Popen(
            command, cwd=directory, env=environment | dict(more or {}), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = shell.wait(SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert 0 == code, said_path.read_text()
    return said_path.read_text().split(PART)
