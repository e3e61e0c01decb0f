"""How the oracle counts: figures of what was added up, and the verdict on each objective. docs/sla.md, 3 and 5. Whole microseconds."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

SECOND = 1_000_000
UNITS = {"us": 1, "ms": 1000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86_400 * SECOND}
MINUTE, HOUR, DAY = UNITS["m"], UNITS["h"], UNITS["d"]
BURN_WINDOWS = {"1h": HOUR, "6h": 6 * HOUR, "1d": DAY, "30d": 30 * DAY}
PERCENTILES = {
    "shadow_latency_ms": ("p50", "p95", "p99", "max"),
    "discard_lag_ms": ("p50", "p95", "max"),
    "delivery_latency_ms": ("p50", "p95", "p99", "max"),
    "takeover_detection_ms": ("p50", "p95", "max"),
    "takeover_silence_ms": ("p50", "p95", "max"),
}
COUNTS = (
    "messages_acknowledged", "messages_reconstructed", "messages_redundant", "messages_dsn", "messages_sent_again", "messages_done",
    "exposure_count", "messages_exposed", "messages_exposure_unknown", "discards_late", "promotions", "messages_promoted", "takeovers_late",
    "recipients_lost", "recipients_duplicated",
    "recipients_duplicated_unexplained", "shadows_orphaned", "shadows_kept", "shadows_taken_back", "shadows_rerouted", "clock_skews",
)  # fmt: skip
NOT_LOGGED = {  # objectives about which a version of Exchange writes nothing at all
    "exchange2010": {"redundancy_ratio", "shadow_latency", "exposure", "discard_lag", "takeover", "shadows_orphaned"},
    "exchange2013": {"shadow_latency", "takeover"},
    "exchange2016": {"shadow_latency", "takeover"},
}
WAYS = ("shadow_server", "previous_hop", "next_hop")
DEFAULTS: dict[str, dict[str, Any]] = {
    "times": {
        "shadow_heartbeat_frequency": "2m",
        "shadow_resubmit_time_span": "3h",
        "safety_net_hold_time": "2d",
        "message_expiration_timeout": "2d",
    },
    "objectives": {
        "redundancy_ratio": 0.9999,
        "shadow_latency": {"within": "250ms", "ratio": 0.99},
        "exposure": {"within": "10m", "ratio": 0.9999},
        "discard_lag": {"ratio": 0.99},
        "delivery_latency": {"within": "1m", "ratio": 0.99},
        "takeover": {"ratio": 0.99},
        "recipients_lost": 0,
        "recipients_duplicated_unexplained": 0,
        "shadows_orphaned": 0,
    },
}


def span(text: str) -> int:
    """`250ms`, `2m`, `3h`: microseconds."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    return round(float(number) * UNITS[text[len(number) :]])


def instant(at: int | None) -> str | None:
    """As the summary writes it."""
    if at is None:
        return None
    return datetime.fromtimestamp(at // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at % SECOND:06d}Z"


def nearest_rank(values: Iterable[int], percent: int) -> int:
    """The `ceil(p * n)`-th of the sorted, in whole numbers."""
    ordered = sorted(values)
    return ordered[-(-percent * len(ordered) // 100) - 1]


def finished(values: dict[str, list[Any]]) -> dict[str, Any]:
    def of(name: str) -> list[Any]:
        return values.get(name, [])

    figure: dict[str, Any] = {name: sum(of(name)) for name in COUNTS if name not in ("messages_promoted", "exposure_count")}
    figure["messages_promoted"] = len(set(of("messages_promoted")))
    figure["exposure_count"] = len(of("exposure_us"))
    figure["exposure_seconds"] = sum(of("exposure_us")) / SECOND
    figure["exposure_max_seconds"] = max(of("exposure_us"), default=0) / SECOND
    judged = sum(of("messages_judged"))
    figure["redundancy_ratio"] = figure["messages_redundant"] / judged if judged else None
    figure["messages_by_copies"] = {str(number): of("copies").count(number) for number in range(4)}
    figure["messages_redundant_by_way"] = {way: of("way").count(way) for way in WAYS}
    figure["shadow_share"] = sum(of("shadow_us")) / sum(of("ack_us")) if sum(of("ack_us")) else None
    for name, wanted in PERCENTILES.items():
        found: dict[str, int | None] = {"count": len(of(name))}
        for which in wanted:
            percent = 100 if which == "max" else int(which[1:])
            found[which] = nearest_rank(of(name), percent) if of(name) else None
        figure[name] = found
    return figure


def objective(
    name: str, wanted: Any, overall: dict[str, Any], events: list[tuple[int, bool]], *, formats: set[str], untold: int, now: int
) -> dict[str, Any]:
    """The verdict on one. Shapes: `events` are (instant, whether it was good); `untold`: of how many the logs do not say it."""
    line = _judged(name, wanted, overall, events, untold, now)
    if formats and all(name in NOT_LOGGED.get(format, ()) for format in formats):
        line |= {"actual": None, "verdict": "not computable", "budget_left": None, "burn_rates": dict.fromkeys(BURN_WINDOWS)}
    return line


def _judged(name: str, wanted: Any, overall: dict[str, Any], events: list[tuple[int, bool]], untold: int, now: int) -> dict[str, Any]:
    if not isinstance(wanted, dict) and name != "redundancy_ratio":
        actual = overall[name]
        left = 1 - actual / wanted if wanted else float(actual == 0)
        verdict = "met" if actual <= wanted else "missed"
        return {"name": name, "objective": wanted, "actual": actual, "bad": actual, "verdict": verdict, "budget_left": left,
                "burn_rates": dict.fromkeys(BURN_WINDOWS)}  # fmt: skip
    ratio = wanted["ratio"] if isinstance(wanted, dict) else wanted
    if name == "exposure" and untold:
        return _bounded(ratio, [is_good for _, is_good in events], untold)
    good = sum(is_good for _, is_good in events)
    bad = len(events) - good
    if not events:
        return {"name": name, "objective": ratio, "actual": None, "good": 0, "bad": 0, "verdict": "no data", "budget_left": 1.0,
                "burn_rates": dict.fromkeys(BURN_WINDOWS)}  # fmt: skip
    allowed = len(events) * (1 - ratio)
    has_budget = ratio == 1 or len(events) * (1_000_000 - round(ratio * 1_000_000)) >= 1_000_000
    burns: dict[str, float | None] = {}
    left = None if not has_budget else 1 - bad / allowed if allowed else float(bad == 0)
    for window, length in BURN_WINDOWS.items():
        inside = [is_good for at, is_good in events if now - length < at <= now]
        burns[window] = inside.count(False) / len(inside) / (1 - ratio) if inside and ratio < 1 and has_budget else None
    return {"name": name, "objective": ratio, "actual": good / len(events), "good": good, "bad": bad,
            "verdict": "met" if good / len(events) >= ratio else "missed",
            "budget_left": left, "burn_rates": burns}  # fmt: skip


def _bounded(ratio: float, known: list[bool], untold: int) -> dict[str, Any]:
    """Judged only if it makes no difference what the logs do not tell."""
    total = len(known) + untold
    lowest, highest = sum(known) / total, (sum(known) + untold) / total
    verdict = "met" if lowest >= ratio else "missed" if highest < ratio else "not computable"
    actual = sum(known) / len(known) if known and verdict != "not computable" else None
    return {"name": "exposure", "objective": ratio, "actual": actual, "good": sum(known), "bad": known.count(False), "verdict": verdict,
            "budget_left": None, "burn_rates": dict.fromkeys(BURN_WINDOWS), "unknown": untold}  # fmt: skip
