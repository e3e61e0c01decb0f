"""`dataclass` and `replace` for values that a message needs many of: frozen for mypy, but not at run time.

A frozen dataclass of the standard library sets each field through `object.__setattr__`, which makes a value of eight fields five
times as expensive as one that may change; some sixty are made for each redundant message. mypy, which runs in strict mode over the
whole program, finds every assignment to a field of a frozen value before it runs. Everything else is the standard library's:
equality, hash, fields. `replace` reads all fields at once.
"""

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:
    _read: dict[type, tuple[tuple[str, ...], attrgetter]] = {}

    def dataclass(*, frozen: bool = False, eq: bool = True, **options: Any) -> Any:
        """As `dataclasses.dataclass`; a frozen value that can be compared has a hash."""

        def made(cls: type) -> type:
            found = dataclasses.dataclass(eq=eq, unsafe_hash=frozen and eq, **options)(cls)
            names = tuple(field.name for field in dataclasses.fields(found) if field.init)
            if len(names) > 1:  # of one name attrgetter gives no tuple
                _read[found] = (names, attrgetter(*names))
            return found

        return made

    def replace(value: Any, **changes: Any) -> Any:
        """As `dataclasses.replace`."""
        cls = type(value)
        if cls not in _read:
            return dataclasses.replace(value, **changes)
        names, values = _read[cls]
        return cls(**(dict(zip(names, values(value), strict=True)) | changes))
