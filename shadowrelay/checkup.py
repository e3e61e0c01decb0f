"""`shadowrelay doctor`: tries what a node's configuration relies on, and reports errors with their remedy. docs/setup.md "Doctor".

Everything is tried as the node itself does it: the same resolver, the same TLS contexts, the same EHLO. It never says XSHADOW HELLO to a
peer, because a second process with the node's name and another database would look like a node whose disk was lost.
All trials run at once, each bounded, so that a dead host costs seconds. Nothing is changed but a file that is written and removed.
"""

import asyncio
import hashlib
import os
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from shadowrelay.admin.api_client import Json, NodeClient, NodeError, client_of_peer
from shadowrelay.admin.token import read_token
from shadowrelay.machine import LinuxMachine
from shadowrelay.model.ids import NO_MESSAGE
from shadowrelay.model.message import Content, Envelope, Recipient
from shadowrelay.model.protection import Protection
from shadowrelay.model.receive_settings import Filter, OnFailure
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import format_next_hop, rounded_size
from shadowrelay.model.settings import Peer, Settings
from shadowrelay.model.values import dataclass
from shadowrelay.settings import certificates, configuration, places
from shadowrelay.settings.configuration import LoadedSettings
from shadowrelay.smtp import recipient_file
from shadowrelay.smtp.client import ConnectOptions, TlsFailed, TlsUse, open_session
from shadowrelay.smtp.client_session import TLS_FAILED, SessionBroken
from shadowrelay.smtp.host_names import HostNames, Lookups, NoAddress, name_server_failure
from shadowrelay.smtp.logins import LoginFailed
from shadowrelay.smtp.mail_filters import FilterFailed, Passage
from shadowrelay.smtp.route_sessions import RouteSessions
from shadowrelay.smtp.tls import TlsContexts, opportunistic_context
from shadowrelay.trust import REVOKED, PeerTrust

TRIAL_SECONDS = 10.0  # for each name, and for each step of a session
SYNCS_COUNT = 20
SYNC_SECONDS_SLOW = 0.02  # a message needs two syncs on its way to the 250
BLOCK = 4096
TRIAL = b"From: postmaster\r\nSubject: trial\r\n\r\nA trial of the filter.\r\n"
LOOKS_APART_SECONDS = 3.0  # at a peer's clock: a per cent of this is longer than a look takes
RATE_TOLERANCE = 0.01  # docs/design.md 6.4: leases rely on it


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """Shapes: `subject` is what was tried, like "peer mx1.west.example". `remedy` is empty where nothing is to be done."""

    level: Severity
    subject: str
    text: str
    remedy: str = ""


async def examine(loaded: LoadedSettings) -> list[Finding]:
    """All findings, in the order of the trials. Raises: ConfigurationError for certificates that cannot be read."""
    settings = loaded.settings
    contexts = None if settings.tls is None else TlsContexts.read(settings.tls)
    lookups = Lookups(settings.dns.nameservers, lifetime_seconds=TRIAL_SECONDS)
    hosts = HostNames(lookups)
    trials: list[Awaitable[list[Finding]]] = [
        asyncio.to_thread(_places, settings),
        asyncio.to_thread(_certificate, settings, contexts),
        asyncio.to_thread(_recipient_files, settings),
        *(_name_server(server, settings.server.name) for server in settings.dns.nameservers),
        *(_peer(settings, contexts, peer, hosts) for peer in settings.peers),
        *(_next_hop(settings, host, protection, hosts) for host, protection in _next_hops(settings)),
        *(_filter(each) for each in settings.filters),
        asyncio.to_thread(_running_node, settings, loaded.path),
        *(asyncio.to_thread(_clock, settings, peer) for peer in settings.peers if peer.admin),
    ]
    try:
        found = await asyncio.gather(*trials)
    finally:
        await lookups.close()
    said = [*configuration.warnings(settings), *places.exposed(settings, *loaded.files)]
    doubts = [Finding(Severity.WARNING, "configuration", text) for text in said]
    return [*doubts, *(finding for findings in found for finding in findings)]


def wrong_names(settings: Settings) -> list[str]:
    """Peers and next hops that have no address, or are this node itself: each with the remedy, for `check --online`."""

    async def look_up() -> list[Finding | None]:
        lookups = Lookups(settings.dns.nameservers, lifetime_seconds=TRIAL_SECONDS)
        hosts = HostNames(lookups)
        called = [(f"peers[{number}].address: {peer.address}", peer.address) for number, peer in enumerate(settings.peers)]
        called += [(f"{_key_of(settings, host)}: {host}", host) for host, _ in _next_hops(settings)]
        try:
            return await asyncio.gather(*(_ourselves(settings, host, hosts, subject) for subject, host in called))
        finally:
            await lookups.close()

    return [f"{found.subject}: {found.text}; {found.remedy}" for found in asyncio.run(look_up()) if found is not None]


def running_node(path: Path) -> list[Finding]:
    """What the node runs with whose configuration file has mistakes. Raises: ConfigurationError if they hide how to ask it."""
    settings, _ = configuration.address_and_rights(path)
    return _running_node(settings, path)


# ---- this machine


def _places(settings: Settings) -> list[Finding]:
    """Directories: may this user write there, is there space, how long does a sync take."""
    directories = {"data_directory": settings.server.data_directory, "tracking.directory": settings.tracking.directory}
    return [_place(name, path, is_synced=name == "data_directory") for name, path in directories.items()]


def _place(name: str, path: Path, *, is_synced: bool) -> Finding:
    subject = f"{name} {path}"
    if reason := places.why_not(path):
        remedy = f"let user {os.geteuid()} write there, run this as the node's user, or name another directory"
        return Finding(Severity.ERROR, subject, reason, remedy)
    there = next(each for each in (path, *path.parents) if each.exists())
    disk = LinuxMachine().disk(there)
    text = f"{rounded_size(disk.free)} free of {rounded_size(disk.size)}"
    if there != path:
        return Finding(Severity.OK, subject, f"will be made in {there}; {text}")
    if not is_synced:
        return Finding(Severity.OK, subject, text)
    try:
        seconds = _sync_seconds(path)
    except OSError as exc:
        return Finding(Severity.ERROR, subject, f"nothing can be written there ({exc.strerror})", "make room, or repair the file system")
    text = f"{text}; a sync takes {seconds * 1000:.1f} ms"
    if seconds > SYNC_SECONDS_SLOW:
        return Finding(
            Severity.WARNING, subject, text, "each message waits for two: use a faster disk, or one with a protected write cache"
        )
    return Finding(Severity.OK, subject, text)


def _sync_seconds(directory: Path) -> float:
    """The median time of writing a block and syncing it. Raises: OSError."""
    seconds: list[float] = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNCS_COUNT):
            began = time.perf_counter()
            file.write(b"\0" * BLOCK)
            file.flush()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _certificate(settings: Settings, contexts: TlsContexts | None) -> list[Finding]:
    """Whether our own certificate passes as a peer would check it, if its authority is ours."""
    subject = "certificate"
    if contexts is None:
        return [
            Finding(
                Severity.WARNING,
                subject,
                "there is no [tls]: peers are known by their address only",
                "shadowrelay init writes certificates",
            )
        ]
    ends = f"ends on {contexts.ends['certificate']:%Y-%m-%d}"
    reason = certificates.handshake_failure(contexts.asking, contexts.to_peers, settings.server.name)
    if reason:
        remedy = "have peer_authority sign a certificate with this name: docs/setup.md, Certificates; shadowrelay init --renew"
        return [Finding(Severity.ERROR, subject, f"a peer with the same peer_authority refuses it: {reason}", remedy)]
    return [Finding(Severity.OK, subject, f"{settings.server.name} by tls.peer_authority; {ends}")]


def _recipient_files(settings: Settings) -> list[Finding]:
    """Lists of recipients, read as the node reads them."""
    remedy = "write an address a line, and move the new file into the place of the old one; the node goes on with the list that it has"
    return [
        Finding(Severity.ERROR, f"recipient source {source.name}", reason, remedy)
        if reason
        else Finding(Severity.OK, f"recipient source {source.name}", f"{source.file} has {count} addresses")
        for _, source, count, reason in recipient_file.tried(settings)
    ]


async def _name_server(server: HostPort, name: str) -> list[Finding]:
    failure = await name_server_failure(server, name, TRIAL_SECONDS)
    if failure:
        return [Finding(Severity.ERROR, f"name server {server}", failure, "correct dns.nameservers, or start it")]
    return [Finding(Severity.OK, f"name server {server}", "answers")]


# ---- other servers


async def _filter(each: Filter) -> list[Finding]:
    from shadowrelay.smtp.rspamd import Rspamd  # httpx takes a third of a second to import

    subject, mail_filter = f"filter {each.name}", Rspamd(each)
    envelope = Envelope(NO_MESSAGE, "", (Recipient("postmaster"),), datetime.now(UTC))
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            verdict = await mail_filter.judge(Passage(envelope, Content(len(TRIAL), hashlib.sha256(TRIAL).digest(), data=TRIAL), 0))
    except (FilterFailed, OSError) as error:
        text = f"no verdict: {error or 'timed out'}; mail is {'deferred' if each.on_failure is OnFailure.DEFER else 'accepted without it'}"
        return [Finding(Severity.ERROR, subject, text, f"start it at {each.address}, or correct its address")]
    finally:
        await mail_filter.close()
    return [Finding(Severity.OK, subject, f"gives verdicts ({verdict.label})")]


async def _peer(settings: Settings, contexts: TlsContexts | None, peer: Peer, hosts: HostNames) -> list[Finding]:
    subject = f"peer {peer.name} at {peer.address}"
    if found := await _ourselves(settings, peer.address, hosts, subject):
        return [found]
    is_tls = contexts is not None and settings.peer_requires_tls(peer)
    options = _connect_options(
        settings,
        hosts,
        TlsUse.REQUIRED if is_tls else TlsUse.NEVER,
        contexts.to_peers if contexts and is_tls else None,
        contexts.trust if contexts and is_tls else None,
    )
    try:
        session = await open_session(peer.address, peer.name, options)
    except SessionBroken as broken:
        return [Finding(Severity.ERROR, subject, broken.reply.text, _remedy_for_peer(broken.reply.text))]
    offer = session.extensions.get("xshadow")
    session.pipeline.abort()
    await session.pipeline.closed()
    if offer is None:
        remedy = (
            "there: accept_xshadow on that connector, this node among its [[peers]], and a [tls] peer_authority that signed our "
            "certificate (without TLS: our address in externally_secured)"
        )
        return [Finding(Severity.ERROR, subject, "it does not offer XSHADOW to this node", remedy)]
    protected = "mutual TLS" if session.is_tls else "no TLS"
    if "HOLD" not in offer.upper().split():
        return [
            Finding(
                Severity.WARNING, subject, f"reached with {protected}; it takes no copies now", "see shadowrelay pressure and drain there"
            )
        ]
    return [Finding(Severity.OK, subject, f"reached with {protected}; it takes copies")]


def _remedy_for_peer(text: str) -> str:
    lower = text.lower()
    if "does not offer starttls" in lower:
        return "give that node a [tls] table, or set require_tls = false for this peer"
    if "hostname mismatch" in lower or "not valid for" in lower:
        return (
            "the certificate there must have the peer's name among its DNS names; or [[peers]] name and address belong to different nodes"
        )
    if REVOKED in lower:
        return "give that node a new key and certificate, as docs/operations.md says where a node's key was stolen"
    if "verify failed" in lower:
        return "its certificate must be signed by our tls.peer_authority, and be valid now"
    if text.startswith(TLS_FAILED.text):  # TLS 1.3 lets a server refuse our certificate by ending the session
        return "that node probably does not accept our certificate: both need the same peer_authority"
    return "start that node, or correct its address; between them no firewall may stop this port"


def _next_hops(settings: Settings) -> Sequence[tuple[HostPort, Protection | None]]:
    """Each once, with its protection, in the order of the routes. Those of routes to other sites need not be reachable from here."""
    here = ("", settings.server.site)
    return tuple(dict.fromkeys((host, route.protection) for route in settings.routes if route.site in here for host in route.next_hop))


def _key_of(settings: Settings, host: HostPort) -> str:
    return next(f"routes[{number}].next_hop" for number, route in enumerate(settings.routes) if host in route.next_hop)


async def _next_hop(settings: Settings, host: HostPort, protection: Protection | None, hosts: HostNames) -> list[Finding]:
    subject = f"next hop {format_next_hop(host)}"
    if found := await _ourselves(settings, host, hosts, subject):
        return [found]
    base = _connect_options(settings, hosts, TlsUse.OPPORTUNISTIC, opportunistic_context())
    try:
        session = await open_session(host, host.host, await RouteSessions().options(base, protection, host.host))
    except LoginFailed as broken:
        remedy = "mail for it waits: correct auth in [[routes]], its secret, or the account there"
        return [Finding(Severity.ERROR, subject, str(broken.reply), remedy)]
    except TlsFailed as broken:
        remedy = "mail for it waits: have its certificate renewed, or correct tls, tls_names and tls_authority in [[routes]]"
        return [Finding(Severity.ERROR, subject, str(broken.reply), remedy)]
    except SessionBroken as broken:
        remedy = "mail for it waits until it answers: start it, or correct next_hop in [[routes]]"
        return [Finding(Severity.ERROR, subject, str(broken.reply), remedy)]
    session.pipeline.abort()
    await session.pipeline.closed()
    text = f"answers, {f'with TLS ({session.tls})' if session.is_tls else 'without TLS'}"
    if session.login:
        text += f", takes the login of {session.login.partition(' ')[2]} by {session.login.partition(' ')[0]}"
    size = session.extensions.get("size", "")
    if size.isdigit() and int(size):
        text += f", takes up to {rounded_size(int(size))}"
    return [Finding(Severity.OK, subject, text)]


def _connect_options(
    settings: Settings, hosts: HostNames, tls: TlsUse, context: ssl.SSLContext | None, trust: PeerTrust | None = None
) -> ConnectOptions:
    seconds = TRIAL_SECONDS
    return ConnectOptions(settings.server.name, tls, context, hosts.dial, seconds, seconds, seconds, trust=trust)


async def _ourselves(settings: Settings, host: HostPort, hosts: HostNames, subject: str) -> Finding | None:
    """A finding if this address is a receive connector of this very node, or has no address at all."""
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            addresses = await hosts.addresses(host.host)
    except (NoAddress, TimeoutError) as error:
        reason = str(error) or "no answer"
        return Finding(Severity.ERROR, subject, f"its name is not found: {reason}", "correct the name, DNS or the hosts file")
    ours = [each.listen for each in settings.receive_connectors if each.listen.port == host.port]
    if any(_is_here(address) and any(listen.host in ("0.0.0.0", "::", address) for listen in ours) for address in addresses):
        return Finding(Severity.ERROR, subject, "that is this node itself: mail would go round in a circle", "correct the address")
    return None


def _is_here(address: str) -> bool:
    """Whether this machine has the address: only then a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


# ---- clocks


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the clock of another node. Units: seconds of this machine's clock, and the uptime that the node reports."""

    asked_at: float
    answered_at: float
    uptime: float


def _clock(settings: Settings, peer: Peer) -> list[Finding]:
    """Two looks at how long the peer has run, by its own clock, give the rate of that clock."""
    subject = f"clock of {peer.name}"

    def look() -> Look:
        asked_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        uptime = float(client.node()["uptime_seconds"])
        return Look(asked_at, time.clock_gettime(time.CLOCK_BOOTTIME), uptime)

    try:
        with client_of_peer(settings, peer, lambda: read_token(settings.admin.token_file)) as client:
            look()  # opens the connection, which takes longer than a question
            first = look()
            time.sleep(LOOKS_APART_SECONDS)
            return [judged_rate(subject, first, look())]
    except ConfigurationError:  # reported by the check of the running node
        return []
    except NodeError as error:
        remedy = "start that node, or correct admin in [[peers]]"
        if error.status == 401:
            remedy = "give all nodes the same admin.read_only_token_file, and restart them"
        return [Finding(Severity.WARNING, subject, f"not compared: {error}", remedy)]


def judged_rate(subject: str, first: Look, second: Look) -> Finding:
    """Whether the other clock runs like ours. Each answer may be from any moment between question and reply."""
    ours = (second.asked_at + second.answered_at - first.asked_at - first.answered_at) / 2
    doubt = (first.answered_at - first.asked_at + second.answered_at - second.asked_at) / 2
    gained = second.uptime - first.uptime - ours
    if abs(gained) - doubt > ours * RATE_TOLERANCE:
        text = f"it runs {abs(gained) / ours:.1%} {'faster' if gained > 0 else 'slower'} than ours; leases need 1 %"
        return Finding(
            Severity.ERROR, subject, text, "try again, in case it was just set; else repair time synchronization, or that machine's clock"
        )
    if doubt > ours * RATE_TOLERANCE:
        return Finding(Severity.WARNING, subject, "not compared: its answers took too long", "try again when both machines are less busy")
    return Finding(Severity.OK, subject, "it runs at the rate of ours, within 1 %")


# ---- the node, if it runs


def _running_node(settings: Settings, path: Path) -> list[Finding]:
    subject = f"node at {settings.admin.listen}"
    try:
        token = read_token(settings.admin.token_file)
    except ConfigurationError:
        return [Finding(Severity.WARNING, subject, f"not asked: {settings.admin.token_file} cannot be read", "run this as the node's user")]
    try:
        with NodeClient(f"http://{settings.admin.listen}", token) as client:
            readiness, peers, node = client.ready(), client.peers(), client.node()
            together = [settings.server.name, *(peer["name"] for peer in peers if peer.get("shared_fate"))]
            loss = client.if_lost(together)
    except NodeError as error:
        if error.status:
            return [Finding(Severity.ERROR, subject, str(error), "another program or another node may listen there")]
        return [Finding(Severity.WARNING, subject, "it does not run", "start it: shadowrelay serve, or systemctl start shadowrelay")]
    found = _taken(path, node)
    level = Severity.ERROR if not readiness["is_ready"] else Severity.WARNING if readiness["reasons"] else Severity.OK
    text = "; ".join(readiness["reasons"]) or "it runs and accepts mail"
    found += _fates(settings, [peer for peer in peers if peer.get("shared_fate")], node)
    if loss["lost_count"]:
        lost = f"{loss['lost_count']} of its acknowledged messages would be lost with {' and '.join(together)} now"
        found.append(
            Finding(Severity.WARNING, subject, lost, "see `status --if-lost`; they are copied when a peer of another fate takes them")
        )
    return [Finding(level, subject, text), *found, *(finding for peer in peers for finding in _known_of(peer))]


def _taken(path: Path, node: Json) -> list[Finding]:
    """Whether the running node has taken its configuration file as it is now."""
    known = node.get("configuration") or {}  # missing in the API of older nodes
    found = []
    if known.get("digest") and known["digest"] != configuration.digest_of(path):
        text = f"the running node has read an earlier state of {path.name}, at {known['read_at'][:19]}Z"
        remedy = "SIGHUP (systemctl reload shadowrelay), then doctor again; `check` says whether the file is valid"
        if known.get("refusal"):
            text += f", and refused a later one at {known['refused_at'][:19]}Z: {known['refusal'].splitlines()[0]}"
        found.append(Finding(Severity.WARNING, "configuration", text, remedy))
    if waiting := known.get("needs_restart"):
        found.append(Finding(Severity.WARNING, "configuration", f"changes wait for a restart: {', '.join(waiting)}", "restart the node"))
    return found


def _versions(node: Json, peers: Sequence[Json]) -> list[Finding]:
    """Peers of another version, as far as they were met."""
    own = node["version"]
    other = {peer["name"]: peer["version"] or "an older one" for peer in peers if peer["database"] and peer.get("version", own) != own}
    if not other:
        return []
    named = ", ".join(f"{name} has {version}" for name, version in other.items())
    return [
        Finding(Severity.WARNING, "versions", f"a mixed cluster: this node has {own}, {named}", "end the upgrade, one node after the other")
    ]


def _fates(settings: Settings, sharing: Sequence[Json], node: Json) -> list[Finding]:
    """Which peers are lost together with this node, and what that means for its mail."""
    if not sharing:
        return []
    named = ", ".join(f"{peer['name']} ({peer['shared_fate']})" for peer in sharing)
    if node["settings"].get("transport.shared_fate_is_redundant"):
        text = f"shared with {named}; shared_fate_is_redundant lets copies there count, although they are lost with this server"
        return [Finding(Severity.OK, "failure domains", f"{text}: for trying only")]  # somebody wrote it
    text = f"shared with {named}: copies there do not count as redundant"
    if len(sharing) < len(settings.shadow_candidates):
        return [Finding(Severity.OK, "failure domains", text)]
    return [Finding(Severity.WARNING, "failure domains", f"{text}, and there are no other peers", "run peers on other machines")]


def _known_of(peer: Json) -> list[Finding]:
    """What the running node knows about a peer and a trial from outside cannot."""
    subject = f"peer {peer['name']}, says the node"
    found: list[Finding] = []
    if peer["conflict"]:
        found.append(Finding(Severity.ERROR, subject, peer["conflict"], "give one of the two another name and an empty data directory"))
    if peer["differs"]:
        found.append(Finding(Severity.WARNING, subject, peer["differs"], "give both nodes the same value"))
    if peer["refusal"]:
        found.append(
            Finding(Severity.WARNING, subject, f"it refused the last copy: {peer['refusal']}", "look at that node's disk and settings")
        )
    return found
