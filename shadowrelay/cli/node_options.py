"""Which node a command asks, and with which token: the options that all of them share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shadowrelay.cli.output import ExitCode, configuration_errors, stop
from shadowrelay.config import load

if TYPE_CHECKING:
    from shadowrelay.admin.client import NodeClient

NODE_VARIABLE = "SHADOWRELAY_NODE"
URL_DEFAULT = "http://127.0.0.1:8025"

Node = Annotated[str | None, typer.Option("--node", metavar="URL", envvar=NODE_VARIABLE, help=f"The node's admin address. [{URL_DEFAULT}]")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File with its token; else SHADOWRELAY_ADMIN_TOKEN is used.")]
Config = Annotated[Path | None, typer.Option("--config", help="The node's configuration: address and token file are taken from it.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs instead of tables.")]


@contextmanager
def asked_node(node: str | None, token_file: Path | None, config: Path | None) -> Iterator["NodeClient"]:
    """A client of that node; what goes wrong ends the command with the exit code that says so."""
    # httpx takes a third of a second to import: not for --version, --help or check
    from shadowrelay.admin.client import NodeClient, NodeError, find_token

    with configuration_errors():
        if config is not None:
            admin = load(config).settings.admin
            node, token_file = node or f"http://{admin.listen}", token_file or admin.token_file
        token = find_token(token_file)
    try:
        with NodeClient(node or URL_DEFAULT, token) as client:
            yield client
    except NodeError as exc:
        stop(str(exc), {0: ExitCode.UNREACHABLE, 401: ExitCode.USAGE}.get(exc.status, ExitCode.FAILED))
