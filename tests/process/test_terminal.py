"""Nothing that a node, a peer or a stranger says reaches a terminal raw. docs/security.md"""

import os
import pty
import select
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from shadowrelay.cli import drain, status
from shadowrelay.cli.main import app
from shadowrelay.sla.details import Details
from tests.kit.hostile_node import HOSTILE, ID, RAW, hostile_node

COMMANDS = (
    "status", "drain --patience 1", "drain --no-wait", "undrain", "pressure",
    "queue list", "queue show NAME", "queue retry NAME", "queue suspend NAME", "queue resume NAME", "queue retry --all",
    "queue redirect --to NAME --patience 1",
    f"messages list --queue {ID}", "messages list", f"messages show {ID}", "messages show 0193a6a2", "messages find --to somebody",
    f"messages trace {ID}", "messages trace a@b", f"messages release {ID}", f"messages remove {ID}", f"messages suspend {ID}",
    f"messages resume {ID}", f"messages resubmit {ID}",
    "safety-net list", "safety-net show 1", "safety-net disable 1", "safety-net enable 1", "safety-net remove 1",
    "safety-net resubmit --from 2026-11-22T10:00Z --to 2026-11-22T11:00Z",
    "peers list", "peers forget NAME", "peers forget NAME --force", "clients list", "status --if-lost NAME", "queue list --machine",
    "messages list --machine",
)  # fmt: skip
AS_JSON = [f"{words} --json" for words in COMMANDS]
TERMINAL = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200", "LINES": "50"}


def words_of(command: str) -> list[str]:
    """Its arguments; NAME is what a hostile node calls its queue and its peer."""
    return [HOSTILE if word == "NAME" else word for word in command.split()]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(drain, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(status, "WAIT_SECONDS", 0.01)
    monkeypatch.setenv("SHADOWRELAY_ADMIN_TOKEN", "a-token-of-sixteen-or-more")


CASES = [(200, words) for words in (*COMMANDS, *AS_JSON)] + [(409, words) for words in COMMANDS]
CASES += [(code, words) for code in (400, 0) for words in ("status", "pressure", "drain", "messages find --to somebody")]


@pytest.mark.parametrize(("code", "command"), CASES)
def test_no_command_prints_what_a_node_says_raw(code, command):
    with hostile_node(code) as url:
        result = CliRunner().invoke(app, [*words_of(command), "--node", url])

    output = result.stdout + result.stderr
    assert output
    assert not RAW & set(output), output
    assert not any(line.startswith("shadowrelay: forged") for line in output.splitlines()) or code == 400


def at_a_terminal(*words: str, seconds: float = 60.0) -> str:
    """What a terminal shows of this command, in an ordinary process."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "shadowrelay", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | TERMINAL
    )
    os.close(theirs)
    seen, until = b"", time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    block = os.read(ours, 65536)
                except OSError:  # the other end is closed
                    break
                seen += block
        assert process.wait(10) is not None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
    return seen.decode("utf-8", "replace")


SHOWN = ("drain --patience 1", "pressure", "status", "messages list --json", f"messages export {ID} --output -", "peers forget mx1")


@pytest.mark.parametrize("command", SHOWN)
def test_a_terminal_gets_what_a_node_says_in_escapes(command):
    with hostile_node() as url:
        shown = at_a_terminal(*words_of(command), "--node", url)

    assert shown
    assert not RAW & set(shown), shown


def test_a_message_that_is_exported_to_a_pipe_is_the_same_octet_for_octet():
    with hostile_node() as url:
        command = [sys.executable, "-m", "shadowrelay", "messages", "export", ID, "--output", "-", "--node", url]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=240)

    assert done.stdout == f"Subject: {HOSTILE}\r\n\r\n{HOSTILE}\r\n".encode()


def test_a_traceback_that_was_asked_for_quotes_no_log_raw(capsys):
    details = Details()
    details.is_verbose = True

    details.add(RuntimeError(f"bad line: {HOSTILE}"))

    assert not RAW & set(capsys.readouterr().err)
