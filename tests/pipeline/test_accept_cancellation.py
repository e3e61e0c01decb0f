"""The accept path is struck at its first, second, … await until it gets through: first the client's wait is cancelled, then
the whole process dies there. The promise is kept each time: what was answered 250 is delivered, what was answered 4xx is
not, and no server holds a copy that its primary does not know of."""

import asyncio
from itertools import count
from pathlib import Path

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Claim, Role
from shadowrelay.model.replies import Reply
from shadowrelay.store import reading
from tests.kit.clock import until
from tests.kit.ledger import a_content, an_envelope
from tests.kit.nodes import VirtualNode, in_virtual_time
from tests.kit.played import DATABASES, PlayedWorld, StepsToStrike, one_node

SCENARIOS: dict[str, tuple[list[str], dict[str, int]]] = {
    "the first stores": (["store"], {}),
    "the first refuses and the second stores": (["refuse", "store"], {}),
    "the answer of the first is lost and the second stores": (["break", "store"], {}),
    "the first gets nothing that it could keep and the second stores": (["lose", "store"], {}),
    "all refuse": (["refuse"] * 9, {}),
    "all answers are lost": (["break"] * 9, {}),
    "the commit fails": (["store"], {"accepted": 1}),
    "the commit fails and the answer is lost": (["break"] * 9, {"accepted": 1}),
    "the commit fails and the first refuses": (["refuse", "store"], {"accepted": 1}),
    "the commit fails and so do the first releases": (["store"], {"accepted": 1, "transition": 2}),
    "the second cannot be listed": (["refuse", "store"], {"transition": 1}),
    "the second cannot be listed after a lost answer": (["break", "store"], {"transition": 1}),
    "the verdict fails at first": (["store"], {"verdict": 2}),
    "the unwinding fails at first": (["break"] * 9, {"verdict": 2}),
    "the outcome of the delivery cannot be recorded at first": (["store"], {"attempt": 1}),
}

QUICK = (  # one of each kind: a place, an answer, a commit, a list, a verdict and an outcome that fails
    ("the first stores", True),
    ("all answers are lost", True),
    ("all refuse", False),
    ("the commit fails and the answer is lost", True),
    ("the second cannot be listed after a lost answer", True),
    ("the verdict fails at first", True),
    ("the outcome of the delivery cannot be recorded at first", True),
)
ALL = [(name, True) for name in SCENARIOS] + [(name, False) for name in SCENARIOS if name.startswith(("all", "the second cannot"))]
CASES = [pytest.param(*case, marks=() if case in QUICK else pytest.mark.heavy) for case in ALL]


def begin_to_accept(node: VirtualNode) -> tuple[MessageId, "asyncio.Task[Reply]"]:
    envelope = an_envelope()
    return envelope.message_id, asyncio.ensure_future(node.services.accept.accept(envelope, a_content()))


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "reject"), CASES)
@in_virtual_time
async def test_a_client_that_leaves_at_any_await_changes_nothing_of_the_promise(tmp_path: Path, scenario: str, reject: bool) -> None:
    for target in count(1):
        script, failures = SCENARIOS[scenario]
        world, steps = PlayedWorld(list(script)), StepsToStrike(target)
        async with one_node(tmp_path, world, steps, failures=failures, reject_message_on_shadow_failure=reject) as node:
            message_id, client = begin_to_accept(node)
            steps.strike = client.cancel
            await asyncio.wait((client,))
            await node.idle()

            stored = await node.ledger.read(reading.load, message_id)
            told = {server: (await told_to(node, server)).get(message_id) for server in world.holders(message_id)}
            if stored is None:
                assert failures.get("accepted"), f"step {target}: the message is gone"
                assert {} == node.context.leases.ends(message_id)
                assert [] == world.sink.message_ids
                assert {"released"} >= set(told.values()), f"step {target}"
            elif stored.claim.role is Role.RELEASED:
                assert [] == world.sink.message_ids
                assert {"released"} >= set(told.values()), f"step {target}"
            else:
                assert (Role.DELIVERED, [message_id]) == (stored.claim.role, world.sink.message_ids), f"step {target}"
                assert {"delivered"} >= set(told.values()), f"step {target}"
            if not client.cancelled():
                is_accepted = stored is not None and stored.claim.role is Role.DELIVERED
                assert is_accepted == (client.result().code == 250), f"step {target}"
        if not steps.was_struck:
            break
    assert target >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "reject"), CASES)
@in_virtual_time
async def test_a_process_that_dies_at_any_await_keeps_its_word_when_it_is_back(tmp_path: Path, scenario: str, reject: bool) -> None:
    for target in count(1):
        script, failures = SCENARIOS[scenario]
        world, steps = PlayedWorld(list(script)), StepsToStrike(target)
        async with one_node(tmp_path, world, steps, failures=failures, reject_message_on_shadow_failure=reject) as node:
            message_id, client = begin_to_accept(node)
            steps.strike = steps.die
            over = asyncio.ensure_future(_over(node, client))
            died = asyncio.ensure_future(steps.died.wait())
            await asyncio.wait((over, died), return_when=asyncio.FIRST_COMPLETED)
            reply = client.result() if client.done() else None
            for waiter in (over, died, client):
                waiter.cancel()
            await asyncio.gather(over, died, client, return_exceptions=True)
        await _come_back(tmp_path, world, reject, message_id, reply, may_be_forgotten=bool(failures.get("accepted")))
        if not steps.was_struck:
            break
    assert target >= 4


async def _over(node: VirtualNode, client: "asyncio.Task[Reply]") -> None:
    await client
    await node.idle()


async def _come_back(
    directory: Path, world: PlayedWorld, reject: bool, message_id: MessageId, reply: Reply | None, *, may_be_forgotten: bool
) -> None:
    """What the next process of the node finds, and what it makes of it."""
    is_accepted, is_refused = reply is not None and reply.code == 250, reply is not None and reply.code != 250
    world.script[:] = []
    async with one_node(directory, world, reject_message_on_shadow_failure=reject) as node:
        stored = await node.ledger.read(reading.load, message_id)
        holders = world.holders(message_id)
        assert holders or not (is_accepted and reject), "acknowledged in reject mode, and nobody holds a copy"
        if stored is None:  # a shadow server hears `unknown` from a later incarnation, and promotes: nothing is lost
            assert not is_accepted, "acknowledged, and gone"
            assert not is_refused or may_be_forgotten or not holders, "refused, and a shadow server does not hear of it"
        elif stored.claim.role is Role.RELEASED:
            assert not is_accepted, "acknowledged, and given up"
            assert {"released"} >= {(await told_to(node, server)).get(message_id) for server in holders}
        elif stored.claim.role is Role.DELIVERED:
            assert message_id in world.sink.message_ids
            assert {"delivered"} >= {(await told_to(node, server)).get(message_id) for server in holders}
        else:
            assert not is_refused, "refused, and yet delivered"
            assert holders <= listed(stored.claim), "a copy that its primary does not know of"
            await _delivered(node, world, message_id)


def listed(claim: Claim) -> set[ServerName]:
    """The servers on a primary's list."""
    return {copy.server for copy in claim.copies}


async def told_to(node: VirtualNode, server: ServerName) -> dict[MessageId, str]:
    """The last that a peer will hear of each message."""
    reply = await node.ledger.real.discards_for(server, DATABASES[server], 400)
    return {event.message_id: event.status.value for event in reply.events}


async def _delivered(node: VirtualNode, world: PlayedWorld, message_id: MessageId) -> None:
    """The node delivers what it found, and whoever holds a copy is told."""
    node.services.start()
    await until(node.in_role(message_id, Role.DELIVERED))
    assert message_id in world.sink.message_ids
    told = {server: (await told_to(node, server)).get(message_id) for server in DATABASES}
    assert world.holders(message_id) <= {server for server, status in told.items() if status == "delivered"}
