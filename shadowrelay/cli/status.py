"""`status`: is mail redundant now, and what does every node hold? docs/operations.md "Status".

`cluster.overview` combines the nodes' answers into one document; the command prints it.
"""

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from shadowrelay.cli.nodes import Nodes, asked_nodes
from shadowrelay.cli.output import AsJson, Config, ExitCode, Node, TokenFile, print_json, print_table, say
from shadowrelay.cli.what_if import show
from shadowrelay.cluster.overview import in_words, look, summary
from shadowrelay.cluster.words import age, duration
from shadowrelay.model.setting_texts import parse_duration
from shadowrelay.settings.configuration import digest_of

Json = dict[str, Any]

WATCH_SECONDS = 2.0
WAIT_SECONDS = 0.5


def status(
    is_watched: Annotated[bool, typer.Option("--watch", help="Again every two seconds, until interrupted.")] = False,
    wait: Annotated[str, typer.Option("--wait", help="Wait at most so long until mail is redundant and no peer is silent.")] = "0s",
    is_checked: Annotated[
        bool, typer.Option("--check", help="Exit code 1 also if a node is missing, cannot reach a peer, or says what is wrong.")
    ] = False,
    if_lost: Annotated[
        str,
        typer.Option("--if-lost", metavar="NAME|SITE|LABEL[,…]", help="What becomes of mail if these are lost with their disks."),
    ] = "",
    is_listed: Annotated[bool, typer.Option("--list", help="With --if-lost: the ids of what would be lost.")] = False,
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show whether mail is redundant now, and who holds what. Exit code 1 if it is not redundant, or if mail would be lost."""
    try:
        patience = parse_duration(wait).total_seconds()
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--wait") from exc
    with asked_nodes(node, token_file, config) as nodes, suppress(KeyboardInterrupt):
        if if_lost:
            show(nodes, if_lost, is_listed=is_listed, as_json=as_json)
            return
        if patience:
            _wait(nodes, patience)
        while True:
            found = summary(nodes.ask(look))
            _compare(found, nodes.own, config)
            if is_watched and not as_json:
                Console().clear()
            _print(found, as_json)
            if not is_watched:
                break
            time.sleep(WATCH_SECONDS)
        is_troubled = found["missing"] or found["unreached"] or any(row["reasons"] or row["errors"] for row in found["nodes"])
        if not found["is_redundant"] or (is_checked and is_troubled):
            raise typer.Exit(ExitCode.FAILED)


def _compare(found: Json, own: str, config: Path | None) -> None:
    """Whether the node runs with this file as it is now."""
    for row in found["nodes"]:
        digest = row["configuration"].get("digest")
        if config is not None and digest and row["name"] == own and digest != digest_of(config):
            row["errors"].insert(0, f"runs with an earlier state of {config}, of {row['configuration']['read_at'][:19]}Z")


def _wait(nodes: Nodes, patience: float) -> None:
    """Until mail is redundant and all peers are reached, at most so many seconds. What is waited for is said once. A node of an older
    version is not waited for: it never says it."""
    said, until = "", time.monotonic() + patience
    while time.monotonic() < until:
        answers = nodes.try_to_ask(look)
        found = summary(answers)
        if (found["is_redundant"] or found["older"]) and not found["unreached"] and found["nodes"]:
            return
        reason = "; ".join(map(in_words, found["unreached"])) or (str(found["sentence"]) if found["nodes"] else "no node answers yet")
        if reason != said:
            said = reason
            say(f"waiting: {reason}", is_error=True)
        time.sleep(WAIT_SECONDS)


def _print(found: Json, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    now = datetime.now(UTC)
    say(f"{found['sentence']}.", "")
    versions = dict.fromkeys(row["version"] for row in found["nodes"])
    are_different = len(versions) > 1
    machines = {one["machine"]: one for one in found["machines"]}
    rows: list[tuple[object, ...]] = []
    for row in found["nodes"]:
        if (together := machines.pop(row["machine"], None)) is not None:
            oldest = age(together["oldest_at"], now)
            several = f"machine {row['machine']}", "", f"{len(together['nodes'])} nodes", *([""] if are_different else [])
            rows.append((*several, together["to_deliver_count"], oldest, together["held_count"], ""))
        is_below = any(row["name"] in one["nodes"] for one in found["machines"])
        rows.append(_row(row, now, is_below=is_below, with_version=are_different))
    column = ["Version"] if are_different else []
    rows += [(one["node"], "", "MISSING", *("" for _ in column), "", "-", "", one["error"]) for one in found["missing"]]
    print_table(("Node", "Site", "State", *column, "#To deliver", "#Oldest", "#Holds", "What is wrong"), rows, "")
    if not are_different:
        say(f"Version: {', '.join(versions)}")
    held = [
        (
            row["node"],
            row["count"],
            row["primary"],
            age(row["oldest_at"], now),
            duration(row["heard_seconds_ago"]),
            "-" if row["takes_over_in_seconds"] is None else f"in {duration(row['takes_over_in_seconds'])}",
        )
        for row in found["holds"]
    ]
    say("")
    print_table(("Node", "#Copies", "Held for", "#Oldest", "#Heard", "#Takes over"), held, "no node holds copies now")


def _row(row: Json, now: datetime, *, is_below: bool, with_version: bool) -> tuple[object, ...]:
    """Of a node; `is_below` its machine."""
    errors = [error for error in row["errors"] if not any(error in reason for reason in row["reasons"])]
    return (
        f"  {row['name']}" if is_below else row["name"],
        row["site"],
        f"{row['state']}, witness" if row["is_witness"] else row["state"],
        *([row["version"]] if with_version else []),
        row["to_deliver_count"],
        age(row["oldest_at"], now),
        row["held_count"],
        "; ".join([*row["reasons"], *errors]),
    )
