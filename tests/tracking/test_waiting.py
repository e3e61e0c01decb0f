"""Closed files, and what becomes of them, without a target."""

import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from shadowrelay.tracking.shipper import GONE, MADE_ROOM, WaitingFiles
from shadowrelay.tracking.shipping_state import NAME, Book, ShippingNode
from shadowrelay.tracking.writer import FileKey

NOW = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
KEY = FileKey("2026112110", 1)


@pytest.fixture
def make(tmp_path):
    def make():
        book = Book(tmp_path, "s3://bucket", ShippingNode("mx1", "east", "corp"), max_age=timedelta(0), now=lambda: NOW)
        return WaitingFiles(tmp_path, book, lambda: None)

    return make


@pytest.fixture
def files(make):
    return make()


def write(directory, octets, key=KEY):
    path = directory / key.name
    path.unlink(missing_ok=True)
    path.write_bytes(octets)
    return os.stat(path)


def dropped(directory):
    manifest = json.loads((directory / NAME).read_bytes())["manifest"]
    return [(entry["name"], entry["bytes"], entry["rows"], entry["reason"]) for entry in manifest["dropped"]]


def ship(files, key=KEY):
    file = files.take(key)
    files.arrived(file, file.read())
    files.put_down(file)
    files.save()


def test_another_file_of_the_same_name_was_not_shipped(files, make, tmp_path):
    found = write(tmp_path, b"first\n")
    files.add(KEY)
    ship(files)
    assert (True, 0) == (files.is_shipped(KEY, found), len(files))

    found = write(tmp_path, b"second, longer\n")
    files.add(KEY)

    assert (False, 1, 1) == (files.is_shipped(KEY, found), len(files), len(make()))


def test_a_file_whose_name_another_has_now_is_recorded_as_lost(files, tmp_path):
    write(tmp_path, b"a\nb\n")
    files.add(KEY)
    files.take(KEY).read()
    files.put_down(files.take(KEY))
    write(tmp_path, b"of another directory\n")
    files.add(KEY)
    files.save()

    assert [(KEY.name, 4, 2, GONE)] == dropped(tmp_path)
    assert 1 == len(files)


def test_a_file_whose_name_another_has_now_is_not_read_in_its_place(files, tmp_path):
    write(tmp_path, b"a\n")
    files.add(KEY)
    file = files.take(KEY)
    write(tmp_path, b"of another directory\n")

    with pytest.raises(FileNotFoundError):
        file.read()


def test_a_file_that_arrived_although_its_name_was_taken_meanwhile_is_no_loss(files, tmp_path):
    write(tmp_path, b"a\n")
    files.add(KEY)
    file = files.take(KEY)
    measured = file.read()
    write(tmp_path, b"of another directory\n")
    files.add(KEY)
    files.arrived(file, measured)
    files.put_down(file)
    files.save()

    assert ([], 1, 0) == (dropped(tmp_path), len(files), files.dropped_count)


def test_a_file_that_was_gone_when_it_was_closed_is_recorded_once(files, tmp_path):
    found = write(tmp_path, b"a\n")
    files.add(KEY)
    files.drop({KEY: found})
    (tmp_path / KEY.name).unlink()
    files.add(KEY)
    other = FileKey("2026112110", 2)
    files.add(other)
    files.save()

    assert [(KEY.name, 2, None, MADE_ROOM), (other.name, 0, None, GONE)] == dropped(tmp_path)


def test_a_drop_is_on_disk_before_the_file_may_be_deleted(files, tmp_path):
    found = write(tmp_path, b"a\n")
    files.add(KEY)

    assert [KEY] == files.drop({KEY: found})

    assert [(KEY.name, 2, None, MADE_ROOM)] == dropped(tmp_path)
    assert 0 == len(files)


def test_a_file_in_transfer_is_not_dropped(files, tmp_path):
    found = write(tmp_path, b"a\n")
    files.add(KEY)
    file = files.take(KEY)
    assert files.is_busy(KEY)

    assert [] == files.drop({KEY: found})

    files.put_down(file)
    assert [KEY] == files.drop({KEY: found})


def test_a_file_that_arrived_but_is_not_recorded_yet_may_go_and_is_no_loss(files, tmp_path):
    found = write(tmp_path, b"a\n")
    files.add(KEY)
    file = files.take(KEY)
    files.arrived(file, file.read())
    files.put_down(file)

    assert [KEY] == files.drop({KEY: found})

    assert ([], 0) == (dropped(tmp_path), files.dropped_count)
