"""What only observes hangs: who reads standard error, the file system of the tracking log, administrators. Mail goes on, SIGTERM ends."""

import asyncio
import fcntl
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowrelay.admin.token import read_token
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
            await until(lambda: any("tracking log hangs" in reason for reason in client.ready()["reasons"]))
        await submit(node.address, "b@here.example")

        node.signal(signal.SIGTERM)
        await until(lambda: not node.is_running)
        assert 0 == node.process.returncode
    finally:
        await node.kill()


async def test_administrators_who_do_not_read_their_answers_hold_up_nobody_and_sigterm_ends_the_node(tmp_path: Path) -> None:
    node = a_node_process(tmp_path / "a.example")
    await node.start()
    assert node.process is not None
    unread = []
    try:
        message_id = await submit(node.address, "b@here.example", content=b"Subject: large\r\n\r\n" + (b"x" * 70 + b"\r\n") * 200_000)
        token = read_token(node.directory / "token")
        asked = (
            f"GET /api/v1/messages/{message_id}/content HTTP/1.1\r\nHost: {node.admin}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        for _ in range(12):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((node.admin.host, node.admin.port))
            client.sendall(asked)
            unread.append(client)
        for client in unread:
            await asyncio.to_thread(client.recv, 20)  # it is being answered

        with api_of(node) as api:
            assert "running" == api.node()["state"]
        await submit(node.address, "b@here.example")

        node.signal(signal.SIGTERM)
        await until(lambda: not node.is_running)
        assert 0 == node.process.returncode
        assert "Traceback" not in (node.directory / "node.log").read_text()
    finally:
        await node.kill()
        for client in unread:
            client.close()
