"""Runs the command `shadowrelay` as `python -m shadowrelay`. docs/operations.md "Commands"."""

from shadowrelay.cli.main import app

app()
