"""What happens to a claim on the primary server: accepting, placing, attempts, its own list, and what it learns by asking others."""

from shadowrelay.model.ids import NO_DATABASE, ServerName
from shadowrelay.model.message import Ordinals
from shadowrelay.model.ownership import (
    Choice,
    Claim,
    Copy,
    CopyNumber,
    DiscardStatus,
    Notification,
    Role,
    StatusAnswer,
    StatusState,
    Transition,
)
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.model.values import replace
from shadowrelay.ownership import rules
from shadowrelay.ownership.rules import Note, Party


def first_claim(me: Party, recipients_count: int, first: Party | None) -> Claim:
    """The claim of a node to a message that it takes, with the first server that will be sent a copy, if any."""
    placement = 0 if first is None else 1
    copies = () if first is None else (Copy(first.server, first.database),)
    return Claim(Role.PRIMARY, CopyNumber(1, placement, me.database), recipients_count, copies=copies)


def side_claim(original: Claim, side: Claim) -> Claim:
    """The claim of a message that this node makes because of another one (a DSN), at the moment when both are committed.

    The same DSN has the same id on whichever server makes it: a server that may take `original` over may make it as well. So
    those servers stand on the DSN's list too, with the leases on them: it is not delivered where the original could be taken
    over, and is asked about first after a lease has ended. Of two that were made, the one of the later owner is higher. `side` may list
    more: whoever else may have it.
    """
    listed = tuple([Copy(copy.server, copy.database) for copy in original.copies])
    others = tuple([copy for copy in side.copies if original.copy_on(copy.server) is None])
    return replace(side, number=replace(side.number, ownership=original.number.ownership), copies=(*listed, *others))


def may_place_on(claim: Claim, server: Party, lease_runs: bool) -> bool:
    """A server on the list may get another copy only while its lease runs in the same database: what it may have
    done since the lease ended comes first. One that was dismissed, only after it has acknowledged that."""
    entry = claim.copy_on(server.server)
    if entry is None:
        return True
    if entry.choice.awaits_acknowledgement:
        return False
    return lease_runs and entry.database in (NO_DATABASE, server.database)


def placing(claim: Claim | None, me: Party, server: Party) -> Transition:
    """Before a copy is sent to `server`: the next number, and the server on the list. Whoever was chosen has an older
    number then, and is not chosen any more.

    Raises: IllegalTransition where `may_place_on` says no meanwhile because of a `released` under way.
    """
    claim = rules.claimed(claim)
    entry = claim.copy_on(server.server)
    if entry is not None and entry.choice.awaits_acknowledgement:
        raise IllegalTransition(f"{server.server} has not yet acknowledged that its copy was released")
    copies = rules.listed_before_sending(rules.unchosen(claim), Copy(server.server, server.database))
    return Transition(claim, replace(claim, number=rules.number_after(claim, me), copies=copies))


def not_sent(claim: Claim | None, server: ServerName | None) -> Claim:
    """The claim without an entry that was made for a copy of which certainly nothing was stored, and no older one was."""
    claim = rules.known(claim)
    return claim if server is None else rules.without_server(claim, server)


def uncertain(claim: Claim | None, server: Party) -> Claim:
    """The claim after a copy was sent to `server` and not confirmed. Where the list has another database of it, the copy may be
    in either: the entry is for both, or the one that has the copy would never be told."""
    claim = rules.known(claim)
    entry = claim.copy_on(server.server)
    if entry is None or entry.database in (NO_DATABASE, server.database):
        return claim
    return replace(claim, copies=rules.swap(claim.copies, replace(entry, database=NO_DATABASE)))


def placed(claim: Claim | None, number: CopyNumber, server: Party) -> Transition:
    """`server` has confirmed the copy with `number`. Late news of an older number chooses nobody."""
    claim = rules.known(claim)
    entry = claim.copy_on(server.server)
    if not claim.is_primary or entry is None or entry.choice.awaits_acknowledgement:
        return Transition(claim, claim)
    if claim.number != number:
        return Transition(claim, replace(claim, copies=rules.with_database(claim, server, claim.copies)))
    return rules.choose(claim, claim, server, Note.CHOSEN)


def released_acknowledged(claim: Claim | None, server: Party, lease_runs: bool) -> Transition:
    """`server` has acknowledged our `released`: it goes off the list if it cannot have promoted before it heard that.

    Shapes: `lease_runs` at the moment of the acknowledgement. Without the lease it may have promoted first, and what we
    said changed nothing there: it stays on the list, and is asked like any other server whose lease has ended.
    """
    claim = rules.known(claim)
    entry = claim.copy_on(server.server)
    if entry is None or not entry.choice.awaits_acknowledgement or entry.database not in (NO_DATABASE, server.database):
        return Transition(claim, claim)
    if not claim.is_primary or (lease_runs and entry.choice is Choice.DISMISSED):
        return Transition(claim, rules.without_server(claim, server.server), note=Note.DROPPED)
    return Transition(claim, replace(claim, copies=rules.swap(claim.copies, replace(entry, choice=Choice.LISTED))), note=Note.REVIEW)


def gave_up(claim: Claim | None, server: ServerName) -> Transition:
    """The chosen server is out of reach for too long, or its database is new: choose another."""
    claim = rules.known(claim)
    entry = claim.copy_on(server)
    if not claim.is_primary or entry is None or entry.choice is not Choice.CHOSEN:
        return Transition(claim, claim)
    return Transition(claim, replace(claim, copies=rules.swap(claim.copies, replace(entry, choice=Choice.LISTED))))


def choosing_again(claim: Claim | None, me: Party, server: ServerName) -> Transition:
    """Before a server that still holds an older copy is asked with the next number: that number, committed. It is for
    this server alone, so that nobody is chosen until it has answered."""
    claim = rules.known(claim)
    entry = claim.copy_on(server)
    if not claim.is_primary or entry is None or entry.choice not in (Choice.LISTED, Choice.CHOSEN):
        return Transition(claim, claim)
    if not rules.can_be_followed(claim.number):
        return Transition(claim, claim)
    raised = replace(rules.unchosen(claim), number=rules.number_after(claim, me))
    return Transition(claim, raised, note=Note.CHOOSE_AGAIN)


def question_number(claim: Claim, server: ServerName) -> CopyNumber:
    """The number to ask `server` with: its own where it is the chosen one, else one with placement 0, that chooses nobody.

    A primary's question with a placement gives that number to the copy; two servers must never get the same.
    """
    entry = claim.copy_on(server)
    if claim.role is Role.SHADOW or (entry is not None and entry.choice is Choice.CHOSEN):
        return claim.number
    return replace(claim.number, placement=0)


def refused(claim: Claim | None) -> Transition:
    """The client is told 451: give the message up everywhere."""
    claim = rules.claimed(claim)
    copies, tell = rules.let_go(claim)
    return Transition(claim, replace(claim, role=Role.RELEASED, copies=copies), tell)


def handing_over(claim: Claim | None) -> Transition:
    """Say `yours` to the chosen shadow server: this node cannot deliver. It keeps its copy and its list."""
    claim = rules.known(claim)
    chosen = claim.chosen()
    if not claim.is_primary or chosen is None or chosen.choice is Choice.HANDED_OVER:
        return Transition(claim, claim)
    copies = rules.swap(claim.copies, replace(chosen, choice=Choice.HANDED_OVER))
    tell = (Notification(chosen.server, chosen.database, DiscardStatus.YOURS),)
    return Transition(claim, replace(claim, role=Role.SET_ASIDE, copies=copies), tell, note=Note.HANDED)


def taken_back(claim: Claim | None) -> Transition:
    """An administrator puts a message that was set aside back into delivery. One that was handed over stays so: the other
    server may have taken it over by now. While it was set aside it was claimed all the time, so that nothing else changes."""
    claim = rules.known(claim)
    chosen = claim.chosen()
    if claim.role is not Role.SET_ASIDE or not claim.is_primary or (chosen is not None and chosen.choice is Choice.HANDED_OVER):
        return Transition(claim, claim)
    return Transition(claim, replace(claim, role=Role.PRIMARY))


def recorded(claim: Claim | None, done: Ordinals) -> Transition:
    """Attempts have ended for `done`: delivered, failed with their DSN, or expired. Every server on the list is told."""
    claim = rules.known(claim)
    news = done - claim.done
    after = replace(claim, done=claim.done | done)
    if after.is_done:
        return rules.all_done(claim, after)
    if claim.role is Role.SHADOW:
        return Transition(claim, after)
    return Transition(claim, after, rules.notify(claim.copies, DiscardStatus.DELIVERED, news) if news else ())


def settle(claim: Claim, me: Party, peer: Party, answer: StatusAnswer) -> Transition | None:
    """What a primary learns from any node's answer; `None` if it neither ends nor delays the claim."""
    after = rules.with_done(claim, answer.done)
    if answer.state is StatusState.DELIVERED or after.is_done:
        return rules.all_done(claim, replace(after, done=rules.everyone(claim)))
    if answer.number is None:
        return None
    if answer.state is StatusState.PRIMARY:
        if rules.outranks(answer.number, claim.number):
            return rules.become_shadow(claim, after, peer)
        return Transition(claim, after, note=Note.WAIT) if rules.ends_before(answer, claim) else None
    if answer.state is StatusState.SHADOW and answer.primary != me.server and rules.outranks(answer.number, claim.number):
        copies, tell = rules.let_go(claim)
        return Transition(claim, replace(after, role=Role.RELEASED, copies=copies), tell, note=Note.YIELDED)
    if answer.state is StatusState.SHADOW and answer.primary == me.server and answer.database != me.database:
        return Transition(claim, after, note=Note.WAIT)  # this database is an older copy: the peer promotes, then we yield
    return None


def review(claim: Claim | None, me: Party, peer: Party, answer: StatusAnswer, lease_runs: bool) -> Transition:
    """Primary and a server on its list meet: the peer's answer to STATUS."""
    claim = rules.known(claim)
    if not claim.is_primary:
        return Transition(claim, claim, note=Note.YIELDED)
    after = rules.with_done(claim, answer.done)
    entry = claim.copy_on(peer.server)
    holds = answer.state is StatusState.SHADOW and answer.primary == me.server and answer.database == me.database
    if holds and not after.is_done:
        return _meet_holder(claim, after, peer, answer, entry)
    settled = settle(claim, me, peer, answer)
    if settled is not None:
        return settled
    if entry is None:
        return Transition(claim, after)
    if entry.choice.awaits_acknowledgement and entry.database in (NO_DATABASE, peer.database):
        return Transition(claim, after, note=Note.DISMISSED)  # a `released` is under way that would end what is placed there next
    # Who was told `yours` does not wait for its lease to end.
    if rules.needs_everybody(lease_runs and entry.choice is not Choice.HANDED_OVER):
        return Transition(claim, after, note=Note.EVERYBODY)
    return Transition(claim, rules.without_server(after, peer.server), note=Note.DROPPED)


def nobody_claims_more(claim: Claim | None, server: ServerName) -> Transition:
    """Everybody was asked about a message whose copy on `server` is gone, and nobody claims it: off the list."""
    claim = rules.known(claim)
    if not claim.is_primary:
        return Transition(claim, claim, note=Note.YIELDED)
    return Transition(claim, rules.without_server(claim, server), note=Note.DROPPED)


def _meet_holder(claim: Claim, after: Claim, peer: Party, answer: StatusAnswer, entry: Copy | None) -> Transition:
    if entry is None:  # a primary that ended when it was asked is now our shadow server
        after = replace(after, copies=rules.listed_before_sending(after, Copy(peer.server, peer.database)))
    elif entry.choice.awaits_acknowledgement:
        return Transition(claim, after, note=Note.DISMISSED)
    elif entry.choice is Choice.HANDED_OVER:
        return Transition(claim, after, note=Note.HANDED)
    if answer.number == claim.number:
        return rules.choose(claim, after, peer, Note.CHOSEN)
    after = replace(after, copies=rules.with_database(after, peer, after.copies))
    if rules.may_release(after, peer.server):
        if answer.number is not None and answer.number.database == answer.database:
            copies = rules.swap(after.copies, Copy(peer.server, peer.database, Choice.DISMISSED))
            tell = (Notification(peer.server, peer.database, DiscardStatus.RELEASED),)
            return Transition(claim, replace(after, copies=copies), tell, note=Note.DISMISSED)
        if claim.role is Role.SET_ASIDE:
            return Transition(claim, after)
        # It yielded to us and its number is not ours, so that it would not obey a `released`: it is chosen instead.
    return Transition(claim, after, note=Note.CHOOSE_AGAIN)
