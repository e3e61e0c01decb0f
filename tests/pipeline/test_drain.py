"""A node is emptied before maintenance: each message has one owner and two copies all the time. docs/design.md 6.11."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.drain_progress import DrainState, Obstacle
from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Choice, Role
from shadowrelay.model.replies import Reply, RequestRefused
from shadowrelay.model.tracking import EventId
from shadowrelay.store import promises, reading, steps
from tests.kit.nodes import BUSY, EAST, NORTH, OK, WEST, Net, VirtualNode, in_virtual_time, until
from tests.pipeline.drains import ALL, SPAN, accept_deferred, copies_stored, is_in, nodes, until_delivered_once, view_of, waits


@in_virtual_time
async def test_what_waits_is_delivered_once_by_its_shadow_servers_and_nothing_is_copied(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        ids = await accept_deferred(net, EAST, 20)
        shadow_of = {}
        for message_id in ids:
            stored = await net.nodes[EAST].message(message_id)
            assert stored is not None
            chosen = stored.claim.chosen()
            assert chosen is not None
            shadow_of[message_id] = chosen.server

        await net.nodes[EAST].services.drain.begin()
        await until(is_in(net, EAST, DrainState.INACTIVE), 30)

        for message_id, server in shadow_of.items():
            theirs, mine = await net.nodes[server].message(message_id), await net.nodes[EAST].message(message_id)
            assert theirs is not None
            assert mine is not None
            assert (Role.PRIMARY, Role.SHADOW, server) == (theirs.claim.role, mine.claim.role, mine.claim.primary)
            assert [(EAST, Choice.CHOSEN)] == [(copy.server, copy.choice) for copy in theirs.claim.copies]
        assert 20 == copies_stored(net), "the copies of the acceptance, and no others"
        assert {"Handover": 20} == Counter(
            dict(row.custom_data)["Reason"] for node in net.nodes.values() for row in node.log.rows(EventId.RESUBMIT)
        )
        view = await view_of(net, EAST)
        assert (0, 0, ()) == (view.undelivered_count, view.handed_over_count, view.waiting)
        await until_delivered_once(net, 20)
        assert [] == net.sink.by(EAST)
        assert 20 == len(net.nodes[EAST].log.rows(EventId.HADISCARD))


@in_virtual_time
@pytest.mark.parametrize("redundancy", ["none", "previous-hop"])
async def test_mail_of_a_connector_that_is_not_copied_gets_a_copy_and_is_handed_over(tmp_path: Path, redundancy: str) -> None:
    async with nodes(tmp_path, EAST, WEST, redundancy=redundancy, connector={"max_acknowledgement_delay": "0s"}) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept("user0@corp.example", connector="default")
        await asyncio.sleep(1)

        await net.nodes[EAST].services.drain.begin()
        await until(is_in(net, EAST, DrainState.INACTIVE), 30)

        assert Role.PRIMARY is await net.nodes[WEST].role(net.nodes[EAST].last)
        await until_delivered_once(net, 1)


@in_virtual_time
async def test_two_nodes_hand_over_to_each_other_in_turn(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await accept_deferred(net, EAST, 5)
        for server in (EAST, WEST, EAST):
            await net.nodes[server].services.drain.begin()
            await until(is_in(net, server, DrainState.INACTIVE), 30)
            assert await net.nodes[server].services.drain.end()
            assert DrainState.ACTIVE is net.nodes[server].services.drain.state

        assert 5 == copies_stored(net)
        await until_delivered_once(net, 5)


@in_virtual_time
async def test_a_node_without_peers_keeps_its_mail_and_says_so(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        await accept_deferred(net, EAST, 2)
        drain = net.nodes[EAST].services.drain
        await drain.begin()
        await until(waits(net, EAST, Obstacle.NO_PEER))
        net.sink.answer = lambda address: OK
        await asyncio.sleep(1.5 * SPAN)

        view = await drain.view()
        assert (DrainState.DRAINING, True, 2, []) == (view.state, view.is_stuck, view.undelivered_count, net.sink.arrived)
        assert ["2 messages left here, undelivered: no copy, and no peers are configured"] == [one.text for one in view.waiting]
        assert await drain.end()
        assert not await drain.end(), "it does not drain any more"
        await until_delivered_once(net, 2)


@in_virtual_time
async def test_an_empty_node_without_peers_is_inactive_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        await net.nodes[EAST].services.drain.begin()
        await until(is_in(net, EAST, DrainState.INACTIVE), 5)


@in_virtual_time
async def test_a_message_without_a_copy_gets_one_before_it_is_handed_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await net.kill(WEST)
        await accept_deferred(net, EAST, 3)
        await net.nodes[EAST].services.drain.begin()
        await until(waits(net, EAST, Obstacle.NO_PEER_TAKES_COPIES))
        assert (await view_of(net, EAST)).is_stuck

        await net.start(WEST)
        await until(is_in(net, EAST, DrainState.INACTIVE), 120)

        await until_delivered_once(net, 3)
        assert 3 == len(net.sink.by(WEST))


@in_virtual_time
async def test_an_attempt_that_runs_is_waited_for_and_its_message_is_not_handed_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        gate = asyncio.Event()
        net.sink.hang = lambda address: gate
        assert (await net.nodes[EAST].accept("user0@corp.example")).is_positive
        await until(lambda: net.sink.attempts_count == 1)
        await net.nodes[EAST].services.drain.begin()
        await asyncio.sleep(45)  # longer than the time that attempts are given

        assert await net.nodes[EAST].role(net.nodes[EAST].last) is Role.PRIMARY
        assert await waits(net, EAST, Obstacle.ATTEMPT)()
        gate.set()
        await until(is_in(net, EAST, DrainState.INACTIVE), 30)

        await until_delivered_once(net, 1)
        assert 1 == len(net.sink.by(EAST))


@in_virtual_time
async def test_an_attempt_that_ends_without_success_is_the_last_and_its_message_follows(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        gate = asyncio.Event()

        async def hang(server: ServerName) -> None:
            if server == EAST:
                await gate.wait()
                raise OSError("the session is lost")

        net.sink.before_dot = hang
        assert (await net.nodes[EAST].accept("user0@corp.example")).is_positive
        await until(lambda: net.sink.attempts_count == 1)
        await net.nodes[EAST].services.drain.begin()
        await asyncio.sleep(10)
        gate.set()
        await until(is_in(net, EAST, DrainState.INACTIVE), 60)

        await until_delivered_once(net, 1)
        assert 1 == len(net.sink.by(WEST))


# kill -9 in each step


async def _at_begin(net: Net) -> None:
    await until(lambda: net.nodes[EAST].context.is_draining)


async def _at_commit(net: Net) -> None:
    """`yours` is committed, and nobody has heard it."""
    await HANDED.pop(0).wait()


async def _at_takeover(net: Net) -> None:
    await until(lambda: bool(net.nodes[WEST].log.rows(EventId.RESUBMIT)))


async def _at_end(net: Net) -> None:
    await until(is_in(net, EAST, DrainState.INACTIVE))


HANDED: list[asyncio.Event] = []


def watch_hand_overs(node: VirtualNode) -> None:
    """For `_at_commit`: the event is set right after the transaction, before anything else runs."""
    real = partial(node.ledger.real.commit, promises.transition)
    event = asyncio.Event()
    HANDED[:] = [event]

    async def transition(message_ids: Any, decide: Any) -> Any:
        done = await real(message_ids, decide)
        if any(one.outcome == "handed" for one in done):
            event.set()
        return done

    node.ledger.instead["transition"] = transition


@pytest.mark.parametrize("moment", [_at_begin, _at_commit, _at_takeover, _at_end])
@in_virtual_time
async def test_a_killed_node_goes_on_with_its_drain_at_the_next_start(tmp_path: Path, moment: Callable[[Net], Awaitable[None]]) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        ids = await accept_deferred(net, EAST, 5)
        watch_hand_overs(net.nodes[EAST])
        await net.nodes[EAST].services.drain.begin()
        await moment(net)
        await net.kill(EAST)
        await asyncio.sleep(3)
        await net.start(EAST)

        assert net.nodes[EAST].context.is_draining
        assert not net.nodes[EAST].services.peer_requests.offers_hold()
        await until(is_in(net, EAST, DrainState.INACTIVE), 60)
        assert {Role.SHADOW} == {await net.nodes[EAST].role(message_id) for message_id in ids}
        await until_delivered_once(net, 5)
        assert [] == net.sink.by(EAST)


@in_virtual_time
async def test_a_node_killed_for_longer_than_the_span_in_the_middle_delivers_nothing_twice(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await accept_deferred(net, EAST, 5)
        watch_hand_overs(net.nodes[EAST])
        await net.nodes[EAST].services.drain.begin()
        await _at_commit(net)
        await net.kill(EAST)
        await until_delivered_once(net, 5)
        await net.start(EAST)
        await until(is_in(net, EAST, DrainState.INACTIVE), 60)
        assert await net.nodes[EAST].services.drain.end()
        await until_delivered_once(net, 5)


# a peer that vanishes


@in_virtual_time
async def test_a_peer_that_vanishes_with_what_it_was_handed_is_waited_for(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        ids = await accept_deferred(net, EAST, 3)
        watch_hand_overs(net.nodes[EAST])
        await net.nodes[EAST].services.drain.begin()
        await _at_commit(net)
        await net.kill(WEST)
        await until(waits(net, EAST, Obstacle.TAKEOVER_AWAY), 60)

        view = await view_of(net, EAST)
        assert (True, 3) == (view.is_stuck, view.handed_over_count)
        assert any("3 messages handed over to mx1.west.example, which does not answer" in one.text for one in view.waiting)
        assert await net.nodes[EAST].services.drain.end()
        await asyncio.sleep(1.5 * SPAN)
        assert {Role.HANDED_OVER} == {await net.nodes[EAST].role(message_id) for message_id in ids}, "it may deliver them by now"
        await net.start(WEST)
        await until_delivered_once(net, 3)


@in_virtual_time
async def test_what_was_handed_to_a_peer_whose_disk_is_destroyed_is_handed_to_another(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        await accept_deferred(net, EAST, 6)
        watch_hand_overs(net.nodes[EAST])
        await net.nodes[EAST].services.drain.begin()
        await _at_commit(net)
        await net.wipe(WEST)
        await asyncio.sleep(5)
        await net.start(WEST)
        await until(is_in(net, EAST, DrainState.INACTIVE), 200)

        await until_delivered_once(net, 6)
        assert [] == net.sink.by(EAST)


@in_virtual_time
async def test_mail_whose_shadow_server_is_away_is_handed_to_another_after_two_heartbeats(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        await accept_deferred(net, EAST, 6)
        await net.kill(WEST)
        await net.nodes[EAST].services.drain.begin()
        await until(waits(net, EAST, Obstacle.AWAY), 10)
        await until(lambda: len(net.nodes[NORTH].log.rows(EventId.RESUBMIT)) == 6, 60)
        await until_delivered_once(net, 6)


@in_virtual_time
async def test_notifications_of_a_peer_that_is_away_are_named(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        assert (await net.nodes[EAST].accept("user0@corp.example")).is_positive
        await net.kill(WEST)
        await until(lambda: len(net.sink.arrived) == 1)
        await net.nodes[EAST].services.drain.begin()
        await until(waits(net, EAST, Obstacle.UNTOLD_AWAY), 30)

        assert (await view_of(net, EAST)).is_stuck
        await net.start(WEST)
        await until(is_in(net, EAST, DrainState.INACTIVE), 30)
        await until_delivered_once(net, 1)


# undrain, and several that drain


@in_virtual_time
async def test_undrain_in_the_middle_delivers_what_is_left_here_and_the_rest_there(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await accept_deferred(net, EAST, 10)
        gate = net.nodes[EAST].ledger.gates["undelivered"] = asyncio.Event()
        await net.nodes[EAST].services.drain.begin()
        await asyncio.sleep(1)
        assert await net.nodes[EAST].services.drain.end()
        gate.set()
        await net.nodes[EAST].services.drain.begin()
        await asyncio.sleep(0.3)
        assert await net.nodes[EAST].services.drain.end()

        await until_delivered_once(net, 10)
        assert (await net.nodes[EAST].accept("late@corp.example")).is_positive
        await until(lambda: "late@corp.example" in net.sink.addresses())


@in_virtual_time
async def test_two_nodes_that_drain_do_not_hand_the_same_mail_to_and_fro(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await accept_deferred(net, EAST, 4)
        await accept_deferred(net, WEST, 0)
        await asyncio.gather(*(net.nodes[server].services.drain.begin() for server in (EAST, WEST)))
        await asyncio.sleep(20)
        promotions = sum(len(node.log.rows(EventId.RESUBMIT)) for node in net.nodes.values())

        assert promotions <= 4
        stuck = [server for server in (EAST, WEST) if (await view_of(net, server)).undelivered_count]
        assert 1 == len(stuck)
        assert await waits(net, stuck[0], Obstacle.DRAINING)()
        other = next(server for server in (EAST, WEST) if server != stuck[0])
        assert await net.nodes[other].services.drain.end()
        await until(is_in(net, stuck[0], DrainState.INACTIVE), 60)
        await until_delivered_once(net, 4)


@in_virtual_time
async def test_mail_whose_shadow_server_drains_gets_a_copy_on_the_third_server_first(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        await accept_deferred(net, EAST, 8)
        await net.nodes[WEST].services.drain.begin()
        await until(is_in(net, WEST, DrainState.INACTIVE), 30)
        await net.nodes[EAST].services.drain.begin()
        await until(is_in(net, EAST, DrainState.INACTIVE), 60)

        await until_delivered_once(net, 8)
        assert 8 == len(net.sink.by(NORTH))


@in_virtual_time
async def test_peers_place_elsewhere_while_a_node_drains_and_on_it_again_afterwards(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        peers = net.nodes[WEST].context.peers
        await net.nodes[EAST].services.drain.begin()
        await until(lambda: peers.drains(EAST), 2)
        refused = await net.nodes[WEST].accept("user0@corp.example")
        assert (451, "refusing") == (refused.code, peers.breaker_state(EAST))

        await net.nodes[EAST].services.drain.end()
        await until(lambda: not peers.drains(EAST), 2)

        assert (await net.nodes[WEST].accept("user0@corp.example")).is_positive
        await until_delivered_once(net, 1)


@in_virtual_time
async def test_a_hello_of_before_the_drain_that_arrives_late_does_not_end_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        early = net.nodes[EAST].services.peer_requests.own_identity(WEST)
        await net.nodes[EAST].services.drain.begin()
        await until(lambda: net.nodes[WEST].context.peers.drains(EAST), 2)

        await net.nodes[WEST].services.peer_requests.greeted(early)

        assert net.nodes[WEST].context.peers.drains(EAST)


@in_virtual_time
async def test_a_drained_node_promotes_what_it_holds_for_a_lost_primary_and_hands_it_on(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        await accept_deferred(net, EAST, 8)
        await net.nodes[WEST].services.drain.begin()
        await until(is_in(net, WEST, DrainState.INACTIVE), 30)
        await net.wipe(EAST)
        await asyncio.sleep(1)
        await net.start(EAST)

        await until_delivered_once(net, 8)
        assert [] == net.sink.by(WEST)
        await until(is_in(net, WEST, DrainState.INACTIVE), 60)


@in_virtual_time
async def test_recipients_whose_notice_has_no_copy_yet_keep_the_message_here(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: Reply(550, "5.1.1", "no such user") if address.startswith("bad") else BUSY
        net.hold_fault = lambda primary, shadow: ""
        assert (await east.accept("bad@corp.example", "user0@corp.example")).is_positive
        message_id = east.last
        net.isolate(WEST)  # the notice finds no second server
        await until(lambda: bool(east.log.rows(EventId.DSN)), 30)
        net.heal()
        net.hold_fault = lambda primary, shadow: "not stored" if primary == EAST else ""
        await east.services.drain.begin()
        await until(waits(net, EAST, Obstacle.NOTICE), 60)
        assert await east.role(message_id) is Role.PRIMARY

        net.hold_fault = lambda primary, shadow: ""
        net.sink.answer = lambda address: OK
        await until(is_in(net, EAST, DrainState.INACTIVE), 400)
        await asyncio.sleep(1.5 * SPAN)
        assert ["a@x.example", "user0@corp.example"] == net.sink.addresses(), "one notice, one delivery"


@in_virtual_time
async def test_yours_that_was_deleted_unheard_is_said_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await accept_deferred(net, EAST, 3)
        watch_hand_overs(net.nodes[EAST])
        await net.nodes[EAST].services.drain.begin()
        await _at_commit(net)
        await net.kill(WEST)
        await steps.forget_unasked(net.nodes[EAST].ledger.real, net.nodes[EAST].clock.now() + timedelta(days=9))
        assert not await net.nodes[EAST].ledger.real.read(
            reading.has_unacknowledged, WEST, net.nodes[EAST].context.peers.party(WEST).database
        )
        await asyncio.sleep(2 * SPAN)

        await net.start(WEST)
        await until(is_in(net, EAST, DrainState.INACTIVE), 60)
        await until_delivered_once(net, 3)


@in_virtual_time
async def test_a_server_whose_copy_is_damaged_gives_it_up_and_another_takes_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_message_auto_discard_interval=timedelta(hours=1)) as net:
        await accept_deferred(net, EAST, 3)
        net.nodes[WEST].corrupt()
        await net.nodes[EAST].services.drain.begin()
        await until(is_in(net, EAST, DrainState.INACTIVE), 60)

        await until_delivered_once(net, 3)
        assert 3 == len(net.sink.by(WEST)), "with a new copy"


@in_virtual_time
async def test_whoever_asks_for_a_drain_and_goes_away_leaves_a_node_that_drains_wholly(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        drain = net.nodes[EAST].services.drain
        for change, is_wanted in ((drain.begin, True), (drain.end, False)):
            asking = asyncio.ensure_future(change())
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            await asyncio.sleep(1)

            assert (is_wanted, is_wanted) == (drain.is_wanted, net.nodes[EAST].context.is_draining)


async def disturb(net: Net, chance: random.Random, steps: int) -> None:
    """Drains, undrains, kills, starts and cuts, one after the other; at most one node is down at a time, and no disk is lost."""
    for _ in range(steps):
        server = chance.choice(ALL)
        down = [name for name in ALL if name not in net.nodes]
        match chance.choice(("drain", "redirect", "undrain", "kill", "start", "cut", "heal", "pass")):
            case "drain" if server in net.nodes:
                await net.nodes[server].services.drain.begin()
            case "redirect" if server in net.nodes:
                with contextlib.suppress(RequestRefused):  # it drains, or its target does not answer
                    await net.nodes[server].services.drain.redirect([chance.choice([name for name in ALL if name != server])])
            case "undrain" if server in net.nodes:
                await net.nodes[server].services.drain.end()
            case "kill" if not down:
                await net.kill(server)
            case "start" if down:
                await net.start(down[0])
            case "cut":
                net.isolate(server)
            case "heal":
                net.heal()
        await asyncio.sleep(chance.choice((0.0, 0.02, 0.3, 1.0, 3.0, 0.4 * SPAN)))


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (3, 4))])
@in_virtual_time
async def test_whatever_happens_while_nodes_drain_and_redirect_each_message_arrives_once(tmp_path: Path, seed: int) -> None:
    """The next hop takes nothing meanwhile, so no duplicate has an excuse."""
    chance = random.Random(seed)
    async with nodes(tmp_path, *ALL) as net:
        await accept_deferred(net, chance.choice(ALL), 8)
        await disturb(net, chance, 14)
        net.heal()
        for server in ALL:
            if server not in net.nodes:
                await net.start(server)
            await net.nodes[server].services.drain.end()
        await asyncio.sleep(0.5 * SPAN)
        await until_delivered_once(net, 8)
