"""Explains pydantic's errors to operators, for configuration, command line and API alike. docs/design.md 7."""

from collections.abc import Mapping
from typing import Any

TIME_FORM = "is not a time; write one like 2026-11-22T10:00:00Z"


def explanation_of(error: Mapping[str, Any]) -> str:
    """What is wrong with a value, as the end of a sentence that begins with it. Shapes: `error` is one of `ValidationError.errors()`."""
    context = error.get("ctx", {})
    kind: str = error["type"]
    match kind:
        case "value_error":
            return str(error["msg"]).removeprefix("Value error, ")
        case "missing":
            return "is missing"
        case "greater_than_equal":
            return f"is too small; give at least {context['ge']}"
        case "less_than_equal":
            return f"is too large; give at most {context['le']}"
        case "enum" | "literal_error":
            return f"is unknown; give one of {context['expected']}"
        case "string_too_long":
            return f"is too long; give at most {context['max_length']} characters"
        case "string_too_short" | "too_short":
            return "is empty"
        case "string_pattern_mismatch":
            return "has a character that is not allowed here; give visible ASCII characters, without spaces"
    for beginning, words in _BY_BEGINNING.items():
        if kind.startswith(beginning):
            return words
    return "cannot be used here"


_BY_BEGINNING = {
    "bool": "is not a truth value; give true or false",
    "int": "is not a whole number",
    "float": "is not a number",
    "date": TIME_FORM,
    "time": TIME_FORM,
    "string": "is not text",
    "uuid": "is not an id",
}
