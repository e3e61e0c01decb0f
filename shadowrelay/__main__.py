"""Runs the command `shadowrelay` as `python -m shadowrelay`. docs/reference.md "Commands"."""

from shadowrelay.cli.main import app

app()
