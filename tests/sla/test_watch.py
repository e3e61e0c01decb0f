"""The watch: it goes on when something breaks, says so, and ends when it is asked to. Killed, it neither loses nor doubles anything."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import functions as F

from shadowrelay.model.tracking import EventId
from shadowrelay.signals import stopped_by_signals
from shadowrelay.sla import live, stream, watch
from shadowrelay.sla.ingest import has_events
from shadowrelay.sla.land import land
from shadowrelay.sla.report import write_report
from shadowrelay.sla.warehouse import read_events
from tests.kit.clock import wait_until
from tests.kit.log_files import a_log, an_event
from tests.kit.summaries import empty

WAIT_SECONDS_MAX = 3 * 3600  # on a machine that does much else: only what hangs is a failure


def put(logs: Path, server: str, name: str, messages: list[str], at: datetime, event: EventId = EventId.RECEIVE) -> None:
    """A closed log: there, or not."""
    directory = logs / server
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f".{name}").write_bytes(a_log(an_event(message, event, at=at, recipients=("a@b",)) for message in messages))
    (directory / f".{name}").rename(directory / f"MSGTRK{name}.LOG")


@pytest.fixture
def looks(monkeypatch) -> list[None]:
    """One for each time that a watch has looked after everything."""
    done: list[None] = []
    look = watch._Watch.look
    monkeypatch.setattr(watch._Watch, "look", lambda self: done.append(look(self)))
    return done


def stop_after(stop: threading.Event, looks: list[None], count: int, is_time=lambda: True) -> None:
    """So many looks after it is time, however long they take here. The watch itself goes on meanwhile."""

    def run() -> None:
        try:
            wait_until(is_time, WAIT_SECONDS_MAX)
            last = len(looks) + count
            wait_until(lambda: len(looks) >= last, WAIT_SECONDS_MAX)
        finally:
            stop.set()

    threading.Thread(target=run, daemon=True).start()


def acknowledged(output: Path) -> int:
    """In live.json."""
    if not (output / "live.json").exists():
        return 0
    hours = json.loads((output / "live.json").read_text())["hours"]
    return sum(line["messages_acknowledged"] for line in hours if line["scope"] == "all")


@pytest.mark.timeout(1800, func_only=True)
def test_a_bad_batch_and_a_failed_report_are_said_and_tried_again(spark, tmp_path, monkeypatch, looks):
    logs, output, told, reports, stop = tmp_path / "logs", tmp_path / "o", [], [], threading.Event()
    logs.mkdir()
    lands = iter([OSError("disk full")])

    def land_badly(*values):
        for error in lands:
            raise error
        return land(*values)

    def report(_spark, _warehouse, directory, **options):
        reports.append(options["watch"])
        if len(reports) == 1:
            raise OSError("no room")
        return empty() | {"watch": options["watch"]}

    monkeypatch.setattr(stream, "land", land_badly)
    monkeypatch.setattr(watch, "write_report", report)
    now = datetime.now(UTC)
    put(logs, "mx1", "2026112112-1", ["m1", "m2"], now)

    def tell(line):
        told.append(line)
        if "report of 1 batches" in line:
            put(logs, "mx1", "2026112112-2", ["m3"], now - timedelta(hours=3))
        if "report of 2 batches" in line:
            stop_after(stop, looks, 3, lambda: acknowledged(output) == 2)

    watch.run_watch(
        spark, str(logs), str(tmp_path / "w"), str(output), interval=timedelta(seconds=1), tell=tell, stop=stop,
        textfile=str(tmp_path / "t.prom"),
    )  # fmt: skip

    assert any(line.startswith("ingest: ") and "again in 1 s" in line for line in told)
    assert "report: OSError: no room; again in 1 s" in told
    assert {"ingest: works again", "report: works again", "ending"} <= set(told)
    assert [1, 1, 2] == [each["batches"] for each in reports]
    page = json.loads((output / "live.json").read_text())
    assert (2, 3, 1, 2, {}) == tuple(page[name] for name in ("batches", "rows", "late_rows", "failures", "failing"))
    assert 2 == acknowledged(output)
    assert "shadowrelay_sla_watch_late_rows 1\n" in (tmp_path / "t.prom").read_text()
    assert [] == spark.streams.active
    assert 3 == read_events(spark, str(tmp_path / "w")).count()


@pytest.mark.timeout(1800, func_only=True)
def test_what_lands_before_the_first_report_is_reported_once_and_counted(spark, tmp_path, monkeypatch, looks):
    reports, stop = [], threading.Event()
    put(tmp_path / "logs", "mx1", "2026112112-1", ["m1"], datetime.now(UTC))

    def describe_servers(_logs, warehouse, _sites, _known):
        wait_until(lambda: has_events(warehouse), WAIT_SECONDS_MAX)  # after the look's feed, before its report

    def report(_spark, _warehouse, _directory, **options):
        reports.append(options["watch"]["batches"])
        stop_after(stop, looks, 4)  # enough to see another one begin
        return empty() | {"watch": options["watch"]}

    monkeypatch.setattr(watch, "describe_servers", describe_servers)
    monkeypatch.setattr(watch, "write_report", report)
    watch.run_watch(spark, str(tmp_path / "logs"), str(tmp_path / "w"), str(tmp_path / "o"), interval=timedelta(seconds=1), stop=stop)

    assert [1] == reports


def test_what_does_not_pass_ends_the_watch_with_an_error(spark, tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(watch, "FAILURES_MAX", 2)
    monkeypatch.setattr(watch._Watch, "_start", lambda *_: 1 / 0)

    with pytest.raises(watch.WatchFailed, match="ingest failed"):
        watch.run_watch(spark, str(tmp_path / "logs"), str(tmp_path / "w"), str(tmp_path / "o"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_for_the_end_and_the_handlers_are_put_back(number):
    stop, before = threading.Event(), signal.getsignal(number)
    with stopped_by_signals(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(60)

    assert before == signal.getsignal(number)


def start(directory: Path, output) -> subprocess.Popen:
    words = ["sla", "watch", "--logs", str(directory / "logs"), "--warehouse", str(directory / "w"), "--output", str(directory / "o")]
    words += ["--interval", "1", "--master", "local[2]", "--driver-memory", "1g"]
    return subprocess.Popen([sys.executable, "-m", "shadowrelay", *words], stdout=output, stderr=output, start_new_session=True)


PROCESSOR_SECONDS_MAX = 900.0  # of a watch and its JVM until it is time: about 40 where nothing is wrong


def wait_alive(process: subprocess.Popen, is_time) -> None:
    """As long as it has worked little: by its own processor time, which other programs of the machine do not take away."""

    def is_time_and_alive() -> bool:
        assert process.poll() is None
        assert processor_seconds(process.pid) < PROCESSOR_SECONDS_MAX
        return is_time()

    wait_until(is_time_and_alive, WAIT_SECONDS_MAX)


def processor_seconds(group: int) -> float:
    """Of all processes of the group."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        ticks += sum(map(int, fields[11:15])) if int(fields[2]) == group else 0
    return ticks / os.sysconf("SC_CLK_TCK")


WAITING_MAX = 6  # logs that arrive before the watch has taken those before them: a slow one gets no more to do than a fast one


@pytest.mark.heavy
@pytest.mark.timeout(WAIT_SECONDS_MAX)
def test_killed_several_times_while_files_arrive_nothing_is_lost_or_doubled(spark, tmp_path):
    logs, warehouse, top = tmp_path / "logs", tmp_path / "w", tmp_path / "w" / "live"
    logs.mkdir()
    now = datetime.now(UTC).replace(microsecond=0)
    sent, numbers, is_done = [], iter(range(10**6)), threading.Event()
    names = []

    def more() -> None:
        number = next(numbers)
        ago = timedelta(hours=4 if number % 5 == 4 else 0)  # every fifth file comes too late
        messages = [f"m{number}-{each}" for each in range(50)]
        put(logs, f"mx{number % 3}", f"2026112112-{number}", messages, now - ago)
        if number % 4 == 3:  # shipped again, under another name
            put(logs, f"mx{number % 3}", f"2026112112-{number}a", messages, now - ago)
            names.append(f"{number}a")
        sent.append(number)
        names.append(str(number))

    def taken() -> int:
        try:
            return sum(parquet.read_metadata(path).num_rows for path in warehouse.glob("files/*/*.parquet"))
        except (OSError, pa.ArrowException):  # being replaced
            return 0

    def arrive() -> None:
        while not is_done.wait(1.5):
            if len(names) - taken() < WAITING_MAX:
                more()

    def count(pattern: str) -> int:
        return len(list(warehouse.glob(pattern)))

    def mark() -> dict:
        return json.loads((top / "mark.json").read_text()) if (top / "mark.json").exists() else {"batches": 0}

    points = [
        lambda: count("events/*/*/*/*.parquet") >= 1,  # rows are there, no file is done
        lambda: count("live/feed/*.parquet") > count("live/minutes/batch=*/_SUCCESS"),  # fed, not counted
        lambda: count("live/minutes/batch=*/_temporary") >= 1,  # while a batch is counted
        lambda: count("live/minutes/batch=*/_SUCCESS") > count("live/checkpoint/commits/[0-9]*") >= 2,  # counted, the checkpoint knows not
        lambda: mark()["batches"] >= 8 and any((tmp_path / "o").glob(".making-*")),  # while a report is made
    ]
    arriving = threading.Thread(target=arrive, daemon=True)
    arriving.start()
    with (tmp_path / "output").open("ab") as output:
        for point in points:
            process = start(tmp_path, output)
            try:
                wait_alive(process, point)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)
            time.sleep(0.5)
        is_done.set()
        arriving.join()
        process = start(tmp_path, output)
        rows = 50 * (len(sent) + sum(number % 4 == 3 for number in sent))
        try:
            wait_alive(process, lambda: _is_settled(tmp_path, rows, 50 * len(sent)))
            process.send_signal(signal.SIGTERM)
            assert 0 == process.wait(WAIT_SECONDS_MAX), (tmp_path / "output").read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    page, summary = (json.loads((tmp_path / "o" / name).read_text()) for name in ("live.json", "summary.json"))
    again = write_report(spark, str(warehouse), str(tmp_path / "again"))
    assert 50 * len(sent) == again["overall"]["messages_acknowledged"]
    assert again["overall"] == summary["overall"]
    events = read_events(spark, str(warehouse))
    assert rows == events.count() == page["rows"]
    every = live.minutes(spark, str(warehouse)).agg(F.sum("messages_acknowledged"), F.sum("late_rows")).collect()[0]
    late = 50 * sum(number % 5 == 4 for number in sent)
    assert 50 * len(sent) == every[0] + every[1]  # each once, in its minute or as late
    assert 0 < every[1] <= late  # those of the first batch have no mark before them
    assert every[1] <= page["late_rows"]
    assert 'http-equiv="refresh"' in (tmp_path / "o" / "report.html").read_text()


def _is_settled(directory: Path, rows: int, different: int) -> bool:
    """All is counted live, and the last report is one of all."""
    try:
        page, summary = (json.loads((directory / "o" / name).read_text()) for name in ("live.json", "summary.json"))
    except FileNotFoundError:
        return False
    counted = sum(line["rows"] + line["late_rows"] for line in page["hours"] if line["scope"] == "all")
    return summary["watch"]["rows"] == page["rows"] == rows and page["report"] is not None and counted >= different
