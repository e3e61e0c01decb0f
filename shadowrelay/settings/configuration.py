"""Reads `Settings` from a TOML file and the environment; reports all errors at once, each with its remedy. docs/design.md 7.

`Settings` defines what is legal. pydantic-settings reads and merges the sources: environment over file over default. This module adds
overrides of single list entries, the origin of each value, and errors that an operator can act on. Nothing is opened for writing.

`SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT=2s` overrides `shadow_timeout` in `[transport]`. A number counts the entries of a list from 0:
`SHADOWRELAY_PEERS__0__ADDRESS`. Whole lists are JSON. A variable with our prefix but without a double underscore is used only if
it names a table or a list of tables; others belong to other programs.

`include = "../machine.toml"`, before the first table, names a file with what several nodes have in common.
"""

import copy
import difflib
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from shadowrelay.model.invalid import explanation_of
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.section import Section
from shadowrelay.model.setting_texts import format_duration
from shadowrelay.model.settings import Settings
from shadowrelay.model.values import dataclass
from shadowrelay.rules import site_links
from shadowrelay.settings import certificates, consistency, route_rules
from shadowrelay.settings.example import example
from shadowrelay.settings.line_numbers import Key, Lines, has
from shadowrelay.settings.remainder import LISTS_OF_TABLES, PLACEHOLDER, Remainder, remainder
from shadowrelay.settings.warnings import warnings

__all__ = ["LoadedSettings", "ValueSource", "address_and_rights", "digest_of", "effective", "example", "load", "warnings"]

AnySection = TypeVar("AnySection", bound=Section)
Further = Callable[[Settings], Iterable[str]]

PREFIX = "SHADOWRELAY_"  # of environment variables
ASKED = ("server", "admin", "tls")  # tables with the address and the rights of a node
INCLUDE = "include"
FILE_BYTES_MAX = 1024 * 1024  # a configuration is a few kB; more is the wrong file
_KEY = re.compile(r"[a-z_]+(\.[a-z_]+|\[\d+\])*")


def _nothing(_: Settings) -> Iterable[str]:
    return ()


class ValueSource(StrEnum):
    """Where a value came from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Shapes: `origins` has an entry for every key, written like "transport.shadow_timeout" or "peers[0].address". `files`: with the one
    that it includes."""

    path: Path
    settings: Settings
    origins: Mapping[str, ValueSource]
    digest: str = ""  # SHA-256 of the file; with one that it includes, of the digests of both
    files: tuple[Path, ...] = ()


class Mistakes(ConfigurationError):
    """Of a configuration file. `left`: what the rest of it says, if that can be told."""

    def __init__(self, text: str, left: Remainder | None) -> None:
        super().__init__(text)
        self.left = left


def load(path: Path | str, environ: Mapping[str, str] | None = None, further: Further = _nothing) -> LoadedSettings:
    """Read and check one configuration file with its overrides.

    Shapes: `environ` is `os.environ` when omitted; relative paths in the result are relative to the file. `further` are more checks, whose
    problems are reported together with the others: each begins with its key. They also see settings in which mistakes were replaced.
    Raises: ConfigurationError that lists every problem, one a line, with file and line or variable, key and remedy.
    """
    path = Path(path)
    file = _read(path)
    environment = Environment(os.environ if environ is None else environ, file.init_kwargs)
    values = LayeredSettings.values_of(environment, file)
    locations = Locations(file, environment)
    problems = list(environment.problems)
    try:
        left: Remainder | None = Remainder(Settings.model_validate(values), frozenset())
    except ValidationError as exc:
        problems += [explain(error, locations) for error in exc.errors() if not _is_consequence(error)]
        left = remainder(values, exc.errors())
    if left is not None:
        settings = _with_absolute_paths(left.settings, locations.directory_of)
        for problem in _problems_together(settings, further, are_sites_whole=left.are_sites_whole):
            if left.is_of_operator(key := _key_of(problem), problem):
                problems.append(f"{locations.of(key)}: {problem}")
    if left is None or problems:
        raise Mistakes("\n".join(problems), None if left is None else Remainder(settings, left.taken_out))
    origins = {
        format_key(key): ValueSource.ENVIRONMENT if environment.variable_of(key) else ValueSource.FILE if is_set else ValueSource.DEFAULT
        for key, _, is_set in _leaves(left.settings)
    }
    return LoadedSettings(path, settings, origins, file.digest, tuple(one.path for one in file.both))


def digest_of(path: Path) -> str:
    """Of a file as it is now, as `LoadedSettings` has it; "" if that cannot be told."""
    try:
        return _read(path).digest
    except ConfigurationError:  # no TOML: it is not what was loaded
        return ""


def address_and_rights(path: Path) -> tuple[Settings, str]:
    """What a command needs in order to ask the node of this file, which may run with an earlier state of it: mistakes elsewhere do not
    matter.

    Shapes: also the mistakes, "" if there are none. A peer with one is left out. Raises: ConfigurationError if the mistakes are in the way.
    """
    try:
        return load(path).settings, ""
    except Mistakes as exc:
        mistakes: ConfigurationError = exc
        left = exc.left
    except ConfigurationError as exc:
        if not isinstance(exc.__cause__, tomllib.TOMLDecodeError):
            raise
        mistakes = exc
        try:
            left = _legible(path)
        except tomllib.TOMLDecodeError:
            raise mistakes from None
    if left is None or any(key[0] in ASKED or key == ("peers",) for key in left.taken_out):
        raise mistakes
    peers = tuple(peer for peer in left.settings.peers if peer.name != PLACEHOLDER)
    return left.settings.model_copy(update={"peers": peers}), str(mistakes)


def _legible(path: Path) -> Remainder | None:
    """Of a file that is not TOML."""
    file = LegibleFile(path)
    environment = Environment(os.environ, file.init_kwargs)
    values = LayeredSettings.values_of(environment, file)
    try:
        left: Remainder | None = Remainder(Settings.model_validate(values), frozenset())
    except ValidationError as exc:
        left = remainder(values, exc.errors())
    return left and Remainder(_with_absolute_paths(left.settings, Locations(file, environment).directory_of), left.taken_out)


def _problems_together(settings: Settings, further: Further, *, are_sites_whole: bool) -> Iterator[str]:
    yield from consistency.problems(settings)
    yield from route_rules.problems(settings)
    if are_sites_whole:
        yield from site_links.problems(settings)
    if settings.tls is not None:
        yield from certificates.unusable(settings.tls)
    yield from further(settings)


def effective(loaded: LoadedSettings) -> tuple[tuple[str, object], ...]:
    """Every key with its value in JSON form (durations and sizes as an operator writes them), in the order of the file."""
    return tuple((format_key(key), value) for key, value, _ in _leaves(loaded.settings))


def format_key(key: Key) -> str:
    """("peers", 0, "address") becomes "peers[0].address"."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


class LayeredSettings(Settings, BaseSettings):
    """The settings as the library sees them: it merges sources; if two have a key, the first one counts."""

    model_config = SettingsConfigDict(case_sensitive=True)  # [Server] is not a table

    @classmethod
    def values_of(cls, *sources: PydanticBaseSettingsSource) -> dict[str, Any]:
        """What the sources have together, not validated."""
        return cls._settings_build_values(sources, {})


class File(TomlConfigSettingsSource):
    """A file, which must exist: the library ignores a missing one. `text` is what is in it; the values are also of the file `included`."""

    text: str
    digest: str
    included: "File | None" = None

    def __init__(self, path: Path, by: Path | None = None) -> None:
        """`by`: the file that includes this one."""
        self.path = path
        self._by = by
        super().__init__(LayeredSettings, path.absolute())  # the library treats "." as no path

    def _read_files(self, files: Any, deep_merge: bool = False) -> dict[str, Any]:
        octets = files.read_bytes()
        self.digest = hashlib.sha256(octets).hexdigest()
        self.text = octets.decode().replace("\r\n", "\n")
        self._own = self.parsed(self.text)
        if (name := self._own.pop(INCLUDE, None)) is None:
            return copy.deepcopy(self._own)
        if not isinstance(name, str):
            raise ConfigurationError(f"{self.path}: {INCLUDE}: {_shown(name)} is not the name of a file; write it in quotes")
        if self._by is not None:
            problem = f"{self._by} includes this file, which can include no other; write its keys here"
            raise ConfigurationError(f"{self.path}: {INCLUDE}: {problem}")
        included = self.included = _read(Path(os.path.normpath(self.path.parent / name)), type(self), by=self.path)
        self.digest = hashlib.sha256(f"{self.digest} {included.digest}".encode()).hexdigest()
        return _joined(included.init_kwargs, self._own)

    @property
    def both(self) -> "tuple[File, ...]":
        """This one first."""
        return (self,) if self.included is None else (self, self.included)

    @cached_property
    def lines(self) -> Lines:
        """Of its own text."""
        return Lines(self.text)

    def place_of(self, key: Key) -> "tuple[File, Key]":
        """The file in which a key stands, and what it is called there."""
        if self.included is None:
            return self, key
        own = key
        for at, number in enumerate(key):
            if isinstance(number, int):
                there, here = (_value_at(values, key[:at]) for values in (self.included._own, self._own))
                if _are_tables(there) and _are_tables(here):  # those of this file follow
                    if number < len(there):
                        return self.included, key
                    own = (*key[:at], number - len(there), *key[at + 1 :])
                break
        return (self.included, key) if has(self.included._own, key) and not has(self._own, own) else (self, own)

    def parsed(self, text: str) -> dict[str, Any]:
        """Raises: tomllib.TOMLDecodeError."""
        return tomllib.loads(text)


def _joined(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of both; of a key that both have, `own` counts. Lists of tables follow each other."""
    found = copy.deepcopy({**common, **own})
    for name in common.keys() & own.keys():
        there, here = common[name], own[name]
        if isinstance(there, dict) and isinstance(here, dict):
            found[name] = _joined(there, here)
        elif _are_tables(there) and _are_tables(here):
            found[name] = copy.deepcopy([*there, *here])
    return found


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _value_at(value: Any, key: Key) -> Any:
    return _value_at(value[key[0]], key[1:]) if key and isinstance(value, dict) and key[0] in value else None if key else value


class LegibleFile(File):
    """Its tables that are TOML; those in which a node's address and rights stand must be."""

    def parsed(self, text: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for piece in re.split(r"(?m)^(?=[ \t]*\[)", text):
            try:
                found = tomllib.loads(piece)
            except tomllib.TOMLDecodeError:
                if re.match(rf"\s*\[\s*({'|'.join(ASKED)})\b", piece):
                    raise
                continue
            for name, value in found.items():
                values[name] = [*values.get(name, []), *value] if isinstance(value, list) else value
        return values


class Environment(EnvSettingsSource):
    """The variables with our prefix. The library sorts them into tables and reads JSON; the methods here document their differences."""

    def __init__(self, environ: Mapping[str, str], file: dict[str, Any]) -> None:
        super().__init__(LayeredSettings, case_sensitive=False, env_prefix=PREFIX, env_nested_delimiter="__")
        names = {variable: variable.removeprefix(PREFIX).lower() for variable in sorted(environ) if variable.startswith(PREFIX)}
        # sorted: a table or list comes before what is in it
        self.keys = {variable: name.split("__") for variable, name in names.items() if "__" in name or name in Settings.model_fields}
        self.env_vars = {variable.lower(): environ[variable] for variable in self.keys}
        self.problems: list[str] = []
        self._file = file
        for key in self.keys.values():
            if (around := _table_around(file, key)) is not None:
                around.pop(key[-1], None)  # a table given as JSON replaces the file's; the library would merge the two

    def __call__(self) -> dict[str, Any]:
        # The library ignores unknown tables, "null", and keys inside a value that is not a table; and it cannot set list entries.
        found = super().__call__()
        for variable, (table, *within) in self.keys.items():
            field = Settings.model_fields.get(table)
            if field is None or not within:
                found.setdefault(table, {} if within else None)
            elif get_origin(field.annotation) is tuple:
                if isinstance(found[table], dict):  # only numbered entries, no whole list: they change those of the file
                    found[table] = self._file.get(table, [])
                self._change_entry(found[table], get_args(field.annotation)[0], variable)
            elif _table_around(found, self.keys[variable]) is None:
                self.problems.append(f"environment {variable}: {'.'.join([table, *within[:-1]])} is not a table; remove this variable")
        return found

    def _change_entry(self, entries: object, section: type[Section], variable: str) -> None:
        table, number, *within = self.keys[variable]
        whole = f"{PREFIX}{table.upper()}"
        if not isinstance(entries, list):
            return  # validation refuses it
        if not number.isdecimal():
            problem = f"{table} is a list, not a table; count its entries from 0, like {whole}__0__NAME"
        elif not within or int(number) >= len(entries) or not isinstance(entries[int(number)], dict):
            problem = (
                f"there is no {table}[{number}] to change: the list in the file has length {len(entries)}, counted from 0; "
                f"set the whole list as JSON with {whole}"
            )
        else:
            entry = FieldInfo.from_annotation(section)
            entries[int(number)] |= self.explode_env_vars(f"{table}__{number}", entry, {variable.lower(): self.env_vars[variable.lower()]})
            return
        self.problems.append(f"environment {variable}: {problem}")

    def field_is_complex(self, field: FieldInfo) -> bool:
        # The settings refuse quoted numbers and booleans, so these are JSON too. HostPort is a dataclass, but "[::1]:25" is text.
        if field.annotation is HostPort:
            return False
        return super().field_is_complex(field) or not {bool, int}.isdisjoint((field.annotation, *get_args(field.annotation)))

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return json.loads(value)
        except ValueError as exc:
            # The library would stop here. "36MB" is a valid size, and validation of the key refuses invalid text.
            # It also refuses an exception, for any key: `explain` receives it as the input of the error.
            return exc if value.lstrip()[:1] in ("[", "{") else value

    def variable_of(self, key: Key) -> str | None:
        """The variable that sets this key, a table that contains it, or a key inside it."""
        parts = [str(part) for part in key]
        return next((variable for variable, found in self.keys.items() if parts and parts[: len(found)] == found[: len(parts)]), None)


def _table_around(top: object, key: Sequence[str]) -> dict[str, Any] | None:
    for part in key[:-1]:
        top = top.get(part) if isinstance(top, dict) else None
    return top if isinstance(top, dict) else None


def _is_consequence(error: ErrorDetails) -> bool:
    """Caused by another error in the same table or list, which is reported."""
    return error["type"] == "default_factory_not_called" or (error["type"] == "too_short" and bool(error["input"]))


@dataclass(frozen=True, slots=True)
class Locations:
    """Where each value was set."""

    file: File
    environment: Environment

    def of(self, key: Key) -> str:
        """The variable, or the file with the line."""
        if variable := self.environment.variable_of(key):
            return f"environment {variable}"
        file, there = self.file.place_of(key)
        line = file.lines.of(there)
        return f"{file.path}:{line}" if line is not None else str(file.path)

    def directory_of(self, key: Key) -> Path:
        """What a path there is relative to."""
        file = self.file if self.environment.variable_of(key) else self.file.place_of(key)[0]
        return file.path.absolute().parent


def explain(error: ErrorDetails, locations: Locations) -> str:
    """Describe one error in one line."""
    key: Key = tuple(error["loc"])
    where = locations.of(key)
    if isinstance(error["input"], ValueError):
        return f'{where}: is not valid JSON{_place_of(error["input"])}; write lists like ["10.0.0.0/8", "192.0.2.7"]'
    return f"{where}: {format_key(key)}{': ' if key else ''}{_problem(error, key)}"


def _key_of(problem: str) -> Key:
    """The key with which a problem begins: the inverse of `format_key`."""
    found = _KEY.match(problem)
    return tuple(int(part) if part.isdecimal() else part for part in re.findall(r"\w+", found[0])) if found else ()


def _place_of(error: ValueError) -> str:
    return f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""


def _problem(error: ErrorDetails, key: Key) -> str:
    context = error.get("ctx", {})
    # passwords in the target, keys in the options; a password where a table or a file belongs
    may_be_secret = key[:1] == ("shipping",) or "auth" in key
    given = "" if may_be_secret or isinstance(error["input"], dict | Section) else f"{_shown(error['input'])} "
    match error["type"]:
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
        case "tuple_type" if key[0] in LISTS_OF_TABLES and len(key) == 1:
            return f"is not a list of tables; write [[{key[0]}]], with two brackets, above each one, in the environment a JSON list"
        case "tuple_type":
            return f'{given}is not a list; write one like ["first", "second"], in the environment as JSON'
        case "model_type" | "model_attributes_type" | "dict_type" if isinstance(error["input"], list):
            return f"is one table, not a list; write [{format_key(key)}], with one bracket"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{given}is not a table; write its keys under [{format_key(key)}]"
        case "string_type" | "path_type":
            return f"{given}is not text; write it in quotes"
        case "too_short":
            return f"{given}is empty; give at least one"
        case _:
            return f"{given}{explanation_of(error)}"


def _shown(value: object) -> str:
    return f'"{format_duration(value)}"' if isinstance(value, timedelta) else json.dumps(value, default=str, ensure_ascii=False)


def _bound(key: Key, name: str) -> str:
    # read from the settings, because pydantic's error carries a duration only as its Python text
    bounds = [getattr(constraint, name, None) for constraint in _section_of(key).model_fields[str(key[-1])].metadata]
    return next(_shown(bound) for bound in bounds if bound is not None)


def _nearest(key: Key) -> str:
    known = list(_section_of(key).model_fields)
    close = difflib.get_close_matches(str(key[-1]), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def _section_of(key: Key) -> type[Section]:
    """The table that contains this key."""
    section: type[Section] = Settings
    for part in key[:-1]:
        if isinstance(part, str):
            annotation = section.model_fields[part].annotation
            options = (annotation, *get_args(annotation))
            section = next((option for option in options if isinstance(option, type) and issubclass(option, Section)), section)
    return section


def _leaves(section: Section, key: Key = ()) -> Iterator[tuple[Key, object, bool]]:
    """Every key below this table, its value in JSON form, and whether a source sets it."""
    plain = section.model_dump(mode="json")
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _leaves(value, (*key, name))
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            for index, entry in enumerate(value):
                yield from _leaves(entry, (*key, name, index))
        else:
            yield (*key, name), plain[name], name in section.model_fields_set


def _read(path: Path, kind: type[File] = File, by: Path | None = None) -> File:
    remedy = "give an existing file with --config" if by is None else f"name an existing file with {INCLUDE} in {by}"
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigurationError(f"{path}: has more than {FILE_BYTES_MAX} bytes; this is not a configuration of shadowrelay")
        return kind(path, by)
    except OSError as exc:
        raise ConfigurationError(f"{path}: cannot be read ({exc.strerror}); {remedy}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError(f"{path}: is not UTF-8 text (octet {exc.start}); save it as UTF-8") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigurationError(f"{path}: is not valid TOML: {exc}; text needs quotes, tables look like [server]") from exc


def _with_absolute_paths(section: AnySection, directory_of: Callable[[Key], Path], key: Key = ()) -> AnySection:
    changes: dict[str, object] = {}
    for name in type(section).model_fields:
        value, here = getattr(section, name), (*key, name)
        if isinstance(value, Path):
            changes[name] = Path(os.path.normpath(directory_of(here) / value))
        elif isinstance(value, Section):
            changes[name] = _with_absolute_paths(value, directory_of, here)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            changes[name] = tuple(_with_absolute_paths(one, directory_of, (*here, number)) for number, one in enumerate(value))
    return section.model_copy(update=changes)
