"""Runs worlds in processes of their own, where hashing and addresses are fixed."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

COMMAND = (sys.executable, "-m", "tests.simulation.run")
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """One process after the other, which inherit what the first one has imported."""
    with subprocess.Popen([*COMMAND, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        requests, answers = server.stdin, server.stdout
        assert requests is not None
        assert answers is not None

        def ask(*arguments: str) -> tuple[int, str]:
            print(json.dumps(arguments), file=requests, flush=True)
            code, text = json.loads(answers.readline())
            return code, text

        yield ask
