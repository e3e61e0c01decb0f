"""Log of faults made by lab commands, in `.lab/faults.jsonl`, from which `account` derives causes of duplicates. docs/lab.md.

Lines: {"at": time.time, "what": "kill", "node": server name, "other": server name of a cut's other end or ""}. A fault lasts
from its line to the line that ends it. The line that begins a fault is written before the action, so that an interruption cannot hide
it; the line that ends one, after. A second KILL of a dead node has the exact time of death, which Docker reports afterwards.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from shadowrelay.lab.account import Fault, FaultKind


class What(StrEnum):
    """KILL and WIPE end with START, PAUSE with UNPAUSE or the death of the node, FILL with FREE, CUT and SLOW with HEAL, which ends all
    of them. The others only inform."""

    KILL = "kill"
    WIPE = "wipe"
    START = "start"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    CUT = "cut"
    SLOW = "slow"
    HEAL = "heal"
    STOP = "stop"
    FILL = "fill disk"
    FREE = "free disk"
    RESTORE = "restore old database"
    DEFER = "defer"
    TAKE = "take"


@dataclass(frozen=True, slots=True)
class Happening:
    """One line. `node` is empty if it concerns all nodes."""

    at: float
    what: What
    node: str = ""
    other: str = ""


class FaultLog:
    """The log file; created with the first entry."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, happening: Happening) -> None:
        """Append one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(happening)) + "\n")

    def read(self) -> list[Happening]:
        """All entries, oldest first; none if there is no file."""
        if not self.path.is_file():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return sorted((Happening(**{**json.loads(line), "what": What(json.loads(line)["what"])}) for line in lines), key=lambda one: one.at)


_KINDS = {
    What.KILL: FaultKind.KILL,
    What.WIPE: FaultKind.WIPE,
    What.PAUSE: FaultKind.PAUSE,
    What.CUT: FaultKind.CUT,
    What.SLOW: FaultKind.SLOW,
    What.FILL: FaultKind.FULL,
}
# What a fault affects. While a fault is open, a second one of the same kind on the same node changes nothing.
_THINGS = {What.KILL: "process", What.WIPE: "process", What.PAUSE: "pause", What.CUT: "cut", What.SLOW: "slow", What.FILL: "disk"}


def faults(happenings: Iterable[Happening]) -> list[Fault]:
    """The faults that may cause duplicates. Faults that still last end at infinity."""
    done: list[Fault] = []
    open_ones: dict[tuple[str, str, str], Happening] = {}

    def end(keys: Iterable[tuple[str, str, str]], at: float) -> None:
        for began in map(open_ones.pop, keys):
            done.append(Fault(_KINDS[began.what], began.node, began.at, at, began.other))

    for one in happenings:
        match one.what:
            case What.PAUSE | What.CUT | What.SLOW:
                open_ones.setdefault((_THINGS[one.what], one.node, one.other), one)
            case What.KILL | What.WIPE:
                killed, paused = open_ones.get(("process", one.node, "")), open_ones.pop(("pause", one.node, ""), None)
                # a disk counts as destroyed from the death of its node, because the node cannot be asked in between
                died = paused or (killed if one.what is What.WIPE else None) or one  # a node killed while paused stopped then
                open_ones["process", one.node, ""] = Happening(died.at, one.what, one.node)
            case What.START | What.UNPAUSE:
                key = _THINGS[What.KILL if one.what is What.START else What.PAUSE], one.node, ""
                end([key] if key in open_ones else [], one.at)
            case What.FILL:
                open_ones.setdefault((_THINGS[one.what], one.node, ""), one)
            case What.FREE:
                end([("disk", one.node, "")] if ("disk", one.node, "") in open_ones else [], one.at)
            case What.HEAL:
                end([key for key in open_ones if key[0] in ("cut", "slow")], one.at)
            case _:
                continue
    end(list(open_ones), math.inf)
    return sorted(done, key=lambda fault: fault.began_at)


def in_force(happenings: Iterable[Happening]) -> list[str]:
    """Faults that have not ended, as text; including deferring servers."""
    everything = list(happenings)
    words = [" ".join(filter(None, (one.kind.value, one.node, one.other))) for one in faults(everything) if one.ended_at == math.inf]
    is_deferring = False
    for one in everything:
        if one.what in (What.DEFER, What.TAKE):
            is_deferring = one.what is What.DEFER
    return [*words, *(["receivers defer"] if is_deferring else [])]
