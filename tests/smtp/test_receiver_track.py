"""What a peer that keeps the shadow relays to the receiver (`TRACK`). docs/protocol.md 6."""

import asyncio
import random
from pathlib import Path

import pytest

from shadowrelay.model.ownership import CopyNumber
from shadowrelay.protocol.xshadow import format_hold
from tests.kit.receiving import PEER, PEER_DATABASE, files_in, receiving, without_trace
from tests.smtp.copies import ENVELOPE, HELD, a_copy, peer_of

TRACKS = {**PEER, "redundancy": "previous-hop"}
EXTRA = format_hold(ENVELOPE.message_id, CopyNumber(1, 1, PEER_DATABASE), is_tracked=True)


def relayed(content: bytes, chunk: int | None = None, **changes: str) -> bytes:
    """A copy's lines with TRACK in place of HOLD."""
    octets = a_copy(content, chunk, **changes)
    start = octets.index(b"XSHADOW=HOLD:")
    return octets[:start] + b"XSHADOW=" + EXTRA.encode() + octets[octets.index(b"\r\n", start) :]


@pytest.mark.parametrize("content", [b"", b"Subject: x\r\n\r\nhello\r\n", b"QUIT\r\n.\r\nBDAT 5\r\n", bytes(range(256)) * 9000], ids=len)
async def test_a_relayed_message_is_taken_behind_our_own_trace_header(content: bytes, tmp_path: Path) -> None:
    async with receiving(tmp_path, **TRACKS) as station:
        client = await peer_of(station)

        await client.send(relayed(content, 100_000))
        replies = await client.replies(5 + max(1, -(-len(content) // 100_000)))

        assert HELD == replies[-1]
        offer, octets = station.peer_requests.holds[0]
        assert content == without_trace(octets)
        assert octets.startswith(
            f"Received: from b.example ([127.0.0.1])\r\n\tby a.example with UTF8SMTP id {ENVELOPE.message_id}".encode()
        )
        assert ENVELOPE.recipients == offer.envelope.recipients
        assert ("b.example", "in") == (offer.envelope.client_name, offer.envelope.connector)
        assert "ADDR=192.0.2.1 BY=127.0.0.1 HELO=client.example" == offer.envelope.original_client
        assert (1, 1) == (offer.number.ownership, offer.number.placement)


@pytest.mark.parametrize(
    ("connector", "content", "changes", "expected"),
    [
        (PEER, b"hello\r\n", {}, "504 5.5.4 XSHADOW=TRACK is not offered here"),
        (TRACKS | {"max_message_size": 70_000}, b"x" * 70_001, {}, "552 5.3.4"),
        (TRACKS, b"Received: by x\r\n" * 61 + b"\r\nhello\r\n", {}, "554 5.4.6"),
        (TRACKS, b"hello\r\n", {"commit": f"XSHADOW COMMIT size=7 sha256={'0' * 64}"}, "451 4.5.0"),
        (TRACKS, b"hello\r\n", {"envelope": "XSHADOW ENVELOPE ????"}, "501 5.5.4"),
        (TRACKS, b"hello\r\n", {"commit": "XSHADOW COMMIT"}, "501 5.5.4"),
    ],
    ids=["not offered", "too large", "too many hops", "changed", "envelope", "commit"],
)
async def test_what_cannot_be_taken_is_refused_and_leaves_nothing(
    connector: dict[str, object], content: bytes, changes: dict[str, str], expected: str, tmp_path: Path
) -> None:
    async with receiving(tmp_path, **connector) as station:
        client = await peer_of(station)

        await client.send(relayed(content, **changes) + b"NOOP\r\n")
        replies = await client.replies(7)

        assert [reply for reply in replies if reply.startswith(expected)]
        assert "250 2.0.0 OK" == replies[-1]
        assert [] == station.peer_requests.holds
        assert [] == files_in(tmp_path)


async def test_track_is_offered_only_where_the_connector_says_so(tmp_path: Path) -> None:
    offered = []
    for connector in (PEER, TRACKS, TRACKS | {"redundancy": "both"}, TRACKS | {"redundancy": "none"}, TRACKS | {"accept_xshadow": False}):
        async with receiving(tmp_path, **connector) as station:
            client = await station.connect()
            lines = (await client.ask("EHLO b.example")).splitlines()
            offered.append([line[4:] for line in lines if "XSHADOW" in line])

    assert [
        ["XSHADOW HOLD FORKS EARLY"],
        ["XSHADOW HOLD TRACK FORKS EARLY"],
        ["XSHADOW HOLD TRACK FORKS EARLY"],
        ["XSHADOW HOLD FORKS EARLY"],
        [],
    ] == offered


async def test_nothing_is_offered_while_redundancy_is_switched_off(tmp_path: Path) -> None:
    async with receiving(tmp_path, transport={"shadow_redundancy_enabled": False}, **TRACKS) as station:
        client = await station.connect()

        assert "XSHADOW" not in await client.ask("EHLO b.example")


async def test_a_client_that_is_no_peer_cannot_relay_by_track(tmp_path: Path) -> None:
    async with receiving(tmp_path, **TRACKS | {"externally_secured": ["192.0.2.0/24"]}) as station:
        client = await station.client_in("EHLO b.example")

        reply = await client.ask(f"MAIL FROM:<a@x.example> XSHADOW={EXTRA}")

        assert reply.startswith("555 5.5.4")
        assert [] == station.peer_requests.holds


@pytest.mark.parametrize("seed", range(40))
async def test_garbage_within_a_relayed_message_is_never_taken(seed: int, tmp_path: Path) -> None:
    """Octets are changed, left out or doubled: what is taken has the right hash, and the receiver goes on."""
    chance = random.Random(seed)
    content = b"Subject: x\r\n\r\n" + bytes(chance.choices(b"abc \r\n.", k=200))
    octets = bytearray(relayed(content))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(octets))
        octets[at : at + chance.randint(0, 3)] = bytes(chance.randrange(256) for _ in range(chance.randint(0, 3)))
    async with receiving(tmp_path, **TRACKS) as station:
        client = await peer_of(station)
        await client.send(bytes(octets))
        await asyncio.sleep(0.05)
        await client.close()
        another = await peer_of(station)
        await another.send(relayed(content))

        assert HELD == (await another.replies(6))[-1]
        assert {content} == {without_trace(octets) for _, octets in station.peer_requests.holds}
