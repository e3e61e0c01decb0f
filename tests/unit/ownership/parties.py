"""This node, two others, and how they stand on a list of copies."""

from shadowrelay.model.ids import DatabaseId, ServerName
from shadowrelay.model.ownership import Choice, Copy
from shadowrelay.ownership.rules import PeerDatabase

# equal ranks are decided by the database: ours is between the others
ME, ONE, TWO = (PeerDatabase(ServerName(name), DatabaseId(database)) for name, database in (("me", "db"), ("one", "da"), ("two", "dc")))


def entry(party: PeerDatabase, choice: Choice = Choice.LISTED, placement: int = 0) -> Copy:
    return Copy(party.server, party.database, choice, placement)
