"""`shadowrelay drain`, `undrain` and `queue redirect`: empty a node, and let it take mail again. docs/operations.md "Drain a node".

The node drains by itself; the command only watches. It ends when the node is inactive, or when nothing has moved for a while.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from shadowrelay.cli.nodes import asked_nodes
from shadowrelay.cli.output import AsJson, Config, ExitCode, Node, TokenFile, asked_node, print_json, say, stop, visible
from shadowrelay.cli.what_if import warn

if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient

LOOK_SECONDS = 0.5
PATIENCE_SECONDS = 120.0  # without progress. Source: dsc
START_SECONDS = 30.0  # of a node, until its API answers
STUCK_SECONDS = 15.0  # without progress while all remaining obstacles need an operator
MOVING = ("step", "sessions_count", "attempts_count", "undelivered_count", "handed_over_count", "waits_for")

MOVES = ("draining", "redirecting")

Json = dict[str, Any]


def drain(
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
    is_waited_for: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the node is inactive.")] = True,
    patience: Annotated[float, typer.Option("--patience", min=1.0, help="Give up watching after so many seconds without progress.")] = (
        PATIENCE_SECONDS
    ),
) -> None:
    """Empty a node before maintenance. It refuses mail, lets work end, hands over what is left, and waits for the peers. `undrain` ends it;
    a restart does not."""
    with asked_node(node, token_file, config) as client:
        with asked_nodes(node, token_file, config) as nodes:
            warn(nodes, client.node()["name"])
        status = client.drain()
        if is_waited_for:
            with _shown(status, is_silent=as_json) as show:
                try:
                    status = watch(client, status, show, patience)
                except KeyboardInterrupt:
                    stop("the node goes on draining; `shadowrelay undrain` ends that", ExitCode.FAILED)
    if as_json:
        print_json(status)
    else:
        say(*lines_of(status))
    if is_waited_for and status["state"] != "inactive":
        raise typer.Exit(ExitCode.FAILED)


def undrain(
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
    wait: Annotated[float, typer.Option("--wait", min=0.0, help="Wait so long for a node that does not answer yet.")] = START_SECONDS,
) -> None:
    """Let a drained or draining node take and deliver mail again. A node that has just been started is waited for."""
    with asked_node(node, token_file, config) as client:
        status = _undrained(client, wait)
    if as_json:
        print_json(status)
        return
    say("the node takes and delivers mail again")
    if count := status["handed_over_count"]:
        say(f"{_messages(count)} handed over before: the server that has them delivers them")


def _undrained(client: "NodeClient", wait: float) -> Json:
    """Raises: NodeError, also when the node has not answered for so long."""
    from shadowrelay.admin.api_client import NodeError

    until, is_said = time.monotonic() + wait, False
    while True:
        try:
            return client.undrain()
        except NodeError as exc:
            if exc.status or time.monotonic() >= until:
                raise
            if not is_said:
                say(f"{exc}: waiting for {wait:g} s", is_error=True)
            is_said = True
        time.sleep(LOOK_SECONDS)


def redirect(
    targets: Annotated[str, typer.Option("--to", help="Names of peers from `peers list`, with commas between.")],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
    patience: Annotated[float, typer.Option("--patience", min=1.0, help="Give up watching after so many seconds without progress.")] = (
        PATIENCE_SECONDS
    ),
) -> None:
    """Move all active messages to other nodes, which deliver them. Mail is refused meanwhile, and taken again when it is over."""
    with asked_node(node, token_file, config) as client:
        status = client.redirect(targets)
        began = status["targets"]
        with _shown(status, is_silent=as_json) as show:
            try:
                status = watch(client, status, show, patience)
            except KeyboardInterrupt:
                stop("the node goes on redirecting; `shadowrelay undrain` ends that", ExitCode.FAILED)
    is_done = status["state"] == "active" and status["targets"] == began and not status["left_count"]
    if as_json:
        print_json(status)
    else:
        say(text_of_redirect(status, began))
    if not is_done:
        raise typer.Exit(ExitCode.FAILED)


def text_of_redirect(status: Json, began: list[str]) -> str:
    """The last words of the command."""
    if status["targets"] != began:
        return "the node was restarted: what was handed over stays so, and it delivers the rest itself. Give the command again to move it"
    moved = f"{_messages(status['moved_count'])} handed over to {', '.join(began)}"
    if status["state"] == "redirecting":
        return f"{moved}. The node goes on redirecting and refuses mail until it is over, or until `shadowrelay undrain`"
    if status["left_count"]:
        return f"{moved}, {_messages(status['left_count'])} left here, which this node delivers itself. It takes mail again"
    return f"{moved}. The node takes mail again"


def watch(
    client: "NodeClient",
    status: Json,
    show: Callable[[Json], None],
    patience: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Json:
    """The status when the node is inactive, drains no longer, or nothing has moved for `patience` seconds; for less where nothing that
    is left passes by itself. Raises: NodeError when the node has not answered for so long: it may be restarting."""
    from shadowrelay.admin.api_client import NodeError

    moved_at = now()
    while status["state"] in MOVES:
        is_given_up = status["is_stuck"] and status["state"] == "draining"  # a redirect ends by itself then
        if now() - moved_at >= (min(STUCK_SECONDS, patience) if is_given_up else patience):
            break
        show(status)
        sleep(LOOK_SECONDS)
        try:
            after = client.drain_status()
        except NodeError as exc:
            if exc.status or now() - moved_at >= patience:
                raise
            continue
        if [after[name] for name in MOVING] != [status[name] for name in MOVING]:
            moved_at = now()
        status = after
    return status


def lines_of(status: Json) -> list[str]:
    """The last words of the command."""
    lines = []
    if status["state"] == "inactive":
        lines.append("drained: the node is inactive and may be stopped. `shadowrelay undrain` lets it take mail again")
    elif status["state"] == "active":
        lines.append("the node does not drain any more: somebody ended it")
    else:
        lines.append("the node goes on draining and refuses mail until `shadowrelay undrain`. It waits for:")
        lines += [f"  {one}" for one in status["waits_for"]] or [f"  {status['step']}"]
    if held := status["held"]:
        shares = ", ".join(f"{count} for {server}" for server, count in held.items())
        lines.append(f"it keeps its shadow messages ({shares}): their primary servers place them elsewhere if this node stays away")
    if count := status["set_aside_count"]:
        lines.append(f"{_messages(count)} set aside (`messages list --queue Poison`): not delivered and not handed over")
    return lines


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _shown(status: Json, *, is_silent: bool) -> AbstractContextManager[Callable[[Json], None]]:
    """A progress bar on a terminal; else a line whenever the node waits for something else."""
    console = Console(stderr=True, highlight=False)
    if is_silent:
        return nullcontext(lambda _: None)
    return _Bar(console, status) if console.is_terminal else nullcontext(_Lines().show)


class _Lines:
    def __init__(self) -> None:
        self._said: list[str] = []

    def show(self, status: Json) -> None:
        lines = [status["step"], *status["waits_for"]]
        if lines != self._said:
            self._said = lines
            say("; ".join(lines), is_error=True)


class _Bar:
    """What is left of the messages, and what is waited for."""

    def __init__(self, console: Console, status: Json) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._most = _left(status)
        self._task = self._progress.add_task(visible(status["step"]), total=max(self._most, 1))

    def __enter__(self) -> Callable[[Json], None]:
        self._progress.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self, status: Json) -> None:
        left = _left(status)
        self._most = max(self._most, left)
        waits_for = f": {status['waits_for'][0]}" if status["waits_for"] else ""
        text = visible(f"{status['step']}, {left} left{waits_for}")
        self._progress.update(self._task, description=text, completed=self._most - left, total=max(self._most, 1), refresh=True)


def _left(status: Json) -> int:
    left: int = status["undelivered_count"] + status["handed_over_count"]
    return left
