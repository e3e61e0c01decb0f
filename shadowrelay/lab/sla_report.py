"""Runs the redundancy report (docs/sla.md) on tracking logs of the lab's nodes, for the demo and for `lab report` in containers.

The job always runs as a separate process, and nothing here imports it; without Spark or Java only the report is missing. For the demo,
`contradictions` compares the report with what clients and the receiving server recorded. In containers it runs in the Spark container or
on this machine, or the newest page of the streaming job (profile `spark`) is copied out.
"""

import asyncio
import contextlib
import json
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shadowrelay.lab.account import Account, Cause, FaultTimes
from shadowrelay.lab.disturbance import Tell
from shadowrelay.lab.engine import Engine
from shadowrelay.lab.state import State
from shadowrelay.lab.topology import MACHINES, LabError
from shadowrelay.lab.traffic import Sent, SubmissionResult

# ---- for the demo

SECONDS_MAX = 900.0  # of a machine that does much else: it takes half a minute on a quiet one
USAGE = 2  # exit status of our commands if software is missing on this machine


@dataclass(frozen=True, slots=True)
class Report:
    """Shapes: `page` is empty if there is none; then `trouble` says why, and `is_possible` whether one could have been made."""

    page: Path | None = None
    overall: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""
    is_possible: bool = True


async def make_report(logs: Path, output: Path, times: FaultTimes) -> Report:
    """Run `sla report` over shipped logs. `--final`: the nodes have ended, so there will be no more events."""
    objectives = await asyncio.to_thread(_write_objectives, output, times)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shadowrelay", "sla", "report", "--logs", str(logs), "--output", str(output),
        "--objectives", str(objectives), "--final", "--json", "--driver-memory", "1g",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        said, complained = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    except TimeoutError:
        return Report(trouble=f"it did not finish within {SECONDS_MAX:.0f} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = complained.decode(errors="replace").strip().splitlines() or ["no reason given"]
        return Report(trouble="\n".join(lines[-3:]), is_possible=process.returncode != USAGE)
    return Report(output / "report.html", json.loads(said)["overall"])


def _write_objectives(output: Path, times: FaultTimes) -> Path:
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    path = output / "objectives.toml"
    text = f'[times]\nshadow_heartbeat_frequency = "{times.heartbeat:g}s"\nshadow_resubmit_time_span = "{times.span:g}s"\n'
    path.write_text(text, encoding="utf-8")
    return path


@dataclass(frozen=True, slots=True)
class SeenAndReported:
    """A figure as clients and the receiving server saw it, and as the report has it (`None`: it has no such figure, or there is none).
    `why` they may differ."""

    what: str
    seen: int
    reported: int | None = None
    why: str = ""

    @property
    def is_explained(self) -> bool:
        return bool(self.why) and self.reported is not None and self.reported != self.seen


def compared(result: Account, redundant: int, overall: Mapping[str, Any]) -> list[SeenAndReported]:
    """In the words of both. `overall` is empty if there is no report."""

    def reported(name: str) -> int | None:
        return overall.get(name)

    again = "a client that got no reply, because its server died, sent its message again: the logs have it under two ids, clients as one"
    unlogged = "a server that died, or whose log burned, has not logged a delivery; of a message sent again the logs cannot know the client"
    received = overall["messages_redundant"] - overall["messages_reconstructed"] if overall else None
    return [
        SeenAndReported("acknowledged (clients got 250)", result.accepted, reported("messages_acknowledged"), again),
        SeenAndReported("redundant when acknowledged", redundant, received),
        SeenAndReported("delivered", result.delivered, reported("messages_done"), again),
        SeenAndReported("lost", len(result.lost), reported("recipients_lost")),
        SeenAndReported("changed in transit", len(result.changed)),
        SeenAndReported("duplicated", len(result.duplicates), reported("recipients_duplicated"), unlogged),
        SeenAndReported(
            "taken over by another server", result.taken_over, reported("messages_promoted"),
            "the logs also have those that were delivered before they were taken over, or sent again by their client",
        ),
    ]  # fmt: skip


def contradictions(overall: Mapping[str, Any], result: Account, sent: Sequence[Sent], redundant: int) -> list[str]:
    """Differences between the report and the records of clients and the receiving server; empty = they agree.

    A message whose client got no reply may be acknowledged according to the logs. A server that died between the next hop's `250` and
    its own row (cause a) left a duplicate that no log shows; so did one that lost its log with what its client sent again (cause e). Each
    message of these loads names each recipient once.
    """
    unanswered = sum(submission.answer is not SubmissionResult.ACKNOWLEDGED for one in sent for submission in one.tries)
    own = [duplicate for duplicate in result.duplicates if duplicate.network_id]
    unlogged = sum(duplicate.cause is Cause.DIED_BEFORE_RECORD for duplicate in own)
    people = {one.number: len(one.recipients) for one in sent}
    again = sum((each.count - 1) * people.get(each.number, 1) for each in result.duplicates if not each.network_id)
    acknowledged, duplicated = overall["messages_acknowledged"], overall["recipients_duplicated"]
    received = overall["messages_redundant"] - overall["messages_reconstructed"]
    rules = (
        ("acknowledged", result.accepted <= acknowledged <= result.accepted + unanswered, acknowledged, result.accepted),
        ("redundant, by rows RECEIVE", received == redundant, received, redundant),
        ("lost", bool(overall["recipients_lost"]) == bool(result.lost), overall["recipients_lost"], len(result.lost)),
        ("duplicated", len(own) - unlogged <= duplicated <= len(own) + again, duplicated, len(own) + again),
        ("taken over", overall["messages_promoted"] >= result.taken_over, overall["messages_promoted"], result.taken_over),
        ("quarantined lines", overall["lines_quarantined"] == 0, overall["lines_quarantined"], 0),
    )
    return [f"{name}: the report has {theirs}, clients and the receiving server {ours}" for name, is_so, theirs, ours in rules if not is_so]


# ---- for the containers

SHIPPED = "/var/log/shadowrelay/shipped"
SHIPPED_SECONDS = 8.0  # [shipping] interval of lab/nodes/*.toml, plus a margin
JOB_SECONDS_MAX = 600.0
UNPACK_SECONDS_MAX = 60.0
SPARK = ("--master", "local[2]", "--driver-memory", "1g")
IN_CONTAINER = (
    f"shadowrelay sla report --logs {SHIPPED} --output /tmp/report --objectives /etc/shadowrelay/objectives.toml "
    f"{' '.join(SPARK)} >&2 && tar -C /tmp/report -cf - ."
)

WATCHED_AGAIN_SECONDS = 3.0
WATCHED = "/var/lib/shadowrelay/report"  # --output of `sla-watch` in docker-compose.yml
NOT_WATCHED = "the streaming job does not run: start it with `shadowrelay lab up --profile spark`"
NO_PAGE_YET = "the streaming job has made no page yet; it needs about two minutes after the first mail"


def report_in_container(engine: Engine, state: State, tell: Tell) -> Path:
    """Build the image if necessary, run the job once, and copy its page out. Returns the page. Raises: LabError."""
    tell("building the image with Spark (minutes the first time)")
    engine.compose("build", "spark-master")
    tell("computing service levels")
    time.sleep(SHIPPED_SECONDS)
    # -f, so that the shell does not expand the brackets of `local[2]`
    name = f"{engine.project()}_report_{secrets.token_hex(4)}"
    try:
        made = engine.compose("run", "--rm", "--name", name, "--no-deps", "-T", "--entrypoint", "sh", "sla", "-efc", IN_CONTAINER)
    except BaseException:  # remove the container also after an interrupt
        with contextlib.suppress(LabError):
            engine.docker("rm", "--force", name)
        raise
    _unpack(made, state.report)
    return _page(state)


def report_here(engine: Engine, state: State, tell: Tell) -> Path:
    """Copy the shipped logs out of the lab and run the job with this environment's Spark. Returns the page. Raises: LabError."""
    tell("computing service levels")
    time.sleep(SHIPPED_SECONDS)
    logs = state.directory / "shipped"
    # the volume is visible from any node's machine, but its process may be dead, so a separate container reads it
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


def report_watched(engine: Engine, state: State, tell: Tell, *, wait: float = 0) -> Path:
    """Copy out the newest page of the streaming job; wait up to `wait` seconds for the first one. Returns the page. Raises: LabError."""
    deadline = time.monotonic() + wait
    is_told = False
    while True:
        if engine.states().get("sla-watch") != "running":
            raise LabError(NOT_WATCHED)
        # only the page and its figures: tables are replaced as a whole while this reads
        names = "for f in report.html summary.json live.json; do [ -e $f ] && echo $f; done | tar -cf - -T -"
        packed = engine.execute("sla-watch", "sh", "-c", f"cd {WATCHED} && {names}")
        _unpack(packed, state.watched)
        if (state.watched / "report.html").is_file():
            summary, live = (_json_in(state.watched / name) for name in ("summary.json", "live.json"))
            for line in freshness(summary, live, datetime.now(UTC)):
                tell(line)
            return state.watched / "report.html"
        if time.monotonic() >= deadline:
            raise LabError(NO_PAGE_YET)
        if not is_told:
            tell(f"{NO_PAGE_YET}; waiting up to {wait:.0f} s")
            is_told = True
        time.sleep(WATCHED_AGAIN_SECONDS)


def freshness(summary: Mapping[str, Any], live: Mapping[str, Any], now: datetime) -> Iterator[str]:
    """What the reader of a streaming job's page must know: how old it is, what came since then, and what fails. docs/sla.md, section 7."""
    made_at = datetime.fromisoformat(summary["generated_at"])
    shown = summary.get("watch", {}).get("rows", 0)
    newer = max(live.get("rows", 0) - shown, 0)
    yield f"made {max(round((now - made_at).total_seconds()), 0)} s ago, from {shown} rows; {newer} rows came since then"
    for step, error in live.get("failing", {}).items():
        yield f"the job's step {step} fails: {error}"


def _json_in(path: Path) -> Mapping[str, Any]:
    """What is in the file; empty if there is none yet."""
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def _unpack(packed: bytes, directory: Path) -> None:
    """Replace the directory: its old content may belong to another lab."""
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
        raise LabError(f"the output of the container could not be unpacked: {error}") from error


def _page(state: State) -> Path:
    page = state.report / "report.html"
    if not page.is_file():
        raise LabError(f"the job made no page; its output is in {state.report}")
    return page
