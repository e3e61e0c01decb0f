"""Defines scenarios as plain data: steps, expectations, sources. Does not touch the lab. docs/lab.md "Scenarios".

A step is an action with its text. With `--without-fault`, steps marked `is_fault` are left out, as are steps that only wait for the fault
or end it. The scenario must then fail, because only its fault can produce the effects that it expects.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

HEARTBEAT_SECONDS = 2  # as in lab/nodes/*.toml; a test compares
SPAN_SECONDS = 20
KEPT_SECONDS = 6  # of silence, until what was relayed by TRACK is taken back
BEYOND_SPAN_SECONDS = SPAN_SECONDS + 2 * HEARTBEAT_SECONDS + 1  # until silence has led to a takeover


class Operation(Enum):
    """An action of a step. `Step.places` are nodes or sites, `Step.amount` messages or seconds. Without a place CONFIGURE changes all
    nodes."""

    SEND = "send"
    POUR = "send, and go on meanwhile"
    WAIT = "wait"
    DEFER = "defer"
    TAKE = "take"
    KILL = "kill"
    START = "start"
    WIPE = "wipe"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    CUT = "cut"
    SLOW = "slow"
    HEAL = "heal"
    FILL = "fill disk"
    FREE = "free disk"
    ROLL = "roll"
    DRAIN = "drain"
    REDIRECT = "redirect"
    BURN = "burn"
    RESUBMIT = "resubmit"
    CONFIGURE = "configure"
    SAVE = "save database"
    RESTORE = "restore old database"
    LOOK = "count what waits"


@dataclass(frozen=True, slots=True)
class Step:
    """Shapes: `text` is printed before the action. Units: `amount` is messages (SEND, POUR) or seconds (WAIT), otherwise unused;
    `rate` messages a second; `size` bytes of each. `setting` (CONFIGURE): as `disturbance.with_lines` takes it."""

    operation: Operation
    text: str
    places: tuple[str, ...] = ()
    amount: int = 0
    rate: float = 20.0
    size: int = 4096
    is_fault: bool = False
    setting: str = ""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A figure (`figures.FIGURES`) that must be more than `above`, or at most `at_most`. `why`: what it demonstrates."""

    figure: str
    why: str
    above: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        return (self.above is None or value > self.above) and (self.at_most is None or value <= self.at_most)

    @property
    def bound(self) -> str:
        """The bound as text: "> 0", "at most 3"."""
        return f"> {self.above:g}" if self.above is not None else f"at most {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One recovery scenario.

    Shapes: `story` says what will happen; `exchange` what Exchange's documents say about the same case, in our words, with `sources`
    (ids of docs/sources.md).
    """

    name: str
    title: str
    story: str
    exchange: str
    sources: tuple[str, ...]
    steps: tuple[Step, ...]
    expectations: tuple[Expectation, ...]

    def without_fault(self) -> "Scenario":
        """The scenario without its fault steps."""
        return replace(self, steps=tuple(step for step in self.steps if not step.is_fault))

    @property
    def messages_count(self) -> int:
        return sum(step.amount for step in self.steps if step.operation in (Operation.SEND, Operation.POUR))


def fault(operation: Operation, text: str, *places: str, amount: int = 0) -> Step:
    """A step that is left out with `--without-fault`."""
    return Step(operation, text, places, amount, is_fault=True)


def above(figure: str, bound: float, why: str) -> Expectation:
    return Expectation(figure, why, above=bound)


def at_most(figure: str, bound: float, why: str) -> Expectation:
    return Expectation(figure, why, at_most=bound)


def send(count: int, text: str = "", *, rate: float = 20.0, size: int = 4096) -> Step:
    """Send through the sending Postfix; returns when it has accepted everything."""
    return Step(Operation.SEND, text or f"{count} messages go to the nodes, by the sending Postfix", amount=count, rate=rate, size=size)


def pour(count: int, text: str = "", *, rate: float = 10.0, size: int = 4096) -> Step:
    """The same, in parallel with the next steps."""
    return Step(Operation.POUR, text or f"{count} messages begin to flow, {rate:g} a second", amount=count, rate=rate, size=size)


def settle(seconds: int, text: str) -> Step:
    """Wait, with or without the fault."""
    return Step(Operation.WAIT, text, amount=seconds)


def passes(seconds: int, text: str) -> Step:
    """Wait only if the fault is made."""
    return fault(Operation.WAIT, text, amount=seconds)


RECEIVERS_DEFER = Step(Operation.DEFER, "the receiving servers defer everything, so that mail is queued on the nodes")
RECEIVERS_ACCEPT = Step(Operation.TAKE, "the receiving servers accept mail again")
HEALED = fault(Operation.HEAL, "the network is healed")
REACHES_ALL_NODES = settle(3, "Postfix passes all mail to the nodes")


def by_name(scenarios: Sequence[Scenario]) -> dict[str, Scenario]:
    """Scenarios by name, as for `lab scenario NAME`. Names must be unique."""
    found = {scenario.name: scenario for scenario in scenarios}
    assert len(found) == len(scenarios)
    return found
