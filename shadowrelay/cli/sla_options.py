"""The options of `shadowrelay sla …`, and what can be wrong with them before anything is started."""

import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from shadowrelay.model.errors import ConfigurationError

PATTERN = frozenset("{}[]*?\\")


def _plain(path: str | None) -> str | None:
    if path is not None and (found := sorted({one for one in path if one in PATTERN})):
        raise typer.BadParameter(f"{path}: a name with {' '.join(found)} would be a pattern to Spark; rename it, or use a link to it")
    return path


Logs = Annotated[
    str | None, typer.Option("--logs", metavar="DIR", help="Collected logs: DIR/<server>/MSGTRK*.LOG; also a URL.", callback=_plain)
]
LogsWanted = Annotated[
    str, typer.Option("--logs", metavar="DIR", help="Collected logs: DIR/<server>/MSGTRK*.LOG; also a URL.", callback=_plain)
]
Warehouse = Annotated[str | None, typer.Option("--warehouse", metavar="DIR", help="What `sla ingest` has made of logs.", callback=_plain)]
WarehouseWanted = Annotated[
    str, typer.Option("--warehouse", metavar="DIR", help="Where typed Parquet is written; kept between runs.", callback=_plain)
]
Output = Annotated[
    str, typer.Option("--output", metavar="DIR", help="Where report.html, summary.json and tables/ are written.", callback=_plain)
]
Sites = Annotated[Path | None, typer.Option("--sites", help="Sites and boundaries of servers (TOML); wins over manifests.")]
Objectives = Annotated[Path | None, typer.Option("--objectives", help="What was promised (TOML); else the defaults.")]
Textfile = Annotated[str | None, typer.Option("--textfile", metavar="FILE", help="Write the figures for Prometheus, too.")]
Master = Annotated[str, typer.Option("--master", help="Spark master.")]
Memory = Annotated[str, typer.Option("--driver-memory", metavar="SIZE", help="Memory of the JVM here, as 4g or 800m.")]
Now = Annotated[
    str | None, typer.Option("--now", metavar="INSTANT", help="Instant of judgement, as 2026-11-21T16:00:00Z; else the newest row's.")
]


def require_writable(output: str | None, textfile: str | None, warehouse: str | None = None) -> None:
    """Hours of reading should not end with a directory that nobody may write to. Stores are asked when it is time.

    Raises: ConfigurationError.
    """
    if textfile is not None and (os.path.isdir(textfile) or not os.path.basename(textfile)):
        raise ConfigurationError(f"--textfile {textfile}: this is a directory; name the file, as {os.path.join(textfile, 'sla.prom')}")
    directories = (
        ("--output", output),
        ("--textfile", None if textfile is None else os.path.dirname(textfile) or "."),
        ("--warehouse", warehouse),
    )
    for option, directory in directories:
        if directory is None or ":/" in directory:
            continue
        try:
            os.makedirs(directory, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as exc:
            raise ConfigurationError(f"{option} {directory}: cannot be written: {exc.strerror or exc}") from exc


def instant_of(text: str | None) -> datetime | None:
    """What --now says. Raises: ConfigurationError."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ConfigurationError(f"--now {text}: an instant looks like 2026-11-21T16:00:00Z")
    return at
