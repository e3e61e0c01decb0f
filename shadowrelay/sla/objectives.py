"""Objectives, and how figures are judged by them: verdicts, error budgets, burn rates. docs/sla.md, 3 (Exchange) and 5.

Objectives, and the times of the nodes' configuration, come from a TOML file or are the defaults. A figure that a log format cannot provide
is not judged: the last section lists these figures and the reasons. Plain arithmetic over plain values; only the TOML file is read.
"""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.setting_texts import parse_duration
from shadowrelay.model.settings import Transport

BURN_WINDOWS_HOURS = {"1h": 1, "6h": 6, "1d": 24, "30d": 720}
"""Windows of burn rates. Each ends now."""

_NODES: dict[str, Any] = {name: field.default for name, field in Transport.model_fields.items()}


@dataclass(frozen=True, slots=True)
class Times:
    """Times of the nodes' configuration, with the same defaults."""

    shadow_heartbeat_frequency: timedelta = _NODES["shadow_heartbeat_frequency"]
    shadow_resubmit_time_span: timedelta = _NODES["shadow_resubmit_time_span"]
    safety_net_hold_time: timedelta = _NODES["safety_net_hold_time"]
    message_expiration_timeout: timedelta = _NODES["message_expiration_timeout"]


@dataclass(frozen=True, slots=True)
class Share:
    """The share of events that must be good: `ratio`, within the time `within` if the figure is a time."""

    ratio: float
    within: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Objectives:
    """Shapes: a `Share`, or a maximum. The `within` of discard_lag is the heartbeat."""

    redundancy_ratio: Share = Share(0.9999)
    shadow_latency: Share = Share(0.99, timedelta(milliseconds=250))
    exposure: Share = Share(0.9999, timedelta(minutes=10))
    discard_lag: Share = Share(0.99)
    delivery_latency: Share = Share(0.99, timedelta(minutes=1))
    takeover: Share = Share(0.99)
    recipients_lost: int = 0
    recipients_duplicated_unexplained: int = 0
    shadows_orphaned: int = 0


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """The two tables of the file."""

    times: Times = Times()
    objectives: Objectives = Objectives()

    @property
    def lag_within(self) -> timedelta:
        """The lag after which a discard is late."""
        return self.times.shadow_heartbeat_frequency


def read_objectives(path: Path | str | None) -> ServiceLevel:
    """The defaults without a file. Raises: ConfigurationError with all problems, one per line, with file, key and remedy."""
    if path is None:
        return ServiceLevel()
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigurationError(f"{path}: cannot be read ({exc.strerror}); give an existing file with --objectives") from exc
    except ValueError as exc:
        raise ConfigurationError(f"{path}: is not valid TOML: {exc}") from exc
    problems: list[str] = []
    promise = _promise(given, problems)
    if problems:
        raise ConfigurationError("\n".join(f"{path}: {problem}" for problem in problems))
    return promise


def _promise(given: dict[str, Any], problems: list[str]) -> ServiceLevel:
    tables: dict[str, dict[str, Any]] = {"times": {}, "objectives": {}}
    for name, table in given.items():
        if name not in tables:
            problems.append(f"{name}: unknown table; there are [times] and [objectives]")
        elif not isinstance(table, dict):
            problems.append(f"{name}: is no table; write [{name}]")
        else:
            tables[name] = table
    promise = ServiceLevel()
    times = _changed(promise.times, "times", tables["times"], problems)
    return ServiceLevel(times, _changed(promise.objectives, "objectives", tables["objectives"], problems))


def _changed(defaults: Any, table: str, given: dict[str, Any], problems: list[str]) -> Any:
    known = {field.name for field in fields(defaults)}
    changes = {}
    for key, value in given.items():
        if key not in known:
            problems.append(f"{table}.{key}: unknown key; the keys are {', '.join(sorted(known))}")
            continue
        try:
            changes[key] = _read(getattr(defaults, key), value)
        except ValueError as exc:
            problems.append(f"{table}.{key}: {exc}")
    return replace(defaults, **changes)


def _read(default: object, value: object) -> object:
    if isinstance(default, timedelta):
        return parse_duration(value)
    if isinstance(default, Share):
        return _read_share(default, value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no number of events; write a whole number, like 0")
    return value


def _read_share(default: Share, value: object) -> Share:
    if not isinstance(value, dict):
        return replace(default, ratio=_read_ratio(value))
    allowed = {"ratio", "within"} if default.within is not None else {"ratio"}
    if unknown := set(value) - allowed:
        raise ValueError(f"unknown key {', '.join(sorted(unknown))}; it may have {', '.join(sorted(allowed))}")
    ratio = _read_ratio(value["ratio"]) if "ratio" in value else default.ratio
    return Share(ratio, parse_duration(value["within"]) if "within" in value else default.within)


def _read_ratio(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is no share; write a number from 0 to 1, like 0.999")
    return float(value)


# ---- verdicts

Figures = Mapping[str, Any]

SAFETY, SPEED = "safety", "speed"
KINDS = {
    "redundancy_ratio": SAFETY,
    "shadow_latency": SPEED,
    "exposure": SAFETY,
    "discard_lag": SPEED,
    "delivery_latency": SPEED,
    "takeover": SPEED,
    "recipients_lost": SAFETY,
    "recipients_duplicated_unexplained": SAFETY,
    "shadows_orphaned": SAFETY,
}
"""objective -> what missing it means: mail was in danger, or mail was slow."""

# objective -> numbers of good and bad events, from the counts of a line
_SHARES = {
    "redundancy_ratio": lambda row: (row["messages_redundant"], row["messages_not_redundant"]),
    "shadow_latency": lambda row: (row["shadow_good"], row["shadow_count"] - row["shadow_good"]),
    "exposure": lambda row: (row["exposure_judged"] - row["exposure_bad"], row["exposure_bad"]),
    "discard_lag": lambda row: (row["lag_count"] - row["discards_late"], row["discards_late"]),
    "delivery_latency": lambda row: (row["delivery_good"], row["delivery_count"] - row["delivery_good"]),
    "takeover": lambda row: (row["takeovers_in_time"], row["takeovers_late"]),
}
_UNKNOWN = {
    "exposure": lambda row: row["messages_redundant"] + row["messages_not_redundant"] - row["exposure_judged"],
}
"""objective -> number of events that may be good or bad: the logs do not tell."""

_NUMBERS = {
    "recipients_lost": "recipients",
    "recipients_duplicated_unexplained": "recipients",
    "shadows_orphaned": "copies",
}
"""objective -> the kind of events; without any such event the number has no meaning."""


def judged(
    promise: ServiceLevel, overall: Figures, looking_back: Mapping[str, Figures], not_computable: Collection[str]
) -> list[dict[str, Any]]:
    """`objectives` of summary.json.

    Shapes: `looking_back`: the counts of each window that ends now ("1h" …), if it has any; `not_computable` are objectives.
    """
    result = []
    for field in fields(promise.objectives):
        objective = getattr(promise.objectives, field.name)
        if isinstance(objective, Share):
            line = _judged_share(field.name, objective, overall, looking_back)
            line["within_seconds"] = _within_seconds(promise, field.name)
        else:
            line = _judged_number(field.name, objective, overall)
        if field.name in not_computable:
            line |= {"actual": None, "verdict": "not computable", "budget_left": None, "burn_rates": dict.fromkeys(BURN_WINDOWS_HOURS)}
        default = getattr(Objectives(), field.name)
        line |= {
            "kind": KINDS[field.name],
            "default": default.ratio if isinstance(default, Share) else default,
            "default_within_seconds": _within_seconds(ServiceLevel(), field.name),
        }
        result.append(line)
    return result


def _within_seconds(promise: ServiceLevel, name: str) -> float | None:
    objective = getattr(promise.objectives, name)
    within = promise.lag_within if name == "discard_lag" else objective.within if isinstance(objective, Share) else None
    return within.total_seconds() if within else None


def verdicts(objectives: Collection[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """`verdict` of summary.json: safety apart from speed. Shapes: `objectives` as in summary.json."""
    result: dict[str, dict[str, Any]] = {}
    for kind in (SAFETY, SPEED):
        of_kind = [line for line in objectives if line["kind"] == kind]
        missed = [line["name"] for line in of_kind if line["verdict"] == "missed"]
        met = [line["name"] for line in of_kind if line["verdict"] == "met"]
        verdict = "missed" if missed else "met" if met else "no data"
        result[kind] = {"verdict": verdict, "missed": missed, "judged": len(met) + len(missed), "objectives": len(of_kind)}
    return result


def times_of(promise: ServiceLevel) -> dict[str, dict[str, float]]:
    """`times` of summary.json: what was used, and the nodes' default. Units: seconds."""
    defaults = Times()
    return {
        field.name: {
            "seconds": getattr(promise.times, field.name).total_seconds(),
            "default_seconds": getattr(defaults, field.name).total_seconds(),
        }
        for field in fields(defaults)
    }


def _judged_share(name: str, objective: Share, overall: Figures, looking_back: Mapping[str, Figures]) -> dict[str, Any]:
    good, bad = _SHARES[name](overall)
    actual = good / (good + bad) if good + bad else None
    verdict = "no data" if actual is None else "met" if actual >= objective.ratio else "missed"
    may_fail = 1 - objective.ratio
    if unknown := _unknown(name, overall):
        worst, best = (share / (good + bad + unknown) for share in (good, good + unknown))
        verdict = "met" if worst >= objective.ratio else "missed" if best < objective.ratio else "not computable"
        shown = None if verdict == "not computable" else actual
        line = _line(name, objective.ratio, shown, good, bad, verdict, None, dict.fromkeys(BURN_WINDOWS_HOURS))
        return line | {"unknown": unknown}
    if has_too_few(good + bad, objective.ratio):
        return _line(name, objective.ratio, actual, good, bad, verdict, None, dict.fromkeys(BURN_WINDOWS_HOURS))
    return _line(
        name, objective.ratio, actual, good, bad, verdict, budget_left=_left(bad, (good + bad) * may_fail),
        burn_rates={window: _burn_rate(name, looking_back.get(window), may_fail) for window in BURN_WINDOWS_HOURS},
    )  # fmt: skip


def _unknown(name: str, of: Figures) -> int:
    return int(_UNKNOWN[name](of)) if name in _UNKNOWN else 0


def has_too_few(events: int, ratio: float) -> bool:
    """Whether so few events allow less than one bad one: then a budget would say nothing. A ratio of 1 never allows any."""
    return bool(events) and ratio < 1 and round(events * (1 - ratio), 6) < 1


def _judged_number(name: str, objective: int, overall: Figures) -> dict[str, Any]:
    bad, all_of_them = overall[name], overall[_NUMBERS[name]]
    verdict = "no data" if not all_of_them else "met" if bad <= objective else "missed"
    actual = bad if all_of_them else None
    return _line(name, objective, actual, all_of_them - bad, bad, verdict, _left(bad, objective), dict.fromkeys(BURN_WINDOWS_HOURS))


def _line(
    name: str,
    objective: float,
    actual: float | None,
    good: int,
    bad: int,
    verdict: str,
    budget_left: float | None,
    burn_rates: Mapping[str, float | None],
) -> dict[str, Any]:
    return {
        "name": name, "objective": objective, "within_seconds": None, "actual": actual, "good": good, "bad": bad, "unknown": 0,
        "verdict": verdict,
        "budget_left": budget_left, "burn_rates": dict(burn_rates),
    }  # fmt: skip


def _left(bad: int, allowed: float) -> float:
    if allowed <= 0:
        return 1.0 if bad == 0 else 0.0
    return 1 - bad / allowed


def _burn_rate(name: str, window: Figures | None, may_fail: float) -> float | None:
    good, bad = _SHARES[name](window) if window else (0, 0)
    if not good + bad or may_fail <= 0:
        return None
    return float(bad / (good + bad) / may_fail)


# ---- figures that logs do not contain

LOG_ENDS = "unknown: log ends"
"""Cause of what is listed beside losses or orphans, but is in no figure: the log that would tell ends before the time is up."""

NO_END = "no end in the logs"
NOT_SEEN = "not in the next log"
END_UNTOLD = "discarded, end not logged"
COPIES_GONE = "both copies gone"
NOT_TAKEN_OVER = "copy not taken over"
"""Cause of a loss: the server that had acknowledged it is gone, and another one, whose log goes on, has had a copy ever since."""
FURTHER_HOP = "no copy on a further hop"
"""Cause of an exposure on a server that got the message from another one."""
WEAK = frozenset({NO_END, NOT_SEEN, END_UNTOLD})
"""Causes of losses that nothing but what Exchange's logs do not have shows: no reason to write to anybody."""

NOT_TOLD = "not told by Exchange"
"""Cause of a duplicate for which Exchange's logs have no reason."""

NO_REDUNDANCY_EVENTS = "Exchange 2010 logs no redundancy events"
NO_SHADOW_ELAPSED = "Exchange logs no time of the shadow copy (S:ShadowElapsed)"
NO_SILENT_SINCE = "Exchange does not log since when a lost server was silent (S:SilentSince): only exposure after a RECEIVE without a copy"
NO_TAKEOVER_TIMES = "Exchange logs neither S:SilentSince nor S:DetectedAt: takeovers are counted, and have no times"
BY_MESSAGE_ID = (
    "Exchange 2010 knows a message by its Message-ID only: "
    "one that its client sent again is the same message, and a duplicate if it was delivered twice"
)

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
"""Reported as a limitation, but the available part of the figure is judged."""


def not_computable(formats: Collection[str]) -> list[dict[str, str]]:
    """`not_computable` of summary.json. Shapes: `formats` of the input."""
    return [
        {"figure": figure, "format": format_, "why": why}
        for format_ in sorted(formats)
        for figure, why in NOT_LOGGED.get(format_, {}).items()
    ]  # fmt: skip


def impossible(formats: Collection[str]) -> set[str]:
    """Figures that cannot be computed from any format of the input."""
    missing = [{figure for figure in NOT_LOGGED.get(each, {}) if (figure, each) not in PARTLY} for each in formats]
    return set.intersection(*missing) if missing else set()
