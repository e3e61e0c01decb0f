"""What a client said of its message is said to the next hop by the node that takes it over from one that was killed and wiped."""

import asyncio
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.model.routing import HostPort
from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.postfix import free_port
from tests.kit.processes import wait_until_peers_know_each_other
from tests.kit.smtp_servers import EXTENSIONS, ScriptedServer, serving

pytestmark = [pytest.mark.slow]

EAST, WEST = Place("a.east.example", "east"), Place("b.west.example", "west")
MAIL = "MAIL FROM:<j\u00fcrgen@client.example> BODY={} SMTPUTF8 RET=HDRS ENVID=QQ314159"
RCPT = "RCPT TO:<b\u00e4rbel@corp.example> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;b+2Bx@corp.example"
HEAD = b"From: a@x.example\r\nMIME-Version: 1.0\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: binary\r\n\r\n"
BINARY = HEAD + bytes(range(256)) * 8_000 + b"\r\n.\r\n\n.\n"  # 2 MB, with all that DATA cannot carry
TEXT = "Subject: Gr\u00fc\u00dfe\r\n\r\n.dot\r\n..two\r\n".encode()


async def sent(node: NodeProcess, body: str, content: bytes) -> None:
    """By BDAT, in two chunks."""
    client = await Client.to(node.address)
    try:
        await client.begin("EHLO client.example", MAIL.format(body), RCPT)
        half = len(content) // 2
        await client.send(b"BDAT %d\r\n" % half + content[:half] + b"BDAT %d LAST\r\n" % (len(content) - half) + content[half:])
        assert [250, 250] == [int(reply[:3]) for reply in await client.replies(2)]
    finally:
        await client.close()


@pytest.mark.parametrize(("body", "content"), [("BINARYMIME", BINARY), pytest.param("8BITMIME", TEXT, marks=pytest.mark.heavy)])
async def test_a_message_that_is_taken_over_keeps_its_octets_and_its_parameters(body: str, content: bytes, tmp_path: Path) -> None:
    hop = ScriptedServer(extensions=(*EXTENSIONS, "CHUNKING", "BINARYMIME"), port=free_port())
    async with Cluster([EAST, WEST], HostPort("127.0.0.1", hop.port), directory=tmp_path) as cluster:
        east = cluster.nodes[EAST.name]
        await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
        await sent(east, body, content)
        await east.kill()
        east.wipe()
        async with serving(hop):
            await until(lambda: bool(hop.messages))
            await cluster.nodes[WEST.name].stop()
        log = cluster.nodes[WEST.name].log_tail()

    ((mail, rcpt),) = [hop.lines[place : place + 2] for place, line in enumerate(hop.lines) if line.startswith("MAIL")]
    assert MAIL.format(body) == mail.replace(f" SIZE={len(hop.messages[0])}", ""), log
    assert RCPT == rcpt
    assert hop.messages[0].endswith(content)
    assert b"with ShadowRedundancy id" in hop.messages[0]
