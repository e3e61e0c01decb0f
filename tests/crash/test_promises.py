"""A repetition behind an edge has its cause from what became of the edge: docs/design.md 6.7, Relaying."""

from dataclasses import replace

import pytest

from shadowrelay.lab.account import Account, Cause, Duplicate, Fault, FaultKind
from shadowrelay.lab.traffic import Arrival, Sent
from tests.crash.evidence import Line
from tests.crash.layout import Layout
from tests.crash.promises import with_causes_of_edges

EDGE, HUB, OTHER_HUB = "edge1.dmz.example", "hub1.east.example", "hub1.west.example"
CHAIN = Layout("an edge and two hubs", (EDGE, HUB, OTHER_HUB), entrances=(EDGE,))
ONE = "user1@corp.example"
RELAYED = Line(100.0, EDGE, "SEND", "id-1", (ONE,), "")
ARRIVED = Arrival(140.0, ONE, "id-1", "<1@client.example>", HUB, is_promoted=False, own_sha256="digest")


@pytest.mark.parametrize(
    ("power_lost_at", "cause"),
    [(100.1, Cause.DIED_BEFORE_RECORD), (105.0, Cause.NONE)],
    ids=["between the row and its commit", "long after it"],
)
def test_an_edge_that_relays_again_is_excused_only_if_it_lost_power_right_after_it_had_relayed(power_lost_at: float, cause: Cause) -> None:
    result = Account(duplicates=[Duplicate(1, "id-1", 2, Cause.NONE, ONE)])
    arrivals = [ARRIVED, replace(ARRIVED, at=140.5, client_name=OTHER_HUB)]
    lost = Fault(FaultKind.KILL, EDGE, power_lost_at, power_lost_at + 10.0)
    rows = [RELAYED, replace(RELAYED, at=power_lost_at + 12.0)]

    with_causes_of_edges(result, CHAIN, [Sent(1, "<1@client.example>", (ONE,), "digest", [])], arrivals, [lost], rows)

    assert [cause] == [one.cause for one in result.duplicates]


@pytest.mark.parametrize(
    ("power_lost_at", "cause"),
    [(99.9, Cause.DIED_BEFORE_RECORD), (90.0, Cause.NONE), (125.0, Cause.NONE)],
    ids=["before it heard the reply", "long before", "after it had relayed again"],
)
def test_an_edge_that_lost_power_before_it_heard_that_a_hub_has_its_message_relays_it_to_another_one(
    power_lost_at: float, cause: Cause
) -> None:
    result = Account(duplicates=[Duplicate(1, "id-1", 2, Cause.NONE, ONE)])
    arrivals = [ARRIVED, replace(ARRIVED, at=142.5, client_name=OTHER_HUB)]
    lost = Fault(FaultKind.KILL, EDGE, power_lost_at, power_lost_at + 10.0)
    came = Line(
        100.0, HUB, "RECEIVE", "id-at-hub", (ONE,), f"S:Replication=Success;S:ShadowAt={EDGE}", internet_message_id="<1@client.example>"
    )
    rows = [came, replace(came, at=120.0, node=OTHER_HUB, message_id="id-at-other"), replace(RELAYED, at=120.1)]

    with_causes_of_edges(result, CHAIN, [Sent(1, "<1@client.example>", (ONE,), "digest", [])], arrivals, [lost], rows)

    assert [cause] == [one.cause for one in result.duplicates]


@pytest.mark.parametrize(("status", "cause"), [("451 4.4.2 it is lost", Cause.DIED_BEFORE_RECORD), ("451 4.3.2 not now", Cause.NONE)])
def test_an_edge_that_took_a_message_back_and_had_no_reply_to_it_from_the_next_hub_is_the_cause(status: str, cause: Cause) -> None:
    result = Account(duplicates=[Duplicate(1, "id-1", 2, Cause.NONE, ONE)])
    arrivals = [ARRIVED, replace(ARRIVED, at=140.5, client_name=OTHER_HUB)]
    taken_back = Line(120.0, EDGE, "DEFER", "id-at-hub", (ONE,), "", status, internet_message_id="<1@client.example>")

    with_causes_of_edges(result, CHAIN, [Sent(1, "<1@client.example>", (ONE,), "digest", [])], arrivals, [], [RELAYED, taken_back])

    assert [cause] == [one.cause for one in result.duplicates]
