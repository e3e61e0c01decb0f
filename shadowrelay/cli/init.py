"""`shadowrelay init`: writes the files of a new cluster, from options or answers. docs/setup.md "Two nodes in ten minutes"."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from shadowrelay.cli.output import AsJson, ExitCode, configuration_errors, print_json, say, stop
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import parse_domain, parse_host_port, parse_name, parse_network, parse_next_hops
from shadowrelay.settings import cluster_files as planning
from shadowrelay.settings import configuration
from shadowrelay.settings.cluster_answers import FILE, Answers, changed, read_answers
from shadowrelay.settings.next_steps import next_steps

NO_TERMINAL = "--node: name at least two nodes, like --node mx1.east.example,east,192.0.2.11; or run this at a terminal, which asks"


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write the files; made if it is missing.")] = Path("cluster"),
    node: Annotated[list[str] | None, typer.Option("--node", metavar="NAME,SITE[,HOST:PORT]", help="A node; once for each.")] = None,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="Each machine of --node runs so many nodes behind one port.")
    ] = 1,
    witness: Annotated[
        list[str] | None,
        typer.Option("--witness", metavar="NAME,SITE[,HOST:PORT]", help="A node without clients, for copies; once for each."),
    ] = None,
    accept: Annotated[
        list[str] | None, typer.Option("--accept", metavar="DOMAIN", help="Accept mail for it from anybody; once for each.")
    ] = None,
    relay_from: Annotated[
        list[str] | None, typer.Option("--relay-from", metavar="NETWORK", help="Its clients may send anywhere; once for each.")
    ] = None,
    next_hop: Annotated[
        list[str] | None, typer.Option("--next-hop", metavar="HOST[:PORT]", help="Where the mail goes; once for each, in order.")
    ] = None,
    boundary: Annotated[
        str | None, typer.Option("--boundary", metavar="NAME", help="Nodes of one boundary hold copies for each other. Else: default.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="NAME", help="A node that is to go; once for each.")] = None,
    is_renewal: Annotated[bool, typer.Option("--renew", help="Give every node a new certificate and key, by the same authority.")] = False,
    is_new_authority: Annotated[
        bool, typer.Option("--authority", help="With --renew: the next of three steps to another authority.")
    ] = False,
    is_composed: Annotated[bool, typer.Option("--compose", help="Docker Compose is to run the nodes, not systemd.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the files of a new cluster, or of a changed one. Configurations, certificates, units or Compose files; what it is told is kept,
    and no configuration is overwritten."""
    if is_new_authority and not is_renewal:
        stop("--authority: needs --renew, which gives the nodes certificates of that authority", ExitCode.USAGE)
    if processes > 1 and not node:
        stop("--processes: is for the machines that --node names in the same call", ExitCode.USAGE)
    given = Answers(
        tuple(_running(one, processes) for one in node or ()),
        tuple(witness or ()),
        boundary or "",
        tuple(accept or ()),
        tuple(relay_from or ()),
        tuple(next_hop or ()),
        is_in_containers=is_composed,
    )
    with configuration_errors():
        kept = read_answers(directory)
        if kept is None and not given.nodes:
            if is_renewal or remove or (directory / "authority.pem").exists():
                missing = f"--node: {directory / FILE} is missing, where init keeps what it was told"
                raise ConfigurationError(f"{missing}; name all nodes and options of this cluster once more")
            if not sys.stdin.isatty():
                stop(NO_TERMINAL, ExitCode.USAGE)
            given = _asked(given)
        answers = changed(kept or Answers(), given, remove or ())
        cluster = planning.planned_by(answers)
        before = cluster if kept is None else planning.planned_by(kept)
        written = planning.write(
            cluster,
            directory,
            is_renewal=is_renewal,
            is_new_authority=is_new_authority,
            answers=answers,
            removed=planning.places_left(before, cluster),
        )
        doubts = {
            one.name: configuration.warnings(configuration.load(directory / one.place / "node.toml").settings) for one in cluster.nodes
        }
    names = {one.name for one in cluster.nodes}
    commands = next_steps(cluster, directory, written, [one for one in before.nodes if one.name not in names])
    if as_json:
        files = {"new": written.new, "kept": written.kept, "differing": written.differing, "removed": written.removed}
        shown = {name: [str(path) for path in paths] for name, paths in files.items()}
        print_json({"files": shown, "warnings": doubts, "step": written.step, "next": commands})
        return
    for path in written.new:
        say(f"written  {path}")
    for path in written.kept:
        say(f"kept     {path}")
    for path in written.differing:
        say(f"differs  {path}: see {path.name}.new beside it, which was not put into force")
    for path in written.removed:
        say(f"removed  {path}: what the node had here; it has the key of its certificate, so delete it when the node is gone")
    for name, lines in doubts.items():
        for line in lines:
            say(f"warning: {name}: {line}")
    if cluster.is_one_fate:
        say("", "shared_fate_is_redundant = true is set, because all these addresses are of one machine: its loss takes every copy.")
    if written.step:
        say("", f"Step {written.step}.")
    say("", f"Keep {directory / 'authority.key'} in a safe place: who has it can pass for a node. Next:")
    for command in commands:
        say(f"  {command}")


def _running(node: str, processes: int) -> str:
    """The text of a machine that runs so many nodes."""
    if processes == 1:
        return node
    named = node if node.count(",") > 1 else f"{node},{node.partition(',')[0]}:25"
    return f"{named},{processes}"


def _asked(given: Answers) -> Answers:
    """The options that are missing, from the terminal; the empty answer ends a list. A wrong answer is asked for again at once."""
    nodes: list[str] = []
    names: list[str] = []
    addresses: list[HostPort] = []

    def is_new_name(text: str) -> None:
        if parse_name(text) in names:
            raise ValueError("is the name of a node above; give each its own")

    def is_new_address(text: str) -> None:
        address = parse_host_port(text, port_default=25)
        if not address.port:
            raise ValueError("has the port 0; the other nodes must know the port")
        if address in addresses:
            raise ValueError("is the address of a node above; give each its own")

    def is_elsewhere(text: str) -> None:
        if any(hop in addresses for hop in parse_next_hops(text)):
            raise ValueError("is one of the nodes, so that mail would go round in a circle; name the mail store")

    def ask(question: str, check: Callable[[str], object], default: str = "", needed: str = "", is_list: bool = False) -> str:
        def checked(text: str) -> str:
            for one in _list(text) if is_list else (text.strip(),) * bool(text.strip()):
                try:
                    check(one)
                except ValueError as exc:
                    raise typer.BadParameter(f"{one} {exc}") from exc
            if needed and not text.strip():
                raise typer.BadParameter(needed)
            return text.strip()

        answer: str = typer.prompt(question, default=default, show_default=bool(default), value_proc=checked)
        return answer

    while name := ask(
        f"Name of node {len(nodes) + 1}, as in DNS" + (" (empty: no more)" if len(nodes) > 1 else ""),
        is_new_name,
        needed="" if len(nodes) > 1 else "name two nodes at least: a node alone has nobody who could hold a copy",
    ):
        site = ask("  its site", lambda text: None, "default")
        address = ask("  its address and port", is_new_address, f"{name}:25")
        nodes.append(f"{name},{site},{address}")
        names.append(parse_name(name))
        addresses.append(parse_host_port(address, port_default=25))
    accepted, relaying, taking = given.accepted_domains, given.relay_from, given.next_hops
    if not accepted:
        accepted = _list(ask("Domains to accept mail for, from anybody (empty: none)", parse_domain, is_list=True))
    if not relaying:
        needed = "" if accepted else "name domains above (start again), or networks here: else nobody may send mail"
        relaying = _list(
            ask("Networks that may send to anywhere, like 10.0.0.0/8 (empty: none)", parse_network, needed=needed, is_list=True)
        )
    if not taking:
        needed = "name the server that takes the mail: the MX records of these domains name these nodes" if accepted else ""
        taking = _list(
            ask(
                "Server that takes the mail" + ("" if accepted else " (empty: MX records decide)"),
                is_elsewhere,
                needed=needed,
                is_list=True,
            )
        )
    return Answers(tuple(nodes), given.witnesses, given.boundary, accepted, relaying, taking, is_in_containers=given.is_in_containers)


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())
