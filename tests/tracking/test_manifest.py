"""The manifest as text, its bounds, and what is counted in a file."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.tracking import shipping_state as module
from shadowrelay.tracking.shipping_state import (
    DroppedFile,
    ShippedFile,
    ShippingManifest,
    ShippingNode,
    bounded,
    format_manifest,
    measure,
    merged,
    parse_manifest,
    shipped_name,
)

NOW = datetime(2026, 11, 21, 10, 30, tzinfo=UTC)
ORIGIN = ShippingNode("mx1.example", "süd", "corp")


def shipped(number, at=NOW):
    return ShippedFile(f"MSGTRK2026112110-{number}.00000000.LOG", number, "0" * 64, number, at)


def dropped(number, at=NOW):
    return DroppedFile(f"MSGTRK2026112110-{number}.LOG", number, None, "gone", at)


def test_the_manifest_says_whose_files_they_are_and_what_is_in_them():
    text = format_manifest(ShippingManifest((shipped(7),), (dropped(3),)), ORIGIN, NOW)

    assert {
        "schema_version": 1,
        "server": "mx1.example",
        "site": "süd",
        "boundary": "corp",
        "updated_at": "2026-11-21T10:30:00.000000Z",
        "files": [
            {
                "name": "MSGTRK2026112110-7.00000000.LOG",
                "bytes": 7,
                "sha256": "0" * 64,
                "rows": 7,
                "shipped_at": "2026-11-21T10:30:00.000000Z",
            }
        ],
        "dropped": [
            {"name": "MSGTRK2026112110-3.LOG", "bytes": 3, "rows": None, "reason": "gone", "at": "2026-11-21T10:30:00.000000Z"},
        ],
    } == json.loads(text)
    assert {"files": [], "dropped": []}.items() <= json.loads(format_manifest(ShippingManifest(), ORIGIN, NOW)).items()


INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))
COUNTS = st.integers(0, 10**12)


@given(
    st.builds(
        ShippingManifest,
        st.lists(st.builds(ShippedFile, st.text("aé\n", max_size=5), COUNTS, st.just("f" * 64), COUNTS, INSTANTS)).map(tuple),
        st.lists(st.builds(DroppedFile, st.text("b", max_size=5), COUNTS, st.none() | COUNTS, st.text('c"', max_size=5), INSTANTS)).map(
            tuple
        ),
    )
)
def test_what_was_formatted_reads_back(manifest):
    assert manifest == parse_manifest(format_manifest(manifest, ORIGIN, NOW).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"schema_version": 2, "files": [], "dropped": []}',
        b'{"schema_version": 1, "files": []}',
        b'{"schema_version": 1, "files": [{"name": 5}], "dropped": []}',
        b'{"schema_version": 1, "files": [{"name": "a", "bytes": "1", "sha256": "", "rows": 1, "shipped_at": ""}], "dropped": []}',
        b'{"schema_version": 1, "files": [], "dropped": [{"name": "a", "bytes": 1, "rows": 1, "reason": "", "at": "2026-01-01"}]}',
        b"[" * 100_000,
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_manifest(text)


def test_entries_are_bounded_by_age_and_count(monkeypatch):
    monkeypatch.setattr(module, "ENTRIES_MAX", 3)
    entries = [shipped(number, NOW - timedelta(days=9 - number)) for number in range(9)]

    assert entries[6:] == bounded(entries, NOW, timedelta(0))
    assert entries[7:] == bounded(entries, NOW, timedelta(days=2))
    assert entries[8:] == bounded(entries, NOW, timedelta(days=1))
    assert [] == bounded(entries, NOW, timedelta(hours=1))


def test_two_manifests_together_have_each_file_once_and_ours_wins():
    later = shipped(2, NOW + timedelta(seconds=1))

    both = merged(
        ShippingManifest((later,), (dropped(1),)), ShippingManifest((shipped(1), shipped(2), shipped(3)), (dropped(1), dropped(4)))
    )

    assert ShippingManifest((shipped(1), shipped(3), later), (dropped(1), dropped(4))) == both


@pytest.mark.parametrize(
    ("octets", "rows"),
    [
        (b"", 0),
        (b"#Fields: a\r\n", 0),
        (b"#x\r\na,b\r\n\r\n\n#filler \r\nc,d   \r\n", 2),
        (b"a,b\r\nc,torn", 1),
        (b"#torn", 0),
        (b"x" * 200_000 + b"\ny" * 2 + b"\n", 3),
        (b"#" * 200_000 + b"\ny\n", 1),
        (b"y\n" + b"\0" * 200_000, 1),
    ],
)
def test_rows_are_whole_lines_that_are_neither_comments_nor_empty(tmp_path, octets, rows):
    path = tmp_path / "file"
    path.write_bytes(octets)

    assert (len(octets), rows) == (measure(path).size, measure(path).rows)


def test_a_shipped_file_is_named_after_what_is_in_it(tmp_path):
    path = tmp_path / "MSGTRK2026112115-1.LOG"
    path.write_bytes(b"abc")

    assert "MSGTRK2026112115-1.ba7816bf.LOG" == shipped_name(path.name, measure(path).sha256)
