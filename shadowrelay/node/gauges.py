"""What the metrics of a node read at each scrape, by whom it is kept. docs/operations.md "Watching" explains the names."""

from shadowrelay.admin.metrics import PrometheusMetrics
from shadowrelay.bounded import FILES
from shadowrelay.memory import ContentBudget
from shadowrelay.model.client_minute import Counted
from shadowrelay.model.readiness import NewMail
from shadowrelay.node.connectors import Connectors
from shadowrelay.pipeline.assembly import Services
from shadowrelay.ports import Machine
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.limits import Descriptors
from shadowrelay.smtp.mail_filters import FilterBank
from shadowrelay.smtp.mta_sts import MtaSts
from shadowrelay.smtp.recipient_sources import RecipientSources
from shadowrelay.store.ledger import Ledger
from shadowrelay.tracking.operator_log import LineLogger
from shadowrelay.tracking.writer import FileTrackingLog


def watch_store(metrics: PrometheusMetrics, services: Services, ledger: Ledger, machine: Machine) -> None:
    """The queue database and its disk."""
    identity = ledger.identity
    metrics.database(identity.database, identity.incarnation, "FULL")
    directory, older_copy, commits = services.context.settings.server.data_directory, services.rolled_back, services.commits
    metrics.watch("database_older_copy", "1 while peers are asked about an older copy.", lambda: older_copy.is_asking)
    metrics.watch("database_position", "Raised by every commit.", lambda: ledger.position)
    metrics.watch("cannot_commit_seconds", "Since the last commit, while the node cannot commit and is silent; else 0.", commits.seconds)
    metrics.watch("corrupt_rows", "Rows set aside because they could not be read.", lambda: ledger.corrupt_rows_count)
    metrics.watch("data_directory_free_bytes", "Room in data_directory.", lambda: machine.disk(directory).free)
    metrics.watch("wal_bytes", "Size of the write-ahead log of queue.db.", lambda: ledger.log_bytes)


def watch_services(metrics: PrometheusMetrics, services: Services) -> None:
    """Mail: what happens to it, and what limits it."""
    context = services.context
    metrics.watch("back_pressure", "Of the node: 0 normal, 1 medium, 2 high.", lambda: context.pressure.level)
    metrics.watch("tarpit_seconds", "How much later MAIL is answered now.", lambda: context.pressure.tarpit_seconds)
    metrics.watch(
        "safety_net_complete_since_seconds",
        "Since 1970: what was delivered before was dropped to make room; 0: nothing was.",
        lambda: 0.0 if (since := context.safety_net_complete_since) is None else since.timestamp(),
    )
    metrics.watch_each(
        "resource_pressure",
        "Level in effect of a resource: 0 normal, 1 medium, 2 high.",
        "resource",
        lambda: {one.resource.value: one.level for one in context.pressure.meters.values()},
    )
    metrics.watch_each(
        "resource_use",
        "Use of a resource, in the unit of its thresholds: per cent, messages, transactions or MB.",
        "resource",
        lambda: {one.resource.value: one.reading.use for one in context.pressure.meters.values()},
    )
    metrics.watch("attempts_running", "Messages being delivered or accepted.", lambda: context.flights.busy_count())
    metrics.watch("drain_state", "0: takes mail, 1: drains, 2: drained and inactive, 3: redirects.", lambda: services.drain.state.number)
    metrics.watch("acknowledgements_waiting", "Clients whose 250 waits for a delivery.", lambda: len(context.delayed))
    metrics.watch_each(
        "new_mail",
        "What happens to the next message: 1 for one of copied, unknown, fewer, refused and not copied.",
        "outcome",
        lambda: {one.value: float(one is services.readiness.new_mail().outcome) for one in NewMail},
    )
    metrics.watch("time_seconds", "This node's wall clock, in seconds since 1970.", lambda: context.now().timestamp())


def watch_peers(metrics: PrometheusMetrics, services: Services) -> None:
    """The peers, and what is held for them."""
    context = services.context
    peers = context.peers
    metrics.watch_each("heartbeat_age_seconds", "Since a peer answered a poll or greeted this node.", "server", peers.heartbeat_ages)
    metrics.watch_each("shadow_messages", "Shadow messages held for a primary server.", "primary", services.heartbeat.held)
    metrics.watch("peers_refusing", "Peers that answer but take no copies now.", peers.refusing_count)
    metrics.watch("peers_in_conflict", "Peers refused for their name or database id.", lambda: len(peers.conflicts))
    metrics.watch("peers_refusing_this_node", "Peers for which another server has this node's name.", lambda: len(peers.refusing_us))
    metrics.watch("peers_sharing_fate", "Peers that may be lost together with this node.", lambda: len(peers.fates.own_sharers))
    metrics.watch("peers_differing", "Peers whose settings differ but should not.", peers.differing_count)
    metrics.watch("peers_forgotten", "Peers marked as gone for good.", peers.forgotten_count)
    metrics.watch("sites_without_copies", "Sites that should get copies and get none.", lambda: len(context.site_copies.without()))


def watch_next_hops(metrics: PrometheusMetrics, deliverer: SmtpDeliverer, policies: MtaSts | None) -> None:
    """Sessions to next hops, and what they need besides."""
    sessions = deliverer.counts
    metrics.watch_totals("next_hop_sessions", "Sessions opened with next hops, by what protects them.", "tls", lambda: sessions.opened)
    metrics.watch_totals(
        "next_hop_tls_failures",
        "Sessions with next hops that have no TLS, or are none for that.",
        "why",
        lambda: sessions.tls_failures,
    )
    if policies is not None:
        metrics.watch_totals(
            "mta_sts_policies", "Policies of domains asked for, by whether one came.", "is_got",
            lambda: {str(is_got).lower(): count for is_got, count in policies.counts.items()},
        )  # fmt: skip
        metrics.watch_total(
            "mta_sts_test_failures", "Sessions that a policy in testing would have refused.", lambda: policies.test_failures_count
        )
    metrics.watch_totals("next_hop_logins", "Logins at next hops, by what became of them.", "result", lambda: sessions.logins)
    metrics.watch("next_hop_logins_failing", "Logins that cannot be used now.", lambda: deliverer.failing_logins_count)
    metrics.watch_totals(
        "next_hop_tokens", "Access tokens asked for, by whether one was got.", "is_got",
        lambda: {str(is_got).lower(): count for is_got, count in sessions.tokens.items()},
    )  # fmt: skip


def watch_clients(metrics: PrometheusMetrics, connectors: Connectors, recipients: RecipientSources, filters: FilterBank) -> None:
    """Sessions of clients, and what is asked before their mail is taken."""
    receivers = connectors.receivers
    metrics.watch("sessions", "Open sessions.", lambda: connectors.sessions_count)
    metrics.watch_totals(
        "recipients_checked", "Recipients that were looked up in their sources, by the answer.", "answer", lambda: recipients.counts
    )
    metrics.watch_each("recipient_source_addresses", "Addresses in a list of recipients, or remembered.", "source", recipients.known)
    metrics.watch_each("recipient_source_broken", "1 while its list is old, or it does not answer.", "source", recipients.broken)
    metrics.watch_each(
        "recipient_source_accepts_all", "Domains of which the next hop accepts every address.", "source", recipients.accepting_all
    )
    metrics.watch_each("filter_resting", "1 for a filter that failed and is not asked for a while.", "filter", filters.resting)
    metrics.watch_each("filter_failures", "Messages without its verdict, since the start.", "filter", filters.failures)
    metrics.watch_totals(
        "clients_limited",
        "Refusals for the limits of a client, by what there was too much of.",
        "limit",
        lambda: {what: sum(receiver.reception.clients.refused[what] for receiver in receivers) for what in Counted},
    )
    metrics.watch_total(
        "early_talkers",
        "Clients that talked before the greeting.",
        lambda: sum(receiver.reception.clients.early_count for receiver in receivers),
    )
    metrics.watch(
        "clients_counted",
        "Clients whose minute is counted for limits.",
        lambda: sum(len(receiver.reception.clients.minutes) for receiver in receivers),
    )
    metrics.watch_total(
        "clients_forgotten",
        "Clients forgotten before the end of their minute, because too many came in it.",
        lambda: sum(receiver.reception.clients.minutes.forgotten_count for receiver in receivers),
    )


def watch_process(metrics: PrometheusMetrics, budget: ContentBudget, descriptors: Descriptors) -> None:
    """What the process has of memory, descriptors, and threads for files."""
    metrics.watch("content_memory_bytes", "Contents in memory, of sessions, copies and attempts.", lambda: budget.used)
    metrics.watch("content_memory_waiting", "Sessions and attempts that wait for memory.", lambda: budget.waiting_count)
    metrics.watch_total("contents_spooled_early", "Sent to a file because memory was short.", lambda: budget.spooled_early_count)
    metrics.watch_total("memory_refused", "Contents refused with 452, because memory was short.", lambda: budget.refused_count)
    metrics.watch("descriptors_limit", "How many files and connections this process may have.", lambda: descriptors.limit)
    metrics.watch_total(
        "descriptors_refused", "Sessions (421) and contents (452) refused for lack of descriptors.", lambda: descriptors.refused_count
    )
    metrics.watch(
        "hung_reads", "Reads of files of routes and of the report that hang: those of a file system that does not answer.",
        lambda: len(FILES.hung()),
    )  # fmt: skip


def watch_logs(metrics: PrometheusMetrics, tracking: FileTrackingLog, lines: LineLogger | None) -> None:
    """The tracking log, and the operator log if this process writes it."""
    metrics.watch("tracking_dropped_rows", "Rows that could not be written.", lambda: tracking.dropped_count)
    metrics.watch("tracking_pending_rows", "Rows not written yet.", lambda: tracking.pending_count)
    metrics.watch(
        "tracking_hung_seconds", "Since when the file system of the tracking log has not answered; 0 while it does.",
        lambda: tracking.hung_seconds,
    )  # fmt: skip
    if lines is not None:
        metrics.watch_total("log_dropped_lines", "Lines of the operator log that stderr did not take.", lambda: lines.dropped_count)
        metrics.watch("log_hung_seconds", "Since when nobody has read stderr; 0 while it is read.", lambda: lines.blocked_seconds)
