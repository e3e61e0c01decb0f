"""`sla watch`: reads logs as they arrive, updates live figures at once, and repeats the report. docs/sla.md, section 7.

A loop on the main thread keeps two streams running (ingest, live) and does the rest itself, one step after the other, so that no file is
compacted while it is read. Only the report, which takes long, has a separate thread. All lasting state is in the warehouse.

Each `Step` fails separately: the failure is reported, the wait before the next try grows, and the other steps continue.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from shadowrelay.model.replies import ShadowrelayError
from shadowrelay.signals import stopped_by_signals
from shadowrelay.sla import ingest, live, stream
from shadowrelay.sla.checkpoints import CheckpointTorn
from shadowrelay.sla.ingest import Known, Tell, describe_servers, has_events
from shadowrelay.sla.logs import require_logs
from shadowrelay.sla.report import sweep_reports, write_report, write_textfile
from shadowrelay.sla.sites import ServerSite, read_servers
from shadowrelay.sla.storage import written_whole
from shadowrelay.sla.summary import instant
from shadowrelay.sla.warehouse import begin, clean, the_only_one

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# ---- steps

FAILURES_MAX = 10  # consecutive; with the waits about five minutes
WAIT_MAX_SECONDS = 60.0
TEXT_CHARACTERS_MAX = 500


class WatchFailed(ShadowrelayError):
    """A step failed too often in a row; the text says which, and why. All completed work stays."""


class LoopStep:
    """One step of the loop. `failing`: the current error; None if it works."""

    def __init__(self, name: str, do: Callable[[], None], tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.failures = 0
        self.failing: str | None = None
        self._do = do
        self._tell = tell
        self._clock = clock
        self._running_failures = 0
        self._not_before = 0.0

    def run(self) -> None:
        """Run the step, unless it failed a moment ago. Raises: WatchFailed, CheckpointTorn."""
        if self._clock() < self._not_before:
            return
        try:
            self._do()
        except CheckpointTorn:
            raise
        except Exception as exc:  # whatever Spark, a file system or a log may cause: the other steps continue
            self.failed(exc)

    def worked(self) -> None:
        """The step's function calls this after real work: returning without an error is not enough to reset failures."""
        if self.failing is not None:
            self._tell(f"{self.name}: works again")
        self.failing, self._running_failures = None, 0

    def failed(self, exc: Exception) -> None:
        """Count and report a failure, and schedule the next try. Raises: WatchFailed."""
        self.failures += 1
        self._running_failures += 1
        self.failing = shortened(exc)
        if self._running_failures >= FAILURES_MAX:
            raise WatchFailed(f"{self.name} failed {FAILURES_MAX} times running, the last time: {self.failing}") from exc
        wait = min(2.0 ** (self._running_failures - 1), WAIT_MAX_SECONDS)
        self._not_before = self._clock() + wait
        self._tell(f"{self.name}: {self.failing}; again in {wait:.0f} s")


def shortened(exc: Exception) -> str:
    """The first informative line: Spark's errors are followed by pages of stack trace."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return f"{type(exc).__name__}: {lines[0] if lines else ''}"[:TEXT_CHARACTERS_MAX]


# ---- the watch

LOOK_EVERY_SECONDS = 1.0
ENDS_WITHIN_SECONDS = 30.0
SCHEMA_VERSION = 1


class _Stopped(Exception):
    """The stream ended without an error."""


def run_watch(
    spark: "SparkSession",
    logs: str,
    warehouse: str,
    output: str,
    *,
    sites: Mapping[str, ServerSite] | None = None,
    objectives_file: str | None = None,
    textfile: str | None = None,
    interval: timedelta = ingest.INTERVAL,
    tell: Tell = lambda _: None,
    stop: threading.Event | None = None,
) -> None:
    """Run until SIGTERM or SIGINT, or until `stop` is set. `tell` receives a line for each completed step or failure.

    Raises: WatchFailed, CheckpointTorn, NoLogs, InUse.
    """
    require_logs(logs, may_be_empty=True)
    stream.require_streamable(logs)
    stop = stop or threading.Event()
    with the_only_one(warehouse), stopped_by_signals(stop):
        watch = _Watch(spark, logs, warehouse, output, sites, objectives_file, textfile, interval, tell)
        try:
            while not stop.is_set():
                watch.look()
                stop.wait(LOOK_EVERY_SECONDS)
        finally:
            tell("ending")
            watch.close()


class _Watch:
    def __init__(
        self,
        spark: "SparkSession",
        logs: str,
        warehouse: str,
        output: str,
        sites: Mapping[str, ServerSite] | None,
        objectives_file: str | None,
        textfile: str | None,
        interval: timedelta,
        tell: Tell,
    ) -> None:
        self._spark, self._logs, self._warehouse, self._output = spark, logs, warehouse, output
        self._sites, self._objectives_file, self._textfile = sites, objectives_file, textfile
        self._interval, self._tell = interval, tell
        self._queries: dict[str, StreamingQuery] = {}
        begin(warehouse)
        clean(warehouse)
        self._known = Known(warehouse)
        self._mark = live.begin(warehouse)
        self._had_events = has_events(warehouse)
        self._shown: tuple[Any, ...] = ()
        self._reviewed_at: float | None = None
        self._report: Future[dict[str, Any]] | None = None
        self._report_began_at = self._report_not_before = 0.0
        self._reported_batches = -1
        self._reported_seconds: float | None = None
        self._summary: dict[str, Any] | None = None
        self._reporter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="report")
        sweep_reports(output)
        self._steps = {
            name: LoopStep(name, do, tell)
            for name, do in {
                "ingest": lambda: self._keep_running("ingest"), "feed": self._feed, "live": lambda: self._keep_running("live"),
                "review": self._review, "report": self._check_report, "live.json": self._show,
            }.items()
        }  # fmt: skip

    def look(self) -> None:
        """Run every step that is due. Raises: WatchFailed, CheckpointTorn."""
        for step in self._steps.values():
            step.run()

    def _keep_running(self, name: str) -> None:
        query = self._queries.get(name)
        if query is None:
            self._queries[name] = self._start(name)
        elif not query.isActive:
            del self._queries[name]
            raise query.exception() or _Stopped(f"{name} ended")
        elif query.lastProgress is not None:  # a batch, or a poll without new files
            self._steps[name].worked()

    def _start(self, name: str) -> "StreamingQuery":
        if name == "live":
            return live.start(self._spark, self._warehouse, interval=self._interval)
        return stream.start(self._spark, self._logs, self._warehouse, self._interval, self._known, self._tell)

    def _feed(self) -> None:
        self._mark = live.feed(self._warehouse, self._mark, now=datetime.now(UTC))
        self._steps["feed"].worked()

    def _review(self) -> None:
        if self._reviewed_at is None:  # before the first report, which needs the sites of servers
            describe_servers(self._logs, self._warehouse, self._sites, self._known)
            self._reviewed_at = time.monotonic()
        if time.monotonic() - self._reviewed_at < ingest.REVIEW_EVERY.total_seconds():
            return
        if count := stream.read_again(self._spark, self._logs, self._warehouse, self._known):
            self._tell(f"{count} files read again")
        ingest.review(
            lambda: self._spark, self._logs, self._warehouse, self._sites, self._known,
            is_compacting=self._report is None and not self._is_behind(), tell=self._tell,
        )  # fmt: skip
        live.fold(self._spark, self._warehouse)
        self._reviewed_at = time.monotonic()
        self._steps["review"].worked()

    def _is_behind(self) -> bool:
        """Whether landed batches could not be fed: they must not be compacted."""
        return self._steps["feed"].failing is not None

    def _check_report(self) -> None:
        if self._report is not None:
            if not self._report.done():
                return
            report, self._report = self._report, None
            self._reported_seconds = time.monotonic() - self._report_began_at
            self._report_not_before = time.monotonic() + max(self._reported_seconds, self._interval.total_seconds())
            try:
                self._summary = report.result()
            except Exception:
                self._reported_batches = -1  # report again: there is unreported data
                raise
            self._steps["report"].worked()
            self._tell(f"report of {self._reported_batches} batches in {self._reported_seconds:.1f} s")
        elif self._has_news() and time.monotonic() >= self._report_not_before:
            self._reported_batches, self._report_began_at = self._mark.batches, time.monotonic()
            self._report = self._reporter.submit(
                write_report, self._spark, self._warehouse, self._output, objectives_file=self._objectives_file, textfile=self._textfile,
                watch=self._status(),
            )  # fmt: skip

    def _has_news(self) -> bool:
        """Whether there are batches since the last report; at the start, any earlier data. The feed counts later batches."""
        if self._reported_batches >= 0 or self._mark.batches:
            return self._reported_batches != self._mark.batches
        return self._had_events

    def _status(self) -> dict[str, Any]:
        """`watch` of summary.json."""
        return {
            "updated_at": instant(datetime.now(UTC).replace(microsecond=0)),
            "interval_seconds": self._interval.total_seconds(),
            **{name: getattr(self._mark, name) for name in ("batches", "rows", "late_rows", "ahead_rows", "missed_rows")},
            "failures": sum(step.failures for step in self._steps.values()),
            "failing": {step.name: step.failing for step in self._steps.values() if step.failing is not None},
        }

    def _show(self) -> None:
        """Write live.json and the text file, if anything has changed."""
        told = self._status()
        written = live.batches(self._warehouse).newest
        shown = (written, self._mark, told["failures"], sorted(told["failing"]), self._reported_seconds)
        if shown == self._shown:
            return
        report = {"generated_at": self._summary["generated_at"], "seconds": self._reported_seconds} if self._summary else None
        page = {
            "schema_version": SCHEMA_VERSION, **told, "mark": instant(self._mark.instant()), "report": report,
            **live.recent(self._spark, self._warehouse, read_servers(self._warehouse)),
        }  # fmt: skip
        with written_whole(f"{self._output}/live.json") as file:
            file.write(json.dumps(page, indent=1, ensure_ascii=False).encode())
        if self._textfile is not None and self._summary is not None and self._report is None:  # a running report writes it itself
            write_textfile(self._textfile, self._summary | {"watch": told})
        self._shown = shown
        self._steps["live.json"].worked()

    def close(self) -> None:
        """Stop streams and report where they are; unfinished work is repeated by the next run."""
        for query in self._queries.values():
            with suppress(Exception):  # the signal may have stopped Spark already
                query.stop()
        deadline = time.monotonic() + ENDS_WITHIN_SECONDS
        while self._report is not None and not self._report.done() and time.monotonic() < deadline:
            with suppress(Exception):
                self._spark.sparkContext.cancelAllJobs()
            time.sleep(0.1)
        self._reporter.shutdown(wait=False, cancel_futures=True)
