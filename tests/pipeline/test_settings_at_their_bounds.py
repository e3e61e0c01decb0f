"""What is legal here is legal there: with each setting at either end of its range, two nodes make a copy.

The settings come from the models, so that a new one is covered. What cannot be so is named, with its reason.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Le

from shadowrelay.model.back_pressure_settings import Transitions
from shadowrelay.model.section import Section
from shadowrelay.model.settings import Settings
from shadowrelay.ownership import rules
from tests.kit.clock import until
from tests.kit.nodes import EAST, SPAN, WEST, Net, VirtualNode, in_virtual_time, make_settings

LINKS = [{"sites": ["east", "west"], "cost": 10}]
AT_THE_DOOR = {  # asked before a copy is made, if ever
    "filters": [{"name": "rspamd", "address": "http://127.0.0.1:11333"}],
    "recipient_sources": [{"name": "corp", "kind": "call-ahead"}],
}
NO_ROOM = "the machine of this test has less room: back pressure refuses copies, as it says"
EXCEPTIONS = {  # by model, field and end
    "ReceiveConnector.connection_inactivity_timeout le": "must be less than connection_timeout, which ends there, too",
    "ReceiveConnector.connection_timeout ge": "must be more than connection_inactivity_timeout, which begins there, too",
    "Transport.max_retries_for_remote_site_shadow ge": "no attempt in the other site, so no copy there",
    "Tracking.max_directory_size ge": "must not be less than max_file_size",
    "Tracking.max_file_size le": "must not be more than max_directory_size",
    "BackPressure.smtp_start_throttling_delay_interval le": "must not be longer than smtp_max_throttling_delay_interval",
    "BackPressure.free_disk_space_min le": NO_ROOM,
    "BackPressure.disk_size_max ge": NO_ROOM,
}


def sections(found: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Section]]:
    """Each table of these settings, and where it is."""
    if isinstance(found, Section):
        yield where, found
        for name in type(found).model_fields:
            yield from sections(getattr(found, name), (*where, name))
    elif isinstance(found, tuple):
        for place, each in enumerate(found[:1]):
            yield from sections(each, (*where, place))


def some_settings(name: str, directory: Path) -> Settings:
    other = WEST if name == EAST else EAST
    made = make_settings(EAST if name == EAST else WEST, [other], directory, redundancy="both", site_links=LINKS)
    return Settings.model_validate({**made.model_dump(mode="json", exclude_unset=True), **AT_THE_DOOR})


def ends() -> list[tuple[str, tuple[str | int, ...], Any]]:
    """Name, place and value."""
    found = []
    for where, section in sections(some_settings(EAST, Path("/nowhere"))):
        if isinstance(section, Transitions):
            continue  # four thresholds in order, which say when no copy is made
        for name, about in type(section).model_fields.items():
            for bound in about.metadata:
                if isinstance(bound, Ge | Le):
                    end = "ge" if isinstance(bound, Ge) else "le"
                    found.append((f"{type(section).__name__}.{name} {end}", (*where, name), getattr(bound, end)))
    return found


def changed(settings: Settings, place: tuple[str | int, ...], value: Any) -> Settings:
    data = settings.model_dump(mode="json", exclude_unset=True)
    inner: Any = data
    for step in place[:-1]:
        inner = inner.setdefault(step, {}) if isinstance(inner, dict) else inner[step]
    inner[place[-1]] = value
    return Settings.model_validate(data)


async def started(net: Net, name: str, settings: Settings) -> VirtualNode:
    node = VirtualNode(net, settings.server.name, settings)
    net.nodes[settings.server.name] = node
    await node.open()
    node.services.start()
    return node


@pytest.mark.parametrize(("name", "place", "value"), [pytest.param(*end, id=end[0]) for end in ends() if end[0] not in EXCEPTIONS])
@in_virtual_time
async def test_a_setting_at_an_end_of_its_range_lets_two_nodes_make_a_copy(
    tmp_path: Path, name: str, place: tuple[str | int, ...], value: Any
) -> None:
    net = Net(tmp_path, names=(EAST, WEST))
    west = await started(net, WEST, some_settings(WEST, tmp_path))
    east = await started(net, EAST, changed(some_settings(EAST, tmp_path), place, value))

    assert 250 == (await east.accept()).code
    await until(lambda: _is_held_or_over(east, west), 10)
    await net.close()


async def _is_held_or_over(east: VirtualNode, west: VirtualNode) -> bool:
    """The other node has, or had, the copy."""
    return await west.role(east.last) is not None


def test_exceptions_are_settings_that_there_are() -> None:
    assert set(EXCEPTIONS) <= {name for name, _, _ in ends()}


def test_every_table_with_a_range_is_tried() -> None:
    tried = {name.partition(".")[0] for name, _, _ in ends()}
    ranged = {
        section.__name__
        for section in Section.__subclasses__()
        if section is not Transitions
        and any(isinstance(bound, Ge | Le) for about in section.model_fields.values() for bound in about.metadata)
    }
    assert ranged == tried


@in_virtual_time
async def test_the_longest_timeout_of_track_is_understood_by_every_peer(tmp_path: Path) -> None:
    """A day, fifteen times, is more than a span may be on the wire: it is sent as a day. The lease is the same, and the timeout is not."""
    net = Net(tmp_path, names=(EAST, WEST))
    east_settings = some_settings(EAST, tmp_path)
    for name, value in (("shadow_heartbeat_timeout_interval", "1d"), ("shadow_heartbeat_retry_count", 15)):
        east_settings = changed(east_settings, ("transport", name), value)
    west = await started(net, WEST, some_settings(WEST, tmp_path))
    east = await started(net, EAST, east_settings)

    assert 250 == (await east.accept()).code
    await until(lambda: _is_held_or_over(east, west), 10)

    assert timedelta(days=1) == east.services.peer_requests.own_identity(WEST).track
    assert timedelta(days=15).total_seconds() == east.context.leases.silence_limit_of_kept()
    assert west.context.leases.length(EAST) == rules.lease_length(timedelta(seconds=SPAN), timedelta(seconds=SPAN))
    await net.close()
