"""What the summary holds, as types (docs/sla.md, section 6). Only what the page shows is here.

Shapes: lists may be empty; figures that have no events are None. Units: names end with them; instants are ISO 8601 UTC with `Z`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

Verdict = Literal["met", "missed", "no data", "not computable"]
Cell = str | int | float | bool | None


class Percentiles(TypedDict, total=False):
    count: int
    p50: int | None
    p95: int | None
    p99: int | None
    max: int | None


class Figures(TypedDict):
    messages_acknowledged: int
    messages_reconstructed: int
    messages_redundant: int
    messages_done: int
    messages_by_copies: Mapping[str, int]
    messages_redundant_by_way: Mapping[str, int]
    redundancy_ratio: float | None
    shadow_latency_ms: Percentiles
    shadow_share: float | None
    exposure_count: int
    messages_exposed: int
    messages_exposure_unknown: NotRequired[int]
    exposure_seconds: float
    exposure_max_seconds: float
    discard_lag_ms: Percentiles
    discards_late: int
    delivery_latency_ms: Percentiles
    promotions: int
    messages_promoted: int
    takeover_detection_ms: Percentiles
    takeover_silence_ms: Percentiles
    takeovers_late: int
    recipients_lost: int
    recipients_duplicated: int
    recipients_duplicated_unexplained: int
    shadows_orphaned: int
    shadows_kept: int
    shadows_taken_back: int
    shadows_rerouted: int
    clock_skews: int


class Overall(Figures):
    lines_quarantined: int


class Figure(Figures):
    window: Literal["all", "day", "hour", "minute"]
    start: str
    scope: Literal["all", "boundary", "site", "server", "pair"]
    name: str
    other: str


class Objective(TypedDict):
    name: str
    kind: Literal["safety", "speed"]
    objective: float
    default: float
    default_within_seconds: float | None
    within_seconds: float | None
    actual: float | None
    good: int
    bad: int
    unknown: NotRequired[int]
    verdict: Verdict
    budget_left: float | None
    burn_rates: Mapping[str, float | None]


class KindVerdict(TypedDict):
    verdict: Verdict
    missed: Sequence[str]
    judged: int
    objectives: int


class Time(TypedDict):
    seconds: float
    default_seconds: float


class ServerInput(TypedDict):
    name: str
    site: str
    boundary: str
    format: str
    first_at: str | None
    last_at: str | None
    rows: int


class Quarantine(TypedDict):
    reason: str
    count: int
    examples: Sequence[Mapping[str, Cell]]


class Input(TypedDict):
    servers: Sequence[ServerInput]
    files: int
    files_missing: int
    lines: int
    rows: int
    rows_repeated: int
    first_at: str | None
    last_at: str | None
    quarantine: Sequence[Quarantine]
    dropped_before_shipping: Sequence[Mapping[str, Cell]]
    dropped_count: NotRequired[int]
    one_server: NotRequired[Sequence[Sequence[str]]]
    one_directory: NotRequired[Sequence[Sequence[str]]]
    cut_names: NotRequired[Sequence[Sequence[str]]]
    without_deliveries: NotRequired[Sequence[str]]
    files_alike: NotRequired[int]


class Takeover(TypedDict):
    old_primary: str
    new_primary: str
    reason: str
    silent_since: str | None
    detected_at: str | None
    first_resubmit_at: str
    last_resubmit_at: str
    messages: int
    delivered_at: str | None
    returned_at: str | None
    in_time: int | None
    is_cut: bool
    in_touch_at: str | None


class Before(TypedDict):
    since: str
    until: str
    is_whole: bool
    verdict: Mapping[str, KindVerdict]
    overall: Figures
    objectives: Sequence[Objective]


class TraceRow(TypedDict):
    at: str
    server: str
    event: str
    source: str
    client: str
    to: str
    recipients: Sequence[str]
    recipients_count: NotRequired[int]
    text: str


class Watch(TypedDict):
    updated_at: str
    interval_seconds: float
    late_rows: int
    ahead_rows: int
    failing: Mapping[str, str]


class Summary(TypedDict):
    generated_at: str
    now: str | None
    since: str | None
    until: str | None
    is_final: bool
    input: Input
    verdict: Mapping[str, KindVerdict]
    times: Mapping[str, Time]
    overall: Overall
    objectives: Sequence[Objective]
    not_computable: Sequence[Mapping[str, Cell]]
    figures: Sequence[Figure]
    before: Before | None
    incidents: Sequence[Mapping[str, Cell]]
    cuts: Sequence[Mapping[str, Cell | Sequence[str]]]
    slow: Sequence[Mapping[str, Cell]]
    slow_causes: Mapping[str, Mapping[str, int]]
    takeovers: Sequence[Takeover]
    duplicates: Sequence[Mapping[str, Cell]]
    losses: Sequence[Mapping[str, Cell]]
    orphans: Sequence[Mapping[str, Cell]]
    exposures: Sequence[Mapping[str, Cell]]
    causes: Mapping[str, Mapping[str, int]]
    traces: Mapping[str, Sequence[TraceRow]]
    watch: NotRequired[Watch]
