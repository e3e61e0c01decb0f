"""What Prometheus reads."""

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shadowrelay.admin.metrics import LABEL_VALUES_MAX, REFUSALS, PrometheusMetrics
from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import QueueKind, QueueRow
from shadowrelay.model.tracking import Replication, ResubmitReason
from tests.admin.conftest import NOW

MX2, MX3 = ServerName("mx2"), ServerName("mx3")


def samples(metrics):
    """Name and label values, in the order of the labels' names, to value."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_acknowledgements_are_counted_by_redundancy_and_begin_at_zero(metrics):
    metrics.acknowledged(Replication.SUCCESS)
    metrics.acknowledged(Replication.SUCCESS)
    metrics.acknowledged(Replication.FAILED)

    counted = samples(metrics)
    assert [2, 1, 0] == [counted["shadowrelay_acknowledged_total", replication] for replication in ("success", "failed", "disabled")]


def test_refusals_promotions_and_attempts_are_counted_by_their_word(metrics):
    metrics.refused("not_redundant")
    metrics.promoted(40, "Silence")
    metrics.promoted(2, "Silence")
    metrics.attempt("deferred")
    metrics.discarded(7)

    counted = samples(metrics)
    assert [1, 42, 1, 7] == [
        counted["shadowrelay_refused_total", "not_redundant"],
        counted["shadowrelay_promoted_messages_total", "Silence"],
        counted["shadowrelay_delivery_attempts_total", "deferred"],
        counted["shadowrelay_discarded_total",],
    ]


def test_the_words_of_a_label_are_bounded(metrics):
    for number in range(LABEL_VALUES_MAX + 10):
        metrics.refused(f"reason {number}")

    counted = {key: value for key, value in samples(metrics).items() if key[0] == "shadowrelay_refused_total"}
    assert LABEL_VALUES_MAX + 1 == len(counted)
    assert 10 + len(REFUSALS) == counted["shadowrelay_refused_total", "other"]


def test_every_known_reason_and_result_begins_at_zero(metrics):
    counted = samples(metrics)

    assert {0} == {counted["shadowrelay_refused_total", reason] for reason in ("error", "ledger", "not redundant")}
    assert {0} == {counted["shadowrelay_promoted_messages_total", reason.value] for reason in ResubmitReason}
    assert {0} == {
        counted["shadowrelay_delivery_attempts_total", result] for result in ("deferred", "delivered", "duplicate", "failed", "partly")
    }


def test_shadow_latency_is_a_histogram(metrics):
    metrics.shadow_latency(0.0015)
    metrics.shadow_latency(0.3)

    counted = samples(metrics)
    assert [0, 1, 2, 2] == [counted["shadowrelay_shadow_latency_seconds_bucket", le] for le in ("0.001", "0.002", "0.5", "+Inf")]
    assert 0.3015 == pytest.approx(counted["shadowrelay_shadow_latency_seconds_sum",])


async def test_queues_have_depth_and_oldest_age_by_kind_and_empty_ones_are_zero(metrics, node):
    metrics.observe_queues(await node.queues())

    counted = samples(metrics)
    assert [(5, 90.0), (0, 0.0), (0, 0.0)] == [
        (counted["shadowrelay_queue_messages", kind], counted["shadowrelay_queue_oldest_age_seconds", kind])
        for kind in ("Delivery", "Submission", "Shadow")
    ]


def shadow_queue(primary: ServerName, next_hop: str, count: int, minutes: int = 0) -> QueueRow:
    oldest_at = NOW - timedelta(minutes=minutes)
    if not next_hop:
        return QueueRow(f"mx1\\Shadow\\{primary}", QueueKind.SHADOW, primary, count, oldest_at, primary=primary)
    return QueueRow(f"mx1\\Shadow\\{primary}\\{next_hop}", QueueKind.SHADOW, next_hop, count, oldest_at, primary=primary)


def test_shadow_queues_have_depths_and_primary_servers_an_oldest_age(metrics):
    rows = [shadow_queue(MX2, "", 2, minutes=1), shadow_queue(MX2, "a:25", 3, minutes=2), shadow_queue(MX3, "a:25", 4)]
    metrics.observe_queues(rows)

    counted = samples(metrics)
    names = [("", "mx2"), ("a:25", "mx2"), ("a:25", "mx3")]
    assert [2, 3, 4] == [counted["shadowrelay_shadow_queue_messages", *name] for name in names]
    assert [120, 0] == [counted["shadowrelay_shadow_oldest_age_seconds", name] for name in (MX2, MX3)]
    assert 9 == counted["shadowrelay_queue_messages", "Shadow"]


def test_a_thousand_next_hops_do_not_make_a_thousand_series(metrics):
    metrics.observe_queues([shadow_queue(MX2, f"{number}.example", number) for number in range(1, 1001)])

    found = {key[1:]: value for key, value in samples(metrics).items() if key[0] == "shadowrelay_shadow_queue_messages"}
    assert (LABEL_VALUES_MAX + 1, 500_500) == (len(found), sum(found.values()))
    assert (1000, 950 * 951 / 2) == (found["1000.example", "mx2"], found["other", "mx2"])


def test_the_heartbeat_age_of_a_peer_grows_until_it_is_heard():
    awake = [100.0]
    metrics = PrometheusMetrics("1", ServerName("mx1"), now=lambda: datetime.now(UTC), awake=lambda: awake[0])
    metrics.expect_peers([MX2, MX3])
    awake[0] = 110.0
    metrics.heartbeat(MX2)
    awake[0] = 112.5

    counted = samples(metrics)
    assert [2.5, 12.5] == [counted["shadowrelay_heartbeat_age_seconds", server] for server in (MX2, MX3)]


def test_a_peer_that_is_no_longer_configured_has_no_heartbeat_age(metrics):
    metrics.expect_peers([MX2, MX3])
    metrics.expect_peers([MX3])

    assert [MX3] == [key[1] for key in samples(metrics) if key[0] == "shadowrelay_heartbeat_age_seconds"]


def test_a_state_is_read_at_each_scrape_and_one_that_fails_is_left_out(metrics):
    values = [3.0]
    metrics.watch("sessions", "Sessions now.", lambda: values[0])
    metrics.watch("broken", "Divided by nothing.", lambda: 1 / 0)
    metrics.watch_each("uses", "Of each.", "resource", lambda: {"disk": 97.5, "memory": 1})
    metrics.watch_each("breaks", "Divided by nothing.", "resource", lambda: {"disk": 1 / 0})
    assert 3.0 == samples(metrics)["shadowrelay_sessions",]

    values[0] = 4.0

    counted = samples(metrics)
    assert 4.0 == counted["shadowrelay_sessions",]
    assert ("shadowrelay_broken",) not in counted
    assert {"disk": 97.5, "memory": 1} == {key[1]: value for key, value in counted.items() if key[0] == "shadowrelay_uses"}
    assert [] == [key for key in counted if key[0] == "shadowrelay_breaks"]


def test_what_only_grows_is_a_counter(metrics):
    metrics.watch_total("shipped_files", "Files shipped.", lambda: 7)

    assert 7.0 == samples(metrics)["shadowrelay_shipped_files_total",]


def test_the_database_and_its_durability_are_shown(metrics):
    metrics.database("d1", 1, "FULL")
    metrics.database("d2", 2, "FULL")

    assert [("shadowrelay_database_info", "d2", "2", "FULL")] == [key for key in samples(metrics) if key[0] == "shadowrelay_database_info"]


def test_the_end_of_each_certificate_in_force_is_shown_and_no_other(metrics):
    metrics.certificates({"certificate": datetime(2026, 1, 1, tzinfo=UTC), "peer_authority": datetime(2030, 1, 1, tzinfo=UTC)})
    metrics.certificates({"certificate": datetime(2027, 1, 1, tzinfo=UTC)})

    shown = {key: value for key, value in samples(metrics).items() if "not_after" in key[0]}
    assert {("shadowrelay_certificate_not_after_timestamp_seconds", "certificate"): datetime(2027, 1, 1, tzinfo=UTC).timestamp()} == shown


def test_the_build_is_shown(metrics):
    assert 1.0 == samples(metrics)["shadowrelay_build_info", "mx1", "1.2.3"]


def test_two_nodes_in_one_process_do_not_share_counters(metrics):
    other = PrometheusMetrics("1", ServerName("mx2"), now=lambda: datetime.now(UTC), awake=lambda: 0.0)
    other.discarded(5)

    assert 0 == samples(metrics)["shadowrelay_discarded_total",]
