"""How much one peer may have this node hold for it: copies, their octets, and their recipients. docs/protocol.md 16.

A peer that errs, or whoever has its key, can fill neither the disk nor the tables of the others. An honest one is far below the limits:
what it has delivered is not held any more. So nothing is counted on the way of a copy but what came since the last look at the store;
only where that could be too much, the store is asked, and only what it says refuses a copy. The refusal is temporary, so the primary
server goes to another one.
"""

import asyncio
from dataclasses import field

import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.message import Envelope
from shadowrelay.model.queue import HeldFor
from shadowrelay.model.replies import LedgerUnavailable, Reply
from shadowrelay.model.setting_texts import size_of
from shadowrelay.model.values import dataclass
from shadowrelay.pipeline.context import Context
from shadowrelay.ports import Machine
from shadowrelay.store import reading

TOO_MUCH = Reply(452, "4.3.1", "This server holds too much for you")  # RFC 3463 X.3.1
SHARE_OF_LOOKS = 20  # of the time at most one part is spent on looking, however much is held

_log = structlog.get_logger()


@dataclass(slots=True)
class Estimate:
    """What is held for one peer, or more; copies whose commit was on its way at the last look may be missing.

    Units: `looks_next_at` by `Clock.awake`."""

    held: HeldFor = field(default_factory=HeldFor)
    is_known: bool = False
    looks_next_at: float = 0.0
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)


class CopyLimits:
    """`context.peers.states[...].copies_refused` says why copies of a peer are refused now."""

    def __init__(self, context: Context, machine: Machine | None) -> None:
        self._context = context
        self._machine = machine
        self._estimates: dict[ServerName, Estimate] = {}
        self._size_max: tuple[str, int | None] = ("0", None)  # the setting, and what it means on this disk

    async def refusal(self, server: ServerName, envelope: Envelope, octets: int) -> Reply | None:
        """The answer to a copy that is one too many; else it counts from now on."""
        context, recipients = self._context, len(envelope.recipients)
        if (estimate := self._estimates.get(server)) is None:
            estimate = self._estimates[server] = Estimate()
        more = estimate.held.plus(octets, recipients)
        reason = self._excess(more)
        if reason or not estimate.is_known:
            async with estimate.looking:  # nobody is refused while the answer is on its way
                if not estimate.is_known or self._excess(estimate.held.plus(octets, recipients)):
                    await self._look(server, estimate)
                more = estimate.held.plus(octets, recipients)
                reason = self._excess(more)
        state = context.peers.states.get(server)  # None: it left meanwhile
        if not reason or not estimate.is_known:
            estimate.held = more
            if state is not None:
                state.copies_refused = ""
            return None
        over = context.counts.copies_over_limit
        over[server] = over.get(server, 0) + 1
        if state is not None:
            state.copies_refused = f"too much is held for it, and its copies were refused at {context.now():%Y-%m-%dT%H:%M:%SZ}: {reason}"
        _log.warning("copy.refused", peer=server, reason=reason)
        return TOO_MUCH

    async def _look(self, server: ServerName, estimate: Estimate) -> None:
        """Ask the store. While it does not answer, copies fail by themselves."""
        clock = self._context.clock
        began = clock.awake()
        if began < estimate.looks_next_at:
            return
        try:
            estimate.held = await self._context.ledger.read(reading.placed_by, server)
        except LedgerUnavailable:
            return
        estimate.is_known = True
        ended = clock.awake()
        estimate.looks_next_at = ended + (ended - began) * SHARE_OF_LOOKS

    def _excess(self, held: HeldFor) -> str:
        """Which limit that would be above, in words."""
        transport = self._context.settings.transport
        if 0 < transport.max_copies_per_peer < held.count:
            return f"{held.count - 1} copies are held for it, max_copies_per_peer = {transport.max_copies_per_peer}"
        if 0 < transport.max_copy_recipients_per_peer < held.recipients:
            return f"copies with {held.recipients} recipients, max_copy_recipients_per_peer = {transport.max_copy_recipients_per_peer}"
        limit = transport.max_copies_size_per_peer
        if self._size_max[0] != limit:
            self._size_max = (limit, self._octets_max(limit))
        octets = self._size_max[1]
        if octets is not None and held.octets > octets:
            return f"copies of {octets / 1e9:.3g} GB, max_copies_size_per_peer = {limit}"
        return ""

    def _octets_max(self, limit: str) -> int | None:
        if not limit.endswith("%"):
            return size_of(limit, 0)
        if self._machine is None:
            return None
        try:
            return size_of(limit, self._machine.disk(self._context.settings.server.data_directory).size) or None
        except OSError:
            return None
