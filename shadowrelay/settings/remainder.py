"""What is left of a configuration without its mistakes, to check the rest in the same go. docs/mistakes.md "Configuration".

A wrong value is taken out: its default applies or, where a value is required, a placeholder. Problems that follow from that, and are none
of the operator's, are recognised by the key that was taken out, and by the placeholder.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from shadowrelay.model.settings import Settings
from shadowrelay.model.values import dataclass
from shadowrelay.settings.line_numbers import Key

LISTS_OF_TABLES = ("receive_connectors", "recipient_sources", "peers", "routes", "site_links", "sites")
PLACEHOLDER = "mistaken.invalid"  # RFC 6761: nobody has such a name
REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "server": {"name": PLACEHOLDER, "site": PLACEHOLDER},
    "receive_connectors": {"name": PLACEHOLDER, "listen": f"{PLACEHOLDER}:1"},
    "recipient_sources": {"name": PLACEHOLDER, "kind": "file", "file": PLACEHOLDER},
    "peers": {"name": PLACEHOLDER, "site": PLACEHOLDER, "address": f"{PLACEHOLDER}:1"},
    "routes": {"recipients": [f"*@{PLACEHOLDER}"]},
    "site_links": {"sites": [f"one.{PLACEHOLDER}", f"other.{PLACEHOLDER}"]},
    "sites": {"name": PLACEHOLDER},
    "tls": {"certificate": PLACEHOLDER, "key": PLACEHOLDER},
}
ROUNDS_MAX = 5  # what is taken out may uncover another error in the same table


@dataclass(frozen=True, slots=True)
class Remainder:
    """Valid settings, and the keys that were taken out for that."""

    settings: Settings
    taken_out: frozenset[Key]

    def is_of_operator(self, key: Key, problem: str) -> bool:
        """Whether the problem with this key would be there without the mistakes, too."""
        return PLACEHOLDER not in problem and not any(key[: len(taken)] == taken for taken in self.taken_out)

    @property
    def are_sites_whole(self) -> bool:
        """Whether all that says where servers are is as the operator wrote it."""
        return not any(key[0] in ("server", "peers", "site_links", "sites") for key in self.taken_out)


def remainder(values: Mapping[str, Any], errors: Sequence[ErrorDetails]) -> Remainder | None:
    """`None` if the mistakes are of a kind that leaves nothing to be checked."""
    left, taken_out = copy.deepcopy(dict(values)), set[Key]()
    for _ in range(ROUNDS_MAX):
        for error in errors:
            taken_out |= _take_out(left, tuple(error["loc"]))
        try:
            return Remainder(Settings.model_validate(left), frozenset(taken_out))
        except ValidationError as exc:
            errors = exc.errors()
    return None


def _take_out(left: dict[str, Any], key: Key) -> set[Key]:
    """Take the value out that an error at this key is about. Returns the key that is gone."""
    table = str(key[0])
    required = REQUIRED.get(table, {})
    length = 3 if table in LISTS_OF_TABLES else 2
    is_known = table in Settings.model_fields
    if not is_known or len(key) < length - 1 or not isinstance(around := _table_of(left, key[: length - 1]), dict):
        return _replace_table(left, key[: length - 1], required)
    if len(key) < length:  # its keys contradict each other
        for name in around.keys() - required.keys():
            del around[name]
        return set()
    field = str(key[length - 1])
    if field in required:
        around[field] = copy.deepcopy(required[field])
    else:
        around.pop(field, None)
    return {key[:length]}


def _table_of(left: dict[str, Any], key: Key) -> object:
    entries = left.get(str(key[0]))
    if len(key) == 1:
        return entries
    return entries[key[1]] if isinstance(entries, list) and isinstance(key[1], int) and key[1] < len(entries) else None


def _replace_table(left: dict[str, Any], key: Key, required: Mapping[str, Any]) -> set[Key]:
    table = str(key[0])
    if len(key) == 2 and isinstance(left.get(table), list):
        left[table][key[1]] = copy.deepcopy(dict(required))
    elif required and table not in LISTS_OF_TABLES:
        left[table] = copy.deepcopy(dict(required))
    else:
        left.pop(table, None)
    return {key}
