"""How the console asks: this node by its own API without a socket, the others by theirs, as the commands do. docs/reference.md "Console".

What is read is read with the rights of nodes among each other, and shown as far as the person may see it. What is done is done with the
person's own token, on the node that it concerns: that node decides, and has the audit line.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI

from shadowrelay.admin.api_client import NodeClient, NodeError, client_of_peer
from shadowrelay.cluster.answers import NOT_CONFIGURED, NodeAnswer, asked
from shadowrelay.cluster.glance import look_closely
from shadowrelay.model.replies import ConfigurationError, LedgerUnavailable
from shadowrelay.model.settings import Peer, Settings

PATIENCE_SECONDS = 3.0  # with a node: a page must come also while one hangs
ACT_SECONDS = 10.0  # with a node that is to do something: it may wait four seconds for an attempt that runs
SLOW_SECONDS = 0.5  # then an open page shows what the other nodes say
KEPT_SECONDS = 30.0  # a client and its connections; then the certificates and the token are read anew
IDLE_MAX = 2  # clients of one node that are kept
OWN = "http://localhost"

Answer = TypeVar("Answer")


class OwnTransport(httpx.BaseTransport):
    """Asks the application of this process, from a thread; it runs in `loop`."""

    def __init__(self, application: FastAPI, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        self._loop = loop

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Raises: httpx.ReadTimeout."""
        future = asyncio.run_coroutine_threadsafe(self._ask(request), self._loop)
        try:
            return future.result(ACT_SECONDS if request.method == "POST" else PATIENCE_SECONDS * 2)
        except TimeoutError as exc:
            future.cancel()
            raise httpx.ReadTimeout("this node is busy", request=request) from exc

    async def _ask(self, request: httpx.Request) -> httpx.Response:
        response = await self._transport.handle_async_request(httpx.Request(request.method, request.url, headers=request.headers))
        return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())


class KeptClients:
    """Clients for the next question, by node: to make one, with its certificates and a handshake, costs more than most questions. Each is
    used by one thread at a time; one that failed, or is old, is closed. `clock`: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle: dict[str, deque[tuple[float, NodeClient]]] = {}
        self._lock = threading.Lock()
        self._generation = 0

    @contextmanager
    def client(self, name: str, make: Callable[[], NodeClient]) -> Iterator[NodeClient]:
        """Of that node, made if there is none. Raises: what `make` raises."""
        with self._lock:
            generation, idle = self._generation, self._idle.get(name)
            made_at, client = idle.pop() if idle else (float("-inf"), None)
        if client is not None and self._clock() - made_at >= KEPT_SECONDS:
            client.close()
            client = None
        if client is None:
            made_at, client = self._clock(), make()
        try:
            yield client
        finally:
            with self._lock:
                idle = self._idle.setdefault(name, deque())
                is_kept = not client.has_failed and generation == self._generation and len(idle) < IDLE_MAX
                if is_kept:
                    idle.append((made_at, client))
            if not is_kept:
                client.close()

    def close(self) -> None:
        """All that are idle, and each that is in use as soon as it is given back."""
        with self._lock:
            self._generation += 1
            clients = [client for idle in self._idle.values() for _, client in idle]
            self._idle.clear()
        for client in clients:
            client.close()


class _PeerLook:
    """What a peer said last, and the question that is under way."""

    def __init__(self) -> None:
        self.asking: asyncio.Task[NodeAnswer] | None = None
        self.last: NodeAnswer | None = None
        self._since = 0.0

    def begin(self, asking: "asyncio.Task[NodeAnswer]") -> None:
        """Another question."""
        self.asking, self._since = asking, asyncio.get_running_loop().time()

    def answer(self, name: str) -> NodeAnswer:
        """To the question, or the last one; none where it has not answered for too long."""
        if self.asking is not None and self.asking.done():
            asked, self.asking = self.asking, None
            self.last = asked.result()
        is_slow = self.asking is not None and asyncio.get_running_loop().time() - self._since >= PATIENCE_SECONDS
        if self.last is None or (is_slow and not self.last.error):
            return NodeAnswer(name, error=f"it did not answer within {PATIENCE_SECONDS:g} s")
        return self.last


class ClusterNodes:
    """This node and its peers. `token`: this node's own. Call `forget` in the end."""

    def __init__(self, settings: Settings, application: FastAPI, token: str) -> None:
        self._settings, self._application, self._token = settings, application, token
        self._kept = KeptClients()
        self.name = str(settings.server.name)
        self._looks: dict[str, _PeerLook] = {}
        self._said_names = {self.name: self.name}  # of nodes, by the names that the configuration has for them

    @property
    def names(self) -> list[str]:
        """Of the nodes that can be asked, this one first."""
        return [self.name, *(peer.name for peer in self._settings.peers if peer.admin)]

    def adopt(self, settings: Settings) -> None:
        """The peers are others now."""
        self._settings = settings
        self.forget_looks()
        self.forget()
        self._said_names = {self.name: self.name}

    def forget(self) -> None:
        """Closes the connections to the others."""
        self._kept.close()

    def forget_looks(self) -> None:
        """The next look waits for new answers."""
        self._looks = {}

    async def ask(self, question: Callable[[NodeClient], Any]) -> list[NodeAnswer]:
        """One answer of each, this node's first, of all at the same time."""
        return await asyncio.to_thread(self._ask, question, asyncio.get_running_loop())

    async def look(self, *, with_history: bool) -> list[NodeAnswer]:
        """As `ask` with `look_closely`, for what is asked often: this node without HTTP, which would cost more than the answer. A peer that
        has answered before is waited for `SLOW_SECONDS`: while it is slow its last answer counts, for `PATIENCE_SECONDS`."""
        began = asyncio.get_running_loop().time()
        names = [peer.name for peer in self._settings.peers]
        self._looks = {name: self._looks.get(name) or _PeerLook() for name in names}
        looks = list(self._looks.values())
        for name, its in self._looks.items():
            if its.asking is None:
                its.begin(asyncio.create_task(self._look_at(name, with_history)))
        own = await self._own_look(with_history)
        asking = [its.asking for its in looks if its.asking is not None]
        patience = PATIENCE_SECONDS if any(its.last is None for its in looks) else SLOW_SECONDS
        if asking:
            await asyncio.wait(asking, timeout=max(began + patience - asyncio.get_running_loop().time(), 0))
        return [own, *(its.answer(name) for name, its in zip(names, looks, strict=True))]

    async def _look_at(self, name: str, with_history: bool) -> NodeAnswer:
        question = partial(look_closely, with_history=with_history)
        (answer,) = await asyncio.to_thread(self._ask, question, asyncio.get_running_loop(), (name,))
        return answer

    async def _own_look(self, with_history: bool) -> NodeAnswer:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS * 2):
                return NodeAnswer(self.name, (await self._application.state.glance(history=with_history)).model_dump(mode="json"))
        except (LedgerUnavailable, TimeoutError):
            return NodeAnswer(self.name, error="the queue database of this node does not answer now; its operator log says why", status=503)

    async def asking(self, work: Callable[[Callable[[Callable[[NodeClient], Any]], list[NodeAnswer]]], Answer]) -> Answer:
        """Work that asks all nodes several times, one question after the other."""
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(work, lambda question: self._ask(question, loop))

    async def ask_one(
        self, node: str, token: str, question: Callable[[NodeClient], Answer], *, is_everywhere: bool, is_act: bool = False
    ) -> Answer:
        """With a person's token, which all nodes know if `is_everywhere`. Raises: NodeError."""
        loop = asyncio.get_running_loop()

        def one() -> Answer:
            seconds = ACT_SECONDS if is_act else PATIENCE_SECONDS
            with self._client_of(node, token, loop, seconds, is_everywhere=is_everywhere) as client:
                return question(client)

        return await asyncio.to_thread(one)

    def _ask(self, question: Callable[[NodeClient], Any], loop: asyncio.AbstractEventLoop, only: Collection[str] = ()) -> list[NodeAnswer]:
        clients: list[tuple[str, NodeClient]] = []
        without: list[NodeAnswer] = []
        with ExitStack() as stack:
            if not only:
                clients.append((self.name, stack.enter_context(self._kept.client(self.name, lambda: self._own_client(self._token, loop)))))
            for peer in self._settings.peers:
                if only and peer.name not in only:
                    continue
                if not peer.admin:
                    without.append(NodeAnswer(peer.name, error=NOT_CONFIGURED))
                    continue
                try:
                    clients.append((peer.name, stack.enter_context(self._kept.client(peer.name, partial(self._peer_client, peer)))))
                except (NodeError, ConfigurationError) as exc:
                    without.append(NodeAnswer(peer.name, error=str(exc)))
            return asked(clients, question, self._said_names) + without

    def _peer_client(self, peer: Peer) -> NodeClient:
        return client_of_peer(self._settings, peer, lambda: self._token, PATIENCE_SECONDS)

    def _own_client(self, token: str, loop: asyncio.AbstractEventLoop) -> NodeClient:
        return NodeClient(OWN, token, transport=OwnTransport(self._application, loop))

    def _client_of(self, node: str, token: str, loop: asyncio.AbstractEventLoop, seconds: float, *, is_everywhere: bool) -> NodeClient:
        if node == self.name:
            return self._own_client(token, loop)
        peer = next((peer for peer in self._settings.peers if peer.name == node and peer.admin), None)
        if peer is None:
            raise NodeError(f"{node}: {NOT_CONFIGURED}")
        if not is_everywhere:
            raise NodeError(
                f"the administrator's token of this node is not that of {node}: log in there, or with a token of [[admin.users]], "
                "which all nodes may know"
            )
        return _client_with_token(self._settings, peer, token, seconds)


def _client_with_token(settings: Settings, peer: Peer, token: str, seconds: float) -> NodeClient:
    """Its certificate is checked as for what nodes read of each other; without encryption only on this machine."""
    client_of_peer(settings, peer, lambda: token, seconds).close()  # raises where a token must not go
    tls = settings.tls
    if peer.admin.startswith("https:") and tls is not None and tls.peer_authority is not None:
        return NodeClient(peer.admin, token, authority=tls.peer_authority, name=peer.name, tls=tls, timeout=seconds)
    return NodeClient(peer.admin, token, name=peer.name if peer.admin.startswith("https:") else "", timeout=seconds)
