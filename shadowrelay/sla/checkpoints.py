"""Finds what is torn in a checkpoint of Spark's, which says neither what to do nor, mostly, which file it is. docs/sla.md, 7."""

import json
import re
from typing import Any

from shadowrelay.model.replies import ShadowrelayError
from shadowrelay.sla.storage import is_local, located

LISTS = {"offsets": 2, "commits": 1, "sources": 1}  # directory -> lines that each of its files has at least
_VERSION = re.compile(r"v[0-9]+")


class CheckpointTorn(ShadowrelayError):
    """A stream cannot go on; the text names the file, and what to do. Trying again does not help."""


def require_whole(checkpoint: str, remedy: str) -> None:
    """Look at every file of the checkpoint, if it is on a disk. Raises: CheckpointTorn, with `remedy`."""
    files, top = located(checkpoint)
    if not is_local(files) or not files.isdir(top):
        return
    for path in sorted(files.find(top)):
        if not _is_whole(files, path, path[len(top) :].strip("/").split("/")):
            raise CheckpointTorn(f"{path}: torn or damaged, so that Spark cannot go on: {remedy}")


def _is_whole(files: Any, path: str, parts: list[str]) -> bool:
    """Shapes: `parts` is the path within the checkpoint. What is none of Spark's lists is not looked at."""
    if parts[-1].startswith("."):
        return True
    if parts != ["metadata"] and (len(parts) < 2 or parts[0] not in LISTS):
        return True
    try:
        lines = files.cat_file(path).decode("utf-8").splitlines()
    except FileNotFoundError:  # deleted by the query that runs
        return True
    except UnicodeDecodeError:
        return False
    if parts == ["metadata"]:
        return len(lines) == 1 and _is_json(lines[0])
    is_begun = len(lines) >= LISTS[parts[0]] and _VERSION.fullmatch(lines[0]) is not None
    return is_begun and all(line == "-" or _is_json(line) for line in lines[1:])


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
