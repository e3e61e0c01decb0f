"""All scenarios, in the order of `lab scenario --list`: lost servers, cut networks, daily operation, the way of Exchange 2010.
docs/lab.md "Scenarios".

Sources: seed-000 ("Message processing after an outage"), seed-001 for servers; seed-000, exchange-facts 4 for networks; seed-000, msd-q for
maintenance, full disks, next hops that are down and a restored queue; seed-003 for the way of Exchange 2010.
"""

from shadowrelay.lab.scenarios.script import (
    BEYOND_SPAN_SECONDS,
    HEALED,
    HEARTBEAT_SECONDS,
    KEPT_SECONDS,
    REACHES_ALL_NODES,
    RECEIVERS_ACCEPT,
    RECEIVERS_DEFER,
    Operation,
    Scenario,
    Step,
    above,
    at_most,
    by_name,
    fault,
    passes,
    pour,
    send,
    settle,
)
from shadowrelay.lab.topology import WrongUse

# ---- servers are lost, and return or not

SOURCES = ("seed-000", "seed-001")
AFTER_A_SPAN = passes(BEYOND_SPAN_SECONDS, "longer than the resubmit span (20 s) passes: its shadow servers take over its mail")

NEW_DATABASE = Scenario(
    name="new-database",
    title="A server is destroyed and comes back with a new queue database",
    story=(
        "Mail is queued on all nodes, because all is deferred. mx1.east is killed, its queue volume is destroyed, and it starts with an"
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
        RECEIVERS_DEFER,
        send(120),
        REACHES_ALL_NODES,
        fault(Operation.WIPE, "mx1.east is killed, its queue is destroyed, and it starts with an empty one", "mx1.east"),
        RECEIVERS_ACCEPT,
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
        "No node takes over; mx1.east asks its shadow servers whether they did, and then delivers its mail itself."
    ),
    exchange=(
        "Not described. The documents mention the same database only after ShadowResubmitTimeSpan (3 hours), of a server that "
        'was "offline long enough for the shadow server to assume ownership" (seed-000). Before that, by the same rules, no server '
        'takes over: that setting is the time "before deciding that a primary server has failed" (seed-000). Nearest comes '
        "Exchange 2010 without an alternate route: the server that is back delivers its queue, and then sends discard "
        "notifications (seed-003). That nothing comes twice is our conclusion."
    ),
    sources=(*SOURCES, "seed-003"),
    steps=(
        RECEIVERS_DEFER,
        send(120),
        REACHES_ALL_NODES,
        fault(Operation.KILL, "mx1.east is killed", "mx1.east"),
        passes(8, "8 s pass, less than the span"),
        fault(Operation.START, "mx1.east starts again, with its queue", "mx1.east"),
        RECEIVERS_ACCEPT,
    ),
    expectations=(
        above("reopened", 0, "it found the same database again"),
        above("resumed", 0, "and delivered what it had accepted before"),
        at_most("promoted", 0, "no server took over mail that was not lost"),
        at_most("duplicates", 0, "and nothing was delivered twice"),
    ),
)

OLD_QUEUE_LATE = Scenario(
    name="old-queue-late",
    title="A server dies, its mail is taken over, and it comes back with its old queue",
    story=(
        "Mail is queued on all nodes. mx1.east is killed and stays down for longer than the span; its shadow servers take over and, as "
        "soon as the receiving servers accept mail, deliver. Then it returns with its old queue, in which all of that mail still "
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
        RECEIVERS_DEFER,
        send(120),
        REACHES_ALL_NODES,
        fault(Operation.KILL, "mx1.east is killed", "mx1.east"),
        AFTER_A_SPAN,
        RECEIVERS_ACCEPT,
        passes(8, "the new primaries deliver"),
        fault(Operation.START, "mx1.east returns with its old queue", "mx1.east"),
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
    title="A server hangs for longer than the span, and then resumes",
    story=(
        "mx1.east is paused with mail on it: the network accepts connections for it, but nothing answers. Its shadow servers take "
        "over. Then it resumes where it stopped. Its leases have ended meanwhile, and it must not deliver before it has "
        "asked."
    ),
    exchange=(
        'Not described as such. It is a server that did not fail but "was offline long enough for the shadow server to assume '
        'ownership" (seed-000), so that both deliver, as after a return with the same database: recipients outside see '
        "duplicates."
    ),
    sources=SOURCES,
    steps=(
        RECEIVERS_DEFER,
        send(120),
        REACHES_ALL_NODES,
        fault(Operation.PAUSE, "mx1.east is paused", "mx1.east"),
        AFTER_A_SPAN,
        RECEIVERS_ACCEPT,
        passes(8, "the new primaries deliver"),
        fault(Operation.UNPAUSE, "mx1.east resumes", "mx1.east"),
    ),
    expectations=(
        above("promoted_silence", 0, "a paused process counts as silent"),
        above("taken_over", 0, "its mail was delivered by others"),
    ),
)

SHADOW_LOST = Scenario(
    name="shadow-then-primary",
    title="The shadow server is lost, and later the primary server",
    story=(
        "Mail waits on all nodes. mx1.west, which holds copies for the nodes of the other site, is destroyed and comes back empty. "
        "The primaries notice and place new copies. Some time later mx1.east is destroyed: its mail is delivered from the new copies."
    ),
    exchange=(
        'No protection is promised "During the simultaneous failure of two or more transport servers" (seed-000). Of copies '
        "that are made again when a shadow server is lost alone the documents say nothing."
    ),
    sources=SOURCES,
    steps=(
        RECEIVERS_DEFER,
        send(120),
        REACHES_ALL_NODES,
        fault(Operation.WIPE, "mx1.west is destroyed and comes back empty", "mx1.west"),
        passes(15, "its own mail is taken over, and the copies that it held are placed again"),
        fault(Operation.WIPE, "mx1.east is destroyed, too", "mx1.east"),
        RECEIVERS_ACCEPT,
    ),
    expectations=(
        above("placed_again", 0, "copies that were lost were made again"),
        above("promoted_new_database", 0, "both servers' own mail was taken over"),
        above("databases_new", 1, "both came back with new databases"),
    ),
)

TWO_BURNT = Scenario(
    name="two-burnt",
    title="Two servers are destroyed at once, and each message has two copies",
    story=(
        "All nodes want two copies (shadow_copies = 2), and mail is queued on all of them. Then mx1.east and mx1.west are killed in the "
        "same moment, and both start with empty queues. What had its primary server on one and a copy on the other is delivered from "
        "its second copy."
    ),
    exchange=(
        'No protection is promised "During the simultaneous failure of two or more transport servers" (seed-000): Exchange makes '
        "one copy of each message."
    ),
    sources=("seed-000",),
    steps=(
        Step(Operation.CONFIGURE, "all nodes are configured for two copies", setting="[transport]\nshadow_copies = 2"),
        RECEIVERS_DEFER,
        send(120),
        REACHES_ALL_NODES,
        fault(Operation.BURN, "mx1.east and mx1.west are destroyed at once, and start with empty queues", "mx1.east", "mx1.west"),
        RECEIVERS_ACCEPT,
    ),
    expectations=(
        above("databases_new", 1, "two nodes came back with new databases"),
        above("copied_twice", 0, "each message had been acknowledged with two copies"),
        above("promoted_new_database", 0, "their mail was taken over"),
        above("taken_over", 0, "and delivered by others"),
        at_most("duplicates", 0, "and nothing was delivered twice: of two servers with a copy, one stepped in"),
    ),
)

EVERYTHING_STOPS = Scenario(
    name="everything-stops",
    title="All servers lose power at once, with mail on them, and start again",
    story=(
        "While mail flows, all four nodes are killed within a few seconds. Their disks are whole. They start with what was synced. "
        "Postfix sends again every message for which it got no reply."
    ),
    exchange=(
        'No protection is promised "During the simultaneous failure of two or more transport servers" (seed-000). The queue '
        'database is on disk (exchange-facts 7), and "discard notifications are stored on disk, not in memory" (seed-000).'
    ),
    sources=("seed-000", "exchange-facts"),
    steps=(
        RECEIVERS_DEFER,
        pour(120),
        settle(6, "mail flows for some seconds"),
        *(fault(Operation.KILL, f"{node} is killed", node) for node in ("mx1.east", "mx2.east", "mx1.west", "mx2.west")),
        passes(3, "nothing answers"),
        *(fault(Operation.START, f"{node} starts", node) for node in ("mx1.east", "mx2.east", "mx1.west", "mx2.west")),
        RECEIVERS_ACCEPT,
    ),
    expectations=(
        above("reopened", 3, "four nodes found their databases again"),
        above("resumed", 0, "and delivered what they had accepted before"),
    ),
)


# ---- all servers run, but the network between them fails

SITES_APART = Scenario(
    name="sites-apart",
    title="Two sites are cut off from each other for longer than the span",
    story=(
        "Mail is queued on all nodes, with copies in the other site. Then the link between east and west is cut. Each side sees the other"
        " as lost; after the span, each takes over the copies it holds, and delivers, and so does the primary, whose leases have "
        "ended: with `delivery_without_lease = deliver` (the default) that is a duplicate of cause (c). New mail is accepted all "
        "the time, with copies in the own site."
    ),
    exchange=(
        'A shadow server that cannot open a session to its primary server for ShadowResubmitTimeSpan (3 hours) "promotes itself '
        'as the primary server" (seed-000), whatever the reason. No document says that the primary server then stops (seed-001 '
        "neither), so recipients outside may see duplicates."
    ),
    sources=("seed-000", "seed-001"),
    steps=(
        RECEIVERS_DEFER,
        send(80),
        REACHES_ALL_NODES,
        fault(Operation.CUT, "the link between east and west is cut", "east", "west"),
        send(40, "40 more messages are sent while the sites are apart"),
        passes(BEYOND_SPAN_SECONDS, "longer than the resubmit span (20 s) passes"),
        RECEIVERS_ACCEPT,
        passes(8, "both sides deliver"),
        HEALED,
    ),
    expectations=(
        above("promoted_silence", 0, "each side took over copies of the other"),
        above("copies_in_own_site", 0, "new mail got its second copy in its own site"),
    ),
)

PAIR_CUT = Scenario(
    name="pair-cut",
    title="The network between a primary server and a shadow server fails for less than the span",
    story=(
        "Mail flows. mx1.east and mx1.west do not reach each other for 12 s; both reach all others. Copies go to other servers;"
        " no server is taken over, because the span is longer."
    ),
    exchange=(
        'The shadow server logs event 22004, "The periodic heartbeat to primary server … failed." (exchange-facts 2), and goes '
        "on trying; it promotes only after ShadowResubmitTimeSpan. A copy that cannot be made on one server is tried on others, "
        "up to 4 attempts in remote sites and 2 in the own (seed-000)."
    ),
    sources=("seed-000", "exchange-facts"),
    steps=(
        RECEIVERS_DEFER,
        pour(150),
        settle(4, "mail flows"),
        fault(Operation.CUT, "the link between mx1.east and mx1.west is cut", "mx1.east", "mx1.west"),
        passes(12, "12 s pass, less than the span"),
        HEALED,
        RECEIVERS_ACCEPT,
    ),
    expectations=(
        above("heartbeats_failed", 0, "each noticed that the other was silent"),
        at_most("promoted", 0, "no server took over mail that was not lost"),
        at_most("duplicates", 0, "and nothing was delivered twice"),
    ),
)

NO_SHADOW = Scenario(
    name="no-shadow-server",
    title="No shadow server can be reached, and messages without a second copy are rejected",
    story=(
        "Every node is cut off from every other one for a while, and mail is sent. `reject_message_on_shadow_failure` is on in this"
        " lab: no node answers 250, Postfix gets 451 and keeps the mail. When the network is healed, the mail is accepted."
    ),
    exchange=(
        'With RejectMessageOnShadowFailure the answer is `451 4.4.0 Message failed to be made redundant`, "but the sending '
        'server can transmit the message again" (seed-000). By default it is off: "the primary message is accepted anyway" '
        "(seed-000), without a second copy."
    ),
    sources=("seed-000", "msp-tc"),
    steps=(
        fault(Operation.CUT, "the link between east and west is cut", "east", "west"),
        fault(Operation.CUT, "the link between the two nodes of east is cut", "mx1.east", "mx2.east"),
        fault(Operation.CUT, "the link between the two nodes of west is cut", "mx1.west", "mx2.west"),
        send(60),
        passes(8, "Postfix tries, and gets 451 from every node"),
        HEALED,
    ),
    expectations=(
        above("refused_not_redundant", 0, "no 250 without a second copy"),
        above("copies_failed", 0, "the tracking logs have the reason"),
        at_most("acknowledged_alone", 0, "nothing was acknowledged without a copy"),
    ),
)

SLOW_LINK = Scenario(
    name="slow-link",
    title="The link between the sites is too slow for copies",
    story=(
        "Traffic between the sites is limited to 128 kbit/s, and mail of 100 kB is sent. A copy has to be made within "
        "shadow_timeout (5 s): if the other site does not answer in time, the second copy is made in the own site."
    ),
    exchange=(
        'PreferRemote: the copy is tried in remote sites "up to the number of times specified by MaxRetriesForRemoteSiteShadow" '
        "(seed-000; 4), then in the own site, up to MaxRetriesForLocalSiteShadow (2). The client waits meanwhile, for the "
        "time-outs of the SMTP sessions are minutes."
    ),
    sources=("seed-000", "msp-tc"),
    steps=(
        fault(Operation.SLOW, "the link between east and west is limited to 128 kbit/s", "east", "west"),
        send(40, "40 messages of 100 kB are sent", rate=4, size=100_000),
        passes(5, "copies are queued"),
        HEALED,
    ),
    expectations=(
        above("copies_in_own_site", 0, "second copies were made in the own site"),
        at_most("acknowledged_alone", 0, "nothing was acknowledged without a copy"),
    ),
)


# ---- daily operation

MAINTENANCE = Scenario(
    name="maintenance",
    title="All servers are restarted, one after the other, while mail flows",
    story=(
        "Each node gets SIGTERM: it finishes running transactions, exits, and starts again; the next follows when it is "
        "healthy. Mail flows all the time to the other three. Each is down for less than the span, so nothing is taken over."
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
        fault(Operation.ROLL, "mx1.east, mx2.east, mx1.west and mx2.west drain and start again, in this order"),
    ),
    expectations=(
        above("reopened", 3, "four nodes were restarted and found their databases again"),
        at_most("promoted", 0, "no server was treated as lost"),
        at_most("duplicates", 0, "and nothing was delivered twice"),
    ),
)

DRAIN = Scenario(
    name="drain",
    title="A server is drained, and then its queue is destroyed",
    story=(
        "Mail is queued on all nodes, because all is deferred, and more flows. mx1.east is drained: it refuses mail, hands what it has "
        "over to its shadow servers without sending a copy, and is inactive when each has taken over. Then its queue is "
        "destroyed, and it starts with an empty one. Nobody needs the old one any more."
    ),
    exchange=(
        "HubTransport to Draining, the queues drain, the rest is redirected to another server, which makes it redundant again, the peers "
        "are made to send heartbeats until they have collected the discards (at most 5 minutes), then inactive (dsc, exchange-facts 6). "
        "Redirected messages are sent anew; here the copies that exist are used."
    ),
    sources=("dsc", "exchange-facts"),
    steps=(
        RECEIVERS_DEFER,
        send(120),
        REACHES_ALL_NODES,
        pour(100),
        settle(3, "mail flows"),
        fault(Operation.DRAIN, "mx1.east is drained", "mx1.east"),
        fault(Operation.WIPE, "its queue is destroyed, and it starts with an empty one", "mx1.east"),
        RECEIVERS_ACCEPT,
    ),
    expectations=(
        above("promoted_handover", 0, "its shadow servers took its mail over when it was handed over"),
        above("databases_new", 0, "it came back with a new database"),
        at_most("promoted_new_database", 0, "in the old one nothing was left that only it could deliver"),
        at_most("duplicates", 0, "and nothing was delivered twice"),
    ),
)

REDIRECT = Scenario(
    name="redirect",
    title="The queues of a server are redirected to another one, while mail flows",
    story=(
        "Mail is queued on all nodes, because all is deferred, and more flows. mx1.east redirects its queues to mx1.west: it refuses mail "
        "meanwhile, which goes to others; mx1.west gets a copy of what it has none of, takes all of it over, and mx1.east keeps a copy. "
        "Then mx1.east takes mail again."
    ),
    exchange=(
        "Redirect-Message drains active messages to the target, and the server takes no mail meanwhile; shadow and poison messages stay "
        "(dsc). They are sent anew. Here they keep their identity, and each has one owner at any time."
    ),
    sources=("dsc",),
    steps=(
        RECEIVERS_DEFER,
        send(120),
        REACHES_ALL_NODES,
        pour(100),
        settle(3, "mail flows"),
        fault(Operation.REDIRECT, "mx1.east redirects its queues to mx1.west", "mx1.east", "mx1.west"),
        RECEIVERS_ACCEPT,
    ),
    expectations=(
        above("promoted_handover", 0, "mx1.west took its mail over when it was handed over"),
        above("taken_over", 0, "and delivered it"),
        at_most("databases_new", 0, "no server was lost"),
        at_most("duplicates", 0, "and nothing was delivered twice"),
    ),
)

SAFETY_NET = Scenario(
    name="safety-net",
    title="A server that has delivered mail is lost, and its shadow servers resubmit that mail",
    story=(
        "Mail for corp.example is routed inside the boundary, and delivered. mx1.east is destroyed, and Safety Net with it. The mail "
        "store lost what came lately, so the other nodes are asked to resubmit what mx1.east delivered. They have it in Shadow Safety "
        "Net, and deliver each message once more, whichever of them has it."
    ),
    exchange=(
        "After a failover Active Manager asks for the messages of an interval (msd-sn). If the primary Safety Net does not answer for 12 "
        "hours, the request goes to the shadow servers, which resubmit what they have for that server (msd-sn)."
    ),
    sources=("msd-sn",),
    steps=(
        Step(
            Operation.CONFIGURE,
            "mail for corp.example stays inside the boundary",
            setting='[[routes]]\nrecipients = ["*@corp.example"]\nnext_hop = "postfix.corp.example:25"\ninside_boundary = true',
        ),
        send(120),
        settle(8, "everything is delivered, and the copies are discarded"),
        fault(Operation.BURN, "mx1.east is destroyed, and starts with an empty queue", "mx1.east"),
        fault(Operation.RESUBMIT, "the other nodes are asked to resubmit what mx1.east delivered", "mx1.east"),
        passes(5, "they deliver it"),
    ),
    expectations=(
        above("databases_new", 0, "mx1.east came back with a new database"),
        above("resubmitted", 0, "its mail was delivered again, on request"),
        at_most("not_resubmitted", 0, "all of it"),
        at_most("resubmitted_twice", 0, "and each once, although three nodes were asked"),
        at_most("duplicates", 0, "nothing else was delivered twice"),
    ),
)

DISK_FULL = Scenario(
    name="disk-full",
    title="The disk of a server is full",
    story=(
        "The queue volume of mx1.east is filled to the last byte while mail flows. It cannot commit anything, so it accepts nothing: it "
        "refuses mail and copies with a temporary reply; Postfix and the other nodes go elsewhere. Then there is room again."
    ),
    exchange=(
        "Back pressure: from 89 % of the disk used on (of the database's space: 96 %) mail that does not come from Exchange is "
        'refused and "Shadow Redundancy rejects messages" (msd-bp); from 99 % on, mail of other Exchange servers, too. The '
        "reply is `452 4.3.1 Insufficient system resources` (exchange-facts 8). The thresholds here are the same; on the "
        "lab's volume of 256 MB refusal begins with 62 MB free."
    ),
    sources=("msd-bp", "exchange-facts"),
    steps=(
        pour(150),
        settle(4, "mail flows"),
        fault(Operation.FILL, "the queue volume of mx1.east is filled to the last byte", "mx1.east"),
        passes(8, "mail goes elsewhere"),
        fault(Operation.FREE, "there is room again", "mx1.east"),
    ),
    expectations=(
        above("refused_for_storage", 0, "it refused mail that it could not store"),
        at_most("promoted", 0, "a full disk is not a lost server"),
        at_most("acknowledged_alone", 0, "nothing was acknowledged without a copy"),
    ),
)

RECEIVERS_DOWN = Scenario(
    name="receivers-down",
    title="The next hops accept nothing for a while",
    story=(
        "The receiving servers answer every recipient with 451 for 10 s. Mail is queued on its primary servers, each message with its "
        "copy on a shadow server, and is tried again. No server takes over: a next hop that is down is no reason."
    ),
    exchange=(
        "A connection that fails is tried again by a ladder: 4 times after 1 minute, 6 times after 5, then every 10. A message "
        'that is answered 4xx is tried again after 15 minutes (msd-int). It is returned after MessageExpirationTimeout, "How '
        'long a message can remain in a queue before it expires" (seed-000): 2 days. Shadow messages stay until their server '
        '"knows the primary server has successfully transmitted the message" (seed-000).'
    ),
    sources=("msd-int", "seed-000"),
    steps=(
        fault(Operation.DEFER, "the receiving servers defer everything"),
        send(120),
        passes(10, "the nodes try again and again"),
        fault(Operation.TAKE, "the receiving servers accept mail again"),
    ),
    expectations=(
        above("deferred", 0, "attempts were deferred, and the tracking logs show it"),
        at_most("promoted", 0, "no server took over"),
        at_most("duplicates", 0, "and nothing was delivered twice"),
    ),
)

OLD_DATABASE = Scenario(
    name="old-database",
    title="An older copy of a queue database is restored",
    story=(
        "mx1.east's queue volume is copied while mail is queued. That mail is delivered, and more is accepted and queued. Then "
        "the older copy replaces the queue: mx1.east has delivered mail in its queue again, and does not know the mail that it "
        "accepted since. It learns from its peers that its database is an older copy, gives it a new id, and asks all of them before "
        "it delivers. They take over what they hold for the former id."
    ),
    exchange=(
        "There is no replay from a restored copy: the queue database uses circular logging (msd-q). Old databases that Exchange "
        'itself put aside are drained on purpose, and only "if shadow redundancy was failing" (exchange-facts 7).'
    ),
    sources=("msd-q", "exchange-facts"),
    steps=(
        RECEIVERS_DEFER,
        send(60),
        REACHES_ALL_NODES,
        Step(Operation.SAVE, "mx1.east's queue volume is copied", ("mx1.east",)),
        RECEIVERS_ACCEPT,
        settle(8, "everything is delivered"),
        RECEIVERS_DEFER,
        send(40),
        REACHES_ALL_NODES,
        fault(Operation.RESTORE, "mx1.east is killed, and starts on the older copy of its queue", "mx1.east"),
        RECEIVERS_ACCEPT,
        passes(12, "every node delivers its mail"),
    ),
    expectations=(
        above("rolled_back", 0, "its older copy got a new id"),
        above("promoted", 0, "mail that the older copy did not contain was taken over by its shadow servers"),
        at_most("duplicates", 0, "and nothing that had been delivered since was delivered again"),
    ),
)


# ---- the way of Exchange 2010: the servers of east relay to mx1.west by TRACK, and keep the shadow

HUBS = '["mx1.west.example:2525", "mx2.west.example:2525"]'
RELAYED = '[[receive_connectors]]\nredundancy = "previous-hop"\n\n[[routes]]\nrecipients = ["*"]\nredundancy = "previous-hop"\nnext_hop = '
AFTER_COUNTS = passes(KEPT_SECONDS + 2 * HEARTBEAT_SECONDS, "longer than the heartbeat's time-out (2 s) times its count (3) passes")
BURNT = "mx1.west's queue is destroyed, and it starts with an empty one"


def chained(hubs: str, text: str) -> tuple[Step, ...]:
    """The beginning of each scenario here: mail is in mx1.west, and the servers of east keep what they relayed to it."""
    return (
        Step(Operation.CONFIGURE, "the servers of west offer TRACK", ("west",), setting='[[receive_connectors]]\nredundancy = "both"'),
        Step(Operation.CONFIGURE, text, ("east",), setting=RELAYED + hubs),
        RECEIVERS_DEFER,
        send(120),
        settle(4, "Postfix passes all mail to the nodes, and those of east pass theirs on to mx1.west"),
    )


ANOTHER_ROUTE = "the servers of east relay all mail to mx1.west, or else to mx2.west"
NO_OTHER_ROUTE = "the servers of east relay all mail to mx1.west, and know no other route"

HOP_NEW_DATABASE = Scenario(
    name="next-hop-new-database",
    title="A next hop is lost with its queue, and there is another route",
    story=(
        "The servers of east make no copies. They relay by TRACK to mx1.west, and keep the shadow until mx1.west has delivered. It is "
        "killed with that mail on it, its queue is destroyed, and it comes back empty. Before that, after three heartbeats without an "
        "answer, the servers of east take their mail back, and relay it to mx2.west."
    ),
    exchange=(
        "The servers with shadow messages for the lost one take them over and submit them again, and they are delivered over other routes; "
        "the delay is at most the heartbeat's time-out times its count (seed-003)."
    ),
    sources=("seed-003",),
    steps=(
        *chained(HUBS, ANOTHER_ROUTE),
        fault(Operation.KILL, "mx1.west is killed", "mx1.west"),
        AFTER_COUNTS,
        RECEIVERS_ACCEPT,
        passes(6, "mx2.west delivers"),
        fault(Operation.WIPE, BURNT, "mx1.west"),
    ),
    expectations=(
        above("kept", 0, "the servers of east kept what they had relayed"),
        above("taken_back", 0, "they took it back"),
        above("another_way", 0, "and relayed it to the other next hop"),
        above("databases_new", 0, "mx1.west came back with a new database"),
        at_most("duplicates", 0, "and nothing was delivered twice"),
    ),
)

HOP_OLD_QUEUE = Scenario(
    name="next-hop-old-queue",
    title="A next hop is lost, its mail goes over another route, and it comes back with its old queue",
    story=(
        "As in next-hop-new-database, but the disk of mx1.west is whole. When it comes back, mail waits in its queue that mx2.west has "
        "delivered. It asks the servers of east first, and yields."
    ),
    exchange=(
        "The servers with shadow messages take them over and submit them again. The server that is back delivers what is in its queues: "
        "recipients outside may get duplicates (seed-003)."
    ),
    sources=("seed-003",),
    steps=(
        *chained(HUBS, ANOTHER_ROUTE),
        fault(Operation.KILL, "mx1.west is killed", "mx1.west"),
        AFTER_COUNTS,
        RECEIVERS_ACCEPT,
        passes(6, "mx2.west delivers"),
        fault(Operation.START, "mx1.west returns with its old queue", "mx1.west"),
    ),
    expectations=(
        above("another_way", 0, "its mail was relayed to the other next hop"),
        above("reopened", 0, "it came back with the same database"),
        at_most("duplicates", 0, "where Exchange delivers twice, it asked first"),
    ),
)

HOP_NEW_DATABASE_NO_ROUTE = Scenario(
    name="next-hop-new-database-no-route",
    title="A next hop is lost with its queue, and there is no other route",
    story=(
        "The servers of east know no other route than mx1.west. What they relayed stays in their shadow queues, however long it is away. "
        "When it comes back empty they see its new database id, and relay all of it again."
    ),
    exchange=(
        "The messages stay in the shadow queues. When the server is back with a new database id they are submitted to it again, as if "
        "another route had appeared. The delay is that of the outage (seed-003)."
    ),
    sources=("seed-003",),
    steps=(
        *chained('"mx1.west.example:2525"', NO_OTHER_ROUTE),
        fault(Operation.KILL, "mx1.west is killed", "mx1.west"),
        AFTER_COUNTS,
        fault(Operation.LOOK, "what do the shadow queues hold?"),
        RECEIVERS_ACCEPT,
        fault(Operation.WIPE, BURNT, "mx1.west"),
    ),
    expectations=(
        above("waiting", 0, "what was relayed stayed in the shadow queues"),
        above("taken_back", 0, "it was taken back when mx1.west was there again"),
        at_most("another_way", 0, "and went to no other server"),
        above("databases_new", 0, "mx1.west came back with a new database"),
        at_most("duplicates", 0, "and nothing was delivered twice"),
    ),
)

HOP_OLD_QUEUE_NO_ROUTE = Scenario(
    name="next-hop-old-queue-no-route",
    title="A next hop is down for a while, and there is no other route",
    story=(
        "As in next-hop-new-database-no-route, but the disk of mx1.west is whole. When it comes back it delivers what is in its queue, and "
        "reports that to the servers of east."
    ),
    exchange=(
        "The server that is back delivers its queues, and then sends discard notifications to the servers with shadows. The delay is that "
        "of the outage (seed-003)."
    ),
    sources=("seed-003",),
    steps=(
        *chained('"mx1.west.example:2525"', NO_OTHER_ROUTE),
        fault(Operation.KILL, "mx1.west is killed", "mx1.west"),
        AFTER_COUNTS,
        fault(Operation.LOOK, "what do the shadow queues hold?"),
        RECEIVERS_ACCEPT,
        fault(Operation.START, "mx1.west returns with its old queue", "mx1.west"),
    ),
    expectations=(
        above("waiting", 0, "what was relayed stayed in the shadow queues"),
        at_most("taken_back", 0, "nothing of it was taken back"),
        above("reopened", 0, "mx1.west found the same database again"),
        above("resumed", 0, "and delivered what was in its queue"),
        at_most("duplicates", 0, "nothing twice"),
    ),
)


# ---- all of them

SCENARIOS: dict[str, Scenario] = by_name(
    (
        *(NEW_DATABASE, OLD_QUEUE_IN_TIME, OLD_QUEUE_LATE, FROZEN, SHADOW_LOST, TWO_BURNT, EVERYTHING_STOPS),
        *(SITES_APART, PAIR_CUT, NO_SHADOW, SLOW_LINK),
        *(MAINTENANCE, DRAIN, REDIRECT, DISK_FULL, RECEIVERS_DOWN, SAFETY_NET, OLD_DATABASE),
        *(HOP_NEW_DATABASE, HOP_OLD_QUEUE, HOP_NEW_DATABASE_NO_ROUTE, HOP_OLD_QUEUE_NO_ROUTE),
    )
)


def scenario(name: str) -> Scenario:
    """The scenario of this name. Raises: WrongUse, which lists the names."""
    if name not in SCENARIOS:
        raise WrongUse(f"there is no scenario {name}; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
