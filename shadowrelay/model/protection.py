"""How sessions with the servers of a route are protected: TLS, certificates that count, login. docs/reference.md "TLS to next hops".

A `Protection` has names and paths only; `credentials` reads the files, and no secret is ever in a value of the settings. It is part of what
a session is kept for, so that mail of another route never uses it.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from shadowrelay.model.section import Section
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


class Mechanism(StrEnum):
    """`mechanism` of a login."""

    AUTO = "auto"
    PLAIN = "PLAIN"
    LOGIN = "LOGIN"
    CRAM_MD5 = "CRAM-MD5"
    SCRAM_SHA_1 = "SCRAM-SHA-1"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    XOAUTH2 = "XOAUTH2"
    OAUTHBEARER = "OAUTHBEARER"

    @property
    def takes_token(self) -> bool:
        """An access token, not a password."""
        return self in (Mechanism.XOAUTH2, Mechanism.OAUTHBEARER)


class Grant(StrEnum):
    """How a token is asked for. RFC 6749 4.4, 6"""

    CLIENT_CREDENTIALS = "client-credentials"
    REFRESH_TOKEN = "refresh-token"


class ClientAuthentication(StrEnum):
    """How the client's secret reaches the token endpoint. RFC 6749 2.3.1"""

    POST = "post"
    BASIC = "basic"


Text = Annotated[str, Field(max_length=2000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Word = Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z0-9_.@-]*$")]


class Token(Section):
    """Where access tokens come from: an endpoint of OAuth 2.0, or a command."""

    endpoint: Text = ""
    """URL of the token endpoint, https; http on this machine only."""
    grant: Grant = Grant.CLIENT_CREDENTIALS
    """client-credentials or refresh-token."""
    client_id: Text = ""
    """Of the application that was registered."""
    client_secret_file: Path | None = None
    """File with its secret."""
    client_credential: Word = ""
    """The same as a credential of systemd, by its name."""
    client_authentication: ClientAuthentication = ClientAuthentication.POST
    """post: in the form, as Microsoft and Google have it; basic: in a header."""
    refresh_token_file: Path | None = None
    """File with the refresh token."""
    refresh_credential: Word = ""
    """The same as a credential of systemd, by its name."""
    scope: Text = ""
    """What is asked for, like https://outlook.office365.com/.default"""
    authority: Path | None = None
    """PEM file of the authorities of the endpoint's certificate. Unset: those of the system."""
    command: tuple[Text, ...] = ()
    """Instead of all that: a program with its arguments, which prints a token, or JSON with access_token and expires_in."""


class Login(Section):
    """Who this node is at a next hop, and how it proves that. The secret itself never stands here."""

    user: Text
    """Name of the user; with XOAUTH2 the mailbox."""
    secret_file: Path | None = None
    """File with the password, readable by this user only."""
    credential: Word = ""
    """The same as a credential of systemd (LoadCredential=), by its name."""
    mechanism: Mechanism = Mechanism.AUTO
    """auto takes the best that the server offers."""
    token: Token | None = None
    """Instead of a password: access tokens."""


SMTPS = "smtps"  # scheme of a next hop: TLS from the first octet. RFC 8314


@dataclass(frozen=True, slots=True)
class Protection:
    """Of the sessions of one route; a route that sets nothing has none, and its sessions are opportunistic.

    Shapes: `names` empty: the server's own name. `policy`: what demands it, if no route does. `is_trial`: it is only tried.
    `source`: the addresses that connections come from, at most one of each family.
    """

    tls: TlsMode = TlsMode.OPPORTUNISTIC
    names: tuple[str, ...] = ()
    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    minimum_version: TlsVersion = TlsVersion.TLS_1_2
    login: Login | None = None
    policy: str = ""
    is_trial: bool = False
    source: tuple[str, ...] = ()
