"""Several nodes of one machine behind one port, as `init --processes` writes them: no client's connection is reset while one restarts."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from shadowrelay.settings import configuration
from tests.kit.clock import until
from tests.kit.init_runs import run
from tests.kit.processes import operator_events, typed

pytestmark = [pytest.mark.heavy, pytest.mark.crash, pytest.mark.timeout(600)]

CLIENTS_COUNT = 8
RESTARTED = 2  # messages of clients, at least, before and after each step, as many for each client
DIALOG = (b"EHLO client.example\r\n", b"MAIL FROM:<a@there.example>\r\n", b"RCPT TO:<b@corp.example>\r\n", b"DATA\r\n")


def nodes_of(directory: Path) -> list[NodeProcess]:
    found = []
    for path in sorted(directory.glob("*/*/node.toml")):
        settings = configuration.load(path).settings
        place = Place(settings.server.name, settings.server.site)
        peers = settings.receive_connectors[1].listen  # by which one sees that it has started: the other port is everybody's
        found.append(NodeProcess(place, peers, settings.admin.listen, path.parent))
    return found


def joined_count(node: NodeProcess) -> int:
    """How often it has begun to listen on the shared port."""
    return len([line for line in operator_events(node, "connector.listening") if line["connector"] == "inbound"])


class OneMessageEach:
    """Each sends one message a connection, one after the other, and counts what it meets."""

    def __init__(self, address: HostPort) -> None:
        self._address = address
        self.met: Counter[str] = Counter()
        self.is_over = False

    async def _one(self, number: int) -> str:
        reader, writer = await asyncio.open_connection(self._address.host, self._address.port)
        try:
            greeting = await reader.readline()
            for command in DIALOG:
                writer.write(command)
                while (line := await reader.readline())[3:4] == b"-":
                    pass
                if line[:1] not in b"23" or not line:
                    return f"{command[:4].decode()}: {line.decode().strip() or 'closed'}"
            writer.write(f"Subject: {number}\r\nMessage-ID: <{number}@there.example>\r\n\r\nHello\r\n.\r\nQUIT\r\n".encode())
            line = await reader.readline()
            if line[:3] != b"250":
                return f"dot: {line.decode().strip() or 'closed'}"
            return f"250 of {greeting.split()[1].decode()}"
        finally:
            writer.close()

    async def run(self, client: int) -> None:
        number = client
        while not self.is_over:
            number += CLIENTS_COUNT
            try:
                self.met[await self._one(number)] += 1
            except OSError as error:
                self.met[type(error).__name__] += 1

    async def further(self, count: int = CLIENTS_COUNT * RESTARTED) -> None:
        """Wait for so many messages more."""
        before = self.met.total()
        await until(lambda: self.met.total() >= before + count)


async def test_no_connection_is_reset_and_no_message_refused_while_one_of_four_nodes_restarts_and_drains(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    sink = Sink()
    hop = (await sink.start()).port
    machine = ("--node", f"mx.example,here,127.0.0.1:{port}", "--processes", "4")
    words = (*machine, "--accept", "corp.example", "--next-hop", f"127.0.0.1:{hop}")
    said = run(tmp_path, *words)
    assert 0 == said.exit_code, said.output
    nodes = nodes_of(tmp_path)
    clients = OneMessageEach(HostPort("127.0.0.1", port))
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        await typed(nodes[0], "status", "--wait", "2m")
        sending = [asyncio.create_task(clients.run(number)) for number in range(CLIENTS_COUNT)]
        await clients.further(100)
        leaving = nodes[1]
        leaving.signal(signal.SIGTERM)
        assert leaving.process is not None
        await leaving.process.wait()
        await clients.further()
        await leaving.start()
        await typed(nodes[0], "status", "--wait", "2m")
        await clients.further(100)
        await typed(nodes[2], "drain")
        await clients.further()
        before = joined_count(nodes[2])
        await typed(nodes[2], "undrain")
        await until(lambda: joined_count(nodes[2]) > before)
        await clients.further(100)
        clients.is_over = True
        await asyncio.gather(*sending)
    finally:
        clients.is_over = True
        for node in nodes:
            await node.stop()
        await sink.close()

    assert {f"250 of {node.name}" for node in nodes} == set(clients.met)
