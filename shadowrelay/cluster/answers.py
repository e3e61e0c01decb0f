"""Asks several nodes at the same time, each by its own API. docs/reference.md "All nodes at once"."""

from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from shadowrelay.model.values import dataclass

if TYPE_CHECKING:
    from shadowrelay.admin.api_client import NodeClient

Json = dict[str, Any]
Anything = TypeVar("Anything")
NOT_CONFIGURED = 'add its API to [[peers]], like admin = "https://mx.example:8026"'


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The answer of one node, or why there is none. Shapes: `name` is the node's own; without an answer, that of the configuration."""

    name: str
    said: Any = None
    error: str = ""
    status: int = 0  # of HTTP


def asked(
    clients: Sequence[tuple[str, "NodeClient"]], question: Callable[["NodeClient"], Any], names: MutableMapping[str, str] | None = None
) -> list[NodeAnswer]:
    """One answer for each, in order, of all at the same time. Clients are named as the configuration does, until they say their own.

    `names`: what each said, by the name of the configuration; whose is known is not asked for it again, and what is heard is added.
    """
    from shadowrelay.admin.api_client import NodeError  # httpx takes a third of a second to import

    known = {} if names is None else names

    def answer_of(entry: tuple[str, "NodeClient"]) -> NodeAnswer:
        name, client = entry
        try:
            said = question(client)
            node = said.get("node") if isinstance(said, dict) else None
            own = node["name"] if isinstance(node, dict) else known.get(name) or client.node()["name"]
            if isinstance(own, str):
                known[name] = own
            return NodeAnswer(own, said)
        except NodeError as exc:
            return NodeAnswer(name, error=str(exc), status=exc.status)

    if len(clients) < 2:
        return [answer_of(entry) for entry in clients]
    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(answer_of, clients))


NOT_UNDERSTOOD = (KeyError, ValueError, TypeError, AttributeError, LookupError)


def combined(answers: Sequence[NodeAnswer], combine: Callable[[Sequence[NodeAnswer]], Anything]) -> Anything:
    """What `combine` makes of the answers. A node of another version, or one that went mad, is no reason to show nothing of the others:
    an answer of which it can make nothing counts as none."""
    try:
        return combine(answers)
    except NOT_UNDERSTOOD:
        return combine([_understood(answer, combine) for answer in answers])


def _understood(answer: NodeAnswer, combine: Callable[[Sequence[NodeAnswer]], object]) -> NodeAnswer:
    try:
        combine([answer])
    except NOT_UNDERSTOOD as exc:
        return NodeAnswer(answer.name, error=f"its answer cannot be understood ({type(exc).__name__}): another version?")
    return answer


def missing(answers: Sequence[NodeAnswer]) -> list[Json]:
    """The nodes that did not answer, for a document."""
    return [{"node": answer.name, "error": answer.error} for answer in answers if answer.error]
