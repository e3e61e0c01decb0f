"""The operator log: one JSON object a line, without secrets."""

import asyncio
import fcntl
import io
import json
import logging
import os
import subprocess
import sys
import warnings
from functools import partial

import pytest
import structlog

from shadowrelay.tracking import operator_log
from shadowrelay.tracking.operator_log import LEFT_OUT, LineLogger, configure
from tests.kit.clock import PATIENCE_SECONDS, Hands, let_pass, until, wait_until


@pytest.fixture
def stream():
    """Where events go; what was configured before is put back."""
    root, mail = logging.getLogger(), logging.getLogger("mail")
    before = (root.handlers[:], root.level, mail.level)
    yield io.BytesIO()
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    logging.captureWarnings(False)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    mail.setLevel(before[2])


def written(stream):
    """What the thread has written, after all that was logged."""
    logging.getLogger().handlers[0].flush()
    return stream.getvalue()


def events(stream):
    return [json.loads(line) for line in written(stream).splitlines()]


def test_an_event_is_one_json_line_with_level_utc_time_and_its_context(stream):
    configure("info", stream=stream)
    structlog.contextvars.bind_contextvars(session="s1")
    structlog.get_logger().info("shadow.stored", size=4096, text="zwei\nZeilen ü")

    (event,) = events(stream)
    assert event.pop("timestamp").endswith("Z")
    assert {"event": "shadow.stored", "level": "info", "session": "s1", "size": 4096, "text": "zwei Zeilen ü"} == event


def test_events_below_the_level_are_not_written(stream):
    configure("warning", stream=stream)
    structlog.get_logger().info("shadow.stored")
    structlog.get_logger().warning("peer.lost")

    assert ["peer.lost"] == [event["event"] for event in events(stream)]


def test_an_unknown_level_is_refused_with_the_choice():
    with pytest.raises(ValueError, match="unknown level 'loud'; use debug, info"):
        configure("loud")


@pytest.mark.parametrize("key", ["password", "token", "auth", "authorization", "body", "content"])
def test_what_is_named_like_a_secret_is_left_out(stream, key):
    configure("info", stream=stream)
    structlog.get_logger().info("session.closed", **{key: "AGEAYg=="})

    assert LEFT_OUT == events(stream)[0][key]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("AUTH PLAIN AGEAYg==", f"AUTH PLAIN {LEFT_OUT}"),
        ("auth login YQ==", f"auth login {LEFT_OUT}"),
        ("refused: Auth PLAIN AGEAYg==", f"refused: Auth PLAIN {LEFT_OUT}"),
        ("Authorization: Bearer abc", f"Authorization: Bearer {LEFT_OUT}"),
        ("MAIL FROM:<a@b.example>", "MAIL FROM:<a@b.example>"),
    ],
)
def test_arguments_of_auth_are_left_out_wherever_they_stand(stream, line, expected):
    configure("info", stream=stream)
    structlog.get_logger().info("command.refused", command=line)

    assert expected == events(stream)[0]["command"]


def test_bytes_are_counted_and_not_shown(stream):
    configure("info", stream=stream)
    structlog.get_logger().info("command.refused", line=b"Subject: secret")

    assert "<15 bytes>" == events(stream)[0]["line"]


def test_an_exception_is_structured_and_shows_no_local_variables(stream):
    configure("info", stream=stream)

    def fail(data):
        raise ValueError("broken")

    try:
        fail("the whole message")
    except ValueError:
        structlog.get_logger().exception("message.failed")

    (event,) = events(stream)
    assert ("error", "ValueError", "broken") == (event["level"], event["exception"][0]["exc_type"], event["exception"][0]["exc_value"])
    assert b"the whole message" not in written(stream)


def test_libraries_log_into_the_same_stream(stream):
    configure("info", stream=stream)
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    first, second = events(stream)
    assert ("Task exception was never retrieved", "asyncio", "error") == (first["event"], first["logger"], first["level"])
    assert "py.warnings" == second["logger"]


@pytest.mark.parametrize("level", ["debug", "info"])
def test_the_command_lines_that_aiosmtpd_logs_are_not_written(stream, level):
    configure(level, stream=stream)
    logging.getLogger("mail.log").info("%r >> %r", ("192.0.2.7", 25), b"AUTH PLAIN AGEAYg==")
    logging.getLogger("mail.debug").debug("AUTH PLAIN AGEAYg==")

    assert b"" == written(stream)


def test_for_people_it_is_not_json(stream):
    configure("info", json=False, stream=stream)
    structlog.get_logger().info("shadow.stored", size=4096)

    assert b"shadow.stored" in written(stream)
    assert not stream.getvalue().startswith(b"{")


class CountingStream(io.BytesIO):
    """Counts calls of write."""

    writes_count = 0

    def write(self, octets):
        self.writes_count += 1
        return super().write(octets)


def test_lines_are_collected_and_written_in_one_call(stream, monkeypatch):
    monkeypatch.setattr(operator_log, "COLLECTED_SECONDS", PATIENCE_SECONDS)
    stream = CountingStream()
    configure("info", stream=stream)
    for number in range(3):
        structlog.get_logger().info("attempt.finished", number=number)
    assert 0 == stream.writes_count

    assert [0, 1, 2] == [event["number"] for event in events(stream)]
    assert 1 == stream.writes_count


def test_a_warning_is_written_at_once_behind_what_was_collected(stream, monkeypatch):
    monkeypatch.setattr(operator_log, "COLLECTED_SECONDS", 10 * PATIENCE_SECONDS)
    configure("info", stream=stream)
    structlog.get_logger().info("attempt.finished")
    structlog.get_logger().warning("peer.lost")

    wait_until(lambda: stream.getvalue().count(b"\n") == 2, what="written without a flush")
    assert ["attempt.finished", "peer.lost"] == [event["event"] for event in events(stream)]


def test_collected_lines_have_a_bound(stream, monkeypatch):
    monkeypatch.setattr(operator_log, "COLLECTED_SECONDS", 10 * PATIENCE_SECONDS)
    monkeypatch.setattr(operator_log, "COLLECTED_OCTETS_MAX", 300)
    configure("info", stream=stream)
    for _ in range(10):
        structlog.get_logger().info("attempt.finished", server="mx.example")

    wait_until(lambda: stream.getvalue().count(b"\n") >= 2, what="written without a flush")


@pytest.fixture
def unread():
    """A pipe that nobody reads, full but for what fits into one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_a_reader_that_hangs_stops_nobody_and_what_was_dropped_is_counted(stream, unread, monkeypatch):
    monkeypatch.setattr(operator_log, "BUFFERED_OCTETS_MAX", 20_000)
    monkeypatch.setattr(operator_log, "FLUSH_SECONDS", 0.0)
    reading, writing = unread
    lines = configure("info", stream=io.FileIO(writing, "w", closefd=False))
    for number in range(1000):
        structlog.get_logger().warning("peer.lost", number=number, text="x" * 100)
    wait_until(lambda: lines.blocked_seconds > 0, what="the thread waits for the reader")
    lines.flush()  # as at exit: returns although nobody reads
    assert lines.dropped_count > 500

    said = b""
    with open(reading, "rb", buffering=0, closefd=False) as pipe:
        while b"lines.dropped" not in said or not said.endswith(b"\n"):
            said += pipe.read(4096)
    found = [json.loads(line) for line in said.splitlines()]
    numbers = [event["number"] for event in found if event["event"] == "peer.lost"]
    dropped = sum(event["count"] for event in found if event["event"] == "lines.dropped")
    # in order and each once; the pipe may make room after the first were dropped
    assert (sorted(set(numbers)), 1000) == (numbers, len(numbers) + dropped)
    wait_until(lambda: lines.blocked_seconds == 0, what="lines flow again")


def test_a_pipe_that_another_process_made_non_blocking_loses_nothing(stream, unread):
    reading, writing = unread
    os.set_blocking(writing, False)
    lines = configure("info", stream=io.FileIO(writing, "w", closefd=False))
    for number in range(100):
        structlog.get_logger().warning("peer.lost", number=number, text="x" * 100)

    said = b""
    with open(reading, "rb", buffering=0, closefd=False) as pipe:
        while said.count(b"\n") < 100:
            said += pipe.read(4096)
    assert (list(range(100)), 0) == ([json.loads(line)["number"] for line in said.splitlines()], lines.dropped_count)


def test_lines_collected_at_exit_are_not_lost():
    program = """
import asyncio, structlog
from shadowrelay.tracking import operator_log
operator_log.configure()
async def attempt():
    structlog.get_logger().info("attempt.finished")
asyncio.run(attempt())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert ["attempt.finished"] == [json.loads(line)["event"] for line in ended.stderr.splitlines()]


def test_a_broken_stderr_stops_nobody(stream):
    stream.close()
    configure("info", stream=stream)
    structlog.get_logger().info("shadow.stored")


def test_a_record_that_cannot_be_formatted_is_reported_in_the_same_stream(stream, capfd):
    configure("info", stream=stream)
    logging.getLogger("library").error("%d", "no number")
    logging.getLogger("library").error("after")

    first, second = events(stream)
    assert ("lines.unformatted", "library", "after") == (first["event"], first["logger"], second["event"])
    assert "" == capfd.readouterr().err


def test_without_a_stream_it_goes_to_stderr(stream, capfd):
    configure("info")
    structlog.get_logger().info("shadow.stored")

    logging.getLogger().handlers[0].flush()
    assert "shadow.stored" == json.loads(capfd.readouterr().err)["event"]


def test_a_value_that_json_does_not_know_is_written_as_text(stream):
    from datetime import timedelta

    configure("info", stream=stream)
    structlog.get_logger().info("lease.renewed", left=timedelta(seconds=1.5), kind=LineLogger)

    assert (1.5, str(LineLogger)) == (events(stream)[0]["left"], events(stream)[0]["kind"])


def test_what_each_message_repeats_while_a_trouble_lasts_is_a_few_lines_and_a_count(stream, monkeypatch):
    clock = Hands(0.0)
    monkeypatch.setattr(operator_log, "Limited", partial(operator_log.Limited, clock))
    configure("info", stream=stream)

    async def say():
        for number in range(100):
            structlog.get_logger().warning("delivery.put_off", message_id=str(number))
            structlog.get_logger().warning("message.set_aside", message_id=str(number))
        clock.at = operator_log.REPEATED_SECONDS
        let_pass(operator_log.REPEATED_SECONDS)
        await until(lambda: b"lines.left_out" in stream.getvalue())
        structlog.get_logger().warning("delivery.put_off", message_id="later")

    asyncio.run(say())

    said = events(stream)
    put_off = [event["message_id"] for event in said if event["event"] == "delivery.put_off"]
    left_out = [(event["of"], event["count"]) for event in said if event["event"] == "lines.left_out"]
    assert ["0", "1", "2", "3", "4", "later"] == put_off
    assert [("delivery.put_off", 95)] == left_out
    assert 100 == len([event for event in said if event["event"] == "message.set_aside"])


def test_lines_left_out_are_counted_in_the_next_line_where_no_loop_runs(stream):
    at = 0.0
    limited = operator_log.Limited(lambda: at)

    def line():
        return limited(None, "warning", {"event": "sweep.waits"})

    for _ in range(operator_log.REPEATED_MAX):
        assert {"event": "sweep.waits"} == line()
    for _ in range(3):
        with pytest.raises(structlog.DropEvent):
            line()
    at = operator_log.REPEATED_SECONDS

    assert {"event": "sweep.waits", "left_out": 3} == line()


@pytest.mark.parametrize("as_json", [True, False])
def test_no_line_of_the_log_controls_a_terminal(stream, as_json):
    hostile = "\x1b]0;x\x07\x9b2J\u202e\x7f"
    configure("info", json=as_json, stream=stream)
    try:
        raise ValueError(hostile)
    except ValueError:
        structlog.get_logger().exception("session.failed", servers=[hostile], found={hostile: hostile}, text=hostile)
    logging.getLogger("library").warning("%s", [hostile])

    shown = written(stream).decode()
    assert "session.failed" in shown
    assert not [one for one in shown if not one.isprintable() and one != "\n"]
