"""What peers do in sessions with the receiver: copies, proofs of life, discard notifications."""

import asyncio
import hashlib
import socket
import struct
from pathlib import Path

import pytest

from shadowrelay.model.ids import BoundaryName, ServerName
from shadowrelay.model.message import CONTENT_IN_MEMORY_BYTES_MAX
from shadowrelay.model.ownership import DiscardEvent, DiscardStatus, StatusQuestion
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.replies import STORE_UNAVAILABLE, LedgerUnavailable, Reply
from shadowrelay.protocol.xqdiscard import BLOCK_OCTETS_MAX, format_question_block
from shadowrelay.protocol.xshadow import format_commit, format_hold
from tests.kit.clock import until
from tests.kit.receiving import HELLO, OWN_DATABASE, PEER, PEER_DATABASE, files_in, receiving
from tests.smtp.copies import ENVELOPE, HELD, NUMBER, a_copy, peer_of

B = ServerName("b.example")


@pytest.mark.parametrize(
    "content",
    [b"", b"hello\r\n", b"bare \n and \r are the primary's business\r\n", b"QUIT\r\n.\r\nBDAT 5\r\n", b"no line end", bytes(range(256))],
    ids=repr,
)
async def test_a_copy_is_held_bit_for_bit_with_its_whole_envelope(content: bytes, tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)

        await client.send(a_copy(content))

        assert HELD == (await client.replies(6))[-1]
        offer, octets = station.peer_requests.holds[0]
        assert (ENVELOPE, NUMBER, frozenset({2}), content) == (offer.envelope, offer.number, offer.done, octets)


async def test_a_large_copy_in_chunks_is_spooled(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    async with receiving(tmp_path, max_message_size=64_000, **PEER) as station:
        client = await peer_of(station)

        await client.send(a_copy(content, 100_000))

        assert HELD == (await client.replies(5 + 26))[-1]
        offer, octets = station.peer_requests.holds[0]
        assert content == octets
        assert offer.content.path is not None
        assert offer.content.size > CONTENT_IN_MEMORY_BYTES_MAX


async def test_a_copy_byte_by_byte_and_the_session_is_in_step(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        for octet in a_copy(b"QUIT\r\n", 2) + b"NOOP\r\n":
            await client.send(bytes((octet,)))
            await asyncio.sleep(0)

        assert [HELD, "250 2.0.0 OK"] == (await client.replies(9))[-2:]


async def test_the_replies_of_a_small_copy_leave_in_one_write(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)
        station.peer_requests.gate = asyncio.Event()
        await client.send(a_copy(b"x" * 10_000))
        await station.peer_requests.began.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await client.reply()

        station.peer_requests.gate.set()

        assert HELD == (await client.replies(6))[-1]


async def test_a_peer_that_waits_for_its_replies_before_it_sends_the_chunk_gets_them(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)
        head, _, tail = a_copy(b"hello\r\n").partition(b"hello\r\n")
        await client.send(head)

        assert 4 == len(await client.replies(4))
        await client.send(b"hello\r\n" + tail)
        assert HELD == (await client.replies(2))[-1]


WRONG = [
    ("another size", {"commit": f"XSHADOW COMMIT {format_commit(8, hashlib.sha256(b'hello' + bytes((13, 10))).digest())}"}, 5,
     "451 4.5.0 Size or SHA-256 differs from what was received position=7"),
    ("another hash", {"commit": f"XSHADOW COMMIT {format_commit(7, bytes(32))}"}, 5,
     "451 4.5.0 Size or SHA-256 differs from what was received position=7"),
    ("a commit that cannot be read", {"commit": "XSHADOW COMMIT size=seven"}, 5, "501 5.5.4 XSHADOW COMMIT wants size= and sha256="),
    ("an envelope that cannot be read", {"envelope": "XSHADOW ENVELOPE !"}, 3, "501 5.5.4 Bad XSHADOW ENVELOPE"),
    ("no envelope", {"envelope": "NOOP"}, 5, "503 5.5.1 A shadow copy needs recipients and XSHADOW ENVELOPE"),
    ("a number that cannot be read", {"mail": f"MAIL FROM:<> SMTPUTF8 XSHADOW=HOLD:{ENVELOPE.message_id}:1"}, 0,
     "501 5.5.4 Bad copy number"),
    ("an id that is no UUID", {"mail": "MAIL FROM:<> SMTPUTF8 XSHADOW=HOLD:../../etc/passwd:1.1"}, 0, "501 5.5.4 Bad message id"),
    ("a size over the bound", {"mail": f"MAIL FROM:<> SIZE=4000000001 SMTPUTF8 XSHADOW=HOLD:{ENVELOPE.message_id}:1.1"}, 0,
     "552 5.3.4 Message size exceeds the limit"),
    ("a line over its limit", {"envelope": "XSHADOW ENVELOPE " + "A" * 8_200}, 3, "500 5.5.2 Command line too long"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "at", "expected"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
async def test_a_copy_with_a_fault_is_not_kept_and_the_next_one_is(changes: dict[str, str], at: int, expected: str, tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)

        await client.send(a_copy(b"hello\r\n", **changes) + a_copy(b"hello\r\n"))
        replies = await client.replies(12)

        assert expected.removesuffix(" position=7") == replies[at].removesuffix(" position=7")
        assert ["503"] * (5 - at) == [reply[:3] for reply in replies[at + 1 : 6]]
        assert HELD == replies[-1]
        assert 1 == len(station.peer_requests.holds)


async def test_a_copy_over_the_bound_is_read_refused_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowrelay.smtp.peer_part.HOLD_SIZE_MAX", 10)
    mail = f"MAIL FROM:<> SMTPUTF8 XSHADOW=HOLD:{ENVELOPE.message_id}:1.1"
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)

        await client.send(a_copy(b"QUIT\r\n" * 2, 6, mail=mail) + b"NOOP\r\n")

        replies = await client.replies(8)
        assert "250 2.0.0 6 octets received" == replies[4]
        assert "552 5.3.4 Message size exceeds the limit" == replies[5]
        assert ["503 5.5.1 The shadow copy has failed already", "250 2.0.0 OK"] == replies[6:]


async def test_a_peer_that_vanishes_within_a_copy_leaves_nothing(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)
        await client.send(a_copy(b"x" * 3_000_000)[:2_000_000])
        await until(lambda: files_in(tmp_path))

        client.writer.transport.abort()

        await until(lambda: not files_in(tmp_path))
        assert [] == station.peer_requests.holds


async def test_a_peer_that_vanishes_after_commit_does_not_stop_the_hold(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)
        station.peer_requests.gate = asyncio.Event()
        await client.send(a_copy(b"hello\r\n"))
        await station.peer_requests.began.wait()
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
        await until(lambda: not station.server.sessions_count)

        station.peer_requests.gate.set()

        await until(lambda: station.peer_requests.holds)


async def test_no_copy_is_taken_while_none_is_offered(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        station.peer_requests.is_offering = False
        client = await station.connect()

        assert (await client.ask("EHLO b.example")).endswith("\n250 XSHADOW FORKS EARLY")
        await client.ask(HELLO)
        await client.send(a_copy(b"hello\r\n"))

        assert ["452", "503", "503", "503", "503", "503"] == [reply[:3] for reply in await client.replies(6)]


async def test_the_keyword_is_hidden_when_shadow_redundancy_is_off(tmp_path: Path) -> None:
    async with receiving(tmp_path, transport={"shadow_redundancy_enabled": False}, **PEER) as station:
        client = await station.connect()

        assert "XSHADOW" not in await client.ask("EHLO b.example")


async def test_a_peers_other_mail_follows_the_ordinary_rules(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_message_size=64_000, **PEER) as station:
        client = await peer_of(station)

        assert "552 5.3.4 Message size exceeds the limit" == await client.ask("MAIL FROM:<a@x.example> SIZE=64001")
        await client.ask("MAIL FROM:<a@x.example>")
        assert "550 5.7.1 Relaying denied" == await client.ask("RCPT TO:<b@elsewhere.example>")


async def test_a_copy_may_have_more_recipients_than_mail_of_strangers(tmp_path: Path) -> None:
    async with receiving(tmp_path, max_recipients_per_message=100, **PEER) as station:
        client = await peer_of(station)
        await client.ask(f"MAIL FROM:<> XSHADOW={format_hold(ENVELOPE.message_id, NUMBER)}")

        await client.send(b"".join(b"RCPT TO:<%d@x.example>\r\n" % number for number in range(5_001)))

        assert ["250 2.1.5 Recipient OK"] * 5_000 == await client.replies(5_000)
        assert "452 4.5.3 Too many recipients" == (await client.replies(1))[0]


# proofs of life


async def test_what_a_peer_sends_is_a_sign_of_life_and_a_command_that_begins_an_exchange_proves_our_last_reply(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)
        hello_answered_at = float(station.clock.asked_count)

        await client.send(a_copy(b"hello\r\n"))
        await client.replies(6)

        proofs = [told for told in station.peer_requests.told if told[0] == "proved"]
        assert [("proved", B, hello_answered_at)] == proofs  # by MAIL; the lines after it may have been written before
        heard_count = station.peer_requests.told.count(("heard", B))
        assert heard_count > 0
        copy_answered_at = float(station.clock.asked_count)
        assert copy_answered_at > hello_answered_at

        await client.ask("XQDISCARD 400")

        assert ("proved", B, copy_answered_at) == station.peer_requests.told[-2]
        assert station.peer_requests.told.count(("heard", B)) > heard_count


async def test_nothing_is_proved_before_the_hello_was_answered(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await station.client_in("EHLO b.example", "NOOP")

        await client.send(f"{HELLO}\r\nNOOP\r\n".encode())
        await client.replies(2)

        assert [("greeted", B), ("heard", B), ("heard", B)] == station.peer_requests.told


async def test_what_was_answered_to_one_identity_proves_nothing_of_another(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)

        await client.send(f"{HELLO.replace(PEER_DATABASE, OWN_DATABASE)}\r\nNOOP\r\n".encode())
        await client.replies(2)

        assert [] == [told for told in station.peer_requests.told if told[0] == "proved"]


# what must you tell me?


async def test_discard_notifications_page_and_carry_the_position(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)
        events = tuple(
            DiscardEvent(number, ENVELOPE.message_id, DiscardStatus.DELIVERED, frozenset({1, 2, 3, 5}) if number == 2 else frozenset())
            for number in (1, 2)
        )
        station.peer_requests.discard_reply = DiscardReply(events, 9)

        reply = await client.ask("XQDISCARD 2 17")

        assert (
            f"250-2.0.0 1 {ENVELOPE.message_id} delivered\n250-2.0.0 2 {ENVELOPE.message_id} delivered 1-3,5\n"
            "250 2.0.0 remaining=9 position=7"
        ) == reply
        assert ("discards", 2, 17) in station.peer_requests.told


async def test_400_questions_come_as_a_block_and_get_as_many_answers(tmp_path: Path) -> None:
    block = format_question_block([StatusQuestion(ENVELOPE.message_id, NUMBER)] * 400)
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)

        await client.send(b"XQDISCARD STATUS BDAT %d\r\n" % len(block) + block)

        lines = (await client.reply()).split("\n")
        assert (401, "250-2.0.0 unknown", "250 2.0.0 answers=400 position=7") == (len(lines), lines[0], lines[-1])


@pytest.mark.parametrize(
    ("announced", "expected"),
    [(6, "501 5.5.4 Bad question"), (BLOCK_OCTETS_MAX + 1, "501 5.5.4 Bad block size"), (10**6, "501 5.5.4 Bad block size")],
)
async def test_the_octets_of_a_bad_block_are_not_obeyed(announced: int, expected: str, tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)

        await client.send(
            b"XQDISCARD STATUS BDAT %d\r\n" % announced + b"QUIT\r\n" * (announced // 6) + b"QUITQU"[: announced % 6] + b"NOOP\r\n"
        )

        assert [expected, "250 2.0.0 OK"] == [(await client.reply())[: len(expected)], await client.reply()]


async def test_what_is_proved_was_noted_before_the_reply_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await station.client_in("EHLO b.example")
        asked_at_write: list[int] = []
        kind = next(kind for kind in type(client.writer.transport).mro() if "write" in vars(kind))
        write = kind.write

        def noted(self: asyncio.Transport, data: bytes) -> None:
            if data.startswith(b"250 2.0.0 "):
                asked_at_write.append(station.clock.asked_count)
            write(self, data)

        monkeypatch.setattr(kind, "write", noted)
        await client.ask(HELLO)
        await client.ask("NOOP")

    (proof,) = [told for told in station.peer_requests.told if told[0] == "proved"]
    assert proof[2] <= asked_at_write[0]


@pytest.mark.parametrize("error", [LedgerUnavailable(STORE_UNAVAILABLE, "disk full"), ValueError("a bug"), asyncio.CancelledError()])
async def test_the_file_of_a_copy_goes_when_the_desk_fails(tmp_path: Path, error: BaseException) -> None:
    called = asyncio.Event()
    async with receiving(tmp_path, **PEER) as station:

        async def fail(peer: PeerIdentity, offer: CopyOffer) -> Reply:
            assert offer.content.path is not None
            assert files_in(tmp_path)
            called.set()
            raise error

        station.peer_requests.hold = fail  # type: ignore[method-assign]
        client = await peer_of(station)
        await client.send(a_copy(b"x" * (CONTENT_IN_MEMORY_BYTES_MAX + 1)))
        if not isinstance(error, asyncio.CancelledError):
            assert (await client.replies(6))[-1].startswith("451 4.3.0")
        await called.wait()
        await until(lambda: not files_in(tmp_path))


async def test_a_node_that_stops_takes_no_mail_and_tells_peers_what_is_done(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        kept, stranger = await peer_of(station), await station.client_in("EHLO client.example")

        await station.server.drain(60)

        assert "421 4.3.2 Service shutting down, closing connection\r\n" == await stranger.rest()
        assert "250 2.0.0 remaining=0 position=7" == await kept.ask("XQDISCARD 400")
        fresh = await station.client_in("EHLO b.example", HELLO)
        assert "250 2.0.0 remaining=0 position=7" == await fresh.ask("XQDISCARD 400")
        late = await station.client_in()
        assert "421 4.3.2 Service shutting down, closing connection" == await late.ask("EHLO client.example")
        await fresh.send(a_copy(b"hello\r\n"))
        assert "421 4.3.2 Service shutting down, closing connection\r\n" == await fresh.rest()
        station.server.dismiss()
        assert "421 4.3.2 Service shutting down, closing connection\r\n" == await kept.rest()
        assert ([], []) == (station.acceptor.accepted, station.peer_requests.holds)


async def test_a_node_that_stops_lets_a_peer_finish_its_copy(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)
        station.peer_requests.gate = asyncio.Event()
        await client.send(a_copy(b"hello\r\n"))
        await station.peer_requests.began.wait()

        draining = asyncio.ensure_future(station.server.drain(60))
        await asyncio.sleep(0.05)
        assert not draining.done()
        station.peer_requests.gate.set()
        await draining

        assert HELD == (await client.replies(6))[-1]


async def test_a_peer_that_cannot_be_who_it_says_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        station.peer_requests.conflict = Reply(550, "5.7.1", "Refused: it has this node's queue")
        client = await station.client_in("EHLO b.example")

        refused = await client.ask(HELLO)
        own_name = await client.ask(HELLO.replace("server=b.example", "server=a.example"))

        assert "550 5.7.1 Refused: it has this node's queue" == refused == own_name
        assert [] == station.peer_requests.told
        assert "503" == (await client.ask("XQDISCARD 400"))[:3]


async def test_a_refusal_proves_nothing_because_the_peer_does_not_count_it_as_a_sign_of_life(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        client = await peer_of(station)
        requests = station.peer_requests

        async def fail(peer: PeerIdentity, maximum: int, acknowledged: int | None) -> DiscardReply:
            raise LedgerUnavailable(STORE_UNAVAILABLE, "disk full")

        answering, requests.discards = requests.discards, fail  # type: ignore[method-assign]
        requests.told.clear()
        for _ in range(3):
            assert (await client.ask("XQDISCARD 400")).startswith("451 4.3.0 ")
        requests.discards = answering  # type: ignore[method-assign]
        assert "250 2.0.0 remaining=0 position=7" == await client.ask("XQDISCARD 400")
        requests_proved = [told[0] for told in requests.told].count("proved")
        await client.ask("NOOP")

        assert (1, 2) == (requests_proved, [told[0] for told in requests.told].count("proved")), "of the hello, and of the answer"


async def test_a_node_that_falls_silent_ends_the_sessions_of_peers_also_one_that_waits_and_takes_no_mail(tmp_path: Path) -> None:
    silence = Reply(421, "4.3.0", "Local storage error, closing connection")
    async with receiving(tmp_path, **PEER) as station:
        idle, waiting, stranger = await peer_of(station), await peer_of(station), await station.client_in("EHLO c.example")
        station.peer_requests.gate = asyncio.Event()
        await waiting.send(a_copy(b"hello\r\n"))
        await station.peer_requests.began.wait()

        station.server.fall_silent(silence)

        assert [str(silence)] == (await idle.rest()).splitlines()
        assert str(silence) == (await waiting.rest()).splitlines()[-1]
        assert str(silence) == (await stranger.rest()).splitlines()[-1]
        station.peer_requests.conflict = Reply(451, "4.3.0", "This server cannot commit")
        again = await station.client_in("EHLO b.example")
        assert "451 4.3.0 This server cannot commit" == await again.ask(HELLO)
        assert "503" == (await again.ask("XQDISCARD 400"))[:3]
        assert str(silence) == await again.ask("MAIL FROM:<a@x.example>")
        station.peer_requests.gate.set()


async def test_a_connector_that_does_not_accept_xshadow_takes_no_peer_for_one(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER, unchecked={"accept_xshadow": False}) as station:
        client = await station.connect()
        await client.send(b"EHLO b.example\r\n" + HELLO.encode() + b"\r\n")
        offered = await client.reply()

        assert "XSHADOW" not in offered
        assert (await client.reply()).startswith("502 5.5.1 ")
        assert [] == station.peer_requests.told


async def test_a_peer_of_another_boundary_has_no_sessions_unless_it_is_linked(tmp_path: Path) -> None:
    async with receiving(tmp_path, **PEER) as station:
        station.server.reception.boundary = BoundaryName("elsewhere")
        station.server.reception.linked = frozenset()
        client = await station.client_in("EHLO b.example")

        assert "550 5.7.1 Another transport high availability boundary" == await client.ask(HELLO)

        station.server.reception.linked = frozenset({B})
        assert (await client.ask(HELLO)).startswith("250 2.0.0 server=a.example ")
