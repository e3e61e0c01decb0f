"""Places the copies of one message: tries servers in the order of `rules.placement` until as many have stored it as are wanted.
docs/design.md 5. Several copies are sent at the same time, to different servers.

Each server is committed to the message's list before anything is sent to it, so that a primary knows every possible shadow.
"""

import asyncio
import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import field

from shadowrelay.model.fate import NOT_SHARED, Shared
from shadowrelay.model.ids import MessageId, ServerName, SiteName
from shadowrelay.model.message import NO_ORDINALS, Content, Envelope, Ordinals
from shadowrelay.model.ownership import Claim, CopyNumber, DiscardStatus, Notification, Role, StatusAnswer, Transition
from shadowrelay.model.peers import CopyOffer
from shadowrelay.model.replies import IllegalTransition, LedgerUnavailable, PeerSaid, PeerUnavailable
from shadowrelay.model.settings import Preference, Settings
from shadowrelay.model.values import dataclass
from shadowrelay.ownership import claims, rules
from shadowrelay.ownership.rules import PeerDatabase
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.peerbook import Turns
from shadowrelay.pipeline.site_copies import missing_sites
from shadowrelay.rules import placement
from shadowrelay.rules.fates import NO_SHARERS
from shadowrelay.rules.placement import Refused
from shadowrelay.store import promises

CONTENT_TOO_LARGE = 552


@dataclass(slots=True)
class CopyResult:
    """The result of placing copies. `claim` is the last committed claim; `unsent` are servers on its list that certainly
    stored nothing; `failures` are the reasons, in order. `shared`: the servers of `stored` whose fate may keep their copy from counting."""

    claim: Claim
    stored: list[tuple[PeerDatabase, CopyNumber]] = field(default_factory=list)
    unsent: tuple[ServerName, ...] = ()
    said: Ordinals = NO_ORDINALS  # recipients that the copies record as done
    uncertain: list[PeerDatabase] = field(default_factory=list)  # may have stored it, but did not confirm
    superseded_by: tuple[PeerDatabase, StatusAnswer] | None = None
    failures: list[str] = field(default_factory=list)
    attempts_count: int = 0  # servers actually tried
    unreadable: str = ""  # why this node cannot read its own content now: no server was to blame
    shared: dict[ServerName, Shared] = field(default_factory=dict)
    useless: set[ServerName] = field(default_factory=set)  # of `stored`: certainly does not count, so another one is tried
    _verdict: Transition | None = None  # cached: the ledger usually asks with the same claim again

    def known(self, claim: Claim | None) -> Claim:
        """The claim with its list as the attempts left it."""
        known = claims.not_sent(claim, self.unsent) if self.unsent else rules.require_claim(claim)
        for party in self.uncertain:
            known = claims.uncertain(known, party)
        for party, _ in self.stored:
            known = claims.uncertain(known, party)
        return known

    def verdict(self, message_id: MessageId, claim: Claim | None) -> Transition:
        """The transition that records this result. Call it only when the result is complete."""
        if self._verdict is not None and claim == self._verdict.before:
            return self._verdict
        known, outcome = self.known(claim), ""
        if not self.stored:
            return Transition(claim, known)
        for party, number in self.stored:
            chosen = claims.placed(known, number, party, self.shared.get(party.server, NOT_SHARED))
            assert chosen.after is not None
            known, outcome = chosen.after, outcome or chosen.outcome
        self._verdict = Transition(claim, known, outcome=outcome)
        return self._verdict

    def not_redundant(self, message_id: MessageId) -> tuple[ServerName, ...]:
        """The servers whose copies do not count."""
        if not self.shared:
            return ()
        after = self.verdict(message_id, self.claim).after
        return tuple([party.server for party, _ in self.stored if after is not None and not after.is_chosen(party.server)])

    def outcome(self, message_id: MessageId, claim: Claim | None) -> Transition:
        """As `verdict`, for a message that may have been delivered meanwhile. Notifications queued before the copy was stored had
        no effect; queue them again, or the stale copy would be promoted. The same for done recipients missing from the copy."""
        transition = self.verdict(message_id, claim)
        after = transition.after
        reached = [*self.uncertain, *(party for party, _ in self.stored)]
        if after is None or not reached:
            return transition
        unreported = NO_ORDINALS
        if after.is_primary:
            status, unreported = DiscardStatus.DELIVERED, after.done - self.said
            if not unreported:
                return transition
        else:
            status = DiscardStatus.DELIVERED if after.role is Role.DELIVERED else DiscardStatus.RELEASED
        tell = tuple(Notification(party.server, party.database, status, unreported) for party in reached)
        return Transition(claim, after, (*transition.tell, *tell), outcome=transition.outcome)


@dataclass(slots=True)
class Job:
    """The state that concurrent attempts on one message share. `left` are the servers still to be tried; `stall_seconds` is what
    remains of the time without progress."""

    envelope: Envelope
    content: Content
    left: list[ServerName]
    deadline: float
    whole: float
    stall_seconds: float
    is_large: bool
    is_client_waiting: bool
    result: CopyResult
    busy: set[ServerName] = field(default_factory=set)  # being tried, or has stored it

    def next(self) -> ServerName | None:
        """The next server to try. A server may be in the plan several times, but gets one copy."""
        while self.left:
            server = self.left.pop(0)
            if server not in self.busy:
                return server
        return None


class Copier:
    """Makes copies; `plan` decides which servers may be tried now."""

    def __init__(self, context: Context, chance: random.Random) -> None:
        self._context = context
        self._chance = chance
        self._rule_of: tuple[Settings, placement.PlacementRule, Mapping[ServerName, SiteName]] | None = None

    def plan(self, message_id: MessageId, claim: Claim | None = None, copies: int = 1, *, is_apart: bool = False) -> tuple[ServerName, ...]:
        """The order of attempts for a new message (`claim` None) or one that needs so many copies; empty: no server to try. `is_apart`: no
        server of this node's fate, whose copy would not count."""
        context = self._context
        settings = context.settings
        candidates: list[placement.Candidate] = []
        now = context.clock.awake()
        if claim is not None and rules.is_of_older_copy(claim, context.me):
            return ()  # from an older copy of the database: other nodes are asked first
        sharers = NO_SHARERS if context.redirect_to else context.peers.fates.counted
        for peer in settings.shadow_candidates:
            state = context.peers.states.get(peer.name)
            if state is None:
                continue
            if claim is not None and not self._may_place_on(message_id, claim, state.party):
                continue
            shared = sharers.get(peer.name, NOT_SHARED)
            if shared is not NOT_SHARED and self._is_useless(claim, peer.name, shared, state.party, is_apart=is_apart):
                continue
            breaker = state.breaker
            may_try = not state.is_forgotten and placement.may_try(breaker, now)
            was_silent = breaker.opened_at is not None and placement.state_of(breaker, now) == "half-open"
            candidates.append(placement.Candidate(peer.name, peer.site, may_try, state.copies_in_flight, was_silent, shared))
        if len(candidates) > 1:
            self._chance.shuffle(candidates)
        if context.redirect_to:  # an administrator named them, so the sites do not matter
            return tuple([each.server for each in candidates if each.may_try and each.server in context.redirect_to])
        return placement.plan(candidates, self._rule()[0], copies)

    def _rule(self) -> tuple[placement.PlacementRule, Mapping[ServerName, SiteName]]:
        """The rule of the current settings, and each candidate's site; computed once for all messages."""
        settings = self._context.settings
        if self._rule_of is None or self._rule_of[0] is not settings:
            sites = {peer.name: peer.site for peer in settings.shadow_candidates}
            rule = placement.rule_of(settings.transport, settings.server.site, sites.values())
            self._rule_of = (settings, rule, sites)
        return self._rule_of[1:]

    @staticmethod
    def _is_useless(claim: Claim | None, server: ServerName, shared: Shared, party: PeerDatabase, *, is_apart: bool) -> bool:
        """Whether a copy there would change nothing, as it does not count: none is wanted that does not, or there is one already."""
        if claim is None:
            return is_apart and shared.is_own
        entry = claim.copy_on(server)
        return entry is not None and entry.database == party.database and not rules.is_apart(claim, server, shared)

    def _may_place_on(self, message_id: MessageId, claim: Claim, party: PeerDatabase) -> bool:
        entry = claim.copy_on(party.server)
        return claims.may_place_on(claim, party, entry is not None and self._context.leases.left(message_id, entry) > 0)

    def copy(
        self,
        envelope: Envelope,
        content: Content,
        claim: Claim,
        plan: Sequence[ServerName],
        *,
        listed_count: int,
        is_client_waiting: bool,
        copies: int = 1,
        started: float | None = None,
        said: Ordinals = NO_ORDINALS,
    ) -> Awaitable[CopyResult]:
        """Place this number of `copies` at the same time, trying the servers of `plan`, for as long as `placement.time_for` allows from
        `started` (`Clock.awake`; default: now). `listed_count`: how many of the first servers are on the list already. `said`: done
        recipients that the copies may record; `outcome` notifies of the others.

        It stops if a further server cannot be listed: the claim ended meanwhile, or the ledger is unavailable.
        """
        result = CopyResult(claim, said=said)
        shadow_timeout = self._context.settings.transport.shadow_timeout.total_seconds()
        time = placement.time_for(content.size, shadow_timeout, is_client_waiting=is_client_waiting)
        now = self._context.clock.awake()
        deadline = (now if started is None else started) + time.whole
        whole = stall_seconds = time.stall_seconds or deadline - now
        left = list(plan[listed_count:])
        job = Job(envelope, content, left, deadline, whole, stall_seconds, time.stall_seconds is not None, is_client_waiting, result)
        if copies == 1:
            return self._one(job, plan[0] if listed_count else None)
        return self._several(job, plan[:listed_count], copies)

    def note_sites(self, result: CopyResult | None) -> None:
        """Note which sites got a copy of a client's message, and which did not although they should; `None`: no server could be tried."""
        rule, sites = self._rule()
        if not rule.is_multi_site or self._context.redirect_to:
            return
        # Almost every message: no site is known to get none, no server failed, and the first copy is where it is preferred.
        if result is not None and result.stored and not (self._context.site_copies.missed or result.unsent or result.uncertain):
            site = sites.get(result.stored[0][0].server)
            if site is not None and (site != rule.home) == (rule.preference is not Preference.LOCAL_ONLY):
                return
        stored = [] if result is None else [party.server for party, _ in result.stored]
        failed = () if result is None else (*result.unsent, *(party.server for party in result.uncertain))
        missing = missing_sites(rule, sites, stored, failed)
        reasons = self._context.peers.reasons_against_copies() if result is None else result.failures
        self._context.site_copies.placed([sites[server] for server in stored if server in sites], missing, reasons)

    async def _several(self, job: Job, firsts: Sequence[ServerName], copies: int) -> CopyResult:
        job.busy.update(firsts)
        ends = await asyncio.gather(
            *(self._one(job, firsts[index] if index < len(firsts) else None) for index in range(copies)), return_exceptions=True
        )
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return job.result

    async def _one(self, job: Job, first: ServerName | None) -> CopyResult:
        """Place one copy: try `first`, which is listed already, then the remaining servers, until one has stored it."""
        context, result = self._context, job.result
        while result.superseded_by is None:
            server = first or job.next()
            if server is None:
                break
            left = job.deadline - context.clock.awake()
            if job.is_large:
                left = min(left, job.stall_seconds)
            if left <= 0:
                result.failures.append("shadow_timeout is over")
                break
            was_listed = False
            if first is not None:
                first = None
                if job.is_large and not context.peers.may_try(server):  # not worth waiting for its turn
                    result.failures.append(f"{server}: left alone for now")
                    result.unsent += (server,)
                    job.busy.discard(server)
                    continue
                entry = result.claim.copy_on(server)
                assert entry is not None
                number = rules.copy_number(result.claim, entry)
            else:
                if not context.peers.may_try(server):  # since the plan was made it failed or refused, or another copy is its trial
                    result.failures.append(f"{server}: left alone for now")
                    continue
                party = context.peers.party(server)
                was_listed = result.claim.copy_on(server) is not None and server not in result.unsent
                job.busy.add(server)
                # A server that another attempt on this message is trying again stays on the list.
                unsent = tuple([other for other in result.unsent if other not in job.busy])
                try:
                    claim = await self._list(job.envelope.message_id, party, unsent)
                except (IllegalTransition, LedgerUnavailable) as error:
                    result.failures.append(str(error))
                    break
                result.claim, number = claim, claim.number
                result.unsent = tuple([other for other in result.unsent if other not in unsent and other != server])
                if not was_listed:
                    context.leases.listed_anew(job.envelope.message_id, server)
            seconds = left
            others = set(job.left) - {server}
            if others:
                home, sites = context.settings.server.site, self._rule()[1]
                seconds = placement.budget(
                    left,
                    sum(sites.get(other) != home for other in others),
                    sum(sites.get(other) == home for other in others),
                    another_candidate_left=True,
                    is_local=sites.get(server) == home,
                    whole_seconds=job.whole,
                )
            offer = CopyOffer(number, job.envelope, result.said, job.content)
            state = context.peers.states[server]
            state.copies_in_flight += 1  # counts as load for other messages
            try:
                if job.is_large:
                    turns = state.turns if job.is_client_waiting else state.repair_turns
                    is_over = await self._try_in_turn(server, offer, (job.deadline, seconds), was_listed, turns, result)
                else:
                    is_over = await self._try(server, offer, (context.clock.awake() + seconds, None), was_listed, result)
            finally:
                state.copies_in_flight -= 1
            if is_over and (server not in result.useless or result.superseded_by is not None):
                break
            if is_over:  # it was found to share a fate only now: another one is tried, and it keeps its copy
                if not any(not context.shared_fate(other).is_own for other in job.left):
                    break
                continue
            job.busy.discard(server)
            job.stall_seconds -= seconds
        return result

    async def _list(self, message_id: MessageId, party: PeerDatabase, unsent: tuple[ServerName, ...]) -> Claim:
        me = self._context.me
        (transition,) = await self._context.ledger.commit(
            promises.transition, [message_id], lambda _, claim: claims.placing(claims.not_sent(claim, unsent), me, party)
        )
        assert transition.after is not None
        self._context.attempts.changed(message_id)  # attempts that read the old list must not start with it
        return transition.after

    async def _try_in_turn(
        self, server: ServerName, offer: CopyOffer, bounds: tuple[float, float], was_listed: bool, turns: Turns, result: CopyResult
    ) -> bool:
        """`_try` for a large copy."""
        try:
            async with asyncio.timeout(bounds[0] - self._context.clock.awake()) as waiting:
                async with turns.turn(offer.content.size):
                    waiting.reschedule(None)
                    return await self._try(server, offer, bounds, was_listed, result)
        except TimeoutError:
            result.failures.append(f"{server}: its turn did not come in time")
            if not was_listed:
                result.unsent += (server,)
            return False

    async def _try(
        self, server: ServerName, offer: CopyOffer, bounds: tuple[float, float | None], was_listed: bool, result: CopyResult
    ) -> bool:
        """Try one server; True: stop trying. `bounds`: deadline and `stall_seconds` of `PeerLink.hold`."""
        context = self._context
        state = context.peers.states[server]
        message_id = offer.envelope.message_id
        began = context.clock.awake()
        trial = context.peers.begin_attempt(server)
        if trial is None:
            result.failures.append(f"{server}: left alone for now")
            if not was_listed:
                result.unsent += (server,)
            return False
        result.attempts_count += 1
        try:
            answer = await context.links[server].hold(offer, bounds[0], stall_seconds=bounds[1])
        except PeerUnavailable as error:
            self._tell(server, error)
            result.failures.append(str(error))
            if error.sent:
                context.leases.began(message_id, server, began, is_confirmed=False)
                shown = context.links[server].identity  # of the session used, which may have shown another database
                result.uncertain.append(state.party if shown is None else PeerDatabase(server, shown.database))
            elif not was_listed:
                result.unsent += (server,)
            return False
        except LedgerUnavailable as error:
            result.unreadable = error.reason
            result.failures.append(error.reason)
            if not was_listed:
                result.unsent += (server,)
            return True
        finally:
            if trial:
                context.peers.end_attempt(server, trial)
        party = PeerDatabase(server, answer.server_database)
        if answer.superseded_by is not None:
            result.failures.append(f"{server}: superseded by {answer.superseded_by.state} {answer.superseded_by.number}")
            # It has a claim or a copy of its own, and may have yielded to us by now: it stays on the list and is asked.
            result.superseded_by = (party, answer.superseded_by)
            return True
        context.peers.stored(server)
        context.leases.began(message_id, server, answer.began_awake, is_confirmed=True)
        context.leases.proved(server, answer.server_database, answer.began_awake)
        result.stored.append((party, offer.number))
        if context.peers.fates.counted and (shared := context.shared_fate(server)) is not NOT_SHARED:
            result.shared[server] = shared
            if shared.is_own or any(other.server in shared.others for other, _ in result.stored):
                what = context.peers.fates.what_keeps(server)
                result.useless.add(server)
                result.failures.append(f"{server}: its copy is not redundant, as it shares its fate: {what}")
        return True

    def _tell(self, server: ServerName, error: PeerUnavailable) -> None:
        """Record what a failed copy means for later attempts on this server."""
        peers = self._context.peers
        if error.was_kept:
            return  # the next attempt, on a new session, shows whether the peer is there
        if error.said is PeerSaid.NOTHING:
            peers.failed(server, error.reason, was_refused=error.was_refused, is_of_copy=error.sent or error.in_session)
        elif error.said is PeerSaid.NO_SESSION:
            peers.refused(server, Refused.SESSION, error.reason)
        elif error.said is PeerSaid.NO_COPY:
            peers.refused(server, Refused.COPY, error.reason)
        elif error.reply is None or error.reply.code != CONTENT_TOO_LARGE:  # of those anybody may send any number
            peers.refused_this(server, error.reason)
