"""Knows which peers share a fate with this node or with each other, as their sessions told. docs/design.md 6.15.

A peer of an older version names no machine. Its fate counts as another one, unless it is configured by an address of this machine.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from shadowrelay.model.fate import NO_MACHINE, NOT_SHARED, Fate, Shared, what_is_shared
from shadowrelay.model.ids import ServerName
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.setting_texts import is_loopback
from shadowrelay.model.values import replace

NO_SHARERS: Mapping[ServerName, Shared] = MappingProxyType({})


def fate_of(identity: PeerIdentity, host: str, mine: Fate, hosts: Iterable[str]) -> Fate:
    """The fate that a peer told. `host` is where it is configured, `hosts` are addresses of this machine."""
    told = Fate(identity.machine, identity.domains)
    is_here = told.machine == NO_MACHINE and (is_loopback(host) or host in hosts)
    return replace(told, machine=mine.machine) if is_here else told


class Fates:
    """`is_redundant`: copies on a shared fate count all the same (`shared_fate_is_redundant`).

    `counted`: with whom each peer shares its fate, as far as that keeps a copy on it from counting; only peers of which that is so."""

    def __init__(self, mine: Fate | None = None, *, is_redundant: bool = False) -> None:
        self.mine = mine or Fate()
        self.is_redundant = is_redundant
        self._known: dict[ServerName, Fate] = {}
        self._shared: dict[ServerName, Shared] = {}
        self.counted: Mapping[ServerName, Shared] = NO_SHARERS

    def count(self, *, is_redundant: bool) -> None:
        """The setting has changed."""
        self.is_redundant = is_redundant
        self.counted = NO_SHARERS if is_redundant else self._shared

    def learn(self, server: ServerName, fate: Fate) -> frozenset[ServerName]:
        """A session told the fate of a peer. Returns the peers with which something else is shared now."""
        if self._known.get(server) == fate:
            return frozenset()
        self._known[server] = fate
        before = self._shared
        self._compare()
        return frozenset([one for one in self._known if before.get(one, NOT_SHARED) != self._shared.get(one, NOT_SHARED)])

    def leave(self, server: ServerName) -> None:
        """It is no peer any more."""
        if self._known.pop(server, None) is not None:
            self._compare()

    def _compare(self) -> None:
        self._shared = {one: shared for one in self._known if (shared := self._of(one)) != NOT_SHARED}
        self.count(is_redundant=self.is_redundant)

    def _of(self, server: ServerName) -> Shared:
        fate = self._known[server]
        others = [other for other, its in self._known.items() if other != server and what_is_shared(fate, its)]
        return Shared(bool(what_is_shared(self.mine, fate)), frozenset(others))

    def told(self, server: ServerName) -> Fate:
        """The fate of a peer; an empty one if it has not told."""
        return self._known.get(server, Fate())

    def in_words(self, server: ServerName) -> str:
        """What this peer shares with this node, whatever the settings say of it: "machine", "rack7"; empty if nothing is known."""
        return ", ".join(what_is_shared(self.mine, self.told(server)))

    def what_keeps(self, server: ServerName) -> str:
        """What keeps a copy on this peer from counting, for a row: what it shares with this node, or the peers that share its fate."""
        return self.in_words(server).replace(", ", "|") or "|".join(sorted(self.counted.get(server, NOT_SHARED).others))

    @property
    def sharers(self) -> tuple[ServerName, ...]:
        """The peers that share the fate of this node or of another peer."""
        return tuple(self._shared)

    @property
    def own_sharers(self) -> tuple[ServerName, ...]:
        """The peers that share the fate of this node."""
        return tuple([server for server, shared in self._shared.items() if shared.is_own])
