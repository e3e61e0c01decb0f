"""Tries the directories that a configuration names, as the user who runs this, and leaves nothing in them. docs/operations.md "Commands".

Without `data_directory` and the token a node does not start; it does start without the others, and tries them again. A full disk is no
problem here: a node starts on one. Run it as the node's user: the messages say which user could not.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shadowrelay.model.replies import UNUSABLE
from shadowrelay.settings.values import Settings


def problems(settings: Settings) -> Iterator[str]:
    """What keeps a node from starting, with key and remedy."""
    if reason := why_not(settings.server.data_directory):
        yield f"server.data_directory: {reason}; name a directory that user {os.geteuid()} may make or write"
    for key in ("token_file", "read_only_token_file"):
        token = getattr(settings.admin, key)
        if token is None:
            continue
        if not os.path.lexists(token) and (reason := why_not(token.parent)):
            yield f"admin.{key}: {reason}; name a file in a directory that user {os.geteuid()} may make or write"
        elif token.exists() and not os.access(token, os.R_OK):
            yield f"admin.{key}: {token} cannot be read; let user {os.geteuid()} read it"


def doubts(settings: Settings) -> Iterator[str]:
    """What a node starts without."""
    if reason := why_not(settings.tracking.directory):
        yield f"tracking.directory: {reason}: mail is relayed without evidence; name a directory that user {os.geteuid()} may make or write"
    target = settings.shipping.target
    if target.startswith("/") and (reason := why_not(Path(target))):
        yield f"shipping.target: {reason}: nothing is shipped; name a directory that user {os.geteuid()} may make or write"


def why_not(directory: Path) -> str:
    """Why this user can neither write nor make it; "" if it can, or could if the disk had room."""
    place = next(one for one in (directory, *directory.parents) if os.path.lexists(one))
    if not place.is_dir():
        return f"{place} is not a directory"
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as exc:
        if exc.errno not in UNUSABLE:
            return ""
        done = f"{directory} cannot be written" if place == directory else f"{directory} cannot be made in {place}"
        return f"{done} ({exc.strerror})"
