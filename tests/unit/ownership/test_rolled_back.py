"""Rule *rolled back*: an older copy of the queue database is recognised, and its claims wait until all nodes were asked."""

from datetime import timedelta

import pytest

from shadowrelay.model.ids import NO_DATABASE, BoundaryName, DatabaseId, ServerName
from shadowrelay.model.ownership import Choice, Claim, Copy, CopyNumber, Role, StatusAnswer, StatusState
from shadowrelay.model.peers import PeerIdentity, Seen
from shadowrelay.model.queue import Beginning
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome, PeerDatabase

ME, FORMER = PeerDatabase(ServerName("me"), DatabaseId("new")), DatabaseId("former")
HOLDER = PeerDatabase(ServerName("holder"), DatabaseId("dh"))
OLDER = Claim(Role.PRIMARY, CopyNumber(1, 2, FORMER), 1, copies=(Copy(HOLDER.server, HOLDER.database, Choice.CHOSEN),))
OPENINGS = {3: Beginning(100, 90), 4: Beginning(150, 140), 5: Beginning(200, 190)}


@pytest.mark.parametrize(
    ("seen", "is_older"),
    [
        pytest.param(Seen(5, 200, 230), False, id="the present incarnation"),
        pytest.param(Seen(4, 150, 190), False, id="an earlier one, to its end"),
        pytest.param(Seen(2, 60, 90), False, id="one that is not remembered"),
        pytest.param(Seen(6, 260, 300), True, id="one that is still to come"),
        pytest.param(Seen(5, 201, 230), True, id="another one of the same number"),
        pytest.param(Seen(5, 200, 301), True, id="a position of the present one that is still to come"),
        pytest.param(Seen(4, 140, 149), True, id="another earlier one: the copy was opened more than once"),
        pytest.param(Seen(4, 150, 191), True, id="an earlier one went on for longer than this file knows"),
        pytest.param(Seen(2, 60, 91), True, id="one that is not remembered went on for longer"),
    ],
)
def test_what_a_peer_has_seen_shows_whether_this_database_is_an_older_copy(seen: Seen, is_older: bool) -> None:
    assert is_older == rules.is_older_copy(OPENINGS, 300, seen)


@pytest.mark.parametrize(
    ("incarnation", "began", "is_older"),
    [(5, 200, False), (6, 231, False), (7, 400, False), (5, 199, True), (4, 150, True), (6, 230, True), (8, 100, True)],
)
def test_a_peer_recognises_an_older_copy_by_what_it_shows(incarnation: int, began: int, is_older: bool) -> None:
    identity = PeerIdentity(ME.server, BoundaryName("b"), FORMER, incarnation, began, began, timedelta(hours=3))

    assert is_older == rules.shows_older_copy(Seen(5, 200, 230), identity)


def test_only_claims_under_another_database_are_of_an_older_copy() -> None:
    assert rules.is_of_older_copy(OLDER, ME)
    assert rules.is_of_older_copy(replace(OLDER, role=Role.SET_ASIDE), ME)
    assert not rules.is_of_older_copy(replace(OLDER, number=CopyNumber(1, 2, ME.database)), ME)
    assert not rules.is_of_older_copy(replace(OLDER, role=Role.SHADOW, primary=HOLDER.server), ME)


@pytest.mark.parametrize("number", [OLDER.number, CopyNumber(1, 1, FORMER), CopyNumber(1, 3, FORMER)])
def test_a_question_of_who_holds_the_copy_for_it_does_not_end_a_claim_of_an_older_copy(number: CopyNumber) -> None:
    """The asker may not be able to promote: its copy may be damaged."""
    after = claims.answer_question(OLDER, ME, HOLDER, number, ME.server, in_attempt=False)

    assert (OLDER, StatusAnswer(StatusState.PRIMARY, OLDER.number)) == (after.after, after.answer)


def test_a_question_of_who_got_its_copy_since_then_ends_a_claim_of_an_older_copy() -> None:
    """Whoever placed that copy may be destroyed by now: if the older claim stayed, the two would wait for each other."""
    after = claims.answer_question(OLDER, ME, HOLDER, CopyNumber(2, 1, DatabaseId("dg")), ServerName("gone"), in_attempt=False).after

    assert after is not None
    assert (Role.SHADOW, ServerName("gone"), CopyNumber(1, 0, FORMER)) == (after.role, after.primary, after.number)


@pytest.mark.parametrize("placement", [1, 2])
def test_whoever_holds_the_copy_promotes_although_the_older_copy_claims_the_message(placement: int) -> None:
    held = Claim(Role.SHADOW, OLDER.number, 1, primary=ME.server, database=FORMER)
    still_claims = StatusAnswer(StatusState.PRIMARY, CopyNumber(1, placement, FORMER))

    promoted = claims.answered(held, HOLDER, ME, still_claims, {ME.server})

    assert promoted.after is not None
    assert (Outcome.PROMOTED, CopyNumber(2, 0, HOLDER.database)) == (promoted.outcome, promoted.after.number)


def test_a_copy_from_before_the_older_one_yields_to_its_claim() -> None:
    held = Claim(Role.SHADOW, CopyNumber(1, 1, FORMER), 1, primary=ME.server, database=FORMER)

    after = claims.answered(held, HOLDER, ME, StatusAnswer(StatusState.PRIMARY, OLDER.number), {ME.server})

    assert after.after is not None
    assert (Outcome.YIELDED, ME.server, ME.database) == (after.outcome, after.after.primary, after.after.database)


def test_a_claim_that_nobody_else_has_is_claimed_again_under_the_new_database() -> None:
    after = claims.claimed_again(OLDER, ME)

    assert Outcome.CLAIMED_AGAIN == after.outcome
    assert replace(OLDER, number=CopyNumber(1, 3, ME.database), copies=(Copy(HOLDER.server, HOLDER.database),)) == after.after


@pytest.mark.parametrize("claim", [replace(OLDER, number=CopyNumber(1, 2, ME.database)), replace(OLDER, role=Role.DELIVERED)])
def test_no_other_claim_is_claimed_again(claim: Claim) -> None:
    assert not claims.claimed_again(claim, ME).changed


def test_a_copy_for_the_former_database_promotes_first() -> None:
    """It knows what happened since: the primary waits until it was taken over."""
    holds = StatusAnswer(StatusState.SHADOW, OLDER.number, ME.server, FORMER)

    assert Outcome.WAIT == claims.review(OLDER, ME, HOLDER, holds, lease_runs=False).outcome


def test_who_yields_to_a_server_that_is_about_to_promote_is_on_its_list_afterwards() -> None:
    held = Claim(Role.SHADOW, OLDER.number, 1, primary=ME.server, database=FORMER)
    yielded = StatusAnswer(StatusState.SHADOW, CopyNumber(1, 0, FORMER), HOLDER.server, HOLDER.database)

    promoted = claims.answered(held, HOLDER, ME, yielded, {ME.server})

    assert promoted.after is not None
    assert (Role.PRIMARY, (Copy(ME.server, ME.database),)) == (promoted.after.role, promoted.after.copies)
    assert NO_DATABASE != promoted.after.number.database


OWN = replace(OLDER, number=CopyNumber(1, 2, ME.database))


@pytest.mark.parametrize(
    ("claim", "number", "is_lost"),
    [
        pytest.param(OWN, CopyNumber(1, 3, ME.database), True, id="a placement that is still to come"),
        pytest.param(OWN, CopyNumber(2, 0, ME.database), True, id="a promotion that is still to come"),
        pytest.param(OWN, CopyNumber(1, 2, ME.database), False, id="the present number"),
        pytest.param(OWN, CopyNumber(1, 1, ME.database), False, id="an earlier number"),
        pytest.param(OWN, CopyNumber(1, 3, HOLDER.database), False, id="the number of another database"),
        pytest.param(replace(OWN, role=Role.SHADOW, primary=HOLDER.server), CopyNumber(1, 3, ME.database), False, id="after it yielded"),
        pytest.param(replace(OWN, role=Role.SHADOW, primary=HOLDER.server), CopyNumber(2, 1, ME.database), True, id="a promotion since"),
        pytest.param(replace(OWN, role=Role.RELEASED), CopyNumber(2, 1, ME.database), True, id="a promotion of what was released"),
        pytest.param(None, CopyNumber(1, 3, ME.database), False, id="a message that is not known"),
    ],
)
def test_a_number_that_this_database_assigned_and_does_not_know_shows_an_older_copy(
    claim: Claim | None, number: CopyNumber, is_lost: bool
) -> None:
    asked = claims.answer_question(claim, ME, HOLDER, number, ME.server, in_attempt=False)

    assert is_lost == rules.shows_lost_number(claim, ME, number)
    assert is_lost == (Outcome.OLDER_COPY == asked.outcome)
    assert not (is_lost and asked.changed)


def test_an_answer_with_such_a_number_shows_it_too() -> None:
    holds = StatusAnswer(StatusState.SHADOW, CopyNumber(1, 3, ME.database), ME.server, ME.database)
    held = replace(OWN, role=Role.SHADOW, primary=ServerName("gone"), database=DatabaseId("dg"))

    assert Outcome.OLDER_COPY == claims.review(OWN, ME, HOLDER, holds, lease_runs=False).outcome
    later = replace(holds, number=CopyNumber(2, 1, ME.database))
    assert Outcome.OLDER_COPY == claims.answered(held, ME, HOLDER, later, {HOLDER.server}).outcome
