"""A real node, with sockets, SQLite and threads, on a machine whose disk a test fills and empties: nothing acknowledged is lost."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import structlog

from shadowrelay.lab.cluster import free_ports
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.settings import Settings
from shadowrelay.node.node import Node
from shadowrelay.settings.configuration import LoadedSettings
from tests.kit.clients import talking_to
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.fake_machine import FakeMachine

FAST = {"resource_monitoring_interval": "100ms"}
INSUFFICIENT = "452 4.3.1 Insufficient system resources"
OUTSIDE, INSIDE = 0, 1  # connectors


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


@pytest.fixture
def admin() -> str:
    """A free address that no connector on port 0 gets meanwhile."""
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture
async def node(tmp_path: Path, sink: Sink, machine: FakeMachine, admin: str) -> AsyncIterator[Node]:
    settings = Settings.model_validate(
        {
            "server": {"name": "a.east.example", "site": "east", "data_directory": tmp_path / "data"},
            "tracking": {"directory": tmp_path / "tracking"},
            "admin": {"listen": admin, "token_file": tmp_path / "token"},
            "receive_connectors": [
                {"name": "outside", "listen": "127.0.0.1:0", "accepted_domains": ["corp.example"]},
                {"name": "inside", "listen": "127.0.0.1:0", "relay_from": ["127.0.0.0/8"]},
            ],
            "routes": [{"recipients": ["*"], "next_hop": str(await sink.start())}],
            "send": {"queue_glitch_retry_interval": "100ms", "message_retry_interval": "100ms"},
            "back_pressure": FAST,
            "transport": {"shadow_redundancy_enabled": False},  # a node without peers is degraded with it
        }
    )
    node = Node(LoadedSettings(tmp_path / "node.toml", settings, {}), machine=machine)
    await node.start()
    yield node
    await node.stop()


class Sender:
    """Sends one message after the other; `accepted` are the subjects that were answered 250."""

    def __init__(self, node: Node, connector: int) -> None:
        self._address = node._connectors.receivers[connector].address
        self.accepted: list[str] = []
        self.replies: list[str] = []

    async def send(self, subject: str) -> str:
        async with talking_to(self._address) as client:
            content = f"Message-ID: <{subject}@x.example>\r\nSubject: {subject}\r\n\r\nhello\r\n".encode()
            reply = await client.mail(["user@corp.example"], content, "a@x.example")
        if reply.startswith("250"):
            self.accepted.append(f"<{subject}@x.example>")
        self.replies.append(reply)
        return reply


def level(node: Node) -> str:
    return node._context.pressure.level.name


async def test_a_disk_fills_and_empties_under_load_and_nothing_acknowledged_is_lost(node: Node, sink: Sink, machine: FakeMachine) -> None:
    outside, inside = Sender(node, OUTSIDE), Sender(node, INSIDE)
    is_over = False

    async def load(sender: Sender, name: str) -> None:
        number = 0
        while not is_over:
            await sender.send(f"{name}-{number}")
            number += 1
            await asyncio.sleep(0.005)

    sink.is_deferring = True
    running = [asyncio.create_task(load(outside, "outside")), asyncio.create_task(load(inside, "inside"))]
    seen = []
    for percent, wanted in ((50, "NORMAL"), (97.5, "MEDIUM"), (100, "HIGH"), (96, "MEDIUM"), (50, "NORMAL")):
        machine.fill(percent)
        await until(lambda wanted=wanted: level(node) == wanted)
        counts = len(outside.replies), len(inside.replies)
        await until(lambda counts=counts: len(outside.replies) > counts[0] and len(inside.replies) > counts[1])  # what had begun has ended
        counts = len(outside.replies), len(inside.replies)
        accepted = len(outside.accepted), len(inside.accepted)
        await until(lambda counts=counts: len(outside.replies) > counts[0] + 3 and len(inside.replies) > counts[1] + 3)
        seen.append((wanted, len(outside.accepted) > accepted[0], len(inside.accepted) > accepted[1]))
        if wanted == "HIGH":
            sink.is_deferring = False  # deliveries go on where nothing is accepted
            waiting = {*outside.accepted, *inside.accepted}
            await until(lambda waiting=waiting: waiting <= {arrival.internet_message_id for arrival in sink.arrivals})
            assert "HIGH" == level(node)
    is_over = True
    await asyncio.gather(*running)

    assert [
        ("NORMAL", True, True), ("MEDIUM", False, True), ("HIGH", False, False), ("MEDIUM", False, True), ("NORMAL", True, True)
    ] == seen  # fmt: skip
    assert {INSUFFICIENT} == {reply for reply in (*outside.replies, *inside.replies) if not reply.startswith("250")}
    await until(lambda: len(sink.arrivals) >= len(outside.accepted) + len(inside.accepted))
    assert sorted([*outside.accepted, *inside.accepted]) == sorted(arrival.internet_message_id for arrival in sink.arrivals)


async def test_pressure_is_visible_to_scrapers_balancers_and_operators(
    node: Node, machine: FakeMachine, admin: str, tmp_path: Path
) -> None:
    token = (tmp_path / "token").read_text().strip()
    async with httpx.AsyncClient(
        base_url=f"http://{admin}", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS
    ) as http:

        async def look() -> tuple[int, bool, str, float, float]:
            ready = await http.get("/health/ready")
            pressure = (await http.get("/api/v1/pressure")).json()
            text = (await http.get("/metrics")).text
            values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            of_resource = float(values['shadowrelay_resource_pressure{resource="database_used_space"}'])
            return (
                ready.status_code,
                ready.json()["is_degraded"],
                pressure["level"],
                float(values["shadowrelay_back_pressure"]),
                of_resource,
            )

        seen = [await look()]
        for percent, wanted in ((97.5, "MEDIUM"), (100, "HIGH"), (10, "NORMAL")):
            machine.fill(percent)
            await until(lambda wanted=wanted: level(node) == wanted)
            seen.append(await look())

    assert [(200, False, "normal", 0, 0), (200, True, "medium", 1, 1), (503, True, "high", 2, 2), (200, False, "normal", 0, 0)] == seen


async def test_refusals_at_mail_are_counted(node: Node, machine: FakeMachine) -> None:
    machine.fill(100)
    await until(lambda: level(node) == "HIGH")

    assert [INSUFFICIENT] * 2 == [await Sender(node, number).send("x") for number in (OUTSIDE, INSIDE)]

    assert b'shadowrelay_refused_total{reason="back pressure"} 2.0' in node._metrics.render()


async def test_each_change_is_one_line(node: Node, machine: FakeMachine) -> None:
    with structlog.testing.capture_logs() as said:
        for percent, wanted in ((97.5, "MEDIUM"), (100, "HIGH"), (10, "NORMAL")):
            machine.fill(percent)
            await until(lambda wanted=wanted: level(node) == wanted)
            await asyncio.sleep(0.5)

    assert [("pressure.increased", "medium"), ("pressure.increased", "high"), ("pressure.decreased", "normal")] == [
        (line["event"], line["after"]) for line in said if line["event"].startswith("pressure.")
    ]


async def test_the_reserve_is_made_only_where_it_makes_no_pressure(node: Node, machine: FakeMachine) -> None:
    pressure = node._services.pressure
    machine.fill(95.9)
    await pressure.look()
    spare = pressure.spare_bytes()
    assert spare is not None
    machine.free = spare  # all that is left beside the reserve
    await pressure.look()
    assert "NORMAL" == level(node)

    machine.fill(96.5)
    await pressure.look()
    assert pressure.spare_bytes() is None
