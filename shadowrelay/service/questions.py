"""The questions of a review and what an answer may change: decisions of `core.ownership` on claims that may be gone meanwhile."""

from shadowrelay.core.ownership import meeting, primary
from shadowrelay.core.ownership.values import Note, Party
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.ownership import Claim, CopyNumber, StatusAnswer, StatusState, Transition

GONE = (Note.DROPPED, Note.EVERYBODY)  # the server holds no copy


def holds_for(answer: StatusAnswer, me: Party) -> bool:
    """Not where it is promoting: whoever was told `yours` waits for no lease to end."""
    is_ours = answer.state is StatusState.SHADOW and answer.primary == me.server and answer.database == me.database
    return is_ours and not answer.promoting


def gave_up(claim: Claim | None, server: ServerName) -> Transition:
    """The chosen server is out of reach for too long."""
    return Transition(None, None) if claim is None else primary.gave_up(claim, server)


def choosing_again(claim: Claim | None, me: Party, server: ServerName) -> Transition:
    """The next number, before an older copy is chosen again."""
    return Transition(None, None) if claim is None else primary.choosing_again(claim, me, server)


def nobody_claims_more(claim: Claim | None, asked: Claim, server: ServerName) -> Transition:
    """Everybody was asked about a copy that is gone; if none was placed there since."""
    if claim is None or not is_same_copy(claim, asked, server):
        return Transition(claim, claim)
    return meeting.nobody_claims_more(claim, server)


def is_same_copy(claim: Claim | None, asked: Claim, server: ServerName) -> bool:
    """No copy was placed since this was asked. An answer that was on its way while one was says nothing of that copy:
    with it the server would go off the list, and the copy would never be discarded."""
    return claim is not None and claim.number == asked.number and claim.copy_on(server) == asked.copy_on(server)


def question_number(server: ServerName, _: MessageId, claim: Claim) -> CopyNumber:
    """As `primary.question_number`, for `functools.partial`."""
    return primary.question_number(claim, server)
