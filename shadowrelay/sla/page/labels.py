"""The page's short texts: names of objectives and figures, meanings of causes and events, footnotes. docs/sla.md has the definitions.

A name that has no entry here is shown as it is.
"""

OBJECTIVES = {
    "redundancy_ratio": "Second copy before the 250",
    "shadow_latency": "Second copy made quickly",
    "exposure": "Short time with one copy only",
    "discard_lag": "Copies cleaned up in time",
    "delivery_latency": "Delivered quickly",
    "takeover": "Taken over in time",
    "recipients_lost": "No recipient lost",
    "recipients_duplicated_unexplained": "No unexplained duplicate",
    "shadows_orphaned": "No left-over copies",
}

TIMES = {  # of the nodes' configuration
    "shadow_heartbeat_frequency": "heartbeat",
    "shadow_resubmit_time_span": "span of silence before a takeover",
    "safety_net_hold_time": "Safety Net",
    "message_expiration_timeout": "expiration of messages",
}

UNITS = {  # what is good or bad: one of them, several, and what the bad ones were
    "redundancy_ratio": ("message", "messages", "without one"),
    "shadow_latency": ("message", "messages", "slower"),
    "exposure": ("message", "messages", "longer"),
    "discard_lag": ("copy", "copies", "late"),
    "delivery_latency": ("message", "messages", "slower"),
    "takeover": ("resubmission", "resubmissions", "late"),
}

COUNTED = {  # a number that must not be passed: of what, one and several
    "recipients_lost": ("recipient", "recipients"),
    "recipients_duplicated_unexplained": ("recipient", "recipients"),
    "shadows_orphaned": ("copy", "copies"),
}

LISTS = {  # objective -> the list of what missed it
    "redundancy_ratio": "exposures",
    "exposure": "exposures",
    "recipients_lost": "losses",
    "recipients_duplicated_unexplained": "duplicates",
    "shadows_orphaned": "orphans",
}

INCIDENTS = {  # kind of an incident -> where its details are
    "lost server": "takeovers",
    "cut": "takeovers",
    "slow": "incidents",
    "exposure": "exposures",
    "duplicate": "duplicates",
    "left-over copies": "orphans",
    "unknown": "losses",
}

SLOW = {  # objective -> what missed it
    "shadow_latency": "Slow second copies",
    "discard_lag": "Copies cleaned up late",
    "delivery_latency": "Slow deliveries",
    "takeover": "Late takeovers",
}

FIGURES = {
    **OBJECTIVES,
    "redundancy_ratio": "Redundancy ratio",
    "shadow_latency": "Time to the second copy",
    "exposure": "Exposure",
    "shadow_share": "Share of the second copy in the wait for 250",
    "discard_lag": "Clean-up of copies",
    "delivery_latency": "Time to the delivery",
    "takeover": "Takeovers",
    "takeovers": "Takeovers",
    "recipients_duplicated": "Duplicates",
    "messages_sent_again": "Messages sent again by clients",
    "recipients_duplicated_unexplained": "Unexplained duplicates",
    "recipients_lost": "Losses",
    "shadows_orphaned": "Left-over copies",
}

DEFINITIONS = {  # id of the footnote: (term, meaning)
    "redundancy": (
        "Redundancy ratio",
        "the share of acknowledged messages of which a second server held a synced copy when the client got its 250.",
    ),
    "shadow-latency": (
        "Time to the second copy",
        "(shadow latency) from the end of the content to the answer of the shadow server that its copy is stored.",
    ),
    "delivery-latency": ("Time to the delivery", "from the 250 to the client to the last delivery of the message."),
    "exposure": (
        "Exposure",
        "a time in which an acknowledged message that was not yet done had fewer than two copies: one more lost server would have lost it. "
        "A copy is of one hop: once the message was handed on, the copy of the hop before counts no more.",
    ),
    "discard-lag": (
        "Clean-up of copies",
        "from the end of the last recipient on its hop (delivered, or handed on) to the deletion of the copy that is no longer needed.",
    ),
    "takeover": (
        "Takeover",
        "shadow copies promoted because their primary server was lost; lost since its last sign of life, promoted "
        "when delivery became the new primary's, returned with the first row of the old primary's log after that. "
        "Each promotion that the log tells of is a resubmission; a message can have several.",
    ),
    "duplicate": ("Duplicate", "a recipient to whom one message was delivered more than once: under one id, or sent again by its client."),
    "loss": ("Loss", "a recipient without any end (delivery, failure, notification, expiry) although its time is up."),
    "orphan": ("Left-over copy", "a copy that was neither cleaned up nor promoted although its time is up."),
    "acknowledged": ("Acknowledged", "the client got a 250: from then on the servers are responsible for the message."),
    "reconstructed": ("Reconstructed", "an acknowledged message known from its copy only, because its primary's log is gone."),
    "budget": (
        "Error budget",
        "an objective of 99 % allows one bad event in a hundred; what is left of that. Fewer events than allow one bad one have no budget.",
    ),
    "burn-rate": (
        "Burn rate",
        "how fast the budget was used in the hours or days before now: 1 uses it up just in time, more does not last.",
    ),
    "percentile": ("p50, p95, p99", "half, 95 % and 99 % of the values are not higher (nearest rank, whole milliseconds)."),
    "not-computable": ("Not computable", "the logs do not hold what the figure needs; that is not the same as a figure of zero."),
}  # fmt: skip

CAUSES: dict[str, dict[str, str]] = {  # list -> cause -> in words
    "duplicates": {
        "a": "the server died before it recorded the delivery (cause a)",
        "b": "the disk was destroyed before the shadow server heard of the delivery (cause b)",
        "c": "the server was cut off for longer than the span (cause c)",
        "d": "two servers failed together (cause d)",
        "e": "its client sent it again, as if it had got no reply (cause e)",
        "taken over": "its server was taken over (Exchange does not log why), and delivered it, too",
        "Safety Net": "Exchange sent it again from Safety Net",
        "received again": "it was received again under the same id",
        "not told by Exchange": "Exchange's logs do not tell why",
        "unexplained": "unexplained: please report it as a bug",
    },
    "losses": {
        "set aside": "set aside (waits for a decision of yours)",
        "still queued": "still queued (a server still tried when the time was up)",
        "both copies gone": "both copies gone (each server that had it was lost)",
        "copy not taken over": "copy not taken over (its server was lost; another one, whose log goes on, had a copy and left it)",
        "discarded without delivery": "discarded without delivery (a log is missing, or the copy was cleaned up too early)",
        "discarded, end not logged": "copy discarded, and no log tells how it ended (most likely delivered: collect the rest of the logs)",
        "no trace": "no trace (the logs do not tell why)",
        "not in the next log": "not in the next log (it was handed to a server whose log has nothing about it: collect the rest of that)",
        "no end in the logs": "no end in the logs (they end before its time was up: collect the rest)",
    },
    "orphans": {
        "expired": "expired (the shadow server deleted the copy by itself)",
        "log missing": "log missing (the server that held it was lost, and its log ends before that)",
        "left when the log ends": "left when the log ends (what came later is not in it)",
        "never told": "never told (the shadow server neither heard that the mail was done, nor took it over)",
    },
    "exposures": {
        "no copy at acknowledgement": "no copy when the client got its 250",
        "no copy on a further hop": "no copy on a further hop (the server got it from another one, and made none)",
        "copy only on a shared fate": "the copy was only on a machine, or in a failure domain, that could be lost with the first server",
        "holder lost": "a server that had a copy was lost",
    },
}

REASONS = {
    "Silence": "silent for longer than the span",
    "DatabaseChanged": "came back with a new database",
    "DatabaseRolledBack": "came back with an older database",
    "Handover": "handed its queue over",
}

EVENTS = {
    "RECEIVE": "accepted from the client",
    "HAREDIRECT": "second copy stored on the shadow server",
    "HAREDIRECTFAIL": "no second copy made",
    "HARECEIVE": "shadow copy stored",
    "HADISCARD": "shadow copy cleaned up",
    "SEND": "delivered to the next hop",
    "SENDEXTERNAL": "delivered to the next hop",
    "DELIVER": "delivered",
    "DEFER": "delivery put off",
    "FAIL": "failed for good",
    "DSN": "sender notified",
    "EXPIRE": "given up: too old",
    "RESUBMIT": "taken over: queued for delivery here",
    "LOAD": "read back from disk after a start",
    "POISONMESSAGE": "set aside",
    "TRANSFER": "split by next hop",
    "EXPAND": "group expanded: its members are recipients",
    "RESOLVE": "address resolved to another one",
    "REDIRECT": "goes to another recipient",
    "INITMESSAGECREATED": "waits for a moderator",
    "MODERATORAPPROVE": "approved by a moderator",
    "MODERATORREJECT": "refused by a moderator",
    "MODERATIONEXPIRE": "no moderator decided",
    "DROP": "dropped, without a notice",
    "SUPPRESSED": "not sent, by the server's choice",
    "DUPLICATEDELIVER": "already delivered, not repeated",
}

FORMATS = {
    "exchange2010": "Exchange 2010",
    "exchange2013": "Exchange 2013",
    "exchange2016": "Exchange 2016/2019",
}
