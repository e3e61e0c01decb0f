"""Flights as the loops see them: what happens to one message in which order, and what may not. docs/design.md 6.2."""

from functools import partial

from shadowrelay.model.ids import MessageId
from shadowrelay.pipeline.flights import Flights
from shadowrelay.rules import flight

ONE, TWO = MessageId("one"), MessageId("two")


def test_a_claim_cannot_end_while_an_attempt_runs() -> None:
    flights = Flights()
    assert flights.happens(ONE, flight.reserve)

    assert not flights.happens(ONE, flight.end_claim)
    flights.happens(ONE, flight.release)
    assert flights.happens(ONE, flight.end_claim)


def test_no_attempt_begins_on_a_claim_whose_end_is_not_committed_however_often_it_is_read() -> None:
    flights = Flights()
    flights.happens(ONE, flight.end_claim)

    flights.begin_read()
    flights.begin_read()

    assert not flights.happens(ONE, flight.reserve)


def test_no_attempt_begins_on_a_claim_that_was_read_before_its_end_was_committed() -> None:
    flights = Flights()
    flights.happens(ONE, flight.end_claim)
    flights.begin_read()

    flights.happens(ONE, flight.settle_claim)

    assert not flights.happens(ONE, flight.reserve)
    flights.begin_read()
    assert flights.happens(ONE, flight.reserve)


def test_a_fork_that_only_waits_for_a_session_hinders_no_claim_from_ending_and_is_not_started_after_that() -> None:
    flights = Flights()
    assert flights.happens(ONE, flight.load, "a:25")

    assert flights.happens(ONE, flight.end_claim)
    assert not flights.happens(ONE, flight.start, "a:25")


def test_a_fork_that_waits_is_not_started_as_it_was_before_its_message_changed() -> None:
    for change in (flight.change, partial(flight.call_off, done=frozenset({1})), flight.reserve):
        flights = Flights()
        flights.happens(ONE, flight.load, "a:25")

        flights.happens(ONE, change)

        assert not flights.happens(ONE, flight.start, "a:25")


def test_a_fork_is_not_loaded_as_it_was_read_before_its_message_changed() -> None:
    flights = Flights()
    flights.begin_read()

    flights.happens(ONE, flight.change)

    waits = [flights.happens(ONE, flight.load, "a:25"), flights.happens(TWO, flight.load, "a:25")]
    flights.begin_read()
    assert [False, True, True] == [*waits, flights.happens(ONE, flight.load, "a:25")]


def test_whoever_accepts_a_message_loads_it_although_its_copy_was_listed_meanwhile() -> None:
    flights = Flights()
    flights.happens(ONE, flight.reserve)

    flights.happens(ONE, flight.change)

    assert flights.happens(ONE, flight.load, "a:25")


def test_the_forks_of_a_message_run_beside_each_other_but_each_once() -> None:
    flights = Flights()
    assert flights.happens(ONE, flight.load, "a:25")
    assert flights.happens(ONE, flight.start, "a:25")

    assert not flights.happens(ONE, flight.load, "a:25")
    assert flights.happens(ONE, flight.load, "b:25")
    assert flights.happens(ONE, flight.start, "b:25")
    assert not flights.happens(ONE, flight.reserve)
    flights.happens(ONE, flight.end, "a:25")
    assert not flights.happens(ONE, flight.end_claim)
    flights.happens(ONE, flight.end, "b:25")
    assert flights.happens(ONE, flight.end_claim)


def test_a_fork_whose_attempt_ended_waits_for_the_next_read() -> None:
    flights = Flights()
    assert flights.happens(ONE, flight.load, "a:25")
    assert flights.happens(ONE, flight.start, "a:25")
    flights.happens(ONE, flight.end, "a:25")

    waits = [flights.happens(ONE, flight.load, "a:25"), flights.happens(ONE, flight.load, "b:25")]
    flights.begin_read()

    assert [False, True, True] == [*waits, flights.happens(ONE, flight.load, "a:25")]


def test_after_an_attempt_only_a_later_read_begins_another() -> None:
    flights = Flights()
    flights.happens(ONE, flight.reserve)
    flights.happens(ONE, flight.release)
    begun = [flights.happens(ONE, flight.reserve)]
    flights.begin_read()
    begun.append(flights.happens(ONE, flight.reserve))

    assert [False, True] == begun


def test_what_ended_during_a_read_waits_for_the_next() -> None:
    flights = Flights()
    flights.happens(ONE, flight.reserve)
    flights.begin_read()
    flights.happens(ONE, flight.release)

    assert not flights.happens(ONE, flight.reserve)


def test_a_message_that_nothing_happens_to_is_not_in_memory() -> None:
    flights = Flights()
    for event in (flight.reserve, flight.begin_copy, flight.release, flight.end_copy):
        flights.happens(ONE, event)
    assert [ONE] == list(flights)

    flights.begin_read()

    assert {} == flights


def test_a_copy_that_is_made_is_told_from_the_others() -> None:
    flights = Flights()
    flights.happens(ONE, flight.begin_copy)
    flights.happens(TWO, flight.reserve)

    assert {ONE} == flights.copying([ONE, TWO, MessageId("three")])
    assert 1 == flights.busy_count()
    flights.happens(ONE, flight.end_copy)
    assert set() == flights.copying([ONE, TWO])
