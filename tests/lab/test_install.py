"""docs/setup.md "Install": a package and a wheel, each put on a machine that has neither program nor Python, used, upgraded, removed.

Each runs in a container of its own: two nodes, a message, a destroyed disk, a takeover; then a newer version opens the queue that is there.
"""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.docker import lab_or_skip
from tests.tidy.house import ROOT

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

NEWER = "99.0.0"
EAST, WEST = "try/mx1.east.example/node.toml", "try/mx1.west.example/node.toml"
INIT = (
    "shadowrelay init try --node mx1.east.example,east,127.0.0.1:2525 --node mx1.west.example,west,127.0.0.1:2526"
    " --accept corp.example --next-hop 127.0.0.1:2600"
)
SEND = (
    "python3 -c 'import smtplib\n"
    'smtplib.SMTP("127.0.0.1", 2525).sendmail("a@example.org", "b@corp.example", "Subject: x\\r\\n\\r\\nHello\\r\\n")'
    "'"
)
DEB = f"""FROM debian:bookworm-slim
COPY *.deb /dist/
RUN apt-get update && apt-get install -y --no-install-recommends $(ls /dist/*.deb | grep -v {NEWER})
"""
WHEEL = f"""FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
COPY base.txt *.whl /dist/
RUN python3 -m venv /opt/shadowrelay
RUN /opt/shadowrelay/bin/pip install --require-hashes --requirement /dist/base.txt
RUN /opt/shadowrelay/bin/pip install --no-deps $(ls /dist/*.whl | grep -v {NEWER})
RUN useradd --system --home-dir /var/lib/shadowrelay --create-home --shell /usr/sbin/nologin shadowrelay
ENV PATH=/opt/shadowrelay/bin:$PATH
"""


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Package and wheel of this checkout, and both once more as a newer version."""
    lab_or_skip()
    if not Path("/usr/bin/python3").exists() or shutil.which("dpkg-deb") is None:
        pytest.skip("packages are built on Debian only")
    place = tmp_path_factory.mktemp("dist")
    for newer in (False, True):
        source = place / f"source-{newer}"
        source.mkdir()
        for name in ("shadowrelay", "packaging", "requirements", "configs", "docs"):
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
            shutil.copy(ROOT / name, source)
        if newer:
            version = source / "shadowrelay/__init__.py"
            version.write_text(re.sub(r'(?<=__version__ = ")[^"]+', NEWER, version.read_text()))
        (source / ".venv").symlink_to(ROOT / ".venv")
        run(source / "packaging/build.sh")
        for built in (source / "dist").iterdir():
            shutil.copy(built, place)
    shutil.copy(ROOT / "requirements/base.txt", place)
    return place


class Container:
    """A container without a network, in which commands run as root."""

    def __init__(self, dist: Path, dockerfile: str) -> None:
        self.is_package = dockerfile == DEB
        self.image = run("docker", "build", "--quiet", "--file", "-", dist, input=dockerfile).strip()
        start = ("docker", "run", "--detach", "--network", "none", "--volume", f"{dist}:/dist:ro", "--workdir", "/var/lib/shadowrelay")
        self.container = run(*start, self.image, "sleep", "900").strip()

    def __call__(self, command: str, *options: str) -> str:
        return run("docker", "exec", *options, self.container, "bash", "-ec", command)

    def as_node(self, command: str, *options: str) -> str:
        """As the user of the node."""
        return self(f"exec setpriv --reuid shadowrelay --regid shadowrelay --clear-groups bash -ec {quoted(command)}", *options)

    def serve(self, config: str) -> None:
        self.as_node(f"exec shadowrelay serve --config {config} 2>> serve.log & echo $! > {config}.pid; wait", "--detach")

    def until(self, command: str, pattern: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not re.search(pattern, said := self.as_node(f"{command} || true")):
            assert time.monotonic() < deadline, f"{command}: {said}\n{self('cat serve.log')}"
            time.sleep(0.5)

    def close(self) -> None:
        run("docker", "rm", "--force", self.container)
        run("docker", "rmi", "--force", self.image)


def quoted(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"


@pytest.fixture(params=[DEB, WHEEL], ids=["deb", "wheel"])
def machine(request: pytest.FixtureRequest, dist: Path) -> Iterator[Container]:
    made = Container(dist, request.param)
    try:
        yield made
    finally:
        made.close()


def test_it_is_installed_used_upgraded_and_removed(machine: Container) -> None:
    if machine.is_package:
        machine("ls /usr/share/doc/shadowrelay/docs/operations.md /usr/share/doc/shadowrelay/examples/prometheus/alerts.yml")
        machine("ls /usr/share/man/man8/shadowrelay.8.gz /usr/share/bash-completion/completions/shadowrelay /usr/share/shadowrelay/*.whl")
        assert "localhost" not in machine("dpkg-query --show --showformat '${Maintainer}' shadowrelay")
    machine.as_node(INIT)
    machine.as_node(f"shadowrelay check --config {EAST}")
    machine.serve(EAST)
    machine.serve(WEST)
    machine.until(f"shadowrelay peers list --json --config {EAST}", '"is_reachable": true')

    # accepted by the first, which is destroyed; the second takes the message over
    machine.as_node(SEND)
    machine.until(f"shadowrelay queue list --config {WEST}", r"Shadow\\\S+ .* 1 ")
    machine.as_node(f"kill -KILL $(cat {EAST}.pid); rm -r try/mx1.east.example/data")
    machine.serve(EAST)
    machine.until(f"shadowrelay messages list --config {WEST}", "a@example.org")

    # the newer version goes on with the queue of the older one
    for config in (EAST, WEST):
        machine.as_node(f"kill $(cat {config}.pid); while kill -0 $(cat {config}.pid) 2>/dev/null; do sleep 0.2; done")
    if machine.is_package:
        machine(f"apt-get install --yes /dist/shadowrelay_{NEWER}_*.deb")
    else:
        machine(f"pip install --no-index --no-deps /dist/shadowrelay-{NEWER}-*.whl")
    assert NEWER in machine("shadowrelay --version")
    machine.serve(WEST)
    machine.until(f"shadowrelay messages list --config {WEST}", "a@example.org")

    # without the program the mail is still there
    machine.as_node(f"kill $(cat {WEST}.pid)")
    if machine.is_package:
        machine("echo evidence > /var/log/shadowrelay/MSGTRK1.LOG; echo key > /etc/shadowrelay/node.key")
        said = machine("apt-get purge --yes shadowrelay")
        assert "/etc/shadowrelay is deleted: configuration, tokens and the keys of this node (node.key )" in said
        assert "/var/log/shadowrelay is kept: its tracking log tells what became of each message" in said
        machine("test -s /var/log/shadowrelay/MSGTRK1.LOG")
        assert "/var/lib/shadowrelay is kept, because it may hold mail" in said
        assert "gone" == machine("ls /opt/shadowrelay /usr/bin/shadowrelay /etc/shadowrelay >/dev/null 2>&1 || echo gone").strip()
    else:
        machine("rm -r /opt/shadowrelay")
    machine("test -s try/mx1.west.example/data/queue.db")
