"""Small steps that several events share; no rule stands here."""

from collections.abc import Iterable
from dataclasses import replace

from shadowrelay.core.ownership.values import Note, Party
from shadowrelay.model.errors import IllegalTransition
from shadowrelay.model.ids import ServerName
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


def notify(copies: Iterable[Copy], status: DiscardStatus, ordinals: Ordinals = NO_ORDINALS) -> tuple[Notification, ...]:
    return tuple(Notification(copy.server, copy.database, status, ordinals) for copy in copies)


def swap(copies: tuple[Copy, ...], new: Copy) -> tuple[Copy, ...]:
    return tuple(new if copy.server == new.server else copy for copy in copies)


def with_database(claim: Claim, peer: Party, copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
    entry = claim.copy_on(peer.server)
    return copies if entry is None else swap(copies, replace(entry, database=peer.database))


def without_server(claim: Claim, server: ServerName) -> Claim:
    return relisted(claim, server, tuple(copy for copy in claim.copies if copy.server != server))


def relisted(claim: Claim, server: ServerName, copies: tuple[Copy, ...]) -> Claim:
    """The claim with `copies`, in which the entry of `server` is gone or new. If it had been handed over there, that came
    to nothing: this node claims the message again (DESIGN 6.2 "Hand-over")."""
    entry = claim.copy_on(server)
    handed_over = entry is not None and entry.choice is Choice.HANDED_OVER
    role = Role.PRIMARY if handed_over and claim.role is Role.SET_ASIDE else claim.role
    return replace(claim, role=role, copies=copies)


def choose(before: Claim, claim: Claim, server: Party, note: Note) -> Transition:
    """`server` is the chosen one now; all others are told that theirs is not needed."""
    chosen = Copy(server.server, server.database, Choice.CHOSEN)
    others = [copy for copy in claim.copies if copy.server != server.server]
    after = replace(claim, copies=(chosen, *(replace(copy, choice=Choice.DISMISSED) for copy in others)))
    tell = notify((copy for copy in others if copy.choice is not Choice.DISMISSED), DiscardStatus.RELEASED)
    return Transition(before, after, tell, note=note)


def become_shadow(before: Claim, claim: Claim, primary: Party, number: CopyNumber) -> Transition:
    after = replace(
        claim, role=Role.SHADOW, number=number, primary=primary.server, database=number.database, asked=NOBODY, handed=False, copies=()
    )
    tell = notify((copy for copy in before.copies if copy.server != primary.server), DiscardStatus.RELEASED)
    return Transition(before, after, tell, note=Note.YIELDED)


def all_done(before: Claim, claim: Claim) -> Transition:
    """Every recipient is done: whoever may hold a copy is told, and the primary if this was a shadow message that
    we delivered ourselves before we yielded."""
    tell = notify(before.copies, DiscardStatus.DELIVERED)
    after = replace(claim, role=Role.DELIVERED, asked=NOBODY, handed=False, copies=())
    return Transition(before, after, tell, note=Note.DONE)
