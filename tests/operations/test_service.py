"""The systemd unit: systemd finds no fault in it, and a node works under its restrictions, which really restrict."""

import ast
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shadowrelay.cli.main import app
from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.model.routing import HostPort
from shadowrelay.node.connectors import GRACE_SECONDS
from tests.kit import private
from tests.kit.clients import submit
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.processes import whole_lines
from tests.kit.smtp_servers import ScriptedServer

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "shadowrelay/settings/shadowrelay.service"
EXPOSURE_MAX = 1.5
USER = "60123"
SYSTEM_PYTHON = Path(f"/usr/bin/python3.{sys.version_info.minor}")  # one that another user may run
SITE_PACKAGES = next((path for path in map(Path, sys.path) if path.name == "site-packages"), ROOT)
has_systemd = shutil.which("systemd-analyze") is not None
needs_systemd = pytest.mark.skipif(not has_systemd, reason="needs systemd-analyze: apt-get install systemd")


def reason_against_a_sandbox() -> str:
    """Empty if the restrictions can be tried here."""
    if not private.is_possible() or not has_systemd:
        return "needs root, mount namespaces and systemd-analyze"
    if not SYSTEM_PYTHON.exists():
        return f"needs {SYSTEM_PYTHON}, which any user may run"
    return "" if all(path.stat().st_mode & 0o001 for path in (ROOT, *ROOT.parents)) else f"{ROOT} is closed to other users"


needs_sandbox = pytest.mark.skipif(bool(reason_against_a_sandbox()), reason=reason_against_a_sandbox())


@needs_systemd
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "shadowrelay.service"
    text = UNIT.read_text().replace("/opt/shadowrelay/bin/shadowrelay", "/bin/true")
    assert text.count("\n#ReadWritePaths=/") == 1  # the line that shipping to a directory needs
    path.write_text(text.replace("\n#ReadWritePaths=/", "\nReadWritePaths=/"))
    (tmp_path / "shadowrelay.service.d").mkdir()
    shutil.copy(ROOT / "configs/systemd/credentials.conf", tmp_path / "shadowrelay.service.d")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False)

    assert ("", 0) == (done.stderr, done.returncode)


@needs_systemd
def test_systemd_finds_no_fault_in_the_units_of_a_machine_with_several_nodes(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        [
            "init",
            str(tmp_path),
            "--node",
            "a.example,here,192.0.2.1:25,2",
            "--node",
            "b.example,there,192.0.2.2",
            "--relay-from",
            "10.0.0.0/8",
        ],
    )
    assert 0 == done.exit_code, done.output
    template = tmp_path / "a.example" / "shadowrelay@.service"
    text = template.read_text().replace("/opt/shadowrelay/bin/shadowrelay", "/bin/true")
    (tmp_path / "shadowrelay@1.service").write_text(text)  # systemd 252 does not verify a template by itself
    (tmp_path / "shadowrelay@2.service").write_text(text)
    shutil.copy(template.with_name("shadowrelay.target"), tmp_path)
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "shadowrelay.target"), str(tmp_path / "shadowrelay@1.service")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ("", 0) == (found.stderr, found.returncode)
    assert {"/etc/shadowrelay/%i/node.toml"} == set(re.findall(r"(?m)^Exec\w+=/opt/.* (\S+)$", template.read_text()))


@needs_systemd
def test_what_a_broken_node_could_reach_is_little() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(UNIT)], capture_output=True, text=True, check=True
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)

    assert found is not None
    assert float(found[1]) <= EXPOSURE_MAX


def test_the_unit_names_commands_that_exist_and_waits_longer_than_a_drain() -> None:
    text = UNIT.read_text()
    stop = re.search(r"(?m)^TimeoutStopSec=(\d+)s$", text)
    assert stop is not None
    assert int(stop[1]) >= 2 * GRACE_SECONDS + 10
    assert ["check", "serve"] == re.findall(r"(?m)^ExecStart(?:Pre)?=/opt/shadowrelay/bin/shadowrelay (\w+) ", text)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shadowrelay-service-", dir="/var/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "state").mkdir()
        os.chown(path / "state", int(USER), int(USER))
        yield path


def sandboxed(state: Path, *command: str) -> list[str]:
    kit = ROOT / "tests/operations/sandbox.py"
    words = [str(SYSTEM_PYTHON), str(kit), "files", str(UNIT), USER, str(state), "--", *command]
    return private.private_command(words, {})


ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": f"{ROOT}:{SITE_PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1"}

PROBE = """
import ctypes, errno, mmap, os, socket, sys
def error(call):
    try:
        call()
        return "done"
    except OSError as found:
        return errno.errorcode[found.errno]
libc = ctypes.CDLL(None, use_errno=True)
def called(function, *words):  # numbers of system calls are those of one architecture
    if function(*words) < 0:
        raise OSError(ctypes.get_errno(), "")
low = socket.socket()
print({
    "state": error(lambda: open(sys.argv[1] + "/probe", "w").close()),
    "etc": error(lambda: open("/etc/probe", "w").close()),
    "root": str(os.listdir("/root")),
    "init": str(os.path.exists("/proc/1/cmdline") and os.getpid() != 1),
    "low port": error(lambda: low.bind(("127.0.0.9", int(sys.argv[2])))),
    "netlink": error(lambda: socket.socket(16, socket.SOCK_RAW)),
    "raw": error(lambda: socket.socket(2, socket.SOCK_RAW, 1)),
    "setuid": error(lambda: os.setuid(0)),
    "chown": error(lambda: os.chown(sys.argv[1], 0, 0)),
    "mount": error(lambda: called(libc.mount, b"x", b"/mnt", b"tmpfs", 0, None)),
    "ptrace": error(lambda: called(libc.ptrace, 0, 0, 0, 0)),
    "write and execute": error(lambda: mmap.mmap(-1, 4096, prot=7)),
})
"""


def free_low_port(host: str) -> int:
    """One that needs CAP_NET_BIND_SERVICE. Not simply 25: a mail server of this machine may have that on all its addresses."""
    for port in (25, *range(1023, 600, -1)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return port
    raise RuntimeError(f"no port below 1024 of {host} is free")


@needs_sandbox
def test_the_restrictions_restrict(place: Path) -> None:
    done = subprocess.run(
        sandboxed(place / "state", str(SYSTEM_PYTHON), "-c", PROBE, str(place / "state"), str(free_low_port("127.0.0.9"))),
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    expected = {
        "state": "done", "low port": "done", "root": "[]", "init": "False", "etc": "EROFS", "netlink": "EAFNOSUPPORT",
        **dict.fromkeys(("raw", "setuid", "chown", "mount", "ptrace", "write and execute"), "EPERM"),
    }  # fmt: skip
    assert expected == ast.literal_eval(done.stdout)


CONFIGURATION = """
[server]
name = "mx1.east.example"
site = "east"
data_directory = "data"

[transport]
shadow_redundancy_enabled = false

[[receive_connectors]]
name = "inbound"
listen = "{smtp}"
relay_from = ["127.0.0.0/8"]

[[routes]]
recipients = ["*"]
next_hop = "{sink}"

[tracking]
directory = "tracking"

[admin]
listen = "{admin}"
"""


LARGE = b"Subject: one\r\n\r\n" + (b"x" * 900 + b"\r\n") * 2_000  # over 1 MiB: content in a file


@needs_sandbox
@pytest.mark.slow
async def test_a_node_takes_and_delivers_mail_reloads_and_drains_under_the_restrictions(place: Path) -> None:
    sink = ScriptedServer()
    await sink.start()
    admin = HostPort("127.0.0.1", free_ports(1)[0])
    address = HostPort("127.0.0.8", free_low_port("127.0.0.8"))  # the user is not root
    state = place / "state"
    (state / "node.toml").write_text(CONFIGURATION.format(smtp=address, sink=f"127.0.0.1:{sink.port}", admin=admin))
    (state / "node.toml").chmod(0o644)  # whatever our umask is
    node = NodeProcess(Place("mx1.east.example", "east"), address, admin, state)
    command = sandboxed(state, str(SYSTEM_PYTHON), "-m", "shadowrelay", "serve", "--config", str(state / "node.toml"))
    with (place / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, cwd="/", env=ENVIRONMENT, start_new_session=True)
    try:

        async def answers() -> bool:
            assert process.returncode is None, (place / "log").read_text()
            return await node._answers()

        await until(answers)
        await submit(address, "b@y.example", content=LARGE)
        await until(lambda: sink.messages)
        first = private.children_of(process.pid)[0]
        assert int(USER) == Path(f"/proc/{first}").stat().st_uid
        os.kill(first, signal.SIGHUP)
        await until(lambda: "configuration.reloaded" in events_in(place / "log"))
        os.kill(first, signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await process.wait()
    finally:
        for first in private.children_of(process.pid):
            os.kill(first, signal.SIGKILL)
        await sink.stop()
        print((place / "log").read_text()[-3000:])  # pytest shows it when the test fails
    events = events_in(place / "log")

    assert {"node.started", "configuration.reloaded", "node.draining", "node.stopped"} <= set(events)
    assert [] == [event for event in events if event.endswith(("failed", "refused"))]
    assert list((state / "tracking").glob("MSGTRK*.LOG"))


def events_in(log: Path) -> list[str]:
    return [json.loads(line)["event"] for line in whole_lines(log) if line.startswith("{")]
