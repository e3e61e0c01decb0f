"""What can happen to messages: each story plays one case in a `World` and declares what it planted. docs/sla.md, section 4.

Gaps between events whose order matters are minutes, clocks are wrong by less than one. Only `clean` uses the node whose clock jumps.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from benchmarks.sla_world import BEGIN, EXPIRATION, HOLD, NOW, SPAN, Life, Node, Takeover, World
from shadowrelay.model.message import Recipient
from shadowrelay.model.tracking import Replication, ResubmitReason
from shadowrelay.model.values import replace

LOST = (ResubmitReason.DATABASE_CHANGED, ResubmitReason.DATABASE_ROLLED_BACK)
AGES = {"old": (102, 188), "middle": (54, 90), "young": (6, 42)}  # hours before the end; no age is near 2 or 4 days


def begins(world: World, *ages: str) -> datetime:
    """A time of the day, some while before the end."""
    low, high = AGES[world.random.choice(ages or tuple(AGES))]
    return NOW - timedelta(hours=1) * low - world.seconds(0, (high - low) * 3600)


def deliver(life: Life, node: Node, at: datetime, ordinals: Sequence[int] | None = None, *, smooth: bool = False) -> datetime:
    """Forks and attempts until every one of `ordinals` has ended, most of them well. Returns when the last has."""
    world, over = life.world, at
    hops: dict[str, list[int]] = {}
    for ordinal in ordinals or life.everybody:
        hops.setdefault(life.envelope.recipients[ordinal - 1].address.rpartition("@")[2], []).append(ordinal)
    for fork in hops.values():
        life.transfer(node, at, fork)
        when = at + world.latency()
        if not smooth and world.random.random() < 0.12:
            for _ in range(world.random.randint(1, 3)):
                life.defer(node, when, fork)
                when += world.minutes(1, 5)
        rest = fork
        if not smooth and world.random.random() < 0.10:
            bad = world.random.sample(fork, world.random.randint(1, len(fork)))
            rest = [ordinal for ordinal in fork if ordinal not in bad]
            if world.random.random() < 0.7:
                life.fail(node, when, bad)
                notify(life, node, when, "failed")
            else:
                life.end_otherwise(node, when, bad)
        if rest and len(rest) > 1 and world.random.random() < 0.2:  # some now, the others later
            life.send(node, when, rest[:1])
            rest = rest[1:]
            life.defer(node, when, rest)
            when += world.minutes(1, 2)
        if rest:
            life.send(node, when, rest)
        over = max(over, when)
    return over


def notify(original: Life, node: Node, at: datetime, action: str) -> None:
    """A DSN, a message of its own, with a copy if there is somebody for it."""
    world = original.world
    if not original.envelope.sender:
        return
    envelope = world.envelope(at, recipients=1, sender="")
    life = Life(world, node, envelope, hidden=original.hidden)
    life.notify(node, at, original, action)
    shadow = world.random.choice([other for other in world.live if other is not node])
    has_copy = world.random.random() < 0.9
    if has_copy:
        life.place(node, shadow, at + world.seconds(0.01, 0.2))
    over = deliver(life, node, at + world.seconds(0.3, 2), smooth=True)
    if has_copy:
        life.discard(shadow, over + world.seconds(0.1, 2), primary=node)
    life.finish()


def discard_after(life: Life, shadow: Node, over: datetime, primary: Node | None = None) -> None:
    """The shadow server hears that all is done: mostly within a second or two, at once or first about some."""
    world = life.world
    if len(life.everybody) > 1 and world.random.random() < 0.25:
        life.discard(shadow, over + world.seconds(0.1, 1), ordinals=life.everybody[:1], primary=primary)
        life.discard(shadow, over + world.seconds(1.1, 2), ordinals=life.everybody[1:], primary=primary)
        return
    lag = world.minutes(2.1, 30) if world.random.random() < 0.05 else world.seconds(0.05, 2)
    life.discard(shadow, over + lag, primary=primary)


def clean(world: World, at: datetime | None = None, pair: tuple[Node, Node] | None = None, internet_id: str | None = None) -> Life:
    """As it should be. Sometimes a file of one side never arrived, sometimes the clock of one side jumps."""
    chance, smooth = world.random.random(), at is not None
    a, b = pair or tuple(world.random.sample([*world.live, world.unsteady], 2))
    hidden = [] if smooth or chance > 0.08 else [a] if chance < 0.05 else [b]
    at = at or begins(world)
    sender = "" if world.random.random() < 0.03 else None
    life = Life(world, a, world.envelope(at, internet_id=internet_id, sender=sender), hidden=hidden)
    life.accept(at, b)
    over = deliver(life, a, at + world.seconds(0.001, 0.05), smooth=smooth)
    if not smooth and world.random.random() < 0.03:
        notify(life, a, over, "delayed")
    discard_after(life, b, over)
    life.finish()
    return life


def timid(world: World) -> None:
    """The first shadow server stored it, but its answer was lost; another one was chosen."""
    a, b, c = world.pick(3)
    at = begins(world)
    life = Life(world, a, world.envelope(at))
    life.copy(b, at - world.seconds(1, 3))
    life.accept(at, c)
    life.discard(b, at + world.seconds(0.5, 2), status="released")
    over = deliver(life, a, at + world.minutes(2, 4))
    discard_after(life, c, over)
    life.finish()


def burnt(world: World) -> None:
    """The log of the primary burnt: only the shadow server knows."""
    b = world.random.choice(world.live)
    at = begins(world)
    life = Life(world, world.burnt, world.envelope(at))
    life.accept(at, b)
    over = deliver(life, world.burnt, at + world.seconds(0.1, 60))
    discard_after(life, b, over)
    life.finish()


def unprotected(world: World) -> None:
    """Accepted without a copy; placed later, or done before that, or neither until now."""
    a, b = world.pick(2)
    case = world.random.choice(("placed", "done", "open"))
    at = begins(world, "young") if case == "open" else begins(world)
    life = Life(world, a, world.envelope(at))
    life.accept(at, wanted=world.random.choice((1, 1, 2)), replication=world.random.choice((Replication.FAILED, Replication.DISABLED)))
    if case == "placed":
        placed_at = at + world.minutes(0.1, 30)
        ended = life.place(a, b, placed_at)
        over = deliver(life, a, placed_at + world.seconds(0.1, 5))
        discard_after(life, b, over)
        life.exposed.append((None, ended, "no copy at acknowledgement"))
    else:
        if case == "done":
            deliver(life, a, at + world.minutes(0.01, 20))
        life.exposed.append((None, None, "no copy at acknowledgement"))
    life.finish()


def refused(world: World) -> None:
    """451 for want of a copy; the server that stored one after all is told. Perhaps the client comes again, and is not counted as such."""
    a, b, c = world.pick(3)
    at = begins(world)
    chance = world.random.random()
    life = Life(world, a, world.envelope(at), hidden=[a] if chance < 0.3 else [])
    if chance < 0.7:
        life.copy(b, at - world.seconds(1, 4))
        life.discard(b, at + world.seconds(0.1, 2), status="released")
    life.refuse(at)
    life.finish()
    if world.random.random() < 0.5:
        clean(world, at + world.minutes(5, 30), (c, a), life.envelope.internet_message_id)


def sent_again(world: World) -> None:
    """The client never got its answer, and sends it again: the same Message-ID, another id. Or it goes to others, too, in parts."""
    a, b, c = world.pick(3)
    at = begins(world)
    first = clean(world, at, (a, b))
    before = [first]
    for number in range(world.random.randint(1, 2)):
        when = at + timedelta(minutes=20 * (number + 1)) + world.minutes(0, 10)
        primary = world.random.choice((a, c))
        envelope = world.envelope(when, internet_id=first.envelope.internet_message_id)
        is_part = world.random.random() < 0.2
        recipients = (Recipient(f"part{number}@a.dest.example"),) if is_part else first.envelope.recipients
        life = Life(world, primary, replace(envelope, recipients=recipients))
        life.is_again = not is_part
        life.accept(when, b)
        discard_after(life, b, deliver(life, primary, when + world.seconds(0.1, 1)))
        life.had = {ordinal for one in before for ordinal in one.deliveries} if life.is_again else set()
        before += [life] * life.is_again
        life.finish()


def _found_lost(world: World, old: Node, new: Node, reason: ResubmitReason, lost_at: datetime) -> tuple[Takeover, datetime]:
    """When `new` knew, and when (by the world) it may begin."""
    if reason is ResubmitReason.SILENCE:
        known_at = lost_at + SPAN + world.seconds(0, 60)
    else:
        known_at = lost_at + (world.seconds(1, 30) if reason is ResubmitReason.HANDOVER else world.minutes(1, 10))
    world.truth.counts["promotions"] += 1
    return Takeover(old, new, reason, new.clock(lost_at), new.clock(known_at)), known_at


def taken_over(world: World) -> None:
    """A server is lost; its shadow server takes over what was not done, in time or late, and places it again, or cannot."""
    new, c = world.pick(2)
    reason = world.random.choice(tuple(ResubmitReason))
    others = [node for node in world.live if node not in (new, c)]
    old = world.random.choice([*others, *others, world.dead, world.burnt])
    lost_at = begins(world) - timedelta(hours=4) if old is not world.dead else BEGIN + timedelta(days=2, hours=6, minutes=50)
    takeover, known_at = _found_lost(world, old, new, reason, lost_at)
    when = known_at + (world.minutes(3, 20) if world.random.random() < 0.3 else world.seconds(0.01, 30))
    has_third, is_done = world.random.random() < 0.7, world.random.random() < 0.9
    for _ in range(world.random.randint(1, 5)):
        _one_taken_over(world, takeover, lost_at, when, c if has_third else None, is_done)
        when += world.seconds(0, 0.1)


def _one_taken_over(world: World, takeover: Takeover, lost_at: datetime, when: datetime, third: Node | None, is_done: bool) -> None:
    at = lost_at - world.minutes(5, 30)
    life = Life(world, takeover.old, world.envelope(at))
    life.accept(at, takeover.new)
    gone: list[int] = []
    if len(life.everybody) > 1 and world.random.random() < 0.5:  # partly delivered, and the shadow server has heard it
        gone = life.everybody[:1]
        life.transfer(takeover.old, at, gone)
        life.send(takeover.old, at + world.seconds(1, 5), gone)
        life.discard(takeover.new, at + world.seconds(6, 10), ordinals=gone)
    left = life.everybody[len(gone) :]
    life.resubmit(takeover, when, left if gone else ())
    ended = None
    if third is not None:
        ended = life.place(takeover.new, third, when + world.seconds(0.1, 20))
    life.exposed.append((takeover.silent_since, ended, "holder lost"))
    over = when + timedelta(seconds=21)
    if is_done:
        over = deliver(life, takeover.new, over, left)
        if third is not None:
            life.discard(third, over + world.seconds(0.1, 2), primary=takeover.new)
    else:
        life.defer(takeover.new, over, left)
        for ordinal in left:  # neither the log of the new primary nor that of the old one says more
            life.causes["losses"][ordinal] = "no trace"
    life.finish()


def taken_over_twice(world: World) -> None:
    """The new primary is lost too, a day later."""
    a, b, c = world.pick(3)
    lost_at = begins(world, "old")
    at = lost_at - world.minutes(5, 30)
    life = Life(world, a, world.envelope(at))
    life.accept(at, b)
    first, known_at = _found_lost(world, a, b, ResubmitReason.SILENCE, lost_at)
    life.resubmit(first, known_at + timedelta(seconds=5))
    ended = life.place(b, c, known_at + timedelta(seconds=9))
    life.exposed.append((first.silent_since, ended, "holder lost"))
    life.defer(b, known_at + timedelta(minutes=5), life.everybody)
    second, known_at = _found_lost(world, b, c, LOST[0], known_at + timedelta(hours=20))
    life.resubmit(second, known_at + timedelta(seconds=5))
    deliver(life, c, known_at + timedelta(minutes=2), smooth=True)
    life.exposed.append((second.silent_since, None, "holder lost"))
    life.finish()


# several copies


def copied_twice(world: World) -> None:
    """Two or three copies wanted, and there; or fewer, and the last of them is placed later. One copy is enough not to be exposed."""
    a, *others = world.pick(min(4, len(world.live)))
    at = begins(world)
    wanted = world.random.randint(2, len(others)) if len(others) > 1 else 2
    made = world.random.choice((wanted, wanted, wanted - 1))
    life = Life(world, a, world.envelope(at))
    life.accept(at, *others[:made], wanted=wanted)
    shadows = others[:made]
    if made < wanted <= len(others):
        life.place(a, others[made], at + world.minutes(0.1, 2))
        shadows = others[:wanted]
    over = deliver(life, a, at + world.minutes(2, 4))
    for shadow in shadows:
        discard_after(life, shadow, over)
    life.finish()


def outlived(world: World) -> None:
    """Two copies, the primary server is lost: the second shadow server still has its copy, and is chosen again, discards it at the end, or
    takes over too when the first is lost. So the message was never on one server only; afterwards it may be."""
    a, b, c = world.pick(3)
    lost_at = begins(world, "old")
    at = lost_at - world.minutes(5, 30)
    is_known = world.random.random() < 0.7
    life = Life(world, a, world.envelope(at), hidden=[] if is_known else [a])
    life.accept(at, b, c, wanted=2)
    first, known_at = _found_lost(world, a, b, world.random.choice((*LOST, ResubmitReason.SILENCE)), lost_at)
    life.resubmit(first, known_at + timedelta(seconds=5))
    case = world.random.choice(("chosen again", "discarded", "lost too"))
    if case == "chosen again":
        life.choose(b, c, known_at + timedelta(minutes=2))
    if case == "lost too":
        second, known_at = _found_lost(world, b, c, LOST[0], known_at + timedelta(hours=20))
        life.resubmit(second, known_at + timedelta(seconds=5))
        deliver(life, c, known_at + timedelta(minutes=2), smooth=True)
        life.exposed.append((second.silent_since, None, "holder lost"))
    else:
        over = deliver(life, b, known_at + timedelta(minutes=4), smooth=True)
        discard_after(life, c, over, primary=b)
    life.finish()


def two_burnt(world: World) -> None:
    """Two copies, and the primary server is lost together with one of its shadow servers: the other one has the only copy until it places
    it, on a third server, or on the one that burnt and is back."""
    a, b, c = world.pick(3)
    third = world.random.choice([c, *(node for node in world.live if node not in (a, b, c))])
    lost_at = begins(world)
    at = lost_at - world.minutes(5, 30)
    life = Life(world, a, world.envelope(at))
    life.accept(at, b, c, wanted=2)
    first, known_at = _found_lost(world, a, b, world.random.choice(LOST), lost_at)
    life.resubmit(first, known_at + timedelta(seconds=5))
    ended = life.place(b, third, known_at + world.minutes(2, 9))
    life.exposed.append((first.silent_since, ended, "holder lost"))
    over = deliver(life, b, known_at + timedelta(minutes=10), smooth=True)
    discard_after(life, third, over, primary=b)
    life.causes["orphans"][c] = "never told"
    life.finish()


# duplicates


def _twice(life: Life, ordinals: Sequence[int], cause: str) -> None:
    life.causes["duplicates"].update(dict.fromkeys(ordinals, cause))


def died_before_its_record(world: World) -> None:
    """Cause a: delivered, died, loaded, delivered again; or lost then, and delivered by another."""
    a, b = world.pick(2)
    at = begins(world)
    life = Life(world, a, world.envelope(at))
    life.accept(at, b)
    twice = life.everybody[: world.random.randint(1, len(life.everybody))]
    life.transfer(a, at, life.everybody)
    life.send(a, at + world.minutes(2, 3), twice)
    life.load(a, at + world.minutes(4, 9))
    life.send(world.random.choice((a, b)), at + timedelta(minutes=10), life.everybody)
    _twice(life, twice, "a")
    discard_after(life, b, at + timedelta(minutes=10))
    life.finish()


def taken_over_after_delivery(world: World) -> None:
    """Causes b, c and (handed over) a: delivered, the record did not reach the shadow server, and it delivers again."""
    a, b = world.pick(2)
    reason = world.random.choice(tuple(ResubmitReason))
    at = begins(world) - timedelta(hours=4)
    life = Life(world, a, world.envelope(at))
    life.accept(at, b)
    twice = life.everybody[: world.random.randint(1, len(life.everybody))]
    life.transfer(a, at, life.everybody)
    life.send(a, at + world.minutes(2, 4), twice)
    takeover, known_at = _found_lost(world, a, b, reason, at + world.minutes(8, 20))
    life.resubmit(takeover, known_at + timedelta(seconds=10))
    deliver(life, b, known_at + timedelta(minutes=3), smooth=True)
    _twice(life, twice, {LOST[0]: "b", LOST[1]: "b", ResubmitReason.SILENCE: "c"}.get(reason, "a"))
    if len(twice) < len(life.everybody):
        life.exposed.append((takeover.silent_since, None, "holder lost"))
    life.finish()


def cut_off(world: World) -> None:
    """Cause c: both live and deliver, the one that was cut off first, or last."""
    a, b = world.pick(2)
    at = begins(world) - timedelta(hours=4)
    life = Life(world, a, world.envelope(at))
    life.accept(at, b)
    lost_at = at + world.minutes(5, 8)
    takeover, known_at = _found_lost(world, a, b, ResubmitReason.SILENCE, lost_at)
    first, last = lost_at + world.minutes(20, 150), known_at + world.minutes(15, 40)
    life.send(a, world.random.choice((first, last)), life.everybody)
    life.resubmit(takeover, known_at + timedelta(seconds=20))
    life.send(b, known_at + timedelta(minutes=4), life.everybody)
    _twice(life, life.everybody, "c")
    life.exposed.append((takeover.silent_since, None, "holder lost"))
    life.finish()


def two_failed(world: World) -> None:
    """Cause d: the second server fails while it takes over from the first, both within the span."""
    a, b, c = world.pick(3)
    at = begins(world) - timedelta(hours=8)
    life = Life(world, a, world.envelope(at))
    life.accept(at, b)
    life.copy(c, at - timedelta(seconds=1))  # it was asked first, and its answer was late
    life.send(a, at + timedelta(minutes=3), life.everybody)
    first, known_at = _found_lost(world, a, b, world.random.choice(LOST), at + timedelta(minutes=8))
    life.resubmit(first, known_at + timedelta(seconds=5))
    reason = world.random.choice((*LOST, ResubmitReason.SILENCE))
    lost_at = known_at + (timedelta(minutes=-4) if reason is ResubmitReason.SILENCE else world.minutes(5, 60))
    second, known_at = _found_lost(world, b, c, reason, lost_at)
    life.resubmit(second, known_at + timedelta(seconds=5))
    life.send(c, known_at + timedelta(minutes=3), life.everybody)
    _twice(life, life.everybody, "d")
    life.finish()


def unexplained(world: World) -> None:
    """Delivered twice, by one server or by two, and no row says why: a bug, planted."""
    a, b, c = world.pick(3)
    at = begins(world)
    life = Life(world, a, world.envelope(at))
    life.accept(at, b)
    over = deliver(life, a, at + world.minutes(1, 2), smooth=True)
    chosen = [ordinal for ordinal in life.everybody if len(life.deliveries[ordinal]) == 1]
    life.send(world.random.choice((a, c)), over + world.minutes(5, 9), chosen)
    _twice(life, chosen, "unexplained")
    discard_after(life, b, over + timedelta(minutes=10))
    life.finish()


# losses and orphans


def lost(world: World) -> None:
    """A recipient, or all of them, without an end; or it is too early to say so."""
    case = world.random.choice(("set aside", "discarded without delivery", "both copies gone", "still queued", "no trace", "partly"))
    a, b = world.pick(2)
    at = begins(world)
    if case == "both copies gone":
        a, at = world.dead, BEGIN + timedelta(days=2, hours=6) + world.minutes(0, 40)
    elif case == "still queued":
        at = begins(world, "old", "middle")
    hidden = [b] if case == "both copies gone" and world.random.random() < 0.8 else []
    life = Life(world, a, world.envelope(at, recipients=3 if case == "partly" else None), hidden=hidden)
    life.accept(at, b)
    life.transfer(a, at + world.seconds(0.1, 1), life.everybody)
    gone = life.everybody
    if case == "set aside":
        life.set_aside(a, at + world.minutes(5, 50))
    elif case == "discarded without delivery":
        life.discard(b, at + world.minutes(5, 50))
    elif case == "still queued":
        for hours in (0.1, 1, 12, 30, 47, 49.5):
            life.defer(a, at + timedelta(hours=hours), gone)
    elif case == "partly":
        gone = gone[1:]
        life.send(a, at + world.minutes(1, 2), [1])
        life.discard(b, at + world.minutes(3, 4), ordinals=[1])
        life.fail(a, at + world.minutes(3, 4), [2])
        notify(life, a, at + timedelta(minutes=4), "failed")
        gone = [3]
    cause = {"partly": "no trace", "both copies gone": "both copies gone" if hidden else "copy not taken over"}.get(case, case)
    life.causes["losses"].update(dict.fromkeys(gone, cause))
    life.finish()


def half_forgotten(world: World) -> None:
    """The primary's log is gone and its shadow server was never told: nobody knows whether it arrived."""
    a, b = world.pick(2)
    is_burnt = world.random.random() < 0.5
    at = begins(world)
    life = Life(world, world.burnt if is_burnt else a, world.envelope(at), hidden=[a])
    life.accept(at, b)
    deliver(life, life.primary, at + world.seconds(0.1, 1), smooth=True)
    life.causes["losses"].update(dict.fromkeys(life.everybody, "copy not taken over" if is_burnt else "no trace"))
    life.finish()


def orphaned(world: World) -> None:
    """Delivered, and the copy stays until its time is up, or is still waiting for that."""
    case = world.random.choice(("expired", "log missing", "never told"))
    a, b = world.pick(2)
    at = begins(world, "old") if case == "expired" else begins(world)
    if case == "log missing":
        b, at = world.dead, BEGIN + timedelta(hours=1) * world.random.uniform(1, 50)
    life = Life(world, a, world.envelope(at))
    life.accept(at, b)
    deliver(life, a, at + world.seconds(0.1, 1))
    if case == "expired":
        life.expire_copy(b, at + HOLD + world.minutes(1, 3))
    life.causes["orphans"][b] = case
    life.finish()


def from_safety_net(world: World) -> None:
    """Resubmitted on request, as a message of its own."""
    a, b = world.pick(2)
    at = begins(world, "old", "middle")
    life = Life(world, a, world.envelope(at))
    life.accept(at, b)
    over = deliver(life, a, at + world.seconds(0.1, 1), smooth=True)
    discard_after(life, b, over)
    life.finish()
    again_at = at + EXPIRATION / 2
    again = Life(world, a, world.envelope(again_at))
    again.resubmit_from_safety_net(a, again_at)
    again.place(a, b, again_at + timedelta(seconds=1))
    discard_after(again, b, deliver(again, a, again_at + timedelta(seconds=2), smooth=True))
    again.finish()


FAULTS: tuple[Callable[[World], object], ...] = (
    timid, burnt, unprotected, unprotected, refused, sent_again, taken_over, taken_over, taken_over_twice, copied_twice,
    copied_twice, outlived, two_burnt, died_before_its_record,
    taken_over_after_delivery, taken_over_after_delivery, cut_off, two_failed, unexplained, lost, lost, lost, half_forgotten, orphaned,
    from_safety_net,
)  # fmt: skip


def play(world: World, messages: int) -> None:
    """At least `messages` acknowledged messages, and in the end one more by each server that still lives."""
    while world.truth.counts["messages_acknowledged"] < messages:
        story = world.random.choice(FAULTS) if world.random.random() < world.faults else clean
        world.truth.stories[story.__name__] += 1
        story(world)
    closing = [*world.live, world.unsteady]
    for index, node in enumerate(closing):
        clean(world, NOW - world.minutes(30, 100), (node, closing[index - 1]))
    world.close()
