"""`messages trace`: the story of one message, from the tracking logs of all nodes. docs/reference.md "Trace a message".

Neither Java nor Spark is needed; `sla trace` does the same for logs that were shipped.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowrelay.cli.find import filter_of, resolved
from shadowrelay.cli.nodes import Nodes, asked_nodes, name_missing
from shadowrelay.cli.output import AsJson, Config, ExitCode, Node, TokenFile, print_json, print_table, say, stop
from shadowrelay.cluster.answers import NodeAnswer, missing
from shadowrelay.cluster.lookup import BEGINNING, MessageId, QueueId
from shadowrelay.cluster.story import gathered, sentence_of_hops, what
from shadowrelay.cluster.words import instants

if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient

Json = dict[str, Any]


def trace(
    message_id: Annotated[
        str, typer.Argument(help="Network message id or its first characters, the Message-ID, or the queue id of the server that took it.")
    ],
    node: Node = None,
    token_file: TokenFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Tell what became of a message, in a sentence and in order."""
    with asked_nodes(node, token_file, config) as nodes:
        if not MessageId.fullmatch(message_id):
            message_id = _resolved(nodes, message_id)
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


def _resolved(nodes: Nodes, text: str) -> str:
    """The queue database knows our ids, and is asked first: the log is searched from end to end."""
    answers: Sequence[NodeAnswer] = ()
    if not QueueId.fullmatch(text) or BEGINNING.fullmatch(text):
        wanted = filter_of(message_id=text)
        answers = nodes.ask(lambda client: client.search(wanted, 10))
        if any(answer.said for answer in answers) or not QueueId.fullmatch(text):
            return resolved(answers, text)
    return _of_next_hop(nodes, text) or resolved(answers, text)


def _of_next_hop(nodes: Nodes, text: str) -> str:
    """The message that a next hop took as this; empty if no node knows one. Ends the command if there are several: other servers use their
    ids again."""
    found = list(dict.fromkeys(each for answer in nodes.ask(partial(_queued_as, text)) for each in answer.said or ()))
    if len(found) > 1:
        stop("\n".join([f"{text} was the id of {len(found)} messages:", *found[:10]]), ExitCode.FAILED)
    return found[0] if found else ""


def _queued_as(text: str, client: "NodeClient") -> list[str]:
    from shadowrelay.admin.api_client import NodeError

    try:
        return client.queued_as(text)
    except NodeError as exc:
        if exc.status != 404:
            raise
        return []


def _said(row: Json, message_id: str) -> str:
    return what(row) if row["network_message_id"] == message_id else f"{what(row)} (message {row['network_message_id']})"
