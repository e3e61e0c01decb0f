"""The application: `serve`, `check`, `demo`, command groups. Imports large packages only when needed. docs/reference.md "Commands"."""

import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shadowrelay import __version__
from shadowrelay.admin.token import read_token
from shadowrelay.bounded import BoundedCalls
from shadowrelay.cli import drain, queue_commands
from shadowrelay.cli.clients import clients
from shadowrelay.cli.doctor import doctor
from shadowrelay.cli.find import find
from shadowrelay.cli.init import init
from shadowrelay.cli.lab import lab
from shadowrelay.cli.message_trace import trace
from shadowrelay.cli.output import (
    AsJson,
    ExitCode,
    configuration_errors,
    print_json,
    print_sentences,
    print_table,
    say,
    stop,
    visible,
)
from shadowrelay.cli.people_tokens import token
from shadowrelay.cli.resubmissions import safety_net
from shadowrelay.cli.sla import sla
from shadowrelay.cli.status import status
from shadowrelay.cluster.words import counted
from shadowrelay.model.invalid import explanation_of
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.settings import Settings
from shadowrelay.settings import certificates, configuration, places
from shadowrelay.settings.guarantees import promises

START_SECONDS = 30.0  # for the files of the configuration and of [tls]
LOOK_SECONDS = 5.0  # at rights of files
EXIT_CODES = "Exit codes: 0 done, 1 failed, 2 configuration or usage, 3 a target was missed, 4 the node did not answer."


class Commands(TyperGroup):
    """Explains wrong values of options and arguments in our words instead of pydantic's. What it did not expect (a server that answers
    nonsense) is shown with its traceback, and like all that is printed it does not reach the terminal raw."""

    def invoke(self, ctx: Any) -> Any:
        _open_standard_streams()
        try:
            return self._invoked(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # the last one: `| head` has seen enough, and typer ends in silence
            raise
        except Exception as exc:
            if isinstance(said := getattr(exc, "message", None), str) and hasattr(exc, "format_message"):  # a wrong use
                exc.message = "\n".join(map(visible, said.split("\n")))  # type: ignore[attr-defined]
                raise
            say(*traceback.format_exc().rstrip().split("\n"), is_error=True)
            raise typer.Exit(ExitCode.FAILED) from None

    def _invoked(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            errors = getattr(exc.__cause__, "errors", None)
            if errors is not None:
                error = errors()[0]
                exc.message = f"{error['input']!r} {explanation_of(error)}"
            raise


def _open_standard_streams() -> None:
    """Those that were closed before us: else the next file that is opened has their number, and is printed into."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


app = typer.Typer(
    name="shadowrelay",
    cls=Commands,
    help="An SMTP relay that places a synced copy of each message on a second server before it says 250.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,  # the markup would take [server] for a colour, and shows <bool> behind each flag
    pretty_exceptions_enable=False,
)
app.command("init")(init)
app.command("doctor")(doctor)
app.add_typer(queue_commands.queue, name="queue")
app.add_typer(queue_commands.messages, name="messages")
app.add_typer(queue_commands.peers, name="peers")
app.add_typer(clients, name="clients")
queue_commands.messages.command("find")(find)
queue_commands.messages.command("trace")(trace)
app.command("status")(status)
app.command("token")(token)
queue_commands.queue.command("redirect")(drain.redirect)
app.command("drain")(drain.drain)
app.command("undrain")(drain.undrain)
app.add_typer(safety_net, name="safety-net")
app.command("pressure")(queue_commands.show_pressure)
app.add_typer(lab, name="lab")
app.add_typer(sla, name="sla")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        say(f"shadowrelay {__version__}")
        raise typer.Exit(ExitCode.OK)


@app.callback()
def shadowrelay(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Global options."""


@app.command()
def serve(config_file: Annotated[Path, typer.Option("--config", help="The node's configuration (TOML).")]) -> None:
    """Run a node. SIGTERM drains it, SIGHUP reloads settings that can be reloaded."""
    with configuration_errors():
        try:
            loaded = BoundedCalls("configuration").call(partial(configuration.load, config_file), START_SECONDS)
        except TimeoutError:
            stop(f"{config_file} or a file that it names under [tls] hangs: no answer for {START_SECONDS:.0f} s", ExitCode.FAILED)
        for warning in configuration.warnings(loaded.settings):
            say(f"shadowrelay: warning: {warning}", is_error=True)
        _warn_of_files(loaded)
        gc.disable()  # until it runs: nothing that is imported is garbage, and the search for it takes a fifth of the start
        raise typer.Exit(import_module("shadowrelay.node.process").run(loaded))


def _warn_of_files(loaded: configuration.LoadedSettings) -> None:
    """Of certificates, and of what others may read. What hangs does not keep the node from starting: it may only observe."""
    look = partial(lambda: [*certificates.refused(loaded.settings), *places.exposed(loaded.settings, *loaded.files)])
    try:
        found = BoundedCalls("files").call(look, LOOK_SECONDS)
    except TimeoutError:
        found = [f"the rights of files were not looked at: tracking.directory or another place has not answered for {LOOK_SECONDS:.0f} s"]
    for warning in found:
        say(f"shadowrelay: warning: {warning}", is_error=True)


@app.command()
def check(
    config_file: Annotated[Path | None, typer.Option("--config", help="The configuration to check (TOML).")] = None,
    as_json: AsJson = False,
    is_example: Annotated[bool, typer.Option("--example", help="Print a configuration with every setting, commented.")] = False,
    is_online: Annotated[bool, typer.Option("--online", help="Also look up the names of peers and next hops.")] = False,
    with_defaults: Annotated[bool, typer.Option("--all", help="Also print the values that nobody set, which are defaults.")] = False,
) -> None:
    """Validate a configuration and say what it promises. Tries its directories; prints what the file and the environment set."""
    if is_example:
        say(*configuration.example().splitlines())
        return
    if config_file is None:
        raise typer.BadParameter("name a file, or ask for --example", param_hint="--config")
    if as_json:
        _check_as_json(config_file, is_online=is_online)
        return
    with configuration_errors():
        loaded = _checked(config_file, is_online=is_online)
    values = [(key, loaded.origins[key], _text(value)) for key, value in configuration.effective(loaded)]
    shown = [row for row in values if with_defaults or row[1] != configuration.ValueSource.DEFAULT]
    print_table(("Key", "From", "Value"), shown, "")
    if len(shown) < len(values):
        say(f"{len(values) - len(shown)} other settings have their defaults: --all shows them")
    say("", "What this promises:")
    print_sentences(promises(loaded.settings), indent="  ")
    say("")
    print_sentences([_boundary_of(loaded)])
    doubts = _doubts(loaded)
    say("", f"{config_file} is valid, {counted(len(doubts), 'warning')}")
    print_sentences([f"warning: {doubt}" for doubt in doubts])


def _check_as_json(config_file: Path, *, is_online: bool) -> None:
    try:
        loaded = _checked(config_file, is_online=is_online)
    except ConfigurationError as exc:
        print_json({"file": str(config_file), "is_valid": False, "errors": str(exc).splitlines(), "warnings": [], "settings": {}})
        raise typer.Exit(ExitCode.USAGE) from None
    values = {key: {"value": value, "origin": loaded.origins[key]} for key, value in configuration.effective(loaded)}
    doubts = _doubts(loaded)
    settings = loaded.settings
    boundary = {"name": settings.server.boundary, "sites": settings.servers_by_site}
    found = {"errors": [], "warnings": doubts, "promises": promises(settings), "boundary": boundary, "settings": values}
    print_json({"file": str(config_file), "is_valid": True} | found)


def _checked(config_file: Path, *, is_online: bool) -> configuration.LoadedSettings:
    return configuration.load(config_file, further=partial(_further_problems, is_online=is_online))


def _further_problems(settings: Settings, *, is_online: bool) -> Iterator[str]:
    """Files, directories and names that the settings mention."""
    if settings.shipping.target:
        yield from _raised_by(lambda: import_module("shadowrelay.tracking.target").check_target(settings.shipping.target))
    unusable_places = list(places.problems(settings))
    yield from unusable_places
    for key in ("admin.token_file", "admin.read_only_token_file"):
        token = getattr(settings.admin, key.removeprefix("admin."))
        if token is not None and token.exists() and not any(problem.startswith(f"{key}:") for problem in unusable_places):
            yield from _raised_by(partial(read_token, token, key))
    if settings.tls is not None and not any(certificates.unusable(settings.tls)):
        yield from certificates.refused(settings)
    if is_online:
        yield from import_module("shadowrelay.checkup").wrong_names(settings)


def _raised_by(check: Callable[[], object]) -> Iterator[str]:
    try:
        check()
    except ConfigurationError as exc:
        yield str(exc)


def _doubts(loaded: configuration.LoadedSettings) -> list[str]:
    settings = loaded.settings
    lists = import_module("shadowrelay.smtp.recipient_file").doubts(settings) if settings.recipient_sources else []
    return [*configuration.warnings(settings), *lists, *places.doubts(settings), *places.exposed(settings, *loaded.files)]


def _boundary_of(loaded: configuration.LoadedSettings) -> str:
    """Which servers of which sites hold copies for each other. Nobody may have meant that, if nobody named the boundary."""
    settings = loaded.settings
    sites = [f"{site} ({', '.join(servers)})" for site, servers in settings.servers_by_site.items()]
    is_named = loaded.origins["server.boundary"] != configuration.ValueSource.DEFAULT
    how = "" if is_named else ", which the configuration does not name,"
    return f"boundary {settings.server.boundary}{how} spans {len(sites)} site{'' if len(sites) == 1 else 's'}: {', '.join(sites)}"


def _text(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_text(entry)}" for name, entry in value.items())
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value)
    return str(value).lower() if isinstance(value, bool) else value


@app.command()
def demo(
    messages: Annotated[int, typer.Option("--messages", min=1, max=100_000, help="Number of messages.")] = 600,
    directory: Annotated[Path | None, typer.Option("--directory", help="Keep queues and logs here. Default: delete them.")] = None,
    evidence: Annotated[Path, typer.Option("--evidence", help="Directory for shipped tracking logs and the report.")] = Path(".demo"),
    as_json: AsJson = False,
) -> None:
    """Run three nodes, destroy a server, count losses. On loopback, with real mail; ends with the redundancy report."""
    demo = import_module("shadowrelay.lab.demo")
    raise typer.Exit(demo.run(messages_count=messages, directory=directory, evidence=evidence, as_json=as_json))
