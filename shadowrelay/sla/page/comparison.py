"""The figures that matter most, beside those of the period before, which has the same length. docs/sla.md, 8."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shadowrelay.sla.objectives import SAFETY, SPEED
from shadowrelay.sla.page.summary_types import Figures, KindVerdict, Summary
from shadowrelay.sla.page.wording import count, duration, milliseconds, percent


def _exposed(name: Literal["messages_exposed", "exposure_max_seconds"]) -> Callable[[Figures], float | None]:
    """No figure where the logs do not tell it of some messages: Exchange's, that were taken over."""
    return lambda figures: None if figures.get("messages_exposure_unknown", 0) else figures[name]


MAIN_FIGURES: tuple[tuple[str, Callable[[Figures], float | None], Callable[[float | None], str]], ...] = (
    ("Messages acknowledged", lambda figures: figures["messages_acknowledged"], count),
    ("With a second copy before the 250", lambda figures: figures["redundancy_ratio"], percent),
    ("Recipients lost", lambda figures: figures["recipients_lost"], count),
    ("Unexplained duplicates", lambda figures: figures["recipients_duplicated_unexplained"], count),
    ("Duplicates", lambda figures: figures["recipients_duplicated"], count),
    ("Messages with one copy only for a time", _exposed("messages_exposed"), count),
    ("Longest time with one copy only", _exposed("exposure_max_seconds"), duration),
    ("Left-over copies", lambda figures: figures["shadows_orphaned"], count),
    ("Takeovers", lambda figures: figures["promotions"], count),
    ("Second copy made, p99", lambda figures: figures["shadow_latency_ms"].get("p99"), milliseconds),
    ("Copies cleaned up, p95", lambda figures: figures["discard_lag_ms"].get("p95"), milliseconds),
    ("Delivered, p99", lambda figures: figures["delivery_latency_ms"].get("p99"), milliseconds),
)
"""(title, value, how it reads), also for the terminal."""


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
        now, then = summary["verdict"][kind], before["verdict"][kind]
        change = _change(len(now["missed"]), len(then["missed"]))
        compared.append(Compared(f"{kind.capitalize()} targets missed", _missed(now), _missed(then), change))
    for title, value, spoken in MAIN_FIGURES:
        one, other = value(summary["overall"]), value(before["overall"])
        compared.append(Compared(title, spoken(one), spoken(other), _change(one, other)))
    return compared


def _missed(of_kind: KindVerdict) -> str:
    return f"{len(of_kind['missed'])} of {of_kind['judged']}"


def _change(now: float | None, before: float | None) -> str:
    if now is None or before is None:
        return ""
    return "same" if now == before else "more" if now > before else "less"
