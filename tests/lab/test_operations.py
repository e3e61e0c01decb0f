"""What is done to a lab is done in the right order, and the log of faults knows of it, whenever somebody presses Ctrl-C."""

import itertools
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab import disturbance
from shadowrelay.lab.compose import Lab
from shadowrelay.lab.disturbance import with_lines
from shadowrelay.lab.fault_log import Change, faults
from shadowrelay.lab.topology import MACHINES, RECEIVERS, SENDER, LabError, WrongUse

# An engine without containers: it remembers what it was told to do, and does it to states in a dictionary.

SERVICES = (*(one.short for one in MACHINES), *(one.network for one in MACHINES), "dns", SENDER, *RECEIVERS)
NEXT = {"kill": "exited", "pause": "paused", "unpause": "healthy", "start": "healthy", "stop": "exited"}


class FakeEngine:
    """Shapes: `told` has every command; container ids are the names of services. `interrupts`: a command at whose beginning
    somebody presses Ctrl-C. `keeps`: networks that it cannot remove."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_up = dict.fromkeys(SERVICES, "healthy")
        self.told: list[tuple[str, ...]] = []
        self.interrupts = ""
        self.keeps: list[str] = []
        self.there = {"shadowrelay-relay:lab-1": "290MB", "shadowrelay-mta:lab-1": "310MB"}

    def check(self) -> None: ...

    def project(self) -> str:
        return "fake"

    def states(self) -> dict[str, str]:
        return dict(self.is_up)

    def containers(self) -> dict[str, str]:
        return {service: service for service in self.is_up}

    def container(self, service: str) -> str:
        return self.containers()[service]

    def _tell(self, *command: str) -> None:
        self.told.append(command)
        if self.interrupts and self.interrupts in command:
            raise KeyboardInterrupt

    def compose(self, *arguments: str, profiles: Sequence[str] = ()) -> bytes:
        self._tell("compose", *arguments)
        if arguments[0] == "up":
            self.is_up = {
                service: "healthy" if (was := self.is_up.get(service)) in (None, "exited", "created") else was for service in SERVICES
            }
        return b""

    def images(self) -> dict[str, str]:
        return self.there

    def remove_images(self) -> list[str]:
        self.there = {}
        return []

    def remove(self) -> list[str]:
        self._tell("remove")
        self.is_up.clear()
        return self.keeps

    def docker(self, *arguments: str, data: bytes | None = None, seconds: float = 0.0) -> bytes:
        self._tell(*arguments)
        for identity in itertools.takewhile(lambda text: text in self.is_up, reversed(arguments)):
            self.is_up[identity] = self.is_up[identity] if "HUP" in arguments else NEXT[arguments[0]]
        return b""

    def inspect(self, service: str) -> dict[str, Any]:
        return {"State": {"FinishedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")}}

    def addresses(self, service: str) -> dict[str, str]:
        (index,) = [index for index, one in enumerate(MACHINES) if one.network == service]
        return {MACHINES[index].site: f"10.0.1.{index}", "link": f"10.0.3.{index}", "outside": f"10.0.9.{index}"}

    def execute(self, service: str, *command: str, data: bytes | None = None, seconds: float = 0.0) -> bytes:
        self._tell("execute", service, *command)
        if command[0] == "ip":
            networks = self.addresses(service)
            return "".join(f"1: to-{name}    inet {address}/24 scope global\n" for name, address in networks.items()).encode()
        if "drain" in command:
            return json.dumps({"state": "inactive"}).encode()
        if "ask" in command:
            return json.dumps({"queues": [], "peers": []}).encode()
        return b"0"


@pytest.fixture
def said() -> list[str]:
    """What it tells."""
    return []


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Lab:
    """A lab that is up, as `lab up` makes it."""
    monkeypatch.setattr(disturbance, "Engine", lambda directory, _: FakeEngine(directory))
    lab = Lab(tmp_path, tell=said.append)
    lab.state.make()
    return lab


@pytest.fixture
def engine(lab: Lab) -> FakeEngine:
    assert isinstance(lab.engine, FakeEngine)
    return lab.engine


def noted(lab: Lab) -> list[Change]:
    return [one.what for one in lab.state.faults.read()]


INTERRUPTED: list[tuple[str, Callable[[Lab], object], str]] = [
    ("kill", lambda lab: lab.kill("mx1.east"), "kill mx1.east.example"),
    ("kill", lambda lab: lab.wipe("mx1.east"), "kill mx1.east.example"),
    ("find", lambda lab: lab.wipe("mx1.east"), "kill and wipe mx1.east.example"),
    ("pause", lambda lab: lab.pause("mx1.east"), "pause mx1.east.example"),
    ("sh", lambda lab: lab.cut("mx1.east", "mx1.west"), "cut mx1.east.example mx1.west.example"),
    ("sh", lambda lab: lab.slow("mx1.east", "west"), "slow mx1.east.example"),
    ("sh", lambda lab: lab.fill_disk("mx1.east"), "full disk mx1.east.example"),
    ("touch", lambda lab: lab.defer(True), "receivers defer"),
]


@pytest.mark.parametrize(("command", "action", "fault"), INTERRUPTED, ids=lambda each: each if isinstance(each, str) else "")
def test_an_action_that_is_interrupted_is_a_fault_in_force(
    lab: Lab, engine: FakeEngine, command: str, action: Callable[[Lab], object], fault: str
) -> None:
    engine.interrupts = command
    with pytest.raises(KeyboardInterrupt):
        action(lab)

    assert fault in lab.faults_in_force()


def test_a_node_is_drained_by_the_command_of_an_operator(lab: Lab, engine: FakeEngine) -> None:
    assert {"state": "inactive"} == lab.drain("mx1.east")
    assert ("execute", "mx1.east", "shadowrelay", "drain", "--config", "/etc/shadowrelay/node.toml", "--json") == engine.told[-1]
    assert [] == lab.faults_in_force(), "it is no fault"
    lab.kill("mx1.east")
    with pytest.raises(LabError, match="does not run"):
        lab.drain("mx1.east")


@pytest.mark.parametrize(("action", "end"), [("kill", "start"), ("pause", "unpause")])
def test_a_fault_that_was_only_written_down_can_be_ended(lab: Lab, engine: FakeEngine, action: str, end: str) -> None:
    engine.interrupts = action
    with pytest.raises(KeyboardInterrupt):
        getattr(lab, action)("mx1.east")
    getattr(lab, end)("mx1.east")

    assert ([], "healthy") == (lab.faults_in_force(), engine.is_up["mx1.east"])


def test_what_ends_a_fault_is_written_down_when_it_has_ended_it(lab: Lab, engine: FakeEngine) -> None:
    lab.kill("mx1.east")
    engine.interrupts = "start"
    with pytest.raises(KeyboardInterrupt):
        lab.start("mx1.east")

    assert ["kill mx1.east.example"] == lab.faults_in_force()


def test_a_killed_node_died_when_docker_says_so(lab: Lab) -> None:
    lab.kill("mx1.east")
    noted_at, died_at = [one.at for one in lab.state.faults.read()]

    assert [died_at] == [fault.began_at for fault in faults(lab.state.faults.read())]
    assert died_at >= noted_at


@pytest.mark.parametrize("action", ["wipe", "restore_old_database"])
def test_a_paused_node_dies_before_its_disk_is_touched(lab: Lab, engine: FakeEngine, action: str) -> None:
    lab.save_database("mx1.east")
    lab.pause("mx1.east")
    engine.told.clear()
    getattr(lab, action)("mx1.east")

    done = [command[0] if command[0] != "execute" else command[2] for command in engine.told]
    assert done.index("kill") < done.index("find") < done.index("start")
    assert ([], "healthy") == (lab.faults_in_force(), engine.is_up["mx1.east"])


def test_a_paused_node_can_be_killed_and_was_dead_since(lab: Lab) -> None:
    lab.pause("mx1.east")
    lab.kill("mx1.east")
    (fault,) = faults(lab.state.faults.read())

    assert ["kill mx1.east.example"] == lab.faults_in_force()
    assert lab.state.faults.read()[0].at == fault.began_at


def test_an_empty_disk_is_not_full(lab: Lab) -> None:
    lab.fill_disk("mx1.east")
    lab.wipe("mx1.east")

    assert [] == lab.faults_in_force()


@pytest.mark.parametrize(
    ("before", "action", "words"),
    [
        ("pause", "pause", "mx1.east is paused: shadowrelay lab unpause mx1.east"),
        ("pause", "start", "mx1.east is paused, not killed: shadowrelay lab unpause mx1.east"),
        ("kill", "kill", "mx1.east does not run: shadowrelay lab start mx1.east"),
        ("kill", "pause", "mx1.east does not run: shadowrelay lab start mx1.east"),
        ("kill", "unpause", "mx1.east is killed, not paused: shadowrelay lab start mx1.east"),
    ],
)
def test_an_action_that_does_not_fit_says_which_one_does(lab: Lab, before: str, action: str, words: str) -> None:
    getattr(lab, before)("mx1.east")
    with pytest.raises(LabError) as caught:
        getattr(lab, action)("mx1.east")

    assert words == str(caught.value)


def limited(engine: FakeEngine) -> set[tuple[str, str]]:
    """(network container, interface) of all that `slow` did."""
    scripts = [(command[1], line) for command in engine.told if command[2:3] == ("sh",) for line in command[-1].splitlines()]
    return {(service, line.split(" dev ")[1].split()[0]) for service, line in scripts if " rate " in line}


def test_two_nodes_of_one_site_are_slow_where_they_meet(lab: Lab, engine: FakeEngine) -> None:
    assert ["mx1.east", "mx2.east"] == lab.slow("mx1.east", "mx2.east")
    assert {("network-mx1.east", "to-east"), ("network-mx2.east", "to-east")} == limited(engine)


def test_two_sites_are_slow_on_their_link(lab: Lab, engine: FakeEngine) -> None:
    assert 4 == len(lab.slow("east", "west"))
    assert {(f"network-{node}", "to-link") for node in ("mx1.east", "mx2.east", "mx1.west", "mx2.west")} == limited(engine)
    assert "u32" not in str(engine.told)


def test_two_nodes_of_two_sites_are_slow_to_each_other_only(lab: Lab, engine: FakeEngine) -> None:
    assert ["mx1.east", "mx1.west"] == lab.slow("mx1.east", "mx1.west")
    assert {("network-mx1.east", "to-link"), ("network-mx1.west", "to-link")} == limited(engine)
    scripts = {command[1]: command[-1] for command in engine.told if "u32" in command[-1]}
    assert ("dst 10.0.3.2/32" in scripts["network-mx1.east"], "dst 10.0.3.0/32" in scripts["network-mx1.west"]) == (True, True)


def test_one_node_is_slow_to_everybody(lab: Lab, engine: FakeEngine) -> None:
    assert ["mx1.east"] == lab.slow("mx1.east")
    assert {("network-mx1.east", "to-link"), ("network-mx1.east", "to-east")} == limited(engine)


def test_a_new_lab_begins_without_what_an_earlier_one_left(lab: Lab, engine: FakeEngine) -> None:
    engine.is_up.clear()
    lab.up()
    commands = [command for command in engine.told if command[0] in ("remove", "compose")]

    assert [("remove",), ("compose", "build", "mx1.east"), ("compose", "build", "dns")] == commands[:3]
    assert ("compose", "up", "--detach", "--no-build") in engine.told


def test_a_lab_that_was_started_by_hand_is_made_anew(lab: Lab, engine: FakeEngine) -> None:
    lab.state.clear()
    (lab.state.directory / "token").mkdir()  # as Docker does
    lab.up(is_build_wanted=False)

    assert ("remove",) in engine.told
    assert (lab.state.directory / "token").is_file()


def test_a_lab_that_is_up_keeps_its_containers_and_its_memory(lab: Lab, engine: FakeEngine) -> None:
    lab.state.sent.write_text("{}\n")
    lab.cut("mx1.east", "west")
    engine.told.clear()
    lab.up(["spark"])

    assert [("compose", "build", "spark-master"), ("compose", "up", "--detach", "--no-build", "--no-recreate")] == [
        command for command in engine.told if command[0] == "compose"
    ]
    assert (2, ["{}"]) == (len(lab.faults_in_force()), lab.state.injected_lines())


def test_nodes_that_come_back_with_up_are_started_in_the_log_too(lab: Lab, engine: FakeEngine) -> None:
    lab.kill("mx1.east")
    lab.pause("mx2.west")
    lab.up()

    assert ([], ["healthy"]) == (lab.faults_in_force(), sorted(set(engine.is_up.values())))
    assert [Change.KILL, Change.KILL, Change.PAUSE, Change.UNPAUSE, Change.START] == noted(lab)


def test_a_lab_whose_queues_are_gone_is_not_revived(lab: Lab, engine: FakeEngine) -> None:
    engine.is_up = dict.fromkeys(SERVICES, "exited")
    with pytest.raises(LabError, match=r"queues and cuts in memory are lost: remove this lab with `shadowrelay lab down`"):
        lab.up()


def test_what_docker_does_not_let_go_of_is_said_and_is_no_failure(lab: Lab, engine: FakeEngine, said: list[str]) -> None:
    engine.keeps = ["main_link"]
    lab.down()

    assert [True] == [text.startswith("Docker miscounts the endpoints of main_link (moby/moby, issue 42119)") for text in said]
    assert not lab.state.is_made


def test_a_mail_server_that_has_ended_is_a_fault_and_named(lab: Lab, engine: FakeEngine) -> None:
    engine.is_up |= {"exim": "exited", "dns": "exited"}

    assert ["exim has stopped", "dns has stopped"] == lab.faults_in_force()
    for action in (lab.verify, lambda: lab.defer(True), lambda: lab.sending().__enter__()):
        with pytest.raises(LabError, match="exim and dns of the lab has stopped: start it again with `shadowrelay lab up`"):
            action()
    assert [] == noted(lab)


def test_a_profile_that_there_is_not_changes_nothing(lab: Lab, engine: FakeEngine) -> None:
    with pytest.raises(WrongUse, match="there is no profile nonsense; there are prometheus, grafana, spark"):
        lab.up(["nonsense"])

    assert [] == engine.told


def test_who_plays_a_scenario_is_alone(lab: Lab, tmp_path: Path) -> None:
    other = Lab(tmp_path)
    other.engine = lab.engine
    with lab.playing("sites-apart"):
        lab.kill("mx1.east")  # its own actions are part of it
        with pytest.raises(LabError, match=r"another command is changing this lab: shadowrelay lab scenario sites-apart \(process \d+\)"):
            other.start("mx1.east")
        with pytest.raises(LabError, match="another command is changing"), other.playing("new-database"):
            pass
        with pytest.raises(LabError, match="another command is changing"), other.sending():
            pass
        assert 4 == len(other.status())
    other.start("mx1.east")


def test_mail_may_be_sent_while_faults_are_made(lab: Lab, tmp_path: Path) -> None:
    other, third = Lab(tmp_path), Lab(tmp_path)
    other.engine = third.engine = lab.engine
    with lab.sending(), other.sending():
        third.kill("mx1.east")
        with pytest.raises(LabError, match="shadowrelay lab send"), third.playing("new-database"):
            pass


# what scenarios do besides


def test_servers_that_are_burnt_are_all_dead_before_the_first_starts_again(lab: Lab, engine: FakeEngine) -> None:
    lab.burn("mx1.east", "mx1.west")

    done = [command[0] if command[0] != "execute" else command[2] for command in engine.told]
    assert ["kill", "kill", "find", "find", "start", "start"] == [what for what in done if what in ("kill", "find", "start")]
    assert ([], {"healthy"}) == (lab.faults_in_force(), set(engine.is_up.values()))


def test_lines_come_into_their_table_or_into_one_of_their_own() -> None:
    text = "[server]\nname = 1\n\n[transport]\nspan = 2\n"

    assert "[server]\nname = 1\n\n[transport]\ncopies = 2\nspan = 2\n" == with_lines(text, "[transport]\ncopies = 2")
    assert f"{text}\n[[routes]]\nnext_hop = 3\n" == with_lines(text, "[[routes]]\nnext_hop = 3")
    both = with_lines(text, "[transport]\ncopies = 2\n\n[[routes]]\nnext_hop = 3")
    assert "copies = 2\nspan = 2\n\n[[routes]]\nnext_hop = 3\n" == both.partition("[transport]\n")[2]
    assert text == with_lines(text, "")


def test_nodes_that_run_are_told_to_read_their_changed_configuration_and_it_is_put_back(
    lab: Lab, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = lab.state.original("mx1.east")
    original.parent.mkdir(parents=True)
    for one in MACHINES:
        lab.state.original(one.short).write_text("\n[transport]\n")
    lab.state.make()
    lab.kill("mx2.east")
    engine.told.clear()
    monkeypatch.setattr(disturbance, "ask", lambda engine, node, path: {"settings": len(engine.told)})

    lab.configure("[transport]\nshadow_copies = 2")
    changed = [lab.state.configuration(one.short).read_text() for one in MACHINES]
    lab.configure("")
    lab.configure("")

    assert {"\n[transport]\nshadow_copies = 2\n"} == set(changed)
    assert {"\n[transport]\n"} == {lab.state.configuration(one.short).read_text() for one in MACHINES}
    hups = [command for command in engine.told if "HUP" in command]
    assert [("kill", "--signal", "HUP", node) for node in ("mx1.east", "mx1.west", "mx2.west")] * 2 == hups


def test_what_stays_of_a_lab_is_said_and_goes_where_that_is_wanted(lab: Lab) -> None:
    kept, left = lab.down(), lab.down(with_images=True)

    assert ({"shadowrelay-relay:lab-1": "290MB", "shadowrelay-mta:lab-1": "310MB"}, {}) == (kept, left)


def test_images_that_are_there_are_compared_and_only_missing_ones_built(lab: Lab, engine: FakeEngine, said: list[str]) -> None:
    lab.down()
    lab.up()
    lab.down(with_images=True)
    lab.up()

    assert ["comparing the images with the source, and building what is older", "building the images (minutes the first time)"] == [
        one for one in said if "images" in one
    ]


def test_the_addresses_of_a_lab_are_those_of_its_containers(lab: Lab) -> None:
    lab.up()

    assert f"{MACHINES[1].short}: SMTP 10.0.9.1:2525, API and console http://10.0.9.1:8025" in lab.addresses()
