"""A disk that takes no commits, or does not answer, makes its node silent to its peers, until it is well again. docs/design.md 6.14."""

import asyncio
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.readiness import NewMail
from shadowrelay.model.replies import STORE_UNAVAILABLE
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, POLL, SOUTH, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes
from tests.pipeline.scenes import a_waiting_message, reasons

KINDS = ("fails", "hangs")


def break_disk(node: VirtualNode, kind: str) -> None:
    if kind == "fails":
        node.ledger.disk_fails = True
    else:
        node.ledger.disk_hangs = asyncio.Event()


async def silent(net: Net, name: ServerName, kind: str) -> VirtualNode:
    """This node, which has noticed that its disk is dead. From now on next hops take mail."""
    node = net.nodes[name]
    break_disk(node, kind)
    await until(node.context.why_silent, 3 * HEARTBEAT)
    net.sink.answer = lambda address: OK
    return node


@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_mail_of_a_node_whose_disk_is_dead_is_taken_over_after_the_span_and_not_before(tmp_path: Path, kind: str) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await a_waiting_message(net)
        east, west = await silent(net, EAST, kind), net.nodes[WEST]

        await until(lambda: west.context.peers.silence(EAST) >= SPAN - HEARTBEAT, SPAN)
        assert Role.SHADOW is await west.role(east.last)
        await until(west.in_role(east.last, Role.DELIVERED), 5 * HEARTBEAT)

        assert (["Silence"], [WEST]) == (reasons(west), [who for who, _, _ in net.sink.arrived])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["deliver", "defer"])
@pytest.mark.parametrize("spans", [1.5, pytest.param(4.0, marks=pytest.mark.heavy)])
@in_virtual_time
async def test_when_the_disk_is_well_again_the_node_asks_and_delivers_nothing_twice(
    tmp_path: Path, kind: str, policy: str, spans: float
) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease=policy) as net:
        await a_waiting_message(net)
        east, west = await silent(net, EAST, kind), net.nodes[WEST]
        await asyncio.sleep(spans * SPAN)

        east.ledger.heal_disk()
        await until(east.in_role(east.last, Role.DELIVERED), SPAN)

        assert [WEST] == [who for who, _, _ in net.sink.arrived]
        assert Role.DELIVERED is await west.role(east.last)
        assert (await east.accept()).is_positive


@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_a_short_failure_ends_without_a_takeover(tmp_path: Path, kind: str) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await a_waiting_message(net)
        east, west = await silent(net, EAST, kind), net.nodes[WEST]
        await asyncio.sleep(SPAN / 4)
        assert not net.sink.arrived, "what cannot be recorded is not delivered"

        east.ledger.heal_disk()
        await until(east.in_role(east.last, Role.DELIVERED), SPAN / 2)
        await until(west.in_role(east.last, Role.DELIVERED), SPAN / 2)

        assert ([], [EAST]) == (reasons(west), [who for who, _, _ in net.sink.arrived])


@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_it_takes_no_mail_offers_no_hold_and_says_which_disk_and_who_takes_over(
    tmp_path: Path, kind: str, logged: list[MutableMapping[str, Any]]
) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await silent(net, EAST, kind), net.nodes[WEST]

        requests, seconds = east.services.peer_requests, east.services.commits.seconds()
        east.services.readiness.is_running = True
        is_ready, (reason, *others) = east.services.readiness.is_ready()
        new_mail = east.services.readiness.new_mail()
        await until(lambda: west.context.peers.states[EAST].last_error, HEARTBEAT)

        assert STORE_UNAVAILABLE == await east.accept()
        assert (False, False, False) == (requests.offers_hold(), requests.offers_track(), is_ready)
        assert (NewMail.REFUSED, True, False) == (new_mail.outcome, reason in new_mail.sentence, any(reason in other for other in others))
        for part in (str(tmp_path / EAST), "2026-03-01T12:0", f"{WEST} at 2026-03-01T12:01:"):
            assert part in reason
        assert 2 * HEARTBEAT <= seconds <= 3 * HEARTBEAT
        assert "This server cannot commit since 2026-03-01T12:00:" in west.context.peers.states[EAST].last_error
        east.ledger.heal_disk()
        await until(lambda: not east.context.why_silent(), 2 * HEARTBEAT)
        assert 0.0 == east.services.commits.seconds()
        assert NewMail.REFUSED is not east.services.readiness.new_mail().outcome
        assert ["commits.failing", "commits.restored"] == [line["event"] for line in logged if line["event"].startswith("commits.")]


@pytest.mark.parametrize("kind", KINDS)
@in_virtual_time
async def test_copies_on_a_dead_disk_are_replaced_and_what_it_holds_is_not_promoted_when_it_is_back(tmp_path: Path, kind: str) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        net.sink.answer = lambda address: BUSY
        east = net.nodes[EAST]
        await east.accept()
        claim = await east.claim(east.last)
        assert claim is not None
        first = claim.copies[0].server
        other = NORTH if first == WEST else WEST
        break_disk(net.nodes[first], kind)

        await until(net.nodes[other].in_role(east.last, Role.SHADOW), 6 * HEARTBEAT)
        await asyncio.sleep(1.5 * SPAN)
        net.nodes[first].ledger.heal_disk()
        await asyncio.sleep(SPAN)
        net.sink.answer = lambda address: OK
        await until(east.in_role(east.last, Role.DELIVERED), SPAN)

        assert [EAST] == [who for who, _, _ in net.sink.arrived]
        assert [] == reasons(net.nodes[first])
        await until(lambda: not sum(node.context.flights.busy_count() for node in net.nodes.values()), SPAN)


@in_virtual_time
async def test_its_leases_end_before_its_peers_count_the_span(tmp_path: Path) -> None:
    """Also while only its answers fail: a refusal that its peer does not count as a sign of life must not renew a lease."""
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = await a_waiting_message(net), net.nodes[WEST]
        await silent(net, EAST, "fails")
        while (left := west.context.leases.silence_limit(EAST) - west.context.peers.silence(EAST)) > 0:
            east_left = east.context.leases.server_left(WEST)
            assert east_left is not None
            assert east_left < left
            await asyncio.sleep(POLL)


@pytest.mark.parametrize("peers", [(WEST,), (WEST, NORTH, SOUTH)])
@in_virtual_time
async def test_an_idle_node_commits_once_a_heartbeat_however_many_peers_tell_their_positions(tmp_path: Path, peers: Sequence[str]) -> None:
    async with nodes(tmp_path, EAST, *peers) as net:
        east = net.nodes[EAST]
        await asyncio.sleep(4 * HEARTBEAT)
        for server in peers:  # they are asked at different times
            east.context.peers.states[ServerName(server)].wake.set()
            await asyncio.sleep(HEARTBEAT / 4)
        before = east.ledger.position
        await asyncio.sleep(10 * HEARTBEAT)

        assert 5 <= east.ledger.position - before <= 25
        assert not east.context.why_silent()


@in_virtual_time
async def test_a_disk_that_cannot_be_read_makes_its_node_silent_and_its_copies_are_placed_elsewhere(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        await a_waiting_message(net)
        east = net.nodes[EAST]
        holder, other = [net.nodes[name] for name in (WEST, NORTH)]
        if await holder.role(east.last) is not Role.SHADOW:
            holder, other = other, holder

        holder.ledger.fail("prove_read", 10_000)
        await until(holder.context.why_silent, 3 * HEARTBEAT)

        assert "this node cannot read what it has stored: prove_read fails in this test" == holder.context.why_silent()
        await until(other.in_role(east.last, Role.SHADOW), SPAN)
        assert "This server cannot read what it has stored since 2026-03-01T12:00:" in east.context.peers.states[holder.name].last_error
        assert not (await holder.accept()).is_positive

        holder.ledger.fail("prove_read", 0)
        await until(lambda: not holder.context.why_silent(), 3 * HEARTBEAT)
        assert (await holder.accept()).is_positive


@in_virtual_time
async def test_one_failed_reading_is_no_failure_of_the_disk(tmp_path: Path, logged: list[MutableMapping[str, Any]]) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.nodes[EAST].ledger.fail("prove_read", 1)
        await asyncio.sleep(6 * HEARTBEAT)

        assert net.nodes[EAST].ledger.counts["prove_read"] >= 5
        assert not net.nodes[EAST].context.why_silent()
        assert [] == [line for line in logged if line["event"].startswith("commits.")], "nor for a moment"
