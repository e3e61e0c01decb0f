"""How long what is kept. Source: seed-000, msd-sn; docs/protocol.md 10; docs/design.md 6.3."""

from datetime import datetime

from shadowrelay.model.settings import Transport


def shadow_keep_until(held_at: datetime, transport: Transport) -> datetime:
    """When a shadow message that was never acknowledged expires."""
    return held_at + transport.shadow_expiration_timeout


def safety_net_until(left_at: datetime, transport: Transport) -> datetime:
    """When Safety Net may drop what was delivered or discarded at `left_at`."""
    return left_at + transport.safety_net_hold_time


def remember_until(last_copy_sent_at: datetime, transport: Transport) -> datetime:
    """Until when a primary's row answers STATUS: no shadow message of it is older than that."""
    return last_copy_sent_at + transport.shadow_expiration_timeout
