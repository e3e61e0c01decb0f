"""Machines of a test as Linux makes them: network namespaces that can be cut apart, and disks that can lose their power.

Each machine has a link to the test, which carries packets between machines. The test is in a namespace too while it has them (`hub`):
servers that it starts are on `HUB_HOST`, which all machines reach at all times. No address and no interface is outside of these
namespaces.

A disk is an image of ext4, mounted where only the processes of its machine see it. When the power fails, the file system is shut down
(EXT4_IOC_SHUTDOWN, as the tests of file systems do it): what was not synced is gone, and the next mount finds what a machine finds that
lost its power. What ext4 wrote by itself before is there, as in life; it is asked not to.
"""

import ctypes
import fcntl
import glob
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

NETWORK = "10.77.0.0/16"
HUB_HOST = "10.77.0.1"
CLONE_NEWNET = 0x40000000
OWN_NAMESPACE = Path("/proc/thread-self/ns/net")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")  # of the namespace of the thread that opens it
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 0x1  # of a network interface: linux/sockios.h, linux/if.h
LISTENING = "0A"  # a state in /proc/net/tcp
INSIDE_NAME = b"hub"  # of the machine's only interface


@dataclass(slots=True)
class LinuxMachine:
    """`inside`: a command before another one, which then runs on this machine."""

    name: str
    namespace: str
    number: int
    hub: str  # its namespace
    _control: socket.socket | None = None

    @property
    def host(self) -> str:
        return f"10.77.{self.number}.2"

    @property
    def network(self) -> str:
        return f"10.77.{self.number}.0/24"

    @property
    def inside(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.namespace)

    def plug_in(self) -> None:
        """A new kernel: whatever was connected to the one before is unknown to it."""
        self.remove()
        link = f"machine{self.number}"
        _ip("netns", "add", self.namespace)
        _ip_all(
            self.hub,
            f"link add {link} type veth peer name {INSIDE_NAME.decode()} netns {self.namespace}",
            f"address add 10.77.{self.number}.1/24 dev {link}",
            f"link set {link} up",
        )
        _ip_all(
            self.namespace,
            "link set lo up",
            f"address add {self.host}/24 dev {INSIDE_NAME.decode()}",
            f"link set {INSIDE_NAME.decode()} up",
            f"route add default via 10.77.{self.number}.1",
        )
        with self.entered():
            self._control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def entered(self) -> AbstractContextManager[None]:
        """Sockets that are made meanwhile are this machine's."""
        return inside(self.namespace)

    def unplug(self) -> None:
        """From now on nothing leaves it, and nothing reaches it. Nobody is told."""
        assert self._control is not None
        name, flags = struct.unpack("16sh", fcntl.ioctl(self._control, GET_FLAGS, struct.pack("16sh", INSIDE_NAME, 0)))
        fcntl.ioctl(self._control, SET_FLAGS, struct.pack("16sh", name, flags & ~UP))

    def remove(self) -> None:
        """With all its connections."""
        if self._control is None:
            return
        self._control.close()
        self._control = None
        _ip("-n", self.namespace, "link", "delete", INSIDE_NAME.decode())
        _ip("netns", "delete", self.namespace)


@dataclass(slots=True)
class Hub:
    """The machines, in the order of the names that were asked for."""

    namespace: str
    machines: dict[str, LinuxMachine]
    host: str = HUB_HOST
    network: str = NETWORK
    _parted: list[str] = field(default_factory=list)

    def cut(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Packets from the first to the second machine of a pair are dropped without a word. Without `pairs`: between all."""
        if pairs is None:
            pairs = [(one, other) for one in self.machines for other in self.machines if one != other]
        rules = [f"from {self.machines[one].network} to {self.machines[other].network} blackhole" for one, other in pairs]
        _ip_all(self.namespace, *(f"rule add {rule}" for rule in rules))
        self._parted += rules

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """They are carried again. Without `pairs`: between all."""
        rules = list(self._parted)
        if pairs is not None:
            wanted = [f"from {self.machines[one].network} to {self.machines[other].network} blackhole" for one, other in pairs]
            rules = [rule for rule in rules if rule in wanted]
        _ip_all(self.namespace, *(f"rule delete {rule}" for rule in rules))
        for rule in rules:
            self._parted.remove(rule)


def in_flight(process: int) -> int:
    """How many octets the machine of this process has sent by TCP without an answer yet, or received and not given to a program."""
    lines = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    queues = [line.split()[4].split(":") for line in lines if line.split()[3] != LISTENING]
    return sum(int(sent, 16) + int(received, 16) for sent, received in queues)


def obstacle() -> str:
    """Why there can be no such machines here; empty: there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need ip: apt-get install iproute2"
    name = f"shadowrelay-{os.getpid()}-probe"
    try:
        with _namespace(name):
            _ip("-n", name, "link", "add", "type", "veth")
            _ip("-n", name, "rule", "add", "from", NETWORK, "blackhole")
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return ""


@contextmanager
def machines(names: Sequence[str]) -> Iterator[Hub]:
    """So many machines. The calling thread, and what it starts, is in the hub until the end."""
    with ExitStack() as stack:
        prefix = f"shadowrelay-{os.getpid()}"
        hub = stack.enter_context(_namespace(f"{prefix}-hub"))
        _ip("-n", hub, "address", "add", HUB_HOST, "dev", "lo")
        made = {name: LinuxMachine(name, f"{prefix}-{number}", number, hub) for number, name in enumerate(names, start=1)}
        for machine in made.values():
            machine.plug_in()
            stack.callback(machine.remove)
        with inside(hub):
            FORWARDING.write_text("1")
            yield Hub(hub, made)


@contextmanager
def _namespace(name: str) -> Iterator[str]:
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _ip("netns", "delete", name)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """A network namespace, for this thread alone, and those that it starts."""
    with OWN_NAMESPACE.open() as before, Path("/run/netns", name).open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:  # os.setns: Python 3.12
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _ip_all(namespace: str, *lines: str) -> None:
    """All in one process."""
    subprocess.run(["ip", "-n", namespace, "-batch", "-"], input="\n".join(lines), check=True, capture_output=True, text=True)


# ---- kernels

BOOT_ID = "/proc/sys/kernel/random/boot_id"
SHOW_BOOT_ID = f'mount --bind "$1" {BOOT_ID} && shift && exec "$@"'


class Kernel:
    """The boot id that the nodes of one machine read, by `inside` before their command. It is another one after the next boot."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.boot()

    @property
    def inside(self) -> tuple[str, ...]:
        return ("sh", "-c", SHOW_BOOT_ID, "sh", str(self._file))

    def boot(self) -> None:
        """A new file, so that processes that still run keep the former id."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{uuid4()}\n")
        new.replace(self._file)


# ---- disks

SIZE_BYTES = 2 * 10**9  # most of it never written: the image has holes
MAKE = ("mkfs.ext4", "-q", "-F", "-J", "size=8", "-N", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0")
FREEZE, THAW = 0xC0045877, 0xC0045878  # FIFREEZE, FITHAW
SHUT_DOWN, WITHOUT_ITS_LOG = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
FREE_SECONDS_MAX = 30.0
MOUNT = 'mount -o loop,noatime,commit=600 "$1" "$2" && shift 2 && exec "$@"'


class Disk:
    """One disk, which is mounted on `place` for a process and all that it starts, by `inside` before its command.

    In memory where it can be: what its file system calls synced is in the image, and no other disk makes it wait.
    """

    def __init__(self, place: Path, directory: Path) -> None:
        self.place, self.image = place, directory / f"{place.parent.name}.ext4"
        self._opened: int | None = None
        self.make()

    @property
    def inside(self) -> tuple[str, ...]:
        return ("sh", "-c", MOUNT, "sh", str(self.image), str(self.place))

    def make(self) -> None:
        """A new and empty one, also in place of the one before."""
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.image.unlink(missing_ok=True)
        with self.image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        subprocess.run([*MAKE, str(self.image)], check=True, capture_output=True)

    @property
    def is_watched(self) -> bool:
        return self._opened is not None

    def watch(self, process: int) -> bool:
        """If it is mounted for this process, its power can fail from now on."""
        self.release()
        try:
            opened = os.open(f"/proc/{process}/root{self.place}", os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return False  # the process has ended
        if os.fstat(opened).st_dev == self.place.stat().st_dev:
            os.close(opened)
            return False
        self._opened = opened
        return True

    def lose_power(self) -> None:
        """Whatever is not synced now is lost."""
        assert self._opened is not None
        fcntl.ioctl(self._opened, SHUT_DOWN, struct.pack("I", WITHOUT_ITS_LOG))
        self.release()

    def snapshot(self) -> Path:
        """A copy of it as it is at one instant, also while it is mounted: a machine's snapshot."""
        copy = self.image.with_suffix(f".{time.monotonic_ns()}")
        with self._frozen():
            subprocess.run(["cp", "--sparse=always", str(self.image), str(copy)], check=True, capture_output=True)
        return copy

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Meanwhile its file system writes nothing, and what was written to it before is in the image."""
        if self._opened is None:
            yield
            return
        fcntl.ioctl(self._opened, FREEZE, 0)
        try:
            yield
        finally:
            fcntl.ioctl(self._opened, THAW, 0)

    def put_back(self, copy: Path) -> None:
        """An older copy, which is used up. Nothing has it mounted."""
        os.replace(copy, self.image)

    def release(self) -> None:
        """Its process may end."""
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None

    def wait_until_free(self) -> None:
        """The kernel lets go of it a moment after its last process ended."""
        self.release()
        deadline = time.monotonic() + FREE_SECONDS_MAX
        while self._is_used():
            assert time.monotonic() < deadline, f"{self.image} is still mounted"
            time.sleep(0.002)

    def _is_used(self) -> bool:
        for path in glob.glob("/sys/block/loop*/loop/backing_file"):
            with suppress(OSError):
                if Path(path).read_text().removesuffix("\n") == str(self.image):
                    return True
        return False


def disk_obstacle(directory: Path) -> str:
    """Why there can be no such disks here; empty: there can."""
    if os.geteuid() != 0:
        return "disks that lose their power need root"
    for program in ("mkfs.ext4", "mount", "unshare"):
        if shutil.which(program) is None:
            return f"disks that lose their power need {program}"
    disk = Disk(directory / "probe" / "data", directory)
    tried = subprocess.run(["unshare", "--mount", *disk.inside, "true"], capture_output=True, text=True, check=False)
    disk.wait_until_free()
    disk.image.unlink()
    return f"no disks that lose their power here: {tried.stderr.strip()}" if tried.returncode else ""
