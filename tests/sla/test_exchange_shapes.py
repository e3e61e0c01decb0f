"""Rows of the shapes that real Exchange servers write are judged rightly, by the oracle and by the job: all of them in one report.

The job's is heavy; rows of Exchange in tests/sla/figures are judged by it in each run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from shadowrelay.sla.columns import split_statuses
from shadowrelay.sla.figures.exchange import EFFECTS
from shadowrelay.sla.figures.log_writers import COPIES, HANDS, PEER, WRITER, Word, cut_names, identities, in_full, told
from shadowrelay.sla.ingest import ingest_once
from shadowrelay.sla.page.cautions import cautions
from shadowrelay.sla.report import write_report
from shadowrelay.sla.sites import read_sites_file
from shadowrelay.sla.summary import placed_figures
from tests.sla import (  # noqa: F401 - they add their shapes
    exchange_audited,
    exchange_documented,
    exchange_further,
    exchange_hops,
    exchange_rare,
    exchange_unaccepted,
    exchange_variants,
)
from tests.sla.agreement import COLUMNS, WINDOWS, disagreements
from tests.sla.exchange_shapes import SHAPES, ExchangeShape
from tests.sla.oracle import judge
from tests.sla.oracle_messages import TABLE

ALL = [make() for make in SHAPES]
BY_NAME = pytest.mark.parametrize("case", ALL, ids=[each.name for each in ALL])


@dataclass(frozen=True)
class ShapesReport:
    """A report on all shapes: figures of each boundary, and each table's lines."""

    figures: dict[str, dict[str, Any]]
    tables: dict[str, list[dict[str, Any]]]

    def causes(self, table: str, case: ExchangeShape) -> set[str]:
        return {line["cause"] for line in self.tables[table] if line["message"].endswith(f"-{case.name}")}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shapes")
    with (directory / "sites.toml").open("w") as file:
        for case in ALL:
            case.write(directory / "logs")
            for server in {"a1", *case.logs}:
                for name in sorted({case.host(server, is_full=is_full) for is_full in {case.has_full_directories, True}}):
                    file.write(f'["{name}"]\nsite = "{case.name}"\nboundary = "{case.name}"\n')
    return directory


@pytest.fixture(scope="module")
def expected(logs: Path) -> dict[str, Any]:
    return judge(logs / "logs", sites=logs / "sites.toml", is_final=True)


@pytest.fixture(scope="module")
def report(spark: SparkSession, logs: Path) -> dict[str, Any]:
    warehouse, output = str(logs / "warehouse"), logs / "report"
    ingest_once(spark, str(logs / "logs"), warehouse, read_sites_file(logs / "sites.toml"))
    summary = write_report(spark, warehouse, str(output), is_final=True)
    tables = {name: pyarrow.parquet.read_table(output / "tables" / name).to_pylist() for name in (*COLUMNS, "figures")}
    return {"summary": summary, "tables": tables}


def check(case: ExchangeShape, told: ShapesReport) -> None:
    found = told.figures.get(case.name, {})
    assert case.expected == {name: found.get(name, 0) for name in case.expected}
    assert case.causes == {table: told.causes(table, case) for table in case.causes}


@BY_NAME
def test_the_oracle_judges_each_shape_as_a_person_would(case: ExchangeShape, expected: dict[str, Any]) -> None:
    figures = {name: line for (window, _, scope, name, _), line in expected["figures"].items() if (window, scope) == ("all", "boundary")}
    check(case, ShapesReport(figures, {name: expected[name] for name in COLUMNS}))


@pytest.mark.heavy
@pytest.mark.timeout(600, func_only=True)
def test_the_job_says_what_the_oracle_says_of_every_shape(report: dict[str, Any], expected: dict[str, Any]) -> None:
    figures = [placed_figures(line) for line in report["tables"]["figures"] if line["window"] in WINDOWS]
    assert [] == disagreements(report["summary"], figures, {name: report["tables"][name] for name in COLUMNS}, expected)


@pytest.mark.heavy
@BY_NAME
def test_the_job_judges_each_shape_as_a_person_would(case: ExchangeShape, report: dict[str, Any]) -> None:
    lines = [placed_figures(line) for line in report["tables"]["figures"] if line["window"] == "all" and line["scope"] == "boundary"]
    check(case, ShapesReport({line["name"]: line for line in lines}, report["tables"]))


@pytest.mark.heavy
def test_a_log_in_two_directories_is_one_server_and_a_caution(report: dict[str, Any]) -> None:
    names = ["a1twonames", "a1twonames.nordhof.example"]

    cut = "onelogunderthecutnameandthefullone"
    assert [[f"A1{cut}"[:15].upper(), f"a1{cut}.nordhof.example"], names] == report["summary"]["input"]["one_server"]
    servers = {one["name"] for one in report["summary"]["input"]["servers"]}
    assert {names[1]} == servers & {*names}


@pytest.mark.heavy
def test_a_cut_name_of_several_servers_is_a_caution(report: dict[str, Any]) -> None:
    both = [f"mailboxserver-p{number}twoserverswithonecutname.nordhof.example" for number in (1, 2)]

    assert ["mailboxserver-p", *both] in report["summary"]["input"]["cut_names"]
    assert any("mailboxserver-p may be" in " ".join(said) for said in cautions(report["summary"]))


@pytest.mark.heavy
def test_logs_of_two_servers_in_one_directory_are_two_servers_and_a_caution(report: dict[str, Any]) -> None:
    given = report["summary"]["input"]

    assert [["a1onedirectory", "a1onedirectory", "a2onedirectory"]] == given["one_directory"]
    assert {"a1onedirectory", "a2onedirectory"} <= {one["name"] for one in given["servers"]}


@pytest.mark.heavy
def test_a_server_without_the_log_of_its_mailboxes_is_named(report: dict[str, Any]) -> None:
    names = ["a1withoutmailboxlog", "a2mailboxlogelsewheremissing"]
    assert names == sorted(set(report["summary"]["input"]["without_deliveries"]) & {*names, "a2onlyitscopyinthenextlog"})


@pytest.mark.heavy
def test_a_loss_names_the_server_that_had_the_message_last(report: dict[str, Any]) -> None:
    servers = {line["message"].partition("-")[2]: line["server"] for line in report["tables"]["losses"]}

    assert "a2failedserverandlost" == servers["failedserverandlost"]  # that took over
    assert "b1gapinthenextlog" == servers["gapinthenextlog"]
    assert "a1nested" == servers["nested"]
    assert "b1lostafterafilter" == servers["lostafterafilter"]
    assert "b1byaddressandlost" == servers["byaddressandlost"]


def test_the_job_has_the_table_of_the_page() -> None:
    assert EFFECTS == TABLE


def test_every_documented_event_has_a_row_in_the_table() -> None:
    documented = (
        "AGENTINFO BADMAIL CLIENTSUBMISSION DEFER DELIVER DELIVERFAIL DROP DSN DUPLICATEDELIVER DUPLICATEEXPAND "
        "DUPLICATEREDIRECT EXPAND FAIL HADISCARD HARECEIVE HAREDIRECT HAREDIRECTFAIL INITMESSAGECREATED LOAD "
        "MODERATIONEXPIRE MODERATORAPPROVE MODERATORREJECT MODERATORSALLNDR NOTIFYMAPI NOTIFYSHADOW POISONMESSAGE PROCESS "
        "PROCESSMEETINGMESSAGE RECEIVE REDIRECT RESOLVE RESUBMIT RESUBMITDEFER RESUBMITFAIL SEND SUBMIT SUBMITDEFER "
        "SUBMITFAIL SUPPRESSED THROTTLE TRANSFER SENDEXTERNAL"
    )
    assert {*documented.split()} == {event for event, _ in EFFECTS}


@pytest.mark.parametrize(
    ("text", "recipients", "statuses"),
    [
        ("[{LRT=};{LED=550 5.1.1 no; such user};{FQDN=};{IP=}]", 1, ["[{LRT=};{LED=550 5.1.1 no; such user};{FQDN=};{IP=}]"]),
        ("[{LED=550 a;b};{MSG=}];[{LED=250 ok};{MSG=}]", 2, ["[{LED=550 a;b};{MSG=}]", "[{LED=250 ok};{MSG=}]"]),
        ("550 4.4.7 QUEUE.Expired; message expired", 1, ["550 4.4.7 QUEUE.Expired; message expired"]),
        ("550 4.4.7 QUEUE.Expired; message expired;250 2.1.5 OK", 2, ["550 4.4.7 QUEUE.Expired; message expired", "250 2.1.5 OK"]),
        ("250 2.1.5 OK;;", 3, ["250 2.1.5 OK", "", ""]),
        ("To;Cc", 2, ["To", "Cc"]),
        ("[never closed;250 2.1.5 OK", 2, ["[never closed", "250 2.1.5 OK"]),
    ],
)
def test_a_status_with_semicolons_is_one_status(text: str, recipients: int, statuses: list[str]) -> None:
    assert statuses == split_statuses(text, recipients)


def test_a_directory_is_the_server_that_its_rows_are_of() -> None:
    formats = dict.fromkeys(("A1", "a1.x.example", "disk7", "b1.x.example", "b1.y.example"), "exchange2016")
    written = [("A1", "a1", 5), ("a1.x.example", "A1", 2), ("disk7", "C1", 3), ("disk7", "c1.x.example", 1), ("disk7", "gw", 1)]
    written += [("b1.x.example", "B1", 1), ("b1.y.example", "B1", 1)]
    said = [Word(directory, "", WRITER, name, times) for directory, name, times in written]

    assert {"A1": "a1.x.example", "disk7": "c1.x.example"} == identities(formats, said).directories


def test_a_file_that_only_another_server_wrote_is_that_servers() -> None:
    of_files = [Word("A1", "1.LOG", WRITER, "A1", 5), Word("A1", "2.LOG", WRITER, "B1", 2), Word("A1", "3.LOG", WRITER, "B1", 2)]
    of_files += [Word("A1", "3.LOG", WRITER, "a1.x.example", 1), Word("b1.x.example", "1.LOG", WRITER, "B1", 1)]

    assert {("A1", "2.LOG"): "b1.x.example"} == identities({"A1": "exchange2016", "b1.x.example": "exchange2016"}, of_files, of_files).files


def test_a_name_of_15_characters_is_the_longer_one_that_begins_with_it() -> None:
    said = [Word("d", "", WRITER, "MAILBOXSERVER-P", 5), Word("d", "", PEER, "mailboxserver-paris-01.x.example", 1)]
    said += [Word("d", "", HANDS, "mailboxserver-paris-02.kunde.example", 1), Word("d", "", WRITER, "FIFTEEN-LETTERS", 1)]
    cut = cut_names(said, ["d"])

    assert {"mailboxserver-p": ["mailboxserver-paris-01.x.example"]} == cut
    assert {"mailboxserver-paris-01.x.example"} == {word.name for word in in_full(said, cut) if word.kind == WRITER and word.times == 5}


def test_a_cut_name_of_several_servers_is_the_one_whose_log_has_it() -> None:
    names = [f"mailboxserver-paris-0{number}.x.example" for number in (1, 2)]
    said = [Word(names[0], "", WRITER, "MAILBOXSERVER-P", 5), Word(names[0], "", PEER, "MAILBOXSERVER-P", 1)]
    said += [Word("disk7", "", WRITER, "MAILBOXSERVER-P", 4), Word("disk7", "", WRITER, names[1], 1)]
    cut = cut_names(said, [*names, "disk7"])

    assert {"mailboxserver-p": names} == cut
    assert [names[0], "MAILBOXSERVER-P", names[1], names[1]] == [word.name for word in in_full(said, cut)]


def test_the_domains_of_servers_are_those_of_their_full_names() -> None:
    said = [
        Word("A1", "", WRITER, "A1.Nordhof.example", 1),
        Word("A1", "", PEER, "b1.perimeter.example", 1),
        Word("A1", "", PEER, "10.0.0.1", 1),
    ]

    assert {"nordhof.example", "perimeter.example"} == told(said, identities({}, []), {"A1": "exchange2016"}).domains


@pytest.mark.parametrize(
    ("name", "is_known"), [("mailboxserver-paris-01.x.example", True), ("mailboxserver-paris-01.kunde.example", False)]
)
def test_a_cut_name_is_known_in_full_by_who_has_the_copies(name: str, is_known: bool) -> None:
    said = [Word("a1", "", WRITER, "a1.x.example", 3), Word("a1", "", COPIES, name, 1), Word("a1", "", COPIES, "MAILBOXSERVER-P", 1)]

    cut = cut_names(said, ["a1", "MAILBOXSERVER-P"])

    assert ({"mailboxserver-p": [name]} if is_known else {}) == cut
