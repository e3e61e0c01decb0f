"""The report as a whole: what went the short way and the exact way agrees; the files, the lists and the traces. docs/sla.md, 6."""

import csv
import io
import json
from datetime import timedelta

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import functions as F

from shadowrelay.sla import summary as module
from shadowrelay.sla.figures.exact import COUNTED
from shadowrelay.sla.objectives import BURN_WINDOWS_HOURS, LOG_ENDS
from shadowrelay.sla.report import write_report
from shadowrelay.sla.session import IS_BRIEF, QUICK_SQL
from shadowrelay.sla.summary import trace, traces
from shadowrelay.sla.trace import rows_of_warehouse
from shadowrelay.sla.trace import trace as trace_here
from shadowrelay.sla.warehouse import read_events
from tests.sla.figures.cases import DAY, at
from tests.sla.figures.conftest import NOW

JOBS_MAX = 45  # of a small report; it had 105
TABLES = {"messages", "copies", "takeovers", "duplicates", "losses", "orphans", "exposures", "slow", "figures", "quarantine"}


def test_a_small_report_is_few_jobs(judged):
    assert 0 < judged.jobs <= JOBS_MAX


@pytest.mark.heavy
@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize("is_brief", [False, True], ids=["much", "medium"])
def test_little_and_much_are_reported_alike(judged, compiling_spark, tmp_path, is_brief):
    compiling_spark.conf.set(IS_BRIEF, str(is_brief).lower())
    settings = {name: compiling_spark.conf.get(name) for name in QUICK_SQL}
    summary = write_report(compiling_spark, str(judged.warehouse), str(tmp_path), now=NOW)

    assert settings == {name: compiling_spark.conf.get(name) for name in QUICK_SQL}
    made_at = {"generated_at": judged.summary["generated_at"]}
    assert json.dumps(judged.summary) == json.dumps(summary | made_at)
    for name in sorted(TABLES):
        lines, others = (
            sorted(str(line) for line in parquet.read_table(path / "tables" / name).to_pylist()) for path in (judged.output, tmp_path)
        )
        assert lines == others, name


@pytest.mark.heavy
@pytest.mark.timeout(300, func_only=True)
def test_what_is_taken_for_plain_has_the_same_figures_the_exact_way(judged, spark, tmp_path):
    summary = write_report(spark, str(judged.warehouse), str(tmp_path), now=NOW, is_exact=True)

    made_at = {"generated_at": judged.summary["generated_at"]}
    assert judged.summary == summary | made_at
    for name in sorted(TABLES):
        lines, exact = (
            sorted(str(line) for line in parquet.read_table(path / "tables" / name).to_pylist()) for path in (judged.output, tmp_path)
        )
        assert lines == exact, name


def test_nearly_plain_messages_go_the_exact_way(judged):
    messages = {line["message"]: line for line in judged.lines("messages", "traps")}
    copies = {(line["message"], line["server"]): line for line in judged.lines("copies", "traps")}

    assert None is messages["copy after"]["pair_server"]
    assert (1, 1) == (messages["one name twice"]["recipients_count"], messages["one name twice"]["duplicated"])
    assert (1, 1) == (messages["twice in one row"]["recipients_count"], messages["twice in one row"]["duplicated"])
    assert None is messages["half"]["done_at"]
    assert None is messages["nobody"]["done_at"]
    assert "q" == copies["another primary at the copy", "s"]["primary"]
    unsettled = {message for (message, _), copy in copies.items() if not copy["is_discarded"]}
    assert {"discarded for one", "another says discarded"} == unsettled
    assert timedelta(microseconds=2_000_900) == messages["deferred once"]["done_at"] - messages["deferred once"]["at"]


def test_nearly_plain_messages_with_several_copies_go_the_exact_way(judged):
    messages = {line["message"]: line for line in judged.lines("messages", "several")}
    copies = {(line["message"], line["server"]): line for line in judged.lines("copies", "several")}

    assert "s" == messages["two"]["pair_server"]  # of those placed at one time the last by name
    assert "q" == messages["a later copy is the pair"]["pair_server"]
    assert ["s"] == [server for message, server in copies if message == "same server twice"]
    assert ["q", "s"] == sorted(server for message, server in copies if message == "one of three twice")
    assert "r" == copies["another primary", "q"]["primary"]
    unsettled = {key for key, copy in copies.items() if not copy["is_discarded"]}
    assert {("each for one", "s"), ("each for one", "q"), ("discarded by another", "q")} == unsettled


def test_the_files_of_a_report(judged):
    assert {"summary.json", "report.html", "tables", "csv"} == {path.name for path in judged.output.iterdir()}
    assert TABLES == {path.name for path in (judged.output / "tables").iterdir()}
    assert judged.summary == json.loads((judged.output / "summary.json").read_text())
    assert "shadowrelay_sla_messages_acknowledged " in (judged.warehouse.parent / "sla.prom").read_text()


@pytest.mark.heavy
def test_of_nothing_every_figure_is_there_and_takes_the_place_of_the_report_before(spark, tmp_path):
    (tmp_path / "report" / "tables" / "of the report before").mkdir(parents=True)

    summary = write_report(spark, str(tmp_path / "nothing"), str(tmp_path / "report"), is_final=True)

    assert {"summary.json", "report.html", "tables", "csv"} == {path.name for path in (tmp_path / "report").iterdir()}
    assert TABLES == {path.name for path in (tmp_path / "report" / "tables").iterdir()}
    assert (0, None) == (summary["overall"]["messages_acknowledged"], summary["overall"]["redundancy_ratio"])
    assert {"no data"} == {objective["verdict"] for objective in summary["objectives"]}


def test_a_report_about_an_interval_has_what_belongs_to_it(judged, spark, tmp_path):
    """From 11,000 s after noon until the end of the fourth day: takeovers and a plain message of the next day, and no loss or duplicate."""
    since, until = at(11_000), at(3.5 * DAY)
    summary = write_report(spark, str(judged.warehouse), str(tmp_path), now=NOW, since=since, until=until)
    figures = {(line["scope"], line["name"]): line for line in summary["figures"] if line["window"] == "all"}
    whole, part = judged.summary, summary["overall"]
    took = [line for line in whole["takeovers"] if "2026-11-21T15:03:20Z" <= line["first_resubmit_at"]]

    assert ("2026-11-21T15:03:20Z", "2026-11-25T00:00:00Z") == (summary["since"], summary["until"])
    assert (whole["now"], whole["input"]) == (summary["now"], summary["input"])
    assert (1, 2) == (figures["boundary", "plain"]["messages_acknowledged"], part["messages_acknowledged"])
    assert 1 == figures["boundary", "again"]["messages_sent_again"]  # the first was sent before the interval
    assert (took, len(took)) == (summary["takeovers"], part["promotions"])
    assert {"duplicates": {}, "losses": {}, "exposures": {}} == {
        name: summary["causes"][name] for name in ("duplicates", "losses", "exposures")
    }
    assert {line["start"][:10] for line in summary["figures"] if line["window"] == "day"} <= {"2026-11-21", "2026-11-22"}
    assert 'to <time datetime="2026-11-25T00:00:00Z">' in (tmp_path / "report.html").read_text()
    before, began = summary["before"], since - (until - since)
    messages = [line for line in _table(judged, "messages") if line["at"] and began <= line["at"] < since]
    losses = [line for line in _table(judged, "losses") if began <= line["acknowledged_at"] < since]
    assert ("2026-11-21T15:03:20Z", False) == (before["until"], before["is_whole"])  # the logs begin at noon
    assert before["overall"]["messages_acknowledged"] == sum(line["kind"] in COUNTED for line in messages) > 0
    assert before["overall"]["recipients_lost"] == sum(line["cause"] != LOG_ENDS for line in losses) > 0
    assert before["verdict"]["safety"]["missed"]
    assert None is whole["before"]


def test_each_table_is_there_as_csv_without_formulas(judged):
    rows = {path.stem: list(csv.DictReader(io.StringIO(path.read_text()))) for path in (judged.output / "csv").iterdir()}

    assert TABLES - {"messages", "copies"} | {"incidents", "objectives", "servers"} == set(rows)
    assert len(rows["losses"]) == parquet.read_table(judged.output / "tables" / "losses").num_rows
    assert "'=cmd()" in {row["subject"] for row in rows["losses"]}
    assert len(judged.summary["incidents"]) == len(rows["incidents"])


def _table(judged, name):
    return parquet.read_table(judged.output / "tables" / name).to_pylist()


def test_the_lists_begin_with_the_worst(judged):
    summary = judged.summary

    assert ["unexplained"] * 6 == [line["cause"] for line in summary["duplicates"][:6]]
    assert "unexplained" not in {line["cause"] for line in summary["duplicates"][6:]}
    exposures = [(line["is_open"], line["seconds"]) for line in summary["exposures"]]
    assert sorted(exposures)[::-1] == exposures  # what is open can still be saved
    assert len(summary["losses"]) == sum(summary["causes"]["losses"].values())
    assert 6 == summary["causes"]["duplicates"]["unexplained"]
    is_unknown = [line["cause"] == "unknown: log ends" for line in summary["losses"]]
    assert sorted(is_unknown) == is_unknown
    assert {True, False} == {*is_unknown}
    assert "2026-11-21T15:03:20Z" in {line["first_resubmit_at"] for line in summary["takeovers"]}


def test_lines_in_quarantine_count_once(judged):
    assert 2 == judged.summary["overall"]["lines_quarantined"]
    examples = [{"server": "p.plain", "file": "MSGTRK2026112112-1.LOG", "line": line} for line in (7, 8)]
    assert [{"reason": "fields", "count": 2, "examples": examples}] == judged.summary["input"]["quarantine"]


def test_burn_rates_look_back_from_now(judged):
    """ "just due" of the case lost was received two days before now: in the last 30 days, and not in the last one."""
    ratio = next(objective for objective in judged.summary["objectives"] if objective["name"] == "redundancy_ratio")

    assert (None, None, None) == tuple(ratio["burn_rates"][window] for window in ("1h", "6h", "1d"))
    assert (None, "missed") == (ratio["burn_rates"]["30d"], ratio["verdict"])  # too few messages for a budget
    back = {line["window"]: line for line in _table(judged, "figures") if line["window"] in BURN_WINDOWS_HOURS}
    assert ratio["bad"] == back["30d"]["messages_not_redundant"]
    assert 0 == sum(line["messages_not_redundant"] for window, line in back.items() if window != "30d")


def test_traces_are_of_messages_in_the_lists(judged):
    traces = judged.summary["traces"]

    assert 0 < len(traces) <= 100
    assert ["RECEIVE", "POISONMESSAGE"] == [line["event"] for line in traces["lost/set aside"]]
    assert "a@x.example" in traces["lost/set aside"][0]["recipients"]


def test_a_trace_tells_each_row_once_in_order(judged, spark):
    rows = trace(spark, str(judged.warehouse), "repeated/one row")

    assert 7 == len(rows)
    assert sorted(row["at"] for row in rows) == [row["at"] for row in rows]
    assert {"message", "at", "server", "event", "source", "client", "to", "recipients", "recipients_count", "text"} == set(rows[0])
    by_internet_id = trace(spark, str(judged.warehouse), "same@again")
    names = ("first", "second", "in an interval without the first", "third", "relayed", "to fewer")
    assert {f"again/{name}" for name in names} == {row["message"] for row in by_internet_id}
    assert at(0).isoformat().replace("+00:00", "Z") == by_internet_id[0]["at"]


@pytest.mark.parametrize("message", ["repeated/one row", "same@again", "<same@again>", "journaled/original", "exchange16/alone", "nobody"])
def test_a_trace_without_spark_is_the_same(judged, spark, message):
    rows = rows_of_warehouse(str(judged.warehouse))

    assert trace(spark, str(judged.warehouse), message) == trace_here(rows, message)


def test_a_trace_has_the_journal_report_about_the_message(judged, spark):
    rows = trace(spark, str(judged.warehouse), "journaled/original")

    assert [("journaled/report", "AGENT")] == [(row["message"], row["source"]) for row in rows if row["message"] != "journaled/original"]


def test_figures_that_do_not_fit_are_the_oldest_of_the_smallest_and_counted(judged, spark, monkeypatch):
    figures = spark.read.parquet(str(judged.output / "tables" / "figures")).withColumn("start", F.unix_micros("start"))
    everything = module.shown(figures)
    monkeypatch.setattr(module, "FIGURES_MAX", len(everything.lines) // 2)

    cut = module.shown(figures)

    assert (0, len(everything.lines) - len(cut.lines)) == (everything.left_out, cut.left_out)
    assert len(cut.lines) == len(everything.lines) // 2
    left_out = [line for line in everything.lines if line not in cut.lines]
    assert {"day", "hour"} >= {line["window"] for line in left_out}
    assert "all" not in {line["scope"] for line in left_out}
    assert [line for line in everything.lines if line in cut.lines] == cut.lines


def test_a_row_of_many_recipients_is_cut_in_the_summary(judged, spark, monkeypatch):
    monkeypatch.setattr(module, "RECIPIENTS_MAX", 0)
    monkeypatch.setattr(module, "CHARACTERS_MAX", 3)

    rows = traces(read_events(spark, str(judged.warehouse)), ["repeated/one row"])["repeated/one row"]

    assert [[]] * 7 == [row["recipients"] for row in rows]
    assert 2 == rows[0]["recipients_count"]
    assert 3 == max(len(row["text"]) for row in rows)
