"""Rows of `retry` <-> the forks that wait in the delivery queues of their next hops."""

from collections.abc import Iterable, Sequence
from typing import Any

from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import FailureKind, ForkRetry
from shadowrelay.store import codec


def encode_retry(internal_id: int, retry: ForkRetry) -> tuple[Any, ...]:
    return (
        internal_id,
        retry.next_hop,
        codec.encode_ordinals(retry.ordinals),
        retry.failures_count,
        str(retry.kind),
        codec.encode_instant(retry.first_failed_at),
        codec.encode_instant(retry.attempts_next_at),
        retry.last_reply,
        1 if retry.delay_notified else 0,
        retry.waits_for,
        None if retry.notice_at is None else codec.encode_instant(retry.notice_at),
    )


def decode_retries(many: Iterable[Sequence[Any]]) -> dict[int, tuple[ForkRetry, ...]]:
    """By internal id. A retry row that makes no sense is left out: its recipients are then tried at once."""
    found: dict[int, list[ForkRetry]] = {}
    for internal_id, *columns in many:
        if (retry := decode_retry(columns)) is not None:
            found.setdefault(internal_id, []).append(retry)
    return {internal_id: tuple(retries) for internal_id, retries in found.items()}


def decode_retry(columns: Sequence[Any]) -> ForkRetry | None:
    """Of the columns behind `message`; `None` for a row that makes no sense."""
    next_hop, ordinals, failures_count, kind, first_failed_at, attempts_next_at, last_reply, notified, waits_for, notice_at = columns
    try:
        return ForkRetry(
            next_hop=next_hop,
            ordinals=codec.decode_ordinals(ordinals),
            failures_count=failures_count,
            kind=FailureKind(kind),
            first_failed_at=codec.decode_instant(first_failed_at),
            attempts_next_at=codec.decode_instant(attempts_next_at),
            last_reply=last_reply,
            delay_notified=bool(notified),
            waits_for=ServerName(waits_for),
            notice_at=codec.decode_instant_or_none(notice_at),
        )
    except (ValueError, TypeError, AttributeError):
        return None
