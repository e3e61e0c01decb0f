"""Who keeps copies for whom: a heat map of server pairs, and the figures of each server, site and boundary."""

from collections.abc import Mapping

from shadowrelay.sla.page.markup import Child, Html, tag
from shadowrelay.sla.page.parts import Column, Row, none, section, table
from shadowrelay.sla.page.shape import Figure, Summary
from shadowrelay.sla.page.spoken import NONE, count, counted, duration, milliseconds, percent

_WITHIN_SECONDS = 0.25  # what heat is measured by where nothing was promised
_HEATS = ((0.125, "h1"), (0.25, "h2"), (0.5, "h3"), (1.0, "h4"))


def pairs(summary: Summary) -> Html:
    """The section."""
    by_pair = {(one["name"], one["other"]): one for one in summary["figures"] if one["window"] == "all" and one["scope"] == "pair"}
    content = [_map(summary, by_pair) if by_pair else none("No copies between servers in this input."), _scopes(summary)]
    return section("servers", "Servers and pairs", content, notes=["redundancy", "shadow-latency"])


def _map(summary: Summary, by_pair: Mapping[tuple[str, str], Figure]) -> Html:
    objective = next((one for one in summary["objectives"] if one["name"] == "shadow_latency"), None)
    within = (objective["within_seconds"] if objective else None) or _WITHIN_SECONDS
    primaries = sorted({primary for primary, _ in by_pair})
    shadows = sorted({shadow for _, shadow in by_pair})
    columns = [Column("Primary server"), *[Column(shadow) for shadow in shadows]]
    rows = [
        Row([primary, *[_heat(by_pair.get((primary, shadow)), primary == shadow, within) for shadow in shadows]]) for primary in primaries
    ]
    caption = "Messages by the server that acknowledged them (row) and the server that had their copy (column)"
    aside = "The colour is p95 of their shadow latency. Taken over: messages that the column's server promoted when the row's was lost."
    steps = [
        *[(name, f"up to {duration(share * within)}") for share, name in _HEATS],
        ("h5", f"over {'the promised ' if objective else ''}{duration(within)}"),
    ]
    if any(one["shadow_latency_ms"].get("p95") is None for one in by_pair.values()):
        steps.insert(0, ("h0", "no latency logged"))
    legend = tag(
        "p", [tag("span", tag("span", class_=f"swatch {name}", aria_hidden="true"), said) for name, said in steps], class_="legend"
    )
    return tag("div", table("pairs-table", caption, columns, rows), legend, tag("p", aside, class_="aside"), class_="heat")


def _heat(figure: Figure | None, is_itself: bool, within: float) -> Html:
    if figure is None:
        said = tag("span", "the server itself" if is_itself else "no copies", class_="unseen")
        return said if is_itself else tag("span", NONE, said, class_="cell empty")
    p95 = figure["shadow_latency_ms"].get("p95")
    heat = "h0" if p95 is None else next((name for share, name in _HEATS if p95 <= share * within * 1000), "h5")
    details = [
        f"p95 {milliseconds(p95)}" if p95 is not None else None,
        f"{count(figure['messages_promoted'])} taken over" if figure["messages_promoted"] else None,
        counted(figure["shadows_orphaned"], "orphan") if figure["shadows_orphaned"] else None,
    ]
    return tag(
        "span", tag("b", count(figure["messages_acknowledged"])), [tag("small", one) for one in details if one], class_=f"cell {heat}"
    )


def _scopes(summary: Summary) -> list[Html]:
    found = []
    for scope, title in (("server", "Servers"), ("site", "Sites"), ("boundary", "Boundaries")):
        figures = [one for one in summary["figures"] if one["window"] == "all" and one["scope"] == scope]
        if figures and (scope == "server" or len(figures) > 1):
            rows = [_scope(one) for one in sorted(figures, key=lambda one: one["name"])]
            found.append(table(f"{scope}-figures", title, _columns(scope), rows, is_sortable=True))
    return found


def _columns(scope: str) -> list[Column]:
    heads = ("Acknowledged", "Ratio", "Shadow p95", "Delivery p95", "Exposure", "Taken over", "Duplicates", "Lost", "Orphans")
    return [Column(scope.capitalize()), *[Column(head, "number") for head in heads]]


def _scope(figure: Figure) -> Row:
    shadow, delivery = figure["shadow_latency_ms"].get("p95"), figure["delivery_latency_ms"].get("p95")
    counts = [figure["messages_promoted"], figure["recipients_duplicated"], figure["recipients_lost"], figure["shadows_orphaned"]]
    exposed, ratio, acknowledged = figure["exposure_seconds"], figure["redundancy_ratio"], figure["messages_acknowledged"]
    cells: list[Child] = [
        figure["name"] or "(unknown)",
        count(acknowledged),
        percent(ratio),
        milliseconds(shadow),
        milliseconds(delivery),
        duration(exposed),
        *[count(number) for number in counts],
    ]
    return Row(cells, [None, acknowledged, ratio, shadow, delivery, exposed, *counts])
