"""The limits of other mail servers in docs/mtas.md are those of Debian's packages."""

import gzip
import re
import subprocess
from pathlib import Path

import pytest

from tests.interop.mtas import ROOT, UNPACKED, write_identities
from tests.kit import private

pytestmark = pytest.mark.interop

TABLE = (ROOT / "docs/mtas.md").read_text(encoding="utf-8").split("## Limits\n", 1)[1].split("\n## ", 1)[0]
CELL = re.compile(r"(\w+)(?:; none above a load average of (\w+))? \(`([A-Za-z _-]+)`")


def printed(column: int) -> dict[str, str]:
    """Parameter -> the limit that stands before it, in the column of a server."""
    rows = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][1:]
    return {found[3]: found[2] or found[1] for row in rows if (found := CELL.match(row[column]))}


def test_the_limits_of_postfix() -> None:
    wanted = printed(1)
    said = subprocess.run(["/usr/sbin/postconf", "-d", *wanted], capture_output=True, text=True, check=True).stdout

    assert len(wanted) >= 5
    assert wanted == dict(line.split(" = ") for line in said.splitlines())


def test_the_limits_of_exim(workplace: Path) -> None:
    program = UNPACKED / "exim4-daemon-light/usr/sbin/exim4"
    if not (private.is_possible() and program.exists()):
        pytest.skip("needs exim: requirements/setup.sh interop")
    wanted = {key: "" if limit == "none" else limit for key, limit in printed(2).items()}
    mounts = write_identities(workplace / "etc", ["Debian-exim"], {})
    command = private.private_command([program, "-C", "/dev/null", "-bP", *wanted], mounts)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert len(wanted) >= 5
    assert wanted == {key.strip(): limit.strip() for key, limit in (line.split("=") for line in said.splitlines())}


def test_the_limits_of_opensmtpd() -> None:
    page = UNPACKED / "opensmtpd/usr/share/man/man5/smtpd.conf.5.gz"
    if not page.exists():
        pytest.skip("needs opensmtpd: requirements/setup.sh interop")
    text = gzip.decompress(page.read_bytes()).decode()
    wanted = printed(3)

    assert ["smtp limit max-mails", "smtp limit max-rcpt", "smtp max-message-size"] == sorted(wanted)
    for key, limit in wanted.items():
        begin, _, last = key.rpartition(" ")
        entry = text.split(f".It Ic {begin} Cm {last} ", 1)[1].split("\n.It", 1)[0]
        found = re.search(r"The\s+default\s+is\s+(?:\.Qq\s+)?(\w+)", entry)
        assert found is not None
        assert limit == found[1]


def test_the_limits_of_sendmail() -> None:
    options = UNPACKED / "sendmail-bin/usr/share/sendmail/cf/m4/proto.m4"
    if not options.exists():
        pytest.skip("needs sendmail: requirements/setup.sh interop")
    wanted = printed(4)
    found = dict(re.findall(r"(?m)^_OPTION\(\w+, `(conf\w+)', `(\w+)'\)", options.read_text()))

    assert ["confCONNECTION_RATE_THROTTLE", "confMAX_MESSAGE_SIZE", "confMAX_RCPTS_PER_MESSAGE", "confREFUSE_LA"] == sorted(wanted)
    assert wanted == {key: found[key] for key in wanted}
