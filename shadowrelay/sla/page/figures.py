"""The sections about figures over time: redundancy, latencies, exposure, discard lag."""

from collections.abc import Sequence

from shadowrelay.sla.page import axes
from shadowrelay.sla.page.courses import Course, Value, pane
from shadowrelay.sla.page.incidents import longest_exposures
from shadowrelay.sla.page.markup import Child, Html, tag
from shadowrelay.sla.page.parts import section
from shadowrelay.sla.page.shape import Figures, Objective, Percentiles, Summary
from shadowrelay.sla.page.spoken import count, duration, milliseconds, percent

_KINDS = ("first", "second", "third")


def redundancy(summary: Summary) -> Html:
    """How many messages had their second copy in time."""
    promised = _objective(summary, "redundancy_ratio")
    course = Course(
        name="redundancy-ratio",
        title="Redundancy ratio",
        spoken=percent,
        axis=axes.nines,
        lines=(("Ratio", "first", lambda figure: figure["redundancy_ratio"]),),
        columns=(
            ("Acknowledged", lambda figure: figure["messages_acknowledged"], count),
            ("Without a copy", without_copy, count),
        ),
        promise=promised["objective"] if promised else None,
        promise_label=f"promised {percent(promised['objective'])}" if promised else "",
        explained="The scale is one of nines: each step up is ten times fewer messages without a copy.",
    )
    overall = summary["overall"]
    keys: list[tuple[str, Child]] = [
        ("With a second copy", percent(overall["redundancy_ratio"])),
        ("Messages acknowledged", count(overall["messages_acknowledged"])),
        ("Without one", count(without_copy(overall))),
        ("Reconstructed from copies", count(overall["messages_reconstructed"])),
    ]
    return section("redundancy", "Redundancy", pane(summary, course, keys), notes=["redundancy", "reconstructed"])


def without_copy(figures: Figures) -> int | None:
    """Messages that had no second copy, of those of which the logs tell; None where they tell of none."""
    ratio, redundant = figures["redundancy_ratio"], figures["messages_redundant"]
    if ratio is None:
        return None
    return round(redundant / ratio) - redundant if ratio else figures["messages_acknowledged"]


def latency(summary: Summary) -> Html:
    """Shadow and delivery latency, by percentiles."""
    overall = summary["overall"]
    shadow = _percentiles(summary, "shadow_latency", "Shadow latency", ("p50", "p95", "p99"))
    delivery = _percentiles(summary, "delivery_latency", "Delivery latency", ("p50", "p95", "p99"))
    share = overall["shadow_share"]
    shared = percent(None if share is None else round(share, 3))
    return section(
        "latency",
        "Latency",
        tag("h3", "Shadow"),
        pane(summary, shadow, [*_keys(overall["shadow_latency_ms"]), ("Share of the wait for 250", shared)]),
        tag("h3", "Delivery"),
        pane(summary, delivery, _keys(overall["delivery_latency_ms"])),
        notes=["shadow-latency", "delivery-latency", "percentile"],
    )


def exposure(summary: Summary) -> Html:
    """How long mail depended on one copy."""
    overall = summary["overall"]
    course = Course(
        name="exposure-seconds",
        title="Exposure",
        spoken=duration,
        axis=lambda values, _: axes.sums(values),
        sum_of=lambda figure: figure["exposure_seconds"],
        columns=(
            ("Intervals", lambda figure: figure["exposure_count"], count),
            ("Longest", lambda figure: figure["exposure_max_seconds"], duration),
        ),
        explained="The times of all messages together: two messages exposed for an hour are two hours.",
    )
    keys: list[tuple[str, Child]] = [
        ("Intervals", count(overall["exposure_count"])),
        ("All together", duration(overall["exposure_seconds"])),
        ("Longest", duration(overall["exposure_max_seconds"])),
    ]
    return section("exposure", "Exposure", pane(summary, course, keys), longest_exposures(summary), notes=["exposure"])


def discard_lag(summary: Summary) -> Html:
    """How long copies outlived their need."""
    overall = summary["overall"]
    course = _percentiles(summary, "discard_lag", "Discard lag", ("p50", "p95", "max"))
    keys = [*_keys(overall["discard_lag_ms"], ("p50", "p95", "max")), ("Late", count(overall["discards_late"]))]
    return section("discard-lag", "Discard lag", pane(summary, course, keys), notes=["discard-lag"])


def _objective(summary: Summary, name: str) -> Objective | None:
    return next((one for one in summary["objectives"] if one["name"] == name), None)


def _of(figures: Figures, name: str) -> Percentiles:
    match name:
        case "shadow_latency":
            return figures["shadow_latency_ms"]
        case "delivery_latency":
            return figures["delivery_latency_ms"]
        case _:
            return figures["discard_lag_ms"]


def rank(percentiles: Percentiles, name: str) -> int | None:
    """One percentile by its name; None where there is none."""
    match name:
        case "p50":
            return percentiles.get("p50")
        case "p95":
            return percentiles.get("p95")
        case "p99":
            return percentiles.get("p99")
        case _:
            return percentiles.get("max")


def _percentiles(summary: Summary, figure: str, title: str, ranks: Sequence[str]) -> Course:
    def value_of(name: str) -> Value:
        return lambda figures: rank(_of(figures, figure), name)

    objective = _objective(summary, figure)
    within = objective["within_seconds"] if objective else None
    return Course(
        name=figure.replace("_", "-"),
        title=title,
        spoken=milliseconds,
        axis=axes.times,
        lines=[(name, kind, value_of(name)) for name, kind in zip(ranks, _KINDS, strict=True)],
        columns=(("Count", lambda figures: _of(figures, figure).get("count"), count),),
        promise=None if within is None else within * 1000,
        promise_label=""
        if objective is None or within is None
        else f"promised {percent(objective['objective'])} within {duration(within)}",
    )


def _keys(percentiles: Percentiles, names: Sequence[str] = ("p50", "p95", "p99", "max")) -> list[tuple[str, Child]]:
    return [("Longest" if name == "max" else name, milliseconds(rank(percentiles, name))) for name in names]
