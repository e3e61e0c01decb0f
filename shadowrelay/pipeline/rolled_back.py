"""Rule *rolled back*: detects that this node's queue database is an older copy that was put back. docs/design.md 6.2 "Rolled back".

In an older copy, messages are unfinished that were delivered or taken over since, messages accepted since are missing, and numbers and
sequences would be assigned a second time. So the database gets a new id, and the node starts again under it: its peers take over what
they hold for the old id, as after a destroyed disk, and this node asks all of them about every message in the copy before it does anything
else with it.

Peers report in XSHADOW what they have seen of this database (`seen`, `seen-of`). A session that reveals the copy is used for nothing else:
the peer would take the older copy for the present state. What they have not seen, a question or answer may reveal: it has a number that
this database has assigned, and does not know.
"""

import asyncio

import structlog

from shadowrelay.model.ids import ServerName
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.replies import LedgerUnavailable, PeerUnavailable, Reply
from shadowrelay.ownership import rules
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.review import ReviewService
from shadowrelay.store import peer_promises, reading

STARTS_AGAIN = Reply(451, "4.3.0", "The queue database of this server is an older copy; it starts again under a new id")
OLDER_COPY = "the queue database of this node is an older copy"
LOOK_SECONDS = 0.2

_log = structlog.get_logger()


class RolledBackService:
    """`found` is set when the database turns out to be an older copy: the node must end, commit `database_renamed`, and start again."""

    def __init__(self, context: Context, review: ReviewService) -> None:
        self._context = context
        self._review = review
        self.found = asyncio.Event()
        self.is_asking = context.ledger.identity.older_until > 0
        """Messages from the older copy are still being asked about."""
        self.asked_until = 0  # internal ids up to this one were asked about at least once

    async def introduce(self) -> None:
        """Greet all peers once, before the first message is delivered, and learn what they have seen. Those that do not answer within
        `shadow_timeout` are not waited for."""
        context = self._context
        seconds = context.settings.transport.shadow_timeout.total_seconds()

        async def greet(server: ServerName) -> None:
            try:
                async with asyncio.timeout(seconds):
                    await context.links[server].greet()
            except PeerUnavailable as error:
                _log.info("peer.not_introduced", server=server, reason=error.reason)
            except TimeoutError:
                _log.info("peer.not_introduced", server=server, reason=f"no answer in {seconds:g} s")
            except Exception:
                _log.exception("peer.not_introduced", server=server)  # one peer must not keep the node from starting

        await asyncio.gather(*(greet(server) for server in context.peers.states))

    def check(self, identity: PeerIdentity) -> str:
        """A peer has identified itself: why its session cannot be used; empty if it can. Once the copy is recognised none can, whatever the
        peer has seen since: it may have taken this process for the present one."""
        if self.found.is_set():
            return OLDER_COPY
        ledger, seen = self._context.ledger, identity.seen
        own = ledger.identity
        is_ours = identity.boundary == self._context.settings.server.boundary and identity.server in self._context.peers
        if seen is None or identity.seen_of != own.database or not is_ours or not rules.is_older_copy(own.openings, ledger.position, seen):
            return ""
        _log.error(
            "database.rolled_back",
            database=own.database,
            incarnation=own.incarnation,
            began=own.began,
            seen_by=identity.server,
            seen_incarnation=seen.incarnation,
            seen_position=seen.position,
        )
        self._close()
        return OLDER_COPY

    def proved(self, server: ServerName) -> None:
        """A peer has a number that this database has assigned and does not know (`rules.shows_lost_number`)."""
        own = self._context.ledger.identity
        if not self.found.is_set():
            _log.error("database.rolled_back", database=own.database, incarnation=own.incarnation, began=own.began, seen_by=server)
            self._close()

    def _close(self) -> None:
        self._context.is_older_copy = self._context.leases.are_suspended = True
        self.found.set()

    def refusal(self, identity: PeerIdentity) -> Reply | None:
        """The same as a reply to a peer's XSHADOW."""
        return STARTS_AGAIN if self.check(identity) else None

    async def run(self) -> None:
        """Have everything in the older copy asked about, in the order of acceptance, also what is not due yet. What cannot be decided
        now, because a peer does not answer, is asked about again every heartbeat."""
        identity, ledger = self._context.ledger.identity, self._context.ledger
        if not self.is_asking:
            return
        _log.warning("database.asking", former=identity.former, database=identity.database, internal_ids=identity.older_until)
        while True:
            try:
                if await self._ask_all(identity.older_until):
                    await ledger.commit(peer_promises.older_claims_over)
                    break
            except LedgerUnavailable as error:
                _log.warning("database.asking_waits", reason=error.reason)
            await asyncio.sleep(self._context.heartbeat)
        self.is_asking = False
        _log.warning("database.asked", former=identity.former)

    async def _ask_all(self, until: int) -> bool:
        """One pass, in pages; True if nothing is left to ask about. A page is over when each of its messages was reviewed once."""
        ledger, review = self._context.ledger, self._review
        is_complete, after = True, 0
        while after < until:
            ids, read_until = await ledger.read(reading.older_claims, after)
            for message_id in ids:
                review.request(message_id)
            while review.is_pending(ids):  # noqa: ASYNC110 - the end of a review has no event
                await asyncio.sleep(LOOK_SECONDS)
            if ids and (await ledger.read(reading.older_claims, after))[0]:  # they wait for something
                is_complete = False
            after = read_until
            self.asked_until = max(self.asked_until, after)
        return is_complete
