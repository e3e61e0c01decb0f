"""Plays a scenario in a lab that is up, and leaves it healed: every step is a method of `Lab`. The judgement is in `verdict`."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from shadowrelay.lab.causes import FaultKind
from shadowrelay.lab.compose import Lab
from shadowrelay.lab.disturbance import ALIVE
from shadowrelay.lab.mail import Sending
from shadowrelay.lab.places import MACHINES, NODES, LabError
from shadowrelay.lab.reading import NodeStatus
from shadowrelay.lab.scenarios.evidence import collect, database, held_copies
from shadowrelay.lab.scenarios.figures import Database
from shadowrelay.lab.scenarios.script import Deed, Scenario, Step
from shadowrelay.lab.scenarios.verdict import Verdict, judge

VERIFY_SECONDS_MAX = 120.0
HEALED_SECONDS_MAX = 60.0
REACHED_SECONDS_MAX = 10.0  # some heartbeats
LEFT_SECONDS_MAX = 60.0  # a copy that was on its way when a cut began arrives when it ends, and is told once a span that it is too late
POLL_SECONDS = 1.0
STOPPING = (Deed.KILL, Deed.WIPE, Deed.PAUSE, Deed.RESTORE)
RESTARTING = (Deed.KILL, Deed.WIPE, Deed.RESTORE, Deed.ROLL)
NOT_QUIET = "the lab is not as it should be when a scenario begins: {reason}; `shadowrelay lab status`, `heal`, `start NODE`, `defer off` …"

Say = Callable[[str], None]


def play(lab: Lab, scenario: Scenario, *, say: Say) -> Verdict:
    """Play it to its verdict. `say` gets the narration, a line a call.

    Raises: LabError if the lab is not healthy before, does not become so afterwards, a step cannot be taken, or another command is
    at work.
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
            except BaseException:  # Ctrl-C, too
                for trouble in player.restore():
                    say(f"not restored: {trouble}")  # what came first is the reason, and is raised
                raise
            if troubles := player.restore():
                raise LabError("\n".join(troubles))
            evidence = collect(
                lab, verification, player.began_at, player.databases, stopped=player.stopped, waiting=player.waiting
            )  # fmt: skip
    return judge(scenario, evidence)


class _Player:
    """Shapes: `databases` has the samples of each node, oldest first; `stopped` the nodes that were killed or frozen."""

    def __init__(self, lab: Lab, say: Say) -> None:
        self._lab, self._say = lab, say
        self._sending: Future[Sending] | None = None
        self._poured = 0
        self.began_at = time.time()
        self.databases: dict[str, list[Database]] = {}
        self.stopped: set[str] = set()
        self.waiting = 0

    def check(self) -> None:
        """Nobody is sick, nothing is cut, nothing waits: what is seen later is the scenario's own."""
        ill = [f"{one.node} is {one.state}" for one in self._lab.status() if one.state != "healthy"]
        faults = self._lab.faults_in_force()
        if ill or faults:
            raise LabError(NOT_QUIET.format(reason="; ".join([*ill, *faults])))
        # a cut that nobody wrote down is one; but nodes that have just started look for each other first
        if not self._until_whole(REACHED_SECONDS_MAX):
            apart = [f"{one.node} reaches {one.peers_reachable} of {len(NODES) - 1} nodes" for one in self._apart()]
            raise LabError(NOT_QUIET.format(reason="; ".join(apart)))
        if not self._until(self._is_nothing_left, LEFT_SECONDS_MAX):
            raise LabError(NOT_QUIET.format(reason="mail of before still waits (`shadowrelay lab verify` waits for it)"))
        self.databases = {node: [database(self._lab, node)] for node in NODES}
        self.began_at = time.time()

    def take(self, step: Step, pool: ThreadPoolExecutor) -> None:
        """One step, after its words."""
        self._say(step.text)
        if step.deed in RESTARTING:
            self._sample(step.places or NODES)
        if step.deed in STOPPING:
            self.stopped |= set(step.places)
        self._do(step, pool)

    def _do(self, step: Step, pool: ThreadPoolExecutor) -> None:
        lab, places = self._lab, step.places
        match step.deed:
            case Deed.SEND:
                self._expect_all(lab.mail.send(step.amount, step.rate, step.size), step.amount)
            case Deed.POUR:
                self._sending, self._poured = pool.submit(lab.mail.send, step.amount, step.rate, step.size), step.amount
            case Deed.WAIT:
                time.sleep(step.amount)
            case Deed.DEFER | Deed.TAKE:
                lab.defer(step.deed is Deed.DEFER)
            case Deed.CUT:
                lab.cut(*places)
            case Deed.SLOW:
                lab.slow(*places)
            case Deed.HEAL:
                lab.heal()
            case Deed.ROLL:
                lab.roll()
            case Deed.LOOK:
                self.waiting = held_copies(lab)
                self._say(f"  {self.waiting} copies wait at shadow servers")
            case _:
                self._of_node(step.deed)(places[0])

    def _of_node(self, deed: Deed) -> Callable[[str], object]:
        lab = self._lab
        deeds: dict[Deed, Callable[[str], object]] = {
            Deed.KILL: lab.kill,
            Deed.START: lab.start,
            Deed.WIPE: lab.wipe,
            Deed.PAUSE: lab.pause,
            Deed.UNPAUSE: lab.unpause,
            Deed.FILL: lab.fill_disk,
            Deed.FREE: lab.free_disk,
            Deed.SAVE: lab.save_database,
            Deed.RESTORE: lab.restore_old_database,
        }
        return deeds[deed]

    def _sample(self, nodes: tuple[str, ...]) -> None:
        for node in nodes:
            self.databases[node].append(database(self._lab, node))

    def wait_until_sent(self) -> None:
        """Until Postfix has everything. Raises: LabError if sending broke off."""
        if self._sending is not None:
            self._expect_all(self._sending.result(), self._poured)

    def _expect_all(self, sending: Sending, count: int) -> None:
        if sending.accepted != count:
            raise LabError(f"the sending Postfix took only {sending.accepted} of {count} messages")

    def restore(self) -> list[str]:
        """Whatever happened, the next scenario finds a lab that works. Returns what could not be done, in words, and tries the rest."""
        lab, troubles = self._lab, list[str]()

        def do(deed: Callable[..., object], *arguments: object) -> None:
            try:
                deed(*arguments)
            except LabError as exc:
                troubles.append(str(exc))

        do(lab.defer, False)
        do(lab.heal)
        do(self._restore_nodes, do)
        do(self._require_whole)
        return troubles

    def _restore_nodes(self, do: Callable[..., None]) -> None:
        states, faults = self._lab.engine.states(), self._lab.faults_in_force()
        for one in MACHINES:
            is_alive = states.get(one.short) in ALIVE
            if states.get(one.short) == "paused" or (is_alive and f"{FaultKind.PAUSE} {one.server}" in faults):
                do(self._lab.unpause, one.short)
            # a fault that was written down and interrupted then is ended in the log, too
            if not is_alive or {f"{FaultKind.KILL} {one.server}", f"{FaultKind.WIPE} {one.server}"} & set(faults):
                do(self._lab.start, one.short)
            do(self._lab.free_disk, one.short)

    def _require_whole(self) -> None:
        if not self._until_whole(HEALED_SECONDS_MAX):
            raise LabError(f"the lab is not whole again after {HEALED_SECONDS_MAX:.0f} s: {self._apart()}")

    def _until_whole(self, seconds: float) -> bool:
        return self._until(lambda: not self._apart(), seconds)

    def _until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _is_nothing_left(self) -> bool:
        return self._lab.mail.backlog().is_empty

    def _apart(self) -> list[NodeStatus]:
        """Those that are not healthy, or do not reach everybody."""
        return [one for one in self._lab.status() if one.state != "healthy" or one.peers_reachable != len(NODES) - 1]
