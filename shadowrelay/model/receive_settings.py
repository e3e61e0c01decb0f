"""The settings of receive connectors, and of what they ask: sources of recipients, filters. docs/design.md 7."""

from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from shadowrelay.model.section import DAY, HOUR, LABEL, MILLISECOND, MINUTE, SECOND, Count, Section
from shadowrelay.model.setting_texts import (
    Address,
    CheckedDomain,
    CheckedNetwork,
    DefaultDomain,
    Duration,
    FilterUrl,
    Size,
)


class ConnectorRole(StrEnum):
    """`role` of a receive connector."""

    TRANSPORT = "transport"
    FRONTEND = "frontend"
    EDGE = "edge"


class RelayRights(StrEnum):
    """`relay_rights` of a receive connector."""

    CONNECTION = "connection"
    CLIENT = "client"


class Redundancy(StrEnum):
    """`redundancy` of a receive connector (what is promised to its clients) and of a route (what is done towards its next hop)."""

    BEFORE_ACKNOWLEDGEMENT = "before-acknowledgement"
    PREVIOUS_HOP = "previous-hop"
    BOTH = "both"
    NONE = "none"

    @property
    def copies(self) -> bool:
        """A copy is placed on a shadow server."""
        return self in (Redundancy.BEFORE_ACKNOWLEDGEMENT, Redundancy.BOTH)

    @property
    def tracks(self) -> bool:
        """The previous hop keeps the shadow (`TRACK`)."""
        return self in (Redundancy.PREVIOUS_HOP, Redundancy.BOTH)


def _inactivity_timeout(values: dict[str, Any]) -> timedelta:
    return MINUTE if values.get("role") is ConnectorRole.EDGE else 5 * MINUTE


def _connection_timeout(values: dict[str, Any]) -> timedelta:
    return 5 * MINUTE if values.get("role") is ConnectorRole.EDGE else 10 * MINUTE


class SourceKind(StrEnum):
    """`kind` of a source of recipients."""

    FILE = "file"
    CALL_AHEAD = "call-ahead"


class Undecided(StrEnum):
    """`unavailable` of a source of recipients."""

    DEFER = "defer"
    ACCEPT = "accept"


def one_or_several(value: object) -> object:
    """A name alone is a list of one."""
    return (value,) if isinstance(value, str) else value


class RecipientSource(Section):
    """Who knows which recipients there are, for `recipients` of a receive connector. docs/reference.md "Known recipients"."""

    name: Annotated[str, LABEL]
    """Name, for `recipients` of receive connectors, logs and metrics."""
    kind: SourceKind
    """file: a list of addresses. call-ahead: the next hop is asked, with MAIL FROM:<> and RCPT."""
    file: Path | None = None
    """For kind file: an address a line, @domain or *@domain for all of a domain, # comments. A change of the file is followed."""
    unavailable: Undecided = Undecided.DEFER
    """Where it cannot be known whether a recipient exists. defer: 450; accept: the recipient is accepted without that."""
    subaddress_delimiters: Annotated[str, Field(max_length=4, pattern=r"^[!#$%&'*+/=?^_`{|}~.-]*$")] = "+"
    """What separates a subaddress in the local part (RFC 5233): with + john+lists@ exists if john@ is listed. Empty: nothing does."""
    case_sensitive: bool = False
    """Tell John@ from john@; in the domain they are always the same."""
    positive_cache: Annotated[Duration, Field(ge=MINUTE, le=7 * DAY)] = 6 * HOUR
    """For kind call-ahead: so long a recipient exists that the next hop has accepted."""
    negative_cache: Annotated[Duration, Field(ge=SECOND, le=DAY)] = 10 * MINUTE
    """For kind call-ahead: so long one does not exist that it has refused. SIGHUP forgets that."""
    timeout: Annotated[Duration, Field(ge=100 * MILLISECOND, le=2 * MINUTE)] = 10 * SECOND
    """For kind call-ahead: how long a client waits for the answer of the next hop, at RCPT."""
    sessions: Annotated[Count, Field(ge=1, le=4)] = 2
    """For kind call-ahead: questions at once to one next hop, each in one of the sessions for deliveries."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind is SourceKind.FILE and self.file is None:
            raise ValueError("kind file needs file; name the file with the addresses")
        if self.kind is not SourceKind.FILE and self.file is not None:
            raise ValueError("file is for kind file; remove it, or write kind = 'file'")
        return self


class LimitsPerClient(Section):
    """What one client of this connector (an IPv4 address, an IPv6 /64) may do in a minute, which begins with the first thing that counts.
    0: no limit. Peers have none. docs/reference.md "Limits for each client"."""

    connections_per_minute: Annotated[Count, Field(ge=0, le=1_000_000)] = 0
    """Further connections are answered 421."""
    messages_per_minute: Annotated[Count, Field(ge=0, le=1_000_000)] = 0
    """Transactions (MAIL); further ones are answered 450."""
    recipients_per_minute: Annotated[Count, Field(ge=0, le=1_000_000)] = 0
    """Accepted recipients; further ones are answered 452."""
    refused_recipients_per_minute: Annotated[Count, Field(ge=0, le=1_000_000)] = 0
    """Recipients answered 5xx: after so many, sessions end with 421 at MAIL or RCPT, so that nobody finds out which addresses exist."""
    octets_per_minute: Annotated[Size, Field(ge=0, le=1_000_000_000_000)] = 0
    """Of content. What goes beyond that is answered 452; the first message of a minute never is, however large."""
    exempt: tuple[CheckedNetwork, ...] = ()
    """Networks without these limits and without greeting_delay. Clients in relay_from are not exempt by themselves."""
    greeting_delay: Annotated[Duration, Field(ge=timedelta(0), le=MINUTE)] = timedelta(0)
    """The greeting comes so much later; who talks before it is answered 421. 0s: off. Postfix's postscreen waits 6s."""


class ReceiveConnector(Section):
    """A listening address and what it grants. An omitted list of addresses or domains grants nothing."""

    name: Annotated[str, LABEL]
    """Name in logs and in the tracking log's connector-id."""
    listen: Address
    """Address and port; port 0 takes a free one."""
    reuse_port: bool = False
    """Several nodes of this machine listen here; the kernel divides clients among them (SO_REUSEPORT). A node that is to refuse mail leaves
    the port first. Peers come by another connector."""
    role: ConnectorRole = ConnectorRole.TRANSPORT
    """transport, frontend or edge: decides the defaults of the two timeouts (5m/10m, 5m/10m, 1m/5m). Source: seed-000"""
    relay_from: tuple[CheckedNetwork, ...] = ()
    """Networks of clients that may relay to any domain. No other setting grants this, not even a route."""
    accepted_domains: tuple[CheckedDomain, ...] = ()
    """Domains whose recipients are accepted from any client; "*.corp.example" stands for all below corp.example."""
    recipients: Annotated[tuple[str, ...], BeforeValidator(one_or_several)] = ()
    """The [[recipient_sources]] that know the recipients of accepted_domains: a name, or several, of which any knows it. A recipient that
    none knows is answered 550. Omitted: any address of accepted_domains is accepted."""
    externally_secured: tuple[CheckedNetwork, ...] = ()
    """Addresses that may use XSHADOW without TLS when they name a configured peer. For labs. Source: seed-003"""
    filters: tuple[str, ...] = ()
    """Names of [[filters]], in the order in which they see a message. Mail of peers comes past them."""
    proxy_from: tuple[CheckedNetwork, ...] = ()
    """Load balancers that name the client by the PROXY protocol, version 1 or 2: required from these, refused from others."""
    xclient_from: tuple[CheckedNetwork, ...] = ()
    """Mail servers and filters that name the client by XCLIENT or XFORWARD, as Postfix has them. Offered to and taken from these only."""
    relay_rights: RelayRights = RelayRights.CONNECTION
    """Whose address relay_from means where proxy_from or xclient_from names the client: connection (so that all behind it may relay)
    or client. Must be set where relay_from has addresses of these. docs/security.md "By whose address"."""
    redundancy: Redundancy = Redundancy.BEFORE_ACKNOWLEDGEMENT
    """What is promised to clients here: before-acknowledgement, previous-hop, both or none (docs/design.md 6.7). Source: seed-003"""
    max_acknowledgement_delay: Annotated[Duration, Field(ge=timedelta(0), le=4 * MINUTE)] = 30 * SECOND
    """Where mail is not copied: how long the 250 waits until the message is delivered, or kept by two servers; then best effort. 0: off.
    At most 4m, because clients give up after 5 (RFC 5321 asks for 10). Source: msp-rc, seed-003"""
    accept_xshadow: bool = True
    """Peers may place shadow messages through this connector. Source: seed-003"""
    allow_untrusted_routing: bool = False
    """Accept user%host@domain, host!user@domain, "user@host"@domain and @host:user@domain from clients that may not relay: a mail store
    that trusts this node may pass them on. Source: docs"""
    connection_inactivity_timeout: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = Field(default_factory=_inactivity_timeout)
    """A session without progress for this long is closed; edge: 1m. Less than connection_timeout. Source: seed-000, msp-rc"""
    connection_timeout: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = Field(default_factory=_connection_timeout)
    """Sessions end after this long even while data flows; edge: 5m. Not while a final dot waits for its reply. Source: seed-000, msp-rc"""
    chunking_enabled: bool = True
    """Offer CHUNKING: content in chunks of a counted size (BDAT). Peers always have it. RFC 3030. Source: msp-rc"""
    binary_mime_enabled: bool = True
    """Offer BINARYMIME with it: binary content, which is put into base64 for a next hop without BINARYMIME. false: clients do that, which
    keeps their signatures. RFC 3030. Source: msp-rc"""
    max_message_size: Annotated[Size, Field(ge=1, le=2_000_000_000)] = 36_000_000
    """Largest message accepted. MB = 1,000,000 bytes. Source: msp-rc"""
    max_recipients_per_message: Annotated[Count, Field(ge=1, le=5000)] = 5000
    """Recipients of one message; more are answered 452. At most 5,000: all ordinals must fit a reply. RFC 5321 4.5.3.1.8. Source: msp-rc"""
    max_sessions: Annotated[Count, Field(ge=1, le=100_000)] = 5000
    """Concurrent sessions of this connector; further ones are answered 421. Peers and relay_from have as many again. Source: msp-rc"""
    max_sessions_per_address: Annotated[Count, Field(ge=1, le=100_000)] = 200
    """Concurrent sessions from one client: an IPv4 address or an IPv6 /64; further ones are answered 421. Not for peers. Source: msp-rc"""
    max_protocol_errors: Annotated[Count, Field(ge=1, le=1000)] = 5
    """Errors after which a session is closed. Source: msp-rc"""
    max_hop_count: Annotated[Count, Field(ge=1, le=500)] = 60
    """A message with more Received lines is refused as looping. RFC 5321 6.3. Source: msp-rc"""

    lenient_addresses: bool = True
    """Accept what other software writes: `MAIL FROM: a@b`, local parts over 64 octets or like `john.` (relayed as "john."@b), `a@b.`,
    `a@my_host`, `root` of clients that may relay, any name in EHLO, parameters after HELO, content lines of any length."""
    default_domain: DefaultDomain = ""
    """The domain of addresses without one: a bare Postmaster, and with lenient_addresses `root` of clients
    that may relay. The same on all nodes: then a message that is sent again to another one is recognised.
    Empty: this server's name where its mail can be delivered, else the first of accepted_domains. Source: msp-rc"""
    limits: LimitsPerClient = LimitsPerClient()
    """Limits for each client: a table of its own, [receive_connectors.limits]."""

    implicit_tls: bool = False
    """TLS from the first octet, as on port 465 (RFC 8314). Needs [tls]. Peers come by another connector."""
    require_tls: bool = False
    """Refuse every client's commands until it has begun TLS (530 5.7.0, RFC 3207 4). Needs [tls]."""

    @property
    def takes_mail(self) -> bool:
        """Whether anything but copies comes by it: mail of clients that it serves, or of peers by TRACK."""
        return bool(self.relay_from or self.accepted_domains) or self.redundancy.tracks

    @model_validator(mode="after")
    def _ordered_timeouts(self) -> Self:
        # docs/sources.md "Where sources disagree": the 2016 page says greater, the defaults of both pages fit smaller
        if self.connection_inactivity_timeout >= self.connection_timeout:
            raise ValueError("connection_inactivity_timeout must be less than connection_timeout; lower the first or raise the second")
        return self


class FilterKind(StrEnum):
    """`kind` of a filter."""

    RSPAMD = "rspamd"


class OnFailure(StrEnum):
    """`on_failure` of a filter."""

    DEFER = "defer"
    ACCEPT = "accept"


class Filter(Section):
    """A filter that sees mail of clients before its copy is made; receive connectors name theirs. docs/operations.md."""

    name: Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9._-]+$")]
    """Its name, in `filters` of receive connectors, logs and the tracking log."""
    kind: FilterKind = FilterKind.RSPAMD
    """rspamd. Other kinds are not there yet."""
    address: FilterUrl
    """URL of a normal worker of rspamd (11333), or of its proxy. Not encrypted with http: keep it on loopback or a private link."""
    timeout: Annotated[Duration, Field(ge=100 * MILLISECOND, le=2 * MINUTE)] = 20 * SECOND
    """How long a message may wait for its verdict, also for a place. All filters of a message have 3m: a copy has to be made after them."""
    on_failure: OnFailure = OnFailure.DEFER
    """No verdict: defer answers 451 4.7.1, accept takes the message unfiltered."""
    concurrency: Annotated[Count, Field(ge=1, le=1000)] = 50
    """Messages that it sees at the same time; others wait."""

    @field_validator("kind", mode="before")
    @classmethod
    def _is_there(cls, value: object) -> object:
        if isinstance(value, str) and value == "milter":
            raise ValueError('is not there yet; use kind = "rspamd", or run the milter in the mail server in front or behind')
        return value
