"""Debian's Postfix sends through a cluster of three to another Postfix, which stores the mail."""

import asyncio
import contextlib
import email
import email.policy
import smtplib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, Place
from shadowrelay.model.routing import HostPort
from tests.interop.mtas import body_of, head_of, subject_of
from tests.kit.postfix import Postfix, running_postfix, stored_messages, storing_settings
from tests.kit.processes import wait_until_peers_know_each_other

pytestmark = [pytest.mark.interop, pytest.mark.slow]

DOMAIN = "corp.example"
KNOWN = ["sender", *(f"user{number}" for number in range(40))]
PLACES = (Place("a.east.example", "east"), Place("b.east.example", "east"), Place("c.west.example", "west"))
ARRIVAL_SECONDS_MAX = 120.0
PATIENT = {"shadow_resubmit_time_span": "60s", "shadow_timeout": "20s"}  # Postfix waits for minutes after a 451
BODIES = {
    "plain": b"Hello\r\n",
    "dots": b".\r\n..\r\n.a line that begins with a dot\r\n\r\n.\r\n\r\nand one more.\r\n",
    "8-bit": "Grüße aus Zürich, 雪\r\n".encode() + bytes(range(0x80, 0x100)) + b"\r\n",
    "long lines": b"x" * 998 + b"\r\n" + b"." + b"y" * 997 + b"\r\n",
    "blank ends": b"\r\n\r\nspaces at the end   \r\n\t\r\n\r\n\r\n",
    "large": b"".join(b"%07d " % number + b"z" * 70 + b"\r\n" for number in range(16_000)),  # over 1 MiB: content on disk
}


@dataclass(frozen=True)
class Chain:
    """Sending Postfix, cluster, receiving Postfix."""

    sending: Postfix
    cluster: Cluster
    receiving: Postfix
    mail: Path

    def submit(self, sender: str, recipients: list[str], name: str, body: bytes) -> None:
        """Hand one message to the sending Postfix; it refuses nobody."""
        head = f"From: {sender or 'nobody@corp.example'}\r\nTo: {recipients[0]}\r\nSubject: {name}\r\n\r\n".encode()
        with smtplib.SMTP("127.0.0.1", self.sending.port, timeout=30) as client:
            refused = client.sendmail(sender, recipients, head + body, mail_options=["BODY=8BITMIME"])
        assert {} == refused

    async def arrived(self, count: int) -> dict[str, list[bytes]]:
        """The stored mail, as soon as there are `count` messages."""
        for _ in range(int(ARRIVAL_SECONDS_MAX / 0.1)):
            found = stored_messages(self.mail)
            if sum(map(len, found.values())) >= count:
                return found
            await asyncio.sleep(0.1)
        names = {recipient: [subject_of(one) for one in messages] for recipient, messages in found.items()}
        raise AssertionError(f"{count} messages expected, {names}\nsending: {self.sending.queue()}\nreceiving: {self.receiving.queue()}")


@contextlib.asynccontextmanager
async def chain(workplace: Path, **settings: str) -> AsyncIterator[Chain]:
    """Recipients user0, user3 … go to the first node, user1, user4 … to the second, the others to the third."""
    mail = workplace / "mail"
    with running_postfix(workplace / "receiving", storing_settings(mail, DOMAIN, KNOWN)) as receiving:
        async with Cluster(PLACES, HostPort("127.0.0.1", receiving.port), directory=workplace / "nodes", transport=PATIENT) as cluster:
            await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))
            ports = [node.address.port for node in cluster.nodes.values()]
            table = workplace / "transport.regexp"
            patterns = ("^user[0-9]*[0369]@", "^user[0-9]*[147]@", "@")
            table.write_text("".join(f"/{pattern}/ smtp:[127.0.0.1]:{port}\n" for pattern, port in zip(patterns, ports, strict=True)))
            with running_postfix(workplace / "sending", {"transport_maps": f"regexp:{table}", **settings}) as sending:
                yield Chain(sending, cluster, receiving, mail)


async def test_mail_from_postfix_through_three_nodes_to_postfix_arrives_once_and_unchanged(workplace: Path) -> None:
    async with chain(workplace) as way:
        for number, (name, body) in enumerate(BODIES.items()):
            way.submit("sender@corp.example", [f"user{number}@{DOMAIN}"], name, body)
        way.submit("sender@corp.example", [f"user{number}@{DOMAIN}" for number in range(10, 20)], "ten recipients", b"ten\r\n")
        way.submit("", [f"user20@{DOMAIN}"], "null sender", b"bounce\r\n")
        found = await way.arrived(len(BODIES) + 11)

    expected = {f"user{number}": [(name, body)] for number, (name, body) in enumerate(BODIES.items())}
    expected |= {f"user{number}": [("ten recipients", b"ten\r\n")] for number in range(10, 20)}
    expected["user20"] = [("null sender", b"bounce\r\n")]
    assert expected == {recipient: [(subject_of(one), body_of(one)) for one in messages] for recipient, messages in found.items()}
    assert "Return-Path: <>\n" in head_of(found["user20"][0])
    assert all("Return-Path: <sender@corp.example>\n" in head_of(found[f"user{number}"][0]) for number in range(10, 20))
    nodes = {name for messages in found.values() for one in messages for name in way.cluster.nodes if f"by {name}" in head_of(one)}
    assert set(way.cluster.nodes) == nodes


@pytest.mark.heavy
async def test_a_recipient_whom_postfix_refuses_costs_the_others_nothing_and_the_sender_is_told(workplace: Path) -> None:
    recipients = [f"user1@{DOMAIN}", f"nobody.here@{DOMAIN}", f"user4@{DOMAIN}"]
    async with chain(workplace) as way:
        way.submit("sender@corp.example", recipients, "partly", b"partly\r\n")
        found = await way.arrived(3)

    assert {"user1": 1, "user4": 1, "sender": 1} == {recipient: len(messages) for recipient, messages in found.items()}
    assert [b"partly\r\n"] * 2 == [body_of(found[name][0]) for name in ("user1", "user4")]
    report = email.message_from_bytes(found["sender"][0], policy=email.policy.default)
    assert ("<>", "multipart/report") == (report["Return-Path"], report.get_content_type())
    status = next(part for part in report.walk() if part.get_content_type() == "message/delivery-status")
    about = [block for block in status.get_payload() if block["Final-Recipient"]]
    assert [("rfc822;nobody.here@corp.example", "failed")] == [(one["Final-Recipient"].replace(" ", ""), one["Action"]) for one in about]
    assert about[0]["Status"].startswith("5.1.1")


@pytest.mark.heavy
async def test_hundreds_of_messages_with_many_recipients_arrive_once_each(workplace: Path) -> None:
    async with chain(workplace) as way:
        expected = await asyncio.to_thread(submit_many, way.submit)
        found = await way.arrived(sum(map(len, expected.values())))

    assert expected == {recipient: sorted(map(subject_of, messages)) for recipient, messages in found.items()}
    names = list(BODIES)
    assert all(body_of(one) == BODIES[names[int(subject_of(one)) % 5]] for messages in found.values() for one in messages)


def submit_many(submit: Callable[[str, list[str], str, bytes], None]) -> dict[str, list[str]]:
    """Three hundred, with one to seven recipients; returns the subjects for each recipient."""
    names = list(BODIES)
    expected: dict[str, list[str]] = {}
    for number in range(300):
        recipients = [f"user{(number * 7 + index) % 40}" for index in range(1 + number % 7)]
        submit("sender@corp.example", [f"{one}@{DOMAIN}" for one in recipients], str(number), BODIES[names[number % 5]])
        for one in recipients:
            expected.setdefault(one, []).append(str(number))
    return {recipient: sorted(subjects) for recipient, subjects in expected.items()}
