"""Queries all nodes at once, each by its own API: `messages find`, `messages trace`, `status`. docs/reference.md "All nodes at once".

The nodes are this one and the peers whose `admin` the configuration names, or those of `--node`. A node that does not answer is reported,
on standard error or in the document; only if none answers does the command fail.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowrelay.cli.output import NODE_VARIABLE, URL_DEFAULT, ExitCode, configuration_errors, node_client, say, settings_of_node, stop
from shadowrelay.cluster.answers import NOT_CONFIGURED, NodeAnswer, asked
from shadowrelay.model.settings import Peer
from shadowrelay.model.values import dataclass

if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient


@dataclass(frozen=True, slots=True)
class Nodes:
    """Clients of nodes, by the names of the configuration until the nodes report their own; `unasked`: peers without a URL; `own`: whose
    configuration it is."""

    clients: tuple[tuple[str, "NodeClient"], ...]
    unasked: tuple[str, ...] = ()
    own: str = ""

    def ask(self, question: Callable[["NodeClient"], Any]) -> list[NodeAnswer]:
        """As `try_to_ask`, but if none of them answers it, the command ends."""
        answers = self.try_to_ask(question)
        if all(answer.error for answer in answers):
            was_refused = any(answer.status in (400, 401) for answer in answers)
            stop(
                "\n".join(dict.fromkeys(answer.error for answer in answers[: len(self.clients)])),
                ExitCode.USAGE if was_refused else ExitCode.UNREACHABLE,
            )
        return answers

    def try_to_ask(self, question: Callable[["NodeClient"], Any]) -> list[NodeAnswer]:
        """One answer for each, in order, of all at the same time."""
        return asked(self.clients, question) + [NodeAnswer(name, error=NOT_CONFIGURED) for name in self.unasked]


@contextmanager
def asked_nodes(node: str | None, token_file: Path | None, config: Path | None) -> Iterator[Nodes]:
    """Clients of all nodes; errors end the command with the matching exit code. `node`: one URL, or several with commas between; else
    the nodes of the configuration, else those that the environment names."""
    from shadowrelay.admin.api_client import NodeError, checked_url, client_of_peer, find_token

    unasked: tuple[str, ...] = ()
    peers: tuple[Peer, ...] = ()
    settings = None
    with configuration_errors():
        given = node or (os.environ.get(NODE_VARIABLE, "") if config is None else "")
        named = [(url.strip(), url.strip()) for url in given.split(",") if url.strip()]
        if config is not None:
            settings = settings_of_node(config)
            token_file = token_file or settings.admin.token_file
            if not named:
                named = [(settings.server.name, f"http://{settings.admin.listen}")]
                peers = tuple(peer for peer in settings.peers if peer.admin)
                unasked = tuple([peer.name for peer in settings.peers if not peer.admin])
        named = [(name, checked_url(url)) for name, url in named or [(URL_DEFAULT, URL_DEFAULT)]]
        token = find_token(token_file)
    with ExitStack() as stack:
        try:
            clients = [(name, stack.enter_context(node_client(url, token, settings))) for name, url in named]
            with configuration_errors():
                clients += [(peer.name, stack.enter_context(client_of_peer(settings, peer, lambda: token))) for peer in peers if settings]
        except NodeError as exc:
            stop(str(exc), ExitCode.USAGE)
        yield Nodes(tuple(clients), unasked, settings.server.name if settings else "")


def on_machine(answers: Sequence[NodeAnswer], own: str) -> tuple[str, list[NodeAnswer]]:
    """The machine of the node `own`, or without a name of the first that answers, and the answers of the nodes that run on it. If that node
    does not answer, the command ends: another one may run elsewhere.

    Shapes: each answer has `node`, and one has no error. A node that does not know its machine is alone on it."""
    said = [answer for answer in answers if not answer.error]
    this = next((answer for answer in said if answer.name == own or not own), None)
    if this is None:
        stop(f"{own} does not answer, so its machine is not known; give the file of another of its nodes", ExitCode.UNREACHABLE)
    machine = str(this.said["node"].get("machine") or "")  # missing in the API of older nodes
    return machine, [answer for answer in said if answer is this or (machine and answer.said["node"].get("machine") == machine)]


def name_missing(answers: Sequence[NodeAnswer]) -> None:
    """Say on standard error whose part is missing."""
    for answer in answers:
        if answer.error:
            say(f"shadowrelay: without {answer.name}: {answer.error}", is_error=True)
