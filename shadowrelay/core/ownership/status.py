"""What a node answers to XQDISCARD STATUS, and what the question does to its own claim."""

from dataclasses import replace

from shadowrelay.core.ownership import pieces, rules
from shadowrelay.core.ownership.values import Note, Party
from shadowrelay.model.ids import NO_DATABASE, ServerName
from shadowrelay.model.ownership import (
    Choice,
    Claim,
    Copy,
    CopyNumber,
    Notification,
    Role,
    StatusAnswer,
    StatusState,
    Transition,
)


def status_of(claim: Claim | None) -> StatusAnswer:
    """What this node says of a message, without listening to who asks."""
    if claim is None:
        return StatusAnswer(StatusState.UNKNOWN)
    if claim.role is Role.DELIVERED:
        return StatusAnswer(StatusState.DELIVERED, done=claim.done)
    if claim.role is Role.RELEASED or (claim.role is Role.SET_ASIDE and not claim.is_primary):  # a shadow message that cannot be read
        return StatusAnswer(StatusState.RELEASED, claim.number, done=claim.done)
    if claim.role is Role.SHADOW:
        # Who was told `yours` does not wait for a lease to end: no lease may be counted from this answer.
        promoting = bool(claim.asked) or claim.handed
        return StatusAnswer(StatusState.SHADOW, claim.number, claim.primary, claim.database, promoting, claim.done)
    return StatusAnswer(StatusState.PRIMARY, claim.number, done=claim.done)


def answer_question(claim: Claim | None, asker: Party, number: CopyNumber, number_server: ServerName, in_attempt: bool) -> Transition:
    """What this node does and says when `asker` asks with the number of its own copy or claim.

    Shapes: `number_server` is whose database stands in the number, `NO_SERVER` if unknown. `in_attempt`: an attempt
    of this node on the message is running, so its claim cannot end now.
    """
    after = claim
    tell: tuple[Notification, ...] = ()
    note = Note.NOTHING
    if claim is not None and claim.is_primary:
        if rules.begins_again(number, claim):
            if not in_attempt:
                after, tell = _end_claim(claim, asker, number, number_server)
                note = Note.YIELDED
        else:
            after = list_asker(claim, asker)
    elif claim is not None and claim.role is Role.SHADOW:
        own = asker.server == claim.primary and asker.database == claim.database
        is_for_us = own and number.database == claim.database and number.placement and number >= claim.number
        if is_for_us and rules.can_be_followed(number):
            after = replace(claim, number=number, asked=pieces.NOBODY, handed=False)
        elif rules.begins_again(number, claim):
            # A primary that asks under another's number has yielded since it said `yours`.
            after = replace(claim, asked=pieces.NOBODY, handed=claim.handed and not own)
        elif own and not claim.handed:
            after = replace(claim, asked=pieces.NOBODY)
    return Transition(claim, after, tell, status_of(after), note)


def _end_claim(claim: Claim, asker: Party, number: CopyNumber, number_server: ServerName) -> tuple[Claim, tuple[Notification, ...]]:
    primary = asker.server if number.database == asker.database else number_server
    copies, tell = pieces.let_go(claim, asker.server)
    after = replace(
        claim, role=Role.SHADOW, number=pieces.own_number(claim), primary=primary, database=number.database, asked=pieces.NOBODY,
        handed=False, copies=copies,
    )  # fmt: skip
    return after, tell


def list_asker(claim: Claim, asker: Party) -> Claim:
    """Who asks with a lower number will be our shadow server: it may hold a copy, so it is on the list."""
    entry = claim.copy_on(asker.server)
    if entry is not None and entry.database in (NO_DATABASE, asker.database):
        if entry.choice is not Choice.DISMISSED:
            return claim
        return replace(claim, copies=pieces.swap(claim.copies, replace(entry, choice=Choice.RECALLED)))
    return pieces.relisted(claim, asker.server, rules.listed_before_sending(claim, Copy(asker.server, asker.database)))
