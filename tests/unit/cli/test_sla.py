"""The words of `shadowrelay sla …`, with the job itself replaced: it has tests of its own."""

import json
import re
from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner, Result

from shadowrelay.cli import output, sla
from shadowrelay.cli.main import app
from shadowrelay.cli.sla import require_writable
from shadowrelay.model.replies import ConfigurationError, ShadowrelayError
from shadowrelay.sla import details as details_module
from shadowrelay.sla import objectives as objectives_module
from shadowrelay.sla import session as session_module
from shadowrelay.sla import storage as storage_module
from shadowrelay.sla.page import comparison, labels, message_lists, verdicts
from tests.kit import summaries

MEDIUM = 1000  # bytes


def summary(verdict: str = "met", speed: str = "met") -> dict[str, Any]:
    return summaries.with_verdicts(summaries.demo(), redundancy_ratio=verdict, shadow_latency=speed)


class Done(NamedTuple):
    files: int = 3
    lines: int = 20
    rows: int = 12
    quarantined: int = 1


class Job:
    """The modules of the job, and what they were asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.verdict = self.speed = "met"
        self.rows: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self.little = self.medium = "/nowhere"
        self.is_much = False
        self.told: Callable[[Exception], str | None] = lambda exc: None

    def __call__(self, name: str) -> Any:
        return getattr(self, name.rpartition(".")[2])

    @property
    def session(self) -> Any:
        def spark_session(master: str, driver_memory: str, is_small: bool, is_medium: bool) -> str:
            return f"{master} {driver_memory or 'auto'}{' small' if is_small else ' medium' if is_medium else ''}"

        return SimpleNamespace(
            check_spark=self._check,
            check_packages=lambda: None,
            spark_session=spark_session,
            failure_of=self.told,
            jvm_end=lambda: "",
            to_blame=lambda failure: "",
            require_settings=session_module.require_settings,
            local_cores=session_module.local_cores,
        )

    cautions = SimpleNamespace(cautions=lambda summary: [["No log of mx1.east \x1b[31m.", "Two."], ["Dated 2190."]])
    comparison, labels, message_lists, verdicts = comparison, labels, message_lists, verdicts
    objectives, details = objectives_module, details_module

    def _check(self) -> None:
        if self.failure:
            raise self.failure

    @property
    def ingest(self) -> Any:
        @contextmanager
        def temporary(spark: str, logs: str, sites: Any) -> Any:
            self.asked.append(("temporary", logs, sites))
            yield "/temporary"

        def note(*values: Any, **options: Any) -> None:
            self.asked.append((*values, options))

        def ingest(session: Any, *values: Any, tell: Any, **options: Any) -> Done:
            self.asked.append((*values, options))
            if self.is_much:
                self.asked.append((session(), session()))
            tell("batch 0")
            return Done()

        return SimpleNamespace(
            ingest=ingest,
            temporary_warehouse=temporary,
            require_warehouse=note,
            is_little_warehouse=self._is_little,
        )

    @property
    def logs(self) -> Any:
        def require_logs(logs: str, **options: Any) -> str:
            self.asked.append((logs, options))
            return logs

        return SimpleNamespace(
            require_logs=require_logs, is_little=self._is_little, MEDIUM_BYTES=MEDIUM, left_out=lambda logs: (), told_left_out=str
        )

    def _is_little(self, found: str, bytes_max: int = 0) -> bool:
        return found == self.little or (found == self.medium and bytes_max == MEDIUM)

    storage = storage_module

    @property
    def report(self) -> Any:
        def write_report(*values: Any, **options: Any) -> dict[str, Any]:
            self.asked.append((*values, options))
            return summary(self.verdict, self.speed)

        return SimpleNamespace(write_report=write_report)

    @property
    def summary(self) -> Any:
        return SimpleNamespace(trace=lambda *values: self.asked.append(values) or self.rows, TRACE_ROWS_MAX=500)

    @property
    def trace(self) -> Any:
        return SimpleNamespace(
            trace=lambda rows, message: self.asked.append(("here", rows, message)) or self.rows,
            rows_of_logs=lambda logs: f"{logs} --logs", rows_of_warehouse=lambda warehouse: f"{warehouse} --warehouse",
        )  # fmt: skip

    @property
    def inspection(self) -> Any:
        return SimpleNamespace(
            read_again=lambda *values: self.asked.append(values) or 2,
            leave_out=lambda *values: self.asked.append(values) or 2,
            keep=lambda *values: self.asked.append(values) or 3,
        )

    @property
    def preparation(self) -> Any:
        def prepare() -> Path:
            self.asked.append(("prepare",))
            (archive := Path(self.little)).write_bytes(bytes(2_000_000))
            return archive

        return SimpleNamespace(prepare=prepare)

    @property
    def watch(self) -> Any:
        return SimpleNamespace(run_watch=lambda *values, **options: self.asked.append((*values, options)))

    @property
    def sites(self) -> Any:
        return SimpleNamespace(read_sites_file=lambda path: {"from": path.name})


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job()
    monkeypatch.setattr(sla, "import_module", made)
    monkeypatch.setattr(sla, "require_writable", lambda *places: None)  # /o is nowhere
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["sla", *words])


def test_a_report_from_logs_goes_through_a_temporary_warehouse(job: Job) -> None:
    result = run("report", "--logs", "/l", "--output", "/o", "--final", "--now", "2026-11-21T17:00:00+01:00", "--textfile", "/t")

    options = {"objectives_file": None, "now": datetime(2026, 11, 21, 16, tzinfo=UTC), "is_final": True, "textfile": "/t"}
    assert 0 == result.exit_code
    assert [("/l", {"may_be_empty": False}), ("temporary", "/l", {}), ("local[*] auto", "/temporary", "/o", options)] == job.asked
    assert result.stderr.endswith("shadowrelay: No log of mx1.east \\u001b[31m. Two.\nshadowrelay: Dated 2190.\n")
    assert result.stdout.endswith("/o/report.html\n")


@pytest.mark.parametrize("source", ["--logs", "--warehouse"])
def test_a_medium_input_that_is_read_once_is_worth_one_compiler(job: Job, source: str) -> None:
    job.medium = "/l"

    run("report", "--output", "/o", source, "/l")

    assert "local[*] auto medium" == job.asked[-1][0]


@pytest.mark.parametrize("source", ["--logs", "--warehouse"])
def test_little_that_is_read_once_is_not_worth_compiling_for(job: Job, source: str) -> None:
    job.little = "/l"

    run("report", "--output", "/o", source, "/l")

    assert "local[*] auto small" == job.asked[-1][0]


@pytest.mark.parametrize("source", ["--logs", "--warehouse"])
def test_on_a_cluster_little_is_computed_so_that_an_executor_may_be_lost(job: Job, source: str) -> None:
    job.little = "/l"

    run("report", "--output", "/o", source, "/l", "--master", "spark://a:7077")

    assert "spark://a:7077 auto" == job.asked[-1][0]


@pytest.mark.parametrize("source", ["--logs", "--warehouse"])
def test_a_message_is_looked_for_in_little_without_spark(job: Job, source: str) -> None:
    job.little = "/l"

    run("trace", "m1", source, "/l")
    assert ("here", f"/l {source}", "m1") == job.asked[-1]
    run("trace", "m1", source, "/l", "--master", "local[2]")
    assert "local[2] auto small" == job.asked[-1][0]


@pytest.mark.parametrize("source", ["--logs", "--warehouse"])
def test_it_is_looked_for_in_much_with_spark(job: Job, source: str) -> None:
    run("trace", "m1", source, "/l")

    assert "local[*] auto" == job.asked[-1][0]


def test_what_goes_on_may_become_much(job: Job) -> None:
    job.little = "/l"

    job.is_much = True
    run("watch", "--logs", "/l", "--warehouse", "/w", "--output", "/o")
    run("ingest", "--logs", "/l", "--warehouse", "/w")

    assert [] == [each for each in job.asked if "local[*] auto small" in each]


def test_a_report_from_a_warehouse_takes_it_as_it_is(job: Job) -> None:
    result = run("report", "--warehouse", "/w", "--output", "/o", "--master", "spark://a:7077", "--driver-memory", "800m", "--json")

    assert ("spark://a:7077 800m", "/w", "/o") == job.asked[-1][:3]
    assert ("/o", 1.0) == ((answer := json.loads(result.stdout))["output"], answer["overall"]["redundancy_ratio"])
    assert "figures" not in answer


@pytest.mark.parametrize(
    ("verdict", "speed", "words", "code"),
    [
        ("missed", "met", ["--fail-on-breach"], 3),
        ("missed", "missed", [], 0),
        ("met", "missed", ["--fail-on-breach"], 0),
        ("met", "missed", ["--fail-on-slow"], 3),
        ("missed", "met", ["--fail-on-slow"], 0),
        ("met", "met", ["--fail-on-breach", "--fail-on-slow"], 0),
    ],
)
def test_a_missed_target_is_status_3_for_those_who_ask_for_its_kind(
    job: Job, verdict: str, speed: str, words: list[str], code: int
) -> None:
    job.verdict, job.speed = verdict, speed

    assert code == run("report", "--logs", "/l", "--output", "/o", *words).exit_code


def test_the_verdict_on_safety_stands_apart_from_that_on_speed(job: Job) -> None:
    job.speed = "missed"

    said = run("report", "--logs", "/l", "--output", "/o").stdout

    assert ["The promise was kept: all 5 safety targets met.", "Speed: 1 of 4 targets missed."] == said.splitlines()[:2]


UNITS = re.compile(r"Second copy made quickly +99 % +250 ms +99\.[0-9]+ % +missed")


def test_targets_and_figures_have_the_words_and_units_of_the_page_in_80_columns(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.speed = "missed"
    monkeypatch.setattr(output, "terminal_width", lambda: 80)

    said = [line.rstrip() for line in run("report", "--logs", "/l", "--output", "/o").stdout.splitlines()]

    assert max(map(len, said)) <= 80
    assert [] != [line for line in said if UNITS.fullmatch(line)]
    assert [] != [line for line in said if re.fullmatch(r"Short time with one copy only +99\.99 % +10 min +100 % +met", line)]
    assert [] != [line for line in said if re.fullmatch(r"No recipient lost +none +2 d +0 recipients +met", line)]
    assert [] != [line for line in said if re.fullmatch(r"Longest time with one copy only +[0-9.]+ [a-z]+", line)]
    assert [] == [line for line in said if "_" in line or "\xa0" in line]


def test_targets_that_exchange_cannot_tell_fit_80_columns_too(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    told = summaries.with_verdicts(summaries.month(), exposure="not computable", takeover="not computable")
    told["overall"] |= {"redundancy_ratio": None}
    monkeypatch.setattr(Job, "report", SimpleNamespace(write_report=lambda *values, **options: told))
    monkeypatch.setattr(output, "terminal_width", lambda: 80)

    said = [line.rstrip() for line in run("report", "--logs", "/l", "--output", "/o").stdout.splitlines()]

    assert "The promise was not kept: " == said[0][:26]
    assert [] == [line for line in said[2:] if len(line) > 80 or line.startswith("    ")]
    assert [] != [line for line in said if re.fullmatch(r"With a second copy before the 250 +-", line)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "--output", "/o"], "name either --logs DIR or --warehouse DIR"),
        (["report", "--output", "/o", "--logs", "/l", "--warehouse", "/w"], "name either"),
        (["report", "--output", "/o", "--warehouse", "/w", "--sites", "/s"], "--sites belongs to --logs"),
        (["report", "--output", "/o", "--logs", "/l", "--now", "noon"], "an instant looks like 2026"),
        (
            ["report", "--output", "/o", "--logs", "/l", "--since", "2026-11-21T16:00:00Z", "--until", "2026-11-21T16:00:00Z"],
            "--until 2026-11-21T16:00:00+00:00: is not later than --since 2026-11-21T16:00:00+00:00",
        ),
        (["report", "--output", "/o", "--logs", "/l", "--now", "2026-11-21T16:00:00"], "an instant looks like 2026"),
        (
            ["report", "--output", "/o", "--logs", "/l", "--objectives", "/nowhere.toml"],
            "/nowhere.toml: cannot be read (No such file or directory)",
        ),
        (["report", "--output", "/o", "--logs", "/l", "--driver-memory", "much"], "--driver-memory much"),
        (["watch", "--output", "/o", "--logs", "/l", "--warehouse", "/w", "--driver-memory", "300M"], "300M: Spark needs 512m or more"),
        (["ingest", "--logs", "/l", "--warehouse", "/w", "--master", "bogus"], "--master bogus: a master is local[*]"),
        (["trace", "m1"], "name either"),
    ],
)
def test_wrong_words_are_status_2_before_anything_is_done(job: Job, words: list[str], said: str) -> None:
    result = run(*words)

    assert (2, []) == (result.exit_code, job.asked)
    assert said in result.stderr


@pytest.mark.parametrize(
    ("failure", "code"), [(ConfigurationError("Java is missing"), 2), (ShadowrelayError("no logs"), 1), (ImportError("Install s3fs"), 1)]
)
def test_what_stops_the_job_is_said_with_its_status(job: Job, failure: Exception, code: int) -> None:
    job.failure = failure

    result = run("report", "--logs", "/l", "--output", "/o")

    assert code == result.exit_code
    assert str(failure) in result.stderr


def test_ingest_says_what_it_does_and_what_came_of_it(job: Job) -> None:
    words = ("ingest", "--logs", "/l", "--warehouse", "/w", "--sites", "sites.toml", "--continuous", "--interval", "3")

    result = run(*words)

    options = {"sites": {"from": "sites.toml"}, "is_continuous": True, "interval": timedelta(seconds=3), "files_per_batch": 200}
    assert [("/l", "/w", options)] == job.asked
    assert "/w: 3 files, 20 lines, 12 rows, 1 line in quarantine\n" == result.stdout
    assert "batch 0\n" in result.stderr
    assert {"files": 3, "lines": 20, "rows": 12, "quarantined": 1} == json.loads(run(*words, "--json").stdout)


def test_a_trace_is_a_table_and_one_of_nobody_is_status_1(job: Job) -> None:
    assert "no server has logged m1" in (result := run("trace", "m1", "--warehouse", "/w")).stderr
    assert 1 == result.exit_code

    row = {"message": "m1", "server": "mx1.east.example", "event": "RECEIVE", "source": "SMTP", "client": "c.example", "to": "mx1"}
    job.rows = [row | {"text": "S:X=1", "at": "2026-11-21T16:00:00.123456Z", "recipients": ["a@b", "c@d"]}]
    shown = run("trace", "m1", "--warehouse", "/w").stdout.splitlines()

    assert ["2026-11-21 (UTC)", "Server", "Event", "What"] == re.split(" {2,}", shown[0].strip())
    assert "16:00:00.123      mx1.east.example  RECEIVE  accepted from the client; c.example to mx1; for a@b, c@d; S:X=1" == shown[1]
    assert job.rows == json.loads(run("trace", "m1", "--logs", "/l", "--json").stdout)


def test_an_archive_that_was_made_is_named_with_its_size(job: Job, tmp_path: Path) -> None:
    job.little = str(tmp_path / "spark.jsa")

    assert f"{job.little}: 2 MB\n" == run("prepare").stdout
    assert [("prepare",)] == job.asked


def test_a_trace_of_several_messages_says_of_which_each_row_is(job: Job) -> None:
    row = dict.fromkeys(("server", "event", "source", "client", "to", "text"), "") | {"at": "2026-11-21T16:00:00Z", "recipients": []}
    job.rows = [row | {"message": "m1", "event": "SEND"}, row | {"message": "m2", "event": "DSN"}]

    shown = run("trace", "<x@y>", "--warehouse", "/w").stdout

    assert "delivered to the next hop; message m1" in shown
    assert "sender notified; message m2" in shown


def test_watch_is_given_all_it_needs(job: Job) -> None:
    run("watch", "--logs", "/l", "--warehouse", "/w", "--output", "/o")

    assert ("local[*] auto", "/l", "/w", "/o") == job.asked[-1][:4]
    assert {"sites", "objectives_file", "textfile", "interval", "tell"} == set(job.asked[-1][4])


def test_what_spark_says_ends_the_command_without_a_stack(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    class SparkSays(Exception):
        pass

    def fails(*values: Any, **options: Any) -> None:
        raise SparkSays("[NO_FILE] gone\n\tat java.lang.Thread.run")

    monkeypatch.setattr(Job, "report", SimpleNamespace(write_report=fails))
    job.told = lambda exc: str(exc).splitlines()[0] if isinstance(exc, SparkSays) else None

    result = run("report", "--warehouse", "/w", "--output", "/o")

    assert "shadowrelay: Spark failed: [NO_FILE] gone (more in " in result.stderr
    assert (1, False) == (result.exit_code, "java.lang.Thread" in result.stderr)


@pytest.mark.parametrize(("command", "option"), [("report", "--warehouse"), ("report", "--output"), ("watch", "--logs")])
def test_a_name_that_spark_would_take_for_a_pattern_is_refused(job: Job, command: str, option: str) -> None:
    places = {"--output": "/o"} | ({"--warehouse": "/w"} if command == "watch" else {})
    result = run(command, *(word for pair in (places | {option: "/a{b}[1]"}).items() for word in pair))

    assert (2, []) == (result.exit_code, job.asked)
    assert f"Invalid value for '{option}'" in result.stderr


@pytest.mark.parametrize("option", ["--logs", "--output"])
def test_a_name_that_is_not_utf8_is_refused_in_a_line(job: Job, option: str) -> None:
    result = run("report", *(word for pair in ({"--logs": "/l", "--output": "/o"} | {option: "/a\udcff"}).items() for word in pair))

    assert (2, []) == (result.exit_code, job.asked)
    assert "Spark takes only names that are UTF-8" in " ".join(result.stderr.replace("│", " ").split())


def test_objectives_are_read_before_anything_is_done(job: Job, tmp_path: Path) -> None:
    (tmp_path / "promise.toml").write_text("[objectives]\nredundancy_ratio = 7\n")
    result = run("report", "--logs", "/l", "--output", "/o", "--objectives", str(tmp_path / "promise.toml"))

    assert (2, []) == (result.exit_code, job.asked)
    assert "redundancy_ratio" in result.stderr


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")

    with pytest.raises(ConfigurationError, match=r"--output .*/file: cannot be written"):
        require_writable(str(tmp_path / "file"), None)
    with pytest.raises(ConfigurationError, match=r"--textfile .*/file/x: cannot be written"):
        require_writable(str(tmp_path / "new"), str(tmp_path / "file" / "x" / "sla.prom"))
    with pytest.raises(ConfigurationError, match=r"--warehouse .*/file: cannot be written"):
        require_writable(None, None, str(tmp_path / "file"))
    assert [] == list((tmp_path / "new").iterdir())


@pytest.mark.parametrize("name", ["new", "nowhere/", "."])
def test_a_text_file_that_is_a_directory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "new").mkdir()

    with pytest.raises(ConfigurationError, match=r"this is a directory; name the file, as .*sla\.prom"):
        require_writable(str(tmp_path / "o"), f"{tmp_path}/{name}")
    assert ["new"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("command", ["report", "watch"])
def test_places_are_looked_at_before_spark_starts(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(sla, "require_writable", require_writable)
    words = ["--logs", "/l", "--output", str(tmp_path / "o"), "--textfile", str(tmp_path)]

    result = run(command, *words, *(["--warehouse", str(tmp_path / "w")] if command == "watch" else []))

    assert (2, []) == (result.exit_code, job.asked)
    assert "this is a directory" in result.stderr


def test_what_servers_said_does_not_steer_the_terminal(job: Job) -> None:
    job.rows = [
        dict.fromkeys(("message", "server", "event", "source", "client", "to"), "x")
        | {"at": "2026-11-21T16:00:00Z", "recipients": ["a"], "text": "\x1b[31mred \u202e"}
    ]

    result = run("trace", "m1", "--logs", "/l")

    assert "\\u001b[31mred \\u202e" in result.stdout
    assert "\x1b" not in result.stdout


def test_logs_are_read_again_without_spark(job: Job) -> None:
    result = run("ingest", "--logs", "/l", "--warehouse", "/w", "--again", "mx1/*", "--again", "mx2/MSGTRK1.LOG")

    assert [("/l", "/w", ["mx1/*", "mx2/MSGTRK1.LOG"])] == job.asked
    assert "/w: 2 files read again\n" == result.stdout


def test_old_days_are_pruned(job: Job) -> None:
    result = run("prune", "--warehouse", "/w", "--keep", "90d")

    assert [("/w", {}), ("/w", timedelta(days=90))] == job.asked
    assert "/w: 3 days deleted\n" == result.stdout
    wrong = run("prune", "--warehouse", "/w", "--keep", "90")
    assert (2, True) == (wrong.exit_code, "--keep 90: is not a duration" in wrong.stderr)


def test_a_log_that_no_longer_exists_is_forgotten(job: Job) -> None:
    result = run("prune", "--warehouse", "/w", "--log", "mx1/MSGTRK1.LOG", "--log", "mx2/*")

    assert [("/w", {}), ("/w", ["mx1/MSGTRK1.LOG", "mx2/*"])] == job.asked
    assert "/w: 2 logs deleted\n" == result.stdout
    for words in ([], ["--keep", "90d", "--log", "mx1/*"]):
        wrong = run("prune", "--warehouse", "/w", *words)
        assert (2, "shadowrelay: give --keep or --log\n") == (wrong.exit_code, wrong.stderr)


def test_an_interval_is_two_instants(job: Job) -> None:
    run("report", "--warehouse", "/w", "--output", "/o", "--since", "2026-11-21T00:00:00Z", "--until", "2026-11-22T00:00:00Z")

    options = job.asked[-1][-1]
    assert (datetime(2026, 11, 21, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC)) == (options["since"], options["until"])
    wrong = run("report", "--warehouse", "/w", "--output", "/o", "--since", "yesterday")
    assert (2, True) == (wrong.exit_code, "--since yesterday: an instant looks like" in wrong.stderr)


def test_spark_is_started_once_and_only_for_much(job: Job) -> None:
    words = ("ingest", "--logs", "s3://bucket/logs", "--warehouse", "/w", "--master", "local[2]")
    assert 0 == run(*words).exit_code
    assert 1 == len(job.asked)

    job.is_much = True
    result = run(*words)

    assert ("local[2] auto", "local[2] auto") == job.asked[-1]
    assert 1 == result.stderr.count("starting Spark")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ingest", "--logs", "HERE", "--warehouse", "s3://b/w"], "--warehouse s3://b/w: Spark calls this store s3a: write s3a://b/w"),
        (["ingest", "--logs", "HERE", "--warehouse", "s3a://b/w"], "org.apache.hadoop:hadoop-aws:"),
        (["report", "--warehouse", "s3a://b/w", "--output", "HERE"], "--warehouse s3a://b/w: Spark reads and writes there itself"),
        (["report", "--logs", "s3://b/l", "--output", "abfss://c@a/o"], "--output abfss://c@a/o: Spark reads and writes there itself"),
        (["watch", "--logs", "gs://b/l", "--warehouse", "HERE", "--output", "HERE"], "bigdataoss:gcs-connector:VERSION"),
    ],
)
def test_what_spark_needs_for_a_store_is_said_before_it_starts(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setattr(sla, "require_writable", require_writable)
    monkeypatch.setattr(storage_module, "_has_connector", lambda package: False)

    result = run(*(word.replace("HERE", str(tmp_path)) for word in words))

    assert (2, []) == (result.exit_code, job.asked)
    assert said in result.stderr.replace("\n", "")
    assert "starting Spark" not in result.stderr
