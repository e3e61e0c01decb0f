"""summary.json from lines of figures: names, nesting and instants as docs/sla.md, section 6, shows them."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from shadowrelay.sla.figures.counting import COUNTS, MAXIMA, TIMES

SCHEMA_VERSION = 1
LIST_MAX = 200
TRACED_MAX = 100
INSTANTS = frozenset({"at", "start", "silent_since"})  # and all that end with _at: microseconds in transforms
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Line = Mapping[str, Any]


def instant(at: int | datetime | None) -> str | None:
    """ "2026-11-21T16:00:00Z", with microseconds where it has any. Shapes: microseconds since 1970, or an aware datetime."""
    if at is None:
        return None
    moment = at if isinstance(at, datetime) else _EPOCH + timedelta(microseconds=at)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def microseconds(at: datetime) -> int:
    """Since 1970. Shapes: `at` is aware."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def figures_of(row: Line) -> dict[str, Any]:
    """One line of figures, nested as in `overall`, without what is the input's."""
    judged = row["messages_redundant"] + row["messages_not_redundant"]
    return {
        "messages_acknowledged": row["messages_acknowledged"],
        "messages_reconstructed": row["messages_reconstructed"],
        "messages_redundant": row["messages_redundant"],
        "redundancy_ratio": row["messages_redundant"] / judged if judged else None,
        "messages_dsn": row["messages_dsn"],
        "messages_sent_again": row["messages_sent_again"],
        "messages_done": row["messages_done"],
        "shadow_latency_ms": _times(row, "shadow_latency", with_p99=True),
        "shadow_share": row["shadow_share_us"] / row["ack_share_us"] if row["ack_share_us"] else None,
        "exposure_count": row["exposure_count"],
        "exposure_seconds": row["exposure_us"] / 1e6,
        "exposure_max_seconds": row["exposure_max_us"] / 1e6,
        "discard_lag_ms": _times(row, "discard_lag"),
        "discards_late": row["discards_late"],
        "delivery_latency_ms": _times(row, "delivery_latency", with_p99=True),
        "promotions": row["promotions"],
        "messages_promoted": row["messages_promoted"],
        "takeover_detection_ms": _times(row, "takeover_detection"),
        "takeover_silence_ms": _times(row, "takeover_silence"),
        "takeovers_late": row["takeovers_late"],
        "recipients_lost": row["recipients_lost"],
        "recipients_duplicated": row["recipients_duplicated"],
        "recipients_duplicated_unexplained": row["recipients_duplicated_unexplained"],
        "shadows_orphaned": row["shadows_orphaned"],
        "clock_skews": row["clock_skews"],
    }


def _times(row: Line, metric: str, *, with_p99: bool = False) -> dict[str, Any]:
    names = ("count", "p50", "p95", "p99", "max") if with_p99 else ("count", "p50", "p95", "max")
    return {name: row[f"{metric}_{name}"] for name in names}


def placed_figures(row: Line) -> dict[str, Any]:
    """A line of `figures`: the window and scope first."""
    place = {"window": row["window"], "start": instant(row["start"]), "scope": row["scope"], "name": row["name"], "other": row["other"]}
    return place | figures_of(row)


def no_figures() -> dict[str, Any]:
    """The line of an input in which nothing happened."""
    counts = dict.fromkeys((*COUNTS, *MAXIMA, "messages_promoted"), 0)
    return counts | {name: 0 if name.endswith("_count") else None for name in TIMES}


def is_instant(name: str) -> bool:
    """A column of a list that holds microseconds since 1970."""
    return name in INSTANTS or name.endswith("_at")


def with_instants(row: Line) -> dict[str, Any]:
    """A line of a list, with its instants as text."""
    return {name: instant(value) if is_instant(name) else value for name, value in row.items()}


def traced(lists: Mapping[str, Iterable[Line]]) -> list[str]:
    """Messages to trace: of losses and unexplained duplicates first, at most TRACED_MAX.

    Shapes: `lists` as in summary.json, in the order in which they are listed there.
    """
    duplicates = list(lists["duplicates"])
    lines = [
        *lists["losses"],
        *(line for line in duplicates if line["cause"] == "unexplained"),
        *(line for line in duplicates if line["cause"] != "unexplained"),
        *lists["orphans"],
        *lists["exposures"],
    ]
    return list(dict.fromkeys(line["message"] for line in lines))[:TRACED_MAX]
