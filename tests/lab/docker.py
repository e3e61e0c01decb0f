"""A lab for tests in containers, or the reason why there is none."""

import os
import shutil
import subprocess
import sys

import pytest

from shadowrelay.lab.compose import Lab
from tests.tidy.house import ROOT

IS_WANTED = os.environ.get("SHADOWRELAY_LAB") == "1"  # as for `make test-lab`: then a machine without Docker is a failure


def say(text: str) -> None:
    """Progress, for those who watch with -s."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def lab_or_skip() -> Lab:
    """The lab of this checkout; whether it is up is another matter."""
    if not IS_WANTED:
        if shutil.which("docker") is None:
            pytest.skip("no Docker here")
        if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
            pytest.skip("no Docker engine answers here")
    return Lab(ROOT, tell=say)
