"""One thing has one name, and nothing points at where it was written."""

import re
from pathlib import Path

from tests.tidy.house import files_below, relative

BANNED = re.compile(
    r"(?<![A-Za-z])(replicas?|mirrors?|mirrored|slaves?|ack-queue|backups?|copy_id|msgs?|svc|mgr|utils)(?![A-Za-z])", re.IGNORECASE
)
ALLOWED = re.compile(
    r"\.svc\.cluster\.local|replicas: |`replicas`|"  # words of Kubernetes
    r"email\.utils"  # the standard library's name
    r"|\[.msg.\]|msg = debug"  # pydantic's key, a method of structlog's loggers
    r"|(older|restored) backup|backup (is |was |that was )?restored",  # the one thing that is called so
    re.IGNORECASE,
)
# written so that this file does not find itself
PLACES = re.compile(r"(?<![\w./-])/wo" + r"rk(?![\w-])|\.\./sha" + r"red|\.lib" + r"rary/")
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")

SPOKEN = files_below("shadowrelay", "docs", "configs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
ALL = [path for path in files_below(".") if ".ci" not in path.parts]


def found_in(paths: list[Path], pattern: re.Pattern[str], allowed: re.Pattern[str] | None = None) -> list[str]:
    found = []
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace")
        if pattern.search(text):  # most files are done with here
            lines = enumerate(text.splitlines(), start=1)
            found += [
                f"{path.name}:{number}: {line.strip()}"
                for number, line in lines
                if pattern.search(allowed.sub("", line) if allowed else line)
            ]
    return found


def test_only_the_words_of_the_domain_are_used() -> None:
    assert [] == found_in(SPOKEN, BANNED, ALLOWED)
    assert [] == [relative(path) for path in SPOKEN if BANNED.search(path.stem)]


def test_nothing_names_the_place_where_it_was_written() -> None:
    assert [] == found_in(ALL, PLACES)


def test_no_work_is_left_as_a_note() -> None:
    assert [] == found_in([path for path in ALL if path.suffix == ".py"], UNFINISHED)


def test_the_checks_see_what_they_look_for(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("the msg_id\na restored backup\nimport email.utils\nReplica of it\nmessage\n", encoding="utf-8")

    assert ["page.md:1: the msg_id", "page.md:4: Replica of it"] == found_in([page], BANNED, ALLOWED)
