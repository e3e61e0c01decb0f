"""Shipping targets: a directory, or any store that fsspec supports. Blocking; called from threads. docs/operations.md.

The rule: a reader of the target never sees a partial file. Object stores accept an object as a whole or not at all. Elsewhere a file
is written under a name that no reader looks for (`.shipping-…`), synced where possible, and renamed. Only the connection is
kept between two attempts, and not after a failure.
"""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import fsspec  # type: ignore[import-untyped]

from shadowrelay.bounded import Attempt
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.setting_texts import Option
from shadowrelay.tracking.writer import sync_directory

TEMP_PREFIX = ".shipping-"  # prefix of the names of unfinished files
MANIFEST = "manifest.json"

# Object stores: an object exists as a whole, or not at all.
WHOLE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "ocilake", "r2"})
READ_ONLY = frozenset({"http", "https", "data", "git", "github", "gist", "zip", "tar", "libarchive", "reference", "wandb", "pyscript"})
_PACKAGES = {"smbclient": "smbprotocol"}  # module -> distribution, where they differ


class Target(Protocol):
    """The folder `<target>/<server>/`."""

    def put(self, path: Path, name: str, attempt: Attempt) -> None:
        """Store a closed file under `name`. Raises what the library raises."""

    def replace(self, name: str, octets: bytes, attempt: Attempt) -> None:
        """Replace a small file. Raises as `put`."""

    def read(self, name: str) -> bytes | None:
        """`None` if there is no such file. Raises as `put`."""

    def clean(self) -> None:
        """Remove unfinished files of earlier processes. Raises as `put`."""

    def disconnect(self) -> None:
        """Use a new connection for the next attempt."""


def check_target(target: str) -> None:
    """Check that there is a library for it; opens no connection. Raises: ConfigurationError with the remedy."""
    protocol = protocol_of(target)
    if protocol in READ_ONLY:
        raise ConfigurationError(
            f"shipping.target: {protocol}:// cannot be written to; choose a directory, s3://, gs://, abfs:// or sftp://"
        )
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError as exc:
        raise ConfigurationError(
            f"shipping.target: {protocol}:// is unknown to fsspec {fsspec.__version__}; use an absolute directory, s3://, gs://, abfs://, "
            f"sftp:// or another that it knows, or install the package that registers it"
        ) from exc
    except ImportError as exc:
        cause = exc.__cause__
        module = cause.name.split(".")[0] if isinstance(cause, ImportError) and cause.name else None
        package = f"pip install {_PACKAGES.get(module, module)}" if module else f"see: {exc}"
        raise ConfigurationError(
            f"shipping.target: {protocol}:// needs a package that is not installed; install it beside shadowrelay: {package}"
        ) from exc


def protocol_of(target: str) -> str:
    """ "file" for a directory."""
    return target.partition("://")[0].lower() if "://" in target else "file"


def open_target(target: str, options: Mapping[str, Option], server: str) -> Target:
    """Opens no connection yet. Raises as `check_target`."""
    check_target(target)
    if protocol_of(target) in ("file", "local"):
        return DirectoryTarget(Path(fsspec.get_filesystem_class("file")._strip_protocol(target)) / server)
    return StoreTarget(target, options, server)


class DirectoryTarget:
    """A local or mounted directory. Files are synced before they get their final name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, path: Path, name: str, attempt: Attempt) -> None:
        with path.open("rb") as source:
            self._write(source, name, attempt)

    def replace(self, name: str, octets: bytes, attempt: Attempt) -> None:
        self._write(octets, name, attempt)

    def _write(self, source: Any, name: str, attempt: Attempt) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        begun = self._directory / _temp_name(name)
        descriptor = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            with open(descriptor, "wb") as file:
                if isinstance(source, bytes):
                    file.write(source)
                else:
                    shutil.copyfileobj(source, file, 1024 * 1024)
                file.flush()
                os.fsync(file.fileno())
            attempt.check()
            os.replace(begun, self._directory / name)
        except BaseException:
            with contextlib.suppress(OSError):
                begun.unlink()
            raise
        sync_directory(self._directory)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def clean(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._directory):
                if name.startswith(TEMP_PREFIX):
                    (self._directory / name).unlink(missing_ok=True)

    def disconnect(self) -> None:
        return


class StoreTarget:
    """Any other store, through fsspec."""

    def __init__(self, target: str, options: Mapping[str, Option], server: str) -> None:
        self._target = target
        self._options = dict(options)
        self._server = server
        self._is_whole = protocol_of(target) in WHOLE
        self._store: tuple[Any, str] | None = None

    def put(self, path: Path, name: str, attempt: Attempt) -> None:
        store, folder = self._connect()
        if self._is_whole:
            store.put_file(str(path), f"{folder}/{name}")
            return
        begun = f"{folder}/{_temp_name(name)}"
        store.makedirs(folder, exist_ok=True)
        try:
            store.put_file(str(path), begun)
            self._finish(store, begun, f"{folder}/{name}", path.stat().st_size, attempt)
        except BaseException:
            _remove(store, begun)
            raise

    def replace(self, name: str, octets: bytes, attempt: Attempt) -> None:
        store, folder = self._connect()
        if self._is_whole:
            store.pipe_file(f"{folder}/{name}", octets)
            return
        begun = f"{folder}/{_temp_name(name)}"
        store.makedirs(folder, exist_ok=True)
        try:
            store.pipe_file(begun, octets)
            self._finish(store, begun, f"{folder}/{name}", len(octets), attempt)
        except BaseException:
            _remove(store, begun)
            raise

    def read(self, name: str) -> bytes | None:
        store, folder = self._connect()
        try:
            if not self._is_whole:
                store.info(f"{folder}/{name}")  # some, like FTP, raise no specific error when a missing file is read
            return bytes(store.cat_file(f"{folder}/{name}"))
        except OSError as exc:
            if isinstance(exc, FileNotFoundError) or exc.errno == errno.ENOENT:
                return None
            raise

    def clean(self) -> None:
        if self._is_whole:
            return
        store, folder = self._connect()
        with contextlib.suppress(FileNotFoundError):
            for path in store.ls(folder, detail=False):
                if str(path).rpartition("/")[2].startswith(TEMP_PREFIX):
                    _remove(store, path)

    def disconnect(self) -> None:
        self._store = None

    def _connect(self) -> tuple[Any, str]:
        if self._store is None:
            # not a shared instance: a connection that broke stays broken
            store, path = fsspec.core.url_to_fs(self._target, skip_instance_cache=True, **self._options)
            self._store = store, f"{path.rstrip('/')}/{self._server}"
        return self._store

    def _finish(self, store: Any, begun: str, name: str, size: int, attempt: Attempt) -> None:
        store.invalidate_cache()
        arrived = store.size(begun)
        if arrived is not None and arrived != size:
            raise OSError(errno.EIO, f"{arrived} of {size} bytes arrived")
        attempt.check()
        try:
            store.mv(begun, name)
        except Exception:
            if not store.exists(name):
                raise
            store.rm_file(name)  # SMB and some FTP servers do not rename onto an existing file
            store.mv(begun, name)


def _temp_name(name: str) -> str:
    return f"{TEMP_PREFIX}{name}.{secrets.token_hex(4)}"  # unique: an abandoned attempt may still write to its own file


def _remove(store: Any, path: str) -> None:
    with contextlib.suppress(Exception):  # the connection may be broken; `clean` removes the file at the next start
        store.rm_file(path)
