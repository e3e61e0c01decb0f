"""Scenarios of daily operation: maintenance, full disks, next hops that are down, a restored queue. Source: seed-000, msd-q."""

from shadowrelay.lab.scenarios.script import (
    EVERYBODY_TAKES,
    NOBODY_TAKES,
    REACHES_ALL_NODES,
    Deed,
    Scenario,
    Step,
    above,
    at_most,
    fault,
    passes,
    pour,
    send,
    settle,
)

MAINTENANCE = Scenario(
    name="maintenance",
    title="All servers are restarted, one after the other, while mail flows",
    story=(
        "Each node gets SIGTERM: it finishes what it is in the middle of, ends, and starts again; the next follows when it is "
        "healthy. Mail flows all the time and finds the other three. Each is away for less than the span, so nothing is taken over."
    ),
    exchange=(
        "A procedure of several steps: HubTransport to Draining, messages redirected to another server, discards collected by "
        "the peers, then offline (exchange-facts 6). The documents of Exchange 2010 promise that a transport server can be "
        "taken offline at any time without the risk of losing messages (seed-003, in Italian)."
    ),
    sources=("seed-003", "exchange-facts"),
    steps=(
        pour(300, rate=5),
        settle(3, "mail flows"),
        fault(Deed.ROLL, "mx1.east, mx2.east, mx1.west and mx2.west drain and start again, in this order"),
    ),
    expectations=(
        above("reopened", 3, "four nodes were restarted and found their databases again"),
        at_most("promoted", 0, "nobody was mistaken for lost"),
        at_most("duplicates", 0, "and nothing came twice"),
    ),
)

DISK_FULL = Scenario(
    name="disk-full",
    title="The disk of a server is full",
    story=(
        "The queue volume of mx1.east is filled to the last byte while mail flows. It cannot keep a promise, so it makes none: it "
        "refuses mail and copies with a temporary reply; Postfix and the other nodes go elsewhere. Then there is room again."
    ),
    exchange=(
        "Back pressure: from 89 % of the disk used on (of the database's space: 96 %) mail that does not come from Exchange is "
        'refused and "Shadow Redundancy rejects messages" (msd-bp); from 99 % on, mail of other Exchange servers, too. The '
        "reply is `452 4.3.1 Insufficient system resources` (exchange-facts 8). Thresholds are not built here yet: refusal "
        "begins when a write fails."
    ),
    sources=("msd-bp", "exchange-facts"),
    steps=(
        pour(150),
        settle(4, "mail flows"),
        fault(Deed.FILL, "the queue volume of mx1.east is filled to the last byte", "mx1.east"),
        passes(8, "mail goes elsewhere"),
        fault(Deed.FREE, "there is room again", "mx1.east"),
    ),
    expectations=(
        above("refused_for_storage", 0, "it refused what it could not keep"),
        at_most("promoted", 0, "a full disk is not a lost server"),
        at_most("acknowledged_alone", 0, "nothing was acknowledged without a copy"),
    ),
)

RECEIVERS_DOWN = Scenario(
    name="receivers-down",
    title="The next hops take nothing for a while",
    story=(
        "The receiving servers answer every recipient with 451 for 10 s. Mail waits on its primary servers, each message with its "
        "copy on a shadow server, and is tried again. Nobody takes over: a next hop that is down is no reason."
    ),
    exchange=(
        "A connection that fails is tried again by a ladder: 4 times after 1 minute, 6 times after 5, then every 10. A message "
        'that is answered 4xx is tried again after 15 minutes (msd-int). It is returned after MessageExpirationTimeout, "How '
        'long a message can remain in a queue before it expires" (seed-000): 2 days. Shadow messages stay until their server '
        '"knows the primary server has successfully transmitted the message" (seed-000).'
    ),
    sources=("msd-int", "seed-000"),
    steps=(
        fault(Deed.DEFER, "the receiving servers defer everything"),
        send(120),
        passes(10, "the nodes try again and again"),
        fault(Deed.TAKE, "the receiving servers take mail again"),
    ),
    expectations=(
        above("deferred", 0, "attempts failed for now, and the tracking logs say so"),
        at_most("promoted", 0, "nobody took over"),
        at_most("duplicates", 0, "and nothing came twice"),
    ),
)

OLD_DATABASE = Scenario(
    name="old-database",
    title="An older copy of a queue database is put back: what nobody should do",
    story=(
        "mx1.east's queue volume is copied while mail waits in it. That mail is delivered, and more is accepted, which waits. Then "
        "the older copy is put in the place of the queue: mx1.east believes that delivered mail still waits, and knows nothing of "
        "what it accepted since. It asks before it delivers; its shadow servers take over what it does not know, when they hear "
        "that, or at the latest when its queue is destroyed: the last step, because an older queue is nothing to keep."
    ),
    exchange=(
        "There is no replay from a restored copy: the queue database uses circular logging (msd-q). Old databases that Exchange "
        'itself put aside are drained on purpose, and only "if shadow redundancy was failing" (exchange-facts 7).'
    ),
    sources=("msd-q", "exchange-facts"),
    steps=(
        NOBODY_TAKES,
        send(60),
        REACHES_ALL_NODES,
        Step(Deed.SAVE, "mx1.east's queue volume is copied", ("mx1.east",)),
        EVERYBODY_TAKES,
        settle(8, "everything is delivered"),
        NOBODY_TAKES,
        send(40),
        REACHES_ALL_NODES,
        fault(Deed.RESTORE, "mx1.east is killed, and starts on the older copy of its queue", "mx1.east"),
        EVERYBODY_TAKES,
        passes(12, "everybody delivers what it has"),
        fault(Deed.LOOK, "is there anything left that waits for a primary which does not know it any more?"),
        fault(Deed.WIPE, "the remedy: mx1.east's queue is destroyed, and it starts with an empty one", "mx1.east"),
    ),
    expectations=(
        above("rolled_back", 0, "it came back at an older position of the same database"),
        above("promoted", 0, "what the older copy did not know was taken over by those who held it"),
    ),
    excused=("I4",),
    excuse="not every rule for a restored older copy is built yet; duplicates are counted and not judged",
)

SCENARIOS = (MAINTENANCE, DISK_FULL, RECEIVERS_DOWN, OLD_DATABASE)
