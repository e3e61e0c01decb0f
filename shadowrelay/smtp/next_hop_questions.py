"""Questions to next hops over the sessions of deliveries, to their servers in the same order. docs/design.md 6.10; RFC 5321 5.1.

A question is a few commands that leave the session as it was. A server that gives no session, loses it, or defers goes before the next one
of the list; what the last one answered counts.
"""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from shadowrelay.model.replies import Reply, TransientDeliveryError
from shadowrelay.model.routing import Destination
from shadowrelay.smtp import next_hop_rules as rules
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.client_session import CONNECTION_FAILED, SessionBroken
from shadowrelay.smtp.next_hop_sessions import AddressSessions, NoSession, Opening, Sessions
from shadowrelay.smtp.next_hops import NextHopHost, NextHops

QUESTIONS_PER_SESSION_MAX = 50  # Postfix slows clients down after 100 RSETs without mail: smtpd_junk_command_limit
REFUSALS_PER_SESSION_MAX = 8  # and after 10 refusals (smtpd_soft_error_limit); after 20 it ends the session


class Said(NamedTuple):
    """The replies of a server to a question: to MAIL, and to RCPT if MAIL was accepted."""

    mail: Reply
    rcpt: Reply

    @property
    def is_about_server(self) -> bool:
        """Whether another server may answer otherwise."""
        if self.mail.code < 300:
            return rules.is_about_server(self.rcpt) or rules.is_out_of_step(self.rcpt, rules.ReplyTo.RCPT)
        return 400 <= self.mail.code < 500 or rules.is_out_of_step(self.mail, rules.ReplyTo.MAIL)


Question = Callable[[Opened, float], Awaitable[Said]]
"""Asks in a session, with so many seconds for each reply. Raises: SessionBroken."""


class NextHopQuestions:
    """`open_session` as for deliveries, so that TLS and rights are the same."""

    def __init__(
        self,
        next_hops: NextHops,
        sessions: Sessions,
        open_session: Callable[[NextHopHost, Opening], Awaitable[Opened]],
        concurrency: int,
    ) -> None:
        self._next_hops: Final = next_hops
        self._sessions: Final = sessions
        self._open_session: Final = open_session
        self._concurrency: Final = concurrency

    async def ask(self, destination: Destination, question: Question, seconds: float) -> Said:
        """Ask the first server that answers. Where there are several, each gets half of the time. Raises: DeliveryError."""
        each = seconds / 2 if len(destination.hosts) != 1 else seconds
        said: Said | None = None
        reply = CONNECTION_FAILED
        async with contextlib.aclosing(self._next_hops.targets(destination)) as targets:
            async for target in targets:
                found = await self._asked(target, destination, question, each)
                if isinstance(found, Said):
                    said = found
                    if not said.is_about_server:
                        break
                else:
                    reply = found
        if said is None:
            raise TransientDeliveryError(reply, destination.key, is_unreachable=True)
        return said

    async def _asked(self, target: NextHopHost, destination: Destination, question: Question, seconds: float) -> Said | Reply:
        """What this server said, or why it said nothing. A kept session may turn out stale: then another one is opened."""
        address = self._sessions.at(target)
        while True:
            taken = address.take()
            if taken is None:
                opening = partial(self._open_session, target)
                got = await address.wait(opening, destination.concurrency or self._concurrency, seconds)
                if isinstance(got, NoSession):
                    return got.reply
                session = got
            else:
                session = taken[1]
            try:
                said = await question(session, seconds)
            except SessionBroken as broken:
                address.drop(session)
                if taken is None:
                    return broken.reply
                continue
            except BaseException:
                address.drop(session)
                raise
            self._give_back(address, session, said)
            return said

    def _give_back(self, address: AddressSessions, session: Opened, said: Said) -> None:
        session.messages_count += 1
        session.refused_count += said.rcpt.code >= 500
        is_worn = session.messages_count >= QUESTIONS_PER_SESSION_MAX or session.refused_count >= REFUSALS_PER_SESSION_MAX
        address.give_back(session, is_used_up=is_worn or said.is_about_server)
