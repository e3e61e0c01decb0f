"""Finds the line of a key in a TOML file. docs/mistakes.md "Configuration".

The standard library's parser reports no positions, so the shortest beginning of the file that has the key is looked for.
"""

import tomllib
from functools import cache

Key = tuple[str | int, ...]

CHARACTERS_MAX = 100_000  # a longer file gets no line numbers: it would be parsed too often


class Lines:
    """The lines of a file that is valid TOML."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n") if len(text) <= CHARACTERS_MAX else []
        self._beginning = cache(self._parsed)

    def of(self, key: Key) -> int | None:
        """The line, counted from 1, on which the statement begins that sets this key or, if the file does not have it, the nearest table
        around it; `None` if it has neither."""
        for length in range(len(key), 0, -1):
            if has(self._beginning(len(self._lines)), key[:length]):
                return self._line_of(key[:length])
        return None

    def _line_of(self, key: Key) -> int:
        """Shapes: the first `without` lines do not have the key, the first `having` lines do. Both are valid by themselves."""
        without, having = 0, len(self._lines)
        while (middle := self._end_between(without, having)) is not None:
            if has(self._beginning(middle), key):
                having = middle
            else:
                without = middle
        return without + 1

    def _end_between(self, first: int, last: int) -> int | None:
        """Of the lines between these two, the one nearest to the middle after which no statement of several lines is open, if any."""
        nearest_first = sorted(range(first + 1, last), key=lambda line: abs(2 * line - first - last))
        return next((line for line in nearest_first if self._beginning(line) is not None), None)

    def _parsed(self, count: int) -> dict[str, object] | None:
        try:
            return tomllib.loads("\n".join(self._lines[:count]))
        except tomllib.TOMLDecodeError:
            return None


def has(value: object, key: Key) -> bool:
    """Whether these values of a file, or a part of them, have the key."""
    for part in key:
        if isinstance(part, int):
            if not isinstance(value, list) or part >= len(value):
                return False
            value = value[part]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            return False
    return True
