"""Whom a session to a node trusts. RFC 5280; docs/operations.md "Certificates".

The rules are the same under every Python, so that nodes of two distributions are peers of each other.
"""

import ssl
from pathlib import Path


def trusting(authority: Path | None) -> ssl.SSLContext:
    """Verifies the node's name, and its certificate by the authorities in this file, or by the system's. Raises: OSError (or its child
    ssl.SSLError) for a file that cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    # A default since Python 3.13: it refuses authorities without KeyUsage, as `init` made them until then, and so a cluster's upgrade would
    # be an outage. Receive connectors do not have it either. `check` names such an authority.
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    return context
