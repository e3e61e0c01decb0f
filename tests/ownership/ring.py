"""The ownership ring: every interleaving of one message on three or four nodes, by the functions of ownership themselves.

python -m tests.ownership.ring              all budgets, all rules on
python -m tests.ownership.ring RULE …       those rules switched off: the shortest traces to what then goes wrong
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from shadowrelay.model.ownership import Choice, Claim, CopyNumber, Role, StatusAnswer, StatusState, Transition
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims, rules
from tests.ownership import events
from tests.ownership.explore import POLICIES, explore
from tests.ownership.state import Budget


class Rule(NamedTuple):
    """A rule of docs/design.md 6.2, what stands in for its function when it is off, and the smallest budget that shows it."""

    text: str
    module: Any
    function: str
    off: Callable[..., Any]
    shown_by: Budget
    goes_wrong: str
    beginning: tuple[str, ...] = ()  # of the trace, where the whole budget would take minutes
    hidden_by: tuple[str, ...] = ()  # rules that cure, or do by mistake, something else without this one, and are switched off with it


def _same_number(claim: Claim, me: Any) -> CopyNumber:
    return CopyNumber(claim.number.ownership, claim.number.placement or 1, me.database)


def _releases_anybody_listed(claim: Claim, server: Any) -> bool:
    entry = claim.copy_on(server)
    return entry is None or entry.choice is Choice.LISTED


def _ends_when_it_hears_of_another(
    claim: Claim, me: Any, peer: Any, answer: StatusAnswer, apply_answer: Callable[..., Transition | None] = claims.apply_answer
) -> Transition | None:
    transition = apply_answer(claim, me, peer, answer)
    has_heard = answer.state is StatusState.SHADOW and answer.primary != me.server
    if transition is None or transition.outcome != rules.Outcome.WAIT or not has_heard:
        return transition
    copies, tell = rules.release_copies(claim)
    return Transition(claim, replace(claim, role=Role.RELEASED, copies=copies), tell, outcome=rules.Outcome.YIELDED)


ACCEPTED = ("0: places on 1", "0: places on 2", "250 to the client")  # with two copies

RULES = {
    "lease": Rule(
        "a primary starts an attempt only while its lease runs on every server that may hold a copy",
        rules, "without_lease", lambda claim, runs: (), Budget(crashes=1), "twice",
    ),
    "dot": Rule(
        "the final dot is not sent unless the lease outlasts its reply",
        rules, "may_end_data", lambda left, allowance: True, Budget(crashes=1), "twice",
    ),
    "fate": Rule(
        "a copy on a server that may be lost together with this one does not count",
        rules, "is_apart", lambda claim, server, shared: True, Budget(disks=1, has_witness=True), "lost",
    ),
    "higher": Rule(
        "a claim yields only to a higher number",
        rules, "outranks", lambda number, other: True, Budget(crashes=1), "stuck", (), ("lost numbers",),
    ),
    "placement": Rule(
        "each placement or choice gets a higher number than the one before",
        rules, "number_after", _same_number, Budget(late=1, disks=1), "twice", (), ("twins",),
    ),
    "ask": Rule(
        "before it promotes, a shadow server asks every node that it can reach",
        rules, "may_promote", lambda claim, reachable: True, Budget(late=1, crashes=1), "twice",
    ),
    "again": Rule(
        "a question from the holder of a higher number makes a lower one ask everybody again, and a lower primary end",
        rules, "begins_again", lambda question, claim: False, Budget(crashes=1, disks=1), "twice",
    ),
    "wait": Rule(
        "who has waited for a higher number asks everybody again",
        rules, "asked_after_waiting", lambda claim: claim.asked, Budget(disks=2, nodes=4, wanted=2), "twice", ACCEPTED,
    ),
    "list": Rule(
        "a server that was sent a copy stays on the primary's list until it has heard `released`",
        rules, "listed_before_sending", lambda claim, copy: claim.copies, Budget(crashes=1), "twice",
    ),
    "keep": Rule(
        "nobody is told `released` before another copy is confirmed",
        rules, "may_release", _releases_anybody_listed, Budget(late=1, crashes=1, disks=1), "lost",
    ),
    "leave": Rule(
        "who yields leaves its list to the server with the higher claim, and releases nobody",
        rules, "left_to", lambda claim, primary: rules.release_copies(rules.without_server(claim, primary)),
        Budget(crashes=1, disks=1, has_witness=True), "lost",
        ("0: places on 1", "cut (0, 1)", "lease of 0 on 1 ends", "1: asks 2, promotes"),
    ),
    "no longer handed": Rule(
        "who was sent `yours`, and then hears that the speaker has yielded, is no longer handed the message",
        rules, "no_longer_handed", lambda claim: claim, Budget(crashes=1, disks=1, hands=1), "twice",
        ("crash 0: after it placed on 1 and said 250, before it recorded the choice", "1: asks 2, promotes", "restart 0", "0: places on 2",
         "hands: 0 says yours to 2", "0: reviews 1: yielded", "destroy 1"),
    ),
    "heard of another": Rule(
        "who hears from a shadow server that another one took the message over keeps its claim until it meets that one",
        claims, "apply_answer", _ends_when_it_hears_of_another, Budget(crashes=1, disks=2), "lost",
        ("0: places on 1", "250 to the client", "crash 0", "1: asks 2, promotes", "1: places on 2", "destroy 1"),
    ),
    "everybody": Rule(
        "where a lease has ended and the server no longer holds the copy, everybody is asked",
        rules, "needs_everybody", lambda lease_runs: False, Budget(crashes=1, disks=1, hands=1), "twice",
        ("0: places on 1", "250 to the client", "hands: 0 says yours to 1", "1: hears yours from 0", "1: asks 2, promotes",
         "1: places on 2", "destroy 1"),
    ),
    "meet": Rule(
        "of two primaries that meet, the one with the lower number ends, between two attempts; the other waits for that",
        rules, "ends_before", lambda answer, claim: False, Budget(crashes=1, restores=1), "twice",
        ("0: places on 1", "250 to the client", "back up 0", "put back 0"),
    ),
    "twins": Rule(
        "of two copies with one number, that of the server whose name sorts last goes first",
        rules, "twin_goes_first", lambda number, server, claim, me: False, Budget(crashes=1, unnoticed=1), "twice",
        ("back up 0", "0: places on 1", "250 to the client", "put back 0, unnoticed", "0: places on 2", "crash 0"),
    ),
    "second twin": Rule(
        "a primary keeps the copy that it chose, and does not choose another one with the same number",
        rules, "is_second_twin", lambda claim, server: False, Budget(hands=1, unnoticed=1), "stuck",
        ("back up 0", "0: places on 1", "250 to the client", "put back 0, unnoticed", "0: places on 2"),
    ),
    "lost numbers": Rule(
        "a number of its own database that it does not know shows a node that its database is an older copy",
        rules, "shows_lost_number", lambda claim, me, number: False, Budget(late=1, unnoticed=1), "lost",
    ),
    "unheard": Rule(
        "whoever goes on without the answer of a node asks that node when it answers again",
        rules, "with_unheard", lambda claim, unheard: claim,
        Budget(crashes=1, disks=1, wanted=0, is_relayed=True, is_relayed_twice=True), "two owners",
    ),
    "said again": Rule(
        "who was sent `yours`, holds the copy and does not know of the hand-over is sent it again",
        rules, "handed_again", lambda entry: (), Budget(crashes=1, hands=1), "stuck",
        ("0: places on 1", "250 to the client", "hands: 0 says yours to 1", "1: hears yours from 0",
         "crash 1", "restart 1"),
    ),
    "in a circle": Rule(
        "who has the higher copy, and whose primary server holds the message for a former database of it, takes it over",
        rules, "waits_for_server", rules.holds_for, Budget(late=1, crashes=1, restores=1), "stuck",
        ("late: 0: places on 1, not heard",
         "crash 0: after it placed on 2 and said 250, before it recorded the choice", "back up 2", "2: asks 1, promotes", "restart 0",
         "0: reviews 2: yielded", "1: follows 0 to 2: yielded", "put back 2"),
    ),
    "start": Rule(
        "a hand-over counts in the process that heard it",
        events, "after_start", lambda claim: claim, Budget(hands=1, restores=1), "twice",
        ("0: places on 1", "250 to the client", "hands: 0 says yours to 1", "1: hears yours from 0", "back up 1"),
    ),
    "holders": Rule(
        "of two servers that hold a message for each other, the one with the higher copy takes it over",
        rules, "takes_from_holder", lambda claim, me, peer, answer: True, Budget(hands=1, unnoticed=1), "twice",
        ("0: places on 1", "250 to the client", "hands: 0 says yours to 1", "1: hears yours from 0", "back up 1"),
    ),
}  # fmt: skip

SMALL = (
    Budget(1, 0, 1),
    Budget(0, 0, 1, 1),
    Budget(1, 1, 0),
    Budget(0, 1, 1),
    Budget(1, 0, 0, 0, 1),
    Budget(0, 0, 1, 0, 1),
    Budget(late=1, unnoticed=1),
    Budget(parts=1),
)
LARGE = (
    Budget(0, 1, 0, 1),
    Budget(2, 1, 0),
    Budget(0, 2, 0),
    Budget(1, 1, 1),
    Budget(0, 1, 1, 1),
    Budget(0, 1, 0, 0, 1),
    Budget(0, 0, 0, 1, 1),
    Budget(1, 0, 1, 0, 1),
    Budget(1, 1, 0, 0, 1),
    Budget(crashes=1, unnoticed=1),
    Budget(hands=1, unnoticed=1),
    Budget(late=1, parts=1),
)


class Copies(NamedTuple):
    """Four nodes: a budget, and what happens first, where the whole would take too long."""

    budget: Budget
    beginning: tuple[str, ...] = ()


def _two(*faults: int, beginning: tuple[str, ...] = ()) -> Copies:
    return Copies(Budget(*faults)._replace(nodes=4, wanted=2), beginning)


SMALL_TWO = (
    _two(1, 0, 1),
    _two(0, 0, 0, 1, beginning=ACCEPTED),
    _two(0, 0, 0, 0, 1, beginning=ACCEPTED),
    _two(0, 0, 2, beginning=ACCEPTED),
)
LARGE_TWO = (
    _two(0, 0, 2),
    _two(0, 1, 0),
    _two(1, 0, 0, 1, beginning=ACCEPTED),
    _two(1, 0, 0, 0, 1, beginning=ACCEPTED),
    _two(0, 0, 1, 1, beginning=ACCEPTED),
    _two(0, 0, 1, 0, 1, beginning=ACCEPTED),
    _two(0, 1, 1, beginning=(*ACCEPTED, "crash 0")),
)


def _relayed(*budgets: tuple[int, ...], is_twice: bool = False) -> tuple[Budget, ...]:
    """Node 1 relays to node 0 by TRACK, and keeps the shadow; node 0 makes no copies, or one when it has lost node 1."""
    world = {"is_relayed": True, "is_relayed_twice": is_twice}
    return tuple(Budget(*faults)._replace(wanted=wanted, **world) for wanted in (0, 1) for faults in budgets)


SMALL_RELAYED = (
    *_relayed((1, 0, 1), (0, 0, 1, 1), (1, 1, 0), (0, 1, 1), (1, 0, 0, 1)),
    *_relayed((0, 1, 0), (1, 0, 1), is_twice=True),
)
LARGE_RELAYED = (
    *_relayed((0, 1, 0, 1), (0, 2, 0), (1, 1, 1)),
    *_relayed((1, 1, 0), (0, 1, 1), (0, 0, 1, 1), is_twice=True),
)
# The reply to the first offer is lost. Node 0 has two other hubs, which may have the message when it is offered again.
LARGE_HUBS = (Copies(Budget(1, 1, 1)._replace(nodes=4, is_relayed=True), ("late: 1: relays to 0, not heard",)),)


def _witnessed(*budgets: tuple[int, ...]) -> tuple[Budget, ...]:
    """Two gateways on one machine, and a witness on another."""
    return tuple(Budget(*faults)._replace(has_witness=True) for faults in budgets)


SMALL_WITNESSED = _witnessed((0, 0, 1), (1, 0, 1), (0, 0, 0, 1), (1, 1, 0))
LARGE_WITNESSED = _witnessed((0, 0, 1, 1))
# What these rules are for: the same worlds, with these rules.
LEFT = tuple(
    Copies(RULES[name].shown_by, RULES[name].beginning) for name in ("leave", "heard of another", "no longer handed", "in a circle")
)


@contextmanager
def without(*names: str) -> Iterator[None]:
    """These rules are off."""
    with ExitStack() as stack:
        off = {*names, *(hiding for name in names for hiding in RULES[name].hidden_by)}
        for rule in map(RULES.__getitem__, sorted(off)):
            stack.enter_context(patch.object(rule.module, rule.function, rule.off))
        yield


def main(names: list[str]) -> int:
    """Exit status 0 if nothing goes wrong."""
    if set(names) - RULES.keys():
        print("rules:", *(f"  {name}: {rule.text}" for name, rule in RULES.items()), sep="\n")
        return 2
    fine = True
    with without(*names):
        ones = SMALL + SMALL_RELAYED + SMALL_WITNESSED + LARGE + LARGE_RELAYED + LARGE_WITNESSED
        for budget, beginning in *map(Copies, ones), *LEFT, *SMALL_TWO, *LARGE_TWO, *LARGE_HUBS:
            for policy in POLICIES:
                finding = explore(policy, budget, is_first_enough=bool(names), beginning=beginning)
                print(finding, flush=True)
                fine = fine and not finding.wrong
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
