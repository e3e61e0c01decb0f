"""By which id of a next hop a message is found again."""

from datetime import UTC, datetime

import pytest

from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.pipeline.message_desk import messages_queued_as

ROW = TrackingEvent(datetime(2026, 11, 27, tzinfo=UTC), EventId.SENDEXTERNAL, EventSource.SMTP, 7, "0193a6a2-6f1e-7c3a-9c57-0d1f2e3a4b5c")


@pytest.mark.parametrize(
    ("reply", "queue_id", "is_found"),
    [
        ("250 2.0.0 Ok: queued as 4bXyz12k9Pz", "4bXyz12k9Pz", True),
        ("250 2.0.0 Ok: queued as 4bXyz12k9Pz", "4bXyz12", False),
        ("250 OK id=1vOq3T-000000001xy-2Abc", "1vOq3T-000000001xy-2Abc", True),
        ("250 OK id=1vOq3T-000000001xy-2Abc", "1vOq3T", False),
        ("250 2.6.0 <a@b.example> [InternalId=55834574848] Queued mail for delivery", "55834574848", True),
        ("250 2.0.0 8Rk1Q2x: Message accepted for delivery.", "8Rk1Q2x", True),
    ],
)
def test_a_message_is_found_by_the_id_in_the_reply_as_a_whole(reply: str, queue_id: str, is_found: bool) -> None:
    rows = [replace(ROW, recipient_statuses=("250 2.1.5 Ok", reply)), replace(ROW, subject=queue_id, network_message_id="another")]

    assert ((ROW.network_message_id,) if is_found else ()) == messages_queued_as(queue_id, rows)
