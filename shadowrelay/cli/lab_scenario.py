"""`shadowrelay lab scenario`: a recovery scenario with its narration, its figures and its verdict."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from shadowrelay.cli.output import print_json, print_table

if TYPE_CHECKING:
    from shadowrelay.lab.compose import Lab
    from shadowrelay.lab.scenarios.verdict import Verdict


def print_scenarios(as_json: bool) -> None:
    """What there is to play."""
    from shadowrelay.lab.scenarios.catalogue import SCENARIOS

    if as_json:
        print_json([{"name": one.name, "title": one.title, "story": one.story, "exchange": one.exchange} for one in SCENARIOS.values()])
        return
    print_table(("Scenario", "What happens"), [(one.name, one.title) for one in SCENARIOS.values()], "")


def play_scenario(lab: "Lab", name: str, *, is_fault_wanted: bool, as_json: bool) -> bool:
    """Play it and say everything. Returns whether it passed. Raises: LabError."""
    from shadowrelay.lab.scenarios.catalogue import scenario
    from shadowrelay.lab.scenarios.player import play

    chosen = scenario(name) if is_fault_wanted else scenario(name).without_fault()
    began = time.monotonic()

    def say(text: str) -> None:
        typer.echo(f"{time.monotonic() - began:5.0f} s  {text}", err=as_json)

    if not as_json:
        typer.echo(f"{chosen.title}\n\nWhat will happen: {chosen.story}")
        typer.echo("The fault is left out: this must fail.\n" if not is_fault_wanted else "")
    verdict = play(lab, chosen, say=say)
    if as_json:
        print_json(verdict_as_json(verdict))
    else:
        print_verdict(verdict)
    return verdict.is_passed


def print_verdict(verdict: "Verdict") -> None:
    """Figures, what was expected, invariants, what Exchange's documents say, and pass or fail."""
    chosen = verdict.scenario
    typer.echo("\nFigures")
    print_table(("#", "What"), [(f"{value:g}", text) for text, value in verdict.shown()], "")
    typer.echo("\nOnly the fault can produce")
    for outcome in verdict.outcomes:
        typer.echo(f"  {_mark(outcome.is_met)}  {outcome.line()}")
    typer.echo("\nInvariants")
    for finding in verdict.findings:
        is_excused = verdict.is_excused(finding) and not finding.holds
        typer.echo(f"  {'not judged' if is_excused else _mark(finding.holds)}  {finding.invariant} {finding.claim}")
        for text in finding.broken_by[:5]:
            typer.echo(f"          {text}")
    if chosen.excuse:
        typer.echo(f"  not judged: {', '.join(chosen.excused)}: {chosen.excuse}")
    typer.echo(f"\nExchange ({', '.join(chosen.sources)}): {chosen.exchange}\n")
    typer.echo(verdict.summary)
    typer.echo(f"{chosen.name}: {'pass' if verdict.is_passed else 'fail'}")


def verdict_as_json(verdict: "Verdict") -> dict[str, Any]:
    """For programs."""
    return {
        "scenario": verdict.scenario.name,
        "is_passed": verdict.is_passed,
        "figures": dict(verdict.figures),
        "expectations": [{**asdict(one.expectation), "value": one.value, "is_met": one.is_met} for one in verdict.outcomes],
        "invariants": [{**asdict(one), "holds": one.holds, "is_excused": verdict.is_excused(one)} for one in verdict.findings],
        "exchange": verdict.scenario.exchange,
        "sources": list(verdict.scenario.sources),
        "summary": verdict.summary,
    }


def _mark(is_good: bool) -> str:
    return "ok  " if is_good else "FAIL"
