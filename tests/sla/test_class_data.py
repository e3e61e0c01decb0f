"""The archive of Spark's classes: whose it is, when it is used, and that a report never depends on it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

from shadowrelay.sla import session
from shadowrelay.sla.class_data import UNUSED_MAX, archive_of, delete_unused, usable_archive
from tests.kit.log_files import a_log, an_event


@pytest.fixture
def installed(tmp_path, monkeypatch) -> tuple[str, str]:
    """A program java and a directory of Spark; the cache is empty."""
    (tmp_path / "java").write_text("17")
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return str(tmp_path / "java"), str(tmp_path / "spark")


def made(installed: tuple[str, str]) -> Path:
    archive = archive_of(*installed)
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"classes")
    return archive


def test_an_archive_is_of_one_java_and_one_spark(installed, tmp_path):
    archive = made(installed)
    assert archive == usable_archive(*installed)

    (tmp_path / "java").write_text("17.0.1")
    assert None is usable_archive(*installed)
    (tmp_path / "java").write_text("17")
    os.utime(tmp_path / "spark" / "jars", (0, 0))  # as an update leaves it
    assert None is usable_archive(*installed)


@pytest.mark.parametrize("mode", [0o666, 0o620])
@pytest.mark.parametrize("is_directory", [True, False])
def test_an_archive_that_others_can_write_is_not_used(installed, mode, is_directory):
    archive = made(installed)

    (archive.parent if is_directory else archive).chmod(mode | 0o100)

    assert None is usable_archive(*installed)


def test_an_archive_of_another_user_is_not_used(installed, monkeypatch):
    made(installed)

    monkeypatch.setattr(os, "geteuid", lambda: 4711)

    assert None is usable_archive(*installed)


@pytest.mark.parametrize("cache", ["relative", '/quoted"', "/quoted\\"])
def test_without_a_directory_for_it_there_is_no_archive(installed, monkeypatch, cache):
    monkeypatch.setenv("XDG_CACHE_HOME", cache)

    assert None is archive_of(*installed)
    assert None is usable_archive(*installed)


def test_without_java_there_is_no_archive(installed):
    assert None is usable_archive("/nowhere/java", installed[1])


def test_an_archive_that_was_not_used_for_a_month_is_deleted(installed):
    old, used = made(installed), archive_of(*installed).with_name("spark-0.jsa")
    used.write_bytes(b"classes")
    for archive in (old, used):
        os.utime(archive, (0, old.stat().st_mtime - UNUSED_MAX.total_seconds() - timedelta(days=1).total_seconds()))
    assert old == usable_archive(*installed)  # which is a use

    delete_unused(old.parent)

    assert (True, False) == (old.exists(), used.exists())


@pytest.mark.parametrize(
    ("obstacle", "attempts"),
    [("-XX:SharedArchiveFile", 2), ("-XX:+UseParallelGC", 3), ("-Dlog4j2", None)],
    ids=["archive", "tuning", "all"],
)
def test_a_jvm_that_does_not_start_with_our_options_is_started_with_fewer_or_its_words_are_told(tmp_path, monkeypatch, obstacle, attempts):
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError

    archive, said = tmp_path / "spark.jsa", []

    def launch(settings: Mapping[str, str]) -> None:
        said.append(settings["spark.driver.extraJavaOptions"])
        if obstacle in said[-1]:
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    archive.write_bytes(b"damaged")
    monkeypatch.setattr(session, "check_spark", lambda: None)
    monkeypatch.setattr(session, "usable_archive", lambda java, spark: archive)
    monkeypatch.setattr(session, "_launch", launch)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr("pyspark.sql.SparkSession", mock.MagicMock())
    monkeypatch.setattr(session.DETAILS, "said", lambda: "No room\n\tat java.lang.Thread.run")

    if attempts is None:
        with pytest.raises(session.SparkUnavailable, match="Java does not start Spark: No room"):
            session.spark_session("local[1]")
    else:
        session.spark_session("local[1]")
        assert attempts == len(said)
    assert [True, False] == [f"-XX:SharedArchiveFile={archive}" in options for options in said[:2]]
    assert archive.exists() == (attempts != 2)


@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_a_report_maps_the_archive_and_one_with_a_damaged_archive_is_the_same(tmp_path):
    log = tmp_path / "logs" / "mx1" / "MSGTRK1.LOG"
    log.parent.mkdir(parents=True)
    log.write_bytes(a_log([an_event("m1")]))
    loaded = tmp_path / "loaded"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "shadowrelay", "sla", *words], capture_output=True, text=True, check=True, env=environment | more
        )

    def report() -> dict[str, object]:
        words = ("report", "--logs", str(tmp_path / "logs"), "--output", str(tmp_path / "report"), "--driver-memory", "512m", "--json")
        return json.loads(run(*words, JDK_JAVA_OPTIONS=f"-Xlog:class+load:file={loaded}:none").stdout)

    without = report()
    assert 0 == loaded.read_text().count("shared objects file (top)")
    run("prepare")
    (archive,) = (tmp_path / "cache" / "shadowrelay").iterdir()

    assert without == report()
    assert 10_000 < loaded.read_text().count("shared objects file (top)")

    damaged = bytearray(archive.read_bytes())
    damaged[: len(damaged) // 2] = bytes(len(damaged) // 2)
    archive.write_bytes(damaged)
    assert without == report()
