"""Output and exit codes of the commands, and the options that they share. docs/reference.md "Commands".

Tables for people, JSON for programs, errors with their remedy on standard error. All commands use the same options for the node and
its token.
"""

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shadowrelay.model.printable import escaped
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.settings.configuration import address_and_rights

FOLDED_MIN = 30  # characters of a last column; a narrower one is hard to read


visible = escaped  # what every text of others passes on its way to a terminal


class ExitCode(IntEnum):
    """Exit statuses, as documented in docs/operations.md."""

    OK = 0
    FAILED = 1
    USAGE = 2  # configuration or usage; the same as for unknown options
    BREACH = 3  # a target was missed, and the caller asked for this status
    UNREACHABLE = 4  # the node did not answer


def say(*lines: str, is_error: bool = False) -> None:
    """Print lines. Everything that a command prints goes through here, or through `visible`: what a node, a peer or a stranger said must
    neither control the terminal nor forge a line of ours."""
    for line in lines:
        typer.echo(visible(line), err=is_error)


def private(path: str, flags: int) -> int:
    """An opener for files with content: only this user may read them, whatever the umask."""
    return os.open(path, flags, 0o600)


def stop(text: str, code: ExitCode) -> NoReturn:
    """Print the reason on standard error and exit."""
    say(*(f"shadowrelay: {line}" for line in text.split("\n")), is_error=True)
    raise typer.Exit(code)


@contextmanager
def configuration_errors() -> Iterator[None]:
    """Exit code 2 for a ConfigurationError, each of its lines on standard error."""
    try:
        yield
    except ConfigurationError as exc:
        stop(str(exc), ExitCode.USAGE)


def print_json(value: object) -> None:
    """One indented JSON document. What could control a terminal is escaped, as JSON allows in each of its texts."""
    for line in json.dumps(value, indent=2, ensure_ascii=False, default=str).split("\n"):
        typer.echo(visible(line))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> None:
    """Print a table; without rows print `empty`. Columns that begin with # are numbers.

    A terminal that is too narrow gets the table without columns that are empty, its last column on several lines; if that is too wide as
    well, a paragraph for each row: its first text, then the others by name.
    """
    if not rows:
        say(empty)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    names = [column.removeprefix("#") for column in columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    width, needed = terminal_width(), _table_width(widths)
    if width is not None and needed > width:
        kept = [number for number in range(len(columns)) if any(row[number] != "-" for row in cells)]
        columns, names, widths = (
            [columns[number] for number in kept],
            [names[number] for number in kept],
            [widths[number] for number in kept],
        )
        cells = [[row[number] for number in kept] for row in cells]
        needed = _table_width(widths)
    is_folded = width is not None and needed > width and width - _table_width(widths[:-1]) - 2 >= FOLDED_MIN
    if width is not None and needed > width and not is_folded:
        first = next((number for number, column in enumerate(columns) if not column.startswith("#")), 0)
        for row in cells:
            _print_paragraph(
                row[first], [f"{name}: {cell}" for name, cell in zip(names, row, strict=True) if cell not in ("-", row[first])]
            )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, name in zip(columns, names, strict=True):
        is_last = column is columns[-1]
        justify: Literal["left", "right"] = "right" if column.startswith("#") else "left"
        table.add_column(name, justify=justify, no_wrap=not (is_last and is_folded), overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console(width=width if is_folded else max(needed, 1), highlight=False, emoji=False).print(table)


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _print_paragraph(heading: str, facts: Sequence[str]) -> None:
    say(heading)
    print_sentences([", ".join(facts)] if facts else [], indent="    ")


def print_sentences(sentences: Iterable[str], indent: str = "") -> None:
    """Each on lines of its own, wrapped for the terminal; a pipe gets whole lines."""
    width = terminal_width()
    for sentence in map(visible, sentences):
        lines = [sentence] if width is None else textwrap.wrap(sentence, max(width - len(indent), 20), break_on_hyphens=False)
        say(*(f"{indent}{line}" for line in lines or [""]))


def terminal_width() -> int | None:
    """Columns of the terminal; None where the output is no terminal, so that lines may be as long as they are."""
    return Console().width if sys.stdout.isatty() else None


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return visible(str(value))


if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient
    from shadowrelay.model.settings import Settings

NODE_VARIABLE = "SHADOWRELAY_NODE"
URL_DEFAULT = "http://127.0.0.1:8025"

Node = Annotated[
    str | None, typer.Option("--node", metavar="URL", help=f"The node's admin address; else {NODE_VARIABLE}, else {URL_DEFAULT}.")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="File with its token; else SHADOWRELAY_ADMIN_TOKEN is used.")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The node's configuration, for its address and token."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs instead of tables.")]


def node_client(url: str, token: str, settings: "Settings | None" = None) -> "NodeClient":
    """A client for a URL that somebody gave. With the configuration of a node, an https URL is that of a node with a certificate of its
    authority: of the peer that is configured with this URL, else of the host. Raises: NodeError."""
    from shadowrelay.admin.api_client import NodeClient

    if settings is None or settings.tls is None or settings.tls.peer_authority is None or not url.startswith("https:"):
        return NodeClient(url, token)
    name = next((peer.name for peer in settings.peers if peer.admin.rstrip("/") == url.rstrip("/")), "")
    return NodeClient(url, token, authority=settings.tls.peer_authority, name=name, tls=settings.tls)


def settings_of_node(config: Path) -> "Settings":
    """Address and rights of the node with this configuration, also where there are mistakes elsewhere in it. Raises: ConfigurationError."""
    settings, mistakes = address_and_rights(config)
    if mistakes:
        asked = "the node is asked as the rest of it says, and may run with an earlier state of it"
        say(*(f"shadowrelay: {line}" for line in mistakes.splitlines()), f"shadowrelay: {config} is not valid; {asked}", is_error=True)
    return settings


@contextmanager
def asked_node(node: str | None, token_file: Path | None, config: Path | None) -> Iterator["NodeClient"]:
    """A client of that node; errors end the command with the matching exit code."""
    # httpx takes a third of a second to import: not needed for --version, --help or check
    from shadowrelay.admin.api_client import NodeError, checked_url, find_token

    settings = None
    with configuration_errors():
        if config is not None:
            settings = settings_of_node(config)
            admin = settings.admin
            node, token_file = node or f"http://{admin.listen}", token_file or admin.token_file
        url = checked_url(node or os.environ.get(NODE_VARIABLE) or URL_DEFAULT)
        token = find_token(token_file, {} if config is not None and os.access(token_file or "", os.R_OK) else os.environ)
    try:
        with node_client(url, token, settings) as client:
            yield client
    except NodeError as exc:
        stop(str(exc), {0: ExitCode.UNREACHABLE, 400: ExitCode.USAGE, 401: ExitCode.USAGE}.get(exc.status, ExitCode.FAILED))
