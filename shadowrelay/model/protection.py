"""How sessions with the servers of a route are protected: TLS, certificates that count, login. docs/operations.md "TLS to next hops".

A `Protection` has names and paths only; `credentials` reads the files, and no secret is ever in a value of the settings. It is part of what
a session is kept for, so that mail of another route never uses it.
"""

from enum import StrEnum
from pathlib import Path

from shadowrelay.model.values import dataclass


class TlsMode(StrEnum):
    """`tls` of a route."""

    NONE = "none"
    OPPORTUNISTIC = "opportunistic"
    REQUIRED = "required"
    VERIFIED = "verified"

    @property
    def is_demanded(self) -> bool:
        """Without TLS there is no session."""
        return self in (TlsMode.REQUIRED, TlsMode.VERIFIED)


class TlsVersion(StrEnum):
    """`tls_minimum_version` of a route."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


SMTPS = "smtps"  # scheme of a next hop: TLS from the first octet. RFC 8314


@dataclass(frozen=True, slots=True)
class Protection:
    """Of the sessions of one route; a route that sets nothing has none, and its sessions are opportunistic.

    Shapes: `names` empty: the server's own name. `policy`: what demands it, if no route does.
    """

    tls: TlsMode = TlsMode.OPPORTUNISTIC
    names: tuple[str, ...] = ()
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    minimum_version: TlsVersion = TlsVersion.TLS_1_2
    policy: str = ""
