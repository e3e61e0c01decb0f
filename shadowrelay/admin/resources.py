"""Resources of the API as pydantic models, from which OpenAPI is generated: a model and a function to fill it for each. RFC 9457."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from shadowrelay.model.ownership import Choice, CopyNumber
from shadowrelay.model.queue import ForkRetry, NodeView, PeerView, QueueRow, StoredMessage


class Queue(BaseModel):
    """One queue, named as in Exchange: `Server\\Submission`, `Server\\<next hop>`, `Server\\Shadow\\N` …"""

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


class QueueRetried(BaseModel):
    """What `queue retry` found: the queue as it was."""

    queue: Queue
    is_retried: bool


class Queues(BaseModel):
    """All queues of a node."""

    queues: list[Queue]


class Number(BaseModel):
    """The rank of a copy: ownership, placement, and the database of the primary that assigned both."""

    ownership: int
    placement: int
    database: str


class MessageSummary(BaseModel):
    """A message in a listing."""

    internal_id: int
    message_id: str
    internet_message_id: str
    role: str
    origin: str
    sender: str
    recipients_count: int
    done_count: int
    size: int | None
    subject: str
    arrived_at: datetime
    due_at: datetime | None
    primary: str
    shadow: str
    last_reply: str
    set_aside_reason: str


class Recipient(BaseModel):
    """A recipient; `ordinal` is its position in the original order, from 1."""

    ordinal: int
    address: str
    is_done: bool
    notify: str | None
    orcpt: str | None


class Copy(BaseModel):
    """A server that may hold a copy; `choice` is listed, chosen or handed-over."""

    server: str
    database: str
    choice: str


class Retry(BaseModel):
    """A next hop for which the message is queued."""

    next_hop: str
    ordinals: list[int]
    failures_count: int
    kind: str
    first_failed_at: datetime
    attempts_next_at: datetime
    last_reply: str
    delay_notified: bool


class Message(MessageSummary):
    """Everything that explains why a message is where it is."""

    number: Number
    client_address: str
    client_name: str
    connector: str
    recipients: list[Recipient]
    primary_database: str
    asked: list[str]
    is_handed_over: bool
    copies: list[Copy]
    retries: list[Retry]
    is_decided: bool
    is_promoted: bool
    promoted_from: str
    deaths_count: int
    keep_until: datetime | None
    sha256: str | None


class Messages(BaseModel):
    """A page of a listing; `next_after` requests the next page, and is null on the last."""

    messages: list[MessageSummary]
    next_after: int | None


class Peer(BaseModel):
    """A peer as the node sees it. Units: `lease_seconds` left; null if none was obtained, 0 if it has ended."""

    name: str
    site: str
    boundary: str
    address: str
    database: str
    heard_at: datetime | None
    heartbeat_age_seconds: float | None
    is_reachable: bool
    lease_seconds: float | None
    breaker: str
    refusal: str
    held_for_count: int
    held_by_count: int
    is_forgotten: bool
    conflict: str


class Peers(BaseModel):
    """All peers of a node."""

    peers: list[Peer]


class Node(BaseModel):
    """Identity, queue database and effective settings of a node."""

    name: str
    site: str
    boundary: str
    version: str
    state: str
    started_at: datetime
    uptime_seconds: float
    database: str
    incarnation: int
    began: int
    position: int
    settings: dict[str, object]


class Readiness(BaseModel):
    """Whether mail is accepted now; `reasons` says why not."""

    is_ready: bool
    reasons: list[str]


class Forgotten(BaseModel):
    """The peer that was marked as gone for good."""

    name: str
    is_forgotten: bool


class Released(BaseModel):
    """A message that was set aside and is delivered again."""

    message_id: str
    is_released: bool


class Removed(BaseModel):
    """A message that will not be delivered; `is_sender_told`: whether a DSN was requested. The null sender gets none."""

    message_id: str
    is_removed: bool
    is_sender_told: bool


class Problem(BaseModel):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""


def queue_of(row: QueueRow) -> Queue:
    """The resource for one queue."""
    return Queue(
        identity=row.identity, kind=row.kind.value, next_hop=row.next_hop, count=row.count, octets=row.octets,
        oldest_at=row.oldest_at, last_error=row.last_error, next_retry_at=row.next_retry_at,
        status=row.status.value, retry_since=row.retry_since, probes_count=row.probes_count,
    )  # fmt: skip


def summary_of(stored: StoredMessage) -> MessageSummary:
    """The resource for one message in a listing."""
    return MessageSummary(**_summary(stored))


def message_of(stored: StoredMessage) -> Message:
    """The resource for one message in full."""
    envelope, claim = stored.envelope, stored.claim
    return Message(
        **_summary(stored),
        number=_number_of(claim.number),
        client_address=envelope.client_address, client_name=envelope.client_name, connector=envelope.connector,
        recipients=[
            Recipient(ordinal=ordinal, address=each.address, is_done=ordinal in claim.done, notify=each.notify, orcpt=each.orcpt)
            for ordinal, each in enumerate(envelope.recipients, start=1)
        ],
        primary_database=claim.database, asked=sorted(claim.asked), is_handed_over=claim.handed,
        copies=[Copy(server=each.server, database=each.database, choice=_choice_name(each.choice)) for each in claim.copies],
        retries=[_retry_of(retry) for retry in stored.retries],
        is_decided=stored.is_decided, is_promoted=stored.is_promoted, promoted_from=stored.promoted_from,
        deaths_count=stored.deaths_count, keep_until=stored.keep_until,
        sha256=stored.place.sha256.hex() if stored.place is not None else None,
    )  # fmt: skip


def peer_of(view: PeerView, now: datetime) -> Peer:
    """The resource for one peer."""
    age = max((now - view.heard_at).total_seconds(), 0.0) if view.heard_at is not None else None
    return Peer(
        name=view.name, site=view.site, boundary=view.boundary, address=view.address, database=view.database,
        heard_at=view.heard_at, heartbeat_age_seconds=age, is_reachable=view.is_reachable,
        lease_seconds=view.lease.total_seconds() if view.lease is not None else None, breaker=view.breaker, refusal=view.refusal,
        held_for_count=view.held_for_count, held_by_count=view.held_by_count, is_forgotten=view.is_forgotten, conflict=view.conflict,
    )  # fmt: skip


def node_of(view: NodeView, now: datetime) -> Node:
    """The resource for this node."""
    return Node(
        name=view.name, site=view.site, boundary=view.boundary, version=view.version, state=view.state,
        started_at=view.started_at, uptime_seconds=max((now - view.started_at).total_seconds(), 0.0),
        database=view.database, incarnation=view.incarnation, began=view.began, position=view.position,
        settings=dict(view.settings),
    )  # fmt: skip


def utc_now() -> datetime:
    """The current time, used only for ages in listings."""
    return datetime.now(UTC)


def _summary(stored: StoredMessage) -> dict[str, Any]:
    envelope, claim = stored.envelope, stored.claim
    chosen = claim.chosen()
    latest = max(stored.retries, key=lambda retry: retry.attempts_next_at, default=None)
    return {
        "internal_id": stored.internal_id,
        "message_id": envelope.message_id,
        "internet_message_id": envelope.internet_message_id,
        "role": claim.role.value,
        "origin": stored.origin.value,
        "sender": envelope.sender,
        "recipients_count": len(envelope.recipients),
        "done_count": len(claim.done),
        "size": stored.place.size if stored.place is not None else None,
        "subject": envelope.subject,
        "arrived_at": envelope.arrived_at,
        "due_at": stored.due_at,
        "primary": claim.primary,
        "shadow": chosen.server if chosen is not None else "",
        "last_reply": latest.last_reply if latest is not None else "",
        "set_aside_reason": stored.set_aside_reason,
    }


def _number_of(number: CopyNumber) -> Number:
    return Number(ownership=number.ownership, placement=number.placement, database=number.database)


def _choice_name(choice: Choice) -> str:
    return choice.name.lower().replace("_", "-")


def _retry_of(retry: ForkRetry) -> Retry:
    return Retry(
        next_hop=retry.next_hop, ordinals=sorted(retry.ordinals), failures_count=retry.failures_count, kind=retry.kind.value,
        first_failed_at=retry.first_failed_at, attempts_next_at=retry.attempts_next_at, last_reply=retry.last_reply,
        delay_notified=retry.delay_notified,
    )  # fmt: skip
