"""A whole node and a peer that is played: how the node uses its sessions to it."""

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Settings
from shadowrelay.node.node import Node
from shadowrelay.protocol.xshadow import format_hello
from shadowrelay.settings.configuration import LoadedSettings
from tests.kit.clients import submit
from tests.kit.clock import until
from tests.kit.smtp_servers import ScriptedServer, Session

PEER = PeerIdentity(
    ServerName("mx1.west.example"),
    BoundaryName("example"),
    DatabaseId("22222222-2222-4222-8222-222222222222"),
    1,
    1,
    1,
    timedelta(hours=3),
)


def a_peer(**script: str) -> ScriptedServer:
    return ScriptedServer(
        {"XSHADOW": f"250 2.0.0 {format_hello(PEER)}", "XQDISCARD": "250 2.0.0 remaining=0 position=1", **script},
        extensions=("PIPELINING", "8BITMIME", "SIZE", "XSHADOW HOLD"),
    )


@contextlib.asynccontextmanager
async def a_node(directory: Path, peer: ScriptedServer, **send: str) -> AsyncIterator[HostPort]:
    """Its peer is also its only next hop; the address at which it takes mail."""
    await peer.start()
    settings = Settings.model_validate(
        {
            "server": {"name": "mx1.east.example", "site": "east", "boundary": "example", "data_directory": directory / "data"},
            "tracking": {"directory": directory / "tracking"},
            "admin": {"listen": "127.0.0.1:0", "token_file": directory / "token"},
            "receive_connectors": [{"name": "inbound", "listen": "127.0.0.1:0", "relay_from": ["127.0.0.1"]}],
            "peers": [{"name": PEER.server, "site": "west", "boundary": "example", "address": f"127.0.0.1:{peer.port}"}],
            "routes": [{"recipients": ["*"], "next_hop": f"127.0.0.1:{peer.port}"}],
            "send": send,
        }
    )
    node = Node(LoadedSettings(directory / "node.toml", settings, {}))
    await node.start()
    # Its first poll is over: a session that is opened meanwhile asks nothing.
    await until(lambda: bool(peer.sessions) and not node._services.heartbeat._asking[PEER.server].locked())
    try:
        yield node._connectors.receivers[0].address
    finally:
        peer.script = {**peer.script, "XQDISCARD": "421 4.3.2 closing"}
        await node.stop()
        await peer.stop()


def delivering(peer: ScriptedServer) -> list[Session]:
    return [session for session in peer.sessions if any(line == "DATA" for line in session.lines)]


def copying(peer: ScriptedServer) -> list[Session]:
    return [session for session in peer.sessions if any("XSHADOW=HOLD" in line for line in session.lines)]


@pytest.mark.slow
async def test_a_session_that_delivers_to_a_peer_asks_for_its_notifications_first(tmp_path: Path) -> None:
    peer = a_peer()
    async with a_node(tmp_path, peer) as address:
        await submit(address, "b@y.example")
        await until(lambda: bool(peer.messages))
        (session,) = delivering(peer)

    verbs = [line.split(" ")[0].upper() for line in session.lines]
    assert ["EHLO", "XSHADOW", "XQDISCARD", "MAIL"] == verbs[:4]
    assert not any("XSHADOW=" in line for line in session.lines), "it is a delivery, no copy"


@pytest.mark.slow
async def test_a_peer_that_refuses_the_hello_gets_its_mail_in_an_ordinary_session(tmp_path: Path) -> None:
    peer = a_peer(XSHADOW="530 5.7.0 not you")
    async with a_node(tmp_path, peer) as address:
        await submit(address, "b@y.example")
        await until(lambda: bool(peer.messages))
        (session,) = delivering(peer)

    assert ["EHLO", "MAIL"] == [line.split(" ")[0].upper() for line in session.lines][:2]


@pytest.mark.slow
async def test_the_session_that_is_held_ready_for_copies_serves_one_message_after_the_other(tmp_path: Path) -> None:
    peer = a_peer()
    async with a_node(tmp_path, peer, peer_connection_inactivity_timeout="1h") as address:
        for count in (1, 2):
            await submit(address, "b@y.example")
            await until(lambda count=count: len(peer.messages) == count)
        assert 1 == len(copying(peer))


@pytest.mark.slow
@pytest.mark.parametrize(("inactivity", "is_closed"), [("50ms", True), ("1h", False)])
async def test_how_long_an_idle_session_to_a_next_hop_stays_is_a_setting(tmp_path: Path, inactivity: str, is_closed: bool) -> None:
    peer = a_peer()
    async with a_node(tmp_path, peer, connection_inactivity_timeout=inactivity) as address:
        await submit(address, "b@y.example")
        await until(lambda: len(peer.messages) == 1)
        if is_closed:
            await until(lambda: "QUIT" in delivering(peer)[0].lines)
        await submit(address, "b@y.example")
        await until(lambda: len(peer.messages) == 2)
        assert (2 if is_closed else 1) == len(delivering(peer))
