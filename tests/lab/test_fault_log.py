"""Commands as they were given become faults with a beginning and an end."""

import math
from pathlib import Path

from shadowrelay.lab.account import Fault, FaultKind
from shadowrelay.lab.fault_log import Change, Entry, FaultLog, faults, in_force

EAST, WEST = "mx1.east.example", "mx1.west.example"


def test_a_killed_node_is_dead_until_it_is_started() -> None:
    assert [Fault(FaultKind.KILL, EAST, 10.0, 20.0)] == faults([Entry(10.0, Change.KILL, EAST), Entry(20.0, Change.START, EAST)])


def test_the_disk_of_a_dead_node_is_destroyed_from_its_death_on() -> None:
    happened = [Entry(10.0, Change.KILL, EAST), Entry(15.0, Change.WIPE, EAST), Entry(20.0, Change.START, EAST)]

    assert [Fault(FaultKind.WIPE, EAST, 10.0, 20.0)] == faults(happened)


def test_a_node_that_ran_is_wiped_when_it_is_wiped() -> None:
    assert [Fault(FaultKind.WIPE, EAST, 15.0, 20.0)] == faults([Entry(15.0, Change.WIPE, EAST), Entry(20.0, Change.START, EAST)])


def test_who_dies_frozen_was_dead_since() -> None:
    frozen = [Entry(5.0, Change.PAUSE, EAST), Entry(10.0, Change.KILL, EAST)]

    assert [Fault(FaultKind.KILL, EAST, 5.0, 20.0)] == faults([*frozen, Entry(20.0, Change.START, EAST)])
    assert [Fault(FaultKind.WIPE, EAST, 5.0, 20.0)] == faults([*frozen, Entry(11.0, Change.WIPE, EAST), Entry(20.0, Change.START, EAST)])
    assert [f"kill {EAST}"] == in_force(frozen)


def test_the_time_of_death_is_what_docker_tells_afterwards() -> None:
    told = [Entry(10.0, Change.KILL, EAST), Entry(10.4, Change.KILL, EAST), Entry(20.0, Change.START, EAST)]

    assert [Fault(FaultKind.KILL, EAST, 10.4, 20.0)] == faults(told)


def test_to_heal_ends_all_cuts_and_nothing_else() -> None:
    happened = [Entry(1.0, Change.CUT, EAST, WEST), Entry(2.0, Change.PAUSE, EAST), Entry(3.0, Change.HEAL)]

    assert [Fault(FaultKind.CUT, EAST, 1.0, 3.0, WEST), Fault(FaultKind.PAUSE, EAST, 2.0, math.inf)] == faults(happened)


def test_a_second_cut_of_the_same_pair_does_not_begin_again() -> None:
    assert [1.0] == [fault.began_at for fault in faults([Entry(1.0, Change.CUT, EAST, WEST), Entry(2.0, Change.CUT, EAST, WEST)])]


def test_to_stop_a_node_in_order_excuses_nothing() -> None:
    assert [] == faults([Entry(1.0, Change.STOP, EAST), Entry(2.0, Change.START, EAST)])


def test_a_full_disk_lasts_until_it_is_freed() -> None:
    happened = [
        Entry(1.0, Change.FILL, EAST),
        Entry(2.0, Change.FILL, EAST),
        Entry(3.0, Change.FREE, EAST),
        Entry(4.0, Change.FREE, EAST),
    ]

    assert [Fault(FaultKind.FULL, EAST, 1.0, 3.0)] == faults(happened)


def test_what_lasts_is_told_in_words() -> None:
    happened = [
        Entry(1.0, Change.CUT, EAST, WEST),
        Entry(2.0, Change.FILL, EAST),
        Entry(2.5, Change.FILL, WEST),
        Entry(3.0, Change.FREE, WEST),
        Entry(4.0, Change.DEFER),
    ]

    assert [f"cut {EAST} {WEST}", f"full disk {EAST}", "receivers defer"] == in_force(happened)
    assert [f"full disk {EAST}"] == in_force([*happened, Entry(5.0, Change.HEAL), Entry(6.0, Change.TAKE)])


def test_what_was_written_is_read_back_in_order_of_time(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "faults.jsonl")
    later, earlier = Entry(2.0, Change.CUT, EAST, WEST), Entry(1.0, Change.KILL, EAST)
    assert [] == log.read()

    log.append(later)
    log.append(earlier)

    assert [earlier, later] == log.read()
