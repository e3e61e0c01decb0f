"""Nodes that run, not nodes that start."""

import time
from collections.abc import Sequence

from shadowrelay.admin.client import NodeClient
from shadowrelay.admin.token import read_token
from shadowrelay.lab.cluster import NodeProcess
from tests.kit.clock import PATIENCE_SECONDS


def wait_until_peers_know_each_other(nodes: Sequence[NodeProcess]) -> None:
    """Their kept sessions are open. Until then a message finds no shadow server, and is refused where that is wanted."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    for node in nodes:
        with NodeClient(f"http://{node.admin}", read_token(node.directory / "token")) as client:
            while not all(peer["heard_at"] and peer["database"] for peer in client.peers()):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{node.name} does not hear its peer")
                time.sleep(0.1)
