"""Overrides from the environment: `SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT=2s` for `shadow_timeout` in `[transport]`.

A number counts the entries of a list from 0: `SHADOWRELAY_PEERS__0__ADDRESS`. Whole lists are JSON. A variable with our
prefix but without a double underscore is ours only if it names a list of tables; others belong to somebody else.
"""

import json
from collections.abc import Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

from shadowrelay.model.quantities import parse_size
from shadowrelay.model.settings import Section, Settings

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
