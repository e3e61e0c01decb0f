"""What the machine and its environment say about Spark: settings that others made, and what Spark would not survive. docs/spark.md.

Settings of others win over ours, but for what the figures need. What Spark cannot work with is said before a JVM starts, in one line with
its remedy: its own answer would be a page of stack trace, or a wrong one.
"""

import os
import pwd
import re
import resource
import shlex
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.setting_texts import shown_options

LOOPBACK = "127.0.0.1"
LOOPBACK_ANSWERS_WITHIN_SECONDS = 5.0
OPEN_FILES_MIN = 512  # Spark's JVM has some 350 files open, most of them its own jars
OPEN_FILES_WANTED = 65_536
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
OTHER_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
VARIABLES_OF_JAVA = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
TEMPORARY = "/tmp"  # where Java's temporary files are
PLACES = ("/var/tmp", "/dev/shm")  # for them and for native libraries, where that directory cannot be written, or forbids them
SHELL = "pyspark-shell"
# of PYSPARK_SUBMIT_ARGS: what the options of the command say, or what only makes sense for another program
_OURS_TO_SAY = frozenset({"--master", "--deploy-mode", "--name", "--class", "--remote"})
_ALONE = frozenset({"--verbose", "-v", "--supervise", "--help", "-h", "--version", "--usage-error"})
# set by other programs for themselves; Spark would connect to what is not there, or start another Python to find itself
STRANGE = (
    "SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_PREFER_IPV6", "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_DRIVER_PYTHON_OPTS",
)  # fmt: skip


class SparkUnavailable(ConfigurationError):
    """The job cannot run on this machine, or not like this; the text says what to do. Nothing has started."""


# ---- settings of others


class Others(NamedTuple):
    """Settings that were made for Spark elsewhere. `settings`: of spark-defaults.conf and PYSPARK_SUBMIT_ARGS, without `arguments`:
    what remains of PYSPARK_SUBMIT_ARGS. `java`: texts with options for Java."""

    settings: Mapping[str, str]
    arguments: tuple[str, ...]
    java: tuple[str, ...]


def others(environment: Mapping[str, str], spark_home: str) -> Others:
    """Shapes: `spark_home` as `session.spark_home`. Raises: SparkUnavailable for PYSPARK_SUBMIT_ARGS that are no arguments."""
    try:
        words = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError as exc:
        raise SparkUnavailable(f"PYSPARK_SUBMIT_ARGS: {exc}: correct it, or unset it") from None
    said, arguments, file = _submitted(words)
    defaults = file or os.path.join(environment.get("SPARK_CONF_DIR") or os.path.join(spark_home, "conf"), "spark-defaults.conf")
    try:
        text = Path(defaults).read_text(encoding="utf-8", errors="replace")
    except OSError:  # there is none; or Spark says why it cannot be read
        text = ""
    settings = parse_defaults(text) | said
    given = [environment.get(name, "") for name in VARIABLES_OF_JAVA] + [
        settings.get(JAVA_OPTIONS, ""),
        settings.get(OTHER_JAVA_OPTIONS, ""),
    ]
    return Others(settings, tuple(arguments), tuple(filter(None, given)))


def _submitted(words: Sequence[str]) -> tuple[dict[str, str], list[str], str | None]:
    """Settings, the other arguments, and the file that stands for spark-defaults.conf. Left over from another program, they may have
    no end or another one, and a master."""
    settings: dict[str, str] = {}
    arguments: list[str] = []
    file = None
    position = 0
    while position < len(words):
        name, has_value, value = words[position].partition("=")
        position += 1
        if not name.startswith("-"):
            break  # the program; what follows is for it
        if name in _ALONE:
            continue
        if not has_value:
            value = words[position] if position < len(words) else ""
            position += 1
        match name:
            case "--conf" | "-c":
                key, _, text = value.partition("=")
                settings[key.strip()] = text.strip()
            case "--driver-java-options":
                settings[JAVA_OPTIONS] = value
            case "--driver-memory":
                settings["spark.driver.memory"] = value
            case _:
                file = value if name == "--properties-file" else file
                if name not in _OURS_TO_SAY:
                    arguments += [name, value]
    return settings, arguments, file


_DEFAULT = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[\s=:]\s*(.*?)\s*$")


def parse_defaults(text: str) -> dict[str, str]:
    """The settings of a spark-defaults.conf: a file of Java's properties."""
    joined = re.sub(r"\\\r?\n[ \t]*", "", text)
    found = (_DEFAULT.match(line) for line in joined.splitlines() if line.strip()[:1] not in ("#", "!"))
    return {match[1]: match[2] for match in found if match}


_COLLECTOR = re.compile(r"-XX:[+-]Use\w*GC$")
_NAMED = re.compile(r"-XX:[+-]?([A-Za-z0-9]+)|-D([^=]+)|(-Xm[sx])")


def java_options(ours: Iterable[str], theirs: Iterable[str]) -> list[str]:
    """Ours without those that others decide: two collectors, or a heap that begins larger than it may be, and no JVM starts."""
    words = [word.strip("'\"") for text in theirs for word in text.split()]
    names = {_name(word) for word in words}
    has_collector = any(_COLLECTOR.match(word) for word in words)
    has_heap = any(word.startswith(("-Xmx", "-Xms", "-XX:MaxHeapSize", "-XX:InitialHeapSize")) or "RAMPercentage" in word for word in words)
    kept = []
    for option in ours:
        is_theirs = _name(option) in names
        is_of_collector = _COLLECTOR.match(option) is not None or option.startswith("-XX:NewRatio")
        if not (is_theirs or (has_collector and is_of_collector) or (has_heap and option.startswith("-Xms"))):
            kept.append(option)
    return kept


def _name(option: str) -> str:
    found = _NAMED.match(option)
    return option if found is None else next(filter(None, found.groups()))


# ---- what Spark would not survive


def require_spark_home(spark_home: str, version: str) -> None:
    """Raises: SparkUnavailable if it is not the Spark of this pyspark. Shapes: `version` of pyspark."""
    jars = Path(spark_home) / "jars"
    found = sorted(jars.glob("spark-core_*.jar"))
    if not found or not (Path(spark_home) / "bin" / "spark-submit").exists():
        raise SparkUnavailable(f"SPARK_HOME={spark_home}: no Spark is there: unset it, or name the directory of Spark {version}")
    there = found[0].stem.rpartition("-")[2]
    if there.split(".")[:2] != version.split(".")[:2]:
        raise SparkUnavailable(
            f"SPARK_HOME={spark_home} is Spark {there}, and the package pyspark of this Python is {version}: unset SPARK_HOME, "
            f"or name a Spark {'.'.join(version.split('.')[:2])}"
        )


def require_user() -> None:
    """Raises: SparkUnavailable. Java has no name for a user who has none, and Hadoop, a part of Spark, takes none from elsewhere."""
    number = os.geteuid()
    try:
        pwd.getpwuid(number)
    except KeyError:
        raise SparkUnavailable(
            f"user {number} has no entry in /etc/passwd, and Spark needs its name: run this as a user of this machine, or add a line: "
            f"report:x:{number}:{os.getegid()}::/tmp:/bin/false"
        ) from None


def require_loopback() -> None:
    """Raises: SparkUnavailable if this process cannot reach itself, as Spark's JVM will want to."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), LOOPBACK_ANSWERS_WITHIN_SECONDS).close()
    except OSError as exc:
        raise SparkUnavailable(
            f"{LOOPBACK} cannot be reached ({exc.strerror or exc}), over which Python and Java talk: bring it up with: ip link set lo up"
        ) from None


def require_own_address(settings: Mapping[str, str]) -> None:
    """Raises: SparkUnavailable if the driver is to listen at an address that this machine does not have, as a setting that was made for
    another one says: Spark would try sixteen ports there."""
    name = "spark.driver.bindAddress"
    address = settings.get(name, "").strip("[]")
    if not address:
        return
    try:
        socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError as exc:
        reason = os.strerror(exc.errno) if exc.errno is not None and exc.errno > 0 else exc.strerror or exc  # Python says more
        raise SparkUnavailable(f"{name}={address} is no address of this machine ({reason}): take it away, or name one that is") from None


_SIZE = re.compile(r"([1-9][0-9]*)(?:([kmgtp])b?|b)?", re.IGNORECASE)
MEMORY_MIN = 450 << 20  # octets of heap with which Spark starts


def require_memory(settings: Mapping[str, str]) -> None:
    """Raises: SparkUnavailable for a size that Java would not take, or with which Spark does not start."""
    name = "spark.driver.memory"
    size = settings.get(name, "")
    if not size:
        return
    found = _SIZE.fullmatch(size)
    remedy = "correct it, as to 800m or 4g, or take it away"
    if found is None:
        raise SparkUnavailable(f"{name}={size} is no size: {remedy}")
    if int(found[1]) << {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}.get((found[2] or "").lower(), 0) < MEMORY_MIN:
        raise SparkUnavailable(f"{name}={size} is too little for Spark: {remedy}")


def require_open_files() -> None:
    """Raise the limit of this process as far as it may. Raises: SparkUnavailable if that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < OPEN_FILES_MIN:
        raise SparkUnavailable(f"this process may open {hard} files, and Spark needs {OPEN_FILES_MIN} and more: ulimit -n 4096")


def require_local_directories(environment: Mapping[str, str], settings: Mapping[str, str]) -> None:
    """Raises: SparkUnavailable if none of the directories for Spark's own files can be used; it would end in the middle."""
    name = "SPARK_LOCAL_DIRS" if environment.get("SPARK_LOCAL_DIRS") else "spark.local.dir"
    given = environment.get("SPARK_LOCAL_DIRS") or settings.get("spark.local.dir", "")
    wanted = [directory.strip() for directory in given.split(",") if directory.strip()]
    reasons = [_unwritable(directory) for directory in wanted]
    if wanted and all(reasons):
        raise SparkUnavailable(f"{name}={given}: cannot be written ({reasons[0]}): name a directory that can be, or unset it")


def _unwritable(directory: str) -> str | None:
    """Why nothing can be written there."""
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as exc:
        return exc.strerror or str(exc)


def place_for_files(cache: str) -> str:
    """Where Java may write its temporary files. Raises: SparkUnavailable if there is no such place."""
    for place in (TEMPORARY, cache, *PLACES):
        if os.path.isabs(place) and not set(place) & set("\"' ") and _unwritable(place) is None:
            return place
    raise SparkUnavailable(
        f"{TEMPORARY} cannot be written ({_unwritable(TEMPORARY)}), and nor can any other place: Spark needs one: name a directory with "
        "JAVA_TOOL_OPTIONS=-Djava.io.tmpdir=DIR"
    )


def place_for_libraries(directory: str, cache: str) -> str | None:
    """Where native libraries can be unpacked and mapped, if `directory`, where Java does it, forbids that (`noexec`); else None.

    Raises: SparkUnavailable if there is no such place.
    """
    if _may_execute(directory):
        return None
    for place in (cache, *PLACES):
        if _may_execute(place):
            return place
    raise SparkUnavailable(
        f"{directory} is mounted noexec, and so is every other place: Spark unpacks libraries of its own: name a directory with "
        "JAVA_TOOL_OPTIONS=-Djava.io.tmpdir=DIR"
    )


def _may_execute(directory: str) -> bool:
    if not os.path.isabs(directory) or set(directory) & set("\"' ") or _unwritable(directory) is not None:
        return False
    return not os.statvfs(directory).f_flag & os.ST_NOEXEC


_LIMITS = ("/sys/fs/cgroup{}/memory.max", "/sys/fs/cgroup/memory{}/memory.limit_in_bytes")


def memory_allowed() -> int | None:
    """Octets that this process and its JVM may use together: the least limit of its control groups, or the machine's memory."""
    found = []
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in [*lines, "0::/"]:
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers:
            continue
        parts = [part for part in group.split("/") if part]
        for depth in range(len(parts) + 1):
            above = "".join(f"/{part}" for part in parts[:depth])
            found += [limit for each in _LIMITS if (limit := _number(each.format(above))) is not None]
    with_machine = [*found, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    return min(with_machine, default=None)


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # `max`: no limit
        return None


# ---- what Java said

_NOISE = re.compile(
    r"Picked up |NOTE: Picked up |WARNING|Warning: |OpenJDK .* warning: (?:Option|Sharing|Using)|\s*at |\s*\.\.\. [0-9]+ more"
    r"|:: |\s*confs:|Ivy |#?\s*$|Error: A fatal exception|Error occurred during initialization|Error: Could not create the Java"
    r"|Using Spark's|Setting default log"
)
SAID_CHARACTERS_MAX = 300
NAMED_MIN = 6  # characters of a value: a shorter one stands in any text
CLASS_MISSING = "java.lang.ClassNotFoundException: "  # here a shorter one is quoted, too
_HOST_OF = re.compile(r"[a-z0-9+.-]+://(?:[^/@]*@)?([^/:?#]+)", re.IGNORECASE)


def java_said(text: str) -> str:
    """What a JVM that did not start has printed, in one line; empty if it was nothing."""
    lines = [line.strip().lstrip("# ") for line in text.splitlines() if not _NOISE.match(line)]
    thrown = [line for line in lines if line.startswith("Exception in thread ")]  # before it may stand what was done until then
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return "; ".join(dict.fromkeys([*(thrown[-1:] or lines[:2]), *causes[-1:]]))[:SAID_CHARACTERS_MAX]


_SIGNS = {"INVALID_DRIVER_MEMORY": (*VARIABLES_OF_JAVA, JAVA_OPTIONS), "/tmp/spark-events": ("spark.eventLog.enabled",)}
"""Settings, by what Spark says of which they are the reason without naming their value."""
_PORT_REFUSED = "startPort should be between"
_PORTS = range(1024, 65536)


def settings_blamed(failure: str, settings: Mapping[str, str], said: str = "") -> str:
    """Which of others' settings a failure is about, with their values and a remedy; empty if none: those that it names, else those of
    whose values it speaks, else those whose names it has in words.

    Shapes: `settings` with the variables of the environment; `said`: what was printed at length.
    """
    ours = {name: value for name, value in settings.items() if name.startswith("spark.")}
    texts = (failure, _complaints(said))
    found = next(filter(None, (_by_name(text, ours) for text in texts)), [])
    found += [name for sign, names in _SIGNS.items() if sign in failure + said for name in names if settings.get(name)]
    if _PORT_REFUSED in failure + said:
        found += [name for name, value in ours.items() if name.lower().endswith(".port") and not _is_port(value)]
    found = found or next(filter(None, (_by_value(text, ours) for text in texts)), []) or _by_words(failure, ours)
    shown = shown_options({name: settings[name] for name in found})
    remedy = "correct it, or take it away" if len(shown) == 1 else "correct them, or take them away"
    return f"{'; '.join(f'{name} is set to {value}' for name, value in shown.items())}: {remedy}" if shown else ""


def _complaints(said: str) -> str:
    """Without stacks, source code and warnings."""
    return "\n".join(line for line in said.splitlines() if line[:1].strip() and " WARN " not in line)


def _by_name(text: str, settings: Mapping[str, str]) -> list[str]:
    return [name for name in settings if re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", text)]


def _by_value(text: str, settings: Mapping[str, str]) -> list[str]:
    """Those that have a value, or a part of one, of which it speaks, as a class that is not there."""

    def is_named(value: str) -> bool:
        parts = [part.strip() for part in value.split(",")]
        parts += ["{}#{};{}".format(*words) for part in parts if len(words := part.split(":")) == 3]  # a package, as Ivy writes it
        parts += [found[1] for part in parts if (found := _HOST_OF.match(part))]
        is_quoted = any(len(part) >= NAMED_MIN and re.search(rf"(?<![\w.]){re.escape(part)}(?!\w)", text) for part in parts)
        return is_quoted or (value != "" and f"{CLASS_MISSING}{value}" in text.splitlines())

    return [name for name, value in settings.items() if is_named(value)]


def _by_words(text: str, settings: Mapping[str, str]) -> list[str]:
    """Those of whose names it has two words and all, or of four and more all but one: `cpus per task` of `spark.task.cpus`."""
    there = set(re.findall("[a-z]+", text.lower()))

    def is_meant(name: str) -> bool:
        words = [word.lower() for word in re.findall("[A-Z]?[a-z]+", name.removeprefix("spark."))]
        return len(words) > 1 and sum(word in there for word in words) >= len(words) - (len(words) > 3)

    return [name for name in settings if is_meant(name)]


def _is_port(value: str) -> bool:
    return value.isdecimal() and (int(value) == 0 or int(value) in _PORTS)


def script_said(environment: Mapping[str, str], spark_home: str) -> str:
    """The script that Spark runs before Java, which may set or end anything; empty if there is none."""
    script = os.path.join(environment.get("SPARK_CONF_DIR") or os.path.join(spark_home, "conf"), "spark-env.sh")
    return f"{script} is run before it" if os.path.exists(script) else ""


def limits_said() -> str:
    """What may be the reason if a JVM does not start: a limit that others have set."""
    said = []
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        said.append(f"this process may use {space >> 20} MB of address space, and Java needs 8 GB and more: ulimit -v unlimited")
    set_here = [name for name in VARIABLES_OF_JAVA if os.environ.get(name)]
    said += [f"{name} is set to {os.environ[name]}" for name in set_here]
    return "; ".join(said)
