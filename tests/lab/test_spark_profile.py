"""The streaming job on a standalone master with two workers, all in containers: its page follows the mail, also when a worker is killed."""

import json
import time
from typing import Any

import pytest

from shadowrelay.lab.compose import Lab
from shadowrelay.lab.topology import LabError
from tests.lab.docker import say

MESSAGES = 40
KILLED = "spark-worker-1"
FOLLOWS_SECONDS_MAX = 600  # the first page: Spark is cold, and two cores carry a dozen containers


def watched(lab: Lab, acknowledged: int) -> dict[str, Any]:
    """The summary beside the page, as soon as it knows of so many messages."""
    deadline = time.monotonic() + FOLLOWS_SECONDS_MAX
    seen: object = "nothing"
    while time.monotonic() < deadline:
        try:
            summary = json.loads((lab.watched_report().parent / "summary.json").read_text(encoding="utf-8"))
        except LabError as exc:
            assert lab.engine.states()["sla-watch"] == "running", lab.engine.log_tail("sla-watch")
            seen = exc
        else:
            seen = summary["overall"]["messages_acknowledged"]
            if seen >= acknowledged:
                return summary
        say(f"the page knows of {seen}")
        time.sleep(5)
    raise AssertionError(f"of {acknowledged} messages the page knows of {seen}: {lab.engine.log_tail('sla-watch')}")


@pytest.mark.heavy
@pytest.mark.lab
@pytest.mark.timeout(3600)
def test_the_page_follows_the_mail(lab: Lab) -> None:
    lab.up(["spark"])
    assert MESSAGES == lab.mail.send(MESSAGES).accepted
    assert lab.verify(120).is_good
    first = watched(lab, MESSAGES)

    lab.engine.docker("kill", lab.engine.container(KILLED))
    lab.wipe("mx1.east")
    assert MESSAGES == lab.mail.send(MESSAGES).accepted
    assert lab.verify(120).is_good
    second = watched(lab, 2 * MESSAGES)

    overall = second["overall"]
    assert (2 * MESSAGES, 0, 0) == tuple(overall[key] for key in ("messages_acknowledged", "recipients_lost", "lines_quarantined"))
    assert {"mx1.east.example", "mx2.east.example", "mx1.west.example", "mx2.west.example"} >= {
        line["name"] for line in second["figures"] if line["scope"] == "server"
    }
    assert first["watch"]["rows"] < second["watch"]["rows"]
    assert {} == second["watch"]["failing"]
    assert ("exited", "running") == (lab.engine.states()[KILLED], lab.engine.states()["sla-watch"])
