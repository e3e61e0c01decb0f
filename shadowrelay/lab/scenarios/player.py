"""Runs a scenario in a healthy lab, repairs the lab afterwards, and collects the evidence. docs/lab.md "Scenarios".

Every step is a method of `Lab`. The evidence is the tracking logs, operator logs and admin addresses of the nodes, and the log of the
sending Postfix. `verdict` judges it.
"""

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime

from shadowrelay.lab.account import FaultKind
from shadowrelay.lab.compose import Lab
from shadowrelay.lab.disturbance import ALIVE
from shadowrelay.lab.engine import NodeStatus, ask
from shadowrelay.lab.mail import Sending
from shadowrelay.lab.scenarios.script import Operation, Scenario, Step
from shadowrelay.lab.scenarios.verdict import Database, LoggedRow, ScenarioEvidence, Verdict, judge
from shadowrelay.lab.topology import MACHINES, NODES, SENDER, LabError, machine
from shadowrelay.lab.verification import Verification, injected, since
from shadowrelay.model.replies import WireError
from shadowrelay.protocol.fields import format_instant
from shadowrelay.protocol.tracking import parse_line

# ---- evidence

LOG_SECONDS_MAX = 60.0
TRACKING = "/var/log/shadowrelay/tracking"
# Instants compare as text; header lines begin with #, which sorts before any digit.
ROWS_SINCE = "cat {directory}/MSGTRK*.LOG 2>/dev/null | awk -F, '$1 >= \"{instant}\"' || true"

_REPLY = re.compile(r"postfix/smtp\[\d+\]: .*host \S+\[[^\]]*\] said: ([45]\d\d [245]\.\d+\.\d+)")


def database(lab: Lab, node: str) -> Database:
    """The queue database of a running node, from its API. Raises: LabError if it does not answer."""
    answer = ask(lab.engine, node, "/api/v1/node")
    started_at = datetime.fromisoformat(answer["started_at"]).timestamp()
    former = str(answer["former_database"])
    return Database(str(answer["database"]), int(answer["incarnation"]), int(answer["began"]), int(answer["position"]), started_at, former)


def collect(
    lab: Lab,
    verification: Verification,
    began_at: float,
    databases: Mapping[str, Sequence[Database]],
    *,
    stopped: Iterable[str] = (),
    waiting: int = 0,
) -> ScenarioEvidence:
    """The evidence about messages sent from `began_at` on. All nodes must be up. Units: `began_at` is time.time."""
    given, arrived = since(injected(lab.state.injected_lines()), lab.mail.arrivals(), began_at)
    return ScenarioEvidence(
        verification=verification,
        logged=tuple(sorted((row for node in NODES for row in _tracking(lab, node, began_at)), key=lambda row: row.event.at)),
        words=words(line for node in NODES for line in _log(lab, node, began_at)),
        replies=replies(_log(lab, SENDER, began_at)),
        databases={machine(node).server: (*series, database(lab, node)) for node, series in databases.items()},
        sent=tuple(lab.mail.sent(given)),
        arrived=tuple(arrived),
        stopped=frozenset(machine(node).server for node in stopped),
        waiting=waiting,
    )


def held_copies(lab: Lab) -> int:
    """Copies that all nodes together hold for others now."""
    return sum(one.held or 0 for one in lab.status())


def words(lines: Iterable[str]) -> Counter[str]:
    """How often each event occurs in operator logs (one JSON object per line; other lines are skipped)."""
    found: Counter[str] = Counter()
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found[str(value.get("event", ""))] += 1
    return found


def replies(lines: Iterable[str]) -> Counter[str]:
    """How often Postfix received each negative reply, by its codes ("451 4.4.0")."""
    return Counter(match[1] for line in lines if (match := _REPLY.search(line)))


def rows(server: str, text: bytes) -> list[LoggedRow]:
    """Rows of a tracking log. Raises: LabError if a row cannot be parsed, because then no conclusion is possible."""
    try:
        return [LoggedRow(server, parse_line(line)) for line in text.splitlines(keepends=True)]
    except WireError as error:
        raise LabError(f"a row in the tracking log of {server} cannot be read: {error}") from error


def _tracking(lab: Lab, node: str, began_at: float) -> list[LoggedRow]:
    command = ROWS_SINCE.format(directory=TRACKING, instant=format_instant(datetime.fromtimestamp(began_at, UTC)))
    return rows(machine(node).server, lab.engine.execute(node, "sh", "-c", command))


def _log(lab: Lab, service: str, began_at: float) -> list[str]:
    # both streams: nodes log to standard error, Postfix to standard output
    command = ["docker", "logs", "--since", f"{began_at:.3f}", lab.engine.container(service)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LOG_SECONDS_MAX, check=False)
    if done.returncode:
        raise LabError(f"the log of {service} cannot be read: {done.stdout.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace").splitlines()


# ---- running a scenario

VERIFY_SECONDS_MAX = 120.0
HEALED_SECONDS_MAX = 60.0
REACHED_SECONDS_MAX = 10.0  # some heartbeats
LEFT_SECONDS_MAX = 60.0  # a copy in flight when a cut began arrives after it; its holder asks about it once per span, and then drops it
POLL_SECONDS = 1.0
STOPPING = (Operation.KILL, Operation.WIPE, Operation.BURN, Operation.PAUSE, Operation.RESTORE)
RESTARTING = (Operation.KILL, Operation.WIPE, Operation.BURN, Operation.RESTORE, Operation.ROLL)
NOT_QUIET = "the lab is not ready for a scenario: {reason}; `shadowrelay lab status`, `heal`, `start NODE`, `defer off` …"

Say = Callable[[str], None]


def play(lab: Lab, scenario: Scenario, *, say: Say) -> Verdict:
    """Run it to its verdict. `say` receives the narration, one line per call.

    Raises: LabError if the lab is not healthy before or after, a step fails, or another command is running.
    """
    player = _Player(lab, say)
    with lab.playing(scenario.name):
        player.check()
        with ThreadPoolExecutor(1) as pool:
            try:
                for step in scenario.steps:
                    player.take(step, pool)
                player.wait_until_sent()
                say("verifying")
                verification = lab.verify(VERIFY_SECONDS_MAX, began_at=player.began_at)
            except BaseException:  # also Ctrl-C
                for trouble in player.restore():
                    say(f"not restored: {trouble}")  # the first error is the reason, and is raised
                raise
            if troubles := player.restore():
                raise LabError("\n".join(troubles))
            evidence = collect(
                lab, verification, player.began_at, player.databases, stopped=player.stopped, waiting=player.waiting
            )  # fmt: skip
    return judge(scenario, evidence)


class _Player:
    """Shapes: `databases` has the samples of each node, oldest first; `stopped` the nodes that were killed or paused."""

    def __init__(self, lab: Lab, say: Say) -> None:
        self._lab, self._say = lab, say
        self._sending: Future[Sending] | None = None
        self._poured = 0
        self.began_at = time.time()
        self.databases: dict[str, list[Database]] = {}
        self.stopped: set[str] = set()
        self.waiting = 0

    def check(self) -> None:
        """Require healthy nodes, no cuts and empty queues, so that all later effects come from the scenario."""
        ill = [f"{one.node} is {one.state}" for one in self._lab.status() if one.state != "healthy"]
        faults = self._lab.faults_in_force()
        if ill or faults:
            raise LabError(NOT_QUIET.format(reason="; ".join([*ill, *faults])))
        # a cut that is not logged counts as one; but nodes that have just started still connect to each other
        if not self._until_whole(REACHED_SECONDS_MAX):
            apart = [f"{one.node} reaches {one.peers_reachable} of {len(NODES) - 1} nodes" for one in self._apart()]
            raise LabError(NOT_QUIET.format(reason="; ".join(apart)))
        if not self._until(lambda: self._lab.mail.backlog().is_empty, LEFT_SECONDS_MAX):
            raise LabError(NOT_QUIET.format(reason="earlier mail is still queued (`shadowrelay lab verify` waits for it)"))
        self.databases = {node: [database(self._lab, node)] for node in NODES}
        self.began_at = time.time()

    def take(self, step: Step, pool: ThreadPoolExecutor) -> None:
        """Run one step, after its text."""
        self._say(step.text)
        if step.operation in RESTARTING:
            self._sample(step.places or NODES)
        if step.operation in STOPPING:
            self.stopped |= set(step.places)
        self._do(step, pool)

    def _do(self, step: Step, pool: ThreadPoolExecutor) -> None:
        lab, places = self._lab, step.places
        match step.operation:
            case Operation.SEND:
                self._expect_all(lab.mail.send(step.amount, step.rate, step.size), step.amount)
            case Operation.POUR:
                self._sending, self._poured = pool.submit(lab.mail.send, step.amount, step.rate, step.size), step.amount
            case Operation.WAIT:
                time.sleep(step.amount)
            case Operation.DEFER | Operation.TAKE:
                lab.defer(step.operation is Operation.DEFER)
            case Operation.CUT:
                lab.cut(*places)
            case Operation.SLOW:
                lab.slow(*places)
            case Operation.HEAL:
                lab.heal()
            case Operation.ROLL:
                lab.roll()
            case Operation.BURN:
                lab.burn(*places)
            case Operation.REDIRECT:
                lab.redirect(*places)
            case Operation.RESUBMIT:
                lab.resubmit(places[0], self.began_at)
            case Operation.CONFIGURE:
                lab.configure(step.setting, *places)
            case Operation.LOOK:
                self.waiting = held_copies(lab)
                self._say(f"  {self.waiting} copies are held by shadow servers")
            case _:
                self._of_node(step.operation)(places[0])

    def _of_node(self, operation: Operation) -> Callable[[str], object]:
        lab = self._lab
        methods: dict[Operation, Callable[[str], object]] = {
            Operation.KILL: lab.kill,
            Operation.START: lab.start,
            Operation.WIPE: lab.wipe,
            Operation.PAUSE: lab.pause,
            Operation.UNPAUSE: lab.unpause,
            Operation.DRAIN: lab.drain,
            Operation.FILL: lab.fill_disk,
            Operation.FREE: lab.free_disk,
            Operation.SAVE: lab.save_database,
            Operation.RESTORE: lab.restore_old_database,
        }
        return methods[operation]

    def _sample(self, nodes: tuple[str, ...]) -> None:
        states = self._lab.engine.states()
        for node in nodes:
            if states.get(node) in ALIVE:  # else it was looked at before it was killed
                self.databases[node].append(database(self._lab, node))

    def wait_until_sent(self) -> None:
        """Wait until Postfix has everything. Raises: LabError if sending failed."""
        if self._sending is not None:
            self._expect_all(self._sending.result(), self._poured)

    def _expect_all(self, sending: Sending, count: int) -> None:
        if sending.accepted != count:
            raise LabError(f"the sending Postfix accepted only {sending.accepted} of {count} messages")

    def restore(self) -> list[str]:
        """Repair the lab for the next scenario, whatever happened. Continues after errors, and returns them as text."""
        lab, troubles = self._lab, list[str]()

        def do(method: Callable[..., object], *arguments: object) -> None:
            try:
                method(*arguments)
            except LabError as exc:
                troubles.append(str(exc))

        do(lab.defer, False)
        do(lab.heal)
        do(self._restore_nodes, do)
        do(lab.configure, "")
        do(self._require_whole)
        return troubles

    def _restore_nodes(self, do: Callable[..., None]) -> None:
        states, faults = self._lab.engine.states(), self._lab.faults_in_force()
        for one in MACHINES:
            is_alive = states.get(one.short) in ALIVE
            if states.get(one.short) == "paused" or (is_alive and f"{FaultKind.PAUSE} {one.server}" in faults):
                do(self._lab.unpause, one.short)
            # a fault that was logged but interrupted must be ended in the log, too
            if not is_alive or {f"{FaultKind.KILL} {one.server}", f"{FaultKind.WIPE} {one.server}"} & set(faults):
                do(self._lab.start, one.short)
            do(self._lab.free_disk, one.short)

    def _require_whole(self) -> None:
        if not self._until_whole(HEALED_SECONDS_MAX):
            raise LabError(f"the lab has not recovered after {HEALED_SECONDS_MAX:.0f} s: {self._apart()}")

    def _until_whole(self, seconds: float) -> bool:
        return self._until(lambda: not self._apart(), seconds)

    def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _apart(self) -> list[NodeStatus]:
        """Nodes that are not healthy, or do not reach all others."""
        return [one for one in self._lab.status() if one.state != "healthy" or one.peers_reachable != len(NODES) - 1]
