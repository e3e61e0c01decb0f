"""Whether this machine has the loopback address of IPv6. Containers have none, unless they were made with IPv6."""

import socket

import pytest


def _has_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_loopback = pytest.mark.skipif(not _has_loopback(), reason="needs ::1")
