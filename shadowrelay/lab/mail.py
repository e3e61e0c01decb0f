"""Mail in the lab: sends through Postfix, reads arrivals at the receiving servers, and counts what is queued. docs/lab.md."""

import contextlib
import json
import queue
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from shadowrelay.lab.engine import Engine, node_status, unfinished
from shadowrelay.lab.state import State
from shadowrelay.lab.topology import NODES, RECEIVERS, SENDER, LabError
from shadowrelay.lab.traffic import Arrival, Sent
from shadowrelay.lab.verification import Injected, arrivals, injected, sent_messages, tries
from shadowrelay.signals import ended_in_order

ARRIVALS = "/var/lib/record/arrivals.jsonl"
STOP_SECONDS_MAX = 35.0  # the sender in the container waits 30 s for a reply of Postfix

OnSent = Callable[[Injected], None]


@dataclass(frozen=True, slots=True)
class Sending:
    """The result of a load: messages accepted and refused by Postfix."""

    accepted: int
    refused: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """Queued messages: at the sending Postfix (its queue ids), at running nodes (`held`: copies for others), at the receiving servers.

    `silent`: nodes that do not answer, because they are down, paused or unreachable.
    """

    at_sender: frozenset[str] = frozenset()
    to_deliver: int = 0
    held: int = 0
    at_receivers: int = 0
    silent: tuple[str, ...] = ()
    network_ids: frozenset[str] = field(default_factory=frozenset)

    @property
    def is_empty(self) -> bool:
        return not (self.at_sender or self.to_deliver or self.held or self.at_receivers)


class Injection:
    """A running load. Iterate over it, or `wait` for its end; `stop` ends it early.

    A thread records sent messages, because an interrupt from the terminal can hit the main thread at any point.
    """

    def __init__(self, process: "subprocess.Popen[str]", state: State, count: int) -> None:
        self._process, self._state, self.count = process, state, count
        self.sent: list[Injected] = []
        self._news: queue.SimpleQueue[Injected | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="injection", daemon=True)
        self._reader.start()

    def __iter__(self) -> Iterator[Injected]:
        while (one := self._news.get()) is not None:
            yield one
        if self._process.wait():
            raise LabError(f"sending ended after {len(self.sent)} of {self.count}: {self._error()}")

    def wait(self, on_sent: OnSent = lambda one: None) -> Sending:
        """Wait until everything is sent. Raises: LabError if the sender failed."""
        for one in self:
            on_sent(one)
        accepted = sum(bool(one.queue_id) for one in self.sent)
        return Sending(accepted, len(self.sent) - accepted)

    def stop(self) -> None:
        """Stop the sender in the container; messages already sent are recorded. No effect after the end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # the sender stops at end of file
        self._reader.join(STOP_SECONDS_MAX)
        if self._reader.is_alive():
            self._process.kill()
            self._reader.join()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                with self._state.sent.open("a", encoding="utf-8") as file:
                    file.write(line)
                self.sent += injected([line])
                self._news.put(self.sent[-1])
        finally:
            self._news.put(None)

    def _error(self) -> str:
        text = self._process.stderr.read() if self._process.stderr is not None else ""
        return text.strip().splitlines()[-1] if text.strip() else "no reason given"


class Mail:
    """Access to the real mail servers of the lab."""

    def __init__(self, engine: Engine, state: State) -> None:
        self._engine, self._state = engine, state

    @contextlib.contextmanager
    def sending(self, count: int, rate: float = 20.0, size: int = 4096) -> Iterator[Injection]:
        """Start to send `count` messages of `size` bytes to Postfix, `rate` a second; stops when the context ends."""
        self._engine.check()
        first = len(self._state.injected_lines()) + 1
        arguments = [secrets.token_hex(4), str(count), str(rate), str(size), str(first)]
        command = ["docker", "exec", "--interactive", self._engine.container(SENDER), "/lab/inject.py", *arguments]
        # a separate session: an interrupt from the terminal must not end the sender before it has reported what it sent
        with (
            ended_in_order(),
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            ) as process,
        ):
            injection = Injection(process, self._state, count)
            try:
                yield injection
            finally:
                injection.stop()

    def send(self, count: int, rate: float = 20.0, size: int = 4096, on_sent: OnSent = lambda one: None) -> Sending:
        """Send and wait until Postfix has accepted or refused everything."""
        with self.sending(count, rate, size) as injection:
            return injection.wait(on_sent)

    def sent(self, given: Sequence[Injected]) -> list[Sent]:
        """Each message with the replies that Postfix received from the nodes."""
        log = self._engine.docker("logs", "--timestamps", self._engine.container(SENDER)).decode(errors="replace")
        return sent_messages(given, tries(log.splitlines()))

    def arrivals(self) -> list[Arrival]:
        """All arrivals that the receiving servers recorded."""
        texts = [self._engine.execute(service, "sh", "-c", f"cat {ARRIVALS} 2>/dev/null || true").decode() for service in RECEIVERS]
        return arrivals(line for text in texts for line in text.splitlines())

    def backlog(self) -> Backlog:
        """Ask all servers; nodes that are down, paused or unreachable count as `silent`."""
        states = self._engine.states()
        with ThreadPoolExecutor(len(NODES)) as pool:
            told = list(pool.map(lambda node: node_status(self._engine, node, states.get(node, "missing")), NODES))
        asked = [one for one in told if one.to_deliver is not None]
        waiting = [one.node for one in asked if one.to_deliver or one.held]
        ids = [_unfinished(self._engine, node) for node in waiting]
        return Backlog(
            at_sender=self._queued(SENDER),
            to_deliver=sum(one.to_deliver or 0 for one in asked),
            held=sum(one.held or 0 for one in asked),
            silent=tuple(one.node for one in told if one.to_deliver is None),
            at_receivers=len(self._queued("postfix")) + int(self._engine.execute("exim", "exim4", "-bpc")),
            network_ids=frozenset().union(*ids),
        )

    def _queued(self, service: str) -> frozenset[str]:
        return frozenset(json.loads(line)["queue_id"] for line in self._engine.execute(service, "postqueue", "-j").splitlines() if line)


def _unfinished(engine: Engine, node: str) -> set[str]:
    """Messages of a node that answered a moment ago. If it is down now, none; the next poll asks again."""
    try:
        return unfinished(engine, node)
    except LabError:
        return set()
