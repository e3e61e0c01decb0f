"""Recipients that a connector looks up in its sources: who is refused at RCPT, with which reply, and whose mail is never looked up."""

from pathlib import Path
from typing import Any

import pytest
import structlog

from shadowrelay.model.client_minute import Counted
from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.call_ahead import Asking
from tests.kit.clients import Client
from tests.kit.receiving import HELLO, PEER, receiving
from tests.kit.smtp_servers import ScriptedServer, serving
from tests.smtp.copies import HELD, a_copy
from tests.smtp.deliverers import a_deliverer, at, route

NO_SUCH = "550 5.1.1 No such recipient here"
UNDECIDED = "450 4.2.0 The recipient cannot be verified now, try again later"
ACCEPTED = "250 2.1.5 Recipient OK"
DENIED = "550 5.7.1 Relaying denied"


def a_source(directory: Path, text: str | None = "john@here.example\n", name: str = "corp", **settings: Any) -> dict[str, Any]:
    path = directory / f"{name}.txt"
    if text is not None:
        path.write_text(text)
    return {"name": name, "kind": "file", "file": str(path), **settings}


async def answers(client: Client, *recipients: str, sender: str = "a@x.example") -> list[str]:
    assert (await client.ask(f"MAIL FROM:<{sender}>")).startswith("250")
    return [await client.ask(f"RCPT TO:<{recipient}>") for recipient in recipients]


@pytest.mark.parametrize("sender", ["a@x.example", ""])
async def test_who_is_not_listed_is_refused_whoever_sends_and_the_others_get_the_message(tmp_path: Path, sender: str) -> None:
    async with receiving(tmp_path, sources=[a_source(tmp_path)], recipients="corp") as station:
        client = await station.client_in("EHLO c.example")
        replies = await answers(
            client, "john@here.example", "jane@here.example", "John+x@HERE.example", "a@elsewhere.example", sender=sender
        )
        await client.ask("DATA")
        await client.send(b"Subject: x\r\n\r\n.\r\n")
        done = await client.reply()

    assert [ACCEPTED, NO_SUCH, ACCEPTED, DENIED] == replies
    assert "250" == done[:3]
    assert ["john@here.example", "John+x@HERE.example"] == [one.address for one in station.acceptor.accepted[0][0].recipients]


async def test_postmaster_always_exists(tmp_path: Path) -> None:
    async with receiving(tmp_path, sources=[a_source(tmp_path)], recipients="corp") as station:
        client = await station.client_in("EHLO c.example")

        assert [ACCEPTED] * 4 == await answers(
            client, "Postmaster", "postmaster@here.example", "POSTMASTER@Here.Example", '"postmaster"@here.example'
        )


async def test_clients_that_may_relay_are_told_of_wrong_recipients_here_and_relay_to_the_others(tmp_path: Path) -> None:
    settings = {"recipients": "corp", "relay_from": ["127.0.0.0/8", "::1/128"]}
    async with receiving(tmp_path, sources=[a_source(tmp_path)], **settings) as station:
        client = await station.client_in("EHLO c.example")

        assert [NO_SUCH, ACCEPTED, ACCEPTED] == await answers(client, "jane@here.example", "john@here.example", "a@elsewhere.example")


@pytest.mark.parametrize(("unavailable", "reply"), [("defer", UNDECIDED), ("accept", ACCEPTED)])
async def test_while_there_is_no_list_recipients_are_deferred_or_accepted_as_it_is_set(
    tmp_path: Path, unavailable: str, reply: str
) -> None:
    source = a_source(tmp_path, None, unavailable=unavailable)
    async with receiving(tmp_path, sources=[source], recipients="corp") as station:
        client = await station.client_in("EHLO c.example")
        with structlog.testing.capture_logs() as logs:
            assert [reply] == await answers(client, "jane@here.example")

    reasons = [line["reason"] for line in logs if line["event"] in ("recipient.refused", "recipient.unverified")]
    assert ["No such file or directory" in reason for reason in reasons] == [True]


async def test_of_several_sources_it_is_enough_that_one_knows_the_recipient(tmp_path: Path) -> None:
    sources = [a_source(tmp_path), a_source(tmp_path, "jane@here.example\n", "partners"), a_source(tmp_path, None, "missing")]
    async with receiving(tmp_path, sources=sources, recipients=["corp", "partners"]) as station:
        client = await station.client_in("EHLO c.example")
        both = await answers(client, "john@here.example", "jane@here.example", "jack@here.example")
    async with receiving(tmp_path, sources=sources, recipients=["missing", "corp"]) as station:
        client = await station.client_in("EHLO c.example")
        one_undecided = await answers(client, "john@here.example", "jack@here.example")

    assert [ACCEPTED, ACCEPTED, NO_SUCH] == both
    assert [ACCEPTED, UNDECIDED] == one_undecided


async def test_a_copy_is_never_looked_up_nor_what_a_peer_sends(tmp_path: Path) -> None:
    async with receiving(tmp_path, sources=[a_source(tmp_path)], recipients="corp", **PEER) as station:
        peer = await station.client_in("EHLO b.example", HELLO)
        await peer.send(a_copy(b"Subject: x\r\n\r\nx\r\n"))
        held = (await peer.replies(6))[-1]
        plain = await answers(peer, "jane@here.example")

    assert (HELD, [ACCEPTED]) == (held, plain)


async def test_a_wrong_recipient_counts_for_the_limit_of_its_client(tmp_path: Path) -> None:
    limits = {"refused_recipients_per_minute": 2}
    async with receiving(tmp_path, sources=[a_source(tmp_path)], recipients="corp", limits=limits) as station:
        client = await station.client_in("EHLO c.example")
        replies = await answers(client, "a@here.example", "b@here.example", "john@here.example")
        refused = station.server.reception.clients.refused[Counted.REFUSED_RECIPIENTS]

    assert (["550", "550", "421"], 1) == ([reply[:3] for reply in replies], refused)


async def test_a_refusal_has_its_reason_in_the_operator_log_and_is_counted(tmp_path: Path) -> None:
    async with receiving(tmp_path, sources=[a_source(tmp_path)], recipients="corp") as station:
        client = await station.client_in("EHLO c.example")
        with structlog.testing.capture_logs() as logs:
            await answers(client, "jane@here.example", "john@here.example")
        (line,) = [line for line in logs if line["event"] == "recipient.refused"]

    assert ("in", "jane@here.example", NO_SUCH) == (line["connector"], line["recipient"], line["reply"])


async def test_a_next_hop_that_is_asked_decides_at_rcpt_and_one_that_is_away_defers(tmp_path: Path) -> None:
    store = ScriptedServer({"RCPT": lambda line: "250 2.1.5 ok" if "john" in line else "550 5.1.1 no such user"})
    sources = [{"name": "store", "kind": "call-ahead"}]
    async with a_deliverer() as deliverer:
        async with serving(store):
            asking = Asking(deliverer.questions.ask, lambda address: route(at(store)))
            async with receiving(tmp_path, sources=sources, asking=asking, recipients="store") as station:
                client = await station.client_in("EHLO c.example")
                there = await answers(client, "john@here.example", "jane@here.example", "postmaster@here.example")
        asking = Asking(deliverer.questions.ask, lambda address: route(HostPort("127.0.0.1", 9)))
        async with receiving(tmp_path, sources=sources, asking=asking, recipients="store") as station:
            client = await station.client_in("EHLO c.example")
            away = await answers(client, "john@here.example")

    assert [ACCEPTED, NO_SUCH, ACCEPTED] == there
    assert ["450 4.4.1"] == [reply[:9] for reply in away]


async def test_what_is_relayed_elsewhere_asks_no_next_hop(tmp_path: Path) -> None:
    settings = {"recipients": "store", "relay_from": ["127.0.0.0/8", "::1/128"]}
    async with receiving(tmp_path, sources=[{"name": "store", "kind": "call-ahead"}], **settings) as station:
        client = await station.client_in("EHLO c.example")

        assert [ACCEPTED] == await answers(client, "a@elsewhere.example")
