"""Machines that can be cut apart and disks that can lose their power, and by default none but the plans of the episodes that use them.

The episodes are heavy: `python -m tests.crash.outages --help`.
"""

import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from shadowrelay.lab.account import Cause, DeliveryRecord, RecordState
from shadowrelay.lab.traffic import Arrival
from tests.crash import fate_plan, outages, sick_plan, unobserved_plan, unread_plan
from tests.crash.evidence import Line, records, strangers, unlogged
from tests.crash.outage_plan import NODES, Heal, Moment, Off, On, Outline, Part, copies_of, plan
from tests.kit.clock import wait_until
from tests.kit.machines import Disk, Hub, disk_obstacle, in_flight, obstacle
from tests.kit.private import UNSHARE

pytestmark = pytest.mark.crash

SEEDS = range(200)
EAST, WEST = NODES[0], NODES[2]
ONE = "user1@corp.example"


# ---- disks and machines


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if reason := disk_obstacle(tmp_path):
        pytest.skip(reason)
    made = Disk(tmp_path / "node" / "data", tmp_path)
    yield made
    made.wait_until_free()


WRITES = """
import os, sys
for name, synced in (("synced", True), ("half", True), ("cached", False)):
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"one ")
    if synced:
        os.fsync(descriptor)
    if name == "half":
        os.write(descriptor, b"two")
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_what_was_not_synced_is_gone_when_the_power_fails(disk: Disk) -> None:
    def on_it(program: str) -> "subprocess.Popen[str]":
        command = [*UNSHARE[:4], *disk.inside, sys.executable, "-c", f"import os; os.chdir({str(disk.place)!r})\n{program}"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with on_it(WRITES) as writer:
        assert writer.stdout is not None
        assert "written\n" == writer.stdout.readline()
        assert disk.watch(writer.pid)
        writer.kill()
        disk.lose_power()
    disk.wait_until_free()

    with on_it("print({name: open(name).read() for name in sorted(os.listdir()) if name != 'lost+found'})") as reader:
        assert ("{'half': 'one ', 'synced': 'one '}\n", None) == reader.communicate()


@pytest.mark.slow
def test_packets_are_dropped_in_one_direction_or_both_and_a_dead_machine_says_nothing(hub: Hub) -> None:
    with hub.machines[WEST].entered():
        west = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        west.bind((hub.machines[WEST].host, 0))
    with hub.machines[EAST].entered():
        east = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        east.bind((hub.machines[EAST].host, 0))

    def passes(sender: socket.socket, receiver: socket.socket, *, is_expected: bool) -> bool:
        receiver.settimeout(30.0 if is_expected else 0.2)
        sender.sendto(b"packet", receiver.getsockname())
        try:
            return receiver.recv(100) == b"packet"
        except TimeoutError:
            return False

    with east, west:
        assert passes(east, west, is_expected=True)
        hub.cut([(EAST, WEST)])
        assert not passes(east, west, is_expected=False)
        assert passes(west, east, is_expected=True)
        hub.heal()
        assert passes(east, west, is_expected=True)
        hub.machines[WEST].unplug()
        assert not passes(east, west, is_expected=False)
        hub.machines[WEST].plug_in()  # another kernel, where nobody listens
        assert not passes(east, west, is_expected=False)


CONNECTS = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for line in sys.stdin:
    connection.sendall(b"octets")
    print("sent", flush=True)
"""


@pytest.mark.slow
def test_what_was_sent_and_has_not_arrived_is_in_flight(hub: Hub) -> None:
    east, west = hub.machines.values()
    with west.entered():
        listener = socket.create_server((west.host, 0))
    command = [*east.inside, sys.executable, "-c", CONNECTS, west.host, str(listener.getsockname()[1])]
    with listener, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdin is not None
        assert sender.stdout is not None
        with listener.accept()[0] as receiver:
            for is_cut in (False, True):
                if is_cut:
                    hub.cut()
                print("send", file=sender.stdin, flush=True)
                assert "sent\n" == sender.stdout.readline()
                if is_cut:
                    assert in_flight(sender.pid) == len(b"octets")
                    hub.heal()
                assert b"octets" == receiver.recv(100)
                wait_until(lambda: not in_flight(sender.pid), what="it has arrived")
        sender.stdin.close()


# ---- the plans


def test_a_seed_always_derives_the_same_plan() -> None:
    assert [plan(seed) for seed in SEEDS] == [plan(seed) for seed in SEEDS]


def test_two_hundred_seeds_have_each_outline_with_one_and_two_copies() -> None:
    counts = Counter((plan(seed).outline, copies_of(seed)) for seed in SEEDS)

    assert {(outline, copies) for outline in Outline for copies in (1, 2)} == set(counts)
    assert min(counts.values()) >= 16


def test_in_the_end_every_machine_has_power_and_reaches_every_other() -> None:
    for seed in SEEDS:
        acts = plan(seed).acts
        dark = Counter(name for act in acts if isinstance(act, Off) for name in act.nodes)
        lit = Counter(name for act in acts if isinstance(act, On) for name in act.nodes)
        parted = list(accumulate(isinstance(act, Part) - isinstance(act, Heal) for act in acts))

        assert dark == lit, plan(seed)
        assert {0, 1} >= set(parted), plan(seed)
        assert 0 == parted[-1], plan(seed)


def test_no_more_disks_burn_than_there_are_copies_and_all_at_once() -> None:
    for seed in SEEDS:
        burnt = [act.burnt for act in plan(seed).acts if isinstance(act, Off) and act.burnt]

        assert len(burnt) <= 1, plan(seed)
        assert all(set(one) <= set(NODES) and len(one) <= copies_of(seed) for one in burnt), plan(seed)


def test_seeds_of_sick_machines_have_each_outline_in_each_layout_and_end_well() -> None:
    plans = [sick_plan.plan(seed) for seed in range(sick_plan.FIRST_SEED, sick_plan.FIRST_SEED + 56)]

    assert 56 == len({(one.outline, one.layout.name) for one in plans})
    assert plans == [sick_plan.plan(one.seed) for one in plans]
    for one in plans:
        assert sum(len(act.burnt) for act in one.acts if isinstance(act, Off)) <= 1, one
        assert Counter(type(act) for act in one.acts)[sick_plan.Sick] == Counter(type(act) for act in one.acts)[sick_plan.Well], one


def test_seeds_of_machines_have_each_outline_and_burn_one_machine_at_once() -> None:
    plans = [fate_plan.plan(seed) for seed in range(fate_plan.FIRST_SEED, fate_plan.FIRST_SEED + 40)]

    assert set(fate_plan.FateOutline) == {one.outline for one in plans}
    for one in plans:
        burnt = [act.burnt for act in one.acts if isinstance(act, Off) and act.burnt]
        assert len(burnt) <= 1, one
        assert all(any(set(nodes) <= set(machine) for machine in one.layout.machines) for nodes in burnt), one


def test_seeds_of_tracking_logs_that_hang_have_each_outline_in_each_layout_and_burn_one_disk() -> None:
    plans = [unobserved_plan.plan(seed) for seed in range(unobserved_plan.FIRST_SEED, unobserved_plan.FIRST_SEED + 6)]

    assert 6 == len({(one.outline, one.layout.name) for one in plans})
    for one in plans:
        hangs = [act.node for act in one.acts if isinstance(act, unobserved_plan.TrackingHangs)]
        (burnt,) = [act.burnt for act in one.acts if isinstance(act, Off)]
        assert 1 == len(burnt), one
        assert (one.outline is unobserved_plan.UnobservedOutline.BURNT) == (hangs == list(burnt)), one


def test_seeds_of_an_unread_standard_error_have_each_outline_in_each_layout_and_it_is_read_again() -> None:
    plans = [unread_plan.plan(seed) for seed in range(unread_plan.FIRST_SEED, unread_plan.FIRST_SEED + 6)]

    assert 6 == len({(one.outline, one.layout.name) for one in plans})
    for one in plans:
        unread, again = ([act.node for act in one.acts if isinstance(act, kind)] for kind in (unread_plan.Unread, unread_plan.ReadAgain))
        assert unread == again, one
        assert sum(len(act.burnt) for act in one.acts if isinstance(act, Off)) <= 1, one


def test_portions_have_one_number_of_copies_and_all_seeds() -> None:
    found = list(outages.portions(SEEDS))

    assert sorted(SEEDS) == sorted(seed for portion in found for seed in portion)
    assert {1} == {len({copies_of(seed) for seed in portion}) for portion in found}


# ---- the evidence


NO_REPLY = "451 4.4.2 Timed out waiting for the server"


def a_line(at: float, event: str, node: str = EAST, status: str = "") -> Line:
    return Line(at, node, event, "id-1", (ONE,), "", status)


def an_arrival(at: float, node: str = EAST) -> Arrival:
    return Arrival(at, ONE, "id-1", "<1@client.example>", node, False, "digest")


RECORDED, UNKNOWN, UNANSWERED = RecordState.RECORDED, RecordState.UNKNOWN, RecordState.UNANSWERED


@pytest.mark.parametrize(
    ("expected", "lines"),
    [
        ([RECORDED, UNKNOWN, UNKNOWN], [a_line(100.1, "SEND")]),
        ([UNKNOWN, RECORDED, UNKNOWN], [a_line(105.1, "SEND")]),
        (
            [UNANSWERED, RECORDED, UNKNOWN],
            [a_line(105.1, "SEND"), a_line(101.4, "DEFER", status=NO_REPLY)],
        ),
        ([UNANSWERED, UNKNOWN, UNKNOWN], [a_line(99.5, "DEFER", status=NO_REPLY)]),  # a busy next hop
        ([RECORDED, UNKNOWN, UNKNOWN], [a_line(99.5, "DEFER", status=NO_REPLY), a_line(100.1, "SEND")]),
        ([UNKNOWN, UNKNOWN, UNKNOWN], [a_line(99.0, "SEND"), a_line(100.1, "DEFER", status="451 4.3.2 Not now")]),
    ],
)
def test_a_record_of_a_delivery_was_written_before_the_same_server_delivered_again(expected: list[RecordState], lines: list[Line]) -> None:
    arrivals = [an_arrival(100.0), an_arrival(105.0), an_arrival(107.0, WEST)]

    assert expected == [record.outcome for record in map(records(lines, arrivals), arrivals)]


def test_the_attempt_of_a_delivery_began_as_much_earlier_as_its_row_says() -> None:
    line = Line(104.0, EAST, "SEND", "id-1", (ONE,), "S:AttemptElapsed=5.5")

    assert DeliveryRecord(RECORDED, 1.5) == records([line], [an_arrival(100.0)])(an_arrival(100.0))


def test_who_delivers_what_another_server_received_must_say_that_it_took_it_over() -> None:
    received, arrivals = a_line(99.0, "RECEIVE"), [an_arrival(100.0), an_arrival(101.0, WEST)]

    assert [f"id-1: delivered by {WEST}, which has neither RECEIVE nor RESUBMIT"] == strangers([received], arrivals)
    assert [] == strangers([received, a_line(100.5, "RESUBMIT", WEST)], arrivals)
    assert [] == strangers([], arrivals)  # nobody had the time to write


def test_who_was_killed_when_a_message_had_just_arrived_may_have_lost_the_row_about_it() -> None:
    message_id = f"{100_000:012x}"
    message_id = f"{message_id[:8]}-{message_id[8:]}-7000-8000-000000000000"  # made at 100.0
    arrivals = [replace(an_arrival(150.0, WEST), network_id=message_id)]
    taken_over = replace(a_line(120.0, "RESUBMIT"), message_id=message_id)

    assert [] == strangers([taken_over], arrivals, {WEST: [100.2]})
    for killed in ([], [99.0], [130.0]):
        assert strangers([taken_over], arrivals, {WEST: killed})


def test_what_a_log_had_yet_to_take_when_it_began_to_hang_is_not_in_it() -> None:
    arrivals = [replace(an_arrival(at), network_id=name) for at, name in ((98.5, "long before"), (99.5, "just before"), (101.0, "after"))]

    assert {"just before", "after"} == unlogged([], arrivals, {EAST: 100.0})


# ---- episodes


@pytest.fixture
def _possible(tmp_path: Path, quiet: None) -> None:
    if reason := obstacle() or disk_obstacle(tmp_path):
        pytest.skip(reason)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("_possible")
@pytest.mark.parametrize("first", [0, 6], ids=["one copy", "two copies"])
def test_an_episode_of_each_outline_loses_nothing_and_explains_every_duplicate(first: int, tmp_path: Path) -> None:
    episodes = outages.series(range(first, first + len(Outline)), tmp_path / "site")

    assert "" == "\n".join(episode.explain() for episode in episodes if episode.complaints)
    assert all(episode.result.accepted >= outages.ACKNOWLEDGED_MIN for episode in episodes)
    assert Cause.TWO_FAILED in episodes[list(Outline).index(Outline.FAILED_TOGETHER)].causes


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_possible")
def test_nodes_that_do_not_sync_their_commits_lose_what_they_acknowledged(tmp_path: Path) -> None:
    everything_at_once = Off(NODES, Moment.AFTER_ACK)
    seed = next(seed for seed in range(10_000) if everything_at_once in plan(seed).acts)

    (episode,) = outages.series([seed], tmp_path / "site", outages.careless("sync"))

    assert episode.result.lost, episode.explain()


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("_possible")
def test_a_machine_of_two_nodes_that_loses_power_or_burns_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    first = fate_plan.FIRST_SEED
    episodes = outages.series(range(first, first + len(fate_plan.FateOutline)), tmp_path / "site")

    assert "" == "\n".join(episode.explain() for episode in episodes if episode.complaints)
    assert all(episode.result.accepted >= outages.ACKNOWLEDGED_MIN for episode in episodes)
    assert sum(episode.result.taken_over for episode in episodes) > 0


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_possible")
def test_where_copies_on_one_machine_count_a_machine_that_burns_takes_them(tmp_path: Path) -> None:
    outline = fate_plan.FateOutline.MACHINE_BURNT
    seed = next(seed for seed in range(fate_plan.FIRST_SEED, fate_plan.FIRST_SEED + 40) if fate_plan.plan(seed).outline is outline)

    (episode,) = outages.series([seed], tmp_path / "site", outages.careless("fate"))

    assert episode.result.lost, episode.explain()


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("_possible")
def test_a_tracking_log_that_hangs_has_nothing_delivered_twice_when_a_disk_burns_meanwhile(tmp_path: Path) -> None:
    first = unobserved_plan.FIRST_SEED
    seeds = range(first, first + 2 * len(unobserved_plan.LAYOUTS))
    episodes = [one for portion in outages.portions(seeds) for one in outages.series(portion, tmp_path / f"from-{portion[0]}")]

    assert "" == "\n".join(episode.explain() for episode in episodes if episode.complaints)
    assert sum(episode.result.taken_over for episode in episodes) > 0


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_possible")
def test_where_notifications_wait_for_a_tracking_log_that_hangs_mail_is_delivered_twice(tmp_path: Path) -> None:
    outline = unobserved_plan.UnobservedOutline.BURNT
    seed = next(seed for seed in range(unobserved_plan.FIRST_SEED, 4000) if unobserved_plan.plan(seed).outline is outline)

    (episode,) = outages.series([seed], tmp_path / "site", outages.careless("observers"))

    assert Cause.NONE in episode.causes, episode.explain()


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("_possible")
def test_a_node_whose_standard_error_nobody_reads_goes_on_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    seeds = range(unread_plan.FIRST_SEED, unread_plan.FIRST_SEED + 2 * len(unread_plan.LAYOUTS))
    episodes = [one for portion in outages.portions(seeds) for one in outages.series(portion, tmp_path / f"from-{portion[0]}")]

    assert "" == "\n".join(episode.explain() for episode in episodes if episode.complaints)


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_possible")
@pytest.mark.parametrize(
    ("outline", "complaint"),
    [(unread_plan.UnreadOutline.BURNT, "has taken no"), (unread_plan.UnreadOutline.ENDED, "has not ended")],
)
def test_where_lines_are_written_by_the_event_loop_who_reads_none_stops_the_relay(
    tmp_path: Path, outline: unread_plan.UnreadOutline, complaint: str
) -> None:
    seed = next(seed for seed in range(unread_plan.FIRST_SEED, 5000) if unread_plan.plan(seed).outline is outline)

    (episode,) = outages.series([seed], tmp_path / "site", outages.careless("log thread"))

    assert any(complaint in text for text in episode.complaints), episode.explain()
