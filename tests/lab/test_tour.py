"""docs/lab.md can be followed: every command of the tour is typed, and prints what the page says."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from shadowrelay.lab.compose import Lab
from tests.lab.docker import lab_or_skip
from tests.tidy.house import ROOT

# Examples of a terminal in a page: what is typed, and what is then printed.
#
# In ```console blocks a line after `$ ` is typed and the lines below it are printed. `…` stands for any text in a line; a line
# of its own, for any number of lines.

ANY = "…"
_BLOCK = re.compile(r"(?ms)^```console\n(.*?)^```$")


@dataclass(frozen=True, slots=True)
class Example:
    """Shapes: `printed` lines in order, maybe none."""

    typed: str
    printed: tuple[str, ...]

    def agrees(self, output: str) -> bool:
        """Is `output` what the page promises? Blanks at the ends of lines, and empty lines at the end, do not count."""
        parts = [r"(?:[^\n]*\n)*?" if line == ANY else _line(line) + r"[ ]*\n" for line in self.printed]
        text = "".join(f"{line}\n" for line in output.splitlines()).rstrip("\n")
        return re.fullmatch("".join(parts), f"{text}\n" if text else "") is not None


def examples(page: str) -> list[Example]:
    """All of a page, in its order. A block that does not begin with `$ ` is an error of the page."""
    found: list[Example] = []
    for block in _BLOCK.findall(page):
        first, *rest = block.splitlines()
        assert first.startswith("$ "), f"a block begins with {first!r}"
        typed, printed = first, []
        for line in rest:
            if line.startswith("$ "):
                found.append(Example(typed.removeprefix("$ "), tuple(printed)))
                typed, printed = line, []
            else:
                printed.append(line.rstrip())
        found.append(Example(typed.removeprefix("$ "), tuple(printed)))
    return found


def _line(line: str) -> str:
    return ".*?".join(map(re.escape, line.split(ANY)))


PAGE = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
COMMAND_SECONDS_MAX = 1500  # building an image with a JRE on a busy machine


def typed(text: str) -> str:
    """Standard output of what a reader types, in the project's directory, with this interpreter's commands first in PATH."""
    if shutil.which("docker-compose") is None:  # as the page tells the reader
        text = text.replace("docker-compose", "docker compose")
    environment = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", text], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, f"$ {text}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture
def clean() -> Iterator[Lab]:
    lab = lab_or_skip()
    lab.down()
    yield lab
    lab.down()


@pytest.mark.heavy
@pytest.mark.lab
@pytest.mark.timeout(3600)
def test_a_reader_can_follow_the_tour(clean: Lab) -> None:
    for example in examples(PAGE):
        output = typed(example.typed)
        print(f"$ {example.typed}\n{output}", file=sys.stderr, flush=True)

        assert example.agrees(output), f"$ {example.typed}\nexpected:\n{os.linesep.join(example.printed)}\nprinted:\n{output}"


def test_the_tour_begins_and_ends_as_it_should() -> None:
    commands = [example.typed for example in examples(PAGE)]

    assert ("shadowrelay lab up", "shadowrelay lab down") == (commands[0], commands[-1])
    assert {"status", "send", "verify", "wipe", "cut", "heal", "scenario", "report"} <= set(
        re.findall(r"shadowrelay lab (\w+)", " ".join(commands))
    )


CASES: list[tuple[tuple[str, ...], str, bool]] = [
    (("a", "b"), "a\nb\n", True),
    (("a", "b"), "a  \nb\n\n", True),
    (("a", "b"), "a\n", False),
    (("a",), "a\nb\n", False),
    (("lost 0, taken over …, still queued 0",), "lost 0, taken over 17, still queued 0", True),
    (("lost 0, taken over …, still queued 0",), "lost 1, taken over 17, still queued 0", False),
    (("…", "b"), "x\ny\nb\n", True),
    (("…", "b"), "b\n", True),
    (("…", "b"), "x\ny\n", False),
    ((), "", True),
    ((), "x", False),
]


@pytest.mark.parametrize(("printed", "output", "agrees"), CASES)
def test_an_output_agrees_with_a_page_or_not(printed: tuple[str, ...], output: str, agrees: bool) -> None:
    assert agrees is Example("command", printed).agrees(output)


def test_examples_are_found_in_their_order() -> None:
    page = "# A\n\n```console\n$ one\n1\n…\n$ two | x\n```\n\n```sh\n$ none\n```\n\n```console\n$ three\n3\n```\n"

    assert [Example("one", ("1", "…")), Example("two | x", ()), Example("three", ("3",))] == examples(page)
