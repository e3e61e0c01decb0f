"""`shadowrelay lab …`: the cluster in containers, its faults and scenarios, and the verification of its mail. docs/lab.md."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shadowrelay.cli.output import AsJson, ExitCode, print_json, print_table, say, stop
from shadowrelay.model.setting_texts import parse_duration

FIRST_PAGE_SECONDS = 300.0  # `report --watched`: Spark is cold, and shares few cores with a dozen containers


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Any]:
    """Yields a function that advances the bar: by one, or to a count out of a total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    errors = Console(stderr=True)
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def advance(completed: int | None = None, of: int | None = None) -> None:
            if completed is None:
                bar.advance(task)
            else:
                bar.update(task, completed=completed, total=of)

        yield advance


if TYPE_CHECKING:
    from shadowrelay.lab.compose import Lab
    from shadowrelay.lab.scenarios.verdict import Verdict


def print_scenarios(as_json: bool) -> None:
    """List the scenarios."""
    from shadowrelay.lab.scenarios.catalogue import SCENARIOS

    if as_json:
        print_json([{"name": one.name, "title": one.title, "story": one.story, "exchange": one.exchange} for one in SCENARIOS.values()])
        return
    print_table(("Scenario", "What happens"), [(one.name, one.title) for one in SCENARIOS.values()], "")


def play_scenario(lab: "Lab", name: str, *, is_fault_wanted: bool, as_json: bool) -> bool:
    """Play a scenario and print each step. Returns whether it passed. Raises: LabError."""
    from shadowrelay.lab.scenarios.catalogue import scenario
    from shadowrelay.lab.scenarios.player import play

    chosen = scenario(name) if is_fault_wanted else scenario(name).without_fault()
    began = time.monotonic()

    def tell(text: str) -> None:
        say(f"{time.monotonic() - began:5.0f} s  {text}", is_error=as_json)

    if not as_json:
        say(chosen.title, "", f"What will happen: {chosen.story}")
        say(*([] if is_fault_wanted else ["The fault is left out: this must fail."]), "")
    verdict = play(lab, chosen, say=tell)
    if as_json:
        print_json(verdict_as_json(verdict))
    else:
        print_verdict(verdict)
    return verdict.is_passed


def print_verdict(verdict: "Verdict") -> None:
    """Print figures, expectations, invariants, what Exchange's documents say, and pass or fail."""
    chosen = verdict.scenario
    say("", "Figures")
    print_table(("#", "What"), [(f"{value:g}", text) for text, value in verdict.shown()], "")
    say("", "Effects that only the fault can produce")
    for outcome in verdict.outcomes:
        say(f"  {_mark(outcome.is_met)}  {outcome.line()}")
    say("", "Invariants")
    for finding in verdict.findings:
        say(f"  {_mark(finding.holds)}  {finding.invariant} {finding.claim}")
        for text in finding.broken_by[:5]:
            say(f"          {text}")
    say("", f"Exchange ({', '.join(chosen.sources)}): {chosen.exchange}", "")
    say(verdict.summary)
    say(f"{chosen.name}: {'pass' if verdict.is_passed else 'fail'}")


def verdict_as_json(verdict: "Verdict") -> dict[str, Any]:
    """The verdict for programs."""
    return {
        "scenario": verdict.scenario.name,
        "is_passed": verdict.is_passed,
        "figures": dict(verdict.figures),
        "expectations": [{**asdict(one.expectation), "value": one.value, "is_met": one.is_met} for one in verdict.outcomes],
        "invariants": [{**asdict(one), "holds": one.holds} for one in verdict.findings],
        "exchange": verdict.scenario.exchange,
        "sources": list(verdict.scenario.sources),
        "summary": verdict.summary,
    }


def _mark(is_good: bool) -> str:
    return "ok  " if is_good else "FAIL"


if TYPE_CHECKING:
    from shadowrelay.lab.compose import Lab
    from shadowrelay.lab.engine import NodeStatus
    from shadowrelay.lab.verification import Verification

lab = typer.Typer(no_args_is_help=True, help="A test cluster in containers. Four nodes, two sites, real mail servers, faults.")

Directory = Annotated[Path, typer.Option("--project-directory", help="Directory of docker-compose.yml.")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="mx1.east, mx2.east, mx1.west or mx2.west.")]
Place = Annotated[str, typer.Argument(metavar="SITE|NODE", help="east, west, or a node.")]
HERE = Path()
RATE = re.compile(r"[1-9]\d{0,5}([kmg]i?)?(bit|bps)", re.IGNORECASE)
BITS_MIN = 8  # the lowest rate that `tc` accepts


@contextmanager
def _opened(directory: Path, *, is_quiet: bool = False) -> Iterator["Lab"]:
    """The lab of that directory; a LabError ends the command with its reason."""
    from shadowrelay.lab.compose import Lab
    from shadowrelay.lab.topology import LabError, WrongUse

    try:
        yield Lab(directory, tell=(lambda text: None) if is_quiet else (lambda text: say(f"{text} …", is_error=True)))
    except WrongUse as exc:
        stop(str(exc), ExitCode.USAGE)
    except LabError as exc:
        stop(str(exc), ExitCode.FAILED)


@lab.command("up")
def up(
    profile: Annotated[list[str] | None, typer.Option("--profile", help="Also start: prometheus, spark. May be repeated.")] = None,
    is_build_wanted: Annotated[
        bool, typer.Option("--build/--no-build", help="Build images that are missing or older than the source.")
    ] = True,
    directory: Directory = HERE,
    as_json: AsJson = False,
) -> None:
    """Start the lab: images, certificates, containers. Returns when all nodes are healthy.

    If the lab is up, missing or stopped containers are started, and nothing is replaced: new images need `down` first.
    """
    with _opened(directory) as opened:
        _print_status(opened, opened.up(profile or (), is_build_wanted=is_build_wanted), as_json)
        if not as_json:
            say(*opened.addresses())


@lab.command("down")
def down(
    with_images: Annotated[bool, typer.Option("--images", help="Also remove its images.")] = False,
    directory: Directory = HERE,
) -> None:
    """Remove the lab: containers, networks, volumes. The last report and the images stay."""
    with _opened(directory) as opened:
        left = opened.down(with_images=with_images)
    say("the lab is removed")
    if left:
        sizes = ", ".join(f"{name.partition(':')[0]} {size}" for name, size in left.items())
        say(f"its images stay, for the next `lab up` ({sizes}, layers in common counted twice); `lab down --images` removes them")


@lab.command("status")
def status(directory: Directory = HERE, as_json: AsJson = False) -> None:
    """Show nodes, their queue lengths, and active faults."""
    with _opened(directory) as opened:
        _print_status(opened, opened.status(), as_json)


def _print_status(opened: "Lab", nodes: "list[NodeStatus]", as_json: bool) -> None:
    faults = opened.faults_in_force()
    if as_json:
        print_json({"nodes": [asdict(node) for node in nodes], "faults": faults})
        return
    columns = ("Node", "State", "#To deliver", "#Held for others", "#Peers reachable")
    print_table(columns, [(one.node, one.state, one.to_deliver, one.held, one.peers_reachable) for one in nodes], "")
    say(f"faults: {'; '.join(faults) or 'none'}")


@lab.command("send")
def send(
    count: Annotated[int, typer.Option("--count", min=1, max=100_000, help="Number of messages.")] = 100,
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=1000, help="Messages a second.")] = 20.0,
    size: Annotated[int, typer.Option("--size", min=512, max=20_000_000, help="Bytes per message.")] = 4096,
    directory: Directory = HERE,
    as_json: AsJson = False,
) -> None:
    """Send mail through the sending Postfix to the nodes. Fails unless Postfix accepted every message."""
    with _opened(directory) as opened, opened.sending(), progress("sending", count) as advance:
        sending = opened.mail.send(count, rate, size, on_sent=lambda one: advance())
    if as_json:
        print_json(asdict(sending))
    else:
        say(f"Postfix accepted {sending.accepted} of {count}")
    if sending.accepted != count:
        raise typer.Exit(ExitCode.FAILED)


@lab.command("verify")
def verify(
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for missing messages.")] = "2m",
    directory: Directory = HERE,
    as_json: AsJson = False,
) -> None:
    """Compare acknowledged mail with arrivals. Fails if mail was lost, changed, duplicated without a cause, or is still queued."""
    try:
        seconds = parse_duration(wait).total_seconds()
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--wait") from exc
    with _opened(directory) as opened, progress("arrived", None) as advance:
        result = opened.verify(seconds, on_look=lambda seen: advance(seen.arrived, seen.acknowledged))
    if as_json:
        print_json({**asdict(result), "causes": result.causes, "is_good": result.is_good, "line": result.line()})
    else:
        _print_verification(result)
    if not result.is_good:
        raise typer.Exit(ExitCode.FAILED)


def _print_verification(result: "Verification") -> None:
    for name, ids in (("lost", result.lost), ("changed", result.changed), ("still queued", result.still_queued)):
        for network_id in ids[:20]:
            say(f"{name}: {network_id}")
    for one in result.duplicates[:20]:
        say(f"duplicated: message {one.number} {one.network_id} {one.recipient} {one.count} times, cause {one.cause}")
    if result.silent:
        say(f"not asked (down, paused or unreachable): {', '.join(result.silent)}; missing messages may be there")
    if result.notices:
        say(f"DSNs returned to the sender: {result.notices}")
    for message_id in result.unaccounted[:20]:
        say(f"accepted by no node, and not queued at Postfix: {message_id}")
    if waiting := result.not_acknowledged - len(result.unaccounted):
        say(f"not acknowledged yet, still queued at Postfix: {waiting}")
    if result.changed:
        say(f"changed {len(result.changed)}")
    say(result.line())


@lab.command("kill")
def kill(node: Node, directory: Directory = HERE) -> None:
    """SIGKILL a node, even if it is paused. It stays down until `start`."""
    with _opened(directory) as opened:
        opened.kill(node)
    say(f"{node} is killed")


@lab.command("start")
def start(node: Node, directory: Directory = HERE) -> None:
    """Start a killed node again, with its queue."""
    with _opened(directory) as opened:
        opened.start(node)
    say(f"{node} is healthy")


@lab.command("wipe")
def wipe(node: Node, directory: Directory = HERE) -> None:
    """Kill a node and start it with an empty disk. Everything on its queue volume is destroyed."""
    with _opened(directory) as opened:
        opened.wipe(node)
    say(f"{node} is back, with an empty queue")


@lab.command("pause")
def pause(node: Node, directory: Directory = HERE) -> None:
    """Freeze a node's process until `unpause`."""
    with _opened(directory) as opened:
        opened.pause(node)
    say(f"{node} is paused")


@lab.command("unpause")
def unpause(node: Node, directory: Directory = HERE) -> None:
    """Resume a paused node."""
    with _opened(directory) as opened:
        opened.unpause(node)
    say(f"{node} is resumed")


@lab.command("cut")
def cut(one: Place, other: Place, directory: Directory = HERE) -> None:
    """Drop all traffic between two places, until `heal`. Two sites, two nodes, or a site and a node."""
    with _opened(directory) as opened:
        pairs = opened.cut(one, other)
    say("cut: " + ", ".join(f"{left} - {right}" for left, right in pairs))


@lab.command("heal")
def heal(directory: Directory = HERE) -> None:
    """Remove all cuts and slow links."""
    with _opened(directory) as opened:
        opened.heal()
    say("all networks are healed")


@lab.command("slow")
def slow(
    one: Place,
    other: Annotated[str, typer.Argument(metavar="[SITE|NODE]", help="A second place: limit only traffic between the two.")] = "",
    rate: Annotated[str, typer.Option("--rate", help="Rate of each node, in the syntax of `tc`: 64kbit, 1mbit …")] = "128kbit",
    directory: Directory = HERE,
) -> None:
    """Limit traffic between nodes until `heal`. Traffic to clients and next hops is not limited."""
    if not RATE.fullmatch(rate) or (rate.lower().endswith("bit") and rate[:-3].isdecimal() and int(rate[:-3]) < BITS_MIN):
        raise typer.BadParameter("say it as `tc` does: 64kbit, 1mbit …", param_hint="--rate")
    with _opened(directory) as opened:
        say(f"slow at {rate}: " + ", ".join(opened.slow(one, other, rate)))


@lab.command("fill-disk")
def fill_disk(
    node: Node,
    is_undo: Annotated[bool, typer.Option("--undo", help="Remove the filler.")] = False,
    directory: Directory = HERE,
) -> None:
    """Fill a node's queue volume to the last byte."""
    with _opened(directory) as opened:
        free = opened.free_disk(node) if is_undo else opened.fill_disk(node)
    say(f"{node}: {free} bytes are free")


@lab.command("save-database")
def save_database(node: Node, directory: Directory = HERE) -> None:
    """Copy a node's queue volume. For `restore-old-database`; the node is paused meanwhile."""
    with _opened(directory) as opened:
        say(f"{node}: copied to {opened.save_database(node)}")


@lab.command("restore-old-database")
def restore_old_database(node: Node, directory: Directory = HERE) -> None:
    """Replace a node's queue by an older copy. The copy is from `save-database`.

    The node learns from its peers that its database is an older copy, and asks them before it delivers anything in it.
    """
    with _opened(directory) as opened:
        opened.restore_old_database(node)
    say(f"{node} is healthy, on its older queue")


@lab.command("roll")
def roll(directory: Directory = HERE) -> None:
    """Restart all nodes in turn, drained. The next follows when one is healthy again."""
    with _opened(directory) as opened:
        say("restarted: " + ", ".join(opened.roll()))


@lab.command("defer")
def defer(
    switch: Annotated[str, typer.Argument(metavar="on|off", help="on: answer 451 to all mail; off: accept mail.")],
    directory: Directory = HERE,
) -> None:
    """Make the receiving servers defer or accept all mail. Takeovers need queued mail."""
    if switch not in ("on", "off"):
        raise typer.BadParameter("use on or off")
    with _opened(directory) as opened:
        opened.defer(switch == "on")
    say("the receiving servers defer everything" if switch == "on" else "the receiving servers accept mail")


@lab.command("report")
def report(
    is_here: Annotated[bool, typer.Option("--here", help="Use this environment's Spark; build no image.")] = False,
    is_watched: Annotated[bool, typer.Option("--watched", help="Fetch the newest report of the streaming job (profile spark).")] = False,
    directory: Directory = HERE,
) -> None:
    """Compute the redundancy report. From the shipped tracking logs, in the Spark container; prints the page's path."""
    with _opened(directory) as opened:
        say(str(opened.watched_report(wait=FIRST_PAGE_SECONDS) if is_watched else opened.report(is_here=is_here)))


@lab.command("scenario")
def scenario(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A name from --list.")] = "",
    is_list: Annotated[bool, typer.Option("--list", help="List the scenarios.")] = False,
    is_fault_left_out: Annotated[bool, typer.Option("--without-fault", help="Leave out the fault; the scenario must then fail.")] = False,
    directory: Directory = HERE,
    as_json: AsJson = False,
) -> None:
    """Play a recovery scenario and judge it. Fails unless it passed. Faults are removed afterwards."""
    if is_list or not name:
        print_scenarios(as_json)
        return
    with _opened(directory, is_quiet=as_json) as opened:
        is_passed = play_scenario(opened, name, is_fault_wanted=not is_fault_left_out, as_json=as_json)
    if not is_passed:
        raise typer.Exit(ExitCode.FAILED)
