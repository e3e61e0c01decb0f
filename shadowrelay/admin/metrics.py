"""Prometheus metrics of one node, in a registry per node, so that several nodes fit into one process. docs/operations.md "Watching".

Services count in `model.counts`. Its numbers and states (queues, heartbeat ages, database) are read at each scrape. Nothing here blocks
the relay or raises into it. Labels have a bounded number of values; further next hops become "other".
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shadowrelay.model.counts import LATENCY_BUCKETS_SECONDS, Counts
from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import QueueKind, QueueRow, Untold

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_VALUES_MAX = 50  # of one label; next hops must not fill Prometheus


class PrometheusMetrics:
    """`counts` are those of the services, `now` is `Clock.now`."""

    def __init__(self, version: str, server: ServerName, counts: Counts, *, now: Callable[[], datetime]) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._now = now
        self._counts = counts
        self._queues: tuple[QueueRow, ...] = ()
        self._untold: Untold | None = None
        self._labelled: dict[str, tuple[str, str, Callable[[], Mapping[str, float]]]] = {}
        self._totals: dict[str, tuple[str, str, Callable[[], Mapping[Any, int]]]] = {}
        self._states: dict[str, tuple[type[GaugeMetricFamily | CounterMetricFamily], str, Callable[[], float]]] = {}
        self._gauge("build_info", "Which program and which node this is; always 1.", "version", "server").labels(version, server).set(1)
        self._database = self._gauge(
            "database_info", "Queue database, and the durability it runs with; always 1.", "database", "incarnation", "synchronous"
        )
        self._certificates = self._gauge(
            "certificate_not_after_timestamp_seconds", "When the certificates in force end, by key of [tls]; seconds since 1970.", "file"
        )
        self.registry.register(_AtScrape(self._collect))

    def watch(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """Read `value` at each scrape as gauge `shadowrelay_<name>`: sessions, database_position, wal_bytes,
        tracking_dropped_rows, tracking_pending_rows … If it raises, it is left out of that scrape."""
        self._states[f"shadowrelay_{name}"] = (GaugeMetricFamily, documentation, value)

    def watch_each(self, name: str, documentation: str, label: str, values: Callable[[], Mapping[str, float]]) -> None:
        """The same with one label: `values` has a number for each of its values."""
        self._labelled[f"shadowrelay_{name}"] = (documentation, label, values)

    def watch_totals(self, name: str, documentation: str, label: str, values: Callable[[], Mapping[Any, int]]) -> None:
        """The same as a counter with one label, `shadowrelay_<name>_total`."""
        self._totals[name] = (documentation, label, values)

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

    def observe_queues(self, queues: Iterable[QueueRow], untold: Untold | None = None) -> None:
        """Store the listing for the next scrape, and what waits for a generated message."""
        self._queues, self._untold = tuple(queues), untold

    def render(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"shadowrelay_{name}", documentation, labels, registry=self.registry)

    def _collect(self) -> Iterator[Metric]:
        yield from queue_families(self._queues, self._now())
        yield _untold_family(self._untold)
        yield from count_families(self._counts)
        for name, (documentation, label, values) in self._labelled.items():
            many = GaugeMetricFamily(name, documentation, labels=[label])
            with suppress(Exception):  # as below
                for key, one in values().items():
                    many.add_metric([key], one)
            yield many
        for name, (documentation, label, totals) in self._totals.items():
            with suppress(Exception):
                yield _counter(name, documentation, label, totals())
        for name, (family, documentation, value) in self._states.items():
            try:
                yield family(name, documentation, value=value())
            except Exception:  # one metric less is better than a failed scrape
                continue


def count_families(counts: Counts) -> Iterator[Metric]:
    """What the services have counted."""
    acknowledged = {replication.lower(): count for replication, count in counts.acknowledged.items()}
    yield _counter("acknowledged", "Messages answered 250, by whether a synced second copy existed.", "replication", acknowledged)
    yield _counter("refused", "Messages that no responsibility was taken for, by reason.", "reason", counts.refused)
    yield _counter(
        "handed_over_by_running_messages",
        "Shadow messages taken over at the word of a primary that does not drain: it cannot deliver, or its key was stolen.",
        "primary",
        counts.handed_by_running,
    )
    yield _counter(
        "copies_over_limit", "Copies of a peer that were refused, because too much is held for it.", "primary", counts.copies_over_limit
    )
    yield _counter("promoted_messages", "Shadow messages taken over, by reason.", "reason", counts.promoted)
    yield _counter("delivery_attempts", "Delivery attempts of forks, by result.", "result", counts.attempts)
    yield _counter("delayed_acknowledgements", "Messages whose 250 waited for a delivery, by why it was given.", "why", counts.delayed)
    yield CounterMetricFamily("shadowrelay_acknowledgement_delay_seconds", "How long they waited, in all.", value=counts.delay_seconds)
    yield CounterMetricFamily(
        "shadowrelay_resubmitted_messages", "Messages made from those in Safety Net, on request.", value=counts.resubmitted
    )
    yield CounterMetricFamily(
        "shadowrelay_notices_suppressed", "Notifications for strangers' mail that were not made.", value=counts.notices_suppressed
    )
    yield CounterMetricFamily(
        "shadowrelay_shared_fate",
        "Messages with a copy on a server that may be lost with this one: it is not redundant.",
        value=counts.shared_fate,
    )
    yield CounterMetricFamily("shadowrelay_discarded", "Shadow messages discarded because their primary was done.", value=counts.discarded)
    bounds = [*map(str, LATENCY_BUCKETS_SECONDS), "+Inf"]
    yield HistogramMetricFamily(
        "shadowrelay_shadow_latency_seconds",
        "End of content until the shadow copy was stored.",
        buckets=list(zip(bounds, accumulate(counts.latencies), strict=True)),
        sum_value=counts.latencies_seconds,
    )


def _counter(name: str, documentation: str, label: str, counts: Mapping[Any, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"shadowrelay_{name}", documentation, labels=[label])
    for value, count in counts.items():
        family.add_metric([str(value)], count)
    return family


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


def _untold_family(untold: Untold | None) -> GaugeMetricFamily:
    count = 0 if untold is None else untold.count
    return GaugeMetricFamily(
        "shadowrelay_untold_messages", "Messages that are done and not reported, while what was made of them is on one disk only.", count
    )


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


class _AtScrape(Collector):
    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(())
