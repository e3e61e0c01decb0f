"""The table of events in the head of `shadowrelay.rules.flight`: every cell is tried with every flight that can come about."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial

import pytest

from shadowrelay.model.ids import MessageId
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.pipeline.flights import Flights
from shadowrelay.rules import flight
from shadowrelay.rules.flight import NO_FLIGHT, ClaimEnd, Flight, Phase, Stage

NEXT_HOPS = ("a:25", "b:25")
EVENTS: dict[str, list[Callable[[Flight], flight.Answer]]] = {
    **{
        name: [getattr(flight, name)] for name in ("release", "change", "end_claim", "settle_claim", "begin_read", "begin_copy", "end_copy")
    },
    **{name: [partial(getattr(flight, name), next_hop=next_hop) for next_hop in NEXT_HOPS] for name in ("load", "start", "end")},
    "reserve": [flight.reserve, partial(flight.reserve, is_copying=True)],
    "call_off": [partial(flight.call_off, done=frozenset({ordinal})) for ordinal in (1, 2)],
}


def table() -> dict[tuple[str, Phase], str]:
    """(event, phase) -> cell, as the document says."""
    lines = [line for line in (flight.__doc__ or "").splitlines() if line.startswith("| `")]
    cells = {}
    for line in lines:
        event, *row = (cell.strip().replace("`", "") for cell in line.strip("|").split("|"))
        cells |= {(event, phase): cell for phase, cell in zip(Phase, row, strict=True)}
    return cells


def key(of: Flight) -> tuple[object, ...]:
    return tuple(
        tuple(sorted((name, stage.value) for name, stage in of.forks.items())) if field == "forks" else getattr(of, field)
        for field in Flight.__struct_fields__
    )  # type: ignore[attr-defined]


@cache
def steps() -> dict[tuple[str, Phase], list[tuple[Flight, flight.Answer | None]]]:
    """What each event makes of each flight that can come about; None: it is illegal."""
    found: dict[tuple[str, Phase], list[tuple[Flight, flight.Answer | None]]] = defaultdict(list)
    seen, left = {key(NO_FLIGHT)}, [NO_FLIGHT]
    while left:
        before = left.pop()
        for name, events in EVENTS.items():
            for event in events:
                try:
                    answer = event(before)
                except IllegalTransition:
                    found[name, before.phase].append((before, None))
                    continue
                found[name, before.phase].append((before, answer))
                if (of := key(answer[0])) not in seen:
                    seen.add(of)
                    left.append(answer[0])
    return found


def test_the_table_has_every_event_and_every_phase() -> None:
    assert {(event, phase) for event in EVENTS for phase in Phase} == set(table()) == set(steps())


@pytest.mark.parametrize(("event", "phase"), table(), ids=lambda each: getattr(each, "value", each))
def test_an_event_does_what_its_cell_says(event: str, phase: Phase) -> None:
    cell, played = table()[event, phase], [(before, answer) for before, answer in steps()[event, phase] if answer is not None]

    assert played
    refused = [(before, after) for before, (after, may) in played if not may]
    assert [before for before, _ in refused] == [after for _, after in refused if event != "begin_copy" or after.is_copying]
    reached = {after.phase for _, (after, may) in played if may}
    wanted = {"no": set(), "same": {phase}}.get(cell) or (
        {phase, Phase.FREE} if cell == "or free" else set() if cell == "no" else {Phase(cell)}
    )
    assert wanted == reached


def test_only_a_fork_that_is_not_loaded_makes_an_event_illegal() -> None:
    for (event, _), played in steps().items():
        for before, answer in played:
            if answer is None:
                assert event in ("start", "end")
                assert any(before.forks.get(next_hop) in (None, Stage.RUNNING) for next_hop in NEXT_HOPS)


def test_an_attempt_and_the_end_of_a_claim_exclude_each_other_in_every_flight() -> None:
    flights = [before for played in steps().values() for before, _ in played]

    assert len({key(each) for each in flights}) > 500
    for each in flights:
        assert each.running_count == sum(stage is Stage.RUNNING for stage in each.forks.values())
        assert not (each.claim_end is not ClaimEnd.NO and (each.is_reserved or each.running_count))
        assert not (each.is_reserved and each.running_count)
        assert each.called_off is None or each.is_reserved or each.running_count
        assert each.claim_end is ClaimEnd.NO or Stage.WAITING not in each.forks.values()


def test_a_read_changes_all_flights_as_the_event_says() -> None:
    every = {key(before): before for played in steps().values() for before, _ in played}
    flights = Flights()
    for number, each in enumerate(every.values()):
        flights.happens(MessageId(str(number)), lambda _, each=each: (each, True))

    flights.begin_read()

    assert [key(flight.begin_read(each)[0]) for each in every.values()] == [
        key(flights[MessageId(str(number))]) for number in range(len(every))
    ]
    assert NO_FLIGHT not in flights.values()


def test_an_illegal_event_raises_and_changes_nothing() -> None:
    loaded, _ = flight.load(NO_FLIGHT, "a:25")
    before = key(loaded)

    for event in (flight.start, flight.end):
        with pytest.raises(IllegalTransition, match="b:25"):
            event(loaded, "b:25")

    assert before == key(loaded)


def test_a_flight_says_in_words_what_it_waits_for() -> None:
    waiting, _ = flight.load(NO_FLIGHT, "a:25")
    running, _ = flight.start(waiting, "a:25")
    copying, _ = flight.begin_copy(running)

    assert ["", "a:25 waits for a session", "a:25 is being delivered; a copy is being made"] == [
        each.text for each in (NO_FLIGHT, waiting, copying)
    ]
