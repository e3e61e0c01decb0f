"""From a TOML file and the environment to `Settings`: where each value came from, and every error at once with its remedy.

`Settings` knows what is legal; this module and its neighbours `config_*` know files, variables and how to talk to the operator.
Nothing is opened for writing. Precedence: environment over file over default.
"""

import os
import ssl
import tomllib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from shadowrelay.config_environment import Key, apply_override, format_key, is_size, overrides_in
from shadowrelay.config_example import example
from shadowrelay.config_problems import explain
from shadowrelay.config_warnings import warnings
from shadowrelay.model.errors import ConfigurationError
from shadowrelay.model.quantities import format_duration, format_size
from shadowrelay.model.settings import Section, Settings
from shadowrelay.model.shipping import shown_options, shown_target
from shadowrelay.model.values import dataclass

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
