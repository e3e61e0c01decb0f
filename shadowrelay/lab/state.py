"""What the commands of the lab remember between each other: the folder `.lab` of the project directory."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from shadowrelay.lab.authority import write_certificates
from shadowrelay.lab.fault_log import FaultLog
from shadowrelay.lab.places import MACHINES, LabError
from shadowrelay.lab.turn import Turn

REMEMBERED = ("LAB_NET", "LAB_QUEUE_SIZE")  # of docker-compose.yml: networks and volumes keep what they were made with
NOT_OURS = (
    "{path} cannot be written or removed ({reason}): Docker makes it for root when `docker-compose up` runs before `shadowrelay lab "
    "up`; remove it (sudo rm -r {path}) and try again"
)
UNREADABLE = "{path} cannot be made readable for the containers ({reason}): chmod a+r {path}"


class State:
    """Shapes: `sent` is what was injected (`lab/mta/inject.py`), `report` and `watched` the pages of `lab report`.

    `turn` is held by commands that change the lab, `mail_turn` by a scenario, and by everybody who sends, together.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sent = directory / "sent.jsonl"
        self.faults = FaultLog(directory / "faults.jsonl")
        self.report = directory / "report"
        self.watched = directory / "watched"
        self.turn = Turn(directory / "lock")
        self.mail_turn = Turn(directory / "mail.lock")
        self._token = directory / "token"
        self._tls = directory / "tls"
        self._settings = directory / "settings.json"

    def saved(self, node: str) -> Path:
        """The copy of a node's queue volume that `save-database` makes."""
        return self.directory / "saved" / f"{node}.tar"

    @property
    def is_made(self) -> bool:
        """What the containers mount is there, made by us: Docker makes empty directories where it finds nothing."""
        return self._token.is_file() and all((self._tls / machine.short / "node.pem").is_file() for machine in MACHINES)

    def make(self) -> None:
        """A new lab: certificates, a token, and no memory of an earlier one. Raises: LabError."""
        self.clear()
        with _ours(self.directory):
            self.directory.mkdir(exist_ok=True)
            self.directory.chmod(0o755)  # other users than ours read here, in the containers, whatever the umask
            write_certificates(self._tls, [(machine.short, machine.server) for machine in MACHINES])
            self._token.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
            self._token.chmod(0o644)  # it opens nothing that is published
            self._settings.write_text(json.dumps({name: os.environ.get(name) for name in REMEMBERED}), encoding="utf-8")

    def clear(self) -> None:
        """Forget everything but the last reports. Raises: LabError."""
        for name in ("tls", "saved", "shipped", "token", "settings.json", "sent.jsonl", "faults.jsonl"):
            path = self.directory / name
            with _ours(self.directory):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def settings(self) -> dict[str, str | None]:
        """The variables that the lab was started with; None for those that were not set. Empty if there is no lab."""
        if not self._settings.is_file():
            return {}
        found: dict[str, str | None] = json.loads(self._settings.read_text(encoding="utf-8"))
        return found

    def injected_lines(self) -> list[str]:
        """All lines of `sent`."""
        return self.sent.read_text(encoding="utf-8").splitlines() if self.sent.is_file() else []


def let_everybody_read(paths: Iterable[Path]) -> None:
    """Files of a checkout that containers mount: under a umask of 027 nobody else may read them. Raises: LabError."""
    for path in paths:
        mode = path.stat().st_mode
        try:
            if mode & 0o444 != 0o444:
                path.chmod(mode | 0o444)
        except OSError as error:
            raise LabError(UNREADABLE.format(path=path, reason=error.strerror)) from error


@contextlib.contextmanager
def _ours(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LabError(NOT_OURS.format(path=directory, reason=error.strerror)) from error
