"""The command `shadowrelay`, also as `python -m shadowrelay`. docs/reference.md "Commands"."""

import sys
from contextlib import nullcontext
from importlib import import_module

from shadowrelay.signals import noting_hangups


def main() -> None:
    """Run the command of `sys.argv`."""
    with noting_hangups() if "serve" in sys.argv[1:] else nullcontext():
        import_module("shadowrelay.cli.main").app()


if __name__ == "__main__":
    main()
