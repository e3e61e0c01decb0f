"""The next hop of nodes that are processes, and what several tests of them begin with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shadowrelay.lab.traffic import Sink
from shadowrelay.model.settings import Settings
from shadowrelay.node.node import Node
from shadowrelay.settings.configuration import LoadedSettings

TIMES_OF_CHAINS = {"shadow_heartbeat_timeout_interval": "2s", "shadow_heartbeat_retry_count": 3, "reject_message_on_shadow_failure": False}


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    opened = Sink()
    yield opened
    await opened.close()


def a_node(directory: Path, port: int = 0) -> Node:
    """With a peer that is not there, a target for its tracking log, and receivers on `port`."""
    settings = Settings.model_validate(
        {
            "server": {"name": "mx1.east.example", "site": "east", "boundary": "example", "data_directory": directory / "data"},
            "transport": {"discard_poll_interval": "10ms"},
            "tracking": {"directory": directory / "tracking"},
            "shipping": {"target": (directory / "shipped").as_uri()},
            "admin": {"listen": "127.0.0.1:0", "token_file": directory / "token"},
            "receive_connectors": [{"name": "inbound", "listen": f"127.0.0.1:{port}"}],
            "peers": [{"name": "mx1.west.example", "site": "west", "boundary": "example", "address": "127.0.0.1:9"}],
        }
    )
    return Node(LoadedSettings(directory / "node.toml", settings, {}))
