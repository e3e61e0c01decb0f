"""How many files and connections the process may have. docs/operations.md "Size"."""

import contextlib
import resource

DESCRIPTORS_MAX = 1_048_576  # a larger table only wastes memory


def descriptor_limit() -> int:
    """How many files and connections this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit as far as allowed: it is 1,024 on most systems, for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems report more than they grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
