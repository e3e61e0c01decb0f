"""Tries this checkout on distributions, in containers that begin with nothing: `make test-distributions`.
docs/setup.md "Where it runs".

    python -m tests.distributions.run                      everything; an hour or two on two cores
    python -m tests.distributions.run --output /var/tmp/x  and keep what pytest said, a file for each row, as it says it
    python -m tests.distributions.run --release trixie --only root --tests tests/unit,tests/smtp
    python -m tests.distributions.run --write              and put the table into the page

Needs a Docker engine. Base images that are missing are pulled, or where no registry is reached built from packages, by root and
debootstrap. One container runs at a time.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.distributions.image import base_image
from tests.tidy.house import ROOT

RELEASES = ("bookworm", "noble", "trixie", "forky")
TESTS = ("tests/unit", "tests/smtp", "tests/store", "tests/contract", "tests/admin", "tests/process")
PAGE = ROOT / "docs" / "setup.md"
BEGIN, END = "<!-- made by make test-distributions: begin -->", "<!-- end -->"
LABEL = "shadowrelay-try"
HOUR = 3600

# As README says: root needs nothing but make; another user must have found the packages there.
ROOT_IMAGE = """FROM {base}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends make >/dev/null
COPY . /checkout
WORKDIR /checkout
RUN make setup </dev/null
"""
USER_IMAGE = """FROM {base}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends make python3-venv procps >/dev/null && useradd --create-home try
COPY --chown=try . /checkout
RUN chown try /checkout
USER try
WORKDIR /checkout
RUN make setup </dev/null
"""
VERSIONS = (
    "import platform, sqlite3, ssl; print(platform.python_version(), sqlite3.sqlite_version, ssl.OPENSSL_VERSION.split()[1], sep=', ')"
)
TEST = ".venv/bin/python -m pytest -p no:cacheprovider -v --tb=short --show-capture=no --durations=25 {workers} {tests}"
WORKERS = "-n 5 --dist loadscope --no-loadscope-reorder"  # as `make test`: many tests wait
DEMO = ".venv/bin/shadowrelay demo"
TLS_IN_USE = "grep -q peer_authority shadowrelay/lab/cluster.py"


@dataclass(frozen=True)
class Surroundings:
    """How a container is run. Shapes: `options` of `docker run`; `image` is the stage."""

    title: str
    image: str
    options: tuple[str, ...] = ()
    has_demo: bool = True


# Docker's defaults have 64 MB of /dev/shm, no IPv6 on the bridge, and an overlay file system.
SURROUNDINGS = {
    "root": Surroundings("root; with Java", "root"),
    "user": Surroundings("an ordinary user; without Java", "user"),
    "sealed": Surroundings(
        "a user without a passwd entry or a home; all read-only but /tmp, which is noexec; with Java",
        "root",
        (
            "--user",
            "12345:0",
            "--read-only",
            "--tmpfs",
            "/tmp:rw,noexec,nosuid,mode=1777,size=2g",
            "--env",
            "HOME=/",
            "--workdir",
            "/checkout",
        ),
        has_demo=False,
    ),
}


@dataclass
class Outcome:
    """Of one release in one kind of surroundings."""

    release: str
    surroundings: Surroundings
    versions: str = ""
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0
    of: str = ""  # the commit, and the day

    @property
    def row(self) -> str:
        python, sqlite, openssl = (self.versions.split(", ") + ["?"] * 3)[:3]
        place = f"| {self.release} | {python} | {sqlite} | {openssl} | {self.surroundings.title} "
        return f"{place}| {'; '.join(self.lines)} | {self.seconds / 60:.0f} min | {self.of} |"


def docker(*words: str, seconds: float = HOUR, is_quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Its output goes on to this terminal's standard error, too, if it fails, unless that is expected."""
    done = subprocess.run(["nice", "docker", *words], capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode and not is_quiet:
        print(done.stdout[-12000:], done.stderr[-3000:], file=sys.stderr, flush=True)
    return done


def followed(output: Path, *words: str) -> tuple[int, str]:
    """A Docker command's exit code and all that it says, which is in the file while it is said."""
    with output.open("w", encoding="utf-8") as file:
        code = subprocess.run(["nice", "docker", *words], stdout=file, stderr=subprocess.STDOUT, timeout=2 * HOUR, check=False).returncode
    text = output.read_text(encoding="utf-8", errors="replace")
    if code:
        print(text[-12000:], file=sys.stderr, flush=True)
    return code, text


def checkout(to: Path) -> None:
    """The files that Git knows, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and name != ".dockerignore":
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)


def built(release: str, stage: str, source: Path) -> str:
    """The image of this stage; its name. Raises: SystemExit."""
    name = f"{LABEL}-{release}-{stage}"
    text = {"root": ROOT_IMAGE, "user": USER_IMAGE}[stage].format(base=base_image(release))
    (source / "Dockerfile.try").write_text(text)
    print(f"{release}: installing as {stage}, from nothing …", flush=True)
    if docker("build", "--file", str(source / "Dockerfile.try"), "--tag", name, str(source)).returncode:
        raise SystemExit(f"{release}: the installation as {stage} failed")
    return name


def commit_and_day() -> str:
    """What `checkout` takes, with `+` if files differ from the commit."""
    said = subprocess.run(["git", "describe", "--always", "--exclude=*", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=True)
    return f"{said.stdout.strip()}, {datetime.now(UTC):%Y-%m-%d}"


def tried(release: str, surroundings: Surroundings, image: str, tests: tuple[str, ...], of: str, output: Path) -> Outcome:
    outcome, began = Outcome(release, surroundings, of=of), time.monotonic()

    def inside(command: str) -> subprocess.CompletedProcess[str]:
        return docker("run", "--rm", *surroundings.options, image, "bash", "-c", command)

    outcome.versions = inside(f'.venv/bin/python -c "{VERSIONS}"').stdout.strip()
    if surroundings.has_demo:
        done = inside(f"{TLS_IN_USE} && {DEMO}")
        outcome.lines.append("demo: nothing lost" if done.returncode == 0 else "**demo failed**")
    command = TEST.format(workers=WORKERS, tests=" ".join(tests))
    code, text = followed(output, "run", "--rm", *surroundings.options, image, "bash", "-c", command)
    found = re.findall(r"^(?:=+ )?(\d+ (?:passed|failed|skipped|error).*?)(?: in [\d.]+s.*)?$", text, re.MULTILINE)
    said = found[-1] if found else f"no test ran ({code})"
    outcome.lines.append(said if code == 0 else f"**{said}**")
    if set(tests) != set(TESTS):
        outcome.lines.append(f"only {' '.join(tests)}")
    outcome.seconds = time.monotonic() - began
    print(outcome.row, flush=True)
    return outcome


def table(outcomes: list[Outcome]) -> str:
    head = "| release | Python | SQLite | OpenSSL | as | result | time | tried at |\n|---|---|---|---|---|---|---|---|"
    return "\n".join([head, *(outcome.row for outcome in outcomes)])


def written(outcomes: list[Outcome]) -> None:
    """Rows that were not tried this time stay."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    kept, _, after = rest.partition(END)
    rows = {key_of(row): row for row in kept.splitlines() if row.startswith("| ") and " | as | " not in row}
    rows |= {key_of(outcome.row): outcome.row for outcome in outcomes}
    lines = [*table([]).splitlines(), *(rows[key] for key in sorted(rows, key=order))]
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")


def key_of(row: str) -> tuple[str, str]:
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    return cells[0], cells[4]


def order(key: tuple[str, str]) -> tuple[int, int]:
    titles = [one.title for one in SURROUNDINGS.values()]
    return RELEASES.index(key[0]), titles.index(key[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", action="append", choices=RELEASES, help="once for each; else all")
    parser.add_argument("--only", action="append", choices=SURROUNDINGS, help="once for each; else all")
    parser.add_argument("--tests", default=",".join(TESTS), help="what pytest gets, with commas between")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--output", type=Path, help="a directory for what pytest said")
    asked = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as not_kept:
        source, of = Path(directory), commit_and_day()
        output = asked.output or Path(not_kept)
        output.mkdir(parents=True, exist_ok=True)
        checkout(source)
        for release in asked.release or RELEASES:
            for name in asked.only or SURROUNDINGS:
                image = built(release, SURROUNDINGS[name].image, source)
                outcomes.append(
                    tried(release, SURROUNDINGS[name], image, tuple(asked.tests.split(",")), of, output / f"{release}-{name}.txt")
                )
                if asked.write:
                    written(outcomes)
    print(table(outcomes))
    return 1 if any("**" in outcome.row for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
