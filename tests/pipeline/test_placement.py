"""Placing: who says no is left in peace, one message finds out, and what waits is woken and not looked for."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import (
    INSUFFICIENT_RESOURCES,
    STORE_UNAVAILABLE,
    LedgerUnavailable,
    PeerSaid,
    PeerUnavailable,
    Reply,
    TransientDeliveryError,
)
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.store import reading
from tests.kit.clock import until
from tests.kit.ledger import a_spooled_content, an_envelope
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, SPAN, WEST, VirtualNode, in_virtual_time, nodes
from tests.pipeline.scenes import count_holds


def sites_of(node: VirtualNode, server: str) -> list[str]:
    """Where the node believes it to be."""
    return [peer.site for peer in node.settings.peers if peer.name == server]


def count_reads(node: VirtualNode) -> list[str]:
    """What placement reads of the ledger from now on."""
    reads: list[str] = []
    unplaced = partial(node.ledger.real.read, reading.unplaced)

    async def counted(limit, after=0):
        reads.append("unplaced")
        return await unplaced(limit, after=after)

    node.ledger.instead["unplaced"] = counted
    return reads


async def a_refusing_pair(net) -> tuple[VirtualNode, VirtualNode]:
    """A peer that answers COMMIT with 452, and mail that waits."""
    east, west = net.nodes[EAST], net.nodes[WEST]
    net.sink.answer = lambda address: BUSY

    async def no_room(peer, offer):
        return INSUFFICIENT_RESOURCES

    west.services.peer_requests.hold = no_room
    await asyncio.sleep(1)
    return east, west


PLACES = [  # attempts in the other site and in this one; a server is left alone after two
    ({}, 2, 2),
    ({"max_retries_for_remote_site_shadow": 1}, 1, 2),
    ({"max_retries_for_remote_site_shadow": 0}, 0, 2),
    ({"max_retries_for_local_site_shadow": 1}, 2, 1),
    ({"max_retries_for_local_site_shadow": 0}, 2, 0),
    ({"shadow_message_preference_setting": "RemoteOnly"}, 2, 0),
    ({"shadow_message_preference_setting": "LocalOnly"}, 0, 2),
    ({"peer": {WEST: {"site": "west"}}}, 4, 0),
]


@pytest.mark.parametrize(("changes", "remote_count", "local_count"), PLACES)
@in_virtual_time
async def test_preference_counts_and_sites_decide_where_a_copy_is_tried(
    tmp_path: Path, changes: dict[str, Any], remote_count: int, local_count: int
) -> None:
    settings = {"peer": {WEST: {"site": "east"}}, "reject_message_on_shadow_failure": True} | changes
    async with nodes(tmp_path, EAST, WEST, NORTH, **settings) as net:
        east, tried = net.nodes[EAST], []
        await asyncio.sleep(1)

        def lost(primary: str, shadow: str) -> str:
            tried.append(shadow)
            raise PeerUnavailable(ServerName(shadow), "the connection is lost")

        net.hold_fault = lost

        assert 451 == (await east.accept()).code
        places = Counter(east.settings.server.site == site for server in tried for site in sites_of(east, server))
        assert (remote_count, local_count) == (places[False], places[True])
        assert (tried[0] == WEST) is (not remote_count) or not local_count


# a peer that says no
@in_virtual_time
async def test_a_peer_that_refuses_copies_is_sent_a_few_of_them_and_not_one_for_each_message(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency="2m", shadow_resubmit_time_span="1h") as net:
        east, _ = await a_refusing_pair(net)
        sent = count_holds(east, WEST)

        for _ in range(20):
            await east.accept()
        await asyncio.sleep(60)

        assert 6 >= len(sent)  # at 0, 1, 3, 7, 15 and 31 s
        assert ("refusing", str(INSUFFICIENT_RESOURCES)) == await shown(east)


async def shown(node: VirtualNode) -> tuple[str, str]:
    (view,) = await node.services.peers.views()
    return view.breaker, view.refusal


@in_virtual_time
async def test_a_peer_that_has_room_again_gets_everything_that_waits(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency="2m", shadow_resubmit_time_span="1h") as net:
        east, west = await a_refusing_pair(net)
        for _ in range(30):
            await east.accept()
        await asyncio.sleep(60)

        del west.services.peer_requests.hold

        async def all_held() -> bool:
            groups = await west.ledger.real.read(reading.shadow_groups)
            return 30 == sum(group.count for group in groups)

        await until(all_held, 40)
        assert ("closed", "") == await shown(east)


@in_virtual_time
async def test_a_peer_that_offers_no_hold_is_known_from_any_session_and_sent_nothing(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency="2m", shadow_resubmit_time_span="1h") as net:
        await net.kill(WEST)
        west = await net.start(WEST)
        west.services.peer_requests.offers_hold = lambda: False
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.context.links[WEST].greet()
        sent = count_holds(east, WEST)

        await east.accept()
        assert [] == sent

        await asyncio.sleep(60)
        assert 6 >= len(sent)


@in_virtual_time
async def test_a_copy_that_only_itself_is_refused_closes_the_peer_to_nobody_else(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        link = east.context.links[WEST]
        hold = link.hold

        async def not_this(offer, deadline, **patience):
            if offer.envelope.message_id == first:
                raise PeerUnavailable(WEST, "552 5.3.4 too large", said=PeerSaid.NOT_THIS)
            return await hold(offer, deadline, **patience)

        first = ""
        await east.accept()
        first, link.hold = east.last, not_this
        east.services.copy_repair.wake(0)
        await east.accept()

        assert Role.SHADOW is await west.role(east.last)
        assert "closed" == east.context.peers.breaker_state(WEST)


# the order of attempts
@in_virtual_time
async def test_all_attempts_in_other_sites_come_before_those_in_this_one(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, peer={NORTH: {"site": "east"}}) as net:
        east = net.nodes[EAST]

        async def not_this(offer, deadline, **patience):
            raise PeerUnavailable(WEST, "552 5.3.4 too large", said=PeerSaid.NOT_THIS)

        for server in (WEST, NORTH):
            east.context.links[server].hold = not_this
        sent = count_holds(east, WEST, NORTH)
        await east.accept()

        assert [WEST, WEST, WEST, WEST, NORTH, NORTH] == sent[:6]


@in_virtual_time
@pytest.mark.parametrize("preference", ["PreferRemote", "RemoteOnly", "LocalOnly"])
async def test_where_the_boundary_has_one_site_its_servers_are_used_whatever_the_preference_says(tmp_path: Path, preference: str) -> None:
    async with nodes(tmp_path, EAST, WEST, peer={WEST: {"site": "east"}}, shadow_message_preference_setting=preference) as net:
        await net.nodes[EAST].accept()

        assert Role.SHADOW is await net.nodes[WEST].role(net.nodes[EAST].last)


# a peer that is silent
@in_virtual_time
async def test_one_message_at_a_time_finds_out_whether_a_silent_peer_is_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency="2m", shadow_resubmit_time_span="1h") as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        net.hold_fault = lambda primary, shadow: "slow"
        net.isolate(WEST)
        east.context.peers.failed(WEST, was_refused=True)
        await until(lambda: "half-open" == east.context.peers.breaker_state(WEST), 30)
        sent = count_holds(east, WEST)
        began = asyncio.get_running_loop().time()

        await asyncio.gather(*(east.accept() for _ in range(50)))

        assert [WEST] == sent[:1]
        assert 2 >= len(sent)
        assert 10 > asyncio.get_running_loop().time() - began


@in_virtual_time
async def test_mail_without_a_copy_is_logged_and_the_node_degraded_while_it_lasts(tmp_path: Path, logged: list[dict[str, Any]]) -> None:
    def without_copy() -> list[dict[str, Any]]:
        return [line for line in logged if line["event"] == "message.accepted_without_copy"]

    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        east.services.readiness.is_running = True
        await east.accept()
        assert ((True, ()), []) == (east.services.readiness.is_ready(), without_copy())
        await net.kill(WEST)
        await until(lambda: "closed" != east.context.peers.breaker_state(WEST), 3 * HEARTBEAT)
        (peer,) = await east.services.peers.views()

        await east.accept()

        (line,) = without_copy()
        assert ("0/1", f"{WEST}: {peer.last_error}") == (line["copies"], line["reason"])
        assert (True, f"new mail is accepted without a copy: {WEST}: {peer.last_error}") == (
            (ready := east.services.readiness.is_ready())[0], ready[1][0],
        )  # fmt: skip
        assert peer.last_error

        await net.start(WEST)
        await until(lambda: (True, ()) == east.services.readiness.is_ready(), 10 * HEARTBEAT)
        assert [""] == [peer.last_error for peer in await east.services.peers.views()]


@in_virtual_time
async def test_a_node_that_refuses_mail_without_a_copy_is_not_ready(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        readiness = net.nodes[EAST].services.readiness
        readiness.is_running = True
        await net.kill(WEST)
        await until(lambda: not readiness.is_ready()[0], 3 * HEARTBEAT)

        is_ready, (reason, *_) = readiness.is_ready()
        assert (False, True) == (is_ready, reason.startswith("new mail is refused with 451: "))


@in_virtual_time
async def test_a_trial_that_is_cancelled_gives_its_place_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        peers = net.nodes[EAST].context.peers
        await net.kill(WEST)
        peers.failed(WEST, was_refused=True)
        await until(lambda: "half-open" == peers.breaker_state(WEST), 30)

        trial = peers.begin_attempt(WEST)
        assert (False, None) == (peers.may_try(WEST), peers.begin_attempt(WEST))
        peers.end_attempt(WEST, trial)

        assert peers.may_try(WEST)


@in_virtual_time
async def test_a_queue_without_copies_is_read_once_from_end_to_end(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency="2m", shadow_resubmit_time_span="1h") as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await net.kill(WEST)
        for _ in range(250):
            await east.accept()
        await net.kill(EAST)  # what was in memory is gone
        await net.start(WEST)
        net.nodes[WEST].services.peer_requests.offers_hold = lambda: False
        east = await net.start(EAST)
        reads = count_reads(east)
        west = net.nodes[WEST]
        del west.services.peer_requests.offers_hold

        async def all_held() -> bool:
            return 250 == sum(group.count for group in await west.ledger.real.read(reading.shadow_groups))

        await until(all_held, 60)
        assert 12 >= len(reads)


# large copies
@in_virtual_time
async def test_a_burst_of_large_messages_is_copied_in_order_although_the_line_is_slow(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        link = east.context.links[WEST]
        hold, line = link.hold, asyncio.Lock()

        async def over_a_slow_line(offer, deadline, stall_seconds=None):
            now = east.clock.awake()
            try:
                async with asyncio.timeout(deadline - now if stall_seconds is None else stall_seconds), line:
                    await asyncio.sleep(1.5)  # of the two seconds of shadow_timeout
            except TimeoutError as error:
                raise PeerUnavailable(WEST, "no answer in time") from error
            return await hold(offer, deadline, stall_seconds)

        link.hold = over_a_slow_line
        contents = [a_spooled_content(tmp_path, b"Subject: large\r\n\r\n" + b"x" * 5_000_000) for _ in range(5)]

        replies = await asyncio.gather(*(east.services.accept.accept(an_envelope(), content) for content in contents))

        assert [250] * 5 == [reply.code for reply in replies]


@in_virtual_time
async def test_small_copies_do_not_wait_for_a_large_one_that_is_repaired(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        net.isolate(WEST)
        await east.services.accept.accept(large := an_envelope(), a_spooled_content(tmp_path, b"x" * 5_000_000))
        link = east.context.links[WEST]
        hold, may_go_on = link.hold, asyncio.Event()

        async def slowly(offer, deadline, stall_seconds=None):
            if offer.envelope.message_id == large.message_id:
                await may_go_on.wait()
            return await hold(offer, deadline, stall_seconds)

        link.hold = slowly
        net.heal()
        await asyncio.sleep(20)
        began = asyncio.get_running_loop().time()
        await east.accept()

        assert Role.SHADOW is await west.role(east.last)
        assert 1 > asyncio.get_running_loop().time() - began
        may_go_on.set()
        await until(west.in_role(large.message_id, Role.SHADOW), 10)


@pytest.mark.parametrize("when", ["read", "sent"])
@in_virtual_time
async def test_content_that_this_node_cannot_read_now_waits_visibly_and_no_peer_is_blamed(tmp_path: Path, when: str) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        east.services.readiness.is_running = True
        net.isolate(WEST)
        await east.services.accept.accept(envelope := an_envelope(), a_spooled_content(tmp_path, b"x" * 5_000_000))
        error = LedgerUnavailable(STORE_UNAVAILABLE, "content/large/1: Input/output error")
        link, read = east.context.links[WEST], east.ledger.read_content
        hold = link.hold

        async def unreadable(offer, deadline, stall_seconds=None):
            if offer.envelope.message_id == envelope.message_id:
                raise error
            return await hold(offer, deadline, stall_seconds)

        async def unread(place):
            if place.size == 5_000_000:
                raise error
            return await read(place)

        if when == "read":
            east.ledger.read_content = unread
        else:
            link.hold = unreadable
        net.heal()
        await until(lambda: any("content/large/1" in reason for reason in east.services.readiness.is_ready()[1]), 60)
        await until(lambda: not east.services.readiness.is_ready()[1][0].startswith("new mail"), 60)
        assert 250 == (await east.accept()).code
        assert Role.SHADOW is await west.role(east.last)
        await asyncio.sleep(30)
        stored = await east.message(envelope.message_id)

        east.ledger.read_content, link.hold = read, hold

        await until(west.in_role(envelope.message_id, Role.SHADOW), 120)
        assert stored is not None
        assert Role.PRIMARY is stored.claim.role
        assert when == "sent" or error.reason in stored.retries[0].last_reply
        await until(lambda: (True, ()) == east.services.readiness.is_ready(), 30)


# woken, not polled
@in_virtual_time
async def test_while_nobody_can_take_a_copy_nothing_is_read_and_the_return_of_a_peer_wakes_what_waits(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency="2m", shadow_resubmit_time_span="1h") as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await net.kill(WEST)
        for _ in range(30):
            await east.accept()
        await asyncio.sleep(30)
        reads = count_reads(east)

        await asyncio.sleep(120)
        assert 8 >= len(reads)  # a trial now and then
        west = await net.start(WEST)

        await until(west.in_role(east.last, Role.SHADOW), 5)


@in_virtual_time
async def test_where_everything_has_a_copy_nothing_is_read(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        for _ in range(5):
            await east.accept()
        await asyncio.sleep(5)
        reads = count_reads(east)

        await asyncio.sleep(60)

        assert [] == reads


@in_virtual_time
async def test_whoever_waits_for_a_copy_is_told_that_it_is_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[str] = []
    monkeypatch.setattr(DeliverService, "placed", lambda self, message_id: placed.append(message_id))
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        net.isolate(WEST)
        await east.accept()

        net.heal()

        await until(lambda: [east.last] == placed, 30)


@in_virtual_time
async def test_a_copy_whose_reply_was_lost_counts_soon_and_not_at_the_next_attempt(tmp_path: Path) -> None:
    """The server may have it, so it gets no other one: it is asked, however long the message's next hop is away."""
    away = TransientDeliveryError(Reply(451, "4.4.1", "nobody listens"), "sink.example:25", is_unreachable=True)
    async with nodes(tmp_path, EAST, WEST, send={"queue_glitch_retry_interval": timedelta(hours=9)}) as net:
        east = net.nodes[EAST]
        await asyncio.sleep(1)
        net.sink.answer = lambda address: away
        await east.accept()
        await until(lambda: bool(net.sink.attempts_count))
        net.hold_fault = lambda primary, shadow: "reply late"
        assert 250 == (await east.accept()).code
        assert (claim := await east.claim(east.last)) is not None
        assert claim.missing_count

        net.hold_fault = lambda primary, shadow: None

        async def is_chosen() -> bool:
            known = await east.claim(east.last)
            return known is not None and known.is_chosen(WEST)

        await until(is_chosen, 2 * SPAN)
        assert 1 == net.sink.attempts_count


@in_virtual_time
async def test_a_peer_that_comes_and_goes_has_little_read_and_gets_what_waits_when_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_heartbeat_frequency="2m", shadow_resubmit_time_span="1h") as net:
        east, unreachable = net.nodes[EAST], PeerUnavailable(ServerName(WEST), "nobody listens", was_refused=True)
        net.sink.answer = lambda address: BUSY
        net.hold_fault = partial(_raise, unreachable)
        for _ in range(60):
            await east.accept()
        peers, read_count = east.context.peers, 0
        read = east.ledger.read

        async def counted(question, *arguments, **named):
            nonlocal read_count
            answer = await read(question, *arguments, **named)
            read_count += len(answer) if question in (reading.load_many, reading.unplaced) else 0
            return answer

        monkeypatch.setattr(east.ledger, "read", counted)
        for _ in range(1200):
            peers.failed(ServerName(WEST), "nobody listens", was_refused=True)
            await asyncio.sleep(0.025)
            peers.heard(ServerName(WEST), peers.party(ServerName(WEST)).database)
            await asyncio.sleep(0.025)
        assert 10 * 60 > read_count  # in a minute, of 60 messages

        net.hold_fault = lambda primary, shadow: ""
        await until(west_has_all(net), 40)


def _raise(error: Exception, *_: object) -> None:
    raise error


def west_has_all(net) -> Callable[[], Awaitable[bool]]:
    async def has() -> bool:
        return 60 == sum(group.count for group in await net.nodes[WEST].ledger.real.read(reading.shadow_groups))

    return has
