"""Two gateways in reject mode and the witness of `init --witness`, each in a container of its own. docs/reference.md "A witness"."""

from collections import Counter
from pathlib import Path

import pytest

from tests.lab.docker import STORE, a_store, arrivals, held, nodes_in_containers, run, said, say, takes_mail, until, until_redundant, wipe

pytestmark = [pytest.mark.heavy, pytest.mark.lab, pytest.mark.timeout(900)]

EAST, WEST, WITNESS = "mx1.east.example", "mx1.west.example", "w1.south.example"
COUNT = 20
SEND = f"""
import smtplib
client = smtplib.SMTP("{EAST}", 2525)
for number in range({COUNT}):
    client.sendmail("a@example.org", [f"u{{number}}@corp.example"], f"Message-ID: <{{number}}@x>\\r\\nSubject: x\\r\\n\\r\\nHello\\r\\n")
"""


def with_short_times(text: str) -> str:
    """What `init` wrote, with a takeover after seconds."""
    return text.replace("[transport]\n", '[transport]\nshadow_heartbeat_frequency = "2s"\nshadow_resubmit_time_span = "10s"\n')


def test_a_witness_keeps_mail_flowing_while_a_gateway_is_away_and_delivers_what_the_other_one_burns_with(tmp_path: Path) -> None:
    options = ("--accept", "corp.example", "--next-hop", f"{STORE}:2600")
    gateways, witnesses = {EAST: "east", WEST: "west"}, {WITNESS: "south"}
    with nodes_in_containers(tmp_path, gateways, options, with_short_times, witnesses) as (node, network), a_store(network) as store:
        until_redundant(node[EAST], node[WEST])
        (own,) = [each for each in said(node[WITNESS], "status", codes=(0, 1, 4))["nodes"] if each["name"] == WITNESS]
        assert own["is_witness"]

        run("docker", "stop", node[WEST])
        until_redundant(node[EAST])
        run("docker", "exec", store, "python3", "-c", SEND)  # raises if a message is refused
        say(f"{COUNT} messages are acknowledged while {WEST} is away")
        assert (COUNT, COUNT) == (held(node[EAST], "Delivery"), held(node[WITNESS], "Shadow"))

        run("docker", "kill", node[EAST])
        wipe(node[EAST])
        takes_mail(store)
        until(lambda: len(arrivals(store)) >= COUNT, "the witness has not delivered")
        for name in gateways:
            run("docker", "start", node[name])
        until_redundant(node[EAST], node[WEST])
        until(lambda: not any(held(one, kind) for one in node.values() for kind in ("Delivery", "Shadow")), "mail is left")
        arrived = arrivals(store)

    assert {WITNESS: COUNT} == Counter(server for server, _ in arrived)
    assert {f"u{number}@corp.example": 1 for number in range(COUNT)} == Counter(recipient for _, recipient in arrived)
