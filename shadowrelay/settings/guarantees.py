"""Describes in sentences what a configuration promises: what 250 means, what a failure costs, who may send. docs/design.md 7."""

from collections.abc import Iterator, Sequence

from shadowrelay.model.receive_settings import OnFailure, ReceiveConnector, Redundancy, RelayRights
from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import format_duration
from shadowrelay.model.settings import Preference, Route, Settings, WithoutLease
from shadowrelay.rules.router import routes_of
from shadowrelay.rules.site_links import in_words, sites_of


def promises(settings: Settings) -> list[str]:
    """Sentences for an operator, the most important first."""
    about = (_about_copies, _about_fates, _about_boundary, _about_failures, _about_senders, _about_delivery, _about_safety_net)
    return [sentence for each in about for sentence in each(settings)]


def _about_copies(settings: Settings) -> Iterator[str]:
    transport = settings.transport
    if not transport.shadow_redundancy_enabled:
        yield "shadow_redundancy_enabled = false means: no copies are made. Mail on this server is lost with its disk."
        return
    yield from _about_ways(settings)
    if not settings.copies_wanted:
        return
    count = transport.shadow_copies
    others = "another server has a synced copy" if count == 1 else f"{count} other servers have synced copies"
    yield f"A message is answered 250 when {others}. It then survives the loss of any {_number(count)}, disk included."
    timeout = format_duration(transport.shadow_timeout)
    if transport.reject_message_on_shadow_failure:
        yield (
            f"reject_message_on_shadow_failure = true means: if that fails for {timeout}, the message is refused (451), and the sender "
            "tries again. No mail is accepted while too few peers take copies."
        )
    else:
        yield (
            f"reject_message_on_shadow_failure = false means: if that fails for {timeout}, the message is accepted all the same. It is "
            "lost with this server's disk until a peer takes a copy. Log, metrics and /health/ready report it."
        )


def _about_fates(settings: Settings) -> Iterator[str]:
    transport = settings.transport
    if not (transport.shadow_redundancy_enabled and settings.copies_wanted):
        return
    if transport.shared_fate_is_redundant:
        yield (
            "shared_fate_is_redundant = true means: a copy on this machine, or where a label of failure_domains is the same, counts as "
            "redundant. Mail that has no other copy is lost with the machine. It is for trying several nodes on one machine."
        )
        return
    labels = settings.server.failure_domains
    also = f", and has none of the labels {_listed(labels)}," if labels else ""
    outcome = "is refused" if transport.reject_message_on_shadow_failure else "is accepted and reported as not redundant"
    yield f"A copy counts only if its server runs on another machine{also or ''} than this one; a message without such a copy {outcome}."


def _about_boundary(settings: Settings) -> Iterator[str]:
    """Whoever comes from Exchange expects that without a DAG all copies stay in one site. docs/sources.md"""
    others = sorted({peer.site for peer in settings.shadow_candidates} - {settings.server.site})
    is_local = settings.transport.shadow_message_preference_setting is Preference.LOCAL_ONLY
    if settings.transport.shadow_redundancy_enabled and "boundary" not in settings.server.model_fields_set and others and not is_local:
        yield (
            f"No boundary is named, so all peers that name none belong to it, and copies also go to site {_listed(others)}. Exchange "
            "without a DAG stays in one site: for that, give the nodes of each site a boundary of their own; if this is meant, name it."
        )


def _about_ways(settings: Settings) -> Iterator[str]:
    """Where mail is not only copied before the 250."""
    for connector in settings.receive_connectors:
        at_most = _best_effort(settings, connector)
        if connector.redundancy is Redundancy.NONE:
            yield f'At {connector.listen} redundancy = "none" means: mail is not copied. It is lost with this server\'s disk.'
        elif connector.redundancy is Redundancy.PREVIOUS_HOP and connector.max_acknowledgement_delay:
            yield (
                f'At {connector.listen} redundancy = "previous-hop" means: mail is not copied. A client gets its 250 when the message '
                f"is delivered or relayed{at_most}: until it is relayed, it is then lost with this server's disk. Peers that relay to this "
                "server keep a shadow."
            )
        elif connector.redundancy is Redundancy.PREVIOUS_HOP:
            yield (
                f'At {connector.listen} redundancy = "previous-hop" means: mail is not copied, and until it is relayed it is lost with '
                "this server's disk. Peers that relay to this server keep a shadow."
            )
        elif connector.redundancy is Redundancy.BOTH:
            yield (
                f'At {connector.listen} redundancy = "both" means: mail of clients is copied, and what a peer relays is kept by that peer. '
                f"A message without a copy is answered when it is delivered or relayed{at_most}."
            )
    span = format_duration(settings.transport.shadow_heartbeat_timeout_interval * settings.transport.shadow_heartbeat_retry_count)
    for route in settings.routes:
        if route.redundancy.tracks:
            yield (
                f"Mail for {_listed(route.recipients)} stays here as a shadow until the next hop, if it is a peer, has handed it on. If "
                f"that is silent for {span}, it goes another way; without one it waits."
            )
    if settings.transport.shadow_copies > 1 and settings.copies_wanted and any(_is_relayed(settings, route) for route in settings.routes):
        yield (
            "What is relayed in this way is on this server and the next hop only, whatever shadow_copies says: it survives the loss of one "
            "of them, not of both at once."
        )


def _best_effort(settings: Settings, connector: ReceiveConnector) -> str:
    """What ends the delay of a 250; empty where none is delayed. docs/design.md 6.7"""
    if not connector.max_acknowledgement_delay:
        return ""
    delay, timeout = format_duration(connector.max_acknowledgement_delay), format_duration(settings.transport.shadow_timeout)
    if settings.promotes:
        return (
            f"; after {delay} a peer gets {timeout} to store a copy (shadow_redundancy_promotion), and if none does, it is given by best "
            "effort"
        )
    return f", or after {delay}, by best effort"


def _about_failures(settings: Settings) -> Iterator[str]:
    transport = settings.transport
    if not (transport.shadow_redundancy_enabled and settings.shadow_candidates):
        return
    if not settings.copies_wanted:
        if any(connector.redundancy.tracks for connector in settings.receive_connectors):
            yield "If this server is lost, peers take back what they relayed to it, after the heartbeats that their own settings say."
        if not settings.promotes:
            return
    span = format_duration(transport.shadow_resubmit_time_span)
    yield (
        f"If this server is silent for {span} (shadow_resubmit_time_span), its peers deliver its mail"
        f"{'' if settings.copies_wanted else ' of which they have copies'}; if it returns with an empty disk, they do so within seconds."
    )
    if transport.delivery_without_lease is WithoutLease.DELIVER:
        yield (
            'delivery_without_lease = "deliver" means: cut off from its peers, this server goes on delivering. After a cut of more than '
            f"{span} recipients may get copied mail twice."
        )
    else:
        yield (
            'delivery_without_lease = "defer" means: cut off from its peers, this server keeps copied mail until they answer, so that '
            "recipients do not get it twice."
        )


def _about_senders(settings: Settings) -> Iterator[str]:
    if settings.is_witness and settings.shadow_candidates:
        yield (
            "No client may send mail here. This server is a witness: it keeps copies for its peers, and delivers what it has to take over."
        )
    for connector in settings.receive_connectors:
        rights = []
        if connector.relay_from:
            rights.append(f"clients in {_listed(connector.relay_from)} may send to anywhere")
        if connector.accepted_domains:
            rights.append(f"anybody may send to {_listed(connector.accepted_domains)}")
        if rights:
            yield f"At {connector.listen} {', and '.join(rights)}. Other recipients are refused (550)."
        else:
            yield f"At {connector.listen} only peers are served: all other recipients are refused (550)."
        if named_by := connector.proxy_from + connector.xclient_from:
            whose = "the one named" if connector.relay_rights is RelayRights.CLIENT else "that of the connection"
            yield f"At {connector.listen} {_listed(named_by)} may name another client; the address that decides who may relay is {whose}."
        for name in connector.filters:
            (found,) = [each for each in settings.filters if each.name == name]
            without = "deferred (451)" if found.on_failure is OnFailure.DEFER else "accepted unfiltered"
            yield f"At {connector.listen} mail passes the filter {name} before its copy is made; without a verdict of it, it is {without}."


def _about_delivery(settings: Settings) -> Iterator[str]:
    sites = sites_of(settings)
    for route in settings.routes:
        if route.site in ("", sites.here):
            yield f"Mail for {_listed(route.recipients)} goes {_to_one_of(route.next_hop)}."
        else:
            stop = sites.stop_towards(route.site) or route.site
            path = sites.paths.get(route.site, (route.site,))
            yield (
                f"Mail for {_listed(route.recipients)} is delivered by {in_words(path, sites.hubs)}. From here "
                f"it goes {_to_one_of(sites.servers.get(stop, ()))}."
            )
    if not any(set(pattern) == {"*"} for route in settings.routes for pattern in route.recipients):
        yield f"Mail for {'all other' if settings.routes else 'all'} recipients goes where the MX records of their domains say."
    expires, delayed = settings.transport.message_expiration_timeout, settings.send.delay_notification_timeout
    notice = f"is told of the delay after {format_duration(delayed)}, and " if delayed < expires else ""
    yield f"If a message cannot be delivered, its sender {notice}gets it back after {format_duration(expires)}."


def _about_safety_net(settings: Settings) -> Iterator[str]:
    hold_time = settings.transport.safety_net_hold_time
    if not hold_time:
        yield "safety_net_hold_time = 0s means: nothing that was delivered is kept, and nothing can be delivered again."
        return
    patterns = [
        pattern
        for route in routes_of(settings)
        if route.inside_boundary and not _is_relayed(settings, route)
        for pattern in route.recipients
    ]
    if patterns:
        yield (
            f"What was delivered for {_listed(patterns)} in the last {format_duration(hold_time)} can be delivered again "
            "(shadowrelay safety-net resubmit). Other mail has left the boundary."
        )
    else:
        yield (
            "Nothing that this node delivers can be delivered again (shadowrelay safety-net resubmit): every next hop is outside the "
            "boundary, or takes mail by TRACK. Set inside_boundary = true on the routes to servers of your own."
        )


def _is_relayed(settings: Settings, route: Route) -> bool:
    """Whether its mail is relayed by TRACK: then the next hop has it in its Safety Net."""
    return route.redundancy.tracks and (bool(route.site) or settings.leads_to_peer(route))


def _to_one_of(servers: Sequence[HostPort]) -> str:
    if not servers:
        return "where the MX records of their domains say"
    then = f", and if it does not answer to {_listed(servers[1:])}" if servers[1:] else ""
    return f"to {servers[0]}{then}"


def _number(count: int) -> str:
    return "single server" if count == 1 else f"{count} servers at once"


def _listed(values: Sequence[object], most: int = 5) -> str:
    shown = [str(value) for value in values[:most]]
    return ", ".join(shown) + (f" and {len(values) - most} more" if len(values) > most else "")
