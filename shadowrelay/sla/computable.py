"""What the formats of tracking logs do not say, and so which figures cannot be computed from them. docs/sla.md, 3, Exchange."""

from collections.abc import Collection

NO_REDUNDANCY_EVENTS = "Exchange 2010 logs no redundancy events"
NO_SHADOW_ELAPSED = "Exchange logs no time of the shadow copy (S:ShadowElapsed)"
NO_SILENT_SINCE = "Exchange does not log since when a lost server was silent (S:SilentSince): only exposure after a RECEIVE without a copy"
NO_TAKEOVER_TIMES = "Exchange logs neither S:SilentSince nor S:DetectedAt: takeovers are counted, and have no times"
BY_MESSAGE_ID = "Exchange 2010 knows a message by its Message-ID only"

_ABOUT_COPIES = ("redundancy_ratio", "shadow_latency", "shadow_share", "exposure", "discard_lag", "takeover", "shadows_orphaned")
_OF_2010 = {
    **dict.fromkeys(_ABOUT_COPIES, NO_REDUNDANCY_EVENTS),
    "messages_sent_again": BY_MESSAGE_ID,
}  # fmt: skip
_OF_LATER = {
    "shadow_latency": NO_SHADOW_ELAPSED,
    "shadow_share": NO_SHADOW_ELAPSED,
    "exposure": NO_SILENT_SINCE,
    "takeover": NO_TAKEOVER_TIMES,
}
NOT_LOGGED = {"exchange2010": _OF_2010, "exchange2013": _OF_LATER, "exchange2016": _OF_LATER}
PARTLY = {("exposure", "exchange2013"), ("exposure", "exchange2016")}
"""Said, but what there is of the figure is judged."""


def not_computable(formats: Collection[str]) -> list[dict[str, str]]:
    """`not_computable` of summary.json. Shapes: `formats` of the input."""
    return [
        {"figure": figure, "format": format_, "why": why}
        for format_ in sorted(formats)
        for figure, why in NOT_LOGGED.get(format_, {}).items()
    ]  # fmt: skip


def impossible(formats: Collection[str]) -> set[str]:
    """Figures that no format of the input allows to compute at all."""
    missing = [{figure for figure in NOT_LOGGED.get(each, {}) if (figure, each) not in PARTLY} for each in formats]
    return set.intersection(*missing) if missing else set()
