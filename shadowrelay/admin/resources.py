"""Resources of the API, from which OpenAPI is generated: what they share, errors, and requests to resubmit. RFC 9457.

A resource names its fields, and where each stands in the value that it is made of: `ApiResource.model_validate(value)` takes it from there.
Those of queues and messages are in `admin.mail_resources`, those of nodes and peers in `admin.node_resources`.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

OF_VALUES = ConfigDict(from_attributes=True, populate_by_name=True, json_schema_serialization_defaults_required=True)


class ApiResource(BaseModel):
    """Made of a value by its attributes, or by keywords."""

    model_config = OF_VALUES


def found_at(*path: str, default: Any = ...) -> Any:
    """A field that stands elsewhere in the value; `default` where that part of it is None."""
    return Field(default, validation_alias=AliasPath(*path))


def _seconds(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else value


Seconds = Annotated[float, BeforeValidator(_seconds)]
Ordinals = Annotated[list[int], BeforeValidator(sorted)]


class ResubmitRequestResource(ApiResource):
    """A request to resubmit from Safety Net. Counts are messages; `outside_count`: recipients that match, but outside the boundary."""

    number: int
    state: str
    created_at: datetime
    from_at: datetime = found_at("criteria", "from_at")
    to_at: datetime = found_at("criteria", "to_at")
    next_hop: str = found_at("criteria", "next_hop")
    sender: str = found_at("criteria", "sender")
    recipient: str = found_at("criteria", "recipient")
    message_id: str = found_at("criteria", "message_id")
    primary_server: str = found_at("criteria", "primary_server")
    is_examined: bool
    examined_at: datetime
    examined_count: int
    resubmitted_count: int
    redundant_count: int
    outside_count: int
    missing_count: int
    elsewhere_count: int


class ResubmitRequests(ApiResource):
    """All of them, by number."""

    requests: list[ResubmitRequestResource]


class Delivered(ApiResource):
    """Messages that were delivered in an interval; `is_more`: counting ended before all were."""

    count: int
    is_more: bool


class RequestRemoved(ApiResource):
    """A request that the node has forgotten."""

    number: int
    is_removed: bool


class AuditEntryResource(ApiResource):
    """A write: `act` is its route, `on` its parameters, `outcome` "done" or why it was refused."""

    at: datetime
    by: str
    role: str
    client: str
    act: str
    on: str
    outcome: str


class Audit(ApiResource):
    """What was changed since the start, newest first."""

    entries: list[AuditEntryResource]


class Problem(ApiResource):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""


def utc_now() -> datetime:
    """The current time, used only for ages in listings."""
    return datetime.now(UTC)
