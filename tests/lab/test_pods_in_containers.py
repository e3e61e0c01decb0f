"""Containers that move like the pods of a StatefulSet, of the image that an operator runs. docs/setup.md "In Kubernetes".

`tests/process/test_pods.py` asks more of the same; here a node comes back with another address of Docker's network.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.docker import (
    CONFIG,
    STORE,
    a_store,
    arrivals,
    held,
    nodes_in_containers,
    run,
    said,
    takes_mail,
    until,
    until_redundant,
    wipe,
)

pytestmark = [pytest.mark.heavy, pytest.mark.lab, pytest.mark.timeout(1200)]

NAMES = tuple(f"mail-{number}.mail-nodes.example" for number in range(3))
OPTIONS = ("--accept", "corp.example", "--next-hop", f"{STORE}:2600")
COUNT = 20
# Sends one message after the other until there is a file "stop", each to the next server, and to another one if that does not take it.
SEND = """
import os, smtplib, sys, time
servers, count, number = sys.argv[2:], int(sys.argv[1]), 0
while number < count and not os.path.exists("/tmp/stop"):
    text = f"Message-ID: <{number}@x>\\r\\nSubject: x\\r\\n\\r\\nHello\\r\\n"
    for server in [*servers[number % len(servers):], *servers[:number % len(servers)]]:
        try:
            with smtplib.SMTP(server, 2525, timeout=30) as client:
                client.sendmail("a@example.org", [f"u{number}@corp.example"], text)
            break
        except (OSError, smtplib.SMTPException):
            pass
    else:
        open("/tmp/refused", "a").write(f"{number}\\n")
    number += 1
    open("/tmp/sent", "w").write(str(number))
    time.sleep(0.1)
"""


def with_short_times(text: str) -> str:
    """What `init` wrote; nothing is taken over for silence."""
    return text.replace("[transport]\n", '[transport]\nshadow_heartbeat_frequency = "2s"\nshadow_resubmit_time_span = "10m"\n')


def address(container: str, network: str) -> str:
    return run("docker", "inspect", "--format", f'{{{{(index .NetworkSettings.Networks "{network}").IPAddress}}}}', container).strip()


def comes_back_elsewhere(name: str, container: str, network: str, guest: str) -> None:
    """`guest` gets its address meanwhile."""
    before = address(container, network)
    run("docker", "network", "disconnect", network, container)
    run("docker", "network", "connect", network, guest)
    run("docker", "network", "connect", "--alias", name, network, container)
    run("docker", "start", container)
    run("docker", "network", "disconnect", network, guest)
    assert before != address(container, network)


@contextlib.contextmanager
def a_guest(network: str) -> Iterator[str]:
    """A container that takes whatever address is free."""
    name = f"{network}-guest"
    run("docker", "run", "--detach", "--name", name, "--entrypoint", "sleep", "shadowrelay-relay", "3600")
    try:
        yield name
    finally:
        run("docker", "rm", "--force", "--volumes", name)


def text_of(store: str, file: str) -> str:
    return run("docker", "exec", store, "sh", "-c", f"cat {file} 2>/dev/null || true").strip()


def until_all_is_delivered(nodes: list[str]) -> None:
    until(lambda: not any(held(one, kind) for one in nodes for kind in ("Delivery", "Shadow")), "mail is left")


@pytest.mark.parametrize("is_empty", [False, True], ids=["with its volume", "with an empty volume"])
def test_a_pod_comes_back_with_another_address_and_its_mail_is_delivered_once(tmp_path: Path, is_empty: bool) -> None:
    with (
        nodes_in_containers(tmp_path, dict.fromkeys(NAMES, "cluster"), OPTIONS, with_short_times) as (node, network),
        a_store(network) as store,
        a_guest(network) as guest,
    ):
        moved = node[NAMES[0]]
        until_redundant(*node.values())
        run("docker", "exec", store, "python3", "-c", SEND, str(COUNT), NAMES[0])
        assert COUNT == held(moved, "Delivery")

        run("docker", "kill", moved)
        if is_empty:
            wipe(moved)
        comes_back_elsewhere(NAMES[0], moved, network, guest)
        until_redundant(*node.values())
        takes_mail(store)
        until_all_is_delivered(list(node.values()))
        refused, arrived = text_of(store, "/tmp/refused"), arrivals(store)

    assert "" == refused
    assert {f"u{number}@corp.example": 1 for number in range(COUNT)} == Counter(recipient for _, recipient in arrived)
    assert is_empty == (NAMES[0] not in {server for server, _ in arrived})


def test_a_rolling_update_of_pods_that_move_loses_doubles_and_refuses_nothing_in_containers(tmp_path: Path) -> None:
    """As preStop and postStart of configs/kubernetes/shadowrelay.yaml do it."""
    with (
        nodes_in_containers(tmp_path, dict.fromkeys(NAMES, "cluster"), OPTIONS, with_short_times) as (node, network),
        a_store(network) as store,
        a_guest(network) as guest,
    ):
        takes_mail(store)
        until_redundant(*node.values())
        run("docker", "exec", "--detach", store, "python3", "-c", SEND, "100000", *NAMES)
        for name, container in node.items():
            sent = int(text_of(store, "/tmp/sent") or 0)
            until(lambda before=sent: int(text_of(store, "/tmp/sent") or 0) > before + COUNT, "no mail flows")  # type: ignore[misc]
            run("docker", "exec", container, "shadowrelay", "drain", "--patience", "60", *CONFIG, codes=(0, 1))
            run("docker", "stop", container)
            comes_back_elsewhere(name, container, network, guest)
            until(lambda one=container: "active" == said(one, "undrain", codes=(0, 1, 4)).get("state"), "it drains")  # type: ignore[misc]
            until_redundant(*node.values())
        run("docker", "exec", store, "touch", "/tmp/stop")
        until_all_is_delivered(list(node.values()))
        sent, refused, arrived = int(text_of(store, "/tmp/sent")), text_of(store, "/tmp/refused"), arrivals(store)

    assert "" == refused
    assert {f"u{number}@corp.example": 1 for number in range(sent)} == Counter(recipient for _, recipient in arrived)
