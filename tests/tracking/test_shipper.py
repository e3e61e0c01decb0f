"""Shipping on real files, to targets that work, fail, hang and forget.

One file, because every test needs the same targets, which misbehave in turn.
"""

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
from datetime import UTC, datetime, timedelta

import fsspec
import pytest
import structlog

from shadowrelay.model.settings import Settings
from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.tracking import shipper
from shadowrelay.tracking.shipper import Shipper, make_tracking
from shadowrelay.tracking.shipping_state import NAME, Book, ShippingNode
from shadowrelay.tracking.target import TEMP_PREFIX, open_target
from shadowrelay.tracking.writer import FileTrackingLog, tracking_files
from tests.kit.clock import PATIENCE_SECONDS, Hands, let_pass, until

START = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
ORIGIN = ShippingNode("mx1.example", "east", "corp")


class Faulty:
    """A target in front of a real one. `fault` is called with each verb and name before it is done."""

    def __init__(self, target):
        self.target = target
        self.fault = lambda verb, name: None
        self.done = []

    def put(self, path, name, attempt):
        self.fault("put", name)
        self.target.put(path, name, attempt)
        self.done.append(name)

    def replace(self, name, octets, attempt):
        self.fault("replace", name)
        self.target.replace(name, octets, attempt)

    def read(self, name):
        self.fault("read", name)
        return self.target.read(name)

    def clean(self):
        self.target.clean()

    def disconnect(self):
        self.target.disconnect()


SECRET = "4711"


class ShippingNode:
    """A log and its shipper as a process has them; `begin` again is the next process."""

    def __init__(self, logs, url, now, close_after=timedelta(hours=1), **limits):
        self.logs, self.url, self.now = logs, url, now
        self.limits = {"max_file_size": 10_000_000, "max_directory_size": 10**9, "max_age": timedelta(days=30)} | limits
        self.close_after = close_after
        self.begin()

    def begin(self):
        self.target = Faulty(open_target(self.url, {}, ORIGIN.server))
        self.book = Book(self.logs, self.url, ORIGIN, max_age=self.limits["max_age"], now=self.now)
        self.shipper = Shipper(self.logs, self.book, self.target, self.now, shown="here", plain=lambda text: text.replace(SECRET, "…"))
        self.log = FileTrackingLog(
            self.logs, ORIGIN.server, now=self.now, version="1", on_closed=self.shipper.closed, custody=self.shipper.files,
            close_after=self.close_after, **self.limits,
        )  # fmt: skip

    async def write_file(self, number, subject="Hello"):
        """One row in a file of its own, which is complete afterwards."""
        self.log.write(TrackingEvent(START, EventId.RECEIVE, EventSource.SMTP, number, f"id-{number}", subject=subject))
        await self.log.sync()
        self.log._retire()
        await self.log.sync()

    async def end(self):
        await self.log.close()
        await self.shipper.close(PATIENCE_SECONDS)

    async def until_shipped(self, count):
        await until(lambda: len(self.manifest()["files"]) == count and not len(self.shipper.files))

    def manifest(self):
        octets = self.target.target.read("manifest.json")
        return json.loads(octets) if octets else {"files": [], "dropped": []}

    def local(self):
        return {path.name: path.read_bytes() for path in self.logs.glob("MSGTRK*.LOG")}


def remote(url):
    """What a reader finds: names and octets, manifest apart."""
    store, folder = fsspec.core.url_to_fs(f"{url}/{ORIGIN.server}")
    return {path.rpartition("/")[2]: store.cat_file(path) for path in store.glob(f"{folder}/MSGTRK*.LOG")}


def renamed(files):
    return {f"{name[:-4]}.{hashlib.sha256(octets).hexdigest()[:8]}.LOG": octets for name, octets in files.items()}


def failing(error):
    def fail(*_):
        raise error

    return fail


@pytest.fixture
def now():
    return Hands(START)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(shipper, "RETRY_SECONDS_MIN", 0.01)
    monkeypatch.setattr(shipper, "RETRY_SECONDS_MAX", 0.05)


@pytest.fixture
def try_again(monkeypatch):
    """After a failure the shipper rests until this is called: what a test changes meanwhile, it changes between two attempts."""
    seconds = 3600.0
    monkeypatch.setattr(shipper, "RETRY_SECONDS_MIN", seconds)
    monkeypatch.setattr(shipper, "RETRY_SECONDS_MAX", seconds)
    return lambda: let_pass(seconds)


@pytest.fixture(params=["directory", "memory"])
def url(request, tmp_path):
    if request.param == "directory":
        yield str(tmp_path / "target")
        return
    yield f"memory://{tmp_path.name}"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


@pytest.fixture
async def station(tmp_path, url, now):
    made = ShippingNode(tmp_path / "logs", url, now)
    yield made
    await made.end()


@pytest.fixture
async def in_directory(tmp_path, now):
    made = ShippingNode(tmp_path / "logs", str(tmp_path / "target"), now)
    yield made
    await made.end()


async def test_closed_files_arrive_under_the_name_of_their_content_with_a_manifest(station, url):
    station.shipper.start()
    for number in range(3):
        await station.write_file(number)
    await station.until_shipped(3)

    found, manifest = remote(url), station.manifest()
    assert renamed(station.local()) == found
    assert ("mx1.example", "east", "corp", []) == tuple(manifest[key] for key in ("server", "site", "boundary", "dropped"))
    assert [(name, len(octets), hashlib.sha256(octets).hexdigest(), 1) for name, octets in sorted(found.items())] == [
        (entry["name"], entry["bytes"], entry["sha256"], entry["rows"]) for entry in manifest["files"]
    ]
    assert (3, 0, 0, 0.0) == (
        station.shipper.shipped_count,
        station.shipper.files.dropped_count,
        len(station.shipper.files),
        station.shipper.oldest_age_seconds,
    )


async def test_the_open_file_is_not_shipped_until_it_is_closed_at_the_end(station, url):
    station.shipper.start()
    await station.write_file(1)
    station.log.write(TrackingEvent(START, EventId.RECEIVE, EventSource.SMTP, 2, "id-2"))
    await station.log.sync()
    await station.until_shipped(1)
    assert 1 == len(remote(url))

    await station.end()

    assert renamed(station.local()) == remote(url)
    assert 2 == len(station.manifest()["files"])


async def test_a_quiet_node_ships_its_file_after_the_interval(tmp_path, now):
    station = ShippingNode(tmp_path / "logs", str(tmp_path / "target"), now, close_after=timedelta(milliseconds=50))
    station.shipper.start()
    station.log.write(TrackingEvent(START, EventId.RECEIVE, EventSource.SMTP, 1, "id-1"))
    await station.until_shipped(1)
    station.log.write(TrackingEvent(START, EventId.RECEIVE, EventSource.SMTP, 2, "id-2"))
    await station.until_shipped(2)
    await station.end()

    assert ["MSGTRK2026112110-1.LOG", "MSGTRK2026112110-2.LOG"] == sorted(station.local())


def node_settings(tmp_path, tracking, shipping):
    tables = {"tracking": {"directory": tmp_path / "logs", **tracking}, "shipping": shipping}
    return Settings.model_validate({"server": {"name": ORIGIN.server, "site": "east"}, **tables})


LIMITS = [  # what is changed; how many files are left of five hours with 40 rows each, and whether rows are missing
    ({}, 5, False),
    ({"max_file_size": "5kB"}, 10, False),
    ({"max_file_size": "5kB", "max_directory_size": "20kB"}, 4, True),
    ({"max_age": "2h"}, 3, True),
    ({"max_age": "0s"}, 5, False),
]


@pytest.mark.parametrize(("changes", "files_count", "are_rows_missing"), LIMITS)
async def test_the_limits_of_a_nodes_log_are_its_settings(tmp_path, now, changes, files_count, are_rows_missing):
    log, _ = make_tracking(node_settings(tmp_path, changes, {}), now, "1")
    for hour in range(5):
        now.at = START + timedelta(hours=hour)
        for number in range(40):
            log.write(TrackingEvent(now.at, EventId.RECEIVE, EventSource.SMTP, number, f"id-{number}"))
            await log.sync()
    await log.close()

    files = list((tmp_path / "logs").glob("MSGTRK*.LOG"))
    rows_count = sum(line.startswith(b"2026") for path in files for line in path.read_bytes().splitlines())
    assert (files_count, are_rows_missing) == (len(files), rows_count < 200)


@pytest.mark.parametrize(("interval", "seconds", "shipped_count"), [("2m", 121, 1), ("5m", 121, 0), ("5m", 301, 1)])
async def test_a_node_closes_and_ships_a_file_when_the_interval_of_its_settings_is_over(tmp_path, now, interval, seconds, shipped_count):
    settings = node_settings(tmp_path, {}, {"target": str(tmp_path / "target"), "interval": interval})
    log, custodian = make_tracking(settings, now, "1")
    custodian.start()
    log.write(TrackingEvent(START, EventId.RECEIVE, EventSource.SMTP, 1, "id-1"))
    await log.sync()

    let_pass(seconds)
    if shipped_count:
        await until(lambda: remote(str(tmp_path / "target")))
    else:
        await asyncio.sleep(0.1)
    assert shipped_count == len(remote(str(tmp_path / "target")))
    await log.close()
    await custodian.close()


async def test_files_of_an_earlier_process_are_shipped_a_torn_last_line_too(station, url):
    station.logs.mkdir(exist_ok=True)
    (station.logs / "MSGTRK2026112109-1.LOG").write_bytes(b"#Fields: x\r\na,b\r\nc,to")
    station.begin()
    station.shipper.start()
    await station.until_shipped(1)

    assert [b"#Fields: x\r\na,b\r\nc,to"] == list(remote(url).values())
    assert 1 == station.manifest()["files"][0]["rows"]


async def test_what_was_shipped_is_not_shipped_again_by_the_next_process(station):
    station.shipper.start()
    await station.write_file(1)
    await station.until_shipped(1)
    await station.end()

    station.begin()
    station.shipper.start()
    await station.write_file(2)
    await station.until_shipped(2)

    assert ["MSGTRK2026112110-2"] == [name.split(".")[0] for name in station.target.done]


async def test_a_process_killed_before_it_recorded_what_it_shipped_ships_it_again(in_directory):
    station = in_directory
    await station.write_file(1)
    measured = (station.logs / "MSGTRK2026112110-1.LOG").read_bytes()
    name = next(iter(renamed({"MSGTRK2026112110-1.LOG": measured})))
    folder = station.logs.parent / "target" / ORIGIN.server
    folder.mkdir(parents=True)
    (folder / name).write_bytes(measured)  # shipped; then SIGKILL
    (folder / f"{TEMP_PREFIX}{name}.0a0a0a0a").write_bytes(measured[:9])  # and in the middle of another

    station.begin()
    station.shipper.start()
    await station.until_shipped(1)

    assert [name] == station.target.done
    assert {"manifest.json", name} == {path.name for path in folder.iterdir()}


async def test_a_process_killed_before_the_manifest_publishes_it_at_the_next_start(in_directory):
    station = in_directory
    station.shipper.start()
    await station.write_file(1)
    await station.until_shipped(1)
    await station.end()
    (station.logs.parent / "target" / ORIGIN.server / "manifest.json").unlink()

    station.begin()
    station.shipper.start()
    await station.until_shipped(1)

    assert [] == station.target.done


async def test_a_file_counts_as_shipped_only_when_the_book_says_so_on_disk(in_directory, monkeypatch):
    station = in_directory
    monkeypatch.setattr(station.book, "_replace", failing(OSError(errno.ENOSPC, "full")))
    station.shipper.start()
    with structlog.testing.capture_logs() as logs:
        await station.write_file(1)
        await station.until_shipped(1)
    (key,) = tracking_files(station.logs)
    found = os.stat(station.logs / key.name)
    assert not station.shipper.files.is_shipped(key, found)
    assert "shipping.book_unsaved" in [line["event"] for line in logs]

    monkeypatch.undo()
    await station.write_file(2)
    await station.until_shipped(2)

    assert station.shipper.files.is_shipped(key, found)


async def test_after_the_directory_was_destroyed_nothing_at_the_target_is_forgotten_or_overwritten(station, url):
    station.shipper.start()
    await station.write_file(1, "first")
    await station.until_shipped(1)
    await station.end()
    before = remote(url)
    shutil.rmtree(station.logs)

    station.begin()
    station.shipper.start()
    await station.write_file(2, "another")
    await station.until_shipped(2)

    found = remote(url)
    assert 2 == len(found) == len({name.split(".")[0] for name in found}) + 1
    assert before.items() <= found.items()
    assert sorted(found) == sorted(entry["name"] for entry in station.manifest()["files"])


async def test_a_manifest_that_was_not_there_because_the_target_was_not_is_not_forgotten(in_directory, try_again):
    station = in_directory
    target = station.logs.parent / "target"
    station.shipper.start()
    await station.write_file(1)
    await station.until_shipped(1)
    await station.end()
    shutil.rmtree(station.logs)
    target.rename(target.with_name("unmounted"))

    station.begin()
    station.target.fault = lambda verb, name: failing(OSError("read-only"))() if verb == "replace" else None
    station.shipper.start()
    await until(lambda: station.shipper._failures_count)
    target.with_name("unmounted").rename(target)
    station.target.fault = lambda verb, name: None
    try_again()
    await station.write_file(2)
    await station.until_shipped(2)

    assert 2 == len(remote(station.url))


async def test_a_directory_that_is_destroyed_while_it_waits_is_told_as_lost(in_directory, try_again):
    station = in_directory
    station.target.fault = lambda verb, name: failing(ConnectionError("down"))() if verb == "put" else None
    station.shipper.start()
    await station.write_file(1, "lost")
    size = (station.logs / "MSGTRK2026112110-1.LOG").stat().st_size
    await until(lambda: station.shipper._failures_count)
    shutil.rmtree(station.logs)
    station.logs.mkdir()
    await station.write_file(2, "of the same name")
    station.target.fault = lambda verb, name: None
    try_again()
    await station.until_shipped(1)

    await until(lambda: station.manifest()["dropped"])

    assert [("MSGTRK2026112110-1.LOG", size)] == [(each["name"], each["bytes"]) for each in station.manifest()["dropped"]]
    assert renamed(station.local()) == remote(station.url)
    assert 1 == station.shipper.files.dropped_count


async def test_a_target_that_is_down_is_tried_again_and_nothing_is_lost(station, url):
    is_down = True

    def fault(verb, name):
        if is_down:
            raise PermissionError(errno.EACCES, f"no key {SECRET} here")

    station.target.fault = fault
    station.shipper.start()
    with structlog.testing.capture_logs() as logs:
        for number in range(3):
            await station.write_file(number)
        await until(lambda: station.shipper._failures_count >= 4)
        station.now.at = datetime.now(UTC) + timedelta(seconds=60)
        assert (3, True) == (len(station.shipper.files), 60 <= station.shipper.oldest_age_seconds < 120)
        is_down = False
        await station.until_shipped(3)
        await until(lambda: "shipping.recovered" in [line["event"] for line in logs])

    failed = [line for line in logs if line["event"] == "shipping.failed"]
    assert renamed(station.local()) == remote(url)
    assert ([0.01, 0.02, 0.04, 0.05], list(range(1, len(failed) + 1))) == (
        [line["retry_seconds"] for line in failed[:4]],
        [line["failures"] for line in failed],
    )
    assert "PermissionError: [Errno 13] no key … here" == failed[0]["error"]
    assert 1 == sum(line["event"] == "shipping.recovered" for line in logs)


async def test_a_target_that_hangs_is_given_up_on_and_tried_anew(in_directory):
    station = in_directory
    hangs, may_go_on = threading.Event(), threading.Event()

    def fault(verb, name):
        if verb == "put" and not hangs.is_set():
            hangs.set()
            may_go_on.wait()

    station.target.fault = fault
    station.shipper.start()
    with structlog.testing.capture_logs() as logs:
        await station.write_file(1)
        await until(hangs.is_set)  # a loop that were held up by it would never come back here
        let_pass(2 * shipper.STEP_SECONDS)
        await station.until_shipped(1)
    assert 1 == station.shipper._threads.hung_count
    may_go_on.set()
    await until(lambda: not station.shipper._threads.hung_count)
    await station.end()

    assert "no answer within 60 s" in next(line["error"] for line in logs if line["event"] == "shipping.failed")
    assert renamed(station.local()) == remote(station.url)
    assert [] == list((station.logs.parent / "target" / ORIGIN.server).glob(f"{TEMP_PREFIX}*"))


async def test_a_file_that_the_target_refuses_does_not_hold_up_the_others(in_directory):
    station = in_directory

    def fault(verb, name):
        if name.startswith("MSGTRK2026112110-1."):
            raise OSError(errno.EFBIG, "too large")

    station.target.fault = fault
    station.shipper.start()
    for number in range(4):
        await station.write_file(number)
    await until(lambda: len(station.manifest()["files"]) == 3)

    assert 1 == len(station.shipper.files)
    assert not any(name.startswith("MSGTRK2026112110-1.") for name in remote(station.url))


async def test_a_file_that_cannot_be_read_waits_and_the_others_go(in_directory, monkeypatch):
    station = in_directory
    damaged, measure = failing(OSError(errno.EIO, "damaged")), shipper.measure
    monkeypatch.setattr(shipper, "measure", lambda path: damaged() if "-1.LOG" in path.name else measure(path))
    station.shipper.start()
    with structlog.testing.capture_logs() as logs:
        await station.write_file(1)
        await station.write_file(2)
        await until(lambda: len(station.manifest()["files"]) == 1)

    assert 1 == len(station.shipper.files)
    assert ["shipping.file_unreadable"] == [line["event"] for line in logs if line["log_level"] == "error"]


async def test_a_full_disk_at_the_target_leaves_no_half_file_there(in_directory, monkeypatch):
    station = in_directory
    copy, put, is_full = shutil.copyfileobj, station.target.put, True
    left = []  # what each attempt that failed has left there

    def put_and_look(*arguments):
        try:
            put(*arguments)
        except OSError:
            left.append([path.name for path in (station.logs.parent / "target" / ORIGIN.server).iterdir()])
            raise

    def copy_some(source, file, length):
        if is_full:
            file.write(source.read(10))
            file.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy(source, file, length)

    monkeypatch.setattr(shutil, "copyfileobj", copy_some)
    monkeypatch.setattr(station.target, "put", put_and_look)
    station.shipper.start()
    await station.write_file(1)
    await until(lambda: station.shipper._failures_count >= 2)
    is_full = False
    await station.until_shipped(1)

    assert {("manifest.json",)} == {tuple(names) for names in left}
    assert renamed(station.local()) == remote(station.url)


async def test_a_manifest_that_nobody_can_read_is_kept_aside(station, url):
    station.target.target.replace("manifest.json", b"{half", shipper.Attempt())
    station.shipper.start()
    with structlog.testing.capture_logs() as logs:
        await station.write_file(1)
        await until(lambda: b"half" not in station.target.target.read("manifest.json"))
        await station.until_shipped(1)

    kept = next(line["kept_as"] for line in logs if line["event"] == "shipping.manifest_unreadable")
    assert b"{half" == station.target.target.read(kept)


async def test_when_the_directory_is_full_the_oldest_unshipped_goes_and_everybody_is_told(tmp_path, now):
    station = ShippingNode(tmp_path / "logs", str(tmp_path / "target"), now, max_file_size=1500, max_directory_size=4500)
    is_down = True

    def fault(verb, name):
        if is_down:
            raise ConnectionError

    station.target.fault = fault
    station.shipper.start()
    with structlog.testing.capture_logs() as logs:
        for number in range(8):
            now.at += timedelta(hours=1)
            await station.write_file(number, "x" * 300)
    kept = station.local()
    dropped = [line["file"] for line in logs if line["event"] == "tracking.dropped_unshipped"]
    is_down = False
    await station.until_shipped(len(kept))
    await until(lambda: len(station.manifest()["dropped"]) == len(dropped))
    await station.end()

    assert 2 <= len(dropped) == station.shipper.files.dropped_count
    assert dropped == [entry["name"] for entry in station.manifest()["dropped"]]
    assert 8 == len({*kept, *dropped}) == len(kept) + len(dropped)
    assert max(dropped) < min(kept)
    assert renamed(kept) == remote(station.url)


async def test_when_the_target_works_shipped_files_make_room_and_nothing_is_dropped(tmp_path, now):
    station = ShippingNode(tmp_path / "logs", str(tmp_path / "target"), now, max_file_size=1500, max_directory_size=4500)
    station.shipper.start()
    for number in range(8):
        now.at += timedelta(hours=1)
        await station.write_file(number, "x" * 300)
        await station.until_shipped(number + 1)
    await station.end()

    assert (0, []) == (station.shipper.files.dropped_count, station.manifest()["dropped"])
    assert 8 == len(remote(station.url)) > len(station.local())


async def test_age_deletes_only_what_was_shipped(tmp_path, now):
    station = ShippingNode(tmp_path / "logs", str(tmp_path / "target"), now, max_age=timedelta(days=1))
    await station.write_file(1)
    now.at += timedelta(days=3)
    await station.write_file(2)
    before = sorted(station.local())
    station.shipper.start()
    await station.until_shipped(2)
    now.at += timedelta(days=3)
    await station.write_file(3)
    await station.end()

    assert ["MSGTRK2026112110-1.LOG", "MSGTRK2026112410-1.LOG"] == before
    assert ["MSGTRK2026112710-1.LOG"] == sorted(station.local())
    assert 3 == len(remote(station.url))
    assert 1 == len(station.manifest()["files"])  # entries are as old as the files


async def test_a_drop_that_was_recorded_but_not_done_is_taken_back(in_directory):
    station = in_directory
    await station.write_file(1)
    key = tracking_files(station.logs)[0]
    station.shipper.files.drop({key: os.stat(station.logs / key.name)})  # then SIGKILL

    station.begin()
    station.shipper.start()
    await station.until_shipped(1)

    assert [] == station.manifest()["dropped"]


async def test_another_target_gets_everything_that_is_there(in_directory):
    station = in_directory
    station.shipper.start()
    await station.write_file(1)
    await station.until_shipped(1)
    await station.end()

    station.url += "-new"
    station.begin()
    station.shipper.start()
    await station.until_shipped(1)

    assert renamed(station.local()) == remote(station.url)


@pytest.mark.parametrize(
    "octets", [b"", b"{", b"[]", b'{"manifest": 5}', b'{"manifest": {"schema_version": 1, "files": [], "dropped": []}}']
)
async def test_a_book_that_cannot_be_read_costs_a_repeat_and_no_entry(in_directory, octets):
    station = in_directory
    station.shipper.start()
    await station.write_file(1)
    await station.until_shipped(1)
    await station.end()
    (station.logs / NAME).write_bytes(octets)

    station.begin()
    station.shipper.start()
    await station.until_shipped(1)

    assert 1 == len(station.target.done)


async def test_the_end_waits_for_a_target_that_hangs_only_so_long(in_directory, monkeypatch):
    station = in_directory
    monkeypatch.setattr(shipper, "STEP_SECONDS", 3600.0)
    may_go_on = threading.Event()
    station.target.fault = lambda verb, name: may_go_on.wait() and None
    station.shipper.start()
    await station.write_file(1)
    await station.log.close()
    await station.shipper.close(0.1)  # comes back, although the target still hangs
    may_go_on.set()

    station.begin()
    station.shipper.start()
    await station.until_shipped(1)
    assert renamed(station.local()) == remote(station.url)
