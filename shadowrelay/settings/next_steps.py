"""What to do with the files that a call of `shadowrelay init` wrote, in order: of this call only. docs/setup.md "The day after".

A file that a running node uses is never the target of an older one: what goes to its server is what this call wrote, and a configuration
goes there under another name, because somebody may have edited the one that is in use.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shadowrelay.settings.authority_change import AuthorityStep
from shadowrelay.settings.cluster_files import CONTAINER_USER, MACHINE, ClusterPlan, PlannedNode, Written

PLACE = "/etc/shadowrelay"
COMPOSE = f"docker compose --file {PLACE}/compose.yaml"
CONFIGURATION = "node.toml"
LOADED = ("node.pem", "node.key", "peers.pem", "revoked.pem", MACHINE)  # that SIGHUP loads
READ_AT_START = ("token", "read_only_token")
AGAIN = "shadowrelay init {directory} --renew --authority"
AFTER_STEP = {
    AuthorityStep.TRUST: "when all nodes have loaded both authorities, the next step: " + AGAIN,
    AuthorityStep.SIGN: "when all nodes have loaded their new certificates, the last step: " + AGAIN,
}


def next_steps(cluster: ClusterPlan, directory: Path, written: Written, removed: Sequence[PlannedNode] = ()) -> list[str]:
    """Commands, and sentences that begin with where: "on each", "on NAME", "here"."""
    is_new = [directory / node.place / CONFIGURATION in written.new for node in cluster.nodes]
    if all(is_new):
        return _first_steps(cluster, directory, cluster.nodes)
    old = [node for node, new in zip(cluster.nodes, is_new, strict=True) if not new]
    added = [node for node, new in zip(cluster.nodes, is_new, strict=True) if new]
    steps = [line for node in removed for line in _leaving(cluster, directory, node, old)]
    steps += [line for node in old for line in _replaced(cluster, directory, node, written)]
    steps += _first_steps(cluster, directory, added)[:-1] if added else []
    if not steps:
        return ["nothing: every node has what this call would write"]
    steps.append(_status(cluster, directory, old[0]))
    if written.step in AFTER_STEP:
        steps.append(AFTER_STEP[written.step].format(directory=directory))
    return steps


def _first_steps(cluster: ClusterPlan, directory: Path, nodes: Sequence[PlannedNode]) -> list[str]:
    """Nodes that do not run yet; the last one looks at the cluster."""
    status = _status(cluster, directory, nodes[0])
    if cluster.is_on_one_machine:
        return [*(f"shadowrelay serve --config {directory / node.place}/{CONFIGURATION} &" for node in nodes), status]
    machines = {node.machine: node for node in reversed(nodes)}
    machines = {name: machines[name] for name in dict.fromkeys(node.machine for node in nodes)}
    each = "on each" if len(nodes) == len(cluster.nodes) else f"on {' and '.join(machines)}"
    copies = [f"scp -r {directory / name}/. root@{node.address.host}:{PLACE}/" for name, node in machines.items()]
    if cluster.is_in_containers:
        return [
            f"{each}: build or pull the image (docs/setup.md, In a container), then mkdir -p {PLACE}",
            *copies,
            f"{each}: {_owned(cluster)} && {COMPOSE} up --detach",
            f"{each}: {COMPOSE} exec shadowrelay shadowrelay doctor --config {PLACE}/{CONFIGURATION}",
            status,
        ]
    return [
        f"{each}: install the program (docs/setup.md, Install), then mkdir -p {PLACE}",
        *copies,
        f"{each}: {_owned(cluster)}",
        *_started(machines, nodes, each),
        status,
    ]


def _started(machines: Mapping[str, PlannedNode], nodes: Sequence[PlannedNode], each: str) -> Iterator[str]:
    """Units put in place, and started: said for each machine that has several nodes, and once for all others."""
    single = [name for name, node in machines.items() if not node.number]
    if single:
        those = each if len(single) == len(machines) else f"on {' and '.join(single)}"
        yield f"{those}, unless the Debian package is installed: mv {PLACE}/shadowrelay.service /etc/systemd/system/"
        yield f"{those}: systemctl enable --now shadowrelay && shadowrelay doctor --config {PLACE}/{CONFIGURATION}"
    for name in [name for name, node in machines.items() if node.number]:
        units = " ".join(_unit(node) for node in nodes if node.machine == name)
        yield f"on {name}: mv {PLACE}/shadowrelay@.service {PLACE}/shadowrelay.target /etc/systemd/system/ && systemctl daemon-reload"
        yield f"on {name}: systemctl enable --now shadowrelay.target {units}"
        yield f"on {name}: shadowrelay doctor --config {PLACE}/1/{CONFIGURATION}, and so on for each number"


def _owned(cluster: ClusterPlan) -> str:
    """The node's user may read all files."""
    if cluster.is_in_containers:
        return f"chown -R {CONTAINER_USER} {PLACE}"
    return f"chown -R root:shadowrelay {PLACE} && chmod -R g+rX {PLACE}"


def _status(cluster: ClusterPlan, directory: Path, node: PlannedNode) -> str:
    if cluster.is_on_one_machine:
        return f"shadowrelay status --wait 1m --config {directory / node.place}/{CONFIGURATION}"
    command = f"shadowrelay status --config {_there(node)}/{CONFIGURATION}"
    return f"on one:  {COMPOSE} exec shadowrelay {command}" if cluster.is_in_containers else f"on one:  {command}"


def _replaced(cluster: ClusterPlan, directory: Path, node: PlannedNode, written: Written) -> Iterator[str]:
    """The files that this call changed of a node that runs. To write into a file leaves its owner and mode."""
    place, there = directory / node.place, _there(node)
    of_machine = directory / node.machine  # the same directory, unless the machine has several nodes
    own = {place, of_machine} if node.number in (0, 1) else {place}  # what they share is copied once
    new = [path for path in written.new if path.parent in {place, of_machine}]
    loaded = [str(path) for path in new if path.name in LOADED]
    secret = [str(path) for path in new if path.name in READ_AT_START]
    other = [path for path in written.differing if path.parent in own]
    if (loaded or secret) and not cluster.is_on_one_machine:
        for parent in sorted(own, reverse=True):
            if files := [path for path in loaded + secret if Path(path).parent == parent]:
                yield f"scp {' '.join(files)} root@{node.address.host}:{there if parent == place else PLACE}/"
    if secret and not cluster.is_on_one_machine:  # may be new there
        yield f"on {node.name}: {_owned(cluster)}"
    if loaded and not any(path.name == CONFIGURATION for path in other):
        yield _told(cluster, node, directory, is_restarted=False)
    for path in other:
        new_name = f"{path.name}.new"
        where = there if path.parent == place else PLACE
        if cluster.is_on_one_machine:
            moved = f"mv {path.with_name(new_name)} {path}"
            yield f"compare {path} with {new_name} beside it, which may lack what you added by hand; then {moved}"
        else:
            yield f"scp {path.with_name(new_name)} root@{node.address.host}:{where}/"
            taken = f"cat {where}/{new_name} > {where}/{path.name}"
            yield f"on {node.name}: compare {where}/{path.name} with {new_name}, which may lack what you added by hand; then {taken}"
            yield f"here: mv {path.with_name(new_name)} {path}"
    if other or secret or of_machine / MACHINE in written.differing:
        yield _told(cluster, node, directory, is_restarted=bool(secret))


def _told(cluster: ClusterPlan, node: PlannedNode, directory: Path, *, is_restarted: bool) -> str:
    """Load files that a running node has been given. Of a restart, one node at a time: the others take mail meanwhile."""
    after = " and wait until `shadowrelay status` says that new mail is redundant, then the next node" if is_restarted else ""
    if cluster.is_on_one_machine:
        serve = f"shadowrelay serve --config {directory / node.place}/{CONFIGURATION}"
        return f"end the process of {node.name} with SIGTERM; {serve} &{after}" if is_restarted else f"SIGHUP to the process of {node.name}"
    if cluster.is_in_containers:
        return f"on {node.name}: {COMPOSE} {'restart' if is_restarted else 'kill --signal HUP'} shadowrelay{after}"
    return f"on {node.name}: systemctl {'restart' if is_restarted else 'reload'} {_unit(node)}{after}"


def _there(node: PlannedNode) -> str:
    """Its directory on its server."""
    return f"{PLACE}/{node.number}" if node.number else PLACE


def _unit(node: PlannedNode) -> str:
    return f"shadowrelay@{node.number}" if node.number else "shadowrelay"


def _leaving(cluster: ClusterPlan, directory: Path, node: PlannedNode, left: Sequence[PlannedNode]) -> Iterator[str]:
    """A node that goes for good: it gives its mail away, and the others get the copies back that it held."""
    name = node.name
    if cluster.is_on_one_machine:
        yield f"shadowrelay drain --config {directory / node.place}/{CONFIGURATION}"
        yield f"when that has ended with exit code 0: end the process of {name} with SIGTERM"
        for one in left:
            file = f"{directory / one.place}/{CONFIGURATION}"
            yield f"shadowrelay peers list --config {file}, until {name} holds nothing of {one.name} (two heartbeats or more)"
            yield f"shadowrelay peers forget {name} --config {file}"
        return
    inside = f"{COMPOSE} exec shadowrelay " if cluster.is_in_containers else ""
    stop = f"{COMPOSE} stop" if cluster.is_in_containers else f"systemctl disable --now {_unit(node)}"
    others = " and ".join(one.name for one in left)
    yield f"on {name}: {inside}shadowrelay drain --config {_there(node)}/{CONFIGURATION}"
    yield f"on {name}, when that has ended with exit code 0: {stop}"
    number = "N/" if any(one.number for one in left) else ""
    file = f"{PLACE}/{number}{CONFIGURATION}"
    yield f"on {others}: {inside}shadowrelay peers list --config {file}, until {name} holds nothing of theirs (two heartbeats or more)"
    yield f"on {others}: {inside}shadowrelay peers forget {name} --config {file}"
