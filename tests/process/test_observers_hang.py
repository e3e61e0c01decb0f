"""What only observes hangs: whoever reads standard error, the file system of the tracking log. Mail goes on, and SIGTERM ends the node."""

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.clients import submit
from tests.kit.clock import until
from tests.kit.processes import a_node_process, api_of, figure, waiting_count

# Calls for files of the tracking log do not return while there is a file "hangs" in the node's directory.
HUNG_TRACKING = """
import os, pathlib, sys, time
sys.argv[0] = "shadowrelay"
from shadowrelay.cli.main import app
hangs = pathlib.Path({hangs!r})

def hanging(call):
    def called(which, *others, **named):
        name = os.readlink(f"/proc/self/fd/{{which}}") if isinstance(which, int) else str(which)
        while "/tracking" in name and hangs.exists():
            time.sleep(0.01)
        return call(which, *others, **named)
    return called

for name in {calls!r}:
    setattr(os, name, hanging(getattr(os, name)))
app()
"""


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[Path]:
    """A pipe that takes one page, which nobody reads."""
    path = tmp_path / "unread"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 4096)
    yield path
    os.close(reading)


async def test_a_node_whose_standard_error_nobody_reads_takes_mail_and_ends_with_sigterm(tmp_path: Path, unread: Path) -> None:
    node = a_node_process(tmp_path / "a.example")
    (node.directory / "node.log").symlink_to(unread)
    await node.start()
    assert node.process is not None
    try:
        while not figure(node, "log_hung_seconds"):
            await submit(node.address, "b@here.example")
        before = waiting_count(node)
        await submit(node.address, "b@here.example")
        assert waiting_count(node) > before

        node.signal(signal.SIGTERM)
        await until(lambda: not node.is_running)
        assert 0 == node.process.returncode
    finally:
        await node.kill()


@pytest.mark.parametrize("calls", [pytest.param(("fdatasync",), marks=pytest.mark.heavy), ("write", "open", "statvfs")])
async def test_a_node_whose_tracking_log_hangs_takes_mail_says_so_and_ends_with_sigterm(tmp_path: Path, calls: tuple[str, ...]) -> None:
    node = a_node_process(tmp_path / "a.example")
    hangs = node.directory / "hangs"
    node.program = ("-c", HUNG_TRACKING.format(hangs=str(hangs), calls=calls), "serve")
    await node.start()
    assert node.process is not None
    try:
        hangs.touch()  # before there is a file
        while not figure(node, "tracking_hung_seconds"):
            await submit(node.address, "b@here.example")
        with api_of(node) as client:
            reasons = client.ready()["reasons"]
        assert any("tracking log hangs" in reason for reason in reasons)
        await submit(node.address, "b@here.example")

        node.signal(signal.SIGTERM)
        await until(lambda: not node.is_running)
        assert 0 == node.process.returncode
    finally:
        await node.kill()
