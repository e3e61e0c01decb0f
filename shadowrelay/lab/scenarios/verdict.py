"""Pass or fail of a scenario: the invariants hold, and what only its fault can produce was seen. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from shadowrelay.lab.scenarios.figures import FIGURES, Evidence, figures
from shadowrelay.lab.scenarios.invariants import Finding, findings
from shadowrelay.lab.scenarios.script import Expectation, Scenario


@dataclass(frozen=True, slots=True)
class Outcome:
    """One expectation and what was seen."""

    expectation: Expectation
    value: float

    @property
    def is_met(self) -> bool:
        return self.expectation.is_met(self.value)

    def line(self) -> str:
        """ "promoted_silence = 12, expected > 0: its mail is taken over …"."""
        return f"{self.expectation.figure} = {self.value:g}, expected {self.expectation.bound}: {self.expectation.why}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The whole judgement. Shapes: `figures` by name; those that are 0 and that nobody expects anything of need not be shown."""

    scenario: Scenario
    figures: Mapping[str, float]
    findings: tuple[Finding, ...]
    outcomes: tuple[Outcome, ...]
    summary: str
    never_acknowledged: int = 0

    @property
    def is_passed(self) -> bool:
        """Also false when some mail never went through: then less was tried than was promised."""
        if self.never_acknowledged:
            return False
        is_kept = all(finding.holds or self.is_excused(finding) for finding in self.findings)
        return is_kept and all(outcome.is_met for outcome in self.outcomes)

    def is_excused(self, finding: Finding) -> bool:
        return finding.invariant in self.scenario.excused

    def shown(self) -> list[tuple[str, float]]:
        """Explained figures that say something, in their order."""
        named = {outcome.expectation.figure for outcome in self.outcomes} | {"acknowledged", "arrived", "lost", "duplicates"}
        return [(FIGURES[name][0], value) for name, value in self.figures.items() if value or name in named]


def judge(scenario: Scenario, evidence: Evidence) -> Verdict:
    """Compare what was seen with what must be so."""
    counted = figures(evidence)
    never = evidence.verification.not_acknowledged
    return Verdict(
        scenario,
        counted,
        tuple(findings(evidence)),
        tuple(Outcome(each, counted[each.figure]) for each in scenario.expectations),
        evidence.verification.line() + (f", never acknowledged {never}" if never else ""),
        never,
    )
