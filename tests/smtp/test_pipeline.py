"""Replies are read alike however they come. A session that broke tells everybody so, and keeps nobody alive by that."""

import traceback
from unittest.mock import Mock

import pytest

from shadowrelay.model.routing import HostPort
from shadowrelay.smtp import client_session
from shadowrelay.smtp.client import ConnectOptions, open_session
from shadowrelay.smtp.client_session import Pipeline, SessionBroken
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.smtp_servers import ScriptedServer, serving


async def test_each_who_meets_a_broken_session_gets_an_exception_of_its_own():
    server = ScriptedServer({"NOOP": "421 4.3.2 stopping"})
    async with serving(server):
        session = await open_session(HostPort("127.0.0.1", server.port), "sink.example", ConnectOptions("me.example"))
        errors = [await broken(session.pipeline) for _ in range(3)]

    assert 3 == len({id(error) for error in errors})
    assert {("421 4.3.2 stopping", True)} == {(str(error.reply), error.is_refusal) for error in errors}
    assert 1 == len({len(traceback.extract_tb(error.__traceback__)) for error in errors[1:]})


async def broken(pipeline) -> SessionBroken:
    async def ask() -> None:
        pipeline.write(b"NOOP\r\n", 1)
        await pipeline.answer(PATIENCE_SECONDS)
        await pipeline.answer(PATIENCE_SECONDS)

    with pytest.raises(SessionBroken) as caught:
        await ask()
    return caught.value


UTF8 = "Grüße".encode()


@pytest.mark.parametrize(
    "octets",
    [
        b"250 2.0.0 OK\r\n",
        b"250 2.1.0 OK\r\n250 2.1.5 OK\r\n354 Go on\r\n",
        b"250-one\r\n250-two\r\n250 three\r\n",
        b"250-one\r\n250 two\r\n250 2.0.0 OK\r\n",
        b"250-one\r\n450 two\r\n",  # the codes differ
        b"250 2.0.0 OK\r\n421 4.3.2 Closing\r\n",
        b"421-4.3.2 Closing\r\n421 4.3.2 now\r\n",
        b"250 OK\r\n" * 4,  # one more than is awaited
        b"250\r\n250 OK\n250 OK\r\r\n",
        b"250 " + UTF8 + b"\r\n",
        b"250 a\tb\r\n250 \r\n",
        b"250 " + b"x" * 5000 + b"\r\n",
        b"250-" + b"x" * 900 + b"\r\n" + b"250-y\r\n" * 6000 + b"250 z\r\n",  # more than a reply may have
        b"250 OK\r\n25",
        b"250-one\r\n250",
        b"nonsense\r\n",
    ],
)
async def test_replies_that_come_whole_are_read_as_those_that_come_line_by_line(octets: bytes, monkeypatch: pytest.MonkeyPatch):
    def what_comes_of_it() -> object:
        pipeline = Pipeline(Mock(is_closing=lambda: False))
        pipeline.write(b"", 3)
        pipeline.data_received(octets)
        return pipeline.outstanding, pipeline.answers_count, pipeline.broken, pipeline.taken()

    whole = what_comes_of_it()
    monkeypatch.setattr(client_session, "_whole_replies", lambda octets, octets_max: ())

    assert what_comes_of_it() == whole
