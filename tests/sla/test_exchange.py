"""Real Exchange's logs are read whole: 26, 27 and 30 fields; and the report on them is right, however they name their servers.

The samples are made from the public descriptions of fields and events.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from shadowrelay.sla.figures.rows import logged_name
from shadowrelay.sla.ingest import ingest_once
from shadowrelay.sla.report import write_report
from shadowrelay.sla.summary import placed_figures
from tests.kit.log_files import read_log
from tests.sla.agreement import COLUMNS, WINDOWS, disagreements
from tests.sla.oracle import judge
from tests.sla.oracle_logs import meant

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


@pytest.mark.parametrize("year", ["2013", "2016"])
def test_who_holds_the_copy_is_told_by_the_context_of_haredirect_whose_server_is_the_primary_itself(year: str) -> None:
    (made,) = [row for row in read(year) if row["event"] == "HAREDIRECT"]

    assert ("", "EX1") == (made["client_hostname"], made["server_hostname"])
    assert re.match(r"EX2\.corp\.example ?= ?250 2\.6\.0 <.*> \[InternalId=.*] Queued mail for redundancy", made["source_context"])


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


def copy_samples(year: str, logs: Path, spelled: Callable[[str], str]) -> None:
    """The samples in directories of other names; and the server that was lost is there again at 12:20."""
    for source in sorted((SAMPLES / year).iterdir()):
        shutil.copytree(source, logs / spelled(source.name))
    path = next((logs / spelled("EX1")).glob("MSGTRK20*.LOG"))
    (loaded,) = [line for line in path.read_bytes().splitlines(keepends=True) if b",BOOTLOADER,LOAD," in line]
    with path.open("ab") as file:
        file.write(re.sub(rb"T09:[0-9:.]+Z", b"T12:20:00.000Z", loaded, count=1))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("year", "spelled"),
    [
        ("2010", str.upper),
        ("2010", "{}.corp.example".format),
        ("2013", str.lower),
        ("2013", lambda name: f"{name.lower()}.corp.example"),
        ("2016", str.upper),
        ("2016", lambda name: f"{name.lower()}.Corp.example"),
    ],
)
def test_the_report_is_right_however_exchange_and_its_logs_directories_name_a_server(
    spark: SparkSession, tmp_path: Path, year: str, spelled: Callable[[str], str]
) -> None:
    logs, output, one, two = tmp_path / "logs", tmp_path / "report", spelled("EX1"), spelled("EX2")
    copy_samples(year, logs, spelled)
    ingest_once(spark, str(logs), str(tmp_path / "warehouse"))
    summary = write_report(spark, str(tmp_path / "warehouse"), str(output), is_final=True)

    def table(name: str) -> list[dict[str, Any]]:
        return pyarrow.parquet.read_table(output / "tables" / name).to_pylist()

    figures = [placed_figures(line) for line in table("figures") if line["window"] in WINDOWS]
    assert [] == disagreements(summary, figures, {name: table(name) for name in COLUMNS}, judge(logs, is_final=True))
    overall = summary["overall"]
    assert (0, 0, 0) == tuple(overall[name] for name in ("recipients_duplicated", "recipients_lost", "shadows_orphaned"))
    scopes = {(line["scope"], line["name"], line["other"]) for line in summary["figures"] if line["window"] == "all"}
    if year == "2010":
        assert {("all", "", ""), ("server", one, "")} == scopes
        assert (2, 0) == (overall["messages_acknowledged"], overall["promotions"])
        return
    assert {("all", "", ""), ("server", one, ""), ("server", two, ""), ("pair", one, two)} == scopes
    assert (4, 2, 1) == tuple(overall[f"messages_{name}"] for name in ("acknowledged", "redundant", "reconstructed"))
    (takeover,) = summary["takeovers"]
    assert (one, two, None, None, 1, None) == tuple(
        takeover[name] for name in ("old_primary", "new_primary", "silent_since", "detected_at", "messages", "in_time")
    )
    assert [f"T12:{at}Z" for at in ("06:00", "06:01", "20:00")] == [
        takeover[name][10:] for name in ("first_resubmit_at", "delivered_at", "returned_at")
    ]


def test_the_job_and_the_oracle_read_names_alike(spark: SparkSession) -> None:
    """What each name means where these are the logged servers."""
    meanings = {
        ("EX1", "ex2.corp.example"): {
            "EX1": "EX1", "ex1": "EX1", "EX1.corp.example": "EX1", "Ex1.other.example": "EX1", "EX2": "ex2.corp.example",
            "EX2.Corp.Example": "ex2.corp.example", "ex2.other.example": "ex2.other.example", "": "",
            "mx.partner.example": "mx.partner.example",
        },
        ("EX1.a.example", "EX1.b.example"): {"EX1": "EX1", "ex1.B.example": "EX1.b.example", "EX1.c.example": "EX1.c.example"},
        ("EX1", "EX1.b.example"): {"EX1": "EX1", "ex1": "EX1", "ex1.b.example": "EX1.b.example", "EX1.c.example": "EX1.c.example"},
        ("EX1", "ex1"): {"EX1": "EX1", "ex1": "ex1", "Ex1": "Ex1", "EX1.c.example": "EX1.c.example"},
        (".hidden", "it's \"x\""): {"": "", "IT'S \"X\"": "it's \"x\""},
        (): {"EX1": "EX1", "": ""},
    }  # fmt: skip
    for logged, meaning in meanings.items():
        names = spark.createDataFrame([(name,) for name in meaning], "name string")
        told = {row["name"]: row["meant"] for row in names.withColumn("meant", logged_name(F.col("name"), logged)).collect()}
        assert meaning == told
        assert meaning == {name: meant(name, logged) for name in meaning}
