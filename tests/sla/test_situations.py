"""Each situation in the table of docs/spark.md is made here, and gets the answer that stands there: a report, or one line."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shadowrelay.sla.session import SparkUnavailable, check_spark
from tests.kit.log_files import a_log, an_event
from tests.tidy.house import ROOT

ROW = re.compile(r"^\| (?P<situation>[^|]+?) \| (?P<code>\d) \| `(?P<answer>.+?)` \|$", re.MULTILINE)
SECONDS_MAX = 280.0  # a JVM that shares two cores with others is slow
STRANGER = "54321"
PROGRESS = ("starting Spark", "reading ", "computing the figures")
Given = tuple[dict[str, str], list[str]]
"""Variables, and the words before the command."""


def rows() -> dict[str, tuple[int, str]]:
    """Exit code and answer of each situation in the document."""
    return {
        found["situation"]: (int(found["code"]), found["answer"]) for found in ROW.finditer((ROOT / "docs/spark.md").read_text("utf-8"))
    }


def variables(**values: str) -> Callable[[Path], Given]:
    return lambda place: (values, [])


def shell(text: str) -> Callable[[Path], Given]:
    return lambda place: ({}, ["sh", "-c", f'{text}; exec "$@"', "sh"])


def defaults(text: str) -> Callable[[Path], Given]:
    def made(place: Path) -> Given:
        (place / "spark-defaults.conf").write_text(text)
        return {"SPARK_CONF_DIR": str(place)}, []

    return made


def of_hadoop(place: Path) -> Given:
    text = "<configuration><property><name>fs.defaultFS</name><value>hdfs://nowhere.invalid:9000</value></property></configuration>"
    (place / "core-site.xml").write_text(text)
    return {"HADOOP_CONF_DIR": str(place)}, []


def another_spark(place: Path) -> Given:
    for name in ("bin/spark-submit", "jars/spark-core_2.12-3.5.9.jar"):
        (place / name).parent.mkdir()
        (place / name).touch()
    return {"SPARK_HOME": str(place)}, []


def no_right_to_execute(place: Path) -> Given:
    words = 'mount --bind /tmp /tmp && mount -o remount,bind,noexec /tmp && exec "$@"'
    return {}, ["unshare", "--mount", "sh", "-c", words, "sh"]


def temporary(words: str) -> Callable[[Path], Given]:
    """/tmp is another one for this process."""
    return lambda place: ({}, ["unshare", "--mount", "sh", "-c", f'{words} && exec "$@"', "sh"])


def nobody_we_know(place: Path) -> Given:
    place.chmod(0o777)
    return {"HOME": "/"}, ["setpriv", "--reuid", STRANGER, "--regid", STRANGER, "--clear-groups"]


def no_directory(place: Path) -> Given:
    gone = place / "gone"
    gone.mkdir()
    return {}, ["sh", "-c", f'cd {gone} && rmdir {gone} && exec "$@"', "sh"]


def little_memory(place: Path) -> Given:
    """In a control group of version 1 or 2, if this user may make one."""
    words = (
        'for top in /sys/fs/cgroup/memory /sys/fs/cgroup; do group=$top/shadowrelay-test-$$; mkdir "$group" 2>/dev/null || continue; '
        'for limit in memory.limit_in_bytes memory.max; do echo 300M >"$group/$limit" 2>/dev/null && echo $$ >"$group/cgroup.procs" '
        '&& exec "$@"; done; rmdir "$group"; done; exit 99'
    )
    return {}, ["sh", "-c", words, "sh"]


def latin(place: Path) -> Given:
    (place / "spark-defaults.conf").write_bytes("# für uns\nspark.app.name Büro\n".encode("latin-1"))
    return {"SPARK_CONF_DIR": str(place)}, []


def a_java(words: str) -> Callable[[Path], Given]:
    """A program of that name, which does that."""

    def made(place: Path) -> Given:
        (place / "bin").mkdir()
        (place / "bin/java").write_text(f"#!/bin/sh\n{words}\n")
        (place / "bin/java").chmod(0o755)
        return {"JAVA_HOME": str(place)}, []

    return made


def a_script(text: str) -> Callable[[Path], Given]:
    """What an administrator lets Spark run before Java."""

    def made(place: Path) -> Given:
        (place / "spark-env.sh").write_text(text)
        return {"SPARK_CONF_DIR": str(place)}, []

    return made


def older_pyspark(place: Path) -> Given:
    (place / "pyspark").mkdir()
    (place / "pyspark/__init__.py").write_text("__version__ = '3.5.1'\n")
    return {"PYTHONPATH": f"{ROOT}:{place}"}, []


SITUATIONS: dict[str, Callable[[Path], Given]] = {
    "a collector in `JAVA_TOOL_OPTIONS`": variables(JAVA_TOOL_OPTIONS="-XX:+UseG1GC"),
    "a heap and a collector in `_JAVA_OPTIONS`": variables(_JAVA_OPTIONS="-Xmx1g -XX:+UseG1GC"),
    "options for Java, memory and SQL in `spark-defaults.conf`": defaults(
        'spark.driver.extraJavaOptions -XX:+UseG1GC -Dx="a b"\nspark.driver.memory 700m\nspark.submit.deployMode cluster\n'
        "spark.sql.session.timeZone America/New_York\nspark.sql.ansi.enabled false\n"
    ),
    "a cluster and a program left over in `PYSPARK_SUBMIT_ARGS`": variables(
        PYSPARK_SUBMIT_ARGS="--master yarn --deploy-mode cluster app.py"
    ),
    "IPv6 preferred": variables(JAVA_TOOL_OPTIONS="-Djava.net.preferIPv6Addresses=true", SPARK_PREFER_IPV6="true"),
    "a temporary directory without the right to execute": no_right_to_execute,
    "a temporary directory that cannot be written": temporary("mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp"),
    "a temporary directory without room": temporary("mount -t tmpfs -o size=1m none /tmp"),
    "HDFS as the default of Hadoop": of_hadoop,
    "Spark Connect and Jupyter in the environment": variables(SPARK_REMOTE="sc://localhost:1", PYSPARK_DRIVER_PYTHON="jupyter"),
    "an event log in a directory that is not there": defaults("spark.eventLog.enabled true\nspark.eventLog.dir /nowhere\n"),
    "a collector that Java does not have": variables(JAVA_TOOL_OPTIONS="-XX:+UseConcMarkSweepGC"),
    "quotes that do not end in `PYSPARK_SUBMIT_ARGS`": variables(PYSPARK_SUBMIT_ARGS="--conf 'x"),
    "`SPARK_HOME` of another version": another_spark,
    "`SPARK_HOME` without Spark": variables(SPARK_HOME="/nowhere"),
    "`PYSPARK_GATEWAY_PORT` left over": variables(PYSPARK_GATEWAY_PORT="1", PYSPARK_GATEWAY_SECRET="x"),
    "no loopback": lambda place: ({}, ["unshare", "--net"]),
    "a user id without an entry in `/etc/passwd`": nobody_we_know,
    "the working directory was deleted": no_directory,
    "an address of another machine in `spark-defaults.conf`": defaults("spark.driver.bindAddress 203.0.113.1\n"),
    "64 open files": shell("ulimit -n 64"),
    "little address space": shell("ulimit -v 2000000"),
    "little memory in a control group": little_memory,
    "`SPARK_LOCAL_DIRS` that cannot be": variables(SPARK_LOCAL_DIRS="/proc/nowhere"),
    "SQL of other jobs in `spark-defaults.conf`": defaults(
        "spark.sql.caseSensitive true\nspark.sql.sources.default csv\nspark.sql.sources.partitionColumnTypeInference.enabled false\n"
        "spark.sql.legacy.timeParserPolicy LEGACY\nspark.sql.execution.arrow.maxRecordsPerBatch 1\nspark.sql.mapKeyDedupPolicy LAST_WIN\n"
        "spark.sql.sources.partitionOverwriteMode dynamic\nspark.sql.parquet.outputTimestampType INT96\n"
        "spark.sql.parquet.compression.codec gzip\nspark.sql.crossJoin.enabled false\n"
        "spark.sql.ansi.enforceReservedKeywords true\nspark.sql.ansi.doubleQuotedIdentifiers true\n"
    ),
    "Kryo with every class registered": defaults(
        "spark.serializer org.apache.spark.serializer.KryoSerializer\nspark.kryo.registrationRequired true\n"
    ),
    "Spark Connect in `spark-defaults.conf`": defaults("spark.api.mode connect\n"),
    "an address of another machine in `SPARK_LOCAL_IP`": variables(SPARK_LOCAL_IP="203.0.113.7"),
    "a host name that does not resolve": lambda place: (
        {},
        ["unshare", "--uts", "sh", "-c", 'hostname no-such-host.invalid && exec "$@"', "sh"],
    ),
    "a web interface at a port that is not allowed": defaults("spark.ui.enabled true\nspark.ui.port 1\n"),
    "`LC_ALL=C`": variables(LC_ALL="C", LANG="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
    "`TMPDIR` that is not there": variables(TMPDIR="/nowhere"),
    "a `spark-defaults.conf` in Latin-1": latin,
    "standard output closed": shell("exec 1>&-"),
    "a plug-in that is not there": defaults("spark.plugins com.nowhere.Plugin\n"),
    "a listener that is not there": defaults("spark.extraListeners com.nowhere.Listener\n"),
    "a number that is none in `spark-defaults.conf`": defaults("spark.sql.shuffle.partitions many\n"),
    "a port that only the system may use in `spark-defaults.conf`": defaults("spark.driver.port 22\nspark.ui.port 4040\n"),
    "more cores for a task than there are": defaults("spark.task.cpus 2\n"),
    "memory outside of the heap, and no size of it": defaults("spark.memory.offHeap.enabled true\n"),
    "a codec that is not there": defaults("spark.io.compression.codec lzo\n"),
    "a buffer larger than it may be, said at the bottom of an error": defaults(
        "spark.serializer org.apache.spark.serializer.KryoSerializer\nspark.kryoserializer.buffer.max 5g\n"
    ),
    "no core for an executor": defaults("spark.executor.cores 0\n"),
    "results larger than they may be": defaults("spark.driver.maxResultSize 1k\n"),
    "files that may have 8 kB": shell("ulimit -f 8"),
    "packages that cannot be fetched": defaults("spark.jars.packages io.delta:nowhere_2.13:4.0.0\n"),
    "an option that Spark does not know in `PYSPARK_SUBMIT_ARGS`": variables(PYSPARK_SUBMIT_ARGS="--bogus x pyspark-shell"),
    "a size that is none in `spark-defaults.conf`": defaults("spark.driver.memory 1x\n"),
    "`JAVA_HOME` that is not there": variables(JAVA_HOME="/nowhere"),
    "`JAVA_HOME` that is Java itself, and not its directory": variables(JAVA_HOME="/usr/bin/java"),
    "Java 8": a_java("echo 'openjdk version \"1.8.0_402\"' >&2"),
    "a Java that does not answer": a_java("exec sleep 1000"),
    "a Java that the system ends": a_java("kill -SEGV $$"),
    "a heap of 64 MB in `_JAVA_OPTIONS`": variables(_JAVA_OPTIONS="-Xmx64m"),
    "100 MB in `spark-defaults.conf`": defaults("spark.driver.memory 100m\n"),
    "an event log, and no directory for it": defaults("spark.eventLog.enabled true\n"),
    "Delta Lake's catalog, and not its packages": defaults(
        "spark.sql.extensions io.delta.sql.DeltaSparkSessionExtension\n"
        "spark.sql.catalog.spark_catalog org.apache.spark.sql.delta.catalog.DeltaCatalog\n"
    ),
    "a `spark-env.sh` that fails": a_script("exit 3\n"),
    "a `spark-env.sh` with another machine's Java": a_script("export JAVA_HOME=/nowhere\n"),
    "a `spark-env.sh` with another machine's address, which prints": a_script(
        "echo Welcome\nexport SPARK_LOCAL_IP=203.0.113.7 HADOOP_CONF_DIR=/nowhere\n"
    ),
    "Hive as the catalog, and its warehouse on HDFS": defaults(
        "spark.sql.catalogImplementation hive\nspark.sql.warehouse.dir hdfs://nowhere.invalid/warehouse\n"
    ),
    "authentication and encryption in `spark-defaults.conf`": defaults(
        "spark.authenticate true\nspark.network.crypto.enabled true\nspark.io.encryption.enabled true\n"
    ),
    "a cluster's master and allocation in `spark-defaults.conf`": defaults(
        "spark.master spark://nowhere:7077\nspark.dynamicAllocation.enabled true\nspark.shuffle.service.enabled true\n"
    ),
    "Java 11": a_java("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2"),
    "a Java without one of its libraries": a_java("echo 'java: error while loading shared libraries: libjli.so' >&2; exit 127"),
    "no Java": variables(PATH="/nowhere", JAVA_HOME=""),
    "a Java without one of its modules, as some packages have it": a_java(
        'case "$*" in -version) echo \'openjdk version "21.0.8" LTS\' >&2;; *) echo "Error occurred during initialization of boot layer"; '
        'echo "java.lang.module.FindException: Module jdk.incubator.vector not found"; exit 1;; esac'
    ),
    "an option that Java does not know in `JDK_JAVA_OPTIONS`": variables(JDK_JAVA_OPTIONS="-Xbogus"),
    "an agent that is not there in `JAVA_TOOL_OPTIONS`": variables(JAVA_TOOL_OPTIONS="-javaagent:/nowhere/agent.jar"),
    "an older pyspark in `PYTHONPATH`": older_pyspark,
}


def pattern_of(answer: str) -> str:
    text = re.sub("DIR|FILE|REASON", ".+", re.escape(answer))
    return re.sub(r"(?<![A-Za-z])N(?![A-Za-z])", r"[0-9.]+", text)


def test_the_table_and_these_situations_are_the_same():
    assert rows().keys() == SITUATIONS.keys()


@pytest.fixture
def no_groups_left() -> Iterator[None]:
    """A control group outlives the processes that were in it."""
    yield
    for group in Path("/sys/fs/cgroup").glob("**/shadowrelay-test-*"):
        with suppress(OSError):
            group.rmdir()


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory of this test to which others have access: pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp is another one in some situations
        Path(name).chmod(0o755)
        yield Path(name)


def needs_a_jvm(situation: str) -> bool:
    return rows().get(situation, (0, ""))[0] < 2


@pytest.mark.timeout(SECONDS_MAX + 10)
@pytest.mark.parametrize(
    "situation", [pytest.param(name, marks=pytest.mark.heavy if needs_a_jvm(name) else pytest.mark.slow) for name in SITUATIONS]
)
def test_a_situation_of_sparks_environment_gets_a_report_or_the_answer_of_the_table(top, no_groups_left, situation):
    try:
        check_spark()
    except SparkUnavailable as exc:
        pytest.skip(str(exc))
    for name in ("logs/mx1", "place"):
        (top / name).mkdir(parents=True)
    (top / "logs/mx1/MSGTRK1.LOG").write_bytes(a_log([an_event("m1")]))
    values, before = SITUATIONS[situation](top / "place")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "JAVA_TOOL"))} | values
    if before and not is_possible(before, environment):
        pytest.skip(f"{before[0]} cannot be used here")
    output = top / "place" / "output"

    words = ["sla", "report", "--logs", str(top / "logs"), "--output", str(output), "--master", "local[1]"]
    done = subprocess.run(
        [*before, sys.executable, "-m", "shadowrelay", *words], capture_output=True, text=True, check=False, timeout=SECONDS_MAX,
        env=environment,
    )  # fmt: skip

    code, answer = rows()[situation]
    said = [line for line in done.stderr.splitlines() if not line.startswith(PROGRESS)]
    assert code == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    assert not re.search(r"^\s+at ", done.stderr, re.MULTILINE)
    if code == 0:
        assert (output / answer).exists()
    else:
        assert 1 == len(said), said
        assert re.fullmatch(pattern_of(answer), said[0])


def is_possible(before: list[str], environment: dict[str, str]) -> bool:
    """Whether this user may, and the stranger may read what it needs: tried with another directory, which the words may delete."""
    if "rmdir" in before[2] if len(before) > 2 else False:
        return True
    if shutil.which(before[0]) is None:
        return False
    words = ["-c", "import shadowrelay.cli.sla"] if before[0] == "setpriv" else ["-c", ""]
    return 0 == subprocess.run([*before, sys.executable, *words], capture_output=True, check=False, env=environment).returncode
