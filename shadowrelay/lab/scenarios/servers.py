"""Scenarios in which servers are lost, and come back or do not. Source: seed-000 "Message processing after an outage", seed-001."""

from shadowrelay.lab.scenarios.script import (
    BEYOND_SPAN_SECONDS,
    EVERYBODY_TAKES,
    NOBODY_TAKES,
    REACHES_ALL_NODES,
    Deed,
    Scenario,
    above,
    at_most,
    fault,
    passes,
    pour,
    send,
    settle,
)

SOURCES = ("seed-000", "seed-001")
AFTER_A_SPAN = passes(BEYOND_SPAN_SECONDS, "longer than the resubmit span (20 s) passes: its shadow servers take its mail over")

NEW_DATABASE = Scenario(
    name="new-database",
    title="A server is destroyed and comes back with a new queue database",
    story=(
        "Mail waits on all nodes, because nobody takes it. mx1.east is killed, its queue volume is destroyed, and it starts with an"
        " empty one. Its shadow servers see the new database id at the next heartbeat, and take over at once, without waiting for "
        "the span."
    ),
    exchange=(
        'The servers that hold shadow messages for it see the new id of its queue database, and each "will assume ownership of '
        'those messages and resubmit them" (seed-001). The delay is at most ShadowHeartbeatFrequency (2 minutes) from the '
        "moment at which the new id is seen."
    ),
    sources=SOURCES,
    steps=(
        NOBODY_TAKES,
        send(120),
        REACHES_ALL_NODES,
        fault(Deed.WIPE, "mx1.east is killed, its queue is destroyed, and it starts with an empty one", "mx1.east"),
        EVERYBODY_TAKES,
    ),
    expectations=(
        above("promoted_new_database", 0, "its mail is taken over because its database is a new one"),
        above("taken_over", 0, "the receiving servers got acknowledged mail of one node from another"),
        above("databases_new", 0, "it came back with a new database"),
    ),
)

OLD_QUEUE_IN_TIME = Scenario(
    name="old-queue-in-time",
    title="A server dies and comes back with its old queue before the span has passed",
    story=(
        "Mail waits on all nodes. mx1.east is killed and is back, with its queue, after 8 s: less than the resubmit span of 20 s. "
        "Nobody takes over; it asks its shadow servers whether they did, and then delivers by itself."
    ),
    exchange=(
        "Not described. The documents tell of the same database only after ShadowResubmitTimeSpan (3 hours), of a server that "
        'was "offline long enough for the shadow server to assume ownership" (seed-000). Before that, by the same rules, nobody '
        'takes over: that setting is the time "before deciding that a primary server has failed" (seed-000). Nearest comes '
        "Exchange 2010 without an alternate route: the server that is back delivers its queue, and then sends discard "
        "notifications (seed-003). That nothing comes twice is our conclusion."
    ),
    sources=(*SOURCES, "seed-003"),
    steps=(
        NOBODY_TAKES,
        send(120),
        REACHES_ALL_NODES,
        fault(Deed.KILL, "mx1.east is killed", "mx1.east"),
        passes(8, "8 s pass, less than the span"),
        fault(Deed.START, "mx1.east starts again, with the queue that it had", "mx1.east"),
        EVERYBODY_TAKES,
    ),
    expectations=(
        above("reopened", 0, "it found the same database again"),
        above("resumed", 0, "and delivered what it had accepted before"),
        at_most("promoted", 0, "nobody took over what was not lost"),
        at_most("duplicates", 0, "and nothing came twice"),
    ),
)

OLD_QUEUE_LATE = Scenario(
    name="old-queue-late",
    title="A server dies, its mail is taken over, and it comes back with its old queue",
    story=(
        "Mail waits on all nodes. mx1.east is killed and stays away for longer than the span; its shadow servers take over and, as "
        "soon as the receiving servers take mail, deliver. Then it returns with its old queue, in which all of that mail still "
        "waits."
    ),
    exchange=(
        'After the return the server delivers the messages in its queues although the shadow servers have delivered them: "This '
        'will result in duplicate delivery of these messages." (seed-000, seed-001). Mailboxes of the same organisation hide '
        'them; "recipients on other messaging systems might see duplicate copies" (seed-001). This relay asks first, and '
        "yields."
    ),
    sources=SOURCES,
    steps=(
        NOBODY_TAKES,
        send(120),
        REACHES_ALL_NODES,
        fault(Deed.KILL, "mx1.east is killed", "mx1.east"),
        AFTER_A_SPAN,
        EVERYBODY_TAKES,
        passes(8, "the new primaries deliver"),
        fault(Deed.START, "mx1.east returns, with the queue that it had", "mx1.east"),
    ),
    expectations=(
        above("promoted_silence", 0, "its mail is taken over after a span of silence"),
        above("taken_over", 0, "and delivered by others"),
        above("reopened", 0, "it came back with the same database"),
        at_most("duplicates", 0, "where Exchange delivers twice, it asked first"),
    ),
)

FROZEN = Scenario(
    name="frozen-primary",
    title="A server hangs for longer than the span, and goes on as if nothing had happened",
    story=(
        "mx1.east is frozen with mail on it: the network takes connections for it, and nobody answers. Its shadow servers take "
        "over. Then it goes on in the middle of whatever it did. Its leases ended meanwhile, and it must not deliver before it has "
        "asked."
    ),
    exchange=(
        'Not described as such. It is a server that did not fail but "was offline long enough for the shadow server to assume '
        'ownership" (seed-000), so that both deliver, as after a return with the same database: recipients outside see '
        "duplicates."
    ),
    sources=SOURCES,
    steps=(
        NOBODY_TAKES,
        send(120),
        REACHES_ALL_NODES,
        fault(Deed.PAUSE, "mx1.east is frozen", "mx1.east"),
        AFTER_A_SPAN,
        EVERYBODY_TAKES,
        passes(8, "the new primaries deliver"),
        fault(Deed.UNPAUSE, "mx1.east goes on", "mx1.east"),
    ),
    expectations=(
        above("promoted_silence", 0, "silence of a living process is silence"),
        above("taken_over", 0, "its mail was delivered by others"),
    ),
)

SHADOW_LOST = Scenario(
    name="shadow-then-primary",
    title="The shadow server is lost; a while later the primary server is, too",
    story=(
        "Mail waits on all nodes. mx1.west, which holds copies for the nodes of the other site, is destroyed and comes back empty. "
        "The primaries notice and place their copies anew. Some time later mx1.east is destroyed: the new copies carry its mail."
    ),
    exchange=(
        'No protection is promised "During the simultaneous failure of two or more transport servers" (seed-000). Of copies '
        "that are made again when a shadow server is lost alone the documents say nothing."
    ),
    sources=SOURCES,
    steps=(
        NOBODY_TAKES,
        send(120),
        REACHES_ALL_NODES,
        fault(Deed.WIPE, "mx1.west is destroyed and comes back empty", "mx1.west"),
        passes(15, "its own mail is taken over, and the copies that it held are placed anew"),
        fault(Deed.WIPE, "mx1.east is destroyed, too", "mx1.east"),
        EVERYBODY_TAKES,
    ),
    expectations=(
        above("placed_again", 0, "copies that were lost were made again"),
        above("promoted_new_database", 0, "both servers' own mail was taken over"),
        above("databases_new", 1, "both came back with new databases"),
    ),
)

TWO_AT_ONCE = Scenario(
    name="everything-stops",
    title="All servers lose power at once, with mail on them, and start again",
    story=(
        "While mail flows, all four nodes are killed within a few seconds. Their disks are whole. They start with what was synced. "
        "What Postfix has no answer for it sends again."
    ),
    exchange=(
        'No protection is promised "During the simultaneous failure of two or more transport servers" (seed-000). The queue '
        'database is on disk (exchange-facts 7), and "discard notifications are stored on disk, not in memory" (seed-000).'
    ),
    sources=("seed-000", "exchange-facts"),
    steps=(
        NOBODY_TAKES,
        pour(120),
        settle(6, "mail flows for a while"),
        *(fault(Deed.KILL, f"{node} is killed", node) for node in ("mx1.east", "mx2.east", "mx1.west", "mx2.west")),
        passes(3, "nothing answers"),
        *(fault(Deed.START, f"{node} starts", node) for node in ("mx1.east", "mx2.east", "mx1.west", "mx2.west")),
        EVERYBODY_TAKES,
    ),
    expectations=(
        above("reopened", 3, "four nodes found their databases again"),
        above("resumed", 0, "and delivered what they had accepted before"),
    ),
)

SCENARIOS = (NEW_DATABASE, OLD_QUEUE_IN_TIME, OLD_QUEUE_LATE, FROZEN, SHADOW_LOST, TWO_AT_ONCE)
