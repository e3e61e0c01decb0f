"""What a node finds when it opens its database stands in its operator log."""

from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, Place
from shadowrelay.model.routing import HostPort
from tests.kit.node_log import operator_events

pytestmark = pytest.mark.slow


async def test_a_damaged_database_is_set_aside_and_said(tmp_path: Path) -> None:
    async with Cluster((Place("a.east.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (node,) = cluster.nodes.values()
        await node.kill()
        (database,) = node.directory.rglob("queue.db")
        for path in database.parent.glob("queue.db*"):
            path.write_bytes(b"this is no database " * 500)
        await node.start()  # until it greets; what it found was said before that

        notes = [line for line in operator_events(node) if line["event"] == "database.note"]

    assert [("warning", True)] == [(line["level"], line["text"].startswith("queue.db is damaged")) for line in notes]
