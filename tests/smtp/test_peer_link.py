"""Sessions to a peer: the handshake, copies in one write, what is certain after a failure, XQDISCARD on a kept session.

One file, because it is one session with one scripted peer, from its greeting to its end.
"""

import asyncio
import contextlib
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme

from shadowrelay.model.ids import BoundaryName, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import BodyType, Content, Recipient
from shadowrelay.model.ownership import CopyNumber, DiscardEvent, DiscardStatus, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import CopyOffer, DiscardReply, PeerIdentity
from shadowrelay.model.replies import STORE_UNAVAILABLE, LedgerUnavailable, PeerSaid, PeerUnavailable
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import replace
from shadowrelay.ports import HoldAnswer
from shadowrelay.protocol.xqdiscard import (
    BAD_FORKS,
    format_answer,
    format_answer_lines,
    format_reply_lines,
    format_superseded,
    parse_question_block,
    parse_status,
)
from shadowrelay.protocol.xshadow import format_hello, parse_commit, parse_envelope, parse_hello, parse_hold
from shadowrelay.smtp.client import ConnectOptions, TlsUse
from shadowrelay.smtp.kept_sessions import LIFE_SECONDS_MAX
from shadowrelay.smtp.peer_link import LinkEvents, SessionLink, SmtpPeerLink
from tests.kit.clock import PATIENCE_SECONDS, Hands, let_pass, until
from tests.kit.ledger import NOW, a_content, a_spooled_content, an_envelope
from tests.kit.smtp_servers import CLOSE, HANG, CancelledAt, ScriptedServer, cancelled_at, serving

OURS = DatabaseId("11111111-1111-4111-8111-111111111111")
THEIRS = DatabaseId("22222222-2222-4222-8222-222222222222")
PEER = ServerName("mx1.west.example")
ME = PeerIdentity(ServerName("mx1.east.example"), BoundaryName("example"), OURS, 3, 10, 20, timedelta(hours=3))
IT = PeerIdentity(PEER, BoundaryName("example"), THEIRS, 5, 100, 200, timedelta(hours=3))
MESSAGE = MessageId("33333333-3333-4333-8333-333333333333")
BODY = b"Subject: hello\r\n\r\n.\r\nno line end, \xff and \r and \n"
EXTENSIONS = ("PIPELINING", "8BITMIME", "SMTPUTF8", "SIZE", "XSHADOW HOLD")
HELLO = f"250 2.0.0 {format_hello(IT)}"
FROM_ANOTHER_SERVER = f"250 {format_hello(replace(IT, server=ServerName('other.example')))}"
FROM_ANOTHER_BOUNDARY = f"250 {format_hello(replace(IT, boundary=BoundaryName('other')))}"
DEADLINE = PATIENCE_SECONDS
STILL = SimpleNamespace(now=Hands(NOW), awake=Hands(0.0), ran=Hands(0.0))  # a deadline is so many seconds from it
LEDGER_GONE = LedgerUnavailable(STORE_UNAVAILABLE, "disk full")


def a_peer(script: dict[str, object] | None = None, **changes: object) -> ScriptedServer:
    """Whoever waits for it where it hangs has waited in vain at once."""
    settings = {"extensions": EXTENSIONS, "on_hang": lambda: let_pass(DEADLINE + 1), **changes}
    return ScriptedServer({"XSHADOW": HELLO, **(script or {})}, **settings)  # type: ignore[arg-type]


def an_offer(content: Content | None = None) -> CopyOffer:
    recipients = tuple(Recipient(f"r{number}@b.example", notify="NEVER") for number in (1, 2))
    envelope = an_envelope(2, MESSAGE, sender="s@a.example", recipients=recipients, body=BodyType.EIGHT_BIT_MIME)
    return CopyOffer(CopyNumber(1, 2, OURS), envelope, frozenset({2}), content or a_content(BODY))


@contextlib.asynccontextmanager
async def a_link(
    server: ScriptedServer, *, options: ConnectOptions | None = None, sessions_max: int = 32, idle_seconds: float = 60.0, **events: object
) -> AsyncIterator[SmtpPeerLink]:
    link = SmtpPeerLink(
        PEER,
        HostPort("127.0.0.1", server.port),
        options or ConnectOptions("mx1.east.example"),
        STILL,  # type: ignore[arg-type]
        LinkEvents(**{"own_identity": lambda: ME, **events}),  # type: ignore[arg-type]
        boundary=BoundaryName("example"),
        sessions_max=sessions_max,
        idle_seconds=idle_seconds,
        control_seconds=DEADLINE,
    )
    try:
        yield link
    finally:
        await link.close()


async def refusal_of(work: Awaitable[object]) -> PeerUnavailable:
    with pytest.raises(PeerUnavailable) as caught:
        await work
    return caught.value


# the handshake


async def test_both_sides_learn_who_the_other_is():
    learnt: list[PeerIdentity] = []
    heard: list[tuple[str, str]] = []
    server = a_peer()
    async with serving(server), a_link(server, on_identity=learnt.append, on_heard=lambda *who: heard.append(who)) as link:
        identity = await link.greet()

        assert (IT, IT, [IT]) == (identity, link.identity, learnt)
    assert ME == parse_hello(server.lines[1].removeprefix("XSHADOW "))
    assert {(PEER, THEIRS)} == set(heard)


async def test_a_peer_is_known_by_the_address_where_it_was_met_and_only_then():
    met: list[str] = []
    for script in ({}, {"XSHADOW": FROM_ANOTHER_SERVER}):
        server = a_peer(script)
        async with serving(server), a_link(server, on_address=met.append) as link:
            with contextlib.suppress(PeerUnavailable):
                await link.greet()

    assert ["127.0.0.1"] == met


BAD_PEERS = [
    ("no extension", {"XSHADOW": "502 5.5.1 what?"}, ("PIPELINING",), "does not offer XSHADOW"),
    ("refused", {"XSHADOW": "530 5.7.0 not you"}, EXTENSIONS, "530 5.7.0 not you"),
    ("garbled", {"XSHADOW": "250 2.0.0 server=x"}, EXTENSIONS, "cannot be read"),
    ("another server", {"XSHADOW": FROM_ANOTHER_SERVER}, EXTENSIONS, "the server there is other.example"),
    ("another boundary", {"XSHADOW": FROM_ANOTHER_BOUNDARY}, EXTENSIONS, "belongs to the boundary other"),
    ("no greeting", {"GREETING": "421 4.3.2 full"}, EXTENSIONS, "421 4.3.2 full"),
    ("garbage", {"XSHADOW": "garbage"}, EXTENSIONS, "broke the protocol"),
    ("end", {"XSHADOW": CLOSE}, EXTENSIONS, "Connection lost"),
    ("silence", {"XSHADOW": HANG}, EXTENSIONS, "no answer in"),
]


@pytest.mark.parametrize(("script", "extensions", "reason"), [case[1:] for case in BAD_PEERS], ids=[case[0] for case in BAD_PEERS])
async def test_who_does_not_prove_to_be_the_peer_gets_nothing_and_no_connection_stays(script, extensions, reason):
    server = a_peer(script, extensions=extensions)
    async with serving(server), a_link(server) as link:
        errors = [await refusal_of(link.hold(an_offer(), DEADLINE)), await refusal_of(link.greet())]
        await until(lambda: server.open_count == 0)

    assert [False, False] == [error.sent for error in errors]
    assert all(reason in error.reason for error in errors)
    assert not any(line.startswith(("MAIL", "XQDISCARD")) for line in server.lines)


async def test_a_peer_that_is_not_there_is_unavailable():
    async with a_link(ScriptedServer(port=1)) as link:
        error = await refusal_of(link.hold(an_offer(), DEADLINE))

    assert ("Could not connect" in error.reason, False) == (True, error.sent)


# a copy


async def test_a_copy_goes_in_one_transaction_and_its_bytes_arrive_unchanged():
    server = a_peer({"XSHADOW COMMIT": "250 2.0.0 stored position=250"})
    async with serving(server), a_link(server) as link:
        held = await link.hold(an_offer(), DEADLINE)

        assert 250 == (link.identity and link.identity.position)
    assert HoldAnswer(None, 0.0, THEIRS) == held
    mail, *rcpts, envelope, bdat, commit = server.lines[2:8]
    assert mail.startswith(f"MAIL FROM:<s@a.example> SIZE={len(BODY)} BODY=8BITMIME XSHADOW=")
    assert (MESSAGE, CopyNumber(1, 2, OURS)) == parse_hold(mail.rpartition("XSHADOW=")[2], OURS)
    assert ["RCPT TO:<r1@b.example> NOTIFY=NEVER", "RCPT TO:<r2@b.example> NOTIFY=NEVER"] == rcpts
    extras = parse_envelope(envelope.removeprefix("XSHADOW ENVELOPE "))
    assert (frozenset({2}), "hello") == (extras.done, extras.subject)
    assert f"BDAT {len(BODY)}" == bdat
    assert [BODY] == server.sessions[0].blocks
    assert (len(BODY), hashlib.sha256(BODY).digest()) == parse_commit(commit.removeprefix("XSHADOW COMMIT "))


async def test_a_large_copy_is_streamed_in_counted_chunks(tmp_path: Path):
    data = bytes(range(256)) * 4000
    server = a_peer()
    async with serving(server), a_link(server) as link:
        held = await link.hold(an_offer(a_spooled_content(tmp_path, data)), DEADLINE)

    assert held.superseded_by is None
    assert data == b"".join(server.sessions[0].blocks)
    assert len(server.sessions[0].blocks) > 1


async def test_a_large_copy_that_is_refused_early_is_not_sent_whole(tmp_path: Path):
    data = bytes(8 * 1024 * 1024)
    server = a_peer({"MAIL": "452 4.3.1 full"})
    async with serving(server), a_link(server) as link:
        error = await refusal_of(link.hold(an_offer(a_spooled_content(tmp_path, data)), DEADLINE))

    assert ("452 4.3.1 full", False) == (error.reason, error.sent)
    assert sum(map(len, server.sessions[0].blocks)) < len(data)


async def test_nothing_of_a_large_copy_is_sent_before_the_peer_wants_it(tmp_path: Path):
    data = bytes(1024 * 1024)
    server = a_peer({"MAIL": "452 4.3.1 full"})
    async with serving(server), a_link(server) as link:
        error = await refusal_of(link.hold(an_offer(a_content(data)), DEADLINE))

    assert (PeerSaid.NO_COPY, False) == (error.said, error.sent)
    assert not any(line.startswith("BDAT") for line in server.lines)


async def test_a_copy_that_gets_on_is_given_more_time_and_one_that_stands_still_is_not():
    data = bytes(20 * 64 * 1024)
    content = a_content(data)
    still = 2 * DEADLINE

    def takes_long(line: str) -> str:
        let_pass(DEADLINE)
        return "250 ok"

    slow = a_peer({"BDAT": takes_long})
    silent = a_peer({"BDAT": HANG}, on_hang=lambda: let_pass(still + 1))
    async with serving(slow, silent), a_link(slow) as one, a_link(silent) as other:
        held = await one.hold(an_offer(content), 100 * DEADLINE, stall_seconds=still)
        error = await refusal_of(other.hold(an_offer(content), 100 * DEADLINE, stall_seconds=still))
        late = await refusal_of(one.hold(an_offer(content), 3 * DEADLINE, stall_seconds=still))

    assert held.superseded_by is None
    assert data == b"".join(slow.sessions[0].blocks[:20])
    assert error.reason.startswith("no answer in")
    assert late.reason.startswith("no answer in")


SAID = [
    ("no HOLD", {}, ("PIPELINING", "XSHADOW"), PeerSaid.NO_SESSION),
    ("421 as greeting", {"GREETING": "421 4.3.2 full"}, EXTENSIONS, PeerSaid.NO_SESSION),
    ("no right", {"XSHADOW": "530 5.7.0 not you"}, EXTENSIONS, PeerSaid.NO_SESSION),
    ("no room", {"XSHADOW COMMIT": "452 4.3.1 no room"}, EXTENSIONS, PeerSaid.NO_COPY),
    ("no such parameter", {"MAIL": "555 5.5.4 what?"}, EXTENSIONS, PeerSaid.NO_COPY),
    ("too large", {"MAIL": "552 5.3.4 too large"}, EXTENSIONS, PeerSaid.NOT_THIS),
    ("an address", {"RCPT": "553 5.6.7 no UTF-8"}, EXTENSIONS, PeerSaid.NOT_THIS),
    ("other bytes", {"XSHADOW COMMIT": "451 4.5.0 differs"}, EXTENSIONS, PeerSaid.NOT_THIS),
    ("garbage", {"XSHADOW COMMIT": "garbage"}, EXTENSIONS, PeerSaid.NOTHING),
    ("end", {"XSHADOW COMMIT": CLOSE}, EXTENSIONS, PeerSaid.NOTHING),
    ("the reply to another line", {"XSHADOW COMMIT": "250 2.0.0 17 octets received"}, EXTENSIONS, PeerSaid.NOTHING),
]


@pytest.mark.parametrize(("script", "extensions", "said"), [case[1:] for case in SAID], ids=[case[0] for case in SAID])
async def test_what_a_peer_says_no_to_is_told_from_what_it_does_not_answer(script, extensions, said):
    offers: list[bool] = []
    server = a_peer(script, extensions=extensions)
    async with serving(server), a_link(server, on_offer=lambda who, is_offered: offers.append(is_offered)) as link:
        error = await refusal_of(link.hold(an_offer(), DEADLINE))

    assert said is error.said
    if "GREETING" not in script and "XSHADOW" not in script:
        assert {"XSHADOW HOLD" in extensions} == set(offers)


@pytest.mark.parametrize("verb", ["XSHADOW", "MAIL", "RCPT", "XSHADOW ENVELOPE", "BDAT"])
@pytest.mark.parametrize("size", [1_000, 300_000], ids=["at once", "in chunks"])
async def test_one_reply_too_many_makes_no_copy_of_one_that_was_refused(verb: str, size: int):
    offer = an_offer(content=a_content(b"x" * size))
    own = {"XSHADOW": f"250 2.0.0 {format_hello(IT)}", "XSHADOW ENVELOPE": "250 2.0.0 OK position=5"}.get(verb, "250 2.0.0 ok")
    server = a_peer({verb: [f"{own}\r\n250 2.0.0 ok", own], "XSHADOW COMMIT": "452 4.3.1 no room"})
    async with serving(server), a_link(server) as link:
        for _ in range(2):
            await refusal_of(link.hold(offer, DEADLINE))


OFFERS = {"XSHADOW HOLD FORKS": True, "XSHADOW FORKS": True, "xshadow hold forks": True, "XSHADOW HOLD": False, "XSHADOW FORKSX": False}


@pytest.mark.parametrize(("offer", "is_offered"), OFFERS.items())
async def test_each_session_says_whether_the_peer_understands_forks(offer: str, is_offered: bool):
    offers: list[bool] = []
    server = a_peer(extensions=("PIPELINING", offer))
    async with serving(server), a_link(server, on_forks=lambda who, is_offered: offers.append(is_offered)) as link:
        await link.greet()

    assert [is_offered] == offers


async def test_a_reply_with_forks_that_cannot_be_read_ends_the_session_and_acknowledges_nothing():
    server = a_peer({"XQDISCARD": lines_of([f"4 {MESSAGE} delivered", f"5 {MESSAGE} forks 1", "remaining=0"])})
    async with serving(server), a_link(server) as link:
        errors = [await refusal_of(link.discards(400, acknowledged)) for acknowledged in (0, 4)]

    assert [BAD_FORKS.text] * 2 == [error.reason for error in errors]
    assert ["XQDISCARD 400 0"] * 2 == [line for line in server.lines if line.startswith("XQDISCARD")]
    assert 2 == len(server.sessions)


@pytest.mark.parametrize("is_tracked", [False, True])
async def test_a_content_file_that_cannot_be_read_is_this_nodes_trouble_and_not_the_peers(tmp_path: Path, is_tracked: bool):
    """As if the peer had failed, its breaker opened, and all mail did without copies."""
    server = a_peer(extensions=(*EXTENSIONS[:-1], "XSHADOW HOLD TRACK"))
    async with serving(server), a_link(server) as link:
        send = link.track if is_tracked else link.hold
        with pytest.raises(LedgerUnavailable) as raised:
            await send(an_offer(Content(1, b"0" * 32, path=tmp_path / "gone")), DEADLINE)
        held = await send(an_offer(), DEADLINE)

    assert str(tmp_path / "gone") in raised.value.reason
    assert held.superseded_by is None
    assert 1 == sum(line.startswith("XSHADOW COMMIT") for line in server.lines)


async def test_an_envelope_that_no_parser_accepts_is_this_nodes_trouble(tmp_path: Path):
    offer = an_offer()
    server = a_peer()
    async with serving(server), a_link(server) as link:
        with pytest.raises(LedgerUnavailable) as raised:
            await link.hold(replace(offer, envelope=replace(offer.envelope, sender="a\nb@x.example")), DEADLINE)

    assert raised.value.reason.startswith("this server cannot read its own message")
    assert not any(line.startswith("MAIL") for line in server.lines)


@pytest.mark.parametrize("verb", ["MAIL", "XSHADOW COMMIT"])
async def test_a_superseded_copy_is_an_answer_and_the_session_stays(verb):
    answer = StatusAnswer(StatusState.SHADOW, CopyNumber(2, 1, THEIRS), PEER, THEIRS, done=frozenset({1}))
    server = a_peer({verb: [f"554 5.5.0 {format_superseded(answer)}", "250 ok position=1"]})
    async with serving(server), a_link(server) as link:
        first = await link.hold(an_offer(), DEADLINE)
        second = await link.hold(an_offer(), DEADLINE)

    assert (answer, None) == (first.superseded_by, second.superseded_by)
    assert 1 == len(server.sessions)


@pytest.mark.parametrize("verb", ["MAIL", "RCPT", "XSHADOW ENVELOPE", "BDAT", "XSHADOW COMMIT"])
@pytest.mark.parametrize("reply", ["451 4.3.0 disk", "550 5.7.1 no", "554 5.5.0 XSHADOW superseded by nonsense"])
async def test_a_refusal_says_that_nothing_is_stored(verb, reply):
    server = a_peer({verb: reply})
    async with serving(server), a_link(server) as link:
        error = await refusal_of(link.hold(an_offer(), DEADLINE))

    assert not error.sent
    if "nonsense" not in reply:
        assert reply == error.reason


@pytest.mark.parametrize("verb", ["MAIL", "BDAT", "XSHADOW COMMIT"])
@pytest.mark.parametrize("reply", [CLOSE, HANG, "421 4.3.2 stopping", "garbage", "354 what"])
async def test_without_a_reply_to_commit_it_may_be_stored(verb, reply):
    server = a_peer({verb: reply})
    async with serving(server), a_link(server) as link:
        error = await refusal_of(link.hold(an_offer(), DEADLINE))
        await until(lambda: server.open_count == 0)

    assert error.sent
    assert 1 == len(server.sessions)


async def test_a_refusal_counts_although_the_peer_closes_behind_it():
    server = a_peer({"MAIL": "452 4.3.1 full", "RCPT": CLOSE})
    async with serving(server), a_link(server) as link:
        error = await refusal_of(link.hold(an_offer(), DEADLINE))

    assert ("452 4.3.1 full", False) == (error.reason, error.sent)


async def test_a_peer_under_pressure_that_does_not_offer_hold_gets_no_copy():
    server = a_peer(extensions=("PIPELINING", "XSHADOW"))
    async with serving(server), a_link(server) as link:
        error = await refusal_of(link.hold(an_offer(), DEADLINE))

    assert ("does not offer HOLD now", False) == (error.reason, error.sent)


async def test_copies_to_a_lost_peer_are_given_up_and_what_was_sent_may_be_stored():
    hangs = asyncio.Event()
    peer = a_peer({"XSHADOW COMMIT": HANG}, on_hang=hangs.set)
    async with serving(peer), a_link(peer) as link:
        copy = asyncio.create_task(refusal_of(link.hold(an_offer(), DEADLINE)))
        await asyncio.wait_for(hangs.wait(), PATIENCE_SECONDS)
        assert (0, False) == (link.give_up(1.0), copy.done())  # it moved a moment ago

        assert 1 == link.give_up(0.0)
        error = await copy
        await until(lambda: peer.open_count == 0)

    assert (True, "it is lost: no answer to heartbeats either") == (error.sent, error.reason)


async def test_a_deadline_that_is_over_sends_nothing():
    server = a_peer()
    async with serving(server), a_link(server) as link:
        error = await refusal_of(link.hold(an_offer(), -1.0))

    assert ("no time is left", False) == (error.reason, error.sent)
    assert [] == server.sessions


# the pool


async def test_copies_share_sessions_and_never_more_than_allowed():
    server = a_peer()
    async with serving(server), a_link(server, sessions_max=3) as link:
        for _ in range(2):
            await asyncio.gather(*(link.hold(an_offer(), DEADLINE) for _ in range(20)))

    assert 40 == sum(len(session.blocks) for session in server.sessions)
    assert 3 == server.open_count_max


async def test_a_session_that_the_peer_closed_while_idle_is_replaced_silently():
    server = a_peer({"XSHADOW COMMIT": "250 ok position=1"})
    async with serving(server), a_link(server) as link:
        await link.hold(an_offer(), DEADLINE)
        await server.stop()
        await server.start()
        held = await link.hold(an_offer(), DEADLINE)

    assert held.superseded_by is None
    assert 2 == len(server.sessions)


@pytest.mark.parametrize(("idle_seconds", "expected"), [(0.05, 2), (60.0, 1)])
async def test_an_idle_session_for_copies_is_closed_after_its_time(idle_seconds: float, expected: int):
    server = a_peer()
    async with serving(server), a_link(server, idle_seconds=idle_seconds) as link:
        await link.hold(an_offer(), DEADLINE)
        if expected == 2:
            await until(lambda: "QUIT" in [line.upper() for line in server.sessions[0].lines])
        await link.hold(an_offer(), DEADLINE)

    assert expected == len(server.sessions)


async def test_a_session_ends_after_half_an_hour_however_busy_it_is(monkeypatch: pytest.MonkeyPatch):
    """Who has stolen one, or a key that was revoked meanwhile, does not have it for ever. A copy in it is not cut off."""
    good = lines_of(format_reply_lines(DiscardReply((), 0), 1))
    server = a_peer({"XQDISCARD": good})
    async with serving(server), a_link(server) as link:
        for _ in range(2):
            await link.hold(an_offer(), DEADLINE)
            await link.discards(1, 0)
        assert 2 == len(server.sessions)
        loop = asyncio.get_running_loop()
        began, time = loop.time(), loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + LIFE_SECONDS_MAX - 30 if time() - began < 3600 else time())
        await link.hold(an_offer(), DEADLINE)
        await link.discards(1, 0)
        assert 2 == len(server.sessions)  # not before
        monkeypatch.setattr(loop, "time", lambda: time() + LIFE_SECONDS_MAX)
        for _ in range(2):
            await link.hold(an_offer(), DEADLINE)
            await link.discards(1, 0)
        await until(lambda: server.open_count == 2)

        assert 4 == len(server.sessions)
        assert ["QUIT", "QUIT"] == [session.lines[-1].upper() for session in server.sessions[:2]]


async def test_a_commit_is_never_repeated_blindly():
    server = a_peer({"MAIL": ["250 ok", CLOSE]})
    async with serving(server), a_link(server) as link:
        await link.hold(an_offer(), DEADLINE)
        error = await refusal_of(link.hold(an_offer(), DEADLINE))

    assert error.sent
    assert error.was_kept  # which says nothing about the peer
    assert 1 == len(server.sessions)


# the session that is held ready


async def test_one_session_is_held_ready_for_copies_and_is_asked_for_a_sign_of_life():
    server = a_peer({"NOOP": "250 2.0.0 OK"})
    async with serving(server), a_link(server, idle_seconds=0.1) as link:
        for _ in range(3):
            link.hold_ready(is_wanted=True)
        await until(lambda: server.lines.count("NOOP") > 2)
        await link.hold(an_offer(), DEADLINE)

        assert 1 == len(server.sessions)
        link.hold_ready(is_wanted=False)
        await until(lambda: server.open_count == 0)
    assert "QUIT" == server.lines[-1].upper()


async def test_a_session_that_is_held_ready_and_ends_is_replaced_but_not_at_once_again_and_again():
    server = a_peer({"NOOP": CLOSE})
    async with serving(server), a_link(server, idle_seconds=0.1) as link:
        link.hold_ready(is_wanted=True)
        await until(lambda: len(server.sessions) == 3)
        began = asyncio.get_running_loop().time()
        await until(lambda: len(server.sessions) == 4)

        assert asyncio.get_running_loop().time() - began > 1.0  # 1, 2, 4 … s between their beginnings


async def test_the_session_that_is_held_ready_counts_as_one_and_none_is_opened_beside_a_busy_one_too_many():
    server = a_peer({"XSHADOW COMMIT": HANG}, on_hang=lambda: None)
    async with serving(server), a_link(server, sessions_max=1) as link:
        copy = asyncio.ensure_future(link.hold(an_offer(), DEADLINE))
        await until(lambda: bool(server.sessions) and bool(server.sessions[0].blocks))
        link.hold_ready(is_wanted=True)
        await asyncio.sleep(0)

        assert 1 == len(server.sessions)
        let_pass(DEADLINE + 1)
        assert (await refusal_of(copy)).sent


async def test_nothing_is_held_ready_at_a_peer_that_gives_no_session():
    server = a_peer({"GREETING": "421 4.3.2 full"})
    async with serving(server), a_link(server) as link:
        link.hold_ready(is_wanted=True)
        await until(lambda: len(server.sessions) == 1)
        await until(lambda: server.open_count == 0)

        assert "full" in (await refusal_of(link.hold(an_offer(), DEADLINE))).reason


async def test_a_hold_waits_for_a_session_no_longer_than_its_deadline():
    server = a_peer({"XSHADOW COMMIT": HANG}, on_hang=lambda: None)
    async with serving(server), a_link(server, sessions_max=1) as link:
        first = asyncio.ensure_future(link.hold(an_offer(), DEADLINE))
        await until(lambda: server.sessions) and bool(server.sessions[0].blocks)
        second = await refusal_of(link.hold(an_offer(), 0.05))

        assert not second.sent
        let_pass(DEADLINE + 1)
        assert (await refusal_of(first)).sent


# the kept session

EVENTS = (DiscardEvent(4, MESSAGE, DiscardStatus.DELIVERED), DiscardEvent(5, MESSAGE, DiscardStatus.RELEASED))


def lines_of(texts: list[str]) -> str:
    return "\r\n".join([*(f"250-2.0.0 {text}" for text in texts[:-1]), f"250 2.0.0 {texts[-1]}"])


async def test_discards_are_asked_in_one_kept_session_and_the_position_is_learnt():
    server = a_peer({"XQDISCARD": lines_of(format_reply_lines(DiscardReply(EVENTS, 7), 321))})
    async with serving(server), a_link(server) as link:
        replies = [await link.discards(400, acknowledged) for acknowledged in (0, 5)]

        assert 321 == (link.identity and link.identity.position)
    assert [DiscardReply(EVENTS, 7)] * 2 == replies
    assert ["XQDISCARD 400 0", "XQDISCARD 400 5"] == server.lines[2:4]
    assert 1 == len(server.sessions)


async def test_nothing_is_acknowledged_to_an_incarnation_that_it_did_not_come_from():
    again = f"250 2.0.0 {format_hello(replace(IT, incarnation=6))}"
    page = lines_of(format_reply_lines(DiscardReply(EVENTS, 0), 1))
    server = a_peer({"XSHADOW": [HELLO, again], "XQDISCARD": [page, CLOSE, page]})
    async with serving(server), a_link(server) as link:
        for acknowledged in (3, 5, 5):
            await link.discards(400, acknowledged)

    asked = [line for line in server.lines if line.startswith("XQDISCARD")]
    assert ["XQDISCARD 400 0", "XQDISCARD 400 5", "XQDISCARD 400 0", "XQDISCARD 400 5"] == asked


async def test_a_full_page_of_discards_comes_through():
    events = tuple(DiscardEvent(number, MESSAGE, DiscardStatus.DELIVERED, frozenset(range(1, number, 2))) for number in range(1, 60))
    server = a_peer({"XQDISCARD": lines_of(format_reply_lines(DiscardReply(events, 0), 1))})
    async with serving(server), a_link(server) as link:
        assert events == (await link.discards(400, 0)).events


@pytest.mark.parametrize("count", [1, 10, 11, 400])
async def test_status_is_answered_question_by_question(count):
    ids = {number: MessageId(f"33333333-3333-4333-8333-{number:012}") for number in range(1, count + 1)}
    questions = tuple(StatusQuestion(message_id, CopyNumber(1, number, OURS)) for number, message_id in ids.items())
    known = {question.message_id: StatusAnswer(StatusState.SHADOW, question.number, PEER, THEIRS) for question in questions}
    server = a_peer()

    def answer(line: str) -> str:
        query = parse_status(line.removeprefix("XQDISCARD "))
        asked = query.questions or parse_question_block(server.sessions[0].blocks[-1])
        return lines_of(format_answer_lines([known[question.message_id] for question in asked], 9))

    server.script = {**server.script, "XQDISCARD": answer}
    async with serving(server), a_link(server) as link:
        answers = await link.status(questions)

    assert tuple(known.values()) == answers
    assert (count > 10) == bool(server.sessions[0].blocks)


async def test_a_wrong_count_of_answers_is_no_answer():
    server = a_peer({"XQDISCARD": lines_of([format_answer(StatusAnswer(StatusState.UNKNOWN)), "answers=1 position=1"])})
    async with serving(server), a_link(server) as link:
        question = StatusQuestion(MESSAGE, CopyNumber(1, 1, OURS))
        error = await refusal_of(link.status((question, question)))

    assert "1 answers to 2 questions" == error.reason


@pytest.mark.parametrize("reply", ["250 2.0.0 what", "451 4.3.0 later", "502 5.5.1 no", "garbage", CLOSE, HANG, "421 bye"])
async def test_a_question_without_a_good_answer_is_unavailable_and_the_next_one_is_asked_afresh(reply):
    good = lines_of(format_reply_lines(DiscardReply((), 0), 1))
    server = a_peer({"XQDISCARD": [reply, good]})
    async with serving(server), a_link(server) as link:
        await refusal_of(link.discards(1, 0))

        assert DiscardReply((), 0) == await link.discards(1, 0)


async def test_a_kept_session_that_died_is_replaced_silently():
    good = lines_of(format_reply_lines(DiscardReply((), 0), 1))
    server = a_peer({"XQDISCARD": [good, CLOSE, good]})
    async with serving(server), a_link(server) as link:
        for _ in range(2):
            await link.discards(1, 0)

    assert 2 == len(server.sessions)


async def test_one_xqdiscard_at_a_time_is_asked_of_a_peer():
    running: list[int] = []
    good = lines_of(format_reply_lines(DiscardReply((), 0), 1))
    server = a_peer({"XQDISCARD": good})

    async def on_open(session: SessionLink) -> None:
        running.append(1)
        await session.discards(1, 0)
        running.append(-1)

    async with serving(server), a_link(server, on_open=on_open, sessions_max=4) as link:
        await asyncio.gather(link.discards(1, 0), *(link.hold(an_offer(), DEADLINE) for _ in range(4)))

        await until(lambda: all(any(line.startswith("XQDISCARD") for line in session.lines) for session in server.sessions))
        await until(lambda: not sum(running))

    assert 1 + len(server.sessions) == sum(line.startswith("XQDISCARD") for line in server.lines)


@pytest.mark.parametrize("failure", [LEDGER_GONE, PeerUnavailable(PEER, "it said no")], ids=["ledger", "refusal"])
async def test_questions_at_the_opening_that_fail_do_not_cost_the_copy(failure):
    async def on_open(session: SessionLink) -> None:
        raise failure

    server = a_peer()
    async with serving(server), a_link(server, on_open=on_open) as link:
        held = await link.hold(an_offer(), DEADLINE)

    assert held.superseded_by is None


# TLS


def mutual_tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    server.verify_mode = ssl.CERT_REQUIRED
    for context, name in ((server, PEER), (client, ME.server)):
        authority.issue_cert(name).configure_cert(context)
        authority.configure_trust(context)
    return server, client


async def test_a_peer_proves_its_name_by_mutual_tls():
    server_tls, client_tls = mutual_tls()
    server = a_peer(tls=server_tls)
    async with serving(server), a_link(server, options=ConnectOptions("me", TlsUse.REQUIRED, client_tls)) as link:
        await link.hold(an_offer(), DEADLINE)

    assert [True] == [session.is_tls for session in server.sessions]


async def test_a_server_with_another_certificate_is_not_told_who_we_are():
    server_tls, _ = mutual_tls()
    _, client_tls = mutual_tls()
    server = a_peer(tls=server_tls)
    async with serving(server), a_link(server, options=ConnectOptions("me", TlsUse.REQUIRED, client_tls)) as link:
        error = await refusal_of(link.hold(an_offer(), DEADLINE))

    assert re.search(r"4\.7\.5 TLS could not be negotiated", error.reason)
    assert ["EHLO me", "STARTTLS"] == server.lines[:2]
    assert not any(line.startswith("XSHADOW") for line in server.lines)


# nothing is left


@pytest.mark.parametrize("operation", ["hold", "discards"])
async def test_a_cancellation_at_any_await_leaves_neither_a_connection_nor_a_slot(operation):
    server = a_peer({"XQDISCARD": lines_of(format_reply_lines(DiscardReply((), 0), 1))})

    async def on_open(session: SessionLink) -> None:
        await session.discards(1, 0)

    operations: dict[str, Callable[[SmtpPeerLink], Awaitable[object]]] = {
        "hold": lambda link: link.hold(an_offer(), DEADLINE),
        "discards": lambda link: link.discards(1, 0),
    }
    async with serving(server):
        for suspension in range(1, 100):
            async with a_link(server, on_open=on_open, sessions_max=1) as link:
                attempt = CancelledAt(operations[operation](link), suspension)  # type: ignore[arg-type]
                await cancelled_at(attempt)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await operations[operation](link)
            await until(lambda: server.open_count == 0)
            if not attempt.was_reached:
                break

    assert (2 if operation == "hold" else 5) < suspension < 99  # sessions for copies open in the background, and are kept


async def test_close_ends_all_sessions_and_what_runs():
    server = a_peer({"XSHADOW COMMIT": ["250 ok position=1", HANG]}, on_hang=lambda: None)
    async with serving(server), a_link(server) as link:
        await link.greet()
        await link.hold(an_offer(), DEADLINE)
        running = asyncio.ensure_future(link.hold(an_offer(), DEADLINE))
        await until(lambda: len(server.sessions[-1].blocks) == 2)
        await link.close()

        assert (await refusal_of(running)).sent
        assert "this node is stopping" == (await refusal_of(link.greet())).reason
        await until(lambda: server.open_count == 0)


async def test_a_node_that_falls_silent_says_not_even_quit_and_opens_no_session():
    why: list[str] = []
    server = a_peer({"NOOP": "250 2.0.0 OK"})
    async with serving(server), a_link(server, why_silent=lambda: why[0] if why else "") as link:
        await link.hold(an_offer(), DEADLINE)
        await link.greet()
        said = list(server.lines)

        why.append("the disk is gone")
        link.fall_silent()
        await until(lambda: server.open_count == 0)
        errors = [await refusal_of(work) for work in (link.hold(an_offer(), DEADLINE), link.greet(), link.discards(1, 0), link.announce())]

        assert ({"the disk is gone"}, said, 0) == ({error.reason for error in errors}, server.lines, server.open_count)
        why.clear()
        assert IT == await link.greet()
