"""Which messages go, which go alone, which are set aside; and what an administrator may do with those."""

from datetime import UTC, datetime

import pytest

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Envelope, Recipient
from shadowrelay.model.ownership import Choice, Claim, Copy, CopyNumber, Role
from shadowrelay.model.queue import Origin, StoredMessage
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims
from shadowrelay.rules import delivery
from shadowrelay.rules.delivery import DueAction

WEST = ServerName("mx1.west.example")
MINE, THEIRS = DatabaseId("d-1"), DatabaseId("d-2")
ENVELOPE = Envelope(MessageId("m"), "a@x.example", (Recipient("b@x.example"),), datetime(2026, 1, 1, tzinfo=UTC))
ASIDE = Claim(Role.SET_ASIDE, CopyNumber(1, 1, MINE), 1, copies=(Copy(WEST, THEIRS, Choice.CHOSEN),))
HANDED = replace(ASIDE, copies=(Copy(WEST, THEIRS, Choice.HANDED_OVER),))
HELD = Claim(Role.SET_ASIDE, CopyNumber(1, 1, THEIRS), 1, primary=WEST, database=THEIRS)


def stored(claim: Claim, reason: str = "", **values: object) -> StoredMessage:
    return replace(StoredMessage(7, ENVELOPE, claim, Origin.CLIENT, None, None, set_aside_reason=reason), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deaths_count", "course"),
    [(0, DueAction.GO), (1, DueAction.GO), (2, DueAction.ALONE), (3, DueAction.SET_ASIDE), (9, DueAction.SET_ASIDE)],
)
def test_a_message_goes_then_goes_alone_then_is_set_aside(deaths_count: int, course: DueAction) -> None:
    assert course is delivery.due_action(deaths_count)


@pytest.mark.parametrize(
    ("reason", "is_promoted", "is_handed_over"),
    [
        (delivery.poison_reason(3), False, True),
        (delivery.poison_reason(3), True, False),  # it has killed the server that took it over as well
        ("content is corrupt: SHA-256 differs", False, True),
        ("content is corrupt: SHA-256 differs", True, True),
        ("the outcome of an attempt could not be recorded: see the operator log", False, False),
    ],
)
def test_what_is_handed_over_goes_to_a_good_copy_or_to_one_more_server(reason: str, is_promoted: bool, is_handed_over: bool) -> None:
    assert is_handed_over is delivery.is_handed_over(reason, is_promoted=is_promoted)


def test_poison_that_came_by_track_stays_and_corrupt_content_goes_to_the_good_copy() -> None:
    reasons = (delivery.poison_reason(3), "content is corrupt: SHA-256 differs")

    assert [False, True] == [delivery.is_handed_over(reason, is_promoted=False, is_relayed=True) for reason in reasons]


@pytest.mark.parametrize(
    ("message", "release", "removal"),
    [
        (stored(ASIDE, delivery.poison_reason(3)), "", ""),
        (stored(HANDED, delivery.poison_reason(3)), f"handed over to {WEST}", f"handed over to {WEST}"),
        (stored(replace(ASIDE, role=Role.PRIMARY)), "not set aside", ""),
        (stored(ASIDE, "corrupt row: ValueError()"), "row in the queue database cannot be read", ""),
        (stored(HELD, "corrupt row: ValueError()"), f"a copy held for {WEST}", ""),
    ],
)
def test_a_command_is_refused_with_its_reason(message: StoredMessage, release: str, removal: str) -> None:
    against_release, against_removal = delivery.reason_against_release(message), delivery.reason_against_removal(message)
    assert [bool(release), bool(removal)] == [bool(against_release), bool(against_removal)]
    assert release in against_release
    assert removal in against_removal


def test_a_message_that_is_taken_back_is_primary_again_with_its_copies_and_number() -> None:
    transition = claims.taken_back(ASIDE)

    assert replace(ASIDE, role=Role.PRIMARY) == transition.after
    assert () == transition.tell


@pytest.mark.parametrize("claim", [HANDED, HELD, replace(ASIDE, role=Role.PRIMARY), replace(ASIDE, role=Role.DELIVERED, copies=())])
def test_only_what_is_set_aside_here_and_not_handed_over_is_taken_back(claim: Claim) -> None:
    assert not claims.taken_back(claim).changed


def test_a_copy_that_cannot_be_read_is_dropped_and_still_answers_released() -> None:
    transition = claims.unreadable_removed(HELD)

    assert transition.after is not None
    assert Role.RELEASED is transition.after.role
    assert not claims.unreadable_removed(ASIDE).changed
