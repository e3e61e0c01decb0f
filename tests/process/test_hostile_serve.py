"""The hostile inputs of `tests/smtp/hostile.py` again, over a socket to a running `shadowrelay serve`: the same
replies, nothing accepted, and the same process alive and taking mail at the end."""

import contextlib
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess, rows
from tests.kit.clients import TO_DATA
from tests.kit.processes import a_served_node, client_of
from tests.smtp.hostile import BARE, CLOSED, COMMANDS, ENDINGS, IN_RCPT, SMUGGLED


async def answers_to(node: NodeProcess, before: bytes, octets: bytes, expected: list[str]) -> list[str]:
    client = await client_of(node)
    try:
        await client.send(before)
        await client.replies(before.count(b"\r\n"))
        await client.send(octets)
        return [await client.rest() or CLOSED if want == CLOSED else await client.reply() for want in expected]
    finally:
        await client.close()


def differing(expected: list[str], answers: list[str]) -> bool:
    return any(want != answer for want, answer in zip(expected, answers, strict=True) if not want.endswith("~"))


@pytest.mark.slow
async def test_a_running_node_gives_each_hostile_input_its_reply_and_takes_mail_afterwards(tmp_path: Path) -> None:
    async with a_served_node(tmp_path, "accept_xshadow = false") as node:
        wrong = {}
        for name, before, octets, expected in COMMANDS:
            answers = await answers_to(node, before, octets, expected)
            if differing(expected, answers):
                wrong[name] = answers
        for ending in ENDINGS:
            client = await client_of(node, *TO_DATA)
            with contextlib.suppress(ConnectionError):
                await client.send(b"first" + ending + SMUGGLED)
            answers = [await client.reply(), await client.rest() or CLOSED]
            if [BARE, CLOSED] != answers:
                wrong[repr(ending)] = answers
            await client.close()
        good = await answers_to(node, IN_RCPT + b"DATA\r\n", b"hello\r\n.\r\n", ["250"])
        is_alive = node.is_running
    accepted = [row for row in rows(node.tracking) if row["event-id"] == "RECEIVE"]

    assert {} == wrong
    assert len(COMMANDS) + len(ENDINGS) >= 30
    assert (True, True, 1) == (is_alive, good[0].startswith("250 2.0.0 Queued as"), len(accepted))
