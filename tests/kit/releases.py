"""The program of the last release, built from this repository's history, in a virtual environment of its own.

Its dependencies are those of this checkout: they have upper bounds, and the lock differs little. docs/operations.md "Upgrade".
"""

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tidy.house import ROOT

LAST_RELEASE = "b89032a6dfca0b8ec4f2e8965c1ee986af2298c5"  # the one place that says which it is: change it with each release
PLACE = ROOT / "build" / "releases"
SERVE_RELEASE = ("-P", "-m", "shadowrelay", "serve")  # -P: not what is in the present directory
NEW_KEYS = ("shared_fate_is_redundant", "failure_domains", "reuse_port")  # of the configuration, that the release does not know


def release_python() -> str:
    """The interpreter of the last release, which is built at the first call. Skips the test where the history is not there."""
    place = PLACE / LAST_RELEASE[:12]
    python = place / "venv" / "bin" / "python"
    known = subprocess.run(["git", "cat-file", "-e", f"{LAST_RELEASE}^{{commit}}"], cwd=ROOT, capture_output=True, check=False)
    if known.returncode:
        pytest.skip(f"the history of this checkout does not have the last release, {LAST_RELEASE[:12]}")
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "done").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            _build(place, python)
            (place / "done").touch()
    return str(python)


def _build(place: Path, python: Path) -> None:
    source = place / "source"
    archive = place / "source.tar"
    _run(["git", "archive", "--output", str(archive), LAST_RELEASE], ROOT)
    source.mkdir()
    _run(["tar", "--extract", "--file", str(archive), "--directory", str(source)], place)
    _run([str(Path(sys.executable).with_name("hatchling")), "build", "--target", "wheel", "--directory", str(place / "wheel")], source)
    (wheel,) = (place / "wheel").glob("*.whl")
    venv.create(place / "venv", symlinks=True)
    (site_packages,) = (place / "venv" / "lib").glob("python*/site-packages")
    _run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)], place)
    own = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (site_packages / "dependencies.pth").write_text(f"{own}\n")  # after its own directory; .pth files there are not read
    archive.unlink()
    shutil.rmtree(source)
    found = _run([str(python), "-P", "-c", "import shadowrelay; print(shadowrelay.__file__)"], place)
    assert found.startswith(str(site_packages)), found


def _run(words: Sequence[str], directory: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def without_new_keys(text: str) -> str:
    """A configuration as the last release reads it."""
    return "".join(line for line in text.splitlines(keepends=True) if line.partition(" =")[0] not in NEW_KEYS)
