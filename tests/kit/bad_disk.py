"""A disk that fails or hangs under one process, and is well again, or a standard error that nobody reads: a library in front of the C
library, built where a compiler is."""

import mmap
import shutil
import subprocess
from dataclasses import replace
from enum import IntEnum
from functools import cache
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Place

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { WELL, READ_ONLY, IO_ERROR, HANGS, FULL, UNREADABLE };
static volatile char *state; /* of the disk, whether the tracking log hangs, and whether standard error does */
static const char *directory, *tracking;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("BAD_DISK_STATE");
    directory = getenv("BAD_DISK_DIRECTORY");
    tracking = getenv("BAD_DISK_TRACKING");
    int file = path && directory ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *mapped = mmap(0, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) state = mapped;
    close(file);
}

static int is_in(int file, const char *place) {
    char link[64], path[1024];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length <= 0) return 0;
    path[length] = 0;
    return !strncmp(path, place, strlen(place));
}

static int is_there(int file) { return is_in(file, directory); }

static void wait_for_log(int file) {
    if (!state || !state[1] || !tracking || !is_in(file, tracking)) return;
    while (state[1]) {
        struct timespec pause = {0, 10000000};
        nanosleep(&pause, 0);
    }
}

static void wait_for_reader(int file) {
    while (file == STDERR_FILENO && state && state[2]) {
        struct timespec pause = {0, 10000000};
        nanosleep(&pause, 0);
    }
}

static int fails(int file, int is_sync) {
    wait_for_reader(file);
    wait_for_log(file);
    if (!state || *state == WELL || !is_there(file)) return 0;
    if (is_sync)
        while (*state == HANGS) {
            struct timespec pause = {0, 10000000};
            nanosleep(&pause, 0);
        }
    if (*state == FULL && !is_sync) {
        errno = ENOSPC;
        return 1;
    }
    if (*state != READ_ONLY && *state != IO_ERROR) return 0;
    errno = *state == READ_ONLY ? EROFS : EIO;
    return 1;
}

static int is_unreadable(int file) {
    if (!state || *state != UNREADABLE || !is_there(file)) return 0;
    errno = EIO;
    return 1;
}

#define REAL(name) ({ static __typeof__(name) *found; if (!found) found = dlsym(RTLD_NEXT, #name); found; })
int fsync(int file) { return fails(file, 1) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return fails(file, 1) ? -1 : REAL(fdatasync)(file); }
ssize_t write(int file, const void *data, size_t size) { return fails(file, 0) ? -1 : REAL(write)(file, data, size); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { return fails(file, 0) ? -1 : REAL(pwrite)(file, data, size, at); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { return fails(file, 0) ? -1 : REAL(pwrite64)(file, data, size, at); }
ssize_t read(int file, void *data, size_t size) { return is_unreadable(file) ? -1 : REAL(read)(file, data, size); }
ssize_t pread(int file, void *data, size_t size, off_t at) { return is_unreadable(file) ? -1 : REAL(pread)(file, data, size, at); }
ssize_t pread64(int file, void *data, size_t size, off64_t at) { return is_unreadable(file) ? -1 : REAL(pread64)(file, data, size, at); }
"""


class DiskState(IntEnum):
    """As in the library."""

    WELL = 0
    READ_ONLY = 1
    IO_ERROR = 2
    HANGS = 3  # in each sync
    FULL = 4  # for good: there is no room for a single octet
    UNREADABLE = 5  # what is written is synced


class BadDisk:
    """The disk of one node of a cluster whose files are in `directory`. Start the node at `place`."""

    def __init__(self, place: Place, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{place.name}.disk"
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            self._state = mmap.mmap(file.fileno(), 4096)
        library = built(directory)
        node = directory / place.name
        settings = {
            "LD_PRELOAD": library,
            "BAD_DISK_STATE": path,
            "BAD_DISK_DIRECTORY": node / "data",
            "BAD_DISK_TRACKING": node / "tracking",
        }
        self.place = replace(place, inside=(*place.inside, "env", *(f"{name}={value}" for name, value in settings.items())))

    def become(self, state: DiskState) -> None:
        """From now on."""
        self._state[0] = state

    def tracking_hangs(self, is_hanging: bool) -> None:
        """From now on calls for the files of the tracking log, which are on another disk, do not return, or do again."""
        self._state[1] = is_hanging

    def standard_error_hangs(self, is_hanging: bool) -> None:
        """From now on writes to it do not return, as when a pipe is full that nobody reads, or do again."""
        self._state[2] = is_hanging


@cache
def built(directory: Path) -> Path:
    """The library. Skips the test where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = directory / "bad_disk.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-o", str(library), "-", "-ldl"]
    subprocess.run(command, input=SOURCE.encode(), check=True, capture_output=True)
    return library
