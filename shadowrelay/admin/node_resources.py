"""The node, its peers and its clients as resources of the API. docs/operations.md "Watching"."""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field

from shadowrelay.admin.mail_resources import Queue
from shadowrelay.admin.resources import ApiResource, Seconds, found_at
from shadowrelay.model.back_pressure_settings import BackPressure
from shadowrelay.model.client_minute import ClientView
from shadowrelay.model.drain_progress import DrainView
from shadowrelay.model.queue import NodeView, PeerView
from shadowrelay.rules.back_pressure import EFFECTS, UNITS, Pressure, history_depth_of, reasons, thresholds_of


class PeerResource(ApiResource):
    """A peer as the node sees it. Units: `lease_seconds` left; null if none was obtained, 0 if it has ended. `takes_over_in_seconds`: until
    this node takes over what it holds for the peer, if that stays silent; null while it is heard, or nothing is held.
    `takes_copies`: yes, no, or unknown before anything was tried. `is_configured` false: it is no peer any more; `is_leaving`: and was one
    when this node started. `shared_fate`: what it shares with this node, machine or labels; `machine` is a keyed hash of its.
    `discards_count`: discard notifications that it has not fetched yet. `version` of its program, empty for one that is too old to tell;
    `features` are what it offered."""

    name: str
    site: str
    boundary: str
    address: str
    database: str
    heard_at: datetime | None
    heartbeat_age_seconds: float | None = None
    is_reachable: bool
    lease_seconds: Seconds | None = found_at("lease")
    breaker: str
    refusal: str
    held_for_count: int
    held_by_count: int
    is_forgotten: bool
    is_draining: bool
    conflict: str
    differs: str
    last_error: str
    takes_over_in_seconds: Seconds | None = found_at("takes_over_in")
    takes_copies: str
    is_configured: bool
    is_leaving: bool
    version: str
    features: list[str]
    shared_fate: str
    domains: list[str]
    machine: str
    discards_count: int


class Peers(ApiResource):
    """All peers of a node."""

    peers: list[PeerResource]


class ClientResource(ApiResource):
    """A client of a receive connector: an IPv4 address, or an IPv6 network. Counts are those of its minute, which ends in `seconds_left`;
    where no limits are configured they are 0. `limited_count`: how often it was refused for its limits."""

    connector: str
    client: str
    sessions_count: int
    connections: int = found_at("minute", "connections", default=0)
    messages: int = found_at("minute", "messages", default=0)
    recipients: int = found_at("minute", "recipients", default=0)
    refused_recipients: int = found_at("minute", "refused_recipients", default=0)
    octets: int = found_at("minute", "octets", default=0)
    limited_count: int = found_at("minute", "limited_count", default=0)
    seconds_left: float


class Clients(ApiResource):
    """Clients of a node, those who were refused most first."""

    clients: list[ClientResource]


class TakenOverResource(ApiResource):
    """What the node holds for a server that would be lost. Units: `within_seconds` of silence from now until it takes that over."""

    primary: str
    count: int
    within_seconds: float = found_at("within")


class NewMailResource(ApiResource):
    """What happens to the next message. `outcome`: copied, unknown (it is tried), fewer (copies, or none), refused, or not copied (none
    is wanted). `sentence`: why it gets fewer copies than wanted; empty if it gets them. `shared_fate`: peers that may be lost
    with this node."""

    outcome: str
    takers_count: int
    copies_wanted: int
    sentence: str
    shared_fate: list[str]


def _is_there(value: object) -> bool:
    return value is not None and value is not False


class WhatIfResource(ApiResource):
    """What one node knows about the loss of servers, disks included. If it is one of them: `count` of its unfinished messages, `lost_count`
    of which no survivor may have a copy, `uncertain_count` of the others without a confirmed copy, and in `held_by` how many each survivor
    may have. Else what is `taken_over` here, what happens to `new_mail`, and since when what was delivered can be resubmitted."""

    lost: list[str]
    at: datetime
    is_lost: Annotated[bool, BeforeValidator(_is_there)] = found_at("survival")
    count: int = found_at("survival", "count", default=0)
    lost_count: int = found_at("survival", "lost_count", default=0)
    uncertain_count: int = found_at("survival", "uncertain_count", default=0)
    held_by: dict[str, int]
    taken_over: list[TakenOverResource]
    new_mail: NewMailResource | None
    resubmittable_since: datetime | None
    message_ids: list[str] = found_at("ids")
    are_all_ids: bool = found_at("are_all")


class UntoldResource(ApiResource):
    """Messages of which recipients are done, and no other server is told before what was made of each (a DSN, a journal report) has its
    copies or is done: how many, and the oldest with what it waits for."""

    count: int
    since: datetime
    message_id: str
    generated: str


class ConfigurationResource(ApiResource):
    """The configuration file that a node runs with. `digest` is the SHA-256 of its octets when it was read; `needs_restart` names changes
    in it that wait for a restart; `refusal` says why a later state of it was refused."""

    file: str
    digest: str
    read_at: datetime | None
    needs_restart: list[str]
    refused_at: datetime | None
    refusal: str


class NodeResource(ApiResource):
    """Identity, queue database and effective settings of a node. `machine` is the same for all nodes that run on one, empty if it is not
    known; `is_witness`: it has no clients."""

    name: str
    site: str
    boundary: str
    version: str
    state: str
    started_at: datetime
    uptime_seconds: float = 0.0
    database: str
    incarnation: int
    began: int
    position: int
    former_database: str
    settings: dict[str, object] = found_at("in_force", "settings")
    configuration: ConfigurationResource = found_at("in_force")
    new_mail: NewMailResource
    safety_net_complete_since: datetime | None
    untold: UntoldResource | None
    machine: str
    domains: list[str]
    is_witness: bool


class MeterResource(ApiResource):
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


class BackPressureResource(ApiResource):
    """What this node refuses and delays now, and why."""

    level: str
    effect: str
    tarpit_seconds: float
    reasons: list[str]
    resources: list[MeterResource]


class Copies(ApiResource):
    """Of this node's undelivered messages: `fewer_count` have fewer copies than wanted now, `alone_count` of these are on no other server
    that answers. Of very many not all are looked at: they are at least these, and at most `fewer_max` and `alone_max`."""

    fewer_count: int
    fewer_max: int
    alone_count: int
    alone_max: int


class Readiness(ApiResource):
    """Whether mail is accepted now; `reasons` says why not. `is_degraded`: none, or not all of it."""

    is_ready: bool
    is_degraded: bool
    reasons: list[str]


class DrainObstacle(ApiResource):
    """One thing that the drain waits for. `server` is empty where none is concerned."""

    obstacle: str
    server: str
    count: int
    is_lasting: bool = found_at("obstacle", "is_lasting")


class Drain(ApiResource):
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
    waits_for: list[str] = Field(default_factory=list)
    obstacles: list[DrainObstacle] = found_at("waiting")
    is_stuck: bool
    targets: list[str]
    moved_count: int
    left_count: int


class Glance(ApiResource):
    """A node at a glance: what it says under each of these names."""

    node: NodeResource
    ready: Readiness
    queues: list[Queue]
    peers: list[PeerResource]
    redundancy: Copies
    pressure: BackPressureResource
    drain: Drain | None


class Forgotten(ApiResource):
    """The peer that was marked as gone for good."""

    name: str
    is_forgotten: bool


def peer_of(view: PeerView, now: datetime) -> PeerResource:
    """The resource for one peer."""
    found = PeerResource.model_validate(view)
    found.heartbeat_age_seconds = max((now - view.heard_at).total_seconds(), 0.0) if view.heard_at is not None else None
    return found


def node_of(view: NodeView, now: datetime) -> NodeResource:
    """The resource for this node."""
    found = NodeResource.model_validate(view)
    found.uptime_seconds = max((now - view.started_at).total_seconds(), 0.0)
    return found


def drain_of(view: DrainView) -> Drain:
    """The resource for the drain of this node."""
    found = Drain.model_validate(view)
    found.waits_for = [one.text for one in view.waiting]
    return found


def client_of(view: ClientView) -> ClientResource:
    """The resource for one client."""
    found = ClientResource.model_validate(view)
    found.seconds_left = round(view.seconds_left, 3)
    return found


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
