"""Builds the messages that an outcome causes: DSNs to the sender, and journal reports. RFC 3461, docs/design.md 5, 6.13.

They are messages of their own, committed with the outcome that caused them; `rules.dsn` and `rules.journal` have their texts.

**DSNs.** One that cannot be built must not prevent recording the outcome: otherwise recipients already served would get the message
repeatedly. In that case a plain DSN without any content of the original is built; if that fails too, none, and the operator log reports it.

**Journal reports.** A message with a recipient that is done has been journaled: its reports are committed with the outcome that ends the
first recipient, and no other server hears of that recipient before each report has a copy. So a crash leaves both or neither, and whoever
takes the message over knows from `done` whether its reports exist. Where that is not known (a promoted message of which nobody is done),
the report is made again under the same id, and all nodes are asked before it is delivered, as with a DSN. Several forks may end at once:
they take turns, and each reads the message again.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from weakref import WeakValueDictionary

import structlog

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Content, Ordinals
from shadowrelay.model.queue import AttemptRecord, GeneratedMessage, NewMessage, Origin, StoredMessage
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, ContentCorrupt, LedgerUnavailable, Reply
from shadowrelay.model.routing import Destination
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims
from shadowrelay.pipeline.context import LEDGER_AGAIN_SECONDS, Context
from shadowrelay.protocol import tracking
from shadowrelay.protocol.fields import domain_of
from shadowrelay.rules import delivery, dsn, journal, strangers
from shadowrelay.rules.delivery import NO_REPLY, AttemptOutcome, reply_of
from shadowrelay.rules.dsn import RETURNED_OCTETS_MAX, Action, DsnKind, RecipientReport
from shadowrelay.store import reading

ACTIONS = {DsnKind.FAILURE: Action.FAILED, DsnKind.DELAY: Action.DELAYED, DsnKind.SUCCESS: Action.RELAYED}
RELAYED = Reply(250, "2.0.0", "Relayed to a server that makes no further reports")
NO_NAMES: Mapping[int, str] = MappingProxyType({})

Record = Callable[[AttemptRecord], Awaitable[None]]
"""Returns when the record is committed, however long that takes."""

_log = structlog.get_logger()


class Notices:
    """Builds the DSNs of one commit: at most one for each kind."""

    def __init__(self, context: Context, destination_of: Callable[[str], Destination]) -> None:
        self._context = context
        self._destination_of = destination_of
        self._rate = strangers.DsnRate()

    async def about(
        self,
        stored: StoredMessage,
        read_content: Callable[[], Awaitable[Content]],
        outcome: AttemptOutcome,
        server: str,
        *,
        passes_dsn: bool,
        servers: Mapping[int, str] = NO_NAMES,
        is_limited: bool = True,
    ) -> tuple[GeneratedMessage, ...]:
        """Shapes: empty if no DSN is due, as always for the null sender. `passes_dsn`: the next hop received the sender's DSN
        parameters and reports itself. The content is read only if a DSN is due. `servers`: of failed recipients that
        another one than `server` refused. `is_limited`: strangers' mail may cause few; not what an administrator has decided, nor the end
        of mail that waited in vain. No stranger can have many messages end in that way at a time of his choice, but an outage can."""
        if not stored.envelope.sender:
            return ()
        found: dict[DsnKind, dict[int, tuple[Reply, str]]] = {}
        if outcome.failed:
            found[DsnKind.FAILURE] = {
                ordinal: (reply, "" if ordinal in outcome.expired else servers.get(ordinal, server))
                for ordinal, reply in outcome.failed.items()
            }
        if outcome.delayed_dsn:
            found[DsnKind.DELAY] = {ordinal: (_last_reply(outcome), server) for ordinal in outcome.delayed_dsn}
        if outcome.delivered and not passes_dsn:
            found[DsnKind.SUCCESS] = dict.fromkeys(outcome.delivered, (RELAYED, server))
        notices = []
        is_for_stranger = bool(found) and strangers.is_stranger(stored.envelope, self._context.settings)
        for kind, replies in found.items():
            ordinals = dsn.notifiable(stored.envelope, replies, kind)
            may_be_many = not is_limited or outcome.expired.issuperset(ordinals)
            if ordinals and is_for_stranger and not self._may_notify(stored, kind, ordinals, may_be_many=may_be_many):
                continue
            if ordinals and (notice := await self._notice(stored, read_content, kind, ordinals, replies)) is not None:
                notices.append(notice)
        return tuple(notices)

    def _may_notify(self, stored: StoredMessage, kind: DsnKind, ordinals: Ordinals, *, may_be_many: bool) -> bool:
        """Whether the sender that a stranger gave hears of this."""
        if kind is not DsnKind.FAILURE:
            return False
        context, original = self._context, stored.envelope
        reason = "routing" if strangers.is_laundered(original, context.settings, self._destination_of) else ""
        if not reason and not may_be_many and not self._rate.takes(domain_of(original.sender), context.clock.awake()):
            reason = "rate"
        if reason:
            context.counts.notices_suppressed += 1
            _log.warning("notice.suppressed", message_id=original.message_id, client=original.client_address, reason=reason)
            row = tracking.notice_suppressed(context.me.server, stored, at=context.now(), ordinals=ordinals, reason=reason)
            context.tracking.write(row)
        return not reason

    async def _notice(
        self,
        stored: StoredMessage,
        read_content: Callable[[], Awaitable[Content]],
        kind: DsnKind,
        ordinals: Ordinals,
        replies: dict[int, tuple[Reply, str]],
    ) -> GeneratedMessage | None:
        message_id = stored.envelope.message_id
        try:
            try:
                head, is_whole = head_of(await read_content())
            except (ContentCorrupt, LedgerUnavailable, OSError) as error:
                _log.warning("notice.without_original", message_id=message_id, reason=str(error))
                head, is_whole = b"", False
            with self._context.ledger.handling(message_id):  # a DSN quotes the content
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
    ) -> GeneratedMessage:
        context = self._context
        now = context.now()
        transport = context.settings.transport
        original = stored.envelope
        dsn_id = dsn.dsn_message_id(original.message_id, ordinals, kind)
        until = original.arrived_at + transport.message_expiration_timeout if kind is DsnKind.DELAY else None
        reports = [self._report(stored, kind, ordinal, *replies[ordinal], now, until) for ordinal in sorted(ordinals)]
        data = dsn.build(kind, original, reports, head, dsn_id, node=context.me.server, now=now, is_whole=is_whole)
        is_for_stranger = strangers.is_stranger(original, context.settings)
        envelope = dsn.envelope_for(original, dsn_id, now, context.me.server, kind, is_for_stranger=is_for_stranger)
        claim = claims.first_claim(context.me, 1, wanted=context.settings.copies_without_client)
        if stored.is_promoted:  # the lost primary may have made this DSN already, and any node may have taken that over
            claim = replace(claim, copies=context.peers.reachable_as_copies())
        message = NewMessage(envelope, claim, Origin.DSN, now, delivery.remember_until(now, transport))
        return GeneratedMessage(message, Content(len(data), hashlib.sha256(data).digest(), data), ACTIONS[kind].value)

    def _report(
        self, stored: StoredMessage, kind: DsnKind, ordinal: int, reply: Reply, server: str, now: datetime, until: datetime | None
    ) -> RecipientReport:
        recipient = stored.envelope.recipients[ordinal - 1]
        return RecipientReport(ordinal, recipient, ACTIONS[kind], reply, server, now, until)


def _last_reply(outcome: AttemptOutcome) -> Reply:
    return NO_REPLY if outcome.retry is None else reply_of(outcome.retry.last_reply)


class Journaling:
    """Journal reports of this node."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._turns: WeakValueDictionary[MessageId, asyncio.Lock] = WeakValueDictionary()

    async def record(
        self,
        stored: StoredMessage,
        outcome: AttemptRecord,
        journal_recipients: Iterable[str],
        read_content: Callable[[], Awaitable[Content]],
        record: Record,
    ) -> None:
        """Record the outcome, with the reports if it is the first.

        Raises: as `record`; if nothing was delivered, also LedgerUnavailable and ContentCorrupt: then nothing is recorded.
        """
        turn = self._turns.setdefault(stored.envelope.message_id, asyncio.Lock())
        async with turn:
            reports = await self._reports(stored, outcome, journal_recipients, read_content)
            try:
                await record(replace(outcome, generated=(*outcome.generated, *reports)) if reports else outcome)
            except Exception:
                _remove(reports)
                raise

    async def _reports(
        self,
        stored: StoredMessage,
        outcome: AttemptRecord,
        journal_recipients: Iterable[str],
        read_content: Callable[[], Awaitable[Content]],
    ) -> tuple[GeneratedMessage, ...]:
        """A delivery must be recorded, with its reports: what hinders that for now is waited for."""
        context, message_id = self._context, stored.envelope.message_id
        is_waiting = False
        while True:
            try:
                present = await context.ledger.read(reading.load, message_id)
                if present is not None and present.claim.done:
                    return ()
                content = await read_content()
                if journal.is_report_from_elsewhere(stored.envelope, head_of(content)[0]):
                    return ()
                return await self._all_built(stored, content, journal_recipients)
            except LedgerUnavailable as error:
                if not outcome.sent:
                    raise
                if not is_waiting:
                    _log.error("journal.waits", message_id=message_id, reason=error.reason)
                is_waiting = True
                if error.reply == INSUFFICIENT_RESOURCES:  # else only this message may be concerned: a bad sector
                    context.own_disk.outcome_failed(message_id, context.clock.ran(), context.now(), error)
                await asyncio.sleep(LEDGER_AGAIN_SECONDS)
            except ContentCorrupt:
                if not outcome.sent:
                    raise
                _log.exception("journal.failed", message_id=message_id)  # else it would be delivered again and again
                return ()
            except Exception:
                _log.exception("journal.failed", message_id=message_id)
                return ()

    async def _all_built(self, stored: StoredMessage, content: Content, journal_recipients: Iterable[str]) -> tuple[GeneratedMessage, ...]:
        reports: list[GeneratedMessage] = []
        try:
            for journal_recipient in journal_recipients:
                reports.append(await self._built(stored, content, journal_recipient))
        except BaseException:
            _remove(reports)
            raise
        return tuple(reports)

    async def _built(self, stored: StoredMessage, content: Content, journal_recipient: str) -> GeneratedMessage:
        context = self._context
        me, now, original = context.me, context.now(), stored.envelope
        envelope = journal.envelope_for(original, journal_recipient, now, me.server)
        header, trailer = journal.header_of(envelope, original, me.server), journal.trailer_of(envelope)
        claim = claims.first_claim(me, 1, wanted=context.settings.copies_without_client)
        if stored.is_promoted:  # the lost primary may have made this report already, and any node may have taken that over
            claim = replace(claim, copies=context.peers.reachable_as_copies())
        message = NewMessage(envelope, claim, Origin.JOURNAL, now, delivery.remember_until(now, context.settings.transport))
        return GeneratedMessage(message, await context.ledger.wrapped(content, header, trailer))


def _remove(reports: Iterable[GeneratedMessage]) -> None:
    """The files of reports that were not committed."""
    for report in reports:
        if report.content.path is not None:
            report.content.path.unlink(missing_ok=True)


def head_of(content: Content) -> tuple[bytes, bool]:
    """The beginning of the original, as much as a DSN may return, and whether that is all of it. Raises: OSError."""
    size = RETURNED_OCTETS_MAX + 1
    if content.data is not None:
        head = content.data[:size]
    else:
        assert content.path is not None
        with content.path.open("rb") as file:
            head = file.read(size)
    return head, len(head) == content.size
