"""Malformed and hostile input over a real connection, each with the exact replies, and what was accepted after all."""

import contextlib
import random
import re
from pathlib import Path

import pytest
import structlog

from tests.kit.receiving import HELLO, PEER, files_in, receiving
from tests.smtp.hostile import BARE, CLOSED, COMMANDS, ENDINGS, OK, SMUGGLED


@pytest.mark.parametrize(("before", "octets", "expected"), [case[1:] for case in COMMANDS], ids=[case[0] for case in COMMANDS])
async def test_a_bad_command_gets_its_reply_and_nothing_is_accepted(
    before: bytes, octets: bytes, expected: list[str], tmp_path: Path
) -> None:
    async with receiving(tmp_path) as station:
        client = await station.connect()
        await client.send(before)
        await client.replies(before.count(b"\r\n"))

        await client.send(octets)
        answers = [await client.rest() or CLOSED if want == CLOSED else await client.reply() for want in expected]

        assert [want for want in expected if not want.endswith("~")] == [
            answer for answer, want in zip(answers, expected, strict=True) if not want.endswith("~")
        ]
        assert [] == station.acceptor.accepted


@pytest.mark.parametrize("ending", ENDINGS, ids=repr)
async def test_a_smuggled_ending_ends_nothing(ending: bytes, tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")

        with contextlib.suppress(ConnectionError):
            await client.send(b"first" + ending + SMUGGLED)

        assert BARE == await client.reply()
        assert "" == await client.rest()
        assert [] == station.acceptor.accepted


LEGAL_ENDINGS = [b"\r\n\x00.\r\n", b"\r\n .\r\n", b"\r\n..\r\n", b"\r\n.\x00\r\n", b"\r\n. \r\n"]


@pytest.mark.parametrize("ending", LEGAL_ENDINGS, ids=repr)
async def test_what_only_looks_like_an_ending_is_content(ending: bytes, tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")

        await client.send(b"First: x" + ending + b"NOOP\r\n.\r\nNOOP\r\n")

        assert ["250 2.0.0 Queued", OK] == await client.replies(2)
        content = b"First: x" + ending.replace(b"\r\n.", b"\r\n") + b"NOOP\r\n"
        assert [content] == station.acceptor.bodies


async def test_a_bare_line_end_is_refused_only_after_the_real_end(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")
        await client.send(b"a\nb" + b"x" * 2_000_000)  # far over what is read at once: all of it is content

        await client.send(b"\r\n.\r\n")

        assert BARE == await client.reply()
        assert "" == await client.rest()
        assert [] == files_in(tmp_path)


@pytest.mark.parametrize(("length", "expected"), [(2_046, "250 2.0.0 Queued"), (2_047, "554 5.6.0 Line too long")])
async def test_a_line_of_content_has_at_most_2048_octets_where_the_connector_is_strict(length: int, expected: str, tmp_path: Path) -> None:
    async with receiving(tmp_path, lenient_addresses=False) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")

        await client.send(b"short\r\n\r\n" + b"x" * length + b"\r\nshort\r\n.\r\nNOOP\r\n")

        assert [expected, OK] == await client.replies(2)


async def test_content_that_never_breaks_a_line_is_refused_at_its_end_and_not_kept(tmp_path: Path) -> None:
    async with receiving(tmp_path, lenient_addresses=False) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")

        await client.send(b"x" * 3_000_000 + b"\r\n.\r\nNOOP\r\n")

        assert ["554 5.6.0 Line too long", OK] == await client.replies(2)
        assert [] == files_in(tmp_path)


WORDS = [
    b"EHLO x\r\n", b"HELO x\r\n", b"MAIL FROM:<a@x.example>", b"MAIL FROM:<>", b" SIZE=9", b" BODY=8BITMIME", b" SMTPUTF8",
    b"RCPT TO:<b@here.example>", b"DATA\r\n", b".\r\n", b"\r\n.\r\n", b"\r\n", b"\r", b"\n", b"BDAT 5\r\n", b"BDAT 99 LAST",
    b"XSHADOW ", b"ENVELOPE ", b"COMMIT ", b"XQDISCARD ", b"STATUS ", b"STATUS BDAT 7\r\n",
    b" XSHADOW=HOLD:00000000-0000-4000-8000-000000000009:1.1", b"RSET\r\n", b"NOOP\r\n", b"VRFY", b"STARTTLS\r\n", b"\x00",
    b"\xff\xfe", "ü".encode(), b"<", b">", b"@", b"=", b" ", b"400", b"size=5 sha256=", b"x" * 600, HELLO.encode() + b"\r\n",
]  # fmt: skip


@pytest.mark.parametrize("is_peer", [False, True], ids=["stranger", "peer"])
async def test_whatever_comes_is_answered_in_form_and_nothing_fails_inside(is_peer: bool, tmp_path: Path) -> None:
    chance = random.Random(1)
    secured = PEER if is_peer else {}
    async with receiving(tmp_path, max_protocol_errors=1000, **secured) as station:
        with structlog.testing.capture_logs() as lines:
            for _ in range(400):
                client = await station.connect()
                if is_peer:
                    await client.send(b"EHLO b.example\r\n" + HELLO.encode() + b"\r\n")
                with contextlib.suppress(ConnectionError):
                    await client.send(b"".join(chance.choices(WORDS, k=chance.randrange(1, 40))))
                    client.writer.write_eof()
                    for reply in (await client.rest()).splitlines():
                        assert re.fullmatch(r"[2-5][0-9]{2}[ -].+", reply)
                await client.close()

        assert [] == [line for line in lines if line["event"] != "session.closed"]
        assert [] == files_in(tmp_path)
