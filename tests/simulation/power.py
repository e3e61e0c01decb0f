"""What a loss of power leaves of a directory: what was synced, and of the rest whatever `chance` leaves.

SQLite's files are seen through a VFS around its own: each write and truncation waits, and counts as on the disk after the `xSync` of
that file. Other files are seen through `os`: the content of a file is on the disk after its `fsync`, or right after a write through a
descriptor with O_DSYNC; a name, new or removed, after the `fsync` of its directory. SQLite asks for the sync of a directory by its system
call `openDirectory`, which is seen, too. Nothing else is believed: with `PRAGMA synchronous = OFF`, without O_DSYNC, or without the
`fsync` of a directory, messages are lost here.

When the power fails, each waiting write of SQLite survives or not, a whole file that was never synced is there or empty, and a name that
waits is new or old. So what was written later may survive what was written earlier, as on a disk with a cache.

Not covered: a sector torn in two, a sync that says that it is done and is not, and a failure in the middle of a transaction's own
writes (a world ends a process only between two callbacks, and a commit is one). File systems that never reuse the number of a file
are needed: tmpfs is one.
"""

import ctypes
import fcntl
import os
import random
import shutil
import stat
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

VFS_NAME = b"forgets"
OK = 0
SURVIVES = 0.5
POINTER, WHOLE = ctypes.c_void_p, ctypes.c_int


class _Vfs(ctypes.Structure):
    _fields_ = (
        *((name, WHOLE) for name in ("version", "file_size", "path_max")),
        *((name, POINTER) for name in ("following", "name", "own", "open", "delete", "access", "full_path")),
        *((f"library_{number}", POINTER) for number in range(4)),
        *((name, POINTER) for name in ("randomness", "sleep", "time", "last_error", "time_64", "set_call", "get_call", "next_call")),
    )


class _Methods(ctypes.Structure):
    _fields_ = (
        ("version", WHOLE),
        *((name, POINTER) for name in ("close", "read", "write", "truncate", "sync")),
        *((f"other_{number}", POINTER) for number in range(12)),
    )


OPEN = ctypes.CFUNCTYPE(WHOLE, POINTER, POINTER, POINTER, WHOLE, POINTER)  # SQLite keeps the address of the name
CLOSE = ctypes.CFUNCTYPE(WHOLE, POINTER)
WRITE = ctypes.CFUNCTYPE(WHOLE, POINTER, POINTER, WHOLE, ctypes.c_int64)
USUAL_WRITE = ctypes.PYFUNCTYPE(WHOLE, POINTER, POINTER, WHOLE, ctypes.c_int64)  # no other thread waits for the interpreter
TRUNCATE = ctypes.CFUNCTYPE(WHOLE, POINTER, ctypes.c_int64)
SYNC = ctypes.CFUNCTYPE(WHOLE, POINTER, WHOLE)
OPEN_DIRECTORY = ctypes.CFUNCTYPE(WHOLE, ctypes.c_char_p, POINTER)
SET_CALL = ctypes.CFUNCTYPE(WHOLE, POINTER, ctypes.c_char_p, POINTER)
GET_CALL = ctypes.CFUNCTYPE(POINTER, POINTER, ctypes.c_char_p)

Write = tuple[int, bytes | None]  # where, what; `None`: the file ends there
Remains = dict[str, bytes | None]  # by path below the directory; `None` is a directory


class Power:
    """Watches everything below `root` while `installed`. Files are known by their numbers, so that a new name changes nothing."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root, self._chance = str(root), chance
        self._synced: dict[int, bytearray] = {}  # contents
        self._names: dict[int, dict[str, int]] = {}  # of a directory, as synced
        self._waiting: dict[int, list[Write]] = defaultdict(list)  # what SQLite wrote since the last sync
        self._open: dict[int, int] = {}  # by address of SQLite's file
        self._tables: dict[int, _Methods] = {}
        self._paths: dict[int, str] = {}  # of SQLite's files
        self._kept: list[Any] = []  # callbacks, and what they are called by

    def unsynced(self, directory: Path) -> list[str]:
        """SQLite's files there that have something to lose."""
        return [path for number, path in self._paths.items() if self._waiting[number] and path.startswith(f"{directory}/")]

    # what is synced

    def _is_mine(self, path: str) -> bool:
        return path.startswith(self._root)

    def _synced_file(self, path: str) -> None:
        with open(path, "rb") as file:
            self._synced[os.fstat(file.fileno()).st_ino] = bytearray(file.read())

    def _synced_directory(self, path: str) -> None:
        with os.scandir(path) as entries:
            self._names[os.stat(path).st_ino] = {entry.name: entry.inode() for entry in entries}

    def _fsynced(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not self._is_mine(path):
            return
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._synced_directory(path)
        else:
            self._synced_file(path)

    def _written(self, descriptor: int, data: bytes) -> None:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if not flags & os.O_DSYNC or not self._is_mine(path := os.readlink(f"/proc/self/fd/{descriptor}")):
            return
        if flags & os.O_APPEND:
            self._synced.setdefault(os.fstat(descriptor).st_ino, bytearray()).extend(data)
        else:
            self._synced_file(path)

    # what is left

    def fail(self, directory: Path) -> Remains:
        """What would be there now if the power failed."""
        remains: Remains = {}
        if directory.is_dir():
            self._remains_of(str(directory), os.stat(directory).st_ino, "", remains)
        return remains

    def _remains_of(self, path: str, number: int, prefix: str, remains: Remains) -> None:
        with os.scandir(path) as entries:
            now = {entry.name: entry.inode() for entry in entries if not entry.name.endswith("-shm")}  # SQLite makes that anew
        synced = self._names.get(number, {})
        for name in sorted({*now, *synced}):
            before, after = synced.get(name), now.get(name)
            found = after if before == after or self._chance.random() < SURVIVES else before
            if found is None or name.endswith("-shm"):
                continue
            is_there = found == after
            if is_there and os.path.isdir(f"{path}/{name}"):
                remains[prefix + name] = None
                self._remains_of(f"{path}/{name}", found, f"{prefix}{name}/", remains)
            else:
                remains[prefix + name] = self._remains_of_file(found, f"{path}/{name}" if is_there else "")

    def _remains_of_file(self, number: int, path: str) -> bytes:
        synced, waiting = self._synced.get(number), self._waiting.get(number, ())
        if synced is None and not waiting and path and self._chance.random() < SURVIVES:
            return Path(path).read_bytes()
        data = bytearray(synced or b"")
        for write in waiting:
            if self._chance.random() < SURVIVES:
                _apply(data, write)
        return bytes(data)

    def put_back(self, directory: Path, remains: Remains) -> None:
        """The power is back: only this is there, and all of it is on the disk."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        for name, data in remains.items():
            if data is None:
                (directory / name).mkdir(mode=0o700)
            else:
                (directory / name).write_bytes(data)
        self.settle(directory)

    def settle(self, directory: Path) -> None:
        """All that is there is on the disk."""
        for path, _, files in os.walk(directory):
            self._synced_directory(path)
            for name in files:
                self._synced_file(f"{path}/{name}")

    # SQLite

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Every connection that is opened meanwhile is watched."""
        library = ctypes.CDLL("libsqlite3.so.0")
        library.sqlite3_vfs_find.restype = POINTER
        usual = library.sqlite3_vfs_find(None)
        vfs = _Vfs.from_buffer_copy(ctypes.string_at(usual, ctypes.sizeof(_Vfs)))
        usual_open, get_call, set_call = OPEN(vfs.open), GET_CALL(vfs.get_call), SET_CALL(vfs.set_call)
        usual_directory = get_call(usual, b"openDirectory")
        open_directory = OPEN_DIRECTORY(usual_directory)

        def opened(this: int, path: int | None, file: int, flags: int, out: int) -> int:
            code = usual_open(this, path, file, flags, out)
            if code == OK and path is not None and self._is_mine(text := os.fsdecode(ctypes.string_at(path))):
                self._watch(file, text)
            return int(code)

        def asked_for_directory(path: bytes, descriptor: int) -> int:
            code = open_directory(path, descriptor)
            text = os.fsdecode(path)
            if code == OK and self._is_mine(text):
                self._synced_directory(text if os.path.isdir(text) else os.path.dirname(text))
            return int(code)

        name = ctypes.create_string_buffer(VFS_NAME)
        callback, directory_callback = OPEN(opened), OPEN_DIRECTORY(asked_for_directory)
        vfs.open, vfs.name, vfs.following = ctypes.cast(callback, POINTER), ctypes.addressof(name), None
        self._kept += [vfs, name, callback, directory_callback]
        fsync, fdatasync, write = os.fsync, os.fdatasync, os.write

        def noted_fsync(descriptor: int) -> None:
            fsync(descriptor)
            self._fsynced(descriptor)

        def noted_fdatasync(descriptor: int) -> None:
            fdatasync(descriptor)
            self._fsynced(descriptor)

        def noted_write(descriptor: int, data: Any) -> int:
            count = write(descriptor, data)
            self._written(descriptor, bytes(data[:count]))
            return count

        with (
            mock.patch("os.fsync", noted_fsync),
            mock.patch("os.fdatasync", noted_fdatasync),
            mock.patch("os.write", noted_write),
        ):
            library.sqlite3_vfs_register(ctypes.byref(vfs), 1)
            set_call(usual, b"openDirectory", ctypes.cast(directory_callback, POINTER))
            try:
                yield
            finally:
                set_call(usual, b"openDirectory", usual_directory)
                library.sqlite3_vfs_register(POINTER(usual), 1)
                library.sqlite3_vfs_unregister(ctypes.byref(vfs))

    def _watch(self, file: int, path: str) -> None:
        number = os.stat(path).st_ino
        self._open[file], self._paths[number] = number, path
        pointer = POINTER.from_address(file)
        address = pointer.value
        assert address is not None
        table = self._tables.get(address)
        if table is None:
            table = self._tables[address] = self._table(address)
        pointer.value = ctypes.addressof(table)

    def _table(self, address: int) -> _Methods:
        """SQLite's own for such files, with ours in between."""
        table = _Methods.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(_Methods)))
        usual_close, usual_write = CLOSE(table.close), USUAL_WRITE(table.write)
        usual_truncate, usual_sync = TRUNCATE(table.truncate), SYNC(table.sync)

        def close(file: int) -> int:
            self._open.pop(file, None)
            return int(usual_close(file))

        def write(file: int, data: int, size: int, offset: int) -> int:
            code = usual_write(file, data, size, offset)
            if code == OK:
                self._waiting[self._open[file]].append((offset, ctypes.string_at(data, size)))
            return code

        def truncate(file: int, size: int) -> int:
            code = usual_truncate(file, size)
            if code == OK:
                self._waiting[self._open[file]].append((size, None))
            return int(code)

        def sync(file: int, flags: int) -> int:
            code = usual_sync(file, flags)
            if code == OK:
                number = self._open[file]
                data = self._synced.setdefault(number, bytearray())
                for waiting in self._waiting.pop(number, ()):
                    _apply(data, waiting)
            return int(code)

        callbacks = CLOSE(close), WRITE(write), TRUNCATE(truncate), SYNC(sync)
        self._kept += callbacks
        table.close, table.write, table.truncate, table.sync = (ctypes.cast(one, POINTER) for one in callbacks)
        return table


def _apply(data: bytearray, write: Write) -> None:
    offset, new = write
    if new is None:
        del data[offset:]
    if len(data) < offset:
        data += bytes(offset - len(data))
    if new is not None:
        data[offset : offset + len(new)] = new
