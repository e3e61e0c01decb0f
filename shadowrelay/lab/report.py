"""The redundancy report on what the lab's nodes logged, and whether it says what clients and the receiving server saw.

The job runs as a process of its own: nothing here imports it, and without Spark or Java only the report is missing.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shadowrelay.lab.account import Account, Cause, Times
from shadowrelay.lab.load import Answer, Sent

SECONDS_MAX = 180.0
USAGE = 2  # exit status of our commands when something is missing on this machine


@dataclass(frozen=True, slots=True)
class Report:
    """Shapes: `page` is empty where there is none; then `trouble` says why, and `is_possible` whether it could have been."""

    page: Path | None = None
    overall: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""
    is_possible: bool = True


async def make_report(logs: Path, output: Path, times: Times) -> Report:
    """Run `sla report` over shipped logs. `--final`: the nodes have ended, nothing more will come."""
    objectives = await asyncio.to_thread(_write_objectives, output, times)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shadowrelay", "sla", "report", "--logs", str(logs), "--output", str(output),
        "--objectives", str(objectives), "--final", "--json", "--driver-memory", "1g",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        said, complained = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    except TimeoutError:
        return Report(trouble=f"it was not ready after {SECONDS_MAX:.0f} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = complained.decode(errors="replace").strip().splitlines() or ["no reason given"]
        return Report(trouble="\n".join(lines[-3:]), is_possible=process.returncode != USAGE)
    return Report(output / "report.html", json.loads(said)["overall"])


def _write_objectives(output: Path, times: Times) -> Path:
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    path = output / "objectives.toml"
    # servers are killed on purpose here, and what a dead one holds it cannot discard in time
    text = (
        f'[times]\nshadow_heartbeat_frequency = "{times.heartbeat:g}s"\nshadow_resubmit_time_span = "{times.span:g}s"\n'
        "[objectives]\ndiscard_lag = { ratio = 0.5 }\n"
    )
    path.write_text(text, encoding="utf-8")
    return path


def contradictions(overall: Mapping[str, Any], result: Account, sent: Sequence[Sent], redundant: int) -> list[str]:
    """Where the report says something else than clients and the receiving server saw; empty = they agree.

    What a client never got an answer to may be acknowledged by the logs. A server that died between the next hop's `250` and
    its own row (cause a) left a duplicate that no log knows. Each message of these loads has the recipients it was sent with, once.
    """
    unanswered = sum(submission.answer is not Answer.ACKNOWLEDGED for one in sent for submission in one.tries)
    own = [duplicate for duplicate in result.duplicates if duplicate.network_id]
    unlogged = sum(duplicate.cause is Cause.DIED_BEFORE_RECORD for duplicate in own)
    acknowledged = overall["messages_acknowledged"]
    received = overall["messages_redundant"] - overall["messages_reconstructed"]
    rules = (
        ("acknowledged", result.accepted <= acknowledged <= result.accepted + unanswered, acknowledged, result.accepted),
        ("redundant, by rows RECEIVE", received == redundant, received, redundant),
        ("lost", bool(overall["recipients_lost"]) == bool(result.lost), overall["recipients_lost"], len(result.lost)),
        ("duplicated", len(own) - unlogged <= overall["recipients_duplicated"] <= len(own), overall["recipients_duplicated"], len(own)),
        ("taken over", overall["messages_promoted"] >= result.taken_over, overall["messages_promoted"], result.taken_over),
        ("quarantined lines", overall["lines_quarantined"] == 0, overall["lines_quarantined"], 0),
    )
    return [f"{name}: the report has {theirs}, clients and the receiving server {ours}" for name, is_so, theirs, ours in rules if not is_so]
