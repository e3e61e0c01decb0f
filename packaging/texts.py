"""Writes the manual page and the completions of shells, from the commands themselves. docs/setup.md "Install".

python packaging/texts.py ROOT
"""

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.completion import get_completion_script

from shadowrelay import __version__
from shadowrelay.cli.main import EXIT_CODES, app

PROGRAM = "shadowrelay"
COMPLETIONS = {
    "bash": f"usr/share/bash-completion/completions/{PROGRAM}",
    "zsh": f"usr/share/zsh/vendor-completions/_{PROGRAM}",
    "fish": f"usr/share/fish/vendor_completions.d/{PROGRAM}.fish",
}
FILES = (
    ("/etc/shadowrelay", "node.toml, certificates, keys, tokens: what shadowrelay init wrote for this node"),
    (
        "/var/lib/shadowrelay",
        "the queue: acknowledged mail, and copies for other nodes",
    ),
    ("/var/log/shadowrelay", "the message tracking log: the evidence of what became of each message"),
    (
        "/usr/share/doc/shadowrelay",
        "the documentation (setup.md first), and examples: every setting, alert rules, dashboards, other mail servers",
    ),
)


def manual() -> str:
    """In the language of man(7)."""
    root = typer.main.get_command(app)
    lines = [
        f'.TH {PROGRAM.upper()} 8 "" "{PROGRAM} {__version__}" "System administration"',
        ".SH NAME",
        f"{PROGRAM} \\- {_text(str(root.help)).rstrip('.')}",
        ".SH SYNOPSIS",
        f".B {PROGRAM}\n.I COMMAND\n[\n.I OPTIONS\n]",
        ".SH COMMANDS",
    ]
    for words, command in _commands(root, (PROGRAM,)):
        context = typer.Context(command, info_name=" ".join(words))
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f'.SS "{_text(" ".join(words))} {_text(usage)}"', *_paragraphs(str(command.help or ""))]
        for name, text in filter(None, (one.get_help_record(context) for one in command.params)):
            if name != "--help":
                lines += [".TP", f".B {_text(name)}", _text(text)]
    lines += [".SH EXIT STATUS", _text(EXIT_CODES.removeprefix("Exit codes: ")), ".SH FILES"]
    for name, text in FILES:
        lines += [".TP", f".I {_text(name)}", _text(text)]
    lines += [".SH SEE ALSO", _text(f"/usr/share/doc/{PROGRAM}/docs/operations.md; systemctl(1) for {PROGRAM}.service")]
    return "\n".join(lines) + "\n"


def _commands(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that call it."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, (*words, name))
        else:
            yield (*words, name), command


def _paragraphs(text: str) -> list[str]:
    return [line for one in text.split("\n\n") for line in (".PP", _text(" ".join(one.split())))]


def _text(text: str) -> str:
    """As it is, whatever troff would make of it."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def write(root: Path) -> None:
    """Below this directory, as a package has them."""
    page = root / f"usr/share/man/man8/{PROGRAM}.8.gz"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_bytes(gzip.compress(manual().encode(), mtime=0))
    for shell, place in COMPLETIONS.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(get_completion_script(prog_name=PROGRAM, complete_var=f"_{PROGRAM.upper()}_COMPLETE", shell=shell) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
