"""Whether a message that was taken over had passed this node before, by its Received fields. docs/design.md 6.5."""

from datetime import UTC, datetime

import pytest

from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import Recipient
from shadowrelay.pipeline.delivery_rules import was_here_before
from shadowrelay.pipeline.dsn import promotion_header
from shadowrelay.smtp.data import trace_header

NOW = datetime(2026, 11, 26, tzinfo=UTC)
HERE, THERE = ServerName("mx1.example"), ServerName("mx2.example")
THIS, OTHER = MessageId("00000000-5955-7c57-9fb0-0774574a2d31"), MessageId("00000000-7ff5-776a-b0ef-6d9665a31123")


def received(server: ServerName, message_id: MessageId, recipients: int = 1) -> bytes:
    return trace_header(server, "ESMTP", message_id, ("client", "192.0.2.1"), [Recipient("u@a.example")] * recipients, NOW)


@pytest.mark.parametrize(
    ("header", "is_kept", "expected"),
    [
        (received(THERE, THIS), False, False),
        (received(HERE, THIS), False, False),  # received here, lost with the disk, and back by two takeovers
        (received(HERE, THIS, recipients=2), False, False),
        (received(THERE, THIS) + received(HERE, OTHER), False, True),
        (received(THERE, THIS) + promotion_header(THERE, HERE, OTHER, NOW), False, True),
        (received(HERE, OTHER), True, False),  # it came here, and was relayed by TRACK
        (received(HERE, OTHER) * 2, True, True),
    ],
)
def test_another_id_in_a_field_of_this_node_says_that_it_has_passed(header: bytes, is_kept: bool, expected: bool) -> None:
    assert expected is was_here_before(THIS, header, HERE, is_kept=is_kept)
