"""Names, limits and the layout of lines in pages."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.tracking.writer import PAGE_BYTES, ROOM_BYTES_MIN, FileKey, create_file, enforce_limits, hour_of, lay_out, parse_name

NOW = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
ENDLESS = 10**12


def line(length, octet=b"x"):
    return octet * (length - 2) + b"\r\n"


def make_file(directory, name, size=10):
    (directory / name).write_bytes(b"x" * size)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MSGTRK2026112110-1.LOG", FileKey("2026112110", 1)),
        ("MSGTRK2026112110-12.LOG", FileKey("2026112110", 12)),
        ("MSGTRKMD2026112110-1.LOG", None),
        ("MSGTRK20261121-1.LOG", None),
        ("MSGTRK2026112110-1.LOG.gz", None),
        ("MSGTRK2026112110-.LOG", None),
    ],
)
def test_only_files_with_the_same_prefix_are_tracking_files(name, expected):
    assert expected == parse_name(name)


def test_the_hour_of_a_name_is_utc():
    assert "2026112108" == hour_of(datetime.fromisoformat("2026-11-21T10:30:00+02:00"))


def test_a_new_file_takes_the_instance_after_the_highest(tmp_path):
    make_file(tmp_path, "MSGTRK2026112110-9.LOG")
    make_file(tmp_path, "MSGTRK2026112110-10.LOG")
    make_file(tmp_path, "MSGTRK2026112111-40.LOG")

    descriptor, key = create_file(tmp_path, "2026112110")
    os.close(descriptor)

    assert FileKey("2026112110", 11) == key
    assert 0 == (tmp_path / key.name).stat().st_size


def test_the_oldest_files_go_first_when_the_directory_is_too_large(tmp_path):
    for name in ("MSGTRK2026112109-2.LOG", "MSGTRK2026112109-10.LOG", "MSGTRK2026112108-1.LOG", "MSGTRK2026112110-1.LOG"):
        make_file(tmp_path, name, 100)

    deleted = enforce_limits(tmp_path, FileKey("2026112110", 1), NOW, 200, timedelta(0))

    assert ["MSGTRK2026112108-1.LOG", "MSGTRK2026112109-2.LOG"] == [path.name for path in deleted]
    assert ["MSGTRK2026112109-10.LOG", "MSGTRK2026112110-1.LOG"] == names(tmp_path)


def test_files_with_another_prefix_are_neither_counted_nor_deleted(tmp_path):
    make_file(tmp_path, "MSGTRKMD2026112101-1.LOG", 10_000)
    make_file(tmp_path, "MSGTRK2026112109-1.LOG", 100)

    assert () == enforce_limits(tmp_path, None, NOW, 100, timedelta(0))


def test_the_current_file_is_never_deleted_however_large(tmp_path):
    make_file(tmp_path, "MSGTRK2026112110-1.LOG", 10_000)

    assert () == enforce_limits(tmp_path, FileKey("2026112110", 1), NOW, 1, timedelta(seconds=1))


def test_files_begun_since_are_newer_and_not_deleted_in_its_place(tmp_path):
    for instance in (1, 2, 3):
        make_file(tmp_path, f"MSGTRK2026112110-{instance}.LOG", 100)

    deleted = enforce_limits(tmp_path, FileKey("2026112110", 2), NOW, 1, timedelta(0))

    assert ["MSGTRK2026112110-1.LOG"] == [path.name for path in deleted]


def test_a_file_is_as_old_as_its_hour_s_end(tmp_path):
    make_file(tmp_path, "MSGTRK2026112009-1.LOG")
    make_file(tmp_path, "MSGTRK2026112010-1.LOG")

    enforce_limits(tmp_path, None, NOW, ENDLESS, timedelta(days=1))

    assert ["MSGTRK2026112010-1.LOG"] == names(tmp_path)


def test_no_age_limit_keeps_a_file_of_any_age_even_one_with_an_impossible_hour(tmp_path):
    make_file(tmp_path, "MSGTRK1999010101-1.LOG")
    make_file(tmp_path, "MSGTRK2026133399-1.LOG")

    assert () == enforce_limits(tmp_path, None, NOW, ENDLESS, timedelta(0))
    assert ["MSGTRK1999010101-1.LOG"] == [path.name for path in enforce_limits(tmp_path, None, NOW, ENDLESS, timedelta(days=1))]


@pytest.mark.parametrize("offset", [0, 1, 600, 3000, 3072, 3073, 4093, 4094, 4095, 4096, 9000])
@pytest.mark.parametrize("length", [3, 400, 1024, 1025, 2000, 4095, 4096])
def test_no_line_of_at_most_a_page_crosses_one(offset, length):
    pieces = lay_out([line(length)] * 20, offset, ENDLESS)

    at = offset
    for piece in pieces:
        first = at
        at += len(piece)
        text = piece.rstrip(b"\r\n")
        start = first + max(text.rfind(b"\n") + 1, 0)  # after a filler, which is a line of its own
        assert start // PAGE_BYTES == (at - 1) // PAGE_BYTES


def test_what_fills_a_line_up_is_blanks_after_its_last_field():
    pieces = lay_out([line(3000), line(2000, b"y")], 0, ENDLESS)

    assert b"x" * 2998 + b" " * 1096 + b"\r\n" == pieces[0]
    assert line(2000, b"y") == pieces[1]


def test_a_write_leaves_room_for_an_ordinary_line():
    assert [4096] == [len(piece) for piece in lay_out([line(PAGE_BYTES - ROOM_BYTES_MIN + 1)], 0, ENDLESS)]
    assert [3072] == [len(piece) for piece in lay_out([line(PAGE_BYTES - ROOM_BYTES_MIN)], 0, ENDLESS)]


@pytest.mark.parametrize(("room", "filler"), [(1, b"\n"), (2, b"\r\n"), (3, b"#\r\n"), (900, b"#" + b" " * 897 + b"\r\n")])
def test_a_line_longer_than_the_room_that_was_left_comes_after_a_comment(room, filler):
    assert [filler + line(1500)] == lay_out([line(1500)], PAGE_BYTES - room, ENDLESS)


def test_a_line_longer_than_a_page_is_left_as_it_is():
    assert [line(5000)] == lay_out([line(5000)], 100, ENDLESS)


def test_filling_up_does_not_pass_the_limit_of_a_file():
    assert [line(3500)] == lay_out([line(3500)], 0, 4000)
