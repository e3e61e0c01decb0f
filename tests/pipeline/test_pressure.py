"""Back pressure in a node: every resource is measured and explained, what is promised goes on, and what is over is over."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.back_pressure_settings import BackPressure
from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Role
from shadowrelay.pipeline.safety_net_size import SafetyNetSize
from shadowrelay.ports import Disk, MemoryUse
from shadowrelay.rules.back_pressure import Level, Resource
from shadowrelay.store import reading
from tests.kit.fake_machine import GB
from tests.kit.nodes import BUSY, EAST, NO_SUCH_USER, NORTH, OK, SPAN, WEST, Net, VirtualNode, in_virtual_time, nodes, until

NORMAL, MEDIUM, HIGH = Level
Said = Callable[[], list[dict[str, Any]]]
AT_ONCE = {f"{resource}_history_depth": 1 for resource in ("private_bytes", "content_memory", "used_version_buckets", "submission_queue")}


@pytest.fixture
def said(logged: list[dict[str, Any]]) -> Said:
    """What was logged about pressure."""
    return lambda: [line for line in logged if line["event"].startswith(("pressure.", "tarpit."))]


def settings_of(node: VirtualNode, **changes: Any) -> None:
    """As SIGHUP does it."""
    node.context.settings = node.context.settings.model_copy(update={"back_pressure": BackPressure.model_validate(changes)})


async def at(net: Net, percent: float, *names: Any) -> None:
    """The disks of these nodes are so full, and they have noticed."""
    for name in names:
        net.machines[name].fill(percent)
    await asyncio.sleep(2.1)


def refused(node: VirtualNode) -> tuple[bool, bool, bool]:
    """Mail from outside, mail from inside, copies."""
    accept = node.services.accept
    return (
        accept.refusal(is_inside=False) is not None,
        accept.refusal(is_inside=True) is not None,
        not node.services.peer_requests.offers_hold(),
    )


@in_virtual_time
async def test_a_disk_that_fills_and_empties_is_refused_and_accepted_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        seen = []
        for percent in (50, 95, 97.5, 99.5, 98, 96.5, 94.5, 93):
            await at(net, percent, EAST)
            seen.append((net.nodes[EAST].context.pressure.level, refused(net.nodes[EAST])))

    none, outside, everything = (False, False, False), (True, False, True), (True, True, True)
    assert [
        (NORMAL, none), (NORMAL, none), (MEDIUM, outside), (HIGH, everything), (HIGH, everything),
        (MEDIUM, outside), (MEDIUM, outside), (NORMAL, none),
    ] == seen  # fmt: skip


@in_virtual_time
async def test_safety_net_gives_way_before_mail_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    """However quickly the disk fills."""
    looks: list[int] = []

    async def look(self: SafetyNetSize) -> None:
        machine = net.machines[EAST]
        looks.append(machine.free)
        machine.fill(93)

    monkeypatch.setattr(SafetyNetSize, "look", look)
    async with nodes(tmp_path, EAST) as net:
        await asyncio.sleep(1)  # between two of its own looks
        for _ in range(2):
            await at(net, 99.5, EAST)
            assert (False, False, False) == refused(net.nodes[EAST])

    assert [] == said()
    assert 2 <= len(looks)


@in_virtual_time
async def test_a_safety_net_that_cannot_be_asked_holds_up_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(self: SafetyNetSize) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SafetyNetSize, "look", look)
    async with nodes(tmp_path, EAST) as net:
        await at(net, 99.5, EAST)
        await asyncio.sleep(2.1)
        assert (True, True, True) == refused(net.nodes[EAST])
        await at(net, 50, EAST)
        assert (False, False, False) == refused(net.nodes[EAST])


@in_virtual_time
async def test_a_node_that_starts_on_a_full_disk_has_noticed_before_the_first_client(tmp_path: Path) -> None:
    async with nodes(tmp_path) as net:
        net.machines[EAST].fill(100)
        east = await net.start(EAST)

        assert (True, True, True) == refused(east)


@in_virtual_time
async def test_promises_are_kept_under_high_pressure_on_every_node(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        ids = []
        for number in range(10):
            assert OK.code == (await east.accept(f"user{number}@corp.example")).code
            ids.append(east.last)
        await at(net, 100, EAST, WEST)
        assert [(True, True, True)] * 2 == [refused(east), refused(west)]

        net.sink.answer = lambda address: OK
        await until(lambda: 10 == len(net.sink.arrived), 30)  # delivered, recorded
        await until(lambda: _are_done(net, ids), 30)  # told to the shadow server, and discarded there

        await at(net, 10, EAST, WEST)
        assert [(False, False, False)] * 2 == [refused(east), refused(west)]
        assert [f"user{number}@corp.example" for number in range(10)] == net.sink.addresses()


async def _are_done(net: Net, ids: list[MessageId]) -> bool:
    return {Role.DELIVERED} == {await node.role(message_id) for node in net.nodes.values() for message_id in ids}


@in_virtual_time
async def test_a_sender_is_told_of_a_failure_under_high_pressure(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept("nobody@corp.example", sender="sender@x.example")
        await at(net, 100, EAST, WEST)

        net.sink.answer = lambda address: NO_SUCH_USER if address.startswith("nobody") else OK

        await until(lambda: ["sender@x.example"] == net.sink.addresses(), 60)


@in_virtual_time
async def test_a_takeover_does_not_wait_for_the_pressure_to_end(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        await at(net, 100, WEST)
        await net.kill(EAST)

        net.sink.answer = lambda address: OK

        await until(lambda: [WEST] == [who for who, _, _ in net.sink.arrived], 3 * SPAN)
        assert HIGH is net.nodes[WEST].context.pressure.level


@in_virtual_time
async def test_copies_go_to_a_server_without_pressure_and_come_back_when_it_is_over(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        await at(net, 97.5, WEST)
        for _ in range(5):
            assert OK.code == (await east.accept()).code
        assert {NORTH} == await _holders(net, east)

        await at(net, 97.5, NORTH)
        await east.accept()
        alone = east.last
        assert not [name for name in (WEST, NORTH) if await net.nodes[name].message(alone) is not None]

        await at(net, 10, WEST, NORTH)
        await until(lambda: _is_held(net, alone), 120)


async def _is_held(net: Net, message_id: Any) -> bool:
    return any([await net.nodes[name].role(message_id) is Role.SHADOW for name in (WEST, NORTH)])


async def _holders(net: Net, east: VirtualNode) -> set[Any]:
    return {name for name in (WEST, NORTH) if await net.nodes[name].ledger.real.read(reading.shadow_groups)}


# every resource


def _disk(net: Net, node: VirtualNode) -> None:
    net.machines[EAST].fill(97.5)


def _tracking(net: Net, node: VirtualNode) -> None:
    net.machines[EAST].disks[node.settings.tracking.directory] = Disk(1 * GB, 10 * GB, 2)


def _private(net: Net, node: VirtualNode) -> None:
    net.machines[EAST].private = 74 * GB // 10
    net.machines[EAST].limit = 10 * GB


def _content(net: Net, node: VirtualNode) -> None:
    node.context.budget.portion().count(0)
    portion = node.context.budget.portion()
    portion.count(node.context.budget.arriving_share[1] * 95 // 100)
    net.kept = portion  # type: ignore[attr-defined]


def _buckets(net: Net, node: VirtualNode) -> None:
    node.ledger.waiting_count = 1200  # before what the real one says


def _checkpoint(net: Net, node: VirtualNode) -> None:
    node.ledger.log_bytes = 270_000_000


def _submission(net: Net, node: VirtualNode) -> None:
    settings_of(node, **AT_ONCE, submission_queue={"low_to_medium": 4, "medium_to_high": 100, "high_to_medium": 50, "medium_to_low": 2})


SHORTAGES: dict[Resource, tuple[Callable[[Net, VirtualNode], None], str]] = {
    Resource.DATABASE_USED_SPACE: (_disk, "database_used_space is medium at 97.5 % (above 96, until 94): 1.3 GB of 200 GB are free in "),
    Resource.USED_DISK_SPACE: (_tracking, "used_disk_space is medium at 90 % (above 89, until 80): 1 GB of 10 GB are free in "),
    Resource.USED_VERSION_BUCKETS: (_buckets, "used_version_buckets is medium at 1200 transactions (above 999, until 800)"),
    Resource.CHECKPOINT_DEPTH: (_checkpoint, "checkpoint_depth is medium at 270 MB (above 250, until 230)"),
    Resource.PRIVATE_BYTES: (_private, "private_bytes is medium at 74 % (above 72, until 71): 7.4 GB of 10 GB"),
    Resource.CONTENT_MEMORY: (_content, "content_memory is medium at 95 % (above 90, until 80): 91.2 MB of 96 MB"),
    Resource.SUBMISSION_QUEUE: (_submission, "submission_queue is medium at 5 messages (above 4, until 2)"),
}


def test_every_resource_that_refuses_has_its_shortage_here() -> None:
    assert set(Resource) - {Resource.SYSTEM_MEMORY} == set(SHORTAGES)


@pytest.mark.parametrize("resource", SHORTAGES)
def test_the_pressure_of_each_resource_is_told_once_and_shown_as_the_reason(resource: Resource, tmp_path: Path, said: Said) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with nodes(tmp_path, EAST) as net:
            east = net.nodes[EAST]
            settings_of(east, **AT_ONCE)
            net.sink.hang = lambda address: held
            held = asyncio.Event()
            for _ in range(5):
                await east.accept()
            shorten, reason = SHORTAGES[resource]
            shorten(net, east)
            await asyncio.sleep(10)

            told = [line for line in said() if line["event"].startswith("pressure.")]
            assert [("pressure.increased", resource.value, "normal", "medium", "medium", "warning")] == [
                (line["event"], line["resource"], line["before"], line["after"], line["node"], line["log_level"]) for line in told
            ]
            assert east.context.pressure.meters[resource].reading.use == pytest.approx(told[0]["use"], abs=0.1)
            _, reasons = east.services.readiness.is_ready()
            east.services.readiness.is_running = True
            assert east.services.readiness.is_ready()[0]  # degraded
            assert [True] == [text.startswith(f"back pressure medium: {reason}") for text in reasons if "back pressure" in text]
            assert (True, False, True) == refused(east)
            held.set()

    scenario()


@in_virtual_time
async def test_a_node_under_high_pressure_is_not_ready_and_says_why(tmp_path: Path, said: Said) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        east.services.readiness.is_running = True
        await at(net, 100, EAST)
        is_ready, reasons = east.services.readiness.is_ready()
        await at(net, 10, EAST)

        assert (False, True) == (is_ready, east.services.readiness.is_ready()[0])
        assert "back pressure high: database_used_space is high at 100 % (above 99, until 94): 54 MB of 200 GB are free in" in reasons[0]
        assert [
            ("pressure.increased", "error", "all mail and copies are refused"),
            ("pressure.decreased", "warning", "all mail and copies are accepted"),
        ] == [(line["event"], line["log_level"], line["effect"]) for line in said()]


@in_virtual_time
async def test_a_data_directory_that_cannot_be_read_is_full(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        net.machines[EAST].error = OSError(5, "Input/output error")
        await asyncio.sleep(2.1)
        east = net.nodes[EAST]

        assert (True, True, True) == refused(east)
        reason = f"{east.settings.server.data_directory} cannot be read: Input/output error"
        assert any(one.endswith(reason) for one in east.services.readiness.is_ready()[1])

        net.machines[EAST].error = None
        await asyncio.sleep(2.1)
        assert (False, False, False) == refused(east)


@in_virtual_time
async def test_a_tracking_directory_on_the_same_disk_or_gone_counts_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        _tracking(net, east)
        await asyncio.sleep(2.1)
        assert MEDIUM is east.context.pressure.level

        net.machines[EAST].disks.clear()  # its volume is unmounted: the directory below it is on the disk of data_directory
        await asyncio.sleep(2.1)

        meter = east.context.pressure.meters[Resource.USED_DISK_SPACE]
        assert (NORMAL, "is on the file system of data_directory") == (east.context.pressure.level, meter.reading.detail[-39:])


@in_virtual_time
async def test_a_tracking_directory_whose_size_nobody_knows_or_that_is_gone_refuses_no_mail(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east, machine = net.nodes[EAST], net.machines[EAST]
        tracking = east.settings.tracking.directory
        machine.disks[tracking] = Disk(0, 0, 2)
        await asyncio.sleep(2.1)
        unknown = east.context.pressure
        machine.disks.clear()
        machine.errors[tracking] = FileNotFoundError(2, "No such file or directory")
        await asyncio.sleep(2.1)
        gone = east.context.pressure

        assert (NORMAL, NORMAL) == (unknown.level, gone.level)
        details = [one.meters[Resource.USED_DISK_SPACE].reading.detail for one in (unknown, gone)]
        assert [f"the file system of {tracking} reports no size", f"{tracking} cannot be read: No such file or directory"] == details


# settings that act


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, MEDIUM),
        ({"enable_resource_monitoring": False}, NORMAL),
        ({"free_disk_space_min": "2GB"}, HIGH),
        ({"disk_size_max": "200GB"}, HIGH),
        ({"database_used_space": {"medium_to_high": 97}}, HIGH),
        ({"database_used_space": {"low_to_medium": 98}}, NORMAL),
    ],
)
def test_each_parameter_of_the_disk_changes_the_level_at_the_next_sample(changes: dict[str, Any], level: Level, tmp_path: Path) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with nodes(tmp_path, EAST) as net:
            net.machines[EAST].fill(97.5)
            settings_of(net.nodes[EAST], **changes)
            await asyncio.sleep(2.1)

            assert level is net.nodes[EAST].context.pressure.level

    scenario()


@in_virtual_time
async def test_monitoring_that_is_switched_off_ends_the_pressure_and_says_so(tmp_path: Path, said: Said) -> None:
    async with nodes(tmp_path, EAST) as net:
        await at(net, 100, EAST)
        settings_of(net.nodes[EAST], enable_resource_monitoring=False)
        await asyncio.sleep(4)

        assert (False, False, False) == refused(net.nodes[EAST])
        assert ["pressure.increased", "pressure.decreased"] == [line["event"] for line in said()]


@in_virtual_time
async def test_the_interval_decides_how_often_is_looked(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        before = east.ledger.counts["submission_count"]
        await asyncio.sleep(60)
        every_2_seconds = east.ledger.counts["submission_count"] - before
        settings_of(east, resource_monitoring_interval="10s")
        await asyncio.sleep(2)
        before = east.ledger.counts["submission_count"]
        await asyncio.sleep(60)

        assert (30, 6) == (every_2_seconds, east.ledger.counts["submission_count"] - before)


@pytest.mark.parametrize(("limit", "level"), [("0B", NORMAL), ("100MB", MEDIUM), ("60MB", HIGH)])
def test_the_limit_of_memory_is_the_setting_or_that_of_the_machine(limit: str, level: Level, tmp_path: Path) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with nodes(tmp_path, EAST) as net:
            net.machines[EAST].private = 74_000_000
            settings_of(net.nodes[EAST], private_bytes_limit=limit, private_bytes_history_depth=1)
            await asyncio.sleep(2.1)

            assert level is net.nodes[EAST].context.pressure.level

    scenario()


@pytest.mark.parametrize(("is_on", "limit"), [(True, 0), (False, 32_000_000)])
def test_contents_leave_the_memory_while_the_machine_is_short_of_it(is_on: bool, limit: int, tmp_path: Path) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with nodes(tmp_path, EAST) as net:
            east, limits = net.nodes[EAST], [-1]
            east.context.budget.limit_cache = limits.append
            settings_of(east, dehydrate_messages_under_memory_pressure=is_on)
            net.machines[EAST].memory = MemoryUse(9 * GB, 10 * GB)
            await asyncio.sleep(2.1)
            east.context.budget.squeeze()
            assert limit == (limits[-1] if is_on else east.context.budget._cache_limit)
            assert (False, False, False) == refused(east)

            net.machines[EAST].memory = MemoryUse(8 * GB, 10 * GB)
            await asyncio.sleep(2.1)
            assert 32_000_000 == east.context.budget._cache_limit

    scenario()


@in_virtual_time
async def test_memory_that_rises_is_collected_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        _private(net, net.nodes[EAST])
        await asyncio.sleep(30)

        assert (1, NORMAL) == (net.machines[EAST].collections_count, net.nodes[EAST].context.pressure.level)
        await asyncio.sleep(32)
        assert MEDIUM is net.nodes[EAST].context.pressure.level


# the submission queue


@in_virtual_time
async def test_a_submission_queue_that_grows_delays_clients_then_refuses_them_and_ends(tmp_path: Path, said: Said) -> None:
    async with nodes(tmp_path, EAST) as net:
        east, held = net.nodes[EAST], asyncio.Event()
        east.services.readiness.is_running = True
        few = {"low_to_medium": 4, "medium_to_high": 100, "high_to_medium": 50, "medium_to_low": 2}
        settings_of(east, submission_queue=few, submission_queue_history_depth=5)
        net.sink.hang = lambda address: held
        for _ in range(5):
            await east.accept()
        await asyncio.sleep(2.1)
        delayed = east.context.pressure
        reasons = east.services.readiness.is_ready()
        await asyncio.sleep(10)
        refusing = east.context.pressure
        held.set()
        await asyncio.sleep(30)

        assert (10.0, 0.0, False) == (delayed.delay(is_inside=False), delayed.delay(is_inside=True), delayed.refuses(is_inside=False))
        assert reasons[0]
        assert "clients from outside wait 10 s at MAIL: submission_queue is medium at 5 messages" in reasons[1][0]
        assert (MEDIUM, True) == (refusing.level, refusing.refuses(is_inside=False))
        assert not east.context.pressure.is_felt
        events = [line["event"] for line in said()]
        assert ["tarpit.began", "pressure.increased", "pressure.decreased", "tarpit.ended"] == events


@in_virtual_time
async def test_a_database_that_does_not_answer_holds_up_no_other_measurement(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        east.ledger.gates["submission_count"] = asyncio.Event()
        await asyncio.sleep(10)
        asked = east.ledger.counts["submission_count"]
        await at(net, 100, EAST)
        await asyncio.sleep(10)

        assert HIGH is east.context.pressure.level
        assert asked == east.ledger.counts["submission_count"]  # one question is enough
        east.ledger.gates["submission_count"].set()
        east.ledger.fail("submission_count", 3)
        await at(net, 10, EAST)
        await asyncio.sleep(10)
        assert NORMAL is east.context.pressure.level


@in_virtual_time
async def test_a_stopped_process_and_a_wall_clock_that_jumps_change_no_level(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        _private(net, east)
        for _ in range(12):
            await asyncio.sleep(2)
            east.clock.wall_shift += timedelta(days=3)
        assert NORMAL is east.context.pressure.level
        await asyncio.sleep(60)
        assert MEDIUM is east.context.pressure.level
