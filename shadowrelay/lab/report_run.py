"""`lab report`: the SLA job over the tracking logs that the nodes of the lab have shipped, in the Spark container or right here; or the
page that the streaming job of the profile `spark` has made."""

import contextlib
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from shadowrelay.lab.engine import Engine
from shadowrelay.lab.places import MACHINES, LabError
from shadowrelay.lab.state import State

SHIPPED = "/var/log/shadowrelay/shipped"
SHIPPED_SECONDS = 8.0  # [shipping] interval of lab/nodes/*.toml, and a little
JOB_SECONDS_MAX = 600.0
UNPACK_SECONDS_MAX = 60.0
SPARK = ("--master", "local[2]", "--driver-memory", "1g")
IN_CONTAINER = (
    f"shadowrelay sla report --logs {SHIPPED} --output /tmp/report --objectives /etc/shadowrelay/objectives.toml "
    f"{' '.join(SPARK)} >&2 && tar -C /tmp/report -cf - ."
)

WATCHED = "/var/lib/shadowrelay/report"  # --output of `sla-watch` in docker-compose.yml
NOT_WATCHED = "the streaming job does not run: start it with `shadowrelay lab up --profile spark`"
NO_PAGE_YET = "the streaming job has made no page yet; it needs about two minutes after the first mail"

Tell = Callable[[str], None]


def report_in_container(engine: Engine, state: State, tell: Tell) -> Path:
    """Build the image if need be, run the job once, and take its page out. Returns the page. Raises: LabError."""
    tell("building the image with Spark (minutes the first time)")
    engine.compose("build", "spark-master")
    tell("computing service levels")
    time.sleep(SHIPPED_SECONDS)
    # the shell gets no brackets to expand: `local[2]` is quoted by being no file's name
    name = f"{engine.project()}_report_{secrets.token_hex(4)}"
    try:
        made = engine.compose("run", "--rm", "--name", name, "--no-deps", "-T", "--entrypoint", "sh", "sla", "-efc", IN_CONTAINER)
    except BaseException:  # who is interrupted does not take it away
        with contextlib.suppress(LabError):
            engine.docker("rm", "--force", name)
        raise
    _unpack(made, state.report)
    return _page(state)


def report_here(engine: Engine, state: State, tell: Tell) -> Path:
    """Copy the shipped logs out of the lab and run the job with the Spark of this environment. Returns the page. Raises: LabError."""
    tell("computing service levels")
    time.sleep(SHIPPED_SECONDS)
    logs = state.directory / "shipped"
    # any node's machine sees the volume of all; the process may be dead, so a container of its own reads it
    image = engine.inspect(MACHINES[0].short)["Config"]["Image"]
    source = engine.container(MACHINES[0].short)
    packed = engine.docker("run", "--rm", "--volumes-from", f"{source}:ro", "--entrypoint", "tar", image, "-C", SHIPPED, "-cf", "-", ".")
    _unpack(packed, logs)
    objectives = engine.directory / "lab" / "objectives.toml"
    command = [sys.executable, "-m", "shadowrelay", "sla", "report", "--logs", str(logs), "--output", str(state.report)]
    try:
        done = subprocess.run(
            [*command, "--objectives", str(objectives), *SPARK], capture_output=True, text=True, timeout=JOB_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"the job took longer than {JOB_SECONDS_MAX:.0f} s") from error
    if done.returncode:
        raise LabError(f"the job failed with {done.returncode}: " + "\n".join(done.stderr.strip().splitlines()[-5:]))
    return _page(state)


def report_watched(engine: Engine, state: State) -> Path:
    """Copy out what the streaming job made last. Returns the page. Raises: LabError."""
    if engine.states().get("sla-watch") != "running":
        raise LabError(NOT_WATCHED)
    # tables are replaced as a whole while we read: the page and its figures are what is wanted
    names = "for f in report.html summary.json live.json; do [ -e $f ] && echo $f; done | tar -cf - -T -"
    packed = engine.execute("sla-watch", "sh", "-c", f"cd {WATCHED} && {names}")
    _unpack(packed, state.watched)
    if not (state.watched / "report.html").is_file():
        raise LabError(NO_PAGE_YET)
    return state.watched / "report.html"


def _unpack(packed: bytes, directory: Path) -> None:
    """It takes the place of what is there, of which nothing stays: that may be of another lab."""
    new = directory.with_name(f".{directory.name}.new")
    command = ["tar", "-C", str(new), "--no-same-owner", "-xf", "-"]
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        subprocess.run(command, input=packed, check=True, capture_output=True, timeout=UNPACK_SECONDS_MAX)
        if directory.exists():
            shutil.rmtree(directory)
        new.rename(directory)
    except (OSError, subprocess.SubprocessError) as error:
        raise LabError(f"what came out of the container could not be unpacked: {error}") from error


def _page(state: State) -> Path:
    page = state.report / "report.html"
    if not page.is_file():
        raise LabError(f"the job made no page; what it made is in {state.report}")
    return page
