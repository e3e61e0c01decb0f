"""The bearer token of the administration API: a file that only its owner can read. docs/reference.md "Commands"."""

import contextlib
import os
import secrets
from pathlib import Path

from shadowrelay.model.replies import ConfigurationError

TOKEN_OCTETS_MIN = 16  # shorter ones could be guessed
TOKEN_OCTETS_MAX = 1024


def read_or_create_token(path: Path, key: str = "admin.token_file") -> str:
    """The token in `path`; if there is no such file, create it at random (256 bits, mode 0600). `key`: the setting that names it.

    Raises: ConfigurationError naming the file and the remedy.
    """
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True)  # possibly `data_directory`, which is created later
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return read_token(path, key)
    except OSError as exc:
        remedy = "let this user write there, or name a file where it may"
        raise ConfigurationError(f"{key}: {path} cannot be made ({exc.strerror}); {remedy}") from exc
    token = secrets.token_urlsafe(32)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(token + "\n")
    except OSError as exc:  # a full disk: remove the partial file
        path.unlink(missing_ok=True)
        raise ConfigurationError(f"{key}: {path} cannot be written ({exc.strerror}); make room, or name another file") from exc
    return token


def read_token(path: Path, key: str = "admin.token_file") -> str:
    """The token in `path`, which the setting `key` names. Raises: ConfigurationError naming the file and the remedy."""
    try:
        with path.open("rb") as file:
            token = file.read(TOKEN_OCTETS_MAX + 1).strip()
    except OSError as exc:
        hint = "; the node makes it at its first start" if isinstance(exc, FileNotFoundError) else ""
        raise ConfigurationError(f"{key}: {path} cannot be read ({exc.strerror}){hint}") from exc
    if not TOKEN_OCTETS_MIN <= len(token) <= TOKEN_OCTETS_MAX or not token.isascii() or any(octet <= 32 for octet in token):
        raise ConfigurationError(
            f"{key}: {path} holds no usable token; write one line of {TOKEN_OCTETS_MIN} to {TOKEN_OCTETS_MAX} "
            f"visible ASCII characters, or remove the file to have one made"
        )
    return token.decode("ascii")
