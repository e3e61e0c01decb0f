"""The player takes every step, in order, and leaves a lab that works, whatever happened."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from shadowrelay.lab.engine import NodeStatus
from shadowrelay.lab.mail import Backlog, Sending
from shadowrelay.lab.scenarios import player
from shadowrelay.lab.scenarios.catalogue import SCENARIOS
from shadowrelay.lab.scenarios.script import Operation, Scenario, Step, above, fault, pour, send
from shadowrelay.lab.scenarios.verdict import Database, ScenarioEvidence
from shadowrelay.lab.topology import NODES, LabError
from shadowrelay.lab.verification import Verification


@dataclass
class FakeLab:
    """Remembers what is done to it. `breaks` is a method that raises."""

    breaks: str = ""
    done: list[tuple[str, ...]] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NODES, "healthy"))
    faults: list[str] = field(default_factory=list)
    taken: int | None = None
    reached: int = 3
    waiting: int = 0

    def __post_init__(self) -> None:
        self.mail = SimpleNamespace(send=self._send, backlog=lambda: Backlog(to_deliver=self.waiting))
        self.engine = SimpleNamespace(states=lambda: self.states)

    def __getattr__(self, name: str) -> Any:
        def action(*places: object) -> None:
            self.done.append((name, *map(str, places)))
            if name == self.breaks:
                raise LabError(f"{name} broke")
            state = {"kill": "exited", "pause": "paused", "start": "healthy", "unpause": "healthy"}.get(name)
            self.states |= {str(place): state for place in places} if state else {}

        return action

    def _send(self, count: int, rate: float, size: int) -> Sending:
        self.done.append(("send", str(count)))
        return Sending(count if self.taken is None else self.taken, 0)

    def playing(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def status(self) -> list[NodeStatus]:
        return [NodeStatus(node, state, 0, 0, self.reached) for node, state in self.states.items()]

    def faults_in_force(self) -> list[str]:
        return self.faults

    def verify(self, wait: float, *, began_at: float) -> Verification:
        self.done.append(("verify",))
        return Verification(acknowledged=5, arrived=5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is asked for as evidence; the database of a node gets another incarnation each time it is looked at."""
    calls: list[dict[str, Any]] = []
    looks = iter(range(1000))

    def collect(lab: object, verification: Verification, began_at: float, databases: object, **others: Any) -> ScenarioEvidence:
        calls.append({"databases": databases, **others})
        return ScenarioEvidence(verification)

    monkeypatch.setattr(player, "collect", collect)
    monkeypatch.setattr(player, "database", lambda lab, node: Database(node, next(looks), 0, 0))
    clock = SimpleNamespace(sleep=lambda seconds: None, time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr(player, "time", clock)  # other threads of the tests sleep too
    return calls


def scenario(*steps: Step) -> Scenario:
    return Scenario("one", "A title", "A story.", "Exchange.", ("seed-000",), steps, (above("promoted", 0, "…"),))


RESTORED = [("defer", "False"), ("heal",), *(("free_disk", node) for node in NODES), ("configure", "")]


def test_steps_are_taken_in_their_order_and_told(asked: list[dict[str, Any]]) -> None:
    lab, said = FakeLab(), list[str]()
    steps = (
        send(5),
        fault(Operation.CUT, "cut it", "east", "west"),
        fault(Operation.KILL, "kill it", "mx1.east"),
        fault(Operation.START, "start it", "mx1.east"),
    )
    verdict = player.play(lab, scenario(*steps), say=said.append)  # type: ignore[arg-type]

    assert [("send", "5"), ("cut", "east", "west"), ("kill", "mx1.east"), ("start", "mx1.east"), ("verify",), *RESTORED] == lab.done
    assert ["cut it", "kill it", "start it", "verifying"] == said[1:]
    assert not verdict.is_passed


def test_a_node_is_looked_at_before_it_is_disturbed_and_counts_as_stopped(asked: list[dict[str, Any]]) -> None:
    steps = (
        send(5),
        fault(Operation.WIPE, "wipe it", "mx1.east"),
        fault(Operation.ROLL, "roll all"),
        fault(Operation.PAUSE, "…", "mx1.west"),
    )
    player.play(FakeLab(), scenario(*steps), say=lambda text: None)  # type: ignore[arg-type]
    (call,) = asked

    assert {"mx1.east": 3, "mx2.east": 2, "mx1.west": 2, "mx2.west": 2} == {node: len(series) for node, series in call["databases"].items()}
    assert {"mx1.east", "mx1.west"} == call["stopped"]


def test_a_node_that_is_dead_is_not_asked_before_it_is_wiped(asked: list[dict[str, Any]]) -> None:
    steps = (send(5), fault(Operation.KILL, "kill it", "mx1.east"), fault(Operation.WIPE, "wipe it", "mx1.east"))
    player.play(FakeLab(), scenario(*steps), say=lambda text: None)  # type: ignore[arg-type]
    (call,) = asked

    assert 2 == len(call["databases"]["mx1.east"])


def test_a_scenario_does_not_begin_while_mail_of_before_waits(asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    lab = FakeLab(waiting=3)
    monkeypatch.setattr(player, "LEFT_SECONDS_MAX", 0.0)
    with pytest.raises(LabError, match="earlier mail is still queued"):
        player.play(lab, scenario(send(5)), say=lambda text: None)  # type: ignore[arg-type]

    assert [] == lab.done


def test_the_lab_is_healed_when_a_step_breaks(asked: list[dict[str, Any]]) -> None:
    lab = FakeLab(breaks="slow")
    steps = (fault(Operation.KILL, "…", "mx1.east"), fault(Operation.PAUSE, "…", "mx2.west"), fault(Operation.SLOW, "…", "east", "west"))
    with pytest.raises(LabError, match="slow broke"):
        player.play(lab, scenario(*steps), say=lambda text: None)  # type: ignore[arg-type]

    assert dict.fromkeys(NODES, "healthy") == lab.states
    assert {("defer", "False"), ("heal",), ("start", "mx1.east"), ("unpause", "mx2.west")} <= set(lab.done)
    assert ("verify",) not in lab.done


def test_a_step_of_the_restoration_that_breaks_hides_nothing_and_stops_nothing(asked: list[dict[str, Any]]) -> None:
    lab, said = FakeLab(breaks="heal", taken=4), list[str]()
    with pytest.raises(LabError, match="accepted only 4"):
        player.play(lab, scenario(fault(Operation.KILL, "…", "mx1.east"), send(5)), say=said.append)  # type: ignore[arg-type]

    assert "not restored: heal broke" in said
    assert dict.fromkeys(NODES, "healthy") == lab.states


def test_a_lab_that_cannot_be_restored_is_told_when_nothing_else_went_wrong(asked: list[dict[str, Any]]) -> None:
    with pytest.raises(LabError, match=r"^heal broke$"):
        player.play(FakeLab(breaks="heal"), scenario(send(5)), say=lambda text: None)  # type: ignore[arg-type]


def test_a_fault_that_was_only_written_down_is_ended_too(asked: list[dict[str, Any]]) -> None:
    lab = FakeLab()

    def interrupted(node: str) -> None:
        lab.faults = [f"kill {node}.example", "pause mx2.west.example"]
        raise KeyboardInterrupt

    lab.kill = interrupted
    with pytest.raises(KeyboardInterrupt):
        player.play(lab, scenario(fault(Operation.KILL, "…", "mx1.east")), say=lambda text: None)  # type: ignore[arg-type]

    assert {("start", "mx1.east"), ("unpause", "mx2.west")} <= set(lab.done)
    assert ("start", "mx2.east") not in lab.done


def test_a_cut_that_nobody_wrote_down_is_seen_before_a_scenario_begins(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "REACHED_SECONDS_MAX", 0.0)
    lab = FakeLab(reached=1)
    with pytest.raises(LabError, match=r"mx1\.east reaches 1 of 3 nodes"):
        player.play(lab, scenario(send(5)), say=lambda text: None)  # type: ignore[arg-type]

    assert [] == lab.done


@pytest.mark.parametrize("lab", [FakeLab(faults=["cut a b"]), FakeLab(states={**dict.fromkeys(NODES, "healthy"), "mx1.east": "exited"})])
def test_a_lab_that_is_not_well_is_left_as_it_is(asked: list[dict[str, Any]], lab: FakeLab) -> None:
    with pytest.raises(LabError, match="the lab is not ready for a scenario"):
        player.play(lab, scenario(send(5)), say=lambda text: None)  # type: ignore[arg-type]

    assert [] == lab.done


@pytest.mark.parametrize("step", [send(5), pour(5)])
def test_mail_that_postfix_does_not_take_ends_a_scenario(asked: list[dict[str, Any]], step: Step) -> None:
    with pytest.raises(LabError, match="accepted only 4"):
        player.play(FakeLab(taken=4), scenario(step), say=lambda text: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_can_be_played_and_left_out(asked: list[dict[str, Any]], name: str) -> None:
    lab, calm = FakeLab(), FakeLab()
    player.play(lab, SCENARIOS[name], say=lambda text: None)  # type: ignore[arg-type]
    player.play(calm, SCENARIOS[name].without_fault(), say=lambda text: None)  # type: ignore[arg-type]

    actions = {action[0] for action in calm.done}
    assert {"send", "verify", "defer", "heal"} <= actions
    assert set() == actions & {
        "kill",
        "wipe",
        "pause",
        "cut",
        "slow",
        "fill_disk",
        "restore_old_database",
        "roll",
    }
    assert len(calm.done) < len(lab.done)
