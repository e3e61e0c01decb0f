"""A node with a list of recipients: it follows the file, keeps the last good list, and says so wherever an operator looks."""

import signal
from pathlib import Path

from shadowrelay.lab.cluster import NodeProcess
from tests.kit.clock import until
from tests.kit.processes import a_node_process, client_of, figure, operator_events, said, typed

SOURCE = '[[recipient_sources]]\nname = "corp"\nkind = "file"\nfile = "recipients.txt"\n'


async def answer(node: NodeProcess, recipient: str) -> str:
    client = await client_of(node, "EHLO c.example", "MAIL FROM:<>")
    reply = await client.ask(f"RCPT TO:<{recipient}@here.example>")
    await client.close()
    return reply[:9]


async def test_a_list_is_followed_and_the_last_good_one_kept(tmp_path: Path) -> None:
    node = a_node_process(tmp_path / "a.example", connector='recipients = "corp"', tables=SOURCE)
    file = node.directory / "recipients.txt"
    file.write_text("john@here.example\n")
    try:
        await node.start()
        first = await answer(node, "john"), await answer(node, "jane")
        file.write_text("john@here.example\njane@here.example\n")
        await until(lambda: figure(node, 'recipient_source_addresses{source="corp"}') == 2)
        second = await answer(node, "jane")
        file.write_text("rubbish\n")
        node.signal(signal.SIGHUP)
        await until(lambda: operator_events(node, "recipients.kept"))
        third = await answer(node, "jane"), await answer(node, "jack")
        await until(lambda: 1 == figure(node, 'recipient_source_broken{source="corp"}'))
        figures = [figure(node, name) for name in ('recipient_source_broken{source="corp"}', 'recipients_checked_total{answer="unknown"}')]
        texts = [(await typed(node, command, code=None))[0] for command in ("status", "doctor", "check")]
        reasons = (await said(node, "status", code=None))["nodes"][0]["reasons"]
    finally:
        await node.stop()

    assert (("250 2.1.5", "550 5.1.1"), "250 2.1.5", ("250 2.1.5", "550 5.1.1")) == (first, second, third)
    assert [1, 2] == figures
    assert [True] * 3 == ["line 1 is neither an address" in " ".join(text.split()) for text in texts]
    assert any("from before holds" in reason for reason in reasons)
