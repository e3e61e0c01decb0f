"""The figures beside those of the period before, which has the same length. docs/sla.md, 8."""

from collections.abc import Callable
from dataclasses import dataclass

from shadowrelay.sla.page.summary_types import Figures, Summary
from shadowrelay.sla.page.wording import count, duration, milliseconds, percent

Value = Callable[[Figures], float | None]

_ROWS: tuple[tuple[str, Value, Callable[[float | None], str]], ...] = (
    ("Messages acknowledged", lambda figures: figures["messages_acknowledged"], count),
    ("With a second copy before the 250", lambda figures: figures["redundancy_ratio"], percent),
    ("Recipients lost", lambda figures: figures["recipients_lost"], count),
    ("Unexplained duplicates", lambda figures: figures["recipients_duplicated_unexplained"], count),
    ("Duplicates", lambda figures: figures["recipients_duplicated"], count),
    ("Messages with one copy only for a time", lambda figures: figures["messages_exposed"], count),
    ("Longest time with one copy only", lambda figures: figures["exposure_max_seconds"], duration),
    ("Left-over copies", lambda figures: figures["shadows_orphaned"], count),
    ("Takeovers", lambda figures: figures["promotions"], count),
    ("Second copy made, p99", lambda figures: figures["shadow_latency_ms"].get("p99"), milliseconds),
    ("Copies cleaned up, p95", lambda figures: figures["discard_lag_ms"].get("p95"), milliseconds),
    ("Delivered, p99", lambda figures: figures["delivery_latency_ms"].get("p99"), milliseconds),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """Shapes: `change` says more, less or the same, and is empty where one of the two has no figure."""

    title: str
    now: str
    before: str
    change: str


def comparison(summary: Summary) -> list[Compared]:
    """Empty if there is no period before."""
    before = summary["before"]
    if before is None or not before["overall"]["messages_acknowledged"]:
        return []
    return [
        Compared(title, spoken(value(summary["overall"])), spoken(value(before["overall"])), _change(*map(value, _both(summary))))
        for title, value, spoken in _ROWS
    ]


def _both(summary: Summary) -> tuple[Figures, Figures]:
    assert summary["before"] is not None
    return summary["overall"], summary["before"]["overall"]


def _change(now: float | None, before: float | None) -> str:
    if now is None or before is None:
        return ""
    return "same" if now == before else "more" if now > before else "less"
