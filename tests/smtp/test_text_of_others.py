"""Text of others is bytes: whatever a server says, a delivery ends with an outcome that rows, logs and JSON can hold."""

import json
import sqlite3
import ssl
from collections.abc import Callable
from contextlib import closing

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowrelay.model.printable import printable
from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.client import ConnectOptions, TlsUse, open_session
from shadowrelay.smtp.client_session import TEXT_CHARACTERS_MAX, SessionBroken, on_behalf, reason_of, reply_from
from shadowrelay.smtp.data import header_facts
from shadowrelay.smtp.tls import opportunistic_context
from tests.kit.smtp_servers import ScriptedServer, serving
from tests.smtp.transactions import run, run_in, some_work

MANY = 10_000_000
HOSTILE = [
    pytest.param(b"black ip \xb7\xa2\xd0\xc5", id="GBK"),
    pytest.param(b"\x00\x00nul\x00", id="NUL"),
    pytest.param(b"\x1b]0;owned\x07\x1b[2J\x9b2J", id="escapes for terminals"),
    pytest.param("\u202egpj.exe \u2028 \x85".encode(), id="directions and line ends"),
    pytest.param(b"\xed\xb2\x80\xed\xa0\xbd", id="surrogates in UTF-8"),
    pytest.param(b"x" * 5_000, id="long"),
    pytest.param(b"\xff" * MANY, id="10 MB"),
]


def as_text(octets: bytes) -> str:
    """As `ScriptedServer` sends it."""
    return octets.decode("utf-8", "surrogateescape")


def assert_harmless(text: str) -> None:
    assert len(text) <= 2 * TEXT_CHARACTERS_MAX
    json.dumps(text, ensure_ascii=False).encode()
    assert not set(text) & set(map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x202E)))
    with closing(sqlite3.connect(":memory:")) as database:
        assert (text,) == database.execute("SELECT ?", (text,)).fetchone()


@pytest.mark.parametrize("octets", HOSTILE)
async def test_a_greeting_or_ehlo_reply_of_any_octets_ends_as_a_harmless_refusal(octets: bytes) -> None:
    for script in ({"GREETING": f"554 {as_text(octets)}"}, {"EHLO": f"554 {as_text(octets)}", "HELO": f"554 {as_text(octets)}"}):
        server = ScriptedServer(script)
        async with serving(server):
            with pytest.raises(SessionBroken) as caught:
                await open_session(HostPort("127.0.0.1", server.port), "hop.example", ConnectOptions("me.example"))

        assert_harmless(str(caught.value.reply))


@pytest.mark.parametrize("verb", ["MAIL", "RCPT", "DATA", "DOT"])
@pytest.mark.parametrize("octets", HOSTILE)
async def test_a_reply_of_any_octets_is_recorded_as_harmless_text(octets: bytes, verb: str) -> None:
    result = await run(ScriptedServer({verb: f"554 {as_text(octets)}"}), some_work())

    texts = [*result.replies.values(), str(result.error.error.reply if hasattr(result.error, "error") else result.error)]
    for text in texts:
        assert_harmless(text)
    if len(octets) < 2_000 and b"\n" not in octets:
        assert any("554" in text for text in texts)


@pytest.mark.parametrize("octets", HOSTILE)
async def test_extensions_of_any_octets_do_not_keep_a_message_from_being_delivered(octets: bytes) -> None:
    hello = f"250-{as_text(octets)}\r\n250-{as_text(octets)} {as_text(octets)}\r\n250 PIPELINING"

    result = await run(ScriptedServer({"EHLO": hello}), some_work())

    assert {1: "250 2.0.0 taken"} == result.replies


@pytest.fixture(scope="module")
def server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    return context


AT_LENGTH = {
    "a line": ("", "x" * 9_000),
    "a line of 300 kB": ("", "x" * 300_000),
    "many lines": ("x" * 900 + "\n", "x") * 40,
    "many long lines": ("x" * 9_000 + "\n", "x" * 9_000) * 20,
}


@pytest.mark.parametrize("verb", ["GREETING", "EHLO", "STARTTLS"])
@pytest.mark.parametrize("texts", AT_LENGTH.values(), ids=AT_LENGTH)
async def test_a_server_that_says_much_gets_its_mail(texts: tuple[str, ...], verb: str, server_tls: ssl.SSLContext) -> None:
    code = "250" if verb == "EHLO" else "220"
    *more, last = [line for line in "".join(texts).split("\n") if line]
    lines = [*(f"{code}-{line}" for line in more), f"{code} {last}"]
    if verb == "EHLO":
        lines = [f"{code}-test", f"{code}-STARTTLS", f"{code}-PIPELINING", *lines]
    server = ScriptedServer({verb: "\r\n".join(lines)}, tls=server_tls)

    options = ConnectOptions("me.example", TlsUse.OPPORTUNISTIC, opportunistic_context())
    async with serving(server):
        session = await open_session(HostPort("127.0.0.1", server.port), "hop.example", options)
        result = await run_in(session, some_work())
        session.pipeline.quit()

    assert {1: "250 2.0.0 taken"} == result.replies
    assert "pipelining" in session.extensions
    assert session.is_tls


@pytest.mark.parametrize("size", ["9" * 5_000, "\u0663", "-1", "1e3", "", "x"])
async def test_a_size_that_is_no_number_is_no_limit(size: str) -> None:
    result = await run(ScriptedServer(extensions=(f"SIZE {size}",)), some_work())

    assert {1: "250 2.0.0 taken"} == result.replies


TEXTS: list[Callable[[bytes], str]] = [
    lambda octets: printable(octets.decode("utf-8", "surrogateescape")),
    lambda octets: str(reply_from(554, as_text(octets).split("\n"))),
    lambda octets: str(on_behalf(ValueError(as_text(octets))).reply),
    lambda octets: reason_of(OSError(5, as_text(octets))),
    lambda octets: header_facts(b"Subject: " + octets + b"\r\nMessage-ID: " + octets + b"\r\n\r\n").subject,
    lambda octets: header_facts(b"Message-ID: " + octets + b"\r\n\r\n").internet_message_id,
]


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_octets_become_harmless_text(octets: bytes) -> None:
    for text in TEXTS:
        assert_harmless(text(octets))


@given(st.text(max_size=200))
def test_any_text_becomes_harmless_and_what_is_printable_stays(text: str) -> None:
    assert_harmless(printable(text))
    if text.isprintable():
        assert text == printable(text)


def test_what_was_replaced_can_be_told() -> None:
    assert r"black ip \xb7\xa2 \ud800 x y" == printable("black ip \udcb7\udca2 \ud800 x\r\n\x1b\x9by")
    assert Reply(554, "5.7.1", r"a b \xff") == reply_from(554, ["5.7.1 a", "5.7.1 b \udcff"])
