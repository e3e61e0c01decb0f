"""A receive connector behind a real haproxy: the PROXY protocol in both versions, and its health checks."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import structlog

from shadowrelay.lab.cluster import Cluster, Place, rows
from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.haproxy import HAPROXY, haproxy, states_of
from tests.kit.postfix import Postfix, free_port, stored_messages, storing_settings
from tests.kit.processes import address_of_connector
from tests.kit.receiving import BANNER, receiving

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(HAPROXY is None, reason="needs haproxy: apt-get install haproxy"),
]


@pytest.mark.parametrize("version", ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id,crc32c"])
async def test_the_client_behind_haproxy_is_known_and_health_checks_are_answered(version: str, tmp_path: Path, workplace: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        async with (
            receiving(tmp_path, proxy_from=["127.0.0.1"]) as station,
            haproxy(workplace, {"node": station.server.address}, f"{version} check-send-proxy") as found,
        ):
            balancer, socket = found
            state: list[str] = []
            while state != ["UP", "L7OK", "221"]:  # of its QUIT, after all else was answered
                state = (await states_of(socket))["node"]

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
@pytest.mark.parametrize(("version", "told"), [("send-proxy-v2", "xclient"), ("send-proxy", "xforward")])
async def test_the_store_sees_the_client_behind_haproxy_also_after_a_takeover(version: str, told: str, workplace: Path) -> None:
    """Client, haproxy, a node that burns, the node that takes over, Postfix."""
    store = storing_settings(workplace / "mail", "corp.example", ["bob"]) | {f"smtpd_authorized_{told}_hosts": "127.0.0.0/8"}
    port, east_place, west_place = free_port(), Place("a.east.example", "east"), Place("b.west.example", "west")
    tables: dict[str, Any] = {
        "[receive_connectors]": {
            "name": "internet", "listen": "127.0.0.1:0", "accepted_domains": ["corp.example"], "proxy_from": ["127.0.0.1"],
            "accept_xshadow": False,
        },
        "[routes]": {"recipients": ["*@corp.example"], "next_hop": f"127.0.0.1:{port}", told: True},
    }  # fmt: skip
    async with Cluster([east_place, west_place], None, directory=workplace / "nodes", tables=tables) as cluster:
        east, west = (cluster.nodes[place.name] for place in (east_place, west_place))
        node = await address_of_connector(east, "internet")
        async with haproxy(workplace, {"node": node}, f"{version} check-send-proxy") as (balancer, socket):
            while (await states_of(socket))["node"][0] != "UP":
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
    assert (b"Received: from client.example (unknown [127.0.0.77])" in text) is (told == "xclient")
    assert f"{'client' if told == 'xclient' else 'orig_client'}=unknown[127.0.0.77]" in log
    said = [row["custom-data"] for each in (east, west) for row in rows(each.tracking) if row["event-id"] in ("RECEIVE", "RESUBMIT")]
    assert [True, True] == [f"S:OriginalClient=ADDR=127.0.0.77 PORT={number} BY=127.0.0.1" in data for data in said]
