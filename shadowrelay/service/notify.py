"""Notices to the sender (DSNs) that an attempt causes. They are messages of their own, committed with what caused them.

A notice that cannot be built must not cost the outcome that it is about: without its record the recipients that were served
would get the message again and again. Then a plain one is built, without anything of the original; or none, and the operator
log says so.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime

import structlog

from shadowrelay.core import dsn, retention
from shadowrelay.core.dsn import Action, DsnKind, RecipientReport
from shadowrelay.core.dsn_text import RETURNED_OCTETS_MAX
from shadowrelay.core.outcomes import NO_REPLY, AttemptOutcome
from shadowrelay.core.ownership import primary
from shadowrelay.model.errors import ContentCorrupt, LedgerUnavailable
from shadowrelay.model.message import Content, Ordinals
from shadowrelay.model.ownership import Copy
from shadowrelay.model.queue import NewMessage, Origin, SideMessage, StoredMessage
from shadowrelay.model.replies import Reply
from shadowrelay.service.context import Context

ACTIONS = {DsnKind.FAILURE: Action.FAILED, DsnKind.DELAY: Action.DELAYED, DsnKind.SUCCESS: Action.RELAYED}
RELAYED = Reply(250, "2.0.0", "Relayed to a server that makes no further reports")


_log = structlog.get_logger("shadowrelay.notify")


class Notices:
    """Builds the DSNs of one commit: at most one for each kind."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def about(
        self,
        stored: StoredMessage,
        read_content: Callable[[], Awaitable[Content]],
        outcome: AttemptOutcome,
        server: str,
        *,
        passes_dsn: bool,
    ) -> tuple[SideMessage, ...]:
        """Shapes: empty where nobody is to be told, as always for the null sender. `passes_dsn`: the next hop was given the
        sender's wishes, and reports itself. The content is read only for a notice."""
        if not stored.envelope.sender:
            return ()
        found: dict[DsnKind, dict[int, tuple[Reply, str]]] = {}
        if outcome.failed:
            found[DsnKind.FAILURE] = {
                ordinal: (reply, "" if ordinal in outcome.expired else server) for ordinal, reply in outcome.failed.items()
            }
        if outcome.delayed_dsn:
            found[DsnKind.DELAY] = {ordinal: (_last_reply(outcome), server) for ordinal in outcome.delayed_dsn}
        if outcome.delivered and not passes_dsn:
            found[DsnKind.SUCCESS] = dict.fromkeys(outcome.delivered, (RELAYED, server))
        sides = []
        for kind, replies in found.items():
            ordinals = dsn.notifiable(stored.envelope, replies, kind)
            if ordinals and (side := await self._side(stored, read_content, kind, ordinals, replies)) is not None:
                sides.append(side)
        return tuple(sides)

    async def _side(
        self,
        stored: StoredMessage,
        read_content: Callable[[], Awaitable[Content]],
        kind: DsnKind,
        ordinals: Ordinals,
        replies: dict[int, tuple[Reply, str]],
    ) -> SideMessage | None:
        message_id = stored.envelope.message_id
        try:
            try:
                head, is_whole = _head(await read_content())
            except (ContentCorrupt, LedgerUnavailable, OSError) as error:
                _log.warning("notice.without_original", message_id=message_id, reason=str(error))
                head, is_whole = b"", False
            with self._context.ledger.handling(message_id):  # a notice quotes the content
                return self._built(stored, head, kind, ordinals, replies, is_whole=is_whole)
        except Exception:
            _log.exception("notice.failed", message_id=message_id, kind=kind.value)
        try:
            plain = replace(stored, envelope=replace(stored.envelope, subject="", internet_message_id="", envid=None))
            return self._built(plain, b"", kind, ordinals, replies, is_whole=False)
        except Exception:
            _log.exception("notice.given_up", message_id=message_id, kind=kind.value, recipients=len(ordinals))
            return None

    def _built(
        self,
        stored: StoredMessage,
        head: bytes,
        kind: DsnKind,
        ordinals: Ordinals,
        replies: dict[int, tuple[Reply, str]],
        *,
        is_whole: bool,
    ) -> SideMessage:
        context = self._context
        now = context.now()
        transport = context.settings.transport
        original = stored.envelope
        dsn_id = dsn.dsn_message_id(original.message_id, ordinals, kind)
        until = original.arrived_at + transport.message_expiration_timeout if kind is DsnKind.DELAY else None
        reports = [self._report(stored, kind, ordinal, *replies[ordinal], now, until) for ordinal in sorted(ordinals)]
        data = dsn.build(kind, original, reports, head, dsn_id, node=context.me.server, now=now, is_whole=is_whole)
        envelope = dsn.envelope_for(original, dsn_id, now, context.me.server, kind)
        claim = primary.first_claim(context.me, 1, None)
        if stored.is_promoted:  # its lost primary may have made this DSN already, and anybody may have taken that over
            others = [server for server in context.peers.states if context.peers.is_back(server)]
            claim = replace(claim, copies=tuple([Copy(server, context.peers.party(server).database) for server in others]))
        message = NewMessage(envelope, claim, Origin.DSN, now, retention.remember_until(now, transport))
        return SideMessage(message, Content(len(data), hashlib.sha256(data).digest(), data), ACTIONS[kind].value)

    def _report(
        self, stored: StoredMessage, kind: DsnKind, ordinal: int, reply: Reply, server: str, now: datetime, until: datetime | None
    ) -> RecipientReport:
        recipient = stored.envelope.recipients[ordinal - 1]
        return RecipientReport(ordinal, recipient, ACTIONS[kind], reply, server, now, until)


def _last_reply(outcome: AttemptOutcome) -> Reply:
    return NO_REPLY if outcome.retry is None else reply_of(outcome.retry.last_reply)


def reply_of(text: str) -> Reply:
    """A retry keeps the last reply as text: `451 4.4.1 …`."""
    code, _, rest = text.partition(" ")
    enhanced, _, words = rest.partition(" ")
    if not code.isdigit():
        return NO_REPLY
    return Reply(int(code), enhanced, words) if enhanced[:2] in ("2.", "4.", "5.") else Reply(int(code), "", rest)


def _head(content: Content) -> tuple[bytes, bool]:
    """The beginning of the original, at most what a notification may return, and whether that is all of it."""
    size = RETURNED_OCTETS_MAX + 1
    if content.data is not None:
        head = content.data[:size]
    else:
        assert content.path is not None
        with content.path.open("rb") as file:
            head = file.read(size)
    return head, len(head) == content.size
