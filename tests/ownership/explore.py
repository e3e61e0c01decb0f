"""Breadth first through all states: the shortest trace to whatever goes wrong."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from shadowrelay.model.ownership import Role
from tests.ownership.state import OWNERS_MAX, Attempt, Budget, ClientHeard, State, first_state
from tests.ownership.steps import FAULTS, Steps

POLICIES = ("defer", "deliver")


@dataclass(slots=True)
class Finding:
    """What was found with one budget under one policy."""

    policy: str
    budget: Budget
    states_count: int = 0
    wrong: dict[str, tuple[str, ...]] = field(default_factory=dict)  # twice, lost, stuck, unowned, two owners -> the trace

    def __str__(self) -> str:
        late, crashes, disks, hands, restores, nodes, wanted, is_relayed, is_relayed_twice, unnoticed, parts, has_witness = self.budget
        world = (
            f"{self.policy}, {nodes} nodes, {wanted} copies"
            + (", relayed" if is_relayed else "")
            + (" twice" if is_relayed_twice else "")
            + (", one a witness" if has_witness else "")
        )
        faults = f"{late} late, {crashes} crashes or cuts, {disks} disks, {hands} handed over, {restores} put back"
        faults += f", {unnoticed} unnoticed" * bool(unnoticed) + f", parted {parts} times" * bool(parts)
        head = f"{world}: {faults}: {self.states_count} states"
        return "\n".join([f"{head}, {', '.join(self.wrong) or 'nothing wrong'}", *map(self.trace, self.wrong)])

    def trace(self, what: str) -> str:
        return f"  {what}:" + "".join(f"\n    {number:2} {name}" for number, name in enumerate(self.wrong[what], 1))


def explore(policy: str, budget: Budget, *, is_first_enough: bool = False, beginning: Sequence[str] = ()) -> Finding:
    """Every state that can be reached. `is_first_enough`: stop at the first that is wrong. `beginning`: names of steps
    that are taken first, where all that can happen would take minutes."""
    steps = Steps(policy, budget)
    order = [first_state(steps.events.claims, budget)]
    came: list[tuple[str, int]] = [("", -1)]
    before: list[list[int]] = [[]]
    undelivered: list[list[int]] = [[]]  # the same without the steps that begin an attempt: the next hop defers everything
    for name in beginning:
        came.append((name, len(order) - 1))
        before.append([] if name.startswith(FAULTS) else [len(order) - 1])
        undelivered.append([] if name.startswith(FAULTS) or "starts" in name else [len(order) - 1])
        order.append(dict(steps.of(order[-1]))[name])
    place = {state: here for here, state in enumerate(order)}
    first = len(beginning)
    wrong: dict[str, int] = {}
    arrived: deque[int] = deque()
    for here, state in enumerate(order):
        if here < first:
            continue
        if state.arrived:
            arrived.append(here)
        found = _wrong_at_once(steps, state)
        if found:
            wrong.setdefault(found, here)
            if is_first_enough:
                break
        if state.arrived > 1 or _is_settled(steps, state):
            continue
        for name, after in steps.of(state):
            there = place.get(after)
            if there is None:
                there = place[after] = len(order)
                order.append(after)
                came.append((name, here))
                before.append([])
                undelivered.append([])
            if not name.startswith(FAULTS):
                before[there].append(here)
                if "starts" not in name:
                    undelivered[there].append(here)
    if not (is_first_enough and wrong):
        _find_stuck(steps, order, before, arrived, wrong, first)
        if "stuck" not in wrong:
            _find_unowned(steps, order, undelivered, wrong, first)
    return Finding(policy, budget, len(order), {what: _trace(came, here) for what, here in wrong.items()})


def _wrong_at_once(steps: Steps, state: State) -> str:
    if state.arrived > 1 and not state.excused:
        return "twice"
    if state.client is ClientHeard.ACKNOWLEDGED and not state.arrived:
        facts = [steps.events.facts(claim) for claim in state.claims]
        if not any(mine.is_primary or mine.role is Role.SHADOW for mine in facts):
            return "lost"
    return ""


def _is_settled(steps: Steps, state: State) -> bool:
    """Nothing can go wrong any more, whatever happens: nothing that was promised can be lost, and another arrival is excused, or nobody
    is left who could deliver."""
    if not state.arrived and state.client not in (ClientHeard.REFUSED, ClientHeard.UNANSWERED):
        return False
    return state.excused or (state.backup is None and not any(steps.facts(state, n).is_open for n in steps.nodes))


def _find_unowned(steps: Steps, order: list[State], before: list[list[int]], wrong: dict[str, int], first: int) -> None:
    """*Somebody always owns it*, and one only: while the next hop defers an acknowledged message, and nothing more breaks, the nodes can
    come to have one primary server, in whatever order they are joined."""
    can_be_owned = {here for here, state in enumerate(order) if not state.cut and _owners_count(steps, state) == 1}
    to_go = deque(can_be_owned)
    while to_go:
        for here in before[to_go.popleft()]:
            if here not in can_be_owned:
                can_be_owned.add(here)
                to_go.append(here)
    for here, state in enumerate(order):
        is_over = state.arrived or any(steps.facts(state, n).role is Role.DELIVERED for n in steps.nodes)
        if here < first or here in can_be_owned or is_over or state.client is not ClientHeard.ACKNOWLEDGED:
            continue
        is_at_rest = all(attempt is Attempt.IDLE for attempt in state.attempt)
        if is_at_rest and max(steps.facts(state, n).ownership for n in steps.nodes) < OWNERS_MAX:
            wrong.setdefault("unowned" if _owners_count(steps, state) < 2 else "two owners", here)
            return


def _owners_count(steps: Steps, state: State) -> int:
    return sum(steps.facts(state, n).role is Role.PRIMARY for n in steps.nodes)


def _find_stuck(steps: Steps, order: list[State], before: list[list[int]], arrived: deque[int], wrong: dict[str, int], first: int) -> None:
    """An acknowledged message that cannot arrive any more, whatever happens without further faults."""
    can_arrive = set(arrived)
    while arrived:
        for here in before[arrived.popleft()]:
            if here not in can_arrive:
                can_arrive.add(here)
                arrived.append(here)
    for here, state in enumerate(order):
        if here < first or state.client is not ClientHeard.ACKNOWLEDGED or here in can_arrive or "lost" in wrong:
            continue
        if max(steps.events.facts(claim).ownership for claim in state.claims) < OWNERS_MAX:
            wrong.setdefault("stuck", here)
            return


def _trace(came: list[tuple[str, int]], here: int) -> tuple[str, ...]:
    trace = []
    while here > 0:
        name, here = came[here]
        trace.append(name)
    return tuple(reversed(trace))
