"""The lab for real: images, containers, real Postfix and Exim; a node is killed and wiped while mail flows and nobody takes it."""

from collections.abc import Callable

import pytest

from shadowrelay.lab.compose import Lab
from tests.lab.docker import IS_WANTED, say

MESSAGES = 300
RATE = 20.0


def during(lab: Lab, steps: dict[int, Callable[[], object]]) -> int:
    """Send, and take each step when so many messages have been given to Postfix. Returns how many it took."""
    with lab.mail.sending(MESSAGES, RATE) as injection:
        for one in injection:
            if one.number in steps:
                steps[one.number]()
        return sum(bool(one.queue_id) for one in injection.sent)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_node_destroyed_with_mail_on_it_costs_no_message(lab: Lab) -> None:
    lab.up()
    victims: list[str] = []

    def kill_busiest() -> None:
        victims.append(max(lab.status(), key=lambda one: one.to_deliver or 0).node)
        say(f"killing {victims[0]}")
        lab.kill(victims[0])

    taken = during(
        lab,
        {
            60: lambda: lab.defer(True),
            180: kill_busiest,
            220: lambda: lab.wipe(victims[0]),
            290: lambda: lab.defer(False),
        },
    )
    result = lab.verify(120, on_look=lambda seen: say(seen.line()))

    assert MESSAGES == taken
    assert (MESSAGES, MESSAGES) == (result.acknowledged, result.arrived)
    assert ([], [], [], []) == (result.lost, result.changed, result.still_queued, result.unexplained)
    assert result.taken_over > 0
    # with the Spark of this environment: the image with Spark alone takes half of the ten minutes that this test may take
    page = lab.report(is_here=True)
    say(f"report: {page}")
    assert "<html" in page.read_text(encoding="utf-8")[:2000]


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.skipif(IS_WANTED, reason="only in the whole heavy run: make test-lab is to be short")
def test_every_fault_can_be_made_and_ended(lab: Lab) -> None:
    lab.up()

    assert [("mx1.east", "mx1.west"), ("mx1.east", "mx2.west"), ("mx2.east", "mx1.west"), ("mx2.east", "mx2.west")] == lab.cut(
        "east", "west"
    )
    assert 4 == len(lab.faults_in_force())
    lab.heal()
    assert ["mx1.east", "mx2.east", "mx1.west", "mx2.west"] == lab.slow("east", "west")
    lab.heal()
    lab.pause("mx1.west")
    assert ["paused"] == [one.state for one in lab.status() if one.node == "mx1.west"]
    lab.unpause("mx1.west")
    assert 0 == lab.fill_disk("mx2.east")
    assert lab.free_disk("mx2.east") > 0
    lab.save_database("mx1.east")
    lab.restore_old_database("mx1.east")
    assert ["mx1.east", "mx2.east", "mx1.west", "mx2.west"] == lab.roll()
    assert [] == lab.faults_in_force()
    assert 20 == lab.mail.send(20).accepted
    assert lab.verify(60).is_good
