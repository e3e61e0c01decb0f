"""What clients that may not relay can do to a node that runs. docs/security.md "Strangers"."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from shadowrelay.lab.cluster import NodeProcess
from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.processes import a_node_process, client_of, figure, operator_events
from tests.kit.smtp_servers import ScriptedServer, name_server, serving

ALONE = "[transport]\nreject_message_on_shadow_failure = false\n"


@contextlib.asynccontextmanager
async def a_node(
    directory: Path, store: ScriptedServer, *, connector: str = "", tables: str = "", routes: str = ""
) -> AsyncIterator[NodeProcess]:
    """Its mail goes to `store`; `routes` come before that."""
    node = a_node_process(directory / "a.example", connector=connector, tables=ALONE + tables)
    path = node.directory / "node.toml"
    everything = '[[routes]]\nrecipients = ["*"]\nnext_hop = "127.0.0.1:9"\n'
    to_store = f'[[routes]]\nrecipients = ["*@here.example"]\nnext_hop = "127.0.0.1:{store.port}"\n'
    path.write_text(path.read_text().replace(everything, routes + to_store))
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


async def sent(node: NodeProcess, sender: str, *recipients: str, count: int = 1, parameters: str = "") -> None:
    client = await client_of(node, "EHLO stranger.example")
    for number in range(count):
        words = [f"MAIL FROM:<{sender}>{parameters}", *(f"RCPT TO:<{one}> NOTIFY=SUCCESS,FAILURE,DELAY" for one in recipients), "DATA"]
        for word in words:
            assert (reply := await client.ask(word))[0] in "23", reply
        reply = await client.ask(f"Subject: {number}\r\nMessage-ID: <{number}@stranger.example>\r\n\r\nsecret body\r\n.")
        assert reply.startswith("250"), reply
    await client.close()


def replies_of(node: NodeProcess) -> list[str]:
    return [str(event["reply"]) for event in operator_events(node, "attempt.finished")]


async def test_quotes_lead_no_mail_past_its_route(tmp_path: Path) -> None:
    store, filters = ScriptedServer(), ScriptedServer()
    async with serving(store), serving(filters):
        special = f'[[routes]]\nrecipients = ["boss@here.example"]\nnext_hop = "127.0.0.1:{filters.port}"\n'
        async with a_node(tmp_path, store, routes=special) as node:
            written = ['"boss"@here.example', '"b\\oss"@HERE.example', "BOSS@here.example", "boss@here.example."]
            for one in written:
                await sent(node, "a@stranger.example", one)
            await until(lambda: len(filters.messages) + len(store.messages) == len(written))

    assert (len(written), 0) == (len(filters.messages), len(store.messages))
    assert 'RCPT TO:<"boss"@here.example>' in [
        line.partition("> ")[0].rstrip(">") + ">" for line in filters.lines
    ]  # on the wire as received


async def test_no_notification_is_relayed_by_the_server_behind(tmp_path: Path) -> None:
    store = ScriptedServer({"RCPT": lambda line: "550 5.1.1 nobody" if "nobody" in line else "250 2.1.5 ok"})
    async with serving(store), a_node(tmp_path, store) as node:
        for sender in ("victim%elsewhere.example@here.example", "elsewhere.example!victim@here.example"):
            await sent(node, sender, "nobody@here.example")
        await until(lambda: len(operator_events(node, "notice.suppressed")) == 2)

        assert ["routing", "routing"] == [event["reason"] for event in operator_events(node, "notice.suppressed")]
    assert [] == [content for content in store.messages if content]


async def test_a_forged_sender_gets_few_and_small_notifications(tmp_path: Path) -> None:
    store = ScriptedServer({"RCPT": lambda line: "550 5.1.1 nobody" if "nobody" in line else "250 2.1.5 ok"})
    victim = ScriptedServer()
    async with serving(store), serving(victim):
        routes = f'[[routes]]\nrecipients = ["*@victim.example"]\nnext_hop = "127.0.0.1:{victim.port}"\n'
        async with a_node(tmp_path, store, routes=routes) as node:
            await sent(node, "a@victim.example", "someone@here.example", parameters=" RET=FULL")
            await sent(node, "a@victim.example", "nobody@here.example", count=60, parameters=" RET=FULL")
            await until(lambda: figure(node, "notices_suppressed_total") > 25)
            await until(lambda: len(victim.messages) >= 20)

    assert len(victim.messages) <= 35
    assert not any(b"secret body" in message or b"Successful" in message for message in victim.messages)
    assert not any("SUCCESS" in line or "DELAY" in line or "RET=FULL" in line for line in store.lines)


async def test_no_notification_goes_to_this_machine_or_a_private_network(tmp_path: Path) -> None:
    zone = {
        ("loop.example", "MX"): ["10 here.loop.example."],
        ("here.loop.example", "A"): ["127.0.0.1"],
        ("inside.example", "MX"): ["10 mx.inside.example."],
        ("mx.inside.example", "A"): ["10.255.255.1"],
        ("mapped.example", "AAAA"): ["::ffff:127.0.0.1"],
        ("zero.example", "A"): ["0.0.0.0"],
        ("link.example", "A"): ["169.254.169.254"],
    }
    store = ScriptedServer({"RCPT": "550 5.1.1 nobody"})
    senders = ["a@loop.example", "a@inside.example", "a@mapped.example", "a@zero.example", "a@link.example", "a@[10.255.255.1]"]
    async with (
        serving(store),
        name_server(zone) as (_, port),
        a_node(tmp_path, store, tables=f'[dns]\nnameservers = ["127.0.0.1:{port}"]\n') as node,
    ):
        for sender in senders:
            await sent(node, sender, "nobody@here.example")
        client = await client_of(node, "EHLO stranger.example")
        for literal in ("127.0.0.1", "IPv6:::1", "IPv6:::ffff:127.0.0.1", "0.0.0.0"):
            assert (await client.ask(f"MAIL FROM:<a@[{literal}]>")).startswith("550 5.1.8")
        await client.close()
        await until(lambda: sum("550 5.4.4" in reply for reply in replies_of(node)) == len(senders))


async def test_commands_without_mail_end_the_session_and_keep_nobody_from_sending(tmp_path: Path) -> None:
    async def flood(node: NodeProcess) -> str:
        client = await client_of(node, "EHLO stranger.example")
        with contextlib.suppress(ConnectionError):
            await client.send(b"NOOP\r\nRSET\r\nVRFY a\r\n" * 200)
        text = await client.rest()
        await client.close()
        return text.splitlines()[-1]

    store = ScriptedServer()
    async with serving(store), a_node(tmp_path, store) as node:
        floods = [asyncio.create_task(flood(node)) for _ in range(20)]
        for _ in range(20):
            await sent(node, "a@stranger.example", "someone@here.example")
        ends = await asyncio.gather(*floods)

    assert {"421 4.7.0 Too many commands that lead to no mail"} == set(ends)


async def test_silent_sessions_keep_no_peer_out(tmp_path: Path) -> None:
    """All places of strangers are taken by silent sessions; a client that may relay comes in, and a peer by its address."""
    connector = 'max_sessions = 5\nrelay_from = ["127.0.0.2"]\n'
    store = ScriptedServer()
    async with serving(store), a_node(tmp_path, store, connector=connector) as node:
        silent = [await client_of(node) for _ in range(5)]
        refused = await Client.to(node.address)
        assert (await refused.reply()).startswith("421 4.3.2")
        await refused.close()
        reader, writer = await asyncio.open_connection(node.address.host, node.address.port, local_addr=("127.0.0.2", 0))
        assert (await Client(reader, writer).reply()).startswith("220")
        writer.close()
        for one in silent:
            await one.close()
