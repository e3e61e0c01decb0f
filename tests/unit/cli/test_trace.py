"""`messages trace`: the sentence that a story begins with, from what nodes logged."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shadowrelay.admin import api_client
from shadowrelay.cli.find import resolved
from shadowrelay.cli.main import app
from shadowrelay.cluster.answers import NodeAnswer
from shadowrelay.cluster.story import sentence, what
from tests.unit.cli.played_api import PlayedClient, play

ID = "0193a6a2-6f1e-7c3a-9c57-0d1f2e3a4b5c"
NOW = datetime(2026, 11, 23, 6, tzinfo=UTC)
EAST, WEST = "mx1.east", "mx1.west"
BOB, EVE = "bob@corp.example", "eve@corp.example"

Row = dict[str, Any]


def row(node: str, event: str, second: float, *to: str, source: str = "SMTP", **more: Any) -> Row:
    """A row of that node's log, so many seconds after 05:42."""
    at = f"2026-11-23T05:42:{second:06.3f}+00:00"
    fields = {"client": "", "server": "", "context": "", "next_hop": "", "replies": [], "reference": "", "custom_data": {}}
    named = {"node": node, "at": at, "event": event, "source": source, "network_message_id": ID, "recipients": list(to)}
    return fields | named | more


def received(replication: str, *to: str) -> Row:
    return row(EAST, "RECEIVE", 1, *to, client="client.example", custom_data={"Replication": replication})


def known(role: str, *to: str, **more: Any) -> Row:
    message = {"role": role, "primary": "", "set_aside_reason": "", "last_reply": "", "recipients": [{"address": one} for one in to]}
    return message | more


TAKEOVER = row(WEST, "RESUBMIT", 14, BOB, source="REDUNDANCY", reference=EAST, custom_data={"Reason": "Silence"})


@pytest.mark.parametrize(
    ("events", "messages", "told"),
    [
        ([received("Success", BOB), row(EAST, "SEND", 2, BOB)], {}, "Delivered by mx1.east, 05:42:02"),
        (
            [received("Failed", BOB), row(EAST, "HAREDIRECT", 4, BOB, server=WEST), TAKEOVER, row(WEST, "SEND", 16, BOB)],
            {},
            "Delivered by mx1.west after takeover from mx1.east, 05:42:16; accepted without a copy for 3 s",
        ),
        (
            [received("Failed", BOB), row(EAST, "SENDEXTERNAL", 3, BOB)],
            {},
            "Delivered by mx1.east, 05:42:03; without a copy until it was delivered, 2 s after it was accepted",
        ),
        (
            [received("Disabled", BOB), row(EAST, "DEFER", 3, BOB, replies=["451 4.3.0 Later"])],
            {EAST: known("primary", BOB), WEST: known("shadow", BOB)},
            "Waits on mx1.east: 451 4.3.0 Later; accepted without a copy, and no copy was made since",
        ),
        (
            [received("Success", BOB, EVE), row(EAST, "SEND", 2, BOB), row(EAST, "FAIL", 3, EVE, replies=["550 5.1.1 Unknown"])],
            {},
            "Delivered to 1 of 2 recipients by mx1.east, 05:42:02; failed for eve@corp.example on mx1.east, 05:42:03: 550 5.1.1 Unknown",
        ),
        (
            [received("Success", BOB, EVE), row(EAST, "SEND", 2, BOB)],
            {EAST: known("primary", BOB, EVE, last_reply="421 4.4.1 no")},
            "Delivered to 1 of 2 recipients by mx1.east, 05:42:02; waits for eve@corp.example on mx1.east: 421 4.4.1 no",
        ),
        (
            [received("Success", BOB), row(EAST, "FAIL", 3, BOB, replies=["550 5.1.1 Unknown"])],
            {EAST: known("delivered", BOB, told_after=["0193-ff"]), WEST: known("shadow", BOB)},
            "Failed on mx1.east, 05:42:03: 550 5.1.1 Unknown; "
            "mx1.east tells no other server what is done before 0193-ff has its copies or is done",
        ),
        (
            [received("Success", BOB), row(EAST, "SEND", 2, BOB), TAKEOVER, row(WEST, "SEND", 16, BOB)],
            {},
            "Delivered by mx1.east and mx1.west after takeover from mx1.east, 05:42:16; delivered more than once to bob@corp.example",
        ),
        (
            [row(WEST, "HARECEIVE", 1, BOB, client=EAST)],
            {WEST: known("shadow", BOB)},
            "Not delivered as far as is known; mx1.west has a copy; its acceptance is in none of these logs",
        ),
        (
            [TAKEOVER],
            {WEST: known("primary", BOB, last_reply="421 4.4.1 no")},
            "Waits on mx1.west after takeover from mx1.east: 421 4.4.1 no; its acceptance is in none of these logs",
        ),
        (
            [row(EAST, "HAREDIRECTFAIL", 1, BOB, context="No suitable shadow servers")],
            {},
            "Refused by mx1.east with 451, 05:42:01, so its client keeps it: No suitable shadow servers",
        ),
        (
            [row(EAST, "HAREDIRECTFAIL", 1, BOB, context="No suitable shadow servers")],
            {EAST: known("primary", BOB)},
            "Waits on mx1.east; its acceptance is in none of these logs",
        ),
        ([], {EAST: known("delivered", BOB, primary=WEST)}, "Done, says mx1.east, and was delivered by mx1.west"),
        ([], {EAST: known("primary", BOB, suspended_since="x", suspended_by="ann")}, "Is suspended by ann on mx1.east"),
        (
            [received("Success", BOB), row(EAST, "DUPLICATEDELIVER", 2, BOB, context="delivered as 42")],
            {},
            "Not delivered again: delivered as 42",
        ),
    ],
)
def test_a_story_begins_with_a_sentence(events: list[Row], messages: dict[str, Row], told: str) -> None:
    assert told == sentence(ID, events, messages, NOW)


def test_another_day_is_named_with_its_date() -> None:
    told = sentence(ID, [received("Success", BOB), row(EAST, "SEND", 2, BOB)], {}, datetime(2026, 11, 24, tzinfo=UTC))

    assert "Delivered by mx1.east, 2026-11-23 05:42:02" == told


def test_rows_that_only_refer_to_the_message_are_told_but_decide_nothing() -> None:
    notice = row(EAST, "SEND", 2, "ann@x.example", network_message_id="another")

    assert "Waits on mx1.east" == sentence(ID, [received("Success", BOB), notice], {EAST: known("primary", BOB)}, NOW)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (received("Failed", BOB), "accepted from client.example WITHOUT a copy"),
        (row(EAST, "HAREDIRECTFAIL", 1, context="No suitable shadow servers"), "no copy could be made: No suitable shadow servers"),
        (TAKEOVER, "took over from mx1.east, which was silent for the span"),
        (row(EAST, "HADISCARD", 1, client=WEST, context="delivered"), "discarded its copy: mx1.west told it delivered"),
        (row(EAST, "SEND", 1, BOB, server="store", replies=["250 OK"]), "delivered to store for bob@corp.example: 250 OK"),
        (
            row(EAST, "SEND", 1, BOB, server="store", replies=["250 OK"], custom_data={"Tls": "TLSv1.3,verified", "Auth": "PLAIN relay"}),
            "delivered to store for bob@corp.example (over TLSv1.3, verified, logged in by PLAIN as relay): 250 OK",
        ),
        (row(EAST, "LOAD", 1), "found it in its queue at its start"),
    ],
)
def test_each_row_is_told_in_words(line: Row, words: str) -> None:
    assert words == what(line)


class TracingNode(PlayedClient):
    """One of two, of which one knows the message."""

    def __init__(self, url: str, token: str, *, authority: Path | None = None, name: str = "") -> None:
        self.url = url

    def node(self) -> Row:
        return {"name": self.url.removeprefix("http://")}

    def search(self, filter_text: str, limit: int) -> list[Row]:
        found = [ID] if "one" in filter_text or self.url.endswith(WEST) else [ID, "another"]
        return [known("shadow") | {"message_id": one, "arrived_at": one, "subject": ""} for one in found]

    def events(self, message_id: str) -> list[Row]:
        events = [received("Success", BOB), row(EAST, "SEND", 2, BOB)] if self.url.endswith(EAST) else [TAKEOVER]
        return [] if message_id != ID else [{name: value for name, value in each.items() if name != "node"} for each in events]

    def message(self, message_id: str) -> Row:
        raise api_client.NodeError("this node knows no message", 404)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    play(monkeypatch, TracingNode)
    return ["--node", f"http://{WEST},http://{EAST}"]


@pytest.mark.parametrize("name", [ID, ID.upper(), "<one@x>"])
def test_what_all_nodes_logged_is_one_story_in_order(nodes: list[str], name: str) -> None:
    result = CliRunner().invoke(app, ["messages", "trace", name, *nodes])
    document = json.loads(CliRunner().invoke(app, ["messages", "trace", name, *nodes, "--json"]).stdout)

    assert (0, True) == (result.exit_code, result.stdout.startswith("Delivered by mx1.east, "))
    assert [("RECEIVE", EAST), ("SEND", EAST), ("RESUBMIT", WEST)] == [(each["event"], each["node"]) for each in document["events"]]
    assert (ID, []) == (document["message_id"], document["missing"])
    assert ["2026-11-23", "(UTC)", "Node"] == result.stdout.splitlines()[2].split()[:3]
    assert "05:42:01.000" == result.stdout.splitlines()[3].split()[0], "the day is in the heading"


def test_an_id_that_fits_several_messages_or_none_is_an_error(nodes: list[str]) -> None:
    several = CliRunner().invoke(app, ["messages", "trace", "0193", *nodes])
    none = CliRunner().invoke(app, ["messages", "trace", ID.replace("0", "1"), *nodes])

    assert (1, True) == (several.exit_code, "0193 fits 2 messages" in several.stderr)
    assert (1, "shadowrelay: no node that answered knows a message" in none.stderr) == (none.exit_code, True)


def test_of_a_message_that_was_relayed_from_hop_to_hop_the_first_is_meant() -> None:
    common = {"role": "delivered", "primary": "", "arrived_at": "2026-01-01T00:00:00Z", "subject": ""}
    rows = [{**common, "message_id": message_id, "relayed_from": before} for message_id, before in (("c", "b"), ("b", "a"), ("a", ""))]

    assert "a" == resolved([NodeAnswer(EAST, rows[:2]), NodeAnswer(WEST, rows[1:])], "<one@x>")
    assert "b" == resolved([NodeAnswer(EAST, rows[:2])], "<one@x>"), "the first hop does not answer, or has forgotten it"


OTHER = "11111111-6f1e-7c3a-9c57-0d1f2e3a4b5c"


class Hops(TracingNode):
    """Stands for NodeClient: an edge relays to a hub by TRACK."""

    def events(self, message_id: str) -> list[Row]:
        relayed = row(EAST, "SEND", 2, BOB, server=WEST, context=f"shadow kept as {OTHER}")
        shadow = {"Replication": "Success", "ShadowAt": EAST}
        taken = row(WEST, "RECEIVE", 1.5, BOB, client="c", network_message_id=OTHER, reference=ID, custom_data=shadow)
        delivered = row(WEST, "SENDEXTERNAL", 3, BOB, network_message_id=OTHER)
        told = row(EAST, "HADISCARD", 4, client=WEST, network_message_id=OTHER, reference=ID, context="delivered")
        events = [each for each in (received("Success", BOB), relayed, taken, delivered, told) if self.url.endswith(each["node"])]
        return [
            {name: value for name, value in each.items() if name != "node"} for each in events if message_id == each["network_message_id"]
        ]


@pytest.mark.parametrize("asked", [ID, OTHER])
def test_a_message_is_followed_from_hop_to_hop(nodes: list[str], monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setattr(api_client, "NodeClient", Hops)
    result = CliRunner().invoke(app, ["messages", "trace", asked, *nodes])
    document = json.loads(CliRunner().invoke(app, ["messages", "trace", asked, *nodes, "--json"]).stdout)

    assert ["RECEIVE", "RECEIVE", "SEND", "SENDEXTERNAL", "HADISCARD"] == [each["event"] for each in document["events"]]
    assert [OTHER if asked == ID else ID] == list(document["other_hops"])
    told = {
        ID: f"Relayed by mx1.east, 05:42:02. At mx1.west as {OTHER}: Delivered by mx1.west, 05:42:03",
        OTHER: "Delivered by mx1.west, 05:42:03",
    }[asked]
    assert told in document["sentence"].replace("2026-11-23 ", "")
    assert f"relayed to mx1.west for bob@corp.example, shadow kept as {OTHER}" in result.stdout
    assert "its shadow is on mx1.east" in result.stdout


class LostReply(Hops):
    """The hub took it, and its reply was lost: only its RECEIVE says what it has, and the edge's log does not."""

    def events(self, message_id: str) -> list[Row]:
        late = row(EAST, "DEFER", 2, BOB, server=WEST, context="no reply to the final dot")
        shadow = {"Replication": "Success", "ShadowAt": EAST}
        taken = row(WEST, "RECEIVE", 1.5, BOB, client="c", network_message_id=OTHER, reference=ID, custom_data=shadow)
        delivered = row(WEST, "SENDEXTERNAL", 3, BOB, network_message_id=OTHER)
        events = [each for each in (received("Success", BOB), late, taken, delivered) if self.url.endswith(each["node"])]
        named = [each for each in events if message_id in (each["network_message_id"], each["reference"])]
        return [{name: value for name, value in each.items() if name != "node"} for each in named]


def test_a_hop_whose_reply_was_lost_is_followed_too(nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_client, "NodeClient", LostReply)
    document = json.loads(CliRunner().invoke(app, ["messages", "trace", ID, *nodes, "--json"]).stdout)

    assert ["RECEIVE", "RECEIVE", "DEFER", "SENDEXTERNAL"] == [each["event"] for each in document["events"]]
    assert f"At mx1.west as {OTHER}: Delivered by mx1.west" in document["sentence"]


class Queued(TracingNode):
    """Stands for NodeClient: a message that was delivered, and its queue databases know nothing by that id."""

    def search(self, filter_text: str, limit: int) -> list[Row]:
        return []

    def queued_as(self, queue_id: str) -> list[str]:
        if queue_id == "4bXyz12k9Pz" and self.url.endswith(WEST):
            raise api_client.NodeError("no such path", 404)  # of an older version
        return {"4bXyz12k9Pz": [ID], "abcd1234": [ID], "again": [ID, OTHER]}.get(queue_id, [])


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ("4bXyz12k9Pz", 0, "Delivered by mx1.east"),
        ("abcd1234", 0, "Delivered by mx1.east"),  # might be the beginning of ours
        ("again", 1, "again was the id of 2 messages:"),
        ("4bUnknown", 1, "no node knows a message 4bUnknown"),
        ("ab", 2, "nor at least 4 characters"),
    ],
)
def test_a_message_is_traced_by_the_id_that_its_next_hop_gave_it(
    nodes: list[str], monkeypatch: pytest.MonkeyPatch, asked: str, code: int, said: str
) -> None:
    monkeypatch.setattr(api_client, "NodeClient", Queued)
    result = CliRunner().invoke(app, ["messages", "trace", asked, *nodes])

    assert (code, True) == (result.exit_code, said in result.output), result.output
