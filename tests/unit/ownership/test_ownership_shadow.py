"""What happens to a claim on the shadow server, and what a node answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId, MessageId, ServerName
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
    StatusQuestion,
    StatusState,
    Transition,
)
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import Outcome, PeerDatabase
from tests.unit.ownership.parties import ME, ONE, TWO

NUMBER = CopyNumber(2, 2, ONE.database)
HIGHER = CopyNumber(2, 3, TWO.database)
LOWER = CopyNumber(1, 9, TWO.database)
ALL = frozenset({ONE.server, TWO.server})
HELD = Claim(Role.SHADOW, NUMBER, 2, primary=ONE.server, database=ONE.database)
HANDED = replace(HELD, handed=True)
ASKED = replace(HELD, asked=frozenset({ONE.server}))
OWNER = PeerDatabase(ME.server, NUMBER.database)
OWN = Claim(Role.PRIMARY, NUMBER, 2)


def event(what: DiscardStatus, *ordinals: int) -> DiscardEvent:
    return DiscardEvent(1, MessageId("m"), what, frozenset(ordinals))


@pytest.mark.parametrize(
    "before",
    [None, replace(HELD, role=Role.RELEASED), replace(HELD, number=CopyNumber(2, 1, ONE.database))],
    ids=["unknown", "released", "older"],
)
def test_a_copy_is_stored_unless_something_higher_is_known(before: Claim | None) -> None:
    transition = claims.hold(before, ME, ONE, NUMBER, 2, frozenset())

    assert (HELD, Outcome.STORED) == (transition.after, transition.outcome)


def test_a_stored_copy_keeps_what_was_done_and_who_must_acknowledge() -> None:
    waiting = (Copy(TWO.server, TWO.database, Choice.DISMISSED),)
    before = replace(HELD, role=Role.RELEASED, done=frozenset({1}), copies=waiting)

    assert replace(HELD, done=frozenset({1}), copies=waiting) == claims.hold(before, ME, ONE, NUMBER, 2, frozenset()).after


def test_who_offers_a_lower_copy_to_a_primary_is_listed_because_it_will_yield() -> None:
    transition = claims.hold(OWN, ME, ONE, NUMBER, 2, frozenset())
    listed = replace(OWN, copies=(*OWN.copies, Copy(ONE.server, ONE.database)))

    assert (listed, Outcome.SUPERSEDED, claims.status_of(OWN)) == (transition.after, transition.outcome, transition.answer)


def test_who_offers_a_higher_copy_to_a_primary_is_not_listed() -> None:
    assert OWN == claims.hold(OWN, ME, ONE, replace(NUMBER, ownership=OWN.number.ownership + 1), 2, frozenset()).after


@pytest.mark.parametrize("before", [replace(OWN, role=Role.DELIVERED), replace(HELD, number=HIGHER), HELD])
def test_a_superseded_copy_is_answered_like_a_question(before: Claim) -> None:
    transition = claims.hold(before, ME, ONE, NUMBER, 2, frozenset())

    assert (before, Outcome.SUPERSEDED, claims.status_of(before)) == (transition.after, transition.outcome, transition.answer)


@pytest.mark.parametrize(
    ("before", "heard", "after"),
    [
        (None, event(DiscardStatus.DELIVERED), None),
        (HELD, event(DiscardStatus.DELIVERED, 1), replace(HELD, done=frozenset({1}))),
        (HELD, event(DiscardStatus.DELIVERED), replace(HELD, role=Role.DELIVERED, done=frozenset({1, 2}))),
        (replace(HELD, role=Role.RELEASED), event(DiscardStatus.DELIVERED), None),
        (HELD, event(DiscardStatus.RELEASED), replace(HELD, role=Role.RELEASED)),
        (replace(HELD, number=HIGHER), event(DiscardStatus.RELEASED), None),
        (replace(HELD, primary=TWO.server), event(DiscardStatus.RELEASED), None),
        (OWN, event(DiscardStatus.RELEASED), None),
        (ASKED, event(DiscardStatus.YOURS), HANDED),
        (HANDED, event(DiscardStatus.YOURS), None),
        (replace(HELD, number=HIGHER), event(DiscardStatus.YOURS), None),
        (OWN, event(DiscardStatus.PROMOTED), None),
        (HELD, event(DiscardStatus.PROMOTED), None),
    ],
)
def test_a_notification_is_obeyed_once_and_only_by_whom_it_concerns(before: Claim | None, heard: DiscardEvent, after: Claim | None) -> None:
    transition = claims.heard(before, ONE, heard)

    assert (after or before) == transition.after
    assert not claims.heard(transition.after, ONE, heard).changed


UNKNOWN = StatusAnswer(StatusState.UNKNOWN)
GIVEN_UP = replace(HELD, role=Role.RELEASED)
DELIVERED = replace(HELD, role=Role.DELIVERED, done=frozenset({1, 2}))
NEWER = replace(HELD, number=replace(NUMBER, placement=3))
YIELDED = replace(HELD, number=LOWER)


@pytest.mark.parametrize(
    ("before", "answer", "from_sender", "after"),
    [
        pytest.param(HELD, UNKNOWN, True, GIVEN_UP, id="never accepted, or finished"),
        pytest.param(HELD, UNKNOWN, False, HANDED, id="lost by a crash, or in an older copy of the database"),
        pytest.param(ASKED, UNKNOWN, True, GIVEN_UP, id="never accepted, heard in a round"),
        pytest.param(HELD, StatusAnswer(StatusState.PRIMARY, CopyNumber(1, 1, ONE.database)), True, HELD, id="an accept is running"),
        pytest.param(HELD, StatusAnswer(StatusState.SHADOW, HIGHER, TWO.server, TWO.database), True, HELD, id="its primary is another one"),
        pytest.param(HELD, StatusAnswer(StatusState.RELEASED, NUMBER), False, GIVEN_UP, id="released"),
        pytest.param(HELD, StatusAnswer(StatusState.DELIVERED), False, DELIVERED, id="delivered"),
        pytest.param(NEWER, UNKNOWN, True, NEWER, id="stored again since the question: released"),
        pytest.param(NEWER, UNKNOWN, False, NEWER, id="stored again since the question: handed over"),
        pytest.param(NEWER, StatusAnswer(StatusState.DELIVERED), True, replace(DELIVERED, number=NEWER.number), id="delivered for ever"),
        pytest.param(YIELDED, UNKNOWN, True, YIELDED, id="yielded since the question"),
        pytest.param(replace(OWN, number=HIGHER), UNKNOWN, True, replace(OWN, number=HIGHER), id="promoted since the question"),
        pytest.param(None, UNKNOWN, True, None, id="gone since the question"),
    ],
)
def test_what_a_live_primary_answers_about_the_copy_held_for_it(
    before: Claim | None, answer: StatusAnswer, from_sender: bool, after: Claim | None
) -> None:
    question = StatusQuestion(MessageId("m"), NUMBER)

    assert after == claims.reconciled(before, ME, ONE, question, answer, from_sender=from_sender).after


def test_a_copy_that_yielded_to_its_primary_ends_when_that_one_says_that_it_was_released() -> None:
    """Its notification is not believed, because it may be older than the copy; its answer is of the present."""
    notification = event(DiscardStatus.RELEASED)
    question, answer = StatusQuestion(MessageId("m"), LOWER), StatusAnswer(StatusState.RELEASED, NUMBER)

    assert not claims.heard(YIELDED, ONE, notification).changed
    assert replace(YIELDED, role=Role.RELEASED) == claims.reconciled(YIELDED, ME, ONE, question, answer, from_sender=False).after
    assert not claims.reconciled(YIELDED, ME, TWO, question, answer, from_sender=False).changed
    assert not claims.reconciled(YIELDED, ME, ONE, replace(question, number=NUMBER), answer, from_sender=False).changed


def test_a_copy_that_yielded_to_its_primary_is_not_ended_by_what_that_one_does_not_know() -> None:
    """The primary never gave its number, so that it sent no such copy."""
    question = StatusQuestion(MessageId("m"), LOWER)

    assert not claims.reconciled(YIELDED, ME, ONE, question, UNKNOWN, from_sender=True).changed


def test_a_primary_that_hears_promoted_asks_the_speaker() -> None:
    assert Outcome.REVIEW == claims.heard(OWN, ONE, event(DiscardStatus.PROMOTED)).outcome


HANDED = replace(HELD, handed=True)
HANDED_AND_ASKED = replace(HANDED, asked=frozenset({TWO.server}))


@pytest.mark.parametrize(
    ("before", "peer", "answer", "outcome", "after"),
    [
        (HELD, TWO, StatusAnswer(StatusState.UNKNOWN), Outcome.ASKED, replace(HELD, asked=frozenset({TWO.server}))),
        (HELD, TWO, StatusAnswer(StatusState.RELEASED, HIGHER), Outcome.ASKED, replace(HELD, asked=frozenset({TWO.server}))),
        (HELD, TWO, StatusAnswer(StatusState.DELIVERED), Outcome.DONE, replace(HELD, role=Role.DELIVERED, done=frozenset({1, 2}))),
        (ASKED, ONE, StatusAnswer(StatusState.PRIMARY, NUMBER), Outcome.LIVES, HELD),
        (ASKED, TWO, StatusAnswer(StatusState.PRIMARY, LOWER), Outcome.WAIT, ASKED),
        (ASKED, TWO, StatusAnswer(StatusState.PRIMARY, HIGHER), Outcome.YIELDED, replace(HELD, primary=TWO.server, database=TWO.database)),
        (ASKED, TWO, StatusAnswer(StatusState.SHADOW, HIGHER, ONE.server, ONE.database), Outcome.WAIT, HELD),
        (HELD, TWO, StatusAnswer(StatusState.SHADOW, HIGHER, ONE.server, ONE.database), Outcome.WAIT, HELD),
        (HELD, TWO, StatusAnswer(StatusState.SHADOW, HIGHER, ME.server, ME.database, True), Outcome.WAIT, HELD),
        (ASKED, TWO, StatusAnswer(StatusState.SHADOW, HIGHER, ME.server, DatabaseId("former")), Outcome.WAIT, HELD),
        (HANDED, TWO, StatusAnswer(StatusState.SHADOW, HIGHER, ONE.server, ONE.database), Outcome.ASKED, HANDED_AND_ASKED),
        (HANDED, TWO, StatusAnswer(StatusState.SHADOW, HIGHER, ONE.server, ONE.database, True), Outcome.WAIT, HANDED),
        (HANDED, TWO, StatusAnswer(StatusState.SHADOW, HIGHER, ONE.server, DatabaseId("former")), Outcome.WAIT, HANDED),
        (
            ASKED, TWO, StatusAnswer(StatusState.SHADOW, HIGHER, ME.server, ME.database), Outcome.PROMOTED,
            Claim(Role.PRIMARY, CopyNumber(3, 0, ME.database), 2, copies=(Copy(TWO.server, TWO.database),)),  # it holds a copy for us
        ),
        (ASKED, TWO, StatusAnswer(StatusState.SHADOW, LOWER, ONE.server, ONE.database), Outcome.PROMOTED, None),
    ],
)  # fmt: skip
def test_an_answer_in_the_round_before_a_promotion(
    before: Claim, peer: PeerDatabase, answer: StatusAnswer, outcome: Outcome, after: Claim
) -> None:
    transition = claims.answered(before, ME, peer, answer, ALL)

    assert (outcome, after or Claim(Role.PRIMARY, CopyNumber(3, 0, ME.database), 2)) == (transition.outcome, transition.after)


def test_without_the_rule_wait_a_round_goes_on_after_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "asked_after_waiting", lambda claim: claim.asked)

    assert ASKED == claims.answered(ASKED, ME, TWO, StatusAnswer(StatusState.SHADOW, HIGHER, ONE.server, ONE.database), ALL).after


def test_who_is_no_shadow_server_any_more_does_not_promote() -> None:
    assert Outcome.YIELDED == claims.answered(OWN, ME, TWO, StatusAnswer(StatusState.UNKNOWN), ALL).outcome
    assert not claims.nobody_left_to_ask(OWN, ME, frozenset()).changed
    assert not claims.new_round(OWN).changed


def test_a_shadow_server_promotes_alone_when_all_in_reach_were_heard_and_tells_the_old_primary() -> None:
    waiting = (Copy(TWO.server, TWO.database, Choice.DISMISSED),)
    transition = claims.nobody_left_to_ask(replace(ASKED, copies=waiting), ME, frozenset({ONE.server}))

    assert Claim(Role.PRIMARY, CopyNumber(3, 0, ME.database), 2, copies=waiting) == transition.after
    assert (Notification(ONE.server, ONE.database, DiscardStatus.PROMOTED),) == transition.tell


def test_nobody_is_told_of_a_promotion_whose_primary_is_unknown() -> None:
    assert () == claims.nobody_left_to_ask(replace(HELD, primary=NO_SERVER), ME, frozenset()).tell


FORKS = DiscardEvent(1, MessageId("m"), DiscardStatus.FORKS, frozenset({1}), "a:25")


@pytest.mark.parametrize("claim", [HELD, HANDED, ASKED, replace(HELD, number=LOWER)], ids=["held", "handed", "asked", "yielded"])
def test_forks_are_noted_and_decide_nothing(claim: Claim) -> None:
    transition = claims.heard(claim, ONE, FORKS)

    assert (False, Outcome.FORKS) == (transition.changed, transition.outcome)


@pytest.mark.parametrize(
    ("claim", "speaker"),
    [
        (None, ONE),
        (OWN, ONE),
        (HELD, TWO),
        (HELD, PeerDatabase(ONE.server, TWO.database)),
        (replace(HELD, role=Role.DELIVERED), ONE),
        (replace(HELD, role=Role.RELEASED), ONE),
        (replace(HELD, role=Role.SET_ASIDE), ONE),
    ],
    ids=["unknown", "own", "of another server", "of another database", "delivered", "released", "set aside"],
)
def test_forks_of_anything_but_a_copy_held_for_the_speaker_are_ignored(claim: Claim | None, speaker: PeerDatabase) -> None:
    assert Transition(claim, claim) == claims.heard(claim, speaker, FORKS)


def test_a_shadow_server_does_not_promote_before_all_in_reach_were_heard() -> None:
    assert not claims.nobody_left_to_ask(ASKED, ME, ALL).changed


def test_a_primary_that_lives_ends_the_round() -> None:
    assert HELD == claims.new_round(ASKED).after


def test_an_unknown_message_has_no_round() -> None:
    with pytest.raises(IllegalTransition):
        claims.new_round(None)
    assert not claims.nobody_left_to_ask(None, ME, ALL).changed


@pytest.mark.parametrize(
    ("before", "asker", "number", "after"),
    [
        (None, ONE, NUMBER, None),
        (ASKED, ONE, NUMBER, HELD),
        (HANDED, ONE, replace(NUMBER, placement=3), replace(HELD, number=replace(NUMBER, placement=3))),
        (ASKED, ONE, replace(NUMBER, placement=0), HELD),
        (HANDED, ONE, replace(NUMBER, placement=0), HANDED),
        (HANDED, ONE, HIGHER, HELD),
        (ASKED, TWO, HIGHER, HELD),
        (HANDED, TWO, HIGHER, HANDED),
        (ASKED, TWO, LOWER, ASKED),
        (replace(HELD, role=Role.DELIVERED), ONE, NUMBER, replace(HELD, role=Role.DELIVERED)),
    ],
)
def test_what_a_question_does_to_the_claim_of_a_shadow_server(
    before: Claim | None, asker: PeerDatabase, number: CopyNumber, after: Claim | None
) -> None:
    transition = claims.answer_question(before, OWNER, asker, number, NO_SERVER, False)

    assert (after, claims.status_of(after)) == (transition.after, transition.answer)


def test_a_higher_question_ends_a_primary_between_two_attempts() -> None:
    before = replace(OWN, copies=(Copy(TWO.server, TWO.database), Copy(ONE.server, ONE.database, Choice.CHOSEN)))
    ended = claims.answer_question(before, OWNER, TWO, HIGHER, NO_SERVER, False)
    running = claims.answer_question(before, OWNER, TWO, HIGHER, NO_SERVER, True)
    left = (Copy(ONE.server, ONE.database),)

    below = replace(NUMBER, placement=0)

    assert replace(HELD, number=below, primary=TWO.server, database=TWO.database, copies=left) == ended.after
    assert (Notification(ONE.server, ONE.database, DiscardStatus.PROMOTED),) == ended.tell
    assert (before, ()) == (running.after, running.tell)


def test_a_primary_ended_by_anothers_shadow_server_shadows_that_primary() -> None:
    after = claims.answer_question(OWN, OWNER, TWO, replace(HIGHER, database=DatabaseId("dx")), ServerName("x"), False).after

    assert after is not None
    assert (ServerName("x"), DatabaseId("dx")) == (after.primary, after.database)


@pytest.mark.parametrize(
    ("listed", "after"),
    [
        ((), Choice.LISTED),
        ((Copy(TWO.server, TWO.database, Choice.CHOSEN),), Choice.CHOSEN),
        ((Copy(TWO.server, NO_DATABASE),), None),
        ((Copy(TWO.server, TWO.database, Choice.DISMISSED),), Choice.RECALLED),
        ((Copy(TWO.server, TWO.database, Choice.RECALLED),), Choice.RECALLED),
        ((Copy(TWO.server, DatabaseId("old"), Choice.DISMISSED),), Choice.LISTED),
    ],
)
def test_who_asks_with_a_lower_number_may_hold_a_copy_and_is_listed(listed: tuple[Copy, ...], after: Choice | None) -> None:
    transition = claims.answer_question(replace(OWN, copies=listed), OWNER, TWO, LOWER, NO_SERVER, False)
    copies = listed if after is None else (Copy(TWO.server, TWO.database, after),)

    assert replace(OWN, copies=copies) == transition.after


@pytest.mark.parametrize(
    ("claim", "answer"),
    [
        (None, StatusAnswer(StatusState.UNKNOWN)),
        (OWN, StatusAnswer(StatusState.PRIMARY, NUMBER)),
        (replace(OWN, role=Role.SET_ASIDE), StatusAnswer(StatusState.PRIMARY, NUMBER)),
        (replace(OWN, role=Role.DELIVERED), StatusAnswer(StatusState.DELIVERED)),
        (replace(OWN, role=Role.RELEASED), StatusAnswer(StatusState.RELEASED, NUMBER)),
        (HELD, StatusAnswer(StatusState.SHADOW, NUMBER, ONE.server, ONE.database)),
        (ASKED, StatusAnswer(StatusState.SHADOW, NUMBER, ONE.server, ONE.database, True)),
        (HANDED, StatusAnswer(StatusState.SHADOW, NUMBER, ONE.server, ONE.database, True)),
    ],
)
def test_what_a_node_says_of_a_message(claim: Claim | None, answer: StatusAnswer) -> None:
    assert answer == claims.status_of(claim)


# properties
parties = st.sampled_from([ONE, TWO])
numbers = st.builds(CopyNumber, st.integers(1, 3), st.integers(0, 3), st.sampled_from([ME.database, ONE.database, TWO.database]))
ordinals = st.frozensets(st.integers(1, 2))
entries = st.builds(lambda party, choice: Copy(party.server, party.database, choice), parties, st.sampled_from([*Choice]))
lists = st.lists(entries, unique_by=lambda copy: copy.server, max_size=2).filter(
    lambda copies: sum(copy.choice in (Choice.CHOSEN, Choice.HANDED_OVER) for copy in copies) < 2
)
mine = st.builds(
    lambda number, done, copies: Claim(Role.PRIMARY, replace(number, database=ME.database), 3, done, copies=tuple(copies)),
    numbers, ordinals, lists,
)  # fmt: skip
held = st.builds(
    lambda number, done, party, asked, handed: Claim(Role.SHADOW, number, 3, done, party.server, party.database, asked, handed),
    numbers, ordinals, parties, st.frozensets(st.sampled_from(sorted(ALL))), st.booleans(),
)  # fmt: skip
answers = st.one_of(
    st.just(StatusAnswer(StatusState.UNKNOWN)),
    st.builds(lambda done: StatusAnswer(StatusState.DELIVERED, done=done), ordinals),
    st.builds(lambda number, done: StatusAnswer(StatusState.PRIMARY, number, done=done), numbers, ordinals),
    st.builds(
        lambda number, party: StatusAnswer(StatusState.SHADOW, number, party.server, party.database),
        numbers,
        st.sampled_from([ME, ONE, TWO]),
    ),
)
events = st.builds(lambda what, done: DiscardEvent(1, MessageId("m"), what, done), st.sampled_from([*DiscardStatus]), ordinals)


@st.composite
def transitions(draw: st.DrawFn) -> Transition:
    """Any event on any claim."""
    party, answer, number = draw(parties), draw(answers), draw(numbers)
    claim = draw(st.one_of(mine, held))
    moves = [
        lambda: claims.answer_question(claim, ME, party, number, NO_SERVER, draw(st.booleans())),
        lambda: claims.heard(claim, party, draw(events)),
        lambda: claims.hold(claim, ME, party, number, 3, draw(ordinals)),
        lambda: claims.recorded(claim, draw(ordinals)),
        lambda: claims.review(claim, ME, party, answer, draw(st.booleans())),
        lambda: claims.answered(claim, ME, party, answer, ALL),
        lambda: claims.placed(claim, number, party),
        lambda: claims.choosing_again(claim, ME, party.server),
    ]
    return draw(st.sampled_from(moves))()


@given(transitions())
def test_what_is_done_stays_done(transition: Transition) -> None:
    assert transition.before is not None
    assert transition.after is not None
    assert transition.before.done <= transition.after.done


@given(transitions())
def test_a_number_falls_only_by_becoming_a_shadow_message(transition: Transition) -> None:
    assert transition.before is not None
    assert transition.after is not None
    becomes_shadow = transition.before.is_primary and transition.after.role is Role.SHADOW

    assert transition.before.number <= transition.after.number or becomes_shadow


@given(transitions())
def test_who_leaves_a_list_was_told_or_holds_nothing_or_is_the_one_yielded_to(transition: Transition) -> None:
    before, after = transition.before, transition.after
    assert before is not None
    assert after is not None
    gone = {copy.server for copy in before.copies} - {copy.server for copy in after.copies}
    told = {notification.server for notification in transition.tell}

    untold_max = {Outcome.DROPPED: 1, Outcome.YIELDED: 1}.get(Outcome(transition.outcome), 0)

    assert len(gone - told) <= untold_max


@pytest.mark.parametrize("database", [ME.database, DatabaseId("former")])
@pytest.mark.parametrize("held", [HELD, YIELDED])
def test_a_primary_that_holds_the_message_for_its_shadow_server_has_it_take_over(held: Claim, database: DatabaseId) -> None:
    """Each would hold it for the other, and nobody deliver it; for its former database, if an older copy of its disk was put back."""
    for_me = StatusAnswer(StatusState.SHADOW, CopyNumber(1, 0, ONE.database), ME.server, database)
    question = StatusQuestion(MessageId("m"), held.number)

    for from_sender in (True, False):
        transition = claims.reconciled(held, ME, ONE, question, for_me, from_sender=from_sender)
        assert (Outcome.HANDED, replace(held, handed=True)) == (transition.outcome, transition.after)


# two copies with one number
TWIN = StatusAnswer(StatusState.SHADOW, NUMBER, ONE.server, ONE.database)
FIRST, LAST = (PeerDatabase(ServerName(name), DatabaseId("dd")) for name in ("a", "z"))


@pytest.mark.parametrize(("other", "outcome"), [(FIRST, Outcome.PROMOTED), (LAST, Outcome.WAIT)])
def test_of_two_servers_with_one_number_the_one_whose_name_sorts_last_promotes(other: PeerDatabase, outcome: Outcome) -> None:
    assert outcome == claims.answered(HELD, ME, other, TWIN, (other.server,)).outcome


@pytest.mark.parametrize(("asker", "is_asked_again"), [(FIRST, False), (LAST, True)])
def test_the_question_of_a_twin_that_goes_first_begins_the_round_again(asker: PeerDatabase, is_asked_again: bool) -> None:
    after = claims.answer_question(ASKED, ME, asker, NUMBER, ONE.server, in_attempt=False).after

    assert after is not None
    assert is_asked_again is (after.asked == frozenset())


# a copy that is held because this node yielded
LEFT = replace(HELD, number=CopyNumber(1, 0, ME.database))
ABOUT_IT = StatusQuestion(MessageId("m"), LEFT.number)


@pytest.mark.parametrize(
    ("answer", "is_taken_over"),
    [
        (StatusAnswer(StatusState.UNKNOWN), True),
        (StatusAnswer(StatusState.SHADOW, CopyNumber(1, 0, DatabaseId("a")), ME.server, ME.database), True),
        (StatusAnswer(StatusState.SHADOW, CopyNumber(1, 1, DatabaseId("a")), ME.server, ME.database), False),
    ],
    ids=["unknown", "held for us, lower", "held for us, higher"],
)
def test_a_copy_that_yielded_is_taken_over_when_its_primary_on_an_older_disk_does_not_claim_it(
    answer: StatusAnswer, is_taken_over: bool
) -> None:
    after = claims.reconciled(LEFT, ME, ONE, ABOUT_IT, answer, from_sender=False).after

    assert after is not None
    assert is_taken_over is after.handed
