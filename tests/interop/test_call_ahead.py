"""Recipients of a real Postfix, asked for by a node at RCPT: who is unknown there is refused before anything is copied."""

from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess
from tests.kit.clients import submit
from tests.kit.clock import until
from tests.kit.postfix import Postfix, running_postfix, stored_messages, storing_settings
from tests.kit.processes import a_node_process, client_of, figure, operator_events, said

pytestmark = [
    pytest.mark.interop,
    pytest.mark.heavy,
    pytest.mark.slow,
]

SOURCE = '[[recipient_sources]]\nname = "store"\nkind = "call-ahead"\ntimeout = "5s"\nnegative_cache = "1s"\n'
ALONE = "[transport]\nreject_message_on_shadow_failure = false\n"


async def answers(node: NodeProcess, *recipients: str, sender: str = "a@x.example") -> list[str]:
    client = await client_of(node, "EHLO c.example", f"MAIL FROM:<{sender}>")
    found = [(await client.ask(f"RCPT TO:<{recipient}@here.example>"))[:9] for recipient in recipients]
    await client.close()
    return found


def a_node(directory: Path, store: Postfix) -> NodeProcess:
    node = a_node_process(directory / "a.example", connector='recipients = "store"', tables=SOURCE + ALONE)
    file = node.directory / "node.toml"
    file.write_text(file.read_text().replace("127.0.0.1:9", f"127.0.0.1:{store.port}"))
    return node


async def test_a_postfix_that_knows_its_recipients_decides_at_rcpt(workplace: Path) -> None:
    maildirs = workplace / "mail"
    with running_postfix(workplace / "store", storing_settings(maildirs, "here.example", ["john"])) as store:
        node = a_node(workplace, store)
        try:
            await node.start()
            first = await answers(node, "john", "jane", "postmaster", sender="")
            many = await answers(node, *(f"user{number}" for number in range(60)))
            await submit(node.address, "john@here.example")
            await until(lambda: stored_messages(maildirs))
            store.stop()
            away = await answers(node, "john", "jack")
            problems = (await said(node, "status", code=None))["nodes"][0]["reasons"]
            checked = [figure(node, f'recipients_checked_total{{answer="{answer}"}}') for answer in ("known", "unknown", "undecided")]
            events = {event["event"] for event in operator_events(node, "recipients.")}
        finally:
            await node.stop()

    assert ["250 2.1.5", "550 5.1.1", "250 2.1.5"] == first
    assert {"550 5.1.1"} == set(many)
    assert ["250 2.1.5", "450 4.4.1"] == away
    assert any("does not say who its recipients are" in problem for problem in problems)
    assert [3, 61, 1] == checked
    assert "recipients.unanswered" in events
    assert [["john"], 1] == [list(stored_messages(maildirs)), len(stored_messages(maildirs)["john"])]


async def test_a_postfix_that_takes_everything_is_noticed(workplace: Path) -> None:
    settings = {"relay_domains": "here.example", "relay_recipient_maps": "", "smtpd_relay_restrictions": "permit_mynetworks, reject"}
    with running_postfix(workplace / "store", settings) as store:
        node = a_node(workplace, store)
        try:
            await node.start()
            first = await answers(node, "john")
            await until(lambda: figure(node, 'recipient_source_accepts_all{source="store"}') == 1)
            second = await answers(node, "anybody")
        finally:
            await node.stop()

    assert ["250 2.1.5"] * 2 == first + second
    assert ["here.example"] == [event["domain"] for event in operator_events(node, "recipients.all_accepted")]
