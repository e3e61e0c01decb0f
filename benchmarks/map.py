"""The map: what each kind of work that real mail has costs, against Debian's Postfix alone, in turn. docs/performance.md begins with it.

python -m benchmarks.map [--quick] [--rounds N] [--only TEXT] [--directory DIRECTORY] [--json FILE]. Needs root, Debian's Postfix, strace,
cc and OpenSSL's headers (apt-get install postfix strace gcc libssl-dev).

A row is one kind of work. In each round both subjects do it, the first one alternating: Postfix with a relayhost, and two nodes of
shadowrelay with the sessions on both, each the shadow server of the other. The clients and the receiving server are `load.c`, which is
built first. Of each subject are measured

* messages a second, from the start of the clients until the receiving server has everything; a share of mail that is deferred by it is
  not waited for;
* processor time a message of all its processes, until a second and a half later, so that the copies are discarded;
* octets that its processes had written to the disk, a message;
* the wait of a client from the final dot to the 250;
* flushes a message: calls of fsync and fdatasync, and writes of content, whose files are opened with O_DSYNC, counted by strace in a
  run of their own, which is not timed.

A run of shadowrelay counts only if each message has its HARECEIVE row, which is written when the copy is synced, and each node has read
`synchronous = FULL` back. Beside each row stands what everybody else used of the processors meanwhile: read it before the numbers.
Figures are medians of the rounds; ratios are those of the rounds, Postfix divided by shadowrelay for processor time, the other way round
for the rate, so that more is better.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.cost import TICKS
from benchmarks.relay import describe_machine
from benchmarks.throughput import PLACES, POSTFIX, PRODUCT_TIMES, count_rows, read_synchronous, workplace
from shadowrelay.lab.cluster import Cluster, Place, free_ports
from shadowrelay.model.routing import HostPort
from shadowrelay.settings.authority import make_authority, signed_pems
from tests.kit import postfix, smtp_programs
from tests.kit.clock import wait_until
from tests.kit.postfix import running_postfix
from tests.kit.processes import wait_until_peers_know_each_other

SOURCE = Path(__file__).with_name("load.c")
DISCARDED_SECONDS = 1.5  # polls come every second
RUN_SECONDS_MAX = 600.0
SLOW_MS = 200  # the two slow next hops of the mix
FLUSHES = ("strace", "-D", "-f", "-qq", "-y", "--seccomp-bpf", "-ttt", "-s", "0", "-e", "trace=fsync,fdatasync,write", "-o")
_FLUSH = re.compile(r"^\d+ +(\d+\.\d+) (?:f(?:data)?sync\(|write\(\d+<[^>]*\.segment>)", re.MULTILINE)
PRODUCT_RETRIES = {  # the defaults of the product instead of the lab's short times
    "queue_glitch_retry_interval": "1m",
    "transient_failure_retry_interval": "5m",
    "outbound_connection_failure_retry_interval": "10m",
    "message_retry_interval": "15m",
}
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Work:
    """One row. `client`: options of `load client`. `goal`: processor time and rate, as ratios to Postfix."""

    name: str
    messages: int
    client: Mapping[str, object]
    goal: tuple[float, float] | None = None
    is_secured: bool = False  # certificates: STARTTLS for clients, between the nodes, and to the receiving server, if that has one, too
    has_secured_sink: bool = False

    def messages_of(self, share: float) -> int:
        """How many to send for this share of a whole run; at least one for each session and each node."""
        return max(int(self.messages * share), int(str(self.client.get("sessions", 1))), 4)


KIB = 1024
WORKS = (
    Work("4 KiB, 20 kept sessions", 8000, {"sessions": 20, "size": 4 * KIB}, (3.0, 3.0)),
    Work("one message a session", 6000, {"sessions": 20, "size": 4 * KIB, "kept": 0}, (2.6, 2.5)),
    Work(
        "one message a session with STARTTLS, P-256",
        4000,
        {"sessions": 20, "size": 4 * KIB, "kept": 0, "tls": 1},
        (2.2, 2.2),
        is_secured=True,
    ),
    Work("50 KiB", 4000, {"sessions": 20, "size": 50 * KIB}, (2.2, 2.0)),
    Work("500 KiB", 800, {"sessions": 20, "size": 500 * KIB}, (1.3, 1.3)),
    Work("5 MiB", 100, {"sessions": 10, "size": 5 * KIB * KIB}, (1.0, 1.0)),
    Work("one client, one session", 1500, {"sessions": 1, "size": 4 * KIB}, (1.2, 1.0)),
    Work("a realistic mix", 3000, {"sessions": 40, "mix": 1}, (2.2, 2.2), is_secured=True),
    Work("300 messages a second, open loop", 3000, {"sessions": 40, "size": 4 * KIB, "rate": 300}),
    Work("1,000 sessions", 8000, {"sessions": 1000, "size": 4 * KIB}, (2.8, 2.8)),
    Work("100 recipients", 1000, {"sessions": 20, "size": 4 * KIB, "recipients": 100}, (5.4, 5.0)),
    Work(
        "TLS to next hop and peers", 6000, {"sessions": 20, "size": 4 * KIB}, (3.0, 2.5), is_secured=True, has_secured_sink=True
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """Of one run. Units: `processor_ms` and `written_kb` a message, waits in milliseconds, `others` processors."""

    rate: float
    processor_ms: float
    written_kb: float
    p50: float
    p99: float
    others: float


@dataclass(slots=True)
class Subject:
    """What does the work: its processes, and where it listens. `traces`: files of strace."""

    ports: Sequence[int]
    roots: Callable[[], Sequence[int]]
    traces: Sequence[Path] = ()
    check: Callable[[int], None] = lambda messages: None  # while it runs
    check_after: Callable[[int], None] = lambda messages: None


# processes


def processes_of(roots: Sequence[int]) -> list[int]:
    """These processes and all that they started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, left = [], list(roots)
    while left:
        found.append(left.pop())
        left += children.get(found[-1], ())
    return found


def used_by(roots: Sequence[int]) -> tuple[float, int]:
    """Processor seconds and octets written, so far; of processes that ended, too, because who waited for them has theirs."""
    seconds, octets = 0.0, 0
    for pid in processes_of(roots):
        with contextlib.suppress(OSError):
            seconds += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])) / TICKS
            octets += int(re.findall(r"^write_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)[0])
    return seconds, octets


def used_by_all() -> float:
    """Processor seconds of the machine, so far: without idleness and waiting for disks."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / TICKS


# the two subjects


@dataclass(frozen=True, slots=True)
class Sinks:
    """The receiving servers: of all mail, and of each slow next hop."""

    ports: Mapping[int, int]

    @property
    def slow(self) -> dict[str, int]:
        return {f"hop{number}.example": port for number, port in self.ports.items() if number}


@contextlib.asynccontextmanager
async def shadowrelay_for(work: Work, sinks: Sinks, directory: Path, *, is_traced: bool) -> AsyncIterator[Subject]:
    """Two nodes."""
    traces = [directory / f"{place.name}.flushes" for place in PLACES] if is_traced else []
    places = [
        Place(place.name, place.site, inside=(*FLUSHES, str(trace)) if trace is not None else ())
        for place, trace in zip(PLACES, traces or [None] * len(PLACES), strict=True)
    ]
    cluster = Cluster(
        places, HostPort("127.0.0.1", sinks.ports[0]), directory=directory, transport=PRODUCT_TIMES, send=PRODUCT_RETRIES,
        routes={f"*@{domain}": HostPort("127.0.0.1", port) for domain, port in sinks.slow.items()}, is_secured=work.is_secured,
    )  # fmt: skip
    nodes = list(cluster.nodes.values())

    def check(messages: int) -> None:
        if (found := {read_synchronous(node) for node in nodes}) != {"FULL"}:
            raise RuntimeError(f"not a fair run: synchronous {found}")

    def check_after(messages: int) -> None:
        if (held := sum(count_rows(node.tracking, "HARECEIVE") for node in nodes)) != messages:
            raise RuntimeError(f"not a fair run: {held} HARECEIVE rows for {messages} messages")

    async with cluster:
        await asyncio.to_thread(wait_until_peers_know_each_other, nodes)
        pids = [node.process.pid for node in nodes if node.process is not None]
        yield Subject([node.address.port for node in nodes], lambda: pids, traces, check, check_after)


@contextlib.asynccontextmanager
async def postfix_for(work: Work, sinks: Sinks, directory: Path, *, is_traced: bool) -> AsyncIterator[Subject]:
    """Postfix alone."""
    settings = {
        **POSTFIX,
        "relayhost": f"[127.0.0.1]:{sinks.ports[0]}",
        "default_process_limit": str(int(str(work.client.get("sessions", 1))) + 100),
        "message_size_limit": str(64 * KIB * KIB),
    }
    if sinks.slow:
        hops = ", ".join(f"{{{domain} = smtp:[127.0.0.1]:{port}}}" for domain, port in sinks.slow.items())
        settings["transport_maps"] = f"inline:{{{hops}}}"
    if work.is_secured:
        certificate, key = write_certificate(directory, "postfix.example")
        settings |= {"smtpd_tls_security_level": "may", "smtpd_tls_cert_file": str(certificate), "smtpd_tls_key_file": str(key)}
    if work.has_secured_sink:
        settings |= {"smtp_tls_security_level": "may"}
    trace = directory / "postfix.flushes"
    with running_postfix(directory, settings, (*FLUSHES, str(trace)) if is_traced else ()) as server:
        master = int((directory / "queue/pid/master.pid").read_text())
        yield Subject([server.port], lambda: (master,), [trace] if is_traced else ())


def write_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate of an authority of its own, P-256."""
    life = timedelta(days=2)
    paths = directory / f"{name}.pem", directory / f"{name}.key"
    for path, data in zip(paths, signed_pems(make_authority("benchmark", life), name, life), strict=True):
        path.write_bytes(data)
        path.chmod(0o600)
    return paths


SUBJECTS = {"Postfix": postfix_for, "shadowrelay": shadowrelay_for}


# one run


@contextlib.contextmanager
def running_sinks(load: Path, work: Work, directory: Path, taken: Sequence[int]) -> Iterator[tuple[Sinks, list[subprocess.Popen[bytes]]]]:
    """One for each next hop that gets mail; each exits when it has taken so many messages."""
    ports = dict(enumerate(free_ports(len(taken))))
    secured: list[str] = []
    if work.has_secured_sink:
        certificate, key = write_certificate(directory, "sink.example")
        secured = [f"certificate={certificate}", f"key={key}"]
    processes = []
    try:
        for number, count in enumerate(taken):
            options = [f"port={ports[number]}", f"messages={count}", f"delay_ms={SLOW_MS if number else 0}", *secured]
            processes.append(subprocess.Popen([str(load), "sink", *options]))
        if not all(smtp_programs.greets(port) for port in ports.values()):
            raise RuntimeError("the receiving server does not listen")
        yield Sinks(ports), processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def run(name: str, work: Work, messages: int, load: Path, parent: Path, *, is_traced: bool = False) -> tuple[Result, float]:
    """One run of one subject; and flushes a message, if it `is_traced`."""
    options = [f"{key}={value}" for key, value in {**work.client, "messages": messages}.items()]
    planned = [int(word) for word in subprocess.check_output([str(load), "plan", *options]).split()]
    taken = planned[:3] if work.client.get("mix") else planned[:1]
    with workplace(parent) as directory, running_sinks(load, work, directory, taken) as (sinks, receiving):
        async with SUBJECTS[name](work, sinks, directory, is_traced=is_traced) as subject:
            before, all_before, own_before = used_by(subject.roots()), used_by_all(), _of_children()
            began, began_at = time.monotonic(), time.time()
            words = [str(load), "client", f"ports={','.join(map(str, subject.ports))}", *options]
            client = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
            async with asyncio.timeout(RUN_SECONDS_MAX):
                output, _ = await client.communicate()
                if client.returncode:
                    raise RuntimeError(f"the clients of {name} failed: {work.name}")
                await asyncio.gather(*(asyncio.to_thread(process.wait) for process in receiving))
            seconds = time.monotonic() - began
            await asyncio.sleep(DISCARDED_SECONDS)
            after, all_after = used_by(subject.roots()), used_by_all()
            own = _of_children() - own_before
            whole = time.monotonic() - began
            subject.check(messages)
        subject.check_after(messages)
        await asyncio.to_thread(wait_until, lambda: not any(map(_is_written, subject.traces)))
        flushes = sum(sum(float(at) >= began_at for at in _FLUSH.findall(path.read_text())) for path in subject.traces)
    _, _, p50, p99 = output.split()
    used, written = after[0] - before[0], after[1] - before[1]
    others = (all_after - all_before - used - own) / whole
    result = Result(messages / seconds, 1000 * used / messages, written / messages / 1000, float(p50), float(p99), others)
    return result, flushes / messages


def _is_written(trace: Path) -> bool:
    """Whether strace has not ended yet."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(trace).encode() in path.read_bytes():
                return True
    return False


def _of_children() -> float:
    """Processor seconds of the clients and receiving servers that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


# the map


@dataclass(slots=True)
class Row:
    """All rounds of one work."""

    work: Work
    messages: int
    results: dict[str, list[Result]] = field(default_factory=lambda: {name: [] for name in SUBJECTS})
    flushes: dict[str, float] = field(default_factory=dict)

    def median(self, name: str, figure: str) -> float:
        """Of one subject."""
        return statistics.median(getattr(one, figure) for one in self.results[name])

    @property
    def ratios(self) -> tuple[float, float]:
        """Processor time and rate; more is better."""
        pairs = list(zip(self.results["Postfix"], self.results["shadowrelay"], strict=True))
        spent = statistics.median(postfix.processor_ms / ours.processor_ms for postfix, ours in pairs)
        return spent, statistics.median(ours.rate / postfix.rate for postfix, ours in pairs)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        figures = ("rate", "processor_ms", "written_kb", "p50", "p99", "others")
        spent, rate = self.ratios
        return {
            "work": self.work.name,
            "messages": self.messages,
            "processor_ratio": round(spent, 2),
            "rate_ratio": round(rate, 2),
            "goal": self.work.goal,
            **{name: {figure: round(self.median(name, figure), 3) for figure in figures} for name in SUBJECTS},
            "flushes": {name: round(count, 2) for name, count in self.flushes.items()},
        }


HEADINGS = (
    "work", "processor (goal)", "rate (goal)", "ms of processor", "messages a second", "flushes", "KB written",
    "wait p50, ms", "p99, ms", "others",
)  # fmt: skip


def table_of(rows: Sequence[Row]) -> str:
    """In Markdown, as docs/performance.md has it; in each cell Postfix stands before shadowrelay."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---" * len(HEADINGS) + "|"]
    for row in rows:

        def both(figure: str, digits: int, row: Row = row) -> str:
            return ", ".join(f"{row.median(name, figure):.{digits}f}" for name in SUBJECTS)

        goals = [f" ({goal})" for goal in row.work.goal or ()] or ["", ""]
        ratios = [f"{ratio:.2f}{goal}" for ratio, goal in zip(row.ratios, goals, strict=True)]
        flushes = ", ".join(f"{row.flushes[name]:.1f}" for name in SUBJECTS if name in row.flushes)
        others = max(row.median(name, "others") for name in SUBJECTS)
        figures = [both("processor_ms", 2), both("rate", 0), flushes, both("written_kb", 0), both("p50", 1), both("p99", 1)]
        lines.append(f"| {' | '.join([row.work.name, *ratios, *figures, f'{others:.2f}'])} |")
    return "\n".join(lines)


def build(directory: Path) -> Path:
    """Compile the clients and the receiving server."""
    program = directory / "load"
    subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-o", str(program), str(SOURCE), "-lssl", "-lcrypto", "-lpthread", "-lm"], check=True)
    program.chmod(0o755)
    return program


async def measure(works: Sequence[Work], share: float, rounds: int, parent: Path) -> list[Row]:
    """All rounds of all rows; each is printed as soon as it is there."""
    rows = []
    with workplace(parent) as directory:
        load = build(directory)
        for work in works:
            row = Row(work, work.messages_of(share))
            try:
                for number in range(rounds):
                    for name in sorted(SUBJECTS, reverse=bool(number % 2)):
                        result, _ = await run(name, work, row.messages, load, parent)
                        row.results[name].append(result)
                for name in SUBJECTS:
                    _, row.flushes[name] = await run(name, work, work.messages_of(share / 4), load, parent, is_traced=True)
            except (RuntimeError, TimeoutError) as error:  # a message was refused, or a machine is too busy: the others can be measured
                console.print(f"{work.name}: not measured: {error!r}", style="red", highlight=False)
                continue
            rows.append(row)
            console.print(table_of([row]).split("\n")[2], highlight=False)
    return rows


def what_is_missing() -> list[str]:
    """Programs and headers that this needs."""
    found = {"root and postfix": postfix.is_available(), "strace": shutil.which("strace"), "cc": shutil.which("cc")}
    found["libssl-dev"] = Path("/usr/include/openssl/ssl.h").exists()
    return [name for name, is_there in found.items() if not is_there]


def main() -> int:
    """See the module. Returns the exit status: 0, or 2 where it cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the messages and one round: whether it works, in minutes")
    parser.add_argument("--rounds", type=int, default=5, help="of each row (default 5)")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="all queues and logs, on one disk (default /var/tmp)")
    parser.add_argument("--json", type=Path, help="write everything there, too")
    arguments = parser.parse_args()
    works = [work for work in WORKS if arguments.only in work.name]
    if arguments.rounds < 1 or not works:
        parser.error("at least 1 round and 1 row")
    if missing := what_is_missing():
        console.print(f"this needs {', '.join(missing)}", style="red")
        return 2
    machine = describe_machine(arguments.directory)
    share, rounds = (0.05, 1) if arguments.quick else (1.0, arguments.rounds)
    rows = asyncio.run(measure(works, share, rounds, arguments.directory))
    print(table_of(rows))
    print(f"\nIn each cell: Postfix, shadowrelay. {os.cpu_count()} cores; {json.dumps(machine)}")
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"machine": machine, "rounds": rounds, "rows": [row.plain() for row in rows]}, indent=2) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
