"""Settings that should be the same on all nodes of a boundary; peers compare them. docs/reference.md "Settings that should be the same".

Exchange has one value of each for its whole organization. Here every node has a file of its own, so values may differ by mistake, or
while a change is rolled out. Nothing is refused for that: the two nodes work together, but perhaps not as their operator expects.
"""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.setting_texts import format_duration
from shadowrelay.model.settings import Transport
from shadowrelay.protocol.fields import format_span

NO_DIGESTS: Mapping[str, str] = MappingProxyType({})
SPAN = "shadow_resubmit_time_span"  # has a key of its own in XSHADOW, because takeovers depend on it
COMMON = (
    "shadow_redundancy_enabled",
    "reject_message_on_shadow_failure",
    "shadow_copies",
    "shadow_heartbeat_frequency",
    "shadow_message_auto_discard_interval",
    "safety_net_hold_time",
    "message_expiration_timeout",
)


def common_settings(transport: Transport, routes: Mapping[str, str] = NO_DIGESTS) -> tuple[tuple[str, str], ...]:
    """The settings that a node reports: names and values as written on the wire; `routes` are `credentials.digests`. Source: docs"""
    return (*[(name, _on_wire(getattr(transport, name))) for name in COMMON], *routes.items())


def differences(here: Transport, there: PeerIdentity, routes: Mapping[str, str] = NO_DIGESTS) -> Mapping[str, tuple[str, str]]:
    """The settings that differ: name to the values here and there, as written in a configuration; of what routes demand, only hashes. A
    setting that the peer did not report does not differ: the peer is of a version that does not report it."""
    said = {SPAN: format_span(there.span), **dict(there.common)}
    values = {name: getattr(here, name) for name in (SPAN, *COMMON)}
    return {name: (value, said[name]) for name, value in routes.items() if name in said and said[name] != value} | {
        name: (_in_file(value), _as_in_file(value, said[name]))
        for name, value in values.items()
        if name in said and said[name] != _on_wire(value)
    }


def _on_wire(value: timedelta | int) -> str:
    return format_span(value) if isinstance(value, timedelta) else str(value).lower()


def _in_file(value: timedelta | int) -> str:
    return format_duration(value) if isinstance(value, timedelta) else str(value).lower()


def _as_in_file(value: timedelta | int, said: str) -> str:
    """A peer's value, formatted like ours; one of another kind is shown as received."""
    if isinstance(value, timedelta):
        try:
            return format_duration(timedelta(seconds=float(said)))
        except (ValueError, OverflowError):
            return said
    return said
