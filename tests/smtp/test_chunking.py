"""CHUNKING and BINARYMIME: content that comes in chunks, and goes out in chunks, as it is or in lines. RFC 3030."""

import email
from pathlib import Path

import pytest

from shadowrelay.model.message import BodyType
from shadowrelay.model.replies import PermanentDeliveryError, TransientDeliveryError
from tests.kit.clock import until
from tests.kit.ledger import a_content, a_spooled_content, an_envelope
from tests.kit.receiving import files_in, receiving
from tests.kit.smtp_servers import CLOSE, ScriptedServer, serving
from tests.smtp.deliverers import TAKEN, a_deliverer, a_job, at, route
from tests.smtp.transactions import BODY, run, some_work

HEAD = b"From: a@x.example\r\nMIME-Version: 1.0\r\nContent-Type: image/png\r\nContent-Transfer-Encoding: binary\r\n\r\n"
OCTETS = bytes(range(256)) * 2_000 + b"\r\n.\r\n\n.\n"
BINARY = HEAD + OCTETS
SIGNED = b"MIME-Version: 1.0\r\nContent-Type: multipart/signed; boundary=b\r\n\r\n--b\r\n\r\n\n\r\n--b--\r\n"
CHUNKING = ("PIPELINING", "8BITMIME", "SIZE 10000000", "CHUNKING")
BINARYMIME = (*CHUNKING, "BINARYMIME")
LINES = ("PIPELINING", "8BITMIME")


def payload(octets: bytes) -> bytes:
    found = email.message_from_bytes(octets).get_payload(decode=True)
    assert isinstance(found, bytes)
    return found


# from clients


@pytest.mark.parametrize("chunk", [1, 7, 1_000, 70_000, 10_000_000])
async def test_binary_content_comes_through_bit_for_bit_however_it_is_cut(chunk: int, tmp_path: Path) -> None:
    content = BINARY if chunk > 100 else BINARY[:2_000]
    async with receiving(tmp_path) as station:
        client = await station.client_in("EHLO c.example", "MAIL FROM:<a@x.example> BODY=BINARYMIME", "RCPT TO:<b@here.example>")
        for start in range(0, len(content), chunk):
            block = content[start : start + chunk]
            await client.send(b"BDAT %d%s\r\n" % (len(block), b" LAST" if start + chunk >= len(content) else b"") + block)
            assert (await client.reply()).startswith("250 2.0.0")

    assert [content] == station.acceptor.bodies
    assert BodyType.BINARY_MIME is station.acceptor.accepted[0][0].body


@pytest.mark.parametrize("ending", ["RSET", "lost", "too big"])
async def test_chunks_without_a_last_one_leave_nothing_behind(ending: str, tmp_path: Path) -> None:
    async with receiving(tmp_path, max_message_size=4_000_000) as station:
        client = await station.client_in("EHLO c.example", "MAIL FROM:<a@x.example>", "RCPT TO:<b@here.example>")
        await client.send(b"BDAT 3000000\r\n" + b"S: x\r\n" * 500_000)
        assert await client.reply() == "250 2.0.0 3000000 octets received"
        assert len(files_in(tmp_path)) == 1
        if ending == "RSET":
            assert await client.ask("RSET") == "250 2.0.0 OK"
        elif ending == "too big":
            await client.send(b"BDAT 3000000 LAST\r\n" + b"S: x\r\n" * 500_000)
            assert (await client.reply()).startswith("552 5.3.4 ")
            assert await client.ask("NOOP") == "250 2.0.0 OK"
        else:
            client.writer.transport.abort()
        await until(lambda: not files_in(tmp_path))

    assert [] == station.acceptor.bodies


async def test_a_connector_may_offer_chunks_without_binary_content(tmp_path: Path) -> None:
    async with receiving(tmp_path, binary_mime_enabled=False) as station:
        client = await station.connect()
        offered = [line[4:] for line in (await client.ask("EHLO c.example")).split("\n")]

        assert "CHUNKING" in offered
        assert "BINARYMIME" not in offered
        assert await client.ask("MAIL FROM:<a@x.example> BODY=BINARYMIME") == "501 5.5.4 Bad parameter value"


# to next hops


@pytest.mark.parametrize("is_spooled", [False, True])
@pytest.mark.parametrize("size", [0, 1_000, 3_000_000])
async def test_content_goes_in_chunks_where_they_are_offered_and_needs_no_dots(size: int, is_spooled: bool, tmp_path: Path) -> None:
    server = ScriptedServer(extensions=CHUNKING)
    data = BODY + b".\r\n" * (size // 3)
    work = some_work(2, data, prefix=b"Received: by us\r\n")
    if is_spooled:
        work = some_work(2, prefix=b"Received: by us\r\n", spooled=a_spooled_content(tmp_path, data))

    result = await run(server, work)

    assert {1: "250 2.0.0 ok", 2: "250 2.0.0 ok"} == result.replies
    assert [b"Received: by us\r\n" + data] == server.messages
    assert "DATA" not in server.lines
    assert result.is_usable


@pytest.mark.parametrize(
    ("extensions", "data", "said", "expected"),
    [
        (BINARYMIME, BINARY, f"SIZE={len(BINARY)} BODY=BINARYMIME", BINARY),
        (BINARYMIME, BODY, f"SIZE={len(BODY)} BODY=BINARYMIME", BODY),
        (CHUNKING, BODY, f"SIZE={len(BODY)}", BODY),
        (LINES, BODY, "", BODY),
        (("BINARYMIME", "PIPELINING"), BODY, "", BODY),  # without CHUNKING it means nothing
        (LINES, HEAD + b"\xc3\xa4\r\n", "BODY=8BITMIME", HEAD + b"\xc3\xa4\r\n"),
    ],
)
async def test_binary_content_goes_as_it_is_where_it_may_or_where_it_is_text(extensions, data: bytes, said: str, expected: bytes) -> None:
    server = ScriptedServer(extensions=extensions)

    result = await run(server, some_work(data=data, body=BodyType.BINARY_MIME))

    assert result.error is None
    assert [expected] == server.messages
    mail = next(line for line in server.lines if line.startswith("MAIL"))
    assert said == mail.partition("> ")[2]


@pytest.mark.parametrize("is_spooled", [False, True])
@pytest.mark.parametrize("extensions", [CHUNKING, LINES, ("SIZE 10000000",)])
async def test_binary_content_goes_in_base64_to_who_takes_nothing_else(extensions, is_spooled: bool, tmp_path: Path) -> None:
    server = ScriptedServer(extensions=extensions)
    spooled = a_spooled_content(tmp_path, BINARY) if is_spooled else None

    result = await run(server, some_work(data=BINARY, spooled=spooled, body=BodyType.BINARY_MIME))

    assert result.error is None
    assert OCTETS == payload(server.messages[0])
    mail = next(line for line in server.lines if line.startswith("MAIL"))
    if any(extension.startswith("SIZE") for extension in extensions):
        assert f"SIZE={len(server.messages[0]) - 2}" in mail  # without the end of the last line, which is sent with it
    assert "BODY" not in mail


@pytest.mark.parametrize("size", [0, 5_000, 900_000])
async def test_a_large_multipart_in_a_file_is_converted_part_by_part(size: int, tmp_path: Path) -> None:
    parts = [bytes(range(256)) * (size // 256) + b"\n--b\r\n--bb" + b"x" * number for number in range(5)]
    body = b"".join(b"\r\n--b\r\nContent-Type: image/png\r\n\r\n" + part for part in parts)
    data = b"MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n" + body + b"\r\n--b--\r\n"
    server = ScriptedServer(extensions=CHUNKING)

    result = await run(server, some_work(spooled=a_spooled_content(tmp_path, data), body=BodyType.BINARY_MIME))

    assert result.error is None
    assert parts == [part.get_payload(decode=True) for part in email.message_from_bytes(server.messages[0]).get_payload()]


@pytest.mark.parametrize("data", [SIGNED, b"X: \r\n\r\n".replace(b"X", b"\xff") + b"\n"])
async def test_what_has_no_form_in_lines_is_returned_and_never_sent(data: bytes) -> None:
    server = ScriptedServer(extensions=CHUNKING)

    result = await run(server, some_work(data=data, body=BodyType.BINARY_MIME))

    assert isinstance(result.error, PermanentDeliveryError)
    assert result.error.reply.enhanced in ("5.6.2", "5.6.3")
    assert result.is_usable
    assert not any(line.startswith("MAIL") for line in server.lines)


async def test_another_server_may_take_what_one_cannot() -> None:
    first, second = ScriptedServer(extensions=CHUNKING), ScriptedServer(extensions=BINARYMIME)
    async with serving(first, second), a_deliverer() as deliverer:
        envelope = an_envelope(1, body=BodyType.BINARY_MIME)
        report = await deliverer.deliver(a_job(route(at(first), at(second)), envelope, content=a_content(SIGNED)))

    assert [250] == [reply.code for reply in report.replies.values()]
    assert [SIGNED] == second.messages


@pytest.mark.parametrize(("refusal", "is_permanent"), [("552 5.3.4 too big", True), ("452 4.3.1 full", False)])
@pytest.mark.parametrize("chunk", [0, 1, 11])
async def test_a_refused_chunk_is_the_reply_and_nothing_of_it_is_taken(
    chunk: int, refusal: str, is_permanent: bool, tmp_path: Path
) -> None:
    data = BODY + b"x\r\n" * 1_000_000  # 12 chunks
    server = ScriptedServer({"BDAT": ["250 ok"] * chunk + [refusal, "503 5.5.1 no"]}, extensions=CHUNKING)

    result = await run(server, some_work(spooled=a_spooled_content(tmp_path, data)))

    assert {1: refusal} == result.replies, result.error
    assert [] == server.messages
    if chunk < 11:
        assert "RSET" in server.lines
        assert not any(line.endswith("LAST") for line in server.lines)
    assert result.is_usable


async def test_the_last_chunk_is_not_sent_when_the_lease_is_too_short(tmp_path: Path) -> None:
    server = ScriptedServer(extensions=CHUNKING)
    data = BODY + b"x\r\n" * 1_000_000

    result = await run(server, some_work(spooled=a_spooled_content(tmp_path, data), may_end_data=lambda: False))

    assert type(result.error).__name__ == "LeaseTooShort"
    assert not any(line.endswith("LAST") for line in server.lines)


async def test_without_an_answer_to_the_last_chunk_nothing_is_repeated() -> None:
    server = ScriptedServer({"BDAT": CLOSE}, extensions=CHUNKING)
    async with serving(server), a_deliverer() as deliverer:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - looked at below
            await deliverer.deliver(a_job(route(at(server), at(server)), an_envelope(1)))

    assert caught.value.dot_sent_unanswered  # type: ignore[attr-defined]
    assert sum(line.startswith("BDAT") for line in server.lines) == 1


async def test_a_server_that_loses_its_session_by_a_chunk_gets_data_the_next_time() -> None:
    server = ScriptedServer({"BDAT": [CLOSE]}, extensions=BINARYMIME)
    async with serving(server), a_deliverer() as deliverer:
        with pytest.raises(TransientDeliveryError):
            await deliverer.deliver(a_job(route(at(server)), an_envelope(1)))
        await deliverer.deliver(a_job(route(at(server)), an_envelope(1)))
        assert ["BDAT", "DATA"] == [line[:4] for line in server.lines if line[:4] in ("BDAT", "DATA")]

        with pytest.raises(TransientDeliveryError):
            await deliverer.deliver(a_job(route(at(server)), an_envelope(1, body=BodyType.BINARY_MIME), content=a_content(BINARY)))
    assert sum(line.startswith("BDAT") for line in server.lines) == 2, "only by chunks it goes as it is"


@pytest.mark.parametrize("refusal", ["500 what", "501 5.5.4 syntax", "502 5.5.1 what", "503 5.5.1 out of order", "504 no"])
async def test_a_server_that_offers_chunks_and_does_not_know_them_gets_data(refusal: str) -> None:
    server = ScriptedServer({"BDAT": refusal}, extensions=CHUNKING)
    async with serving(server), a_deliverer() as deliverer:
        for _ in range(2):
            report = await deliverer.deliver(a_job(route(at(server)), an_envelope(1)))
            assert {1: TAKEN} == report.replies

    assert sum(line.startswith("BDAT") for line in server.lines) == 1
    assert len(server.messages) == 2


async def test_chunks_can_be_switched_off_for_next_hops() -> None:
    server = ScriptedServer(extensions=BINARYMIME)
    async with serving(server), a_deliverer(sends_chunks=False) as deliverer:
        await deliverer.deliver(a_job(route(at(server)), an_envelope(1, body=BodyType.BINARY_MIME), content=a_content(BINARY)))

    assert OCTETS == payload(server.messages[0])
    assert "DATA" in server.lines
