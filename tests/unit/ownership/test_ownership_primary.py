"""What happens to a claim on the primary server."""

import pytest

from shadowrelay.model.ids import NO_DATABASE, DatabaseId
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import Choice, Claim, Copy, CopyNumber, DiscardStatus, Notification, Role, Transition
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome
from tests.unit.ownership.parties import ME, ONE, TWO, entry

NUMBER = CopyNumber(1, 2, ME.database)


def claim(*copies: Copy, role: Role = Role.PRIMARY) -> Claim:
    return Claim(role, NUMBER, 2, copies=copies)


def test_a_first_claim_names_the_server_that_is_sent_the_copy() -> None:
    assert Claim(Role.PRIMARY, CopyNumber(1, 1, ME.database), 2, copies=(entry(ONE),)) == claims.first_claim(ME, 2, (ONE,))


def test_a_first_claim_without_a_server_becomes_by_placing_what_it_is_with_one() -> None:
    assert claims.first_claim(ME, 2, (ONE,)) == claims.placing(claims.first_claim(ME, 2), ME, ONE).after


@pytest.mark.parametrize(
    ("listed", "lease_runs", "may"),
    [
        (None, False, True),
        (entry(ONE), True, True),
        (entry(ONE), False, False),
        (replace(entry(ONE), database=DatabaseId("old")), True, False),
        (replace(entry(ONE), database=NO_DATABASE), True, True),
        (entry(ONE, Choice.DISMISSED), True, False),
        (entry(ONE, Choice.RECALLED), True, False),
    ],
)
def test_a_listed_server_gets_another_copy_only_under_its_lease(listed: Copy | None, lease_runs: bool, may: bool) -> None:
    assert may == claims.may_place_on(claim(*([listed] if listed else [])), ONE, lease_runs)


def test_placing_raises_the_number_and_nobody_is_chosen_any_more() -> None:
    after = claims.placing(claim(entry(ONE, Choice.CHOSEN)), ME, TWO).after

    assert replace(claim(entry(ONE), entry(TWO)), number=CopyNumber(1, 3, ME.database)) == after


@pytest.mark.parametrize("choice", [Choice.DISMISSED, Choice.RECALLED])
def test_nothing_is_placed_where_a_released_is_under_way(choice: Choice) -> None:
    with pytest.raises(IllegalTransition):
        claims.placing(claim(entry(ONE, choice)), ME, ONE)


@pytest.mark.parametrize("role", [Role.SHADOW, Role.DELIVERED, Role.RELEASED, Role.SET_ASIDE])
def test_only_a_primary_places_or_refuses(role: Role) -> None:
    with pytest.raises(IllegalTransition):
        claims.placing(claim(role=role), ME, ONE)
    with pytest.raises(IllegalTransition):
        claims.client_refused(claim(role=role))


def test_an_event_of_an_unknown_message_is_illegal() -> None:
    with pytest.raises(IllegalTransition):
        claims.placed(None, NUMBER, ONE)


def test_a_server_that_was_sent_nothing_goes_off_the_list() -> None:
    assert claim(entry(TWO)) == claims.not_sent(claim(entry(ONE), entry(TWO)), (ONE.server,))
    assert claim(entry(ONE)) == claims.not_sent(claim(entry(ONE)), ())


def test_the_confirmed_server_is_chosen_and_the_others_stay_listed_untold() -> None:
    before = claim(entry(ONE, Choice.CHOSEN), entry(TWO))
    transition = claims.placed(before, NUMBER, TWO)

    assert (claim(entry(TWO, Choice.CHOSEN), entry(ONE)), (), Outcome.CHOSEN) == (transition.after, transition.tell, transition.outcome)


def test_a_server_with_a_released_under_way_stays_dismissed_when_another_is_chosen() -> None:
    before = claim(entry(ONE, Choice.DISMISSED), entry(TWO))

    assert claim(entry(TWO, Choice.CHOSEN), entry(ONE, Choice.DISMISSED)) == claims.placed(before, NUMBER, TWO).after


def test_late_news_of_an_older_number_chooses_nobody_but_shows_the_database() -> None:
    before = claim(replace(entry(ONE), database=NO_DATABASE))

    assert claim(entry(ONE)) == claims.placed(before, replace(NUMBER, placement=1), ONE).after


@pytest.mark.parametrize(
    "before",
    [claim(), claim(entry(ONE), role=Role.RELEASED), claim(entry(ONE, Choice.DISMISSED)), claim(entry(ONE, Choice.RECALLED))],
    ids=["off the list", "no primary", "dismissed", "recalled"],
)
def test_a_confirmation_that_comes_too_late_changes_nothing(before: Claim) -> None:
    assert not claims.placed(before, NUMBER, ONE).changed


@pytest.mark.parametrize(
    ("before", "lease_runs", "after"),
    [
        (claim(entry(ONE, Choice.DISMISSED)), True, claim()),
        (claim(entry(ONE, Choice.DISMISSED)), False, claim(entry(ONE))),
        (claim(entry(ONE, Choice.RECALLED)), True, claim(entry(ONE))),
        (claim(entry(ONE, Choice.DISMISSED), role=Role.SHADOW), False, claim(role=Role.SHADOW)),
        (claim(entry(ONE)), True, claim(entry(ONE))),
        (claim(replace(entry(ONE, Choice.DISMISSED), database=DatabaseId("old"))), True, None),
        (claim(), True, claim()),
    ],
)
def test_who_acknowledged_released_leaves_the_list_if_it_cannot_have_promoted(before: Claim, lease_runs: bool, after: Claim | None) -> None:
    assert (after or before) == claims.released_acknowledged(before, ONE, lease_runs).after


@pytest.mark.parametrize(
    ("choice", "after"), [(Choice.CHOSEN, Choice.LISTED), (Choice.LISTED, Choice.LISTED), (Choice.HANDED_OVER, Choice.HANDED_OVER)]
)
def test_only_the_chosen_server_is_given_up(choice: Choice, after: Choice) -> None:
    assert claim(entry(ONE, after)) == claims.no_longer_chosen(claim(entry(ONE, choice)), ONE.server).after


def test_a_server_is_chosen_again_under_the_next_number_that_is_for_it_alone() -> None:
    transition = claims.choosing_again(claim(entry(ONE), entry(TWO, Choice.CHOSEN)), ME, ONE.server)

    assert replace(claim(entry(ONE), entry(TWO)), number=CopyNumber(1, 3, ME.database)) == transition.after
    assert Outcome.CHOOSE_AGAIN == transition.outcome


@pytest.mark.parametrize(
    "before",
    [
        claim(),
        claim(entry(ONE), role=Role.SHADOW),
        *(claim(entry(ONE, c)) for c in (Choice.DISMISSED, Choice.RECALLED)),
    ],
)
def test_nobody_else_is_chosen_again(before: Claim) -> None:
    assert not claims.choosing_again(before, ME, ONE.server).changed


@pytest.mark.parametrize(
    ("before", "placement"),
    [(claim(entry(ONE, Choice.CHOSEN)), 2), (claim(entry(ONE)), 0), (claim(), 0), (claim(role=Role.SHADOW), 2)],
    ids=["chosen", "listed", "unlisted", "own copy"],
)
def test_a_question_carries_a_placement_only_for_the_chosen_server(before: Claim, placement: int) -> None:
    assert replace(NUMBER, placement=placement) == claims.question_number(before, ONE.server)


def test_a_refused_message_is_given_up_everywhere() -> None:
    transition = claims.client_refused(claim(entry(ONE), entry(TWO, Choice.DISMISSED)))

    assert claim(entry(TWO, Choice.DISMISSED), entry(ONE, Choice.DISMISSED), role=Role.RELEASED) == transition.after
    assert (Notification(ONE.server, ONE.database, DiscardStatus.RELEASED),) == transition.tell


def test_a_hand_over_keeps_copy_and_list_and_is_said_once() -> None:
    transition = claims.handing_over(claim(entry(ONE, Choice.CHOSEN), entry(TWO)))

    assert claim(entry(ONE, Choice.HANDED_OVER), entry(TWO), role=Role.SET_ASIDE) == transition.after
    assert (Notification(ONE.server, ONE.database, DiscardStatus.YOURS),) == transition.tell
    assert not claims.handing_over(transition.after).changed
    assert not claims.handing_over(claim(entry(ONE))).changed


def test_a_hand_over_that_comes_to_nothing_is_claimed_again() -> None:
    handed = claim(entry(ONE, Choice.HANDED_OVER), role=Role.SET_ASIDE)

    assert claim() == claims.not_sent(handed, (ONE.server,))


def test_every_server_on_the_list_is_told_what_is_done_and_only_what_is_new() -> None:
    first = claims.recorded(claim(entry(ONE, Choice.CHOSEN)), frozenset({1}))
    again = claims.recorded(first.after, frozenset({1}))
    last = claims.recorded(first.after, frozenset({2}))

    assert (Notification(ONE.server, ONE.database, DiscardStatus.DELIVERED, frozenset({1})),) == first.tell
    assert not again.changed
    assert (Role.DELIVERED, ()) == (last.after and last.after.role, last.after and last.after.copies)
    assert (Notification(ONE.server, ONE.database, DiscardStatus.DELIVERED),) == last.tell


def test_who_was_reached_is_told_by_name_unless_it_is_everybody() -> None:
    chosen = claim(entry(ONE, Choice.CHOSEN))

    def told(transition: Transition) -> list[tuple[Ordinals, bool]]:
        return [(notification.ordinals, notification.is_reached) for notification in transition.tell]

    assert [(NO_ORDINALS, True)] == told(claims.recorded(chosen, frozenset({1, 2}), frozenset({1, 2})))
    assert [({1}, True), (NO_ORDINALS, False)] == told(claims.recorded(chosen, frozenset({1, 2}), frozenset({1})))
    assert [({1}, True)] == told(claims.recorded(chosen, frozenset({1}), frozenset({1})))
    assert [({1}, False)] == told(claims.recorded(chosen, frozenset({1})))
    after_failure = claims.recorded(chosen, frozenset({1})).after
    assert [({2}, True), (NO_ORDINALS, False)] == told(claims.recorded(after_failure, frozenset({2}), frozenset({2}))), "1 was not reached"


def test_what_a_node_delivered_before_it_yielded_is_kept_and_told_nobody() -> None:
    transition = claims.recorded(claim(role=Role.SHADOW), frozenset({1}))

    assert (replace(claim(role=Role.SHADOW), done=frozenset({1})), ()) == (transition.after, transition.tell)


def test_an_attempt_waits_for_every_server_without_a_lease() -> None:
    before = claim(entry(ONE, Choice.CHOSEN), entry(TWO, Choice.DISMISSED))

    assert (TWO.server,) == rules.without_lease(before, lambda copy: copy.server == ONE.server)


@pytest.mark.parametrize(
    ("listed", "after"),
    [
        (entry(ONE), entry(ONE)),
        (replace(entry(ONE), database=DatabaseId("old")), replace(entry(ONE), database=NO_DATABASE)),
        (replace(entry(ONE), database=NO_DATABASE), replace(entry(ONE), database=NO_DATABASE)),
        (replace(entry(ONE, Choice.DISMISSED), database=DatabaseId("old")), replace(entry(ONE, Choice.DISMISSED), database=NO_DATABASE)),
        (None, None),
    ],
)
def test_an_unconfirmed_copy_may_be_in_either_database(listed: Copy | None, after: Copy | None) -> None:
    others = (entry(TWO, Choice.CHOSEN),)

    assert claim(*others, *([after] if after else [])) == claims.uncertain(claim(*others, *([listed] if listed else [])), ONE)
