"""A machine whose disks and memory are what a test says."""

from dataclasses import dataclass, field
from pathlib import Path

from shadowrelay.ports import Disk, MemoryUse

GB = 1_000_000_000


@dataclass
class FakeMachine:
    """Port `Machine`: plenty of everything. `disks` and `errors` by directory; `error` makes every disk unreadable."""

    free: int = 100 * GB
    size: int = 200 * GB
    disks: dict[Path, Disk] = field(default_factory=dict)
    error: OSError | None = None
    errors: dict[Path, OSError] = field(default_factory=dict)
    private: int | None = 50_000_000
    limit: int = 8 * GB
    memory: MemoryUse | None = field(default_factory=lambda: MemoryUse(1 * GB, 8 * GB))
    collections_count: int = 0
    boot: str = ""

    def disk(self, directory: Path) -> Disk:
        if self.error is not None:
            raise self.error
        if directory in self.errors:
            raise self.errors[directory]
        return self.disks.get(directory, Disk(self.free, self.size, 1))

    def boot_id(self) -> str:
        return self.boot

    def private_bytes(self) -> int | None:
        return self.private

    def memory_limit(self) -> int:
        return self.limit

    def system_memory(self) -> MemoryUse | None:
        return self.memory

    def collect_garbage(self) -> None:
        self.collections_count += 1

    def fill(self, percent: float) -> None:
        """So many per cent of what the defaults allow a node to use of this disk are used."""
        floor, size = 54_000_000, 50 * GB
        self.free = floor + round((size - floor) * (100 - percent) / 100)
