"""What happens to a claim on the primary server: accepting, placing, attempts, and its own list."""

from dataclasses import replace

from shadowrelay.core.ownership import pieces, rules
from shadowrelay.core.ownership.values import Note, Party
from shadowrelay.model.errors import IllegalTransition
from shadowrelay.model.ids import NO_DATABASE, ServerName
from shadowrelay.model.message import Ordinals
from shadowrelay.model.ownership import Choice, Claim, Copy, CopyNumber, DiscardStatus, Notification, Role, Transition


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
    claim = pieces.claimed(claim)
    entry = claim.copy_on(server.server)
    if entry is not None and entry.choice.awaits_acknowledgement:
        raise IllegalTransition(f"{server.server} has not yet acknowledged that its copy was released")
    copies = rules.listed_before_sending(pieces.unchosen(claim), Copy(server.server, server.database))
    return Transition(claim, replace(claim, number=rules.number_after(claim, me), copies=copies))


def not_sent(claim: Claim | None, server: ServerName | None) -> Claim:
    """The claim without an entry that was made for a copy of which certainly nothing was stored, and no older one was."""
    claim = pieces.known(claim)
    return claim if server is None else pieces.without_server(claim, server)


def uncertain(claim: Claim | None, server: Party) -> Claim:
    """The claim after a copy was sent to `server` and not confirmed. Where the list has another database of it, the copy may be
    in either: the entry is for both, or the one that has the copy would never be told."""
    claim = pieces.known(claim)
    entry = claim.copy_on(server.server)
    if entry is None or entry.database in (NO_DATABASE, server.database):
        return claim
    return replace(claim, copies=pieces.swap(claim.copies, replace(entry, database=NO_DATABASE)))


def placed(claim: Claim | None, number: CopyNumber, server: Party) -> Transition:
    """`server` has confirmed the copy with `number`. Late news of an older number chooses nobody."""
    claim = pieces.known(claim)
    entry = claim.copy_on(server.server)
    if not claim.is_primary or entry is None or entry.choice.awaits_acknowledgement:
        return Transition(claim, claim)
    if claim.number != number:
        return Transition(claim, replace(claim, copies=pieces.with_database(claim, server, claim.copies)))
    return pieces.choose(claim, claim, server, Note.CHOSEN)


def released_acknowledged(claim: Claim | None, server: Party, lease_runs: bool) -> Transition:
    """`server` has acknowledged our `released`: it goes off the list if it cannot have promoted before it heard that.

    Shapes: `lease_runs` at the moment of the acknowledgement. Without the lease it may have promoted first, and what we
    said changed nothing there: it stays on the list, and is asked like any other server whose lease has ended.
    """
    claim = pieces.known(claim)
    entry = claim.copy_on(server.server)
    if entry is None or not entry.choice.awaits_acknowledgement or entry.database not in (NO_DATABASE, server.database):
        return Transition(claim, claim)
    if not claim.is_primary or (lease_runs and entry.choice is Choice.DISMISSED):
        return Transition(claim, pieces.without_server(claim, server.server), note=Note.DROPPED)
    return Transition(claim, replace(claim, copies=pieces.swap(claim.copies, replace(entry, choice=Choice.LISTED))), note=Note.REVIEW)


def gave_up(claim: Claim | None, server: ServerName) -> Transition:
    """The chosen server is out of reach for too long, or its database is new: choose another."""
    claim = pieces.known(claim)
    entry = claim.copy_on(server)
    if not claim.is_primary or entry is None or entry.choice is not Choice.CHOSEN:
        return Transition(claim, claim)
    return Transition(claim, replace(claim, copies=pieces.swap(claim.copies, replace(entry, choice=Choice.LISTED))))


def choosing_again(claim: Claim | None, me: Party, server: ServerName) -> Transition:
    """Before a server that still holds an older copy is asked with the next number: that number, committed. It is for
    this server alone, so that nobody is chosen until it has answered."""
    claim = pieces.known(claim)
    entry = claim.copy_on(server)
    if not claim.is_primary or entry is None or entry.choice not in (Choice.LISTED, Choice.CHOSEN):
        return Transition(claim, claim)
    if not rules.can_be_followed(claim.number):
        return Transition(claim, claim)
    raised = replace(pieces.unchosen(claim), number=rules.number_after(claim, me))
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
    claim = pieces.claimed(claim)
    copies, tell = pieces.let_go(claim)
    return Transition(claim, replace(claim, role=Role.RELEASED, copies=copies), tell)


def handing_over(claim: Claim | None) -> Transition:
    """Say `yours` to the chosen shadow server: this node cannot deliver. It keeps its copy and its list."""
    claim = pieces.known(claim)
    chosen = claim.chosen()
    if not claim.is_primary or chosen is None or chosen.choice is Choice.HANDED_OVER:
        return Transition(claim, claim)
    copies = pieces.swap(claim.copies, replace(chosen, choice=Choice.HANDED_OVER))
    tell = (Notification(chosen.server, chosen.database, DiscardStatus.YOURS),)
    return Transition(claim, replace(claim, role=Role.SET_ASIDE, copies=copies), tell, note=Note.HANDED)


def taken_back(claim: Claim | None) -> Transition:
    """An administrator puts a message that was set aside back into delivery. One that was handed over stays so: the other
    server may have taken it over by now. While it was set aside it was claimed all the time, so that nothing else changes."""
    claim = pieces.known(claim)
    chosen = claim.chosen()
    if claim.role is not Role.SET_ASIDE or not claim.is_primary or (chosen is not None and chosen.choice is Choice.HANDED_OVER):
        return Transition(claim, claim)
    return Transition(claim, replace(claim, role=Role.PRIMARY))


def recorded(claim: Claim | None, done: Ordinals) -> Transition:
    """Attempts have ended for `done`: delivered, failed with their DSN, or expired. Every server on the list is told."""
    claim = pieces.known(claim)
    news = done - claim.done
    after = replace(claim, done=claim.done | done)
    if after.is_done:
        return pieces.all_done(claim, after)
    if claim.role is Role.SHADOW:
        return Transition(claim, after)
    return Transition(claim, after, pieces.notify(claim.copies, DiscardStatus.DELIVERED, news) if news else ())
