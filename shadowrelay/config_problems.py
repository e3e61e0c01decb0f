"""What pydantic found wrong, said to an operator: where, which key, what is wrong with the value, and what to write instead."""

import difflib
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from pydantic_core import ErrorDetails

from shadowrelay.config_environment import Key, format_key, sections_at
from shadowrelay.model.quantities import format_duration
from shadowrelay.model.settings import Section, Settings


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
