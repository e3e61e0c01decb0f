"""Two sections of docs/operations.md do what they say when their blocks are pasted into a shell: "Two nodes in ten minutes", and "The
previous hop keeps the shadow"."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import free_ports
from shadowrelay.settings.cluster_files import _port_for_peers
from tests.tidy.house import ROOT

pytestmark = [pytest.mark.slow]

PORTS = ("2525", "2526", "2600", "8025", "8026")  # of the text; others may be in use here
PROGRAM = f'#!/bin/sh\nexec "{sys.executable}" -m shadowrelay "$@"\n'  # found first, so that this checkout is tried
SECONDS_MAX = 500  # below the bound of pytest
PART = "PART\n"


def blocks(heading: str) -> list[str]:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.partition(f"{heading}\n")[2].partition("\n### ")[0]
    return re.findall(r"(?s)```\n(.*?)```", section)


def pasted(directory: Path, parts: list[str]) -> list[str]:
    """What the shell says to each part. The ports are others, and so are those that `init` has written before the first `check`."""
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    renumber = f"sed -i 's/:8025/:{ports['8025']}/; s/:8026/:{ports['8026']}/' */*/node.toml\n"
    script = f"echo {PART}".join(parts).replace("shadowrelay check", f"{renumber}shadowrelay check", 1)
    for number in PORTS[:2]:  # of the peers' connectors, which `init` derives
        script = script.replace(f"1{number}", str(_port_for_peers(int(ports[number]), is_on_one_machine=True)))
    for number in PORTS[:3]:
        script = script.replace(number, ports[number])
    (directory / "shadowrelay").write_text(PROGRAM)
    (directory / "shadowrelay").chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said_path = directory / "said.txt"
    with said_path.open("w") as output:
        shell = subprocess.Popen(["bash", "-eu", "-c", script], cwd=directory, env=environment, stdout=output, start_new_session=True)
        try:
            code = shell.wait(SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert 0 == code, said_path.read_text()
    return said_path.read_text().split(PART)


def test_two_nodes_work_as_it_is_written(tmp_path: Path) -> None:
    _, make, start, *others = blocks("## Two nodes in ten minutes")  # without the first, which sets a checkout up
    said, sent, destroyed, told = pasted(tmp_path, [make + start, *others])

    assert "is valid, 0 warnings" in said
    assert re.search(r"Shadow\\\S+ .* 1 ", sent)
    assert "you@example.org" in destroyed
    assert re.search(r"Delivered by mx1\.west\.example after takeover from mx1\.east\.example, \d\d:\d\d:\d\d\n", told)
    assert "took over from mx1.east.example, which came back with another queue database" in told


@pytest.mark.heavy
def test_an_edge_that_keeps_the_shadow_works_as_it_is_written(tmp_path: Path) -> None:
    said, sent, told = pasted(tmp_path, blocks("### The previous hop keeps the shadow"))

    assert "is valid, 0 warnings" in said
    assert "New mail is redundant; no copies are made on edge.dmz.example, as" in said
    assert re.search(r"Shadow\\\S+ .* 1 .* hub\.corp\.example|Shadow\\hub\S* .* 1 ", sent)
    assert re.search(r"At hub\.corp\.example as [0-9a-f-]{36}: Delivered by hub\.corp\.example, \d\d:\d\d:\d\d\n", told)
    assert "took over from hub.corp.example, which came back with another queue database" in told
    assert "found it in its queue at its start" not in told  # it came by TRACK, with the time of the first hop
