"""What Prometheus reads."""

from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shadowrelay.admin.metrics import LABEL_VALUES_MAX, PrometheusMetrics
from shadowrelay.model.counts import AttemptResult, Counts, Refusal
from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import QueueKind, QueueRow, Untold
from shadowrelay.model.tracking import Acknowledged, Replication, ResubmitReason
from tests.admin.conftest import ENVELOPE, NOW

MX2, MX3 = ServerName("mx2"), ServerName("mx3")


def samples(metrics):
    """Name and label values, in the order of the labels' names, to value."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_what_the_services_count_is_shown_by_reason_and_result(metrics, counts):
    counts.acknowledged[Replication.SUCCESS] += 2
    counts.acknowledged[Replication.FAILED] += 1
    counts.refused[Refusal.NOT_REDUNDANT] += 1
    counts.promoted[ResubmitReason.SILENCE] += 42
    counts.attempts[AttemptResult.DEFERRED] += 1
    counts.delayed[Acknowledged.BEST_EFFORT] += 1
    counts.delay_seconds += 2.5
    counts.resubmitted += 3
    counts.discarded += 7

    shown = {key: value for key, value in samples(metrics).items() if key[0].endswith("_total") and value}
    assert {
        ("shadowrelay_acknowledged_total", "success"): 2,
        ("shadowrelay_acknowledged_total", "failed"): 1,
        ("shadowrelay_refused_total", "not redundant"): 1,
        ("shadowrelay_promoted_messages_total", "Silence"): 42,
        ("shadowrelay_delivery_attempts_total", "deferred"): 1,
        ("shadowrelay_delayed_acknowledgements_total", "best effort"): 1,
        ("shadowrelay_acknowledgement_delay_seconds_total",): 2.5,
        ("shadowrelay_resubmitted_messages_total",): 3,
        ("shadowrelay_discarded_total",): 7,
    } == shown


def test_every_reason_and_result_begins_at_zero(metrics):
    counted = samples(metrics)

    assert {0} == {counted["shadowrelay_acknowledged_total", replication.lower()] for replication in Replication}
    assert {0} == {counted["shadowrelay_refused_total", reason] for reason in Refusal}
    assert {0} == {counted["shadowrelay_promoted_messages_total", reason] for reason in ResubmitReason}
    assert {0} == {counted["shadowrelay_delivery_attempts_total", result] for result in AttemptResult}
    assert {0} == {counted["shadowrelay_delayed_acknowledgements_total", why] for why in Acknowledged}


def test_shadow_latency_is_a_histogram(metrics, counts):
    counts.latencies[1], counts.latencies[8] = 1, 1
    counts.latencies_seconds = 0.3015

    counted = samples(metrics)
    assert [0, 1, 2, 2] == [counted["shadowrelay_shadow_latency_seconds_bucket", le] for le in ("0.001", "0.002", "0.5", "+Inf")]
    assert 0.3015 == pytest.approx(counted["shadowrelay_shadow_latency_seconds_sum",])


async def test_queues_have_depth_and_oldest_age_by_kind_and_empty_ones_are_zero(metrics, node):
    metrics.observe_queues(await node.list_queues())

    counted = samples(metrics)
    assert [(5, 90.0), (0, 0.0), (0, 0.0)] == [
        (counted["shadowrelay_queue_messages", kind], counted["shadowrelay_queue_oldest_age_seconds", kind])
        for kind in ("Delivery", "Submission", "Shadow")
    ]


async def test_messages_of_whose_end_nobody_may_hear_are_counted(metrics, node):
    before = samples(metrics)["shadowrelay_untold_messages",]

    metrics.observe_queues(await node.list_queues(), Untold(3, NOW, ENVELOPE.message_id, ENVELOPE.message_id))

    assert (0, 3) == (before, samples(metrics)["shadowrelay_untold_messages",])


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
    counts = Counts()
    other = PrometheusMetrics("1", ServerName("mx2"), counts, now=lambda: NOW)
    counts.discarded = 5

    assert [0, 5] == [samples(each)["shadowrelay_discarded_total",] for each in (metrics, other)]


def test_totals_with_a_label_are_read_at_each_scrape_and_a_broken_one_spoils_no_other(metrics):
    metrics.watch_totals("clients_limited", "By limit.", "limit", lambda: {"messages": 3})
    metrics.watch_totals("breaks", "Divided by nothing.", "limit", lambda: {"messages": 1 // 0})

    text = metrics.render().decode()

    assert 'shadowrelay_clients_limited_total{limit="messages"} 3.0' in text
    assert "breaks_total" not in text
