"""A process with its own mounts and process ids: users, names and directories of its own; all that it starts ends with it."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

UNSHARE = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL")
FIRST_ID = 60_000  # of users and groups that exist for such a process only


@cache
def is_possible() -> bool:
    """Root, and a kernel that lets it."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "mount", "--bind", "/mnt", "/mnt"], capture_output=True, check=False).returncode == 0


def private_command(command: Sequence[str | Path], mounts: Mapping[str, Path]) -> list[str]:
    """`command` with `mounts` (target -> source; both exist) in front of what is there."""
    script = "".join(f'mount --bind "{source}" "{target}" && ' for target, source in mounts.items())
    return [*UNSHARE, "sh", "-c", f'{script}exec "$@"', "sh", *map(str, command)]


def children_of(process: int) -> list[int]:
    """Of `unshare` it is the first of its own process ids: all others end with it. (A set-user-ID program, as mail servers
    are, does not hear of its parent's death.)"""
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []
