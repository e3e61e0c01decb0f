"""Assembles a node: ledger, links, receive connectors, services, admin. Starts it, follows reloads, stops it. docs/architecture.md."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial

import structlog

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
from shadowrelay.model.commit_failure import CommitFailure
from shadowrelay.model.ids import ServerName
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.protection import Protection
from shadowrelay.model.queue import InForce
from shadowrelay.model.receive_settings import ReceiveConnector
from shadowrelay.model.replies import ConfigurationError, LedgerUnavailable
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Peer, Settings, Tls
from shadowrelay.model.values import replace
from shadowrelay.node import gauges
from shadowrelay.node.closing import close_with
from shadowrelay.node.connectors import GRACE_SECONDS, Connectors
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
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.host_names import HostNames, Lookups
from shadowrelay.smtp.limits import Descriptors, descriptor_limit
from shadowrelay.smtp.listener import Listener, OpenListener
from shadowrelay.smtp.mail_filters import make_bank
from shadowrelay.smtp.mta_sts import MtaSts
from shadowrelay.smtp.own_addresses import OwnAddresses
from shadowrelay.smtp.peer_link import LinkEvents, SmtpPeerLink
from shadowrelay.smtp.reception import Reception, reception_for
from shadowrelay.smtp.recipient_sources import RecipientSources
from shadowrelay.smtp.resolver import DnsResolver
from shadowrelay.smtp.tls import TlsContexts, opportunistic_context
from shadowrelay.store import peer_promises, queues
from shadowrelay.store.ledger import Ledger
from shadowrelay.tracking.event_tap import TAP
from shadowrelay.tracking.operator_log import LineLogger
from shadowrelay.tracking.shipper import make_tracking
from shadowrelay.trust import PeerTrust, chain_of, ended, names_in

RENAME_AGAIN_SECONDS = ADOPT_AGAIN_SECONDS = 1.0
OLDER_COPY_GRACE_SECONDS = 5.0  # for attempts from an older copy of the database: the node is closed until they end, and some hang
TOLD_POLLS = 5  # SIGTERM: for peers to receive notifications, and acknowledge them in their next poll
TOLD_SECONDS_MIN, TOLD_SECONDS_MAX = 3.0, 10.0
ADMIN_OBSERVES_SECONDS = 5.0
START_SECONDS = 30.0  # a start that takes longer says what it waits for; then files of the configuration and of [tls] count as hanging
RECIPIENTS_SECONDS = 5.0  # at the start: for lists of recipients; without them clients get 450
RELOAD_SECONDS = 5.0  # SIGHUP: for the files of the configuration and of [tls], which may be on a file system of the network
LOG_BLOCKED_SECONDS = 5.0  # a reader of stderr that is slower than that hangs
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
        asking = Asking(
            lambda destination, question, seconds: self._deliverer.questions.ask(destination, question, seconds),
            lambda address: self._services.deliver.forks.destination_of(address),
        )
        self._recipients = RecipientSources(loaded.settings, asking)
        self._own_addresses = OwnAddresses(lambda: self._connectors.addresses)
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
        people = self._people = People(token, read_only_token, settings.admin.users)
        trail = AuditTrail(self._clock.now)
        self._application = application = make_application(self._services, self._metrics, people, __version__, trail=trail, names=names)
        self._desk = desk = Desk(settings, people, application, token, self._clock.now)
        close_with(self._opened, desk.close)
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
        await self._open_connectors()
        for server in self._admin.values():
            await server.start()
        self.step = "the first words with the peers"
        await self._services.rolled_back.introduce()
        if self.is_rolled_back:
            return
        self._start_services()
        await self._connectors.started()
        self._services.readiness.is_running = self.is_started = True
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
                await self._ledger.commit(peer_promises.database_renamed)
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
                before_commit=self._tracking.before_commit,
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
        self._connectors = Connectors(self._context, self._reception_of, self._open_listener, self._tasks, self._opened)
        self._filters = make_bank(settings.filters, asyncio.get_running_loop().time)
        close_with(self._opened, self._filters.close)
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
            on_address=lambda address: self._connectors.note_address_of_peer(address),
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

    async def _open_connectors(self) -> None:
        connectors, services, links = self._connectors, self._services, self._links
        for connector in self._settings.receive_connectors:
            await connectors.open(connector)
        services.membership.on_moved, services.membership.on_left = self._peer_moved, self._peer_left
        services.drain.doors = Doors(connectors.refuse_mail, connectors.take_mail, connectors.waited_for_count)
        services.commits.on_silent.append(connectors.fall_silent)
        services.commits.on_silent.append(self._end_links)
        services.commits.on_restored.append(connectors.speak_again)
        self._context.peers.on_other_process.append(connectors.end_others)
        self._context.peers.on_other_process.append(lambda server, incarnation: links[server].end_others(incarnation))

    def _end_links(self, _: CommitFailure) -> None:
        for link in self._links.values():
            link.fall_silent()

    def _reception_of(self, connector: ReceiveConnector) -> Reception:
        return reception_for(
            self._settings,
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

    def _start_services(self) -> None:
        self._tasks.keep(self._clock.run, "clock")
        self._tasks.keep(self._observe, "observe")
        if self._shipper is not None:
            self._shipper.start()
            self._shipper.watch(self._metrics)
        self._watch()
        self._services.readiness.hanging = lambda: [*self._hanging(), *self._ending_certificates(), *self._recipients.problems()]
        self._services.node.list_clients = self._connectors.clients
        self._services.start()
        self._tasks.keep(self._services.queues.run, "velocity")
        if self._settings.webhooks:
            hooks = Webhooks(self._settings.webhooks, TAP, self._settings.server.name)
            self._tasks.keep(hooks.run, "webhooks")

    def _watch(self) -> None:
        metrics, services = self._metrics, self._services
        gauges.watch_store(metrics, services, self._ledger, self._machine)
        gauges.watch_services(metrics, services)
        gauges.watch_peers(metrics, services)
        gauges.watch_next_hops(metrics, self._deliverer, self._mta_sts)
        gauges.watch_clients(metrics, self._connectors, self._recipients, self._filters)
        gauges.watch_process(metrics, self._budget, self._descriptors)
        gauges.watch_logs(metrics, self._tracking, self._log_lines)
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

    def _ending_certificates(self) -> Iterator[str]:
        """A node whose certificate has ended goes on over its open sessions, until the first of them is lost."""
        for key, end in ({} if self._tls is None else self._tls.ends).items():
            left = end - self._clock.now()
            if left < timedelta(0):
                yield f"tls.{key} expired at {end:%Y-%m-%d %H:%M} UTC: peers refuse new sessions; renew it (init --renew), then SIGHUP"
            elif left < certificates.CERTIFICATE_LEFT_MIN:
                yield f"tls.{key} ends at {end:%Y-%m-%d %H:%M} UTC, in {left.days} days: renew it (init --renew), then SIGHUP"

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
                self._metrics.observe_queues(await self._ledger.read(queues.queues), await self._services.node.untold())
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

    def _peers_in(self, session: ssl.SSLObject, before: PeerTrust | None = None) -> frozenset[str] | None:
        """The nodes whose certificate the client of this connection has; None if that has ended, was revoked, or is of an authority that
        was there `before`, when the connection was opened."""
        assert self._tls is not None
        trust, chain = self._tls.trust, chain_of(session)
        reason = trust.refusal(chain) if before is None else trust.refusal_of_session(chain, before)
        if reason := reason or ended(session.getpeercert(), self._clock.now()):
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
            await self._connectors.follow(self._settings.receive_connectors)
            await self._follow_admin()
            why = {name: reason(name) for name in needs_restart}
            _log.info("configuration.reloaded", needs_restart=needs_restart, **({"why": why} if why else {}))

    def _reload(self) -> list[str] | None:
        """The names of what waits for a restart; None: nothing was changed."""
        tls_before = self._tls
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
        self._people.withdraw(settings.admin.users)
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
        self._connectors.reload(settings, self._tls, self._recipients)
        if self._tls is not None and tls_before is not None:
            for server in self._admin.values():
                server.reread(partial(self._peers_in, before=tls_before.trust))
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
            await asyncio.sleep(ADOPT_AGAIN_SECONDS)
        self._show_peers()
        self._desk.adopt(self._settings)

    def _show_peers(self) -> None:
        """To the receivers: those of the configuration, and those that leave, which fetch what they are owed."""
        states = self._context.peers.states
        leaving = {name: states[name].peer for name in states if self._context.peers.is_leaving(name)}
        peers = {peer.name: peer for peer in self._settings.peers} | leaving
        linked = frozenset([peer.name for peer in self._settings.linked_peers]) | leaving.keys()
        self._connectors.show_peers(peers, linked)

    def _peer_moved(self, peer: Peer) -> None:
        self._links[peer.name].move(peer.address)

    def _peer_left(self, server: ServerName) -> None:
        self._show_peers()
        self._tasks.spawn(self._links.pop(server).close(), f"close {server}")

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
        await self._connectors.leave_shared()
        self._context.is_draining = True
        _log.info("node.draining")
        self._context.delayed.release(is_stopping=True)
        await self._connectors.drain()
        self._lookups.let_go()  # an attempt that waits for a name has not begun
        await self._services.deliver.drained(OLDER_COPY_GRACE_SECONDS if self.is_rolled_back else GRACE_SECONDS)
        transport = self._settings.transport
        patience = TOLD_POLLS * transport.discard_poll_interval.total_seconds()
        if not self.is_rolled_back:
            await self._let_peers_receive(min(max(patience, TOLD_SECONDS_MIN), TOLD_SECONDS_MAX))
        self._connectors.dismiss()
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
