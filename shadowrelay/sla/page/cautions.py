"""What weakens a verdict: evidence that nobody has seen, names that cannot have been right, and clocks."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from shadowrelay.sla.page.markup import Child, Html, tag
from shadowrelay.sla.page.shape import Summary
from shadowrelay.sla.page.spoken import counted, minute, parsed

_CLOCKS_DIFFER = timedelta(minutes=1)  # by so much any two may; and rows of a report that is being made may be younger than its beginning
_NAMED_MAX = 3
_UNREADABLE = "unreadable file"


def unseen(summary: Summary) -> str:
    """Evidence of which is known that it exists and was not read: `3 missing log files, 16 lines in quarantine`; empty if there is none."""
    given = summary["input"]
    unreadable = sum(one["count"] for one in given["quarantine"] if one["reason"] == _UNREADABLE)
    lines = summary["overall"]["lines_quarantined"] - unreadable  # such a file is one line there
    dropped = dropped_count(summary)
    parts = [
        counted(given["files_missing"], "missing log file") if given["files_missing"] else "",
        f"{counted(dropped, 'file')} dropped before {'it was' if dropped == 1 else 'they were'} shipped" if dropped else "",
        counted(unreadable, "unreadable file") if unreadable else "",
        f"{counted(lines, 'line')} in quarantine" if lines > 0 else "",
    ]
    return ", ".join(part for part in parts if part)


def dropped_count(summary: Summary) -> int:
    """Files that nodes dropped before they could ship them; the list of them may be cut."""
    given = summary["input"]
    return max(given.get("dropped_count", 0), len(given["dropped_before_shipping"]))


def cautions(summary: Summary) -> Html | None:
    """Below the headline; None where nothing is to be said."""
    said = [one for one in (_clock(summary), _misnamed(summary), _ahead(summary)) if one]
    if not said:
        return None
    return tag("ul", [tag("li", _sign(), tag("p", tag("b", "Caution: "), one)) for one in said], class_="cautions", role="list")


def _clock(summary: Summary) -> Child:
    """Rows or `now` from the future make time be up for mail that only waits."""
    made = parsed(summary["generated_at"])
    if made is None:
        return None
    said: list[Child] = []
    if _is_after(summary["input"]["last_at"], made):
        servers = [one["name"] for one in summary["input"]["servers"] if _is_after(one["last_at"], made)]
        said += [
            "the newest event is dated ",
            minute(summary["input"]["last_at"]),
            ", after this report was made (",
            minute(summary["generated_at"]),
        ]
        said += ["): a clock was wrong", f", by the logs of {_named(servers)}" if servers else "", ". "]
    if _is_after(summary["now"], made):
        said += ["All is judged as of " if said else "all is judged as of ", minute(summary["now"]), ", which is still to come: "]
        said += ["mail that only waits may count as lost, and copies as left behind. ", tag("code", "--now"), " sets the right instant."]
    return said or None


def _is_after(text: str | None, made: datetime) -> bool:
    at = parsed(text)
    return at is not None and at - made > _CLOCKS_DIFFER


def _named(servers: list[str]) -> str:
    others = len(servers) - _NAMED_MAX
    return ", ".join(servers[:_NAMED_MAX]) + (f" and {counted(others, 'other')}" if others > 0 else "")


def _misnamed(summary: Summary) -> Child:
    text = misnamed(summary)
    return f"{text[0].lower()}{text[1:]}" if text else None


def misnamed(summary: Summary) -> str:
    """Directories that are called as only the first label of a server is: its own rows and those of others about it then do not meet.
    Empty if there are none."""
    logged = {one["name"] for one in summary["input"]["servers"]}
    by_name: dict[str, list[str]] = {}
    for name in logged:
        by_name.setdefault(name.lower(), []).append(name)
    alike = {name: by_name.get(name.lower().partition(".")[0], []) for name in sorted({*_spoken_of(summary)} - logged)}
    pairs = [(name, directories[0]) for name, directories in alike.items() if len(directories) == 1]
    if not pairs:
        return ""
    one = len(pairs) == 1
    missing, there = _named([name for name, _ in pairs]), _named(sorted({short for _, short in pairs}))
    return (
        f"There {'is no log' if one else 'are no logs'} of {missing}, but {'one of' if one else 'of'} {there}. "
        f"If {'that is the same server, it counts' if one else 'these are the same servers, each counts'} as two here, and causes may be "
        f"wrong: give {'the directory' if one else 'each directory'} the server's full name, and make a warehouse of these logs anew."
    )


def _spoken_of(summary: Summary) -> Iterator[str]:
    for line in summary["figures"]:
        if line["scope"] in ("server", "pair"):
            yield from (name for name in (line["name"], line["other"]) if name)
    for takeover in summary["takeovers"]:
        yield from (takeover["old_primary"], takeover["new_primary"])


def _ahead(summary: Summary) -> Child:
    watch = summary.get("watch")
    number = watch.get("ahead_rows", 0) if watch else 0
    if not number:
        return None
    rows = f"{counted(number, 'row')} came dated more than an hour ahead of the clock of the machine that watches"
    return f"{rows}: that clock was wrong, or a server's. Live figures leave them out, this report counts them at the time they bear."


def _sign() -> Html:
    """A triangle, as on the road."""
    outline = tag("path", class_="outline", d="M12 2 23 21.500 1 21.500z")
    return tag(
        "svg", outline, tag("path", class_="sign", d="M12 9v6M12 18v.2"), class_="mark caution", viewBox="0 0 24 24", aria_hidden="true"
    )
