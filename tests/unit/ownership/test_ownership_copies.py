"""Several copies of a message: who is chosen, under which number, who is told what, and who takes over first."""

import pytest

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
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
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from tests.unit.ownership.parties import ME, ONE, TWO, entry

THREE = PeerDatabase(ServerName("three"), DatabaseId("dd"))
LISTED, CHOSEN, HANDED = Choice.LISTED, Choice.CHOSEN, Choice.HANDED_OVER


def number(placement: int, ownership: int = 1, party: PeerDatabase = ME) -> CopyNumber:
    return CopyNumber(ownership, placement, party.database)


def claim(*copies: Copy, last: int = 3, role: Role = Role.PRIMARY, wanted: int = 2) -> Claim:
    return Claim(role, number(last), 1, copies=copies, wanted=wanted)


def held(placement: int, owner: PeerDatabase = ME) -> StatusAnswer:
    return StatusAnswer(StatusState.SHADOW, number(placement, party=owner), owner.server, owner.database)


def chosen(claim: Claim | None) -> set[tuple[str, int]]:
    assert claim is not None
    return {(copy.server, copy.placement) for copy in claim.copies if copy.choice is CHOSEN}


# choosing
def test_the_first_servers_have_numbers_of_their_own_and_each_confirmation_chooses_one() -> None:
    first = claims.first_claim(ME, 1, (ONE, TWO), 2)
    one = claims.placed(first, number(1), ONE).after
    assert one is not None
    both = claims.placed(one, number(2), TWO).after

    assert (number(2), 2, 1, 0) == (first.number, first.missing_count, one.missing_count, both.missing_count if both else None)
    assert {("one", 1), ("two", 2)} == chosen(both)


def test_a_late_confirmation_of_a_number_that_was_followed_by_another_for_that_server_chooses_nobody() -> None:
    assert set() == chosen(claims.placed(claim(entry(ONE, LISTED, 3)), number(1), ONE).after)


def test_a_copy_that_is_placed_for_a_lost_one_leaves_the_others_chosen() -> None:
    placing = claims.placing(claim(entry(ONE, CHOSEN, 1), entry(TWO, LISTED, 2)), ME, THREE).after
    assert placing is not None

    assert {("one", 1)} == chosen(placing)
    assert {("one", 1), ("three", 4)} == chosen(claims.placed(placing, number(4), THREE).after)


def test_of_more_than_wanted_the_one_chosen_longest_ago_is_chosen_no_more() -> None:
    full = claim(entry(ONE, CHOSEN, 1), entry(TWO, CHOSEN, 3))

    assert {("two", 3)} == chosen(claims.placing(full, ME, THREE).after)
    assert {("two", 3), ("three", 2)} == chosen(
        claims.placed(replace(full, copies=(*full.copies, entry(THREE, LISTED, 2))), number(2), THREE).after
    )


def test_a_server_that_holds_an_older_copy_is_chosen_again_beside_the_others() -> None:
    raised = claims.choosing_again(claim(entry(ONE, CHOSEN, 3), entry(TWO, LISTED, 1)), ME, TWO.server).after
    assert raised is not None

    assert (number(4), {("one", 3)}) == (raised.number, chosen(raised))
    assert {("one", 3), ("two", 4)} == chosen(claims.review(raised, ME, TWO, held(4), lease_runs=True).after)


def test_a_question_has_the_number_of_the_copy_that_it_is_about() -> None:
    both = claim(entry(ONE, CHOSEN, 1), entry(TWO, CHOSEN, 3), entry(THREE, LISTED, 2))

    assert [1, 3, 0] == [claims.question_number(both, party.server).placement for party in (ONE, TWO, THREE)]


def test_nothing_is_placed_on_a_server_that_is_chosen() -> None:
    assert not claims.may_place_on(claim(entry(ONE, CHOSEN, 1)), ONE, lease_runs=True)


# releasing
def test_a_server_is_released_only_when_as_many_others_as_wanted_are_chosen() -> None:
    few = claim(entry(ONE, CHOSEN, 3), entry(THREE, LISTED, 1))
    enough = claim(entry(ONE, CHOSEN, 3), entry(TWO, CHOSEN, 2), entry(THREE, LISTED, 1))

    assert (Outcome.CHOSEN, Outcome.DISMISSED) == tuple(
        claims.review(each, ME, THREE, held(1), lease_runs=True).outcome for each in (few, enough)
    )


def test_a_primary_that_yields_releases_nobody_and_says_that_it_did() -> None:
    before = claim(entry(ONE, CHOSEN, 1), entry(TWO, CHOSEN, 3))
    higher = StatusAnswer(StatusState.PRIMARY, number(0, 2, TWO))
    met = claims.review(before, ME, TWO, higher, lease_runs=False)
    asked = claims.answer_question(before, ME, TWO, number(0, 2, TWO), TWO.server, in_attempt=False)

    for transition in (met, asked):
        assert transition.after is not None
        assert (Role.SHADOW, TWO.server, (entry(ONE),)) == (transition.after.role, transition.after.primary, transition.after.copies)
        assert (Notification(ONE.server, ONE.database, DiscardStatus.PROMOTED),) == transition.tell


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_primary_meets_who_took_over_before_its_copy_goes(wanted: int) -> None:
    before = claim(entry(ONE, CHOSEN, 3 if wanted > 1 else 0), wanted=wanted)
    of_another = StatusAnswer(StatusState.SHADOW, number(1, 2, TWO), TWO.server, TWO.database)

    met = claims.review(before, ME, ONE, of_another, lease_runs=False)

    assert (before, (), Outcome.WAIT) == (met.after, met.tell, met.outcome)


# following
def test_a_shadow_server_whose_primary_yielded_becomes_that_of_the_other_one() -> None:
    mine = Claim(Role.SHADOW, number(1, party=ONE), 1, primary=ONE.server, database=ONE.database)
    told = claims.heard(mine, ONE, DiscardEvent(1, MessageId("m"), DiscardStatus.PROMOTED))
    answer = StatusAnswer(StatusState.SHADOW, number(0, party=ONE), TWO.server, TWO.database)

    assert (mine, Outcome.FOLLOW) == (told.after, told.outcome)
    assert TWO.server == rules.yielded_to(answer, ONE, ME)
    after = claims.followed(mine, TWO, StatusAnswer(StatusState.PRIMARY, number(0, 2, TWO))).after
    assert after is not None
    assert (Role.SHADOW, TWO.server, TWO.database, mine.number) == (after.role, after.primary, after.database, after.number)


@pytest.mark.parametrize(
    "answer",
    [
        StatusAnswer(StatusState.UNKNOWN),
        StatusAnswer(StatusState.PRIMARY, number(1, 1, TWO)),
        StatusAnswer(StatusState.SHADOW, number(1, 2, THREE), THREE.server, THREE.database),
    ],
)
def test_a_shadow_server_follows_nobody_who_has_not_a_higher_claim(answer: StatusAnswer) -> None:
    mine = Claim(Role.SHADOW, number(3, party=THREE), 1, primary=ONE.server, database=ONE.database)

    assert mine == claims.followed(mine, TWO, answer).after


def test_a_shadow_server_that_follows_learns_that_the_message_is_done() -> None:
    mine = Claim(Role.SHADOW, number(1, party=ONE), 1, primary=ONE.server, database=ONE.database)

    after = claims.followed(mine, TWO, StatusAnswer(StatusState.DELIVERED, done=frozenset({1}))).after

    assert after is not None
    assert Role.DELIVERED is after.role


@pytest.mark.parametrize("to", [ONE, ME])
def test_a_primary_that_yielded_to_nobody_else_is_not_followed(to: PeerDatabase) -> None:
    answer = StatusAnswer(StatusState.SHADOW, number(0, party=ONE), to.server, to.database)

    assert "" == rules.yielded_to(answer, ONE, ME)


def test_a_new_primary_wants_as_many_copies_as_its_own_settings_say() -> None:
    mine = Claim(Role.SHADOW, number(1, party=ONE), 1, primary=ONE.server, database=ONE.database)

    after = claims.nobody_left_to_ask(mine, ME, (), 3).after

    assert after is not None
    assert (Role.PRIMARY, 3, 3) == (after.role, after.wanted, after.missing_count)


# handing over
def test_a_message_is_handed_to_the_chosen_server_with_the_highest_number() -> None:
    handed = claims.handed_over_by_drain(claim(entry(ONE, CHOSEN, 1), entry(TWO, CHOSEN, 3)))

    assert (Notification(TWO.server, TWO.database, DiscardStatus.YOURS),) == handed.tell
    assert handed.after is not None
    assert TWO.server == (handed.after.chosen() or entry(ONE)).server


def test_nothing_is_handed_over_while_a_server_that_is_not_chosen_may_hold_a_higher_number() -> None:
    late = claim(entry(ONE, CHOSEN, 1), entry(TWO, LISTED, 3))
    aside = replace(late, role=Role.SET_ASIDE)

    assert (None, (), ()) == (rules.heir(late), claims.handed_over_by_drain(late).tell, claims.handing_over(aside).tell)
    assert Outcome.CHOOSE_AGAIN == claims.review(aside, ME, ONE, held(1), lease_runs=True).outcome


def test_what_was_handed_over_stays_so_while_another_server_is_chosen() -> None:
    handed = claim(entry(TWO, HANDED, 3), entry(ONE, LISTED, 1), role=Role.HANDED_OVER)

    after = claims.review(handed, ME, ONE, held(1), lease_runs=True).after

    assert after is not None
    assert {HANDED, CHOSEN} == {copy.choice for copy in after.copies}


@pytest.mark.parametrize("role", [Role.HANDED_OVER, Role.SET_ASIDE])
def test_what_was_handed_over_gives_nobody_else_a_higher_number(role: Role) -> None:
    """The server that was sent `yours` would wait for it, and it for the primary server, which lives."""
    handed = claim(entry(TWO, HANDED, 3), role=role)
    yielded = StatusAnswer(StatusState.SHADOW, CopyNumber(1, 0, THREE.database), ME.server, ME.database)

    after = claims.review(handed, ME, ONE, yielded, lease_runs=True)

    assert (Outcome.NOTHING, {HANDED, LISTED}) == (after.outcome, {copy.choice for copy in (after.after or handed).copies})
