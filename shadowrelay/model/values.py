"""`dataclass` and `replace` for frequently created values, as structs of msgspec. docs/performance.md "Changes in cost".

Each redundant message creates about sixty values. A `msgspec.Struct` does in C what a dataclass does in Python for each (`__init__`,
`__eq__`, `__hash__`, `replace`), and a frozen value is frozen at run time, too. mypy sees dataclasses. A class without slots, which may
have attributes that a Struct cannot have, stays a dataclass; `dataclasses.replace` is for these.
"""

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:
    # what the class has that its struct gets anew; the annotations' names are those of Python 3.11 to 3.14
    _OF_THE_FIRST_CLASS = frozenset(
        ("__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__")
    )
    replace = msgspec.structs.replace

    def dataclass(*, frozen: bool = False, eq: bool = True, order: bool = False, slots: bool = False) -> Any:
        """As `dataclasses.dataclass`; a frozen value with equality is hashable."""

        def made(cls: type) -> type:
            if not slots:  # it may have what a Struct has no room for, like a cached property
                return dataclasses.dataclass(frozen=frozen, eq=eq, order=order)(cls)
            namespace = {name: value for name, value in vars(cls).items() if name not in _OF_THE_FIRST_CLASS}
            fields = []
            for name, kind in inspect.get_annotations(cls).items():
                default = namespace.pop(name, msgspec.NODEFAULT)
                if isinstance(default, dataclasses.Field):
                    factory = default.default_factory
                    is_made = factory is not dataclasses.MISSING
                    default = msgspec.field(default_factory=factory) if is_made else msgspec.field(default=default.default)
                fields.append((name, kind) if default is msgspec.NODEFAULT else (name, kind, default))
            return msgspec.defstruct(
                cls.__name__, fields, bases=(msgspec.Struct,), module=cls.__module__, namespace=namespace, frozen=frozen, eq=eq, order=order
            )

        return made
