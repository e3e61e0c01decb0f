"""What the ring explores: one message on three or four nodes, as one value.

Claims are the very values of `model.ownership`, kept in a table so that a state holds small numbers and hashes fast.
Time is abstract: a lease is a bit that may fall only while its holder cannot be reached.
"""

from enum import IntEnum
from typing import Any, NamedTuple

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId, ServerName
from shadowrelay.model.ownership import Claim, CopyNumber, DiscardStatus, Role
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims
from shadowrelay.ownership.rules import PeerDatabase

SERVERS = tuple(ServerName(f"node-{node}") for node in range(4))
WIDTH = len(SERVERS)  # of the masks and of `State.told`, however many nodes there are
ALL = (1 << WIDTH) - 1
PLACEMENTS_MAX, CHOICES_MAX, OWNERS_MAX = 3, 9, 4  # bounds of the exploration

OVER = (Role.DELIVERED, Role.RELEASED)


class ClientHeard(IntEnum):
    """What the client of node 0 was told."""

    WAITS = 0  # `is_relayed`: node 1 has the message, and has not recorded yet that it relayed it
    ACKNOWLEDGED = 1
    REFUSED = 2
    UNANSWERED = 3  # node 0 died first: the message counts as accepted there, and nothing was promised


class Attempt(IntEnum):
    IDLE = 0
    STARTED = 1
    ARRIVED = 2  # the next hop has it, but nothing is recorded


class Told(NamedTuple):
    """The discard notifications of one node for another that are not yet acknowledged, and how many were heard."""

    statuses: tuple[DiscardStatus, ...] = ()
    heard: int = 0

    def with_news(self, status: DiscardStatus) -> "Told":
        """What is not heard yet is heard at once: of equal ones the first counts, and `promoted` counts only as the last."""
        statuses = self.statuses
        if len(statuses) > self.heard and statuses[-1] is DiscardStatus.PROMOTED:
            statuses = statuses[:-1]
        if len(statuses) > self.heard and statuses[-1] is status:
            return Told(statuses, self.heard)
        return Told((*statuses, status), self.heard)

    def releases(self) -> "Told":
        """What matters to who knows that all is done: that it acknowledges each `released`."""
        released = [status is DiscardStatus.RELEASED for status in self.statuses]
        return Told((DiscardStatus.RELEASED,) * sum(released), sum(released[: self.heard]))


class Backup(NamedTuple):
    """A copy of one node's disk: its claim, what it has to tell, and to which databases."""

    node: int
    claim: int
    told: tuple[Told, ...]
    generation: tuple[int, ...]


class State(NamedTuple):
    up: tuple[bool, ...]
    generation: tuple[int, ...]  # of each node's queue database
    claims: tuple[int, ...]  # keys of `Claims`
    leases: int  # bit `lease_bit(n, t)`: the lease of primary n on server t runs
    attempt: tuple[Attempt, ...]
    told: tuple[Told, ...]  # place WIDTH * speaker + asker
    client: ClientHeard
    arrived: int  # copies that the recipient got
    excused: bool  # a documented cause of a duplicate has happened
    cut: int  # bit `pair_bit(a, b)`: these two cannot reach each other
    late: int  # budgets left
    crashes: int
    disks: int
    hands: int
    restores: int
    unnoticed: int
    parts: int
    backup: Backup | None
    asked_older: int  # bit `lease_bit(n, t)`: node n has asked t about a claim of the older copy
    alone: int  # bit t: t runs on an older disk that nobody noticed, with a claim that lists nobody
    waited: int  # bit t: t has waited for another server, and kept the answers that it had before. Only without rule *wait*


class Budget(NamedTuple):
    """How many faults may happen: late replies, crashes and cuts of two, destroyed disks, hand-overs, older copies of any node's database
    that are put back; `unnoticed`: and that no peer recognises by a position; `parts`: times that no node reaches any other, until they
    are joined in any order. And of which world: how many nodes, and how many copies they want; `is_relayed`: node 1 relays the message to
    node 0 by TRACK, and keeps the shadow; `is_relayed_twice`: then node 2 does so too, because it has taken over what node 1 relayed;
    `has_witness`: nodes 0 and 1 are on one machine, whose disks are destroyed together, and node 2 is the witness, on another one."""

    late: int = 0
    crashes: int = 0
    disks: int = 0
    hands: int = 0
    restores: int = 0
    nodes: int = 3
    wanted: int = 1
    is_relayed: bool = False
    is_relayed_twice: bool = False
    unnoticed: int = 0
    parts: int = 0
    has_witness: bool = False


class Claims:
    """Claims as numbers and back; 0 is `None`."""

    def __init__(self) -> None:
        self._keys: dict[Claim | None, int] = {None: 0}
        self._values: list[Claim | None] = [None]

    def key(self, claim: Claim | None) -> int:
        """States are one that differ only in what nobody reads: the placement of a claim that is over, or the order of a list."""
        if claim is not None and len(claim.copies) > 1:
            claim = replace(claim, copies=tuple(sorted(claim.copies, key=lambda copy: copy.server)))
        if claim is not None and claim.role in OVER:
            claim = replace(claim, number=CopyNumber(claim.number.ownership, 0, NO_DATABASE), primary=NO_SERVER, database=NO_DATABASE)
        key = self._keys.get(claim)
        if key is None:
            key = self._keys[claim] = len(self._values)
            self._values.append(claim)
        return key

    def __getitem__(self, key: int) -> Claim | None:
        return self._values[key]


ONE_MACHINE = frozenset({0, 1})  # with a witness


def database(node: int, generation: int) -> DatabaseId:
    """Ordered by node, so that numbers of different primaries compare as in the reference model."""
    return DatabaseId(f"{node}{'abcdefgh'[generation]}")


def party(node: int, generation: int) -> PeerDatabase:
    return PeerDatabase(SERVERS[node], database(node, generation))


def owner(database_id: DatabaseId) -> ServerName:
    """Whose database that is: `Ledger.server_of`."""
    return SERVERS[int(database_id[0])]


def lease_bit(node: int, server: int) -> int:
    return 1 << (WIDTH * node + server)


def pair_bit(a: int, b: int) -> int:
    return lease_bit(min(a, b), max(a, b))


def put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def first_state(known: Claims, budget: Budget) -> State:
    """Node 0 has taken the message and named no server yet; or node 1 has it, and node 0 has not."""
    accepted = 0 if budget.is_relayed else known.key(claims.first_claim(party(0, 0), 1, wanted=budget.wanted))
    return State(
        up=(True,) * budget.nodes,
        generation=(0,) * budget.nodes,
        claims=(accepted, *(0,) * (budget.nodes - 1)),
        leases=0,
        attempt=(Attempt.IDLE,) * budget.nodes,
        told=(Told(),) * WIDTH**2,
        client=ClientHeard.WAITS,
        arrived=0,
        excused=False,
        cut=0,
        late=budget.late,
        crashes=budget.crashes,
        disks=budget.disks,
        hands=budget.hands,
        restores=budget.restores,
        unnoticed=budget.unnoticed,
        parts=budget.parts,
        backup=None,
        asked_older=0,
        alone=0,
        waited=0,
    )
