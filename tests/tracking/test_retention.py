"""What goes, what stays, and in which order."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.tracking.writer import FileKey, TrackingFile, enforce_limits, files_to_delete

NOW = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
ENDLESS = 10**12


def hour(number):
    return f"{NOW - timedelta(hours=number):%Y%m%d%H}"


@st.composite
def directories(draw):
    keys = draw(st.lists(st.builds(FileKey, st.integers(0, 40).map(hour), st.integers(1, 3)), unique=True, max_size=8))
    files = [TrackingFile(key, draw(st.integers(0, 50)), draw(st.booleans()), draw(st.booleans())) for key in sorted(keys)]
    newest = draw(st.sampled_from([None, *[file.key for file in files], FileKey(hour(0), 9)]))
    return files, newest, draw(st.integers(0, 200)), timedelta(hours=draw(st.integers(0, 30)))


@given(directories())
def test_what_was_not_shipped_goes_only_when_all_that_was_shipped_is_not_enough(case):
    files, newest, size_max, age_max = case
    by_key = {file.key: file for file in files}
    closed = [file for file in files if newest is None or file.key < newest]

    deletions = files_to_delete(files, newest, NOW, size_max, age_max)

    left = [file for file in files if file.key not in {*deletions.shipped, *deletions.dropped}]
    size_left = sum(file.size for file in left)
    assert all(by_key[key].is_shipped for key in deletions.shipped)
    assert not any(by_key[key].is_shipped or by_key[key].is_busy for key in deletions.dropped)
    assert {*deletions.shipped, *deletions.dropped} <= {file.key for file in closed}
    if deletions.dropped:
        assert not any(file.is_shipped for file in closed if file in left)
        assert size_left + by_key[deletions.dropped[-1]].size > size_max
        assert list(deletions.dropped) == [f.key for f in closed if not f.is_shipped and not f.is_busy][: len(deletions.dropped)]
    if size_left > size_max:
        assert all(file.is_busy and not file.is_shipped for file in closed if file in left)


@given(directories())
def test_age_alone_deletes_every_old_file_that_was_shipped_and_no_other(case):
    files, newest, _, age_max = case
    old = {f.key for f in files if age_max and f.is_shipped and f.key.ends_at < NOW - age_max and (newest is None or f.key < newest)}

    deletions = files_to_delete(files, newest, NOW, ENDLESS, age_max)

    assert (old, ()) == (set(deletions.shipped), deletions.dropped)


class Custody:
    def __init__(self, shipped=(), busy=(), refused=()):
        self.shipped, self.busy, self.refused = shipped, busy, refused
        self.asked = []

    def is_shipped(self, key, found):
        return key.name in self.shipped

    def is_busy(self, key):
        return key.name in self.busy

    def drop(self, found):
        self.asked += [(key.name, each.st_size) for key, each in found.items()]
        return [key for key in found if key.name not in self.refused]


def test_a_file_goes_unshipped_only_with_its_custodian_s_leave(tmp_path):
    names = [f"MSGTRK20261121{hour:02}-1.LOG" for hour in (5, 6, 7, 8)]
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 100)
    custody = Custody(shipped=names[2:3], busy=names[:1], refused=names[1:2])

    deleted = enforce_limits(tmp_path, FileKey("2026112109", 1), NOW, 100, timedelta(0), custody)

    assert [(names[1], 100), (names[3], 100)] == custody.asked
    assert [tmp_path / names[2], tmp_path / names[3]] == list(deleted)
    assert names[:2] == sorted(path.name for path in tmp_path.iterdir())
