"""Rows about one message are found in the files of the log, whatever else is in them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.protocol.tracking import format_line
from shadowrelay.tracking import search
from shadowrelay.tracking.writer import FileTrackingLog
from tests.kit.clock import Hands

START = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
WANTED = "0193a6a2-6f1e-7c3a-9c57-0d1f2e3a4b5c"


def an_event(message_id: str, number: int = 0, **more: str) -> TrackingEvent:
    return TrackingEvent(START, EventId.RECEIVE, EventSource.SMTP, number, message_id, recipients=("b@x.example",), **more)


def a_file(path: Path, *events: TrackingEvent, torn: bytes = b"") -> Path:
    path.write_bytes(b"#Software: shadowrelay\r\n" + b"".join(map(format_line, events)) + torn)
    return path


@pytest.mark.parametrize("block", [1, 7, 100, 2**20])
def test_rows_are_found_however_they_lie_in_the_blocks_that_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(search, "BLOCK_BYTES", block)
    others = [an_event(f"other-{number}", number) for number in range(3)]
    first = a_file(tmp_path / "a", others[0], an_event(WANTED, 1), an_event(WANTED, 2), others[1])
    second = a_file(tmp_path / "b", others[2], an_event("notice", 3, reference=WANTED), torn=format_line(an_event(WANTED, 4))[:-9])

    assert [1, 2, 3] == [event.internal_message_id for event in search.rows_about(WANTED, [first, tmp_path / "gone", second])]


def test_a_damaged_line_hides_no_other(tmp_path: Path) -> None:
    damaged = format_line(an_event(WANTED, 1)).replace(b"b@x", b"c@x")
    file = a_file(tmp_path / "a", torn=damaged + b"\r\n" + format_line(an_event(WANTED, 2)))

    assert [2] == [event.internal_message_id for event in search.rows_about(WANTED, [file])]


def test_there_is_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ROWS_MAX", 3)
    file = a_file(tmp_path / "a", *(an_event(WANTED, number) for number in range(9)))

    assert [0, 1, 2] == [event.internal_message_id for event in search.rows_about(WANTED, [file, file])]


async def test_hours_before_the_message_came_are_left_out_and_what_is_not_written_yet_is_not(tmp_path: Path) -> None:
    now = Hands(START)
    log = FileTrackingLog(tmp_path, "mx1", max_file_size=10**6, max_directory_size=10**9, max_age=timedelta(0), now=now, version="1")
    log.write(an_event(WANTED, 1))
    await log.sync()
    now.at += timedelta(hours=5)
    log.write(an_event(WANTED, 2))

    found = [await log.about(WANTED, since) for since in (None, START, now.at)]
    await log.close()

    assert [[1, 2], [1, 2], [2]] == [[event.internal_message_id for event in events] for events in found]
