"""Messages that nodes die of: who is suspected, who goes alone, what becomes of the one that kills again.

A process that dies inside `Sink.before_dot` dies while it handles the content; see `tests/kit/nodes.py`.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import LedgerUnavailable, RequestRefused, TransientDeliveryError
from shadowrelay.model.tracking import EventId, EventSource
from shadowrelay.ownership.claims import no_longer_chosen
from shadowrelay.pipeline.poison import SetAside
from shadowrelay.store import Ledger, promises, reading
from shadowrelay.store.ledger import Inline
from tests.kit.clock import until
from tests.kit.nodes import BASE, BUSY, EAST, OK, SPAN, WEST, Net, VirtualClock, in_virtual_time, nodes
from tests.pipeline.scenes import die_while_handling

BROKEN = TransientDeliveryError(BUSY, "sink", is_connection=True)


async def make_poison(net: Net, server: ServerName) -> MessageId:
    """A message that three processes of this node have died of; the third is not started again yet."""
    net.sink.answer = lambda address: BUSY
    await net.nodes[server].accept()
    last = net.nodes[server].last
    await asyncio.sleep(1)
    net.sink.answer = lambda address: OK
    for number in range(3):
        if number:
            await net.start(server)
        await die_while_handling(net, server)
    return last


@in_virtual_time
async def test_a_message_that_three_processes_died_of_is_set_aside_at_the_next_start(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        poison = await make_poison(net, EAST)
        attempts_count = net.sink.attempts_count

        await net.start(EAST)
        await until(net.nodes[EAST].in_role(poison, Role.SET_ASIDE))
        await asyncio.sleep(30)

        stored = await net.nodes[EAST].message(poison)
        assert stored is not None
        assert ("died 3 times" in stored.set_aside_reason, attempts_count) == (True, net.sink.attempts_count)
        assert 1 == len(net.nodes[EAST].log.rows(EventId.POISONMESSAGE))


@in_virtual_time
async def test_what_waits_for_the_network_when_the_process_dies_is_never_suspected(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        waiting = asyncio.Semaphore(0)

        async def hang(server: str) -> None:
            waiting.release()
            await asyncio.sleep(10_000)

        net.sink.after_dot = hang
        ids = []
        for number in range(10):
            await net.nodes[EAST].accept(f"user{number}@corp.example")
            ids.append(net.nodes[EAST].last)
        for _ in range(4):
            for _ in ids:
                await waiting.acquire()
            await net.kill(EAST)
            await net.start(EAST)

        found = await net.nodes[EAST].ledger.real.read(reading.load_many, ids)
        assert {(Role.PRIMARY, 0)} == {(message.claim.role, message.deaths_count) for message in found}


async def suspects(net: Net, count: int) -> list[MessageId]:
    """So many messages, each with two deaths that it had nothing to do with."""
    net.sink.answer = lambda address: BROKEN
    ids = []
    for number in range(count):
        await net.nodes[EAST].accept(f"user{number}@corp.example")
        ids.append(net.nodes[EAST].last)
    await asyncio.sleep(1)
    for _ in range(2):
        ledger = net.nodes[EAST].ledger.real
        for start in range(0, count, 50):  # more than the file has slots were never handled at one moment
            for message_id in ids[start : start + 50]:
                ledger.handling(message_id).__enter__()
            await net.kill(EAST)
            await net.start(EAST)
            ledger = net.nodes[EAST].ledger.real
    found = await net.nodes[EAST].ledger.real.read(reading.load_many, ids)
    assert {2} == {message.deaths_count for message in found}
    return ids


@in_virtual_time
async def test_innocent_suspects_all_go_one_at_a_time_and_are_cleared(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        ids = await suspects(net, 300)
        running, most = 0, 0

        async def watch(server: str) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1

        net.sink.before_dot = watch
        net.sink.answer = lambda address: BUSY if address.startswith("user7@") else OK

        await until(lambda: 299 == len(net.sink.arrived), 60)
        assert 1 == most

        async def is_cleared() -> bool:
            left = await net.nodes[EAST].message(ids[7])
            return left is not None and (Role.PRIMARY, 0) == (left.claim.role, left.deaths_count)

        await until(is_cleared)  # a refusal is no death; its turn may come last


@in_virtual_time
async def test_a_suspect_whose_next_hop_is_silent_holds_up_no_other_for_long(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        await suspects(net, 20)

        async def silent(server: str) -> None:
            await asyncio.sleep(600)

        net.sink.after_dot = silent
        net.sink.answer = lambda address: OK

        await until(lambda: 20 == len(net.sink.arrived), 60)


@in_virtual_time
async def test_a_suspect_whose_next_hop_cannot_be_reached_stays_a_suspect(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        (message_id,) = await suspects(net, 1)
        attempts_count = net.sink.attempts_count

        await until(lambda: net.sink.attempts_count > attempts_count + 3)

        stored = await net.nodes[EAST].message(message_id)
        assert stored is not None
        assert 2 == stored.deaths_count


@in_virtual_time
async def test_poison_is_handed_to_its_shadow_server_which_delivers_it_if_it_can(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        poison = await make_poison(net, EAST)

        await net.start(EAST)

        await until(lambda: [WEST] == [who for who, _, _ in net.sink.arrived], 120)
        await until(net.nodes[EAST].in_role(poison, Role.DELIVERED), 60)
        assert 1 == len(net.nodes[EAST].log.rows(EventId.POISONMESSAGE))


@in_virtual_time
async def test_poison_that_kills_the_shadow_server_too_stays_there_set_aside_and_goes_round_no_more(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        poison = await make_poison(net, EAST)
        await net.start(EAST)
        for _ in range(3):
            await die_while_handling(net, WEST)
            await net.start(WEST)
        attempts_count = net.sink.attempts_count
        await until(net.nodes[WEST].in_role(poison, Role.SET_ASIDE), 60)
        await until(net.nodes[EAST].in_role(poison, Role.SHADOW), 60)

        for _ in range(2):
            for server in (EAST, WEST):
                await net.kill(server)
                await net.start(server)
            await asyncio.sleep(60)

        assert attempts_count == net.sink.attempts_count
        assert [Role.SHADOW, Role.SET_ASIDE] == [await net.nodes[server].role(poison) for server in (EAST, WEST)]
        assert [] == net.sink.arrived
        stored = await net.nodes[WEST].message(poison)
        assert stored is not None
        assert (True, True) == (stored.is_promoted, stored.place is not None)


@in_virtual_time
async def test_poison_without_a_chosen_copy_is_handed_over_when_the_holder_is_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        poison = await make_poison(net, EAST)
        net.isolate(WEST)
        ledger = await Ledger.open(tmp_path / EAST, server=EAST, now=lambda: BASE, inline=Inline())
        await ledger.commit(promises.transition, [poison], lambda _, claim: no_longer_chosen(claim, WEST))
        ledger.abandon()
        await net.start(EAST)
        await until(net.nodes[EAST].in_role(poison, Role.SET_ASIDE), 20)
        assert [] == net.sink.arrived

        net.heal()

        await until(lambda: [WEST] == [who for who, _, _ in net.sink.arrived], 60)


# what an administrator does
async def an_aside(net: Net, *recipients: str, sender: str = "a@x.example") -> MessageId:
    """A message of EAST that is set aside for a reason that hands nothing over; one of two recipients is done."""
    net.sink.answer = lambda address: OK if address.startswith("done") else BUSY
    east = net.nodes[EAST]
    await east.accept(*(recipients or ("done@corp.example", "open@corp.example")), sender=sender)
    last = east.last
    await until(lambda: any("done@" in address for address in net.sink.addresses()))
    await asyncio.sleep(1)
    east.ledger.fail("attempt", 1, ValueError("a bug"))
    await until(east.in_role(last, Role.SET_ASIDE))
    net.sink.answer = lambda address: OK
    return last


@in_virtual_time
async def test_a_released_message_is_delivered_and_the_log_says_who_took_it_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        message_id = await an_aside(net)
        east = net.nodes[EAST]
        await asyncio.sleep(20)

        assert await east.services.messages.release(message_id)

        await until(east.in_role(message_id, Role.DELIVERED))
        assert ["done@corp.example", "open@corp.example"] == net.sink.addresses()
        reasons = [row.source_context for row in east.log.rows(EventId.POISONMESSAGE)]
        assert reasons[-1].startswith("released by an administrator; it was set aside because the outcome of an attempt")
        with pytest.raises(RequestRefused, match="not set aside"):
            await east.services.messages.release(message_id)


@pytest.mark.parametrize("with_dsn", [True, False])
@in_virtual_time
async def test_a_removed_message_ends_with_a_fail_row_a_notice_and_no_copy(tmp_path: Path, with_dsn: bool) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        message_id = await an_aside(net)
        east, west = net.nodes[EAST], net.nodes[WEST]
        await until(west.in_role(message_id, Role.SHADOW))

        assert await east.services.messages.remove(message_id, with_dsn=with_dsn)

        assert Role.DELIVERED is await east.role(message_id)
        await until(west.in_role(message_id, Role.DELIVERED))
        await asyncio.sleep(2 * SPAN)
        (row,) = east.log.rows(EventId.FAIL)
        assert (("open@corp.example",), EventSource.ADMIN) == (row.recipients, row.source)
        notices = [data for _, address, data in net.sink.arrived if address == "a@x.example"]
        assert with_dsn is any(b"Removed from the queue by an administrator" in data for data in notices)
        assert int(with_dsn) == len(notices) == len(east.log.rows(EventId.DSN))
        assert b"hello" not in b"".join(notices).lower().replace(b"subject: hello", b""), "it may be poison: its content is not quoted"
        assert 1 == net.sink.addresses().count("done@corp.example")
        assert 0 == net.sink.addresses().count("open@corp.example")


@in_virtual_time
async def test_the_null_sender_is_told_nothing_of_a_removal(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        message_id = await an_aside(net, sender="")
        east = net.nodes[EAST]

        assert await east.services.messages.remove(message_id, with_dsn=True)

        assert (Role.DELIVERED, []) == (await east.role(message_id), east.log.rows(EventId.DSN))


@in_virtual_time
async def test_a_removal_that_cannot_be_committed_changes_nothing(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        message_id = await an_aside(net)
        east = net.nodes[EAST]
        east.ledger.fail("attempt", 1)

        with pytest.raises(LedgerUnavailable):
            await east.services.messages.remove(message_id, with_dsn=True)

        assert (Role.SET_ASIDE, []) == (await east.role(message_id), east.log.rows(EventId.FAIL))


@in_virtual_time
async def test_what_was_handed_over_is_neither_released_nor_removed_until_that_server_is_forgotten(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        poison = await make_poison(net, EAST)
        await net.kill(WEST)
        await net.start(EAST)
        east = net.nodes[EAST]
        await until(east.in_role(poison, Role.SET_ASIDE))
        net.sink.answer = lambda address: BUSY

        for command in (east.services.messages.release(poison), east.services.messages.remove(poison, with_dsn=False)):
            with pytest.raises(RequestRefused, match=f"handed over to {WEST}"):
                await command
        assert Role.SET_ASIDE is await east.role(poison)
        await east.services.peers.forget(WEST)
        await until(east.in_role(poison, Role.SET_ASIDE), 20)  # it is still poison, and nobody is left to take it
        assert await east.services.messages.release(poison)

        await asyncio.sleep(5)
        stored = await east.message(poison)
        assert stored is not None
        assert (Role.PRIMARY, 0, "") == (stored.claim.role, stored.deaths_count, stored.set_aside_reason)


@in_virtual_time
async def test_a_message_is_exported_as_it_would_be_delivered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        message_id = await an_aside(net)

        found = await net.nodes[EAST].services.messages.content(message_id)

        assert found is not None
        assert (b"", b"Subject: hello\r\n\r\nhello\r\n") == (found[0], found[1].data)
        assert await net.nodes[EAST].services.messages.content(MessageId("ffffffff-ffff-4fff-8fff-ffffffffffff")) is None


@in_virtual_time
async def test_an_unknown_message_is_neither_released_nor_removed(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        messages, unknown = net.nodes[EAST].services.messages, MessageId("ffffffff-ffff-4fff-8fff-ffffffffffff")

        assert [False, False] == [await messages.release(unknown), await messages.remove(unknown, with_dsn=True)]


@in_virtual_time
async def test_what_is_set_aside_is_said_again_every_hour(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        await an_aside(net)
        clock = VirtualClock()
        awake = clock.awake()
        set_aside = SetAside(replace(net.nodes[EAST].context, clock=clock), lambda message_id, server: None)
        structlog.reset_defaults()
        with structlog.testing.capture_logs() as said:
            for minute in range(0, 150, 10):
                clock.awake = lambda minute=minute: awake + 60 * minute  # type: ignore[method-assign, misc]
                assert 0 == await set_aside.look()

        assert [("messages.set_aside", "warning", 1)] * 3 == [(line["event"], line["log_level"], line["count"]) for line in said]
