"""docs/protocol.md is held to the parsers: its dialogs are played, its limits compared, its grammar sampled."""

import hashlib
import re
from collections import deque
from pathlib import Path

import pytest

from shadowrelay.model.ids import NO_DATABASE
from shadowrelay.model.replies import WireError
from shadowrelay.protocol import fields, xqdiscard, xshadow
from shadowrelay.protocol.fields import parse_mail, parse_rcpt
from shadowrelay.protocol.xqdiscard import (
    DiscardQuery,
    parse_answer_lines,
    parse_command,
    parse_question_block,
    parse_reply_lines,
    parse_superseded,
)
from shadowrelay.protocol.xshadow import (
    XshadowForm,
    format_keyword,
    parse_commit,
    parse_envelope,
    parse_form,
    parse_hello,
    parse_hold,
    parse_position,
)
from shadowrelay.smtp.receiver import CHUNK

DOCUMENT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text("utf-8")
BLOCKS = re.findall(r"```text\n(.*?)\n```", DOCUMENT, re.DOTALL)
REPLY_LINE = re.compile(r"([2-5][0-9]{2})([- ])(.*)")
ENHANCED = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3} ")


class Dialog:
    """Plays a session: each command is parsed where it stands, and says how its reply is to be read."""

    def __init__(self):
        self.pending = deque(["greeting"])
        self.octets_left = 0
        self.octets = b""
        self.content = b""
        self.reply = []
        self.database = NO_DATABASE
        self.played = set()

    def play(self, line):
        side, text = line[:3], line[3:]
        if side == "C: " and self.octets_left:
            self.take_octets(f"{text}\r\n".encode())
        elif side == "C: ":
            self.take_command(text)
        else:
            assert side == "S: "
            self.take_reply_line(text)

    def take_octets(self, octets):
        self.octets += octets
        self.octets_left -= len(octets)
        assert self.octets_left >= 0
        if not self.octets_left and self.pending[-1] == "STATUS":
            assert parse_question_block(self.octets)
        elif not self.octets_left:
            self.content += self.octets

    def take_command(self, text):
        assert not self.reply, "a command in the middle of a reply"
        verb, _, argument = text.partition(" ")
        kind = getattr(self, f"command_{verb}")(argument) or verb
        self.played.add(kind)
        self.pending.append(kind)

    def command_EHLO(self, argument):
        assert argument

    command_STARTTLS = command_QUIT = command_NOOP = lambda self, argument: None

    def command_MAIL(self, argument):
        self.content = b""
        parse_hold(parse_mail(argument).parameters["XSHADOW"], self.database)

    def command_RCPT(self, argument):
        parse_rcpt(argument)

    def command_XSHADOW(self, argument):
        form, rest = parse_form(argument)
        if form is XshadowForm.HELLO:
            self.database = parse_hello(rest).database
            return "hello"
        if form is XshadowForm.ENVELOPE:
            parse_envelope(rest)
            return "ENVELOPE"
        assert parse_commit(rest) == (len(self.content), hashlib.sha256(self.content).digest())
        return "COMMIT"

    def command_BDAT(self, argument):
        self.octets, self.octets_left = b"", int(CHUNK.fullmatch(argument)[1])

    def command_XQDISCARD(self, argument):
        if argument == "x":
            with pytest.raises(WireError):
                parse_command(argument)
            return "refused"
        query = parse_command(argument)
        if isinstance(query, DiscardQuery):
            return "discards"
        if query.block_size is not None:
            self.octets, self.octets_left = b"", query.block_size
        return "STATUS"

    def take_reply_line(self, text):
        assert not self.octets_left, "a reply before the announced octets came"
        code, separator, rest = REPLY_LINE.fullmatch(text).groups()
        self.reply.append(rest)
        if separator == " ":
            kind, lines, self.reply = self.pending.popleft(), self.reply, []
            getattr(self, f"reply_{kind}", self.reply_plain)(int(code), lines)

    def reply_greeting(self, code, lines):
        assert code == 220

    def reply_plain(self, code, lines):
        assert code in (220, 221, 250)
        assert ENHANCED.match(lines[0])

    def reply_EHLO(self, code, lines):
        keywords = {format_keyword(hold=hold, track=track) for hold in (True, False) for track in (True, False)}
        assert {line for line in lines if line.startswith("XSHADOW")} <= keywords

    def reply_hello(self, code, lines):
        assert parse_hello(lines[0].removeprefix("2.0.0 ")).seen

    def reply_ENVELOPE(self, code, lines):
        assert parse_position(lines[-1])

    def reply_COMMIT(self, code, lines):
        if code == 554:
            self.played.add("superseded")
            assert parse_superseded(lines[0]).number
        else:
            assert (code, bool(parse_position(lines[-1]))) == (250, True)

    def reply_discards(self, code, lines):
        parse_reply_lines(lines)
        assert parse_position("\n".join(lines))

    def reply_STATUS(self, code, lines):
        parse_answer_lines(lines)
        assert parse_position("\n".join(lines))

    def reply_refused(self, code, lines):
        assert (code, lines) == (501, ["5.5.4 Bad maximum"])


def dialogs():
    """The blocks, where one that begins with a command goes on in the session before it."""
    sessions = []
    for block in BLOCKS:
        lines = block.split("\n")
        if lines[0].startswith("S: 220 "):
            sessions.append([])
        sessions[-1] += lines
    return sessions


def played(lines):
    dialog = Dialog()
    for line in lines:
        dialog.play(line)
    return dialog


@pytest.mark.parametrize("lines", dialogs(), ids=["copy", "discards", "returned"])
def test_every_line_of_a_dialog_is_read_by_the_parsers(lines):
    dialog = played(lines)

    assert not dialog.pending
    assert not dialog.reply
    assert not dialog.octets_left


def test_the_dialogs_show_every_form_there_is():
    shown = set().union(*(played(lines).played for lines in dialogs()))

    assert shown >= {"hello", "MAIL", "RCPT", "ENVELOPE", "BDAT", "COMMIT", "discards", "STATUS", "superseded", "refused"}


@pytest.mark.parametrize("place", range(len(dialogs())))
def test_a_dialog_with_a_letter_changed_is_noticed(place):
    lines = dialogs()[place]
    index = next(index for index, line in enumerate(lines) if "database=" in line)
    lines[index] = lines[index].replace("database=", "data base=")

    with pytest.raises(WireError):
        played(lines)


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        ("hello", xshadow.HELLO_OCTETS_MAX),
        ("`XSHADOW=TRACK:…`", len(" XSHADOW=") + xshadow.HOLD_OCTETS_MAX),
        ("ENVELOPE line", len("XSHADOW ENVELOPE \r\n") + xshadow.ENVELOPE_OCTETS_MAX),
        ("COMMIT line", len("XSHADOW COMMIT \r\n") + xshadow.COMMIT_OCTETS_MAX),
        ("number", fields.NUMBER_OCTETS_MAX),
        ("recipients of a message", fields.ORDINAL_MAX),
        ("`done`", fields.DONE_OCTETS_MAX),
        ("XQDISCARD reply", xqdiscard.REPLY_LINES_MAX),
        ("block of questions", xqdiscard.QUESTIONS_PER_BLOCK_MAX),
        ("STATUS answer", xqdiscard.ANSWER_OCTETS_MAX),
        ("STATUS reply", xqdiscard.ANSWERS_OCTETS_MAX),
    ],
)
def test_a_limit_in_the_document_is_the_limit_in_the_code(what, limit):
    row = re.search(rf"^\| {re.escape(what)} \| ([0-9]+(?:,[0-9]{{3}})*)", DOCUMENT, re.MULTILINE)

    assert row is not None
    assert row[1] == f"{limit:,}"


def test_other_numbers_of_the_document_are_those_of_the_code():
    assert f"block of questions | 400, {xqdiscard.BLOCK_OCTETS_MAX:,} octets" in DOCUMENT
    assert f"at most {xqdiscard.MAXIMUM_MAX};" in DOCUMENT
    assert f"at most {fields.COUNTER_MAX}" in DOCUMENT
    assert f"at most {fields.RANK_MAX}" in DOCUMENT
    assert xqdiscard.REPLY_OCTETS_MAX == 24 * 1024
    path_limits = (fields.LOCAL_PART_OCTETS_MAX, fields.PATH_OCTETS_MAX)
    assert path_limits == (64, 256)


@pytest.mark.parametrize(
    "reply",
    [fields.TRACK_NOT_OFFERED, fields.BAD_SENDER, fields.BAD_RECIPIENT, fields.SMTPUTF8_NEEDED, fields.bad_argument("x").reply],
)
def test_the_replies_of_the_parsers_stand_in_the_table(reply):
    assert f"`{reply.code} {reply.enhanced}" in DOCUMENT.split("## 13.")[1].split("## 14.")[0]


def test_the_contents_lead_to_the_sections():
    headings = re.findall(r"^## (.*)$", DOCUMENT, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    assert anchors == set(re.findall(r"\]\(#([^)]*)\)", DOCUMENT))
