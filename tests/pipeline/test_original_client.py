"""The client of whom somebody else spoke stays that of the message, whoever takes it over. docs/security.md "By whose address"."""

from pathlib import Path

from shadowrelay.model.ownership import Role
from shadowrelay.model.tracking import EventId
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, OK, SPAN, WEST, in_virtual_time, nodes

ORIGINAL = "ADDR=203.0.113.5 PORT=40000 BY=10.0.0.1 LOGIN=ann NAME=client.example"


@in_virtual_time
async def test_a_promoted_message_says_the_same_of_its_client(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        east, west = net.nodes[EAST], net.nodes[WEST]
        assert 250 == (await east.accept(client_address="203.0.113.5", client_name="helo.example", original_client=ORIGINAL)).code
        await until(west.in_role(east.last, Role.SHADOW), 5)
        net.sink.answer = lambda address: OK
        await net.kill(EAST)

        await until(west.in_role(east.last, Role.DELIVERED), SPAN + 3 * HEARTBEAT)

        (received,), (taken_over,) = east.log.rows(EventId.RECEIVE), west.log.rows(EventId.RESUBMIT)
        assert [ORIGINAL] * 2 == [dict(row.custom_data)["OriginalClient"] for row in (received, taken_over)]
        assert "203.0.113.5" == taken_over.original_client_ip
        stored = await west.message(east.last)
        assert stored is not None
        assert ORIGINAL == stored.envelope.original_client
