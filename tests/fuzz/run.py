"""Looks for octets that a parser of strangers' texts does not expect, guided by coverage. Debian's Python is enough, and one package:

    .venv/bin/python -m pip install 'atheris>=3,<4'
    nice -n 19 .venv/bin/python -m tests.fuzz.run proxy --seconds 600

It begins with the corpus of the target and the hostile inputs of its tests, adds what reaches new code to the corpus, and stops at the
first input that raises, or takes more than 60 s or 1 GB: that one is printed, and stays in the directory that is named.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = """
import sys
import atheris
with atheris.instrument_imports(include=["shadowrelay", "aiosmtpd.proxy_protocol"]):
    from tests.fuzz.targets import TARGETS
atheris.Setup(sys.argv, TARGETS[{name!r}])
atheris.Fuzz()
"""


def main() -> int:
    """The exit code of the fuzzer: 0 if nothing was found."""
    from tests.fuzz import corpus
    from tests.fuzz.hostile import INPUTS
    from tests.fuzz.targets import INPUT_OCTETS_MAX, TARGETS

    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("target", choices=TARGETS)
    arguments.add_argument("--seconds", type=int, default=600)
    asked = arguments.parse_args()
    place = Path(tempfile.mkdtemp(prefix=f"fuzz-{asked.target}-"))
    for directory in ("found", "seeds"):
        (place / directory).mkdir()
    for number, octets in enumerate([*corpus.read(asked.target), *INPUTS[asked.target]]):
        (place / "seeds" / f"{number}").write_bytes(octets[:INPUT_OCTETS_MAX])
    limits = ["-timeout=60", "-rss_limit_mb=1024", f"-max_len={INPUT_OCTETS_MAX // 16}", f"-artifact_prefix={place}/"]
    words = [str(place / "found"), str(place / "seeds"), f"-max_total_time={asked.seconds}", "-print_final_stats=1", *limits]
    code = subprocess.run([sys.executable, "-c", TARGET.format(name=asked.target), *words], check=False).returncode
    if code == 0:
        corpus.write(asked.target, [*corpus.read(asked.target), *(path.read_bytes() for path in (place / "found").iterdir())])
    for finding in [path for path in place.iterdir() if path.is_file()]:
        print(f"{finding}: {finding.read_bytes()[:500]!r}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
