"""In place of `NodeClient`, what a test has its nodes answer."""

from collections.abc import Sequence
from typing import Any, Self, TypeVar

import pytest

from shadowrelay.admin import api_client

TOKEN = "a-token-of-sixteen-or-more"
Client = TypeVar("Client")


class PlayedClient:
    """A connection to a node. A subclass answers what commands ask."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def node(self) -> dict[str, Any]:
        return {"name": "played.example"}

    def if_lost(self, servers: Sequence[str], ids_max: int = 0) -> dict[str, Any]:
        raise api_client.NodeError("no such path", 404)  # of a node of an older version


def play(monkeypatch: pytest.MonkeyPatch, client: Client) -> Client:
    """Commands call this where they call `NodeClient`, with a URL and the token."""
    monkeypatch.setattr(api_client, "NodeClient", client)
    monkeypatch.setenv("SHADOWRELAY_ADMIN_TOKEN", TOKEN)
    return client
