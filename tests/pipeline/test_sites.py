"""Mail between the five sites of the documents, by TRACK: Chicago to Dublin by New York and London. docs/design.md 6.7, seed-003."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.tracking import EventId
from shadowrelay.pipeline.relay import relayed_id
from tests.kit.clock import until
from tests.kit.nodes import BUSY, HEARTBEAT, OK, Net, in_virtual_time
from tests.kit.sites import ATLANTA, CHICAGO, DUBLIN, LINKS, LONDON, NEIGHBOURS, NEW_YORK, NEW_YORK_2

ONE = frozenset((1,))


@asynccontextmanager
async def five_sites(directory: Path, *servers: ServerName, hubs: Sequence[str] = ("new-york", "london")) -> AsyncIterator[Net]:
    """Each server knows its neighbours (with other hub sites: all), all have the same routes and links, and each site delivers its own mail
    to the sink."""
    net = Net(directory)
    sites = ("chicago", "new-york", "london", "dublin", "atlanta")
    same: dict[str, Any] = {
        "redundancy": "previous-hop",
        "routes": [
            {"recipients": [f"*@{site}.example"], "next_hop": f"store.{site}.example", "site": site, "redundancy": "previous-hop"}
            for site in sites
        ],
        "site_links": [{"sites": pair, "cost": cost} for pair, cost in LINKS],
        "sites": [{"name": site, "hub_site_enabled": True} for site in hubs],
    }
    known = NEIGHBOURS if hubs == ("new-york", "london") else dict.fromkeys(servers, servers)
    try:
        for server in servers:
            await net.start(server, [other for other in known[server] if other in servers and other != server], **same)
        await asyncio.sleep(1)
        yield net
    finally:
        await net.close()


def ids_along(first: MessageId, *servers: ServerName) -> list[MessageId]:
    """Of one recipient's message at each of these hops."""
    found = [first]
    for server in servers:
        found.append(relayed_id(found[-1], server, ONE))
    return found[1:]


@in_virtual_time
async def test_a_message_goes_from_chicago_to_dublin_and_each_hop_lets_go_when_the_next_has_handed_on(tmp_path: Path) -> None:
    async with five_sites(tmp_path, CHICAGO, NEW_YORK, LONDON, DUBLIN, ATLANTA) as net:
        net.sink.answer = lambda address: BUSY
        chicago, new_york, london, dublin = (net.nodes[server] for server in (CHICAGO, NEW_YORK, LONDON, DUBLIN))
        assert 250 == (await chicago.accept("user@dublin.example")).code
        at_new_york, at_london, at_dublin = ids_along(chicago.last, NEW_YORK, LONDON, DUBLIN)

        await until(dublin.in_role(at_dublin, Role.PRIMARY), 2 * HEARTBEAT)
        await until(new_york.in_role(at_london, Role.DELIVERED), 5 * HEARTBEAT)
        kept = [await node.role(message_id) for node, message_id in ((chicago, at_new_york), (new_york, at_london), (london, at_dublin))]
        before = list(net.sink.arrived)
        net.sink.answer = lambda address: OK
        await until(london.in_role(at_dublin, Role.DELIVERED), 5 * HEARTBEAT)

        assert [Role.DELIVERED, Role.DELIVERED, Role.SHADOW] == kept, "only London waits for Dublin"
        assert [] == before
        assert [(DUBLIN, "user@dublin.example")] == [(who, address) for who, address, _ in net.sink.arrived]
        assert [b"Received: by " + server.encode() for server in (DUBLIN, LONDON, NEW_YORK)] == net.sink.arrived[0][2].split(b"\r\n")[:3]
        assert [] == net.nodes[ATLANTA].log.rows(EventId.RECEIVE)


@pytest.mark.parametrize("hubs", [("new-york", "london"), ("london",), ()], ids=["hub site", "its stop is beyond", "none"])
@in_virtual_time
async def test_one_message_for_dublin_and_atlanta_is_one_until_new_york(tmp_path: Path, hubs: Sequence[str]) -> None:
    async with five_sites(tmp_path, CHICAGO, NEW_YORK, LONDON, DUBLIN, ATLANTA, hubs=hubs) as net:
        chicago, new_york = net.nodes[CHICAGO], net.nodes[NEW_YORK]
        assert 250 == (await chicago.accept("user@dublin.example", "user@atlanta.example", "user@chicago.example")).code
        relayed = relayed_id(chicago.last, NEW_YORK, frozenset((1, 2)))

        await until(lambda: len(net.sink.arrived) == 3, 5 * HEARTBEAT)
        await until(chicago.in_role(relayed, Role.DELIVERED), 5 * HEARTBEAT)

        expected = [(ATLANTA, "user@atlanta.example"), (CHICAGO, "user@chicago.example"), (DUBLIN, "user@dublin.example")]
        assert expected == sorted((who, address) for who, address, _ in net.sink.arrived)
        (received,) = new_york.log.rows(EventId.RECEIVE)
        assert (chicago.last, ("user@dublin.example", "user@atlanta.example")) == (received.reference, tuple(received.recipients))
        by_server = {server: len(net.nodes[server].log.rows(EventId.RECEIVE)) for server in (LONDON, DUBLIN, ATLANTA)}
        assert {LONDON: int("london" in hubs), DUBLIN: 1, ATLANTA: 1} == by_server


@in_virtual_time
async def test_a_burnt_server_of_a_hub_site_is_replaced_by_the_other_one_there(tmp_path: Path) -> None:
    async with five_sites(tmp_path, CHICAGO, NEW_YORK, NEW_YORK_2, LONDON, DUBLIN) as net:
        chicago = net.nodes[CHICAGO]
        net.cut.add(frozenset((NEW_YORK, LONDON)))
        assert 250 == (await chicago.accept("user@dublin.example")).code
        (relayed,) = ids_along(chicago.last, NEW_YORK)
        await until(chicago.in_role(relayed, Role.SHADOW), 2 * HEARTBEAT)

        await net.wipe(NEW_YORK)
        await until(lambda: bool(net.sink.arrived), 20 * HEARTBEAT)
        await until(chicago.in_role(relayed, Role.DELIVERED), 5 * HEARTBEAT)

        assert [(DUBLIN, "user@dublin.example")] == [(who, address) for who, address, _ in net.sink.arrived]
        assert [] != net.nodes[NEW_YORK_2].log.rows(EventId.RECEIVE)
