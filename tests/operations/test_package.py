"""What the Debian package has besides the program: a manual page and completions. docs/setup.md "Install"."""

import gzip
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.tidy.house import ROOT


@pytest.fixture(scope="module")
def texts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packaged_texts", ROOT / "packaging" / "texts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_manual_page_has_every_command_with_its_options(texts: ModuleType, tmp_path: Path) -> None:
    texts.write(tmp_path)
    (page,) = tmp_path.glob("usr/share/man/man8/*")
    text = gzip.decompress(page.read_bytes()).decode()

    assert [] == [one for one in ("serve", "init", "queue list", "messages find", "sla report") if f'.SS "shadowrelay {one} ' not in text]
    assert (True, True) == (".B \\-\\-if\\-lost NAME|SITE|LABEL[,…]" in text, ".SH FILES" in text)
    assert [] == [
        line
        for line in text.splitlines()
        if line.startswith(".") and line.split()[0] not in ([".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".I"])
    ]


def test_what_reads_manual_pages_finds_no_fault_in_it(texts: ModuleType) -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff here")
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-Kutf8"], input=texts.manual(), capture_output=True, text=True, check=True)

    assert "" == done.stderr
    assert "shadowrelay status" in re.sub(".\x08", "", done.stdout)


def test_the_completion_of_bash_offers_what_there_is(texts: ModuleType, tmp_path: Path) -> None:
    texts.write(tmp_path)
    (script,) = tmp_path.glob("usr/share/bash-completion/completions/*")
    program = Path(sys.executable).with_name("shadowrelay")
    asked = f'source {script}; COMP_WORDS=(shadowrelay sta) COMP_CWORD=1; _shadowrelay_completion {program}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, cwd=ROOT, check=True)

    assert "status" == done.stdout.strip()
