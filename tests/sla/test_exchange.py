"""Real Exchange's logs are read whole: 26, 27 and 30 fields. The samples are made from the public descriptions of fields and events."""

import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kit.log_files import read_log

BEGINNING = re.compile(rb"(?m)^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z,")  # of a row
SAMPLES = Path(__file__).parent / "exchange"
COMMON = {
    "RECEIVE", "RESOLVE", "EXPAND", "TRANSFER", "SEND", "DELIVER", "DUPLICATEDELIVER", "NOTIFYMAPI", "SUBMIT", "DEFER", "FAIL", "DSN",
    "REDIRECT", "POISONMESSAGE", "INITMESSAGECREATED", "LOAD",
}  # fmt: skip
REDUNDANCY = {"HAREDIRECT", "HAREDIRECTFAIL", "HARECEIVE", "HADISCARD", "RESUBMIT", "AGENTINFO"}
EVENTS = {
    "2010": COMMON | {"BADMAIL"},
    "2013": COMMON | REDUNDANCY,
    "2016": COMMON | REDUNDANCY | {"SENDEXTERNAL", "SUPPRESSED", "THROTTLE"},
}
VERSIONS = {"2010": "14.0.0.0", "2013": "15.00.0995.012", "2016": "15.01.2375.007"}


def read(year: str) -> list[dict]:
    """All rows of a version, after looking that nothing was left out."""
    found = []
    for path in sorted((SAMPLES / year).glob("*/*.LOG")):
        log, rows, bad = read_log(path.read_bytes(), server=path.parent.name, name=path.name)
        assert [] == bad
        assert (f"exchange{year}", VERSIONS[year]) == (log.format, log.version)
        assert len(rows) == len(BEGINNING.findall(path.read_bytes()))
        found += rows
    return found


@pytest.mark.parametrize("year", ["2010", "2013", "2016"])
def test_every_event_of_every_version_is_a_row(year):
    rows = read(year)

    assert EVENTS[year] == {row["event"] for row in rows}
    assert {"SMTP", "STOREDRIVER", "ROUTING", "DSN", "RESOLVER"} <= {row["source"] for row in rows}
    assert len(rows) == len({row["row_id"] for row in rows})


@pytest.mark.parametrize("year", ["2010", "2013", "2016"])
def test_subjects_with_commas_quotes_and_line_ends_and_lists_of_recipients_are_read_as_they_were(year):
    rows = read(year)

    received = {row["internet_message_id"][1:5]: row for row in rows if row["event"] == "RECEIVE"}
    assert ['Offer 7, "final" version', "Quarterly figures,\r\nplease read,\r\n#3 first", "Grüße aus Köln; bis morgen"] == [
        received[number]["subject"] for number in ("0001", "0002", "0003")
    ]
    assert ["anna@corp.example", "bert@corp.example"] == received["0001"]["recipients"]
    assert (2, 15054, []) == tuple(received["0001"][name] for name in ("recipient_count", "total_bytes", "recipient_statuses"))
    (deferred,) = [row for row in rows if row["event"] == "DEFER"]
    assert 'responded with: "421 4.4.2 Connection dropped."' in deferred["recipient_statuses"][0]
    (notice,) = [row for row in rows if row["event"] == "DSN"]
    assert ("<>", received["0003"]["internet_message_id"]) == (notice["return_path"], notice["reference"])


def test_2010_knows_a_message_by_its_internet_message_id_and_the_others_by_the_network_message_id():
    assert all(row["message"] == row["internet_message_id"] for row in read("2010"))
    for year in ("2013", "2016"):
        assert all(row["message"].count("-") == 4 for row in read(year))


def test_what_exchange_says_of_redundancy_stands_in_the_columns_of_our_own():
    rows = read("2016")

    assert {"": 1, "Failed": 1} == Counter(
        row["replication"] for row in rows if row["event"] == "RECEIVE" and row["internet_message_id"][4] in "12"
    )
    assert {None} == {row[name] for row in rows for name in ("ack_us", "shadow_us", "silent_since", "detected_at")}
    (held,) = [row for row in rows if row["event"] == "HARECEIVE" and row["internet_message_id"].startswith("<0001")]
    assert ("EX1.corp.example", "EX2", datetime(2022, 9, 19, 9, 0, 0, 118000, tzinfo=UTC)) == (
        held["client_hostname"], held["server_hostname"], held["at"],
    )  # fmt: skip
    assert {"REDUNDANCY", "SAFETYNET"} == {row["source"] for row in rows if row["event"] == "RESUBMIT"}


@pytest.mark.parametrize("year", ["2010", "2013", "2016"])
def test_a_file_of_exchange_cut_anywhere_loses_only_its_last_row(year):
    path = next((SAMPLES / year / "EX1").glob("MSGTRK20*.LOG"))
    data = path.read_bytes()
    whole = {row["row_id"] for row in read_log(data, server="EX1", name=path.name)[1]}

    for length in range(600, len(data), 97):
        _, rows, bad = read_log(data[:length], server="EX1", name=path.name)
        assert {row["row_id"] for row in rows} <= whole
        assert len(rows) >= len(BEGINNING.findall(data[:length])) - 1
        assert data[:length].endswith(b"\n") or "torn" in {reason for _, reason, _ in bad}
