"""What was promised, and the times of the nodes' configuration: from a TOML file, or the defaults. docs/sla.md, 5."""

import tomllib
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from shadowrelay.model.errors import ConfigurationError
from shadowrelay.model.quantities import parse_duration
from shadowrelay.model.settings import Transport

_NODES: dict[str, Any] = {name: field.default for name, field in Transport.model_fields.items()}


@dataclass(frozen=True, slots=True)
class Times:
    """Of the nodes' configuration: the defaults are theirs."""

    shadow_heartbeat_frequency: timedelta = _NODES["shadow_heartbeat_frequency"]
    shadow_resubmit_time_span: timedelta = _NODES["shadow_resubmit_time_span"]
    safety_net_hold_time: timedelta = _NODES["safety_net_hold_time"]
    message_expiration_timeout: timedelta = _NODES["message_expiration_timeout"]


@dataclass(frozen=True, slots=True)
class Share:
    """So many of the events have to be good: `ratio` of them, and within `within`, where the figure is a time."""

    ratio: float
    within: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Objectives:
    """Shapes: a `Share`, or a number that must not be passed. The within of discard_lag is the heartbeat."""

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
class Promise:
    """The file's two tables."""

    times: Times = Times()
    objectives: Objectives = Objectives()

    @property
    def lag_within(self) -> timedelta:
        """After which a discard is late."""
        return self.times.shadow_heartbeat_frequency


def read_objectives(path: Path | str | None) -> Promise:
    """The defaults without a file. Raises: ConfigurationError that lists every problem, one a line, with file, key and remedy."""
    if path is None:
        return Promise()
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


def _promise(given: dict[str, Any], problems: list[str]) -> Promise:
    tables: dict[str, dict[str, Any]] = {"times": {}, "objectives": {}}
    for name, table in given.items():
        if name not in tables:
            problems.append(f"{name}: unknown table; there are [times] and [objectives]")
        elif not isinstance(table, dict):
            problems.append(f"{name}: is no table; write [{name}]")
        else:
            tables[name] = table
    promise = Promise()
    times = _changed(promise.times, "times", tables["times"], problems)
    return Promise(times, _changed(promise.objectives, "objectives", tables["objectives"], problems))


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
        return _share(default, value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no number of events; write a whole number, like 0")
    return value


def _share(default: Share, value: object) -> Share:
    if not isinstance(value, dict):
        return replace(default, ratio=_ratio(value))
    allowed = {"ratio", "within"} if default.within is not None else {"ratio"}
    if unknown := set(value) - allowed:
        raise ValueError(f"unknown key {', '.join(sorted(unknown))}; it may have {', '.join(sorted(allowed))}")
    ratio = _ratio(value["ratio"]) if "ratio" in value else default.ratio
    return Share(ratio, parse_duration(value["within"]) if "within" in value else default.within)


def _ratio(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is no share; write a number from 0 to 1, like 0.999")
    return float(value)
