"""Writes the files of a new cluster: `shadowrelay init`. docs/setup.md "Two nodes in ten minutes".

What is planned is a value (`ClusterPlan`), its texts are functions of it; `write` puts them into a directory. No configuration that exists
is overwritten: one that would be different now is written beside the old one, so that a node can be added to a running cluster.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import parse_domain, parse_host_port, parse_name, parse_network, parse_next_hops
from shadowrelay.model.values import dataclass, replace
from shadowrelay.settings import authority_change as change
from shadowrelay.settings.authority import make_authority, signed_pems, write_file
from shadowrelay.settings.cluster_answers import FILE as ANSWERS
from shadowrelay.settings.cluster_answers import Answers

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=365)
ADMIN_PORT = 8025
ADMIN_TLS_PORT = 8026
ANYWHERE = "0.0.0.0"
PEERS_PORT = 2555  # of the connector for peers, where each node has a machine of its own
PEERS_PORT_BEHIND = 10_000  # on one machine: so far from the port for clients
PORTS_OF_A_PROCESS = 10  # of several nodes that one machine runs: so far from those of the one before
PROCESSES_MAX = 16
PRIVATE, READABLE = 0o600, 0o644
UNIT = Path(__file__).with_name("shadowrelay.service")
TARGET = """\
# Written by `shadowrelay init`: all nodes of this machine. Restart one after the other: systemctl restart shadowrelay@1
[Unit]
Description=SMTP relay with shadow redundancy, all nodes of this machine
Wants={units}

[Install]
WantedBy=multi-user.target
"""
CONTAINER_USER = 10001  # of the image. Dockerfile
COMPOSE = """\
# Written by `shadowrelay init`. The image: docs/setup.md "In a container".
services:
  shadowrelay:
    image: shadowrelay-relay
    hostname: {name}
    restart: unless-stopped
    stop_grace_period: 80s
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    ports: [{ports}]
    volumes:
      - .:/etc/shadowrelay:ro
      - queue:/var/lib/shadowrelay
      - tracking:/var/log/shadowrelay/tracking
volumes:
  queue:
  tracking:
"""

PEERS = "peers"  # the name of their connector
REVOKED = "revoked.pem"  # of each node, and of the whole cluster
REVOKED_FILE = b"# The certificates of nodes whose key was stolen, or their SHA-256 fingerprints: docs/operations.md. SIGHUP reads them.\n"
AUTHORITY_NAME = "mail nodes"
MACHINE = "machine.toml"  # the settings that several nodes of a machine have in common; each includes it
DATA = "data"  # in its directory, of a node that runs where `init` did
REMOVED = ".removed"  # ending of the directory of a node that was removed

ONE_FATE = "all nodes run on one machine and are lost with it: copies there count, but this is for trying only"

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """Shapes: `address` is where clients connect to, `for_peers` where peers do; `admin` where its API listens, and with TLS `admin_tls`. A
    node of a cluster that was made by an earlier version has one address for both. `machine` is the name that was given; where it runs
    several nodes, `number` counts them from 1, and all have its `address`. A witness has no clients."""

    name: str
    site: str
    address: HostPort
    admin: HostPort
    for_peers: HostPort
    admin_tls: HostPort
    machine: str
    number: int = 0
    is_witness: bool = False

    @property
    def place(self) -> Path:
        """Its directory, below that of the cluster."""
        return Path(self.machine, str(self.number)) if self.number else Path(self.machine)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Shapes: `is_on_one_machine`: for trying, two machines have the same host, or there is only one; so each node keeps its data beside
    its configuration and listens on its own address only. `is_in_containers`: Docker Compose runs each node, not systemd."""

    nodes: tuple[PlannedNode, ...]
    boundary: str
    accepted_domains: tuple[str, ...]
    relay_from: tuple[str, ...]
    next_hops: tuple[HostPort, ...]
    is_on_one_machine: bool
    is_in_containers: bool = False

    @property
    def is_one_fate(self) -> bool:
        """All nodes run on one machine: they have one host."""
        return len({node.address.host for node in self.nodes}) == 1


def planned_by(answers: Answers) -> ClusterPlan:
    """Raises: ConfigurationError as `planned`."""
    return planned(
        answers.nodes,
        boundary=answers.boundary,
        accepted_domains=answers.accepted_domains,
        relay_from=answers.relay_from,
        next_hops=answers.next_hops,
        witnesses=answers.witnesses,
        is_in_containers=answers.is_in_containers,
    )


def planned(
    nodes: Sequence[str],
    *,
    boundary: str = "default",
    accepted_domains: Sequence[str] = (),
    relay_from: Sequence[str] = (),
    next_hops: Sequence[str] = (),
    witnesses: Sequence[str] = (),
    is_in_containers: bool = False,
) -> ClusterPlan:
    """Shapes: `nodes` are "name,site", "name,site,host:port" or "name,site,host:port,processes"; the port is 25 if it is missing, the host
    the name. `witnesses` are "name,site" or "name,site,host:port" with the port for peers.

    Raises: ConfigurationError with every mistake, one a line, each with its option and the remedy.
    """
    errors: list[str] = []

    def read(option: str, values: Iterable[str], parse: Callable[[str], Parsed]) -> list[Parsed]:
        found: list[Parsed] = []
        for value in values:
            try:
                found.append(parse(value))
            except ValueError as exc:
                errors.append(f"{option} {value}: {exc}")
        return found

    machines = read("--node", nodes, _machine)
    found = [node for machine in machines for node in machine]
    found += read("--witness", witnesses, _witness)
    separate = [nodes[0] for nodes in machines] + [node for node in found if node.is_witness]
    accepted = read("--accept", accepted_domains, parse_domain)
    networks = read("--relay-from", relay_from, parse_network)
    hops = [hop for one in read("--next-hop", next_hops, parse_next_hops) for hop in one]
    if len(nodes) + len(witnesses) < 2 and len(found) < 2:
        errors.append("--node: name two nodes at least: a node alone has nobody who could hold a copy")
    for what in ("name", "address"):
        seen = [str(getattr(one, what)) for one in separate]
        errors += [f"--node: two nodes have the {what} {one}; give each its own" for one in sorted({x for x in seen if seen.count(x) > 1})]
    if not accepted_domains and not relay_from:
        errors.append("--accept or --relay-from: name the domains that anybody may send to, or the networks that may send anywhere")
    if accepted_domains and not next_hops:
        errors.append("--next-hop: name the server that takes the mail for --accept; the MX records of such a domain name these nodes")
    if any(hop == one.address for hop in hops for one in found):
        errors.append("--next-hop: is one of the nodes, so that mail would go round in a circle; name the mail store")
    hosts = [one.address.host for one in separate]
    is_on_one_machine = len(set(hosts)) < len(hosts) or len(hosts) == 1
    if is_on_one_machine and is_in_containers:
        errors.append("--compose: is for nodes with addresses of their own; for a cluster in containers on one machine: shadowrelay lab up")
    if is_in_containers and any(one.number for one in found):
        errors.append("--compose: a container has one node; give each its own address instead of --processes")
    numbered = [
        replace(
            one,
            admin=HostPort("127.0.0.1", ADMIN_PORT + (number if is_on_one_machine else _behind(one))),
            admin_tls=HostPort(one.address.host, ADMIN_TLS_PORT + _behind(one)),
            for_peers=one.for_peers if one.is_witness else _for_peers(one, is_on_one_machine=is_on_one_machine),
        )
        for number, one in enumerate(found)
    ]
    taken = [str(one.for_peers) for one in numbered]
    if len(set(taken)) < len(taken) and not errors:
        errors.append("--node: the ports for peers of two nodes on one host are the same; give their clients ports further apart")
    if errors:
        raise ConfigurationError("\n".join(errors))
    return ClusterPlan(
        tuple(numbered), boundary, tuple(accepted), tuple(map(str, networks)), tuple(hops), is_on_one_machine, is_in_containers
    )


def _behind(node: PlannedNode) -> int:
    """How far its ports are behind those of the first node of the machine."""
    return PORTS_OF_A_PROCESS * max(node.number - 1, 0)


def _for_peers(node: PlannedNode, *, is_on_one_machine: bool) -> HostPort:
    return HostPort(node.address.host, _port_for_peers(node.address.port, is_on_one_machine=is_on_one_machine) + _behind(node))


def _port_for_peers(port: int, *, is_on_one_machine: bool) -> int:
    if is_on_one_machine:
        highest = port + PEERS_PORT_BEHIND + PORTS_OF_A_PROCESS * PROCESSES_MAX
        return port + PEERS_PORT_BEHIND if highest <= 65535 else port - PEERS_PORT_BEHIND
    return PEERS_PORT if port != PEERS_PORT else PEERS_PORT + 1


def _as_before(cluster: ClusterPlan, directory: Path) -> ClusterPlan:
    """A cluster of an earlier version goes on with one connector for clients and peers: its nodes would not find a new one otherwise.
    `check` says how to separate them."""
    present = [path.read_text(encoding="utf-8") for node in cluster.nodes if (path := directory / node.place / "node.toml").exists()]
    if not present or any(f'name = "{PEERS}"' in text for text in present):
        return cluster
    return replace(cluster, nodes=tuple(replace(node, for_peers=node.address) for node in cluster.nodes))


def _machine(text: str) -> tuple[PlannedNode, ...]:
    """The nodes that it runs, of which there is at least one. Raises: ValueError with the remedy."""
    parts = [part.strip() for part in text.split(",")]
    count = "1" if len(parts) < 4 else parts.pop()
    if not count.isdecimal() or not 1 <= int(count) <= PROCESSES_MAX:
        raise ValueError(f"runs {count} nodes; write a number from 1 to {PROCESSES_MAX}")
    one = _node(parts, 25)
    if int(count) == 1:
        return (one,)
    host, dot, domain = one.name.partition(".")
    return tuple(replace(one, name=f"{host}-{number}{dot}{domain}", number=number) for number in range(1, int(count) + 1))


def _witness(text: str) -> PlannedNode:
    """Raises: ValueError with the remedy."""
    return replace(_node([part.strip() for part in text.split(",")], PEERS_PORT), is_witness=True)


def _node(parts: Sequence[str], port_default: int) -> PlannedNode:
    if not 2 <= len(parts) <= 3 or not all(parts) or " " in parts[1]:
        raise ValueError('is not a node; write "name,site" or "name,site,host:port", like "mx1.east.example,east,192.0.2.11:25"')
    name, site = parse_name(parts[0]), parts[1]
    where = parse_host_port(parts[-1] if len(parts) == 3 else name, port_default=port_default)
    if not where.port:
        raise ValueError("has the port 0; the other nodes must know the port")
    return PlannedNode(name, site, where, HostPort("127.0.0.1", ADMIN_PORT), where, where, name)


def node_toml(cluster: ClusterPlan, node: PlannedNode) -> str:
    """The configuration of one of its nodes; where its machine runs several, without what they have in common."""
    return "\n".join(_lines(cluster, node, is_own=True, is_common=not node.number)) + "\n"


def machine_toml(cluster: ClusterPlan, node: PlannedNode) -> str:
    """What the nodes of a machine have in common, of which this is one."""
    return "\n".join(_lines(cluster, node, is_own=False, is_common=True)) + "\n"


def _lines(cluster: ClusterPlan, node: PlannedNode, *, is_own: bool, is_common: bool) -> Iterator[str]:
    where = {"data": DATA, "tracking": "tracking"}
    if not cluster.is_on_one_machine:
        below = f"/{node.number}" if node.number else ""
        where = {"data": f"/var/lib/shadowrelay{below}/data", "tracking": f"/var/log/shadowrelay{below}/tracking"}
    yield "# Written by `shadowrelay init`. Every setting, explained: shadowrelay check --example"
    if not is_own:
        yield "# What the nodes of this machine have in common: each includes this file. Paths are relative to it."
    elif not is_common:
        yield "# What this node has for itself. A key here counts before the same key there; tables in [[…]] are added to those there."
        yield f'include = "../{MACHINE}"'
    server: dict[str, object] = {"name": node.name} if is_own else {}
    server |= {"site": node.site, "boundary": cluster.boundary} if is_common else {}
    server |= {"data_directory": where["data"]} if is_own else {}
    yield from _table("[server]", **server)
    if is_common:
        yield from _transport(cluster)
    yield from _connectors(cluster, node, is_own=is_own, is_common=is_common)
    for peer in cluster.nodes:
        if peer != node and (is_own if peer.machine == node.machine else is_common):
            asked = f"http://{peer.admin}" if cluster.is_on_one_machine else f"https://{peer.admin_tls}"
            yield from _table(
                "[[peers]]", name=peer.name, site=peer.site, boundary=cluster.boundary, address=str(peer.for_peers), admin=asked
            )
    if cluster.next_hops and is_common:
        patterns = [f"*@{domain}" for domain in cluster.accepted_domains] or ["*"]
        hops = [str(hop) for hop in cluster.next_hops]
        yield from _table("[[routes]]", recipients=patterns, next_hop=hops, inside_boundary=bool(cluster.accepted_domains))
    tls: dict[str, object] = {"certificate": "node.pem", "key": "node.key"} if is_own else {}
    tls |= {"peer_authority": "peers.pem", "peer_revoked": REVOKED} if is_common else {}
    yield from _table("[tls]", **tls)
    if is_own:
        yield from _table("[tracking]", directory=where["tracking"])
    admin: dict[str, object] = {"listen": str(node.admin)} if is_own else {}
    admin |= {"tls_listen": str(HostPort(ANYWHERE, node.admin_tls.port))} if is_own and not cluster.is_on_one_machine else {}
    admin |= {"token_file": "token", "read_only_token_file": "read_only_token"} if is_common else {}
    yield from _table("[admin]", **admin)


def _transport(cluster: ClusterPlan) -> Iterator[str]:
    yield from (
        "",
        f"[transport] # {ONE_FATE}" if cluster.is_one_fate else "[transport]",
        *(["shared_fate_is_redundant = true"] if cluster.is_one_fate else []),
        "# A message that no other node can hold a copy of is refused with 451, and the sender tries again. false: it is",
    )
    yield from ("# accepted with a single copy, which is lost with this node's disk.", "reject_message_on_shadow_failure = true")
    yield "# Silence of a node after which the others deliver its mail; the same on all nodes. Minutes suit nodes that are near each other."
    yield '#shadow_resubmit_time_span = "3h"'


def _connectors(cluster: ClusterPlan, node: PlannedNode, *, is_own: bool, is_common: bool) -> Iterator[str]:
    """Those for clients are common."""
    listen = node.address if cluster.is_on_one_machine else HostPort(ANYWHERE, node.address.port)
    grants: dict[str, object] = {"accepted_domains": list(cluster.accepted_domains), "relay_from": list(cluster.relay_from)}
    granted = {key: value for key, value in grants.items() if value}
    if node.is_witness:
        yield from ("", "# A witness: no clients. It keeps copies, and delivers what it has to take over, by the same routes.")
        yield from _table("[[receive_connectors]]", name=PEERS, listen=str(node.for_peers if cluster.is_on_one_machine else listen))[1:]
        return
    if node.for_peers == node.address:
        yield from _table("[[receive_connectors]]", name="inbound", listen=str(listen), **granted)
        return
    if is_common:
        shared = {"reuse_port": True} if node.number else {}
        yield from _table("[[receive_connectors]]", name="inbound", listen=str(listen), **shared, accept_xshadow=False, **granted)
    if is_own:
        yield ""
        yield "# For the other nodes only: let nobody else reach this port. Whatever strangers do, the nodes stay together."
        for_peers = node.for_peers if cluster.is_on_one_machine else HostPort(ANYWHERE, node.for_peers.port)
        yield from _table("[[receive_connectors]]", name=PEERS, listen=str(for_peers))[1:]


def template_unit() -> str:
    """The unit of each of several nodes on a machine, made of that of a single one: %i is its number."""
    text = UNIT.read_text(encoding="utf-8")
    for before, after in (
        ("/etc/shadowrelay/node.toml", "/etc/shadowrelay/%i/node.toml"),
        ("Description=SMTP relay with shadow redundancy", "Description=SMTP relay with shadow redundancy, node %i of this machine"),
        ("\n[Service]", "PartOf=shadowrelay.target\n\n[Service]"),
        ("StateDirectory=shadowrelay\n", "StateDirectory=shadowrelay shadowrelay/%i\n"),
        ("LogsDirectory=shadowrelay\n", "LogsDirectory=shadowrelay shadowrelay/%i\n"),
        ("WantedBy=multi-user.target", "WantedBy=shadowrelay.target"),
        ("enable --now shadowrelay\n", "enable --now shadowrelay.target\n"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    return text


def _target(nodes: Iterable[PlannedNode]) -> str:
    return TARGET.format(units=" ".join(f"shadowrelay@{node.number}.service" for node in nodes))


def _compose(node: PlannedNode) -> str:
    ports = dict.fromkeys((node.address.port, node.for_peers.port, node.admin_tls.port))
    return COMPOSE.format(name=node.name, ports=", ".join(f'"{port}:{port}"' for port in ports))


def _table(title: str, **values: object) -> list[str]:
    """TOML writes text, lists and booleans like JSON."""
    return ["", title, *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())]


@dataclass(frozen=True, slots=True)
class Written:
    """Paths. `differing`: what exists differs from what would be written now, which is beside it with the ending `.new`. `removed` are the
    directories of nodes that were removed, as they are called now. `step` of a change of the authority, if that was asked for."""

    new: tuple[Path, ...]
    kept: tuple[Path, ...]
    differing: tuple[Path, ...]
    removed: tuple[Path, ...] = ()
    step: change.AuthorityStep | None = None


def write(
    cluster: ClusterPlan,
    directory: Path,
    *,
    is_renewal: bool = False,
    is_new_authority: bool = False,
    answers: Answers | None = None,
    removed: Sequence[Path] = (),
) -> Written:
    """Write what is missing: the authority, and in a directory for each node its configuration, certificate, key, token, and
    systemd unit or Compose file. Nodes of one machine have directories in that of the machine, with what is common.

    `is_renewal`: new certificates and keys for all nodes, by the same authority; with `is_new_authority` the next step to another one
    instead. `answers` are kept for the next call. `removed` are places of nodes and of whole machines.
    Raises: ConfigurationError naming the file and the remedy.
    """
    new: list[Path] = []
    kept: list[Path] = []
    differing: list[Path] = []

    def put(path: Path, data: bytes, mode: int = READABLE, *, is_replaced: bool = False) -> None:
        if not path.exists() or (is_replaced and path.read_bytes() != data):
            write_file(path, data, mode)
            new.append(path)
        elif path.read_bytes() == data:
            kept.append(path)
            path.with_name(f"{path.name}.new").unlink(missing_ok=True)  # of a call before, which has been followed
        else:
            beside = path.with_name(f"{path.name}.new")
            write_file(beside, data, mode)
            differing.append(path)

    step = None
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        cluster = _as_before(cluster, directory)
        pem, key = files = change.pair(directory)
        if pem.exists() or key.exists():
            if is_renewal and is_new_authority:
                step = change.next_step(directory, (directory / node.place / "node.pem" for node in cluster.nodes))
                authorities = change.take(step, directory, AUTHORITY_NAME, AUTHORITY_LIFE)
            else:
                authorities = change.read_authorities(directory)
                kept += files
        else:
            change.put(make_authority(AUTHORITY_NAME, AUTHORITY_LIFE), files)
            authorities = change.read_authorities(directory)
            new += files
        is_signing = is_renewal and step in (None, change.AuthorityStep.SIGN)
        read_only_token = _read_only_token(directory, cluster)
        for node in cluster.nodes:
            place = directory / node.place
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            pair = (place / "node.pem", place / "node.key")
            if is_signing or not all(path.exists() for path in pair):
                signed = signed_pems(authorities.signing, node.name, CERTIFICATE_LIFE)
                for path, data, mode in zip(pair, signed, (READABLE, PRIVATE), strict=True):
                    write_file(path, data, mode)
                    new.append(path)
            else:
                kept += pair
            put(place / "node.toml", node_toml(cluster, node).encode())
        for machine, nodes in groupby(cluster.nodes, lambda node: node.machine):
            place, several = directory / machine, [node for node in nodes if node.number]
            peers = place / "peers.pem"
            before = peers.read_bytes() if peers.exists() else b""
            is_enough = not is_renewal and change.trusts_all(before, authorities)
            put(peers, before if is_enough else change.trusted_pem(before, authorities), is_replaced=is_renewal)
            if (place / "token").exists():
                kept.append(place / "token")
            else:
                put(place / "token", _new_token(), PRIVATE)
            put(place / "read_only_token", read_only_token, PRIVATE)
            put(place / REVOKED, _revoked(place / REVOKED, directory / REVOKED), is_replaced=True)
            if several:
                put(place / MACHINE, machine_toml(cluster, several[0]).encode())
            if cluster.is_in_containers:
                put(place / "compose.yaml", _compose(next(node for node in cluster.nodes if node.machine == machine)).encode())
            elif several and not cluster.is_on_one_machine:
                put(place / "shadowrelay@.service", template_unit().encode())
                put(place / "shadowrelay.target", _target(several).encode(), is_replaced=True)
            elif not cluster.is_on_one_machine:
                put(place / "shadowrelay.service", UNIT.read_bytes())
        gone = _put_away(directory, removed)
        if answers is not None:
            write_file(directory / ANSWERS, answers.text.encode(), READABLE)
    except OSError as exc:
        raise ConfigurationError(f"{exc.filename or directory} cannot be written ({exc.strerror}); name a directory where you may") from exc
    return Written(tuple(new), tuple(kept), tuple(differing), gone, step)


def _put_away(directory: Path, removed: Sequence[Path]) -> tuple[Path, ...]:
    """Rename their directories, but for one that a node of this machine works in: with its data moved it could deliver no more."""
    gone: list[Path] = []
    for one in removed:
        place, away = directory / one, directory / f"{one}{REMOVED}"
        if next(place.glob(f"**/{DATA}"), None) is not None:
            gone.append(place)
        elif place.exists():
            while away.exists():  # a node of this name was removed before
                away = away.with_name(f"{away.name}{REMOVED}")
            place.rename(away)
            gone.append(away)
    return tuple(gone)


def places_left(before: ClusterPlan, after: ClusterPlan) -> tuple[Path, ...]:
    """The directories of nodes that are in a cluster no more; of a machine whose nodes are all gone, its own.

    Raises: ConfigurationError if a machine had one node and is to have several, or the other way round: they are other nodes."""
    several = {node.machine: bool(node.number) for node in before.nodes}
    if other := sorted({node.machine for node in after.nodes if several.get(node.machine, bool(node.number)) != bool(node.number)}):
        remedy = f"init {' '.join(f'--remove {name}' for name in other)} first, and add it anew when it is drained"
        raise ConfigurationError(f"--processes: {', '.join(other)} cannot change between one node and several: {remedy}")
    stay = {node.place for node in after.nodes}
    machines = {node.machine for node in after.nodes}
    gone = [node for node in before.nodes if node.place not in stay]
    return tuple(dict.fromkeys(node.place if node.machine in machines else Path(node.machine) for node in gone))


def _revoked(own: Path, of_all: Path) -> bytes:
    """What a node has revoked, and what the file of the cluster has; a node that is added later gets that, too."""
    before = own.read_bytes() if own.exists() else REVOKED_FILE
    common = of_all.read_bytes() if of_all.exists() else b""
    if common in before:
        return before
    if before.removeprefix(REVOKED_FILE) in common:
        return REVOKED_FILE + common
    return before + (b"" if before.endswith(b"\n") else b"\n") + common


def _read_only_token(directory: Path, cluster: ClusterPlan) -> bytes:
    """The same for all nodes, and for those that are added later: with it they ask each other."""
    for node in cluster.nodes:
        path = directory / node.machine / "read_only_token"
        if path.exists():
            return path.read_bytes()
    return _new_token()


def _new_token() -> bytes:
    return f"{secrets.token_urlsafe(32)}\n".encode("ascii")
