"""What a node says about the next message is what happens to it: status, readiness and the API, for each way in which a peer fails."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.readiness import NewMail, Takes
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, PeerUnavailable, Reply
from shadowrelay.rules.placement import REFUSED_SECONDS_MAX, SICK_SECONDS_MAX
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, SOUTH, WEST, FakeLink, Net, VirtualNode, in_virtual_time, nodes

POLICY, ODD = Reply(451, "4.7.1", "policy"), Reply(550, "5.1.1", "no such recipient")


def hangs_at_data(net: Net) -> None:
    net.hold_fault = lambda primary, shadow: "not stored" if (primary, shadow) == (EAST, WEST) else ""


def refuses(reply: Reply) -> Callable[[Net], None]:
    def play(net: Net) -> None:
        async def no(peer: object, offer: object) -> Reply:
            return reply

        net.nodes[WEST].services.peer_requests.hold = no

    return play


class OneWay(FakeLink):
    """West reaches east, and something else answers east at west's address."""

    async def _reach(self) -> VirtualNode:
        if (self._node.name, self._server) == (EAST, WEST):
            raise PeerUnavailable(WEST, "554 no service here")
        return await super()._reach()


def answers_from_its_side_only(net: Net) -> None:
    net.link_to = lambda node, server: OneWay(net, node, server)


def new_mail(node: VirtualNode) -> NewMail:
    return node.services.readiness.new_mail().outcome


def is_known(node: VirtualNode) -> Callable[[], bool]:
    return lambda: new_mail(node) is not NewMail.UNKNOWN


TROUBLES = [hangs_at_data, refuses(INSUFFICIENT_RESOURCES), refuses(POLICY), refuses(ODD)]


@pytest.mark.parametrize("trouble", TROUBLES, ids=["hangs at DATA", "back pressure", "policy", "odd"])
@pytest.mark.parametrize("rejects", [True, False])
@in_virtual_time
async def test_a_peer_that_accepts_sessions_and_stores_no_copy_takes_none(
    tmp_path: Path, trouble: Callable[[Net], None], rejects: bool
) -> None:
    """Its polls and ours go on all the time."""
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=rejects) as net:
        east = net.nodes[EAST]
        east.services.readiness.is_running = True
        net.sink.answer = lambda address: BUSY
        await until(is_known(east))
        assert NewMail.COPIED is new_mail(east)
        trouble(net)

        for _ in range(8):
            assert (451 if rejects else 250) == (await east.accept()).code
            for _ in range(3):
                assert (NewMail.REFUSED if rejects else NewMail.FEWER) is new_mail(east)
                is_ready, (sentence, *_) = east.services.readiness.is_ready()
                began = east.context.peers.states[WEST].evidence.failing_since
                is_out = rejects and began is not None and east.clock.awake() - began >= SICK_SECONDS_MAX
                assert is_ready is not is_out
                assert sentence.startswith(f"new mail is {'refused with 451' if rejects else 'accepted without a copy'}: {WEST}: ")
                await asyncio.sleep(HEARTBEAT / 2)

        assert rejects is not east.services.readiness.is_ready()[0]
        await until(lambda: east.context.peers.is_reachable(WEST))
        assert 1 == east.context.peers.refusing_count()


@in_virtual_time
async def test_a_peer_that_only_reaches_us_takes_no_copies(tmp_path: Path) -> None:
    net = Net(tmp_path, names=(EAST, WEST), transport={"reject_message_on_shadow_failure": True})
    answers_from_its_side_only(net)
    try:
        east, _ = await net.start(EAST), await net.start(WEST)
        east.services.readiness.is_running = True
        await until(lambda: bool(east.context.peers.states[WEST].heard_awake))
        await until(is_known(east))

        began = east.clock.awake()
        for _ in range(20):
            is_young = east.clock.awake() - began < SICK_SECONDS_MAX - 5.0
            if is_young or east.clock.awake() - began > SICK_SECONDS_MAX:
                assert (NewMail.REFUSED, is_young) == (new_mail(east), east.services.readiness.is_ready()[0])
            assert 451 == (await east.accept()).code
            await asyncio.sleep(5)
        (peer,) = await east.services.peers.views()
        assert (Takes.NO, True) == (peer.takes_copies, "554 no service here" in peer.last_error)
    finally:
        await net.close()


@in_virtual_time
async def test_after_a_start_nothing_is_known_until_a_session_of_ours(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        readiness = net.nodes[EAST].services.readiness
        readiness.is_running = True

        assert (NewMail.UNKNOWN, True) == (readiness.new_mail().outcome, readiness.is_ready()[0])
        assert f"{WEST}: no session with it yet" in readiness.is_ready()[1][0]

        await until(lambda: readiness.is_ready() == (True, ()))
        assert NewMail.COPIED is readiness.new_mail().outcome


@in_virtual_time
async def test_a_node_that_gets_no_mail_any_more_says_after_a_while_that_it_does_not_know(tmp_path: Path) -> None:
    """A load balancer that never tried again would leave the cluster without a node: one stored copy proves it."""
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        east.services.readiness.is_running = True
        await until(is_known(east))
        hangs_at_data(net)
        assert 451 == (await east.accept()).code
        net.hold_fault = lambda primary, shadow: ""

        await asyncio.sleep(REFUSED_SECONDS_MAX / 2)
        assert (NewMail.REFUSED, True) == (new_mail(east), east.services.readiness.is_ready()[0])
        await asyncio.sleep(REFUSED_SECONDS_MAX)
        assert (NewMail.UNKNOWN, True) == (new_mail(east), east.services.readiness.is_ready()[0])
        assert "the last one failed" in east.services.readiness.is_ready()[1][0]

        assert 250 == (await east.accept()).code
        assert (NewMail.COPIED, (True, ())) == (new_mail(east), east.services.readiness.is_ready())


@in_virtual_time
async def test_a_restart_of_the_peer_begins_anew_and_needs_no_mail(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        await until(is_known(east))
        refuses(POLICY)(net)
        await east.accept()
        assert NewMail.REFUSED is new_mail(east)

        await net.stop(WEST)
        await net.start(WEST)

        await until(lambda: NewMail.COPIED is new_mail(east), 3 * HEARTBEAT)


@pytest.mark.parametrize(("copies", "outcome"), [(2, NewMail.COPIED), (3, NewMail.REFUSED)])
@in_virtual_time
async def test_with_several_copies_each_peer_counts_for_one(tmp_path: Path, copies: int, outcome: NewMail) -> None:
    changes: dict[str, Any] = {"shadow_copies": copies, "reject_message_on_shadow_failure": True}
    async with nodes(tmp_path, EAST, WEST, NORTH, SOUTH, **changes) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await until(lambda: all(east.context.peers.takes_copies(peer) is Takes.YES for peer in (WEST, NORTH, SOUTH)))
        refuses(POLICY)(net)

        for _ in range(4):
            reply = await east.accept()
            await asyncio.sleep(HEARTBEAT / 2)
        assert (451 if outcome is NewMail.REFUSED else 250, outcome) == (reply.code, new_mail(east))
        assert 2 == east.services.readiness.new_mail().takers_count


@in_virtual_time
async def test_servers_of_a_site_that_gets_no_copies_do_not_count(tmp_path: Path) -> None:
    """With RemoteOnly a server of this site answers, and gets no copy."""
    changes: dict[str, Any] = {
        "shadow_message_preference_setting": "RemoteOnly", "reject_message_on_shadow_failure": True,
        "peer": {NORTH: {"site": "east"}},
    }  # fmt: skip
    async with nodes(tmp_path, EAST, WEST, NORTH, **changes) as net:
        east = net.nodes[EAST]
        await until(lambda: all(east.context.peers.takes_copies(peer) is Takes.YES for peer in (WEST, NORTH)))
        await net.kill(WEST)

        await until(lambda: NewMail.REFUSED is new_mail(east), 3 * HEARTBEAT)
        assert 451 == (await east.accept()).code


@in_virtual_time
async def test_a_lost_peer_takes_the_node_out_of_service_at_once(tmp_path: Path) -> None:
    """With two copies wanted and one of three nodes down, each message is refused."""
    async with nodes(tmp_path, EAST, WEST, NORTH, shadow_copies=2, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        east.services.readiness.is_running = True
        await until(lambda: NewMail.COPIED is new_mail(east))
        await net.kill(WEST)

        assert 451 == (await east.accept()).code

        is_ready, (sentence, *_) = east.services.readiness.is_ready()
        assert (NewMail.REFUSED, False) == (new_mail(east), is_ready)
        assert sentence.startswith("new mail is refused with 451: ")
