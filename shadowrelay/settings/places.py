"""Tries the directories that a configuration names, as the user who runs this, and leaves nothing in them. docs/reference.md "Commands".

Without `data_directory` and the token a node does not start; it does start without the others, and tries them again. A full disk is no
problem here: a node starts on one. Run it as the node's user: the messages say which user could not.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shadowrelay.bounded import FILES
from shadowrelay.model.replies import UNUSABLE
from shadowrelay.model.settings import Settings

LINKS_MAX = 40  # as Linux


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


def exposed(settings: Settings, *files: Path) -> Iterator[str]:
    """What other users of this machine may read or change, or lead elsewhere, with key and remedy. `files`: the configuration itself.

    The owner's group may read: a key may be root's and the group that of the node. Root and this user are trusted, with their links, and,
    by root, the owner of `data_directory`.
    """
    tls = settings.tls
    secret: list[tuple[str, Path | None]] = [
        ("server.data_directory", settings.server.data_directory),
        ("tls.key", None if tls is None else tls.key),
        *((f"tls.certificates[{number}].key", one.key) for number, one in enumerate(() if tls is None else tls.certificates)),
        *((f"routes[{number}].tls_key", route.tls_key) for number, route in enumerate(settings.routes)),
        ("admin.token_file", settings.admin.token_file),
        ("admin.read_only_token_file", settings.admin.read_only_token_file),
        ("tracking.directory", settings.tracking.directory),
    ]
    public: list[tuple[str, Path | None]] = [  # who changes them says who is a peer, and what a node does
        *(() if tls is None else (("tls.peer_authority", tls.peer_authority), ("tls.peer_revoked", tls.peer_revoked))),
        *(("--config", file) for file in files),
    ]
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0:
        with suppress(OSError):
            trusted.add(settings.server.data_directory.stat().st_uid)
    for key, path in secret + public:
        if path is None:
            continue
        try:
            found = FILES.look((path,), path.stat) if key.startswith("routes") else path.stat()  # those of routes may hang
        except OSError:  # TimeoutError is one
            continue  # it is not there yet, or `problems` names it
        is_public = (key, path) in public
        may = [what for bits, what in _rights(is_public=is_public) if found.st_mode & bits]
        if may:
            remedy = "u=rwX,g=rX,o=" if key == "tracking.directory" else "go-w" if is_public else "u=rwX,go="
            yield f"{key}: {' and '.join(may)} {path} (mode {stat.S_IMODE(found.st_mode):04o}): chmod {remedy} {path}"
        if found.st_uid not in trusted and not is_public:
            yield f"{key}: user {found.st_uid} owns {path}, and may read and change it: chown {os.geteuid()} {path}"
        yield from (f"{key}: {reason}" for reason in _led_elsewhere(path.absolute(), trusted))


def _rights(*, is_public: bool) -> Iterator[tuple[int, str]]:
    if not is_public:
        yield 0o005, "every user may read"
    yield 0o022, "others may change"


def _led_elsewhere(path: Path, trusted: set[int]) -> Iterator[str]:
    """Links on the way that others made, and directories in which others may put something else in its place."""
    links = 0
    waiting, here = list(path.parts[1:]), Path(path.anchor)
    while waiting and links < LINKS_MAX:
        place = here / waiting.pop(0)
        try:
            found, around = place.lstat(), here.stat()
        except OSError:
            return
        if around.st_mode & 0o002 and not around.st_mode & stat.S_ISVTX:
            yield f"every user may replace {place}: chmod o-w {here}"
        if not stat.S_ISLNK(found.st_mode):
            here = place if place.name != ".." else here.parent
            continue
        links += 1
        if found.st_uid not in trusted:
            yield f"{place} is a link that user {found.st_uid} made and may change: name the place itself, or make the link as root"
        target = Path(os.readlink(place))
        here, waiting = (Path(target.anchor), [*target.parts[1:], *waiting]) if target.is_absolute() else (here, [*target.parts, *waiting])


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
