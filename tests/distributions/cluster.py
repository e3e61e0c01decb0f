"""A cluster whose first node was made by an earlier version on Debian 12 and whose second is this checkout on Debian 13, in containers:
mail, a takeover, the upgrade of the first, and another authority. docs/setup.md "Where it runs".

    python -m tests.distributions.cluster                  needs a Docker engine, and a clone that has the earlier commit
    python -m tests.distributions.cluster --short          without the other authority: for continuous integration

Each step waits for a condition. What fails ends it with the logs of all nodes; in the end nothing is left but the two images.
"""

import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shadowrelay.signals import ended_in_order
from tests.distributions.image import base_image
from tests.distributions.run import checkout, docker
from tests.tidy.house import ROOT

EARLIER = "b89032a6"  # its certificates are refused by Python 3.13, and it knows nothing of that
FIRST, SECOND = "bookworm", "trixie"
EAST, WEST, STORE, CLIENT = "mx1.east.example", "mx1.west.example", "store.corp.example", "client.example"
NOT_TRIED = 75  # exit code: no network, no base image, or a clone without the commit
PATIENCE_SECONDS = 300.0  # on a busy machine
ONE_MACHINE = ("--env", "SHADOWRELAY_TRANSPORT__SHARED_FATE_IS_REDUNDANT=true")  # the earlier version does not know it
ANSWERED = (
    "init", "/cluster", "--node", f"{EAST},east,{EAST}:25", "--node", f"{WEST},west,{WEST}:25",
    "--accept", "corp.example", "--next-hop", f"{STORE}:2600",
)  # fmt: skip
NODE_IMAGE = """FROM {base}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null && python3 -m venv /opt/shadowrelay
COPY requirements /install/requirements
RUN /opt/shadowrelay/bin/pip install --quiet --require-hashes -r /install/requirements/base.txt -r /install/requirements/build.txt
COPY pyproject.toml README.md LICENSE /install/
COPY shadowrelay /install/shadowrelay
RUN /opt/shadowrelay/bin/pip install --quiet --no-build-isolation --no-deps /install
ENV PATH=/opt/shadowrelay/bin:$PATH
"""
SEND = """
import smtplib, sys
client = smtplib.SMTP(sys.argv[1], 25, timeout=60)
text = f"Subject: {sys.argv[2]}\\r\\nMessage-ID: <{sys.argv[2]}@example.org>\\r\\n\\r\\nHello\\r\\n"
client.sendmail("you@example.org", "somebody@corp.example", text)
"""


class Failed(Exception):
    """A step, and why."""


def ran(*words: str) -> str:
    """Output of a Docker command. Raises: Failed."""
    done = docker(*words)
    if done.returncode:
        raise Failed(f"docker {' '.join(words)[:160]}: {done.stdout[-800:]}{done.stderr[-800:]}")
    return done.stdout


def until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {PATIENCE_SECONDS:.0f} s")
        time.sleep(1)


class MixedCluster:
    """Containers and a network, named with `mark`; `files` is what `init` writes, `states` the places of the nodes."""

    def __init__(self, directory: Path, earlier: str, present: str) -> None:
        self.files, self.states = directory / "cluster", directory / "states"
        self.images = {"earlier": earlier, "present": present}
        self.mark = f"shadowrelay-mixed-{secrets.token_hex(3)}"
        self.sent = 0
        self.running: set[str] = set()

    def __enter__(self) -> "MixedCluster":
        self.files.mkdir()
        ran("network", "create", self.mark)
        # the store prints what it takes
        self._run(STORE, "present", "aiosmtpd", "--nosetuid", "--listen", "0.0.0.0:2600", options=("--env", "PYTHONUNBUFFERED=1"))
        self._run(CLIENT, "present", "sleep", "infinity")
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            docker("rm", "--force", f"{self.mark}-{name}")
        docker("network", "rm", self.mark)
        # what the containers wrote belongs to root
        docker("run", "--rm", "--volume", f"{self.files.parent}:/x", self.images["present"], "bash", "-c", "rm -rf /x/*")

    def _run(self, name: str, image: str, *words: str, options: tuple[str, ...] = ()) -> None:
        docker("rm", "--force", f"{self.mark}-{name}", is_quiet=True)
        self.running.add(name)
        place = ("--network", self.mark, "--network-alias", name, "--hostname", name, "--name", f"{self.mark}-{name}")
        ran("run", "--detach", *place, *options, self.images[image], *words)

    def delivered(self) -> list[str]:
        """Subjects of what the store has taken, in order."""
        return re.findall(r"(?m)^Subject: (\S+)", ran("logs", f"{self.mark}-{STORE}"))

    def init(self, image: str, *words: str) -> None:
        mounted = ("--volume", f"{self.files}:/cluster", "--volume", f"{self.states}:/states")
        ran("run", "--rm", *mounted, self.images[image], "shadowrelay", *(words or ANSWERED))

    def take_files(self, name: str, *files: str) -> None:
        """What `init` wrote reaches the node, as its next steps say."""
        place = self.states / name / "etc"
        copied = " ".join(f"/cluster/{name}/{file}" for file in files) if files else f"/cluster/{name}/."
        mounted = ("--volume", f"{self.files}:/cluster", "--volume", f"{place}:/to")
        ran("run", "--rm", *mounted, self.images["present"], "bash", "-c", f"cp -r {copied} /to/")

    def start(self, name: str, image: str) -> None:
        place = self.states / name
        volumes = (
            ("--volume", f"{place}/etc:/etc/shadowrelay"),
            ("--volume", f"{place}/lib:/var/lib/shadowrelay"),
            ("--volume", f"{place}/log:/var/log/shadowrelay"),
        )
        options = (*(word for one in volumes for word in one), *(ONE_MACHINE if image == "present" else ()))
        self._run(name, image, "shadowrelay", "serve", "--config", "/etc/shadowrelay/node.toml", options=options)

    def destroy(self, name: str) -> None:
        ran("kill", f"{self.mark}-{name}")
        ran("run", "--rm", "--volume", f"{self.states / name}:/x", self.images["present"], "bash", "-c", "rm -rf /x/lib/*")

    def stop(self, name: str) -> None:
        ran("stop", "--time", "90", f"{self.mark}-{name}")

    def command(self, name: str, *words: str) -> str:
        """What a node's operator types; its output, whatever its exit code."""
        done = docker("exec", f"{self.mark}-{name}", "shadowrelay", *words, "--config", "/etc/shadowrelay/node.toml", is_quiet=True)
        return done.stdout + done.stderr

    def takes(self, *names: str) -> list[str]:
        """A message at each node is answered 250: another node has its copy. Returns the subjects."""
        return [self._taken_by(name) for name in names or (EAST, WEST)]

    def _taken_by(self, name: str) -> str:
        """Each try has its own subject: what became of one without an answer is not known."""

        def is_taken() -> bool:
            self.sent += 1
            words = ("exec", f"{self.mark}-{CLIENT}", "python3", "-c", SEND, name, f"m{self.sent}")
            return docker(*words, is_quiet=True).returncode == 0

        until(f"{name} takes mail", is_taken)
        return f"m{self.sent}"

    def hears_what_is_done(self, name: str) -> None:
        """Until it holds no copy."""
        until(f"{name} holds no copies", lambda: ", 0 held for others" in self.command(name, "queue", "list"))

    def arrive(self, subjects: list[str]) -> None:
        """Each once. Raises: Failed."""
        until(f"{subjects} arrive", lambda: set(subjects) <= set(self.delivered()))
        got = self.delivered()
        if twice := sorted({one for one in got if got.count(one) > 1}):
            raise Failed(f"{twice} arrived more than once")


def image_of(release: str, commit: str, name: str) -> str:
    """With the program of that commit, or of this checkout where it is empty."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory)
        if commit:
            packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
            if packed.returncode:
                raise SystemExit(f"{commit} is not in this clone: git fetch --unshallow")
            subprocess.run(["tar", "-C", directory, "-x"], input=packed.stdout, check=True)
            (source / "requirements/build.txt").write_bytes((ROOT / "requirements/build.txt").read_bytes())
        else:
            checkout(source)
        (source / "Dockerfile.node").write_text(NODE_IMAGE.format(base=base_image(release)))
        ran("build", "--file", str(source / "Dockerfile.node"), "--tag", name, directory)
    return name


def lived(cluster: MixedCluster, tell: Callable[[str], None]) -> None:
    """What a cluster goes through. Raises: Failed."""
    cluster.init("earlier")
    for name in (EAST, WEST):
        cluster.take_files(name)
    cluster.start(EAST, "earlier")
    cluster.start(WEST, "present")
    cluster.arrive([*cluster.takes(), *cluster.takes()])
    tell(f"mail: a node of {EARLIER} on {FIRST} and one of this checkout on {SECOND} hold copies for each other")

    doctor = cluster.command(WEST, "doctor")
    if "refused by Python 3.13 and later" not in doctor:
        raise Failed(f"doctor says nothing of the earlier authority: {doctor}")

    for lost, other, image in ((EAST, WEST, "earlier"), (WEST, EAST, "present")):
        # what was delivered must be known to the other node: else this loss makes it twice, which design.md explains
        cluster.hears_what_is_done(other)
        ran("pause", f"{cluster.mark}-{STORE}")  # it accepts connections and says nothing, so mail waits
        waiting = [*cluster.takes(lost), *cluster.takes(lost)]
        cluster.destroy(lost)
        ran("unpause", f"{cluster.mark}-{STORE}")
        cluster.start(lost, image)
        cluster.arrive(waiting)
        tell(f"takeover: {lost} lost its disk, and {other} delivered its mail, once")

    cluster.stop(EAST)
    cluster.start(EAST, "present")
    cluster.arrive(cluster.takes())
    tell(f"upgrade: {EAST} goes on with its queue as this checkout on {SECOND}")


def changed_authority(cluster: MixedCluster, tell: Callable[[str], None]) -> None:
    """In three steps, of both nodes of this checkout. Raises: Failed."""
    for step, words in enumerate((("--renew", "--authority", *ANSWERED[2:]), ("--renew", "--authority"), ("--renew", "--authority")), 1):
        cluster.init("present", "init", "/cluster", *words)
        for name in (EAST, WEST) if step % 2 else (WEST, EAST):
            cluster.take_files(name, "node.pem", "node.key", "peers.pem")
            cluster.stop(name)
            cluster.start(name, "present")
            cluster.arrive(cluster.takes())
        tell(f"renewal: step {step} of 3, mail after the restart of each node")
    doctor = cluster.command(EAST, "doctor")
    if "Python 3.13" in doctor:
        raise Failed(f"doctor still warns of the earlier authority: {doctor}")


def main() -> int:
    is_short = sys.argv[1:] == ["--short"]
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", flush=True)

    tell("installing both nodes, from nothing …")
    try:
        earlier = image_of(FIRST, EARLIER, f"shadowrelay-mixed-{FIRST}")
        present = image_of(SECOND, "", f"shadowrelay-mixed-{SECOND}")
    except (Failed, SystemExit, subprocess.TimeoutExpired) as cannot:
        print(f"not tried: {cannot}", file=sys.stderr)
        return NOT_TRIED
    where = tempfile.TemporaryDirectory(dir="/var/tmp")
    with ended_in_order(), where as directory, MixedCluster(Path(directory), earlier, present) as cluster:
        try:
            lived(cluster, tell)
            if not is_short:
                changed_authority(cluster, tell)
        except Failed as failed:
            for name in sorted(cluster.running):
                print(f"--- {name}", docker("logs", "--tail", "40", f"{cluster.mark}-{name}"), file=sys.stderr)
            print(f"failed: {failed}", file=sys.stderr)
            return 1
    tell("nothing was lost or delivered twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
