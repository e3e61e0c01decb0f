"""Worlds of chains: an edge relays by TRACK to one of two hubs, and they to a last server, which delivers; or
mail of Chicago for five sites, by site links (each fourth seed). Of each six others two have two edges, which copy to each other
before the 250, so that an edge's disk may be destroyed, too; and two have three hubs, which copy to each other what a lost edge
relayed. Faults as a seed says.

`python -m tests.simulation.chains --seeds 1-1000`. The services are real, over real queue databases in memory; sessions and next hops are
those of `tests.kit.nodes`, so that a world takes a fraction of a second. Some recipients do not exist, and their senders' servers defer
at times. In worlds from seed 30001 on with two hubs or three, one hangs while mail is on its way to it. What must hold: each acknowledged
message is delivered to each recipient, or returned to its sender if there is no such recipient; it is delivered twice only for a cause
(docs/design.md 3, I4) that the world saw; nobody else gets a DSN; nothing is left in any queue. `--without RULE` switches one of RULES off.
"""

import argparse
import asyncio
import logging
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import async_solipsism
import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.replies import Reply
from shadowrelay.model.settings import Settings
from shadowrelay.model.tracking import EventId
from shadowrelay.pipeline.relay import RELAY_SECONDS
from shadowrelay.pipeline.sweep import SweepService
from shadowrelay.store import queues
from shadowrelay.store.rows import Row
from tests.kit.memory_disk import place_in_memory
from tests.kit.nodes import BASE, BUSY, EAST, HEARTBEAT, NO_SUCH_USER, NORTH, OK, SOUTH, WEST, Net, Recorder
from tests.kit.sites import CHICAGO, DUBLIN, LINKS, NEIGHBOURS
from tests.pipeline.edges import route_to
from tests.simulation.rules_off import RuleOff

EDGE, HUB, OTHER_HUB, LAST, OTHER_EDGE, THIRD_HUB = WEST, EAST, NORTH, SOUTH, CHICAGO, DUBLIN
KEPT_SPAN = 3 * HEARTBEAT
DATE = "Sun, 1 Mar 2026 12:00:00 +0000"  # with a Message-ID: recorded deliveries are compared
FIVE = ("chicago", "new-york", "london", "dublin", "atlanta")
STEPS = 40
CALM_SECONDS_MAX = 2000.0
HANG_MESSAGES = 6
HANGS_FROM = 30_001  # a seed
REPORT_SECONDS = 2.0  # a delivery is recorded and heard of by then, unless a fault is in the way

RULES: dict[str, RuleOff] = {
    "generated": RuleOff(
        "a DSN is copied in each mode of redundancy, or holds back the notification about its original",
        (
            (Settings, "copies_without_client", property(lambda settings: settings.copies_wanted)),
            (Row, "is_safe", property(lambda row: not row.claim.is_primary or row.is_placed)),
        ),
        (3,), "neither delivered nor returned",
    ),
    "given up": RuleOff(
        "who knows that a peer is lost ends what it is sending there, and sends it another way",
        ((SweepService, "_give_up", lambda self, server, seconds: None),),
        (30002,), "waits for a hub that hangs",
    ),
}  # fmt: skip


@contextmanager
def without(name: str) -> Iterator[None]:
    """This rule is off."""
    with ExitStack() as stack:
        for owner, attribute, off in RULES[name].off:
            stack.enter_context(patch.object(owner, attribute, off))
        yield


@dataclass(frozen=True, slots=True)
class Fault:
    """`others`: from whom the server was cut off; empty: it was killed, or its disk destroyed. Units: seconds of the world."""

    server: ServerName
    began: float
    ended: float
    others: frozenset[ServerName] = frozenset()


class ChainWorld:
    """One seed. `complaints` is empty when all is well."""

    def __init__(self, seed: int) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.has_five_sites = seed % 4 == 0
        self.has_two_edges = seed % 4 == 2
        self.has_copying_hubs = seed % 8 in (1, 2)
        self.edge = CHICAGO if self.has_five_sites else EDGE  # accepts the mail
        self.complaints: list[str] = []
        self.counts: Counter[str] = Counter()
        self.acknowledged: list[str] = []
        self.returns_to: dict[str, str] = {}  # of recipients that do not exist: the sender
        self.arrived_at: dict[str, list[tuple[float, ServerName]]] = {}
        self.faults: list[Fault] = []
        self.logs: list[Recorder] = []  # of each process
        self.burnt_at = -1.0  # when a disk was destroyed last, while what was in it is still on its way

    def run(self) -> "ChainWorld":
        """All of it, in virtual time."""
        loop = async_solipsism.EventLoop()
        try:
            with tempfile.TemporaryDirectory(prefix="chains-", dir=place_in_memory()) as directory:
                loop.run_until_complete(self._live(Path(directory)))
        finally:
            loop.close()
        return self

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _live(self, directory: Path) -> None:
        self.net = net = Net(directory)
        self.down: dict[ServerName, float] = {}
        self.parted: dict[tuple[str, frozenset[ServerName]], float] = {}
        self.starts = self._five_sites() if self.has_five_sites else self._starts()
        net.sink.answer = self._answer
        net.sink.after_dot = self._note_arrivals
        self.busy_until = self.senders_busy_until = 0.0
        try:
            for server in self.starts:
                await self._start(server)
            await asyncio.sleep(1)
            for step in range(STEPS):
                await self._step()
                if step == STEPS // 2 and self.seed >= HANGS_FROM and not self.has_five_sites:
                    await self._hang_a_hub()
            await self._calm()
        finally:
            await net.close()
        self._judge()

    async def _start(self, server: ServerName) -> None:
        node = await self.starts[server]()
        self.logs.append(node.log)

    def _starts(self) -> dict[ServerName, Callable[[], Any]]:
        """Each server of the chain, as this seed has it: with one hub or two; the last server may not know TRACK, or make copies."""
        chance, net = self.chance, self.net
        hubs, hub_way = [HUB, OTHER_HUB][: chance.choice((1, 2, 2))], "previous-hop"
        if self.has_copying_hubs:
            hubs, hub_way = [HUB, OTHER_HUB, THIRD_HUB], "both"
            self.counts["three hubs that copy"] += 1
        last_way = chance.choice(("previous-hop", "previous-hop", "both", "none"))
        timeout = chance.choice(("5s", "10s"))
        common = {"shadow_heartbeat_timeout_interval": timeout, "delivery_without_lease": chance.choice(("deliver", "deliver", "defer"))}
        self.counts[f"last server: {last_way}"] += 1

        in_hubs = {hub: {"boundary": "hubs"} for hub in hubs}
        in_edge = {edge: {"boundary": "edge"} for edge in ((EDGE, OTHER_EDGE) if self.has_two_edges else (EDGE,))}
        edge_way: dict[str, Any] = {"redundancy": "previous-hop"}
        if self.has_two_edges:
            edge_way = {"redundancy": "both", "reject_message_on_shadow_failure": True}
            self.counts["two edges"] += 1

        starts: dict[ServerName, Callable[[], Any]] = {
            LAST: partial(net.start, LAST, hubs, boundary="last", redundancy=last_way, peer=in_hubs, **common)
        }
        for hub in hubs:
            peer = {LAST: {"boundary": "last"}, **in_edge, **in_hubs}
            names = [LAST, *in_edge, *(other for other in hubs if other != hub)]
            starts[hub] = partial(net.start, hub, names, boundary="hubs", redundancy=hub_way, routes=route_to(LAST), peer=peer, **common)
        for edge in in_edge:
            names = [*hubs, *(other for other in in_edge if other != edge)]
            peer = in_hubs | in_edge
            starts[edge] = partial(net.start, edge, names, boundary="edge", routes=route_to(*hubs), peer=peer, **edge_way, **common)
        return starts

    def _five_sites(self) -> dict[ServerName, Callable[[], Any]]:
        """One server in each site but New York, which has two; the hub sites vary. Each site delivers its own mail."""
        hubs = self.chance.choice((("new-york", "london"), ("new-york", "london"), ("london",), ()))
        self.counts[f"five sites, hub sites: {' and '.join(hubs) or 'none'}"] += 1
        known = NEIGHBOURS if len(hubs) == 2 else {server: list(NEIGHBOURS) for server in NEIGHBOURS}
        same: dict[str, Any] = {
            "redundancy": "previous-hop",
            "shadow_heartbeat_timeout_interval": self.chance.choice(("5s", "10s")),
            "delivery_without_lease": self.chance.choice(("deliver", "deliver", "defer")),
            "routes": [
                {"recipients": [f"*@{site}.example"], "next_hop": f"store.{site}.example", "site": site, "redundancy": "previous-hop"}
                for site in FIVE
            ],
            "site_links": [{"sites": pair, "cost": cost} for pair, cost in LINKS],
            "sites": [{"name": site, "hub_site_enabled": True} for site in hubs],
        }
        return {server: partial(self.net.start, server, [other for other in known[server] if other != server], **same) for server in known}

    def _answer(self, address: str) -> Reply:
        if address.startswith("sender"):
            return BUSY if self.now() < self.senders_busy_until else OK
        if self.now() < self.busy_until:
            return BUSY
        return NO_SUCH_USER if address in self.returns_to else OK

    async def _note_arrivals(self, server: ServerName) -> None:
        for who, address, _ in self.net.sink.arrived[sum(map(len, self.arrived_at.values())) :]:
            self.arrived_at.setdefault(address, []).append((self.now(), who))

    # faults

    async def _step(self) -> None:
        chance = self.chance
        await asyncio.sleep(chance.choice((0.0, 0.1, 1.0, 3.0)) * chance.random())
        await self._end_faults()
        if self.edge in self.net.nodes:
            for _ in range(chance.choice((0, 1, 1, 3))):
                await self._send()
        if chance.random() < 0.4:
            faults = [self._kill, self._wipe, self._cut, self._lose_replies, self._defer, self._defer_dsns]
            await chance.choices(faults, [4, 2, 3, 2, 2, 2])[0]()

    async def _send(self) -> None:
        number = len(self.acknowledged) + self.counts["refused"]
        domains = FIVE if self.has_five_sites else ("corp",)
        addresses = [f"user{number}-{index}@{self.chance.choice(domains)}.example" for index in range(self.chance.choice((1, 1, 2)))]
        data, header = f"Subject: {number}\r\n\r\nhello\r\n".encode(), {"internet_message_id": f"<{number}@x.example>", "date": DATE}
        sender = f"sender{number}@x.example"
        if len(addresses) == 1 and self.chance.random() < 0.3:
            self.returns_to[addresses[0]] = sender
        reply = await self.net.nodes[self.edge].accept(*addresses, data=data, sender=sender, **header)
        if reply.is_positive:
            self.acknowledged += addresses
        else:
            self.counts["refused"] += 1

    def _lasts(self) -> float:
        chance = self.chance
        return chance.choice((chance.uniform(0, 2), chance.uniform(0, KEPT_SPAN), chance.uniform(KEPT_SPAN, 4 * KEPT_SPAN)))

    async def _kill(self) -> None:
        if not self.net.nodes:
            return
        server = self.chance.choice(sorted(self.net.nodes))
        self._goes(server, "killed")
        await self.net.kill(server)

    def _goes(self, server: ServerName, what: str) -> None:
        seconds = self._lasts()
        self.counts[what] += 1
        self.faults.append(Fault(server, self.now(), self.now() + seconds))
        self.down[server] = self.now() + seconds

    async def _wipe(self) -> None:
        """Not of an edge that is alone with what it has not relayed; and one disk at a time: what an earlier one held has arrived."""
        candidates = sorted(self.net.nodes.keys() - (set() if self.has_two_edges else {self.edge}))
        is_whole = self.burnt_at < 0 or self._has_all_arrived()
        if not candidates or not is_whole:
            return
        server = self.chance.choice(candidates)
        self._goes(server, "disks destroyed")
        self.burnt_at = self.now()
        await self.net.wipe(server)

    async def _cut(self) -> None:
        self._part("cuts", self.net.cut)

    async def _lose_replies(self) -> None:
        """For a while commands arrive, and replies do not: a next hop takes a message, and the previous one does not know."""
        self._part("times without replies", self.net.deaf)

    def _part(self, what: str, parted: set[frozenset[ServerName]]) -> None:
        pair = frozenset(self.chance.sample(sorted(self.starts), 2))
        if (what, pair) in self.parted:
            return
        seconds = self._lasts()
        self.counts[what] += 1
        for server in pair:
            self.faults.append(Fault(server, self.now(), self.now() + seconds, pair - {server}))
        self.parted[what, pair] = self.now() + seconds
        parted.add(pair)

    async def _defer(self) -> None:
        self.counts["next hop defers"] += 1
        self.busy_until = self.now() + self._lasts()

    async def _defer_dsns(self) -> None:
        self.counts["senders' servers defer"] += 1
        self.senders_busy_until = self.now() + self.chance.uniform(KEPT_SPAN, 4 * KEPT_SPAN)

    async def _end_faults(self, *, all_of_them: bool = False) -> None:
        for server, until in list(self.down.items()):
            if all_of_them or until <= self.now():
                del self.down[server]
                await self._start(server)
        for (what, pair), until in list(self.parted.items()):
            if all_of_them or until <= self.now():
                del self.parted[what, pair]
                (self.net.cut if what == "cuts" else self.net.deaf).discard(pair)

    async def _hang_a_hub(self) -> None:
        """All is in order. Mail is on its way to a hub when that hangs: it answers nothing more, and its connections stay open."""
        net, hubs = self.net, [server for server in self.starts if server in (HUB, OTHER_HUB, THIRD_HUB)]
        await self._calm()
        if len(hubs) < 2 or self.complaints:
            return
        hub = self.chance.choice(hubs)
        others = [server for server in self.starts if server != hub]
        hung_at = [math.inf]

        async def hang(*_: Any) -> Reply:
            hung_at[0] = min(hung_at[0], self.now())
            net.cut |= {frozenset((hub, other)) for other in others}
            await asyncio.Event().wait()
            raise AssertionError

        net.nodes[hub].services.peer_requests.track = hang
        for _ in range(HANG_MESSAGES):
            await self._send()
            await asyncio.sleep(0.1)
        if hung_at[0] < math.inf:
            self.counts["hubs that hang"] += 1
            until = self.now() + RELAY_SECONDS / 4
            while not self._has_all_arrived() and self.now() < until:
                await asyncio.sleep(HEARTBEAT)
            if not self._has_all_arrived():
                self.complaints.append(f"mail waits for a hub that hangs since {hung_at[0]:.1f}, though another one is there")
            self.faults.append(Fault(hub, hung_at[0], self.now(), frozenset(others)))
        await net.kill(hub)
        net.cut -= {frozenset((hub, other)) for other in others}
        await self._start(hub)

    def _has_all_arrived(self) -> bool:
        return all(self.returns_to.get(address, address) in self.arrived_at for address in self.acknowledged)

    # afterwards

    async def _calm(self) -> None:
        self.busy_until = self.senders_busy_until = 0.0
        await self._end_faults(all_of_them=True)
        until = self.now() + CALM_SECONDS_MAX
        while (left := await self._left()) and self.now() < until:
            await asyncio.sleep(HEARTBEAT)
        self.complaints += left

    async def _left(self) -> list[str]:
        found = []
        for name, node in self.net.nodes.items():
            for message in await node.ledger.real.read(queues.messages, "", 20):
                found.append(f"{name} still has {message.envelope.message_id}, {message.claim.role}")
        return found

    def _judge(self) -> None:
        self.counts["acknowledged recipients"] = len(self.acknowledged)
        for address in self.acknowledged:
            arrivals = self.arrived_at.get(address, [])
            if (sender := self.returns_to.get(address)) is not None:
                returns = self.arrived_at.get(sender, [])
                self.counts["returned"] += len(returns)
                if not returns:
                    self.complaints.append(f"{address} is lost: neither delivered nor returned")
                continue
            if not arrivals:
                self.complaints.append(f"{address} is lost")
            if len(arrivals) > 1:
                self.counts["duplicates"] += len(arrivals) - 1
                if not any(self._has_cause(server, at) for at, server in self._handed_on(address)) and not self._waited_in_vain(address):
                    self.complaints.append(f"{address} was delivered twice without a cause: {arrivals}")
        for log in self.logs:
            self.counts["taken back"] += len(log.rows(EventId.RESUBMIT))
            sent = [event.recipient_statuses[0] for event in log.rows(EventId.SEND) + log.rows(EventId.SENDEXTERNAL)]
            self.counts["offered again to a hub that was released"] += sum("Handed over there" in status for status in sent)
            told = {address for event in log.rows(EventId.DSN) for address in event.recipients}
            if false := told.difference(self.returns_to.values()):
                self.complaints.append(f"{sorted(false)} got a DSN about mail that nobody refused")

    def _handed_on(self, address: str) -> list[tuple[float, ServerName]]:
        """When each server had handed on a message to this recipient."""
        events = [event for log in self.logs for event in log.rows(EventId.SEND) + log.rows(EventId.SENDEXTERNAL)]
        handed = [((event.at - BASE).total_seconds(), ServerName(event.client_hostname)) for event in events if address in event.recipients]
        return handed + self.arrived_at[address]

    def _waited_in_vain(self, address: str) -> bool:
        """Cause (a): a server got no reply to the whole message, says its log, and sent it another way."""
        rows = [event for log in self.logs for event in log.rows(EventId.DEFER) if address in event.recipients]
        return any("no reply" in event.source_context for event in rows)

    def _has_cause(self, server: ServerName, at: float) -> bool:
        """Causes (a) and (b): a server that had handed the message on was stopped or destroyed before its previous hop had heard of it.
        That takes a moment, and as long as the previous hop is down or cut off. (c): it was cut off, and the other waited in vain."""
        deaf_until = at + REPORT_SECONDS
        for fault in sorted(self.faults, key=lambda fault: fault.began):
            if fault.began <= deaf_until and (fault.others or fault.server != server):
                deaf_until = max(deaf_until, fault.ended + REPORT_SECONDS)
        for fault in self.faults:
            if fault.server != server or not at - REPORT_SECONDS <= fault.ended:
                continue
            if not fault.others and at - REPORT_SECONDS <= fault.began <= deaf_until:
                return True
            if fault.others and fault.began <= deaf_until and fault.ended - fault.began >= KEPT_SPAN / 2:
                return True
        return False


def quiet() -> None:
    """Without the operator logs of many nodes."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 if any world failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-100", help="the first and the last seed")
    parser.add_argument("--without", choices=sorted(RULES), help="a rule to switch off")
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("-")
    quiet()
    totals: Counter[str] = Counter()
    failed = []
    for seed in range(int(first), int(last or first) + 1):
        with without(options.without) if options.without else ExitStack():
            world = ChainWorld(seed).run()
        totals += world.counts
        if world.complaints:
            failed.append(seed)
            print(f"seed {seed} FAILED", *world.complaints[:5], sep="\n  ", flush=True)
    print(f"{int(last or first) - int(first) + 1} worlds, {len(failed)} failed;", ", ".join(f"{k} {v}" for k, v in sorted(totals.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
