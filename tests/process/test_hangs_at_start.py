"""A disk that hangs while a node starts: what only observes does not keep it from starting, the rest is named, and SIGTERM ends it."""

import os
import signal
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess
from tests.kit.clients import submit
from tests.kit.clock import until
from tests.kit.processes import a_node_process, api_of, figure, operator_events, waiting_count

# Calls for files below a directory do not return while there is a file "hangs" beside it.
PROGRAM = """
import os, pathlib, sys, time
sys.argv[0] = "shadowrelay"
from shadowrelay.node import node, process
from shadowrelay.cli import main
main.START_SECONDS = node.START_SECONDS = process.START_SECONDS = 1.0
main.LOOK_SECONDS = 0.5
hangs = pathlib.Path({hangs!r})

def hanging(call):
    def called(which, *others, **named):
        name = os.readlink(f"/proc/self/fd/{{which}}") if isinstance(which, int) else str(which)
        while {part!r} in name and hangs.exists():
            time.sleep(0.01)
        return call(which, *others, **named)
    return called

for name in ("mkdir", "open", "access", "stat", "lstat", "listdir", "scandir", "write", "statvfs"):
    setattr(os, name, hanging(getattr(os, name)))
main.app()
"""
TLS = '[tls]\ncertificate = "fifo"\nkey = "fifo"\n'
SHIPPING = '[shipping]\ntarget = "file://{}"\n'


def a_hanging_node(directory: Path, part: str, tables: str = "") -> tuple[NodeProcess, Path]:
    node = a_node_process(directory / "a.example", tables=tables)
    hangs = node.directory / "hangs"
    hangs.touch()
    os.mkfifo(node.directory / "fifo")  # a file that nobody writes
    node.program = ("-c", PROGRAM.format(hangs=str(hangs), part=part), "serve")
    return node, hangs


def text_of(node: NodeProcess) -> str:
    return (node.directory / "node.log").read_text()


@pytest.mark.parametrize("is_shipped", [pytest.param(False, marks=pytest.mark.heavy), True])
async def test_a_node_whose_tracking_log_hangs_at_its_start_starts_and_writes_the_rows_later(tmp_path: Path, is_shipped: bool) -> None:
    node, hangs = a_hanging_node(tmp_path, "/tracking", SHIPPING.format(tmp_path / "evidence") if is_shipped else "")
    await node.start()
    assert node.process is not None
    try:
        await until(lambda: "the rights of files were not looked at" in text_of(node))
        await until(lambda: is_shipped is bool(operator_events(node, "shipping.off")))
        before = waiting_count(node)
        await submit(node.address, "b@here.example")
        assert waiting_count(node) > before
        with api_of(node) as client:
            await until(lambda: any("tracking log hangs" in reason for reason in client.ready()["reasons"]))

        hangs.unlink()

        await until(lambda: not figure(node, "tracking_hung_seconds"))
        await until(lambda: any("b@here.example" in path.read_text() for path in (node.directory / "tracking").glob("MSGTRK*")))
        assert "Traceback" not in text_of(node)
    finally:
        node.signal(signal.SIGTERM)
        await until(lambda: not node.is_running)
    assert 0 == node.process.returncode


@pytest.mark.parametrize(("part", "what"), [("/data", "the queue database"), ("/token", "the files of the tokens")])
async def test_a_node_that_hangs_within_its_start_says_where_and_ends_with_sigterm(tmp_path: Path, part: str, what: str) -> None:
    node, _ = a_hanging_node(tmp_path, part)
    await node.launch()
    assert node.process is not None
    try:
        await until(lambda: bool(operator_events(node, "node.start_hangs")))
        assert what in operator_events(node, "node.start_hangs")[0]["waits_for"]

        node.signal(signal.SIGTERM)
        await until(lambda: not node.is_running)
        assert 0 == node.process.returncode
        assert operator_events(node, "node.start_given_up")
    finally:
        await node.kill()


@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_node_whose_certificate_hangs_does_not_start_and_says_why(tmp_path: Path, is_asked: bool) -> None:
    node, _ = a_hanging_node(tmp_path, "/nothing", TLS)
    if is_asked:  # within a time that does not end by itself
        assert node.program is not None
        node.program = ("-c", node.program[1].replace("START_SECONDS = 1.0", "START_SECONDS = 1000.0"), "serve")
    await node.launch()
    assert node.process is not None
    try:
        if is_asked:
            await until(lambda: os.path.exists(f"/proc/{node.process.pid}/task") and len(os.listdir(f"/proc/{node.process.pid}/task")) > 1)
            node.signal(signal.SIGTERM)
        await until(lambda: not node.is_running)
        assert (-signal.SIGTERM if is_asked else 1) == node.process.returncode
        assert is_asked or "node.toml or a file that it names under [tls] hangs: no answer for 1 s" in text_of(node)
    finally:
        await node.kill()
