"""Which recipients of a message in Safety Net a request resubmits, and the envelope of the new message. docs/design.md 6.3.

| recipient                                                              | becomes                       |
|------------------------------------------------------------------------|-------------------------------|
| delivered by this node in the interval, inside; its route is inside now | recipient of the new message  |
| delivered in the interval outside the boundary, or its route leaves it now | counted as outside         |
| not delivered by this node in the interval (failed, done elsewhere)    | nothing                       |

**From Shadow Safety Net**, for a primary server P: messages that P delivered while this node was its shadow server, if P no longer has
them, because it is lost, or they were in a database of P that is gone. The shadow server does not know when P delivered, only that it was
after the arrival and before the discard here; so a message belongs to the interval if these two enclose a part of it. Nor does it know to
whom: its routes decide. Several shadow servers may have the same message. They make the same id of it, and before one delivers, it asks the
others (docs/design.md 6.2): so it is delivered once, whoever is asked and however often.

A message that was itself resubmitted matches nothing, because the message from which it was made is in Safety Net, too.

No notice is ever sent about a resubmitted message: each of its recipients has NOTIFY=NEVER (RFC 3461 4.1), which holds on every server
that may take it over. Source: msd-sn
"""

import uuid
from collections.abc import Callable
from datetime import datetime

from shadowrelay.model.ids import DatabaseId, MessageId
from shadowrelay.model.message import Envelope, Ordinals
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import Delivery, StoredMessage
from shadowrelay.model.resubmission import Criteria
from shadowrelay.model.routing import Destination
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.addresses import mailbox
from shadowrelay.protocol.fields import format_ordinals

NULL_SENDER = "<>"  # as a criterion: the mail without a sender

_NAMESPACE = uuid.UUID("0f2b0c5e-6d3a-5c1f-8f39-7c1c2a4b9d52")  # ours; must never change, see `resubmission_id`


@dataclass(frozen=True, slots=True)
class Selection:
    """Ordinals of the original. `is_missing`: there are some in `ordinals`, but nothing to send them."""

    ordinals: Ordinals
    outside: Ordinals
    is_missing: bool = False


def refusal(criteria: Criteria, now: datetime) -> str:
    """Why such a request is not accepted; empty if it is. Source: exchange-facts 5"""
    if criteria.from_at >= criteria.to_at:
        return "the interval ends before it begins"
    if criteria.to_at > now:
        return f"the interval must be over: it is {now.isoformat(timespec='seconds')} here"
    return ""


def resubmission_id(original: MessageId, database: DatabaseId, request: int) -> MessageId:
    """The same for the same request, so that repeating a step makes no second message. `database`: that of the request."""
    return MessageId(str(uuid.uuid5(_NAMESPACE, f"{original} {database} {request}")))


def shared_resubmission_id(original: MessageId, ordinals: Ordinals) -> MessageId:
    """The same on every shadow server, so that only one of them delivers it."""
    return MessageId(str(uuid.uuid5(_NAMESPACE, f"{original} shadow {format_ordinals(ordinals)}")))


def shadow_selection(stored: StoredMessage, criteria: Criteria, destination: Callable[[str], Destination], now: datetime) -> Selection:
    """As `selection`, of a message that `criteria.primary_server` delivered."""
    envelope = stored.envelope
    nothing: Ordinals = frozenset()
    is_in_interval = stored.delivered_at is not None and stored.delivered_at >= criteria.from_at and envelope.arrived_at <= criteria.to_at
    if stored.claim.role is Role.SET_ASIDE or stored.claim.primary != criteria.primary_server or not is_in_interval:
        return Selection(nothing, nothing)
    if envelope.resubmitted_from or not _matches_envelope(envelope, criteria):
        return Selection(nothing, nothing)
    inside: set[int] = set()
    outside: set[int] = set()
    for ordinal, recipient in enumerate(envelope.recipients, start=1):
        if criteria.recipient and mailbox(criteria.recipient) != mailbox(recipient.address):
            continue
        route = destination(recipient.address)
        if not criteria.next_hop or criteria.next_hop.lower() == route.key.lower():
            (inside if route.inside_boundary else outside).add(ordinal)
    return Selection(frozenset(inside), frozenset(outside), is_missing=bool(inside) and not _is_whole(stored, now))


def selection(stored: StoredMessage, criteria: Criteria, destination: Callable[[str], Destination], now: datetime) -> Selection:
    """See the table in the module docstring. `destination` is where mail for an address goes now."""
    envelope = stored.envelope
    nothing: Ordinals = frozenset()
    deliveries = [delivery for delivery in stored.deliveries if _matches_delivery(delivery, criteria)]
    if not deliveries or envelope.resubmitted_from or not _matches_envelope(envelope, criteria):
        return Selection(nothing, nothing)
    inside: set[int] = set()
    outside: set[int] = set()
    for delivery in deliveries:
        for ordinal in delivery.ordinals:
            address = envelope.recipients[ordinal - 1].address if ordinal <= len(envelope.recipients) else ""
            if criteria.recipient and mailbox(criteria.recipient) != mailbox(address):
                continue
            is_inside = delivery.is_inside and destination(address).inside_boundary
            (inside if is_inside else outside).add(ordinal)
    return Selection(frozenset(inside - outside), frozenset(outside), is_missing=bool(inside - outside) and not _is_whole(stored, now))


def envelope_for(original: Envelope, ordinals: Ordinals, message_id: MessageId, now: datetime) -> Envelope:
    """Only these recipients, in the original order, and no notices. It expires by its own age."""
    recipients = tuple([replace(original.recipients[ordinal - 1], notify="NEVER") for ordinal in sorted(ordinals)])
    return replace(
        original, message_id=message_id, recipients=recipients, arrived_at=now, ret=None, envid=None, resubmitted_from=original.message_id
    )


def _matches_delivery(delivery: Delivery, criteria: Criteria) -> bool:
    is_there = not criteria.next_hop or criteria.next_hop.lower() == delivery.next_hop.lower()
    return is_there and criteria.from_at <= delivery.at <= criteria.to_at


def _matches_envelope(envelope: Envelope, criteria: Criteria) -> bool:
    if criteria.sender and mailbox(criteria.sender) != (mailbox(envelope.sender) or NULL_SENDER):
        return False
    return not criteria.message_id or criteria.message_id in (envelope.message_id, envelope.internet_message_id)


def excess(used: int, size_max: int | None, free: int, free_wanted: int) -> int:
    """How many octets Safety Net should drop: above its limit, or as many as the disk is short of, whichever is more."""
    above = 0 if size_max is None else used - size_max
    return min(used, max(above, free_wanted - free, 0))


def _is_whole(stored: StoredMessage, now: datetime) -> bool:
    """Its content is kept, and nothing speaks against sending it. Content of a message that has left Safety Net may still be there, but
    no longer than until the next expiry."""
    if stored.place is None or stored.claim.role is Role.SET_ASIDE:
        return False
    return stored.claim.role is not Role.DELIVERED or (stored.keep_until is not None and stored.keep_until > now)
