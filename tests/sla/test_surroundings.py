"""What others have set for Spark, and what it would not survive, by values: no JVM is started here."""

import logging
import os
import pwd
import socket
from types import SimpleNamespace

import pytest

from shadowrelay.sla import surroundings
from shadowrelay.sla.details import Details
from shadowrelay.sla.session import LARGE_JVM, QUICK_JVM, default_memory, java_version
from shadowrelay.sla.surroundings import (
    SparkUnavailable,
    java_options,
    java_said,
    others,
    parse_defaults,
    require_spark_home,
    settings_blamed,
)

REMEDY = ": correct it, or take it away"


def test_what_was_left_in_the_arguments_for_spark_does_not_end_or_redirect_it():
    words = "--master yarn --deploy-mode=cluster --conf spark.a=b=c --packages g:a:1 --driver-java-options '-Dx=1' app.py --conf spark.z=1"

    found = others({"PYSPARK_SUBMIT_ARGS": words, "JAVA_TOOL_OPTIONS": "-Dt"}, "/nowhere")

    assert {"spark.a": "b=c", "spark.driver.extraJavaOptions": "-Dx=1"} == found.settings
    assert ("--packages", "g:a:1") == found.arguments
    assert ("-Dt", "-Dx=1") == found.java


def test_arguments_that_are_none_are_said():
    with pytest.raises(SparkUnavailable, match="PYSPARK_SUBMIT_ARGS: No closing quotation: correct it, or unset it"):
        others({"PYSPARK_SUBMIT_ARGS": "--conf 'x"}, "/nowhere")


def test_the_file_with_defaults_is_read_as_java_reads_it(tmp_path):
    text = "# no\n! no\nspark.a  1 2 \nspark.b=x=y\nspark.c: z\n\nspark.d \\\n   w\nalone\n"
    expected = {"spark.a": "1 2", "spark.b": "x=y", "spark.c": "z", "spark.d": "w"}

    assert expected == parse_defaults(text)
    (tmp_path / "spark-defaults.conf").write_text(text)
    (tmp_path / "other.conf").write_text("spark.a 9")
    assert expected | {"spark.a": "7"} == others({"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": "-c spark.a=7"}, "/x").settings
    assert {"spark.a": "9"} == others({"PYSPARK_SUBMIT_ARGS": f"--properties-file {tmp_path}/other.conf"}, "/x").settings


def test_what_others_say_to_java_is_not_said_against():
    ours = [*QUICK_JVM, "-Xms600m", "-Da=1"]

    assert ours == java_options(ours, [])
    assert [*QUICK_JVM[:3], "-Xms600m", "-Da=1"] == java_options(ours, ["-XX:+UseG1GC"])
    assert [*QUICK_JVM[1:], "-Da=1"] == java_options(ours, ["-Xmx300m -XX:TieredStopAtLevel=4"])
    assert [*QUICK_JVM, "-Xms600m"] == java_options(ours, ["-Da=2"])
    assert "-XX:+UseParallelGC" not in java_options(LARGE_JVM, ["-XX:+UseZGC"])


def test_another_spark_is_named_with_both_versions(tmp_path):
    with pytest.raises(SparkUnavailable, match=r"SPARK_HOME=.*: no Spark is there: unset it"):
        require_spark_home(str(tmp_path), "4.3.0")
    for directory in ("jars", "bin"):
        (tmp_path / directory).mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    (tmp_path / "jars" / "spark-core_2.13-4.3.1.jar").touch()
    require_spark_home(str(tmp_path), "4.3.0")

    with pytest.raises(SparkUnavailable, match=r"is Spark 4.3.1, and the package pyspark of this Python is 4.0.0: unset SPARK_HOME"):
        require_spark_home(str(tmp_path), "4.0.0")


def test_a_user_without_an_entry_is_told_which_line_to_add(monkeypatch):
    def nobody(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)

    with pytest.raises(SparkUnavailable, match=r"user [0-9]+ has no entry in /etc/passwd.*add a line: report:x:"):
        surroundings.require_user()


def test_a_loopback_that_is_down_is_said(monkeypatch):
    def refuse(*_, **__):
        raise OSError(99, "Cannot assign requested address")

    surroundings.require_loopback()
    monkeypatch.setattr(socket, "create_server", refuse)

    with pytest.raises(SparkUnavailable, match=r"127.0.0.1 cannot be reached \(Cannot assign requested address\).*ip link set lo up"):
        surroundings.require_loopback()


@pytest.mark.parametrize(("limits", "set_to"), [((256, 4096), (4096, 4096)), ((1024, -1), (65536, -1)), ((64, 64), None)])
def test_files_that_may_be_open_are_raised_as_far_as_they_may(monkeypatch, limits, set_to):
    said = []
    monkeypatch.setattr(surroundings.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(surroundings.resource, "setrlimit", lambda _, limit: said.append(limit))
    if set_to is None:
        with pytest.raises(SparkUnavailable, match="may open 64 files, and Spark needs 512 and more: ulimit -n 4096"):
            surroundings.require_open_files()
    else:
        surroundings.require_open_files()
    assert ([] if set_to is None else [set_to]) == said


def test_one_directory_that_can_be_written_is_enough(tmp_path):
    surroundings.require_local_directories({"SPARK_LOCAL_DIRS": f"/proc/none, {tmp_path}"}, {})
    surroundings.require_local_directories({}, {})
    for environment, settings in (({"SPARK_LOCAL_DIRS": "/proc/none"}, {}), ({}, {"spark.local.dir": "/proc/none"})):
        with pytest.raises(SparkUnavailable, match=r"=/proc/none: cannot be written .*: name a directory that can be, or unset it"):
            surroundings.require_local_directories(environment, settings)


def test_libraries_go_where_they_may_be_mapped(tmp_path, monkeypatch):
    closed = {"/tmp"}
    monkeypatch.setattr(surroundings, "_unwritable", lambda directory: None)
    monkeypatch.setattr(os, "statvfs", lambda directory: SimpleNamespace(f_flag=os.ST_NOEXEC if directory in closed else 0))

    assert None is surroundings.place_for_libraries("/opt", "")
    assert "/cache" == surroundings.place_for_libraries("/tmp", "/cache")
    closed |= {"/cache", "/var/tmp"}
    assert "/dev/shm" == surroundings.place_for_libraries("/tmp", "/cache")
    closed |= {"/dev/shm"}
    with pytest.raises(SparkUnavailable, match="/tmp is mounted noexec, and so is every other place"):
        surroundings.place_for_libraries("/tmp", "/cache")


def test_where_temporary_files_cannot_be_written_java_gets_another_place(monkeypatch):
    closed = {"/tmp"}
    monkeypatch.setattr(surroundings, "_unwritable", lambda directory: "Read-only file system" if directory in closed else None)

    assert "/cache" == surroundings.place_for_files("/cache")
    assert "/var/tmp" == surroundings.place_for_files("/a b")
    closed.clear()
    assert "/tmp" == surroundings.place_for_files("/cache")
    closed |= {"/tmp", "/var/tmp", "/dev/shm"}
    with pytest.raises(SparkUnavailable, match=r"/tmp cannot be written \(Read-only file system\), and nor can any other place"):
        surroundings.place_for_files("")


def test_the_heap_is_what_the_machine_has_room_for():
    assert ("4096m", "4096m", "1228m", "512m") == tuple(map(default_memory, (None, 64 << 30, 2 << 30, 400 << 20)))
    assert (surroundings.memory_allowed() or 0) > 64 << 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Picked up JAVA_TOOL_OPTIONS: -Dx\nError occurred during initialization of VM\nNo room\n", "No room"),
        ("Exception in main X: y\n\tat a.b(C.java)\nCaused by: Z: w\n\t... 3 more\n", "Exception in main X: y; Caused by: Z: w"),
        ("WARNING: Using incubator modules: jdk.incubator.vector\n", ""),
        ("The jars are in: /x\ng#a added\nException in thread main E: no\n\tat a.b(C.java)\n", "Exception in thread main E: no"),
    ],
    ids=["memory", "stack", "nothing", "packages"],
)  # fmt: skip
def test_what_java_says_is_one_line_without_its_stack(text, said):
    assert said == java_said(text)


def test_a_version_in_the_options_for_java_is_not_taken_for_javas(tmp_path):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Da=version \"8\"' >&2\necho 'openjdk version \"21.0.1\"' >&2\n")
    java.chmod(0o755)

    assert 21 == java_version(str(java))


def test_what_is_logged_on_the_root_while_a_connection_breaks_is_in_the_file_and_not_shown(monkeypatch, capsys):
    monkeypatch.setattr(logging.root, "handlers", [])
    details = Details()
    details.output().close()

    logging.exception("Exception while sending command.")
    assert ("", True) == (capsys.readouterr().err, "Exception while sending command." in details.said())


def test_settings_of_which_a_failure_speaks_are_named():
    settings = {
        "spark.plugins": "a.b.C, x.y.Plugin",
        "spark.x": "true",
        "spark.jars.packages": "io.x:a:4.0",
        "spark.local.dir": "/data/a",
    }

    assert f"spark.plugins is set to a.b.C, x.y.Plugin{REMEDY}" == settings_blamed("ClassNotFoundException: x.y.Plugin", settings)
    assert "" == settings_blamed("true: x.y.Plugins, /data/ab", settings)
    assert f"spark.local.dir is set to /data/a{REMEDY}" == settings_blamed("no space at file:/data/a/x", settings)
    assert f"spark.jars.packages is set to io.x:a:4.0{REMEDY}" == settings_blamed("unresolved: io.x#a;4.0: not found", settings)


def test_a_secret_that_a_failure_quotes_is_not_said_again() -> None:
    name = "spark.hadoop.fs.s3a.secret.key"

    assert f"{name} is set to [left out]{REMEDY}" == settings_blamed("refused: aVerySecretKey", {name: "aVerySecretKey"})


def test_what_spark_refuses_without_a_value_is_named_by_its_kind():
    given = {"_JAVA_OPTIONS": "-Xmx64m", "spark.eventLog.enabled": "true", "JAVA_TOOL_OPTIONS": ""}

    assert f"_JAVA_OPTIONS is set to -Xmx64m{REMEDY}" == settings_blamed("[INVALID_DRIVER_MEMORY.SYSTEM_MEMORY] 63", given)
    assert f"spark.eventLog.enabled is set to true{REMEDY}" == settings_blamed("file:/tmp/spark-events does not exist", given)
    assert "" == settings_blamed("something else", given)


@pytest.mark.parametrize(
    ("failure", "name", "value"),
    [
        ("requirement failed: spark.memory.offHeap.size must be at least 1MiB when spark.memory.offHeap.enabled == true",
         "spark.memory.offHeap.enabled", "true"),
        ('The codec lzo is not available. Consider to set the config "spark.io.compression.codec" to "snappy".',
         "spark.io.compression.codec", "lzo"),
        ("The number of cores per executor (=1) has to be >= the number of cpus per task = 2.", "spark.task.cpus", "2"),
        ("Executor memory must be a positive number", "spark.executor.memory", "1x"),
        ("No executor resource configs were specified for the following task configs: gpu", "spark.task.resource.gpu.amount", "1"),
        ("requirement failed: startPort should be between 1024 and 65535 (inclusive), or 0", "spark.driver.port", "22"),
        ("requirement failed: startPort should be between 1024 and 65535 (inclusive), or 0", "spark.driver.blockManager.port", "99999"),
        ("java.lang.IllegalArgumentException: java.net.UnknownHostException: nowhere.invalid",
         "spark.checkpoint.dir", "hdfs://nowhere.invalid/x"),
        ("java.lang.ClassNotFoundException: foo", "spark.shuffle.manager", "foo"),
        ("spark.memory.fraction should be between 0 and 1 (was '2.0').", "spark.memory.fraction", "2"),
        ("java.lang.reflect.InvocationTargetException\n\tat x\nCaused by: java.lang.IllegalArgumentException: "
         "spark.kryoserializer.buffer.max must be less than 2048 mb, got: + 5120 mb.", "spark.kryoserializer.buffer.max", "5g"),
    ],
)  # fmt: skip
def test_a_setting_that_spark_refuses_is_named_with_its_value_and_a_remedy(failure, name, value):
    innocent = {
        "spark.ui.port": "4040", "spark.blockManager.port": "0", "spark.memory.offHeap.sizes": "1g", "spark.app.name": "of a company",
        "spark.task.maxFailures": "4", "spark.executor.instances": "2", "spark.sql.ansi.enabled": "true", "spark.rdd.compress": "true",
        "spark.master": "yarn", "spark.eventLog.enabled": "false", "spark.hadoop.fs.defaultFS": "hdfs://other.invalid",
    }  # fmt: skip

    assert f"{name} is set to {value}{REMEDY}" == settings_blamed(failure, innocent | {name: value})


def test_several_settings_that_spark_refuses_are_named_together():
    given = {"spark.driver.port": "22", "spark.blockManager.port": "80", "spark.ui.port": "4040"}

    told = settings_blamed("startPort should be between 1024 and 65535 (inclusive)", given)

    assert "spark.driver.port is set to 22; spark.blockManager.port is set to 80: correct them, or take them away" == told


@pytest.mark.parametrize("size", ["100m", "471859199", "0.5g", "460000k", "100"])
def test_too_little_memory_is_said_before_spark_starts(size):
    with pytest.raises(SparkUnavailable, match=f"spark.driver.memory={size} is "):
        surroundings.require_memory({"spark.driver.memory": size})


@pytest.mark.parametrize("size", ["", "800m", "4G", "2gb", "1073741824"])
def test_sizes_of_java_are_taken(size):
    surroundings.require_memory({"spark.driver.memory": size})


@pytest.mark.parametrize("size", ["1x", "4 g", "0", "lots"])
def test_a_size_that_is_none_is_said(size):
    with pytest.raises(SparkUnavailable, match=f"spark.driver.memory={size} is no size"):
        surroundings.require_memory({"spark.driver.memory": size})
