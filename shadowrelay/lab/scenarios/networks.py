"""Scenarios in which all servers live and the network between them does not. Source: seed-000, exchange-facts 4."""

from shadowrelay.lab.scenarios.script import (
    BEYOND_SPAN_SECONDS,
    EVERYBODY_TAKES,
    HEALED,
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

SITES_APART = Scenario(
    name="sites-apart",
    title="Two sites are cut off from each other for longer than the span",
    story=(
        "Mail waits on all nodes, its copies in the other site. Then nothing passes between east and west. Each side sees the other"
        " as lost; after the span, each takes over the copies it holds, and delivers, and so does the primary, whose leases have "
        "ended: with `delivery_without_lease = deliver` (the default) that is a duplicate of cause (c). New mail is accepted all "
        "the time, with copies in the own site."
    ),
    exchange=(
        'A shadow server that cannot open a session to its primary server for ShadowResubmitTimeSpan (3 hours) "promotes itself '
        'as the primary server" (seed-000), whatever the reason. That the primary server then stops is said nowhere (seed-001 '
        "neither), so recipients outside may see duplicates."
    ),
    sources=("seed-000", "seed-001"),
    steps=(
        NOBODY_TAKES,
        send(80),
        REACHES_ALL_NODES,
        fault(Deed.CUT, "nothing passes between east and west", "east", "west"),
        send(40, "40 more messages are sent while the sites are apart"),
        passes(BEYOND_SPAN_SECONDS, "longer than the resubmit span (20 s) passes"),
        EVERYBODY_TAKES,
        passes(8, "both sides deliver"),
        HEALED,
    ),
    expectations=(
        above("promoted_silence", 0, "each side took over copies of the other"),
        above("copies_in_own_site", 0, "new mail found its second copy in its own site"),
    ),
)

PAIR_CUT = Scenario(
    name="pair-cut",
    title="The network between a primary server and a shadow server fails for less than the span",
    story=(
        "Mail flows. mx1.east and mx1.west do not reach each other for 12 s; both reach everybody else. Copies go to other servers;"
        " nobody is taken over, because the span is longer."
    ),
    exchange=(
        'The shadow server logs event 22004, "The periodic heartbeat to primary server … failed." (exchange-facts 2), and goes '
        "on trying; it promotes only after ShadowResubmitTimeSpan. A copy that cannot be made on one server is tried on others, "
        "up to 4 attempts in remote sites and 2 in the own (seed-000)."
    ),
    sources=("seed-000", "exchange-facts"),
    steps=(
        NOBODY_TAKES,
        pour(150),
        settle(4, "mail flows"),
        fault(Deed.CUT, "nothing passes between mx1.east and mx1.west", "mx1.east", "mx1.west"),
        passes(12, "12 s pass, less than the span"),
        HEALED,
        EVERYBODY_TAKES,
    ),
    expectations=(
        above("heartbeats_failed", 0, "each noticed that the other is silent"),
        at_most("promoted", 0, "nobody took over what was not lost"),
        at_most("duplicates", 0, "and nothing came twice"),
    ),
)

NO_SHADOW = Scenario(
    name="no-shadow-server",
    title="No shadow server can be reached, and messages without a second copy are rejected",
    story=(
        "Every node is cut off from every other one for a while, and mail is sent. `reject_message_on_shadow_failure` is on in this"
        " lab: nobody says 250, Postfix hears 451 and keeps the mail. When the network is whole, it goes through."
    ),
    exchange=(
        'With RejectMessageOnShadowFailure the answer is `451 4.4.0 Message failed to be made redundant`, "but the sending '
        'server can transmit the message again" (seed-000). By default it is off: "the primary message is accepted anyway" '
        "(seed-000), without a second copy."
    ),
    sources=("seed-000", "msp-tc"),
    steps=(
        fault(Deed.CUT, "nothing passes between east and west", "east", "west"),
        fault(Deed.CUT, "nor between the two nodes of east", "mx1.east", "mx2.east"),
        fault(Deed.CUT, "nor between the two nodes of west", "mx1.west", "mx2.west"),
        send(60),
        passes(8, "Postfix tries, and hears 451 from everybody"),
        HEALED,
    ),
    expectations=(
        above("refused_not_redundant", 0, "no 250 without a second copy"),
        above("copies_failed", 0, "the tracking logs say why"),
        at_most("acknowledged_alone", 0, "nothing was acknowledged without a copy"),
    ),
)

SLOW_LINK = Scenario(
    name="slow-link",
    title="The link between the sites is so slow that copies do not get over it in time",
    story=(
        "What the nodes send to the other site passes at 128 kbit/s, and mail of 100 kB is sent. A copy has to be made within "
        "shadow_timeout (5 s): where the other site does not answer in time, the second copy is made in the own site."
    ),
    exchange=(
        'PreferRemote: the copy is tried in remote sites "up to the number of times specified by MaxRetriesForRemoteSiteShadow" '
        "(seed-000; 4), then in the own site, up to MaxRetriesForLocalSiteShadow (2). The client waits meanwhile, for the "
        "time-outs of the SMTP sessions are minutes."
    ),
    sources=("seed-000", "msp-tc"),
    steps=(
        fault(Deed.SLOW, "the link between east and west passes 128 kbit/s", "east", "west"),
        send(40, "40 messages of 100 kB are sent", rate=4, size=100_000),
        passes(5, "copies wait in line"),
        HEALED,
    ),
    expectations=(
        above("copies_in_own_site", 0, "second copies were made in the own site"),
        at_most("acknowledged_alone", 0, "nothing was acknowledged without a copy"),
    ),
)

SCENARIOS = (SITES_APART, PAIR_CUT, NO_SHADOW, SLOW_LINK)
