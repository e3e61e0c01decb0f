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


class Change(StrEnum):
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
class Entry:
    """One line. `node` is empty if it concerns all nodes."""

    at: float
    what: Change
    node: str = ""
    other: str = ""


class FaultLog:
    """The log file; created with the first entry."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: Entry) -> None:
        """Append one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")

    def read(self) -> list[Entry]:
        """All entries, oldest first; none if there is no file."""
        if not self.path.is_file():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return sorted((Entry(**{**json.loads(line), "what": Change(json.loads(line)["what"])}) for line in lines), key=lambda one: one.at)


_KINDS = {
    Change.KILL: FaultKind.KILL,
    Change.WIPE: FaultKind.WIPE,
    Change.PAUSE: FaultKind.PAUSE,
    Change.CUT: FaultKind.CUT,
    Change.SLOW: FaultKind.SLOW,
    Change.FILL: FaultKind.FULL,
}
# What a fault affects. While a fault is open, a second one of the same kind on the same node changes nothing.
_AREA = {Change.KILL: "process", Change.WIPE: "process", Change.PAUSE: "pause", Change.CUT: "cut", Change.SLOW: "slow", Change.FILL: "disk"}


def faults(entries: Iterable[Entry]) -> list[Fault]:
    """The faults that may cause duplicates. Faults that still last end at infinity."""
    done: list[Fault] = []
    open_ones: dict[tuple[str, str, str], Entry] = {}

    def end(keys: Iterable[tuple[str, str, str]], at: float) -> None:
        for began in map(open_ones.pop, keys):
            done.append(Fault(_KINDS[began.what], began.node, began.at, at, began.other))

    for one in entries:
        match one.what:
            case Change.PAUSE | Change.CUT | Change.SLOW:
                open_ones.setdefault((_AREA[one.what], one.node, one.other), one)
            case Change.KILL | Change.WIPE:
                killed, paused = open_ones.get(("process", one.node, "")), open_ones.pop(("pause", one.node, ""), None)
                # a disk counts as destroyed from the death of its node, because the node cannot be asked in between
                died = paused or (killed if one.what is Change.WIPE else None) or one  # a node killed while paused stopped then
                open_ones["process", one.node, ""] = Entry(died.at, one.what, one.node)
            case Change.START | Change.UNPAUSE:
                key = _AREA[Change.KILL if one.what is Change.START else Change.PAUSE], one.node, ""
                end([key] if key in open_ones else [], one.at)
            case Change.FILL:
                open_ones.setdefault((_AREA[one.what], one.node, ""), one)
            case Change.FREE:
                end([("disk", one.node, "")] if ("disk", one.node, "") in open_ones else [], one.at)
            case Change.HEAL:
                end([key for key in open_ones if key[0] in ("cut", "slow")], one.at)
            case _:
                continue
    end(list(open_ones), math.inf)
    return sorted(done, key=lambda fault: fault.began_at)


def in_force(entries: Iterable[Entry]) -> list[str]:
    """Faults that have not ended, as text; including deferring servers."""
    everything = list(entries)
    words = [" ".join(filter(None, (one.kind.value, one.node, one.other))) for one in faults(everything) if one.ended_at == math.inf]
    is_deferring = False
    for one in everything:
        if one.what in (Change.DEFER, Change.TAKE):
            is_deferring = one.what is Change.DEFER
    return [*words, *(["receivers defer"] if is_deferring else [])]
