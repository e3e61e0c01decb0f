"""The private Postfix of the tests: alone, complete, and gone afterwards."""

import contextlib
import smtplib
import socket
import subprocess
from pathlib import Path

import pytest

from tests.kit.clock import PATIENCE_SECONDS, wait_until
from tests.kit.postfix import free_port, running_postfix, stored_messages, storing_settings
from tests.kit.smtp_programs import SmtpSink, running_sink

pytestmark = [pytest.mark.interop, pytest.mark.slow]


def processes_of(directory: Path) -> list[str]:
    """Command lines of live processes that name or stand in this directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(directory) in (process / "cmdline").read_text() or (process / "cwd").readlink().is_relative_to(directory):
                found.append((process / "comm").read_text().strip())
    return found


def wait_until_gone(directory: Path) -> None:
    """Postfix's master tells its daemons to end, and does not wait for them."""
    wait_until(lambda: not processes_of(directory), what=lambda: str(processes_of(directory)))


def test_a_private_postfix_takes_mail_and_leaves_no_process_behind(workplace: Path) -> None:
    with running_postfix(workplace / "one", {"default_transport": "hold:"}) as postfix:
        postfix_processes = processes_of(workplace)
        with smtplib.SMTP("127.0.0.1", postfix.port, timeout=PATIENCE_SECONDS) as client:
            assert {} == client.sendmail("a@x.example", ["b@y.example"], b"Subject: one\r\n\r\n")
        queue = postfix.queue()

    assert "master" in postfix_processes
    assert "a@x.example" in queue
    wait_until_gone(workplace)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", postfix.port), timeout=PATIENCE_SECONDS)


def test_the_system_s_own_postfix_is_not_touched(workplace: Path) -> None:
    own = Path("/etc/postfix/main.cf")
    before = own.read_bytes() if own.exists() else b""
    with running_postfix(workplace / "one", {}) as postfix:
        said = subprocess.run(
            ["/usr/sbin/postconf", "-c", str(workplace / "one" / "config"), "-h", "queue_directory", "data_directory"],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip

    assert [str(postfix.directory / "queue"), str(postfix.directory / "data")] == said
    assert before == (own.read_bytes() if own.exists() else b"")


def test_a_storing_postfix_keeps_mail_for_known_recipients_and_refuses_the_others(workplace: Path) -> None:
    mail = workplace / "mail"
    with (
        running_postfix(workplace / "one", storing_settings(mail, "corp.example", ["known"])) as postfix,
        smtplib.SMTP("127.0.0.1", postfix.port, timeout=PATIENCE_SECONDS) as client,
    ):
        refused = client.sendmail("a@x.example", ["known@corp.example", "other@corp.example"], b"Subject: one\r\n\r\nbody\r\n")
        wait_until(lambda: stored_messages(mail))

    assert {"other@corp.example": 550} == {address: code for address, (code, _) in refused.items()}
    assert {"known": 1} == {name: len(messages) for name, messages in stored_messages(mail).items()}
    assert stored_messages(mail)["known"][0].endswith(b"\n\nbody\n")


def test_a_postfix_that_cannot_start_is_an_error_at_once_and_leaves_nothing(workplace: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^postfix -c \S+ start"), running_postfix(workplace / "one", {"mail_owner": "nobody.here"}):
        raise AssertionError("it started")

    wait_until_gone(workplace)


def test_a_sink_that_cannot_start_says_why() -> None:
    sink = SmtpSink(free_port(), "-Z")

    with pytest.raises(RuntimeError, match=r"(?s)smtp-sink does not listen: .*usage"):
        sink.wait_until_it_listens()


def test_a_sink_ends_with_its_block() -> None:
    with running_sink(free_port()) as sink:
        assert sink.process.poll() is None

    assert sink.process.returncode is not None
