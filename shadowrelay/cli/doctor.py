"""`shadowrelay doctor`: prints what `shadowrelay.checkup` finds. docs/setup.md "Doctor"."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from shadowrelay.cli.output import (
    AsJson,
    ExitCode,
    configuration_errors,
    print_json,
    say,
)
from shadowrelay.cluster.words import counted
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.settings import configuration


def doctor(
    config_file: Annotated[Path, typer.Option("--config", help="The node's configuration (TOML).")],
    as_json: AsJson = False,
) -> None:
    """Try what a node relies on, and name remedies. Directories, certificate, name servers, peers, next hops; exit code 1 if something is
    wrong."""
    from shadowrelay.checkup import Severity, examine, running_node  # imports SMTP, DNS and HTTP

    with configuration_errors():
        try:
            loaded = configuration.load(config_file)
        except ConfigurationError as mistakes:
            if config_file.is_file():
                with suppress(ConfigurationError):
                    say(*(f"shadowrelay: {one.subject}: {one.text}" for one in running_node(config_file)), is_error=True)
            raise mistakes
        findings = asyncio.run(examine(loaded))
    errors_count = sum(finding.level is Severity.ERROR for finding in findings)
    warnings_count = sum(finding.level is Severity.WARNING for finding in findings)
    if as_json:
        names = ("level", "subject", "text", "remedy")
        print_json(
            {
                "errors": errors_count,
                "warnings": warnings_count,
                "findings": [{name: getattr(one, name) for name in names} for one in findings],
            }
        )
    else:
        for finding in findings:
            say(f"{finding.level.value:<7}  {finding.subject}: {finding.text}")
            if finding.remedy:
                say(f"         -> {finding.remedy}")
        say("", f"{counted(errors_count, 'error')}, {counted(warnings_count, 'warning')}")
    raise typer.Exit(ExitCode.FAILED if errors_count else ExitCode.OK)
