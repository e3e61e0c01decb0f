"""An older copy of a disk is put back around a takeover: a number that was given twice, a hand-over that is over, one that is lost.

docs/design.md 6.2 "Hand-over", and the rules *twins* and *ask*.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Choice, Claim, Role, StatusAnswer, StatusQuestion, Transition
from shadowrelay.ownership import claims, rules
from shadowrelay.store import promises
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, OK, SPAN, WEST, FakeLink, Net, VirtualNode, in_virtual_time, nodes, until
from tests.pipeline.scenes import a_waiting_message, put_back_running

is_noticed = pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "unnoticed"])


def unless(noticed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not noticed, no peer has seen a later position of the database."""
    if not noticed:
        monkeypatch.setattr(rules, "is_older_copy", lambda *_: False)


async def claim_of(node: VirtualNode, message_id: MessageId) -> Claim:
    claim = await node.claim(message_id)
    assert claim is not None
    return claim


async def twins(net: Net) -> MessageId:
    """East gave the copy on West a number, and then, on an older disk, the copy on North the same. Neither knows of the other."""
    net.isolate(WEST)
    net.isolate(NORTH)
    await asyncio.sleep(3 * HEARTBEAT)
    east = await a_waiting_message(net)
    message_id = east.last
    net.back_up(EAST)
    for first, other in ((WEST, NORTH), (NORTH, WEST)):
        net.part((EAST, first), (other,))
        await until(net.nodes[first].in_role(message_id, Role.SHADOW), 4 * HEARTBEAT)
        if first == WEST:
            net.part((EAST,), (WEST,), (NORTH,))
            await put_back_running(net, EAST)
            net.sink.answer = lambda address: BUSY
    numbers = {(await claim_of(net.nodes[name], message_id)).number for name in (WEST, NORTH)}
    assert 1 == len(numbers)
    return message_id


@pytest.mark.parametrize("is_together", [True, False])
@in_virtual_time
async def test_of_two_copies_with_one_number_one_is_promoted_when_the_disk_of_their_primary_burns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_together: bool
) -> None:
    """Each asks the other before the other has promoted: their answers take longer than the time between their questions."""
    unless(False, monkeypatch)
    status = FakeLink.status

    async def slow(self: FakeLink, questions: Sequence[StatusQuestion]) -> tuple[StatusAnswer, ...]:
        answers = await status(self, questions)
        await asyncio.sleep(2.5 if is_together else 0)
        return answers

    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        message_id = await twins(net)
        monkeypatch.setattr(FakeLink, "status", slow)
        net.sink.answer = lambda address: OK
        await net.wipe(EAST)
        net.heal()
        await net.start(EAST)

        for name in (WEST, NORTH):
            await until(net.nodes[name].in_role(message_id, Role.DELIVERED), 4 * SPAN)
        await asyncio.sleep(2 * SPAN)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_a_primary_that_meets_two_copies_with_one_number_keeps_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each that is asked would be chosen in turn; a hand-over to one would wait for the other."""
    unless(False, monkeypatch)
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        message_id = await twins(net)
        net.heal()

        async def holds_one() -> bool:
            return 1 == [await net.nodes[name].role(message_id) for name in (WEST, NORTH)].count(Role.SHADOW)

        await until(holds_one, 2 * SPAN)

        async def lists_one() -> bool:
            return [Choice.CHOSEN] == [entry.choice for entry in (await claim_of(net.nodes[EAST], message_id)).copies]

        await until(lists_one, 2 * HEARTBEAT)


async def heard_yours(
    net: Net, hand_over: Callable[[Claim | None], Transition] = claims.handing_over
) -> tuple[MessageId, VirtualNode, asyncio.Event]:
    """East has said `yours`, and its shadow server has heard it, and has not asked anybody yet: it waits for the event."""
    east = await a_waiting_message(net)
    message_id = east.last
    claim = await claim_of(east, message_id)
    chosen = claim.chosen()
    assert chosen is not None
    holder = net.nodes[chosen.server]
    gate = holder.ledger.gates["shadow_groups"] = asyncio.Event()
    await asyncio.sleep(HEARTBEAT)
    net.back_up(chosen.server)
    await east.ledger.commit(promises.transition, [message_id], lambda _, claim: hand_over(claim))

    async def has_heard() -> bool:
        return (await claim_of(holder, message_id)).handed

    await until(has_heard, HEARTBEAT)
    return message_id, holder, gate


def back_up_again(net: Net, name: ServerName) -> None:
    (net.directory / f"{name}.backup").rename(net.directory / f"{name}.older")
    net.back_up(name)


@is_noticed
@pytest.mark.parametrize("others", [(EAST, WEST), (EAST, WEST, NORTH)], ids=["two nodes", "three nodes"])
@in_virtual_time
async def test_a_hand_over_in_an_older_copy_of_the_disk_is_not_obeyed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noticed: bool, others: tuple[ServerName, ...]
) -> None:
    unless(noticed, monkeypatch)
    async with nodes(tmp_path, *others) as net:
        message_id, holder, gate = await heard_yours(net)
        back_up_again(net, holder.name)
        net.sink.answer = lambda address: OK
        gate.set()
        await until(net.nodes[EAST].in_role(message_id, Role.DELIVERED), 4 * HEARTBEAT)
        await asyncio.sleep(HEARTBEAT)

        again = await put_back_running(net, holder.name)

        await until(again.in_role(message_id, Role.DELIVERED), SPAN)
        await asyncio.sleep(2 * SPAN)
        assert [holder.name] == [who for who, *_ in net.sink.arrived]


@in_virtual_time
async def test_a_hand_over_in_an_older_copy_is_not_obeyed_while_its_speaker_is_away(tmp_path: Path) -> None:
    """It alone knows that the message was delivered; the silence counts from this start."""
    async with nodes(tmp_path, EAST, WEST) as net:
        message_id, holder, gate = await heard_yours(net)
        back_up_again(net, holder.name)
        net.sink.answer = lambda address: OK
        gate.set()
        await until(net.nodes[EAST].in_role(message_id, Role.DELIVERED), 4 * HEARTBEAT)
        await net.kill(EAST)
        again = await put_back_running(net, holder.name)
        await asyncio.sleep(SPAN / 2)

        await net.start(EAST)
        await until(again.services.rolled_back.found.is_set, 4 * HEARTBEAT)
        await net.kill(holder.name)  # which ends the process, and begins anew
        again = await net.start(holder.name, introduced=True)

        await until(again.in_role(message_id, Role.DELIVERED), SPAN)
        assert 1 == len(net.sink.arrived)


@in_virtual_time
async def test_a_hand_over_that_a_restart_interrupts_goes_on(tmp_path: Path) -> None:
    """The disk is the present one."""
    async with nodes(tmp_path, EAST, WEST) as net:
        message_id, holder, _ = await heard_yours(net)
        net.sink.answer = lambda address: OK
        await net.kill(holder.name)
        await net.start(holder.name)

        await until(net.nodes[EAST].in_role(message_id, Role.DELIVERED), 4 * HEARTBEAT)
        await asyncio.sleep(2 * SPAN)
        assert [holder.name] == [who for who, *_ in net.sink.arrived]


@is_noticed
@pytest.mark.parametrize("is_drain", [True, False], ids=["drain", "poison"])
@in_virtual_time
async def test_a_hand_over_that_the_older_copy_has_not_heard_is_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noticed: bool, is_drain: bool
) -> None:
    """Nobody who is left has heard it. Where the copy is noticed, the server has a new database."""
    unless(noticed, monkeypatch)
    async with nodes(tmp_path, EAST, WEST) as net:
        message_id, holder, _ = await heard_yours(net, claims.handed_over_by_drain if is_drain else claims.handing_over)
        await asyncio.sleep(HEARTBEAT)  # and acknowledged
        net.sink.answer = lambda address: OK

        await put_back_running(net, holder.name)

        await until(net.nodes[EAST].in_role(message_id, Role.DELIVERED), SPAN / 2)
        await asyncio.sleep(2 * SPAN)
        assert [holder.name] == [who for who, *_ in net.sink.arrived]
