"""Events of a claim on the primary server: accepting, placing copies, recording attempts, reviewing its list. docs/design.md 6.2."""

from collections.abc import Iterable, Sequence

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
from shadowrelay.ownership.rules import Outcome, PeerDatabase


def first_claim(me: PeerDatabase, recipients_count: int, firsts: Sequence[PeerDatabase] = (), wanted: int = 1) -> Claim:
    """The claim of a node to a message that it accepts, with the first servers that will be sent copies, numbered in this order."""
    copies = tuple([Copy(party.server, party.database, Choice.LISTED, place if wanted > 1 else 0) for place, party in enumerate(firsts, 1)])
    return Claim(Role.PRIMARY, CopyNumber(1, len(copies), me.database), recipients_count, copies=copies, wanted=wanted)


def wanting(claim: Claim | None, copies: int) -> Transition:
    """A message that was accepted with no copies wanted wants this many from now on."""
    if claim is None or not claim.is_primary or claim.wanted:
        return Transition(claim, claim)
    return Transition(claim, replace(claim, wanted=copies))


def relayed_claim(me: PeerDatabase, previous: PeerDatabase, rank: CopyNumber, recipients_count: int, wanted: int) -> Claim:
    """The claim of a node that takes a message by `TRACK` from `previous`, which keeps the shadow: that copy is chosen from the start. The
    number has the ownership and placement of `rank`, and the database of this node, which is now responsible.

    Shapes: `wanted` is 0 if this node makes no copies of its own. docs/design.md 6.7.
    """
    number = CopyNumber(rank.ownership, rank.placement, me.database)
    copy = Copy(previous.server, previous.database, Choice.CHOSEN, rank.placement if wanted > 1 else 0)
    return Claim(Role.PRIMARY, number, recipients_count, copies=(copy,), wanted=wanted)


def generated_claim(original: Claim, generated: Claim) -> Claim:
    """The claim to a message that this node creates because of another one (a DSN), when both are committed.

    A DSN has the same id whichever server creates it, and a server that may take over `original` may create it as well. So those
    servers are on the DSN's list too, with the leases on them: it is not delivered while the original could be taken over, and
    they are asked first after a lease has ended. If two servers create it, the later owner's has the higher number. `generated` may
    list further servers that may have a copy.
    """
    listed = tuple([Copy(copy.server, copy.database) for copy in original.copies])
    others = tuple([copy for copy in generated.copies if original.copy_on(copy.server) is None])
    return replace(generated, number=replace(generated.number, ownership=original.number.ownership), copies=(*listed, *others))


def may_place_on(claim: Claim, server: PeerDatabase, lease_runs: bool) -> bool:
    """A server on the list may get another copy only while its lease runs in the same database: after the lease, ask first what
    it did since. A server that was sent `released` may get one only after it has acknowledged that. A chosen server has one."""
    entry = claim.copy_on(server.server)
    if entry is None:
        return True
    if entry.choice is not Choice.LISTED:
        return False
    return lease_runs and entry.database in (NO_DATABASE, server.database)


def placing(claim: Claim | None, me: PeerDatabase, server: PeerDatabase) -> Transition:
    """Before a copy is sent to `server`: take the next number and put the server on the list. If as many as wanted are chosen already,
    the one with the oldest number is no longer chosen from then on.

    Raises: IllegalTransition if a `released` to this server is in flight (`may_place_on` was true earlier).
    """
    claim = rules.require_primary(claim)
    entry = claim.copy_on(server.server)
    if entry is not None and entry.choice.awaits_acknowledgement:
        raise IllegalTransition(f"{server.server} has not yet acknowledged that its copy was released")
    number = rules.number_after(claim, me)
    copy = Copy(server.server, server.database, Choice.LISTED, rules.placement_of(claim, number))
    return Transition(claim, replace(claim, number=number, copies=rules.listed_before_sending(rules.with_room(claim), copy)))


def not_sent(claim: Claim | None, servers: Iterable[ServerName]) -> Claim:
    """The claim without the entries of copies that were certainly not stored, on servers that hold no older one."""
    claim = rules.require_claim(claim)
    for server in servers:
        claim = rules.without_server(claim, server)
    return claim


def uncertain(claim: Claim | None, server: PeerDatabase) -> Claim:
    """The claim after a copy was sent to `server` and not confirmed. If the list has another database of that server, the copy may
    be in either, so the entry covers both; otherwise the database that has the copy would never be notified."""
    claim = rules.require_claim(claim)
    entry = claim.copy_on(server.server)
    if entry is None or entry.database in (NO_DATABASE, server.database):
        return claim
    return replace(claim, copies=rules.replace_copy(claim.copies, replace(entry, database=NO_DATABASE)))


def placed(claim: Claim | None, number: CopyNumber, server: PeerDatabase) -> Transition:
    """`server` has confirmed the copy with `number`. A late confirmation of an older number chooses no server."""
    claim = rules.require_claim(claim)
    entry = claim.copy_on(server.server)
    if not claim.is_primary or entry is None or entry.choice.awaits_acknowledgement:
        return Transition(claim, claim)
    if number != rules.copy_number(claim, entry):
        return Transition(claim, replace(claim, copies=rules.with_database(claim, server, claim.copies)))
    return rules.choose(claim, claim, server, number, Outcome.CHOSEN)


def released_acknowledged(claim: Claim | None, server: PeerDatabase, lease_runs: bool) -> Transition:
    """`server` has acknowledged our `released`: remove it from the list if it cannot have promoted before it received that.

    Shapes: `lease_runs` at the moment of the acknowledgement. Without a lease the server may have promoted first, and our
    `released` had no effect there: it stays on the list, and is asked like any other server whose lease has ended.
    """
    claim = rules.require_claim(claim)
    entry = claim.copy_on(server.server)
    if entry is None or not entry.choice.awaits_acknowledgement or entry.database not in (NO_DATABASE, server.database):
        return Transition(claim, claim)
    if not claim.is_primary or (lease_runs and entry.choice is Choice.DISMISSED):
        return Transition(claim, rules.without_server(claim, server.server), outcome=Outcome.DROPPED)
    return Transition(
        claim, replace(claim, copies=rules.replace_copy(claim.copies, replace(entry, choice=Choice.LISTED))), outcome=Outcome.REVIEW
    )


def gave_up(claim: Claim | None, server: ServerName) -> Transition:
    """The chosen server is unreachable for too long, or its database is new: stop waiting for it, so that another is chosen."""
    claim = rules.require_claim(claim)
    entry = claim.copy_on(server)
    if not claim.is_primary or entry is None or entry.choice is not Choice.CHOSEN:
        return Transition(claim, claim)
    return Transition(claim, replace(claim, copies=rules.replace_copy(claim.copies, replace(entry, choice=Choice.LISTED))))


def choosing_again(claim: Claim | None, me: PeerDatabase, server: ServerName) -> Transition:
    """Before a server that still holds an older copy is asked under the next number: commit that number. Only this server is asked
    under it, so it is not chosen until it has answered; nor is another, if one copy is wanted."""
    claim = rules.require_claim(claim)
    entry = claim.copy_on(server)
    if not claim.is_primary or entry is None or entry.choice not in (Choice.LISTED, Choice.CHOSEN):
        return Transition(claim, claim)
    if not rules.can_be_followed(claim.number):
        return Transition(claim, claim)
    number = rules.number_after(claim, me)
    listed = replace(entry, choice=Choice.LISTED, placement=rules.placement_of(claim, number))
    roomy = rules.with_room(replace(claim, copies=rules.replace_copy(claim.copies, listed)))
    return Transition(claim, replace(roomy, number=number), outcome=Outcome.CHOOSE_AGAIN)


def question_number(claim: Claim, server: ServerName) -> CopyNumber:
    """The number for a question to `server`: that of its copy if it is a chosen server, else one with placement 0, which chooses none.

    A primary's question with a placement assigns that number to the copy, and no two servers may have the same.
    """
    entry = claim.copy_on(server)
    if claim.role is Role.SHADOW:
        return claim.number
    if entry is not None and entry.choice is Choice.CHOSEN:
        return rules.copy_number(claim, entry)
    return replace(claim.number, placement=0)


def refused(claim: Claim | None) -> Transition:
    """The client gets 451: give the message up on every server."""
    claim = rules.require_primary(claim)
    copies, tell = rules.release_copies(claim)
    return Transition(claim, replace(claim, role=Role.RELEASED, copies=copies), tell)


def handing_over(claim: Claim | None) -> Transition:
    """Send `yours` to the chosen shadow server that takes over first: this node cannot deliver. It keeps its copy and its list."""
    claim = rules.require_claim(claim)
    chosen = rules.heir(claim)
    if not claim.is_primary or chosen is None or chosen.choice is Choice.HANDED_OVER:
        return Transition(claim, claim)
    copies = rules.replace_copy(claim.copies, replace(chosen, choice=Choice.HANDED_OVER))
    tell = (Notification(chosen.server, chosen.database, DiscardStatus.YOURS),)
    return Transition(claim, replace(claim, role=Role.SET_ASIDE, copies=copies), tell, outcome=Outcome.HANDED)


def draining(claim: Claim | None) -> Transition:
    """This node drains: send `yours` for a message without fault, which is not set aside for that. Call it only between attempts."""
    claim = rules.require_claim(claim)
    chosen = rules.heir(claim)
    if claim.role is not Role.PRIMARY or chosen is None or chosen.choice is Choice.HANDED_OVER:
        return Transition(claim, claim)
    handed = handing_over(claim)
    return replace(handed, after=replace(rules.require_claim(handed.after), role=Role.HANDED_OVER))


def reminding(claim: Claim | None) -> Transition:
    """Send `yours` again: the first may have been deleted before it was fetched. A server that has received it ignores the repetition."""
    claim = rules.require_claim(claim)
    chosen = claim.chosen()
    if claim.role is not Role.HANDED_OVER or chosen is None or chosen.choice is not Choice.HANDED_OVER:
        return Transition(claim, claim)
    return Transition(claim, claim, (Notification(chosen.server, chosen.database, DiscardStatus.YOURS),), outcome=Outcome.HANDED)


def taken_back(claim: Claim | None) -> Transition:
    """An administrator puts a message that was set aside back into delivery. A message that was handed over stays set aside: the
    other server may have taken it over by now. The claim was kept all the time, so nothing else changes."""
    claim = rules.require_claim(claim)
    chosen = claim.chosen()
    if claim.role is not Role.SET_ASIDE or not claim.is_primary or (chosen is not None and chosen.choice is Choice.HANDED_OVER):
        return Transition(claim, claim)
    return Transition(claim, replace(claim, role=Role.PRIMARY))


def recorded(claim: Claim | None, done: Ordinals) -> Transition:
    """Attempts have ended for `done`: delivered, failed with their DSN, or expired. Notify every server on the list."""
    claim = rules.require_claim(claim)
    news, done = done - claim.done, claim.done | done
    if len(done) >= claim.recipients_count:
        return rules.all_done(claim, claim, done)
    after = replace(claim, done=done)
    if claim.role is Role.SHADOW:
        return Transition(claim, after)
    return Transition(claim, after, rules.notify(claim.copies, DiscardStatus.DELIVERED, news) if news else ())


def apply_answer(claim: Claim, me: PeerDatabase, peer: PeerDatabase, answer: StatusAnswer) -> Transition | None:
    """The effect of any node's answer on a primary's claim; `None` if the answer neither ends nor delays it. A node that answers that every
    recipient is done is recorded as the primary server: it took the message over, and delivered it."""
    after = rules.with_done(claim, answer.done)
    if answer.state is StatusState.DELIVERED or after.is_done:
        return rules.all_done(claim, replace(after, done=rules.everyone(claim), primary=peer.server, database=peer.database))
    if answer.number is None:
        return None
    if answer.state is StatusState.PRIMARY:
        if rules.outranks(answer.number, claim.number):
            return rules.become_shadow(claim, after, peer)
        return Transition(claim, after, outcome=Outcome.WAIT) if rules.ends_before(answer, claim) else None
    if answer.state is StatusState.SHADOW and answer.primary != me.server and rules.outranks(answer.number, claim.number):
        if claim.wanted > 1:  # rule *keep*: yield to that primary itself, or to its successor, so that this copy counts there
            return Transition(claim, after, outcome=Outcome.WAIT)
        copies, tell = rules.release_copies(claim)
        return Transition(claim, replace(after, role=Role.RELEASED, copies=copies), tell, outcome=Outcome.YIELDED)
    if answer.state is StatusState.SHADOW and answer.primary == me.server and answer.database != me.database:
        return Transition(claim, after, outcome=Outcome.WAIT)  # this database is an older copy: the peer promotes, then this node yields
    return None


def review(claim: Claim | None, me: PeerDatabase, peer: PeerDatabase, answer: StatusAnswer, lease_runs: bool) -> Transition:
    """A primary has the answer to STATUS of a server on its list."""
    claim = rules.require_claim(claim)
    if not claim.is_primary:
        return Transition(claim, claim, outcome=Outcome.YIELDED)
    after = rules.with_done(claim, answer.done)
    entry = claim.copy_on(peer.server)
    holds = answer.state is StatusState.SHADOW and answer.primary == me.server and answer.database == me.database
    if holds and not after.is_done:
        return _meet_holder(claim, after, peer, answer, entry)
    settled = apply_answer(claim, me, peer, answer)
    if settled is not None:
        return settled
    if entry is None:
        return Transition(claim, after)
    if entry.choice.awaits_acknowledgement and entry.database in (NO_DATABASE, peer.database):
        return Transition(claim, after, outcome=Outcome.DISMISSED)  # a `released` in flight would discard a copy placed there now
    # A server that was sent `yours` may promote before its lease ends.
    if rules.needs_everybody(lease_runs and entry.choice is not Choice.HANDED_OVER):
        return Transition(claim, after, outcome=Outcome.EVERYBODY)
    return Transition(claim, rules.without_server(after, peer.server), outcome=Outcome.DROPPED)


def nobody_claims_more(claim: Claim | None, server: ServerName) -> Transition:
    """Every node was asked about a message whose copy on `server` is gone, and none claims it: remove the server from the list."""
    claim = rules.require_claim(claim)
    if not claim.is_primary:
        return Transition(claim, claim, outcome=Outcome.YIELDED)
    return Transition(claim, rules.without_server(claim, server), outcome=Outcome.DROPPED)


def claimed_again(claim: Claim | None, me: PeerDatabase) -> Transition:
    """Rule *rolled back*: all nodes were asked about a claim from an older copy of this database, and none claims more. The claim gets a
    number of the new database. No server is chosen: those on the list may hold a copy, and are asked like after any start."""
    claim = rules.require_claim(claim)
    if not rules.is_of_older_copy(claim, me):
        return Transition(claim, claim)
    free = rules.unchosen(claim)
    copies = tuple([replace(copy, placement=0) for copy in free.copies])
    claim_again = replace(free, number=rules.number_after(claim, me), copies=copies)
    return Transition(claim, claim_again, outcome=Outcome.CLAIMED_AGAIN)


def _meet_holder(claim: Claim, after: Claim, peer: PeerDatabase, answer: StatusAnswer, entry: Copy | None) -> Transition:
    if entry is None:  # a primary that yielded when it was asked is now our shadow server
        entry = Copy(peer.server, peer.database)
        after = replace(after, copies=rules.listed_before_sending(after, entry))
    elif entry.choice.awaits_acknowledgement:
        return Transition(claim, after, outcome=Outcome.DISMISSED)
    elif entry.choice is Choice.HANDED_OVER:
        return Transition(claim, after, outcome=Outcome.HANDED)
    is_wanted = claim.wanted <= 1 or entry.choice is Choice.CHOSEN or claim.missing_count
    if answer.number is not None and answer.number == rules.copy_number(claim, entry) and is_wanted:
        if claim.role is Role.SET_ASIDE and entry == claim.chosen() and rules.heir(claim) is None:
            return Transition(claim, after, outcome=Outcome.CHOOSE_AGAIN)  # with the highest number it can take the message over
        return rules.choose(claim, after, peer, answer.number, Outcome.CHOSEN)
    after = replace(after, copies=rules.with_database(after, peer, after.copies))
    if rules.may_release(after, peer.server):
        if answer.number is not None and answer.number.database == answer.database:
            copies = rules.replace_copy(after.copies, Copy(peer.server, peer.database, Choice.DISMISSED))
            tell = (Notification(peer.server, peer.database, DiscardStatus.RELEASED),)
            return Transition(claim, replace(after, copies=copies), tell, outcome=Outcome.DISMISSED)
        if claim.role in rules.NOT_ATTEMPTED:
            return Transition(claim, after)
        # It yielded to us under a number that is not ours, so it would ignore a `released`: choose it instead.
    chosen = claim.chosen()
    if chosen is not None and chosen.choice is Choice.HANDED_OVER:
        return Transition(claim, after)  # under a higher number, the server that was sent `yours` would wait for it
    return Transition(claim, after, outcome=Outcome.CHOOSE_AGAIN)
