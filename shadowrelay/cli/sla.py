"""`sla ingest|report|watch|trace`: the redundancy report on the command line. docs/sla.md.

All options are checked before Spark is started.
"""

import errno
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from shadowrelay.cli.output import (
    AsJson,
    ExitCode,
    print_json,
    print_sentences,
    print_table,
    say,
    stop,
    visible,
)
from shadowrelay.cluster.words import counted, instants
from shadowrelay.model.replies import ConfigurationError, ShadowrelayError
from shadowrelay.model.setting_texts import parse_duration
from shadowrelay.protocol.tracking import KEPT_AS
from shadowrelay.signals import exit_with, handled

LOCAL = "local[*]"
IDS_MAX = 50  # of one message at several hops
_ID = "([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
_OTHER_ID = re.compile(f"{KEPT_AS}{_ID}|{_ID} ·.*S:ShadowAt=")
PATTERN = frozenset("{}[]*?\\")


def _text(path: str | None) -> str | None:
    try:
        (path or "").encode("utf-8")
    except UnicodeEncodeError:
        shown = os.fsencode(path or "").decode("utf-8", "backslashreplace")
        raise typer.BadParameter(
            f"{shown}: Spark takes only names that are UTF-8, also in the locale: rename it, or set LC_ALL=C.UTF-8"
        ) from None
    return path


def _plain(path: str | None) -> str | None:
    _text(path)
    if path is not None and (found := sorted({one for one in path if one in PATTERN})):
        raise typer.BadParameter(f"{path}: a name with {' '.join(found)} would be a pattern to Spark; rename it, or use a link to it")
    return path


LOGS_HELP = "Collected logs: DIR/<server>/MSGTRK*.LOG; also a URL, such as s3://BUCKET/PREFIX."
Logs = Annotated[str | None, typer.Option("--logs", metavar="DIR", help=LOGS_HELP, callback=_text)]
LogsWanted = Annotated[str, typer.Option("--logs", metavar="DIR", help=LOGS_HELP, callback=_text)]
LogsWatched = Annotated[str, typer.Option("--logs", metavar="DIR", help="Collected logs: DIR/<server>/MSGTRK*.LOG.", callback=_plain)]
Warehouse = Annotated[str | None, typer.Option("--warehouse", metavar="DIR", help="Warehouse written by `sla ingest`.", callback=_plain)]
WarehouseWanted = Annotated[
    str, typer.Option("--warehouse", metavar="DIR", help="Directory for typed Parquet; kept between runs.", callback=_plain)
]
Output = Annotated[
    str, typer.Option("--output", metavar="DIR", help="Directory for report.html, summary.json and tables/.", callback=_plain)
]
Sites = Annotated[Path | None, typer.Option("--sites", help="Sites and boundaries of servers (TOML); overrides manifests.")]
Objectives = Annotated[Path | None, typer.Option("--objectives", help="Objectives (TOML). Default: the built-in ones.")]
Textfile = Annotated[str | None, typer.Option("--textfile", metavar="FILE", help="Also write the figures for Prometheus.")]
Master = Annotated[str, typer.Option("--master", help="Spark master.")]
Memory = Annotated[
    str | None,
    typer.Option("--driver-memory", metavar="SIZE", help="Memory of the local JVM, as 800m. Default: 4g, or less where there is less."),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what Spark and Java print, and tracebacks.")]
Now = Annotated[
    str | None, typer.Option("--now", metavar="INSTANT", help="Judge as of this time (2026-11-21T16:00:00Z). Default: the newest row's.")
]


def require_writable(output: str | None, textfile: str | None, warehouse: str | None = None) -> None:
    """Check early that output directories are writable, before hours of work; of a store, that Spark can write there at all.

    Raises: ConfigurationError.
    """
    if textfile is not None and (os.path.isdir(textfile) or not os.path.basename(textfile)):
        raise ConfigurationError(f"--textfile {textfile}: this is a directory; name the file, as {os.path.join(textfile, 'sla.prom')}")
    directories = (
        ("--output", output),
        ("--textfile", None if textfile is None else os.path.dirname(textfile) or "."),
        ("--warehouse", warehouse),
    )
    for option, directory in directories:
        if directory is None:
            continue
        if ":/" in directory:
            if option != "--textfile":
                import_module("shadowrelay.sla.storage").require_hadoop(option, directory)
            continue
        try:
            os.makedirs(directory, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as exc:
            raise ConfigurationError(f"{option} {directory}: cannot be written: {exc.strerror or exc}") from exc


def instant_of(text: str | None, option: str = "--now") -> datetime | None:
    """The value of the option. Raises: ConfigurationError."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ConfigurationError(f"{option} {text}: an instant looks like 2026-11-21T16:00:00Z")
    return at


sla = typer.Typer(no_args_is_help=True, help="The redundancy report, from tracking logs. Needs Java 17 and the extra `spark`.")


@sla.command("ingest")
def ingest(
    logs: LogsWanted,
    warehouse: WarehouseWanted,
    sites: Sites = None,
    is_continuous: Annotated[bool, typer.Option("--continuous", help="Keep running.")] = False,
    interval: Annotated[int, typer.Option("--interval", min=1, metavar="SECONDS", help="With --continuous: time between polls.")] = 10,
    files_per_batch: Annotated[int, typer.Option("--files-per-batch", min=1, help="Maximum number of files per batch.")] = 200,
    again: Annotated[
        list[str] | None,
        typer.Option("--again", metavar="SERVER/FILE", help="Read this log anew, and forget what was read of it; * stands for any text."),
    ] = None,
    master: Master = LOCAL,
    driver_memory: Memory = None,
    is_verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Read new logs into a warehouse, each file once. Can be killed at any time, and then resumes."""
    with _answered(is_verbose) as progress:
        places = _sites(sites)
        module = import_module("shadowrelay.sla.session")
        module.require_settings(master, driver_memory)
        module.check_packages()
        require_writable(None, None, warehouse)
        if again:
            count = import_module("shadowrelay.sla.inspection").read_again(logs, warehouse, again)
            say(f"{warehouse}: {counted(count, 'file')} read again")
            return
        progress.doing(f"reading {logs}")
        progress.name_left_out(logs)
        session = cache(lambda: progress.session(master, driver_memory))
        done = import_module("shadowrelay.sla.ingest").ingest(
            session, logs, warehouse, sites=places, is_continuous=is_continuous, interval=timedelta(seconds=interval),
            files_per_batch=files_per_batch, tell=progress.tell,
        )  # fmt: skip
    if as_json:
        print_json(done._asdict())
    else:
        parts = [counted(number, what) for number, what in ((done.files, "file"), (done.lines, "line"), (done.rows, "row"))]
        say(f"{warehouse}: {', '.join(parts)}, {counted(done.quarantined, 'line')} in quarantine")


@sla.command("report")
def report(
    output: Output,
    logs: Logs = None,
    warehouse: Warehouse = None,
    sites: Sites = None,
    objectives: Objectives = None,
    now: Now = None,
    since: Annotated[str | None, typer.Option("--since", metavar="INSTANT", help="Only what belongs to this time or later.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="INSTANT", help="Only what belongs to an earlier time.")] = None,
    is_final: Annotated[bool, typer.Option("--final", help="No more events will come: treat everything unfinished as overdue.")] = False,
    fail_on_breach: Annotated[bool, typer.Option("--fail-on-breach", help="Exit with status 3 if a safety target was missed.")] = False,
    fail_on_slow: Annotated[bool, typer.Option("--fail-on-slow", help="Exit with status 3 if a speed target was missed.")] = False,
    textfile: Textfile = None,
    master: Master = LOCAL,
    driver_memory: Memory = None,
    is_verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Compute the redundancy report. From collected logs, or from a warehouse."""
    with _answered(is_verbose) as progress:
        _require_one_source(logs, warehouse, sites)
        instant = instant_of(now)
        interval = {name: instant_of(text, f"--{name}") for name, text in (("since", since), ("until", until)) if text is not None}
        _require_order(interval)
        places = _sites(sites)
        _require_objectives(objectives)
        require_writable(output, textfile)
        spark = progress.session(master, driver_memory, logs, warehouse, reads_once=True)
        write_report = import_module("shadowrelay.sla.report").write_report
        with _warehouse(spark, logs, warehouse, places, progress) as place:
            progress.doing("computing the figures")
            summary = write_report(
                spark, place, output, objectives_file=None if objectives is None else str(objectives), now=instant, is_final=is_final,
                textfile=textfile, **interval,
            )  # fmt: skip
    if as_json:
        print_json({"output": output} | {key: summary[key] for key in ("now", "input", "verdict", "overall", "objectives", "causes")})
    else:
        _print_report(summary, output)
    for sentences in import_module("shadowrelay.sla.page.cautions").cautions(summary):
        say(f"shadowrelay: {' '.join(sentences)}", is_error=True)
    failing = {"safety": fail_on_breach, "speed": fail_on_slow}
    if any(is_failing and summary["verdict"][kind]["missed"] for kind, is_failing in failing.items()):
        raise typer.Exit(ExitCode.BREACH)


@sla.command("watch")
def watch(
    output: Output,
    logs: LogsWatched,
    warehouse: WarehouseWanted,
    sites: Sites = None,
    objectives: Objectives = None,
    textfile: Textfile = None,
    interval: Annotated[int, typer.Option("--interval", min=1, metavar="SECONDS", help="Time between polls.")] = 10,
    master: Master = LOCAL,
    driver_memory: Memory = None,
    is_verbose: Verbose = False,
) -> None:
    """Keep the report up to date until stopped. Reads logs as they arrive."""
    with _answered(is_verbose) as progress:
        places = _sites(sites)
        _require_objectives(objectives)
        require_writable(output, textfile, warehouse)
        import_module("shadowrelay.sla.storage").require_hadoop("--logs", logs)
        progress.name_left_out(logs)
        spark = progress.session(master, driver_memory, logs, may_be_empty=True)
        import_module("shadowrelay.sla.watch").run_watch(
            spark, logs, warehouse, output, sites=places, objectives_file=None if objectives is None else str(objectives),
            textfile=textfile, interval=timedelta(seconds=interval), tell=progress.tell,
        )  # fmt: skip


@sla.command("prepare")
def prepare(is_verbose: Verbose = False) -> None:
    """Let Spark start faster from now on. Keeps its classes, as a JVM has them in memory, in a file of this user's cache."""
    with _answered(is_verbose) as progress:
        import_module("shadowrelay.sla.session").check_spark()
        progress.doing("starting Spark")
        archive = import_module("shadowrelay.sla.preparation").prepare()
    say(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")


@sla.command("prune")
def prune(
    warehouse: WarehouseWanted,
    keep: Annotated[str | None, typer.Option("--keep", metavar="DURATION", help="How much to keep, such as 90d.")] = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="SERVER/FILE", help="Forget this log, which no longer exists; * stands for any text."),
    ] = None,
) -> None:
    """Delete the events of old days, or of damaged logs that are gone."""
    with _answered():
        if (keep is None) == (not log):
            raise ConfigurationError("give --keep or --log")
        try:
            span = parse_duration(keep) if keep is not None else None
        except ValueError as exc:
            raise ConfigurationError(f"--keep {keep}: {exc}") from exc
        import_module("shadowrelay.sla.session").check_packages()
        import_module("shadowrelay.sla.ingest").require_warehouse(warehouse)
        module = import_module("shadowrelay.sla.inspection")
        done = counted(module.leave_out(warehouse, log), "log") if span is None else counted(module.keep(warehouse, span), "day")
    say(f"{warehouse}: {done} deleted")


@sla.command("trace")
def trace(
    message_id: Annotated[str, typer.Argument(help="Network message id, or internet message id (`Message-ID`).")],
    logs: Logs = None,
    warehouse: Warehouse = None,
    master: Master = LOCAL,
    driver_memory: Memory = None,
    is_verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Show everything that all servers logged about a message, in order."""
    with _answered(is_verbose) as progress:
        _require_one_source(logs, warehouse, None)
        rows = _traced(message_id, logs, warehouse, master, driver_memory, progress)
    if as_json:
        print_json(rows)
    elif rows:
        heading, times = instants([row["at"] for row in rows])
        has_several, servers = len({row["message"] for row in rows}) > 1, {row["server"] for row in rows}
        said = [(at, row["server"], row["event"], _said(row, servers, has_several)) for at, row in zip(times, rows, strict=True)]
        print_table((heading, "Server", "Event", "What"), said, "")
    if not rows:
        stop(f"no server has logged {message_id}", ExitCode.FAILED)
    if len(rows) >= import_module("shadowrelay.sla.summary").TRACE_ROWS_MAX:
        say(f"shadowrelay: only the first {len(rows)} rows are shown", is_error=True)


def _said(row: dict[str, Any], servers: set[str], has_several: bool) -> str:
    """A row in words, then as it was logged."""
    page = import_module("shadowrelay.sla.page.message_lists")
    way = " to ".join(filter(None, (row["client"], row["to"])))
    about = f"message {row['message']}" if has_several else ""
    return "; ".join(filter(None, (page.meaning_of(row, servers), way, page.recipients_of(row), row["text"], about)))


def _traced(
    message_id: str, logs: str | None, warehouse: str | None, master: str, driver_memory: str | None, progress: "_Progress"
) -> list[dict[str, Any]]:
    """The rows of the message, also at other hops. Little input is read in this process: a JVM takes longer to start."""
    import_module("shadowrelay.sla.session").check_packages()
    if logs is not None:
        source = import_module("shadowrelay.sla.logs")
        is_little = source.is_little(source.require_logs(logs))
    else:
        source = import_module("shadowrelay.sla.ingest")
        source.require_warehouse(warehouse)
        is_little = source.is_little_warehouse(warehouse)
    if is_little and master == LOCAL:
        module = import_module("shadowrelay.sla.trace")
        rows_of = partial(module.rows_of_warehouse, warehouse) if logs is None else partial(module.rows_of_logs, logs)
        return _at_all_hops(lambda each: module.trace(rows_of(), each), message_id)
    spark = progress.session(master, driver_memory, logs, warehouse, reads_once=True)
    with _warehouse(spark, logs, warehouse, {}, progress) as place:
        progress.doing(f"looking for {message_id}")
        module = import_module("shadowrelay.sla.summary")
        return _at_all_hops(lambda each: module.trace(spark, place, each), message_id)


def _at_all_hops(trace_one: Callable[[str], list[dict[str, Any]]], message_id: str) -> list[dict[str, Any]]:
    """What was relayed by TRACK has another id at each hop: SEND names that of the next one, RECEIVE that of the one before."""
    asked: set[str] = set()
    found: dict[str, dict[str, Any]] = {}
    wanted = [message_id]
    while wanted and len(asked) < IDS_MAX:
        asked.add(wanted[0])
        rows = trace_one(wanted.pop(0))
        found |= {repr(row): row for row in rows}
        said = [(row, _OTHER_ID.search(row["text"])) for row in rows if row["event"] in ("SEND", "SENDEXTERNAL", "RECEIVE")]
        taken = {row["message"] for row, match in said if match and match[2]}  # perhaps found only because it names the one before
        asked |= {row["message"] for row in rows} - taken
        ids = [match[1] or match[2] for _, match in said if match]
        wanted += [each for each in dict.fromkeys([*ids, *sorted(taken)]) if each not in asked and each not in wanted]
    return sorted(found.values(), key=lambda row: datetime.fromisoformat(row["at"]))


@dataclass
class _Progress:
    """Progress on standard error: a line for each step, and a spinner on a terminal."""

    console: Console
    status: Any

    def doing(self, text: str) -> None:
        if self.console.is_terminal:
            self.status.update(escape(visible(text)))
        else:
            self.tell(text)

    def tell(self, text: str) -> None:
        self.console.print(visible(text), markup=False, highlight=False, emoji=False, soft_wrap=True)

    def name_left_out(self, logs: str | None) -> None:
        """Say which files look like logs and are not read."""
        source = import_module("shadowrelay.sla.logs")
        if logs is not None and (names := source.left_out(logs)):
            self.tell(visible(source.told_left_out(names)))

    def session(
        self,
        master: str,
        driver_memory: str | None,
        logs: str | None = None,
        warehouse: str | None = None,
        *,
        may_be_empty: bool = False,
        reads_once: bool = False,
    ) -> Any:
        """Raises: ConfigurationError for missing software, or for an invalid master or size; NoLogs."""
        module = import_module("shadowrelay.sla.session")
        module.require_settings(master, driver_memory)
        module.check_spark()
        is_little = is_medium = False
        medium = import_module("shadowrelay.sla.logs").MEDIUM_BYTES
        if logs is not None:
            source = import_module("shadowrelay.sla.logs")
            found = source.require_logs(logs, may_be_empty=may_be_empty)
            is_little, is_medium = source.is_little(found), source.is_little(found, medium)
        elif warehouse is not None:
            import_module("shadowrelay.sla.storage").require_hadoop("--warehouse", warehouse)
            source = import_module("shadowrelay.sla.ingest")
            source.require_warehouse(warehouse)
            is_little, is_medium = source.is_little_warehouse(warehouse), source.is_little_warehouse(warehouse, medium)
        # a session for little input keeps tables in the memory of executors, which on a cluster may be lost with one of them
        is_brief = reads_once and module.local_cores(master) is not None
        self.doing("starting Spark")
        session = module.spark_session(
            master, driver_memory=driver_memory, is_small=is_brief and is_little, is_medium=is_brief and is_medium
        )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, exit_with)  # Spark has installed its own handler
        return session


@contextmanager
def _answered(is_verbose: bool = False) -> Iterator[_Progress]:
    """Print our errors with the exit code for them; an interrupt ends quietly. Others are one line, too; a file has the rest."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 200)
    status = console.status("")
    details = import_module("shadowrelay.sla.details").DETAILS
    details.is_verbose = is_verbose
    try:
        _require_current_directory()
        # temporary files are removed on the way out; Py4J would log a KeyboardInterrupt with its whole stack
        with handled(exit_with), status:
            yield _Progress(console, status)
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except ConfigurationError as exc:
        stop(str(exc), ExitCode.USAGE)
    except ShadowrelayError as exc:
        stop(str(exc), ExitCode.FAILED)
    except Exception as exc:
        session = import_module("shadowrelay.sla.session")
        details.add(exc)
        failure = session.jvm_end() or session.failure_of(exc)
        if failure is not None:
            stop(f"Spark failed: {'; '.join(filter(None, (failure, session.to_blame(failure))))}{details.place()}", ExitCode.FAILED)
        if isinstance(exc, OSError) and exc.filename and exc.strerror:
            stop(f"{exc.filename}: {exc.strerror}{': ulimit -f unlimited' if exc.errno == errno.EFBIG else ''}", ExitCode.FAILED)
        if isinstance(exc, OSError | ValueError | ImportError):  # from a file system: its message says what is missing
            stop(str(exc), ExitCode.FAILED)
        stop(f"internal error: {type(exc).__name__}: {' '.join(str(exc).split())[:300]}{details.place()}", ExitCode.FAILED)


def _require_current_directory() -> None:
    """Raises: ConfigurationError: neither Java nor a relative path works in one that was deleted."""
    try:
        os.getcwd()
    except OSError:
        raise ConfigurationError("the current directory was deleted: go to another one (cd)") from None


@contextmanager
def _warehouse(spark: Any, logs: str | None, warehouse: str | None, sites: Any, progress: _Progress) -> Iterator[str]:
    if warehouse is not None:
        yield warehouse
        return
    progress.doing(f"reading {logs}")
    progress.name_left_out(logs)
    with import_module("shadowrelay.sla.ingest").temporary_warehouse(spark, logs, sites) as place:
        yield place


def _require_one_source(logs: str | None, warehouse: str | None, sites: Path | None) -> None:
    if (logs is None) == (warehouse is None):
        raise ConfigurationError("name either --logs DIR or --warehouse DIR")
    if warehouse is not None and sites is not None:
        raise ConfigurationError("--sites belongs to --logs; a warehouse was given its sites by `sla ingest --sites FILE`")


def _require_order(interval: Mapping[str, datetime | None]) -> None:
    since, until = interval.get("since"), interval.get("until")
    if since is not None and until is not None and until <= since:
        raise ConfigurationError(f"--until {until.isoformat()}: is not later than --since {since.isoformat()}")


def _require_objectives(path: Path | None) -> None:
    if path is not None:
        import_module("shadowrelay.sla.objectives").read_objectives(str(path))


def _sites(path: Path | None) -> Any:
    return {} if path is None else import_module("shadowrelay.sla.sites").read_sites_file(path)


def _print_report(summary: dict[str, Any], output: str) -> None:
    """In the words and units of the page, in 80 columns."""
    verdicts, labels, comparison = (import_module(f"shadowrelay.sla.page.{name}") for name in ("verdicts", "labels", "comparison"))
    said = verdicts.headline(summary)
    print_sentences([f"{said.text}{f' Not seen: {said.unseen}.' if said.unseen else ''}", f"{said.speed}."])
    for _, title, objectives in verdicts.targets(summary):
        rows = [
            (
                labels.OBJECTIVES[one["name"]],
                verdicts.promised_share(one["name"], one["objective"]),
                verdicts.promised_time(one, summary),
                verdicts.actual(one),
                one["verdict"],
            )
            for one in objectives
        ]
        say("", f"{title}")
        print_table(("Target", "#Promised", "#Within", "#Actual", "Verdict"), [tuple(map(_for_terminal, row)) for row in rows], "")
    say("")
    figures = [(figure.title, figure.said(summary, summary)) for figure in comparison.MAIN_FIGURES]
    print_table(("Figure", "#Value"), [tuple(map(_for_terminal, row)) for row in figures], "")
    say("", f"{output}/report.html")


def _for_terminal(text: str) -> str:
    """Plain spaces, and nothing in place of the page's dash."""
    return "" if text == "\N{EN DASH}" else text.replace("\N{NO-BREAK SPACE}", " ")
