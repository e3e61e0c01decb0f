"""No two nodes have one name or one queue."""

import pytest

from shadowrelay.core.identity import conflict
from shadowrelay.core.ownership.values import Party
from shadowrelay.model.ids import NO_DATABASE, DatabaseId, ServerName

ME = Party(ServerName("mx1.example"), DatabaseId("1"))
PEER = Party(ServerName("mx2.example"), DatabaseId("2"))
OTHER = Party(ServerName("mx3.example"), DatabaseId("3"))


@pytest.mark.parametrize(
    ("peer", "said"),
    [
        (PEER, ""),
        (Party(PEER.server, DatabaseId("4")), ""),  # a new database of its own
        (Party(PEER.server, NO_DATABASE), ""),
        (Party(ME.server, DatabaseId("4")), "calls itself mx1.example"),
        (Party(ME.server, ME.database), "calls itself mx1.example"),
        (Party(PEER.server, ME.database), "this node's queue"),
        (Party(PEER.server, OTHER.database), "the queue of mx3.example"),
    ],
)
def test_a_peer_with_the_name_or_queue_of_another_node_is_in_conflict(peer: Party, said: str) -> None:
    reason = conflict(ME, peer, [PEER, OTHER])

    assert bool(said) is bool(reason)
    assert said in reason
