"""`messages trace`: the story of one message, from the tracking logs of all nodes. docs/operations.md "Trace a message".

Neither Java nor Spark is needed; `sla trace` does the same for logs that were shipped.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from shadowrelay.cli.find import filter_of, resolved
from shadowrelay.cli.nodes import asked_nodes, name_missing
from shadowrelay.cli.output import AsJson, Config, ExitCode, Node, TokenFile, print_json, print_table, say, stop
from shadowrelay.cluster.answers import missing
from shadowrelay.cluster.lookup import MessageId
from shadowrelay.cluster.story import gathered, sentence_of_hops, what
from shadowrelay.cluster.words import instants

Json = dict[str, Any]


def trace(
    message_id: Annotated[str, typer.Argument(help="Network message id or its first characters, or the Message-ID.")],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Tell what became of a message, in a sentence and in order."""
    with asked_nodes(node, token_file, config) as nodes:
        if not MessageId.fullmatch(message_id):
            wanted = filter_of(message_id=message_id)
            message_id = resolved(nodes.ask(lambda client: client.search(wanted, 10)), message_id)
        message_id = message_id.lower()
        story = gathered(message_id, nodes.ask)
    events, known, answers = story.events, story.known, story.answers
    messages = known[message_id]
    if not events and not messages:
        name_missing(answers)
        stop(f"no node that answered knows a message {message_id}", ExitCode.FAILED)
    told = sentence_of_hops(message_id, events, known, datetime.now(UTC))
    if as_json:
        further = {other: each for other, each in known.items() if other != message_id}
        said = {"message_id": message_id, "sentence": told, "events": events, "messages": messages, "other_hops": further}
        print_json(said | {"missing": missing(answers)})
        return
    say(told)
    say("")
    heading, times = instants([row["at"] for row in events])
    rows = [(at, row["node"], row["event"], _said(row, message_id)) for at, row in zip(times, events, strict=True)]
    print_table((heading, "Node", "Event", "What"), rows, "nothing is left in the tracking logs")
    name_missing(answers)


def _said(row: Json, message_id: str) -> str:
    return what(row) if row["network_message_id"] == message_id else f"{what(row)} (message {row['network_message_id']})"
