"""The page's cautions: evidence that was not read, wrong clocks, directories whose names do not match any server. docs/sla.md, 8.

The headline names the unread evidence; the others are cautions.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from shadowrelay.sla.objectives import LOG_ENDS
from shadowrelay.sla.page.summary_types import Summary
from shadowrelay.sla.page.wording import counted, duration, parsed, utc

_CLOCKS_DIFFER = timedelta(minutes=1)  # by so much any two may; and rows of a report that is being made may be younger than its beginning
_SILENT_AT_LEAST = timedelta(hours=1)  # or the span, after which others would have taken its mail over
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
        _after_the_end(silent_servers(summary)) if not ended else "",
    ]
    return ", ".join(part for part in parts if part)


def silent_servers(summary: Summary) -> dict[str, int]:
    """Servers whose logs end long before the newest row, with the messages that they acknowledged and that are not done: they were down,
    or the rest of their logs was not collected. What others took over is known."""
    newest = min((at for at in (parsed(summary["input"]["last_at"]), parsed(summary["now"])) if at is not None), default=None)
    span = timedelta(seconds=summary["times"]["shadow_resubmit_time_span"]["seconds"])
    taken = {takeover["old_primary"] for takeover in summary["takeovers"]}
    ends = {one["name"]: parsed(one["last_at"]) for one in summary["input"]["servers"]}
    found = {}
    for line in summary["figures"]:
        at = ends.get(line["name"])
        if line["scope"] != "server" or line["window"] != "all" or newest is None or at is None or line["name"] in taken:
            continue
        waiting = line["messages_acknowledged"] - line["messages_done"]
        if waiting > 0 and newest - at > max(_SILENT_AT_LEAST, span):
            found[line["name"]] = waiting
    return found


def ended_early(summary: Summary) -> dict[str, tuple[str, float]]:
    """Servers whose logs end long before those of their own system: (the last row, how long before the newest row there). A report may be
    about several systems, of other years. Units: seconds."""
    span = timedelta(seconds=summary["times"]["shadow_resubmit_time_span"]["seconds"])
    ends: dict[tuple[str, bool], dict[str, tuple[str, datetime]]] = {}
    for one in summary["input"]["servers"]:
        if (text := one["last_at"]) and (at := parsed(text)) is not None:
            ends.setdefault((one["boundary"], one["format"].startswith("exchange")), {})[one["name"]] = text, at
    found: dict[str, tuple[str, float]] = {}
    for of_system in ends.values():
        newest = max(at for _, at in of_system.values())
        found |= {name: (text, (newest - at).total_seconds()) for name, (text, at) in of_system.items()
                  if newest - at > max(_SILENT_AT_LEAST, span)}  # fmt: skip
    return found


def gone(summary: Summary) -> str:
    """Of servers that were taken over and did not return: since when they have logged nothing. Empty if there are none."""
    away = {one["old_primary"] for one in summary["takeovers"] if not one["returned_at"] and not one["is_cut"]}
    early = {name: end for name, end in ended_early(summary).items() if name in away}
    said = [
        f"{name} has logged nothing since {_minute(text)}, {duration(before)} before the newest row of the others"
        for name, (text, before) in sorted(early.items(), key=lambda one: one[1])[:_NAMED_MAX]
    ]
    return "; ".join(said) + (f"; nor have {counted(len(early) - _NAMED_MAX, 'other')} since early" if len(early) > _NAMED_MAX else "")


def _after_the_end(silent: dict[str, int]) -> str:
    if not silent:
        return ""
    return f"what became of {counted(sum(silent.values()), 'message')} after the log of {_named(sorted(silent))} ended"


def dropped_count(summary: Summary) -> int:
    """Files that nodes dropped before they could ship them; the list of them may be cut."""
    given = summary["input"]
    return max(given.get("dropped_count", 0), len(given["dropped_before_shipping"]))


# ---- cautions


def cautions(summary: Summary) -> list[list[str]]:
    """Each as its sentences. The page has them below the headline, the command on standard error."""
    kinds = (_of_clocks, _of_silence, _of_names, _of_copies, _of_live_rows)
    return [said for kind in kinds if (said := kind(summary))]


def _of_clocks(summary: Summary) -> list[str]:
    """Rows or `now` are in the future, so mail that only waits may count as lost."""
    made, given, said = parsed(summary["generated_at"]), summary["input"], []
    if made is None:
        return []
    if _is_after(given["last_at"], made):
        servers = _named([one["name"] for one in given["servers"] if _is_after(one["last_at"], made)])
        said.append(
            f"The newest event is dated {_minute(given['last_at'])}, after this report was made ({_minute(summary['generated_at'])}): "
            f"a clock was wrong{f', by the logs of {servers}' if servers else ''}."
        )
    if _is_after(summary["now"], made):
        said += [
            f"All is judged as of {_minute(summary['now'])}, which is still to come: "
            "mail that only waits may count as lost, and copies as left behind.",
            "--now sets the right instant.",
        ]
    return said


def _is_after(text: str | None, made: datetime) -> bool:
    at = parsed(text)
    return at is not None and at - made > _CLOCKS_DIFFER


def _minute(text: str | None) -> str:
    return f"{utc(text, 'minutes')} UTC"


def _named(servers: list[str]) -> str:
    others = len(servers) - _NAMED_MAX
    return ", ".join(servers[:_NAMED_MAX]) + (f" and {counted(others, 'other')}" if others > 0 else "")


def _of_silence(summary: Summary) -> list[str]:
    silent, newest = silent_servers(summary), parsed(summary["input"]["last_at"])
    said: list[str] = []
    for one in summary["input"]["servers"]:
        at = parsed(one["last_at"])
        if one["name"] in silent and at is not None and newest is not None and len(said) < _NAMED_MAX:
            before = duration((newest - at).total_seconds())
            said.append(f"The log of {one['name']} ends at {_minute(one['last_at'])}, {before} before the newest event.")
    if len(silent) > _NAMED_MAX:
        said.append(f"Those of {counted(len(silent) - _NAMED_MAX, 'other server')} end early, too.")
    if said:
        said.append("Either such a server was down, and mail is in its queue, or the rest of its log was not collected.")
    return said


def _of_names(summary: Summary) -> list[str]:
    """Directories that are called as only the first label of a server is: its own rows and those of others about it then do not meet."""
    logged = {one["name"] for one in summary["input"]["servers"]}
    by_name: dict[str, list[str]] = {}
    for name in logged:
        by_name.setdefault(name.lower(), []).append(name)
    alike = {name: by_name.get(name.lower().partition(".")[0], []) for name in sorted({*_spoken_of(summary)} - logged)}
    pairs = [(name, directories[0]) for name, directories in alike.items() if len(directories) == 1]
    if not pairs:
        return []
    missing, there = _named([name for name, _ in pairs]), _named(sorted({short for _, short in pairs}))
    if len(pairs) == 1:
        return [
            f"There is no log of {missing}, but one of {there}.",
            "If that is the same server, it counts as two here, and causes may be wrong: "
            "give the directory the server's full name, and make a warehouse of these logs anew.",
        ]
    return [
        f"There are no logs of {missing}, but of {there}.",
        "If these are the same servers, each counts as two here, and causes may be wrong: "
        "give each directory the server's full name, and make a warehouse of these logs anew.",
    ]


def _of_copies(summary: Summary) -> list[str]:
    """Logs that were collected twice, together, or not at all, which whoever collects them may not know."""
    given = summary["input"]
    several, alike = given.get("one_server", []), given.get("files_alike", 0)
    said = [f"The directories {' and '.join(names)} have logs of one server: each row counts once." for names in several[:_NAMED_MAX]]
    if len(several) > _NAMED_MAX:
        said.append(f"So do those of {counted(len(several) - _NAMED_MAX, 'other server')}.")
    said += [
        f"The directory {directory} has logs of {_named(list(servers))}: each file counts as of the server that its rows name."
        for directory, *servers in given.get("one_directory", [])[:_NAMED_MAX]
    ]
    said += [
        f"{name} may be {' or '.join(servers[:_NAMED_MAX])}: Windows cuts such names at 15 characters. "
        "Hops and copies that only that name tells of may be judged wrongly."
        for name, *servers in given.get("cut_names", [])[:_NAMED_MAX]
    ]
    if silent := given.get("without_deliveries", []):
        its = "its" if len(silent) == 1 else "their"
        said += [
            f"What {_named(list(silent))} delivered to mailboxes is not in the logs (MSGTRKMD*.LOG): "
            f"mail counts as delivered when it was handed to {its} mailbox transport.",
            "Collect these logs, too.",
        ]
    if alike:
        have = "has" if alike == 1 else "have"
        said.append(f"{counted(alike, 'log file')} {have} the rows of another one, as a copy has: each row counts once.")
    return said


def _spoken_of(summary: Summary) -> Iterator[str]:
    for line in summary["figures"]:
        if line["scope"] in ("server", "pair"):
            yield from (name for name in (line["name"], line["other"]) if name)
    for takeover in summary["takeovers"]:
        yield from (takeover["old_primary"], takeover["new_primary"])


def _of_live_rows(summary: Summary) -> list[str]:
    watch = summary.get("watch")
    number = watch.get("ahead_rows", 0) if watch else 0
    if not number:
        return []
    rows = f"{counted(number, 'row')} came dated more than an hour ahead of the clock of the machine that watches"
    return [
        f"{rows}: that clock was wrong, or a server's.",
        "Live figures leave them out, this report counts them at the time they bear.",
    ]
