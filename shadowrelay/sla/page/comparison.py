"""The figures that matter most, beside those of the period before, which has the same length. docs/sla.md, 8."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shadowrelay.sla.objectives import SAFETY, SPEED
from shadowrelay.sla.page.summary_types import Before, Figures, KindVerdict, Summary
from shadowrelay.sla.page.telling import has_copies, told
from shadowrelay.sla.page.wording import count, duration, milliseconds, percent


@dataclass(frozen=True, slots=True)
class MainFigure:
    """`value` is null where there is no figure, or the logs do not tell it of some messages; `known` is then the part that they tell.
    `objective`: that whose logs tell it, or not at all."""

    title: str
    value: Callable[[Figures], float | None]
    spoken: Callable[[float | None], str]
    objective: str
    known: Callable[[Figures], float | None] = lambda _: None

    def of(self, summary: Summary, period: Summary | Before) -> float | None:
        """A count of what no log has rows about is no 0, nor one of copies where none was made."""
        if self.objective == "shadows_orphaned" and not has_copies(period):
            return None
        number = self.value(period["overall"])
        return None if number is None else told(number, summary, self.objective)

    def said(self, summary: Summary, period: Summary | Before) -> str:
        """`3`; `at least 3`; a dash."""
        number, known = self.of(summary, period), self.known(period["overall"])
        return f"at least {self.spoken(known)}" if number is None and known else self.spoken(number)


def _exposed(title: str, name: Literal["messages_exposed", "exposure_max_seconds"], spoken: Callable[[float | None], str]) -> MainFigure:
    """Exchange's logs do not tell it of messages that were taken over."""
    return MainFigure(
        title,
        lambda figures: None if figures.get("messages_exposure_unknown", 0) else figures[name],
        spoken,
        "exposure",
        lambda figures: figures[name],
    )


MAIN_FIGURES = (
    MainFigure("Messages acknowledged", lambda figures: figures["messages_acknowledged"], count, ""),
    MainFigure("With a second copy before the 250", lambda figures: figures["redundancy_ratio"], percent, "redundancy_ratio"),
    MainFigure("Recipients lost", lambda figures: figures["recipients_lost"], count, "recipients_lost"),
    MainFigure(
        "Unexplained duplicates", lambda figures: figures["recipients_duplicated_unexplained"], count, "recipients_duplicated_unexplained"
    ),
    MainFigure("Duplicates", lambda figures: figures["recipients_duplicated"], count, "recipients_duplicated_unexplained"),
    _exposed("Messages with one copy only for a time", "messages_exposed", count),
    _exposed("Longest time with one copy only", "exposure_max_seconds", duration),
    MainFigure("Left-over copies", lambda figures: figures["shadows_orphaned"], count, "shadows_orphaned"),
    MainFigure("Takeovers", lambda figures: figures["promotions"], count, "takeover"),
    MainFigure("Second copy made, p99", lambda figures: figures["shadow_latency_ms"].get("p99"), milliseconds, "shadow_latency"),
    MainFigure("Copies cleaned up, p95", lambda figures: figures["discard_lag_ms"].get("p95"), milliseconds, "discard_lag"),
    MainFigure("Delivered, p99", lambda figures: figures["delivery_latency_ms"].get("p99"), milliseconds, "delivery_latency"),
)
"""Also for the terminal."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Shapes: `change` says more, less or the same, and is empty where one of the two has no figure."""

    title: str
    now: str
    before: str
    change: str


def comparison(summary: Summary) -> list[Compared]:
    """Empty if there is no period before, or no message in it."""
    before = summary["before"]
    if before is None or not before["overall"]["messages_acknowledged"]:
        return []
    compared = []
    for kind in (SAFETY, SPEED):
        one, other = summary["verdict"][kind], before["verdict"][kind]
        change = _change(len(one["missed"]), len(other["missed"]))
        compared.append(Compared(f"{kind.capitalize()} targets missed", _missed(one), _missed(other), change))
    for figure in MAIN_FIGURES:
        change = _change(figure.of(summary, summary), figure.of(summary, before))
        compared.append(Compared(figure.title, figure.said(summary, summary), figure.said(summary, before), change))
    return compared


def _missed(of_kind: KindVerdict) -> str:
    return f"{len(of_kind['missed'])} of {of_kind['judged']}"


def _change(now: float | None, before: float | None) -> str:
    if now is None or before is None:
        return ""
    return "same" if now == before else "more" if now > before else "less"
