"""Tells a next hop whose mail it gets: XCLIENT or XFORWARD, where its route says so and it offers them. docs/mtas.md "Whose mail it is".

XCLIENT makes the session that of the client: its server judges it as it would judge the client. So a session serves one message then, and
ends; nothing takes a name back. XFORWARD is a label of one transaction, and a server that refuses it gets the message nevertheless.
"""

import re

from aiosmtplib.esmtp import parse_esmtp_extensions

from shadowrelay.model.message import Envelope
from shadowrelay.model.replies import Reply, TransientDeliveryError, WireError
from shadowrelay.model.routing import Destination
from shadowrelay.model.values import replace
from shadowrelay.protocol.original_client import NOBODY, OriginalClient, checked_address, format_commands, parse_original_client
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.client_session import SERVICE_CLOSING, RawReply

XCLIENT, XFORWARD = "XCLIENT", "XFORWARD"
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|\[[0-9A-Za-z.:]{2,50}\]")


def client_of(envelope: Envelope, own_name: str) -> OriginalClient:
    """Who gave this message to the first server of ours; nobody for what a server of ours made."""
    is_notification = not envelope.sender and envelope.message_id[14:15] == "5"  # of any server of ours: it may name the stranger's address
    if not envelope.client_address or is_notification or envelope.client_name.lower() == own_name.lower():
        return NOBODY
    try:
        told = parse_original_client(envelope.original_client)
    except WireError:
        told = NOBODY
    address = told.address or checked_address(envelope.client_address)
    return replace(told, address=address, helo=told.helo or envelope.client_name) if address else NOBODY


async def name_client(session: Opened, envelope: Envelope, destination: Destination, own_name: str, seconds: float) -> None:
    """Before MAIL. Raises: TransientDeliveryError if the server does not take the session as that of the client; SessionBroken."""
    client, offered = client_of(envelope, own_name), session.extensions
    if client is NOBODY:
        return
    if destination.xclient and XCLIENT.lower() in offered:
        session.is_of_client = True
        for line in format_commands(client, XCLIENT, _words(offered[XCLIENT.lower()])):
            _required(session, await _ask(session, line, seconds), 220, XCLIENT)
        helo = client.helo if _HOST.fullmatch(client.helo) else own_name
        answer = await _ask(session, f"EHLO {helo}", seconds)
        _required(session, answer, 250, "EHLO after XCLIENT")
        session.extensions = parse_esmtp_extensions("\n".join(answer.lines))[0]
    elif destination.xforward and XFORWARD.lower() in offered:
        for line in format_commands(client, XFORWARD, _words(offered[XFORWARD.lower()])):
            if (await _ask(session, line, seconds)).code != 250:
                return


def _words(offer: str) -> frozenset[str]:
    return frozenset(offer.upper().split())


async def _ask(session: Opened, line: str, seconds: float) -> RawReply:
    session.pipeline.write(f"{line}\r\n".encode("ascii"), 1)
    answer = await session.pipeline.answer(seconds)
    if answer.code == SERVICE_CLOSING and session.pipeline.broken is not None:
        raise session.pipeline.broken.error()
    return answer


def _required(session: Opened, answer: RawReply, code: int, what: str) -> None:
    """A refusal may mean the client or this node: the route's setting is to be looked at, and the message waits."""
    if answer.code != code:
        raise TransientDeliveryError(Reply(451, "4.7.0", f"{what} was refused: {answer.reply}"[:400]), session.server)
