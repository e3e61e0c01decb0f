"""Content that the disk of its server cannot read, while it reads everything else: a bad sector. docs/design.md 6.9."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.message import ContentPlace
from shadowrelay.model.ownership import Role
from shadowrelay.model.replies import STORE_UNAVAILABLE, ContentUnreadable
from shadowrelay.model.tracking import EventId
from shadowrelay.pipeline.own_disk import PLACES_MAX, OwnDisk
from tests.kit.clock import until
from tests.kit.nodes import EAST, HEARTBEAT, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes
from tests.pipeline.scenes import FOUR, a_waiting_message, only_one

ALWAYS = 1_000_000


def bad_sector(node: VirtualNode, times: int = ALWAYS) -> None:
    """What was stored cannot be read any more; the proof of reading succeeds."""
    node.ledger.fail("read_content", times, ContentUnreadable(STORE_UNAVAILABLE, "OSError: [Errno 5] Input/output error"))


async def delivered_by(net: Net, name: str, seconds: float) -> None:
    await until(lambda: [name] == [who for who, _, _ in net.sink.arrived], seconds, lambda: str(net.sink.arrived))


@in_virtual_time
async def test_the_shadow_server_delivers_what_its_primary_cannot_read(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await a_waiting_message(net)
        bad_sector(east)
        net.sink.answer = lambda address: OK

        await delivered_by(net, WEST, SPAN)
        await until(east.in_role(east.last, Role.DELIVERED), SPAN)

        (row,) = east.log.rows(EventId.POISONMESSAGE)
        assert "Input/output error" in str(row)


@in_virtual_time
async def test_an_error_that_passes_hands_nothing_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await a_waiting_message(net)
        bad_sector(east, times=1)
        net.sink.answer = lambda address: OK

        await delivered_by(net, EAST, SPAN)


@in_virtual_time
async def test_without_another_copy_it_is_tried_again_until_it_can_be_read(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = await a_waiting_message(net)
        bad_sector(east)
        net.sink.answer = lambda address: OK
        await asyncio.sleep(2 * SPAN)
        assert Role.PRIMARY is await east.role(east.last)

        bad_sector(east, times=0)
        await delivered_by(net, EAST, SPAN)


@in_virtual_time
async def test_while_the_other_server_is_away_it_is_not_set_aside(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east = await a_waiting_message(net)
        bad_sector(east)
        net.isolate(WEST)
        await asyncio.sleep(SPAN / 2)
        assert Role.PRIMARY is await east.role(east.last)


@in_virtual_time
async def test_a_copy_that_cannot_be_read_does_not_hold_back_the_one_that_can(tmp_path: Path) -> None:
    async with nodes(tmp_path, *FOUR, shadow_copies=2) as net:
        east = await a_waiting_message(net)
        (first, second) = sorted((copy for copy in (await east.claim(east.last)).copies), key=lambda copy: -copy.placement)
        bad_sector(net.nodes[first.server])
        await net.wipe(EAST)
        net.sink.answer = lambda address: OK

        await until(net.nodes[second.server].in_role(east.last, Role.DELIVERED), 3 * SPAN)
        assert second.server == only_one(net, FOUR)


@in_virtual_time
async def test_a_server_that_was_handed_what_it_cannot_read_gives_it_up(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, shadow_message_auto_discard_interval=timedelta(hours=1)) as net:
        east = await a_waiting_message(net)
        west = net.nodes[WEST]
        bad_sector(west)
        net.sink.answer = lambda address: OK

        await east.services.drain.begin()
        await until(west.in_role(east.last, Role.SET_ASIDE), 2 * SPAN)

        bad_sector(west, times=0)
        await delivered_by(net, WEST, SPAN)


@in_virtual_time
async def test_a_copy_that_cannot_be_read_either_is_given_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = await a_waiting_message(net)
        west = net.nodes[WEST]
        bad_sector(east)
        bad_sector(west)
        net.sink.answer = lambda address: OK
        await until(west.in_role(east.last, Role.SET_ASIDE), 3 * SPAN)

        bad_sector(east, times=0)
        await delivered_by(net, EAST, SPAN)
        await until(west.in_role(east.last, Role.RELEASED), SPAN)
        assert [EventId.POISONMESSAGE, EventId.HADISCARD] == [row.event for row in west.log.events][-2:]


@pytest.mark.parametrize("proved_at", [None, 0.5, 1.5])
def test_it_lasts_only_if_the_disk_read_something_else_since_the_first_failure(proved_at: float | None) -> None:
    places, place = OwnDisk(), ContentPlace(1, 0, 1, b"")
    assert not places.content_failed(place, 1.0, HEARTBEAT)
    if proved_at is not None:
        places.read_proved_at = proved_at

    assert not places.content_failed(place, 1.0 + 1.9 * HEARTBEAT, HEARTBEAT)
    assert (proved_at == 1.5) is places.content_failed(place, 1.0 + 2 * HEARTBEAT, HEARTBEAT)
    places.content_read(place)
    assert not places.content_failed(place, 1.0 + 3 * HEARTBEAT, HEARTBEAT)


def test_what_is_noted_is_bounded() -> None:
    places = OwnDisk()
    for offset in range(PLACES_MAX + 10):
        places.content_failed(ContentPlace(1, offset, 1, b""), 0.0, HEARTBEAT)
    assert len(places._failed_at) == PLACES_MAX
