"""The table of events in the head of `shadowrelay.ownership`: every cell is tried with many claims."""

import inspect
from collections.abc import Callable, Iterator

import pytest

import shadowrelay.ownership
from shadowrelay.model.fate import Shared
from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import Ordinals
from shadowrelay.model.ownership import (
    Choice,
    Claim,
    Copy,
    CopyNumber,
    DiscardEvent,
    DiscardStatus,
    Role,
    StatusAnswer,
    StatusQuestion,
    StatusState,
    Transition,
)
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims
from shadowrelay.ownership.rules import PeerDatabase

ME, OWNER, OTHER = (PeerDatabase(ServerName(f"mx{number}"), DatabaseId(str(number))) for number in range(3))
STATES = ("unknown", "primary", "set aside", "handed over", "shadow", "unreadable", "delivered", "released")
LETTERS = {"P": "primary", "A": "set aside", "H": "handed over", "S": "shadow", "U": "unreadable", "D": "delivered", "R": "released"}
REASONS = {"late", "over", "other", "asked"}
ROLES = {
    "primary": Role.PRIMARY,
    "set aside": Role.SET_ASIDE,
    "handed over": Role.HANDED_OVER,
    "shadow": Role.SHADOW,
    "unreadable": Role.SET_ASIDE,
    "delivered": Role.DELIVERED,
    "released": Role.RELEASED,
}
NOBODY: Ordinals = frozenset()
DONE = (NOBODY, frozenset({1}), frozenset({1, 2}))
NUMBERS = tuple(CopyNumber(*number) for number in ((1, 0, "1"), (1, 1, "0"), (1, 2, "1"), (2, 1, "1"), (3, 1, "2"), (9, 1, "0")))
PARTIES = (OWNER, OTHER)
ANSWERS = tuple(
    StatusAnswer(state, number, ServerName(server), DatabaseId(database), done=done)
    for state in StatusState
    for number in (None, *NUMBERS)
    for server in ("", ME.server, OTHER.server)
    for database in ("", ME.database)
    for done in DONE[:2]
)
Event = Callable[[Claim | None], Iterator[Callable[[], Transition]]]


def table() -> dict[tuple[str, str], str]:
    """(event, state) -> cell, as the document says."""
    lines = [line for line in (shadowrelay.ownership.__doc__ or "").splitlines() if line.startswith("| `")]
    cells = {}
    for line in lines:
        event, *row = (cell.strip().replace("`", "") for cell in line.strip("|").split("|"))
        cells |= {(event, state): cell for state, cell in zip(STATES, row, strict=True)}
    return cells


def claims_as(state: str) -> Iterator[Claim | None]:
    if state == "unknown":
        yield None
        return
    for number in (CopyNumber(1, 1, ME.database), CopyNumber(2, 1, OWNER.database)):
        listed = [(party, database) for party in (OWNER, OTHER) for database in (DatabaseId(""), party.database)]
        lists = ((), *((Copy(party.server, database, choice),) for choice in Choice for party, database in listed))
        for copies in lists:
            for done in DONE[2:] if state == "delivered" else DONE[:2] if state in ("primary", "set aside", "handed over") else DONE:
                if state not in ("shadow", "unreadable"):
                    yield Claim(ROLES[state], number, 2, done, copies=copies)
                    continue
                for asked in (frozenset[ServerName](), frozenset({OTHER.server})):
                    for handed in (False, True):
                        yield Claim(ROLES[state], number, 2, done, OWNER.server, OWNER.database, asked, handed, copies)


def heard(status: DiscardStatus) -> Event:
    def calls(claim: Claim | None) -> Iterator[Callable[[], Transition]]:
        for party in PARTIES:
            for ordinals in (NOBODY, frozenset({2})):
                yield lambda party=party, ordinals=ordinals: claims.heard(claim, party, DiscardEvent(1, MessageId("m"), status, ordinals))

    return calls


EVENTS: dict[str, Event] = {
    "placing": lambda claim: (lambda party=party: claims.placing(claim, ME, party) for party in PARTIES),
    "placed": lambda claim: (
        lambda party=party, number=number: claims.placed(claim, number, party) for party in PARTIES for number in NUMBERS
    ),
    "released_acknowledged": lambda claim: (
        lambda party=party, runs=runs: claims.released_acknowledged(claim, party, runs) for party in PARTIES for runs in (True, False)
    ),
    "no_longer_chosen": lambda claim: (lambda party=party: claims.no_longer_chosen(claim, party.server) for party in PARTIES),
    "fate_shared": lambda claim: (lambda party=party: claims.fate_shared(claim, party.server, Shared(is_own=True)) for party in PARTIES),
    "choosing_again": lambda claim: (lambda party=party: claims.choosing_again(claim, ME, party.server) for party in PARTIES),
    "client_refused": lambda claim: iter((lambda: claims.client_refused(claim),)),
    "copies_now_wanted": lambda claim: (
        lambda copies=copies: claims.copies_now_wanted(None if claim is None else replace(claim, wanted=0), copies) for copies in (1, 2)
    ),
    "handing_over": lambda claim: iter((lambda: claims.handing_over(claim),)),
    "handed_over_by_drain": lambda claim: iter((lambda: claims.handed_over_by_drain(claim),)),
    "taken_back": lambda claim: iter((lambda: claims.taken_back(claim),)),
    "recorded": lambda claim: (lambda done=done: claims.recorded(claim, done) for done in DONE),
    "review": lambda claim: (
        lambda party=party, answer=answer, runs=runs: claims.review(claim, ME, party, answer, runs)
        for party in PARTIES
        for answer in ANSWERS
        for runs in (True, False)
    ),
    "nobody_claims_more": lambda claim: (lambda party=party: claims.nobody_claims_more(claim, party.server) for party in PARTIES),
    "claimed_again": lambda claim: iter((lambda: claims.claimed_again(claim, ME),)),
    "answer_question": lambda claim: (
        lambda party=party, number=number, runs=runs: claims.answer_question(claim, ME, party, number, OWNER.server, runs)
        for party in PARTIES
        for number in NUMBERS
        for runs in (True, False)
    ),
    "hold": lambda claim: (
        lambda party=party, number=number, done=done: claims.hold(claim, ME, party, number, 2, done)
        for party in PARTIES
        for number in NUMBERS
        for done in DONE
    ),
    "relayed_again": lambda claim: (lambda party=party: claims.relayed_again(claim, ME, party) for party in PARTIES),
    "heard delivered": heard(DiscardStatus.DELIVERED),
    "heard released": heard(DiscardStatus.RELEASED),
    "heard yours": heard(DiscardStatus.YOURS),
    "heard promoted": heard(DiscardStatus.PROMOTED),
    "heard forks": heard(DiscardStatus.FORKS),
    "reconciled": lambda claim: (
        lambda party=party, number=number, answer=answer, is_sender=is_sender: claims.reconciled(
            claim, ME, party, StatusQuestion(MessageId("m"), number), answer, from_sender=is_sender
        )
        for party in PARTIES
        for number in NUMBERS[:2] + NUMBERS[3:4]
        for answer in ANSWERS[::3]
        for is_sender in (True, False)
    ),
    "followed": lambda claim: (
        lambda party=party, answer=answer: claims.followed(claim, party, answer) for party in PARTIES for answer in ANSWERS
    ),
    "met": lambda claim: (lambda party=party, answer=answer: claims.met(claim, party, answer) for party in PARTIES for answer in ANSWERS),
    "answered": lambda claim: (
        lambda party=party, answer=answer, reachable=reachable: claims.answered(claim, ME, party, answer, reachable)
        for party in PARTIES
        for answer in ANSWERS
        for reachable in ((OWNER.server,), (OWNER.server, OTHER.server))
    ),
    "nobody_left_to_ask": lambda claim: (
        lambda reachable=reachable: claims.nobody_left_to_ask(claim, ME, reachable) for reachable in ((), (OTHER.server,), (OWNER.server,))
    ),
    "new_round": lambda claim: iter((lambda: claims.new_round(claim),)),
    "expired": lambda claim: iter((lambda: claims.expired(claim),)),
    "copy_given_up": lambda claim: iter((lambda: claims.copy_given_up(claim),)),
    "unreadable_removed": lambda claim: iter((lambda: claims.unreadable_removed(claim),)),
}


def state_of(claim: Claim | None) -> str:
    if claim is None:
        return "unknown"
    if claim.role is Role.SET_ASIDE:
        return "set aside" if claim.is_primary else "unreadable"
    return next(state for state, role in ROLES.items() if role is claim.role)


@pytest.mark.parametrize(("event", "state"), list(table()))
def test_an_event_does_to_a_claim_what_its_cell_says(event: str, state: str) -> None:
    after: set[str] = set()
    raised: set[bool] = set()
    for claim in claims_as(state):
        for call in EVENTS[event](claim):
            try:
                transition = call()
            except IllegalTransition:
                raised.add(True)
                continue
            raised.add(False)
            if transition.changed:
                after.add(state_of(transition.after))
    cell = table()[event, state]

    if cell == "raises":
        assert ({True}, set()) == (raised, after)
    elif cell in REASONS:
        assert ({False}, set()) == (raised, after)
    else:
        assert {LETTERS[letter] for letter in cell.split()} == after


def test_the_table_has_every_event_and_state() -> None:
    assert {(event, state) for event in EVENTS for state in STATES} == set(table())


def test_every_event_stands_in_the_table() -> None:
    """An event takes the claim as it may be, and returns a transition."""
    found = set()
    for name, function in vars(claims).items():
        if inspect.isfunction(function) and function.__module__ == claims.__name__ and not name.startswith("_"):
            first, *_ = inspect.signature(function).parameters.values()
            if (first.annotation, inspect.signature(function).return_annotation) == (Claim | None, Transition):
                found.add(name)

    assert found == {event.split()[0] for event in EVENTS}
