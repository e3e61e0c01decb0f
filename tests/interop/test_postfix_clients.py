"""A real Postfix is told whose mail it gets, by XCLIENT and XFORWARD, and tells it; swaks names a client by XCLIENT."""

import asyncio
import shutil
import smtplib
from pathlib import Path

import pytest

from shadowrelay.model.routing import Destination, HostPort
from tests.kit.clock import until
from tests.kit.ledger import an_envelope
from tests.kit.postfix import running_postfix, stored_messages, storing_settings
from tests.kit.receiving import receiving
from tests.smtp.deliverers import a_deliverer, a_job

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SWAKS = shutil.which("swaks")
ORIGINAL = "ADDR=203.0.113.5 PORT=40000 PROTO=ESMTP HELO=helo.example LOGIN=ann NAME=client.example"


async def delivered_to_postfix(workplace: Path, **changes: bool) -> tuple[str, str]:
    """The stored message, and Postfix's log."""
    mail = workplace / "mail"
    settings = storing_settings(mail, "corp.example", ["user1"]) | {
        "smtpd_authorized_xclient_hosts": "127.0.0.0/8",
        "smtpd_authorized_xforward_hosts": "127.0.0.0/8",
        "mynetworks": "127.0.0.0/8 203.0.113.0/24",
    }
    with running_postfix(workplace / "postfix", settings) as postfix:
        store = Destination("store", (HostPort("127.0.0.1", postfix.port),), **changes)
        async with a_deliverer() as deliverer:
            envelope = an_envelope(client_address="203.0.113.5", client_name="helo.example", original_client=ORIGINAL)
            report = await deliverer.deliver(a_job(store, envelope))
            assert [250] == [reply.code for reply in report.replies.values()]
            plain = an_envelope(client_address="203.0.113.9", client_name="other.example")
            await deliverer.deliver(a_job(store, plain))
        await until(lambda: sum(map(len, stored_messages(mail).values())) == 2)
        texts = [text.decode() for found in stored_messages(mail).values() for text in found]
        log = postfix.log.read_text()
    return "\n".join(texts), log


async def test_postfix_judges_and_logs_the_client_that_xclient_names(workplace: Path) -> None:
    text, log = await delivered_to_postfix(workplace, xclient=True)

    assert "Received: from helo.example (client.example [203.0.113.5])" in text
    assert "Received: from other.example (unknown [203.0.113.9])" in text
    assert "client=client.example[203.0.113.5]" in log
    assert "client=unknown[203.0.113.9]" in log


async def test_postfix_logs_the_client_that_xforward_names(workplace: Path) -> None:
    text, log = await delivered_to_postfix(workplace, xforward=True)

    assert "Received: from me.example (localhost [127.0.0.1])" in text
    assert "orig_client=client.example[203.0.113.5]" in log
    assert "orig_client=unknown[203.0.113.9]" in log


async def test_postfix_forwards_the_client_to_a_node(tmp_path: Path, workplace: Path) -> None:
    async with receiving(tmp_path, accepted_domains=["corp.example"], xclient_from=["127.0.0.1"]) as station:
        settings = {
            "relayhost": f"[127.0.0.1]:{station.server.address.port}",
            "smtp_send_xforward_command": "yes",
            "smtpd_authorized_xclient_hosts": "127.0.0.0/8",
            "mynetworks": "127.0.0.0/8 203.0.113.0/24",
        }
        with running_postfix(workplace / "postfix", settings) as postfix:

            def submit() -> None:
                with smtplib.SMTP("127.0.0.1", postfix.port, timeout=30) as client:
                    client.ehlo("front.example")
                    client.docmd("XCLIENT", "NAME=client.example ADDR=203.0.113.5 PORT=40000 HELO=helo.example")
                    client.ehlo("helo.example")
                    client.sendmail("a@x.example", ["user1@corp.example"], b"Subject: x\r\n\r\nx\r\n")

            await asyncio.to_thread(submit)
            await until(lambda: bool(station.acceptor.accepted))

        ((envelope, _, content),) = station.acceptor.accepted
        assert ("203.0.113.5", "helo.example") == (envelope.client_address, envelope.client_name)
        original = "ADDR=203.0.113.5 PORT=40000 BY=127.0.0.1 PROTO=ESMTP HELO=helo.example NAME=client.example"
        assert original == envelope.original_client
        assert content.startswith(b"Received: from postfix.example ([127.0.0.1])\r\n")


@pytest.mark.skipif(SWAKS is None, reason="needs swaks: apt-get install swaks")
async def test_swaks_names_a_client_by_xclient(tmp_path: Path) -> None:
    async with receiving(tmp_path, xclient_from=["127.0.0.1"]) as station:
        words = ["--server", "127.0.0.1", "--port", str(station.server.address.port), "--helo", "front.example"]
        words += ["--to", "b@here.example", "--from", "a@x.example", "--xclient-addr", "203.0.113.5", "--xclient-name", "client.example"]
        process = await asyncio.create_subprocess_exec(str(SWAKS), *words, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()

        assert 0 == process.returncode, said.decode()
        ((envelope, _, _),) = station.acceptor.accepted
        assert "ADDR=203.0.113.5 BY=127.0.0.1 NAME=client.example" == envelope.original_client
