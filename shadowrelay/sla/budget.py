"""Objectives against figures: verdict, what is left of the error budget, and how fast it burns. docs/sla.md, 5. Plain arithmetic."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from shadowrelay.sla.figures.counting import BURN_WINDOWS_HOURS
from shadowrelay.sla.objectives import Promise, Share

Figures = Mapping[str, Any]

# objective -> (good, bad): the counts that are good ones and bad ones; where there is no such count: (all, good) or (all, bad) with a minus
_SHARES = {
    "redundancy_ratio": lambda row: (row["messages_redundant"], row["messages_not_redundant"]),
    "shadow_latency": lambda row: (row["shadow_good"], row["shadow_count"] - row["shadow_good"]),
    "exposure": lambda row: (row["exposure_judged"] - row["exposure_bad"], row["exposure_bad"]),
    "discard_lag": lambda row: (row["lag_count"] - row["discards_late"], row["discards_late"]),
    "delivery_latency": lambda row: (row["delivery_good"], row["delivery_count"] - row["delivery_good"]),
    "takeover": lambda row: (row["takeovers_in_time"], row["takeovers_late"]),
}
_NUMBERS = {
    "recipients_lost": "recipients",
    "recipients_duplicated_unexplained": "recipients",
    "shadows_orphaned": "copies",
}
"""objective -> of what they are; without any, the number means nothing."""


def judged(
    promise: Promise, overall: Figures, looking_back: Mapping[str, Figures], not_computable: Collection[str]
) -> list[dict[str, Any]]:
    """`objectives` of summary.json.

    Shapes: `looking_back`: of each window before now ("1h" …) its counts, where it has any; `not_computable` are objectives.
    """
    result = []
    for field in fields(promise.objectives):
        objective = getattr(promise.objectives, field.name)
        if isinstance(objective, Share):
            line = _share(field.name, objective, overall, looking_back)
            within = promise.lag_within if field.name == "discard_lag" else objective.within
            line["within_seconds"] = within.total_seconds() if within else None
        else:
            line = _number(field.name, objective, overall)
        if field.name in not_computable:
            line |= {"actual": None, "verdict": "not computable", "budget_left": None, "burn_rates": dict.fromkeys(BURN_WINDOWS_HOURS)}
        result.append(line)
    return result


def _share(name: str, objective: Share, overall: Figures, looking_back: Mapping[str, Figures]) -> dict[str, Any]:
    good, bad = _SHARES[name](overall)
    actual = good / (good + bad) if good + bad else None
    verdict = "no data" if actual is None else "met" if actual >= objective.ratio else "missed"
    may_fail = 1 - objective.ratio
    return _line(
        name, objective.ratio, actual, good, bad, verdict, budget_left=_left(bad, (good + bad) * may_fail),
        burn_rates={window: _burn_rate(name, looking_back.get(window), may_fail) for window in BURN_WINDOWS_HOURS},
    )  # fmt: skip


def _number(name: str, objective: int, overall: Figures) -> dict[str, Any]:
    bad, all_of_them = overall[name], overall[_NUMBERS[name]]
    verdict = "no data" if not all_of_them else "met" if bad <= objective else "missed"
    actual = bad if all_of_them else None
    return _line(name, objective, actual, all_of_them - bad, bad, verdict, _left(bad, objective), dict.fromkeys(BURN_WINDOWS_HOURS))


def _line(
    name: str,
    objective: float,
    actual: float | None,
    good: int,
    bad: int,
    verdict: str,
    budget_left: float,
    burn_rates: Mapping[str, float | None],
) -> dict[str, Any]:
    return {
        "name": name, "objective": objective, "within_seconds": None, "actual": actual, "good": good, "bad": bad, "verdict": verdict,
        "budget_left": budget_left, "burn_rates": dict(burn_rates),
    }  # fmt: skip


def _left(bad: int, allowed: float) -> float:
    if allowed <= 0:
        return 1.0 if bad == 0 else 0.0
    return 1 - bad / allowed


def _burn_rate(name: str, window: Figures | None, may_fail: float) -> float | None:
    good, bad = _SHARES[name](window) if window else (0, 0)
    if not good + bad or may_fail <= 0:
        return None
    return float(bad / (good + bad) / may_fail)
