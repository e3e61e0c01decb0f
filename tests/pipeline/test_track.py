"""The way of Exchange 2010: the previous hop keeps the shadow of what it relays. docs/design.md 6.7."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import ServerName
from shadowrelay.model.message import Envelope, Recipient
from shadowrelay.model.ownership import Role
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.replies import Reply
from shadowrelay.model.resubmission import RequestState
from shadowrelay.model.routing import HostPort
from shadowrelay.model.tracking import EventId
from shadowrelay.pipeline.relay import relayed_id
from shadowrelay.store import steps
from tests.kit.clock import until
from tests.kit.ledger import content_in
from tests.kit.nodes import (
    BUSY,
    HEARTBEAT,
    OK,
    SOUTH,
    Net,
    VirtualNode,
    in_virtual_time,
    make_settings,
    message_id,
)
from tests.pipeline.edges import EDGE, HUB, KEPT_SPAN, OTHER_HUB, a_relayed_message, an_edge, route_to
from tests.pipeline.scenes import die_while_handling, in_state, request_of, resubmit


async def accept_file(node: VirtualNode, path: Path) -> Reply:
    """A message whose content is in a file, as the receiver leaves it."""
    node.last = message_id(path.name)
    envelope = Envelope(node.last, "a@x.example", (Recipient("user1@corp.example"),), node.clock.now())
    return await node.services.accept.accept(envelope, content_in(path))


@in_virtual_time
async def test_what_is_relayed_stays_as_the_shadow_of_the_next_hop_until_that_has_delivered(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB) as net:
        relayed = await a_relayed_message(net)
        edge, hub = net.nodes[EDGE], net.nodes[HUB]
        kept, taken = await edge.claim(relayed), await hub.claim(relayed)
        original = await edge.role(edge.last)
        net.sink.answer = lambda address: OK

        await until(edge.in_role(relayed, Role.DELIVERED), 3 * HEARTBEAT)

        assert kept is not None
        assert taken is not None
        assert (kept.is_kept, kept.primary, kept.number) == (True, HUB, taken.number)
        assert Role.DELIVERED is original
        assert [EDGE] == [copy.server for copy in taken.copies]
        assert [HUB] == [who for who, _, _ in net.sink.arrived]
        finished = await edge.message(relayed)
        assert finished is not None
        assert finished.place is None  # Safety Net has the message that was relayed, not the shadow
        assert f"shadow kept as {relayed}" == (edge.log.rows(EventId.SEND) + edge.log.rows(EventId.SENDEXTERNAL))[0].source_context
        (received,) = hub.log.rows(EventId.RECEIVE)
        assert (edge.last, EDGE) == (received.reference, dict(received.custom_data)["ShadowAt"])


@in_virtual_time
async def test_a_next_hop_that_burns_is_replaced_by_another_route(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB, OTHER_HUB) as net:
        relayed = await a_relayed_message(net)
        edge = net.nodes[EDGE]
        await net.wipe(HUB)
        net.sink.answer = lambda address: OK

        await asyncio.sleep(KEPT_SPAN - HEARTBEAT)
        role_before = await edge.role(relayed)
        await until(edge.in_role(relayed, Role.DELIVERED), 5 * HEARTBEAT)
        await until(lambda: bool(net.sink.arrived), 5 * HEARTBEAT)

        assert Role.SHADOW is role_before
        assert [OTHER_HUB] == [who for who, _, _ in net.sink.arrived]
        assert ["Silence"] == [dict(event.custom_data)["Reason"] for event in edge.log.rows(EventId.RESUBMIT)]


@in_virtual_time
async def test_a_silent_next_hop_is_called_once_a_timeout_interval_while_something_is_kept_for_it(tmp_path: Path) -> None:
    """Its silence is counted in these intervals, so it is given as many chances. The heartbeat alone would leave it none."""
    times = {"shadow_heartbeat_frequency": "10m", "shadow_heartbeat_timeout_interval": "20s", "shadow_heartbeat_retry_count": 15}
    async with an_edge(tmp_path, HUB, **times) as net:
        edge = net.nodes[EDGE]
        link, calls = edge.context.links[HUB], [0]
        greet = link.greet

        async def counted() -> PeerIdentity:
            calls[0] += 1
            return await greet()

        link.greet = counted  # type: ignore[method-assign]
        await net.kill(HUB)
        await asyncio.sleep(120)  # the pauses grow to the longest
        without = calls[0]
        await asyncio.sleep(120)
        without = calls[0] - without
        await net.start(HUB, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}}, **times)
        await until(lambda: edge.context.peers.states[HUB].unreachable_since is None, 1000)
        await a_relayed_message(net)
        await net.kill(HUB)
        await asyncio.sleep(120)
        kept = calls[0]
        await asyncio.sleep(120)
        kept = calls[0] - kept

        assert (without <= 1, 6) == (True, pytest.approx(kept, abs=1))


@in_virtual_time
async def test_a_peer_that_refuses_for_now_is_passed_over_in_the_same_attempt(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB, OTHER_HUB) as net:
        net.sink.answer = lambda address: BUSY
        edge = net.nodes[EDGE]
        net.nodes[HUB].ledger.fail("accepted", 1_000_000)
        assert 250 == (await edge.accept()).code

        await until(edge.in_role(relayed_id(edge.last, OTHER_HUB, frozenset((1,))), Role.SHADOW), 5)

        assert [] == edge.log.rows(EventId.DEFER)


@in_virtual_time
async def test_a_later_route_that_matches_is_another_route(tmp_path: Path) -> None:
    routes = [*route_to(HUB), {"recipients": ["*@corp.example"], "next_hop": "sink.example:25"}]
    async with an_edge(tmp_path, HUB, routes=routes) as net:
        relayed = await a_relayed_message(net)
        edge = net.nodes[EDGE]
        await net.wipe(HUB)
        net.sink.answer = lambda address: OK

        await until(edge.in_role(relayed, Role.DELIVERED), KEPT_SPAN + 5 * HEARTBEAT)

        assert [(EDGE, "user1@corp.example")] == [(who, address) for who, address, _ in net.sink.arrived]


@in_virtual_time
async def test_retries_of_what_avoids_a_server_go_on_after_a_restart(tmp_path: Path) -> None:
    routes = [{**route_to(HUB)[0], "next_hop": [f"{HUB}:2525", "sink.example:25"]}]
    async with an_edge(tmp_path, HUB, routes=routes) as net:
        relayed = await a_relayed_message(net)
        await net.wipe(HUB)
        await until(net.nodes[EDGE].in_role(relayed, Role.PRIMARY), KEPT_SPAN + 5 * HEARTBEAT)
        await until(lambda: net.sink.attempts_count > 1, 5 * HEARTBEAT)
        await net.stop(EDGE)

        edge = await net.start(EDGE, [HUB], boundary="edge", routes=routes, redundancy="previous-hop")
        stored = await edge.message(relayed)
        net.sink.answer = lambda address: OK
        await until(edge.in_role(relayed, Role.DELIVERED), 20 * HEARTBEAT)

        assert stored is not None
        assert [f"{HUB}:2525~{HUB}:2525"] == [retry.next_hop for retry in stored.retries]
        assert [EDGE] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_next_hop_that_returns_with_its_database_yields_to_the_other_route(tmp_path: Path) -> None:
    """Exchange delivers twice here: its server delivers what it has, when it is back."""
    async with an_edge(tmp_path, HUB, OTHER_HUB) as net:
        relayed = await a_relayed_message(net)
        await net.stop(HUB)
        net.sink.answer = lambda address: OK
        await until(lambda: bool(net.sink.arrived), KEPT_SPAN + 5 * HEARTBEAT)

        hub = await net.start(HUB, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}})
        await asyncio.sleep(10 * KEPT_SPAN)

        assert [OTHER_HUB] == [who for who, _, _ in net.sink.arrived]
        assert await hub.role(relayed) in (Role.DELIVERED, Role.RELEASED)


@in_virtual_time
async def test_without_another_route_it_waits_for_the_next_hop_that_returns_with_its_database(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB) as net:
        relayed = await a_relayed_message(net)
        edge = net.nodes[EDGE]
        await net.stop(HUB)
        net.sink.answer = lambda address: OK

        await asyncio.sleep(10 * KEPT_SPAN)
        role_meanwhile = await edge.role(relayed)
        await net.start(HUB, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}})
        await until(edge.in_role(relayed, Role.DELIVERED), 5 * HEARTBEAT)

        assert Role.SHADOW is role_meanwhile
        assert [HUB] == [who for who, _, _ in net.sink.arrived]
        assert [] == edge.log.rows(EventId.RESUBMIT)


@in_virtual_time
@pytest.mark.parametrize("hubs", [(HUB,), (OTHER_HUB, HUB)], ids=["its only host", "a further host"])
async def test_what_waits_for_a_next_hop_that_returns_does_not_wait_for_the_ladder(tmp_path: Path, hubs: tuple[ServerName, ...]) -> None:
    send = {"queue_glitch_retry_interval": "6h", "message_retry_interval": "6h"}
    async with an_edge(tmp_path, *hubs, send=send, connector={"max_acknowledgement_delay": "0s"}) as net:
        edge = net.nodes[EDGE]
        for hub in hubs:
            await net.stop(hub)
        await asyncio.sleep(3 * HEARTBEAT)  # the edge knows that
        ids = []
        for _ in range(5):
            await edge.accept()
            ids.append(edge.last)
        await asyncio.sleep(10 * HEARTBEAT)
        roles_meanwhile = {await edge.role(message_id) for message_id in ids}

        await net.start(HUB, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}})
        for message_id in ids:
            await until(edge.in_role(message_id, Role.DELIVERED), 4 * HEARTBEAT)

        assert {Role.PRIMARY} == roles_meanwhile
        assert [HUB] * 5 == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_without_another_route_it_is_relayed_again_to_the_next_hop_that_lost_its_disk(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB) as net:
        relayed = await a_relayed_message(net)
        edge = net.nodes[EDGE]
        await net.wipe(HUB)
        net.sink.answer = lambda address: OK
        await asyncio.sleep(10 * KEPT_SPAN)
        role_meanwhile = await edge.role(relayed)

        await net.start(HUB, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}})
        again = relayed_id(relayed, HUB, frozenset((1,)))
        await until(edge.in_role(again, Role.DELIVERED), 10 * HEARTBEAT)

        assert Role.SHADOW is role_meanwhile
        assert [HUB] == [who for who, _, _ in net.sink.arrived]
        assert ["DatabaseChanged"] == [dict(event.custom_data)["Reason"] for event in edge.log.rows(EventId.RESUBMIT)]


@in_virtual_time
async def test_without_another_route_it_is_returned_to_its_sender_in_the_end(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB, message_expiration_timeout="10m") as net:
        relayed = await a_relayed_message(net)
        edge = net.nodes[EDGE]
        await net.wipe(HUB)

        await until(edge.in_role(relayed, Role.DELIVERED), 900)

        assert 1 == len(edge.log.rows(EventId.DSN))
        assert 1 == len(edge.log.rows(EventId.EXPIRE))
        assert [] == net.sink.arrived


@in_virtual_time
async def test_a_large_content_stays_with_the_shadow_when_the_message_that_was_relayed_is_forgotten(tmp_path: Path) -> None:
    large = b"Subject: large\r\n\r\n" + b"0123456789abcde\r\n" * 100_000
    async with an_edge(tmp_path, HUB, OTHER_HUB, safety_net_hold_time="10s") as net:
        net.sink.answer = lambda address: BUSY
        edge = net.nodes[EDGE]
        path = edge.ledger.real.spool_directory / "large"
        path.write_bytes(large)
        assert 250 == (await accept_file(edge, path)).code
        relayed = relayed_id(edge.last, HUB, frozenset((1,)))
        await until(edge.in_role(relayed, Role.SHADOW), 5)
        await asyncio.sleep(KEPT_SPAN - HEARTBEAT)  # Safety Net has let the first message go
        await steps.expire(edge.ledger, edge.clock.now(), 100)
        first = await edge.message(edge.last)
        await net.wipe(HUB)
        net.sink.answer = lambda address: OK

        await until(lambda: bool(net.sink.arrived), KEPT_SPAN + 5 * HEARTBEAT)

        assert first is None or first.place is None
        assert net.sink.arrived[0][2].endswith(large)
        assert [OTHER_HUB] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_chain_of_three_lets_the_first_go_when_the_second_has_handed_on(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        await net.start(HUB, [OTHER_HUB], redundancy="previous-hop")
        await net.start(OTHER_HUB, [HUB, EDGE], routes=route_to(HUB), redundancy="previous-hop")
        edge = await net.start(EDGE, [OTHER_HUB], boundary="example", routes=route_to(OTHER_HUB), redundancy="previous-hop",
                               max_retries_for_local_site_shadow=0, max_retries_for_remote_site_shadow=0)  # fmt: skip
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY
        assert 250 == (await edge.accept()).code
        first = relayed_id(edge.last, OTHER_HUB, frozenset((1,)))
        second = relayed_id(first, HUB, frozenset((1,)))

        await until(edge.in_role(first, Role.DELIVERED), 5 * HEARTBEAT)
        kept = await net.nodes[OTHER_HUB].role(second)
        net.sink.answer = lambda address: OK
        await until(net.nodes[OTHER_HUB].in_role(second, Role.DELIVERED), 5 * HEARTBEAT)

        assert Role.SHADOW is kept
        assert [HUB] == [who for who, _, _ in net.sink.arrived]
    finally:
        await net.close()


@in_virtual_time
async def test_one_message_is_kept_for_one_next_hop_and_delivered_to_another(tmp_path: Path) -> None:
    routes = [
        {"recipients": ["*@corp.example"], "next_hop": f"{HUB}:2525", "redundancy": "previous-hop"},
        {"recipients": ["*"], "next_hop": "sink.example:25"},
    ]
    net = Net(tmp_path)
    try:
        await net.start(HUB, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}})
        edge = await net.start(EDGE, [HUB], boundary="edge", routes=routes, redundancy="previous-hop")
        await asyncio.sleep(1)
        assert 250 == (await edge.accept("user@corp.example", "other@far.example")).code
        relayed = relayed_id(edge.last, HUB, frozenset((1,)))

        await until(edge.in_role(relayed, Role.DELIVERED), 5 * HEARTBEAT)

        assert [(HUB, "user@corp.example"), (EDGE, "other@far.example")] == sorted(
            ((who, address) for who, address, _ in net.sink.arrived), key=lambda one: one[1], reverse=True
        )
    finally:
        await net.close()


@in_virtual_time
async def test_one_message_is_the_shadow_of_two_next_hops_and_still_primary_for_another_recipient(tmp_path: Path) -> None:
    routes = [{**route_to(hub)[0], "recipients": [f"*@{name}.example"]} for hub, name in ((HUB, "a"), (OTHER_HUB, "b"))]
    routes.append({"recipients": ["*"], "next_hop": "sink.example:25"})
    async with an_edge(tmp_path, HUB, OTHER_HUB, routes=routes, connector={"max_acknowledgement_delay": "0s"}) as net:
        edge = net.nodes[EDGE]
        net.sink.answer = lambda address: BUSY
        assert 250 == (await edge.accept("x@a.example", "x@b.example", "x@c.example")).code
        at_hub, at_other = relayed_id(edge.last, HUB, frozenset((1,))), relayed_id(edge.last, OTHER_HUB, frozenset((2,)))
        for relayed in (at_hub, at_other):
            await until(edge.in_role(relayed, Role.SHADOW), 5)
        original = await edge.claim(edge.last)

        net.sink.answer = lambda address: OK if address == "x@a.example" else BUSY
        await until(edge.in_role(at_hub, Role.DELIVERED), 5 * HEARTBEAT)
        roles = await edge.role(at_other), await edge.role(edge.last)
        net.sink.answer = lambda address: OK
        for message_id in (at_other, edge.last):
            await until(edge.in_role(message_id, Role.DELIVERED), 5 * HEARTBEAT)

        assert original is not None
        assert (Role.PRIMARY, {1, 2}) == (original.role, original.done)
        assert (Role.SHADOW, Role.PRIMARY) == roles
        assert [(HUB, "x@a.example"), (OTHER_HUB, "x@b.example"), (EDGE, "x@c.example")] == sorted(
            ((who, address) for who, address, _ in net.sink.arrived), key=lambda one: one[1]
        )


@in_virtual_time
async def test_a_copy_that_was_placed_before_the_250_is_discarded_when_the_next_hop_has_the_message(tmp_path: Path) -> None:
    in_edge = {"boundary": "edge"}
    net = Net(tmp_path)
    try:
        await net.start(HUB, [EDGE, SOUTH], redundancy="previous-hop", peer={EDGE: in_edge, SOUTH: in_edge})
        partner = await net.start(SOUTH, [EDGE, HUB], redundancy="both", routes=route_to(HUB), peer={EDGE: in_edge}, **in_edge)
        edge = await net.start(EDGE, [SOUTH, HUB], redundancy="both", routes=route_to(HUB), peer={SOUTH: in_edge}, **in_edge)
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY
        edge.ledger.gates["attempt"] = gate = asyncio.Event()
        assert 250 == (await edge.accept(connector="default")).code
        copied = await partner.role(edge.last)
        gate.set()
        await until(partner.in_role(edge.last, Role.DELIVERED), 5 * HEARTBEAT)

        assert Role.SHADOW is copied
        assert Role.SHADOW is await edge.role(relayed_id(edge.last, HUB, frozenset((1,))))
        assert [] == net.sink.arrived
    finally:
        await net.close()


@in_virtual_time
async def test_a_route_that_a_reload_brings_is_another_route_for_what_waits(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB) as net:
        relayed = await a_relayed_message(net)
        edge = net.nodes[EDGE]
        await net.wipe(HUB)
        net.sink.answer = lambda address: OK
        await asyncio.sleep(3 * KEPT_SPAN)
        role_meanwhile = await edge.role(relayed)

        routes = [*route_to(HUB), {"recipients": ["*@corp.example"], "next_hop": "sink.example:25"}]
        edge.context.settings = make_settings(EDGE, [HUB], tmp_path, boundary="edge", redundancy="previous-hop", routes=routes)
        edge.services.deliver.reload()
        await until(edge.in_role(relayed, Role.DELIVERED), 3 * HEARTBEAT)

        assert Role.SHADOW is role_meanwhile
        assert [EDGE] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_next_hop_without_the_extension_is_delivered_to_and_done(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        await net.start(HUB, [EDGE])  # its connector does not track
        edge = await net.start(EDGE, [HUB], routes=route_to(HUB))
        await asyncio.sleep(1)
        assert 250 == (await edge.accept()).code

        await until(edge.in_role(edge.last, Role.DELIVERED), 5 * HEARTBEAT)

        assert [EDGE] == [who for who, _, _ in net.sink.arrived]
        assert "" == (edge.log.rows(EventId.SEND) + edge.log.rows(EventId.SENDEXTERNAL))[0].source_context
    finally:
        await net.close()


@in_virtual_time
async def test_a_hub_that_offers_no_track_now_is_passed_over_for_one_that_does(tmp_path: Path) -> None:
    """By plain SMTP the other hub would take it too, but no shadow would stay at the edge."""
    async with an_edge(tmp_path, HUB, OTHER_HUB, connector={"max_acknowledgement_delay": "0s"}) as net:
        edge = net.nodes[EDGE]
        net.sink.answer = lambda address: BUSY
        net.nodes[HUB].services.peer_requests.offers_track = lambda: False  # as while it drains

        assert 250 == (await edge.accept()).code
        await until(edge.in_role(relayed_id(edge.last, OTHER_HUB, frozenset((1,))), Role.SHADOW), 5)


@in_virtual_time
async def test_what_is_delivered_without_track_does_not_go_to_a_hub_that_gave_no_reply(tmp_path: Path) -> None:
    """It may have the message, and would recognise it only by TRACK."""
    async with an_edge(tmp_path, HUB, OTHER_HUB) as net:
        edge = net.nodes[EDGE]
        net.nodes[OTHER_HUB].services.peer_requests.offers_track = lambda: False
        await net.kill(HUB)

        assert 250 == (await edge.accept()).code
        await until(edge.in_role(edge.last, Role.DELIVERED), 5 * HEARTBEAT)

        assert [(HostPort(OTHER_HUB, 2525),)] == net.sink.hosts


@in_virtual_time
@pytest.mark.parametrize(
    ("at_the_edge", "at_the_hub"),
    [
        ({"peer": {HUB: {"send_xshadow": False}}}, {}),
        ({"shadow_redundancy_enabled": False}, {}),
        ({}, {"shadow_redundancy_enabled": False}),
        ({}, {"peer": {EDGE: {"send_xshadow": False}}}),
        ({}, {"redundancy": "none"}),
    ],
    ids=[
        "send_xshadow of the edge",
        "switched off at the edge",
        "switched off at the hub",
        "send_xshadow of the hub",
        "connector of the hub",
    ],
)
async def test_where_track_is_switched_off_the_next_hop_is_delivered_to_and_done(
    tmp_path: Path, at_the_edge: dict[str, Any], at_the_hub: dict[str, Any]
) -> None:
    net = Net(tmp_path)
    try:
        hub = await net.start(HUB, [EDGE], **{"redundancy": "previous-hop", **at_the_hub})
        edge = await net.start(EDGE, [HUB], **{"redundancy": "previous-hop", "routes": route_to(HUB), **at_the_edge})
        await asyncio.sleep(1)

        assert 250 == (await edge.accept()).code
        await until(edge.in_role(edge.last, Role.DELIVERED), 5 * HEARTBEAT)

        assert [EDGE] == [who for who, _, _ in net.sink.arrived], "by SMTP, which the sink stands for"
        for node in (edge, hub):
            assert (None, 0) == (await node.role(relayed_id(edge.last, HUB, frozenset((1,)))), sum(node.context.counts.promoted.values()))
        (sent,) = edge.log.rows(EventId.SEND) + edge.log.rows(EventId.SENDEXTERNAL)
        assert "" == sent.source_context, "no shadow was kept"
    finally:
        await net.close()


@in_virtual_time
async def test_what_was_relayed_stays_out_of_safety_net_so_nothing_of_it_is_resubmitted(tmp_path: Path) -> None:
    """Safety Net is the way of 2013: a next hop of the 2010 way got the message once, and is responsible for it."""
    async with an_edge(tmp_path, HUB, routes=[route_to(HUB)[0] | {"inside_boundary": True}]) as net:
        edge = net.nodes[EDGE]
        assert 250 == (await edge.accept()).code
        relayed = relayed_id(edge.last, HUB, frozenset((1,)))
        await until(edge.in_role(relayed, Role.DELIVERED), 3 * HEARTBEAT)

        number = await resubmit(edge)
        await until(in_state(edge, number, RequestState.DONE), 20 * HEARTBEAT)
        await asyncio.sleep(20 * HEARTBEAT)

        assert 0 == (await request_of(edge, number)).resubmitted_count
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_what_kills_the_next_hop_stays_there_and_is_not_relayed_to_it_again_and_again(tmp_path: Path) -> None:
    again = {"redundancy": "previous-hop", "peer": {EDGE: {"boundary": "edge"}}}
    async with an_edge(tmp_path, HUB) as net:
        relayed = await a_relayed_message(net)
        net.sink.answer = lambda address: OK
        for _ in range(3):
            await die_while_handling(net, HUB)
            await net.start(HUB, [EDGE], **again)
        hub, edge = net.nodes[HUB], net.nodes[EDGE]
        await until(hub.in_role(relayed, Role.SET_ASIDE), 60)
        attempts_count = net.sink.attempts_count
        await asyncio.sleep(10 * KEPT_SPAN)

        assert attempts_count == net.sink.attempts_count
        assert (Role.SET_ASIDE, Role.SHADOW) == (await hub.role(relayed), await edge.role(relayed))
        assert [] == net.sink.arrived + edge.log.rows(EventId.RESUBMIT)
