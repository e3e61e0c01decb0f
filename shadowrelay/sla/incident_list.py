"""Lists what happened, in one list: when, which server, what, and sender and subject if a person must be informed. docs/sla.md, 4.

Pure functions over the lists of summary.json. A cut network is one event: the servers behind it were not lost, although others took
their mail over.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, cast

from shadowrelay.protocol.tracking import NULL_PATH
from shadowrelay.sla import first_steps
from shadowrelay.sla.objectives import COPIES_GONE, FURTHER_HOP, LOG_ENDS, NOT_TAKEN_OVER, WEAK
from shadowrelay.sla.page.cautions import ended_early
from shadowrelay.sla.page.labels import CAUSES, REASONS, SLOW, UNITS
from shadowrelay.sla.page.summary_types import Summary
from shadowrelay.sla.page.wording import NB, counted, duration, utc

Line = Mapping[str, Any]

Places = Mapping[str, tuple[str, str]]
"""Server -> boundary and site."""
SILENCE = "Silence"
UNEXPLAINED = "unexplained"
UNNAMED = "a server that the logs do not name"
ALONE = ("no copy at acknowledgement", "copy only on a shared fate", FURTHER_HOP)  # causes of exposures
CHARACTERS_MAX = 120  # of a reason
COPY_GONE = ("expired", "log missing")  # causes of left-over copies that nobody need look for
NAMED_MAX = 3  # servers, recipients; more are counted


def incidents(summary: Line) -> list[dict[str, Any]]:
    """`incidents` of summary.json. Mail that can still be saved comes first, then that about which a person must be informed, then the
    others; each part in order of time.

    Shapes: `summary` has all other lists, `cuts`, `overall`, `objectives`, `causes` and `slow_causes`.
    """
    losses = _losses(summary)
    told = [*(one for one in losses if one["tell"]), *_unexplained(summary["duplicates"])]
    others = [
        *(one for one in losses if not one["tell"]),
        *_cuts(summary["cuts"]),
        *_lost_servers(summary),
        *_duplicates(summary),
        *_exposures(summary),
        *_left_over(summary),
        *_unknown(summary),
        *_slow(summary),
    ]
    return [*_in_order(_open(summary)), *_in_order(told), *_in_order(others)]


def _in_order(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda one: (_parsed(one["at"]), one["kind"], one["who"], one["message"], one["recipient"]))


def _incident(kind: str, at: str | None, who: str, what: str, *, until: str | None = None, count: int = 1, **more: str) -> dict[str, Any]:
    named = {name: more.get(name) or "" for name in ("message", "recipient", "sender", "subject", "tell", "step")}
    return {"kind": kind, "at": at, "until": until, "who": who, "what": what.replace(NB, " "), "count": count, **named}


# ---- single messages


def _losses(summary: Line) -> list[dict[str, Any]]:
    """Nobody is to write to a sender because a log ends, and nobody can write to the one of a report (`<>`)."""
    known = [line for line in summary["losses"] if line["cause"] != LOG_ENDS]
    is_cut = len(summary["losses"]) < sum(summary["causes"].get("losses", {}).values())
    return [
        _told(
            "loss", lines, lines[0]["acknowledged_at"], server,
            f"did not get the message: {_why(summary, message, server, cause, lines[0]['acknowledged_at'])}",
            is_cut=is_cut, tell="" if cause in WEAK or lines[0]["sender"] == NULL_PATH else "sender",
            step=first_steps.of_loss(summary, cause, message, server, _holders(summary, message, cause), lines[0]["acknowledged_at"]),
        )
        for (message, server, cause), lines in _grouped(known, "message", "server", "cause")
    ]  # fmt: skip


def _why(summary: Line, message: str, server: str, cause: str, acknowledged_at: str) -> str:
    """The cause, and whose fault it may be, of which the rows of the message itself say nothing: it had one copy, on a server that was lost
    later. Both copies gone says less than that."""
    was_alone = any(line["message"] == message and line["cause"] in ALONE for line in summary["exposures"])
    begin = _parsed(acknowledged_at)
    end = begin + timedelta(seconds=summary["times"]["message_expiration_timeout"]["seconds"])
    of_server = [one for one in summary["takeovers"] if one["old_primary"] == server and not one["is_cut"]]
    was_lost = any(begin <= _parsed(one["first_resubmit_at"]) <= end for one in of_server)
    only = f"its only copy was on {server}, which was lost" if was_alone and was_lost else ""
    return only if only and cause == COPIES_GONE else "; ".join(filter(None, (_cause("losses", cause), only)))


def _holders(summary: Line, message: str, cause: str) -> list[str]:
    """Servers that may still have a copy of it: one that is left over, or whose time is not up yet."""
    left = {line["server"] for line in summary["orphans"] if line["message"] == message and line["cause"] not in COPY_GONE}
    rows = summary["traces"].get(message, ()) if cause == NOT_TAKEN_OVER else ()
    held, ended = ({row["server"] for row in rows if row["event"] in events} for events in (("HARECEIVE",), ("HADISCARD", "EXPIRE")))
    return sorted(left | (held - ended))


def _unexplained(duplicates: Sequence[Line]) -> list[dict[str, Any]]:
    unexplained = [line for line in duplicates if line["cause"] == UNEXPLAINED]
    return [
        _told(
            "duplicate", lines, _first(line["first_at"] for line in lines), server, f"got the message {_times(count)}: unexplained",
            until=_last(line["later_at"] for line in lines), tell="recipient",
        )
        for (_, server, count), lines in _grouped(unexplained, "message", "later_server", "count")
    ]  # fmt: skip


def _told(kind: str, lines: Sequence[Line], at: str | None, who: str, what: str, *, is_cut: bool = False, **more: Any) -> dict[str, Any]:
    """One message, about which several recipients may have to be informed."""
    recipients = [line["recipient"] for line in lines]
    others = len(recipients) - NAMED_MAX
    said = ", ".join(recipients[:NAMED_MAX]) + (f" and {'at least ' if is_cut else ''}{counted(others, 'other')}" if others > 0 else "")
    named = {name: lines[0][name] for name in ("message", "sender", "subject")} | {"recipient": ", ".join(recipients)}
    return _incident(kind, at, who, f"{said} {what}", count=len(lines), **named, **more)


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"


def _cause(name: str, cause: str) -> str:
    return CAUSES[name].get(cause, cause)


# ---- many messages with one reason


def _duplicates(summary: Line) -> list[dict[str, Any]]:
    explained = [line for line in summary["duplicates"] if line["cause"] != UNEXPLAINED]
    return [
        _incident(
            "duplicate", _first(line["first_at"] for line in lines), _pair(first, later),
            f"{_number(summary, 'duplicates', len(lines), 'recipient')} got a message more than once: {_cause('duplicates', cause)}",
            until=_last(line["later_at"] for line in lines), count=len(lines),
        )
        for (cause, first, later), lines in _grouped(explained, "cause", "first_server", "later_server")
    ]  # fmt: skip


def _number(summary: Line, name: str, listed: int, singular: str, plural: str = "") -> str:
    """`3 recipients`; `at least 3 recipients` of a list that was cut."""
    is_cut = len(summary[name]) < sum(summary["causes"][name].values())
    return f"{'at least ' if is_cut else ''}{counted(listed, singular, plural)}"


def _pair(first: str, later: str) -> str:
    return first if first == later else f"{first}, {later}"


def _left_over(summary: Line) -> list[dict[str, Any]]:
    known = [line for line in summary["orphans"] if line["cause"] != LOG_ENDS]
    return [
        _incident(
            "left-over copies", _first(line["at"] for line in lines), server,
            f"{_number(summary, 'orphans', len(lines), 'left-over copy', 'left-over copies')} held by {server}, of mail of {primary}: "
            f"{_cause('orphans', cause)}",
            count=len(lines),
        )
        for (server, primary, cause), lines in _grouped(known, "server", "primary", "cause")
    ]  # fmt: skip


def _unknown(summary: Line) -> list[dict[str, Any]]:
    unknown = [line for line in summary["losses"] if line["cause"] == LOG_ENDS]
    return [
        _incident(
            "unknown", _first(line["acknowledged_at"] for line in lines), server,
            f"what became of {_number(summary, 'losses', len(lines), 'recipient')} is not known: the log ends", count=len(lines),
        )
        for (server,), lines in _grouped(unknown, "server")
    ]  # fmt: skip


def _exposures(summary: Line) -> list[dict[str, Any]]:
    overall, listed, still = summary["overall"], summary["exposures"], _open_lines(summary)
    count, longest = overall["messages_exposed"], overall["exposure_max_seconds"]
    if not count or not listed or len(listed) == len(still):
        return []
    causes = "; ".join(_cause("exposures", cause) for cause in sorted(summary["causes"]["exposures"]))
    what = f"{counted(count, 'message')} had one copy only for a time, longest {duration(longest)}: {causes}{_reasons(summary, listed)}"
    if still:
        what += f" (of these, {counted(len(still), 'message')} still {'has' if len(still) == 1 else 'have'}: see the top)"
    rest = [line for line in listed if line not in still]
    ended = None if any(line["is_open"] for line in rest) else _last(line["ended_at"] for line in rest)
    return [_incident("exposure", _first(line["began_at"] for line in listed), _servers(listed), what, until=ended, count=count)]


def _reasons(summary: Line, exposures: Sequence[Line]) -> str:
    """Why no copy was made, in the words of the servers' own rows, of the messages that are traced."""
    bare = {line["message"] for line in exposures if line["cause"] in ALONE}
    rows = (row for message in bare for row in summary["traces"].get(message, ()) if row["event"] == "HAREDIRECTFAIL")
    said = Counter(text for row in rows if (text := row["text"].partition(" · ")[0]) and not text.startswith("S:"))
    quoted = [f'"{text[:CHARACTERS_MAX]}"' for text, _ in sorted(said.items(), key=lambda one: (-one[1], one[0]))[:NAMED_MAX]]
    return f" (the rows say: {', '.join(quoted)})" if quoted else ""


def _open(summary: Line) -> list[dict[str, Any]]:
    """Mail that one more lost server would lose, and that can still be saved."""
    still = _open_lines(summary)
    if not still:
        return []
    servers = sorted({line["server"] for line in still})
    causes = "; ".join(_cause("exposures", cause) for cause in sorted({line["cause"] for line in still}))
    count = len({line["message"] for line in still})
    is_all = not summary["exposures"][-1]["is_open"]  # those that are open come first in the list
    number = counted(count, "message") if is_all else _number(summary, "exposures", count, "message")
    said = f"{number} {'depends' if count == 1 else 'depend'} on one server now"
    what = f"{said}, as far as the logs go: {causes}"
    since = min(line["began_at"] for line in still)
    step = first_steps.of_open_exposure(summary, servers, since)
    message = still[0]["message"] if count == 1 else ""
    return [_incident("exposure", since, _servers(still), what, count=count, step=step, message=message)]


def _open_lines(summary: Line) -> list[Line]:
    """Exposures that have not ended. A message that counts as lost has an incident of its own."""
    lost = {line["message"] for line in summary["losses"] if line["cause"] != LOG_ENDS}
    return [line for line in summary["exposures"] if line["is_open"] and line["message"] not in lost]


def _slow(summary: Line) -> list[dict[str, Any]]:
    """The speed targets that were missed: late mail alone is no incident."""
    found = []
    for objective in summary["objectives"]:
        name, within, bad = objective["name"], objective["within_seconds"], objective["bad"]
        listed = [line for line in summary["slow"] if line["objective"] == name]
        if objective["verdict"] != "missed" or not listed:
            continue
        one, several, _ = UNITS[name]
        causes = sorted(summary["slow_causes"][name].items(), key=lambda cause: (-cause[1], cause[0]))
        what = (
            f"{SLOW[name]}{f', over {duration(within)}' if within else ''}: {bad:,} of {counted(objective['good'] + bad, one, several)} "
            f"({', '.join(f'{number:,} {cause}' for cause, number in causes)})"
        )
        instants = [line["at"] for line in listed]
        found.append(_incident("slow", _first(instants), _servers(listed), what, until=_last(instants), count=bad))
    return found


def _servers(lines: Sequence[Line]) -> str:
    names = sorted({line["server"] for line in lines})
    others = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {counted(others, 'other')}" if others > 0 else "")


def _grouped(lines: Iterable[Line], *names: str) -> list[tuple[tuple[Any, ...], list[Line]]]:
    def key(line: Line) -> tuple[Any, ...]:
        return tuple(line[name] for name in names)

    return [(values, list(same)) for values, same in groupby(sorted(lines, key=key), key=key)]


# ---- servers


def _lost_servers(summary: Line) -> list[dict[str, Any]]:
    found = []
    for (old, reason), lines in _grouped([line for line in summary["takeovers"] if not line["is_cut"]], "old_primary", "reason"):
        for same in _overlapping(lines):
            messages = sum(line["messages"] for line in same)
            heirs = ", ".join(sorted({line["new_primary"] for line in same}))
            returned = _first(line["returned_at"] for line in same)
            parts = [
                REASONS.get(reason, reason),  # Exchange logs none
                f"{counted(messages, 'message')} taken over by {heirs}",
                "" if returned else _not_back(summary, old),
            ]
            found.append(
                _incident("lost server", _began(same[0]), old or UNNAMED, "; ".join(filter(None, parts)), until=returned, count=messages)
            )  # fmt: skip
    return found


def _not_back(summary: Line, server: str) -> str:
    """What is known of a server that did not return: without its log nobody knows whether it did."""
    if server not in {one["name"] for one in summary["input"]["servers"]}:
        return "its log is not here" if server else ""
    text, before = ended_early(cast(Summary, summary)).get(server, ("", 0.0))
    return (
        f"not back yet: it has logged nothing since {utc(text, 'minutes')} UTC, {duration(before)} before the newest row"
        if text
        else "not back yet"
    )


def _cuts(cuts: Sequence[Line]) -> list[dict[str, Any]]:
    are_several = len({cut["boundary"] for cut in cuts}) > 1
    return [
        _incident(
            "cut", cut["began_at"], " and ".join(cut["between"]) + (f" of {cut['boundary']}" if are_several else ""),
            f"were cut off from each other{'' if cut['ended_at'] else ' and are not in touch again'}; "
            f"{counted(cut['messages'], 'message')} taken over, no server was lost",
            until=cut["ended_at"], count=cut["messages"],
        )
        for cut in cuts
    ]  # fmt: skip


def with_cuts(takeovers: Sequence[Line], servers: Sequence[Line], heartbeat_seconds: float) -> list[dict[str, Any]]:
    """The takeovers with `is_cut`: whether the old primary was running while it was silent, so that the network was cut.

    Its own log shows it: a row more than a heartbeat after the last sign of life; or it took over mail of the other side at that time.
    """
    is_seen = [_is_seen(line, heartbeat_seconds) for line in takeovers]
    cut = [line for line, is_so in zip(takeovers, is_seen, strict=True) if is_so]
    places = _places(servers)
    return [
        {**line, "is_cut": is_so or any(_is_other_side(line, other, places) for other in cut)}
        for line, is_so in zip(takeovers, is_seen, strict=True)
    ]


def _is_seen(line: Line, heartbeat_seconds: float) -> bool:
    if line["reason"] != SILENCE or not line["silent_since"] or not line["seen_at"]:
        return False
    return (_parsed(line["seen_at"]) - _parsed(line["silent_since"])).total_seconds() > heartbeat_seconds


def _is_other_side(line: Line, cut: Line, places: Places) -> bool:
    is_alive = line["reason"] == SILENCE and line["old_primary"] == cut["new_primary"]
    return is_alive and _between(line, places) == _between(cut, places) and _do_overlap(line, cut)


def cuts(takeovers: Sequence[Line], servers: Sequence[Line]) -> list[dict[str, Any]]:
    """`cuts` of summary.json: each cut of the network once, however many servers took over from how many others.

    A cut ends with the first copy that goes between two of these servers again; without one it has not ended, as far as the logs tell.
    Shapes: `takeovers` from `with_cuts`; `servers` as in `input`.
    """
    places = _places(servers)
    by_place: dict[tuple[str, ...], list[Line]] = {}
    for line in takeovers:
        if line["is_cut"]:
            by_place.setdefault(_between(line, places), []).append(line)
    found = []
    for (boundary, *between), lines in by_place.items():
        for same in _overlapping(lines):
            named = {line[name] for line in same for name in ("old_primary", "new_primary")}
            found.append(
                {
                    "boundary": boundary,
                    "between": between,
                    "servers": sorted(named),
                    "began_at": _first(map(_began, same)),
                    "ended_at": _first(line["in_touch_at"] for line in same),
                    "takeovers": len(same),
                    "messages": sum(line["messages"] for line in same),
                }
            )
    return sorted(found, key=lambda cut: (_parsed(cut["began_at"]), cut["boundary"], cut["between"]))


def _places(servers: Sequence[Line]) -> Places:
    return {each["name"]: (each["boundary"], each["site"]) for each in servers}


def _between(line: Line, places: Places) -> tuple[str, ...]:
    """The boundary, and two sites of it; the two servers, if they stand in one site or in unknown ones."""
    old, new = line["old_primary"], line["new_primary"]
    (boundary, here), (_, there) = (places.get(name, ("", "")) for name in (old, new))
    return (boundary, *sorted((here, there) if here and there and here != there else (old, new)))


def _began(line: Line) -> str:
    began: str = line["silent_since"] or line["detected_at"] or line["first_resubmit_at"]
    return began


def _do_overlap(one: Line, other: Line) -> bool:
    return _parsed(_began(one)) <= _parsed(other["last_resubmit_at"]) and _parsed(_began(other)) <= _parsed(one["last_resubmit_at"])


def _overlapping(lines: Iterable[Line]) -> list[list[Line]]:
    """Takeovers in groups of those that overlap in time, from the last sign of life to the last RESUBMIT."""
    groups: list[list[Line]] = []
    until: datetime | None = None
    for line in sorted(lines, key=lambda line: (_parsed(_began(line)), line["new_primary"], line["old_primary"])):
        last = _parsed(line["last_resubmit_at"])
        if until is not None and _parsed(_began(line)) <= until:
            groups[-1].append(line)
            until = max(until, last)
        else:
            groups.append([line])
            until = last
    return groups


def _first(instants: Iterable[str | None]) -> str | None:
    return min((at for at in instants if at), key=_parsed, default=None)


def _last(instants: Iterable[str | None]) -> str | None:
    return max((at for at in instants if at), key=_parsed, default=None)


def _parsed(text: str) -> datetime:
    return datetime.fromisoformat(text)
