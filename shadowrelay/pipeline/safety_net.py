"""Resubmits messages from Safety Net for requests of administrators. docs/design.md 6.3.

A request goes through its interval in pages, by the index of delivery times. Each message that it makes is committed together with the
request's progress, and is then copied and delivered like a DSN: in reject mode not before it has a copy. New mail has priority: a
request waits while `UNFINISHED_MAX` of its messages are unfinished, and pauses after each step for as long as the step took. A request is
done when all of its messages are redundant.
"""

import asyncio
from collections.abc import Callable

import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.message import Content
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import NewMessage, Origin, StoredMessage
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, ContentCorrupt, LedgerUnavailable, RequestRefused
from shadowrelay.model.resubmission import Criteria, Progress, RequestState, ResubmitRequest
from shadowrelay.model.routing import Destination
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline.context import Context, woken_within
from shadowrelay.pipeline.deliver import DeliverService
from shadowrelay.protocol import tracking
from shadowrelay.rules import delivery, dsn, safety_net_rules
from shadowrelay.rules.safety_net_rules import Selection
from shadowrelay.store import reading, resubmit_requests

PAGE = 50  # messages looked at in a step
UNFINISHED_MAX = 100  # resubmitted messages of one request that are not delivered yet: so many of them may be ahead of new mail in a queue
AT_ONCE = 4  # requests; the next ones wait for these
LOOK_SECONDS = 0.5  # between two looks at the unfinished messages
AGAIN_SECONDS = 5.0

_log = structlog.get_logger()


class SafetyNetService:
    """`destination` returns where mail for an address goes now. `is_lost` returns whether this database of a peer is gone, or whether the
    peer was silent for the span."""

    def __init__(
        self,
        context: Context,
        deliver: DeliverService,
        destination: Callable[[str], Destination],
        is_lost: Callable[[PeerDatabase], bool],
    ) -> None:
        self._context = context
        self._deliver = deliver
        self._destination = destination
        self._is_lost = is_lost
        self._event = asyncio.Event()

    async def delivered_count(self, criteria: Criteria) -> int:
        """How many messages such a request would find in its interval, whatever else it asks for; up to `COUNTED_MAX`. When another server
        delivered is not known here, only that it was before the discard. Raises: as `request`."""
        await self._check(criteria)
        is_for_other = bool(criteria.primary_server)
        end = None if is_for_other else criteria.to_at
        return await self._context.ledger.read(resubmit_requests.delivered_count, criteria.from_at, end, by_others=is_for_other)

    async def _check(self, criteria: Criteria) -> None:
        if refusal := safety_net_rules.refusal(criteria, self._context.now()):
            raise RequestRefused(refusal)
        if (server := criteria.primary_server) and not await self._is_peer(server):
            raise RequestRefused(f"this node knows no other node {server}")

    async def request(self, criteria: Criteria) -> ResubmitRequest:
        """Raises: RequestRefused, LedgerUnavailable."""
        await self._check(criteria)
        made = await self._context.ledger.commit(resubmit_requests.add, criteria)
        if made is None:
            raise RequestRefused("there are too many requests: remove some that are done")
        _log.info("resubmission.requested", request=made.number, **_named(criteria))
        self._event.set()
        return made

    async def _is_peer(self, server: ServerName) -> bool:
        return server in self._context.peers or any(server == row.server for row in self._context.ledger.peers.listed())

    async def requests(self) -> tuple[ResubmitRequest, ...]:
        """All of them, by number."""
        return await self._context.ledger.read(resubmit_requests.requests)

    async def change(self, number: int, *, is_enabled: bool) -> ResubmitRequest | None:
        """Stop a request, or continue a stopped one. None: there is no such request. Raises: RequestRefused."""
        state = RequestState.PENDING if is_enabled else RequestState.DISABLED
        changed = await self._context.ledger.commit(resubmit_requests.change_state, number, state)
        if changed is None:
            present = await self._find(number)
            if present is None:
                return None
            raise RequestRefused(f"request {number} is {present.state}")
        _log.info("resubmission.changed", request=number, state=state.value)
        self._event.set()
        return changed

    async def remove(self, number: int) -> bool:
        """Forget a request that is done or disabled. False: there is no such request. Raises: RequestRefused."""
        if not await self._context.ledger.commit(resubmit_requests.remove, number):
            present = await self._find(number)
            if present is None:
                return False
            raise RequestRefused(f"request {number} is {present.state}: disable it first")
        _log.info("resubmission.removed", request=number)
        return True

    async def _find(self, number: int) -> ResubmitRequest | None:
        return next((request for request in await self.requests() if request.number == number), None)

    async def run(self) -> None:
        """Work on active requests, forever. A restart continues them."""
        clock = self._context.clock
        while True:
            self._event.clear()
            began = clock.awake()
            try:
                pause = await self._turn()
            except LedgerUnavailable as error:
                _log.warning("resubmission.waits", reason=error.reason)
                pause = AGAIN_SECONDS
            if pause == 0:  # there is more to do now: leave half of the time to the mail
                await asyncio.sleep(min(clock.awake() - began, LOOK_SECONDS))
                continue
            await woken_within(self._event, pause)

    async def _turn(self) -> float | None:
        """Work on the active requests once. Returns the seconds until the next turn; None: wait until a request is made."""
        context = self._context
        active = [request for request in await context.ledger.read(resubmit_requests.requests) if request.state.is_active][:AT_ONCE]
        if not active:
            return None
        if context.is_draining:
            return LOOK_SECONDS
        if not context.pressure.may_resubmit:
            raise LedgerUnavailable(INSUFFICIENT_RESOURCES, "back pressure: what was delivered before must wait")
        has_more = False
        for request in active:
            room = UNFINISHED_MAX - await self._update_unfinished(request)
            if not request.is_examined and room > 0:
                has_more |= await self._examine(request, room)
            elif request.is_examined:
                await self._finish(request)
        return 0.0 if has_more else LOOK_SECONDS

    async def _update_unfinished(self, request: ResubmitRequest) -> int:
        """Record which of its messages are redundant or finished by now. Returns how many are unfinished."""
        context = self._context
        waiting = await context.ledger.read(resubmit_requests.unfinished, request.number)
        if not waiting:
            return 0
        found = await context.ledger.read(reading.load_many, [each.message_id for each in waiting])
        open_ones = {stored.envelope.message_id: stored for stored in found if stored.claim.role is Role.PRIMARY}
        finished = [each.message_id for each in waiting if each.message_id not in open_ones]
        redundant = [
            each.message_id
            for each in waiting
            if each.message_id in open_ones and not each.is_redundant and self._is_redundant(open_ones[each.message_id])
        ]
        if finished or redundant:
            await context.ledger.commit(resubmit_requests.settled, request.number, redundant, finished)
        return len(waiting) - len(finished)

    def _is_redundant(self, stored: StoredMessage) -> bool:
        return not stored.claim.missing_count or not self._context.is_enabled

    async def _finish(self, request: ResubmitRequest) -> None:
        done = await self._context.ledger.commit(resubmit_requests.change_state, request.number, RequestState.DONE)
        if done is not None:
            counts = {"resubmitted": done.resubmitted_count, "outside": done.outside_count, "missing": done.missing_count}
            _log.info("resubmission.done", request=done.number, examined=done.examined_count, **counts)

    async def _examine(self, request: ResubmitRequest, room: int) -> bool:
        """One page, as far as there is room. Whether there may be more.

        It goes on to the present: a message is found by its last delivery, and one to another next hop may have been long after the
        interval. A delivery while this runs moves the message ahead, so that it is found again, and not missed.
        """
        context = self._context
        is_for_other = bool(request.criteria.primary_server)
        select = safety_net_rules.shadow_selection if is_for_other else safety_net_rules.selection
        page = await context.ledger.read(
            resubmit_requests.delivered, (request.examined_at, request.examined_id), PAGE, by_others=is_for_other
        )
        step = Progress(request.examined_at, request.examined_id)
        for stored in page:
            if room <= 0:
                break
            assert stored.delivered_at is not None
            step = replace(step, examined_at=stored.delivered_at, examined_id=stored.internal_id, examined_count=step.examined_count + 1)
            try:
                selection = select(stored, request.criteria, self._destination, context.now())
                is_found = bool(selection.ordinals or selection.outside)
                if is_for_other and is_found and not self._is_lost(PeerDatabase(stored.claim.primary, stored.claim.database)):
                    step = replace(step, elsewhere_count=step.elsewhere_count + 1)
                    continue
                step = replace(step, outside_count=step.outside_count + len(selection.outside))
                if not selection.ordinals:
                    continue
                reason = await self._resubmit(request, step, stored, selection)
            except LedgerUnavailable:
                raise
            except Exception:
                _log.exception("resubmission.failed", request=request.number, message_id=stored.envelope.message_id)
                reason = "failed"
            if reason:
                _log.warning("resubmission.missing", request=request.number, message_id=stored.envelope.message_id, reason=reason)
                step = replace(step, missing_count=step.missing_count + 1)
            else:
                step = Progress(step.examined_at, step.examined_id)
                room -= 1
        is_page_done = not page or (step.examined_at, step.examined_id) == (page[-1].delivered_at, page[-1].internal_id)
        await context.ledger.commit(
            resubmit_requests.progressed, request.number, replace(step, is_examined=is_page_done and len(page) < PAGE)
        )
        return is_page_done and room > 0

    async def _resubmit(self, request: ResubmitRequest, step: Progress, original: StoredMessage, selection: Selection) -> str:
        """Why it cannot be resubmitted; empty if it was. Raises: LedgerUnavailable."""
        if selection.is_missing or original.place is None:
            return "it has left Safety Net, or is set aside"
        try:
            content = await self._context.read_content(original.place)
        except ContentCorrupt as error:
            return str(error)
        await self._context.tasks.whole(self._record(request, step, original, selection, content), "resubmit")
        return ""

    async def _record(
        self, request: ResubmitRequest, step: Progress, original: StoredMessage, selection: Selection, content: Content
    ) -> None:
        """Commit the new message with the step, and report it at once."""
        context = self._context
        me, now, original_id, number = context.me, context.now(), original.envelope.message_id, request.number
        message_id = safety_net_rules.resubmission_id(original_id, me.database, number)
        claim = claims.first_claim(me, len(selection.ordinals), wanted=context.settings.copies_without_client)
        if request.criteria.primary_server:  # any other shadow server may have made this message already: they are asked first
            message_id = safety_net_rules.shared_resubmission_id(original_id, selection.ordinals)
            claim = replace(claim, copies=context.peers.reachable_as_copies())
        envelope = safety_net_rules.envelope_for(original.envelope, selection.ordinals, message_id, now)
        header = dsn.resubmission_header(me.server, message_id, original_id, number, now)
        content = await context.ledger.wrapped(content, header)
        message = NewMessage(envelope, claim, Origin.SAFETY_NET, now, delivery.remember_until(now, context.settings.transport))
        made = await context.ledger.commit(resubmit_requests.progressed, number, step, message, content)
        if made is None:
            return  # the request was disabled meanwhile, or the message is here already, perhaps as another node's copy
        context.tracking.write(tracking.resubmit_from_safety_net(me.server, made, at=now, request=number))
        context.counts.resubmitted += 1
        self._deliver.copy_and_deliver(message_id)


def _named(criteria: Criteria) -> dict[str, str]:
    """For the operator log: without what is empty."""
    names = ("primary_server", "next_hop", "sender", "recipient", "message_id")
    given = {name: getattr(criteria, name) for name in names if getattr(criteria, name)}
    return {"from_at": criteria.from_at.isoformat(), "to_at": criteria.to_at.isoformat(), **given}
