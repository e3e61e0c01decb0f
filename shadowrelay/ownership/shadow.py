"""Events of a claim on the shadow server: holding, discarding, promoting, and answering XQDISCARD STATUS. docs/design.md 6.1, 6.2."""

from collections.abc import Collection, Iterable

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
from shadowrelay.model.values import replace
from shadowrelay.ownership import rules
from shadowrelay.ownership.primary import choosing_again
from shadowrelay.ownership.rules import Outcome, PeerDatabase


def status_of(claim: Claim | None) -> StatusAnswer:
    """What this node reports about a message, to any asker."""
    if claim is None:
        return StatusAnswer(StatusState.UNKNOWN)
    if claim.role is Role.DELIVERED:
        return StatusAnswer(StatusState.DELIVERED, done=claim.done)
    if claim.role is Role.RELEASED or (claim.role is Role.SET_ASIDE and not claim.is_primary):  # a shadow message that cannot be read
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
        own = asker.server == claim.primary and asker.database == claim.database
        is_for_us = own and number.database == claim.database and number.placement and number >= claim.number
        if is_for_us and rules.can_be_followed(number):
            after = replace(claim, number=number, asked=rules.NOBODY, handed=False)
        elif rules.begins_again(number, claim):
            # If it asks under a number that is not its own, it has yielded since it sent `yours`.
            after = replace(claim, asked=rules.NOBODY, handed=claim.handed and not own)
        elif own and not claim.handed:
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
    """An asker with a lower number becomes our shadow server: it may hold a copy, so it is put on the list."""
    entry = claim.copy_on(asker.server)
    if entry is not None and entry.database in (NO_DATABASE, asker.database):
        if entry.choice is not Choice.DISMISSED:
            return claim
        return replace(claim, copies=rules.replace_copy(claim.copies, replace(entry, choice=Choice.RECALLED)))
    return rules.relisted(claim, asker.server, rules.listed_before_sending(claim, Copy(asker.server, asker.database)))


def hold(
    claim: Claim | None, me: PeerDatabase, primary: PeerDatabase, number: CopyNumber, recipients_count: int, done: Ordinals
) -> Transition:
    """A copy is offered. It is stored unless this node claims or holds the message under a higher number, or knows it as done.

    Two kinds are refused, because a copy that can never end must not be held or promoted: a copy whose recipients are all done
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
    is_unreadable = claim is not None and claim.role is Role.SET_ASIDE and not claim.is_primary
    is_lower = claim is not None and claim.role is Role.SHADOW and rules.outranks(number, claim.number)
    if claim is None or claim.role is Role.RELEASED or is_unreadable or is_lower:
        kept = offered if claim is None else replace(offered, copies=claim.copies, wanted=claim.wanted)
        return Transition(claim, kept, outcome=Outcome.STORED)
    # A peer that offers a copy under a lower number yields to our claim when it receives this answer, as if it had asked.
    after = list_asker(claim, primary) if claim.is_primary and not rules.begins_again(number, claim) else claim
    return Transition(claim, after, answer=status_of(claim), outcome=Outcome.SUPERSEDED)


def kept_claim(next_hop: PeerDatabase, number: CopyNumber, recipients_count: int, done: Ordinals = NO_ORDINALS) -> Claim:
    """The claim of a node that relayed a message by `TRACK`: a shadow message for the next hop, which assigned itself the same number
    (`primary.relayed_claim`) or, to what was offered again, another one with `done` (`relayed_again`). docs/design.md 6.7."""
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
    if event.status is DiscardStatus.PROMOTED and claim.is_primary:
        return Transition(claim, claim, outcome=Outcome.REVIEW)
    if event.status is DiscardStatus.PROMOTED and claim.role is Role.SHADOW and claim.primary == speaker.server:
        return Transition(claim, claim, outcome=Outcome.FOLLOW)
    return Transition(claim, claim)


ENDINGS = (DiscardStatus.DELIVERED, DiscardStatus.RELEASED)


def discarded(events: Iterable[DiscardEvent], transitions: Iterable[Transition]) -> list[DiscardEvent]:
    """The events that ended one of our shadow messages, or some of its recipients, as done or not needed."""
    return [
        event
        for event, transition in zip(events, transitions, strict=True)
        if event.status in ENDINGS
        and transition.before is not None
        and transition.after is not None
        and transition.before.role is Role.SHADOW
        and transition.before != transition.after
    ]


def meaning(answer: StatusAnswer, *, from_sender: bool) -> DiscardStatus | None:
    """A running primary's answer to STATUS about a copy that this node holds for it, as the equivalent discard notification;
    `None` if it still claims the message.

    Shapes: `from_sender`: the incarnation that sent the copy answers. It starts to accept a message before it sends the copy, is
    `active` while it accepts, and keeps what it committed until the row has expired. Its `unknown` therefore proves that the commit
    failed and the client was refused, or that the message is finished: the copy is not needed. A later incarnation may have
    lost the row of an acknowledged message, if an older copy of the database was restored. Its `unknown` proves nothing, and the
    message is taken over.
    """
    if answer.state is StatusState.UNKNOWN:
        return DiscardStatus.RELEASED if from_sender else DiscardStatus.YOURS
    if answer.state is StatusState.DELIVERED:
        return DiscardStatus.DELIVERED
    return DiscardStatus.RELEASED if answer.state is StatusState.RELEASED else None


def reconciled(
    claim: Claim | None, primary: PeerDatabase, question: StatusQuestion, answer: StatusAnswer, *, from_sender: bool
) -> Transition:
    """The answer of a shadow message's primary to a question about it. If the copy was replaced since the question, the answer
    does not apply, except that a delivered message stays delivered. The answer `released`, unlike the notification, also ends a copy
    whose number that primary did not assign (this node yielded to it), because an answer describes the present."""
    status = meaning(answer, from_sender=from_sender)
    if claim is None or status is None:
        return Transition(claim, claim)
    if claim.number != question.number and status is not DiscardStatus.DELIVERED:
        return Transition(claim, claim)
    is_of_primary = claim.role is Role.SHADOW and (claim.primary, claim.database) == (primary.server, primary.database)
    if answer.state is StatusState.RELEASED and is_of_primary:
        return Transition(claim, replace(claim, role=Role.RELEASED, asked=rules.NOBODY), outcome=Outcome.RELEASED)
    return heard(claim, primary, DiscardEvent(0, question.message_id, status))


def yielded_to(answer: StatusAnswer, primary: PeerDatabase, me: PeerDatabase) -> ServerName:
    """The server to which the primary of a copy has yielded, from its answer about the message; `NO_SERVER` if it has not."""
    is_other = answer.state is StatusState.SHADOW and answer.primary not in (primary.server, me.server)
    return answer.primary if is_other else NO_SERVER


def followed(claim: Claim | None, peer: PeerDatabase, answer: StatusAnswer) -> Transition:
    """The answer of `peer`, to which the primary of this copy has yielded. `peer` put this node on its list before it answered."""
    claim = rules.require_claim(claim)
    if claim.role is not Role.SHADOW:
        return Transition(claim, claim)
    after = rules.with_done(claim, answer.done)
    if answer.state is StatusState.DELIVERED or after.is_done:
        return rules.all_done(claim, replace(after, done=rules.everyone(claim)))
    if answer.state is StatusState.PRIMARY and answer.number is not None and rules.outranks(answer.number, claim.number):
        return rules.become_shadow(claim, after, peer)
    return Transition(claim, after)


def answered(
    claim: Claim | None, me: PeerDatabase, peer: PeerDatabase, answer: StatusAnswer, reachable: Collection[ServerName], wanted: int = 1
) -> Transition:
    """The answer of `peer` in a shadow server's round of questions before a promotion. With the last answer it promotes.

    Shapes: `reachable` are all servers that must answer in this round; `wanted` is how many copies this node wants of its messages.
    """
    claim = rules.require_claim(claim)
    if claim.role is not Role.SHADOW:
        return Transition(claim, claim, outcome=Outcome.YIELDED)
    after = rules.with_done(claim, answer.done)
    if answer.state is StatusState.DELIVERED or after.is_done:
        return rules.all_done(claim, replace(after, done=rules.everyone(claim)))
    if answer.state is StatusState.PRIMARY and answer.number is not None:
        if rules.outranks(answer.number, claim.number):
            return rules.become_shadow(claim, after, peer)
        if rules.is_older_claim(answer, peer) and peer.server == claim.primary:
            return _counted(claim, after, me, peer, reachable, wanted)
        lives = peer.server == claim.primary and peer.database == claim.database
        return Transition(claim, replace(after, asked=rules.NOBODY) if lives else after, outcome=Outcome.LIVES if lives else Outcome.WAIT)
    if rules.waits(answer, claim, me):
        asked = rules.asked_after_waiting(claim) if claim.asked else claim.asked
        return Transition(claim, replace(after, asked=asked), outcome=Outcome.WAIT)
    if answer.state is StatusState.SHADOW and answer.primary == me.server and answer.database == me.database:
        after = _list_holder(after, peer)
    return _counted(claim, after, me, peer, reachable, wanted)


def _counted(
    claim: Claim, after: Claim, me: PeerDatabase, peer: PeerDatabase, reachable: Collection[ServerName], wanted: int
) -> Transition:
    """The answer of `peer` does not prevent the promotion: count it, and promote if it was the last."""
    after = replace(after, asked=after.asked | {peer.server})
    if not rules.may_promote(after, reachable):
        return Transition(claim, after, outcome=Outcome.ASKED)
    return _promote(claim, after, me, wanted)


def _list_holder(claim: Claim, holder: PeerDatabase) -> Claim:
    """`holder` became our shadow server when we asked it, before we are the primary: it must be on our list once we promote."""
    entry = claim.copy_on(holder.server)
    if entry is not None:
        return claim
    return replace(claim, copies=rules.listed_before_sending(claim, Copy(holder.server, holder.database)))


def alone(claim: Claim | None, me: PeerDatabase, reachable: Collection[ServerName], wanted: int = 1) -> Transition:
    """Promote without a further answer: every reachable node has answered, or no node is reachable."""
    claim = rules.require_claim(claim)
    if claim.role is not Role.SHADOW or not rules.may_promote(claim, reachable):
        return Transition(claim, claim)
    if claim.is_done:
        return rules.all_done(claim, claim)
    return _promote(claim, claim, me, wanted)


def round_over(claim: Claim | None) -> Transition:
    """Drop the answers of an earlier round of questions before a new one begins: they may be hours old, and the primary server
    may have answered since."""
    claim = rules.require_claim(claim)
    return Transition(claim, replace(claim, asked=rules.NOBODY) if claim.role is Role.SHADOW else claim, outcome=Outcome.LIVES)


def dropped(claim: Claim | None) -> Transition:
    """An administrator removes a shadow message that cannot be read. STATUS answers `released`, as before."""
    claim = rules.require_claim(claim)
    if claim.role is not Role.SET_ASIDE or claim.is_primary:
        return Transition(claim, claim)
    return Transition(claim, replace(claim, role=Role.RELEASED, asked=rules.NOBODY), outcome=Outcome.RELEASED)


def _promote(before: Claim, claim: Claim, me: PeerDatabase, wanted: int) -> Transition:
    number = CopyNumber(claim.number.ownership + 1, 0, me.database)
    tell = (Notification(claim.primary, claim.database, DiscardStatus.PROMOTED),) if claim.primary != NO_SERVER else ()
    after = Claim(Role.PRIMARY, number, claim.recipients_count, done=claim.done, copies=claim.copies, wanted=wanted, is_kept=claim.is_kept)
    return Transition(before, after, tell, outcome=Outcome.PROMOTED)
