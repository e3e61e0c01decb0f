"""A log that is read in pieces gives what it gives as a whole."""

import io
import tracemalloc
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from shadowrelay.protocol.tracking import FIELDS, format_header, format_line
from shadowrelay.sla import land, pieces
from shadowrelay.sla.inspection import inspect
from shadowrelay.sla.logs import Source, list_logs
from shadowrelay.sla.parse import LogFile
from shadowrelay.sla.pieces import in_pieces, of_logs, piece_of
from shadowrelay.sla.warehouse import begin
from tests.kit.log_files import STARTED, a_log, an_event, read_log

HEADER = format_header("1.2.3", STARTED)
EXCHANGE = b"#Software: Microsoft Exchange Server\r\n#Version: 15.01\r\n#Fields: " + ",".join(FIELDS).encode() + b"\r\n"
ROW = b"2026-11-21T12:00:00.000Z" + b"," * (len(FIELDS) - 1) + b"\r\n"
QUOTED = ROW.replace(b",,", b',"of\r\ntwo\nlines",', 1)
LINES = [
    format_line(an_event("m1")), format_line(an_event("m2", at=STARTED + timedelta(days=1), subject="Grüße")), b"torn\n", b"\n", b" \r\n",
    b"#comment\n", b"#one\r2026-11-21T12:00:00.000Z,\n", b"\xef\xbb\xbf" + HEADER, HEADER.replace(b"1.2.3", b"1.2.4"),
    EXCHANGE, ROW, QUOTED, ROW.replace(b",,", b',"open,', 1),
]  # fmt: skip


def read_in_pieces(data, cuts):
    ends = [*sorted(cuts), None]
    rows, bad, counts = [], [], []
    for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        stream = io.BytesIO(data)
        piece = piece_of(stream, Source("", "mx1", "x", piece=number, begin=first, end=end))
        log = LogFile(stream, "mx1", "x", piece=piece, block_bytes=700)
        for parsed in log:
            rows += parsed.rows.to_pylist()
            bad += parsed.bad
        counts.append(
            {name: getattr(log, name) for name in ("bytes", "lines", "rows", "quarantined", "format", "version", "first_at", "last_at")}
        )
    (counted,) = of_logs([{"server": "mx1", "file": "x"} | each for each in counts])
    return rows, bad, counted


@settings(max_examples=150)
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=12), st.data())
def test_wherever_a_log_is_cut_every_line_is_what_it_is_in_the_whole(lines, data):
    whole = HEADER + b"".join(lines) + data.draw(st.sampled_from([b"", b"torn"]))
    cuts = data.draw(st.sets(st.integers(1, len(whole) + 5), max_size=3))

    log, rows, bad = read_log(whole, name="x")
    found, found_bad, counted = read_in_pieces(whole, cuts)

    def key(row):
        return row["line"]

    assert sorted(rows, key=key) == sorted(found, key=key)
    assert sorted(bad) == sorted((number, str(reason), text) for number, reason, text in found_bad)
    assert {name: getattr(log, name) for name in ("bytes", "lines", "rows", "quarantined", "format", "version", "first_at", "last_at")} == {
        name: value for name, value in counted.items() if name not in ("server", "file")
    }


@pytest.fixture
def logs(tmp_path):
    days = [STARTED + timedelta(days=number // 20) for number in range(60)]
    for server, data in (
        ("mx1", a_log([an_event(f"m{number}", at=day) for number, day in enumerate(days)]) + b"torn"),
        ("mx2", a_log([an_event("other")])),
        ("exchange", EXCHANGE + ROW * 200),
    ):
        (tmp_path / "logs" / server).mkdir(parents=True)
        (tmp_path / "logs" / server / "MSGTRK1.LOG").write_bytes(data)
    return tmp_path / "logs"


def test_only_large_logs_of_our_own_are_cut_and_no_octet_is_left_out(logs, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES_MIN", 2048)

    found = in_pieces(list_logs(str(logs)), 3)

    size = (logs / "mx1" / "MSGTRK1.LOG").stat().st_size
    of_mx1 = [(each.piece, each.begin, each.end) for each in found if each.server == "mx1"]
    assert [(0, 0, size // 3), (1, size // 3, size // 3 * 2), (2, size // 3 * 2, None)] == of_mx1
    assert ["exchange", "mx2"] == [each.server for each in found if each.server != "mx1" and (each.piece, each.end) == (0, None)]
    assert found == in_pieces(found, 1)


def test_a_warehouse_of_pieces_is_one_of_whole_logs(logs, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES_MIN", 4096)

    def landed(warehouse, sources):
        begin(str(warehouse))
        counted = land.land_here(sources, str(warehouse), "ingest-000000")
        inspect(str(warehouse))
        tables = [parquet.read_table(path, partitioning=None).to_pylist() for path in sorted((warehouse / "events").rglob("*.parquet"))]
        rows = sorted((row["file"], row["line"], row["row_id"]) for table in tables for row in table)
        return sorted(map(str, counted)), rows, len(tables)

    *whole, files = landed(tmp_path / "whole", list_logs(str(logs)))
    *cut, files_of_pieces = landed(tmp_path / "cut", list(reversed(in_pieces(list_logs(str(logs)), 3))))

    assert whole == cut
    assert files < files_of_pieces


def test_a_log_that_is_deleted_when_half_of_it_was_read_is_in_quarantine(logs, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES_MIN", 4096)
    first, second = (each for each in in_pieces(list_logs(str(logs)), 2) if each.server == "mx1")
    (read,) = land.land_files([first], str(tmp_path / "w"), "ingest-000000")
    (logs / "mx1" / "MSGTRK1.LOG").unlink()

    (missed,) = land.land_files([second], str(tmp_path / "w"), "ingest-000000")
    (counted,) = of_logs([missed, read])

    assert (0, 1) == (missed["rows"], missed["quarantined"])
    assert (read["rows"], read["lines"], 1) == (counted["rows"], counted["lines"], counted["quarantined"])


def test_a_log_that_is_gone_when_it_is_to_be_cut_is_left_whole(tmp_path):
    gone = Source(str(tmp_path / "mx1" / "MSGTRK1.LOG"), "mx1", "MSGTRK1.LOG", size=1 << 40)

    assert [gone] == in_pieces([gone], 8)


@pytest.mark.parametrize("begins", [b"", b"#", b"\xef\xbb\xbf#"])
def test_a_line_as_long_as_the_log_is_not_kept_in_memory(begins, monkeypatch):
    monkeypatch.setattr(pieces, "_SCAN_BYTES", 64 * 1024)
    monkeypatch.setattr(pieces, "LINE_BYTES_MAX", 256 * 1024)
    log = HEADER + ROW + begins + b"x" * 8_000_000 + b"\n" + ROW
    stream, last = io.BytesIO(log), len(log) - len(ROW)
    tracemalloc.start()
    try:
        piece = piece_of(stream, Source("", "mx1", "x", piece=1, begin=last, end=None))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (last, True) == (piece.begin, most < 2_000_000)
    assert [line for line in HEADER.split(b"\n") if line] == list(piece.comments)
