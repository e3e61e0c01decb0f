"""What Linux says: real files of the kernel, and made-up ones."""

import mmap
import os
from pathlib import Path

import pytest

from shadowrelay.machine import LinuxMachine

MEMINFO = "MemTotal:       1000 kB\nMemFree:         10 kB\nMemAvailable:    250 kB\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/self/statm").write_text("9000 300 100 1 0 50 0\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/shadowrelay.service\n")
    return tmp_path / "proc"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    (tmp_path / "cgroup/system.slice/shadowrelay.service").mkdir(parents=True)
    return tmp_path / "cgroup"


def test_the_numbers_of_this_machine_are_plausible(tmp_path: Path) -> None:
    machine = LinuxMachine()
    disk, memory, private = machine.disk(tmp_path), machine.system_memory(), machine.private_bytes()

    assert 0 < disk.free <= disk.size
    assert os.stat(tmp_path).st_dev == disk.device
    assert memory is not None
    assert private is not None
    assert 0 < memory.used < memory.total
    assert 1_000_000 < private < machine.memory_limit() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_memory_that_a_process_really_takes_is_seen() -> None:
    machine = LinuxMachine()
    before = machine.private_bytes()
    block = mmap.mmap(-1, 64_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # not what the process had already, and freed
    block.write(b"x" * 64_000_000)
    after = machine.private_bytes()

    assert before is not None
    assert after is not None
    assert 50_000_000 < after - before < 200_000_000
    block.close()


def test_files_of_the_kernel_are_read_as_they_are_written(proc: Path, groups: Path) -> None:
    machine = LinuxMachine(proc, groups)
    memory = machine.system_memory()

    assert (750 * 1024, 1000 * 1024) == (memory and memory.used, memory and memory.total)
    assert 200 * os.sysconf("SC_PAGE_SIZE") == machine.private_bytes()


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("system.slice/shadowrelay.service/memory.max", "500000000\n", 500_000_000),
        ("system.slice/memory.max", "400000000\n", 400_000_000),
        ("memory.max", "300000000\n", 300_000_000),  # a container sees its own group as the root
        ("memory/memory.limit_in_bytes", "200000000\n", 200_000_000),
        ("system.slice/shadowrelay.service/memory.max", "max\n", None),
        ("memory.max", "0\n", None),
        ("memory.max", "x\n", None),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),  # none, in version 1
    ],
)
def test_the_lowest_limit_of_memory_counts(proc: Path, groups: Path, file: str, text: str, limit: int | None) -> None:
    (groups / file).parent.mkdir(parents=True, exist_ok=True)
    (groups / file).write_text(text)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    assert (limit or physical) == LinuxMachine(proc, groups).memory_limit()


@pytest.mark.parametrize("text", [None, "", "garbage\n", "MemTotal: x kB\n", "MemTotal:\n"])
def test_what_cannot_be_read_is_no_reading(proc: Path, groups: Path, text: str | None) -> None:
    for name in ("meminfo", "self/statm", "self/cgroup"):
        if text is None:
            (proc / name).unlink()
        else:
            (proc / name).write_text(text)
    machine = LinuxMachine(proc, groups)

    assert (None, None) == (machine.system_memory(), machine.private_bytes())
    assert machine.memory_limit() > 0


def test_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LinuxMachine().disk(tmp_path / "gone")


def test_garbage_is_collected() -> None:
    class Knot:
        other: object = None

    one = Knot()
    one.other = one
    gone: list[int] = []
    import weakref

    weakref.finalize(one, gone.append, 1)
    del one

    LinuxMachine().collect_garbage()

    assert [1] == gone
