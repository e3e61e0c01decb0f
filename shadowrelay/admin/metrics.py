"""Prometheus metrics of one node, in a registry per node, so that several nodes fit into one process. docs/operations.md "Watching".

Services count through the port `Metrics` into plain numbers, which are passed to the library at each scrape: the library's locks and
checks would cost a message more than its routing does. States (queues, heartbeat ages, database) are read at each scrape. Nothing here
blocks the relay or raises into it. Labels have a bounded number of values; further ones become "other".
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import QueueKind, QueueRow
from shadowrelay.model.tracking import Acknowledged, Replication, ResubmitReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REFUSALS = ("back pressure", "error", "ledger", "not redundant")
RESULTS = ("deferred", "delivered", "duplicate", "failed", "partly")
LABEL_VALUES_MAX = 50  # of one label; reasons taken from a peer's text must not fill the memory

# from a copy on the same switch to the default shadow_timeout of 5 s, and beyond
LATENCY_BUCKETS_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class PrometheusMetrics:
    """Implements `ports.Metrics`. `awake` is `Clock.awake`, `now` is `Clock.now`."""

    def __init__(self, version: str, server: ServerName, *, now: Callable[[], datetime], awake: Callable[[], float]) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._now = now
        self._awake = awake
        self._heard: dict[ServerName, float] = {}
        self._counted: defaultdict[Counter, float] = defaultdict(float)  # since the last scrape
        self._latencies = [0] * (len(LATENCY_BUCKETS_SECONDS) + 1)  # copies by bucket
        self._latencies_sum = 0.0
        self._queues: tuple[QueueRow, ...] = ()
        self._labelled: dict[str, tuple[str, str, Callable[[], Mapping[str, float]]]] = {}
        self._states: dict[str, tuple[type[GaugeMetricFamily | CounterMetricFamily], str, Callable[[], float]]] = {}
        self._gauge("build_info", "Which program and which node this is; always 1.", "version", "server").labels(version, server).set(1)
        acknowledged = self._counter("acknowledged", "Messages answered 250, by whether a synced second copy existed.", "replication")
        # A series that begins at zero shows its first increase: a takeover of many messages may be the only one.
        self._acknowledged = {replication: acknowledged.labels(replication.value.lower()) for replication in Replication}
        self._refused = _Bounded(self._counter("refused", "Messages that no responsibility was taken for, by reason.", "reason"), REFUSALS)
        self._promoted = _Bounded(self._counter("promoted_messages", "Shadow messages taken over, by reason.", "reason"), ResubmitReason)
        self._attempts = _Bounded(self._counter("delivery_attempts", "Delivery attempts of forks, by result.", "result"), RESULTS)
        self._delayed = _Bounded(
            self._counter("delayed_acknowledgements", "Messages whose 250 waited for a delivery, by why it was given.", "why"), Acknowledged
        )
        self._delay_seconds = self._counter("acknowledgement_delay_seconds", "How long they waited, in all.")
        self._resubmitted = self._counter("resubmitted_messages", "Messages made from those in Safety Net, on request.")
        self._discarded = self._counter("discarded", "Shadow messages discarded because their primary was done.")
        self._database = self._gauge(
            "database_info", "Queue database, and the durability it runs with; always 1.", "database", "incarnation", "synchronous"
        )
        self._certificates = self._gauge(
            "certificate_not_after_timestamp_seconds", "When the certificates in force end, by key of [tls]; seconds since 1970.", "file"
        )
        self.registry.register(_AtScrape(self._collect))

    # ports.Metrics
    def acknowledged(self, replication: Replication) -> None:
        """Count one 250."""
        self._counted[self._acknowledged[replication]] += 1

    def refused(self, reason: str) -> None:
        """Count one refused message."""
        self._counted[self._refused.child(reason)] += 1

    def shadow_latency(self, seconds: float) -> None:
        """Count one copy, and its latency. Units: seconds."""
        self._latencies[bisect_left(LATENCY_BUCKETS_SECONDS, seconds)] += 1
        self._latencies_sum += seconds

    def discarded(self, count: int) -> None:
        """Count discarded shadow messages."""
        self._counted[self._discarded] += count

    def promoted(self, count: int, reason: str) -> None:
        """Count promoted shadow messages."""
        self._counted[self._promoted.child(reason)] += count

    def resubmitted(self) -> None:
        """Count one message made from one in Safety Net."""
        self._counted[self._resubmitted] += 1

    def acknowledgement_delayed(self, why: str, seconds: float) -> None:
        """Count one 250 that waited."""
        self._counted[self._delayed.child(why)] += 1
        self._counted[self._delay_seconds] += seconds

    def attempt(self, result: str) -> None:
        """Count one delivery attempt."""
        self._counted[self._attempts.child(result)] += 1

    def heartbeat(self, server: ServerName) -> None:
        """Record a proof of life from this peer."""
        self._heard[server] = self._awake()

    # wiring
    def expect_peers(self, servers: Iterable[ServerName]) -> None:
        """Report the heartbeat ages of exactly these peers from now on."""
        began = self._awake()
        self._heard = {server: self._heard.get(server, began) for server in servers}

    def watch(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """Read `value` at each scrape as gauge `shadowrelay_<name>`: sessions, database_position, wal_bytes,
        tracking_dropped_rows, tracking_pending_rows … If it raises, it is left out of that scrape."""
        self._states[f"shadowrelay_{name}"] = (GaugeMetricFamily, documentation, value)

    def watch_each(self, name: str, documentation: str, label: str, values: Callable[[], Mapping[str, float]]) -> None:
        """The same with one label: `values` has a number for each of its values."""
        self._labelled[f"shadowrelay_{name}"] = (documentation, label, values)

    def watch_total(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """The same as a counter, `shadowrelay_<name>_total`."""
        self._states[f"shadowrelay_{name}"] = (CounterMetricFamily, documentation, value)

    def database(self, database: str, incarnation: int, synchronous: str) -> None:
        """Describe the ledger's database; `synchronous` as read back from it."""
        self._database.clear()
        self._database.labels(database, str(incarnation), synchronous).set(1)

    def certificates(self, ends: Mapping[str, datetime]) -> None:
        """Expiry times of the TLS files in force, by key of [tls]."""
        self._certificates.clear()
        for file, end in ends.items():
            self._certificates.labels(file).set(end.timestamp())

    def observe_queues(self, queues: Iterable[QueueRow]) -> None:
        """Store the listing for the next scrape."""
        self._queues = tuple(queues)

    def render(self) -> bytes:
        """The metrics in Prometheus's text format."""
        self._settle()
        return generate_latest(self.registry)

    def _settle(self) -> None:
        counted, self._counted = self._counted, defaultdict(float)
        for counter, amount in counted.items():
            counter.inc(amount)

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"shadowrelay_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"shadowrelay_{name}", documentation, labels, registry=self.registry)

    def _collect(self) -> Iterator[Metric]:
        yield from queue_families(self._queues, self._now())
        bounds = [*map(str, LATENCY_BUCKETS_SECONDS), "+Inf"]
        yield HistogramMetricFamily(
            "shadowrelay_shadow_latency_seconds",
            "End of content until the shadow copy was stored.",
            buckets=list(zip(bounds, accumulate(self._latencies), strict=True)),
            sum_value=self._latencies_sum,
        )
        ages = GaugeMetricFamily("shadowrelay_heartbeat_age_seconds", "Since the last proof of life of a peer.", labels=["server"])
        awake = self._awake()
        for server, heard in self._heard.items():
            ages.add_metric([server], max(awake - heard, 0.0))
        yield ages
        for name, (documentation, label, values) in self._labelled.items():
            many = GaugeMetricFamily(name, documentation, labels=[label])
            with suppress(Exception):  # as below
                for key, one in values().items():
                    many.add_metric([key], one)
            yield many
        for name, (family, documentation, value) in self._states.items():
            try:
                yield family(name, documentation, value=value())
            except Exception:  # one metric less is better than a failed scrape
                continue


def queue_families(queues: Collection[QueueRow], now: datetime) -> Iterator[GaugeMetricFamily]:
    """Depth, size and oldest age for each kind of queue, including empty ones."""
    counts: dict[QueueKind, int] = dict.fromkeys(QueueKind, 0)
    octets: dict[QueueKind, int] = dict.fromkeys(QueueKind, 0)
    oldest: dict[QueueKind, float] = dict.fromkeys(QueueKind, 0.0)
    for row in queues:
        counts[row.kind] += row.count
        octets[row.kind] += row.octets
        if row.oldest_at is not None:
            oldest[row.kind] = max(oldest[row.kind], (now - row.oldest_at).total_seconds())
    yield _by_kind("shadowrelay_queue_messages", "Messages in the queues of this kind.", counts)
    yield _by_kind("shadowrelay_queue_octets", "Contents of the messages in the queues of this kind.", octets)
    suspended = GaugeMetricFamily("shadowrelay_queues_suspended", "Delivery queues that an administrator suspended.")
    suspended.add_metric([], sum(row.suspended is not None for row in queues))
    yield suspended
    yield _by_kind("shadowrelay_queue_oldest_age_seconds", "Age of the oldest message in the queues of this kind; 0 when empty.", oldest)
    yield from _shadow_families([row for row in queues if row.kind is QueueKind.SHADOW], now)


def _shadow_families(queues: Collection[QueueRow], now: datetime) -> Iterator[GaugeMetricFamily]:
    """Each of the queues with most messages by itself; the others of a primary server together. Primary servers are peers: few."""
    largest = sorted(queues, key=lambda row: (-row.count, row.primary, row.next_hop))[:LABEL_VALUES_MAX]
    named = {row.identity for row in largest}
    counts: dict[tuple[str, str], int] = defaultdict(int)
    oldest: dict[str, float] = defaultdict(float)
    for row in queues:
        next_hop = row.next_hop if row.is_of_forks else ""  # not known
        counts[row.primary, next_hop if row.identity in named else "other"] += row.count
        if row.oldest_at is not None:
            oldest[row.primary] = max(oldest[row.primary], (now - row.oldest_at).total_seconds())
    labels = ["primary", "next_hop"]
    messages = GaugeMetricFamily("shadowrelay_shadow_queue_messages", "Messages in each shadow queue.", labels=labels)
    for key, count in counts.items():
        messages.add_metric(key, count)
    yield messages
    ages = GaugeMetricFamily(
        "shadowrelay_shadow_oldest_age_seconds", "Age of the oldest shadow message of a primary server.", labels=labels[:1]
    )
    for primary, age in oldest.items():
        ages.add_metric([primary], age)
    yield ages


def _by_kind(name: str, documentation: str, values: Mapping[QueueKind, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=["kind"])
    for kind, value in values.items():
        family.add_metric([kind.value], value)
    return family


class _Bounded:
    """Counters by one label with at most `LABEL_VALUES_MAX` values; those of `known` values start at zero."""

    def __init__(self, counter: Counter, known: Iterable[str]) -> None:
        self._counter = counter
        self._children: dict[str, Counter] = {str(value): counter.labels(str(value)) for value in known}

    def child(self, value: str) -> Counter:
        child = self._children.get(value)
        if child is None:
            if len(self._children) >= LABEL_VALUES_MAX:
                value = "other"
            child = self._children.setdefault(value, self._counter.labels(value))
        return child


class _AtScrape(Collector):
    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())
