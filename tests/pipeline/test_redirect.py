"""`queue redirect`: certain peers take all active messages over, each once, and the node takes mail again. docs/design.md 6.11."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from shadowrelay.model.drain_progress import DrainState, Obstacle
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import Suspension
from shadowrelay.model.replies import RequestRefused
from shadowrelay.model.tracking import EventId
from shadowrelay.store import promises
from tests.kit.nodes import EAST, NORTH, OK, WEST, Net, in_virtual_time, until
from tests.pipeline.drains import ALL, SPAN, accept_deferred, copies_stored, is_in, nodes, until_delivered_once, view_of, waits

COUNT = 12


async def redirected(net: Net, *targets, seconds: float = 60) -> None:
    """From east, until it is over."""
    await net.nodes[EAST].services.drain.redirect(targets)
    assert DrainState.REDIRECTING is net.nodes[EAST].services.drain.state
    await until(is_in(net, EAST, DrainState.ACTIVE), seconds)


def deliveries(net: Net) -> Counter:
    return Counter(server for server, _, _ in net.sink.arrived)


@in_virtual_time
async def test_the_target_delivers_everything_also_what_had_its_copy_elsewhere(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        ids = await accept_deferred(net, EAST, COUNT)
        chosen = [(await net.nodes[EAST].message(message_id)).claim.chosen().server for message_id in ids]
        assert {WEST, NORTH} == set(chosen)
        copies_before = copies_stored(net)

        await redirected(net, NORTH)

        assert chosen.count(WEST) == copies_stored(net) - copies_before, "only what its target has no copy of, and only there"

        view = await view_of(net, EAST)
        assert ((NORTH,), COUNT, 0) == (view.targets, view.moved_count, view.left_count)
        assert {Role.PRIMARY} == {await net.nodes[NORTH].role(message_id) for message_id in ids}
        assert len(ids) == len(net.nodes[NORTH].log.rows(EventId.RESUBMIT))
        await until_delivered_once(net, COUNT)
        assert {NORTH: COUNT} == deliveries(net)


@in_virtual_time
async def test_each_message_has_two_copies_when_the_redirect_is_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        ids = await accept_deferred(net, EAST, COUNT)
        await redirected(net, WEST)
        await asyncio.sleep(5)

        for message_id in ids:
            holders = [name for name in ALL if await net.nodes[name].role(message_id) in (Role.PRIMARY, Role.SHADOW)]
            assert 2 <= len(holders)
        await net.wipe(WEST)  # for good: the shadow servers deliver it
        net.sink.answer = lambda address: OK
        await until(lambda: COUNT == len(net.sink.arrived), 4 * SPAN)


@in_virtual_time
async def test_several_targets_share_and_the_node_takes_and_delivers_mail_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        await accept_deferred(net, EAST, COUNT)
        await redirected(net, WEST, NORTH)
        assert (await net.nodes[EAST].accept("later@corp.example")).is_positive
        net.sink.answer = lambda address: OK
        await until(lambda: COUNT + 1 == len(net.sink.arrived))

        shares = deliveries(net)
        assert 1 == shares[EAST]
        assert COUNT == shares[WEST] + shares[NORTH]
        await until(lambda: not net.nodes[WEST].context.peers.states[EAST].is_draining)


@in_virtual_time
async def test_what_is_suspended_stays(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        ids = await accept_deferred(net, EAST, 3)
        east = net.nodes[EAST]
        await east.ledger.commit(promises.suspended, ids[0], Suspension(east.context.now(), "somebody"))

        await redirected(net, WEST)

        assert [Role.PRIMARY, Role.PRIMARY] == [await east.role(ids[0]), await net.nodes[WEST].role(ids[1])]


@in_virtual_time
async def test_a_target_that_is_lost_leaves_the_rest_here_and_the_node_goes_on(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        await accept_deferred(net, EAST, COUNT)
        await net.nodes[EAST].services.drain.redirect([WEST])
        await net.kill(WEST)

        await until(is_in(net, EAST, DrainState.ACTIVE), 200)

        await net.start(WEST)
        await until_delivered_once(net, COUNT)


@in_virtual_time
async def test_a_node_killed_in_the_middle_delivers_the_rest_itself(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        await accept_deferred(net, EAST, COUNT)
        await net.nodes[EAST].services.drain.redirect([WEST])
        await until(waits(net, EAST, Obstacle.TAKEOVER))
        await net.kill(EAST)
        await net.start(EAST)

        assert DrainState.ACTIVE is net.nodes[EAST].services.drain.state
        await until_delivered_once(net, COUNT)


@in_virtual_time
async def test_undrain_ends_a_redirect_and_drain_replaces_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        await accept_deferred(net, EAST, COUNT)
        drain = net.nodes[EAST].services.drain
        await drain.redirect([WEST])
        assert await drain.end()
        assert DrainState.ACTIVE is drain.state
        await drain.redirect([WEST])
        await drain.begin()
        await until(is_in(net, EAST, DrainState.INACTIVE), 60)

        assert net.nodes[EAST].ledger.draining_since is not None
        await until_delivered_once(net, COUNT)


@in_virtual_time
async def test_what_cannot_be_redirected_to_is_refused_and_mail_still_taken(tmp_path: Path) -> None:
    async with nodes(tmp_path, *ALL) as net:
        drain = net.nodes[EAST].services.drain
        await net.nodes[WEST].services.drain.begin()
        await net.kill(NORTH)
        await asyncio.sleep(2)
        refusals = [(["mx9.example"], "mx9.example is not a peer"), ([WEST], "those that do drain"), ([NORTH], "no target answers")]
        for targets, reason in refusals:
            with pytest.raises(RequestRefused, match=reason):
                await drain.redirect(targets)

        assert DrainState.ACTIVE is drain.state
        await drain.begin()
        with pytest.raises(RequestRefused, match="this node drains"):
            await drain.redirect([WEST])
