"""Queues and messages as resources of the API. docs/reference.md "Queues and messages"."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from shadowrelay.admin.resources import OF_VALUES, ApiResource, Ordinals, found_at
from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Choice, Role
from shadowrelay.model.queue import NEVER, MessagePage, QueueKind, QueueRow, QueueStatus, StoredMessage
from shadowrelay.model.tracking import TrackingEvent
from shadowrelay.protocol.filters import Value
from shadowrelay.rules.flight import NO_FLIGHT, Flight, waits_for


def _choice_name(choice: object) -> object:
    return choice.name.lower().replace("_", "-") if isinstance(choice, Choice) else choice


def _known(at: object) -> object:
    return None if at == NEVER else at


class ServerOfNextHop(ApiResource):
    """A server of a next hop, as the node knows it since its start: `Ready`, `Limited` or `Refused`, and why."""

    server: str
    state: str
    reply: str
    sessions_count: int
    sessions_max: int | None
    refused_seconds_ago: float | None
    probe_seconds: float | None


class Queue(ApiResource):
    """One queue, named as in Exchange: `Server\\Submission`, `Server\\<next hop>`, `Server\\Shadow\\N` … `primary`: of a shadow queue.
    `history`: messages in it in each minute of the last hour, oldest first, if that was asked for."""

    identity: str
    kind: str
    next_hop: str
    count: int
    octets: int
    oldest_at: datetime | None
    last_error: str
    next_retry_at: datetime | None
    status: str
    retry_since: datetime | None
    probes_count: int
    suspended_since: datetime | None = found_at("suspended", "since", default=None)
    suspended_by: str = found_at("suspended", "by", default="")
    delivery_type: str = ""
    velocity: float
    primary: str
    servers: list[ServerOfNextHop]
    history: list[int] = Field(default_factory=list)


class QueueRetried(ApiResource):
    """What `queue retry` found: the queue as it was."""

    queue: Queue
    is_retried: bool


class QueueSuspended(ApiResource):
    """What `queue suspend` or `queue resume` found: the queue as it was."""

    queue: Queue
    is_suspended: bool


class Queues(ApiResource):
    """All queues of a node."""

    queues: list[Queue]


class Number(ApiResource):
    """The rank of a copy: ownership, placement, and the database of the primary that assigned both."""

    ownership: int
    placement: int
    database: str


RECIPIENTS_LISTED = 20


class MessageSummary(BaseModel):
    """A message in a listing. Shapes: `to` has the first `RECIPIENTS_LISTED` recipients. `primary`: of a shadow message, its primary
    server; of a delivered one, the other server that delivered it (empty: this node did)."""

    model_config = OF_VALUES

    internal_id: int
    message_id: str = found_at("envelope", "message_id")
    internet_message_id: str = found_at("envelope", "internet_message_id")
    role: str = found_at("claim", "role")
    origin: str
    sender: str = found_at("envelope", "sender")
    to: list[str] = Field(default_factory=list)
    recipients_count: int = 0
    done_count: int = 0
    size: int | None = found_at("place", "size", default=None)
    subject: str = found_at("envelope", "subject")
    arrived_at: datetime = found_at("envelope", "arrived_at")
    due_at: datetime | None
    primary: str = found_at("claim", "primary")
    shadow: str = ""
    last_reply: str = ""
    set_aside_reason: str
    status: str = ""
    suspended_since: datetime | None = found_at("suspended", "since", default=None)
    suspended_by: str = found_at("suspended", "by", default="")
    promoted_from: str
    relayed_from: str = found_at("envelope", "relayed_from")
    delivered_at: datetime | None


class RecipientResource(ApiResource):
    """A recipient; `ordinal` is its position in the original order, from 1."""

    ordinal: int
    address: str
    is_done: bool
    notify: str | None
    orcpt: str | None


class CopyResource(ApiResource):
    """A server that may hold a copy; `choice` is listed, chosen or handed-over."""

    server: str
    database: str
    choice: Annotated[str, BeforeValidator(_choice_name)]


class RetryResource(ApiResource):
    """A next hop for which the message is queued."""

    next_hop: str
    ordinals: Ordinals
    failures_count: int
    kind: str
    first_failed_at: datetime
    attempts_next_at: Annotated[datetime | None, BeforeValidator(_known)]
    last_reply: str
    delay_notified: bool


class ForkResource(ApiResource):
    """Recipients of a shadow message that wait at its primary server for this next hop, as far as it said so."""

    next_hop: str
    ordinals: Ordinals


class DeliveryResource(ApiResource):
    """Recipients that the node delivered together; `is_inside`: by a route inside the boundary."""

    at: datetime
    next_hop: str
    ordinals: Ordinals
    is_inside: bool


class Message(MessageSummary):
    """Everything that explains why a message is where it is. `told_after`: the generated messages which must have their copies, or be done,
    before another server hears of the recipients that are done. `waits_for`: what happens to an undelivered message next, in a line."""

    number: Number = found_at("claim", "number")
    client_address: str = found_at("envelope", "client_address")
    client_name: str = found_at("envelope", "client_name")
    original_client: str = found_at("envelope", "original_client")
    connector: str = found_at("envelope", "connector")
    recipients: list[RecipientResource] = Field(default_factory=list)
    primary_database: str = found_at("claim", "database")
    asked: Annotated[list[str], BeforeValidator(sorted)] = found_at("claim", "asked")
    is_handed_over: bool = found_at("claim", "handed")
    copies: list[CopyResource] = found_at("claim", "copies")
    missing_copies_count: int = 0
    retries: list[RetryResource]
    is_decided: bool
    is_promoted: bool
    deaths_count: int
    keep_until: datetime | None
    deliveries: list[DeliveryResource]
    forks: list[ForkResource]
    resubmitted_from: str = found_at("envelope", "resubmitted_from")
    sha256: str | None = None
    told_after: list[str] = Field(default_factory=list)
    waits_for: str = ""


class Messages(ApiResource):
    """A page of a listing; `next_after` requests the next page, and is null on the last."""

    messages: list[MessageSummary]
    next_after: int | None


class EventResource(ApiResource):
    """A row of the message tracking log. `network_message_id` is another one where the row only refers to the message."""

    at: datetime
    event: str
    source: str
    network_message_id: str
    client: str = ""
    server: str = ""
    context: str = found_at("source_context")
    next_hop: str = found_at("connector_id")
    recipients: list[str]
    replies: list[str] = found_at("recipient_statuses")
    reference: str
    sender: str
    subject: str
    custom_data: Annotated[dict[str, str], BeforeValidator(dict)]


class Events(ApiResource):
    """What one node logged about a message, oldest first."""

    events: list[EventResource]


class QueuedAs(ApiResource):
    """Messages that a next hop took under one of its own ids."""

    message_ids: list[str]


class Released(ApiResource):
    """A message that was set aside and is delivered again."""

    message_id: str
    is_released: bool


class MessageSuspended(ApiResource):
    """A message that is suspended now, or no longer."""

    message_id: str
    is_suspended: bool


class ResubmittedResource(ApiResource):
    """A message that is routed anew and attempted at once."""

    message_id: str
    is_resubmitted: bool


class Removed(ApiResource):
    """A message that will not be delivered; `is_sender_told`: whether a DSN was requested. The null sender gets none."""

    message_id: str
    is_removed: bool
    is_sender_told: bool


AnySummary = TypeVar("AnySummary", bound=MessageSummary)


def queue_of(row: QueueRow, history: Sequence[int] = ()) -> Queue:
    """The resource for one queue."""
    found = Queue.model_validate(row)
    found.delivery_type, found.velocity, found.history = _delivery_type_of(row), round(row.velocity, 3), list(history)
    return found


def _delivery_type_of(row: QueueRow) -> str:
    """As in Exchange. Source: msd-q"""
    if row.kind is QueueKind.SHADOW:
        return "ShadowRedundancy"
    if row.kind is not QueueKind.DELIVERY:
        return "Undefined"
    return "SmartHostConnectorDelivery" if row.is_smart_host else "DnsConnectorDelivery"


def values_of(row: QueueRow, now: datetime) -> dict[str, Value]:
    """The values of `protocol.filters.QUEUE_PROPERTIES`."""
    return {
        "Identity": row.identity,
        "DeliveryType": _delivery_type_of(row),
        "Status": row.status.value,
        "MessageCount": row.count,
        "NextHopDomain": row.next_hop,
        "LastError": row.last_error,
        "NextRetryTime": row.next_retry_at,
        "FirstRetryTime": row.retry_since,
        "RetryCount": row.probes_count,
        "Velocity": row.velocity,
        "OldestAge": None if row.oldest_at is None else now - row.oldest_at,
        "Octets": row.octets,
    }


def summary_of(stored: StoredMessage) -> MessageSummary:
    """The resource for one message in a listing."""
    return _summed_up(MessageSummary.model_validate(stored), stored)


def page_of(page: MessagePage) -> Messages:
    """The resource for a page of a listing."""
    return Messages(messages=[summary_of(stored) for stored in page.messages], next_after=page.next_after)


def message_of(stored: StoredMessage, awaited: Sequence[MessageId] = (), flight: Flight = NO_FLIGHT) -> Message:
    """The resource for one message in full; `awaited` by the notifications about it."""
    envelope, claim = stored.envelope, stored.claim
    found = _summed_up(Message.model_validate(stored), stored)
    found.recipients = [
        RecipientResource(ordinal=ordinal, address=each.address, is_done=ordinal in claim.done, notify=each.notify, orcpt=each.orcpt)
        for ordinal, each in enumerate(envelope.recipients, start=1)
    ]
    found.missing_copies_count = claim.missing_count if claim.role is Role.PRIMARY else 0
    found.sha256 = stored.place.sha256.hex() if stored.place is not None else None
    found.told_after = list(awaited)
    found.waits_for = waits_for(stored, flight)
    return found


def _summed_up(found: AnySummary, stored: StoredMessage) -> AnySummary:
    """With what stands nowhere in the value."""
    envelope, claim = stored.envelope, stored.claim
    chosen = sorted([copy for copy in claim.copies if claim.is_chosen(copy.server)], key=lambda copy: -copy.placement)
    latest = max(stored.retries, key=lambda retry: retry.attempts_next_at, default=None)
    found.to = [each.address for each in envelope.recipients[:RECIPIENTS_LISTED]]
    found.recipients_count, found.done_count = len(envelope.recipients), len(claim.done)
    found.shadow = ", ".join([copy.server for copy in chosen])
    found.last_reply = latest.last_reply if latest is not None else ""
    found.status = _status_of(stored).value
    return found


def _status_of(stored: StoredMessage) -> QueueStatus:
    """As in Exchange: what is set aside is suspended for good."""
    if stored.suspended is not None or stored.claim.role is Role.SET_ASIDE:
        return QueueStatus.SUSPENDED
    return QueueStatus.RETRY if any(retry.failures_count for retry in stored.retries) else QueueStatus.READY


def event_of(row: TrackingEvent) -> EventResource:
    """The resource for one row."""
    found = EventResource.model_validate(row)
    found.client, found.server = row.client_hostname or row.client_ip, row.server_hostname or row.server_ip
    return found
