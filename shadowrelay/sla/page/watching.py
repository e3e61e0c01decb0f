"""What is different on a page that `sla watch` keeps up to date: it says so, and loads itself again. docs/sla.md, 7."""

from shadowrelay.sla.page.markup import Child, Html, tag
from shadowrelay.sla.page.shape import Summary
from shadowrelay.sla.page.spoken import counted, duration, instant

RELOAD_SECONDS_MIN = 30  # a reader must be able to read


def reload(summary: Summary) -> Html | None:
    """For the head; None on a page that stays as it is."""
    watch = summary.get("watch")
    if watch is None:
        return None
    return tag("meta", http_equiv="refresh", content=str(max(RELOAD_SECONDS_MIN, round(watch["interval_seconds"]))))


def watched(summary: Summary) -> Html | None:
    """When it was made, what came late, and what does not work."""
    watch = summary.get("watch")
    if watch is None:
        return None
    said: list[Child] = ["Kept up to date by ", tag("code", "sla watch"), ", looking every ", duration(watch["interval_seconds"])]
    said += ["; as of ", instant(watch["updated_at"]), " UTC"]
    if watch["late_rows"]:
        said += ["; ", counted(watch["late_rows"], "row"), " came late (in these figures, not in the live ones)"]
    if watch.get("ahead_rows"):
        said += ["; ", counted(watch["ahead_rows"], "row"), " came ahead of the clock"]
    if watch["failing"]:
        said += ["; not working now: ", ", ".join(sorted(watch["failing"]))]
    return tag("p", *said, ".", class_="period")
