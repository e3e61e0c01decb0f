"""Nodes on machines of their own for an episode, with disks that can lose power, burn, come back older or take no writes, and the servers
around them: next hops, one that refuses everything, and that of the senders, which gets the DSNs."""

import asyncio
import re
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from shadowrelay.lab import traffic
from shadowrelay.lab.cluster import SERVE, Cluster, NodeProcess, Place
from shadowrelay.model.message import Content, Envelope
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.settings.authority import make_authority, signed_pems
from tests.crash.layout import Layout
from tests.crash.outage_plan import TIMES
from tests.crash.ring import transport
from tests.kit.bad_disk import BadDisk
from tests.kit.machines import Disk, Hub, Kernel, in_flight, machines
from tests.kit.memory_disk import place_in_memory
from tests.kit.processes import wait_until_peers_know_each_other

GONE, SENDERS = "gone.example", "client.example"  # domains: of recipients that no longer exist, and of all senders
NO_SUCH_USER = Reply(550, "5.1.1", "No such user here")
_FINAL_RECIPIENT = re.compile(rb"^Final-Recipient: *rfc822; *(\S+)", re.MULTILINE | re.IGNORECASE)
_NUMBER = re.compile(rb"^X-Lab: (\d+)", re.MULTILINE)
_NOTIFIES_FAILURE = re.compile(rb"^Action: *failed", re.MULTILINE | re.IGNORECASE)


# ---- the servers around


class Gone(traffic.Sink):
    """Refuses every message for good."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub.host, hub.network)

    async def accept(self, envelope: Envelope, content: Content) -> Reply:
        return NO_SUCH_USER


class Senders(traffic.Sink):
    """The server of the senders. `returned`: number of the message and recipient of each failure DSN, in order."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub.host, hub.network)
        self.returned: list[tuple[int, str]] = []

    async def accept(self, envelope: Envelope, content: Content) -> Reply:
        reply = await super().accept(envelope, content)
        if reply.is_positive:
            data = content.data if content.data is not None else content.path.read_bytes() if content.path is not None else b""
            number = _NUMBER.search(data)
            if _NOTIFIES_FAILURE.search(data):
                recipients = [found.decode() for found in _FINAL_RECIPIENT.findall(data)]
                self.returned += [(int(number.group(1)) if number else 0, recipient) for recipient in recipients]
        return reply


class SealedCluster(Cluster):
    """Nodes with a certificate each. Peers are believed for theirs, not for an address."""

    def __init__(self, places: Sequence[Place], next_hop: HostPort | None, **named: Any) -> None:
        files = {key: f"node.{key}" for key in ("certificate", "key", "peer_authority")}
        super().__init__(places, next_hop, tables={"tls": files}, **named)
        self._authority = make_authority("crash ring", timedelta(days=2))

    def _configuration(self, node: NodeProcess) -> str:
        certificate, key = signed_pems(self._authority, node.name, timedelta(days=1))
        for name, pem in (("certificate", certificate), ("key", key), ("peer_authority", self._authority.pem)):
            (node.directory / f"node.{name}").write_bytes(pem)
        (node.directory / "node.key").chmod(0o600)
        lines = super()._configuration(node).splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("externally_secured"))


def settings_of(layout: Layout) -> dict[str, object]:
    """`[transport]` of every node. A previous hop takes back after the span, too."""
    settings: dict[str, object] = {**transport(TIMES), "shadow_copies": layout.copies}
    if layout.is_chain:
        settings |= {
            "shadow_heartbeat_timeout_interval": f"{TIMES.heartbeat:g}s",
            "shadow_heartbeat_retry_count": int(TIMES.span / TIMES.heartbeat),
            "reject_message_on_shadow_failure": False,
        }
    if layout.machines:
        settings["shared_fate_is_redundant"] = False
    return settings


# ---- the machines


@dataclass(slots=True)
class Site:
    """The machines of a layout and what runs on them. `dark_at`: when a node had certainly lost power, which takes a while on a busy
    machine; `wiped_at`: when its disk burnt last, or was replaced by an older copy (time.time). `sick`: what makes disks take no writes.
    `gone` refuses all mail; `senders` gets the DSNs about that."""

    cluster: Cluster
    hub: Hub
    disks: dict[str, Disk]
    sinks: tuple[traffic.Sink, ...]
    senders: Senders
    layout: Layout
    kernels: dict[tuple[str, ...], Kernel] = field(default_factory=dict)  # of machines with several nodes
    sick: dict[str, BadDisk] = field(default_factory=dict)
    dark_at: dict[str, float] = field(default_factory=dict)
    wiped_at: dict[str, float] = field(default_factory=dict)

    def is_quiet(self) -> bool:
        """No kernel has octets for another machine that have not arrived: after a partition TCP takes its time."""
        running = [node.process for node in self.cluster.nodes.values() if node.process is not None]
        return not any(in_flight(process.pid) for process in running)

    def lose_power(self, names: Sequence[str]) -> float:
        """Of all at the same instant. Returns it."""
        nodes = [self.cluster.nodes[name] for name in names]
        at = time.time()
        for name in names:
            self.hub.machines[name].unplug()
        for node in nodes:
            node.kill_now()
        for name in names:
            self.disks[name].lose_power()
        self.dark_at |= dict.fromkeys(names, time.time())
        for nodes_of_it, kernel in self.kernels.items():
            if set(nodes_of_it) <= set(names):
                kernel.boot()
        return at

    async def wait_until_stopped(self, name: str) -> None:
        """If it was killed: its disk is nobody's then."""
        node = self.cluster.nodes[name]
        if node.is_killed:
            await node.kill()
            await asyncio.to_thread(self.disks[name].wait_until_free)

    async def have_power(self, names: Sequence[str], burnt: Sequence[str] = ()) -> None:
        """Start them all, and wait until they answer."""
        await asyncio.gather(*(self._start(name, is_burnt=name in burnt) for name in names))

    async def flicker(self, names: Sequence[str], seconds: float) -> float:
        """They have power for so long, and then none again, whether they were started or not. Returns when they lost it."""
        starts = [asyncio.create_task(self._start(name, is_burnt=False)) for name in names]
        await asyncio.sleep(seconds)
        await asyncio.gather(*(self._wait_for_disk(name) for name in names))
        lost_at = self.lose_power(names)
        await asyncio.gather(*starts, return_exceptions=True)
        return lost_at

    async def _start(self, name: str, *, is_burnt: bool) -> None:
        await self.cluster.nodes[name].kill()
        await asyncio.to_thread(self.disks[name].wait_until_free)
        if is_burnt:
            await asyncio.to_thread(self.disks[name].make)
        await asyncio.to_thread(self.hub.machines[name].plug_in)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.cluster.nodes[name].start())
            group.create_task(self._wait_for_disk(name))

    async def _wait_for_disk(self, name: str) -> None:
        """It is mounted by the process that will be the node; from then on its power can fail."""
        node, disk = self.cluster.nodes[name], self.disks[name]
        while not disk.is_watched and not (node.process is not None and node.is_running and disk.watch(node.process.pid)):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def a_site(layout: Layout, directory: Path, program: Sequence[str] = SERVE, *, can_be_sick: bool = False) -> AsyncIterator[Site]:
    """All nodes run and know each other. Everything ends with it."""
    with (
        tempfile.TemporaryDirectory(prefix="shadowrelay-disks-", dir=place_in_memory()) as images,
        machines(layout.nodes) as hub,
    ):
        disks = {name: Disk(directory / name / "data", Path(images)) for name in layout.nodes}
        kernels = {nodes: Kernel(directory / f"boot-id-{number}") for number, nodes in enumerate(layout.machines)}
        shown = {name: kernel.inside for nodes, kernel in kernels.items() for name in nodes}
        places = [
            replace(
                place,
                host=hub.machines[place.name].host,
                inside=(*hub.machines[place.name].inside, *shown.get(place.name, ()), *disks[place.name].inside),
            )
            for place in layout.places
        ]
        sick = {place.name: BadDisk(place, directory) for place in places} if can_be_sick else {}
        sinks, senders, gone = (traffic.Sink(hub.host, hub.network), traffic.Sink(hub.host, hub.network)), Senders(hub), Gone(hub)
        corp, branch = [await sink.start() for sink in sinks]
        routes = {"*@branch.example": branch, f"*@{GONE}": await gone.start(), f"*@{SENDERS}": await senders.start()}
        try:
            async with (SealedCluster if layout.is_sealed else Cluster)(
                [disk.place for disk in sick.values()] or places,
                corp,
                directory=directory,
                transport=settings_of(layout),
                routes=routes,
                network=hub.network,
                program=program,
            ) as cluster:
                for name, node in cluster.nodes.items():
                    assert node.process is not None
                    assert disks[name].watch(node.process.pid)
                await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
                yield Site(cluster, hub, disks, sinks, senders, layout, kernels, sick)
        finally:
            for sink in (*sinks, senders, gone):
                await sink.close()
            for disk in disks.values():
                disk.wait_until_free()
