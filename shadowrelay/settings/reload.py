"""Decides which changed settings a running node adopts, and which wait for a restart. docs/design.md 7.

Settings that parts of the node were built with keep their running values, so that the node never follows a change only in part. A
test checks that every key read while a node is assembled is listed here.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from shadowrelay.model.settings import ReceiveConnector, Section, Settings, Tls

AnySection = TypeVar("AnySection", bound=Section)

FIXED_TABLES = ("server", "filters", "peers", "tls", "tracking", "shipping", "admin", "webhooks", "dns")
FIXED_TRANSPORT = (
    "shadow_redundancy_enabled",
    "shadow_heartbeat_frequency",
    "shadow_heartbeat_timeout_interval",
    "shadow_heartbeat_retry_count",
    "shadow_resubmit_time_span",
    "safety_net_hold_time",
    "message_expiration_timeout",
)
FIXED_CONNECTOR = ("listen", "filters", "reuse_port")
FIXED_SEND = (
    "connection_inactivity_timeout",
    "unused_session_timeout",
    "peer_connection_inactivity_timeout",
    "concurrency_per_destination",
    "max_outbound_connections",
    "chunking_enabled",
    "eight_bit_without_8bitmime",
    "mta_sts",
    "source_ip_address",
)


def adopted(running: Settings, found: Settings) -> tuple[Settings, list[str]]:
    """`found` as far as a node that runs with `running` can follow, and the names of changes that wait for a restart:
    tables ("server"), keys ("transport.safety_net_hold_time"), addresses ("receive_connectors[0].listen")."""
    tls = followed_tls(running.tls, found.tls)
    needs_restart = [name for name in FIXED_TABLES if name != "tls" and getattr(running, name) != getattr(found, name)]
    needs_restart += [] if tls == found.tls else ["tls"]
    needs_restart += [f"transport.{name}" for name in _differing(running.transport, found.transport, FIXED_TRANSPORT)]
    needs_restart += [f"send.{name}" for name in _differing(running.send, found.send, FIXED_SEND)]
    needs_restart += _differing_listeners(running, found)
    changes: dict[str, Any] = {name: getattr(running, name) for name in FIXED_TABLES}
    changes["tls"] = tls
    changes["transport"] = _kept(running.transport, found.transport, FIXED_TRANSPORT)
    changes["send"] = _kept(running.send, found.send, FIXED_SEND)
    changes["receive_connectors"] = tuple(_followed(connector, found) for connector in running.receive_connectors)
    return found.model_copy(update=changes), needs_restart


def followed_tls(running: Tls | None, found: Tls | None) -> Tls | None:
    """The paths stay, and their files are read again; but neither to revoke a certificate nor to add one must need a restart."""
    return (
        running
        if running is None or found is None
        else running.model_copy(update={"peer_revoked": found.peer_revoked, "certificates": found.certificates})
    )


def _differing(running: Section, found: Section, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(running, name) != getattr(found, name)]


def _kept(running: AnySection, found: AnySection, names: tuple[str, ...]) -> AnySection:
    return found.model_copy(update={name: getattr(running, name) for name in names})


def _followed(connector: ReceiveConnector, found: Settings) -> ReceiveConnector:
    """The connector of this name in the file, with this one's listen address; one that was removed stays as it is."""
    same = next((other for other in found.receive_connectors if other.name == connector.name), connector)
    return same.model_copy(update={key: getattr(connector, key) for key in FIXED_CONNECTOR})


def _differing_listeners(running: Settings, found: Settings) -> Iterator[str]:
    before = {connector.name: connector for connector in running.receive_connectors}
    if before.keys() != {connector.name for connector in found.receive_connectors}:
        yield "receive_connectors"
    for index, connector in enumerate(found.receive_connectors):
        for key in FIXED_CONNECTOR:
            if connector.name in before and getattr(before[connector.name], key) != getattr(connector, key):
                yield f"receive_connectors[{index}].{key}"
