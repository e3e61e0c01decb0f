"""Writes the files of a new cluster: `shadowrelay init`. docs/operations.md "Two nodes in ten minutes".

What is planned is a value (`ClusterPlan`), its texts are functions of it; `write` puts them into a directory. No configuration that exists
is overwritten: one that would be different now is written beside the old one, so that a node can be added to a running cluster.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import parse_domain, parse_host_port, parse_name, parse_network, parse_next_hops
from shadowrelay.model.values import dataclass, replace
from shadowrelay.settings import authority_change as change
from shadowrelay.settings.authority import make_authority, signed_pems, write_file
from shadowrelay.settings.cluster_answers import FILE as ANSWERS
from shadowrelay.settings.cluster_answers import Answers, name_of

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=365)
ADMIN_PORT = 8025
ADMIN_TLS_PORT = 8026
ANYWHERE = "0.0.0.0"
PEERS_PORT = 2555  # of the connector for peers, where each node has a machine of its own
PEERS_PORT_BEHIND = 10_000  # on one machine: so far from the port for clients
PRIVATE, READABLE = 0o600, 0o644
UNIT = Path(__file__).with_name("shadowrelay.service")
CONTAINER_USER = 10001  # of the image. Dockerfile
COMPOSE = """\
# Written by `shadowrelay init`. The image: docs/operations.md "In a container".
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
REMOVED = ".removed"  # ending of the directory of a node that was removed

ONE_FATE = "all nodes run on one machine and are lost with it: copies there count, but this is for trying only"

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """Shapes: `address` is where clients connect to, `for_peers` where peers do; `admin` where its API listens. A node of a cluster that
    was made by an earlier version has one address for both."""

    name: str
    site: str
    address: HostPort
    admin: HostPort
    for_peers: HostPort


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Shapes: `is_on_one_machine`: two nodes have the same host, so each keeps its data beside its configuration and listens on its own
    address only. `is_in_containers`: Docker Compose runs each node, not systemd."""

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
        is_in_containers=answers.is_in_containers,
    )


def planned(
    nodes: Sequence[str],
    *,
    boundary: str = "default",
    accepted_domains: Sequence[str] = (),
    relay_from: Sequence[str] = (),
    next_hops: Sequence[str] = (),
    is_in_containers: bool = False,
) -> ClusterPlan:
    """Shapes: `nodes` are "name,site" or "name,site,host:port"; the port is 25 if it is missing, the host the name.

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

    found = read("--node", nodes, _node)
    accepted = read("--accept", accepted_domains, parse_domain)
    networks = read("--relay-from", relay_from, parse_network)
    hops = [hop for one in read("--next-hop", next_hops, parse_next_hops) for hop in one]
    if len(nodes) < 2:
        errors.append("--node: name two nodes at least: a node alone has nobody who could hold a copy")
    for what in ("name", "address"):
        seen = [str(getattr(one, what)) for one in found]
        errors += [f"--node: two nodes have the {what} {one}; give each its own" for one in sorted({x for x in seen if seen.count(x) > 1})]
    if not accepted_domains and not relay_from:
        errors.append("--accept or --relay-from: name the domains that anybody may send to, or the networks that may send anywhere")
    if accepted_domains and not next_hops:
        errors.append("--next-hop: name the server that takes the mail for --accept; the MX records of such a domain name these nodes")
    if any(hop == one.address for hop in hops for one in found):
        errors.append("--next-hop: is one of the nodes, so that mail would go round in a circle; name the mail store")
    hosts = [one.address.host for one in found]
    is_on_one_machine = len(set(hosts)) < len(hosts)
    if is_on_one_machine and is_in_containers:
        errors.append("--compose: is for nodes with addresses of their own; for a cluster in containers on one machine: shadowrelay lab up")
    if errors:
        raise ConfigurationError("\n".join(errors))
    numbered = [
        replace(
            one,
            admin=HostPort("127.0.0.1", ADMIN_PORT + (number if is_on_one_machine else 0)),
            for_peers=HostPort(one.address.host, _port_for_peers(one.address.port, is_on_one_machine=is_on_one_machine)),
        )
        for number, one in enumerate(found)
    ]
    return ClusterPlan(
        tuple(numbered), boundary, tuple(accepted), tuple(map(str, networks)), tuple(hops), is_on_one_machine, is_in_containers
    )


def _port_for_peers(port: int, *, is_on_one_machine: bool) -> int:
    if is_on_one_machine:
        return port + PEERS_PORT_BEHIND if port + PEERS_PORT_BEHIND <= 65535 else port - PEERS_PORT_BEHIND
    return PEERS_PORT if port != PEERS_PORT else PEERS_PORT + 1


def _as_before(cluster: ClusterPlan, directory: Path) -> ClusterPlan:
    """A cluster of an earlier version goes on with one connector for clients and peers: its nodes would not find a new one otherwise.
    `check` says how to separate them."""
    present = [path.read_text(encoding="utf-8") for node in cluster.nodes if (path := directory / node.name / "node.toml").exists()]
    if not present or any(f'name = "{PEERS}"' in text for text in present):
        return cluster
    return replace(cluster, nodes=tuple(replace(node, for_peers=node.address) for node in cluster.nodes))


def _node(text: str) -> PlannedNode:
    """Raises: ValueError with the remedy."""
    parts = [part.strip() for part in text.split(",")]
    if not 2 <= len(parts) <= 3 or not all(parts) or " " in parts[1]:
        raise ValueError('is not a node; write "name,site" or "name,site,host:port", like "mx1.east.example,east,192.0.2.11:25"')
    name, site = parse_name(parts[0]), parts[1]
    where = parse_host_port(parts[-1] if len(parts) == 3 else name, port_default=25)
    if not where.port:
        raise ValueError("has the port 0; the other nodes must know the port")
    return PlannedNode(name, site, where, HostPort("127.0.0.1", ADMIN_PORT), where)


def node_toml(cluster: ClusterPlan, node: PlannedNode) -> str:
    """The configuration of one of its nodes."""
    return "\n".join(_lines(cluster, node)) + "\n"


def _lines(cluster: ClusterPlan, node: PlannedNode) -> Iterator[str]:
    where = {"data": "data", "tracking": "tracking"}
    if not cluster.is_on_one_machine:
        where = {"data": "/var/lib/shadowrelay/data", "tracking": "/var/log/shadowrelay/tracking"}
    listen = node.address if cluster.is_on_one_machine else HostPort(ANYWHERE, node.address.port)
    yield "# Written by `shadowrelay init`. Every setting, explained: shadowrelay check --example"
    yield from _table("[server]", name=node.name, site=node.site, boundary=cluster.boundary, data_directory=where["data"])
    yield from (
        "",
        f"[transport] # {ONE_FATE}" if cluster.is_one_fate else "[transport]",
        *(["shared_fate_is_redundant = true"] if cluster.is_one_fate else []),
        "# A message that no other node can hold a copy of is refused with 451, and the sender tries again. false: it is",
    )
    yield from ("# accepted with a single copy, which is lost with this node's disk.", "reject_message_on_shadow_failure = true")
    yield "# Silence of a node after which the others deliver its mail; the same on all nodes. Minutes suit nodes that are near each other."
    yield '#shadow_resubmit_time_span = "3h"'
    grants: dict[str, object] = {"accepted_domains": list(cluster.accepted_domains), "relay_from": list(cluster.relay_from)}
    granted = {key: value for key, value in grants.items() if value}
    if node.for_peers == node.address:
        yield from _table("[[receive_connectors]]", name="inbound", listen=str(listen), **granted)
    else:
        yield from _table("[[receive_connectors]]", name="inbound", listen=str(listen), accept_xshadow=False, **granted)
        yield ""
        yield "# For the other nodes only: let nobody else reach this port. Whatever strangers do, the nodes stay together."
        for_peers = node.for_peers if cluster.is_on_one_machine else HostPort(ANYWHERE, node.for_peers.port)
        yield from _table("[[receive_connectors]]", name=PEERS, listen=str(for_peers))[1:]
    for peer in cluster.nodes:
        if peer != node:
            admin = f"http://{peer.admin}" if cluster.is_on_one_machine else f"https://{HostPort(peer.address.host, ADMIN_TLS_PORT)}"
            yield from _table(
                "[[peers]]", name=peer.name, site=peer.site, boundary=cluster.boundary, address=str(peer.for_peers), admin=admin
            )
    if cluster.next_hops:
        patterns = [f"*@{domain}" for domain in cluster.accepted_domains] or ["*"]
        hops = [str(hop) for hop in cluster.next_hops]
        yield from _table("[[routes]]", recipients=patterns, next_hop=hops, inside_boundary=bool(cluster.accepted_domains))
    yield from _table("[tls]", certificate="node.pem", key="node.key", peer_authority="peers.pem", peer_revoked=REVOKED)
    yield from _table("[tracking]", directory=where["tracking"])
    encrypted = {} if cluster.is_on_one_machine else {"tls_listen": str(HostPort(ANYWHERE, ADMIN_TLS_PORT))}
    yield from _table("[admin]", listen=str(node.admin), **encrypted, token_file="token", read_only_token_file="read_only_token")


def _compose(node: PlannedNode) -> str:
    ports = dict.fromkeys((node.address.port, node.for_peers.port, ADMIN_TLS_PORT))
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
    removed: Sequence[str] = (),
) -> Written:
    """Write what is missing: the authority, and in a directory for each node its configuration, certificate, key, token, and
    systemd unit or Compose file.

    `is_renewal`: new certificates and keys for all nodes, by the same authority; with `is_new_authority` the next step to another one
    instead. `answers` are kept for the next call. `removed` are names of nodes.
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
                step = change.next_step(directory, (directory / node.name / "node.pem" for node in cluster.nodes))
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
            place = directory / node.name
            place.mkdir(mode=0o700, exist_ok=True)
            pair = (place / "node.pem", place / "node.key")
            if is_signing or not all(path.exists() for path in pair):
                signed = signed_pems(authorities.signing, node.name, CERTIFICATE_LIFE)
                for path, data, mode in zip(pair, signed, (READABLE, PRIVATE), strict=True):
                    write_file(path, data, mode)
                    new.append(path)
            else:
                kept += pair
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
            put(place / "node.toml", node_toml(cluster, node).encode())
            if cluster.is_in_containers:
                put(place / "compose.yaml", _compose(node).encode())
            elif not cluster.is_on_one_machine:
                put(place / "shadowrelay.service", UNIT.read_bytes())
        gone = _put_away(directory, removed)
        if answers is not None:
            write_file(directory / ANSWERS, answers.text.encode(), READABLE)
    except OSError as exc:
        raise ConfigurationError(f"{exc.filename or directory} cannot be written ({exc.strerror}); name a directory where you may") from exc
    return Written(tuple(new), tuple(kept), tuple(differing), gone, step)


def _put_away(directory: Path, removed: Sequence[str]) -> tuple[Path, ...]:
    """Rename their directories; the data of a node on this machine is in there, so it is not deleted."""
    gone: list[Path] = []
    for name in map(name_of, removed):
        place, away = directory / name, directory / f"{name}{REMOVED}"
        if place.exists():
            while away.exists():  # a node of this name was removed before
                away = away.with_name(f"{away.name}{REMOVED}")
            place.rename(away)
            gone.append(away)
    return tuple(gone)


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
        path = directory / node.name / "read_only_token"
        if path.exists():
            return path.read_bytes()
    return _new_token()


def _new_token() -> bytes:
    return f"{secrets.token_urlsafe(32)}\n".encode("ascii")
