"""Whether mail is accepted now, what happens to the next message, and why. docs/design.md 8; docs/operations.md."""

from collections.abc import Callable, Collection, Iterable, Iterator

from shadowrelay.model.drain_progress import DrainState
from shadowrelay.model.ids import ServerName
from shadowrelay.model.readiness import REFUSED_BECAUSE, NewMail, NextMessage, Takes
from shadowrelay.pipeline.commit_watch import explanation
from shadowrelay.pipeline.context import Context
from shadowrelay.pipeline.copy_repair import CopyRepair
from shadowrelay.pipeline.draining import DrainService
from shadowrelay.pipeline.rolled_back import OLDER_COPY, RolledBackService
from shadowrelay.rules import back_pressure
from shadowrelay.rules.back_pressure import Level
from shadowrelay.rules.placement import apart, may_get_copies, new_mail, rule_of

TAKERS = (Takes.YES, Takes.UNKNOWN, Takes.NO)


class ReadinessService:
    """Reads what the other services know."""

    def __init__(self, context: Context, rolled_back: RolledBackService, drain: DrainService, copy_repair: CopyRepair) -> None:
        self._context = context
        self._rolled_back = rolled_back
        self._drain = drain
        self._copy_repair = copy_repair
        self.is_running = False
        self.hanging: Callable[[], Iterable[str]] = tuple  # what hangs now without stopping mail, or only that of a route

    @property
    def state(self) -> str:
        """Of the node, in a word."""
        if self._drain.state is not DrainState.ACTIVE:
            return self._drain.state.value
        return "draining" if self._context.is_draining else "running" if self.is_running else "starting"

    def is_ready(self) -> tuple[bool, tuple[str, ...]]:
        """Whether mail is accepted now, and if not, the reasons: starting, draining, high back pressure. If it is ready and there are
        reasons, it is degraded: they name what it does not accept."""
        reasons = []
        if not self.is_running:
            reasons.append("starting")
        if self._context.is_draining:
            reasons.append(self.state)
        context = self._context
        if context.commit_failure is not None:
            reasons.append(explanation(context, context.commit_failure))
        new_mail = self.new_mail()
        is_said = context.commit_failure is not None  # among the reasons
        is_out = new_mail.outcome is NewMail.REFUSED and not is_said and (bool(self._why_unstored()) or not self._may_recover())
        if is_out:
            reasons.append(new_mail.sentence)
        pressed = back_pressure.reasons(context.pressure, context.settings.back_pressure)
        if context.pressure.level is Level.HIGH:
            reasons.extend(pressed)
            pressed = ()
        rolled_back = self._rolled_back
        if rolled_back.found.is_set():
            reasons.append(f"{OLDER_COPY}: it starts again under a new database id")
        # Mail is still accepted: neither node knows which of the two is the copy, so both would refuse it.
        warnings = [*pressed, *self._unprotected()]
        if new_mail.sentence and not is_out and not is_said:
            warnings.insert(len(pressed), new_mail.sentence)
        warnings += [f"peer {server} is refused: {reason}" for server, reason in context.peers.conflicts.items()]
        warnings += context.site_copies.sentences()
        warnings += [
            f"peer {server} refuses this node, so what it may hold of this node's mail is not delivered from here: {reason}"
            for server, reason in context.peers.refusing_us.items()
        ]
        warnings += self.hanging()
        if rolled_back.is_asking:
            until = context.ledger.identity.older_until
            warnings.append(
                f"the queue database was an older copy: peers are asked about each message in it before it is delivered, "
                f"{rolled_back.asked_until} of {until} internal ids so far"
            )
        return not reasons, (*reasons, *warnings)

    def new_mail(self, without: Collection[ServerName] = ()) -> NextMessage:
        """What happens to the next message: the only place that says so. Outcomes of placements decide, see `placement.CopyEvidence`.
        `without`: if these peers were lost."""
        context, settings = self._context, self._context.settings
        takers = [context.peers.takes_copies(server) for server in self._candidates_apart(without)]
        sharers = context.peers.fates.own_sharers
        taking, wanted = takers.count(Takes.YES), settings.copies_wanted if context.is_enabled else 0
        if (failure := context.commit_failure) is not None:
            return NextMessage(NewMail.REFUSED, taking, wanted, f"{REFUSED_BECAUSE}{explanation(context, failure)}", sharers)
        if why := self._why_unstored():
            return NextMessage(NewMail.REFUSED, taking, wanted, f"{REFUSED_BECAUSE}{why}", sharers)
        outcome = new_mail(takers, wanted, rejects=settings.transport.reject_message_on_shadow_failure)
        if outcome in (NewMail.COPIED, NewMail.NOT_COPIED):
            return NextMessage(outcome, taking, wanted, "", sharers)
        if outcome is NewMail.UNKNOWN:
            said = "may not get its copies"
        elif outcome is NewMail.REFUSED:
            said = "is refused with 451"
            if others := [each.name for each in settings.receive_connectors if not each.redundancy.copies]:
                outcome, said = NewMail.FEWER, f"{said}, except on {', '.join(others)}"
        else:
            said = f"is accepted {'without a copy' if not taking else f'with {taking} of {wanted} copies'}"
        reasons = [f"{server}: it would be lost" for server in sorted(without)]
        reasons += [*context.peers.reasons_against_copies(), *self._shared_fates()]
        return NextMessage(outcome, taking, wanted, f"new mail {said}: {'; '.join(reasons) or 'too few peers are configured'}", sharers)

    def _why_unstored(self) -> str:
        reason = self._context.own_disk.why_no_mail(self._context.clock.awake())
        return f"the last message could not be stored in {self._context.settings.server.data_directory} ({reason})" if reason else ""

    def _candidates_apart(self, without: Collection[ServerName] = ()) -> list[ServerName]:
        """The peers whose copies count at the same time; of those that share a fate, one that takes copies."""
        candidates, peers = [server for server in self._candidates() if server not in without], self._context.peers
        return apart(sorted(candidates, key=lambda server: TAKERS.index(peers.takes_copies(server))), self._context.shared_fate)

    def _shared_fates(self) -> Iterator[str]:
        """Why the copies of peers that take them do not count."""
        peers, counted = self._context.peers, self._candidates_apart()
        for server in self._candidates():
            if server not in counted and peers.takes_copies(server) is not Takes.NO:
                what = peers.fates.in_words(server)
                yield f"{server}: a copy there is not redundant, {_in_sharing_words(what)}"

    def _candidates(self) -> list[ServerName]:
        """The peers that may get copies."""
        settings = self._context.settings
        candidates = settings.shadow_candidates
        rule = rule_of(settings.transport, settings.server.site, [peer.site for peer in candidates])
        return [peer.name for peer in candidates if may_get_copies(peer.site, rule)]

    def _may_recover(self) -> bool:
        """Whether new mail would get its copies if the peers recover that live and store none: then it is refused, and yet this node is not
        out of service."""
        peers, wanted = self._context.peers, self._context.settings.copies_wanted
        able = [server for server in self._candidates() if peers.takes_copies(server) is Takes.YES or peers.may_recover(server)]
        return len(apart(able, self._context.shared_fate)) >= wanted

    def _unprotected(self) -> Iterator[str]:
        """Why mail that was accepted has fewer copies than it should."""
        if not self._context.is_enabled:
            return
        for server, state in self._context.peers.states.items():
            if state.to_confirm is not None:
                yield f"copies on {server} are not confirmed since it came back: it is asked about each, and what it lost is copied again"
        if count := self._copy_repair.failing_count:
            unreadable, reason = self._copy_repair.unreadable()
            own = f"; {unreadable} of them this node cannot read itself now: {reason}" if unreadable else ""
            yield f"accepted messages with fewer copies than wanted: {count}; the copies are tried again{own}"


def _in_sharing_words(what: str) -> str:
    if not what:
        return "as it may be lost together with another server that gets one"
    labels = what.removeprefix("machine").lstrip(", ")
    return "as " + " and ".join(["it runs on this machine"] * what.startswith("machine") + [f"both have the label {labels}"] * bool(labels))
