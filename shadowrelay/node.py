"""Assembles and runs a node: ledger, links, receiver, services, admin. `run` serves until a signal. docs/architecture.md."""

import asyncio
import contextlib
import gc
import os
import random
import resource
import signal
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial

import structlog
import uvloop

from shadowrelay import __version__, credentials
from shadowrelay.admin.api import make_application
from shadowrelay.admin.audit import AuditTrail
from shadowrelay.admin.guard import guarded
from shadowrelay.admin.metrics import PrometheusMetrics
from shadowrelay.admin.people import People
from shadowrelay.admin.server import AdminServer
from shadowrelay.admin.token import read_or_create_token
from shadowrelay.bounded import FILES, BoundedCalls, in_thread
from shadowrelay.console.acts import add_acts
from shadowrelay.console.pages import Desk, add_errors, add_login, add_pages
from shadowrelay.console.report_tab import add_report
from shadowrelay.console.streams import add_streams
from shadowrelay.console.webhooks import Webhooks
from shadowrelay.machine import LinuxMachine
from shadowrelay.memory import ContentBudget, FreedMemory
from shadowrelay.model.client_minute import ClientView, Counted
from shadowrelay.model.commit_failure import CommitFailure
from shadowrelay.model.ids import ServerName
from shadowrelay.model.peers import Incarnation, PeerIdentity
from shadowrelay.model.protection import Protection
from shadowrelay.model.queue import InForce
from shadowrelay.model.readiness import NewMail
from shadowrelay.model.replies import ConfigurationError, LedgerUnavailable, Reply
from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import own_hosts
from shadowrelay.model.settings import Peer, ReceiveConnector, Settings, Tls
from shadowrelay.model.values import replace
from shadowrelay.pipeline.assembly import Outside, Services
from shadowrelay.pipeline.context import SystemClock, Tasks
from shadowrelay.pipeline.draining import Doors
from shadowrelay.ports import Machine
from shadowrelay.settings import certificates, configuration
from shadowrelay.settings.configuration import LoadedSettings
from shadowrelay.settings.reload import adopted, followed_tls, reason
from shadowrelay.smtp import client
from shadowrelay.smtp.call_ahead import Asking
from shadowrelay.smtp.client import ConnectOptions, Dial, Opened, TlsUse
from shadowrelay.smtp.client_limits import heaviest
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.host_names import HostNames, Lookups
from shadowrelay.smtp.limits import NOT_ACTIVE, Descriptors
from shadowrelay.smtp.listener import Listener, OpenListener, ReceiverServer
from shadowrelay.smtp.mail_filters import make_bank
from shadowrelay.smtp.mta_sts import MtaSts
from shadowrelay.smtp.own_addresses import OwnAddresses
from shadowrelay.smtp.peer_link import LinkEvents, SmtpPeerLink
from shadowrelay.smtp.reception import reception_for
from shadowrelay.smtp.recipient_sources import RecipientSources
from shadowrelay.smtp.resolver import DnsResolver
from shadowrelay.smtp.tls import TlsContexts, opportunistic_context
from shadowrelay.store import promises, queues
from shadowrelay.store.ledger import Ledger
from shadowrelay.tracking import operator_log
from shadowrelay.tracking.event_tap import TAP
from shadowrelay.tracking.operator_log import LineLogger
from shadowrelay.tracking.shipper import make_tracking
from shadowrelay.trust import chain_of, names_in

RENAME_AGAIN_SECONDS = 1.0
REJOIN_SECONDS = 1.0
GRACE_SECONDS = 30.0  # SIGTERM: for sessions and attempts in progress
OLDER_COPY_GRACE_SECONDS = 5.0  # for attempts from an older copy of the database: the node is closed until they end, and some hang
TOLD_POLLS = 5  # SIGTERM: for peers to receive notifications, and acknowledge them in their next poll
TOLD_SECONDS_MIN, TOLD_SECONDS_MAX = 3.0, 10.0
ADMIN_OBSERVES_SECONDS = 5.0
START_SECONDS = 30.0  # a start that takes longer says what it waits for; then files of the configuration and of [tls] count as hanging
GIVEN_UP_SECONDS = 3.0  # SIGTERM within the start: it may be about to end
RECIPIENTS_SECONDS = 5.0  # at the start: for lists of recipients; without them clients get 450
RELOAD_SECONDS = 5.0  # SIGHUP: for the files of the configuration and of [tls], which may be on a file system of the network
CLOSE_SECONDS = 30.0  # for each part, at the end
EXIT_SECONDS = 5.0  # for threads, when all parts are closed
LOG_BLOCKED_SECONDS = 5.0  # a reader of stderr that is slower than that hangs
CANNOT_START = 1  # exit status
DESCRIPTORS_MAX = 1_048_576  # a larger table only wastes memory
GARBAGE_THRESHOLDS = (20_000, 20, 50)  # allocations until a collection of the young generation, and so on; docs/performance.md
CONTROL_SECONDS_MIN, CONTROL_SECONDS_MAX = 1.0, 10.0  # timeout of one question to a peer

_log = structlog.get_logger()


class Node:
    """One node, from an open ledger to a closed one. `start`, then `stop`; everything is owned by this object."""

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        clock: SystemClock | None = None,
        dial: Dial | None = None,
        open_listener: OpenListener = Listener.open,
        machine: Machine | None = None,
        log_lines: LineLogger | None = None,
    ) -> None:
        """The keywords are for a simulation with its own clocks, network and machines."""
        self.loaded = loaded
        self._settings = loaded.settings
        self._clock = SystemClock() if clock is None else clock
        self._in_force = self._read_now()
        self._open_listener = open_listener
        self._machine: Machine = LinuxMachine() if machine is None else machine
        self._log_lines = log_lines
        self._reading = BoundedCalls("reload")
        self._following = asyncio.Lock()
        self._tasks = Tasks()
        self._descriptors = Descriptors(descriptor_limit())
        self._budget = ContentBudget(self._settings.server.content_memory_limit)
        self._tls = None
        if self._settings.tls is not None:
            try:
                self._tls = self._reading.call(lambda: self._read_tls(self._settings.tls), START_SECONDS)
            except TimeoutError as error:
                raise ConfigurationError(f"tls: one of its files hangs ({error}); name files on a disk that answers") from error
        self._lookups = Lookups(loaded.settings.dns.nameservers)
        self._receivers: list[ReceiverServer] = []
        asking = Asking(
            lambda destination, question, seconds: self._deliverer.questions.ask(destination, question, seconds),
            lambda address: self._services.deliver.forks.destination_of(address),
        )
        self._recipients = RecipientSources(loaded.settings, asking)
        self._own_addresses = OwnAddresses(lambda: [address for receiver in self._receivers for address in receiver.addresses])
        to_next_hop = partial(client.dial, refuses=self._descriptors.refuses_next_hop, is_own=self._own_addresses.__contains__)
        hosts = HostNames(self._lookups, connect=to_next_hop)
        self._peer_names = HostNames(self._lookups)
        self._dial, self._dial_peer = dial or hosts.dial, dial or self._peer_names.dial_peer
        self._host_names = None if dial is not None else hosts
        self._mta_sts: MtaSts | None = None
        self._links: dict[ServerName, SmtpPeerLink] = {}
        self._opened = contextlib.AsyncExitStack()  # how to close what is open
        self.is_started = self._is_to_stop = self._is_reload_wanted = self._are_descriptors_scarce = False
        self.step = ""  # of the start: what it is at

    async def start(self) -> None:
        """Open everything, in the order in which a failure does least harm: files, then sockets, then services. If the peers report
        that the queue database is an older copy, nothing is delivered: `close` this node, and start another one.

        Raises: ConfigurationError for problems that an operator can fix.
        """
        settings = self._settings
        self.step = "the files of the tokens"
        token, read_only_token = await in_thread("tokens", self._tokens)
        await self._open_files()
        self.step = "the services"
        for note in self._ledger.notes:
            _log.warning("database.note", text=note)
        self._build_services()
        self._context.peers.load(self._ledger.peers.listed())
        await self._services.pressure.look()  # before the first client
        close_with(self._opened, self._recipients.close)
        self._tasks.keep(self._recipients.run, "recipients")
        if settings.recipient_sources:
            await self._recipients.first_look(RECIPIENTS_SECONDS)
        names = (settings.server.name, *(listen.host for listen in self._admin_addresses().values()), *settings.admin.allowed_hosts)
        people = People(token, read_only_token, settings.admin.users)
        trail = AuditTrail(self._clock.now)
        self._application = application = make_application(
            self._services.view, self._metrics, people, __version__, trail=trail, names=names
        )
        self._desk = desk = Desk(settings, people, application, token, self._clock.now)
        add_errors(application, desk)
        add_login(application, desk)
        add_pages(application, desk)
        add_acts(application, desk)
        add_report(application, desk)
        add_streams(application, desk, TAP, guarded(people, trail))
        self._admin = {key: self._admin_server(key, listen) for key, listen in self._admin_addresses().items()}
        for server in self._admin.values():
            close_with(self._opened, server.stop)  # after the receivers, which are opened before it
        self.step = "the listeners"
        await self._start_receiver()
        for server in self._admin.values():
            await server.start()
        self.step = "the first words with the peers"
        await self._services.rolled_back.introduce()
        if self.is_rolled_back:
            return
        self._start_services()
        await self._join_shared()
        self._services.view.is_running = self.is_started = True
        _log.info("node.started", server=settings.server.name, database=self._ledger.identity.database, version=__version__)
        if self._is_reload_wanted:
            await self._followed_reload()

    @property
    def is_rolled_back(self) -> bool:
        """Its queue database is an older copy, and gets a new id when the node ends."""
        return self._services.rolled_back.found.is_set()

    async def rolled_back(self) -> None:
        """Wait until `is_rolled_back`."""
        await self._services.rolled_back.found.wait()

    async def _rename_older_copy(self) -> None:
        """Try until it is done, or the process is to stop. Peers recognise an older copy by its opening; if the process started again
        with the old id, a later opening would look to them like one of the present database."""
        said = ""
        while self.is_rolled_back:
            try:
                await self._ledger.commit(promises.database_renamed)
                return
            except LedgerUnavailable as error:
                if error.reason != said:
                    _log.error("database.not_renamed", reason=error.reason)
                said = error.reason
            if self._is_to_stop:
                return
            await asyncio.sleep(RENAME_AGAIN_SECONDS)

    async def _open_files(self) -> None:
        """Open the tracking log before the ledger, so that a wrong target leaves the queue untouched. It is also closed first."""
        settings = self._settings
        self.step = f"the tracking log, {settings.tracking.directory}"
        async with contextlib.AsyncExitStack() as tracking:
            self._tracking, self._shipper = make_tracking(settings, self._clock.now, __version__)
            if self._shipper is not None:
                close_with(tracking, self._shipper.close)
            close_with(tracking, self._tracking.close)
            self.step = f"the queue database, {settings.server.data_directory}"
            self._ledger = await Ledger.open(
                settings.server.data_directory,
                server=settings.server.name,
                now=self._clock.now,
                safety_net_hold_time=settings.transport.safety_net_hold_time,
                message_expiration_timeout=settings.transport.message_expiration_timeout,
            )
            close_with(self._opened, self._ledger.close)
            await self._opened.enter_async_context(tracking.pop_all())

    def _build_services(self) -> None:
        settings = self._settings
        self._budget.limit_cache = self._ledger.limit_recent
        self._ledger.limit_recent(self._budget.bytes_max // 4)
        close_with(self._opened, self._lookups.close)
        self._deliverer = self._make_deliverer()
        close_with(self._opened, self._deliverer.close)
        outside = Outside(
            clock=self._clock,
            ledger=self._ledger,
            link_to=self._link_to,
            deliverer=self._deliverer,
            tracking=self._tracking,
            chance=random.Random(),
            tasks=self._tasks,
            budget=self._budget,
            machine=self._machine,
        )
        self._services = Services(settings, outside, lambda: self._in_force)
        self._context = self._services.context
        self._context.route_digests = route_digests(settings)
        self._metrics = PrometheusMetrics(__version__, settings.server.name, self._context.counts, now=self._clock.now)
        close_with(self._opened, self._rename_older_copy)
        close_with(self._opened, self._tasks.close)

    def _make_deliverer(self) -> SmtpDeliverer:
        settings = self._settings
        options = ConnectOptions(settings.server.name, TlsUse.OPPORTUNISTIC, opportunistic_context(), dial=self._dial)
        resolver = DnsResolver((settings.server.name,), lookups=self._lookups)
        if settings.send.mta_sts:
            self._mta_sts = MtaSts(resolver.texts, resolver.addresses, settings.server.data_directory)
        return SmtpDeliverer(
            options,
            resolver,
            concurrency_per_destination=settings.send.concurrency_per_destination,
            connection_inactivity_timeout=settings.send.connection_inactivity_timeout,
            sends_8bit=settings.send.eight_bit_without_8bitmime,
            sends_chunks=settings.send.chunking_enabled,
            is_own=self._own_addresses.__contains__,
            unused_session_timeout=settings.send.unused_session_timeout,
            to_peer=self._delivery_session_to,
            names=self._host_names,
            state_directory=settings.server.data_directory,
            policies=self._mta_sts,
            source=settings.send.source_ip_address,
            sessions_max=min(settings.send.max_outbound_connections, max(self._descriptors.limit // 2, 1)),
        )

    async def _delivery_session_to(self, address: HostPort) -> Opened | None:
        for link in self._links.values():
            if (link.address.host.lower(), link.address.port) == (address.host, address.port):
                return await link.for_delivery()
        return None

    def _link_to(self, peer: Peer, services: Services) -> SmtpPeerLink:
        context, peer_requests = services.context, services.peer_requests

        def identified(identity: PeerIdentity) -> None:
            self._tasks.spawn(peer_requests.greeted(identity), f"greeted {identity.server}")

        events = LinkEvents(
            own_identity=lambda: peer_requests.own_identity(peer.name),
            conflict=lambda identity: context.peers.conflict(context.me, identity) or services.rolled_back.check(identity),
            second=lambda identity, began_at: peer_requests.second_server(identity, str(peer.address), began_at, is_dialed=True),
            on_identity=identified,
            on_address=self._note_address_of_peer,
            on_heard=context.peers.heard,
            on_position=context.ledger.peers.note_told,
            on_offer=context.peers.offered,
            on_features=context.peers.note_features,
            on_forks=context.ledger.peers.note_forks_offered,
            on_open=services.heartbeat.opened,
            why_silent=context.why_silent,
        )
        seconds = min(max(context.heartbeat, CONTROL_SECONDS_MIN), CONTROL_SECONDS_MAX)
        idle_seconds = self._settings.send.peer_connection_inactivity_timeout.total_seconds()
        link = SmtpPeerLink(
            peer.name, peer.address, self._connect_options_to(peer), self._clock, events,
            boundary=peer.boundary, idle_seconds=idle_seconds, control_seconds=seconds,
        )  # fmt: skip
        self._links[peer.name] = link
        close_with(self._opened, link.close)
        return link

    def _note_address_of_peer(self, address: str) -> None:
        """A peer configured by its DNS name is recognised where it was met, also if strangers have all sessions after a start."""
        for receiver in self._receivers:
            if receiver.reception.connector.accept_xshadow:
                receiver.reception.peer_addresses.add(address)

    def _connect_options_to(self, peer: Peer) -> ConnectOptions:
        other_address = self._peer_names.gave_no_session
        if self._tls is None or not self._settings.peer_requires_tls(peer):
            return ConnectOptions(self._settings.server.name, dial=self._dial_peer, not_opened=other_address)
        return ConnectOptions(
            self._settings.server.name,
            TlsUse.REQUIRED,
            self._tls.to_peers,
            trust=self._tls.trust,
            dial=self._dial_peer,
            not_opened=other_address,
        )

    def _admin_addresses(self) -> dict[str, HostPort]:
        """By the key that names them."""
        admin = self._settings.admin
        return {"listen": admin.listen} | ({} if admin.tls_listen is None else {"tls_listen": admin.tls_listen})

    def _admin_server(self, key: str, listen: HostPort) -> AdminServer:
        if key == "listen":
            return AdminServer(self._application, listen)
        return AdminServer(self._application, listen, self._admin_tls, self._peers_in)

    async def _start_receiver(self) -> None:
        settings = self._settings
        self._filters = make_bank(settings.filters, asyncio.get_running_loop().time)
        close_with(self._opened, self._filters.close)
        for connector in settings.receive_connectors:
            await self._open_receiver(connector)
        self._services.membership.on_moved, self._services.membership.on_left = self._peer_moved, self._peer_left
        self._services.drain.doors = Doors(self._refuse_mail, self._take_mail, self._waited_for_count)
        self._context.peers.on_other_process.append(self._end_others)
        self._services.commits.on_silent.append(self._fall_silent)
        self._services.commits.on_restored.append(self._speak_again)

    async def _open_receiver(self, connector: ReceiveConnector) -> None:
        """Raises: ConfigurationError if its address cannot be bound."""
        settings = self._settings
        reception = reception_for(
            settings,
            connector,
            acceptor=self._services.accept,
            peer_requests=self._services.peer_requests,
            clock=self._clock,
            spool_directory=self._ledger.spool_directory,
            budget=self._budget,
            descriptors=self._descriptors,
            tls=self._tls,
            filters=self._filters,
            recipients=self._recipients.check_for(connector),
        )
        receiver = ReceiverServer(reception, self._open_listener)
        if self._context.is_draining:
            receiver.reception.closed_with = NOT_ACTIVE
        if self.is_started or not connector.reuse_port:  # a shared port has other nodes until this one has started
            await self._listen(receiver)
        self._receivers.append(receiver)
        close_with(self._opened, receiver.close)

    async def _listen(self, receiver: ReceiverServer) -> None:
        connector = receiver.reception.connector
        try:
            await receiver.join()
        except OSError as error:
            raise ConfigurationError(
                f"receive_connectors {connector.name}: cannot listen on {connector.listen} ({os.strerror(error.errno or 0)}); "
                f"choose another address or port, or stop what has it"
            ) from error
        if receiver.is_listening:
            _log.info("connector.listening", connector=connector.name, address=str(receiver.address))

    async def _join_shared(self) -> None:
        """Listen on the ports that are shared with other nodes, unless no mail is taken."""
        for receiver in self._receivers:
            if not receiver.is_listening and receiver.reception.closed_with is None:
                await self._listen(receiver)

    async def _rejoin_shared(self) -> None:
        """As `_join_shared`, until it succeeds."""
        while not self._context.is_stopping:
            try:
                return await self._join_shared()
            except ConfigurationError as error:
                _log.error("connector.not_listening", reason=str(error))
            await asyncio.sleep(REJOIN_SECONDS)

    async def _leave_shared(self) -> None:
        """Mail is going to be refused: first new clients go to the other nodes."""
        await asyncio.gather(*(receiver.leave() for receiver in self._receivers))

    def _fall_silent(self, failure: CommitFailure) -> None:
        reply = Reply(421, failure.reply.enhanced, f"{failure.reply.text}, closing connection")
        self._tasks.spawn(self._leave_shared(), "leave shared ports")
        for receiver in self._receivers:
            receiver.fall_silent(reply)
        for link in self._links.values():
            link.fall_silent()

    def _end_others(self, server: ServerName, incarnation: Incarnation) -> None:
        """If the former process of the peer lives after all, it has to say who it is."""
        for receiver in self._receivers:
            receiver.end_others(server, incarnation)
        self._links[server].end_others(incarnation)

    def _speak_again(self) -> None:
        if not self._context.is_stopping:
            for receiver in self._receivers:
                receiver.reception.closed_with = NOT_ACTIVE if self._context.is_draining else None
            self._tasks.spawn(self._rejoin_shared(), "join shared ports")

    async def _refuse_mail(self, seconds: float) -> None:
        await self._leave_shared()
        self._context.delayed.release(is_stopping=True)
        await asyncio.gather(*(receiver.refuse_mail(seconds) for receiver in self._receivers))

    def _take_mail(self) -> None:
        self._context.delayed.release(is_stopping=False)
        for receiver in self._receivers:
            receiver.take_mail()
        self._tasks.spawn(self._rejoin_shared(), "join shared ports")

    def _waited_for_count(self) -> int:
        return sum(receiver.waited_for_count for receiver in self._receivers)

    def _start_services(self) -> None:
        self._tasks.keep(self._clock.run, "clock")
        self._tasks.keep(self._observe, "observe")
        if self._shipper is not None:
            self._shipper.start()
            self._shipper.watch(self._metrics)
        self._watch_states()
        self._services.view.hanging = lambda: [*self._hanging(), *self._ending_certificates(), *self._recipients.problems()]
        self._services.view.list_clients = self._clients
        self._services.start()
        self._tasks.keep(self._services.view.run, "velocity")
        if self._settings.webhooks:
            hooks = Webhooks(self._settings.webhooks, TAP, self._settings.server.name)
            self._tasks.keep(hooks.run, "webhooks")

    def _watch_states(self) -> None:
        identity, metrics = self._ledger.identity, self._metrics
        metrics.database(identity.database, identity.incarnation, "FULL")
        older_copy = self._services.rolled_back
        metrics.watch_each(
            "heartbeat_age_seconds", "Since a peer answered a poll or greeted this node.", "server", self._context.peers.heartbeat_ages
        )
        metrics.watch("database_older_copy", "1 while peers are asked about an older copy.", lambda: older_copy.is_asking)
        metrics.watch("database_position", "Raised by every commit.", lambda: self._ledger.position)
        metrics.watch(
            "cannot_commit_seconds",
            "Since the last commit, while the node cannot commit and is silent; else 0.",
            self._services.commits.seconds,
        )
        metrics.watch("corrupt_rows", "Rows set aside because they could not be read.", lambda: self._ledger.corrupt_rows_count)
        directory, context = self._settings.server.data_directory, self._context
        metrics.watch("data_directory_free_bytes", "Room in data_directory.", lambda: self._machine.disk(directory).free)
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
        metrics.watch_each("shadow_messages", "Shadow messages held for a primary server.", "primary", self._services.heartbeat.held)
        metrics.watch("wal_bytes", "Size of the write-ahead log of queue.db.", lambda: self._ledger.log_bytes)
        sessions = self._deliverer.counts
        metrics.watch_totals("next_hop_sessions", "Sessions opened with next hops, by what protects them.", "tls", lambda: sessions.opened)
        metrics.watch_totals(
            "next_hop_tls_failures",
            "Sessions with next hops that have no TLS, or are none for that.",
            "why",
            lambda: sessions.tls_failures,
        )
        metrics.watch_each("filter_resting", "1 for a filter that failed and is not asked for a while.", "filter", self._filters.resting)
        metrics.watch_each("filter_failures", "Messages without its verdict, since the start.", "filter", self._filters.failures)
        if (policies := self._mta_sts) is not None:
            metrics.watch_totals(
                "mta_sts_policies", "Policies of domains asked for, by whether one came.", "is_got",
                lambda: {str(is_got).lower(): count for is_got, count in policies.counts.items()},
            )  # fmt: skip
            metrics.watch_total(
                "mta_sts_test_failures", "Sessions that a policy in testing would have refused.", lambda: policies.test_failures_count
            )
        metrics.watch_totals("next_hop_logins", "Logins at next hops, by what became of them.", "result", lambda: sessions.logins)
        metrics.watch(
            "hung_reads", "Reads of files of routes and of the report that hang: those of a file system that does not answer.",
            lambda: len(FILES.hung()),
        )  # fmt: skip
        metrics.watch("next_hop_logins_failing", "Logins that cannot be used now.", lambda: self._deliverer.failing_logins_count)
        metrics.watch_totals(
            "next_hop_tokens", "Access tokens asked for, by whether one was got.", "is_got",
            lambda: {str(is_got).lower(): count for is_got, count in sessions.tokens.items()},
        )  # fmt: skip
        metrics.watch("sessions", "Open sessions.", lambda: sum(receiver.sessions_count for receiver in self._receivers))
        recipients = self._recipients
        metrics.watch_totals(
            "recipients_checked", "Recipients that were looked up in their sources, by the answer.", "answer", lambda: recipients.counts
        )
        metrics.watch_each("recipient_source_addresses", "Addresses in a list of recipients, or remembered.", "source", recipients.known)
        metrics.watch_each("recipient_source_broken", "1 while its list is old, or it does not answer.", "source", recipients.broken)
        metrics.watch_each(
            "recipient_source_accepts_all", "Domains of which the next hop accepts every address.", "source", recipients.accepting_all
        )
        metrics.watch_totals(
            "clients_limited",
            "Refusals for the limits of a client, by what there was too much of.",
            "limit",
            lambda: {what: sum(receiver.reception.clients.refused[what] for receiver in self._receivers) for what in Counted},
        )
        metrics.watch_total(
            "early_talkers",
            "Clients that talked before the greeting.",
            lambda: sum(receiver.reception.clients.early_count for receiver in self._receivers),
        )
        metrics.watch(
            "clients_counted",
            "Clients whose minute is counted for limits.",
            lambda: sum(len(receiver.reception.clients.minutes) for receiver in self._receivers),
        )
        metrics.watch_total(
            "clients_forgotten",
            "Clients forgotten before the end of their minute, because too many came in it.",
            lambda: sum(receiver.reception.clients.minutes.forgotten_count for receiver in self._receivers),
        )
        metrics.watch("content_memory_bytes", "Contents in memory, of sessions, copies and attempts.", lambda: self._budget.used)
        metrics.watch("content_memory_waiting", "Sessions and attempts that wait for memory.", lambda: self._budget.waiting_count)
        metrics.watch_total("contents_spooled_early", "Sent to a file because memory was short.", lambda: self._budget.spooled_early_count)
        metrics.watch_total("memory_refused", "Contents refused with 452, because memory was short.", lambda: self._budget.refused_count)
        metrics.watch("descriptors_limit", "How many files and connections this process may have.", lambda: self._descriptors.limit)
        metrics.watch_total(
            "descriptors_refused",
            "Sessions (421) and contents (452) refused for lack of descriptors.",
            lambda: self._descriptors.refused_count,
        )
        metrics.watch("attempts_running", "Messages being delivered or accepted.", lambda: self._context.flights.busy_count())
        metrics.watch(
            "drain_state", "0: takes mail, 1: drains, 2: drained and inactive, 3: redirects.", lambda: self._services.drain.state.number
        )
        metrics.watch("acknowledgements_waiting", "Clients whose 250 waits for a delivery.", lambda: len(self._context.delayed))
        metrics.watch_each(
            "new_mail",
            "What happens to the next message: 1 for one of copied, unknown, fewer, refused and not copied.",
            "outcome",
            lambda: {one.value: float(one is self._services.view.new_mail().outcome) for one in NewMail},
        )
        metrics.watch("peers_refusing", "Peers that answer but take no copies now.", self._context.peers.refusing_count)
        metrics.watch("tracking_dropped_rows", "Rows that could not be written.", lambda: self._tracking.dropped_count)
        metrics.watch("tracking_pending_rows", "Rows not written yet.", lambda: self._tracking.pending_count)
        metrics.watch(
            "tracking_hung_seconds", "Since when the file system of the tracking log has not answered; 0 while it does.",
            lambda: self._tracking.hung_seconds,
        )  # fmt: skip
        if self._log_lines is not None:
            self._watch_log(self._log_lines)
        metrics.watch("peers_in_conflict", "Peers refused for their name or database id.", lambda: len(self._context.peers.conflicts))
        metrics.watch(
            "peers_refusing_this_node", "Peers for which another server has this node's name.", lambda: len(context.peers.refusing_us)
        )
        metrics.watch("peers_sharing_fate", "Peers that may be lost together with this node.", lambda: len(context.peers.fates.own_sharers))
        metrics.watch("peers_differing", "Peers whose settings differ but should not.", context.peers.differing_count)
        metrics.watch("sites_without_copies", "Sites that should get copies and get none.", lambda: len(context.site_copies.without()))
        metrics.watch("peers_forgotten", "Peers marked as gone for good.", context.peers.forgotten_count)
        metrics.watch("time_seconds", "This node's wall clock, in seconds since 1970.", lambda: self._clock.now().timestamp())
        metrics.certificates({} if self._tls is None else self._tls.ends)

    def _hanging(self) -> Iterator[str]:
        """What hangs without stopping mail, or only that of one route."""
        for files, seconds in FILES.hung().items():
            yield (
                f"{' or '.join(map(str, files))} hangs: it has not answered for {seconds:.0f} s; what needs it waits, mail of such routes "
                "too, and all else goes on"
            )
        if seconds := self._tracking.hung_seconds:
            yield (
                f"the tracking log hangs: {self._tracking.directory} has not answered for {seconds:.0f} s; mail goes on, "
                f"{self._tracking.pending_count} rows wait in memory, {self._tracking.dropped_count} were dropped"
            )
        lines = self._log_lines
        if lines is not None and (seconds := lines.blocked_seconds) >= LOG_BLOCKED_SECONDS:
            yield f"the operator log hangs: nobody has read standard error for {seconds:.0f} s; {lines.dropped_count} lines were dropped"

    async def _clients(self, limit: int) -> list[ClientView]:
        found = await asyncio.gather(*(receiver.clients(limit) for receiver in self._receivers))
        return heaviest([client for clients in found for client in clients], limit)

    def _ending_certificates(self) -> Iterator[str]:
        """A node whose certificate has ended goes on over its open sessions, until the first of them is lost."""
        for key, end in ({} if self._tls is None else self._tls.ends).items():
            left = end - self._clock.now()
            if left < timedelta(0):
                yield f"tls.{key} expired at {end:%Y-%m-%d %H:%M} UTC: peers refuse new sessions; renew it (init --renew), then SIGHUP"
            elif left < certificates.CERTIFICATE_LEFT_MIN:
                yield f"tls.{key} ends at {end:%Y-%m-%d %H:%M} UTC, in {left.days} days: renew it (init --renew), then SIGHUP"

    def _watch_log(self, lines: LineLogger) -> None:
        metrics = self._metrics
        metrics.watch_total("log_dropped_lines", "Lines of the operator log that stderr did not take.", lambda: lines.dropped_count)
        metrics.watch("log_hung_seconds", "Since when nobody has read stderr; 0 while it is read.", lambda: lines.blocked_seconds)

    async def _observe(self) -> None:
        freed = FreedMemory()
        refused = self._descriptors.refused_count
        while True:
            freed.look()
            refused = self._look_at_descriptors(refused)
            self._tracking.rotate_if_due()
            if (spare_bytes := self._services.pressure.spare_bytes()) is not None:
                await self._ledger.keep_reserve(spare_bytes)
            with contextlib.suppress(LedgerUnavailable):
                self._metrics.observe_queues(await self._ledger.read(queues.queues), await self._services.view.untold())
            await asyncio.sleep(ADMIN_OBSERVES_SECONDS)

    def _look_at_descriptors(self, refused_before: int) -> int:
        """Log once when sessions begin to be refused, and once when descriptors suffice again. Returns the refusals so far."""
        descriptors = self._descriptors
        descriptors.adopt(descriptor_limit())
        are_scarce = descriptors.refused_count > refused_before
        if are_scarce != self._are_descriptors_scarce:
            self._are_descriptors_scarce = are_scarce
            if are_scarce:
                _log.warning("descriptors.scarce", limit=descriptors.limit, reserve=descriptors.reserve)
            else:
                _log.warning("descriptors.enough", refused=descriptors.refused_count)
        return descriptors.refused_count

    def _read_again(self) -> tuple[LoadedSettings, TlsContexts | None, Mapping[str, str]]:
        loaded = configuration.load(self.loaded.path)
        return loaded, self._read_tls(followed_tls(self._settings.tls, loaded.settings.tls)), route_digests(loaded.settings)

    def _read_tls(self, tls: Tls | None) -> TlsContexts | None:
        return None if tls is None else TlsContexts.read(tls)

    def _admin_tls(self) -> ssl.SSLContext:
        assert self._tls is not None, "admin.tls_listen needs [tls]"
        return self._tls.administration if self._settings.admin.tls_client_certificate_required else self._tls.asking

    def _peers_in(self, session: ssl.SSLObject) -> frozenset[str] | None:
        """The nodes whose certificate the client of this connection has; None if that was revoked."""
        assert self._tls is not None
        if reason := self._tls.trust.refusal(chain_of(session)):
            _log.warning("admin.certificate_refused", reason=reason, names=sorted(names_in(session.getpeercert())))
            return None
        return names_in(session.getpeercert()) & {self._settings.server.name, *(peer.name for peer in self._settings.peers)}

    def _tokens(self) -> tuple[str, str]:
        admin = self._settings.admin
        file = admin.read_only_token_file
        return read_or_create_token(admin.token_file), "" if file is None else read_or_create_token(file, "admin.read_only_token_file")

    def _read_now(self, needs_restart: Sequence[str] = ()) -> InForce:
        loaded = self.loaded
        settings = dict(configuration.effective(loaded))
        return InForce(settings, str(loaded.path.absolute()), loaded.digest, self._clock.now(), tuple(needs_restart))

    def reload(self) -> None:
        """SIGHUP: apply the settings that can change while running, and read the files named in [tls] again; log the others
        (`settings.reload`). A wrong file changes nothing. During a start it is postponed until the node has started."""
        if not self.is_started:
            self._is_reload_wanted = True
        elif not self._context.is_stopping:
            self._tasks.spawn(self._followed_reload(), "reload")

    async def _followed_reload(self) -> None:
        """One after the other. First what needs no waiting, then who is a peer, and where this node listens; what cannot be opened is
        logged, and stays as it is."""
        async with self._following:
            if (needs_restart := self._reload()) is None:
                return
            await self._follow_peers()
            await self._follow_connectors()
            await self._follow_admin()
            why = {name: reason(name) for name in needs_restart}
            _log.info("configuration.reloaded", needs_restart=needs_restart, **({"why": why} if why else {}))

    def _reload(self) -> list[str] | None:
        """The names of what waits for a restart; None: nothing was changed."""
        try:
            loaded, self._tls, self._context.route_digests = self._reading.call(self._read_again, RELOAD_SECONDS)
        except (ConfigurationError, TimeoutError) as error:
            self._in_force = replace(self._in_force, refused_at=self._clock.now(), refusal=str(error))
            _log.error("configuration.refused", error=str(error))
            return None
        settings, needs_restart = adopted(self._settings, loaded.settings)
        self.loaded = replace(loaded, settings=settings)
        self._in_force = self._read_now(needs_restart)  # what the API shows
        self._settings = self._context.settings = settings
        self._context.leases.configure(settings.transport)
        self._context.peers.compare(settings, self._context.route_digests)
        self._services.adopt_fates(settings.transport)
        self._deliverer.reload()
        self._services.deliver.reload()
        self._recipients.adopt(settings)
        self._lookups.adopt(settings.dns.nameservers)
        limits = settings.tracking
        self._tracking.limit(
            limits.max_file_size, limits.max_directory_size, limits.max_age, has_subjects=limits.message_subject_logging_enabled
        )
        found = {connector.name: connector for connector in settings.receive_connectors}
        for receiver in self._receivers:
            running = receiver.reception.connector
            if (connector := found.get(running.name)) is not None:
                same_place = connector.model_copy(update={"listen": running.listen, "reuse_port": running.reuse_port})
                receiver.reload(same_place, settings.routes, self._tls, self._recipients.check_for(connector))
        for peer in settings.linked_peers:
            if peer.name in self._links:
                self._links[peer.name].renew(self._connect_options_to(peer))
        self._metrics.certificates({} if self._tls is None else self._tls.ends)
        return needs_restart

    async def _follow_peers(self) -> None:
        while True:
            try:
                await self._services.membership.adopt(self._settings)
                break
            except LedgerUnavailable as error:
                _log.warning("work.put_off", work="peers", reason=error.reason)
            await asyncio.sleep(REJOIN_SECONDS)
        self._show_peers()
        self._desk.adopt(self._settings)

    def _show_peers(self) -> None:
        """To the receivers: those of the configuration, and those that leave, which fetch what they are owed."""
        states = self._context.peers.states
        leaving = {name: states[name].peer for name in states if self._context.peers.is_leaving(name)}
        peers = {peer.name: peer for peer in self._settings.peers} | leaving
        linked = frozenset([peer.name for peer in self._settings.linked_peers]) | leaving.keys()
        for receiver in self._receivers:
            receiver.adopt_peers(peers, linked)

    def _peer_moved(self, peer: Peer) -> None:
        self._links[peer.name].move(peer.address)

    def _peer_left(self, server: ServerName) -> None:
        self._show_peers()
        self._tasks.spawn(self._links.pop(server).close(), f"close {server}")

    async def _follow_connectors(self) -> None:
        settings = self._settings
        wanted = {connector.name: connector for connector in settings.receive_connectors}
        running = {receiver.reception.connector.name: receiver for receiver in self._receivers}
        for name, receiver in running.items():
            if name not in wanted:
                self._receivers.remove(receiver)
                await receiver.shut()  # another one may have its address
                self._tasks.spawn(receiver.retire(GRACE_SECONDS), f"retire {name}")
                _log.info("connector.closed", connector=name)
        for name, connector in wanted.items():
            try:
                if name not in running:
                    await self._open_receiver(connector)
                elif (before := running[name].reception.connector) != connector:
                    await running[name].move(connector)
                    _log.info("connector.listening", connector=name, address=str(running[name].address), before=str(before.listen))
            except (ConfigurationError, OSError) as error:
                _log.error("connector.not_listening", connector=name, reason=str(error))
        self._context.peers.adopt_hosts(own_hosts(one.listen for one in settings.receive_connectors))

    async def _follow_admin(self) -> None:
        """The new address first, so that there is always one."""
        wanted = self._admin_addresses()
        for key, listen in wanted.items():
            before = self._admin.get(key)
            if before is None or before.listen != listen:
                server = self._admin_server(key, listen)
                try:
                    await server.start()
                except ConfigurationError as error:
                    _log.error("admin.not_listening", reason=str(error))
                    continue
                self._admin[key] = server
                close_with(self._opened, server.stop)
                if before is not None:
                    await before.stop()
        for key in self._admin.keys() - wanted.keys():
            await self._admin.pop(key).stop()

    def stopping(self) -> None:
        """The node was asked to stop: if it is killed from now on, no message is suspected of that."""
        self._is_to_stop = True
        if self.is_started:
            self._ledger.stopping()

    async def stop(self) -> None:
        """Drain: refuse new mail, let running work finish, keep the rest in the queue, let peers receive their notifications (which
        those of an older copy of the database are not for); then close everything."""
        self._ledger.stopping()
        self._context.is_stopping = True
        await self._leave_shared()
        self._context.is_draining = True
        _log.info("node.draining")
        self._context.delayed.release(is_stopping=True)
        await asyncio.gather(*(receiver.drain(GRACE_SECONDS) for receiver in self._receivers))
        self._lookups.let_go()  # an attempt that waits for a name has not begun
        await self._services.deliver.drained(OLDER_COPY_GRACE_SECONDS if self.is_rolled_back else GRACE_SECONDS)
        transport = self._settings.transport
        patience = TOLD_POLLS * transport.discard_poll_interval.total_seconds()
        if not self.is_rolled_back:
            await self._let_peers_receive(min(max(patience, TOLD_SECONDS_MIN), TOLD_SECONDS_MAX))
        for receiver in self._receivers:
            receiver.dismiss()
        await self.abort()
        _log.info("node.stopped")

    async def _let_peers_receive(self, seconds: float) -> None:
        try:
            untold = await self._services.peer_requests.wait_for_acknowledgements(seconds)
        except LedgerUnavailable as error:
            _log.warning("peers.untold", reason=error.reason)
        else:
            if untold:
                _log.warning("peers.untold", servers=sorted(untold), reason="no answer in time")

    async def abort(self) -> None:
        """Close whatever was opened, also after a failed start."""
        await self._opened.aclose()


def route_digests(settings: Settings) -> Mapping[str, str]:
    """What peers compare of the demands of routes. Reads the files that they name."""
    found = [(route, replace(route.protection, source=())) for route in settings.routes if route.protection is not None]
    demands = [(route.recipients, route.next_hop, protection) for route, protection in found if protection != Protection()]
    return credentials.digests(demands, settings.server.boundary)


def close_with(opened: contextlib.AsyncExitStack, close: Callable[[], Awaitable[None]]) -> None:
    """Call `close` when the stack is unwound. A failure is logged, and does not keep the others open."""

    async def close_or_log() -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await close()
        except TimeoutError:
            _log.error("node.close_failed", reason=f"no end in {CLOSE_SECONDS:.0f} s", part=getattr(close, "__qualname__", repr(close)))
        except Exception:
            _log.exception("node.close_failed")

    opened.push_async_callback(close_or_log)


def descriptor_limit() -> int:
    """How many files and connections this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the soft limit as far as allowed: it is 1,024 on most systems, for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems report more than they grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(loaded: LoadedSettings, log_lines: LineLogger) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    node = Node(loaded, log_lines=log_lines)

    def stop() -> None:
        node.stopping()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: node.reload())
    while True:
        try:
            await _started(node, stopping)
        except LedgerUnavailable as error:  # a line, not a traceback: the supervisor of the node tries again
            _log.error("node.cannot_start", reason=error.reason)
            await node.abort()
            return CANNOT_START
        except BaseException:
            await node.abort()
            raise
        await _either(stopping.wait(), node.rolled_back())
        if node.is_started:
            await node.stop()
        else:
            await node.abort()
        if stopping.is_set():
            return 0
        node = Node(node.loaded, log_lines=log_lines)


async def _started(node: Node, stopping: asyncio.Event) -> None:
    """Start, unless the process is to stop: a start that waits for a disk is given up then."""
    starting = asyncio.ensure_future(node.start())
    asked = asyncio.ensure_future(stopping.wait())
    try:
        while not starting.done() and not asked.done():
            await asyncio.wait((starting, asked), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done() and not asked.done():
                _log.warning("node.start_hangs", waits_for=node.step)
        if not starting.done():
            await asyncio.wait((starting,), timeout=GIVEN_UP_SECONDS)
        if starting.done():
            starting.result()
            return
        _log.warning("node.start_given_up", waits_for=node.step)
        starting.cancel()
        await asyncio.wait((starting,))
    finally:
        asked.cancel()


async def _either(*waiting: Awaitable[object]) -> None:
    """Wait for the first of these, and cancel the others."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def run(loaded: LoadedSettings) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status: 1 when the queue cannot be opened now.

    Raises: ConfigurationError before anything is accepted."""
    lines = operator_log.configure()
    os.umask(os.umask(0o077) | 0o027)  # content is private by itself; a stricter umask stays
    raise_descriptor_limit()
    # Objects made at start-up are never freed: exclude them from collection, and collect less often than by default.
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(_serve(loaded, lines))
        _end_soon(lines, status)
        return status


def _end_soon(lines: LineLogger, status: int) -> None:
    """All is closed: a thread that hangs on a disk must not keep the process, which would wait for it."""

    def end() -> None:
        _log.error("node.thread_hangs")
        lines.flush()
        os._exit(status)

    timer = threading.Timer(EXIT_SECONDS, end)
    timer.daemon = True
    timer.start()
