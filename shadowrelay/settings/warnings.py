"""Warns of settings that are legal but probably not intended: what will happen and what to change. docs/design.md 7."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from ipaddress import IPv6Network, ip_network

from shadowrelay.model.receive_settings import ReceiveConnector, Redundancy
from shadowrelay.model.setting_texts import Network, format_size, is_loopback, own_hosts
from shadowrelay.model.settings import Preference, Settings
from shadowrelay.ownership import rules
from shadowrelay.rules.router import covers
from shadowrelay.settings import certificates

MESSAGE_SIZE_BYTES_MIN = 64_000
RECIPIENTS_COUNT_MIN = 100
INTERNET_SHARE_MAX = 1 / 16  # sixteen networks of the size of 10.0.0.0/8
IPV4_MAPPED = IPv6Network("::ffff:0:0/96")


def warnings(settings: Settings, now: datetime | None = None) -> list[str]:
    """All warnings, most dangerous first; may be empty. Reads the certificate, if there is one. Units: `now` is aware."""
    return [
        *_about_redundancy(settings),
        *_about_peers(settings),
        *_about_tracking(settings),
        *_about_times(settings),
        *(line for connector in settings.receive_connectors for line in _about_connector(connector, settings)),
        *_about_routes(settings),
        *_about_places(settings),
        *_about_tokens(settings),
        *_about_back_pressure(settings),
        *certificates.doubts(settings, now),
    ]


def _about_redundancy(settings: Settings) -> Iterator[str]:
    transport = settings.transport
    if not transport.shadow_redundancy_enabled:
        if transport.reject_message_on_shadow_failure:
            yield "transport.reject_message_on_shadow_failure has no meaning while shadow_redundancy_enabled is false; remove one of them"
        return
    outcome = (
        "every message will be refused with 451" if transport.reject_message_on_shadow_failure else "messages are accepted without a copy"
    )
    candidates = settings.shadow_candidates
    if not settings.copies_wanted:
        return  # no mail is to be copied
    if not candidates:
        yield f"no peer of boundary {settings.server.boundary} may hold copies: {outcome}; add [[peers]] of this boundary with send_xshadow"
        return
    remote = any(peer.site != settings.server.site for peer in candidates)
    local = any(peer.site == settings.server.site for peer in candidates)
    preference = transport.shadow_message_preference_setting
    if not remote and preference is Preference.REMOTE_ONLY:
        yield (
            "transport.shadow_message_preference_setting is RemoteOnly, but all peers stand in this site: without a boundary of several "
            "sites the own site is used whatever the preference says; use PreferRemote or add a peer in another site"
        )
    elif remote and not local and preference is Preference.LOCAL_ONLY:
        yield f"transport.shadow_message_preference_setting is LocalOnly, but no peer stands in site {settings.server.site}: {outcome}"
    on_this_machine = [peer.name for peer in candidates if _is_here(peer.address.host, settings)]
    if len(on_this_machine) == len(candidates) and not transport.shared_fate_is_redundant:
        yield (
            f"all peers that may hold copies run on this machine, so no copy is redundant: {outcome}; add peers on other machines, or set "
            "transport.shared_fate_is_redundant to try this one"
        )
    usable, wanted = _servers_for_copies(settings), transport.shadow_copies
    if 0 < usable < wanted:
        fewer = "every message will be refused with 451" if transport.reject_message_on_shadow_failure else "messages have fewer copies"
        yield f"transport.shadow_copies is {wanted}, but only {usable} of the peers may get copies: {fewer}; add peers or want fewer copies"
    remote_attempts = transport.max_retries_for_remote_site_shadow if remote and preference is not Preference.LOCAL_ONLY else 0
    is_local_allowed = local and not (remote and preference is Preference.REMOTE_ONLY)
    local_attempts = transport.max_retries_for_local_site_shadow if is_local_allowed else 0
    if not remote_attempts and not local_attempts and (local or preference is not Preference.LOCAL_ONLY):
        count = f"max_retries_for_{'remote' if remote and preference is not Preference.LOCAL_ONLY else 'local'}_site_shadow"
        yield f"no attempt to make a copy is allowed for the peers that there are: {outcome}; raise {count}"
    if remote and preference is Preference.REMOTE_ONLY and "max_retries_for_local_site_shadow" in transport.model_fields_set:
        yield (
            "transport.max_retries_for_local_site_shadow has no effect: with RemoteOnly it counts only where no peer stands in another "
            "site; remove it, or use PreferRemote"
        )


def _servers_for_copies(settings: Settings) -> int:
    """How many peers `shadow_message_preference_setting` allows."""
    sites = [peer.site for peer in settings.shadow_candidates]
    preference = settings.transport.shadow_message_preference_setting
    remote = sum(site != settings.server.site for site in sites)
    if not remote or preference is Preference.PREFER_REMOTE:
        return len(sites)
    return remote if preference is Preference.REMOTE_ONLY else len(sites) - remote


def _about_peers(settings: Settings) -> Iterator[str]:
    for peer in settings.peers:
        if peer.boundary != settings.server.boundary and settings.tracks:
            continue  # it may be a previous or a next hop
        if peer.boundary != settings.server.boundary:
            ours = settings.server.boundary
            yield f"peer {peer.name} is of boundary {peer.boundary}, this node of {ours}: neither ever holds copies for the other"
        elif not peer.send_xshadow:
            yield f"peer {peer.name} has send_xshadow = false: it gets no copies, and is not asked what became of its messages"
    connectors = settings.receive_connectors
    has_authority = settings.tls is not None and settings.tls.peer_authority is not None
    may_come_in = any(connector.accept_xshadow and (has_authority or connector.externally_secured) for connector in connectors)
    if settings.shadow_candidates and connectors and not may_come_in:
        yield "no peer can place copies here: set tls.peer_authority, or externally_secured on a receive connector with accept_xshadow"
    if not connectors:
        yield "there is no receive connector: this node accepts nothing; add [[receive_connectors]]"


def _about_times(settings: Settings) -> Iterator[str]:
    transport = settings.transport
    if transport.shadow_resubmit_time_span <= 2 * transport.shadow_heartbeat_frequency:
        yield (
            "transport.shadow_resubmit_time_span is not more than two shadow_heartbeat_frequency: "
            "one missed heartbeat takes mail over from a primary that lives; lengthen the span"
        )
    if transport.discard_poll_interval > transport.shadow_heartbeat_frequency:
        yield "transport.discard_poll_interval is longer than shadow_heartbeat_frequency, which then decides; shorten it"
    allowed = rules.reply_allowance(transport.shadow_resubmit_time_span)
    if transport.shadow_redundancy_enabled and settings.shadow_candidates and allowed < rules.REPLY_ALLOWANCE_MAX.total_seconds():
        yield (
            f"transport.shadow_resubmit_time_span allows a lease to begin the final dot with {allowed:.3g} s left for its reply, where "
            "RFC 5321 asks for 10 minutes: a next hop that is slower while a peer is silent gets the message again; make it 30m or more"
        )


def _about_tracking(settings: Settings) -> Iterator[str]:
    """The way of Exchange 2010."""
    for number, route in enumerate(settings.routes):
        if route.redundancy.tracks and not route.site and not settings.leads_to_peer(route):
            yield (
                f"routes[{number}].redundancy is {route.redundancy}, but no next_hop is the address of a peer: it is delivered to, and no "
                "shadow is kept; add the next hop under [[peers]], or remove redundancy"
            )
    has_track = any(route.redundancy.tracks for route in settings.routes)
    for connector in settings.receive_connectors:
        is_best_effort = connector.redundancy is Redundancy.PREVIOUS_HOP and connector.max_acknowledgement_delay
        if is_best_effort and not has_track and not settings.promotes:
            yield (
                f"receive connector {connector.name}: redundancy is previous-hop, and no route is: mail of clients there is on this disk "
                "only when it is acknowledged by best effort; add redundancy to a route, or use both"
            )
        if not connector.redundancy.tracks and "max_acknowledgement_delay" in connector.model_fields_set:
            yield (
                f"receive connector {connector.name}: max_acknowledgement_delay has no effect with redundancy = "
                f"{connector.redundancy}; remove it, or use previous-hop or both"
            )

    delays = any(connector.redundancy.tracks and connector.max_acknowledgement_delay for connector in settings.receive_connectors)
    if (
        settings.transport.shadow_redundancy_promotion
        and settings.transport.shadow_redundancy_enabled
        and not (delays and settings.promotes)
    ):
        why = "no peer may hold copies" if delays else "no receive connector delays its 250"
        yield f"transport.shadow_redundancy_promotion has no effect, because {why}; remove it"


def _about_connector(connector: ReceiveConnector, settings: Settings) -> Iterator[str]:
    name = f"receive connector {connector.name}"
    if held := _much_of_the_internet(connector.relay_from):
        yield f"{name}: relay_from holds {held}: this is an open relay, and will be abused"
    if held := _much_of_the_internet(connector.externally_secured):
        yield f"{name}: externally_secured holds {held}: anybody may place and ask for copies under a peer's name"
    for key in ("proxy_from", "xclient_from"):
        if held := _much_of_the_internet(getattr(connector, key)):
            yield f"{name}: {key} holds {held}: anybody may claim to be another client"
    for key in ("relay_from", "externally_secured", "proxy_from", "xclient_from"):
        for network in getattr(connector, key):
            if reason := _never_a_client(network):
                yield f"{name}: {key}: no client ever comes from {network}: {reason}"
    if connector.externally_secured and not connector.accept_xshadow:
        yield f"{name}: externally_secured has no effect while accept_xshadow is false"
    has_authority = settings.tls is not None and settings.tls.peer_authority is not None
    if connector.accepted_domains and connector.accept_xshadow and has_authority and settings.peers and not connector.externally_secured:
        yield (
            f"{name}: strangers and peers share it, so that strangers can be in the way of copies: give the peers a connector of their "
            'own, in the steps of docs/reference.md "A connector for peers"'
        )
    if connector.accepted_domains and not connector.recipients and not is_loopback(connector.listen.host):
        yield (
            f"{name}: any address of accepted_domains is accepted from anybody, and what the mail store then refuses is returned to "
            "senders who may be forged: name in recipients a [[recipient_sources]] that knows which addresses there are"
        )
    if connector.recipients and not connector.accepted_domains:
        yield f"{name}: recipients has no effect without accepted_domains; remove it, or name the domains"
    if not connector.relay_from and not connector.accepted_domains and not settings.peers:
        yield f"{name}: with neither relay_from nor accepted_domains every recipient is refused with 550"

    # RFC 5321 4.5.3.1.7 and 4.5.3.1.8: what every server must be able to accept
    if connector.max_message_size < MESSAGE_SIZE_BYTES_MIN:
        yield f"{name}: max_message_size is below the {MESSAGE_SIZE_BYTES_MIN} bytes that RFC 5321 asks for; raise it"
    if connector.max_recipients_per_message < RECIPIENTS_COUNT_MIN:
        yield f"{name}: max_recipients_per_message is below the {RECIPIENTS_COUNT_MIN} that RFC 5321 asks for; raise it"


def _much_of_the_internet(networks: Iterable[Network]) -> str:
    """How much these hold together, of the addresses of one version, if that is more than any organisation has; else ""."""
    if any(network.prefixlen == 0 for network in networks):
        return "every address"
    shares: list[float] = []
    for version, size in ((4, 2**32), (6, 2**125), (6, 2**119)):  # 2000::/3, of which the registries have eight networks like 2a00::/12
        pieces = [network for network in networks if network.version == version and not network.is_private]
        held = sum(2 ** (network.max_prefixlen - network.prefixlen) for network in _apart(pieces))
        shares.append(held / size)
    share = next((share for share in shares if share > INTERNET_SHARE_MAX), 0)
    return f"{min(share, 1):.0%} of the Internet, in pieces" if share else ""


def _apart(networks: Iterable[Network]) -> list[Network]:
    """Without those that are inside another one."""
    found: list[Network] = []
    for network in sorted(networks, key=lambda one: one.prefixlen):
        if not any(network.version == other.version and network.subnet_of(other) for other in found):  # type: ignore[arg-type]
            found.append(network)
    return found


def _never_a_client(network: Network) -> str:
    """Why, with the remedy; "" if one may come."""
    if network.version == 6 and network.subnet_of(IPV4_MAPPED):
        plain = ip_network((network.network_address.packed[-4:], max(network.prefixlen - 96, 0)))
        return f"clients of IPv4 are known by their address of IPv4; write {plain}"
    if network.is_multicast:
        return "these are addresses of groups"
    if network.network_address.is_unspecified and network.prefixlen == network.max_prefixlen:
        return "it is no address of anybody; write the network, like 10.0.0.0/8"
    return ""


def _about_routes(settings: Settings) -> Iterator[str]:
    patterns: list[tuple[int, str]] = []
    for number, route in enumerate(settings.routes):
        for pattern in route.recipients:
            if earlier := next((entry for entry in patterns if covers(entry[1], pattern)), None):
                index, other = earlier
                yield f"routes[{number}]: {pattern} never matches, because routes[{index}] takes {other} before it; change their order"
            else:
                patterns.append((number, pattern))
    for connector in settings.receive_connectors:
        for domain in connector.accepted_domains:
            if not any(covers(pattern.rpartition("@")[2], domain) for _, pattern in patterns):
                yield (
                    f"receive connector {connector.name}: no route takes the mail for {domain}, so its MX records decide; if they name "
                    f"this cluster, the mail goes round in a circle until it is returned: add [[routes]] for *@{domain}"
                )


def _about_places(settings: Settings) -> Iterator[str]:
    if settings.tracking.directory.is_relative_to(settings.server.data_directory):
        yield "tracking.directory is inside server.data_directory: a wiped queue takes the evidence along; put it elsewhere"
    if not is_loopback(settings.admin.listen.host):
        yield f"admin.listen is {settings.admin.listen}: the token travels unencrypted; use 127.0.0.1, and tls_listen for other machines"


def _about_tokens(settings: Settings) -> Iterator[str]:
    if any(peer.admin for peer in settings.peers) and settings.admin.read_only_token_file is None:
        yield (
            "admin.read_only_token_file is not set, as in a cluster of an older `init`, whose nodes share one token for everything: "
            "give all nodes the same read-only token, and each its own token_file (docs/reference.md, All nodes at once)"
        )
    if settings.admin.tls_listen is None or settings.tls is None:
        return
    if settings.tls.peer_authority is None or not settings.admin.tls_client_certificate_required:
        yield "admin.tls_listen asks for no certificate: a token is enough, from anywhere; set tls.peer_authority, or guard the port"


def _about_back_pressure(settings: Settings) -> Iterator[str]:
    pressure = settings.back_pressure
    if not pressure.enable_resource_monitoring:
        yield "back_pressure.enable_resource_monitoring is false: mail is accepted until the disk is full, and then nothing can be recorded"
        return
    largest = max((connector.max_message_size for connector in settings.receive_connectors), default=0)
    if pressure.free_disk_space_min * 2 < largest * 3:
        yield (
            "back_pressure.free_disk_space_min is less than one and a half of the largest max_message_size: one message may fill the disk; "
            f"make it {format_size(largest * 3 // 2)} or more"
        )
    if pressure.private_bytes_limit and pressure.private_bytes_limit < 2 * settings.server.content_memory_limit:
        yield "back_pressure.private_bytes_limit is less than twice server.content_memory_limit: ordinary load refuses mail; raise it"


def _is_here(host: str, settings: Settings) -> bool:
    """Whether a peer's address is one of this machine, as far as the configuration shows."""
    return is_loopback(host) or host in own_hosts(one.listen for one in settings.receive_connectors)
