"""The sender of the lab's mail (`lab/mta/inject.py`) and who writes down what it sent, without containers."""

import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shadowrelay.lab.mail import Injection
from shadowrelay.lab.state import State
from shadowrelay.signals import ended_in_order
from tests.tidy.house import ROOT

INJECT = ROOT / "lab" / "mta" / "inject.py"


class PlayedPostfix(socketserver.StreamRequestHandler):
    """Takes everything, and says under which queue id."""

    taken_count = 0

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        number, is_content = 0, False
        for line in self.rfile:
            if is_content:
                if line == b".\r\n":
                    is_content, number = False, number + 1
                    PlayedPostfix.taken_count = number
                    self.wfile.write(b"250 2.0.0 Ok: queued as Q%d\r\n" % number)
            elif line.upper().startswith(b"DATA"):
                is_content = True
                self.wfile.write(b"354 go on\r\n")
            else:
                self.wfile.write(b"250 Ok\r\n")


@pytest.fixture
def port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), PlayedPostfix) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@contextmanager
def injecting(directory: Path, port: int, count: int, rate: float) -> Iterator[Injection]:
    """As `Mail.sending` does it, without Docker."""
    program = directory / "inject.py"
    program.write_text(INJECT.read_text(encoding="utf-8").replace('"127.0.0.1", 25', f'"127.0.0.1", {port}'), encoding="utf-8")
    command = [sys.executable, str(program), "b", str(count), str(rate), "1000", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        injection = Injection(process, State(directory), count)
        yield injection
        injection.stop()


@pytest.mark.slow
def test_everything_that_was_sent_is_written_down(tmp_path: Path, port: int) -> None:
    with injecting(tmp_path, port, 20, 1000) as injection:
        sending = injection.wait()

    assert (20, 0) == (sending.accepted, sending.refused)
    assert [f"Q{number}" for number in range(1, 21)] == [json.loads(line)["queue_id"] for line in State(tmp_path).injected_lines()]


@pytest.mark.slow
def test_an_interrupted_sending_ends_soon_and_what_it_gave_is_known(tmp_path: Path, port: int) -> None:
    with injecting(tmp_path, port, 10_000, 50) as injection:
        for one in injection:
            if one.number == 3:
                break
        PlayedPostfix.taken_count = 0
        while PlayedPostfix.taken_count < 10:  # it goes on sending, and nobody reads
            time.sleep(0.01)

    numbers = [json.loads(line)["number"] for line in State(tmp_path).injected_lines()]
    assert list(range(1, len(numbers) + 1)) == numbers
    assert 10 <= len(numbers) < 1000
    assert numbers == [one.number for one in injection.sent]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_told_to_end_ends_in_order_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    before, done = signal.getsignal(number), []

    def send() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        finally:
            done.append("written down")

    with pytest.raises(SystemExit) as ended, ended_in_order():
        send()

    assert (128 + number, ["written down"], before) == (ended.value.code, done, signal.getsignal(number))
