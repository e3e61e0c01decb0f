"""A receive connector behind a real haproxy: the PROXY protocol in both versions, and its health checks."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from shadowrelay.lab.cluster import Cluster, Place, rows
from shadowrelay.model.routing import HostPort
from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.postfix import Postfix, free_port, stored_messages, storing_settings
from tests.kit.processes import operator_events
from tests.kit.receiving import BANNER, receiving

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: apt-get install haproxy"),
]

CONFIGURATION = """
global
    stats socket {socket} mode 600 level admin
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen smtp
    bind 127.0.0.1:{port}
    option smtpchk EHLO haproxy.corp.example
    default-server {version} check-send-proxy check inter 200ms
    server node 127.0.0.1:{node}
"""


async def state_of(socket: Path) -> list[str]:
    """What it says of the node: the state, and of the last health check the result and the code of the reply."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(b"show stat\n")
    lines = (await reader.read()).decode().lstrip("# ").splitlines()
    writer.close()
    await writer.wait_closed()
    row = next(dict(zip(lines[0].split(","), line.split(","), strict=False)) for line in lines if line.startswith("smtp,node,"))
    return [row["status"], row["check_status"], row["check_code"]]


@contextlib.asynccontextmanager
async def haproxy(directory: Path, version: str, node: HostPort) -> AsyncIterator[tuple[HostPort, Path]]:
    """Its port, and the socket to ask it."""
    port, socket = free_port(), directory / "haproxy.sock"
    file = directory / "haproxy.cfg"
    file.write_text(CONFIGURATION.format(socket=socket, port=port, version=version, node=node.port))
    process = await asyncio.create_subprocess_exec(str(HAPROXY), "-db", "-f", str(file), stderr=asyncio.subprocess.DEVNULL)
    try:
        await until(socket.exists)
        yield HostPort("127.0.0.1", port), socket
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("version", ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id,crc32c"])
async def test_the_client_behind_haproxy_is_known_and_health_checks_are_answered(version: str, tmp_path: Path, workplace: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        async with receiving(tmp_path, proxy_from=["127.0.0.1"]) as station, haproxy(workplace, version, station.server.address) as found:
            balancer, socket = found
            state: list[str] = []
            while state != ["UP", "L7OK", "221"]:  # of its QUIT, after all else was answered
                state = await state_of(socket)

            client = Client(*await asyncio.open_connection(balancer.host, balancer.port, local_addr=("127.0.0.77", 0)))
            await client.begin("EHLO client.example", banner=BANNER)
            assert "250 2.0.0 Queued" == await client.mail(["b@here.example"])
            port = client.writer.get_extra_info("sockname")[1]
            assert "221 2.0.0 Bye" == await client.ask("QUIT")
            await client.close()

            ((envelope, _, content),) = station.acceptor.accepted
            assert "127.0.0.77" == envelope.client_address
            assert content.startswith(b"Received: from client.example ([127.0.0.77])\r\n")
            sessions = [line for line in lines if line["event"] == "session.closed" and line["messages"]]
            assert [("127.0.0.77", port, "127.0.0.1")] == [(line["client"], line["port"], line["via"]) for line in sessions]
            assert [] == [line for line in lines if line["log_level"] not in ("debug", "info")]


@pytest.mark.heavy
async def test_the_store_sees_the_client_behind_haproxy_also_after_a_takeover(workplace: Path) -> None:
    """Client, haproxy, a node that burns, the node that takes over, Postfix."""
    store = storing_settings(workplace / "mail", "corp.example", ["bob"]) | {"smtpd_authorized_xclient_hosts": "127.0.0.0/8"}
    port, east_place, west_place = free_port(), Place("a.east.example", "east"), Place("b.west.example", "west")
    tables: dict[str, Any] = {
        "[receive_connectors]": {
            "name": "internet", "listen": "127.0.0.1:0", "accepted_domains": ["corp.example"], "proxy_from": ["127.0.0.1"],
            "accept_xshadow": False,
        },
        "[routes]": {"recipients": ["*@corp.example"], "next_hop": f"127.0.0.1:{port}", "xclient": True},
    }  # fmt: skip
    async with Cluster([east_place, west_place], None, directory=workplace / "nodes", tables=tables) as cluster:
        east, west = (cluster.nodes[place.name] for place in (east_place, west_place))
        (listens,) = [line["address"] for line in operator_events(east, "connector.listening") if line["connector"] == "internet"]
        node = HostPort("127.0.0.1", int(listens.rpartition(":")[2]))
        async with haproxy(workplace, "send-proxy-v2", node) as (balancer, socket):
            while (await state_of(socket))[0] != "UP":
                await asyncio.sleep(0.1)
            client = Client(*await asyncio.open_connection(balancer.host, balancer.port, local_addr=("127.0.0.77", 0)))
            await client.begin("EHLO client.example")
            number = client.writer.get_extra_info("sockname")[1]
            assert "250 2.0.0 Queued as" == (await client.mail(["bob@corp.example"]))[:19]
            await client.close()
        await east.kill()
        east.wipe()
        postfix = Postfix(workplace / "postfix", port, store)
        try:
            postfix.start()
            await until(lambda: bool(stored_messages(workplace / "mail")))
            log = postfix.log.read_text()
        finally:
            postfix.stop()
        await west.stop()
    ((text,),) = stored_messages(workplace / "mail").values()
    assert b"Received: from client.example (unknown [127.0.0.77])" in text
    assert "client=unknown[127.0.0.77]" in log
    said = [row["custom-data"] for each in (east, west) for row in rows(each.tracking) if row["event-id"] in ("RECEIVE", "RESUBMIT")]
    assert [True, True] == [f"S:OriginalClient=ADDR=127.0.0.77 PORT={number} BY=127.0.0.1" in data for data in said]
