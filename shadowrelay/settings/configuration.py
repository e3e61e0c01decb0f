"""From a TOML file and the environment to `Settings`: where each value came from, and every error at once with its remedy.

`Settings` knows what is legal; this module knows files, variables and how to talk to the operator. Nothing is opened for writing.
Precedence: environment over file over default.

`SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT=2s` overrides `shadow_timeout` in `[transport]`. A number counts the entries of a list from 0:
`SHADOWRELAY_PEERS__0__ADDRESS`. Whole lists are JSON. A variable with our prefix but without a double underscore is ours only if it
names a list of tables; others belong to somebody else.
"""

import difflib
import json
import os
import ssl
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.values import dataclass
from shadowrelay.settings.example import example
from shadowrelay.settings.values import Section, Settings, format_duration, format_size, parse_size, shown_options, shown_target
from shadowrelay.settings.warnings import warnings

ENVIRONMENT_PREFIX = "SHADOWRELAY_"

Key = tuple[str | int, ...]


def format_key(key: Key) -> str:
    """("peers", 0, "address") becomes "peers[0].address"."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def overrides_in(environ: Mapping[str, str]) -> dict[Key, tuple[str, str]]:
    """The variables that set something, as key -> (variable, text); tables before what is in them."""
    found: dict[Key, tuple[str, str]] = {}
    for variable, text in sorted(environ.items()):
        parts = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        if variable.startswith(ENVIRONMENT_PREFIX) and (len(parts) > 1 or parts[0] in Settings.model_fields):
            found[tuple(int(part) if part.isascii() and part.isdigit() else part for part in parts)] = (variable, text)
    return found


def apply_override(table: Mapping[str, Any], key: Key, text: str) -> dict[str, Any]:
    """A copy of `table` in which `key` has the value that `text` means. Raises: ValueError with the remedy."""
    return _with_value(table, key, _value(key, text))


def sections_at(key: Key) -> type[Section] | None:
    """The table that stands at `key`, `None` where there is none."""
    annotation = _annotation(key)
    return next((option for option in (annotation, *get_args(annotation)) if _is_section(option)), None)


def is_size(key: Key) -> bool:
    """Whether that key counts bytes."""
    section = sections_at(key[:-1])
    field = section.model_fields.get(str(key[-1])) if section is not None else None
    return field is not None and any(getattr(constraint, "func", None) is parse_size for constraint in field.metadata)


def _value(key: Key, text: str) -> object:
    """Text stays text where the key wants text; numbers, booleans, lists and tables are JSON where they can be."""
    if not _wants_json(_annotation(key)):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        if text.lstrip()[:1] in ("[", "{"):
            raise ValueError(f'is not valid JSON ({exc}); write lists like ["10.0.0.0/8", "192.0.2.7"]') from None
        return text  # "36MB" for a size, one address for a list of them; or wrong, and then the key's own check says how


def _annotation(key: Key) -> Any:
    """The type that a key has in `Settings`, or `None` for an unknown one (which validation will name)."""
    annotation: Any = Settings
    for part in key:
        if isinstance(part, int):
            annotation = get_args(annotation)[0] if get_origin(annotation) is tuple else None
        else:
            options = (annotation,) if get_origin(annotation) is tuple else (annotation, *get_args(annotation))
            section = next((option for option in options if _is_section(option)), None)
            field = section.model_fields.get(part) if section is not None else None
            annotation = field.annotation if field is not None else None
    return annotation


def _is_section(option: object) -> bool:
    return isinstance(option, type) and issubclass(option, Section)


def _wants_json(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(_wants_json(option) for option in get_args(annotation))
    return annotation in (bool, int) or get_origin(annotation) in (tuple, dict) or _is_section(annotation)


def _with_value(table: Mapping[str, Any], key: Key, value: object) -> dict[str, Any]:
    name, *rest = key
    result = dict(table)
    below = result.get(str(name), {})
    if not rest:
        result[str(name)] = value
    elif isinstance(rest[0], int):
        entries = list(below) if isinstance(below, list) else []
        if rest[0] >= len(entries) or len(rest) < 2 or not isinstance(entries[rest[0]], dict):
            raise ValueError(
                f"there is no {name}[{rest[0]}] to change: the file has {len(entries)} {name}, counted from 0; "
                f"set the whole list as JSON with {ENVIRONMENT_PREFIX}{str(name).upper()}"
            )
        entries[rest[0]] = _with_value(entries[rest[0]], tuple(rest[1:]), value)
        result[str(name)] = entries
    elif isinstance(below, dict):
        result[str(name)] = _with_value(below, tuple(rest), value)
    else:
        raise ValueError(f"{name} is a list, not a table; count its entries from 0, like {ENVIRONMENT_PREFIX}{str(name).upper()}__0__NAME")
    return result


def explain(error: ErrorDetails, path: Path, variables: Mapping[Key, str]) -> str:
    """One line for one error. Shapes: `variables` names the environment variable of each key that has one."""
    key: Key = tuple(error["loc"])
    variable = next((name for place, name in variables.items() if key and (place == key[: len(place)] or key == place[: len(key)])), None)
    where = f"environment {variable}" if variable else str(path)
    return f"{where}: {format_key(key)}{': ' if key else ''}{_problem(error, key)}"


def _problem(error: ErrorDetails, key: Key) -> str:
    context = error.get("ctx", {})
    may_be_secret = key[:1] == ("shipping",)  # passwords in the target, keys in the options
    given = "" if may_be_secret or isinstance(error["input"], dict | Section) else f"{_shown(error['input'])} "
    match error["type"]:
        case "value_error":
            return f"{given}{error['msg'].removeprefix('Value error, ')}"
        case "extra_forbidden":
            return f"unknown key; {_nearest(key)}"
        case "missing":
            return "is missing; add it"
        case "greater_than_equal":
            return f"{given}is too small; give at least {_bound(key, 'ge')}"
        case "less_than_equal":
            return f"{given}is too large; give at most {_bound(key, 'le')}"
        case "bool_type" | "bool_parsing":
            return f"{given}is not a truth value; write true or false"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"{given}is not a whole number; write it without quotes"
        case "enum":
            return f"{given}is unknown; write one of {context['expected']}"
        case "tuple_type":
            return f'{given}is not a list; write one like ["first", "second"], in the environment as JSON'
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{given}is not a table; write its keys under [{format_key(key)}]"
        case "string_type" | "path_type":
            return f"{given}is not text; write it in quotes"
        case "too_short" | "string_too_short":
            return f"{given}is empty; give at least one"
        case _:
            return f"{given}is not accepted: {error['msg']}"


def _shown(value: object) -> str:
    return f'"{format_duration(value)}"' if isinstance(value, timedelta) else json.dumps(value, default=str, ensure_ascii=False)


def _bound(key: Key, name: str) -> str:
    # read from the settings, because pydantic's error carries a duration only as its Python text
    section = sections_at(key[:-1]) or Settings
    bounds = [getattr(constraint, name, None) for constraint in section.model_fields[str(key[-1])].metadata]
    return next(_shown(bound) for bound in bounds if bound is not None)


def _nearest(key: Key) -> str:
    known = list((sections_at(key[:-1]) or Settings).model_fields)
    close = difflib.get_close_matches(str(key[-1]), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


__all__ = ["LoadedSettings", "Origin", "effective", "example", "load", "warnings"]

AnySection = TypeVar("AnySection", bound=Section)

CONSEQUENCES = {"default_factory_not_called"}  # of another error in the same table, which is reported
FILE_BYTES_MAX = 1024 * 1024  # a configuration is a few kB; more is the wrong file


class Origin(StrEnum):
    """Where a value came from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Shapes: `origins` has an entry for every key, written like "transport.shadow_timeout" or "peers[0].address"."""

    path: Path
    settings: Settings
    origins: Mapping[str, Origin]


def load(path: Path | str, environ: Mapping[str, str] | None = None) -> LoadedSettings:
    """Read and check one configuration file with its overrides.

    Shapes: `environ` is `os.environ` when omitted; relative paths in the result are relative to the file.
    Raises: ConfigurationError that lists every problem, one a line, with file or variable, key and remedy.
    """
    path = Path(path)
    from_file = _read(path)
    overrides = overrides_in(os.environ if environ is None else environ)
    variables: dict[Key, str] = {}
    merged = from_file
    problems: list[str] = []
    for key, (variable, text) in overrides.items():
        try:
            merged = apply_override(merged, key, text)
            variables[key] = variable
        except ValueError as exc:
            problems.append(f"environment {variable}: {exc}")
    try:
        settings = _with_absolute_paths(Settings.model_validate(merged), path.absolute().parent)
    except ValidationError as exc:
        problems += [explain(error, path, variables) for error in exc.errors() if error["type"] not in CONSEQUENCES]
    else:
        problems += [f"{path}: {problem}" for problem in _unusable_certificates(settings)]
    if problems:
        raise ConfigurationError("\n".join(problems))
    origins = {format_key(key): _origin(key, from_file, variables) for key, _ in _leaves(settings)}
    return LoadedSettings(path, settings, origins)


def effective(loaded: LoadedSettings) -> tuple[tuple[str, object], ...]:
    """Every key with its value as JSON can carry it (durations and sizes as an operator writes them), in the order of the file."""
    return tuple((format_key(key), _plain(key, value)) for key, value in _leaves(loaded.settings))


def _leaves(value: object, key: Key = ()) -> Iterator[tuple[Key, object]]:
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _leaves(getattr(value, name), (*key, name))
    elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        for index, entry in enumerate(value):
            yield from _leaves(entry, (*key, index))
    else:
        yield key, value


def _plain(key: Key, value: object) -> object:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, tuple):
        return [_plain(key, entry) for entry in value]
    if isinstance(value, int) and is_size(key):
        return format_size(value)
    if isinstance(value, dict):
        return shown_options(value)
    if key == ("shipping", "target"):
        return shown_target(str(value))
    return value if isinstance(value, bool | int | None) else str(value)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ConfigurationError(f"{path}: has more than {FILE_BYTES_MAX} bytes; this is not a configuration of shadowrelay")
        return tomllib.loads(content.decode("utf-8"))
    except OSError as exc:
        raise ConfigurationError(f"{path}: cannot be read ({exc.strerror}); give an existing file with --config") from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError(f"{path}: is not UTF-8 text (octet {exc.start}); save it as UTF-8") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigurationError(f"{path}: is not valid TOML: {exc}; text needs quotes, tables look like [server]") from exc


def _with_absolute_paths(section: AnySection, directory: Path) -> AnySection:
    changes: dict[str, object] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Path):
            changes[name] = Path(os.path.normpath(directory / value))
        elif isinstance(value, Section):
            changes[name] = _with_absolute_paths(value, directory)
    return section.model_copy(update=changes)


def _unusable_certificates(settings: Settings) -> Iterator[str]:
    tls = settings.tls
    if tls is None:
        return
    files = {"certificate": tls.certificate, "key": tls.key}
    if tls.peer_authority is not None:
        files["peer_authority"] = tls.peer_authority
    unreadable = {name: file for name, file in files.items() if not os.access(file, os.R_OK)}
    yield from (f"tls.{name}: {file} cannot be read; give an existing PEM file" for name, file in unreadable.items())
    if unreadable:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password="")  # a key with a pass phrase must not ask the terminal
    except (ssl.SSLError, OSError, ValueError) as exc:
        pair = f"{tls.certificate} and {tls.key}"
        yield f"tls.certificate: {pair} are no usable pair ({exc}); give a PEM certificate and its own key without pass phrase"
    if tls.peer_authority is not None:
        try:
            context.load_verify_locations(tls.peer_authority)
        except (ssl.SSLError, OSError) as exc:
            yield f"tls.peer_authority: {tls.peer_authority} holds no usable certificate ({exc}); give the authority's PEM file"


def _origin(key: Key, from_file: Mapping[str, Any], variables: Mapping[Key, str]) -> Origin:
    if any(key[:length] in variables for length in range(1, len(key) + 1)):
        return Origin.ENVIRONMENT
    value: Any = from_file
    for part in key:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return Origin.DEFAULT
    return Origin.FILE
