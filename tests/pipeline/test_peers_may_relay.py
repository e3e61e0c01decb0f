"""What a peer may give a node to deliver. docs/protocol.md 16"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.message import Envelope, Recipient
from shadowrelay.model.ownership import Role
from shadowrelay.model.settings import PeersMayRelay, Settings
from shadowrelay.model.tracking import EventId
from shadowrelay.ownership.claims import handing_over
from shadowrelay.rules.placement import not_accepted
from shadowrelay.store import promises
from tests.kit.clock import until
from tests.kit.nodes import EAST, HEARTBEAT, WEST, in_virtual_time, message_id, nodes
from tests.pipeline.scenes import a_waiting_message

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SERVER = {"server": {"name": "a.example", "site": "east"}}
INBOUND = {"name": "in", "listen": "127.0.0.1:1", "accepted_domains": ["corp.example", "*.corp.example"]}
APPS = {"name": "apps", "listen": "127.0.0.1:2", "relay_from": ["10.0.0.0/8"]}


def judged(value: str, recipient: str, connector: str = "in", sender: str = "a@b.example", *connectors: Any) -> str:
    transport = {"peers_may_relay": value}
    settings = Settings.model_validate(SERVER | {"receive_connectors": connectors or [INBOUND, APPS], "transport": transport})
    recipients = (Recipient("boss@corp.example"), Recipient(recipient))
    return not_accepted(Envelope(message_id("x"), sender, recipients, NOON, connector=connector), settings)


@pytest.mark.parametrize(("recipient", "connector", "is_taken"), [
    ("x@corp.example", "in", True), ("x@CORP.example", "in", True), ("x@a.corp.example", "in", True), ("postmaster", "in", True),
    ("x@elsewhere.example", "in", False), ("x@notcorp.example", "in", False), ("x@elsewhere.example", "apps", True),
    ("x@elsewhere.example", "of another node", True),
])  # fmt: skip
def test_a_copy_for_a_recipient_that_no_client_could_give_is_refused_if_peers_may_not_relay(recipient, connector, is_taken):
    assert ("" if is_taken else recipient) == judged("accepted", recipient, connector)
    assert "" == judged("all", recipient, connector)


def test_where_nobody_may_relay_a_connector_of_another_node_gives_no_right_to():
    assert "x@elsewhere.example" == judged("accepted", "x@elsewhere.example", "of another node", "a@b.example", INBOUND)
    assert "" == judged("accepted", "x@elsewhere.example", "of another node", "", INBOUND), "a DSN"


@in_virtual_time
async def test_what_a_server_hands_over_that_does_not_drain_is_counted(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net), net.nodes[WEST]
        assert {EAST: 0} == west.context.counts.handed_by_running

        await east.ledger.commit(promises.transition, [east.last], lambda _, claim: handing_over(claim))

        await until(west.in_role(east.last, Role.PRIMARY), HEARTBEAT)
        assert {EAST: 1} == west.context.counts.handed_by_running
        assert [EAST] == [dict(row.custom_data)["ClientSaidBy"] for row in west.log.rows(EventId.RESUBMIT)]


@in_virtual_time
async def test_a_copy_that_the_peer_may_not_relay_is_answered_so_and_not_held(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, peers_may_relay=PeersMayRelay.ACCEPTED) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        assert 250 == (await east.accept("x@elsewhere.example")).code
        assert await west.role(east.last) is None
