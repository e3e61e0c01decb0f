"""`shadowrelay init`: writes the files of a new cluster, from options or answers. docs/operations.md "Two nodes in ten minutes"."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from shadowrelay.cli.output import AsJson, ExitCode, configuration_errors, print_json, say, stop
from shadowrelay.settings import cluster_files as planning
from shadowrelay.settings import configuration

NO_TERMINAL = "--node: name at least two nodes, like --node mx1.east.example,east,192.0.2.11; or run this at a terminal, which asks"


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write the files; made if it is missing.")] = Path("cluster"),
    node: Annotated[list[str] | None, typer.Option("--node", metavar="NAME,SITE[,HOST:PORT]", help="A node; once for each.")] = None,
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
        str, typer.Option("--boundary", metavar="NAME", help="Nodes of one boundary hold copies for each other.")
    ] = "default",
    is_renewal: Annotated[bool, typer.Option("--renew", help="Give every node a new certificate and key, by the same authority.")] = False,
    is_composed: Annotated[bool, typer.Option("--compose", help="Docker Compose is to run the nodes, not systemd.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the files of a new cluster. Configurations, certificates, units or Compose files; nothing is overwritten."""
    nodes, accepted, networks, hops = node or [], accept or [], relay_from or [], next_hop or []
    if not nodes:
        if not sys.stdin.isatty():
            stop(NO_TERMINAL, ExitCode.USAGE)
        nodes, accepted, networks, hops = _asked()
    with configuration_errors():
        cluster = planning.planned(
            nodes, boundary=boundary, accepted_domains=accepted, relay_from=networks, next_hops=hops, is_in_containers=is_composed
        )
        written = planning.write(cluster, directory, is_renewal=is_renewal)
        doubts = {
            one.name: configuration.warnings(configuration.load(directory / one.name / "node.toml").settings) for one in cluster.nodes
        }
    commands = planning.next_commands(cluster, directory)
    if as_json:
        files = {"new": written.new, "kept": written.kept, "differing": written.differing}
        shown = {name: [str(path) for path in paths] for name, paths in files.items()}
        print_json({"files": shown, "warnings": doubts, "next": commands})
        return
    for path in written.new:
        say(f"written  {path}")
    for path in written.kept:
        say(f"kept     {path}")
    for path in written.differing:
        say(f"differs  {path}: see {path.name}.new beside it, which was not put into force")
    for name, lines in doubts.items():
        for line in lines:
            say(f"warning: {name}: {line}")
    say("", f"Keep {directory / 'authority.key'} in a safe place: who has it can pass for a node. Next:")
    for command in commands:
        say(f"  {command}")


def _asked() -> tuple[list[str], list[str], list[str], list[str]]:
    """Nodes, accepted domains, networks and next hops, from the terminal; the empty answer ends a list."""
    nodes: list[str] = []
    while name := typer.prompt(
        f"Name of node {len(nodes) + 1}, as in DNS" + (" (empty: no more)" if len(nodes) > 1 else ""), default="", show_default=False
    ):
        site = typer.prompt("  its site", default="default")
        nodes.append(f"{name},{site},{typer.prompt('  its address and port', default=f'{name}:25')}")
    domains = typer.prompt("Domains to accept mail for, from anybody (empty: none)", default="", show_default=False)
    networks = typer.prompt("Networks that may send to anywhere, like 10.0.0.0/8 (empty: none)", default="", show_default=False)
    hops = typer.prompt("Server that takes the mail (empty: MX records decide)", default="", show_default=False)
    return nodes, domains.replace(",", " ").split(), networks.replace(",", " ").split(), hops.replace(",", " ").split()
