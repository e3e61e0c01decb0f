"""The named rules of docs/design.md 6.2, one function each, and the values and steps that events share.

The other modules of this package call the rules through the module (`rules.outranks`), so that a test can replace one rule and show
which messages are lost or duplicated without it.

lease `without_lease`, dot `may_end_data`, higher `outranks`, placement `number_after`, ask `may_promote`, `is_still_asked` and `waits`,
twins `twin_goes_first` and `is_second_twin`, wait `asked_after_waiting`, again `begins_again`, list `listed_before_sending`, keep
`may_release`, leave `left_to`, no longer handed `no_longer_handed`, said again `handed_again`, in a circle `waits_for_server`, everybody
`needs_everybody`, unheard `with_unheard`, meet `ends_before`, rolled back `is_older_copy`, `is_of_older_copy` and `shows_lost_number`,
forgotten `is_forgotten_end`, fate `is_apart`.

**Leases and silence** are the arithmetic by which a primary knows that a shadow server will not promote yet. docs/design.md 6.4.

A lease on a server begins when this primary sent something that the server has since proved to have received (for a copy: when
sending began). It lasts for the shorter of the two nodes' spans, less a margin for clock rates. The shadow server waits for the
longer of the two spans from the time it received it. All instants are seconds of `Clock.awake` on the primary and of `Clock.ran`
on the shadow server; the two are never compared.

A lease guarantees that the shadow server will not promote yet. It does not guarantee that the server will learn of deliveries
made meanwhile: in a cut longer than the span it does not, and delivers again. `delivery_without_lease = "defer"` therefore
also requires a recent proof, see `proof_age_max`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from enum import StrEnum

from shadowrelay.model.fate import Shared
from shadowrelay.model.ids import NO_DATABASE, NO_SERVER, DatabaseId, ServerName
from shadowrelay.model.message import NO_ORDINALS, Ordinals
from shadowrelay.model.ownership import (
    RANK_MAX,
    Choice,
    Claim,
    Copy,
    CopyNumber,
    DiscardEvent,
    DiscardStatus,
    Notification,
    Role,
    StatusAnswer,
    StatusState,
    Transition,
)
from shadowrelay.model.peers import PeerIdentity, Seen
from shadowrelay.model.queue import Beginning
from shadowrelay.model.replies import IllegalTransition
from shadowrelay.model.values import dataclass, replace


class Outcome(StrEnum):
    """What a transition means for the service that requested it: what became of the claim, or what to do next. One value, because each
    event has one meaning for its caller."""

    # what became of it
    NOTHING = ""
    STORED = "stored"
    REFUSED = "refused"  # a copy whose number leaves no room for a promotion
    SUPERSEDED = "superseded"
    CHOSEN = "chosen"  # the server is now the chosen shadow server
    DISMISSED = "dismissed"  # it was sent `released`
    DROPPED = "dropped"  # removed from the list: it holds nothing, and cannot have promoted
    DONE = "done"  # every recipient is done
    FORGOTTEN = "forgotten"  # ended so long ago that the server that had the copy has forgotten it
    RELEASED = "released"
    HANDED = "handed"
    YIELDED = "yielded"  # another node's claim is higher
    ASKED = "asked"  # one more server has answered
    LIVES = "lives"  # the primary server answered after all
    PROMOTED = "promoted"
    CLAIMED_AGAIN = "claimed again"  # from an older copy of this database: all nodes were asked, and none claims more

    # what to do next
    CHOOSE_AGAIN = "choose again"  # it holds a copy under an older number: ask it under the next one
    EVERYBODY = "everybody"  # it holds nothing, but its lease had ended: ask every node
    WAIT = "wait"  # another node acts first; ask again soon
    REVIEW = "review"  # another server took this message over: ask it
    FOLLOW = "follow"  # this copy's primary yielded to another server: become a shadow server of that one
    MEET = "meet"  # a server that is not this copy's primary took the message over: ask it, so that the two primaries meet
    OLDER_COPY = "older copy"  # this node's database is one: it must start again under a new id
    FORKS = "forks"  # note the primary server's forks of it


@dataclass(frozen=True, slots=True)
class PeerDatabase:
    """A node together with its current database."""

    server: ServerName
    database: DatabaseId


NOBODY: frozenset[ServerName] = frozenset()
NOT_ATTEMPTED = (Role.SET_ASIDE, Role.HANDED_OVER)  # claimed, but no attempt starts and no copy is placed


def require_claim(claim: Claim | None) -> Claim:
    """The claim. Raises: IllegalTransition if there is no such message."""
    if claim is None:
        raise IllegalTransition("there is no such message")
    return claim


def require_primary(claim: Claim | None) -> Claim:
    """The claim. Raises: IllegalTransition unless this node delivers the message."""
    claim = require_claim(claim)
    if claim.role is not Role.PRIMARY:
        raise IllegalTransition(f"not the primary of this message, but {claim.role}")
    return claim


def is_unreadable_copy(claim: Claim) -> bool:
    """A shadow message that was set aside, because it cannot be read."""
    return claim.role is Role.SET_ASIDE and not claim.is_primary


def everyone(claim: Claim) -> Ordinals:
    return frozenset(range(1, claim.recipients_count + 1))


def with_done(claim: Claim, ordinals: Ordinals) -> Claim:
    """The claim with these ordinals done too. A peer may send any ordinals; those beyond the message's recipients are ignored."""
    if ordinals <= claim.done:
        return claim
    return replace(claim, done=claim.done | (ordinals & everyone(claim)))


def notify(
    copies: Iterable[Copy], status: DiscardStatus, ordinals: Ordinals = NO_ORDINALS, *, is_reached: bool = False
) -> tuple[Notification, ...]:
    return tuple([Notification(copy.server, copy.database, status, ordinals, is_reached) for copy in copies])


def replace_copy(copies: tuple[Copy, ...], new: Copy) -> tuple[Copy, ...]:
    """The list with `new` in place of the entry of the same server."""
    return tuple(new if copy.server == new.server else copy for copy in copies)


def with_database(claim: Claim, peer: PeerDatabase, copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
    """The list, after `peer` has shown that it holds a copy in this database."""
    entry = claim.copy_on(peer.server)
    if entry is None:
        return copies
    choice = Choice.LISTED if entry.choice is Choice.UNHEARD else entry.choice
    return replace_copy(copies, replace(entry, database=peer.database, choice=choice))


def without_server(claim: Claim, server: ServerName) -> Claim:
    return relisted(claim, server, tuple(copy for copy in claim.copies if copy.server != server))


def relisted(claim: Claim, server: ServerName, copies: tuple[Copy, ...]) -> Claim:
    """The claim with `copies`, in which the entry of `server` is gone or new. If the message had been handed over to that server,
    the hand-over has failed and this node claims the message again (docs/design.md 6.2 "Hand-over")."""
    entry = claim.copy_on(server)
    handed_over = entry is not None and entry.choice is Choice.HANDED_OVER
    role = Role.PRIMARY if handed_over and claim.role in NOT_ATTEMPTED else claim.role
    return replace(claim, role=role, copies=copies)


def unchosen(claim: Claim) -> Claim:
    """The claim without a chosen server: its entry becomes an ordinary one. A hand-over stays in force."""
    copies = tuple(replace(copy, choice=Choice.LISTED) if copy.choice is Choice.CHOSEN else copy for copy in claim.copies)
    return replace(claim, copies=copies)


def with_room(claim: Claim) -> Claim:
    """The claim before one more server is chosen: of the chosen ones, at most `wanted - 1` stay so."""
    if claim.wanted <= 1:
        return unchosen(claim)
    kept = _kept(claim.copies, claim.wanted - 1)
    copies = tuple(
        replace(copy, choice=Choice.LISTED) if copy.choice is Choice.CHOSEN and copy.server not in kept else copy for copy in claim.copies
    )
    return replace(claim, copies=copies)


def _kept(copies: Iterable[Copy], room: int) -> frozenset[ServerName]:
    """The chosen servers that stay chosen: one that was sent `yours` first, then those with the highest numbers."""
    chosen = [copy for copy in copies if copy.choice in (Choice.CHOSEN, Choice.HANDED_OVER)]
    chosen.sort(key=lambda copy: (copy.choice is Choice.HANDED_OVER, copy.placement), reverse=True)
    return frozenset([copy.server for copy in chosen[:room]])


def choose(before: Claim, claim: Claim, server: PeerDatabase, number: CopyNumber, outcome: Outcome) -> Transition:
    """Make `server`, whose copy has this `number`, a chosen one. Of the others, `wanted - 1` stay chosen; the rest stay on the list until
    they have been asked what they hold."""
    chosen = Copy(server.server, server.database, Choice.CHOSEN, placement_of(claim, number))
    others = [copy for copy in claim.copies if copy.server != server.server]
    if not others:
        return Transition(before, replace(claim, copies=(chosen,)), outcome=outcome)
    kept = _kept(others, claim.wanted - 1) if claim.wanted > 1 else NOBODY
    listed = [
        replace(copy, choice=Choice.LISTED) if copy.choice in (Choice.CHOSEN, Choice.HANDED_OVER) and copy.server not in kept else copy
        for copy in others
    ]
    return Transition(before, replace(claim, copies=(chosen, *listed)), outcome=outcome)


def is_apart(claim: Claim, server: ServerName, shared: Shared) -> bool:
    """Rule *fate*: a server is chosen only if it shares its fate neither with this node nor, of several copies, with another chosen one.
    Its copy stays on the list: it can be taken over, but it does not count."""
    if shared.is_own:
        return False
    return claim.wanted <= 1 or not any(copy.server in shared.others and claim.is_chosen(copy.server) for copy in claim.copies)


def placement_of(claim: Claim, number: CopyNumber) -> int:
    """The placement that the list records for a copy with this number."""
    return number.placement if claim.wanted > 1 else 0


def copy_number(claim: Claim, entry: Copy) -> CopyNumber:
    """The number under which the copy of a server counts: the last that the server was given or, if one copy is wanted, the last of all."""
    return claim.number if claim.wanted <= 1 else replace(claim.number, placement=entry.placement)


def heir(claim: Claim) -> Copy | None:
    """The chosen server that can take over first. `None` while another server may hold a copy with a higher number: all others would
    wait for that one, which does not promote while this node lives."""
    chosen = claim.chosen()
    if chosen is None or any(copy.placement > chosen.placement for copy in claim.copies):
        return None
    return chosen


def release_copies(claim: Claim) -> tuple[tuple[Copy, ...], tuple[Notification, ...]]:
    """The client was refused: notify every server that may hold a copy.

    Notified servers stay with the claim until they acknowledge: if this node became primary again before that, the old
    `released` would discard a copy placed there.
    """
    waiting = [copy for copy in claim.copies if copy.choice.awaits_acknowledgement]
    others = [copy for copy in claim.copies if not copy.choice.awaits_acknowledgement]
    dismissed = (replace(copy, choice=Choice.DISMISSED) for copy in others)
    return (*waiting, *dismissed), notify(others, DiscardStatus.RELEASED)


def left_to(claim: Claim, primary: ServerName) -> tuple[tuple[Copy, ...], tuple[Notification, ...]]:
    """Rule *leave*: a claim ends because `primary` has a higher one. The other servers on the list keep their copies until that one has as
    many as it wants: they are sent `promoted`, and follow (docs/design.md 6.2 "Yielding and choosing again")."""
    waiting = [copy for copy in claim.copies if copy.choice.awaits_acknowledgement]
    others = [copy for copy in claim.copies if not copy.choice.awaits_acknowledgement and copy.server != primary]
    return (*waiting, *map(not_chosen, others)), notify(others, DiscardStatus.PROMOTED)


def no_longer_handed(claim: Claim) -> Claim:
    """Rule *no longer handed*: the primary server of this copy said `yours`, and then that it has yielded. It may take the message over
    again, so the hand-over counts no more."""
    return replace(claim, handed=False, asked=NOBODY) if claim.handed else claim


def not_chosen(copy: Copy) -> Copy:
    """The entry in the list of another claim: its server may hold a copy, under no number of that claim."""
    return Copy(copy.server, copy.database, Choice.UNHEARD if copy.choice is Choice.UNHEARD else Choice.LISTED)


def with_unheard(claim: Claim, unheard: Iterable[ServerName]) -> Claim:
    """Rule *unheard*: servers that gave no answer when all nodes were asked go on the list, to be asked when they answer again: one of
    them may have taken the message over, too. The former primary server is told `promoted` instead."""
    new = [Copy(server, NO_DATABASE, Choice.UNHEARD) for server in unheard if server != claim.primary and claim.copy_on(server) is None]
    return replace(claim, copies=(*claim.copies, *new)) if new else claim


def become_shadow(before: Claim, claim: Claim, primary: PeerDatabase) -> Transition:
    """Yield to `primary`, keeping a number of our own, because no two copies may have the same. The new primary assigns another
    number when it chooses this copy."""
    copies, tell = left_to(before, primary.server)
    number = own_number(before)
    after = replace(
        claim, role=Role.SHADOW, number=number, primary=primary.server, database=primary.database, asked=NOBODY, handed=False, copies=copies
    )
    return Transition(before, after, tell, outcome=Outcome.YIELDED)


def own_number(claim: Claim) -> CopyNumber:
    """The number under which a claim becomes a shadow message. A primary's own number was also given to its chosen server, so it
    continues below all numbers that it assigned."""
    return replace(claim.number, placement=0) if claim.is_primary else claim.number


def all_done(before: Claim, claim: Claim, done: Ordinals | None = None, *, is_reached: bool = False) -> Transition:
    """Every recipient is done (`done`, if the claim does not say so yet): notify every server that may hold a copy. For a shadow message
    whose recipients this node delivered before it yielded, that includes its primary."""
    tell = notify(before.copies, DiscardStatus.DELIVERED, is_reached=is_reached)
    after = replace(claim, role=Role.DELIVERED, done=claim.done if done is None else done, asked=NOBODY, handed=False, copies=())
    return Transition(before, after, tell, outcome=Outcome.DONE)


def outranks(number: CopyNumber, other: CopyNumber) -> bool:
    """Rule *higher*: a claim yields only to a higher number."""
    return number > other


def number_after(claim: Claim, me: PeerDatabase) -> CopyNumber:
    """Rule *placement*: each placement or choice gets a higher number than the one before.

    Raises: IllegalTransition if the placements are used up.
    """
    if claim.number.placement >= RANK_MAX:
        raise IllegalTransition("its placements are used up")
    return CopyNumber(claim.number.ownership, claim.number.placement + 1, me.database)


def can_be_followed(number: CopyNumber) -> bool:
    """The number leaves room for a promotion and its placements. Numbers rise by one, so no correct primary comes near the limit."""
    return number.ownership < RANK_MAX and number.placement < RANK_MAX


def without_lease(claim: Claim, runs: Callable[[Copy], bool]) -> tuple[ServerName, ...]:
    """Rule *lease*: an attempt may start only while the lease runs on every server that may hold a copy.

    Shapes: the servers without a lease; empty means that the attempt may start.
    """
    return tuple([copy.server for copy in claim.copies if not runs(copy)])


def may_promote(claim: Claim, reachable: Collection[ServerName]) -> bool:
    """Rule *ask*: before it promotes, a shadow server asks every reachable node."""
    return claim.asked.issuperset(reachable)


def is_still_asked(claim: Claim, asked_as: Claim) -> bool:
    """Rule *ask*, third part: answers count for the claim with which the questions were sent. Another server may have become the primary
    server since an answer left it, and this one its shadow server: then they say nothing about that server."""
    return (claim.number, claim.primary, claim.database) == (asked_as.number, asked_as.primary, asked_as.database)


def waits(answer: StatusAnswer, claim: Claim, me: PeerDatabase, server: ServerName) -> bool:
    """Rule *ask*, second part: wait while another node, `server`, holds a copy with a higher number, because that node promotes first. The
    same applies to a node to which this node, as its primary, sent `yours`, and to one that holds it for a former database of this node.
    Rule *in a circle*, second part: not for one that holds it for the server which handed the message to this node, because it waits for
    that one, unless it is promoting."""
    is_held_for_me = answer.primary == me.server and answer.database == me.database and not answer.promoting
    if answer.state is not StatusState.SHADOW or is_held_for_me or answer.number is None:
        return False
    if claim.handed and (answer.primary, answer.database) == (claim.primary, claim.database) and not answer.promoting:
        return False
    return outranks(answer.number, claim.number) or twin_goes_first(answer.number, server, claim, me)


def twin_goes_first(number: CopyNumber, server: ServerName, claim: Claim, me: PeerDatabase) -> bool:
    """Rule *twins*: an older copy of a database that nobody recognises assigns a number a second time. Of two copies with one number, that
    of the server whose name sorts last counts as the higher one."""
    return number == claim.number and server > me.server


def is_second_twin(claim: Claim, server: ServerName) -> bool:
    """Rule *twins*, second part: `server` has a copy with the number of the copy that another one was chosen for. With several copies, the
    list says which number each was given."""
    chosen = claim.chosen()
    return claim.wanted <= 1 and chosen is not None and chosen.server != server


def asked_after_waiting(claim: Claim) -> frozenset[ServerName]:
    """Rule *wait*: after waiting for a higher number, all nodes are asked again."""
    return frozenset()


def begins_again(question: CopyNumber, claim: Claim) -> bool:
    """Rule *again*: a question under a higher number makes a shadow server with a lower one ask all nodes again, and a
    lower primary yield. Rule *meet* is the same between two primaries."""
    return outranks(question, claim.number)


def listed_before_sending(claim: Claim, copy: Copy) -> tuple[Copy, ...]:
    """Rule *list*: a server is on the list before it is sent a copy, and stays there until it acknowledges `released`."""
    return (*(other for other in claim.copies if other.server != copy.server), copy)


def handed_again(entry: Copy) -> tuple[Notification, ...]:
    """Rule *said again*: a hand-over counts in the process that heard it. A server that holds the copy and does not know of the hand-over
    was started again since, perhaps on an older copy of its disk, and is sent `yours` again. One that has it ignores the repetition."""
    return (Notification(entry.server, entry.database, DiscardStatus.YOURS),)


def may_release(claim: Claim, server: ServerName) -> bool:
    """Rule *keep*: a server is sent `released` only after other copies are confirmed, as many as are wanted."""
    if claim.wanted > 1:
        return sum(copy.choice in (Choice.CHOSEN, Choice.HANDED_OVER) for copy in claim.copies if copy.server != server) >= claim.wanted
    chosen = claim.chosen()
    return chosen is not None and chosen.server != server


def needs_everybody(lease_runs: bool) -> bool:
    """Rule *everybody*: if a server's lease has ended and it no longer holds the copy, all nodes are asked."""
    return not lease_runs


def is_forgotten_end(answer: StatusAnswer, entry: Copy, peer: PeerDatabase) -> bool:
    """Rule *forgotten*: the server had stored the copy in this very database and knows nothing of it now. It forgets a copy only a long
    time after the message has ended, or has got another owner: a copy that expires unacknowledged it remembers as `released` until the
    primary server has heard that."""
    was_stored = entry.choice in (Choice.CHOSEN, Choice.HANDED_OVER) and entry.database == peer.database
    return was_stored and answer.state is StatusState.UNKNOWN


def ends_before(answer: StatusAnswer, claim: Claim) -> bool:
    """Rule *meet*: of two primaries, the one with the lower number yields first, and the higher one waits for that."""
    return answer.state is StatusState.PRIMARY and answer.number is not None and not outranks(answer.number, claim.number)


def is_older_copy(openings: Mapping[int, Beginning], position: int, seen: Seen) -> bool:
    """Rule *rolled back*, first part: a peer has seen a position of this queue database that is not in its past, so the file is an
    older copy that was put back.

    Shapes: `openings` has the incarnations that this database remembers, the present one included; `position` is the present one.
    """
    if seen.incarnation > max(openings):
        return True
    opening = openings.get(seen.incarnation)
    if opening is not None and opening.began != seen.began:
        return True
    following = openings.get(max(seen.incarnation + 1, min(openings)))
    return seen.position > (position if following is None else following.found)


def shows_older_copy(seen: Seen, identity: PeerIdentity) -> bool:
    """The same as a peer sees it, which does not know where the earlier incarnations began."""
    if identity.incarnation == seen.incarnation:
        return identity.began != seen.began
    return identity.incarnation < seen.incarnation or identity.began <= seen.position


def is_of_older_copy(claim: Claim, me: PeerDatabase) -> bool:
    """Rule *rolled back*, second part: before anything is done with this claim, all nodes are asked. A database that turns out to be
    an older copy gets a new id, and all numbers that a primary server assigns have the id of its database: so a claim under another
    id is from before that."""
    return claim.is_primary and claim.number.database != me.database


def shows_lost_number(claim: Claim | None, me: PeerDatabase, number: CopyNumber | None) -> bool:
    """Rule *rolled back*, third part: another node has a number that this database has assigned, and does not know. A number is committed
    before a copy is sent under it, so the database is an older copy.

    A claim that yielded goes on below all numbers that it assigned; only its ownership is known for certain. A message that is not
    known proves nothing: it may have expired, or its acceptance was not committed.
    """
    if claim is None or number is None or number.database != me.database:
        return False
    return outranks(number, claim.number) if claim.is_primary else number.ownership > claim.number.ownership


def is_older_claim(answer: StatusAnswer, peer: PeerDatabase) -> bool:
    """Rule *rolled back*, fourth part: `peer` claims the message, but as an older copy of its database has it. It delivers nothing before
    all nodes were asked, so the server that holds the copy for it may promote, and it will yield to that server."""
    return answer.state is StatusState.PRIMARY and answer.number is not None and answer.number.database != peer.database


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


def holds_for(answer: StatusAnswer, me: PeerDatabase) -> bool:
    """Whether the answering server holds its copy for this node, in its present database."""
    return answer.state is StatusState.SHADOW and answer.primary == me.server and answer.database == me.database


def waits_for_server(answer: StatusAnswer, me: PeerDatabase) -> bool:
    """Rule *in a circle*: whether the answering server holds its copy for this server, in its present database or in one that it had before
    its disk was replaced by an older one. Then it does not deliver."""
    return answer.state is StatusState.SHADOW and answer.primary == me.server


def takes_from_holder(claim: Claim, me: PeerDatabase, peer: PeerDatabase, answer: StatusAnswer) -> bool:
    """Rule *higher*, of two servers that hold a message for each other: the one with the higher copy takes it over, and the other waits for
    that."""
    return (
        answer.number is not None
        and not outranks(answer.number, claim.number)
        and not twin_goes_first(answer.number, peer.server, claim, me)
    )


def as_notification(answer: StatusAnswer, me: PeerDatabase, *, from_sender: bool) -> DiscardStatus | None:
    """A running primary's answer to STATUS about a copy that this node holds for it, as the equivalent discard notification;
    `None` if it still claims the message. If it holds the message for this server, nobody delivers it: that counts as `yours`.

    Shapes: `from_sender`: the incarnation that sent the copy answers. It starts to accept a message before it sends the copy, is
    `active` while it accepts, and keeps what it committed until the row has expired. Its `unknown` therefore proves that the commit
    failed and the client was refused, or that the message is finished: the copy is not needed. A later incarnation may have
    lost the row of an acknowledged message, if an older copy of the database was restored. Its `unknown` proves nothing, and the
    message is taken over.
    """
    if waits_for_server(answer, me):
        return DiscardStatus.YOURS
    if answer.state is StatusState.UNKNOWN:
        return DiscardStatus.RELEASED if from_sender else DiscardStatus.YOURS
    if answer.state is StatusState.DELIVERED:
        return DiscardStatus.DELIVERED
    return DiscardStatus.RELEASED if answer.state is StatusState.RELEASED else None


def yielded_to(answer: StatusAnswer, primary: PeerDatabase, me: PeerDatabase) -> ServerName:
    """The server to which the asked server (`primary` of a copy, or one that may hold a copy for us) has yielded, from its answer about
    the message; `NO_SERVER` if it has not."""
    is_other = answer.state is StatusState.SHADOW and answer.primary not in (primary.server, me.server)
    return answer.primary if is_other else NO_SERVER


CLOCK_MARGIN = 0.03  # I4: clock rates agree within 1 %, so 2 % between two of them; 1 % for timer resolution
REPLY_ALLOWANCE_MAX = timedelta(minutes=10)  # RFC 5321 4.5.3.2.6: DATA termination
PROOF_POLLS = 5  # a poll proves receipt of the previous reply: two polls normally, and three may be late
PROOF_SECONDS_MIN = 1.0  # with a poll interval of 100 ms, a busy machine answers later than 5 polls
REPLY_ALLOWANCE_SHARE = 3  # docs/design.md 6.2 "dot": at most a third of the span, for labs with short spans


def lease_length(mine: timedelta, theirs: timedelta) -> float:
    """Seconds that a lease lasts; `mine` and `theirs` are the two nodes' shadow_resubmit_time_span."""
    return min(mine, theirs).total_seconds() * (1 - CLOCK_MARGIN)


def silence_limit(mine: timedelta, theirs: timedelta) -> float:
    """Seconds of silence after which a shadow server asks the other nodes and promotes."""
    return max(mine, theirs).total_seconds()


def reply_allowance(span: timedelta) -> float:
    """Seconds allowed for the reply to the final dot."""
    return min(REPLY_ALLOWANCE_MAX, span / REPLY_ALLOWANCE_SHARE).total_seconds()


def proof_age_max(poll: timedelta) -> float:
    """`delivery_without_lease = "defer"`: seconds after the last proof from a shadow server during which an attempt may start or
    end its data. Deliveries between a cut and the end of this time are repeated if the cut outlasts the span."""
    return max(PROOF_POLLS * poll.total_seconds(), PROOF_SECONDS_MIN)


def may_end_data(lease_left: float, allowance: float) -> bool:
    """Rule *dot*: the final dot is sent only if the lease outlasts the time allowed for its reply."""
    return lease_left > allowance


@dataclass(frozen=True, slots=True)
class ServerLease:
    """An unbroken run of proofs from one server in one database: `since` is the time of the first proof, `proved_at` of the
    latest, `until` is when the lease ends."""

    database: DatabaseId
    since: float
    until: float
    proved_at: float


def renewed(lease: ServerLease | None, database: DatabaseId, spoke_at: float, proved_at: float, length: float) -> ServerLease:
    """A proof arrived at `proved_at` that the server, in `database`, received what this node sent at `spoke_at`.

    If the lease had ended by then, or the database differs, a new run begins: the server may have received it too late,
    and its actions in between are unknown.
    """
    until = spoke_at + length
    if lease is None or lease.database != database or proved_at > lease.until:
        return ServerLease(database, proved_at, until, proved_at)
    return ServerLease(database, lease.since, max(lease.until, until), proved_at)


def lease_left(copy_until: float | None, copy_database: DatabaseId, server: ServerLease | None, now: float) -> float:
    """Seconds left of the lease on one copy; zero or less if it has ended or never began.

    Shapes: `copy_until` is the end of the copy's own first lease; `None` if this process neither sent nor reviewed the copy,
    because leases do not survive the process. The server's run extends it if the two overlap.
    """
    if copy_until is None:
        return 0.0
    if server is not None and server.since <= copy_until and copy_database in ("", server.database):
        return max(copy_until, server.until) - now
    return copy_until - now
