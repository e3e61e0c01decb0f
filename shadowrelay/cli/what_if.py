"""`status --if-lost`, and what `drain` and `peers forget` say of the loss before they begin. docs/reference.md "What if"."""

from functools import partial
from typing import Any

import typer

from shadowrelay.cli.nodes import Nodes
from shadowrelay.cli.output import ExitCode, print_json, print_table, say, stop
from shadowrelay.cluster.if_lost import IDS_MAX, acquainted, document, look, named, warnings
from shadowrelay.cluster.words import duration

Json = dict[str, Any]


def show(nodes: Nodes, words: str, *, is_listed: bool, as_json: bool) -> None:
    """Print what would be lost. Exit code 1 if something would."""
    found, unknown = named([word.strip() for word in words.split(",") if word.strip()], nodes.ask(acquainted))
    if unknown or not found:
        stop(
            f"--if-lost {words}: {', '.join(unknown) or 'it'} is no server, site or label of failure_domains that a node knows",
            ExitCode.USAGE,
        )
    answer = document(found, nodes.ask(partial(look, lost=found, ids_max=IDS_MAX if is_listed else 0)))
    if as_json:
        print_json(answer)
    else:
        _print(answer, is_listed=is_listed)
    if answer["lost_count"]:
        raise typer.Exit(ExitCode.FAILED)


def warn(nodes: Nodes, server: str) -> None:
    """On standard error, what it means that this server goes, as far as that is not all well."""
    for line in warnings(server, nodes.try_to_ask(partial(look, lost=[server], ids_max=0))):
        say(f"warning: {line}", is_error=True)


def _print(found: Json, *, is_listed: bool) -> None:
    say(f"{found['sentence']}.", "")
    rows = [(one["server"], one["count"], one["primary"], f"within {duration(one['within_seconds'])}") for one in found["taken_over"]]
    print_table(("Node", "#Takes over", "Of", "#When"), rows, "nothing is taken over")
    say("")
    ages = {one["node"]: one["age_seconds"] for one in found["answers"]}
    since = {one["node"]: one["since"] for one in found["safety_net"]}
    mail = {one["node"]: one for one in found["new_mail"]}
    table = [
        (
            name,
            mail[name]["outcome"] if name in mail else "lost",
            f"{since[name][:19]}Z" if since.get(name) else "-",
            duration(age),
            mail[name]["sentence"] if name in mail else "",
        )
        for name, age in ages.items()
    ]
    table += [(one["node"], "MISSING", "-", "-", one["error"]) for one in found["missing"]]
    print_table(("Node", "New mail", "Can resubmit since", "#Answer's age", "Why"), table, "")
    for one in found["heard"]:
        age = "never" if one["seconds_ago"] is None else f"{duration(one['seconds_ago'])} ago"
        say(f"{one['peer']} did not answer; {one['node']} heard it {age}")
    if is_listed:
        say("", *found["message_ids"], *([] if found["are_all_ids"] else ["and more"]))
