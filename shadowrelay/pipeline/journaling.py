"""Records the first outcome of a message together with its journal reports. docs/design.md 6.13; `pipeline.journal` builds them.

A message with a recipient that is done has been journaled: its reports are committed with the outcome that ends the first recipient, and
no other server hears of that recipient before each report has a copy. So a crash leaves both or neither, and whoever takes the message over
knows from `done` whether its reports exist. Where that is not known (a promoted message of which nobody is done), the report is made
again under the same id, and all nodes are asked before it is delivered, as with a DSN.

Several forks may end at once: they take turns, and each reads the message again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from weakref import WeakValueDictionary

import structlog

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Content
from shadowrelay.model.queue import AttemptRecord, NewMessage, Origin, SideMessage, StoredMessage
from shadowrelay.model.replies import ContentCorrupt, LedgerUnavailable
from shadowrelay.model.values import replace
from shadowrelay.ownership import primary
from shadowrelay.pipeline import delivery_rules, journal
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.dsn import RETURNED_OCTETS_MAX

BUILD_AGAIN_SECONDS = 1.0

Record = Callable[[AttemptRecord], Awaitable[None]]
"""Returns when the record is committed, however long that takes."""

_log = structlog.get_logger()


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
                await record(replace(outcome, sides=(*outcome.sides, *reports)) if reports else outcome)
            except Exception:
                _remove(reports)
                raise

    async def _reports(
        self,
        stored: StoredMessage,
        outcome: AttemptRecord,
        journal_recipients: Iterable[str],
        read_content: Callable[[], Awaitable[Content]],
    ) -> tuple[SideMessage, ...]:
        """A delivery must be recorded, with its reports: what hinders that for now is waited for."""
        message_id = stored.envelope.message_id
        is_waiting = False
        while True:
            try:
                present = await self._context.ledger.load(message_id)
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
                await asyncio.sleep(BUILD_AGAIN_SECONDS)
            except ContentCorrupt:
                if not outcome.sent:
                    raise
                _log.exception("journal.failed", message_id=message_id)  # else it would be delivered again and again
                return ()
            except Exception:
                _log.exception("journal.failed", message_id=message_id)
                return ()

    async def _all_built(self, stored: StoredMessage, content: Content, journal_recipients: Iterable[str]) -> tuple[SideMessage, ...]:
        reports: list[SideMessage] = []
        try:
            for journal_recipient in journal_recipients:
                reports.append(await self._built(stored, content, journal_recipient))
        except BaseException:
            _remove(reports)
            raise
        return tuple(reports)

    async def _built(self, stored: StoredMessage, content: Content, journal_recipient: str) -> SideMessage:
        context = self._context
        me, now, original = context.me, context.now(), stored.envelope
        envelope = journal.envelope_for(original, journal_recipient, now, me.server)
        header, trailer = journal.header_of(envelope, original, me.server), journal.trailer_of(envelope)
        claim = primary.first_claim(me, 1, wanted=context.settings.transport.shadow_copies)
        if stored.is_promoted:  # the lost primary may have made this report already, and any node may have taken that over
            claim = replace(claim, copies=context.peers.entries())
        message = NewMessage(envelope, claim, Origin.JOURNAL, now, delivery_rules.remember_until(now, context.settings.transport))
        return SideMessage(message, await context.ledger.wrapped(content, header, trailer))


def _remove(reports: Iterable[SideMessage]) -> None:
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
