"""Decides which changed settings a running node adopts, and which wait for a restart. docs/design.md 7.

Settings that parts of the node were built with keep their running values, so that the node never follows a change only in part. A
test checks that every key read while a node is assembled is listed here.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from shadowrelay.model.section import Section
from shadowrelay.model.settings import Admin, AdminRole, AdminUser, Settings, Tls

AnySection = TypeVar("AnySection", bound=Section)

FIXED_TABLES = ("server", "filters", "tls", "shipping", "webhooks")
FIXED_CONNECTOR = ("filters",)
FIXED_PEER = ("boundary", "send_xshadow")
FIXED_TRACKING = ("directory",)
FIXED_ADMIN = ("token_file", "read_only_token_file", "allowed_hosts", "users", "tls_client_certificate_required", "report")
FIXED_TRANSPORT = (
    "shadow_redundancy_enabled",
    "shadow_heartbeat_frequency",
    "shadow_heartbeat_timeout_interval",
    "shadow_heartbeat_retry_count",
    "shadow_resubmit_time_span",
    "safety_net_hold_time",
    "message_expiration_timeout",
)
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


FIXED_KEYS: Mapping[str, tuple[str, ...]] = {
    "transport": FIXED_TRANSPORT,
    "send": FIXED_SEND,
    "tracking": FIXED_TRACKING,
    "admin": FIXED_ADMIN,
}
FIXED_OF_ENTRIES: Mapping[str, tuple[str, ...]] = {"receive_connectors": FIXED_CONNECTOR, "peers": FIXED_PEER}
WHY = {  # a restart is needed, by table
    "server": "the queue database, the memory limit and the sessions with peers were made with it",
    "filters": "their connections and what is known of their failures were made with it",
    "tls": "its paths stay, and their files are read at every SIGHUP; peer_revoked and certificates are followed",
    "shipping": "what was shipped, and what must not be deleted yet, is kept for this target",
    "webhooks": "what each has been told was begun with it",
    "transport": "leases, silence and what expires are reckoned with it from the start, here and at the peers",
    "send": "the sessions with next hops were made with it",
    "tracking": "its file is open",
    "admin": "tokens, people and names are read at the start, so that nobody gains a right by half a file; rights taken away end at once",
    "receive_connectors": "its filters were chosen at the start",
    "peers": "what it may hold for this node was decided with it; remove it, and add it when it has left",
}


def adopted(running: Settings, found: Settings) -> tuple[Settings, list[str]]:
    """`found` as far as a node that runs with `running` can follow, and the names of changes that wait for a restart:
    tables ("server"), keys ("transport.safety_net_hold_time"), keys of entries ("peers[0].boundary")."""
    tls = followed_tls(running.tls, found.tls)
    needs_restart = [name for name in FIXED_TABLES if name != "tls" and getattr(running, name) != getattr(found, name)]
    needs_restart += [] if tls == found.tls else ["tls"]
    changes: dict[str, Any] = {name: getattr(running, name) for name in FIXED_TABLES}
    changes["tls"] = tls
    for table, fixed in FIXED_KEYS.items():
        before, after = getattr(running, table), getattr(found, table)
        needs_restart += [f"{table}.{name}" for name in _differing(before, after, fixed)]
        changes[table] = _kept(before, after, fixed)
    if (users := followed_users(running.admin, found.admin)) == found.admin.users and "admin.users" in needs_restart:
        needs_restart.remove("admin.users")
    changes["admin"] = changes["admin"].model_copy(update={"users": users})
    for table, fixed in FIXED_OF_ENTRIES.items():
        entries = {entry.name: entry for entry in getattr(running, table)}
        followed = []
        for index, entry in enumerate(getattr(found, table)):
            same = entries.get(entry.name, entry)
            needs_restart += [f"{table}[{index}].{name}" for name in _differing(same, entry, fixed)]
            followed.append(_kept(same, entry, fixed))
        changes[table] = tuple(followed)
    return found.model_copy(update=changes), needs_restart


def reason(name: str) -> str:
    """Why a change of this name waits for a restart."""
    return WHY[name.partition(".")[0].partition("[")[0]]


def followed_tls(running: Tls | None, found: Tls | None) -> Tls | None:
    """The paths stay, and their files are read again; but neither to revoke a certificate nor to add one must need a restart."""
    return (
        running
        if running is None or found is None
        else running.model_copy(update={"peer_revoked": found.peer_revoked, "certificates": found.certificates})
    )


def followed_users(running: Admin, found: Admin) -> tuple[AdminUser, ...]:
    """Whoever is no longer there, or has another token, has no right at once, a lesser role counts at once; more waits for a restart."""
    users = {(user.name, user.token_hash): user for user in found.users}
    return tuple(_lesser(user, users[user.name, user.token_hash]) for user in running.users if (user.name, user.token_hash) in users)


def _lesser(running: AdminUser, found: AdminUser) -> AdminUser:
    """Roles are declared from the least to the greatest; whoever is more than a viewer sees messages."""
    role = min(running.role, found.role, key=[*AdminRole].index)
    sees = found.sees_messages and (running.sees_messages or running.role is not AdminRole.VIEWER)
    return found.model_copy(update={"role": role, "sees_messages": sees})


def _differing(running: Section, found: Section, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(running, name) != getattr(found, name)]


def _kept(running: AnySection, found: AnySection, names: tuple[str, ...]) -> AnySection:
    return found.model_copy(update={name: getattr(running, name) for name in names})
