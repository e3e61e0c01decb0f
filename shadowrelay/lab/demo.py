"""`shadowrelay demo`: three nodes in two sites, real mail, one server destroyed, another down too long. docs/operations.md "Commands"."""

import asyncio
import contextlib
import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from shadowrelay.lab.account import Account, Fault, FaultKind, FaultTimes, account, has_all_arrived
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, instant, rows
from shadowrelay.lab.sla_report import Report, compared, contradictions, make_report
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.model.printable import escaped
from shadowrelay.tracking import operator_log

PLACES = (Place("mx1.east.example", "east"), Place("mx2.east.example", "east"), Place("mx1.west.example", "west"))
TIMES = FaultTimes(span=8.0, heartbeat=1.0, poll=0.25)  # of lab.cluster.SHORT_TIMES
RATE = 60.0  # messages a second
TAKEN_OVER_MIN = 50
SETTLE_SECONDS_MAX = 30.0
EVIDENCE = Path(".demo")  # in the working directory: shipped tracking logs, and the report


@dataclass(slots=True)
class DemoTakeover:
    """A lost server, and when its last message was taken over (from the tracking logs of the others)."""

    node: str
    lost_at: float
    count: int = 0
    seconds: float = 0.0


def run(*, messages_count: int = 600, directory: Path | None = None, evidence: Path = EVIDENCE, as_json: bool = False) -> int:
    """Exit status: 0 if nothing was lost, every duplicate has a cause, enough was taken over, and the report agrees."""
    console = Console(stderr=as_json)
    operator_log.configure("critical")  # the table shows what the clients and the receiving server of this process recorded
    try:
        return asyncio.run(_Demo(console, messages_count, directory, evidence, as_json).run())
    except KeyboardInterrupt:
        console.print("stopped; no process is left behind")
        return 128 + signal.SIGINT
    except asyncio.CancelledError:
        console.print("stopped; no process is left behind")
        return 128 + signal.SIGTERM


class _Demo:
    def __init__(self, console: Console, messages_count: int, directory: Path | None, evidence: Path, as_json: bool) -> None:
        self.console = console
        self.evidence = evidence
        self.count = messages_count
        self.directory = directory
        self.as_json = as_json
        self.faults: list[Fault] = []
        self.takeovers: list[DemoTakeover] = []

    async def run(self) -> int:
        self._handle_signals()
        began = time.monotonic()
        shipped = self.evidence.absolute() / "logs"
        shutil.rmtree(shipped, ignore_errors=True)
        shipped.mkdir(parents=True)
        sink = Sink()
        next_hop = await sink.start()
        try:
            self.console.print("starting three nodes in two sites, with mutual TLS between them, and a receiving server …")
            shipping = {"shipping": {"target": str(shipped), "interval": "5s"}}
            async with Cluster(PLACES, next_hop, directory=self.directory, tables=shipping, is_secured=True) as cluster:
                load = Load({name: node.address for name, node in cluster.nodes.items()}, random.Random())
                try:
                    await self._story(cluster, sink, load)
                finally:
                    await load.close()
                result = account(load.sent, sink.arrivals, self.faults, TIMES)
                redundant = count_redundant(cluster)
                self._count_takeovers(cluster)
        finally:
            await sink.close()
        self.console.print("the nodes have ended; Spark computes the report from the logs that they shipped: half a minute or more …")
        with Progress(SpinnerColumn(), TextColumn("Spark computes the report"), TimeElapsedColumn(), console=self.console) as progress:
            progress.add_task("", total=None)
            report = await make_report(shipped, self.evidence / "report", TIMES)
        differences = contradictions(report.overall, result, load.sent, redundant) if report.page else []
        return self._report(result, redundant, report, differences, time.monotonic() - began)

    def _handle_signals(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, task.cancel)

    async def _story(self, cluster: Cluster, sink: Sink, load: Load) -> None:
        columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            sent = progress.add_task("accepted", total=self.count)
            bar = progress.add_task("delivered", total=self.count)

            async def count() -> None:
                while True:
                    progress.update(sent, completed=_acknowledged(load))
                    progress.update(bar, completed=len({arrival.internet_message_id for arrival in sink.arrivals}))
                    await asyncio.sleep(0.2)

            def tell(what: str) -> None:
                progress.console.print(f"  [dim]{time.strftime('%H:%M:%S')}[/dim] {what}")

            counting = asyncio.create_task(count())
            sending = asyncio.create_task(load.run(self.count, rate=RATE))
            try:
                await self._until(lambda: _acknowledged(load) >= self.count * 0.25)
                await self._destroy_one(cluster, sink, load, tell)
                await self._until(lambda: _acknowledged(load) >= self.count * 0.65)
                await self._keep_one_away(cluster, sink, load, tell)
                await sending
                tell(f"all messages are sent; waiting until they have arrived, and {3 * TIMES.heartbeat:g} s more for duplicates")
                await self._settled(load, sink)
            finally:
                for task in (sending, counting):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    async def _destroy_one(self, cluster: Cluster, sink: Sink, load: Load, tell: Callable[[str], None]) -> None:
        tell("the receiving server defers everything: mail queues up")
        sink.is_deferring = True
        before = _acknowledged(load)
        await self._until(lambda: _acknowledged(load) >= before + self.count * 0.2)
        victim = busiest(cluster, load, sink)
        tell(f"{victim.name} is killed, and its disk destroyed with mail on it")
        await victim.kill()
        killed_at = time.time()
        victim.wipe()
        tell(f"{victim.name} comes back empty")
        await victim.start()
        self.faults.append(Fault(FaultKind.WIPE, victim.name, victim.kills[-1], time.time()))
        self.takeovers.append(DemoTakeover(victim.name, killed_at))
        await self._until_taken_over(cluster, self.takeovers[-1])
        tell("the receiving server accepts mail again")
        sink.is_deferring = False

    async def _keep_one_away(self, cluster: Cluster, sink: Sink, load: Load, tell: Callable[[str], None]) -> None:
        tell("the receiving server defers everything again")
        sink.is_deferring = True
        before = _acknowledged(load)
        await self._until(lambda: _acknowledged(load) >= min(before + self.count * 0.2, self.count * 0.95))
        victim = busiest(cluster, load, sink)
        tell(f"{victim.name} is killed, and stays down for longer than {TIMES.span:g} s")
        await victim.kill()
        killed_at = time.time()
        self.takeovers.append(DemoTakeover(victim.name, killed_at))
        await asyncio.sleep(TIMES.span)
        await self._until_taken_over(cluster, self.takeovers[-1])
        tell("the receiving server accepts mail again")
        sink.is_deferring = False
        await asyncio.sleep(TIMES.heartbeat)
        tell(f"{victim.name} comes back with its old queue")
        await victim.start()
        self.faults.append(Fault(FaultKind.KILL, victim.name, victim.kills[-1], time.time()))

    async def _until_taken_over(self, cluster: Cluster, takeover: DemoTakeover) -> None:
        """The others have begun, and for a moment nothing more was taken over; a while at most."""
        deadline, seen = time.monotonic() + SETTLE_SECONDS_MAX, 0
        while time.monotonic() < deadline:
            await asyncio.sleep(TIMES.heartbeat / 2)
            count = len(promotion_instants(cluster, takeover.node, since=takeover.lost_at))
            if count and count == seen:
                return
            seen = count

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():  # noqa: ASYNC110 - clients and server record into plain lists
            await asyncio.sleep(0.02)

    async def _settled(self, load: Load, sink: Sink) -> None:
        """Wait until everything acknowledged has arrived, and then a little longer, so that duplicates can arrive."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline:
            if has_all_arrived(load.sent, sink.arrivals):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(3 * TIMES.heartbeat)

    def _count_takeovers(self, cluster: Cluster) -> None:
        for takeover in self.takeovers:
            instants = promotion_instants(cluster, takeover.node, since=takeover.lost_at)
            takeover.count = len(instants)
            takeover.seconds = max(instants, default=takeover.lost_at) - takeover.lost_at

    def _report(self, result: Account, redundant: int, report: Report, differences: list[str], seconds: float) -> int:
        is_enough = result.taken_over >= TAKEN_OVER_MIN
        if self.as_json:
            print(json.dumps(self._figures(result, redundant, report, differences, seconds)))
        else:
            self.console.print(self._table(result, redundant, report.overall if report.page is not None else None))
            good = "[green]nothing lost, every duplicate explained[/green]"
            self.console.print(f"{good if result.is_good else '[bold red]the promise was broken[/bold red]'}; {seconds:.0f} s")
            if not is_enough:
                self.console.print(f"[yellow]only {result.taken_over} messages were taken over: too few for a conclusion[/yellow]")
            self._print_evidence(report, differences)
        is_reported = not differences and (report.page is not None or not report.is_possible)
        return 0 if result.is_good and is_enough and is_reported else 1

    def _print_evidence(self, report: Report, differences: list[str]) -> None:
        if report.page is None:
            self.console.print(escaped(f"no report: {report.trouble}"), markup=False)
        elif differences:
            self.console.print("[bold red]the report contradicts what clients and the receiving server saw:[/bold red]")
            self.console.print(*map(escaped, differences), sep="\n", markup=False)
        else:
            self.console.print("the redundancy report, from tracking logs alone, contradicts none of it:")
        if report.page is not None:
            self.console.print(f"  {report.page.absolute()}", markup=False, soft_wrap=True)

    def _table(self, result: Account, redundant: int, overall: Mapping[str, Any] | None) -> Table:
        """What clients and the receiving server saw, and beside it the same of the report."""
        table = Table(title="Messages", title_justify="left")
        for name, justify in (("", "left"), ("seen", "right"), *([] if overall is None else [("report", "right")])):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        for line in compared(result, redundant, overall or {}):
            is_bad = line.what in ("lost", "changed in transit") and line.seen
            cells = [line.what, str(line.seen), *([] if overall is None else ["" if line.reported is None else str(line.reported)])]
            table.add_row(*cells, style="bold red" if is_bad else None)
            if line.what == "duplicated":
                for cause in sorted({duplicate.cause for duplicate in result.duplicates}):
                    table.add_row(f"  cause ({cause.value})", str(sum(duplicate.cause is cause for duplicate in result.duplicates)))
        for takeover in self.takeovers:
            table.add_row(f"  {takeover.node}: all taken over within", f"{takeover.seconds:.1f} s")
        notes = [f"{line.what}: {line.why}" for line in compared(result, redundant, overall or {}) if line.is_explained]
        notes += ["causes: docs/design.md, section 3"] if result.duplicates else []
        table.caption, table.caption_justify = "\n".join(notes) or None, "left"
        return table

    def _figures(self, result: Account, redundant: int, report: Report, differences: list[str], seconds: float) -> dict[str, object]:
        return {
            "accepted": result.accepted,
            "redundant": redundant,
            "delivered": result.delivered,
            "lost": len(result.lost),
            "changed": len(result.changed),
            "duplicated": len(result.duplicates),
            "unexplained": len(result.unexplained),
            "taken_over": result.taken_over,
            "takeovers": [{"server": one.node, "messages": one.count, "seconds": round(one.seconds, 3)} for one in self.takeovers],
            "seconds": round(seconds, 1),
            "report": None if report.page is None else str(report.page.absolute()),
            "report_overall": dict(report.overall),
            "report_contradicts": differences,
            "report_trouble": report.trouble,
        }


def _acknowledged(load: Load) -> int:
    return sum(len(sent.acknowledged_ids) for sent in load.sent)


def busiest(cluster: Cluster, load: Load, sink: Sink) -> NodeProcess:
    """The node with the most acknowledged and undelivered messages, according to clients and the receiving server."""
    arrived = {arrival.network_id for arrival in sink.arrivals}
    waiting = dict.fromkeys(cluster.nodes, 0)
    for sent in load.sent:
        for submission in sent.tries:
            if submission.network_id and submission.network_id not in arrived:
                waiting[submission.node] += 1
    return cluster.nodes[max(waiting, key=lambda name: waiting[name])]


def count_redundant(cluster: Cluster) -> int:
    """Messages acknowledged as redundant, from the nodes' tracking logs."""
    tracked = (row for node in cluster.nodes.values() for row in rows(node.tracking))
    return sum(row["event-id"] == "RECEIVE" and "S:Replication=Success" in row["custom-data"] for row in tracked)


def promotion_instants(cluster: Cluster, lost: str, *, since: float) -> list[float]:
    """When each message of a lost server was taken over, from the other nodes' tracking logs."""
    tracked = (row for node in cluster.nodes.values() for row in rows(node.tracking))
    instants = (instant(row) for row in tracked if row["event-id"] == "RESUBMIT" and row["reference"] == lost)
    return [at for at in instants if at >= since]
