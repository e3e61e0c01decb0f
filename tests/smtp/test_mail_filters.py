"""What filters decide and change, and what one that hangs or lies costs. docs/reference.md "Filters before the copy"."""

import asyncio
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX
from shadowrelay.smtp import mail_filters
from shadowrelay.smtp.mail_filters import Guarded
from tests.kit.clock import until
from tests.kit.played_rspamd import NO_ACTION, PlayedRspamd, played_rspamd
from tests.kit.receiving import HELLO, PEER, Station, files_in, receiving
from tests.smtp.copies import HELD, a_copy

HERE = ["b@here.example"]
MAIL = b"From: ann@x.example\r\nSubject: lunch\r\nX-Old: 1\r\n\r\nAt one?\r\n"
UNAVAILABLE = "451 4.7.1 The mail filter is not available, try again later"


def asking(played: PlayedRspamd, **settings: Any) -> list[dict[str, Any]]:
    return [{"name": "rspamd", "address": played.address, **settings}]


IMPORTS = """
import asyncio, contextlib, sys
import shadowrelay.node.process
from shadowrelay.model.receive_settings import Filter
from shadowrelay.smtp.rspamd import Rspamd
imported = []
async def hang(reader, writer):
    await reader.read()
    writer.close()  # who forgets the writer closes the connection, from Python 3.13 on
async def main():
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    address = "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]
    client = Rspamd(Filter.model_validate({"name": "f", "address": address}))._http
    sys.addaudithook(lambda event, arguments: imported.append(arguments[0]) if event == "import" else None)
    for _ in range(2):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.post("/checkv2", content=b"lunch")
asyncio.run(main())
print(imported)
"""


async def mail_of(station: Station, content: bytes = MAIL) -> str:
    """The reply to one message."""
    client = await station.client_in("EHLO client.example")
    return await client.mail(HERE, content)


async def test_the_filter_is_told_of_the_message_and_its_verdict_is_known(tmp_path: Path) -> None:
    async with played_rspamd() as played, receiving(tmp_path, filters=asking(played), xclient_from=["127.0.0.1"]) as station:
        client = await station.client_in("EHLO x", "XCLIENT ADDR=203.0.113.5 NAME=c.example HELO=helo.example LOGIN=ann", "EHLO y")

        assert "250 2.0.0 Queued" == await client.mail(["b@here.example", "c@here.example"], MAIL)

        ((envelope, _, _),) = station.acceptor.accepted
        assert [MAIL] == [content for _, content in played.asked]
        told = [played.told(name) for name in ("From", "Rcpt", "Ip", "Helo", "Hostname", "User", "Queue-Id")]
        people = ["sender@client.example"], ["b@here.example", "c@here.example"]
        assert [*people, ["203.0.113.5"], ["helo.example"], ["c.example"], ["ann"], [envelope.message_id]] == told
        assert "rspamd:no-action:0.10" == envelope.filtered
        assert [MAIL] == station.acceptor.bodies


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"action": "reject", "messages": {"smtp_message": "Gtube pattern"}}, "550 5.7.1 Gtube pattern"),
        ({"action": "soft reject"}, "451 4.7.1 Try again later: the mail filter asks for it"),
        ({"action": "greylist"}, "451 4.7.1 Try again later: greylisted"),
        (b"<html>", UNAVAILABLE),
        (b"", UNAVAILABLE),
    ],
)
async def test_a_refused_message_is_not_accepted_and_leaves_nothing(answer: Any, expected: str, tmp_path: Path) -> None:
    async with played_rspamd(answer) as played, receiving(tmp_path, filters=asking(played)) as station:
        assert expected == await mail_of(station)
        assert expected == await mail_of(station, b"Subject: x\r\n\r\n" + b"large\r\n" * 300_000)

        assert ([], []) == (station.acceptor.accepted, files_in(tmp_path))
        assert 0 == station.server.reception.budget.used


@pytest.mark.parametrize("lines", [1, 300_000], ids=["small", "in a file"])
async def test_what_is_accepted_is_what_the_filter_made_of_it(lines: int, tmp_path: Path) -> None:
    answer = {
        "action": "rewrite subject",
        "score": 7,
        "subject": "*** SPAM *** lunch",
        "dkim-signature": "v=1; a=rsa-sha256;\r\n\tb=abc",
        "milter": {"add_headers": {"X-Spam-Score": {"value": "7", "order": 1}}, "remove_headers": {"X-Old": 0}},
    }
    body = b"large line\r\n" * lines
    async with played_rspamd(answer) as played, receiving(tmp_path, filters=asking(played)) as station:
        assert "250 2.0.0 Queued" == await mail_of(station, MAIL + body)

        ((envelope, content, octets),) = station.acceptor.accepted
        header = b"DKIM-Signature: v=1; a=rsa-sha256;\r\n\tb=abc\r\nX-Spam-Score: 7\r\nFrom: ann@x.example\r\n"
        header += b"Subject: *** SPAM *** lunch\r\n"
        assert [header + b"\r\nAt one?\r\n" + body] == station.acceptor.bodies
        assert (len(octets), hashlib.sha256(octets).digest()) == (content.size, content.sha256)
        assert ("*** SPAM *** lunch", "rspamd:rewrite-subject:7.00") == (envelope.subject, envelope.filtered)
        assert (len(octets) > CONTENT_IN_MEMORY_BYTES_MAX) == (content.path is not None)
        assert len(files_in(tmp_path)) == (content.path is not None)
        assert MAIL + body == played.asked[0][1]


async def test_content_without_a_header_gets_one(tmp_path: Path) -> None:
    async with played_rspamd({"action": "add header"}) as played, receiving(tmp_path, filters=asking(played)) as station:
        await mail_of(station, b"no header at all\r\n")

        assert [b"X-Spam: Yes\r\n\r\nno header at all\r\n"] == station.acceptor.bodies


async def test_the_next_filter_sees_what_the_one_before_has_changed(tmp_path: Path) -> None:
    async with played_rspamd({"action": "add header"}) as first, played_rspamd() as second:
        filters = [{"name": "one", "address": first.address}, {"name": "two", "address": second.address}]
        async with receiving(tmp_path, filters=filters) as station:
            await mail_of(station)

            assert [b"X-Spam: Yes\r\n" + MAIL] == [content for _, content in second.asked] == station.acceptor.bodies
            assert "one:add-header:0.00,two:no-action:0.10" == station.acceptor.accepted[0][0].filtered


async def test_copies_and_mail_of_peers_come_past_filters(tmp_path: Path) -> None:
    async with played_rspamd({"action": "reject"}) as played, receiving(tmp_path, filters=asking(played), **PEER) as station:
        client = await station.client_in("EHLO b.example")
        assert "250" == (await client.ask(HELLO))[:3]
        assert "250 2.0.0 Queued" == await client.mail(HERE, MAIL)
        await client.send(a_copy(MAIL))
        replies = [await client.reply() for _ in range(a_copy(MAIL).count(b"\r\n") - MAIL.count(b"\r\n"))]

        assert (HELD, []) == (replies[-1], played.asked)


async def test_a_filter_that_hangs_costs_its_time_and_then_nothing(tmp_path: Path) -> None:
    never = asyncio.Event()
    with structlog.testing.capture_logs() as lines:
        async with played_rspamd() as played, receiving(tmp_path, filters=asking(played, timeout="100ms")) as station:
            played.gate = never.wait
            assert [UNAVAILABLE] * 5 == [await mail_of(station) for _ in range(5)]
            assert len(played.asked) <= 3  # in so little time not each request may have been read
            never.set()

    said = [line for line in lines if line["event"].startswith("filter.")]
    assert ["filter.failed", "filter.failed", "filter.rests"] == [line["event"] for line in said]
    assert {"no verdict in 0.1 s"} == {line["reason"] for line in said}


@pytest.mark.parametrize("status", ["500 Internal Server Error", "302 Found", "404 Not Found"])
async def test_a_dead_filter_is_not_a_dead_relay(status: str, tmp_path: Path) -> None:
    async with played_rspamd() as played:
        played.status = status
        filters = [*asking(played, on_failure="accept"), {"name": "gone", "address": "http://127.0.0.1:1", "on_failure": "accept"}]
        async with receiving(tmp_path, filters=filters) as station:
            assert ["250 2.0.0 Queued"] * 4 == [await mail_of(station) for _ in range(4)]

            verdicts = [envelope.filtered for envelope, _, _ in station.acceptor.accepted]
            assert [*["rspamd:failed,gone:failed"] * 3, "rspamd:resting,gone:resting"] == verdicts
            assert [MAIL] * 4 == station.acceptor.bodies


async def test_a_filter_that_rests_is_tried_by_one_message_and_serves_again(tmp_path: Path) -> None:
    now = 0.0
    async with played_rspamd(b"nonsense") as played, receiving(tmp_path, filters=asking(played)) as station:
        chain = station.server.reception.filters
        assert chain is not None
        (guarded,) = chain._filters
        assert isinstance(guarded, Guarded)
        guarded._time = lambda: now
        for _ in range(4):
            await mail_of(station)
        assert (True, 3) == (guarded.is_resting, len(played.asked))

        now = mail_filters.REST_SECONDS + 1  # the trial fails: it rests for twice as long
        assert [UNAVAILABLE] * 2 == [await mail_of(station), await mail_of(station)]
        assert 4 == len(played.asked)
        now += 1.5 * mail_filters.REST_SECONDS
        assert guarded.is_resting

        now += mail_filters.REST_SECONDS
        played.answer = NO_ACTION
        assert ["250 2.0.0 Queued"] * 2 == [await mail_of(station), await mail_of(station)]
        assert (False, 6, 6) == (guarded.is_resting, len(played.asked), guarded.failures_count)


async def test_a_filter_sees_no_more_messages_at_once_than_it_may(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    async with played_rspamd() as played, receiving(tmp_path, filters=asking(played, concurrency=2)) as station:
        played.gate = go_on.wait
        tasks = [asyncio.create_task(mail_of(station)) for _ in range(5)]
        await until(lambda: played.at_once == 2)
        go_on.set()

        assert ["250 2.0.0 Queued"] * 5 == list(await asyncio.gather(*tasks))
        assert 2 == played.at_once_max


async def test_all_filters_together_leave_time_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_filters, "CHAIN_SECONDS", 0.1)
    never = asyncio.Event()
    async with played_rspamd() as played:
        played.gate = never.wait
        filters = [{"name": name, "address": played.address, "on_failure": "accept"} for name in ("one", "two")]
        async with receiving(tmp_path, filters=filters) as station:
            assert "250 2.0.0 Queued" == await mail_of(station)

            assert "one:failed,two:no-time-left" == station.acceptor.accepted[0][0].filtered
            never.set()


async def test_a_message_whose_client_is_gone_is_not_accepted(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    async with played_rspamd() as played, receiving(tmp_path, filters=asking(played)) as station:
        played.gate = go_on.wait
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")
        await client.send(MAIL + b".\r\n")
        await until(lambda: played.at_once == 1)
        await client.close()
        await until(lambda: not station.server.sessions_count)
        go_on.set()

        await until(lambda: not station.server.reception.running)
        assert ([], [], 0) == (station.acceptor.accepted, files_in(tmp_path), station.server.reception.budget.used)


def test_a_filter_that_hangs_does_not_make_the_event_loop_look_for_modules() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False, timeout=170)
    assert "[]" == done.stdout.strip(), done.stderr
