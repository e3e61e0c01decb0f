"""The events of a claim, one function each: the handlers of the table in `ownership`. docs/design.md 6.1, 6.2.

First those by which a primary server's own work changes its claim: accepting, placing copies, recording attempts, reviewing its list. Then
those that come from other nodes, whatever the role here: questions, copies, discard notifications. Last a shadow server's way to a
promotion.
"""

from collections.abc import Collection, Iterable, Sequence

from shadowrelay.model.fate import NOT_SHARED, Shared
from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import (
    Choice,
    Claim,
    Copy,
    CopyNumber,
    DiscardEvent,
    DiscardStatus,
    Notification,
    Role,
    StatusAnswer,
    StatusQuestion,
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


def copies_now_wanted(claim: Claim | None, copies: int) -> Transition:
    """A message that was accepted with no copies wanted wants this many from now on."""
    if claim is None or not claim.is_primary or claim.wanted:
        return Transition(claim, claim)
    return Transition(claim, replace(claim, wanted=copies))


def relayed_claim(
    me: PeerDatabase, previous: PeerDatabase, rank: CopyNumber, recipients_count: int, wanted: int, shared: Shared = NOT_SHARED
) -> Claim:
    """The claim of a node that takes a message by `TRACK` from `previous`, which keeps the shadow: that copy is chosen from the start,
    unless its fate is `shared` and further copies are wanted. The number has the ownership and placement of `rank`, and the database of
    this node, which is now responsible.

    Shapes: `wanted` is 0 if this node makes no copies of its own. docs/design.md 6.7.
    """
    number = CopyNumber(rank.ownership, rank.placement, me.database)
    choice = Choice.LISTED if wanted and shared.is_own else Choice.CHOSEN
    copy = Copy(previous.server, previous.database, choice, rank.placement if wanted > 1 else 0)
    return Claim(Role.PRIMARY, number, recipients_count, copies=(copy,), wanted=wanted)


def generated_claim(original: Claim, generated: Claim) -> Claim:
    """The claim to a message that this node creates because of another one (a DSN), when both are committed.

    A DSN has the same id whichever server creates it, and a server that may take over `original` may create it as well. So those
    servers are on the DSN's list too, with the leases on them: it is not delivered while the original could be taken over, and
    they are asked first after a lease has ended. If two servers create it, the later owner's has the higher number. `generated` may
    list further servers that may have a copy.
    """
    listed = tuple(map(rules.not_chosen, original.copies))
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


def placed(claim: Claim | None, number: CopyNumber, server: PeerDatabase, shared: Shared = NOT_SHARED) -> Transition:
    """`server` has confirmed the copy with `number`. A late confirmation of an older number chooses no server, nor does one of `shared`
    fate."""
    claim = rules.require_claim(claim)
    entry = claim.copy_on(server.server)
    if not claim.is_primary or entry is None or entry.choice.awaits_acknowledgement:
        return Transition(claim, claim)
    if number != rules.copy_number(claim, entry) or not rules.is_apart(claim, server.server, shared):
        return Transition(claim, replace(claim, copies=rules.with_database(claim, server, claim.copies)))
    return rules.choose(claim, claim, server, number, Outcome.CHOSEN)


def released_acknowledged(claim: Claim | None, server: PeerDatabase, lease_runs: bool) -> Transition:
    """`server` has acknowledged our `released`: remove it from the list if it cannot have promoted before it received that.

    Shapes: `lease_runs` at the moment of the acknowledgement. Without a lease the server may have promoted first, and our
    `released` had no effect there: it stays on the list, and is asked like any other server whose lease has ended.

    Of a copy that this server gave up, its primary server knows so now: nothing is left to do here.
    """
    claim = rules.require_claim(claim)
    if rules.is_unreadable_copy(claim) and (claim.primary, claim.database) == (server.server, server.database):
        return unreadable_removed(claim)
    entry = claim.copy_on(server.server)
    if entry is None or not entry.choice.awaits_acknowledgement or entry.database not in (NO_DATABASE, server.database):
        return Transition(claim, claim)
    if not claim.is_primary or (lease_runs and entry.choice is Choice.DISMISSED):
        return Transition(claim, rules.without_server(claim, server.server), outcome=Outcome.DROPPED)
    return Transition(
        claim, replace(claim, copies=rules.replace_copy(claim.copies, replace(entry, choice=Choice.LISTED))), outcome=Outcome.REVIEW
    )


def no_longer_chosen(claim: Claim | None, server: ServerName) -> Transition:
    """The chosen server is unreachable for too long, or its database is new: stop waiting for it, so that another is chosen."""
    entry = None if claim is None else claim.copy_on(server)
    if claim is None or not claim.is_primary or entry is None or entry.choice is not Choice.CHOSEN:
        return Transition(claim, claim)
    return Transition(claim, replace(claim, copies=rules.replace_copy(claim.copies, replace(entry, choice=Choice.LISTED))))


def fate_shared(claim: Claim | None, server: ServerName, shared: Shared) -> Transition:
    """The chosen server turned out to share a fate: stop counting its copy, so that another server is chosen."""
    if claim is None or rules.is_apart(claim, server, shared):
        return Transition(claim, claim)
    return no_longer_chosen(claim, server)


def choosing_again(claim: Claim | None, me: PeerDatabase, server: ServerName) -> Transition:
    """Before a server that still holds an older copy is asked under the next number: commit that number. Only this server is asked
    under it, so it is not chosen until it has answered; nor is another, if one copy is wanted. A hand-over to it stays in force."""
    entry = None if claim is None else claim.copy_on(server)
    if claim is None or not claim.is_primary or entry is None or entry.choice not in (Choice.LISTED, Choice.CHOSEN, Choice.HANDED_OVER):
        return Transition(claim, claim)
    if not rules.can_be_followed(claim.number):
        return Transition(claim, claim)
    number = rules.number_after(claim, me)
    if entry.choice is Choice.HANDED_OVER:
        copies = rules.replace_copy(claim.copies, replace(entry, placement=rules.placement_of(claim, number)))
        return Transition(claim, replace(claim, number=number, copies=copies), outcome=Outcome.CHOOSE_AGAIN)
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


def client_refused(claim: Claim | None) -> Transition:
    """The client gets 451: give the message up on every server."""
    claim = rules.require_primary(claim)
    copies, tell = rules.release_copies(claim)
    return Transition(claim, replace(claim, role=Role.RELEASED, copies=copies), tell)


def handing_over(claim: Claim | None) -> Transition:
    """Send `yours` to the chosen shadow server that takes over first: this node cannot deliver. It keeps its copy and its list."""
    chosen = None if claim is None else rules.heir(claim)
    if claim is None or not claim.is_primary or chosen is None or chosen.choice is Choice.HANDED_OVER:
        return Transition(claim, claim)
    copies = rules.replace_copy(claim.copies, replace(chosen, choice=Choice.HANDED_OVER))
    tell = (Notification(chosen.server, chosen.database, DiscardStatus.YOURS),)
    return Transition(claim, replace(claim, role=Role.SET_ASIDE, copies=copies), tell, outcome=Outcome.HANDED)


def handed_over_by_drain(claim: Claim | None) -> Transition:
    """This node drains: send `yours` for a message without fault, which is not set aside for that. Call it only between attempts."""
    claim = rules.require_claim(claim)
    chosen = rules.heir(claim)
    if claim.role is not Role.PRIMARY or chosen is None or chosen.choice is Choice.HANDED_OVER:
        return Transition(claim, claim)
    handed = handing_over(claim)
    return replace(handed, after=replace(rules.require_claim(handed.after), role=Role.HANDED_OVER))


def taken_back(claim: Claim | None) -> Transition:
    """An administrator puts a message that was set aside back into delivery. A message that was handed over stays set aside: the
    other server may have taken it over by now. The claim was kept all the time, so nothing else changes."""
    claim = rules.require_claim(claim)
    chosen = claim.chosen()
    if claim.role is not Role.SET_ASIDE or not claim.is_primary or (chosen is not None and chosen.choice is Choice.HANDED_OVER):
        return Transition(claim, claim)
    return Transition(claim, replace(claim, role=Role.PRIMARY))


def recorded(claim: Claim | None, done: Ordinals, reached: Ordinals = NO_ORDINALS) -> Transition:
    """Attempts have ended for `done`: delivered, failed with their DSN, or expired. Notify every server on the list. `reached`: those of
    them whose delivery is recorded to recognise the message when it is sent again. They are named, unless they are all recipients."""
    claim = rules.require_claim(claim)
    news, done_now = done - claim.done, claim.done | done
    if len(done_now) >= claim.recipients_count:
        if len(reached) == claim.recipients_count:
            return rules.all_done(claim, claim, done_now, is_reached=True)
        transition = rules.all_done(claim, claim, done_now)
        told = rules.notify(claim.copies, DiscardStatus.DELIVERED, reached, is_reached=True) if reached else ()
        return replace(transition, tell=(*told, *transition.tell))
    after = replace(claim, done=done_now)
    if claim.role is Role.SHADOW:
        return Transition(claim, after)
    named = reached & news
    told = rules.notify(claim.copies, DiscardStatus.DELIVERED, named, is_reached=True) if named else ()
    others = news - named
    return Transition(claim, after, (*told, *rules.notify(claim.copies, DiscardStatus.DELIVERED, others)) if others else told)


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
        # rule *heard of another*: it yields to that primary itself, or to its successor, because the disk of that one may have just burnt
        return Transition(claim, after, outcome=Outcome.WAIT)
    if answer.state is StatusState.SHADOW and answer.primary == me.server and answer.database != me.database:
        return Transition(claim, after, outcome=Outcome.WAIT)  # this database is an older copy: the peer promotes, then this node yields
    return None


def review(
    claim: Claim | None,
    me: PeerDatabase,
    peer: PeerDatabase,
    answer: StatusAnswer,
    lease_runs: bool,
    is_expired: bool = False,
    shared: Shared = NOT_SHARED,
) -> Transition:
    """A primary has the answer to STATUS of a server on its list, about a message that has expired or not. `shared`: its fate."""
    claim = rules.require_claim(claim)
    if not claim.is_primary:
        return Transition(claim, claim, outcome=Outcome.YIELDED)
    if rules.shows_lost_number(claim, me, answer.number):
        return Transition(claim, claim, outcome=Outcome.OLDER_COPY)
    after = rules.with_done(claim, answer.done)
    entry = claim.copy_on(peer.server)
    if rules.holds_for(answer, me) and not after.is_done:
        return _holder_answered(claim, after, peer, answer, entry, shared)
    settled = apply_answer(claim, me, peer, answer)
    if settled is not None:
        return settled
    if entry is None:
        return Transition(claim, after)
    if entry.choice.awaits_acknowledgement and entry.database in (NO_DATABASE, peer.database):
        return Transition(claim, after, outcome=Outcome.DISMISSED)  # a `released` in flight would discard a copy placed there now
    if entry.choice is Choice.UNHEARD:
        return Transition(claim, rules.without_server(after, peer.server), outcome=Outcome.DROPPED)
    if is_expired and not lease_runs and rules.is_forgotten_end(answer, entry, peer):
        forgotten = replace(after, done=rules.everyone(claim), primary=peer.server, database=peer.database)
        return replace(rules.all_done(claim, forgotten), outcome=Outcome.FORGOTTEN)
    # A server that was sent `yours` may promote before its lease ends.
    if rules.needs_everybody(lease_runs and entry.choice is not Choice.HANDED_OVER):
        if entry.choice is Choice.CHOSEN:  # it counts no more, also while somebody cannot be asked
            after = replace(after, copies=rules.replace_copy(after.copies, replace(entry, choice=Choice.LISTED)))
        return Transition(claim, after, outcome=Outcome.EVERYBODY)
    return Transition(claim, rules.without_server(after, peer.server), outcome=Outcome.DROPPED)


def nobody_claims_more(claim: Claim | None, server: ServerName, unheard: Collection[ServerName] = ()) -> Transition:
    """Every node was asked about a message whose copy on `server` is gone, and none claims it: remove the server from the list. Those of
    `unheard` gave no answer, and were not waited for. A server that was sent `yours` stays until it has acknowledged a `released`: it may
    hear `yours` only now, and must not find a new copy to take over."""
    claim = rules.require_claim(claim)
    if not claim.is_primary:
        return Transition(claim, claim, outcome=Outcome.YIELDED)
    entry = claim.copy_on(server)
    if entry is not None and entry.choice is Choice.HANDED_OVER:
        copies = rules.replace_copy(claim.copies, Copy(server, entry.database, Choice.DISMISSED))
        ended = rules.with_unheard(rules.relisted(claim, server, copies), unheard)
        return Transition(claim, ended, (Notification(server, entry.database, DiscardStatus.RELEASED),), outcome=Outcome.DROPPED)
    return Transition(claim, rules.with_unheard(rules.without_server(claim, server), unheard), outcome=Outcome.DROPPED)


def claimed_again(claim: Claim | None, me: PeerDatabase, unheard: Collection[ServerName] = ()) -> Transition:
    """Rule *rolled back*: all nodes were asked about a claim from an older copy of this database, and none claims more. The claim gets a
    number of the new database. No server is chosen: those on the list may hold a copy, and are asked like after any start. Those of
    `unheard` gave no answer, and were not waited for."""
    if claim is None or not rules.is_of_older_copy(claim, me):
        return Transition(claim, claim)
    free = rules.unchosen(claim)
    copies = tuple([replace(copy, placement=0) for copy in free.copies])
    claim_again = rules.with_unheard(replace(free, number=rules.number_after(claim, me), copies=copies), unheard)
    return Transition(claim, claim_again, outcome=Outcome.CLAIMED_AGAIN)


def _holder_answered(
    claim: Claim, after: Claim, peer: PeerDatabase, answer: StatusAnswer, entry: Copy | None, shared: Shared
) -> Transition:
    if entry is None:  # a primary that yielded when it was asked is now our shadow server
        entry = Copy(peer.server, peer.database)
        after = replace(after, copies=rules.listed_before_sending(after, entry))
    elif entry.choice.awaits_acknowledgement:
        return Transition(claim, after, outcome=Outcome.DISMISSED)
    elif entry.choice is Choice.HANDED_OVER:
        entry = replace(entry, database=peer.database)
        return _heir_answered(claim, replace(after, copies=rules.replace_copy(after.copies, entry)), answer, entry)
    is_apart = rules.is_apart(after, peer.server, shared)
    is_wanted = is_apart and (claim.wanted <= 1 or entry.choice is Choice.CHOSEN or claim.missing_count)
    is_current = answer.number is not None and answer.number == rules.copy_number(claim, entry)
    if is_current and answer.number is not None and is_wanted and not rules.is_second_twin(claim, peer.server):
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
    if not is_apart:
        return Transition(claim, after)
    chosen = claim.chosen()
    if chosen is not None and chosen.choice is Choice.HANDED_OVER:
        return Transition(claim, after)  # under a higher number, the server that was sent `yours` would wait for it
    return Transition(claim, after, outcome=Outcome.CHOOSE_AGAIN)


def _heir_answered(claim: Claim, after: Claim, answer: StatusAnswer, entry: Copy) -> Transition:
    """The server that was sent `yours` holds its copy, and has not promoted it. Rule *said again*: if it does not know of the
    hand-over either (it was started again, or its disk is an older one), it is told once more, under the number that lets it go first."""
    if answer.promoting:
        return Transition(claim, after, outcome=Outcome.HANDED)
    if answer.number != rules.copy_number(claim, entry):
        return Transition(claim, after, outcome=Outcome.CHOOSE_AGAIN)
    return Transition(claim, after, rules.handed_again(entry), outcome=Outcome.HANDED)


def status_of(claim: Claim | None) -> StatusAnswer:
    """What this node reports about a message, to any asker."""
    if claim is None:
        return StatusAnswer(StatusState.UNKNOWN)
    if claim.role is Role.DELIVERED:
        return StatusAnswer(StatusState.DELIVERED, done=claim.done)
    if claim.role is Role.RELEASED or rules.is_unreadable_copy(claim):
        return StatusAnswer(StatusState.RELEASED, claim.number, done=claim.done)
    if claim.role is Role.SHADOW:
        # A shadow server that received `yours` promotes without waiting for a lease to end: renew no lease from this answer.
        promoting = bool(claim.asked) or claim.handed
        return StatusAnswer(StatusState.SHADOW, claim.number, claim.primary, claim.database, promoting, claim.done)
    return StatusAnswer(StatusState.PRIMARY, claim.number, done=claim.done)


def answer_question(
    claim: Claim | None, me: PeerDatabase, asker: PeerDatabase, number: CopyNumber, number_server: ServerName, in_attempt: bool
) -> Transition:
    """What this node does and answers when `asker` asks under the number of its own copy or claim.

    Shapes: `number_server` is the server whose database is in the number, `NO_SERVER` if unknown. `in_attempt`: a delivery
    attempt of this node on the message is running, so its claim cannot end now.
    """
    after = claim
    tell: tuple[Notification, ...] = ()
    outcome = Outcome.NOTHING
    if rules.shows_lost_number(claim, me, number):
        return Transition(claim, claim, outcome=Outcome.OLDER_COPY)  # no answer: whatever this database says is of the past
    if claim is not None and rules.is_of_older_copy(claim, me) and number.database == claim.number.database:
        pass  # the asker holds a copy for our former database: it will promote, and only then does this claim yield to it
    elif claim is not None and claim.is_primary:
        if rules.begins_again(number, claim):
            if not in_attempt:
                after, tell = _end_claim(claim, me, asker, number, number_server)
                outcome = Outcome.YIELDED
        else:
            after = list_asker(claim, asker)
    elif claim is not None and claim.role is Role.SHADOW:
        is_of_primary = asker.server == claim.primary and asker.database == claim.database
        assigns_number = is_of_primary and number.database == claim.database and number.placement and number >= claim.number
        if assigns_number and rules.can_be_followed(number):
            after = replace(claim, number=number, asked=rules.NOBODY, handed=False)
        elif rules.begins_again(number, claim) or rules.twin_goes_first(number, asker.server, claim, me):
            # If it asks under a number that is not its own, it has yielded since it sent `yours`.
            after = replace(claim, asked=rules.NOBODY, handed=claim.handed and not is_of_primary)
        elif is_of_primary and not claim.handed:
            after = replace(claim, asked=rules.NOBODY)
    return Transition(claim, after, tell, status_of(after), outcome)


def _end_claim(
    claim: Claim, me: PeerDatabase, asker: PeerDatabase, number: CopyNumber, number_server: ServerName
) -> tuple[Claim, tuple[Notification, ...]]:
    """The claim becomes a shadow message for the primary that assigned `number`. If that is this node itself, before its database
    was rolled back, the asker is going to promote its copy."""
    primary, database = number_server, number.database
    if number_server == me.server or number.database == asker.database:
        primary, database = asker.server, asker.database
    copies, tell = rules.left_to(claim, asker.server)
    after = replace(
        claim, role=Role.SHADOW, number=rules.own_number(claim), primary=primary, database=database, asked=rules.NOBODY,
        handed=False, copies=copies,
    )  # fmt: skip
    return after, tell


def list_asker(claim: Claim, asker: PeerDatabase) -> Claim:
    """An asker with a lower number becomes our shadow server: it may hold a copy, so it is put on the list. A hand-over to it goes on, also
    if it asks from a new database, on an older disk: it may have taken the message over before, and asks everybody before it does again."""
    entry = claim.copy_on(asker.server)
    if entry is not None and entry.choice is Choice.HANDED_OVER:
        return replace(claim, copies=rules.replace_copy(claim.copies, replace(entry, database=asker.database)))
    if entry is not None and entry.choice is not Choice.UNHEARD and entry.database in (NO_DATABASE, asker.database):
        if entry.choice is not Choice.DISMISSED:
            return claim
        return replace(claim, copies=rules.replace_copy(claim.copies, replace(entry, choice=Choice.RECALLED)))
    return rules.relisted(claim, asker.server, rules.listed_before_sending(claim, Copy(asker.server, asker.database)))


def hold(
    claim: Claim | None, me: PeerDatabase, primary: PeerDatabase, number: CopyNumber, recipients_count: int, done: Ordinals
) -> Transition:
    """A copy is offered. It is stored unless this node claims or holds the message under a higher number, or knows it as done.

    Two kinds are not stored, because a copy that can never end must not be held or promoted: a copy whose recipients are all done
    (answered `delivered`), and a copy whose number leaves no room for a promotion. No correct peer sends either.
    """
    offered = Claim(Role.SHADOW, number, recipients_count, primary=primary.server, database=primary.database)
    offered = rules.with_done(offered, done if claim is None else done | claim.done)
    if offered.is_done and (claim is None or not claim.is_done):
        answer = StatusAnswer(StatusState.DELIVERED, done=offered.done)
        if claim is None:
            return Transition(None, None, answer=answer, outcome=Outcome.SUPERSEDED)
        finished = rules.all_done(claim, rules.with_done(claim, offered.done))
        return Transition(claim, finished.after, finished.tell, answer, Outcome.SUPERSEDED)
    if not rules.can_be_followed(number):
        return Transition(claim, claim, outcome=Outcome.REFUSED)
    is_unreadable = claim is not None and rules.is_unreadable_copy(claim)
    is_lower = claim is not None and claim.role is Role.SHADOW and rules.outranks(number, claim.number)
    if claim is None or claim.role is Role.RELEASED or is_unreadable or is_lower:
        kept = offered if claim is None else replace(offered, copies=claim.copies, wanted=claim.wanted)
        return Transition(claim, kept, outcome=Outcome.STORED)
    # A peer that offers a copy under a lower number yields to our claim when it receives this answer, as if it had asked.
    after = list_asker(claim, primary) if claim.is_primary and not rules.begins_again(number, claim) else claim
    return Transition(claim, after, answer=status_of(claim), outcome=Outcome.SUPERSEDED)


def kept_claim(next_hop: PeerDatabase, number: CopyNumber, recipients_count: int, done: Ordinals = NO_ORDINALS) -> Claim:
    """The claim of a node that relayed a message by `TRACK`: a shadow message for the next hop, which assigned itself the same number
    (`relayed_claim`) or, to what was offered again, another one with `done` (`relayed_again`). docs/design.md 6.7."""
    number = replace(number, database=next_hop.database)
    claim = Claim(Role.SHADOW, number, recipients_count, primary=next_hop.server, database=next_hop.database, is_kept=True)
    return rules.with_done(claim, done) if done else claim


def relayed_again(claim: Claim | None, me: PeerDatabase, previous: PeerDatabase) -> Transition:
    """`previous` offers by `TRACK` a message that is here already: it lost our reply or its record of it, or took over from the server that
    had relayed it. It keeps the shadow from this answer on. It may have answered before that it has none, and have been taken off the
    list, so it is put on the list again.

    Rule *placement*: the server that relayed the message first may keep a shadow, too. So the answer contains the next number, and this
    node asks for the copy under it before that copy counts. If no further number may be assigned now, the answer contains a number below
    all that were assigned. docs/design.md 6.7.
    """
    if claim is None or not claim.is_primary:
        return Transition(claim, claim, answer=status_of(claim), outcome=Outcome.SUPERSEDED)
    after = list_asker(claim, previous)
    number = replace(after.number, placement=0)
    chosen = after.chosen()
    is_handed_over = chosen is not None and chosen.choice is Choice.HANDED_OVER  # that server would wait for a higher number
    if not is_handed_over and not rules.is_of_older_copy(after, me):
        raised = choosing_again(after, me, previous.server)
        if raised.outcome == Outcome.CHOOSE_AGAIN and raised.after is not None:
            after = raised.after
            number = after.number
    return Transition(claim, after, answer=replace(status_of(after), number=number), outcome=Outcome.SUPERSEDED)


def heard(claim: Claim | None, speaker: PeerDatabase, event: DiscardEvent) -> Transition:
    """A discard notification from `speaker`. A notification for an unknown message, or a repeated one, changes nothing."""
    if claim is None:
        return Transition(None, None)
    # If the speaker did not assign the copy's number, this node yielded to it later: its notifications about copies are older.
    of_speaker = (
        claim.role is Role.SHADOW and claim.primary == speaker.server and speaker.database == claim.database == claim.number.database
    )
    if event.status is DiscardStatus.DELIVERED:
        if claim.role in (Role.DELIVERED, Role.RELEASED):
            return Transition(claim, claim)
        if not event.ordinals:
            return rules.all_done(claim, claim, rules.everyone(claim))
        after = rules.with_done(claim, event.ordinals)
        return rules.all_done(claim, after) if after.is_done else Transition(claim, after)
    if event.status is DiscardStatus.RELEASED and of_speaker:
        return Transition(claim, replace(claim, role=Role.RELEASED, asked=rules.NOBODY), outcome=Outcome.RELEASED)
    if event.status is DiscardStatus.YOURS and of_speaker and not claim.handed:
        return Transition(claim, replace(claim, handed=True, asked=rules.NOBODY), outcome=Outcome.HANDED)
    if (
        event.status is DiscardStatus.FORKS
        and claim.role is Role.SHADOW
        and (claim.primary, claim.database) == (speaker.server, speaker.database)
    ):
        return Transition(claim, claim, outcome=Outcome.FORKS)
    is_copy_gone = event.status is DiscardStatus.RELEASED and claim.copy_on(speaker.server) is not None  # its time was over there
    if claim.is_primary and (event.status is DiscardStatus.PROMOTED or is_copy_gone):
        return Transition(claim, claim, outcome=Outcome.REVIEW)
    if event.status is DiscardStatus.PROMOTED and claim.role is Role.SHADOW:
        if claim.primary != speaker.server:
            return Transition(claim, claim, outcome=Outcome.MEET)
        return Transition(claim, rules.no_longer_handed(claim), outcome=Outcome.FOLLOW)
    return Transition(claim, claim)


def reconciled(
    claim: Claim | None, me: PeerDatabase, primary: PeerDatabase, question: StatusQuestion, answer: StatusAnswer, *, from_sender: bool
) -> Transition:
    """The answer of a shadow message's primary to a question about it. If the copy was replaced since the question, the answer
    does not apply, except that a delivered message stays delivered. The answer `released`, unlike the notification, also ends a copy
    whose number that primary did not assign (this node yielded to it), because an answer describes the present. In the same way such a copy
    is taken over if the primary holds the message for this node, or does not know it, because its disk is an older one."""
    status = rules.as_notification(answer, me, from_sender=from_sender)
    if claim is None or status is None:
        return Transition(claim, claim)
    if claim.number != question.number and status is not DiscardStatus.DELIVERED:
        return Transition(claim, claim)
    is_of_primary = claim.role is Role.SHADOW and (claim.primary, claim.database) == (primary.server, primary.database)
    if rules.waits_for_server(answer, me) and not rules.takes_from_holder(claim, me, primary, answer):
        return Transition(claim, claim)
    if status is DiscardStatus.YOURS and is_of_primary and not claim.handed:
        return Transition(claim, replace(claim, handed=True, asked=rules.NOBODY), outcome=Outcome.HANDED)
    if answer.state is StatusState.RELEASED and is_of_primary:
        return Transition(claim, replace(claim, role=Role.RELEASED, asked=rules.NOBODY), outcome=Outcome.RELEASED)
    return heard(claim, primary, DiscardEvent(0, question.message_id, status))


def followed(claim: Claim | None, peer: PeerDatabase, answer: StatusAnswer) -> Transition:
    """The answer of `peer`, to which the primary of this copy has yielded. `peer` put this node on its list before it answered."""
    if claim is None or claim.role is not Role.SHADOW:
        return Transition(claim, claim)
    after = rules.with_done(claim, answer.done)
    if answer.state is StatusState.DELIVERED or after.is_done:
        return rules.all_done(claim, replace(after, done=rules.everyone(claim)))
    if answer.state is StatusState.PRIMARY and answer.number is not None and rules.outranks(answer.number, claim.number):
        return rules.become_shadow(claim, after, peer)
    return Transition(claim, after)


def met(claim: Claim | None, peer: PeerDatabase, answer: StatusAnswer) -> Transition:
    """The answer of `peer`, which promoted the message while this copy is held for another primary server. If its claim is the higher one,
    this node holds the copy for it from now on, and tells the other one to ask: otherwise both would deliver. A lower one has ended by
    the question (rule *again*)."""
    transition = followed(claim, peer, answer)
    if claim is None or transition.outcome != Outcome.YIELDED:
        return transition
    former = Notification(claim.primary, claim.database, DiscardStatus.PROMOTED)
    return replace(transition, tell=(*transition.tell, former))


def answered(
    claim: Claim | None,
    me: PeerDatabase,
    peer: PeerDatabase,
    answer: StatusAnswer,
    reachable: Collection[ServerName],
    wanted: int = 1,
    unheard: Collection[ServerName] = (),
) -> Transition:
    """The answer of `peer` in a shadow server's round of questions before a promotion. With the last answer it promotes.

    Shapes: `reachable` are all servers that must answer in this round; `wanted` is how many copies this node wants of its messages;
    `unheard` are the servers that cannot be asked in this round.
    """
    claim = rules.require_claim(claim)
    if claim.role is not Role.SHADOW:
        return Transition(claim, claim, outcome=Outcome.YIELDED)
    if rules.shows_lost_number(claim, me, answer.number):
        return Transition(claim, claim, outcome=Outcome.OLDER_COPY)
    after = rules.with_done(claim, answer.done)
    if answer.state is StatusState.DELIVERED or after.is_done:
        return rules.all_done(claim, replace(after, done=rules.everyone(claim)))
    if answer.state is StatusState.PRIMARY and answer.number is not None:
        if rules.outranks(answer.number, claim.number):
            return rules.become_shadow(claim, after, peer)
        if rules.is_older_claim(answer, peer) and peer.server == claim.primary:
            return _counted(claim, after, me, peer, reachable, wanted, unheard)
        lives = peer.server == claim.primary and peer.database == claim.database
        return Transition(claim, replace(after, asked=rules.NOBODY) if lives else after, outcome=Outcome.LIVES if lives else Outcome.WAIT)
    if rules.waits(answer, claim, me, peer.server):
        asked = rules.asked_after_waiting(claim) if claim.asked else claim.asked
        return Transition(claim, replace(after, asked=asked), outcome=Outcome.WAIT)
    if rules.holds_for(answer, me):
        after = _list_holder(after, peer)
    return _counted(claim, after, me, peer, reachable, wanted, unheard)


def _counted(
    claim: Claim,
    after: Claim,
    me: PeerDatabase,
    peer: PeerDatabase,
    reachable: Collection[ServerName],
    wanted: int,
    unheard: Collection[ServerName],
) -> Transition:
    """The answer of `peer` does not prevent the promotion: count it, and promote if it was the last."""
    after = replace(after, asked=after.asked | {peer.server})
    if not rules.may_promote(after, reachable):
        return Transition(claim, after, outcome=Outcome.ASKED)
    return _promote(claim, after, me, wanted, unheard)


def _list_holder(claim: Claim, holder: PeerDatabase) -> Claim:
    """`holder` became our shadow server when we asked it, before we are the primary: it must be on our list once we promote."""
    entry = claim.copy_on(holder.server)
    if entry is not None and entry.choice is not Choice.UNHEARD:
        return claim
    return replace(claim, copies=rules.listed_before_sending(claim, Copy(holder.server, holder.database)))


def nobody_left_to_ask(
    claim: Claim | None, me: PeerDatabase, reachable: Collection[ServerName], wanted: int = 1, unheard: Collection[ServerName] = ()
) -> Transition:
    """Promote without a further answer: every reachable node has answered, or no node is reachable."""
    if claim is None or claim.role is not Role.SHADOW or not rules.may_promote(claim, reachable):
        return Transition(claim, claim)
    if claim.is_done:
        return rules.all_done(claim, claim)
    return _promote(claim, claim, me, wanted, unheard)


def new_round(claim: Claim | None) -> Transition:
    """Drop the answers of an earlier round of questions before a new one begins: they may be hours old, and the primary server
    may have answered since."""
    claim = rules.require_claim(claim)
    return Transition(claim, replace(claim, asked=rules.NOBODY) if claim.role is Role.SHADOW else claim)


def expired(claim: Claim | None) -> Transition:
    """A shadow message was kept for as long as it may be, and its primary server never said that it is done. This node answers `released`
    until that server has heard that its copy has expired: otherwise it would take `unknown` for an end (rule *forgotten*)."""
    claim = rules.require_claim(claim)
    if claim.role is not Role.SHADOW:
        return Transition(claim, claim)
    tell = (Notification(claim.primary, claim.database, DiscardStatus.RELEASED),) if claim.primary != NO_SERVER else ()
    return Transition(claim, replace(claim, role=Role.RELEASED, asked=rules.NOBODY, handed=False), tell, outcome=Outcome.RELEASED)


def copy_given_up(claim: Claim | None) -> Transition:
    """This server's copy cannot be read, and is set aside until its primary server has heard so by `released`. That one may wait for this
    server to take the message over: it asks, and claims the message again, or places a copy elsewhere."""
    claim = rules.require_claim(claim)
    if claim.role is not Role.SHADOW:
        return Transition(claim, claim)
    tell = (Notification(claim.primary, claim.database, DiscardStatus.RELEASED),)
    return Transition(claim, replace(claim, role=Role.SET_ASIDE, asked=rules.NOBODY), tell)


def unreadable_removed(claim: Claim | None) -> Transition:
    """A shadow message that cannot be read is removed, by an administrator or because its primary server knows. STATUS answers
    `released`, as before."""
    claim = rules.require_claim(claim)
    if not rules.is_unreadable_copy(claim):
        return Transition(claim, claim)
    return Transition(claim, replace(claim, role=Role.RELEASED, asked=rules.NOBODY), outcome=Outcome.RELEASED)


def _promote(before: Claim, claim: Claim, me: PeerDatabase, wanted: int, unheard: Collection[ServerName]) -> Transition:
    number = CopyNumber(claim.number.ownership + 1, 0, me.database)
    tell = (Notification(claim.primary, claim.database, DiscardStatus.PROMOTED),) if claim.primary != NO_SERVER else ()
    copies = rules.with_unheard(claim, unheard).copies
    after = Claim(Role.PRIMARY, number, claim.recipients_count, done=claim.done, copies=copies, wanted=wanted, is_kept=claim.is_kept)
    return Transition(before, after, tell, outcome=Outcome.PROMOTED)
