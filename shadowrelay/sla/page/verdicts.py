"""The verdicts: the headline, what was promised and whether it was kept, and what is left of the error budgets."""

from shadowrelay.sla.page.inputs import cautions, unseen
from shadowrelay.sla.page.labels import COUNTED, OBJECTIVES, UNITS
from shadowrelay.sla.page.markup import (
    NB,
    Child,
    Column,
    Html,
    Row,
    burn,
    count,
    counted,
    duration,
    kind_of,
    mark,
    minute,
    none,
    percent,
    section,
    table,
    tag,
)
from shadowrelay.sla.page.plots import pixels
from shadowrelay.sla.page.summary_types import Objective, Overall, Summary

_BURN_WINDOWS = (("1h", "1 h"), ("6h", "6 h"), ("1d", "1 d"), ("30d", "30 d"))


def claim(summary: Summary) -> tuple[str, str]:
    """The headline and the kind of verdict that it is."""
    verdicts = [objective["verdict"] for objective in summary["objectives"]]
    missed, judged = verdicts.count("missed"), len(verdicts) - verdicts.count("no data") - verdicts.count("not computable")
    if missed:
        return f"The promise was not kept: {missed} of {counted(judged, 'objective')} missed.", "missed"
    if not judged or not summary["overall"]["messages_acknowledged"]:
        return "There is nothing to judge.", "no data"
    if judged < len(verdicts):
        return f"The promise was kept, as far as it can be judged: {judged} of {counted(len(verdicts), 'objective')}.", "met"
    kept = "The promise was kept, as far as the logs go" if unseen(summary) else "The promise was kept"
    return f"{kept}: {'all ' if judged > 1 else ''}{counted(judged, 'objective')} met.", "met"


def headline(summary: Summary) -> Html:
    """The claim with what it rests without, and one sentence with the figures behind it."""
    text, verdict = claim(summary)
    missing = unseen(summary)
    without = tag("span", " Not seen: ", tag("a", missing, href="#input"), ".", class_="without") if missing else None
    shape = mark("partly" if missing and verdict == "met" else verdict)
    said = tag("div", tag("h1", text, without), tag("p", _evidence(summary), class_="lead"), cautions(summary))
    return tag("div", shape, said, class_="headline")


def _evidence(summary: Summary) -> Child:
    overall, given = summary["overall"], summary["input"]
    acknowledged = overall["messages_acknowledged"]
    if not acknowledged:
        return f"No message was acknowledged in {counted(given['files'], 'log file')} of {counted(len(given['servers']), 'server')}."
    return [*_redundant(acknowledged, overall["redundancy_ratio"]), *_ends(overall), _taken_over(overall)]


def _redundant(acknowledged: int, ratio: float | None) -> list[Child]:
    messages = tag("b", counted(acknowledged, "acknowledged message"))
    if ratio is None:
        return ["Of ", messages, " these logs do not tell how many had a second copy; "]
    return ["Of ", messages, ", ", tag("b", percent(ratio)), " had a synced copy on a second server before the client got its 250; "]


def _ends(overall: Overall) -> list[Child]:
    lost, duplicated, unexplained = (
        overall["recipients_lost"],
        overall["recipients_duplicated"],
        overall["recipients_duplicated_unexplained"],
    )
    said = f"{counted(duplicated, 'recipient')} got a message more than once" if duplicated else "none got a message twice"
    explained = (f" ({count(unexplained)} of them unexplained)" if unexplained else " (all explained)") if duplicated else ""
    return [tag("b", f"{counted(lost, 'recipient')} lost" if lost else "no recipient lost"), ", ", said, explained, "; "]


def _taken_over(overall: Overall) -> str:
    if not overall["promotions"]:
        return "no server was taken over."
    return f"{counted(overall['promotions'], 'takeover')} of {counted(overall['messages_promoted'], 'message')}."


def period(summary: Summary) -> Html:
    """From when to when, and as of when."""
    given = summary["input"]
    if not given["first_at"]:
        return tag("p", "No events.", class_="period")
    finality = "final: no more events will come" if summary["is_final"] else tag("span", "judged as of ", minute(summary["now"]))
    return tag("p", minute(given["first_at"]), " to ", minute(given["last_at"]), " · ", finality, class_="period")


def verdicts(summary: Summary) -> Html:
    """One card for each objective."""
    cards = [_card(objective) for objective in summary["objectives"]]
    content = tag("ul", cards, class_="cards", role="list") if cards else none("No objectives were given.")
    return section("objectives", "Objectives", content)


def _card(objective: Objective) -> Html:
    verdict, name = objective["verdict"], objective["name"]
    good, bad = objective["good"], objective["bad"]
    one, many, failed = UNITS.get(name, ("event", "events", "failed"))
    detail = f"{count(bad)} of {counted(good + bad, one, many)} {failed}" if name not in COUNTED and good + bad else ""
    return tag(
        "li",
        tag("h3", OBJECTIVES.get(name, name)),
        tag("p", mark(verdict), tag("b", verdict), class_=f"verdict {kind_of(verdict)}"),
        tag("p", _value(objective, objective["actual"]), class_="actual"),
        tag("p", f"promised {_promise(objective)}", class_="promised"),
        tag("p", detail, class_="detail") if detail else None,
        class_=f"card {kind_of(verdict)}",
    )


def _value(objective: Objective, value: float | None) -> str:
    return count(value) if objective["name"] in COUNTED else percent(value)


def _promise(objective: Objective) -> str:
    wanted, within = objective["objective"], objective["within_seconds"]
    if objective["name"] in COUNTED:
        return f"at most {count(wanted)}" if wanted else "none"
    return percent(wanted) + ("" if within is None else f" within {duration(within)}")


def budgets(summary: Summary) -> Html:
    """What is left of each allowance, and how fast it goes."""
    columns = [
        Column("Objective"),
        Column("Left of the budget", "budget"),
        *[Column(["Burn rate", " ", tag("span", spoken)], "number") for _, spoken in _BURN_WINDOWS],
        Column("Failed", "number"),
        Column("Allowed", "number"),
    ]
    rows = [_budget(objective) for objective in summary["objectives"] if objective["verdict"] in ("met", "missed")]
    if not rows:
        return section("budget", "Error budget", none("No objective could be judged, so no budget was used."), notes=["budget"])
    aside = tag(
        "p",
        f"A burn rate over 1 (marked{NB}▲) does not last. A dash: nothing is allowed, so nothing can burn, or there were no events.",
        class_="aside",
    )
    return section(
        "budget", "Error budget", table("budget-table", "Error budgets and burn rates", columns, rows), aside, notes=["budget", "burn-rate"]
    )


def _budget(objective: Objective) -> Row:
    left, name = objective["budget_left"], objective["name"]
    events = objective["good"] + objective["bad"]
    is_counted = name in COUNTED
    allowed = objective["objective"] if is_counted else events * (1 - objective["objective"])
    used = objective["actual"] if is_counted else objective["bad"]
    said = percent(None if left is None else round(left, 4))
    cells: list[Child] = [
        OBJECTIVES.get(name, name),
        [tag("span", said, " overdrawn" if left is not None and left < 0 else ""), _bar(left)],
        *[_burning(objective["burn_rates"].get(key)) for key, _ in _BURN_WINDOWS],
        count(used),
        count(allowed) if allowed >= 10 or allowed == 0 else f"{allowed:.2g}",
    ]
    return Row(cells)


def _burning(rate: float | None) -> Child:
    is_fast = rate is not None and rate > 1
    return tag("b", tag("span", "▲ ", aria_hidden="true"), burn(rate), class_="fast") if is_fast else burn(rate)


def _bar(left: float | None) -> Html:
    """What is left, of the whole allowance; overdrawn: a hatched bar."""
    if left is None:
        return Html("")
    width = 120 * min(1.0, max(0.0, left))
    kind = "over" if left < 0 else ("low" if left < 0.25 else "left")
    bars = [tag("rect", class_="track", width=120, height=10, rx=2)]
    if left < 0:
        bars.append(tag("path", class_="over", d=" ".join(f"M{x} 10 l8 -10" for x in range(0, 112, 8))))
    elif width:
        bars.append(tag("rect", class_=kind, width=pixels(max(1.5, width)), height=10, rx=2))
    return tag("svg", bars, class_="budget", viewBox="0 0 120 10", aria_hidden="true")
