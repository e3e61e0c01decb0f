"""What weakens the figures: evidence that was not read, clocks that were wrong, and directories whose names do not match any server.

The headline names the unread evidence. The others are cautions below it. docs/sla.md, 8.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from shadowrelay.sla.objectives import LOG_ENDS
from shadowrelay.sla.page.summary_types import Summary
from shadowrelay.sla.page.wording import counted, parsed

_CLOCKS_DIFFER = timedelta(minutes=1)  # by so much any two may; and rows of a report that is being made may be younger than its beginning
_NAMED_MAX = 3
_UNREADABLE = "unreadable file"


def unseen(summary: Summary) -> str:
    """Evidence of which is known that it exists and was not read: `3 missing log files, 16 lines in quarantine`; empty if there is none."""
    given = summary["input"]
    unreadable = sum(one["count"] for one in given["quarantine"] if one["reason"] == _UNREADABLE)
    lines = summary["overall"]["lines_quarantined"] - unreadable  # such a file is one line there
    dropped = dropped_count(summary)
    ended = summary["causes"].get("losses", {}).get(LOG_ENDS, 0)
    parts = [
        counted(given["files_missing"], "missing log file") if given["files_missing"] else "",
        f"{counted(dropped, 'file')} dropped before {'it was' if dropped == 1 else 'they were'} shipped" if dropped else "",
        counted(unreadable, "unreadable file") if unreadable else "",
        f"{counted(lines, 'line')} in quarantine" if lines > 0 else "",
        f"what became of {counted(ended, 'recipient')} after a server's log ended" if ended else "",
    ]
    return ", ".join(part for part in parts if part)


def dropped_count(summary: Summary) -> int:
    """Files that nodes dropped before they could ship them; the list of them may be cut."""
    given = summary["input"]
    return max(given.get("dropped_count", 0), len(given["dropped_before_shipping"]))


# ---- clocks


@dataclass(frozen=True, slots=True)
class ClockCaution:
    """Rows or `now` are in the future, so mail that only waits may count as lost.

    Shapes: `newest_at` is the instant of the newest row, `now` that of the judgement; each is None if it is not in the future. `servers`
    names those whose logs have such rows, and may be empty.
    """

    newest_at: str | None
    servers: str
    now: str | None


def clock_caution(summary: Summary) -> ClockCaution | None:
    """None where every instant can be right."""
    made = parsed(summary["generated_at"])
    if made is None:
        return None
    given = summary["input"]
    newest_at = given["last_at"] if _is_after(given["last_at"], made) else None
    now = summary["now"] if _is_after(summary["now"], made) else None
    servers = [one["name"] for one in given["servers"] if _is_after(one["last_at"], made)]
    return ClockCaution(newest_at, _named(servers), now) if newest_at or now else None


def ahead_of_clock(summary: Summary) -> str:
    """`clock_caution` as plain text; empty if there is none."""
    caution = clock_caution(summary)
    if caution is None:
        return ""
    by = f", by the logs of {caution.servers}" if caution.servers else ""
    newest = (
        f"the newest event is dated {caution.newest_at}, after this report was made: a clock was wrong{by}" if caution.newest_at else ""
    )
    judged = f"all is judged as of {caution.now}, which is still to come: --now sets the right instant" if caution.now else ""
    text = "; ".join(part for part in (newest, judged) if part)
    return f"{text[:1].upper()}{text[1:]}."


def _is_after(text: str | None, made: datetime) -> bool:
    at = parsed(text)
    return at is not None and at - made > _CLOCKS_DIFFER


def _named(servers: list[str]) -> str:
    others = len(servers) - _NAMED_MAX
    return ", ".join(servers[:_NAMED_MAX]) + (f" and {counted(others, 'other')}" if others > 0 else "")


# ---- names and rows


def other_cautions(summary: Summary) -> list[str]:
    """The cautions that are plain text."""
    names = misnamed(summary)
    return [one for one in (names[:1].lower() + names[1:], _ahead(summary)) if one]


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


def _ahead(summary: Summary) -> str:
    watch = summary.get("watch")
    number = watch.get("ahead_rows", 0) if watch else 0
    if not number:
        return ""
    rows = f"{counted(number, 'row')} came dated more than an hour ahead of the clock of the machine that watches"
    return f"{rows}: that clock was wrong, or a server's. Live figures leave them out, this report counts them at the time they bear."
