"""Content on its way in: the same bytes, however they were cut; in memory or spooled; what is read out of a header."""

import asyncio
import hashlib
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowrelay.memory import ContentBudget
from shadowrelay.model.ids import MessageId, ServerName
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX, BodyType, Recipient
from shadowrelay.model.replies import INSUFFICIENT_RESOURCES, STORE_UNAVAILABLE
from shadowrelay.protocol.line_ends import has_long_line
from shadowrelay.rules.dsn import promotion_header, resubmission_header
from shadowrelay.smtp.data import (
    CommandReader,
    ContentFingerprint,
    ContentSink,
    DataFilter,
    header_facts,
    receive_data,
    trace_header,
)
from shadowrelay.smtp.limits import BARE_CR_OR_LF, LINE_OCTETS_MAX, LINE_TOO_LONG, Descriptors
from tests.kit.clients import TO_DATA
from tests.kit.receiving import NOON, files_in, octets_of, receiving

CONTENTS = [
    b"",
    b"\r\n",
    b"\r\n\r\n\r\n",
    b"a\r\n",
    b".\r\n",
    b"..\r\n",
    b".a\r\n.\r\n..\r\n...\r\n",
    b"\r\n.\r\n",
    b"a\r\n.\r\nb\r\n.\r\n\r\n.\r\n",
    b"a\x00b\r\n\x00.\r\n",
    b"\xff\xfe 8-bit \xc3\xa4\r\n",
    b". \r\n .\r\n",
]


def stuffed(content: bytes) -> bytes:
    """As a client sends it, line by line: not by the code under test."""
    lines = content.split(b"\r\n")[:-1]
    return b"".join((b"." + line if line.startswith(b".") else line) + b"\r\n" for line in lines) + b".\r\n"


def a_filter(path: Path, size_max: int = 10_000_000) -> tuple[DataFilter, ContentSink]:
    sink = ContentSink(path / "spooled", ContentBudget().portion(), Descriptors(20_000))
    return DataFilter(sink, size_max), sink


def arrive(reader: CommandReader, piece: bytes) -> None:
    """As a transport has it read."""
    while piece:
        buffer = reader.get_buffer(-1)
        part, piece = piece[: len(buffer)], piece[len(buffer) :]
        buffer[: len(part)] = part
        reader.buffer_updated(len(part))


async def received(pieces: list[bytes], path: Path, limit: int = 64) -> tuple[DataFilter, bytes, bytes]:
    """What the receiver makes of these pieces, and what it leaves unread. A small limit makes every path be taken."""
    reader = CommandReader(ContentBudget().portion(), limit, asyncio.get_running_loop(), memoryview(bytearray(64)))
    data, sink = a_filter(path)
    task = asyncio.ensure_future(receive_data(reader, data))
    for piece in pieces:
        arrive(reader, piece)
        await asyncio.sleep(0)
    reader.feed_eof()
    await task
    content = sink.content()
    assert hashlib.sha256(octets_of(content)).digest() == content.sha256
    assert len(octets_of(content)) == content.size
    return data, octets_of(content), await reader.read()


@pytest.mark.parametrize("content", CONTENTS, ids=repr)
async def test_content_is_the_same_whole_byte_by_byte_and_at_every_split(content: bytes, tmp_path: Path) -> None:
    wire = stuffed(content) + b"NOOP\r\n.\r\n"
    splits = [[wire], [wire[at : at + 1] for at in range(len(wire))]]
    splits += [[wire[:at], wire[at:]] for at in range(1, len(wire))]

    for pieces in splits:
        data, octets, rest = await received(pieces, tmp_path)

        assert (None, content, b"NOOP\r\n.\r\n") == (data.refusal, octets, rest)


@given(
    lines=st.lists(st.one_of(st.sampled_from([b"", b".", b"..", b".x", b"x" * 100]), st.binary(max_size=80)), max_size=12),
    cuts=st.lists(st.integers(1, 90), max_size=30),
    limit=st.integers(5, 200),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_content_of_whole_lines_comes_through_bit_for_bit(lines: list[bytes], cuts: list[int], limit: int, tmp_path: Path) -> None:
    clean = [line.replace(b"\r", b"").replace(b"\n", b"") for line in lines]
    content = b"".join(line + b"\r\n" for line in clean)
    wire = stuffed(content)
    pieces = []
    for cut in cuts:
        pieces.append(wire[:cut])
        wire = wire[cut:]

    data, octets, rest = asyncio.run(received([piece for piece in [*pieces, wire] if piece], tmp_path, limit))

    assert (None, content, b"") == (data.refusal, octets, rest)


@given(pieces=st.lists(st.sampled_from([b"\r", b"\n", b".", b"x", b"\r\n"]), max_size=40), limit=st.integers(5, 20))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_the_end_is_the_first_crlf_dot_crlf_and_any_bare_line_end_is_noticed(pieces: list[bytes], limit: int, tmp_path: Path) -> None:
    wire = b"".join(pieces)
    whole = b"\r\n" + wire + b"\r\n.\r\n"
    end = whole.index(b"\r\n.\r\n") + 2
    raw = whole[2:end]
    is_bare = b"\r" in raw.replace(b"\r\n", b"") or b"\n" in raw.replace(b"\r\n", b"")

    data, _, rest = asyncio.run(received([wire + b"\r\n.\r\n"], tmp_path, limit))

    assert (BARE_CR_OR_LF if is_bare else None, whole[end + 3 :]) == (data.refusal, rest)


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(-3, 3))
@settings(max_examples=200)
def test_a_long_line_is_found_wherever_it_is(lengths: list[int], extra: int) -> None:
    lines = [b"x" * length for length in lengths] + [b"x" * (LINE_OCTETS_MAX - 2 + extra)] + [b"y"] * len(lengths)

    assert (extra > 0) == has_long_line(b"".join(line + b"\r\n" for line in lines), LINE_OCTETS_MAX)


async def test_a_line_without_end_is_given_up_before_its_end(tmp_path: Path) -> None:
    data, sink = a_filter(tmp_path)
    data.take(b"short\r\n" + b"x" * LINE_OCTETS_MAX)
    assert data.refusal is None

    data.take(b"x")

    assert LINE_TOO_LONG == data.refusal
    assert 0 == len(sink.content().data or b"")


async def test_the_sink_spools_above_its_limit_and_leaves_nothing_behind(tmp_path: Path) -> None:
    sink = ContentSink(tmp_path / "spooled", ContentBudget().portion(), Descriptors(20_000))
    sink.write(b"a" * CONTENT_IN_MEMORY_BYTES_MAX)
    assert [] == files_in(tmp_path)

    sink.write(b"b")

    content = sink.content()
    assert (None, CONTENT_IN_MEMORY_BYTES_MAX + 1) == (content.data, content.size)
    assert b"a" * CONTENT_IN_MEMORY_BYTES_MAX + b"b" == octets_of(content)
    assert 0o600 == (tmp_path / "spooled").stat().st_mode & 0o777
    sink.discard()
    assert [] == files_in(tmp_path)


async def test_a_full_disk_is_answered_when_the_content_has_ended(tmp_path: Path) -> None:
    data, _ = a_filter(tmp_path / "missing", 10_000_000)
    block = b"x" * 1_000 + b"\r\n"

    for _ in range(CONTENT_IN_MEMORY_BYTES_MAX // len(block) + 2):
        data.take(block)

    assert INSUFFICIENT_RESOURCES == data.refusal


@pytest.mark.parametrize("size", [100, 500_000, 3_000_000])
async def test_a_message_of_any_size_arrives_bit_for_bit_with_its_hash(size: int, tmp_path: Path) -> None:
    line = b".dots and 8-bit \xe4 and NUL \x00 and more text to make it a line of ordinary length\r\n"
    content = b"\r\n" + line * (size // len(line) + 1)
    async with receiving(tmp_path, relay_from=["127.0.0.1"]) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@x.example>", "DATA")

        await client.send(stuffed(content))

        assert "250 2.0.0 Queued" == await client.reply()
        envelope, accepted, octets = station.acceptor.accepted[0]
        assert content == station.acceptor.bodies[0]
        assert (len(octets), hashlib.sha256(octets).digest()) == (accepted.size, accepted.sha256)
        assert (accepted.path is not None) == (size > CONTENT_IN_MEMORY_BYTES_MAX)
        assert BodyType.EIGHT_BIT_MIME == envelope.body


async def test_a_spooled_message_that_is_not_accepted_leaves_no_file(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_message_size=2_000_000) as station:
        client = await station.client_in("EHLO client.example")
        station.acceptor.reply = STORE_UNAVAILABLE
        for size, expected in ((2_100_000, "552 5.3.4 Message size exceeds the limit"), (1_900_000, "451 4.3.0 Local storage error")):
            for command in ("MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA"):
                await client.ask(command)

            await client.send((b"x" * 998 + b"\r\n") * (size // 1000) + b".\r\n")

            assert (await client.reply()).startswith(expected)
            assert [] == files_in(tmp_path)


async def test_the_envelope_has_all_that_the_client_said_unchanged(tmp_path: Path) -> None:
    async with receiving(tmp_path, relay_from=["127.0.0.1"]) as station:
        client = await station.client_in(
            "EHLO client.example",
            'MAIL FROM:<"a \\" b"@X.Example> RET=hdrs ENVID=QQ+3Dx BODY=8bitmime SMTPUTF8 SIZE=5',
            "RCPT TO:<Jürgen@Bücher.example> NOTIFY=success,Failure ORCPT=utf-8;J\\x{FC}rgen@x.example",
            "RCPT TO:<b@[IPv6:2001:db8::1]>",
            "DATA",
        )
        await client.send(b"Message-ID: <1@x>\r\nsubject: hello\r\n world\r\n\r\nbody\r\n.\r\n")

        assert "250 2.0.0 Queued" == await client.reply()
        envelope = station.acceptor.accepted[0][0]
        assert '"a \\" b"@X.Example' == envelope.sender
        assert (
            Recipient("Jürgen@Bücher.example", "success,Failure", "utf-8;J\\x{FC}rgen@x.example"),
            Recipient("b@[IPv6:2001:db8::1]"),
        ) == envelope.recipients
        assert ("hdrs", "QQ+3Dx", True, BodyType.EIGHT_BIT_MIME) == (envelope.ret, envelope.envid, envelope.smtputf8, envelope.body)
        assert ("127.0.0.1", "client.example", "in", NOON) == (
            envelope.client_address,
            envelope.client_name,
            envelope.connector,
            envelope.arrived_at,
        )
        assert ("<1@x>", "hello world") == (envelope.internet_message_id, envelope.subject)


async def test_the_null_sender_is_the_empty_text(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<>", "RCPT TO:<b@here.example>", "DATA")
        await client.send(b"x\r\n.\r\n")

        await client.reply()

        assert "" == station.acceptor.accepted[0][0].sender


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["HELO c.example", "MAIL FROM:<>", "RCPT TO:<b@here.example>"], "with SMTP id {id}\r\n\tfor <b@here.example>;"),
        (["EHLO c.example", "MAIL FROM:<>", "RCPT TO:<b@here.example>", "RCPT TO:<c@here.example>"], "with ESMTP id {id};"),
        (["EHLO c.example", "MAIL FROM:<> SMTPUTF8", "RCPT TO:<ä@here.example>"], "with UTF8SMTP id {id}\r\n\tfor <ä@here.example>;"),
    ],
)
async def test_our_trace_header_stands_before_the_content_and_is_hashed_with_it(commands: list[str], expected: str, tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in(*commands, "DATA")
        await client.send(b"Subject: x\r\n\r\n.\r\n")

        await client.reply()

        envelope, content, octets = station.acceptor.accepted[0]
        line = (
            "Received: from c.example ([127.0.0.1])\r\n\tby a.example "
            + expected.format(id=envelope.message_id)
            + "\r\n\tSat, 21 Nov 2026 12:00:00 +0000\r\n"
        )
        assert line.encode() + b"Subject: x\r\n\r\n" == octets
        assert hashlib.sha256(octets).digest() == content.sha256


def test_the_trace_header_writes_an_ipv6_client_as_a_literal() -> None:
    header = trace_header("a.example", "ESMTPS", "id", ("c.example", "2001:db8::1"), [], datetime(2026, 1, 1, tzinfo=UTC))

    assert header.startswith(b"Received: from c.example ([IPv6:2001:db8::1])\r\n\tby a.example with ESMTPS id id;\r\n\t")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"", ("", "", "", 0)),
        (b"\r\nSubject: body\r\n", ("", "", "", 0)),
        (b"SUBJECT:x\r\nMESSAGE-ID:  <1@x> \r\n\r\nSubject: body\r\n", ("<1@x>", "x", "", 0)),
        (b"Subject: a\r\n\tb\r\n  c\r\nX: y\r\n\r\n", ("", "a b  c", "", 0)),
        (b"Received: a\r\nreceived: b\r\n by c\r\nX-Received: d\r\n\r\nReceived: e\r\n", ("", "", "", 2)),
        (b"Subject: \xe4\r\n\r\n", ("", "\ufffd", "", 0)),
        (b"X-Subject: no\r\n\r\n", ("", "", "", 0)),
        (b"Subject: " + b"x" * 900 + b"\r\n\r\n", ("", "x" * 500, "", 0)),
        (
            b"Resent-Date: no\r\nDate: Sun, 1 Mar 2026\r\n 12:00:00 +0000 \r\nDate: no\r\n\r\n",
            ("", "", "Sun, 1 Mar 2026 12:00:00 +0000", 0),
        ),
        (b"Date: " + b"x" * 900 + b"\r\n\r\n", ("", "", "x" * 100, 0)),
    ],
)
def test_what_is_read_out_of_a_header(header: bytes, expected: tuple[str, str, str, int]) -> None:
    facts = header_facts(header)

    assert expected == (facts.internet_message_id, facts.subject, facts.date, facts.hop_count)


def test_a_header_shows_whether_the_message_has_passed_this_node_before() -> None:
    ours = trace_header("a.example", "ESMTP", "1", ("client.example", "192.0.2.1"), [], NOON)
    header = b"Received: from x\r\n\tby other.example with ESMTP\r\n" + ours + b"Subject: x\r\n\r\n"

    assert header_facts(header, "A.example").has_own_trace
    assert not header_facts(header, "b.example").has_own_trace
    assert not header_facts(header, "example").has_own_trace
    assert not header_facts(b"Subject: x\r\n\r\n" + ours, "a.example").has_own_trace, "only its header counts"
    now = datetime(2026, 3, 1, tzinfo=UTC)
    for line in (
        promotion_header(ServerName("b.example"), ServerName("a.example"), MessageId("1"), now),
        resubmission_header(ServerName("a.example"), MessageId("1"), MessageId("2"), 3, now),
    ):
        assert header_facts(line + b"Subject: x\r\n\r\n", "a.example").has_own_trace
        assert not header_facts(line + b"Subject: x\r\n\r\n", "example").has_own_trace


DATE = "Sun, 1 Mar 2026 12:00:00 +0000"


@pytest.mark.parametrize(("trace", "expected"), [("", DATE), ("Received: from x\r\n\tby a.example with SMTP; y\r\n", "")])
async def test_a_message_that_has_passed_this_node_before_is_no_duplicate(tmp_path: Path, trace: str, expected: str) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in(*TO_DATA)
        header = f"{trace}Date: {DATE}\r\nMessage-ID: <1@x.example>\r\n\r\n"

        await client.send(header.encode() + b"hello\r\n.\r\n")
        await client.reply()

        ((envelope, _, _),) = station.acceptor.accepted
        assert (expected, "<1@x.example>") == (envelope.date, envelope.internet_message_id)


@pytest.mark.parametrize("hops_max", [60, 20])
@pytest.mark.parametrize(("over", "expected"), [(0, "250 2.0.0 Queued"), (1, "554 5.4.6 Too many hops, message loops")])
async def test_a_message_that_loops_is_refused(hops_max: int, over: int, expected: str, tmp_path: Path) -> None:
    hops = hops_max + over
    async with receiving(tmp_path, **({} if hops_max == 60 else {"max_hop_count": hops_max})) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>", "DATA")

        await client.send(b"Received: from somewhere\r\n" * hops + b"\r\n" + b"body\r\n" * 200_000 + b".\r\n")

        assert expected == await client.reply()
        assert (not over) == bool(files_in(tmp_path))


@pytest.mark.parametrize(
    ("orcpt", "kept"),
    [
        ("utf-8;大@x.example", "utf-8;\\x{5927}@x.example"),
        ("UTF-8;\\x{5927}@x.example", "UTF-8;\\x{5927}@x.example"),
        ("utf-8;\U0001f600\\x{2B}@x.example", "utf-8;\\x{1F600}\\x{2B}@x.example"),
        ("rfc822;a+2Bb@x.example", "rfc822;a+2Bb@x.example"),
        ("utf-8;a+2Bb@x.example", None),
        ("utf-8;a\\b@x.example", None),
        ("utf-8;\\x{110000}@x.example", None),
        ("utf-8;" + "大" * 100, None),  # 800 octets as ASCII
        ("rfc822;大@x.example", None),
    ],
)
async def test_an_original_recipient_in_utf8_is_kept_as_ascii_that_means_the_same(tmp_path: Path, orcpt: str, kept: str | None) -> None:
    async with receiving(tmp_path, lenient_addresses=False) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example> SMTPUTF8")
        reply = await client.ask(f"RCPT TO:<b@here.example> ORCPT={orcpt}")
        if kept is None:
            assert "501 5.5.4 Bad parameter value" == reply
            return
        await client.ask("DATA")
        await client.send(b".\r\n")
        await client.reply()

    assert kept == station.acceptor.accepted[0][0].recipients[0].orcpt


async def test_utf8_in_an_original_recipient_needs_smtputf8_where_the_connector_is_strict(tmp_path: Path) -> None:
    async with receiving(tmp_path, lenient_addresses=False) as station:
        client = await station.client_in("EHLO client.example", "MAIL FROM:<a@x.example>")

        assert (await client.ask("RCPT TO:<b@here.example> ORCPT=utf-8;大@x.example")).startswith("553 5.6.7")


@pytest.mark.parametrize(("lenient", "expected"), [(True, ("250 2.1.0", "250 2.1.5")), (False, ("501 5.5.4", "503 5.5.1"))])
async def test_what_devices_write_is_taken_where_the_connector_says_so(tmp_path: Path, lenient: bool, expected: tuple[str, str]) -> None:
    async with receiving(tmp_path, lenient_addresses=lenient) as station:
        client = await station.client_in("EHLO client.example")
        replies = [(await client.ask(line))[:9] for line in ("MAIL FROM: <a..b@x.example>", "RCPT TO: <john.@here.example>")]
        if lenient:
            await client.ask("DATA")
            await client.send(b".\r\n")
            await client.reply()
            envelope = station.acceptor.accepted[0][0]
            assert ('"a..b"@x.example', '"john."@here.example') == (envelope.sender, envelope.recipients[0].address)

    assert expected == tuple(replies)


BARE = [
    ([], "mx1.example", ""),
    (["*.x.example", "here.example"], "here.example", "here.example"),
]


@pytest.mark.parametrize(("domains", "of_sender", "of_recipient"), BARE, ids=["nothing accepted", "accepted"])
async def test_a_client_that_may_relay_may_leave_out_the_domain(
    domains: list[str], of_sender: str, of_recipient: str, tmp_path: Path
) -> None:
    async with receiving(tmp_path, relay_from=["127.0.0.1/32"], accepted_domains=domains) as station:
        client = await station.client_in("HELO web7")
        assert "250 2.1.0 Sender OK" == await client.ask("MAIL FROM:<root> AUTH=<>")
        assert ("250 2.1.5" if of_recipient else "550 5.1.1") == (await client.ask("RCPT TO:<admin>"))[:9]
        await client.ask("RCPT TO:<b@else.example>")
        await client.ask("DATA")
        await client.send(b".\r\n")
        await client.reply()

    envelope = station.acceptor.accepted[0][0]
    of_sender = station.server.reception.name if not domains else of_sender
    assert f"root@{of_sender}" == envelope.sender
    assert [f"admin@{of_recipient}"] * bool(of_recipient) + ["b@else.example"] == [one.address for one in envelope.recipients]


async def test_strangers_and_strict_connectors_take_no_address_without_a_domain(tmp_path: Path) -> None:
    of_connectors: list[dict[str, Any]] = [{}, {"relay_from": ["127.0.0.1/32"], "lenient_addresses": False}]
    for of_connector in of_connectors:
        async with receiving(tmp_path, **of_connector) as station:
            client = await station.client_in("EHLO web7")
            assert "501 5.1.7 Bad sender address syntax" == await client.ask("MAIL FROM:<root>")
            await client.ask("MAIL FROM:<a@x.example>")
            assert "501 5.1.3 Bad recipient address syntax" == await client.ask("RCPT TO:<root>")


async def test_a_recipient_in_utf8_without_smtputf8_is_passed_on_with_it(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO web7", "MAIL FROM:<a@x.example>")
        assert "250 2.1.5 Recipient OK" == await client.ask("RCPT TO:<bü@here.example> ORCPT=rfc822;bü@here.example")
        await client.ask("DATA")
        await client.send(b".\r\n")
        await client.reply()

    envelope = station.acceptor.accepted[0][0]
    assert (True, "bü@here.example", None) == (envelope.smtputf8, envelope.recipients[0].address, envelope.recipients[0].orcpt)


async def test_a_recipient_of_bad_syntax_is_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_protocol_errors=1) as station:
        client = await station.client_in(*TO_DATA[:2])

        assert {"501 5.1.3 Bad recipient address syntax"} == {await client.ask("RCPT TO:<a(@here.example>") for _ in range(5)}
        assert "250 2.1.5 Recipient OK" == await client.ask("RCPT TO:<b@here.example>")


@pytest.mark.parametrize("name", ["my computer", "(none)", "a/b", "[192.0.2.1", "büro", "x(y)z; by me"])
async def test_a_hello_name_that_is_no_host_name_is_taken_and_forges_no_trace(name: str, tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in(f"EHLO {name}", *TO_DATA[1:])
        await client.send(b"Subject: x\r\n\r\n.\r\n")
        await client.reply()
    async with receiving(tmp_path, lenient_addresses=False) as strict:
        refused = await (await strict.connect()).ask(f"HELO {name}")

    envelope, _, octets = station.acceptor.accepted[0]
    assert name == envelope.client_name
    assert re.match(rb"Received: from [A-Za-z0-9_.\[-]+ \(\[127.0.0.1\]\)\r\n\tby ", octets)
    assert refused.startswith("250" if name == "[192.0.2.1" else "501")


async def test_parameters_after_helo_are_taken_where_the_connector_is_lenient(tmp_path: Path) -> None:
    said = []
    for is_lenient in (True, False):
        async with receiving(tmp_path, lenient_addresses=is_lenient) as station:
            client = await station.client_in("HELO c.example")
            said.append([await client.ask("MAIL FROM:<a@x.example> SIZE=10")])
            if not is_lenient:
                await client.ask("MAIL FROM:<a@x.example>")
            said[-1].append(await client.ask("RCPT TO:<b@here.example> NOTIFY=NEVER"))

    unknown = "555 5.5.4 Parameter not recognized or not implemented"
    assert [["250 2.1.0 Sender OK", "250 2.1.5 Recipient OK"], [unknown, unknown]] == said


BODIES = [b"  Alarm: zone 3\r\nsecond line\r\n", b"no header\r\n", b".\r\nx: y\r\n", b"http//x y: z\r\n", b": no name\r\n"]
HEADERS = [
    b"Subject: x\r\n\r\ny\r\n",
    b"X-Odd_1 : x\r\n",
    b"\r\nonly a body\r\n",
    b"From me Thu Nov 26\r\nTo: x\r\n",
    b">From me\r\nTo: x\r\n",
    b"",
]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("content", [*BODIES, *HEADERS], ids=repr)
def test_content_without_a_header_is_separated_from_our_trace(content: bytes, one_by_one: bool, tmp_path: Path) -> None:
    sink = ContentSink(tmp_path / "x", ContentBudget().portion(), Descriptors(sys.maxsize))
    data = DataFilter(sink, 10_000, b"Received: by us\r\n")
    written = content.replace(b"\r\n.", b"\r\n..")
    written = b"." + written if written.startswith(b".") else written
    for block in [written[place : place + 1] for place in range(len(written))] if one_by_one else [written]:
        data.take(block)
    if not content:
        data.take(b"")

    assert data.refusal is None
    assert b"Received: by us\r\n" + (b"\r\n" if content in BODIES else b"") + content == sink.content().data


@given(st.lists(st.sampled_from([b"x" * 1_500, b".", b"\r\n", b"\r\n.", b"y"]), max_size=30), st.integers(1, 3_000))
def test_lines_of_any_length_arrive_as_they_were_sent_wherever_blocks_end(pieces: list[bytes], block: int) -> None:
    content = b"Subject: x\r\n" + b"".join(pieces) + b"\r\n"
    sink = ContentSink("never written", ContentBudget().portion(), Descriptors(sys.maxsize))
    data = DataFilter(sink, 1_000_000, takes_long_lines=True)
    written = content.replace(b"\r\n.", b"\r\n..")
    for start in range(0, len(written), block):
        data.take(written[start : start + block])

    assert data.refusal is None
    assert content == sink.content().data


async def test_a_long_line_is_taken_where_the_connector_is_lenient(tmp_path: Path) -> None:
    content = b"Subject: x\r\n\r\n" + b"x." * 1_500_000 + b"\r\nend\r\n"
    async with receiving(tmp_path) as station:
        client = await station.client_in(*TO_DATA)
        await client.send(stuffed(content))

        assert "250 2.0.0 Queued" == await client.reply()
    assert [content] == station.acceptor.bodies


async def test_a_bare_postmaster_gets_his_domain_or_is_refused(tmp_path: Path) -> None:
    async with receiving(tmp_path) as station:
        client = await station.client_in(*TO_DATA[:2], "RCPT TO:<Postmaster>", "DATA")
        await client.send(b".\r\n")
        await client.reply()
        assert "Postmaster@here.example" == station.acceptor.accepted[0][0].recipients[0].address
    async with receiving(tmp_path, accepted_domains=[]) as station:
        client = await station.client_in(*TO_DATA[:2])
        assert "550 5.1.1 No postmaster without a domain here" == await client.ask("RCPT TO:<Postmaster>")
        assert "554 5.5.1 No valid recipients" == await client.ask("DATA")


async def test_names_without_a_domain_get_the_one_that_is_set(tmp_path: Path) -> None:
    async with receiving(tmp_path, relay_from=["127.0.0.1/32"], accepted_domains=[], default_domain="Corp.Example.") as station:
        client = await station.client_in("EHLO cron.example", "MAIL FROM:<root>", "RCPT TO:<admin>", "RCPT TO:<postmaster>", "DATA")
        await client.send(b".\r\n")
        await client.reply()
        envelope = station.acceptor.accepted[0][0]
        assert "root@corp.example" == envelope.sender
        assert ["admin@corp.example", "postmaster@corp.example"] == [recipient.address for recipient in envelope.recipients]


TRACES = b"Received: from a\r\n\tby b; now\r\nReturn-Path: <a@b>\r\nreceived: from c\r\n by d; then\r\n"
MESSAGE = b"Subject: x\r\nReceived: not at the beginning\r\n\r\nhello\r\n"


def fingerprint_of(content: bytes, block_octets: int = 1_000) -> str:
    taken = ContentFingerprint()
    for start in range(0, len(content), block_octets):
        taken.update(content[start : start + block_octets])
    return taken.digest()


@pytest.mark.parametrize("content", [TRACES + MESSAGE, MESSAGE, TRACES, TRACES[:-20], b"", b"hello", b"\r\nhello\r\n"])
@pytest.mark.parametrize("block_octets", [1, 2, 7])
def test_a_fingerprint_does_not_depend_on_how_the_content_arrives(content: bytes, block_octets: int) -> None:
    assert fingerprint_of(content) == fingerprint_of(content, block_octets)


def test_a_fingerprint_is_of_what_follows_the_trace_fields() -> None:
    assert fingerprint_of(MESSAGE) == fingerprint_of(TRACES + MESSAGE)
    assert fingerprint_of(MESSAGE) != fingerprint_of(MESSAGE.replace(b"hello", b"hallo"))
    assert fingerprint_of(MESSAGE) != fingerprint_of(MESSAGE.replace(b"not at", b"at"))


async def test_blanks_around_verbs_are_taken_where_the_connector_is_lenient(tmp_path: Path) -> None:
    lines = ["\tEHLO client.example", " MAIL  FROM:<a@x.example>", "RCPT\tTO:<b@here.example>", "NOOP\tx", "BDAT\t0 \tLAST "]
    said = []
    for is_lenient in (True, False):
        async with receiving(tmp_path, lenient_addresses=is_lenient) as station:
            client = await station.client_in()
            await client.ask("EHLO client.example")
            said.append([(await client.ask(line))[:3] for line in lines])

    assert [["250"] * 5, ["500", "500", "500", "500", "500"]] == said
