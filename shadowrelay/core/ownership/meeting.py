"""What a primary learns when it asks another node about its message."""

from dataclasses import replace

from shadowrelay.core.ownership import pieces, rules
from shadowrelay.core.ownership.values import Note, Party
from shadowrelay.model.ids import NO_DATABASE, ServerName
from shadowrelay.model.ownership import (
    Choice,
    Claim,
    Copy,
    DiscardStatus,
    Notification,
    Role,
    StatusAnswer,
    StatusState,
    Transition,
)


def settle(claim: Claim, me: Party, peer: Party, answer: StatusAnswer) -> Transition | None:
    """What a primary learns from any node's answer; `None` if it neither ends nor delays the claim."""
    after = pieces.with_done(claim, answer.done)
    if answer.state is StatusState.DELIVERED or after.is_done:
        return pieces.all_done(claim, replace(after, done=pieces.everyone(claim)))
    if answer.number is None:
        return None
    if answer.state is StatusState.PRIMARY:
        if rules.outranks(answer.number, claim.number):
            return pieces.become_shadow(claim, after, peer)
        return Transition(claim, after, note=Note.WAIT) if rules.ends_before(answer, claim) else None
    if answer.state is StatusState.SHADOW and answer.primary != me.server and rules.outranks(answer.number, claim.number):
        copies, tell = pieces.let_go(claim)
        return Transition(claim, replace(after, role=Role.RELEASED, copies=copies), tell, note=Note.YIELDED)
    if answer.state is StatusState.SHADOW and answer.primary == me.server and answer.database != me.database:
        return Transition(claim, after, note=Note.WAIT)  # this database is an older copy: the peer promotes, then we yield
    return None


def review(claim: Claim | None, me: Party, peer: Party, answer: StatusAnswer, lease_runs: bool) -> Transition:
    """Primary and a server on its list meet: the peer's answer to STATUS."""
    claim = pieces.known(claim)
    if not claim.is_primary:
        return Transition(claim, claim, note=Note.YIELDED)
    after = pieces.with_done(claim, answer.done)
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
    return Transition(claim, pieces.without_server(after, peer.server), note=Note.DROPPED)


def nobody_claims_more(claim: Claim | None, server: ServerName) -> Transition:
    """Everybody was asked about a message whose copy on `server` is gone, and nobody claims it: off the list."""
    claim = pieces.known(claim)
    if not claim.is_primary:
        return Transition(claim, claim, note=Note.YIELDED)
    return Transition(claim, pieces.without_server(claim, server), note=Note.DROPPED)


def _meet_holder(claim: Claim, after: Claim, peer: Party, answer: StatusAnswer, entry: Copy | None) -> Transition:
    if entry is None:  # a primary that ended when it was asked is now our shadow server
        after = replace(after, copies=rules.listed_before_sending(after, Copy(peer.server, peer.database)))
    elif entry.choice.awaits_acknowledgement:
        return Transition(claim, after, note=Note.DISMISSED)
    elif entry.choice is Choice.HANDED_OVER:
        return Transition(claim, after, note=Note.HANDED)
    if answer.number == claim.number:
        return pieces.choose(claim, after, peer, Note.CHOSEN)
    after = replace(after, copies=pieces.with_database(after, peer, after.copies))
    if rules.may_release(after, peer.server):
        if answer.number is not None and answer.number.database == answer.database:
            copies = pieces.swap(after.copies, Copy(peer.server, peer.database, Choice.DISMISSED))
            tell = (Notification(peer.server, peer.database, DiscardStatus.RELEASED),)
            return Transition(claim, replace(after, copies=copies), tell, note=Note.DISMISSED)
        if claim.role is Role.SET_ASIDE:
            return Transition(claim, after)
        # It yielded to us and its number is not ours, so that it would not obey a `released`: it is chosen instead.
    return Transition(claim, after, note=Note.CHOOSE_AGAIN)
