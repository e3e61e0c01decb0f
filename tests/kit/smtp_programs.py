"""Debian's smtp-sink and smtp-source (package postfix): the receiving server and the clients of interop tests and benchmarks."""

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.kit.clock import PATIENCE_SECONDS

SINK, SOURCE = Path("/usr/sbin/smtp-sink"), Path("/usr/sbin/smtp-source")
BACKLOG = "1024"
_MESSAGE_ID = re.compile(rb"^Message-Id: (\S+)", re.MULTILINE | re.IGNORECASE)


def are_available() -> bool:
    """Both programs are there."""
    return SINK.exists() and SOURCE.exists()


def greets(port: int, is_running: Callable[[], bool] = lambda: True, codes: tuple[bytes, ...] = (b"220",)) -> bool:
    """Wait until the server on this port of 127.0.0.1 says one of these. False: it does not run any more, or is silent for too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and is_running():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            if connection.recv(3) in codes:
                return True
        time.sleep(0.02)
    return False


class SmtpSink:
    """A receiving server on 127.0.0.1. `options` as its manual page has them; `-M n` makes it exit with the n-th message,
    which therefore never gets its reply."""

    def __init__(self, port: int, *options: str) -> None:
        user = ["-u", "postfix"] if os.geteuid() == 0 else []  # it refuses to run as root
        command = [str(SINK), "-4", *user, *options, f"127.0.0.1:{port}", BACKLOG]
        self.port = port
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def wait_until_it_listens(self) -> None:
        """Raises: RuntimeError if it does not."""
        if not greets(self.port, lambda: self.process.poll() is None, (b"220", b"421", b"450", b"500")):  # it may refuse connections
            raise RuntimeError(f"smtp-sink does not listen: {self.stop()}")

    def stop(self) -> str:
        """End it; what it printed."""
        self.process.kill()
        output, _ = self.process.communicate()
        return output.decode(errors="replace")


def dumped_message_ids(directory: Path) -> list[str]:
    """Message-IDs of what a sink with `-d <directory>/…` took, in no order; a repeated one arrived more than once."""
    found = [_MESSAGE_ID.search(path.read_bytes()) for path in directory.iterdir()]
    return [match[1].decode() for match in found if match is not None]


@contextlib.contextmanager
def running_sink(port: int, *options: str) -> Iterator[SmtpSink]:
    """Start one, and stop it whatever happens."""
    sink = SmtpSink(port, *options)
    try:
        sink.wait_until_it_listens()
        yield sink
    finally:
        sink.stop()


def source_command(port: int, *, messages: int, sessions: int, size: int, recipient: str = "user@corp.example") -> list[str]:
    """smtp-source: `messages` of `size` octets over `sessions` kept sessions. It exits with 0 when each got its 250."""
    options: Sequence[tuple[str, object]] = (
        ("-s", sessions), ("-m", messages), ("-l", size), ("-f", "sender@client.example"), ("-t", recipient),
    )  # fmt: skip
    return [str(SOURCE), "-4", "-d", *(str(word) for option in options for word in option), f"127.0.0.1:{port}"]
