"""What a world finds when a rule of docs/design.md is switched off: each rule, what stands in for it, and a seed that shows it.

`python -m tests.simulation.run --without RULE --seeds A-B` (or `--script NAME`) looks for others. The ownership rules are those of
`tests.ownership.ring`, which shows in every interleaving what this ring shows with whole nodes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import Claim, DiscardEvent, DiscardStatus, Transition
from shadowrelay.model.peers import Alive, PeerIdentity
from shadowrelay.model.queue import ShadowGroup
from shadowrelay.model.replies import Reply
from shadowrelay.model.tracking import EventId, TrackingEvent
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline import deliver
from shadowrelay.pipeline.commit_watch import CommitWatch
from shadowrelay.pipeline.follow import FollowService
from shadowrelay.pipeline.leases import Leases
from shadowrelay.pipeline.own_disk import OwnDisk
from shadowrelay.pipeline.peer_desk import PeerDesk
from shadowrelay.pipeline.peer_requests import PeerRequestService
from shadowrelay.pipeline.peerbook import PeerState
from shadowrelay.pipeline.promote import PromoteService
from shadowrelay.pipeline.ready import ReadinessService
from shadowrelay.pipeline.reconcile import ReconcileService
from shadowrelay.pipeline.review import ReviewService
from shadowrelay.pipeline.rolled_back import RolledBackService
from shadowrelay.protocol import fields, tracking
from shadowrelay.rules import delivery, dsn, repeats
from shadowrelay.rules.fates import NO_SHARERS, Fates
from shadowrelay.smtp import delivery_transaction
from shadowrelay.store import content, expiry, promises, rows, writing
from shadowrelay.store.commit import Call, Prepared, settle
from shadowrelay.store.work import UnitOfWork
from shadowrelay.tracking.operator_log import LineLogger
from shadowrelay.tracking.writer import FileTrackingLog
from tests.ownership.ring import RULES as OWNERSHIP
from tests.simulation.disk import LaggingWriter


@dataclass(frozen=True, slots=True)
class RuleOff:
    """`off`: what is replaced by what. `worlds` are seeds and scripts that find a violation then: `finds` is in the first complaint.
    None: the ownership ring shows it, or the crash ring, and no world that was tried. `hidden_by`: rules that do the same in these worlds
    by another way, and are switched off with it."""

    text: str
    off: tuple[tuple[Any, str, Any], ...]
    worlds: tuple[int | str, ...] = ()
    finds: str = ""
    hidden_by: tuple[str, ...] = ()


def _ownership(name: str, finds: str = "", *worlds: int | str) -> RuleOff:
    rule = OWNERSHIP[name]
    return RuleOff(rule.text, ((rule.module, rule.function, rule.off),), worlds, finds)


def _without_sync() -> tuple[tuple[str, str, object], ...]:
    return tuple((name, "OFF", 0) if name == "synchronous" else (name, wanted, found) for name, wanted, found in writing.PRAGMAS)


def _quarter(limit: Callable[..., float]) -> Callable[..., float]:
    return lambda mine, theirs: limit(mine, theirs) / 4


def _double(length: Callable[..., float]) -> Callable[..., float]:
    return lambda mine, theirs: 2 * length(mine, theirs)


def _sync_however_long(sync: Callable[[FileTrackingLog], Awaitable[None]]) -> Callable[[FileTrackingLog], Awaitable[None]]:
    async def synced(self: FileTrackingLog) -> None:
        await sync(self)
        while self.hung_seconds:
            await asyncio.sleep(0.01)

    return synced


def _written_at_once(self: LineLogger, message: bytes, *, is_urgent: bool) -> None:
    """By whoever logs it."""
    self._write(message + b"\n")


def _all_done(recorded: Callable[[Claim | None, Ordinals, Ordinals], Transition]) -> Callable[..., Transition]:
    return lambda claim, done, reached=NO_ORDINALS: recorded(claim, rules.everyone(rules.require_claim(claim)), reached)


def _tells_nobody(refused: Callable[[Claim | None], Transition]) -> Callable[..., Transition]:
    return lambda claim: replace(refused(claim), tell=())


def _as_deferred(send: Callable[..., TrackingEvent]) -> Callable[..., TrackingEvent]:
    return lambda *arguments, **named: replace(send(*arguments, **named), event=EventId.DEFER)


def _without_generated(tell: Callable[..., None]) -> Callable[..., None]:
    def at_once(self: UnitOfWork, message_id: MessageId, transition: Transition, generated: Any = ()) -> None:
        tell(self, message_id, transition)

    return at_once


def _says_first(finish: Callable[..., None]) -> Callable[..., None]:
    def said(self: LaggingWriter, batch: list[Call], prepared: Prepared) -> None:
        settle(batch)
        self._later(finish, self, batch, prepared)

    return said


def _counts_silence_as_an_end(second_server: Callable[..., Any]) -> Callable[..., Any]:
    """Who does not answer at once has ended."""

    async def off(self: PeerRequestService, identity: PeerIdentity, *arguments: Any, **named: Any) -> str:
        reason: str = await second_server(self, identity, *arguments, **named)
        return "" if Alive.SILENT in reason else reason

    return off


def _takes_any_end_for_proved(second_server: Callable[..., Any]) -> Callable[..., Any]:
    """Whoever answers at the address, where the former process never did; and of whoever is displaced."""

    async def off(self: PeerRequestService, identity: PeerIdentity, address: str, began_at: float, *, is_dialed: bool = False) -> str:
        state = self._context.peers.states[identity.server]
        was_met = state.is_met
        state.at_address = state.whole_incarnation
        reason: str = await second_server(self, identity, address, began_at, is_dialed=is_dialed)
        state.is_successor |= was_met and not reason
        return reason

    return off


def _without_address(ran_before: Callable[..., bool]) -> Callable[..., bool]:
    def off(self: PeerRequestService, identity: PeerIdentity, state: PeerState, began_at: float, *, is_dialed: bool) -> bool:
        return ran_before(self, replace(identity, former=NO_DATABASE), state, began_at, is_dialed=is_dialed)

    return off


_PROVED = (
    (PeerRequestService, "second_server", _takes_any_end_for_proved(PeerRequestService.second_server)),
    (PeerRequestService, "_ran_before", _without_address(PeerRequestService._ran_before)),
)
_NAME = ((PeerRequestService, "second_server", _counts_silence_as_an_end(PeerRequestService.second_server)),)


def _meets_nobody(want: Callable[..., None]) -> Callable[..., None]:
    """The question itself ends a lower claim, so it is not asked."""

    def off(self: FollowService, message_id: MessageId, promoted_by: ServerName = NO_SERVER) -> None:
        if not promoted_by:
            want(self, message_id)

    return off


async def _asks_nothing(self: ReviewService, server: ServerName) -> None:
    return


def _hears_no_released(heard: Callable[..., Any]) -> Callable[..., Any]:
    def off(claim: Claim | None, speaker: PeerDatabase, event: DiscardEvent) -> Any:
        is_of_primary = claim is not None and claim.is_primary and event.status is DiscardStatus.RELEASED
        return Transition(claim, claim) if is_of_primary else heard(claim, speaker, event)

    return off


def _since_another_process(self: PromoteService, group: ShadowGroup) -> float:
    """As if silence were counted from a session before the restart: it is over."""
    return 0.0


def _of_peers_only(views: Callable[..., Any]) -> Callable[..., Any]:
    async def off(self: Any) -> Any:
        return tuple([view for view in await views(self) if view.is_configured])

    return off


def _takes_expired_over(init: Callable[..., None]) -> Callable[..., None]:
    """What is past its time expires in the next sweep only."""

    async def nothing() -> None:
        return

    def off(self: PromoteService, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named | {"expire": nothing})

    return off


async def _keeps_nothing(self: ReconcileService, needed: Any) -> None:
    return


def _all_count(self: Fates, *, is_redundant: bool) -> None:
    self.is_redundant, self.counted = True, NO_SHARERS


async def _proves_nothing(self: CommitWatch) -> None:
    self._reading = None


class _NoEnd:
    """Later than all instants."""

    def __gt__(self, other: object) -> bool:
        return True


class _WithoutDsync:
    """`os` as it is, but a write returns when the kernel has it."""

    O_DSYNC = 0

    def __getattr__(self, name: str) -> Any:
        import os

        return getattr(os, name)


RULES: dict[str, RuleOff] = {
    "lease": _ownership("lease", "I4", "cut-waiting"),
    "dot": _ownership("dot"),
    "higher": _ownership("higher", "still queued", "two-holders"),
    "placement": _ownership("placement", "have one number", "placed-elsewhere"),
    "ask": _ownership("ask", "without a cause", "two-holders"),
    "still asked": RuleOff(
        "answers count for the claim with which the questions were sent",
        ((rules, "is_still_asked", lambda claim, asked_as: True),),
        ("answer-under-way",), "I4",
    ),
    "again": _ownership("again"),
    "wait": _ownership("wait"),
    "list": _ownership("list", "I4", "placed-elsewhere"),
    "keep": _ownership("keep", "I1", "full-elsewhere"),
    "leave": _ownership("leave"),
    "everybody": _ownership("everybody"),
    "meet": _ownership("meet"),
    "twins": _ownership("twins"),
    "second twin": _ownership("second twin"),
    "said again": _ownership("said again"),
    "holders": _ownership("holders"),
    "unheard": _ownership("unheard"),
    "promoted by another": RuleOff(
        "a shadow server that is told `promoted` by a server that is not its primary asks that one",
        ((FollowService, "want", _meets_nobody(FollowService.want)),),
        ("forgotten-heirs",), "has 2 primary servers", ("leave",),
    ),
    "name": RuleOff(
        "of two servers with one name, the one that was known first keeps it while it may live", _NAME, ("cloned",), "I4"
    ),
    "end proved": RuleOff(
        "a process that another one displaced may run, unless the other is where it was", _PROVED, ("cloned-while-a-peer-begins",), "I4"
    ),
    "name of a copied disk": RuleOff("the same, of two processes of one database", _NAME),  # not found out: docs/reliability.md
    "rolled back": RuleOff(
        "a database that is an older copy gets a new id, and its messages are asked about",
        ((rules, "is_older_copy", lambda openings, position, seen: False), (rules, "shows_older_copy", lambda seen, identity: False)),
        ("put-back",), "without a cause",
    ),
    "lost numbers": RuleOff(
        "a number of its own database that it does not know shows a node that its database is an older copy",
        ((rules, "shows_lost_number", lambda claim, me, number: False),),
    ),
    "confirmed": RuleOff(
        "a listed server that returns or starts again is asked about the copies that count there",
        ((ReviewService, "request_server", _asks_nothing), (rules, "is_older_copy", lambda openings, position, seen: False)),
        ("restored-in-traffic",), "has too few copies",
    ),
    "closing": RuleOff(
        "a node that has recognised its database as an older copy takes nothing over, and sends no final dot, until it has started again",
        ((RolledBackService, "_close", lambda self: self.found.set()),),
        ("closes-slowly",), "has yet to start again",
    ),
    "expired copies": RuleOff(
        "a copy is kept for as long as its primary server needs it, and one that expires all the same is placed again",
        ((ReconcileService, "_keep", _keeps_nothing), (claims, "heard", _hears_no_released(claims.heard))),
        ("copy-expires",), "has too few copies",
    ),
    "patience": RuleOff(
        "what has expired waits a span for servers that may know its end",
        ((ReviewService, "_patience", lambda self, message: None),),
        (100016,), "long after it expired",
    ),
    "silent": RuleOff(
        "a node that cannot commit for two heartbeats is silent to its peers, and they take over",
        ((CommitWatch, "_fall_silent", lambda self: None),),
        (100002,), "sick",
    ),
    "read proofs": RuleOff(
        "a node that takes commits and cannot read its disk, or whose readings hang, is silent, too",
        ((CommitWatch, "_read", _proves_nothing),),
        (700009,), "sick",
    ),
    "bad sectors": RuleOff(
        "content that cannot be read although the disk reads others is set aside, so that another server uses its copy",
        ((OwnDisk, "content_failed", lambda self, place, awake, heartbeat: False),),
        (700017,), "sick",
    ),
    "ends remembered": RuleOff(
        "the end of what was taken over is remembered until its former primary server has heard of it, and `unknown` is an end, too",
        ((expiry, "SELECT_END_UNHEARD", "SELECT 1 WHERE ? IS NULL"), (rules, "is_forgotten_end", lambda answer, entry, peer: False)),
        (100007,), "false DSN",
    ),
    "expires first": RuleOff(
        "copies whose time is over expire before their server asks about them, and are not taken over",
        ((PromoteService, "__init__", _takes_expired_over(PromoteService.__init__)),),
        ("holder-away",), "expired",
    ),
    "ranges": RuleOff(
        "instants that a peer says, or a row has, have a range, and a scan sets aside what it cannot process",
        (
            (fields, "LATEST", _NoEnd()),
            (rows, "LATEST_MICROSECONDS", 2**63),
            (rows, "decode_instant", lambda microseconds: rows.EPOCH + timedelta(microseconds=microseconds)),
            (delivery, "by_this_clock", lambda envelope, now: envelope),
            (deliver, "setting_aside", lambda context, message: nullcontext()),
        ),
        ("hostile-times",), "OverflowError",
    ),
    "silence": RuleOff(
        "a shadow server promotes only after the whole span",
        ((rules, "silence_limit", _quarter(rules.silence_limit)),),
        ("cut-defer",), "I4",
    ),
    "lease length": RuleOff(
        "a lease ends before the silence does",
        ((rules, "lease_length", _double(rules.lease_length)),),
        ("cut-defer",), "I4",
    ),
    "sync": RuleOff(
        "a commit is synced before anybody hears of it",
        ((writing, "PRAGMAS", _without_sync()),),
        (30000,), "I2",
    ),
    "content": RuleOff(
        "content is on the disk before the row that names it",
        ((content, "os", _WithoutDsync()),),
        (30000,), "lost the content",
    ),
    "names": RuleOff(
        "the name of a file is on the disk before the row that names it",
        ((content, "sync_directory", lambda directory: None),),
        (30000,), "I2",
    ),
    "said": RuleOff(
        "nobody hears of a promise before its commit",
        ((LaggingWriter, "_finish", _says_first(LaggingWriter._finish)),),
        (30000,), "I2",
    ),
    "done": RuleOff(
        "a message is done only after every fork",
        ((claims, "recorded", _all_done(claims.recorded)),),
        (30000,), "I3",
    ),
    "notices": RuleOff(
        "a recipient is not reported done while its DSN exists on one disk only",
        ((UnitOfWork, "tell", _without_generated(UnitOfWork.tell)),),
        (30003,), "I1",
    ),
    "failures": RuleOff(
        "the sender is told what failed",
        ((dsn, "notifiable", lambda original, ordinals, kind: NO_ORDINALS),),
        (30000,), "tells nobody",
    ),
    "transient": RuleOff(
        "only a permanent refusal ends a recipient",
        ((Reply, "is_permanent", property(lambda reply: reply.code >= 400)),),
        (30000,), "nobody refused",
    ),
    "rows": RuleOff(
        "what became of a recipient is in the tracking log",
        ((tracking, "send", _as_deferred(tracking.send)),),
        (30000,), "no row says",
    ),
    "released": RuleOff(
        "a refused message is released on every server that may hold it",
        ((claims, "client_refused", _tells_nobody(claims.client_refused)),),
        ("refused-then-away",), "was refused, and",
    ),
    "bytes": RuleOff(
        "a line that begins with a dot gets another one",
        ((delivery_transaction, "stuffed_with_end", lambda data: data + (b".\r\n" if data.endswith(b"\r\n") else b"\r\n.\r\n")),),
        (30000,), "other bytes",
    ),
    "duplicates": RuleOff(
        "what was delivered to a recipient is not delivered again under another id",
        ((delivery, "duplicate_keys", lambda envelope, ordinals: {}),),
        ("sent-again",), "delivers it again",
    ),
    "reached": RuleOff(
        "whom another node reached with a message of which this one held the copy is recorded here, too",
        ((promises, "_reached", lambda work, event, keys, transition: None),),
        ("sent-again-elsewhere",), "delivers it again",
    ),
    "first": RuleOff(
        "a message that may be delivered by another node is not delivered meanwhile",
        ((repeats, "first_of", lambda stored, keys, copies: None),),
        ("sent-again-elsewhere",), "delivers it again",
    ),
    "fate": RuleOff(
        "a copy on a server that may be lost together with this one does not count",
        ((Fates, "count", _all_count),),
        ("machine-burnt",), "is lost",
    ),
    "observers": RuleOff(
        "a notification waits for a tracking log that hangs no longer than two seconds",
        ((FileTrackingLog, "sync", _sync_however_long(FileTrackingLog.sync)),),
    ),
    "log thread": RuleOff(
        "lines of the operator log are written by a thread, because nobody may read standard error",
        ((LineLogger, "_add", _written_at_once),),
    ),
    "takeover told": RuleOff(
        "a node says when it takes over by what it counts itself",
        ((PromoteService, "seconds_until_takeover", _since_another_process),),
        ("takeover-told",), "said at",
    ),
    "held told": RuleOff(
        "copies that are held for a server that is no peer any more are shown",
        ((PeerDesk, "views", _of_peers_only(PeerDesk.views)),),
        ("held-for-nobody",), "and shown are",
    ),
    "refused told": RuleOff(
        "a node that refuses every message is not ready",
        ((ReadinessService, "_may_recover", lambda self: True),),
        ("refused-told",), "ready, and refuses",
    ),
    "forget": RuleOff(
        "nothing is kept in memory for a message that is done",
        ((Leases, "forget", lambda self, message_id: None),),
        (30000,), "I6",
    ),
}  # fmt: skip


@contextmanager
def without(*names: str) -> Iterator[None]:
    """These rules are off."""
    with ExitStack() as stack:
        for each in dict.fromkeys([*names, *(hiding for name in names for hiding in RULES[name].hidden_by)]):
            for owner, attribute, off in RULES[each].off:
                stack.enter_context(patch.object(owner, attribute, off))
        yield
