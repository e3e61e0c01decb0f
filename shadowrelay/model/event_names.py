"""The names of events for programs, webhooks and open pages, which are also those of the operator log. docs/operations.md "Events"."""

CATALOGUE = frozenset(
    {
        *("node.started", "node.draining", "configuration.reloaded", "configuration.refused"),
        *("peer.session_opened", "peer.silent", "peer.lost", "peer.forgotten", "peer.refuses", "peer.accepts_again"),
        *("primary.lost", "messages.promoted", "messages.handed_over", "peer.database_changed", "database.rolled_back"),
        *("message.accepted_without_copy", "message.refused", "message.set_aside", "message.released", "message.removed"),
        *("message.suspended", "message.resumed", "message.resubmitted"),
        *("queue.retry", "queue.active", "queue.suspended", "queue.resumed"),
        *("pressure.increased", "pressure.decreased", "commits.failing", "commits.restored"),
        *("drain.began", "drain.step", "drain.inactive", "drain.ended", "redirect.began", "redirect.ended"),
        *("site.gets_no_copies", "site.gets_copies_again", "shedding.done", "admin.acted"),
    }
)
