"""What the commands of the lab remember between each other: the folder `.lab` of the project directory."""

import secrets
import shutil
from pathlib import Path

from shadowrelay.lab.authority import write_certificates
from shadowrelay.lab.fault_log import FaultLog
from shadowrelay.lab.places import MACHINES


class State:
    """Shapes: `sent` is what was injected (`lab/mta/inject.py`), `report` the page of `lab report`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sent = directory / "sent.jsonl"
        self.faults = FaultLog(directory / "faults.jsonl")
        self.report = directory / "report"

    def saved(self, node: str) -> Path:
        """The copy of a node's queue volume that `save-database` makes."""
        return self.directory / "saved" / f"{node}.tar"

    def make(self) -> None:
        """A new lab: certificates, a token, and no memory of an earlier one."""
        self.clear()
        self.directory.mkdir(mode=0o755, exist_ok=True)
        write_certificates(self.directory / "tls", [(machine.short, machine.server) for machine in MACHINES])
        token = self.directory / "token"
        token.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
        token.chmod(0o644)  # read by another user in the containers; it opens nothing that is published

    def clear(self) -> None:
        """Forget everything but the last report."""
        for name in ("tls", "saved", "shipped"):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        for name in ("token", "sent.jsonl", "faults.jsonl"):
            (self.directory / name).unlink(missing_ok=True)

    def injected_lines(self) -> list[str]:
        """All lines of `sent`."""
        return self.sent.read_text(encoding="utf-8").splitlines() if self.sent.is_file() else []
