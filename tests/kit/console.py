"""Examples of a terminal in a page: what is typed, and what is then printed.

In ```console blocks a line after `$ ` is typed and the lines below it are printed. `…` stands for any text in a line; a line
of its own, for any number of lines.
"""

import re
from dataclasses import dataclass

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
