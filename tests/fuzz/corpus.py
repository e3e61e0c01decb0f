"""What the fuzzer has found worth keeping, by target: a line of base64 for each input. `run.py` adds to it."""

import base64
from pathlib import Path

DIRECTORY = Path(__file__).parent / "corpus"
KEPT_OCTETS_MAX = 1_024  # of one input
KEPT_MAX = 200  # of one target


def read(target: str) -> list[bytes]:
    """Of this target."""
    path = DIRECTORY / f"{target}.txt"
    return [base64.b64decode(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(target: str, inputs: list[bytes]) -> None:
    """The smallest ones, each once."""
    kept = sorted({one for one in inputs if len(one) <= KEPT_OCTETS_MAX}, key=lambda one: (len(one), one))[:KEPT_MAX]
    DIRECTORY.mkdir(exist_ok=True)
    (DIRECTORY / f"{target}.txt").write_text("".join(f"{base64.b64encode(one).decode()}\n" for one in kept))
