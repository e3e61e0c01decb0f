"""`dataclass` and `replace` for frequently created values: frozen for mypy, but not at run time.

A frozen dataclass of the standard library sets each field through `object.__setattr__`; creating one with eight fields takes five
times as long as creating a mutable one, and each redundant message creates about sixty. mypy in strict mode reports every assignment
to a field of a frozen value. Equality, hash and fields are those of the standard library. `replace` reads all fields at once.
Measured: docs/performance.md "Changes in cost".
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
        """As `dataclasses.dataclass`; a frozen value with equality is hashable."""

        def made(cls: type) -> type:
            found = dataclasses.dataclass(eq=eq, unsafe_hash=frozen and eq, **options)(cls)
            names = tuple(field.name for field in dataclasses.fields(found) if field.init)
            if len(names) > 1:  # attrgetter with a single name returns no tuple
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
