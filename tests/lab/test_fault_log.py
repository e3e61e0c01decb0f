"""Commands as they were given become faults with a beginning and an end."""

import math
from pathlib import Path

from shadowrelay.lab.account import Fault, FaultKind
from shadowrelay.lab.fault_log import FaultLog, Happening, What, faults, in_force

EAST, WEST = "mx1.east.example", "mx1.west.example"


def test_a_killed_node_is_dead_until_it_is_started() -> None:
    assert [Fault(FaultKind.KILL, EAST, 10.0, 20.0)] == faults([Happening(10.0, What.KILL, EAST), Happening(20.0, What.START, EAST)])


def test_the_disk_of_a_dead_node_is_destroyed_from_its_death_on() -> None:
    happened = [Happening(10.0, What.KILL, EAST), Happening(15.0, What.WIPE, EAST), Happening(20.0, What.START, EAST)]

    assert [Fault(FaultKind.WIPE, EAST, 10.0, 20.0)] == faults(happened)


def test_a_node_that_ran_is_wiped_when_it_is_wiped() -> None:
    assert [Fault(FaultKind.WIPE, EAST, 15.0, 20.0)] == faults([Happening(15.0, What.WIPE, EAST), Happening(20.0, What.START, EAST)])


def test_who_dies_frozen_was_dead_since() -> None:
    frozen = [Happening(5.0, What.PAUSE, EAST), Happening(10.0, What.KILL, EAST)]

    assert [Fault(FaultKind.KILL, EAST, 5.0, 20.0)] == faults([*frozen, Happening(20.0, What.START, EAST)])
    assert [Fault(FaultKind.WIPE, EAST, 5.0, 20.0)] == faults(
        [*frozen, Happening(11.0, What.WIPE, EAST), Happening(20.0, What.START, EAST)]
    )
    assert [f"kill {EAST}"] == in_force(frozen)


def test_the_time_of_death_is_what_docker_tells_afterwards() -> None:
    told = [Happening(10.0, What.KILL, EAST), Happening(10.4, What.KILL, EAST), Happening(20.0, What.START, EAST)]

    assert [Fault(FaultKind.KILL, EAST, 10.4, 20.0)] == faults(told)


def test_to_heal_ends_all_cuts_and_nothing_else() -> None:
    happened = [Happening(1.0, What.CUT, EAST, WEST), Happening(2.0, What.PAUSE, EAST), Happening(3.0, What.HEAL)]

    assert [Fault(FaultKind.CUT, EAST, 1.0, 3.0, WEST), Fault(FaultKind.PAUSE, EAST, 2.0, math.inf)] == faults(happened)


def test_a_second_cut_of_the_same_pair_does_not_begin_again() -> None:
    assert [1.0] == [fault.began_at for fault in faults([Happening(1.0, What.CUT, EAST, WEST), Happening(2.0, What.CUT, EAST, WEST)])]


def test_to_stop_a_node_in_order_excuses_nothing() -> None:
    assert [] == faults([Happening(1.0, What.STOP, EAST), Happening(2.0, What.START, EAST)])


def test_a_full_disk_lasts_until_it_is_freed() -> None:
    happened = [
        Happening(1.0, What.FILL, EAST),
        Happening(2.0, What.FILL, EAST),
        Happening(3.0, What.FREE, EAST),
        Happening(4.0, What.FREE, EAST),
    ]

    assert [Fault(FaultKind.FULL, EAST, 1.0, 3.0)] == faults(happened)


def test_what_lasts_is_told_in_words() -> None:
    happened = [
        Happening(1.0, What.CUT, EAST, WEST),
        Happening(2.0, What.FILL, EAST),
        Happening(2.5, What.FILL, WEST),
        Happening(3.0, What.FREE, WEST),
        Happening(4.0, What.DEFER),
    ]

    assert [f"cut {EAST} {WEST}", f"full disk {EAST}", "receivers defer"] == in_force(happened)
    assert [f"full disk {EAST}"] == in_force([*happened, Happening(5.0, What.HEAL), Happening(6.0, What.TAKE)])


def test_what_was_written_is_read_back_in_order_of_time(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "faults.jsonl")
    later, earlier = Happening(2.0, What.CUT, EAST, WEST), Happening(1.0, What.KILL, EAST)
    assert [] == log.read()

    log.append(later)
    log.append(earlier)

    assert [earlier, later] == log.read()
