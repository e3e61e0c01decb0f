"""What the logs of a report can tell: the page, its tables and the terminal ask here before they say a number. docs/sla.md, 8.

A count of what no log has rows about is no zero. A server, a site or a boundary is judged by the formats of its own logs.
"""

from collections.abc import Mapping
from typing import TypeVar

from shadowrelay.sla.objectives import NO_REDUNDANCY_EVENTS, NOT_LOGGED
from shadowrelay.sla.page.summary_types import Before, Figure, Summary

Number = TypeVar("Number", int, float)


def tells(summary: Summary, figure: str, of: Figure | None = None) -> bool:
    """Whether the logs have rows about it, or those of one line of figures. The times of Exchange's takeovers alone are missing in its
    later versions."""
    formats = _formats(summary, of)
    return not formats or any(NOT_LOGGED.get(each, {}).get(figure) != NO_REDUNDANCY_EVENTS for each in formats)


def told(number: Number, summary: Summary, figure: str, of: Figure | None = None) -> Number | None:
    """The number; None, which is a dash, where the logs have no rows about it."""
    return number if tells(summary, figure, of) else None


def has_copies(period: Summary | Before) -> bool:
    """Whether a copy was made of which the logs tell: else none can be left over, or cleaned up late."""
    verdicts = {one["name"]: one["verdict"] for one in period["objectives"]}
    return verdicts.get("shadows_orphaned") not in ("no data", "not computable")


def wants_several(summary: Summary) -> bool:
    """Whether messages had more than one copy beside the server's own: then one that has not all of them may have some."""
    by_copies = summary["overall"]["messages_by_copies"]
    return by_copies["2"] + by_copies["3"] > 0


def unlogged(summary: Summary) -> list[str]:
    """Servers of which figures or takeovers are, and no log."""
    spoken = {one["name"] for one in summary["figures"] if one["scope"] == "server"}
    spoken |= {one[end] for one in summary["takeovers"] for end in ("old_primary", "new_primary")}
    return sorted(spoken - {one["name"] for one in summary["input"]["servers"]} - {""}) if summary["input"]["servers"] else []


def _formats(summary: Summary, of: Figure | None) -> set[str]:
    servers = summary["input"]["servers"]
    places: Mapping[str, str] = {"server": "name", "site": "site", "boundary": "boundary"}
    if of is not None and (place := places.get(of["scope"])):
        own = {one["format"] for one in servers if one.get(place) == of["name"]} - {""}
        if own:
            return own
    return {one["format"] for one in servers} - {""}
