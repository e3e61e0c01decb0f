"""Peers that disagree about a setting that should be one, and peers that an administrator gave up: what is shown, and what happens when."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ownership import Role
from shadowrelay.model.setting_texts import format_duration
from shadowrelay.model.settings import Settings
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, OK, SPAN, WEST, Net, in_virtual_time, nodes, until

Said = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def said(logged: list[dict[str, Any]]) -> Said:
    """What was logged about settings."""
    return lambda: [line for line in logged if line["event"].startswith("peer.setting_")]


async def differs(net: Net, name: Any) -> str:
    (row,) = await net.nodes[name].services.peers.views()
    return row.differs


@in_virtual_time
async def test_a_peer_with_another_span_is_shown_and_logged_once_until_it_has_the_same(tmp_path: Path, said: Said) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await asyncio.sleep(HEARTBEAT)
        assert ("", []) == (await differs(net, EAST), said())
        await net.kill(WEST)
        await net.start(WEST, shadow_resubmit_time_span=timedelta(seconds=2 * SPAN))
        await asyncio.sleep(5 * HEARTBEAT)

        here, there = (format_duration(timedelta(seconds=span)) for span in (2 * SPAN, SPAN))
        assert f"shadow_resubmit_time_span is {here} here, {there} there" == await differs(net, WEST)
        assert 1 == net.nodes[EAST].context.peers.differing_count()
        assert {EAST, WEST} == {line["server"] for line in said() if line["event"] == "peer.setting_differs"}
        assert 2 == len(said())

        await net.kill(WEST)
        await net.start(WEST)
        await asyncio.sleep(5 * HEARTBEAT)

        assert ("", 0) == (await differs(net, EAST), net.nodes[EAST].context.peers.differing_count())
        assert {"event": "peer.setting_agrees", "log_level": "warning", "server": WEST, "setting": "shadow_resubmit_time_span"} == said()[
            -1
        ]
        assert 3 == len(said())


@pytest.mark.parametrize(
    ("changes", "role"),
    [({}, Role.SHADOW), ({"boundary": "other"}, None), ({"peer": {WEST: {"boundary": "other"}}}, None)],
    ids=["both of one", "the node of another", "its peer of another"],
)
@in_virtual_time
async def test_copies_stay_within_the_boundary(tmp_path: Path, changes: dict[str, Any], role: Role | None) -> None:
    async with nodes(tmp_path) as net:
        await net.start(WEST, peers=(EAST,))
        east = await net.start(EAST, peers=(WEST,), **changes)
        net.sink.answer = lambda address: BUSY

        await east.accept()

        assert role is await net.nodes[WEST].role(east.last)


@in_virtual_time
async def test_other_settings_of_the_organization_are_shown_and_logged_in_the_same_way(tmp_path: Path, said: Said) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await net.kill(WEST)
        await net.start(WEST, safety_net_hold_time=timedelta(hours=1), reject_message_on_shadow_failure=True)
        await asyncio.sleep(5 * HEARTBEAT)

        expected = "reject_message_on_shadow_failure is false here, true there; safety_net_hold_time is 2d here, 1h there"
        assert (expected, 1) == (await differs(net, EAST), net.nodes[EAST].context.peers.differing_count())
        names = [line["setting"] for line in said() if (line["event"], line["server"]) == ("peer.setting_differs", WEST)]
        assert ["reject_message_on_shadow_failure", "safety_net_hold_time"] == names


def with_transport(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"transport": settings.transport.model_copy(update=changes)})


@in_virtual_time
async def test_a_reload_compares_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        await asyncio.sleep(HEARTBEAT)
        east = net.nodes[EAST].context
        east.peers.compare(with_transport(east.settings, reject_message_on_shadow_failure=True))

        assert "reject_message_on_shadow_failure is true here, false there" == await differs(net, EAST)


@in_virtual_time
async def test_a_forgotten_primary_is_taken_over_when_it_can_have_no_lease_any_more_and_not_before(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        east, west = net.nodes[EAST], net.nodes[WEST]
        await east.accept()
        held = east.last
        await net.kill(EAST)
        net.sink.answer = lambda address: OK
        await asyncio.sleep(2 * HEARTBEAT)

        assert await west.services.peers.forget(EAST)

        await asyncio.sleep(SPAN - 3 * HEARTBEAT)
        assert (Role.SHADOW, []) == (await west.role(held), net.sink.arrived)
        await until(lambda: [WEST] == [who for who, _, _ in net.sink.arrived], 4 * HEARTBEAT)


@in_virtual_time
async def test_what_is_held_for_a_primary_that_is_no_longer_configured_is_taken_over_after_a_span(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        await net.kill(EAST)
        await net.kill(WEST)
        net.sink.answer = lambda address: OK
        await net.start(WEST, peers=())

        await asyncio.sleep(SPAN - HEARTBEAT)
        assert [] == net.sink.arrived
        await until(lambda: [WEST] == [who for who, _, _ in net.sink.arrived], 4 * HEARTBEAT)
