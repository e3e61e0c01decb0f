"""One transaction with a scripted next hop."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from shadowrelay.model.message import Content
from shadowrelay.model.replies import DeliveryError, LeaseTooShort
from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.client import ConnectOptions, Opened, open_session
from shadowrelay.smtp.delivery_transaction import DeliveryTransaction, Unfinished
from shadowrelay.smtp.outgoing_message import Limits, OutgoingMessage
from tests.kit.ledger import a_content, an_envelope
from tests.kit.smtp_servers import ScriptedServer, serving

BODY = b"Subject: hello\r\n\r\nline\r\n.dot\r\n..two\r\n\r\n.\r\nend\r\n"
FULL = Limits()


def some_work(
    recipients_count: int = 1,
    data: bytes = BODY,
    *,
    prefix: bytes = b"",
    limits: Limits = FULL,
    spooled: Content | None = None,
    may_end_data: Callable[[], bool] = lambda: True,
    **changes: object,
) -> OutgoingMessage:
    """`spooled`: content in a file, instead of `data`."""
    envelope = an_envelope(recipients_count, **changes)
    return OutgoingMessage(envelope, tuple(range(1, recipients_count + 1)), spooled or a_content(data), prefix, may_end_data, limits)


@dataclass
class Attempted:
    replies: dict[int, str]
    error: Exception | None
    is_usable: bool


@contextlib.asynccontextmanager
async def a_session(server: ScriptedServer) -> AsyncIterator[Opened]:
    async with serving(server):
        session = await open_session(HostPort("127.0.0.1", server.port), "hop.example", ConnectOptions("me.example"))
        try:
            yield session
        finally:
            session.pipeline.abort()
            await session.pipeline.closed()


async def run(server: ScriptedServer, work: OutgoingMessage) -> Attempted:
    async with a_session(server) as session:
        return await run_in(session, work)


async def run_in(session: Opened, work: OutgoingMessage) -> Attempted:
    transaction = DeliveryTransaction(session, work)
    error: Exception | None = None
    try:
        await transaction.run()
    except (DeliveryError, LeaseTooShort, Unfinished) as caught:
        error = caught
    return Attempted({ordinal: str(reply) for ordinal, reply in transaction.replies.items()}, error, session.pipeline.is_usable)
