"""summary.json from lines of figures: names, nesting and instants as docs/sla.md, section 6, shows them. No Spark in here."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from shadowrelay.sla.figures.scopes import BURN_WINDOWS_HOURS

SCHEMA_VERSION = 1
LIST_MAX = 200
TRACED_MAX = 100
HOURS_OF_ALL, HOURS_OF_REST = 168, 48
LONG_SCOPES = ("all", "site")
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


def is_in_summary(row: Line, newest_hour: int | None) -> bool:
    """`all` and `day` wholly, of hours the last ones. Shapes: `newest_hour` in microseconds: the last hour that has figures."""
    if row["window"] in BURN_WINDOWS_HOURS:
        return False
    if row["window"] != "hour" or newest_hour is None:
        return True
    hours = HOURS_OF_ALL if row["scope"] in LONG_SCOPES else HOURS_OF_REST
    return bool(row["start"] > newest_hour - hours * 3_600_000_000)


def without_instants(row: Line, instants: Iterable[str]) -> dict[str, Any]:
    """A line of a list, with its instants (microseconds) as text."""
    return {name: instant(value) if name in set(instants) else value for name, value in row.items()}


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
