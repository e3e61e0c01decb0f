"""Our own two sides against each other over a socket: what the peer link sends is what the port behind the receiver gets."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import BoundaryName, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import BodyType, Content, Envelope, Recipient
from shadowrelay.model.ownership import CopyNumber, DiscardEvent, DiscardStatus, StatusAnswer, StatusQuestion, StatusState
from shadowrelay.model.peers import CopyOffer, DiscardReply, Incarnation, PeerIdentity
from shadowrelay.model.receive_settings import Redundancy
from shadowrelay.model.replies import PeerSaid, PeerUnavailable, Reply
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.model.values import replace
from shadowrelay.pipeline.relay import CANNOT_TRACK
from shadowrelay.pipeline.track import NOT_LINKED
from shadowrelay.ports import DeliveryJob
from shadowrelay.protocol.xqdiscard import format_superseded
from shadowrelay.smtp.client import ConnectOptions
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.peer_link import LinkEvents, SessionLink, SmtpPeerLink
from shadowrelay.smtp.receiver import Receiver
from shadowrelay.smtp.resolver import DnsResolver
from tests.kit.ledger import a_content, a_spooled_content
from tests.kit.receiving import OWN_DATABASE, PEER, PEER_DATABASE, FixedClock, Station, receiving

ENVELOPE = Envelope(
    MessageId("00000000-0000-4000-8000-000000000009"),
    "",
    (Recipient("ä@elsewhere.example", "NEVER", "rfc822;A@x"), Recipient('"q q"@elsewhere.example')),
    datetime(2026, 11, 21, 11, 59, 59, 123456, tzinfo=UTC),
    BodyType.EIGHT_BIT_MIME,
    smtputf8=True,
    ret="HDRS",
    envid="abc",
    client_address="192.0.2.1",
    subject="hällo",
)
SMALL = b"Subject: x\r\n\r\n.\r\nQUIT\r\nbare \r and \n and \xff"
LARGE = bytes(range(256)) * 12_000
TAKEN_AND_REFUSED = ["250 2.0.0", "550 5.7.1"]


ME = PeerIdentity(ServerName("b.example"), BoundaryName("default"), PEER_DATABASE, 1, 0, 5, timedelta(seconds=60))


@contextlib.asynccontextmanager
async def a_pair(
    spool: Path,
    own_identity: Callable[[], PeerIdentity] = lambda: ME,
    poll: Callable[[SessionLink], Awaitable[None]] | None = None,
    on_position: Callable[[ServerName, Incarnation, int], None] = lambda server, incarnation, position: None,
    **connector: object,
) -> AsyncIterator[tuple[SmtpPeerLink, Station]]:
    async with receiving(spool, **(PEER | connector)) as station:
        link = SmtpPeerLink(
            ServerName("a.example"),
            station.server.address,
            ConnectOptions("b.example"),
            FixedClock(),
            LinkEvents(own_identity=own_identity, on_open=poll, on_position=on_position),
            boundary=BoundaryName("default"),
            idle_seconds=60.0,
        )
        try:
            yield link, station
        finally:
            await link.close()


def an_offer(spool: Path, data: bytes) -> CopyOffer:
    content = a_spooled_content(spool, data) if data is LARGE else a_content(data)
    return CopyOffer(CopyNumber(3, 2, PEER_DATABASE), ENVELOPE, frozenset({2}), content)


async def test_a_node_that_drains_says_so_in_the_session_that_is_open_and_asks_on_in_it(tmp_path: Path):
    said = [ME]
    async with a_pair(tmp_path, lambda: said[-1]) as (link, station):
        await link.greet()
        said.append(replace(ME, is_draining=True, position=6))
        await link.announce()
        said.append(replace(ME, position=7))
        await link.announce()
        await link.discards(10, 0)

        greetings = [told for told in station.peer_requests.told if told[0] == "greeted"]
        assert [("greeted", "b.example"), ("greeted", "b.example", "draining"), ("greeted", "b.example")] == greetings
        assert 1 == station.server.sessions_count


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_copy_arrives_whole_and_unchanged_again_and_again(tmp_path: Path, data: bytes):
    async with a_pair(tmp_path) as (link, station):
        offer = an_offer(tmp_path, data)
        answers = [await link.hold(offer, 1000.0) for _ in range(3)]

        assert [(None, OWN_DATABASE)] * 3 == [(answer.superseded_by, answer.server_database) for answer in answers]
        for held, octets in station.peer_requests.holds:
            assert (offer.number, ENVELOPE, offer.done, offer.content.sha256) == (
                held.number,
                held.envelope,
                held.done,
                held.content.sha256,
            )
            assert data == octets
        assert 1 == station.server.sessions_count


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_superseded_copy_and_a_refused_one_leave_the_next_one_unharmed(tmp_path: Path, data: bytes):
    answer = StatusAnswer(StatusState.SHADOW, CopyNumber(4, 1, OWN_DATABASE), ServerName("a.example"), OWN_DATABASE)
    async with a_pair(tmp_path) as (link, station):
        offer = an_offer(tmp_path, data)
        station.peer_requests.hold_reply = Reply(554, "5.5.0", format_superseded(answer))
        first = await link.hold(offer, 1000.0)
        station.peer_requests.hold_reply = Reply(451, "4.3.0", "Local storage error, try again later")
        with pytest.raises(PeerUnavailable, match="Local storage error") as second:
            await link.hold(offer, 1000.0)
        station.peer_requests.is_offering = False
        with pytest.raises(PeerUnavailable, match=r"does not offer HOLD now|4\.3\.1") as third:
            await link.hold(offer, 1000.0)
        station.peer_requests.is_offering = True
        station.peer_requests.hold_reply = Reply(250, "2.0.0", "Held")
        last = await link.hold(offer, 1000.0)

    assert (answer, None) == (first.superseded_by, last.superseded_by)
    assert (False, False) == (second.value.sent, third.value.sent)


async def test_the_positions_that_all_sessions_tell_are_reported_whichever_was_opened_last(tmp_path: Path):
    told: list[int] = []
    async with a_pair(tmp_path, on_position=lambda server, incarnation, position: told.append(position)) as (link, station):
        await link.greet()
        await link.hold(an_offer(tmp_path, SMALL), 1000.0)  # opens a second session
        station.peer_requests.position = 88
        await link.discards(10, 0)
        station.peer_requests.position = 99
        await link.hold(an_offer(tmp_path, SMALL), 1000.0)
        station.peer_requests.position = 111
        await link.status([StatusQuestion(ENVELOPE.message_id, CopyNumber(1, 1, DatabaseId(PEER_DATABASE)))])

    assert [88, 99, 111] == told


RELAYED = replace(ENVELOPE, relayed_from=MessageId("00000000-0000-4000-8000-000000000008"))
TRACKS = {"redundancy": "previous-hop"}


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_relayed_message_arrives_whole_and_under_a_line_of_its_own(tmp_path: Path, data: bytes):
    async with a_pair(tmp_path, **TRACKS) as (link, station):
        offer = replace(an_offer(tmp_path, data), envelope=RELAYED, number=CopyNumber(1, 1, PEER_DATABASE), done=frozenset())
        answers = [await link.track(offer, 1000.0) for _ in range(2)]
        sessions_count = station.server.sessions_count

    assert [(None, OWN_DATABASE)] * 2 == [(answer.superseded_by, answer.server_database) for answer in answers]
    for held, octets in station.peer_requests.holds:
        said = held.envelope
        assert (offer.number, RELAYED.message_id, RELAYED.relayed_from) == (held.number, said.message_id, said.relayed_from)
        assert octets.startswith(b"Received: from b.example ")
        assert octets.endswith(data)
    assert 1 == sessions_count


@pytest.mark.parametrize("is_tracked", [False, True])
@pytest.mark.parametrize("data", [b"S: x\r\n\r\n" + bytes(range(256)), LARGE], ids=["small", "large"])
async def test_binary_content_is_said_to_be_that_and_no_peer_gets_it_that_does_not_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, is_tracked: bool
):
    envelope = replace(ENVELOPE, body=BodyType.BINARY_MIME)
    async with a_pair(tmp_path, redundancy="previous-hop", binary_mime_enabled=False, chunking_enabled=False) as (link, station):
        offer = replace(an_offer(tmp_path, data), envelope=envelope)
        place = link.track if is_tracked else link.hold
        await place(offer, 1000.0)

        ((held, octets),) = station.peer_requests.holds
        assert BodyType.BINARY_MIME is held.envelope.body
        assert octets.endswith(data)

        of_old = ["SIZE 36000000", "PIPELINING", "8BITMIME", "SMTPUTF8", "XSHADOW HOLD TRACK"]
        monkeypatch.setattr(Receiver, "_extensions", lambda receiver: of_old)
        await link.close()
    async with a_pair(tmp_path, redundancy="previous-hop") as (link, station):
        place = link.track if is_tracked else link.hold
        with pytest.raises(PeerUnavailable, match="does not take binary content") as refused:
            await place(offer, 1000.0)

        assert PeerSaid.NOT_THIS is refused.value.said
        assert [] == station.peer_requests.holds


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
async def test_a_next_hop_that_takes_no_track_of_us_says_so_behind_the_content(tmp_path: Path, data: bytes):
    """It knows who asks only when the message is there: the refusal is of TRACK, not of the message, and nothing was taken."""
    known = StatusAnswer(StatusState.PRIMARY, CopyNumber(1, 1, OWN_DATABASE), done=frozenset({1}))
    async with a_pair(tmp_path, **TRACKS) as (link, station):
        offer = replace(an_offer(tmp_path, data), envelope=RELAYED, number=CopyNumber(1, 1, PEER_DATABASE), done=frozenset())
        station.peer_requests.hold_reply = NOT_LINKED
        with pytest.raises(PeerUnavailable, match="takes no XSHADOW=TRACK") as refused:
            await link.track(offer, 1000.0)
        station.peer_requests.hold_reply = Reply(554, "5.5.0", format_superseded(known))
        again = await link.track(offer, 1000.0)

    assert (False, 555) == (refused.value.sent, refused.value.reply and refused.value.reply.code)
    assert refused.value.reply is not None
    assert refused.value.reply.code in CANNOT_TRACK
    assert known == again.superseded_by


async def test_a_kept_session_from_before_a_reload_does_not_say_what_the_peer_offers_now(tmp_path: Path):
    async with a_pair(tmp_path) as (link, station):
        copy = an_offer(tmp_path, SMALL)
        await link.hold(copy, 1000.0)  # its session is kept; TRACK was not offered in it
        connector = station.server.reception.connector.model_copy(update={"redundancy": Redundancy.PREVIOUS_HOP})
        station.server.reload(connector, (), None)
        offer = replace(copy, envelope=RELAYED, number=CopyNumber(1, 1, PEER_DATABASE), done=frozenset())

        answer = await link.track(offer, 1000.0)

    assert answer.superseded_by is None
    assert [ENVELOPE.message_id, RELAYED.message_id] == [held.envelope.message_id for held, _ in station.peer_requests.holds]


async def test_questions_are_answered_and_the_peer_learns_that_we_read_it(tmp_path: Path):
    events = tuple(DiscardEvent(number, ENVELOPE.message_id, DiscardStatus.DELIVERED, frozenset({1, 3})) for number in range(1, 300))
    async with a_pair(tmp_path) as (link, station):
        station.peer_requests.discard_reply = DiscardReply(events, 9)
        station.peer_requests.position = 77
        reply = await link.discards(400, 0)
        await link.discards(400, 12)
        questions = tuple(StatusQuestion(ENVELOPE.message_id, CopyNumber(1, number, DatabaseId(PEER_DATABASE))) for number in range(1, 401))
        answers = await link.status(questions)

        assert (events, 9) == ((*reply.events, *events[len(reply.events) :]), reply.remaining - len(events) + len(reply.events))
        assert 400 == len(answers)
        assert 77 == (link.identity and link.identity.position)
        assert ("discards", 400, 12) in station.peer_requests.told
        assert any(fact[0] == "proved" for fact in station.peer_requests.told)


def a_deliverer(**options: Any) -> SmtpDeliverer:
    idle = timedelta(minutes=1)
    return SmtpDeliverer(
        ConnectOptions("b.example"), DnsResolver(()), concurrency_per_destination=1, connection_inactivity_timeout=idle, **options
    )


async def deliver(deliverer: SmtpDeliverer, station: Station, content: Content) -> list[str]:
    """One message to this station as a next hop; the codes of its replies."""
    envelope = Envelope(ENVELOPE.message_id, "", (Recipient("r@here.example"), Recipient("r@there.example")), ENVELOPE.arrived_at)

    async def read_content() -> Content:
        return content

    job = DeliveryJob(
        Destination("k", (station.server.address,)), envelope, envelope.ordinals, b"", read_content, lambda: True, lambda: inf
    )
    report = await deliverer.deliver(job)
    return [f"{reply.code} {reply.enhanced}" for _, reply in sorted(report.replies.items())]


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
async def test_what_we_deliver_is_what_a_next_hop_like_us_receives(tmp_path: Path, is_large: bool):
    data = b"Subject: x\r\n\r\n.\r\n..\r\nend\r\n" + (b"." * 99 + b"\r\n") * (20_000 if is_large else 0)
    async with receiving(tmp_path) as station:
        deliverer = a_deliverer()
        content = a_spooled_content(tmp_path, data) if is_large else a_content(data)

        assert TAKEN_AND_REFUSED == await deliver(deliverer, station, content)
        await deliverer.close()

    assert [data] == station.acceptor.bodies


# a next hop that is a peer
async def test_a_session_that_delivers_to_a_peer_fetches_its_notifications(tmp_path: Path):
    events = (DiscardEvent(7, ENVELOPE.message_id, DiscardStatus.DELIVERED, frozenset({1})),)
    heard: list[DiscardReply] = []

    async def poll(session: SessionLink) -> None:
        heard.append(await session.discards(400, 0))

    async with a_pair(tmp_path, poll=poll) as (link, station):
        station.peer_requests.discard_reply = DiscardReply(events, 0)
        deliverer = a_deliverer(to_peer=lambda address: link.for_delivery())
        replies = [await deliver(deliverer, station, a_content()) for _ in range(3)]

        assert [TAKEN_AND_REFUSED] * 3 == replies, "for its mail a peer has no more rights than others"
        assert [DiscardReply(events, 0)] == heard, "once in each session"
        assert 1 == station.server.sessions_count
        assert 3 == len(station.acceptor.bodies)
        await deliverer.close()


@pytest.mark.parametrize("purpose", ["copies", "questions", "relayed mail", "mail"])
async def test_xqdiscard_is_asked_in_every_session_with_a_peer_whatever_it_is_opened_for(tmp_path: Path, purpose: str):
    asked: list[DiscardReply] = []

    async def poll(session: SessionLink) -> None:
        asked.append(await session.discards(400, 0))

    async with a_pair(tmp_path, poll=poll, redundancy="previous-hop") as (link, station):
        for _ in range(2):
            deliverer = a_deliverer(to_peer=lambda address: link.for_delivery())
            if purpose == "copies":
                await link.hold(an_offer(tmp_path, b"Subject: one\r\n\r\n"), 1000.0)
            elif purpose == "questions":
                await link.status([StatusQuestion(ENVELOPE.message_id, CopyNumber(1, 1, DatabaseId(PEER_DATABASE)))])
            elif purpose == "relayed mail":
                await link.track(an_offer(tmp_path, b"Subject: one\r\n\r\n"), 1000.0)
            else:
                await deliver(deliverer, station, a_content())
            await deliverer.close()

        assert station.server.sessions_count <= 2
        assert len(asked) >= 1, "the session was opened for something else, and asks all the same"


@pytest.mark.parametrize("connector", [{"accept_xshadow": False}, {"externally_secured": []}], ids=["switched off", "not secured"])
async def test_a_peer_that_refuses_the_session_gets_its_mail_like_any_next_hop(tmp_path: Path, connector: dict[str, object]):
    async with a_pair(tmp_path, **connector) as (link, station):
        deliverer = a_deliverer(to_peer=lambda address: link.for_delivery())

        assert TAKEN_AND_REFUSED == await deliver(deliverer, station, a_content())
        await deliverer.close()


async def test_a_poll_that_fails_does_not_hold_up_the_mail(tmp_path: Path):
    async def poll(session: SessionLink) -> None:
        raise PeerUnavailable(session.server, "planted")

    async with a_pair(tmp_path, poll=poll) as (link, station):
        deliverer = a_deliverer(to_peer=lambda address: link.for_delivery())

        assert TAKEN_AND_REFUSED == await deliver(deliverer, station, a_content())
        await deliverer.close()


async def test_mail_to_a_next_hop_that_is_no_peer_asks_nothing(tmp_path: Path):
    asked: list[HostPort] = []

    async def nobody(address: HostPort) -> None:
        asked.append(address)

    async with receiving(tmp_path) as station:
        deliverer = a_deliverer(to_peer=nobody)

        assert TAKEN_AND_REFUSED == await deliver(deliverer, station, a_content())
        assert [station.server.address] == asked
        await deliverer.close()
