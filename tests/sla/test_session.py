"""What is missing is said in our words, before a JVM starts."""

import importlib.util
import json
import locale
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.sla import ingest, session
from shadowrelay.sla.session import (
    SparkUnavailable,
    check_spark,
    failure_of,
    is_on_this_machine,
    java_version,
    local_cores,
    require_settings,
    utf8_locale,
)
from tests.kit.log_files import a_log, an_event


def java_that_says(directory: Path, text: str) -> Path:
    java = directory / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)
    return java


def test_a_java_that_is_too_old_is_named_with_what_to_install(tmp_path, monkeypatch):
    java_that_says(tmp_path, 'openjdk version "11.0.20" 2023-07-18')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SparkUnavailable, match="is Java 11, which is too old for Spark: install Java 17 or later"):
        check_spark()


def test_no_java_at_all_is_said_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SparkUnavailable, match="Java is missing: install Java 17 or later"):
        check_spark()


def test_a_java_home_without_java_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SparkUnavailable, match="does not run: install Java 17"):
        check_spark()


def test_a_java_that_does_not_start_says_why_itself(tmp_path, monkeypatch):
    java_that_says(tmp_path, "Error occurred during initialization of VM\nNo room for the heap")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xms9t")

    with pytest.raises(SparkUnavailable, match="it says: No room for the heap; JAVA_TOOL_OPTIONS is set to -Xms9t"):
        check_spark()


def test_a_missing_pyspark_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(SparkUnavailable, match=r"pyspark is missing: .*shadowrelay\[spark\]"):
        check_spark()


@pytest.mark.parametrize(
    ("text", "version"), [('java version "1.8.0_392"', 8), ('openjdk version "17.0.15"', 17), ('openjdk version "21" x', 21), ("?", None)]
)
def test_versions_of_java_are_read_as_they_are_printed(tmp_path, text, version):
    assert version == java_version(str(java_that_says(tmp_path, text)))


def test_a_master_says_how_many_cores_and_where():
    assert (1, 2, 3, None) == tuple(map(local_cores, ("local", "local[2]", "local[3,4]", "spark://a:7077")))
    assert (local_cores("local[*]") or 0) >= 1
    assert (True, True, False) == tuple(map(is_on_this_machine, ("local[*]", "spark://127.0.0.1:7077", "spark://a.example:7077")))


def test_every_master_of_sparks_is_taken_and_what_is_none_is_said():
    for master in ("local", "local[*]", "local[2, 3]", "local-cluster[2,1,1024]", "yarn", "k8s://https://a:6443", "spark://a:7077,b:7077"):
        require_settings(master, "1G")
    for master in ("local[x]", "local[0]", "spark://a", "mesos://a:1", ""):
        with pytest.raises(ConfigurationError, match="a master is"):
            require_settings(master, "512m")


def test_little_is_measured_over_the_parquet_of_a_warehouse(tmp_path):
    for server, size in (("a", 6), ("b", 4)):
        (tmp_path / "events" / "date=2026-11-21" / server).mkdir(parents=True)
        (tmp_path / "events" / "date=2026-11-21" / server / "1.parquet").write_bytes(b"x" * size)
    (tmp_path / "quarantine.parquet").write_bytes(b"no event")
    assert ingest.is_little_warehouse(str(tmp_path), 10 * ingest.PARQUET_SHARE)

    (tmp_path / "events" / "date=2026-11-21" / "b" / "2.parquet").write_bytes(b"x")
    assert not ingest.is_little_warehouse(str(tmp_path), 10 * ingest.PARQUET_SHARE)


def test_a_failure_of_spark_is_told_in_its_first_line():
    from pyspark.errors import AnalysisException

    assert "[PATH_NOT_FOUND] no such path" == failure_of(AnalysisException("\n[PATH_NOT_FOUND] no such path\n\tat java.lang.Thread.run"))
    assert None is failure_of(KeyError("ours"))


def java_exception(text: str, cause: object = None) -> SimpleNamespace:
    return SimpleNamespace(_target_id="o1", _gateway_client=None, toString=lambda: text, getCause=lambda: cause)


def test_what_the_system_said_at_the_bottom_of_a_failure_is_told_once():
    from py4j.protocol import Py4JJavaError

    full = java_exception("java.io.IOException: No space left on device")
    written = java_exception("SparkException: [TASK_WRITE_FAILED] Task failed", java_exception("X: in between", full))

    said = "java.io.IOException: No space left on device; make room in output and warehouse, in /tmp, and in SPARK_LOCAL_DIRS if set"
    assert f"SparkException: [TASK_WRITE_FAILED] Task failed; {said}" == failure_of(Py4JJavaError("an error", written))
    assert said == failure_of(Py4JJavaError("an error", full))


def test_what_a_person_can_do_about_a_failure_of_spark_is_told():
    from pyspark.errors import PySparkException

    assert failure_of(PySparkException("java.lang.OutOfMemoryError: Java heap space")).endswith(
        "heap space; give more with --driver-memory"
    )
    assert "too new for this Spark: set JAVA_HOME" in failure_of(PySparkException("X: getSubject is not supported"))


def test_where_a_worker_failed_its_own_reason_is_told_too():
    from pyspark.errors import PySparkException

    text = (
        "\n  An exception was thrown from the Python worker. Please see the stack trace below.\nTraceback (most recent call last):\n"
        '  File "land.py", line 1, in write\nOSError: [Errno 28] No space left on device\n\tat org.apache.spark.Worker(Worker.scala:1)\n'
        "org.apache.spark.SparkException: Job aborted\n"
    )

    assert "stack trace below. OSError: [Errno 28] No space left on device; make room in" in failure_of(PySparkException(text))


def test_a_jvm_that_is_gone_is_told():
    from py4j.protocol import Py4JNetworkError

    assert "its JVM has ended" in failure_of(Py4JNetworkError("Answer from Java side is empty"))


@pytest.mark.parametrize(("codeset", "before", "within"), [("UTF-8", "de_DE.UTF-8", "de_DE.UTF-8"), ("ANSI_X3.4-1968", "C", "C.UTF-8")])
def test_a_jvm_is_started_in_a_locale_that_can_name_any_file(monkeypatch, codeset, before, within):
    monkeypatch.setattr(locale, "nl_langinfo", lambda _: codeset)
    monkeypatch.setenv("LC_ALL", before)

    with utf8_locale() as is_ours:
        assert (within, within != before) == (os.environ["LC_ALL"], is_ours)
    assert before == os.environ["LC_ALL"]

    monkeypatch.delenv("LC_ALL")
    with utf8_locale():
        assert is_ours == ("LC_ALL" in os.environ)
    assert "LC_ALL" not in os.environ


@pytest.mark.parametrize(
    ("size", "collector"), [({"is_small": True}, "-XX:+UseSerialGC"), ({"is_medium": True}, "-XX:+UseParallelGC"), ({}, None)]
)
def test_no_collector_works_beside_the_tasks_and_the_jvm_of_a_brief_report_has_one_compiler(monkeypatch, size, collector):
    said = []
    monkeypatch.setattr(session, "check_spark", lambda: None)
    monkeypatch.setattr(session, "usable_archive", lambda java, spark: None)
    monkeypatch.setattr(session, "_started", lambda *given: said.append(given[3][0]) or mock.MagicMock())

    session.spark_session("local[1]", driver_memory="800m", **size)

    chosen = {option for option in said[0] if option.startswith(("-XX:TieredStop", "-XX:+Use", "-Xms"))}
    assert ({"-XX:TieredStopAtLevel=1", collector, "-Xms800m"} if collector else {"-XX:+UseParallelGC"}) == chosen


@pytest.mark.heavy
def test_in_a_locale_without_umlauts_on_a_machine_whose_name_nobody_knows_logs_are_read_all_the_same(tmp_path):
    log = tmp_path / "prüf" / "mx-ü" / "MSGTRK-ö.LOG"
    log.parent.mkdir(parents=True)
    log.write_bytes(a_log([an_event("m1")]))
    words = ["sla", "report", "--logs", str(tmp_path / "prüf"), "--output", str(tmp_path / "o-ä"), "--master", "local[1]"]

    nameless = ["unshare", "--uts", "sh", "-c", 'hostname nobody.invalid && exec "$@"', "sh"]
    able = shutil.which("unshare") and 0 == subprocess.run([*nameless, "true"], capture_output=True, check=False).returncode
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"} | {"LC_ALL": "C"}
    done = subprocess.run(
        [*(nameless if able else []), sys.executable, "-m", "shadowrelay", *words, "--driver-memory", "512m", "--json"],
        capture_output=True, text=True, check=False, timeout=240, env=environment,
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    assert 1 == json.loads(done.stdout)["input"]["rows"]
