"""The figures for Prometheus' node exporter, as a text file that its collector reads. docs/sla.md, 6."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from shadowrelay.sla.places import written_whole

PREFIX = "shadowrelay_sla_"
VERDICTS = {"met": 1, "missed": 0}


def write_textfile(path: str, summary: Mapping[str, Any]) -> None:
    """Whole, or not at all: a collector may read at any time."""
    with written_whole(path) as file:
        file.write(formatted(summary).encode("utf-8"))


def formatted(summary: Mapping[str, Any]) -> str:
    """Shapes: `summary` as in summary.json. What is null is left out. Units: as in the names; times are milliseconds there, seconds
    here."""
    lines: list[str] = []
    for name, samples in _metrics(summary):
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            lines += [f"# TYPE {PREFIX}{name} gauge", *(f"{PREFIX}{name}{_labels(labels)} {value}" for labels, value in known)]
    return "\n".join(lines) + "\n"


def _metrics(summary: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[dict[str, str], float | None]]]]:
    for name, value in summary["overall"].items():
        if not isinstance(value, Mapping):
            yield name, [({}, value)]
            continue
        base = name.removesuffix("_ms")
        yield f"{base}_count", [({}, value["count"])]
        quantiles = [({"quantile": key}, value[key] / 1000) for key in value if key != "count" and value[key] is not None]
        yield f"{base}_seconds", list(quantiles)
    objectives = summary["objectives"]
    yield "objective_met", [({"objective": each["name"]}, VERDICTS.get(each["verdict"])) for each in objectives]
    yield "objective_budget_left", [({"objective": each["name"]}, each["budget_left"]) for each in objectives]
    burning = [({"objective": each["name"], "window": window}, rate) for each in objectives for window, rate in each["burn_rates"].items()]
    yield "objective_burn_rate", list(burning)
    if "watch" in summary:
        yield from _watch_metrics(summary["watch"])


def _watch_metrics(watch: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[dict[str, str], float | None]]]]:
    """What `sla watch` says of itself. docs/sla.md, 7."""
    yield "watch_updated_timestamp_seconds", [({}, datetime.fromisoformat(watch["updated_at"]).timestamp())]
    for name in ("interval_seconds", "batches", "late_rows", "ahead_rows", "missed_rows", "failures"):
        yield f"watch_{name}", [({}, watch[name])]
    yield "watch_failing", [({"step": step}, 1) for step in watch["failing"]]


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
