"""Defines every setting of a node: default (here and nowhere else), range, effect and source. docs/design.md 7.

Those of receive connectors are in `receive_settings.py`, those of back pressure in `back_pressure_settings.py`.

The text under each key becomes its comment in `configs/example.toml`. Names keep Microsoft's word order in snake_case, so
that a reader can grep the manual. `model.setting_texts` has the forms in which values are written.
"""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
    model_validator,
)

from shadowrelay.model.back_pressure_settings import BackPressure
from shadowrelay.model.ids import BoundaryName, ServerName, SiteName
from shadowrelay.model.protection import Login, Protection, TlsMode, TlsVersion
from shadowrelay.model.receive_settings import (
    Filter,
    ReceiveConnector,
    RecipientSource,
    Redundancy,
    one_or_several,
)
from shadowrelay.model.routing import HostPort
from shadowrelay.model.section import DAY, HOUR, LABEL, MILLISECOND, MINUTE, SECOND, Count, Section
from shadowrelay.model.setting_texts import (
    LEFT_OUT,
    Address,
    AdminUrl,
    Duration,
    Mailbox,
    Name,
    NameServer,
    NextHops,
    Option,
    Pattern,
    Size,
    SizeOrShare,
    TokenHash,
    checked_events,
    checked_options,
    checked_target,
    checked_webhook,
    shown_options,
    shown_target,
)

FailureDomain = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]


class Preference(StrEnum):
    """`shadow_message_preference_setting`."""

    PREFER_REMOTE = "PreferRemote"
    REMOTE_ONLY = "RemoteOnly"
    LOCAL_ONLY = "LocalOnly"


class WithoutLease(StrEnum):
    """`delivery_without_lease`."""

    DELIVER = "deliver"
    DEFER = "defer"


class PeersMayRelay(StrEnum):
    """`peers_may_relay`."""

    ALL = "all"
    ACCEPTED = "accepted"


class AdminRole(StrEnum):
    """`role` of a person in `[[admin.users]]`."""

    VIEWER = "viewer"
    AUDITOR = "auditor"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"


class Server(Section):
    """Who this node is."""

    name: Name
    """Fully qualified name of this node: its identity towards peers, in EHLO and in the logs."""
    site: Annotated[SiteName, Field(min_length=1, max_length=64)]
    """Site of this node. Peers of other sites are remote. Source: seed-000"""
    boundary: Annotated[BoundaryName, LABEL] = BoundaryName("default")
    """Transport high availability boundary. Only peers of the same boundary hold copies; others are refused.
    Also one that is not named may span several sites (docs/sources.md). Source: seed-000"""
    failure_domains: Annotated[tuple[FailureDomain, ...], Field(max_length=8)] = ()
    """Labels of what this node may be lost with: rack, hypervisor, power supply. Servers with a label in common share a fate, as those on
    one machine do; the machine is known by itself. A copy there is not redundant. At most 8. Source: design 6.15"""
    data_directory: Path = Path("/var/lib/shadowrelay")
    """Queue database and content. Relative paths are relative to this file. Never restore an old copy of it."""
    content_memory_limit: Annotated[Size, Field(ge=8_000_000, le=1_000_000_000_000)] = 128_000_000
    """Memory for contents, in sessions, copies and attempts. Above it, contents go to disk, then wait, then get 452. Source: design 9"""


def _remote_retries(values: dict[str, Any]) -> int:
    return 0 if values.get("shadow_message_preference_setting") is Preference.LOCAL_ONLY else 4


class Transport(Section):
    """Redundancy, as in Set-TransportConfig and Set-TransportService."""

    shadow_redundancy_enabled: bool = True
    """Make, hold and ask for shadow copies. Off: nothing is advertised, copied, or refused for lack of a copy. Source: msp-tc"""
    reject_message_on_shadow_failure: bool = False
    """No copy possible: true answers 451 4.4.0, false accepts the message and makes it redundant later. Source: seed-000, msp-tc"""
    shadow_redundancy_promotion: bool = False
    """When max_acknowledgement_delay is over: true first places a copy on a peer, if one takes it, false answers 250. Source: msp-tc"""
    shadow_copies: Annotated[Count, Field(ge=1, le=3)] = 1
    """On how many other servers each message is kept: as many nodes may be destroyed at once. Exchange makes one copy."""
    shared_fate_is_redundant: bool = False
    """true: a copy on the same machine, or where a label of failure_domains is the same, counts. For trying several nodes on one machine:
    mail is then lost with that machine, although it was called redundant. Source: design 6.15"""
    shadow_message_preference_setting: Preference = Preference.PREFER_REMOTE
    """Where copies go: PreferRemote, RemoteOnly or LocalOnly. Without peers in other sites it has no effect. Source: seed-000, msp-tc"""
    max_retries_for_remote_site_shadow: Annotated[Count, Field(ge=0, le=255)] = Field(default_factory=_remote_retries)
    """Attempts in remote sites for one copy. LocalOnly: 0, and anything else is an error. Source: seed-000, msp-tc"""
    max_retries_for_local_site_shadow: Annotated[Count, Field(ge=0, le=255)] = 2
    """Attempts in the local site for one copy. RemoteOnly: used only without peers in other sites. Source: seed-000, msp-tc"""
    shadow_heartbeat_frequency: Annotated[Duration, Field(ge=SECOND, le=DAY)] = 2 * MINUTE
    """A primary without a session for this long is polled for a sign of life. Source: seed-000, msp-tc"""
    shadow_heartbeat_timeout_interval: Annotated[Duration, Field(ge=SECOND, le=DAY)] = 15 * MINUTE
    """A next hop to which mail was relayed by TRACK is called at least this often. Times shadow_heartbeat_retry_count: the silence after
    which that mail is taken back. Source: msp-tc, seed-003"""
    shadow_heartbeat_retry_count: Annotated[Count, Field(ge=1, le=15)] = 12
    """So many of these intervals in a row. With 15m: three hours. Source: msp-tc, seed-003"""
    shadow_resubmit_time_span: Annotated[Duration, Field(ge=SECOND, le=DAY)] = 3 * HOUR
    """Silence of a primary after which its shadow servers deliver its mail. The same on all nodes. Source: seed-000, msp-tc"""
    shadow_message_auto_discard_interval: Annotated[Duration, Field(ge=5 * SECOND, le=90 * DAY)] = 2 * DAY
    """Discard notifications that no peer requested in this time are deleted. Source: seed-000, msp-tc"""
    safety_net_hold_time: Annotated[Duration, Field(ge=timedelta(0), le=90 * DAY)] = 2 * DAY
    """How long delivered and discarded messages stay in Safety Net. Source: seed-000, msp-tc"""
    safety_net_max_size: SizeOrShare = "20%"
    """Safety Net drops the oldest above this share of the disk, or size; "0": no limit. When the disk gets full it drops them sooner,
    before mail is refused. Source: docs"""
    message_expiration_timeout: Annotated[Duration, Field(ge=5 * SECOND, le=90 * DAY)] = 2 * DAY
    """A message that could not be delivered in this time is returned to its sender. Source: msp-ts"""
    duplicate_detection_window: Annotated[Duration, Field(ge=timedelta(0), le=49 * DAY)] = HOUR
    """A message with the Message-ID, Date, sender and recipient of one delivered in this time is not delivered again. 0: off.
    Source: seed-004"""
    duplicate_cleanup_interval: Annotated[Duration, Field(ge=SECOND, le=DAY)] = 15 * MINUTE
    """How often recorded deliveries older than duplicate_detection_window are removed. Source: seed-004"""
    shadow_timeout: Annotated[Duration, Field(ge=100 * MILLISECOND, le=5 * MINUTE)] = 5 * SECOND
    """All attempts on one copy, while the client waits. Over 256 KiB: without progress, 5m in all (docs/operations.md). Source: design 5"""
    discard_poll_interval: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = SECOND
    """How often a primary is polled for discard notifications while its shadow messages are held. Source: design 4"""
    delivery_without_lease: WithoutLease = WithoutLease.DELIVER
    """Shadow server unreachable. deliver: continue; a cut longer than the span repeats all copied mail that this side delivers meanwhile.
    defer: wait, from five poll intervals (at least 1s) after it was last heard; such a cut repeats mail delivered until then.
    Either repeats the last poll interval before the cut. Source: design 6.4"""

    peers_may_relay: PeersMayRelay = PeersMayRelay.ALL
    """What peers may give this node to deliver. all: whatever they took. accepted: only what the receive connector that the copy names, or
    if this node has none of that name any of its connectors, takes from clients: recipients of accepted_domains, or all with relay_from."""

    max_copies_per_peer: Annotated[Count, Field(ge=0, le=1_000_000_000)] = 1_000_000
    """Copies that are held for one peer; further ones get 452, and it uses another peer. Far more than a peer has that works. 0: no limit.
    Source: docs"""
    max_copy_recipients_per_peer: Annotated[Count, Field(ge=0, le=1_000_000_000)] = 10_000_000
    """The same for the recipients of these copies. Source: docs"""
    max_copies_size_per_peer: SizeOrShare = "60%"
    """The same for their contents: a share of the disk, or a size. Source: docs"""

    @field_validator("max_retries_for_remote_site_shadow")
    @classmethod
    def _no_contradiction(cls, value: int, info: ValidationInfo) -> int:
        # Runs only for a configured value: an unset one follows the preference. Source: seed-004 (the trap)
        if value != 0 and info.data.get("shadow_message_preference_setting") is Preference.LOCAL_ONLY:
            raise ValueError(
                "contradicts shadow_message_preference_setting = 'LocalOnly', which makes no such attempt: "
                "remove this key or set it to 0, or choose another shadow_message_preference_setting"
            )
        return value


class Peer(Section):
    """Another node. Those of our boundary hold copies for us."""

    name: Name
    """Its [server] name; with TLS its certificate must say so too."""
    site: Annotated[SiteName, Field(min_length=1, max_length=64)]
    """Its site."""
    boundary: Annotated[BoundaryName, LABEL] = BoundaryName("default")
    """Its boundary. A peer of another boundary is never given a copy."""
    address: Address
    """Where its receive connector listens."""
    send_xshadow: bool = True
    """Place copies on it, and poll it. Source: seed-003"""
    require_tls: bool | None = None
    """Sessions to it by mutual TLS only. Unset: true if [tls] has a peer_authority, else plain (it must list us as externally secured)."""
    admin: AdminUrl = ""
    """URL of its API, for commands that ask all nodes: https and its [admin] tls_listen. Its certificate is checked as in sessions to it.
    Empty: it is not asked."""


def _one_of_each_family(value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        found = [ip_address(each.strip()) for each in value]
    except ValueError:
        found = [ip_address("::")]
    is_wrong = any(each.is_unspecified or each.is_multicast or "%" in str(each) for each in found)
    if is_wrong or len({each.version for each in found}) < len(found):
        raise ValueError("must be an IP address of this machine, or one of IPv4 and one of IPv6")
    return tuple(map(str, found))


SourceAddresses = Annotated[tuple[str, ...], BeforeValidator(one_or_several), AfterValidator(_one_of_each_family)]


def _tls_mode(values: dict[str, Any]) -> TlsMode:
    return TlsMode.OPPORTUNISTIC if values.get("auth") is None else TlsMode.VERIFIED


class Route(Section):
    """Recipients by pattern and the servers that accept them. The first match wins; without one, DNS (MX) decides."""

    recipients: Annotated[tuple[Pattern, ...], Field(min_length=1)]
    """Patterns of recipients, like "*@corp.example"; * stands for any text. The first route that matches counts."""
    next_hop: NextHops = ()
    """A server, or a list of them in order: the others are alternate routes. May be left out with site: then DNS (MX) decides there.
    "smtps://relay.example:465" has TLS from the first octet."""
    site: Annotated[SiteName, Field(max_length=64)] = SiteName("")
    """The site that delivers this mail, by next_hop; nodes of other sites relay it towards that one by [[site_links]]. Empty: every node
    delivers it. Source: seed-003"""
    redundancy: Redundancy = Redundancy.BEFORE_ACKNOWLEDGEMENT
    """previous-hop or both: if the next hop is a peer, this node keeps what it relays as a shadow until that one has delivered (TRACK).
    before-acknowledgement or none: it does not. docs/design.md 6.7. Source: seed-003"""
    inside_boundary: bool | None = None
    """The next hop belongs to this organisation: SEND in the tracking log, not SENDEXTERNAL; `safety-net resubmit` serves it.
    Unset: true if all recipients of this route are of accepted_domains. Source: msd-sn"""
    concurrency_per_destination: Annotated[Count, Field(ge=0, le=1000)] = 0
    """Concurrent sessions to this next hop, and to each of its addresses. 0: as in [send]."""
    auth: Login | None = None
    """Login at the next hop: user, and secret_file, credential or token; mechanism (docs/reference.md "Login at next hops"). RFC 4954"""
    tls: TlsMode = Field(default_factory=_tls_mode)
    """opportunistic: if offered, with any certificate, else none. required: with any certificate, or the mail waits. With auth: verified.
    verified: with a certificate of tls_authority for the name of the next hop, or the mail waits. RFC 3207, RFC 7435"""
    tls_names: tuple[Name, ...] = ()
    """verified: the certificate must be for one of these names instead of that of the next hop."""
    tls_authority: Path | None = None
    """verified: PEM file of the authorities that count. Unset: those of the system."""
    tls_certificate: Path | None = None
    """PEM file with the certificate that this node shows the next hop if asked; with tls_key."""
    tls_key: Path | None = None
    """PEM file with its private key."""
    tls_minimum_version: TlsVersion = TlsVersion.TLS_1_2
    """1.2 or 1.3. RFC 8996"""
    source_ip_address: SourceAddresses = ()
    """Addresses of this node from which it connects to the next hop: one, or one of IPv4 and one of IPv6. Empty: the system chooses, as for
    a family that is not named. Source: msp-sc"""
    xclient: bool = False
    """Tell the next hop the client by XCLIENT, if it offers that: it then judges the client, not this node. One message a session."""
    xforward: bool = False
    """Tell it the client by XFORWARD, if it offers that: a label for its logs and filters."""
    journal_recipient: Mailbox = ""
    """Gets a journal report of each message with a recipient on this route: the envelope, and the message attached. Empty: no journaling.
    All nodes of a boundary need the same. Source: msd-jr"""

    @cached_property
    def protection(self) -> Protection | None:
        """Of sessions with its next hops; `None` where nothing is set. Equal values are equal protections, whatever route they are of."""
        found = Protection(
            self.tls, self.tls_names, self.tls_authority, self.tls_certificate, self.tls_key, self.tls_minimum_version,
            self.auth, source=self.source_ip_address,
        )  # fmt: skip
        return None if found == Protection() else found


class SiteLink(Section):
    """A link between two sites, for mail in both directions. Mail takes the path of least cost. The same on all nodes."""

    sites: tuple[Annotated[SiteName, Field(min_length=1, max_length=64)], ...]
    """The two sites."""
    cost: Annotated[Count, Field(ge=1, le=99_999)] = 100
    """Its cost; of two paths the one with the lower sum counts. Default and range are those of Active Directory. Source: msd-lcr"""


class Site(Section):
    """What is particular about a site; others need no entry. The same on all nodes."""

    name: Annotated[SiteName, Field(min_length=1, max_length=64)]
    """A site of [[site_links]]."""
    hub_site_enabled: bool = False
    """Mail whose path of least cost leads through this site stops at one of its servers (Set-AdSite). Source: seed-003, msd-lcr"""


class Certificate(Section):
    """A further certificate of a receive connector, for clients that ask for one of its names (SNI)."""

    certificate: Path
    """PEM file with the certificate and the intermediate ones."""
    key: Path
    """PEM file with its private key."""


class Tls(Section):
    """TLS. This table is optional: without it STARTTLS is not offered."""

    certificate: Path
    """PEM file with this node's certificate and the intermediate ones; [server] name must be among its DNS names."""
    key: Path
    """PEM file with its private key."""
    peer_authority: Path | None = None
    """PEM file with the authority that signs the certificates of peers. Without it no peer can prove its name by TLS."""
    peer_revoked: Path | None = None
    """File with what was revoked, of peers: revocation lists of that authority (PEM), certificates (PEM), SHA-256 fingerprints, # comments.
    Read again by SIGHUP, which ends the open sessions of whoever is in it."""
    certificates: tuple[Certificate, ...] = ()
    """Further certificates, like { certificate = "mail.pem", key = "mail.key" }: a client of a receive connector that asks for one of their
    DNS names (SNI, RFC 6066) is shown that one. Their names and files are read again by SIGHUP."""


class Send(Section):
    """Delivery to next hops: the retry ladder of Exchange."""

    queue_glitch_retry_count: Annotated[Count, Field(ge=0, le=255)] = 4
    """First step of the ladder: attempts after a lost or refused connection. Source: msd-int"""
    queue_glitch_retry_interval: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = MINUTE
    """Time between them; also before the first retry of any message. Source: msd-int"""
    transient_failure_retry_count: Annotated[Count, Field(ge=0, le=255)] = 6
    """Second step: attempts. Source: msd-int"""
    transient_failure_retry_interval: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = 5 * MINUTE
    """Time between them. Source: msd-int"""
    outbound_connection_failure_retry_interval: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = 10 * MINUTE
    """Third step: time between all further attempts. Source: msd-int"""
    message_retry_interval: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = 15 * MINUTE
    """Time between attempts after a 4xx to the message itself. Source: msd-int"""
    delay_notification_timeout: Annotated[Duration, Field(ge=SECOND, le=30 * DAY)] = 4 * HOUR
    """After this long the sender is notified that the message is delayed. Source: msd-int"""
    connection_inactivity_timeout: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = 10 * MINUTE
    """A session to a next hop that is in use and stands still for this long is closed; for single replies see RFC 5321 4.5.3.2.
    Source: seed-000"""
    unused_session_timeout: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = 2 * SECOND
    """A session to a next hop that no message uses is closed after this long: many servers take few sessions, from all their clients."""
    peer_connection_inactivity_timeout: Annotated[Duration, Field(ge=10 * MILLISECOND, le=DAY)] = MINUTE
    """Idle sessions for copies to peers are closed after this long; one is held ready, and so used at half of it. The one for discard
    notifications stays open."""
    concurrency_per_destination: Annotated[Count, Field(ge=1, le=1000)] = 20
    """Concurrent sessions to one next hop, and to each of its addresses."""
    max_outbound_connections: Annotated[Count, Field(ge=1, le=100_000)] = 1000
    """Concurrent sessions to all next hops; peers have others. At most half of the descriptors of the process. Source: msp-ts"""
    dsn_to_private_networks: bool = False
    """Return mail of clients that may not relay to senders whose mail server is in a private network, too, by DNS or an address literal. A
    route is always obeyed. Source: docs"""
    source_ip_address: SourceAddresses = ()
    """The same as of a route, for deliveries by MX and routes that do not say it. Source: msp-sc"""
    mta_sts: bool = False
    """Deliveries by MX obey the policies that domains publish (MTA-STS): verified TLS with the mail servers that the policy names, or the
    mail waits. RFC 8461"""
    chunking_enabled: bool = True
    """Send content in chunks (BDAT) to a next hop that offers CHUNKING; false: always by DATA, and binary content in base64. RFC 3030"""
    eight_bit_without_8bitmime: bool = True
    """Send 8-bit content as it is to a next hop that does not offer 8BITMIME; false: return it, unless the next hop is inside the boundary.
    RFC 6152"""


class Tracking(Section):
    """The message tracking log, in Exchange's format."""

    directory: Path = Path("/var/log/shadowrelay/tracking")
    """Where MSGTRK*.LOG files are written. Not inside data_directory: a wiped queue must not destroy the evidence."""
    max_file_size: Annotated[Size, Field(ge=1, le=4_000_000_000)] = 10_000_000
    """A new file is started at this size. Source: msp-ts"""
    max_directory_size: Annotated[Size, Field(ge=1)] = 1_000_000_000
    """The oldest files are deleted above this size. Source: msp-ts"""
    max_age: Annotated[Duration, Field(ge=timedelta(0))] = 30 * DAY
    """Older files are deleted; "0s" means no limit. Source: msp-ts"""
    message_subject_logging_enabled: bool = True
    """false: the subjects of messages are not written to the log. Source: msp-ts"""

    @model_validator(mode="after")
    def _file_fits(self) -> Self:
        if self.max_file_size > self.max_directory_size:
            raise ValueError("max_file_size must not be larger than max_directory_size; lower the first or raise the second")
        return self


class Shipping(Section):
    """Shipping of closed tracking logs to where the report reads them; docs/operations.md "Shipping the tracking log"."""

    target: Annotated[str, AfterValidator(checked_target), PlainSerializer(shown_target, when_used="json")] = ""
    """An absolute directory, or a URL that fsspec knows (s3://, gs://, abfs://, sftp://, file://…). Empty: nothing is shipped."""
    interval: Annotated[Duration, Field(ge=SECOND, le=HOUR)] = 5 * MINUTE
    """A file is closed and shipped at most this long after its first row, so that an idle node still reports."""
    options: Annotated[dict[str, Option], BeforeValidator(checked_options), PlainSerializer(shown_options, when_used="json")] = {}  # noqa: RUF012 - pydantic copies it
    """Options of fsspec's store, like { endpoint_url = "https://…", key = "…", secret = "…" }. What looks secret is never printed."""


class AdminUser(Section):
    """A person with a token of his own for console, API and commands. `shadowrelay token` makes one."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@ -]*$")]
    """Under which the person acts: in listings, the operator log and the audit page."""
    role: AdminRole
    """viewer: sees the state. auditor: also who did what. operator: also acts, and reads messages. administrator: everything."""
    token_hash: TokenHash
    """Of the person's token, by argon2. Give all nodes the same: then a person may act on each of them, through any."""
    sees_messages: bool = False
    """Of a viewer: also subjects and addresses. Everybody else sees them."""


class Admin(Section):
    """The HTTP API, metrics and health."""

    listen: Address = HostPort("127.0.0.1", 8025)
    """Address and port. It is not encrypted: keep it on loopback."""
    tls_listen: Address | None = None
    """Address and port of the same API with TLS, for other machines: with the certificate of [tls]. Unset: there is none."""
    tls_client_certificate_required: bool = True
    """tls_listen takes connections only with a certificate that tls.peer_authority signed; that of a peer gives the right to read, without
    the content of messages. false: also without one, then by token only."""
    allowed_hosts: tuple[Name, ...] = ()
    """Further host names for requests. [server] name, localhost and all addresses are accepted; other names are answered 421."""
    token_file: Path = Path("token")
    """File with the bearer token. Created at the first start if missing, readable by this user only."""
    read_only_token_file: Path | None = None
    """File with a second token, for monitoring and for the other nodes: it may only read, and not the content of messages. The same on all
    nodes, while token_file is each node's own. Created like the first one."""
    report: Path | None = None
    """Directory of a redundancy report (--output of `sla report` or `sla watch`). The console then has it as a page."""
    users: Annotated[tuple[AdminUser, ...], Field(max_length=50)] = ()
    """People with tokens and roles of their own; see [[admin.users]]. The token in token_file is an administrator's."""


class Webhook(Section):
    """Where events of this node are posted, signed and in order. docs/operations.md "Webhooks"."""

    url: Annotated[str, AfterValidator(checked_webhook)]
    """Of the receiver, http or https."""
    events: Annotated[tuple[str, ...], AfterValidator(checked_events)] = ()
    """Names of events, as in docs/operations.md, Events. Empty: all."""
    secret: Annotated[str, Field(min_length=16, max_length=256), PlainSerializer(lambda _: LEFT_OUT)]
    """Shared with the receiver, which recognises by it what this node has sent: an HMAC is in the header X-Shadowrelay-Signature."""


class Dns(Section):
    """Name servers. Without this table those of the system (/etc/resolv.conf) are used. The hosts file takes precedence."""

    nameservers: tuple[NameServer, ...] = ()
    """IP addresses of the name servers for MX records, next hops and peers, in order; the port may be left out (53)."""


class Settings(Section):
    """All settings of one node."""

    server: Server
    transport: Transport = Transport()
    receive_connectors: tuple[ReceiveConnector, ...] = ()
    recipient_sources: tuple[RecipientSource, ...] = ()
    filters: tuple[Filter, ...] = ()
    peers: tuple[Peer, ...] = ()
    routes: tuple[Route, ...] = ()
    site_links: tuple[SiteLink, ...] = ()
    sites: tuple[Site, ...] = ()
    tls: Tls | None = None
    send: Send = Send()
    back_pressure: BackPressure = BackPressure()
    tracking: Tracking = Tracking()
    shipping: Shipping = Shipping()
    admin: Admin = Admin()
    webhooks: tuple[Webhook, ...] = ()
    dns: Dns = Dns()

    @cached_property
    def shadow_candidates(self) -> tuple[Peer, ...]:
        """Peers that copies may be placed on: of our boundary, with `send_xshadow`. Source: seed-000"""
        return tuple(peer for peer in self.peers if peer.boundary == self.server.boundary and peer.send_xshadow)

    @property
    def tracks(self) -> bool:
        """Whether shadows are kept here or for this node in the way of Exchange 2010."""
        ways = [connector.redundancy for connector in self.receive_connectors] + [route.redundancy for route in self.routes]
        return any(way.tracks for way in ways)

    @property
    def linked_peers(self) -> tuple[Peer, ...]:
        """Peers with which this node has sessions: those that copies may be placed on, and with TRACK those of other boundaries, too."""
        if not self.tracks:
            return self.shadow_candidates
        return tuple(peer for peer in self.peers if peer.send_xshadow)

    @cached_property
    def special_connectors(self) -> Mapping[str, ReceiveConnector]:
        """By name, those whose `redundancy` is not the default: asked for each message, and mostly empty."""
        return {each.name: each for each in self.receive_connectors if each.redundancy is not Redundancy.BEFORE_ACKNOWLEDGEMENT}

    def is_copied(self, connector: str) -> bool:
        """Whether mail is to be copied that came by the receive connector with this name; also of one that is gone, or of none."""
        other = self.special_connectors.get(connector)
        return other is None or other.redundancy.copies

    @property
    def is_witness(self) -> bool:
        """It has no connector by which clients' mail comes, and one for peers: it is there for their copies."""
        connectors = self.receive_connectors
        return not any(each.takes_mail for each in connectors) and any(each.accept_xshadow for each in connectors)

    @property
    def copies_wanted(self) -> int:
        """Of mail in general, and of a kept shadow that this node takes back; 0 if none of its connectors has its mail copied. One for
        peers, by which only copies come, has no say."""
        taking = [each for each in self.receive_connectors if each.takes_mail] or self.receive_connectors
        ways = [each.redundancy for each in taking]
        return self.transport.shadow_copies if not ways or any(way.copies for way in ways) else 0

    @property
    def copies_without_client(self) -> int:
        """Of a message that no client or previous hop keeps: this node made it, or takes it over as a copy. The connectors decide about the
        mail that comes by them, not about this; 0 if there is no peer to place a copy on either."""
        return self.copies_wanted or (self.transport.shadow_copies if self.shadow_candidates else 0)

    @property
    def promotes(self) -> bool:
        """Whether a copy is placed before a delayed 250 is given by best effort. docs/design.md 6.7. Source: msp-tc"""
        transport = self.transport
        return transport.shadow_redundancy_promotion and transport.shadow_redundancy_enabled and bool(self.shadow_candidates)

    def leads_to_peer(self, route: Route) -> bool:
        """Whether a next hop of this route is the address of a peer, which may take mail by TRACK."""
        addresses = {(peer.address.host.lower(), peer.address.port) for peer in self.linked_peers}
        return any((hop.host.lower(), hop.port) in addresses for hop in route.next_hop)

    @property
    def servers_by_site(self) -> Mapping[SiteName, tuple[ServerName, ...]]:
        """The servers of this node's boundary, this one included, as far as it knows them. Source: seed-000"""
        members = [(self.server.site, self.server.name)]
        members += [(peer.site, peer.name) for peer in self.peers if peer.boundary == self.server.boundary]
        return {site: tuple(sorted(name for where, name in members if where == site)) for site in sorted({site for site, _ in members})}

    def peer_requires_tls(self, peer: Peer) -> bool:
        """Whether our sessions to `peer` must be mutual TLS; see `Peer.require_tls`."""
        return peer.require_tls if peer.require_tls is not None else self.tls is not None and self.tls.peer_authority is not None
