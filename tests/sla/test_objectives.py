"""Objectives from a file, and figures against them. docs/sla.md, 5."""

from datetime import timedelta

import pytest

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.sla.objectives import (
    Objectives,
    ServiceLevel,
    Share,
    Times,
    impossible,
    judged,
    not_computable,
    read_objectives,
    times_of,
    verdicts,
)
from shadowrelay.sla.report import formatted
from shadowrelay.sla.summary import no_figures


def written(tmp_path, text):
    path = tmp_path / "objectives.toml"
    path.write_text(text)
    return path


def line(name, overall, looking_back=None, promise=None, impossible=()):
    lines = judged(promise or ServiceLevel(), no_figures() | overall, looking_back or {}, impossible)
    return next(each for each in lines if each["name"] == name)


def test_the_defaults_are_those_of_the_nodes():
    promise = read_objectives(None)

    assert Times(timedelta(minutes=2), timedelta(hours=3), timedelta(days=2), timedelta(days=2)) == promise.times
    assert Objectives() == promise.objectives
    assert timedelta(minutes=2) == promise.lag_within


def test_a_file_changes_what_it_names(tmp_path):
    promise = read_objectives(
        written(
            tmp_path,
            '[times]\nshadow_heartbeat_frequency = "5s"\n[objectives]\nredundancy_ratio = 1\n'
            'exposure = { within = "1s" }\nshadows_orphaned = 2\n',
        )
    )

    assert timedelta(seconds=5) == promise.lag_within
    assert (Share(1.0), Share(0.9999, timedelta(seconds=1)), 2) == (
        promise.objectives.redundancy_ratio,
        promise.objectives.exposure,
        promise.objectives.shadows_orphaned,
    )
    assert Objectives().takeover == promise.objectives.takeover


UNKNOWN_EXPOSURES = {  # of 3,000 messages, so many are known to have been exposed for too long, or not: what follows
    "all known": (3000, 0, 0, "met", 1.0),
    "one not known": (2999, 0, 1, "not computable", None),
    "one in a million not known": (999_999, 0, 1, "met", 1.0),
    "nothing known": (0, 0, 1, "not computable", None),
    "too many too long, whatever the others were": (2000, 400, 600, "missed", 2000 / 2400),
}


@pytest.mark.parametrize(("good", "bad", "unknown", "verdict", "actual"), UNKNOWN_EXPOSURES.values(), ids=UNKNOWN_EXPOSURES)
def test_what_the_logs_do_not_tell_is_neither_good_nor_bad(good, bad, unknown, verdict, actual):
    told = line("exposure", {"messages_redundant": good + bad + unknown, "exposure_judged": good + bad, "exposure_bad": bad})

    assert (verdict, actual, good, bad, unknown) == tuple(told[name] for name in ("verdict", "actual", "good", "bad", "unknown"))
    assert unknown == 0 or (None, {None}) == (told["budget_left"], {*told["burn_rates"].values()})


def test_every_problem_is_named_with_file_key_and_remedy(tmp_path):
    path = written(
        tmp_path,
        """
        [times]
        heartbeat = "2m"
        safety_net_hold_time = 2
        [objectives]
        exposure = { ratio = 2 }
        recipients_lost = 0.5
        takeover = { within = "1s" }
        [else]
        """,
    )

    with pytest.raises(ConfigurationError) as caught:
        read_objectives(path)

    lines = str(caught.value).splitlines()
    assert 6 == len(lines)
    assert all(each.startswith(f"{path}: ") for each in lines)
    for words in (
        "times.heartbeat: unknown key; the keys are",
        "safety_net_hold_time: is not a duration",
        "else: unknown table",
        "like 0.999",
    ):
        assert words in str(caught.value)


def test_a_file_that_is_not_there_or_not_toml(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_objectives(tmp_path / "none.toml")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        read_objectives(written(tmp_path, "ratio"))


def test_a_share_has_a_budget_and_burns_it():
    month = no_figures() | {"messages_redundant": 999, "messages_not_redundant": 1}
    found = line("redundancy_ratio", {"messages_redundant": 19_999, "messages_not_redundant": 1}, {"30d": month})

    assert ("met", 19_999, 1) == (found["verdict"], found["good"], found["bad"])
    assert found["budget_left"] == pytest.approx(0.5)
    assert found["burn_rates"]["30d"] == pytest.approx(10)
    assert None is found["burn_rates"]["1h"]


def test_an_overdrawn_budget_is_below_zero():
    found = line("discard_lag", {"lag_count": 100, "discards_late": 3})

    assert ("missed", 120.0) == (found["verdict"], found["within_seconds"])
    assert found["budget_left"] == pytest.approx(-2)


@pytest.mark.parametrize(("messages", "left"), [(9_999, None), (10_000, 0.0), (20_000, 0.5)])
def test_fewer_messages_than_allow_one_failure_have_no_budget(messages, left):
    row = {"messages_redundant": messages - 1, "messages_not_redundant": 1}
    found = line("redundancy_ratio", row, {"30d": no_figures() | row})

    assert (left if left is None else pytest.approx(left, abs=1e-9)) == found["budget_left"]
    assert (left is None) == (found["burn_rates"]["30d"] is None)


def test_safety_is_judged_apart_from_speed():
    found = judged(ServiceLevel(), no_figures() | {"lag_count": 9, "discards_late": 9, "recipients": 3}, {}, ["takeover"])

    assert {
        "safety": {"verdict": "met", "missed": [], "judged": 2, "objectives": 5},
        "speed": {"verdict": "missed", "missed": ["discard_lag"], "judged": 1, "objectives": 4},
    } == verdicts(found)
    assert "no data" == verdicts([])["safety"]["verdict"]


def test_each_target_names_its_default_so_that_none_is_lowered_in_silence():
    promise = ServiceLevel(Times(shadow_heartbeat_frequency=timedelta(seconds=1)), Objectives(discard_lag=Share(0.5)))
    found = line("discard_lag", {}, promise=promise)

    assert (0.5, 0.99, 1.0, 120.0) == tuple(found[name] for name in ("objective", "default", "within_seconds", "default_within_seconds"))
    assert {"seconds": 1.0, "default_seconds": 120.0} == times_of(promise)["shadow_heartbeat_frequency"]


def test_without_an_allowance_all_is_left_or_nothing():
    promise = ServiceLevel(objectives=Objectives(redundancy_ratio=Share(1.0)))

    for bad, left in ((0, 1.0), (1, 0.0)):
        row = {"messages_redundant": 9, "messages_not_redundant": bad}
        found = line("redundancy_ratio", row, {"1h": no_figures() | row}, promise)
        assert (left, None) == (found["budget_left"], found["burn_rates"]["1h"])


def test_a_number_must_not_be_passed():
    assert ("met", 0, 7) == tuple(line("recipients_lost", {"recipients": 7})[name] for name in ("verdict", "actual", "good"))
    assert ("missed", 1, 0.0) == tuple(
        line("recipients_lost", {"recipients": 7, "recipients_lost": 1})[name] for name in ("verdict", "actual", "budget_left")
    )
    assert ("no data", None) == tuple(line("shadows_orphaned", {"recipients": 7})[name] for name in ("verdict", "actual"))


def test_what_the_logs_do_not_say_is_not_computable():
    assert {"shadow_latency", "shadow_share", "takeover"} == impossible({"exchange2016", "exchange2010"}) - {"exposure"}
    assert set() == impossible({"exchange2016", "shadowrelay"})
    assert [] == not_computable({"shadowrelay"})
    found = line("takeover", {"takeovers_in_time": 1}, impossible={"takeover"})
    assert ("not computable", None) == (found["verdict"], found["actual"])


def test_figures_for_prometheus():
    overall = {"messages_acknowledged": 3, "redundancy_ratio": None, "shadow_latency_ms": {"count": 3, "p50": 20, "p95": None}}
    objectives = [{"name": "exposure", "kind": "safety", "verdict": "missed", "budget_left": -0.5, "burn_rates": {"1h": 2.0, "6h": None}}]

    lines = formatted({"overall": overall, "objectives": objectives, "verdict": verdicts(objectives)}).splitlines()

    assert [
        "shadowrelay_sla_messages_acknowledged 3", "shadowrelay_sla_shadow_latency_count 3",
        'shadowrelay_sla_shadow_latency_seconds{quantile="p50"} 0.02',
        'shadowrelay_sla_verdict{kind="safety"} 0',
        'shadowrelay_sla_objective_met{objective="exposure"} 0', 'shadowrelay_sla_objective_budget_left{objective="exposure"} -0.5',
        'shadowrelay_sla_objective_burn_rate{objective="exposure",window="1h"} 2.0',
    ] == [each for each in lines if not each.startswith("#")]  # fmt: skip
