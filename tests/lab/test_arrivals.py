"""Heads of messages are those that a real Postfix 3.7 and a real Exim 4.96 wrote in the lab."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from shadowrelay.lab.verification import arrivals
from tests.tidy.house import ROOT

ID = "01a1fee9-419a-7497-bbe9-fc777adbcf42"
BY_POSTFIX = (
    "Received: from mx1.west.example (unknown [10.83.9.21])\n\tby postfix.corp.example (Postfix) with ESMTP id 4jWyB83q31z93yZ\n"
    "\tfor <user26@corp.example>; Sat, 21 Nov 2026 16:21:03 +0000 (UTC)\n"
)
BY_EXIM = (
    "Received: from [10.83.9.21] (helo=mx2.west.example)\n\tby exim.partner.example with esmtp (Exim 4.96)\n"
    "\t(envelope-from <sender@client.example>)\n\tid 1xUnpl-000049-36\n\tfor user20@partner.example;\n\tSat, 21 Nov 2026 16:21:03 +0000\n"
)
PROMOTED = f"Received: from mx1.east.example by mx1.west.example\n\twith ShadowRedundancy id {ID};\n\tSat, 21 Nov 2026 16:21:02 +0000\n"
REST = (
    f"Received: from sender.client.example ([10.83.9.30])\n\tby mx1.west.example with ESMTP id {ID};\n\tSat, 21 Nov 2026 16:21:01 +0000\n"
    "Received: from client.example (localhost [127.0.0.1])\n\tby sender.client.example (Postfix) with ESMTP id 4jWyB54VqLz9468;\n"
    "\tSat, 21 Nov 2026 16:21:01 +0000 (UTC)\nX-Lab: 76\nMessage-ID: <76.a1c326e1@client.example>\n"
)
TAKEN_AT = 1795278063.0


def a_line(head: str, at: float = TAKEN_AT + 0.4) -> str:
    return json.dumps({"at": at, "recipient": "user26@corp.example", "head": head, "own_sha256": "digest", "own_size": 4012})


@pytest.mark.parametrize(("top", "client"), [(BY_POSTFIX, "mx1.west.example"), (BY_EXIM, "mx2.west.example")])
def test_who_delivered_it_is_who_said_hello(top: str, client: str) -> None:
    (one,) = arrivals([a_line(top + REST)])

    assert (client, ID, "<76.a1c326e1@client.example>", False) == (
        one.client_name,
        one.network_id,
        one.internet_message_id,
        one.is_promoted,
    )


def test_a_promoted_message_says_so() -> None:
    (one,) = arrivals([a_line(BY_POSTFIX + PROMOTED + REST)])

    assert (True, ID) == (one.is_promoted, one.network_id)


@pytest.mark.parametrize(("written_at", "at"), [(TAKEN_AT + 0.4, TAKEN_AT + 0.4), (TAKEN_AT + 30, TAKEN_AT + 1)])
def test_what_was_written_down_late_counts_from_when_it_was_taken(written_at: float, at: float) -> None:
    assert [at] == [one.at for one in arrivals([a_line(BY_POSTFIX + REST, written_at)])]


def test_a_message_without_any_trace_is_an_arrival_too() -> None:
    (one,) = arrivals([a_line("Subject: ?"), ""])

    assert ("", "", "") == (one.client_name, one.network_id, one.internet_message_id)


def test_the_recorder_writes_what_is_read_here(tmp_path: Path) -> None:
    program = (ROOT / "lab" / "mta" / "record.py").read_text(encoding="utf-8").replace("/var/lib/record", str(tmp_path))
    own = b"X-Lab: 76\nMessage-ID: <76.a1c326e1@client.example>\n\nThe text.\n"
    trace = (BY_POSTFIX + REST.partition("X-Lab")[0]).encode()
    wire = (trace + own).replace(b"\n", b"\r\n")
    subprocess.run([sys.executable, "-IS", "-c", program, "USER26@corp.example"], input=wire, check=True)

    (one,) = arrivals((tmp_path / "arrivals.jsonl").read_text().splitlines())

    assert ("user26@corp.example", ID, hashlib.sha256(own).hexdigest()) == (one.recipient, one.network_id, one.own_sha256)
