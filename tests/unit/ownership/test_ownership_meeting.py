"""What a primary learns when it asks another node."""

import pytest

from shadowrelay.model.ids import NO_DATABASE, DatabaseId, MessageId
from shadowrelay.model.ownership import (
    Choice,
    Claim,
    Copy,
    CopyNumber,
    DiscardEvent,
    DiscardStatus,
    Notification,
    Role,
    StatusAnswer,
    StatusState,
)
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from tests.unit.ownership.parties import ME, ONE, TWO, entry

NUMBER = CopyNumber(2, 2, ME.database)
HIGHER = CopyNumber(3, 0, ONE.database)
LOWER = CopyNumber(1, 5, ONE.database)
DELIVERED = StatusAnswer(StatusState.DELIVERED)
UNKNOWN = StatusAnswer(StatusState.UNKNOWN)


def claim(*copies: Copy, role: Role = Role.PRIMARY) -> Claim:
    return Claim(role, NUMBER, 1, copies=copies)


def released(party: PeerDatabase) -> Notification:
    return Notification(party.server, party.database, DiscardStatus.RELEASED)


def promoted(party: PeerDatabase) -> Notification:
    return Notification(party.server, party.database, DiscardStatus.PROMOTED)


def yours(party: PeerDatabase) -> Notification:
    return Notification(party.server, party.database, DiscardStatus.YOURS)


def holds(number: CopyNumber) -> StatusAnswer:
    return StatusAnswer(StatusState.SHADOW, number, ME.server, ME.database)


def a_primary(number: CopyNumber) -> StatusAnswer:
    return StatusAnswer(StatusState.PRIMARY, number)


def test_a_message_that_another_server_delivered_is_over_has_its_name_and_the_list_is_told() -> None:
    transition = claims.apply_answer(claim(entry(TWO)), ME, ONE, DELIVERED)

    assert transition is not None
    by_one = replace(claim(role=Role.DELIVERED), done=frozenset({1}), primary=ONE.server, database=ONE.database)
    assert by_one == transition.after
    assert (Notification(TWO.server, TWO.database, DiscardStatus.DELIVERED),) == transition.tell


def test_a_primary_yields_to_a_higher_one_goes_below_its_own_numbers_and_leaves_the_others_to_it() -> None:
    transition = claims.apply_answer(claim(entry(ONE, Choice.CHOSEN), entry(TWO)), ME, ONE, a_primary(HIGHER))
    after = Claim(Role.SHADOW, replace(NUMBER, placement=0), 1, primary=ONE.server, database=ONE.database, copies=(entry(TWO),))

    assert transition is not None
    assert (after, (promoted(TWO),), Outcome.YIELDED) == (transition.after, transition.tell, transition.outcome)


def test_the_higher_of_two_primaries_waits_for_the_lower_to_end() -> None:
    transition = claims.apply_answer(claim(), ME, ONE, a_primary(LOWER))

    assert transition is not None
    assert (Outcome.WAIT, False) == (transition.outcome, transition.changed)


def test_without_the_rule_meet_the_higher_primary_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "ends_before", lambda answer, claim: False)

    assert claims.apply_answer(claim(), ME, ONE, a_primary(LOWER)) is None


def test_a_primary_waits_until_it_meets_the_primary_of_a_higher_copy() -> None:
    answer = StatusAnswer(StatusState.SHADOW, HIGHER, TWO.server, TWO.database)
    transition = claims.apply_answer(claim(entry(ONE)), ME, ONE, answer)

    assert transition is not None
    assert (claim(entry(ONE)), (), Outcome.WAIT) == (transition.after, transition.tell, transition.outcome)


def test_a_copy_of_an_older_database_of_ours_will_promote_first() -> None:
    transition = claims.apply_answer(claim(), ME, ONE, replace(holds(LOWER), database=DatabaseId("old")))

    assert transition is not None
    assert Outcome.WAIT == transition.outcome


@pytest.mark.parametrize(
    "answer",
    [UNKNOWN, StatusAnswer(StatusState.RELEASED, HIGHER), StatusAnswer(StatusState.SHADOW, LOWER, TWO.server, TWO.database), holds(LOWER)],
)
def test_nobody_yields_to_a_lower_number_or_because_a_copy_was_released(answer: StatusAnswer) -> None:
    assert claims.apply_answer(claim(), ME, ONE, answer) is None


@pytest.mark.parametrize(
    ("choice", "lease_runs", "outcome", "kept"),
    [
        (Choice.LISTED, True, Outcome.DROPPED, False),
        (Choice.LISTED, False, Outcome.EVERYBODY, True),
        (Choice.HANDED_OVER, True, Outcome.EVERYBODY, True),
        (Choice.DISMISSED, True, Outcome.DISMISSED, True),
        (Choice.RECALLED, False, Outcome.DISMISSED, True),
    ],
)
def test_a_server_without_the_copy_leaves_the_list_only_under_its_lease(
    choice: Choice, lease_runs: bool, outcome: Outcome, kept: bool
) -> None:
    transition = claims.review(claim(entry(ONE, choice)), ME, ONE, UNKNOWN, lease_runs)

    assert (outcome, claim(entry(ONE, choice)) if kept else claim()) == (transition.outcome, transition.after)


def test_a_copy_that_is_gone_counts_no_more_while_everybody_is_asked() -> None:
    transition = claims.review(claim(entry(ONE, Choice.CHOSEN)), ME, ONE, UNKNOWN, False)

    assert (Outcome.EVERYBODY, claim(entry(ONE, Choice.LISTED))) == (transition.outcome, transition.after)


def test_a_released_to_a_database_that_is_gone_keeps_nobody_on_the_list() -> None:
    gone = replace(entry(ONE, Choice.DISMISSED), database=DatabaseId("old"))

    assert Outcome.EVERYBODY == claims.review(claim(gone), ME, ONE, UNKNOWN, False).outcome


def test_an_unlisted_server_without_a_copy_changes_nothing() -> None:
    assert not claims.review(claim(), ME, ONE, UNKNOWN, False).changed


def test_a_review_settles_what_the_other_claims() -> None:
    assert Outcome.YIELDED == claims.review(claim(entry(ONE)), ME, ONE, a_primary(HIGHER), True).outcome


def test_a_server_that_nobody_outclaims_leaves_the_list() -> None:
    assert claim(entry(TWO)) == claims.nobody_claims_more(claim(entry(ONE), entry(TWO)), ONE.server).after


def test_a_hand_over_to_a_server_that_lost_its_disk_is_claimed_again() -> None:
    before = claim(entry(ONE, Choice.HANDED_OVER), role=Role.SET_ASIDE)

    transition = claims.nobody_claims_more(before, ONE.server)

    assert (claim(entry(ONE, Choice.DISMISSED)), (released(ONE),)) == (transition.after, transition.tell)


def test_a_hand_over_goes_on_when_the_heir_asks_from_a_new_database() -> None:
    before = claim(entry(ONE, Choice.HANDED_OVER), role=Role.HANDED_OVER)
    renamed = PeerDatabase(ONE.server, TWO.database)
    asked = claims.answer_question(before, ME, renamed, LOWER, ME.server, in_attempt=False).after

    assert claim(entry(renamed, Choice.HANDED_OVER), role=Role.HANDED_OVER) == asked
    reviewed = claims.review(before, ME, renamed, holds(NUMBER), False)
    assert (asked, (yours(renamed),)) == (reviewed.after, reviewed.tell)


@pytest.mark.parametrize("role", [Role.SHADOW, Role.RELEASED, Role.DELIVERED])
def test_who_is_no_primary_any_more_learns_nothing(role: Role) -> None:
    before = claim(entry(ONE), role=role)

    assert (before, Outcome.YIELDED) == (claims.review(before, ME, ONE, UNKNOWN, False).after, Outcome.YIELDED)
    assert not claims.nobody_claims_more(before, ONE.server).changed


def test_an_unknown_message_cannot_be_reviewed() -> None:
    with pytest.raises(IllegalTransition):
        claims.review(None, ME, ONE, UNKNOWN, True)


OURS = CopyNumber(2, 1, ME.database)


@pytest.mark.parametrize(
    ("copies", "number", "outcome", "after", "tell"),
    [
        ((entry(ONE),), NUMBER, Outcome.CHOSEN, (entry(ONE, Choice.CHOSEN),), ()),
        ((entry(ONE),), OURS, Outcome.CHOOSE_AGAIN, (entry(ONE),), ()),
        ((), LOWER, Outcome.CHOOSE_AGAIN, (entry(ONE),), ()),
        ((entry(ONE, Choice.DISMISSED),), OURS, Outcome.DISMISSED, (entry(ONE, Choice.DISMISSED),), ()),
        ((entry(ONE, Choice.RECALLED),), OURS, Outcome.DISMISSED, (entry(ONE, Choice.RECALLED),), ()),
        ((entry(ONE, Choice.HANDED_OVER),), NUMBER, Outcome.HANDED, (entry(ONE, Choice.HANDED_OVER),), (yours(ONE),)),
        ((entry(ONE, Choice.HANDED_OVER),), OURS, Outcome.CHOOSE_AGAIN, (entry(ONE, Choice.HANDED_OVER),), ()),
        (
            (entry(TWO, Choice.CHOSEN), entry(ONE)),
            NUMBER,
            Outcome.DISMISSED,
            (entry(TWO, Choice.CHOSEN), entry(ONE, Choice.DISMISSED)),
            (released(ONE),),
        ),
        (
            (entry(TWO, Choice.CHOSEN), entry(ONE)),
            OURS,
            Outcome.DISMISSED,
            (entry(TWO, Choice.CHOSEN), entry(ONE, Choice.DISMISSED)),
            (released(ONE),),
        ),
        ((entry(TWO, Choice.CHOSEN), entry(ONE)), LOWER, Outcome.CHOOSE_AGAIN, (entry(TWO, Choice.CHOSEN), entry(ONE)), ()),
    ],
    ids=[
        "confirmed",
        "older number",
        "yielded to us",
        "dismissed",
        "recalled",
        "handed over",
        "handed over, older number",
        "twin",
        "not needed",
        "number not ours",
    ],
)
def test_a_primary_meets_a_server_that_holds_its_copy(
    copies: tuple[Copy, ...], number: CopyNumber, outcome: Outcome, after: tuple[Copy, ...], tell: tuple[Notification, ...]
) -> None:
    transition = claims.review(claim(*copies), ME, ONE, holds(number), False)

    assert (outcome, claim(*after), tell) == (transition.outcome, transition.after, transition.tell)


def test_an_heir_that_promotes_is_not_told_again() -> None:
    before = claim(entry(ONE, Choice.HANDED_OVER), role=Role.SET_ASIDE)

    assert () == claims.review(before, ME, ONE, replace(holds(NUMBER), promoting=True), False).tell


def test_an_heir_with_an_older_number_is_given_the_next_one_and_then_told_again() -> None:
    before = claim(entry(ONE, Choice.HANDED_OVER), role=Role.HANDED_OVER)

    raised = claims.choosing_again(before, ME, ONE.server).after

    assert replace(before, number=CopyNumber(2, 3, ME.database)) == raised
    assert (yours(ONE),) == claims.review(raised, ME, ONE, holds(CopyNumber(2, 3, ME.database)), False).tell


def test_a_message_handed_over_chooses_nobody_else() -> None:
    before = claim(entry(TWO, Choice.HANDED_OVER), entry(ONE), role=Role.SET_ASIDE)

    assert (Outcome.NOTHING, before) == (claims.review(before, ME, ONE, holds(LOWER), False).outcome or "", before)


def test_a_holder_that_knows_all_recipients_done_ends_the_claim() -> None:
    assert Outcome.DONE == claims.review(claim(entry(ONE)), ME, ONE, replace(holds(OURS), done=frozenset({1})), True).outcome


# who was unheard
AWAY = Copy(ONE.server, NO_DATABASE, Choice.UNHEARD)


def test_who_gave_no_answer_is_listed_at_a_promotion_but_for_the_old_primary_and_who_is_listed_already() -> None:
    held = Claim(Role.SHADOW, LOWER, 1, primary=TWO.server, database=TWO.database, copies=(entry(ME),))
    unheard = {ONE.server, TWO.server, ME.server}

    for after in (
        claims.nobody_left_to_ask(held, ME, (), 1, unheard).after,
        claims.answered(held, ME, TWO, UNKNOWN, {TWO.server}, 1, unheard).after,
    ):
        assert after is not None
        assert (Role.PRIMARY, (entry(ME), AWAY)) == (after.role, after.copies)


def test_who_gave_no_answer_is_listed_where_nobody_else_claims_more() -> None:
    assert claim(AWAY) == claims.nobody_claims_more(claim(entry(TWO)), TWO.server, {ONE.server}).after


@pytest.mark.parametrize(
    ("answer", "after"),
    [
        pytest.param(UNKNOWN, claim(), id="it holds nothing"),
        pytest.param(holds(LOWER), claim(entry(ONE)), id="it has yielded, and holds the copy"),
        pytest.param(StatusAnswer(StatusState.SHADOW, LOWER, TWO.server, TWO.database), claim(), id="it holds a lower copy of another"),
        pytest.param(a_primary(LOWER), claim(AWAY), id="it claims less, and is about to yield"),
    ],
)
def test_who_was_unheard_is_listed_no_longer_when_it_answers_or_as_any_other(answer: StatusAnswer, after: Claim) -> None:
    assert after == claims.review(claim(AWAY), ME, ONE, answer, False).after


def test_who_was_unheard_gets_no_copy_before_it_was_asked() -> None:
    assert not claims.may_place_on(claim(AWAY), ONE, lease_runs=True)


def test_who_was_unheard_stays_so_on_the_list_of_a_dsn_and_of_who_yields() -> None:
    dsn = claims.generated_claim(claim(AWAY), Claim(Role.PRIMARY, CopyNumber(1, 0, ME.database), 1))
    yielded = claims.apply_answer(replace(claim(AWAY), wanted=2), ME, TWO, a_primary(HIGHER))

    assert yielded is not None
    assert yielded.after is not None
    assert ((AWAY,), (AWAY,)) == (dsn.copies, yielded.after.copies)


def test_who_was_unheard_and_asks_under_a_lower_number_is_listed_as_any_other() -> None:
    assert claim(entry(ONE)) == claims.list_asker(claim(AWAY), ONE)


# two primary servers, and who holds a copy for one of them
HELD_FOR_TWO = Claim(Role.SHADOW, NUMBER, 1, primary=TWO.server, database=TWO.database)


def test_a_shadow_server_that_hears_of_another_primary_asks_it() -> None:
    promoted = DiscardEvent(1, MessageId("m"), DiscardStatus.PROMOTED)

    assert Outcome.MEET == claims.heard(HELD_FOR_TWO, ONE, promoted).outcome
    assert Outcome.FOLLOW == claims.heard(HELD_FOR_TWO, TWO, promoted).outcome


def test_it_tells_its_own_primary_of_a_higher_one() -> None:
    transition = claims.met(HELD_FOR_TWO, ONE, a_primary(HIGHER))

    assert transition.after is not None
    assert (ONE.server, Outcome.YIELDED) == (transition.after.primary, transition.outcome)
    assert (Notification(TWO.server, TWO.database, DiscardStatus.PROMOTED),) == transition.tell


def test_it_stays_where_it_is_if_the_other_primary_is_lower() -> None:
    """That one ended by the question."""
    assert not claims.met(HELD_FOR_TWO, ONE, a_primary(LOWER)).changed


# what was forgotten
@pytest.mark.parametrize(
    ("copy", "is_expired", "lease_runs", "answer", "outcome"),
    [
        pytest.param(entry(ONE, Choice.CHOSEN), True, False, UNKNOWN, Outcome.FORGOTTEN, id="forgotten"),
        pytest.param(entry(ONE, Choice.HANDED_OVER), True, False, UNKNOWN, Outcome.FORGOTTEN, id="forgotten after a hand-over"),
        pytest.param(entry(ONE, Choice.CHOSEN), False, False, UNKNOWN, Outcome.EVERYBODY, id="not expired: in doubt, deliver"),
        pytest.param(entry(ONE, Choice.CHOSEN), True, True, UNKNOWN, Outcome.DROPPED, id="the lease runs"),
        pytest.param(entry(ONE), True, False, UNKNOWN, Outcome.EVERYBODY, id="it may never have had the copy"),
        pytest.param(
            replace(entry(ONE, Choice.CHOSEN), database=DatabaseId("former")),
            True,
            False,
            UNKNOWN,
            Outcome.EVERYBODY,
            id="its disk is another",
        ),
        pytest.param(
            entry(ONE, Choice.CHOSEN), True, False, StatusAnswer(StatusState.RELEASED, LOWER), Outcome.EVERYBODY, id="its copy expired"
        ),
    ],
)
def test_unknown_ends_an_expired_message_only_if_the_copy_was_stored_there(
    copy: Copy, is_expired: bool, lease_runs: bool, answer: StatusAnswer, outcome: Outcome
) -> None:
    transition = claims.review(claim(copy), ME, ONE, answer, lease_runs, is_expired)

    assert transition.after is not None
    assert (outcome, outcome == Outcome.FORGOTTEN) == (transition.outcome, transition.after.role is Role.DELIVERED)


def test_an_expired_copy_is_released_and_its_primary_told() -> None:
    transition = claims.expired(HELD_FOR_TWO)

    assert transition.after is not None
    assert (Role.RELEASED, (released(TWO),)) == (transition.after.role, transition.tell)
