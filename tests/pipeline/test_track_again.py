"""A relayed message whose reply or record was lost is offered again, and is still one message. docs/design.md 6.7 "Offered again"."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.ownership import CopyNumber, Role, StatusState
from shadowrelay.model.peers import CopyOffer
from shadowrelay.model.replies import Reply
from shadowrelay.model.tracking import EventId
from shadowrelay.model.values import replace
from shadowrelay.pipeline.peerbook import PeerBook
from shadowrelay.pipeline.relay import RELAY_SECONDS, relayed_id
from shadowrelay.protocol.xqdiscard import parse_superseded
from tests.kit.clock import until
from tests.kit.ledger import a_content
from tests.kit.nodes import (
    BUSY,
    HEARTBEAT,
    NORTH,
    OK,
    SOUTH,
    SPAN,
    Net,
    in_virtual_time,
)
from tests.pipeline.edges import EDGE, HUB, KEPT_SPAN, OTHER_HUB, a_relayed_message, an_edge, route_to


@in_virtual_time
async def test_a_lost_reply_makes_no_second_message(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB) as net:
        edge, hub = net.nodes[EDGE], net.nodes[HUB]
        real, calls = hub.services.peer_requests.track, []

        async def reply_is_lost(*arguments: Any) -> Reply:
            reply = await real(*arguments)
            calls.append(reply.code)
            if len(calls) == 1:
                net.cut.add(frozenset((EDGE, HUB)))
            return reply

        hub.services.peer_requests.track = reply_is_lost
        assert 250 == (await edge.accept()).code
        relayed = relayed_id(edge.last, HUB, frozenset((1,)))
        await until(lambda: len(calls) == 1, 5)
        await asyncio.sleep(HEARTBEAT)
        net.heal()

        await until(edge.in_role(edge.last, Role.DELIVERED), 10 * HEARTBEAT)
        await until(lambda: bool(net.sink.arrived), 10 * HEARTBEAT)
        await asyncio.sleep(10 * HEARTBEAT)

        assert [250, 554] == calls
        assert [HUB] == [who for who, _, _ in net.sink.arrived]
        assert await edge.role(relayed) in (None, Role.DELIVERED)


@in_virtual_time
async def test_what_was_in_flight_to_a_hub_that_hangs_takes_the_other_way_when_the_hub_is_lost(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB, OTHER_HUB) as net:
        edge, hub = net.nodes[EDGE], net.nodes[HUB]

        async def hang(*arguments: Any) -> Reply:
            net.cut.add(frozenset((EDGE, HUB)))  # it answers nothing else either; the connection stays open
            await asyncio.Event().wait()
            raise AssertionError

        hub.services.peer_requests.track = hang
        began = edge.clock.awake()
        assert 250 == (await edge.accept()).code

        await until(lambda: OTHER_HUB in [who for who, _, _ in net.sink.arrived], RELAY_SECONDS)
        assert edge.clock.awake() - began < RELAY_SECONDS / 4


@in_virtual_time
async def test_all_that_tried_another_way_in_vain_goes_its_own_way_when_the_next_hop_is_back(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB, OTHER_HUB) as net:
        relayed = [await a_relayed_message(net) for _ in range(4)]
        edge = net.nodes[EDGE]
        await net.kill(HUB)
        await asyncio.sleep(1)
        net.cut.add(frozenset((EDGE, OTHER_HUB)))
        await until(edge.in_role(relayed[-1], Role.PRIMARY), KEPT_SPAN + 5 * HEARTBEAT)
        await until(lambda: any("~" in key for key in edge.services.deliver.queues()), 5 * HEARTBEAT)
        await asyncio.sleep(1)
        await net.start(HUB, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}})
        net.sink.answer = lambda address: OK

        await until(lambda: len(net.sink.arrived) == len(relayed), 100 * HEARTBEAT)

        assert {HUB} == {who for who, _, _ in net.sink.arrived}


@in_virtual_time
async def test_what_tried_another_way_goes_its_own_way_also_if_the_next_hop_is_back_while_it_is_reviewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with an_edge(tmp_path, HUB, OTHER_HUB) as net:
        relayed = [await a_relayed_message(net) for _ in range(4)]
        edge = net.nodes[EDGE]
        net.cut |= {frozenset((EDGE, hub)) for hub in (HUB, OTHER_HUB)}
        await until(edge.in_role(relayed[-1], Role.PRIMARY), KEPT_SPAN + 5 * HEARTBEAT)
        await until(lambda: any("~" in key for key in edge.services.deliver.queues()), 5 * HEARTBEAT)
        reviewed: list[MessageId] = []
        review, is_available = edge.services.deliver._request_review, PeerBook.is_available

        def reviews(message_id: MessageId) -> None:
            reviewed.append(message_id)
            review(message_id)

        def is_known_to_be_back(peers: PeerBook, server: ServerName) -> bool:
            return is_available(peers, server) and (bool(reviewed) or server != HUB)

        monkeypatch.setattr(edge.services.deliver, "_request_review", reviews)
        monkeypatch.setattr(PeerBook, "is_available", is_known_to_be_back)
        net.cut.remove(frozenset((EDGE, HUB)))
        net.sink.answer = lambda address: OK

        await until(lambda: len(net.sink.arrived) == len(relayed), 100 * HEARTBEAT)

        assert reviewed
        assert {HUB} == {who for who, _, _ in net.sink.arrived}


@asynccontextmanager
async def an_edge_that_died_before_its_record(directory: Path, count: int = 1, **changes: Any) -> AsyncIterator[tuple[Net, MessageId]]:
    """The hub has the message, whose first recipient it has delivered to if there are several. The edge is back, and does nothing yet. The
    hub was restarted, too, has asked the edge therefore, and heard that it holds no copy."""
    async with an_edge(directory, HUB, **changes) as net:
        edge, hub = net.nodes[EDGE], net.nodes[HUB]
        net.sink.answer = lambda address: OK if count > 1 and address.startswith("user1@") else BUSY
        edge.ledger.gates["attempt"] = asyncio.Event()
        assert 250 == (await edge.accept(*(f"user{number}@corp.example" for number in range(1, count + 1)))).code
        original = edge.last
        relayed = relayed_id(edge.last, HUB, frozenset(range(1, count + 1)))
        await until(hub.in_role(relayed, Role.PRIMARY), 5)
        await until(lambda: len(net.sink.arrived) == count - 1, 5)
        await net.kill(EDGE)
        routes = {"routes": route_to(HUB), **changes}
        edge = await net.start(EDGE, [HUB], is_idle=True, boundary="edge", redundancy="previous-hop", **routes)
        edge.last = original
        await net.kill(HUB)
        hub = await net.start(HUB, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}})

        async def is_dropped() -> bool:
            claim = await hub.claim(relayed)
            return claim is not None and not claim.copies

        await until(is_dropped, 10 * HEARTBEAT)
        yield net, relayed


@in_virtual_time
async def test_a_next_hop_tells_the_previous_one_that_died_before_its_record(tmp_path: Path) -> None:
    async with an_edge_that_died_before_its_record(tmp_path) as (net, relayed):
        edge, hub = net.nodes[EDGE], net.nodes[HUB]
        edge.services.start()
        await until(edge.in_role(relayed, Role.SHADOW), 5 * HEARTBEAT)
        taken = await hub.claim(relayed)
        net.sink.answer = lambda address: OK
        await until(lambda: bool(net.sink.arrived), 5 * HEARTBEAT)
        await asyncio.sleep(2)
        await net.wipe(HUB)  # the record of the delivery is gone with it
        await asyncio.sleep(2 * KEPT_SPAN)

        assert taken is not None
        assert [EDGE] == [copy.server for copy in taken.copies]
        assert Role.DELIVERED is await edge.role(relayed)
        assert [HUB] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_shadow_that_was_logged_and_not_committed_has_an_end_in_the_log(tmp_path: Path) -> None:
    """Its SEND row was written before the commit: without an end it would be an orphan in the report."""
    async with an_edge_that_died_before_its_record(tmp_path) as (net, relayed):
        edge = net.nodes[EDGE]
        net.sink.answer = lambda address: OK
        await until(net.nodes[HUB].in_role(relayed, Role.DELIVERED), 5 * HEARTBEAT)
        edge.services.start()
        await until(edge.in_role(edge.last, Role.DELIVERED), 5 * HEARTBEAT)

        (ended,) = edge.log.rows(EventId.HADISCARD)
        (sent,) = edge.log.rows(EventId.SEND) + edge.log.rows(EventId.SENDEXTERNAL)
        assert (relayed, edge.last, "delivered", HUB) == (
            ended.network_message_id,
            ended.reference,
            ended.source_context,
            ended.client_hostname,
        )
        assert ("", True) == (sent.source_context, "Delivered there as" in sent.recipient_statuses[0])
        assert [HUB] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_a_shadow_that_was_logged_and_not_committed_ends_in_the_log_when_another_way_is_taken(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB, OTHER_HUB) as net:
        net.sink.answer = lambda address: BUSY
        edge = net.nodes[EDGE]
        edge.ledger.gates["attempt"] = asyncio.Event()
        assert 250 == (await edge.accept()).code
        original, relayed = edge.last, relayed_id(edge.last, HUB, frozenset((1,)))
        await until(net.nodes[HUB].in_role(relayed, Role.PRIMARY), 5)
        await net.kill(EDGE)
        (sent,) = edge.log.rows(EventId.SEND) + edge.log.rows(EventId.SENDEXTERNAL)
        await net.kill(HUB)

        edge = await net.start(EDGE, [HUB, OTHER_HUB], boundary="edge", redundancy="previous-hop", routes=route_to(HUB, OTHER_HUB))
        other = relayed_id(original, OTHER_HUB, frozenset((1,)))
        await until(edge.in_role(other, Role.SHADOW), 10 * HEARTBEAT)

        assert f"shadow kept as {relayed}" == sent.source_context
        (ended,) = edge.log.rows(EventId.HADISCARD)
        assert (relayed, original, "released", HUB) == (
            ended.network_message_id,
            ended.reference,
            ended.source_context,
            ended.client_hostname,
        )


@in_virtual_time
async def test_what_the_next_hop_had_done_before_it_was_offered_again_is_not_taken_back(tmp_path: Path) -> None:
    routes = [{**route_to(HUB)[0], "next_hop": [f"{HUB}:2525", "sink.example:25"]}]
    async with an_edge_that_died_before_its_record(tmp_path, 2, routes=routes) as (net, relayed):
        edge = net.nodes[EDGE]
        edge.ledger.gates["due"] = gate = asyncio.Event()
        edge.services.start()
        await asyncio.sleep(2 * HEARTBEAT)  # the notification of what is done comes before the edge knows the message
        gate.set()
        await until(edge.in_role(relayed, Role.SHADOW), 5 * HEARTBEAT)
        kept = await edge.claim(relayed)
        await net.wipe(HUB)
        net.sink.answer = lambda address: OK
        await until(edge.in_role(relayed, Role.DELIVERED), KEPT_SPAN + 5 * HEARTBEAT)

        assert kept is not None
        assert {1} == kept.done
        assert [(HUB, "user1@corp.example"), (EDGE, "user2@corp.example")] == [(who, address) for who, address, _ in net.sink.arrived]


@in_virtual_time
async def test_what_came_back_as_a_copy_is_not_offered_a_second_time(tmp_path: Path) -> None:
    async with an_edge_that_died_before_its_record(tmp_path) as (net, relayed):
        edge, hub = net.nodes[EDGE], net.nodes[HUB]
        stored = await hub.message(relayed)
        assert stored is not None
        offer = CopyOffer(CopyNumber(1, 2, stored.claim.number.database), stored.envelope, frozenset(), a_content())
        assert 250 == (await edge.services.peer_requests.hold(hub.services.peer_requests.own_identity(EDGE), offer)).code
        await net.wipe(HUB)
        await net.start(HUB, [EDGE], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}})
        edge.services.start()

        await until(edge.in_role(edge.last, Role.DELIVERED), 5 * HEARTBEAT)

        assert await net.nodes[HUB].role(relayed) is None


@in_virtual_time
async def test_a_second_server_that_relays_it_again_keeps_it_under_a_number_of_its_own(tmp_path: Path) -> None:
    """Two shadows of one number would both be taken back when the hub is lost: neither would wait for the other."""
    net = Net(tmp_path)
    try:
        hub = await net.start(HUB, [EDGE, NORTH], redundancy="previous-hop", peer={EDGE: {"boundary": "edge"}, NORTH: {"boundary": "edge"}})
        edge = await net.start(EDGE, [HUB], boundary="edge", redundancy="previous-hop", routes=route_to(HUB))
        await asyncio.sleep(1)
        relayed = await a_relayed_message(net)
        stored = await hub.message(relayed)
        assert stored is not None
        offer = CopyOffer(stored.claim.number, stored.envelope, frozenset(), a_content())
        await asyncio.sleep(2)  # no attempt runs
        second = replace(edge.services.peer_requests.own_identity(HUB), server=NORTH, database=DatabaseId("d" * 32))
        reply = await hub.services.peer_requests.track(second, offer, hub.clock.awake())
        kept, taken = await edge.claim(relayed), await hub.claim(relayed)

        answer = parse_superseded(reply.text)
        assert kept is not None
        assert taken is not None
        assert (StatusState.PRIMARY, taken.number) == (answer.state, answer.number)
        assert taken.number > kept.number
        assert {EDGE, NORTH} == {copy.server for copy in taken.copies}
    finally:
        await net.close()


@in_virtual_time
async def test_offered_again_to_a_hub_that_has_yielded_it_is_known_to_the_server_that_took_it_over(tmp_path: Path) -> None:
    net = Net(tmp_path)
    try:
        in_edge = {"peer": {EDGE: {"boundary": "edge"}}}
        of_edge: dict[str, Any] = {"boundary": "edge", "redundancy": "previous-hop", "routes": route_to(HUB)}
        hub = await net.start(HUB, [EDGE, OTHER_HUB], redundancy="both", **in_edge)
        other = await net.start(OTHER_HUB, [HUB, EDGE], redundancy="both", **in_edge)
        edge = await net.start(EDGE, [HUB, OTHER_HUB], **of_edge)
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY
        edge.ledger.gates["attempt"] = asyncio.Event()
        assert 250 == (await edge.accept()).code
        relayed = relayed_id(edge.last, HUB, frozenset((1,)))
        await until(hub.in_role(relayed, Role.PRIMARY), 5)
        await net.kill(EDGE)
        await until(other.in_role(relayed, Role.SHADOW), 10 * HEARTBEAT)
        await net.kill(HUB)
        await until(other.in_role(relayed, Role.PRIMARY), 2 * SPAN)
        hub = await net.start(HUB, [EDGE, OTHER_HUB], redundancy="both", **in_edge)
        await until(hub.in_role(relayed, Role.SHADOW), 10 * HEARTBEAT)
        edge = await net.start(EDGE, [HUB, OTHER_HUB], is_idle=True, **of_edge)
        gates = edge.ledger.gates
        gates["submission"] = gates["due"] = asyncio.Event()
        edge.services.start()
        await asyncio.sleep(2 * HEARTBEAT)  # it has asked the hub about all copies
        gates["due"].set()

        async def is_listed() -> bool:
            kept, taken = await edge.claim(relayed), await other.claim(relayed)
            return kept is not None and taken is not None and kept.primary == OTHER_HUB and taken.copy_on(EDGE) is not None

        await until(is_listed, SPAN / 2)  # long before it asks again
        net.sink.answer = lambda address: OK
        await until(edge.in_role(relayed, Role.DELIVERED), 10 * HEARTBEAT)

        assert [OTHER_HUB] == [who for who, _, _ in net.sink.arrived]
    finally:
        await net.close()


@in_virtual_time
async def test_offered_again_during_an_attempt_it_is_kept_at_once(tmp_path: Path) -> None:
    """An attempt may take many minutes, and so may the next offer if this one is answered 451."""
    send = {"queue_glitch_retry_interval": "6h", "message_retry_interval": "6h"}
    async with an_edge(tmp_path, HUB) as net:
        edge, hub, taken_by_next_hop = net.nodes[EDGE], net.nodes[HUB], asyncio.Event()
        net.sink.hang = lambda address: taken_by_next_hop
        edge.ledger.gates["attempt"] = asyncio.Event()
        assert 250 == (await edge.accept()).code
        relayed = relayed_id(edge.last, HUB, frozenset((1,)))
        await until(lambda: net.sink.attempts_count == 1, 5)
        await net.kill(EDGE)

        edge = await net.start(EDGE, [HUB], boundary="edge", redundancy="previous-hop", routes=route_to(HUB), send=send)
        await until(edge.in_role(relayed, Role.SHADOW), HEARTBEAT)
        is_running = hub.context.attempts.is_busy(relayed)
        taken_by_next_hop.set()
        await until(edge.in_role(relayed, Role.DELIVERED), 5 * HEARTBEAT)

        assert is_running
        assert [HUB] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
async def test_offered_again_to_a_hub_that_was_released_it_is_done(tmp_path: Path) -> None:
    """Two other hubs have the message: it needs no third copy, and there is no failure of which the sender would have to know."""
    net = Net(tmp_path)
    try:
        hubs = (HUB, OTHER_HUB, SOUTH)
        starts = {
            hub: partial(
                net.start, hub, [EDGE, *(other for other in hubs if other != hub)], redundancy="both", peer={EDGE: {"boundary": "edge"}}
            )
            for hub in hubs
        }
        of_edge: dict[str, Any] = {"boundary": "edge", "redundancy": "previous-hop", "routes": route_to(HUB)}

        def is_chosen(hub: ServerName) -> Callable[[], Awaitable[bool]]:
            async def is_so() -> bool:
                claim = await net.nodes[OTHER_HUB].claim(relayed)
                return claim is not None and (chosen := claim.chosen()) is not None and chosen.server == hub

            return is_so

        for start in starts.values():
            await start()
        edge = await net.start(EDGE, hubs, **of_edge)
        await asyncio.sleep(1)
        net.sink.answer = lambda address: BUSY
        net.cut.add(frozenset((HUB, SOUTH)))  # the copy is placed on the other hub
        edge.ledger.gates["attempt"] = asyncio.Event()
        assert 250 == (await edge.accept()).code
        original = edge.last
        relayed = relayed_id(original, HUB, frozenset((1,)))
        await until(net.nodes[HUB].in_role(relayed, Role.PRIMARY), 5)
        await net.kill(EDGE)
        await until(net.nodes[OTHER_HUB].in_role(relayed, Role.SHADOW), 10 * HEARTBEAT)
        await net.kill(HUB)
        net.heal()
        await until(net.nodes[OTHER_HUB].in_role(relayed, Role.PRIMARY), 2 * SPAN)
        hub = await starts[HUB]()
        await until(is_chosen(HUB), 20 * HEARTBEAT)  # the hub yields, and becomes the shadow server
        await net.kill(HUB)
        await until(is_chosen(SOUTH), 20 * HEARTBEAT)
        hub = await starts[HUB]()
        await until(hub.in_role(relayed, Role.RELEASED), 20 * HEARTBEAT)

        edge = await net.start(EDGE, hubs, **of_edge)
        await until(edge.in_role(original, Role.DELIVERED), 4 * HEARTBEAT)
        net.sink.answer = lambda address: OK
        await until(lambda: bool(net.sink.arrived), 4 * HEARTBEAT)
        await asyncio.sleep(4 * HEARTBEAT)

        assert [OTHER_HUB] == [who for who, _, _ in net.sink.arrived]
        assert await edge.role(relayed) is None
        (sent,) = edge.log.rows(EventId.SEND) + edge.log.rows(EventId.SENDEXTERNAL)
        assert ("", True) == (sent.source_context, "Handed over there as" in sent.recipient_statuses[0])
    finally:
        await net.close()


@in_virtual_time
async def test_a_next_hop_that_delivers_before_the_relay_is_recorded_is_heard(tmp_path: Path) -> None:
    async with an_edge(tmp_path, HUB) as net:
        edge = net.nodes[EDGE]
        edge.ledger.gates["attempt"] = gate = asyncio.Event()
        assert 250 == (await edge.accept()).code
        relayed = relayed_id(edge.last, HUB, frozenset((1,)))

        await until(lambda: bool(net.sink.arrived), 5)
        await asyncio.sleep(2 * HEARTBEAT)  # the edge asks for discard notifications meanwhile
        gate.set()

        await until(edge.in_role(relayed, Role.DELIVERED), 2 * HEARTBEAT)
        assert [HUB] == [who for who, _, _ in net.sink.arrived]


@in_virtual_time
@pytest.mark.parametrize("recipients", [1, 2])
async def test_a_reply_that_does_not_come_holds_up_no_discard_notifications(tmp_path: Path, recipients: int) -> None:
    """The next hop reports what it has done of a message before the 250 for it has come. Of several recipients one is not done."""
    async with an_edge(tmp_path, HUB, connector={"max_acknowledgement_delay": "0s"}) as net:
        edge, hub = net.nodes[EDGE], net.nodes[HUB]
        real, reply_comes, taken = hub.services.peer_requests.track, asyncio.Event(), []
        net.sink.answer = lambda address: BUSY if address == "user2@corp.example" else OK

        async def the_first_reply_is_late(*arguments: Any) -> Reply:
            reply = await real(*arguments)
            taken.append(reply)
            if len(taken) == 1:
                await reply_comes.wait()
            return reply

        hub.services.peer_requests.track = the_first_reply_is_late
        addresses = [f"user{number}@corp.example" for number in range(1, recipients + 1)]
        assert 250 == (await edge.accept(*addresses)).code
        first, late = edge.last, relayed_id(edge.last, HUB, frozenset(range(1, recipients + 1)))
        await until(lambda: bool(net.sink.arrived), 5)
        await asyncio.sleep(HEARTBEAT)
        assert 250 == (await edge.accept("other@corp.example")).code
        other = relayed_id(edge.last, HUB, frozenset((1,)))
        await until(edge.in_role(other, Role.DELIVERED), 3 * HEARTBEAT)
        role_meanwhile = await edge.role(first)
        reply_comes.set()
        await until(edge.in_role(first, Role.DELIVERED), 3 * HEARTBEAT)
        kept = await edge.claim(late)
        net.sink.answer = lambda address: OK
        await until(edge.in_role(late, None if recipients == 1 else Role.DELIVERED), 5 * HEARTBEAT)

        assert Role.PRIMARY is role_meanwhile
        assert (None if recipients == 1 else {1}) == (None if kept is None else kept.done)
        assert recipients + 1 == len(net.sink.arrived)
