"""Creates the job's Spark session, and checks its prerequisites. docs/sla.md "Make a report".

Missing software is reported before a JVM starts, because Spark's own answer to a missing or old Java is a page of stack trace.
"""

import importlib.util
import locale
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.sla.class_data import QUIET, cache_directory, usable_archive
from shadowrelay.sla.details import DETAILS
from shadowrelay.sla.surroundings import (
    JAVA_OPTIONS,
    LOOPBACK,
    SHELL,
    STRANGE,
    TEMPORARY,
    Others,
    SparkUnavailable,
    java_options,
    java_said,
    limits_said,
    memory_allowed,
    others,
    place_for_files,
    place_for_libraries,
    require_local_directories,
    require_loopback,
    require_memory,
    require_open_files,
    require_own_address,
    require_spark_home,
    require_user,
    script_said,
    settings_blamed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAVA_VERSION_MIN = 17  # required by Spark 4
SPARK_VERSION_MIN = 4
CAUSES_MAX = 20  # of an exception of Java, each of which has the next one
JAVA_ANSWERS_WITHIN_SECONDS = 30
JVM_ENDS_WITHIN_SECONDS = 1.0  # once its connections are closed
PARTITIONS_PER_CORE = 4  # of a shuffle in local mode: small enough for the memory, few enough to be fast
LISTERS_PER_CORE = 4  # Spark's default is a task per path: 21 seconds for 3,000 logs in a stream on two cores, 4 with eight tasks
MEMORY_MB = 4096  # of the JVM, unless somebody says something else, or there is less
MEMORY_SHARE = 0.6  # of what this process may use: the rest is for Python, and for what a JVM has besides its heap
MEMORY_MIN_MB = 512  # Spark refuses less than 450 MiB, and some collectors report less than the heap has
UTF8_LOCALE = "C.UTF-8"
# For little input, of which planning and compiling take more time than computing. The first flag alone makes the code cache too small for
# Spark, which then fails unpredictably. The heap has the size at once that plans need, and so has the room for classes: else the JVM
# collects garbage fifty times, and each time that it has loaded some thousand classes more. G1, the default collector,
# works beside the program all the time; the pauses of the others cost less.
ONE_COMPILER = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-XX:MetaspaceSize=256m")
QUICK_JVM = (*ONE_COMPILER, "-XX:+UseSerialGC", "-XX:NewRatio=1")
MEDIUM_JVM = (*ONE_COMPILER, "-XX:+UseParallelGC")
# For larger input both compilers are worth their time; the second begins with what runs four times as often as it would by default, because
# it takes a core from the tasks.
LARGE_JVM = (
    "-XX:+UseParallelGC", "-XX:Tier4InvocationThreshold=20000", "-XX:Tier4MinInvocationThreshold=2400", "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=160000",
)  # fmt: skip
QUICK_HEAP_MB = 1024
LISTS_MAX = 100_000  # keys whose lists an aggregate holds in memory before it sorts; Spark's default of 128 suits any input
IS_QUICK = "spark.shadowrelay.isQuick"  # our own
IS_BRIEF = "spark.shadowrelay.isBrief"
NEEDED = {
    "spark.submit.deployMode": "client",
    "spark.api.mode": "classic",  # with Spark Connect there is no JVM to speak to
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.enforceReservedKeywords": "false",  # they are names of columns here
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",  # else what a damaged or missing file has is left out without a word
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.icu.caseMappings.enabled": "false",  # those of ICU take two seconds to begin with; Java's have the same result for addresses
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # few other programs read INT96, the default
}
"""Ours whatever others have set: the figures and tables would differ, or there would be no driver here."""
QUICK_SQL = {
    IS_QUICK: "true",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",  # it plans again after each stage, and makes each stage a job
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # a broadcast is a job of its own; so is one that is asked for
    "spark.sql.optimizer.disableHints": "true",
    "spark.sql.maxSinglePartitionBytes": str(2**63 - 1),  # a join of two tables with one partition each: Spark takes them to be very large
}
NO_RETRIES = dict.fromkeys(
    (
        f"spark.sql.shuffle.orderIndependentChecksum.{name}"
        for name in ("enabled", "enableFullRetryOnMismatch", "enableQueryLevelRollbackOnMismatch")
    ),
    "false",
)
"""On one machine no task is tried again, so that nobody asks whether the next try had the same rows: by a hash of each row of a shuffle."""
LOOKED_UP = ("org.apache.spark.api.python.PythonUtils", "org.apache.spark.sql.api.python.PythonSQLUtils")
"""Classes that PySpark looks up by short names for each column: without these imports the JVM looks for each in several packages, and for
that in all jars."""
REMEDY = "install Java 17 or later (Debian: apt-get install default-jre-headless), or set JAVA_HOME to one"
REMEDIES = {  # by what Spark says; in `failure_of`
    "OutOfMemoryError": "; give more with --driver-memory",
    "No space left on device": "; make room in output and warehouse, in /tmp, and in SPARK_LOCAL_DIRS if set",
    "getSubject is not supported": ": this Java is too new for this Spark: set JAVA_HOME to Java 17 or 21, or update pyspark",
}
LACKS_PARTS = "java.lang.module.FindException"
"""What a Java says that was made without some modules."""

_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')
_PYTHON_ERROR = re.compile(r"^((?!org\.|java\.|scala\.)[\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)
_LOCAL = re.compile(r"local(?:\[([1-9][0-9]*|\*)(?:, *[0-9]+)?\])?")
_ELSEWHERE = re.compile(r"yarn|k8s://.+|spark://[^/:,]+:[0-9]+(?:,[^/:,]+:[0-9]+)*|local-cluster\[.+\]")
_SIZE = re.compile(r"([1-9][0-9]*)([mgt])", re.IGNORECASE)


def require_settings(master: str, driver_memory: str | None) -> None:
    """Raises: ConfigurationError for values that Spark would answer with a page of stack trace."""
    if not (_LOCAL.fullmatch(master) or _ELSEWHERE.fullmatch(master)):
        raise ConfigurationError(f"--master {master}: a master is local[*], local[4], spark://HOST:PORT, yarn or k8s://…")
    if driver_memory is None:
        return
    if _SIZE.fullmatch(driver_memory) is None:
        raise ConfigurationError(f"--driver-memory {driver_memory}: a size is a number with m or g, as 800m or 4g")
    if _megabytes(driver_memory) < MEMORY_MIN_MB:
        raise ConfigurationError(f"--driver-memory {driver_memory}: Spark needs {MEMORY_MIN_MB}m or more")


def _megabytes(size: str) -> int:
    """Shapes: `size` as `require_settings` wants it."""
    return int(size[:-1]) << {"m": 0, "g": 10, "t": 20}[size[-1].lower()]


def default_memory(allowed: int | None) -> str:
    """Of the JVM, if nobody says. Shapes: `allowed` as `memory_allowed`."""
    megabytes = MEMORY_MB if allowed is None else min(MEMORY_MB, int(allowed * MEMORY_SHARE) >> 20)
    return f"{max(MEMORY_MIN_MB, megabytes)}m"


def check_packages() -> None:
    """Raises: SparkUnavailable if pyspark or pyarrow is missing."""
    for name in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            where = "which is not on PyPI: pip install '.[spark]' in a checkout, or the wheel's file with [spark]"
            raise SparkUnavailable(f"{name} is missing: install the extra shadowrelay[spark], {where}")


def check_spark() -> None:
    """Raises: SparkUnavailable if pyspark, pyarrow or Java is missing, does not fit, or this machine or its user cannot run Spark."""
    check_packages()
    import pyspark

    if int(pyspark.__version__.split(".")[0]) < SPARK_VERSION_MIN:
        place = os.path.dirname(pyspark.__file__)
        raise SparkUnavailable(
            f"{place} is pyspark {pyspark.__version__}, and {SPARK_VERSION_MIN}.0 or later is needed: update it, or change PYTHONPATH"
        )
    require_spark_home(spark_home(), pyspark.__version__)
    java = find_java()
    if java is None:
        raise SparkUnavailable(f"Java is missing: {REMEDY}")
    version, said = _asked(java)
    if version is None:
        why = "; ".join(filter(None, (f"it says: {said}" if said else REMEDY, limits_said(), _home_said())))
        raise SparkUnavailable(f"{java} does not run: {why}")
    if version < JAVA_VERSION_MIN:
        why = "; ".join(filter(None, (REMEDY, _home_said())))
        raise SparkUnavailable(f"{java} is Java {version}, which is too old for Spark: {why}")
    require_user()
    require_loopback()
    require_open_files()


def _home_said() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"JAVA_HOME is set to {home}" if home else ""


def find_java() -> str | None:
    """The Java that Spark's scripts use: that of JAVA_HOME, else the first on the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def java_version(java: str) -> int | None:
    """8, 17, 21 … or None if it cannot be run or prints no version."""
    return _asked(java)[0]


def _asked(java: str) -> tuple[int | None, str]:
    """Its version, or what it says instead."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=JAVA_ANSWERS_WITHIN_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"nothing in {JAVA_ANSWERS_WITHIN_SECONDS} seconds"
    except OSError:
        return None, ""
    said = done.stderr + done.stdout
    found = _VERSION.search("\n".join(line for line in said.splitlines() if not line.startswith(("Picked up", "NOTE: Picked up"))))
    if found:
        return int(found[1]), ""
    return None, java_said(said) or (f"nothing, and signal {-done.returncode} ended it" if done.returncode < 0 else "")


def spark_session(
    master: str = "local[*]",
    *,
    driver_memory: str | None = None,
    shuffle_partitions: int | None = None,
    options: Mapping[str, str] | None = None,
    is_small: bool = False,
    is_medium: bool = False,
    recording: Path | None = None,
) -> "SparkSession":
    """The session of this process, created if there is none. The first call sets its memory and master.

    Settings of spark-defaults.conf and of PYSPARK_SUBMIT_ARGS override ours but for NEEDED, and `options` override all.
    Shapes: `driver_memory` None: what those say, else 4 GB, or less where there is less. `shuffle_partitions` None: four per core in
    local mode, Spark's default on a cluster.
    `is_small`: for one report on at most some hundred thousand events, for which compiling takes most of the time: the JVM then
    compiles less, and Spark interprets its plans instead of generating Java, one partition each. `is_medium`: for one report on at most
    some million events: only the JVM is another one.
    `recording`: the file into which the JVM writes a class-data archive when it ends.
    Raises: SparkUnavailable, see `check_spark`.
    """
    check_spark()
    said = others(os.environ, spark_home())
    require_local_directories(os.environ, said.settings)
    require_own_address(said.settings)
    if driver_memory is None:
        require_memory(said.settings)
    memory = driver_memory or said.settings.get("spark.driver.memory") or default_memory(memory_allowed())
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # it asks the JVM for the place in our code of each column
        # a small map before the large one, for few groups: here each message is a group, so that most rows are looked up in vain first
        "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    }
    if is_on_this_machine(master):
        settings |= {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
        settings["spark.hadoop.fs.defaultFS"] = "file:///"  # a path without a scheme is on this disk, whatever HADOOP_CONF_DIR says
        settings |= NO_RETRIES
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # otherwise it looks up the host name, which may not resolve
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers' Python; otherwise the first on the path
    cores = local_cores(master)
    if cores:
        settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = str(cores * LISTERS_PER_CORE)
    partitions = shuffle_partitions or (cores * PARTITIONS_PER_CORE if cores else None)
    if partitions:
        settings["spark.sql.shuffle.partitions"] = str(partitions)
    if is_small or is_medium:
        settings[IS_BRIEF] = "true"
        settings["spark.sql.objectHashAggregate.sortBased.fallbackThreshold"] = str(LISTS_MAX)
    if is_small:
        settings |= QUICK_SQL
    settings = {key: value for key, value in settings.items() if key not in said.settings}
    settings |= {"spark.driver.memory": memory} | NEEDED | dict(options or {})
    wanted = [f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"]
    tuned = list(LARGE_JVM)
    if is_small or is_medium:
        tuned = list(QUICK_JVM if is_small else MEDIUM_JVM)
        tuned += [f"-Xms{min(_megabytes(memory), QUICK_HEAP_MB)}m"] if _SIZE.fullmatch(memory) else []
    archive = None if recording else usable_archive(find_java() or "", spark_home())
    attempts = [[*tuned, *_class_data(archive, recording)], tuned, []] if archive else [[*tuned, *_class_data(None, recording)], []]
    spark = _started(master, settings, said, [[*wanted, *attempt] for attempt in attempts], archive)
    if is_small:  # no call to the JVM for each column that is no longer used: there are thousands, and the JVM ends soon
        spark.sparkContext._gateway.gateway_property.enable_memory_management = False  # type: ignore[union-attr]
    return spark


def _started(master: str, settings: Mapping[str, str], said: Others, attempts: list[list[str]], archive: Path | None) -> "SparkSession":
    """Raises: SparkUnavailable with what Java says, if it starts with none of these options."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    with utf8_locale() as is_ours, _undisturbed(said.arguments):
        builder = SparkSession.builder.master(master).appName("shadowrelay sla")
        if is_ours and is_on_this_machine(master):
            builder = builder.config("spark.executorEnv.LC_ALL", UTF8_LOCALE)
        for key, value in settings.items():
            builder = builder.config(key, value)
        if SparkContext._gateway is not None:  # a JVM of an earlier session of this process
            return builder.getOrCreate()
        for number, options in enumerate(attempts):
            try:
                java = _java(java_options(options, said.java), said, is_on_this_machine(master))
                _launch({**settings, "spark.master": master, JAVA_OPTIONS: java})
                break
            except PySparkRuntimeError as exc:
                if exc.getCondition() != "JAVA_GATEWAY_EXITED":
                    raise
                if number == len(attempts) - 1:
                    told = java_said(DETAILS.said()) or "it says nothing"
                    script = script_said(os.environ, spark_home())
                    whole = f"this Java lacks parts that Spark needs: {REMEDY}; {_home_said()}" if LACKS_PARTS in told else ""
                    reason = "; ".join(filter(None, (told, whole.rstrip("; "), limits_said(), to_blame(told), script)))
                    raise SparkUnavailable(f"Java does not start Spark: {reason}{DETAILS.place()}") from exc
        if archive is not None and number == 1:
            archive.unlink(missing_ok=True)  # it is damaged: the JVM checks little of it
        return builder.config(JAVA_OPTIONS, java).getOrCreate()


def _java(options: list[str], said: Others, is_local: bool) -> str:
    """Ours, then theirs: of two of a name the last one counts."""
    place = next((word.partition("=")[2] for text in said.java for word in text.split() if word.startswith("-Djava.io.tmpdir=")), "")
    cache = cache_directory() or ""
    if not place:
        place = place_for_files(cache)
        options = options + ([f"-Djava.io.tmpdir={place}"] if place != TEMPORARY else [])
    libraries = place_for_libraries(place, cache)
    if libraries is not None:
        options = [f"-D{name}={libraries}" for name in ("org.xerial.snappy.tempdir", "ZstdTempFolder", "io.netty.native.workdir")] + options
        os.environ.setdefault("ROCKSDB_SHAREDLIB_DIR", libraries)
    last = ["-Djava.net.preferIPv6Addresses=false"] if is_local else []  # Python looks for the JVM at 127.0.0.1
    return " ".join([*options, *filter(None, [said.settings.get(JAVA_OPTIONS)]), *last])


def _launch(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process. What it prints goes to a file: most is of no use to a person who wants a report."""
    from py4j.java_gateway import java_import  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
    output = DETAILS.output()
    try:
        streams = None if output is None else {"stdout": output, "stderr": output}
        gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
    except ConnectionRefusedError:
        raise SparkUnavailable("PYSPARK_GATEWAY_PORT is set, but no JVM answers there: unset it") from None
    finally:
        if output is not None:
            output.close()
    for name in LOOKED_UP:
        java_import(gateway.jvm, name)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


@contextmanager
def _undisturbed(arguments: Sequence[str]) -> Iterator[None]:
    """While a JVM starts, with these arguments for Spark. What was set for others is away for good: pyspark asks for it later, too."""
    for name in STRANGE:
        os.environ.pop(name, None)
    changed: dict[str, str | None] = {"PYSPARK_SUBMIT_ARGS": shlex.join([*arguments, SHELL]), "SPARK_HOME": spark_home()}
    before = {name: os.environ.get(name) for name in changed}
    _set(changed)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _class_data(archive: Path | None, recording: Path | None) -> list[str]:
    if recording:
        return [f'"-XX:ArchiveClassesAtExit={recording}"', QUIET]
    return [f'"-XX:SharedArchiveFile={archive}"', QUIET] if archive else []


def spark_home() -> str:
    """The directory whose jars and scripts Spark is started from."""
    import pyspark

    return os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)


def is_quick(spark: "SparkSession") -> bool:
    """Whether the session is one for little input."""
    return spark.conf.get(IS_QUICK, "false") == "true"


def is_brief(spark: "SparkSession") -> bool:
    """Whether the session was started for one report on this machine."""
    return spark.conf.get(IS_BRIEF, "false") == "true"


@contextmanager
def quick_plans(spark: "SparkSession") -> Iterator[None]:
    """For queries on little of a larger input, meanwhile as if the session was one for little input. Nothing else may use it then."""
    if is_quick(spark):
        yield
        return
    before = {key: spark.conf.get(key, None) for key in QUICK_SQL}
    for key, value in QUICK_SQL.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def undivided(frame: "DataFrame") -> "DataFrame":
    """In one partition, if the session is one for little input: Spark then plans no exchanges, and each query is one task."""
    return frame.coalesce(1) if is_quick(frame.sparkSession) else frame


@contextmanager
def utf8_locale() -> Iterator[bool]:
    """While a JVM starts: it decodes file names by the locale, and without UTF-8 takes files with non-ASCII names for missing.

    Yields whether the locale had to be set. The JVM passes it to its workers; in this process it is restored afterwards.
    """
    if locale.nl_langinfo(locale.CODESET).upper() in ("UTF-8", "UTF8"):  # the locale that Python started with
        yield False
        return
    before = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = UTF8_LOCALE
    try:
        yield True
    finally:
        if before is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = before


def failure_of(exc: Exception) -> str | None:
    """Spark's error message in one line, without its stack; None if it is not an error of Spark."""
    try:
        from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException
    except ImportError:
        return None
    if isinstance(exc, Py4JNetworkError):
        return jvm_end() or "its JVM has ended; if the system killed it for its memory, give less with --driver-memory"
    if isinstance(exc, Py4JJavaError):
        return _with_remedy("; ".join(filter(None, (_gist(str(exc.java_exception.toString())), _cause_of(exc.java_exception)))))
    return _with_remedy(_gist(str(exc))) if isinstance(exc, PySparkException) else None


def to_blame(failure: str) -> str:
    """Settings of others that a failure is about, by what it says, or by what was printed at length; empty if none."""
    try:
        settings = others(os.environ, spark_home()).settings
    except SparkUnavailable:
        return ""
    return settings_blamed(failure, {**os.environ, **settings}, DETAILS.said())


def _cause_of(exception: Any) -> str:
    """What the system said at the bottom of it, as that a disk is full; empty if that is all there is, or is said already."""
    bottom = exception
    for _ in range(CAUSES_MAX):
        if (deeper := bottom.getCause()) is None:
            break
        bottom = deeper
    said = str(bottom.toString()).partition("\n")[0]
    is_said = bottom is exception or said.partition(": ")[2] in str(exception.toString())
    return said if said.startswith("java.io.") and not is_said else ""


def jvm_end() -> str | None:
    """How the JVM of this process has ended, in words; None if it runs, or there is none."""
    try:
        from pyspark import SparkContext
    except ImportError:
        return None
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    try:
        status = process.wait(JVM_ENDS_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    if status == -signal.SIGKILL:
        allowed = memory_allowed()
        there = f" ({allowed >> 20} MB here)" if allowed else ""
        return f"the system killed its JVM, as it does when memory is short{there}: give less with --driver-memory, or more to this process"
    said = "; ".join(filter(None, (java_said(DETAILS.said().partition("Traceback (most recent call last):")[0]), limits_said())))
    return f"its JVM has ended with status {status}{f': {said}' if said else ''}"


def _gist(text: str) -> str:
    """The first line; if a worker's Python failed, the last line of its traceback, which has the reason."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    _, traceback, rest = text.partition("Traceback (most recent call last):")
    reasons = _PYTHON_ERROR.findall(rest) if traceback else []
    return f"{first} {reasons[-1]}" if reasons else first


def _with_remedy(text: str) -> str:
    return f"{text}{next((remedy for sign, remedy in REMEDIES.items() if sign in text), '')}"


def is_on_this_machine(master: str) -> bool:
    """Whether no other machine needs to reach the driver."""
    return _LOCAL.fullmatch(master) is not None or urlsplit(master).hostname in {"localhost", LOOPBACK}


def local_cores(master: str) -> int | None:
    """The number of cores that this master uses; None if it is not `local…`."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or "1")
