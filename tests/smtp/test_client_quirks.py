"""What aiosmtplib does that this package relies on or works around, pinned: an upgrade that changes it is noticed.

And that its errors, and those of the system, all have a meaning here.
"""

import asyncio
import ssl

import aiosmtplib
import aiosmtplib.errors
import pytest
import trustme
import uvloop

from shadowrelay.model.replies import Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.client import ConnectOptions, TlsUse, dial, open_session
from shadowrelay.smtp.client_session import LIBRARY_ERRORS, OpeningClient, OpeningProtocol, SessionBroken, on_behalf, reply_from
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.smtp_servers import CLOSE, HANG, ScriptedServer, serving


async def a_client(server: ScriptedServer) -> aiosmtplib.SMTP:
    client = aiosmtplib.SMTP(hostname="127.0.0.1", port=server.port, start_tls=False, local_hostname="me.example")
    await client.connect()
    await client.ehlo()
    return client


# traps 4, 5, 6, 9 of the library


async def test_the_library_refuses_the_null_sender_in_angle_brackets_and_takes_the_empty_one():
    server = ScriptedServer()
    async with serving(server):
        client = await a_client(server)
        with pytest.raises(ValueError, match="<>"):
            await client.mail("<>")
        await client.mail("")
        client.close()

    assert "MAIL FROM:<>" == server.lines[-1]


async def test_the_library_rewrites_line_ends_so_content_does_not_go_through_it():
    server = ScriptedServer()
    async with serving(server):
        client = await a_client(server)
        await client.mail("a@b.example")
        await client.rcpt("a@b.example")
        await client.data(b"one\rtwo\nthree")
        client.close()

    assert [b"one\r\ntwo\r\nthree\r\n"] == server.messages


async def test_the_library_gives_up_on_a_reply_over_32_kib_and_stays_connected():
    server = ScriptedServer({"NOOP": "\r\n".join([*["250-" + "x" * 36] * 900, "250 end"])})
    async with serving(server):
        client = await a_client(server)
        with pytest.raises(aiosmtplib.SMTPResponseException, match="Response too long") as caught:
            await client.noop()

        assert (-1, True) == (caught.value.code, client.is_connected)
        client.close()


async def test_the_library_takes_only_220_for_a_greeting():
    async with serving(server := ScriptedServer({"GREETING": "250 hi"})):
        with pytest.raises(aiosmtplib.SMTPConnectResponseError, match="hi"):
            await a_client(server)


async def test_the_library_is_given_our_protocol_by_a_method_that_it_calls():
    async with serving(server := ScriptedServer()):
        connection = await dial(HostPort("127.0.0.1", server.port))
        client = OpeningClient(sock=connection, local_hostname="me.example", timeout=None, start_tls=False)
        await client.connect()

        assert isinstance(client.protocol, OpeningProtocol)
        assert aiosmtplib.smtp.SMTPProtocol is aiosmtplib.protocol.SMTPProtocol, "other users of the library in this process have its own"
        client.close()


async def test_the_library_takes_any_final_reply_but_250_for_an_error():
    server = ScriptedServer({"DOT": "251 2.0.0 fine"})
    async with serving(server):
        client = await a_client(server)
        await client.mail("a@b.example")
        await client.rcpt("a@b.example")
        with pytest.raises(aiosmtplib.SMTPDataError, match="fine"):
            await client.data(b"x\r\n")
        client.close()


async def test_the_library_does_not_greet_by_itself_without_starttls():
    server = ScriptedServer()
    async with serving(server):
        client = aiosmtplib.SMTP(hostname="127.0.0.1", port=server.port, start_tls=False)
        await client.connect()
        await client.execute_command(b"NOOP")
        client.close()

    assert ["NOOP"] == server.lines


# taking over its transport


def tls_pair() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("hop.example").configure_cert(server)
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    authority.configure_trust(client)
    return server, client


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_a_taken_over_session_carries_pipelined_commands_and_much_data_and_sees_the_end(loop_factory, is_tls):
    server_tls, client_tls = tls_pair()
    server = ScriptedServer({"QUIT": CLOSE}, tls=server_tls if is_tls else None)
    block = bytes(range(256)) * 8192

    async def talk() -> list[int]:
        async with serving(server):
            options = ConnectOptions("me.example", TlsUse.REQUIRED if is_tls else TlsUse.NEVER, client_tls if is_tls else None)
            session = await open_session(HostPort("127.0.0.1", server.port), "hop.example", options)
            pipeline = session.pipeline
            pipeline.write(b"NOOP\r\nNOOP\r\nBDAT %d\r\n" % len(block), 3)
            pipeline.write(block, 0)
            await pipeline.drain(PATIENCE_SECONDS)
            codes = [answer.code for answer in await pipeline.answers(3, PATIENCE_SECONDS)]
            pipeline.write(b"QUIT\r\n", 1)
            with pytest.raises(SessionBroken, match="Connection lost"):
                await pipeline.answer(PATIENCE_SECONDS)
            await pipeline.closed()
            assert is_tls == session.is_tls
            return codes

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        codes = runner.run(talk())

    assert [250, 250, 250] == codes
    assert [block] == server.sessions[0].blocks


async def test_a_server_that_takes_nothing_is_not_waited_for_for_ever():
    async def keep_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hi\r\n")
        await reader.readline()
        writer.write(b"250 hi\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await done.wait()
        writer.close()

    done = asyncio.Event()
    listener = await asyncio.start_server(keep_open, "127.0.0.1", 0)
    session = await open_session(HostPort("127.0.0.1", listener.sockets[0].getsockname()[1]), "hop", ConnectOptions("me"))
    try:
        session.pipeline.write(b"x" * 20_000_000, 0)
        with pytest.raises(SessionBroken, match="Timed out"):
            await session.pipeline.drain(0.1)
    finally:
        done.set()
        await session.pipeline.closed()
        listener.close()
        await listener.wait_closed()


OPENINGS_THAT_FAIL = [
    ("a greeting of garbage", {"GREETING": "hello"}, "4.5.0"),
    ("no greeting", {"GREETING": CLOSE}, "4.4.2"),
    ("silence", {"GREETING": HANG}, "4.4.2"),
    ("EHLO and HELO refused", {"EHLO": "500 what", "HELO": "500 what"}, ""),
    ("EHLO answered late", {"EHLO": HANG}, "4.4.2"),
    ("more said than asked", {"EHLO": "250 hi\r\n250 there"}, "4.5.0"),
    ("a closing server", {"EHLO": "421 4.3.2 bye"}, "4.3.2"),
]


@pytest.mark.parametrize(("script", "enhanced"), [case[1:] for case in OPENINGS_THAT_FAIL], ids=[case[0] for case in OPENINGS_THAT_FAIL])
async def test_an_opening_that_fails_leaves_no_connection(script, enhanced):
    server = ScriptedServer(script)
    # short is only the wait for what never comes
    seconds = {verb: 0.2 if reply == HANG else PATIENCE_SECONDS for verb, reply in script.items()}
    options = ConnectOptions(
        "me.example",
        greeting_seconds=seconds.get("GREETING", PATIENCE_SECONDS),
        command_seconds=seconds.get("EHLO", PATIENCE_SECONDS),
    )
    async with serving(server):
        with pytest.raises(SessionBroken) as caught:
            await open_session(HostPort("127.0.0.1", server.port), "hop", options)
        await until(lambda: server.open_count == 0)

    assert enhanced == caught.value.reply.enhanced


async def test_an_old_server_is_greeted_with_helo():
    server = ScriptedServer({"EHLO": "502 5.5.1 no"})
    async with serving(server):
        session = await open_session(HostPort("127.0.0.1", server.port), "hop", ConnectOptions("me.example"))
        session.pipeline.quit()
        await session.pipeline.closed()

    assert ({}, ["EHLO me.example", "HELO me.example"]) == (session.extensions, server.lines[:2])


async def test_extensions_heard_before_tls_are_forgotten():
    server_tls, client_tls = tls_pair()
    server = ScriptedServer(
        {"EHLO": ["250-hi\r\n250-STARTTLS\r\n250 INJECTED", "250-hi\r\n250 PIPELINING"], "STARTTLS": "220 go\r\n250 injected"},
        tls=server_tls,
    )
    async with serving(server):
        session = await open_session(HostPort("127.0.0.1", server.port), "hop.example", ConnectOptions("me", TlsUse.REQUIRED, client_tls))
        session.pipeline.quit()
        await session.pipeline.closed()

    assert {"pipelining": ""} == session.extensions


@pytest.mark.parametrize("name", ["other.example", "hop.example"])
async def test_required_tls_is_never_done_without(name):
    server_tls, client_tls = tls_pair()
    server = ScriptedServer(tls=server_tls if name == "other.example" else None)
    async with serving(server):
        with pytest.raises(SessionBroken) as caught:
            await open_session(HostPort("127.0.0.1", server.port), name, ConnectOptions("me", TlsUse.REQUIRED, client_tls))
        await until(lambda: server.open_count == 0)

    assert "4.7.5" == caught.value.reply.enhanced
    assert 1 == len(server.sessions)


@pytest.mark.parametrize("name", ["", "a b", "a\r\nb", "ä.example"])
async def test_a_name_that_is_none_is_not_dialled(name):
    with pytest.raises(SessionBroken, match="no host name"):
        await open_session(HostPort("127.0.0.1", 1), name, ConnectOptions("me"))


# errors


def _tree(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind}.union(*(_tree(child) for child in kind.__subclasses__()))


def test_every_error_of_the_library_stands_in_the_table():
    listed = {kind for kind, _ in LIBRARY_ERRORS}
    named = {getattr(aiosmtplib.errors, name) for name in aiosmtplib.errors.__all__}

    assert named == {kind for kind in _tree(aiosmtplib.SMTPException) if kind.__module__.startswith("aiosmtplib")}
    assert set() == named - listed


def test_no_entry_of_the_table_stands_behind_one_that_covers_it():
    kinds = [kind for kind, _ in LIBRARY_ERRORS]

    hidden = [later for place, later in enumerate(kinds) if any(issubclass(later, earlier) for earlier in kinds[:place])]

    assert [] == hidden


def test_no_error_of_the_table_is_permanent():
    assert {4} == {reply.code // 100 for _, reply in LIBRARY_ERRORS}


WHAT_ERRORS_MEAN = [
    (aiosmtplib.SMTPHeloError(550, "5.7.1 not you"), Reply(550, "5.7.1", "not you")),
    (aiosmtplib.SMTPHeloError(-1, "Malformed"), Reply(451, "4.5.0", "The server's reply broke the protocol: (-1, 'Malformed')")),
    (ssl.SSLError(1, "bad"), Reply(451, "4.7.5", "TLS could not be negotiated: ('bad',)")),
    (ConnectionResetError("gone\r\n"), Reply(451, "4.4.2", "Connection lost: gone ")),
    (KeyError("x"), Reply(451, "4.4.2", "Connection lost: 'x'")),
]


@pytest.mark.parametrize(("error", "reply"), WHAT_ERRORS_MEAN, ids=[type(error).__name__ for error, _ in WHAT_ERRORS_MEAN])
def test_an_error_means_a_reply(error, reply):
    found = on_behalf(error).reply

    assert (reply.code, reply.enhanced, reply.text.split(":")[0]) == (found.code, found.enhanced, found.text.split(":")[0])
    assert "\r" not in found.text


def test_a_reply_is_kept_without_control_characters_and_bounded():
    reply = reply_from(550, ["5.7.1 a\x00\x1b[31mb", "5.7.1 " + "c" * 5000])

    assert ("5.7.1", "a [31mb c") == (reply.enhanced, reply.text[:9])
    assert 1000 == len(reply.text)
