"""A session that broke tells everybody so, and keeps nobody alive by that."""

import traceback

import pytest

from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.client import ConnectOptions, open_session
from shadowrelay.smtp.client_session import SessionBroken
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
