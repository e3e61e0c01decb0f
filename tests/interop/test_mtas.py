"""Postfix, Exim, OpenSMTPD and Sendmail, configured as configs/mtas says, send to two nodes and are delivered to by them.

The nodes insist on a copy (451 without one) and prove their names to each other by TLS; to the MTAs they offer STARTTLS with
the same certificate.
"""

import asyncio
import contextlib
import csv
import email
import email.policy
import smtplib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.model.routing import HostPort
from tests.interop.mtas import HOSTS, MTAS, NODE_ADDRESSES, OTHER_NAMES, Mta, body_of, head_of, subject_of
from tests.kit.postfix import free_port
from tests.kit.processes import operator_events

pytestmark = [pytest.mark.interop, pytest.mark.heavy]

USERS = ("user0", "user1", "sender")
ARRIVAL_SECONDS_MAX = 60.0
BODIES = {
    "plain": b"Hello\r\n",
    "dots": b".\r\n..\r\n.a line that begins with a dot\r\n\r\n.\r\n\r\nand one more.\r\n",
    "8-bit": "Grüße aus Zürich, 雪\r\n".encode() + bytes(range(0xA0, 0x100)) + b"\r\n",
    "long lines": b"x" * 988 + b"\r\n" + b"." + b"y" * 987 + b"\r\n",  # Sendmail breaks longer ones
    "blank ends": b"\r\n\r\nspaces at the end   \r\n\t\r\n\r\n\r\nFrom here\r\n",
    "large": b"".join(b"%07d " % number + b"z" * 70 + b"\r\n" for number in range(16_000)),  # over 1 MiB: content on disk
}
CONFIGURATION = """
[server]
name = "{name}"
site = "{site}"
boundary = "interop"
data_directory = "data"

[transport]
shared_fate_is_redundant = true
reject_message_on_shadow_failure = true
shadow_heartbeat_frequency = "1s"
shadow_resubmit_time_span = "20s"
shadow_timeout = "2s"
discard_poll_interval = "250ms"

[send]
queue_glitch_retry_interval = "500ms"
transient_failure_retry_interval = "1s"
message_retry_interval = "1s"

[[receive_connectors]]
name = "inbound"
listen = "{listen}"
relay_from = ["127.0.0.0/8"]

[[peers]]
name = "{peer}"
site = "{peer_site}"
boundary = "interop"
address = "{peer_listen}"

[tls]
certificate = "../nodes.pem"
key = "../nodes.key"
peer_authority = "../peers.pem"

[tracking]
directory = "tracking"

[admin]
listen = "{admin}"
"""
ROUTE = """
[[routes]]
recipients = ["*@{domain}"]
next_hop = "127.0.0.1:{port}"
inside_boundary = true
"""


@dataclass(frozen=True)
class Yard:
    """Two nodes, and some MTAs around them."""

    nodes: list[NodeProcess]
    mtas: dict[str, Mta]

    async def submit(self, mta: Mta, sender: str, recipients: Sequence[str], subject: str, body: bytes) -> None:
        """Hand a message to an MTA, from this machine; it must take it for everybody."""

        def send() -> None:
            head = f"From: {sender or 'nobody@x.example'}\r\nTo: {recipients[0]}\r\nSubject: {subject}\r\n\r\n".encode()
            with smtplib.SMTP("127.0.0.1", mta.port, timeout=30) as client:
                client.ehlo("client.example")
                options = ["BODY=8BITMIME"] if client.has_extn("8bitmime") else []
                assert {} == client.sendmail(sender, recipients, head + body, mail_options=options)

        await asyncio.to_thread(send)

    async def arrived(self, mta: Mta, count: int) -> dict[str, list[bytes]]:
        """What it stored, as soon as there are `count` messages."""
        found: dict[str, list[bytes]] = {}
        for turn in range(int(ARRIVAL_SECONDS_MAX / 0.1)):
            found = mta.stored()
            if sum(map(len, found.values())) >= count:
                return found
            if turn % 20 == 19:
                for each in self.mtas.values():
                    each.retry_now()
            await asyncio.sleep(0.1)
        logs = "\n".join(f"--- {each.name}\n{each.logged()}" for each in self.mtas.values())
        names = {user: [subject_of(one) for one in messages] for user, messages in found.items()}
        raise AssertionError(f"{mta.name}: {count} messages expected, {names}\n{logs}\n{self.nodes[0].log_tail()}")

    def rows(self, event: str) -> list[list[str]]:
        """From the tracking logs of both nodes."""
        paths = [path for node in self.nodes for path in sorted(node.tracking.glob("MSGTRK*.LOG"))]
        found = [row for path in paths for row in csv.reader(path.read_text().splitlines()) if not row[0].startswith("#")]
        return [row for row in found if row[8] == event]

    def sessions(self) -> list[dict[str, object]]:
        """What both nodes said of sessions that ended and were no peers'."""
        lines = [line for node in self.nodes for line in operator_events(node)]
        return [line for line in lines if line["event"] == "session.closed" and not line.get("peer") and line.get("messages")]


@contextlib.asynccontextmanager
async def yard(workplace: Path, kinds: Sequence[type[Mta]], *, strict: str = "") -> AsyncIterator[Yard]:
    """All running. `strict`: the first with the stricter lines of its recipe; "other authority", or "other name": none of the nodes has
    such a certificate."""
    for kind in kinds:
        if reason := kind.missing():
            pytest.skip(reason)
    workplace.mkdir(mode=0o755, exist_ok=True)
    relay_port, *admins = free_ports(3)
    mtas = {kind.name: kind(workplace / kind.name, free_port(), relay_port, USERS) for kind in kinds}
    places = [Place(name, name.split(".")[1]) for name in NODE_ADDRESSES]
    nodes = [
        NodeProcess(place, HostPort(NODE_ADDRESSES[place.name], relay_port), HostPort("127.0.0.1", admin), workplace / place.name)
        for place, admin in zip(places, admins, strict=True)
    ]
    authority = trustme.CA()
    certificate = authority.issue_cert(*HOSTS)
    (workplace / "nodes.pem").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    (workplace / "nodes.key").write_bytes(certificate.private_key_pem.bytes())
    (workplace / "peers.pem").write_bytes(authority.cert_pem.bytes())
    (workplace / "others.pem").write_bytes(trustme.CA().cert_pem.bytes())
    if strict:
        first = mtas[kinds[0].name]
        first.authority = workplace / ("others.pem" if strict == "other authority" else "peers.pem")
        first.called = OTHER_NAMES if strict == "other name" else {}
    try:
        for mta in mtas.values():
            mta.configure()
            mta.start()
        for node, peer in zip(nodes, reversed(nodes), strict=True):
            node.directory.mkdir()
            values = {"name": node.name, "site": node.place.site, "listen": node.address, "admin": node.admin}
            text = CONFIGURATION.format(**values, peer=peer.name, peer_site=peer.place.site, peer_listen=peer.address)
            text += "".join(ROUTE.format(domain=mta.domain, port=mta.port) for mta in mtas.values())
            (node.directory / "node.toml").write_text(text)
        await asyncio.gather(*(node.start() for node in nodes))
        yield Yard(nodes, mtas)
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))
        for mta in mtas.values():
            mta.stop()


def return_path_of(message: bytes) -> str:
    """That of a null sender OpenSMTPD leaves out, and Sendmail calls it MAILER-DAEMON, without a domain as no other address is."""
    found = str(email.message_from_bytes(message)["Return-Path"] or "<>")
    return "<>" if found == "<MAILER-DAEMON>" else found


async def test_mail_between_all_of_them_through_the_nodes_arrives_once_and_unchanged(workplace: Path) -> None:
    async with yard(workplace, MTAS) as scene:
        expected = {}
        for sending in scene.mtas.values():
            others = [mta for mta in scene.mtas.values() if mta is not sending]
            for name, body in BODIES.items():
                subject = f"{name} from {sending.name}"
                expected[subject] = ("<sender@x.example>", body)
                await scene.submit(sending, "sender@x.example", [f"user0@{mta.domain}" for mta in others], subject, body)
            subject = f"null sender from {sending.name}"
            expected[subject] = ("<>", b"bounce\r\n")
            await scene.submit(sending, "", [f"user1@{mta.domain}" for mta in others], subject, b"bounce\r\n")
        for mta in scene.mtas.values():
            wanted = {subject: one for subject, one in expected.items() if not subject.endswith(f" from {mta.name}")}
            found = await scene.arrived(mta, len(wanted))
            messages = [one for stored in found.values() for one in stored]
            assert len(wanted) == len(messages), mta.name
            assert wanted == {subject_of(one): (return_path_of(one), body_of(one)) for one in messages}, mta.name
            assert all("by mx1." in head_of(one) for one in messages)

    assert {True} == {bool(session["tls"]) for session in scene.sessions()}
    assert [] == scene.rows("HAREDIRECTFAIL")


@pytest.mark.parametrize("kind", MTAS, ids=lambda kind: kind.name)
async def test_a_node_that_is_down_is_passed_over(kind: type[Mta], workplace: Path) -> None:
    for down in (0, 1):
        async with yard(workplace / str(down), [kind, other_than(kind)]) as scene:
            sending, receiving = scene.mtas.values()
            # the other one alone would answer 451: it may take mail without a copy
            for node in scene.nodes:
                path = node.directory / "node.toml"
                path.write_text(path.read_text().replace("shadow_failure = true", "shadow_failure = false"))
            await scene.nodes[down].stop()
            await scene.nodes[1 - down].stop()
            await scene.nodes[1 - down].start()
            await scene.submit(sending, "sender@x.example", [f"user0@{receiving.domain}"], "one", b"one\r\n")
            found = await scene.arrived(receiving, 1)

        assert [b"one\r\n"] == [body_of(one) for one in found["user0"]]


@pytest.mark.parametrize("kind", MTAS, ids=lambda kind: kind.name)
async def test_what_is_answered_with_451_is_queued_and_arrives_once_when_a_copy_can_be_made(kind: type[Mta], workplace: Path) -> None:
    async with yard(workplace, [kind, other_than(kind)]) as scene:
        sending, receiving = scene.mtas.values()
        await scene.nodes[1].stop()
        await scene.submit(sending, "sender@x.example", [f"user0@{receiving.domain}"], "one", b"one\r\n")
        async with asyncio.timeout(30):
            while not scene.rows("HAREDIRECTFAIL"):
                await asyncio.sleep(0.1)
        assert ({}, []) == (receiving.stored(), scene.rows("RECEIVE"))

        await scene.nodes[1].start()
        found = await scene.arrived(receiving, 1)
        await asyncio.sleep(2)

        assert {"user0": [b"one\r\n"]} == {user: [body_of(one) for one in stored] for user, stored in receiving.stored().items()}
        assert 1 == len(found["user0"]) == len(scene.rows("RECEIVE"))


@pytest.mark.parametrize("kind", MTAS, ids=lambda kind: kind.name)
async def test_a_recipient_that_it_refuses_costs_the_others_nothing_and_the_sender_is_told(kind: type[Mta], workplace: Path) -> None:
    async with yard(workplace, [kind, other_than(kind)]) as scene:
        receiving, sending = scene.mtas.values()
        recipients = [f"user0@{receiving.domain}", f"nobody.here@{receiving.domain}", f"user1@{receiving.domain}"]
        await scene.submit(sending, f"sender@{sending.domain}", recipients, "partly", b"partly\r\n")
        stored = await scene.arrived(receiving, 2)
        reports = await scene.arrived(sending, 1)

    assert {"user0": [b"partly\r\n"], "user1": [b"partly\r\n"]} == {user: list(map(body_of, messages)) for user, messages in stored.items()}
    report = email.message_from_bytes(reports["sender"][0], policy=email.policy.default)
    assert ("<>", "multipart/report") == (report["Return-Path"], report.get_content_type())
    status = next(part for part in report.walk() if part.get_content_type() == "message/delivery-status")
    failed = [block["Final-Recipient"] for block in status.get_payload() if block["Final-Recipient"]]
    assert [f"nobody.here@{receiving.domain}"] == [recipient.split(";")[1].strip() for recipient in failed]


@pytest.mark.parametrize("kind", MTAS, ids=lambda kind: kind.name)
async def test_what_it_cannot_take_now_is_tried_again_and_arrives_once(kind: type[Mta], workplace: Path) -> None:
    async with yard(workplace, [kind, other_than(kind)]) as scene:
        receiving, sending = scene.mtas.values()
        receiving.stop()
        await scene.submit(sending, "sender@x.example", [f"user0@{receiving.domain}"], "later", b"later\r\n")
        async with asyncio.timeout(30):
            while not scene.rows("DEFER"):
                await asyncio.sleep(0.1)
        receiving.start()
        await scene.arrived(receiving, 1)
        await asyncio.sleep(1)

        assert {"user0": [b"later\r\n"]} == {user: list(map(body_of, messages)) for user, messages in receiving.stored().items()}


@pytest.mark.parametrize("kind", MTAS, ids=lambda kind: kind.name)
async def test_with_the_stricter_lines_it_sends_to_nodes_of_our_authority(kind: type[Mta], workplace: Path) -> None:
    async with yard(workplace, [kind, other_than(kind)], strict="as printed") as scene:
        sending, receiving = scene.mtas.values()
        await scene.submit(sending, "sender@x.example", [f"user0@{receiving.domain}"], "strict", b"strict\r\n")
        found = await scene.arrived(receiving, 1)

        assert [b"strict\r\n"] == [body_of(one) for one in found["user0"]]
        assert "with ESMTPS " in head_of(found["user0"][0])


@pytest.mark.parametrize("trouble", ["other authority", "other name"])
@pytest.mark.parametrize("kind", MTAS, ids=lambda kind: kind.name)
async def test_with_the_stricter_lines_it_sends_nothing_to_who_cannot_prove_to_be_a_node(
    kind: type[Mta], trouble: str, workplace: Path
) -> None:
    async with yard(workplace, [kind, other_than(kind)], strict=trouble) as scene:
        sending, receiving = scene.mtas.values()
        await scene.submit(sending, "sender@x.example", [f"user0@{receiving.domain}"], "strict", b"strict\r\n")
        async with asyncio.timeout(90):
            while sending.deferral not in sending.logged():
                await asyncio.sleep(0.1)

        assert ({}, []) == (receiving.stored(), scene.rows("RECEIVE"))


def other_than(kind: type[Mta]) -> type[Mta]:
    """The one at the other end: Postfix, or Exim for Postfix."""
    return MTAS[1] if kind is MTAS[0] else MTAS[0]
