"""Notices to the sender (DSNs) that an attempt causes. They are messages of their own, committed with what caused them."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from shadowrelay.core import dsn, retention
from shadowrelay.core.dsn import Action, DsnKind, RecipientReport
from shadowrelay.core.dsn_text import RETURNED_OCTETS_MAX
from shadowrelay.core.outcomes import NO_REPLY, AttemptOutcome
from shadowrelay.core.ownership import primary
from shadowrelay.model.message import Content, Ordinals
from shadowrelay.model.queue import NewMessage, Origin, SideMessage, StoredMessage
from shadowrelay.model.replies import Reply
from shadowrelay.service.context import Context

ACTIONS = {DsnKind.FAILURE: Action.FAILED, DsnKind.DELAY: Action.DELAYED, DsnKind.SUCCESS: Action.RELAYED}
RELAYED = Reply(250, "2.0.0", "Relayed to a server that makes no further reports")


class Result(Protocol):
    """What is needed of a fork's result. `passes_dsn`: the next hop was given the sender's wishes, and will report."""

    @property
    def outcome(self) -> AttemptOutcome: ...

    @property
    def server(self) -> str: ...

    @property
    def passes_dsn(self) -> bool: ...


class Notices:
    """Builds the DSNs of one commit: at most one for each kind."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def about(self, stored: StoredMessage, content: Content, results: Sequence[Result]) -> tuple[SideMessage, ...]:
        """Shapes: empty where nobody is to be told, as always for the null sender."""
        if not stored.envelope.sender:
            return ()
        found: dict[DsnKind, dict[int, tuple[Reply, str]]] = {kind: {} for kind in DsnKind}
        for result in results:
            outcome = result.outcome
            for ordinal, reply in outcome.failed.items():
                found[DsnKind.FAILURE][ordinal] = (reply, "" if ordinal in outcome.expired else result.server)
            for ordinal in outcome.delayed_dsn:
                found[DsnKind.DELAY][ordinal] = (_last_reply(outcome), result.server)
            if not result.passes_dsn:
                for ordinal in outcome.delivered:
                    found[DsnKind.SUCCESS][ordinal] = (RELAYED, result.server)
        sides = []
        for kind, replies in found.items():
            ordinals = dsn.notifiable(stored.envelope, replies, kind) if replies else frozenset()
            if ordinals:
                sides.append(self._side(stored, content, kind, ordinals, replies))
        return tuple(sides)

    def _side(
        self, stored: StoredMessage, content: Content, kind: DsnKind, ordinals: Ordinals, replies: dict[int, tuple[Reply, str]]
    ) -> SideMessage:
        context = self._context
        now = context.now()
        transport = context.settings.transport
        original = stored.envelope
        dsn_id = dsn.dsn_message_id(original.message_id, ordinals, kind)
        until = original.arrived_at + transport.message_expiration_timeout if kind is DsnKind.DELAY else None
        reports = [self._report(stored, kind, ordinal, *replies[ordinal], now, until) for ordinal in sorted(ordinals)]
        head, is_whole = _head(content)
        data = dsn.build(kind, original, reports, head, dsn_id, node=context.me.server, now=now, is_whole=is_whole)
        envelope = dsn.envelope_for(original, dsn_id, now, context.me.server, kind)
        claim = primary.first_claim(context.me, 1, None)
        message = NewMessage(envelope, claim, Origin.DSN, now, retention.remember_until(now, transport))
        return SideMessage(message, Content(len(data), hashlib.sha256(data).digest(), data), ACTIONS[kind].value)

    def _report(
        self, stored: StoredMessage, kind: DsnKind, ordinal: int, reply: Reply, server: str, now: datetime, until: datetime | None
    ) -> RecipientReport:
        recipient = stored.envelope.recipients[ordinal - 1]
        return RecipientReport(ordinal, recipient, ACTIONS[kind], reply, server, now, until)


def _last_reply(outcome: AttemptOutcome) -> Reply:
    """The retry keeps the last reply as text: `451 4.4.1 …`."""
    if outcome.retry is None:
        return NO_REPLY
    code, _, rest = outcome.retry.last_reply.partition(" ")
    enhanced, _, text = rest.partition(" ")
    if not code.isdigit():
        return NO_REPLY
    return Reply(int(code), enhanced, text) if enhanced[:2] in ("2.", "4.", "5.") else Reply(int(code), "", rest)


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
