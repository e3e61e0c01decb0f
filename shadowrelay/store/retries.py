"""Rows of `retry` <-> the forks of a message that failed for now."""

from collections.abc import Iterable, Sequence
from typing import Any

from shadowrelay.model.queue import FailureKind, ForkRetry
from shadowrelay.store import codec


def encode_retry(internal_id: int, retry: ForkRetry) -> tuple[Any, ...]:
    return (
        internal_id,
        retry.next_hop,
        codec.encode_ordinals(retry.ordinals),
        retry.failures_count,
        retry.kind.value,
        codec.encode_instant(retry.first_failed_at),
        codec.encode_instant(retry.attempts_next_at),
        retry.last_reply,
        1 if retry.delay_notified else 0,
    )


def decode_retries(many: Iterable[Sequence[Any]]) -> dict[int, tuple[ForkRetry, ...]]:
    """By internal id. A retry row that makes no sense is left out: its recipients are then tried at once."""
    found: dict[int, list[ForkRetry]] = {}
    for internal_id, next_hop, ordinals, failures_count, kind, first_failed_at, attempts_next_at, last_reply, delay_notified in many:
        try:
            retry = ForkRetry(
                next_hop=next_hop,
                ordinals=codec.decode_ordinals(ordinals),
                failures_count=failures_count,
                kind=FailureKind(kind),
                first_failed_at=codec.decode_instant(first_failed_at),
                attempts_next_at=codec.decode_instant(attempts_next_at),
                last_reply=last_reply,
                delay_notified=bool(delay_notified),
            )
        except (ValueError, TypeError, AttributeError):
            continue
        found.setdefault(internal_id, []).append(retry)
    return {internal_id: tuple(retries) for internal_id, retries in found.items()}
