"""`python -m shadowrelay` is the command `shadowrelay`."""

from shadowrelay.cli.main import app

app()
