"""What [send] says of sessions with next hops, on a node that is served. docs/reference.md "Settings"."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess
from tests.kit.clock import until
from tests.kit.processes import a_node_process, client_of, operator_events
from tests.kit.smtp_servers import ScriptedServer, serving

TABLES = "[transport]\nreject_message_on_shadow_failure = false\n[send]\n"
ROUTE = '[[routes]]\nrecipients = ["*@{0}.here.example"]\nnext_hop = "127.0.0.1:{1}"\ninside_boundary = false\n'


@asynccontextmanager
async def a_node(directory: Path, send: str, *ports: int) -> AsyncIterator[NodeProcess]:
    """Mail for `h0.here.example`, `h1…` goes to these ports."""
    node = a_node_process(directory / "a.example", connector='accepted_domains = ["*.here.example"]', tables=TABLES + send)
    path = node.directory / "node.toml"
    text = path.read_text().replace('accepted_domains = ["here.example"]\n', "")
    before, everything = text.split("[[routes]]\n", 1)
    path.write_text(before + "".join(ROUTE.format(f"h{number}", port) for number, port in enumerate(ports)) + "[[routes]]\n" + everything)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


async def submit(node: NodeProcess, number: int = 0, text: bytes = b"x") -> None:
    client = await client_of(node, "EHLO c.example", "MAIL FROM:<>", f"RCPT TO:<u@h{number}.here.example>", "DATA")
    await client.send(b"Subject: x\r\n\r\n" + text + b"\r\n.\r\n")
    assert (await client.reply()).startswith("250")
    await client.close()


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_content_goes_in_chunks_unless_that_is_switched_off(is_enabled: bool, tmp_path: Path) -> None:
    hop = ScriptedServer(extensions=("CHUNKING", "PIPELINING"))
    async with serving(hop), a_node(tmp_path, f"chunking_enabled = {str(is_enabled).lower()}", hop.port) as node:
        await submit(node)
        await until(lambda: bool(hop.messages))

    assert is_enabled == any(line.startswith("BDAT") for line in hop.lines)


@pytest.mark.parametrize("is_sent", [True, False])
async def test_8bit_content_goes_to_a_server_without_8bitmime_unless_that_is_switched_off(is_sent: bool, tmp_path: Path) -> None:
    hop = ScriptedServer(extensions=("PIPELINING",))
    async with serving(hop), a_node(tmp_path, f"eight_bit_without_8bitmime = {str(is_sent).lower()}", hop.port) as node:
        await submit(node, text=b"\xe4")
        await until(lambda: bool(hop.messages or operator_events(node, "attempt.finished")))  # one line only for what was not delivered
        refused = [str(event["reply"])[:9] for event in operator_events(node, "attempt.finished")]

    assert (is_sent, [] if is_sent else ["554 5.6.3"]) == (bool(hop.messages), refused)


async def test_no_more_connections_to_next_hops_are_open_than_the_setting_says(tmp_path: Path) -> None:
    """Neither server greets; the connection to the first one gives way to that to the other one."""
    open_count = open_max = 0
    called: set[int] = set()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_count, open_max
        open_count += 1
        open_max = max(open_max, open_count)
        called.add(writer.get_extra_info("sockname")[1])
        await reader.read()
        open_count -= 1
        writer.close()

    servers = [await asyncio.start_server(mute, "127.0.0.1", 0) for _ in range(2)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    try:
        async with a_node(tmp_path, "max_outbound_connections = 1", *ports) as node:
            for number in range(2):
                await submit(node, number)
            await until(lambda: called == set(ports))
    finally:
        for server in servers:
            server.close()

    assert open_max == 1
