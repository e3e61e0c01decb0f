"""`status`: one table from what all nodes say."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shadowrelay.admin import api_client
from shadowrelay.cli.main import app
from tests.unit.cli.played_api import PlayedClient, play

Row = dict[str, Any]
EAST, WEST = "mx1.east", "mx1.west"


def peer(name: str, **more: Any) -> Row:
    usual = {"is_reachable": True, "breaker": "closed", "is_draining": False, "conflict": "", "refusal": "", "differs": ""}
    return {"name": name, "held_for_count": 0, "heartbeat_age_seconds": 1.0} | usual | more


def a_mail(outcome: str, takers: int = 1, wanted: int = 1) -> Row:
    return {"outcome": outcome, "takers_count": takers, "copies_wanted": wanted, "sentence": "" if outcome == "copied" else "new mail …"}


def queue(kind: str, count: int, primary: str = "") -> Row:
    return {"kind": kind, "count": count, "oldest_at": "2026-01-01T00:00:00Z" if count else None, "primary": primary}


class TwoNodes:
    """Stands for NodeClient: two nodes of a cluster."""

    def __init__(self) -> None:
        self.peers = {EAST: [peer(WEST)], WEST: [peer(EAST, held_for_count=40)]}
        self.queues = {EAST: [queue("Delivery", 40), queue("SafetyNetPrimary", 5)], WEST: [queue("Shadow", 40, EAST)]}
        self.silent: list[str] = []
        self.transport = {"transport.shadow_redundancy_enabled": True}
        self.reasons: list[str] = []
        self.new_mail = {EAST: a_mail("copied"), WEST: a_mail("copied")}
        self.untold: dict[str, Row] = {}
        self.versions = {EAST: "1.0", WEST: "1.0"}
        self.configuration: Row = {}
        self.known: dict[str, Row] = {}  # further, of what a node says of itself

    def __call__(self, url: str, token: str, *, authority: Path | None = None, name: str = "") -> "TwoNodes.OneOfTwo":
        return self.OneOfTwo(self, url.removeprefix("http://"))

    class OneOfTwo(PlayedClient):
        def __init__(self, nodes: "TwoNodes", name: str) -> None:
            self.nodes, self.name = nodes, name

        def node(self) -> Row:
            if self.name in self.nodes.silent:
                raise api_client.NodeError("cannot be reached")
            settings = {"transport.shadow_resubmit_time_span": "3h", **self.nodes.transport}
            said = {"settings": settings, "new_mail": self.nodes.new_mail[self.name], "untold": self.nodes.untold.get(self.name)}
            named = {"name": self.name, "site": self.name.partition(".")[2], "state": "running"}
            named |= {"version": self.nodes.versions[self.name], "configuration": self.nodes.configuration}
            return named | said | self.nodes.known.get(self.name, {})

        def ready(self) -> Row:
            return {"is_ready": True, "is_degraded": False, "reasons": self.nodes.reasons}

        def queues(self) -> list[Row]:
            return self.nodes.queues[self.name]

        def peers(self) -> list[Row]:
            return self.nodes.peers[self.name]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> TwoNodes:
    return play(monkeypatch, TwoNodes())


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["status", "--node", f"http://{EAST},http://{WEST}", *words])


def test_a_healthy_cluster_is_redundant_and_says_who_holds_what_for_whom(nodes: TwoNodes) -> None:
    result, document = run(), json.loads(run("--json").stdout)

    assert (0, "New mail is redundant.") == (result.exit_code, result.stdout.splitlines()[0])
    assert [(EAST, 40, 0), (WEST, 0, 40)] == [(one["name"], one["to_deliver_count"], one["held_count"]) for one in document["nodes"]]
    assert [(WEST, EAST, 40, None)] == [
        (one["node"], one["primary"], one["count"], one["takes_over_in_seconds"]) for one in document["holds"]
    ]
    assert [] == document["missing"]


def test_a_mixed_cluster_is_said_also_of_a_peer_that_is_too_old_to_tell(nodes: TwoNodes) -> None:
    one = run().output
    nodes.versions[WEST] = "1.1"
    two = run().output
    nodes.versions[WEST] = "1.0"
    nodes.peers[EAST][0] |= {"version": "", "database": "d1"}
    nodes.silent = [WEST]
    old = run().output

    assert "mixed versions" not in one
    assert f"mixed versions: 1.0 on {EAST}, 1.1 on {WEST}" in two
    assert f"mixed versions: 1.0 on {EAST}, an older one on {WEST}" in old


def test_the_versions_are_shown_and_where_they_differ_for_each_node(nodes: TwoNodes) -> None:
    same = run().stdout
    nodes.versions[WEST] = "1.1"
    different = run().stdout

    assert ("Version: 1.0" in same.splitlines(), "Version" in same.splitlines()[2]) == (True, False)
    assert ["1.0", "1.1"] == [line.split()[3] for line in different.splitlines()[3:5]]


def test_check_fails_where_a_node_is_missing_or_says_what_is_wrong(nodes: TwoNodes) -> None:
    healthy = run("--check").exit_code
    nodes.configuration = {"refusal": "node.toml: no", "refused_at": "2026-01-01T00:00:00Z", "needs_restart": ["peers"]}
    wrong = run("--check")
    nodes.configuration = {}
    nodes.silent = [WEST]
    missing = [run(*words).exit_code for words in ((), ("--check",))]

    assert (0, 1, [0, 1]) == (healthy, wrong.exit_code, missing)
    assert "refused at 2026-01-01T00:00:00Z: node.toml: no; changes wait for a restart: peers" in wrong.stdout


def test_copies_that_count_on_one_machine_are_said_to_be_lost_with_it(nodes: TwoNodes) -> None:
    nodes.new_mail = dict.fromkeys((EAST, WEST), a_mail("copied") | {"shared_fate": [WEST]})
    nodes.transport["transport.shared_fate_is_redundant"] = True
    result = run()

    assert (0, True) == (
        result.exit_code,
        result.stdout.startswith("New mail is redundant; shared_fate_is_redundant on mx1.east and mx1.west: "),
    )
    assert "copies count that are lost together with the server" in result.stdout


def test_where_only_peers_of_the_same_fate_take_copies_that_is_the_reason(nodes: TwoNodes) -> None:
    nodes.new_mail[EAST] = a_mail("fewer", 0) | {"shared_fate": [WEST]}

    assert "NOT REDUNDANT on mx1.east: no peer on another machine, with other failure_domains, takes copies now" in run().stdout


def test_nodes_of_one_machine_stand_together_with_what_they_hold_together(nodes: TwoNodes) -> None:
    nodes.known = {EAST: {"machine": "a1b2c3d4" * 4}, WEST: {"machine": "00000000" * 4}}
    apart = run().output
    nodes.known = {name: {"machine": "a1b2c3d4" * 4} for name in (EAST, WEST)}
    lines = run().output.splitlines()
    (machine,) = json.loads(run("--json").output)["machines"]

    assert "machine " not in apart
    assert ("a1b2c3d4", [EAST, WEST], 40, 40) == tuple(machine[key] for key in ("machine", "nodes", "to_deliver_count", "held_count"))
    first = next(number for number, line in enumerate(lines) if line.startswith("machine a1b2c3d4"))
    assert ["40", "40"] == [word for word in lines[first].split() if word == "40"]
    assert [f"  {EAST}", f"  {WEST}"] == [line[: len(EAST) + 2].rstrip() for line in lines[first + 1 : first + 3]]


def test_a_witness_is_called_that(nodes: TwoNodes) -> None:
    nodes.known = {WEST: {"is_witness": True}}

    assert "running, witness" in next(line for line in run().output.splitlines() if line.startswith(WEST))


def test_a_node_that_is_gone_is_missing_and_it_is_said_when_its_mail_is_taken_over(nodes: TwoNodes) -> None:
    nodes.silent = [EAST]
    nodes.peers[WEST] = [
        peer(EAST, held_for_count=40, is_reachable=False, heartbeat_age_seconds=1800.0, last_error="refused", takes_over_in_seconds=9000.0)
    ]
    nodes.new_mail[WEST] = a_mail("fewer", 0)

    result, document = run(), json.loads(run("--json").stdout)

    assert (1, False) == (result.exit_code, document["is_redundant"])
    assert "NEW MAIL IS NOT REDUNDANT on mx1.west: no peer takes copies now; mx1.west cannot reach mx1.east." in result.stdout
    assert [True, True, True] == [text in result.stdout for text in ("MISSING", "mx1.east: refused", "in 2h 30m")]
    assert [9000.0] == [one["takes_over_in_seconds"] for one in document["holds"]]
    assert [{"node": f"http://{EAST}", "error": "cannot be reached"}] == document["missing"]


def test_an_error_that_is_the_reason_is_said_once(nodes: TwoNodes) -> None:
    nodes.peers[EAST] = [peer(WEST, is_reachable=False, last_error="refused")]
    nodes.silent = [WEST]
    nodes.reasons = ["new mail is refused with 451: mx1.west: refused"]

    assert 1 == run().stdout.count("mx1.west: refused")


def test_the_node_says_what_happens_to_the_next_message_not_its_table_of_peers(nodes: TwoNodes) -> None:
    """A peer that polls this node counted as one that takes its copies, while every message was answered 451."""
    nodes.new_mail[EAST] = a_mail("refused", 0)

    result = run()

    assert (1, True) == (result.exit_code, result.stdout.startswith(f"NEW MAIL IS REFUSED with 451 on {EAST}: "))


def test_a_node_whose_disk_takes_no_commits_refuses_new_mail_however_many_peers_take_copies(nodes: TwoNodes) -> None:
    nodes.new_mail[EAST] = a_mail("refused", 1) | {"sentence": "new mail is refused: nothing was committed in /srv since 12:00Z"}

    result = run()

    assert 1 == result.exit_code
    assert result.stdout.startswith(f"NEW MAIL IS REFUSED on {EAST}: nothing was committed in /srv since 12:00Z")


def test_what_is_not_known_is_not_redundant(nodes: TwoNodes) -> None:
    nodes.new_mail[EAST] = a_mail("unknown", 0)

    result = run()

    assert (1, True) == (result.exit_code, result.stdout.startswith(f"NEW MAIL MAY NOT BE REDUNDANT on {EAST}: it is not known"))


def test_a_node_of_an_older_version_does_not_say_it(nodes: TwoNodes) -> None:
    nodes.new_mail[EAST] = {}

    assert (1, True) == ((result := run()).exit_code, f"MAY NOT BE REDUNDANT on {EAST}: an older version" in result.stdout)


def test_a_node_of_an_older_version_is_not_waited_for_but_what_is_wrong_elsewhere_is(
    nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an upgrade node by node: `--wait` stood still for all of its time."""
    passed: list[float] = []
    monkeypatch.setattr("shadowrelay.cli.status.time", SimpleNamespace(sleep=passed.append, monotonic=lambda: sum(passed)))
    nodes.new_mail[EAST] = {}

    assert (1, 0) == (run("--wait", "1m").exit_code, len(passed))
    nodes.new_mail[WEST] = a_mail("fewer", 0)
    result = run("--wait", "1m")
    assert (1, 60) == (result.exit_code, sum(passed))
    assert f"NEW MAIL IS NOT REDUNDANT on {WEST}: no peer takes copies now" in result.stderr


def test_a_third_node_is_enough(nodes: TwoNodes) -> None:
    nodes.peers[EAST] = [peer(WEST, breaker="open", is_reachable=False), peer("mx2.west")]

    assert (0, True) == ((result := run()).exit_code, result.stdout.startswith("New mail is redundant; mx1.east cannot reach mx1.west."))


def test_fewer_copies_than_wanted_are_said(nodes: TwoNodes) -> None:
    nodes.new_mail = {EAST: a_mail("fewer", 1, 2), WEST: a_mail("fewer", 1, 2)}

    assert (0, f"New mail has fewer copies than shadow_copies asks for: 1 of 2 on {EAST}, 1 of 2 on {WEST}.") == (
        (result := run()).exit_code,
        result.stdout.splitlines()[0],
    )


def test_mail_of_a_node_that_places_no_copies_is_not_redundant(nodes: TwoNodes) -> None:
    nodes.transport["transport.shadow_redundancy_enabled"] = False
    nodes.new_mail = {EAST: a_mail("not copied", 0, 0), WEST: a_mail("not copied", 0, 0)}

    assert (1, True) == ((result := run()).exit_code, f"on {EAST} and {WEST}: shadow_redundancy_enabled is false" in result.stdout)


def test_watching_shows_it_again_until_interrupted(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def interrupted_later(seconds: float) -> None:
        waited.append(seconds)
        nodes.silent = [EAST]
        if len(waited) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("shadowrelay.cli.status.time", SimpleNamespace(sleep=interrupted_later))  # other threads of the tests sleep too
    result = run("--watch")

    assert (0, [2.0, 2.0]) == (result.exit_code, waited)
    assert ["New mail is redundant.", "New mail is redundant on the nodes that answered."] == [
        line for line in result.stdout.splitlines() if line.startswith("New mail")
    ]


def test_a_peer_that_is_only_starting_is_not_called_lost(nodes: TwoNodes) -> None:
    nodes.peers[WEST] = [peer(EAST, is_reachable=False, heartbeat_age_seconds=None, last_error="refused")]
    nodes.new_mail[WEST] = a_mail("fewer", 0)

    result, document = run(), json.loads(run("--json").stdout)

    assert f"NEW MAIL IS NOT REDUNDANT on {WEST}: no peer takes copies now; {WEST} has not reached {EAST} yet." in result.stdout
    assert [{"node": WEST, "peer": EAST, "is_new": True}] == document["unreached"]


def test_waiting_says_once_what_it_waits_for_and_ends_when_all_is_well(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.silent = [EAST, WEST]
    nodes.peers[WEST] = [peer(EAST, is_reachable=False, heartbeat_age_seconds=None)]
    nodes.new_mail[WEST] = a_mail("unknown", 0)
    passed: list[float] = []

    def sleep(seconds: float) -> None:
        passed.append(seconds)
        nodes.silent = [EAST, WEST] if len(passed) < 3 else []
        if len(passed) == 5:
            nodes.peers[WEST] = [peer(EAST)]
            nodes.new_mail[WEST] = a_mail("copied")

    monkeypatch.setattr("shadowrelay.cli.status.time", SimpleNamespace(sleep=sleep, monotonic=lambda: sum(passed)))
    result = run("--wait", "1m")

    assert (0, 5) == (result.exit_code, len(passed))
    assert [
        "waiting: no node answers yet",
        f"waiting: {WEST} has not reached {EAST} yet",
    ] == result.stderr.splitlines()
    assert result.stdout.startswith("New mail is redundant.")


def test_waiting_in_vain_ends_like_a_status_at_once(nodes: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.silent = [EAST, WEST]
    passed: list[float] = []
    monkeypatch.setattr("shadowrelay.cli.status.time", SimpleNamespace(sleep=passed.append, monotonic=lambda: sum(passed)))

    result = run("--wait", "10s")

    assert (4, 10.0) == (result.exit_code, sum(passed))
    assert ["waiting: no node answers yet", "shadowrelay: cannot be reached"] == result.stderr.splitlines()
    assert (2, True) == ((wrong := run("--wait", "soon")).exit_code, "is not a duration" in wrong.stderr)


def test_in_reject_mode_fewer_copies_than_wanted_is_a_refusal(nodes: TwoNodes) -> None:
    """It was called fewer copies, with exit code 0, while every message was answered 451."""
    nodes.new_mail = {EAST: a_mail("refused", 1, 2), WEST: a_mail("refused", 1, 2)}

    result = run()

    assert result.exit_code == 1
    assert result.stdout.startswith(f"NEW MAIL IS REFUSED with 451 on {EAST} and {WEST}: ")


def test_what_is_held_for_a_server_that_is_no_peer_any_more_is_said(nodes: TwoNodes) -> None:
    """`no node holds copies now` was said of the only copy."""
    gone = peer("mx9.gone", held_for_count=24, is_reachable=False, breaker="open", is_configured=False, takes_over_in_seconds=60.0)
    nodes.peers[WEST].append(gone | {"heartbeat_age_seconds": None})

    result = run()

    assert f"{WEST} holds 24 messages for mx9.gone, which is no peer any more" in result.stdout
    assert "in 1m" in result.stdout


def test_messages_of_whose_end_nobody_may_hear_yet_are_said_with_what_they_wait_for(nodes: TwoNodes) -> None:
    """Their copies stay where they are, and nothing said why."""
    nodes.untold[EAST] = {"count": 3, "since": "2026-11-27T10:00:00.123Z", "message_id": "0193-aa", "generated": "0193-bb"}

    result = run()

    assert result.exit_code == 0
    assert f"{EAST} has 3 messages that are done, and tells nobody" in result.stdout
    assert "since 2026-11-27T10:00:00Z: 0193-aa waits for 0193-bb" in result.stdout.replace("\n", " ")
