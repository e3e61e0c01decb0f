"""What a peer may say, whatever it is: no claim leaves its bounds, and none is held that could never end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.ownership import (
    RANK_MAX,
    Choice,
    Claim,
    Copy,
    CopyNumber,
    DiscardEvent,
    DiscardStatus,
    Role,
    StatusAnswer,
    StatusState,
    Transition,
)
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from shadowrelay.protocol.fields import format_number, parse_number

ME = PeerDatabase(ServerName("mx1.example"), DatabaseId("11111111-1111-4111-8111-111111111111"))
PEER = PeerDatabase(ServerName("mx2.example"), DatabaseId("22222222-2222-4222-8222-222222222222"))
OTHER = PeerDatabase(ServerName("mx3.example"), DatabaseId("33333333-3333-4333-8333-333333333333"))
COUNT = 3
EVERYONE = frozenset(range(1, COUNT + 1))
ONE = MessageId("00000000-0000-4000-8000-000000000001")

ranks = st.sampled_from([0, 1, 2, RANK_MAX - 1, RANK_MAX])
numbers = st.builds(CopyNumber, ranks, ranks, st.sampled_from([ME.database, PEER.database, OTHER.database]))
ordinals = st.frozensets(st.sampled_from([1, 2, 3, 4, 5_000]))
peers = st.sampled_from([PEER, OTHER])
answers = st.builds(
    StatusAnswer,
    st.sampled_from(StatusState),
    numbers,
    st.sampled_from([ME.server, PEER.server, OTHER.server]),
    st.sampled_from([ME.database, PEER.database, OTHER.database]),
    st.booleans(),
    ordinals,
)


@st.composite
def known_claims(draw: st.DrawFn) -> Claim | None:
    """As this node may have come to have it: within its bounds, and not done unless it is over."""
    kind = draw(st.sampled_from(["none", "primary", "shadow", "delivered", "released"]))
    if kind == "none":
        return None
    done = draw(st.frozensets(st.sampled_from([1, 2, 3]), max_size=COUNT - 1))
    if kind == "primary":
        number = CopyNumber(draw(st.sampled_from([1, 2, RANK_MAX])), draw(ranks), ME.database)
        copies = draw(st.sampled_from([(), (Copy(PEER.server, PEER.database, Choice.CHOSEN),), (Copy(PEER.server, PEER.database),)]))
        return Claim(Role.PRIMARY, number, COUNT, done, copies=copies)
    number = CopyNumber(draw(st.sampled_from([1, 2, RANK_MAX - 1])), draw(st.sampled_from([0, 1, RANK_MAX - 1])), PEER.database)
    if kind == "shadow":
        return Claim(Role.SHADOW, number, COUNT, done, PEER.server, PEER.database, handed=draw(st.booleans()))
    return Claim(Role(kind), number, COUNT, EVERYONE if kind == "delivered" else done)


def check(transition: Transition) -> Claim | None:
    """The bounds."""
    after = transition.after
    if after is not None:
        assert after.done <= EVERYONE
        assert after.number == parse_number(format_number(after.number))
        if after.role in (Role.PRIMARY, Role.SHADOW):
            assert not after.is_done
        if after.role is Role.SHADOW:
            assert after.number.ownership < RANK_MAX or transition.before == after or transition.outcome == Outcome.YIELDED
    if transition.answer is not None and transition.answer.number is not None:
        assert transition.answer.number == parse_number(format_number(transition.answer.number))
    return after


@given(known_claims(), peers, numbers, ordinals, st.lists(st.tuples(peers, answers), max_size=4))
def test_whatever_is_offered_and_answered_is_held_within_bounds_and_ends(
    claim: Claim | None, offerer: PeerDatabase, number: CopyNumber, done: frozenset[int], said: list[tuple[PeerDatabase, StatusAnswer]]
) -> None:
    claim = check(claims.hold(claim, ME, offerer, replace(number, database=offerer.database), COUNT, done))
    for peer, answer in said:
        if claim is not None:
            claim = check(claims.answered(claim, ME, peer, answer, {PEER.server, OTHER.server}))
    if claim is not None:
        check(claims.nobody_left_to_ask(claim, ME, ()))


@given(known_claims(), peers, numbers, st.booleans())
def test_whatever_is_asked_leaves_the_claim_within_bounds(
    claim: Claim | None, asker: PeerDatabase, number: CopyNumber, in_attempt: bool
) -> None:
    check(claims.answer_question(claim, ME, asker, number, OTHER.server, in_attempt))


@given(known_claims(), peers, st.sampled_from(DiscardStatus), ordinals)
def test_whatever_is_said_leaves_the_claim_within_bounds(
    claim: Claim | None, peer: PeerDatabase, said: DiscardStatus, done: frozenset[int]
) -> None:
    check(claims.heard(claim, peer, DiscardEvent(1, ONE, said, done)))


@given(known_claims(), peers, answers, st.booleans())
def test_whatever_a_primary_hears_leaves_its_claim_within_bounds(
    claim: Claim | None, peer: PeerDatabase, answer: StatusAnswer, lease_runs: bool
) -> None:
    if claim is not None:
        check(claims.review(claim, ME, peer, answer, lease_runs))
        check(claims.choosing_again(claim, ME, peer.server))


def test_a_copy_with_nothing_left_to_deliver_is_answered_delivered_and_not_kept() -> None:
    number = CopyNumber(1, 1, PEER.database)

    fresh = claims.hold(None, ME, PEER, number, COUNT, EVERYONE)
    rest = claims.hold(
        Claim(Role.SHADOW, number, COUNT, frozenset({1}), PEER.server, PEER.database), ME, PEER, number, COUNT, frozenset({2, 3})
    )

    assert (None, Outcome.SUPERSEDED) == (fresh.after, fresh.outcome)
    assert rest.after is not None
    assert Role.DELIVERED is rest.after.role
    assert StatusAnswer(StatusState.DELIVERED, done=EVERYONE) == fresh.answer == rest.answer


def test_a_copy_whose_number_cannot_be_followed_is_refused() -> None:
    assert Outcome.REFUSED == claims.hold(None, ME, PEER, CopyNumber(RANK_MAX, 1, PEER.database), COUNT, frozenset()).outcome
    assert Outcome.STORED == claims.hold(None, ME, PEER, CopyNumber(RANK_MAX - 1, 1, PEER.database), COUNT, frozenset()).outcome


def test_a_primary_whose_placements_are_used_up_places_no_more() -> None:
    claim = Claim(Role.PRIMARY, CopyNumber(1, RANK_MAX, ME.database), COUNT, copies=(Copy(PEER.server, PEER.database),))

    with pytest.raises(IllegalTransition):
        claims.placing(claim, ME, OTHER)
    assert not claims.choosing_again(claim, ME, PEER.server).changed
