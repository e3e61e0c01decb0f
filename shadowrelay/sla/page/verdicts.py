"""The verdicts: the headline, what was promised and whether it was kept, and what is left of the error budgets."""

from dataclasses import dataclass

from shadowrelay.sla.page.cautions import unseen
from shadowrelay.sla.page.labels import COUNTED, OBJECTIVES, UNITS
from shadowrelay.sla.page.summary_types import Objective, Summary
from shadowrelay.sla.page.wording import burn, count, counted, duration, percent

_BURN_WINDOWS = ("1h", "6h", "1d", "30d")
_BAR_PIXELS = 120


def kind_of(verdict: str) -> str:
    """The verdict as a class."""
    return {"met": "met", "partly": "partly", "missed": "missed", "not computable": "unknowable"}.get(verdict, "unknown")


@dataclass(frozen=True, slots=True)
class Headline:
    """Shapes: `verdict` is that of an objective, or "partly"; it chooses the sign. `unseen` is the evidence that was not read, or empty."""

    text: str
    verdict: str
    unseen: str


def headline(summary: Summary) -> Headline:
    """Whether the promise was kept. Without all the evidence it has no green sign."""
    missing = unseen(summary)
    text, verdict = _claim(summary, missing)
    return Headline(text, "partly" if missing and verdict == "met" else verdict, missing)


def _claim(summary: Summary, missing: str) -> tuple[str, str]:
    verdicts = [objective["verdict"] for objective in summary["objectives"]]
    missed, judged = verdicts.count("missed"), len(verdicts) - verdicts.count("no data") - verdicts.count("not computable")
    if missed:
        return f"The promise was not kept: {missed} of {counted(judged, 'objective')} missed.", "missed"
    if not judged or not summary["overall"]["messages_acknowledged"]:
        return "There is nothing to judge.", "no data"
    if judged < len(verdicts):
        return f"The promise was kept, as far as it can be judged: {judged} of {counted(len(verdicts), 'objective')}.", "met"
    kept = "The promise was kept, as far as the logs go" if missing else "The promise was kept"
    return f"{kept}: {'all ' if judged > 1 else ''}{counted(judged, 'objective')} met.", "met"


# ---- objectives


def actual(objective: Objective) -> str:
    """What was achieved: a number for objectives that count, else a share."""
    return count(objective["actual"]) if objective["name"] in COUNTED else percent(objective["actual"])


def promise(objective: Objective) -> str:
    """What was promised: none, at most 3, 99 % within 250 ms."""
    wanted, within = objective["objective"], objective["within_seconds"]
    if objective["name"] in COUNTED:
        return f"at most {count(wanted)}" if wanted else "none"
    return percent(wanted) + ("" if within is None else f" within {duration(within)}")


def failures(objective: Objective) -> str:
    """11 of 43 resubmissions late. Empty if there were no events, and for objectives that count."""
    name, bad, total = objective["name"], objective["bad"], objective["good"] + objective["bad"]
    one, many, failed = UNITS.get(name, ("event", "events", "failed"))
    return f"{count(bad)} of {counted(total, one, many)} {failed}" if name not in COUNTED and total else ""


# ---- error budgets


@dataclass(frozen=True, slots=True)
class Budget:
    """Shapes: `left` is the share that is left, below zero if overdrawn, None if nothing is known; `burns` are (text, whether it is too
    fast) by window. Units: `pixels` is the length of the bar."""

    title: str
    left: float | None
    said: str
    pixels: float
    burns: list[tuple[str, bool]]
    used: str
    allowed: str


def budgets(summary: Summary) -> list[Budget]:
    """What is left of each allowance, and how fast it goes."""
    return [_budget(objective) for objective in summary["objectives"] if objective["verdict"] in ("met", "missed")]


def _budget(objective: Objective) -> Budget:
    left, is_counted = objective["budget_left"], objective["name"] in COUNTED
    events = objective["good"] + objective["bad"]
    allowed = objective["objective"] if is_counted else events * (1 - objective["objective"])
    rates = [objective["burn_rates"].get(key) for key in _BURN_WINDOWS]
    return Budget(
        title=OBJECTIVES.get(objective["name"], objective["name"]),
        left=left,
        said=percent(None if left is None else round(left, 4)),
        pixels=max(1.5, _BAR_PIXELS * min(1.0, left)) if left and left > 0 else 0.0,
        burns=[(burn(rate), rate is not None and rate > 1) for rate in rates],
        used=count(objective["actual"] if is_counted else objective["bad"]),
        allowed=count(allowed) if allowed >= 10 or allowed == 0 else f"{allowed:.2g}",
    )
