"""The five sites of Exchange's documents (seed-003), each node in a container of its own. docs/design.md 6.7 "Sites".

`tests/process/test_sites.py` asks more of the same; here names, certificates, images and volumes are those of an operator.
"""

import re
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.lab.docker import STORE, a_store, arrivals, held, nodes_in_containers, run, say, takes_mail, until, until_redundant, wipe

pytestmark = [pytest.mark.heavy, pytest.mark.lab, pytest.mark.timeout(900)]

SITES = {f"hub.{site}.example": site for site in ("chicago", "new-york", "london", "dublin", "atlanta")}
CHICAGO, NEW_YORK, LONDON, DUBLIN, ATLANTA = SITES
LINKS = (("chicago", "new-york"), ("atlanta", "new-york"), ("new-york", "london"), ("london", "dublin"))
COUNT = 30  # of them a third each to Dublin, to Atlanta, and to both
BY_SITE = 2 * COUNT // 3
SEND = f"""
import smtplib
client = smtplib.SMTP("{CHICAGO}", 2525)
for number in range({COUNT}):
    to = (["u%d@dublin.example"], ["u%d@atlanta.example"], ["u%d@dublin.example", "u%d@atlanta.example"])[number % 3]
    to = [each % number for each in to]
    client.sendmail("a@example.org", to, "Message-ID: <%d@x>\\r\\nSubject: x\\r\\n\\r\\nHello\\r\\n" % number)
"""


def configured(text: str) -> str:
    """What `init` wrote, with TRACK, short times, and the links and routes of all sites in place of its one route."""
    for connector in ("inbound", "peers"):  # by the second come clients of TRACK
        text = text.replace(f'name = "{connector}"\n', f'name = "{connector}"\nredundancy = "previous-hop"\n')
    times = 'shadow_heartbeat_frequency = "2s"\nshadow_heartbeat_timeout_interval = "2s"\nshadow_heartbeat_retry_count = 3\n'
    text = text.replace("[transport]\n", f"[transport]\n{times}")
    here, _, rest = text.partition("[[routes]]\n")
    tables = [
        f'[[routes]]\nrecipients = ["*@{site}.example"]\nsite = "{site}"\nnext_hop = "{STORE}:2600"\nredundancy = "previous-hop"\n'
        "inside_boundary = true\n"
        for site in ("dublin", "atlanta")
    ]
    tables += [f'[[site_links]]\nsites = ["{one}", "{other}"]\ncost = 10\n' for one, other in LINKS]
    tables += [f'[[sites]]\nname = "{site}"\nhub_site_enabled = true\n' for site in ("new-york", "london")]
    send = '[send]\nqueue_glitch_retry_interval = "1s"\ntransient_failure_retry_interval = "2s"\n'
    send += 'outbound_connection_failure_retry_interval = "2s"\n'
    return here + "\n".join([*tables, send]) + rest[rest.index("[tls]") - 1 :]


def sends(container: str) -> Counter[str]:
    """Messages sent, by the server that took them."""
    log = run("docker", "exec", container, "sh", "-c", "cat /var/log/shadowrelay/tracking/*.LOG")
    rows = [line.split(",") for line in log.splitlines() if not line.startswith("#")]
    return Counter(row[4] for row in rows if row[8] == "SEND")


def test_mail_of_chicago_goes_by_new_york_and_london_and_waits_for_a_site_that_burns(tmp_path: Path) -> None:
    options = ("--accept", "dublin.example", "--accept", "atlanta.example", "--next-hop", f"{STORE}:2600")
    with nodes_in_containers(tmp_path, SITES, options, configured) as (node, network), a_store(network) as store:
        until_redundant(*node.values())
        run("docker", "exec", store, "python3", "-c", SEND)
        say(f"{COUNT} messages are in Chicago")
        until(lambda: (held(node[DUBLIN], "Delivery"), held(node[ATLANTA], "Delivery")) == (BY_SITE, BY_SITE), "they have not come through")
        until(lambda: not held(node[CHICAGO], "Shadow"), "Chicago has not let go")
        until(lambda: held(node[NEW_YORK], "Shadow") == BY_SITE, "New York has not let go of what London handed on")
        kept = {name: held(node[name], "Shadow") for name in SITES}

        run("docker", "kill", node[DUBLIN])
        wipe(node[DUBLIN])
        takes_mail(store)
        time.sleep(10)  # longer than the time-out times the count
        run("docker", "start", node[DUBLIN])
        until(lambda: not any(held(container, kind) for container in node.values() for kind in ("Delivery", "Shadow")), "mail is left")
        arrived = arrivals(store)
        sent = {name: sends(node[name]) for name in (CHICAGO, NEW_YORK, LONDON)}

    assert {CHICAGO: 0, NEW_YORK: BY_SITE, LONDON: BY_SITE, DUBLIN: 0, ATLANTA: 0} == kept
    assert {CHICAGO: {NEW_YORK: COUNT}, NEW_YORK: {LONDON: BY_SITE, ATLANTA: BY_SITE}, LONDON: {DUBLIN: 2 * BY_SITE}} == sent
    assert {DUBLIN: BY_SITE, ATLANTA: BY_SITE} == Counter(server for server, _ in arrived)
    assert {1} == set(Counter(to for _, to in arrived).values())
    assert all(re.search(f"@{SITES[server]}", to) for server, to in arrived)
