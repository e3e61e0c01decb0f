"""`dataclass` for values that a message needs many of: frozen for mypy, but not at run time.

A frozen dataclass of the standard library sets each field through `object.__setattr__`, which makes a value of eight fields five
times as expensive as one that may change; some eighty are made for each redundant message. mypy, which runs in strict mode over the
whole program, finds every assignment to a field of a frozen value before it runs. Everything else is the standard library's:
equality, hash, `replace`, `fields`.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool = False, eq: bool = True, **options: Any) -> Any:
        """As `dataclasses.dataclass`; a frozen value that can be compared has a hash."""
        return dataclasses.dataclass(eq=eq, unsafe_hash=frozen and eq, **options)
