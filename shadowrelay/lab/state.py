"""The folder `.lab` of the project directory: state that lab commands share. docs/lab.md.

It has the locks that allow one command at a time to change the lab (commands that only read need none), certificates of an authority
that is created with the lab and trusted only there, and the records of mail and faults.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

from shadowrelay.lab.fault_log import FaultLog
from shadowrelay.lab.topology import MACHINES, LabError
from shadowrelay.settings.authority import make_authority, signed_pems, write_file

# ---- locks

BUSY = "another command is changing this lab: {who}; wait for it, or stop it"


class Turn:
    """A lock on one file. Released when its process ends, however it ends. Not for several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._depth = 0

    @contextlib.contextmanager
    def taken(self, what: str, *, is_shared: bool = False) -> Iterator[None]:
        """Hold the lock during the block. Reentrant. Raises: LabError naming the holder."""
        with contextlib.nullcontext() if self._depth else self._locked(what, is_shared):
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    @contextlib.contextmanager
    def _locked(self, what: str, is_shared: bool) -> Iterator[None]:
        try:
            self._path.parent.mkdir(exist_ok=True)
            file = self._path.open("a+", encoding="utf-8")
        except OSError as error:
            raise LabError(f"{self._path} cannot be written ({error.strerror}): chown or remove {self._path.parent}") from error
        with file:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise LabError(BUSY.format(who=file.read().strip() or "one that has just begun")) from error
            file.truncate(0)
            file.write(f"shadowrelay lab {what} (process {os.getpid()})\n")
            file.flush()
            yield


# ---- certificates

LIFE = timedelta(days=90)


def write_certificates(directory: Path, names: Iterable[tuple[str, str]]) -> None:
    """For each (folder, DNS name): `node.pem`, `node.key` and `authority.pem` in that folder of `directory`.

    The keys are readable by all users, whatever the umask, because the user in the container is not the one who created
    them. They give access to this lab only.
    """
    _make(directory)
    authority = make_authority("shadowrelay lab authority", LIFE)
    for folder, name in names:
        certificate, key = signed_pems(authority, name, LIFE)
        place = directory / folder
        _make(place)
        for file, data in (("node.pem", certificate), ("node.key", key), ("authority.pem", authority.pem)):
            write_file(place / file, data, 0o644)


def _make(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)


# ---- the folder

REMEMBERED = ("LAB_NET", "LAB_QUEUE_SIZE")  # of docker-compose.yml: networks and volumes keep the values they were created with
NOT_OURS = (
    "{path} cannot be written or removed ({reason}): Docker makes it for root when `docker-compose up` runs before `shadowrelay lab "
    "up`; remove it (sudo rm -r {path}) and try again"
)
UNREADABLE = "{path} cannot be made readable for the containers ({reason}): chmod a+r {path}"


class State:
    """Shapes: `sent` has the sent messages (`lab/mta/inject.py`), `report` and `watched` the pages of `lab report`.

    `turn` is held by commands that change the lab, `mail_turn` by a scenario, or shared by all commands that send.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sent = directory / "sent.jsonl"
        self.faults = FaultLog(directory / "faults.jsonl")
        self.report = directory / "report"
        self.watched = directory / "watched"
        self.turn = Turn(directory / "lock")
        self.mail_turn = Turn(directory / "mail.lock")
        self.token = directory / "token"
        self._tls = directory / "tls"
        self._nodes = directory / "nodes"
        self._settings = directory / "settings.json"

    def saved(self, node: str) -> Path:
        """The copy of a node's queue volume made by `save-database`."""
        return self.directory / "saved" / f"{node}.tar"

    @property
    def is_made(self) -> bool:
        """Whether the files that containers mount exist and were created by us: Docker creates empty directories for missing ones."""
        files = [self.token, *(self._tls / machine.short / "node.pem" for machine in MACHINES), *map(self._copy, self._originals())]
        return all(path.is_file() for path in files)

    def configuration(self, node: str) -> Path:
        """The file that the container of this node mounts: a copy of the one in `lab/nodes`, which a scenario may change meanwhile."""
        return self._nodes / f"{node}.toml"

    def original(self, node: str) -> Path:
        """The node's configuration as the checkout has it."""
        return self.directory.parent / "lab" / "nodes" / f"{node}.toml"

    def _originals(self) -> list[Path]:
        return [path for machine in MACHINES if (path := self.original(machine.short)).is_file()]

    def _copy(self, original: Path) -> Path:
        return self._nodes / original.name

    def make(self) -> None:
        """Create the state of a new lab: certificates, a token, no records. Raises: LabError."""
        self.clear()
        with _ours(self.directory):
            self.directory.mkdir(exist_ok=True)
            self.directory.chmod(0o755)  # other users read here, in the containers, whatever the umask
            write_certificates(self._tls, [(machine.short, machine.server) for machine in MACHINES])
            _make(self._nodes)
            for path in self._originals():
                write_file(self._copy(path), path.read_bytes(), 0o644)
            self.token.write_text(secrets.token_urlsafe(32) + "\n", encoding="ascii")
            self.token.chmod(0o644)  # it gives access to nothing that is published
            self._settings.write_text(json.dumps({name: os.environ.get(name) for name in REMEMBERED}), encoding="utf-8")

    def clear(self) -> None:
        """Delete everything except the last reports. Raises: LabError."""
        for name in ("tls", "nodes", "saved", "shipped", "token", "settings.json", "sent.jsonl", "faults.jsonl"):
            path = self.directory / name
            with _ours(self.directory):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def settings(self) -> dict[str, str | None]:
        """The variables that the lab was started with; None for unset ones. Empty if there is no lab."""
        if not self._settings.is_file():
            return {}
        found: dict[str, str | None] = json.loads(self._settings.read_text(encoding="utf-8"))
        return found

    def injected_lines(self) -> list[str]:
        """All lines of `sent`."""
        return self.sent.read_text(encoding="utf-8").splitlines() if self.sent.is_file() else []


def let_everybody_read(paths: Iterable[Path]) -> None:
    """Make files of a checkout readable for containers that mount them, for a umask such as 027. Raises: LabError."""
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
