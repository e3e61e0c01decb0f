"""Whole conversations: see `dialogs/*.dlg`."""

import ast
import fnmatch
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.replies import Reply
from shadowrelay.rules.back_pressure import Level, Pressure
from tests.kit.clients import Client
from tests.kit.receiving import Station, receiving

# Dialogs as files: one conversation each, readable by anybody who knows SMTP, played over a real connection.
#
# # a comment
# given max_hop_count = 5           a setting of the receive connector, as in the configuration file
# given acceptor answers 451 4.3.0 No
# given copies are answered 554 5.5.0 XSHADOW superseded delivered
# given pressure medium             the back pressure of the node; HOLD is not offered above normal
# C: NOOP                           a line that the client sends, with CRLF; lines that follow each other are one write
# C= "half a li"                    octets without CRLF, as a Python literal
# S: 250 2.0.0 OK                   the next reply, whole; ~ stands for anything; the lines of a long one stand on one line
# S: (closes)                       nothing more comes, and the connection ends
# accepted 1                        how many messages were accepted up to here
# held 1                            how many shadow copies were held up to here

_REPLY = re.compile(r"(\d{3}) (\d\.\d\.\d) (.*)")


@dataclass
class ReadDialog:
    """A dialog that was read."""

    steps: list[tuple[str, str]]
    settings: dict[str, Any] = field(default_factory=dict)
    acceptor_reply: Reply | None = None
    hold_reply: Reply | None = None
    pressure: Level = Level.NORMAL


def read(path: Path) -> ReadDialog:
    """Raises: ValueError for a line that means nothing."""
    dialog = ReadDialog([])
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "given":
            _take_given(dialog, rest)
        elif word in ("C:", "C=", "S:", "accepted", "held"):
            dialog.steps.append((word, rest))
        else:
            raise ValueError(f"{path.name}: {line!r} means nothing")
    return dialog


def _take_given(dialog: ReadDialog, text: str) -> None:
    if text.startswith("acceptor answers "):
        dialog.acceptor_reply = _reply_of(text.removeprefix("acceptor answers "))
    elif text.startswith("copies are answered "):
        dialog.hold_reply = _reply_of(text.removeprefix("copies are answered "))
    elif text.startswith("pressure "):
        dialog.pressure = Level[text.removeprefix("pressure ").upper()]
    else:
        dialog.settings |= tomllib.loads(text)


def _reply_of(text: str) -> Reply:
    found = _REPLY.fullmatch(text)
    assert found is not None, text
    return Reply(int(found[1]), found[2], found[3])


async def play(dialog: ReadDialog, spool: Path) -> None:
    """Play it; AssertionError where it goes another way."""
    async with receiving(spool, **dialog.settings) as station:
        station.acceptor.reply = dialog.acceptor_reply
        station.acceptor.pressure = Pressure({}, dialog.pressure, is_felt=dialog.pressure is not Level.NORMAL)
        station.peer_requests.is_offering = dialog.pressure is Level.NORMAL
        if dialog.hold_reply is not None:
            station.peer_requests.hold_reply = dialog.hold_reply
        client = await station.connect(greeting=False)
        written = b""
        for word, rest in dialog.steps:
            if word.startswith("C"):
                written += rest.encode() + b"\r\n" if word == "C:" else _octets_of(rest)
                continue
            if written:
                await client.send(written)
                written = b""
            await _expect(station, client, word, rest)


def _octets_of(literal: str) -> bytes:
    return str(ast.literal_eval(literal)).encode("latin-1")


async def _expect(station: Station, client: Client, word: str, rest: str) -> None:
    if word == "accepted":
        assert int(rest) == len(station.acceptor.accepted)
    elif word == "held":
        assert int(rest) == len(station.peer_requests.holds)
    elif rest == "(closes)":
        assert await client.rest() == ""
    else:
        lines = (await client.reply()).split("\n")
        reply = " ".join([lines[0][:3], *(line[4:] for line in lines)])
        pattern = re.sub(r"([\[\]?*])", r"[\1]", rest).replace("~", "*")
        assert fnmatch.fnmatchcase(reply, pattern), f"expected {rest!r}, got {reply!r}"


DIALOGS = sorted((Path(__file__).parent / "dialogs").glob("*.dlg"))


@pytest.mark.parametrize("path", DIALOGS, ids=lambda path: path.stem)
async def test_the_dialog_goes_as_written(path: Path, tmp_path: Path) -> None:
    await play(read(path), tmp_path)


async def test_a_dialog_that_goes_another_way_fails(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.dlg"
    wrong.write_text("S: 220 ~\nC: NOOP\nS: 251 ~\n")

    with pytest.raises(AssertionError, match=r"expected '251 ~', got '250 2\.0\.0 OK'"):
        await play(read(wrong), tmp_path)
