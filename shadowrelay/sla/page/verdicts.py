"""The page's verdicts: the headline, each objective and whether it was met, and the rest of the error budgets. docs/sla.md, 8.

Safety is judged apart from speed, because slow mail was never in danger. Only a missed safety target is red.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shadowrelay.sla.objectives import NOT_TOLD, SAFETY, SPEED, WEAK, has_too_few
from shadowrelay.sla.page.cautions import unseen
from shadowrelay.sla.page.labels import COUNTED, FORMATS, OBJECTIVES, TIMES, UNITS
from shadowrelay.sla.page.summary_types import KindVerdict, Objective, Summary
from shadowrelay.sla.page.telling import wants_several
from shadowrelay.sla.page.wording import burn, count, counted, duration, percent, untold

_BURN_WINDOWS = ("1h", "6h", "1d", "30d")
_BAR_PIXELS = 120
OURS = "shadowrelay"


def kind_of(verdict: str) -> str:
    """The verdict as a class."""
    known = {"met": "met", "partly": "partly", "missed": "missed", "slow": "slow", "not computable": "unknowable"}
    return known.get(verdict, "unknown")


@dataclass(frozen=True, slots=True)
class Headline:
    """Shapes: `verdict` is that of an objective, or "partly", or "slow"; it chooses the sign. `missed` and `slow` are the names of the
    safety and speed targets that were missed. `unseen` is the evidence that was not read, or empty. `speed` is a sentence."""

    text: str
    verdict: str
    missed: Sequence[str]
    unseen: str
    speed: str
    speed_verdict: str
    slow: Sequence[str]


def headline(summary: Summary) -> Headline:
    """Whether mail was safe, and apart from it whether it was fast. Without all the evidence it has no green sign."""
    missing = unseen(summary)
    text, verdict = _claim(summary, missing)
    speed = summary["verdict"][SPEED]
    return Headline(
        text=text,
        verdict="partly" if missing and verdict == "met" else verdict,
        missed=summary["verdict"][SAFETY]["missed"],
        unseen=missing,
        speed=_speed(speed),
        speed_verdict="slow" if speed["missed"] else speed["verdict"],
        slow=speed["missed"],
    )


def _claim(summary: Summary, missing: str) -> tuple[str, str]:
    safety = summary["verdict"][SAFETY]
    missed, judged, targets = len(safety["missed"]), safety["judged"], safety["objectives"]
    if missed:
        return f"The promise was not kept: {missed} of {counted(judged, 'safety target')} missed.", "missed"
    if not judged or not summary["overall"]["messages_acknowledged"]:
        return "There is nothing to judge.", "no data"
    if judged < targets:
        return f"The promise was kept, as far as it can be judged: {judged} of {counted(targets, 'safety target')}.", "met"
    kept = "The promise was kept, as far as the logs go" if missing else "The promise was kept"
    return f"{kept}: {_all(judged, 'safety target')} met.", "met"


def _all(number: int, singular: str) -> str:
    return f"both {singular}s" if number == 2 else f"{'all ' if number > 1 else ''}{counted(number, singular)}"


def _speed(speed: KindVerdict) -> str:
    missed, judged, targets = len(speed["missed"]), speed["judged"], speed["objectives"]
    if missed:
        return f"Speed: {missed} of {counted(judged, 'target')} missed"
    if not judged:
        return "Speed: nothing to judge"
    unjudged = f", {targets - judged} could not be judged" if judged < targets else ""
    return f"Speed: {_all(judged, 'target')} met{unjudged}"


def whose(summary: Summary) -> str:
    """Whose logs these are, if they are not ours alone."""
    numbers: dict[str, int] = {}
    for one in summary["input"]["servers"]:
        name = FORMATS.get(one["format"], one["format"])
        if name:
            numbers[name] = numbers.get(name, 0) + 1
    if not numbers.keys() - {OURS}:
        return ""
    parts = [f"{name} ({counted(number, 'server')})" for name, number in sorted(numbers.items())]
    return f"These are logs of {' and '.join(parts)}."


def alone(summary: Summary) -> bool:
    """Whether these are the logs of one server, without a copy of anything: it had no other one, or the other logs are not here."""
    figures = summary["overall"]
    return len(summary["input"]["servers"]) == 1 and figures["redundancy_ratio"] == 0


def explained(summary: Summary) -> str:
    """Whether the duplicates have causes: 2 of them unexplained; of 3 of them Exchange's logs do not tell why; all explained."""
    unexplained, untold = summary["overall"]["recipients_duplicated_unexplained"], summary["causes"]["duplicates"].get(NOT_TOLD, 0)
    parts = [f"{count(unexplained)} of them unexplained"] if unexplained else []
    parts += [f"of {count(untold)} of them Exchange's logs do not tell why"] if untold else []
    return "; ".join(parts) or "all explained"


def lost(summary: Summary) -> str:
    """The recipients that were lost; apart from these, those whose loss may be nothing but a row that is missing."""
    number = summary["overall"]["recipients_lost"]
    unsure = min(number, sum(times for cause, times in summary["causes"].get("losses", {}).items() if cause in WEAK))
    if not number:
        return "no recipient lost"
    if unsure == number:
        return f"{counted(number, 'recipient')} without an end in the logs, perhaps for want of a row"
    return f"{counted(number, 'recipient')} lost" + (f", {count(unsure)} of them perhaps only for want of a row" if unsure else "")


def unknowable(summary: Summary) -> list[tuple[list[str], list[str], str]]:
    """Figures that the logs cannot give, each reason once: figures, formats, why."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for one in summary["not_computable"]:
        figures, formats = found.setdefault(str(one["why"]), ([], []))
        for names, name in ((figures, str(one["figure"])), (formats, str(one["format"]))):
            if name not in names:
                names.append(name)
    return [(figures, formats, why) for why, (figures, formats) in found.items()]


# ---- objectives


def actual(objective: Objective) -> str:
    """What was achieved: 7 recipients, 99.8 %."""
    name, value = objective["name"], objective["actual"]
    if name in COUNTED and value is not None:
        return counted(round(value), *COUNTED[name])
    return percent(value)


_HAPPENED = {  # what missed a number, in words that say what happened and not what was wished
    "recipients_lost": ("recipient lost", "recipients lost"),
    "recipients_duplicated_unexplained": ("recipient with an unexplained duplicate", "recipients with an unexplained duplicate"),
    "shadows_orphaned": ("left-over copy", "left-over copies"),
}


def missed(name: str, summary: Summary) -> str:
    """What a target that was missed came to: `1 recipient lost (promised: none)`."""
    objective = next((one for one in summary["objectives"] if one["name"] == name), None)
    title = OBJECTIVES.get(name, name)
    if objective is None:
        return title
    promised, within = promised_share(name, objective["objective"]), objective["within_seconds"]
    if name in _HAPPENED and objective["actual"] is not None:
        return f"{counted(round(objective['actual']), *_HAPPENED[name])} (promised: {promised})"
    time = f" within {duration(within)}" if within is not None else ""
    if name == "exposure" and (judged := objective["good"] + objective["bad"]):
        said = f"{count(objective['bad'])} of {counted(judged, 'message')} with one copy only for longer than {duration(within)}"
        return f"{said} (promised: {promised} without)"
    return f"{title[:1].lower()}{title[1:]}: {actual(objective)} (promised: {promised}{time})"


def sign_of(objective: Objective) -> str:
    """The verdict as a sign: a missed speed target is amber."""
    is_slow = objective["verdict"] == "missed" and objective["kind"] == SPEED
    return "slow" if is_slow else objective["verdict"]


def targets(summary: Summary) -> list[tuple[str, str, list[Objective]]]:
    """(kind, title, objectives): safety first."""
    titles = ((SAFETY, "Safety: was mail in danger?"), (SPEED, "Speed: was it slow?"))
    found = [(kind, title, [one for one in summary["objectives"] if one["kind"] == kind]) for kind, title in titles]
    return [each for each in found if each[2]]


def promise(objective: Objective, summary: Summary) -> str:
    """What was promised, and within what: none without an end within 2 d, at most 3, 99 % within 250 ms."""
    return _promised(objective["name"], objective["objective"], objective["within_seconds"], summary)


def _promised(name: str, wanted: float, within: float | None, summary: Summary) -> str:
    time = duration(_within(name, within, summary))
    at_once = duration(summary["times"]["shadow_heartbeat_frequency"]["seconds"])
    how = {
        "redundancy_ratio": "before the 250",
        "takeover": f"within {time} of the last sign of life, or {at_once} of finding the disk empty",
        "recipients_duplicated_unexplained": "in the whole period",
        "recipients_lost": f"without an end within {time}",
        "shadows_orphaned": f"held longer than {time}",
    }
    return f"{promised_share(name, wanted)} {how.get(name, f'within {time}')}"


def promised_share(name: str, wanted: float) -> str:
    """What was promised, alone: none, at most 3, 99 %."""
    if name not in COUNTED:
        return percent(wanted)
    return f"at most {count(wanted)}" if wanted else "none"


def promised_time(objective: Objective, summary: Summary) -> str:
    """Within what, in a few characters for the terminal: 250 ms, the 250. Empty where the promise is about the whole period."""
    if objective["name"] == "redundancy_ratio":
        return "the 250"
    seconds = _within(objective["name"], objective["within_seconds"], summary)
    return "" if seconds is None else duration(seconds)


def _within(name: str, within: float | None, summary: Summary) -> float | None:
    seconds = {time: value["seconds"] for time, value in summary["times"].items()}
    expiration = seconds["message_expiration_timeout"]
    by_times = {
        "takeover": seconds["shadow_resubmit_time_span"] + seconds["shadow_heartbeat_frequency"],
        "recipients_lost": expiration,
        "shadows_orphaned": expiration + seconds["safety_net_hold_time"],
    }
    return by_times.get(name) if within is None else within


def changed(objective: Objective, summary: Summary) -> str:
    """Lowered from the default 99 % within 250 ms. Empty where the target is the default."""
    default, within = objective["default"], objective["default_within_seconds"]
    is_counted = objective["name"] in COUNTED
    lower = objective["objective"] > default if is_counted else objective["objective"] < default
    higher = objective["objective"] < default if is_counted else objective["objective"] > default
    ours = objective["within_seconds"]
    if ours is not None and within is not None:
        lower, higher = lower or ours > within, higher or ours < within
    if not lower and not higher:
        return ""
    how = "changed" if lower and higher else "lowered" if lower else "raised"
    return f"{how} from the default {_promised(objective['name'], default, within, summary)}"


def changed_times(summary: Summary) -> list[tuple[str, str, str]]:
    """(name, time, default) of the nodes' times that are not the default: lateness is judged by them."""
    return [
        (TIMES.get(name, name), duration(time["seconds"]), duration(time["default_seconds"]))
        for name, time in summary["times"].items()
        if time["seconds"] != time["default_seconds"]
    ]


def failures(objective: Objective, summary: Summary) -> str:
    """11 of 43 resubmissions late. Empty if there were no events, and for objectives that count."""
    name, bad, total = objective["name"], objective["bad"], objective["good"] + objective["bad"]
    one, many, failed = UNITS.get(name, ("event", "events", "failed"))
    if name == "redundancy_ratio" and wants_several(summary):
        failed = f"without all that were wanted, {count(summary['overall']['messages_by_copies']['0'])} of them without any"
    said = f"{count(bad)} of {counted(total, one, many)} {failed}" if name not in COUNTED and total else ""
    unknown = objective.get("unknown", 0)
    return "; ".join(part for part in (said, f"of {untold(unknown)}" if unknown else "") if part)


# ---- error budgets


@dataclass(frozen=True, slots=True)
class Budget:
    """Shapes: `left` is the share that is left, below zero if overdrawn, None if there is no budget; `burns` are (text, whether it is too
    fast) by window. Units: `pixels` is the length of the bar."""

    title: str
    sign: str
    left: float | None
    said: str
    pixels: float
    burns: list[tuple[str, bool]]
    used: str
    allowed: str


def budgets(summary: Summary) -> list[Budget]:
    """What is left of each allowance, and how fast it goes. A target that allows nothing has no budget."""
    judged = [objective for objective in summary["objectives"] if objective["verdict"] in ("met", "missed")]
    return [_budget(objective) for objective in judged if _allows_some(objective)]


def _allows_some(objective: Objective) -> bool:
    return objective["objective"] > 0 if objective["name"] in COUNTED else objective["objective"] < 1


def _budget(objective: Objective) -> Budget:
    left, is_counted = objective["budget_left"], objective["name"] in COUNTED
    events = objective["good"] + objective["bad"]
    allowed = objective["objective"] if is_counted else round(events * (1 - objective["objective"]), 6)
    rates = [objective["burn_rates"].get(key) for key in _BURN_WINDOWS]
    return Budget(
        title=OBJECTIVES.get(objective["name"], objective["name"]),
        sign=sign_of(objective),
        left=left,
        said=_left(objective, allowed),
        pixels=max(1.5, _BAR_PIXELS * min(1.0, left)) if left and left > 0 else 0.0,
        burns=[(burn(rate), rate is not None and rate > 1) for rate in rates],
        used=count(objective["actual"] if is_counted else objective["bad"]),
        allowed=count(math.floor(allowed)) if allowed >= 1 else "less than 1",
    )


def _left(objective: Objective, allowed: float) -> str:
    left, bad = objective["budget_left"], objective["bad"]
    if left is None:
        _, many, _ = UNITS.get(objective["name"], ("event", "events", "failed"))
        is_few = objective["name"] not in COUNTED and has_too_few(objective["good"] + bad, objective["objective"])
        if is_few and bad:
            return f"overdrawn: {count(bad)} failed, and so few {many} allow less than 1"
        return f"too few {many} for a budget" if is_few else percent(None)
    if left < 0:
        return f"overdrawn: {count(bad)} failed, {count(math.floor(allowed))} allowed"
    return percent(round(left, 4))
