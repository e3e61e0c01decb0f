"""What is missing is said in our words, before a JVM starts."""

import importlib.util
from pathlib import Path

import pytest

from shadowrelay.sla.session import SparkUnavailable, check_spark, is_on_this_machine, java_version, local_cores


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
