"""One bad next hop hurts nobody else: ten next hops, nine of them sick, and the mail of the healthy one does not notice.

What is shown here is order and number, not time: the healthy next hop has all its mail while that of the sick ones is queued.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog

from shadowrelay.lab.traffic import Sent
from shadowrelay.tracking import operator_log
from tests.isolation.world import EAST, FAILING, HEALTHY, PASSING, SICK, WAITING, World, deferred_because, rows, without_copy, world
from tests.kit.node_log import rss_kilobytes

CONCURRENCY = 5
PROBE_SECONDS = 0.5  # the shortest interval of the ladder below
SEND = {
    "concurrency_per_destination": CONCURRENCY,
    "queue_glitch_retry_interval": f"{PROBE_SECONDS}s",
    "message_retry_interval": "1s",
}
STUCK = 750  # to each next hop that keeps its sessions busy; together more than a node ever works on at one time
EACH = 20
REASONS = {  # source and beginning of the reply in every DEFER row
    "refused": ("SMTP", "451 4.4.1 Could not connect to the server"),
    "unresolvable": ("DNS", "451 4.4.3 The domain name could not be looked up"),
    "dropping": ("SMTP", "451 4.4.2 Connection lost"),
    "untrusted": ("SMTP", "454 4.7.0 TLS first"),
    "greylisting": ("SMTP", "451 4.7.1 Greylisted"),
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    structlog.reset_defaults()
    operator_log.configure("critical")


@pytest.mark.slow
async def test_the_healthy_next_hop_gets_its_mail_while_nine_are_sick(tmp_path: Path) -> None:
    async with world(tmp_path, send=SEND) as here:
        await here.send(kind for _ in range(STUCK) for kind in WAITING)
        refused_from = time.monotonic()
        await here.send(kind for _ in range(EACH) for kind in (*FAILING, *PASSING))
        await here.send([HEALTHY] * EACH)
        await here.until_arrived(HEALTHY, EACH)
        stuck = {kind: here.arrivals(kind).total() for kind in ("silent", "refused", "dripping", "untrusted")}
        answered = here.is_slow_released.is_set()
        for kind in PASSING:
            await here.until_arrived(kind, EACH)
        await here.until_queued(STUCK * len(WAITING) + EACH * len(FAILING))
        dials = {kind: here.attempts(kind) for kind in ("refused", "unresolvable")}
        dials_max = CONCURRENCY + 1 + (time.monotonic() - refused_from) / PROBE_SECONDS  # the first ones, then one probe an interval
        queues = {kind: (await asyncio.to_thread(here.queues)).get(here.key(kind), (0, "")) for kind in FAILING}
        sessions = {kind: here.servers[kind].open_count_max for kind in here.servers}

        here.is_slow_released.set()
        await here.heal_refused()
        await here.until_arrived("slow", STUCK)
        await here.until_arrived("refused", EACH)
        await here.until_queued(STUCK * 2 + EACH * 3)
        times = {kind: set(here.arrivals(kind).values()) for kind in (HEALTHY, *PASSING, "slow", "refused")}
        reasons = deferred_because(rows(here.cluster))  # now: the servers end before the nodes, and a late probe finds nobody
    tracked = rows(here.cluster)
    told = {kind: (count, error.startswith(REASONS[kind][1])) for kind, (count, error) in queues.items()}
    wrong = {
        kind: found
        for kind, (source, reply) in REASONS.items()
        if not (found := reasons.get(kind)) or not all(row[0] == source and row[1].startswith(reply) for row in found)
    }

    assert ({"silent": 0, "refused": 0, "dripping": 0, "untrusted": 0}, False) == (stuck, answered)
    assert {} == {kind: (count, dials_max) for kind, count in dials.items() if not 1 <= count <= dials_max}
    assert dict.fromkeys(FAILING, (EACH, True)) == told
    assert {} == {kind: count for kind, count in sessions.items() if count > CONCURRENCY}
    assert {} == {kind: found for kind, found in times.items() if found != {1}}
    assert [] == without_copy(tracked, here.sent)
    assert ({}, set()) == (wrong, {HEALTHY, "one-by-one", "slow"} & set(reasons))


def test_every_sickness_has_its_place() -> None:
    assert 9 == len(set(SICK))


# The large one. Both worlds get the same load, one of it all to a healthy next hop: the difference is what sickness costs, on any
# machine. What the healthy next hop takes for its own tenth of the load is printed.

RATE = 10.0  # messages a second to each next hop
PHASE_SECONDS = 20
PHASES = 5
BULK = 3000  # messages before each phase, as fast as they are taken, to next hops that take none
BULK_FIRST = 10_000  # what the nodes keep in memory up to a bound, such as recent contents, is full then
WARM_UP = 100  # messages that open sessions
SLOW_SECONDS = 5.0
SLOWER_MAX = 2.0
RSS_KILOBYTES_MAX = 400_000
# Of each node, in the last two phases, which add 9,000 messages and 150 MB to the backlog. SQLite's page cache, 64 MiB at most, is not
# full by then.
GROWTH_KILOBYTES_MAX = 25_000
SIZE = 16_384
LARGE_SEND = {
    "queue_glitch_retry_interval": "2s",
    "transient_failure_retry_interval": "5s",
    "outbound_connection_failure_retry_interval": "10s",
    "message_retry_interval": "30s",
}


def is_to_healthy(one: Sent) -> bool:
    return one.recipients[0].endswith(f"@{HEALTHY}.example")


async def healthy_p99(here: World, kinds: Sequence[str], rate: float) -> float:
    """From the beginning of a submission to the arrival, of the messages of this phase to the healthy next hop. Nearest rank."""
    start = len(here.sent)
    await here.send(kinds, rate=rate)
    await here.until_arrived(HEALTHY, sum(map(is_to_healthy, here.sent)))
    began_at = {one.internet_message_id: one.tries[-1].began_at for one in here.sent[start:] if is_to_healthy(one)}
    arrivals = here.sink.arrivals
    seconds = sorted(found.at - began_at[found.internet_message_id] for found in arrivals if found.internet_message_id in began_at)
    return seconds[math.ceil(0.99 * len(seconds)) - 1]


@pytest.mark.heavy
@pytest.mark.timeout(1800)
async def test_nine_sick_next_hops_cost_the_healthy_one_nothing_and_no_memory(tmp_path: Path) -> None:
    alone: list[float] = []
    among: list[float] = []
    rss: list[dict[str, int]] = []
    count = int(RATE * PHASE_SECONDS)
    kinds = (*SICK, HEALTHY)
    everything = RATE * len(kinds)
    async with (
        world(tmp_path / "well", send=LARGE_SEND, size=SIZE) as well,
        world(tmp_path / "sick", slow_seconds=SLOW_SECONDS, is_dns_silent=True, send=LARGE_SEND, size=SIZE) as sick,
    ):
        for here in (well, sick):
            here.load.nodes = {name: node.address for name, node in here.cluster.nodes.items()}
            await healthy_p99(here, [HEALTHY] * WARM_UP, RATE)
        for phase in range(1, PHASES + 1):
            await sick.send((*WAITING, "refused", "unresolvable")[number % 5] for number in range(BULK if phase > 1 else BULK_FIRST))
            own_load = await healthy_p99(well, [HEALTHY] * count, RATE)
            alone.append(await healthy_p99(well, [HEALTHY] * count * len(kinds), everything))
            among.append(await healthy_p99(sick, kinds * count, everything))
            rss.append({name: rss_kilobytes(node) for name, node in sick.cluster.nodes.items()})
            print(
                f"phase {phase}: p99 {own_load:.3f} s with its own load, {alone[-1]:.3f} s with the load of all, {among[-1]:.3f} s among "
                f"nine sick ones; RSS {sorted(rss[-1].values())} kB, {sick.queued()} queued on {EAST}"
            )
    half, end = rss[PHASES // 2], rss[-1]
    tracked = rows(sick.cluster)

    assert [] == without_copy(tracked, sick.sent)
    assert ({1}, PHASES * count + WARM_UP) == (set(sick.arrivals(HEALTHY).values()), len(sick.arrivals(HEALTHY)))
    assert statistics.median(among) <= SLOWER_MAX * statistics.median(alone), (among, alone)
    assert {} == {name: kilobytes for name, kilobytes in end.items() if kilobytes > RSS_KILOBYTES_MAX}
    assert {} == {name: (half[name], end[name]) for name in end if end[name] - half[name] > GROWTH_KILOBYTES_MAX}
