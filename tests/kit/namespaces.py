"""Machines as network namespaces, each with a link of its own to the test, which carries packets between them until it cuts them apart.

The test is in a namespace too while it has them: servers that it starts are on `Hub.host`, which all machines reach at all times. No
address and no interface is outside of these namespaces.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

NETWORK = "10.77.0.0/16"
HUB_HOST = "10.77.0.1"
CLONE_NEWNET = 0x40000000
OWN_NAMESPACE = Path("/proc/thread-self/ns/net")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")  # of the namespace of the thread that opens it


@dataclass(frozen=True, slots=True)
class Machine:
    """`inside`: a command before another one, which then runs on this machine."""

    host: str
    inside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hub:
    """In the order of the names that were asked for."""

    machines: tuple[Machine, ...]
    host: str = HUB_HOST
    network: str = NETWORK

    def cut(self) -> None:
        """Packets between machines are dropped without a word."""
        FORWARDING.write_text("0")

    def heal(self) -> None:
        """They are carried again."""
        FORWARDING.write_text("1")


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
        made = []
        for number, name in enumerate(names, start=1):
            machine, gateway, host = stack.enter_context(_namespace(f"{prefix}-{name}")), f"10.77.{number}.1", f"10.77.{number}.2"
            _ip("-n", hub, "link", "add", name, "type", "veth", "peer", "name", "hub", "netns", machine)
            for place, interface, address in ((hub, name, gateway), (machine, "hub", host)):
                _ip("-n", place, "address", "add", f"{address}/24", "dev", interface)
                _ip("-n", place, "link", "set", interface, "up")
            _ip("-n", machine, "route", "add", "default", "via", gateway)
            made.append(Machine(host, ("ip", "netns", "exec", machine)))
        stack.enter_context(_inside(hub))
        found = Hub(tuple(made))
        found.heal()
        yield found


@contextmanager
def _namespace(name: str) -> Iterator[str]:
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        _ip("netns", "delete", name)


@contextmanager
def _inside(name: str) -> Iterator[None]:
    """Of this thread alone, and those that it starts."""
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
