"""A DSN that two nodes make: the old primary of the message that failed, and whoever took it over unheard. The same DSN has the same
id on both, so that it is asked about like any message that somebody else may have."""

import asyncio
from pathlib import Path

import pytest

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import CopyNumber, Role, StatusQuestion, StatusState
from shadowrelay.model.replies import Reply
from shadowrelay.rules.dsn import DsnKind, dsn_message_id
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, NO_SUCH_USER, NORTH, OK, SPAN, WEST, Net, in_virtual_time, nodes

SENDER = "a@x.example"


def _failing(net: Net, isolated: ServerName) -> None:
    """The recipient is refused, and in this very moment the node that is told so is cut off. Notices wait."""

    def answer(address: str) -> Reply:
        if address == SENDER:
            return BUSY
        if not net.cut:
            net.isolate(isolated)
        return NO_SUCH_USER

    net.sink.answer = answer


@pytest.mark.parametrize("policy", ["defer", "deliver"])
@in_virtual_time
async def test_of_two_nodes_that_made_a_dsn_the_old_primary_asks_when_it_is_back(tmp_path: Path, policy: str) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease=policy) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        _failing(net, EAST)
        await east.accept()
        await until(west.in_role(east.last, Role.DELIVERED), 2 * SPAN)  # taken over, and failed there too
        net.heal()
        await asyncio.sleep(0.1)

        net.sink.answer = lambda address: OK

        await until(lambda: bool(net.sink.arrived), 30)
        await asyncio.sleep(SPAN)
        assert [(WEST, SENDER)] == [(server, address) for server, address, _ in net.sink.arrived]


@in_virtual_time
async def test_with_defer_a_dsn_that_another_may_make_waits_during_a_cut(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        _failing(net, EAST)
        await east.accept()
        await asyncio.sleep(SPAN / 4)
        net.sink.answer = lambda address: OK if address == SENDER else NO_SUCH_USER

        await until(west.in_role(east.last, Role.DELIVERED), 2 * SPAN)
        await asyncio.sleep(10)
        net.heal()
        await asyncio.sleep(SPAN)

        assert [(WEST, SENDER)] == [(server, address) for server, address, _ in net.sink.arrived]


@in_virtual_time
async def test_a_dsn_of_before_a_restart_is_asked_about(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        _failing(net, EAST)
        await east.accept()
        await until(east.in_role(east.last, Role.DELIVERED), 1)
        await net.kill(EAST)
        net.heal()
        net.sink.answer = lambda address: OK if address == SENDER else NO_SUCH_USER
        await until(west.in_role(east.last, Role.DELIVERED), 2 * SPAN)
        await until(lambda: bool(net.sink.arrived), 10)

        await net.start(EAST)
        await asyncio.sleep(SPAN)

        assert [(WEST, SENDER)] == [(server, address) for server, address, _ in net.sink.arrived]


@in_virtual_time
async def test_a_dsn_goes_at_once_while_its_originals_shadow_server_is_heard(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        net.sink.answer = lambda address: OK if address == SENDER else NO_SUCH_USER
        east = net.nodes[EAST]

        await east.accept()

        await until(lambda: bool(net.sink.arrived), 3)
        await until(east.in_role(east.last, Role.DELIVERED), 5)
        assert [(EAST, SENDER)] == [(server, address) for server, address, _ in net.sink.arrived]


@in_virtual_time
async def test_status_does_not_say_what_waits_for_its_dsn(tmp_path: Path) -> None:
    """The only disk with the DSN could burn, and the shadow server would have let go of the message."""
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY if address == SENDER else NO_SUCH_USER
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.hold_fault = lambda primary, shadow: "" if _is_first_copy(net) else "slow"
        await east.accept()
        await until(east.in_role(east.last, Role.DELIVERED), 5)
        number = CopyNumber(1, 1, east.ledger.identity.database)
        me = west.services.peer_requests.own_identity(EAST)

        (waiting,) = await east.services.peer_requests.status(me, [StatusQuestion(east.last, number)])
        net.hold_fault = lambda primary, shadow: ""
        await until(west.in_role(east.last, Role.DELIVERED), 20)
        (told,) = await east.services.peer_requests.status(me, [StatusQuestion(east.last, number)])

        assert (StatusState.PRIMARY, frozenset()) == (waiting.state, waiting.done)
        assert (StatusState.DELIVERED, frozenset({1})) == (told.state, told.done)


def _is_first_copy(net: Net) -> bool:
    """The first copy passes, and those of DSNs do not."""
    return not net.sink.attempts_count


@in_virtual_time
async def test_whoever_took_the_message_over_asks_everybody_before_a_dsn_that_its_lost_primary_may_have_made(tmp_path: Path) -> None:
    """The lost primary's DSN has its copy on a server that has nothing to do with the message itself (simulation seed 21421)."""
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await east.accept()
        original = east.last
        holder, third = (WEST, NORTH) if Role.SHADOW is await net.nodes[WEST].role(original) else (NORTH, WEST)
        _failing(net, holder)
        await until(east.in_role(original, Role.DELIVERED), 60)
        dsn_id = dsn_message_id(original, frozenset({1}), DsnKind.FAILURE)
        await until(net.nodes[third].in_role(dsn_id, Role.SHADOW), 60)
        await net.wipe(EAST)
        net.sink.answer = lambda address: OK if address == SENDER else BUSY

        net.cut = {frozenset((EAST, holder))}
        await net.start(EAST)
        await until(lambda: bool(net.sink.arrived), 2 * SPAN)
        net.heal()
        await until(net.nodes[holder].in_role(original, Role.PRIMARY), 4 * SPAN)
        await asyncio.sleep(2)  # it has a new copy, and a lease on that
        net.sink.answer = lambda address: OK if address == SENDER else NO_SUCH_USER
        await until(net.nodes[holder].in_role(original, Role.DELIVERED), 4 * SPAN)
        await asyncio.sleep(2 * SPAN)

        assert [(third, SENDER)] == [(server, address) for server, address, _ in net.sink.arrived]
