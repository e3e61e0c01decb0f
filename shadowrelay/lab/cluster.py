"""Runs nodes as real processes, with proxies between them, and reads their tracking logs. Processes end with the cluster. docs/lab.md.

Nodes are configured, started, killed, wiped and paused here. They listen on loopback unless a `Place` says otherwise.

A wire is a TCP proxy from one node to one peer, which can be cut, slowed and broken. A cut wire drops nothing: as with TCP over an
interrupted network, data waits and continues when the wire is healed. A wire also reports when a copy's last command or its
confirmation passes, so that a fault can be timed to that instant.
"""

import asyncio
import contextlib
import csv
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from pathlib import Path

from shadowrelay.model.routing import HostPort
from shadowrelay.settings.authority import Authority, make_authority, signed_pems, write_file

# ---- wires

BLOCK = 64 * 1024
CONFIRMED = b"250 2.0.0 Held"
LAST_COMMAND = b"XSHADOW COMMIT"
COPY = b"XSHADOW=HOLD"


class Passing(Enum):
    """What a wire sees passing, before it is forwarded, and after."""

    COMMIT_ARRIVES = auto()
    COMMIT_PASSED = auto()
    HELD_ARRIVES = auto()
    HELD_PASSED = auto()


class Wire:
    """A proxy from one node to one peer. Units: `delay_there` and `delay_back` are seconds that each block waits; 0 = no delay."""

    def __init__(self, target: HostPort) -> None:
        self.target = target
        self.delay_there = 0.0
        self.delay_back = 0.0
        self.octets_count = 0  # that passed, in both directions
        self.copies_to_break = 0  # number of copies to interrupt midway, together with the session
        self.on_passing: Callable[[Passing], None] = lambda passing: None
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def start(self) -> HostPort:
        """Listen on a free port; returns the address."""
        self._server = await asyncio.start_server(self._session, "127.0.0.1", 0, limit=BLOCK)
        return HostPort("127.0.0.1", int(self._server.sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """End all sessions."""
        if self._server is not None:
            self._server.close()
        for session in tuple(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def cut(self) -> None:
        """Stop forwarding in both directions; sessions stay open, and new ones wait."""
        self._is_whole.clear()

    def break_sessions(self) -> None:
        """Reset all sessions."""
        for session in tuple(self._sessions):
            session.cancel()

    def heal(self) -> None:
        """Forward everything without delay again."""
        self.delay_there = self.delay_back = 0.0
        self.copies_to_break = 0
        self._is_whole.set()

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        far_writer: asyncio.StreamWriter | None = None
        pumps: tuple[asyncio.Task[None], ...] = ()
        try:
            await self._is_whole.wait()
            far_reader, far_writer = await asyncio.open_connection(self.target.host, self.target.port, limit=BLOCK)
            pumps = (asyncio.create_task(self._there(reader, far_writer)), asyncio.create_task(self._back(far_reader, writer)))
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # the target does not listen: the caller sees its session end
        except asyncio.CancelledError:
            pass  # broken or closed: asyncio streams would log it
        finally:
            self._sessions.discard(task)
            for pump in pumps:
                pump.cancel()
            for end in (writer, far_writer):
                if end is not None:
                    end.transport.abort()

    async def _there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(BLOCK):
                await self._hold_up(self.delay_there)
                self.octets_count += len(data)
                if self.copies_to_break and COPY in data:
                    self.copies_to_break -= 1
                    writer.write(data[: (data.index(COPY) + len(data)) // 2])
                    await writer.drain()
                    return
                is_last = LAST_COMMAND in data
                if is_last:
                    self.on_passing(Passing.COMMIT_ARRIVES)
                writer.write(data)
                await writer.drain()
                if is_last:
                    self.on_passing(Passing.COMMIT_PASSED)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(BLOCK):
                await self._hold_up(self.delay_back)
                self.octets_count += len(data)
                is_confirmation = CONFIRMED in data
                if is_confirmation:
                    self.on_passing(Passing.HELD_ARRIVES)
                writer.write(data)
                await writer.drain()
                if is_confirmation:
                    self.on_passing(Passing.HELD_PASSED)

    async def _hold_up(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        await self._is_whole.wait()


# ---- nodes

START_SECONDS_MAX = 240.0  # of a machine that does much else
REDUNDANCY = "before-acknowledgement"  # the default
SERVE = ("-m", "shadowrelay", "serve")
PORTS = range(10_000, 20_000)  # `init` on one machine gives peers the port 10,000 above, which is outside as well
LOOPBACK = "127.0.0.1"
LOOPBACK_NETWORK = "127.0.0.0/8"

CERTIFICATE_LIFE = timedelta(days=2)
OWN_FILES = {"certificate": "node.pem", "key": "node.key", "peer_authority": "peers.pem"}  # in the node's directory

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Place:
    """The name, site and address of a node to create.

    Shapes: `host` is the address that it listens on. `inside` is a command that starts its process on another machine, such as
    `ip netns exec NAME`; it must become that process, not its parent. `redundancy` is that of its receive connector. `relays_to`: all its
    mail goes to these nodes, the first that can be reached, and it keeps the shadow.
    """

    name: str
    site: str
    host: str = LOOPBACK
    inside: tuple[str, ...] = ()
    boundary: str = "lab"
    redundancy: str = "before-acknowledgement"
    relays_to: tuple[str, ...] = ()


SHORT_TIMES: Table = {
    "shadow_heartbeat_frequency": "1s",
    "shadow_resubmit_time_span": "8s",
    "discard_poll_interval": "250ms",
    "shadow_timeout": "4s",
    "reject_message_on_shadow_failure": True,
}
SHORT_RETRIES: Table = {
    "queue_glitch_retry_interval": "500ms",
    "transient_failure_retry_interval": "1s",
    "outbound_connection_failure_retry_interval": "1s",
    "message_retry_interval": "1s",
}


def free_ports(count: int) -> list[int]:
    """Free ports of 127.0.0.1, all different, and outside the kernel's range for outgoing connections, so that they are
    still free when a killed node is started again."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(PORTS, len(PORTS)):
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((LOOPBACK, port))
                found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError(f"fewer than {count} ports are free between {PORTS.start} and {PORTS.stop}")


@dataclass(slots=True)
class NodeProcess:
    """One node. `kills` are the times (time.time) at which it was killed; `program` are the arguments of `python` before `--config`."""

    place: Place
    address: HostPort
    admin: HostPort
    directory: Path
    program: Sequence[str] = SERVE
    python: str = sys.executable
    process: asyncio.subprocess.Process | None = None
    kills: list[float] = field(default_factory=list)
    _kills_at_start: int = 0

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def is_killed(self) -> bool:
        """SIGKILL was sent since the last start."""
        return len(self.kills) > self._kills_at_start

    @property
    def tracking(self) -> Path:
        """The directory of its tracking log, which survives `wipe`."""
        return self.directory / "tracking"

    async def launch(self) -> None:
        """Start the process, and do not wait for it."""
        self._kills_at_start = len(self.kills)
        with (self.directory / "node.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.place.inside,
                self.python,
                *self.program,
                "--config",
                str(self.directory / "node.toml"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to this process only, which ends the nodes in order
            )

    async def start(self) -> None:
        """Start the process and wait until SMTP and then the API respond."""
        await self.launch()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not await self._answers():
            if not self.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start; its log: {self.log_tail()}")
            await asyncio.sleep(0.05)

    async def _answers(self) -> bool:
        return await self._says(self.address, b"220") and await self._says(self.admin, b"")

    async def _says(self, address: HostPort, greeting: bytes) -> bool:
        """Whether the address is open, and its first line begins with `greeting`."""
        try:
            reader, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            return False
        try:
            return await reader.readexactly(len(greeting)) == greeting
        except (OSError, EOFError):
            return False
        finally:
            writer.close()

    def log_tail(self) -> str:
        """The end of its operator log."""
        return (self.directory / "node.log").read_text(errors="replace")[-2000:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self.process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill_now(self) -> None:
        """Send SIGKILL without waiting. `kill` waits for the end."""
        if self.is_running:
            self.kills.append(time.time())
            self.signal(signal.SIGKILL)

    async def kill(self) -> None:
        """Send SIGKILL, unless already sent, and wait for the end."""
        if self.process is not None and self.is_running:
            if not self.is_killed:
                self.kill_now()
            await self.process.wait()

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the process does not end."""
        if self.process is None or not self.is_running:
            return
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.process.wait()

    def wipe(self) -> None:
        """Destroy the queue: database and content. The tracking log stays."""
        shutil.rmtree(self.directory / "data", ignore_errors=True)


class Cluster:
    """Several nodes that are peers of each other, with one next hop for all mail. Use as an async context manager.

    Shapes: `routes` are further next hops by recipient pattern, tried first; without a `next_hop`, DNS decides about other mail.
    `is_wired`: each node reaches each peer through a separate wire, `wires[from, to]`. `tables` are further ones for every
    node, such as "tls", or several of "[site_links]"; `admin` is more of that table. `program`: see NodeProcess. `peer_host`: the name by
    which nodes address each other, if not the address; `{name}` in it is that of the node. `network`: clients that may relay, and
    externally secured peers. `is_secured`: peers prove their names by mutual TLS instead, with certificates of this
    cluster's authority.
    """

    def __init__(
        self,
        places: Sequence[Place],
        next_hop: HostPort | None,
        *,
        directory: Path | None = None,
        transport: Table | None = None,
        send: Table | None = None,
        routes: Mapping[str, HostPort] | None = None,
        is_wired: bool = False,
        tables: Mapping[str, Table | list[Table]] | None = None,
        admin: Table | None = None,
        program: Sequence[str] = SERVE,
        peer_host: str = "",
        network: str = LOOPBACK_NETWORK,
        is_secured: bool = False,
    ) -> None:
        self._own = None if directory is not None else tempfile.TemporaryDirectory(prefix="shadowrelay-")
        self.directory = directory if directory is not None else Path(self._own.name if self._own else "")
        ports = free_ports(2 * len(places))
        self.nodes = {
            place.name: NodeProcess(
                place,
                HostPort(place.host, ports[2 * index]),
                HostPort(place.host, ports[2 * index + 1]),
                self.directory / place.name,
                program,
            )
            for index, place in enumerate(places)
        }
        self._routes = {**(routes or {}), **({"*": next_hop} if next_hop is not None else {})}
        names = [place.name for place in places]
        pairs = [(one, other) for one in names for other in names if one != other] if is_wired else []
        self.wires = {(one, other): Wire(self.nodes[other].address) for one, other in pairs}
        self._peer_host = peer_host
        self._network = network
        self._reached_at: dict[tuple[str, str], HostPort] = {}
        self._transport = {"shared_fate_is_redundant": True, **SHORT_TIMES, **(transport or {})}  # one machine
        self._send = {**SHORT_RETRIES, **(send or {})}
        self._tables = {**(tables or {}), **({"tls": OWN_FILES} if is_secured else {})}
        self._admin = admin or {}
        self._is_secured = is_secured

    async def __aenter__(self) -> "Cluster":
        try:
            for pair, wire in self.wires.items():
                self._reached_at[pair] = await wire.start()
            authority = make_authority("nodes of this cluster", CERTIFICATE_LIFE) if self._is_secured else None
            for node in self.nodes.values():
                node.directory.mkdir(parents=True, exist_ok=True)
                if authority is not None:
                    _write_certificates(authority, node)
                (node.directory / "node.toml").write_text(self._configuration(node))
            await asyncio.gather(*(node.start() for node in self.nodes.values()))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all processes."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))
        await asyncio.gather(*(wire.close() for wire in self.wires.values()))
        if self._own is not None:
            self._own.cleanup()

    def _configuration(self, node: NodeProcess) -> str:
        lines = [
            *_table("server", {"name": node.name, "site": node.place.site, "boundary": node.place.boundary, "data_directory": "data"}),
            *_table("transport", self._transport),
            *_table("send", self._send),
            *_table(
                "[receive_connectors]",
                {
                    "name": "loopback",
                    "listen": str(node.address),
                    "relay_from": [self._network],
                    **({} if self._is_secured else {"externally_secured": [self._network]}),
                    **({} if node.place.redundancy == REDUNDANCY else {"redundancy": node.place.redundancy}),
                },
            ),
            *_table("tracking", {"directory": "tracking"}),
            *_table("admin", {"listen": str(node.admin), **self._admin}),
        ]
        for name, values in self._tables.items():
            for table in values if isinstance(values, list) else [values]:
                lines += _table(name, table)
        if hops := [str(self._address_of(node, self.nodes[name])) for name in node.place.relays_to]:
            lines += _table("[routes]", {"recipients": ["*"], "next_hop": hops, "redundancy": "previous-hop", "inside_boundary": True})
        for pattern, next_hop in self._routes.items() if not hops else ():
            lines += _table("[routes]", {"recipients": [pattern], "next_hop": str(next_hop), "inside_boundary": True})
        for other in self.nodes.values():
            if other is not node:
                where = {"address": str(self._address_of(node, other)), "admin": f"http://{other.admin}"}
                lines += _table("[peers]", {"name": other.name, "site": other.place.site, "boundary": other.place.boundary, **where})
        return "\n".join(lines) + "\n"

    def _address_of(self, node: NodeProcess, other: NodeProcess) -> HostPort:
        """Where the first node reaches the other."""
        peer = HostPort(self._peer_host.format(name=other.name) or other.address.host, other.address.port)
        return self._reached_at.get((node.name, other.name), peer)


def _write_certificates(authority: Authority, node: NodeProcess) -> None:
    certificate, key = signed_pems(authority, node.name, CERTIFICATE_LIFE)
    for kind, data in (("certificate", certificate), ("key", key), ("peer_authority", authority.pem)):
        write_file(node.directory / OWN_FILES[kind], data, 0o600)


def _table(name: str, values: Table) -> list[str]:
    return [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value) if isinstance(value, int) else f'"{value}"'


# ---- tracking logs

Row = dict[str, str]


def rows(directory: Path) -> Iterator[Row]:
    """All rows of one node's log. Every line must be complete: read files after the node has ended."""
    for path in sorted(directory.glob("MSGTRK*.LOG"), key=_file_order):
        with path.open(newline="", encoding="utf-8") as file:
            fields: list[str] = []
            for row in csv.reader(file):
                if row and row[0].startswith("#Fields: "):
                    fields = [row[0].removeprefix("#Fields: "), *row[1:]]
                elif row and not row[0].startswith("#"):
                    yield dict(zip(fields, row, strict=False))


def instant(row: Row) -> float:
    """The row's date-time. Units: time.time."""
    return datetime.fromisoformat(row["date-time"]).timestamp()


def recipients(row: Row) -> list[str]:
    """The row's recipients, in order."""
    return row["recipient-address"].split(";") if row["recipient-address"] else []


def _file_order(path: Path) -> tuple[str, int]:
    hour, _, number = path.stem.partition("-")
    return hour, int(number or 0)
