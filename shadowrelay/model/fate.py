"""What is lost together: the machine that a server runs on, and the labels of its configuration. docs/design.md 6.15.

Two servers that share the machine or any label share a fate: one power supply, one disk, one hypervisor may take both.
"""

import hmac

from shadowrelay.model.ids import BoundaryName, ServerName
from shadowrelay.model.values import dataclass

NO_MACHINE = ""  # not known: of an older version, or of a system without a boot id
MACHINE_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Fate:
    """Shapes: `machine` has 32 hexadecimal digits, or is `NO_MACHINE`; `domains` are the labels of `failure_domains`."""

    machine: str = NO_MACHINE
    domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shared:
    """With whom a server shares its fate: with this node (`is_own`), and with which other peers."""

    is_own: bool = False
    others: frozenset[ServerName] = frozenset()


NOT_SHARED = Shared()


def machine_of(boot_id: str, boundary: BoundaryName) -> str:
    """The name of a machine towards peers: a keyed hash, so that the boot id itself stays here. All containers of one kernel have the same
    boot id, and each boot has another; a machine id is copied with images."""
    if not boot_id:
        return NO_MACHINE
    return hmac.new(f"shadowrelay machine {boundary}".encode(), boot_id.encode(), "sha256").hexdigest()[:MACHINE_DIGITS]


def what_is_shared(one: Fate, other: Fate) -> tuple[str, ...]:
    """ "machine" and the labels that both have; empty if they share nothing, as far as is known."""
    machine = ("machine",) if one.machine and one.machine == other.machine else ()
    return (*machine, *(label for label in one.domains if label in other.domains))
