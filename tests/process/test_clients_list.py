"""Limits for each client in a node that runs: `clients list`, metrics and the operator log say whom they refuse."""

from pathlib import Path

from shadowrelay.lab.cluster import NodeProcess
from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.processes import a_served_node, client_of, figure, operator_events, said

LIMITS = "limits = { connections_per_minute = 5, refused_recipients_per_minute = 1 }\n"


async def greetings(node: NodeProcess) -> list[str]:
    """Of connections one after the other, up to the first one that is refused. The start of the node may have made one before."""
    found = [""]
    while not found[-1].startswith("421") and len(found) < 10:
        client = await Client.to(node.address)
        found.append(await client.reply())
        await client.close()
    return [reply[:3] for reply in found[1:]]


async def test_who_exceeds_its_limits_is_refused_and_shown(tmp_path: Path) -> None:
    async with a_served_node(tmp_path, LIMITS) as node:
        client = await client_of(node, "EHLO c.example", "MAIL FROM:<a@x.example>")
        before = await client.ask("RCPT TO:<a@elsewhere.example>")
        after = await client.ask("RCPT TO:<a@here.example>")
        await client.close()
        found = await greetings(node)
        (row,) = await said(node, "clients", "list")
        counted = [figure(node, f'clients_limited_total{{limit="{limit}"}}') for limit in ("connections", "refused_recipients", "messages")]
        lines = await until(lambda: operator_events(node, "client.limited"))

    assert ("550", "421", "421") == (before[:3], after[:3], found[-1])
    assert ("127.0.0.1", 5, 1, 2) == tuple(row[key] for key in ("client", "connections", "refused_recipients", "limited_count"))
    assert [1, 1, 0] == counted
    assert ["refused_recipients"] == [line["limit"] for line in lines]
