"""What to answer a client: a table of what became of the commit and of the copy. docs/design.md 5.

| committed | copy   | reject | verdict                                              |
|-----------|--------|--------|------------------------------------------------------|
| no        | any    | any    | FAILED: the store's own reply; a copy is released    |
| yes       | stored | any    | REDUNDANT: 250                                       |
| yes       | none   | no     | ALONE: 250, logged as not redundant, copied later    |
| yes       | none   | yes    | UNWIND: 451 4.4.0 after the unwinding is committed   |
"""

from enum import Enum


class Verdict(Enum):
    """See the module's table."""

    REDUNDANT = "redundant"
    ALONE = "alone"
    UNWIND = "unwind"
    FAILED = "failed"


def verdict(*, is_committed: bool, is_copied: bool, reject: bool) -> Verdict:
    """`reject` is reject_message_on_shadow_failure with redundancy enabled. Source: seed-000"""
    if not is_committed:
        return Verdict.FAILED
    if is_copied:
        return Verdict.REDUNDANT
    return Verdict.UNWIND if reject else Verdict.ALONE


def may_begin(*, has_candidate: bool, reject: bool) -> bool:
    """Whether to store anything at all: without a candidate, in reject mode, nothing can come of it."""
    return has_candidate or not reject
