"""The machines of an episode: their sites, who takes the mail of clients, how many copies there are, and by what peers know each other."""

from dataclasses import dataclass

from shadowrelay.lab.cluster import Place

FOUR = ("mx1.east.example", "mx2.east.example", "mx1.west.example", "mx2.west.example")
SIX = (*FOUR, "mx1.north.example", "mx2.north.example")
EDGES = ("edge1.dmz.example", "edge2.dmz.example")
HUBS = ("hub1.east.example", "hub1.west.example", "hub2.west.example")


@dataclass(frozen=True, slots=True)
class Layout:
    """Shapes: `entrances` are the nodes that clients use; if there are others, these are edges that relay to them by TRACK. `redundancy`
    is that of all receive connectors. `is_sealed`: peers prove their names by certificates, and addresses prove nothing. `machines`: nodes
    with one boot id each, and so one fate; empty: shared fates count, because the kernel is one."""

    name: str
    nodes: tuple[str, ...]
    copies: int = 1
    entrances: tuple[str, ...] = ()
    redundancy: str = "before-acknowledgement"
    is_sealed: bool = False
    machines: tuple[tuple[str, ...], ...] = ()

    @property
    def is_chain(self) -> bool:
        return bool(self.entrances)

    @property
    def clients_use(self) -> tuple[str, ...]:
        return self.entrances or self.nodes

    @property
    def behind(self) -> tuple[str, ...]:
        """Nodes that deliver: all but the edges."""
        return tuple(node for node in self.nodes if node not in self.entrances)

    @property
    def burnable(self) -> tuple[str, ...]:
        """Whose disk may burn: not that of an edge, which alone has what it has not relayed, if it makes no copies."""
        return self.behind if self.redundancy == "previous-hop" else self.nodes

    @property
    def sites(self) -> tuple[tuple[str, ...], ...]:
        names = sorted({site_of(node) for node in self.nodes})
        return tuple(tuple(node for node in self.nodes if site_of(node) == name) for name in names)

    @property
    def places(self) -> list[Place]:
        """On loopback; their machines are somebody else's task."""
        return [
            Place(node, site_of(node), boundary="dmz" if node in self.entrances else "lab", redundancy=self.redundancy,
                  relays_to=self.behind if node in self.entrances else ())
            for node in self.nodes
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.name


def site_of(node: str) -> str:
    return node.split(".")[1]


TWO_SITES = {copies: Layout(f"four nodes in two sites, {copies} cop{'y' if copies == 1 else 'ies'}", FOUR, copies) for copies in (1, 2)}
MACHINES = Layout("four nodes on two machines, each in two sites", FOUR, machines=((FOUR[0], FOUR[2]), (FOUR[1], FOUR[3])))
THREE_SITES = {
    copies: Layout(f"six nodes in three sites, {copies} cop{'y' if copies == 1 else 'ies'}, mutual TLS", SIX, copies, is_sealed=True)
    for copies in (1, 2, 3)
}
CHAINS = {
    "previous-hop": Layout("an edge and three hubs, previous-hop", (EDGES[0], *HUBS), 1, EDGES[:1], "previous-hop"),
    "both": Layout("two edges and three hubs, both, mutual TLS", (*EDGES, *HUBS), 1, EDGES, "both", is_sealed=True),
}
LAYOUTS = (TWO_SITES[1], CHAINS["previous-hop"], THREE_SITES[1], CHAINS["both"], THREE_SITES[2], THREE_SITES[3], TWO_SITES[2])
