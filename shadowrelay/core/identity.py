"""Whether a peer can be who it says: no two nodes have the same name, and no two nodes the same queue.

A data directory that was copied to another machine, or a name that was given twice, makes two nodes that take each other's
messages for their own: questions are answered by the wrong one, and mail stands still on both. Neither can know which of them
is the copy, so that both refuse the other, and say so.
"""

from collections.abc import Iterable

from shadowrelay.core.ownership.values import Party
from shadowrelay.model.ids import NO_DATABASE


def conflict(me: Party, peer: Party, known: Iterable[Party]) -> str:
    """What contradicts `peer`; empty if nothing does. `known` are the configured peers in the databases that they showed last."""
    if peer.server == me.server:
        return f"it calls itself {me.server}, as this node does"
    if peer.database == NO_DATABASE:
        return ""
    if peer.database == me.database:
        return f"it has this node's queue (database {me.database}): a data directory was copied"
    for other in known:
        if other.server != peer.server and other.database == peer.database:
            return f"it has the queue of {other.server} (database {other.database}): a data directory was copied"
    return ""
