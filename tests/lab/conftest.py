"""A lab of its own for a test in containers: down before, down after."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shadowrelay.cli.main import app
from shadowrelay.lab.compose import Lab
from tests.lab.docker import lab_or_skip


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = lab_or_skip()
    made.down()
    try:
        yield made
    finally:
        made.down()


def a_program(directory: Path, name: str, text: str) -> None:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def run(project: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["lab", *arguments, "--project-directory", str(project)])
    return result.exit_code, result.stderr
