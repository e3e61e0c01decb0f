"""Small steps that several events share; no rule stands here."""

from collections.abc import Iterable
from dataclasses import replace

from shadowrelay.core.ownership.values import Note, Party
from shadowrelay.model.errors import IllegalTransition
from shadowrelay.model.ids import NO_SERVER, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import Choice, Claim, Copy, CopyNumber, DiscardStatus, Notification, Role, Transition

NOBODY: frozenset[ServerName] = frozenset()


def known(claim: Claim | None) -> Claim:
    if claim is None:
        raise IllegalTransition("there is no such message")
    return claim


def claimed(claim: Claim | None) -> Claim:
    claim = known(claim)
    if claim.role is not Role.PRIMARY:
        raise IllegalTransition(f"not the primary of this message, but {claim.role}")
    return claim


def everyone(claim: Claim) -> Ordinals:
    return frozenset(range(1, claim.recipients_count + 1))


def with_done(claim: Claim, ordinals: Ordinals) -> Claim:
    """The claim that knows these done too. Ordinals that the message does not have say nothing: a peer may send any."""
    if ordinals <= claim.done:
        return claim
    return replace(claim, done=claim.done | (ordinals & everyone(claim)))


def notify(copies: Iterable[Copy], status: DiscardStatus, ordinals: Ordinals = NO_ORDINALS) -> tuple[Notification, ...]:
    return tuple([Notification(copy.server, copy.database, status, ordinals) for copy in copies])


def swap(copies: tuple[Copy, ...], new: Copy) -> tuple[Copy, ...]:
    return tuple(new if copy.server == new.server else copy for copy in copies)


def with_database(claim: Claim, peer: Party, copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
    entry = claim.copy_on(peer.server)
    return copies if entry is None else swap(copies, replace(entry, database=peer.database))


def without_server(claim: Claim, server: ServerName) -> Claim:
    return relisted(claim, server, tuple(copy for copy in claim.copies if copy.server != server))


def relisted(claim: Claim, server: ServerName, copies: tuple[Copy, ...]) -> Claim:
    """The claim with `copies`, in which the entry of `server` is gone or new. If it had been handed over there, that came
    to nothing: this node claims the message again (docs/design.md 6.2 "Hand-over")."""
    entry = claim.copy_on(server)
    handed_over = entry is not None and entry.choice is Choice.HANDED_OVER
    role = Role.PRIMARY if handed_over and claim.role is Role.SET_ASIDE else claim.role
    return replace(claim, role=role, copies=copies)


def unchosen(claim: Claim) -> Claim:
    """Nobody is chosen: the chosen one's entry is like any other's. A message handed over stays so."""
    copies = tuple(replace(copy, choice=Choice.LISTED) if copy.choice is Choice.CHOSEN else copy for copy in claim.copies)
    return replace(claim, copies=copies)


def choose(before: Claim, claim: Claim, server: Party, note: Note) -> Transition:
    """`server` is the chosen one now. The others stay on the list: what they hold is seen when they are asked."""
    chosen = Copy(server.server, server.database, Choice.CHOSEN)
    others = [copy for copy in claim.copies if copy.server != server.server]
    listed = [copy if copy.choice.awaits_acknowledgement else replace(copy, choice=Choice.LISTED) for copy in others] if others else ()
    return Transition(before, replace(claim, copies=(chosen, *listed)), note=note)


def let_go(claim: Claim, primary: ServerName = NO_SERVER) -> tuple[tuple[Copy, ...], tuple[Notification, ...]]:
    """A primary's claim ends: whoever may hold a copy is told, but not the one who is `primary` now.

    Those told stay with the claim until they have acknowledged: if this node is primary again before that, a copy
    placed there would be ended by the old `released`.
    """
    waiting = [copy for copy in claim.copies if copy.choice.awaits_acknowledgement]
    others = [copy for copy in claim.copies if not copy.choice.awaits_acknowledgement and copy.server != primary]
    dismissed = (replace(copy, choice=Choice.DISMISSED) for copy in others)
    return (*waiting, *dismissed), notify(others, DiscardStatus.RELEASED)


def become_shadow(before: Claim, claim: Claim, primary: Party) -> Transition:
    """Yield to `primary`, with a number of our own: no two copies may have the same. Whoever we now shadow gives us a
    new one when it chooses us."""
    copies, tell = let_go(before, primary.server)
    number = own_number(before)
    after = replace(
        claim, role=Role.SHADOW, number=number, primary=primary.server, database=primary.database, asked=NOBODY, handed=False, copies=copies
    )
    return Transition(before, after, tell, note=Note.YIELDED)


def own_number(claim: Claim) -> CopyNumber:
    """The number with which a claim goes on as a shadow message. A primary's own was given to its chosen server too, so
    that it goes on below all that it gave."""
    return replace(claim.number, placement=0) if claim.is_primary else claim.number


def all_done(before: Claim, claim: Claim) -> Transition:
    """Every recipient is done: whoever may hold a copy is told, and the primary if this was a shadow message that
    we delivered ourselves before we yielded."""
    tell = notify(before.copies, DiscardStatus.DELIVERED)
    after = replace(claim, role=Role.DELIVERED, asked=NOBODY, handed=False, copies=())
    return Transition(before, after, tell, note=Note.DONE)
