"""Reads free disk space and memory from the operating system: statvfs, /proc, control groups (Linux). docs/setup.md "Back pressure".

Implements the port `Machine`. No call takes longer than reading a file of the kernel; a file system that does not answer (of the
network) has a limit, and is not asked again while it hangs. Where a file is missing (another system), there is no reading.
"""

import ctypes
import gc
import os
from contextlib import suppress
from pathlib import Path

from shadowrelay.bounded import BoundedCalls
from shadowrelay.ports import Disk, MemoryUse

DISK_SECONDS = 2.0
PROC = Path("/proc")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
LIMIT_FILES = ("memory.max", "memory/memory.limit_in_bytes")  # control groups of version 2; of version 1, as a container sees its own


class LinuxMachine:
    """`proc` and `control_groups` are for tests."""

    def __init__(self, proc: Path = PROC, control_groups: Path = CONTROL_GROUPS) -> None:
        self._proc = proc
        self._control_groups = control_groups
        self._disks: dict[Path, BoundedCalls] = {}
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def disk(self, directory: Path) -> Disk:
        """See `ports.Machine`. A directory that hangs does not keep another one from being read."""
        calls = self._disks.setdefault(directory, BoundedCalls("disk space"))
        return calls.call(lambda: self._read_disk(directory), DISK_SECONDS)

    @staticmethod
    def _read_disk(directory: Path) -> Disk:
        found = os.statvfs(directory)
        # What is reserved for root counts neither as free nor as part of the size: this user can never have it.
        size = (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize
        return Disk(found.f_bavail * found.f_frsize, size, os.stat(directory).st_dev)

    def boot_id(self) -> str:
        """See `ports.Machine`."""
        try:
            return (self._proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    def private_bytes(self) -> int | None:
        """See `ports.Machine`."""
        try:
            _, resident, shared, *_ = (self._proc / "self/statm").read_text(encoding="ascii").split()
            return (int(resident) - int(shared)) * self._page_bytes
        except (OSError, ValueError):
            return None

    def system_memory(self) -> MemoryUse | None:
        """See `ports.Machine`."""
        try:
            lines = (self._proc / "meminfo").read_text(encoding="ascii").splitlines()
            kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
            total = kib["MemTotal"] * 1024
            return MemoryUse(total - kib["MemAvailable"] * 1024, total)
        except (OSError, ValueError, KeyError, IndexError):
            return None

    def memory_limit(self) -> int:
        """See `ports.Machine`."""
        limits = [self._limit_in(self._control_groups / name) for name in LIMIT_FILES]
        limits += [self._limit_in(directory / "memory.max") for directory in self._own_groups()]
        physical = os.sysconf("SC_PHYS_PAGES") * self._page_bytes  # not from /proc/meminfo, which a service may not see
        return min(limit for limit in (*limits, physical) if limit is not None)

    def _own_groups(self) -> list[Path]:
        """The directory of this process's control group (version 2), and of those that contain it: the lowest limit counts."""
        with suppress(OSError, ValueError):
            for line in (self._proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
                if line.startswith("0::/"):
                    own = self._control_groups / line.removeprefix("0::/")
                    return [own, *(parent for parent in own.parents if parent.is_relative_to(self._control_groups))]
        return []

    @staticmethod
    def _limit_in(path: Path) -> int | None:
        try:
            text = path.read_text(encoding="ascii").strip()
            return int(text) or None if text.isdigit() else None  # "max"
        except (OSError, ValueError):
            return None

    def collect_garbage(self) -> None:
        """See `ports.Machine`."""
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
