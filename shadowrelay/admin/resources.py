"""Resources of the API as pydantic models, from which OpenAPI is generated: a model and a function to fill it for each. RFC 9457."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from shadowrelay.admin.audit import AuditEntry
from shadowrelay.model.client_minute import ClientView
from shadowrelay.model.drain_progress import DrainView
from shadowrelay.model.ids import MessageId
from shadowrelay.model.ownership import Choice, CopyNumber, Role
from shadowrelay.model.queue import (
    NEVER,
    ForkRetry,
    LoneMessages,
    MessagePage,
    NextHopServer,
    NodeView,
    PeerView,
    QueueKind,
    QueueRow,
    QueueStatus,
    StoredMessage,
)
from shadowrelay.model.readiness import NextMessage
from shadowrelay.model.resubmission import ResubmitRequest
from shadowrelay.model.settings import BackPressure
from shadowrelay.model.survival import WhatIf
from shadowrelay.model.tracking import TrackingEvent
from shadowrelay.protocol.filters import Value
from shadowrelay.rules.back_pressure import EFFECTS, UNITS, Pressure, history_depth_of, reasons, thresholds_of


class ServerOfNextHop(BaseModel):
    """A server of a next hop, as the node knows it since its start: `Ready`, `Limited` or `Refused`, and why."""

    server: str
    state: str
    reply: str
    sessions_count: int
    sessions_max: int | None
    refused_seconds_ago: float | None
    probe_seconds: float | None


class Queue(BaseModel):
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
    suspended_since: datetime | None
    suspended_by: str
    delivery_type: str
    velocity: float
    primary: str
    servers: list[ServerOfNextHop]
    history: list[int] = []


class QueueRetried(BaseModel):
    """What `queue retry` found: the queue as it was."""

    queue: Queue
    is_retried: bool


class QueueSuspended(BaseModel):
    """What `queue suspend` or `queue resume` found: the queue as it was."""

    queue: Queue
    is_suspended: bool


class Queues(BaseModel):
    """All queues of a node."""

    queues: list[Queue]


class Number(BaseModel):
    """The rank of a copy: ownership, placement, and the database of the primary that assigned both."""

    ownership: int
    placement: int
    database: str


RECIPIENTS_LISTED = 20


class MessageSummary(BaseModel):
    """A message in a listing. Shapes: `to` has the first `RECIPIENTS_LISTED` recipients. `primary`: of a shadow message, its primary
    server; of a delivered one, the other server that delivered it (empty: this node did)."""

    internal_id: int
    message_id: str
    internet_message_id: str
    role: str
    origin: str
    sender: str
    to: list[str]
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
    status: str
    suspended_since: datetime | None
    suspended_by: str
    promoted_from: str
    relayed_from: str
    delivered_at: datetime | None


class RecipientResource(BaseModel):
    """A recipient; `ordinal` is its position in the original order, from 1."""

    ordinal: int
    address: str
    is_done: bool
    notify: str | None
    orcpt: str | None


class CopyResource(BaseModel):
    """A server that may hold a copy; `choice` is listed, chosen or handed-over."""

    server: str
    database: str
    choice: str


class RetryResource(BaseModel):
    """A next hop for which the message is queued."""

    next_hop: str
    ordinals: list[int]
    failures_count: int
    kind: str
    first_failed_at: datetime
    attempts_next_at: datetime | None
    last_reply: str
    delay_notified: bool


class ForkResource(BaseModel):
    """Recipients of a shadow message that wait at its primary server for this next hop, as far as it said so."""

    next_hop: str
    ordinals: list[int]


class DeliveryResource(BaseModel):
    """Recipients that the node delivered together; `is_inside`: by a route inside the boundary."""

    at: datetime
    next_hop: str
    ordinals: list[int]
    is_inside: bool


class Message(MessageSummary):
    """Everything that explains why a message is where it is. `told_after`: the generated messages which must have their copies, or be done,
    before another server hears of the recipients that are done."""

    number: Number
    client_address: str
    client_name: str
    original_client: str
    connector: str
    recipients: list[RecipientResource]
    primary_database: str
    asked: list[str]
    is_handed_over: bool
    copies: list[CopyResource]
    missing_copies_count: int
    retries: list[RetryResource]
    is_decided: bool
    is_promoted: bool
    deaths_count: int
    keep_until: datetime | None
    deliveries: list[DeliveryResource]
    forks: list[ForkResource]
    resubmitted_from: str
    sha256: str | None
    told_after: list[str]


class Messages(BaseModel):
    """A page of a listing; `next_after` requests the next page, and is null on the last."""

    messages: list[MessageSummary]
    next_after: int | None


class EventResource(BaseModel):
    """A row of the message tracking log. `network_message_id` is another one where the row only refers to the message."""

    at: datetime
    event: str
    source: str
    network_message_id: str
    client: str
    server: str
    context: str
    next_hop: str
    recipients: list[str]
    replies: list[str]
    reference: str
    sender: str
    subject: str
    custom_data: dict[str, str]


class Events(BaseModel):
    """What one node logged about a message, oldest first."""

    events: list[EventResource]


class PeerResource(BaseModel):
    """A peer as the node sees it. Units: `lease_seconds` left; null if none was obtained, 0 if it has ended. `takes_over_in_seconds`: until
    this node takes over what it holds for the peer, if that stays silent; null while it is heard, or nothing is held.
    `takes_copies`: yes, no, or unknown before anything was tried. `is_configured` false: it is no peer any more. `shared_fate`: what it
    shares with this node, machine or labels."""

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
    is_draining: bool
    conflict: str
    differs: str
    last_error: str
    takes_over_in_seconds: float | None
    takes_copies: str
    is_configured: bool
    shared_fate: str
    domains: list[str]


class Peers(BaseModel):
    """All peers of a node."""

    peers: list[PeerResource]


class ClientResource(BaseModel):
    """A client of a receive connector: an IPv4 address, or an IPv6 network. Counts are those of its minute, which ends in `seconds_left`;
    where no limits are configured they are 0. `limited_count`: how often it was refused for its limits."""

    connector: str
    client: str
    sessions_count: int
    connections: int
    messages: int
    recipients: int
    refused_recipients: int
    octets: int
    limited_count: int
    seconds_left: float


class Clients(BaseModel):
    """Clients of a node, those who were refused most first."""

    clients: list[ClientResource]


class TakenOverResource(BaseModel):
    """What the node holds for a server that would be lost. Units: `within_seconds` of silence from now until it takes that over."""

    primary: str
    count: int
    within_seconds: float


class NewMailResource(BaseModel):
    """What happens to the next message. `outcome`: copied, unknown (it is tried), fewer (copies, or none), refused, or not copied (none
    is wanted). `sentence`: why it gets fewer copies than wanted; empty if it gets them. `shared_fate`: peers that may be lost
    with this node."""

    outcome: str
    takers_count: int
    copies_wanted: int
    sentence: str
    shared_fate: list[str]


class WhatIfResource(BaseModel):
    """What one node knows about the loss of servers, disks included. If it is one of them: `count` of its unfinished messages, `lost_count`
    of which no survivor may have a copy, `uncertain_count` of the others without a confirmed copy, and in `held_by` how many each survivor
    may have. Else what is `taken_over` here, what happens to `new_mail`, and since when what was delivered can be resubmitted."""

    lost: list[str]
    at: datetime
    is_lost: bool
    count: int
    lost_count: int
    uncertain_count: int
    held_by: dict[str, int]
    taken_over: list[TakenOverResource]
    new_mail: NewMailResource | None
    resubmittable_since: datetime | None
    message_ids: list[str]
    are_all_ids: bool


class UntoldResource(BaseModel):
    """Messages of which recipients are done, and no other server is told before what was made of each (a DSN, a journal report) has its
    copies or is done: how many, and the oldest with what it waits for."""

    count: int
    since: datetime
    message_id: str
    generated: str


class ConfigurationResource(BaseModel):
    """The configuration file that a node runs with. `digest` is the SHA-256 of its octets when it was read; `needs_restart` names changes
    in it that wait for a restart; `refusal` says why a later state of it was refused."""

    file: str
    digest: str
    read_at: datetime | None
    needs_restart: list[str]
    refused_at: datetime | None
    refusal: str


class NodeResource(BaseModel):
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
    former_database: str
    settings: dict[str, object]
    configuration: ConfigurationResource
    new_mail: NewMailResource
    safety_net_complete_since: datetime | None
    untold: UntoldResource | None


class MeterResource(BaseModel):
    """A resource under back pressure control. `measured` is the level of the last sample, `level` the one in effect, after
    `history_depth` samples above normal in a row; `samples_count` were so far. `use` and the thresholds are in `unit`."""

    resource: str
    use: float
    unit: str
    detail: str
    level: str
    measured: str
    samples_count: int
    history_depth: int
    since: datetime | None
    low_to_medium: int
    medium_to_high: int
    high_to_medium: int
    medium_to_low: int


class BackPressureResource(BaseModel):
    """What this node refuses and delays now, and why."""

    level: str
    effect: str
    tarpit_seconds: float
    reasons: list[str]
    resources: list[MeterResource]


class Copies(BaseModel):
    """Of this node's undelivered messages: `fewer_count` have fewer copies than wanted, `alone_count` of all are on no other server that
    answers. A count of `counted_max` may be more."""

    fewer_count: int
    alone_count: int
    counted_max: int


class Readiness(BaseModel):
    """Whether mail is accepted now; `reasons` says why not. `is_degraded`: none, or not all of it."""

    is_ready: bool
    is_degraded: bool
    reasons: list[str]


class Drain(BaseModel):
    """How far the drain of this node is.

    Shapes: `state` is active, draining, inactive or redirecting. `undelivered_count` counts a message once for each queue that it is in;
    `held` are the shadow messages by primary server, which stay. `waits_for` has sentences, the same in `obstacles` for programs.
    `is_stuck`: nothing of that passes by itself. `targets`, `moved_count` and `left_count`: of the redirect that runs, or of the last one
    since the start.
    """

    state: str
    since: datetime | None
    step: str
    sessions_count: int
    attempts_count: int
    undelivered_count: int
    handed_over_count: int
    set_aside_count: int
    held: dict[str, int]
    waits_for: list[str]
    obstacles: list["DrainObstacle"]
    is_stuck: bool
    targets: list[str]
    moved_count: int
    left_count: int


class DrainObstacle(BaseModel):
    """One thing that the drain waits for. `server` is empty where none is concerned."""

    obstacle: str
    server: str
    count: int
    is_lasting: bool


class Forgotten(BaseModel):
    """The peer that was marked as gone for good."""

    name: str
    is_forgotten: bool


class Released(BaseModel):
    """A message that was set aside and is delivered again."""

    message_id: str
    is_released: bool


class MessageSuspended(BaseModel):
    """A message that is suspended now, or no longer."""

    message_id: str
    is_suspended: bool


class ResubmittedResource(BaseModel):
    """A message that is routed anew and attempted at once."""

    message_id: str
    is_resubmitted: bool


class Removed(BaseModel):
    """A message that will not be delivered; `is_sender_told`: whether a DSN was requested. The null sender gets none."""

    message_id: str
    is_removed: bool
    is_sender_told: bool


class ResubmitRequestResource(BaseModel):
    """A request to resubmit from Safety Net. Counts are messages; `outside_count`: recipients that match, but outside the boundary."""

    number: int
    state: str
    created_at: datetime
    from_at: datetime
    to_at: datetime
    next_hop: str
    sender: str
    recipient: str
    message_id: str
    primary_server: str
    is_examined: bool
    examined_at: datetime
    examined_count: int
    resubmitted_count: int
    redundant_count: int
    outside_count: int
    missing_count: int
    elsewhere_count: int


class ResubmitRequests(BaseModel):
    """All of them, by number."""

    requests: list[ResubmitRequestResource]


class RequestRemoved(BaseModel):
    """A request that the node has forgotten."""

    number: int
    is_removed: bool


class AuditEntryResource(BaseModel):
    """A write: `act` is its route, `on` its parameters, `outcome` "done" or why it was refused."""

    at: datetime
    by: str
    role: str
    client: str
    act: str
    on: str
    outcome: str


class Audit(BaseModel):
    """What was changed since the start, newest first."""

    entries: list[AuditEntryResource]


class Problem(BaseModel):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""


def audit_entry_of(entry: AuditEntry) -> AuditEntryResource:
    """The resource for one write."""
    return AuditEntryResource(
        at=entry.at, by=entry.by, role=entry.role, client=entry.client, act=entry.act, on=entry.on, outcome=entry.outcome
    )


def queue_of(row: QueueRow, history: Sequence[int] = ()) -> Queue:
    """The resource for one queue."""
    return Queue(
        identity=row.identity, kind=row.kind.value, next_hop=row.next_hop, count=row.count, octets=row.octets,
        oldest_at=row.oldest_at, last_error=row.last_error, next_retry_at=row.next_retry_at,
        status=row.status.value, retry_since=row.retry_since, probes_count=row.probes_count,
        suspended_since=None if row.suspended is None else row.suspended.since,
        suspended_by="" if row.suspended is None else row.suspended.by,
        delivery_type=_delivery_type_of(row), velocity=round(row.velocity, 3), primary=row.primary,
        servers=list(map(_server_of, row.servers)), history=list(history),
    )  # fmt: skip


def _server_of(one: NextHopServer) -> ServerOfNextHop:
    return ServerOfNextHop(
        server=one.server, state=one.state.value, reply=one.reply, sessions_count=one.sessions_count, sessions_max=one.sessions_max,
        refused_seconds_ago=one.refused_seconds_ago, probe_seconds=one.probe_seconds,
    )  # fmt: skip


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


def copies_of(found: LoneMessages) -> Copies:
    """The resource for how many messages lack copies."""
    return Copies(fewer_count=found.fewer_count, alone_count=found.alone_count, counted_max=found.counted_max)


def summary_of(stored: StoredMessage) -> MessageSummary:
    """The resource for one message in a listing."""
    return MessageSummary(**_summary(stored))


def page_of(page: MessagePage) -> Messages:
    """The resource for a page of a listing."""
    return Messages(messages=[summary_of(stored) for stored in page.messages], next_after=page.next_after)


def message_of(stored: StoredMessage, awaited: Sequence[MessageId] = ()) -> Message:
    """The resource for one message in full; `awaited` by the notifications about it."""
    envelope, claim = stored.envelope, stored.claim
    return Message(
        **_summary(stored),
        number=_number_of(claim.number),
        client_address=envelope.client_address, client_name=envelope.client_name, original_client=envelope.original_client,
        connector=envelope.connector,
        recipients=[
            RecipientResource(ordinal=ordinal, address=each.address, is_done=ordinal in claim.done, notify=each.notify, orcpt=each.orcpt)
            for ordinal, each in enumerate(envelope.recipients, start=1)
        ],
        primary_database=claim.database, asked=sorted(claim.asked), is_handed_over=claim.handed,
        copies=[CopyResource(server=each.server, database=each.database, choice=_choice_name(each.choice)) for each in claim.copies],
        missing_copies_count=claim.missing_count if claim.role is Role.PRIMARY else 0,
        retries=[_retry_of(retry) for retry in stored.retries],
        is_decided=stored.is_decided, is_promoted=stored.is_promoted,
        deaths_count=stored.deaths_count, keep_until=stored.keep_until,
        deliveries=[
            DeliveryResource(at=each.at, next_hop=each.next_hop, ordinals=sorted(each.ordinals), is_inside=each.is_inside)
            for each in stored.deliveries
        ],
        forks=[ForkResource(next_hop=each.next_hop, ordinals=sorted(each.ordinals)) for each in stored.forks],
        resubmitted_from=envelope.resubmitted_from,
        sha256=stored.place.sha256.hex() if stored.place is not None else None, told_after=list(awaited),
    )  # fmt: skip


def event_of(row: TrackingEvent) -> EventResource:
    """The resource for one row."""
    return EventResource(
        at=row.at, event=row.event.value, source=row.source.value, network_message_id=row.network_message_id,
        client=row.client_hostname or row.client_ip, server=row.server_hostname or row.server_ip, context=row.source_context,
        next_hop=row.connector_id, recipients=list(row.recipients), replies=list(row.recipient_statuses), reference=row.reference,
        sender=row.sender, subject=row.subject, custom_data=dict(row.custom_data),
    )  # fmt: skip


def request_of(request: ResubmitRequest) -> ResubmitRequestResource:
    """The resource for one request."""
    criteria = request.criteria
    return ResubmitRequestResource(
        number=request.number, state=request.state.value, created_at=request.created_at,
        from_at=criteria.from_at, to_at=criteria.to_at, next_hop=criteria.next_hop, sender=criteria.sender,
        recipient=criteria.recipient, message_id=criteria.message_id, primary_server=criteria.primary_server,
        is_examined=request.is_examined, examined_at=request.examined_at, examined_count=request.examined_count,
        resubmitted_count=request.resubmitted_count, redundant_count=request.redundant_count,
        outside_count=request.outside_count, missing_count=request.missing_count, elsewhere_count=request.elsewhere_count,
    )  # fmt: skip


def peer_of(view: PeerView, now: datetime) -> PeerResource:
    """The resource for one peer."""
    age = max((now - view.heard_at).total_seconds(), 0.0) if view.heard_at is not None else None
    return PeerResource(
        name=view.name, site=view.site, boundary=view.boundary, address=view.address, database=view.database,
        heard_at=view.heard_at, heartbeat_age_seconds=age, is_reachable=view.is_reachable,
        lease_seconds=view.lease.total_seconds() if view.lease is not None else None, breaker=view.breaker, refusal=view.refusal,
        held_for_count=view.held_for_count, held_by_count=view.held_by_count, is_forgotten=view.is_forgotten, conflict=view.conflict,
        is_draining=view.is_draining,
        differs=view.differs, last_error=view.last_error, is_configured=view.is_configured, takes_copies=view.takes_copies.value,
        takes_over_in_seconds=None if view.takes_over_in is None else view.takes_over_in.total_seconds(), shared_fate=view.shared_fate,
        domains=list(view.domains),
    )  # fmt: skip


def node_of(view: NodeView, now: datetime) -> NodeResource:
    """The resource for this node."""
    return NodeResource(
        name=view.name, site=view.site, boundary=view.boundary, version=view.version, state=view.state,
        started_at=view.started_at, uptime_seconds=max((now - view.started_at).total_seconds(), 0.0),
        database=view.database, incarnation=view.incarnation, began=view.began, position=view.position,
        former_database=view.former_database, settings=dict(view.in_force.settings),
        configuration=ConfigurationResource(
            file=view.in_force.file, digest=view.in_force.digest, read_at=view.in_force.read_at, refused_at=view.in_force.refused_at,
            refusal=view.in_force.refusal, needs_restart=list(view.in_force.needs_restart),
        ), safety_net_complete_since=view.safety_net_complete_since,
        new_mail=new_mail_of(view.new_mail),
        untold=None if (untold := view.untold) is None else UntoldResource(
            count=untold.count, since=untold.since, message_id=untold.message_id, generated=untold.generated
        ),
    )  # fmt: skip


def new_mail_of(next_message: NextMessage) -> NewMailResource:
    """The resource for what happens to the next message."""
    return NewMailResource(
        outcome=next_message.outcome.value, takers_count=next_message.takers_count, copies_wanted=next_message.copies_wanted,
        sentence=next_message.sentence, shared_fate=list(next_message.shared_fate),
    )  # fmt: skip


def what_if_of(view: WhatIf) -> WhatIfResource:
    """The resource for what would be lost with certain servers."""
    survival = view.survival
    return WhatIfResource(
        lost=list(view.lost), at=view.at, is_lost=survival is not None,
        count=0 if survival is None else survival.count,
        lost_count=0 if survival is None else survival.lost_count,
        uncertain_count=0 if survival is None else survival.uncertain_count,
        held_by={str(server): count for server, count in view.held_by.items()},
        taken_over=[TakenOverResource(primary=one.primary, count=one.count, within_seconds=one.within) for one in view.taken_over],
        new_mail=None if view.new_mail is None else new_mail_of(view.new_mail),
        resubmittable_since=view.resubmittable_since, message_ids=list(view.ids), are_all_ids=view.are_all,
    )  # fmt: skip


def drain_of(view: DrainView) -> Drain:
    """The resource for the drain of this node."""
    return Drain(
        state=view.state.value, since=view.since, step=view.step.value, sessions_count=view.sessions_count,
        attempts_count=view.attempts_count, undelivered_count=view.undelivered_count, handed_over_count=view.handed_over_count,
        set_aside_count=view.set_aside_count, held=dict(view.held), waits_for=[one.text for one in view.waiting],
        obstacles=[
            DrainObstacle(obstacle=one.obstacle.value, server=one.server, count=one.count, is_lasting=one.obstacle.is_lasting)
            for one in view.waiting
        ],
        is_stuck=view.is_stuck, targets=list(view.targets), moved_count=view.moved_count, left_count=view.left_count,
    )  # fmt: skip


def client_of(view: ClientView) -> ClientResource:
    """The resource for one client."""
    minute = view.minute
    return ClientResource(
        connector=view.connector, client=view.client, sessions_count=view.sessions_count,
        connections=0 if minute is None else minute.connections, messages=0 if minute is None else minute.messages,
        recipients=0 if minute is None else minute.recipients,
        refused_recipients=0 if minute is None else minute.refused_recipients,
        octets=0 if minute is None else minute.octets, limited_count=0 if minute is None else minute.limited_count,
        seconds_left=round(view.seconds_left, 3),
    )  # fmt: skip


def pressure_of(pressure: Pressure, settings: BackPressure) -> BackPressureResource:
    """The resource for the back pressure."""
    meters = [
        MeterResource(
            resource=meter.resource.value, use=round(meter.reading.use, 2), unit=UNITS.get(meter.resource, "%"),
            detail=meter.reading.detail, level=meter.level.name.lower(), measured=meter.measured.name.lower(),
            samples_count=meter.pressed_count, history_depth=history_depth_of(meter.resource, settings), since=meter.since,
            **dict(thresholds_of(meter.resource, settings)),
        )
        for meter in pressure.meters.values()
    ]  # fmt: skip
    return BackPressureResource(
        level=pressure.level.name.lower(), effect=EFFECTS[pressure.level], tarpit_seconds=pressure.tarpit_seconds,
        reasons=list(reasons(pressure, settings)), resources=meters,
    )  # fmt: skip


def utc_now() -> datetime:
    """The current time, used only for ages in listings."""
    return datetime.now(UTC)


def _summary(stored: StoredMessage) -> dict[str, Any]:
    envelope, claim = stored.envelope, stored.claim
    chosen = sorted([copy for copy in claim.copies if claim.is_chosen(copy.server)], key=lambda copy: -copy.placement)
    latest = max(stored.retries, key=lambda retry: retry.attempts_next_at, default=None)
    return {
        "internal_id": stored.internal_id,
        "message_id": envelope.message_id,
        "internet_message_id": envelope.internet_message_id,
        "role": claim.role.value,
        "origin": stored.origin.value,
        "sender": envelope.sender,
        "to": [each.address for each in envelope.recipients[:RECIPIENTS_LISTED]],
        "recipients_count": len(envelope.recipients),
        "done_count": len(claim.done),
        "size": stored.place.size if stored.place is not None else None,
        "subject": envelope.subject,
        "arrived_at": envelope.arrived_at,
        "due_at": stored.due_at,
        "primary": claim.primary,
        "shadow": ", ".join([copy.server for copy in chosen]),
        "last_reply": latest.last_reply if latest is not None else "",
        "set_aside_reason": stored.set_aside_reason,
        "status": _status_of(stored).value,
        "suspended_since": None if stored.suspended is None else stored.suspended.since,
        "suspended_by": "" if stored.suspended is None else stored.suspended.by,
        "promoted_from": stored.promoted_from,
        "relayed_from": envelope.relayed_from,
        "delivered_at": stored.delivered_at,
    }


def _status_of(stored: StoredMessage) -> QueueStatus:
    """As in Exchange: what is set aside is suspended for good."""
    if stored.suspended is not None or stored.claim.role is Role.SET_ASIDE:
        return QueueStatus.SUSPENDED
    return QueueStatus.RETRY if any(retry.failures_count for retry in stored.retries) else QueueStatus.READY


def _number_of(number: CopyNumber) -> Number:
    return Number(ownership=number.ownership, placement=number.placement, database=number.database)


def _choice_name(choice: Choice) -> str:
    return choice.name.lower().replace("_", "-")


def _retry_of(retry: ForkRetry) -> RetryResource:
    return RetryResource(
        next_hop=retry.next_hop, ordinals=sorted(retry.ordinals), failures_count=retry.failures_count, kind=retry.kind.value,
        first_failed_at=retry.first_failed_at,
        attempts_next_at=None if retry.attempts_next_at >= NEVER else retry.attempts_next_at, last_reply=retry.last_reply,
        delay_notified=retry.delay_notified,
    )  # fmt: skip
